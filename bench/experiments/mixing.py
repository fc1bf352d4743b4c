"""Theorem 4.6: one trajectory serves in place of independent transitions, at a price that grows with t_mix.

Two clusters of states that the chain changes between with a small probability: the smaller, the longer it takes to mix,
while the problem and the stationary distribution hardly change. For each chain the exact gap after T steps along one
trajectory and after T independent transitions of the same distribution, each with eta = 1/sqrt(T) and with the
eta = 1/sqrt(t_mix T) that appendix H.2 ends in. mu_hat is the stationary distribution itself throughout.

The price of the trajectory is the ratio of the two gaps at the same eta = 1/sqrt(T); comparing different etas would
mostly show what the smaller step costs, which has nothing to do with the data and is printed beside it.

Accepted: the gap falls with a slope below -1/4 in every column (the theorem has -1/2, up to logarithms, once T is large
against t_mix^2), and the price at the largest T is larger at t_mix of about 50 than at 2, by three standard errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdl import CMDP, learn, mixing
from markov import pair_kernel

from .common import Known, Outcome, each, exact_reference, in_feasible_set, slope, table

TITLE = "the price of one trajectory grows with its mixing time"
CHANGES = (0.3, 0.035, 0.0072)  # mixing times of 2, 10 and about 50
N, ACTIONS, GAMMA = 3, 2, 0.5
#: Where the data comes from, and whether eta is the smaller one.
COLUMNS = (("independent", False), ("trajectory", False), ("independent", True), ("trajectory", True))


def clusters(change: float) -> CMDP:
    """Two clusters of three states; whatever the action, the cluster changes with the given probability."""
    rng = np.random.default_rng(1)
    P = np.zeros((2 * N, ACTIONS, 2 * N))
    for own, other in ((slice(0, N), slice(N, 2 * N)), (slice(N, 2 * N), slice(0, N))):
        P[own, :, own] = (1 - change) * rng.dirichlet(np.ones(N), size=(N, ACTIONS))
        P[own, :, other] = change / N
    reward = rng.random((2 * N, ACTIONS))
    utility = 0.4 * rng.random((2 * N, ACTIONS)) + 0.2 - 0.6 * reward
    rho0 = np.full(2 * N, 1 / (2 * N))
    # Shifted so that the best worst utility is 0.2 in every chain.
    return CMDP(P, reward, utility[None] + 0.2 - CMDP(P, reward, utility[None], GAMMA, rho0).slater(), GAMMA, rho0)


class Chain:
    """One chain: what is known of it, and the gaps of runs on its data."""

    def __init__(self, change: float) -> None:
        cmdp = clusters(change)
        self.behaviour = np.full(cmdp.r.shape, 1 / ACTIONS)
        kernel = pair_kernel(cmdp, self.behaviour)
        self.mixing_time = mixing.mixing_time(kernel)
        self.known = Known.of(cmdp, mixing.stationary(kernel).reshape(cmdp.r.shape))

    def gap(self, task: tuple[tuple[str, bool], int, int]) -> float:
        (kind, smaller), n_steps, seed = task
        rng, known = np.random.default_rng([seed, n_steps]), self.known
        if kind == "trajectory":
            log = known.cmdp.rollout(n_steps, self.behaviour, rng=rng)
        else:
            log = known.cmdp.sample(n_steps, known.mu, rng=rng)
        result = learn(
            log,
            gamma=GAMMA,
            psi=1.2 * known.concentrability,
            slater=known.slater,
            T=n_steps,
            floor=1e-6,
            order="once",
            mixing_time=self.mixing_time if smaller else None,
            short_steps=smaller,
            reference=exact_reference(log, known.mu, 1e-6),
            rho0=known.cmdp.rho0,
            rng=seed,
        )
        return known.gap(result) if in_feasible_set(result) else np.nan

    def gaps(self, steps: list[int], n_seeds: int) -> np.ndarray:
        """Gaps by column, number of steps and seed."""
        tasks = [(column, n, seed) for column in COLUMNS for n in steps for seed in range(n_seeds)]
        return np.array(each(self.gap, tasks)).reshape(len(COLUMNS), len(steps), n_seeds)


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """Ratio of two means over independent seeds, and its standard error."""
    means = above.mean(), below.mean()
    relative = [values.std(ddof=1) / np.sqrt(values.size) / values.mean() for values in (above, below)]
    return float(means[0] / means[1]), float(means[0] / means[1] * np.hypot(*relative))


def run(quick: bool) -> Outcome:
    steps = [10**4, 10**5] if quick else [10**4, 10**5, 10**6]
    n_seeds = 40 if quick else 60
    chains = [Chain(change) for change in CHANGES]
    gaps = [chain.gaps(steps, n_seeds) for chain in chains]
    prices = [ratio(found[1, -1], found[0, -1]) for found in gaps]
    steps_cost = [ratio(found[2, -1], found[0, -1])[0] for found in gaps]
    rows, slopes = [], []
    for chain, found in zip(chains, gaps, strict=True):
        for (kind, smaller), means in zip(COLUMNS, found.mean(axis=2), strict=True):
            slopes.append(slope(steps, means))
            eta = "1/sqrt(t T)" if smaller else "1/sqrt(T)"
            rows.append((chain.mixing_time, kind, eta, *map(float, means), slopes[-1]))
    growth = prices[-1][0] - prices[0][0]
    error = float(np.hypot(prices[-1][1], prices[0][1]))

    def draw(axes: Any) -> None:
        for colour, chain, found in zip(("tab:blue", "tab:orange", "tab:red"), chains, gaps, strict=True):
            means = found.mean(axis=2)
            deviation = found.std(axis=2, ddof=1) / np.sqrt(n_seeds)
            label = f"t_mix = {chain.mixing_time:g}: one trajectory"
            axes.errorbar(steps, means[1], deviation[1], fmt="o-", color=colour, label=label)
            axes.errorbar(steps, means[0], deviation[0], fmt="s:", color=colour, mfc="none", label="independent")
            axes.plot(steps, means[3], "o--", color=colour, alpha=0.35, label="one trajectory, smaller step")
        axes.set(xscale="log", yscale="log", xlabel="steps T", ylabel=f"Gap(x_mean), mean of {n_seeds} seeds")
        axes.legend(frameon=False, fontsize=7)

    finite = bool(np.isfinite(gaps).all())  # NaN marks a run that left X
    described = ", ".join(
        f"{price:.2f} +- {deviation:.2f} at t_mix = {chain.mixing_time:g}"
        for (price, deviation), chain in zip(prices, chains, strict=True)
    )
    return Outcome(
        "mixing",
        TITLE,
        table(("t_mix", "data", "eta", *(f"T = {n}" for n in steps), "slope"), rows),
        bool(finite and max(slopes) < -0.25 and growth > 3 * error),
        f"gap on a trajectory over that on independent data at the same step: {described}; the smaller step by itself "
        "costs " + ", ".join(f"{cost:.1f}" for cost in steps_cost) + f"; slopes {min(slopes):.2f} to {max(slopes):.2f}",
        draw,
    )
