"""Many runs of `learn` on one log: what they share, their seeds and their checkpoints."""

from __future__ import annotations

import concurrent.futures as cf
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import _checkpointing as checkpointing
from . import _core, _crew, learning
from . import _validation as check
from . import checkpoint as checkpoint_file
from ._setup import KNOWABLE, Setup, checked_point, prepare
from ._spare import sweep
from .dataset import Dataset
from .learning import CHECKPOINT_SECONDS, Options
from .result import Point, Result
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
#: Beside the checkpoints of runs, and in their format: where their seeds come from.
PLAN = "plan"


class Seeds:
    """Children of one seed sequence; child k depends on the root and on k alone."""

    def __init__(self, rng: Any) -> None:
        generator = check.generator(rng)  # refuses what is no seed
        if isinstance(rng, np.random.SeedSequence):
            self.root = rng
        elif isinstance(rng, np.random.Generator):
            sequence = getattr(generator.bit_generator, "seed_seq", None)  # older ones have none
            drawn = [int(word) for word in generator.integers(2**32, size=4)] if sequence is None else []
            self.root = np.random.SeedSequence(drawn) if sequence is None else sequence.spawn(1)[0]
        else:
            self.root = np.random.SeedSequence(None if rng is None else int(rng))

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
            return learning.drive(setup, dataset, options, interrupts, new=False)
        setup = prepare(dataset, self.settings, {}, rng=self.seed, **self.made_of)
        return learning.drive(setup, dataset, options, interrupts, new=True)


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
        self._copy_inputs()
        driven_by = {key: keywords.get(key, default) for key, default in _DRIVEN_BY.items()}
        self.options = Options.checked(**driven_by, progress=progress, checkpoint=checkpoint)
        self.threads = _crew.is_threads(executor)
        self.resume = check.flag("resume", resume)
        if self.resume and checkpoint is None:
            raise TypeError("resume needs checkpoint, the folder to go on from")
        self._check_executor()

    def _copy_inputs(self) -> None:
        """Let every run begin with the same, whatever a callback does to the caller's arrays."""
        log, given = self.dataset, self.made_of
        initial = check.initial_distribution(given["rho0"], given["initial_states"], log.n_states)
        given |= {"rho0": initial, "initial_states": None, "known": check.choices("known", given["known"], KNOWABLE)}
        if given["start"] is not None:
            given["start"] = checked_point(given["start"], log.n_states, log.n_actions, log.n_utilities)

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
        what |= {"runs": self.name, "start": _digest(self.made_of["start"])}
        if not folder.parent.is_dir():
            raise FileNotFoundError(f"checkpoint: there is no folder {folder.parent} to put {folder.name} into")
        sweep(folder / PLAN)
        if folder.exists() and any(folder.iterdir()):
            if self.resume:
                return self._stored_plan(folder, rng, what)
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
        try:
            return _crew.run(jobs, self.dataset, self.executor, f"{self.name}s", self.progress)
        except Exception as error:
            if self.options.checkpoint is not None:
                error.add_note(f"The runs can go on from {self.options.checkpoint} with resume=True.")
            raise

    def _path(self, k: int) -> Path | None:
        return None if self.options.checkpoint is None else self.options.checkpoint / f"{self.name}-{k}"


def _digest(start: Point | None) -> str | None:
    """What tells one start from another."""
    if start is None:
        return None
    parts = [np.ascontiguousarray(part, dtype=np.float64).tobytes() for part in start]
    return hashlib.sha256(b"".join(parts)).hexdigest()
