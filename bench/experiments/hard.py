"""What the two experiments on lower bounds share: two learners, and the numbers of samples to give them.

A lower bound holds for every learner, so that a broken one passes it with ease. Both experiments therefore ask for a
second side. At the varpi of the proof, which shrinks with N, losses shrink with N whatever the policy; but at the
largest varpi, where the signs matter most and are easiest to see, they only shrink if the learner learns. There the
upper bound of Theorem 4.1, eps with T = c_o N psi log(.)/(slater^2 (1-gamma)^4 eps^2), says that they fall like
N^(-1/2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdl import CMDP, Dataset, exact, learn, policy, theory
from hard_instances import HardInstance

from .common import Array, Outcome, slope, table

#: The rate of the upper bound is -1/2; what is measured at finite N may be this much slower.
SLACK = 0.1
DELTA = 0.05


@dataclass(frozen=True)
class Learners:
    """DPDL with the constants of Theorem 4.1, and the linear program of the plug-in model.

    `slater` is what DPDL is told.
    """

    slater: float

    def problem(self, hard: HardInstance) -> theory.Problem:
        cmdp = hard.cmdp
        return theory.Problem(
            cmdp.n_states, cmdp.n_actions, cmdp.n_utilities, cmdp.gamma, self.slater, hard.concentrability
        )

    def dpdl(self, hard: HardInstance, log: Dataset, seed: int) -> Array:
        """One pass over the log, which also gives mu_hat, with psi = C* and kappa = 0."""
        return learn(
            log,
            gamma=hard.cmdp.gamma,
            psi=hard.concentrability,
            slater=self.slater,
            T=len(log),
            order="once",
            rho0=hard.cmdp.rho0,
            rng=seed,
        ).policy

    def plug_in(self, hard: HardInstance, log: Dataset) -> Array:
        """The best policy of the observed model, or the least unsafe one if none seems safe."""
        model = exact.plug_in(log, hard.cmdp.gamma, hard.cmdp.rho0)
        found = model.solve()
        if found.status != "infeasible":
            return found.policy
        assert model.n_utilities == 1  # with more the least unsafe policy would be another program's
        return CMDP(model.P, model.u[0], model.u[:0], model.gamma, model.rho0).solve().policy

    def sizes(self, hard: HardInstance, eps: float, multiples: tuple[int, ...]) -> list[int]:
        """Multiples of the N at which the upper bound, with c_o = 1, is half of the given eps.

        With fewer samples than that it promises next to nothing, and a rate cannot be asked for.
        """
        least = theory.descent_steps(self.problem(hard), eps / 2, DELTA)
        return [multiple * least for multiple in multiples]

    def upper(self, hard: HardInstance, sizes: list[int]) -> Array:
        """The eps that the numbers of samples buy, with c_o = 1."""
        return np.array([theory.eps_from_steps(self.problem(hard), n, DELTA) for n in sizes])


def untaught(hard: HardInstance) -> Array:
    """The policy of DPDL's starting point, which is as good as a coin."""
    return policy.from_occupancy(hard.mu)


@dataclass(frozen=True)
class Bounded:
    """What was measured between two bounds, all by number of samples.

    `hidden` (DPDL, plug-in LP) is at the proof's varpi and `learned` (DPDL) at the largest, which `largest` names, both
    with one column a draw of the signs; `more` holds further columns for the table.
    """

    sizes: list[int]
    lower: Array
    upper: Array
    hidden: tuple[Array, Array]
    learned: Array
    largest: str
    more: dict[str, Array]

    @property
    def above(self) -> list[float]:
        """How far DPDL and the plug-in LP stay above the lower bound, at least."""
        return [float((values.mean(axis=1) / self.lower).min()) for values in self.hidden]

    @property
    def exponent(self) -> float:
        return slope(self.sizes, self.learned.mean(axis=1).tolist())

    def outcome(self, name: str, title: str, quantity: str) -> Outcome:
        dpdl, plug_in = self.above
        columns = {
            "N": self.sizes,
            "lower": self.lower,
            "plug-in": self.hidden[1].mean(axis=1),
            "DPDL": self.hidden[0].mean(axis=1),
            "DPDL, largest varpi": self.learned.mean(axis=1),
            **self.more,
            "upper": self.upper,
        }
        return Outcome(
            name,
            title,
            table(list(columns), zip(*columns.values(), strict=True)),
            min(dpdl, plug_in) >= 1 and self.exponent < -0.5 + SLACK,
            f"{quantity} over lower bound: at least {plug_in:.3g} (plug-in LP) and {dpdl:.3g} (DPDL), wanted 1; "
            f"DPDL's slope at {self.largest} is {self.exponent:.3f}, wanted below {-0.5 + SLACK:g}",
            lambda axes: self.draw(axes, quantity),
        )

    def draw(self, axes: Any, quantity: str) -> None:
        axes.plot(self.sizes, self.upper, "k--", lw=0.8, label="upper bound with c_o = 1")
        for k, (values, name) in enumerate(
            (
                (self.learned, f"DPDL, {self.largest}: slope {self.exponent:.2f}"),
                (self.hidden[0], "DPDL, the proof's varpi"),
                (self.hidden[1], "plug-in LP, the proof's varpi"),
            )
        ):
            mean, error = values.mean(axis=1), values.std(axis=1) / np.sqrt(values.shape[1])
            axes.plot(self.sizes, mean, "o-", color=f"C{k}", label=name)
            axes.fill_between(self.sizes, mean - error, mean + error, color=f"C{k}", alpha=0.2)
        axes.plot(self.sizes, self.lower, "k:", label="lower bound, constants of the proof")
        draws = self.learned.shape[1]
        axes.set(xscale="log", yscale="log", xlabel="transitions N")
        axes.set_ylabel(f"{quantity}: mean of {draws} draws, and its standard error")
        axes.set_xticks(self.sizes, [f"{n:.2g}" for n in self.sizes])
        axes.minorticks_off()
        axes.set_ylim(bottom=self.lower.min() / 100)  # room for the legend
        axes.legend(frameon=False, fontsize=8, loc="lower left", ncols=2)
