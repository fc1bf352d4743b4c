"""A log and a question in the form that answers are computed from: cells, and limits on discounted totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.question import AVERAGE, pose
from dpdl.safety.composites import Cells


@dataclass(frozen=True, eq=False)
class Task:
    """A log and a question.

    Attributes
    ----------
    log : Dataset
    cells : Cells
        Its values are losses: minus the reward, and the costs (minus the utilities).
    gamma, delta : float
    names : tuple of str
        Of the constraints.
    limits : array, shape (I,)
        On the discounted totals of the costs.
    cost_max : array, shape (I,)
        The most that a step may cost; NaN where it was not declared.
    is_cost, against_log : arrays of bool, shape (I,)
        Whether a constraint is a cost with an upper limit, or a utility or the reward with a lower one; whether it is
        on the difference from the log's own policy.
    is_average : bool
        Whether limits are told as averages a step.
    accept_misfit : bool
        Whether certificates are given even if the log contradicts the model (`dpdl.safety.fit`).
    """

    log: Dataset = field(repr=False)
    cells: Cells = field(repr=False)
    gamma: float
    delta: float
    names: tuple[str, ...]
    limits: Array
    cost_max: Array
    is_cost: NDArray[np.bool_]
    against_log: NDArray[np.bool_]
    is_average: bool
    accept_misfit: bool = False

    @property
    def level(self) -> float:
        """The level of one constraint, so that all hold together with probability 1 - delta."""
        return self.delta / max(1, len(self.limits))

    @property
    def scale(self) -> Array:
        """Sizes of the limits, or else of the costs, to compare excesses by, (I,)."""
        size = np.maximum(abs(self.limits), abs(self.cells.values[:, 1:]).max(axis=0, initial=0.0))
        return np.where(size > 0, size, 1.0)

    def shown(self, i: int, total: float) -> float:
        """Convert a discounted total of loss `i` (0: minus the reward) to what the caller reads."""
        if i == 0:
            return 0.0 - total
        value = total * (1 - self.gamma) if self.is_average else total
        return value + 0.0 if self.is_cost[i - 1] else 0.0 - value

    def total(self, i: int, limit: float) -> float:
        """Convert a limit of constraint `i`, as the caller tells it, to a limit on the discounted total."""
        value = limit / (1 - self.gamma) if self.is_average else limit
        return value if self.is_cost[i] else -value


def make_task(
    log: Dataset,
    gamma: float,
    delta: float,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
    cost_max: Any = None,
    accept_misfit: bool = False,
    limits: Mapping[str, float | str] | None = None,
    limit_on: str | None = None,
) -> Task:
    """Check a caller's arguments, and collect the rows of the log, posed under the question or with utilities."""
    numbers, by_log = _split(limits)
    log = pose(log, gamma, numbers, limit_on if numbers or not by_log else None)  # those by the log need none
    question = log.question
    assert question is not None
    delta = check.real("delta", delta, above=0, below=1)
    starts, initial = _first_states(log, rho0, initial_states)
    names = (*question.names, *by_log)
    further = [_column(log, name, sign) for name, sign in by_log.items()]
    n, m = len(question.names), len(by_log)
    return Task(
        log=log,
        cells=_cells(log, starts, initial, further),
        gamma=question.gamma,
        delta=delta,
        names=names,
        limits=np.append(question.total, np.zeros(m)),
        cost_max=_cost_max(cost_max, names),
        is_cost=np.append(np.full(n, question.limits is not None), [sign == "<=" for sign in by_log.values()]) > 0,
        against_log=np.repeat([False, True], [n, m]),
        is_average=question.limit_on == AVERAGE,
        accept_misfit=check.flag("accept_misfit", accept_misfit),
    )


