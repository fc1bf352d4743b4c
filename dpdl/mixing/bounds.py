"""Two-sided bounds of the mixing time of a sparse chain too large for exact computation; used by `dpdl.mixing`.

Write P for the kernel, mu for its stationary distribution, TV_s(t) for the distance of P^t(s, .) from mu.

Lower bound: TV_s of a few states s, computed exactly. It does not increase with t, so the largest of the times at which
they reach the threshold is a lower bound. Upper bound, in two steps:

1. 4 TV_s(t)^2 <= chi_s(t)^2, the squared norm of row s of (P^t - 1 mu^T) D^{-1/2}, D = diag(mu). For a Gaussian
   matrix G with b columns, row s of (P^t - 1 mu^T) D^{-1/2} G has squared norm chi_s(t)^2 X, X ~ chi-square(b):
   b functions propagated backwards bound chi_s for all states s at once, but for a small probability.
2. If that needs too many steps, chi_s(t + m) <= chi_s(t) |P|^m, with |P| the norm of P on functions of mean zero.
   |P|^2 is the largest eigenvalue but one of P*P. It is bounded by Lanczos from a random start, whose largest Ritz
   value theta after k steps satisfies |P|^2 <= theta/(1-e) but for probability 1.648 sqrt(n) exp(-sqrt(e)(2k-1))
   (Kuczynski and Wozniakowski 1992, theorem 4.2); the same is tried for P^2, P^4, ..., since one step of a chain that
   is not reversible need not contract. Where Lanczos does not resolve the gap, and P*P has a narrow band, the number
   of eigenvalues above a guess is counted by the signs of a factorisation (Sylvester's law of inertia).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import ArpackError, eigsh, splu

from dpdl._validation import Array
from dpdl.mixing.chain import NARROW, half_bandwidth

#: Failure probability, over the Gaussian draws, of each sketch and of each Lanczos run, for any chain.
FAILURE = 1e-9
#: An upper bound uses at most two sketches, or one sketch and five Lanczos runs.
TOTAL_FAILURE = 6 * FAILURE
#: Largest number of multiply-adds of each stage; about a second and a half on one core.
WORK = 1e9
_COLUMNS = 32
_STARTS = 24


@dataclass(frozen=True)
class MixingTime:
    """An interval that contains the mixing time.

    Attributes
    ----------
    lower : int
        E(t) is above the threshold for every t < lower.
    upper : float
        E(t) is at most the threshold for every t >= upper; infinite if no bound was found.
    message : str
        How the bounds were found, and with what probability they hold.
    """

    lower: int
    upper: float
    message: str

    @property
    def exact(self) -> bool:
        """Whether the interval is a single number."""
        return self.lower == self.upper


def bracket(P: sp.csr_array, mu: Array, threshold: float, rng: np.random.Generator) -> MixingTime:
    """Bound the mixing time of an irreducible aperiodic kernel from both sides."""
    if mu.min() < 1e-290:
        raise ValueError(f"state {int(np.argmin(mu))} has stationary probability {mu.min():g}, too small for a double")
    n_steps, sketch, slow = _sketch(P, mu, threshold, rng, _COLUMNS, _affordable(P, _COLUMNS))
    lower = first_below(P, mu, slow, threshold, _affordable(P, len(slow)))
    if sketch <= threshold:
        columns = min(8 * _COLUMNS, _affordable(P, n_steps))
        if lower < n_steps and columns > _COLUMNS:  # for a fast chain a finer sketch is affordable
            again, finer, _ = _sketch(P, mu, threshold, rng, columns, n_steps)
            n_steps = min(n_steps, again) if finer <= threshold else n_steps
        return MixingTime(lower, float(n_steps), _message("Gaussian sketch of P^t"))
    norm, power, how, function = contraction(P, mu, rng)
    lower = max(lower, _lower_by_function(P, mu, threshold, function, rng))
    if norm >= 1:
        return MixingTime(lower, math.inf, f"no bound from above within the budget of work: {how}")
    upper = n_steps + power * math.ceil(math.log(sketch / threshold) / -math.log(norm))
    return MixingTime(lower, float(upper), _message(f"Gaussian sketch, then {how}"))


def contraction(P: sp.csr_array, mu: Array, rng: np.random.Generator) -> tuple[float, int, str, Array | None]:
    """Return a bound of |P^k|, the k that decays fastest per step, how it was found, and a slow function if known.

    The bound is one if none was found.
    """
    root = np.sqrt(mu)
    matrix = sp.csr_array(sp.diags_array(root) @ P @ sp.diags_array(1 / root))
    transpose = sp.csr_array(matrix.T)
    best, best_power = 0.0, 1
    reversible = abs(matrix - transpose).max() <= 1e-12  # then |P^k| = |P|^k
    for power in (1,) if reversible else (1, 2, 4, 8, 16):
        rate = -math.log(_lanczos(matrix, transpose, root, power, rng)) / power
        if rate > best:
            best, best_power = rate, power
        elif best > 0:
            break
    if best > 0:
        return math.exp(-best * best_power), best_power, f"Lanczos on P^{best_power}", None
    symmetric = sp.csc_array((matrix + transpose) / 2 if reversible else transpose @ matrix)
    if half_bandwidth(symmetric) > NARROW:
        return 1.0, 1, "the spectral gap is too small for Lanczos and the kernel too wide to factorise", None
    norm, vector = _norm_by_inertia(symmetric, semidefinite=not reversible)
    norm = norm if reversible else math.sqrt(norm)
    how = "eigenvalues counted by a factorisation" if norm < 1 else "the spectral gap was not resolved"
    return norm, 1, how, None if vector is None else vector / root


def first_below(P: sp.csr_array, mu: Array, starts: NDArray[np.intp], threshold: float, cap: int) -> int:
    """Return the least t with TV_s(t) <= threshold for all these starting states, or `cap` if that is less."""
    outward = sp.csr_array(P.T)
    rows = np.zeros((P.shape[0], len(starts)))
    rows[starts, np.arange(len(starts))] = 1.0
    for t in range(cap):
        far = 0.5 * abs(rows - mu[:, None]).sum(axis=0) > threshold
        if not far.any():
            return t
        # TV_s(t) never rises, so a state that has come close needs no more steps.
        rows = outward @ (rows if far.all() else np.ascontiguousarray(rows[:, far]))
    return cap


def _affordable(P: sp.csr_array, columns: int) -> int:
    # For small chains the overhead of a step dominates, so bound the number of steps as well.
    return min(2000, max(16, int(WORK / (P.nnz + 4 * P.shape[0]) / max(columns, 1))))


def _message(how: str) -> str:
    return f"lower: exact for chosen states or functions; upper: {how}, but for probability {TOTAL_FAILURE:g}"


def _sketch(
    P: sp.csr_array, mu: Array, threshold: float, rng: np.random.Generator, columns: int, cap: int
) -> tuple[int, float, NDArray[np.intp]]:
    """Return t, a bound of E(t), and the states that looked slowest; t is the first below the threshold, or `cap`."""
    from scipy.special import gammaincinv  # here, because it makes `import dpdl` slow

    n = len(mu)
    functions = rng.standard_normal((n, columns)) / np.sqrt(mu)[:, None]
    # A union bound over the states and over the steps that may be tested.
    quantile = 2 * gammaincinv(columns / 2, FAILURE / n / cap)  # of chi-squared
    slow: list[int] = [int(np.argmin(mu)), int(np.argmax(mu))]
    bounds: list[float] = []
    for t in range(1, cap + 1):
        functions = P @ functions
        functions -= mu @ functions
        squares = np.einsum("ij,ij->i", functions, functions)
        bound = 0.5 * math.sqrt(squares.max() / quantile)
        bounds.append(bound)
        if t & (t - 1) == 0 or bound <= 4 * threshold:
            slow = [*np.argpartition(squares, -4)[-4:].tolist(), *slow][:_STARTS]
        if bound <= threshold or (t % 16 == 0 and _hopeless(bounds, threshold, cap)):
            break
    return t, bound, np.unique(np.array(slow, dtype=np.intp))


def _hopeless(bounds: list[float], threshold: float, cap: int) -> bool:
    """Whether the decay over the last eight steps, kept up, would not reach the threshold in time."""
    per_step = math.log(bounds[-9] / bounds[-1]) / 8
    return math.log(bounds[-1] / threshold) > per_step * (cap - len(bounds))


def _lower_by_function(
    P: sp.csr_array, mu: Array, threshold: float, function: Array | None, rng: np.random.Generator
) -> int:
    """Bound the mixing time from below by E(t) >= max_s |(P^t f)(s) - mu f| / (max f - min f).

    If P f = lam f + e, for any lam, then |P^t f| >= |lam|^t |f| - |e| (1-|lam|^t)/(1-|lam|) in the maximum norm: a
    function that is nearly an eigenfunction bounds all times at once. Any other is followed for a while.
    """
    cap = _affordable(P, 2)
    if function is None:  # a long power iteration leaves the slowest function
        function = rng.standard_normal(len(mu))
        for _ in range(cap):
            function = P @ function
            function = (function - mu @ function) / abs(function).max()
    function = function - mu @ function
    image = P @ function
    eigenvalue = float(mu @ (function * image) / (mu @ function**2))
    rate = abs(eigenvalue)
    size, spread = float(abs(function).max()), float(np.ptp(function))
    drift = float(abs(image - eigenvalue * function).max()) / max(1 - rate, 1e-16)
    share = (threshold * spread + drift) / (size + drift)
    if share < 1 and 0 < rate < 1:
        return math.floor(math.log(share) / math.log(rate) * (1 - 1e-12)) + 1
    for t in range(cap):
        if abs(function).max() <= threshold * spread:
            return t
        function = P @ function
    return cap


def _lanczos(matrix: sp.csr_array, transpose: sp.csr_array, root: Array, power: int, rng: np.random.Generator) -> float:
    """Bound |P^power| by Lanczos on (P*)^power P^power, in the coordinates that make P* the transpose."""
    n = len(root)
    steps = int(min(n - 1, 2000, max(50, WORK / (2 * power * matrix.nnz + 10 * n) / 2)))

    def centre(vector: Array) -> Array:
        return vector - root * _dot(root, vector)

    vector = centre(rng.standard_normal(n))
    vector /= math.sqrt(_dot(vector, vector))
    previous, beta, ritz = np.zeros(n), 0.0, 0.0
    diagonal: list[float] = []
    off: list[float] = []
    while len(diagonal) < steps:
        image = vector
        for factor in [matrix] * power + [transpose] * power:
            image = factor @ image
        image = centre(image) - beta * previous
        diagonal.append(_dot(vector, image))
        image -= diagonal[-1] * vector
        beta = math.sqrt(_dot(image, image))
        if len(diagonal) % 25 == 0 or len(diagonal) == steps or beta < 1e-14:
            ritz = _largest(diagonal, off)
            if beta < 1e-14 or ritz >= 1 - _lanczos_error(n, steps):  # Ritz values grow: no hope for a bound below one
                break
        off.append(beta)
        previous, vector = vector, image / beta
    error = _lanczos_error(n, len(diagonal))
    return math.sqrt(min(1.0, max(ritz, 1e-300) / (1 - error))) if error < 1 else 1.0


def _lanczos_error(n: int, steps: int) -> float:
    return (math.log(1.648 * math.sqrt(n) / FAILURE) / (2 * steps - 1)) ** 2


def _largest(diagonal: list[float], off: list[float]) -> float:
    last = len(diagonal) - 1
    return float(eigh_tridiagonal(diagonal, off[:last], select="i", select_range=(last, last), eigvals_only=True)[0])


def _dot(left: Array, right: Array) -> float:
    # On vectors of this length a threaded BLAS is slower when the machine is busy.
    return float((left * right).sum())


def _norm_by_inertia(symmetric: sp.csc_array, semidefinite: bool) -> tuple[float, Array | None]:
    """Bound the size of the nontrivial eigenvalues of a symmetric matrix whose largest eigenvalue is one.

    Return the bound, or one, and a slow eigenvector if it was found. Exactly one eigenvalue may lie above the bound,
    and none below its negative.
    """
    n = symmetric.shape[0]
    try:
        values, vectors = eigsh(symmetric, k=2, sigma=1 + 1e-9, v0=np.linspace(1, 2, n))
    except (ArpackError, RuntimeError):
        return 1.0, None
    guess, vector = float(values.min()), vectors[:, int(np.argmin(values))]
    for slack in (0.01, 0.3):
        bound = guess + slack * (1 - guess)
        if 0 < bound < 1 and _count_above(symmetric, bound) == 1:
            safe = semidefinite or _count_above(symmetric, -bound) == n
            return (bound if safe else 1.0), vector
    return 1.0, vector


def _count_above(symmetric: sp.csc_array, level: float) -> int | None:
    """Count the eigenvalues above the level by Sylvester's law, or return None if the pivots were not symmetric."""
    shifted = sp.csc_array(symmetric - level * sp.eye_array(symmetric.shape[0], format="csc"))
    try:
        factors = splu(shifted, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    except RuntimeError:  # exactly singular
        return None
    if not np.array_equal(factors.perm_r, factors.perm_c):
        return None
    return int(np.count_nonzero(factors.U.diagonal() > 0))
