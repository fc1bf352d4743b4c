"""Which policy may be deployed? One that is chosen on one half of the log and passes the test on the other.

Each half proposes policies from careful to bold (`dpdl.safety.proposals`). The k-th proposals of both halves are tested
together, each on the half that did not choose it (`dpdl.safety.trial`). Testing stops at the first failure, so that
trying many costs nothing (fixed-sequence testing); of those that passed, the best is the answer. It is deployed as one
table: the average of both policies, weighted by where each goes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _validation as check
from dpdl._progress import StatusLine
from dpdl._validation import Array
from dpdl.acting import Policy, evidence
from dpdl.data.dataset import Dataset
from dpdl.safety.answer import Answer, AnswerStatus, Candidate, Needed
from dpdl.safety.certificate import Certificate, hidden, keeps, logged_policy, make_certificate
from dpdl.safety.composites import Options
from dpdl.safety.coverage import coverage_of
from dpdl.safety.proposals import PROGRAM_OPTIONS, OutOfTime, Proposer, Setting
from dpdl.safety.sample import Sample
from dpdl.safety.task import Task, make_task
from dpdl.safety.trial import Trial

#: How proposals are made: where plans are linear programs, and beyond. The latter do not know the worst row, so that
#: options need more rows.
SETTING, SETTING_OF_LARGE = Setting(4, 0.6), Setting(20, 0.3)
#: Pairs whose rows would help most are listed, this many of them.
MOST_PAIRS_LISTED = 5
#: No estimate is given beyond this number of transitions.
MOST_NEEDED = 1e15


def safe_policy(
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
    progress: bool | None = None,
    time_limit: float | None = None,
) -> Answer:
    """Find a policy whose limits the log shows to be kept, or say that there is none, or that the log cannot show it.

    Parameters
    ----------
    log : Dataset
    gamma : float
        Discount.
    limits, limit_on
        Upper limits of costs by name, and whether they are on the "total" or the "average" (`dpdl.question`). A cost
        may be limited by "<= log", and the reward by ">= log": no worse than under the policy that made the log.
    delta : float, optional
        Probability with which a certified policy may break a limit.
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.
    cost_max : mapping of str to float, or array_like, shape (I,), optional
        The most that a step may cost; by default no surprise is taken to be larger than the largest seen. Needed where
        a cost is zero in every row.
    accept_misfit : bool, optional
        Answer under the model even if the log contradicts it (`dpdl.check_model`); the answer repeats that.
    progress : bool, optional
        Whether to show a line with what is being tried; by default on a terminal.
    time_limit : float, optional
        Seconds after which no further policy is tried.

    Returns
    -------
    Answer
        CERTIFIED with a policy; INFEASIBLE if even the most careful policy breaks a limit on both halves, beyond its
        error; NOT_ENOUGH_DATA if no policy could be shown to keep the limits; MISFIT if the log contradicts the model
        that all of these rest on, whatever they would be; STOPPED if the time limit or Ctrl-C came
        before any of these. The log alone decides: the same log gives the same answer.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(0, 2, 2000)
    >>> log = Dataset(0 * a, a, 0 * a, a, costs={"wear": 2.0 * a * rng.random(2000)}, n_states=1, n_actions=2)
    >>> answer = safe_policy(log, gamma=0.5, limits={"wear": 0.5}, limit_on="average", rho0=[1.0])
    >>> answer.status.name, answer.certificate.constraints[0].bound <= 0.5
    ('CERTIFIED', True)
    """
    deadline = time.monotonic() + check.seconds("time_limit", time_limit)
    shown = check.optional_flag("progress", progress)
    task = make_task(log, gamma, delta, rho0, initial_states, cost_max, accept_misfit, limits, limit_on)
    search = Search(task, deadline)
    with StatusLine(shown) as line:
        search.run(line)
    return search.answer()


class Outcome(NamedTuple):
    """Proposals of both halves, their test, and whether every limit is shown to be kept."""

    trial: Trial
    part: float | None
    passed: bool


@dataclass(eq=False)
class Search:
    """Proposals and tests of one question."""

    task: Task
    deadline: float = np.inf
    parts: Sequence[float] = ()

    def __post_init__(self) -> None:
        self.tested: list[Outcome] = []
        self.stopped: str | None = None
        self.setting = SETTING if len(self.task.cells.pairs) <= PROGRAM_OPTIONS else SETTING_OF_LARGE

    @cached_property
    def samples(self) -> tuple[Sample, Sample, Sample]:
        """Both halves, and the whole log."""
        cells, options = self.task.cells, Options.build(self.task.cells, self.setting.n_min)
        first, second = cells.halves()
        return tuple(Sample(part, options, self.task.gamma) for part in (first, second, cells))  # type: ignore[return-value]

    @property
    def proposers(self) -> tuple[Proposer, Proposer]:
        """What proposes on each half."""
        first, second, _ = self.samples
        return tuple(Proposer(self.task, half, self.setting, self.deadline, self.parts) for half in (first, second))  # type: ignore[return-value]

    def run(self, line: StatusLine) -> None:
        """Test proposals until one fails, time is over or Ctrl-C is pressed."""
        first, second, whole = self.samples
        if not len(whole.options.known) or hidden(self.task).any():
            return
        try:
            for own, other in zip(*(proposer.run() for proposer in self.proposers), strict=False):
                trial = Trial(self.task, (first, second), (other.policy, own.policy), whole)
                passed = all(keeps(self.task, trial, i) for i in range(len(self.task.limits)))
                self.tested.append(Outcome(trial, own.part, passed))
                if not passed:
                    return
                if line.is_due():
                    line.draw(f"safe policy: {len(self.tested)} proposals passed, reward {-trial.estimate[0]:.6g}")
                if time.monotonic() >= self.deadline:
                    raise OutOfTime
        except OutOfTime:
            self.stopped = "time ran out before every proposal was tested"
        except KeyboardInterrupt:
            self.stopped = "interrupted before every proposal was tested"

    @property
    def passed(self) -> list[Outcome]:
        """What passed."""
        return [tested for tested in self.tested if tested.passed]

    # ---- Answers ----

    def answer(self) -> Answer:
        """Answer by what was tested."""
        if self.passed:
            return self._certified(min(self.passed, key=lambda tested: float(tested.trial.estimate[0])))
        if self.stopped is not None:
            return self._stopped()
        if not len(self.samples[2].options.known):
            return self._nothing(f"no state has {self.setting.n_min} rows", "noise")
        unseen = hidden(self.task)
        if unseen.any():
            name = self.task.names[int(np.argmax(unseen))]
            what = f"{name} is zero in every row, so that the log cannot show what it may be"
            return self._nothing(f"{what}; declare the most that a step may cost by cost_max=", "nothing seen")
        try:
            return self._infeasible() or self._not_shown()
        except OutOfTime:
            self.stopped = "time ran out before every proposal was tested"
            return self._stopped()

    def _certified(self, best: Outcome) -> Answer:
        """Return the policy with its certificate."""
        table = self._table(best.trial.policies)
        certificate = make_certificate(self.task, best.trial, table, chosen_here=True)
        log, gamma, whole = self.task.log, self.task.gamma, self.samples[2]
        losses = np.zeros((log.n_states, 1 + len(self.task.names)))
        losses[whole.options.known] = whole.evaluate(self._average(best.trial.policies)).V
        values: dict[str, Any] = {"reward": (lambda rows: rows["r"], -losses[:, 0])}
        for name, column, V in zip(self.task.names, log.question.columns, losses[:, 1:].T, strict=False):
            if log.question.limits is not None:
                values[name] = (lambda rows, k=column: rows["u"][:, k], V)

        def seen() -> Any:
            return evidence(log.raw, gamma, values)

        kept = "this policy keeps every limit"
        if not certificate.constraints:
            kept = "no limit was given, so that none is shown to be kept"
        message = (
            f"{kept} ({certificate.confidence}); its discounted reward is estimated at "
            f"{certificate.reward.estimate:.4g}, at least {certificate.reward.bound:.4g}; the policy that made the log "
            f"earns {certificate.behaviour.estimate:.4g}"
        )
        if self.stopped is not None:
            message += f"; {self.stopped}, so that a better policy may exist"
        policy = Policy(table, log.labels, log.question, seen)
        return self._make(AnswerStatus.CERTIFIED, message, certificate, table, policy)

    def _stopped(self) -> Answer:
        closest = self._closest()
        message = f"{self.stopped}; no policy was shown to keep the limits until then"
        return self._make(AnswerStatus.STOPPED, message, *closest)

    def _nothing(self, why: str, binds: str) -> Answer:
        needed = Needed(binds=binds, n_transitions=None, where=())
        return self._make(AnswerStatus.NOT_ENOUGH_DATA, why, *self._closest(), needed=needed)

    def _closest(self) -> tuple[Certificate, Array]:
        """Evidence: the certificate of the proposals that came closest, or of the log's own policy."""
        if self.tested:
            trial = max(self.tested, key=lambda tested: self._room(tested.trial)).trial
            table = self._table(trial.policies)
            return make_certificate(self.task, trial, table, chosen_here=True), table
        sample = Sample(self.task.cells, Options.build(self.task.cells, 1, composites=False), self.task.gamma)
        table, trial = logged_policy(self.task.cells), Trial(self.task, (sample,), (sample.options.as_logged,))
        return make_certificate(self.task, trial, table, chosen_here=False), table

    def _room(self, trial: Trial) -> float:
        """The part of the widths of the bounds that the estimates leave below their limits, the least one."""
        widths = np.array([trial.width(1 + i, self.task.level) for i in range(len(self.task.limits))])
        room = self.task.limits - trial.estimate[1:]
        return float((room / np.maximum(widths, np.finfo(float).tiny)).min(initial=np.inf))

    def _infeasible(self) -> Answer | None:
        """An answer if the most careful policy of each half breaks a limit there, beyond its error."""
        task, broken, policies = self.task, [], []
        for proposer in self.proposers:
            policy = proposer.most_careful()
            trial = Trial(task, (proposer.sample,), (policy,))
            # Where the log shows too little, losses may be none instead of the worst.
            unseen = proposer.sample.lost_time(policy, trial.values[0]) * np.maximum(proposer.sample.unknown[1:], 0.0)
            error = np.array([trial.width(1 + i, task.level) for i in range(len(task.limits))])
            broken.append(trial.estimate[1:] - unseen - error > task.limits)
            policies.append(policy)
        both = broken[0] & broken[1]
        if not both.any():
            return None
        first, second, whole = self.samples
        trial = Trial(task, (first, second), policies, whole)
        table, i = self._table(policies), int(np.argmax(both))
        certificate = make_certificate(task, trial, table, chosen_here=True)
        bound = certificate.constraints[i]
        others = "its limit" if len(task.names) == 1 else "its limit together with the others"
        message = (
            f"no policy that the log supports keeps {bound.name} within {others}: under the most careful one of either "
            f"half it is estimated at {bound.estimate:.4g} on that half, beyond the limit of {bound.limit:.4g} and the "
            f"error of the estimate ({certificate.confidence})"
        )
        return self._make(AnswerStatus.INFEASIBLE, message, certificate, table)

    def _not_shown(self) -> Answer:
        certificate, table = self._closest()
        trial = max((tested.trial for tested in self.tested), key=self._room)
        task = self.task
        i = int(np.argmin([limit - trial.bound(1 + k, task.level) for k, limit in enumerate(task.limits)]))
        bound, parts = certificate.constraints[i], trial.parts(1 + i, task.level)
        binds = max(parts, key=lambda name: parts[name])
        message = (
            f"the log does not show that any policy keeps {bound.name} within its limit of {bound.limit:.4g}: the "
            f"policy that comes closest is estimated at {bound.estimate:.4g}, and may be as "
            f"{'high' if bound.is_cost else 'low'} as {bound.bound:.4g} ({certificate.confidence})"
        )
        room = float(task.limits[i] - trial.estimate[1 + i])
        times = _times(room, parts)
        n = task.cells.n_rows * times
        enough = int(np.ceil(n)) if n < MOST_NEEDED else None
        where = self._where(trial, 1 + i, binds)
        message += f"; {self._hint(binds, where, trial, i)}"
        if enough is None:
            message += "; its estimate leaves no room, so it cannot be told how much data would do"
        elif binds == "first states" and task.cells.starts is not None:
            message += f"; about {int(np.ceil(times * task.cells.starts.sum())):,} episodes would do"
        else:
            message += f"; about {enough:,} transitions of the same kind would do, {times:.1f} times as many"
        needed = Needed(binds=binds, n_transitions=enough, where=where)
        return self._make(AnswerStatus.NOT_ENOUGH_DATA, message, certificate, table, needed=needed)

    def _hint(self, binds: str, where: Sequence[Any], trial: Trial, i: int) -> str:
        """What stands in the way, in words."""
        if binds == "first states":
            return "what binds is that episodes may begin elsewhere"
        if binds == "noise" or not where:
            return "what binds is the noise of its rows"
        state, action, count, _ = where[0]
        hint = f"what binds is what a surprise may cost where the policy goes often and the log hardly does: {state}, "
        hint += f"{action} was seen {count:,} times"
        if not np.isnan(self.task.cost_max[i]) or not self.task.is_cost[i]:
            return hint
        largest = np.full(len(self.task.limits), np.nan)
        largest[i] = self.task.cells.values[:, 1 + i].max()
        declared = Trial(replace(self.task, cost_max=largest), trial.samples, trial.policies, trial.whole)
        if declared.bound(1 + i, self.task.level) <= self.task.limits[i]:
            return f"{hint}; if no step can cost more than the log shows, cost_max={largest[i]:.4g} would do"
        return hint

    def _where(self, trial: Trial, i: int, binds: str) -> tuple[tuple[str, str, int, float], ...]:
        """The pairs with the largest parts of what binds: state, action, visits, share."""
        cells, log = self.task.cells, self.task.log
        parts = trial.by_pair(i, binds == "worst row")
        total = max(float(parts.sum()), np.finfo(float).tiny)
        order = np.argsort(-parts, kind="stable")[:MOST_PAIRS_LISTED]
        found = []
        for k in order[parts[order] > 0]:
            s, a = divmod(int(cells.pairs[k]), cells.n_actions)
            state, action = (s, a) if log.labels is None else (log.labels.states[s], log.labels.actions[a])
            found.append((str(state), str(action), int(cells.pair_counts[k]), float(parts[k]) / total))
        return tuple(found)

    def _average(self, policies: Sequence[Array]) -> Array:
        """The average of policies, weighted by where each goes on the whole log: as a drawn mixture of them visits."""
        whole = self.samples[2]
        values = [whole.evaluate(policy) for policy in policies]
        visits = np.sum([value.visits for value in values], axis=0)
        total = np.sum([value.states for value in values], axis=0)[whole.options.state]
        return np.where(total > 0, visits / np.where(total > 0, total, 1.0), np.mean(policies, axis=0))

    def _table(self, policies: Sequence[Array]) -> Array:
        """One table for several policies by option; as logged in states without options."""
        cells = self.task.cells
        flat = np.zeros(cells.n_states * cells.n_actions)
        flat[cells.pairs] = self._average(policies) @ self.samples[2].options.share
        table = flat.reshape(cells.n_states, cells.n_actions)
        total = table.sum(axis=1, keepdims=True)
        return np.where(total > 0, table / np.where(total > 0, total, 1.0), logged_policy(cells))

    def _make(
        self,
        status: AnswerStatus,
        message: str,
        certificate: Certificate,
        table: Array,
        policy: Policy | None = None,
        needed: Needed | None = None,
    ) -> Answer:
        if certificate.misfit and status is not AnswerStatus.STOPPED:
            message = f"{certificate.fit.message} If it did: {message}"
            status, policy, needed = AnswerStatus.MISFIT, None, None
        elif certificate.fit.rejected and status is AnswerStatus.CERTIFIED:
            message = f"certified under the model, which the log contradicts (accept_misfit=True): {message}"
        candidates = (
            Candidate(part=part, reward=-float(trial.estimate[0]), certified=passed)
            for trial, part, passed in self.tested
        )
        notes = [] if self.stopped is None or status is AnswerStatus.STOPPED else [self.stopped]
        return Answer(
            status=status,
            message=message,
            policy=policy,
            certificate=certificate,
            coverage=coverage_of(self.task, table),
            candidates=tuple(candidates),
            needed=needed,
            notes=(*self.task.log.notes, *notes),
            settings={
                "gamma": self.task.gamma,
                "delta": self.task.delta,
                "accept_misfit": self.task.accept_misfit,
                **self.setting._asdict(),
            },
        )


def _times(room: float, parts: dict[str, float]) -> float:
    """How many times as many rows would bring the width below the room; the worst terms shrink faster than noise."""
    if room <= 0:
        return np.inf
    fast, slow = parts["worst row"], parts["noise"] + parts["first states"]
    # slow/sqrt(f) + fast/f = room, a quadratic equation in sqrt(f).
    root = (slow + np.sqrt(slow**2 + 4 * room * fast)) / (2 * room)
    return max(1.0, float(root) ** 2)
