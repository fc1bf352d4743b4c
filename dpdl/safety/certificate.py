"""Certificates: confidence bounds of a policy's reward and costs, in the caller's units.

All bounds of constraints hold together with probability 1 - delta: each is Gaffke's at level delta/I
(`dpdl.safety.trial`). A policy that `safe_policy` proposes is tested on the half of the log that did not choose it. A
policy from elsewhere (`certify`) is tested on the whole log, by leave-one-out residuals. All of it rests on the model,
which the log may contradict (`dpdl.safety.fit`): then nothing is certified, unless the caller accepts the misfit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from dpdl import _text as text
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.files.saved import Saved
from dpdl.safety.composites import Cells
from dpdl.safety.fit import ModelCheck, check_model
from dpdl.safety.sample import Sample
from dpdl.safety.task import Task, make_task
from dpdl.safety.trial import Trial

#: The log's own discounted totals count as such if the steps that its episodes lack have at most this weight.
MOST_MISSING = 0.01
#: A bound keeps its limit if it is at most this part of the sizes of both above it: rounding of sums and plans.
TOLERANCE = 1e-9
#: Steps of an episode, and entries of the matrix that these visit, after which figures per episode are given up.
MOST_STEPS, MOST_ENTRIES = 20_000, 1e9

HEADER = ("discounted", "estimate", "std. error", "bound", "limit", "", "undiscounted")


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
        """Cells of a table under `HEADER`: name, estimate, error, bound, limit, verdict, per episode."""
        sign = "<=" if self.is_cost else ">="
        limit = "" if self.limit is None else f"{sign} {self.limit:.4g}{' a step' if self.is_average else ''}"
        figures = text.tidy(self.estimate), text.tidy(self.error, 2), f"{sign} {self.bound:.4g}"
        return (self.name, *figures, limit, self.verdict, text.tidy(self.per_episode))


@dataclass(frozen=True, kw_only=True, repr=False)
class Certificate(text.Shown, Saved):
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

    FORMAT, VERSION = "dpdl certificate", 2
    reward: Bound
    constraints: tuple[Bound, ...]
    behaviour: Bound
    delta: float
    gamma: float
    n_transitions: int
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
        chosen = "chosen on one half of the log and tested on the other, both ways"
        lines = [*self.assumes]
        if self.fit.rejected and self.accept_misfit:
            lines.append("accept_misfit=True: certified under the model, which the log contradicts")
        lines += [
            self.fit.message,
            *(f"advice: {line}" for line in self.fit.advice),
            f"{self.confidence}: the bounds of all limits hold together, that of the reward by itself",
            f"the policy was {chosen if self.chosen_here else 'not chosen here'}; discount {self.gamma:g}; "
            f"{self.n_transitions:,} transitions",
        ]
        if self.unseen > 1e-9:
            lines.append(f"{self.unseen:.2%} of the time is spent where the log shows too little (worst case)")
        return lines

    def parts(self) -> Iterator[str | text.Table]:
        """The verdict, the table and what it rests on."""
        under = " UNDER THE MODEL, which the log contradicts (accept_misfit=True)" if self.fit.rejected else ""
        if self.misfit:
            yield "the log does not fit the model: these figures are what they would be if it did"
        elif not self.constraints:
            yield f"no limit was given, so that none is shown to be kept{under}"
        else:
            yield f"every limit is shown to be kept{under}" if self.kept else "NOT every limit is shown to be kept"
        yield HEADER, self.rows
        yield from self.remarks

    def plot(self, ax: Any = None) -> Any:
        """Draw estimates and bounds relative to their limits, and return the axes (extra ``plot``)."""
        from dpdl.plots import plot_certificate

        return plot_certificate(self, ax)


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
    log, gamma, limits, limit_on, delta, rho0, initial_states, cost_max, accept_misfit
        As of `dpdl.safe_policy`.

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
    trial = Trial(task, (task.by_action,), (table.ravel()[task.cells.pairs],))
    return make_certificate(trial, table, check_model(task.log, gamma=task.gamma, policy=table))


def make_certificate(trial: Trial, policy: Array, fit: ModelCheck) -> Certificate:
    """Collect what a trial shows about a policy, (S, A)."""
    task, sample = trial.task, trial.samples[0] if trial.whole is None else trial.whole
    episode = _per_episode(task.cells, policy)
    lost = [sample.lost_time(chosen, value) for chosen, value in zip(trial.policies, trial.in_whole, strict=True)]
    return Certificate(
        reward=_figure(trial, 0, "reward", episode),
        constraints=tuple(_figure(trial, 1 + i, name, episode) for i, name in enumerate(task.names)),
        behaviour=_behaviour(task, sample, fit),
        delta=task.delta,
        gamma=task.gamma,
        n_transitions=task.cells.n_rows,
        unseen=float(np.mean(lost)),
        chosen_here=trial.whole is not None,
        assumes=_assumptions(task),
        fit=fit,
        accept_misfit=task.accept_misfit,
    )


def keeps(trial: Trial, i: int) -> bool:
    """Whether the bound of constraint `i` keeps its limit."""
    bound, limit = trial.bound(1 + i, trial.task.level), float(trial.task.limits[i])
    return not trial.task.hidden[i] and bound <= limit + TOLERANCE * max(abs(bound), abs(limit))


def _figure(trial: Trial, i: int, name: str, episode: Array | None) -> Bound:
    """Figure `i` of a trial, 0 for the reward, 1 + k for constraint k; with the totals of an episode, if known."""
    task, limited = trial.task, i > 0
    compared = limited and bool(task.against_log[i - 1])
    is_cost = limited and bool(task.is_cost[i - 1])
    per_episode = None if episode is None or compared else float(episode[i])
    # It does not count what states without rows may cost, as the estimate does: where a loss cannot be negative and
    # that makes the discounted total the larger one, it is not told.
    if per_episode is not None and task.cells.values[:, i].min() >= 0 and trial.estimate[i] > per_episode * (1 + 1e-9):
        per_episode = None
    return Bound(
        name=f"{name} beyond the log's" if compared else name,
        estimate=task.shown(i, float(trial.estimate[i])),
        error=float((1 - task.gamma if limited and task.is_average else 1.0) * trial.error[i]),
        bound=task.shown(i, trial.bound(i, task.level if limited else task.delta)),
        limit=task.shown(i, float(task.limits[i - 1])) if limited else None,
        is_cost=is_cost,
        is_average=limited and task.is_average,
        kept=keeps(trial, i - 1) if limited else None,
        per_episode=per_episode if per_episode is None or is_cost else -per_episode,
    )


def _behaviour(task: Task, sample: Sample, fit: ModelCheck) -> Bound:
    """The reward of the log's own policy: from the rows of its episodes if these are whole, or by the model."""
    if not fit.totals or fit.totals[0].missing > MOST_MISSING:
        logged = Trial(task, (sample,), (sample.options.as_logged,))
        return _figure(logged, 0, "reward of the log, by the model", _per_episode(task.cells, task.logged_policy))
    own, z = fit.totals[0], NormalDist().inv_cdf(1 - task.delta)
    return Bound(
        name="reward of the log's own episodes",
        estimate=own.discounted,
        error=own.discounted_error,
        bound=own.discounted - z * own.discounted_error,
        per_episode=own.total,
    )


