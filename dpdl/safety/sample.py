"""The observed model of a half, or of a whole log: values and visits of policies, and the terms of their errors.

All figures are losses, which bounds limit from above: minus the reward, and the costs. A policy is a probability for
each option (`dpdl.safety.composites`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpdl._validation import Array
from dpdl.models.evaluation import Evaluator, Rows
from dpdl.safety.composites import Cells, Clock, Ints, Options

#: Up to this many states values are found by dense elimination, which is quicker.
DENSE = 600
#: Relative accuracy of values beyond that.
ACCURACY = 1e-9


class Value(NamedTuple):
    """Values of a policy: V (S, m) of known states, Q (K, m) of options, visits of both (S,), (K,), totals J (m,)."""

    V: Array
    Q: Array
    states: Array
    visits: Array
    J: Array


@dataclass(frozen=True, eq=False)
class Sample:
    """Frequencies and means of the options in some rows.

    Attributes
    ----------
    cells : Cells
    options : Options
    gamma : float
    clock : Clock
        After its deadline values raise TimeoutError.
    """

    cells: Cells
    options: Options
    gamma: float
    clock: Clock = field(default_factory=Clock)

    @cached_property
    def place(self) -> tuple[Ints, Ints]:
        """The option of each cell as action or composite, and as logged; -1 for none."""
        return self.options.own[self.cells.place], self.options.logged[self.cells.place]

    @cached_property
    def _rank(self) -> Ints:
        """Position of each state among the known ones, -1 for the others and for the end."""
        rank = np.full(self.cells.n_states + 1, -1)
        rank[self.options.known] = np.arange(len(self.options.known))
        return rank

    @cached_property
    def next(self) -> Ints:
        """The next state of each cell among the known ones; -1 for others and ends."""
        return self._rank[self.cells.next]

    @cached_property
    def lost(self) -> NDArray[np.bool_]:
        """Whether a cell leads to an unknown state."""
        return (self.next < 0) & (self.cells.next >= 0)

    def _mean(self, column: Array) -> Array:
        """Mean of a column of the cells, by option; zero for options without rows."""
        total = np.zeros(len(self.n))
        for place in self.place:
            use = place >= 0
            total += np.bincount(place[use], (column * self.cells.count)[use], len(total))
        return total / np.maximum(self.n, 1)

    @cached_property
    def n(self) -> Array:
        """Rows of each option."""
        n = np.zeros(len(self.options.state))
        for place in self.place:
            use = place >= 0
            n += np.bincount(place[use], self.cells.count[use], len(n))
        return n

    @cached_property
    def moves(self) -> sp.csr_array:
        """Probabilities of known next states, (K, S)."""
        row, column, count = np.concatenate(self.place), np.tile(self.next, 2), np.tile(self.cells.count, 2)
        use = (row >= 0) & (column >= 0) & (count > 0)
        shape = len(self.n), len(self.options.known)
        found = sp.csr_array((count[use].astype(float), (row[use], column[use])), shape=shape)
        found.data /= np.repeat(np.maximum(self.n, 1), np.diff(found.indptr))
        return found

    @cached_property
    def away(self) -> Array:
        """Probability that the next state is unknown, by option."""
        return self._mean(self.lost.astype(float))

    @cached_property
    def means(self) -> Array:
        """Mean losses of a step, (K, m), with those of unknown states that follow."""
        plain = np.column_stack([self._mean(column) for column in self.cells.values.T])
        found = plain + self.gamma * self.away[:, None] * self.unknown
        found[self.n == 0] = self.unknown
        return found

    @cached_property
    def start(self) -> Array:
        """Probabilities of the first state, known ones."""
        return self.cells.rho0[self.options.known]

    @cached_property
    def unknown(self) -> Array:
        """Losses of an unknown state, (m,): those of the worst known state if the log's policy goes on."""
        policy = self.options.as_logged
        step = np.column_stack([*(self._mean(column) for column in self.cells.values.T), self.gamma * self.away])
        step[self.n == 0] = 0.0
        step[self.n == 0, -1] = 1.0
        V = self._solve(policy, step)[0]
        never = np.maximum(1 - V[:, -1:], 1e-12)
        return (V[:, :-1] / never).max(axis=0) if len(V) else np.full(V.shape[1] - 1, np.inf)

    def _missing(self, policy: Array) -> Array:
        """Probability that the policy takes an action that the log does not show, by state."""
        total = np.bincount(self.options.state, policy, len(self.options.known))
        return np.where(total < 1 - 1e-9, np.maximum(1 - total, 0.0), 0.0)

    def lost_time(self, policy: Array, value: Value) -> float:
        """Share of the discounted time after something that the log does not show."""
        entered = value.states @ self._missing(policy) + self.gamma * float(value.visits @ self.away)
        return float(entered + max(0.0, 1 - self.start.sum()))

    def _solve(self, policy: Array, step: Array, missing: Array | None = None) -> tuple[Array, Array]:
        """Values of the known states under a policy for losses by option, and its visits of the states."""
        n = len(self.options.known)
        choice = sp.csr_array((policy, (self.options.state, np.arange(len(policy)))), shape=(n, len(policy)))
        P, b = sp.csr_array(choice @ self.moves), choice @ step
        if missing is not None and missing.any():
            b = b + np.outer(missing, self.unknown)
        if n <= DENSE:
            inverse = np.eye(n) - self.gamma * P.toarray()
            return np.linalg.solve(inverse, b), np.linalg.solve(inverse.T, self.start)
        P.sort_indices()
        mass = self.start.sum()
        ends = np.maximum(1 - self.gamma * P.sum(axis=1), 1 - self.gamma)
        rho0 = self.start / mass if mass > 0 else np.full(n, 1 / n)
        rows = Rows.from_matrix(P, np.arange(n + 1), np.ascontiguousarray(b.T), ends, self.gamma, rho0)
        evaluator, each = Evaluator(rows, self.clock.deadline), np.arange(n, dtype=np.int32)
        size = np.maximum(abs(b).max(axis=0), np.finfo(float).tiny) / (1 - self.gamma)
        V = evaluator.values(each, ACCURACY * size)
        visits = mass * evaluator.occupancy(each, ACCURACY / (1 - self.gamma))[0]
        self.clock.check()  # or they are what they were by the deadline
        return V, visits

    def evaluate(self, policy: Array) -> Value:
        """Evaluate a policy."""
        missing = self._missing(policy)
        V, visits = self._solve(policy, self.means, missing)
        J = self.start @ V + max(0.0, 1 - self.start.sum()) * self.unknown
        return Value(V, self.means + self.gamma * (self.moves @ V), visits, policy * visits[self.options.state], J)

    @cached_property
    def logged(self) -> Value:
        """Values of the log's own policy."""
        return self.evaluate(self.options.as_logged)

    def residuals(self, value: Value) -> tuple[tuple[Ints, Ints, Array], ...]:
        """Cells, their options, and y - Q (., m), once for actions and composites and once for "as logged".

        An option with one row has no residual of its own: it takes the mean over all of these, by visits, for Q.
        """
        y = self.cells.values.copy()
        known, lost = self.next >= 0, self.lost
        y[known] += self.gamma * value.V[self.next[known]]
        y[lost] += self.gamma * self.unknown
        Q, single = value.Q.copy(), np.flatnonzero(self.n == 1)
        if len(single):
            weight = value.visits[single] + np.finfo(float).tiny
            Q[single] = weight @ Q[single] / weight.sum()
        found = []
        for place in self.place:
            cell = np.flatnonzero((place >= 0) & (self.cells.count > 0))
            found.append((cell, place[cell], y[cell] - Q[place[cell]]))
        return tuple(found)

    def surprise(self, value: Value, sign: float = 1.0) -> Array:
        """The largest residuals that rows of each option may have, (K, m); with sign -1 minus the least.

        They are no larger than the largest residual that was seen, and lead to no larger y than the largest that was
        seen: of rows about their own actions, and about what the policy does.
        """
        counted = self.options.single | (value.visits > 0)
        top, worst = np.zeros(len(value.J)), np.full(len(value.J), -np.inf)
        for _, option, residual in self.residuals(value):
            seen, use = sign * residual, counted[option]
            top = np.maximum(top, seen[use].max(axis=0, initial=0.0))
            worst = np.maximum(worst, (seen + sign * value.Q[option])[use].max(axis=0, initial=-np.inf))
        return np.clip(worst - sign * value.Q, 0.0, top)

    @cached_property
    def freedom(self) -> Array:
        """Rows less one, by option: what weights of residuals are divided by; for single rows, that of all of them."""
        m = int((self.n == 1).sum())
        return np.where(self.n == 1, max((m - 1) / max(m, 1), 0.5), np.maximum(self.n - 1, 0.5))
