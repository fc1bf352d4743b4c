"""What a run in practice makes of its start, phase by phase: ``python bench/practice.py [--quick]``.

On random sparse models (fast), rings and lakes, fifty records a pair, without psi and with half of the psi that the
optimum of the plug-in model needs. "cut" is the same psi with a start that does not know it: the plan without psi, cut
to the caps, which is what a large model starts from without an optional package. Reward relative to the optimum of the
class on the plug-in model, least normalised utility and largest occupancy relative to its cap: of the start, of the
averages of the last phase, and of the result; and the relative gap that the result reports.

``--explore`` shows what was tried and is not built in (`cold`).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

import cold
from dpdl import CMDP, Dataset, Result, exact, instances
from dpdl.learner import practice
from dpdl.learner.layout import Inputs, Layout
from dpdl.learner.run import Run
from dpdl.result import Point, Status
from dpdl.settings import Settings

RECORDS_PER_PAIR = 50


def problem(kind: str, n_pairs: int, seed: int, skewed: bool = False) -> tuple[CMDP, Dataset]:
    """A CMDP of about n_pairs pairs, and a log, in which some pairs are a hundred times as frequent if skewed."""
    if kind == "fast":
        cmdp = instances.garnet(n_pairs // 5, 5, n_utilities=2, gamma=0.95, slater=0.1, rng=seed)
    elif kind == "ring":
        cmdp = instances.ring(n_pairs // 3, rng=seed)
    else:
        cmdp = instances.lake(round((n_pairs / 4) ** 0.5), rng=seed)
    spread = 2.0 if skewed else 0.0
    mu = 10 ** np.random.default_rng(seed + 2).uniform(0, spread, cmdp.r.shape)
    return cmdp, cmdp.sample(RECORDS_PER_PAIR * cmdp.r.size, mu / mu.sum(), rng=seed + 1)


def layout_of(log: Dataset, given: dict[str, Any], inputs: Inputs) -> Layout:
    """What `learn` would prepare."""
    return Layout.of(log, Settings.of(None, practice.defaults(log, given, inputs.initial)), inputs)


def run(log: Dataset, given: dict[str, Any], inputs: Inputs, seed: int) -> list[Result]:
    """Results of the start, of the averages of the last phase, and of the run."""
    layout = layout_of(log, given, inputs)
    one = Run.of(layout, np.random.default_rng(seed))
    one.settle()
    found = [one.result(Status.RUNNING)]
    while not one.phase.is_over:
        assert one.core.run(one.left) == 0
        averages = replace(one.phase, best=None)
        last = Run(layout, averages).result(Status.RUNNING)
        one.settle()
    return [*found, last, one.result(Status.COMPLETED)]


def rows(kind: str, n_pairs: int, seed: int) -> list[str]:
    """One line for each class and start."""
    cmdp, log = problem(kind, n_pairs, seed)
    gamma, mu = cmdp.gamma, log.frequencies
    model = exact.plug_in(log, gamma, cmdp.rho0)
    needed = (1 - gamma) * np.divide(model.solve().occupancy, mu, where=mu > 0, out=np.zeros_like(mu)).max()
    inputs, binding = Inputs.of(log, rho0=cmdp.rho0), {"gamma": gamma, "psi": float(needed / 2)}
    free, near = (layout_of(log, given, inputs) for given in ({"gamma": gamma}, binding))
    log_x, V, log_lam = free.start()
    log_x, V, log_lam = near.moved_inside(np.exp(log_x), V, np.exp(log_lam))
    cut = Point(near.coordinates.log_table(log_x).dense(*mu.shape), V, log_lam)
    lines = []
    for name, given, start in (("free", {"gamma": gamma}, None), ("psi", binding, None), ("cut", binding, cut)):
        results = run(log, given, replace(inputs, start=start), seed)
        psi = results[0].settings.psi
        best = model.solve(psi=psi, mu=mu).reward
        cells = []
        for result in results:
            found = model.evaluate(result.policy.probabilities)
            occupancy = (1 - gamma) * found.occupancy[mu > 0] / (psi * mu[mu > 0])
            least = (1 - gamma) * found.utilities.min()
            cells.append(f"{found.reward / best:>8.4f} {least:>8.4f} {occupancy.max():>5.2f}")
        judged = results[-1].evaluation
        assert judged is not None
        assert judged.gap is not None
        gap = judged.gap / best
        lines.append(f"{kind:>5} {n_pairs:>6,} {name:>5} {psi:>6.1f} " + " |".join(cells) + f" | {gap:>7.4f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Show what a run in practice makes of its start.")
    parser.add_argument("--quick", action="store_true", help="small models only")
    parser.add_argument("--seed", type=int, default=700)
    parser.add_argument("--explore", action="store_true", help="starts from nothing, other averages, other reading")
    parser.add_argument("--seeds", type=int, default=10, help="of --explore")
    parser.add_argument("--pairs", type=int, default=300, help="of --explore")
    arguments = parser.parse_args()
    if arguments.explore:
        cold.explore(problem, arguments.pairs, range(arguments.seed, arguments.seed + arguments.seeds))
        return
    parts = " |".join(f"{part:>8} {'utility':>8} {'cap':>5}" for part in ("start", "phase", "result"))
    print(f"{'':>5} {'pairs':>6} {'class':>5} {'psi':>6} {parts} | {'gap':>7}")
    for n_pairs in (300,) if arguments.quick else (300, 3000):
        for kind in ("fast", "ring", "lake"):
            print("\n".join(rows(kind, n_pairs, arguments.seed)), flush=True)


if __name__ == "__main__":
    main()
