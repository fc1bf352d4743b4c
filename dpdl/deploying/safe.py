"""Which policy may be deployed? The best one whose limits the log shows to be kept, or why there is none.

Candidates are the best policies of the posterior mean model at a margin, with pessimism, near the data
(`dpdl.deploying.candidates`). Each search finds the least margin at which the certificate holds; of those that hold,
the policy with the largest lower bound of its reward is the answer.

Choosing on the log that certifies flatters the choice: among many policies the search finds those whose noise is in
their favour. Three things pay for that: the posterior, which draws back what looks good by chance and forgets nothing
that other pairs have shown; pessimism; and the optimism that the same search shows on resampled logs, which is taken
off the estimates. That this is enough was found by experiment (docs/safety.md). With method="finite" nothing is left to
experiment: policies are chosen on the first half of the log and tested on the second, those that earn least first,
until one fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.acting import Policy, evidence
from dpdl.data.dataset import Dataset
from dpdl.deploying import coverage
from dpdl.deploying.answer import SOLVERS, Answer, AnswerStatus, Candidate, Needed
from dpdl.deploying.candidates import DEVIATIONS, LP_PAIRS, PESSIMISM, Plans, Search, Tried, optimism
from dpdl.deploying.certificate import Certificate, Certifier, Range
from dpdl.deploying.posterior import Posterior, Value
from dpdl.learner.learn import learn
from dpdl.models.judgement import MOST_PAIRS, Judge
from dpdl.models.planner import Planner
from dpdl.models.plug_in import plug_in
from dpdl.models.status_line import StatusLine
from dpdl.question import pose

#: Pairs whose rows would help most are listed, this many of them.
MOST_PAIRS_LISTED = 5
#: Pessimism of candidates that are planned near the data.
NEAR = 0.3
#: Policies that are tested on other data aim at bounds with this room, see `Search`.
HELD_OUT_ROOM = 0.1
#: No estimate is given beyond this number of transitions; shares of time below this are rounding.
MOST_NEEDED, SOME_TIME = 1e15, 1e-9


def safe_policy(
    log: Dataset,
    *,
    gamma: float,
    limits: Mapping[str, float] | None = None,
    limit_on: str | None = None,
    delta: float = 0.05,
    method: str = "normal",
    solver: str = "plan",
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
    worst_costs: ArrayLike | None = None,
    rng: Any = None,
    progress: bool | None = None,
    executor: Executor | None = None,
    time_limit: float | None = None,
) -> Answer:
    """Find a policy whose limits the log shows to be kept, or say that there is none, or that the log cannot show it.

    Parameters
    ----------
    log : Dataset
    gamma : float
        Discount.
    limits, limit_on
        Upper limits of costs by name, and whether they are on the "total" or the "average" (`dpdl.question`).
    delta : float, optional
        Probability with which a certified policy may break a limit.
    method : {"normal", "finite"}, optional
        Normal bounds, which are asymptotic, or empirical Bernstein bounds on the second half of the log, which hold for
        any length and need far more data.
    solver : {"plan", "dpdl"}, optional
        What finds candidates: the planner and linear programs, or `learn`.
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.
    worst_costs : array_like, shape (I,), optional
        What a step costs at most; by default about the largest cost of the log, which a short log may not show yet.
    rng : None, int or numpy.random.Generator, optional
        For solver="dpdl"; the planner draws nothing, and logs are always resampled in the same way.
    progress : bool, optional
        Whether to show a line with what is being tried; by default on a terminal.
    executor : concurrent.futures.Executor, optional
        Runs the searches. It is not shut down.
    time_limit : float, optional
        Seconds after which no further policy is tried.

    Returns
    -------
    Answer
        CERTIFIED with a policy; INFEASIBLE if even the most careful policy breaks a limit, beyond the error of the
        estimate; NOT_ENOUGH_DATA otherwise. After Ctrl-C or the time limit: what was found until then, with a note.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(0, 2, 2000)
    >>> log = Dataset(0 * a, a, 0 * a, a, costs={"wear": 2.0 * a * rng.random(2000)}, n_states=1, n_actions=2)
    >>> answer = safe_policy(log, gamma=0.5, limits={"wear": 0.5}, limit_on="average", rho0=[1.0])
    >>> answer.status.name, answer.policy.round(2).tolist()
    ('CERTIFIED', [[0.5, 0.5]])
    """
    solver = check.choice("solver", solver, SOLVERS)
    seconds = check.seconds("time_limit", time_limit)
    shown = None if progress is None else check.flag("progress", progress)
    if executor is not None:
        check.instance("executor", executor, Executor)
    log = pose(log, gamma, limits, limit_on)
    certifier = Certifier.of(
        log, gamma, delta, method, rho0, initial_states, worst_costs, chosen_here=method == "normal"
    )
    if log.n_states * log.n_actions > MOST_PAIRS:
        raise ValueError(
            f"log has {log.n_states * log.n_actions:,} pairs of state and action, more than {MOST_PAIRS:,}"
        )
    search = _Searches(certifier, solver, check.generator(rng), time.monotonic() + seconds, executor, shown)
    if method == "finite":
        return search.held_out()
    search.run()
    return search.answer()


@dataclass
class _Searches:
    """All searches of one question, and what they found."""

    certifier: Certifier
    solver: str
    rng: np.random.Generator
    deadline: float
    executor: Executor | None
    shown: bool | None

    def __post_init__(self) -> None:
        self.tried: list[Tried] = []
        self.notes: list[str] = []
        self.search = Search(self.certifier)

    @cached_property
    def start(self) -> Value:
        """Values that pessimism is computed from."""
        return self.search.first()

    @cached_property
    def careful(self) -> Tried:
        """The policy with the largest least margin."""
        policy = Plans(self.certifier.posterior, self.start, 0.0).most_careful(self.certifier.thresholds)
        value = self.certifier.posterior.value(policy)
        none = (np.nan,) * len(self.certifier.thresholds)
        return self._corrected(Tried(policy, value, True, none, None, 0.0))

    def _corrected(self, one: Tried) -> Tried:
        """Test a policy, with the optimism of its choice taken off if it was chosen on the same log."""
        certifier = self.certifier
        if certifier.chosen_here and certifier.passes(one.policy, one.value):
            certifier = replace(certifier, optimism=optimism(certifier, one))
        return one._replace(passed=certifier.passes(one.policy, one.value), optimism=certifier.optimism)

    # ---- Searching ----

    def run(self) -> None:
        """Try candidates until all searches have ended, time is over or Ctrl-C is pressed."""
        try:
            with StatusLine(self.shown) as line:
                for one in self._candidates():
                    self.tried.append(one)
                    if line.is_due():
                        passed = [each.value.J[0] for each in self.tried if each.passed]
                        best = f"best certified reward {max(passed):.6g}" if passed else "none certified"
                        line.draw(f"safe policy: {len(self.tried)} policies tried, {best}")
                    if time.monotonic() >= self.deadline:
                        self.notes.append("time ran out before every candidate was tried")
                        break
        except KeyboardInterrupt:
            if not self.tried:
                raise
            self.notes.append("interrupted before every candidate was tried")

    def _candidates(self) -> Iterator[Tried]:
        start = self.start
        if self.solver == "dpdl":
            yield from self._learned(start)
            return
        log = self.certifier.posterior.log
        kinds: list[tuple[float, float | None]] = [(b, None) for b in PESSIMISM]
        if log.n_states * log.n_actions <= LP_PAIRS:
            kinds += [(NEAR, psi) for psi in DEVIATIONS]
        if self.executor is None:
            for kind in kinds:
                yield from self.search.run(start, *kind)
            return
        left = self.deadline - time.monotonic()
        jobs = [self.executor.submit(_found, self.search, start, left, *kind) for kind in kinds]
        try:
            for job in jobs:
                yield from job.result()
        finally:
            for job in jobs:
                job.cancel()

    def _learned(self, start: Value) -> Iterator[Tried]:
        """Policies by `learn` at growing margins until one passes, and by bisection from there."""
        posterior = self.certifier.posterior
        scale = np.array(posterior.log.question.scales)
        need = float((self.certifier.wide(start)[1:] / scale).max(initial=0.0))
        low, high, t = 0.0, np.inf, 1.0
        for _ in range(6):
            result = learn(
                posterior.log, gamma=posterior.gamma, kappa=t * need, rho0=posterior.rho0, rng=self.rng, progress=False
            )
            # Learned policies are uniform in states where they do not go.
            policy = policies.from_occupancy(posterior.allowed() * result.policy.probabilities, posterior.behaviour())
            value = posterior.value(policy)
            # A free plan at the same margin stands for the choice that `learn` makes near the data.
            one = self._corrected(Tried(policy, value, True, tuple((t * need * scale).tolist()), None, 0.0))
            yield one._replace(psi=result.settings.psi)
            low, high = (low, t) if one.passed else (t, high)
            t = (low + high) / 2 if np.isfinite(high) else 2 * t

    # ---- Answers ----

    def answer(self) -> Answer:
        """Answer by what was tried, and by the most careful policy if nothing else passed."""
        if not any(one.passed for one in self.tried):
            self.tried.append(self.careful)
        passed = [one for one in self.tried if one.passed]
        if not passed:
            return self.refused(self.careful)
        return self.certified(max(passed, key=lambda one: self._bounds(one).lower[0]))

    def _for(self, one: Tried) -> Certifier:
        """The certifier, with the optimism of a choice."""
        return replace(self.certifier, optimism=one.optimism)

    def _bounds(self, one: Tried) -> Range:
        return self._for(one).bounds(one.policy, one.value)

    def certified(self, one: Tried) -> Answer:
        """Return the policy with its certificate."""
        policy, value, certificate = one.policy, one.value, self._for(one).certificate(one.policy)
        log, gamma = self.certifier.posterior.log, self.certifier.posterior.gamma

        def seen() -> Any:
            return evidence(log, gamma, value.V[0] / log.question.reward_scale, np.zeros(log.n_utilities))

        kept = "this policy keeps every limit" if certificate.constraints else "there is no limit to keep"
        message = (
            f"{kept} ({certificate.confidence}); its discounted reward is estimated at "
            f"{certificate.reward.estimate:.4g}, at least {certificate.reward.bound:.4g}"
        )
        if certificate.behaviour is not None:
            message += f"; the policy that made the log earns {certificate.behaviour.estimate:.4g}"
        found = Policy(policy, log.labels, log.question, seen)
        return self._make(AnswerStatus.CERTIFIED, message, found, certificate, policy, None)

    def refused(self, careful: Tried) -> Answer:
        """Say that limits cannot be kept, or that the log does not show it."""
        certifier, posterior = self.certifier, self.certifier.posterior
        upper = certifier.bounds(careful.policy, careful.value).upper[1:]
        # At pairs that the log does not show, things may be as good as anything in the log instead of the worst case.
        rate = 1 - posterior.gamma
        upper = upper + careful.value.unseen * (np.maximum(posterior.best, 0) - posterior.worst)[1:] / rate**2
        lacking = (certifier.thresholds - certifier.tolerance - upper) / -posterior.worst[1:]
        worst = int(np.argmax(lacking))
        if lacking[worst] <= 0 or not self._broken_by_any():
            return self._not_shown()
        certificate = self._for(careful).certificate(careful.policy)
        one = certificate.constraints[worst]
        best = float(upper[worst]) * (-1 if one.is_cost else 1) * (rate if one.is_average else 1.0)
        others = "its limit" if len(certificate.constraints) == 1 else "its limit together with the others"
        message = (
            f"no policy that the log supports keeps {one.name} within {others}: under the most careful one it is "
            f"estimated at {one.estimate:.4g}, at best {best:.4g} ({certificate.confidence}), and the limit is "
            f"{one.limit:.4g}"
        )
        return self._make(AnswerStatus.INFEASIBLE, message, None, certificate, careful.policy, None)

    def _broken_by_any(self) -> bool:
        """Whether the most careful policy of the plug-in model breaks a limit as well, beyond its error.

        The posterior mean draws the costs of thin logs up to their mean. The least cost of a plug-in model errs the
        other way, because it is the least of many that are noisy.
        """
        posterior, n = self.certifier.posterior, len(self.certifier.thresholds)
        z = NormalDist().inv_cdf(1 - self.certifier.delta / n)
        model = plug_in(posterior.log, posterior.gamma, posterior.rho0)
        policy = Planner(model, allowed=posterior.allowed()).most_careful(np.zeros(model.n_utilities)).policy
        found = Judge(posterior.log, model, posterior.n_starts is not None).of(policy)
        if found.unseen > SOME_TIME:
            return False
        return any(
            one.limit is not None and (one.value - one.limit) * (1 if one.is_cost else -1) > z * one.error
            for one in found.constraints
        )

    def _not_shown(self) -> Answer:
        certifier, posterior = self.certifier, self.certifier.posterior
        log, least = posterior.log, 1e-12 * -posterior.worst[1:]

        def part(one: Tried) -> float:
            """The part of what the bounds ask for that the estimates have, beyond their thresholds."""
            bounds = self._bounds(one)
            asked = np.maximum((bounds.estimate - bounds.lower)[1:], least)
            return float(((bounds.estimate[1:] - certifier.thresholds) / asked).min())

        closest = max(self.tried, key=part)
        certificate, room = self._for(closest).certificate(closest.policy), part(closest)
        place = min(range(len(certificate.constraints)), key=lambda i: certificate.constraints[i].kept is True)
        one = certificate.constraints[place]
        message = (
            f"the log does not show that any policy keeps {one.name} within its limit of {one.limit:.4g}: the policy "
            f"that comes closest is estimated at {one.estimate:.4g}, and {certificate.words(one)} "
            f"({certificate.confidence})"
        )
        times = room**-2 if room > 0 else np.inf
        n = int(np.ceil(len(log) * max(1.0, times))) if times * len(log) < MOST_NEEDED else None
        if certifier.method == "finite":
            n = None
        elif n is not None:
            message += f"; about {n:,} transitions of the same kind would do, {n / len(log):.1f} times as many"
        elif certificate.unseen > SOME_TIME:
            message += f"; it spends {certificate.unseen:.2%} of its time where the log shows nothing"
        else:
            message += "; its estimate leaves no room, so it cannot be told how much data would do"
        needed = Needed(n_transitions=n, where=_where(posterior, closest.value.parts[1 + place]))
        return self._make(AnswerStatus.NOT_ENOUGH_DATA, message, None, certificate, closest.policy, needed)

    def _make(
        self,
        status: AnswerStatus,
        message: str,
        kept: Policy | None,
        certificate: Certificate,
        policy: Array,
        needed: Needed | None,
    ) -> Answer:
        posterior = self.certifier.posterior
        settings = {
            "gamma": posterior.gamma,
            "delta": self.certifier.delta,
            "method": self.certifier.method,
            "solver": self.solver,
        }
        return Answer(
            status=status,
            message=message,
            policy=kept,
            certificate=certificate,
            coverage=coverage.of_policy(posterior, policy),
            candidates=tuple(_candidate(one) for one in self.tried),
            needed=needed,
            notes=(*posterior.log.notes, *self.notes),
            settings=settings,
        )

    # ---- Held-out data ----

    def held_out(self) -> Answer:
        """Choose on the first half of the log and test on the second, the least reward first, until one fails."""
        halves = _halves(self.certifier.posterior)
        if halves is None:
            self.notes.append("the log is too short to be divided into a half to choose from and a half to test on")
            if not len(self.certifier.thresholds):
                policy = self.certifier.posterior.behaviour()
                return self.certified(Tried(policy, self.certifier.posterior.value(policy), True, (), None, 0.0))
            self.tried.append(self.careful)
            return self.refused(self.careful)
        chooser = replace(self, certifier=replace(self.certifier, posterior=halves[0]))
        chooser.search = replace(chooser.search, room=HELD_OUT_ROOM)
        chooser.run()
        self.certifier = replace(self.certifier, posterior=halves[1])
        about = "policies were chosen on the first half of the log; the figures are those of the second half"
        self.notes = [about, *chooser.notes]
        ladder = sorted((one for one in chooser.tried if one.passed), key=lambda one: one.value.J[0])
        best = None
        for one in ladder or [chooser.careful]:
            tested = self._tested(one)
            self.tried.append(tested)
            if not tested.passed:
                break
            best = tested
        return self.refused(self._tested(chooser.careful)) if best is None else self.certified(best)

    def _tested(self, one: Tried) -> Tried:
        """A policy from elsewhere, tested by this certifier."""
        value = self.certifier.posterior.value(one.policy)
        return one._replace(value=value, passed=self.certifier.passes(one.policy, value))


def _halves(whole: Posterior) -> tuple[Posterior, Posterior] | None:
    """Posteriors of the first half and of the second, which have nothing in common; None if there is not enough."""
    log, middle = whole.log, len(whole.log) // 2
    if middle == 0:
        return None
    parts = log[:middle], log[middle:]
    known = log.initial_counts
    if known is None or whole.n_starts != int(known.sum()):  # first states are given, not those of the log
        return replace(whole, log=parts[0]), replace(whole, log=parts[1])
    if log.repeats is not None:  # parts of a log of counts share its first states
        left = np.random.default_rng(0).multivariate_hypergeometric(known, int(known.sum()) // 2)
        counts = [left, known - left]
    else:
        counts = [np.zeros(0, dtype=np.int64) if part.initial_counts is None else part.initial_counts for part in parts]
    if not all(one.sum() for one in counts):
        return None
    first, second = (
        replace(whole, log=part, rho0=one / one.sum(), n_starts=int(one.sum()))
        for part, one in zip(parts, counts, strict=True)
    )
    return first, second


def _where(posterior: Posterior, parts: Array) -> tuple[tuple[str, str, int, float], ...]:
    """The pairs with the largest parts of a squared error: state, action, visits, share."""
    log, total = posterior.log, max(float(parts.sum()), np.finfo(float).tiny)
    order = np.argsort(-parts, kind="stable")[:MOST_PAIRS_LISTED]
    found = []
    for k in order[parts[order] > 0]:
        s, a = divmod(int(log.pairs[k]), log.n_actions)
        state, action = (s, a) if log.labels is None else (log.labels.states[s], log.labels.actions[a])
        found.append((str(state), str(action), int(log.pair_counts[k]), float(parts[k]) / total))
    return tuple(found)


def _found(search: Search, start: Value, seconds: float, pessimism: float, psi: float | None) -> list[Tried]:
    """Run one search, in a worker, until its time is over."""
    found: list[Tried] = []
    deadline = time.monotonic() + seconds
    for one in search.run(start, pessimism, psi):
        found.append(one)
        if time.monotonic() >= deadline:
            break
    return found


def _candidate(one: Tried) -> Candidate:
    kappa: Iterable[float] | None = None if np.isnan(one.kappa).any() else one.kappa
    return Candidate(
        kappa=None if kappa is None else tuple(kappa),
        psi=one.psi,
        pessimism=one.pessimism,
        reward=float(one.value.J[0]),
        certified=one.passed,
    )
