"""Parquet files that `Dataset.to_parquet` writes: their metadata, and the writing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data import packing
from dpdl.data.units import Units, parse_units
from dpdl.files.atomic import lock, naming_the_target, refuse, remove_leftovers, sync, temporary_file
from dpdl.files.headers import parse_json

#: Metadata keys of the description that `to_parquet` writes, and of its SHA-256.
KEY, SUM = b"dpdl", b"dpdl.sha256"


class Log(Protocol):
    """The parts of a data set that are written."""

    n_states: int
    n_actions: int
    units: Units

    @property
    def records(self) -> NDArray[Any]:
        """Packed records."""

    @property
    def table(self) -> NDArray[np.int64]:
        """The pairs that records may name."""

    @property
    def n_utilities(self) -> int:
        """Number of utilities."""

    @property
    def n_ended(self) -> int:
        """How many transitions ended their episode."""

    @property
    def repeats(self) -> NDArray[np.int64] | None:
        """How many transitions each record stands for."""

    @property
    def starts(self) -> NDArray[np.int64] | None:
        """Where trajectories begin."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the contents of the log."""


def pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and its module for Parquet."""
    try:
        import pyarrow
        import pyarrow.fs
        import pyarrow.parquet
    except ImportError:
        raise ImportError("Parquet files need pyarrow: pip install 'dpdl[parquet]'") from None
    return pyarrow, pyarrow.parquet


@dataclass(frozen=True)
class Description:
    """Description, in the metadata of a file, of the data set that `to_parquet` wrote to it.

    Several files of one source agree in all of it but the fingerprint.
    """

    n_states: int
    n_actions: int
    trajectories: bool
    units: Units
    fingerprint: str = field(default="", compare=False)

    def metadata(self) -> dict[bytes, bytes]:
        """Return the description as the metadata of a file."""
        text = json.dumps(asdict(self) | {"units": self.units.to_json()}).encode("ascii")
        return {KEY: text, SUM: hashlib.sha256(text).hexdigest().encode("ascii")}

    @classmethod
    def of(cls, metadata: dict[bytes, bytes] | None, verify: bool) -> Description | None:
        """Read the description from the metadata of a file; None if another program wrote the file."""
        if metadata is None or not metadata.keys() & {KEY, SUM}:
            return None
        try:
            text = metadata.get(KEY, b"")
            if verify and metadata.get(SUM) != hashlib.sha256(text).hexdigest().encode("ascii"):
                raise ValueError(f"{SUM.decode()!r} is not its SHA-256; verify=False reads the file as it is")
            found = cls(**parse_json(text))
            packing.sizes(found.n_states, found.n_actions)
            check.flag("trajectories", found.trajectories)
            return replace(found, units=parse_units(found.units))
        except (TypeError, ValueError) as error:
            raise ValueError(f"its metadata {KEY.decode()!r} is not what dpdl writes: {error}") from None


def write(dataset: Log, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a data set to a Parquet file: columns s, a, s_next, terminated, episode, r, u_0, u_1, ...

    The column terminated is left out if no episode ended, episode if the transitions are independent. The file is
    written atomically. `from_parquet` makes the same data set from it.
    """
    pa, pq = pyarrow()
    target = Path(os.path.realpath(check.path("path", path)))
    if not check.flag("overwrite", overwrite) and os.path.lexists(target):
        refuse(target, "it exists already; pass overwrite=True to replace it")
    if dataset.repeats is not None:
        raise ValueError("a log of counts cannot be written as Parquet: write the table of its counts() instead")
    types = {"s": pa.int32(), "a": pa.int32(), "s_next": pa.int32()}
    types |= {"terminated": pa.bool_()} if dataset.n_ended else {}
    types |= {} if dataset.starts is None else {"episode": pa.int64()}
    whole = [name for name in types if name != "terminated"]
    types |= {"r": pa.float64()} | {f"u_{i}": pa.float64() for i in range(dataset.n_utilities)}
    known = (dataset.n_states, dataset.n_actions, dataset.starts is not None, dataset.units, dataset.fingerprint)
    schema = pa.schema(list(types.items()), metadata=Description(*known).metadata())
    remove_leftovers(target)
    with naming_the_target(target), temporary_file(target) as temporary:
        with open(temporary, "xb") as file:
            lock(file.fileno())
            # Rewards and utilities are not dictionary-encoded: a dictionary might merge -0.0 and 0.0.
            with pq.ParquetWriter(file, schema, use_dictionary=whole, write_page_checksum=True) as writer:
                for columns in _columns_of(dataset):
                    writer.write_batch(pa.record_batch(columns, schema=schema))
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)


def _columns_of(dataset: Log) -> Iterator[list[NDArray[Any]]]:
    """Columns of a log, in chunks."""
    first = 0
    for part in packing.chunks(dataset.records):
        s, a = np.divmod(dataset.table[part["pair"]], dataset.n_actions)
        columns = [s.astype(np.int32), a.astype(np.int32), part["s_next"]]
        if dataset.n_ended:
            columns.append(part["s_next"] < 0)
        if dataset.starts is not None:
            here = np.arange(first, first + len(part))
            columns.append(np.searchsorted(dataset.starts, here, side="right") - 1)
        yield [np.ascontiguousarray(column) for column in (*columns, part["r"], *part["u"].T)]
        first += len(part)
