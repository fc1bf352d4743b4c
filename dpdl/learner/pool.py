"""Tasks on an executor: submitting them, collecting results, stopping them.

Tasks in threads share the data set. Others get its path and open it, once per process. Every task polls each 20 ms
whether to stop: an event in threads, otherwise a file on the caller's machine. A worker on another machine, which
cannot see that file, runs to its end. In the same way a task reports how many steps it has taken.
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
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpdl.data.dataset import Dataset
from dpdl.learner.interrupts import Interrupts, was_interrupted
from dpdl.learner.progress import Progress
from dpdl.result import Result, Status

#: Seconds between two polls for finished tasks and for Ctrl-C.
POLL_SECONDS = 0.02
#: Seconds after a Ctrl-C before another one ends the wait for running tasks.
FORCE_SECONDS = 1.0
#: Seconds between two reports of a worker process.
REPORT_SECONDS = 0.2

logger = logging.getLogger("dpdl")


#: A run without its data set, with `Options.stop`; None if it is told to stop before the first step. It can be pickled.
Task = Callable[[Dataset, Callable[[int], bool], Interrupts], Result | None]


class RunningTasks:
    """Tasks submitted to an executor, and the results so far by their numbers."""

    def __init__(
        self, dataset: Dataset, executor: cf.Executor, stop: _Stop, interrupts: Interrupts, results: dict[int, Result]
    ) -> None:
        self.dataset, self.executor, self.stop, self.interrupts = dataset, executor, stop, interrupts
        self.results = results
        self.futures: dict[cf.Future[Result | None], int] = {}

    def submit(self, k: int, task: Task) -> None:
        """Submit a task. Ctrl-C at any moment does not lose its future."""
        with _no_interrupts() if isinstance(self.executor, cf.ProcessPoolExecutor) else nullcontext():
            if self.stop.folder is None:
                future = self.executor.submit(_run_in_thread, task, k, self.dataset, self.stop)
            else:
                where = str(self.dataset.path), self.dataset.fingerprint
                future = self.executor.submit(_run_in_worker, task, k, *where, Caller.here(self.stop.folder))
            self.futures[future] = k

    def collect(self, seconds: float = POLL_SECONDS) -> None:
        """Collect finished tasks; if one of them was interrupted, raise KeyboardInterrupt."""
        for future in cf.wait(self.futures, seconds, cf.FIRST_COMPLETED).done:
            k, result = self.futures[future], self._store(future)
            if result is None and not self.stop.is_set:
                raise RuntimeError(f"run {k} did not begin: a worker on this host does not see {self.stop.folder}")
            if result is None or result.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
        if self.stop.is_set or was_interrupted(self.interrupts):
            raise KeyboardInterrupt

    def _store(self, future: cf.Future[Result | None]) -> Result | None:
        """Keep the result of a finished task, in an order of steps that loses nothing to Ctrl-C."""
        result = future.result()
        if result is not None:
            self.results[self.futures[future]] = result
        del self.futures[future]
        return result

    def stop_and_collect(self) -> None:
        """Cancel tasks that have not begun and wait for the others; a Ctrl-C after `FORCE_SECONDS` ends the wait."""
        began = time.monotonic()
        while True:
            try:
                self.stop.set()
                for future, k in list(self.futures.items()):
                    if not self.stop.has_begun(k) and future.cancel():
                        del self.futures[future]
                while self.futures:
                    self._collect_quietly()
                return
            except KeyboardInterrupt:
                if time.monotonic() - began > FORCE_SECONDS:
                    return

    def _collect_quietly(self) -> None:
        for future in cf.wait(self.futures, POLL_SECONDS, cf.FIRST_COMPLETED).done:
            try:
                self._store(future)
            except Exception as error:
                logger.warning("run %d failed: %r", self.futures[future], error)
                del self.futures[future]


def run(
    tasks: Sequence[Task],
    n_steps: Sequence[int],
    resumed: dict[int, int],
    dataset: Dataset,
    executor: cf.Executor | None,
    progress: Progress,
) -> dict[int, Result]:
    """Run all tasks; results by number, without those that had not begun before Ctrl-C.

    Task k has `n_steps[k]` steps, of which `resumed.get(k, 0)` were taken before.
    """
    own = cf.ThreadPoolExecutor(min(len(tasks), _cores()), "dpdl") if executor is None else None
    pool = own or executor
    assert pool is not None
    results: dict[int, Result] = {}
    with (
        suppress(KeyboardInterrupt),  # a second Ctrl-C during the clean-up
        Interrupts() as interrupts,
        _Stop(is_threads(executor), resumed) as stop,
        progress as bar,
    ):
        running = RunningTasks(dataset, pool, stop, interrupts, results)
        try:
            for k, task in enumerate(tasks):
                running.submit(k, task)
                running.collect(0)  # an executor may run a task inside submit
            while running.futures:
                running.collect()
                if bar.is_due():
                    bar.update(sum(n if k in results else min(n, stop.steps_of(k)) for k, n in enumerate(n_steps)))
        except KeyboardInterrupt:
            running.stop_and_collect()
        except BaseException:
            running.stop_and_collect()
            raise
        finally:
            if own is not None:
                own.shutdown(wait=False, cancel_futures=True)
    if not results:
        raise KeyboardInterrupt
    return results


def is_threads(executor: cf.Executor | None) -> bool:
    """Whether all runs are certain to take place in this process."""
    return executor is None or isinstance(executor, cf.ThreadPoolExecutor)


class _Stop:
    """Tells runs to stop, by an event in threads, by a file for other processes; they report their steps likewise.

    The folder of that file is removed, atomically, once the caller stops waiting. Some executors start tasks that were
    cancelled; a run that starts after that stops because the folder is missing.
    """

    def __init__(self, threads: bool, resumed: dict[int, int]) -> None:
        self.event = threading.Event()
        self.steps = dict(resumed)  # by number of the run
        self.folder = None if threads else Path(tempfile.mkdtemp(prefix="dpdl-"))

    def __enter__(self) -> _Stop:
        return self

    def __exit__(self, *exception: object) -> None:
        self.set()
        if self.folder is not None:
            gone = self.folder.with_name(f"{self.folder.name}-gone")
            with suppress(OSError):
                os.rename(self.folder, gone)
            shutil.rmtree(gone, ignore_errors=True)

    def set(self) -> None:
        self.event.set()
        if self.folder is not None:
            with suppress(OSError):
                (self.folder / "stop").touch()

    @property
    def is_set(self) -> bool:
        return self.event.is_set()

    def watch(self, k: int) -> Callable[[int], bool]:
        """Return the function by which run k, in a thread, reports its steps and learns whether it must stop."""

        def stop(n_steps: int) -> bool:
            self._report(k, n_steps)
            return self.is_set

        return stop

    def steps_of(self, k: int) -> int:
        """Steps that run k has reported."""
        if self.folder is not None:
            with suppress(OSError, ValueError):  # it has not begun, or has reported nothing yet
                self._report(k, int((self.folder / str(k)).read_bytes()))
        return self.steps.get(k, 0)

    def _report(self, k: int, n_steps: int) -> None:
        self.steps[k] = max(self.steps.get(k, 0), n_steps)  # a run that is resumed first reports none

    def has_begun(self, k: int) -> bool:
        """Whether a run in another process has begun; some executors cancel futures of tasks that are running."""
        return self.folder is not None and (self.folder / str(k)).exists()


@dataclass(frozen=True)
class Caller:
    """The process that waits for a run, as its worker needs to know it."""

    folder: str
    host: str
    pid: int

    @classmethod
    def here(cls, folder: Path) -> Caller:
        """This process."""
        return cls(str(folder), socket.gethostname(), os.getpid())

    @property
    def is_this_process(self) -> bool:
        """Whether the run takes place in the caller's own process."""
        return (self.host, self.pid) == (socket.gethostname(), os.getpid())

    def watch(self, k: int) -> Callable[[int], bool]:
        """Mark run k as begun; return the function by which it reports its steps and learns whether it must stop."""
        folder, told, parent = Path(self.folder), os.path.join(self.folder, "stop"), os.getppid()
        if self.host != socket.gethostname() and not folder.exists():
            return lambda n_steps: False
        with suppress(OSError):
            (folder / str(k)).touch()
        reported = time.monotonic()

        def stop(n_steps: int) -> bool:
            nonlocal reported
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                with suppress(OSError):
                    (folder / str(k)).write_text(str(n_steps))
            # If the parent of the worker was killed, nobody can receive the result.
            return os.path.exists(told) or not folder.exists() or os.getppid() != parent

        return stop


