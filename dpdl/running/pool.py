"""Jobs on an executor: sent away, waited for, told to stop.

Those in threads share the data set. Others get its path and open it themselves, once in a process. All of them look
every 20 ms whether they are to stop: at an event in threads, at a file on the caller's machine otherwise (a worker on
another one, which cannot see it, goes on to its end).
"""

from __future__ import annotations

import concurrent.futures as cf
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from dpdl.data.dataset import Dataset
from dpdl.lasting.interrupts import Interrupts, was_interrupted
from dpdl.lasting.progress import Progress
from dpdl.result import Result, Status

#: Seconds between two looks at what has come back, and at the keyboard.
LOOK = 0.02
#: Seconds after Ctrl-C in which it has no effect once more.
PATIENCE = 1.0

logger = logging.getLogger("dpdl")


class Job(Protocol):
    """A run, but for its data set; can be sent away."""

    def run(self, dataset: Dataset, stop: Callable[[], bool], interrupts: Interrupts) -> Result | None:
        """Take the steps; None if it is too late to begin."""


class Crew:
    """Jobs under way on an executor, and their results by number."""

    def __init__(
        self,
        dataset: Dataset,
        executor: cf.Executor,
        stop: _Stop,
        interrupts: Interrupts,
        results: dict[int, Result],
    ) -> None:
        self.dataset, self.executor, self.stop, self.interrupts = dataset, executor, stop, interrupts
        self.results = results
        self.waiting: dict[cf.Future[Result | None], int] = {}

    def send(self, k: int, job: Job) -> None:
        """Begin with a job. Its future is not lost, whenever Ctrl-C is pressed."""
        with _no_interrupts() if isinstance(self.executor, cf.ProcessPoolExecutor) else nullcontext():
            if self.stop.home is None:
                future = self.executor.submit(_run_here, job, self.dataset, self.stop)
            else:
                where = str(self.dataset.path), self.dataset.fingerprint
                future = self.executor.submit(_run_there, job, k, *where, Caller.here(self.stop.home))
            self.waiting[future] = k

    def collect(self, seconds: float = LOOK) -> None:
        """Take what has come back; one that was interrupted ends the others."""
        done, _ = cf.wait(self.waiting, seconds, cf.FIRST_COMPLETED)
        for future in done:
            result, k = future.result(), self.waiting[future]
            if result is not None:
                self.results[k] = result
            del self.waiting[future]
            if result is None and not self.stop.is_set:
                raise RuntimeError(f"run {k} did not begin: a worker on this host does not see {self.stop.home}")
            if result is None or result.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
        if self.stop.is_set or was_interrupted(self.interrupts):
            raise KeyboardInterrupt

    def leave(self) -> None:
        """Wait for those that have begun, and drop the others; Ctrl-C once more, a second later, ends the wait."""
        began = time.monotonic()
        while True:
            try:
                self.stop.set()
                for future, k in list(self.waiting.items()):
                    if not self.stop.has_begun(k) and future.cancel():
                        del self.waiting[future]
                while self.waiting:
                    self._take_back()
                return
            except KeyboardInterrupt:
                if time.monotonic() - began > PATIENCE:
                    return

    def _take_back(self) -> None:
        done, _ = cf.wait(self.waiting, LOOK, cf.FIRST_COMPLETED)
        for future in done:
            k = self.waiting[future]
            try:
                result = future.result()
            except Exception as error:
                logger.warning("run %d did not come back: %r", k, error)
                result = None
            if result is not None:
                self.results[k] = result
            del self.waiting[future]


def run(
    jobs: Sequence[Job], dataset: Dataset, executor: cf.Executor | None, label: str, progress: bool | None
) -> dict[int, Result]:
    """Run all; results by number, without those that Ctrl-C kept from beginning."""
    own = cf.ThreadPoolExecutor(min(len(jobs), _cores()), "dpdl") if executor is None else None
    pool = own or executor
    assert pool is not None
    results: dict[int, Result] = {}
    with (
        suppress(KeyboardInterrupt),  # pressed once more, on the way out
        Interrupts() as interrupts,
        _Stop(is_threads(executor)) as stop,
        Progress(len(jobs), progress, label=label) as bar,
    ):
        crew = Crew(dataset, pool, stop, interrupts, results)
        try:
            for k, job in enumerate(jobs):
                crew.send(k, job)
                crew.collect(0)  # an executor may have run it on the spot
            while crew.waiting:
                crew.collect()
                bar.update(len(results))
        except KeyboardInterrupt:
            crew.leave()
        except BaseException:
            crew.leave()
            raise
        finally:
            if own is not None:
                own.shutdown(wait=False, cancel_futures=True)
    if not results:
        raise KeyboardInterrupt
    return results


