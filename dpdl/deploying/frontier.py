"""The price of safety: what the best policy earns at each limit of a constraint, estimated and certified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _text as text
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.deploying.candidates import Plans, Search
from dpdl.deploying.certificate import Certifier
from dpdl.models.status_line import StatusLine
from dpdl.question import pose

#: Limits between the least and the largest cost of a useful policy, if none are given; pessimism of certified points.
POINTS, PESSIMISM = 8, 1.0


class Point(NamedTuple):
    """One limit.

    Attributes
    ----------
    limit : float
        The limit, in the caller's units.
    reward : float or None
        Estimated reward of the best policy at that limit, without a margin; None if no policy keeps it.
    certified : float or None
        Estimated reward of the best policy that is certified at that limit; None if there is none.
    price : float or None
        How much more reward one unit of limit brings, if the limit is made looser by it: the multiplier of the
        constraint.
    """

    limit: float
    reward: float | None
    certified: float | None
    price: float | None


@dataclass(frozen=True, repr=False)
class Frontier:
    """Reward against the limit of one constraint; `frontier` makes one.

    Attributes
    ----------
    name : str
        The constraint.
    points : tuple of Point
        From the strictest limit to the loosest.
    delta : float
    """

    name: str
    points: tuple[Point, ...]
    delta: float

    @property
    def header(self) -> tuple[str, ...]:
        """Titles of the columns of `rows`."""
        return (f"limit of {self.name}", "reward", f"certified ({1 - self.delta:.4g})", "price")

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table."""
        return [
            (text.tidy(one.limit), *(text.tidy(value) or "none" for value in (one.reward, one.certified, one.price)))
            for one in self.points
        ]

    def __repr__(self) -> str:
        return "\n".join(text.aligned(self.header, self.rows))

    def _repr_html_(self) -> str:
        return text.html_table(self.header, self.rows)


def frontier(
    log: Dataset,
    *,
    gamma: float,
    limits: Mapping[str, float] | None = None,
    limit_on: str | None = None,
    constraint: str | int = 0,
    values: ArrayLike | None = None,
    delta: float = 0.05,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
) -> Frontier:
    """Return what the best policy earns at each limit of a constraint, the other limits staying as they are.

    Parameters
    ----------
    log : Dataset
    gamma : float
        Discount.
    limits, limit_on
        Upper limits of costs by name, and whether they are on the "total" or the "average" (`dpdl.question`).
    constraint : str or int, optional
        Name or number of the constraint.
    values : array_like, optional
        Limits to try, in the caller's units; by default eight, from the least to the largest cost of a useful policy.
    delta : float, optional
        Failure probability of certified points, each by itself.
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(0, 2, 2000)
    >>> log = Dataset(0 * a, a, 0 * a, 1.0 * a, costs={"wear": 2.0 * a}, n_states=1, n_actions=2)
    >>> frontier(log, gamma=0.5, limits={"wear": 0.5}, limit_on="average", values=[0.5, 1.0], rho0=[1.0])
    limit of wear  reward  certified (0.95)  price
    0.5               0.5               0.5      1
    1                   1                 1      1
    """
    log = pose(log, gamma, limits, limit_on)
    certifier = Certifier.of(log, gamma, delta, "normal", rho0, initial_states, chosen_here=True)
    posterior, names = certifier.posterior, log.question.names
    if not names:
        raise ValueError("log has no constraints")
    i = _number(constraint, names)
    sign, share = (
        -1 if log.question.limits is not None else 1,
        (1 - gamma) if log.question.limit_on == "average" else 1.0,
    )

    def with_limit(total: float) -> Array:
        return np.where(np.arange(len(names)) == i, total, certifier.thresholds)

    start = Search(certifier).first()
    if values is None:
        plans = Plans(posterior, start, 0.0)
        far = -2 * plans.scale[1 + i] / (1 - gamma)  # no policy has less
        free, careful = plans.best(with_limit(far))[1], plans.most_careful(certifier.thresholds)
        totals = np.linspace(posterior.value(free).J[1 + i], posterior.value(careful).J[1 + i], POINTS)
    else:
        totals = sign * np.atleast_1d(check.numbers_array("values", values)) / share
    points: list[Point] = []
    best, safest = -np.inf, -np.inf  # what a stricter limit allows, a looser one does as well
    with StatusLine() as line:
        for total in sorted(totals, reverse=True):
            if line.is_due():
                line.draw(f"frontier: {len(points)} of {len(totals)} limits")
            limit, thresholds = float(sign * share * total) + 0.0, with_limit(total)
            search = Search(replace(certifier, thresholds=thresholds))
            plans, start, kept = search.without_margin(start)
            if not kept:
                points.append(Point(limit, None, None, None))
                continue
            passed = (float(one.value.J[0]) for one in search.run(start, PESSIMISM, None) if one.passed)
            best, safest = max(best, float(start.J[0])), max(safest, max(passed, default=-np.inf))
            price = float(plans.prices[i] / share)
            points.append(Point(limit, best, safest if np.isfinite(safest) else None, price))
    return Frontier(names[i], tuple(points), certifier.delta)


def _number(constraint: str | int, names: tuple[str, ...]) -> int:
    if isinstance(constraint, str):
        if constraint not in names:
            raise ValueError(f"constraint must be one of {', '.join(map(repr, names))}, got {constraint!r}")
        return names.index(constraint)
    return check.whole("constraint", constraint, at_most=len(names) - 1)
