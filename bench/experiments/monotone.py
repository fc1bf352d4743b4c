"""Lemma 6.1: j_0 rises up to C*, is flat from there on, and cannot stall on the way.

For psi < psi' <= C* the lemma says J* - j_0(psi') <= (C* - psi)/(psi' - psi) (j_0(psi') - j_0(psi)). Its proof gives
more, (C* - psi') in place of (C* - psi), because j_0 is concave.

Exactly, on random problems and on the one of the runs: j_0 by its linear program on a grid from 1 to 2 C* must increase
strictly up to C*, equal J* from there on, and obey the sharper inequality.

In runs, as the adaptive method uses it: J-hat, VERIFY's estimate on fresh transitions, must rise up to C* and be j_0 up
to O(eps) at every psi. Accepted is a distance of at most eps with c_o = 1 in the mean (Proposition G.1 has 400 eps),
and that J-hat obeys the lemma up to eps; and J_0(x_mean) <= j_0(psi) in every run, since x_mean lies in X. The fast
action comes in eight versions, so that below C* the second constraint of X binds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from dpdl import exact, verify

from .common import Array, Known, Outcome, each, table, with_concentrability
from .machine import accuracy, descend, exact_log, machine

TITLE = "the value of the game rises up to C* and is flat from there on"

#: Errors of the linear programs, relative to the largest value.
ROUNDING = 1e-7


def exact_values(known: Known, psis: Iterable[float]) -> Array:
    return np.array(
        [exact.saddle_value(known.cmdp, known.mu, known.mu.clip(1e-9), psi, 0.0, known.slater) for psi in psis]
    )


def sides(known: Known, psis: Array, values: Array) -> Array:
    """Rows (left side, right side, sharper right side) of the lemma's inequality for all pairs psi < psi' <= C*."""
    rows = []
    for (low, first), (high, second) in combinations(zip(psis, values, strict=True), 2):
        slope = (second - first) / (high - low)
        rows.append(
            (known.best - second, (known.concentrability - low) * slope, (known.concentrability - high) * slope)
        )
    return np.array(rows)


def obeys(known: Known) -> tuple[bool, float]:
    """Whether the lemma holds exactly, and the largest ratio of the two sides of its inequality."""
    below = np.linspace(1, known.concentrability * (1 - 1e-3), 9)
    rising = exact_values(known, below)
    flat = exact_values(known, known.concentrability * np.array([1 + 1e-6, 1.5, 2]))
    tolerance = ROUNDING * (1 + abs(rising).max())
    left, right, sharper = sides(known, below, rising).T
    shape = (np.diff(rising) > tolerance).all() and (abs(flat - known.best) < tolerance).all()
    return bool(shape and (left <= sharper * (1 + 1e-6) + tolerance).all()), float((left / right).max())


def run(quick: bool) -> Outcome:
    n_problems, n_seeds = (3, 4) if quick else (20, 16)
    n_steps = 2 * 10**5 if quick else 4 * 10**6
    cmdp, mu = machine(np.array([[40] + [5] * 8, [24] + [3] * 8]) / 128, fast=[1.0] * 8)
    log = exact_log(cmdp, mu, 1024)
    known = Known.of(cmdp, mu)
    exactly = each(obeys, [known, *(with_concentrability(3.0, seed) for seed in range(n_problems))])

    multiples = np.array([0.35, 0.5, 0.7, 0.85, 1.0, 1.4, 2.0])
    psis = multiples * known.concentrability * (1 + 1e-6)
    known = replace(known, slater=cmdp.slater(psi=psis[0], mu=mu))
    values = exact_values(known, psis)
    eps = np.array([accuracy(known, psi, n_steps) for psi in psis])
    fresh = cmdp.sample(10**5 if quick else 10**6, mu, rng=0)

    def estimates(task: tuple[float, int]) -> tuple[float, float]:
        result = descend(known, log, task[0], n_steps, task[1])
        objective = exact.penalised_objective(cmdp, result.x_mean, mu, mu, 0.0, known.slater)
        return verify(result, fresh, rho0=cmdp.rho0, eps=1.0).reward, objective

    found = np.array(each(estimates, [(psi, seed) for psi in psis for seed in range(n_seeds)]))
    reward, objective = found.reshape(len(psis), n_seeds, 2).transpose(2, 0, 1)
    estimate = reward.mean(axis=1)
    off = abs(estimate - values) / eps
    excess = float((objective - values[:, None]).max())
    below = multiples <= 1
    rising = bool((np.diff(estimate[below]) > 0).all())
    left, right, _ = sides(known, psis[below], estimate[below]).T
    allowed = np.array([high for _, high in combinations(eps[below], 2)])
    seen = rising and bool((left <= right + allowed).all())
    holds = all(holds for holds, _ in exactly) and seen and bool(off.max() <= 1) and excess <= 1e-6

    def draw(axes: Any) -> None:
        grid = np.linspace(0.3, 2, 60)
        axes.plot(grid, exact_values(known, grid * known.concentrability), "k-", lw=1, label="j_0, exact")
        for runs, colour, name in ((reward, "C0", "J-hat by VERIFY"), (objective, "C1", "J_0(x_mean)")):
            axes.fill_between(multiples, runs.min(axis=1), runs.max(axis=1), color=colour, alpha=0.2, linewidth=0)
            axes.plot(multiples, runs.mean(axis=1), "o", color=colour, label=f"{name}, {n_seeds} seeds")
        axes.axvline(1, color="0.6", lw=0.8)
        axes.set(xlabel="psi / C*", ylabel=f"value after {n_steps:,} steps")
        axes.legend(frameon=False)

    rows = zip(
        multiples,
        values,
        estimate,
        reward.std(axis=1),
        eps,
        objective.mean(axis=1),
        objective.max(axis=1),
        strict=True,
    )
    return Outcome(
        "monotone",
        TITLE,
        table(("psi/C*", "j_0", "J-hat", "std", "eps", "J_0(x_mean)", "largest"), rows),
        holds,
        f"exact on {sum(holds for holds, _ in exactly)} of {len(exactly)} problems, left side at most "
        f"{max(worst for _, worst in exactly):.2f} of the right; J-hat {'obeys' if seen else 'breaks'} the lemma, "
        f"off by at most {off.max():.2f} eps, wanted 1; largest J_0(x_mean) - j_0 {excess:.3g}, wanted <= 0",
        draw,
    )
