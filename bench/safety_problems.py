"""The problems of the safety benchmark and the logs that are drawn from them; `bench/safety.py` runs the methods.

A `Problem` is a known model with rewards, costs and limits, the way its logs are made, and the exact answers by which a
learned policy is judged. Methods see its logs, the discount and, for independent transitions, the initial distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import CMDP, Dataset, instances

Array = NDArray[np.float64]

#: A limit counts as broken from this relative excess on: the exact evaluation and linear programs are not exact.
BROKEN = 1e-6
#: Problems are kept where the costs of the optimum are this close to their limits, relative to them.
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
    prize : float
        Reward that the end of an episode adds.
    noise : {"none", "bernoulli", "exponential"}
        How the logged costs scatter around their means; with either of the last two rewards do as well.
    per_pair : bool
        Whether the size of a log counts records for each pair of the model.
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

    def binds(self) -> bool:
        """Whether there is a policy that keeps every limit with room, and the best safe one uses every limit up."""
        return self.least < 0.99 and bool((self.figures(self.optimal_policy)[1] >= 1 - BINDS).all())

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
        r, c = self.observed(s, a, terminated, rng)
        sizes = {"n_states": len(self.P), "n_actions": self.r.shape[1]}
        rule = {"limits": self.limits, "gamma": self.gamma, "normalised": self.normalised}
        flags = {"terminated": terminated if terminated.any() else None, "truncated": truncated}
        scale = max(self.reward_scale, float(abs(r).max()))
        return Dataset.from_costs(s, a, s_next, r, c, reward_scale=scale, **rule, **sizes, **flags)

    def observed(self, s: NDArray, a: NDArray, terminated: NDArray, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the logged rewards (N,) and costs (N, I) of pairs."""
        r, c = self.r[s, a] + self.prize * terminated, self.c[:, s, a].T
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


def toy(rng: np.random.Generator, *, infeasible: bool = False) -> Problem:
    """Draw a toy problem: S = 10, A = 5, gamma = 0.8, start in state 0, limit 0.1 on the normalised cost.

    Each pair has 2 successors with Dirichlet(1, 1) weights; rewards are uniform on [0, 1], costs Beta(0.2, 0.2), with
    one free action a state. Problems are kept where the limit binds at the optimum. Data: draws from the occupancy of
    half the optimal policy, half the uniform one. With `infeasible` no action is free, since the least achievable cost
    would be zero otherwise; the limit is then 0.8 times the least, and the data is that of the problem before. Problems
    are kept where that least cost is at least 0.01, not so small that no log tells it from zero.
    """
    n_states, n_actions = 10, 5
    while True:
        P = random_transitions(n_states, n_actions, 2, rng)
        c = rng.beta(0.2, 0.2, (1, n_states, n_actions))
        if not infeasible:
            c[0, np.arange(n_states), rng.integers(0, n_actions, n_states)] = 0.0
        rho0, limits = np.eye(1, n_states)[0], np.array([0.1])
        problem = Problem("toy", P, rng.random((n_states, n_actions)), c, 0.8, rho0, limits)
        if problem.binds() and (problem.least >= 0.1 or not infeasible):
            problem = replace(problem, mu=occupancy(problem, mixed(problem.optimal_policy, 0.5)))
            return problem.infeasible() if infeasible else problem


def grid(rng: np.random.Generator, rho: float) -> Problem:
    """Draw a grid of 10 x 10 cells from one corner to the opposite one, where the episode ends; limit 2 on the cost.

    Every cell slips with its own probability, uniform on [0, 0.2]: the move goes in a random direction. A move off the
    border stays. A step costs 1 in a pit, of which 30% of the cells are; reward -1 a step and 1000 at the goal. gamma =
    0.99. Problems are kept where the limit binds at the optimum. Episodes of at most 200 steps, by `rho` times the
    optimal policy plus the rest times the uniform one.
    """
    n_rows, n_states = 10, 100
    row, column = np.divmod(np.arange(n_states), n_rows)
    reached = [
        np.clip(row + down, 0, n_rows - 1) * n_rows + np.clip(column + right, 0, n_rows - 1)
        for down, right in ((-1, 0), (0, 1), (1, 0), (0, -1))
    ]
    while True:
        slip = rng.uniform(0, 0.2, n_states)
        pits = rng.random(n_states) < 0.3
        pits[[0, -1]] = False
        P = np.zeros((n_states, 4, n_states))
        for action, moved in enumerate(reached):
            P[np.arange(n_states), action, moved] += 1 - slip
            for other in range(4):
                P[np.arange(n_states), other, moved] += slip / 4
        ends = P[:, :, -1].copy()
        P[:, :, -1] = 0.0
        ends[-1], P[-1] = 0.0, np.eye(1, n_states, n_states - 1)[0]  # no one is ever in the goal
        problem = Problem(
            kind=f"rho={rho:g}",
            P=P,
            r=np.full((n_states, 4), -1.0),
            c=np.tile(pits[None, :, None].astype(float), (1, 1, 4)),
            gamma=0.99,
            rho0=np.eye(1, n_states)[0],
            limits=np.array([2.0]),
            normalised=False,
            ends=ends,
            prize=1000.0,
        )
        if problem.binds():
            return replace(problem, behaviour=mixed(problem.optimal_policy, rho))


