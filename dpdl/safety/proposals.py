"""Proposals: plans from careful to bold, made on rows that will not test them.

A proposal is the best policy of a shrunken model of its rows whose costs, with their predicted widths, keep the limits:

    cost + b sd/sqrt(n) + part (z (sum_k nu_k^2 v_k/n_k)^(1/2) + log(1/delta) max_k nu_k R_k/n_k) <= limit

with visits nu, n rows, variance v of y = loss + gamma V(s') and surprise R. The first charge is for the winner's curse,
which adds up over pairs; the second is the width of the bound by noise; the third is that by its worst row, and caps
what was seen rarely (the paper's deviation control). V and v are those of the plan before.

The sequence begins at the policy that keeps most room below the limits, goes up to the limits, and then lets the
part of the width fall to zero. The log's own policy comes first where it is expected to pass. Costs and transitions of
rare actions are shrunk to those of their state by the variances within and between actions.

That is a linear program. Beyond some size plans are made by the planner, which takes charges that are linear in visits:

    loss + min(part, 1) (b sd/sqrt(n) + a R/n)    with limits less a margin,

and the margins follow the predicted widths of the bounds: a proposal keeps a part of them from its limits. Such a plan
takes one option in most states. If that option was seen rarely, the other rows may show that it leads back to its state
again and again, and the bound then charges its few rows for many visits. So a plan does as the log did with probability
m/(n + m) where it would take an option with n rows.

Nothing here can make a certificate wrong: proposals never see the rows that test them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog
from scipy.special import ndtri

from dpdl._validation import Array
from dpdl.models.evaluation import Rows
from dpdl.models.planner import Planner
from dpdl.safety.composites import Ints
from dpdl.safety.sample import Sample
from dpdl.safety.task import Task
from dpdl.safety.trial import Trial

#: Shares of the room that the most careful policy leaves, and then parts of the width, from careful to bold.
ROOMS, PARTS = (0.95, 0.8, 0.6, 0.4, 0.2), (1.5, 1.2, 1.0, 0.85, 0.7, 0.55, 0.4, 0.2, 0.0)
#: Plans for one proposal, at most; another one is made if this share of the visits moves.
ROUNDS, MOVED = 2, 0.05
#: Parts of the predicted width that plans of the planner keep from their limits; the plans for each, at most, and
#: the part by which it may be missed; the numbers a and m above.
MARGINS = (4.0, 3.0, 2.2, 1.7, 1.4, 1.2, 1.08, 1.0, 0.95, 0.9, 0.84, 0.78, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
MARGIN_ROUNDS, CLOSE, RARE, AS_LOGGED = 4, 0.05, 0.1, 3.0
#: Relative gap of plans by the planner; up to so many options a linear program is quicker.
GAP, PROGRAM_OPTIONS = 1e-3, 1000
#: The part of the width that is kept at least, so that ties go to what was seen often; that of the reward's charge.
LEAST, OF_REWARD = 0.1, 0.3
#: Prior rows are at most this many.
MOST_PRIOR = 40.0
#: No policy costs more than this multiple of the largest cost, over 1 - gamma.
FAR = 2.0
#: Visits of an option, as shares of its state's, at which the slope of their square changes, and the slopes.
KNOTS, SLOPES = (0.25, 0.25), (0.125, 0.375, 0.75)


class Setting(NamedTuple):
    """How proposals are made.

    Attributes
    ----------
    n_min : int
        Rows that an option needs, see `dpdl.safety.composites`.
    pessimism : float
        The number b above.
    """

    n_min: int
    pessimism: float


class Proposal(NamedTuple):
    """A policy, and the part of the width that it keeps, with the share of the room; None for the log's own policy."""

    policy: Array
    part: float | None


class Charges(NamedTuple):
    """What a plan is charged: losses (K, m), quadratic at full use of a state (K, m), that use (K,), surprises (K, I).

    Visits of an option at full use are those of its state.
    """

    losses: Array
    square: Array
    full: Array
    surprise: Array


