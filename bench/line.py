"""Which method for which problem: ``python bench/line.py [--quick] [--json FILE] [--figure FILE]``.

Logs of four kinds of problem, twenty records a pair, and methods that find a policy from their counts:

    fast     random sparse models that mix in a few steps, three constraints
    skewed   the same with actions that are logged very unevenly
    ring     local moves, and a hazard on the way to each hill of reward
    lake     a slippery grid with holes, and one reward at its end

    highs    the linear program by HiGHS' interior point method, without crossover
    planner  CMDP.solve to a gap of 0.1%
    paper    `dpdl.learn` with psi, slater and T given: Algorithm 1 from its own start
    learn    `dpdl.learn` with its defaults: Algorithm 1 from the plan

For each: seconds, from the plug-in model (or the log, for paper and learn) to a policy; the reward of that policy on
the plug-in model relative to the best one's; its least utility, normalised, negative if a constraint is broken; and the
gap that the method itself proves, relative to the best reward.
Methods run one after the other, each in a process of its own, which is ended at the time limit: "did not finish".

    python bench/line.py --million      10^6 pairs of fast by the planner: seconds, gap and memory

Needs ``pip install 'dpdl[bench]'``; without it HiGHS is left out, and that is said.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dpdl
import peers
from dpdl import CMDP, Dataset, exact, instances
from dpdl import policy as policies
from dpdl.models import programs
from kinds import lake, ring

KINDS = ("fast", "ring", "lake", "skewed")
SIZES = (300, 3_000, 30_000, 300_000)
COLOURS = {"highs": "C0", "planner": "C3", "paper": "C4", "learn": "C5"}
RECORDS_PER_PAIR, GAP = 20, 1e-3
#: Of Algorithm 1 from its own start: psi, slater, and the steps a pair.
PSI, SLATER, VISITS, MOST_STEPS = 20.0, 0.1, 1000, 100_000_000


class Problem(NamedTuple):
    """A log, its plug-in model, and an upper bound of the best safe reward there, within GAP/10 of it."""

    log: Dataset
    model: CMDP
    best: float


class Outcome(NamedTuple):
    """A policy, and an upper bound of the best reward that the method proves; infinite if it proves none."""

    policy: np.ndarray
    bound: float


def draw(kind: str, n_pairs: int, seed: int) -> tuple[Dataset, CMDP]:
    """A log of about this many pairs, and its plug-in model."""
    rng = np.random.default_rng([seed, n_pairs, KINDS.index(kind)])
    if kind == "ring":
        cmdp = ring(n_pairs // 3, rng=rng)
    elif kind == "lake":
        cmdp = lake(round((n_pairs / 4) ** 0.5), rng=rng)
    else:
        cmdp = instances.garnet(n_pairs // 10, 10, n_utilities=3, gamma=0.95, rng=rng)
    share = np.ones(cmdp.r.shape)
    if kind == "skewed":  # the most frequent action of a state is logged 500 times as often as the rarest
        share = rng.permuted(np.tile(np.geomspace(1, 1 / 500, cmdp.n_actions), (cmdp.n_states, 1)), axis=1)
    log = cmdp.sample(RECORDS_PER_PAIR * cmdp.r.size, share / share.sum(), rng=rng)
    return log, exact.plug_in(log, cmdp.gamma, cmdp.rho0)


# ---- The methods ----


def by_program(problem: Problem) -> Outcome | None:
    model = problem.model
    program = programs.largest_reward(model.rows, 0.0, programs.region(model.rows))
    found = programs.propose(program, partial(peers.highs, solver="ipm", run_crossover="off"))
    if found is None:
        return None
    bound = program.bound(found.V, found.w) / (1 - model.gamma)
    return Outcome(policies.from_occupancy(found.y.reshape(model.r.shape)), bound)


def by_planner(problem: Problem) -> Outcome:
    found = problem.model.solve(method="planner", tol=GAP)
    return Outcome(found.policy, found.upper)


def by_learning(seed: int, problem: Problem, **keywords: Any) -> Outcome:
    model = problem.model
    found = dpdl.learn(problem.log, gamma=model.gamma, rho0=model.rho0, rng=seed, progress=False, **keywords)
    return Outcome(np.asarray(found.policy), np.inf)


def by_the_paper(seed: int, problem: Problem) -> Outcome:
    n_steps = min(MOST_STEPS, VISITS * problem.model.r.size)
    return by_learning(seed, problem, psi=PSI, slater=SLATER, T=n_steps)


def methods(seed: int) -> dict[str, Callable[[Problem], Outcome | None]]:
    """The methods that are installed, by name."""
    chosen: dict[str, Callable[[Problem], Outcome | None]] = {"highs": by_program} if find_spec("highspy") else {}
    return chosen | {
        "planner": by_planner,
        "paper": partial(by_the_paper, seed),
        "learn": partial(by_learning, seed),
    }


# ---- Running and judging them ----


def measured(method: Callable[[Problem], Outcome | None], problem: Problem, limit: float) -> dict[str, Any]:
    """Run a method in a process of its own, and judge its policy; the figures are None if it did not finish."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send, args=(sender, method, problem), daemon=True)
    process.start()
    sender.close()
    try:
        seconds, outcome, error = receiver.recv() if receiver.poll(limit) else (None, None, "did not finish")
    except EOFError:
        seconds, outcome, error = None, None, "died"
    process.kill()
    process.join()
    if outcome is None:
        return {"seconds": seconds, "reward": None, "utility": None, "gap": None, "note": error or "no answer"}
    model, unit = problem.model, 1 - problem.model.gamma
    value = model.evaluate(outcome.policy)
    gap = (outcome.bound - value.reward) / abs(problem.best)
    return {
        "seconds": seconds,
        "reward": value.reward / problem.best,
        "utility": unit * float(value.utilities.min()),
        "gap": gap if np.isfinite(gap) else None,
    }


