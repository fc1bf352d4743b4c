"""Estimates from a log: its plug-in model, the reward and constraints of a policy on it, and the best policy by them.

The value of a policy on the plug-in model is the efficient estimate of its true value. To first order its error is a
sum of independent errors, one for each visited pair, because V enters through the rows of the log only:

    variance of J-hat = sum over (s, a) of nu(s,a)^2 / N(s,a) Var[r + gamma V(s') | s, a] + Var[V(s_0)] / n_0

with N(s,a) visits, the occupancy nu and the value function V of the policy on the plug-in model, and n_0 logged first
states. With few visits the variance of a row is uncertain itself; a pair that was seen once counts with the largest
variance that numbers between the least and the largest of the log can have, and so does a single first state. Pairs
that the log does not show are worst-case, in the estimate and not in its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from dpdl import _text as text
from dpdl._validation import Array
from dpdl.acting import Policy
from dpdl.data.dataset import Dataset
from dpdl.models.cmdp import CMDP
from dpdl.models.evaluation import Evaluator
from dpdl.models.solution import Solution
from dpdl.question import AVERAGE, pose

#: Models with more pairs, visited or not, are not judged: their arrays would not fit into the memory of a log.
MOST_PAIRS = 20_000_000
#: See `_tolerances`.
TOLERANCE, SHARE_OF_LIMIT = 1e-6, 1e-3
#: Accuracy of value functions, relative to the largest that numbers up to one have.
ACCURACY = 1e-12
#: Relative to the numbers that were added, smaller sums and variances are rounding.
ROUNDING = 1e-14
#: The last model of each log, for as long as the log lives: a result, its checks and its start all need the same one.
_LAST: WeakKeyDictionary[Dataset, tuple[tuple[float, bytes], CMDP]] = WeakKeyDictionary()


def plug_in(
    log: Dataset,
    gamma: float,
    rho0: ArrayLike | None = None,
    *,
    limits: Mapping[str, float] | None = None,
    limit_on: str | None = None,
    initial_states: ArrayLike | None = None,
) -> CMDP:
    """Return the model whose probabilities and rewards are the observed frequencies and means.

    Pairs that the data does not show are worst-case: they pay reward and utilities -1 and never leave their
    state. The parameters are those of `plan`.

    Examples
    --------
    >>> from dpdl import Dataset
    >>> data = Dataset([0, 0], [0, 0], [0, 1], [1.0, 0.0], [[1.0], [1.0]], n_states=2, n_actions=1)
    >>> model = plug_in(data, gamma=0.5, rho0=[1.0, 0.0])
    >>> model.P.toarray().tolist(), model.r.tolist()
    ([[0.5, 0.5], [0.0, 1.0]], [[0.5], [-1.0]])
    """
    dataset = pose(log, gamma, limits, limit_on)
    initial = dataset.initial(rho0, initial_states)
    key = (gamma, initial.tobytes())
    known = _LAST.get(dataset)  # read once: another thread may replace it
    if known is None or known[0] != key:
        known = _LAST[dataset] = (key, _plug_in(dataset, float(gamma), initial))
    return known[1]


def _plug_in(dataset: Dataset, gamma: float, initial: Array) -> CMDP:
    n_states, n_pairs = dataset.n_states, dataset.n_states * dataset.n_actions
    # In chunks: memory is proportional to the pairs and the distinct transitions, not to the length of the log.
    moves, totals = sp.csr_array((n_pairs, n_states + 1)), np.zeros((1 + dataset.n_utilities, n_pairs))
    for part, repeats in dataset.parts(at_least=n_pairs):
        flat = dataset.table[part["pair"]]
        after = np.where(part["s_next"] < 0, n_states, part["s_next"])  # the last column is the end
        weight = np.broadcast_to(np.float64(1) * repeats, flat.shape)
        moves += sp.coo_array((weight, (flat, after)), shape=moves.shape).tocsr()
        for total, values in zip(totals, (part["r"], *part["u"].T), strict=True):
            total += np.bincount(flat, weights=values * repeats, minlength=n_pairs)
    counts = np.zeros(n_pairs)
    counts[dataset.pairs] = dataset.pair_counts
    unseen = np.flatnonzero(counts == 0)
    moves += sp.coo_array((np.ones(len(unseen)), (unseen, unseen // dataset.n_actions)), shape=moves.shape).tocsr()
    counts[unseen], totals[:, unseen] = 1, -1
    moves.data /= np.repeat(counts, np.diff(moves.indptr))
    means = np.clip(totals / counts, -1, 1)  # a mean of ones may round above one
    r, *u = means.reshape(-1, n_states, dataset.n_actions)
    ends = moves[:, [n_states]].toarray().reshape(r.shape) if dataset.n_ended else None
    return CMDP(P=moves[:, :n_states], r=r, u=np.reshape(u, (-1, *r.shape)), gamma=gamma, rho0=initial, ends=ends)


@dataclass(frozen=True)
class Figure:
    """One estimated figure, in the caller's units.

    Attributes
    ----------
    name : str
        "reward", or the name of the constraint.
    value, error : float
        Estimate and standard error of the discounted total (of the discounted average per step if the limit is one).
    limit : float or None
        Upper limit of a cost; the lower limit 0 of a utility; None for the reward.
    is_cost, is_average : bool
        Whether the limit is an upper one; whether value, error and limit are averages per step instead of totals.
    kept : bool or None
        Whether the estimate keeps the limit; None for the reward.
    """

    name: str
    value: float
    error: float
    limit: float | None = None
    is_cost: bool = False
    kept: bool | None = None
    is_average: bool = False

    def shortfall(self) -> str:
        """Say by how much a broken limit is exceeded."""
        assert self.limit is not None
        over = abs(self.value - self.limit)
        surely = f"{over / self.error:.1f} standard errors" if self.error > 0 else "without error"
        side = "above its limit" if self.is_cost else "below its limit"
        return f"{self.name} is estimated at {self.value:.4g}, {over:.2g} {side} of {self.limit:.4g} ({surely})"


@dataclass(frozen=True, repr=False)
class Judgement(text.Shown):
    """Estimates for a policy from the data of a log, `judge` says how.

    Attributes
    ----------
    reward : Figure
    constraints : tuple of Figure
    unseen : float
        Share of the (discounted) time that the policy spends at pairs which the log does not show.
    """

    reward: Figure
    constraints: tuple[Figure, ...]
    unseen: float

    @property
    def kept(self) -> bool:
        """Whether every constraint is estimated to be kept."""
        return not self.broken

    @property
    def broken(self) -> tuple[Figure, ...]:
        """The constraints that are estimated to be broken."""
        return tuple(figure for figure in self.constraints if not figure.kept)

    def parts(self) -> Iterator[str | text.Table]:
        """The table that a person reads, and how much of it is worst case."""
        rows: list[tuple[str, ...]] = []
        for figure in (self.reward, *self.constraints):
            limit = "" if figure.limit is None else f"{'<=' if figure.is_cost else '>='} {figure.limit:.4g}"
            limit += " a step" if figure.is_average else ""
            verdict = "" if figure.kept is None else "kept" if figure.kept else "BROKEN"
            rows.append((figure.name, text.tidy(figure.value), text.tidy(figure.error, 2), limit, verdict))
        yield ("estimate from the log", "discounted", "std. error", "limit", ""), rows
        if self.unseen > 1e-9:
            yield f"{self.unseen:.2%} of the time is spent at pairs that the log does not show (worst case)"

    def lines(self) -> list[str]:
        """The judgement in lines of text."""
        return repr(self).split("\n")


def judge(policy: Array, log: Dataset, model: CMDP, *, estimated_start: bool = False) -> Judgement:
    """Estimate reward and constraints of a policy from a log, in the caller's units, with standard errors.

    These are no guarantees: a policy that was optimised on the same log looks better on it than it is.

    Parameters
    ----------
    policy : array, shape (S, A)
        Action probabilities in each state, from anywhere.
    log, model : Dataset, CMDP
        The log, as the question was asked of it (`dpdl.question.pose`), and its plug-in model.
    estimated_start : bool
        Whether the initial distribution is that of the log's episodes, which adds to standard errors.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(0, 2, 1000)
    >>> log = Dataset(0 * a, a, 0 * a, a, costs={"wear": a + rng.random(1000)}, n_states=1, n_actions=2)
    >>> log = pose(log, 0.5, {"wear": 1.2}, "average")
    >>> judge(np.array([[0.5, 0.5]]), log, plug_in(log, 0.5, rho0=[1.0]))
    estimate from the log  discounted  std. error          limit
    reward                          1           0
    wear                       0.9987      0.0092  <= 1.2 a step  kept
    """
    log = pose(log, model.gamma)
    question, unit, estimate = log.question, 1 - model.gamma, model.evaluate(policy)
    assert question is not None
    chain = Evaluator(model.rows.under(policy.ravel()))
    V = chain.values(chain.policy, np.full(1 + model.n_utilities, ACCURACY / unit)).T
    V[:, ~estimate.occupancy.any(axis=1)] = 0.0  # what happens in states that are not reached does not matter
    occupancy = estimate.occupancy.ravel()
    errors = np.sqrt(_variances(log, model.gamma, occupancy, V) + (_of_start(log, model, V) if estimated_start else 0))
    size = question.reward(1 / unit)
    value, error = (_rounded(question.reward(figure), size) for figure in (estimate.reward, errors[0]))
    reward, constraints = Figure("reward", value, error), []
    tolerance, is_cost, is_average = _tolerances(log, model), question.limits is not None, question.limit_on == AVERAGE
    for i, (name, utility) in enumerate(zip(question.names, estimate.utilities, strict=True)):
        scale = question.scales[i] * (unit if is_average else 1.0)
        limit = 0.0 if question.limits is None else question.limits[i]
        value = limit - scale * utility if is_cost else scale * utility
        value, error = (_rounded(figure, scale / unit) for figure in (value, scale * errors[1 + i]))
        kept = bool(unit * utility >= -tolerance[i])
        constraints.append(Figure(name, value, error, limit, is_cost, kept, is_average))
    return Judgement(reward, tuple(constraints), float(unit * np.delete(occupancy, log.pairs).sum()))


def _rounded(value: float, size: float) -> float:
    """Return the value, or zero if it is nothing but rounding of numbers of this size."""
    return float(value) if abs(value) > ROUNDING * size else 0.0


def _variances(log: Dataset, gamma: float, occupancy: Array, values: Array) -> Array:
    """Return variances of gains @ occupancy, given the first states; `values` are the value functions, one a row."""
    size, n = len(log.table), log.table_counts.astype(np.float64)
    weight = np.divide(occupancy[log.table] ** 2, n, where=n > 0, out=np.zeros(size))
    variances = np.zeros(len(values))
    for k, V in enumerate(values):
        after = np.append(V, 0.0)  # s_next = -1, the last entry, is the end
        total, square, first = np.zeros(size), np.zeros(size), 0
        centre, origin, low, high = float(V.mean()), math.nan, math.inf, -math.inf
        for part, repeats in log.parts(at_least=size):
            y = part["r"] if k == 0 else part["u"][:, k - 1]
            spread: Array | float = 0.0
            if log.spreads is not None:
                rows = log.spreads[first : first + len(part)]
                spread = (rows["r"] if k == 0 else rows["u"][:, k - 1]) ** 2
            y = y + gamma * (after[part["s_next"]] - centre)
            origin = float(y[0]) if first == 0 else origin
            y = y - origin  # for the sake of the variance: a limit may be far larger than the costs
            total += np.bincount(part["pair"], weights=y * repeats, minlength=size)
            square += np.bincount(part["pair"], weights=(y * y + spread) * repeats, minlength=size)
            low, high = min(low, float(y.min())), max(high, float(y.max()))
            first += len(part)
        variance = square - total**2 / np.maximum(n, 1)
        variance = np.where(variance > ROUNDING * square, variance, 0.0) / np.maximum(n - 1, 1)
        variance[n < 2] = ((high - low) / 2) ** 2
        variances[k] = weight @ variance
    return variances


def _of_start(log: Dataset, model: CMDP, values: Array) -> Array | float:
    """Return the variances of the mean value of the log's first states."""
    n = 0 if log.initial_counts is None else int(log.initial_counts.sum())
    if n > 1:
        return (values - (values @ model.rho0)[:, None]) ** 2 @ model.rho0 / (n - 1)
    return np.ptp(values, axis=1) ** 2 / 4 if n else 0.0


