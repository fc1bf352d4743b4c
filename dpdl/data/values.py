"""Values of a table's columns: numbers, flags, times and labels, and what is missing or malformed in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl.data.columns import Column, Mask
from dpdl.data.discretizer import Discretizer
from dpdl.data.labels import Coded, merged, one_kind, ordered, paired, plain

Codes = NDArray[np.int64]

#: How many rows a message lists.
SHOWN = 5
#: Most states whose names are numbers with fractions.
MOST_FLOATS = 1000


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
        reason, found = 'the table has missing or malformed values; missing="drop" leaves out these rows', self.found
        if drop:
            reason = "rows whose episode is not known cannot be dropped: some episode would miss a row unnoticed"
            found = [one for one in found if one[0].name == episode]
        lines = [
            f"\n  {column}: {rows.sum()} {what}, {in_rows(rows)}"
            + ("" if what == "missing" else f" ({_shown(column, rows)})")
            for column, what, rows in found
        ]
        if lines:
            raise ValueError(f"{reason} (rows are counted from 0):{''.join(lines)}")

    def notes(self) -> list[str]:
        """Say how many rows are left out."""
        if not self.found:
            return []
        parts = [f"{column}: {rows.sum()} {what}" for column, what, rows in self.found]
        return [f"{counted(self.any)} left out because of missing or malformed values; {'; '.join(parts)}"]

    def numbers(self, column: Column) -> NDArray[np.float64]:
        """Finite numbers; True and False count as 1 and 0."""

        def number(value: Any) -> float:
            if isinstance(value, (Real, Decimal, np.bool_)):
                return float(value)
            raise TypeError

        values = self._converted(column, number, "biuf", "not a number")
        infinite = np.isinf(values)
        self.add(column, "infinite", infinite)
        return np.where(infinite, 0.0, values)

    def flags(self, column: Column) -> Mask:
        """True or False, or 1 or 0."""

        def flag(value: Any) -> float:
            if isinstance(value, (bool, Real)):
                return float(value)
            raise TypeError

        values = self._converted(column, flag, "biuf", "not true or false")
        wrong = (values != 0) & (values != 1)
        self.add(column, "not true or false", wrong)
        return values == 1

    def times(self, column: Column) -> NDArray[Any]:
        """Numbers or dates, as an array that can be sorted."""
        values = column.values
        if values.dtype.kind == "O" and all(isinstance(one, date) for one in values[~column.missing]):
            values = _factorised(values, ~column.missing).codes
        if values.dtype.kind in "iuM" and not column.wrong:
            self.add(column, "missing", column.missing)
            return values
        values = self._converted(column, _refuse, "fi", "not a number or a date")
        self.add(column, "infinite", np.isinf(values))
        return values

    def codes(self, parts: list[list[Column]], *, tuples: bool = False, unused: Mask | None = None) -> Coded:
        """Labels made of one column, or of several as tuples.

        Each part is a column, perhaps followed by that of the next states, whose values in the rows `unused` are not
        looked at.
        """
        coded = []
        for part in parts:
            valid = []
            for k, column in enumerate(part):
                used = np.ones(self.n, dtype=bool) if k == 0 or unused is None else ~unused
                infinite = np.isinf(column.values) if column.values.dtype.kind == "f" else np.zeros(self.n, dtype=bool)
                self.add(column, "missing", column.missing & used)
                self.add(column, "infinite", infinite & used)
                valid.append(used & ~column.missing & ~infinite)
            try:
                coded.append(_coded_labels(part, np.concatenate(valid)))
                if part[0].role == "state":
                    _refuse_measurements(coded[-1].labels)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{' and '.join(map(str, part))}: {error}") from None
        return paired(coded) if tuples else coded[0]

    def cells(self, parts: list[list[Column]], discretizer: Discretizer | Mapping[str, Any], unused: Mask) -> Coded:
        """States that a discretizer, fitted first if need be, makes of columns of numbers; otherwise as `codes`."""
        values, valid = [], []
        for which in range(len(parts[0])):
            used = ~unused if which else np.ones(self.n, dtype=bool)
            columns = [part[which] for part in parts]
            if which:
                columns = [_without(one, unused) for one in columns]
            values.append(np.stack([self.numbers(one) for one in columns], axis=1))
            valid.append(used & ~self.of(*(one.name for one in columns)))
        everything, known = np.concatenate(values), np.concatenate(valid)
        codes = np.full(len(everything), -1, dtype=np.int64)
        if not known.any():
            return Coded(codes, [])
        if not isinstance(discretizer, Discretizer):
            discretizer = Discretizer.fit(everything[known], **discretizer)
        codes[known] = discretizer.states(everything[known])
        return Coded(codes, list(range(discretizer.n_states)), discretizer)

    def _converted(
        self, column: Column, convert: Callable[[Any], float], kinds: str, fault: str
    ) -> NDArray[np.float64]:
        self.add(column, "missing", column.missing)
        values = column.values
        if column.wrong is not None:
            wrong = np.zeros(len(values), dtype=bool)
            wrong[list(column.wrong)] = True
            self.add(column, fault, wrong)
        if values.dtype.kind in kinds and column.labels is None:
            return np.where(column.missing, 0, values).astype(np.float64)
        if column.labels is not None:
            values = np.array([*column.labels, None], dtype=object)[np.where(column.missing, -1, values)]
        found, wrong = np.zeros(len(values)), np.zeros(len(values), dtype=bool)
        for k in np.flatnonzero(~column.missing):
            try:
                found[k] = convert(values[k])
            except (KeyError, TypeError, ValueError, OverflowError):
                wrong[k] = True
        self.add(column, fault, wrong)
        return found


def _without(column: Column, rows: Mask) -> Column:
    """A column whose values in some rows are not looked at."""
    values = column.values if column.values.dtype.kind in "biuf" else column.values.astype(object)
    wrong = None if column.wrong is None else {k: one for k, one in column.wrong.items() if not rows[k]}
    return replace(column, values=np.where(rows, 0, values), missing=column.missing & ~rows, wrong=wrong)


def _refuse(value: Any) -> float:
    raise TypeError


def _coded_labels(part: list[Column], valid: Mask) -> Coded:
    """Labels of a column, and of that of the next states if there is one."""
    if all(column.labels is None for column in part):
        return _factorised(_concatenated([column.values for column in part]), valid)
    coded = []
    for column in part:
        labels, codes = column.labels, column.values
        if labels is None:
            distinct, codes = np.unique(column.values, return_inverse=True)
            labels = distinct.tolist()
        coded.append(Coded(np.where(column.missing, -1, codes), labels))
    labels, positions = merged(coded)
    return Coded(np.where(valid, np.concatenate(positions), -1), labels)


def _refuse_measurements(labels: list[Any]) -> None:
    """Raise a ValueError for states that are thousands of numbers with fractions: measurements, not names of states."""
    if len(labels) > MOST_FLOATS and all(isinstance(label, float) for label in labels):
        raise ValueError(
            f"{len(labels):,} different numbers would be as many states: pass discretizer= to make fewer states of "
            "them, or give the column as text if these are names"
        )


def _concatenated(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Arrays one after the other; NumPy would make text of numbers beside text."""
    kinds = {array.dtype.kind for array in arrays}
    return np.concatenate(arrays if len(kinds) == 1 or kinds <= set("iuf") else [one.astype(object) for one in arrays])


