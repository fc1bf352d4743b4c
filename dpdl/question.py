"""The question asked of a log: a discount, and upper limits on some of its costs.

A log holds what happened in the caller's units. The paper wants rewards and utilities in [-1, 1] and constraints
J^u_i >= 0. With the column v of a record (a cost, or a utility),

    u_i = (v_i - share_i) slope_i,        reward = r / reward_scale.

Of a cost with a limit, slope_i = -1/scale_i, and share_i is what the limit grants a row: the limit's rate a step for a
row that goes on, and its discounted total for a row that ends its episode, because what would have followed is free.
Then sum_t gamma^t u_i >= 0 says that the limit is kept. Of a utility, share_i = 0 and slope_i = 1/scale_i. The scale is
the largest absolute value in the log; it is 1 for rewards and utilities that are in [-1, 1] as they were given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.files.saved import Saved

TOTAL, AVERAGE = "total", "average"
LIMIT_ON = (TOTAL, AVERAGE)
#: Utilities that are smaller than this, relative to their scale, are rounding.
ROUNDING = 1e-14


@dataclass(frozen=True)
class Question(Saved):
    """A discount and limits, with the scales that bring a log into the paper's form.

    Attributes
    ----------
    gamma : float
        Discount, in (0, 1).
    names : tuple of str
        Names of the constraints: costs with limits, or utilities.
    limits : tuple of float or None
        Upper limits of the costs; None if the constraints are utilities.
    limit_on : {"total", "average"} or None
        Whether limits bound discounted totals, or discounted averages a step; None without limits.
    columns : tuple of int
        Which column of a record each constraint reads.
    reward_scale : float
        Rewards are divided by this.
    scales : tuple of float
        Utilities, and differences between limits and costs, are divided by these.

    Examples
    --------
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1, 0], costs={"wear": [2.0, 0.0]}, n_states=1, n_actions=2)
    >>> question = Question.of(log, gamma=0.9, limits={"wear": 0.5}, limit_on="average")
    >>> log.posed(question).u.ravel().round(3).tolist(), question.costs([0.0]).tolist()
    ([-1.0, 0.333], [0.5])
    """

    FORMAT: ClassVar[str] = "dpdl question"

    gamma: float
    names: tuple[str, ...]
    limits: tuple[float, ...] | None
    limit_on: str | None
    columns: tuple[int, ...]
    reward_scale: float
    scales: tuple[float, ...]

    @classmethod
    def of(
        cls, log: Dataset, gamma: float, limits: Mapping[str, float] | None = None, limit_on: str | None = None
    ) -> Question:
        """Check a question, and find the scales that the log needs.

        Parameters
        ----------
        log : Dataset
            In the caller's units.
        gamma : float
            Discount, in (0, 1).
        limits : mapping of str to float, optional
            Upper limits of costs by their names. A cost without one is not constrained.
        limit_on : {"total", "average"}
            Needed with limits; the two differ by a factor 1/(1-gamma).
        """
        gamma = check.real("gamma", gamma, above=0, below=1)
        chosen, limit_on = check_limits(limits, limit_on)
        ranges = log.ranges
        reward_scale = _largest(ranges[:, :, 0], keep_small=log.cost_names is None)
        if log.cost_names is None:
            if chosen:
                raise ValueError("limits are upper limits of costs, and the log has utilities u instead of costs")
            n = log.n_utilities
            scales = tuple(_largest(ranges[:, :, 1 + i], keep_small=True) for i in range(n))
            names = tuple(f"utility {i}" for i in range(n))
            return cls(gamma, names, None, None, tuple(range(n)), reward_scale, scales)
        for name in chosen:
            if name not in log.cost_names:
                known = check.suggestion(name, log.cost_names, "the costs of the log")
                raise ValueError(f"limits: the log has no cost {name!r}; {known if log.cost_names else 'it has none'}")
        columns = tuple(log.cost_names.index(name) for name in chosen)
        bare = cls(gamma, tuple(chosen), tuple(chosen.values()), limit_on, columns, reward_scale, (1.0,) * len(chosen))
        with np.errstate(over="ignore", invalid="ignore"):
            slack = ranges[:, :, [1 + k for k in columns]] - bare.share[:, None]
        scales = tuple(_of_costs(slack[:, :, i], ranges[:, :, 1 + k]) for i, k in enumerate(columns))
        for name, scale in zip(chosen, scales, strict=True):
            if not np.isfinite(scale):
                raise ValueError(f"limits[{name!r}] = {chosen[name]!r} less the costs of the log overflows")
        return cls(gamma, bare.names, bare.limits, limit_on, columns, reward_scale, scales)

    @cached_property
    def share(self) -> Array:
        """What the limits grant a row that goes on, and a row that ends its episode, (2, I); zeros for utilities."""
        limits = np.array(self.limits or np.zeros(len(self.names)), dtype=np.float64)
        average = self.limit_on == AVERAGE
        return np.stack([limits, limits / (1 - self.gamma)] if average else [limits * (1 - self.gamma), limits])

    @property
    def rate(self) -> Array:
        """The limits spread over time: sum_t gamma^t rate is the limit on the discounted total."""
        return self.share[0]

    @property
    def total(self) -> Array:
        """The limits on the discounted totals."""
        return self.share[1]

    @cached_property
    def slope(self) -> Array:
        """Factors of the utilities, (I,)."""
        return (1.0 if self.limits is None else -1.0) / np.array(self.scales, dtype=np.float64)

    @property
    def reward_slope(self) -> float:
        """Factor of the rewards."""
        return 1 / self.reward_scale

    def utilities_of(self, columns: NDArray[Any], ended: NDArray[np.bool_]) -> Array:
        """Return the paper's utilities (N, I) of the columns (N, K) of records."""
        return (columns[:, self.columns] - self.share[ended.astype(np.intp)]) * self.slope

    def reward(self, value: float) -> float:
        """Convert an expected discounted reward J to the caller's units."""
        return value * self.reward_scale

    def costs(self, values: ArrayLike) -> Array:
        """Convert J^u to costs, comparable with the limits."""
        if self.limits is None:
            raise ValueError("the log has utilities instead of costs with limits")
        slack = np.asarray(values, dtype=np.float64) * np.array(self.scales, dtype=np.float64)
        slack *= 1 - self.gamma if self.limit_on == AVERAGE else 1
        return np.array(self.limits, dtype=np.float64) - slack

    def one_sided(self, least: Array, most: Array) -> tuple[str, ...]:
        """Say which constraints no policy can break, or can keep only where the utility is zero.

        `least` and `most` are the extremes of each utility. Both cases are legal, and both are what costs look like
        that were given as utilities.
        """
        of_costs = self.limits is not None
        hint, zero = ("", "at its limit") if of_costs else ("; costs are given as costs=", "zero")
        above, below = ("above its limit", "below its limit") if of_costs else ("negative", "positive")
        notes = []
        for i, (low, high) in enumerate(zip(least, most, strict=True)):
            name = f"cost {self.names[i]!r}" if of_costs else f"u[:, {i}]"
            low, high = (0.0 if abs(value) < ROUNDING else value for value in (low, high))
            if low >= 0 and high > 0:
                notes.append(f"{name} is never {above}, so no policy can break its constraint{hint}")
            elif high < 0:
                notes.append(f"{name} is always {above}, so no policy can keep its constraint{hint}")
            elif high == 0 and low < 0:
                notes.append(f"{name} is never {below}, so its constraint allows only rows where it is {zero}{hint}")
        return tuple(notes)


