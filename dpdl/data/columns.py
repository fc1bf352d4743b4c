"""Columns of anything tabular, as NumPy arrays and masks of what is missing.

A table is a dictionary of arrays or lists, a structured array, a data frame of pandas or polars, a pyarrow table (or
another object with the Arrow interface ``__arrow_c_stream__``), or the path of a CSV or Parquet file. pyarrow is needed
for files only, and is not imported before it is needed. A value is missing if it is null or NaN; in a CSV also if it is
empty or one of the words that pyarrow takes for null, such as ``NA``. Labels in a CSV are numbers if all of the column
are, and none has leading zeros: ``007`` is text.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

CSV, PARQUET = (".csv", ".csv.gz"), (".parquet", ".pq")
#: Roles of columns whose values are names, so that 007 is not 7.
LABELS = ("state", "action", "next_state", "episode")


@dataclass(frozen=True)
class Column:
    """A column: its values, and where they are missing. Text is an array of objects or of kind U."""

    name: str
    role: str
    values: NDArray[Any]
    missing: Mask
    from_text: bool = False  # a CSV, in which one bad value makes text of a column of numbers

    def __str__(self) -> str:
        return f"column {self.name!r} ({self.role})"


def load(table: Any, roles: dict[str, str]) -> dict[str, Column]:
    """The columns that `roles` names; a ValueError lists all that are not there."""
    names, load = _opened(table)
    absent = {name: role for name, role in roles.items() if name not in names}
    if absent:
        listed = ", ".join(f"{name!r} ({role}){_meant(name, names)}" for name, role in absent.items())
        raise ValueError(f"the table has no column {listed}; its columns are {', '.join(map(repr, names))}")
    twice = [name for name in roles if names.count(name) > 1]
    if twice:
        raise ValueError(f"the table has more than one column {', '.join(map(repr, twice))}")
    found = load(list(roles))
    from_text = isinstance(table, (str, os.PathLike)) and os.fspath(table).endswith(CSV)
    if from_text:
        found |= _labels_as_written(os.fspath(table), {name: found[name] for name in roles if roles[name] in LABELS})
    columns = {name: Column(name, role, *found[name], from_text) for name, role in roles.items()}
    lengths = {str(column): len(column.values) for column in columns.values()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns differ in length: {', '.join(f'{n} in {name}' for name, n in lengths.items())}")
    return columns


def column_names(table: Any) -> list[Any]:
    """Names of all columns of a table.

    Examples
    --------
    >>> column_names({"ward": ["a"], "drug": [1]})
    ['ward', 'drug']
    """
    return _opened(table)[0]


def _meant(name: str, names: Sequence[Any]) -> str:
    close = difflib.get_close_matches(name, [one for one in names if isinstance(one, str)], n=1)
    return f", did you mean {close[0]!r}?" if close else ""


Loaded = dict[str, tuple[NDArray[Any], Mask]]


def _opened(table: Any) -> tuple[list[Any], Callable[[list[str]], Loaded]]:
    """Names of all columns, and a function that loads some of them."""
    if isinstance(table, (str, os.PathLike)):
        return _opened_file(os.fspath(table))
    if isinstance(table, np.ndarray) and table.dtype.names is not None:
        return list(table.dtype.names), lambda names: {name: _of_values(name, table[name]) for name in names}
    if isinstance(table, Mapping):
        return list(table), lambda names: {name: _of_values(name, table[name]) for name in names}
    if not (hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__")):
        raise TypeError(
            "table must be a data frame, an Arrow table, a dictionary of arrays, a structured array or a path, "
            f"got {type(table).__name__}{'; call its collect() first' if hasattr(table, 'collect') else ''}"
        )
    for attribute in ("column_names", "columns"):  # of pyarrow; of pandas and polars
        if hasattr(table, attribute):
            return list(getattr(table, attribute)), lambda names: _of_frame(table, names)
    return _opened(_pyarrow().table(table))


def _of_frame(frame: Any, names: list[str]) -> Loaded:
    """Columns of a data frame, through Arrow; objects of pandas as they are, because Arrow converts mixed kinds."""
    objects = {name for name in names if getattr(frame[name], "dtype", None) == np.dtype(object)}
    try:
        import pyarrow
    except ImportError:
        objects = set(names)
    found = {name: _of_objects(np.asarray(frame[name], dtype=object)) for name in objects}
    if rest := [name for name in names if name not in objects]:
        table = pyarrow.table(frame.select(rest) if hasattr(frame, "select") else frame[rest])
        found |= {name: _of_arrow(table.column(name)) for name in rest}
    return found


def _opened_file(path: str) -> tuple[list[Any], Callable[[list[str]], Loaded]]:
    pa = _pyarrow()
    import pyarrow.csv
    import pyarrow.dataset

    def naming_the_file(load: Callable[[], Any]) -> Any:
        try:
            return load()
        except pa.ArrowException as error:
            raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None

    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}")
    if path.endswith(CSV):

        def load(names: list[str]) -> Loaded:
            options = pyarrow.csv.ConvertOptions(include_columns=names, strings_can_be_null=True)
            table = naming_the_file(lambda: pyarrow.csv.read_csv(path, convert_options=options))
            return {name: _of_arrow(table.column(name)) for name in names}

        return naming_the_file(lambda: pyarrow.csv.open_csv(path).schema.names), load
    if path.endswith(PARQUET) or os.path.isdir(path):
        source = naming_the_file(lambda: pyarrow.dataset.dataset(path, format="parquet"))
        return source.schema.names, lambda names: {
            name: _of_arrow(column)
            for name, column in zip(names, naming_the_file(lambda: source.to_table(names)).columns, strict=True)
        }
    raise ValueError(f"{path}: a table must be a .csv or .parquet file or a folder of Parquet files")


def _labels_as_written(path: str, columns: Loaded) -> Loaded:
    """Those of the columns whose labels are text although pyarrow takes them for numbers.

    Two spellings of one value, as 250.1 and 250.10, are two labels or one: the file does not say, which is an error.
    """
    import pyarrow as pa
    import pyarrow.csv

    names = [name for name, (values, _) in columns.items() if values.dtype.kind != "O"]
    if not names:
        return {}
    options = pyarrow.csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, pa.string()))
    table, found = pyarrow.csv.read_csv(path, convert_options=options), {}
    for name in names:
        values, missing = columns[name]
        texts = table.column(name).to_numpy().astype(object)
        firsts: dict[Any, str] = {}
        for text, value in dict(zip(texts[~missing], values[~missing].tolist(), strict=True)).items():
            other = firsts.setdefault(value, text)
            if other != text:
                raise ValueError(
                    f"{path}: column {name!r} has labels that are written differently and have the same value, "
                    f"{other!r} and {text!r}; write them in one way, or pass a table in which the column is text"
                )
        if values.dtype.kind in "iuf" and any(re.match(r"-?0\d", text) for text in firsts.values()):
            found[name] = texts, missing
    return found


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ImportError("CSV and Parquet files need pyarrow: pip install 'dpdl[parquet]'") from None
    return pyarrow


def _of_arrow(column: Any) -> tuple[NDArray[Any], Mask]:
    """Values of an Arrow column, and where they are missing: null or NaN."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):  # not every kind of dictionary can be cast
        values, missing = _of_arrow(pa.chunked_array([part.dictionary for part in column.chunks], kind.value_type))
        first = np.cumsum([0, *(len(part.dictionary) for part in column.chunks)])
        places = [part.indices.cast(pa.int64()).fill_null(-1).to_numpy() for part in column.chunks]
        where = np.concatenate([np.where(k < 0, -1, k + n) for k, n in zip(places, first, strict=False)] or [first[:0]])
        values = np.append(values, values[:1] if len(values) else [None])  # the last stands for null
        return values[where], np.append(missing, True)[where]
    missing = column.is_null().to_numpy()
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = column.fill_null(False if pa.types.is_boolean(kind) else 0).to_numpy()
        return values, missing | np.isnan(values) if values.dtype.kind == "f" else missing
    if any(str(kind) == text for text in ("string", "large_string", "string_view")):
        return column.cast(pa.large_string()).to_numpy().astype(object), missing
    if pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return column.to_numpy(), missing
    return _of_objects(np.fromiter(map(_tuple, column.to_pylist()), dtype=object, count=len(column)))


def _tuple(value: Any) -> Any:
    """A list, as which Arrow holds a tuple, as a tuple."""
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
