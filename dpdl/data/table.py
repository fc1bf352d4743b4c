"""Reading a log from a table: labels instead of indices, episodes, missing values.

`dpdl.data.columns` loads the columns, `dpdl.data.values` checks their values, and this module orders the rows.

Nothing is made up. Rows that cannot be used are reported, and left out only where the caller asks for it or where the
next state of a row is not in the table; `Columns.notes` says how many and why. Rows are counted from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data.columns import Column, Mask, load
from dpdl.data.discretizer import Discretizer
from dpdl.data.labels import Coded, Labels
from dpdl.data.values import Codes, Faults, counted, in_rows


@dataclass(frozen=True)
class Columns:
    """A log that was read from a table."""

    s: NDArray[np.int32]  # indices into the labels
    a: NDArray[np.int32]
    s_next: NDArray[np.int32]  # -1 where terminated
    r: NDArray[np.float64]
    costs: NDArray[np.float64]  # (N, I)
    terminated: Mask
    starts: NDArray[np.int64] | None  # where trajectories begin; None if the rows are independent transitions
    initial: NDArray[np.int64] | None  # how often an episode began in each state, if `starts` does not show it
    labels: Labels
    names: tuple[str, ...]  # of the costs
    notes: tuple[str, ...]  # which rows were left out, and why


def read(
    table: Any,
    *,
    state: str | Sequence[str],
    action: str | Sequence[str],
    reward: str,
    costs: Sequence[str] | None = None,
    next_state: str | Sequence[str] | None = None,
    episode: str | None = None,
    time: str | None = None,
    terminated: str | bool | None = None,
    truncated: str | bool | None = None,
    missing: str = "error",
    discretizer: Discretizer | Mapping[str, Any] | None = None,
) -> Columns:
    """Read a table; `read_log` documents the arguments.

    Examples
    --------
    >>> table = {"ward": ["b", "a", "b"], "drug": [0, 1, 0], "gain": [1.0, 0.0, 2.0], "patient": [7, 7, 8]}
    >>> log = read(table, state="ward", action="drug", reward="gain", episode="patient", terminated=True)
    >>> log.s.tolist(), log.s_next.tolist(), log.starts.tolist(), log.labels.states
    ([1, 0, 1], [0, -1, -1], [0, 2], ('a', 'b'))
    """
    check.choice("missing", missing, ("error", "drop"))
    named = [] if costs is None or len(costs) == 0 else as_names("costs", costs)
    roles = _Roles(
        state=as_names("state", state),
        action=as_names("action", action),
        reward=_one("reward", reward),
        costs=named,
        next_state=None if next_state is None else as_names("next_state", next_state),
        episode=None if episode is None else _one("episode", episode),
        time=None if time is None else _one("time", time),
        terminated=_one_or_flag("terminated", terminated),
        truncated=_one_or_flag("truncated", truncated),
        tuples=tuple(name for name, given in (("state", state), ("action", action)) if not isinstance(given, str)),
    )
    roles.check()
    if discretizer is not None and not isinstance(discretizer, (Discretizer, Mapping)):
        raise TypeError(f"discretizer must be a Discretizer or arguments of its fit, got {discretizer!r:.200}")
    return _read(load(table, roles.by_column()), roles, discretizer, drop=missing == "drop")


def _read(
    columns: dict[str, Column],
    roles: _Roles,
    discretizer: Discretizer | Mapping[str, Any] | None,
    *,
    drop: bool,
) -> Columns:
    n = len(next(iter(columns.values())).values)
    if n == 0:
        raise ValueError("the table has no rows")
    faults = Faults(n)
    flags = {
        name: faults.flags(columns[column]) if isinstance(column, str) else np.zeros(n, dtype=bool)
        for name, column in (("terminated", roles.terminated), ("truncated", roles.truncated))
    }
    rewards = faults.numbers(columns[roles.reward])
    costs = [faults.numbers(columns[name]) for name in roles.costs]
    action = faults.codes([[columns[name]] for name in roles.action], tuples="action" in roles.tuples)
    groups = None if roles.episode is None else faults.codes([[columns[roles.episode]]])
    times = None if roles.time is None else faults.times(columns[roles.time])
    disorder = None  # raised after missing values, which may be its cause
    try:
        rows = _Rows.of(groups, times, flags, roles, faults)
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
    return Columns(
        s=indices[0],
        a=a.astype(np.int32),
        s_next=indices[1],
        r=rewards[kept],
        costs=np.stack(costs, axis=1)[kept] if costs else np.empty((len(kept), 0)),
        terminated=terminated[kept],
        starts=starts,
        initial=rows.initial(s, used[n_none:], keep, placed, starts),
        labels=Labels(
            (state.labels[k] for k in used[n_none:]), (action.labels[k] for k in used_actions), state.discretizer
        ),
        names=tuple(roles.costs),
        notes=tuple(notes),
    )


# Arguments.


@dataclass(frozen=True)
class _Roles:
    """The columns by what they are for."""

    state: list[str]
    action: list[str]
    reward: str
    costs: list[str]
    next_state: list[str] | None
    episode: str | None
    time: str | None
    terminated: str | bool | None
    truncated: str | bool | None
    tuples: tuple[str, ...]  # arguments given as lists, whose labels are tuples

    @property
    def in_row_order(self) -> bool:
        """Whether episodes follow one another in the rows and the two columns of ends separate them."""
        given = self.terminated is not None and self.truncated is not None
        return self.episode is None and given and (isinstance(self.terminated, str) or isinstance(self.truncated, str))

    def by_column(self) -> dict[str, str]:
        """For each column the argument that names it."""
        found: dict[str, str] = {}
        for role in ("reward", "costs", "state", "action", "next_state", "episode", "time", "terminated", "truncated"):
            given = getattr(self, role)
            names = given if isinstance(given, list) else [given] if isinstance(given, str) else []
            for name in names:
                if found.get(name, "reward") not in ("reward", "costs"):
                    raise ValueError(f"{found[name]} and {role} both name the column {name!r}")
                found[name] = role
        return found

    def check(self) -> None:
        """Check that the arguments say where episodes begin, and whether their last rows end them."""
        self.by_column()
        if self.next_state is not None and len(self.next_state) != len(self.state):
            raise ValueError(f"next_state must name as many columns as state, got {self.next_state} and {self.state}")
        if self.terminated is True and self.truncated is True:
            raise ValueError("terminated=True and truncated=True contradict each other: an episode ends or it does not")
        if self.episode is not None:
            if self.next_state is None and self.terminated is None and self.truncated in (None, False):
                raise ValueError(
                    "without next_state it must be said whether the last row of an episode ends it: pass terminated= "
                    "(a column, True if every episode ends, or False if the record only stops)"
                )
            return
        if self.time is not None:
            raise ValueError("time sorts the rows of an episode, so it needs episode=, the column of the episodes")
        if self.in_row_order:
            if self.terminated is True:
                raise ValueError("terminated=True is about the last row of every episode, so it needs episode=")
        elif self.next_state is None:
            raise ValueError(
                "without next_state the next row of the episode is the next state: pass episode=, or both terminated= "
                "and truncated= if the rows are in order"
            )
        elif self.terminated is True or self.truncated not in (None, False):
            raise ValueError("without episode=, terminated= must be a column or False if truncated= is given as well")


def as_names(name: str, given: Any) -> list[str]:
    """A column name, or a list of names, as a list."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) for one in names):
        raise TypeError(f"{name} must be the name of a column or a list of names, got {given!r:.200}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{name} must name distinct columns, at least one, got {list(names)}")
    return list(names)


def _one(name: str, given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{name} must be the name of a column, got {given!r:.200}")
    return given


def _one_or_flag(name: str, given: Any) -> str | bool | None:
    if given is not None and not isinstance(given, (str, bool)):
        raise TypeError(f"{name} must be the name of a column, True, False or None, got {given!r:.200}")
    return given


# Episodes.


@dataclass(frozen=True)
class _Rows:
    """The rows in the order of the log."""

    order: NDArray[np.intp]  # the rows, episode after episode
    first: Mask  # by row, whether it is the first of its episode
    last: Mask
    group: Codes | None = None  # by row, the number of its episode, if a column says which it is
    independent: bool = False  # whether there are no episodes

    @classmethod
    def of(
        cls, groups: Coded | None, times: NDArray[Any] | None, flags: dict[str, Mask], roles: _Roles, faults: Faults
    ) -> _Rows:
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

    def ends(self, flags: dict[str, Mask], roles: _Roles, faulty: Mask) -> Mask:
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

    def placed(self, roles: _Roles, faults: Faults, notes: list[str]) -> Mask:
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
        return np.bincount(np.searchsorted(used, known), minlength=len(used)) if len(known) else None
