"""A run: a layout, the core that takes its steps, and its results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdl import _core
from dpdl._validation import Array
from dpdl.learning.layout import Layout
from dpdl.premises import guarantee, premises
from dpdl.result import MESSAGES, Result, Status


@dataclass(eq=False)
class Run:
    """A run of Algorithm 1."""

    layout: Layout
    core: _core.LazyCore  # the state, which changes as steps are taken
    notes: tuple[str, ...] = ()  # of the results
    slater_refuted: bool = False  # whether the data was found to contradict the slater of the settings
    slater_checked: bool = False  # whether slater was compared with the data, or that was begun

    @classmethod
    def of(cls, layout: Layout, generator: np.random.Generator) -> Run:
        """A run at its starting point."""
        return cls(layout, _core.LazyCore(layout, layout.sampler(generator), *layout.start()))

    def result(self, status: Status, message: str | None = None) -> Result:
        """The result of the steps taken so far."""
        layout, core, n_steps = self.layout, self.core, self.core.n_steps
        x_mean, log_x, V_mean, lam_mean = self._averages()
        claims = (layout.settings, layout.facts, n_steps, self.slater_refuted)
        return Result(
            status=status,
            ending=message or MESSAGES[status],
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
            diagnostics=core.diagnostics,
            initial=layout.inputs.initial,
            initial_estimated=layout.inputs.initial_estimated,
            notes=(*layout.dataset.notes, *self.notes),
            units=layout.dataset.units,
            labels=layout.dataset.labels,
            log=layout.dataset,
        )

    def _averages(self) -> tuple[Array, Array, Array, Array]:
        """Averages of x, V and lam, with log x of the last iterate in second place; of the start if no step was taken.

        One pass over the pairs without further copies: a callback may need this every second for 10^6 pairs.
        """
        core = self.core
        x_mean, log_x = core.summary(max(core.n_steps, 1))
        if core.n_steps == 0:
            return np.exp(log_x), log_x, *core.point[1:]
        return x_mean, log_x, *core.dual_means
