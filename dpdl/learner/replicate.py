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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.files.atomic import FileLock
from dpdl.learner import checkpoint
from dpdl.learner.arguments import RunKeywords, accepts, parse, refuse_unknown
from dpdl.learner.drive import Options, drive
from dpdl.learner.interrupts import Interrupts
from dpdl.learner.layout import Inputs, Layout
from dpdl.learner.run import Run
from dpdl.premises import combined
from dpdl.result import Result, SparseTable
from dpdl.settings import Settings
from dpdl.stopping import Status

#: The file in a folder of checkpoints that says what its runs follow from.
PLAN = "runs.json"
#: Seconds between two looks for Ctrl-C while runs take place elsewhere.
POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far replicas are apart: standard deviations between single replicas, weighted as the average is.

    That of the average itself is smaller by the root of their number. With fewer than two replicas all are NaN.

    Attributes
    ----------
    x, V, lam : arrays, shapes (S, A), (S,), (I,)
        Standard deviations of x_mean, V_mean and lam_mean.
    occupancy_distance : float
        Mean total-variation distance of a replica's occupancy (x_mean scaled to sum one) from that of the average.
    policy_distance : float
        Mean total-variation distance of a replica's policy from that of the average, weighted by the states that the
        average visits.
    """

    x: Array = field(repr=False)
    V: Array = field(repr=False)
    lam: Array = field(repr=False)
    occupancy_distance: float
    policy_distance: float


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
    spread : Spread
        Differences between the replicas.
    """

    result: Result
    results: tuple[Result, ...] = field(repr=False)
    numbers: tuple[int, ...] = field(repr=False)
    spread: Spread

    def __str__(self) -> str:
        result, spread = self.result, self.spread
        judged = "" if result.evaluation is None else "\n" + "\n".join(result.evaluation.lines())
        some = "1 replica" if len(self.results) == 1 else f"{len(self.results)} replicas"
        apart = (
            f"\ndistance of a replica from the average: occupancy {spread.occupancy_distance:.3g}, "
            f"policy {spread.policy_distance:.3g} (total variation)"
        )
        known = "" if np.isnan(spread.policy_distance) else apart  # of one replica it is not
        return f"{some}, {result.n_steps:,} steps in all, {result.status.name}{known}{judged}"


@accepts(RunKeywords)
def replicate(
    log: Dataset,
    settings: Settings | None = None,
    *,
    n: int,
    rng: np.random.Generator | int | None = None,
    executor: cf.Executor | None = None,
    resume: bool = False,
    **keywords: Unpack[RunKeywords],
) -> Replicas:
    """Run `learn` n times with independent randomness, and average.

    The gap that the method minimises is convex in x, so the gap of the average is at most the average of the gaps. The
    spread of the replicas shows how much of a result is due to random draws.

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
    >>> bool(replicas.spread.policy_distance < 0.05)
    True
    """
    refuse_unknown(replicate, keywords)
    n = check.whole("n", n, at_least=1)
    runs = _Runs("replica", log, [parse(log, settings, dict(keywords))] * n, executor, resume)
    root = runs.seeds(rng)
    found = runs.take_place([_child(root, k) for k in range(n)])
    results = tuple(found.values())
    mean = average(results, n)
    return Replicas(result=mean, results=results, numbers=tuple(found), spread=spread(results, mean))


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
        figures = [] if judged is None else ["reward", *(one.name for one in judged.constraints), "kept"]
        rows = [[*names, "status", "steps", *figures]]
        for point, result in self:
            cells, evaluation = [result.status.name, f"{result.n_steps:,}"], result.evaluation
            if evaluation is not None:
                cells += [f"{one.value:.4g} +- {one.error:.1g}" for one in (evaluation.reward, *evaluation.constraints)]
                cells.append("yes" if evaluation.kept else "NO")
            rows.append([*(_cell(point[name]) for name in names), *cells])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def _plain(value: Any) -> Any:
    """A setting as a JSON value."""
    value = np.asarray(value).item()
    return value if value is None or isinstance(value, (bool, int, float, str)) else float(value)


