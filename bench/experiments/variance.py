"""Proposition C.1: the stochastic gradients are unbiased, and as small as appendix C says.

Runs with psi above and below C* are halted at their start, middle and end. From each of these points the compiled core
takes one step for every sample (s0, s, a, s') that has a chance, and the change of V, log lam and log x reveals its
gradients. Weighted by their chances they must add up to the gradient of the Lagrangian, and their sizes and second
moments, hence exact, must obey the bounds of appendix C with its own constants. The norm of g_x carries an arbitrary
x' in X: the worst one is found by a linear program. The proposition speaks of feasible points, so that the points must
also lie in X, V and Lambda, or the statement would be about a run that does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from dpdl import Dataset, exact, learn, theory
from dpdl.data.reference import Reference
from dpdl.result import Point

from .common import Array, Known, Outcome, each, table, with_concentrability
from .reference import thinned

TITLE = "gradients are unbiased, and their moments bounded"
EPS = 0.1
#: psi over C*.
FACTORS = (0.5, 1.2)
#: Rates at which the measuring step moves V and log lam, and the largest move of log x: exact to some 1e-12.
RATE, MOVE = 2.0**-6, 2.0**-4
#: Largest error of a mean gradient, relative to what it is a mean of: rounding, and nothing else.
ROUNDING = 1e-9
NAMES = ("|g_V|", "E|g_V|^2", "|g_lam|", "E|g_lam|^2", "|g_x|^2", "E|g_x|^2")


class Gradients(NamedTuple):
    V: Array
    lam: Array
    x: Array


@dataclass(frozen=True)
class Game:
    """A problem, psi and mu_hat; the estimators at a point."""

    known: Known
    psi: float
    reference: Reference
    kappa: float

    def points(self, n_steps: int, seed: int) -> dict[str, Point]:
        """Where a run of so many steps is at its start, in the middle and at its end."""
        log = self.known.cmdp.sample(n_steps, self.known.mu, rng=np.random.default_rng([seed, n_steps]))
        found = {}
        for name, limit in (("start", 0), ("middle", n_steps // 2), ("end", n_steps)):
            point = learn(log, T=n_steps, step_limit=limit, rng=seed, **self._settings(self.psi)).last
            # Both are nothing next to the other pairs, but the digits of a logarithm of -10^5 would be missing later.
            found[name] = point._replace(log_x=np.maximum(point.log_x, -300))
        return found

    def _settings(self, psi: float) -> dict[str, Any]:
        return {
            "gamma": self.known.cmdp.gamma,
            "psi": psi,
            "slater": self.known.slater,
            "kappa": self.kappa,
            "floor": self.reference.floor,
            "order": "once",
            "reference": self.reference,
            "rho0": self.known.cmdp.rho0,
        }

    def feasible(self, point: Point) -> bool:
        """Whether the point lies in X x V x Lambda (equation (8))."""
        problem, mu_hat, x = self.known.problem(self.psi), self.reference.mu_hat, point.x
        gamma, slack = problem.gamma, 1 + 1e-9
        return bool(
            (x <= self.psi / (1 - gamma) * mu_hat * slack).all()
            and x.sum() <= theory.sum_bound(gamma) * slack
            and (x / mu_hat).sum() <= problem.sparsity * self.psi / (1 - gamma) * slack
            and abs(point.V).max() <= theory.radius_V(gamma, problem.slater) * slack
            and point.lam.sum() <= theory.radius_lam(problem.slater) * slack
        )

    def gradients(self, point: Point, s0: int, s: int, a: int, s_next: int) -> Gradients:
        """What one step of the core does from here with this sample, divided by the rates.

        The estimators know nothing of the feasible set: it is made so wide, and the step so short, that no projection
        interferes.
        """
        cmdp = self.known.cmdp
        problem = self.known.problem(self.psi)
        one = Dataset(
            [s], [a], [s_next], [cmdp.r[s, a]], [cmdp.u[:, s, a]], n_states=cmdp.n_states, n_actions=cmdp.n_actions
        )
        largest = 1 + 2 * abs(point.V).max() + (1 + (1 - cmdp.gamma) * self.kappa) * point.lam.sum()  # advantage
        rate_x = MOVE * self.reference.mu_hat[s, a] / largest
        wide = self._settings(2 * self.psi) | {"rho0": np.eye(cmdp.n_states)[s0]}
        result = learn(
            one,
            T=1,
            start=point,
            rng=0,
            eta=1.0,
            alpha_V=1 / RATE,
            alpha_lam=1 / RATE,
            alpha_x=1 / rate_x,
            radius_V=1e3 * theory.radius_V(problem.gamma, problem.slater),
            radius_lam=1e3 * theory.radius_lam(problem.slater),
            **wide,
        )
        assert result.diagnostics["case_1"] == 1
        assert result.diagnostics["capped"] == 0
        last = result.last
        return Gradients(
            (point.V - last.V) / RATE, (point.log_lam - last.log_lam) / RATE, (last.log_x - point.log_x) / rate_x
        )

    def measure(self, point: Point) -> tuple[float, Array]:
        """Return the bias of the mean gradients, relative to their mean absolute values, and what NAMES lists."""
        cmdp, mu, mu_hat = self.known.cmdp, self.known.mu, self.reference.mu_hat
        P = cmdp.P.toarray().reshape(*mu.shape, -1)
        mean, scale = (
            Gradients(np.zeros(cmdp.n_states), np.zeros(cmdp.n_utilities), np.zeros(mu.shape)) for _ in range(2)
        )
        size, moment, moment_x = np.zeros(3), np.zeros(2), np.zeros(mu.shape)
        cap = self.psi / (1 - cmdp.gamma) * mu_hat  # of x', whose largest entry makes |g_x| largest
        for s, a, s_next in np.argwhere(mu[:, :, None] * P > 0):
            for s0 in np.flatnonzero(cmdp.rho0):
                chance = cmdp.rho0[s0] * mu[s, a] * P[s, a, s_next]
                g = self.gradients(point, s0, s, a, s_next)
                for total, largest, part in zip(mean, scale, g, strict=True):
                    total += chance * part
                    largest += chance * abs(part)
                sizes = np.array([g.V @ g.V, abs(g.lam).max() ** 2, (cap * g.x**2).max()])
                size = np.maximum(size, sizes)
                moment += chance * sizes[:2]
                moment_x += chance * g.x**2
        exactly = exact.lagrangian_gradient(cmdp, point.V, point.lam, point.x, mu, mu_hat, self.kappa)
        bias = max(abs(a - b).max() / c.max() for a, b, c in zip(mean, exactly, scale, strict=True))
        worst = self._largest(moment_x)
        return float(bias), np.array([size[0] ** 0.5, moment[0], size[1] ** 0.5, moment[1], size[2], worst])

    def _largest(self, weights: Array) -> float:
        """Largest <x', weights> over X, in the unknowns y = (1-gamma) x'/(psi mu_hat)."""
        problem, mu_hat = self.known.problem(self.psi), self.reference.mu_hat.ravel()
        cost = weights.ravel() * mu_hat
        y = linprog(
            -cost / cost.max(),
            A_ub=[np.ones_like(mu_hat), mu_hat],
            b_ub=[problem.sparsity, 4 / self.psi],
            bounds=(0, 1),
        ).x
        return float(cost @ y) * self.psi / (1 - problem.gamma)

    @property
    def bounds(self) -> Array:
        """The constants of appendix C, in order of NAMES."""
        problem = self.known.problem(self.psi)
        w = self.psi / (1 - problem.gamma)
        advantage = 64 / (problem.slater * (1 - problem.gamma))
        return np.array(
            [
                1 + 2 * w,
                2 + 64 * w / (1 - problem.gamma),
                2 * w,
                32 * w / (1 - problem.gamma),
                w / self.reference.floor * advantage**2,
                2 * problem.sparsity * w * advantage**2,
            ]
        )


def game(known: Known, psi: float) -> Game:
    """Estimate mu_hat from rather few samples, so that W differs from one, and let the rest be that of Theorem 4.1."""
    problem = known.problem(psi)
    n_samples = 10**7
    counts = np.random.default_rng(1).multinomial(n_samples, known.mu.ravel())
    pairs = np.flatnonzero(counts)
    floor = theory.reference_floor(problem, EPS)
    reference = Reference(pairs, counts[pairs], n_samples, floor, *known.mu.shape)
    assert (known.mu <= 2 * reference.mu_hat).all()  # property (1) of Proposition 4.3, the premise
    return Game(known, psi, reference, theory.conservatism(problem, EPS))


def run(quick: bool) -> Outcome:
    known = with_concentrability(3.0, seed=1)
    known = thinned(known, FACTORS[1] * known.concentrability, EPS)
    n_steps = 2 * 10**5 if quick else 10**7
    seeds = range(1) if quick else range(4)
    rows, used, biases, feasible = [], [], [], True
    for factor in FACTORS:
        here = game(known, factor * known.concentrability)
        tasks = [(name, point) for seed in seeds for name, point in here.points(n_steps, seed).items()]
        found = each(lambda task, here=here: here.measure(task[1]), tasks)
        for (name, point), (bias, measured) in zip(tasks, found, strict=True):
            inside = here.feasible(point)
            shares = measured / here.bounds
            rows.append((f"{factor:g} C*", name, inside, bias, *shares))
            used.append(shares)
            biases.append(bias)
            feasible &= inside
    worst, bias = np.max(used, axis=0), max(biases)

    def draw(axes: Any) -> None:
        for k, factor in enumerate(FACTORS):
            part = used[k * len(used) // 2 : (k + 1) * len(used) // 2]
            for j, name in enumerate(("start", "middle", "end")):
                where = np.arange(len(NAMES)) + 0.13 * (3 * k + j - 2.5)
                tops = np.max(part[j::3], axis=0)
                axes.bar(where, tops, 0.11, color=f"C{k}", alpha=0.4 + 0.3 * j, label=f"psi = {factor:g} C*, {name}")
        axes.axhline(1, color="k", ls=":", label="bound of the appendix")
        axes.set(yscale="log", ylabel="measured / bound", xticks=range(len(NAMES)), xticklabels=NAMES)
        axes.set_ylim(top=100)
        axes.legend(frameon=False, fontsize=7, ncols=2, loc="upper center")

    return Outcome(
        "variance",
        TITLE,
        table(("psi", "point", "feasible", "bias", *NAMES), rows),
        bool(feasible and bias < ROUNDING and worst.max() <= 1),
        f"relative bias {bias:.1g}, wanted below {ROUNDING:g}; largest share of a bound {worst.max():.2g}; "
        f"points {'all' if feasible else 'not all'} feasible",
        draw,
    )