def multi(rng: np.random.Generator, *, infeasible: bool = False) -> Problem:
    """Draw a random sparse problem with S = 50, A = 5, gamma = 0.9, start in state 0 and five limits that bind.

    Each pair has 3 successors; rewards are uniform on [0, 1], costs Beta(0.2, 0.2), with an action a state that is free
    of all costs. Data and `infeasible`: as of `toy`.
    """
    while True:
        c = rng.beta(0.2, 0.2, (5, 50, 5))
        if not infeasible:
            c[:, np.arange(50), rng.integers(0, 5, 50)] = 0.0
        P, r, rho0 = random_transitions(50, 5, 3, rng), rng.random((50, 5)), np.eye(1, 50)[0]
        problem = with_limits(Problem("multi", P, r, c, 0.9, rho0, np.ones(5)), rng)
        if problem.binds():
            problem = replace(problem, mu=occupancy(problem, mixed(problem.optimal_policy, 0.5)))
            return problem.infeasible() if infeasible else problem


def with_limits(problem: Problem, rng: np.random.Generator) -> Problem:
    """Return the problem with limits that tend to bind together.

    Policies that are best for prices of the costs lie on the frontier of what can be reached. The limits are the mean
    costs of six of them, for prices that scatter around a common draw: slightly inside of the frontier, and near the
    point where the price of every cost is positive.
    """
    n_costs = len(problem.c)
    size = np.ptp(problem.mean_r) / np.ptp(problem.c, axis=(1, 2))
    prices = size * rng.uniform(0.3, 2.0, n_costs) / n_costs
    found = []
    for _ in range(6):
        r = problem.mean_r - np.einsum("i,isa->sa", prices * rng.lognormal(0, 0.3, n_costs), problem.c)
        r = r / abs(r).max()
        best = CMDP(problem.P, r, problem.c[:0], problem.gamma, problem.rho0, problem.ends).solve()
        costs = np.einsum("isa,sa->i", problem.c, best.occupancy)
        found.append(costs * (1 - problem.gamma) if problem.normalised else costs)
    return replace(problem, limits=np.maximum(np.mean(found, axis=0), 1e-6 * problem.c.max(axis=(1, 2))))


def other(rng: np.random.Generator, index: int) -> Problem:
    """Draw one of ten further kinds of problem, none of which any method was tuned on."""
    make = OTHERS[index % len(OTHERS)]
    while True:
        problem = make(rng)
        if problem.binds():
            problem = replace(problem, kind=make.__name__.strip("_"), per_pair=True)
            if problem.mu is None and problem.behaviour is None:
                problem = replace(problem, mu=occupancy(problem, mixed(problem.optimal_policy, 0.5)))
            return problem


def _random(rng: np.random.Generator, S: int, A: int, I: int, branching: int, gamma: float, **options: Any) -> Problem:
    """A random sparse problem with uniform rewards and costs, and limits that bind."""
    P, rho0 = random_transitions(S, A, branching, rng), rng.dirichlet(np.ones(S))
    problem = Problem("", P, rng.random((S, A)), rng.random((I, S, A)), gamma, rho0, np.ones(I))
    return with_limits(replace(problem, **options), rng)


def _tiny(rng: np.random.Generator) -> Problem:
    """Four states, two actions, every state follows every other, gamma = 0.5."""
    return _random(rng, 4, 2, 1, 4, 0.5)


def _wide(rng: np.random.Generator) -> Problem:
    """Thirty states, eight actions, two constraints."""
    return _random(rng, 30, 8, 2, 4, 0.9)


