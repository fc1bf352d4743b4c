"""A folder that appears whole or not at all, and is read as one, even by those who read it while it is replaced.

It is written beside its place under another name, then renamed into it. Who reads opens the folder first, and its files
in what was opened, so that all of them are of the same one.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from ._spare import OLD, beside, lock, spare_name, sweep

#: Seconds to go on trying to read a folder that is being replaced, over and over or for long.
PATIENCE = 2.0

T = TypeVar("T")


class Folder:
    """A folder that was opened: its files stay those of this folder, whatever takes its place at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # On Windows a folder cannot be opened; there one whose files are open cannot be replaced either.
        self.descriptor = None if sys.platform == "win32" else os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._status = os.stat(path if self.descriptor is None else self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def stat(self, name: str) -> os.stat_result:
        """Return the status of a file."""
        return os.stat(self._name(name), dir_fd=self.descriptor)

    def open(self, name: str) -> BufferedReader:
        """Open a file to be read."""
        return open(self._name(name), "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=self.descriptor))

    def is_at_its_path(self) -> bool:
        """Whether the folder has not been replaced, or moved away."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(self._status, os.stat(self.path))
        return False

    def _name(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)


def read_folder(path: Path, read: Callable[[Folder], T]) -> T:
    """Return what `read` makes of the folder at a path; once more if that was replaced while it was being read.

    Files of a folder that was replaced are removed one by one, so that `read` may fail for no other reason.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            folder = Folder(path)
        except FileNotFoundError:
            if time.monotonic() > deadline or _is_missing(path):
                raise
        else:
            with folder:
                try:
                    found = read(folder)
                    if folder.descriptor is not None or folder.is_at_its_path():
                        return found
                except (OSError, ValueError):
                    if folder.is_at_its_path():
                        raise
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "it was replaced again and again while it was read", str(path))
        time.sleep(0.001)


def _is_missing(path: Path) -> bool:
    """Whether nothing is at a path, and it is not just being replaced: between two renames the old folder is aside."""
    target = Path(os.path.realpath(path))
    # Twice: the one may have been put in its place, and the next have been begun, between the two questions.
    return not any(any(beside(target, OLD)) or os.path.lexists(target) for _ in range(2))


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
        _remove(temporary)
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
            _remove(aside)
        raise
    try:
        sync(target.parent)
    finally:
        _remove(aside)


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
    sweep(target, _remove)
    if os.path.lexists(target):
        sweep(target, _remove, OLD)


def _remove(folder: str | os.PathLike[str]) -> None:
    """Remove a folder and its files. A folder inside it is not ours: that stays, and this one for its sake."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                os.unlink(entry)
        os.rmdir(folder)
