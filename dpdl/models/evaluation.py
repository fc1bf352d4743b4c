"""Values and occupancies of policies: linear systems of Markov chains, with bounds of the errors.

Up to a thousand states a normalised occupancy p = (1-gamma) rho0 + gamma P_pi' p is found by elimination. The matrix of
that system is close to singular for gamma close to one, but it is an M-matrix of a special kind: its rows sum to
1 - gamma, so it is determined by 1 - gamma and by the probabilities of moving to *another* state, and states can be
eliminated without subtractions (Grassmann, Taksar and Heyman 1985). Then each entry of p has a relative error of some n
roundings, for any gamma and any probabilities, however small (O'Cinneide 1993; Alfa, Xue and Ye 2002). The probability
of staying is taken to be one minus the others.

Everything else is found by compiled sweeps (Gauss-Seidel) until its error is known to be small enough. Where they
converge too slowly, which happens when gamma is close to one and the chain mixes slowly, a sparse factorisation takes
their place if it stays sparse. A value function is stored as X + offset. With rows that sum to one the constant is the
slowest part of the error, and with gamma close to one it is so large that the digits of the rest are lost beside it.
`dpdl._planning` states the bounds that are used; they allow for rounding here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray

from dpdl import _planning
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.models.model import Model

_EPS = float(np.finfo(float).eps)
#: Relative error of what `visits` returns; a third of it was the largest measured on difficult chains of 300 states.
VISITS_ERROR = 32 * _EPS
#: Up to this many states occupancies are found by elimination: if every entry is to be accurate, and otherwise.
ELIMINATION_STATES, _QUICK_STATES = 1000, 200
#: The error of a normalised occupancy, in the 1-norm, above which there is no answer.
_LARGEST_ERROR = 1e-6
#: A call of the compiled sweeps visits about this many entries, so that Ctrl-C is handled in between.
_ENTRIES_PER_CALL = 2e7
#: Sweeps after which an evaluation is given up.
_MOST_SWEEPS = 100_000
#: A factorisation takes as long as sweeps over this many entries a row, and a quarter of the squared bandwidth more.
_FACTOR_ROW = 400
#: Largest number of entries that the factors may be expected to have, by the bandwidth.
_MOST_FACTORS = 5e6
#: The part of the largest residual that the mean must have to be taken out of all states at once.
_SHARED = 0.1


@dataclass(frozen=True)
class Rows:
    """The choices in each state s, rows `first[s]` to `first[s + 1]`: transitions, gains (reward, utilities), `ends`.

    States may have different numbers of rows. Numbers of all rows make a table of this `shape`.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: Array
    first: NDArray[np.int32]
    gains: Array
    ends: Array
    gamma: float
    rho0: Array
    shape: tuple[int, ...]

    @classmethod
    def of(cls, model: Model) -> Rows:
        """Take the pairs of a model."""
        gains = np.concatenate([model.r.reshape(1, -1), model.u.reshape(-1, model.r.size)])
        first = np.arange(model.n_states + 1) * model.n_actions
        return cls.from_matrix(model.P, first, gains, ending(model), model.gamma, model.rho0, model.r.shape)

    @classmethod
    def of_policy(cls, model: Model, policy: Array) -> Rows:
        """Take one row a state: the mean of its pairs under a policy."""
        choose = policies.choice_matrix(policy)
        gains = [choose @ gain.ravel() for gain in (model.r, *model.u)]
        P = sp.csr_array(choose @ model.P)
        P.sort_indices()
        first = np.arange(model.n_states + 1)
        return cls.from_matrix(P, first, np.array(gains), choose @ ending(model), model.gamma, model.rho0)

    @classmethod
    def from_matrix(
        cls,
        P: sp.csr_array,
        first: NDArray[Any],
        gains: Array,
        ends: Array,
        gamma: float,
        rho0: Array,
        shape: tuple[int, ...] | None = None,
    ) -> Rows:
        """Take the rows of a sparse matrix, those of state s being first[s] to first[s + 1]; tables are flat."""
        return cls(
            indptr=P.indptr.astype(np.int64, copy=False),
            indices=P.indices.astype(np.int32, copy=False),
            data=P.data,
            first=first.astype(np.int32),
            gains=gains,
            ends=ends,
            gamma=gamma,
            rho0=rho0,
            shape=P.shape[:1] if shape is None else shape,
        )

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.rho0)

    @cached_property
    def longest(self) -> int:
        """Entries of the longest row."""
        return int(np.diff(self.indptr).max(initial=0))

    @cached_property
    def state(self) -> NDArray[np.intp]:
        """The state of each row."""
        return np.repeat(np.arange(self.n_states), np.diff(self.first))


