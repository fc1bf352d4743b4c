"""What a log is once it has been packed: records, the pairs they name, trajectories, columns, and parts of it.

`Dataset` adds the ways in and out. Nothing here copies records, and what passes over all of them does so in chunks, so
that a log may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from . import _records as layout
from . import _validation as check
from ._header import PAIRS, RECORDS, STARTS, Sizes
from ._records import Units


class Log:
    """Packed records, read-only; see `Dataset` for the attributes."""

    _records: NDArray[Any]
    _table: NDArray[np.int64]
    n_states: int
    n_actions: int
    units: Units
    path: Path | None
    # Where trajectories begin after the first record, and the number of that record, both in the numbering of the log
    # that this one is a part of: a part has no array of its own until its `starts` are asked for.
    _begins: NDArray[np.int64] | None
    _first: int

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Dataset is read-only, {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Dataset is read-only, {name} cannot be deleted")

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return (
            f"Dataset({len(self)} transitions, {len(self.pairs)} of {self.n_states * self.n_actions} pairs visited, "
            f"n_states={self.n_states}, n_actions={self.n_actions}, n_utilities={self.n_utilities}, kind={self.kind!r})"
        )

    def __getitem__(self, part: slice) -> Self:
        """Cut out part of the log: a view, which copies nothing; trajectories are cut with it, and only with step 1.

        Examples
        --------
        >>> from dpdl import Dataset
        >>> log = Dataset([0, 1], [0, 0], [1, 0], [0, 1], [[0], [0]], n_states=2, n_actions=1)
        >>> log[1:].s.tolist(), log[1:].pairs.tolist()
        ([1], [1])
        """
        if not isinstance(part, slice):
            raise TypeError(f"a data set is cut with a slice, got {type(part).__name__}")
        first, last, step = part.indices(len(self))
        records = self.records[part]
        if len(records) == 0:
            raise ValueError(f"{part} of a data set of length {len(self)} is empty")
        begins = self._begins
        if begins is not None:
            if step != 1:
                raise ValueError(f"a trajectory is cut with step 1, got {part}")
            first, last = self._first + first, self._first + last
            begins = begins[np.searchsorted(begins, first, "right") : np.searchsorted(begins, last)]
        cut = type(self).__new__(type(self))
        shared = {name: getattr(self, name) for name in ("_table", "n_states", "n_actions", "units")}
        cut.__dict__.update(_records=records, **shared, path=None, _begins=begins, _first=first)
        return cut

    # What the core reads is given out as a new view each time: even of a read-only array, dtype and shape can be set.

    @property
    def records(self) -> NDArray[Any]:
        """The packed log."""
        return self._records[...]

    @property
    def table(self) -> NDArray[np.int64]:
        """The pairs that records may name, as s * n_actions + a, ascending."""
        return self._table[...]

    @cached_property
    def starts(self) -> NDArray[np.int64] | None:
        """Where trajectories begin; None if the transitions are independent."""
        if self._begins is None:
            return None
        return check.frozen(np.append(np.int64(0), self._begins - self._first))

    @cached_property
    def table_counts(self) -> NDArray[np.int64]:
        """How often each pair of `table` occurs."""
        return check.frozen(layout.count(self.records, len(self.table)))

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Visited pairs as s * n_actions + a, ascending."""
        return self.table if self.table_counts.all() else check.frozen(self.table[self.table_counts > 0])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How often each of `pairs` occurs."""
        return self.table_counts if self.table_counts.all() else check.frozen(self.table_counts[self.table_counts > 0])

    @cached_property
    def _rank(self) -> NDArray[np.int32]:
        """Position in `pairs` of each visited pair of `table`."""
        return (np.cumsum(self.table_counts > 0) - 1).astype(np.int32)

    @property
    def n_utilities(self) -> int:
        """The number I of utilities."""
        return int(self.records.dtype["u"].shape[0])

    @property
    def kind(self) -> str:
        """Whether the transitions are "independent", one "trajectory" or several "trajectories"."""
        if self._begins is None:
            return "independent"
        return "trajectory" if len(self._begins) == 0 else "trajectories"

    @property
    def pair(self) -> NDArray[np.int32]:
        """Position of each transition's pair in `pairs`."""
        if len(self.pairs) == len(self.table):
            return self.records["pair"]
        return check.frozen(self._rank[self.records["pair"]])

    @property
    def s(self) -> NDArray[np.int32]:
        """States."""
        return check.frozen((self.table // self.n_actions).astype(np.int32)[self.records["pair"]])

    @property
    def a(self) -> NDArray[np.int32]:
        """Actions."""
        return check.frozen((self.table % self.n_actions).astype(np.int32)[self.records["pair"]])

    @property
    def s_next(self) -> NDArray[np.int32]:
        """Next states."""
        return self.records["s_next"]

    @property
    def r(self) -> NDArray[np.float64]:
        """Rewards."""
        return self.records["r"]

    @property
    def u(self) -> NDArray[np.float64]:
        """Utilities, shape (N, I)."""
        return self.records["u"]

    def _fill(
        self,
        arrays: Mapping[str, NDArray[Any]],
        counts: NDArray[np.int64],
        n_states: int,
        n_actions: int,
        units: Units,
        path: Path | None = None,
    ) -> None:
        """Take arrays that nobody else has and that `storage.inspect` has passed, with the counts that it gave."""
        starts = check.frozen(arrays[STARTS]) if STARTS in arrays else None
        self.__dict__.update(
            _records=check.frozen(arrays[RECORDS]),
            _table=check.frozen(arrays[PAIRS]),
            table_counts=check.frozen(counts),
            n_states=n_states,
            n_actions=n_actions,
            units=units,
            path=path,
            starts=starts,
            _begins=None if starts is None else starts[1:],
            _first=0,
        )

    @property
    def _sizes(self) -> Sizes:
        n_trajectories = None if self._begins is None else len(self._begins) + 1
        return Sizes(len(self), self.n_states, self.n_actions, self.n_utilities, len(self.pairs), n_trajectories)

    def _arrays(self) -> dict[str, Iterable[NDArray[Any]]]:
        """The log in chunks, as a log of its own has it."""
        return {RECORDS: self._chunks(), PAIRS: [self.pairs], STARTS: [] if self.starts is None else [self.starts]}

    def _chunks(self) -> Iterator[NDArray[Any]]:
        for view in layout.chunks(self.records):
            part = view
            if len(self.pairs) < len(self.table):
                part = view.copy()
                part["pair"] = self._rank[view["pair"]]
            yield part
