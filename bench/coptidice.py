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
reduced until margin and solution agree. For given limits b_i the dual is convex and piecewise quadratic in nu and lam,

    minimise   (1-gamma) rho0.nu + lam.b + E_d[max over w >= 0 of w e - alpha (w - 1)^2 / 2],
               e = r - sum_i lam_i c_i + gamma P nu - nu,    w = max(0, 1 + e / alpha),

and both are solved at once by an interior-point method.

Its authors' tabular experiments have alpha = 1/N, epsilon = 0.1/N for N trajectories. Pairs that the log does not show
lead back to their state at the least reward and the largest costs of the log, and have the mass UNSEEN in d.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpdl import Dataset, exact

Array = NDArray[np.float64]

#: The bound of each multiplier, for rewards and costs of size one: beyond it a limit that cannot be kept is given up.
LARGEST_MULTIPLIER = 10.0
UNSEEN = 1e-6
#: Residual of the program and gap between primal and dual: where the method stops, and what is accepted at least.
TOLERANCE, ACCEPTED = 1e-10, 1e-7
#: Least value of a variable, so that quotients of two do not overflow.
TINY = 1e-100
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
        n_pairs, rule = model.r.size, log.question
        assert rule is not None
        pair = log.s.astype(np.int64) * log.n_actions + log.a
        slack = log.u * np.array(log.question.scales)
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
        # Costs are at most one: no policy keeps a limit below minus one, however far below.
        w = solve(model, np.maximum(limits - margins, -1.0), alpha)
        found = np.array([upper_bound(model, w, c, epsilon)[0] - float(model.d @ (w * c)) for c in model.c])
        # Half steps from the tenth round on: the margin of the solution to a margin may jump to and fro.
        change = (found - margins) * (1.0 if round_ < 10 else 0.5)
        margins = margins + change
        if abs(change).max() <= SETTLED:
            break
    return w


def solve(model: Empirical, limits: Array, alpha: float) -> Array:
    """Return w for limits of E_d[w c], by the primal-dual interior-point method of Mehrotra.

    In x = (q, s, t) >= 0, where q = d w is the occupancy, s the room below the limits, and t the excess above them,
    which LARGEST_MULTIPLIER prices, the problem is a quadratic program with a diagonal matrix:

        minimise  x.(D x)/2 + g.x   subject to   G x = h,   D = (alpha/d, 0, 0), g = (-r - alpha, 0, LARGEST_MULTIPLIER)

    nu and -lam are the multipliers y of G x = h.
    """
    n, n_costs, S = len(model.r), len(limits), model.n_states
    D = np.append(alpha / model.d, np.zeros(2 * n_costs))
    g = np.concatenate([-model.r - alpha, np.zeros(n_costs), np.full(n_costs, LARGEST_MULTIPLIER)])
    G = np.zeros((S + n_costs, len(g)))
    G[:S, :n], G[S:, :n] = -model.flow().T, model.c
    G[S:, n:] = np.hstack([np.eye(n_costs), -np.eye(n_costs)])
    h = np.append((1 - model.gamma) * model.rho0, limits)
    x, y, z = np.append(model.d, np.ones(2 * n_costs)), np.zeros(len(h)), np.ones(len(g))
    best, found = np.inf, x
    for _iteration in range(200):
        primal, dual, product = h - G @ x, g + D * x - G.T @ y - z, float(x @ z)
        residual = max(float(abs(primal).max()), float(abs(dual).max()), product)
        if residual < best:
            best, found = residual, x
        if residual <= TOLERANCE or (best <= ACCEPTED and residual > 1e3 * best):  # solved, or no digits are left
            break
        system = _System(G, 1 / (D + z / x), primal, dual, x, z)
        dx, _, dz = system.direction(np.zeros(len(x)))
        after = float((x + _longest(x, dx) * dx) @ (z + _longest(z, dz) * dz))
        centre = (after / product) ** 3 * product / len(x)
        dx, dy, dz = system.direction(centre - dx * dz)
        size = min(_longest(x, dx), _longest(z, dz))
        x, y, z = np.maximum(x + size * dx, TINY), y + size * dy, np.maximum(z + size * dz, TINY)
    if best > ACCEPTED:
        raise RuntimeError(f"the program was not solved: residual {best:g}")
    return found[:n] / model.d


@dataclass(frozen=True)
class _System:
    """The linear equations of one step of the interior-point method."""

    G: Array
    weights: Array
    primal: Array
    dual: Array
    x: Array
    z: Array

    @cached_property
    def normal(self) -> Array:
        found = (self.G * self.weights) @ self.G.T
        return found + 1e-14 * np.trace(found) / len(found) * np.eye(len(found))

    def direction(self, target: Array) -> tuple[Array, Array, Array]:
        """Return the step that makes the residuals zero and x z equal to `target`, to first order."""
        right = self.dual - target / self.x + self.z
        dy = np.linalg.solve(self.normal, self.primal + (self.G * self.weights) @ right)
        dx = self.weights * (self.G.T @ dy - right)
        return dx, dy, target / self.x - self.z - self.z / self.x * dx


def _longest(x: Array, step: Array) -> float:
    """Return the longest step, at most one, that leaves x positive."""
    shrinks = step < 0
    return min(1.0, 0.995 * float((-x[shrinks] / step[shrinks]).min(initial=np.inf)))


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
