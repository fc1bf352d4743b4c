"""Kernels checked, their stationary distribution, and exact distances from it; used by `dpdl.mixing`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, dijkstra, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from dpdl import _validation as check
from dpdl._validation import Array

#: Up to this many states dense powers of the kernel are cheap.
EXACT_STATES = 1000
#: Up to this many states the stationary distribution is found by elimination without subtractions.
_ELIMINATION_STATES = 500
_POWER_STEPS = 1000
BLOCK = 256
#: Half bandwidth up to which a sparse factorisation is surely affordable.
NARROW = 1500


#: Step counters are 64-bit.
MOST_SQUARINGS = 62


def checked_kernel(kernel: Any) -> sp.csr_array:
    """Check a row-stochastic matrix and return it sparse, its rows scaled to sum to one in double precision."""
    if sp.issparse(kernel):
        if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or not kernel.shape[0]:
            raise ValueError(f"kernel must have shape (n, n), got {kernel.shape}")
        P = check.sparse_array("kernel", kernel)
        wrong = np.flatnonzero(~(np.isfinite(P.data) & (P.data >= 0)))
        if wrong.size:
            row = int(np.searchsorted(P.indptr, wrong[0], side="right")) - 1
            where, value = f"kernel[{row}, {P.indices[wrong[0]]}]", float(P.data[wrong[0]])
            raise ValueError(f"{where} = {value!r} must be {'>= 0' if np.isfinite(value) else 'finite'}")
    else:
        array = check.numbers_array("kernel", kernel, shape=(None, None), at_least=0, copy=False)
        if array.shape[0] != array.shape[1] or not array.size:
            raise ValueError(f"kernel must have shape (n, n), got {array.shape}")
        P = sp.csr_array(array)
    P.eliminate_zeros()
    totals = np.asarray(P.sum(axis=1))
    wrong = np.flatnonzero(abs(totals - 1) > check.SUM_TOLERANCE)
    if wrong.size:
        raise ValueError(f"kernel[{wrong[0]}] must sum to 1, got {totals[wrong[0]]:.12g}")
    P.data /= np.repeat(totals, np.diff(P.indptr))
    return P


def _check_ergodic(P: sp.csr_array) -> None:
    """Raise ValueError unless the chain is irreducible and aperiodic."""
    n_classes, label = connected_components(P, directed=True, connection="strong")
    source = np.repeat(np.arange(P.shape[0]), np.diff(P.indptr))
    if n_classes > 1:
        leaves = np.zeros(n_classes, dtype=bool)
        leaves[label[source[label[source] != label[P.indices]]]] = True
        closed = np.flatnonzero(~leaves)
        if len(closed) > 1:
            first, second = (int(np.argmax(label == which)) for which in closed[:2])
            raise ValueError(
                f"kernel is reducible: {len(closed)} closed classes, and no path leads from state {first} to {second}"
            )
        transient = int(np.argmax(leaves[label]))
        count = np.count_nonzero(leaves[label])
        raise ValueError(f"kernel is reducible: state {transient} is transient, one of {count}")
    if P.diagonal().any():
        return
    level = dijkstra(P, indices=0, unweighted=True).astype(np.int64)
    period = int(np.gcd.reduce(abs(level[source] + 1 - level[P.indices])))
    if period != 1:
        raise ValueError(f"kernel is periodic: every return to a state takes a multiple of {period} steps")


# ---- The stationary distribution ----


def stationary_of(P: sp.csr_array) -> Array:
    """Return the stationary distribution of a checked kernel."""
    _check_ergodic(P)
    if P.shape[0] <= _ELIMINATION_STATES:
        return _eliminate(P.toarray())
    inward = sp.csr_array(P.T)
    mu = np.full(P.shape[0], 1 / P.shape[0])
    for _ in range(_POWER_STEPS):
        before, mu = mu, inward @ mu
        if abs(mu - before).sum() <= 4e-15:
            return mu / mu.sum()
    if P.shape[0] > 5000 and half_bandwidth(P) > NARROW:
        raise ValueError(
            f"power iteration has not converged in {_POWER_STEPS} steps, and these {P.shape[0]} states have no "
            "ordering with a band narrow enough to factorise"
        )
    # With the last state's probability set to one, the others' balance equations have an M-matrix.
    balance = sp.csc_array(sp.eye_array(P.shape[0], format="csc") - inward)
    others = splu(sp.csc_array(balance[:-1, :-1]), "MMD_AT_PLUS_A", diag_pivot_thresh=0.1).solve(
        -balance[:-1, [-1]].toarray().ravel()
    )
    mu = np.append(others, 1.0)
    return mu / mu.sum()


def _eliminate(P: Array) -> Array:
    """Eliminate states from the last to the first; every operation adds, multiplies or divides positive numbers."""
    n = len(P)
    for k in range(n - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    mu = np.ones(n)
    for k in range(1, n):
        mu[k] = mu[:k] @ P[:k, k]
        mu[: k + 1] /= mu[: k + 1].sum()  # keeps the numbers in range
    return mu


def half_bandwidth(matrix: sp.sparray) -> int:
    """Return the half bandwidth after reverse Cuthill-McKee ordering of the symmetrised pattern."""
    pattern = sp.csr_array(abs(matrix) + abs(matrix.T))
    order = reverse_cuthill_mckee(pattern, symmetric_mode=True)
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=order.dtype)
    pattern = pattern.tocoo()
    return int(abs(place[pattern.row] - place[pattern.col]).max())


# ---- E(t) and its inverse ----


def _distance(power: Array, mu: Array) -> float:
    return 0.5 * float(abs(power - mu).sum(axis=1).max())


def distances_dense(P: Array, mu: Array, times: NDArray[np.int64]) -> Array:
    """E at ascending times, by powers of P."""
    power, before = np.eye(len(mu)), 0
    found = []
    for time in times.tolist():
        power = power @ np.linalg.matrix_power(P, time - before)
        power /= power.sum(axis=1, keepdims=True)  # else rounding would grow with t
        before = time
        found.append(_distance(power, mu))
    return np.array(found)


def distances_blockwise(P: sp.csr_array, mu: Array, times: NDArray[np.int64], starts: NDArray[np.intp]) -> Array:
    """E at ascending times, each block of starting states followed step by step."""
    outward = sp.csr_array(P.T)
    found = np.zeros(len(times))
    for block in np.array_split(starts, math.ceil(len(starts) / BLOCK)):
        rows = np.zeros((len(mu), len(block)))
        rows[block, np.arange(len(block))] = 1.0
        before = 0
        for position, time in enumerate(times.tolist()):
            for _ in range(time - before):
                rows = outward @ rows
            before = time
            found[position] = max(found[position], 0.5 * abs(rows - mu[:, None]).sum(axis=0).max())
    return found


def mixing_time_dense(P: Array, mu: Array, threshold: float) -> int:
    """Double t until E(t) <= threshold, then add the largest powers of two that keep E above it."""
    if _distance(np.eye(len(mu)), mu) <= threshold:
        return 0
    powers = [P]
    while (distance := _distance(powers[-1], mu)) > threshold:
        if len(powers) > MOST_SQUARINGS:
            raise ValueError(
                f"E(t) is still {distance:.3g} after 2^{MOST_SQUARINGS} steps: the chain is so nearly reducible that "
                "rounding hides when it mixes"
            )
        square = powers[-1] @ powers[-1]
        powers.append(square / square.sum(axis=1, keepdims=True))
    # Invariant: E(t) > threshold, and E(t + 2^(j+1)) <= threshold for the exponent j about to be tried.
    t, reached = 0, np.eye(len(mu))
    for exponent in range(len(powers) - 2, -1, -1):
        further = reached @ powers[exponent]
        if _distance(further, mu) > threshold:
            t, reached = t + (1 << exponent), further
    return t + 1
