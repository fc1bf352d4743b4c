"""Checkpoints: one file that holds everything a run needs to go on, bit for bit.

The file, all numbers little-endian:

    8 bytes     b"DPDLCKPT"
    4 bytes     version of the format (uint32), now 1
    8 bytes     length of the header (uint64)
    header      JSON, UTF-8: see `_checkpointing`; and under "arrays" the name, dtype and shape of each array
    arrays      their bytes, one after the other, in that order
    32 bytes    SHA-256 of all that comes before

It is written to a temporary file beside it, flushed to the disk, and renamed; the checkpoint that was there before is
kept beside it with ``.previous`` appended. At every moment the path holds a whole checkpoint, the old or the new one.
Nothing is ever unpickled, and no array is allocated before the file is known to hold it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC, VERSION = b"DPDLCKPT", 1
_PREFIX = struct.Struct("<8sIQ")
_DIGEST = 32
_DTYPES = ("<f8", "<i8", "<i4")
PREVIOUS = ".previous"


def write(path: Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Put a checkpoint at `path`, whole or not at all; an OSError leaves the one that is there as it was.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder, "run"), {"n": 1}, {"x": np.arange(3.0)})
    ...     header, arrays = read(Path(folder, "run"))
    >>> header["n"], arrays["x"].tolist()
    (1, [0.0, 1.0, 2.0])
    """
    plain = {name: np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    described = [[name, array.dtype.str, list(array.shape)] for name, array in plain.items()]
    text = json.dumps(header | {"arrays": described}).encode()
    parts: list[Any] = [
        _PREFIX.pack(MAGIC, VERSION, len(text)),
        text,
        *(array.reshape(-1).view(np.uint8).data for array in plain.values()),
    ]
    sweep(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    digest = hashlib.sha256()
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        _keep_previous(path)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Give back header and arrays of a checkpoint; a ValueError says what is wrong with the file."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size or prefix[: len(MAGIC)] != MAGIC:
            raise _damaged(path, "it is not a dpdl checkpoint")
        _, version, length = _PREFIX.unpack(prefix)
        if version != VERSION:
            raise _damaged(path, f"its format has version {version}, this dpdl reads version {VERSION}")
        if length > size - _PREFIX.size - _DIGEST:
            raise _damaged(path, f"its header of {length} bytes does not fit into its {size} bytes")
        # The sum is checked before a word of the header is believed.
        if _digest(file, size - _DIGEST) != file.read(_DIGEST):
            raise _damaged(path, "its checksum is wrong")
        file.seek(_PREFIX.size)
        header = json.loads(file.read(length))
        arrays, left = {}, size - _PREFIX.size - length - _DIGEST
        for name, dtype, shape in header.pop("arrays"):
            if dtype not in _DTYPES or any(not isinstance(n, int) or n < 0 for n in shape):
                raise _damaged(path, f"array {name!r} has dtype {dtype!r} and shape {shape}")
            n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            if n_bytes > left:
                raise _damaged(path, f"array {name!r} of {n_bytes} bytes does not fit into the {left} that are left")
            left -= n_bytes
            arrays[name] = np.frombuffer(file.read(n_bytes), dtype=dtype).reshape(shape)
        if left:
            raise _damaged(path, f"{left} bytes belong to no array")
    return header, arrays


def sweep(path: Path) -> None:
    """Remove temporary files of checkpoints at `path` whose writers are gone."""
    pattern = re.compile(re.escape(f".{path.name}.") + r"(\d+)\.tmp")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            found = pattern.fullmatch(entry.name)
            if found and not _alive(int(found[1])):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _alive(pid: int) -> bool:
    """Whether another process of that number may still be writing."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _keep_previous(path: Path) -> None:
    """Give the checkpoint at `path` a second name, so that it outlives its successor's arrival at the first one."""
    if not path.exists():
        return
    spare = path.with_name(f".{path.name}.{os.getpid()}.tmp2")
    previous = path.with_name(path.name + PREVIOUS)
    with contextlib.suppress(FileNotFoundError):
        spare.unlink()
    try:
        os.link(path, spare)
    except OSError:  # a file system without hard links: for a moment only the previous one is there
        os.replace(path, previous)
        return
    os.replace(spare, previous)


def _sync_folder(folder: Path) -> None:
    """Make the renaming last through a power cut, where the platform can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _digest(file: Any, n_bytes: int) -> bytes:
    """SHA-256 of the first n bytes, leaving the file after them."""
    file.seek(0)
    digest = hashlib.sha256()
    while n_bytes:
        part = file.read(min(n_bytes, 1 << 20))
        if not part:
            break
        digest.update(part)
        n_bytes -= len(part)
    return digest.digest()


def _damaged(path: Path, what: str) -> ValueError:
    previous = path.with_name(path.name + PREVIOUS)
    hint = f"; the one before it is at {previous}" if previous.exists() else ""
    return ValueError(f"checkpoint {path} cannot be used: {what}{hint}")
