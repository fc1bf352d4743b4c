"""Mixing times of Markov chains, and concentration bounds for data from one trajectory.

For an irreducible aperiodic kernel P with stationary distribution mu,

    E(t) = max_s TV(P^t(s, .), mu)    (tv_distance),        t_mix = min {t : E(t) <= 1/4}    (mixing_time),

and E(t) <= 2^(-floor(t/t_mix)). A kernel is a row-stochastic (n, n) array, dense or sparse; the paper's chain is
that of the states under the behaviour policy, `behaviour_kernel`. Like Assumption 4.5, this module requires an
irreducible and aperiodic kernel; any other, also one with transient states, raises a ValueError that says why.

Exact means up to rounding. Up to `EXACT_STATES` states E is computed from dense powers. Beyond, each starting state is
propagated separately, which is exact as well but n times the work of one; `mixing_time_bounds` takes seconds at 10^5
states, and returns an interval.

Source: appendix H.1 of Chen, Zhang, Wen (2022); Levin, Peres, "Markov chains and mixing times"; Paulin,
"Concentration inequalities for Markov chains by Marton couplings and spectral methods" (2015).
"""

from dpdl.mixing.bounds import MixingTime
from dpdl.mixing.chain import EXACT_STATES
from dpdl.mixing.estimate import MixingEstimate, estimate_mixing_time
from dpdl.mixing.measures import (
    behaviour_kernel,
    bernstein_half_width,
    mixing_time,
    mixing_time_bounds,
    pair_kernel,
    pseudo_spectral_gap,
    stationary,
    tv_distance,
)

__all__ = [
    "EXACT_STATES",
    "MixingEstimate",
    "MixingTime",
    "behaviour_kernel",
    "bernstein_half_width",
    "estimate_mixing_time",
    "mixing_time",
    "mixing_time_bounds",
    "pair_kernel",
    "pseudo_spectral_gap",
    "stationary",
    "tv_distance",
]
