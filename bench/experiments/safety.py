"""Theorem 4.1: with kappa = 5 slater eps the learned policy keeps the constraint, at a price of O(eps).

The policy of each run is evaluated exactly on the true model. Theory, with eps what T steps buy at c_o = 1, says for
psi >= C*: the policy breaks the constraint in a share of at most delta of the runs, and in all others loses at most
eps/2 + 2 kappa/slater + 45 eps/100 < 11 eps of the reward (equation (35)). Both are accepted as they
stand. Of kappa = 0 it says nothing, but unless that breaks the constraint often, above delta by a confidence bound at
99%, the first half proves nothing, and the verdict is that it is not seen.

How often kappa = 0 is unsafe depends on the start: the sum of u w over a run is what log lam moves by, so a start above
the optimal multiplier leaves a margin and one below it a deficit, both of the order of the noise. Here slater = 11/16,
so that the start 1/slater is the optimal multiplier 16/11 and lam favours neither side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from .common import Known, Outcome, each, table
from .machine import DELTA, accuracy, descend, exact_log, machine

TITLE = "conservatism keeps the constraint, at a small price"

PSI = 2.0  # C* = 64/33
SLATER = 11 / 16  # 0.745 holds in Pi(C*)
PRICE = 11


def interval(count: int, n: int, level: float = 0.99) -> tuple[float, float]:
    """Clopper-Pearson bounds of a probability."""
    found = stats.binomtest(count, n).proportion_ci(level)
    return float(found.low), float(found.high)


def run(quick: bool) -> Outcome:
    n_steps, n_seeds = (5 * 10**4, 150) if quick else (5 * 10**5, 500)
    shares = (0, 1 / 16, 1) if quick else (0, 1 / 256, 1 / 64, 1 / 16, 1 / 4, 1)
    cmdp, mu = machine(np.array([[9, 3], [1, 3]]) / 16, fast=[1.0], careful=-1.0)
    log = exact_log(cmdp, mu, 128)
    known = Known.of(cmdp, mu)
    assert known.concentrability <= PSI
    assert known.slater >= SLATER
    known = replace(known, slater=SLATER)
    eps = accuracy(known, PSI, n_steps)
    kappa = 5 * SLATER * eps

    def outcome(task: tuple[float, int]) -> tuple[float, float]:
        """Utility and loss of a run's policy."""
        value = cmdp.evaluate(descend(known, log, PSI, n_steps, task[1], kappa=task[0] * kappa).policy)
        return float(value.utilities.min()), known.best - value.reward

    # Every kappa has draws of its own: the shares are then independent.
    tasks = [(share, 10**6 * k + seed) for k, share in enumerate(shares) for seed in range(n_seeds)]
    utility, loss = np.array(each(outcome, tasks)).reshape(len(shares), n_seeds, 2).transpose(2, 0, 1)
    unsafe = (utility < 0).sum(axis=1)
    bounds = np.array([interval(int(count), n_seeds) for count in unsafe]).T
    kept = unsafe[-1] <= DELTA * n_seeds
    cheap = (loss[-1] <= PRICE * eps).mean() >= 1 - DELTA
    told = bounds[0, 0] > DELTA

    def draw(axes: Any) -> None:
        places, share = np.arange(len(shares)), unsafe / n_seeds
        axes.errorbar(places, share, abs(bounds - share), fmt="o", color="C3", capsize=3, label="unsafe policies, 99%")
        axes.axhline(DELTA, color="C3", ls=":", lw=1, label=f"delta = {DELTA}")
        names = ["0" if k == 0 else "1" if k == 1 else f"1/{round(1 / k)}" for k in shares]
        axes.set_xticks(places, names)
        axes.set(xlabel="kappa / (5 slater eps)", ylabel=f"unsafe share of {n_seeds} runs of {n_steps:,} steps")
        axes.set_ylim(-0.03, 1)
        right = axes.twinx()
        right.fill_between(places, loss.min(axis=1) / eps, loss.max(axis=1) / eps, color="C0", alpha=0.2, linewidth=0)
        right.plot(places, loss.mean(axis=1) / eps, "s-", color="C0", ms=4, label="loss of reward / eps (right)")
        right.axhline(PRICE, color="C0", ls=":", lw=1, label=f"{PRICE} eps")
        right.set(ylabel="(J* - J(policy)) / eps", ylim=(-0.03 * 12, 12))
        right.spines["top"].set_visible(False)
        handles = [axes.get_legend_handles_labels(), right.get_legend_handles_labels()]
        axes.legend(handles[0][0] + handles[1][0], handles[0][1] + handles[1][1], frameon=False, loc=(0.35, 0.5))

    rows = zip(
        np.array(shares, dtype=float),
        np.array(shares) * kappa,
        unsafe / n_seeds,
        *bounds,
        utility.mean(axis=1),
        utility.std(axis=1),
        loss.mean(axis=1) / eps,
        loss.max(axis=1) / eps,
        strict=True,
    )
    head = ("kappa/5 slater eps", "kappa", "unsafe", "at least", "at most", "utility", "std", "loss/eps", "largest")
    return Outcome(
        "safety",
        TITLE,
        table(head, rows),
        (True if told else None) if kept and cheap else False,
        f"unsafe: {unsafe[-1] / n_seeds:.1%} with kappa, wanted <= {DELTA:.0%}, {unsafe[0] / n_seeds:.1%} without; "
        f"loss at most {loss[-1].max() / eps:.2f} eps, wanted {PRICE}",
        draw,
    )
