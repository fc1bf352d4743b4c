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

#: (state, action, next state, reward, terminated) -> the cost, or several costs.
Cost = Callable[[Any, Any, Any, float, bool], Any]


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

    def __str__(self) -> str:
        return (
            f"{self.value:.6g} +- {self.error:.2g} discounted, "
            f"{self.per_episode:.6g} +- {self.per_episode_error:.2g} per episode"
        )


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
    """

    reward: Average
    costs: tuple[Average, ...]
    n_episodes: int
    n_steps: int
    n_truncated: int
    n_unknown: int

    def __str__(self) -> str:
        lines = [f"reward: {self.reward}", *(f"cost {i}: {cost}" for i, cost in enumerate(self.costs))]
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
    """Follow a policy in a Gymnasium environment, which may have continuous observations if the policy discretises.

    Where an environment has a transition table, ``CMDP.from_gymnasium(env, ...).evaluate(policy)`` is exact.

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
    discounted, plain = [], []
    n_steps = n_truncated = n_unknown = 0
    observation, _ = env.reset(seed=int(generator.integers(2**31)))
    for episode in range(n):
        if episode:
            observation, _ = env.reset()
        values = []
        for t in range(max_steps):
            try:
                action = acting.act(observation, generator)
            except ValueError as error:
                if otherwise is None:
                    raise ValueError(f"{error} (reached in step {t}); pass otherwise= for unknown states") from None
                action, n_unknown = otherwise, n_unknown + 1
            after, reward, terminated, truncated, info = env.step(action)
            if isinstance(cost, str):
                if cost not in info:
                    raise ValueError(f"the infos of the environment have no {cost!r}; they have {list(info)}")
                costs = np.atleast_1d(check.numbers_array(f"info[{cost!r}]", info[cost]))
            else:
                costs = _costs(cost, observation, action, after, float(reward), bool(terminated))
            values.append((check.real("reward", reward), *costs))
            observation = after
            if terminated or truncated:
                break
        plain.append(np.sum(values, axis=0))
        discounted.append(gamma ** np.arange(len(values)) @ np.array(values))
        n_steps += len(values)
        n_truncated += not terminated
    first, *others = map(_average, np.transpose(discounted), np.transpose(plain))
    return Rollout(first, tuple(others), n, n_steps, n_truncated, n_unknown)


def _average(discounted: Array, plain: Array) -> Average:
    errors = [float(sums.std(ddof=1) / np.sqrt(len(sums))) if len(sums) > 1 else np.nan for sums in (discounted, plain)]
    return Average(float(discounted.mean()), errors[0], float(plain.mean()), errors[1])


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
        shape = (n_states * n_actions, max(len(row) for actions in table.values() for row in actions.values()))
        p, reward = np.zeros((2, *shape))
        s_next, terminated = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
        costs = np.zeros((*shape, 0))
        for pair in range(shape[0]):
            s, a = divmod(pair, n_actions)
            for k, outcome in enumerate(table[s][a]):
                where = f"P[{s}][{a}][{k}]"
                if not isinstance(outcome, (tuple, list)) or len(outcome) != 4:
                    raise ValueError(f"{where} must be (probability, next state, reward, end), got {outcome!r:.200}")
                p[pair, k] = check.real(f"{where}[0]", outcome[0], at_least=0)
                s_next[pair, k] = after = check.whole(f"{where}[1]", outcome[1], at_most=n_states - 1)
                reward[pair, k] = gain = check.real(f"{where}[2]", outcome[2])
                terminated[pair, k] = bool(outcome[3])
                values = _costs(cost, s, a, after, gain, bool(outcome[3]))
                if pair == k == 0:
                    costs = np.zeros((*shape, len(values)))
                costs[pair, k] = check.numbers_array("cost", values, shape=costs.shape[2:])
            check.distribution(f"P[{s}][{a}]", p[pair], shape[1:])
        return cls(n_states, n_actions, p, s_next, reward, terminated, costs)


def initial_distribution(env: Any) -> Array | None:
    """Distribution of the first state of an environment with a table; None if it does not say."""
    given = getattr(getattr(env, "unwrapped", env), "initial_state_distrib", None)
    return None if given is None else np.asarray(given, dtype=np.float64) / np.sum(given)


def _costs(cost: Cost | None, s: Any, a: Any, s_next: Any, reward: float, terminated: bool) -> Array:
    """The costs of a step as an array."""
    if cost is None:
        return np.empty(0)
    given = np.asarray(cost(s, a, s_next, reward, terminated))
    where = f"cost({s!r:.40}, {a!r:.40}, {s_next!r:.40}, {reward}, {terminated})"
    values = np.atleast_1d(given.astype(np.float64) if given.dtype.kind == "b" else given)
    return check.numbers_array(where, values, shape=(None,))
