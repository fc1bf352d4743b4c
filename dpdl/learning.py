"""`learn`: algorithm 1 (DPDL) on a log, from checked arguments to a `Result`.

Python owns the chunks, the callback and the interruption; the compiled core owns the steps. A chunk lasts about
20 ms, so Ctrl-C is honoured at once; its size has no influence on the numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core, theory
from . import _validation as check
from ._bins import Bins
from ._mixing_estimate import estimate_mixing_time
from ._packed import Packed
from ._progress import Progress
from .dataset import INT32_MAX, Dataset
from .premises import Run, guarantee, premises
from .reference import Reference, estimate_reference
from .result import MESSAGES, Coordinates, Point, Result, Status
from .settings import ESTIMATE, Resolved, Settings
from .slater import slater_upper

Array = NDArray[np.float64]
Callback = Callable[[Result], object]

#: How long a chunk of steps should last, in seconds, and the first guess of its size.
CHUNK_SECONDS = 0.02
FIRST_CHUNK = 1024
#: Start and constraints are compared with this relative slack.
FEASIBLE = 1e-9


def learn(
    dataset: Dataset,
    settings: Settings | None = None,
    *,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
    rng: np.random.Generator | int | None = None,
    n_reference: int | None = None,
    reference: Reference | None = None,
    start: Point | None = None,
    known: Collection[str] = (),
    check_slater: bool | None = None,
    callback: Callback | None = None,
    callback_every: int | None = None,
    progress: bool | None = None,
    step_limit: int | None = None,
    time_limit: float | None = None,
    chunk: int | None = None,
    **keywords: Any,
) -> Result:
    """Learn a policy that earns well and keeps every constraint from a fixed log (DPDL, algorithm 1).

    Parameters
    ----------
    dataset : Dataset
        The log.
    settings : Settings, optional
        Parameters; or give them as keywords (gamma, psi, slater, T or eps, kappa, floor, order, ...), which also
        override those of `settings`.
    rho0 : array_like, shape (S,), optional
        Distribution of the initial state. Either this or `initial_states` is needed.
    initial_states : array_like of int, optional
        Logged initial states; draws are made from them with replacement.
    rng : numpy.random.Generator, int or None
        Source of all randomness. Same seed, same build: same bits.
    n_reference : int, optional
        Use the first so many transitions for mu_hat alone and the rest for the descent, as the theorem asks. By default
        the whole log serves both.
    reference : Reference, optional
        mu_hat from elsewhere (`estimate_reference`), instead of `n_reference`.
    start : Point, optional
        Starting point, for instance the `last` of another result; by default the paper's.
    known : collection of str, optional
        Which of "psi", "slater", "mixing_time" the caller vouches for; the theorem's conclusion depends on them and no
        run can check them.
    check_slater : bool, optional
        After the last step, look whether the data contradicts `slater` (an upper confidence bound, by a linear program)
        and say so in the result's `notes` and premises. Default: if that is quick, for up to 2,000 pairs and 10^6
        transitions.
    callback : callable, optional
        Called as ``callback(intermediate_result)`` every `callback_every` steps (default: a hundredth of T); raise
        StopIteration in it to end the run.
    progress : bool, optional
        Show a progress bar after two seconds. Default: if standard error is a terminal.
    step_limit : int, optional
        Stop after so many of the T steps, with a status of its own.
    time_limit : float, optional
        Stop after so many seconds, with a status of its own.
    chunk : int, optional
        Steps between two looks at the keyboard; by default what fits into 20 ms.

    Returns
    -------
    Result
        Also when interrupted with Ctrl-C: then for the steps taken.

    Examples
    --------
    Two actions in one state: the better paid one is unsafe, so the policy has to mix them half and half.

    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> result = learn(log, gamma=0.5, psi=2, slater=1, T=200_000, rho0=[1.0], rng=0)
    >>> result.success, result.policy.round(1).tolist()
    (True, [[0.5, 0.5]])
    """
    setup = _prepare(dataset, settings, keywords, rho0, initial_states, rng, n_reference, reference, start, known)
    planned = setup.settings.T
    total = planned if step_limit is None else min(planned, check.whole("step_limit", step_limit))
    seconds = math.inf if time_limit is None else check.real("time_limit", time_limit, at_least=0)
    every = -(-planned // 100) if callback_every is None else check.whole("callback_every", callback_every, at_least=1)
    fixed = None if chunk is None else check.whole("chunk", chunk, at_least=1)
    for name, flag in (("progress", progress), ("check_slater", check_slater)):
        if flag is not None and not isinstance(flag, bool):
            raise TypeError(f"{name} must be True, False or None, got {flag!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {type(callback).__name__}")

    core, code = setup.core, 0
    status = Status.COMPLETED if total == planned else Status.STEP_LIMIT
    deadline = time.monotonic() + seconds
    size = fixed or FIRST_CHUNK
    try:
        with Progress(total, progress) as bar:
            while core.n_steps < total and code == 0:
                if time.monotonic() >= deadline:
                    status = Status.TIME_LIMIT
                    break
                size = min(size, total - core.n_steps)
                if callback is not None:
                    size = min(size, every - core.n_steps % every)
                began = time.perf_counter()
                code = core.run(size)
                elapsed = time.perf_counter() - began
                if callback is not None and code == 0 and core.n_steps % every == 0:
                    callback(setup.result(Status.RUNNING))
                bar.update(core.n_steps)
                size = fixed or _next_size(size, elapsed)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except StopIteration:
        status = Status.STOPPED
    if code:
        return setup.result(Status.NUMERICAL_ERROR, f"{_core.CODES[code]}; the result covers the steps taken")
    if status is Status.COMPLETED and (check_slater or (check_slater is None and _quick_to_check(dataset))):
        setup.contradiction = _contradiction(dataset, setup)
    return setup.result(status)


def _quick_to_check(dataset: Dataset) -> bool:
    return dataset.n_states * dataset.n_actions <= 2000 and len(dataset) <= 10**6


def _contradiction(dataset: Dataset, setup: _Setup) -> str | None:
    """Say it if, with confidence 1 - delta, no policy within psi of the data has the slater that was supplied."""
    s = setup.settings
    if len(dataset) < 2 or dataset.n_utilities == 0:
        return None
    caps = s.psi * setup.reference.mu_hat.ravel()
    upper = slater_upper(dataset, gamma=s.gamma, rho0=setup.initial, psi=s.psi, caps=caps, delta=s.delta)
    if upper >= s.slater:
        return None
    found = f"has more than {upper:.3g}" if upper >= 0 else "keeps every constraint"
    return (
        f"slater = {s.slater:g} is contradicted by the data: with confidence {1 - s.delta:g}, no policy whose "
        f"occupancy is within psi = {s.psi:g} of where the data lies {found}"
    )


def _next_size(size: int, seconds: float) -> int:
    """A chunk of about CHUNK_SECONDS, growing at most eightfold at a time."""
    return max(1, min(8 * size, int(size * CHUNK_SECONDS / max(seconds, 1e-9))))


@dataclass
class _Setup:
    """A run that is ready to go, and the making of results out of it."""

    core: Any
    packed: Packed
    settings: Resolved
    reference: Reference
    n_utilities: int
    fresh: bool
    disjoint: bool
    as_stated: bool
    known: frozenset[str]
    kind: str
    mixing_time_estimated: bool
    initial: Array
    contradiction: str | None = None

    def result(self, status: Status, message: str | None = None) -> Result:
        x_mean, V_mean, lam_mean = self.core.means
        run = self._run()
        return Result(
            status=status,
            message=message or MESSAGES[status],
            n_steps=self.core.n_steps,
            settings=self.settings,
            reference=self.reference,
            coordinates=self._coordinates(x_mean),
            last_coordinates=self._log_coordinates(self.core.log_x),
            V_mean=V_mean,
            lam_mean=lam_mean,
            V=self.core.point[1],
            log_lam=self.core.log_lam,
            premises=premises(run) if run else (),
            guarantee=guarantee(run) if run and status is Status.COMPLETED else None,
            diagnostics=self.core.diagnostics,
            notes=(self.contradiction,) if self.contradiction else (),
        )

    def _coordinates(self, x: Array) -> Coordinates:
        n = len(self.packed.pairs)
        return Coordinates(self.packed.pairs, x[:n], x[n] / self.packed.n_unseen if self.packed.n_unseen else 0.0)

    def _log_coordinates(self, log_x: Array) -> Coordinates:
        n, n_unseen = len(self.packed.pairs), self.packed.n_unseen
        return Coordinates(self.packed.pairs, log_x[:n], log_x[n] - math.log(n_unseen) if n_unseen else -math.inf)

    def _run(self) -> Run | None:
        s = self.settings
        if self.core.n_steps == 0:
            return None
        return Run(
            problem=s.problem(self.reference.n_states, self.reference.n_actions, self.n_utilities),
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
            fresh=self.fresh,
            disjoint=self.disjoint,
            kind=self.kind,
            as_stated=self.as_stated,
            psi_known="psi" in self.known,
            slater_known="slater" in self.known,
            mixing_time_known="mixing_time" in self.known,
            slater_refuted=self.contradiction is not None,
            mixing_time_estimated=self.mixing_time_estimated,
            mixing_time=s.mixing_time,
            c_o=s.c_o,
            c_e=s.c_e,
        )


def _prepare(
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
) -> _Setup:
    """Check everything, then lay out the core: no work is done before the last argument has passed."""
    if not isinstance(dataset, Dataset):
        raise TypeError(f"dataset must be a Dataset, got {type(dataset).__name__}")
    chosen = Settings.of(settings, keywords)
    if dataset.units.gamma is not None and dataset.units.gamma != chosen.gamma:
        raise ValueError(
            f"gamma = {chosen.gamma} differs from {dataset.units.gamma}, with which the costs were converted"
        )
    if not isinstance(known, (tuple, list, set, frozenset)):
        raise TypeError(f"known must be a collection of names, got {known!r}")
    for name in known:
        check.choice("known", name, ("psi", "slater", "mixing_time"))
    generator = check.generator(rng)
    S, A, I = dataset.n_states, dataset.n_actions, dataset.n_utilities
    initial = check.initial_distribution(rho0, initial_states, S)
    support = np.flatnonzero(initial)
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
    sampler = _core.Sampler(
        generator.bit_generator, len(descent), resolved.order, support.astype(np.int32), initial[support]
    )
    return _Setup(
        core=_core.LazyCore(packed, Bins.of(packed.c), sampler, log_x, V, log_lam, _refresh(resolved, len(log_x))),
        packed=packed,
        settings=resolved,
        reference=reference,
        n_utilities=I,
        fresh=resolved.order in fresh_orders and len(descent) >= resolved.T,
        disjoint=disjoint,
        as_stated=start is None
        and math.isclose(resolved.radius_V, radii[0])
        and math.isclose(resolved.radius_lam, radii[1]),
        known=frozenset(known),
        kind=dataset.kind,
        mixing_time_estimated=estimated,
        initial=initial,
    )


def estimated_mixing_time(dataset: Dataset, delta: float) -> float:
    """The upper confidence bound, at least one step; a log that gives none is refused."""
    if dataset.kind == "independent":
        raise ValueError("mixing_time cannot be estimated: the data set holds independent transitions; see its starts")
    found = estimate_mixing_time(dataset, delta=delta)
    if not found.enough:
        raise ValueError(f"mixing_time cannot be estimated: {found.message}; give a bound")
    return max(1.0, found.upper)


def _refresh(settings: Resolved, n_coordinates: int) -> int:
    """Steps between full recomputations: often enough to bound drift, seldom enough to be free."""
    return settings.refresh or max(2**16, 4 * n_coordinates)


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
        if not isinstance(start, tuple) or len(start) != 3:
            raise TypeError(f"start must be a Point (log_x, V, log_lam), got {type(start).__name__}")
        dense, V, log_lam = (
            check.numbers_array(f"start.{name}", value, shape=shape)
            for name, value, shape in zip(Point._fields, start, ((S, A), (S,), (I,)), strict=True)
        )
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
