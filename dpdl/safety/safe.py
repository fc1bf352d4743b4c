"""Which policy may be deployed? One that is chosen on one half of the log and passes the test on the other.

Each half proposes policies from careful to bold (`dpdl.safety.proposals`). The k-th proposals of both halves are tested
together, each on the half that did not choose it (`dpdl.safety.trial`). Testing stops at the first failure, so that
trying many costs nothing (fixed-sequence testing); of those that passed, the best is the answer. It is deployed as one
table: the average of both policies, weighted by where each goes.

Rows are dealt to the halves, not episodes: under the model the k-th visit of a pair draws from its own stack, whatever
episode it is in, and whether the log contradicts that is tested (`dpdl.safety.fit`). So a log and its counts have the
same halves, and every pair has half of its rows in each.
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
from dpdl.safety.answer import Answer, AnswerStatus, Needed
from dpdl.safety.certificate import Certificate, keeps, make_certificate
from dpdl.safety.composites import Clock, Options
from dpdl.safety.coverage import coverage_of
from dpdl.safety.episodes import why_no_episodes
from dpdl.safety.fit import UNTESTED, ModelCheck, check_model
from dpdl.safety.proposals import PROGRAM_OPTIONS, Proposer, Setting
from dpdl.safety.sample import Sample
from dpdl.safety.task import Task, make_task
from dpdl.safety.trial import Trial

#: How proposals are made: where plans are linear programs, and beyond. The latter do not know the worst row, so that
#: options need more rows.
SETTING, SETTING_OF_LARGE = Setting(4, 0.6), Setting(20, 0.3)
#: Pairs whose rows would help most are listed, this many of them.
MOST_PAIRS_LISTED = 5
#: No estimate is given of more rows than this many times those of the log.
MOST_TIMES = 1e4
#: Whether the log fits is tested last; that takes about this many times as long as to collect the rows.
CHECK_TIMES = 6.0


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
        Seconds after which the best policy that was certified until then is the answer.

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
    began = time.monotonic()
    clock, shown = Clock(began + check.seconds("time_limit", time_limit)), check.optional_flag("progress", progress)
    try:
        task = make_task(log, gamma, delta, rho0, initial_states, cost_max, accept_misfit, limits, limit_on, clock)
    except TimeoutError:
        message = "time ran out while the rows of the log were collected"
        return Answer(status=AnswerStatus.STOPPED, message=message, coverage=coverage_of(log), notes=log.notes)
    if why_no_episodes(task.log) is None:
        clock.deadline -= CHECK_TIMES * (time.monotonic() - began)
    search = Search(task)
    with StatusLine(shown) as line:
        search.run(line)
    clock.deadline = np.inf
    return search.answer()


class Careful(NamedTuple):
    """The most careful policies of both halves, and which limits they break on both, beyond their errors."""

    policies: list[Array]
    broken: Array


@dataclass(eq=False)
class Search:
    """Proposals and tests of one question.

    Attributes
    ----------
    task : Task
    parts : sequence of float
        See `dpdl.safety.proposals.Proposer`.
    passed : list of Trial
        Those in which every limit is shown to be kept.
    failed : Trial or None
        The one after these.
    careful : Careful or None
        Known after a failure of the first.
    stopped : str or None
        Why the search ended early.
    """

    task: Task
    parts: Sequence[float] = ()

    def __post_init__(self) -> None:
        self.passed: list[Trial] = []
        self.failed: Trial | None = None
        self.careful: Careful | None = None
        self.stopped: str | None = None
        self.setting = SETTING if len(self.task.cells.pairs) <= PROGRAM_OPTIONS else SETTING_OF_LARGE

    @cached_property
    def samples(self) -> tuple[Sample, Sample, Sample]:
        """Both halves, and the whole log."""
        cells, options = self.task.cells, Options.build(self.task.cells, self.setting.n_min)
        gamma, clock = self.task.gamma, self.task.clock
        first, second = (Sample(half, options, gamma, clock) for half in cells.halves(clock))
        return first, second, Sample(cells, options, gamma, clock)

    @cached_property
    def proposers(self) -> list[Proposer]:
        """What proposes on each half."""
        return [Proposer(self.task, half, self.setting, self.parts) for half in self.samples[:2]]

    def run(self, line: StatusLine) -> None:
        """Test proposals, and the most careful policies if none passes, until time is over or Ctrl-C is pressed."""
        try:
            self.test(line)
            if self.failed is not None and not self.passed:
                self.careful = self._most_careful()
        except TimeoutError:
            self.stopped = "time ran out"
        except KeyboardInterrupt:
            self.stopped = "the search was interrupted"

    def test(self, line: StatusLine) -> None:
        """Test proposals until one fails."""
        first, second, whole = self.samples
        if not len(whole.options.known) or self.task.hidden.any():
            return
        for own, other in zip(*(proposer.run() for proposer in self.proposers), strict=False):
            trial = Trial(self.task, (first, second), (other.policy, own.policy), whole)
            if not all(keeps(trial, i) for i in range(len(self.task.limits))):
                self.failed = trial
                return
            self.passed.append(trial)
            if line.is_due():
                line.draw(f"safe policy: {len(self.passed)} proposals passed, reward {-trial.estimate[0]:.6g}")
            self.task.clock.check()

    def _most_careful(self) -> Careful:
        task, policies, broken = self.task, [], np.full(len(self.task.limits), True)
        for proposer in self.proposers:
            policy, sample = proposer.most_careful(), proposer.sample
            trial = Trial(task, (sample,), (policy,))
            # Where the log shows too little, losses may be none instead of the worst.
            unseen = sample.lost_time(policy, trial.values[0]) * np.maximum(sample.unknown[1:], 0.0)
            broken &= trial.estimate[1:] - unseen - _widths(trial) > task.limits
            policies.append(policy)
        return Careful(policies, broken)

    # ---- Answers ----

    def answer(self) -> Answer:
        """Answer by what was tested."""
        if self.passed:
            return self._certified(min(self.passed, key=lambda trial: float(trial.estimate[0])))
        if self.stopped is not None:
            message = f"{self.stopped} before any policy was shown to keep the limits, or that none can be"
            shown = (None, None) if self.failed is None else self._evidence(self.failed)
            return self._make(AnswerStatus.STOPPED, message, *shown)
        if self.failed is None:
            return self._nothing()
        if self.careful is not None and self.careful.broken.any():
            return self._infeasible(self.careful)
        return self._not_shown(self.failed)

    def _certified(self, trial: Trial) -> Answer:
        """The policy with its certificate."""
        task, log, whole = self.task, self.task.log, self.samples[2]
        certificate, table = self._evidence(trial)
        losses = np.zeros((log.n_states, 1 + len(task.names)))
        losses[whole.options.known] = whole.evaluate(_average(trial)).V
        values: dict[str, Any] = {"reward": (lambda rows: rows["r"], -losses[:, 0])}
        for name, column, V in zip(task.names, log.question.columns, losses[:, 1:].T, strict=False):
            if log.question.limits is not None:
                values[name] = (lambda rows, k=column: rows["u"][:, k], V)
        kept = "this policy keeps every limit" if task.names else "no limit was given, so that none is shown to be kept"
        message = (
            f"{kept} ({certificate.confidence}); its discounted reward is estimated at "
            f"{certificate.reward.estimate:.4g}, at least {certificate.reward.bound:.4g}; the policy that made the log "
            f"earns {certificate.behaviour.estimate:.4g}"
        )
        if self.stopped is not None:
            message += f"; {self.stopped} before bolder policies were tested, so that a better one may exist"
        if certificate.fit.rejected and not certificate.misfit:
            message = f"certified under the model, which the log contradicts (accept_misfit=True): {message}"
        policy = Policy(table, log.labels, log.question, lambda: evidence(log.raw, task.gamma, values))
        return self._make(AnswerStatus.CERTIFIED, message, certificate, table, policy=policy)

    def _nothing(self) -> Answer:
        """No proposal was made: no state has enough rows, or a cost was never seen."""
        why, binds = f"no state has {self.setting.n_min} rows", "noise"
        if len(self.samples[2].options.known):
            name, binds = self.task.names[int(np.argmax(self.task.hidden))], "nothing seen"
            why = f"{name} is zero in every row, so that the log cannot show what it may be"
            why += "; declare the most that a step may cost by cost_max="
        sample = self.task.by_action
        logged = Trial(self.task, (sample,), (sample.options.as_logged,))
        return self._make(AnswerStatus.NOT_ENOUGH_DATA, why, *self._evidence(logged), needed=Needed(binds=binds))

    def _infeasible(self, careful: Careful) -> Answer:
        first, second, whole = self.samples
        certificate, table = self._evidence(Trial(self.task, (first, second), careful.policies, whole))
        bound = certificate.constraints[int(np.argmax(careful.broken))]
        others = "its limit" if len(certificate.constraints) == 1 else "its limit together with the others"
        message = (
            f"no policy that the log supports keeps {bound.name} within {others}: under the most careful one of either "
            f"half it is estimated at {bound.estimate:.4g} on that half, beyond the limit of {bound.limit:.4g} and the "
            f"error of the estimate ({certificate.confidence})"
        )
        return self._make(AnswerStatus.INFEASIBLE, message, certificate, table)

    def _not_shown(self, trial: Trial) -> Answer:
        task, (certificate, table) = self.task, self._evidence(trial)
        i, careful = int(np.argmin(task.limits - trial.estimate[1:] - _widths(trial))), ""
        bound = certificate.constraints[i]
        if self.careful is not None and (trial.estimate[1:] > task.limits).any():
            # A proposal avoids what was seen rarely. More rows of that are what the most careful policy needs.
            other = Trial(task, trial.samples, self.careful.policies[::-1], trial.whole)
            if (other.estimate[1:] <= task.limits).all():
                trial, i = other, int(np.argmin(task.limits - other.estimate[1:] - _widths(other)))
                careful = (
                    f" of the most careful policy, which is estimated at {task.shown(1 + i, other.estimate[1 + i]):.4g}"
                )
        parts = trial.parts(1 + i, task.level)
        binds, times = max(parts, key=lambda name: parts[name]), _times(task.limits[i] - trial.estimate[1 + i], parts)
        cells, enough = task.cells, times <= MOST_TIMES
        begun = 0 if cells.starts is None else int(cells.starts.sum())
        needed = Needed(
            binds=binds,
            n_transitions=_rounded(cells.n_rows * times) if enough else None,
            n_episodes=_rounded(begun * times) if enough and binds == "first states" else None,
            where=() if binds == "first states" else self._where(trial, 1 + i, binds == "worst row"),
        )
        message = (
            f"the log does not show that any policy keeps {bound.name} within its limit of {bound.limit:.4g}: the "
            f"policy that comes closest is estimated at {bound.estimate:.4g}, and may be as "
            f"{'high' if bound.is_cost else 'low'} as {bound.bound:.4g} ({certificate.confidence}); what binds is "
        )
        message += {
            "noise": f"the noise of {cells.n_rows:,} rows",
            "worst row": "the worst row that was not seen",
            "first states": f"how little {begun:,} episodes show about first states",
        }[binds] + careful
        if needed.where:
            state, action, count, share = needed.where[0]
            message += f", most of all ({share:.0%}) at {state}, {action}, which was seen {count:,} times"
        if binds == "worst row":
            message += self._less_declared(trial, i)
        much = f"; about {needed.n_transitions:,} transitions of the same kind" if enough else ""
        if needed.n_episodes is not None:
            much = f"; about {needed.n_episodes:,} episodes"
        room = "itself breaks the limit" if np.isinf(times) else "leaves hardly any room"
        no_room = f"; its estimate {room}, so that it cannot be told how much data would do"
        message += f"{much} would do, {times:.2g} times as many" if enough else no_room
        return self._make(AnswerStatus.NOT_ENOUGH_DATA, message, certificate, table, needed=needed)

    def _less_declared(self, trial: Trial, i: int) -> str:
        """Words, if less than the declared largest cost of a step would do."""
        most, seen = self.task.cost_max, float(self.task.cells.values[:, 1 + i].max())
        if not most[i] > seen:
            return ""
        less = replace(self.task, cost_max=np.where(np.arange(len(most)) == i, seen, most))
        if not keeps(Trial(less, trial.samples, trial.policies, trial.whole), i):
            return ""
        return f"; the declared cost_max of {most[i]:.4g} decides that: {seen:.4g}, the largest in the log, would do"

    def _where(self, trial: Trial, i: int, worst: bool) -> tuple[tuple[str, str, int, float], ...]:
        """The pairs with the largest parts of the worst row or the noise: state, action, visits, share."""
        cells, parts = self.task.cells, trial.by_pair(i, worst)
        total = max(float(parts.sum()), np.finfo(float).tiny)
        order = np.argsort(-parts, kind="stable")[:MOST_PAIRS_LISTED]
        return tuple(
            (*self.task.label(cells.pairs[k]), int(cells.pair_counts[k]), float(parts[k]) / total)
            for k in order[parts[order] > 0]
        )

    def table(self, trial: Trial) -> Array:
        """The policies of a trial as one table; as logged in states without options."""
        logged = self.task.logged_policy
        if trial.whole is None:
            return logged
        return self.task.table(_average(trial) @ trial.whole.options.share, logged)

    def _evidence(self, trial: Trial) -> tuple[Certificate, Array]:
        """The certificate of the policies of a trial, and these as one table."""
        task, table = self.task, self.table(trial)
        if self.stopped is not None and not self.passed:
            fit = ModelCheck(status=UNTESTED, reason=self.stopped, gamma=task.gamma)
        else:
            fit = check_model(task.log, gamma=task.gamma, policy=table)
        return make_certificate(trial, table, fit), table

    def _make(
        self,
        status: AnswerStatus,
        message: str,
        certificate: Certificate | None,
        table: Array | None,
        policy: Policy | None = None,
        needed: Needed | None = None,
    ) -> Answer:
        if certificate is not None and certificate.misfit:
            message = f"{certificate.fit.message} If it did: {message}"
            status, policy, needed = AnswerStatus.MISFIT, None, None
        task = self.task
        asked = {"gamma": task.gamma, "delta": task.delta, "accept_misfit": task.accept_misfit}
        return Answer(
            status=status,
            message=message,
            policy=policy,
            certificate=certificate,
            coverage=coverage_of(task.log, task, table),
            n_tested=len(self.passed) + (self.failed is not None),
            needed=needed,
            notes=task.log.notes,
            settings={**asked, **self.setting._asdict()},
        )


def _widths(trial: Trial) -> Array:
    """Distances of the bounds of the constraints from their estimates, (I,)."""
    return np.array([trial.width(1 + i, trial.task.level) for i in range(len(trial.task.limits))])


def _average(trial: Trial) -> Array:
    """The average of the policies of a trial, weighted by where each goes: as a drawn mixture of them visits."""
    values = trial.in_whole
    visits = np.sum([value.visits for value in values], axis=0)
    total = np.sum([value.states for value in values], axis=0)[trial.samples[0].options.state]
    return np.where(total > 0, visits / np.where(total > 0, total, 1.0), np.mean(trial.policies, axis=0))


def _times(room: float, parts: dict[str, float]) -> float:
    """How many times as many rows would bring the width below the room; the worst terms shrink faster than noise."""
    if room <= 0:
        return np.inf
    fast, slow = parts["worst row"], parts["noise"] + parts["first states"]
    # slow/sqrt(f) + fast/f = room, a quadratic equation in sqrt(f).
    root = (slow + np.sqrt(slow**2 + 4 * room * fast)) / (2 * room)
    return max(1.0, float(root) ** 2)


def _rounded(n: float) -> int:
    """A number rounded up to two digits.

    Examples
    --------
    >>> _rounded(8), _rounded(1234.5)
    (8, 1300)
    """
    unit = 10 ** max(0, len(str(int(n))) - 2)
    return int(np.ceil(n / unit)) * unit
