"""The price of safety: what the best policy earns at each limit of a constraint, estimated and certified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _text as text
from dpdl import _validation as check
from dpdl._progress import StatusLine
from dpdl.data.dataset import Dataset
from dpdl.files.saved import Saved
from dpdl.safety.fit import ModelTests
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
class Frontier(text.Shown, Saved):
    """Reward against the limit of one constraint; `frontier` makes one.

    Attributes
    ----------
    name : str
        The constraint.
    points : tuple of Point
        From the strictest limit to the loosest.
    delta : float
    misfit : str or None
        How the log contradicts the model, on which every point rests (`dpdl.check_model`). No policy for which it does
        is then certified, unless the caller accepts that.
    accept_misfit : bool
        Whether the caller does: points are then certified under the model.
    """

    FORMAT = "dpdl frontier"
    name: str
    points: tuple[Point, ...]
    delta: float
    misfit: str | None = None
    accept_misfit: bool = False

    def parts(self) -> Iterator[str | text.Table]:
        """The table, and how the log contradicts the model."""
        certified = "certified" if self.misfit is None else "certified under the model"
        header = (f"limit of {self.name}", "reward", f"{certified} ({1 - self.delta:.4g})", "price")
        rows = [(text.tidy(limit), *(text.tidy(value) or "none" for value in more)) for limit, *more in self.points]
        yield header, rows
        if self.misfit is not None:
            yield self.misfit

    def plot(self, ax: Any = None) -> Any:
        """Draw the reward against the limit, and return the axes (extra ``plot``)."""
        from dpdl.plots import plot_frontier

        return plot_frontier(self, ax)


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
    log, gamma, limits, limit_on, rho0, initial_states, cost_max, accept_misfit
        As of `dpdl.safe_policy`.
    constraint : str or int, optional
        Name or number of the constraint.
    values : array_like, optional
        Limits to try, in the caller's units; by default eight, from the least to the largest cost of a useful policy.
    delta : float, optional
        Failure probability of certified points, each by itself.

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
    proposer.by_program = False  # plans of the model as it is, which is shrunk for proposals
    if values is None:
        # Up to where the best policy without this limit could be certified.
        free = proposer.predicted(proposer.at(_with_limit(task, i, np.inf).limits)).bound(1 + i, task.level)
        totals = np.linspace(whole.evaluate(proposer.most_careful()).J[1 + i], free, POINTS)
    else:
        given = np.atleast_1d(check.numbers_array("values", values))
        totals = np.array([task.total(i, limit) for limit in given])
    model = ModelTests(task.log, gamma=task.gamma)
    fit = model.check()
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
                tests.test(line)
                for trial in sorted(tests.passed, key=lambda trial: float(trial.estimate[0])):
                    earned = -float(trial.estimate[0])
                    if earned <= safest:
                        break
                    checked = model.check(tests.table(trial))
                    fit = fit if fit.rejected else checked
                    if task.accept_misfit or not checked.rejected:
                        safest = earned
            J = whole.evaluate(proposer.at(limited.limits)).J
            kept = bool((J[1:] <= limited.limits + 1e-6 * (abs(J[1:]) + abs(limited.limits))).all())
            best = max(best, safest, -float(J[0]) if kept else -np.inf)
            reward, certified = (value if np.isfinite(value) else None for value in (best, safest))
            points.append(Point(task.shown(1 + i, float(total)), reward, certified, None))
    misfit = fit.message if fit.rejected else None
    return Frontier(task.names[i], tuple(_with_prices(points)), task.delta, misfit, task.accept_misfit)


def _with_limit(task: Task, i: int, total: float) -> Task:
    return replace(task, limits=np.where(np.arange(len(task.limits)) == i, total, task.limits))


def _with_prices(points: list[Point]) -> list[Point]:
    """Set the price at each limit: the slope of the reward towards the next looser one, or else from the last."""
    priced = []
    for k, point in enumerate(points):
        first = max(0, min(k, len(points) - 2))
        a, b, price = points[first], points[min(first + 1, len(points) - 1)], None
        if a.reward is not None and b.reward is not None and a.limit != b.limit:
            price = (b.reward - a.reward) / (b.limit - a.limit)
        priced.append(point._replace(price=price))
    return priced


def _number(constraint: str | int, names: tuple[str, ...]) -> int:
    if isinstance(constraint, str):
        if constraint not in names:
            raise ValueError(f"constraint must be one of {', '.join(map(repr, names))}, got {constraint!r}")
        return names.index(constraint)
    return check.whole("constraint", constraint, at_most=len(names) - 1)