def _factorised(values: NDArray[Any], valid: Mask) -> Coded:
    """Distinct labels in their order, and the position of each value among them."""
    codes = np.full(len(values), -1, dtype=np.int64)
    present = values[valid]
    if values.dtype.kind == "M" and np.datetime_data(values.dtype)[0] not in ("Y", "M", "W", "D"):
        rounded = present.astype("M8[us]")
        if (rounded.astype(present.dtype) != present).any():
            raise ValueError("times that are not whole microseconds cannot be labels")
        present = rounded
    if values.dtype.kind == "O":
        examples: dict[type, Any] = {}
        for value in present:
            examples.setdefault(type(value), value)
        one_kind([plain(value) for value in examples.values()])  # True and 1 would be one label
        seen: dict[Hashable, int] = {}
        firsts = [seen.setdefault(plain(value), len(seen)) for value in present]
        labels = ordered(seen)
        rank = np.empty(len(seen), dtype=np.int64)
        rank[[seen[label] for label in labels]] = np.arange(len(seen))
        codes[valid] = rank[firsts] if firsts else 0
        return Coded(codes, labels)
    if values.dtype.kind == "f" and (abs(present) > 2**53).any():
        raise ValueError("numbers beyond 2^53 are not exact as floats: give labels as whole numbers or as text")
    distinct, positions = np.unique(present, return_inverse=True)
    codes[valid] = positions
    if distinct.dtype.kind == "f" and (distinct == np.trunc(distinct)).all():
        return Coded(codes, [int(one) for one in distinct])  # a missing value makes floats of whole numbers
    return Coded(codes, (distinct + 0.0 if distinct.dtype.kind == "f" else distinct).tolist())


def counted(rows: Mask, one: str = "was", many: str = "were") -> str:
    """Number of rows, with the form of the verb that goes with it."""
    n = int(rows.sum())
    return f"{n} row {one}" if n == 1 else f"{n:,} rows {many}"


def in_rows(rows: Mask) -> str:
    """Say which rows, or which are the first."""
    found = np.flatnonzero(rows)
    listed = ", ".join(map(str, found[:SHOWN]))
    return f"in row {listed}" if len(found) == 1 else f"{'first ' if len(found) > SHOWN else ''}in rows {listed}"


def _shown(column: Column, rows: Mask) -> str:
    first, wrong = np.flatnonzero(rows)[:SHOWN].tolist(), column.wrong or {}
    return ", ".join(f"{wrong[k] if k in wrong else plain(_value(column, k))!r:.40}" for k in first)


def _value(column: Column, k: int) -> Any:
    return column.values[k] if column.labels is None else column.labels[column.values[k]]
