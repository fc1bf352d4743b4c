"""Packing columns into records: the layout and its checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _core
from dpdl import _validation as check

INT32_MAX = 2**31 - 1

#: `s_next` of a record after which nothing follows: the episode ended.
ENDED = -1
#: Largest number of records, and of bytes, in a chunk; they bound the memory of a pass over a log.
CHUNK, CHUNK_BYTES = 1 << 18, 1 << 24


def record_dtype(n_utilities: int) -> np.dtype[Any]:
    """Layout of one packed transition; the compiled core reads exactly this (src_cython/_model.pxd).

    Examples
    --------
    >>> record_dtype(1).itemsize
    24
    """
    return np.dtype([("pair", "<i4"), ("s_next", "<i4"), ("r", "<f8"), ("u", "<f8", (n_utilities,))])


def spread_dtype(n_utilities: int) -> np.dtype[Any]:
    """Standard deviations of reward and utilities among the transitions that a record of a log of counts stands for."""
    return np.dtype([("r", "<f8"), ("u", "<f8", (n_utilities,))])


if record_dtype(0)[["pair", "s_next", "r"]] != _core.HEAD_DTYPE:
    raise ImportError("the compiled core of dpdl and its Python files have different layouts of records; rebuild it")


def sizes(n_states: Any, n_actions: Any) -> tuple[int, int]:
    """Check the sizes of the state and action sets."""
    n_states = check.whole("n_states", n_states, at_least=1, at_most=INT32_MAX)
    return n_states, check.whole("n_actions", n_actions, at_least=1, at_most=INT32_MAX)


def moves(
    s: ArrayLike,
    a: ArrayLike,
    s_next: ArrayLike,
    terminated: ArrayLike | None,
    n_states: int,
    n_actions: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Check states, actions and next states; the result may share memory with the caller's arrays.

    The next state of a terminated row is not read, and becomes -1.
    """
    s = check.indices("s", s, n_states, copy=False)
    if len(s) == 0:
        raise ValueError("the data set is empty: s has length 0")
    a = check.indices("a", a, n_actions, shape=s.shape, copy=False)
    if terminated is None:
        return s, a, check.indices("s_next", s_next, n_states, shape=s.shape, copy=False)
    ended = check.flags("terminated", terminated, s.shape)
    after = check.indices("s_next", s_next, n_states, shape=s.shape, copy=False, unread=ended)
    return s, a, np.where(ended, np.int32(ENDED), after)


def starts_of_episodes(truncated: ArrayLike, s_next: NDArray[np.int32]) -> NDArray[np.int64]:
    """The first position, and those after rows that are terminated or truncated."""
    last = check.flags("truncated", truncated, s_next.shape) | (s_next == ENDED)
    return np.flatnonzero(np.append(True, last[:-1]))


def named_columns(
    u: ArrayLike | None, costs: Mapping[str, ArrayLike] | None, n: int, argument: str = "costs"
) -> tuple[tuple[str, ...] | None, NDArray[np.float64]]:
    """Check utilities (N, I), or costs by name; return the names of costs, or None, and the columns."""
    if costs is None:
        array = np.empty((n, 0)) if u is None else check.numbers_array("u", u, copy=False)
        array = array[:, None] if array.ndim == 1 else array  # a plain column is one utility
        check.check_shape("u", array, (n, None))
        return None, array
    if u is not None:
        raise TypeError("give either utilities u or costs")
    if not isinstance(costs, Mapping):
        raise TypeError(f"costs must be a mapping of names to columns, got {type(costs).__name__}")
    names = tuple(check.text("costs", name) for name in costs)
    columns = np.empty((n, len(names)))
    for k, name in enumerate(names):
        columns[:, k] = check.numbers_array(f"{argument}[{name!r}]", costs[name], shape=(n,), copy=False)
    return names, columns


def pack(s_next: NDArray[np.int32], r: ArrayLike, values: NDArray[np.float64]) -> NDArray[Any]:
    """Pack columns into records; the caller fills in `pair`."""
    records = np.empty(len(s_next), dtype=record_dtype(values.shape[1]))
    records["s_next"] = s_next
    records["r"] = check.numbers_array("r", r, shape=s_next.shape, copy=False)
    records["u"] = values
    return records


def rank(flat: NDArray[np.int64], bound: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Distinct values (ascending) of numbers below `bound`, and the position of each number among them."""
    if bound <= 8 * len(flat) + 10**6:  # a table is quicker than sorting while it is not much larger than the log
        seen = np.zeros(bound, dtype=bool)
        seen[flat] = True
        values = np.flatnonzero(seen)
        position = np.zeros(bound, dtype=np.int32)
        position[values] = np.arange(len(values), dtype=np.int32)
        return values.astype(np.int64), position[flat]
    values, positions = np.unique(flat, return_inverse=True)
    return values, positions.astype(np.int32)


def chunk_size(dtype: np.dtype[Any]) -> int:
    """Number of elements in a chunk.

    Examples
    --------
    >>> chunk_size(record_dtype(1)), chunk_size(record_dtype(1000))
    (262144, 2092)
    """
    return max(1, min(CHUNK, CHUNK_BYTES // dtype.itemsize))


def chunks(records: NDArray[Any], at_least: int = 0) -> Iterator[NDArray[Any]]:
    """Views of `chunk_size` elements each, or of `at_least` if that is more."""
    size = max(chunk_size(records.dtype), at_least)
    for first in range(0, len(records), size):
        yield records[first : first + size]


def count(records: NDArray[Any], n_pairs: int, repeats: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """How often each pair occurs; memory is proportional to the number of pairs, not of records."""
    counts = np.zeros(n_pairs, dtype=np.int64)
    if repeats is not None:
        np.add.at(counts, records["pair"], repeats)
        return counts
    for part in chunks(records, at_least=n_pairs):  # shorter chunks would spend most of the time adding up counts
        counts += np.bincount(part["pair"], minlength=n_pairs)
    return counts


def begins(
    starts: ArrayLike,
    s: NDArray[np.int32],
    s_next: NDArray[np.int32],
    first: int = 0,
    previous: int | None = None,
) -> NDArray[np.int64]:
    """Check that trajectories begin at `starts` and nowhere else.

    `previous` is the next state of the record before the first, if there is one. Unless 0 is among the starts, the
    first record must continue it.
    """
    positions = check.indices("starts", starts, len(s), dtype=np.int64)
    if previous is None and (len(positions) == 0 or positions[0] != 0):
        raise ValueError(f"starts must begin with 0, got {positions[:1].tolist()}")
    wrong = np.flatnonzero(np.diff(positions) <= 0)
    if wrong.size:
        k = int(wrong[0]) + 1
        raise ValueError(f"starts must ascend, but starts[{k}] = {positions[k]} follows {positions[k - 1]}")
    broken = np.empty(len(s), dtype=bool)
    broken[:1] = previous is not None and previous != s[0]
    np.not_equal(s_next[:-1], s[1:], out=broken[1:])
    broken[positions] = False
    if broken.any():
        t = int(np.argmax(broken))
        before, where = (s_next[t - 1] if t else previous), f" of this chunk, record {first + t}," if first else ""
        fact = (
            f"record {first + t - 1} ended its episode (terminated)"
            if before == ENDED
            else f"s_next[{first + t - 1}] = {before} but s[{first + t}] = {s[t]}: a trajectory ends there"
        )
        raise ValueError(f"{fact}, so starts must list {t}{where} (or be None, if the transitions are independent)")
    return positions
