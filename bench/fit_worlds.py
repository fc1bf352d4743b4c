"""Worlds for `bench/fit.py`: logs of decision processes, and logs that no decision process with their states made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hard_instances
import kinds
import safety_problems as problems
from dpdl import CMDP, Dataset, instances
from dpdl.gym import Table, initial_distribution
from safety_model import Array, Problem, mixed, random_transitions
from safety_worlds import World as LimitsBroken

GAMMA = 0.95
#: Steps of episodes on problems whose logs are independent rows otherwise.
STEPS = 40


# Logs of decision processes, on which every alarm is false. Functions of an index and a size return a log, its discount
# and a policy in question.


def collection(protocol: str) -> Callable[[int, float, np.random.Generator], tuple[Dataset, float, Array]]:
    """Return what draws a log of a collection of `bench/safety.py`, in episodes, and a random policy."""

    def draw(index: int, size: float, rng: np.random.Generator) -> tuple[Dataset, float, Array]:
        problem = _problem(protocol, index % min(50, problems.PROTOCOLS[protocol].problems))
        n = size * problem.r.size / problem.mean_length if problem.per_pair else size
        s, a, s_next, terminated, truncated = problem._episodes(max(8, int(np.ceil(n))), rng)
        r, c = problem.observed(s, a, s_next, terminated, rng)
        columns = (s, a, s_next, r, c.T, terminated, truncated)
        return (
            _log(columns, *problem.r.shape),
            problem.gamma,
            rng.dirichlet(np.ones(problem.r.shape[1]), len(problem.r)),
        )

    return draw


@cache
def _problem(protocol: str, index: int) -> Problem:
    problem = problems.PROTOCOLS[protocol].make(np.random.default_rng([0, index]), index, False)
    if problem.behaviour is not None:
        return problem
    behaviour = np.full(problem.r.shape, 1 / problem.r.shape[1])
    if not isinstance(problem, LimitsBroken):  # in those no policy keeps the limit
        behaviour = mixed(problem.optimal_policy, 0.5)
    return replace(problem, mu=None, behaviour=behaviour, length=STEPS)


def _log(columns: tuple[Any, ...], n_states: int, n_actions: int) -> Dataset:
    s, a, s_next, r, costs, terminated, truncated = columns
    named = {f"cost {i}": column for i, column in enumerate(costs)}
    sizes = {"n_states": n_states, "n_actions": n_actions}
    return Dataset(s, a, s_next, r, costs=named, terminated=terminated, truncated=truncated, **sizes)


def table(
    name: str, cost: Callable[..., Any], **options: Any
) -> Callable[[int, float, np.random.Generator], tuple[Dataset, float, Array]]:
    """Return what draws `size` episodes of a Gymnasium table by a random policy that has favourite actions."""

    def draw(index: int, size: float, rng: np.random.Generator) -> tuple[Dataset, float, Array]:
        found, rho0 = _table(name, cost, tuple(options.items()))
        behaviour, other = rng.dirichlet(np.ones(found.n_actions), (2, found.n_states))
        return _log(_follow(found, rho0, behaviour, int(size), 100, rng), *behaviour.shape), 0.97, other

    return draw


@cache
def _table(name: str, cost: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> tuple[Table, Array]:
    import gymnasium

    env = gymnasium.make(name, **dict(options))
    rho0 = initial_distribution(env)
    assert rho0 is not None
    return Table.of(env, cost), rho0


def _follow(found: Table, rho0: Array, policy: Array, n: int, length: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """Follow a policy in `n` episodes at once, by a table of outcomes."""
    state, alive, parts = draws(rho0[None])(np.zeros(n, int), rng), np.arange(n), []
    outcome, action = draws(found.p), draws(policy)
    for time in range(length):
        s = state[alive]
        a = action(s, rng)
        pair = s * found.n_actions + a
        k = outcome(pair, rng)
        ended = found.terminated[pair, k]
        cut = ~ended & (time == length - 1)
        parts.append((alive, s, a, found.s_next[pair, k], found.reward[pair, k], found.costs[pair, k], ended, cut))
        state[alive] = found.s_next[pair, k]
        alive = alive[~ended]
    return _in_order(parts)


def _in_order(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Join what happened step by step in many episodes; rows are sorted by episode, then by time."""
    episode, s, a, s_next, r, costs, ended, cut = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(episode, kind="stable")
    return s[order], a[order], s_next[order], r[order], costs[order].T, ended[order], cut[order]


Draw = Callable[[NDArray[np.int64], np.random.Generator], NDArray[np.int64]]


