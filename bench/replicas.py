"""Throughput of two replicas at once against one run: ``python bench/replicas.py [--quick]``.

One run is `learn` in this process. Two replicas are `replicate` in two threads, in two processes, and on a Dask
LocalCluster of two workers, with the log opened by its path. The limit of the host is what two plain processes reach
that run `learn` at the same time and know nothing of each other: no executor can do better. All take turns, round after
round, and the best of each counts. Figures are steps per second relative to one run, so 2 is perfect.

Time is taken around the whole call: checks, set-up, steps, averages, the way of arguments and results. Not in it: the
start of pools and cluster, and a first call that lets every worker import the library and open the log. The results are
compared bit by bit. Exit status 1 if a ratio is below what is wanted.
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
from problems import LOOSE, make_log

WANTED = 1.8
SIZES = (1000, 100_000)
SPAWN = multiprocessing.get_context("spawn")


def plain(path: Path, seed: int, options: dict[str, Any], wire: Connection) -> None:
    """A process of its own: a run for every number of steps that comes in, until that is zero."""
    log = Dataset.open(path)
    while steps := wire.recv():
        learn(log, rng=seed, **options | {"T": steps})
        wire.send(None)


@contextmanager
def plain_processes(path: Path, options: dict[str, Any]) -> Iterator[Callable[[int], None]]:
    """Two of them, and what makes both run."""
    wires, processes = [], []
    for seed in (0, 1):
        here, there = SPAWN.Pipe()
        processes.append(SPAWN.Process(target=plain, args=(path, seed, options, there)))
        processes[-1].start()
        wires.append(here)

    def run(steps: int) -> None:
        for wire in wires:
            wire.send(steps)
        for wire in wires:
            wire.recv()

    yield run
    for wire in wires:
        wire.send(0)
    for process in processes:
        process.join()


class Comparison:
    """One size of problem."""

    def __init__(self, n_pairs: int, folder: Path) -> None:
        self.n_pairs, self.path = n_pairs, folder / f"log-{n_pairs}"
        make_log(n_pairs // 10, 1, np.random.default_rng(0)).save(self.path)
        self.log = Dataset.open(self.path)
        rho0 = np.full(self.log.n_states, 1 / self.log.n_states)
        # The look at slater, a linear program on small logs, is the same on all of them and no matter of throughput.
        self.options = {"gamma": 0.9, "psi": LOOSE, "slater": 0.2, "floor": 1e-8, "rho0": rho0, "check_slater": False}
        self.outcomes: dict[str, bytes] = {}

    def replicas(self, name: str, executor: cf.Executor) -> Callable[[int], None]:
        def run(steps: int) -> None:
            found = replicate(self.log, n=2, rng=0, T=steps, executor=executor, **self.options)
            self.outcomes[name] = found.result.x_mean.tobytes() + found.spread.x.tobytes()

        return run

    def measure(self, executors: dict[str, cf.Executor], steps: int, rounds: int) -> dict[str, float]:
        """Throughput of each, relative to one run."""
        runs: dict[str, Callable[[int], Any]] = {
            "one run": lambda steps: learn(self.log, rng=0, T=steps, **self.options)
        }
        runs |= {name: self.replicas(name, executor) for name, executor in executors.items()}
        with plain_processes(self.path, self.options) as both:
            runs["limit of the host"] = both
            for run in runs.values():
                run(1000)
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(rounds):
                for name, run in runs.items():
                    began = time.perf_counter()
                    run(steps)
                    times[name].append(time.perf_counter() - began)
        if len(set(self.outcomes.values())) != 1:
            raise RuntimeError(f"results differ between {', '.join(self.outcomes)}")
        one = min(times.pop("one run"))
        print(f"{self.n_pairs:,} visited pairs, {steps:,} steps: {1e9 * one / steps:.0f} ns a step in one run")
        return {name: 2 * one / min(seconds) for name, seconds in times.items()}


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
    quick = parser.parse_args().quick
    steps, rounds = (5_000_000, 4) if quick else (20_000_000, 8)
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
            ratios = Comparison(n_pairs, folder).measure(executors, steps, rounds)
            limit = ratios.pop("limit of the host")
            for name, ratio in ratios.items():
                verdict = "met" if ratio >= WANTED else "NOT MET"
                met = met and ratio >= WANTED
                print(
                    f"  {name:<20}{ratio:>6.2f}   wanted >= {WANTED}   {verdict:<8}{ratio / limit:>6.0%} of the limit"
                )
            print(f"  {'limit of the host':<20}{limit:>6.2f}   two processes that run nothing but learn", flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
