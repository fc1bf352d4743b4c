"""The rows of a log by episode, and the totals of its own episodes.

This module alone knows how a log stores its episodes, rewards and costs. `own_totals` reports what the logged episodes
earned and cost, from the rows and without any model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdl import _text as text
from dpdl._validation import Array
from dpdl.data.dataset import Dataset

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Steps:
    """The rows of a log in order.

    Attributes
    ----------
    pairs : int array, shape (K,)
        The visited pairs as s * n_actions + a, ascending.
    state, action : int arrays, shape (K,)
        State of each pair, by its position among the visited states, and its action.
    n_states : int
        The number of visited states.
    pair, next_state : int arrays, shape (N,)
        Position of each row's pair in `pairs`; position of its next state, -1 where the episode ended and `n_states`
        if no row leaves that state.
    signals : array, shape (1 + I, N)
        The reward and the costs (or utilities), each divided by its `scale`.
    scale : array, shape (1 + I,)
        Largest absolute values in the caller's units, so that no unit is too large or too small to be squared.
    names : tuple of str
        What the signals are called; the first is "reward".
    starts : int array, shape (M,)
        Where episodes begin.
    episode, time : int arrays, shape (N,)
        Number of each row's episode, and its place in the episode, both from 0.
    """

    pairs: Ints
    state: Ints
    action: Ints
    n_states: int
    pair: Ints
    next_state: Ints
    signals: Array
    scale: Array
    names: tuple[str, ...]
    starts: Ints
    episode: Ints
    time: Ints


def why_no_episodes(log: Dataset) -> str | None:
    """Return why the episodes of a log are not known; None if they are."""
    if log.repeats is not None:
        return "the log is a table of counts, which do not say in which order things happened"
    if log.starts is None:
        return "the rows of the log are independent transitions, not episodes in order"
    return None


def steps(log: Dataset) -> Steps:
    """Return the rows of a log of episodes, with the costs of its question if it was posed under one."""
    raw, columns = log.raw, range(log.raw.n_utilities) if log.question is None else log.question.columns
    names = (f"utility {i}" if raw.cost_names is None else raw.cost_names[i] for i in columns)
    pairs, starts = log.pairs.astype(np.int64), log.starts
    assert starts is not None
    visited, state = np.unique(pairs // log.n_actions, return_inverse=True)
    place = np.full(log.n_states + 1, len(visited))
    place[visited], place[-1] = np.arange(len(visited)), -1
    lengths = np.diff(starts, append=len(log))
    signals = np.vstack([raw.records["r"], *(raw.records["u"][:, i] for i in columns)])
    scale = abs(signals).max(axis=1)
    scale[scale == 0] = 1.0
    return Steps(
        pairs=pairs,
        state=state,
        action=pairs % log.n_actions,
        n_states=len(visited),
        pair=log.pair.astype(np.int64),
        next_state=place[log.s_next],
        signals=signals / scale[:, None],
        scale=scale,
        names=("reward", *names),
        starts=starts,
        episode=np.repeat(np.arange(len(starts)), lengths),
        time=np.arange(len(log)) - np.repeat(starts, lengths),
    )


@dataclass(frozen=True)
class OwnTotal:
    """Mean total of the logged episodes, from the rows alone.

    Attributes
    ----------
    name : str
        "reward", or the name of the cost.
    discounted, discounted_error : float
        Mean of sum_t gamma^t c_t over the episodes, and its standard error, by episode.
    total, total_error : float
        The same without discounting.
    episodes, truncated : int
        How many episodes there are, and how many of them did not end in the log: their totals lack what followed.
    missing : float
        Mean over the episodes of gamma^length, or 0 if they ended: the weight of the steps that the log does not show.
    """

    name: str
    discounted: float
    discounted_error: float
    total: float
    total_error: float
    episodes: int
    truncated: int
    missing: float

    def __str__(self) -> str:
        cut = f", of which {self.truncated:,} were cut off" if self.truncated else ""
        return (
            f"{self.name}: the log's own episodes came to {text.tidy(self.total)} +- {text.tidy(self.total_error, 2)}, "
            f"discounted {text.tidy(self.discounted)} +- {text.tidy(self.discounted_error, 2)} "
            f"(mean of {self.episodes:,}{cut})"
        )


def own_totals(rows: Steps, gamma: float) -> tuple[OwnTotal, ...]:
    """Return the mean totals of the logged episodes, for the reward and each cost.

    Examples
    --------
    >>> log = Dataset([0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 0.5], n_states=1, n_actions=1,
    ...               terminated=[False, True, True], truncated=[False] * 3)
    >>> print(own_totals(steps(log), 0.9)[0])
    reward: the log's own episodes came to 1.25 +- 0.75, discounted 1.2 +- 0.7 (mean of 2)
    """
    n, discount = len(rows.starts), np.power(gamma, rows.time)
    last = np.append(rows.starts[1:], len(rows.time)) - 1
    cut = rows.next_state[last] >= 0
    missing = float((gamma * discount[last] * cut).mean())
    totals = []
    for name, signal, scale in zip(rows.names, rows.signals, rows.scale.tolist(), strict=True):
        sums = (np.add.reduceat(values, rows.starts) for values in (signal * discount, signal))
        means = [(float(x.mean()), float(x.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0) for x in sums]
        figures = [(scale * mean, scale * error) for mean, error in means]
        totals.append(OwnTotal(name, *figures[0], *figures[1], n, int(cut.sum()), missing))
    return tuple(totals)
