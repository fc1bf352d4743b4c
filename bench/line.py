"""Where the line runs between DPDL and an LP on the plug-in model: ``python bench/line.py [--quick]``.

On random sparse models with two constraints and twenty records a pair: seconds for the exact LP on the counts, seconds
for 10^7 steps of DPDL on the same log, and on the true model what each policy earns, relative to the best safe one, and
its least slack, negative if it breaks a constraint.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from dpdl import Settings, exact, instances, learn

PSI, SLATER, RECORDS_PER_PAIR, STEPS = 20.0, 0.1, 20, 10_000_000


def compare(n_states: int, n_actions: int, seed: int) -> str:
    cmdp = instances.garnet(n_states, n_actions, n_utilities=2, gamma=0.9, slater=SLATER, rng=seed)
    n_pairs = n_states * n_actions
    log = cmdp.sample(RECORDS_PER_PAIR * n_pairs, np.full((n_states, n_actions), 1 / n_pairs), rng=seed)
    best = cmdp.solve().reward
    began = time.perf_counter()
    solution = exact.plug_in(log, cmdp.gamma, cmdp.rho0).solve()
    lp_seconds = time.perf_counter() - began
    settings = Settings.practical(n_states, n_actions, 2, gamma=cmdp.gamma, slater=SLATER, psi=PSI, T=STEPS, kappa=0.1)
    began = time.perf_counter()
    result = learn(log, settings, rho0=cmdp.rho0, rng=seed)
    seconds = time.perf_counter() - began
    rows = [cmdp.evaluate(policy) for policy in (solution.policy, result.policy)]
    cells = "".join(f"{100 * row.reward / best:>9.1f}% {row.utilities.min():>8.3f}" for row in rows)
    return f"{n_pairs:>8,} {lp_seconds:>10.2f} {seconds:>10.2f} {cells}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare DPDL with the LP on the plug-in model.")
    parser.add_argument("--quick", action="store_true", help="small models only")
    sizes = ((20, 5), (100, 10)) if parser.parse_args().quick else ((20, 5), (100, 10), (1000, 10))
    print(f"{'pairs':>8} {'LP, s':>10} {'dpdl, s':>10} {'LP earns':>10} {'slack':>8} {'dpdl earns':>10} {'slack':>8}")
    for n_states, n_actions in sizes:
        print(compare(n_states, n_actions, seed=0), flush=True)


if __name__ == "__main__":
    main()
