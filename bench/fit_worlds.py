"""Worlds for `bench/fit.py`: logs of decision processes, and logs that no decision process with their states made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinds
import safety_problems as problems
from dpdl import CMDP, Dataset, instances
from dpdl.gym import Table, initial_distribution
from safety_model import Array, Problem, mixed, random_transitions

GAMMA = 0.95
#: Steps of episodes on problems whose logs are independent rows otherwise.
STEPS = 40


# Logs of decision processes, on which every alarm is false. Functions of an index and a size return a log, its discount
# and a policy in question.


def collection(protocol: str) -> Callable[[int, float, np.random.Generator], tuple[Dataset, float, Array]]:
    """Return what draws a log of a collection of `bench/safety.py`, in episodes, and the problem's optimal policy."""

    def draw(index: int, size: float, rng: np.random.Generator) -> tuple[Dataset, float, Array]:
        problem = _problem(protocol, index % problems.PROTOCOLS[protocol].problems)
        n = size * problem.r.size / problem.mean_length if problem.per_pair else size
        s, a, s_next, terminated, truncated = problem._episodes(max(8, int(np.ceil(n))), rng)
        r, c = problem.observed(s, a, s_next, terminated, rng)
        columns = (s, a, s_next, r, c.T, terminated, truncated)
        return _log(columns, *problem.r.shape), problem.gamma, problem.optimal_policy

    return draw


@cache
def _problem(protocol: str, index: int) -> Problem:
    problem = problems.PROTOCOLS[protocol].make(np.random.default_rng([0, index]), index, False)
    if problem.behaviour is not None:
        return problem
    return replace(problem, mu=None, behaviour=mixed(problem.optimal_policy, 0.5), length=STEPS)


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
    state, alive, parts = _pick(np.cumsum(rho0)[None], np.zeros(n, int), rng), np.arange(n), []
    after, actions = np.cumsum(found.p, axis=1), np.cumsum(policy, axis=1)
    for time in range(length):
        s = state[alive]
        a = _pick(actions, s, rng)
        pair = s * found.n_actions + a
        k = _pick(after, pair, rng)
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


