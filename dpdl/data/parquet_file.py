"""Parquet files that `Dataset.to_parquet` writes: their metadata, and the writing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data import packing
from dpdl.data.units import Units, parse_units
from dpdl.files.atomic import replacing_file
from dpdl.files.headers import parse_json

#: Metadata keys of the description that `to_parquet` writes, and of its SHA-256.
KEY, SUM = b"dpdl", b"dpdl.sha256"


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


def write(
    path: Path,
    known: Description,
    records: NDArray[Any],
    table: NDArray[np.int64],
    starts: NDArray[np.int64] | None,
    *,
    ends: bool,
    overwrite: bool,
) -> None:
    """Write a data set to a Parquet file: columns s, a, s_next, terminated, episode, r, u_0, u_1, ...

    The column terminated is left out unless some episode `ends`, episode if the transitions are independent. The file
    is written atomically. `from_parquet` makes the same data set from it.
    """
    pa, pq = pyarrow()
    types = {"s": pa.int32(), "a": pa.int32(), "s_next": pa.int32()}
    types |= {"terminated": pa.bool_()} if ends else {}
    types |= {} if starts is None else {"episode": pa.int64()}
    whole = [name for name in types if name != "terminated"]
    types |= {"r": pa.float64()} | {f"u_{i}": pa.float64() for i in range(len(known.units.utility_scale))}
    schema = pa.schema(list(types.items()), metadata=known.metadata())
    first = 0
    # Rewards and utilities are not dictionary-encoded: a dictionary might merge -0.0 and 0.0.
    with (
        replacing_file(path, overwrite) as file,
        pq.ParquetWriter(file, schema, use_dictionary=whole, write_page_checksum=True) as writer,
    ):
        for part in packing.chunks(records):
            s, a = np.divmod(table[part["pair"]], known.n_actions)
            columns = [s.astype(np.int32), a.astype(np.int32), part["s_next"]]
            if ends:
                columns.append(part["s_next"] < 0)
            if starts is not None:
                columns.append(np.searchsorted(starts, np.arange(first, first + len(part)), side="right") - 1)
            parts = [np.ascontiguousarray(column) for column in (*columns, part["r"], *part["u"].T)]
            writer.write_batch(pa.record_batch(parts, schema=schema))
            first += len(part)
