"""Values of policies on a known model, and optimal safe policies; `dpdl.exact` states the problems."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.models import highs
from dpdl.models import linear_programs as programs
from dpdl.models.evaluation import Rows, state_occupancy
from dpdl.models.model import Model
from dpdl.models.planner import Planner
from dpdl.models.solution import Evaluation, Solution

#: From this many pairs on, the planner is taken by default: there it is quicker than the linear program.
PLANNER_PAIRS = 2000
#: Up to this many pairs scipy's HiGHS is quick. It is with 10,000 on problems that mix fast, and takes 40 s on others.
LP_PAIRS = 5000
#: The accuracy of a value without which there is no answer.
_SHOWN = 1e-6


def evaluate(cmdp: Model, policy: ArrayLike) -> Evaluation:
    """Evaluate a policy on a known model.

    Parameters
    ----------
    cmdp : CMDP
    policy : array_like, shape (S, A)
        Action probabilities in each state.

    Returns
    -------
    Evaluation

    Notes
    -----
    Up to 1000 states each entry of the occupancy has a relative error of some 1e-14, whatever gamma is and
    however small the transition probabilities are; the probability of staying in a state is taken to be what
    those of leaving it leave to one. Beyond, the occupancy is within some 1e-15/(1-gamma)^2 in the 1-norm, and
    ``RuntimeError`` is raised if it cannot be shown to be within 1e-6/(1-gamma).

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> evaluate(one_state, [[0.25, 0.75]])
    Evaluation(reward=0.5, utilities=array([1.]), occupancy=array([[0.5, 1.5]]))
    """
    pi = check.policy_array("policy", policy, cmdp.n_states, cmdp.n_actions)
    pi = pi / pi.sum(axis=1, keepdims=True)
    occupancy = state_occupancy(cmdp, pi)[0][:, None] * pi / (1 - cmdp.gamma)
    return Evaluation(
        reward=float(np.vdot(occupancy, cmdp.r)),
        utilities=np.einsum("isa,sa->i", cmdp.u, occupancy),
        occupancy=occupancy,
    )


def solve(
    cmdp: Model,
    kappa: float = 0.0,
    psi: float | None = None,
    mu: ArrayLike | None = None,
    method: str = "auto",
    tol: float = 0.0,
    *,
    time_limit: float | None = None,
    progress: bool | None = None,
) -> Solution:
    """Find the best policy with J^u_i >= kappa for every i.

    Parameters
    ----------
    cmdp : CMDP
    kappa : float
        Conservatism.
    psi : float, optional
        With `mu`: consider only policies in Pi(psi), those whose occupancy lies in D(psi).
    mu : array_like, shape (S, A), optional
        The data distribution.
    method : {"auto", "planner", "lp"}
        "lp": one linear program over occupancies, which takes minutes beyond some 5,000 pairs. "planner": column
        generation over policies (`dpdl.models.planner`), which knows no `psi`. "auto" takes what measures quicker: the
        linear program with `psi` and up to 2,000 pairs, the planner otherwise. Up to 5,000 pairs it tries the linear
        program as well if the planner's answer is inaccurate.
    tol : float
        Relative gap that the planner may leave; it is then quicker.
    time_limit : float, optional
        Seconds, after which the status is "limit". The planner then returns the best policy so far, with bounds; a
        linear program has nothing to return.
    progress : bool, optional
        Show the planner's bounds in a line on standard error after two seconds; by default if that is a terminal.

    Returns
    -------
    Solution
        Look at its `status`. The figures are those of the returned policy; bounds and multipliers come with it, and
        a proof if no policy is safe. Also after Ctrl-C, with status "interrupted", if the planner has found a safe
        policy by then; otherwise, and from linear programs, it raises KeyboardInterrupt.

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> best = solve(one_state)
    >>> best.status, round(best.reward, 9), best.policy.round(9)
    ('optimal', 1.0, array([[0.5, 0.5]]))
    >>> round(best.upper, 9), best.lam.round(9)
    (1.0, array([0.5]))
    >>> solve(one_state, kappa=2.5).status
    'infeasible'
    """
    kappa = check.real("kappa", kappa)
    method = check.choice("method", method, ("auto", "planner", "lp"))
    tol = check.real("tol", tol, at_least=0)
    seconds, progress = check.seconds("time_limit", time_limit), check.optional_flag("progress", progress)
    deadline, planned, bounded = time.monotonic() + seconds, None, psi is not None or mu is not None
    if method == "planner" and bounded:
        raise ValueError("method 'planner' knows no psi and mu: use 'lp'")
    model, reward_size, sizes = cmdp.normalised()
    if method == "planner" or (method == "auto" and not bounded and cmdp.r.size >= PLANNER_PAIRS):
        planner = Planner(Rows.of(model), tol, deadline=deadline, progress=progress)
        planned = _restored(planner.plan(kappa / sizes, interruptible=True), reward_size, sizes)
        if method == "planner" or planned.status != "inaccurate" or cmdp.r.size > LP_PAIRS:
            return planned
    closed = model.closed()
    program = programs.largest_reward(closed, (1 - cmdp.gamma) * kappa / sizes, _caps(closed, psi, mu, cmdp.r.shape))
    try:
        with highs.time_limit(deadline - time.monotonic()):
            answer = programs.solve(program)
    except (TimeoutError, KeyboardInterrupt) as stop:
        if planned is not None:
            return planned if isinstance(stop, TimeoutError) else replace(planned, status="interrupted")
        if isinstance(stop, KeyboardInterrupt):
            raise
        return _without_policy(model, "limit", np.full(cmdp.n_states, np.nan), np.full(cmdp.n_utilities, np.nan))
    if isinstance(answer, programs.Bound):
        proof = programs.multipliers(program, answer, infeasible=True)
        return _restored(_without_policy(model, "infeasible", *proof), reward_size, sizes)
    policy, (V, lam) = answer.policy[: cmdp.n_states], programs.multipliers(program, answer.proof)
    value, unit = evaluate(model, policy), 1 - cmdp.gamma
    solution = Solution(
        status="optimal" if answer.certain else "inaccurate",
        reward=value.reward,
        utilities=value.utilities,
        occupancy=value.occupancy,
        policy=policy,
        lower=float(answer.value / unit) if answer.feasible else -np.inf,
        upper=float(answer.bound / unit),
        lam=lam,
        V=V,
    )
    solution = _restored(solution, reward_size, sizes)
    return solution if planned is None or solution.gap <= planned.gap else planned


def _without_policy(model: Model, status: str, V: Array, lam: Array) -> Solution:
    nothing, utilities = np.full(model.r.shape, np.nan), np.full(model.n_utilities, np.nan)
    lower, upper = (np.nan, np.nan) if status == "infeasible" else (-np.inf, np.inf)
    return Solution(status, np.nan, utilities, nothing, nothing.copy(), lower, upper, lam, V)


def _restored(solution: Solution, reward: float, utilities: Array) -> Solution:
    """The solution of `Model.normalised`, which was divided by these sizes, as that of the model itself."""
    lam = solution.lam / utilities
    size = reward
    if solution.status == "infeasible":  # a proof by the utilities alone, whose weights keep their sum
        size = float(solution.lam.sum() / lam.sum()) if lam.any() else 1.0
    least, most = (utilities.min(), utilities.max()) if len(utilities) else (1.0, 1.0)
    lower, upper = solution.slater
    return replace(
        solution,
        reward=reward * solution.reward,
        utilities=utilities * solution.utilities,
        lower=reward * solution.lower,
        upper=reward * solution.upper,
        lam=size * lam,
        V=size * solution.V,
        slater=(lower * (least if lower > 0 else most), upper * (most if upper > 0 else least)),
    )


def slater(cmdp: Model, psi: float | None = None, mu: ArrayLike | None = None) -> float:
    """Return the largest constant for which Slater's condition holds: (1-gamma) max over policies of min_i J^u_i.

    Negative if no policy is safe. With `psi` and `mu`, over the policies in Pi(psi), and -inf if there is
    none. To 1e-9 of the largest utility, as a rule; ``RuntimeError`` if not even 1e-6 can be shown, which may happen
    where `solve` says "inaccurate".

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 0.5]]], gamma=0.5, rho0=[1.0])
    >>> round(slater(one_state), 9)
    0.5
    """
    if cmdp.n_utilities == 0:
        raise ValueError("cmdp has no utilities, so Slater's condition says nothing about it")
    model, _, sizes = cmdp.normalised(alike=True)
    size = float(sizes[0])
    if psi is None and mu is None and cmdp.r.size >= PLANNER_PAIRS:
        lower, upper = Planner(Rows.of(model), progress=None).most_careful(np.zeros(cmdp.n_utilities), 0.0).slater
        if upper - lower <= _SHOWN:
            return size * lower
    closed = model.closed()
    answer = programs.solve(programs.largest_margin(closed, _caps(closed, psi, mu, cmdp.r.shape)))
    return -np.inf if isinstance(answer, programs.Bound) else size * (_shown(answer, "the Slater constant") - 1)


def concentrability(cmdp: Model, mu: ArrayLike) -> float:
    """Return C*, the least psi for which some optimal policy lies in Pi(psi); inf if `mu` covers no optimal policy.

    Parameters
    ----------
    cmdp : CMDP
        Must have a safe policy.
    mu : array_like, shape (S, A)
        The data distribution.

    Notes
    -----
    Optimal means: within 1e-9/(1-gamma) of the best reward, in units of the largest reward of a step. An action that
    costs less than that counts as a tie; otherwise C* is low by a relative error of about 1e-9 over the loss that
    straying from the optimum causes. ``RuntimeError`` if it cannot be shown to 1e-3, which may happen where `solve`
    says "inaccurate".

    Examples
    --------
    >>> from dpdl import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> round(concentrability(one_state, [[0.25, 0.75]]), 6)
    4.0
    >>> concentrability(one_state, [[0.0, 1.0]])
    inf
    """
    data = check.distribution("mu", mu, (cmdp.n_states, cmdp.n_actions))
    closed = cmdp.normalised()[0].closed()
    best = programs.solve(programs.largest_reward(closed, 0.0, programs.region(closed)))
    if isinstance(best, programs.Bound):
        raise ValueError("cmdp has no safe policy, so it has no optimal one to cover")
    reward = _shown(best, "the largest reward") - programs.TOLERANCE
    support = data.ravel() > 0
    covered = best
    if best.q[: data.size][~support].any():
        inside = programs.solve(programs.largest_reward(closed, 0.0, programs.region(closed, np.inf, data)))
        if isinstance(inside, programs.Bound) or _shown(inside, "the largest reward that the data covers") < reward:
            return np.inf
        covered = inside
    ratios = np.divide(covered.q[: data.size], data.ravel(), where=support, out=np.zeros(data.size))
    psi = max(1.0, float(ratios.max()))
    # The answer must be of order one in the units of the program, because HiGHS's tolerance is absolute.
    for _ in range(50):
        answer = programs.solve(programs.least_deviation(closed, reward, programs.region(closed, psi, data)))
        scale, psi = psi, max(1.0, psi * -_shown(answer, "the concentrability", 1e-3))
        if 0.1 * scale <= psi <= 10 * scale:
            break
    return psi


def _caps(closed: Model, psi: float | None, mu: ArrayLike | None, shape: tuple[int, ...]) -> Array:
    if (psi is None) != (mu is None):
        raise ValueError("psi and mu must be given together, or neither")
    if psi is None or mu is None:
        return programs.region(closed)
    return programs.region(closed, check.real("psi", psi, at_least=1), check.distribution("mu", mu, shape))


def _shown(answer: programs.Answer | programs.Bound, what: str, within: float = _SHOWN) -> float:
    """Return the value of an answer; RuntimeError unless it is shown to be optimal within this much."""
    if isinstance(answer, programs.Bound) or not (
        answer.feasible and answer.bound <= answer.value + within * max(1.0, abs(answer.value))
    ):
        raise RuntimeError(f"{what} could not be shown to {within:g}, for lack of precision")
    return answer.value
