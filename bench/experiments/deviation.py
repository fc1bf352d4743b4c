"""Remark 4.2 and Theorem 4.1: what a psi below C* costs, and what one above it does.

The fast action comes in four interchangeable versions with a sixteenth of the data each, so that below C* the second
constraint of X binds: speed is there, but spread over more pairs than N. Theory says, with kappa = 0 and mu_hat = mu:

* x_mean lies in X, so that J_0(x_mean) <= j_0(psi) in every run: no run earns more than psi allows;
* the policy is sub-optimal by eps_approx(psi) = J* - max J over safe policies in Pi(psi), up to O(eps), where eps is
  what T steps buy; eps_approx is positive below C* and zero from C* on. Accepted is a distance of at most eps with
  c_o = 1, in a share 1 - delta of the runs;
* above C* only the statistical term is left, and it grows slowly: Gap = O(sqrt(psi iota)). Accepted is an exponent in
  psi iota below 3/4, nearer to 1/2 than to the 1 of the largest weight x/mu_hat, which grows like psi.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpdl import exact

from .common import Known, Outcome, each, slope, table
from .machine import DELTA, accuracy, descend, exact_log, machine

TITLE = "below C* the error is that of the policy class, above it only the noise grows"

BELOW = (0.25, 0.35, 0.5, 0.7, 0.85)
ABOVE = (1.0, 1.5, 2.0, 4.0, 8.0)


def run(quick: bool) -> Outcome:
    n_steps = 4 * 10**5 if quick else 4 * 10**6
    n_seeds = 6 if quick else 16
    cmdp, mu = machine(np.array([[60, 5, 5, 5, 5], [36, 3, 3, 3, 3]]) / 128, fast=[1.0] * 4)
    log = exact_log(cmdp, mu, 1024)
    known = Known.of(cmdp, mu)
    multiples = np.array(BELOW + ABOVE)
    psis = multiples * known.concentrability * (1 + 1e-6)
    # Slater's condition has to hold in the smallest class; the constant then serves them all.
    known = replace(known, slater=cmdp.slater(psi=psis[0], mu=mu))
    values = np.array([exact.saddle_value(cmdp, mu, mu, psi, 0.0, known.slater) for psi in psis])
    approximation = np.array([known.best - cmdp.solve(psi=psi, mu=mu).reward for psi in psis])
    eps = np.array([accuracy(known, psi, n_steps) for psi in psis])

    def errors(task: tuple[float, int]) -> tuple[float, float, float]:
        """J* - J(policy), J_0(x_mean), and the policy's utility."""
        result = descend(known, log, task[0], n_steps, task[1])
        value = cmdp.evaluate(result.policy)
        objective = exact.penalised_objective(cmdp, result.x_mean, mu, mu, 0.0, known.slater)
        return known.best - value.reward, objective, float(value.utilities[0])

    found = np.array(each(errors, [(psi, seed) for psi in psis for seed in range(n_seeds)]))
    error, objective, utility = found.reshape(len(psis), n_seeds, 3).transpose(2, 0, 1)
    gap = values[:, None] - objective
    allowed = bool((gap >= -1e-6).all())
    close = float((abs(error - approximation[:, None]) <= eps[:, None]).mean())
    above = multiples >= 1
    growth = slope(np.square(eps[above]), gap[above].mean(axis=1).clip(1e-9))
    worst = (abs(error - approximation[:, None]) / eps[:, None]).max()

    def draw(axes: Any) -> None:
        axes.plot(multiples, approximation, "k-", lw=1, label="eps_approx, exact")
        axes.plot(multiples, approximation + eps, "k:", lw=1, label="eps_approx + eps")
        for runs, colour, name in ((error, "C0", "J* - J(policy)"), (gap, "C1", "Gap(x_mean)")):
            axes.fill_between(multiples, runs.min(axis=1), runs.max(axis=1), color=colour, alpha=0.2, linewidth=0)
            axes.plot(multiples, runs.mean(axis=1), "o-", color=colour, label=f"{name}, {n_seeds} seeds")
        shape = eps * (gap.mean(axis=1) / eps).mean()
        axes.plot(multiples, shape, ":", color="C1", label="like the root of psi iota")
        axes.axvline(1, color="0.6", lw=0.8)
        axes.set(xscale="log", xlabel="psi / C*", ylabel=f"error after {n_steps:,} steps")
        axes.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["1/4", "1/2", "1", "2", "4", "8"], minor=False)
        axes.minorticks_off()
        axes.legend(frameon=True, framealpha=1, edgecolor="none")  # over the line at C*

    rows = zip(
        multiples,
        approximation,
        known.best - values,
        error.mean(axis=1),
        error.std(axis=1),
        eps,
        gap.mean(axis=1),
        gap.min(axis=1),
        utility.min(axis=1),
        strict=True,
    )
    head = ("psi/C*", "eps_approx", "J*-j(psi)", "error", "std", "eps", "gap", "least gap", "least utility")
    return Outcome(
        "deviation",
        TITLE,
        table(head, rows),
        allowed and close >= 1 - DELTA and growth < 0.75,
        f"{close:.0%} of the errors within eps of eps_approx, wanted {1 - DELTA:.0%}, the worst {worst:.2f} eps off; "
        f"least gap {gap.min():.3g}, wanted >= 0; exponent above C* {growth:.2f}, wanted < 0.75",
        draw,
    )
