"""What ``dpdl demo`` shows: a policy learned on a gridworld from a log alone, beside those that know the model."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpdl import theory
from dpdl.data.dataset import Dataset
from dpdl.instances import GridWorld, hazard_gridworld
from dpdl.learner.learn import learn
from dpdl.models.solution import Evaluation
from dpdl.result import Result
from dpdl.settings import Settings

#: The demo's choice: psi a little above C*, some conservatism.
PSI, KAPPA, SLATER = 8.0, 0.1, 0.15


@dataclass(frozen=True)
class Demo:
    """Everything the demo shows: the grid, the log, the run and the policies compared."""

    grid: GridWorld
    log: Dataset
    result: Result
    rows: dict[str, Evaluation]
    seconds: float


def run_demo(n_transitions: int = 200_000, n_steps: int = 40_000_000, seed: int = 0) -> Demo:
    """Make a log with the behaviour policy, learn from it, and compare policies on the true model."""
    grid = hazard_gridworld()
    cmdp = grid.cmdp
    rng = np.random.default_rng(seed)
    behaviour = grid.behaviour()
    log = cmdp.rollout(n_transitions, behaviour, rng=rng)
    problem = theory.Problem(cmdp.n_states, cmdp.n_actions, cmdp.n_utilities, cmdp.gamma, SLATER, PSI)
    settings = Settings(
        gamma=cmdp.gamma,
        slater=SLATER,
        psi=PSI,
        T=n_steps,
        kappa=KAPPA,
        floor=1e-5,
        # Tuned on this gridworld: for so few steps the scales of Theorem 4.1 are too slow.
        alpha_V=50 * theory.scale_V(problem),
        alpha_lam=0.3 * theory.scale_lam(problem),
        alpha_x=5e-4 * theory.scale_x(problem),
        radius_V=1.5 / (1 - cmdp.gamma),
    )
    began = time.perf_counter()
    result = learn(log, settings, rho0=cmdp.rho0, rng=rng)
    seconds = time.perf_counter() - began
    policies: dict[str, ArrayLike] = {
        "behaviour (made the log)": behaviour,
        "unconstrained optimum": cmdp.unconstrained().solve().policy,
        "constrained optimum": cmdp.solve().policy,
        "learned from the log": result.policy,
    }
    return Demo(grid, log, result, {name: cmdp.evaluate(p) for name, p in policies.items()}, seconds)


def table(demo: Demo) -> str:
    """Lay out the comparison: reward and each utility, which must not be negative."""
    names = ("fire", "mud")
    head = f"{'policy':<26} {'reward':>8}" + "".join(f" {name + ' slack':>11}" for name in names) + "   safe?"
    lines = [head, "-" * len(head)]
    for name, row in demo.rows.items():
        # The LP leaves an active constraint at zero within its own accuracy.
        safe = bool((row.utilities >= -1e-7).all())
        slack = "".join(f" {value + 0.0:>11.3f}" for value in np.round(row.utilities, 3))
        lines.append(f"{name:<26} {row.reward:>8.3f}{slack}   {'yes' if safe else 'NO'}")
    return "\n".join(lines)
