"""Checkpoints: one file with everything that is needed to resume a run bit for bit.

Version 1 of the format, all numbers little-endian:

    8 bytes     b"DPDLCKPT"
    4 bytes     version of the format (uint32), now 1
    8 bytes     length of the header (uint64)
    header      one JSON object (ASCII): see `dpdl.learner.checkpoint`; and "arrays": a list of [name, dtype, shape]
    arrays      their bytes, one after the other, in that order
    32 bytes    SHA-256 of everything before it

A checkpoint is written to a temporary file in the same folder, flushed to the disk, and renamed; the previous one is
kept beside it with ``.previous`` appended. At every moment the path holds a complete checkpoint, the old or the new
one. A process that is killed leaves its temporary file behind, which the next one removes. Nothing is unpickled, and
the size of an array is compared with that of the file before it is allocated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl.files.atomic import FileLock, lock, naming_the_target, refuse, sync, temporary_file
from dpdl.files.headers import parse_json

MAGIC, VERSION = b"DPDLCKPT", 1
_PREFIX = struct.Struct("<8sIQ")
_DIGEST = 32
_DTYPES = ("<f8", "<i8", "<i4")
_MAX_DIMENSIONS = 3
PREVIOUS = ".previous"


def write(
    path: Path,
    header: dict[str, Any],
    arrays: dict[str, NDArray[Any]],
    *,
    new: bool = False,
    held: FileLock | None = None,
) -> None:
    """Write a checkpoint to `path` atomically; an OSError leaves an existing one unchanged.

    With `new`, raise FileExistsError if the path exists, even if it was created concurrently. `held` is the lock on the
    existing checkpoint, which is moved to the written one.
    """
    plain = {name: np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    described = [[name, array.dtype.str, list(array.shape)] for name, array in plain.items()]
    text = json.dumps(header | {"arrays": described}).encode("ascii")
    parts: list[Any] = [
        _PREFIX.pack(MAGIC, VERSION, len(text)),
        text,
        *(array.reshape(-1).view(np.uint8).data for array in plain.values()),
    ]
    digest = hashlib.sha256()
    trouble = naming_the_target(path, "the checkpoint could not be written")
    with trouble, _locked_temporary(path, held) as (temporary, file):
        with contextlib.suppress(FileNotFoundError):
            os.lstat(path.with_name(path.name + PREVIOUS))  # a name that is too long fails here, not at the second one
        for part in parts:
            digest.update(part)
            file.write(part)
        file.write(digest.digest())
        file.flush()
        os.fsync(file.fileno())
        if sys.platform == "win32":
            file.close()  # an open file cannot be renamed there; elsewhere it stays locked until it is renamed
        if new:
            _move_to_free(temporary, path)
        else:
            _keep_previous(path)
            os.replace(temporary, path)
        with contextlib.suppress(OSError):  # makes the rename durable, where the platform supports that
            sync(path.parent)


@contextlib.contextmanager
def _locked_temporary(path: Path, held: FileLock | None) -> Iterator[tuple[Path, Any]]:
    """A new file beside a path, open and locked; another process may remove one before it is locked, so try again.

    After the block `held` keeps it open and locked.
    """
    while True:
        with temporary_file(path) as temporary, contextlib.ExitStack() as closing:
            file = closing.enter_context(open(temporary, "xb"))
            try:
                lock(file.fileno())
                os.stat(temporary)
            except (BlockingIOError, FileNotFoundError):
                continue
            yield temporary, file
            if held is not None:
                held.keep(file)
                closing.pop_all()
            return


def read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read header and arrays of a checkpoint; a ValueError says what is wrong with the file."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
        raise damaged(path, "it is not a regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size  # not os.stat(path): the path may have been replaced meanwhile
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size or prefix[: len(MAGIC)] != MAGIC:
            raise damaged(path, "it is not a dpdl checkpoint")
        _, version, length = _PREFIX.unpack(prefix)
        if version != VERSION:
            raise damaged(path, f"its format has version {version}, this dpdl reads version {VERSION}")
        if length > size - _PREFIX.size - _DIGEST:
            raise damaged(path, f"its header of {length} bytes does not fit into its {size} bytes")
        # Check the sum before the header is parsed.
        if _digest(file, size - _DIGEST) != file.read(_DIGEST):
            raise damaged(path, "its checksum is wrong")
        file.seek(_PREFIX.size)
        try:
            header = parse_json(file.read(length))
            described = _described(header, size - _PREFIX.size - length - _DIGEST)
        except (ValueError, RecursionError) as error:
            raise damaged(path, str(error)) from None
        arrays = {}
        for name, dtype, shape in described:
            raw = file.read(math.prod(shape) * dtype.itemsize)
            if len(raw) < math.prod(shape) * dtype.itemsize:
                raise damaged(path, "it was truncated while it was read")
            arrays[name] = np.frombuffer(raw, dtype=dtype).reshape(shape)
    return header, arrays


def _described(header: Any, n_bytes: int) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    """Remove the description of the arrays from the header and check it; together they have `n_bytes`."""
    if not isinstance(header, dict) or not isinstance(header.get("arrays"), list):
        raise ValueError("its header has no list of arrays")
    found, left = {}, n_bytes
    for item in header.pop("arrays"):
        if not isinstance(item, list) or [type(part) for part in item] != [str, str, list]:
            raise ValueError(f"an array is described as {item!r:.200}")
        name, dtype, shape = item
        sound = len(shape) <= _MAX_DIMENSIONS and all(type(n) is int and 0 <= n <= n_bytes for n in shape)
        if name in found or dtype not in _DTYPES or not sound:
            raise ValueError(f"array {name!r:.200} has dtype {dtype!r:.200} and shape {shape!r:.200}")
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > left:
            raise ValueError(f"array {name!r} of {size} bytes does not fit into the {left} that are left")
        left -= size
        found[name] = name, np.dtype(dtype), tuple(shape)
    if left:
        raise ValueError(f"{left} bytes belong to no array")
    return list(found.values())


def refuse_existing(path: Path) -> None:
    """Raise a FileExistsError if a new run would replace something, a BlockingIOError if another run is using it."""
    if path.is_dir():
        refuse(path, "it is a folder, and a checkpoint is a file")
    if path.is_file():
        with FileLock() as free, contextlib.suppress(PermissionError):
            free.take(path)
    if os.path.lexists(path):
        refuse(path, "it exists; continue it with dpdl.resume, or remove it to start again")


def _keep_previous(path: Path) -> None:
    """Give the checkpoint at `path` a second name, so that it is not lost when `path` is replaced."""
    while path.exists():
        with temporary_file(path) as spare:
            try:
                os.link(path, spare)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, spare)
            with contextlib.suppress(FileNotFoundError):  # removed by another process as a leftover: try again
                os.replace(spare, path.with_name(path.name + PREVIOUS))
                return


def _move_to_free(temporary: Path, path: Path) -> None:
    """Rename a file unless the name is taken; of two runs that start at the same time, one fails."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError:  # a file system without hard links
        refuse_existing(path)
        os.replace(temporary, path)


def _digest(file: Any, n_bytes: int) -> bytes:
    """SHA-256 of the first n bytes; the file position is after them."""
    file.seek(0)
    digest = hashlib.sha256()
    while n_bytes:
        part = file.read(min(n_bytes, 1 << 20))
        if not part:
            break
        digest.update(part)
        n_bytes -= len(part)
    return digest.digest()


def damaged(path: Path, what: str) -> ValueError:
    """Make the error for a checkpoint that cannot be used; it names the previous one, if there is one."""
    previous = path.with_name(path.name + PREVIOUS)
    hint = f"; the previous one is at {previous}" if previous.exists() else ""
    return ValueError(f"checkpoint {path} cannot be used: {what}{hint}")
