"""Linear programs over the occupancies of a known CMDP.

Everything here is on the normalised scale: ``q = (1 - gamma) nu`` is a distribution over pairs, rewards and
utilities are averages in [-1, 1], and a tolerance means the same thing whatever the discount. An occupancy is
a ``q >= 0`` with

    A' q = (1 - gamma) rho0,        A[(s, a), s'] = 1[s = s'] - gamma P(s' | s, a).

The unknowns that HiGHS sees are ``y`` with ``q = scale * y`` and ``scale = min(1, psi mu)``. Then D(psi)
reads ``y <= 1`` and ``sum share y <= N`` with ``share = scale / (psi mu) <= 1``, so that no coefficient grows
with 1/mu; more generally D(t psi) is ``share y <= t`` and ``sum share y <= N t``. Without D(psi), scale is 1
and share is 0.

An occupancy LP that cannot be satisfied is often reported as a numerical failure. Feasibility is therefore
decided by programs that always have a solution: the least flow residual, then the largest worst utility.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpdl import theory
from dpdl.models.highs import linprog

if TYPE_CHECKING:
    from dpdl.models.cmdp import CMDP

Array = NDArray[np.float64]

#: Feasibility and optimality on the normalised scale; ten times what is asked of HiGHS.
TOLERANCE = 1e-9
#: HiGHS drops matrix entries below this, so a pair whose cap is smaller is left out: it could hold no more
#: than that.
SMALLEST_CAP = 1e-9
#: With more flow rows than this the interior-point method (with crossover) is quicker than the simplex method.
_SIMPLEX_ROWS = 500
_OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True)
class Region:
    """The pairs that an occupancy may use and the scaling of their unknowns (see the module's docstring)."""

    pairs: NDArray[np.intp]
    scale: Array
    share: Array
    n_pairs: int

    @property
    def upper(self) -> Array:
        """Bounds of the unknowns; none where there is no cap, since the flow keeps q below one."""
        return np.where(self.share > 0, 1.0, np.inf)

    def occupancy(self, y: Array) -> Array:
        """Return q over all pairs; solvers leave bounds by their tolerance, occupancies must not."""
        q = np.zeros(self.n_pairs)
        q[self.pairs] = self.scale * np.clip(y, 0, None)
        return q


def region(cmdp: CMDP, psi: float | None = None, mu: Array | None = None) -> Region:
    """Return D(psi) around mu; all pairs without `mu`, and the support of `mu` when psi is infinite."""
    n_pairs = cmdp.n_states * cmdp.n_actions
    if mu is None or psi is None:
        return Region(np.arange(n_pairs), np.ones(n_pairs), np.zeros(n_pairs), n_pairs)
    caps = np.multiply(psi, mu.ravel(), where=mu.ravel() > 0, out=np.zeros(n_pairs))
    pairs = np.flatnonzero(caps >= SMALLEST_CAP)
    scale = np.minimum(1, caps[pairs])
    return Region(pairs, scale, scale / caps[pairs], n_pairs)


def flow_matrix(cmdp: CMDP) -> sp.csc_array:
    """Return A' as an (S, S A) sparse matrix: what flows out of each state less what flows in."""
    outflow = sp.kron(sp.eye_array(cmdp.n_states), np.ones((1, cmdp.n_actions)))
    return sp.csc_array(outflow - cmdp.gamma * cmdp.P.T)


def maximise_reward(cmdp: CMDP, threshold: float, where: Region) -> Array | None:
    """Return the q of largest reward whose utilities are at least `threshold`; None if HiGHS finds no optimum."""
    utility = _utilities(cmdp, where)
    y = minimise(
        -cmdp.r.ravel()[where.pairs] * where.scale,
        equal=(_flow(cmdp, where), inflow(cmdp)),
        at_most=([-utility, where.share[None]], [-np.full(len(utility), threshold), [sparsity(cmdp)]]),
        upper=where.upper,
    )
    return None if y is None else where.occupancy(y)


def flow_residual(cmdp: CMDP, where: Region) -> float:
    """Return the least 1-norm of A' q - (1 - gamma) rho0 in the region: zero exactly if it holds an occupancy."""
    n, n_states = len(where.pairs), cmdp.n_states
    identity = sp.eye_array(n_states)
    solution = minimise(
        np.concatenate([np.zeros(n), np.ones(2 * n_states)]),
        equal=(sp.hstack([_flow(cmdp, where), identity, -identity]), inflow(cmdp)),
        at_most=([np.concatenate([where.share, np.zeros(2 * n_states)])[None]], [[sparsity(cmdp)]]),
        upper=np.append(where.upper, np.full(2 * n_states, np.inf)),
    )
    return float(solved(solution, "least flow residual")[n:].sum())


def best_margin(cmdp: CMDP, where: Region) -> float:
    """Return the largest worst utility of an occupancy in the region; -inf if it holds none."""
    restricted = len(where.pairs) < where.n_pairs or where.share.any()
    if restricted and flow_residual(cmdp, where) > TOLERANCE:
        return -np.inf
    if cmdp.n_utilities == 0:
        return np.inf
    n, utility = len(where.pairs), _utilities(cmdp, where)
    solution = minimise(
        np.append(np.zeros(n), -1.0),  # the last unknown is the worst utility plus one
        equal=(sp.hstack([_flow(cmdp, where), sp.csc_array((cmdp.n_states, 1))]), inflow(cmdp)),
        at_most=(
            [np.hstack([-utility, np.ones((len(utility), 1))]), np.append(where.share, 0.0)[None]],
            [np.ones(len(utility)), [sparsity(cmdp)]],
        ),
        upper=np.append(where.upper, np.inf),
    )
    if solution is None and restricted:
        # The region holds an occupancy only within TOLERANCE, and HiGHS asks for a tenth of that: let the flow give.
        q = penalised_margin(cmdp, where, 1e4 / (1 - cmdp.gamma)).q
        return float((cmdp.u.reshape(len(utility), -1) @ q).min())
    return float(solved(solution, "largest worst utility")[-1]) - 1


class Margin(NamedTuple):
    """A nearly best worst utility: the q that has it, and the value function and weights that show no q has more."""

    q: Array
    V: Array
    weights: Array


def penalised_margin(cmdp: CMDP, where: Region, radius: float) -> Margin:
    """Maximise the worst utility less `radius` times the 1-norm of the flow's residual; always has a solution.

    The penalty keeps |V| <= radius in the dual program, so that V stays a plausible value function even where the
    region holds no occupancy.
    """
    n, n_states, utility = len(where.pairs), cmdp.n_states, _utilities(cmdp, where)
    identity = sp.eye_array(n_states)
    rest = np.zeros(2 * n_states + 1)  # outflow and inflow out of nowhere, and the worst utility plus one
    solution = optimum(
        np.concatenate([np.zeros(n), np.full(2 * n_states, radius), [-1.0]]),
        equal=(sp.hstack([_flow(cmdp, where), identity, -identity, sp.csc_array((n_states, 1))]), inflow(cmdp)),
        at_most=(
            [
                np.hstack([-utility, np.zeros((len(utility), 2 * n_states)), np.ones((len(utility), 1))]),
                np.append(where.share, rest)[None],
            ],
            [np.ones(len(utility)), [sparsity(cmdp)]],
        ),
        upper=np.append(where.upper, np.full(2 * n_states + 1, np.inf)),
    )
    if solution is None:
        raise RuntimeError("HiGHS could not solve the linear program of the penalised margin, which has a solution")
    weights = np.maximum(solution.w[: len(utility)], 0)
    return Margin(where.occupancy(solution.y[:n]), -solution.V, weights / weights.sum())


def least_deviation(cmdp: CMDP, reward: float, mu: Array, psi: float) -> float:
    """Return the least psi whose D(psi) holds a safe occupancy of at least that reward; `psi` only sets the scale."""
    where = region(cmdp, psi, mu)
    n, n_states, utility = len(where.pairs), cmdp.n_states, _utilities(cmdp, where)
    objective = cmdp.r.ravel()[where.pairs] * where.scale
    solution = minimise(
        np.append(np.zeros(n), 1.0),
        equal=(sp.hstack([_flow(cmdp, where), sp.csc_array((n_states, 1))]), inflow(cmdp)),
        at_most=(
            [
                np.hstack([-np.vstack([utility, objective]), np.zeros((len(utility) + 1, 1))]),
                sp.hstack([sp.diags_array(where.share), -np.ones((n, 1))]),
                np.append(where.share, -sparsity(cmdp))[None],
            ],
            [np.zeros(len(utility)), [-reward], np.zeros(n + 1)],
        ),
        upper=np.full(n + 1, np.inf),
    )
    return psi * float(solved(solution, "least deviation")[-1])


class Optimum(NamedTuple):
    """A solution of a linear program: its unknowns, and the multipliers of its equations and of its inequalities."""

    y: Array
    V: Array
    w: Array


def minimise(
    cost: Array, *, equal: tuple[Any, Array], at_most: tuple[Sequence[Any], Sequence[Any]], upper: Array
) -> Array | None:
    """Minimise cost.y over 0 <= y <= upper, E y = b, G y <= h; None unless HiGHS reports an optimum."""
    found = optimum(cost, equal=equal, at_most=at_most, upper=upper)
    return None if found is None else found.y


def optimum(
    cost: Array, *, equal: tuple[Any, Array], at_most: tuple[Sequence[Any], Sequence[Any]], upper: Array
) -> Optimum | None:
    """Solve the program of `minimise` with its multipliers.

    `equal` is (E, b); `at_most` holds blocks of the rows of G and of h. The dual program comes first,

        maximise b.V - h.w - upper.z   subject to   E'V - G'w - z <= cost,   w, z >= 0,

    and its multipliers are y: the simplex method then walks from value function to value function, as policy
    iteration does, and needs a fraction of the time. The primal program is there for when that fails.
    """
    method = "highs-ds" if len(equal[1]) <= _SIMPLEX_ROWS else "highs-ipm"
    E, b = sp.csc_array(equal[0]), equal[1]
    G, h = sp.csc_array(sp.vstack([sp.csr_array(block) for block in at_most[0]])), np.concatenate(at_most[1])
    capped = np.flatnonzero(np.isfinite(upper))
    caps = sp.eye_array(len(cost), format="csc")[:, capped]
    signs = np.repeat([-np.inf, 0.0], [len(b), len(h) + len(capped)])
    dual = linprog(
        np.concatenate([-b, h, upper[capped]]),
        A_ub=sp.csc_array(sp.hstack([E.T, -G.T, -caps])),
        b_ub=cost,
        bounds=np.column_stack([signs, np.full(len(signs), np.inf)]),
        method=method,
        options=_OPTIONS,
    )
    if dual.status == 0:
        return Optimum(np.maximum(-dual.ineqlin.marginals, 0), dual.x[: len(b)], dual.x[len(b) : len(b) + len(h)])
    bounds = np.column_stack([np.zeros(len(cost)), upper])
    primal = linprog(cost, A_ub=G, b_ub=h, A_eq=E, b_eq=b, bounds=bounds, method=method, options=_OPTIONS)
    if primal.status != 0:
        return None
    return Optimum(np.asarray(primal.x), primal.eqlin.marginals, -primal.ineqlin.marginals)


def solved(solution: Array | None, what: str) -> Array:
    if solution is None:
        raise RuntimeError(f"HiGHS could not solve the linear program of the {what}, which always has a solution")
    return solution


def _flow(cmdp: CMDP, where: Region) -> sp.csc_array:
    return sp.csc_array(flow_matrix(cmdp)[:, where.pairs] * where.scale[None])


def inflow(cmdp: CMDP) -> Array:
    return (1 - cmdp.gamma) * cmdp.rho0


def _utilities(cmdp: CMDP, where: Region) -> Array:
    return cmdp.u.reshape(cmdp.n_utilities, cmdp.r.size)[:, where.pairs] * where.scale


def sparsity(cmdp: CMDP) -> int:
    return theory.sparsity(cmdp.n_states, cmdp.n_actions, cmdp.n_utilities)
