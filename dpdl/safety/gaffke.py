"""Gaffke's upper confidence bound of a mean: a Bayesian bootstrap with the worst value as one more term.

For terms X_1, ..., X_n and a worst value X_0 the bound is the 1 - delta quantile of

    sum_i D_i X_i,   (D_0, ..., D_n) uniform on the simplex

(Gaffke 2005; Learned-Miller and Thomas 2019). With independent G_i ~ Gamma(m_i), m_i the multiplicity of a value, the
sum exceeds t if and only if Q = sum_i G_i (X_i - t) > 0. The cumulant function of Q is K(z) = -sum m_i log(1 - z (X_i -
t)), so that

    P(Q > 0) = 1/(2 pi i) int exp(K(z))/z dz    from below to above, through a real z0 > 0 with z0 (max X - t) < 1.

Through the saddle point of K, along a hyperbola with the curvature of steepest descent, the integrand falls off like
a normal density, and the trapezoidal rule converges geometrically: the probability is computed to some ten digits, and
nothing is drawn at random.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from dpdl._validation import Array

#: Values are collected on about this many nodes.
NODES = 240
_STEP, _BLOCK, _MOST_BLOCKS, _TINY = 0.12, 24, 20, 1e-300


def upper_bound(values: Array, counts: Array, delta: float) -> float:
    """Return the 1 - delta quantile of the mean with Dirichlet weights.

    Parameters
    ----------
    values : array, shape (n,)
        Terms, the worst value among them.
    counts : array, shape (n,)
        Multiplicities, positive.
    delta : float
        Level, below one.

    Examples
    --------
    One zero and a worst value of one: the weight of the latter is uniform.

    >>> round(upper_bound(np.array([0.0, 1.0]), np.array([1.0, 1.0]), 0.05), 9)
    0.95
    """
    values, counts = collect(values, counts)
    least, most = float(values[0]), float(values[-1])
    if not most > least:
        return most
    mean = float(counts @ values / counts.sum())
    sd = np.sqrt(float(counts @ (values - mean) ** 2)) / counts.sum()

    def excess(t: float) -> float:
        """Zero at the quantile, and nearly linear in t for a normal distribution."""
        return float(np.sqrt(-2 * np.log(min(max(exceeds(values, counts, t), _TINY), 1.0)))) - wanted

    wanted = float(np.sqrt(-2 * np.log(delta)))
    step, low, high = float(sd), mean, mean
    while low > least and excess(low) > 0:
        low = max(least, low - step)
    while high < most and excess(high) < 0:
        low, high, step = high, min(most, high + 2 * step), 2 * step
    if not high > low:
        return high
    return float(brentq(excess, low, high, xtol=1e-9 * (high - low), rtol=1e-12))


def exceeds(values: Array, counts: Array, t: float) -> float:
    """Return the probability that the mean with Dirichlet weights exceeds t.

    Examples
    --------
    >>> round(exceeds(np.array([0.0, 1.0]), np.array([3.0, 1.0]), 0.5), 9)
    0.125
    """
    a = values - t
    if a.max() <= 0:
        return 0.0
    if a.min() >= 0:
        return 1.0
    end, w = 1 / a.max(), 1 / np.sqrt(float(counts @ a**2))
    z = min(max(_saddle(a, counts), w), 0.999 * end)
    b = a / (1 - z * a)
    second, third = float(counts @ b**2), 2 * float(counts @ b**3)
    w, at_saddle = 1 / np.sqrt(second), float(np.exp(-(counts @ np.log1p(-z * a))))
    bend = min(max(third / (3 * second**1.5), -1.0), 1.0)
    total, largest = 0.0, 0.0
    for block in range(_MOST_BLOCKS):
        v = _STEP * np.arange(block * _BLOCK, (block + 1) * _BLOCK)
        d = w * (bend * (np.cosh(v) - 1) + 1j * np.sinh(v))
        # K(z + d) - K(z), because 1 - (z + d) a = (1 - z a) (1 - d b).
        log = np.log(1 - d[:, None] * b)
        k = log.real @ counts + 1j * (log.imag @ counts)
        f = np.exp(-k) / (z + d) * w * (bend * np.sinh(v) + 1j * np.cosh(v))
        if block == 0:
            f[0] /= 2
        total, largest = total + float(f.imag.sum()), max(largest, float(abs(f).max()))
        if abs(f[-1]) <= 1e-13 * largest:
            break
    return float(min(max(at_saddle * _STEP * total / np.pi, 0.0), 1.0))


def _saddle(a: Array, counts: Array) -> float:
    """The z at which sum m a/(1 - z a), which increases from -inf to inf, is zero; Newton inside a bracket."""
    low, high = 1 / a.min(), 1 / a.max()
    z = 0.0
    for _ in range(60):
        ratio = a / (1 - z * a)
        slope, value = float(counts @ ratio**2), float(counts @ ratio)
        low, high = (z, high) if value < 0 else (low, z)
        step = z - value / slope
        following = step if low < step < high else (low + high) / 2
        if abs(following - z) <= 1e-6 * abs(following):
            return following
        z = following
    return z


def collect(values: Array, counts: Array, n: int = NODES) -> tuple[Array, Array]:
    """Sort values, add the counts of equal ones and, of more than `n`, share each between the nodes beside it.

    Sharing keeps the mean and adds to the spread, so that the bound can only grow. Nodes are densest about zero.
    """
    values, where = np.unique(values, return_inverse=True)
    counts = np.asarray(np.bincount(where, counts, len(values)), dtype=np.float64)
    if len(values) <= n:
        return values, counts
    sd = np.sqrt(float(counts @ values**2) / counts.sum())
    node = sd * np.sinh(np.linspace(np.arcsinh(values[0] / sd), np.arcsinh(values[-1] / sd), n))
    node[0], node[-1] = values[0], values[-1]
    right = np.clip(np.searchsorted(node, values), 1, n - 1)
    part = np.clip((values - node[right - 1]) / (node[right] - node[right - 1]), 0.0, 1.0)
    shared = np.bincount(right, part * counts, n) + np.bincount(right - 1, (1 - part) * counts, n)
    return node[shared > 0], np.asarray(shared[shared > 0], dtype=np.float64)
