"""The same statuses on every processor: random problems under all kernels of OpenBLAS, and without NumPy's dispatch.

    python bench/processors.py                      # 200 problems of every exact solver, and 200 logs
    python bench/processors.py --problems 20        # fewer
    python bench/processors.py -- python -m pytest  # run a command under each kernel instead, and tabulate how it ended

Each kernel gets a process of its own, chosen by OPENBLAS_CORETYPE. Statuses must be identical, and values must agree to
the tolerance that each solver promises, bounds of certificates to 1e-6; the exit code is 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import dpdl
from dpdl import CMDP, exact, instances
from kinds import lake, ring

#: Environment variables of each row of the table.
KERNELS: dict[str, dict[str, str]] = {
    name: {"OPENBLAS_CORETYPE": name} for name in ("Prescott", "Sandybridge", "Haswell", "Zen", "SkylakeX")
}
KERNELS |= {
    "no dispatch": {"NPY_DISABLE_CPU_FEATURES": "X86_V3"},
    "one thread": {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    "two threads": {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"},
}
#: Promised errors: of exact solvers on the normalised scale, of C* relative to itself, and of the saddle value.
PROMISED = {"exact": 1e-9, "concentrability": 1e-3, "saddle": 1e-6}


def problem(seed: int) -> tuple[CMDP, np.ndarray, float]:
    """A random problem of one of five kinds, a distribution of data, and a psi that often binds."""
    rng = np.random.default_rng([23, seed])
    kind = seed % 5
    if kind == 0:
        model = instances.garnet(int(rng.integers(3, 40)), int(rng.integers(2, 5)), int(rng.integers(1, 4)), rng=rng)
    elif kind == 1:
        model = ring(int(rng.integers(6, 40)), rng=rng)
    elif kind == 2:
        model = lake(int(rng.integers(3, 6)), rng=rng)
    else:  # sparse and dense rows, ends of episodes, gamma near one, limits that often cannot be kept
        S, A, I = int(rng.integers(1, 12)), int(rng.integers(1, 4)), int(rng.integers(0, 3))
        P = rng.dirichlet(np.full(S, 0.3), size=(S, A))
        ends = 0.2 * rng.random((S, A)) if kind == 4 else None
        if ends is not None:
            P = P * (1 - ends[:, :, None])
        u = rng.uniform(-1, 1, (I, S, A)) - rng.choice([0.0, 0.3])
        model = CMDP(
            P, rng.uniform(-1, 1, (S, A)), np.clip(u, -1, 1), float(rng.choice([0.5, 0.9, 0.99, 0.9999])),
            rng.dirichlet(np.ones(S)), ends,
        )  # fmt: skip
    mu = rng.dirichlet(np.ones(model.r.size)).reshape(model.r.shape)
    return model, mu, float(rng.choice([1.5, 4.0, 30.0]))


def answers(seed: int) -> dict[str, tuple[str, float, float]]:
    """Status, value and promised error of every exact solver on a problem."""
    model, mu, psi = problem(seed)
    unit, promised = 1 - model.gamma, 2 * PROMISED["exact"]
    solutions = {
        "lp": model.solve(method="lp"),
        "planner": model.solve(method="planner"),
        "plan to 0.1%": model.solve(method="planner", tol=1e-3),
        "inside D(psi)": model.solve(psi=psi, mu=mu),
    }
    values = {}
    for name, solution in solutions.items():
        allowed = promised if name != "plan to 0.1%" else promised + 1e-3 * abs(unit * solution.reward)
        values[name] = (solution.status, unit * solution.reward, allowed)
    if model.n_utilities:
        values["slater"] = ("", model.slater(), promised)
        values["slater in D(psi)"] = ("", model.slater(psi, mu), promised)
    if solutions["lp"].status == "optimal":
        value = model.concentrability(mu)
        values["concentrability"] = ("", value, PROMISED["concentrability"] * abs(value))
    if model.gamma < 0.999:
        value = unit * exact.saddle_value(model, mu, mu, psi, 0.0, 0.3)
        values["saddle value"] = ("", value, 2 * PROMISED["saddle"])
    return values


def certificates(seed: int) -> dict[str, tuple[str, float, float]]:
    """Statuses and bounds of answers about logs, thin and rich, with ties between actions; None without costs."""
    rng = np.random.default_rng([24, seed])
    S, A, n = int(rng.integers(2, 30)), int(rng.integers(2, 6)), int(rng.choice([200, 1000, 5000]))
    P = rng.dirichlet(np.full(S, 0.3), size=S)
    s, a = rng.integers(0, S, n), rng.integers(0, A, n)
    follows = (P.cumsum(axis=1)[s] < rng.random((n, 1))).sum(axis=1)  # whatever the action: all are alike
    cost = (rng.random(n) < 0.3 * rng.random(S)[s]).astype(float)
    log = dpdl.Dataset(s, a, follows, a / A, costs={"cost": cost}, n_states=S, n_actions=A)
    question = {"gamma": 0.9, "limits": {"cost": float(rng.choice([0.12, 0.16, 0.25]))}, "limit_on": "average"}
    rho0 = np.full(S, 1 / S)
    answer = dpdl.safe_policy(log, **question, rho0=rho0, progress=False)
    certificate = dpdl.certify(np.full((S, A), 1 / A), log, **question, rho0=rho0)
    bounds = {"safe_policy": answer.certificate.constraints[0], "certify": certificate.constraints[0]}
    statuses = {"safe_policy": answer.status.name, "certify": str(certificate.holds)}
    return {name: (statuses[name], bound.bound, 1e-6 * abs(bound.bound)) for name, bound in bounds.items()}


def compare(runs: dict[str, list[dict[str, tuple[str, float, float]]]]) -> int:
    """Print what differs from the first kernel; return how much does."""
    (first, reference), *others = runs.items()
    n_different = 0
    for kernel, run in others:
        for seed, (expected, answered) in enumerate(zip(reference, run, strict=True)):
            for solver in sorted({*expected, *answered}):
                a, b = expected.get(solver), answered.get(solver)
                same = a is not None and b is not None and a[0] == b[0]
                if same and not (a[1] == b[1] or abs(a[1] - b[1]) <= max(a[2], b[2])):
                    same = np.isnan(a[1]) and np.isnan(b[1])
                if not same:
                    n_different += 1
                    print(f"problem {seed}, {solver}: {a} with {first}, {b} with {kernel}")
    return n_different


def supported() -> dict[str, dict[str, str]]:
    """The kernels that this processor can run."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    needs = {"Sandybridge": " avx ", "Haswell": " avx2 ", "Zen": " avx2 ", "SkylakeX": " avx512vl "}
    return {name: change for name, change in KERNELS.items() if needs.get(name, "") in flags + " "}


