"""The average of several results of the same problem, and how far they are apart.

The gap of Theorem 4.4 is the largest of functions that are linear in x, hence convex: that of an average is at
most the average of the gaps. The sets that x, V and lam live in are convex too, so averages stay inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dpdl._validation import Array
from dpdl.premises import combined
from dpdl.result import Result, SparseTable, Status

#: The status of a set of runs is the first of these that any of them has.
_BY_PRECEDENCE = (
    Status.NUMERICAL_ERROR,
    Status.INTERRUPTED,
    Status.STOPPED,
    Status.TIME_LIMIT,
    Status.STEP_LIMIT,
    Status.COMPLETED,
    Status.CONVERGED,
)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far replicas are apart.

    Standard deviations are between single replicas, weighted as the average is; that of the average itself is smaller
    by the root of their number. With fewer than two replicas everything is NaN.

    Attributes
    ----------
    x : array, shape (S, A)
        Standard deviation of x_mean. Written out when asked for.
    V, lam : arrays, shapes (S,), (I,)
        Standard deviations of V_mean and lam_mean.
    occupancy_distance : float
        Mean total-variation distance of a replica's occupancy (x_mean scaled to sum one) from that of the average.
    policy_distance : float
        Mean total-variation distance of a replica's policy from that of the average, weighted by the states that the
        average visits.
    """

    x_table: SparseTable = field(repr=False)
    V: Array = field(repr=False)
    lam: Array = field(repr=False)
    occupancy_distance: float
    policy_distance: float
    n_states: int = field(repr=False)
    n_actions: int = field(repr=False)

    @cached_property
    def x(self) -> Array:
        """The standard deviation of x_mean over all pairs."""
        return self.x_table.dense(self.n_states, self.n_actions)


def weights(results: Sequence[Result]) -> list[float]:
    """Weights of the results in the average: proportional to the steps taken, or equal if no steps were taken."""
    total = sum(result.n_steps for result in results)
    return [result.n_steps / total if total else 1 / len(results) for result in results]


def average(results: Sequence[Result], n_wanted: int) -> Result:
    """The average of results; `n_wanted` is how many there would be without Ctrl-C."""
    first = results[0]
    if first.status is Status.INFEASIBLE:  # so are all others: it does not depend on the seed
        return first
    shares = weights(results)
    statuses = [result.status for result in results] + [Status.INTERRUPTED] * (n_wanted - len(results))
    return replace(
        first,
        status=next(status for status in _BY_PRECEDENCE if status in statuses),
        ending=_message(statuses, n_wanted - len(results)) if n_wanted > 1 else first.ending,
        n_steps=sum(result.n_steps for result in results),
        x_table=_unflat(first.x_table, _mean((_flat(result.x_table) for result in results), shares)),
        last_log_x_table=_unflat(
            first.last_log_x_table, _log_mean((_flat(result.last_log_x_table) for result in results), shares)
        ),
        V_mean=_mean((result.V_mean for result in results), shares),
        lam_mean=_mean((result.lam_mean for result in results), shares),
        V=_mean((result.V for result in results), shares),
        log_lam=_log_mean((result.log_lam for result in results), shares),
        premises=tuple(combined(result.premises for result in results).values()),
        guarantee=None,
        diagnostics={name: sum(result.diagnostics[name] for result in results) for name in first.diagnostics},
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
    )


def spread(results: Sequence[Result], mean: Result) -> Spread:
    """Spread of results around their average."""
    shares = weights(results)
    x = _deviation((_flat(result.x_table) for result in results), _flat(mean.x_table), shares)
    sizes = mean.reference.n_states, mean.reference.n_actions
    occupancy = policy = math.nan
    if _several(shares):
        distances = [_distances(result.x_table, mean.x_table, *sizes) for result in results]
        occupancy, policy = (
            sum(share * one for share, one in zip(shares, ones, strict=True)) for ones in zip(*distances, strict=True)
        )
    return Spread(
        x_table=_unflat(mean.x_table, x),
        V=_deviation((result.V_mean for result in results), mean.V_mean, shares),
        lam=_deviation((result.lam_mean for result in results), mean.lam_mean, shares),
        occupancy_distance=occupancy,
        policy_distance=policy,
        n_states=sizes[0],
        n_actions=sizes[1],
    )


