"""Exact answers for models that are known: the references against which learning is judged.

With occupancy nu (discounted, summing to 1/(1-gamma)) and utilities u_i this module computes

* the occupancy, reward <nu, r> and utilities <nu, u_i> of a policy, by a linear solve with a verified residual;
* the best safe policy (LP (3) of the paper), for J^u_i >= kappa and inside D(psi) if asked: (1-gamma) nu <= psi mu
  and sum (1-gamma) nu/mu <= N psi, with N the sparsity min(S + I, S A);
* the Slater constant, (1-gamma) max_nu min_i <nu, u_i>, and the concentrability C*, the least psi for which D(psi)
  holds an optimal occupancy (assumptions 2 and 3);
* the Lagrangian game's gradients, penalised objective, value and gap (`dpdl.models.saddle` states them);
* the plug-in model of a data set, the baseline that needs no theory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl.data.records import chunks
from dpdl.models import linear_programs as programs
from dpdl.models.saddle import gap, lagrangian_gradient, penalised_objective, saddle_value

if TYPE_CHECKING:
    from dpdl.data.dataset import Dataset
    from dpdl.models.cmdp import CMDP

__all__ = [
    "Evaluation",
    "Solution",
    "concentrability",
    "evaluate",
    "gap",
    "lagrangian_gradient",
    "penalised_objective",
    "plug_in",
    "saddle_value",
    "slater",
    "solve",
]

Array = NDArray[np.float64]

#: Residual (1-norm, against occupancies that sum to one) at which a policy's occupancy is accepted.
RESIDUAL = 1e-13
#: Up to this many states a dense factorisation is quicker than anything sparse.
_DENSE_STATES = 1000


@dataclass(frozen=True)
class Evaluation:
    """What a policy is worth.

    Attributes
    ----------
    reward : float
        Expected discounted reward J.
    utilities : ndarray, shape (I,)
        Expected discounted utilities J^u_i; the policy is safe if none is negative.
    occupancy : ndarray, shape (S, A)
        Expected discounted visits, summing to 1/(1-gamma).
    """

    reward: float
    utilities: Array
    occupancy: Array


@dataclass(frozen=True)
class Solution:
    """The best safe policy, or the news that there is none.

    Attributes
    ----------
    status : {"optimal", "infeasible"}
        If "infeasible", every number below is NaN (the arrays keep their shapes).
    reward : float
        Expected discounted reward of `policy`.
    utilities : ndarray, shape (I,)
        Expected discounted utilities of `policy`.
    occupancy : ndarray, shape (S, A)
        Discounted occupancy of `policy`.
    policy : ndarray, shape (S, A)
        Action probabilities; uniform in states that the policy never reaches.
    """

    status: str
    reward: float
    utilities: Array
    occupancy: Array
    policy: Array


def evaluate(cmdp: CMDP, policy: ArrayLike) -> Evaluation:
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
    The normalised state occupancy p solves p = (1-gamma) rho0 + gamma P_pi' p. An approximation whose
    residual has 1-norm d is within d/(1-gamma) of it; d is brought to rounding, and never above 1e-13: a
    failure to do so raises ``RuntimeError``. Sparse factors of random graphs fill in, so large models go to
    GMRES. It starts from p = rho0, whose residual sums to zero, as do all later ones: the slowest direction,
    of rate gamma, never enters, and what remains is the chain's mixing. Chains that mix slowly have sparse
    factors as a rule, and go to a sparse LU.

    Examples
    --------
    >>> from dpdl.models.cmdp import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> evaluate(one_state, [[0.25, 0.75]])
    Evaluation(reward=0.5, utilities=array([1.]), occupancy=array([[0.5, 1.5]]))
    """
    pi = check.policy_array("policy", policy, cmdp.n_states, cmdp.n_actions)
    pi = pi / pi.sum(axis=1, keepdims=True)
    occupancy = _state_occupancy(cmdp, pi)[:, None] * pi / (1 - cmdp.gamma)
    return Evaluation(
        reward=float(np.vdot(occupancy, cmdp.r)),
        utilities=np.einsum("isa,sa->i", cmdp.u, occupancy),
        occupancy=occupancy,
    )


