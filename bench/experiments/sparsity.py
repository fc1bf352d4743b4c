"""Theorem 4.4 and Proposition 2.1: the gap grows like the root of N = min(S + I, S A), not of S A.

From one problem, S = 8 states, A = 4 actions and I = 1 utility, we go two ways at fixed T, psi, C*, slater and gamma:

* more actions at the same S, rarely tried imitations of the paying one that pay a little less: N stays, S A grows;
* more states at the same A, copies of all states: N grows with S A.

Theory says Gap <= constant sqrt(N psi iota/(slater^2 (1-gamma)^4 T)) with iota = log(psi S A I/delta). Accepted is: on
the first way an exponent in S A of at most 0.1 (a fifth of what sqrt(S A) would give; the root of iota alone gives
0.05), on the second one in N iota of 0.5 +- 0.1, and on both ways x_mean in X. The second constraint of X says that
there are no more than N effective pairs, (1-gamma)/psi sum x/mu_hat <= N, and keeps the noise of g_x from growing with
S A. Without it the imitations share the mass and the effective pairs grow like S A; the gap, most of which comes from
V, hardly shows that at these sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpdl import Dataset, exact

from .common import Known, Outcome, each, in_feasible_set, slope, table
from .machine import accuracy, descend, exact_log, machine

TITLE = "the gap grows with the root of min(S + I, S A), whatever S A"

PSI = 2.5  # C* = 24/11
SLATER = 2 / 3  # at least this in Pi(C*) of every problem below
LOSS = 1 / 64  # of an imitation: keeps it out of the optimal policy, so that C* does not depend on their number


@dataclass(frozen=True)
class Size:
    """A problem of either way, and its gaps."""

    known: Known
    log: Dataset
    value: float

    @classmethod
    def of(cls, n_imitations: int, n_copies: int) -> Size:
        share = np.full((2, n_imitations), 1 / 16 / n_imitations)
        cmdp, mu = machine(
            np.hstack([[[3 / 8, 1 / 8], [1 / 16, 5 / 16]], share]),
            fast=[1.0] + [1 - LOSS] * n_imitations,
            n_copies=n_copies,
        )
        known = Known.of(cmdp, mu)
        assert known.slater >= SLATER
        assert abs(known.concentrability - 24 / 11) < 1e-5
        log = exact_log(cmdp, mu, 128 * n_imitations * n_copies)
        value = exact.saddle_value(cmdp, mu, mu, PSI, 0.0, SLATER)
        return cls(replace(known, slater=SLATER), log, value)

    @property
    def n_pairs(self) -> int:
        return self.known.mu.size

    @property
    def sparsity(self) -> int:
        return self.known.problem(PSI).sparsity

    def run(self, n_steps: int, seed: int) -> tuple[float, float, bool]:
        """Gap, effective pairs, and whether x_mean lies in X."""
        known = self.known
        result = descend(known, self.log, PSI, n_steps, seed)
        objective = exact.penalised_objective(known.cmdp, result.x_mean, known.mu, known.mu, 0.0, SLATER)
        effective = (1 - known.cmdp.gamma) / PSI * (result.x_mean / known.mu).sum()
        return self.value - objective, float(effective), in_feasible_set(result)


def run(quick: bool) -> Outcome:
    n_steps, n_seeds = (5 * 10**5, 10) if quick else (4 * 10**6, 20)
    origin = Size.of(2, n_copies=4)
    actions = [origin, *(Size.of(m, n_copies=4) for m in ((32, 512) if quick else (16, 128, 1024)))]
    states = [origin, *(Size.of(2, n_copies=k) for k in (16, 64))]
    ways = {"more actions": actions, "more states": states}

    sizes = list({id(size): size for way in ways.values() for size in way}.values())
    tasks = [(size, seed) for size in sizes for seed in range(n_seeds)]
    found = each(lambda task: task[0].run(n_steps, task[1]), tasks)
    runs = {id(size): np.array(found[k * n_seeds : (k + 1) * n_seeds]) for k, size in enumerate(sizes)}
    gaps = {name: [float(runs[id(size)][:, 0].mean()) for size in way] for name, way in ways.items()}

    in_actions = slope([size.n_pairs for size in actions], gaps["more actions"])
    bounds = {name: [accuracy(size.known, PSI, n_steps) for size in way] for name, way in ways.items()}
    in_states = slope(np.square(bounds["more states"]), gaps["more states"])
    inside = all(run[:, 2].all() for run in runs.values())
    rows = [
        (
            name,
            size.known.cmdp.n_states,
            size.known.cmdp.n_actions,
            size.n_pairs,
            size.sparsity,
            runs[id(size)][:, 0].mean(),
            runs[id(size)][:, 0].std(),
            runs[id(size)][:, 1].max(),
        )
        for name, way in ways.items()
        for size in way
    ]

    def draw(axes: Any) -> None:
        for (name, way), colour in zip(ways.items(), ("C0", "C1"), strict=True):
            pairs, mean = [size.n_pairs for size in way], np.array(gaps[name])
            lowest, highest = (np.array([end(runs[id(s)][:, 0]) for s in way]) for end in (np.min, np.max))
            axes.fill_between(pairs, lowest, highest, color=colour, alpha=0.15, linewidth=0)
            of_N = " to ".join(str(N) for N in sorted({way[0].sparsity, way[-1].sparsity}))
            axes.plot(pairs, mean, "o-", color=colour, label=f"{name}, N = {of_N}: {n_seeds} seeds")
            shape = np.array(bounds[name]) / bounds[name][0] * mean[0]
            axes.plot(pairs, shape, ":", color=colour, label="like the root of N iota")
        pairs = np.array([size.n_pairs for size in actions])
        axes.plot(
            pairs, gaps["more actions"][0] * np.sqrt(pairs / pairs[0]), "k--", lw=0.8, label="like the root of S A"
        )
        axes.set(xscale="log", yscale="log", xlabel="pairs S A", ylabel=f"Gap(x_mean) after {n_steps:,} steps")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(lambda x, _: f"{x:.2g}" if f"{x:.1e}"[0] in "25" else "")
        axes.legend(frameon=False)

    return Outcome(
        "sparsity",
        TITLE,
        table(("way", "S", "A", "S A", "N", "gap", "std", "effective pairs"), rows),
        inside and in_actions <= 0.1 and 0.4 < in_states < 0.6,
        f"exponent {in_actions:.3f} in S A at fixed N, wanted <= 0.1; {in_states:.3f} in N, wanted 0.5 +- 0.1; "
        f"effective pairs within N in {'all' if inside else 'not all'} runs",
        draw,
    )
