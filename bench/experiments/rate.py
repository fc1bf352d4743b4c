"""Theorem 4.4: Gap(x_mean), computed exactly, falls like T^(-1/2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdl import learn

from .common import Outcome, each, exact_reference, in_feasible_set, slope, table, with_concentrability

TITLE = "the duality gap falls like the root of the number of steps"


def run(quick: bool) -> Outcome:
    known = with_concentrability(3.0, seed=0)
    psi = 1.2 * known.concentrability
    steps = [10**4, 10**5, 10**6] if quick else [10**4, 10**5, 10**6, 10**7]
    n_seeds = 6 if quick else 10

    def gap(task: tuple[int, int]) -> tuple[float, bool]:
        n_steps, seed = task
        log = known.cmdp.sample(n_steps, known.mu, rng=np.random.default_rng([seed, n_steps]))
        result = learn(
            log,
            gamma=known.cmdp.gamma,
            psi=psi,
            slater=known.slater,
            T=n_steps,
            floor=1e-6,
            order="once",
            reference=exact_reference(log, known.mu, 1e-6),
            rho0=known.cmdp.rho0,
            rng=seed,
        )
        return known.gap(result), in_feasible_set(result)

    found = {n: each(gap, [(n, seed) for seed in range(n_seeds)]) for n in steps}
    means = [float(np.mean([value for value, _ in found[n]])) for n in steps]
    spread = [float(np.std([value for value, _ in found[n]])) for n in steps]
    inside = all(feasible for runs in found.values() for _, feasible in runs)
    exponent = slope(steps, means)

    def draw(axes: Any) -> None:
        axes.errorbar(steps, means, spread, fmt="o-", label=f"Gap, {n_seeds} seeds: slope {exponent:.2f}")
        axes.plot(steps, means[-1] * np.sqrt(steps[-1] / np.array(steps)), "k:", label="slope -1/2")
        axes.set(xscale="log", yscale="log", xlabel="steps T", ylabel="Gap(x_mean)")
        axes.legend(frameon=False)

    return Outcome(
        "rate",
        TITLE,
        table(("T", "gap", "std"), zip(steps, means, spread, strict=True)),
        inside and -0.6 < exponent < -0.4,
        f"slope {exponent:.3f}, wanted -0.5 +- 0.1",
        draw,
    )
