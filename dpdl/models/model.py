"""The arrays of a known model, checked and immutable: what exact answers are computed from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array

#: Rewards and utilities, which are at most one, may be rounding of zero if they are all below this.
ROUNDING = 2.0**-44


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Model:
    """Transitions, rewards, utilities, discount and initial distribution; `dpdl.CMDP` documents them."""

    has_end = False  # whether the last state is the end of episodes, and not one of the problem's
    r: Array
    u: Array
    gamma: float
    rho0: Array
    ends: Array | None
    _entries: tuple[Array, NDArray[Any], NDArray[Any]]  # data, indices and indptr of P

    def __init__(
        self, P: Any, r: ArrayLike, u: ArrayLike, gamma: float, rho0: ArrayLike, ends: ArrayLike | None = None
    ) -> None:
        matrix, ends, totals = _transitions(P, ends)
        matrix.data /= np.repeat(totals, np.diff(matrix.indptr))
        if ends is not None:
            ends = ends / totals.reshape(ends.shape)
        initial = check.distribution("rho0", rho0, (matrix.shape[1],))
        self._fill(matrix, r, u, gamma, initial / initial.sum(), ends)

    def _fill(
        self, matrix: sp.csr_array, r: ArrayLike, u: ArrayLike, gamma: float, rho0: Array, ends: Array | None
    ) -> None:
        shape = (matrix.shape[1], matrix.shape[0] // matrix.shape[1])
        fields = {
            "ends": None if ends is None else check.frozen(ends),
            "r": check.frozen(check.numbers_array("r", r, shape=shape, at_least=-1, at_most=1)),
            "u": check.frozen(check.numbers_array("u", u, shape=(None, *shape), at_least=-1, at_most=1)),
            "rho0": check.frozen(rho0),
            "gamma": check.real("gamma", gamma, above=0, below=1),
            "_entries": tuple(map(check.frozen, (matrix.data, matrix.indices, matrix.indptr))),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("P", "r", "u", "gamma", "rho0", "ends")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Check what was unpickled as the constructor does, but scale nothing again: it is the same to the last bit."""
        matrix, ends, _ = _transitions(state["P"], state["ends"])
        initial = check.distribution("rho0", state["rho0"], (matrix.shape[1],))
        self._fill(matrix, state["r"], state["u"], state["gamma"], initial, ends)

    def closed(self) -> Model:
        """The same problem without ends of episodes: they lead to one more state, the last, where nothing happens.

        Exact answers are computed on it, because the occupancies of a model without ends sum to 1/(1-gamma).
        """
        if self.ends is None:
            return self
        P, (S, A) = self.P, self.r.shape
        stay = sp.csr_array((np.ones(A), (np.arange(A), np.full(A, S))), shape=(A, S + 1))
        closed = Closed.__new__(Closed)
        closed._fill(
            sp.csr_array(sp.vstack([sp.hstack([P, sp.csr_array(self.ends.reshape(-1, 1))]), stay])),
            np.append(self.r, np.zeros((1, A)), axis=0),
            np.append(self.u, np.zeros((self.n_utilities, 1, A)), axis=1),
            self.gamma,
            np.append(self.rho0, 0.0),
            None,
        )
        return closed

    def normalised(self, *, alike: bool = False) -> tuple[Model, float, Array]:
        """The problem with max |r| and each max |u_i| in (1/2, 1], and the powers of two that they were divided by.

        Division by a power of two is exact, so this is the same problem; tolerances are relative to its scale. If
        `alike`, all utilities are divided by the same number.
        """
        reward, utilities = _size(self.r), np.array([_size(self.u if alike else utility) for utility in self.u])
        scaled = type(self).__new__(type(self))
        u = self.u / utilities[:, None, None]
        scaled._fill(self.P, self.r / reward, u, self.gamma, self.rho0, self.ends)
        return scaled, reward, utilities

    @property
    def P(self) -> sp.csr_array:
        """Transition probabilities, shape (S*A, S); each time a new object, so that nothing can be assigned to it."""
        matrix = sp.csr_array(self._entries, shape=(self.r.size, self.n_states))
        matrix.has_canonical_format = True
        return matrix

    def __repr__(self) -> str:
        sizes = f"n_states={self.n_states}, n_actions={self.n_actions}, n_utilities={self.n_utilities}"
        return f"{type(self).__name__}({sizes}, gamma={self.gamma:g})"

    @property
    def n_states(self) -> int:
        """Number of states S."""
        return self.r.shape[0]

    @property
    def n_actions(self) -> int:
        """Number of actions A."""
        return self.r.shape[1]

    @property
    def n_utilities(self) -> int:
        """Number of utilities I."""
        return self.u.shape[0]


class Closed(Model):
    """A model whose last state is the end of episodes."""

    has_end = True


def _size(values: Array) -> float:
    """The least power of two that is not below max |values|; one if all are zero, or rounding of numbers up to one."""
    largest = float(abs(values).max(initial=0.0))
    fraction, exponent = math.frexp(largest)
    return math.ldexp(1.0, exponent - (fraction == 0.5)) if largest > ROUNDING else 1.0


def _transitions(P: Any, ends: ArrayLike | None) -> tuple[sp.csr_array, Array | None, Array]:
    """Check transition probabilities and those of ends; return them with the sum of each row of both together."""
    if sp.issparse(P):
        if P.ndim != 2 or 0 in P.shape or P.shape[0] % P.shape[1]:
            raise ValueError(f"P must have shape (S*A, S), got {P.shape}")
        matrix = check.sparse_array("P", P)
        n_states = P.shape[1]
    else:
        array = check.numbers_array("P", P, shape=(None, None, None), copy=False)
        n_states = array.shape[0]
        if array.shape[2] != n_states or array.size == 0:
            raise ValueError(f"P must have shape (S, A, S), got {array.shape}")
        matrix = sp.csr_array(array.reshape(-1, n_states))
    n_actions = matrix.shape[0] // n_states
    wrong = np.flatnonzero(~(np.isfinite(matrix.data) & (matrix.data >= 0)))
    if wrong.size:
        pair = int(np.searchsorted(matrix.indptr, wrong[0], side="right")) - 1
        s, a = divmod(pair, n_actions)
        value = float(matrix.data[wrong[0]])
        raise ValueError(f"P[{s}, {a}, {matrix.indices[wrong[0]]}] = {value!r} must be finite and >= 0")
    matrix.eliminate_zeros()
    totals = np.asarray(matrix.sum(axis=1))
    ended = None
    if ends is not None:
        ended = check.numbers_array("ends", ends, shape=(n_states, n_actions), at_least=0, at_most=1)
        totals = totals + ended.ravel()
    wrong = np.flatnonzero(abs(totals - 1) > check.SUM_TOLERANCE)
    if wrong.size:
        s, a = divmod(int(wrong[0]), n_actions)
        with_ends = "" if ended is None else f" with ends[{s}, {a}] = {ended[s, a].item()!r}"
        hint = "; declare ends of episodes by ends=" if ended is None and totals[wrong[0]] < 1 else ""
        raise ValueError(f"P[{s}, {a}] must sum to 1{with_ends}, got {totals[wrong[0]]:.12g}{hint}")
    return matrix, ended if ended is not None and ended.any() else None, totals
