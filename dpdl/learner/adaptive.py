"""Adaptive-DPDL (Algorithm 2): learn without knowing the concentrability C*.

Level K = 1, 2, ... runs DPDL with psi_K, which doubles from level to level, and tests the outcome by VERIFY. The method
stops when VERIFY passed at K and at K - 1 and J-hat grew by at most 500 eps (equation (46)): then a larger psi
cannot earn much more. Every level works at eps = eps'/15 and delta_K = 6 delta/(pi K)^2, where eps' and delta are the
caller's, and each of its three phases (mu_hat, descent, VERIFY) reads transitions that no other phase reads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpdl import _validation as check
from dpdl import theory
from dpdl.data.dataset import Dataset
from dpdl.files.atomic import FileLock
from dpdl.learner import checkpoint
from dpdl.learner.arguments import accepts, parse, refuse_unknown
from dpdl.learner.defaults import mixing_time_bound
from dpdl.learner.drive import Options, drive
from dpdl.learner.interrupts import Interrupts
from dpdl.learner.layout import PAPER, Inputs, Layout
from dpdl.learner.run import Run
from dpdl.learner.verify import Verification, verify
from dpdl.premises import Premise, combined
from dpdl.question import pose
from dpdl.result import Result
from dpdl.settings import ESTIMATE, Settings
from dpdl.stopping import Status
from dpdl.theory import Problem

#: A number of transitions: the theorem's (None), the same at every level, or a function of the level's problem.
Budget = int | Callable[[Problem], int] | None


@dataclass(frozen=True, kw_only=True)
class Level:
    """One level of the adaptive method.

    Attributes
    ----------
    psi, delta : float
        psi_K and delta_K.
    n_reference, n_descent : int
        Transitions that mu_hat and the descent read.
    result : Result
        Of the descent.
    verification : Verification or None
        Of VERIFY; None if the level stopped before it.
    """

    psi: float
    delta: float
    n_reference: int
    n_descent: int
    result: Result = field(repr=False)
    verification: Verification | None

    @property
    def verdict(self) -> bool | None:
        """Whether VERIFY passed; None without VERIFY."""
        return None if self.verification is None else self.verification.verdict

    @property
    def reward(self) -> float:
        """J-hat, VERIFY's estimate of the reward of the level's policy; NaN without VERIFY."""
        return math.nan if self.verification is None else self.verification.reward


@accepts(Settings, Inputs.of, Options, but=("reference", "start", "strict"))
def learn_adaptive(
    log: Dataset,
    settings: Settings | None = None,
    *,
    rng: np.random.Generator | int | None = None,
    reuse: bool = False,
    n_reference: Budget = None,
    n_descent: Budget = None,
    n_verification: Budget = None,
    max_levels: int = 40,
    eps_divisor: float = theory.ADAPTIVE_EPS_DIVISOR,
    exit_margin: float = theory.EXIT_MARGIN,
    resume: bool = False,
    **keywords: Any,
) -> Result:
    """Learn a safe policy without knowing C*: DPDL with growing psi until VERIFY passes (Algorithm 2).

    Parameters
    ----------
    log : Dataset
        The log, read from its beginning: level by level, and in each level mu_hat, descent, VERIFY.
    settings : Settings, optional
        Parameters, or give them as keywords. `eps` and `slater` are needed; `psi` is
        that of the first level, 1 by default.
    rho0, initial_states, rng, callback, progress, step_limit, time_limit, ...
        As for `learn`; the `history` of intermediate results has the complete levels, and limits apply to all levels
        together.
    checkpoint : path, optional
        A folder with one checkpoint for each level. It must be empty or absent, unless `resume` is set.
    resume : bool, optional
        Continue from `checkpoint`, bit for bit, if it has any; the other arguments must be the same. The random numbers
        are then those of the checkpoints.
    reuse : bool, optional
        Read the whole log in every phase of every level, in the order given by the settings. No theorem covers this;
        it is meant for logs that are too short for fresh data in every phase.
    n_reference, n_verification : int or function, optional
        Transitions for mu_hat and for VERIFY at a level: a number, or a function of the level's `theory.Problem`. None:
        what Propositions 4.3 and G.1 ask for. Not with `reuse`.
    n_descent : int or function, optional
        Transitions for the descent at a level. None: as many as steps, each used once, in the log's order. If there are
        fewer than steps, they are used repeatedly, in the order given by the settings. Not with `reuse`.
    max_levels : int, optional
        Largest number of levels.
    eps_divisor, exit_margin : float, optional
        The 15 of appendix G.2 and the 500 of equation (46).
    known : collection of str, optional
        Which of "slater", "mixing_time" the caller vouches for.

    Returns
    -------
    Result
        That of the last level, with all levels in `history`. If the method did not stop by its own rule, the status
        says why (OUT_OF_DATA, OUT_OF_LEVELS, INTERRUPTED, ...) and the result is that of the last level that passed
        VERIFY, or of the last level if none passed.

    Examples
    --------
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> common = {"gamma": 0.5, "slater": 1, "eps": 0.15, "rho0": [1.0], "rng": 0}
    >>> result = learn_adaptive(log, **common, reuse=True, T=100_000, eps_divisor=1)
    >>> result.status.name, [(level.psi, level.verdict) for level in result.history]
    ('COMPLETED', [(1.0, False), (2.0, True), (4.0, True)])
    >>> learn_adaptive(log, **common).message.split(",")[0]
    'level 1 (psi = 1) asks for 9.8e+12 fresh transitions'
    """
    refuse_unknown(learn_adaptive, keywords)
    chosen, inputs, options = parse(log, settings, keywords, knowable=("slater", "mixing_time"))
    chosen = replace(chosen, psi=chosen.psi or 1.0)
    schedule = _Schedule(
        log=pose(log, *chosen.asked),
        base=chosen,
        inputs=replace(inputs, start=PAPER),
        reuse=reuse,
        budgets={"n_reference": n_reference, "n_descent": n_descent, "n_verification": n_verification},
        max_levels=max_levels,
        eps_divisor=eps_divisor,
        exit_margin=exit_margin,
    )
    generator, levels = check.generator(rng), list[Level]()
    folder, resume = options.checkpoint, check.flag("resume", resume)
    if callable(options.callback):
        callback = options.callback
        options = replace(options, callback=lambda result: callback(replace(result, history=tuple(levels))))
    with Interrupts() as interrupts, FileLock() as lock:
        schedule.fix_mixing_time()
        if folder is not None:
            checkpoint.check_generator(generator)
            checkpoint.take_folder(folder, lock, resume=resume)
        elif resume:
            raise TypeError("resume needs checkpoint, the folder to resume from")
        try:
            status, message = _run_levels(schedule, levels, generator, options, interrupts)
        except KeyboardInterrupt:  # between two phases
            if not levels:
                raise
            status, message = Status.INTERRUPTED, Status.INTERRUPTED.value
    return schedule.outcome(levels, status, message) if levels else schedule.nothing(message, generator)


def _run_levels(
    schedule: _Schedule, levels: list[Level], generator: np.random.Generator, options: Options, interrupts: Interrupts
) -> tuple[Status, str]:
    """Append levels; return why the method stopped."""
    position, deadline = 0, time.monotonic() + options.time_limit
    for number in range(1, schedule.max_levels + 1):
        phases = schedule.phases(number, position)
        if isinstance(phases, str):
            return Status.OUT_OF_DATA, phases
        position += phases.n_fresh
        taken = sum(level.result.n_steps for level in levels)
        of_level = replace(
            options,
            time_limit=max(0.0, deadline - time.monotonic()),
            step_limit=None if options.step_limit is None else max(0, options.step_limit - taken),
            checkpoint=None if options.checkpoint is None else options.checkpoint / f"level-{number}",
        )
        layout = Layout.of(phases.log, phases.settings, replace(schedule.inputs, n_reference=phases.n_reference))
        path = of_level.checkpoint
        is_new = path is None or not path.exists()
        run = Run.new(layout, generator) if path is None or is_new else checkpoint.load(path, phases.log, like=layout)
        result = drive(run, of_level, interrupts, new=is_new)
        generator = np.random.Generator(run.core.sampler.bit_generator)  # the checkpoint's, if the level was resumed
        status, message, verification = result.status, result.ending, None
        if status is Status.COMPLETED:
            try:
                eps, delta = phases.settings.eps, phases.settings.delta
                verification = verify(result, phases.check, rho0=schedule.inputs.initial, eps=eps, delta=delta)
            except KeyboardInterrupt:
                status, message = Status.INTERRUPTED, Status.INTERRUPTED.value
        levels.append(
            Level(
                psi=result.settings.psi,
                delta=result.settings.delta,
                n_reference=phases.n_reference or len(phases.log),
                n_descent=len(phases.log) - (phases.n_reference or 0),
                result=result,
                verification=verification,
            )
        )
        if status is not Status.COMPLETED:
            return status, message
        if len(levels) > 1 and levels[-1].verdict and levels[-2].verdict:
            most, gain = schedule.exit_margin * (phases.settings.eps or 0.0), levels[-1].reward - levels[-2].reward
            if gain <= most:
                return Status.COMPLETED, (
                    f"stopped at level {number}, psi = {levels[-1].psi:g}: VERIFY passed twice in a row and J-hat grew "
                    f"by {gain:.3g}, at most {most:.3g}"
                )
    return Status.OUT_OF_LEVELS, f"{schedule.max_levels} levels were not enough; see history"


@dataclass(frozen=True)
class _Phases:
    """The data and the settings of one level."""

    settings: Settings  # T may still be None
    n_fresh: int
    log: Dataset
    n_reference: int | None
    check: Dataset


@dataclass(kw_only=True)
class _Schedule:
    """The checked arguments, and the settings and data that they imply for each level."""

    log: Dataset
    base: Settings
    inputs: Inputs
    reuse: bool
    budgets: dict[str, Budget]
    max_levels: int
    eps_divisor: float
    exit_margin: float
    mixing_time_estimated: bool = False

    def __post_init__(self) -> None:
        self.reuse = check.flag("reuse", self.reuse)
        for name, use in (("eps", "the accuracy that VERIFY tests for"), ("slater", "on which every level depends")):
            if getattr(self.base, name) is None:
                raise TypeError(f"missing setting {name!r}: {use}")
        for name, budget in self.budgets.items():
            if budget is not None and self.reuse:
                raise TypeError(f"{name} says how much fresh data to read, which reuse=True does not")
            if budget is not None and not callable(budget):
                check.whole(name, budget, at_least=1)
        self.max_levels = check.whole("max_levels", self.max_levels, at_least=1, at_most=1000)
        self.eps_divisor = check.real("eps_divisor", self.eps_divisor, above=0)
        self.exit_margin = check.real("exit_margin", self.exit_margin, at_least=0)
        try:  # psi grows and delta shrinks: if the last level is valid, all are
            self.settings(self.max_levels)
        except ValueError as error:
            raise ValueError(f"level {self.max_levels}: {error}") from None

    def fix_mixing_time(self) -> None:
        """Estimate the mixing time once, from the whole log, if the settings ask for an estimate."""
        if self.base.mixing_time == ESTIMATE:
            self.base = replace(self.base, mixing_time=mixing_time_bound(self.log, self.base.delta))
            self.mixing_time_estimated = True
            known = tuple(name for name in self.inputs.known if name != "mixing_time")
            self.inputs = replace(self.inputs, known=known)

    def settings(self, number: int) -> Settings:
        """Settings of a level: psi_K, eps, delta_K; T may be None."""
        base = self.base
        assert base.psi is not None and base.eps is not None
        delta = theory.adaptive_delta(base.delta, number)
        return replace(base, psi=base.psi * 2.0 ** (number - 1), eps=base.eps / self.eps_divisor, delta=delta)

    def problem(self, settings: Settings) -> Problem:
        return settings.problem(self.log.n_states, self.log.n_actions, self.log.n_utilities)

    def needs(self, settings: Settings) -> tuple[int, int, int, int]:
        """Transitions for mu_hat, the descent and VERIFY, and steps; these may be far more than the log has."""
        problem, eps = self.problem(settings), settings.eps
        assert eps is not None
        steps = settings.T or settings.required_steps(problem)
        verification = theory.verification_samples(problem, eps, settings.delta)
        chosen = [settings.required_reference(problem), steps, verification]
        for k, (name, budget) in enumerate(self.budgets.items()):
            if budget is not None:
                chosen[k] = check.whole(name, budget(problem) if callable(budget) else budget, at_least=1)
        return chosen[0], chosen[1], chosen[2], steps

    def phases(self, number: int, position: int) -> _Phases | str:
        """What the level reads, beginning at `position`; if the log is too short, a message that says so."""
        settings = self.settings(number)
        if self.reuse:
            return _Phases(settings, 0, self.log, None, self.log)
        n_reference, n_descent, n_verification, steps = self.needs(settings)
        n_run, n_left = n_reference + n_descent, len(self.log) - position
        if n_run + n_verification > n_left:
            return (
                f"level {number} (psi = {settings.psi:g}) asks for {n_run + n_verification:.2g} fresh transitions, "
                f"{n_reference:.2g} for mu_hat, {n_descent:.2g} for the descent and {n_verification:.2g} for VERIFY, "
                f"and {n_left:,} are left; with reuse=True every phase reads the whole log"
            )
        if n_descent >= steps:  # each transition is used at most once: read them in the log's order
            settings = replace(settings, order="once")
        run = self.log[position : position + n_run]
        fresh = self.log[position + n_run : position + n_run + n_verification]
        return _Phases(settings, n_run + n_verification, run, n_reference, fresh)

    def nothing(self, message: str, generator: np.random.Generator) -> Result:
        """The result before the first step: the policy is that of the data."""
        settings = self.settings(1)
        settings = replace(settings, T=min(self.needs(settings)[3], 2**63 - 1))
        run = Run.new(Layout.of(self.log, settings, self.inputs), generator)
        return run.result(Status.OUT_OF_DATA, f"{message}; nothing was learned")

    def outcome(self, levels: list[Level], status: Status, message: str) -> Result:
        """The result of the level to return, with the history, the premises and the guarantee."""
        verified = [level for level in levels if level.verdict]
        chosen = levels[-1] if status is Status.COMPLETED or not verified else verified[-1]
        premises = self._premises(levels, chosen)
        holds = status is Status.COMPLETED and all(premise.holds for premise in premises)
        return replace(
            chosen.result,
            status=status,
            ending=message,
            premises=premises,
            guarantee=self._guarantee(chosen.psi) if holds else None,
            history=tuple(levels),
            log=self.log,
        )

    def _premises(self, levels: list[Level], chosen: Level) -> tuple[Premise, ...]:
        """Premises of the levels' theorem, without psi >= C*, which this method does not need; and those of VERIFY."""
        by_name = combined(
            level.result.premises for level in reversed(levels)
        )  # the latest if all hold or several fail
        by_name.pop("psi >= C*", None)
        # Slater's condition is about policies within psi of the data: at an early level it may fail only because psi
        # is small. Use the chosen level's.
        by_name.update({premise.name: premise for premise in chosen.result.premises if premise.name == "slater valid"})
        eps, limit = self.base.eps or math.nan, theory.largest_eps(self.problem(self.base))
        shared = [("eps in range", eps <= limit * (1 + 1e-9), f"eps = {eps:.6g}, at most {limit:.6g}")]
        if self.mixing_time_estimated:
            shared.append(("mixing time", False, f"t_mix <= {self.base.mixing_time:.6g}, estimated from the same data"))
        enough = all(level.verification is not None and level.verification.enough for level in levels)
        fresh = "share no transition" if not self.reuse else "read the whole log"
        independent, stated = self.log.kind == "independent", self._as_stated()
        shared += [
            ("samples for VERIFY", enough, "as many as asked for" if enough else "fewer than asked for"),
            ("fresh levels", not self.reuse, f"the phases of all levels {fresh}"),
            ("independent levels", independent, "Propositions G.1 and G.2 are about independent transitions"),
            ("adaptive constants", stated, "those of the method, and psi of the first level"),
        ]
        by_name.update({name: Premise(name, holds, detail) for name, holds, detail in shared})
        return tuple(by_name.values())

    def _as_stated(self) -> bool:
        """Whether all constants are the paper's; psi <= 4 C* requires a first psi of at most 2 C*, and C* is >= 1."""
        constants = (self.eps_divisor, self.exit_margin)
        return constants == (theory.ADAPTIVE_EPS_DIVISOR, theory.EXIT_MARGIN) and (self.base.psi or 1) <= 2

    def _guarantee(self, psi: float) -> str:
        base = self.base
        return (
            f"Proposition G.2 with c_o = {base.c_o:g}: if the transitions are as the premises say, then with "
            f"probability at least {1 - base.delta:g}, psi = {psi:g} <= 4 C*, every J^u_i(policy) >= 0 and "
            "J(pi*) - J(policy) is O(C*/psi) eps, with a constant that the paper does not give."
        )
