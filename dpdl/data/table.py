"""Tables as lazy frames of DuckDB: files, data frames and dictionaries of arrays, with typed columns.

DuckDB keeps to `MEMORY` and spills to the disk beyond it. A value is missing if it is null or NaN; in a CSV also if it
is empty or one of `NULLS`. Labels in a CSV are text: the label ``2`` is never the number 2, and ``007`` is not ``7``.
Numbers, times and flags may be text that says them.
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
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from dpdl.data.labels import distinct_labels
from dpdl.data.roles import Column

CSV, PARQUET = (".csv", ".csv.gz"), (".parquet", ".pq")
#: Memory of DuckDB, in addition to the columns that are returned; beyond it, DuckDB writes to temporary files.
MEMORY = "2GB"
#: Bytes of the longest row of a CSV, quoted line breaks included.
LONGEST_ROW = 1 << 26
#: Bytes that reading takes for every row, besides those of its columns; a table for which this is too much is refused.
PER_ROW = 64
#: What a CSV may say for a missing value, besides nothing.
NULLS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "NaN",
    "n/a", "nan", "null",
)  # fmt: skip
#: The column with the number of a row, and the ending of columns with the text of values that are malformed.
ROW, TEXT = "row", " text"
_NUMBERS = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|BOOLEAN|DECIMAL.*")


class Table(NamedTuple):
    """A lazy frame of narwhals whose columns are called by their roles."""

    rows: Any
    labels: dict[str, list[Any]] = {}  # noqa: RUF012 - of columns that hold positions, the labels there
    con: Any = None  # the connection to DuckDB, if it is ours: then rows can be numbered


def open_table(source: Any, columns: Sequence[Column], *, counts: bool, numbered: bool) -> Table:
    """Make the columns that have a role a lazy frame; a ValueError lists all columns that are not there.

    Where a number, a time or a flag is text, a column with the ending `TEXT` holds what is malformed. With `numbered`
    there is a column `ROW`. A table whose rows would not fit into memory is refused unless it is counted.
    """
    con, nw = connect(), narwhals()
    labels: dict[str, list[Any]] = {}
    if files_of(source) is None:
        given, names = _columns_of(source)
        check_names(columns, names)
        if given is not None:
            source, labels = _arrow(columns, given)
        elif hasattr(source, "read_all"):
            source = source.read_all()  # batches come only once
        quoted = {each: _quoted(each.name if given is None else each.alias) for each in columns}
    else:
        check_names(columns, _names_of_files(con, source))
        quoted = {each: _quoted(each.name) for each in columns}
    by_name = dict(create_source(con, source, dict.fromkeys(quoted.values())))
    types = {each: by_name[text[1:-1].replace('""', '"')] for each, text in quoted.items()}
    n = con.execute("SELECT count(*) FROM source").fetchone()[0]
    if n == 0:
        raise ValueError("the table has no rows")
    if not counts:
        refuse_large(n * (PER_ROW + 16 * len(columns)), f"a table of {n:,} rows")
    chosen = [f"row_number() OVER () - 1 AS {ROW}"] if numbered else []
    for each, text in quoted.items():
        if each.kind == "label":
            chosen.append(f"{text if counts else _label(con, each, quoted, types)} AS {each.alias}")
            continue
        value, may_fail = _typed(con, text, types[each], each.kind)
        chosen.append(f"{value} AS {each.alias}")
        if may_fail:
            chosen.append(f'CASE WHEN {value} IS NULL THEN {text}::VARCHAR END AS "{each.alias}{TEXT}"')
    con.execute(f"CREATE TEMP VIEW typed AS SELECT {', '.join(chosen)} FROM source")
    con.execute(f"SET preserve_insertion_order = {str(numbered).lower()}")
    return Table(nw.from_native(con.table("typed")).lazy(), labels, con)


def _typed(con: Any, text: str, sql_type: str, kind: str) -> tuple[str, bool]:
    """A column as a number, a flag or a time, and whether values may be malformed, which gives NULL."""
    if _NUMBERS.fullmatch(sql_type):
        return (f"CAST({text} AS DOUBLE)" if kind == "number" or sql_type == "HUGEINT" else text), False
    if kind == "flag":
        lower = f"lower({text}::VARCHAR)"
        true, false = f"{lower} IN ('true', '1', '1.0')", f"{lower} IN ('false', '0', '0.0')"
        return f"CASE WHEN {true} THEN 1 WHEN {false} THEN 0 END", True
    if kind == "time" and sql_type.startswith(("DATE", "TIMESTAMP")):
        return text, False
    number = f"TRY_CAST({text}::VARCHAR AS DOUBLE)"
    if kind == "time":
        wrong = f"SELECT 1 FROM source WHERE {text} IS NOT NULL AND {number} IS NULL LIMIT 1"
        number = f"TRY_CAST({text} AS TIMESTAMPTZ)" if con.execute(wrong).fetchall() else number
    return number, True


def _label(con: Any, column: Column, quoted: Mapping[Column, str], types: Mapping[Column, str]) -> str:
    """A column of labels; text becomes the positions of an ENUM, which states and next states share."""
    together = [each for each in quoted if each.alias in paired_aliases(column.alias)]
    if column.role == "episode" or not all(types[each].startswith(("VARCHAR", "ENUM")) for each in together):
        return quoted[column]
    enum = f"labels_of_{together[0].alias}"
    if column == together[0]:
        every = " UNION ".join(f"SELECT {quoted[each]}::VARCHAR AS label FROM source" for each in together)
        con.execute(f"CREATE TYPE {enum} AS ENUM (SELECT * FROM ({every}) WHERE label IS NOT NULL ORDER BY label)")
    return f"{quoted[column]}::VARCHAR::{enum}"


def check_names(columns: Sequence[Column], names: Sequence[Any]) -> None:
    """Raise a ValueError for columns that a table does not have, or has twice."""
    absent = {each.name: each for each in columns if each.name not in names}
    if absent:
        listed = ", ".join(f"{name!r} ({each.role}){_meant(name, names)}" for name, each in absent.items())
        raise ValueError(f"the table has no column {listed}; its columns are {', '.join(map(repr, names))}")
    twice = dict.fromkeys(each.name for each in columns if names.count(each.name) > 1)
    if twice:
        raise ValueError(f"the table has more than one column {', '.join(map(repr, twice))}")


def _meant(name: str, names: Sequence[Any]) -> str:
    close = difflib.get_close_matches(name, [each for each in names if isinstance(each, str)], n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def refuse_large(n_bytes: float, what: str) -> None:
    """Raise a ValueError if something would take more than half of the machine's memory."""
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2 if hasattr(os, "sysconf") else 4e9
    if n_bytes > half:
        raise ValueError(
            f"{what} would take {n_bytes / 1e9:.3g} GB of memory, and at most {half / 1e9:.3g} GB are used; "
            "read_log(..., counts=True) reads counts instead of rows"
        )


