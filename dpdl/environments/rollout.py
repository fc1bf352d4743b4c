"""What a policy earns and costs in a Gymnasium environment, by following it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.acting import Policy
from dpdl.environments.table import Cost, Table, costs_of, initial_distribution
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
