"""Best deterministic policies for weighted sums of reward and utilities, their values and their occupancies.

`Pricing` keeps the policy found last and its values of the reward and of all utilities, so that the next search starts
from that policy's exact value at the new weights. A search is policy iteration with inexact evaluation: a pass over all
rows makes the policy greedy and bounds the optimal value; sweeps over the policy's rows then evaluate it, until the
error is a fraction of what the pass found (Puterman and Shin 1978). Where sweeps converge too slowly, which happens
when gamma is close to one and the chain mixes slowly, a sparse factorisation takes their place if it stays sparse.

A value function is stored as X + offset. With rows that sum to one the constant is the slowest part of the error, and
with gamma close to one it is so large that the digits of the rest are lost beside it. `dpdl._planning` states the
bounds that are used; they allow for rounding here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg
from numpy.typing import NDArray

from dpdl import _planning
from dpdl._validation import Array
from dpdl.models.model import Model
from dpdl.models.occupancy import VISITS_ERROR, visits
from dpdl.models.solving import MOST_FACTORS, bandwidth

_EPS = float(np.finfo(float).eps)
#: The error of an evaluation inside a search, relative to the width of the bounds of the last improvement.
_INEXACT = 0.1
#: A call of the compiled sweeps visits about this many entries, so that Ctrl-C is handled in between.
_ENTRIES_PER_CALL = 2e7
#: Sweeps after which an evaluation is given up.
_MOST_SWEEPS = 100_000
#: A factorisation takes as long as sweeps over this many entries a row, and a quarter of the squared bandwidth more.
_FACTOR_ROW = 400
#: Up to this many states occupancies are found by elimination, which is accurate in every entry.
_ELIMINATION_STATES = 200
#: If an improvement leaves more than this part of the width of the bounds, the next one passes on news in place.
_SLOW = 0.5
#: The part of the largest residual that the mean must have to be taken out of all states at once.
_SHARED = 0.1
_MOST_IMPROVEMENTS = 1000


@dataclass(frozen=True)
class Rows:
    """The pairs that may be chosen, state by state: transitions, gains (reward and utilities) and `ends`.

    `pairs` are places in tables of a caller's shape, see `table`. States may have different numbers of rows.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: Array
    first: NDArray[np.int32]
    pairs: NDArray[np.intp]
    gains: Array
    ends: Array
    gamma: float
    rho0: Array
    shape: tuple[int, ...]

    @classmethod
    def of(cls, model: Model, allowed: NDArray[np.bool_] | None = None) -> Rows:
        """Take the allowed pairs of a model, all by default; each state must have one."""
        n_states, n_actions = model.r.shape
        P, pairs, first = model.P, np.arange(model.r.size), np.arange(n_states + 1) * n_actions
        gains = np.concatenate([model.r.reshape(1, -1), model.u.reshape(-1, model.r.size)])
        if allowed is not None and not allowed.all():
            pairs, first = np.flatnonzero(allowed), np.append(0, np.cumsum(allowed.sum(axis=1)))
            P, gains = P[pairs], np.ascontiguousarray(gains[:, pairs])
        ends = np.full(len(pairs), 1 - model.gamma)
        if model.ends is not None:
            ends += model.gamma * model.ends.ravel()[pairs]
        return cls.from_matrix(P, first, gains, ends, model.gamma, model.rho0, pairs, model.r.shape)

    @classmethod
    def from_matrix(
        cls,
        P: sp.csr_array,
        first: NDArray[Any],
        gains: Array,
        ends: Array,
        gamma: float,
        rho0: Array,
        pairs: NDArray[np.intp] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Rows:
        """Take the rows of a sparse matrix, those of state s being first[s] to first[s + 1]; tables are flat."""
        n = P.shape[0]
        return cls(
            indptr=P.indptr.astype(np.int64, copy=False),
            indices=P.indices.astype(np.int32, copy=False),
            data=P.data,
            first=first.astype(np.int32),
            pairs=np.arange(n) if pairs is None else pairs,
            gains=gains,
            ends=ends,
            gamma=gamma,
            rho0=rho0,
            shape=(n,) if shape is None else shape,
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

    def table(self, values: Array) -> Array:
        """Put the numbers of the rows into a table of the caller's shape, zero for pairs that may not be chosen."""
        found = np.zeros(self.shape)
        found.ravel()[self.pairs] = values
        return found


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


class Found(NamedTuple):
    """What a search found: bounds of the best value and of the policy's own, and a V that proves the upper one."""

    lower: float
    upper: float
    V: Array


class Values(NamedTuple):
    """Values of a policy, one for the reward and each utility, and bounds of their errors."""

    mean: Array
    error: Array


class Pricing:
    """Searches for best policies, each starting from the last one."""

    def __init__(self, rows: Rows) -> None:
        n, m = rows.n_states, len(rows.gains)
        longest = np.maximum.reduceat(np.diff(rows.indptr), rows.first[:-1])
        self.rows = rows
        self.policy = rows.first[:-1].copy()
        self.n_sweeps = self.n_passes = 0
        self._X, self._offset = np.zeros((n, m)), np.zeros(m)
        self._buffers = (np.empty(n + 1, np.int64), np.empty(longest.sum(), np.int32), np.empty(longest.sum()))
        self._width: int | None = None

    def search(self, weights: Array, enough: Callable[[float, float], bool]) -> Found:
        """Improve the policy for these weights until enough(lower, upper) holds for the bounds of its value.

        It ends without that if rounding prevents it.
        """
        rows = self.rows
        offset = np.array([self._offset @ weights])
        gain = weights @ rows.gains
        centred = gain - offset * rows.ends
        X = np.ascontiguousarray((self._X @ weights)[:, None])
        best = np.empty(rows.n_states)
        found, width = Found(-np.inf, np.inf, best), np.inf
        for _ in range(_MOST_IMPROVEMENTS):
            self.n_passes += 1
            _, low, high = _planning.improve(
                rows.indptr,
                rows.indices,
                rows.data,
                rows.first,
                centred,
                rows.ends,
                rows.gamma,
                X[:, 0],
                best,
                self.policy,
            )
            at_start = float(rows.rho0 @ X[:, 0] + offset[0])
            rounding = float(self._rounding(centred, X)[0])
            upper = at_start + high + rounding
            if upper < found.upper:
                found = found._replace(upper=upper, V=X[:, 0] + (offset[0] + high + rounding))
            found = found._replace(lower=at_start + low - rounding)
            previous, width = width, high - low
            if enough(found.lower, found.upper) or width <= 4 * rounding:
                break
            X[:, 0] = best
            if width > _SLOW * previous:
                self._pass_on(centred, X[:, 0])
            self._settle(gain[self.policy][:, None], X, offset, np.array([_INEXACT * width]))
            centred = gain - offset * rows.ends
        return found

    def _pass_on(self, reward: Array, V: Array) -> None:
        """Improve V and the policy in place, in both directions."""
        rows = self.rows
        for backward in (False, True):
            self.n_passes += 1
            _planning.improve_in_place(
                rows.indptr, rows.indices, rows.data, rows.first, reward, rows.gamma, V, self.policy, backward
            )

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
                self.n_sweeps += effort.n
            low, high, mean, _ = system.residuals(b, X, weight, share)
            rounding = self._rounding(b / scale, X)
            if (high - low <= np.maximum(accuracy, rounding)).all() or direct or effort.spent:
                return low - rounding, high + rounding
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
        return self._width * n <= MOST_FACTORS and entries > (_FACTOR_ROW + 0.25 * self._width**2) * n

    def occupancy(self, policy: NDArray[np.int32], accuracy: float) -> tuple[Array, float]:
        """Return the discounted visits of the states, and a bound of their error in the 1-norm.

        Visits sum to at most 1/(1-gamma). The accuracy is reached if rounding allows it.
        """
        rows = self.rows
        self.policy = policy.copy()
        system, ends = self._system(), rows.ends[policy]
        M = system.matrix()
        if rows.n_states <= _ELIMINATION_STATES:
            rates = M.toarray() / system.scale[:, None]
            p = visits(rates, ends, rows.rho0[None])[0]
            return p, VISITS_ERROR * float(p.sum())
        T = sp.csr_array(M.T)
        T.data *= np.repeat(system.scale, np.diff(T.indptr)) / system.scale[T.indices]
        flow = _System(T.indptr.astype(np.int64), T.indices.astype(np.int32), T.data, system.scale)
        b, p = (rows.rho0 * system.scale)[:, None], rows.rho0[:, None].copy()
        longest, effort, direct = int(np.diff(T.indptr).max(initial=0)), _Effort(T.nnz), False
        while True:
            if direct:
                p = np.maximum(_factorised(flow, b, p), 0.0)
            else:
                flow.sweep(b, p, effort.n)
                self.n_sweeps += effort.n
            p /= float(ends @ p[:, 0])  # the flow equations add up to sum ends p = 1
            error = float(flow.residuals(b, p, 1 / system.scale, ends)[3, 0] / rows.ends.min())
            rounding = (longest + 4) * _EPS * float(p.sum() / rows.ends.min())
            if error <= max(accuracy, rounding) or direct or effort.spent:
                return p[:, 0], error + rounding
            direct = self._pays_to_factorise(system, effort.after(error / accuracy))


class _Effort:
    """How many sweeps to make next, judged by the rate at which the error falls."""

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
