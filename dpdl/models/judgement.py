"""What a log says about a policy: its reward and its constraints on the plug-in model, with standard errors.

The value of a policy on the plug-in model is the efficient estimate of its true value. To first order its error is a
sum of independent errors, one for each visited pair, because V enters through the rows of the log only:

    variance of J-hat = sum over (s, a) of nu(s,a)^2 / N(s,a) Var[r + gamma V(s') | s, a] + Var[V(s_0)] / n_0

with N(s,a) visits, the occupancy nu and the value function V of the policy on the plug-in model, and n_0 logged first
states. With few visits the variance of a row is uncertain itself; a pair that was seen once counts with the largest
variance that numbers between the least and the largest of the log can have, and so does a single first state. Pairs
that the log does not show are worst-case (`dpdl.models.plug_in`), in the estimate and not in its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import breadth_first_order

from dpdl import _planning
from dpdl import _text as text
from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.acting import Policy
from dpdl.data.dataset import Dataset
from dpdl.models.cmdp import CMDP
from dpdl.models.linear_programs import fill
from dpdl.models.plug_in import plug_in
from dpdl.models.solution import Solution
from dpdl.models.solving import Kernel
from dpdl.question import AVERAGE, Question, pose

#: Models with more pairs, visited or not, are not judged: their arrays would not fit into the memory of a log.
MOST_PAIRS = 20_000_000
#: See `_tolerances`.
TOLERANCE, SHARE_OF_LIMIT = 1e-6, 1e-3
#: Sweeps of value iteration for the bound, at most, and how many are made before it is looked at.
SWEEPS, SWEEPS_AT_ONCE = 500, 25
#: Relative to the numbers that were added, smaller sums and variances are rounding.
ROUNDING = 1e-14


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
    is_cost : bool
        Whether the limit is an upper one.
    is_average : bool
        Whether value, error and limit are averages per step instead of totals.
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
        """By how much a broken limit is exceeded, in words."""
        assert self.limit is not None
        over = abs(self.value - self.limit)
        surely = f"{over / self.error:.1f} standard errors" if self.error > 0 else "without error"
        side = "above its limit" if self.is_cost else "below its limit"
        return f"{self.name} is estimated at {self.value:.4g}, {over:.2g} {side} of {self.limit:.4g} ({surely})"


class Dual(NamedTuple):
    """The duals of a run, for the bound of its gap, and the mass that it gives to the visited pairs.

    Attributes
    ----------
    V, lam : arrays, shapes (S,), (I,)
        Averages of the duals; any others are valid, and give a worse bound.
    psi : float
        The class: safe policies whose occupancy is within psi of the log's distribution of pairs.
    mass : array
        The learned occupancy of the log's `pairs`.
    """

    V: Array
    lam: Array
    psi: float
    mass: Array


@dataclass(frozen=True)
class Judgement:
    """Estimates for a policy from the data of a log, `judge` says how.

    Attributes
    ----------
    reward : Figure
    constraints : tuple of Figure
    unseen : float
        Share of the (discounted) time that the policy spends at pairs which the log does not show.
    flow_residual : float or None
        Of a learned x: the 1-norm of A'nu - rho0, how far it is from being an occupancy.
    bound : float or None
        No policy that keeps the constraints, within the run's psi of the data, earns more on the plug-in model; in the
        caller's units. Minus infinity if psi leaves no policy at all.
    """

    reward: Figure
    constraints: tuple[Figure, ...]
    unseen: float
    gamma: float
    n_transitions: int
    flow_residual: float | None = None
    bound: float | None = None
    occupancy: Array | None = field(default=None, repr=False, compare=False)

    @property
    def kept(self) -> bool:
        """Whether every constraint is estimated to be kept."""
        return all(one.kept for one in self.constraints)

    @property
    def broken(self) -> tuple[Figure, ...]:
        """The constraints that are estimated to be broken."""
        return tuple(one for one in self.constraints if not one.kept)

    @property
    def gap(self) -> float | None:
        """How much more a policy of the class could earn at most: `bound` less the reward; None without a bound.

        It is negative if the policy is not of the class: a constraint is broken, or psi exceeded.
        """
        return None if self.bound is None else self.bound - self.reward.value

    @cached_property
    def rows(self) -> list[tuple[str, ...]]:
        """The table that a person reads: name, estimate, standard error, limit, verdict."""
        found: list[tuple[str, ...]] = []
        for one in (self.reward, *self.constraints):
            limit = "" if one.limit is None else f"{'<=' if one.is_cost else '>='} {one.limit:.4g}"
            limit += " a step" if one.is_average else ""
            verdict = "" if one.kept is None else "kept" if one.kept else "BROKEN"
            found.append((one.name, text.tidy(one.value), text.tidy(one.error, 2), limit, verdict))
        return found

    @property
    def header(self) -> tuple[str, ...]:
        """Titles of the columns of `rows`."""
        return ("estimate from the log", "discounted", "std. error", "limit", "")

    def lines(self) -> list[str]:
        """The judgement in lines of text."""
        lines = text.aligned(self.header, self.rows)
        if self.gap is not None and self.kept:
            best = f"no policy that is safe and as near to the data earns more than {text.tidy(self.bound)} on it"
            outside = "the policy is farther from the data than psi allows, so how good it is was not bounded"
            lines.append(best if self.gap >= 0 else outside)
        if self.unseen > 1e-9:
            lines.append(f"{self.unseen:.2%} of the time is spent at pairs that the log does not show (worst case)")
        return lines

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rest = "".join(f"<p>{line}</p>" for line in self.lines()[1 + len(self.rows) :])
        return text.html_table(self.header, self.rows) + rest


def _rounded(value: float, size: float) -> float:
    """The value, or zero if it is nothing but rounding of numbers of this size."""
    return float(value) if abs(value) > ROUNDING * size else 0.0


def judge(
    policy: ArrayLike,
    log: Dataset,
    *,
    gamma: float,
    limits: Mapping[str, float] | None = None,
    limit_on: str | None = None,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
) -> Judgement:
    """Estimate reward and constraints of a policy from a log, in the caller's units, with standard errors.

    Parameters
    ----------
    policy : array_like, shape (S, A)
        Action probabilities in each state, from anywhere.
    log : Dataset
    gamma : float
        Discount.
    limits, limit_on
        Upper limits of costs by name, and whether they are on the "total" or the "average" (`dpdl.question`).
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.

    Returns
    -------
    Judgement
        Estimates, not guarantees: a policy that was optimised on the same log looks better on it than it is.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(0, 2, 1000)
    >>> log = Dataset(0 * a, a, 0 * a, a, costs={"wear": a + rng.random(1000)}, n_states=1, n_actions=2)
    >>> judge([[0.5, 0.5]], log, gamma=0.5, limits={"wear": 1.2}, limit_on="average", rho0=[1.0])
    estimate from the log  discounted  std. error          limit
    reward                          1           0
    wear                       0.9987      0.0092  <= 1.2 a step  kept
    """
    dataset = pose(log, gamma, limits, limit_on)
    model = plug_in(dataset, gamma, rho0, initial_states=initial_states)
    given = rho0 is not None or initial_states is not None
    return Judge(dataset, model, not given).of(check.policy_array("policy", policy, *model.r.shape))


@dataclass(frozen=True, repr=False, eq=False)
class Plan:
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

    def __repr__(self) -> str:
        return "\n".join([self.status, *([] if self.evaluation is None else self.evaluation.lines())])


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
    judge = Judge(dataset, model, rho0 is None and initial_states is None)
    return Plan(solution, Policy(solution.policy, log.labels, dataset.question), judge.of(solution.policy))


@dataclass(frozen=True, eq=False)
class Judge:
    """Estimates for many policies from one log; the plug-in model is made once.

    Parameters
    ----------
    dataset, model : Dataset, CMDP
        The log and its plug-in model.
    estimated_start : bool
        Whether the initial distribution is that of the log's episodes, which adds to standard errors.
    """

    dataset: Dataset
    model: CMDP
    estimated_start: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", pose(self.dataset, self.model.gamma))

    @property
    def question(self) -> Question:
        """What the log was posed under."""
        assert self.dataset.question is not None
        return self.dataset.question

    @cached_property
    def counts(self) -> Array:
        """Visits of each pair, (S A,)."""
        found = np.zeros(self.model.r.size)
        found[self.dataset.pairs] = self.dataset.pair_counts
        return found

    def of(self, policy: Array, dual: Dual | None = None) -> Judgement:
        """Estimate reward and constraints of a policy, and with the duals of a run how good it is."""
        model, question = self.model, self.question
        chain = Chain(model, policy)
        gains = np.concatenate([model.r[None], model.u]).reshape(1 + model.n_utilities, -1)
        occupancy, V = chain.occupancy(), chain.values(gains)
        values, errors = gains @ occupancy, self._errors(occupancy, V)
        value, error = (
            _rounded(question.reward(one), question.reward(1 / (1 - model.gamma))) for one in (values[0], errors[0])
        )
        reward = Figure("reward", value, error)
        normaliser, tolerance = 1 - model.gamma, _tolerances(self.dataset, model)
        found = []
        for i, name in enumerate(question.names):
            scale = question.scales[i]
            kept = bool(normaliser * values[1 + i] >= -tolerance[i])
            shrink = scale * (normaliser if question.limit_on == AVERAGE else 1.0)
            value, error, limit = shrink * values[1 + i], shrink * errors[1 + i], 0.0
            if question.limits is not None:
                limit = question.limits[i]
                value = limit - value
            value, error = (_rounded(one, shrink / normaliser) for one in (value, error))
            found.append(
                Figure(name, value, error, limit, question.limits is not None, kept, question.limit_on == AVERAGE)
            )
        return Judgement(
            reward=reward,
            constraints=tuple(found),
            unseen=float(normaliser * occupancy[self.counts == 0].sum()),
            gamma=model.gamma,
            n_transitions=len(self.dataset),
            flow_residual=None if dual is None else self._flow_residual(dual.mass),
            bound=None if dual is None else question.reward(self._bound(dual, V)),
            occupancy=occupancy.reshape(policy.shape),
        )

    def _flow_residual(self, mass: Array) -> float:
        """The 1-norm of A'nu - rho0."""
        nu = np.zeros(self.model.r.size)
        nu[self.dataset.pairs] = mass
        outflow = nu.reshape(self.model.r.shape).sum(axis=1)
        return float(abs(outflow - self.model.gamma * (self.model.P.T @ nu) - self.model.rho0).sum())

    def _bound(self, dual: Dual, values: Array) -> float:
        """The least upper bound by weak duality that the duals of the run, the values of its policy, or zeros give.

        For any V and lam >= 0, an occupancy nu with J^u_i >= 0 earns at most

            rho0.V + <nu, r + <u, lam> - V + gamma P V>,

        and (1-gamma) nu is a distribution (less than one where episodes end) below psi times that of the log.
        """
        model, discount = self.model, 1 - self.model.gamma
        caps = dual.psi * self.counts / len(self.dataset)
        if model.ends is not None:
            caps = np.append(caps, np.inf)
        P, u, A = model.P, model.u.reshape(model.n_utilities, model.r.size), model.n_actions

        def bound(V: Array, lam: Array) -> float:
            left = model.r.ravel() + lam @ u - np.repeat(V, A) + model.gamma * (P @ V)
            if model.ends is not None:
                left = np.append(left, 0.0)
            return float(model.rho0 @ V) + fill(left / discount, caps)

        V, free = values[0] + dual.lam @ values[1:], np.zeros_like(dual.lam)
        least = min(bound(dual.V, dual.lam), bound(V, dual.lam), bound(values[0], free), bound(0 * V, free))
        # Value iteration in place, from the policy's value function, while that helps.
        first = np.arange(0, model.r.size + 1, A, dtype=np.int32)
        greedy = first[:-1].copy()
        rows = P.indptr.astype(np.int64), P.indices.astype(np.int32), P.data, first, model.r.ravel() + dual.lam @ u
        for _ in range(SWEEPS // SWEEPS_AT_ONCE):
            for k in range(SWEEPS_AT_ONCE):
                _planning.improve_in_place(*rows, model.gamma, V, greedy, k % 2 == 1)
            previous, least = least, min(least, bound(V, dual.lam))
            if least > previous - 1e-4 * (1 + abs(previous)):
                break
        return least + 1e-12 * (1 + abs(least))  # the sums are rounded

    def _errors(self, occupancy: Array, values: Array) -> Array:
        """Standard errors of gains @ occupancy; `values` are the value functions, one a row."""
        data, size = self.dataset, len(self.dataset.table)
        n = data.table_counts.astype(np.float64)
        weight = np.divide(occupancy[data.table] ** 2, n, where=n > 0, out=np.zeros(size))
        found = np.zeros(len(values))
        for k, V in enumerate(values):
            after = np.append(V, 0.0)  # s_next = -1, the last entry, is the end
            total, square, first = np.zeros(size), np.zeros(size), 0
            centre, origin, low, high = float(V.mean()), math.nan, math.inf, -math.inf
            for part, repeats in data.parts(at_least=size):
                y = part["r"] if k == 0 else part["u"][:, k - 1]
                spread: Array | float = 0.0
                if data.spreads is not None:
                    rows = data.spreads[first : first + len(part)]
                    spread = (rows["r"] if k == 0 else rows["u"][:, k - 1]) ** 2
                y = y + self.model.gamma * (after[part["s_next"]] - centre)
                origin = float(y[0]) if first == 0 else origin
                y = y - origin  # for the sake of the variance: a limit may be far larger than the costs
                total += np.bincount(part["pair"], weights=y * repeats, minlength=size)
                square += np.bincount(part["pair"], weights=(y * y + spread) * repeats, minlength=size)
                low, high = min(low, float(y.min())), max(high, float(y.max()))
                first += len(part)
            mean = total / np.maximum(n, 1)
            variance = square - n * mean**2
            variance = np.where(variance > ROUNDING * square, variance, 0.0) / np.maximum(n - 1, 1)
            variance[n < 2] = ((high - low) / 2) ** 2
            found[k] = weight @ variance
            if self.estimated_start and data.initial_counts is not None:
                rho0, n_starts = self.model.rho0, int(data.initial_counts.sum())
                if n_starts > 1:
                    found[k] += float(rho0 @ (V - rho0 @ V) ** 2) / (n_starts - 1)
                else:
                    found[k] += float(V.max() - V.min()) ** 2 / 4
        return np.sqrt(found)


def _tolerances(dataset: Dataset, model: CMDP) -> Array:
    """By how much (1-gamma) J^u_i may be negative for constraint i to count as kept.

    A millionth of the mean |u_i| of the log: the scale of u is that of the largest cost, which may be far from all
    others. And no more than 0.1% of a limit other than zero.
    """
    found = TOLERANCE * abs(model.u).reshape(model.n_utilities, model.r.size)[:, dataset.pairs] @ dataset.pair_counts
    found = found / len(dataset)
    question = dataset.question
    if question is not None and question.limits is not None:
        share = SHARE_OF_LIMIT * abs(question.rate) / np.array(question.scales)
        found = np.where(question.rate != 0, np.minimum(found, share), found)
    return np.maximum(found, ROUNDING)


class Chain:
    """The states of a model under a policy.

    Only states that are reached from the initial ones take part; the values of others are zero.
    """

    def __init__(self, model: CMDP, policy: Array) -> None:
        self.model = model
        self.choose = policies.choice_matrix(policy)
        kernel = sp.csr_array(self.choose @ model.P)
        kernel.eliminate_zeros()
        self.reached = _reachable(kernel, np.flatnonzero(model.rho0))
        self._solve = Kernel(kernel[self.reached][:, self.reached], model.gamma).solve

    def occupancy(self) -> Array:
        """Expected discounted visits of the pairs, (S A,)."""
        p = np.zeros(self.model.n_states)
        p[self.reached] = np.maximum(self._solve(self.model.rho0[self.reached], transposed=True), 0.0)
        return self.choose.T @ p

    def values(self, gains: Array) -> Array:
        """Value functions of gains (k, S A), one a row, (k, S)."""
        V = np.zeros((len(gains), self.model.n_states))
        for row, gain in zip(V, gains, strict=True):
            row[self.reached] = self._solve((self.choose @ gain)[self.reached])
        return V


def _reachable(kernel: sp.csr_array, start: NDArray[np.intp]) -> NDArray[np.intp]:
    """States that can be reached from those in `start`, ascending."""
    n = kernel.shape[0]
    links = sp.csr_array((np.ones(len(start)), (np.zeros(len(start), dtype=np.intp), start)), shape=(1, n))
    graph = sp.csr_array(sp.block_array([[kernel, None], [links, sp.csr_array((1, 1))]]))  # one node leads to them
    found = breadth_first_order(graph, n, return_predecessors=False)
    return np.sort(found[found < n])
