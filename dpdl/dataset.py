"""The log: transitions (s, a, s', r, u), validated once, packed as the core reads them, read-only after.

A record is 16 + 8 I bytes: the index of its pair (s, a) among the pairs that the log visits, the next state, the
reward and the I utilities. One sampled transition is therefore one cache line, and the log stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _validation as check

INT32_MAX = 2**31 - 1


def record_dtype(n_utilities: int) -> np.dtype[Any]:
    """Layout of one packed transition; the compiled core reads exactly this (src_cython/_model.pxd).

    Examples
    --------
    >>> record_dtype(1).itemsize
    24
    """
    return np.dtype([("pair", "<i4"), ("s_next", "<i4"), ("r", "<f8"), ("u", "<f8", (n_utilities,))])


@dataclass(frozen=True)
class Units:
    """How the log's rewards and utilities were made from the user's numbers, so that results can be told back.

    Attributes
    ----------
    reward_scale : float
        Rewards were divided by this.
    utility_scale : tuple of float
        Utilities were divided by these.
    limits : tuple of float or None
        Cost limits, if the utilities were made of costs (`Dataset.from_costs`).
    normalised : bool
        Whether the limits bound (1-gamma) times the discounted sum of costs, or that sum itself.
    gamma : float or None
        Discount used to spread a discounted limit over time.
    """

    reward_scale: float
    utility_scale: tuple[float, ...]
    limits: tuple[float, ...] | None = None
    normalised: bool = False
    gamma: float | None = None

    def reward(self, value: float) -> float:
        """Turn an expected discounted reward J back into the user's units."""
        return value * self.reward_scale

    def utilities(self, values: ArrayLike) -> NDArray[np.float64]:
        """Turn expected discounted utilities J^u back into the user's units."""
        return np.asarray(values, dtype=np.float64) * np.asarray(self.utility_scale)

    def costs(self, values: ArrayLike) -> NDArray[np.float64]:
        """Turn J^u into costs, comparable with the limits that were given to `Dataset.from_costs`."""
        if self.limits is None or self.gamma is None:
            raise ValueError("this data set was not made of costs; see Dataset.from_costs")
        slack = self.utilities(values) * (1 - self.gamma if self.normalised else 1)
        return np.asarray(self.limits) - slack