def solve(cmdp: CMDP, kappa: float = 0.0, psi: float | None = None, mu: ArrayLike | None = None) -> Solution:
    """Find the best policy with J^u_i >= kappa for every i.

    Parameters
    ----------
    cmdp : CMDP
    kappa : float
        Conservatism.
    psi : float, optional
        With `mu`: consider only policies in Pi(psi), those whose occupancy lies in D(psi).
    mu : array_like, shape (S, A), optional
        Where the data lies, a distribution.

    Returns
    -------
    Solution
        The figures are those of the returned policy, evaluated exactly; it meets the constraints to about
        1e-9/(1-gamma).

    Examples
    --------
    >>> from dpdl.models.cmdp import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> best = solve(one_state)
    >>> best.status, round(best.reward, 9), best.policy.round(9)
    ('optimal', 1.0, array([[0.5, 0.5]]))
    >>> solve(one_state, kappa=2.5).status
    'infeasible'
    """
    threshold = (1 - cmdp.gamma) * check.real("kappa", kappa)
    where = _region(cmdp, psi, mu)
    q = _best_occupancy(cmdp, threshold, where)
    if q is None:
        shape = (cmdp.n_states, cmdp.n_actions)
        return Solution(
            "infeasible",
            np.nan,
            np.full(cmdp.n_utilities, np.nan),
            np.full(shape, np.nan),
            np.full(shape, np.nan),
        )
    policy = policies.from_occupancy(q.reshape(cmdp.n_states, cmdp.n_actions))
    value = evaluate(cmdp, policy)
    return Solution("optimal", value.reward, value.utilities, value.occupancy, policy)


def slater(cmdp: CMDP, psi: float | None = None, mu: ArrayLike | None = None) -> float:
    """Return the largest constant for which Slater's condition holds: (1-gamma) max over policies of min_i J^u_i.

    Negative if no policy is safe. With `psi` and `mu`, over the policies in Pi(psi), and -inf if there is
    none.

    Examples
    --------
    >>> from dpdl.models.cmdp import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 0.5]]], gamma=0.5, rho0=[1.0])
    >>> round(slater(one_state), 9)
    0.5
    """
    if cmdp.n_utilities == 0:
        raise ValueError("cmdp has no utilities, so Slater's condition says nothing about it")
    return programs.best_margin(cmdp, _region(cmdp, psi, mu))


def concentrability(cmdp: CMDP, mu: ArrayLike) -> float:
    """Return C*, the least psi for which some optimal policy lies in Pi(psi); inf if `mu` covers no optimal policy.

    Parameters
    ----------
    cmdp : CMDP
        Must have a safe policy.
    mu : array_like, shape (S, A)
        Where the data lies, a distribution.

    Notes
    -----
    Optimal means: within 1e-9/(1-gamma) of the best reward. An action that costs less than that counts as a
    tie; otherwise C* is low by a relative error of about 1e-9 over the loss that straying from the optimum
    causes.

    Examples
    --------
    >>> from dpdl.models.cmdp import CMDP
    >>> one_state = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[1.0, 1.0]]], gamma=0.5, rho0=[1.0])
    >>> round(concentrability(one_state, [[0.25, 0.75]]), 6)
    4.0
    >>> concentrability(one_state, [[0.0, 1.0]])
    inf
    """
    data = check.distribution("mu", mu, (cmdp.n_states, cmdp.n_actions))
    best = _best_occupancy(cmdp, 0.0, programs.region(cmdp))
    if best is None:
        raise ValueError("cmdp has no safe policy, so it has no optimal one to cover")
    reward = float(best @ cmdp.r.ravel()) - programs.TOLERANCE
    support = data.ravel() > 0
    covered: Array | None = best
    if best[~support].any():
        covered = _best_occupancy(cmdp, 0.0, programs.region(cmdp, np.inf, data))
    if covered is None or covered @ cmdp.r.ravel() < reward:
        return np.inf
    ratios = np.divide(covered, data.ravel(), where=support, out=np.zeros(data.size))
    psi = max(1.0, float(ratios.max()))
    # The answer must be of order one in the program's own units, or HiGHS's absolute tolerance shows in it.
    for _ in range(50):
        scale, psi = psi, max(1.0, programs.least_deviation(cmdp, reward, data, psi))
        if 0.1 * scale <= psi <= 10 * scale:
            break
    return psi