def _run_in_thread(task: Task, k: int, dataset: Dataset, stop: _Stop) -> Result | None:
    with Interrupts() as interrupts:
        result = task(dataset, stop.watch(k), interrupts)
    if result is not None and result.status is Status.INTERRUPTED:
        stop.set()  # here, before this thread starts its next task
    return result


def _run_in_worker(task: Task, k: int, path: str, fingerprint: str, caller: Caller) -> Result | None:
    """Run a task on an executor that is not a thread pool, usually in another process.

    Ctrl-C at a terminal reaches that process as well. `Interrupts` handles it, because a worker that exits on SIGINT,
    as those of Dask do, would lose the steps taken.
    """
    with Interrupts(guarded=not caller.is_this_process) as interrupts:
        stop = caller.watch(k)  # from here on the caller relies on this run to survive Ctrl-C
        result = None if stop(0) else task(_opened(path, fingerprint), stop, interrupts)
        return None if result is None else replace(result, log=None)  # the caller judges it, and has the log


@lru_cache(maxsize=1)
def _opened(path: str, fingerprint: str) -> Dataset:
    dataset = Dataset.open(path, verify=False)  # the caller has verified it
    if dataset.fingerprint != fingerprint:
        raise ValueError(f"the data set at {path} is another one for the worker: the fingerprints differ")
    return dataset


@contextmanager
def _no_interrupts() -> Iterator[Any]:
    """Block SIGINT in processes that are started inside: the caller stops them through `_Stop` and gets their results.

    The mask is inherited, so that the workers of a process pool survive Ctrl-C.
    """
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
