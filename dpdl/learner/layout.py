"""The constant data of a run, computed and checked once before the first step.

A coordinate of x is a pair in the table of the log or in the reference. All other pairs have mu_hat = floor, are never
sampled and always move by one common factor, so together they are one more coordinate, the last, with their total mass.
A part of a log has the table of the whole log: pairs in it that the part does not visit are ordinary coordinates that
are never sampled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _core, theory
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.data.packing import INT32_MAX
from dpdl.data.reference import Reference, estimate_reference
from dpdl.learner import defaults
from dpdl.learner.bins import Bins
from dpdl.models.solution import Solution
from dpdl.premises import Facts
from dpdl.question import Question, pose
from dpdl.result import Point, SparseTable
from dpdl.settings import ESTIMATE, IN_ORDER, Resolved, Settings

#: Names of starting points: that of Algorithm 1, the plan of the plug-in model, and Algorithm 1's for lack of a plan.
PAPER, PLAN, NO_PLAN = "paper", "plan", "paper, without a plan"
#: What a caller may vouch for.
KNOWABLE = ("psi", "slater", "mixing_time")
#: A start may exceed a bound by this much, relatively.
FEASIBLE = 1e-9
#: Bound of every quantity of a run, to stay inside the range of a double.
LARGEST = 1e300
#: Smallest default of `refresh`: few enough steps to bound drift, enough to make the cost negligible.
LEAST_REFRESH = 2**16


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """The inputs of a run other than its log and its settings; checked, and copied from the caller's arrays."""

    initial: Array  # distribution of the initial state
    n_reference: int | None = None  # this many transitions, the first of the log, are for mu_hat only
    reference: Reference | None = None  # mu_hat from other data
    start: Point | str | None = None  # None: the paper's if psi, slater and T or eps are given, else the plan
    known: tuple[str, ...] = ()  # what the caller vouches for
    strict: bool = False  # as Theorem 4.1 or 4.6 has it
    initial_estimated: bool = False  # whether `initial` is that of the first states of the log's episodes

    @classmethod
    def of(
        cls,
        log: Dataset,
        *,
        rho0: ArrayLike | None = None,
        initial_states: ArrayLike | None = None,
        n_reference: int | None = None,
        reference: Reference | None = None,
        start: Point | str | None = None,
        known: Collection[str] = (),
        strict: bool = False,
        knowable: tuple[str, ...] = KNOWABLE,
    ) -> Inputs:
        """Check a caller's arguments; the parameters are those of `learn`."""
        check.instance("log", log, Dataset)
        known = check.choices("known", known, knowable)
        initial = log.initial(rho0, initial_states)
        if check.flag("strict", strict):
            for name, value in (("n_reference", n_reference), ("reference", reference), ("start", start)):
                if value is not None:
                    raise TypeError(f"{name} cannot be given with strict=True, which follows the theorem in it")
        if reference is not None:
            if n_reference is not None:
                raise TypeError("give either n_reference or reference")
            check.instance("reference", reference, Reference)
            if (reference.n_states, reference.n_actions) != (log.n_states, log.n_actions):
                raise ValueError(
                    f"reference has {reference.n_states} states and {reference.n_actions} actions, "
                    f"the log {log.n_states} and {log.n_actions}"
                )
        if n_reference is not None:
            n_reference = check.whole("n_reference", n_reference, at_least=1, at_most=len(log) - 1)
        if isinstance(start, str):
            check.choice("start", start, (PAPER, PLAN))
        elif start is not None:
            start = _checked_point(start, log.n_states, log.n_actions, log.n_utilities)
        return cls(
            initial=initial,
            n_reference=n_reference,
            reference=reference,
            start=start,
            known=known,
            strict=strict,
            initial_estimated=rho0 is None and initial_states is None,
        )


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The coordinates of x; the last one is the sum over all unseen pairs, if there are any.

    `pairs` are those of the other coordinates, as s * n_actions + a: the table of the log first, in its order, so that
    `pair` of a record is the index of a coordinate.
    """

    pairs: NDArray[np.int64]
    n_pairs: int  # S A
    state: NDArray[np.int32]  # of each coordinate
    mu_hat: Array
    c: Array  # 1/mu_hat
    bins: Bins  # coordinates sorted by c; the unseen pairs have the last bin for themselves

    @classmethod
    def of(cls, descent: Dataset, reference: Reference) -> Coordinates:
        """Coordinates for the pairs of a log and of a reference."""
        pairs = np.concatenate([descent.table, np.setdiff1d(reference.pairs, descent.table, assume_unique=True)])
        n_pairs = descent.n_states * descent.n_actions
        check.indices("pairs", pairs, n_pairs, dtype=np.int64, copy=False)
        mu_hat, state = reference.at(pairs), (pairs // descent.n_actions).astype(np.int32)
        unseen = len(pairs) < n_pairs
        if unseen:
            mu_hat, state = np.append(mu_hat, reference.floor), np.append(state, np.int32(0))
        c = 1 / mu_hat
        return cls(check.frozen(pairs), n_pairs, state, mu_hat, c, Bins.of(c, last_apart=unseen))

    @property
    def n_unseen(self) -> int:
        """Number of pairs in the last coordinate; 0 if every pair was seen."""
        return self.n_pairs - len(self.pairs)

    def multiplicity(self) -> NDArray[np.int64]:
        """How many pairs each coordinate stands for."""
        ones = np.ones(len(self.c), dtype=np.int64)
        if self.n_unseen:
            ones[-1] = self.n_unseen
        return ones

    def gather_logs(self, dense: Array) -> Array:
        """Coordinates of the logarithm of a vector over all pairs; unseen pairs must have one common value."""
        flat = dense.ravel()
        seen = flat[self.pairs]
        if self.n_unseen == 0:
            return seen
        unseen = np.setdiff1d(np.arange(len(flat)), self.pairs, assume_unique=True)
        values = flat[unseen]
        different = np.flatnonzero(abs(values - values[0]) > 1e-9 * max(1.0, abs(values[0])))
        if different.size:
            index = np.unravel_index(unseen[different[0]], dense.shape)
            raise ValueError(
                f"start.log_x{[int(k) for k in index]} = {values[different[0]].item()!r} differs from "
                f"{values[0].item()!r}: pairs that are not in the data must have one common value"
            )
        return np.append(seen, values[0] + np.log(self.n_unseen))

    def table(self, x: Array) -> SparseTable:
        """Convert coordinates of x to a table over pairs; unseen pairs get equal parts of the last one."""
        n = len(self.pairs)
        return SparseTable(self.pairs, x[:n], x[n] / self.n_unseen if self.n_unseen else 0.0)

    def log_table(self, log_x: Array) -> SparseTable:
        """The same for logarithms."""
        n = len(self.pairs)
        return SparseTable(self.pairs, log_x[:n], log_x[n] - math.log(self.n_unseen) if self.n_unseen else -math.inf)


@dataclass(frozen=True)
class Constants:
    """The constants of the step; attribute names are those of src_cython/_model.pxd."""

    gamma: float
    affine: Question  # rewards and utilities from the columns of the records
    margin: float
    end_margin: float
    rate_V: float
    rate_lam: float
    rate_x: float
    radius_V: float
    radius_lam: float
    B1: float
    B2: float

    @classmethod
    def of(cls, settings: Resolved, n_states: int, n_actions: int, question: Question) -> Constants:
        """Constants from settings and sizes."""
        return cls(
            gamma=settings.gamma,
            affine=question,
            margin=(1 - settings.gamma) * settings.kappa,
            end_margin=settings.kappa,
            rate_V=settings.eta / settings.alpha_V,
            rate_lam=settings.eta / settings.alpha_lam,
            rate_x=settings.eta / settings.alpha_x,
            radius_V=settings.radius_V,
            radius_lam=settings.radius_lam,
            B1=theory.sum_bound(settings.gamma),
            B2=theory.weight_bound(n_states, n_actions, len(question.names), settings.gamma, settings.psi),
        )

    def check_range(self, settings: Resolved, c_max: float) -> None:
        """Raise a ValueError if some logarithm could overflow within T steps.

        A step moves log x by at most (rate_x g + 700) c_max, where g bounds c times the advantage, log lam by
        rate_lam w (1 + kappa), and V by rate_V (1 + w), with w <= psi/(1-gamma).
        """
        w = settings.psi / (1 - settings.gamma)
        advantage = 1 + 2 * self.radius_V + self.radius_lam * (1 + self.end_margin)
        for name, step, growth in (
            ("alpha_x", self.rate_x, (self.rate_x * c_max * advantage + 700) * c_max * settings.T),
            ("alpha_lam", self.rate_lam, self.rate_lam * w * (1 + self.end_margin) * settings.T),
            ("alpha_V", self.rate_V, self.rate_V * (1 + w)),
        ):
            if not growth < LARGEST:
                raise ValueError(
                    f"eta/{name} = {step:g} with 1/mu_hat up to {c_max:g} is so large that a number could overflow "
                    f"in {settings.T} steps"
                )


@dataclass(frozen=True, eq=False)
class Layout:
    """The deterministic part of a run: log, settings, mu_hat, coordinates, constants and start. Shared by threads."""

    log: Dataset
    descent: Dataset  # the part of the log that steps read
    settings: Resolved
    inputs: Inputs  # `reference` in it is None unless the caller gave one
    reference: Reference
    coordinates: Coordinates
    constants: Constants
    start_name: str  # PAPER, PLAN, NO_PLAN, or "given" with a digest
    plan: Solution | None = None  # of the plug-in model, if the run starts there

    @classmethod
    def of(cls, log: Dataset, settings: Settings, inputs: Inputs, like: Collection[Layout] = ()) -> Layout:
        """Build and check the layout of a run.

        What does not depend on the settings that differ is shared with those in `like`, of the same log and inputs.
        """
        log = pose(log, *settings.asked)
        stated, start, plan = settings.stated, inputs.start, None
        settings, name = stated, start if isinstance(start, str) else PAPER if start is None else _name(start)
        if inputs.strict:
            settings, inputs = _strict(log, settings, inputs)
        elif start is None and not settings.is_complete:
            name = PLAN
        if name == PLAN:
            plan = next((each.plan for each in like if _same_plan(each.settings.stated, stated)), None)
            plan = plan or defaults.plan(log, stated, inputs.initial)
            name = PLAN if plan is not None else NO_PLAN
        if not settings.is_complete or settings.mixing_time == ESTIMATE:
            n_rows = len(log) - (inputs.n_reference or 0)
            settings = defaults.completed(log, settings, inputs.initial, plan, n_rows)
        resolved = settings.resolve(log.n_states, log.n_actions, log.n_utilities, stated)
        layout = cls.assemble(log, resolved, inputs, None, name, like, plan)
        layout.start()  # raises if it is not feasible
        return layout

    @classmethod
    def assemble(
        cls,
        log: Dataset,
        settings: Resolved,
        inputs: Inputs,
        reference: Reference | None,
        start_name: str,
        like: Collection[Layout] = (),
        plan: Solution | None = None,
    ) -> Layout:
        """Make a layout from complete settings; the reference is computed unless it is known."""
        descent = log if inputs.n_reference is None else log[inputs.n_reference :]
        if settings.order == "shuffle" and len(descent) > INT32_MAX:
            raise ValueError(f"order 'shuffle' is limited to {INT32_MAX} records, got {len(descent)}")
        if settings.order in IN_ORDER and descent.repeats is not None:
            raise ValueError(f"order {settings.order!r} needs the rows in order, and the log is a log of counts")
        if settings.order == "once" and len(descent) < settings.T:
            raise ValueError(f"order 'once' reads a row for each step: T = {settings.T:,}, and {len(descent):,} rows")
        given, coordinates = inputs.reference, None
        if given is not None and not math.isclose(given.floor, settings.floor, rel_tol=1e-12):
            raise ValueError(f"reference was made with floor {given.floor!r}, settings have {settings.floor!r}")
        shared = next(
            (
                each
                for each in like
                if each.settings.floor == settings.floor and each.inputs.n_reference == inputs.n_reference
            ),
            None,
        )
        if shared is not None:
            reference, coordinates = shared.reference, shared.coordinates
        elif reference is None:
            n = inputs.n_reference
            reference = given or estimate_reference(log if n is None else log[:n], settings.floor)
        coordinates = coordinates or Coordinates.of(descent, reference)
        constants = Constants.of(settings, log.n_states, log.n_actions, log.question)
        constants.check_range(settings, float(coordinates.c.max()))
        return cls(log, descent, settings, inputs, reference, coordinates, constants, start_name, plan)

    @property
    def records(self) -> NDArray[np.uint8]:
        """Packed records in the caller's units, as rows of bytes; a view, also of a log that was sliced with a step."""
        return self.descent.raw.records[:, None].view(np.uint8)

    @cached_property
    def log_cap(self) -> Array:
        """Logarithms of the caps psi mu_hat/(1-gamma), one a coordinate."""
        psi, gamma, each = self.settings.psi, self.settings.gamma, self.coordinates
        return np.log(psi / (1 - gamma) * each.mu_hat) + np.log(each.multiplicity())

    @property
    def refresh(self) -> int:
        """Steps between full recomputations of running sums."""
        return self.settings.refresh or max(LEAST_REFRESH, 4 * len(self.coordinates.c))

    @property
    def facts(self) -> Facts:
        """Facts for the premises of the theorems."""
        settings, log, inputs = self.settings, self.log, self.inputs
        radii = theory.radius_V(settings.gamma, settings.slater), theory.radius_lam(settings.slater)
        return Facts(
            n_states=log.n_states,
            n_actions=log.n_actions,
            n_utilities=log.n_utilities,
            n_reference=self.reference.n_samples,
            n_descent=len(self.descent),
            kind=log.kind,
            reference="own" if inputs.n_reference is not None else "shared" if inputs.reference is None else "given",
            as_stated=self.start_name in (PAPER, NO_PLAN)
            and math.isclose(settings.radius_V, radii[0])
            and math.isclose(settings.radius_lam, radii[1]),
            strict=inputs.strict,
            known=inputs.known,
            mixing_time_estimated=settings.stated.mixing_time == ESTIMATE,
        )

    def sampler(self, generator: np.random.Generator) -> _core.Sampler:
        """Draws of records and initial states."""
        initial = self.inputs.initial
        support = np.flatnonzero(initial)
        return _core.Sampler(
            generator.bit_generator,
            len(self.descent),
            "trajectory" if self.settings.order == "once" else self.settings.order,
            support.astype(np.int32),
            initial[support],
            self.descent.repeats,
        )

    def start(self) -> tuple[Array, Array, Array]:
        """The starting point (log x by coordinates, V, log lam); raises if it is not feasible."""
        S, A, I = self.log.n_states, self.log.n_actions, self.log.n_utilities
        each, given, k = self.coordinates, self.inputs.start, self.settings
        if self.plan is not None:
            x = defaults.mixed(self.plan_x(), each.mu_hat * each.multiplicity(), k.gamma)
            lam = np.maximum(self.plan.lam, defaults.LEAST_LAM)
            lam = lam * min(1.0, 0.5 * k.radius_lam / max(lam.sum(), 1e-300))
            log_x, V, log_lam = self.moved_inside(x, self.plan.V, lam)
        elif isinstance(given, Point):
            log_x, V, log_lam = each.gather_logs(given.log_x), given.V, given.log_lam
        else:
            share = theory.sparsity(S, A, I) / (S * A) / (1 - k.gamma)
            log_x = math.log(share) - np.log(each.c) + np.log(each.multiplicity())
            V, log_lam = np.zeros(S), np.full(I, -math.log(k.slater * max(I, 1)))
        self._check_start(log_x, V, log_lam)
        return log_x, V, log_lam

    def plan_x(self) -> Array:
        """The occupancy of the plan by coordinates."""
        assert self.plan is not None
        x = np.zeros(len(self.coordinates.c))
        x[: len(self.coordinates.pairs)] = self.plan.occupancy.ravel()[self.coordinates.pairs]
        return x

    def moved_inside(self, x: Array, V: Array, lam: Array) -> tuple[Array, Array, Array]:
        """Return a point as a starting point (log x, V, log lam), moved into the feasible sets."""
        k, tiny = self.settings, np.finfo(float).tiny
        log_x = np.minimum(np.log(np.maximum(x, tiny)), self.log_cap)
        total = np.exp(log_x)
        ratios = (total.sum() / self.constants.B1, self.coordinates.c @ total / self.constants.B2)
        log_x -= max(0.0, *(math.log(ratio) for ratio in ratios))
        lam = np.maximum(lam, tiny)
        lam = lam * (k.radius_lam / max(k.radius_lam, lam.sum()))
        return log_x, np.clip(V, -k.radius_V, k.radius_V), np.log(lam)

    def _check_start(self, log_x: Array, V: Array, log_lam: Array) -> None:
        each, constants, A = self.coordinates, self.constants, self.log.n_actions
        with np.errstate(over="ignore"):  # infinity exceeds every bound below
            x, lam = np.exp(log_x), np.exp(log_lam)
        log_cap = self.log_cap
        worst = int(np.argmax(log_x - log_cap))
        pair = each.pairs[worst] if worst < len(each.pairs) else -1
        where = f"x[{pair // A}, {pair % A}]" if pair >= 0 else "x of the unseen pairs"
        for name, value, bound, setting in (
            ("sum x", x.sum(), constants.B1, "floor is too large"),
            ("sum x/mu_hat", each.c @ x, constants.B2, "floor is too large"),
            (where, x[worst], math.exp(log_cap[worst]), "psi is too small"),
            ("max |V|", abs(V).max(), constants.radius_V, "radius_V is too small"),
            ("sum lam", lam.sum(), constants.radius_lam, "radius_lam is too small"),
        ):
            if not value <= bound * (1 + FEASIBLE):
                default = f"the default start is infeasible because {setting}"
                raise ValueError(
                    f"{'infeasible start' if isinstance(self.inputs.start, Point) else default}: "
                    f"{name} = {value:.6g} exceeds its bound {bound:.6g}"
                )


