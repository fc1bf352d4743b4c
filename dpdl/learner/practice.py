"""Defaults found from the data: what `learn` does when it is told no more than a log and a discount.

**The paper's** (``profile="theory"``): the step, its feasible sets, averages over all iterates, and the parameters,
start and number of steps of Theorem 4.1. It needs no model of the log, memory and time of a step do not grow with the
number of pairs, and its conclusion is a theorem; but the theorem asks for budgets that no log has, and from the paper's
start some thousands of visits to each pair earn little where information travels through many states. It is the one
to study, and to run on fresh data at its own budgets.

**Ours** (``profile="practice"``): everything below. The same step starts from a saddle point of the plug-in problem
and is taken in natural units over reshuffled rows, in phases (`dpdl.learner.phases`). No theorem covers this; each
phase is judged on the plug-in model instead (`dpdl.models.judgement`), and the best point, start included, is returned.
Where the plan is exact the phases find nothing better and the result says so; they pay where it is not. It is the one
to use for an answer from a given log: reward, constraints and a bound of what is missing are estimated with it.

    psi      twice what the best safe policy of the plug-in model needs, between LEAST_PSI and MOST_PSI
    slater   half of the best worst utility on the plug-in model
    T        VISITS steps for each visited pair
    kappa    MARGIN of the best worst utility, against rounding and the noise of a run; a margin against the error of
             the estimates is the caller's to choose
    steps    eta/alpha_x = STEP_X/n, eta/alpha_V = STEP_V (1-gamma)/A, eta/alpha_lam = STEP_LAM (1-gamma)/(1 + sum lam),
             with n visited pairs and the lam of the plan
    start    V and lam of the run's own problem, x = its occupancy, a little mu_hat/(1-gamma) mixed in: the planner's
             answer where psi does not bind, that of a linear program inside D(psi) where it does
             (`dpdl.models.restricted`)

For a large model where psi binds the linear program needs an optional package; without it the start is the plan without
psi, cut to the caps.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.data.packing import INT32_MAX
from dpdl.models import certified, planner, restricted
from dpdl.models import linear_programs as programs
from dpdl.models.cmdp import CMDP
from dpdl.models.judgement import MOST_PAIRS, TOLERANCE, tolerances
from dpdl.models.occupancy import state_occupancy
from dpdl.models.plug_in import plug_in

#: psi lies between these: a larger one lets noise in, a smaller one leaves no room.
LEAST_PSI, MOST_PSI = 4.0, 300.0
LEAST_SLATER, MARGIN = 1e-3, 0.005
VISITS, LEAST_STEPS, MOST_STEPS = 1000, 100_000, 10**9
#: Steps in natural units; see above.
STEP_X, STEP_V, STEP_LAM = 0.3, 0.1, 0.02
#: Share of mu_hat/(1-gamma) in the starting point, and the least multiplier in it.
MIXED, LEAST_LAM = 1e-4, 0.01
#: Plans that are kept for each log: those of psi and kappa that a run, its start and its defaults need.
KNOWN_PLANS = 4
#: The best worst utility is found by a linear program up to this many pairs, and by the planner beyond.
LP_PAIRS = 10_000
#: Relative gap of a plan.
PLAN_GAP = 1e-3


class Careful(NamedTuple):
    """The policy with the best worst utility on the plug-in model."""

    margin: float  # that utility, normalised
    occupancy: Array | None  # (S, A); None for a large model


class Plan(NamedTuple):
    """A saddle point of the plug-in problem inside D(psi): normalised occupancy, value function and multipliers."""

    q: Array
    V: Array
    lam: Array


_CAREFUL: WeakKeyDictionary[Dataset, tuple[tuple[float, bytes], Careful | None]] = WeakKeyDictionary()


def most_careful(dataset: Dataset, gamma: float, initial: Array) -> Careful | None:
    """Return the best worst utility on the plug-in model; None if it could not be found, for size or precision."""
    key = (gamma, initial.tobytes())
    if dataset not in _CAREFUL or _CAREFUL[dataset][0] != key:
        _CAREFUL[dataset] = (key, _most_careful(plug_in(dataset, gamma, initial)))
    return _CAREFUL[dataset][1]


def _most_careful(model: CMDP) -> Careful | None:
    if model.n_utilities == 0:
        return None
    if model.r.size > LP_PAIRS:
        lower, upper = planner.slater_bounds(model, TOLERANCE)
        close = upper <= lower + max(TOLERANCE, 0.05 * abs(lower))
        return Careful(upper if upper < 0 else lower, None) if close else None
    closed = model.closed()
    answer = certified.solve(programs.largest_margin(closed, programs.region(closed)))
    if isinstance(answer, certified.Bound) or not answer.feasible or answer.bound > answer.value + TOLERANCE:
        return None
    return Careful(answer.value - 1, (answer.q[: model.r.size] / (1 - model.gamma)).reshape(model.r.shape))


def infeasible(dataset: Dataset, gamma: float, initial: Array) -> Careful | None:
    """Return the most careful policy if not even that keeps every constraint on the plug-in model, else None."""
    if dataset.n_utilities == 0 or dataset.n_states * dataset.n_actions > MOST_PAIRS:
        return None
    model = plug_in(dataset, gamma, initial)
    logged = policies.from_occupancy(dataset.frequencies)
    p, _ = state_occupancy(model, logged)
    tolerance = tolerances(dataset, model)
    if (np.einsum("isa,sa->i", model.u, p[:, None] * logged) >= -tolerance).all():
        return None  # the policy that made the log is safe
    found = most_careful(dataset, gamma, initial)
    shown = max(programs.TOLERANCE, tolerance.min())  # a linear program cannot tell less
    return found if found is not None and found.margin < -shown else None


_PLANS: WeakKeyDictionary[Dataset, dict[tuple[float, bytes, float | None, float], Plan | None]] = WeakKeyDictionary()


def plan(dataset: Dataset, gamma: float, initial: Array, psi: float | None, kappa: float = 0.0) -> Plan | None:
    """Return a saddle point of the plug-in problem; None if there is none, or it could not be found."""
    key, known = (gamma, initial.tobytes(), psi, kappa), _PLANS.setdefault(dataset, {})
    if key in known:
        return known[key]
    found = None
    if psi is not None:  # the plan for any psi is the answer, unless it lies beyond the caps
        found = plan(dataset, gamma, initial, None, kappa)
        if found is not None and (found.q > psi * dataset.frequencies.ravel()).any():
            found = None
    if found is None:
        found = _plan(dataset, plug_in(dataset, gamma, initial), psi, kappa)
    while len(known) >= KNOWN_PLANS:
        known.pop(next(iter(known)))
    known[key] = found
    return found


def _plan(dataset: Dataset, model: CMDP, psi: float | None, kappa: float) -> Plan | None:
    try:
        found = restricted.plan(model, psi, dataset.frequencies, kappa, tol=PLAN_GAP)
    except ImportError:  # the caps of a large model need an optional package; without it the start is cut to them
        found = restricted.plan(model, None, dataset.frequencies, kappa, tol=PLAN_GAP)
    if not np.isfinite(found.q).all():
        return None
    return Plan(found.q, found.V, np.maximum(found.lam, 0.0))


def defaults(dataset: Dataset, given: dict[str, Any], initial: Array) -> dict[str, Any]:
    """Return `given` completed: settings of a run in practice."""
    gamma, n = float(given["gamma"]), len(dataset.pairs)
    found: dict[str, Any] = {"profile": "practice", "eta": 1.0, "floor": 0.1 / len(dataset)}
    found["order"] = "shuffle" if len(dataset) <= INT32_MAX else "replacement"  # more cannot be shuffled
    careful = most_careful(dataset, gamma, initial)
    if "slater" not in given:
        found["slater"] = 0.5 if careful is None else min(1.0, max(LEAST_SLATER, careful.margin / 2))
    if "kappa" not in given and "eps" not in given and careful is not None:
        found["kappa"] = MARGIN * max(0.0, careful.margin) / (1 - gamma)
    aim = plan(dataset, gamma, initial, given.get("psi"), float(given.get("kappa", found.get("kappa", 0.0)) or 0.0))
    found["alpha_x"] = n / STEP_X
    found["alpha_V"] = dataset.n_actions / (STEP_V * (1 - gamma))
    found["alpha_lam"] = (1 + (0.0 if aim is None else float(aim.lam.sum()))) / (STEP_LAM * (1 - gamma))
    if "psi" not in given:
        found["psi"] = MOST_PSI if aim is None else _generous_psi(dataset, aim)
    if "T" not in given and "eps" not in given:
        found["T"] = int(min(MOST_STEPS, max(LEAST_STEPS, VISITS * n)))
    return found | given


def _generous_psi(dataset: Dataset, aim: Plan) -> float:
    """Return twice the deviation of a plan, within the bounds of psi."""
    mu = dataset.pair_counts / len(dataset)
    return float(np.clip(2 * (aim.q[dataset.pairs] / mu).max(), LEAST_PSI, MOST_PSI))


def start(dataset: Dataset, gamma: float, initial: Array, psi: float, kappa: float) -> Plan | None:
    """Return the plan to start from: a saddle point of the run's own problem; None if there is none.

    If no policy inside D(psi) has the margin kappa, the plan is without it.
    """
    found = plan(dataset, gamma, initial, psi, kappa) or plan(dataset, gamma, initial, psi)
    return None if found is None else found._replace(lam=np.maximum(found.lam, LEAST_LAM))


def log_mixture(q: Array, mu_hat: Array, gamma: float) -> Array:
    """Return log x of a starting point with normalised occupancy q, a little of mu_hat mixed in.

    Examples
    --------
    >>> np.exp(log_mixture(np.array([1.0, 0.0]), np.array([0.5, 0.5]), 0.5)).round(5).tolist()
    [1.9999, 0.0001]
    """
    return np.log(((1 - MIXED) * q + MIXED * mu_hat) / (1 - gamma))