def check_limits(limits: Any, limit_on: Any) -> tuple[dict[str, float], str | None]:
    """Check limits by name, and what they are on.

    Examples
    --------
    >>> check_limits({"falls": 2}, None)
    Traceback (most recent call last):
        ...
    TypeError: limits need limit_on=: "total" if they bound discounted totals, or "average" if they bound discounted \
averages per step; the two differ by a factor 1/(1-gamma)
    """
    if limits is None or (isinstance(limits, Mapping) and not limits):
        if limit_on is not None:
            raise TypeError(f"limit_on = {limit_on!r} says what limits are on, and there are none")
        return {}, None
    if not isinstance(limits, Mapping):
        raise TypeError(f"limits must be a mapping of costs to their limits, {{'cost': 0.2}}, got {limits!r:.200}")
    if limit_on is None:
        raise TypeError(
            'limits need limit_on=: "total" if they bound discounted totals, or "average" if they bound discounted '
            "averages per step; the two differ by a factor 1/(1-gamma)"
        )
    check.choice("limit_on", limit_on, LIMIT_ON)
    chosen = {check.text("limits", name): check.real(f"limits[{name!r}]", value) for name, value in limits.items()}
    return chosen, limit_on


def pose(log: Dataset, gamma: float, limits: Mapping[str, float] | None = None, limit_on: str | None = None) -> Dataset:
    """Return a log in the paper's form under a question; one that was posed already must be under the same.

    Examples
    --------
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [5, 0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> pose(log, 0.9).r.tolist(), pose(log, 0.9).question.reward_scale
    ([1.0, 0.0], 5.0)
    """
    check.instance("log", log, Dataset)
    asked = log.question
    if asked is None:
        return log.posed(Question.of(log, gamma, limits, limit_on))
    chosen, limit_on = check_limits(limits, limit_on)
    given = (tuple(chosen), tuple(chosen.values()), limit_on)
    same = not chosen or given == (asked.names, asked.limits, asked.limit_on)
    if check.real("gamma", gamma, above=0, below=1) != asked.gamma or not same:
        raise ValueError(f"the log was posed under another question, gamma = {asked.gamma}: pass the log itself")
    return log


def _of_costs(slack: Array, costs: Array) -> float:
    """The scale of what a limit leaves; where that is rounding, because all costs are at their limit, of the costs."""
    scale = _largest(slack)
    return scale if scale > 8 * np.finfo(float).eps * _largest(costs) else _largest(costs)


def _largest(extremes: Array, keep_small: bool = False) -> float:
    """The scale of a column from its least and largest values (none for an empty part: infinities of either sign)."""
    there = extremes[:, 0] <= extremes[:, 1]
    largest = float(abs(extremes[there]).max(initial=0.0))
    return 1.0 if largest == 0 or (keep_small and largest <= 1) else largest
