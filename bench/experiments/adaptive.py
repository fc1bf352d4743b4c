"""Proposition G.2: without knowing C*, the adaptive method stops with psi_K <= 4 C*, safe, and as good as its class.

Random problems with C* from 1.5 to 40, fresh transitions for every phase of every level. Two of the paper's constants
are out of reach and replaced, the others kept: eps = 1/(10 (1-gamma)) is not divided by 15, and J-hat may grow by
eps/2 instead of 500 eps (which exceeds every reward, so that the second test would always pass). The steps are
those of Theorem 4.1 with c_o = 1/2; mu_hat and VERIFY have half as many transitions each, where Propositions 4.3
and G.1 ask for 10^9 and more.

Accepted, each in a share 1 - delta of the problems at least, as Theorem 6.2 has it:

* the method stops by itself within log2 C* + 2 levels (rounded up), that is with psi_K <= 4 C*; it is not given more;
* its policy has every utility above kappa less VERIFY's threshold, 2 slater eps > 0, on the true model;
* its policy earns no less than the best that keeps J^u >= kappa within psi_K, less eps;

and VERIFY says what it would say if it knew the residuals exactly, at a share 1 - delta of the levels at which these
are a fifth of their thresholds or more away from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpdl import Status, learn_adaptive, theory
from dpdl.learner.adaptive import Level

from .common import Known, Outcome, each, table, with_concentrability

TITLE = "without knowing C*, the method stops at psi <= 4 C*, safe"
DELTA, EXIT_MARGIN, C_O = 0.05, 0.5, 0.5
HEAD = (
    "C*",
    "psi_K",
    "levels",
    "log2 C* + 2",
    "status",
    "verdicts",
    "J*",
    "J",
    "best at kappa",
    "least utility",
    "kappa",
)


@dataclass(frozen=True)
class Attempt:
    """What became of one problem."""

    known: Known
    n_levels: int
    psi: float
    completed: bool
    verdicts: str
    n_decided: int
    n_wrong: int
    reward: float
    conservative: float
    least: float
    kappa: float
    threshold: float
    eps: float

    @property
    def most(self) -> int:
        return most_levels(self.known)

    @property
    def stopped(self) -> bool:
        return self.completed and self.psi <= 4 * self.known.concentrability

    @property
    def safe(self) -> bool:
        return self.least >= self.kappa - self.threshold

    @property
    def good(self) -> bool:
        return not self.reward < self.conservative - self.eps  # NaN: no policy of the class keeps J^u >= kappa

    @property
    def row(self) -> tuple[object, ...]:
        status = "stopped" if self.completed else "NOT STOPPED"
        return (
            *(self.known.concentrability, self.psi, self.n_levels, self.most, status, self.verdicts),
            *(self.known.best, self.reward, self.conservative, self.least, self.kappa),
        )


def most_levels(known: Known) -> int:
    return math.ceil(math.log2(known.concentrability)) + 2


def exact_verdict(known: Known, level: Level, eps: float) -> bool | None:
    """What VERIFY would say if it knew the residuals; None if they are too close to a threshold to tell."""
    cmdp, result = known.cmdp, level.result
    nu = known.mu / result.reference.mu_hat * result.x_mean
    flow = abs(nu.sum(axis=1) - cmdp.gamma * (cmdp.P.T @ nu.ravel()) - cmdp.rho0).sum()
    utilities = ((cmdp.u - (1 - cmdp.gamma) * result.settings.kappa) * nu).sum(axis=(1, 2))
    problem = replace(known.problem(level.psi), slater=result.settings.slater)
    shares = flow / theory.flow_threshold(problem, eps), -utilities.min() / theory.utility_threshold(problem, eps)
    return None if 0.8 < max(shares) < 1.2 else bool(max(shares) < 1)


def attempt(task: tuple[int, float]) -> Attempt:
    seed, target = task
    known = with_concentrability(float(target), seed)
    cmdp, most = known.cmdp, most_levels(known)
    rng = np.random.default_rng([seed, 2])
    eps, slater = 1 / (10 * (1 - cmdp.gamma)), min(known.slater, 0.3)

    def samples(problem: theory.Problem) -> int:
        return theory.descent_steps(problem, eps, DELTA, C_O) // 2

    needed = 0
    for level in range(1, most + 1):
        problem = replace(known.problem(2.0 ** (level - 1)), slater=slater)
        steps = theory.descent_steps(problem, eps, theory.adaptive_delta(DELTA, level), C_O)
        needed += steps + 2 * samples(problem)
    result = learn_adaptive(
        cmdp.sample(needed, known.mu, rng=rng),
        gamma=cmdp.gamma,
        slater=slater,
        eps=eps,
        delta=DELTA,
        c_o=C_O,
        eps_divisor=1,
        exit_margin=EXIT_MARGIN,
        n_reference=samples,
        n_verification=samples,
        max_levels=most,
        rho0=cmdp.rho0,
        rng=rng,
    )
    exact = [exact_verdict(known, level, eps) for level in result.history]
    decided = [(level.verdict, right) for level, right in zip(result.history, exact, strict=True) if right is not None]
    value, kappa = cmdp.evaluate(result.policy), 5 * slater * eps
    psi = result.history[-1].psi
    return Attempt(
        known=known,
        n_levels=len(result.history),
        psi=psi,
        completed=result.status is Status.COMPLETED,
        verdicts="".join("+" if level.verdict else "-" for level in result.history),
        n_decided=len(decided),
        n_wrong=sum(verdict is not right for verdict, right in decided),
        reward=value.reward,
        conservative=cmdp.solve(kappa=kappa, psi=psi, mu=known.mu).reward,
        least=float(value.utilities.min()),
        kappa=kappa,
        threshold=3 * slater * eps,
        eps=eps,
    )


def run(quick: bool) -> Outcome:
    targets = np.geomspace(1.5, 6, 4) if quick else np.geomspace(1.5, 40, 24)
    found = each(attempt, enumerate(targets))
    n = len(found)
    stopped, safe, good = (sum(getattr(one, name) for one in found) for name in ("stopped", "safe", "good"))
    n_decided, n_wrong = sum(one.n_decided for one in found), sum(one.n_wrong for one in found)
    lost = np.median([1 - one.reward / one.known.best for one in found])

    def draw(axes: Any) -> None:
        from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

        C, psi = np.array([one.known.concentrability for one in found]), np.array([one.psi for one in found])
        right = np.array([one.stopped and one.safe for one in found])
        axes.plot(C[right], psi[right], "o", label="stopped, safe")
        if not right.all():
            axes.plot(C[~right], psi[~right], "x", color="tab:red", label="not stopped, or not safe enough")
        axes.plot(C, 4 * C, "k--", label="4 C*, the bound")
        axes.plot(C, C, "k:", label="C*")
        axes.set(xscale="log", yscale="log", xlabel="C*", ylabel="psi at which the method stopped")
        for axis in (axes.xaxis, axes.yaxis):  # psi takes powers of two
            axis.set_major_locator(LogLocator(2))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_locator(NullLocator())
        axes.legend(frameon=False)

    return Outcome(
        "adaptive",
        TITLE,
        table(HEAD, (one.row for one in found)),
        bool(min(stopped, safe, good) >= (1 - DELTA) * n and n_wrong <= DELTA * n_decided),
        f"stopped at psi_K <= 4 C* in {stopped} of {n}, safe in {safe}, within eps of its class in {good}; "
        f"VERIFY wrong at {n_wrong} of {n_decided} levels; median loss {100 * lost:.0f}%",
        draw,
    )
