"""Proposals: plans from careful to bold, made on rows that will not test them.

A proposal is the best policy of the observed model with losses

    loss + part (b sd/sqrt(n) + a R/n),    n rows, sd of y = loss + gamma V(s'), R the largest residual,

whose costs keep a part of the predicted width of their bounds from the limits. The parts run down to zero, and with
them pessimism about what was seen rarely: from careful to bold. The first summand prefers pairs with small errors, the
second those where a single surprise weighs little, which is what the worst row of the bound charges for. Values V and
widths are those of the plan before. The log's own policy comes first where it is expected to pass.

Nothing here can make a certificate wrong: proposals never see the rows that test them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from dpdl._validation import Array
from dpdl.models.evaluation import Rows
from dpdl.models.planner import Planner
from dpdl.safety.sample import Sample
from dpdl.safety.task import Task
from dpdl.safety.trial import Trial

#: Parts of the predicted width that proposals keep from their limits, from careful to bold.
PARTS = (4.0, 3.0, 2.2, 1.7, 1.4, 1.2, 1.08, 1.0, 0.95, 0.9, 0.84, 0.78, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
#: Plans for one part, at most, and the part of the width by which a proposal may miss what it should keep.
ROUNDS, CLOSE = 4, 0.05
#: Relative gap of plans by the planner; up to so many options a linear program is quicker.
GAP, PROGRAM_OPTIONS = 1e-3, 1000
#: No policy costs more than this multiple of the largest cost, over 1 - gamma.
_FAR = 2.0
#: Pessimism of the boldest proposals, as a part: ties go to what was seen often.
_LEAST = 0.1


class OutOfTime(Exception):
    """The deadline has passed."""


class Setting(NamedTuple):
    """How proposals are made.

    Attributes
    ----------
    n_min : int
        Rows that an option needs, see `dpdl.safety.composites`.
    pessimism, rare : float
        The numbers b and a above.
    """

    n_min: int
    pessimism: float
    rare: float


class Proposal(NamedTuple):
    """A policy, and the part of the predicted width that it keeps from the limits; None for the log's own policy."""

    policy: Array
    part: float | None