# DuckDB and files.


def duckdb_module() -> Any:
    """Import DuckDB; the error says how to install it."""
    try:
        import duckdb
    except ImportError:
        raise ImportError("tables need duckdb: pip install 'dpdl[table]'") from None
    return duckdb


def narwhals() -> Any:
    """Import narwhals; the error says how to install it."""
    try:
        import narwhals
    except ImportError:
        raise ImportError("tables need narwhals: pip install 'dpdl[table]'") from None
    return narwhals


def connect() -> Any:
    """A connection to a DuckDB of its own, in memory."""
    spill = os.path.join(tempfile.gettempdir(), f"dpdl-{secrets.token_hex(8)}")  # DuckDB makes and removes it
    con = duckdb_module().connect(config={"memory_limit": MEMORY, "temp_directory": spill, "custom_user_agent": "dpdl"})
    con.execute("SET TimeZone = 'UTC'")
    return con


@contextmanager
def one_line() -> Iterator[None]:
    """Turn an error of DuckDB into a ValueError of one line."""
    try:
        yield
    except duckdb_module().Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"it cannot be read: {' '.join(lines[:3]):.400}") from None


def files_of(source: Any) -> list[str] | None:
    """The files of a path, a folder, a pattern, or a list of these, in natural order; None if it is nothing of it.

    ``part-10`` comes after ``part-2``. A list keeps its order.
    """
    if isinstance(source, (list, tuple)) and source and all(isinstance(each, (str, os.PathLike)) for each in source):
        return [file for each in source for file in files_of(each) or ()]
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = os.fspath(source)
    if os.path.isdir(path):
        files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        files = [file for file in files if file.endswith(CSV + PARQUET)]
        files = [file for file in files if not os.path.basename(file).startswith(("_", "."))]
        if not files:
            raise ValueError(f"{path}: the folder has no CSV or Parquet files")
    else:
        files = [path] if os.path.exists(path) else glob.glob(path, recursive=True)
        if not files:
            raise FileNotFoundError(f"there is no file {path}")
    return sorted(files, key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file)])