def plug_in(dataset: Dataset, gamma: float, rho0: ArrayLike) -> CMDP:
    """Return the model that takes observed frequencies and means for the truth.

    Pairs that the data does not show are worst-case: they pay reward and utilities -1 and never leave their
    state.

    Examples
    --------
    >>> from dpdl.data.dataset import Dataset
    >>> data = Dataset([0, 0], [0, 0], [0, 1], [1.0, 0.0], [[1.0], [1.0]], n_states=2, n_actions=1)
    >>> model = plug_in(data, gamma=0.5, rho0=[1.0, 0.0])
    >>> model.P.toarray().tolist(), model.r.tolist()
    ([[0.5, 0.5], [0.0, 1.0]], [[0.5], [-1.0]])
    """
    from dpdl.models.cmdp import CMDP

    n_states, n_pairs = dataset.n_states, dataset.n_states * dataset.n_actions
    # In chunks: memory goes with the pairs and the distinct transitions, not with the length of the log.
    moves, totals = sp.csr_array((n_pairs, n_states)), np.zeros((1 + dataset.n_utilities, n_pairs))
    for part in chunks(dataset.records, at_least=n_pairs):
        flat = dataset.table[part["pair"]]
        moves += sp.coo_array((np.ones(len(flat)), (flat, part["s_next"])), shape=moves.shape).tocsr()
        for total, values in zip(totals, (part["r"], *part["u"].T), strict=True):
            total += np.bincount(flat, weights=values, minlength=n_pairs)
    counts = np.zeros(n_pairs)
    counts[dataset.pairs] = dataset.counts
    unseen = np.flatnonzero(counts == 0)
    moves += sp.coo_array((np.ones(len(unseen)), (unseen, unseen // dataset.n_actions)), shape=moves.shape).tocsr()
    counts[unseen], totals[:, unseen] = 1, -1
    moves.data /= np.repeat(counts, np.diff(moves.indptr))
    means = np.clip(totals / counts, -1, 1)  # a mean of ones may round above one
    r, *u = means.reshape(-1, n_states, dataset.n_actions)
    return CMDP(P=moves, r=r, u=np.reshape(u, (-1, *r.shape)), gamma=gamma, rho0=rho0)


def _state_occupancy(cmdp: CMDP, policy: Array) -> Array:
    n_states, n_actions = policy.shape
    pairs = np.arange(n_states * n_actions + 1)
    mixing = sp.csr_array((policy.ravel(), pairs[:-1], pairs[::n_actions]), shape=(n_states, n_states * n_actions))
    inward = sp.csr_array((mixing @ cmdp.P).T) * cmdp.gamma
    matrix = sp.csc_array(sp.eye_array(n_states) - inward)
    inflow = (1 - cmdp.gamma) * cmdp.rho0

    def refined(correction: Callable[[Array], Array]) -> Array | None:
        """Correct rho0 until the residual no longer halves: by then it is rounding, or the method has failed."""
        p, residual = cmdp.rho0, np.inf
        for _ in range(10):
            p = np.clip(p + correction(inflow - p + inward @ p), 0, None)
            p = inflow + inward @ (p / p.sum())
            previous, residual = residual, float(abs(inflow - p + inward @ p).sum())
            if not residual <= previous / 2:
                break
        return p if residual <= RESIDUAL else None

    def iterative(residual: Array) -> Array:
        update, failed = scipy.sparse.linalg.gmres(matrix, residual, rtol=1e-9, restart=50, maxiter=4)
        return np.full(n_states, np.nan) if failed else update

    if n_states <= _DENSE_STATES:
        factors = scipy.linalg.lu_factor(matrix.toarray())
        p = refined(lambda residual: scipy.linalg.lu_solve(factors, residual))
    else:
        p = refined(iterative)
        if p is None:
            p = refined(scipy.sparse.linalg.splu(matrix).solve)
    if p is None:
        raise RuntimeError(f"the policy's occupancy could not be computed to a residual of {RESIDUAL}")
    return p


def _best_occupancy(cmdp: CMDP, threshold: float, where: programs.Region) -> Array | None:
    """Return the normalised occupancy of largest reward with utilities >= threshold; None if there is none."""
    q = programs.maximise_reward(cmdp, threshold, where)
    if q is not None:
        return q
    margin = programs.best_margin(cmdp, where)
    if margin < threshold - programs.TOLERANCE:
        return None
    # Feasible, yet HiGHS found no optimum: the constraints leave no room, and it needs as much as its own
    # tolerance.
    q = programs.maximise_reward(cmdp, min(threshold, margin) - programs.TOLERANCE, where)
    if q is None:
        raise RuntimeError("HiGHS could not solve a linear program that has a feasible point")
    return q


def _region(cmdp: CMDP, psi: float | None, mu: ArrayLike | None) -> programs.Region:
    if (psi is None) != (mu is None):
        raise ValueError("psi and mu must be given together, or neither")
    if psi is None or mu is None:
        return programs.region(cmdp)
    shape = (cmdp.n_states, cmdp.n_actions)
    return programs.region(cmdp, check.real("psi", psi, at_least=1), check.distribution("mu", mu, shape))
