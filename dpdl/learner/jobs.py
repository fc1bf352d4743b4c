"""Several runs on one log: what they share, their seeds and their checkpoints."""

from __future__ import annotations

import concurrent.futures as cf
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.files.atomic import FileLock
from dpdl.learner import checkpoint, plan, pool
from dpdl.learner.arguments import parse
from dpdl.learner.drive import drive
from dpdl.learner.interrupts import Interrupts
from dpdl.learner.layout import Inputs, Layout
from dpdl.learner.options import Options
from dpdl.learner.progress import Progress
from dpdl.learner.run import Run
from dpdl.question import pose
from dpdl.result import Point, Result
from dpdl.settings import Settings


class Seeds:
    """Children of one seed sequence; child k depends on the root and on k alone."""

    def __init__(self, rng: Any) -> None:
        generator = check.generator(rng)  # raises if rng is not a seed
        if isinstance(rng, np.random.SeedSequence):
            self.root = rng
        elif isinstance(rng, np.random.Generator):
            sequence = getattr(generator.bit_generator, "seed_seq", None)  # None for a legacy bit generator
            drawn = [int(word) for word in generator.integers(2**32, size=4)] if sequence is None else []
            self.root = np.random.SeedSequence(drawn) if sequence is None else sequence.spawn(1)[0]
        else:
            self.root = np.random.SeedSequence(None if rng is None else int(rng))

    def child(self, k: int) -> np.random.SeedSequence:
        """Seed of run k."""
        return np.random.SeedSequence(self.root.entropy, spawn_key=(*self.root.spawn_key, k))

    def to_json(self) -> dict[str, Any]:
        """The root, as JSON values."""
        return {"entropy": np.asarray(self.root.entropy, dtype=object).tolist(), "spawn_key": list(self.root.spawn_key)}

    @classmethod
    def from_json(cls, plan: dict[str, Any]) -> Seeds:
        """Seeds with the root that `to_json` returned."""
        return cls(np.random.SeedSequence(plan["entropy"], spawn_key=plan["spawn_key"]))


@dataclass(frozen=True, eq=False)
class Job:
    """One run without its data set; can be pickled.

    Threads share the layout. It is not pickled: another process builds its own.
    """

    layout: Layout | None
    settings: Settings
    inputs: Inputs
    options: Options
    seed: Any

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"layout": None}

    def run(self, dataset: Dataset, stop: Callable[[int], bool], interrupts: Interrupts) -> Result | None:
        """Take the steps, from the checkpoint if there is one; None if `stop` holds before the first."""
        if stop(0):
            return None
        path, options = self.options.checkpoint, replace(self.options, stop=stop)
        if path is not None and path.exists():
            return drive(checkpoint.load(path, dataset, self.settings), options, interrupts, new=False)
        layout = self.layout or Layout.of(dataset, self.settings, self.inputs)
        return drive(Run.of(layout, check.generator(self.seed)), options, interrupts, new=True)


class Jobs:
    """Runs on one log that differ only in settings and seeds; everything is checked before the first begins.

    `name` is what a run is called in the file names of checkpoints; the other arguments are those of `replicate`.
    """

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        executor: Any,
        resume: Any,
        settings: Settings | None,
        keywords: dict[str, Any],
    ) -> None:
        self.name, self.dataset, self.executor = name, dataset, executor
        self.settings, self.inputs, self.options = parse(dataset, settings, keywords)
        self.layouts: list[Layout] = []
        self.resumed: dict[int, int] = {}  # steps in the checkpoints to resume from, by number of the run
        self.threads = pool.is_threads(executor)
        self.resume = check.flag("resume", resume)
        if self.resume and self.options.checkpoint is None:
            raise TypeError("resume needs checkpoint, the folder to resume from")
        self._check_executor()

    def _check_executor(self) -> None:
        executor, kind = self.executor, type(self.executor).__name__
        if executor is not None and not isinstance(executor, cf.Executor):
            hint = "; for Dask that is client.get_executor()" if hasattr(executor, "get_executor") else ""
            raise TypeError(f"executor must be a concurrent.futures.Executor, got {kind}{hint}")
        if not self.threads and self.dataset.path is None:
            raise ValueError(
                f"dataset has no path, so the workers of a {kind} cannot open it: save it with Dataset.save and "
                "pass what Dataset.open returns, or use threads"
            )
        if not self.threads and self.options.callback is not None:
            raise ValueError(f"callback cannot be called from the workers of a {kind}, only from threads")

    def lay_out(self, settings: list[Settings]) -> None:
        """Build the layouts of runs with these settings, and compare them with checkpoints; nothing is written."""
        for k, one in enumerate(settings):
            same = settings.index(one)
            layout = self.layouts[same] if same < k else Layout.of(self.dataset, one, self.inputs, like=self.layouts)
            self.layouts.append(layout)
            path = self._path(k)
            if self.resume and path is not None and path.exists():
                run = checkpoint.load(path, self.dataset, one)
                checkpoint.refuse_other_run(path, run.layout, layout)
                self.resumed[k] = run.n_steps

    def run(self, settings: list[Settings], seeds: list[Any]) -> dict[int, Result]:
        """Run all; results by number, without runs that had not begun before Ctrl-C."""
        options = replace(self.options, progress=False)
        tasks = [
            Job(layout, one, self.inputs, replace(options, checkpoint=self._path(k)), seed).run
            for k, (layout, one, seed) in enumerate(zip(self.layouts, settings, seeds, strict=True))
        ]
        most = self.options.step_limit
        n_steps = [one.settings.T if most is None else min(one.settings.T, most) for one in self.layouts]
        bar = Progress(sum(n_steps), self.options.progress, sum(self.resumed.values()), f"{len(tasks)} {self.name}s")
        folder = self.options.checkpoint
        with FileLock() as lock:
            if folder is not None:
                lock.take(folder / plan.PLAN)
            try:
                results = pool.run(tasks, n_steps, self.resumed, self.dataset, self.executor, bar)
                posed = {k: pose(self.dataset, *result.settings.asked) for k, result in results.items()}
                return {k: replace(result, log=posed[k]) for k, result in results.items()}  # a worker sends no log
            except Exception as error:
                if folder is not None:
                    error.add_note(f"The runs can be resumed from {folder} with resume=True.")
                raise

    def seeds(self, rng: Any, **what: Any) -> Seeds:
        """Seeds of the runs; with checkpoints they are stored, and must be the same when the runs are resumed."""
        folder = self.options.checkpoint
        if folder is None:
            return Seeds(rng)
        plan.check_folder(folder, resume=self.resume)  # before the caller's generator spawns a child
        seeds = Seeds(rng)
        asked = what | {"start": _digest(self.inputs.start), "seeds": seeds.to_json()}
        ignore = {"seeds"} if rng is None else set()
        stored = plan.store(folder, self.name, self.dataset, asked, {}, resume=self.resume, ignore=ignore)
        return seeds if stored is None else Seeds.from_json(stored["seeds"])

    def _path(self, k: int) -> Path | None:
        return None if self.options.checkpoint is None else self.options.checkpoint / f"{self.name}-{k}"


def _digest(start: Point | None) -> str | None:
    """SHA-256 of a starting point."""
    if start is None:
        return None
    parts = [np.ascontiguousarray(part, dtype=np.float64).tobytes() for part in start]
    return hashlib.sha256(b"".join(parts)).hexdigest()