def is_threads(executor: cf.Executor | None) -> bool:
    """Whether runs are going to share this process for certain."""
    return executor is None or isinstance(executor, cf.ThreadPoolExecutor)


class _Stop:
    """What tells runs to stop: an event, and for those in other processes a file.

    The folder of the file goes, all at once, when nobody waits any more. Not every executor drops what it was told to
    cancel: a run that begins after that sees that it is gone.
    """

    def __init__(self, threads: bool) -> None:
        self.event = threading.Event()
        self.home = None if threads else Path(tempfile.mkdtemp(prefix="dpdl-"))

    def __enter__(self) -> _Stop:
        return self

    def __exit__(self, *exception: object) -> None:
        self.set()  # whoever is still there ends a little later
        if self.home is not None:
            gone = self.home.with_name(f"{self.home.name}-gone")
            with suppress(OSError):
                os.rename(self.home, gone)
            shutil.rmtree(gone, ignore_errors=True)

    def set(self) -> None:
        self.event.set()
        if self.home is not None:
            with suppress(OSError):
                (self.home / "stop").touch()

    @property
    def is_set(self) -> bool:
        return self.event.is_set()

    def has_begun(self, k: int) -> bool:
        """Whether a run in another process has; not every executor knows, and some cancel what is under way."""
        return self.home is not None and (self.home / str(k)).exists()


@dataclass(frozen=True)
class Caller:
    """Who waits for a run that was sent away."""

    home: str
    host: str
    pid: int

    @classmethod
    def here(cls, home: Path) -> Caller:
        """This process."""
        return cls(str(home), socket.gethostname(), os.getpid())

    @property
    def is_this_process(self) -> bool:
        """Whether the run takes place in the caller's own process."""
        return (self.host, self.pid) == (socket.gethostname(), os.getpid())

    def watch(self, k: int) -> Callable[[], bool]:
        """Say that a run begins; the function tells whether it is to stop."""
        home, stop, parent = Path(self.home), os.path.join(self.home, "stop"), os.getppid()
        if self.host != socket.gethostname() and not home.exists():
            return lambda: False
        with suppress(OSError):
            (home / str(k)).touch()
        # A worker whose parent was killed has nobody to send its result to.
        return lambda: os.path.exists(stop) or not home.exists() or os.getppid() != parent


def _run_here(job: Job, dataset: Dataset, stop: _Stop) -> Result | None:
    with Interrupts() as interrupts:
        result = job.run(dataset, stop.event.is_set, interrupts)
    if result is not None and result.status is Status.INTERRUPTED:
        stop.set()  # at once, before this thread begins with the next one
    return result


def _run_there(job: Job, k: int, path: str, fingerprint: str, caller: Caller) -> Result | None:
    """Run in a process of its own, as a rule.

    Ctrl-C at a terminal reaches that process as well. A worker that took it for an order to leave, as those of Dask do,
    would take the steps with it.
    """
    stop = caller.watch(k)
    with Interrupts(guarded=not caller.is_this_process) as interrupts:
        return None if stop() else job.run(_opened(path, fingerprint), stop, interrupts)


@lru_cache(maxsize=1)
def _opened(path: str, fingerprint: str) -> Dataset:
    dataset = Dataset.open(path, verify=False)  # the caller has verified it; this is about which one it is
    if dataset.fingerprint != fingerprint:
        raise ValueError(f"the worker finds another data set at {path} than the caller: the fingerprints differ")
    return dataset


@contextmanager
def _no_interrupts() -> Iterator[Any]:
    """Keep SIGINT from processes that are started meanwhile: the caller tells them to stop, and gets their work."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
