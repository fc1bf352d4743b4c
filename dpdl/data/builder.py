"""Writing a data set chunk by chunk: chunks go to disk as they are appended, and memory does not grow with the log.

Two things are known only after the last chunk: which pairs the log visits, and, for costs, the scale that brings their
utilities into [-1, 1]. Until then records have provisional numbers of pairs, in order of first appearance, and unscaled
utilities. A final pass over the file, in place, corrects both and computes the checksum.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl.data import packing, storage
from dpdl.data.packing import INT32_MAX, record_dtype
from dpdl.data.storage import MOST_UTILITIES, PAIRS, RECORDS, STARTS, Sizes
from dpdl.data.units import CostLimits, Units, parse_units, scales
from dpdl.files.atomic import naming_the_target, replacing
from dpdl.files.headers import npy_header

_POSITIONS = np.dtype("<i8")


class DatasetBuilder:
    """Write a data set, chunk by chunk, into a folder that `Dataset.open` opens.

    Used in a ``with`` statement: the folder appears when the block ends, bit for bit as `Dataset.save` would write it.
    An exception inside the block leaves nothing behind. Memory is proportional to the largest chunk and to the number
    of visited pairs.

    Parameters
    ----------
    path : path-like
        The folder to make.
    n_states, n_actions, n_utilities : int
        Sizes.
    reward_scale, utility_scale : float or sequence of float, optional
        As for `Dataset`.
    overwrite : bool, optional
        Replace an existing data set; it is kept until the new one is complete.

    Examples
    --------
    >>> import tempfile
    >>> from dpdl import Dataset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with DatasetBuilder(f"{folder}/log", n_states=3, n_actions=1, n_utilities=1) as builder:
    ...         builder.append([0, 1], [0, 0], [1, 2], [0.5, 0.5], [[1.0], [0.0]], starts=[0])
    ...         builder.append([2, 0], [0, 0], [1, 1], [0.5, 0.5], [[1.0], [0.0]], starts=[1])
    ...     log = Dataset.open(f"{folder}/log")
    >>> log.s.tolist(), log.starts.tolist()
    ([0, 1, 2, 0], [0, 3])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_states: int,
        n_actions: int,
        n_utilities: int,
        reward_scale: float = 1.0,
        utility_scale: float | Sequence[float] = 1.0,
        overwrite: bool = False,
    ) -> None:
        n_utilities = check.whole("n_utilities", n_utilities, at_most=MOST_UTILITIES)
        scale = scales("utility_scale", utility_scale, n_utilities)
        units = Units(check.real("reward_scale", reward_scale, above=0), scale)
        self._path, self._overwrite = check.path("path", path), check.flag("overwrite", overwrite)
        self._n_states, self._n_actions = packing.sizes(n_states, n_actions)
        self._units, self._divisors = units, units  # what the header will say, and what chunks are divided by
        self._costs: CostLimits | None = None
        self._largest = np.zeros(n_utilities)
        self._dtype = record_dtype(n_utilities)
        self._numbering = _Numbering(self._n_states * self._n_actions)
        size = packing.chunk_size(self._dtype)
        self._records, self._flat = np.empty(size, self._dtype), np.empty(size, np.int64)
        self._n_waiting = 0  # elements of these buffers that are not yet written
        self._starts: list[NDArray[np.int64]] = []
        self._n_records, self._n_starts = 0, 0
        self._trajectories: bool | None = None  # the first chunk decides
        self._previous: int | None = None
        self._done = True  # whether the last row was the last of its episode
        self._state = "new"
        self._lock = threading.Lock()

    @classmethod
    def from_costs(
        cls,
        path: str | os.PathLike[str],
        limits: ArrayLike,
        *,
        gamma: float,
        normalised: bool,
        n_states: int,
        n_actions: int,
        reward_scale: float = 1.0,
        overwrite: bool = False,
    ) -> Self:
        """Make a builder whose `append` takes costs instead of utilities, as `Dataset.from_costs` does.

        Examples
        --------
        >>> import tempfile
        >>> from dpdl import Dataset
        >>> sizes = {"n_states": 1, "n_actions": 2}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with DatasetBuilder.from_costs(f"{folder}/log", [0.5], gamma=0.9, normalised=True, **sizes) as builder:
        ...         builder.append([0, 0], [0, 1], [0, 0], [1, 0], [[2.0], [0.0]])
        ...     log = Dataset.open(f"{folder}/log")
        >>> log.u.ravel().round(3).tolist(), log.units.costs([0.0]).tolist()
        ([-1.0, 0.333], [0.5])
        """
        rule = CostLimits.of(limits, gamma, normalised)
        sizes = {"n_states": n_states, "n_actions": n_actions, "n_utilities": len(rule.limits)}
        builder = cls(path, **sizes, reward_scale=reward_scale, overwrite=overwrite)
        builder._costs = rule
        return builder

    @classmethod
    def of_packed(
        cls, path: str | os.PathLike[str], *, n_states: int, n_actions: int, units: Units, overwrite: bool = False
    ) -> Self:
        """Make a builder for rewards and utilities that have been divided by the scales of `units` already.

        Examples
        --------
        Keep every second transition of a log, and its units with them.

        >>> import tempfile
        >>> from dpdl import Dataset
        >>> log = Dataset([0] * 4, [0] * 4, [0] * 4, [2, 4, 6, 8], [[0]] * 4, n_states=1, n_actions=1, reward_scale=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with DatasetBuilder.of_packed(f"{folder}/log", n_states=1, n_actions=1, units=log.units) as builder:
        ...         for part in (log[:2], log[2:]):
        ...             builder.append(part.s[::2], part.a[::2], part.s_next[::2], part.r[::2], part.u[::2])
        ...     half = Dataset.open(f"{folder}/log")
        >>> half.r.tolist(), half.units.reward_scale
        ([0.25, 0.75], 8.0)
        """
        check.instance("units", units, Units)
        sizes = {"n_states": n_states, "n_actions": n_actions, "n_utilities": len(units.utility_scale)}
        units = parse_units(units.to_json() | {"utility_scale": list(units.utility_scale)}, sizes["n_utilities"])
        builder = cls(path, **sizes, overwrite=overwrite)
        builder._units = units
        return builder

    def __len__(self) -> int:
        """Return the number of transitions so far."""
        return self._n_records

    def __enter__(self) -> Self:
        if self._state != "new":
            raise RuntimeError("a builder makes one data set; make a new builder for another")
        with ExitStack() as stack:
            self._folder = stack.enter_context(replacing(self._path, self._overwrite, storage.is_replaceable))
            with naming_the_target(self._path):
                self._files = {}
                for name, dtype in ((RECORDS, self._dtype), (STARTS, _POSITIONS)):
                    file = stack.enter_context(open(self._folder / name, "xb", buffering=0))
                    _write_all(file, bytes(len(npy_header(dtype, 0))))  # overwritten once the size is known
                    self._files[name] = file
            stack.push(self._finish)
            self._stack = stack.pop_all()
        self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def append(
        self,
        s: ArrayLike,
        a: ArrayLike,
        s_next: ArrayLike,
        r: ArrayLike,
        u: ArrayLike,
        starts: ArrayLike | None = None,
        *,
        terminated: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
    ) -> None:
        """Add transitions to the end of the log.

        An invalid chunk raises an exception and leaves the log unchanged. Messages count records from the beginning of
        the log. Several threads may call this; their chunks are not interleaved.

        Parameters
        ----------
        s, a, s_next, r, u : array_like
            Columns of the chunk, as for `Dataset`; costs instead of `u` if `from_costs` made the builder.
        starts : array_like of int, optional
            Positions in this chunk at which trajectories begin. Unless 0 is among them, the first record continues the
            last trajectory of the previous chunk; ``[]`` if none begins. None, in all chunks: independent transitions.
        terminated, truncated : array_like of bool, optional
            As for `Dataset`. With `truncated`, in all chunks, instead of `starts`, an episode begins after each row
            that is terminated or truncated, also after the last row of the previous chunk.
        """
        with self._lock:
            if self._state != "open":
                raise RuntimeError(
                    "an earlier chunk could not be written, so the data set is incomplete"
                    if self._state == "failed"
                    else "append can only be called inside the builder's with statement"
                )
            first = self._n_records
            s, a, s_next = packing.moves(s, a, s_next, terminated, self._n_states, self._n_actions, first)
            if truncated is not None:
                if starts is not None:
                    raise TypeError("give either truncated or starts")
                starts = packing.starts_of_episodes(truncated, s_next, self._done)
            u = packing.columns("u" if self._costs is None else "costs", u, len(s), len(self._largest), first)
            if self._costs is None:
                records = packing.pack(s_next, r, u, self._divisors, first)
            else:
                u = self._costs.slack(u, s_next == packing.ENDED, first)
                records = packing.pack(s_next, r, np.zeros_like(u), self._divisors, first)
                records["u"] = u
            trajectories = starts is not None
            if self._trajectories is not None and trajectories != self._trajectories:
                raise TypeError("give starts with every chunk ([] if all of it continues a trajectory), or with none")
            if len(s) == 0:
                return
            if starts is not None:
                positions = packing.begins(starts, s, s_next, first, self._previous)
                self._starts.append(positions + first)
                self._n_starts += len(positions)
            self._trajectories, self._previous = trajectories, int(s_next[-1])
            self._done = s_next[-1] == packing.ENDED or (truncated is not None and bool(np.asarray(truncated)[-1]))
            self._largest = np.maximum(self._largest, abs(u).max(axis=0, initial=0.0))
            self._n_records += len(s)
            self._state = "failed"  # until everything has been written
            self._take(records, s.astype(np.int64) * self._n_actions + a)
            self._state = "open"

    def _take(self, records: NDArray[Any], flat: NDArray[np.int64]) -> None:
        """Collect records in a buffer, because numbering many pairs at once is quicker."""
        taken = 0
        while taken < len(flat):
            n = min(len(self._flat) - self._n_waiting, len(flat) - taken)
            here = slice(self._n_waiting, self._n_waiting + n)
            self._records[here], self._flat[here] = records[taken : taken + n], flat[taken : taken + n]
            self._n_waiting += n
            taken += n
            if self._n_waiting == len(self._flat):
                self._flush()

    def _flush(self) -> None:
        records = self._records[: self._n_waiting]
        records["pair"] = self._numbering.of(self._flat[: self._n_waiting])
        with naming_the_target(self._path):
            _write_all(self._files[RECORDS], records.view(np.uint8).data)
            for positions in self._starts:
                _write_all(self._files[STARTS], positions.astype(_POSITIONS).data.cast("B"))
        self._n_waiting, self._starts = 0, []

    def _finish(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state, self._state = self._state, "closed"
        if kind is not None:
            return
        if state == "failed":
            raise RuntimeError("an earlier chunk could not be written, so the data set is incomplete")
        if self._n_records == 0:
            raise ValueError("the data set is empty: no transition was appended")
        self._flush()
        for file in self._files.values():
            file.close()
        if not self._trajectories:
            os.unlink(self._folder / STARTS)
        units = self._units
        if self._costs is not None:
            units = self._costs.units(units.reward_scale, self._largest)
        n_trajectories = self._n_starts if self._trajectories else None
        n_pairs, n_utilities = len(self._numbering.pairs), len(self._largest)
        sizes = Sizes(self._n_records, self._n_states, self._n_actions, n_utilities, n_pairs, n_trajectories)
        arrays = {
            RECORDS: self._finished(np.array(units.utility_scale)),
            PAIRS: [self._numbering.pairs],
            STARTS: self._stored(STARTS, _POSITIONS),
        }
        with naming_the_target(self._path):
            storage.write(self._folder, sizes, units, arrays)

    def _finished(self, scale: NDArray[np.float64]) -> Iterator[NDArray[Any]]:
        """The records with final pair numbers and scaled utilities."""
        final = self._numbering.final
        for part in self._stored(RECORDS, self._dtype):
            part["pair"] = final[part["pair"]]
            if self._costs is not None:
                part["u"] /= scale
            yield part

    def _stored(self, name: str, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """Read back what has been written, in chunks."""
        offset = len(npy_header(dtype, 0))
        while len(part := np.fromfile(self._folder / name, dtype, packing.chunk_size(dtype), offset=offset)):
            yield part
            offset += part.nbytes


class _Numbering:
    """Numbers pairs in order of first appearance; `pairs` stays sorted, so that a pair is found by bisection."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.pairs, self.numbers = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)

    def of(self, flat: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the number of each pair; those not seen before get the next ones."""
        values, positions = packing.rank(flat, self.bound)
        place = np.searchsorted(self.pairs, values)
        new = np.append(self.pairs, -1)[place] != values
        known = len(self.pairs)
        if known + np.count_nonzero(new) > INT32_MAX:
            raise ValueError(f"the log visits more than {INT32_MAX} pairs")
        self.numbers = np.insert(self.numbers, place[new], np.arange(known, known + np.count_nonzero(new)))
        self.pairs = np.insert(self.pairs, place[new], values[new])
        return self.numbers[np.searchsorted(self.pairs, values)][positions]

    @property
    def final(self) -> NDArray[np.int32]:
        """The position in `pairs` of the pair with each number."""
        final = np.empty(len(self.pairs), dtype=np.int32)
        final[self.numbers] = np.arange(len(self.pairs), dtype=np.int32)
        return final


def _write_all(file: FileIO, raw: bytes | memoryview) -> None:
    """Write without a buffer, so that a full disk raises here and not when the file is closed."""
    rest = memoryview(raw)
    while rest:
        rest = rest[file.write(rest) :]