def _send(sender: Any, method: Callable[[Problem], Outcome | None], problem: Problem) -> None:
    began = time.perf_counter()
    try:
        outcome, error = method(problem), None
    except Exception as caught:  # shown in the table
        outcome, error = None, f"{type(caught).__name__}: {caught}"
    sender.send((time.perf_counter() - began, outcome, error))


def survey(arguments: argparse.Namespace) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    chosen = {name: one for name, one in methods(arguments.seed).items() if name in arguments.methods}
    for name in sorted(set(arguments.methods) - chosen.keys()):
        print(f"{name} is left out: pip install 'dpdl[bench]'", file=sys.stderr)
    print(f"{'problem':<8} {'pairs':>8} {'method':<8} {'seconds':>8} {'reward':>8} {'utility':>9} {'gap':>8}")
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for kind in arguments.problems:
        for n_pairs in arguments.sizes:
            _tell(f"{kind}, {n_pairs:,} pairs: the problem and its best reward")
            log, model = draw(kind, n_pairs, arguments.seed)
            problem = Problem(log, model, model.solve(method="planner", tol=GAP / 10).upper)
            for method, run in chosen.items():
                _tell(f"{kind}, {n_pairs:,} pairs: {method}")
                row = measured(run, problem, arguments.time_limit)
                found.setdefault(kind, {}).setdefault(str(n_pairs), {})[method] = row
                _tell("")
                print(f"{kind:<8} {n_pairs:>8,} {method:<8} {cells(row, arguments.time_limit)}", flush=True)
    return found


def merged(earlier: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables as one, those found where both have an entry."""
    both = {name: merged(earlier[name], found[name]) for name in earlier.keys() & found.keys() if "reward" not in found}
    return earlier | found | both


def cells(row: dict[str, Any], limit: float) -> str:
    if row["reward"] is None:
        seconds = f"> {limit:.0f}" if row["seconds"] is None else f"{row['seconds']:.2f}"
        return f"{seconds:>8} {row['note']}"
    gap = "-" if row["gap"] is None else f"{row['gap']:.2%}"
    return f"{row['seconds']:>8.2f} {row['reward']:>8.2%} {row['utility']:>9.5f} {gap:>8}"


def _tell(text: str) -> None:
    """Say what is being done, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}\r", end="", file=sys.stderr, flush=True)


def draw_figure(found: dict[str, dict[str, dict[str, dict[str, Any]]]], path: str) -> None:
    """Quality against seconds: a panel for each problem, a line for each method, larger marks for more pairs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [name for name in KINDS if name in found]
    figure, axes = plt.subplots(
        1, len(names), figsize=(3.4 * len(names), 3.1), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes.flat, names, strict=True):
        for method, colour in COLOURS.items():
            rows = [(int(size), by[method]) for size, by in found[name].items() if method in by]
            rows = [(size, row) for size, row in rows if row["reward"] is not None]
            lost = [max(1e-5, abs(1 - row["reward"])) for _, row in rows]
            axis.plot([row["seconds"] for _, row in rows], lost, color=colour, lw=0.8, label=method)
            for (size, row), value in zip(rows, lost, strict=True):
                face = colour if row["utility"] >= -0.002 else "none"
                axis.scatter(row["seconds"], value, 10 * np.log10(size / 30), facecolors=face, edgecolors=colour)
        axis.set(title=name, xscale="log", yscale="log", ylim=(8e-6, 1.5), xlim=(0.01, 200))
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    for axis in axes[:, 0]:
        axis.set_ylabel("|1 - reward / best|")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.suptitle("lower left is better; larger marks: more pairs; hollow: a constraint broken", fontsize=9)
    figure.savefig(path, dpi=110)


def million(seed: int) -> None:
    """The planner on 10^6 pairs: a random sparse model, gamma .95, three constraints, to a gap of 0.1%."""
    model = instances.garnet(100_000, 10, n_utilities=3, gamma=0.95, rng=seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    found = model.solve(method="planner", tol=GAP)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"10^6 pairs: {found.status} in {seconds:.1f} s, gap {found.gap:.3%}, {found.n_columns} policies", end=", ")
    print(
        f"least utility {found.utilities.min():.1e}, peak memory {peak / 2**20:.2f} GiB ({before / 2**20:.2f} before)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="300 and 3,000 pairs, three seconds a method")
    parser.add_argument("--million", action="store_true", help="10^6 pairs by the planner only")
    parser.add_argument("--problems", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--methods", nargs="+", choices=tuple(COLOURS), default=tuple(COLOURS))
    parser.add_argument("--sizes", nargs="+", type=int, metavar="PAIRS", help="numbers of pairs")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="for each method")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--add", metavar="FILE", help="figures of an earlier run, to be written and drawn with these")
    parser.add_argument("--figure", metavar="FILE", help="draw quality against seconds")
    arguments = parser.parse_args()
    arguments.sizes = arguments.sizes or (SIZES[:2] if arguments.quick else SIZES)
    arguments.time_limit = arguments.time_limit or (3.0 if arguments.quick else 120.0)
    if arguments.million:
        million(arguments.seed)
        return
    earlier = json.loads(Path(arguments.add).read_text()) if arguments.add else {}
    found = merged(earlier, survey(arguments))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)
    if arguments.figure:
        draw_figure(found, arguments.figure)


if __name__ == "__main__":
    main()
