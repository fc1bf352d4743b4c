"""Where the line runs between DPDL and an LP on the plug-in model: ``python bench/line.py [--quick]``.

On random sparse models with two constraints and twenty records a pair: seconds for the exact LP on the counts, seconds
for 10^7 steps of DPDL on the same log, and on the true model what each policy earns, relative to the best safe one, and
its least slack, negative if it breaks a constraint.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from dpdl import exact, instances, learn, theory

PSI, SLATER, RECORDS_PER_PAIR, STEPS = 20.0, 0.1, 20, 10_000_000


def compare(n_states: int, n_actions: int, seed: int) -> str:
    cmdp = instances.garnet(n_states, n_actions, n_utilities=2, gamma=0.9, slater=SLATER, rng=seed)
    n_pairs = n_states * n_actions
    log = cmdp.sample(RECORDS_PER_PAIR * n_pairs, np.full((n_states, n_actions), 1 / n_pairs), rng=seed)
    best = cmdp.solve().reward
    began = time.perf_counter()
    solution = exact.plug_in(log, cmdp.gamma, cmdp.rho0).solve()
    lp_seconds = time.perf_counter() - began
    sizes = theory.Problem(n_states, n_actions, 2, cmdp.gamma, SLATER, PSI)
    began = time.perf_counter()
    result = learn(
        log,
        gamma=cmdp.gamma,
        psi=PSI,
        slater=SLATER,
        T=STEPS,
        kappa=0.1,
        alpha_V=50 * theory.scale_V(sizes),
        alpha_lam=0.3 * theory.scale_lam(sizes),
        alpha_x=5e-4 * theory.scale_x(sizes),
        radius_V=1.5 / (1 - cmdp.gamma),
        rho0=cmdp.rho0,
        rng=seed,
    )
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
