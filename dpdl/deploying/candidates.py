"""Candidates for deployment: the best policies at a margin, near the data, with pessimism about what was seen rarely.

A candidate is optimal for the posterior mean model (`dpdl.deploying.posterior`) with changed gains,

    reward - b sd,   utility - b sd,   sd(s,a)^2 = Var[mean of r + gamma V(s') | log],

at margins kappa, by the planner; and inside D(psi), by a linear program, for models that are small enough. Pessimism b
pays twice: a policy that stays where the log is rich has a smaller standard error, and gains less from flattering noise.

A next state from anywhere has the value base.V, one number for each gain. With these held at the values of the previous
plan, the model is sparse: such a step ends the episode, with base.V as its last gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.deploying.posterior import Posterior, Value
from dpdl.models import linear_programs as programs
from dpdl.models.cmdp import CMDP
from dpdl.models.planner import Planner

#: Pessimism that is tried, and deviations; None is any.
PESSIMISM: tuple[float, ...] = (1.0, 0.3, 3.0)
DEVIATIONS: tuple[float, ...] = (2.0, 8.0)
#: Linear programs inside D(psi) are solved up to this many pairs.
LP_PAIRS = 2000
#: Margins, in multiples of the one that the certificate would need if the policy stayed the same.
LADDER = (1.0, 1.5, 2.25, 3.5, 6.0)
#: Bisections of the margin, at most, and the relative change of reward at which they end.
BISECTIONS, CHANGE = 7, 1e-4
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
    """

    policy: Array
    value: Value
    passed: bool
    kappa: tuple[float, ...]
    psi: float | None
    pessimism: float


@dataclass(frozen=True, eq=False)
class Search:
    """Searches for the least margin that passes a test.

    Parameters
    ----------
    posterior : Posterior
    z : float
        Standard errors that the test asks for.
    passes : callable
        Tells of a policy and its values whether the test accepts it.
    """

    posterior: Posterior
    z: float
    passes: Callable[[Array, Value], bool]

    def first(self) -> Value:
        """Values to start from: those of the best policy without margin or pessimism."""
        value = self.posterior.value(self.posterior.behaviour())
        for _ in range(2):
            plans = _Plans(self.posterior, value, 0.0, None)
            value = self.posterior.value(plans.best(plans.thresholds)[1])
        return value

    def run(self, start: Value, pessimism: float, psi: float | None) -> Iterator[Tried]:
        """Yield the policies tried: the last one that passed has the least margin."""
        posterior, plans = self.posterior, _Plans(self.posterior, start, pessimism, psi)

        def attempt(policy: Array, kappa: Array) -> Tried:
            value = posterior.value(policy)
            passed = self.passes(policy, value)
            return Tried(policy, value, passed, tuple(kappa.tolist()), psi, pessimism)

        found, policy = plans.best(plans.thresholds)
        value = posterior.value(policy)
        error = self.z * value.error[1:]
        origin = plans.gains(policy, value) - value.J[1:]  # what pessimism takes

        def at(t: float) -> Tried | None:
            planned, policy = plans.best(plans.thresholds + origin + t * error)
            return attempt(policy, origin + t * error) if planned else None

        if not found or not (one := attempt(policy, 0 * error)).passed:
            low, passed = 0.0, None
            for t in LADDER:
                one = at(t)
                if one is None:
                    break
                yield one
                if one.passed:
                    passed = t
                    break
                low = t
            if passed is None:
                one = attempt(plans.most_careful(), np.full(len(error), np.nan))
                yield one
                return
        else:
            yield one
            low, passed = -1.0, 0.0
        reward = one.value.J[0]
        for _ in range(BISECTIONS):
            middle = (low + passed) / 2
            one = at(middle)
            if one is None:
                return
            yield one
            if not one.passed:
                low = middle
                continue
            passed, before, reward = middle, reward, one.value.J[0]
            if abs(reward - before) <= CHANGE * abs(reward):
                return


class _Plans:
    """Plans on the posterior mean model, pessimistic, near the data if asked."""

    def __init__(self, posterior: Posterior, start: Value, pessimism: float, psi: float | None) -> None:
        self.posterior, log = posterior, posterior.log
        n_states, n_actions, pairs = log.n_states, log.n_actions, log.pairs
        sd = np.sqrt(posterior.variances(start.V))
        visited = posterior.gains - pessimism * sd
        visited = visited + posterior.gamma * np.outer(start.V @ posterior.base, posterior.away)
        self._visited = visited
        gains = np.repeat(posterior.worst[:, None], n_states * n_actions, axis=1)
        gains[:, pairs] = visited
        self.scale = np.maximum(abs(gains).max(axis=1), 1e-300)
        r, *u = (gains / self.scale[:, None]).reshape(-1, n_states, n_actions)
        unseen = np.setdiff1d(np.arange(n_states * n_actions), pairs)
        moves = sp.csr_array(sp.diags_array(1 - posterior.away) @ posterior.moves).tocoo()
        rows = np.concatenate([pairs[moves.row], unseen])
        columns = np.concatenate([moves.col, unseen // n_actions])
        entries = np.concatenate([moves.data, np.ones(len(unseen))])
        P = sp.csr_array((entries, (rows, columns)), shape=(n_states * n_actions, n_states))
        ends = np.maximum(1 - P.sum(axis=1), 0.0).reshape(n_states, n_actions)
        self.model = CMDP(P, r, np.reshape(u, (-1, n_states, n_actions)), posterior.gamma, posterior.rho0, ends)
        self.thresholds, self.psi = posterior.thresholds, psi
        self._planner = Planner(self.model, PLAN_GAP, allowed=posterior.allowed()) if psi is None else None

    def best(self, thresholds: Array) -> tuple[bool, Array]:
        """Return the best policy with these totals, or the most careful and False if there is none."""
        kappa = thresholds / self.scale[1:]
        if self._planner is not None:
            plan = self._planner.plan(kappa)
            return (True, plan.policy) if np.isfinite(plan.reward) else (False, self.most_careful())
        closed, unit = self.model.closed(), 1 - self.model.gamma
        caps = programs.region(closed, self.psi, self.posterior.log.frequencies)
        found = programs.propose(programs.largest_reward(closed, unit * kappa, caps))
        if found is None:
            return False, self.most_careful()
        return True, policies.from_occupancy(found.q[: self.model.r.size].reshape(self.model.r.shape))

    def most_careful(self) -> Array:
        """Return the policy whose least margin, in units of the gains, is largest."""
        if self._planner is None:
            return self.posterior.behaviour()
        return self._planner.most_careful(self.thresholds / self.scale[1:]).policy

    def gains(self, policy: Array, value: Value) -> Array:
        """Return a policy's totals of the pessimistic gains, given its values on the posterior mean."""
        return self.scale[1:] * self.model.evaluate(policy).utilities
