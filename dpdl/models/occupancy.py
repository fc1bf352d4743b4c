"""The normalised state occupancy p of a policy, which solves p = (1-gamma) rho0 + gamma P_pi' p.

The matrix of that system is close to singular for gamma close to one, but it is an M-matrix of a special kind: its
rows sum to 1 - gamma, so it is determined by 1 - gamma and by the probabilities of moving to *another* state, and
states can be eliminated without subtractions (Grassmann, Taksar and Heyman 1985). Then each entry of p has a relative
error of some n roundings, for any gamma and any probabilities, however small (O'Cinneide 1993; Alfa, Xue and Ye 2002).
The probability of staying is taken to be one minus the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.models.model import Model

#: Up to this many states p is found by elimination, which is accurate in every entry.
ELIMINATION_STATES = 1000
#: Relative error of what `visits` returns; a third of it was the largest measured on difficult chains of 300 states.
VISITS_ERROR = 32 * float(np.finfo(float).eps)
#: Residual (1-norm) at which p is accepted beyond that.
RESIDUAL = 1e-13


def state_occupancy(cmdp: Model, policy: Array) -> tuple[Array, float]:
    """Return p and a bound of its error in the 1-norm; RuntimeError if no p with a small residual was found.

    It sums to one unless episodes end.
    """
    n_states, choose = cmdp.n_states, policies.choice_matrix(policy)
    start = (1 - cmdp.gamma) * cmdp.rho0
    if n_states > ELIMINATION_STATES:
        if cmdp.ends is not None:
            p, error = state_occupancy(cmdp.closed(), np.append(policy, policy[:1], axis=0))
            return p[:-1], error
        return _iterate(cmdp.gamma * sp.csr_array((choose @ cmdp.P).T), start, cmdp.rho0, 1 - cmdp.gamma)
    kernel, ends = (choose @ moves(cmdp)).toarray(), np.full(n_states, 1 - cmdp.gamma)
    if cmdp.ends is not None:
        ends += cmdp.gamma * (choose @ cmdp.ends.ravel())
    return visits(kernel, ends, start[None])[0], VISITS_ERROR


def moves(cmdp: Model) -> sp.csr_array:
    """Return gamma P without the probabilities of staying, an (S A, S) sparse matrix."""
    P = sp.coo_array(cmdp.P)
    away = P.row // cmdp.n_actions != P.col
    return sp.csr_array((cmdp.gamma * P.data[away], (P.row[away], P.col[away])), shape=P.shape)


def visits(kernel: Array, ends: Array, starts: Array) -> Array:
    """Return starts @ inv(M), M = diag(ends + row sums of kernel) - kernel, by elimination without subtractions.

    Parameters
    ----------
    kernel : ndarray, shape (..., n, n)
        Nonnegative rates of moving from state to state; the diagonal is ignored.
    ends : ndarray, shape (..., n)
        Nonnegative rates of ending. From each state, one with a positive rate must be reachable.
    starts : ndarray, shape (..., m, n)
        Nonnegative.

    Examples
    --------
    >>> visits(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([1.0, 0.25]), np.eye(2)).tolist()
    [[0.5, 2.0], [0.0, 4.0]]
    """
    n, m = ends.shape[-1], starts.shape[-2]
    if n == 1:
        return starts / ends[..., None]
    # Eliminate the second half: paths through it lead back to the first half or end.
    half = n // 2
    inward, outward = kernel[..., :half, half:], kernel[..., half:, :half]
    second = visits(
        kernel[..., half:, half:],
        ends[..., half:] + outward.sum(axis=-1),
        np.concatenate([starts[..., half:], inward], axis=-2),
    )
    direct, through = second[..., :m, :], second[..., m:, :]
    first = visits(
        kernel[..., :half, :half] + through @ outward,
        ends[..., :half] + (through @ ends[..., half:, None])[..., 0],
        starts[..., :half] + direct @ outward,
    )
    return np.concatenate([first, direct + first @ through], axis=-1)


def _iterate(inward: sp.csr_array, start: Array, rho0: Array, discount: float) -> tuple[Array, float]:
    """Solve p = start + inward p for many states.

    A p whose residual has 1-norm d is within d/(1-gamma) of the solution; d is brought to rounding. Sparse factors of
    random graphs fill in, so GMRES comes first. It starts from p = rho0, whose residual sums to zero, as do all later
    ones: the slowest direction, of rate gamma, never enters, and convergence depends on the chain's mixing only. Chains
    that mix slowly usually have sparse factors; for those a sparse LU is used.
    """
    matrix = sp.csc_array(sp.eye_array(len(start)) - inward)

    def refined(correction: Callable[[Array], Array]) -> tuple[Array, float]:
        """Correct rho0 until the residual no longer halves: it is then rounding, or the method has failed."""
        p, residual = rho0, np.inf
        for _ in range(10):
            p = np.clip(p + correction(start - p + inward @ p), 0, None)
            p = start + inward @ (p / p.sum())
            previous, residual = residual, float(abs(start - p + inward @ p).sum())
            if not residual <= previous / 2:
                break
        return p, residual

    def iterative(residual: Array) -> Array:
        update, failed = scipy.sparse.linalg.gmres(matrix, residual, rtol=1e-9, restart=50, maxiter=4)
        return np.full(len(start), np.nan) if failed else update

    p, residual = refined(iterative)
    if not residual <= RESIDUAL:
        p, residual = refined(scipy.sparse.linalg.splu(matrix).solve)
    if not residual <= RESIDUAL:
        raise RuntimeError(f"the policy's occupancy could not be computed to a residual of {RESIDUAL}")
    return p, (residual + 16 * np.finfo(float).eps) / discount  # the residual is itself rounded
