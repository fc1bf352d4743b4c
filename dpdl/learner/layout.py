"""The constant data of a run, computed and checked once before the first step.

A coordinate of x is a pair in the table of the log or in the reference. All other pairs have mu_hat = floor, are never
sampled and always move by one common factor, so together they are one more coordinate, the last, with their total mass.
A part of a log has the table of the whole log: pairs in it that the part does not visit are ordinary coordinates that
are never sampled.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _core, theory
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.data.packing import INT32_MAX
from dpdl.data.reference import Reference, estimate_reference
from dpdl.learner import practice
from dpdl.learner.bins import Bins
from dpdl.mixing.estimate import estimate_mixing_time
from dpdl.premises import Facts
from dpdl.question import pose
from dpdl.result import Point, SparseTable
from dpdl.settings import ESTIMATE, Resolved, Settings

#: What a caller may vouch for.
KNOWABLE = ("psi", "slater", "mixing_time")
#: A start may exceed a bound by this much, relatively.
FEASIBLE = 1e-9
#: Bound of every quantity of a run, to stay inside the range of a double.
LARGEST = 1e300
#: Smallest default of `refresh`: few enough steps to bound drift, enough to make the cost negligible.
LEAST_REFRESH = 2**16


class InputKeywords(TypedDict, total=False):
    """Keywords of `Inputs.of`, for every function that starts a run."""

    rho0: ArrayLike | None
    initial_states: ArrayLike | None
    n_reference: int | None
    reference: Reference | None
    start: Point | None
    known: Collection[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """The inputs of a run other than its log and its settings; checked, and copied from the caller's arrays."""

    initial: Array  # distribution of the initial state
    n_reference: int | None = None  # this many transitions, the first of the log, are for mu_hat only
    reference: Reference | None = None  # mu_hat from other data
    start: Point | None = None  # None: that of the profile
    known: tuple[str, ...] = ()  # what the caller vouches for
    initial_estimated: bool = False  # whether `initial` is that of the first states of the log's episodes

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        *,
        rho0: ArrayLike | None = None,
        initial_states: ArrayLike | None = None,
        n_reference: int | None = None,
        reference: Reference | None = None,
        start: Point | None = None,
        known: Collection[str] = (),
        knowable: tuple[str, ...] = KNOWABLE,
    ) -> Inputs:
        """Check a caller's arguments; the parameters are those of `learn`."""
        check.instance("dataset", dataset, Dataset)
        known = check.choices("known", known, knowable)
        initial = dataset.initial(rho0, initial_states)
        if reference is not None:
            if n_reference is not None:
                raise TypeError("give either n_reference or reference")
            check.instance("reference", reference, Reference)
            if (reference.n_states, reference.n_actions) != (dataset.n_states, dataset.n_actions):
                raise ValueError(
                    f"reference has {reference.n_states} states and {reference.n_actions} actions, "
                    f"the data set {dataset.n_states} and {dataset.n_actions}"
                )
        if n_reference is not None:
            n_reference = check.whole("n_reference", n_reference, at_least=1, at_most=len(dataset) - 1)
        if start is not None:
            start = _checked_point(start, dataset.n_states, dataset.n_actions, dataset.n_utilities)
        return cls(
            initial=initial,
            n_reference=n_reference,
            reference=reference,
            start=start,
            known=known,
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


@dataclass(frozen=True, eq=False)
class Affine:
    """How rewards and utilities follow from the stored columns v: r = reward_slope v, u_i = (v_i - share_i) slope_i."""

    share: Array  # (2, I): of rows that go on, and of rows that end their episode
    slope: Array  # (I,)
    reward_slope: float
    columns: NDArray[np.int32]  # (I,): which of the stored columns belongs to each utility

    @classmethod
    def native(cls, n_utilities: int) -> Affine:
        """Rewards and utilities that are stored as such."""
        return cls(np.zeros((2, n_utilities)), np.ones(n_utilities), 1.0, np.arange(n_utilities, dtype=np.int32))

    def utilities(self, columns: Array, ended: NDArray[np.bool_]) -> Array:
        """Utilities of rows.

        Examples
        --------
        >>> affine = Affine(np.array([[0.5], [2.0]]), np.array([-0.25]), 1.0, np.array([1]))
        >>> affine.utilities(np.array([[7.0, 0.0], [7.0, 4.0]]), np.array([False, True])).tolist()
        [[0.125], [-0.5]]
        """
        return (columns[:, self.columns] - self.share[ended.astype(int)]) * self.slope


@dataclass(frozen=True)
class Constants:
    """The constants of the step; attribute names are those of src_cython/_model.pxd."""

    gamma: float
    affine: Affine
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
    def of(
        cls, settings: Resolved, n_states: int, n_actions: int, n_utilities: int, affine: Affine | None = None
    ) -> Constants:
        """Constants from settings and sizes; by default rewards and utilities are stored as such."""
        return cls(
            gamma=settings.gamma,
            affine=Affine.native(n_utilities) if affine is None else affine,
            margin=(1 - settings.gamma) * settings.kappa,
            end_margin=settings.kappa,
            rate_V=settings.eta / settings.alpha_V,
            rate_lam=settings.eta / settings.alpha_lam,
            rate_x=settings.eta / settings.alpha_x,
            radius_V=settings.radius_V,
            radius_lam=settings.radius_lam,
            B1=theory.sum_bound(settings.gamma),
            B2=theory.weight_bound(n_states, n_actions, n_utilities, settings.gamma, settings.psi),
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

    dataset: Dataset
    descent: Dataset  # the part of the log that steps read
    settings: Resolved
    inputs: Inputs  # `reference` in it is None unless the caller gave one
    mixing_time_estimated: bool  # whether settings.mixing_time was estimated from this log
    reference: Reference
    coordinates: Coordinates
    constants: Constants
    default_start: bool  # whether the run begins at the paper's starting point

    @classmethod
    def of(cls, dataset: Dataset, settings: Settings, inputs: Inputs, like: Collection[Layout] = ()) -> Layout:
        """Build and check the layout of a run.

        What does not depend on the settings that differ is shared with those in `like`, of the same log and inputs.
        """
        dataset = pose(dataset, *settings.asked)
        estimated = settings.mixing_time == ESTIMATE
        if estimated:
            known = [one.settings.mixing_time for one in like if one.settings.delta == settings.delta]
            bound = known[0] if known else estimated_mixing_time(dataset, settings.delta)
            settings = replace(settings, mixing_time=bound)
        resolved = settings.resolve(dataset.n_states, dataset.n_actions, dataset.n_utilities)
        reference = inputs.reference
        if reference is not None and not math.isclose(reference.floor, resolved.floor, rel_tol=1e-12):
            raise ValueError(f"reference was made with floor {reference.floor!r}, settings have {resolved.floor!r}")
        coordinates = None
        shared = next((one for one in like if one.settings.floor == resolved.floor), None)
        if shared is not None:
            reference, coordinates = shared.reference, shared.coordinates
        elif reference is None:
            n = inputs.n_reference
            reference = estimate_reference(dataset if n is None else dataset[:n], resolved.floor)
        as_stated = inputs.start is None and resolved.profile == "theory"
        layout = cls.assemble(dataset, resolved, inputs, estimated, reference, coordinates, as_stated)
        layout.start()  # raises if it is not feasible
        return layout

    @classmethod
    def assemble(
        cls,
        dataset: Dataset,
        settings: Resolved,
        inputs: Inputs,
        mixing_time_estimated: bool,
        reference: Reference,
        coordinates: Coordinates | None,
        default_start: bool,
    ) -> Layout:
        """Make a layout from checked parts."""
        descent = dataset if inputs.n_reference is None else dataset[inputs.n_reference :]
        if settings.order == "shuffle" and len(descent) > INT32_MAX:
            raise ValueError(f"order 'shuffle' is limited to {INT32_MAX} records, got {len(descent)}")
        if settings.order == "trajectory" and descent.repeats is not None:
            raise ValueError("order 'trajectory' needs the rows in order, and the data set is a log of counts")
        coordinates = coordinates or Coordinates.of(descent, reference)
        constants = Constants.of(settings, dataset.n_states, dataset.n_actions, dataset.n_utilities)
        constants.check_range(settings, float(coordinates.c.max()))
        estimated = mixing_time_estimated
        return cls(dataset, descent, settings, inputs, estimated, reference, coordinates, constants, default_start)

    @property
    def records(self) -> NDArray[np.uint8]:
        """Packed records as rows of bytes, always a view, also of a log that was sliced with a step."""
        return self.descent.records[:, None].view(np.uint8)

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
        settings, data = self.settings, self.dataset
        # One trajectory is fresh only in its own order; independent transitions also without replacement.
        fresh_orders = ("shuffle", "trajectory") if data.kind == "independent" else ("trajectory",)
        radii = theory.radius_V(settings.gamma, settings.slater), theory.radius_lam(settings.slater)
        return Facts(
            n_states=data.n_states,
            n_actions=data.n_actions,
            n_utilities=data.n_utilities,
            n_reference=self.reference.n_samples,
            kind=data.kind,
            fresh=settings.order in fresh_orders and len(self.descent) >= settings.T,
            disjoint=self.inputs.n_reference is not None,
            as_stated=self.default_start
            and math.isclose(settings.radius_V, radii[0])
            and math.isclose(settings.radius_lam, radii[1]),
            known=self.inputs.known,
            mixing_time_estimated=self.mixing_time_estimated,
        )

    def sampler(self, generator: np.random.Generator) -> _core.Sampler:
        """Draws of records and initial states."""
        initial = self.inputs.initial
        support = np.flatnonzero(initial)
        return _core.Sampler(
            generator.bit_generator,
            len(self.descent),
            self.settings.order,
            support.astype(np.int32),
            initial[support],
            self.descent.repeats,
        )

    def start(self) -> tuple[Array, Array, Array]:
        """The starting point (log x by coordinates, V, log lam); raises if it is not feasible."""
        S, A, I = self.dataset.n_states, self.dataset.n_actions, self.dataset.n_utilities
        each, given = self.coordinates, self.inputs.start
        if given is None and self._planned is not None:
            log_x, V, log_lam = self._planned
        elif given is None:
            share = theory.sparsity(S, A, I) / (S * A) / (1 - self.settings.gamma)
            log_x = math.log(share) - np.log(each.c) + np.log(each.multiplicity())
            V, log_lam = np.zeros(S), np.full(I, -math.log(self.settings.slater * max(I, 1)))
        else:
            log_x, V, log_lam = each.gather_logs(given.log_x), given.V, given.log_lam
        self._check_start(log_x, V, log_lam)
        return log_x, V, log_lam

    @cached_property
    def _planned(self) -> tuple[Array, Array, Array] | None:
        """The plan of the profile "practice" as a starting point; None in theory, or if there is no plan.

        A little of mu_hat is mixed in, and everything is inside its bounds.
        """
        each, k = self.coordinates, self.settings
        if k.profile != "practice":
            return None
        plan = practice.start(self.dataset, k.gamma, self.inputs.initial, k.psi, k.kappa)
        if plan is None:
            return None
        q, V, lam = plan
        x = np.zeros(len(each.c))
        x[: len(each.pairs)] = q[each.pairs]
        log_x = practice.log_mixture(x, each.mu_hat * each.multiplicity(), k.gamma)
        lam = lam * min(1.0, 0.5 * k.radius_lam / max(lam.sum(), 1e-300)) if len(lam) else lam
        return self.moved_inside(np.exp(log_x), V, lam)

    def moved_inside(self, x: Array, V: Array, lam: Array) -> tuple[Array, Array, Array]:
        """Return a point as a starting point (log x, V, log lam), moved into the feasible sets."""
        k, tiny = self.settings, np.finfo(float).tiny
        log_x = np.minimum(np.log(np.maximum(x, tiny)), self.log_cap)
        total = np.exp(log_x)
        sums = (total.sum() / self.constants.B1, self.coordinates.c @ total / self.constants.B2)
        log_x -= max(0.0, *(math.log(one) for one in sums))
        lam = np.maximum(lam, tiny)
        lam = lam * (k.radius_lam / max(k.radius_lam, lam.sum()))
        return log_x, np.clip(V, -k.radius_V, k.radius_V), np.log(lam)

    def _check_start(self, log_x: Array, V: Array, log_lam: Array) -> None:
        each, constants, A = self.coordinates, self.constants, self.dataset.n_actions
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
                    f"{default if self.inputs.start is None else 'infeasible start'}: "
                    f"{name} = {value:.6g} exceeds its bound {bound:.6g}"
                )


def estimated_mixing_time(dataset: Dataset, delta: float) -> float:
    """The upper confidence bound, at least one step; ValueError if the log is too short for one."""
    if dataset.kind == "independent":
        raise ValueError("mixing_time cannot be estimated: the data set holds independent transitions; see its starts")
    found = estimate_mixing_time(dataset, delta=delta)
    if not found.enough:
        raise ValueError(f"mixing_time cannot be estimated: {found.message}; give a bound")
    return max(1.0, found.upper)


def _checked_point(start: Any, n_states: int, n_actions: int, n_utilities: int) -> Point:
    """Check the kinds and shapes of a starting point, and copy it."""
    if not isinstance(start, tuple) or len(start) != 3:
        raise TypeError(f"start must be a Point (log_x, V, log_lam), got {type(start).__name__}")
    shapes = ((n_states, n_actions), (n_states,), (n_utilities,))
    named = zip(Point._fields, start, shapes, strict=True)
    return Point(*(check.numbers_array(f"start.{name}", value, shape=shape) for name, value, shape in named))
