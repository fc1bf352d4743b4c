"""A machine to be run with care or fast: problems whose every number is a small fraction.

It has two states, in order and worn. Care (action 0) leaves it in order with probability 7/8, speed (every other
action) wears it out with probability 7/8. Speed pays; care of a machine in order earns utility 1, a worn machine costs
1. The best safe policy shows care in 4/7 of the time while the machine is in order and never when it is worn: its pairs
(in order, care), (in order, fast), (worn, fast) are visited 4 : 3 : 4.

Probabilities are multiples of 1/8, so that a short log can hold every transition as often as it is likely. Draws from
it with replacement are then independent transitions of the model itself and mu_hat is mu, for any number of steps.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from dpdl import CMDP, Dataset, Result, learn, theory

from .common import Array, Known

CARE, SPEED = (7 / 8, 1 / 8), (1 / 8, 7 / 8)
#: Failure probability of the theorems, where they need one.
DELTA = 0.05


def machine(
    data: ArrayLike, fast: ArrayLike, careful: float = 0.0, n_copies: int = 1, gamma: float = 0.5
) -> tuple[CMDP, Array]:
    """A park of equal machines and the data distribution, (2, 1 + fast actions) `data` for each of them.

    `fast` and `careful` are the actions' rewards. An episode stays with the machine that it starts with, so that the
    optimum and the Slater constant do not depend on their number, nor C* unless the sum over all pairs decides it.
    """
    reward = np.append(careful, fast)
    transitions = np.array([CARE] + [SPEED] * (len(reward) - 1))
    utility = np.array([[1.0] + [0.0] * (len(reward) - 1), [-1.0] * len(reward)])
    cmdp = CMDP(
        P=sp.block_diag([np.tile(transitions, (2, 1))] * n_copies, format="csr"),
        r=np.tile(reward, (2 * n_copies, 1)),
        u=np.tile(utility, (n_copies, 1))[None],
        gamma=gamma,
        rho0=np.tile(CARE, n_copies) / n_copies,
    )
    return cmdp, np.tile(data, (n_copies, 1)) / n_copies


def exact_log(cmdp: CMDP, mu: Array, n: int) -> Dataset:
    """A log of n transitions, each as often as it is likely; a ValueError if that is no whole number of times."""
    likely = sp.coo_array(cmdp.P * (n * mu.reshape(-1, 1)))
    counts = np.rint(likely.data).astype(np.int64)
    if abs(counts - likely.data).max() > 1e-6:
        raise ValueError(f"{n} transitions cannot show every probability exactly")
    pairs, s_next = (np.repeat(index, counts) for index in likely.coords)
    s, a = np.divmod(pairs, cmdp.n_actions)
    sizes = {"n_states": cmdp.n_states, "n_actions": cmdp.n_actions}
    return Dataset(s, a, s_next, cmdp.r[s, a], cmdp.u[:, s, a].T, **sizes)


def descend(known: Known, log: Dataset, psi: float, n_steps: int, seed: int, kappa: float = 0.0) -> Result:
    """One run, on independent transitions of the model."""
    return learn(
        log,
        gamma=known.cmdp.gamma,
        psi=psi,
        slater=known.slater,
        T=n_steps,
        kappa=kappa,
        floor=1e-6,  # below every mu
        rho0=known.cmdp.rho0,
        rng=seed,
    )


def accuracy(known: Known, psi: float, n_steps: int) -> float:
    """The eps that the steps buy by Theorem 4.1 with c_o = 1: its constant is unknown, its shape is not."""
    return theory.eps_from_steps(known.problem(psi), n_steps, DELTA)