def _cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float, np.number)) else str(value)


@accepts(RunKeywords)
def sweep(
    log: Dataset,
    settings: Settings | None = None,
    *,
    over: Mapping[str, Sequence[Any]],
    rng: np.random.Generator | int | None = None,
    executor: cf.Executor | None = None,
    resume: bool = False,
    **keywords: Unpack[RunKeywords],
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
    points = _grid(over, dict(keywords), rng)
    named = [{name: value for name, value in point.items() if name != "rng"} for point in points]
    asked = [parse(log, settings, dict(keywords) | values) for values in named]
    runs = _Runs("point", log, asked, executor, resume)
    written = [{name: _plain(value) for name, value in point.items()} for point in points]
    seed = runs.seeds(rng, points=written)  # for an int, the seed that `learn` would use
    results = runs.take_place([point.get("rng", seed) for point in points])
    return Sweep(
        points=tuple(points[k] for k in results),
        results=tuple(results.values()),
        success=len(results) == len(points) and all(result.success for result in results.values()),
    )


def _grid(over: Mapping[str, Sequence[Any]], keywords: dict[str, Any], rng: Any) -> list[dict[str, Any]]:
    """All combinations, checked."""
    if not isinstance(over, Mapping):
        raise TypeError(f"over must be a mapping of names to values, got {type(over).__name__}")
    known = [*(one.name for one in dataclasses.fields(Settings)), "rng"]
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
        self, name: str, log: Dataset, asked: list[tuple[Settings, Inputs, Options]], executor: Any, resume: Any
    ) -> None:
        self.name, self.log, self.executor = name, log, executor
        self.options, self.resume = asked[0][2], check.flag("resume", resume)
        self.folder, self.threads = (
            self.options.checkpoint,
            executor is None or isinstance(executor, cf.ThreadPoolExecutor),
        )
        if self.resume and self.folder is None:
            raise TypeError("resume needs checkpoint, the folder to resume from")
        self._check_executor()
        self.layouts: list[Layout] = []
        for k, (settings, inputs, _) in enumerate(asked):
            same = next((j for j in range(k) if asked[j][0] == settings), None)
            layout = Layout.of(log, settings, inputs, like=self.layouts) if same is None else self.layouts[same]
            self.layouts.append(layout)
            path = self._path(k)
            if self.resume and path is not None and path.exists():
                checkpoint.load(path, log, like=layout)  # raises if it is another run

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

    def _path(self, k: int) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.name}-{k}"

    def seeds(self, rng: Any, **points: Any) -> np.random.SeedSequence:
        """The root of all seeds; with checkpoints it is stored, and is the same when the runs are resumed."""
        folder = self.folder
        if folder is None:
            return _root(rng)
        if not folder.parent.is_dir():
            raise FileNotFoundError(f"checkpoint: there is no folder {folder.parent} to put {folder.name} into")
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"checkpoint: {folder} is not a folder, which several checkpoints need")
        if folder.exists() and any(folder.iterdir()):
            if not self.resume:
                raise FileExistsError(f"checkpoint: {folder} is not empty; resume=True resumes what is there")
            return self._stored_root(folder / PLAN, rng, points)
        root = _root(rng)
        folder.mkdir(exist_ok=True)
        entropy = np.asarray(root.entropy, dtype=object).tolist()
        stored = {"runs": self.name, "entropy": entropy, "spawn_key": list(root.spawn_key), **points}
        (folder / PLAN).write_text(json.dumps(stored, indent=1))
        return root

    def _stored_root(self, path: Path, rng: Any, points: dict[str, Any]) -> np.random.SeedSequence:
        if not path.exists():
            raise FileNotFoundError(f"checkpoint: {path.parent} has no file {PLAN!r}: nothing to resume")
        stored = json.loads(path.read_text())
        root = np.random.SeedSequence(stored["entropy"], spawn_key=stored["spawn_key"])
        for name, value in {"runs": self.name, **points}.items():
            if stored[name] != value:
                raise ValueError(
                    f"checkpoint: {path.parent} belongs to another call: {name} = {stored[name]!r}, not {value!r}"
                )
        if rng is not None and not isinstance(rng, np.random.Generator) and _root(rng).state != root.state:
            raise ValueError(
                f"checkpoint: {path.parent} belongs to another call: it has another seed than rng = {rng!r}"
            )
        return root

    def take_place(self, seeds: list[Any]) -> dict[int, Result]:
        """Run all; results by number, without runs that had not begun before Ctrl-C."""
        stop, results = threading.Event(), dict[int, Result]()
        options = replace(self.options, progress=False, stop=stop.is_set if self.threads else bool)
        executor = self.executor or cf.ThreadPoolExecutor(_cores(), thread_name_prefix="dpdl")
        where = (str(self.log.path), self.log.fingerprint)
        with FileLock() as lock, Interrupts() as interrupts:
            if self.folder is not None:
                lock.take(self.folder / PLAN)
            futures: dict[cf.Future[Result], int] = {}
            try:
                for k, (layout, seed) in enumerate(zip(self.layouts, seeds, strict=True)):
                    here = replace(options, checkpoint=self._path(k))
                    if self.threads:
                        future = executor.submit(_run, self.log, layout, here, seed)
                    else:
                        asked = layout.settings.stated, layout.inputs
                        future = executor.submit(_run_elsewhere, *where, asked, here, seed)
                    futures[future] = k
                self._collect(futures, results, interrupts)
            except KeyboardInterrupt:
                stop.set()
                for future in [one for one in futures if one.cancel()]:
                    del futures[future]
                self._collect(futures, results, None)
            except Exception as error:
                stop.set()
                for future in futures:
                    future.cancel()
                if self.threads:  # each lets go of its checkpoint, so that the caller can resume at once
                    cf.wait(futures)
                if self.folder is not None:
                    error.add_note(f"The runs can be resumed from {self.folder} with resume=True.")
                raise
            finally:
                if self.executor is None:
                    executor.shutdown(wait=False, cancel_futures=True)
        if not results:
            raise KeyboardInterrupt
        # A worker elsewhere sends no log.
        return {k: replace(results[k], log=self.layouts[k].log) for k in sorted(results)}

    def _collect(
        self, futures: dict[cf.Future[Result], int], results: dict[int, Result], interrupts: Interrupts | None
    ) -> None:
        """Wait for all; KeyboardInterrupt if one was interrupted, unless that is known already."""
        while len(results) < len(futures):
            waiting = [future for future, k in futures.items() if k not in results]
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
    log = Dataset.open(path, verify=False)  # the caller has verified it
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


