"""Seconds and memory of reading large labelled Parquet logs, as counts and as rows, each in a process of its own.

    python bench/large_log.py --rows 20000000
    python bench/large_log.py --rows 100000000 --ways counts

The log has 200 text states, 10 text actions, two costs and episodes of 20 rows, in files of 10^7 rows that are written
once to --folder. Counts by state, action, next state and end are made by DuckDB with next states from a window over
episode and time, and then dealt to two halves as certificates need them; rows are put in order and packed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

ROLES = {
    "state": "state",
    "action": "action",
    "reward": "reward",
    "costs": ["cost", "wear"],
    "episode": "episode",
    "time": "time",
    "terminated": True,
}
PART = 10_000_000


def write(folder: Path, n: int) -> None:
    """Write the log in parts, unless they are there."""
    import numpy as np
    import polars as pl

    folder.mkdir(parents=True, exist_ok=True)
    for part, first in enumerate(range(0, n, PART)):
        path = folder / f"part-{part}.parquet"
        if path.exists():
            continue
        size = min(PART, n - first)
        rng = np.random.default_rng(part)
        state, action = rng.integers(0, 200, size), rng.integers(0, 10, size)
        frame = pl.DataFrame(
            {
                "state": pl.Series(state).cast(pl.Utf8).str.zfill(3),
                "action": pl.Series(action).cast(pl.Utf8),
                "reward": rng.integers(0, 5, size).astype(float),
                "cost": (rng.random(size) < 0.1).astype(float),
                "wear": rng.integers(0, 3, size).astype(float),
                "episode": (first + np.arange(size)) // 20,
                "time": np.arange(size) % 20,
            }
        )
        frame.write_parquet(path)


def read(folder: str, way: str) -> dict[str, float]:
    """Read the log in one way, and say how long that took and how much memory the process needed."""
    from dpdl import read_log
    from dpdl.question import pose
    from dpdl.safety.task import make_task

    began = time.perf_counter()
    log = read_log(folder, **ROLES, counts=way == "counts")
    if way == "counts":
        posed = pose(log, 0.9, {"cost": 0.1, "wear": 1.0}, "average")
        left, right = make_task(posed, 0.9, 0.05).cells.halves()
        assert left.n_rows + right.n_rows == len(log)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30
    return {"transitions": len(log), "records": len(log.records), "seconds": seconds, "peak GiB": peak}


def main() -> None:
    """Write the log, and read it in a process of its own for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="where the log is written (default large-log-ROWS)")
    parser.add_argument("--ways", nargs="+", choices=("counts", "rows"), default=["counts", "rows"])
    parser.add_argument("--read", choices=("counts", "rows"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder or Path(f"large-log-{options.rows}")
    if options.read:
        print(json.dumps(read(str(folder), options.read)))
        return
    write(folder, options.rows)
    for way in options.ways:
        command = [sys.executable, __file__, "--folder", str(folder), "--read", way]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{way}: {done.stderr.strip().splitlines()[-1]}")
            continue
        result = json.loads(done.stdout)
        print(
            f"{way:6s} {result['transitions']:>12,} transitions in {result['records']:>11,} records: "
            f"{result['seconds']:6.1f} s, peak {result['peak GiB']:.2f} GiB"
        )


if __name__ == "__main__":
    main()
