"""Reading Parquet files in batches: memory does not grow with the log. Needs pyarrow (``pip install 'dpdl[parquet]'``).

A log is a table with one row per transition, in the order of the log: columns ``s``, ``a``, ``s_next``, ``r``, the
utilities (or costs) as columns ``u_0``, ``u_1``, ... or as one column of lists, and, if the log consists of
trajectories, a column that distinguishes them, such as the number of the episode.

A file that `to_parquet` wrote has the rest in its metadata (key ``dpdl``): sizes, units, whether it holds trajectories,
and the fingerprint of the data set. Its rewards and utilities are those of the data set, already divided by the scales
of its units, so that the round trip is exact. Its pages and its metadata (key ``dpdl.sha256``) have checksums.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data import packing
from dpdl.data.builder import DatasetBuilder
from dpdl.data.dataset import Dataset
from dpdl.data.parquet_file import KEY, SUM, Description, pyarrow

#: Bytes of a column read at a time. Without it pyarrow reads a whole column of a row group; a file may have only one.
BUFFER = 1 << 20

Column = NDArray[Any]
Chunk = tuple[tuple[Column, Column, Column, Column, Column], dict[str, Column]]


def from_parquet(
    source: Any,
    path: str | os.PathLike[str],
    *,
    s: str = "s",
    a: str = "a",
    s_next: str = "s_next",
    r: str = "r",
    u: str | Sequence[str] | None = None,
    episode: str | None = None,
    terminated: str | None = None,
    truncated: str | None = None,
    overwrite: bool = False,
    verify: bool = True,
    **options: Any,
) -> Dataset:
    """Convert Parquet files to a data set folder, and open it.

    Parameters
    ----------
    source : path-like, pyarrow.dataset.Dataset, or sequence of path-like
        A file; a folder, of which all ``*.parquet`` files are read in the order of their names; or several of these.
    path : path-like
        The folder to make, see `DatasetBuilder`.
    s, a, s_next, r : str, optional
        Names of columns.
    u : str or sequence of str, optional
        Names of the utilities' columns, or of one column of lists; ``[]`` if there are none. By default the column
        ``u`` (numbers or lists), or all of ``u_0``, ``u_1``, ... that there are, by number.
    episode : str, optional
        Name of a column (whole numbers or strings) that identifies trajectories: one begins wherever the value differs
        from the previous row, also from the last row of the previous file. By default the transitions are independent,
        unless `to_parquet` wrote the files: their metadata says it, and no trajectory continues in the next file.
    terminated, truncated : str, optional
        Names of columns of True and False, as for `Dataset`; `truncated` instead of `episode`. By default there are
        none, unless `to_parquet` wrote the files.
    overwrite : bool, optional
        Replace an existing data set.
    verify : bool, optional
        Compare the checksums of pages, where a file has them, and the fingerprints in files that `to_parquet` wrote. A
        file that was damaged or changed raises ValueError; with False its present contents are read, if that is
        possible.
    **options
        As for `DatasetBuilder`: `n_states`, `n_actions`, scales. Or, if the utilities' columns are costs, as for
        `DatasetBuilder.from_costs`: `limits`, `gamma`, `normalised`. None is needed for a file that `to_parquet` wrote.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> import tempfile
    >>> log = Dataset([0, 1], [0, 0], [1, 0], [0, 1], [[0], [0]], n_states=2, n_actions=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log.to_parquet(f"{folder}/log.parquet")
    ...     again = from_parquet(f"{folder}/log.parquet", f"{folder}/log")
    >>> again.fingerprint == log.fingerprint
    True
    """
    target, overwrite = check.path("path", path), check.flag("overwrite", overwrite)
    columns = {"s": s, "a": a, "s_next": s_next, "r": r}
    names = [check.text(name, column) for name, column in columns.items()]
    marks = {"episode": episode, "terminated": terminated, "truncated": truncated}
    reader = Reader(source, names, u, marks, check.flag("verify", verify))
    chunks = iter(reader)
    first = next(chunks, None)
    if first is None or reader.n_utilities is None:
        raise ValueError("source has no rows")
    with _builder(target, overwrite, options, reader) as builder:
        for chunk in chain([first], chunks):
            with reader.naming_the_file():
                builder.append(*chunk[0], **chunk[1])
    return Dataset.open(target)


class _Builder(DatasetBuilder):
    """A builder whose folder appears only if the fingerprints in the files are those of the data."""

    reader: Reader

    def _finish(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super()._finish(kind, error, trace)
        if kind is None and self.reader.verify and self.reader.fingerprints:
            self.reader.check_fingerprints(Dataset.open(self._folder, verify=False))


def _builder(path: Path, overwrite: bool, options: dict[str, Any], reader: Reader) -> DatasetBuilder:
    """The builder that fits a source."""
    description = reader.description
    if "n_utilities" in options:
        raise TypeError("n_utilities must be left out: the columns of the source determine it")
    if description is None:
        for name in ("n_states", "n_actions"):
            if name not in options:
                raise TypeError(f"missing {name}: the source does not have it")
        if "limits" in options:
            return DatasetBuilder.from_costs(path, overwrite=overwrite, **options)
        return DatasetBuilder(path, n_utilities=reader.n_utilities or 0, overwrite=overwrite, **options)
    sizes = {"n_states": description.n_states, "n_actions": description.n_actions}
    for name, value in options.items():
        if name not in sizes:
            raise TypeError(f"{name} must be left out: the source was written by dpdl and has units of its own")
        if check.whole(name, value) != sizes[name]:
            raise ValueError(f"{name} = {value!r} differs from {sizes[name]} in the source")
    if reader.n_utilities != len(description.units.utility_scale):
        raise ValueError(f"u must name {len(description.units.utility_scale)} columns, got {reader.utilities}")
    builder = _Builder.of_packed(path, **sizes, units=description.units, overwrite=overwrite)
    builder.reader = reader
    return builder


class Reader:
    """Parquet files as chunks of one log: (s, a, s_next, r, u), and starts, terminated, truncated by name.

    `names` are the columns s, a, s_next and r; `marks` are episode, terminated and truncated, None if there is none.
    The other arguments are those of `from_parquet`.
    """

    def __init__(
        self,
        source: Any,
        names: list[str],
        u: str | Sequence[str] | None,
        marks: dict[str, str | None],
        verify: bool,
    ) -> None:
        for name, column in marks.items():
            if column is not None:
                check.text(name, column)
        if marks["episode"] is not None and marks["truncated"] is not None:
            raise TypeError("give either episode or truncated")
        if u is not None and not isinstance(u, str):
            if not isinstance(u, (Sequence, np.ndarray)):
                raise TypeError(f"u must be a string or a sequence of strings, got {type(u).__name__}")
            u = [check.text(f"u[{k}]", name) for k, name in enumerate(u)]
        self.files, self.filesystem = _files(source)
        self.verify = verify
        self._refuse_part(source)
        self.file = self.files[0]  # the one that is being read
        with self._opened(self.file) as first:
            self.description = self._describe(first)
            if self.description is not None and u is None:
                u = [f"u_{i}" for i in range(len(self.description.units.utility_scale))]
            self.utilities, self.is_list = _utilities(first.schema_arrow, u)
            if self.description is not None:  # `to_parquet` wrote the file, and these columns if there is use for them
                marks = {name: marks[name] or (name if name in first.schema_arrow.names else None) for name in marks}
        self.names, self.marks = names, {name: column for name, column in marks.items() if column is not None}
        self.n_rows, self.n_utilities = 0, None if self.is_list else len(self.utilities)
        self.last_episode: Any = None
        # Name, first row and fingerprint of each file that `to_parquet` wrote.
        self.fingerprints: list[tuple[str, int, str]] = []

    def __iter__(self) -> Iterator[Chunk]:
        wanted = [*self.names, *self.utilities, *self.marks.values()]
        for name in self.files:
            self.file = name
            with self._opened(name) as file:
                description = self._describe(file)
                if description != self.description:
                    raise ValueError(f"its metadata {KEY.decode()!r} differs from that of {self.files[0]}")
                if description is not None:
                    self.last_episode = None  # such a file is a whole data set, and numbers its trajectories from 0
                    self.fingerprints.append((name, self.n_rows, description.fingerprint))
                for column in wanted:
                    if file.schema_arrow.names.count(column) != 1:
                        found = "is more than one" if column in file.schema_arrow.names else "is no"
                        raise ValueError(f"there {found} column {column!r} among {file.schema_arrow.names}")
                if self.n_utilities is None:
                    for batch in file.iter_batches(1, columns=self.utilities, use_threads=False):
                        self._lists(batch, self.utilities[0])  # sets n_utilities, which the batch size depends on
                        break
                size = packing.chunk_size(packing.record_dtype(self.n_utilities or 0))
                for batch in file.iter_batches(size, columns=wanted, use_threads=False):
                    if batch.num_rows:
                        yield self._chunk(batch)
                        self.n_rows += batch.num_rows

    def _refuse_part(self, source: Any) -> None:
        """Refuse a pyarrow Dataset that is not all of its files."""
        if not hasattr(source, "count_rows"):
            return
        n_rows = n_groups = 0
        for name in self.files:
            with self._opened(name) as file:
                n_rows += file.metadata.num_rows
                n_groups += file.metadata.num_row_groups
        # pyarrow counts the rows of a file with some of its row groups as if it had all of them.
        if source.count_rows() != n_rows or sum(part.num_row_groups for part in source.get_fragments()) != n_groups:
            raise ValueError("source has a filter, or only some row groups of its files: write that part to a new file")

    @contextmanager
    def naming_the_file(self) -> Iterator[None]:
        """Add the file and the names of its columns to errors about a chunk."""
        try:
            yield
        except (ValueError, TypeError) as error:
            called = dict(zip(("s", "a", "s_next", "r"), self.names, strict=True)) | {"u": self.utilities}
            raise type(error)(f"{self.file}: {error} (columns: {called})") from error

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        """Open a file; errors in the block get its name."""
        pa, pq = pyarrow()
        try:
            options = {"buffer_size": BUFFER, "pre_buffer": False, "page_checksum_verification": self.verify}
            with pq.ParquetFile(name, filesystem=self.filesystem, **options) as file:
                yield file
        except (pa.ArrowException, ValueError, TypeError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name}: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(f"{name}: {error}") from error  # pyarrow raises OSError without errno for bad contents

    def _describe(self, file: Any) -> Description | None:
        """Return the description of the file that is being read; None if another program wrote it."""
        found = Description.of(file.schema_arrow.metadata, self.verify)
        if found is None and self.verify:
            # A footer has no checksum, and damage to it may hide the metadata: look for the key in its bytes.
            pa, _ = pyarrow()
            with (self.filesystem or pa.fs.LocalFileSystem()).open_input_file(self.file) as raw:
                length = int.from_bytes(raw.read_at(8, raw.size() - 8)[:4], "little")
                if SUM in raw.read_at(length, raw.size() - 8 - length):
                    raise ValueError("its metadata is damaged; verify=False reads the file as it is")
        return found

    def check_fingerprints(self, log: Dataset) -> None:
        """Raise a ValueError unless the rows of each file that `to_parquet` wrote have the fingerprint in the file."""
        firsts = [first for _, first, _ in self.fingerprints]
        for (name, first, fingerprint), last in zip(self.fingerprints, [*firsts[1:], self.n_rows], strict=True):
            part = log if last - first == len(log) else log[first:last] if first < last else None
            if part is None or part.fingerprint != fingerprint:
                raise ValueError(
                    f"{name}: it is damaged or was changed: its rows do not have the fingerprint in its metadata; "
                    "verify=False reads them as they are"
                )

    def _chunk(self, batch: Any) -> Chunk:
        s, a, s_next = (self._numbers(batch, name, "whole numbers") for name in self.names[:3])
        r = self._numbers(batch, self.names[3], "real numbers")
        if self.is_list:
            u = self._lists(batch, self.utilities[0])
        else:
            columns = [self._numbers(batch, name, "real numbers") for name in self.utilities]
            u = np.column_stack(columns) if columns else np.empty((batch.num_rows, 0))
        marks: dict[str, Column] = {
            name: self._flags(batch, column) for name, column in self.marks.items() if name != "episode"
        }
        if "episode" in self.marks:
            marks["starts"] = self._starts(batch, self.marks["episode"])
        return (s, a, s_next, r, u), marks

    def _column(self, batch: Any, name: str) -> Any:
        pa, _ = pyarrow()
        column = batch.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if name == self.names[2] and "terminated" in self.marks:
            column = column.fill_null(packing.ENDED)  # refused later unless the row is terminated
        self._refuse_nulls(column, name, 1)
        return column

    def _refuse_nulls(self, column: Any, name: str, per_row: int) -> None:
        if column.null_count:
            where = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise ValueError(f"column {name!r} is null in row {self.n_rows + where // per_row} of the log")

    def _numbers(self, batch: Any, name: str, kind: str) -> NDArray[Any]:
        column = self._column(batch, name)
        _check_numbers(column.type, name, kind)
        return column.to_numpy(zero_copy_only=False)

    def _flags(self, batch: Any, name: str) -> NDArray[np.bool_]:
        column = self._column(batch, name)
        if str(column.type) != "bool":
            raise TypeError(f"column {name!r} must hold True and False, got {column.type}")
        return column.to_numpy(zero_copy_only=False)

    def _lists(self, batch: Any, name: str) -> NDArray[Any]:
        """A column of lists, all of one length, as a matrix."""
        column = self._column(batch, name)
        _check_numbers(column.type.value_type, name, "lists of real numbers")
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if self.n_utilities is None:
            self.n_utilities = int(lengths[0])
        wrong = np.flatnonzero(lengths != self.n_utilities)
        if wrong.size:
            raise ValueError(
                f"column {name!r} has {lengths[wrong[0]]} numbers in row {self.n_rows + wrong[0]} of the log, "
                f"{self.n_utilities} in the first"
            )
        values = column.flatten()
        self._refuse_nulls(values, name, max(1, self.n_utilities))
        return values.to_numpy(zero_copy_only=False).reshape(batch.num_rows, self.n_utilities)

    def _starts(self, batch: Any, name: str) -> NDArray[np.int64]:
        """Rows whose episode differs from that of the previous row."""
        pa, _ = pyarrow()
        column = self._column(batch, name)
        if any(str(column.type) == text for text in ("string", "large_string", "string_view")):
            column = column.cast(pa.string())
        elif not pa.types.is_integer(column.type):
            raise TypeError(f"column {name!r} must hold whole numbers or strings, got {column.type}")
        values = column.to_numpy(zero_copy_only=False)
        differs = np.append(values[0] != self.last_episode, values[1:] != values[:-1])
        self.last_episode = values[-1]
        return np.flatnonzero(differs)


def _check_numbers(kind: Any, name: str, wanted: str) -> None:
    pa, _ = pyarrow()
    if not (pa.types.is_integer(kind) or ("real" in wanted and pa.types.is_floating(kind))):
        raise TypeError(f"column {name!r} must hold {wanted}, got {kind}")


def _is_list(kind: Any) -> bool:
    pa, _ = pyarrow()
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _utilities(schema: Any, u: str | Sequence[str] | None) -> tuple[list[str], bool]:
    """Names of the utilities' columns, and whether it is one column of lists."""
    if u is None:
        numbered = sorted((name for name in schema.names if re.fullmatch("u_[0-9]+", name)), key=lambda u: int(u[2:]))
        if ("u" in schema.names) == bool(numbered):
            found = f"are columns 'u' and {numbered}" if numbered else "is no column 'u' or 'u_0'"
            raise ValueError(f"there {found} among {schema.names}: name the utilities' columns by u, [] for none")
        if numbered:
            return numbered, False
        u = "u"
    if isinstance(u, str):
        return [u], u in schema.names and _is_list(schema.field(u).type)
    return list(u), False


def _files(source: Any) -> tuple[list[str], Any]:
    """Names of files, and their file system (None: the local one)."""
    if hasattr(source, "files") and hasattr(source, "filesystem"):  # a pyarrow.dataset.Dataset
        names, filesystem = list(source.files), source.filesystem
    else:
        sources = [source] if isinstance(source, (str, os.PathLike)) else source
        if not isinstance(sources, (list, tuple)):
            raise TypeError(f"source must be a path, paths or a pyarrow Dataset, got {type(source).__name__}")
        names = [name for each in sources for name in _expanded(check.path("source", each))]
        filesystem = None
    if not names:
        raise ValueError("source has no Parquet files")
    return names, filesystem


def _expanded(path: Path) -> list[str]:
    return sorted(str(file) for file in path.rglob("*.parquet") if file.is_file()) if path.is_dir() else [str(path)]
