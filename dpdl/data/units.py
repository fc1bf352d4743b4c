"""Scales and cost limits of a log, to convert results back into the user's units."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl.files.headers import expect_names


@dataclass(frozen=True)
class Units:
    """How a log's rewards and utilities were computed from the user's numbers, to convert results back.

    Attributes
    ----------
    reward_scale : float
        Rewards were divided by this.
    utility_scale : tuple of float
        Utilities were divided by these.
    limits : tuple of float or None
        Cost limits, if the utilities were computed from costs (`Dataset.from_costs`).
    normalised : bool
        Whether the limits bound (1-gamma) times the discounted sum of costs, or that sum itself.
    gamma : float or None
        Discount used to spread a discounted limit over time.
    names : tuple of str or None
        Names of the utilities or costs, if they have names (`Dataset.from_table`).
    """

    reward_scale: float
    utility_scale: tuple[float, ...]
    limits: tuple[float, ...] | None = None
    normalised: bool = False
    gamma: float | None = None
    names: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them, for `parse_units`; `names` only if there are some."""
        content = asdict(self)
        return content if self.names is not None else {name: content[name] for name in content if name != "names"}

    def reward(self, value: float) -> float:
        """Convert an expected discounted reward J to the user's units."""
        return value * self.reward_scale

    def utilities(self, values: ArrayLike) -> NDArray[np.float64]:
        """Convert expected discounted utilities J^u to the user's units."""
        return np.asarray(values, dtype=np.float64) * np.asarray(self.utility_scale)

    def costs(self, values: ArrayLike) -> NDArray[np.float64]:
        """Convert J^u to costs, comparable with the limits that were given to `Dataset.from_costs`."""
        if self.limits is None or self.gamma is None:
            raise ValueError("this data set was not made from costs; see Dataset.from_costs")
        slack = self.utilities(values) * (1 - self.gamma if self.normalised else 1)
        return np.asarray(self.limits) - slack

    def cost_limits(self) -> CostLimits | None:
        """How costs were written as utilities; None if they were not."""
        if self.limits is None or self.gamma is None:
            return None
        return CostLimits(np.array(self.limits), self.gamma, self.normalised)


