"""The mixing time estimated from one trajectory, with an upper confidence bound; public as `dpdl.mixing`.

Write Q for the empirical kernel (counts N_ij over visits N_i), e for the largest radius of its rows, in the 1-norm,
and tau(K) = max_ij TV(K(i, .), K(j, .)), by which K contracts every difference of two distributions.

Radius of a row. The successors of the visits to state i, in order of visit, are independent draws of P(i, .). For m
of them |Q(i, .) - P(i, .)|_1 >= radius has probability at most 2^S exp(-m radius^2/2) (Weissman and others 2003).
The number of visits is random: failure delta/(S m (m+1)) is spent on each m = 1, 2, ..., which sums to delta.

From rows to mixing. P^t - Q^t = sum over j < t of P^(t-1-j) (P - Q) Q^j, hence |P^t - Q^t|_1 <= e K_t rowwise, with
K_t = sum_{j<t} tau(Q^j); likewise |mu_P - mu_Q|_1 <= e K_inf, and K_inf <= K_t/(1 - tau(Q^t)). So, for every P within
the radii, E_P(t) <= E_Q(t) + e (K_t + K_inf)/2. The least t that makes this a quarter or less is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.data.packing import ENDED, chunks
from dpdl.mixing.chain import EXACT_STATES, mixing_time_dense, stationary_of

_THRESHOLD = 0.25
_PAIRWISE_STATES = 200


@dataclass(frozen=True)
class MixingEstimate:
    """Estimate of the mixing time from one trajectory.

    Attributes
    ----------
    estimate : float or None
        Mixing time of the smoothed empirical chain, without any guarantee; None if there are too many states.
    upper : float
        Upper bound with confidence 1 - delta; infinite if the trajectory is too short to tell.
    enough : bool
        Whether the trajectory was long enough for a finite bound.
    message : str
        The verdict in words; if too short, why.
    """

    estimate: float | None
    upper: float
    enough: bool
    message: str


def estimate_mixing_time(states: Any, n_states: int | None = None, delta: float = 0.05) -> MixingEstimate:
    """Estimate the mixing time (threshold 1/4) of a chain from one trajectory of it.

    Parameters
    ----------
    states : array_like of int, or Dataset
        The states in order, wherever the first one came from; or a log of one or several trajectories. Where the
        record of one stops and that of the next begins is no transition, unless the episode ended there: then the
        chain restarts in the first state of the next one.
    n_states : int, optional
        Number of states of the chain; required unless a Dataset says it.
    delta : float, optional
        The bound holds with probability at least 1 - delta.

    Returns
    -------
    MixingEstimate

    Notes
    -----
    With probability at least 1 - delta every row of the empirical kernel is within its radius of the true one, and
    then the bound holds: it covers the mixing time of every chain within the radii. The module's docstring has the
    proof. The radius of a row with m visits is sqrt(2 (S log 2 + log(S m (m+1)/delta))/m), so that a trajectory is
    long enough once every state was seen some hundred times (S + log) times the square of the mixing time. A state
    that the chain cannot reach, but `n_states` counts, makes every trajectory too short.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> stay = rng.random(50_000) < 0.6  # a chain of two states that stays with probability 0.6
    >>> states = np.cumsum(~stay) % 2
    >>> estimate_mixing_time(states, n_states=2)
    MixingEstimate(estimate=1.0, upper=1.0, enough=True, message='t_mix <= 1 with probability at least 0.95')
    >>> estimate_mixing_time(states[:100], n_states=2).message
    'too short to tell: the 44 visits to state 0 leave its row uncertain by 0.76 in the 1-norm'
    """
    parts, size = _transitions(states, n_states)
    delta = check.real("delta", delta, above=0, below=1)
    if size > EXACT_STATES:
        return MixingEstimate(None, math.inf, False, f"too many states: {size}, at most {EXACT_STATES} are dealt with")
    counts = np.zeros((size, size))
    for sources, targets in parts:
        flat = sources.astype(np.int64) * size + targets
        counts += np.bincount(flat, minlength=size * size).reshape(size, size)
    visits = counts.sum(axis=1)
    smoothed = (counts + 1 / size) / (visits + 1)[:, None]
    estimate = float(mixing_time_dense(smoothed, stationary_of(sp.csr_array(smoothed)), _THRESHOLD))
    if size == 1:
        return MixingEstimate(estimate, 0.0, True, "a chain of one state is always mixed")
    radii = row_radii(visits, delta)
    worst = int(np.argmax(radii))
    upper = _upper(counts / visits[:, None], float(radii[worst])) if radii[worst] < _THRESHOLD else math.inf
    if math.isfinite(upper):
        message = f"t_mix <= {upper:g} with probability at least {1 - delta:g}"
    elif not visits[worst]:
        message = f"too short to tell: no transition from state {worst} was seen"
    else:
        uncertain = f"leave its row uncertain by {radii[worst]:.2g} in the 1-norm"
        message = f"too short to tell: the {visits[worst]:.0f} visits to state {worst} {uncertain}"
    return MixingEstimate(estimate, upper, math.isfinite(upper), message)


def row_radii(visits: Array, delta: float) -> Array:
    """Return the radius of each row in the 1-norm, all valid at once with probability 1 - delta; at most two."""
    size = len(visits)
    m = np.maximum(visits, 1)
    radii = np.sqrt(2 * (size * math.log(2) + np.log(size * m * (m + 1) / delta)) / m)
    return np.where(visits > 0, np.minimum(radii, 2.0), 2.0)


def _upper(Q: Array, radius: float) -> float:
    """Return the least t with E_Q(t) + radius (K_t + K_inf)/2 <= 1/4, or infinity."""
    from scipy.spatial.distance import pdist  # here, because it makes `import dpdl` slow

    try:
        mu = stationary_of(sp.csr_array(Q))
    except ValueError:  # the empirical chain is reducible or periodic
        return math.inf
    power, travelled, t = Q, 1.0, 1  # travelled is K_t
    while radius * travelled < _THRESHOLD:  # K_inf >= K_t, which never falls: beyond this no t can do
        distance = 0.5 * float(abs(power - mu).sum(axis=1).max())
        tau = min(1.0, 0.5 * float(pdist(power, "cityblock").max()) if len(mu) <= _PAIRWISE_STATES else 2 * distance)
        if tau < 1 and distance + 0.5 * radius * travelled * (1 + 1 / (1 - tau)) <= _THRESHOLD:
            return float(t)
        if tau < 1e-12:
            break
        power, travelled, t = power @ Q, travelled + tau, t + 1
    return math.inf


def _transitions(states: Any, n_states: int | None) -> tuple[Iterable[tuple[NDArray[Any], NDArray[Any]]], int]:
    """Return where transitions lead from and to, in parts, and the number of states."""
    if isinstance(states, Dataset):
        if n_states is not None and check.whole("n_states", n_states) != states.n_states:
            raise ValueError(f"n_states = {n_states} must be that of the Dataset, {states.n_states}, or be left out")
        if states.kind == "independent":
            raise ValueError("states is a Dataset of independent transitions, not of trajectories; see its starts")
        state = states.table // states.n_actions
        size = states.n_states
        parts = chunks(states.records, at_least=min(size, EXACT_STATES) ** 2)
        return _moves(parts, state), size
    if n_states is None:
        raise TypeError("n_states must be given unless states is a Dataset")
    size = check.whole("n_states", n_states, at_least=1, at_most=2**31 - 1)
    path = check.indices("states", states, size, dtype=np.int64)
    if len(path) < 2:
        raise ValueError(f"states must hold at least two states, got {len(path)}")
    return [(path[:-1], path[1:])], size


def _moves(parts: Iterable[NDArray[Any]], state: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Where the records of a log lead from and to; the end of an episode leads to the state of the next record."""
    waiting = np.empty(0, dtype=state.dtype)  # the state in which the previous part ended its episode
    for part in parts:
        here = np.concatenate([waiting, state[part["pair"]]])
        after = np.concatenate([np.full(len(waiting), ENDED), part["s_next"]])
        ended = np.flatnonzero(after == ENDED)
        after[ended[ended + 1 < len(here)]] = here[ended[ended + 1 < len(here)] + 1]
        waiting = here[-1:] if after[-1] == ENDED else here[:0]
        yield here[: len(here) - len(waiting)], after[: len(here) - len(waiting)]
