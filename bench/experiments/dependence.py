"""Theorems 4.4 and 4.6: how Gap(x_mean) depends on T, psi, N, 1/(1-gamma), 1/slater and t_mix.

The theorems say Gap <= constant eps with eps = sqrt(N psi iota/(slater^2 (1-gamma)^4 T)), iota = log(psi S A I/delta),
on independent transitions, and t_mix times that, up to logarithms, on one trajectory. Everything but one quantity is
held fixed: a park of machines (module `machine`; their number changes N), psi and slater as given to the method, always
with psi >= C* and slater at most the Slater constant of Pi(psi); and the chains of `mixing`. Every step reads a fresh
transition, mu_hat is mu, and the gap is computed exactly.

A theorem bounds from above: exponents may be smaller. And a power law through a few points sees the logarithms too, so
that the exponent to compare with is that of eps over the same points. Accepted is an exponent that exceeds it by at
most 0.15, and every x_mean in X. On the trajectories the bound says t_mix, and its closing remark, at a smaller step,
the root of t_mix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpdl import exact, learn

from .common import Known, Outcome, each, exact_reference, in_feasible_set, slope, table
from .machine import accuracy, machine
from .mixing import Chain

TITLE = "how the gap depends on what the theorem names"
TOLERANCE = 0.15
FLOOR = 1e-6  # below every mu

#: Data of one machine: in order and worn; care, speed and two imitations of it that pay a little less.
DATA = np.array([[24, 8, 2, 2], [4, 20, 2, 2]]) / 64
FAST = (1.0, 1 - 1 / 64, 1 - 1 / 64)


def park(n_copies: int = 4, gamma: float = 0.5) -> Known:
    return Known.of(*machine(DATA, FAST, n_copies=n_copies, gamma=gamma))


@dataclass(frozen=True)
class Setting:
    """A problem with the constants that the method is given."""

    known: Known
    psi: float
    n_steps: int

    @classmethod
    def of(cls, known: Known, psi: float, slater: float, n_steps: int) -> Setting:
        assert psi >= known.concentrability
        assert slater <= known.cmdp.slater(psi=psi, mu=known.mu)
        return cls(replace(known, slater=slater), psi, n_steps)

    @property
    def eps(self) -> float:
        return accuracy(self.known, self.psi, self.n_steps)

    def gaps(self, n_seeds: int) -> tuple[list[float], bool]:
        """Gap of every seed, and whether every x_mean lies in X."""
        cmdp, mu, slater = self.known.cmdp, self.known.mu, self.known.slater

        def run(seed: int) -> tuple[float, bool]:
            log = cmdp.sample(self.n_steps, mu, rng=np.random.default_rng([seed, self.n_steps]))
            result = learn(
                log,
                gamma=cmdp.gamma,
                psi=self.psi,
                slater=slater,
                T=self.n_steps,
                floor=FLOOR,
                order="once",
                reference=exact_reference(log, mu, FLOOR),
                rho0=cmdp.rho0,
                rng=seed,
            )
            mu_hat = result.reference.mu_hat
            return exact.penalised_objective(cmdp, result.x_mean, mu, mu_hat, 0.0, slater), in_feasible_set(result)

        best = exact.saddle_value(cmdp, mu, mu, self.psi, 0.0, slater)
        found = each(run, range(n_seeds))
        return [best - value for value, _ in found], all(inside for _, inside in found)


@dataclass(frozen=True)
class Panel:
    """Gaps along one quantity."""

    name: str
    exponent: str
    values: Sequence[float]
    gaps: np.ndarray  # (values, seeds)
    bounds: np.ndarray
    inside: bool

    @property
    def fitted(self) -> float:
        return slope(self.values, self.gaps.mean(axis=1))

    @property
    def allowed(self) -> float:
        return slope(self.values, self.bounds)

    @property
    def holds(self) -> bool:
        return self.inside and self.fitted <= self.allowed + TOLERANCE

    @property
    def row(self) -> tuple[object, ...]:
        means = "  ".join(f"{value:.3g}" for value in self.gaps.mean(axis=1))
        values = "  ".join(f"{value:g}" for value in self.values)
        return self.name, self.exponent, self.allowed, self.fitted, values, means

    def draw(self, axes: Any) -> None:
        means, error = self.gaps.mean(axis=1), self.gaps.std(axis=1) / np.sqrt(self.gaps.shape[1])
        axes.errorbar(self.values, means, error, fmt="o-", label=f"Gap(x_mean): {self.fitted:.2f}")
        scale = np.exp(np.log(means / self.bounds).mean())
        axes.plot(self.values, scale * self.bounds, "k:", label=f"the bound's shape: {self.allowed:.2f}")
        axes.set(xscale="log", yscale="log", xlabel=self.name)
        if max(self.values) < 1000:
            axes.set_xticks(self.values, [f"{value:g}" for value in self.values])
            axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.set_title(f"theorem: {self.exponent}", fontsize=9)
        axes.legend(frameon=False, fontsize=8, title="exponent", title_fontsize=8)


def along(
    name: str, exponent: str, values: Sequence[float], setting_at: Callable[[Any], Setting], n_seeds: int
) -> Panel:
    settings = [setting_at(value) for value in values]
    found = [setting.gaps(n_seeds) for setting in settings]
    bounds = np.array([setting.eps for setting in settings])
    return Panel(name, exponent, values, np.array([gaps for gaps, _ in found]), bounds, all(ok for _, ok in found))


def run(quick: bool) -> Outcome:
    n_steps, n_seeds = (2 * 10**5, 4) if quick else (10**6, 10)
    steps = [10**4, 10**5, 4 * 10**5] if quick else [10**4, 10**5, 10**6, 10**7]
    known = park()
    panels = [
        along("T", "T^(-1/2)", steps, lambda T: Setting.of(known, 2.5, 0.6, T), n_seeds),
        along("psi", "psi^(1/2)", [2.5, 5, 10, 20, 40, 80], lambda psi: Setting.of(known, psi, 0.6, n_steps), n_seeds),
        along(
            "N = min(S + I, S A)",
            "N^(1/2)",
            [9, 33, 129],
            lambda n: Setting.of(park((n - 1) // 2), 2.5, 0.6, n_steps),
            n_seeds,
        ),
        along(
            "1/(1 - gamma)",
            "(1/(1 - gamma))^2",
            [2, 4, 8] if quick else [2, 4, 8, 16],
            lambda horizon: Setting.of(park(gamma=1 - 1 / horizon), 2.5, 0.6, 4 * n_steps),  # these begin far off
            n_seeds,
        ),
        along("1/slater", "1/slater", [2, 4, 8, 16, 32], lambda x: Setting.of(known, 2.5, 1 / x, n_steps), n_seeds),
        trajectories(n_steps // 2, 4 * n_seeds),
    ]

    def draw(axes: Any) -> None:
        for panel, place in zip(panels, np.ravel(axes), strict=True):
            panel.draw(place)

    described = ", ".join(f"{panel.name} {panel.fitted:.2f} (bound {panel.allowed:.2f})" for panel in panels)
    return Outcome(
        "dependence",
        TITLE,
        table(("quantity", "theorem", "bound here", "fitted", "values", "gaps"), (panel.row for panel in panels)),
        all(panel.holds for panel in panels),
        f"exponents: {described}; wanted at most {TOLERANCE:g} above the bound's",
        draw,
        shape=(2, 3),
    )


def trajectories(n_steps: int, n_seeds: int) -> Panel:
    """Gaps on one trajectory of chains that mix ever more slowly, at the theorem's step 1/sqrt(T)."""
    chains = [Chain(change) for change in (0.3, 0.1, 0.035, 0.015, 0.0072)]
    gaps = [each(chain.gap, [(("trajectory", False), n_steps, seed) for seed in range(n_seeds)]) for chain in chains]
    times = [float(chain.mixing_time) for chain in chains]
    inside = bool(np.isfinite(gaps).all())  # NaN marks a run that left X
    return Panel("t_mix", "t_mix", times, np.array(gaps), np.array(times), inside)