def _of_instance(cmdp: CMDP, **options: Any) -> Problem:
    """A problem of `dpdl.instances` whose hazards cost one; the limit is halfway from the least to the greedy cost."""
    P = cmdp.P.toarray().reshape(*cmdp.r.shape, -1)
    hazard = np.where(cmdp.u < 0, 1.0, 0.0)
    problem = Problem("", P, cmdp.r, hazard, cmdp.gamma, cmdp.rho0, np.ones(1), **options)
    greedy = problem.figures(cmdp.unconstrained().solve().policy)[1]
    return replace(problem, limits=np.maximum((problem.least + greedy) / 2, 1e-6))


def _ring(rng: np.random.Generator) -> Problem:
    """A ring of 40 states that mixes slowly, gamma = 0.95; starts anywhere."""
    return _of_instance(instances.ring(40, gamma=0.95, rng=rng))


def _lake(rng: np.random.Generator) -> Problem:
    """A slippery lake of 5 x 5 cells, gamma = 0.97, one start, in episodes of 100 steps that do not end."""
    return _of_instance(instances.lake(5, gamma=0.97, rng=rng), length=100, behaviour=np.full((25, 4), 0.25))


def _ending(rng: np.random.Generator) -> Problem:
    """Twenty states, episodes that end with a prize, a limit on the total cost, gamma = 0.95; random behaviour."""
    ends = rng.uniform(0, 0.2, (20, 3))
    problem = _random(rng, 20, 3, 1, 3, 0.95, normalised=False)
    problem = replace(problem, P=problem.P * (1 - ends)[:, :, None], ends=ends, prize=5.0)
    return with_limits(replace(problem, behaviour=rng.dirichlet(np.ones(3), 20), length=100), rng)


def _careless(rng: np.random.Generator) -> Problem:
    """Fifteen states, short episodes logged by 80% of the policy that is best without limits."""
    problem = _random(rng, 15, 4, 1, 3, 0.9, length=30)
    best = problem.cmdp.unconstrained().solve().policy
    return replace(problem, behaviour=mixed(best, 0.8))


def _skewed(rng: np.random.Generator) -> Problem:
    """Ten states; some pairs are logged a hundred times as often as others."""
    shares = rng.gamma(0.3, size=(10, 4)) + 0.01
    return _random(rng, 10, 4, 1, 3, 0.8, mu=shares / shares.sum())


def _sizes(rng: np.random.Generator) -> Problem:
    """Twelve states, three costs of sizes 1, 100 and 0.01, rewards of size 50."""
    problem = _random(rng, 12, 4, 3, 3, 0.85)
    scale = np.array([1.0, 100.0, 0.01])
    return replace(problem, r=50 * problem.r, c=problem.c * scale[:, None, None], limits=problem.limits * scale)


def _noisy(rng: np.random.Generator) -> Problem:
    """Ten states; costs are exponential with the stated means, rewards scatter by half their size."""
    return _random(rng, 10, 4, 1, 3, 0.85, noise="exponential")


def _rare(rng: np.random.Generator) -> Problem:
    """Fifteen states, gamma = 0.97, negative rewards, costs that are rarely incurred and then large."""
    problem = _random(rng, 15, 3, 1, 3, 0.97, noise="bernoulli")
    c = 0.1 * problem.c**2
    c[0, np.argmax(c[0]) // 3, np.argmax(c[0]) % 3] = 0.3
    return with_limits(replace(problem, r=problem.r - 1, c=c), rng)


OTHERS = (_tiny, _wide, _ring, _lake, _ending, _careless, _skewed, _sizes, _noisy, _rare)


@dataclass(frozen=True)
class Protocol:
    """How problems of a protocol are drawn, and how much data there is."""

    make: Callable[[np.random.Generator, int, bool], Problem]  # random numbers, index, whether infeasible
    sizes: tuple[int, ...]
    problems: int = 20
    repeats: int = 20


#: Shares of the optimal policy in the behaviour of `grid`, which take turns.
RHOS = (0.1, 0.4, 0.7, 0.9)


def _grid(rng: np.random.Generator, index: int, infeasible: bool) -> Problem:
    problem = grid(rng, RHOS[index % len(RHOS)])
    return problem.infeasible() if infeasible else problem


PROTOCOLS = {
    "toy": Protocol(lambda rng, k, infeasible: toy(rng, infeasible=infeasible), sizes=(50, 200, 1000, 5000)),
    "grid": Protocol(_grid, sizes=(10, 50, 200, 1000, 2000)),
    "multi": Protocol(lambda rng, k, infeasible: multi(rng, infeasible=infeasible), sizes=(500, 2000, 10_000, 50_000)),
    "others": Protocol(lambda rng, k, infeasible: other(rng, k), sizes=(3, 15, 75), problems=50, repeats=8),
}
