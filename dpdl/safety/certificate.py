"""Certificates: confidence bounds of a policy's reward and costs, in the caller's units.

All bounds of constraints hold together with probability 1 - delta: each is Gaffke's at level delta/I
(`dpdl.safety.trial`). A policy that `safe_policy` proposes is tested on the half of the log that did not choose it. A
policy from elsewhere (`certify`) is tested on the whole log, by leave-one-out residuals. All of it rests on the model,
which the log may contradict (`dpdl.safety.fit`): then nothing is certified, unless the caller accepts the misfit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from statistics import NormalDist
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpdl import _text as text
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.files.headers import expect_names
from dpdl.files.saved import Saved
from dpdl.safety.composites import Cells, Options
from dpdl.safety.fit import ModelCheck, check_model
from dpdl.safety.sample import Sample
from dpdl.safety.task import Task, make_task
from dpdl.safety.trial import Trial

#: The log's own discounted totals count as such if the steps that its episodes lack have at most this weight.
MOST_MISSING = 0.01
#: A bound keeps its limit if it is at most this part of the sizes of both above it: rounding of sums and plans.
TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A figure with its confidence bound, in the caller's units.

    Attributes
    ----------
    name : str
        "reward", or the name of the constraint.
    estimate, error : float
        Estimate and standard error of the discounted total (of the discounted average per step if the limit is one).
    bound : float
        Confidence bound: upper for a cost, lower for a utility or the reward.
    limit : float or None
        Upper limit of a cost, lower limit 0 of a utility; None for the reward.
    is_cost, is_average : bool
        Whether the limit is an upper one; whether figures are averages per step instead of totals.
    kept : bool or None
        Whether the bound keeps the limit; None for the reward.
    per_episode : float or None
        Estimate without discounting, for a whole episode; None unless every episode ends.
    """

    name: str
    estimate: float
    error: float
    bound: float
    limit: float | None = None
    is_cost: bool = False
    is_average: bool = False
    kept: bool | None = None
    per_episode: float | None = None

    @property
    def verdict(self) -> str:
        """ "kept", "BROKEN" if the estimate breaks the limit by two standard errors, or "NOT SHOWN"."""
        if self.limit is None or self.kept:
            return "" if self.limit is None else "kept"
        excess = (self.estimate - self.limit) * (1 if self.is_cost else -1)
        return "BROKEN" if excess > 2 * self.error else "NOT SHOWN"

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of a table: name, estimate, error, bound, limit, verdict, per episode."""
        limit = "" if self.limit is None else f"{'<=' if self.is_cost else '>='} {self.limit:.4g}"
        limit += " a step" if self.is_average else ""
        bound = f"{'<=' if self.is_cost else '>='} {self.bound:.4g}"
        episode = text.tidy(self.per_episode)
        return (self.name, text.tidy(self.estimate), text.tidy(self.error, 2), bound, limit, self.verdict, episode)


HEADER = ("discounted", "estimate", "std. error", "bound", "limit", "", "undiscounted")


@dataclass(frozen=True, kw_only=True, repr=False)
class Certificate(Saved):
    """What a log shows about a policy, at a confidence level; `certify` makes one.

    Attributes
    ----------
    reward : Bound
    constraints : tuple of Bound
        All bounds of constraints hold together with probability 1 - delta; that of the reward by itself.
    behaviour : Bound
        The reward of the policy that made the log: the mean of its episodes, from the rows, or the model's estimate if
        the log has no whole episodes.
    delta : float
        Failure probability.
    gamma : float
    n_transitions : int
    effective : float
        How many transitions of the policy itself would be as informative about its visits.
    unseen : float
        Share of the discounted time that the policy spends where the log shows too little.
    chosen_here : bool
        Whether halves of the log chose the policy and the other halves tested it.
    assumes : tuple of str
        What the bounds rest on.
    fit : ModelCheck
        Whether the log contradicts the model that the bounds rest on.
    accept_misfit : bool
        Whether the caller accepts a misfit.
    """

    FORMAT = "dpdl certificate"
    reward: Bound
    constraints: tuple[Bound, ...]
    behaviour: Bound
    delta: float
    gamma: float
    n_transitions: int
    effective: float
    unseen: float
    chosen_here: bool
    assumes: tuple[str, ...]
    fit: ModelCheck
    accept_misfit: bool = False

    @property
    def holds(self) -> bool:
        """Whether every constraint is shown to be kept, by a log that fits the model or whose misfit is accepted."""
        return self.kept and not self.misfit

    @property
    def kept(self) -> bool:
        """Whether every bound keeps its limit, if the model holds."""
        return all(bound.kept for bound in self.constraints)

    @property
    def misfit(self) -> bool:
        """Whether the log contradicts the model and the caller does not accept that."""
        return self.fit.rejected and not self.accept_misfit

    @property
    def failed(self) -> tuple[Bound, ...]:
        """The constraints that are not shown to be kept."""
        return tuple(bound for bound in self.constraints if not bound.kept)

    @property
    def confidence(self) -> str:
        """The level in words."""
        return f"{100 * (1 - self.delta):.4g}% confidence"

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table, under `HEADER`."""
        return [self.reward.row, self.behaviour.row, *(bound.row for bound in self.constraints)]

    @property
    def remarks(self) -> list[str]:
        """What the table rests on, in sentences; first what it assumes."""
        how = (
            "chosen on one half of the log and tested on the other, both ways"
            if self.chosen_here
            else "not chosen here"
        )
        tested = [self.fit.message, *(f"advice: {line}" for line in self.fit.advice)]
        if self.fit.rejected and self.accept_misfit:
            tested.insert(0, "accept_misfit=True: certified under the model, which the log contradicts")
        found = [
            *self.assumes,
            *tested,
            f"{self.confidence}: the bounds of all limits hold together, that of the reward by itself; Gaffke's bounds",
            f"the policy was {how}; discount {self.gamma:g}; {self.n_transitions:,} transitions",
        ]
        if self.unseen > 1e-9:
            found.append(f"{self.unseen:.2%} of the time is spent where the log shows too little (worst case)")
        return found

    def __repr__(self) -> str:
        return "\n".join([self._head, "", *text.aligned(HEADER, self.rows), "", *self.remarks])

    @property
    def _head(self) -> str:
        if self.misfit:
            return "the log does not fit the model: these figures are what they would be if it did"
        under = " UNDER THE MODEL, which the log contradicts (accept_misfit=True)" if self.fit.rejected else ""
        if not self.constraints:
            return f"no limit was given, so that none is shown to be kept{under}"
        return f"every limit is shown to be kept{under}" if self.holds else "NOT every limit is shown to be kept"

    def _repr_html_(self) -> str:
        return f"<p><b>{self._head}</b></p>{text.html_table(HEADER, self.rows)}" + "".join(
            f"<p>{escape(line)}</p>" for line in self.remarks
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw estimates and bounds relative to their limits, and return the axes (extra ``plot``)."""
        from dpdl.plots import plot_certificate

        return plot_certificate(self, ax)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Certificate:
        """Make a certificate of what `to_json` returned."""
        expect_names("certificate", content, set(cls.__dataclass_fields__))
        expect_names("reward", content["reward"], set(Bound.__dataclass_fields__))
        more: dict[str, Any] = {name: Bound(**content[name]) for name in ("reward", "behaviour")}
        constraints = tuple(Bound(**bound) for bound in content["constraints"])
        more["fit"] = ModelCheck.from_json(content["fit"])
        return cls(**{**content, **more, "constraints": constraints, "assumes": tuple(content["assumes"])})


def certify(
    policy: ArrayLike,
    log: Dataset,
    *,
    gamma: float,
    limits: Mapping[str, float | str] | None = None,
    limit_on: str | None = None,
    delta: float = 0.05,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
    cost_max: Any = None,
    accept_misfit: bool = False,
) -> Certificate:
    """Bound reward and constraints of a policy that was not chosen on this log.

    Parameters
    ----------
    policy : array_like, shape (S, A)
        Action probabilities in each state.
    log : Dataset
    gamma : float
        Discount.
    limits, limit_on
        Upper limits of costs by name, and whether they are on the "total" or the "average" (`dpdl.question`). A cost
        may be limited by "<= log", and the reward by ">= log": no worse than under the policy that made the log.
    delta : float, optional
        Probability that a bound of some constraint fails.
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.
    cost_max : mapping of str to float, or array_like, shape (I,), optional
        The most that a step may cost; by default no surprise is taken to be larger than the largest seen.
    accept_misfit : bool, optional
        Certify under the model even if the log contradicts it (`dpdl.check_model`); the certificate repeats that.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(0, 2, 1000)
    >>> log = Dataset(0 * a, a, 0 * a, a, costs={"wear": a + rng.random(1000)}, n_states=1, n_actions=2)
    >>> question = {"gamma": 0.5, "limits": {"wear": 1.2}, "limit_on": "average"}
    >>> certify([[0.5, 0.5]], log, **question, rho0=[1.0]).constraints[0].row
    ('wear', '0.9987', '0.0092', '<= 1.014', '<= 1.2 a step', 'kept', '')
    """
    task = make_task(log, gamma, delta, rho0, initial_states, cost_max, accept_misfit, limits, limit_on)
    table = check.policy_array("policy", policy, log.n_states, log.n_actions)
    sample = Sample(task.cells, Options.build(task.cells, 1, composites=False), task.gamma)
    chosen = table.ravel()[task.cells.pairs]
    return make_certificate(task, Trial(task, (sample,), (chosen,)), table, chosen_here=False)


def make_certificate(task: Task, trial: Trial, policy: Array, *, chosen_here: bool) -> Certificate:
    """Collect what a trial shows about a policy."""
    sample = trial.samples[0] if trial.whole is None else trial.whole
    fit = check_model(task.log, gamma=task.gamma, policy=policy)
    episode = per_episode(task.cells, policy)
    visits = np.mean([value.visits for value in trial.in_whole], axis=0)
    n = np.maximum(sample.n, 1)
    spread = float((visits**2 / n).sum())
    lost = [sample.lost_time(chosen, value) for chosen, value in zip(trial.policies, trial.in_whole, strict=True)]
    return Certificate(
        reward=_figure(task, trial, 0, "reward", episode),
        constraints=tuple(_figure(task, trial, 1 + i, name, episode) for i, name in enumerate(task.names)),
        behaviour=_logged(task, sample, fit),
        delta=task.delta,
        gamma=task.gamma,
        n_transitions=task.cells.n_rows,
        effective=float(visits.sum()) ** 2 / spread if spread > 0 else 0.0,
        unseen=float(np.mean(lost)),
        chosen_here=chosen_here,
        assumes=_assumptions(task),
        fit=fit,
        accept_misfit=task.accept_misfit,
    )


def _logged(task: Task, sample: Sample, fit: ModelCheck) -> Bound:
    """The reward of the log's own policy: from the rows of its episodes if these are whole, or by the model."""
    if fit.totals and fit.totals[0].missing <= MOST_MISSING:
        own, z = fit.totals[0], NormalDist().inv_cdf(1 - task.delta)
        return Bound(
            name="reward of the log's own episodes",
            estimate=own.discounted,
            error=own.discounted_error,
            bound=own.discounted - z * own.discounted_error,
            per_episode=own.total,
        )
    logged = Trial(task, (sample,), (sample.options.as_logged,))
    episode = per_episode(task.cells, logged_policy(task.cells))
    return _figure(task, logged, 0, "reward of the log, by the model", episode)


def keeps(task: Task, trial: Trial, i: int) -> bool:
    """Whether the bound of constraint `i` keeps its limit."""
    if hidden(task)[i]:
        return False
    bound, limit = trial.bound(1 + i, task.level), float(task.limits[i])
    return bound <= limit + TOLERANCE * max(abs(bound), abs(limit))


def hidden(task: Task) -> NDArray[np.bool_]:
    """Which costs no row shows and nobody declares: nothing can be said about them."""
    return ~task.cells.values[:, 1:].any(axis=0) & np.isnan(task.cost_max) & ~task.against_log


def _figure(task: Task, trial: Trial, i: int, name: str, episode: Array | None) -> Bound:
    """Figure `i` of a trial: 0 for the reward, 1 + k for constraint k."""
    limited = i > 0
    compared = limited and bool(task.against_log[i - 1])
    is_cost = limited and bool(task.is_cost[i - 1])
    return Bound(
        name=f"{name} beyond the log's" if compared else name,
        estimate=task.shown(i, float(trial.estimate[i])),
        error=float((1 - task.gamma if limited and task.is_average else 1.0) * trial.error[i]),
        bound=task.shown(i, trial.bound(i, task.level if limited else task.delta)),
        limit=task.shown(i, float(task.limits[i - 1])) if limited else None,
        is_cost=is_cost,
        is_average=limited and task.is_average,
        kept=keeps(task, trial, i - 1) if limited else None,
        per_episode=None if compared else _per_episode(task, trial, i, episode),
    )


def _per_episode(task: Task, trial: Trial, i: int, episode: Array | None) -> float | None:
    """The total of an episode without discounting, if known.

    It does not count what states without rows may cost, as the estimate does: where a loss cannot be negative and that
    makes the discounted total the larger one, there is no such figure.
    """
    if episode is None:
        return None
    losses, total = task.cells.values[:, i], float(episode[i])
    if losses.min() >= 0 and trial.estimate[i] > total * (1 + 1e-9):
        return None
    return -total if i == 0 or not task.is_cost[i - 1] else total


def _assumptions(task: Task) -> tuple[str, ...]:
    """What bounds rest on, in sentences."""
    declared = [
        f"{name} of a step is at most {value:.4g}"
        for name, value in zip(task.names, task.cost_max, strict=True)
        if not np.isnan(value)
    ]
    rest = np.isnan(task.cost_max).any() or not len(task.names)
    surprise = ["no surprise is larger than the largest that the log shows"] if rest else []
    first = "first states are as given" if task.cells.starts is None else "episodes begin as they do in the log"
    parts = ["the rows come from one decision process with these states", *declared, *surprise, first]
    found = [f"assumed: {'; '.join(parts)}"]
    for name, unseen in zip(task.names, hidden(task), strict=True):
        if unseen:
            found.append(f"{name} is zero in every row: nothing can be said about it unless cost_max declares its size")
    return tuple(found)


def logged_policy(cells: Cells) -> Array:
    """The log's own policy, (S, A); uniform in states that it does not leave."""
    flat = np.zeros(cells.n_states * cells.n_actions)
    flat[cells.pairs] = cells.pair_counts
    table = flat.reshape(-1, cells.n_actions)
    total = table.sum(axis=1, keepdims=True)
    return np.where(total > 0, table / np.maximum(total, 1), 1 / cells.n_actions)


def per_episode(cells: Cells, policy: Array) -> Array | None:
    """Totals of the losses of an episode without discounting; None unless the log shows that every episode ends."""
    if not (cells.next < 0).any():
        return None
    weight = policy.ravel()[cells.pair] * cells.count / cells.pair_counts[cells.place]
    state, S = cells.pair // cells.n_actions, cells.n_states
    move = (cells.next >= 0) & (weight > 0)
    P = sp.csr_array((weight[move], (state[move], cells.next[move])), shape=(S, S))
    reached, mass = cells.rho0.copy(), cells.rho0.copy()
    for _ in range(MOST_STEPS):
        mass = mass @ P
        reached += mass
        if mass.sum() <= 1e-10:
            break
    else:
        return None
    ended = np.bincount(state, weight, S)
    if (reached[ended < 1 - 1e-9] > 1e-9).any():  # pairs that the log does not show
        return None
    return (reached[state] * weight) @ cells.values


#: Steps of an episode after which figures per episode are given up.
MOST_STEPS = 20_000
