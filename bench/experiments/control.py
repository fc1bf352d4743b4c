"""Section 2.2: what deviation control buys, on the same logs.

A state in which the careful action earns little and the bold one more, at a risk that the constraint limits; and twenty
actions that the log hardly shows, each worse than both. On a short log a few of them look good by luck. Four learners
read the same log of N independent transitions:

* the best policy of the plug-in model, and the same inside D(psi);
* primal-dual learning, one step per transition: DPDL with psi, and with the same step sizes but psi so large that no
  cap binds. (The theorem's own steps for so large a psi hardly move at these budgets.)

Their policies are judged on the true model. Accepted: at every N at which some rare action was seen less than ten times
on average, each controlled learner breaks the constraint by at most a fifth of what its uncontrolled twin does, and
loses less reward; DPDL loses less at the largest N than at 1,000; and at the largest N control costs the planner
nothing, at most 1% of the optimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdl import CMDP, exact, learn

from .common import Array, Known, Outcome, each, table

TITLE = "what deviation control buys: the same logs with and without it"
N_RARE, RARE, GAMMA = 20, 0.002, 0.5
UNLIMITED = 1e8
LEARNERS = ("plan", "plan in D(psi)", "primal-dual", "DPDL")
STYLES = ("C1s--", "C1s-", "C0o--", "C0o-")


def world() -> Known:
    """State 0 decides; state 1 pays 1, state 2 costs 1; both lead back."""
    good = np.append([0.2, 0.4], np.full(N_RARE, 0.18))
    harm = np.append([0.05, 0.6], np.full(N_RARE, 0.6))
    P = np.zeros((3, 2 + N_RARE, 3))
    P[0] = np.stack([1 - good - harm, good, harm], axis=1)
    P[1:, :, 0] = 1
    r, u = np.zeros(P.shape[:2]), np.zeros((1, *P.shape[:2]))
    r[1], u[0, 0], u[0, 2] = 1, 0.2, -1
    mu = np.zeros(r.shape)
    mu[0] = np.append([0.35, 0.25], np.full(N_RARE, RARE))
    mu[1:, 0] = (1 - mu[0].sum()) / 2
    return Known.of(CMDP(P, r, u, GAMMA, [1.0, 0.0, 0.0]), mu)


def policies(known: Known, n: int, seed: int) -> list[Array | None]:
    """Policies of the four learners on one log; None where the plug-in model has no safe one."""
    cmdp, psi = known.cmdp, 1.2 * known.concentrability
    log = cmdp.sample(n, known.mu, rng=np.random.default_rng([seed, n]))
    model = exact.plug_in(log, GAMMA, cmdp.rho0)
    plans = [model.solve(), model.solve(psi=psi, mu=log.frequencies)]
    keywords: dict[str, Any] = {
        "gamma": GAMMA,
        "slater": known.slater,
        "T": n,
        "floor": 1e-6,
        "order": "once",
        "rho0": cmdp.rho0,
        "rng": seed,
    }
    controlled = learn(log, psi=psi, **keywords)
    steps = {name: getattr(controlled.settings, name) for name in ("alpha_x", "alpha_V", "alpha_lam")}
    free = learn(log, psi=UNLIMITED, **steps, **keywords)
    return [*(plan.policy for plan in plans), free.policy, controlled.policy]


def run(quick: bool) -> Outcome:
    known = world()
    sizes = [300, 1000, 3000, 10**5] if quick else [300, 1000, 3000, 10**4, 3 * 10**4, 10**5, 10**6]
    n_seeds = 20 if quick else 60

    def judged(task: tuple[int, int]) -> list[tuple[float, float]]:
        found = []
        for policy in policies(known, *task):
            if policy is None:
                found.append((np.nan, np.nan))
                continue
            value = known.cmdp.evaluate(policy)
            found.append((known.best - value.reward, max(0.0, -float(value.utilities.min()))))
        return found

    runs = np.array([each(judged, [(n, seed) for seed in range(n_seeds)]) for n in sizes])
    loss, violation = np.nanmean(runs, axis=1).transpose(2, 1, 0)  # (learners, sizes)
    thin = [k for k, n in enumerate(sizes) if n * RARE < 10]
    pairs = ((0, 1), (2, 3))  # without and with control
    helps = all(
        violation[after][k] <= violation[before][k] / 5 and loss[after][k] < loss[before][k]
        for before, after in pairs
        for k in thin
    )
    learns = loss[3][-1] < loss[3][sizes.index(1000)]
    price = loss[1][-1] / known.best

    def draw(axes: Any) -> None:
        for place, values, label in zip(axes, (loss, violation), ("J* - J(policy)", "violation"), strict=True):
            for name, style, line in zip(LEARNERS, STYLES, values, strict=True):
                place.plot(sizes, line / known.best, style, label=name, mfc="none" if style.endswith("--") else None)
            place.set(xscale="log", xlabel="transitions N", ylabel=f"{label}, relative to J*")
        axes[0].legend(frameon=False, fontsize=8)

    head = ("N", *(f"{what}: {name}" for what in ("loss", "violation") for name in LEARNERS))
    first = ", ".join(
        f"{LEARNERS[before]} {violation[before][k]:.3f}, {LEARNERS[after]} {violation[after][k]:.3f}"
        for before, after in pairs
        for k in thin[-1:]
    )
    return Outcome(
        "control",
        TITLE,
        table(head, ([n, *loss[:, k], *violation[:, k]] for k, n in enumerate(sizes))),
        bool(helps and learns and price <= 0.01),
        f"mean violation at N = {sizes[thin[-1]]}: {first}; "
        f"at N = {sizes[-1]} control costs the planner {price:.2%} of J*",
        draw,
        shape=(1, 2),
    )
