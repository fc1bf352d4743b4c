"""Gymnasium: what a policy earns and costs in an environment, and transition tables of toy-text environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.acting import Policy
from dpdl.policy import draw

#: Environments whose steps are draws from their tables, and wrappers that change nothing but the length of episodes.
_TABULAR = {"FrozenLakeEnv", "TaxiEnv", "CliffWalkingEnv"}
_HARMLESS = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker"}


@dataclass(frozen=True)
class Average:
    """Mean over episodes with its standard error, which is NaN for a single episode.

    Attributes
    ----------
    value, error : float
        Of discounted sums.
    per_episode, per_episode_error : float
        Of sums without discount.
    """

    value: float
    error: float
    per_episode: float
    per_episode_error: float

    @classmethod
    def of(cls, discounted: Array, plain: Array) -> Average:
        """Average the sums of episodes."""

        def error(sums: Array) -> float:
            return float(sums.std(ddof=1) / np.sqrt(len(sums))) if len(sums) > 1 else float("nan")

        return cls(float(discounted.mean()), error(discounted), float(plain.mean()), error(plain))


@dataclass(frozen=True)
class Rollout:
    """What a policy earned and cost in an environment.

    Attributes
    ----------
    reward : Average
        Of the rewards.
    costs : tuple of Average
        Of each cost.
    n_episodes, n_steps : int
        How many episodes were followed, and the steps in them together.
    n_truncated : int
        How many of the episodes were cut off by a time limit. What would have followed is missing in the sums: at most
        gamma^t/(1-gamma) times the largest reward or cost, for a limit of t steps.
    n_unknown : int
        Number of steps in states that the policy does not know, where `otherwise` was taken.
    by_table : bool
        Whether steps were drawn from the table of the environment instead of made by ``env.step``.
    """

    reward: Average
    costs: tuple[Average, ...]
    n_episodes: int
    n_steps: int
    n_truncated: int
    n_unknown: int
    by_table: bool

    def __str__(self) -> str:
        named = [("reward", self.reward), *((f"cost {i}", one) for i, one in enumerate(self.costs))]
        lines = [
            f"{name}: {one.value:.6g} +- {one.error:.2g} discounted, "
            f"{one.per_episode:.6g} +- {one.per_episode_error:.2g} per episode"
            for name, one in named
        ]
        cut = f", {self.n_truncated:,} cut off by a time limit" if self.n_truncated else ""
        lines.append(f"{self.n_episodes:,} episodes, {self.n_steps:,} steps{cut}")
        if self.n_unknown:
            lines.append(f"{self.n_unknown:,} steps in states that the policy does not know")
        return "\n".join(lines)


def rollout(
    env: Any,
    policy: Policy | ArrayLike,
    episodes: int,
    *,
    gamma: float,
    cost: Cost | str | None = None,
    rng: Any = None,
    otherwise: Any = None,
    max_steps: int = 10_000,
) -> Rollout:
    """Follow a policy in a Gymnasium environment.

    FrozenLake, Taxi and CliffWalking, if no wrapper changes more than the length of their episodes, are not stepped:
    all episodes are drawn together from their tables, which has the same law and is much faster. Any other environment
    is stepped by ``env.step``, and may have continuous observations if the policy has a discretizer.

    Parameters
    ----------
    env : gymnasium.Env
        The environment. Its own time limit holds; ``gymnasium.make(..., max_episode_steps=...)`` sets it.
    policy : Policy or array_like, shape (S, A)
        Labels of states are the observations, labels of actions what the environment accepts.
    episodes : int
        How many.
    gamma : float
        Discount, in (0, 1].
    cost : callable or str, optional
        The cost of a step, or several, as ``cost(s, a, s_next, reward, terminated)``; or its name in the infos.
    rng : None, int or numpy.random.Generator, optional
        Randomness of policy and environment.
    otherwise : optional
        Action in states that the policy does not know; by default they are an error.
    max_steps : int, optional
        A time limit besides that of the environment.

    Returns
    -------
    Rollout

    Examples
    --------
    >>> import gymnasium
    >>> env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    >>> down_then_right = np.eye(4)[[1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 2, 2, 0]]
    >>> print(rollout(env, down_then_right, 100, gamma=0.5, rng=0))
    reward: 0.03125 +- 0 discounted, 1 +- 0 per episode
    100 episodes, 600 steps
    """
    if not hasattr(env, "unwrapped"):
        raise TypeError(f"env must be a Gymnasium environment, got {type(env).__name__}")
    n = check.whole("episodes", episodes, at_least=1)
    gamma = check.real("gamma", gamma, above=0, at_most=1)
    max_steps = check.whole("max_steps", max_steps, at_least=1)
    if cost is not None and not callable(cost) and not isinstance(cost, str):
        raise TypeError(f"cost must be a function, a name in the infos or None, got {cost!r:.200}")
    acting = policy if isinstance(policy, Policy) else Policy(policy)
    generator = check.generator(rng)
    limit = _time_limit(env)
    if limit is None or isinstance(cost, str):
        return _by_steps(env, acting, n, gamma, cost, generator, otherwise, max_steps)
    return _by_table(env, acting, n, gamma, cost, generator, otherwise, min(limit, max_steps))


def _time_limit(env: Any) -> int | None:
    """The time limit of an environment that its table describes completely; None if it does not."""
    limit = 2**63 - 1
    while env is not env.unwrapped:
        if type(env).__name__ not in _HARMLESS or not type(env).__module__.startswith("gymnasium.wrappers"):
            return None
        if type(env).__name__ == "TimeLimit":
            limit = min(limit, env._max_episode_steps)
        env = env.env
    if type(env).__name__ not in _TABULAR or not type(env).__module__.startswith("gymnasium.envs.toy_text"):
        return None
    return None if env.render_mode == "human" or getattr(env, "fickle_passenger", False) else limit


class _Sums:
    """Sums over the episodes, with and without discount: the reward and the costs."""

    def __init__(self, n_episodes: int, gamma: float) -> None:
        self.gamma, self.plain, self.discounted = gamma, np.zeros((n_episodes, 1)), np.zeros((n_episodes, 1))
        self.steps = self.truncated = self.unknown = 0

    def add(self, episodes: Any, t: int, values: Array) -> None:
        """Add rewards and costs of the steps at time t of some episodes, shape (n, 1 + I)."""
        if self.steps == 0:
            self.plain, self.discounted = np.zeros((2, len(self.plain), values.shape[-1]))
        self.plain[episodes] += values
        self.discounted[episodes] += self.gamma**t * values
        self.steps += len(values)

    def result(self, by_table: bool) -> Rollout:
        first, *others = map(Average.of, self.discounted.T, self.plain.T)
        return Rollout(
            first, tuple(others), len(self.plain), self.steps, self.truncated, self.unknown, by_table
        )  # fmt: skip


def _by_table(
    env: Any,
    policy: Policy,
    n: int,
    gamma: float,
    cost: Cost | None,
    rng: np.random.Generator,
    otherwise: Any,
    max_steps: int,
) -> Rollout:
    """All episodes at once, by draws from the table of the environment."""
    table = Table.of(env, cost)
    probabilities, known = _in_the_environment(policy, table, otherwise)
    actions, outcomes = probabilities.cumsum(axis=1), table.p.cumsum(axis=1)
    values = np.concatenate([table.reward[:, :, None], table.costs], axis=2)
    initial = initial_distribution(env)
    assert initial is not None
    sums, alive = _Sums(n, gamma), np.arange(n)
    s = draw(initial.cumsum()[None], np.zeros(n, dtype=np.int64), rng)
    for t in range(max_steps):
        lost = ~known[s]
        if lost.any():
            if otherwise is None:
                raise ValueError(f"the policy does not know state {s[lost][0]}, reached in step {t}; pass otherwise=")
            sums.unknown += int(lost.sum())
        pair = s * table.n_actions + draw(actions, s, rng)
        k = draw(outcomes, pair, rng)
        sums.add(alive, t, values[pair, k])
        going_on = ~table.terminated[pair, k]
        alive, s = alive[going_on], table.s_next[pair, k][going_on]
        if len(alive) == 0:
            break
    sums.truncated = len(alive)
    return sums.result(by_table=True)


def _in_the_environment(policy: Policy, table: Table, otherwise: Any) -> tuple[Array, NDArray[np.bool_]]:
    """Probabilities over the states and actions of the environment, and which states the policy knows."""
    S, A = table.n_states, table.n_actions
    probabilities, known = np.zeros((S, A)), np.zeros(S, dtype=bool)
    if policy.labels is None:
        check.check_shape("policy", policy.probabilities, (S, A))
        return policy.probabilities, np.ones(S, dtype=bool)
    states = check.indices("states of the policy", np.array(policy.labels.states), S, dtype=np.int64)
    actions = check.indices("actions of the policy", np.array(policy.labels.actions), A, dtype=np.int64)
    probabilities[states[:, None], actions] = policy.probabilities
    known[states] = True
    if otherwise is not None:
        probabilities[~known, check.whole("otherwise", otherwise, at_most=A - 1)] = 1.0
    return probabilities, known


def _by_steps(
    env: Any,
    policy: Policy,
    n: int,
    gamma: float,
    cost: Cost | str | None,
    rng: np.random.Generator,
    otherwise: Any,
    max_steps: int,
) -> Rollout:
    """One episode after the other, by ``env.step``."""
    sums = _Sums(n, gamma)
    for episode in range(n):
        seed = {"seed": int(rng.integers(2**31))} if episode == 0 else {}
        observation, _ = env.reset(**seed)
        for t in range(max_steps):
            try:
                action = policy.act(observation, rng)
            except ValueError as error:
                if otherwise is None:
                    raise ValueError(f"{error} (reached in step {t}); pass otherwise= for unknown states") from None
                action, sums.unknown = otherwise, sums.unknown + 1
            after, reward, terminated, truncated, info = env.step(action)
            costs: Array = np.empty(0)
            if isinstance(cost, str):
                if cost not in info:
                    raise ValueError(f"the infos of the environment have no {cost!r}; they have {list(info)}")
                costs = np.atleast_1d(check.numbers_array(f"info[{cost!r}]", info[cost]))
            elif cost is not None:
                costs = costs_of(cost, observation, action, after, float(reward), bool(terminated))
            sums.add([episode], t, np.concatenate([[check.real("reward", reward)], costs])[None])
            observation = after
            if terminated or truncated:
                break
        sums.truncated += not terminated
    return sums.result(by_table=False)


#: (state, action, next state, reward, terminated) -> the cost, or several costs.
Cost = Callable[[Any, Any, Any, float, bool], Any]


@dataclass(frozen=True)
class Table:
    """The outcomes of every pair (s, a), at row s A + a, filled up with outcomes of probability 0 to the same number.

    Attributes
    ----------
    n_states, n_actions : int
        Sizes.
    p, s_next, reward, terminated : arrays, shape (S A, K)
        Probability of each outcome, its next state, its reward, and whether it ends the episode.
    costs : array, shape (S A, K, I)
        Its costs.
    """

    n_states: int
    n_actions: int
    p: Array
    s_next: NDArray[np.int64]
    reward: Array
    terminated: NDArray[np.bool_]
    costs: Array

    @classmethod
    def of(cls, env: Any, cost: Cost | None = None) -> Table:
        """Read the table of an environment; what wrappers do to it does not count."""
        inner = getattr(env, "unwrapped", env)
        table = getattr(inner, "P", None)
        if table is None:
            raise ValueError(f"{type(inner).__name__} has no transition table P; only toy-text environments have one")
        if getattr(inner, "fickle_passenger", False):
            raise ValueError("the table of a taxi with fickle_passenger=True does not show what the passenger does")
        n_states, n_actions = len(table), len(table[0])
        for s in range(n_states):
            if len(table[s]) != n_actions:
                raise ValueError(f"P[{s}] must have {n_actions} actions as P[0] has, got {len(table[s])}")
        rows = [[_outcome(one, s, a) for one in table[s][a]] for s in range(n_states) for a in range(n_actions)]
        K = max(map(len, rows))
        p, reward = np.zeros((2, len(rows), K))
        s_next, terminated = np.zeros((len(rows), K), dtype=np.int64), np.zeros((len(rows), K), dtype=bool)
        costs: list[tuple[int, int, Array]] = []
        for pair, row in enumerate(rows):
            s, a = divmod(pair, n_actions)
            where = f"P[{s}][{a}]"
            for k, (probability, after, gain, ends) in enumerate(row):
                p[pair, k] = check.real(f"{where}[{k}][0]", probability, at_least=0)
                s_next[pair, k] = check.whole(f"{where}[{k}][1]", after, at_most=n_states - 1)
                reward[pair, k], terminated[pair, k] = check.real(f"{where}[{k}][2]", gain), bool(ends)
                if cost is not None:
                    outcome = (s, a, int(s_next[pair, k]), float(reward[pair, k]), bool(ends))
                    costs.append((pair, k, costs_of(cost, *outcome)))
            check.distribution(where, p[pair], (K,))
        n_costs = len(costs[0][2]) if costs else 0
        found = np.zeros((len(rows), K, n_costs))
        for pair, k, values in costs:
            found[pair, k] = check.numbers_array("cost", values, shape=(n_costs,))
        return cls(n_states, n_actions, p, s_next, reward, terminated, found)


def initial_distribution(env: Any) -> Array | None:
    """Distribution of the first state of an environment with a table; None if it does not say."""
    given = getattr(getattr(env, "unwrapped", env), "initial_state_distrib", None)
    return None if given is None else np.asarray(given, dtype=np.float64) / np.sum(given)


def costs_of(cost: Cost, s: Any, a: Any, s_next: Any, reward: float, terminated: bool) -> Array:
    """The costs of a step as an array."""
    given = np.asarray(cost(s, a, s_next, reward, terminated))
    where = f"cost({s!r:.40}, {a!r:.40}, {s_next!r:.40}, {reward}, {terminated})"
    values = np.atleast_1d(given.astype(np.float64) if given.dtype.kind == "b" else given)
    return check.numbers_array(where, values, shape=(None,))


def _outcome(outcome: Any, s: int, a: int) -> Any:
    if not isinstance(outcome, (tuple, list)) or len(outcome) != 4:
        raise ValueError(f"P[{s}][{a}] must hold (probability, next state, reward, terminated), got {outcome!r:.200}")
    return outcome
