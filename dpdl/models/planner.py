"""The best safe policy of a large known model, by column generation over deterministic policies.

    maximise J(pi)   subject to   J^u_i(pi) >= kappa

For given multipliers lam >= 0 the problem is an ordinary MDP with reward r + <u, lam>. A master program mixes the
(reward, utilities) of the policies found so far, of which at most I + 1 are used; its multipliers price the next policy
(Dantzig and Wolfe 1960), which `Evaluator.search` finds. The mixture bounds the optimum from below, since values of
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

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdl._progress import StatusLine
from dpdl._validation import Array
from dpdl.models.evaluation import Evaluator, Rows
from dpdl.models.highs import linprog
from dpdl.models.programs import TOLERANCE
from dpdl.models.solution import Solution

#: A search ends when the bounds of its policy are this part of the gap apart.
_PART_OF_GAP = 0.25
#: Phase one ends when the margin is at least this part of what it can be.
_PART_OF_MARGIN = 0.3
_MOST_COLUMNS = 2000
#: The part of the best upper bound's prices in those of the next column: at first, and at most.
_STABLE, _MOST_STABLE = 0.5, 0.9
#: Rounds without a column that is new or a gap that is smaller after which rounding is taken to prevent progress.
_PATIENCE = 10
#: Seconds that the occupancy of the result may take after the deadline.
_GRACE = 0.5
#: Smaller weights of columns are rounding of HiGHS.
_LEAST_WEIGHT = 1e-12


class _Stop(Exception):
    """The search cannot go on; the argument is the status."""


class _Column(NamedTuple):
    """A deterministic policy, as a row for each state, and its normalised values: the reward and the utilities."""

    policy: NDArray[np.int32]
    values: Array
    error: Array


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


class Planner:
    """Plans of one model for many margins: the policies that were found for one are columns for the next.

    Parameters
    ----------
    rows : Rows
    tol : float
        Relative gap of the bounds of the reward at which to stop; a gap of 1e-9/(1-gamma) is enough in any case.
    deadline : float, optional
        Time by `time.monotonic` at which plans end with what they have.
    progress : bool, optional
        Show the bounds in a line on standard error after two seconds; None: if that is a terminal.

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> planner = Planner(one_state.rows)
    >>> [round(planner.plan(np.array([kappa])).reward, 6) for kappa in (0.0, 1.0)]
    [1.0, 0.5]
    >>> round(planner.most_careful(np.array([0.0])).reward, 6)
    0.0
    """

    # All values are normalised, (1-gamma) times the discounted ones.

    def __init__(
        self, rows: Rows, tol: float = 1e-3, *, deadline: float = np.inf, progress: bool | None = False
    ) -> None:
        self.rows, self.tol, self.deadline, self.progress = rows, tol, deadline, progress
        self.unit, self.n_utilities = 1 - rows.gamma, len(rows.gains) - 1
        self.evaluator, self.columns = Evaluator(rows, deadline), list[_Column]()

    def plan(self, kappa: Array, *, interruptible: bool = False) -> Solution:
        """Find the best policy with J^u_i >= kappa[i] for every i.

        If `interruptible`, Ctrl-C returns the best safe policy so far, with status "interrupted"; if not, or if there
        is none yet, it raises KeyboardInterrupt.
        """
        self._begin(kappa)
        try:
            with StatusLine(self.progress) as self.line:
                return self._finish(self._run())
        except KeyboardInterrupt:
            solution = self._finish("interrupted") if interruptible else None
            if solution is None or not solution.lower > -np.inf:
                raise
            return solution

    def most_careful(self, kappa: Array, accuracy: float = 1e-6) -> Solution:
        """Find the policy with the largest least margin J^u_i - kappa[i]; the status is "limit".

        With kappa = 0 the bounds of the Slater constant are then this close, unless rounding or time prevents that.
        """
        self._begin(kappa)
        margin, accuracy = self.margin, max(accuracy, TOLERANCE)
        with suppress(_Stop, TimeoutError), StatusLine(self.progress) as self.line:
            self._price(margin, margin.best.prices)
            self._generate(margin, lambda: margin.upper - margin.lower <= accuracy)
        return self._finish("limit")

    def _begin(self, kappa: Array) -> None:
        self.kappa, self.room, self.evaluator.deadline = self.unit * kappa, 0.0, self.deadline
        unknown, none = np.full(self.rows.n_states, np.inf), np.zeros(self.n_utilities)
        self.margin = _Phase(_Upper(np.inf, np.append(0.0, none + 1 / max(1, self.n_utilities)), unknown))
        self.reward = _Phase(_Upper(np.inf, np.append(1.0, none), unknown), self.tol)

    def _run(self) -> str:
        """Run both phases, and return the status."""
        try:
            first = self._price(self.reward, self.reward.best.prices)
            if self.n_utilities and ((first.values - first.error)[1:] - self.kappa).min() < 0:
                self._generate(self.margin, self._feasibility_is_clear)
                if self.margin.upper < -TOLERANCE:
                    return "infeasible"
                self.room = max(0.0, -self.margin.lower)
            self._generate(self.reward, self.reward.closed)
        except _Stop as stop:
            return str(stop)
        except TimeoutError:
            return "limit"
        return "optimal"

    def _feasibility_is_clear(self) -> bool:
        lower, upper = self.margin.lower, self.margin.upper
        return upper < -TOLERANCE or lower >= min(_PART_OF_MARGIN * upper, upper - TOLERANCE)

    def _generate(self, phase: _Phase, done: Callable[[], bool]) -> None:
        """Add columns until the phase is done."""
        stable = _STABLE if self.n_utilities > 1 else 0.0
        least, idle = np.inf, 0
        while True:
            weights, prices, value = self._mix(phase)
            if value > phase.lower:
                phase.lower, phase.weights = value, weights
            self._report(phase)
            if done():
                return
            gap = phase.upper - phase.lower
            idle, least = (0, gap) if gap < 0.99 * least else (idle + 1, least)
            if idle > _PATIENCE:
                raise _Stop("inaccurate")
            if self._refine(weights, prices, phase.goal(phase.upper)):
                continue
            centre, known = phase.best.prices, len(self.columns)
            column = self._price(phase, stable * centre + (1 - stable) * prices)
            worth = max(float(other.values @ prices) for other in self.columns[:known])
            if len(self.columns) > known and float(column.values @ prices) > worth:
                # The slope of the bound at the column's prices, towards those of the master.
                ahead = float((column.values[1:] - self.kappa) @ (prices - centre)[1:])
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

        most, V = self.evaluator.search(prices, enough)
        bound = self.unit * most - charge
        if bound < phase.upper:
            phase.best = _Upper(bound, prices, V)
        column = self._evaluated(self.evaluator.policy, 0.1 * phase.goal(bound) / float(prices.sum()))
        same = [k for k, other in enumerate(self.columns) if np.array_equal(other.policy, column.policy)]
        if same:
            self.columns[same[0]] = column
        elif len(self.columns) >= _MOST_COLUMNS:
            raise _Stop("limit")
        else:
            self.columns.append(column)
        return column

    def _evaluated(self, policy: NDArray[np.int32], accuracy: float) -> _Column:
        policy = policy.copy()
        values, error = self.evaluator.evaluate(policy, np.full(self.n_utilities + 1, accuracy / self.unit))
        return _Column(policy, self.unit * values, self.unit * error)

    def _refine(self, weights: Array, prices: Array, goal: float) -> bool:
        """Evaluate the columns of a mixture again if their errors are a large part of the gap; False if not."""
        used = np.flatnonzero(weights)
        loss = np.array([self.columns[k].error @ prices for k in used])
        if loss @ weights[used] <= 0.2 * goal:
            return False
        better = False
        for k, lost in zip(used, loss, strict=True):
            if lost > 0.1 * goal:
                self._check_time()
                column = self._evaluated(self.columns[k].policy, 0.05 * goal / float(prices.sum()))
                if column.error @ prices <= 0.5 * lost:
                    self.columns[k], better = column, True
        return better

    def _mix(self, phase: _Phase) -> tuple[Array, Array, float]:
        """Solve the master program of a phase; the values of the columns enter less their errors.

        Returns the weights of the columns, the prices of reward and utilities, and the value.
        """
        worst = np.array([column.values - column.error for column in self.columns])
        rewards, rows, first = worst[:, 0], self.kappa[:, None] - worst[:, 1:].T, float(phase is self.margin)
        size = max(float(np.ptp(rewards)), TOLERANCE)
        sizes = np.maximum(abs(rows).max(axis=1), TOLERANCE)  # HiGHS's tolerances are absolute
        scaled = rows / sizes[:, None]
        shift = 1 - scaled.min(axis=1)  # the weights sum to one, and HiGHS drops coefficients close to zero
        master = linprog(
            np.append((1 - first) * (rewards.mean() - rewards) / size, -first),
            A_ub=np.column_stack([scaled + shift[:, None], first / sizes]),
            b_ub=shift + self.room / sizes,
            A_eq=np.append(np.ones(len(rewards)), 0.0)[None],
            b_eq=[1.0],
            bounds=[(0, None)] * len(rewards) + [(None, None) if first else (0, 0)],
            method="highs-ds",
            deadline=self.deadline,
        )
        if master.status != 0:
            raise _Stop("inaccurate")
        weights = np.where(master.x[:-1] > _LEAST_WEIGHT, master.x[:-1], 0.0)
        weights /= weights.sum()
        prices, margins = np.maximum(-master.ineqlin.marginals, 0.0) / sizes, -(rows @ weights)
        if first:
            return weights, np.append(0.0, prices / prices.sum()), float(margins.min())
        safe = margins.min(initial=np.inf) >= -self.room - TOLERANCE / 10
        return weights, np.append(1.0, size * prices), float(rewards @ weights) if safe else -np.inf

    # ---- Limits and the result ----

    def _check_time(self) -> None:
        if time.monotonic() >= self.deadline:
            raise _Stop("limit")

    def _report(self, phase: _Phase) -> None:
        if self.line.is_due():
            what, unit = ("least margin", 1.0) if phase is self.margin else ("reward", self.unit)
            bounds = f"{what} between {phase.lower / unit:.6g} and {phase.upper / unit:.6g}"
            self.line.draw(f"planning: {len(self.columns)} policies, {bounds}")

    def _finish(self, status: str) -> Solution:
        rows, kappa = self.rows, self.kappa if self.n_utilities else np.zeros(1)
        proof = (self.margin if status == "infeasible" else self.reward).best
        solution = replace(
            Solution.empty(status, rows.shape, rows.n_states, self.n_utilities),
            slater=(float(self.margin.lower + kappa.min()), float(self.margin.upper + kappa.max())),
            n_columns=len(self.columns),
        )
        if np.isfinite(proof.V).all():  # else time ran out before the first bound
            solution = replace(solution, lam=proof.prices[1:], V=proof.V)
        if status == "infeasible":
            return solution
        solution = replace(solution, upper=self.reward.upper / self.unit)
        weights = self.margin.weights if self.reward.weights is None else self.reward.weights
        if weights is None:
            return solution
        visits, policy, error = self._mixed(weights)
        reward, *utilities = self.rows.gains @ visits
        margins = self.unit * (np.array(utilities) + error) - self.kappa
        safe = weights is self.reward.weights or self.margin.lower >= -TOLERANCE  # by the values of its columns
        lower = float(reward) - error if safe and margins.min(initial=np.inf) >= -TOLERANCE else -np.inf
        earned, most = self.unit * lower, self.reward.upper
        if status == "optimal" and not most - earned <= self.reward.allowed(earned, most):
            status = "inaccurate"
        return replace(
            solution,
            status=status,
            reward=float(reward),
            utilities=np.array(utilities),
            occupancy=visits.reshape(rows.shape),
            policy=policy.reshape(rows.shape),
            lower=lower,
        )

    def _mixed(self, weights: Array) -> tuple[Array, Array, float]:
        """The occupancy of a mixture of columns, the policy that it induces, and a bound of its error, by row."""
        state, flat, error = self.rows.state, np.zeros(len(self.rows.ends)), 0.0
        self.evaluator.deadline = max(self.deadline, time.monotonic() + _GRACE)
        for k in np.flatnonzero(weights):
            visits, off = self.evaluator.occupancy(self.columns[k].policy, 0.01 * TOLERANCE / self.unit)
            flat[self.columns[k].policy] += weights[k] * visits
            error += float(weights[k]) * off
        total = np.bincount(state, flat, self.rows.n_states)[state]
        main = np.zeros(len(flat))
        main[self.columns[int(np.argmax(weights))].policy] = 1.0
        return flat, np.where(total > 0, flat / np.where(total > 0, total, 1.0), main), error
