"""`replicate`: independent runs from spawned seeds, averaged; and `sweep`, runs over a grid of settings.

Both accept any `concurrent.futures.Executor`. By default the runs are threads of this process, one per core: the
compiled core releases the GIL. Other processes, or a Dask cluster, get the path of the log and map it. The bits of a
run do not depend on where it takes place or on how many others there are.
"""

from __future__ import annotations

import concurrent.futures as cf
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.learner import averages
from dpdl.learner.arguments import RunKeywords, accepts, parse, refuse_unknown
from dpdl.learner.averages import Spread
from dpdl.learner.jobs import Jobs
from dpdl.result import Result
from dpdl.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Outcome of `replicate`.

    Attributes
    ----------
    result : Result
        The average of the replicas, each weighted by the steps that it took; its policy is that of the averaged x, its
        `n_steps` the total, its `last` the average of the last iterates. A premise holds if it held in every replica.
        No guarantee is claimed: Theorem 4.1 is about one run; for n runs a union bound gives its conclusion with
        failure probability n delta.
    results : tuple of Result
        The replicas, each as `learn` returns it.
    numbers : tuple of int
        The number of each replica: 0, 1, ..., n - 1 unless some were interrupted before they began.
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
    dataset: Dataset,
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
    dataset : Dataset
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
    progress : bool, optional
        As for `learn`; one bar for all.
    **keywords
        Settings, and all other keywords of `learn`. Limits apply to each replica, `time_limit` from its beginning. A
        `callback` is called from several threads at once; StopIteration ends only the replica that called it.

    Returns
    -------
    Replicas
        Also after Ctrl-C: then for the steps taken. A second Ctrl-C, at least a second later, returns without waiting
        for replicas that are still running.

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
    jobs = Jobs("replica", dataset, executor, resume, settings, dict(keywords))
    chosen = [jobs.settings] * n
    jobs.lay_out(chosen)
    seeds = jobs.seeds(rng)
    results = jobs.run(chosen, [seeds.child(k) for k in range(n)])
    try:
        return _replicas(results, n)
    except KeyboardInterrupt:  # pressed after the runs: return the result all the same
        return _replicas(results, n)


def _replicas(results: dict[int, Result], n: int) -> Replicas:
    numbers = tuple(sorted(results))
    found = tuple(results[k] for k in numbers)
    mean = averages.average(found, n)
    return Replicas(result=mean, results=found, numbers=numbers, spread=averages.spread(found, mean))


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
            cells, found = [result.status.name, f"{result.n_steps:,}"], result.evaluation
            if found is not None:
                cells += [f"{one.value:.4g} +- {one.error:.1g}" for one in (found.reward, *found.constraints)]
                cells.append("yes" if found.kept else "NO")
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
    dataset: Dataset,
    settings: Settings | None = None,
    *,
    over: Mapping[str, Sequence[Any]],
    rng: np.random.Generator | int | None = None,
    executor: cf.Executor | None = None,
    resume: bool = False,
    **keywords: Unpack[RunKeywords],
) -> Sweep:
    """Run `learn` at every point of a grid.

    Parameters
    ----------
    over : mapping of names to sequences
        Settings, "psi" or "kappa" for instance, and the values to give them; "rng" for seeds. All combinations are
        run, the last name varying fastest.
    rng : numpy.random.Generator, int or None
        Every point uses the same random numbers, so that differences between points are due to the settings: an int is
        the seed of each run; of a Generator, all runs use the same child.
    dataset, settings, executor, checkpoint, resume, progress, **keywords
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
    jobs = Jobs("point", dataset, executor, resume, settings, dict(keywords) | named[0])
    # What `learn` finds from the data may depend on the point.
    chosen = [jobs.settings, *(parse(dataset, settings, dict(keywords) | values)[0] for values in named[1:])]
    jobs.lay_out(chosen)
    written = [{name: _plain(value) for name, value in point.items()} for point in points]
    seed = jobs.seeds(rng, points=written).root  # for an int, the seed that `learn` would use
    results = jobs.run(chosen, [point.get("rng", seed) for point in points])
    numbers = sorted(results)
    return Sweep(
        points=tuple(points[k] for k in numbers),
        results=tuple(results[k] for k in numbers),
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