def _split(limits: Mapping[str, float | str] | None) -> tuple[Any, dict[str, str]]:
    """Limits that are numbers, and signs of those by the log: ">= log" of the reward, "<= log" of a cost.

    Examples
    --------
    >>> _split({"falls": 2.0, "reward": ">= log"})
    ({'falls': 2.0}, {'reward': '>='})
    """
    if not isinstance(limits, Mapping):
        return limits, {}
    by_log = {}
    for name, limit in limits.items():
        if isinstance(limit, str):
            by_log[name] = limit.replace(" ", "").removesuffix("log")
            wanted = ">= log" if name == "reward" else "<= log"
            if by_log[name] + " log" != wanted:
                raise ValueError(f"limits[{name!r}] must be a number or {wanted!r}, got {limit!r}")
    return {name: limit for name, limit in limits.items() if name not in by_log}, by_log


def _column(log: Dataset, name: str, sign: str) -> int:
    """The column of a constraint by the log: -1 for the reward, or that of the cost."""
    costs = log.raw.cost_names or ()
    if sign == ">=":
        return -1
    if name not in costs:
        raise ValueError(f"limits: the log has no cost {name!r}; {check.suggestion(name, costs, 'its costs')}")
    return costs.index(name)


def _first_states(log: Dataset, rho0: ArrayLike | None, initial_states: ArrayLike | None) -> tuple[Any, Array]:
    """How often each state came first, None if that is given, and its distribution."""
    initial = log.initial(rho0, initial_states)
    if rho0 is not None:
        return None, initial
    if initial_states is not None:
        return np.bincount(np.asarray(initial_states), minlength=log.n_states).astype(np.int64), initial
    return log.initial_counts, initial


def _cost_max(given: Any, names: tuple[str, ...]) -> Array:
    """The declared largest cost of a step, by constraint; NaN for those that were not declared."""
    most = np.full(len(names), np.nan)
    if given is None:
        return most
    if isinstance(given, Mapping):
        for name, value in given.items():
            if name not in names:
                raise ValueError(f"cost_max names {name!r}; the costs are {', '.join(map(repr, names)) or 'none'}")
            most[names.index(name)] = check.real(f"cost_max[{name!r}]", value)
        return most
    return check.numbers_array("cost_max", np.atleast_1d(np.asarray(given, dtype=float)), shape=(len(names),))


def _cells(log: Dataset, starts: Any, initial: Array, further: list[int]) -> Cells:
    question, raw = log.question, log.raw
    assert question is not None
    records, columns = raw.records, [*question.columns, *further]
    values = np.empty((len(records), 1 + len(columns)))
    values[:, 0] = -records["r"]
    for k, column in enumerate(columns, 1):
        values[:, k] = -records["r"] if column < 0 else records["u"][:, column]
    if question.limits is None:
        values[:, 1 : 1 + len(question.columns)] *= -1
    values += 0.0  # no negative zeros, so that equal rows are equal
    pair = log.table[records["pair"]].astype(np.int64)
    after = records["s_next"].astype(np.int64)
    count = np.ones(len(records), dtype=np.int64) if log.repeats is None else log.repeats
    if raw.spreads is not None:
        of = raw.spreads
        spread = np.column_stack([of["r"], *(of["r"] if k < 0 else of["u"][:, k] for k in columns)])
        pair, after, values, count = _spread(pair, after, values, count, spread)
    return Cells.collect(pair, after, values, count, starts, initial, log.n_actions)


def _spread(pair: Any, after: Any, values: Array, count: Any, spread: Array) -> tuple[Any, ...]:
    """Write rows that stand for values of some spread as two rows, with the same mean and variance."""
    above = count // 2
    below = count - above
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(above > 0, np.sqrt(below / np.maximum(above, 1)), 0.0)
        down = np.where(above > 0, np.sqrt(above / below), 0.0)
    stacked = np.concatenate([values + up[:, None] * spread, values - down[:, None] * spread])
    number, use = np.concatenate([above, below]), np.concatenate([above, below]) > 0
    return np.tile(pair, 2)[use], np.tile(after, 2)[use], stacked[use], number[use]