class _System(NamedTuple):
    """The equations X = b + M X of a policy, without diagonal; see `dpdl._planning.policy_rows`."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: Array
    scale: Array

    def sweep(self, b: Array, X: Array, n: int) -> None:
        _planning.sweep(self.indptr, self.indices, self.data, b, X, n)

    def residuals(self, b: Array, X: Array, weight: Array, mass: Array) -> Array:
        bounds = np.empty((4, X.shape[1]))
        _planning.residuals(self.indptr, self.indices, self.data, b, X, weight, mass, bounds)
        return bounds

    def matrix(self) -> sp.csr_array:
        size, n = self.indptr[-1], len(self.scale)
        return sp.csr_array((self.data[:size], self.indices[:size], self.indptr), shape=(n, n))


class Values(NamedTuple):
    """Values of a policy, one for the reward and each utility, and bounds of their errors."""

    mean: Array
    error: Array


class Evaluator:
    """Values and occupancies of deterministic policies, one row for each state; each starts from the last one.

    At the `deadline`, by `time.monotonic`, values raise TimeoutError, and occupancies are what they are by then.
    """

    def __init__(self, rows: Rows, deadline: float = np.inf) -> None:
        n, m = rows.n_states, len(rows.gains)
        longest = np.maximum.reduceat(np.diff(rows.indptr), rows.first[:-1])
        self.rows, self.deadline = rows, deadline
        self.policy = rows.first[:-1].copy()
        self._X, self._offset = np.zeros((n, m)), np.zeros(m)
        self._buffers = (np.empty(n + 1, np.int64), np.empty(longest.sum(), np.int32), np.empty(longest.sum()))
        self._width: int | None = None

    def evaluate(self, policy: NDArray[np.int32], accuracy: Array) -> Values:
        """Return the values of a policy to this accuracy, if rounding allows it."""
        self.policy = policy.copy()
        gains = np.ascontiguousarray(self.rows.gains[:, policy].T)
        low, high = self._settle(gains, self._X, self._offset, accuracy)
        return Values(self.rows.rho0 @ self._X + self._offset + (low + high) / 2, (high - low) / 2)

    def values(self, policy: NDArray[np.int32], accuracy: Array) -> Array:
        """Return the values (S, m) of a policy in every state to this accuracy, if rounding allows it."""
        self.evaluate(policy, accuracy)
        return self._X + self._offset

    def _rounding(self, gain: Array, X: Array) -> Array:
        """Return bounds of the effect of rounding on ratios of residuals and `ends`."""
        size = abs(gain).max(axis=0) + 2 * abs(X).max(axis=0)
        return (self.rows.longest + 4) * _EPS * size / self.rows.ends.min()

    def _settle(self, gains: Array, X: Array, offset: Array, accuracy: Array) -> tuple[Array, Array]:
        """Bring X + offset towards the values of the present policy, until its error is known to `accuracy`.

        Returns bounds of the error, from below and above.
        """
        rows, system = self.rows, self._system()
        ends = rows.ends[self.policy][:, None]
        scale, weight, share = system.scale[:, None], 1 / (system.scale * ends[:, 0]), ends[:, 0] / ends.sum()
        b = (gains - offset * ends) * scale
        effort, direct, shifting, previous = _Effort(int(system.indptr[-1]) * X.shape[1]), False, True, np.inf
        before: tuple[Array, Array, Array] | None = None
        while True:
            if direct:
                X[:] = _factorised(system, b, X)
            else:
                system.sweep(b, X, effort.n)
            low, high, mean, _ = system.residuals(b, X, weight, share)
            rounding = self._rounding(b / scale, X)
            if (high - low <= np.maximum(accuracy, rounding)).all() or direct or effort.spent:
                return low - rounding, high + rounding
            if time.monotonic() >= self.deadline:
                raise TimeoutError("there was no time left for the values of a policy")
            excess = float(((high - low) / accuracy).max())
            if before is not None and excess > previous:
                (X[:], offset[:], b[:]), before, shifting = before, None, False
                continue
            previous, direct = excess, self._pays_to_factorise(system, effort.after(excess))
            shared = np.where(abs(mean) >= _SHARED * np.maximum(-low, high), mean, 0.0)
            if shifting and shared.any():
                # The mean is most of the error of a chain that mixes quickly, and sweeps reduce it by gamma only.
                # A chain with several classes of states may be led astray by it: then it is taken back.
                before = X.copy(), offset.copy(), b.copy()
                offset += shared
                b -= shared * ends * scale

    def _system(self) -> _System:
        rows, scale = self.rows, np.empty(self.rows.n_states)
        _planning.policy_rows(rows.indptr, rows.indices, rows.data, self.policy, rows.gamma, *self._buffers, scale)
        return _System(*self._buffers, scale)

    def _pays_to_factorise(self, system: _System, entries: float) -> bool:
        """Whether a factorisation is expected to cost less than sweeps over this many entries.

        The width of the band is found once; it hardly depends on the policy.
        """
        n = self.rows.n_states
        if entries <= _FACTOR_ROW * n:
            return False
        if self._width is None:
            self._width = bandwidth(system.matrix())
        return self._width * n <= _MOST_FACTORS and entries > (_FACTOR_ROW + 0.25 * self._width**2) * n

    def occupancy(self, policy: NDArray[np.int32], accuracy: float) -> tuple[Array, float]:
        """Return the discounted visits of the states, and a bound of their error in the 1-norm.

        Visits sum to at most 1/(1-gamma). The accuracy is reached if rounding allows it. If it is zero, up to 1000
        states every entry is accurate.
        """
        rows = self.rows
        self.policy = policy.copy()
        system, ends = self._system(), rows.ends[policy]
        M = system.matrix()
        if rows.n_states <= (_QUICK_STATES if accuracy else ELIMINATION_STATES):
            rates = M.toarray() / system.scale[:, None]
            p = visits(rates, ends, rows.rho0[None])[0]
            return p, VISITS_ERROR * float(p.sum())
        T = sp.csr_array(M.T)
        T.data *= np.repeat(system.scale, np.diff(T.indptr)) / system.scale[T.indices]
        flow = _System(T.indptr.astype(np.int64), T.indices.astype(np.int32), T.data, system.scale)
        b, p = (rows.rho0 * system.scale)[:, None], rows.rho0[:, None].copy()
        terms, effort, direct = np.diff(T.indptr) + 4, _Effort(T.nnz), False
        while True:
            if direct:
                p = np.maximum(_factorised(flow, b, p), 0.0)
            else:
                flow.sweep(b, p, effort.n)
            p /= float(ends @ p[:, 0])  # the flow equations add up to sum ends p = 1
            error = float(flow.residuals(b, p, 1 / system.scale, ends)[3, 0] / rows.ends.min())
            rounding = _EPS * float(terms @ p[:, 0] / rows.ends.min())
            goal = max(accuracy, rounding)
            if error <= goal or direct or effort.spent or time.monotonic() >= self.deadline:
                return p[:, 0], error + rounding
            direct = self._pays_to_factorise(system, effort.after(error / goal))


class _Effort:
    """The number of sweeps to make next, judged by the rate at which the error falls."""

    def __init__(self, entries: int) -> None:
        self.n, self._total, self._previous = 4, 0, np.inf
        self._entries = entries + 1

    @property
    def spent(self) -> bool:
        """Whether to give up."""
        return self._total + self.n >= _MOST_SWEEPS

    def after(self, excess: float) -> float:
        """Take the error after n sweeps, in units of the one wanted; return the entries that sweeps must still visit.

        Zero at first, when nothing is known about the rate.
        """
        rate = min(max(excess / self._previous, 1e-3), 0.999) ** (1 / self.n)
        needed = int(np.log(max(excess, 1.0)) / -np.log(rate)) + 1
        self._total += self.n
        self._previous = excess
        self.n = int(np.clip(needed, 2, min(2 * self.n, max(2.0, _ENTRIES_PER_CALL / self._entries))))
        return float(needed * self._entries) if self._total >= 8 else 0.0


def _factorised(system: _System, b: Array, X: Array) -> Any:
    """Solve X = b + M X from this X by a sparse factorisation."""
    M = system.matrix()
    factors = scipy.sparse.linalg.splu(sp.csc_array(sp.eye_array(len(b)) - M))
    for _ in range(2):
        X = X + factors.solve(b - X + M @ X)
    return X


def state_occupancy(model: Model, policy: Array) -> tuple[Array, float]:
    """Return the normalised occupancy of the states, and a bound of its error in the 1-norm.

    It sums to one unless episodes end.
    """
    evaluator, unit = Evaluator(Rows.of_policy(model, policy)), 1 - model.gamma
    visited, error = evaluator.occupancy(evaluator.policy, 0.0)
    if not unit * error <= _LARGEST_ERROR:
        raise RuntimeError(f"the policy's occupancy could not be computed to {_LARGEST_ERROR:g}, for lack of precision")
    return unit * visited, unit * error


def ending(model: Model) -> Array:
    """Return by how much the inflow from each pair falls short of its mass: 1 - gamma, and gamma times its ends."""
    return np.full(model.r.size, 1 - model.gamma) + (0.0 if model.ends is None else model.gamma * model.ends.ravel())


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


def bandwidth(matrix: sp.csr_array) -> int:
    """The largest distance of an entry from the diagonal, with rows and columns in the order of Cuthill and McKee.

    Examples
    --------
    >>> bandwidth(sp.csr_array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    1
    """
    symmetric = sp.csr_array(matrix + matrix.T)
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(symmetric, symmetric_mode=True)
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    entries = sp.coo_array(matrix)
    return int(abs(place[entries.row] - place[entries.col]).max(initial=0))
