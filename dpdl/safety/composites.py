"""The working form of a log: cells of equal rows, dealt to halves, and the options that a policy may choose among.

A cell is a distinct row (pair, next state or end, reward, costs) with the number of times that it occurs, in the
caller's units. Rows of a log, in any order, and counts of it have the same cells, and everything else follows from
these.

An option of a state is one of

- an action with at least `n_min` rows;
- the composite of all rarer actions, taken as the log took them, if together they have `n_min` rows;
- "as logged": all rows of the state, if it has `n_min` rows and anything else to choose from.

A state without options is unknown. It is taken to cost as much as the worst known state does under the policy that made
the log. Counts alone decide this, not outcomes, so the rows of both halves may be counted.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpdl._validation import Array

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cells:
    """Distinct rows and how often they occur, in the order of (pair, next, values).

    Attributes
    ----------
    pair : array of int, shape (M,)
        State times number of actions plus action.
    next : array of int, shape (M,)
        Next state; -1 where the episode ended.
    values : array, shape (M, 1 + I)
        Reward and costs.
    count : array of int, shape (M,)
    starts : array of int, shape (S,), or None
        How many episodes began in each state; None if the first states are given by `rho0`.
    rho0 : array, shape (S,)
    n_actions : int
    """

    pair: Ints
    next: Ints
    values: Array
    count: Ints
    starts: Ints | None
    rho0: Array
    n_actions: int

    @classmethod
    def collect(
        cls,
        pair: Ints,
        next_state: Ints,
        values: Array,
        count: Ints,
        starts: Ints | None,
        rho0: Array,
        n_actions: int,
    ) -> Cells:
        """Collect equal rows."""
        key = _rank(pair * (len(rho0) + 1) + next_state + 1)
        for column in values.T:
            code = _rank(column)
            key = _rank(key * (code.max() + 1) + code)
        _, first = np.unique(key, return_index=True)
        total = np.zeros(len(first), dtype=np.int64)
        np.add.at(total, key, count)
        return cls(pair[first], next_state[first], values[first], total, starts, rho0, n_actions)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.rho0)

    @cached_property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.count.sum())

    @cached_property
    def pairs(self) -> Ints:
        """Pairs that occur, ascending."""
        return self.pair[self._first]

    @cached_property
    def _first(self) -> Ints:
        """First cell of each pair."""
        return np.flatnonzero(np.diff(self.pair, prepend=-1))

    @cached_property
    def pair_counts(self) -> Ints:
        """How often each of `pairs` occurs."""
        return np.add.reduceat(self.count, self._first)

    @cached_property
    def place(self) -> Ints:
        """Position of each cell's pair in `pairs`."""
        return np.cumsum(np.diff(self.pair, prepend=-1) != 0) - 1

    @cached_property
    def seed(self) -> int:
        """A number that depends on which rows are equal and how often they occur, not on their order or on units."""
        parts = [self.pair, self.next, self.count, *([] if self.starts is None else [self.starts])]
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(part, dtype="<i8").tobytes() for part in parts))
        return int.from_bytes(digest.digest()[:16], "little")

    def halves(self) -> tuple[Cells, Cells]:
        """Deal the rows of each pair at random to two halves; each gets as many rows of a pair, up to one.

        The odd rows of a state's pairs are dealt in turn, those of rare pairs first, so that composites are halved too.
        """
        rng = np.random.Generator(np.random.PCG64(self.seed))
        state = self.pairs // self.n_actions
        order = np.lexsort((self.pairs, self.pair_counts, state))
        odd = (self.pair_counts[order] % 2).astype(np.int64)
        before = np.cumsum(odd) - odd
        first_of_state = np.flatnonzero(np.diff(state[order], prepend=-1))
        which = np.repeat(np.arange(len(first_of_state)), np.diff(np.append(first_of_state, len(order))))
        turn = before - before[first_of_state][which] + rng.integers(0, 2, len(first_of_state))[which]
        size = np.empty(len(order), dtype=np.int64)
        size[order] = (self.pair_counts[order] + odd * (turn % 2)) // 2
        left = np.zeros_like(self.count)
        last = np.append(self._first[1:], len(self.count))
        for a, b, n in zip(self._first.tolist(), last.tolist(), size.tolist(), strict=True):
            if b - a == 1:
                left[a] = n
            elif n:
                left[a:b] = rng.multivariate_hypergeometric(self.count[a:b], n, method="marginals")
        if self.starts is None:
            return replace(self, count=left), replace(self, count=self.count - left)
        odd = self.starts % 2
        turn = np.cumsum(odd) + int(rng.integers(0, 2))
        begun = (self.starts + odd * (turn % 2)) // 2
        return self._half(left, begun), self._half(self.count - left, self.starts - begun)

    def _half(self, count: Ints, starts: Ints) -> Cells:
        return replace(self, count=count, starts=starts, rho0=starts / max(1, starts.sum()))


