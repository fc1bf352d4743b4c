"""The algorithm in plain NumPy: the executable specification of the compiled core.

It follows Algorithm 1 of the paper, stores every pair of S x A, and solves the x-update by the four cases of appendix
A.3 one after another. With the draws of a `Sampler` it makes the same iterates as the core, some hundred times slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from dpdl import theory
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.settings import Resolved

#: log sum exp; scipy's takes a hundred times as long for a few numbers.
log_sum = np.logaddexp.reduce

#: Sums may exceed their bounds by this much, relatively, to allow for rounding.
TOLERANCE = 1e-14
#: A cap that leaves less than this part of a bound to all other pairs is treated as implied by that bound.
TIE = 1e-13


@dataclass
class Twin:
    """Iterate, sums for the averages, and the step.

    Parameters
    ----------
    dataset : Dataset
        The log, posed if it has costs; `step` takes record numbers.
    mu_hat : array, shape (S, A)
        Estimate of the reference distribution.
    settings : Resolved
        Constants.
    x, V, lam : arrays
        Starting point, shapes (S, A), (S,), (I,).
    """

    dataset: Dataset
    mu_hat: Array
    settings: Resolved
    x: Array
    V: Array
    lam: Array

    def __post_init__(self) -> None:
        s = self.settings
        n_states, n_actions = self.mu_hat.shape
        self.log_x, self.log_lam = np.log(self.x).ravel(), np.log(self.lam)
        self.V = self.V.copy()
        self.c = 1 / self.mu_hat.ravel()
        self.log_cap = np.log(s.psi / (1 - s.gamma) * self.mu_hat.ravel())
        self.B1 = theory.sum_bound(s.gamma)
        self.B2 = theory.weight_bound(n_states, n_actions, len(self.lam), s.gamma, s.psi)
        self.x_sum, self.V_sum, self.lam_sum = np.zeros(self.x.size), np.zeros_like(self.V), np.zeros_like(self.lam)
        self.cases = [0, 0, 0, 0]
        self.columns = [column.copy() for column in (self.dataset.s, self.dataset.a, self.dataset.s_next)]
        self.r, self.u = self.dataset.r, self.dataset.u

    def step(self, record: int, initial: int) -> None:
        """One iteration of Algorithm 1 with the sample (s0, s, a, s', r, u); all gradients at the old iterate."""
        k = self.settings
        s, a, s_next = (column[record] for column in self.columns)
        j = s * self.mu_hat.shape[1] + a
        # u^kappa; a row after which nothing follows also carries the margin of all later steps.
        u = self.u[record] - (k.kappa if s_next < 0 else (1 - k.gamma) * k.kappa)
        x, lam = np.exp(self.log_x), np.exp(self.log_lam)
        self.x_sum += x
        self.V_sum += self.V
        self.lam_sum += lam

        # Equation (9), with the sign of g_x as the Lagrangian has it.
        w = x[j] * self.c[j]
        g_V = np.zeros_like(self.V)
        g_V[initial] += 1
        g_V[s] -= w
        if s_next >= 0:  # otherwise the episode ended, and nothing follows
            g_V[s_next] += w * k.gamma
        V_next = self.V[s_next] if s_next >= 0 else 0.0
        g_lam = w * u
        g_x = (self.r[record] - self.V[s] + k.gamma * V_next + u @ lam) * self.c[j]

        # Equation (11).
        self.V = np.clip(self.V - k.eta / k.alpha_V * g_V, -k.radius_V, k.radius_V)
        self.log_lam = lam_update(self.log_lam, k.eta / k.alpha_lam * g_lam, k.radius_lam)
        self.log_x, case = x_update(self.log_x, self.c, self.log_cap[j], j, k.eta / k.alpha_x * g_x, self.B1, self.B2)
        self.cases[case - 1] += 1

    @property
    def means(self) -> tuple[Array, Array, Array]:
        """Averages of x, V and lam over the iterates before each step taken."""
        n = sum(self.cases)
        return self.x_sum.reshape(self.mu_hat.shape) / n, self.V_sum / n, self.lam_sum / n

    @property
    def point(self) -> tuple[Array, Array, Array]:
        """The present iterate (x, V, lam)."""
        return np.exp(self.log_x).reshape(self.mu_hat.shape), self.V, np.exp(self.log_lam)


def lam_update(log_lam: Array, step: Array, radius: float) -> Array:
    """lam exp(-step), scaled down to sum `radius` if above; in logarithms.

    Examples
    --------
    >>> np.exp(lam_update(np.zeros(2), np.zeros(2), 1.0)).tolist()
    [0.5, 0.5]
    """
    half = log_lam - step
    return half - max(0.0, log_sum(half) - np.log(radius)) if len(half) else half


def x_update(log_y: Array, c: Array, log_cap: float, j: int, step: float, B1: float, B2: float) -> tuple[Array, int]:
    """Solve argmin -step x_j + KL(x || y) over x_j <= cap, sum x <= B1, sum c x <= B2 by the cases of appendix A.3.

    Returns the logarithm of x and the case, 1 to 4.

    Examples
    --------
    >>> log_x, case = x_update(np.log([0.5, 0.5]), np.array([2.0, 2.0]), 0.0, 0, 1.0, 1.0, 10.0)
    >>> np.exp(log_x).round(3).tolist(), case
    ([0.731, 0.269], 2)
    """
    if log_cap >= math.log(min(B1, B2 / c[j])) - TIE:  # the sum implies the cap, to rounding at least
        log_cap = math.inf
    log_free = log_y.copy()
    log_free[j] += step
    # Two candidates per case: j free, or at its cap; then the bounds of the others are reduced by its part.
    everyone, others = np.ones(len(c), dtype=bool), np.arange(len(c)) != j
    cap = math.exp(log_cap) if log_cap < math.inf else 0.0
    parts = [(everyone, B1, B2), (others, B1 - cap, B2 - c[j] * cap)]
    found: list[tuple[float, Array, int]] = []
    for case, multipliers in ((1, _no_multiplier), (2, _only_alpha), (3, _only_beta), (4, _both)):
        for part, b1, b2 in parts if log_cap < math.inf else parts[:1]:
            solution = multipliers(log_free[part], c[part], b1, b2)
            if solution is None:
                continue
            alpha, beta = solution
            log_x = log_free - alpha - c * beta
            # A candidate with j free must not exceed the cap; one with j at its cap must exceed it without the cap.
            beyond = float(log_x[j] - log_cap)
            log_x[j] = min(log_x[j], log_cap)
            x = np.exp(log_x[part])
            excess = max(x.sum() / b1 - 1, c[part] @ x / b2 - 1, -beyond if part is others else beyond)
            if excess <= (TOLERANCE if case == 1 else 10 * TOLERANCE):
                return log_x, case
            found.append((excess, log_x, case))
    # Rounding can make every candidate slightly infeasible; a KKT point exists, so take the one with the least excess.
    _, log_x, case = min(found, key=lambda one: one[0])
    return log_x, case


def _no_multiplier(log_y: Array, c: Array, B1: float, B2: float) -> tuple[float, float] | None:
    """Case 1: only j moves."""
    return 0.0, 0.0


def _only_alpha(log_y: Array, c: Array, B1: float, B2: float) -> tuple[float, float] | None:
    """Case 2: sum y exp(-alpha) = B1."""
    if B1 <= 0 or not len(c):
        return None
    alpha = log_sum(log_y) - math.log(B1)
    return (alpha, 0.0) if alpha > 0 else None


def _only_beta(log_y: Array, c: Array, B1: float, B2: float) -> tuple[float, float] | None:
    """Case 3: sum c y exp(-c beta) = B2."""
    if B2 <= 0 or not len(c):
        return None
    log_cy = np.log(c) + log_y
    beta = _root(lambda beta: log_sum(log_cy - c * beta) - math.log(B2), c)
    return None if beta is None else (0.0, beta)


def _both(log_y: Array, c: Array, B1: float, B2: float) -> tuple[float, float] | None:
    """Case 4: the ratio of the two equations gives beta, the first one alpha."""
    if B1 <= 0 or B2 <= 0 or not len(c) or c.min() >= B2 / B1:
        return None
    log_cy = np.log(c) + log_y
    beta = _root(
        lambda beta: log_sum(log_cy - c * beta) - log_sum(log_y - c * beta) - math.log(B2 / B1),
        c,
    )
    if beta is None:
        return None
    alpha = log_sum(log_y - c * beta) - math.log(B1)
    return (alpha, beta) if alpha > 0 else None


def _root(f: Callable[[float], float], c: Array) -> float | None:
    """Positive root of a decreasing function, to the last bits; None if there is none."""
    if f(0.0) <= 0:
        return None
    high = 1 / c.max()
    while f(high) > 0:
        high *= 4
        if high * c.min() > 1e8:
            return None
    return float(brentq(f, 0.0, high, xtol=1e-300, rtol=4 * np.finfo(float).eps))
