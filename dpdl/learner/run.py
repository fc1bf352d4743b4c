"""A run: a layout, the core that takes its steps, and its results."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpdl import _core
from dpdl._validation import Array
from dpdl.learner import phases
from dpdl.learner.layout import Layout
from dpdl.learner.phases import Judged, Phase, Start
from dpdl.premises import guarantee, premises
from dpdl.result import MESSAGES, Result, Status

NOTHING_BETTER = (
    "the policy is that of the starting point: on the plug-in model no phase of the run was judged to be better"
)
#: Share of its time that a policy may spend beyond the caps of psi without a note.
BEYOND = 0.01


@dataclass(eq=False)
class Run:
    """A run of Algorithm 1, in practice in several phases."""

    layout: Layout
    phase: Phase  # the present one, with the core that takes its steps
    notes: tuple[str, ...] = ()  # of the results
    slater_refuted: bool = False  # whether the data was found to contradict the slater of the settings
    slater_checked: bool = False  # whether slater was compared with the data, or that was begun

    @classmethod
    def of(cls, layout: Layout, generator: np.random.Generator) -> Run:
        """A run at its starting point."""
        return cls(layout, phases.first(layout, layout.sampler(generator)))

    @property
    def core(self) -> _core.LazyCore:
        """The core of the present phase."""
        return self.phase.core

    @property
    def n_steps(self) -> int:
        """Steps taken in all phases."""
        past = self.phase.past
        return self.core.n_steps + (0 if past is None else int(past[0]))

    @property
    def diagnostics(self) -> dict[str, int]:
        """The counters of all phases."""
        now, past = self.core.diagnostics, self.phase.past
        return now if past is None else {name: k + int(n) for (name, k), n in zip(now.items(), past, strict=True)}

    @property
    def left(self) -> int:
        """Steps to the end of the present phase."""
        return self.core.layout.settings.T - self.core.n_steps

    @property
    def has_converged(self) -> bool:
        """Whether the relative gap of the best point is at most the `tol` of the settings."""
        tol, best = self.layout.settings.tol, self.phase.best
        return tol is not None and best is not None and phases.relative_gap(best) <= tol

    def settle(self) -> None:
        """Begin the next phase if the present one is over, and judge what was found; before the first step too."""
        self.phase = phases.settled(self.phase, self.layout)

    def result(self, status: Status, message: str | None = None) -> Result:
        """The result of the steps taken so far; in practice that of the best point that was judged."""
        layout, core, n_steps, best = self.layout, self.core, self.n_steps, self.phase.best
        x_mean, log_x, V_mean, lam_mean = self._averages()
        notes = (*layout.dataset.notes, *self.notes)
        if best is not None:
            x_mean, V_mean, lam_mean = best.x, best.V, best.lam
            if best.phase == 0 and self.phase.number + self.phase.is_over > 0:
                notes = (*notes, NOTHING_BETTER)
            if self.phase.start is not None and best.reward < self.phase.start.reward:
                notes = (*notes, self._start_earns_more(self.phase.start, best))
            if best.beyond > BEYOND:
                psi = layout.settings.psi
                notes = (
                    *notes,
                    f"the policy leaves the data: {best.beyond:.0%} of its time is more than psi = {psi:g} allows",
                )
        claims = (layout.settings, layout.facts, n_steps, self.slater_refuted)
        return Result(
            status=status,
            ending=message or self._ending(status),
            n_steps=n_steps,
            settings=layout.settings,
            reference=layout.reference,
            x_table=layout.coordinates.table(x_mean),
            last_log_x_table=layout.coordinates.log_table(log_x),
            V_mean=V_mean,
            lam_mean=lam_mean,
            V=core.V_rows["v"].copy(),  # not core.point, which would compute x as well
            log_lam=core.log_lam,
            premises=premises(*claims) if n_steps else (),
            guarantee=guarantee(*claims) if n_steps and status is Status.COMPLETED else None,
            diagnostics=self.diagnostics,
            initial=layout.inputs.initial,
            initial_estimated=layout.inputs.initial_estimated,
            notes=notes,
            question=layout.dataset.question,
            labels=layout.dataset.labels,
            log=layout.dataset,
        )

    def _start_earns_more(self, start: Start, best: Judged) -> str:
        """By how much the start earns more, and why it was not returned all the same."""
        settings, question = self.layout.settings, self.layout.dataset.question
        why = f"lacks {start.lacking / (1 - settings.gamma):.2g} of the margin kappa = {settings.kappa:.4g}"
        if start.beyond > best.beyond:
            why = f"spends {start.beyond:.2%} of its time beyond what psi = {settings.psi:g} allows"
            why += f" ({best.beyond:.2%} for the policy)"
        more, earned = (
            question.reward(one / (1 - settings.gamma)) for one in (start.reward - best.reward, best.reward)
        )
        return f"on the plug-in model the start earns {more:.2g} more than the policy's {earned:.6g}, but it {why}"

    def _ending(self, status: Status) -> str:
        """How the run ended, and if `tol` was given, how large the gap is."""
        tol, best = self.layout.settings.tol, self.phase.best
        if tol is None or best is None:
            return MESSAGES[status]
        gap = phases.relative_gap(best)
        size = "is not bounded: a constraint is broken" if gap == math.inf else f"is {gap:.2g}"
        return f"{MESSAGES[status]}; the relative gap on the plug-in model {size}, tol = {tol:g}"

    def _averages(self) -> tuple[Array, Array, Array, Array]:
        """Averages of x, V and lam, with log x of the last iterate in second place; of the start if no step was taken.

        One pass over the pairs without further copies: a callback may need this every second for 10^6 pairs.
        """
        core = self.core
        x_mean, log_x = core.summary(max(core.n_steps, 1))
        if core.n_steps == 0:
            return np.exp(log_x), log_x, *core.point[1:]
        return x_mean, log_x, *core.dual_means
