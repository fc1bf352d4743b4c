"""COptiDICE on a log of few states, with its conservative bound of the costs, solved accurately.

Lee, Paduraru, Mankowitz, Heess, Precup, Kim and Guez, "COptiDICE: Offline Constrained Reinforcement Learning via
Stationary Distribution Correction Estimation" (ICLR 2022). With the empirical model P, the log's distribution d of the
pairs and corrections w = (normalised occupancy)/d the problem is

    maximise   E_d[w r] - alpha E_d[(w - 1)^2 / 2]      over w >= 0
    subject to sum_a d w (s, .) = (1-gamma) rho0(s) + gamma sum P(s | s', a') d w (s', a')      for every s
               U_i(w) <= limit_i                                                                for every i

where the upper bound U_i of the normalised cost is the largest E_p[w c_i] over distributions p of the transitions
(s, a, s') in a Kullback-Leibler ball of radius epsilon around the empirical one, under which w is still a correction:

    U_i(w) = min over tau >= 0, chi of  tau log E exp(l / tau) + tau epsilon,
             l = (1-gamma) E chi(s_0) + w(s,a) (c_i(s,a) + gamma chi(s') - chi(s)).

The policy maximises the Lagrangian of E_d[w c_i] with multipliers lam_i in [0, LARGEST_MULTIPLIER], and the multipliers
are such that U_i = limit_i where they are positive. So U_i - E_d[w c_i] is a margin by which the limit of E_d[w c_i] is
reduced until margin and solution agree. For given limits b_i the dual is convex and piecewise quadratic in nu and lam:

    minimise   (1-gamma) rho0.nu + lam.b + E_d[max over w >= 0 of w e - alpha (w - 1)^2 / 2],
               e = r - sum_i lam_i c_i + gamma P nu - nu,    w = max(0, 1 + e / alpha).

The paper's experiments have alpha = 1/N and epsilon = 0.1/N for N trajectories. Pairs that the log does not show lead
back to their state at the least reward and the largest costs of the log, and have the mass UNSEEN in d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdl import Dataset, exact

Array = NDArray[np.float64]

#: The bound of each multiplier, for rewards and costs of size one: beyond it a limit that cannot be kept is given up.
LARGEST_MULTIPLIER = 10.0
UNSEEN = 1e-6
#: Rounds of margin and solution, and the change of the margins, relative to the size of the costs, that ends them.
ROUNDS, SETTLED = 50, 1e-6


@dataclass(frozen=True)
class Empirical:
    """The empirical model: of each pair the mass, reward and costs, and all transitions with their probabilities.

    `source` and `target` are the pair and the next state of each transition; the next state S is the end.
    """

    gamma: float
    rho0: Array
    d: Array
    r: Array
    c: Array
    source: NDArray[np.intp]
    target: NDArray[np.intp]
    probability: Array

    @property
    def n_states(self) -> int:
        return len(self.rho0)

    @property
    def n_actions(self) -> int:
        return len(self.r) // self.n_states

    def flow(self) -> Array:
        """Return the matrix gamma P - B, (S A, S), of the states' values seen from the pairs."""
        found = np.zeros((len(self.r), self.n_states + 1))
        np.add.at(found, (self.source, self.target), self.gamma * self.probability)
        found = found[:, :-1]
        found[np.arange(len(self.r)), np.arange(len(self.r)) // self.n_actions] -= 1
        return found

    @classmethod
    def of(cls, log: Dataset, gamma: float, rho0: Array | None) -> tuple[Empirical, Array]:
        """Return the model of a log and the limits on normalised costs, rewards and costs divided by the largest."""
        model = exact.plug_in(log, gamma, rho0)
        n_pairs, rule = model.r.size, log.units.cost_limits()
        assert rule is not None
        pair = log.s.astype(np.int64) * log.n_actions + log.a
        slack = log.u * np.array(log.units.utility_scale)
        costs = np.where(log.terminated[:, None], rule.total, rule.rate) - slack
        size = np.maximum(abs(costs).max(axis=0), 1e-300)
        visits = np.bincount(pair, minlength=n_pairs)
        seen = visits > 0

        def means(values: Array, otherwise: float) -> Array:
            sums = np.bincount(pair, weights=values, minlength=n_pairs)
            return np.where(seen, sums / np.maximum(visits, 1), otherwise)

        r = means(log.r, float(log.r.min()))
        c = np.array([means(one, float(one.max())) for one in (costs / size).T])
        moves = model.P.tocoo()
        source, target, probability = moves.row, moves.col, moves.data
        if model.ends is not None:
            ending = np.flatnonzero(model.ends.ravel())
            source, target = np.append(source, ending), np.append(target, np.full(len(ending), model.n_states))
            probability = np.append(probability, model.ends.ravel()[ending])
        d = visits / len(log) + UNSEEN
        found = cls(gamma, model.rho0, d / d.sum(), r, c, source.astype(np.intp), target.astype(np.intp), probability)
        return found, rule.rate / size


def learn(log: Dataset, gamma: float, rho0: Array | None, n: float) -> Array:
    """Return the policy (S, A) of COptiDICE with alpha = 1/n and epsilon = 0.1/n."""
    model, limits = Empirical.of(log, gamma, rho0)
    w = corrections(model, limits, 1 / n, 0.1 / n)
    mass = (w * model.d).reshape(model.n_states, -1)
    logged = model.d.reshape(mass.shape)
    mass = np.where(mass.sum(axis=1, keepdims=True) > 1e-12, mass, logged)
    return mass / mass.sum(axis=1, keepdims=True)


def corrections(model: Empirical, limits: Array, alpha: float, epsilon: float) -> Array:
    """Return w of the conservative problem, by alternating solution and margins."""
    margins = np.zeros(len(limits))
    for round_ in range(ROUNDS):
        w = solve(model, limits - margins, alpha)
        found = np.array([upper_bound(model, w, c, epsilon)[0] - float(model.d @ (w * c)) for c in model.c])
        # Half steps from the tenth round on: the margin of the solution to a margin may jump to and fro.
        change = (found - margins) * (1.0 if round_ < 10 else 0.5)
        margins = margins + change
        if abs(change).max() <= SETTLED:
            break
    return w


def solve(model: Empirical, limits: Array, alpha: float) -> Array:
    """Return w for limits of E_d[w c], by projected Newton steps on the dual of nu and lam.

    The dual is convex with a piecewise constant Hessian, so Newton's method ends after finitely many pieces. lam stays
    within its bounds; those at a bound that the gradient holds there take no part in the step.
    """
    S, n_costs = model.n_states, len(limits)
    M = np.hstack([model.flow(), -model.c.T])  # e = r + M x
    linear = np.append((1 - model.gamma) * model.rho0, limits)
    low, high = np.full(S + n_costs, -np.inf), np.full(S + n_costs, np.inf)
    low[S:], high[S:] = 0.0, LARGEST_MULTIPLIER

    def value(x: Array) -> tuple[float, Array]:
        e = model.r + M @ x
        w = np.maximum(0.0, 1 + e / alpha)
        return float(linear @ x + model.d @ (w * e - alpha / 2 * (w - 1) ** 2)), w

    x = np.zeros(S + n_costs)
    f, w = value(x)
    for _ in range(500):
        gradient = linear + M.T @ (model.d * w)
        held = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
        free = ~held
        if abs(gradient[free]).max(initial=0.0) <= 1e-8:
            break
        weights = model.d * (w > 0) / alpha
        hessian = (M[:, free].T * weights) @ M[:, free]
        # A little of the identity: states without mass in this piece have no curvature.
        ridge = 1e-9 * max(float(np.trace(hessian)) / len(hessian), 1e-12)
        step = np.zeros_like(x)
        step[free] = -np.linalg.solve(hessian + ridge * np.eye(len(hessian)), gradient[free])
        size = 1.0
        while True:
            proposed = np.clip(x + size * step, low, high)
            f_new, w_new = value(proposed)
            if f_new <= f + 1e-4 * float(gradient @ (proposed - x)):
                break
            size /= 2
            if size < 1e-12:
                return w
        if f_new >= f:  # no digits are left
            break
        x, f, w = proposed, f_new, w_new
    return w


def upper_bound(model: Empirical, w: Array, c: Array, epsilon: float) -> tuple[float, Array]:
    """Return U(w), and the worst distribution p of the transitions.

    Newton's method on tau log E exp(l / tau) + tau epsilon, which is convex in (tau, chi), from the minimum of its
    expansion for small epsilon: the mean of l plus sqrt(2 epsilon Var l), chi of least variance.
    """
    S, p = model.n_states, model.d[model.source] * model.probability
    p = p / p.sum()
    # l = base + slopes @ chi
    base = w[model.source] * c[model.source]
    slopes = np.zeros((len(p), S + 1))
    rows = np.arange(len(p))
    np.add.at(slopes, (rows, model.target), model.gamma * w[model.source])
    slopes = slopes[:, :-1]
    np.add.at(slopes, (rows, model.source // model.n_actions), -w[model.source])
    slopes = slopes + (1 - model.gamma) * model.rho0
    slopes -= p @ slopes  # the flow equation, to the last digit: without it there is no lower bound
    chi = np.linalg.lstsq(np.sqrt(p)[:, None] * slopes, -np.sqrt(p) * (base - p @ base), rcond=1e-10)[0]
    l = base + slopes @ chi
    spread = float(np.sqrt(p @ (l - p @ l) ** 2))
    if spread <= 1e-12:
        return float(p @ l), p
    x = np.append(spread / np.sqrt(2 * epsilon), chi)

    def value(x: Array) -> tuple[float, Array, Array, float]:
        l = base + slopes @ x[1:]
        scaled = (l - l.max()) / x[0]
        weights = p * np.exp(scaled)
        log_mean = float(np.log(weights.sum()))
        return float(l.max()) + x[0] * (log_mean + epsilon), weights / weights.sum(), l, log_mean + l.max() / x[0]

    f, q, l, log_mean = value(x)
    for _ in range(200):
        means = q @ slopes
        gradient = np.append(log_mean + epsilon - q @ l / x[0], means)
        columns = np.hstack([-(l - q @ l)[:, None] / x[0], slopes - means]) * np.sqrt(q)[:, None]
        hessian = columns.T @ columns / x[0]
        step = -_pseudo_inverse(hessian) @ gradient
        decrement = -float(gradient @ step)
        if decrement <= 1e-13 * (1 + abs(f)):
            break
        size = 1.0 if step[0] >= 0 else min(1.0, -0.9 * x[0] / step[0])
        while (found := value(x + size * step))[0] > f - 1e-4 * size * decrement:
            size /= 2
            if size < 1e-12:
                return f, q
        x, (f, q, l, log_mean) = x + size * step, found
    return f, q


def _pseudo_inverse(matrix: Array) -> Array:
    """Invert a positive semidefinite matrix, scaled to a unit diagonal, where it is not flat."""
    scale = np.sqrt(np.maximum(np.diag(matrix), 1e-12 * np.diag(matrix).max()))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    kept = values > 1e-10 * values[-1]
    vectors = vectors[:, kept] / scale[:, None]
    return (vectors / values[kept]) @ vectors.T