def _rank(values: NDArray) -> Ints:
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Options:
    """What may be chosen in each known state.

    Attributes
    ----------
    state : array of int, shape (K,)
        Position of the option's state in `known`; ascending.
    known : array of int
        States with options, ascending.
    own, logged : arrays of int, shape (number of pairs,)
        The option of each pair that occurs, as action or part of a composite, and as part of "as logged"; -1 for none.
    share : sparse array, shape (K, number of pairs)
        Probabilities of the pairs that an option stands for.
    as_logged : array, shape (K,)
        The log's own policy, as far as there are options.
    single : array of bool, shape (K,)
        Whether an option is one action.
    """

    state: Ints
    known: Ints
    own: Ints
    logged: Ints
    share: sp.csr_array
    as_logged: Array
    single: NDArray[np.bool_]

    @classmethod
    def build(cls, cells: Cells, n_min: int, *, composites: bool = True) -> Options:
        """Group the pairs of a log by how often they occur; without composites there are actions alone."""
        count, pairs = cells.pair_counts, cells.pairs
        states, where = np.unique(pairs // cells.n_actions, return_inverse=True)
        alone, total = count >= n_min, np.bincount(where, count)
        rare = np.bincount(where, np.where(alone, 0, count))
        composite = (rare >= n_min) & composites
        in_composite = ~alone & composite[where]
        n_options = np.bincount(where, alone) + composite
        # With one option that has all rows of its state, "as logged" would be the same again.
        whole = (total >= n_min) & ((n_options > 1) | (~composite & (rare > 0))) & composites
        known = np.flatnonzero(n_options + whole > 0)
        rank = np.full(len(states), -1)
        rank[known] = np.arange(len(known))
        # Options in the order of their states: actions, composite, as logged.
        lone = np.flatnonzero(alone)
        state = np.concatenate([where[lone], np.flatnonzero(composite), np.flatnonzero(whole)])
        kind = np.repeat([0, 1, 2], [len(lone), composite.sum(), whole.sum()])
        order = np.lexsort((np.arange(len(state)), kind, state))
        number = np.empty(len(state), dtype=np.int64)
        number[order] = np.arange(len(state))
        own, logged = np.full(len(pairs), -1), np.full(len(pairs), -1)
        own[lone] = number[: len(lone)]
        of_state = np.full((2, len(states)), -1)
        of_state[0, composite] = number[kind == 1]
        of_state[1, whole] = number[kind == 2]
        own[in_composite] = of_state[0, where[in_composite]]
        logged = of_state[1, where]
        row = np.concatenate([own, logged])
        use = row >= 0
        column, weight = np.tile(np.arange(len(pairs)), 2)[use], np.tile(count, 2)[use].astype(float)
        share = sp.csr_array((weight, (row[use], column)), shape=(len(state), len(pairs)))
        share.data /= np.repeat(share.sum(axis=1), np.diff(share.indptr))
        at = rank[state[order]]
        if composites:  # the last option of a state: "as logged", or the only one
            policy = np.append(np.diff(at) > 0, True).astype(float)[: len(at)]
        else:
            policy = (count / total[where])[lone]
        return cls(at, states[known], own, logged, share, policy, np.diff(share.indptr) == 1)

    @property
    def first(self) -> Ints:
        """First option of each known state, and the number of options."""
        return np.searchsorted(self.state, np.arange(len(self.known) + 1))
