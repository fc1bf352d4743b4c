"""The best safe policy near the data: the largest reward over the occupancies in D(psi), at any size.

    maximise r.q   subject to   u_i.q >= (1-gamma) kappa,   q <= psi mu,   sum q/(psi mu) <= N,   q an occupancy

The linear program goes to scipy's HiGHS while that is quick. Beyond, the planner is asked first. It knows no caps, but
few of them bind unless psi is small, and those are added as constraints when a plan exceeds them. If they are too many,
the linear program is solved all the same.

No solver is trusted. The answer is a policy with its own occupancy, computed from the model, and the upper bound is
that of weak duality for the multipliers that were found (`dpdl.models.linear_programs.Program.bound`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.models import certified, highs, planner
from dpdl.models import linear_programs as programs
from dpdl.models.linear_programs import TOLERANCE, Program
from dpdl.models.model import Model

#: Up to this many pairs scipy's HiGHS is quick. It is with 10,000 on problems that mix fast, and takes 40 s on others.
LP_PAIRS = 5000
#: How many caps the planner takes into account: at most, and more after a plan.
_MOST_CAPS, _CAPS_AT_ONCE = 60, 20


@dataclass(frozen=True, eq=False)
class Restricted:
    """The best safe policy found in D(psi), with multipliers and bounds.

    Attributes
    ----------
    q : ndarray, shape (S A,)
        Normalised occupancy, (1-gamma) times the discounted one, of the policy that was found; NaN if none was.
    V, lam : ndarray, shapes (S,), (I,)
        Multipliers of the flow and of the utilities; of the proof if infeasible, NaN if nothing was found.
    status : {"optimal", "infeasible", "inaccurate", "limit"}
        "optimal": the policy is safe and in D(psi), within 1e-9 on the normalised scale, and earns bounds[1] within the
        tolerance that was asked for. "infeasible": D(psi) has no safe policy, which was proved. "inaccurate": neither
        could be shown; look at `excess` and `bounds`. "limit": nor was there time to.
    bounds : tuple of float
        Bounds of the largest discounted reward of a safe policy in D(psi). The lower one is what the policy earns, or
        minus infinity if it leaves D(psi) or is not safe.
    excess : float
        Largest amount by which q exceeds a cap, or its utilities or sum q/caps a limit; normalised, 0 if none.
    """

    q: Array = field(repr=False)
    V: Array = field(repr=False)
    lam: Array = field(repr=False)
    status: str
    bounds: tuple[float, float]
    excess: float


def plan(
    model: Model,
    psi: float | None,
    mu: ArrayLike,
    kappa: float = 0.0,
    *,
    tol: float = 1e-3,
    time_limit: float | None = None,
    progress: bool | None = None,
) -> Restricted:
    """Find the best policy with J^u_i >= kappa for every i whose occupancy lies in D(psi) around mu.

    Parameters
    ----------
    model : CMDP
    psi : float or None
        Deviation control; None: the support of mu is all that matters.
    mu : array_like, shape (S, A)
        The data distribution.
    kappa : float
        Conservatism.
    tol : float
        Relative gap of the bounds that counts as optimal.
    time_limit : float, optional
        Seconds.
    progress : bool, optional
        As for `dpdl.models.planner.plan`; linear programs show none.

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> near = plan(one_state, psi=1.5, mu=[[0.5, 0.5]])
    >>> near.status, near.q.round(6), round(near.bounds[1], 6)
    ('optimal', array([0.75, 0.25]), 1.5)
    """
    if psi is not None:
        psi = check.real("psi", psi, at_least=1)
    kappa, tol = check.real("kappa", kappa), check.real("tol", tol, at_least=0)
    mu = check.distribution("mu", mu, (model.n_states, model.n_actions))
    seconds = check.seconds("time_limit", time_limit)
    closed = model.closed()
    caps = programs.region(closed, np.inf if psi is None else psi, mu)
    program = programs.largest_reward(closed, (1 - model.gamma) * kappa, caps)
    deadline = time.monotonic() + seconds

    try:
        with highs.time_limit(seconds):
            if model.r.size <= LP_PAIRS:
                return _by_program(model, program, tol)
            found = _by_planner(model, program, kappa, tol, deadline, progress)
            found = _by_program(model, program, tol) if found is None else found
    except TimeoutError:
        return _none(model, "limit")
    late = found.status == "inaccurate" and time.monotonic() >= deadline
    return replace(found, status="limit") if late else found


def _by_planner(
    model: Model, program: Program, kappa: float, tol: float, deadline: float, progress: bool | None
) -> Restricted | None:
    """Plan with those caps only that the plans without them exceed; None if they are too many, or time runs out.

    Each plan's upper bound is one of the problem with all caps, and a plan within all caps is its solution.
    """
    size = model.r.size
    seen = (program.caps[:size] > 0).reshape(model.r.shape)
    allowed = seen | ~seen.any(axis=1, keepdims=True)
    # The constraints besides the utilities: sum q/caps, if psi is given, and the caps.
    share = program.rows[model.n_utilities :, :size].toarray()
    rows, limits = share, program.limits[model.n_utilities :]
    while True:
        left = max(0.0, deadline - time.monotonic())
        found = planner.plan(
            model, kappa, tol, allowed=allowed, at_most=(rows, limits), time_limit=left, progress=progress
        )
        if found.status == "infeasible":
            return _none(model, "infeasible", found.V, found.lam)
        if found.status != "optimal":
            return None
        q = (1 - model.gamma) * found.occupancy.ravel()
        over = q - program.caps[:size]
        excess = max(0.0, float(over.max()), float((rows @ q - limits).max(initial=0.0)))
        if excess <= TOLERANCE:
            return Restricted(q, found.V, found.lam, "optimal", (found.lower, found.upper), excess)
        worst = np.argsort(-over, kind="stable")[:_CAPS_AT_ONCE]
        worst = worst[(over[worst] > TOLERANCE) & ~rows[len(share) :, worst].any(axis=0)]
        if not len(worst) or len(limits) + len(worst) > _MOST_CAPS:
            return None
        rows = np.concatenate([rows, np.equal.outer(worst, np.arange(size)).astype(np.float64)])
        limits = np.append(limits, program.caps[worst])


def _by_program(model: Model, program: Program, tol: float) -> Restricted:
    """Solve the linear program, or prove that it has no solution."""
    found = programs.propose(program, programs.refined)
    answer = None
    if found is not None:
        policy = policies.from_occupancy(found.q.reshape(program.cmdp.r.shape))
        answer = certified.judged(program, policy, certified.bound_of(program, found))
    if answer is None or not answer.feasible:
        feasibility = programs.least_excess(program)
        nearest = programs.propose(feasibility, programs.refined)
        proof = None if nearest is None else certified.bound_of(feasibility, nearest)
        if proof is not None and proof.value < -TOLERANCE:
            return _none(model, "infeasible", *certified.multipliers(program, proof, infeasible=True))
    if answer is None:
        return _none(model, "inaccurate")
    lower, upper = answer.value if answer.feasible else -np.inf, answer.bound
    shown = answer.feasible and upper - lower <= max(TOLERANCE, tol * max(abs(lower), abs(upper)))
    V, lam = certified.multipliers(program, answer.proof)
    unit = 1 - model.gamma
    return Restricted(
        q=answer.q[: model.r.size],
        V=V,
        lam=lam,
        status="optimal" if shown else "inaccurate",
        bounds=(float(lower / unit), float(upper / unit)),
        excess=max(0.0, answer.excess),
    )


def _none(model: Model, status: str, V: Array | None = None, lam: Array | None = None) -> Restricted:
    q = np.full(model.r.size, np.nan)
    V = np.full(model.n_states, np.nan) if V is None else V
    lam = np.full(model.n_utilities, np.nan) if lam is None else lam
    return Restricted(q, V, lam, status, (-np.inf, -np.inf if status == "infeasible" else np.inf), np.inf)