def _pick(cumulative: Array, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw an index from the distribution of each row."""
    found = (cumulative[rows] < rng.random(len(rows))[:, None]).sum(axis=1)
    return np.minimum(found, cumulative.shape[1] - 1)


def instance(make: Callable[[np.random.Generator], CMDP]) -> Callable[..., tuple[Dataset, float, Array]]:
    """Return what draws `size` steps of an instance by a random policy: one trajectory, or episodes if they end."""

    def draw(index: int, size: float, rng: np.random.Generator) -> tuple[Dataset, float, Array]:
        cmdp = make(rng)
        behaviour, other = rng.dirichlet(np.ones(cmdp.n_actions), (2, cmdp.n_states))
        return cmdp.rollout(int(size), behaviour, rng=rng), cmdp.gamma, other

    return draw


def _fell(s: Any, a: Any, s_next: Any, reward: float, terminated: bool) -> float:
    return float(terminated and reward <= 0)


def _fined(s: Any, a: Any, s_next: Any, reward: float, terminated: bool) -> float:
    return float(reward <= -10)


#: Name: what draws a log, and its sizes (episodes; rows a pair for others, further, fresh; steps for instances).
NULL: dict[str, tuple[Callable[..., tuple[Dataset, float, Array]], tuple[float, ...]]] = {
    "toy": (collection("toy"), (10, 200)),
    "grid": (collection("grid"), (10, 200)),
    "multi": (collection("multi"), (10, 200)),
    "others": (collection("others"), (3, 15, 75)),
    "further": (collection("further"), (3, 15, 75)),
    "fresh": (collection("fresh"), (3, 15, 75)),
    "FrozenLake": (table("FrozenLake-v1", _fell, map_name="8x8"), (20, 1000)),
    "Taxi": (table("Taxi-v4", _fined, is_rainy=True), (20, 100)),
    "CliffWalking": (table("CliffWalking-v1", _fined, is_slippery=True), (20, 400)),
    "garnet": (instance(lambda rng: instances.garnet(30, 3, 1, rng=rng)), (300, 3000)),
    "ring": (instance(lambda rng: kinds.ring(60, gamma=0.95, rng=rng)), (300, 3000)),
    "lake": (instance(lambda rng: kinds.lake(6, gamma=0.97, rng=rng)), (300, 3000)),
    "thin": (lambda index, size, rng: World(1000, "none", rng).drawn(size, rng), (10, 50, 200)),
    "rare": (lambda index, size, rng: World(20, "none", rng, rare=True).drawn(size, rng), (50, 200, 1000)),
}


# Logs that no decision process with their states made.


class World:
    """A random sparse process whose log lacks something: see `FAMILIES`.

    Costs are Bernoulli. Episodes end after each step with probability 0.05, and are cut after 60 steps; of kind "clock"
    they end after 20 steps, and at no other time.
    """

    def __init__(self, n_states: int, kind: str, rng: np.random.Generator, *, rare: bool = False) -> None:
        self.kind, self.S, self.A = kind, n_states, 3
        self.P = random_transitions(n_states, 3, 3, rng).reshape(-1, n_states)
        self.r, self.c = rng.random(3 * n_states), rng.beta(0.5, 0.5, 3 * n_states)
        if rare:
            self.c = np.where(rng.random(3 * n_states) < 0.3, 0.01, 0.0)
        self.behaviour = rng.dirichlet(np.ones(3), n_states)
        self.rho0 = rng.dirichlet(np.ones(n_states))
        self.length = 20 if kind == "clock" else 60
        self.gamma = GAMMA
        self.cells = np.arange(n_states) // 2 if kind == "lumped" else np.arange(n_states)

    def follow(self, n: int, policy: Array | None, rng: np.random.Generator) -> tuple[Any, ...]:
        """Follow a policy, on the states of the log, or the one that makes logs, in `n` episodes."""
        kind, after = self.kind, np.cumsum(self.P, axis=1)
        usual = np.cumsum(self.behaviour if policy is None else policy[self.cells], axis=1)
        turned = np.cumsum(self.behaviour[:, ::-1], axis=1) if policy is None and kind == "confounder" else usual
        state, alive, parts = _pick(np.cumsum(self.rho0)[None], np.zeros(n, int), rng), np.arange(n), []
        severe = rng.random(n) < 0.5
        for time in range(self.length):
            s = state[alive]
            a = np.where(severe[alive], _pick(usual, s, rng), _pick(turned, s, rng))
            pair = s * self.A + a
            reached = _pick(after, pair, rng)
            chance = self.c[pair]
            if kind in ("type", "confounder"):
                chance = np.minimum(0.6 * chance * np.where(severe[alive], 1.6, 0.4), 1)
            cost = (rng.random(len(s)) < chance).astype(float)
            last = time == self.length - 1
            ended = np.full(len(s), last) if kind == "clock" else rng.random(len(s)) < 0.05
            cells = self.cells[s], a, self.cells[reached], self.r[pair], cost[:, None], ended, ~ended & last
            parts.append((alive, *cells))
            state[alive] = reached
            alive = alive[~ended]
        return _in_order(parts)

    def log(self, n: int, rng: np.random.Generator) -> Dataset:
        """Draw a log of `n` episodes."""
        return _log(self.follow(n, None, rng), int(self.cells[-1]) + 1, self.A)

    def drawn(self, n: float, rng: np.random.Generator) -> tuple[Dataset, float, Array]:
        """Draw a log, and a policy in question."""
        log = self.log(int(n), rng)
        return log, self.gamma, rng.dirichlet(np.ones(self.A), log.n_states)

    def cost(self, policy: Array | None, rng: np.random.Generator, n: int = 20_000) -> tuple[float, float]:
        """Return the true discounted cost of an episode, and its standard error, by simulation."""
        _, _, _, _, costs, ended, cut = self.follow(n, policy, rng)
        first = np.flatnonzero(np.concatenate([[True], (ended | cut)[:-1]]))
        lengths = np.diff(np.append(first, len(ended)))
        time = np.arange(len(ended)) - np.repeat(first, lengths)
        totals = np.bincount(np.repeat(np.arange(n), lengths), costs[0] * self.gamma**time)
        return float(totals.mean()), float(totals.std() / np.sqrt(n))


@dataclass(frozen=True)
class Control:
    """Episodes of a classic control task in bins, by a rule of thumb that acts at random half the time."""

    name: str
    rule: Callable[[Array], int]
    n_actions: int
    length: int
    pool: int
    bins: int

    @property
    def episodes(self) -> list[tuple[Array, NDArray[np.int64], Array, bool]]:
        return _control(self.name, self.rule, self.n_actions, self.length, self.pool)

    def edges(self) -> list[Array]:
        seen = np.concatenate([observations for observations, *_ in self.episodes])
        return [np.quantile(column, np.arange(1, self.bins) / self.bins) for column in seen.T]

    def log(self, n: int, rng: np.random.Generator) -> Dataset:
        """Draw `n` of the episodes; the reward of a step is the task's, and what ends an episode costs 1."""
        edges, parts = self.edges(), []
        for k in rng.choice(len(self.episodes), n, replace=False):
            observations, actions, rewards, ended = self.episodes[k]
            cells = self.cells(observations, edges)
            end = np.zeros(len(actions), bool)
            end[-1] = True
            parts.append(
                (cells[:-1], actions, cells[1:], rewards, (end & ended)[:, None], end & ended, end & (not ended))
            )
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        columns[4] = columns[4].astype(float).T
        return _log(tuple(columns), self.bins ** len(edges), self.n_actions)

    def cells(self, observations: Array, edges: list[Array]) -> NDArray[np.int64]:
        """Return the numbers of the cells of observations."""
        found = np.zeros(len(observations), dtype=np.int64)
        for column, edge in zip(observations.T, edges, strict=True):
            found = found * self.bins + np.searchsorted(edge, column)
        return found


@cache
def _control(
    name: str, rule: Callable[[Array], int], n_actions: int, length: int, pool: int
) -> list[tuple[Array, NDArray[np.int64], Array, bool]]:
    """Play a pool of episodes, once in a process."""
    import gymnasium

    env, rng, found = gymnasium.make(name), np.random.default_rng(0), []
    for k in range(pool):
        observation, _ = env.reset(seed=k)
        seen, actions, rewards, terminated = [observation], [], [], False
        for _ in range(length):
            a = int(rng.integers(n_actions)) if rng.random() < 0.5 else rule(observation)
            observation, reward, terminated, truncated, _ = env.step(a)
            seen.append(observation)
            actions.append(a)
            rewards.append(float(reward))
            if terminated or truncated:
                break
        found.append((np.array(seen, dtype=float), np.array(actions), np.array(rewards), bool(terminated)))
    return found


def _balance(x: Array) -> int:
    return int(x[2] + x[3] > 0)


def _swing(x: Array) -> int:
    return 2 if x[1] > 0 else 0


def _pump(x: Array) -> int:
    return 2 if x[5] > 0 else 0


CONTROL = {
    f"{name.split('-')[0]} {bins} bins": Control(name, rule, actions, length, pool, bins)
    for name, rule, actions, length, pool, sizes in (
        ("CartPole-v1", _balance, 2, 200, 2000, (3, 6, 10)),
        ("MountainCar-v0", _swing, 3, 200, 1000, (6, 12)),
        ("Acrobot-v1", _pump, 3, 300, 400, (2, 3)),
    )
    for bins in sizes
}
#: clock: every episode ends after 20 steps, marked terminated; type: half the episodes cost 0.96 times as much, the
#: others 0.24 times; confounder: the same, and the two halves act in different ways; lumped: neighbours are one state.
FAMILIES = ("clock", "type", "confounder", "lumped")
