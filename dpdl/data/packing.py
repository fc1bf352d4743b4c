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


def record_dtype(n_columns: int) -> np.dtype[Any]:
    """Layout of one packed transition; the compiled core reads exactly this (src_cython/_model.pxd).

    Examples
    --------
    >>> record_dtype(1).itemsize
    24
    """
    return np.dtype([("pair", "<i4"), ("s_next", "<i4"), ("r", "<f8"), ("u", "<f8", (n_columns,))])


def spread_dtype(n_columns: int) -> np.dtype[Any]:
    """Standard deviations of reward and columns among the transitions that a record of a log of counts stands for."""
    return np.dtype([("r", "<f8"), ("u", "<f8", (n_columns,))])


if record_dtype(0)[["pair", "s_next", "r"]] != _core.HEAD_DTYPE:
    raise ImportError("the compiled core of dpdl and its Python files have different layouts of records; rebuild it")


def sizes(n_states: Any, n_actions: Any) -> tuple[int, int]:
    """Check the sizes of the state and action sets."""
    n_states = check.whole("n_states", n_states, at_least=1, at_most=INT32_MAX)
    return n_states, check.whole("n_actions", n_actions, at_least=1, at_most=INT32_MAX)


def pack(
    s: ArrayLike,
    a: ArrayLike,
    s_next: ArrayLike,
    r: ArrayLike,
    u: ArrayLike | None,
    costs: Mapping[str, ArrayLike] | None,
    terminated: ArrayLike | None,
    n_states: int,
    n_actions: int,
) -> dict[str, Any]:
    """Check columns and pack them into records; return the attributes of a `Dataset` that follow from them.

    The next state of a terminated row is not read, and becomes `ENDED`.
    """
    n_states, n_actions = sizes(n_states, n_actions)
    s = check.indices("s", s, n_states, copy=False)
    n = len(s)
    if n == 0:
        raise ValueError("the data set is empty: s has length 0")
    a = check.indices("a", a, n_actions, shape=(n,), copy=False)
    ended = None if terminated is None else check.flags("terminated", terminated, (n,))
    after = check.indices("s_next", s_next, n_states, shape=(n,), copy=False, unread=ended)
    names, columns = named_columns("costs", u, costs, n)
    records = np.empty(n, dtype=record_dtype(columns.shape[1]))
    records["s_next"] = after if ended is None else np.where(ended, ENDED, after)
    records["r"] = check.numbers_array("r", r, shape=(n,), copy=False)
    records["u"] = columns
    table, records["pair"] = rank(s.astype(np.int64) * n_actions + a, n_states * n_actions)
    return {
        "records": records, "table": table, "cost_names": names, "n_states": n_states, "n_actions": n_actions
    }  # fmt: skip


def named_columns(
    argument: str, u: ArrayLike | None, costs: Mapping[str, ArrayLike] | None, n: int
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


def checked_starts(starts: ArrayLike, s: NDArray[Any], s_next: NDArray[np.int32]) -> NDArray[np.int64]:
    """Check that trajectories begin at `starts` and nowhere else."""
    positions = check.indices("starts", starts, len(s), dtype=np.int64)
    if len(positions) == 0 or positions[0] != 0:
        raise ValueError(f"starts must begin with 0, got {positions[:1].tolist()}")
    wrong = np.flatnonzero(np.diff(positions) <= 0)
    if wrong.size:
        k = int(wrong[0]) + 1
        raise ValueError(f"starts must ascend, but starts[{k}] = {positions[k]} follows {positions[k - 1]}")
    broken = np.append(False, s_next[:-1] != s[1:])
    broken[positions] = False
    if broken.any():
        t = int(np.argmax(broken))
        fact = f"s_next[{t - 1}] = {s_next[t - 1]} but s[{t}] = {s[t]}: a trajectory ends there"
        if s_next[t - 1] == ENDED:
            fact = f"record {t - 1} ended its episode (terminated)"
        raise ValueError(f"{fact}, so starts must list {t} (or be None, if the transitions are independent)")
    return positions