def run_command(command: list[str]) -> int:
    """Run a command under each kernel, and print how it ended."""
    print(f"{'kernel':12} {'passed':>7} {'failed':>7} {'seconds':>8}", flush=True)
    worst = 0
    for name, change in supported().items():
        began = time.perf_counter()
        ended = subprocess.run(command, env=os.environ | change, capture_output=True, text=True, check=False)
        counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|error)", ended.stdout[-3000:])}
        failed = counts.get("failed", 0) + counts.get("error", 0)
        seconds = time.perf_counter() - began
        print(f"{name:12} {counts.get('passed', 0):7} {failed:7} {seconds:8.0f}", flush=True)
        if ended.returncode:
            print("\n".join(ended.stdout.splitlines()[-15:]), ended.stderr[-2000:], flush=True)
            worst = 1
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--print", action="store_true", help="print this process's answers as JSON, and end")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if options.command:
        return run_command(options.command)
    if options.print:
        json.dump([answers(seed) | certificates(seed) for seed in range(options.problems)], sys.stdout)
        return 0
    itself = [sys.executable, __file__, "--print", "--problems", str(options.problems)]

    def run(change: dict[str, str]) -> list[dict[str, tuple[str, float, float]]]:
        output = subprocess.run(itself, env=os.environ | change, capture_output=True, text=True, check=True).stdout
        return json.loads(output)

    print(f"{'kernel':12} statuses", flush=True)
    runs = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, answered in zip(supported(), pool.map(run, supported().values()), strict=True):
            runs[name] = answered
            statuses = Counter(status for each in answered for status, _, _ in each.values() if status)
            print(f"{name:12} {dict(sorted(statuses.items()))}", flush=True)
    n_different = compare(runs)
    print(f"{options.problems} problems under {len(runs)} kernels: {n_different} answers differ")
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
