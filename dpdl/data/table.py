"""Reading a log from a table: labels instead of indices, episodes, missing values.

`dpdl.data.columns` loads the columns; this module collects what is missing or malformed, and orders the rows.

Nothing is made up. Rows that cannot be used are reported, and left out only where the caller asks for it or where the
next state of a row is not in the table; `Dataset.notes` says how many and why. Rows are counted from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data.columns import SHOWN, Column, Mask, load
from dpdl.data.dataset import Dataset
from dpdl.data.discretizer import Discretizer
from dpdl.data.labels import Coded, Labels, distinct_labels, merged, paired, plain
from dpdl.data.roles import Roles

Codes = NDArray[np.int64]

#: Most states whose names are numbers with fractions.
MOST_FLOATS = 1000
NO_FLAG = "not true or false"


def read_rows(
    table: Any, roles: Roles, discretizer: Discretizer | Mapping[str, Any] | None = None, *, drop: bool = False
) -> Dataset:
    """Read the rows of a table; `read_log` documents the arguments.

    Examples
    --------
    >>> table = {"ward": ["b", "a", "b"], "drug": [0, 1, 0], "gain": [1.0, 0.0, 2.0], "patient": [7, 7, 8]}
    >>> roles = Roles.named(state="ward", action="drug", reward="gain", episode="patient", terminated=True)
    >>> log = read_rows(table, roles)
    >>> log.s.tolist(), log.s_next.tolist(), log.starts.tolist(), log.labels.states
    ([1, 0, 1], [0, -1, -1], [0, 2], ('a', 'b'))
    """
    if discretizer is not None and not isinstance(discretizer, (Discretizer, Mapping)):
        raise TypeError(f"discretizer must be a Discretizer or arguments of its fit, got {discretizer!r:.200}")
    columns = load(table, roles.kinds(continuous=discretizer is not None))
    n = len(next(iter(columns.values())).values)
    if n == 0:
        raise ValueError("the table has no rows")
    faults = Faults(n)
    flags = {
        name: faults.numbers(columns[column], "not true or false") == 1
        if isinstance(column, str)
        else np.zeros(n, bool)
        for name, column in (("terminated", roles.terminated), ("truncated", roles.truncated))
    }
    rewards = faults.numbers(columns[roles.reward]).astype(np.float64)
    costs = [faults.numbers(columns[name]).astype(np.float64) for name in roles.costs]
    action = faults.codes([[columns[name]] for name in roles.action], tuples="action" in roles.tuples)
    groups = None if roles.episode is None else faults.codes([[columns[roles.episode]]])
    times = None if roles.time is None else faults.numbers(columns[roles.time], "not a number or a date")
    disorder = None  # raised after missing values, which may be its cause
    try:
        rows = Rows.of(groups, times, flags, roles, faults)
        terminated = rows.ends(flags, roles, faults.any)
    except ValueError as error:
        disorder, terminated = error, flags["terminated"] | (roles.terminated is True)
    states = [[columns[name]] for name in roles.state]
    if roles.next_state is not None:  # of a row that ends its episode the next state is not used, and may be missing
        for column, name in zip(states, roles.next_state, strict=True):
            column.append(columns[name])
    if discretizer is None:
        state = faults.codes(states, tuples="state" in roles.tuples, unused=terminated)
    else:
        state = faults.cells(states, discretizer, terminated)
    faults.refuse(drop, roles.episode)
    if disorder is not None:
        raise disorder
    notes = faults.notes()
    placed = rows.placed(roles, faults, notes)
    keep = ~faults.any & placed
    s = state.codes[:n]
    if roles.next_state is not None:
        s_next = state.codes[n:]
        rows.check_chain(s, s_next, terminated, keep, state.labels)
    else:
        s_next = rows.following(s)
        keep &= rows.with_next(keep, terminated, s_next, notes)
    if not keep.any():
        raise ValueError("; ".join(["no row of the table can be used", *notes]))
    starts = rows.starts(keep, notes)
    rows.note_lost_starts(keep, placed, notes)
    kept = rows.order[keep[rows.order]]
    both = np.stack([s[kept], np.where(terminated, -1, s_next)[kept]])
    used, positions = np.unique(both, return_inverse=True)
    used_actions, a = np.unique(action.codes[kept], return_inverse=True)
    n_none = np.count_nonzero(used < 0)  # -1 is no state
    indices = (positions - n_none).reshape(2, -1).astype(np.int32)
    ended = terminated[kept]
    log = Dataset(
        indices[0],
        a,
        indices[1],
        rewards[kept],
        costs={name: column[kept] for name, column in zip(roles.costs, costs, strict=True)},
        n_states=len(used) - int(n_none),
        n_actions=len(used_actions),
        terminated=ended if ended.any() else None,
        starts=starts,
    )
    labels = Labels(
        (state.labels[k] for k in used[n_none:]), (action.labels[k] for k in used_actions), state.discretizer
    )
    initial = rows.initial(s, used[n_none:], keep, placed, starts)
    log.__dict__.update(labels=labels, _notes=tuple(notes), _initial=initial)
    return log


# Missing and malformed values.


@dataclass
class Faults:
    """Missing and malformed values, by column."""

    n: int
    found: list[tuple[Column, str, Mask]] = field(default_factory=list)

    @property
    def any(self) -> Mask:
        """Rows with a fault."""
        return self.of(*{column.name for column, _, _ in self.found})

    def of(self, *names: str) -> Mask:
        """Rows with a fault in one of these columns."""
        bad = np.zeros(self.n, dtype=bool)
        for column, _, rows in self.found:
            if column.name in names:
                bad |= rows
        return bad

    def add(self, column: Column, what: str, rows: Mask) -> None:
        """Add a fault, if it occurs; a column may have two roles, and its faults count once."""
        known = any((one.name, fault) == (column.name, what) for one, fault, _ in self.found)
        if rows.any() and not known:
            self.found.append((column, what, rows))

    def refuse(self, drop: bool, episode: str | None) -> None:
        """Raise one error for all faults, or if rows are dropped for those in the column `episode`."""
        reason, faults = 'the table has missing or malformed values; missing="drop" leaves out these rows', self.found
        if drop:
            reason = "rows whose episode is not known cannot be dropped: some episode would miss a row unnoticed"
            faults = [fault for fault in faults if fault[0].name == episode]
        lines = [
            f"\n  {column}: {rows.sum()} {what}, {in_rows(rows)}"
            + ("" if what == "missing" else f" ({', '.join(f'{value!r:.40}' for value in _shown(column, rows))})")
            for column, what, rows in faults
        ]
        if lines:
            raise ValueError(f"{reason} (rows are counted from 0):{''.join(lines)}")

    def notes(self) -> list[str]:
        """Say how many rows are left out."""
        if not self.found:
            return []
        parts = [f"{column}: {rows.sum()} {what}" for column, what, rows in self.found]
        return [f"{counted(self.any)} left out because of missing or malformed values; {'; '.join(parts)}"]

    def numbers(self, column: Column, fault: str = "not a number", unused: Mask | None = None) -> NDArray[Any]:
        """Finite numbers or times; the values in the rows `unused` are not looked at."""
        used = np.ones(self.n, dtype=bool) if unused is None else ~unused
        infinite = np.isinf(column.values) if column.values.dtype.kind == "f" else np.zeros(self.n, dtype=bool)
        self.add(column, "missing", column.missing & used)
        if column.wrong is not None:
            self.add(column, fault, column.wrong & used)
        self.add(column, "infinite", infinite & used)
        return np.where(infinite, 0, column.values)

    def codes(self, parts: list[list[Column]], *, tuples: bool = False, unused: Mask | None = None) -> Coded:
        """Labels made of one column, or of several as tuples.

        Each part is a column, perhaps followed by that of the next states, whose values in the rows `unused` are not
        looked at.
        """
        labels = []
        for part in parts:
            try:
                labels.append(self._labels(part, unused))
                if part[0].role == "state":
                    _refuse_measurements(labels[-1].labels)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{' and '.join(map(str, part))}: {error}") from None
        return paired(labels) if tuples else labels[0]

    def _labels(self, part: list[Column], unused: Mask | None) -> Coded:
        coded = []
        for k, column in enumerate(part):
            valid = np.ones(self.n, dtype=bool) if k == 0 or unused is None else ~unused
            infinite = np.isinf(column.values) if column.values.dtype.kind == "f" else np.zeros(self.n, dtype=bool)
            self.add(column, "missing", column.missing & valid)
            self.add(column, "infinite", infinite & valid)
            valid &= ~column.missing & ~infinite
            own = distinct_labels(column.values[valid]) if column.labels is None else None
            codes = np.full(self.n, -1, dtype=np.int64)
            codes[valid] = column.values[valid] if own is None else own.codes
            coded.append(Coded(codes, (column.labels or []) if own is None else own.labels))
        labels, positions = merged(coded)
        return Coded(np.concatenate(positions), labels)

    def cells(self, parts: list[list[Column]], discretizer: Discretizer | Mapping[str, Any], unused: Mask) -> Coded:
        """States that a discretizer, fitted first if need be, makes of columns of numbers; otherwise as `codes`."""
        values, valid = [], []
        for which in range(len(parts[0])):
            skipped = unused if which else np.zeros(self.n, dtype=bool)
            columns = [part[which] for part in parts]
            values.append(np.stack([self.numbers(column, unused=skipped) for column in columns], axis=1))
            valid.append(~skipped & ~self.of(*(column.name for column in columns)))
        everything, known = np.concatenate(values).astype(np.float64), np.concatenate(valid)
        codes = np.full(len(everything), -1, dtype=np.int64)
        if not known.any():
            return Coded(codes, [])
        if not isinstance(discretizer, Discretizer):
            discretizer = Discretizer.fit(everything[known], **discretizer)
        codes[known] = discretizer.states(everything[known])
        return Coded(codes, list(range(discretizer.n_states)), discretizer)


def _refuse_measurements(labels: list[Any]) -> None:
    """Raise a ValueError for states that are thousands of numbers with fractions: measurements, not names of states."""
    if len(labels) > MOST_FLOATS and all(isinstance(label, float) for label in labels):
        raise ValueError(
            f"{len(labels):,} different numbers would be as many states: pass discretizer= to make fewer states of "
            "them, or give the column as text if these are names"
        )


def counted(rows: Mask, one: str = "was", many: str = "were") -> str:
    """Number of rows, with the form of the verb that goes with it."""
    n = int(rows.sum())
    return f"{n} row {one}" if n == 1 else f"{n:,} rows {many}"


def in_rows(rows: Mask) -> str:
    """Say which rows, or which are the first."""
    places = np.flatnonzero(rows)
    listed = ", ".join(map(str, places[:SHOWN]))
    return f"in row {listed}" if len(places) == 1 else f"{'first ' if len(places) > SHOWN else ''}in rows {listed}"


def _shown(column: Column, rows: Mask) -> Sequence[Any]:
    """The first malformed or infinite values."""
    if column.wrong is not None and (rows <= column.wrong).all():
        return column.shown
    return [plain(value) for value in column.values[rows][:SHOWN]]


# Episodes.


@dataclass(frozen=True)
class Rows:
    """The rows in the order of the log."""

    order: NDArray[np.intp]  # the rows, episode after episode
    first: Mask  # by row, whether it is the first of its episode
    last: Mask
    group: Codes | None = None  # by row, the number of its episode, if a column says which it is
    independent: bool = False  # whether there are no episodes

    @classmethod
    def of(
        cls, groups: Coded | None, times: NDArray[Any] | None, flags: dict[str, Mask], roles: Roles, faults: Faults
    ) -> Rows:
        """Order the rows."""
        n = faults.n
        if groups is None:
            if not roles.in_row_order:
                return cls(np.arange(n), np.ones(n, dtype=bool), np.ones(n, dtype=bool), independent=True)
            # Where it is not known whether a row ends its episode, nothing is concluded from the row after it.
            unknown = faults.of(*(one for one in (roles.terminated, roles.truncated) if isinstance(one, str)))
            ends = flags["terminated"] | flags["truncated"]
            return cls(np.arange(n), np.append(True, ends[:-1]), np.append((ends | unknown)[:-1], True))
        _, firsts, group = np.unique(groups.codes, return_index=True, return_inverse=True)
        group = np.argsort(np.argsort(firsts))[group]  # by first appearance
        if times is not None:
            order = np.lexsort((times, group))
            same = (times[order][1:] == times[order][:-1]) & (group[order][1:] == group[order][:-1])
            known = ~faults.any[order]
            same &= known[1:] & known[:-1]
            if same.any():
                k = int(np.argmax(same))
                one, two = sorted(order[k : k + 2].tolist())
                raise ValueError(
                    f"column {roles.time!r} (time): a time must not occur twice in an episode, but rows {one} and "
                    f"{two} of episode {groups.labels[groups.codes[one]]!r} have the same time "
                    f"(such rows in the table: {same.sum()})"
                )
        else:
            order = np.arange(n)
            begins = np.append(True, group[1:] != group[:-1])
            if np.count_nonzero(begins) > group.max() + 1:
                k = np.flatnonzero(begins)[np.argmax(np.diff(np.maximum.accumulate(group[begins]), prepend=-1) == 0)]
                before = int(np.flatnonzero(group[:k] == group[k])[-1])
                raise ValueError(
                    f"column {roles.episode!r} (episode): the rows of an episode must be together, but those of "
                    f"{groups.labels[groups.codes[k]]!r} go on in row {k} after row {before}; "
                    "sort the table, or pass time="
                )
        first, last = np.empty((2, n), dtype=bool)
        changes = group[order][1:] != group[order][:-1]
        first[order], last[order] = np.append(True, changes), np.append(changes, True)
        return cls(order, first, last, group)

    def ends(self, flags: dict[str, Mask], roles: Roles, faulty: Mask) -> Mask:
        """Return which rows end their episodes, by row."""
        terminated, truncated = flags["terminated"], flags["truncated"]
        if self.independent:
            return terminated
        if roles.terminated is True:
            terminated = self.last & ~truncated
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            early = flag & ~self.last
            if early.any():
                raise ValueError(
                    f"column {getattr(roles, name)!r} ({name}): only the last row of an episode can be {name}, "
                    f"but {counted(early, 'is', 'are')} {name} before it, {in_rows(early)}"
                )
        stops = self.last & ~terminated & ~faulty
        if roles.truncated is False and stops.any():
            raise ValueError(
                f"truncated=False says that every episode ends, but {counted(stops, 'is', 'are')} the last of an "
                f"episode and not terminated, {in_rows(stops)}; pass truncated=True if the record stops there"
            )
        stops &= ~truncated
        if roles.next_state is None and roles.terminated is None and roles.truncated is not True and stops.any():
            raise ValueError(
                f"column {roles.truncated!r} (truncated): {counted(stops, 'is', 'are')} the last of an episode and not "
                f"truncated, {in_rows(stops)}; pass terminated= to say whether they end it (a column or True)"
            )
        return terminated

    def following(self, s: Codes) -> Codes:
        """State of the row that follows in the episode, by row; -1 if it is not known."""
        following = np.full(len(s), -1, dtype=np.int64)
        following[self.order[:-1]] = s[self.order[1:]]
        following[self.last] = -1
        return following

    def with_next(self, keep: Mask, terminated: Mask, s_next: Codes, notes: list[str]) -> Mask:
        """Return which rows have a next state or need none; the notes say how many have not."""
        unknown = (s_next < 0) & ~terminated
        stopped, broken = keep & unknown & self.last, keep & unknown & ~self.last
        if stopped.any():
            notes.append(
                f"{counted(stopped)} left out: the record of an episode stops there, and without next_state the state "
                "that follows is not known"
            )
        if broken.any():
            notes.append(f"{counted(broken)} left out, because the state in the row that follows is missing")
        return ~unknown

    def placed(self, roles: Roles, faults: Faults, notes: list[str]) -> Mask:
        """Return which rows have a place in their episode: none of an episode in which a time is missing."""
        if self.group is None or roles.time is None:
            return np.ones(faults.n, dtype=bool)
        lost = np.unique(self.group[faults.of(roles.time)])
        if lost.size:
            some = "1 episode was" if lost.size == 1 else f"{lost.size:,} episodes were"
            notes.append(f"{some} left out whole, because a time there is missing or malformed")
        return ~np.isin(self.group, lost)

    def check_chain(self, s: Codes, s_next: Codes, terminated: Mask, keep: Mask, labels: Sequence[Any]) -> None:
        """Check that the next state of a row is the state of the row that follows in its episode."""
        if self.independent:
            return
        one, two = self.order[:-1], self.order[1:]
        broken = (s_next[one] != s[two]) & keep[one] & keep[two] & ~self.last[one] & ~terminated[one]
        if broken.any():
            k = int(np.argmax(broken))
            i, j = one[k], two[k]
            raise ValueError(
                f"episodes do not chain: the next state in row {i} is {labels[s_next[i]]!r}, but row {j}, which "
                f"follows in the same episode, has the state {labels[s[j]]!r} (such rows in the table: {broken.sum()})"
            )

    def starts(self, keep: Mask, notes: list[str]) -> NDArray[np.int64] | None:
        """Where trajectories begin among the rows that are kept; one that lost a row is split there."""
        if self.independent:
            return None
        kept = keep[self.order]
        begins = np.append(True, self.last[self.order][:-1])
        after_gap = np.append(False, ~kept[:-1]) & ~begins & kept
        if after_gap.any():
            notes.append(
                f"episodes are split where rows were left out (places: {after_gap.sum()}): the record before the gap "
                "counts as truncated"
            )
        return np.flatnonzero((begins | after_gap)[kept]).astype(np.int64)

    def note_lost_starts(self, keep: Mask, placed: Mask, notes: list[str]) -> None:
        """Say how many episodes lost their first row."""
        lost = self.first & placed & ~keep
        if not self.independent and lost.any():
            notes.append(
                f"the first row of {lost.sum():,} episode{'s' if lost.sum() > 1 else ''} was left out; its state, if "
                "known, still counts as one in which an episode begins, and the row after it does not"
            )

    def initial(
        self, s: Codes, used: Codes, keep: Mask, placed: Mask, starts: Codes | None
    ) -> NDArray[np.int64] | None:
        """How often an episode began in each of the states `used`; None if `starts` shows it, or if it is not known."""
        first = self.first & placed
        if starts is None or (keep[first].all() and len(starts) == np.count_nonzero(first)):
            return None
        known = s[first & np.isin(s, used)]
        return check.frozen(np.bincount(np.searchsorted(used, known), minlength=len(used))) if len(known) else None
