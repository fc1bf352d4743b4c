"""Phases of a run in practice: each starts at the best point found so far, and takes longer than the one before.

At constant steps the averages of DPDL come to within a noise of the saddle point that the steps determine; a phase that
starts there with smaller ones comes closer. A phase is an ordinary run: its layout has its own eta and T, and its core
starts at its own point. In between, the averages are judged on the plug-in model of the log, in a few sparse passes:

    merit    what the policy earns, less a penalty for what it lacks in utility (of the margin kappa) and for the time
             that it spends beyond the caps of psi
    bound    what no safe policy within psi of the data exceeds, by weak duality (`dpdl.models.judgement`)

A phase starts at the x of the highest merit and the duals of the least bound, of the start and of all phases before.
The result has the x of the highest merit among those that keep the constraints, if any does. If the start keeps them,
no x is taken that earns less than the start on the plug-in model, unless the start spends more time beyond the caps or
lacks more than SMALL_PART of the margin; then a note says so. The first steps are bold: they are kept while a phase
reduces the gap, bound less merit, by a fifth, halved if it reduces it less, and quartered if not at all. Models that
are too large to be judged go on from the averages with steps halved.

The theory knows one phase of T steps; there nothing is judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdl import _core
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.learner.layout import Constants, Layout
from dpdl.models.judgement import MOST_PAIRS, TOLERANCE, Dual, Judge, tolerances
from dpdl.models.plug_in import plug_in
from dpdl.result import without_noise

#: Phases of a run, at most; each takes this many times as long as the one before, the first at least this many visits.
PHASES, GROWTH, LEAST_VISITS = 8, 1.3, 10
#: Steps stay as they are if a phase reduces the gap to this share of what it was, or less.
KEPT_AT = 0.8
#: A start that lacks no more than this part of the margin kappa, for instance by what is mixed in, counts as having it.
SMALL_PART = 0.1


class Judged(NamedTuple):
    """A point that was judged: an x, and the duals of the least bound so far.

    Attributes
    ----------
    x : array
        One entry a coordinate.
    V, lam : arrays, shapes (S,), (I,)
    merit, bound, reward : float
        Merit and reward of x, bound of V and lam; normalised, that is times 1 - gamma.
    beyond : float
        Share of the discounted time that the policy of x spends beyond the caps of psi.
    kept : bool
        Whether the policy of x keeps every constraint.
    phase : int
        Where x comes from: 0 is the start, k the averages of the k-th phase.
    """

    x: Array
    V: Array
    lam: Array
    merit: float
    bound: float
    reward: float
    beyond: float
    kept: bool
    phase: int

    @property
    def gap(self) -> float:
        """Bound less merit."""
        return self.bound - self.merit

    def merged(self, other: Judged, *, safe_first: bool) -> Judged:
        """The better x and the better duals of two points; this one's where they are equal."""
        safer = safe_first and other.kept != self.kept
        primal = other if (other.kept if safer else other.merit > self.merit) else self
        dual = other if other.bound < self.bound else self
        return primal._replace(V=dual.V, lam=dual.lam, bound=dual.bound)


class Start(NamedTuple):
    """A start that keeps every constraint: its reward, the time beyond the caps, and what it lacks of the margin kappa.

    All are normalised.
    """

    reward: float
    beyond: float
    lacking: float


@dataclass(frozen=True, eq=False)
class Phase:
    """The present phase of a run; replaced as a whole, so that an interruption leaves a complete one.

    Attributes
    ----------
    core : LazyCore
        The state, which changes as steps are taken. Its layout is that of the phase.
    number : int
        From 0.
    halvings : int
        How often steps were halved.
    is_over : bool
        Whether the phase is the last one, and its averages were judged.
    weight : float
        Of the penalties in the merit.
    past : int64 array
        The counters of earlier phases.
    best, base : Judged or None
        The point to return, and the one that the phase started at. None before the start was judged, and if nothing is.
    start : Start or None
        The start of the run, if that was judged and keeps the constraints.
    """

    core: _core.LazyCore
    number: int = 0
    halvings: int = 0
    is_over: bool = False
    weight: float = 1.0
    past: NDArray[np.int64] | None = None
    best: Judged | None = None
    base: Judged | None = None
    start: Start | None = None


def ends(layout: Layout) -> tuple[int, ...]:
    """Return the numbers of steps at which the phases of a run end; the last one is T."""
    return schedule(layout.settings.T, len(layout.descent.pairs), layout.settings.profile)


def schedule(T: int, n_pairs: int, profile: str) -> tuple[int, ...]:
    """Return the ends of the phases of T steps over a number of visited pairs.

    Examples
    --------
    >>> schedule(10_000, 10, "practice")
    (419, 964, 1672, 2593, 3790, 5347, 7370, 10000)
    >>> schedule(10_000, 10, "theory")
    (10000,)
    """
    if profile != "practice":
        return (T,)
    # k phases, the first of length L, take L (GROWTH^k - 1)/(GROWTH - 1) steps.
    shares = [GROWTH**k - 1 for k in range(1, PHASES + 1)]
    n = max([k for k, share in enumerate(shares, 1) if T * shares[0] >= LEAST_VISITS * n_pairs * share], default=1)
    return (*(round(T * (share / shares[n - 1])) for share in shares[: n - 1]), T)


