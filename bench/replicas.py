"""Throughput of two replicas at once against one run: ``python bench/replicas.py [--quick]``.

One run is `learn` in this process. Two replicas are `replicate` in two threads, in two processes, and on a Dask
LocalCluster of two workers, with the log opened by its path. The limit of the host is what two plain processes reach
that run `learn` at the same time and know nothing of each other: no executor can do better.

Each runs for so many seconds (`time_limit`), all in turns, in another order every round. Throughput is the steps of all
rounds over the time of all rounds, taken around the whole call: checks, set-up, steps, averages, the way of arguments
and results. Not in it: the start of pools and cluster, and a first call, of a fixed number of steps, which lets every
worker import the library and open the log, and whose results are compared bit by bit. Figures are relative to one run,
so 2 is perfect; with standard errors, from the spread between rounds. Exit status 1 if one is below what is wanted.
"""

from __future__ import annotations

import argparse
import concurrent.futures as cf
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from dpdl import Dataset, learn, replicate
from dpdl.learner.replicate import Replicas
from problems import LOOSE, make_log

WANTED = 1.8
SIZES = (1000, 100_000)
ONE, LIMIT = "one run", "limit of the host"
SPAWN = multiprocessing.get_context("spawn")


def plain(path: Path, seed: int, options: dict[str, Any], wire: Connection) -> None:
    """A process of its own: a run for every number of seconds that comes in, until that is zero."""
    log = Dataset.open(path)
    while seconds := wire.recv():
        wire.send(learn(log, rng=seed, time_limit=seconds, **options).n_steps)


@contextmanager
def plain_processes(path: Path, options: dict[str, Any]) -> Iterator[Callable[[float], int]]:
    """Two of them, and what makes both run."""
    wires, processes = [], []
    for seed in (0, 1):
        here, there = SPAWN.Pipe()
        processes.append(SPAWN.Process(target=plain, args=(path, seed, options, there)))
        processes[-1].start()
        wires.append(here)

    def run(seconds: float) -> int:
        for wire in wires:
            wire.send(seconds)
        return sum(wire.recv() for wire in wires)

    yield run
    for wire in wires:
        wire.send(0)
    for process in processes:
        process.join()


class Comparison:
    """One size of problem."""

    def __init__(self, n_pairs: int, folder: Path) -> None:
        self.n_pairs, self.path = n_pairs, folder / f"log-{n_pairs}"
        make_log(n_pairs // 10, 1, 0).save(self.path)
        self.log = Dataset.open(self.path)
        rho0 = np.full(self.log.n_states, 1 / self.log.n_states)
        self.options = {"gamma": 0.9, "psi": LOOSE, "slater": 0.2, "floor": 1e-8, "rho0": rho0, "T": 10**10}

    def measure(self, executors: dict[str, cf.Executor], seconds: float, rounds: int) -> dict[str, tuple[float, float]]:
        """Throughput of each relative to one run, with standard errors."""
        self.compare(executors)
        runs: dict[str, Callable[[float], int]] = {
            ONE: lambda s: learn(self.log, rng=0, time_limit=s, **self.options).n_steps
        }
        for name, executor in executors.items():
            runs[name] = lambda s, executor=executor: self.replicas(executor, time_limit=s).result.n_steps
        counts: dict[str, list[tuple[int, float]]] = {name: [] for name in [*runs, LIMIT]}
        with plain_processes(self.path, self.options) as runs[LIMIT]:
            runs[LIMIT](0.1)
            for k in range(rounds):
                names = list(runs)
                for name in names[k % len(names) :] + names[: k % len(names)]:
                    began = time.perf_counter()
                    n_steps = runs[name](seconds)
                    counts[name].append((n_steps, time.perf_counter() - began))
        rates = {name: (np.divide(*np.sum(pairs, axis=0)), error_of(pairs)) for name, pairs in counts.items()}
        one, error = rates.pop(ONE)
        print(f"{self.n_pairs:,} visited pairs, {1e9 / one:.1f} ns a step in one run, {rounds} rounds of {seconds:g} s")
        return {name: (rate / one, rate / one * np.hypot(e / rate, error / one)) for name, (rate, e) in rates.items()}

    def replicas(self, executor: cf.Executor, **limit: float) -> Replicas:
        return replicate(self.log, n=2, rng=0, executor=executor, **self.options, **limit)

    def compare(self, executors: dict[str, cf.Executor]) -> None:
        """Raise an error unless all executors give the same bits."""
        found = [self.replicas(executor, step_limit=10**6) for executor in executors.values()]
        if len({one.result.x_mean.tobytes() + one.spread.x.tobytes() for one in found}) != 1:
            raise RuntimeError(f"results differ between {', '.join(executors)}")


def error_of(pairs: list[tuple[int, float]]) -> float:
    """Standard error of a rate over rounds."""
    rates = [n_steps / seconds for n_steps, seconds in pairs]
    return float(np.std(rates, ddof=1) / np.sqrt(len(rates)))


def dask_executor(stack: ExitStack) -> cf.Executor | None:
    """A cluster of two workers in processes of their own; None if Dask is not installed."""
    try:
        import distributed
    except ImportError:
        print("Dask is not installed, so there are no figures for it.")
        return None
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0")
    return stack.enter_context(distributed.Client(stack.enter_context(cluster))).get_executor()


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what two replicas at once are worth.")
    parser.add_argument("--quick", action="store_true", help="shorter runs and fewer of them: half a minute")
    seconds, rounds = (0.5, 5) if parser.parse_args().quick else (4.0, 12)
    met = True
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpdl-replicas-")))
        executors: dict[str, cf.Executor] = {
            "two threads": stack.enter_context(cf.ThreadPoolExecutor(2)),
            "two processes": stack.enter_context(cf.ProcessPoolExecutor(2, SPAWN)),
        }
        cluster = dask_executor(stack)
        if cluster is not None:
            executors["Dask, two workers"] = cluster
        print(f"{os.cpu_count()} cores. The start of pools and cluster is not timed.")
        for n_pairs in SIZES:
            ratios = Comparison(n_pairs, folder).measure(executors, seconds, rounds)
            limit, error = ratios.pop(LIMIT)
            for name, (ratio, spread) in ratios.items():
                verdict = "met" if ratio >= WANTED else "NOT MET"
                met = met and ratio >= WANTED
                wanted = f"wanted >= {WANTED}   {verdict:<8}{ratio / limit:>6.0%} of the limit"
                print(f"  {name:<20}{ratio:>6.2f} +- {spread:.2f}   {wanted}")
            print(f"  {LIMIT:<20}{limit:>6.2f} +- {error:.2f}   two processes that run nothing but learn", flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