def _tolerances(log: Dataset, model: CMDP) -> Array:
    """Return by how much (1-gamma) J^u_i may be negative for constraint i to count as kept.

    A millionth of the mean |u_i| of the log: the scale of u is that of the largest cost, which may be far from all
    others. And no more than 0.1% of a limit other than zero.
    """
    u, question = abs(model.u).reshape(model.n_utilities, model.r.size), log.question
    tolerance = TOLERANCE * u[:, log.pairs] @ log.pair_counts / len(log)
    if question is not None and question.limits is not None:
        share = SHARE_OF_LIMIT * abs(question.rate) / np.array(question.scales)
        tolerance = np.where(question.rate != 0, np.minimum(tolerance, share), tolerance)
    return np.maximum(tolerance, ROUNDING)


@dataclass(frozen=True, repr=False, eq=False)
class Plan(text.Shown):
    """The best policy of the plug-in model of a log; `plan` makes one.

    Attributes
    ----------
    solution : Solution
        The planner's answer, with bounds and multipliers, in its scaled units.
    policy : Policy or None
        The policy; None if there is none that keeps the limits on that model, or none was found.
    evaluation : Judgement or None
        Its reward and constraints, in the caller's units: estimates that look better than they are, because the policy
        was chosen by them.
    """

    solution: Solution
    policy: Policy | None
    evaluation: Judgement | None

    @property
    def status(self) -> str:
        """The status of the solution: "optimal", "infeasible", ..."""
        return self.solution.status

    @property
    def success(self) -> bool:
        """Whether the policy is optimal."""
        return self.status == "optimal"

    def parts(self) -> Iterator[str | text.Table]:
        """The status, and the estimates of the policy."""
        yield self.status
        if self.evaluation is not None:
            yield from self.evaluation.parts()


