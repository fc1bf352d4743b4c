"""What a problem of the safety benchmark is, and the logs that are drawn from it.

A `Problem` is a known model with rewards, costs and limits, the way its logs are made, and the exact answers by which a
learned policy is judged. Methods see its logs, the discount and, for independent transitions, the initial distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpdl import CMDP, Dataset
from dpdl.question import pose

Array = NDArray[np.float64]

#: A limit counts as broken from this relative excess on: the exact evaluation and linear programs are not exact.
BROKEN = 1e-6
#: Problems are kept where the costs of the optimum are this close to their limits, relative to them.
BINDS = 1e-4
#: A policy keeps all limits with this room: its costs are at most this share of them.
ROOM = 0.95
#: Limits over the costs of the best policy without limits: none is below LOW, so that no cost is all but forbidden, and
#: one of them is at most HIGH, so that they take something away from that policy.
LOW, HIGH = 0.03, 0.9


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
    prize : float
        Reward that the end of an episode adds.
    noise : {"none", "bernoulli", "exponential"}
        How the logged costs scatter around their means; with either of the last two rewards do as well.
    per_pair : bool
        Whether the size of a log counts records for each pair of the model.
    arrival : array, shape (I, S), or None
        Logged costs by the state reached, of which `c` is the expectation; only without noise and ends.
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
    prize: float = 0.0
    noise: str = "none"
    per_pair: bool = False
    arrival: Array | None = None

    @cached_property
    def mean_r(self) -> Array:
        """Expected rewards, prizes included."""
        return self.r if self.ends is None else self.r + self.prize * self.ends

    @cached_property
    def cmdp(self) -> CMDP:
        """The model with utilities (rate - c) in [-1, 1]; where an episode ends, the rate of all that would follow."""
        rate = (self.limits if self.normalised else self.limits * (1 - self.gamma))[:, None, None]
        u = rate - self.c
        if self.ends is not None:
            u = u + self.ends * rate * self.gamma / (1 - self.gamma)
        u = u / abs(u).max(axis=(1, 2), keepdims=True)
        return CMDP(self.P, self.mean_r / self.reward_scale, u, self.gamma, self.rho0, self.ends)

    @property
    def reward_scale(self) -> float:
        return float(abs(self.mean_r).max())

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
        return float((self.mean_r * occupancy).sum()), costs * (
            1 - self.gamma if self.normalised else 1.0
        ) / self.limits

    @cached_property
    def reward_range(self) -> tuple[float, float]:
        """Rewards that count as 0 and 1.

        One is the best safe policy. Zero is no reward or, if rewards may be negative, the worst policy of all.
        """
        low = 0.0
        if (self.mean_r < 0).any():
            worst = CMDP(self.P, -self.mean_r / self.reward_scale, self.c[:0], self.gamma, self.rho0, self.ends).solve()
            low = -worst.reward * self.reward_scale
        return low, self.figures(self.optimal_policy)[0]

    @cached_property
    def least(self) -> float:
        """The least achievable largest ratio of a cost to its limit."""
        scaled = self.c / self.limits[:, None, None] / (1.0 if self.normalised else 1 - self.gamma)
        largest = float(abs(scaled).max())
        # With episodes that end, the occupancy sums to less: what is missing costs nothing, as the utility 0 does.
        u = -scaled / largest
        return -largest * CMDP(self.P, 0 * self.r, u, self.gamma, self.rho0, self.ends).slater()

    @cached_property
    def slater(self) -> float:
        """Slater's constant of the true model."""
        return self.cmdp.slater()

    @cached_property
    def concentrability(self) -> float:
        """C* of the true model for the distribution of the logged pairs; of episodes, for the discounted occupancy."""
        return self.cmdp.concentrability(occupancy(self, self.behaviour) if self.mu is None else self.mu)

    def binds(self, at_least: int | None = None) -> bool:
        """Whether there is a policy that keeps every limit with room, and the best safe one uses every limit up.

        With `at_least`, so many limits have to be used up, or all if there are fewer.
        """
        n_limits = len(self.limits)
        needed = n_limits if at_least is None else min(at_least, n_limits)
        if self.least >= 0.99 or self.cmdp.solve().status != "optimal":
            return False
        return int((self.figures(self.optimal_policy)[1] >= 1 - BINDS).sum()) >= needed

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
        """Draw a log of `n` independent transitions, or of `n` episodes, or of about `n` records for each pair."""
        if self.per_pair:
            n = int(np.ceil(n * self.r.size / (1 if self.mu is not None else self.mean_length)))
        if self.mu is not None:
            drawn = self.cmdp.sample(n, self.mu, rng)
            s, a, s_next, terminated, truncated = drawn.s, drawn.a, drawn.s_next, drawn.terminated, None
        else:
            s, a, s_next, terminated, truncated = self._episodes(n, rng)
        r, c = self.observed(s, a, s_next, terminated, rng)
        sizes = {"n_states": len(self.P), "n_actions": self.r.shape[1]}
        flags = {"terminated": terminated if terminated.any() else None, "truncated": truncated}
        costs = {f"cost {i}": column for i, column in enumerate(c.T)}
        limits = dict(zip(costs, self.limits.tolist(), strict=True))
        log = Dataset(s, a, s_next, r, costs=costs, **sizes, **flags)
        return pose(log, self.gamma, limits, "average" if self.normalised else "total")

    def observed(
        self, s: NDArray, a: NDArray, s_next: NDArray, terminated: NDArray, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Return the logged rewards (N,) and costs (N, I) of transitions."""
        r = self.r[s, a] + self.prize * terminated
        c = (self.c[:, s, a] if self.arrival is None else self.arrival[:, s_next]).T
        if self.noise == "none":
            return r, c
        r = r + self.reward_scale * rng.uniform(-0.5, 0.5, len(r))
        if self.noise == "exponential":
            return r, c * rng.exponential(size=c.shape)
        most = self.c.max(axis=(1, 2))
        return r, most * (rng.random(c.shape) < c / most)

    @cached_property
    def mean_length(self) -> float:
        """Mean length of the logged episodes."""
        return len(self._episodes(1000, np.random.default_rng(0))[0]) / 1000

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


def with_limits(problem: Problem, rng: np.random.Generator, strength: float = 1.0) -> Problem:
    """Return the problem with limits that tend to bind together.

    Policies that are best for prices of the costs lie on the frontier of what can be reached. The limits are the mean
    costs of six of them, for prices that scatter around a common draw: slightly inside of the frontier, and near the
    point where the price of every cost is positive. A smaller `strength` means lower prices and looser limits.
    """
    n_costs = len(problem.c)
    size = np.ptp(problem.mean_r) / np.ptp(problem.c, axis=(1, 2))
    prices = strength * size * rng.uniform(0.3, 2.0, n_costs) / n_costs
    found = []
    for _ in range(6):
        r = problem.mean_r - np.einsum("i,isa->sa", prices * rng.lognormal(0, 0.3, n_costs), problem.c)
        r = r / abs(r).max()
        best = CMDP(problem.P, r, problem.c[:0], problem.gamma, problem.rho0, problem.ends).solve()
        costs = np.einsum("isa,sa->i", problem.c, best.occupancy)
        found.append(costs * (1 - problem.gamma) if problem.normalised else costs)
    return replace(problem, limits=np.maximum(np.mean(found, axis=0), 1e-6 * problem.c.max(axis=(1, 2))))


def draw_binding(
    kinds: Sequence[Callable[[np.random.Generator], Problem]], rng: np.random.Generator, index: int
) -> Problem:
    """Draw a problem of the kind `index`, of which the limit binds, or at least two where there are several."""
    make = kinds[index % len(kinds)]
    while True:
        problem = make(rng)
        if problem.least < ROOM and problem.binds(at_least=2):
            costs = without_limits(problem)[1]
            if (problem.limits >= LOW * costs).all() and (problem.limits <= HIGH * costs).any():
                return replace(problem, kind=make.__name__.strip("_"), per_pair=True)


def without_limits(problem: Problem) -> tuple[Array, Array]:
    """Return the policy that is best without limits, and its costs in the units of the limits."""
    policy = problem.cmdp.unconstrained().solve().policy
    return policy, problem.figures(policy)[1] * problem.limits


def with_one_limit(problem: Problem, rng: np.random.Generator) -> Problem:
    """Return the problem with a limit between the least cost and that of the best policy without limits."""
    most, share = without_limits(problem)[1], rng.uniform(0.2, 0.7)
    least = problem.least * problem.limits
    return replace(problem, limits=least + share * (most - least))


def transitions(S: int, A: int, outcomes: Callable[[int, int], Iterable[tuple[float, int]]]) -> Array:
    """Return (S, A, S) rows from the weights and next states of every pair; weights are divided by their sum."""
    P = np.zeros((S, A, S))
    for s in range(S):
        for a in range(A):
            for weight, reached in outcomes(s, a):
                P[s, a, reached] += weight
    return P / P.sum(axis=2, keepdims=True)


def always(actions: Array, A: int) -> Array:
    """Return the policy that takes actions[s] in state s."""
    return np.eye(A)[actions.astype(int)]
