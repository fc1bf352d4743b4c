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
from dpdl.models.planner import Planner
from dpdl.models.pricing import Rows
from dpdl.safety.sample import Sample
from dpdl.safety.task import Task
from dpdl.safety.trial import Trial

#: Parts of the predicted width that proposals keep from their limits, from careful to bold.
PARTS = (2.5, 2.0, 1.7, 1.5, 1.35, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.15, 0.0)
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
        policy = self.sample.options.as_logged
        trial = self.predicted(policy)
        if (trial.estimate[1:] + self.widths(trial) <= self.task.limits).all():
            yield Proposal(policy, None)
        if not len(self.task.limits):
            yield Proposal(self.plan(trial, 0.0), 0.0)
            return
        trial = self.predicted(self.plan(trial, self.parts[0]))
        for part in self.parts:
            policy = self.plan(trial, part)
            yield Proposal(policy, part)
            trial = self.predicted(policy)

    def predicted(self, policy: Array) -> Trial:
        """What the test of a policy on other rows is expected to be like."""
        return Trial((self.sample,) * 2, (policy,) * 2, self.task.cost_max)

    def widths(self, trial: Trial) -> Array:
        """Predicted distances of the bounds of the costs from their estimates, (I,)."""
        return np.array([trial.width(1 + i, self.task.level) for i in range(len(self.task.limits))])

    def plan(self, trial: Trial, part: float) -> Array:
        """The best policy that keeps a part of the width from the limits, or else the most careful one."""
        sample, n, visits = self.sample, np.maximum(self.sample.n, 1)[:, None], trial.values[0].visits
        deviation, top = self._spread(trial)
        charge = max(part, _LEAST) * (self.setting.pessimism * deviation / np.sqrt(n) + self.setting.rare * top / n)
        # Pessimism shapes the plan. What it charges is not asked for a second time by the margin.
        margin = part * self.widths(trial) - visits @ charge[:, 1:]
        return self._best(sample.means + charge, self.task.limits - margin)

    def at(self, limits: Array) -> Array:
        """The best policy of the observed model with these limits, or else the most careful one."""
        return self._best(self.sample.means, limits)

    def most_careful(self) -> Array:
        """The policy whose largest excess of a limit, relative to the size of its costs, is least."""
        losses = self.sample.means.copy()
        losses[:, 0] = 0.0
        return self._best(losses, np.full(len(self.task.limits), -np.inf))

    def _spread(self, trial: Trial) -> tuple[Array, Array]:
        """Standard deviations of y by option, (K, m), and the largest residuals of all, (m,)."""
        sample = self.sample
        total, top = np.zeros(sample.means.shape), np.zeros(sample.means.shape[1])
        for cell, option, residual in sample.residuals(trial.values[0]):
            squares = sample.cells.count[cell, None] * residual**2
            total += np.column_stack([np.bincount(option, column, len(total)) for column in squares.T])
            top = np.maximum(top, residual.max(axis=0, initial=0.0))
        return np.sqrt(total / sample.freedom[:, None]), top

    def _best(self, losses: Array, limits: Array) -> Array:
        """Plan for these losses by option and limits; if they cannot be kept, make the largest excess least."""
        if time.monotonic() >= self.deadline:
            raise OutOfTime
        sample, mass = self.sample, float(self.sample.start.sum())
        if mass == 0:
            return sample.options.as_logged
        scale = np.where(abs(losses).max(axis=0) > 0, abs(losses).max(axis=0), 1.0)
        # First states that are unknown cost what they cost.
        limits = np.minimum(limits, _FAR * (1 + abs(losses).max(axis=0)[1:]) / (1 - sample.gamma))
        kappa = -((limits - (1 - mass) * sample.unknown[1:]) / mass) / scale[1:]
        goal = -((self.task.limits - (1 - mass) * sample.unknown[1:]) / mass) / scale[1:]
        gains, rho0 = np.ascontiguousarray(-(losses / scale).T), sample.start / mass
        if len(losses) <= PROGRAM_OPTIONS:
            visits = _program(sample, gains, rho0, kappa, goal)
        else:
            visits = self._planned(gains, rho0, kappa, goal)
        if visits is None:
            return sample.options.as_logged
        total = np.bincount(sample.options.state, visits, len(rho0))[sample.options.state]
        reached = total > 1e-12 * total.max()
        return np.where(reached, visits / np.where(reached, total, 1.0), sample.options.as_logged)

    def _planned(self, gains: Array, rho0: Array, kappa: Array, goal: Array) -> Array | None:
        sample = self.sample
        ends = np.maximum(1 - sample.gamma * sample.moves.sum(axis=1), 1 - sample.gamma)
        rows = Rows.from_matrix(sample.moves, sample.options.first, gains, ends, sample.gamma, rho0)
        planner = Planner(rows, GAP, deadline=self.deadline)
        found = planner.plan(kappa) if np.isfinite(kappa).all() else None
        if found is None or not found.lower > -np.inf:
            found = planner.most_careful(goal)
        if time.monotonic() >= self.deadline:
            raise OutOfTime
        return np.maximum(found.occupancy, 0.0) if np.isfinite(found.reward) else None


def _program(sample: Sample, gains: Array, rho0: Array, kappa: Array, goal: Array) -> Array | None:
    """The visits of a plan by linear programs; None if the solver fails."""
    K, S, I = gains.shape[1], len(rho0), len(kappa)
    choice = sp.csr_array((np.ones(K), (sample.options.state, np.arange(K))), shape=(S, K))
    flow = sp.hstack([choice - sample.gamma * sp.csr_array(sample.moves.T), sp.csr_array((S, 1))]).tocsr()
    costs = np.column_stack([-gains[1:].T.reshape(K, I).T, np.full(I, -1.0)])
    for asked, careful in ((kappa, False), (goal, True)):
        if not np.isfinite(asked).all():
            continue
        excess = (None, None) if careful else (0, 0)
        found = linprog(
            np.append(np.zeros(K), 1.0) if careful else np.append(-gains[0], 0.0),
            A_ub=costs if I else None,
            b_ub=-asked if I else None,
            A_eq=flow,
            b_eq=rho0,
            bounds=[(0, None)] * K + [excess],
            method="highs",
        )
        if found.status == 0:
            return np.maximum(found.x[:K], 0.0)
    return None
