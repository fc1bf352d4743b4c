"""Logs of three Gymnasium environments, made with a seed, and rollouts of policies in the environments themselves.

The tables of the toy-text environments (`env.unwrapped.P`) are sampled directly: the same dynamics as ``env.step``,
a hundred times as fast. `steps_agree` in the tests compares the two.
"""

from dataclasses import dataclass
from functools import cache

import gymnasium
import numpy as np

GAMMA = 0.99


@dataclass(frozen=True)
class World:
    """The table of an environment: for each pair outcomes (probability, next state, reward, cost, terminated)."""

    name: str
    cdf: np.ndarray  # (S, A, K) cumulative probabilities
    after: np.ndarray  # (S, A, K)
    reward: np.ndarray  # (S, A, K)
    cost: np.ndarray  # (S, A, K)
    ends: np.ndarray  # (S, A, K)
    initial: np.ndarray  # (S,)
    time_limit: int

    def step(self, s, a, rng):
        """Next states, rewards, costs and ends of many states at once."""
        k = (rng.random(len(s))[:, None] >= self.cdf[s, a]).sum(axis=1)
        return self.after[s, a, k], self.reward[s, a, k], self.cost[s, a, k], self.ends[s, a, k]


LIMITS = {"FrozenLake": 0.03, "Taxi": 0.2, "CliffWalking": 0.05}


@cache
def world(name):
    """Make one of the three environments, with its cost."""
    make = {
        "FrozenLake": lambda: gymnasium.make("FrozenLake-v1", map_name="8x8", is_slippery=True),
        "Taxi": lambda: gymnasium.make(next(spec for spec in ("Taxi-v4", "Taxi-v3") if spec in gymnasium.registry)),
        "CliffWalking": lambda: gymnasium.make("CliffWalking-v1", is_slippery=True),
    }[name]
    env = make()
    table, initial = env.unwrapped.P, np.asarray(env.unwrapped.initial_state_distrib, dtype=float)
    S, A = len(table), len(table[0])
    K = max(len(table[s][a]) for s in range(S) for a in range(A))
    fields = {key: np.zeros((S, A, K)) for key in ("p", "after", "reward", "cost", "ends")}
    for s in range(S):
        for a in range(A):
            for k, (p, after, reward, ends) in enumerate(table[s][a]):
                cost = {
                    "FrozenLake": bool(ends) and reward == 0,  # falling into a hole
                    "Taxi": reward == -10,  # illegal pick-up or drop-off
                    "CliffWalking": reward == -100,  # the cliff
                }[name]
                for key, value in zip(fields, (p, after, reward, cost, ends), strict=True):
                    fields[key][s, a, k] = value
    cdf = np.cumsum(fields["p"], axis=2)
    cdf[:, :, -1] = 1.0
    limit = env.spec.max_episode_steps or 200
    whole = [fields["after"].astype(int), fields["reward"], fields["cost"], fields["ends"].astype(bool)]
    return World(name, cdf, *whole, initial / initial.sum(), limit)


@cache
def good_actions(name):
    """Actions of the best policy for the reward alone, by value iteration on the table."""
    env = world(name)
    p = np.diff(env.cdf, axis=2, prepend=0.0)
    V = np.zeros(len(env.initial))
    for _ in range(3000):
        Q = (p * (env.reward + GAMMA * np.where(env.ends, 0, V[env.after]))).sum(axis=2)
        V = Q.max(axis=1)
    return Q.argmax(axis=1)


def rollout(env, choose, rng, n_steps=None, n_episodes=None, time_limit=None):
    """Follow `choose(states, rng) -> actions`: columns of a table, episodes one after another."""
    time_limit = time_limit or env.time_limit
    rows, episode, total, done = (
        {key: [] for key in ("episode", "t", "s", "a", "next", "r", "c", "end", "cut")},
        0,
        0,
        0,
    )
    while (n_steps is None or total < n_steps) and (n_episodes is None or done < n_episodes):
        batch = 200 if n_episodes is None else n_episodes
        s = rng.choice(len(env.initial), size=batch, p=env.initial)
        alive, number, t = np.ones(batch, dtype=bool), episode + np.arange(batch), 0
        while alive.any():
            here = s[alive]
            a = choose(here, rng)
            after, r, c, end = env.step(here, a, rng)
            t += 1
            cut = ~end & (t >= time_limit)
            for key, column in zip(
                rows, (number[alive], np.full(len(here), t), here, a, after, r, c, end, cut), strict=True
            ):
                rows[key].append(column)
            total += len(here)
            s[alive] = after
            alive[alive] = ~(end | cut)
        episode, done = episode + batch, done + batch
    table = {key: np.concatenate(column) for key, column in rows.items()}
    order = np.lexsort((table["t"], table["episode"]))
    table = {key: column[order] for key, column in table.items()}
    if n_steps is not None:
        keep = slice(0, n_steps)
        table = {key: column[keep] for key, column in table.items()}
        table["cut"] = table["cut"].copy()
        table["cut"][-1] = ~table["end"][-1]
    return table


@cache
def behaviour_log(name, n=200_000, epsilon=0.5, seed=0):
    """A table of n transitions of the good policy, half of whose actions are random."""
    env, best = world(name), good_actions(name)

    def choose(s, rng):
        random = rng.random(len(s)) < epsilon
        return np.where(random, rng.integers(0, env.cdf.shape[1], len(s)), best[s])

    return rollout(env, choose, np.random.default_rng(seed), n_steps=n)


def returns(table, gamma):
    """Discounted reward and cost of each episode, and undiscounted, each (n_episodes,)."""
    weight = gamma ** (table["t"] - 1.0)
    _, place = np.unique(table["episode"], return_inverse=True)
    return [
        np.bincount(place, weights=column * factor)
        for factor in (weight, np.ones(len(weight)))
        for column in (table["r"], table["c"])
    ]