def _child(root: np.random.SeedSequence, k: int) -> np.random.SeedSequence:
    """Seed of run k; it depends on the root and on k alone."""
    return np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, k))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- The average, and how far the replicas are apart ----


def weights(results: Sequence[Result]) -> list[float]:
    """Weights of the results in the average: proportional to the steps taken, or equal if no steps were taken."""
    total = sum(result.n_steps for result in results)
    return [result.n_steps / total if total else 1 / len(results) for result in results]


def average(results: Sequence[Result], n_wanted: int) -> Result:
    """The average of results; `n_wanted` is how many there would be without Ctrl-C."""
    first, shares = results[0], weights(results)
    statuses = [result.status for result in results] + [Status.INTERRUPTED] * (n_wanted - len(results))
    return replace(
        first,
        status=Status.worst(statuses),
        ending=_message(statuses, n_wanted - len(results)) if n_wanted > 1 else first.ending,
        n_steps=sum(result.n_steps for result in results),
        x_table=_unflat(first.x_table, _mean((_flat(result.x_table) for result in results), shares)),
        last_log_x_table=_unflat(
            first.last_log_x_table, _log_mean((_flat(result.last_log_x_table) for result in results), shares)
        ),
        V_mean=_mean((result.V_mean for result in results), shares),
        lam_mean=_mean((result.lam_mean for result in results), shares),
        V=_mean((result.V for result in results), shares),
        log_lam=_log_mean((result.log_lam for result in results), shares),
        premises=tuple(combined(result.premises for result in results).values()),
        guarantee=None,
        diagnostics={name: sum(result.diagnostics[name] for result in results) for name in first.diagnostics},
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
    )