class Dataset:
    """A fixed log of transitions.

    Parameters
    ----------
    s, a, s_next : array_like of int, shape (N,)
        States, actions and next states.
    r : array_like, shape (N,)
        Rewards; ``r / reward_scale`` must lie in [-1, 1].
    u : array_like, shape (N, I)
        Utilities; ``u / utility_scale`` must lie in [-1, 1]. A policy is safe if each discounted sum is >= 0.
    n_states, n_actions : int
        Sizes of the state and action sets.
    reward_scale : float, optional
        Positive number to divide the rewards by; remembered in `units`.
    utility_scale : float or sequence of float, optional
        Positive number or numbers (one per utility) to divide the utilities by. Scaling does not change which
        policies are safe.
    starts : array_like of int, optional
        Positions at which trajectories begin, ascending from 0: within each, every next state must be the state of the
        record that follows. ``[0]`` says that the log is one trajectory. None: independent transitions. From a column
        that marks the last record of each episode: ``np.flatnonzero(np.append(True, done[:-1]))``.

    Attributes
    ----------
    s, a, s_next, r, u : arrays
        The columns, read-only.
    pairs : int64 array
        The visited pairs as s * n_actions + a, ascending.
    pair : int32 array
        For each transition, the position of its pair in `pairs`.
    records : structured array
        The packed log, see `record_dtype`.
    kind : {"independent", "trajectory", "trajectories"}
        How the transitions hang together.

    Examples
    --------
    >>> log = Dataset([0, 1, 0], [0, 1, 0], [1, 0, 0], [0.5, 1, 0], [[0.1], [-1], [1]], n_states=2, n_actions=2)
    >>> len(log), log.pairs.tolist(), log.counts.tolist()
    (3, [0, 3], [2, 1])
    """

    records: NDArray[Any]
    pairs: NDArray[np.int64]
    n_states: int
    n_actions: int
    units: Units
    starts: NDArray[np.int64] | None

    def __init__(
        self,
        s: ArrayLike,
        a: ArrayLike,
        s_next: ArrayLike,
        r: ArrayLike,
        u: ArrayLike,
        *,
        n_states: int,
        n_actions: int,
        reward_scale: float = 1.0,
        utility_scale: float | Sequence[float] = 1.0,
        starts: ArrayLike | None = None,
    ) -> None:
        n_states = check.whole("n_states", n_states, at_least=1, at_most=INT32_MAX)
        n_actions = check.whole("n_actions", n_actions, at_least=1, at_most=INT32_MAX)
        s = check.indices("s", s, n_states)
        n = len(s)
        if n == 0:
            raise ValueError("the data set is empty: s has length 0")
        a = check.indices("a", a, n_actions, shape=(n,))
        s_next = check.indices("s_next", s_next, n_states, shape=(n,))
        begins = None if starts is None else _starts(starts, s, s_next)
        utilities = check.numbers_array("u", u, shape=(n, None))
        divisors = _scales("utility_scale", utility_scale, utilities.shape[1])
        divisor = check.real("reward_scale", reward_scale, above=0)
        records = np.empty(n, dtype=record_dtype(utilities.shape[1]))
        records["s_next"] = s_next
        records["r"] = _unit_range("r", check.numbers_array("r", r, shape=(n,)), divisor, "reward_scale")
        records["u"] = _unit_range("u", utilities, divisors, "utility_scale")
        flat = s.astype(np.int64) * n_actions + a
        pairs, records["pair"] = _rank(flat, n_states * n_actions)
        self._fill(records, pairs, n_states, n_actions, Units(divisor, tuple(divisors.tolist())), begins)

    def _fill(
        self,
        records: NDArray[Any],
        pairs: NDArray[np.int64],
        n_states: int,
        n_actions: int,
        units: Units,
        starts: NDArray[np.int64] | None,
    ) -> None:
        values = {
            "records": check.frozen(records),
            "pairs": check.frozen(pairs),
            "n_states": n_states,
            "n_actions": n_actions,
            "units": units,
            "starts": None if starts is None else check.frozen(starts),
        }
        self.__dict__.update(values)

    @classmethod
    def from_costs(
        cls,
        s: ArrayLike,
        a: ArrayLike,
        s_next: ArrayLike,
        r: ArrayLike,
        costs: ArrayLike,
        limits: ArrayLike,
        *,
        gamma: float,
        normalised: bool,
        n_states: int,
        n_actions: int,
        reward_scale: float = 1.0,
        starts: ArrayLike | None = None,
    ) -> Dataset:
        """Make a log whose constraints are "costs stay below limits".

        With C_i = E sum_t gamma^t c_i(s_t, a_t), the constraint is

        - ``normalised=False``: C_i <= limits[i], a limit on the discounted total;
        - ``normalised=True``: (1 - gamma) C_i <= limits[i], a limit on the discounted average cost per step.

        Either is written as a utility u_i = (rate_i - c_i) / scale_i whose discounted sum must be >= 0, where rate_i is
        limits[i] * (1 - gamma) in the first case and limits[i] in the second, and scale_i = max |rate_i - c_i| over the
        log brings it into [-1, 1]. Limits and scales are remembered: ``units.costs`` turns J^u back into costs.

        Parameters
        ----------
        costs : array_like, shape (N, I)
            Costs of each transition, any finite numbers.
        limits : array_like, shape (I,)
            Upper limits.
        gamma : float
            Discount in (0, 1); the same one must be used to learn.
        normalised : bool
            Which of the two limits is meant; there is no default, because guessing it wrong is a factor 1/(1-gamma).

        Examples
        --------
        >>> log = Dataset.from_costs([0, 0], [0, 1], [0, 0], [1, 0], [[2.0], [0.0]], [0.5], gamma=0.9, normalised=True,
        ...                          n_states=1, n_actions=2)
        >>> log.u.ravel().round(3).tolist()
        [-1.0, 0.333]
        >>> log.units.costs([0.0]).tolist()
        [0.5]
        """
        gamma = check.real("gamma", gamma, above=0, below=1)
        if not isinstance(normalised, (bool, np.bool_)):
            raise TypeError(f"normalised must be True or False, got {normalised!r}")
        n_states = check.whole("n_states", n_states, at_least=1, at_most=INT32_MAX)
        s = check.indices("s", s, n_states)
        cost = check.numbers_array("costs", costs, shape=(len(s), None))
        limit = check.numbers_array("limits", limits, shape=(cost.shape[1],))
        with np.errstate(over="ignore"):
            slack = check.numbers_array("limits - costs", (limit if normalised else limit * (1 - gamma)) - cost)
        scale = abs(slack).max(axis=0, initial=0.0)
        scale[scale == 0] = 1.0
        log = cls(
            s,
            a,
            s_next,
            r,
            slack,
            n_states=n_states,
            n_actions=n_actions,
            reward_scale=reward_scale,
            utility_scale=scale,
            starts=starts,
        )
        log.__dict__["units"] = Units(
            log.units.reward_scale, tuple(scale.tolist()), tuple(limit.tolist()), bool(normalised), gamma
        )
        return log

    @classmethod
    def from_trajectories(
        cls, trajectories: Iterable[tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]], **options: Any
    ) -> Dataset:
        """Make a log of whole trajectories, each given as (states, actions, rewards, utilities).

        A trajectory of n steps has n + 1 states: the last one is where it ended, and nothing follows it. So no
        transition ever leads from the end of one trajectory to the beginning of the next.

        Parameters
        ----------
        trajectories : iterable of (states (n + 1,), actions (n,), rewards (n,), utilities (n, I))
        **options
            As for the class: `n_states`, `n_actions`, and scales.

        Examples
        --------
        >>> walk = ([0, 1, 1], [0, 1], [0.0, 1.0], [[1.0], [0.5]])
        >>> log = Dataset.from_trajectories([walk, walk], n_states=2, n_actions=2)
        >>> log.kind, log.starts.tolist(), log.s_next.tolist()
        ('trajectories', [0, 2], [1, 1, 1, 1])
        """
        columns: list[tuple[NDArray[Any], ...]] = []
        starts = [0]
        for k, trajectory in enumerate(trajectories):
            if not isinstance(trajectory, (tuple, list)) or len(trajectory) != 4:
                raise TypeError(f"trajectories[{k}] must be (states, actions, rewards, utilities)")
            states, actions, rewards, utilities = map(np.asarray, trajectory)
            n = len(states) - 1 if states.ndim else 0
            if n < 1:
                raise ValueError(f"trajectories[{k}] must have at least two states, got {max(n + 1, 0)}")
            for name, column in (("actions", actions), ("rewards", rewards), ("utilities", utilities)):
                if column.shape[:1] != (n,):
                    raise ValueError(
                        f"trajectories[{k}] has {n + 1} states, so its {name} must have length {n}, "
                        f"got shape {column.shape}"
                    )
            columns.append((states[:-1], actions, states[1:], rewards, utilities))
            starts.append(starts[-1] + n)
        if not columns:
            raise ValueError("trajectories is empty")
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)), starts=starts[:-1], **options)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Dataset is read-only, {name} cannot be set")

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return (
            f"Dataset({len(self)} transitions, {len(self.pairs)} of {self.n_states * self.n_actions} pairs visited, "
            f"n_states={self.n_states}, n_actions={self.n_actions}, n_utilities={self.n_utilities}, kind={self.kind!r})"
        )

    def __getitem__(self, part: slice) -> Dataset:
        """Cut out part of the log as a data set of its own; trajectories are cut with it, and only with step 1.

        Examples
        --------
        >>> log = Dataset([0, 1], [0, 0], [1, 0], [0, 1], [[0], [0]], n_states=2, n_actions=1)
        >>> log[1:].s.tolist(), log[1:].pairs.tolist()
        ([1], [1])
        """
        if not isinstance(part, slice):
            raise TypeError(f"a data set is cut with a slice, got {type(part).__name__}")
        records = self.records[part].copy()
        if len(records) == 0:
            raise ValueError(f"{part} of a data set of length {len(self)} is empty")
        starts = self.starts
        if starts is not None:
            first, last, step = part.indices(len(self))
            if step != 1:
                raise ValueError(f"a trajectory is cut with step 1, got {part}")
            starts = np.append(0, starts[(starts > first) & (starts < last)] - first)
        kept, records["pair"] = _rank(records["pair"].astype(np.int64), len(self.pairs))
        cut = Dataset.__new__(Dataset)
        cut._fill(records, self.pairs[kept], self.n_states, self.n_actions, self.units, starts)
        return cut

    @property
    def n_utilities(self) -> int:
        """The number I of utilities."""
        return int(self.records.dtype["u"].shape[0])

    @property
    def kind(self) -> str:
        """Whether the transitions are "independent", one "trajectory" or several "trajectories"."""
        if self.starts is None:
            return "independent"
        return "trajectory" if len(self.starts) == 1 else "trajectories"

    @property
    def pair(self) -> NDArray[np.int32]:
        """Position of each transition's pair in `pairs`."""
        return self.records["pair"]

    @property
    def s(self) -> NDArray[np.int32]:
        """States."""
        return check.frozen((self.pairs // self.n_actions).astype(np.int32)[self.pair])

    @property
    def a(self) -> NDArray[np.int32]:
        """Actions."""
        return check.frozen((self.pairs % self.n_actions).astype(np.int32)[self.pair])

    @property
    def s_next(self) -> NDArray[np.int32]:
        """Next states."""
        return self.records["s_next"]

    @property
    def r(self) -> NDArray[np.float64]:
        """Rewards."""
        return self.records["r"]

    @property
    def u(self) -> NDArray[np.float64]:
        """Utilities, shape (N, I)."""
        return self.records["u"]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How often each of `pairs` occurs."""
        return check.frozen(np.bincount(self.pair, minlength=len(self.pairs)).astype(np.int64))


def _rank(flat: NDArray[np.int64], bound: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Distinct values (ascending) of numbers below `bound`, and the position of each number among them."""
    if bound <= 8 * len(flat) + 10**6:  # a table is quicker than sorting while it is not much larger than the log
        seen = np.zeros(bound, dtype=bool)
        seen[flat] = True
        values = np.flatnonzero(seen)
        rank = np.zeros(bound, dtype=np.int32)
        rank[values] = np.arange(len(values), dtype=np.int32)
        return values.astype(np.int64), rank[flat]
    values, positions = np.unique(flat, return_inverse=True)
    return values, positions.astype(np.int32)


def _starts(starts: Any, s: NDArray[np.int32], s_next: NDArray[np.int32]) -> NDArray[np.int64]:
    """Check that trajectories begin where they are said to, and only there."""
    begins = check.indices("starts", starts, len(s), dtype=np.int64)
    if len(begins) == 0 or begins[0] != 0:
        raise ValueError(f"starts must begin with 0, got {begins[:1].tolist()}")
    wrong = np.flatnonzero(np.diff(begins) <= 0)
    if wrong.size:
        k = int(wrong[0]) + 1
        raise ValueError(f"starts must ascend, but starts[{k}] = {begins[k]} follows {begins[k - 1]}")
    broken = s_next[:-1] != s[1:]
    broken[begins[1:] - 1] = False
    if broken.any():
        t = int(np.argmax(broken))
        raise ValueError(
            f"s_next[{t}] = {s_next[t]} but s[{t + 1}] = {s[t + 1]}: a trajectory ends there, "
            f"so starts must list {t + 1} (or be None, if the transitions are independent)"
        )
    return begins


def _scales(name: str, scale: Any, n: int) -> NDArray[np.float64]:
    if np.ndim(scale) == 0:
        return np.full(n, check.real(name, scale, above=0))
    scales = check.numbers_array(name, scale, shape=(n,))
    for i, value in enumerate(scales):
        check.real(f"{name}[{i}]", value, above=0)
    return scales


def _unit_range(
    name: str, values: NDArray[np.float64], divisor: float | NDArray[np.float64], scale: str
) -> NDArray[np.float64]:
    """Divide, and check that the result lies in [-1, 1]; the message names a divisor that works."""
    largest = float(abs(values).max(initial=0.0))
    hint = f" after division by {scale}; to rescale, pass {scale}={largest!r} or more (it is remembered in units)"
    with np.errstate(over="ignore"):  # an overflow is out of range and reported as such
        return check.numbers_array(name, values / divisor, at_least=-1, at_most=1, hint=hint)
