"""The rows of a log by episode, and the totals of its own episodes.

This module alone knows how a log stores its episodes, rewards and costs. `own_totals` reports what the logged episodes
earned and cost, from the rows and without any model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _text as text
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.files.headers import expect_names


@dataclass(frozen=True, eq=False)
class Steps:
    """The rows of a log in order, in the caller's units.

    Attributes
    ----------
    pairs : int64 array, shape (K,)
        The visited pairs as s * n_actions + a, ascending.
    pair, next_state : int arrays, shape (N,)
        Position of each row's pair in `pairs`; its next state, -1 where the episode ended.
    signals : array, shape (1 + I, N)
        The reward and the costs (or utilities).
    names : tuple of str
        What the signals are called; the first is "reward".
    episode, time : int arrays, shape (N,)
        Number of each row's episode, and its place in the episode, both from 0.
    n_states, n_actions : int
    """

    pairs: NDArray[np.int64]
    pair: NDArray[np.int64]
    next_state: NDArray[np.int64]
    signals: Array
    names: tuple[str, ...]
    episode: NDArray[np.int64]
    time: NDArray[np.int64]
    n_states: int
    n_actions: int

    @property
    def n_episodes(self) -> int:
        """The number of episodes."""
        return int(self.episode[-1]) + 1

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where episodes begin."""
        return np.flatnonzero(self.time == 0)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Which rows ended their episode."""
        return self.next_state < 0

    @property
    def truncated(self) -> int:
        """How many episodes did not end in the log."""
        return self.n_episodes - int(self.ended.sum())


def why_no_episodes(log: Dataset) -> str | None:
    """Return why the episodes of a log are not known; None if they are."""
    if log.repeats is not None:
        return "the log is a table of counts, which do not say in which order things happened"
    if log.starts is None:
        return "the rows of the log are independent transitions, not episodes in order"
    return None


def steps(log: Dataset) -> Steps:
    """Return the rows of a log of episodes, with the costs of its question if it was posed under one.

    A ValueError says why the log has no episodes.
    """
    reason = why_no_episodes(log)
    if reason is not None:
        raise ValueError(reason)
    raw, columns = log.raw, range(log.raw.n_utilities) if log.question is None else log.question.columns
    names = tuple(f"utility {i}" if raw.cost_names is None else raw.cost_names[i] for i in columns)
    starts = log.starts
    assert starts is not None
    lengths = np.diff(np.append(starts, len(log)))
    return Steps(
        pairs=log.pairs.astype(np.int64),
        pair=log.pair.astype(np.int64),
        next_state=log.s_next.astype(np.int64),
        signals=np.vstack([raw.records["r"], *(raw.records["u"][:, i] for i in columns)]),
        names=("reward", *names),
        episode=np.repeat(np.arange(len(starts)), lengths),
        time=np.arange(len(log)) - np.repeat(starts, lengths),
        n_states=log.n_states,
        n_actions=log.n_actions,
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

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> OwnTotal:
        """Return the totals that `to_json` wrote."""
        expect_names("own total", content, set(cls.__dataclass_fields__))
        numbers = ("discounted", "discounted_error", "total", "total_error", "missing")
        return cls(
            name=check.text("name", content["name"]),
            **{name: check.real(name, content[name]) for name in numbers},
            episodes=check.whole("episodes", content["episodes"], at_least=1),
            truncated=check.whole("truncated", content["truncated"]),
        )


def own_totals(log: Dataset | Steps, gamma: float) -> tuple[OwnTotal, ...]:
    """Return the mean totals of the logged episodes, for the reward and each cost.

    Examples
    --------
    >>> log = Dataset([0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 0.5], n_states=1, n_actions=1,
    ...               terminated=[False, True, True], truncated=[False] * 3)
    >>> print(own_totals(log, 0.9)[0])
    reward: the log's own episodes came to 1.25 +- 0.75, discounted 1.2 +- 0.7 (mean of 2)
    """
    rows = log if isinstance(log, Steps) else steps(log)
    n, discount = rows.n_episodes, np.power(gamma, rows.time)
    last = np.append(rows.starts[1:], len(rows.time)) - 1
    missing = float(np.where(rows.ended[last], 0.0, gamma * discount[last]).mean())
    found = []
    for name, signal in zip(rows.names, rows.signals, strict=True):
        sums = (np.bincount(rows.episode, weight) for weight in (signal * discount, signal))
        figures = [(float(x.mean()), float(x.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0) for x in sums]
        found.append(OwnTotal(name, *figures[0], *figures[1], n, rows.truncated, missing))
    return tuple(found)
