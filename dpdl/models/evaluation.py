"""Values and occupancies of policies, and best policies for given prices, with bounds of the errors.

Up to a thousand states a normalised occupancy p = (1-gamma) rho0 + gamma P_pi' p is found by elimination. The matrix of
that system is close to singular for gamma close to one, but it is an M-matrix of a special kind: its rows sum to
1 - gamma, so it is determined by 1 - gamma and by the probabilities of moving to *another* state, and states can be
eliminated without subtractions (Grassmann, Taksar and Heyman 1985). Then each entry of p has a relative error of some n
roundings, for any gamma and any probabilities, however small (O'Cinneide 1993; Alfa, Xue and Ye 2002). The probability
of staying is taken to be one minus the others.

Everything else is found by compiled sweeps (Gauss-Seidel) until its error is known to be small enough. Where they
converge too slowly, which happens when gamma is close to one and the chain mixes slowly, a sparse factorisation takes
their place if it stays sparse. A value function is stored as X + offset: with gamma close to one the constant is so
large that the digits of the rest are lost beside it. `dpdl._planning` states the bounds; they allow for rounding here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray

from dpdl import _planning
from dpdl._validation import Array

_EPS = float(np.finfo(float).eps)
#: Relative error of what `visits` returns; a third of it was the largest measured on difficult chains of 300 states.
VISITS_ERROR = 32 * _EPS
#: Up to this many states occupancies are found by elimination: if every entry is to be accurate, and otherwise.
ELIMINATION_STATES, _QUICK_STATES = 1000, 200
#: The error of a normalised occupancy, in the 1-norm, above which there is no answer.
_LARGEST_ERROR = 1e-6
#: A call of the compiled sweeps visits about this many entries, so that Ctrl-C is handled in between.
_ENTRIES_PER_CALL = 2e7
#: Sweeps after which an evaluation is given up, and improvements after which a search is.
_MOST_SWEEPS, _MOST_IMPROVEMENTS = 100_000, 1000
#: A factorisation takes as long as sweeps over this many entries a row, and a quarter of the squared bandwidth more.
_FACTOR_ROW = 400
#: Largest number of entries that the factors may be expected to have, by the bandwidth.
_MOST_FACTORS = 5e6
#: The part of the largest residual that the mean must have to be taken out of all states at once.
_SHARED = 0.1
#: The error of an evaluation inside a search, relative to the width of the bounds of the last improvement.
_INEXACT = 0.1
#: If an improvement leaves more than this part of the width of the bounds, the next one passes on news in place.
_SLOW = 0.5


@dataclass(frozen=True)
class Rows:
    """The choices in each state s, rows `first[s]` to `first[s + 1]`: transitions, gains (reward, utilities), `ends`.

    `ends` is what a row's inflow of mass falls short of its outflow: 1 - gamma, and gamma times its probability that
    the episode ends. States may have different numbers of rows. Numbers of all rows make a table of this `shape`.
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
    has_end: bool = False

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
        indptr, indices = P.indptr.astype(np.int64, copy=False), P.indices.astype(np.int32, copy=False)
        shape = P.shape[:1] if shape is None else shape
        return cls(indptr, indices, P.data, first.astype(np.int32), gains, ends, gamma, rho0, shape)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.rho0)

    @property
    def matrix(self) -> sp.csr_array:
        """The transitions, one row for each choice."""
        return sp.csr_array((self.data, self.indices, self.indptr), shape=(len(self.ends), self.n_states))

    @cached_property
    def longest(self) -> int:
        """Entries of the longest row."""
        return int(np.diff(self.indptr).max(initial=0))

    @cached_property
    def state(self) -> NDArray[np.intp]:
        """The state of each row."""
        return np.repeat(np.arange(self.n_states), np.diff(self.first))

    @cached_property
    def moves(self) -> sp.coo_array:
        """The matrix gamma P without the probabilities of staying."""
        row = np.repeat(np.arange(len(self.ends)), np.diff(self.indptr))
        away = self.state[row] != self.indices
        entries = self.gamma * self.data[away], (row[away], self.indices[away])
        return sp.coo_array(entries, shape=(len(self.ends), self.n_states))

    def under(self, policy: Array) -> Rows:
        """Return one row a state: the mean of its rows under a policy, given by row."""
        choice = sp.csr_array((policy, np.arange(len(policy)), self.first), shape=(self.n_states, len(policy)))
        P = sp.csr_array(choice @ self.matrix)
        P.sort_indices()
        first, gains = np.arange(self.n_states + 1), np.ascontiguousarray((choice @ self.gains.T).T)
        return Rows.from_matrix(P, first, gains, choice @ self.ends, self.gamma, self.rho0)

    def induced(self, q: Array) -> Array:
        """Return the policy by row that an occupancy by row induces; uniform in states that it never visits."""
        top = np.maximum.reduceat(q, self.first[:-1])[self.state]
        scaled = np.divide(q, top, where=top > 0, out=np.ones(len(q)))
        return scaled / np.bincount(self.state, scaled)[self.state]

    def occupancy(self, policy: Array) -> tuple[Array, float]:
        """Return the normalised occupancy of the states, and a bound of its error in the 1-norm.

        It sums to one unless episodes end.
        """
        evaluator, unit = Evaluator(self.under(policy)), 1 - self.gamma
        visited, error = evaluator.occupancy(evaluator.policy, 0.0)
        if not unit * error <= _LARGEST_ERROR:
            shown = f"{_LARGEST_ERROR:g}, for lack of precision"
            raise RuntimeError(f"the policy's occupancy could not be computed to {shown}")
        return unit * visited, unit * error

    def closed(self) -> Rows:
        """Return the same problem without ends of episodes: they lead to one more state, where nothing happens.

        Linear programs are about it, because the occupancies of a model without ends sum to 1/(1-gamma).
        """
        ending = (self.ends - (1 - self.gamma)) / self.gamma
        if not ending.any():
            return self
        P = sp.block_array([[self.matrix, sp.csr_array(ending[:, None])], [None, sp.csr_array([[1.0]])]], format="csr")
        first, gains = np.append(self.first, self.first[-1] + 1), np.pad(self.gains, ((0, 0), (0, 1)))
        no_ends, rho0 = np.full(len(ending) + 1, 1 - self.gamma), np.append(self.rho0, 0.0)
        return replace(Rows.from_matrix(P, first, gains, no_ends, self.gamma, rho0), has_end=True)

    def normalised(self, *, alike: bool = False) -> tuple[Rows, Array]:
        """Return the problem with each largest |gain| in (1/2, 1], and the powers of two that they were divided by.

        Division by a power of two is exact, so this is the same problem; tolerances are relative to its scale. If
        `alike`, all gains are divided by the same number. Gains up to 2^-44 may be rounding of numbers up to one.
        """
        largest = abs(self.gains).max(axis=1)
        largest = np.full(len(largest), largest.max()) if alike else largest
        fraction, exponent = np.frexp(largest)
        sizes = np.where(largest > 2.0**-44, np.ldexp(1.0, exponent - (fraction == 0.5)), 1.0)
        return replace(self, gains=self.gains / sizes[:, None]), sizes


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

    def factorised(self, b: Array, X: Array) -> Any:
        """Solve X = b + M X from this X by a sparse factorisation."""
        M = self.matrix()
        factors = scipy.sparse.linalg.splu(sp.csc_array(sp.eye_array(len(b)) - M))
        for _ in range(2):
            X = X + factors.solve(b - X + M @ X)
        return X


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

    def evaluate(self, policy: NDArray[np.int32], accuracy: Array) -> tuple[Array, Array]:
        """Return the values (m,) of a policy to this accuracy, if rounding allows it, and bounds of their errors."""
        self.policy = policy.copy()
        gains = np.ascontiguousarray(self.rows.gains[:, policy].T)
        low, high = self._settle(gains, self._X, self._offset, accuracy)
        return self.rows.rho0 @ self._X + self._offset + (low + high) / 2, (high - low) / 2

    def values(self, policy: NDArray[np.int32], accuracy: Array) -> Array:
        """Return the values (S, m) of a policy in every state to this accuracy, if rounding allows it."""
        self.evaluate(policy, accuracy)
        return self._X + self._offset

    def search(self, prices: Array, enough: Callable[[float, float], bool]) -> tuple[float, Array]:
        """Improve `policy` for these prices of the gains until enough(lower, upper) holds for bounds of its value.

        It is policy iteration with inexact evaluation, and starts from the value of the policy evaluated last at these
        prices: a pass over all rows makes the policy greedy and bounds the optimal value; sweeps over the policy's rows
        then evaluate it, until the error is a fraction of what the pass found (Puterman and Shin 1978). It ends without
        `enough` if rounding prevents that. Returns the upper bound, and a V that proves it.
        """
        rows = self.rows
        table = rows.indptr, rows.indices, rows.data, rows.first
        offset = np.array([self._offset @ prices])
        gain = prices @ rows.gains
        X = np.ascontiguousarray((self._X @ prices)[:, None])
        best = np.empty(rows.n_states)
        least, proof, width = np.inf, best, np.inf
        for _ in range(_MOST_IMPROVEMENTS):
            centred = gain - offset * rows.ends
            _, low, high = _planning.improve(*table, centred, rows.ends, rows.gamma, X[:, 0], best, self.policy)
            at_start = float(rows.rho0 @ X[:, 0] + offset[0])
            rounding = float(self._rounding(centred, X)[0])
            upper = at_start + high + rounding
            if upper < least:
                least, proof = upper, X[:, 0] + (offset[0] + high + rounding)
            previous, width = width, high - low
            if enough(at_start + low - rounding, least) or width <= 4 * rounding:
                break
            X[:, 0] = best
            if width > _SLOW * previous:
                for backward in (False, True):
                    _planning.improve_in_place(*table, centred, rows.gamma, X[:, 0], self.policy, backward)
            self._settle(gain[self.policy][:, None], X, offset, np.array([_INEXACT * width]))
        return least, proof

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
                X[:] = system.factorised(b, X)
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

        The width of the band, by the order of Cuthill and McKee, is found once; it hardly depends on the policy.
        """
        n = self.rows.n_states
        if entries <= _FACTOR_ROW * n:
            return False
        if self._width is None:
            both = sp.coo_array(system.matrix() + system.matrix().T)
            place = np.argsort(sp.csgraph.reverse_cuthill_mckee(sp.csr_array(both), symmetric_mode=True))
            self._width = int(abs(place[both.row] - place[both.col]).max(initial=0))
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
                p = np.maximum(flow.factorised(b, p), 0.0)
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


def visits(kernel: Array, ends: Array, starts: Array) -> Array:
    """Return starts @ inv(M), M = diag(ends + row sums of kernel) - kernel, by elimination without subtractions.

    The kernel (n, n) has nonnegative rates of moving from state to state, its diagonal is ignored, `ends` (n,) those of
    ending: from each state, one with a positive rate must be reachable. `starts` (m, n) are nonnegative.

    Examples
    --------
    >>> visits(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([1.0, 0.25]), np.eye(2)).tolist()
    [[0.5, 2.0], [0.0, 4.0]]
    """
    n, m = len(ends), len(starts)
    if n == 1:
        return starts / ends
    # Eliminate the second half: paths through it lead back to the first half or end.
    half = n // 2
    inward, outward = kernel[:half, half:], kernel[half:, :half]
    both = np.concatenate([starts[:, half:], inward])
    second = visits(kernel[half:, half:], ends[half:] + outward.sum(axis=1), both)
    direct, through = second[:m], second[m:]
    reduced = kernel[:half, :half] + through @ outward
    first = visits(reduced, ends[:half] + through @ ends[half:], starts[:, :half] + direct @ outward)
    return np.concatenate([first, direct + first @ through], axis=1)
