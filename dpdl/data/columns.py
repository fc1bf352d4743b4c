"""Columns of anything tabular, as NumPy arrays and masks of what is missing or malformed.

A dictionary of arrays or lists and a structured array are read by NumPy. CSV and Parquet files, folders and lists of
them, and data frames of pandas, polars and pyarrow are read by DuckDB (``pip install 'dpdl[table]'``), which keeps to
`MEMORY` and spills to the disk beyond it. A value is missing if it is null or NaN; in a CSV also if it is empty or one
of `NULLS`. Labels in a CSV are text: the label ``2`` is never the number 2, and ``007`` is not ``7``.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl.data.labels import distinct_labels, plain

Mask = NDArray[np.bool_]

CSV, PARQUET = (".csv", ".csv.gz"), (".parquet", ".pq")
#: Memory of DuckDB, in addition to the columns that are returned; beyond it, DuckDB writes to temporary files.
MEMORY = "2GB"
#: Bytes of the longest row of a CSV, quoted line breaks included.
LONGEST_ROW = 1 << 26
#: Bytes that reading takes for every row, besides those of its columns; a table for which this is too much is refused.
PER_ROW = 64
#: How many rows, or values, a message lists.
SHOWN = 5
#: What a CSV may say for a missing value, besides nothing.
NULLS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "NaN",
    "n/a", "nan", "null",
)  # fmt: skip
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_REAL = ("FLOAT", "DOUBLE")


@dataclass(frozen=True)
class Column:
    """A column with its values as its kind says: numbers, flags (1 or 0), times, or labels.

    Labels are positions in `labels`, or themselves if that is None. `wrong` are the rows whose values are malformed,
    and `shown` the first of these values.
    """

    name: str
    role: str
    values: NDArray[Any]
    missing: Mask
    wrong: Mask | None = None
    shown: Sequence[Any] = ()
    labels: list[Any] | None = None

    def __str__(self) -> str:
        return f"column {self.name!r} ({self.role})"


def load(table: Any, roles: Mapping[str, tuple[str, str]]) -> dict[str, Column]:
    """Load the columns that `roles` names, each with the argument that names it and its kind.

    A kind is "number", "flag", "time" or "label". A ValueError lists all columns that are not there.
    """
    opened = _opened(table)
    names = opened.names
    absent = {name: role for name, (role, _) in roles.items() if name not in names}
    if absent:
        listed = ", ".join(f"{name!r} ({role}){_meant(name, names)}" for name, role in absent.items())
        raise ValueError(f"the table has no column {listed}; its columns are {', '.join(map(repr, names))}")
    twice = [name for name in roles if names.count(name) > 1]
    if twice:
        raise ValueError(f"the table has more than one column {', '.join(map(repr, twice))}")
    columns = opened.load(roles)
    lengths = {str(column): len(column.values) for column in columns.values()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns differ in length: {', '.join(f'{n} in {name}' for name, n in lengths.items())}")
    return columns


def refuse_large(n_bytes: float, what: str) -> None:
    """Raise a ValueError if something would take more than half of the machine's memory."""
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2 if hasattr(os, "sysconf") else 4e9
    if n_bytes > half:
        raise ValueError(
            f"{what} would take {n_bytes / 1e9:.3g} GB of memory, and at most {half / 1e9:.3g} GB are used; "
            "read_log(..., counts=True) reads counts instead of rows"
        )


def duckdb_module() -> Any:
    """Import DuckDB; the error says how to install it."""
    try:
        import duckdb
    except ImportError:
        raise ImportError("files and data frames need duckdb: pip install 'dpdl[table]'") from None
    return duckdb


def files_of(source: Any) -> list[str] | None:
    """The files of a path, a folder, a pattern, or a list of these, in natural order; None if it is nothing of it.

    ``part-10`` comes after ``part-2``. A list keeps its order.
    """
    if isinstance(source, (list, tuple)) and source and all(isinstance(one, (str, os.PathLike)) for one in source):
        return [file for one in source for file in files_of(one) or ()]
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = os.fspath(source)
    if os.path.isdir(path):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        found = [
            one for one in found if one.endswith(CSV + PARQUET) and not os.path.basename(one).startswith(("_", "."))
        ]
        if not found:
            raise ValueError(f"{path}: the folder has no CSV or Parquet files")
        return sorted(found, key=_natural)
    if os.path.exists(path):
        return [path]
    found = glob.glob(path, recursive=True)
    if not found:
        raise FileNotFoundError(f"there is no file {path}")
    return sorted(found, key=_natural)


