"""Many runs of `learn` on one log, on any executor: what they share, their seeds and checkpoints, the wait for them.

Runs in threads share the data set. Others get its path and open it themselves, once in a process. All of them look
every 20 ms whether they are to stop: at an event in threads, at a file on the caller's machine otherwise (a worker that
cannot see it goes on to its end).
"""

from __future__ import annotations

import concurrent.futures as cf
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from . import _checkpointing as checkpointing
from . import _core, learning
from . import _validation as check
from . import checkpoint as checkpoint_file
from ._progress import Progress
from ._setup import Setup, prepare
from .dataset import Dataset
from .learning import CHECKPOINT_SECONDS, Options
from .result import Result, Status
from .settings import Settings

#: What `learn` takes besides settings: what a run is made of, and how it is driven.
_MADE_OF: dict[str, Any] = {
    "rho0": None,
    "initial_states": None,
    "n_reference": None,
    "reference": None,
    "start": None,
    "known": (),
}
_DRIVEN_BY = {
    "callback": None,
    "callback_every": None,
    "callback_seconds": None,
    "step_limit": None,
    "time_limit": None,
    "every": CHECKPOINT_SECONDS,
    "check_slater": None,
    "chunk": None,
}
#: Seconds between two looks at the clock while waiting.
LOOK = 0.1
#: Beside the checkpoints of runs, and in their format: where their seeds come from.
PLAN = "plan"

log = logging.getLogger("dpdl")


class Seeds:
    """Children of one seed sequence; child k depends on the root and on k alone."""

    def __init__(self, rng: Any) -> None:
        if isinstance(rng, np.random.Generator):
            rng = rng.bit_generator.seed_seq.spawn(1)[0]  # type: ignore[attr-defined]
        elif not isinstance(rng, np.random.SeedSequence):
            check.generator(rng)  # refuses what is no seed
            rng = np.random.SeedSequence(rng)
        self.root = rng

    def child(self, k: int) -> np.random.SeedSequence:
        """Seed of run k."""
        return np.random.SeedSequence(self.root.entropy, spawn_key=(*self.root.spawn_key, k))

    def written(self) -> dict[str, Any]:
        """What makes the same seeds again, as JSON has it."""
        return {"entropy": np.asarray(self.root.entropy, dtype=object).tolist(), "spawn_key": list(self.root.spawn_key)}

    @classmethod
    def read(cls, plan: dict[str, Any]) -> Seeds:
        """Seeds made of what `written` gave."""
        return cls(np.random.SeedSequence(plan["entropy"], spawn_key=plan["spawn_key"]))


@dataclass(frozen=True)
class Job:
    """One run, but for its data set; can be sent away."""

    settings: Settings
    made_of: dict[str, Any]
    options: Options
    seed: Any

    def run(self, dataset: Dataset, stop: Callable[[], bool], interrupts: _core.Interrupts) -> Result | None:
        """Take the steps, from the checkpoint if there is one; None if it is too late to begin."""
        if stop():
            return None
        path, options = self.options.checkpoint, replace(self.options, stop=stop)
        if path is not None and path.exists():
            setup = checkpointing.load(path, dataset, self.settings)
            return learning._drive(setup, dataset, options, interrupts, new=False)
        setup = prepare(dataset, self.settings, {}, rng=self.seed, **self.made_of)
        return learning._drive(setup, dataset, options, interrupts, new=True)


