"""`replicate`: independent runs from spawned seeds, averaged; and `sweep`, runs over a grid of settings.

Both submit one task for each run to a `concurrent.futures.Executor`, and wait. By default the runs are threads of this
process, one per core: the compiled core releases the GIL. Other processes, or a Dask cluster, get the path of the log
and open it. The bits of a run do not depend on where or in which order the runs take place.

The gap of Theorem 4.4 is the largest of functions that are linear in x, hence convex: that of an average is at most the
average of the gaps. The sets that x, V and lam live in are convex too, so averages stay inside.
"""

from __future__ import annotations

import concurrent.futures as cf
import dataclasses
import itertools
import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

import numpy as np

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._text import aligned
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.files.atomic import FileLock
from dpdl.learner import checkpoint
from dpdl.learner.arguments import accepts, parse, refuse_unknown
from dpdl.learner.drive import Options, drive
from dpdl.learner.interrupts import Interrupts
from dpdl.learner.layout import Inputs, Layout
from dpdl.learner.run import Run
from dpdl.premises import combined
from dpdl.result import Result, SparseTable
from dpdl.settings import Settings
from dpdl.stopping import Status

#: The file in a folder of checkpoints that says what its runs follow from.
RUNS = "runs.json"
#: Seconds between two looks for Ctrl-C while runs take place elsewhere.
POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Outcome of `replicate`.

    Attributes
    ----------
    result : Result
        The average of the replicas, weighted by their steps: `x_mean`, `policy` and everything that follows from them.
        Its `last` is the average of the last iterates, its `diagnostics` are sums, and it has no guarantee: the
        theorem is about one run.
    results : tuple of Result
        The replicas, in order.
    numbers : tuple of int
        Their numbers: 0, 1, ..., without those that had not begun before Ctrl-C.
    distance : float
        Mean total-variation distance of a replica's policy from that of the average, weighted by the states that the
        average visits; NaN if there are fewer than two replicas.
    """

    result: Result
    results: tuple[Result, ...] = field(repr=False)
    numbers: tuple[int, ...] = field(repr=False)
    distance: float

    def __str__(self) -> str:
        result, n = self.result, len(self.results)
        lines = [f"{n} replica{'s' * (n > 1)}, {result.n_steps:,} steps in all, {result.status.name}"]
        if n > 1:
            lines.append(f"distance of a replica's policy from the average: {self.distance:.3g} (total variation)")
        return "\n".join(lines + ([] if result.evaluation is None else result.evaluation.lines()))


@accepts(Settings, Inputs.of, Options)
def replicate(
    log: Dataset,
    settings: Settings | None = None,
    *,
    n: int,
    rng: np.random.Generator | int | None = None,
    executor: cf.Executor | None = None,
    resume: bool = False,
    **keywords: Any,
) -> Replicas:
    """Run `learn` n times with independent randomness, and average.

    The gap that the method minimises is convex in x, so the gap of the average is at most the average of the gaps. The
    distance between replicas shows how much of a result is due to random draws.

    Parameters
    ----------
    log : Dataset
        The log. An executor other than a thread pool needs one with a path (`Dataset.save`, `Dataset.open`) that its
        workers can open.
    settings : Settings, optional
        As for `learn`.
    n : int
        Number of replicas.
    rng : numpy.random.Generator, int or None
        Root of all randomness; replica k uses the k-th child spawned from it, for any n, with NumPy's default bit
        generator. If a Generator is given, the root is a child spawned from it.
    executor : concurrent.futures.Executor, optional
        Where the replicas run: a pool of threads or processes, or ``client.get_executor()`` of a Dask client. Default:
        as many threads as there are cores. The executor is not shut down. Ctrl-C at a terminal kills idle workers of a
        process pool, and breaks the pool, unless it was made with
        ``initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)``.
    checkpoint : path, optional
        A folder with one checkpoint for each replica. It must be empty or absent, unless `resume` is set.
    resume : bool, optional
        Resume every replica that has a checkpoint, and start the others. The outcome is bit for bit that of runs which
        were never interrupted. `rng` may be left out; n may differ.
    **keywords
        Settings, and all other keywords of `learn`. Limits apply to each replica, `time_limit` from its beginning. A
        `callback` is called from several threads at once; StopIteration ends only the replica that called it.

    Returns
    -------
    Replicas
        Also after Ctrl-C: then for the steps taken. Replicas in other processes of this machine get Ctrl-C from the
        terminal themselves; replicas elsewhere run to their end, unless a second Ctrl-C gives them up.

    Examples
    --------
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> replicas = replicate(log, n=4, gamma=0.5, psi=2, slater=1, T=50_000, rho0=[1.0], rng=0)
    >>> replicas.result.success, replicas.result.n_steps, replicas.result.policy.round(1).tolist()
    (True, 200000, [[0.5, 0.5]])
    >>> replicas.distance < 0.05
    True
    """
    refuse_unknown(replicate, keywords)
    n = check.whole("n", n, at_least=1)
    runs = _Runs("replica", log, [parse(log, settings, keywords)] * n, executor, resume)
    by_number = runs.take_place(
        rng, lambda root: np.random.SeedSequence(root.entropy, spawn_key=root.spawn_key).spawn(n)
    )
    results = tuple(by_number.values())
    mean, distance = average(results, n)
    return Replicas(result=mean, results=results, numbers=tuple(by_number), distance=distance)


@dataclass(frozen=True, kw_only=True)
class Sweep(Sequence[tuple[dict[str, Any], Result]]):
    """Outcome of `sweep`: a sequence of (point, result); printed, it is a table.

    Attributes
    ----------
    points : tuple of dict
        The settings of each point.
    results : tuple of Result
        The result of `learn` at each point.
    success : bool
        Whether every point of the grid took all its steps, and no policy is estimated to break a constraint. Points
        that were interrupted before they began are absent.
    """

    points: tuple[dict[str, Any], ...]
    results: tuple[Result, ...] = field(repr=False)
    success: bool

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, k: Any) -> Any:
        return list(zip(self.points, self.results, strict=True))[k]

    def __str__(self) -> str:
        names = list(self.points[0])
        judged = next((result.evaluation for result in self.results if result.evaluation is not None), None)
        figures = [] if judged is None else ["reward", *(figure.name for figure in judged.constraints), "kept"]
        rows = []
        for point, result in self:
            values = [f"{value:g}" if isinstance(value, float) else str(value) for value in point.values()]
            cells, evaluation = [""] * len(figures), result.evaluation
            if evaluation is not None:
                shown = (evaluation.reward, *evaluation.constraints)
                cells = [*(f"{figure.value:.4g} +- {figure.error:.1g}" for figure in shown), _yes(evaluation.kept)]
            rows.append([*values, result.status.name, f"{result.n_steps:,}", *cells])
        return "\n".join(aligned([*names, "status", "steps", *figures], rows))


def _yes(kept: bool) -> str:
    return "yes" if kept else "NO"


@accepts(Settings, Inputs.of, Options)
def sweep(
    log: Dataset,
    settings: Settings | None = None,
    *,
    over: Mapping[str, Sequence[Any]],
    rng: np.random.Generator | int | None = None,
    executor: cf.Executor | None = None,
    resume: bool = False,
    **keywords: Any,
) -> Sweep:
    """Run `learn` at every point of a grid; what is derived from a setting is derived again at every point.

    Parameters
    ----------
    over : mapping of names to sequences
        Settings, "psi" or "kappa" for instance, and the values to give them; "rng" for seeds. All combinations are
        run, the last name varying fastest.
    rng : numpy.random.Generator, int or None
        Every point uses the same random numbers, so that differences between points are due to the settings: an int is
        the seed of each run; of a Generator, all runs use the same child.
    log, settings, executor, checkpoint, resume, **keywords
        As for `replicate`.

    Returns
    -------
    Sweep
        Also after Ctrl-C: then for the steps taken.

    Examples
    --------
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> options = {"gamma": 0.5, "psi": 2, "slater": 1, "T": 50_000, "rho0": [1.0]}
    >>> for point, result in sweep(log, over={"kappa": [0.0, 1.0]}, rng=0, **options):
    ...     print(point, result.policy.round(1).tolist())
    {'kappa': 0.0} [[0.5, 0.5]]
    {'kappa': 1.0} [[0.2, 0.8]]
    """
    refuse_unknown(sweep, keywords)
    points = _grid(over, keywords, rng)
    named = [{name: value for name, value in point.items() if name != "rng"} for point in points]
    asked = [parse(log, settings, keywords | values) for values in named]
    runs = _Runs("point", log, asked, executor, resume, points)
    results = runs.take_place(rng, lambda root: [point.get("rng", root) for point in points])
    return Sweep(
        points=tuple(points[k] for k in results),
        results=tuple(results.values()),
        success=len(results) == len(points) and all(result.success for result in results.values()),
    )


def _grid(over: Mapping[str, Sequence[Any]], keywords: dict[str, Any], rng: Any) -> list[dict[str, Any]]:
    """All combinations, checked."""
    if not isinstance(over, Mapping):
        raise TypeError(f"over must be a mapping of names to values, got {type(over).__name__}")
    known = [*(field.name for field in dataclasses.fields(Settings)), "rng"]
    for name, values in over.items():
        if name not in known:
            raise ValueError(f"over[{name!r}] is no setting; {check.suggestion(str(name), known, 'settings')}")
        if name in keywords or (name == "rng" and rng is not None):
            raise TypeError(f"{name} is given both as a keyword and in over")
        if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)) or np.ndim(values) == 0:
            raise TypeError(f"over[{name!r}] must be a sequence of values, got {type(values).__name__}")
        if len(values) == 0:
            raise ValueError(f"over[{name!r}] is empty")
    if not over:
        raise ValueError("over is empty")
    seeds = {"rng": [check.whole("over['rng']", seed) for seed in over["rng"]]} if "rng" in over else {}
    return [dict(zip(over, values, strict=True)) for values in itertools.product(*(dict(over) | seeds).values())]


# ---- Runs on an executor ----


class _Runs:
    """Runs on one log that differ in settings and seeds; everything is checked before the first begins."""

    def __init__(
        self,
        name: str,
        log: Dataset,
        asked: list[tuple[Settings, Inputs, Options]],
        executor: Any,
        resume: Any,
        points: list[dict[str, Any]] | None = None,
    ) -> None:
        self.name, self.log, self.executor, self.points = name, log, executor, points
        self.options, self.resume = asked[0][2], check.flag("resume", resume)
        self.threads = executor is None or isinstance(executor, cf.ThreadPoolExecutor)
        if self.resume and self.options.checkpoint is None:
            raise TypeError("resume needs checkpoint, the folder to resume from")
        self._check_executor()
        layouts: dict[Settings, Layout] = {}
        for settings, inputs, _ in asked:
            if settings not in layouts:
                layouts[settings] = Layout.of(log, settings, inputs, like=layouts.values())
        self.layouts = [layouts[settings] for settings, _, _ in asked]

    def _check_executor(self) -> None:
        executor, kind = self.executor, type(self.executor).__name__
        if executor is not None and not isinstance(executor, cf.Executor):
            hint = "; for Dask that is client.get_executor()" if hasattr(executor, "get_executor") else ""
            raise TypeError(f"executor must be a concurrent.futures.Executor, got {kind}{hint}")
        if not self.threads and self.log.path is None:
            raise ValueError(
                f"log has no path, so the workers of a {kind} cannot open it: save it with Dataset.save and "
                "pass what Dataset.open returns, or use threads"
            )
        if not self.threads and self.options.callback is not None:
            raise ValueError(f"callback cannot be called from the workers of a {kind}, only from threads")

    def _root(self, folder: Path, rng: Any) -> np.random.SeedSequence:
        """The root of all seeds, stored in the folder of the checkpoints: it is the same when the runs are resumed."""
        path, what = folder / RUNS, f"checkpoint: {folder} belongs to another call:"
        call = json.loads(json.dumps({"runs": self.name, "points": self.points}, default=float))
        if not path.exists():
            if {entry.name for entry in folder.iterdir()} - {checkpoint.LOCK}:
                raise FileNotFoundError(f"checkpoint: {folder} has no file {RUNS!r}: nothing to resume")
            root = _root(rng)
            entropy = np.asarray(root.entropy, dtype=object).tolist()
            path.write_text(json.dumps(call | {"entropy": entropy, "spawn_key": root.spawn_key}, indent=1))
            return root
        stored = json.loads(path.read_text())
        for name, value in call.items():
            if stored[name] != value:
                raise ValueError(f"{what} {name} = {stored[name]!r}, not {value!r}")
        root = np.random.SeedSequence(stored["entropy"], spawn_key=stored["spawn_key"])
        if rng is not None and not isinstance(rng, np.random.Generator) and _root(rng).state != root.state:
            raise ValueError(f"{what} it has another seed than rng = {rng!r}")
        return root

    def take_place(self, rng: Any, seeds: Callable[[np.random.SeedSequence], list[Any]]) -> dict[int, Result]:
        """Run all, with seeds from the root of all; results by number, without runs that Ctrl-C kept from beginning."""
        folder, stop = self.options.checkpoint, threading.Event()
        options = replace(self.options, progress=False, stop=stop.is_set if self.threads else bool)
        paths = [None if folder is None else folder / f"{self.name}-{k}" for k in range(len(self.layouts))]
        with FileLock() as lock:
            if folder is None:
                root = _root(rng)
            else:
                checkpoint.take_folder(folder, lock, resume=self.resume)
                root = self._root(folder, rng)
            for path, layout in zip(paths, self.layouts, strict=True):
                if path is not None and path.exists():
                    checkpoint.load(path, self.log, like=layout)  # raises if it is another run
            tasks = [
                (layout, replace(options, checkpoint=path), seed)
                for layout, path, seed in zip(self.layouts, paths, seeds(root), strict=True)
            ]
            results = self._submit_all(tasks, stop)
        if not results:
            raise KeyboardInterrupt
        # A worker elsewhere sends no log.
        return {k: replace(results[k], log=self.layouts[k].log) for k in sorted(results)}

    def _submit_all(self, tasks: list[tuple[Layout, Options, Any]], stop: threading.Event) -> dict[int, Result]:
        """Submit all runs and wait for them; after Ctrl-C or an error those that have not begun are cancelled."""
        executor = self.executor or cf.ThreadPoolExecutor(_cores(), thread_name_prefix="dpdl")
        where = (str(self.log.path), self.log.fingerprint)
        futures, results = dict[cf.Future[Result], int](), dict[int, Result]()
        with Interrupts() as interrupts:
            try:
                for k, (layout, options, seed) in enumerate(tasks):
                    if self.threads:
                        future = executor.submit(_run, self.log, layout, options, seed)
                    else:
                        asked = layout.settings.stated, layout.inputs
                        future = executor.submit(_run_elsewhere, *where, asked, options, seed)
                    futures[future] = k
                _collect(futures, results, interrupts)
            except KeyboardInterrupt:
                stop.set()
                _collect({future: k for future, k in futures.items() if not future.cancel()}, results, None)
            except Exception as error:
                stop.set()
                for future in futures:
                    future.cancel()
                if self.threads:  # each lets go of its checkpoint, so that the caller can resume at once
                    cf.wait(futures)
                if self.options.checkpoint is not None:
                    error.add_note(f"The runs can be resumed from {self.options.checkpoint} with resume=True.")
                raise
            finally:
                if self.executor is None:
                    executor.shutdown(wait=False, cancel_futures=True)
        return results


def _collect(futures: dict[cf.Future[Result], int], results: dict[int, Result], interrupts: Interrupts | None) -> None:
    """Wait for all; KeyboardInterrupt if one was interrupted, unless that is known already."""
    while waiting := [future for future, k in futures.items() if k not in results]:
        for future in cf.wait(waiting, POLL_SECONDS, cf.FIRST_COMPLETED).done:
            results[futures[future]] = result = future.result()
            if interrupts is not None and result.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
        if interrupts is not None and interrupts.came():
            raise KeyboardInterrupt


def _run(log: Dataset, layout: Layout, options: Options, seed: Any, guarded: bool = False) -> Result:
    """One run, in any thread; from its checkpoint, if there is one."""
    with Interrupts(guarded) as interrupts:
        if options.checkpoint is not None and options.checkpoint.exists():
            return drive(checkpoint.load(options.checkpoint, log, like=layout), options, interrupts, new=False)
        return drive(Run.new(layout, check.generator(seed)), options, interrupts, new=True)


def _run_elsewhere(path: str, fingerprint: str, asked: tuple[Settings, Inputs], options: Options, seed: Any) -> Result:
    """One run in another process. Ctrl-C at a terminal reaches it as well, and it must survive to send its result."""
    log = _opened(path, fingerprint)
    return replace(_run(log, Layout.of(log, *asked), options, seed, guarded=True), log=None)  # the caller has the log


@lru_cache(maxsize=1)
def _opened(path: str, fingerprint: str) -> Dataset:
    log = Dataset.open(path)
    if log.fingerprint != fingerprint:
        raise ValueError(f"the log at {path} is another one for the worker: the fingerprints differ")
    return log


def _root(rng: Any) -> np.random.SeedSequence:
    generator = check.generator(rng)  # raises if rng is not a seed
    if isinstance(rng, np.random.SeedSequence):
        return rng
    if isinstance(rng, np.random.Generator):
        sequence = getattr(generator.bit_generator, "seed_seq", None)  # None for a legacy bit generator
        if sequence is None:
            return np.random.SeedSequence([int(word) for word in generator.integers(2**32, size=4)])
        return sequence.spawn(1)[0]
    return np.random.SeedSequence(None if rng is None else int(rng))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- The average ----


def average(results: Sequence[Result], n_wanted: int) -> tuple[Result, float]:
    """The average of results, weighted by their steps, and the mean distance of their policies from its policy.

    `n_wanted` is how many results there would be without Ctrl-C.
    """
    first, total = results[0], sum(result.n_steps for result in results)
    shares = [result.n_steps / total if total else 1 / len(results) for result in results]
    statuses = [result.status for result in results]
    missing = n_wanted - len(results)
    mean = replace(
        first,
        status=Status.worst(statuses + [Status.INTERRUPTED] * missing),
        ending=_ending(statuses, missing) if n_wanted > 1 else first.ending,
        n_steps=total,
        x_table=_table(_mean, [result.x_table for result in results], shares),
        last_log_x_table=_table(_log_mean, [result.last_log_x_table for result in results], shares),
        V_mean=_mean([result.V_mean for result in results], shares),
        lam_mean=_mean([result.lam_mean for result in results], shares),
        V=_mean([result.V for result in results], shares),
        log_lam=_log_mean([result.log_lam for result in results], shares),
        premises=tuple(combined(result.premises for result in results).values()),
        guarantee=None,
        diagnostics={name: sum(result.diagnostics[name] for result in results) for name in first.diagnostics},
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
    )
    visits, policy = mean.x_mean.sum(axis=1) / mean.x_mean.sum(), policies.from_occupancy(mean.x_mean)
    apart = [abs(policies.from_occupancy(result.x_mean) - policy).sum(axis=1) @ visits / 2 for result in results]
    return mean, float(np.dot(apart, shares)) if len(results) > 1 else math.nan


def _ending(statuses: list[Status], n_missing: int) -> str:
    n = len(statuses) + n_missing
    if statuses == [Status.COMPLETED] * n:
        return f"all steps of {n} replicas were taken"
    counts = [f"{statuses.count(status)} {status.name}" for status in Status if status in statuses]
    counts += [f"{n_missing} not begun"] if n_missing else []
    return f"of {n} replicas: {', '.join(counts)}; the result covers the steps taken"


def _mean(arrays: Sequence[Array], shares: Sequence[float]) -> Array:
    return np.asarray(sum(share * array for array, share in zip(arrays, shares, strict=True)))


def _log_mean(logs: Sequence[Array], shares: Sequence[float]) -> Array:
    """Logarithm of the mean of exp(logs), which may be far below the smallest double."""
    parts = (array + (math.log(share) if share else -math.inf) for array, share in zip(logs, shares, strict=True))
    return reduce(np.logaddexp, parts)


def _table(combine: Callable[..., Array], tables: Sequence[SparseTable], shares: Sequence[float]) -> SparseTable:
    """Combine tables over the same pairs."""
    values = combine([np.append(table.values, table.elsewhere) for table in tables], shares)
    return SparseTable(tables[0].pairs, values[:-1], float(values[-1]))