def create_source(con: Any, source: Any, columns: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Make files or a data frame the view ``source`` of a connection, and return names and types of its columns.

    Rows are in order. A CSV is read as text, and only once.
    """
    files, chosen = files_of(source), "*" if columns is None else ", ".join(map(_quoted, columns))
    if files is None:
        con.register("given", source)
        con.execute(f"CREATE OR REPLACE TEMP VIEW source AS SELECT {chosen} FROM given")
    elif all(file.endswith(CSV) for file in files):
        con.execute(f"CREATE TEMP TABLE source AS SELECT {chosen} FROM {_csv(files)}")
    elif all(file.endswith(PARQUET) for file in files):
        con.execute(f"CREATE OR REPLACE TEMP VIEW source AS SELECT {chosen} FROM read_parquet({_listed(files)})")
    else:
        raise ValueError(f"{files[0]}: a table is a .csv or .parquet file, or several files of one of these kinds")
    return [(name, kind) for name, kind, *_ in con.execute("DESCRIBE source").fetchall()]


def _csv(files: list[str]) -> str:
    nulls = _listed(["", *NULLS])
    return (
        f"read_csv({_listed(files)}, header=true, all_varchar=true, delim=',', quote='\"', escape='\"', "
        f"nullstr={nulls}, max_line_size={LONGEST_ROW}, buffer_size={2 * LONGEST_ROW})"
    )


def _listed(texts: Iterable[str]) -> str:
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"


def typed_view(con: Any, kinds: Mapping[str, str], drop: bool) -> str:
    """The name of a view of ``source`` in which numbers, times and flags that are text have their types."""
    chosen = []
    for name, sql_type, *_ in con.execute("DESCRIBE source").fetchall():
        text, kind = _quoted(name), kinds.get(name, "label") if sql_type == "VARCHAR" else "label"
        expression = text if kind == "label" else _expression(con, text, sql_type, kind)
        expression = expression if drop else expression.replace("TRY_CAST", "CAST")
        chosen.append(f"{expression} AS {text}")
    con.execute(f"CREATE OR REPLACE TEMP VIEW typed AS SELECT {', '.join(chosen)} FROM source")
    return "typed"


def _expression(con: Any, text: str, sql_type: str, kind: str) -> str:
    """A column as a number, a flag or a time: numbers as they are, instants as microseconds since 1970 in UTC."""
    if kind == "number":
        return _number(text, sql_type)
    if kind == "flag":
        lower = f"lower({text}::VARCHAR)"
        return f"CASE WHEN {lower} IN ('true', '1', '1.0') THEN 1.0 WHEN {lower} IN ('false', '0', '0.0') THEN 0.0 END"
    if sql_type == "VARCHAR":
        number = f"TRY_CAST({text} AS DOUBLE)"
        wrong = f"SELECT 1 FROM source WHERE {text} IS NOT NULL AND {number} IS NULL LIMIT 1"
        return f"epoch_us(TRY_CAST({text} AS TIMESTAMPTZ))" if con.execute(wrong).fetchall() else number
    if sql_type in _WHOLE or sql_type in _REAL:
        return text
    if sql_type.startswith("DECIMAL") or sql_type == "HUGEINT":
        return f"CAST({text} AS DOUBLE)"
    return f"epoch_ns({text})" if sql_type == "TIMESTAMP_NS" else f"epoch_us({text})"


def _number(text: str, sql_type: str) -> str:
    if sql_type in _WHOLE or sql_type in _REAL or sql_type == "BOOLEAN":
        return f"CAST({text} AS DOUBLE)"
    return f"TRY_CAST({text}{'' if sql_type == 'VARCHAR' else '::VARCHAR'} AS DOUBLE)"


def connect() -> Any:
    """A connection to a DuckDB of its own, in memory."""
    spill = os.path.join(tempfile.gettempdir(), f"dpdl-{secrets.token_hex(8)}")  # DuckDB makes and removes it
    con = duckdb_module().connect(config={"memory_limit": MEMORY, "temp_directory": spill, "custom_user_agent": "dpdl"})
    con.execute("SET TimeZone = 'UTC'")
    return con


def _natural(path: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _meant(name: str, names: Sequence[Any]) -> str:
    close = difflib.get_close_matches(name, [one for one in names if isinstance(one, str)], n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _opened(table: Any) -> _Arrays | _Table:
    if isinstance(table, np.ndarray) and table.dtype.names is not None:
        return _Arrays({name: table[name] for name in table.dtype.names})
    if isinstance(table, Mapping):
        return _Arrays(table)
    if files_of(table) is None and not (hasattr(table, "__arrow_c_stream__") or hasattr(table, "__dataframe__")):
        raise TypeError(
            "source must be a data frame, an Arrow table, a dictionary of arrays, a structured array or a path, "
            f"got {type(table).__name__}"
        )
    return _Table(table)


def _header(con: Any, file: str) -> list[str]:
    """The names in the first row of a CSV, in which DuckDB would rename what is there twice."""
    rows = con.execute(f"SELECT * FROM {_csv([file]).replace('header=true', 'header=false')} LIMIT 1").fetchall()
    if not rows or rows[0] == (None,):
        raise ValueError("the file is empty")
    return ["" if name is None else name for name in rows[0]]


class _Table:
    """Files or a data frame, read by DuckDB."""

    def __init__(self, source: Any) -> None:
        self.con = connect()
        self.source = source = source.read_all() if hasattr(source, "read_all") else source  # batches come only once
        files = files_of(source)
        if hasattr(source, "column_names"):
            self.names = list(source.column_names)
        elif files is None and isinstance(getattr(source, "columns", None), Iterable):
            self.names = list(source.columns)
        else:
            with one_line():
                self.names = _header(self.con, files[0]) if files and files[0].endswith(CSV) else []
                self.names = self.names or [name for name, _ in create_source(self.con, source)]

    def load(self, roles: Mapping[str, tuple[str, str]]) -> dict[str, Column]:
        """Load the columns that have a role."""
        objects = {}
        if hasattr(self.source, "dtypes") and hasattr(self.source, "iloc"):  # of pandas: objects may be of many kinds
            objects = {name: self.source[name].to_numpy() for name in roles if self.source[name].dtype == object}
        rest = [name for name in roles if name not in objects]
        loaded = _Arrays(objects).load({name: roles[name] for name in objects})
        if rest:
            with one_line():
                types = dict(create_source(self.con, self.source, rest))
                n = int(self.con.execute("SELECT count(*) FROM source").fetchall()[0][0])
                refuse_large(n * (PER_ROW + 16 * len(rest)), f"a table of {n:,} rows")
                loaded |= {name: self._column(name, *roles[name], types[name]) for name in rest}
        return {name: loaded[name] for name in roles}

    def _column(self, name: str, role: str, kind: str, sql_type: str) -> Column:
        text = _quoted(name)
        if kind != "label":
            expression = _expression(self.con, text, sql_type, kind)
            values, absent, missing = self._arrays(expression, text)
            wrong, shown = absent & ~missing, []
            if wrong.any():
                rows = f"SELECT {text} FROM source WHERE {text} IS NOT NULL AND {expression} IS NULL LIMIT {SHOWN}"
                shown = [row[0] for row in self.con.execute(rows).fetchall()]
            return Column(name, role, values, missing, wrong, shown)
        if sql_type == "BOOLEAN" or sql_type in _WHOLE or sql_type in _REAL:
            values, _, missing = self._arrays(text, text)
            return Column(name, role, values, missing)
        value = f"timezone('UTC', {text})" if sql_type == "TIMESTAMP WITH TIME ZONE" else text
        there = f"FROM source WHERE {text} IS NOT NULL GROUP BY k ORDER BY k"
        distinct = self.con.execute(f"SELECT {text}::VARCHAR AS k, any_value({value}) {there}").fetchall()
        names = ", ".join("'" + key.replace("'", "''") + "'" for key, _ in distinct) or "''"
        self.con.execute(f"CREATE OR REPLACE TYPE label AS ENUM ({names})")
        values, _, missing = self._arrays(f"enum_code({text}::VARCHAR::label)::BIGINT", text)
        return Column(name, role, values, missing, labels=[_tuple(label) for _, label in distinct])

    def _arrays(self, expression: str, text: str) -> tuple[NDArray[Any], Mask, Mask]:
        """Values of an expression, 0 where there are none, and where there are none and where the column has none."""
        fetched = self.con.execute(f"SELECT {expression} AS v, {text} IS NULL AS m FROM source").fetchnumpy()
        absent, missing = np.ma.getmaskarray(fetched["v"]), np.asarray(fetched["m"], dtype=bool)
        values = np.ma.getdata(fetched["v"])
        nan = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
        nan &= ~absent
        return np.where(absent | nan, 0, values), absent, missing | nan


@contextmanager
def one_line() -> Iterator[None]:
    """Turn an error of DuckDB into a ValueError of one line."""
    try:
        yield
    except duckdb_module().Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"it cannot be read: {' '.join(lines[:3]):.400}") from None


class _Arrays:
    """A dictionary of arrays or lists."""

    def __init__(self, table: Mapping[Any, Any]) -> None:
        self.table, self.names = table, list(table)

    def load(self, roles: Mapping[str, tuple[str, str]]) -> dict[str, Column]:
        """Load the columns that have a role."""
        return {name: self._column(name, *roles[name]) for name in roles}

    def _column(self, name: str, role: str, kind: str) -> Column:
        values, missing = _of_values(name, self.table[name])
        if kind == "label":
            return Column(name, role, values, missing)
        if kind == "time" and values.dtype.kind == "M":
            values = values.astype(np.int64)
        elif kind == "time" and values.dtype.kind == "O" and all(isinstance(one, date) for one in values[~missing]):
            positions = np.zeros(len(values), dtype=np.int64)
            positions[~missing] = distinct_labels(values[~missing]).codes
            values = positions
        if values.dtype.kind in "biuf":
            values = np.where(missing, 0, values)
            wrong = (kind == "flag") & (values != 0) & (values != 1)
            return Column(name, role, values, missing, wrong, values[wrong][:SHOWN].tolist())
        numbers, wrong = np.zeros(len(values)), np.zeros(len(values), dtype=bool)
        for k in np.flatnonzero(~missing):
            try:
                numbers[k] = _as_number(values[k], kind)
            except (TypeError, ValueError, OverflowError):
                wrong[k] = True
        return Column(name, role, numbers, missing, wrong, [plain(one) for one in values[wrong][:SHOWN]])


def _as_number(value: Any, kind: str) -> float:
    if kind == "time" or not isinstance(value, (Real, Decimal, np.bool_)) or (kind == "flag" and value not in (0, 1)):
        raise TypeError
    return float(value)


def _tuple(value: Any) -> Any:
    """A list, as which engines hold a tuple, as a tuple."""
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _of_values(name: str, values: Any) -> tuple[NDArray[Any], Mask]:
    """A column of a dictionary or of a structured array."""
    if isinstance(values, np.ma.MaskedArray):
        found, missing = _of_values(name, values.data)
        return found, missing | np.ma.getmaskarray(values)
    if isinstance(values, (list, tuple)):
        return _of_objects(np.fromiter(values, dtype=object, count=len(values)))
    if not hasattr(values, "__array__"):
        raise TypeError(f"column {name!r} must be an array or a list, got {type(values).__name__}")
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"column {name!r} must have one dimension, got shape {array.shape}")
    if array.dtype.kind == "O":
        return _of_objects(array)
    missing = array != array if array.dtype.kind in "fcM" else np.zeros(len(array), dtype=bool)  # NaN and NaT
    return array, missing


def _of_objects(array: NDArray[Any]) -> tuple[NDArray[Any], Mask]:
    """Objects as an array of their own kind if they are numbers of one kind, and where they are missing."""
    missing = np.fromiter(map(_is_missing, array), dtype=bool, count=len(array))
    kinds = set(map(type, array[~missing]))
    for number, dtype in ((bool, np.bool_), (Integral, np.int64), (Real, np.float64)):
        if kinds and all(issubclass(kind, number) and (number is bool or kind is not bool) for kind in kinds):
            values = np.zeros(len(array), dtype=dtype)
            try:
                values[~missing] = array[~missing]
                return values, missing
            except OverflowError:
                return array, missing
    return array, missing


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.generic)) and bool(value != value)
