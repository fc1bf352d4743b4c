"""Which policy may be deployed? The best one whose limits the log shows to be kept, or why there is none.

Candidates are the best policies of the posterior mean model at a margin, with pessimism, near the data
(`dpdl.deploying.candidates`). Each search finds by bisection the least margin at which the certificate holds; of those
that hold, the policy with the largest lower bound of its reward is the answer.

Choosing on the log that certifies flatters the choice. Three things pay for that: the posterior mean, which draws
rarely seen pairs back; pessimism; and two thirds of delta, which the certificate keeps back. That this is enough was
found by experiment (`python bench/safety.py`). With method="finite" nothing is left to experiment: policies are chosen
on the first half of the log and tested on the second, the most careful first, until one fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.acting import Policy, evidence
from dpdl.data.dataset import Dataset
from dpdl.deploying import coverage
from dpdl.deploying.answer import Answer, AnswerStatus, Candidate, Needed
from dpdl.deploying.candidates import DEVIATIONS, LP_PAIRS, PESSIMISM, Plans, Search, Tried
from dpdl.deploying.certificate import Certificate, Certifier
from dpdl.models.judgement import MOST_PAIRS
from dpdl.models.status_line import StatusLine
from dpdl.running.learn import learn

SOLVERS = ("plan", "dpdl")
#: Pairs whose rows would help most are listed, this many of them.
MOST_PAIRS_LISTED = 5
#: Pessimism of candidates that are planned near the data.
NEAR = 0.3


def safe_policy(
    log: Dataset,
    *,
    gamma: float,
    delta: float = 0.05,
    method: str = "normal",
    solver: str = "plan",
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
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
    delta : float, optional
        Probability with which a certified policy may break a limit.
    method : {"normal", "finite"}, optional
        Normal bounds, which are asymptotic, or empirical Bernstein bounds on the second half of the log, which hold for
        any length and need far more data.
    solver : {"plan", "dpdl"}, optional
        What finds candidates: the planner and linear programs, or `learn`.
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.
    rng : None, int or numpy.random.Generator, optional
        For solver="dpdl"; the planner draws nothing.
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
    >>> log = Dataset.from_costs(0 * a, a, 0 * a, 1.0 * a, 2.0 * a * rng.random(2000), 0.5, gamma=0.5, normalised=True,
    ...                          n_states=1, n_actions=2)
    >>> answer = safe_policy(log, gamma=0.5, rho0=[1.0])
    >>> answer.status.name, answer.policy.round(2).tolist()
    ('CERTIFIED', [[0.51, 0.49]])
    """
    solver = check.choice("solver", solver, SOLVERS)
    seconds = check.seconds("time_limit", time_limit)
    shown = None if progress is None else check.flag("progress", progress)
    certifier = Certifier.of(log, gamma, delta, method, rho0, initial_states, chosen_here=method == "normal")
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
        self.search = _search_of(self.certifier)

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
        start = self.search.first()
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
        jobs = [self.executor.submit(_found, self.certifier, start, *kind) for kind in kinds]
        for job in jobs:
            yield from job.result()

    def _learned(self, start: Any) -> Iterator[Tried]:
        """Policies by `learn` at growing margins until one passes, and by bisection from there."""
        posterior = self.certifier.posterior
        scale = np.array(posterior.log.units.utility_scale)
        need = float((self.certifier.z * start.error[1:] / scale).max(initial=0.0))
        low, high, t = 0.0, np.inf, 1.0
        for _ in range(6):
            result = learn(
                posterior.log, gamma=posterior.gamma, kappa=t * need, rho0=posterior.rho0, rng=self.rng, progress=False
            )
            policy = result.policy.probabilities
            value = posterior.value(policy)
            passed = self.certifier.passes(policy, value)
            yield Tried(policy, value, passed, tuple((t * need * scale).tolist()), result.settings.psi, 0.0)
            low, high = (low, t) if passed else (t, high)
            t = (low + high) / 2 if np.isfinite(high) else 2 * t

    # ---- Answers ----

    def answer(self) -> Answer:
        """Answer by what was tried."""
        passed = [one for one in self.tried if one.passed]
        if passed:
            best = max(passed, key=lambda one: self.certifier.lower(one.policy, one.value)[0])
            return self.certified(best.policy)
        return self.refused()

    def certified(self, policy: Array) -> Answer:
        """Return the policy with its certificate."""
        certificate = self.certifier.certificate(policy)
        log, gamma = self.certifier.posterior.log, self.certifier.posterior.gamma
        value = self.certifier.posterior.value(policy)

        def seen() -> Any:
            return evidence(log, gamma, value.V[0] / log.units.reward_scale, np.zeros(log.n_utilities))

        bound = certificate.reward.bound
        message = (
            f"a policy whose limits are all kept with {1 - self.certifier.delta:.4g} confidence; "
            f"it earns {certificate.reward.estimate:.4g}, at least {bound:.4g}"
        )
        if certificate.behaviour is not None:
            message += f" (the policy that made the log: {certificate.behaviour.estimate:.4g})"
        kept = Policy(policy, log.labels, log.units, seen)
        return self._make(AnswerStatus.CERTIFIED, message, kept, certificate, policy, None)

    def refused(self) -> Answer:
        """Say that limits cannot be kept, or that the log does not show it."""
        certifier, posterior = self.certifier, self.certifier.posterior
        plans = Plans(posterior, self.search.first(), 0.0)
        careful = plans.most_careful(certifier.thresholds)
        value = posterior.value(careful)
        scale = plans.scale[1:]
        worst = int(np.argmin((value.J[1:] - certifier.thresholds) / scale))
        sure = NormalDist().inv_cdf(1 - certifier.delta) * float(value.error[1 + worst])
        if value.J[1 + worst] + sure < certifier.thresholds[worst]:
            certificate = certifier.certificate(careful)
            one = certificate.constraints[worst]
            sure *= 1 - posterior.gamma if one.is_average else 1.0
            best = one.estimate - sure if one.is_cost else one.estimate + sure
            message = (
                f"no policy that the log supports keeps {one.name}: the most careful one is estimated at "
                f"{one.estimate:.4g}, at best {best:.4g}, and the limit is {one.limit:.4g}"
            )
            return self._make(AnswerStatus.INFEASIBLE, message, None, certificate, careful, None)
        options = [(careful, value), *((one.policy, one.value) for one in self.tried)]

        def slack(each: tuple[Array, Any]) -> float:
            room = each[1].J[1:] - certifier.thresholds
            return float((room / np.maximum(each[1].error[1:], 1e-12 * scale)).min(initial=np.inf))

        policy, value = max(options, key=slack)
        return self._not_shown(policy, value, slack((policy, value)))

    def _not_shown(self, policy: Array, value: Any, t: float) -> Answer:
        certifier, posterior = self.certifier, self.certifier.posterior
        log, certificate = posterior.log, certifier.certificate(policy)
        n = None
        if t > 0:
            n = int(np.ceil(len(log) * max(1.0, (certifier.z / t) ** 2)))
        one = min(certificate.constraints, key=lambda each: (each.kept is True, each.name))
        message = (
            f"the log does not show that {one.name} keeps its limit of {one.limit:.4g}: the policy that comes closest "
            f"is estimated at {one.estimate:.4g}, bound {one.bound:.4g}"
        )
        if n is not None and certifier.method == "normal":
            message += f"; about {n:,} transitions of the same kind would do, {n / len(log):.1f} times as many"
        names = None if log.labels is None else log.labels
        parts = value.parts[1 + certificate.constraints.index(one)]
        order = np.argsort(-parts, kind="stable")[:MOST_PAIRS_LISTED]
        total = max(float(parts.sum()), np.finfo(float).tiny)
        where = []
        for k in order[parts[order] > 0]:
            s, a = divmod(int(log.pairs[k]), log.n_actions)
            state, action = (s, a) if names is None else (names.states[s], names.actions[a])
            where.append((str(state), str(action), int(log.pair_counts[k]), float(parts[k]) / total))
        needed = Needed(n_transitions=n if certifier.method == "normal" else None, where=tuple(where))
        return self._make(AnswerStatus.NOT_ENOUGH_DATA, message, None, certificate, policy, needed)

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
        """Choose on the first half of the log and test on the second, the most careful policy first."""
        whole, log = self.certifier.posterior, self.certifier.posterior.log
        middle = len(log) // 2
        if middle == 0:
            return self.refused()
        first, second = (
            replace(self.certifier, posterior=replace(whole, log=part), method=method)
            for part, method in ((log[:middle], "normal"), (log[middle:], "finite"))
        )
        chooser = _Searches(first, self.solver, self.rng, self.deadline, self.executor, self.shown)
        chooser.run()
        self.notes = chooser.notes
        ladder = sorted((one for one in chooser.tried if one.passed), key=lambda one: one.value.J[0])
        best = None
        for one in ladder:
            value = second.posterior.value(one.policy)
            passed = second.passes(one.policy, value)
            self.tried.append(one._replace(passed=passed, value=value))
            if not passed:
                break
            best = one.policy
        self.certifier = second
        return self.refused() if best is None else self.certified(best)


def _search_of(certifier: Certifier) -> Search:
    return Search(certifier.posterior, certifier.thresholds, certifier.z, certifier.passes)


def _found(certifier: Certifier, start: Any, pessimism: float, psi: float | None) -> list[Tried]:
    """Run one search, in a worker."""
    return list(_search_of(certifier).run(start, pessimism, psi))


def _candidate(one: Tried) -> Candidate:
    kappa: Iterable[float] | None = None if np.isnan(one.kappa).any() else one.kappa
    return Candidate(
        kappa=None if kappa is None else tuple(kappa),
        psi=one.psi,
        pessimism=one.pessimism,
        reward=float(one.value.J[0]),
        certified=one.passed,
    )
