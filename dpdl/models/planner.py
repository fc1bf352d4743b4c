"""The best safe policy of a large known model, by column generation over deterministic policies.

    maximise J(pi)   subject to   J^u_i(pi) >= kappa

For given multipliers lam >= 0 the problem is an ordinary MDP with reward r + <u, lam>. A master program mixes the
(reward, utilities) of the policies found so far, of which at most I + 1 are used; its multipliers price the next policy
(Dantzig and Wolfe 1960), which `dpdl.models.pricing` finds. The mixture bounds the optimum from below, since values of
columns enter the master less their error. Any multipliers bound it from above: J* <= max_pi J + <J^u - kappa, lam>.

Phase one maximises the least utility in the same way. It ends with a safe mixture, or with weights w >= 0 that sum to
one and for which no policy has <J^u, w> >= kappa: a proof that no policy is safe. Its bounds are those of the Slater
constant.

The multipliers of the master oscillate, and more so the more constraints there are. So prices are taken between them
and those of the best upper bound (Wentges 1997).

The mixture is returned as one policy with the same occupancy. In states that it never reaches, the policy takes the
action of the mixture's largest part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.models.highs import linprog
from dpdl.models.linear_programs import OPTIONS, TOLERANCE
from dpdl.models.model import Model
from dpdl.models.pricing import Pricing, Rows
from dpdl.models.solution import Solution
from dpdl.models.status_line import StatusLine

#: A search ends when the bounds of its policy are this part of the gap apart.
_PART_OF_GAP = 0.25
#: Phase one ends when the margin is at least this part of what it can be.
_PART_OF_MARGIN = 0.3
_MOST_COLUMNS = 2000
#: The part of the best upper bound's prices in those of the next column: at first, and at most.
_STABLE, _MOST_STABLE = 0.5, 0.9
#: Rounds without a column that is new or a gap that is smaller after which rounding is taken to prevent progress.
_PATIENCE = 10
#: Smaller weights of columns are rounding of HiGHS.
_LEAST_WEIGHT = 1e-12


class Progress(NamedTuple):
    """What a callback is told: the phase (1 or 2), the bounds of its optimum, the number of columns.

    In phase one the bounds are those of the Slater constant, in phase two those of the reward.
    """

    phase: int
    lower: float
    upper: float
    n_columns: int


def plan(
    model: Model,
    kappa: float | Array = 0.0,
    tol: float = 1e-3,
    *,
    allowed: ArrayLike | None = None,
    at_most: tuple[Array, Array] | None = None,
    time_limit: float | None = None,
    max_columns: int = _MOST_COLUMNS,
    callback: Callable[[Progress], Any] | None = None,
    progress: bool | None = None,
    interruptible: bool = False,
) -> Solution:
    """Find the best policy with J^u_i >= kappa for every i, to a relative gap `tol`.

    Parameters
    ----------
    model : CMDP
    kappa : float or array, shape (I,)
        Conservatism, the same for all utilities or one for each.
    tol : float
        Relative gap of the bounds of the reward at which to stop; a gap of 1e-9/(1-gamma) is enough in any case.
    allowed : array_like of bool, shape (S, A), optional
        The pairs that a policy may use, at least one in each state; all by default.
    at_most : tuple of arrays, shapes (K, S A) and (K,), optional
        Rows and limits: K more constraints, rows.q <= limits, on the normalised occupancy q. There should be few.
    time_limit : float, optional
        Seconds.
    max_columns : int
        Largest number of policies to generate.
    callback : callable, optional
        Called with a `Progress` after each master program; `StopIteration` ends the search.
    progress : bool, optional
        Show the bounds in a line on standard error after two seconds; by default if that is a terminal.
    interruptible : bool
        Whether Ctrl-C returns the best safe policy so far, with status "interrupted". By default, and if there is none
        yet, it raises KeyboardInterrupt.

    Returns
    -------
    Solution

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> best = plan(one_state)
    >>> best.status, round(best.reward, 6), best.lam.round(6), best.policy.round(6)
    ('optimal', 1.0, array([0.5]), array([[0.5, 0.5]]))
    >>> plan(one_state, kappa=2.5).status
    'infeasible'
    """
    kappa = check.numbers_array("kappa", np.broadcast_to(kappa, len(model.u)), shape=(len(model.u),))
    tol = check.real("tol", tol, at_least=0)
    seconds = check.seconds("time_limit", time_limit)
    max_columns = check.whole("max_columns", max_columns, at_least=1)
    limits = _Limits(time.monotonic() + seconds, max_columns, callback, check.flag("interruptible", interruptible))
    if at_most is not None:
        rows = check.numbers_array("at_most[0]", at_most[0], shape=(None, model.r.size))
        at_most = rows, check.numbers_array("at_most[1]", at_most[1], shape=(len(rows),))
    with StatusLine(check.optional_flag("progress", progress)) as line:
        choices = Rows.of(model, _mask(allowed, model.r.shape))
        return _Planner(choices, (1 - model.gamma) * kappa, tol, limits, line, at_most).plan()


def slater_bounds(
    model: Model, accuracy: float = 1e-9, *, allowed: ArrayLike | None = None, time_limit: float | None = None
) -> tuple[float, float]:
    """Return a lower and an upper bound of the Slater constant, (1-gamma) max over policies of min_i J^u_i.

    Parameters
    ----------
    model : CMDP
        Must have utilities.
    accuracy : float
        Difference of the bounds at which to stop, at least 1e-9; it is larger if rounding or the time limit prevents
        that.
    allowed, time_limit
        As for `plan`.

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 0.5]]], gamma=0.5, rho0=[1.0])
    >>> lower, upper = slater_bounds(one_state)
    >>> lower <= 0.5 <= upper, upper - lower <= 1e-9
    (True, True)
    """
    if len(model.u) == 0:
        raise ValueError("model has no utilities, so Slater's condition says nothing about it")
    accuracy = max(check.real("accuracy", accuracy, at_least=0), TOLERANCE)
    seconds = check.seconds("time_limit", time_limit)
    limits = _Limits(time.monotonic() + seconds, _MOST_COLUMNS)
    with StatusLine() as line:
        rows = Rows.of(model, _mask(allowed, model.r.shape))
        return _Planner(rows, 0.0, 0.0, limits, line).slater(accuracy)


class Planner:
    """Plans of one model for many margins: the policies that were found for one are columns for the next.

    Parameters
    ----------
    rows : Rows
    tol : float
        As for `plan`.
    deadline : float, optional
        Time by `time.monotonic` at which plans end with what they have.

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> planner = Planner(Rows.of(one_state))
    >>> [round(planner.plan(np.array([kappa])).reward, 6) for kappa in (0.0, 1.0)]
    [1.0, 0.5]
    >>> round(planner.most_careful(np.array([0.0])).reward, 6)
    0.0
    """

    def __init__(self, rows: Rows, tol: float = 1e-3, *, deadline: float = np.inf) -> None:
        self._planner = _Planner(rows, 0.0, tol, _Limits(deadline, _MOST_COLUMNS), StatusLine(False))

    def plan(self, kappa: Array) -> Solution:
        """Find the best policy with J^u_i >= kappa[i] for every i."""
        self._planner.begin(self._planner.unit * kappa)
        return self._planner.plan()

    def most_careful(self, kappa: Array, accuracy: float = 1e-6) -> Solution:
        """Find the policy with the largest least margin J^u_i - kappa[i]; the status is "limit"."""
        self._planner.begin(self._planner.unit * kappa)
        self._planner.slater(accuracy)
        return self._planner.finish("limit")


def _mask(allowed: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    if allowed is None:
        return None
    mask = np.asarray(allowed)
    if mask.dtype != np.bool_:
        raise TypeError(f"allowed must hold booleans, got dtype {mask.dtype}")
    check.check_shape("allowed", mask, shape)
    empty = np.flatnonzero(~mask.any(axis=1))
    if empty.size:
        raise ValueError(f"allowed[{empty[0]}] must allow an action, got none")
    return mask


class _Limits(NamedTuple):
    deadline: float
    max_columns: int
    callback: Callable[[Progress], Any] | None = None
    interruptible: bool = False


class _Stop(Exception):
    """The search cannot go on; the argument is the status."""


class _Column(NamedTuple):
    """A deterministic policy, as a row for each state, and its normalised values: the reward and the utilities."""

    policy: NDArray[np.int32]
    values: Array
    error: Array


class _Mixture(NamedTuple):
    """A solution of a master program: weights of the columns, prices of reward and utilities, and its value."""

    weights: Array
    prices: Array
    value: float


class _Upper(NamedTuple):
    """An upper bound with its prices and V; they are replaced together, so that Ctrl-C never parts them."""

    value: float
    prices: Array
    V: Array


@dataclass
class _Phase:
    """The state of a phase: bounds of its optimum, and the weights of the lower one.

    Phase one maximises the least utility less kappa, phase two the reward over safe mixtures. Prices are those of the
    reward and the utilities.
    """

    number: int
    best: _Upper
    tol: float = 0.0
    lower: float = -np.inf
    weights: Array | None = None

    @property
    def upper(self) -> float:
        """The upper bound."""
        return self.best.value

    def goal(self, upper: float) -> float:
        """Return the gap below this upper bound, or the gap at which the phase may end if that is larger."""
        if not np.isfinite(self.lower):
            return max(TOLERANCE, 0.1 * abs(upper))
        return max(upper - self.lower, self.allowed(self.lower, upper))

    def allowed(self, lower: float, upper: float) -> float:
        """Return the gap at which the phase may end."""
        return max(TOLERANCE, self.tol * max(abs(lower), abs(upper)))

    def closed(self) -> bool:
        """Whether the bounds meet, with a little room for the errors of occupancies."""
        return self.upper - self.lower <= 0.9 * self.allowed(self.lower, self.upper)


class _Planner:
    """Column generation; all values are normalised, (1-gamma) times the discounted ones."""

    def __init__(
        self,
        rows: Rows,
        kappa: Array | float,
        tol: float,
        limits: _Limits,
        line: StatusLine,
        at_most: tuple[Array, Array] | None = None,
    ) -> None:
        self.limits, self.line, self.tol, self.rows = limits, line, tol, rows
        self.at_most = at_most or (np.empty((0, math.prod(rows.shape))), np.empty(0))
        self.unit, self.n_asked = 1 - rows.gamma, len(rows.gains) - 1
        self._add_rows()
        self.pricing, self.columns = Pricing(self.rows), list[_Column]()
        self.n_utilities, self.n_iterations = len(self.rows.gains) - 1, 0
        self.begin(kappa)

    def begin(self, kappa: Array | float) -> None:
        """Ask for other margins; the columns that were found stay."""
        margins = np.broadcast_to(kappa, self.n_asked)
        self.kappa, self.room = np.append(margins, np.zeros(self.n_utilities - len(margins))), 0.0
        unknown, none = np.full(self.rows.n_states, np.inf), np.zeros(self.n_utilities)
        self.margin = _Phase(1, _Upper(np.inf, np.append(0.0, none + 1 / max(1, self.n_utilities)), unknown))
        self.reward = _Phase(2, _Upper(np.inf, np.append(1.0, none), unknown), self.tol)

    def _add_rows(self) -> None:
        """Turn rows.q <= limits into utilities >= 0; `ends` is a gain with value one for every policy."""
        rows, limits = self.at_most
        if len(limits):
            sure = self.rows.ends / self.unit
            gains = np.outer(limits, sure) - rows[:, self.rows.pairs]
            self.rows = replace(self.rows, gains=np.concatenate([self.rows.gains, gains]))

    def plan(self) -> Solution:
        """Run both phases."""
        try:
            first = self._price(self.reward, self.reward.best.prices)
            if self.n_utilities and ((first.values - first.error)[1:] - self.kappa).min() < 0:
                self._generate(self.margin, self._feasibility_is_clear)
                if self.margin.upper < -TOLERANCE:
                    return self.finish("infeasible")
                self.room = max(0.0, -self.margin.lower)
            self._generate(self.reward, self.reward.closed)
        except _Stop as stop:
            return self.finish(str(stop))
        except KeyboardInterrupt:
            found = self.finish("interrupted") if self.limits.interruptible else None
            if found is None or not found.lower > -np.inf:
                raise
            return found
        return self.finish("optimal")

    def slater(self, accuracy: float) -> tuple[float, float]:
        """Run phase one until its bounds are this close."""
        margin = self.margin
        with suppress(_Stop):
            self._price(margin, margin.best.prices)
            self._generate(margin, lambda: margin.upper - margin.lower <= accuracy)
        return margin.lower, margin.upper

    def _feasibility_is_clear(self) -> bool:
        lower, upper = self.margin.lower, self.margin.upper
        return upper < -TOLERANCE or lower >= min(_PART_OF_MARGIN * upper, upper - TOLERANCE)

    def _generate(self, phase: _Phase, done: Callable[[], bool]) -> None:
        """Add columns until the phase is done."""
        stable = _STABLE if self.n_utilities > 1 else 0.0
        least, idle = np.inf, 0
        while True:
            mixture = self._mix(phase)
            if mixture.value > phase.lower:
                phase.lower, phase.weights = mixture.value, mixture.weights
            self._report(phase)
            if done():
                return
            gap = phase.upper - phase.lower
            idle, least = (0, gap) if gap < 0.99 * least else (idle + 1, least)
            if idle > _PATIENCE:
                raise _Stop("inaccurate")
            if self._refine(mixture, phase.goal(phase.upper)):
                continue
            centre, known = phase.best.prices, len(self.columns)
            column = self._price(phase, stable * centre + (1 - stable) * mixture.prices)
            worth = max(float(one.values @ mixture.prices) for one in self.columns[:known])
            if len(self.columns) > known and float(column.values @ mixture.prices) > worth:
                # The slope of the bound at the column's prices, towards those of the master.
                ahead = float((column.values[1:] - self.kappa) @ (mixture.prices - centre)[1:])
                stable = max(0.0, stable - 0.1) if ahead < 0 else stable + 0.1 * (_MOST_STABLE - stable)
            else:
                stable = stable / 2 if stable > 0.1 else 0.0
            if len(self.columns) > known:
                idle = 0

    # ---- Columns ----

    def _price(self, phase: _Phase, prices: Array) -> _Column:
        """Add the column that is best at these prices, and take the upper bound that it gives if that is better."""
        charge = float(self.kappa @ prices[1:])

        def enough(low: float, high: float) -> bool:
            self._check_time()
            return self.unit * (high - low) <= _PART_OF_GAP * phase.goal(self.unit * high - charge)

        found = self.pricing.search(prices, enough)
        bound = self.unit * found.upper - charge
        if bound < phase.upper:
            phase.best = _Upper(bound, prices, found.V)
        column = self.evaluated(self.pricing.policy, 0.1 * phase.goal(bound) / float(prices.sum()))
        same = [k for k, one in enumerate(self.columns) if np.array_equal(one.policy, column.policy)]
        if same:
            self.columns[same[0]] = column
        elif len(self.columns) >= self.limits.max_columns:
            raise _Stop("limit")
        else:
            self.columns.append(column)
        return column

    def evaluated(self, policy: NDArray[np.int32], accuracy: float) -> _Column:
        policy = policy.copy()
        values = self.pricing.evaluate(policy, np.full(self.n_utilities + 1, accuracy / self.unit))
        return _Column(policy, self.unit * values.mean, self.unit * values.error)

    def _refine(self, mixture: _Mixture, goal: float) -> bool:
        """Evaluate the columns of a mixture again if their errors are a large part of the gap; False if not."""
        used = np.flatnonzero(mixture.weights)
        loss = np.array([self.columns[k].error @ mixture.prices for k in used])
        if loss @ mixture.weights[used] <= 0.2 * goal:
            return False
        better = False
        for k, lost in zip(used, loss, strict=True):
            if lost > 0.1 * goal:
                self._check_time()
                column = self.evaluated(self.columns[k].policy, 0.05 * goal / float(mixture.prices.sum()))
                if column.error @ mixture.prices <= 0.5 * lost:
                    self.columns[k], better = column, True
        return better

    def _mix(self, phase: _Phase) -> _Mixture:
        """Solve the master program of a phase; the values of the columns enter less their errors."""
        self.n_iterations += 1
        worst = np.array([column.values - column.error for column in self.columns])
        rewards, rows, one = worst[:, 0], self.kappa[:, None] - worst[:, 1:].T, float(phase is self.margin)
        size = max(float(np.ptp(rewards)), TOLERANCE)
        sizes = np.maximum(abs(rows).max(axis=1), TOLERANCE)  # HiGHS's tolerances are absolute
        scaled = rows / sizes[:, None]
        shift = 1 - scaled.min(axis=1)  # the weights sum to one, and HiGHS drops coefficients close to zero
        found = linprog(
            np.append((1 - one) * (rewards.mean() - rewards) / size, -one),
            A_ub=np.column_stack([scaled + shift[:, None], one / sizes]),
            b_ub=shift + self.room / sizes,
            A_eq=np.append(np.ones(len(rewards)), 0.0)[None],
            b_eq=[1.0],
            bounds=[(0, None)] * len(rewards) + [(None, None) if one else (0, 0)],
            method="highs-ds",
            options=OPTIONS,
        )
        if found.status != 0:
            raise _Stop("inaccurate")
        weights = np.where(found.x[:-1] > _LEAST_WEIGHT, found.x[:-1], 0.0)
        weights /= weights.sum()
        prices, margins = np.maximum(-found.ineqlin.marginals, 0.0) / sizes, -(rows @ weights)
        if one:
            return _Mixture(weights, np.append(0.0, prices / prices.sum()), float(margins.min()))
        safe = margins.min(initial=np.inf) >= -self.room - TOLERANCE / 10
        return _Mixture(weights, np.append(1.0, size * prices), float(rewards @ weights) if safe else -np.inf)

    # ---- Limits and the result ----

    def _check_time(self) -> None:
        if time.monotonic() >= self.limits.deadline:
            raise _Stop("limit")

    def _slater(self) -> tuple[float, float]:
        """Bounds of the Slater constant by those of the least margin."""
        margins = self.kappa[: self.n_asked]
        least, most = (margins.min(), margins.max()) if len(margins) else (0.0, 0.0)
        most = np.inf if len(self.at_most[1]) else most  # phase one is about further rows as well
        return float(self.margin.lower + least), float(self.margin.upper + most)

    def _report(self, phase: _Phase) -> None:
        bounds = np.array([phase.lower, phase.upper])
        low, high = self._slater() if phase is self.margin else bounds / self.unit
        if self.line.is_due():
            what = "Slater constant" if phase is self.margin else "reward"
            self.line.draw(f"planning: {len(self.columns)} policies, {what} between {low:.6g} and {high:.6g}")
        if self.limits.callback is None:
            return
        try:
            self.limits.callback(Progress(phase.number, float(low), float(high), len(self.columns)))
        except StopIteration:
            raise _Stop("limit") from None

    def finish(self, status: str) -> Solution:
        infeasible = status == "infeasible"
        proof = (self.margin if infeasible else self.reward).best
        occupancy = policy = np.full(self.rows.shape, np.nan)
        n, (rows, limits) = self.n_asked, self.at_most
        reward, utilities, lower = np.nan, np.full(n, np.nan), np.nan if infeasible else -np.inf
        found = np.isfinite(proof.V).all()  # else time ran out before the first bound
        weights = self.margin.weights if self.reward.weights is None else self.reward.weights
        if not infeasible and weights is not None:
            visits, shares, error = self._mixed(weights)
            occupancy, policy = self.rows.table(visits), self.rows.table(shares)
            reward, *gains = self.rows.gains[: n + 1] @ visits
            reward, utilities = float(reward), np.array(gains)
            left = limits - self.unit * (rows @ occupancy.ravel() - error)
            kept = np.append(self.unit * (utilities + error) - self.kappa[:n], left)
            safe = kept.min(initial=np.inf) >= -TOLERANCE
            lower = reward - error if safe else -np.inf
            earned, most = self.unit * lower, self.reward.upper
            if status == "optimal" and not most - earned <= self.reward.allowed(earned, most):
                status = "inaccurate"
        return Solution(
            status=status,
            reward=reward,
            utilities=utilities,
            occupancy=occupancy,
            policy=policy,
            lower=lower,
            upper=np.nan if infeasible else self.reward.upper / self.unit,
            lam=proof.prices[1 : n + 1] if found else np.full(n, np.nan),
            V=proof.V - float(proof.prices[n + 1 :] @ limits) / self.unit
            if found
            else np.full(self.rows.n_states, np.nan),
            slater=self._slater(),
            n_columns=len(self.columns),
            n_iterations=self.n_iterations,
            n_passes=self.pricing.n_passes,
            n_sweeps=self.pricing.n_sweeps,
        )

    def _mixed(self, weights: Array) -> tuple[Array, Array, float]:
        """The occupancy of a mixture of columns, the policy that it induces, and a bound of its error, by row."""
        state, flat, error = self.rows.state, np.zeros(len(self.rows.pairs)), 0.0
        for k in np.flatnonzero(weights):
            visits, off = self.pricing.occupancy(self.columns[k].policy, 0.01 * TOLERANCE / self.unit)
            flat[self.columns[k].policy] += weights[k] * visits
            error += float(weights[k]) * off
        total = np.bincount(state, flat, self.rows.n_states)[state]
        main = np.zeros(len(flat))
        main[self.columns[int(np.argmax(weights))].policy] = 1.0
        return flat, np.where(total > 0, flat / np.where(total > 0, total, 1.0), main), error