def _message(statuses: list[Status], n_missing: int) -> str:
    n = len(statuses)
    if all(status is Status.COMPLETED for status in statuses):
        return f"all steps of {n} replicas were taken"
    if all(status is Status.CONVERGED for status in statuses):
        return f"the gaps of {n} replicas are within the tolerance"
    ended = statuses[: n - n_missing]
    counts = [f"{ended.count(status)} {status.name}" for status in reversed(_BY_PRECEDENCE) if status in ended]
    missing = [f"{n_missing} not begun"] if n_missing else []
    return f"of {n} replicas: {', '.join(counts + missing)}; the result covers the steps taken"


def _flat(table: SparseTable) -> Array:
    """The values of a table, followed by that of all other pairs."""
    return np.append(table.values, table.elsewhere)


def _unflat(like: SparseTable, values: Array) -> SparseTable:
    return SparseTable(like.pairs, values[:-1], float(values[-1]))


def _several(shares: Sequence[float]) -> bool:
    """Whether at least two results have positive weight."""
    return sum(share > 0 for share in shares) > 1


# The arrays are iterated over, so that at most one copy exists at a time.


def _mean(arrays: Iterable[Array], shares: Sequence[float]) -> Array:
    total: Array | None = None
    for array, share in zip(arrays, shares, strict=True):
        total = share * array if total is None else total + share * array
    assert total is not None
    return total


def _log_mean(logs: Iterable[Array], shares: Sequence[float]) -> Array:
    """Logarithm of the mean of exp(logs), which may be far below the smallest double."""
    total: Array | None = None
    for array, share in zip(logs, shares, strict=True):
        part = array + (math.log(share) if share > 0 else -math.inf)
        total = part if total is None else np.logaddexp(total, part)
    assert total is not None
    return total


def _deviation(arrays: Iterable[Array], mean: Array, shares: Sequence[float]) -> Array:
    """Root of the unbiased variance; with equal shares, the divisor is n - 1."""
    if not _several(shares):
        return np.full_like(mean, np.nan)
    freedom = 1 - sum(share**2 for share in shares)
    return np.sqrt(_mean(((array - mean) ** 2 for array in arrays), shares) / freedom)


def _distances(one: SparseTable, mean: SparseTable, n_states: int, n_actions: int) -> tuple[float, float]:
    """Total variation between occupancies, and between policies in the states that `mean` visits."""
    states = one.pairs // n_actions
    unseen = n_actions - np.bincount(states, minlength=n_states)

    def rows(x: SparseTable) -> Array:
        return np.bincount(states, weights=x.values, minlength=n_states) + unseen * x.elsewhere

    def distance(a: Array, a_elsewhere: Array | float, b: Array, b_elsewhere: Array | float) -> Array:
        """Half the sum of |a - b| over the actions of each state."""
        seen = np.bincount(states, weights=abs(a - b), minlength=n_states)
        return (seen + unseen * abs(np.asarray(a_elsewhere) - b_elsewhere)) / 2

    def policy(x: SparseTable, mass: Array) -> tuple[Array, Array]:
        # The policy of a row without mass is uniform. A mass below the smallest normal double, which has no
        # reciprocal, counts as zero.
        reached = mass >= np.finfo(float).tiny
        scale = np.divide(1.0, mass, out=np.zeros_like(mass), where=reached)
        even = np.where(reached, 0.0, 1 / n_actions)
        return x.values * scale[states] + even[states], x.elsewhere * scale + even

    mass, mean_mass = rows(one), rows(mean)
    total, mean_total = mass.sum(), mean_mass.sum()
    occupancy = distance(
        one.values / total, one.elsewhere / total, mean.values / mean_total, mean.elsewhere / mean_total
    )
    policies = distance(*policy(one, mass), *policy(mean, mean_mass))
    return float(occupancy.sum()), float(policies @ mean_mass / mean_total)
