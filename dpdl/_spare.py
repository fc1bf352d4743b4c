"""Temporary names beside a target: locked while whoever writes there lives, and swept when nobody does any more."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

TEMPORARY, OLD = ".tmp", ".old"


def spare_name(target: Path) -> Path:
    """A name that nobody else has, short enough for any file system that has room for 100 bytes of the target's."""
    return target.with_name(f".{_short(target.name)}.{secrets.token_hex(8)}{TEMPORARY}")


@contextmanager
def spare_file(target: Path) -> Iterator[Path]:
    """Such a name for the time of a block, under which nothing is left."""
    spare = spare_name(target)
    try:
        yield spare
    finally:
        with suppress(OSError):
            spare.unlink()


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
    except OSError:  # some network file systems have no locks; then nothing is ever swept there either
        pass


def beside(target: Path, suffix: str) -> Iterator[str]:
    """Paths beside a target that `spare_name` made for it, or would have but for the suffix."""
    pattern = re.compile(re.escape(f".{_short(target.name)}.") + "[0-9a-f]{16}" + re.escape(suffix))
    with suppress(OSError), os.scandir(target.parent) as entries:
        yield from (entry.path for entry in entries if pattern.fullmatch(entry.name))


def sweep(target: Path, remove: Callable[[str], object] = os.unlink, suffix: str = TEMPORARY) -> None:
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
