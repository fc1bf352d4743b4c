"""Theorem algB-thm-markov: one trajectory serves as well as independent transitions, at a price that grows with t_mix.

Two clusters of states that the chain changes between with a small probability: the smaller, the longer it takes to mix,
while the problem and the stationary distribution hardly change. For each chain the exact gap after T steps along one
trajectory, with eta = 1/sqrt(t_mix T), against that after T independent transitions of the same distribution, with
eta = 1/sqrt(T). mu_hat is the stationary distribution itself in both.

Accepted: both gaps fall with a slope below -1/4 for every chain (the theorem has -1/2, up to logarithms, once T is
large against t_mix^2), and the ratio of the two at the largest T grows from chain to chain and exceeds 1.5 at the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdl import CMDP, learn, mixing

from .common import Known, Outcome, each, exact_reference, in_feasible_set, slope, table

TITLE = "the price of one trajectory grows with its mixing time"
CHANGES = (0.3, 0.035, 0.0072)  # mixing times of 2, 10 and about 50
N, ACTIONS, GAMMA = 3, 2, 0.5


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


def run(quick: bool) -> Outcome:
    steps = [10**4, 10**5, 4 * 10**5] if quick else [10**4, 10**5, 10**6]
    n_seeds = 10 if quick else 24
    behaviour = np.full((2 * N, ACTIONS), 1 / ACTIONS)
    rows, curves, ratios, slopes = [], {}, [], []
    inside = True
    for change in CHANGES:
        cmdp = clusters(change)
        kernel = mixing.pair_kernel(cmdp, behaviour)
        t_mix = mixing.mixing_time(kernel)
        known = Known.of(cmdp, mixing.stationary(kernel).reshape(cmdp.r.shape))
        psi = 1.2 * known.concentrability

        def gap(task: tuple[str, int, int], known: Known = known, psi: float = psi, t_mix: float = t_mix) -> Any:
            kind, n_steps, seed = task
            rng = np.random.default_rng([seed, n_steps])
            if kind == "trajectory":
                log = known.cmdp.rollout(n_steps, behaviour, rng=rng)
            else:
                log = known.cmdp.sample(n_steps, known.mu, rng=rng)
            result = learn(
                log,
                gamma=GAMMA,
                psi=psi,
                slater=known.slater,
                T=n_steps,
                floor=1e-6,
                order="trajectory",
                mixing_time=t_mix if kind == "trajectory" else None,
                reference=exact_reference(log, known.mu, 1e-6),
                rho0=known.cmdp.rho0,
                rng=seed,
                check_slater=False,
            )
            return known.gap(result), in_feasible_set(result)

        means = {}
        for kind in ("independent", "trajectory"):
            found = [each(gap, [(kind, n, seed) for seed in range(n_seeds)]) for n in steps]
            means[kind] = [float(np.mean([value for value, _ in runs])) for runs in found]
            inside = inside and all(feasible for runs in found for _, feasible in runs)
            slopes.append(slope(steps, means[kind]))
        ratios.append(means["trajectory"][-1] / means["independent"][-1])
        curves[t_mix] = means
        for kind, values in means.items():
            rows.append((t_mix, kind, *values, slope(steps, values)))

    def draw(axes: Any) -> None:
        for colour, (t_mix, means) in zip(("tab:blue", "tab:orange", "tab:red"), curves.items(), strict=True):
            axes.plot(steps, means["trajectory"], "o-", color=colour, label=f"one trajectory, t_mix = {t_mix:g}")
            axes.plot(steps, means["independent"], "s:", color=colour, mfc="none", label="independent transitions")
        axes.set(xscale="log", yscale="log", xlabel="steps T", ylabel=f"Gap(x_mean), mean of {n_seeds} seeds")
        axes.legend(frameon=False, fontsize=8)

    return Outcome(
        "mixing",
        TITLE,
        table(("t_mix", "data", *(f"T = {n}" for n in steps), "slope"), rows),
        inside and max(slopes) < -0.25 and ratios == sorted(ratios) and ratios[-1] > 1.5,
        "gap on a trajectory over that on independent data: "
        + ", ".join(f"{ratio:.2f} at t_mix = {t:g}" for ratio, t in zip(ratios, curves, strict=True))
        + f"; slopes {min(slopes):.2f} to {max(slopes):.2f}",
        draw,
    )
