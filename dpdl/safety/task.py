"""A log and a question in the form that answers are computed from: cells, and limits on discounted totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.question import AVERAGE, LIMIT_ON, pose
from dpdl.safety.composites import Cells, Clock, Options
from dpdl.safety.sample import Sample


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
    clock : Clock
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
    clock: Clock = field(default_factory=Clock, repr=False)

    @property
    def level(self) -> float:
        """The level of one constraint, so that all hold together with probability 1 - delta."""
        return self.delta / max(1, len(self.limits))

    @property
    def scale(self) -> Array:
        """Sizes of the limits, or else of the costs, to compare excesses by, (I,)."""
        size = np.maximum(abs(self.limits), abs(self.cells.values[:, 1:]).max(axis=0, initial=0.0))
        return np.where(size > 0, size, 1.0)

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """Which costs no row shows and nobody declares, (I,): nothing can be said about them."""
        return ~self.cells.values[:, 1:].any(axis=0) & np.isnan(self.cost_max) & ~self.against_log

    @cached_property
    def by_action(self) -> Sample:
        """The observed model of the whole log, in which every action with rows stands alone."""
        return Sample(self.cells, Options.build(self.cells, 1, composites=False), self.gamma, self.clock)

    @property
    def logged_policy(self) -> Array:
        """The log's own policy, (S, A); uniform in states that it does not leave."""
        return self.table(self.cells.pair_counts, 1 / self.cells.n_actions)

    def table(self, weights: NDArray[Any], otherwise: ArrayLike) -> Array:
        """The policy, (S, A), with probabilities proportional to these weights of the pairs of the log.

        In states without weight it is as `otherwise` says.
        """
        flat = np.zeros(self.cells.n_states * self.cells.n_actions)
        flat[self.cells.pairs] = weights
        table = flat.reshape(-1, self.cells.n_actions)
        total = table.sum(axis=1, keepdims=True)
        return np.where(total > 0, table / np.where(total > 0, total, 1.0), otherwise)

    def label(self, pair: Any) -> tuple[str, str]:
        """State and action of a pair, as the caller calls them."""
        s, a = divmod(int(pair), self.cells.n_actions)
        labels = self.log.labels
        return (str(s), str(a)) if labels is None else (str(labels.states[s]), str(labels.actions[a]))

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
    clock: Clock | None = None,
) -> Task:
    """Check a caller's arguments, and collect the rows of the log, posed under the question or with utilities."""
    check.instance("log", log, Dataset)
    numbers, by_log = _split(limits, log)
    if by_log and not numbers and limit_on is not None:  # limits by the log hold for both, but are told as one of them
        check.choice("limit_on", limit_on, LIMIT_ON)
    log = pose(log, gamma, numbers, limit_on if numbers or not by_log else None)
    question = log.question
    assert question is not None
    delta = check.real("delta", delta, above=0, below=1)
    initial, starts = log.initial(rho0, initial_states), log.initial_counts
    if rho0 is not None or initial_states is not None:
        given = None if initial_states is None else np.asarray(initial_states)
        starts = None if given is None else np.bincount(given, minlength=log.n_states).astype(np.int64)
    clock = clock or Clock()
    names, n, m = (*question.names, *by_log), len(question.names), len(by_log)
    return Task(
        log=log,
        cells=_cells(log, starts, initial, list(by_log.values()), clock),
        gamma=question.gamma,
        delta=delta,
        names=names,
        limits=np.append(question.total, np.zeros(m)),
        cost_max=_cost_max(cost_max, names),
        is_cost=np.append(np.full(n, question.limits is not None), [column >= 0 for column in by_log.values()]) > 0,
        against_log=np.repeat([False, True], [n, m]),
        is_average=(limit_on or question.limit_on) == AVERAGE,
        accept_misfit=check.flag("accept_misfit", accept_misfit),
        clock=clock,
    )


def _split(limits: Any, log: Dataset) -> tuple[Any, dict[str, int]]:
    """Limits that are numbers, and the columns of those by the log: ">= log" of the reward (-1), "<= log" of a cost."""
    if not isinstance(limits, Mapping):
        return limits, {}
    costs, by_log = log.raw.cost_names or (), {}
    for name, limit in limits.items():
        if not isinstance(limit, str):
            continue
        wanted = ">= log" if name == "reward" else "<= log"
        if limit.replace(" ", "") != wanted.replace(" ", ""):
            hint = "; the reward is called 'reward' here, whatever its column" if limit.startswith(">=") else ""
            raise ValueError(f"limits[{name!r}] must be a number or {wanted!r}, got {limit!r}{hint}")
        if name != "reward" and name not in costs:
            raise ValueError(f"limits: the log has no cost {name!r}; {check.suggestion(name, costs, 'its costs')}")
        by_log[name] = -1 if name == "reward" else costs.index(name)
    return {name: limit for name, limit in limits.items() if name not in by_log}, by_log


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


def _cells(log: Dataset, starts: NDArray[np.int64] | None, initial: Array, by_log: list[int], clock: Clock) -> Cells:
    question, raw = log.question, log.raw
    assert question is not None
    columns = [*question.columns, *by_log]

    def losses(rows: NDArray[Any], sign: float) -> Array:
        return np.column_stack([sign * rows["r"], *(sign * rows["r"] if k < 0 else rows["u"][:, k] for k in columns)])

    values = losses(raw.records, -1.0)
    if question.limits is None:
        values[:, 1 : 1 + len(question.columns)] *= -1
    values += 0.0  # no negative zeros, so that equal rows are equal
    pair = log.table[raw.records["pair"]].astype(np.int64)
    after = raw.records["s_next"].astype(np.int64)
    count = np.ones(len(pair), dtype=np.int64) if log.repeats is None else log.repeats
    if raw.spreads is not None:
        # Rows that stand for values of some spread are written as two, with the same mean and variance.
        above, spread = count // 2, losses(raw.spreads, 1.0)
        below = count - above
        up = np.where(above > 0, np.sqrt(below / np.maximum(above, 1)), 0.0)[:, None]
        down = np.where(above > 0, np.sqrt(above / np.maximum(below, 1)), 0.0)[:, None]
        values = np.concatenate([values + up * spread, values - down * spread])
        count, pair, after = np.concatenate([above, below]), np.tile(pair, 2), np.tile(after, 2)
        pair, after, values, count = pair[count > 0], after[count > 0], values[count > 0], count[count > 0]
    return Cells.collect(pair, after, values, count, starts, initial, log.n_actions, clock)