@dataclass(eq=False)
class Proposer:
    """Plans on one sample.

    Parameters
    ----------
    task : Task
    sample : Sample
        The rows that choose.
    setting : Setting
    deadline : float, optional
        Time by `time.monotonic` at which `OutOfTime` is raised.
    parts : sequence of float, optional
        Parts of the predicted width, from careful to bold.
    """

    task: Task
    sample: Sample
    setting: Setting
    deadline: float = np.inf
    parts: Sequence[float] = PARTS

    def run(self) -> Iterator[Proposal]:
        """Yield proposals from careful to bold."""
        task, policy = self.task, self.sample.options.as_logged
        trial = self.predicted(policy)
        if (trial.estimate[1:] + self.widths(trial) <= task.limits).all():
            yield Proposal(policy, None)
        if not len(task.limits):
            yield Proposal(self.at(task.limits), 0.0)
            return
        for _ in range(2):
            trial = self.predicted(self._plan(trial, 1.0, None))
        margin = self.parts[0] * self.widths(trial)
        proposed = False
        for part in self.parts:
            before = np.inf
            for _ in range(ROUNDS):
                policy = self._plan(trial, part, task.limits - margin)
                trial = self.predicted(policy)
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
                yield Proposal(policy, part)

    def predicted(self, policy: Array) -> Trial:
        """What the test of a policy on other rows is expected to be like."""
        return Trial((self.sample,) * 2, (policy,) * 2, self.task.cost_max)

    def widths(self, trial: Trial) -> Array:
        """Predicted distances of the bounds of the costs from their estimates, (I,)."""
        return np.array([trial.width(1 + i, self.task.level) for i in range(len(self.task.limits))])

    def _plan(self, trial: Trial, part: float, limits: Array | None) -> Array:
        """The best policy with these limits for losses with pessimism, values being those of the plan before."""
        n, (deviation, top) = np.maximum(self.sample.n, 1)[:, None], self._spread(trial)
        strength = min(max(part, _LEAST), 1.0)
        charge = self.setting.pessimism * deviation / np.sqrt(n) + self.setting.rare * top / n
        surprise = -np.log(self.task.level) / 2 * top[1:] / self.sample.freedom[:, None]
        return self._best(self.sample.means + strength * charge, limits, strength * surprise)

    def at(self, limits: Array) -> Array:
        """The best policy of the observed model with these limits, or else the most careful one."""
        return self._best(self.sample.means, limits)

    def most_careful(self) -> Array:
        """The policy whose largest excess of a limit, relative to the size of its costs, is least."""
        return self._best(self.sample.means, None)

    def _spread(self, trial: Trial) -> tuple[Array, Array]:
        """Standard deviations of y by option, (K, m), and the largest residuals of all, (m,)."""
        sample = self.sample
        total = np.zeros(sample.means.shape)
        for cell, option, residual in sample.residuals(trial.values[0]):
            squares = sample.cells.count[cell, None] * residual**2
            total += np.column_stack([np.bincount(option, column, len(total)) for column in squares.T])
        return np.sqrt(total / sample.freedom[:, None]), sample.surprise(trial.values[0])

    def _best(self, losses: Array, limits: Array | None, surprise: Array | None = None) -> Array:
        """Plan for these losses by option and limits; if these are None or cannot be kept, make the excess least.

        Costs include the largest `surprise` (K, I) of an option, times its visits.
        """
        if time.monotonic() >= self.deadline:
            raise OutOfTime
        sample, mass = self.sample, float(self.sample.start.sum())
        if mass == 0:
            return sample.options.as_logged
        scale = np.where(abs(losses).max(axis=0) > 0, abs(losses).max(axis=0), 1.0)
        # First states that are unknown cost what they cost.
        if limits is None:
            kappa = None
        else:
            limits = np.minimum(limits, _FAR * scale[1:] / (1 - sample.gamma))
            kappa = -((limits - (1 - mass) * sample.unknown[1:]) / mass) / scale[1:]
        goal = -((self.task.limits - (1 - mass) * sample.unknown[1:]) / mass) / scale[1:]
        gains, rho0 = np.ascontiguousarray(-(losses / scale).T), sample.start / mass
        if len(losses) <= PROGRAM_OPTIONS:
            visits = _program(sample, gains, rho0, kappa, goal, None if surprise is None else surprise / scale[1:])
        else:
            visits = self._planned(gains, rho0, kappa, goal)
        if visits is None:
            return sample.options.as_logged
        total = np.bincount(sample.options.state, visits, len(rho0))[sample.options.state]
        reached = total > 1e-12 * total.max()
        return np.where(reached, visits / np.where(reached, total, 1.0), sample.options.as_logged)

    def _planned(self, gains: Array, rho0: Array, kappa: Array | None, goal: Array) -> Array | None:
        sample = self.sample
        ends = np.maximum(1 - sample.gamma * sample.moves.sum(axis=1), 1 - sample.gamma)
        rows = Rows.from_matrix(sample.moves, sample.options.first, gains, ends, sample.gamma, rho0)
        planner = Planner(rows, GAP, deadline=self.deadline)
        found = None if kappa is None else planner.plan(kappa)
        if found is None or not found.lower > -np.inf:
            found = planner.most_careful(goal)
        if time.monotonic() >= self.deadline:
            raise OutOfTime
        return np.maximum(found.occupancy, 0.0) if np.isfinite(found.reward) else None


def _program(
    sample: Sample, gains: Array, rho0: Array, kappa: Array | None, goal: Array, surprise: Array | None
) -> Array | None:
    """The visits of a plan by linear programs over visits, largest surprises and the excess; None if they fail."""
    K, S, I = gains.shape[1], len(rho0), len(goal)
    choice = sp.csr_array((np.ones(K), (sample.options.state, np.arange(K))), shape=(S, K))
    flow = sp.hstack([choice - sample.gamma * sp.csr_array(sample.moves.T), sp.csr_array((S, I + 1))]).tocsr()
    upper = [sp.hstack([sp.csr_array(-gains[1:]), sp.eye_array(I), sp.csr_array(np.full((I, 1), -1.0))])] if I else []
    for i in range(0 if surprise is None else I):
        assert surprise is not None
        used = np.flatnonzero(surprise[:, i] > 0)
        rows = np.arange(len(used))
        each = sp.csr_array((surprise[used, i], (rows, used)), shape=(len(used), K))
        largest = sp.csr_array((np.full(len(used), -1.0), (rows, np.full(len(used), i))), shape=(len(used), I + 1))
        upper.append(sp.hstack([each, largest]))
    A_ub = sp.vstack(upper).tocsr() if I else None
    for asked, careful in ((kappa, False), (goal, True)):
        if asked is None:
            continue
        cost = np.zeros(K + I + 1)
        cost[:K], cost[-1] = (0.0, 1.0) if careful else (-gains[0], 0.0)
        found = linprog(
            cost,
            A_ub=A_ub,
            b_ub=None if A_ub is None else np.append(-asked, np.zeros(A_ub.shape[0] - I)),
            A_eq=flow,
            b_eq=rho0,
            bounds=[(0, None)] * (K + I) + [(None, None) if careful else (0, 0)],
            method="highs",
        )
        if found.status == 0:
            return np.maximum(found.x[:K], 0.0)
    return None
