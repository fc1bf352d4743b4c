"""The game that DPDL plays, solved exactly on a known model.

With occupancy nu = Wx, W = diag(mu / mu_hat), A[(s, a), s'] = 1[s = s'] - gamma P(s' | s, a) and the
utilities u_i^kappa = u_i - (1-gamma) kappa as the rows of U_kappa (where episodes end, with probability e, the factor
of kappa is 1 - gamma + gamma e, so that <nu, u_i^kappa> = J^u_i - kappa), the Lagrangian is

    L_w(V, lam, x) = <rho0, V> + <Wx, r - A V + U_kappa' lam>

and its least value over |V| <= R_V, lam >= 0, sum lam <= R_L (equation (30))

    J_kappa(x) = r'Wx - R_V ||A'Wx - rho0||_1 - R_L ||[U_kappa Wx]_-||_inf.

The gap of x is the largest J_kappa over the feasible set X less J_kappa(x). In all functions `mu` and `mu_hat`, of
shape (S, A), are the data distribution and its positive estimate, `kappa` is the conservatism, and `slater` the Slater
constant that sets the radii R_V and R_L.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from dpdl import _validation as check
from dpdl import theory
from dpdl._validation import Array
from dpdl.models import highs, programs
from dpdl.models.cmdp import CMDP

#: Accuracy of the saddle value, on the normalised scale.
_ACCURACY = 1e-6


def lagrangian_gradient(
    cmdp: CMDP, V: ArrayLike, lam: ArrayLike, x: ArrayLike, mu: ArrayLike, mu_hat: ArrayLike, kappa: float
) -> tuple[Array, Array, Array]:
    """Return the gradients of L_w(V, lam, x) in V (S,), lam (I,) and x (S, A): the means of the stochastic ones.

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> mu = [[0.5, 0.5]]
    >>> g_V, g_lam, g_x = lagrangian_gradient(one_state, [1.0], [2.0], [[0.5, 1.5]], mu, mu, kappa=0.0)
    >>> g_V.tolist(), g_lam.tolist(), g_x.tolist()
    ([0.0], [1.0], [[-1.5, 1.5]])
    """
    primal = check.numbers_array("x", x, shape=cmdp.r.shape, at_least=0)
    weight, utility = _weight(cmdp, mu, mu_hat), _utilities(cmdp, kappa)
    value = check.numbers_array("V", V, shape=(cmdp.n_states,))
    multiplier = check.numbers_array("lam", lam, shape=(cmdp.n_utilities,), at_least=0)
    advantage = cmdp.r.ravel() - np.repeat(value, cmdp.n_actions) + cmdp.gamma * (cmdp.P @ value) + multiplier @ utility
    nu = weight.ravel() * primal.ravel()
    g_V = cmdp.rho0 - programs.flow_matrix(cmdp.rows) @ nu
    return g_V, utility @ nu, weight * advantage.reshape(weight.shape)


def penalised_objective(
    cmdp: CMDP, x: ArrayLike, mu: ArrayLike, mu_hat: ArrayLike, kappa: float, slater: float
) -> float:
    """Return J_kappa(x), the least value of the Lagrangian L_w(V, lam, x) over the boxes of V and lam.

    Examples
    --------
    The occupancy of a safe policy pays no penalty, so that only its reward is left:

    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> mu = [[0.5, 0.5]]
    >>> penalised_objective(one_state, [[1.0, 1.0]], mu, mu, kappa=0.0, slater=0.5)
    1.0
    """
    radius_V, radius_lam = _radii(cmdp, slater)
    no_V, no_lam = np.zeros(cmdp.n_states), np.zeros(cmdp.n_utilities)
    g_V, g_lam, g_x = lagrangian_gradient(cmdp, no_V, no_lam, x, mu, mu_hat, kappa)
    violation = -min(0.0, float(g_lam.min(initial=0.0)))
    return float((g_x * np.asarray(x)).sum() - radius_V * abs(g_V).sum() - radius_lam * violation)


def saddle_value(cmdp: CMDP, mu: ArrayLike, mu_hat: ArrayLike, psi: float, kappa: float, slater: float) -> float:
    """Return j(psi), the largest J_kappa(x) over the feasible set X: the value of the game that DPDL plays.

    X is { 0 <= x <= psi mu_hat/(1-gamma), sum x <= 4/(1-gamma), sum x/mu_hat <= N psi/(1-gamma) }. RuntimeError if
    j(psi) could not be computed to 1e-6/(1-gamma): J_kappa punishes a residual of 1e-16 by R_V times that, and R_V
    grows with 1/(1-gamma), so expect this from gamma = 1 - 1e-8 on.

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> mu = [[0.5, 0.5]]
    >>> round(saddle_value(one_state, mu, mu, psi=2.0, kappa=0.0, slater=0.5), 9)
    1.0
    """
    weight, psi = _weight(cmdp, mu, mu_hat), check.real("psi", psi, at_least=1)
    caps, utilities = psi * np.asarray(mu_hat, dtype=float).ravel(), _utilities(cmdp, kappa)
    for solver in (highs.optimum, highs.refined):
        x, bound = _maximiser(cmdp, weight.ravel(), caps, utilities, _radii(cmdp, slater), solver)
        value = penalised_objective(cmdp, x, mu, mu_hat, kappa, slater)
        if (1 - cmdp.gamma) * value >= bound - _ACCURACY:
            return value
    raise RuntimeError(f"the saddle value could not be computed to {_ACCURACY:g}/(1-gamma) at gamma = {cmdp.gamma!r}")


def gap(
    cmdp: CMDP, x_mean: ArrayLike, mu: ArrayLike, mu_hat: ArrayLike, psi: float, kappa: float, slater: float
) -> float:
    """Return Gap(x_mean) = j(psi) - J_kappa(x_mean), which a run of DPDL drives to zero.

    Nonnegative up to rounding for every x_mean in X.

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> mu = [[0.5, 0.5]]
    >>> round(gap(one_state, [[0.5, 1.5]], mu, mu, psi=2.0, kappa=0.0, slater=0.5), 9)
    0.5
    """
    best = saddle_value(cmdp, mu, mu_hat, psi, kappa, slater)
    return best - penalised_objective(cmdp, x_mean, mu, mu_hat, kappa, slater)


def _maximiser(
    cmdp: CMDP, weight: Array, caps: Array, utilities: Array, radii: tuple[float, float], solver: highs.Solver
) -> tuple[Array, float]:
    """Return an x in X that maximises J_kappa, with `caps` = psi mu_hat and `radii` = (R_V, R_L), and a bound of it.

    The unknowns y have (1-gamma) x = scale y; slacks measure the flow residual, both ways, and the worst
    violation. The rows carry the radii, not the objective, so that what HiGHS tolerates in a row is an error
    in J_kappa. The bound is that of weak duality, on the normalised scale.
    """
    (radius_V, radius_lam), rows = radii, cmdp.rows
    n_states, n_utilities, unit, sparsity = cmdp.n_states, cmdp.n_utilities, 1 - cmdp.gamma, programs.sparsity(rows)
    bound = unit * theory.sum_bound(cmdp.gamma)
    pairs = np.flatnonzero(weight > 0)  # x does not matter where W = 0, and zero is feasible there
    scale = np.minimum(bound, caps[pairs])
    factor = weight[pairs] * scale
    utility = utilities[:, pairs] * factor
    n, no_slack = len(pairs), np.zeros(2 * n_states + 1)
    flow, identity = radius_V * programs.flow_matrix(rows)[:, pairs] * factor[None], sp.eye_array(n_states)
    shortfall = np.hstack([-radius_lam * utility, np.zeros((n_utilities, 2 * n_states)), -np.ones((n_utilities, 1))])
    sums = [np.append(scale, no_slack)[None], np.append(scale / caps[pairs], no_slack)[None]]
    solution = solver(
        highs.Standard(
            cost=np.concatenate([-cmdp.r.ravel()[pairs] * factor, no_slack + 1]),
            E=sp.csr_array(sp.hstack([flow, identity, -identity, sp.csc_array((n_states, 1))])),
            b=radius_V * programs.inflow(rows),
            G=sp.csr_array(np.vstack([*sums, shortfall])),
            h=np.append([bound, sparsity], np.zeros(n_utilities)),
            upper=np.append(np.ones(n), no_slack + np.inf),
        )
    )
    if solution is None:
        raise RuntimeError("HiGHS could not solve the linear program of the saddle value, which has a solution")
    q = np.zeros(weight.size)
    q[pairs] = scale * np.clip(solution.y[:n], 0, 1)
    excess = max(1.0, q.sum() / bound, (q / caps).sum() / sparsity)
    V, w = -radius_V * np.clip(solution.V, -1, 1), np.maximum(solution.w, 0)
    lam = radius_lam * w[2:] / max(1.0, w[2:].sum())
    left = (cmdp.r.ravel() - programs.value_drop(rows, V))[pairs] * factor + lam @ utility
    left -= scale * (w[0] + w[1] / caps[pairs])
    rounding = 16 * np.finfo(float).eps * (2 + 2 * np.ptp(V) + lam.sum())
    most = programs.inflow(rows) @ V + bound * w[0] + sparsity * w[1] + np.maximum(left, 0).sum()
    return (q / excess / unit).reshape(cmdp.r.shape), float(most + rounding)


def _utilities(cmdp: CMDP, kappa: float) -> Array:
    """Return U_kappa, (I, S A)."""
    return cmdp.rows.gains[1:] - check.real("kappa", kappa) * cmdp.rows.ends


def _weight(cmdp: CMDP, mu: ArrayLike, mu_hat: ArrayLike) -> Array:
    """Return the diagonal of W as an (S, A) array."""
    data = check.distribution("mu", mu, cmdp.r.shape)
    return data / check.numbers_array("mu_hat", mu_hat, shape=data.shape, above=0)


def _radii(cmdp: CMDP, slater: float) -> tuple[float, float]:
    slater = check.real("slater", slater, above=0, at_most=1)
    return theory.radius_V(cmdp.gamma, slater), theory.radius_lam(slater)
