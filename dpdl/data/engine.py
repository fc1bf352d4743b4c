"""Rows of a table as a log, or counted where the table lives, by one expression of narwhals.

It runs on DuckDB for files and frames, and on the caller's own engine (Spark, DuckDB, polars, ibis) for lazy frames: it
finds missing and malformed values, next states (by a window over episode and time), and what contradicts the order.
Then rows are fetched in the order of the log, or counted by state, action, next state and end, so that only these cells
come back: how many rows each has, how many of them were first in their episode, and mean and standard deviation of
reward and costs. Where these take few values and that makes at most `MOST_CELLS` cells, the values are part of the
cell, and the cells say exactly what the rows say. A row is a cell with one member.

Nothing is made up. Rows that cannot be used are reported, and left out only where the caller asks for it or where the
next state of a row is not in the table; `Dataset.notes` says how many and why. Rows are counted from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.data.discretizer import Discretizer
from dpdl.data.labels import Coded, Labels, merged, paired
from dpdl.data.roles import Column, Roles
from dpdl.data.table import ROW, TEXT, Table, check_names, narwhals

#: Reward and costs can be part of the cells if they take at most this many combinations of values,
FEW_VALUES = 64
#: and if that makes at most this many cells.
MOST_CELLS = 1 << 20
#: Rows in which distinct values are counted first; if there are few, in all rows.
SAMPLE = 10_000
#: Most states whose names are numbers with fractions.
MOST_FLOATS = 1000
#: How many rows, or values, a message lists.
SHOWN = 5

EPISODE, TIME, TERMINATED, TRUNCATED = "episode", "time", "terminated", "truncated"
#: Columns that are added: where a row stands in its episode, whether it ends it, and whether it cannot be used: because
#: of a fault of its own, or because a time in its episode is not known.
FIRST, BEGINS, LAST, END, BAD, LOST = "first", "begins", "last", "end", "bad", "lost"
UNKNOWN, COUNT, FOLLOWING = "unknown", "count", "following "
#: Marks of rows that contradict the order.
TWICE, APART, EARLY, STOPS, BROKEN = "twice", "apart", "early ", "stops", "broken"
MALFORMED = {"number": "not a number", "flag": "not true or false", "time": "not a number or a date"}


def is_lazy_frame(source: Any) -> bool:
    """Whether narwhals knows a frame as one that is computed elsewhere or later."""
    package, name = type(source).__module__.split(".")[0], type(source).__name__
    if package.startswith("dask"):
        raise TypeError(
            "a Dask frame cannot be counted here, because narwhals has no ordered windows for it: count it with a "
            "group-by, see docs/formats.md"
        )
    return package in ("pyspark", "duckdb", "_duckdb", "ibis", "sqlframe") or (package, name) == ("polars", "LazyFrame")


def engine_table(frame: Any, columns: Sequence[Column]) -> Table:
    """The columns of a lazy frame that have a role."""
    nw = narwhals()
    rows = nw.from_native(frame).lazy()
    schema = rows.collect_schema()
    check_names(columns, list(schema.names()))
    for each in columns:
        if each.kind != "label" and schema[each.name] == nw.String:
            raise ValueError(f"{each}: it is text, which an engine would not read as a {each.kind}: cast it there")
    chosen = [nw.col(each.name).cast(nw.Float64) if each.kind == "number" else nw.col(each.name) for each in columns]
    return Table(rows.select(*(value.alias(each.alias) for each, value in zip(columns, chosen, strict=True))))


def read_table(
    table: Table,
    roles: Roles,
    *,
    counts: bool,
    drop: bool = False,
    discretizer: Discretizer | Mapping[str, Any] | None = None,
) -> Dataset:
    """Read a table as rows, or count it; `read_log` documents the arguments.

    Returns
    -------
    Dataset
        A log with labels; of counts with the counts of first states if there are episodes.
    """
    reading = _Reading(table, roles, continuous=discretizer is not None)
    reading.find_faults(drop)
    reading.place_rows()
    if discretizer is not None:
        discretizer = reading.discretise(discretizer, table.con)
    reading.find_next_states()
    cells = reading.count() if counts else reading.fetch()
    reading.check_order(cells)
    return reading.log(cells, drop, discretizer)


class _Reading:
    """A lazy frame on its way to a log: each step adds columns to its rows, and `notes` says what was left out."""

    def __init__(self, table: Table, roles: Roles, continuous: bool) -> None:
        self.nw, self.rows, self.roles, self.labels = narwhals(), table.rows, roles, dict(table.labels)
        self.given = table.rows
        self.columns, self.discretised = roles.columns(continuous), continuous
        self.schema = self.rows.collect_schema()
        self.numbered, self.notes = ROW in self.schema, list[str]()
        self.states, self.nexts, self.actions, self.values = (
            [each.alias for each in self.columns if each.alias.startswith(prefix)]
            for prefix in ("state", "next", "action", "value")
        )
        timed = roles.episode is not None and roles.time is not None
        self.ordered = timed or (self.numbered and (roles.episode is not None or roles.in_row_order))
        if not self.ordered and roles.next_state is None:
            raise ValueError("rows of an engine have no order: pass next_state=, or episode= and time=")
        if not self.ordered and roles.terminated is True:
            raise ValueError("terminated=True is about the last row of every episode, so it needs episode= and time=")
        self.scales = [1.0] * len(self.values)

    def flag(self, name: str) -> Any:
        """Whether a flag is set; false where it is not known."""
        nw = self.nw
        return nw.coalesce(nw.col(name).cast(nw.Float64) == 1, nw.lit(False)) if name in self.schema else nw.lit(False)

    def beside(self, name: str, by: int) -> Any:
        """The value of a column `by` rows earlier in the episode (or in the table, if there is no column for it)."""
        column = self.nw.col(name).shift(by)
        order = TIME if self.roles.time is not None else ROW
        return column.over(EPISODE, order_by=order) if EPISODE in self.schema else column.over(order_by=order)

    def both_good(self, condition: Any, by: int) -> Any:
        """A condition on a row and the one `by` rows earlier, if neither is bad."""
        return condition & ~self.nw.col(BAD) & ~self.beside(BAD, by) if self.has_bad else condition

    # Missing and malformed values.

    def find_faults(self, drop: bool) -> None:
        """Mark rows with faults; raise one error for all faults, or if rows are dropped for those of episodes."""
        nw, faults = self.nw, self._faults()
        sums = [fault.cast(nw.Int64).sum().alias(f"fault{k}") for k, fault in enumerate(faults.values())]
        facts = _row(self.rows.select(nw.len().alias(COUNT), *sums))
        if not facts[COUNT]:
            raise ValueError("the table has no rows")
        occurring = {fault: int(facts[f"fault{k}"] or 0) for k, fault in enumerate(faults)}
        occurring = {fault: n for fault, n in occurring.items() if n}
        refused = [fault for fault in occurring if not drop or fault[0].role == "episode"]
        if refused:
            reason = 'the table has missing or malformed values; missing="drop" leaves out these rows'
            if drop:
                reason = "rows whose episode is not known cannot be dropped: some episode would miss a row unnoticed"
            # A column may have two roles, and its faults are listed once.
            lines = {(fault[0].name, fault[1]): self._line(fault, faults[fault], occurring[fault]) for fault in refused}
            counted_from = " (rows are counted from 0)" if self.numbered else ""
            raise ValueError(f"{reason}{counted_from}:{''.join(lines.values())}")
        by_kind = {kind: [faults[fault] for fault in occurring if fault[0].kind == kind] for kind in ("time", "flag")}
        self.has_bad, self.has_lost = bool(occurring), bool(by_kind["time"])
        real = [name for name in (*self.states, *self.nexts, *self.actions) if self.schema[name].is_float()]
        self.rows = self.rows.with_columns(
            *(nw.when(nw.col(name).is_finite()).then(nw.col(name)).alias(name) for name in real),
            self._any([faults[fault] for fault in occurring]).alias(BAD),
            self._any(by_kind["time"]).alias(LOST),
            self._any(by_kind["flag"]).alias(UNKNOWN),
        )
        if occurring:
            parts = "; ".join(f"{column}: {n:,} {what}" for (column, what), n in occurring.items())
            n = int(_row(self.rows.select(nw.col(BAD).cast(nw.Int64).sum()))[BAD])
            self.notes.append(f"{_rows(n)} left out because of missing or malformed values; {parts}")

    def _faults(self) -> dict[tuple[Column, str], Any]:
        """For each column and fault whether a row has it."""
        nw = self.nw
        faults: dict[tuple[Column, str], Any] = {}
        for each in self.columns:
            value, text, dtype = nw.col(each.alias), f"{each.alias}{TEXT}", self.schema[each.alias]
            gone = value.is_null() | value.is_nan() if dtype.is_float() else value.is_null()
            wrong = {"missing": gone}
            if text in self.schema:
                wrong = {"missing": gone & nw.col(text).is_null(), MALFORMED[each.kind]: ~nw.col(text).is_null()}
            elif each.kind == "flag" and dtype != nw.Boolean:
                wrong[MALFORMED["flag"]] = ~gone & ~value.cast(nw.Float64).is_in([0.0, 1.0])
            if dtype.is_float():
                wrong["infinite"] = ~gone & ~value.is_finite()
            for what, fault in wrong.items():
                if each.role != "next_state":
                    faults[each, what] = fault
                elif self.roles.terminated is not True:  # otherwise `log` sees it, when it is known which rows end
                    faults[each, what] = fault & ~self.flag(TERMINATED)
        return faults

    def _any(self, conditions: Sequence[Any]) -> Any:
        some = self.nw.lit(False)
        for condition in conditions:
            some = some | condition
        return some

    def _line(self, fault: tuple[Column, str], condition: Any, n: int) -> str:
        """The line about a fault: how often, in which rows, and the first values."""
        (column, what), text = fault, f"{fault[0].alias}{TEXT}"
        line = f"\n  {column}: {n:,} {what}"
        if not self.numbered:
            return line
        shown = text if text in self.schema and what == MALFORMED[column.kind] else column.alias
        line += f", {self._in_rows(condition, n)}"
        if what == "missing":
            return line
        some = _collected(self.rows.filter(condition).select(ROW, shown).sort(ROW).head(SHOWN))
        return f"{line} ({', '.join(f'{value!r:.40}' for value in some[shown].to_pylist())})"

    def _in_rows(self, condition: Any, n: int) -> str:
        """Say which rows, or which are the first."""
        rows = _collected(self.rows.filter(condition).select(ROW).sort(ROW).head(SHOWN))[ROW].to_pylist()
        listed = ", ".join(map(str, rows))
        return f"in row {listed}" if n == 1 else f"{'first ' if n > SHOWN else ''}in rows {listed}"

    # Episodes.

    def place_rows(self) -> None:
        """Add where a row stands in its episode, whether it ends it, and marks of what contradicts the order."""
        nw, roles = self.nw, self.roles
        terminated, truncated, bad = self.flag(TERMINATED), self.flag(TRUNCATED), nw.col(BAD)
        self.marks: list[str] = []
        if not self.ordered:
            no = {name: nw.lit(False) for name in (FIRST, BEGINS, LAST)}
            self.rows = self.rows.with_columns(terminated.alias(END), **no)
            return
        if roles.episode is None:
            # Where it is not known whether a row ends its episode, nothing is concluded from the row after it.
            ends = terminated | truncated
            self.rows = self.rows.with_columns(ends.alias("ends"), (ends | nw.col(UNKNOWN)).alias("cut"))
            before = {FIRST: self.beside("ends", 1), BEGINS: self.beside("cut", 1)}
            place = {name: nw.coalesce(value, nw.lit(True)) for name, value in before.items()}
            place[LAST] = nw.col("cut") | self.beside(ROW, -1).is_null()
        else:
            never_null = EPISODE if roles.time is None or self.has_lost else TIME
            first = self.beside(never_null, 1).is_null()
            place = {FIRST: first, BEGINS: first, LAST: self.beside(never_null, -1).is_null()}
        marks: dict[str, Any] = {}
        if roles.time is not None:
            marks[TWICE] = self.both_good(self.beside(TIME, 1) == nw.col(TIME), 1)
            if self.has_lost:
                place[LOST] = nw.col(LOST).cast(nw.Int64).max().over(EPISODE) == 1
        elif roles.episode is not None:
            marks[APART] = self.beside(ROW, 1) + 1 != nw.col(ROW)
        if not self.discretised:  # beside the others, so that an engine sorts the rows of episodes once
            place |= {FOLLOWING + name: self.beside(name, -1) for name in self.states}
        self.rows = self.rows.with_columns(**place, **marks)
        last = nw.col(LAST)
        self.rows = self.rows.with_columns((last & ~truncated if roles.terminated is True else terminated).alias(END))
        stops = last & ~nw.col(END) & ~bad
        for name, flag in ((TERMINATED, terminated), (TRUNCATED, truncated)):
            if name in self.schema:
                marks[EARLY + name] = flag & ~last
        if roles.truncated is False:
            marks[STOPS] = stops
        elif roles.next_state is None and roles.terminated is None and roles.truncated is not True:
            marks[STOPS] = stops & ~truncated
        self._mark({name: nw.col(name) if name in (TWICE, APART) else mark for name, mark in marks.items()})

    def _mark(self, marks: Mapping[str, Any]) -> None:
        """Add marks; nothing is concluded about episodes in which a time is not known."""
        nw = self.nw
        self.marks += marks
        known = {name: nw.coalesce(mark, nw.lit(False)) & ~nw.col(LOST) for name, mark in marks.items()}
        self.rows = self.rows.with_columns(**known) if known else self.rows

    def find_next_states(self) -> None:
        """Add the next states, none where an episode ends."""
        nw, given = self.nw, self.roles.next_state is not None
        following = []
        if self.ordered:
            following = [
                self.beside(name, -1) if self.discretised else nw.col(FOLLOWING + name) for name in self.states
            ]
        goes_on = ~nw.col(LAST)
        if given and self.ordered:
            # States and next states of different kinds cannot be compared; the error about them names both.
            kinds = [[self.schema[name] for name in pair] for pair in zip(self.states, self.nexts, strict=True)]
            alike = [one == two or (one.is_numeric() and two.is_numeric()) for one, two in kinds]
            changes = [nw.col(name) != after for name, after in zip(self.nexts, following, strict=True)]
            differ = [change for change, same in zip(changes, alike, strict=True) if same]
            self._mark({BROKEN: self.both_good(self._any(differ), -1) & ~nw.col(END) & goes_on})
        self.nexts = [name.replace("state", "next") for name in self.states]
        after = [nw.col(name) for name in self.nexts] if given else [nw.when(goes_on).then(each) for each in following]
        self.rows = self.rows.with_columns(*(each.alias(name) for each, name in zip(after, self.nexts, strict=True)))
        ends = ~nw.col(END)
        self.rows = self.rows.with_columns(*(nw.when(ends).then(nw.col(name)).alias(name) for name in self.nexts))
        for name, following_name in zip(self.states, self.nexts, strict=True):
            if name in self.labels:
                self.labels[following_name] = self.labels[name]

    def check_order(self, cells: Any) -> None:
        """Raise a ValueError for rows that contradict the order."""
        roles = self.roles
        rules = {
            TWICE: f"column {roles.time!r} (time): a time must not occur twice in an episode",
            APART: f"column {roles.episode!r} (episode): the rows of an episode must be together (sort the "
            "table, or pass time=)",
            STOPS: f"column {roles.truncated!r} (truncated): the last row of an episode is not truncated; pass "
            "terminated= to say whether it ends it (a column or True)",
            BROKEN: "episodes do not chain: a next state is not the state of the row that follows in the episode",
        }
        if roles.truncated is False:
            rules[STOPS] = "truncated=False says that every episode ends; pass truncated=True if the record stops there"
        for name in (TERMINATED, TRUNCATED):
            column = f"column {getattr(roles, name)!r} ({name})"
            rules[EARLY + name] = f"{column}: only the last row of an episode can be {name}"
        for mark in self.marks:
            n = int(_numbers(cells, mark).sum())
            if n:
                raise ValueError(f"{rules[mark]}; {self._example(mark, n)}")

    def _example(self, mark: str, n: int) -> str:
        """Say how many rows have a mark and which; of rows that contradict the row beside them show the first."""
        such, marked = f"such rows: {n:,}", self.nw.col(mark)
        if not self.numbered or mark not in (TWICE, APART, BROKEN):
            return f"{such}, {self._in_rows(marked, n)}" if self.numbered else such
        by, columns = (-1, self.states) if mark == BROKEN else (1, [])
        other = {f"other {name}": self.beside(name, by) for name in (ROW, *columns)}
        row = _row(self.rows.with_columns(**other).filter(marked).sort(ROW).head(1))

        def shown(names: Sequence[str], prefix: str = "") -> str:
            values = [row[prefix + name] for name in names]
            values = [self.labels[name][k] if name in self.labels else k for name, k in zip(names, values, strict=True)]
            return repr(values[0]) if len(values) == 1 else repr(tuple(values))

        if mark == BROKEN:
            text = f"row {row[ROW]} has the next state {shown(self.nexts)}, and row {row['other row']}, which follows, "
            return f"{text}the state {shown(self.states, 'other ')} ({such})"
        return f"rows {row['other row']} and {row[ROW]} of episode {shown([EPISODE])} ({such})"

    def discretise(self, discretizer: Discretizer | Mapping[str, Any], con: Any) -> Discretizer | None:
        """Replace the columns of states by states that a discretizer makes of them; it is fitted first if need be."""
        import pyarrow

        fetched = _collected(self.rows.select(ROW, END, *self.states, *self.nexts).sort(ROW))
        ended = fetched[END].to_numpy()
        parts = [(self.states, np.zeros(len(ended), dtype=bool))] + [(self.nexts, ended)] * bool(self.nexts)
        values = [np.column_stack([_numbers(fetched, name) for name in names]) for names, _ in parts]
        known = [np.isfinite(array).all(axis=1) & ~unused for array, (_, unused) in zip(values, parts, strict=True)]
        used = np.concatenate([array[rows] for array, rows in zip(values, known, strict=True)])
        if len(used) and not isinstance(discretizer, Discretizer):
            discretizer = Discretizer.fit(used, **discretizer)
        states = np.ma.masked_all((len(parts), len(ended)), dtype=np.int64)
        if isinstance(discretizer, Discretizer) and len(used):
            states[np.stack(known)] = discretizer.states(used)
        made = dict(zip(("state0", "next0"), states, strict=False))
        con.register("discretised", pyarrow.table({ROW: fetched[ROW]} | {k: pyarrow.array(v) for k, v in made.items()}))
        made_rows = self.nw.from_native(con.table("discretised")).lazy()
        self.rows = self.rows.drop(*self.states, *self.nexts).join(made_rows, on=ROW, how="left")
        self.states, self.nexts, self.schema = ["state0"], ["next0"] * bool(self.nexts), self.rows.collect_schema()
        fitted = discretizer if isinstance(discretizer, Discretizer) else None
        self.labels |= dict.fromkeys(made, [] if fitted is None else list(range(fitted.n_states)))
        return fitted

    # Rows and cells.

    def fetch(self) -> Any:
        """The rows in the order of the log: episodes in the order of their first rows, as columns of Arrow."""
        rows, wanted = self.rows, [*self.states, *self.nexts, *self.actions, *self.values, *self.marks]
        if self.ordered and self.roles.time is not None:
            rows = rows.with_columns(self.nw.col(ROW).min().over(EPISODE).alias("start")).sort("start", TIME)
        elif self.ordered:
            rows = rows.sort(ROW)
        return _collected(rows.select(*wanted, FIRST, BEGINS, LAST, END, BAD, LOST))

    def count(self) -> Any:
        """Cells with their counts, as columns of Arrow; the values of a cell are part of it, or its means."""
        nw, values = self.nw, self.values
        largest = [nw.when(nw.col(name).is_finite()).then(nw.col(name).abs()).max().alias(name) for name in values]
        facts = _row(self.given.select(nw.len().alias(COUNT), *largest))
        n_values = self._n_distinct()
        # Values are divided by a power of two, so that no square overflows or vanishes.
        self.scales = [math.ldexp(0.5, math.frexp(facts[name] or 1.0)[1]) for name in values]
        scaled = [(nw.col(name) / scale).alias(name) for name, scale in zip(values, self.scales, strict=True)]
        rows = self.rows.with_columns(*scaled)
        keys = [*self.states, *self.actions, *self.nexts, END, BAD, *([LOST] if self.has_lost else [])]
        sums = [nw.len().alias(COUNT)]
        sums += [nw.col(name).cast(nw.Int64).sum().alias(name) for name in (FIRST, LAST, *self.marks)]
        moments = [nw.col(name).mean().alias(name) for name in values]
        moments += [nw.col(name).std(ddof=0).alias(f"{name} std") for name in values]
        few, cells = n_values <= FEW_VALUES and int(facts[COUNT]) <= MOST_CELLS, None
        if not few:
            cells = _collected(rows.group_by(keys).agg(*sums, *moments))
            few = n_values * cells.num_rows <= MOST_CELLS
        return _collected(rows.group_by([*keys, *values]).agg(*sums)) if few else cells

    def _n_distinct(self) -> float:
        """The number of combinations of values; infinite if a sample shows too many."""
        n = math.inf
        for some in (self.given.head(SAMPLE), self.given):
            n = math.prod(_row(some.select(*(self.nw.col(name).n_unique() for name in self.values))).values())
            if n > FEW_VALUES:
                return math.inf
        return n

    def log(self, cells: Any, drop: bool, discretizer: Discretizer | None) -> Dataset:
        """Make a log of the cells; those that cannot be used, or whose next state is not known, show first states."""
        roles, counted = self.roles, COUNT in cells.column_names
        n = cells.num_rows
        count = _whole(cells, COUNT) if counted else np.broadcast_to(np.int64(1), n)
        first, last, ended, bad = (_whole(cells, name) for name in (FIRST, LAST, END, BAD))
        lost = _whole(cells, LOST) if LOST in cells.column_names else np.zeros(n, dtype=bool)
        both = self._coded(cells, [self.states, self.nexts], "state")
        (action,) = self._coded(cells, [self.actions], "action")
        usable, known = (bad == 0) & (lost == 0), (ended > 0) | (both[1].codes >= 0)
        kept = usable & known
        self._note(usable & ~known, (first, last, count), lost, drop)
        if not kept.any():
            raise ValueError("; ".join(["no row of the table can be used", *self.notes]))
        begins = None if counted or not self.ordered else _whole(cells, BEGINS) > 0
        starts = None if begins is None else self._starts(begins, kept)
        n_lost = int(first[(lost == 0) & ~kept].sum())
        if n_lost:
            self.notes.append(
                f"the first row of {n_lost:,} episode{'s' if n_lost > 1 else ''} was left out; its state, if known, "
                "still counts as one in which an episode begins, and the row after it does not"
            )
        s_next = np.where(ended > 0, -1, both[1].codes)
        states, (s_kept, next_kept), place = _occurring(len(both[0].labels), both[0].codes[kept], s_next[kept])
        actions, (a,), _ = _occurring(len(action.labels), action.codes[kept])
        begun = (first > 0) & (lost == 0) & (place[both[0].codes] >= 0)
        initial = np.bincount(place[both[0].codes[begun]], first[begun], len(states)).astype(np.int64)
        columns = [_numbers(cells, name)[kept] * scale for name, scale in zip(self.values, self.scales, strict=True)]
        terminated = ended[kept] > 0 if ended.any() else None
        given: dict[str, Any] = {
            "costs": dict(zip(roles.costs, columns[1:], strict=True)),
            "terminated": terminated,
            "n_states": len(states),
            "n_actions": len(actions),
        }
        if not counted:
            log = Dataset(s_kept, a, next_kept, columns[0], **given, starts=starts)
            whole = starts is None or (n_lost == 0 and len(starts) == first[lost == 0].sum())
            if not whole and initial.any():
                log.__dict__["_initial"] = check.frozen(initial)
        else:
            if f"{self.values[0]} std" in cells.column_names:
                stds = [
                    _numbers(cells, f"{name} std")[kept] * scale
                    for name, scale in zip(self.values, self.scales, strict=True)
                ]
                given |= {"r_std": stds[0], "cost_stds": dict(zip(roles.costs, stds[1:], strict=True))}
            given["initial"] = initial if initial.any() else None
            log = Dataset.from_counts(s_kept, a, np.maximum(next_kept, 0), count[kept], columns[0], **given)
        named = Labels((both[0].labels[k] for k in states), (action.labels[k] for k in actions), discretizer)
        log.__dict__.update(labels=named, _notes=tuple(self.notes))
        return log

    def _note(self, unknown: NDArray[np.bool_], sums: tuple[Any, Any, Any], lost: NDArray[Any], drop: bool) -> None:
        """Say which rows are left out because of a time in their episode, or because what follows is not known."""
        first, last, count = sums
        n_lost, n_stopped = int(first[lost > 0].sum()), int(last[unknown].sum())
        n_severed = int(count[unknown].sum()) - n_stopped
        if n_lost:
            some = "1 episode was" if n_lost == 1 else f"{n_lost:,} episodes were"
            self.notes.append(f"{some} left out whole, because a time there is missing or malformed")
        if self.roles.next_state is not None and n_stopped + n_severed:
            column = next(each for each in self.columns if each.role == "next_state")
            text = f"{column}: {n_stopped + n_severed:,} missing or malformed in rows that do not end an episode"
            if not drop:
                raise ValueError(f'{text}; missing="drop" leaves out these rows')
            self.notes.append(text)
            return
        if n_stopped:
            self.notes.append(
                f"{_rows(n_stopped)} left out: the record of an episode stops there, and without next_state the state "
                "that follows is not known"
            )
        if n_severed:
            self.notes.append(f"{_rows(n_severed)} left out, because the state in the row that follows is missing")

    def _starts(self, begins: NDArray[np.bool_], kept: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Where trajectories begin among the rows that are kept; one that lost a row is split there."""
        after_gap = np.append(False, ~kept[:-1]) & ~begins & kept
        if after_gap.any():
            self.notes.append(
                f"episodes are split where rows were left out (places: {after_gap.sum()}): the record before the gap "
                "counts as truncated"
            )
        return np.flatnonzero((begins | after_gap)[kept]).astype(np.int64)

    def _coded(self, cells: Any, parts: Sequence[Sequence[str]], role: str) -> list[Coded]:
        """The labels of states and next states, or of actions: values of one column, or tuples of several."""
        coded: list[list[Coded]] = []
        for names in zip(*parts, strict=True):
            columns = [each for each in self.columns if each.alias in names]
            try:
                labels, codes = merged([self._positions(cells, name) for name in names])
                if role == "state" and len(labels) > MOST_FLOATS and all(isinstance(each, float) for each in labels):
                    raise ValueError(
                        f"{len(labels):,} different numbers would be as many states: pass discretizer= to make fewer "
                        "states of them, or give the column as text if these are names"
                    )
            except (TypeError, ValueError) as error:
                raise type(error)(f"{' and '.join(map(str, columns))}: {error}") from None
            coded.append([Coded(each, labels) for each in codes])
        if role not in self.roles.tuples or (role == "state" and self.discretised):
            return coded[0]
        joined = paired([Coded(np.concatenate([each.codes for each in column]), column[0].labels) for column in coded])
        return [Coded(codes, joined.labels) for codes in np.split(joined.codes, len(parts))]

    def _positions(self, cells: Any, name: str) -> Coded:
        if name in self.labels:
            return Coded(cells[name].fill_null(-1).to_numpy().astype(np.int64), self.labels[name])
        column = cells[name].combine_chunks().dictionary_encode()
        codes = column.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
        return Coded(codes, column.dictionary.to_pylist())


def _row(rows: Any) -> dict[str, Any]:
    """The only row of a lazy frame."""
    return _collected(rows).to_pylist()[0]


def _collected(rows: Any) -> Any:
    """The rows of a lazy frame as a table of Arrow."""
    return rows.collect(backend="pyarrow").to_native()


def _whole(cells: Any, name: str) -> NDArray[Any]:
    """Marks of rows as they are, and sums of them as whole numbers."""
    array: NDArray[Any] = cells[name].to_numpy()
    return array if array.dtype == bool else array.astype(np.int64)


def _numbers(cells: Any, name: str) -> NDArray[np.float64]:
    return cells[name].to_numpy().astype(np.float64)


def _rows(n: int) -> str:
    return "1 row was" if n == 1 else f"{n:,} rows were"


def _occurring(
    n: int, *codes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[NDArray[np.int32]], NDArray[np.int32]]:
    """The codes below n that occur, the positions of all codes among them, and of each code; -1 stays -1."""
    place = np.full(n + 1, -1, dtype=np.int32)
    for part in codes:
        place[part] = 0
    place[n] = -1
    used = np.flatnonzero(place >= 0)
    place[used] = np.arange(len(used), dtype=np.int32)
    return used, [place[part] for part in codes], place
