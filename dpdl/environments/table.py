"""Transition tables of Gymnasium's toy-text environments, ``env.unwrapped.P``, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl._validation import Array

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