def create_source(con: Any, source: Any, quoted: Iterable[str] = ("*",)) -> list[tuple[str, str]]:
    """Make files or a table of Arrow the view ``source`` of a connection; return names and types of its columns.

    Rows are in order. A CSV is read as text, and only once.
    """
    files, chosen = files_of(source), ", ".join(quoted)
    if files is None:
        con.register("given", source)
        con.execute(f"CREATE TEMP VIEW source AS SELECT {chosen} FROM given")
    elif all(file.endswith(CSV) for file in files):
        con.execute(f"CREATE TEMP TABLE source AS SELECT {chosen} FROM {_csv(files)}")
    elif all(file.endswith(PARQUET) for file in files):
        con.execute(f"CREATE TEMP VIEW source AS SELECT {chosen} FROM read_parquet({_listed(files)})")
    else:
        raise ValueError(f"{files[0]}: a table is a .csv or .parquet file, or several files of one of these kinds")
    return [(name, kind) for name, kind, *_ in con.execute("DESCRIBE source").fetchall()]


def _names_of_files(con: Any, source: Any) -> list[str]:
    """The names of the columns; in the header of a CSV DuckDB would rename what is there twice."""
    file = (files_of(source) or [""])[0]
    if not file.endswith(CSV):
        names = [name for name, _ in create_source(con, source)]
        con.execute("DROP VIEW source")
        return names
    rows = con.execute(f"SELECT * FROM {_csv([file]).replace('header=true', 'header=false')} LIMIT 1").fetchall()
    if not rows or rows[0] == (None,):
        raise ValueError("the file is empty")
    return ["" if name is None else name for name in rows[0]]


def _csv(files: list[str]) -> str:
    nulls = _listed(["", *NULLS])
    return (
        f"read_csv({_listed(files)}, header=true, all_varchar=true, delim=',', quote='\"', escape='\"', "
        f"nullstr={nulls}, max_line_size={LONGEST_ROW}, buffer_size={2 * LONGEST_ROW})"
    )


def _listed(texts: Iterable[str]) -> str:
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Data frames, dictionaries of arrays and structured arrays.


def _columns_of(source: Any) -> tuple[Any, list[Any]]:
    """Columns by name, or None if DuckDB reads the source itself; and the names."""
    if isinstance(source, np.ndarray) and source.dtype.names is not None:
        return source, list(source.dtype.names)
    if isinstance(source, Mapping):
        return source, list(source)
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # of pandas
        return source, list(source.columns)
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return None, list(source.columns if hasattr(source, "get_columns") else source.schema.names)
    raise TypeError(
        "source must be a data frame, an Arrow table, a dictionary of arrays, a structured array or a path, "
        f"got {type(source).__name__}"
    )


