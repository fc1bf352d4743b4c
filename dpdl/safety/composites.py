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
import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpdl._validation import Array

Ints = NDArray[np.int64]


@dataclass
class Clock:
    """A deadline, by `time.monotonic`, that may be moved; long computations ask it whether it has passed."""

    deadline: float = np.inf

    def check(self) -> None:
        """Raise TimeoutError after the deadline."""
        if time.monotonic() >= self.deadline:
            raise TimeoutError("time ran out")


#: Steps that the hash of a state looks ahead.
DEPTH = 4


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
        clock: Clock | None = None,
    ) -> Cells:
        """Collect equal rows."""
        key = _rank(pair * (len(rho0) + 1) + next_state + 1)
        for column in values.T:
            if clock is not None:
                clock.check()
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
    def colours(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Hashes of cells (M,) and states (S,) that do not depend on labels, order of rows or units.

        A state is known by its rows and by what follows them, several steps deep (Weisfeiler and Leman 1968).
        """
        values = np.zeros(len(self.pair), dtype=np.uint64)
        for column in self.values.T:
            values = _mix(values + _rank(column).astype(np.uint64))
        begun = np.zeros(self.n_states) if self.starts is None else self.starts
        state, first_pair = _mix(begun.astype(np.uint64)), self.pairs // self.n_actions
        for _ in range(DEPTH):
            after = np.where(self.next >= 0, state[self.next], np.uint64(1))
            cell = _mix(_mix(values + after) + self.count.astype(np.uint64))
            pair = _mix(np.add.reduceat(cell, self._first))
            of_state = np.zeros(self.n_states, dtype=np.uint64)
            np.add.at(of_state, first_pair, pair)
            state = _mix(of_state + _mix(state))
        return _mix(cell + _mix(pair + state[first_pair])[self.place]), state

    def halves(self, clock: Clock | None = None) -> tuple[Cells, Cells]:
        """Deal the rows of each pair at random to two halves; each gets as many rows of a pair, up to one.

        The random numbers depend on what the log holds, not on labels, order of rows or units. The odd rows of a
        state's pairs are dealt in turn, those of rare pairs first, so that composites are halved too.
        """
        cell, of_state = self.colours
        seed = hashlib.sha256(np.sort(cell).tobytes()).digest()
        rng = np.random.Generator(np.random.PCG64(int.from_bytes(seed[:16], "little")))
        state, pair = self.pairs // self.n_actions, np.add.reduceat(cell, self._first)
        order = np.lexsort((pair, self.pair_counts, state, of_state[state]))
        odd = (self.pair_counts[order] % 2).astype(np.int64)
        before = np.cumsum(odd) - odd
        first_of_state = np.flatnonzero(np.diff(state[order], prepend=-1))
        which = np.repeat(np.arange(len(first_of_state)), np.diff(np.append(first_of_state, len(order))))
        turn = before - before[first_of_state][which] + rng.integers(0, 2, len(first_of_state))[which]
        size = np.empty(len(order), dtype=np.int64)
        size[order] = (self.pair_counts[order] + odd * (turn % 2)) // 2
        cells = np.lexsort((cell, self.place, pair[self.place]))
        left = np.zeros_like(self.count)
        for block in np.split(cells, np.flatnonzero(np.diff(self.place[cells])) + 1):
            if clock is not None:
                clock.check()
            n = int(size[self.place[block[0]]])
            if len(block) == 1:
                left[block] = n
            elif n:
                left[block] = rng.multivariate_hypergeometric(self.count[block], n, method="marginals")
        if self.starts is None:
            return replace(self, count=left), replace(self, count=self.count - left)
        odd, by_colour = self.starts % 2, np.argsort(of_state, kind="stable")
        turn = np.empty_like(odd)
        turn[by_colour] = np.cumsum(odd[by_colour]) + int(rng.integers(0, 2))
        begun = (self.starts + odd * (turn % 2)) // 2
        return self._half(left, begun), self._half(self.count - left, self.starts - begun)

    def _half(self, count: Ints, starts: Ints) -> Cells:
        return replace(self, count=count, starts=starts, rho0=starts / max(1, starts.sum()))


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash words of 64 bits, with constants and shifts of splitmix64."""
    words = (words + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


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