def spread(results: Sequence[Result], mean: Result) -> Spread:
    """Spread of results around their average."""
    shares = weights(results)
    occupancy = policy = math.nan
    if _several(shares):
        distances = [_distances(result.x_mean, mean.x_mean) for result in results]
        occupancy, policy = (
            sum(share * one for share, one in zip(shares, ones, strict=True)) for ones in zip(*distances, strict=True)
        )
    x = _deviation((_flat(result.x_table) for result in results), _flat(mean.x_table), shares)
    return Spread(
        x=_unflat(mean.x_table, x).dense(mean.reference.n_states, mean.reference.n_actions),
        V=_deviation((result.V_mean for result in results), mean.V_mean, shares),
        lam=_deviation((result.lam_mean for result in results), mean.lam_mean, shares),
        occupancy_distance=occupancy,
        policy_distance=policy,
    )


def _message(statuses: list[Status], n_missing: int) -> str:
    n = len(statuses)
    if all(status is Status.COMPLETED for status in statuses):
        return f"all steps of {n} replicas were taken"
    ended = statuses[: n - n_missing]
    counts = [f"{ended.count(status)} {status.name}" for status in Status if status in ended]
    missing = [f"{n_missing} not begun"] if n_missing else []
    return f"of {n} replicas: {', '.join(counts + missing)}; the result covers the steps taken"


def _flat(table: SparseTable) -> Array:
    """The values of a table, followed by that of all other pairs."""
    return np.append(table.values, table.elsewhere)


def _unflat(like: SparseTable, values: Array) -> SparseTable:
    return SparseTable(like.pairs, values[:-1], float(values[-1]))


def _several(shares: Sequence[float]) -> bool:
    """Whether at least two results have positive weight."""
    return sum(share > 0 for share in shares) > 1


# The arrays are iterated over, so that at most one copy exists at a time.


def _mean(arrays: Iterable[Array], shares: Sequence[float]) -> Array:
    total: Array | None = None
    for array, share in zip(arrays, shares, strict=True):
        total = share * array if total is None else total + share * array
    assert total is not None
    return total


def _log_mean(logs: Iterable[Array], shares: Sequence[float]) -> Array:
    """Logarithm of the mean of exp(logs), which may be far below the smallest double."""
    total: Array | None = None
    for array, share in zip(logs, shares, strict=True):
        part = array + (math.log(share) if share > 0 else -math.inf)
        total = part if total is None else np.logaddexp(total, part)
    assert total is not None
    return total


def _deviation(arrays: Iterable[Array], mean: Array, shares: Sequence[float]) -> Array:
    """Root of the unbiased variance; with equal shares, the divisor is n - 1."""
    if not _several(shares):
        return np.full_like(mean, np.nan)
    freedom = 1 - sum(share**2 for share in shares)
    return np.sqrt(_mean(((array - mean) ** 2 for array in arrays), shares) / freedom)


def _distances(x: Array, mean: Array) -> tuple[float, float]:
    """Total variation between occupancies, and between policies in the states that `mean` visits."""
    occupancy = abs(x / x.sum() - mean / mean.sum()).sum() / 2
    apart = abs(policies.from_occupancy(x) - policies.from_occupancy(mean)).sum(axis=1) / 2
    return float(occupancy), float(apart @ mean.sum(axis=1) / mean.sum())
