"""Atomic replacement of files and folders, and locks.

Data is written under a temporary name beside the target, which is then renamed. A temporary file has the same name in
every process, and the one that writes it holds a lock on it: what a killed process left is written over by the next.
`FileLock` is the lock of a run on its checkpoint, so that no other run writes there.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

if sys.platform != "win32":
    import fcntl

EXISTS = "it exists already; pass overwrite=True to replace it"


@contextmanager
def replacing(path: str | os.PathLike[str], overwrite: bool, replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a new, empty folder to write to, which replaces `path` when the block ends without an exception.

    On an exception the new folder is removed and `path` is unchanged. An existing `path` is replaced only if
    `overwrite` is set and `replaceable` accepts it. Only if the process is killed between the two renames is `path`
    missing: the old folder is then kept beside it, with suffix .old.
    """

    def refuse_existing() -> None:
        if os.path.lexists(target) and not overwrite:
            refuse(target, EXISTS)
        if os.path.lexists(target) and not replaceable(target):
            refuse(target, "it is not replaced, because it is not a data set or holds other files")

    target = Path(os.path.realpath(path))
    temporary = _beside(target, f".{secrets.token_hex(8)}.tmp")
    aside = temporary.with_suffix(".old")
    refuse_existing()
    with naming_the_target(target):
        temporary.mkdir()
    try:
        yield temporary
        with naming_the_target(target):
            refuse_existing()
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
def replacing_file(path: str | os.PathLike[str], overwrite: bool, held: FileLock | None = None) -> Iterator[IO[bytes]]:
    """Yield a new file to write to, which replaces `path` when the block ends without an exception.

    Without `overwrite` nothing is replaced, not even what was created concurrently. `held` is the lock on the file that
    is replaced, and is moved to the new one.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        refuse(target, "it is a folder, not a file")
    if not overwrite and os.path.lexists(target):
        refuse(target, EXISTS)
    with naming_the_target(target):
        temporary, file = _open_temporary(target)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform == "win32":
                file.close()  # an open file cannot be renamed there; elsewhere it stays locked
            _rename(temporary, target, overwrite)
        except BaseException:
            if sys.platform == "win32":
                file.close()
            temporary.unlink(missing_ok=True)
            raise
        else:
            if held is not None:
                held.keep(file)
        finally:
            if held is None or held.file is not file:
                file.close()


def _open_temporary(target: Path) -> tuple[Path, IO[bytes]]:
    """Open an empty file beside a target and lock it; while another process writes to it, wait."""
    temporary = _beside(target, ".tmp")
    while True:
        # It may be another's, so it is not truncated before it is locked.
        file = os.fdopen(os.open(temporary, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            if not lock(file.fileno()):  # there are no locks here, so the name must be unique
                file.close()
                temporary.unlink(missing_ok=True)
                temporary = _beside(target, f".{secrets.token_hex(8)}.tmp")
                return temporary, open(temporary, "xb")
            if os.path.samestat(os.fstat(file.fileno()), os.stat(temporary)):  # else the other one has renamed it
                file.truncate()
                return temporary, file
        except (BlockingIOError, FileNotFoundError):
            pass
        file.close()
        time.sleep(0.001)


def _rename(temporary: Path, target: Path, overwrite: bool) -> None:
    """Rename a file; unless `overwrite` is set, of two that want the same name one fails."""
    if overwrite:
        os.replace(temporary, target)
    else:
        try:
            os.link(temporary, target)
            temporary.unlink()
        except OSError:
            if os.path.lexists(target):
                refuse(target, EXISTS)
            os.replace(temporary, target)  # a file system without hard links
    with suppress(OSError):  # makes the rename durable, where the platform supports that
        sync(target.parent)


def _beside(target: Path, ending: str) -> Path:
    """A hidden name beside a target, with at most 100 bytes of the target's name."""
    return target.with_name(f".{os.fsencode(target.name)[:100].decode(errors='ignore')}{ending}")


@contextmanager
def naming_the_target(target: str | os.PathLike[str]) -> Iterator[None]:
    """Add the target to every OSError; that of a full disk does not name the file."""
    try:
        yield
    except FileExistsError:  # names it already
        raise
    except OSError as error:
        reason = f"{error.strerror or error}: it could not be written, and what was there is unchanged"
        raise OSError(error.errno or errno.EIO, reason, str(target)) from error


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


def lock(descriptor: int) -> bool:
    """Lock a file until it is closed; False if there are no locks: on Windows, and some network file systems.

    A BlockingIOError means that another process holds the lock.
    """
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


class FileLock:
    """The lock that a run holds on its file, from `take` or `keep` until `release` or the end of the block.

    The file itself is locked, and then each file that replaces it. So nothing is left behind, and the lock of a process
    that is killed ends with it.
    """

    def __init__(self) -> None:
        self.file: IO[Any] | None = None
        _file_locks.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

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

    def keep(self, file: IO[Any] | None) -> None:
        """Hold a file that is locked already, instead of the one before."""
        before, self.file = self.file, file
        if before is not None and not before.closed:
            with before, suppress(OSError):  # a file system without locks
                if sys.platform != "win32":
                    fcntl.flock(before.fileno(), fcntl.LOCK_UN)  # a child that is being forked may have it open too

    def release(self) -> None:
        """Release the lock, if any is held."""
        self.keep(None)

    @staticmethod
    def forget_all() -> None:
        """Close the files in a forked child, so that it does not hold the locks after the end of its parent."""
        for held in _file_locks:
            if held.file is not None:
                held.file.close()


_file_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=FileLock.forget_all)


def _holder(descriptor: int) -> str:
    """The process that holds the lock on a file, in brackets; empty if the system does not say."""
    status = os.fstat(descriptor)
    where = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError), open("/proc/locks") as locks:
        for _, kind, _, _, process, file, *_ in map(str.split, locks):
            if (kind, file) == ("FLOCK", where):
                return f" (process {process})"
    return ""
