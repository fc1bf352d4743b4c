"""Appendix H.1 beyond `dpdl.mixing`: mixing times of large chains, the pseudo spectral gap, Bernstein's inequality.

The chain of the pairs (s, a), an interval that contains the mixing time of a chain of any size, the quantity that
Theorem H.7 (Paulin, "Concentration inequalities for Markov chains by Marton couplings and spectral methods", 2015)
depends on, and the bound of Proposition H.1. Experiments and tests use these; no run needs them.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from scipy.special import gammaincinv

from dpdl import CMDP, mixing
from dpdl import _validation as check
from dpdl.policy import choice_matrix

Array = NDArray[np.float64]

#: The mixing time is the first time at which all distances are at most this.
_THRESHOLD = 0.25
#: Probability, over the Gaussian draws, that an upper bound of `mixing_time_bounds` fails, for any chain.
_FAILURE = 1e-9
#: Absolute error of eigenvalues and squared norms of dense matrices, all of which are at most one.
_EIGENVALUE_ERROR = 1e-13


def pair_kernel(cmdp: CMDP, policy: ArrayLike) -> sp.csr_array:
    """Return the (S*A, S*A) kernel of the pairs (s, a) under a policy, of a model without ends.

    A pair whose action the policy never takes is transient, and `dpdl.mixing.stationary` says so.

    Examples
    --------
    >>> cmdp = CMDP(P=[[[1.0], [1.0]]], r=[[0, 0]], u=[[[0, 0]]], gamma=0.5, rho0=[1])
    >>> pair_kernel(cmdp, [[0.25, 0.75]]).toarray().tolist()
    [[0.25, 0.75], [0.25, 0.75]]
    """
    return sp.csr_array(cmdp.P @ choice_matrix(check.policy_array("policy", policy, cmdp.n_states, cmdp.n_actions)))


def mixing_time_bounds(kernel: Any, rng: Any = 0) -> tuple[int, float]:
    """Return an interval that contains the mixing time, for chains of any size in seconds.

    Up to `EXACT_STATES` states it is a single number. Beyond, the lower end is certain: states that look slow are
    followed exactly. The upper end holds but for probability 1e-9 over the random numbers drawn from `rng`, whatever
    the chain, and up to the accuracy of ARPACK; it is infinite if the chain mixes too slowly for the budget of work.

    Notes
    -----
    4 TV(P^t(s, .), mu)^2 <= chi_s(t)^2, the squared norm of row s of (P^t - 1 mu^T) D^{-1/2}, D = diag(mu). For a
    Gaussian matrix G with b columns, row s of (P^t - 1 mu^T) D^{-1/2} G has squared norm chi_s(t)^2 X, X ~
    chi-square(b): b functions propagated backwards bound chi_s for all states s at once. Where that takes too many
    steps, chi_s(t + 16 m)^2 <= chi_s(t)^2 q^m, q being the second largest eigenvalue of (P*)^16 P^16 (one step of a
    chain that is not reversible need not contract).

    Examples
    --------
    >>> mixing_time_bounds([[0.99, 0.01], [0.01, 0.99]])
    (35, 35.0)
    """
    mu, P, rng = mixing.stationary(kernel), sp.csr_array(kernel), np.random.default_rng(rng)
    n = P.shape[0]
    if n <= mixing.EXACT_STATES:
        time = mixing.mixing_time(kernel)
        return time, float(time)
    if mu.min() < 1e-290:
        raise ValueError(f"state {int(np.argmin(mu))} has stationary probability {mu.min():g}, too small for a double")
    columns = 64
    most = min(2000, max(16, int(2e9 / (P.nnz + 4 * n) / columns)))  # a few seconds
    functions = rng.standard_normal((n, columns)) / np.sqrt(mu)[:, None]
    quantile = 2 * gammaincinv(columns / 2, _FAILURE / n / most)  # a union bound over states and steps
    slow = [int(np.argmin(mu)), int(np.argmax(mu))]
    for t in range(1, most + 1):
        functions = P @ functions
        functions -= mu @ functions
        squares = np.einsum("ij,ij->i", functions, functions)
        bound = 0.5 * math.sqrt(squares.max() / quantile)
        if t & (t - 1) == 0 or bound <= 4 * _THRESHOLD:
            slow = [*np.argpartition(squares, -4)[-4:].tolist(), *slow][:24]
        if bound <= _THRESHOLD:
            break
    lower, upper = _first_below(P, mu, np.unique(slow), most), float(t)
    if bound > _THRESHOLD:
        try:
            decay = _second_eigenvalue(P, mu, 16) + 2e-8  # twice the error of ARPACK
        except ArpackNoConvergence:
            decay = 1.0
        upper += 16 * math.ceil(2 * math.log(bound / _THRESHOLD) / -math.log(decay)) if decay < 1 else math.inf
    return lower, upper


def pseudo_spectral_gap(kernel: Any) -> float:
    """Return gamma_ps = max over k >= 1 of gap((P*)^k P^k)/k, where P* is P run backwards in time.

    It is at least 1/(2 t_mix). The gap of k is nondecreasing in k and at most one, so that few k need a look. The
    result is right to a relative 1e-9 and an absolute 4e-13, and below it where that is more. Beyond `EXACT_STATES`
    states the gaps come from ARPACK, to 1e-8, and k goes up to 64: a lower bound.

    Examples
    --------
    >>> round(pseudo_spectral_gap([[0.75, 0.25], [0.25, 0.75]]), 6)  # reversible: 1 - lambda^2
    0.75
    """
    mu, P = mixing.stationary(kernel), sp.csr_array(kernel)
    small = P.shape[0] <= mixing.EXACT_STATES
    root = np.sqrt(mu)
    dense = root[:, None] * P.toarray() / root - np.outer(root, root) if small else np.zeros((1, 1))
    radius = float(abs(np.linalg.eigvals(dense)).max())  # zero, which says nothing, if not small

    @cache
    def gap(k: int) -> float:
        norm = float(np.linalg.norm(np.linalg.matrix_power(dense, k), 2))
        return min(1.0, max(0.0, 1 - (norm**2 if small else _second_eigenvalue(P, mu, k))))

    def beyond(k: int) -> float:
        # Bounds gap(j)/j for all j > k: the norm of a j-th power is at least the spectral radius to the power of j,
        # and (1 - rho^2j)/j decreases in j. Else a chain that is nearly reducible would need a look at every j.
        decay = min(1.0, radius - _EIGENVALUE_ERROR)
        return (1.0 if decay <= 0 else -math.expm1(2 * (k + 1) * math.log(decay))) / (k + 1)

    best, k = gap(1), 1
    while 2 * k <= (2**40 if small else 64) and beyond(k) > best:
        k *= 2
        best = max(best, gap(k) / k)
    intervals = list(pairwise(1 << j for j in range(k.bit_length())))
    while intervals:
        low, high = intervals.pop()
        best = max(best, gap(high) / high)
        # Strictly between low and high no k does better than gap(high)/(low + 1).
        bound = min(gap(high) / (low + 1), beyond(low))
        if high - low > 1 and bound > best * (1 + 1e-9) + 4 * _EIGENVALUE_ERROR:
            middle = (low + high) // 2
            intervals += [(low, middle), (middle, high)]
    return best


def bernstein_half_width(n: int, variance: float, bound: float, mixing_time: float, delta: float) -> float:
    """Return the half-width of Proposition H.1, for the sum of f over n steps of a chain.

    If f has mean zero, variance sigma^2 under mu and ``|f| <= M``, then with probability at least 1 - delta, wherever
    the chain starts, ``|sum f(X_t)| <= sqrt(32 t_mix n sigma^2 log(4/delta)) + 82 t_mix M log(4/delta)``.

    A bound of t_mix, at least one, serves as well as `mixing_time`; `variance` is sigma^2, and `bound` is M.

    Examples
    --------
    >>> round(bernstein_half_width(10_000, variance=0.25, bound=1.0, mixing_time=2, delta=0.04), 3)
    1613.634
    """
    n = check.whole("n", n, at_least=1)
    bound = check.real("bound", bound, at_least=0)
    variance = check.real("variance", variance, at_least=0)
    if variance > bound**2 * (1 + 1e-12):
        raise ValueError(f"variance must be <= bound^2 = {bound**2!r}, got {variance!r}")
    delta = check.real("delta", delta, above=0, below=1)
    length = check.real("mixing_time", mixing_time, at_least=1) * math.log(4 / delta)
    return math.sqrt(32 * n * variance * length) + 82 * bound * length


def _first_below(P: sp.csr_array, mu: Array, starts: NDArray[np.intp], most: int) -> int:
    """Return the least t at which all these starting states are within 1/4 of mu, or `most` if that is less."""
    outward, rows = sp.csr_array(P.T), np.zeros((P.shape[0], len(starts)))
    rows[starts, np.arange(len(starts))] = 1.0
    for t in range(most):
        if 0.5 * abs(rows - mu[:, None]).sum(axis=0).max() <= _THRESHOLD:
            return t
        rows = outward @ rows
    return most


def _second_eigenvalue(P: sp.csr_array, mu: Array, k: int) -> float:
    """Return the second largest eigenvalue of (P*)^k P^k, to 1e-8; ArpackNoConvergence if that takes too long."""
    root = np.sqrt(mu)
    matrix = sp.csr_array(sp.diags_array(root) @ P @ sp.diags_array(1 / root))  # here P* is the transpose
    transpose = sp.csr_array(matrix.T)

    def apply(vector: Array) -> Array:
        vector = np.ravel(vector)
        vector = vector - root * (root @ vector)
        for factor in [matrix] * k + [transpose] * k:
            vector = factor @ vector
        return vector - root * (root @ vector)

    operator = LinearOperator(P.shape, matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(len(mu))
    return float(eigsh(operator, k=1, which="LA", tol=1e-8, maxiter=30, v0=start, return_eigenvectors=False)[0])
