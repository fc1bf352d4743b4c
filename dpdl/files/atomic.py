"""Atomic replacement of files and folders, and locks.

Data is written under a temporary name beside the target, which is then renamed. The writer holds a lock on a temporary
file, so that the next writer to the same target can recognise and remove what a killed process left behind.
`FileLock` is the lock of a run on its checkpoint, so that no other run writes there.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

if sys.platform != "win32":
    import fcntl

TEMPORARY, OLD = ".tmp", ".old"
EXISTS = "it exists already; pass overwrite=True to replace it"


@contextmanager
def replacing(path: str | os.PathLike[str], overwrite: bool, replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a new, empty folder to write to, which replaces `path` when the block ends without an exception.

    On an exception the new folder is removed and `path` is unchanged. An existing `path` is replaced only if
    `overwrite` is set and `replaceable` accepts it. Only if the process is killed between the two renames is `path`
    missing: the old folder is then kept beside it, with suffix .old.
    """
    target = Path(os.path.realpath(path))
    temporary = temporary_name(target)
    aside = temporary.with_suffix(OLD)
    _refuse_existing(target, overwrite, replaceable)
    with naming_the_target(target):
        temporary.mkdir()
    try:
        yield temporary
        with naming_the_target(target):
            _refuse_existing(target, overwrite, replaceable)
            if os.path.lexists(target):
                os.rename(target, aside)
            os.rename(temporary, target)
            sync(target.parent)
    finally:
        if aside.exists() and not os.path.lexists(target):
            os.rename(aside, target)
        for folder in (temporary, aside):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing_file(path: str | os.PathLike[str], overwrite: bool) -> Iterator[IO[bytes]]:
    """Yield a new file to write to, which replaces `path` when the block ends without an exception."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        refuse(target, "it is a folder, not a file")
    if not overwrite and os.path.lexists(target):
        refuse(target, EXISTS)
    remove_leftovers(target)
    with naming_the_target(target), temporary_file(target) as temporary:
        with open(temporary, "xb") as file:
            lock(file.fileno())
            yield file
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)


@contextmanager
def naming_the_target(
    target: str | os.PathLike[str], what: str = "it could not be written, and nothing was left behind"
) -> Iterator[None]:
    """Add the target to every OSError; that of a full disk does not name the file."""
    try:
        yield
    except FileExistsError:  # names it already
        raise
    except OSError as error:
        raise OSError(error.errno or errno.EIO, f"{error.strerror or error}: {what}", str(target)) from error


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
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
        refuse(target, EXISTS)
    if not replaceable(target):
        refuse(target, "it is not replaced, because it is not a data set or holds other files")


def temporary_name(target: Path) -> Path:
    """A unique name beside the target, with at most 100 bytes of the target's name."""
    return target.with_name(f".{_short(target.name)}.{secrets.token_hex(8)}{TEMPORARY}")


@contextmanager
def temporary_file(target: Path) -> Iterator[Path]:
    """Yield a `temporary_name`; a file of that name is removed when the block ends."""
    temporary = temporary_name(target)
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def lock(descriptor: int) -> None:
    """Lock a file or folder until it is closed, to distinguish one that is being written from an abandoned one.

    A process number in its name is not enough: processes in two containers may have the same one. BlockingIOError means
    that another process holds the lock.
    """
    if sys.platform == "win32":  # an open file cannot be removed there
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # some network file systems have no locks; leftovers are not removed there either
        pass


class FileLock:
    """The lock that a run holds on its file, from `take` or `keep` until `release` or the end of the block.

    The file itself is locked, and then each file that replaces it. So nothing is left behind, and the lock of a process
    that is killed ends with it. There is no lock on Windows, where an open file cannot be replaced, and on file systems
    without locks.
    """

    def __init__(self) -> None:
        self._file: IO[Any] | None = None
        _file_locks.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock, if any is held."""
        _unlock(self._file)
        self._file = None

    def take(self, path: Path) -> None:
        """Lock the file at a path; a BlockingIOError says that another run holds the lock."""
        while sys.platform != "win32":
            # Network file systems need write permission for the lock.
            with ExitStack() as closing:
                file = closing.enter_context(open(path, "r+b" if os.access(path, os.W_OK) else "rb"))
                try:
                    lock(file.fileno())
                except BlockingIOError:
                    reason = f"another run{_holder(file.fileno())} is using it"
                    raise BlockingIOError(errno.EAGAIN, reason, str(path)) from None
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):  # else it was replaced: lock the other one
                    self.keep(file)
                    closing.pop_all()
                    return

    def keep(self, file: IO[Any]) -> None:
        """Keep a file that is locked already, instead of the one before; `release` closes it."""
        before, self._file = self._file, file
        _unlock(before)

    @staticmethod
    def forget_all() -> None:
        """Close the files in a forked child, so that it does not hold the locks after the end of its parent."""
        for one in _file_locks:
            if one._file is not None:
                one._file.close()


_file_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=FileLock.forget_all)


def _unlock(file: IO[Any] | None) -> None:
    if file is None or file.closed:
        return
    with file:
        if sys.platform != "win32":
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _holder(descriptor: int) -> str:
    """The process that holds the lock on a file, in brackets; empty if the system does not say."""
    status = os.fstat(descriptor)
    where = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError), open("/proc/locks") as locks:
        for _, kind, _, _, process, file, *_ in map(str.split, locks):
            if (kind, file) == ("FLOCK", where):
                return f" (process {process})"
    return ""


def remove_leftovers(target: Path) -> None:
    """Remove temporary files that killed processes left beside a target: those that nobody holds the lock of."""
    pattern = re.compile(re.escape(f".{_short(target.name)}.") + "[0-9a-f]{16}" + re.escape(TEMPORARY))
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_unless_locked(entry.path)


def _remove_unless_locked(path: str) -> None:
    if sys.platform == "win32":
        os.unlink(path)
        return
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)


def _short(name: str) -> str:
    return os.fsencode(name)[:100].decode(errors="ignore")
