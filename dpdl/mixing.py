"""Mixing times of Markov chains, from their kernels and from logs.

For an irreducible aperiodic kernel P with stationary distribution mu,

    E(t) = max_s TV(P^t(s, .), mu)    (tv_distance),        t_mix = min {t : E(t) <= 1/4}    (mixing_time),

and E(t) <= 2^(-floor(t/t_mix)). A kernel is a row-stochastic (n, n) array, dense or sparse; the paper's chain is
that of the states under the behaviour policy, `behaviour_kernel`. Like Assumption 4.5, this module requires an
irreducible and aperiodic kernel; any other, also one with transient states, raises a ValueError that says why.

Exact means up to rounding. Up to `EXACT_STATES` states E is computed from dense powers. Beyond, each starting state is
followed step by step, which is exact as well but n times the work of one. `estimate_mixing_time` needs no kernel, only
a log.

Source: appendix H.1 of Chen, Zhang, Wen (2022); Levin, Peres, "Markov chains and mixing times".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components, dijkstra, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.data.packing import ENDED, chunk_size
from dpdl.models.cmdp import CMDP

#: Up to this many states dense powers of the kernel are cheap.
EXACT_STATES = 1000
#: The mixing time is the first time at which all distances are at most this.
_THRESHOLD = 0.25
#: Largest product of states and half bandwidth at which a sparse factorisation is tried: some 100 MB.
_MOST_FILL = 10**7


def behaviour_kernel(cmdp: CMDP, policy: ArrayLike) -> sp.csr_array:
    """Return the (S, S) kernel of the states under a policy: ``P_pi(s, s') = sum_a pi(a|s) P(s'|s, a)``.

    Where episodes end, the next one begins in a state drawn from rho0.

    Examples
    --------
    >>> P = [[[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]]
    >>> cmdp = CMDP(P, r=[[0, 0], [0, 0]], u=[[[0, 0], [0, 0]]], gamma=0.5, rho0=[1, 0])
    >>> behaviour_kernel(cmdp, [[0.5, 0.5], [1.0, 0.0]]).toarray().tolist()
    [[0.25, 0.75], [1.0, 0.0]]
    """
    check.instance("cmdp", cmdp, CMDP)
    pi = check.policy_array("policy", policy, cmdp.n_states, cmdp.n_actions)
    choices, P = policies.choice_matrix(pi / pi.sum(axis=1, keepdims=True)), cmdp.P
    if cmdp.ends is not None:
        P = P + sp.csr_array(cmdp.ends.reshape(-1, 1)) @ sp.csr_array(cmdp.rho0[None])
    return sp.csr_array(choices @ P)


def stationary(kernel: Any) -> Array:
    """Return the stationary distribution mu of an irreducible aperiodic kernel.

    Raises
    ------
    ValueError
        If a state is transient, if there are several closed classes, if the chain is periodic, or if it is too slow for
        power iteration and too large to be factorised.

    Notes
    -----
    Small kernels go to the elimination of Grassmann, Taksar and Heyman, accurate in every entry. Others go to power
    iteration, and if that has not converged in a thousand steps, to a sparse LU.

    Examples
    --------
    >>> stationary([[0.5, 0.5], [0.25, 0.75]]).round(6).tolist()
    [0.333333, 0.666667]
    """
    return _stationary(_checked_kernel(kernel))


def tv_distance(kernel: Any, t: int) -> float:
    """Return E(t) = max_s TV(P^t(s, .), mu).

    Examples
    --------
    >>> round(tv_distance([[0.5, 0.5], [0.25, 0.75]], 2), 6)  # 2/3 (1/4)^t
    0.041667
    """
    P, t = _checked_kernel(kernel), check.whole("t", t)
    mu = _stationary(P)
    if P.shape[0] > EXACT_STATES:
        return max(next(islice(_followed(P, mu, block), t, None)) for block in _blocks(P))
    power = np.linalg.matrix_power(P.toarray(), t)
    return _distance(power / power.sum(axis=1, keepdims=True), mu)  # else rounding would grow with t


def mixing_time(kernel: Any) -> int:
    """Return the exact mixing time, the least t with E(t) <= 1/4 (equation (48)).

    Beyond `EXACT_STATES` states every state is followed, which may take long.

    Examples
    --------
    >>> mixing_time([[0.99, 0.01], [0.01, 0.99]])  # E(t) = 0.98^t/2
    35
    """
    P = _checked_kernel(kernel)
    mu = _stationary(P)
    if P.shape[0] <= EXACT_STATES:
        return _mixing_time_dense(P.toarray(), mu)
    return max(_first_below(P, mu, block) for block in _blocks(P))


@dataclass(frozen=True)
class MixingEstimate:
    """Estimate of the mixing time from one trajectory.

    Attributes
    ----------
    estimate : float or None
        Mixing time of the smoothed empirical chain, without any guarantee; None if there are too many states.
    upper : float
        Upper bound with confidence 1 - delta; infinite if the trajectory is too short to tell.
    message : str
        The verdict in words; if too short, why.
    """

    estimate: float | None
    upper: float
    message: str


def estimate_mixing_time(log: Dataset, delta: float = 0.05) -> MixingEstimate:
    """Estimate the mixing time (threshold 1/4) of the states of a log of trajectories.

    Where the record of one trajectory stops and that of the next begins is no transition, unless the episode ended
    there: then the chain restarts in the first state of the next one. The bound holds with probability at least
    1 - delta, wherever the trajectory began. A state that the chain cannot reach, but the log counts, makes every
    trajectory too short.

    Notes
    -----
    Write Q for the empirical kernel (counts N_ij over visits N_i), e for the largest radius of its rows, in the 1-norm,
    and tau(K) = max_ij TV(K(i, .), K(j, .)), by which K contracts every difference of two distributions.

    Radius of a row. The successors of the visits to state i, in order of visit, are independent draws of P(i, .). For
    m of them ``|Q(i, .) - P(i, .)|_1 >= radius`` has probability at most 2^S exp(-m radius^2/2) (Weissman and others
    2003). The number of visits is random: failure delta/(S m (m+1)) is spent on each m = 1, 2, ..., in all delta.

    From rows to mixing. P^t - Q^t = sum over j < t of P^(t-1-j) (P - Q) Q^j, hence ``|P^t - Q^t|_1 <= e K_t``
    rowwise, with K_t = sum_{j<t} tau(Q^j); likewise ``|mu_P - mu_Q|_1 <= e K_inf``, and K_inf <= K_t/(1 - tau(Q^t)).
    So, for every P within the radii, E_P(t) <= E_Q(t) + e (K_t + K_inf)/2. The least t that makes this a quarter or
    less is the bound; it is finite once every state was seen some hundred times (S + log) times the square of the
    mixing time.

    Examples
    --------
    >>> states = np.cumsum(np.random.default_rng(0).random(50_001) > 0.6) % 2  # two states; stays with probability 0.6
    >>> zeros = np.zeros(50_000)
    >>> log = Dataset(states[:-1], zeros, states[1:], zeros, n_states=2, n_actions=1, starts=[0])
    >>> estimate_mixing_time(log)
    MixingEstimate(estimate=1.0, upper=1.0, message='t_mix <= 1 with probability at least 0.95')
    """
    check.instance("log", log, Dataset)
    if log.kind == "independent":
        raise ValueError("log holds independent transitions, not trajectories; see its starts")
    delta = check.real("delta", delta, above=0, below=1)
    size = log.n_states
    if size > EXACT_STATES:
        return MixingEstimate(None, math.inf, f"too many states: {size}, at most {EXACT_STATES} are dealt with")
    counts = _transition_counts(log)
    visits = counts.sum(axis=1)
    smoothed = (counts + 1 / size) / (visits + 1)[:, None]
    estimate = float(_mixing_time_dense(smoothed, _stationary(sp.csr_array(smoothed))))
    if size == 1:
        return MixingEstimate(estimate, 0.0, "a chain of one state is always mixed")
    radii = _row_radii(visits, delta)
    worst = int(np.argmax(radii))
    upper = _upper(counts / visits[:, None], float(radii[worst])) if radii[worst] < _THRESHOLD else math.inf
    if math.isfinite(upper):
        message = f"t_mix <= {upper:g} with probability at least {1 - delta:g}"
    elif not visits[worst]:
        message = f"too short to tell: no transition from state {worst} was seen"
    else:
        uncertain = f"leave its row uncertain by {radii[worst]:.2g} in the 1-norm"
        message = f"too short to tell: the {visits[worst]:.0f} visits to state {worst} {uncertain}"
    return MixingEstimate(estimate, upper, message)


def _transition_counts(log: Dataset) -> Array:
    """Count the moves from state to state; the end of an episode leads to the state of the next record."""
    size, records, state = log.n_states, log.records, log.table // log.n_actions
    counts, step = np.zeros(size * size), max(size * size, chunk_size(records.dtype))
    for first in range(0, len(records), step):
        part = records[first : first + step]
        following = state[records["pair"][first + 1 : first + step + 1]]
        after = part["s_next"][: len(following)]
        after = np.append(np.where(after == ENDED, following, after), part["s_next"][len(following) :])
        known = after != ENDED  # all but an end at the end of the log
        counts += np.bincount(state[part["pair"]][known].astype(np.int64) * size + after[known], minlength=size * size)
    return counts.reshape(size, size)


def _row_radii(visits: Array, delta: float) -> Array:
    """Return the radius of each row in the 1-norm, all valid at once with probability 1 - delta; at most two."""
    size, m = len(visits), np.maximum(visits, 1)
    radii = np.sqrt(2 * (size * math.log(2) + np.log(size * m * (m + 1) / delta)) / m)
    return np.where(visits > 0, np.minimum(radii, 2.0), 2.0)


def _upper(Q: Array, radius: float) -> float:
    """Return the least t with E_Q(t) + radius (K_t + K_inf)/2 <= 1/4, or infinity."""
    from scipy.spatial.distance import pdist  # here, because it makes `import dpdl` slow

    try:
        mu = _stationary(sp.csr_array(Q))
    except ValueError:  # the empirical chain is reducible or periodic
        return math.inf
    power, travelled, t = Q, 1.0, 1  # travelled is K_t
    while radius * travelled < _THRESHOLD:  # K_inf >= K_t, which never falls: beyond this no t can do
        tau = min(1.0, 0.5 * float(pdist(power, "cityblock").max()))
        excess = 0.5 * radius * travelled * (1 + 1 / (1 - tau)) if tau < 1 else math.inf
        if _distance(power, mu) + excess <= _THRESHOLD:
            return float(t)
        if tau < 1e-12:
            break
        power, travelled, t = power @ Q, travelled + tau, t + 1
    return math.inf


# ---- Kernels and their stationary distributions ----


def _checked_kernel(kernel: Any) -> sp.csr_array:
    """Check a row-stochastic matrix and return it sparse, its rows scaled to sum to one in double precision."""
    P = kernel if sp.issparse(kernel) else check.numbers_array("kernel", kernel, shape=(None, None), copy=False)
    if P.ndim != 2 or P.shape[0] != P.shape[1] or not P.shape[0]:
        raise ValueError(f"kernel must have shape (n, n), got {P.shape}")
    P = check.sparse_array("kernel", sp.csr_array(P))
    wrong = np.flatnonzero(~(np.isfinite(P.data) & (P.data >= 0)))
    if wrong.size:
        row = int(np.searchsorted(P.indptr, wrong[0], side="right")) - 1
        value = float(P.data[wrong[0]])
        raise ValueError(f"kernel[{row}, {P.indices[wrong[0]]}] = {value!r} must be finite and >= 0")
    P.eliminate_zeros()
    totals = np.asarray(P.sum(axis=1))
    wrong = np.flatnonzero(abs(totals - 1) > check.SUM_TOLERANCE)
    if wrong.size:
        raise ValueError(f"kernel[{wrong[0]}] must sum to 1, got {totals[wrong[0]]:.12g}")
    data = P.data / np.repeat(totals, np.diff(P.indptr))
    # The graph routines of older versions of scipy take indices of 32 bits alone.
    return sp.csr_array((data, P.indices.astype(np.int32), P.indptr.astype(np.int32)), shape=P.shape)


def _check_ergodic(P: sp.csr_array) -> None:
    """Raise ValueError unless the chain is irreducible and aperiodic."""
    n_classes, label = connected_components(P, directed=True, connection="strong")
    source = np.repeat(np.arange(P.shape[0]), np.diff(P.indptr))
    if n_classes > 1:
        leaves = np.zeros(n_classes, dtype=bool)
        leaves[label[source[label[source] != label[P.indices]]]] = True
        closed = np.flatnonzero(~leaves)
        if len(closed) > 1:
            first, second = (int(np.argmax(label == which)) for which in closed[:2])
            raise ValueError(
                f"kernel is reducible: {len(closed)} closed classes, and no path leads from state {first} to {second}"
            )
        transient = np.flatnonzero(leaves[label])
        raise ValueError(f"kernel is reducible: state {transient[0]} is transient, one of {len(transient)}")
    level = dijkstra(P, indices=0, unweighted=True).astype(np.int64)
    period = int(np.gcd.reduce(abs(level[source] + 1 - level[P.indices])))
    if period != 1:
        raise ValueError(f"kernel is periodic: every return to a state takes a multiple of {period} steps")


def _stationary(P: sp.csr_array) -> Array:
    """Return the stationary distribution of a checked kernel."""
    _check_ergodic(P)
    if P.shape[0] <= 500:
        return _eliminate(P.toarray())
    inward = sp.csr_array(P.T)
    mu = np.full(P.shape[0], 1 / P.shape[0])
    for _ in range(1000):
        before, mu = mu, inward @ mu
        if abs(mu - before).sum() <= 4e-15:
            return mu / mu.sum()
    _check_fill(P)
    # With the last state's probability set to one, the others' balance equations have an M-matrix.
    balance = sp.csc_array(sp.eye_array(P.shape[0], format="csc") - inward)
    factors = splu(sp.csc_array(balance[:-1, :-1]), "MMD_AT_PLUS_A", diag_pivot_thresh=0.1)
    mu = np.append(factors.solve(-balance[:-1, [-1]].toarray().ravel()), 1.0)
    return mu / mu.sum()


def _check_fill(P: sp.csr_array) -> None:
    """Raise ValueError if factors might not fit into memory: no ordering of the states has a narrow band."""
    both = sp.coo_array(P + P.T)
    place = np.argsort(reverse_cuthill_mckee(sp.csr_array(both), symmetric_mode=True))
    band = int(abs(place[both.row] - place[both.col]).max())
    if P.shape[0] * band > _MOST_FILL:
        raise ValueError(
            f"power iteration has not converged in 1,000 steps: the chain mixes too slowly for its {P.shape[0]:,} "
            f"states, which are too many to factorise (half bandwidth {band:,})"
        )


def _eliminate(P: Array) -> Array:
    """Eliminate states from the last to the first; every operation adds, multiplies or divides positive numbers."""
    n = len(P)
    for k in range(n - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    mu = np.ones(n)
    for k in range(1, n):
        mu[k] = mu[:k] @ P[:k, k]
        mu[: k + 1] /= mu[: k + 1].sum()  # keeps the numbers in range
    return mu


# ---- E(t), its inverse, and eigenvalues of (P*)^k P^k ----


def _distance(power: Array, mu: Array) -> float:
    return 0.5 * float(abs(power - mu).sum(axis=1).max())


def _blocks(P: sp.csr_array) -> list[NDArray[np.intp]]:
    """Divide the states into blocks that are followed at a time."""
    return np.array_split(np.arange(P.shape[0]), math.ceil(P.shape[0] / 256))


def _followed(P: sp.csr_array, mu: Array, starts: NDArray[np.intp]) -> Iterator[float]:
    """Yield the largest distance of P^t(s, .) from mu, of these starting states s, for t = 0, 1, 2, ..."""
    outward = sp.csr_array(P.T)
    rows = np.zeros((P.shape[0], len(starts)))
    rows[starts, np.arange(len(starts))] = 1.0
    while True:
        yield 0.5 * float(abs(rows - mu[:, None]).sum(axis=0).max())
        rows = outward @ rows


def _first_below(P: sp.csr_array, mu: Array, starts: NDArray[np.intp]) -> int:
    """Return the least t at which all these starting states are within 1/4."""
    return next(t for t, distance in enumerate(_followed(P, mu, starts)) if distance <= _THRESHOLD)


def _mixing_time_dense(P: Array, mu: Array) -> int:
    """Double t until E(t) <= 1/4, then add the largest powers of two that keep E above it."""
    if _distance(np.eye(len(mu)), mu) <= _THRESHOLD:
        return 0
    powers = [P]
    while (distance := _distance(powers[-1], mu)) > _THRESHOLD:
        if len(powers) > 62:  # step counters are 64-bit
            raise ValueError(
                f"E(t) is still {distance:.3g} after 2^62 steps: the chain is so nearly reducible that "
                "rounding hides when it mixes"
            )
        square = powers[-1] @ powers[-1]
        powers.append(square / square.sum(axis=1, keepdims=True))
    # Invariant: E(t) > 1/4, and E(t + 2^(j+1)) <= 1/4 for the exponent j about to be tried.
    t, reached = 0, np.eye(len(mu))
    for exponent in range(len(powers) - 2, -1, -1):
        further = reached @ powers[exponent]
        if _distance(further, mu) > _THRESHOLD:
            t, reached = t + (1 << exponent), further
    return t + 1