def _assumptions(task: Task) -> tuple[str, ...]:
    """What bounds rest on, in sentences."""
    by_name = list(zip(task.names, task.cost_max, task.hidden, strict=True))
    parts = ["the rows come from one decision process with these states"]
    parts += [f"{name} of a step is at most {most:.4g}" for name, most, _ in by_name if not np.isnan(most)]
    if np.isnan(task.cost_max).any() or not by_name:
        parts.append("no surprise (a step's outcome beyond the mean there) is larger than the largest in the log")
    parts.append("first states are as given" if task.cells.starts is None else "episodes begin as they do in the log")
    hidden = "is zero in every row: nothing can be said about it unless cost_max declares its size"
    return (f"assumed: {'; '.join(parts)}", *(f"{name} {hidden}" for name, _, unseen in by_name if unseen))


def _per_episode(cells: Cells, policy: Array) -> Array | None:
    """Totals of the losses of an episode without discounting; None unless the log shows that every episode ends."""
    if not (cells.next < 0).any():
        return None
    weight = policy.ravel()[cells.pair] * cells.count / cells.pair_counts[cells.place]
    state, S = cells.pair // cells.n_actions, cells.n_states
    move = (cells.next >= 0) & (weight > 0)
    P = sp.csr_array((weight[move], (state[move], cells.next[move])), shape=(S, S))
    reached, mass = cells.rho0.copy(), cells.rho0.copy()
    for _ in range(min(MOST_STEPS, int(MOST_ENTRIES / (S + P.nnz)))):
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