def draws(distributions: Array) -> Draw:
    """Return what draws an index from the distribution of each row that it is given."""
    size, cdf = distributions.shape[1], np.cumsum(distributions, axis=1)
    # Row k takes [k, k + 1), so that one search serves all rows.
    total = np.where(cdf[:, -1:] > 0, cdf[:, -1:], 1.0)  # zero in states where nothing happens
    places = (cdf / total + np.arange(len(cdf))[:, None]).ravel()

    def draw(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        found = np.searchsorted(places, rows + rng.random(len(rows)), side="right") - rows * size
        return np.minimum(found, size - 1)

    return draw


def instance(make: Callable[[np.random.Generator], CMDP]) -> Callable[..., tuple[Dataset, float, Array]]:
    """Return what draws `size` steps of an instance by a random policy: one trajectory, or episodes if they end."""
    made = cache(lambda index: make(np.random.default_rng([4, index])))

    def draw(index: int, size: float, rng: np.random.Generator) -> tuple[Dataset, float, Array]:
        cmdp = made(index % 20)
        behaviour, other = rng.dirichlet(np.ones(cmdp.n_actions), (2, cmdp.n_states))
        return cmdp.rollout(int(size), behaviour, rng=rng), cmdp.gamma, other

    return draw


def _fell(s: Any, a: Any, s_next: Any, reward: float, terminated: bool) -> float:
    return float(terminated and reward <= 0)


def _fined(s: Any, a: Any, s_next: Any, reward: float, terminated: bool) -> float:
    return float(reward <= -10)


@cache
def _world(n_states: int, index: int, rare: bool, slips: float = 0.0) -> World:
    return World(n_states, "none", np.random.default_rng([5, index]), rare=rare, slips=slips)


#: Name: what draws a log, and its sizes (episodes; rows a pair for others, further, fresh; steps for instances).
NULL: dict[str, tuple[Callable[..., tuple[Dataset, float, Array]], tuple[float, ...]]] = {
    "toy": (collection("toy"), (10, 50, 200)),
    "grid": (collection("grid"), (10, 100)),
    "multi": (collection("multi"), (10, 100)),
    "others": (collection("others"), (3, 15, 75)),
    "further": (collection("further"), (3, 15, 75)),
    "fresh": (collection("fresh"), (3, 15, 75)),
    "worlds": (collection("worlds"), (20, 100)),
    "FrozenLake": (table("FrozenLake-v1", _fell, map_name="8x8"), (20, 300)),
    "Taxi": (table("Taxi-v4", _fined, is_rainy=True), (20, 100)),
    "CliffWalking": (table("CliffWalking-v1", _fined, is_slippery=True), (20, 200)),
    "garnet": (instance(lambda rng: instances.garnet(30, 3, 1, rng=rng)), (300, 3000)),
    "lower bound": (instance(lambda rng: hard_instances.lower_bound(10, 5, 8, rng=rng).cmdp), (300, 3000)),
    "no Slater": (instance(lambda rng: hard_instances.no_slater(6, rng=rng).cmdp), (300, 3000)),
    "ring": (instance(lambda rng: kinds.ring(60, gamma=0.95, rng=rng)), (300, 3000)),
    "lake": (instance(lambda rng: kinds.lake(6, gamma=0.97, rng=rng)), (300, 3000)),
    "thin": (lambda index, size, rng: _world(400, index % 20, False).drawn(size, rng), (8, 20, 80)),
    "rare": (lambda index, size, rng: _world(20, index % 20, True).drawn(size, rng), (50, 200, 1000)),
    "slips": (lambda index, size, rng: _world(10, index % 20, False, 0.004).drawn(size, rng), (200, 1000, 4000)),
}


# Logs that no decision process with their states made.


class World:
    """A random sparse process whose log lacks something: see `FAMILIES`.

    Costs are Bernoulli. Episodes end after each step with probability 0.05, and are cut after 60 steps; of kind "clock"
    they end after 20 steps, and at no other time. With `slips`, every pair has one next state and no cost, but for that
    probability.
    """

    def __init__(
        self, n_states: int, kind: str, rng: np.random.Generator, *, rare: bool = False, slips: float = 0.0
    ) -> None:
        self.kind, self.S, self.A = kind, n_states, 3
        self.P = random_transitions(n_states, 3, 3, rng).reshape(-1, n_states)
        self.r, self.c = rng.random(3 * n_states), rng.beta(0.5, 0.5, 3 * n_states)
        if rare:
            self.c = np.where(rng.random(3 * n_states) < 0.3, 0.01, 0.0)
        if slips:
            usual = np.eye(n_states)[rng.integers(0, n_states, 3 * n_states)]
            self.P, self.c = (1 - slips) * usual + slips * self.P, np.full(3 * n_states, slips)
        self.behaviour = rng.dirichlet(np.ones(3), n_states)
        self.rho0 = rng.dirichlet(np.ones(n_states))
        self.length = 20 if kind == "clock" else 60
        self.gamma = GAMMA
        self.cells = np.arange(n_states) // 2 if kind == "lumped" else np.arange(n_states)

        self.types = (1.6, 0.4) if kind in ("type", "confounder") else (1.0,)
        self.ends = 0.0 if kind == "clock" else 0.05
        self.draws = draws(self.P), draws(self.rho0[None])

    def policies(self, policy: Array | None) -> list[Array]:
        """Return what a policy on the states of the log, or the one that makes logs, does in each type of episode."""
        if policy is not None:
            return [policy[self.cells]] * len(self.types)
        turned = self.behaviour[:, ::-1] if self.kind == "confounder" else self.behaviour
        return [self.behaviour, turned][: len(self.types)]

    def chance(self, factor: float) -> Array:
        """Return the probabilities of a cost at the pairs, in a type of episode."""
        return self.c if len(self.types) == 1 else np.minimum(0.6 * self.c * factor, 1)

    def follow(self, n: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """Follow the policy that makes logs, in `n` episodes."""
        after, first = self.draws
        actions = draws(np.vstack(self.policies(None)))
        chance = np.concatenate([self.chance(factor) for factor in self.types])
        state, alive, parts = first(np.zeros(n, int), rng), np.arange(n), []
        kinds = rng.integers(0, len(self.types), n)
        for time in range(self.length):
            s, kind = state[alive], kinds[alive]
            a = actions(kind * self.S + s, rng)
            pair = s * self.A + a
            reached = after(pair, rng)
            cost = (rng.random(len(s)) < chance[kind * len(self.c) + pair]).astype(float)
            last = time == self.length - 1
            ended = rng.random(len(s)) < self.ends if self.ends else np.full(len(s), last)
            cells = self.cells[s], a, self.cells[reached], self.r[pair], cost[:, None], ended, ~ended & last
            parts.append((alive, *cells))
            state[alive] = reached
            alive = alive[~ended]
        return _in_order(parts)

    def log(self, n: int, rng: np.random.Generator) -> Dataset:
        """Draw a log of `n` episodes."""
        return _log(self.follow(n, rng), int(self.cells[-1]) + 1, self.A)

    def drawn(self, n: float, rng: np.random.Generator) -> tuple[Dataset, float, Array]:
        """Draw a log, and a policy in question."""
        log = self.log(int(n), rng)
        return log, self.gamma, rng.dirichlet(np.ones(self.A), log.n_states)

    def cost(self, policy: Array | None) -> float:
        """Return the true discounted cost of an episode; where only the record stops, episodes go on."""
        total, steps = 0.0, self.length if self.kind == "clock" else 1000
        for factor, actions in zip(self.types, self.policies(policy), strict=True):
            P = np.einsum("sa,sax->sx", actions, self.P.reshape(self.S, self.A, self.S))
            c = (actions * self.chance(factor).reshape(self.S, self.A)).sum(axis=1)
            mass = self.rho0 / len(self.types)
            for _ in range(steps):
                total += float(mass @ c)
                mass = self.gamma * (1 - self.ends) * (mass @ P)
        return total


@dataclass(frozen=True)
class Control:
    """Episodes of a classic control task in bins, by a rule of thumb that acts at random half the time.

    Attributes
    ----------
    rule : callable
        The action of the rule of thumb.
    cost : callable
        Whether a step costs 1, by the observation that follows it and whether the episode ended there.
    sizes : tuple of int
        Episodes of logs, drawn from a pool of so many.
    """

    name: str
    rule: Callable[[Array], int]
    cost: Callable[[Array, bool], bool]
    n_actions: int
    length: int
    pool: int
    bins: int
    sizes: tuple[int, ...]

    def log(self, n: int, rng: np.random.Generator) -> Dataset:
        """Draw `n` of the episodes."""
        episodes, size = self._binned
        parts = [episodes[k] for k in rng.choice(self.pool, n, replace=False)]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        columns[4] = columns[4].T
        return _log(tuple(columns), size, self.n_actions)

    @cached_property
    def edges(self) -> list[Array]:
        """Quantiles of the observations, by dimension."""
        seen = np.concatenate([observations for observations, *_ in _played(replace(self, bins=0, sizes=()))])
        return [np.unique(np.quantile(column, np.arange(1, self.bins) / self.bins)) for column in seen.T]

    @cached_property
    def _binned(self) -> tuple[list[tuple[Any, ...]], int]:
        """The columns of the pool's episodes, and the number of cells."""
        parts = []
        for observations, actions, rewards, costs, ended in _played(replace(self, bins=0, sizes=())):
            cells, last = self.cells(observations), np.arange(len(actions)) == len(actions) - 1
            parts.append((cells[:-1], actions, cells[1:], rewards, costs[:, None], last & ended, last & (not ended)))
        return parts, self.bins ** len(self.edges)

    def cells(self, observations: Array) -> NDArray[np.int64]:
        """Return the numbers of the cells of observations."""
        cell = np.zeros(len(observations), dtype=np.int64)
        for column, edge in zip(observations.T, self.edges, strict=True):
            cell = cell * self.bins + np.searchsorted(edge, column)
        return cell

    def play(self, n: int, choose: Callable[[Array, np.random.Generator], int], seed: int = 0) -> list[Any]:
        """Play episodes: observations, actions, rewards, costs, and whether it ended."""
        import gymnasium

        env, rng, episodes = gymnasium.make(self.name).unwrapped, np.random.default_rng(seed), []
        for k in range(n):
            observation, _ = env.reset(seed=1000 * seed + k)
            seen, actions, rewards, costs, terminated = [observation], [], [], [], False
            while len(actions) < self.length and not terminated:
                a = choose(observation, rng)
                observation, reward, terminated, _, _ = env.step(a)
                seen.append(observation)
                actions.append(a)
                rewards.append(float(reward))
                costs.append(float(self.cost(observation, terminated)))
            columns = (np.array(column) for column in (actions, rewards, costs))
            episodes.append((np.array(seen, dtype=float), *columns, bool(terminated)))
        return episodes

    def true_cost(self, policy: Array | None, n: int = 200) -> tuple[float, float]:
        """Return the mean discounted cost of played episodes and its standard error; None is what makes logs."""
        if policy is None:
            episodes = _played(replace(self, bins=0, sizes=()))
        else:
            table = np.cumsum(policy, axis=1)

            def choose(x: Array, rng: np.random.Generator) -> int:
                return min(int(np.searchsorted(table[self.cells(x[None])[0]], rng.random())), self.n_actions - 1)

            episodes = self.play(n, choose, seed=1)
        totals = [float(costs @ GAMMA ** np.arange(len(costs))) for _, _, _, costs, _ in episodes]
        return float(np.mean(totals)), float(np.std(totals) / np.sqrt(len(totals)))


@cache
def _played(control: Control) -> list[Any]:
    """Play the pool of a task, once in a process."""

    def choose(x: Array, rng: np.random.Generator) -> int:
        return int(rng.integers(control.n_actions)) if rng.random() < 0.5 else control.rule(x)

    return control.play(control.pool, choose)


def _balance(x: Array) -> int:
    return int(x[2] + x[3] > 0)


def _swing(x: Array) -> int:
    return 2 if x[1] > 0 else 0


def _pump(x: Array) -> int:
    return 2 if x[5] > 0 else 0


def _fallen(x: Array, ended: bool) -> bool:
    return ended


def _at_the_wall(x: Array, ended: bool) -> bool:
    return bool(x[0] < -0.9)


def _fast(x: Array, ended: bool) -> bool:
    return bool(abs(x[5]) > 4)


CONTROL = {
    f"{name.split('-')[0]} {bins} bins": Control(name, rule, cost, actions, length, pool, bins, sizes)
    for name, rule, cost, actions, length, pool, sizes, every in (
        ("CartPole-v1", _balance, _fallen, 2, 200, 2000, (50, 200, 1000), (3, 6, 10)),
        ("MountainCar-v0", _swing, _at_the_wall, 3, 200, 400, (20, 50, 100), (6, 12)),
        ("Acrobot-v1", _pump, _fast, 3, 200, 400, (20, 50, 100), (2, 3)),
    )
    for bins in every
}
#: clock: every episode ends after 20 steps, marked terminated; type: half the episodes cost 0.96 times as much, the
#: others 0.24 times; confounder: the same, and the two halves act in different ways; lumped: neighbours are one state.
FAMILIES = ("clock", "type", "confounder", "lumped")
