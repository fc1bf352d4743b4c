"""A run of Algorithm 1: a layout, the core that takes its steps, and its results."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpdl import _core
from dpdl._validation import Array
from dpdl.learner.defaults import deviation
from dpdl.learner.layout import NO_PLAN, Layout
from dpdl.premises import guarantee, premises
from dpdl.result import Result
from dpdl.stopping import Status

PLAN_IS_BETTER = (
    "the policy is that of the plan: on the plug-in model the average of the run was not judged to be better"
)
PLAN_IS_MISSING = "the run started where Algorithm 1 does: no safe plan was found, within psi where that was given"
AVERAGE_IS_BETTER = "the policy is that of the average: on the plug-in model it was judged to be as good as the plan"


@dataclass(eq=False)
class Run:
    """A run of Algorithm 1."""

    layout: Layout
    core: _core.LazyCore
    notes: tuple[str, ...] = ()  # of the results

    @classmethod
    def new(cls, layout: Layout, generator: np.random.Generator) -> Run:
        """A run at its starting point."""
        return cls(layout, _core.LazyCore(layout, layout.sampler(generator), *layout.start()))

    @property
    def n_steps(self) -> int:
        """Steps taken."""
        return self.core.n_steps

    def result(self, status: Status, message: str = "") -> Result:
        """The result of the steps taken so far; at the end of a run from the plan, the better of plan and average."""
        layout, core, log = self.layout, self.core, self.layout.log
        x_mean, log_x, V_mean, lam_mean = self._averages()
        claims = (layout.settings, layout.facts, core.n_steps)
        average = Result(
            status=status,
            ending=message or status.value,
            n_steps=core.n_steps,
            settings=layout.settings,
            reference=layout.reference,
            x_table=layout.coordinates.table(x_mean),
            last_log_x_table=layout.coordinates.log_table(log_x),
            V_mean=V_mean,
            lam_mean=lam_mean,
            V=core.V_rows["v"].copy(),  # not core.point, which would compute x as well
            log_lam=core.log_lam,
            premises=premises(*claims) if core.n_steps else (),
            guarantee=guarantee(*claims) if core.n_steps and status is Status.COMPLETED else None,
            diagnostics=core.diagnostics,
            initial=layout.inputs.initial,
            initial_estimated=layout.inputs.initial_estimated,
            notes=(*log.notes, *self.notes, *([PLAN_IS_MISSING] if layout.start_name == NO_PLAN else ())),
            question=log.question,
            labels=log.labels,
            log=log,
        )
        return average if layout.plan is None or status is Status.RUNNING else self._better(average)

    def _better(self, average: Result) -> Result:
        """The better of plan and average: one that keeps the constraints, then the one that earns more."""
        table = self.layout.coordinates.table(self.layout.plan_x())
        plan = replace(average, x_table=table, notes=(*average.notes, PLAN_IS_BETTER))
        aim, psi = self.layout.plan, self.layout.settings.stated.psi  # one that was found does not exclude the plan
        beyond = aim is None or (
            psi is not None and deviation(self.layout.log, self.layout.settings.gamma, aim) > psi * (1 + 1e-6)
        )
        if beyond or plan.evaluation is None or average.evaluation is None:
            return average
        kept, earned = average.evaluation.kept, average.evaluation.reward.value
        if (kept and earned >= plan.evaluation.reward.value) or not plan.evaluation.kept:
            return replace(average, notes=(*average.notes, AVERAGE_IS_BETTER))
        return plan

    def _averages(self) -> tuple[Array, Array, Array, Array]:
        """Averages of x, V and lam, with log x of the last iterate in second place; of the start if no step was taken.

        One pass over the pairs without further copies: a callback may need this every second for 10^6 pairs.
        """
        core = self.core
        x_mean, log_x = core.summary(max(core.n_steps, 1))
        if core.n_steps == 0:
            return np.exp(log_x), log_x, *core.point[1:]
        return x_mean, log_x, *core.dual_means