class Many:
    """Arguments that several runs have in common, checked.

    Parameters are those of `replicate`; `name` is what a run is called in the names of checkpoints.
    """

    def __init__(
        self,
        name: str,
        dataset: Any,
        executor: Any,
        checkpoint: Any,
        resume: Any,
        progress: Any,
        keywords: dict[str, Any],
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise TypeError(f"dataset must be a Dataset, got {type(dataset).__name__}")
        self.name, self.dataset, self.executor, self.progress = name, dataset, executor, progress
        self.settings = {key: value for key, value in keywords.items() if key not in _MADE_OF | _DRIVEN_BY}
        self.made_of = {key: keywords.get(key, default) for key, default in _MADE_OF.items()}
        driven_by = {key: keywords.get(key, default) for key, default in _DRIVEN_BY.items()}
        self.options = Options.checked(**driven_by, progress=progress, checkpoint=checkpoint)
        self.threads = executor is None or isinstance(executor, cf.ThreadPoolExecutor)
        self.resume = check.flag("resume", resume)
        if self.resume and checkpoint is None:
            raise TypeError("resume needs checkpoint, the folder to go on from")
        self._check_executor()

    def _check_executor(self) -> None:
        executor, kind = self.executor, type(self.executor).__name__
        if executor is not None and not isinstance(executor, cf.Executor):
            hint = "; for Dask that is client.get_executor()" if hasattr(executor, "get_executor") else ""
            raise TypeError(f"executor must be a concurrent.futures.Executor, got {kind}{hint}")
        if not self.threads and self.dataset.path is None:
            raise ValueError(
                f"dataset has no path, so that the workers of a {kind} cannot open it: save it with Dataset.save and "
                "pass what Dataset.open gives, or use threads"
            )
        if not self.threads and self.options.callback is not None:
            raise ValueError(f"callback cannot be called from the workers of a {kind}, only from threads")

    def check(self, settings: list[Settings]) -> None:
        """Look at everything that could be wrong with runs of these settings; nothing is written."""
        setup: Setup | None = None
        for k, one in enumerate(settings):
            if k == 0 or one != settings[k - 1]:
                setup = prepare(self.dataset, one, {}, rng=0, **self.made_of)
            assert setup is not None
            path = self._path(k)
            if path is not None:
                checkpointing.can_be_saved(setup)
            if self.resume and path is not None and path.exists():
                checkpointing.refuse_other_run(path, checkpointing.load(path, self.dataset, one), setup)

    def jobs(self, settings: list[Settings], seeds: list[Any]) -> list[Job]:
        """One job for each."""
        options = replace(self.options, progress=False)
        return [
            Job(one, self.made_of, replace(options, checkpoint=self._path(k)), seed)
            for k, (one, seed) in enumerate(zip(settings, seeds, strict=True))
        ]

    def plan(self, rng: Any, **what: Any) -> Seeds:
        """Seeds of the runs; with checkpoints they are written down, and must be the same when the runs go on."""
        folder = self.options.checkpoint
        if folder is None:
            return Seeds(rng)
        what |= {"runs": self.name}
        if self.resume and folder.exists():
            return self._stored_plan(folder, rng, what)
        if folder.is_dir() and any(folder.iterdir()):
            raise FileExistsError(f"checkpoint: {folder} is not empty; resume=True goes on with what is there")
        seeds = Seeds(rng)
        folder.mkdir(exist_ok=True)
        checkpoint_file.write(folder / PLAN, what | seeds.written(), {}, new=True)
        return seeds

    def _stored_plan(self, folder: Path, rng: Any, what: dict[str, Any]) -> Seeds:
        if not (folder / PLAN).exists():
            raise FileNotFoundError(f"checkpoint: {folder} has no file {PLAN!r}: nothing to go on with")
        stored, _ = checkpoint_file.read(folder / PLAN)
        for name, value in (what if rng is None else what | Seeds(rng).written()).items():
            if stored.get(name) != value:
                raise ValueError(f"checkpoint: {folder} is of other runs: {name} = {stored.get(name)!r}, not {value!r}")
        return Seeds.read(stored)

    def run(self, jobs: list[Job]) -> dict[int, Result]:
        """Run them; results by number, without those that Ctrl-C kept from beginning."""
        own = cf.ThreadPoolExecutor(min(len(jobs), _cores()), "dpdl") if self.executor is None else None
        pool: cf.Executor = self.executor if own is None else own
        results: dict[int, Result] = {}
        with _Stop(self.threads) as stop, Progress(len(jobs), self.progress, label=f"{self.name}s") as bar:
            waiting: dict[cf.Future[Result | None], int] = {}
            try:
                for k, job in enumerate(jobs):
                    waiting[self._submit(pool, job, k, stop)] = k
                while waiting:
                    _collect(waiting, results, stop)
                    bar.update(len(results))
            except BaseException as error:
                stop.set()
                _abandon(waiting, results, stop)
                if not isinstance(error, KeyboardInterrupt):
                    if self.options.checkpoint is not None:
                        error.add_note(f"The runs can go on from {self.options.checkpoint} with resume=True.")
                    raise
            finally:
                if own is not None:
                    own.shutdown(wait=False, cancel_futures=True)
        if not results:
            raise KeyboardInterrupt
        return results

    def _submit(self, pool: cf.Executor, job: Job, k: int, stop: _Stop) -> cf.Future[Result | None]:
        if self.threads:
            return pool.submit(_run_here, job, self.dataset, stop)
        with _no_interrupts():
            return pool.submit(_run_there, job, k, str(self.dataset.path), self.dataset.fingerprint, str(stop.file))

    def _path(self, k: int) -> Path | None:
        return None if self.options.checkpoint is None else self.options.checkpoint / f"{self.name}-{k}"


class _Stop:
    """What tells runs to stop: an event, and a file for those in other processes."""

    def __init__(self, threads: bool) -> None:
        self.event = threading.Event()
        self.folder = None if threads else tempfile.TemporaryDirectory(prefix="dpdl-")
        self.file = None if self.folder is None else Path(self.folder.name, "stop")

    def __enter__(self) -> _Stop:
        return self

    def __exit__(self, *exception: object) -> None:
        self.set()  # whoever is still there ends a little later
        if self.folder is not None:
            self.folder.cleanup()

    def set(self) -> None:
        self.event.set()
        if self.file is not None and not self.file.exists():
            self.file.touch()

    @property
    def is_set(self) -> bool:
        return self.event.is_set()

    def has_begun(self, k: int) -> bool:
        """Whether a run in another process has; not every executor knows, and some cancel what is under way."""
        return self.file is not None and self.file.with_name(str(k)).exists()


def _run_here(job: Job, dataset: Dataset, stop: _Stop) -> Result | None:
    with _core.Interrupts() as interrupts:
        result = job.run(dataset, stop.event.is_set, interrupts)
    if result is not None and result.status is Status.INTERRUPTED:
        stop.set()  # at once, before this thread begins with the next one
    return result


def _run_there(job: Job, k: int, path: str, fingerprint: str, stop: str) -> Result | None:
    """Run in a process of its own; the folder of `stop` goes when nobody waits any more.

    Ctrl-C at a terminal reaches this process as well. A worker that took it for an order to leave, as those of Dask do,
    would take the steps with it.
    """
    home = Path(stop).parent
    local = home.exists()
    if local:
        (home / str(k)).touch()
    with _core.Interrupts(guarded=True) as interrupts:
        dataset = _opened(path, fingerprint)
        return job.run(dataset, lambda: local and (os.path.exists(stop) or not home.exists()), interrupts)


@lru_cache(maxsize=1)
def _opened(path: str, fingerprint: str) -> Dataset:
    dataset = Dataset.open(path, verify=False)  # the caller has verified it; this is about which one it is
    if dataset.fingerprint != fingerprint:
        raise ValueError(f"the worker finds another data set at {path} than the caller: the fingerprints differ")
    return dataset


def _collect(waiting: dict[cf.Future[Result | None], int], results: dict[int, Result], stop: _Stop) -> None:
    """Take what has come back; one that was interrupted ends the others."""
    done, _ = cf.wait(waiting, LOOK, cf.FIRST_COMPLETED)
    for future in done:
        result = future.result()
        if result is not None:
            results[waiting[future]] = result
        del waiting[future]
        if result is None or result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
    if stop.is_set:
        raise KeyboardInterrupt


def _abandon(waiting: dict[cf.Future[Result | None], int], results: dict[int, Result], stop: _Stop) -> None:
    """Wait for those that have begun, and drop the others; Ctrl-C once more ends the wait."""
    for future, k in list(waiting.items()):
        if not stop.has_begun(k) and future.cancel():
            del waiting[future]
    with suppress(KeyboardInterrupt):
        while waiting:
            done, _ = cf.wait(waiting, LOOK, cf.FIRST_COMPLETED)
            for future in done:
                k = waiting.pop(future)
                try:
                    result = future.result()
                except Exception as error:
                    log.warning("run %d did not come back: %r", k, error)
                else:
                    if result is not None:
                        results[k] = result


@contextmanager
def _no_interrupts() -> Iterator[None]:
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
