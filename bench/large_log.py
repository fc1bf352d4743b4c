"""A log larger than one would want in memory: ``python bench/large_log.py [--records N] [--folder PATH]``.

Writes a Parquet log of 10^8 transitions in batches, converts it to a data set folder, opens that as a memory map and
learns from it, first with the whole log for mu_hat and the descent, then with a tenth of it set apart for mu_hat, and
checks the second result. After each phase: seconds, the peak of private memory (RssAnon, sampled every 5 ms) and of
mapped file pages (RssFile, which the kernel takes back when it needs them). Exit status 1 if the private memory of any
phase exceeds 1 GiB. About 5 GB of disk at the default size, in a temporary folder that is removed at the end.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdl import Dataset, from_parquet, learn, verify

STATES, ACTIONS, BRANCHING = 100_000, 10, 5
BATCH = 1 << 18
STEPS = 10_000_000
LIMIT = 2**30
BYTES_PER_RECORD = 55  # of disk: 24 in the data set, the rest in Parquet
INTERVAL = 0.005


class Memory:
    """Samples this process's memory in a thread, and prints what each phase needed."""

    def __init__(self) -> None:
        self.worst = 0
        self.peaks = {"RssAnon": 0, "RssFile": 0}
        threading.Thread(target=self._watch, daemon=True).start()

    def _sample(self) -> None:
        with open("/proc/self/status") as status:
            for line in status:
                name = line.split(":")[0]
                if name in self.peaks:
                    self.peaks[name] = max(self.peaks[name], 1024 * int(line.split()[1]))

    def _watch(self) -> None:
        while True:
            self._sample()
            time.sleep(INTERVAL)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.peaks.update(dict.fromkeys(self.peaks, 0))
        began = time.perf_counter()
        yield
        self._sample()
        anonymous, mapped = self.peaks["RssAnon"], self.peaks["RssFile"]
        self.worst = max(self.worst, anonymous)
        seconds = time.perf_counter() - began
        print(f"{name:<28} {seconds:>9.1f} {anonymous / 2**20:>16,.0f} {mapped / 2**20:>16,.0f}", flush=True)


def write_parquet(path: Path, n_records: int) -> None:
    """A log of an uneven behaviour on a random sparse model; rewards and utilities are functions of the pair."""
    rng = np.random.default_rng(0)
    n_pairs = STATES * ACTIONS
    successors = rng.integers(0, STATES, (n_pairs, BRANCHING), dtype=np.int32)
    reward, utility = rng.random(n_pairs), rng.uniform(-1, 1, n_pairs)
    types = {"s": pa.int32(), "a": pa.int32(), "s_next": pa.int32(), "r": pa.float64(), "u_0": pa.float64()}
    schema = pa.schema(list(types.items()))
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for first in range(0, n_records, BATCH):
            n = min(BATCH, n_records - first)
            pair = (n_pairs * rng.random(n) ** 1.5).astype(np.int64)
            s_next = successors[pair, rng.integers(0, BRANCHING, n)]
            s, a = (part.astype(np.int32) for part in np.divmod(pair, ACTIONS))
            writer.write_batch(pa.record_batch([s, a, s_next, reward[pair], utility[pair]], schema=schema))


def run(n_records: int, folder: Path) -> int:
    memory = Memory()
    sizes = {"n_states": STATES, "n_actions": ACTIONS}
    settings = {"gamma": 0.9, "psi": 10.0, "slater": 0.2, "T": STEPS, "rho0": np.full(STATES, 1 / STATES), "rng": 0}
    print(f"{n_records:,} transitions, {STEPS:,} steps")
    print(f"{'phase':<28} {'seconds':>9} {'private, MiB':>16} {'mapped, MiB':>16}")
    with memory.phase("write Parquet"):
        write_parquet(folder / "log.parquet", n_records)
    with memory.phase("convert, open and check"):
        from_parquet(folder / "log.parquet", folder / "log", **sizes)
    with memory.phase("open and check"):
        log = Dataset.open(folder / "log")
    with memory.phase("learn"):
        learn(log, **settings)
    with memory.phase("learn, a tenth for mu_hat"):
        result = learn(log, **settings, n_reference=n_records // 10)
    with memory.phase("verify on all of it"):
        verify(result, log, rho0=settings["rho0"], eps=0.1)
    met = memory.worst <= LIMIT
    verdict = "met" if met else "NOT MET"
    print(f"peak private memory {memory.worst / 2**20:,.0f} MiB, wanted <= {LIMIT / 2**20:,.0f} MiB: {verdict}")
    return 0 if met else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn from a log on disk and watch the memory.")
    parser.add_argument("--records", type=lambda text: int(float(text)), default=10**8, help="transitions (1e8)")
    parser.add_argument("--folder", help="where to make the temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dpdl-large-log-", dir=options.folder) as folder:
        needed, free = BYTES_PER_RECORD * options.records, shutil.disk_usage(folder).free
        if free < needed:
            parser.error(f"{folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed")
        return run(options.records, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