def _arrow(columns: Sequence[Column], given: Any) -> tuple[Any, dict[str, list[Any]]]:
    """A table of Arrow of the columns that have a role, and the labels of those that then hold positions.

    Objects of Python become text if they are to be numbers, times or flags. As labels they become positions.
    """
    import pyarrow

    arrays = {each.alias: _array(each.name, given[each.name]) for each in columns}
    lengths = {str(each): len(arrays[each.alias]) for each in columns}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns differ in length: {', '.join(f'{n} in {name}' for name, n in lengths.items())}")
    objects = [each for each in columns if arrays[each.alias].dtype == object]
    labels: dict[str, list[Any]] = {}
    for each in objects:
        if each.kind != "label":
            present = ~np.ma.getmaskarray(arrays[each.alias])
            arrays[each.alias][present] = [str(value) for value in arrays[each.alias][present]]
        elif each.alias not in labels:
            pair = [other for other in columns if other.alias in paired_aliases(each.alias)]
            joined = np.ma.concatenate([_boxed(arrays[other.alias]) for other in pair])
            present = ~np.ma.getmaskarray(joined)
            try:
                coded = distinct_labels(joined.data[present])
            except (TypeError, ValueError) as error:
                raise type(error)(f"{' and '.join(map(str, pair))}: {error}") from None
            positions = np.ma.zeros(len(joined), dtype=np.int64)
            positions[present], positions[~present] = coded.codes, np.ma.masked
            for other, part in zip(pair, np.split(positions, len(pair)), strict=True):
                arrays[other.alias], labels[other.alias] = part, coded.labels
    return pyarrow.table({alias: pyarrow.array(array, from_pandas=True) for alias, array in arrays.items()}), labels


def paired_aliases(alias: str) -> tuple[str, str]:
    """The names of a column of states and of the column of next states that has the same labels."""
    return alias.replace("next", "state"), alias.replace("state", "next")


def _array(name: str, values: Any) -> Any:
    """A column of a mapping as a Series of pandas or an array; it has objects only if they are not of one kind."""
    if isinstance(values, (list, tuple)):
        values = np.fromiter(values, dtype=object, count=len(values))
    if not hasattr(values, "__array__"):
        raise TypeError(f"column {name!r} must be an array or a list, got {type(values).__name__}")
    if hasattr(values, "iloc") and values.dtype != object:  # of pandas
        return values
    array = values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"column {name!r} must have one dimension, got shape {array.shape}")
    if array.dtype.kind in "OcV":
        return _unboxed(_boxed(array))
    if array.dtype.kind == "M" and np.datetime_data(array.dtype)[0] not in ("D", "s", "ms", "us", "ns"):
        return array.astype("M8[us]")
    wide = np.float64 if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8) else array.dtype
    return array.astype(np.dtype(wide).newbyteorder("="), copy=False)


def _boxed(array: Any) -> Any:
    """An array as objects of Python, masked where they are missing."""
    values = np.fromiter(np.ma.getdata(array), dtype=object, count=len(array))
    missing = np.fromiter(map(_is_missing, values), dtype=bool, count=len(values))
    return np.ma.array(values, mask=missing | np.ma.getmaskarray(array))


def _unboxed(array: Any) -> Any:
    """Objects as an array of their own kind if they are numbers of one kind."""
    present = ~array.mask
    kinds = set(map(type, array.data[present]))
    for number, dtype in ((bool, np.bool_), (Integral, np.int64), (Real, np.float64)):
        if kinds and all(issubclass(kind, number) and (number is bool or kind is not bool) for kind in kinds):
            numbers = np.ma.zeros(len(array), dtype=dtype)
            try:
                numbers[present], numbers[~present] = array.data[present], np.ma.masked
                return numbers
            except OverflowError:
                break
    return array


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.generic)) and bool(value != value)