@dataclass(frozen=True)
class CostLimits:
    """Limits on costs, written as utilities as `Dataset.from_costs` defines."""

    limits: NDArray[np.float64]
    gamma: float
    normalised: bool

    @classmethod
    def of(cls, limits: ArrayLike, gamma: float, normalised: bool, n_costs: int | None = None) -> CostLimits:
        """Check a caller's arguments."""
        gamma = check.real("gamma", gamma, above=0, below=1)
        normalised = check.flag("normalised", normalised)
        array = np.atleast_1d(check.numbers_array("limits", limits))
        check.check_shape("limits", array, (n_costs,))
        return cls(array, gamma, normalised)

    @property
    def rate(self) -> NDArray[np.float64]:
        """The limits spread over time: sum_t gamma^t rate is the limit on the discounted total."""
        return self.limits if self.normalised else self.limits * (1 - self.gamma)

    @property
    def total(self) -> NDArray[np.float64]:
        """The limits on the discounted totals."""
        return self.limits / (1 - self.gamma) if self.normalised else self.limits

    def slack(
        self, costs: NDArray[np.float64], terminated: NDArray[np.bool_] | None, first: int = 0
    ) -> NDArray[np.float64]:
        """Write costs as utilities, not yet scaled; see `Dataset.from_costs`."""
        with np.errstate(over="ignore"):
            slack = self.rate - costs
            if terminated is not None:
                slack[terminated] = self.total - costs[terminated]
            # A cost at its limit: what the product of limit and 1 - gamma leaves is rounding, not a violation.
            slack[abs(slack) <= 4 * np.finfo(float).eps * abs(costs)] = 0.0
        return check.numbers_array("limits - costs", slack, first=first, copy=False)

    def costs(self, slack: NDArray[np.float64], terminated: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The costs that `slack` wrote as utilities; what rounding leaves of a cost of zero is zero."""
        share = np.where(terminated[:, None], self.total, self.rate)
        costs = share - slack
        costs[abs(costs) <= 4 * np.finfo(float).eps * abs(share)] = 0.0
        return costs

    def units(self, reward_scale: float, largest: NDArray[np.float64]) -> Units:
        """Units whose scales are the largest slacks of the whole log; 1 for a utility that is always zero."""
        scale = np.where(largest == 0, 1.0, largest)
        limits = tuple(self.limits.tolist())
        return Units(reward_scale, tuple(scale.tolist()), limits, self.normalised, self.gamma)


def one_sided(least: NDArray[np.float64], most: NDArray[np.float64], units: Units) -> tuple[str, ...]:
    """Say which constraints no policy can break, and which it can keep only where the utility is zero.

    Both are legal, and both are what costs look like that were given as utilities.

    Parameters
    ----------
    least, most : arrays, shape (I,)
        The least and the largest of each utility.
    units : Units
        Says whether the utilities are costs, and their names.

    Examples
    --------
    >>> one_sided(np.array([0.0, -1.0]), np.array([2.0, 1.0]), Units(1.0, (1.0, 1.0)))
    ('u[:, 0] is never negative, so no policy can break its constraint; costs are given with Dataset.from_costs',)
    """
    of_costs = units.limits is not None
    hint, zero = ("", "at its limit") if of_costs else ("; costs are given with Dataset.from_costs", "zero")
    above, below = ("above its limit", "below its limit") if of_costs else ("negative", "positive")
    notes = []
    for i, (low, high) in enumerate(zip(least, most, strict=True)):
        name = f"cost {units.names[i]!r}" if units.names else f"{'costs' if of_costs else 'u'}[:, {i}]"
        if low >= 0 and high > 0:
            notes.append(f"{name} is never {above}, so no policy can break its constraint{hint}")
        elif high < 0:
            notes.append(f"{name} is always {above}, so no policy can keep its constraint{hint}")
        elif high == 0 and low < 0:
            notes.append(f"{name} is never {below}, so its constraint allows only rows where it is {zero}{hint}")
    return tuple(notes)


def scales(name: str, scale: Any, n: int) -> tuple[float, ...]:
    """Check a positive number for all of `n` columns, or one for each."""
    if np.ndim(scale) == 0:
        return (check.real(name, scale, above=0),) * n
    return tuple(
        check.real(f"{name}[{i}]", value, above=0)
        for i, value in enumerate(check.numbers_array(name, scale, shape=(n,)))
    )


def names_of(names: Any, n: int) -> tuple[str, ...]:
    """Check `n` distinct names."""
    if not isinstance(names, (list, tuple)) or len(names) != n or len({*names}) != n:
        raise ValueError(f"names must be {n} distinct strings, got {names!r:.200}")
    return tuple(check.text(f"names[{i}]", name) for i, name in enumerate(names))


def parse_units(content: Any, n_utilities: int | None = None) -> Units:
    """Check units that were read from a file; `n_utilities` is by default the length of ``utility_scale``."""
    known = {field.name for field in fields(Units)} - {"names"}
    if isinstance(content, dict) and "names" in content:
        known.add("names")
    expect_names("units", content, known)
    limits, gamma, normalised = content["limits"], content["gamma"], content["normalised"]
    try:
        if not isinstance(content["utility_scale"], list):
            raise ValueError(f"utility_scale must be a list, got {content['utility_scale']!r}")
        if n_utilities is None:
            n_utilities = len(content["utility_scale"])
        if (limits is None) != (gamma is None):
            raise ValueError("limits and gamma must be given together, or neither")
        if limits is not None:
            limits = tuple(check.numbers_array("limits", limits, shape=(n_utilities,)).tolist())
            gamma = check.real("gamma", gamma, above=0, below=1)
        reward_scale = check.real("reward_scale", content["reward_scale"], above=0)
        utility_scale = scales("utility_scale", content["utility_scale"], n_utilities)
        units = Units(reward_scale, utility_scale, limits, check.flag("normalised", normalised), gamma)
        return units if content.get("names") is None else replace(units, names=names_of(content["names"], n_utilities))
    except (TypeError, ValueError) as error:
        raise ValueError(f"units: {error}") from None
