"""Logs on disk: a folder of arrays in the layout that the core reads, mapped into memory.

``header.json`` is one JSON object (ASCII): ``format`` ("dpdl dataset"), ``version`` (5), ``n_states``, ``n_actions``,
``n_columns``, ``costs`` (the names of the costs; null if the columns are utilities), ``notes``, ``labels`` (null, or as
`Labels.to_json` makes them), ``arrays`` (for each array its ``file``, its number of elements ``n`` and the ``sha256``
of its elements) and ``checksum`` (`dpdl.files.headers.seal`). The arrays, each in a file of its own that holds nothing
but its elements, are

``records``
    The packed transitions, of `record_dtype`; ``s_next`` is -1 where an episode ended.
``table``
    int64: pairs as s * n_actions + a, ascending; ``pair`` of a record is a position in this array.
``starts``
    int64: positions at which trajectories begin, ascending from 0. Absent if the transitions are independent.
``repeats``, ``spreads``, ``initial``
    Of a log of counts: how many transitions each record stands for (int64), the standard deviations of reward and
    columns among them, and how often an episode began in each state (int64). Each may be absent.

Files are written under new names, and then one rename of ``header.json`` replaces the old log by the new one: a log
that is opened meanwhile is the one or the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl.data.packing import chunks, record_dtype, spread_dtype
from dpdl.files.atomic import EXISTS, naming_the_target, refuse, sync
from dpdl.files.headers import seal, unseal

FORMAT, VERSION, HEADER = "dpdl dataset", 5, "header.json"

Content = dict[str, Any]


def fingerprint(content: Content, arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of the sizes, the names of the costs and the arrays."""
    return _fingerprint(content, {name: _written(chunks(array)) for name, array in arrays.items()})


def _fingerprint(content: Content, described: Mapping[str, Mapping[str, Any]]) -> str:
    facts = [content[name] for name in ("n_states", "n_actions", "n_columns", "costs")]
    sums = sorted((name, array["n"], array["sha256"]) for name, array in described.items())
    return hashlib.sha256(json.dumps([facts, sums]).encode()).hexdigest()


def _written(pieces: Iterable[NDArray[Any]], sink: Any = None) -> dict[str, Any]:
    """Number of elements and SHA-256 of an array that is given in pieces, which are written to a file."""
    digest, n = hashlib.sha256(), 0
    for piece in pieces:
        raw = np.ascontiguousarray(piece).view(np.uint8).data
        digest.update(raw)
        n += len(piece)
        if sink is not None:
            sink.write(raw)
    return {"n": n, "sha256": digest.hexdigest()}


def save(path: Path, content: Content, arrays: Mapping[str, Iterable[NDArray[Any]]], *, overwrite: bool) -> None:
    """Write a log to a folder, and replace the log there at once when all is written.

    Parameters
    ----------
    path : Path
        The folder.
    content : dict
        The names of the header from ``n_states`` to ``labels``.
    arrays : mapping of str to iterable of arrays
        Each array in pieces, which are written as they come: a log need not fit into memory.
    overwrite : bool
        Whether a log that is there is replaced; nothing else ever is.
    """
    is_new = not path.exists()
    if not is_new:
        _refuse_existing(path, overwrite)
    token = secrets.token_hex(8)
    with naming_the_target(path):
        path.mkdir(exist_ok=True)
        try:
            described = {}
            for name, pieces in arrays.items():
                file = path / f"{name}-{token}"
                with open(file, "xb") as stream:
                    described[name] = {"file": file.name, **_written(pieces, stream)}
                sync(file)
            new = path / f"{HEADER}-{token}"
            new.write_bytes(seal(FORMAT, VERSION, content | {"arrays": described}))
            sync(new)
            os.replace(new, path / HEADER)
            sync(path)
        except BaseException:
            for file in path.glob(f"*-{token}"):
                file.unlink()
            if is_new:
                with suppress(OSError):
                    path.rmdir()
            raise
        for file in path.glob("*-" + "[0-9a-f]" * 16):
            if not file.name.endswith(token):
                file.unlink(missing_ok=True)


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if path.is_dir() and not any(path.iterdir()):
        return
    header = path / HEADER
    if not header.is_file() or f'"{FORMAT}"'.encode() not in header.read_bytes()[:100]:
        refuse(path, "it is not replaced, because it is not a data set")
    if not overwrite:
        refuse(path, EXISTS)


def read(path: Path) -> tuple[Content, dict[str, NDArray[Any]], str]:
    """Map the arrays of a folder and verify their checksums; return its content, the arrays and the fingerprint."""
    for _ in range(5):  # a header that is replaced after it was read names files that are gone
        content = _header(path)
        described = content["arrays"]
        try:
            arrays = {name: _mapped(path, name, described[name], content["n_columns"]) for name in described}
            break
        except FileNotFoundError as error:
            missing = ValueError(f"{error.filename}: it is missing")
    else:
        raise missing
    for name, array in arrays.items():
        if _written(chunks(array))["sha256"] != described[name]["sha256"]:
            file = path / described[name]["file"]
            raise ValueError(f"{file}: its SHA-256 is not the one in {HEADER}: the file is damaged")
    return content, arrays, _fingerprint(content, described)


def _header(path: Path) -> Content:
    try:
        raw = (path / HEADER).read_bytes()
    except FileNotFoundError:
        if not path.exists():
            raise
        raise ValueError(f"{path} is not a dpdl data set: it has no {HEADER}") from None
    try:
        return unseal(raw, FORMAT, VERSION)
    except ValueError as error:
        raise ValueError(f"{path / HEADER}: {error}") from None


def _mapped(path: Path, name: str, described: Mapping[str, Any], n_columns: int) -> NDArray[Any]:
    file, special = path / described["file"], {"records": record_dtype, "spreads": spread_dtype}
    dtype = special[name](n_columns) if name in special else np.dtype("<i8")
    if os.path.getsize(file) != described["n"] * dtype.itemsize:
        raise ValueError(f"{file}: it is damaged: {os.path.getsize(file)} bytes are not {described['n']} elements")
    return np.memmap(file, dtype, mode="r")
