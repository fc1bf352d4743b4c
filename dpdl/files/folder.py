"""A folder that appears whole or not at all: written beside its place under another name, then renamed into it."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpdl.files.spare import OLD, lock, spare_name, sweep


@contextmanager
def replacing(path: str | os.PathLike[str], overwrite: bool, replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """Give a new, empty folder to write to, which takes the place of `path` when the block ends well.

    On any exception it is removed, and whatever was at `path` is untouched. What was there is replaced only if
    `overwrite` is set and `replaceable` recognises it: moved aside, and removed once the new folder is in its place. A
    process that is killed leaves folders behind, which the next one that writes to the same path removes. Only if it is
    killed between the two renames is `path` missing: the old folder is then beside it, with suffix .old, and stays.
    """
    target = Path(os.path.realpath(path))
    _refuse_existing(target, overwrite, replaceable)
    with explained(target):
        _sweep(target)
        temporary, descriptor = _new_folder(target)
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
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def explained(
    target: str | os.PathLike[str], what: str = "it could not be written, and nothing was left behind"
) -> Iterator[None]:
    """Say in every OSError what could not be written; a full disk does not name the file by itself."""
    try:
        yield
    except FileExistsError:  # says it already
        raise
    except OSError as error:
        raise OSError(error.errno or errno.EIO, f"{error.strerror or error}: {what}", str(target)) from error


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
        refuse(target, "what is there is not a data set, or not that alone, so it is not replaced")


def _move(temporary: Path, target: Path) -> None:
    aside = temporary.with_suffix(OLD)
    try:
        if os.path.lexists(target):
            os.rename(target, aside)
        os.rename(temporary, target)
    except BaseException:
        with suppress(OSError):  # it was not moved yet, or somebody else's new folder is there by now
            os.rename(aside, target)
        if os.path.lexists(target):
            shutil.rmtree(aside, ignore_errors=True)
        raise
    try:
        sync(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _new_folder(target: Path) -> tuple[Path, int | None]:
    """A folder beside the target, and the lock on it for as long as this process is writing."""
    while True:
        temporary = spare_name(target)
        temporary.mkdir()
        if sys.platform == "win32":  # folders cannot be opened there
            return temporary, None
        with suppress(FileNotFoundError, BlockingIOError):  # somebody swept it before it was locked: once more
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                lock(descriptor)
                os.stat(temporary)
            except BaseException:
                os.close(descriptor)
                raise
            return temporary, descriptor


def _sweep(target: Path) -> None:
    """Remove what killed processes left behind; an old folder only if it has been replaced."""
    if sys.platform == "win32":  # nothing tells live folders from abandoned ones there
        return
    sweep(target, shutil.rmtree)
    if os.path.lexists(target):
        sweep(target, shutil.rmtree, OLD)
