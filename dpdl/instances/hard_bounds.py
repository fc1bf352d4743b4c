"""Lower bounds as functions of the number of samples, and the sizes that their proofs use.

The problems themselves are in `dpdl.instances.hard`. The theorems give rates up to a universal constant; their proofs
have constants, which the functions below use by default. The proofs have gaps, listed in docs/paper-map.md, which do
not affect these constants. Those of the argument by Fano's inequality close with Assouad's lemma, over the whole cube
of signs instead of a packing: at the proof's varpi any two neighbouring theta are so alike after N samples that the
average error per sign is at least 0.39, where 1/24 is claimed, and averages do add up. A test computes this from the
models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _validation as check
from dpdl._validation import Array


def blocks(n_blocks: int, n_actions: int, n_utilities: int) -> tuple[int, int, int]:
    """Return K, S_c and S_u: how `lower_bound` divides S blocks, given A actions and I utilities (appendix F.1).

    There are K = min([I/2], [(A-1)/2]) pairs (a_i, b_i) in each of S_c = min([I/(2K)], S) constrained blocks. The other
    blocks are unconstrained, or left out if they are fewer than four.

    Examples
    --------
    >>> blocks(10, 5, 8)
    (2, 2, 8)
    >>> blocks(5, 5, 8)
    (2, 2, 0)
    """
    n_blocks = check.whole("n_blocks", n_blocks, at_least=4)
    n_actions = check.whole("n_actions", n_actions, at_least=3)
    n_utilities = check.whole("n_utilities", n_utilities, at_least=8)
    pairs = min(n_utilities // 2, (n_actions - 1) // 2)
    constrained = min(n_utilities // (2 * pairs), n_blocks)
    return pairs, constrained, n_blocks - constrained if constrained < n_blocks - 3 else 0


def hardest_varpi(
    n_samples: ArrayLike, n_signs: int, concentrability: float, gamma: float, family: str = "lower_bound"
) -> Array:
    """Return the varpi at which N samples do not show n signs yet: min(sqrt((n-3) C/(8 (1-gamma) N)), 1/2).

    The proof of Theorem 5.1 takes it with n = S_c K for varpi_c and n = S_u for varpi_u; that of
    Theorem 5.2, ``family="no_slater"``, takes n = S and 16 in place of 8.

    Examples
    --------
    >>> hardest_varpi([1, 2000, 8000], 35, concentrability=5, gamma=0.9).round(4)
    array([0.5   , 0.3162, 0.1581])
    """
    N = check.numbers_array("n_samples", n_samples, at_least=1)
    n = check.whole("n_signs", n_signs, at_least=3)
    C, gamma = checked_constants(concentrability, gamma)
    factor = {"lower_bound": 8, "no_slater": 16}[check.choice("family", family, ("lower_bound", "no_slater"))]
    return np.minimum(np.sqrt((n - 3) * C / (factor * (1 - gamma) * N)), 0.5)


def suboptimality_bound(
    n_samples: ArrayLike, n_blocks: int, n_actions: int, n_utilities: int, concentrability: float, gamma: float
) -> Array:
    """Return what a learner that is always safe loses at least, on average, for some theta (Theorem 5.1).

    The arguments are N, one or many, and those of `lower_bound`. The result is the bound in the proof,
    v/(2(1-gamma)) (varpi_c/192 + varpi_u/24) with varpi from `hardest_varpi`, and v varpi_c/(192 (1-gamma)) without
    unconstrained blocks. It bounds the mean of the loss L = [J* - J]_+ + gamma varpi_c/(1-gamma) violation, with or
    without the brackets. So a learner that may be unsafe has a mean suboptimality of at least half of it, or a mean
    violation of at least v/(768 gamma).

    Examples
    --------
    >>> float(suboptimality_bound(1e6, 20, 5, 16, concentrability=5, gamma=0.9).round(6))
    0.000514
    """
    k, n_c, n_u = blocks(n_blocks, n_actions, n_utilities)
    C, gamma = checked_constants(concentrability, gamma)
    bound = hardest_varpi(n_samples, n_c * k, C, gamma) / 192
    if n_u:
        bound = (bound + hardest_varpi(n_samples, n_u, C, gamma) / 24) / 2
    return visits(gamma)[2] / (1 - gamma) * bound


def violation_bound(n_samples: ArrayLike, n_blocks: int, concentrability: float, gamma: float) -> Array:
    """Return what any learner violates at least, on average, for some theta of `no_slater` (Theorem 5.2).

    The arguments are like those of `suboptimality_bound`; the bound in the proof is v varpi/(24 (1-gamma)).

    Examples
    --------
    >>> violation_bound([1, 10**6], 20, concentrability=5, gamma=0.9).round(6)
    array([0.052..., 0.000...])
    """
    n_blocks = check.whole("n_blocks", n_blocks, at_least=4)
    C, gamma = checked_constants(concentrability, gamma)
    return visits(gamma)[2] / (24 * (1 - gamma)) * hardest_varpi(n_samples, n_blocks, C, gamma, "no_slater")


def visits(gamma: float) -> tuple[float, float, float]:
    """Return v0, v1 and v (equation (38))."""
    return 2 / (2 + gamma), 2 * gamma / (4 - gamma**2), gamma**2 / (4 - gamma**2)


def checked_constants(concentrability: float, gamma: float) -> tuple[float, float]:
    """Check the ranges of C and gamma that both theorems assume."""
    C = check.real("concentrability", concentrability, at_least=2)
    return C, check.real("gamma", gamma, at_least=0.5, below=1)
