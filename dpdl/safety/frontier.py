"""The price of safety: what the best policy earns at each limit of a constraint, estimated and certified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _text as text
from dpdl import _validation as check
from dpdl._progress import StatusLine
from dpdl.data.dataset import Dataset
from dpdl.files.headers import expect_names
from dpdl.files.saved import Saved
from dpdl.safety.fit import check_model
from dpdl.safety.proposals import Proposer
from dpdl.safety.safe import Search
from dpdl.safety.task import Task, make_task

#: Limits between the least and the largest cost of a useful policy, if none are given.
POINTS = 8
#: Proposals at each limit, from careful to bold, see `dpdl.safety.proposals`.
PARTS = (1.5, 1.0, 0.7, 0.4, 0.0)


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
        How much more reward a unit of limit brings, up to the next limit.
    """

    limit: float
    reward: float | None
    certified: float | None
    price: float | None


@dataclass(frozen=True, repr=False)
class Frontier(Saved):
    """Reward against the limit of one constraint; `frontier` makes one.

    Attributes
    ----------
    name : str
        The constraint.
    points : tuple of Point
        From the strictest limit to the loosest.
    delta : float
    misfit : str or None
        How the log contradicts the model, on which every point rests (`dpdl.check_model`). No point is then certified
        unless the caller accepts that.
    """

    FORMAT = "dpdl frontier"
    name: str
    points: tuple[Point, ...]
    delta: float
    misfit: str | None = None

    @property
    def header(self) -> tuple[str, ...]:
        """Titles of the columns of `rows`."""
        return (f"limit of {self.name}", "reward", f"certified ({1 - self.delta:.4g})", "price")

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table."""
        return [
            (
                text.tidy(point.limit),
                *(text.tidy(value) or "none" for value in (point.reward, point.certified, point.price)),
            )
            for point in self.points
        ]

    def __repr__(self) -> str:
        lines = text.aligned(self.header, self.rows)
        return "\n".join(lines if self.misfit is None else [*lines, self.misfit])

    def _repr_html_(self) -> str:
        return text.html_table(self.header, self.rows) + (
            "" if self.misfit is None else f"<p>{escape(self.misfit)}</p>"
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw the reward against the limit, and return the axes (extra ``plot``)."""
        from dpdl.plots import plot_frontier

        return plot_frontier(self, ax)

    def to_json(self) -> dict[str, Any]:
        """Return the content of a file, for `from_json`."""
        points = [point._asdict() for point in self.points]
        return {"name": self.name, "delta": self.delta, "points": points, "misfit": self.misfit}

    @classmethod
    def from_json(cls, content: Any) -> Frontier:
        """Make the frontier of what `to_json` returned."""
        expect_names("the frontier", content, {"name", "delta", "points", "misfit"})
        return cls(**content | {"points": tuple(Point(**point) for point in content["points"])})


def frontier(
    log: Dataset,
    *,
    gamma: float,
    limits: Mapping[str, float | str] | None = None,
    limit_on: str | None = None,
    constraint: str | int = 0,
    values: ArrayLike | None = None,
    delta: float = 0.05,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
    cost_max: Any = None,
    accept_misfit: bool = False,
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
    cost_max : mapping of str to float, or array_like, optional
        The most that a step may cost.
    accept_misfit : bool, optional
        Certify points under the model even if the log contradicts it.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(0, 2, 2000)
    >>> log = Dataset(0 * a, a, 0 * a, 1.0 * a, costs={"wear": 2.0 * a}, n_states=1, n_actions=2)
    >>> frontier(log, gamma=0.5, limits={"wear": 0.5}, limit_on="average", values=[0.5, 1.0], rho0=[1.0])
    limit of wear  reward  certified (0.95)  price
    0.5               0.5            0.4998      1
    1                   1            0.9998      1
    """
    task = make_task(log, gamma, delta, rho0, initial_states, cost_max, accept_misfit, limits, limit_on)
    if not task.names:
        raise ValueError("log has no constraints")
    i = _number(constraint, task.names)
    if task.against_log[i]:
        name = task.names[i]
        raise ValueError(f"limits[{name!r}] is the log's own policy: a frontier varies a limit that is a number")
    search = Search(task)
    whole = search.samples[2]
    if not len(whole.options.known):
        raise ValueError(f"no state of the log has {search.setting.n_min} rows")
    proposer = Proposer(task, whole, search.setting)
    if values is None:
        # Up to where the best policy without this limit could be certified.
        free = proposer.predicted(proposer.at(_with_limit(task, i, np.inf).limits)).bound(1 + i, task.level)
        careful = whole.evaluate(proposer.most_careful()).J[1 + i]
        totals = np.linspace(careful, free, POINTS)
    else:
        given = np.atleast_1d(check.numbers_array("values", values))
        totals = np.array([task.total(i, limit) for limit in given])
    fit = check_model(task.log, gamma=task.gamma)
    points: list[Point] = []
    best, safest = -np.inf, -np.inf  # what a stricter limit allows, a looser one does as well
    with StatusLine() as line:
        for total in sorted(totals):
            if line.is_due():
                line.draw(f"frontier: {len(points)} of {len(totals)} limits")
            limited = _with_limit(task, i, float(total))
            if task.accept_misfit or not fit.rejected:
                tests = Search(limited, parts=PARTS)
                tests.samples = search.samples
                tests.run(line)
                safest = max(safest, *(-float(tested.trial.estimate[0]) for tested in tests.passed), -np.inf)
            policy = proposer.at(limited.limits)
            J = whole.evaluate(policy).J
            kept = bool((J[1:] <= limited.limits + 1e-6 * (abs(J[1:]) + abs(limited.limits))).all())
            best = max(best, -float(J[0])) if kept else best
            points.append(
                Point(
                    task.shown(1 + i, float(total)),
                    best if np.isfinite(best) else None,
                    safest if np.isfinite(safest) else None,
                    None,
                )
            )
    misfit = fit.message if fit.rejected else None
    return Frontier(task.names[i], tuple(_with_prices(points)), task.delta, misfit)


def _with_limit(task: Task, i: int, total: float) -> Task:
    return replace(task, limits=np.where(np.arange(len(task.limits)) == i, total, task.limits))


def _with_prices(points: list[Point]) -> list[Point]:
    """Set the price at each limit: the slope of the reward towards the next looser one, or else from the last."""
    found = []
    for k, point in enumerate(points):
        a, b = (points[k], points[k + 1]) if k + 1 < len(points) else (points[k - 1], points[k])
        price = None
        if len(points) > 1 and a.reward is not None and b.reward is not None and a.limit != b.limit:
            price = (b.reward - a.reward) / (b.limit - a.limit)
        found.append(point._replace(price=price))
    return found


def _number(constraint: str | int, names: tuple[str, ...]) -> int:
    if isinstance(constraint, str):
        if constraint not in names:
            raise ValueError(f"constraint must be one of {', '.join(map(repr, names))}, got {constraint!r}")
        return names.index(constraint)
    return check.whole("constraint", constraint, at_most=len(names) - 1)
