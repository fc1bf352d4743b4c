"""Parquet in and out, in batches: memory does not grow with the log. Needs pyarrow (``pip install 'dpdl[parquet]'``).

A log is a table with one row a transition, in the order of the log: columns ``s``, ``a``, ``s_next``, ``r``, the
utilities (or costs) as columns ``u_0``, ``u_1``, ... or as one column of lists, and, if the log is trajectories, a
column that tells them apart, such as the number of the episode.

A file that `to_parquet` wrote says in its metadata (key ``dpdl``) what else there is to know: sizes, units, whether it
is trajectories, and the fingerprint of the data set. Its rewards and utilities are those of the data set, already
divided by the scales of its units, so that nothing is lost on the way out and back. Its pages have checksums, its
metadata as well (key ``dpdl.sha256``), so that no damage goes unnoticed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data import records as layout
from dpdl.data.builder import DatasetBuilder
from dpdl.data.dataset import Dataset
from dpdl.data.parquet_reader import Description, Reader, pyarrow
from dpdl.files.atomic import explained, lock, refuse, remove_leftovers, sync, temporary_file


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
    overwrite: bool = False,
    verify: bool = True,
    **options: Any,
) -> Dataset:
    """Make a data set folder of Parquet files, and open it.

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
        Name of a column (whole numbers or strings) in which each trajectory has a value of its own: one begins wherever
        the value differs from the row before, also from the last row of the file before. By default the transitions are
        independent, unless `to_parquet` wrote the files: those know, and no trajectory goes on in the next.
    overwrite : bool, optional
        Replace a data set that is there already.
    verify : bool, optional
        Compare the checksums of pages, where a file has them, and the fingerprints in files that `to_parquet` wrote. A
        file that was damaged, or changed since, is refused; without it, what it holds now is read, as long as it can
        be.
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
    reader = Reader(source, names, u, episode, check.flag("verify", verify))
    chunks = iter(reader)
    first = next(chunks, None)
    if first is None or reader.n_utilities is None:
        raise ValueError("source has no rows")
    with _builder(target, overwrite, options, reader) as builder:
        for chunk in chain([first], chunks):
            with reader.blamed():
                builder.append(*chunk)
    return Dataset.open(target)


def to_parquet(dataset: Dataset, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a data set to a Parquet file: columns s, a, s_next, episode (for trajectories only), r, u_0, u_1, ...

    The file appears whole or not at all. `from_parquet` makes the same data set of it.
    """
    pa, pq = pyarrow()
    target = Path(os.path.realpath(check.path("path", path)))
    if not check.flag("overwrite", overwrite) and os.path.lexists(target):
        refuse(target, "it exists already; pass overwrite=True to replace it")
    whole = ("s", "a", "s_next", *(() if dataset.starts is None else ("episode",)))
    names = (*whole, "r", *(f"u_{i}" for i in range(dataset.n_utilities)))
    types = (pa.int32(), pa.int32(), pa.int32(), pa.int64())[: len(whole)] + (pa.float64(),) * (1 + dataset.n_utilities)
    known = (dataset.n_states, dataset.n_actions, dataset.starts is not None, dataset.units, dataset.fingerprint)
    schema = pa.schema(list(zip(names, types, strict=True)), metadata=Description(*known).metadata())
    remove_leftovers(target)
    with explained(target), temporary_file(target) as temporary:
        with open(temporary, "xb") as file:
            lock(file.fileno())
            # Numbers are written plainly: a dictionary might take -0.0 for 0.0.
            with pq.ParquetWriter(file, schema, use_dictionary=list(whole), write_page_checksum=True) as writer:
                for columns in _columns_of(dataset):
                    writer.write_batch(pa.record_batch(columns, schema=schema))
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)


def _columns_of(dataset: Dataset) -> Iterator[list[NDArray[Any]]]:
    """Columns of a log, in chunks."""
    first = 0
    for part in layout.chunks(dataset.records):
        s, a = np.divmod(dataset.table[part["pair"]], dataset.n_actions)
        columns = [s.astype(np.int32), a.astype(np.int32), part["s_next"]]
        if dataset.starts is not None:
            here = np.arange(first, first + len(part))
            columns.append(np.searchsorted(dataset.starts, here, side="right") - 1)
        yield [np.ascontiguousarray(column) for column in (*columns, part["r"], *part["u"].T)]
        first += len(part)


class _Builder(DatasetBuilder):
    """A builder whose folder appears only if it holds the data sets that were written to the files."""

    reader: Reader

    def _finish(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super()._finish(kind, error, trace)
        if kind is None and self.reader.verify and self.reader.fingerprints:
            self.reader.check_fingerprints(Dataset.open(self._folder, verify=False))


def _builder(path: Path, overwrite: bool, options: dict[str, Any], reader: Reader) -> DatasetBuilder:
    """A builder for what a source holds."""
    description = reader.description
    if "n_utilities" in options:
        raise TypeError("n_utilities must be left out: the columns of the source say it")
    if description is None:
        for name in ("n_states", "n_actions"):
            if name not in options:
                raise TypeError(f"give {name}: the source does not say it")
        if "limits" in options:
            return DatasetBuilder.from_costs(path, overwrite=overwrite, **options)
        return DatasetBuilder(path, n_utilities=reader.n_utilities or 0, overwrite=overwrite, **options)
    sizes = {"n_states": description.n_states, "n_actions": description.n_actions}
    for name, value in options.items():
        if name not in sizes:
            raise TypeError(f"{name} must be left out: the source was written by dpdl and has units of its own")
        if check.whole(name, value) != sizes[name]:
            raise ValueError(f"{name} = {value!r} differs from {sizes[name]}, which the source says")
    if reader.n_utilities != len(description.units.utility_scale):
        raise ValueError(f"u must name {len(description.units.utility_scale)} columns, got {reader.utilities}")
    builder = _Builder.of_packed(path, **sizes, units=description.units, overwrite=overwrite)
    builder.reader = reader
    return builder