@dataclass(eq=False)
class Proposer:
    """Plans on one sample.

    Parameters
    ----------
    task : Task
    sample : Sample
        The rows that choose.
    setting : Setting
    parts : sequence of float, optional
        Parts of the width, from careful to bold; by default `PARTS`, or `MARGINS` for the planner.
    """

    task: Task
    sample: Sample
    setting: Setting
    parts: Sequence[float] = ()

    def __post_init__(self) -> None:
        self.by_program = len(self.sample.options.state) <= PROGRAM_OPTIONS
        self.parts = self.parts or (PARTS if self.by_program else MARGINS)

    def run(self) -> Iterator[Proposal]:
        """Yield proposals from careful to bold."""
        trial = self.predicted(self.sample.options.as_logged)
        if (trial.estimate[1:] + self.widths(trial) <= self.task.limits).all():
            yield Proposal(trial.policies[0], None)
        if not len(self.task.limits):
            yield Proposal(self.at(self.task.limits), 0.0)
        else:
            yield from self._by_widths(trial) if self.by_program else self._by_margins(trial)

    def _by_widths(self, trial: Trial) -> Iterator[Proposal]:
        """Yield plans whose costs with a part of their widths keep the limits."""
        for _ in range(2):
            trial = self.predicted(self._plan(trial, self.parts[0], None))
        room = self.task.limits - trial.estimate[1:] - self.parts[0] * self.widths(trial)
        steps = [(self.parts[0], share) for share in ROOMS] if (room > 0).all() else []
        for part, share in (*steps, *((part, 0.0) for part in self.parts)):
            for _ in range(ROUNDS):
                before = trial.values[0].visits
                trial = self.predicted(self._plan(trial, part, self.task.limits - share * np.maximum(room, 0.0)))
                visits = trial.values[0].visits
                if abs(visits - before).sum() <= MOVED * visits.sum():
                    break
            yield Proposal(trial.policies[0], part + share)

    def _by_margins(self, trial: Trial) -> Iterator[Proposal]:
        """Yield plans of the planner with margins from the limits that follow the predicted widths."""
        task, proposed = self.task, False
        for _ in range(2):
            trial = self.predicted(self._planned_at(trial, 1.0, None))
        margin = self.parts[0] * self.widths(trial)
        for part in self.parts:
            before = np.inf
            for _ in range(MARGIN_ROUNDS):
                trial = self.predicted(self._planned_at(trial, part, task.limits - margin))
                width = self.widths(trial)
                excess = trial.estimate[1:] + part * width - task.limits
                margin = margin + excess
                kept, worst = bool((excess <= CLOSE * width).all()), float((excess / task.scale).max())
                if kept or worst > 0.9 * before:  # or no policy keeps so much
                    break
                before = worst
            # What does not keep its part on the rows that chose it is not worth a test, unless there is nothing else.
            if kept or (part == self.parts[-1] and not proposed):
                proposed = True
                yield Proposal(trial.policies[0], part)

    def predicted(self, policy: Array) -> Trial:
        """What the test of a policy on other rows is expected to be like."""
        return Trial(self.task, (self.sample,) * 2, (policy,) * 2)

    def widths(self, trial: Trial) -> Array:
        """Predicted distances of the bounds of the costs from their estimates, (I,)."""
        return np.array([trial.width(1 + i, self.task.level) for i in range(len(self.task.limits))])

    def at(self, limits: Array) -> Array:
        """The best policy of the model with these limits, or else the most careful one."""
        return self._best(self.means, limits)

    def most_careful(self) -> Array:
        """The policy whose largest excess of a limit, relative to the size of its costs, is least."""
        return self._best(self.sample.means, None)

    # ---- The model, shrunk ----

    @cached_property
    def _logged(self) -> Ints:
        """The last option of each option's state: "as logged", or the only one."""
        return (self.sample.options.first[1:] - 1)[self.sample.options.state]

    @cached_property
    def means(self) -> Array:
        """Mean losses of options, shrunk to those of their states, and these to those of all rows, (K, m)."""
        if not self.by_program:
            return self.sample.means
        cells, n, own = self.sample.cells, self.sample.n[:, None], self.sample.means
        prior, mean = self._prior_rows(cells.values), cells.count @ cells.values / cells.n_rows
        of_state = ((n * own + prior * mean) / np.maximum(n + prior, 1e-300))[self._logged]
        return (n * own + prior * of_state) / np.maximum(n + prior, 1e-300)

    @cached_property
    def moves(self) -> sp.csr_array:
        """Probabilities of known next states, shrunk to those of the state as logged, (K, S)."""
        if not self.by_program:
            return self.sample.moves
        sample, V = self.sample, self.sample.logged.V
        after = np.where(sample.lost[:, None], sample.unknown, 0.0)
        after[sample.next >= 0] = V[sample.next[sample.next >= 0]]
        prior = self._prior_rows(after)[1:].mean() if V.shape[1] > 1 else 0.0
        own = sample.n / np.maximum(sample.n + prior, 1e-300)
        return sp.csr_array(sp.diags_array(own) @ sample.moves + sp.diags_array(1 - own) @ sample.moves[self._logged])

    def _prior_rows(self, outcome: Array) -> Array:
        """Rows that the mean of a state counts as, by column of outcomes (C, m) of the cells.

        It is their variance within options over that between the options of a state, by the analysis of variance.
        """
        sample, state = self.sample, self.sample.options.state
        use = (sample.place[0] >= 0) & (sample.cells.count > 0)
        option, count, x = sample.place[0][use], sample.cells.count[use], outcome[use]

        def grouped(where: Ints, weighted: Array, size: int) -> Array:
            return np.column_stack([np.bincount(where, column, size) for column in weighted.T])

        n, S = np.bincount(option, count, len(state)), len(sample.options.known)
        n_state = np.bincount(state, n, S)
        mean = grouped(option, count[:, None] * x, len(n)) / np.maximum(n, 1)[:, None]
        of_state = grouped(state, n[:, None] * mean, S) / np.maximum(n_state, 1)[:, None]
        within = count @ (x - mean[option]) ** 2 / max(float((n - (n > 0)).sum()), 1.0)
        spare = float((np.bincount(state, n > 0, S) - (n_state > 0)).sum())
        size = float((n_state - np.bincount(state, n**2, S) / np.maximum(n_state, 1)).sum())
        between = np.maximum(n @ (mean - of_state[state]) ** 2 - spare * within, 0.0) / max(size, 1.0)
        within = np.where(within > 1e-12 * (x**2).max(axis=0, initial=0.0), within, 0.0)
        return within / np.maximum(between, np.maximum(within / MOST_PRIOR, np.finfo(float).tiny))

    # ---- Plans ----

    def _plan(self, trial: Trial, part: float, limits: Array | None) -> Array:
        """The best policy whose costs, with a part of their widths, keep the limits; None: the most careful one."""
        sample, value, part = self.sample, trial.values[0], max(part, LEAST)
        variance, top = self._variances(trial), sample.surprise(value)[:, 1:]
        n, z = np.maximum(sample.freedom, 1.0)[:, None], -float(ndtri(self.task.level))
        full = np.maximum(value.states, 1e-3 * value.states.mean())[sample.options.state]
        # The test is on as many rows again, both halves together.
        error = np.sqrt(np.maximum(value.visits**2 @ (variance / n) / 2, np.finfo(float).tiny))
        square = part * z * variance / n / 2 * full[:, None] / error
        square[:, 0] *= OF_REWARD
        surprise = -np.log(self.task.level) / 2 * top / sample.freedom[:, None]
        losses = self.means + min(part, 1.0) * self.setting.pessimism * np.sqrt(variance / n)
        # z q^(1/2) <= z/2 (q/error + error), and q is piecewise linear in visits.
        limits = None if limits is None else limits - part * z / 2 * error[1:]
        return self._best(losses, limits, Charges(losses, square, full, part * surprise))

    def _planned_at(self, trial: Trial, part: float, limits: Array | None) -> Array:
        """The best policy with these limits for losses with charges that are linear in visits."""
        n, top = np.maximum(self.sample.n, 1)[:, None], self.sample.surprise(trial.values[0])
        charge = self.setting.pessimism * np.sqrt(self._variances(trial) / n) + RARE * top / n
        policy = self._best(self.means + min(max(part, LEAST), 1.0) * charge, limits)
        return self._mixed(policy, AS_LOGGED * min(part, 1.0))

    def _mixed(self, policy: Array, rows: float) -> Array:
        """Do as the log did in place of an option with n rows, with probability rows/(n + rows)."""
        moved = policy * (rows / np.maximum(self.sample.n + rows, 1e-300))
        moved[self._logged] = 0.0
        return policy - moved + np.bincount(self._logged, moved, len(policy))

    def _variances(self, trial: Trial) -> Array:
        """Variances of y by option, (K, m), with one row of the mean over all rows."""
        sample = self.sample
        squares = np.zeros(sample.means.shape)
        for cell, option, residual in sample.residuals(trial.values[0]):
            weighted = sample.cells.count[cell, None] * residual**2
            squares += np.column_stack([np.bincount(option, column, len(squares)) for column in weighted.T])
        return (squares + squares.sum(axis=0) / sample.n.sum()) / (sample.freedom + 1)[:, None]

    def _best(self, losses: Array, limits: Array | None, charges: Charges | None = None) -> Array:
        """Plan for these losses by option and limits; if these are None or cannot be kept, make the excess least."""
        self.task.clock.check()
        sample, mass = self.sample, float(self.sample.start.sum())
        if mass == 0:
            return sample.options.as_logged
        scale = np.where(abs(losses).max(axis=0) > 0, abs(losses).max(axis=0), 1.0)
        # First states that are unknown cost what they cost; limits by the log are beside what the log's policy costs.
        spent = (1 - mass) * sample.unknown[1:] - np.where(self.task.against_log, sample.logged.J[1:], 0.0)

        def margin(totals: Array) -> Array:
            return -(np.minimum(totals - spent, FAR * scale[1:] / (1 - sample.gamma)) / mass) / scale[1:]

        kappa = None if limits is None else margin(limits)
        gains, rho0 = np.ascontiguousarray(-(losses / scale).T), sample.start / mass
        if self.by_program:
            visits = self._program(gains, rho0, kappa, margin(self.task.limits), scale, charges)
        else:
            visits = self._planned(gains, rho0, kappa, margin(self.task.limits))
        if visits is None:
            return sample.options.as_logged
        total = np.bincount(sample.options.state, visits, len(rho0))[sample.options.state]
        reached = total > 1e-12 * total.max()
        return np.where(reached, visits / np.where(reached, total, 1.0), sample.options.as_logged)

    def _planned(self, gains: Array, rho0: Array, kappa: Array | None, goal: Array) -> Array | None:
        """The visits of a plan by the planner; None if it has none."""
        sample = self.sample
        ends = np.maximum(1 - sample.gamma * self.moves.sum(axis=1), 1 - sample.gamma)
        rows = Rows.from_matrix(self.moves, sample.options.first, gains, ends, sample.gamma, rho0)
        planner = Planner(rows, GAP, deadline=self.task.clock.deadline)
        plan = None if kappa is None else planner.plan(kappa)
        if plan is None or not plan.lower > -np.inf:
            plan = planner.most_careful(goal)
        self.task.clock.check()
        return np.maximum(plan.occupancy, 0.0) if np.isfinite(plan.reward) else None

    def _program(
        self, gains: Array, rho0: Array, kappa: Array | None, goal: Array, scale: Array, charges: Charges | None
    ) -> Array | None:
        """The visits of a plan by linear programs; None if they fail.

        Variables are visits, in pieces with rising charges; the largest surprise of each cost; and the largest excess.
        """
        sample, K, I = self.sample, gains.shape[1], len(goal)
        choice = sp.csr_array((np.ones(K), (sample.options.state, np.arange(K))), shape=(len(rho0), K))
        flow, high, caps = choice - sample.gamma * sp.csr_array(self.moves.T), np.full(K, np.inf), []
        pieces = 1 if charges is None else len(SLOPES)
        if charges is not None:
            high = np.concatenate([*(knot * charges.full for knot in KNOTS), high])
            gains = np.concatenate([gains - slope * (charges.square / scale).T for slope in SLOPES], axis=1)
            for i in range(I):
                used = np.flatnonzero(charges.surprise[:, i] > 0)
                rows = np.arange(len(used))
                each = (charges.surprise[used, i] / scale[1 + i], (rows, used))
                weighted = sp.csr_array(each, shape=(len(used), K))
                largest = (np.full(len(used), -1.0), (rows, np.full(len(used), i)))
                caps.append(sp.hstack([weighted] * pieces + [sp.csr_array(largest, shape=(len(used), I + 1))]))
        flow = sp.hstack([flow] * pieces + [sp.csr_array((len(rho0), I + 1))]).tocsr()
        costs = sp.hstack([sp.csr_array(-gains[1:]), sp.eye_array(I), sp.csr_array(np.full((I, 1), -1.0))])
        upper = sp.vstack([costs, *caps]).tocsr()
        n = pieces * K
        for asked, careful in ((kappa, False), (goal, True)):
            if asked is None:
                continue
            free = np.inf if careful else 0.0
            loss = np.concatenate([np.zeros(n) if careful else -gains[0], np.zeros(I), [float(careful)]])
            plan = linprog(
                loss,
                A_ub=upper if I else None,
                b_ub=np.append(-asked, np.zeros(upper.shape[0] - I)) if I else None,
                A_eq=flow,
                b_eq=rho0,
                bounds=np.column_stack(
                    [np.append(np.zeros(n + I), -free), np.concatenate([high, np.full(I, np.inf), [free]])]
                ),
                method="highs",
                options={"time_limit": max(0.1, min(self.task.clock.deadline - time.monotonic(), 1e6))},
            )
            self.task.clock.check()
            if plan.status == 0:
                return np.maximum(plan.x[:n].reshape(pieces, K).sum(axis=0), 0.0)
        return None
