"""A folder that appears whole or not at all: written beside its place under another name, then renamed into it."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextmanager
def replacing(path: str | os.PathLike[str], overwrite: bool, replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """Give a new, empty folder to write to, which takes the place of `path` when the block ends well.

    On any exception it is removed, and whatever was at `path` is untouched. What was there is replaced only if
    `overwrite` is set and `replaceable` recognises it: moved aside, and removed once the new folder is in its place. A
    process that is killed leaves its temporary folder behind; the next one that writes to the same path removes it.
    Only if it is killed between the two renames is `path` missing: the old folder is then beside it, with suffix .old.
    """
    target = Path(os.path.realpath(path))
    _refuse_existing(target, overwrite, replaceable)
    stem = f".{target.name[:100]}."  # short enough for any file system, whatever the name
    temporary = target.with_name(f"{stem}{secrets.token_hex(8)}.tmp")
    with explained(target):
        _sweep(target.parent, stem)
        temporary.mkdir()
        lock = _lock(temporary)
    try:
        yield temporary
        with explained(target):
            sync(temporary)
            _refuse_existing(target, overwrite, replaceable)
            _move(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def explained(target: str | os.PathLike[str]) -> Iterator[None]:
    """Say in every OSError what could not be written; a full disk does not name the file by itself."""
    try:
        yield
    except FileExistsError:  # says it already
        raise
    except OSError as error:
        reason = f"{error.strerror or error}: it could not be written, and nothing was left behind"
        raise OSError(error.errno or errno.EIO, reason, str(target)) from error


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if sys.platform == "win32" and path.is_dir():  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse(target: Path, reason: str) -> None:
    """Raise a FileExistsError that says why `target` is not replaced."""
    raise FileExistsError(errno.EEXIST, reason, str(target))


def _refuse_existing(target: Path, overwrite: bool, replaceable: Callable[[Path], bool]) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        refuse(target, "it exists already; pass overwrite=True to replace it")
    if not replaceable(target):
        refuse(target, "what is there is not a data set, so it is not replaced")


def _move(temporary: Path, target: Path) -> None:
    aside = temporary.with_suffix(".old")
    if os.path.lexists(target):
        os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except BaseException:
        if os.path.lexists(aside):
            os.rename(aside, target)
        raise
    try:
        sync(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """Hold a lock for as long as this process is writing: it is what tells a live folder from an abandoned one."""
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # some network file systems have no locks; then nothing is ever swept there either
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _sweep(parent: Path, stem: str) -> None:
    """Remove temporary folders that killed processes left behind."""
    if sys.platform == "win32":
        return
    for stray in parent.glob(f"{_escaped(stem)}????????????????.tmp"):
        with suppress(OSError):
            descriptor = os.open(stray, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                shutil.rmtree(stray, ignore_errors=True)
            finally:
                os.close(descriptor)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
