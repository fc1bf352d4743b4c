"""A run that is ready to go: checked, laid out for the core, and the making of results out of it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core, theory
from . import _validation as check
from ._bins import Bins
from ._mixing_estimate import estimate_mixing_time
from ._packed import Packed
from .dataset import INT32_MAX, Dataset
from .premises import Run, guarantee, premises
from .reference import Reference, estimate_reference
from .result import MESSAGES, Coordinates, Point, Result, Status
from .settings import ESTIMATE, Resolved, Settings

Array = NDArray[np.float64]

#: What a caller may vouch for.
KNOWABLE = ("psi", "slater", "mixing_time")
#: Start and constraints are compared with this relative slack.
FEASIBLE = 1e-9


@dataclass(frozen=True)
class Facts:
    """What the premises ask about a run, beyond its settings."""

    n_utilities: int
    n_reference: int | None
    kind: str
    fresh: bool
    disjoint: bool
    as_stated: bool
    known: tuple[str, ...]
    mixing_time_estimated: bool


@dataclass
class Setup:
    """A run that is ready to go, and the making of results out of it."""

    core: _core.LazyCore
    packed: Packed
    settings: Resolved
    reference: Reference
    initial: Array
    facts: Facts
    notes: tuple[str, ...] = ()
    slater_refuted: bool = False

    def result(self, status: Status, message: str | None = None) -> Result:
        x_mean, log_x, V_mean, lam_mean = self._averages()
        run = self._run()
        return Result(
            status=status,
            message=message or MESSAGES[status],
            n_steps=self.core.n_steps,
            settings=self.settings,
            reference=self.reference,
            coordinates=self._coordinates(x_mean),
            last_coordinates=self._log_coordinates(log_x),
            V_mean=V_mean,
            lam_mean=lam_mean,
            V=self.core.V_rows["v"].copy(),  # not core.point, which works out x for nothing
            log_lam=self.core.log_lam,
            premises=premises(run) if run else (),
            guarantee=guarantee(run) if run and status is Status.COMPLETED else None,
            diagnostics=self.core.diagnostics,
            notes=self.notes,
        )

    def _averages(self) -> tuple[Array, Array, Array, Array]:
        """Averages of x, V and lam, with log x of the last iterate in second place; of the start if no step was taken.

        A callback may ask every second for 10^6 pairs: one pass, and nothing is copied once more.
        """
        core = self.core
        x_mean, log_x = core.summary(max(core.n_steps, 1))
        if core.n_steps == 0:
            return np.exp(log_x), log_x, *core.point[1:]
        return x_mean, log_x, *core.dual_means

    def _coordinates(self, x: Array) -> Coordinates:
        n = len(self.packed.pairs)
        return Coordinates(self.packed.pairs, x[:n], x[n] / self.packed.n_unseen if self.packed.n_unseen else 0.0)

    def _log_coordinates(self, log_x: Array) -> Coordinates:
        n, n_unseen = len(self.packed.pairs), self.packed.n_unseen
        return Coordinates(self.packed.pairs, log_x[:n], log_x[n] - math.log(n_unseen) if n_unseen else -math.inf)

    def _run(self) -> Run | None:
        s, facts = self.settings, self.facts
        if self.core.n_steps == 0:
            return None
        return Run(
            problem=s.problem(self.reference.n_states, self.reference.n_actions, facts.n_utilities),
            eps=s.eps,
            delta=s.delta,
            n_steps=self.core.n_steps,
            eta=s.eta,
            alpha_V=s.alpha_V,
            alpha_lam=s.alpha_lam,
            alpha_x=s.alpha_x,
            kappa=s.kappa,
            floor=s.floor,
            n_reference=self.reference.n_samples,
            fresh=facts.fresh,
            disjoint=facts.disjoint,
            kind=facts.kind,
            as_stated=facts.as_stated,
            psi_known="psi" in facts.known,
            slater_known="slater" in facts.known,
            mixing_time_known="mixing_time" in facts.known,
            slater_refuted=self.slater_refuted,
            mixing_time_estimated=facts.mixing_time_estimated,
            mixing_time=s.mixing_time,
            c_o=s.c_o,
            c_e=s.c_e,
        )


def prepare(
    dataset: Dataset,
    settings: Settings | None,
    keywords: dict[str, Any],
    rho0: ArrayLike | None,
    initial_states: ArrayLike | None,
    rng: Any,
    n_reference: int | None,
    reference: Reference | None,
    start: Point | None,
    known: Collection[str],
) -> Setup:
    """Check everything, then lay out the core: no work is done before the last argument has passed."""
    if not isinstance(dataset, Dataset):
        raise TypeError(f"dataset must be a Dataset, got {type(dataset).__name__}")
    chosen = Settings.of(settings, keywords)
    if dataset.units.gamma is not None and dataset.units.gamma != chosen.gamma:
        raise ValueError(
            f"gamma = {chosen.gamma} differs from {dataset.units.gamma}, with which the costs were converted"
        )
    known = check.choices("known", known, KNOWABLE)
    generator = check.generator(rng)
    S, A, I = dataset.n_states, dataset.n_actions, dataset.n_utilities
    initial = check.initial_distribution(rho0, initial_states, S)
    estimated = chosen.mixing_time == ESTIMATE
    if estimated:
        chosen = replace(chosen, mixing_time=estimated_mixing_time(dataset, chosen.delta))
    resolved = chosen.resolve(S, A, I)
    descent, reference, disjoint = _split(dataset, n_reference, reference, resolved.floor)
    if resolved.order == "shuffle" and len(descent) > INT32_MAX:
        raise ValueError(f"order 'shuffle' keeps a permutation of at most {INT32_MAX} records, got {len(descent)}")
    packed = Packed.build(descent, reference, resolved)
    log_x, V, log_lam = _start(start, packed, resolved, S, A, I)
    # One trajectory is fresh only in its own order; independent transitions also without replacement.
    fresh_orders = ("shuffle", "trajectory") if dataset.kind == "independent" else ("trajectory",)
    radii = theory.radius_V(resolved.gamma, resolved.slater), theory.radius_lam(resolved.slater)
    facts = Facts(
        n_utilities=I,
        n_reference=None if n_reference is None else int(n_reference),
        kind=dataset.kind,
        fresh=resolved.order in fresh_orders and len(descent) >= resolved.T,
        disjoint=disjoint,
        as_stated=start is None
        and math.isclose(resolved.radius_V, radii[0])
        and math.isclose(resolved.radius_lam, radii[1]),
        known=known,
        mixing_time_estimated=estimated,
    )
    return assemble(packed, resolved, reference, initial, facts, len(descent), generator, (log_x, V, log_lam))


def assemble(
    packed: Packed,
    settings: Resolved,
    reference: Reference,
    initial: Array,
    facts: Facts,
    n_records: int,
    generator: np.random.Generator,
    start: tuple[Array, Array, Array],
) -> Setup:
    """Lay out the core."""
    support = np.flatnonzero(initial)
    sampler = _core.Sampler(
        generator.bit_generator, n_records, settings.order, support.astype(np.int32), initial[support]
    )
    # Often enough to bound drift, seldom enough to be free.
    refresh = settings.refresh or max(2**16, 4 * len(packed.c))
    core = _core.LazyCore(packed, Bins.of(packed.c), sampler, *start, refresh)
    return Setup(core, packed, settings, reference, initial, facts)


def estimated_mixing_time(dataset: Dataset, delta: float) -> float:
    """The upper confidence bound, at least one step; a log that gives none is refused."""
    if dataset.kind == "independent":
        raise ValueError("mixing_time cannot be estimated: the data set holds independent transitions; see its starts")
    found = estimate_mixing_time(dataset, delta=delta)
    if not found.enough:
        raise ValueError(f"mixing_time cannot be estimated: {found.message}; give a bound")
    return max(1.0, found.upper)


def _split(
    dataset: Dataset, n_reference: int | None, reference: Reference | None, floor: float
) -> tuple[Dataset, Reference, bool]:
    """The transitions of the descent, mu_hat, and whether the two are known to be disjoint."""
    if reference is not None:
        if n_reference is not None:
            raise TypeError("give either n_reference or reference")
        if not isinstance(reference, Reference):
            raise TypeError(f"reference must be a Reference, got {type(reference).__name__}")
        if (reference.n_states, reference.n_actions) != (dataset.n_states, dataset.n_actions):
            raise ValueError(
                f"reference has {reference.n_states} states and {reference.n_actions} actions, "
                f"the data set {dataset.n_states} and {dataset.n_actions}"
            )
        if not math.isclose(reference.floor, floor, rel_tol=1e-12):
            raise ValueError(f"reference was made with floor {reference.floor!r}, settings have {floor!r}")
        return dataset, reference, False
    if n_reference is None:
        return dataset, estimate_reference(dataset, floor), False
    n = check.whole("n_reference", n_reference, at_least=1, at_most=len(dataset) - 1)
    return dataset[n:], estimate_reference(dataset[:n], floor), True


def checked_point(start: Any, n_states: int, n_actions: int, n_utilities: int) -> Point:
    """Check the kinds and shapes of a starting point, and copy it."""
    if not isinstance(start, tuple) or len(start) != 3:
        raise TypeError(f"start must be a Point (log_x, V, log_lam), got {type(start).__name__}")
    shapes = ((n_states, n_actions), (n_states,), (n_utilities,))
    named = zip(Point._fields, start, shapes, strict=True)
    return Point(*(check.numbers_array(f"start.{name}", value, shape=shape) for name, value, shape in named))


def _start(
    start: Point | None, packed: Packed, settings: Resolved, S: int, A: int, I: int
) -> tuple[Array, Array, Array]:
    """The starting point (log x by coordinates, V, log lam), checked to be feasible."""
    if start is None:
        share = theory.sparsity(S, A, I) / (S * A) / (1 - settings.gamma)
        log_x = math.log(share) - np.log(packed.c)
        if packed.n_unseen:
            log_x[-1] += math.log(packed.n_unseen)
        V, log_lam = np.zeros(S), np.full(I, -math.log(settings.slater * max(I, 1)))
    else:
        dense, V, log_lam = checked_point(start, S, A, I)
        log_x = packed.gather_logs(dense)
    with np.errstate(over="ignore"):  # a start beyond the range of exp is infeasible, and is said to be
        x, lam = np.exp(log_x), np.exp(log_lam)
    worst = int(np.argmax(log_x - packed.log_cap))
    pair = packed.pairs[worst] if worst < len(packed.pairs) else -1
    where = f"x[{pair // A}, {pair % A}]" if pair >= 0 else "x of the unseen pairs"
    for name, value, bound, setting in (
        ("sum x", x.sum(), packed.B1, "floor is too large"),
        ("sum x/mu_hat", packed.c @ x, packed.B2, "floor is too large"),
        (where, x[worst], math.exp(packed.log_cap[worst]), "psi is too small"),
        ("max |V|", abs(V).max(), settings.radius_V, "radius_V is too small"),
        ("sum lam", lam.sum(), settings.radius_lam, "radius_lam is too small"),
    ):
        if not value <= bound * (1 + FEASIBLE):
            blame = "infeasible start" if start is not None else f"the default start is infeasible because {setting}"
            raise ValueError(f"{blame}: {name} = {value:.6g} exceeds its bound {bound:.6g}")
    return log_x, V, log_lam