def layout_of(layout: Layout, number: int, halvings: int) -> Layout:
    """Return the layout of a phase: that of the run with the eta and the number of steps of the phase."""
    last = (0, *ends(layout))
    settings = replace(layout.settings, eta=layout.settings.eta * 0.5**halvings, T=last[number + 1] - last[number])
    if settings == layout.settings:
        return layout
    data = layout.dataset
    return replace(
        layout,
        settings=settings,
        constants=Constants.of(settings, data.n_states, data.n_actions, data.n_utilities),
    )


def first(layout: Layout, sampler: _core.Sampler) -> Phase:
    """Return the first phase, at the starting point."""
    log_x, V, log_lam = layout.start()
    weight = 1 + 2 * float(np.exp(log_lam).sum())
    return Phase(_core.LazyCore(layout_of(layout, 0, 0), sampler, log_x, V, log_lam), weight=weight)


def settled(phase: Phase, layout: Layout) -> Phase:
    """Return the phase that the next step belongs to: another one at the end of a phase.

    Judges the start before the first step, and the averages of a phase at its end.
    """
    if phase.is_over or layout.settings.profile != "practice":
        return phase
    judged = layout.dataset.n_states * layout.dataset.n_actions <= MOST_PAIRS
    if judged and phase.best is None:
        found = judge(layout, phase.core.point, phase.weight, 0)
        lacking = (found.reward - found.merit) / phase.weight - found.beyond
        start = Start(found.reward, found.beyond, lacking) if found.kept else None
        phase = replace(phase, best=found, base=found, start=start)
    core, number = phase.core, phase.number
    if core.n_steps < core.layout.settings.T:
        return phase
    point, halvings = core.means, phase.halvings + 1
    if phase.best is not None and phase.base is not None:
        found = judge(layout, point, phase.weight, number + 1)
        base = phase.base.merged(found, safe_first=False)
        shrink = 0 if base.gap <= KEPT_AT * phase.base.gap else 1 if base.gap < phase.base.gap else 2
        point, halvings = (base.x, base.V, base.lam), phase.halvings + shrink
        if _is_better(phase.start, found, layout):
            found = found._replace(merit=-math.inf)
        phase = replace(phase, best=phase.best.merged(found, safe_first=True), base=base)
    if number + 1 == len(ends(layout)):
        return replace(phase, is_over=True)
    inside = layout_of(layout, number + 1, halvings)
    return replace(
        phase,
        core=_core.LazyCore(inside, core.sampler, *inside.moved_inside(*point)),
        number=number + 1,
        halvings=halvings,
        past=core.counts + (0 if phase.past is None else phase.past),
    )


def _is_better(start: Start | None, found: Judged, layout: Layout) -> bool:
    """Whether the start of the run is the better answer, whatever the merits are."""
    if start is None or found.reward >= start.reward or found.beyond < start.beyond:
        return False
    return start.lacking <= SMALL_PART * (1 - layout.settings.gamma) * layout.settings.kappa + TOLERANCE


def judge(layout: Layout, point: tuple[Array, Array, Array], weight: float, number: int) -> Judged:
    """Judge x, V and lam on the plug-in model, with a weight of the penalties."""
    data, settings, (x, V, lam) = layout.dataset, layout.settings, point
    model = plug_in(data, settings.gamma, layout.inputs.initial)
    table = layout.coordinates.table(x).dense(data.n_states, data.n_actions)
    policy = policies.from_occupancy(without_noise(table, data))
    judge_ = Judge(data, model, layout.inputs.initial_estimated)
    found = judge_.standing(policy, Dual(V, lam, settings.psi, np.zeros(0)))
    assert found.bound is not None
    normaliser = 1 - settings.gamma
    reward, utilities = normaliser * found.totals[0], normaliser * found.totals[1:]
    lacking = np.maximum(normaliser * settings.kappa - utilities, 0.0).max(initial=0.0)
    beyond = np.maximum(normaliser * found.occupancy - settings.psi * judge_.counts / len(data), 0.0).sum()
    return Judged(
        x=x,
        V=V,
        lam=lam,
        merit=float(reward - weight * (lacking + beyond)),
        bound=normaliser * found.bound,
        reward=float(reward),
        beyond=float(beyond),
        kept=bool((utilities >= -tolerances(data, model)).all()),
        phase=number,
    )


def relative_gap(best: Judged) -> float:
    """Return the gap relative to the reward; infinite if a constraint is broken."""
    if not best.kept:
        return math.inf
    return max(best.gap, 0.0) / abs(best.reward) if best.reward else math.inf