def plan(
    log: Dataset,
    *,
    gamma: float,
    limits: Mapping[str, float] | None = None,
    limit_on: str | None = None,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
) -> Plan:
    """Return the plug-in optimum: the policy with the highest reward that keeps the limits on the model of the counts.

    It is exact and quick, and no certificate: noise of the log is taken for truth, so that a limit that binds is broken
    on about every second log (`dpdl.safe_policy`).

    Parameters
    ----------
    log : Dataset
    gamma : float
        Discount.
    limits, limit_on
        Upper limits of costs by name, and whether they are on the "total" or the "average" (`dpdl.question`).
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.

    Examples
    --------
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.2], costs={"wear": [3.0, 0.0]}, n_states=1, n_actions=2)
    >>> best = plan(log, gamma=0.9, limits={"wear": 1.5}, limit_on="average", rho0=[1.0])
    >>> best.status, best.policy.round(3).tolist()
    ('optimal', [[0.5, 0.5]])
    """
    dataset = pose(log, gamma, limits, limit_on)
    model = plug_in(dataset, gamma, rho0, initial_states=initial_states)
    solution = model.solve()
    if np.isnan(solution.policy).any():
        return Plan(solution, None, None)
    policy, from_log = Policy(solution.policy, log.labels, dataset.question), rho0 is None and initial_states is None
    return Plan(solution, policy, judge(solution.policy, dataset, model, estimated_start=from_log))