def _strict(log: Dataset, settings: Settings, inputs: Inputs) -> tuple[Settings, Inputs]:
    """Settings and inputs as Theorem 4.1 (4.6) has them; a ValueError names what the log or the caller lacks."""
    for name in ("psi", "slater", "eps"):
        if getattr(settings, name) is None:
            raise TypeError(f"strict=True needs {name}, on which the theorem depends")
    for name in ("kappa", "floor", "eta", "alpha_V", "alpha_lam", "alpha_x", "radius_V", "radius_lam"):
        if getattr(settings, name) is not None:
            raise TypeError(f"{name} cannot be given with strict=True, which takes that of the theorem")
    wanted = "independent" if settings.mixing_time is None else "trajectory"
    if log.kind != wanted:
        hint = "; one trajectory needs mixing_time" if log.kind == "trajectory" else ""
        raise ValueError(f"strict=True needs a log of kind {wanted!r}, this one is {log.kind!r}{hint}")
    if settings.mixing_time == ESTIMATE:
        raise ValueError("strict=True needs a mixing_time that is known: an estimate is no premise of the theorem")
    if settings.short_steps:
        raise TypeError("short_steps cannot be given with strict=True: the theorem has eta = 1/sqrt(T)")
    if settings.order == "shuffle":
        raise TypeError("order cannot be 'shuffle' with strict=True, which reads every row once")
    problem = settings.problem(log.n_states, log.n_actions, log.n_utilities)
    assert settings.eps is not None
    if settings.mixing_time is not None and settings.c_e is not None:
        least = theory.async_reference_constant(problem, settings.delta)
        if settings.c_e < least:
            raise ValueError(f"strict=True needs c_e >= {least:.6g}, that of the proof, got {settings.c_e:g}")
    if settings.eps > theory.largest_eps(problem):
        raise ValueError(f"strict=True needs eps <= {theory.largest_eps(problem):.6g}, got {settings.eps:g}")
    n_reference = settings.required_reference(problem)
    condition = theory.condition_steps(problem, settings.eps)
    steps = max(settings.required_steps(problem), condition)
    if settings.T is not None and steps > settings.T:
        raise ValueError(f"strict=True needs T >= {steps:.4g}, got {settings.T:g}")
    steps = max(steps, settings.T or 1)
    if n_reference + steps > len(log):
        raise ValueError(
            f"strict=True needs {n_reference + steps:.4g} rows, {n_reference:.4g} for mu_hat and {steps:.4g} for the "
            f"descent, and the log has {len(log):,}"
        )
    return replace(settings, T=steps, order="once"), replace(inputs, n_reference=n_reference)


def _same_plan(first: Settings, second: Settings) -> bool:
    """Whether two settings of one log have the same plan."""
    return (first.asked, first.psi, first.kappa) == (second.asked, second.psi, second.kappa)


def _name(start: Point) -> str:
    """The name of a given start, by which a checkpoint recognises it."""
    parts = b"".join(np.ascontiguousarray(part).tobytes() for part in start)
    return f"given {hashlib.sha256(parts).hexdigest()[:16]}"


def _checked_point(start: Any, n_states: int, n_actions: int, n_utilities: int) -> Point:
    """Check the kinds and shapes of a starting point, and copy it."""
    if not isinstance(start, tuple) or len(start) != 3:
        raise TypeError(f"start must be a Point (log_x, V, log_lam), got {type(start).__name__}")
    shapes = ((n_states, n_actions), (n_states,), (n_utilities,))
    named = zip(Point._fields, start, shapes, strict=True)
    return Point(*(check.numbers_array(f"start.{name}", value, shape=shape) for name, value, shape in named))
