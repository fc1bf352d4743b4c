"""Candidates for deployment: the best policies at a margin, near the data, with pessimism about what was seen rarely.

A candidate is optimal for the posterior mean model (`dpdl.deploying.posterior`) with changed gains,

    reward - b sd,   utility - b sd,   sd(s,a)^2 = Var[mean of r + gamma V(s') | log],

at margins kappa, by a linear program for small models and by the planner for others; for small ones inside D(psi) as
well. Pessimism b pays twice: a policy that stays where the log is rich has a smaller standard error, and profits less
from noise.

What a next state from anywhere is worth is one number for each gain. With these held at the values of the previous plan
(`Posterior.leaps`), the model is sparse: such a step ends the episode, with that number as its last gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.deploying.certificate import Certifier
from dpdl.deploying.posterior import Posterior, Value
from dpdl.models import linear_programs as programs
from dpdl.models.cmdp import CMDP
from dpdl.models.model import Model
from dpdl.models.planner import Planner

#: Pessimism that is tried, and deviations; None is any.
PESSIMISM: tuple[float, ...] = (0.3, 1.0, 2.0)
DEVIATIONS: tuple[float, ...] = (8.0,)
#: Linear programs inside D(psi) are solved up to this many pairs; without psi, where they are quicker than the planner.
LP_PAIRS, QUICK_PAIRS = 2000, 1000
#: Policies that a search tries, at most; the relative change of reward at which it ends.
ROUNDS, CHANGE = 10, 2e-4
#: See `Search`.
ROOM = 0.02
#: Logs that are drawn to find out how much the choice of a policy flatters it.
RESAMPLED = 16
#: Relative gap to which plans are made.
PLAN_GAP = 1e-3


class Tried(NamedTuple):
    """A policy that was tried, its values, and whether the test accepts it.

    Attributes
    ----------
    policy : array, shape (S, A)
    value : Value
    passed : bool
    kappa : tuple of float
        Margins that it was planned with, in the caller's units.
    psi : float or None
    pessimism : float
    optimism : array, shape (1 + I,), or None
        What was taken off its estimates because it was chosen on the log that tests it, in standard errors; see
        `optimism`.
    """

    policy: Array
    value: Value
    passed: bool
    kappa: tuple[float, ...]
    psi: float | None
    pessimism: float
    optimism: Array | None = None


@dataclass(frozen=True, eq=False)
class Search:
    """Searches for the least margin that passes a test.

    Parameters
    ----------
    certifier : Certifier
        The test.
    room : float, optional
        A step aims at a bound that is better than its threshold by this part of its distance from the estimate.
    """

    certifier: Certifier
    room: float = ROOM

    @property
    def posterior(self) -> Posterior:
        """The model that policies are planned on."""
        return self.certifier.posterior

    @property
    def thresholds(self) -> Array:
        """What the totals of the constraints must reach, (I,)."""
        return self.certifier.thresholds

    def first(self) -> Value:
        """Values to start from: those of the best policy without margin or pessimism."""
        return self.without_margin(self.posterior.value(self.posterior.behaviour()))[1]

    def without_margin(self, value: Value) -> tuple[Plans, Value, bool]:
        """Return the last plans, values of the best policy, and whether it keeps the thresholds; start from a value.

        The value of a state from anywhere is that of the plan before, so there are two plans.
        """
        for _ in range(2):
            plans = Plans(self.posterior, value, 0.0)
            kept, policy = plans.best(self.thresholds)
            value = self.posterior.value(policy)
        return plans, value, kept

    def run(self, start: Value, pessimism: float, psi: float | None) -> Iterator[Tried]:
        """Yield the policies tried, the last one that passed has the least margins.

        If they are tested on the log that they are chosen on, those that pass are a guide only: the search is repeated
        with the optimism of its result taken off all estimates.
        """
        found: Tried | None = None
        for one in self.search(start, pessimism, psi):
            if one.passed and self.certifier.chosen_here:
                found = one
            else:
                yield one
        if found is not None:
            certifier = replace(self.certifier, optimism=optimism(self.certifier, found))
            yield from replace(self, certifier=certifier).search(start, pessimism, psi)

    def search(self, start: Value, pessimism: float, psi: float | None) -> Iterator[Tried]:
        """Yield the policies tried: the last one that passed has the least margins.

        The margin of a constraint is changed by what its bound has too much or too little: a Newton step for the margin
        at which the bound reaches its threshold. If no policy has that margin, half of the step is taken back.
        """
        posterior, certifier = self.posterior, self.certifier
        plans = Plans(posterior, start, pessimism, psi)
        _, policy = plans.best(self.thresholds)
        # What pessimism takes, and the test.
        margin = plans.gains(policy) - certifier.lower(policy, posterior.value(policy))
        kept, earned = None, -np.inf
        for _ in range(ROUNDS):
            planned, policy = plans.best(self.thresholds + margin)
            if not planned and kept is not None:
                margin = (margin + kept) / 2
                continue
            value = posterior.value(policy)
            lower = certifier.lower(policy, value)
            slack, wide = lower - self.thresholds, value.J[1:] - lower
            passed = bool((slack >= -certifier.tolerance).all())
            shown = margin if planned else np.full(len(margin), np.nan)
            yield Tried(policy, value, passed, tuple(shown.tolist()), psi, pessimism, certifier.optimism)
            if passed:
                reward = value.J[0]
                if reward - earned <= CHANGE * abs(reward) or (slack <= 2 * self.room * wide).all():
                    return
                earned = reward
            if planned:
                kept = margin
            else:
                margin = plans.gains(policy) - self.thresholds
                if not passed:
                    return
            margin = margin - (slack - self.room * wide)


def optimism(certifier: Certifier, one: Tried) -> Array:
    """Return by how many standard errors the choice of a policy flatters its estimates, (1 + I,).

    In logs that are drawn from the posterior the same choice is made: its estimate there, less the estimate by the
    model that the logs are drawn from. The same difference for the policy itself, which was not chosen there and has
    none to be expected, is subtracted, because it is most of the noise.
    """
    source, rng = certifier.posterior.source, np.random.default_rng(0)
    hidden = certifier.posterior.spread(one.value.V).hidden
    truth, kappa, total = source.value(one.policy), np.array(one.kappa), np.zeros(len(one.value.J))
    for _ in range(RESAMPLED):
        other = source.resampled(rng, hidden)
        plans = Plans(other, one.value, one.pessimism, one.psi)
        if np.isfinite(kappa).all():
            policy = plans.best(certifier.thresholds + kappa)[1]
        else:
            policy = plans.most_careful(certifier.thresholds)
        total += _errors(other.value(policy), source.value(policy)) - _errors(other.value(one.policy), truth)
    return np.maximum(total / RESAMPLED, 0.0)


def _errors(estimate: Value, truth: Value) -> Array:
    """Return by how many of its standard errors, or without any those of the truth, an estimate is above the truth."""
    error = np.where(estimate.error > 0, estimate.error, truth.error)
    return np.divide(estimate.J - truth.J, error, where=error > 0, out=np.zeros(len(error)))


class Plans:
    """Plans on the posterior mean model, pessimistic, near the data if asked.

    Attributes
    ----------
    model : CMDP
    scale : array, shape (1 + I,)
        The gains of the model are divided by these.
    prices : array, shape (I,)
        Multipliers of the constraints of the last plan, reward for a unit of each.
    """

    prices: Array

    def __init__(self, posterior: Posterior, start: Value, pessimism: float, psi: float | None = None) -> None:
        self.posterior, log = posterior, posterior.log
        n_states, n_actions, pairs = log.n_states, log.n_actions, log.pairs
        spread = posterior.spread(start.V)
        visited = posterior.gains - spread.flattery - pessimism * np.sqrt(spread.variance)
        visited = visited + np.outer(posterior.leaps(start.V)[0], posterior.away)
        gains = np.repeat(posterior.worst[:, None], n_states * n_actions, axis=1)
        gains[:, pairs] = visited
        largest = abs(gains).max(axis=1)
        self.scale = np.where(largest > 0, largest, 1.0)
        r, *u = (gains / self.scale[:, None]).reshape(-1, n_states, n_actions)
        visits = np.zeros(n_states * n_actions, dtype=bool)
        visits[pairs] = True
        unseen = np.flatnonzero(~visits)
        moves = sp.csr_array(sp.diags_array(1 - posterior.away) @ posterior.moves).tocoo()
        rows = np.concatenate([pairs[moves.row], unseen])
        columns = np.concatenate([moves.col, unseen // n_actions])
        entries = np.concatenate([moves.data, np.ones(len(unseen))])
        P = sp.csr_array((entries, (rows, columns)), shape=(n_states * n_actions, n_states))
        ends = np.maximum(1 - P.sum(axis=1), 0.0).reshape(n_states, n_actions)
        self.model = CMDP(P, r, np.reshape(u, (-1, n_states, n_actions)), posterior.gamma, posterior.rho0, ends)
        self.psi = psi

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self.model, PLAN_GAP, allowed=self.posterior.allowed())

    @cached_property
    def _closed(self) -> tuple[Model, Array]:
        """The model with its end as a state, and the caps of its pairs."""
        closed, log = self.model.closed(), self.posterior.log
        if self.psi is not None:
            return closed, programs.region(closed, self.psi, log.frequencies)
        caps = programs.region(closed)
        caps[: self.model.r.size][~self.posterior.allowed().ravel()] = 0.0
        return closed, caps

    def best(self, thresholds: Array) -> tuple[bool, Array]:
        """Return the best policy with these totals, or the most careful and False if there is none."""
        kappa, price = thresholds / self.scale[1:], self.scale[0] / self.scale[1:]
        if self.psi is None and self.model.r.size > QUICK_PAIRS:
            plan = self._planner.plan(kappa)
            self.prices = plan.lam * price
            return (True, plan.policy) if np.isfinite(plan.reward) else (False, self.most_careful(thresholds))
        closed, caps = self._closed
        found = programs.propose(programs.largest_reward(closed, (1 - closed.gamma) * kappa, caps))
        if found is None:
            return False, self.most_careful(thresholds)
        self.prices = found.w[: len(kappa)] * price
        table = found.q[: self.model.r.size].reshape(self.model.r.shape)
        return True, policies.from_occupancy(table, self.posterior.behaviour())

    def most_careful(self, thresholds: Array) -> Array:
        """Return the policy whose least margin above the thresholds, relative to the gains, is largest."""
        if self.psi is not None:
            return self.posterior.behaviour()
        return self._planner.most_careful(thresholds / self.scale[1:]).policy

    def gains(self, policy: Array) -> Array:
        """Return a policy's totals of the pessimistic gains."""
        return self.scale[1:] * self.model.evaluate(policy).utilities
