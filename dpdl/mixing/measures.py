"""Measures of mixing: distances, mixing times and the pseudo spectral gap; the package states the definitions."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator, eigsh

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.mixing import bounds
from dpdl.mixing.bounds import MixingTime
from dpdl.mixing.chain import (
    BLOCK,
    EXACT_STATES,
    checked_kernel,
    distances_blockwise,
    distances_dense,
    mixing_time_dense,
    stationary_of,
)
from dpdl.models.cmdp import CMDP

#: Absolute error of eigenvalues and squared norms, all of which are at most one.
_EIGENVALUE_ERROR = 1e-13
#: Relative differences of gaps that are not worth a search.
_INDISTINGUISHABLE = 1e-9


def behaviour_kernel(cmdp: CMDP, policy: ArrayLike) -> sp.csr_array:
    """Return the (S, S) kernel of the states under a policy: ``P_pi(s, s') = sum_a pi(a|s) P(s'|s, a)``.

    Where episodes end, the next one begins in a state drawn from rho0.

    Examples
    --------
    >>> P = [[[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]]
    >>> cmdp = CMDP(P, r=[[0, 0], [0, 0]], u=[[[0, 0], [0, 0]]], gamma=0.5, rho0=[1, 0])
    >>> behaviour_kernel(cmdp, [[0.5, 0.5], [1.0, 0.0]]).toarray().tolist()
    [[0.25, 0.75], [1.0, 0.0]]
    """
    return _without_zeros(_choices(cmdp, policy) @ _with_restarts(cmdp))


def pair_kernel(cmdp: CMDP, policy: ArrayLike) -> sp.csr_array:
    """Return the (S*A, S*A) kernel of the pairs (s, a) under a policy: ``P(s'|s, a) pi(a'|s')``.

    A pair whose action the policy never takes is transient, and `stationary` says so.

    Examples
    --------
    >>> cmdp = CMDP(P=[[[1.0], [1.0]]], r=[[0, 0]], u=[[[0, 0]]], gamma=0.5, rho0=[1])
    >>> pair_kernel(cmdp, [[0.25, 0.75]]).toarray().tolist()
    [[0.25, 0.75], [0.25, 0.75]]
    """
    return _without_zeros(_with_restarts(cmdp) @ _choices(cmdp, policy))


def _with_restarts(cmdp: CMDP) -> sp.csr_array:
    """P, with the ends of episodes leading to the first state of the next one."""
    if cmdp.ends is None:
        return cmdp.P
    return cmdp.P + sp.csr_array(cmdp.ends.reshape(-1, 1)) @ sp.csr_array(cmdp.rho0[None])


def stationary(kernel: Any) -> Array:
    """Return the stationary distribution mu of an irreducible aperiodic kernel.

    Raises
    ------
    ValueError
        If a state is transient, if there are several closed classes, or if the chain is periodic.

    Notes
    -----
    Small kernels go to the elimination of Grassmann, Taksar and Heyman, accurate in every entry. Others go to power
    iteration, and if that has not converged in a thousand steps, to a sparse LU.

    Examples
    --------
    >>> stationary([[0.5, 0.5], [0.25, 0.75]]).round(6).tolist()
    [0.333333, 0.666667]
    """
    return stationary_of(checked_kernel(kernel))


def tv_distance(kernel: Any, t: int | ArrayLike, starts: ArrayLike | None = None) -> Any:
    """Return E(t) = max_s TV(P^t(s, .), mu), for one t (a float) or several (an array).

    Parameters
    ----------
    kernel : array_like or sparse array, shape (n, n)
        Transition probabilities.
    t : int or array_like of int
        Numbers of steps.
    starts : array_like of int, optional
        Take the maximum over these starting states only; cheap for chains of any size.

    Examples
    --------
    >>> tv_distance([[0.5, 0.5], [0.25, 0.75]], [0, 1, 2]).round(6).tolist()  # 2/3 (1/4)^t
    [0.666667, 0.166667, 0.041667]
    """
    P = checked_kernel(kernel)
    times = check.indices("t", t, 2**62, shape=(None,) * np.ndim(t), dtype=np.int64)
    chosen = None if starts is None else check.indices("starts", starts, P.shape[0], dtype=np.intp)
    if chosen is not None and not chosen.size:
        raise ValueError("starts is empty: name at least one state")
    mu = stationary_of(P)
    wanted, inverse = np.unique(times, return_inverse=True)
    if chosen is None and P.shape[0] <= EXACT_STATES:
        found = distances_dense(P.toarray(), mu, wanted)
    else:
        found = distances_blockwise(P, mu, wanted, np.arange(P.shape[0]) if chosen is None else chosen)
    return found[inverse].reshape(np.shape(t)) if np.ndim(t) else float(found[0])


def mixing_time(kernel: Any, threshold: float = 0.25, *, method: str = "auto") -> int:
    """Return the exact mixing time, the least t with E(t) <= threshold.

    Parameters
    ----------
    kernel : array_like or sparse array, shape (n, n)
        Transition probabilities.
    threshold : float, optional
        In [1e-9, 1), since rounding hides smaller distances; a quarter gives the t_mix of equation (48).
    method : {"auto", "exact"}, optional
        "auto" is exact up to `EXACT_STATES` states; beyond, it asks `mixing_time_bounds`, and raises ValueError with
        the interval if that is not a single number. "exact" follows every state, however long it takes.

    Examples
    --------
    >>> mixing_time([[0.99, 0.01], [0.01, 0.99]])  # E(t) = 0.98^t/2
    35
    """
    P, threshold = checked_kernel(kernel), _checked_threshold(threshold)
    n = P.shape[0]
    if check.choice("method", method, ("auto", "exact")) == "exact" and n > EXACT_STATES:
        mu, blocks = stationary_of(P), np.array_split(np.arange(n), math.ceil(n / BLOCK))
        return max(bounds.first_below(P, mu, block, threshold, 2**62) for block in blocks)
    interval = _interval(P, threshold, np.random.default_rng(0))
    if not interval.exact:
        raise ValueError(
            f"the mixing time of these {n} states is between {interval.lower} and {interval.upper:g}; "
            "mixing_time_bounds returns that interval, and method='exact' follows every state"
        )
    return interval.lower


def mixing_time_bounds(kernel: Any, threshold: float = 0.25, rng: Any = 0) -> MixingTime:
    """Return an interval that contains the mixing time, for chains of any size.

    Up to `EXACT_STATES` states it is a single number. Beyond, the lower end is certain (up to rounding), and the
    upper end holds but for probability 6e-9 over the random numbers drawn from `rng`, whatever the chain. The
    message says how it was found; see the module `dpdl.mixing.bounds` for the mathematics. The upper end is
    infinite if the budget of work, a few seconds, was not enough.

    Examples
    --------
    >>> mixing_time_bounds([[0.99, 0.01], [0.01, 0.99]])
    MixingTime(lower=35, upper=35.0, message='exact, from dense powers')
    """
    return _interval(checked_kernel(kernel), _checked_threshold(threshold), check.generator(rng))


def pseudo_spectral_gap(kernel: Any, max_power: int | None = None) -> float:
    """Return gamma_ps = max over k >= 1 of gap((P*)^k P^k)/k, where P* is P run backwards in time.

    It is at least 1/(2 t_mix). The gap of k is nondecreasing in k and at most one, so that few k need a look. The
    result is right to a relative 1e-9 and an absolute 4e-13, and below it where that is more.

    Parameters
    ----------
    kernel : array_like or sparse array, shape (n, n)
        Transition probabilities.
    max_power : int, optional
        Largest k to consider; then the result is a lower bound of gamma_ps. By default none up to `EXACT_STATES`
        states, and 64 beyond, where the gaps come from ARPACK (to 1e-8) instead of a dense factorisation.

    Examples
    --------
    >>> round(pseudo_spectral_gap([[0.75, 0.25], [0.25, 0.75]]), 6)  # reversible: 1 - lambda^2
    0.75
    """
    P = checked_kernel(kernel)
    largest = 2**40 if max_power is None else check.whole("max_power", max_power, at_least=1)
    if max_power is None and P.shape[0] > EXACT_STATES:
        largest = 64
    gaps = _Gaps(P, stationary_of(P))
    best, k = gaps(1), 1
    while 2 * k <= largest and gaps.beyond(k) > best:
        k *= 2
        best = max(best, gaps(k) / k)
    ends = [1 << j for j in range(k.bit_length())]
    if k < largest and gaps.beyond(k) > best:
        ends.append(largest)
    intervals = list(pairwise(ends))
    while intervals:
        low, high = intervals.pop()
        best = max(best, gaps(high) / high)
        # Strictly between low and high no k does better than gap(high)/(low + 1).
        bound = min(gaps(high) / (low + 1), gaps.beyond(low))
        if high - low > 1 and bound > best * (1 + _INDISTINGUISHABLE) + 4 * _EIGENVALUE_ERROR:
            middle = (low + high) // 2
            intervals += [(low, middle), (middle, high)]
    return best


def bernstein_half_width(n: int, variance: float, bound: float, mixing_time: float, delta: float) -> float:
    """Return the half-width of Proposition H.1, for the sum of f over n steps of a chain.

    If f has mean zero, variance sigma^2 under mu and ``|f| <= M``, then with probability at least 1 - delta, wherever
    the chain starts, ``|sum f(X_t)| <= sqrt(32 t_mix n sigma^2 log(4/delta)) + 82 t_mix M log(4/delta)``.

    Parameters
    ----------
    n : int
        Number of steps.
    variance, bound : float
        sigma^2 and M; sigma^2 <= M^2.
    mixing_time : float
        t_mix or an upper bound, at least one.
    delta : float
        Probability of failure, in (0, 1).

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
    length = check.real("mixing_time", mixing_time, at_least=1) * math.log(
        4 / check.real("delta", delta, above=0, below=1)
    )
    return math.sqrt(32 * n * variance * length) + 82 * bound * length


def _checked_threshold(threshold: float) -> float:
    # E(t) is known to some 1e-13 for a thousand states.
    return check.real("threshold", threshold, at_least=1e-9, below=1)


def _interval(P: sp.csr_array, threshold: float, rng: np.random.Generator) -> MixingTime:
    mu = stationary_of(P)
    if P.shape[0] > EXACT_STATES:
        return bounds.bracket(P, mu, threshold, rng)
    time = mixing_time_dense(P.toarray(), mu, threshold)
    return MixingTime(time, float(time), "exact, from dense powers")


def _choices(cmdp: CMDP, policy: ArrayLike) -> sp.csr_array:
    """Return the (S, S*A) matrix that turns a state into its pairs."""
    check.instance("cmdp", cmdp, CMDP)
    pi = check.policy_array("policy", policy, cmdp.n_states, cmdp.n_actions)
    return policies.choice_matrix(pi / pi.sum(axis=1, keepdims=True))


def _without_zeros(matrix: Any) -> sp.csr_array:
    matrix = sp.csr_array(matrix)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix


# ---- Gaps of (P*)^k P^k ----


class _Gaps:
    """The gap of (P*)^k P^k as a function of k, cached: one minus the second largest eigenvalue."""

    def __init__(self, P: sp.csr_array, mu: Array) -> None:
        self.root = np.sqrt(mu)
        self.matrix = sp.csr_array(sp.diags_array(self.root) @ P @ sp.diags_array(1 / self.root))
        self.dense = self.matrix.toarray() - np.outer(self.root, self.root) if len(mu) <= EXACT_STATES else None
        self.known: dict[int, float] = {}
        # Zero where it is not known: the bound then says no more than gap <= 1.
        self.radius = 0.0 if self.dense is None else float(abs(np.linalg.eigvals(self.dense)).max())

    def beyond(self, k: int) -> float:
        """An upper bound of gap(j)/j for all j > k.

        The second largest eigenvalue of (P*)^j P^j is the square of a norm of a j-th power, hence at least the spectral
        radius to the power of 2 j; and (1 - rho^2j)/j decreases in j. Without it, every j up to 1/gamma_ps would need a
        look where the chain is nearly reducible.
        """
        decay = min(1.0, self.radius - _EIGENVALUE_ERROR)
        gap = 1.0 if decay <= 0 else -math.expm1(2 * (k + 1) * math.log(decay))
        return gap / (k + 1)

    def __call__(self, k: int) -> float:
        if k not in self.known:
            if self.dense is None:
                squared = self._large(k)
            else:
                squared = float(np.linalg.norm(np.linalg.matrix_power(self.dense, k), 2)) ** 2
            self.known[k] = min(1.0, max(0.0, 1 - squared))
        return self.known[k]

    def _large(self, k: int) -> float:
        transpose = sp.csr_array(self.matrix.T)

        def apply(vector: Array) -> Array:
            vector = np.ravel(vector)
            vector = vector - self.root * (self.root @ vector)
            for matrix in [self.matrix] * k + [transpose] * k:
                vector = matrix @ vector
            return vector - self.root * (self.root @ vector)

        n = len(self.root)
        operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(n)
        return float(eigsh(operator, k=1, which="LA", tol=1e-8, v0=start, return_eigenvectors=False)[0])
