"""What it takes to be interrupted, to keep checkpoints and to be watched: ``python bench/lasting.py [--quick]``.

Ctrl-C: milliseconds from the signal to the return of `learn`, with the run in the main thread and in another one, at
random moments; and the same while a refresh, the one step that takes long, is under way about half of the time.

Costs: runs that keep a checkpoint every 0.2 s or call back every 0.05 s, and runs that do neither, in turns. The median
time of one checkpoint and of one callback, taken inside the runs, is printed as a share of 10 s and of 1 s; what the
throughput lost, best of several, is printed beside it: it has everything in it, and the noise of the machine as well.

Exits with 1 if a target is not met. Measure with nothing else running.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from dpdl import Dataset, Result, Status, learn
from dpdl.learner import checkpoint
from dpdl.learner.run import Run
from problems import LOOSE, make_log

MAIN, WORKER, REFRESH = "main thread", "other thread", "during a refresh"
EVERY, CALLBACK_SECONDS = 0.2, 0.05

#: Largest share of throughput (in percent) and longest wait (in milliseconds) allowed.
CHECKPOINT_SHARE, CALLBACK_SHARE, LATENCY = 2.0, 1.0, 50.0


class Log:
    """A log of about so many visited pairs, and runs on it that would take for ever."""

    def __init__(self, n_pairs: int) -> None:
        n_states = max(2, n_pairs // 10)
        self.dataset: Dataset = make_log(n_states, 1, 0)
        self.rho0 = np.full(n_states, 1 / n_states)

    def run(self, **options: object) -> Result:
        settings = {"gamma": 0.9, "psi": LOOSE, "slater": 0.2, "T": 10**10, "floor": 1e-8, "rho0": self.rho0, "rng": 1}
        return learn(self.dataset, **{**settings, "progress": False, **options})  # type: ignore[arg-type]

    def interrupted(self, wait: float, in_worker: bool, **options: object) -> float:
        """Seconds from Ctrl-C, so long after the first steps, to the return of the run."""
        rng, done = np.random.default_rng(1), threading.Event()
        before, pressed, ended = rng.bit_generator.state, [], []

        def work() -> None:
            result = self.run(rng=rng, **options)
            ended.append(time.perf_counter())
            assert result.status is Status.INTERRUPTED
            done.set()

        def press() -> None:
            while rng.bit_generator.state == before:  # it moves with the first steps
                time.sleep(0.001)
            time.sleep(wait)
            pressed.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

        other = threading.Thread(target=work if in_worker else press)
        other.start()
        if in_worker:
            with contextlib.suppress(KeyboardInterrupt):
                press()
                time.sleep(1)
        else:
            work()
        done.wait()
        other.join()
        return ended[0] - pressed[0]


class Stopwatch:
    """Times a function of some module for as long as it is open."""

    def __init__(self, owner: object, name: str) -> None:
        self.owner, self.name, self.real = owner, name, getattr(owner, name)
        self.seconds: list[float] = []

    def __enter__(self) -> Stopwatch:
        def timed(*arguments: object, **options: object) -> object:
            began = time.perf_counter()
            try:
                return self.real(*arguments, **options)
            finally:
                self.seconds.append(time.perf_counter() - began)

        setattr(self.owner, self.name, timed)
        return self

    def __exit__(self, *exception: object) -> None:
        setattr(self.owner, self.name, self.real)


class Lasting:
    """Measurements, kept as they are made; milliseconds."""

    def __init__(self, quick: bool, pairs: list[int] | None) -> None:
        self.sizes = pairs or ([1000, 100_000] if quick else [1000, 100_000, 1_000_000])
        self.repeats = 5 if quick else 20
        self.rounds, self.seconds = (2, 1.0) if quick else (7, 3.0)
        self.latency: dict[str, dict[int, list[float]]] = {MAIN: {}, WORKER: {}, REFRESH: {}}
        self.costs: dict[str, dict[int, float]] = {"checkpoint": {}, "callback": {}}
        self.losses: dict[str, dict[int, float]] = {"checkpoint": {}, "callback": {}}
        self.megabytes: dict[int, float] = {}

    def measure(self) -> None:
        moments = np.random.default_rng(0)
        for size in self.sizes:
            log = Log(size)
            for name in self.latency:
                often = {"refresh": max(1000, size // 10)} if name == REFRESH else {}
                self.latency[name][size] = [
                    1000 * log.interrupted(moments.uniform(0.05, 0.6), name == WORKER, **often)
                    for _ in range(self.repeats)
                ]
            self.cost(log, size)

    def cost(self, log: Log, size: int) -> None:
        """What a checkpoint and a callback cost, by the stopwatch and by the throughput of runs with and without."""
        steps: dict[str, list[int]] = {"neither": [], "checkpoint": [], "callback": []}
        saves = Stopwatch(checkpoint, "save")
        results = Stopwatch(Run, "result")
        with tempfile.TemporaryDirectory() as folder:
            for k in range(self.rounds):
                path = Path(folder, str(k))
                steps["neither"].append(log.run(time_limit=self.seconds).n_steps)
                with saves:
                    steps["checkpoint"].append(log.run(time_limit=self.seconds, checkpoint=path, every=EVERY).n_steps)
                with results:
                    watched = {"callback": lambda result: None, "callback_seconds": CALLBACK_SECONDS}
                    steps["callback"].append(log.run(time_limit=self.seconds, **watched).n_steps)
                self.megabytes[size] = path.stat().st_size / 1e6
        for name, watch, interval in (("checkpoint", saves, EVERY), ("callback", results, CALLBACK_SECONDS)):
            self.costs[name][size] = 1000 * statistics.median(watch.seconds)
            self.losses[name][size] = 1000 * interval * (1 - max(steps[name]) / max(steps["neither"]))

    def targets(self) -> list[tuple[str, float, float, str]]:
        """Name, value, largest value allowed, unit."""
        rows = [
            (f"Ctrl-C, {name}, {size:,} pairs, worst", max(values), LATENCY, "ms")
            for name, row in self.latency.items()
            for size, values in row.items()
        ]
        for name, interval, share in (("checkpoint", 10, CHECKPOINT_SHARE), ("callback", 1, CALLBACK_SHARE)):
            for size, cost in self.costs[name].items():
                rows.append((f"a {name} every {interval} s, {size:,} pairs", cost / (10 * interval), share, "%"))
        return rows

    def table(self) -> str:
        lines = [f"{'visited pairs':<36}" + "".join(f"{size:>12,}" for size in self.sizes)]
        for name, row in self.latency.items():
            for what, function in (("median", statistics.median), ("worst", max)):
                cells = "".join(f"{function(values):>12.1f}" for values in row.values())
                lines.append(f"{f'Ctrl-C, {name}, {what}, ms':<36}{cells}")
        for name in self.costs:
            for what, row in (("by the stopwatch", self.costs[name]), ("by throughput", self.losses[name])):
                lines.append(f"{f'one {name}, {what}, ms':<36}" + "".join(f"{cost:>12.2f}" for cost in row.values()))
        lines.append(f"{'size of a checkpoint, MB':<36}" + "".join(f"{n:>12.2f}" for n in self.megabytes.values()))
        lines.append("")
        for name, value, bound, unit in self.targets():
            met = "met" if value <= bound else "NOT MET"
            lines.append(f"{name:<50}{value:>9.3f} {unit:<2} wanted <= {bound:g} {unit:<2} {met}")
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure interruptions, checkpoints and callbacks.")
    parser.add_argument("--quick", action="store_true", help="few repetitions, no large log: half a minute")
    parser.add_argument("--pairs", type=int, nargs="+", help="sizes to measure; 10^7 takes some 10 GB of memory")
    lasting = Lasting(**vars(parser.parse_args()))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have it ignored in the background
    print(f"load average at the beginning: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores", flush=True)
    lasting.measure()
    print(lasting.table())
    return int(any(value > bound for _, value, bound, _ in lasting.targets()))


if __name__ == "__main__":
    sys.exit(main())
