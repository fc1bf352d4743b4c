"""Proposition 4.3: the estimate mu_hat has its three properties at N_e samples.

(1) mu <= 2 mu_hat and mu_hat >= floor; (2) W^-1 nu lies in X for every policy in Pi(psi); (3) ||Wx - x||_1 is at most
slater (1-gamma) eps_e for every x in X. "Every" is decided by two linear programs. Counts are multinomial, so that N_e,
some 10^12, is drawn in one call. The proposition allows a share delta/3 of failures; the verdict is a binomial test of
that. The smaller numbers of samples only show how generous N_e is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.stats import binom

from dpdl import theory
from dpdl.data.reference import Reference

from .common import Array, Known, Outcome, each, table, with_concentrability

TITLE = "with N_e samples mu_hat is close enough to mu"
EPS, DELTA = 0.1, 0.05
#: A truth of delta/3 would be rejected with this probability.
LEVEL = 1e-3


def thinned(known: Known, psi: float, eps: float) -> Known:
    """The same problem with data that lies where the floor matters: at, around and below it, and nowhere.

    Only pairs that the optimal policy does not need are thinned, for the benefit of another one, so that C* stays.
    """
    floor = theory.reference_floor(known.problem(psi), eps)
    mu = known.mu.ravel().copy()
    spare = np.flatnonzero(known.cmdp.solve().occupancy.ravel() < 1e-9)
    mu[spare[:6]] = np.array([0, 1e-10, 0.1, 0.5, 1.0, 2.0]) * floor
    mu[spare[-1]] += 1 - mu.sum()
    return Known.of(known.cmdp, mu.reshape(known.mu.shape))


def excess(known: Known, problem: theory.Problem, reference: Reference) -> tuple[float, float, float]:
    """How much of what each property allows is used; above one it fails.

    The programs are in the unknowns y = (1-gamma) x/(psi mu_hat), in which X reads 0 <= y <= 1, sum y <= N and
    <mu_hat, y> <= 4/psi. For x = W^-1 nu they are (1-gamma) nu/(psi mu), and D(psi) reads like the first two of these.
    """
    mu, mu_hat, psi, gamma = known.mu.ravel(), reference.mu_hat.ravel(), problem.psi, problem.gamma
    with np.errstate(divide="ignore", invalid="ignore"):  # 0/0, where there is neither data nor a floor, is no failure
        first = float(np.nanmax(mu / mu_hat)) / 2 if mu_hat.min() >= reference.floor else np.inf
    # (2) Hence only sum x <= 4/(1-gamma) is in question. An occupancy has flow A' nu = rho0 and no mass without data.
    states = np.repeat(np.eye(known.cmdp.n_states), known.cmdp.n_actions, axis=0)
    flow = (states - gamma * known.cmdp.P.toarray()).T * (psi * mu)
    second = _largest(
        mu_hat * (mu > 0),
        A_ub=np.ones((1, mu.size)),
        b_ub=[problem.sparsity],
        A_eq=flow,
        b_eq=(1 - gamma) * known.cmdp.rho0,
    )
    # (3) ||Wx - x||_1 = psi/(1-gamma) <y, |mu - mu_hat|>
    third = _largest(abs(mu - mu_hat), A_ub=[np.ones_like(mu), mu_hat], b_ub=[problem.sparsity, 4 / psi])
    allowed = problem.slater * (1 - gamma) * theory.reference_accuracy(EPS)
    return first, psi * second / 4, psi / (1 - gamma) * third / allowed


def _largest(value: Array, **constraints: Any) -> float:
    """Largest <value, y> over 0 <= y <= 1 and the constraints, as `linprog` takes them."""
    return float(value @ linprog(-value / value.max(), bounds=(0, 1), **constraints).x)


def run(quick: bool) -> Outcome:
    known = with_concentrability(6.0, seed=1)  # psi above 4, without which (2) cannot fail
    psi = 1.2 * known.concentrability
    known = thinned(known, psi, EPS)
    problem = known.problem(psi)
    floor = theory.reference_floor(problem, EPS)
    needed = theory.reference_samples(problem, EPS, DELTA)
    powers = (0, 2, 3, 4, 6) if quick else range(11)
    n_seeds = 30 if quick else 200

    def sample(task: tuple[int, int]) -> tuple[float, float, float]:
        n_samples, seed = task
        counts = np.random.default_rng([seed, n_samples]).multinomial(n_samples, known.mu.ravel())
        pairs = np.flatnonzero(counts)
        return excess(known, problem, Reference(pairs, counts[pairs], n_samples, floor, *known.mu.shape))

    sizes = [max(1, needed // 10**k) for k in powers]
    found = [np.array(each(sample, [(n, seed) for seed in range(n_seeds)])) for n in sizes]
    failing = [(used > 1).mean(axis=0) for used in found]
    any_failing = [float((used > 1).any(axis=1).mean()) for used in found]
    failures = round(any_failing[0] * n_seeds)
    holds = bool(failures <= binom.ppf(1 - LEVEL, n_seeds, DELTA / 3))
    first = next((10**k for k, share in zip(powers, any_failing, strict=True) if share > DELTA / 3), np.inf)

    def draw(axes: Any) -> None:
        for k, name in enumerate(("(1) mu <= 2 mu_hat", "(2) W^-1 nu in X", "(3) ||Wx - x||_1")):
            low, middle, high = np.quantile([used[:, k] for used in found], [0.05, 0.5, 0.95], axis=1)
            axes.plot(sizes, middle, "o-", label=name)
            axes.fill_between(sizes, low, high, alpha=0.2)
        axes.axhline(1, color="k", ls=":", label="allowed")
        axes.axvline(needed, color="k", ls="--", lw=0.8, label="N_e of the proposition")
        axes.set(xscale="log", yscale="log", xlabel="samples", ylabel="share used of what is allowed (5-95%)")
        axes.legend(frameon=False, fontsize=8)

    rows = [
        (f"1e-{k}", float(n), *np.median(used, axis=0), *shares, share)
        for k, n, used, shares, share in zip(powers, sizes, found, failing, any_failing, strict=True)
    ]
    head = ("fraction", "samples", "used (1)", "used (2)", "used (3)", "fail (1)", "fail (2)", "fail (3)", "fail any")
    return Outcome(
        "reference",
        TITLE,
        table(head, rows),
        holds,
        f"{failures} of {n_seeds} fail at N_e = {needed:.2g}, allowed delta/3 = {DELTA / 3:.3f}; "
        f"more than that fail from N_e/{first:g} on",
        draw,
    )
