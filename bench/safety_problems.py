"""The problems of the safety benchmark and the logs that are drawn from them; `bench/safety.py` runs the methods.

A `Problem` is a known model with rewards, costs and limits, the way its logs are made, and the exact answers by which a
learned policy is judged. Methods see its logs, the discount and, for independent transitions, the initial distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpdl import CMDP, Dataset

Array = NDArray[np.float64]

#: A limit counts as broken from this relative excess on: the exact evaluation and linear programs are not exact.
BROKEN = 1e-6
#: Toy problems are kept where the optimum is this close to its limit.
BINDS = 1e-4


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, its limits, and how it is logged.

    Attributes
    ----------
    kind : str
        Problems of one kind are also counted together.
    P, r, c : arrays, shapes (S, A, S), (S, A), (I, S, A)
        Transitions, expected rewards, expected costs.
    gamma, rho0, limits : float, array (S,), array (I,)
    normalised : bool
        Whether the limits bound (1-gamma) times the discounted total of the costs, or that total itself.
    mu : array, shape (S, A), or None
        Distribution of the pairs of a log of independent transitions.
    behaviour : array, shape (S, A), or None
        Policy that makes the episodes of a log, instead.
    length : int
        Steps after which an episode is cut off.
    ends : array, shape (S, A), or None
        Probability that the episode ends after a pair.
    """

    kind: str
    P: Array
    r: Array
    c: Array
    gamma: float
    rho0: Array
    limits: Array
    normalised: bool = True
    mu: Array | None = None
    behaviour: Array | None = None
    length: int = 200
    ends: Array | None = None

    @cached_property
    def cmdp(self) -> CMDP:
        """The model with utilities (rate - c) in [-1, 1]; where an episode ends, the rate of all that would follow."""
        rate = (self.limits if self.normalised else self.limits * (1 - self.gamma))[:, None, None]
        u = rate - self.c
        if self.ends is not None:
            u = u + self.ends * rate * self.gamma / (1 - self.gamma)
        u = u / abs(u).max(axis=(1, 2), keepdims=True)
        return CMDP(self.P, self.r / self.reward_scale, u, self.gamma, self.rho0, self.ends)

    @property
    def reward_scale(self) -> float:
        return float(abs(self.r).max())

    @cached_property
    def optimal_policy(self) -> Array:
        """The best safe policy of the true model."""
        best = self.cmdp.solve()
        if best.status != "optimal":
            raise ValueError(f"the problem ({self.kind}) is {best.status}")
        return best.policy

    def figures(self, policy: Array) -> tuple[float, Array]:
        """Return the true discounted reward, and the true costs over their limits, of a policy."""
        occupancy = self.cmdp.evaluate(policy).occupancy
        costs = np.einsum("isa,sa->i", self.c, occupancy)
        return float((self.r * occupancy).sum()), costs * (1 - self.gamma if self.normalised else 1.0) / self.limits

    @cached_property
    def reward_range(self) -> tuple[float, float]:
        """Rewards that count as 0 and 1.

        One is the best safe policy. Zero is no reward or, if rewards may be negative, the worst policy of all.
        """
        low = 0.0
        if (self.r < 0).any():
            worst = CMDP(self.P, -self.r / self.reward_scale, self.c[:0], self.gamma, self.rho0, self.ends).solve()
            low = -worst.reward * self.reward_scale
        return low, self.figures(self.optimal_policy)[0]

    @cached_property
    def least(self) -> float:
        """The least achievable largest ratio of a cost to its limit."""
        scaled = self.c / self.limits[:, None, None] / (1.0 if self.normalised else 1 - self.gamma)
        largest = float(abs(scaled).max())
        # With episodes that end, the occupancy sums to less: what is missing costs nothing, as the utility 0 does.
        u = -scaled / largest
        return -largest * CMDP(self.P, self.r / self.reward_scale, u, self.gamma, self.rho0, self.ends).slater()

    def infeasible(self, share: float = 0.8) -> Problem:
        """Return the problem whose limits are `share` times what the most careful policy reaches."""
        if self.least <= 0:
            raise ValueError(f"the problem ({self.kind}) has a policy without cost")
        return replace(self, limits=self.limits * (share * self.least))

    @property
    def known_start(self) -> Array | None:
        """The initial distribution if methods are told; the starts of the logged episodes tell otherwise."""
        return None if self.mu is None else self.rho0

    def log(self, n: int, rng: np.random.Generator) -> Dataset:
        """Draw a log of `n` independent transitions, or of `n` episodes."""
        if self.mu is not None:
            drawn = self.cmdp.sample(n, self.mu, rng)
            s, a, s_next = drawn.s, drawn.a, drawn.s_next
            flags = {"terminated": None if self.ends is None else drawn.terminated}
        else:
            s, a, s_next, terminated, truncated = self._episodes(n, rng)
            flags = {"terminated": terminated if terminated.any() else None, "truncated": truncated}
        r, c = self.observed(s, a, rng)
        sizes = {"n_states": len(self.P), "n_actions": self.r.shape[1]}
        rule = {"limits": self.limits, "gamma": self.gamma, "normalised": self.normalised}
        scale = max(self.reward_scale, float(abs(r).max()))
        return Dataset.from_costs(s, a, s_next, r, c, reward_scale=scale, **rule, **sizes, **flags)

    def observed(self, s: NDArray, a: NDArray, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the logged rewards (N,) and costs (N, I): here their means."""
        return self.r[s, a], self.c[:, s, a].T

    def _episodes(self, n: int, rng: np.random.Generator) -> tuple[NDArray, ...]:
        """Follow the behaviour policy in `n` episodes at once; rows are sorted by episode, then by time."""
        n_states, n_actions = self.r.shape
        ends = np.zeros(self.r.shape) if self.ends is None else self.ends
        after = np.concatenate([self.P, ends[:, :, None]], axis=2).reshape(-1, n_states + 1)
        states = _draw(np.tile(self.rho0, (1, 1)), np.zeros(n, dtype=int), rng)
        running, columns = np.arange(n), []
        for time in range(self.length):
            s = states[running]
            a = _draw(self.behaviour, s, rng)
            reached = _draw(after, s * n_actions + a, rng)
            ended = reached == n_states
            last = np.full(len(s), time == self.length - 1) & ~ended
            columns.append((running, s, a, np.where(ended, 0, reached), ended, last))
            states[running] = reached
            running = running[~ended]
            if len(running) == 0:
                break
        episode, *rows = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(episode, kind="stable")
        return tuple(row[order] for row in rows)


def _draw(distributions: Array, rows: NDArray, rng: np.random.Generator) -> NDArray:
    """Draw one index from distributions[row] for each of the rows."""
    cdf = np.cumsum(distributions, axis=1)
    cdf /= cdf[:, -1:]
    # Row k takes [k, k + 1), so that one search serves all rows; a uniform number below one stays in its row.
    found = np.searchsorted((cdf + np.arange(len(cdf))[:, None]).ravel(), rows + rng.random(len(rows)), side="right")
    return np.minimum(found - rows * cdf.shape[1], cdf.shape[1] - 1)


def occupancy(problem: Problem, policy: Array) -> Array:
    """Return the normalised discounted occupancy of a policy."""
    found = problem.cmdp.evaluate(policy).occupancy
    return found / found.sum()


def mixed(policy: Array, share: float) -> Array:
    """Return `share` times a policy plus the rest times the uniform one."""
    return share * policy + (1 - share) / policy.shape[1]


def random_transitions(n_states: int, n_actions: int, branching: int, rng: np.random.Generator) -> Array:
    """Return (S, A, S) rows with `branching` distinct successors and probabilities uniform on the simplex."""
    P = np.zeros((n_states * n_actions, n_states))
    successors = rng.permuted(np.tile(np.arange(n_states), (len(P), 1)), axis=1)[:, :branching]
    np.put_along_axis(P, successors, rng.dirichlet(np.ones(branching), len(P)), axis=1)
    return P.reshape(n_states, n_actions, n_states)


def toy(rng: np.random.Generator, *, infeasible: bool = False) -> Problem:
    """Draw a toy problem: S = 10, A = 5, gamma = 0.8, start in state 0, limit 0.1 on the normalised cost.

    Each pair has 2 successors with Dirichlet(1, 1) weights; rewards are uniform on [0, 1], costs Beta(0.2, 0.2), with
    one free action a state. Problems are kept where the limit binds at the optimum. Data: draws from the occupancy of
    half the optimal policy, half the uniform one. With `infeasible` no action is free, since the least achievable cost
    would be zero otherwise; the limit is then 0.8 times the least, and the data is that of the problem before.
    """
    n_states, n_actions = 10, 5
    while True:
        P = random_transitions(n_states, n_actions, 2, rng)
        c = rng.beta(0.2, 0.2, (1, n_states, n_actions))
        if not infeasible:
            c[0, np.arange(n_states), rng.integers(0, n_actions, n_states)] = 0.0
        rho0, limits = np.eye(1, n_states)[0], np.array([0.1])
        problem = Problem("toy", P, rng.random((n_states, n_actions)), c, 0.8, rho0, limits)
        if problem.least < 1 and abs(problem.figures(problem.optimal_policy)[1][0] - 1) * 0.1 <= BINDS:
            problem = replace(problem, mu=occupancy(problem, mixed(problem.optimal_policy, 0.5)))
            return problem.infeasible() if infeasible else problem


@dataclass(frozen=True)
class Protocol:
    """How problems of a protocol are drawn, and how much data there is."""

    make: Callable[[np.random.Generator, int, bool], Problem]  # random numbers, index, whether infeasible
    sizes: tuple[int, ...]
    problems: int = 20
    repeats: int = 20


def _toy(rng: np.random.Generator, index: int, infeasible: bool) -> Problem:
    return toy(rng, infeasible=infeasible)


PROTOCOLS = {
    "toy": Protocol(_toy, sizes=(50, 200, 1000, 5000)),
}
