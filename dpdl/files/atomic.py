"""Files and folders that appear whole or not at all, and folders that are read as one while they are replaced.

What is written gets a temporary name beside its place, and is renamed into it. Whoever writes holds a lock on it, so
that the next one who writes to the same target can tell what a killed process left behind, and remove it. Who reads a
folder opens it first, and its files in what was opened, so that all of them are of the same one.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

if sys.platform != "win32":
    import fcntl

TEMPORARY, OLD = ".tmp", ".old"

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
        _remove_left_folders(target)
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
        temporary = temporary_name(target)
        temporary.mkdir()
        if sys.platform == "win32":  # folders cannot be opened there
            return temporary, None
        with suppress(FileNotFoundError, BlockingIOError):  # removed by somebody else before it was locked: try again
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                lock(descriptor)
                os.stat(temporary)
            except BaseException:
                os.close(descriptor)
                raise
            return temporary, descriptor


def _remove_left_folders(target: Path) -> None:
    """Remove what killed processes left behind; an old folder only if it has been replaced."""
    if sys.platform == "win32":  # nothing tells live folders from abandoned ones there
        return
    remove_leftovers(target, _remove)
    if os.path.lexists(target):
        remove_leftovers(target, _remove, OLD)


def _remove(folder: str | os.PathLike[str]) -> None:
    """Remove a folder and its files. A folder inside it is not ours: that stays, and this one for its sake."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                os.unlink(entry)
        os.rmdir(folder)


def temporary_name(target: Path) -> Path:
    """A name that nobody else has, short enough for any file system that has room for 100 bytes of the target's."""
    return target.with_name(f".{_short(target.name)}.{secrets.token_hex(8)}{TEMPORARY}")


@contextmanager
def temporary_file(target: Path) -> Iterator[Path]:
    """Such a name for the time of a block, under which nothing is left."""
    temporary = temporary_name(target)
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def lock(descriptor: int) -> None:
    """Hold a lock on a file or folder until it is closed: what tells one that is being written from an abandoned one.

    A process number in its name would not do: in two containers two processes may have the same one. A BlockingIOError
    means that somebody else holds it.
    """
    if sys.platform == "win32":  # refuses to remove what is open
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # some network file systems have no locks; then nothing is ever removed there either
        pass


def beside(target: Path, suffix: str) -> Iterator[str]:
    """Paths beside a target that `temporary_name` made for it, or would have but for the suffix."""
    pattern = re.compile(re.escape(f".{_short(target.name)}.") + "[0-9a-f]{16}" + re.escape(suffix))
    with suppress(OSError), os.scandir(target.parent) as entries:
        yield from (entry.path for entry in entries if pattern.fullmatch(entry.name))


def remove_leftovers(target: Path, remove: Callable[[str], object] = os.unlink, suffix: str = TEMPORARY) -> None:
    """Remove what killed processes left beside a target."""
    for path in beside(target, suffix):
        with suppress(OSError):
            _remove_unless_locked(path, remove)


def _remove_unless_locked(path: str, remove: Callable[[str], object]) -> None:
    if sys.platform == "win32":
        remove(path)
        return
    descriptor = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)
    finally:
        os.close(descriptor)


def _short(name: str) -> str:
    return os.fsencode(name)[:100].decode(errors="ignore")
