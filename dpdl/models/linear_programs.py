"""Linear programs over the occupancies of a known CMDP.

Everything here is on the normalised scale: ``q = (1 - gamma) nu`` is a distribution over pairs, rewards and utilities
are averages in [-1, 1], and tolerances do not depend on the discount. An occupancy is a ``q >= 0`` with

    A' q = (1 - gamma) rho0,        A[(s, a), s'] = 1[s = s'] - gamma P(s' | s, a).

These equations imply ``sum q = 1``. With gamma close to one their right-hand sides vanish in HiGHS's tolerance, so
``sum q = 1`` takes the place of one of them; and HiGHS drops coefficients below 1e-9, so each row is divided by its
largest one. The deviation region D(psi) is ``q <= caps`` and ``sum q/caps <= N`` with ``caps = psi mu``; the unknowns
that HiGHS sees are multiples of min(1, caps), so that no coefficient grows with 1/mu.

Where episodes end, the model is `Model.closed`: its last state, the end, is neither capped nor counted by N.

An occupancy from HiGHS satisfies the equations to 1e-10. With gamma close to one, or with small transition
probabilities, the occupancy of the policy that it induces can be very different. So an answer consists of a policy,
its own occupancy (`dpdl.models.evaluation`), the value and the constraint excess of that, and an upper bound of the
value of any occupancy: it is certain if the value is within the tolerance of the bound. If it is not, HiGHS's solution
is refined, which leaves nothing that depends on HiGHS's tolerance or on the processor. What is still not certain is
ill-conditioned by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from dpdl import policy as policies
from dpdl import theory
from dpdl._validation import Array
from dpdl.models.evaluation import ending, moves, state_occupancy
from dpdl.models.highs import Solver, Standard, optimum, refined
from dpdl.models.model import Model

#: Tolerance of feasibility and optimality on the normalised scale; ten times that of HiGHS.
TOLERANCE = 1e-9
#: HiGHS drops matrix entries below this, so pairs with a smaller cap are left out; their q is below it anyway.
SMALLEST_CAP = 1e-9


@dataclass(frozen=True)
class Program:
    """Maximise gain.q + gain_t t over occupancies q <= caps and 0 <= t <= most with rows.q + rows_t t <= limits.

    Rows and caps count as satisfied if they are exceeded by no more than `TOLERANCE`.
    """

    cmdp: Model
    caps: Array
    gain: Array
    rows: sp.csr_array
    limits: Array
    gain_t: float
    rows_t: Array
    most: float

    def relaxed(self, by: float) -> Program:
        """Return the program with all limits and caps increased by this much."""
        return replace(self, limits=self.limits + by, caps=np.where(self.caps > 0, self.caps + by, 0.0))

    def best_t(self, q: Array) -> float:
        """Return the best t beside q."""
        room = self.limits - self.rows @ q
        if self.gain_t > 0:
            upper = self.rows_t > 0
            return float(np.min(room[upper] / self.rows_t[upper], initial=self.most))
        lower = self.rows_t < 0
        return float(np.max(room[lower] / self.rows_t[lower], initial=0.0))

    def value(self, q: Array) -> float:
        """Return the value of q with its best t."""
        return float(self.gain @ q) + self.gain_t * self.best_t(q)

    def excess(self, q: Array) -> float:
        """Return the largest amount by which q exceeds a row or a cap; zero if none."""
        over = self.rows @ q + self.rows_t * self.best_t(q) - self.limits
        return max(float(over.max(initial=0.0)), float((q - self.caps).max()))

    def bound(self, V: Array, w: Array) -> float:
        """Return an upper bound of the value of all feasible q and t, for any V and any w >= 0; allows for rounding.

        With the equations of an occupancy and the rows, gain.q + gain_t t is at most

            (1-gamma) rho0.V + limits.w + (gain - A V - rows'w).q + (gain_t - rows_t.w) t.
        """
        V = V - V.mean()
        left = fill(self.gain - value_drop(self.cmdp, V) - self.rows.T @ w, self.caps)
        left += self.most * max(0.0, self.gain_t - float(self.rows_t @ w))
        size = 2 + 2 * float(np.ptp(V)) + float(abs(self.limits) @ w) + float((abs(self.rows).T @ w).max())
        return float(inflow(self.cmdp) @ V + self.limits @ w) + left + 16 * np.finfo(float).eps * size

    def centred(self, V: Array, w: Array) -> Array:
        """Add the constant that the equations leave open in V: the gain at which the caps are filled, a multiplier.

        Without caps that is the largest gain, and (1-gamma) rho0.V + limits.w is `bound`, if there is no t.
        """
        gain = self.gain - value_drop(self.cmdp, V) - self.rows.T @ w
        order = np.argsort(-gain)
        filled = np.cumsum(np.minimum(self.caps[order], 1.0))
        critical = min(int(np.searchsorted(filled, 1 - TOLERANCE)), len(order) - 1)
        return V + gain[order][critical] / (1 - self.cmdp.gamma)


def fill(gain: Array, caps: Array) -> float:
    """Return the largest gain.q over the distributions q <= caps, a knapsack; -inf if there is none."""
    order = np.argsort(-gain)
    filled = np.diff(np.minimum(np.cumsum(np.minimum(caps[order], 1.0)), 1.0), prepend=0.0)
    return float(filled @ gain[order]) if filled.sum() >= 1 - TOLERANCE else -np.inf


def value_drop(cmdp: Model, V: Array) -> Array:
    """Return A V, computed from differences of V."""
    away, own = sp.coo_array(moves(cmdp)), np.repeat(V, cmdp.n_actions)
    change = np.bincount(away.row, weights=away.data * (own[away.row] - V[away.col]), minlength=len(own))
    return ending(cmdp) * own + change


# ---- The programs ----


def region(cmdp: Model, psi: float | None = None, mu: Array | None = None) -> Array:
    """Return the caps of D(psi) around mu: infinite without `mu`, and on its support when psi is infinite.

    The caps of a closed model, whose `mu` has the states of the problem only, allow one action in the end.
    """
    end = np.append(np.inf, np.zeros(cmdp.n_actions - 1)) if cmdp.has_end else np.empty(0)
    if mu is None or psi is None:
        return np.append(np.full(cmdp.r.size - len(end), np.inf), end)
    caps = np.multiply(psi, mu.ravel(), where=mu.ravel() > 0, out=np.zeros(mu.size))
    return np.append(np.where(caps >= SMALLEST_CAP, caps, 0.0), end)


def largest_reward(cmdp: Model, threshold: float | Array, caps: Array) -> Program:
    """Return the program of the largest reward with utilities of at least `threshold`."""
    limit = -np.clip(threshold, -2, 2)  # utilities are averages in [-1, 1], and HiGHS takes 1e20 for infinity
    rows, limits = _stacked((-_utilities(cmdp), limit), _share(cmdp, caps))
    return Program(cmdp, caps, cmdp.r.ravel(), rows, limits, 0.0, np.zeros(len(limits)), 0.0)


def largest_margin(cmdp: Model, caps: Array) -> Program:
    """Return the program of the largest worst utility; t is that utility plus one."""
    rows, limits = _stacked((-_utilities(cmdp), 1.0), _share(cmdp, caps))
    rows_t = np.repeat([1.0, 0.0], [cmdp.n_utilities, len(limits) - cmdp.n_utilities])
    return Program(cmdp, caps, np.zeros(len(caps)), rows, limits, 1.0, rows_t, 2.0)


def least_deviation(cmdp: Model, reward: float, caps: Array) -> Program:
    """Return the program of the least t <= 10 such that D(t psi) holds a safe occupancy of that reward."""
    share, limit = _share(cmdp, caps)
    ratios = sp.diags_array(_inverse(caps), format="csr")[np.flatnonzero(caps)]
    rows, limits = _stacked((-_utilities(cmdp), 0.0), (-cmdp.r.reshape(1, -1), -reward), (ratios, 0.0), (share, 0.0))
    rows_t = np.repeat([0.0, -1.0, -limit], [cmdp.n_utilities + 1, len(limits) - cmdp.n_utilities - 2, 1])
    return Program(cmdp, 10 * caps, np.zeros(len(caps)), rows, limits, -1.0, rows_t, 10.0)


def least_excess(program: Program) -> Program:
    """Return the program of the least increase t of all limits and caps that makes it feasible; always solvable."""
    capped = np.flatnonzero(program.caps < 1)
    ones = sp.eye_array(len(program.caps), format="csr")[capped]
    loosest = program.limits - np.minimum(0.0, program.most * program.rows_t)
    rows, limits = _stacked((program.rows, loosest), (ones, program.caps[capped]))
    most = float(abs(rows).max() + abs(limits).max()) if len(limits) else 0.0
    free, nothing = np.full(len(program.caps), np.inf), np.zeros(len(program.caps))
    return Program(program.cmdp, free, nothing, rows, limits, -1.0, -np.ones(len(limits)), most)


def _stacked(*blocks: tuple[Any, Any]) -> tuple[sp.csr_array, Array]:
    matrices = [sp.csr_array(rows) for rows, _ in blocks]
    limits = [np.broadcast_to(limit, rows.shape[:1]) for rows, (_, limit) in zip(matrices, blocks, strict=True)]
    return sp.csr_array(sp.vstack(matrices)), np.concatenate(limits)


def _utilities(cmdp: Model) -> Array:
    return cmdp.u.reshape(cmdp.n_utilities, cmdp.r.size)


def _inverse(caps: Array) -> Array:
    return np.divide(1, caps, where=caps > 0, out=np.zeros(len(caps)))


def _share(cmdp: Model, caps: Array) -> tuple[Array, float]:
    """Return the row and the limit of sum q/caps <= N, divided so that moving each q by d moves the row by d."""
    inverse = _inverse(caps)
    total = inverse.sum()
    return (inverse[None] / total, sparsity(cmdp) / total) if total > 0 else (np.empty((0, len(caps))), 0.0)


def sparsity(cmdp: Model) -> int:
    """Return calligraphic N of a model."""
    return theory.sparsity(cmdp.n_states - cmdp.has_end, cmdp.n_actions, cmdp.n_utilities)


# ---- Their answers ----


class Bound(NamedTuple):
    """An upper bound of the values of a program, with the V and the multipliers w of the rows that it comes from."""

    value: float
    V: Array
    w: Array


@dataclass(frozen=True)
class Answer:
    """A policy and its occupancy, evaluated as a solution of a program."""

    policy: Array
    q: Array
    value: float
    excess: float
    proof: Bound

    @property
    def bound(self) -> float:
        """No feasible point has a larger value."""
        return self.proof.value

    @property
    def feasible(self) -> bool:
        """Whether it meets the constraints within the tolerance."""
        return bool(self.excess <= TOLERANCE)

    @property
    def certain(self) -> bool:
        """Whether it is feasible and optimal within the tolerance."""
        return bool(self.feasible and self.bound <= self.value + TOLERANCE)


def solve(program: Program) -> Answer | Bound:
    """Solve a program. The answer may be uncertain; if there is certainly no feasible point, it is a proof of that.

    The proof is a negative bound of the least excess.
    """
    for solver in (optimum, refined):
        answer = _by_highs(program, solver)
        if answer.certain:
            return answer
    nearest = _by_highs(least_excess(program), refined)
    if nearest.bound < -TOLERANCE:
        return nearest.proof
    return answer if answer.feasible else judged(program, nearest.policy, answer.proof)


def judged(program: Program, policy: Array, bound: Bound | None = None) -> Answer:
    """Evaluate a policy as a solution of a program whose values have this upper bound."""
    if bound is None:
        bound = Bound(np.inf, np.full(program.cmdp.n_states, np.nan), np.full(len(program.limits), np.nan))
    p, error = state_occupancy(program.cmdp, policy)
    q = (p[:, None] * policy).ravel()
    return Answer(policy, q, program.value(q) - error, program.excess(q) + error, bound)


def multipliers(program: Program, proof: Bound, *, infeasible: bool = False) -> tuple[Array, Array]:
    """Return V, without the end of a closed model, and the multipliers of the utilities.

    If infeasible, `proof` is the proof of that, and the multipliers of all rows and caps are scaled to sum to one.
    """
    model, V, w = program.cmdp, proof.V, proof.w
    if infeasible:
        program, V, w = least_excess(program), V / w.sum(), w / w.sum()
    return program.centred(V, w)[: model.n_states - model.has_end], w[: model.n_utilities]


def _by_highs(program: Program, solver: Solver) -> Answer:
    """Judge what HiGHS proposes, given a little room if it finds no optimum without; the uniform policy if neither."""
    shape = program.cmdp.r.shape
    for attempt in (program, program.relaxed(TOLERANCE / 2)):
        proposal = propose(attempt, solver)
        if proposal is not None:
            q, V, w = proposal
            return judged(program, policies.from_occupancy(q.reshape(shape)), Bound(program.bound(V, w), V, w))
    return judged(program, policies.uniform(*shape))


class Proposal(NamedTuple):
    """An occupancy, and the multipliers for `Program.bound`."""

    q: Array
    V: Array
    w: Array


def propose(program: Program, solver: Solver) -> Proposal | None:
    """Solve by `optimum`, or by another solver such as `refined`; None if it finds no optimum.

    The equations of an occupancy are its flows, each divided by its size, and sum q = 1 in place of the largest.
    """
    cmdp, caps = program.cmdp, program.caps
    pairs = np.flatnonzero(caps)
    scale, others = np.minimum(1, caps[pairs]), np.arange(cmdp.n_states) != np.argmax(cmdp.rho0)
    flow, flow_size = _equilibrated(flow_matrix(cmdp)[others][:, pairs] * scale[None])
    rows, size = _equilibrated(sp.hstack([program.rows[:, pairs] * scale[None], program.rows_t[:, None]]))
    standard = Standard(
        cost=-np.append(program.gain[pairs] * scale, program.gain_t),
        E=sp.csr_array(sp.hstack([sp.vstack([flow, scale[None]]), sp.csc_array((cmdp.n_states, 1))])),
        b=np.append(inflow(cmdp)[others] / flow_size, 1.0),
        G=rows,
        h=program.limits / size,
        upper=np.append(np.where(caps[pairs] < 1, 1.0, np.inf), program.most),
    )
    solution = solver(standard)
    if solution is None:
        return None
    q, V = np.zeros(len(caps)), np.zeros(cmdp.n_states)  # V matters up to a constant only
    q[pairs] = scale * np.clip(solution.y[:-1], 0, None)  # solvers may violate bounds by their tolerance
    V[others] = -solution.V[:-1] / flow_size
    return Proposal(q, V, np.maximum(solution.w, 0) / size)


def flow_matrix(cmdp: Model) -> sp.csc_array:
    """Return A' as an (S, S A) sparse matrix: outflow less inflow of each state."""
    away, pairs = moves(cmdp), np.arange(cmdp.r.size)
    leaving = ending(cmdp) + np.asarray(away.sum(axis=1)).ravel()
    outflow = sp.csc_array((leaving, (pairs // cmdp.n_actions, pairs)), shape=away.shape[::-1])
    return sp.csc_array(outflow - away.T)


def inflow(cmdp: Model) -> Array:
    """Return (1 - gamma) rho0, the source of each state."""
    return (1 - cmdp.gamma) * cmdp.rho0


def _equilibrated(rows: Any) -> tuple[sp.csr_array, Array]:
    """Divide each row by its largest absolute entry, and return those; one for a row of zeros."""
    matrix = sp.csr_array(rows)
    row, size = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), np.zeros(matrix.shape[0])
    np.maximum.at(size, row, abs(matrix.data))
    size[size == 0] = 1.0
    matrix.data = matrix.data / size[row]
    return matrix, size
