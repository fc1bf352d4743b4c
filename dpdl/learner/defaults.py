"""What `learn` finds from the log when it is not told: psi, slater, T, a mixing time, and a start at the plan.

The plan is the best safe policy of the plug-in model (`CMDP.solve`), with its value function and multipliers: a saddle
point of the problem that Algorithm 1 plays on the log. If psi is given and binds, the plan is that within psi, for
models of up to CAPPED_PAIRS pairs; beyond, it is moved into the caps for the start and is no candidate for the result.

    psi      twice what the plan needs, between LEAST_PSI and MOST_PSI
    slater   half of the best worst utility on the plug-in model
    T        VISITS steps for each visited pair
    start    x = occupancy of the plan with a little mu_hat mixed in, V and lam of the plan, moved into the sets X, V, L

No theorem covers a run from there. What is returned is the better of plan and average, as judged on the plug-in model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.mixing import estimate_mixing_time
from dpdl.models.estimate import plug_in
from dpdl.models.solution import Solution
from dpdl.settings import ESTIMATE, Settings

#: psi lies between these: a larger one lets noise in, a smaller one leaves no room.
LEAST_PSI, MOST_PSI = 4.0, 300.0
#: Bounds of slater, and its value where the plug-in model says nothing.
LEAST_SLATER, MIDDLE_SLATER = 1e-3, 0.5
VISITS, LEAST_STEPS, MOST_STEPS = 1000, 100_000, 10**9
#: Share of mu_hat/(1-gamma) in the start, which must be positive everywhere, and the least multiplier in it.
MIXED, LEAST_LAM = 1e-4, 0.01
#: Relative gap of the plan, and the largest number of pairs for which it is made within a given psi.
PLAN_GAP, CAPPED_PAIRS = 1e-3, 5000
#: A share of the time that is rounding.
NOTHING = 1e-9


def plan(log: Dataset, stated: Settings, initial: Array) -> Solution | None:
    """Return the best safe policy of the plug-in model, within psi of the log if that is given and the model is small.

    Safe by kappa, if that is given. None if there is none, or none was found.
    """
    model, kappa, psi = plug_in(log, stated.gamma, initial), stated.kappa or 0.0, stated.psi
    best = model.solve(kappa, tol=PLAN_GAP)
    if (
        psi is not None
        and np.isfinite(best.reward)
        and model.r.size <= CAPPED_PAIRS
        and deviation(log, stated.gamma, best) > psi
    ):
        best = model.solve(kappa, psi=psi, mu=log.frequencies)
    return best if np.isfinite(best.reward) else None


def deviation(log: Dataset, gamma: float, aim: Solution) -> float:
    """The least psi that admits a plan: its largest occupancy relative to the frequency of the pair."""
    occupancy, seen = (1 - gamma) * aim.occupancy.ravel(), np.zeros(aim.occupancy.size)
    seen[log.pairs] = log.pair_counts / len(log)
    ratio = np.divide(occupancy, seen, where=seen > 0, out=np.where(occupancy > NOTHING, np.inf, 0.0))
    return float(ratio.max())


def completed(log: Dataset, settings: Settings, initial: Array, aim: Solution | None, n_rows: int) -> Settings:
    """Return settings in which psi, slater, T and the mixing time are given, found from the log and the plan.

    The descent has `n_rows` rows; if each is read once, there are no more steps than that.
    """
    values: dict[str, float | int] = {}
    if settings.psi is None:
        values["psi"] = _generous_psi(log, settings.gamma, aim)
    if settings.slater is None:
        values["slater"] = _careful_slater(log, settings.gamma, initial)
    if settings.T is None and settings.eps is None:
        most = n_rows if settings.order == "once" else MOST_STEPS
        values["T"] = int(min(max(VISITS * len(log.pairs), LEAST_STEPS), MOST_STEPS, most))
    if settings.mixing_time == ESTIMATE:
        values["mixing_time"] = mixing_time_bound(log, settings.delta)
    return replace(settings, **values) if values else settings  # type: ignore[arg-type]


def _generous_psi(log: Dataset, gamma: float, aim: Solution | None) -> float:
    """Twice the deviation of the plan from the log, within the bounds of psi."""
    return MOST_PSI if aim is None else float(np.clip(2 * deviation(log, gamma, aim), LEAST_PSI, MOST_PSI))


def _careful_slater(log: Dataset, gamma: float, initial: Array) -> float:
    """Half of the best worst utility on the plug-in model, within the bounds of slater."""
    if log.n_utilities == 0:
        return MIDDLE_SLATER
    try:
        margin = plug_in(log, gamma, initial).slater()
    except RuntimeError:  # it could not be shown, for lack of precision
        return MIDDLE_SLATER
    return float(np.clip(margin / 2, LEAST_SLATER, 1.0))


def mixing_time_bound(log: Dataset, delta: float) -> float:
    """The upper confidence bound, at least one step; ValueError if the log is too short for one."""
    if log.kind == "independent":
        raise ValueError("mixing_time cannot be estimated: the log holds independent transitions; see its starts")
    estimate = estimate_mixing_time(log, delta=delta)
    if not np.isfinite(estimate.upper):
        raise ValueError(f"mixing_time cannot be estimated: {estimate.message}; give a bound")
    return max(1.0, estimate.upper)


def mixed(x: Array, mu_hat: Array, gamma: float) -> Array:
    """Mix a little of mu_hat/(1-gamma) into an occupancy, so that it is positive.

    Examples
    --------
    >>> mixed(np.array([2.0, 0.0]), np.array([0.5, 0.5]), 0.5).round(5).tolist()
    [1.9999, 0.0001]
    """
    return (1 - MIXED) * x + MIXED * mu_hat / (1 - gamma)
