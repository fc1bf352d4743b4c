"""Linear programs over the occupancies of a known model.

Everything here is on the normalised scale: ``q = (1 - gamma) nu`` is a distribution over pairs, rewards and utilities
are averages in [-1, 1], and tolerances do not depend on the discount. An occupancy is a ``q >= 0`` with

    A' q = (1 - gamma) rho0,        A[(s, a), s'] = 1[s = s'] - gamma P(s' | s, a).

These equations imply ``sum q = 1``. With gamma close to one their right-hand sides vanish in HiGHS's tolerance, so
``sum q = 1`` takes the place of one of them; and HiGHS drops coefficients below 1e-9, so each row is divided by its
largest one. The deviation region D(psi) is ``q <= caps`` and ``sum q/caps <= N`` with ``caps = psi mu``; the unknowns
that HiGHS sees are multiples of min(1, caps), so that no coefficient grows with 1/mu.

Where episodes end, the model is `Rows.closed`: its last state, the end, is neither capped nor counted by N.

An occupancy from HiGHS satisfies the equations to 1e-10. With gamma close to one, or with small transition
probabilities, the occupancy of the policy that it induces can be very different. So an answer consists of a policy,
its own occupancy (`dpdl.models.evaluation`), the value and the constraint excess of that, and an upper bound of the
value of any occupancy: it is certain if the value is within the tolerance of the bound. If it is not, HiGHS's solution
is refined, which leaves nothing that depends on HiGHS's tolerance or on the processor. What is still not certain is
ill-conditioned by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpdl._validation import Array
from dpdl.models.evaluation import Rows
from dpdl.models.highs import Optimum, Solver, Standard, optimum, refined

#: Tolerance of feasibility and optimality on the normalised scale; ten times that of HiGHS.
TOLERANCE = 1e-9
#: HiGHS drops matrix entries below this, so pairs with a smaller cap are left out; their q is below it anyway.
SMALLEST_CAP = 1e-9


@dataclass(frozen=True)
class Program:
    """Maximise gain.q + gain_t t over occupancies q <= caps and 0 <= t <= most with rows.q + rows_t t <= limits.

    Rows and caps count as satisfied if they are exceeded by no more than `TOLERANCE`.
    """

    model: Rows
    caps: Array
    gain: Array
    rows: sp.csr_array
    limits: Array
    gain_t: float
    rows_t: Array
    most: float
    deadline: float = np.inf

    # ---- Values and bounds ----

    def best_t(self, q: Array) -> float:
        """Return the best t beside q."""
        room = self.limits - self.rows @ q
        if self.gain_t > 0:
            upper = self.rows_t > 0
            return float(np.min(room[upper] / self.rows_t[upper], initial=self.most))
        lower = self.rows_t < 0
        return float(np.max(room[lower] / self.rows_t[lower], initial=0.0))

    def bound(self, V: Array, w: Array) -> float:
        """Return an upper bound of the value of all feasible q and t, for any V and any w >= 0; allows for rounding.

        With the equations of an occupancy and the rows, gain.q + gain_t t is at most

            (1-gamma) rho0.V + limits.w + (gain - A V - rows'w).q + (gain_t - rows_t.w) t.
        """
        V = V - V.mean()
        gain, filled = self._filled(V, w)
        if filled.sum() < 1 - TOLERANCE:
            return -np.inf
        left = float(filled @ gain) + self.most * max(0.0, self.gain_t - float(self.rows_t @ w))
        size = 2 + 2 * float(np.ptp(V)) + float(abs(self.limits) @ w) + float((abs(self.rows).T @ w).max())
        return float(inflow(self.model) @ V + self.limits @ w) + left + 16 * np.finfo(float).eps * size

    def centred(self, V: Array, w: Array) -> Array:
        """Add the constant that the equations leave open in V: the gain at which the caps are filled, a multiplier.

        Without caps that is the largest gain, and (1-gamma) rho0.V + limits.w is `bound`, if there is no t.
        """
        gain, filled = self._filled(V, w)
        critical = min(int(np.searchsorted(np.cumsum(filled), 1 - TOLERANCE)), len(gain) - 1)
        return V + gain[critical] / (1 - self.model.gamma)

    def _filled(self, V: Array, w: Array) -> tuple[Array, Array]:
        """Return gains that V and w leave, and the distribution q <= caps with the largest sum of them: a knapsack."""
        gain = self.gain - value_drop(self.model, V) - self.rows.T @ w
        order = np.argsort(-gain)
        total = np.minimum(np.cumsum(np.minimum(self.caps[order], 1.0)), 1.0)
        return gain[order], np.diff(total, prepend=0.0)

    # ---- Answers ----

    def solve(self) -> Answer:
        """Solve the program; the answer says how certain it is.

        If there is certainly no feasible point, it is that of `least_excess`, whose negative bound proves it.
        """
        for solver in (optimum, refined):
            answer = self._by_highs(solver)
            if answer.certain:
                return answer
        nearest = least_excess(self)._by_highs(refined)
        if nearest.bound < -TOLERANCE:
            return replace(nearest, infeasible=True)
        return answer if answer.feasible else self._judged(nearest.policy, answer.V, answer.w)

    def _by_highs(self, solver: Solver) -> Answer:
        """Judge what HiGHS proposes, given a little room if it finds no optimum without; if neither, any policy."""
        room = TOLERANCE / 2
        roomy = replace(self, limits=self.limits + room, caps=np.where(self.caps > 0, self.caps + room, 0.0))
        for attempt in (self, roomy):
            proposal = propose(attempt, solver)
            if proposal is not None:
                return self._judged(self.model.induced(proposal.y), proposal.V, proposal.w)
        unknown = np.full(self.model.n_states, np.nan), np.full(len(self.limits), np.nan)
        return self._judged(self.model.induced(np.zeros(len(self.caps))), *unknown)

    def _judged(self, policy: Array, V: Array, w: Array) -> Answer:
        """Evaluate a policy as a solution of the program, with the bound that these multipliers give."""
        p, error = self.model.occupancy(policy)
        q = p[self.model.state] * policy
        t = self.best_t(q)
        over = self.rows @ q + self.rows_t * t - self.limits
        excess = max(float(over.max(initial=0.0)), float((q - self.caps).max()))
        bound = np.inf if np.isnan(V).any() else self.bound(V, w)
        return Answer(self, policy, q, float(self.gain @ q) + self.gain_t * t - error, excess + error, bound, V, w)


@dataclass(frozen=True)
class Answer:
    """A policy and its occupancy q, evaluated as a solution of a program; no feasible point has more than `bound`."""

    program: Program
    policy: Array
    q: Array
    value: float
    excess: float
    bound: float
    V: Array
    w: Array
    infeasible: bool = False

    @property
    def feasible(self) -> bool:
        """Whether it meets the constraints within the tolerance."""
        return bool(self.excess <= TOLERANCE)

    @property
    def certain(self) -> bool:
        """Whether it is feasible and optimal within the tolerance."""
        return bool(self.feasible and self.bound <= self.value + TOLERANCE)

    def multipliers(self) -> tuple[Array, Array]:
        """Return V, without the end of a closed model, and the multipliers of the utilities.

        If infeasible, the multipliers of all rows and caps are scaled to sum to one.
        """
        model, total = self.program.model, self.w.sum() if self.infeasible else 1.0
        V, w = self.V / total, self.w / total
        return self.program.centred(V, w)[: model.n_states - model.has_end], w[: len(model.gains) - 1]

    def shown(self, what: str, within: float = 1e-6) -> float:
        """Return the value; RuntimeError unless it is shown to be optimal within this much."""
        if self.infeasible or not (self.feasible and self.bound <= self.value + within * max(1.0, abs(self.value))):
            raise RuntimeError(f"{what} could not be shown to {within:g}, for lack of precision")
        return self.value


def propose(program: Program, solver: Solver) -> Optimum | None:
    """Find an occupancy and multipliers for `Program.bound` by `optimum` or another solver; None if it finds none.

    The equations of an occupancy are its flows, each divided by its size, and sum q = 1 in place of the largest.
    """
    model, caps = program.model, program.caps
    pairs = np.flatnonzero(caps)
    scale, others = np.minimum(1, caps[pairs]), np.arange(model.n_states) != np.argmax(model.rho0)
    flow, flow_size = _equilibrated(flow_matrix(model)[others][:, pairs] * scale[None])
    rows, size = _equilibrated(sp.hstack([program.rows[:, pairs] * scale[None], program.rows_t[:, None]]))
    solution = solver(
        Standard(
            cost=-np.append(program.gain[pairs] * scale, program.gain_t),
            E=sp.csr_array(sp.hstack([sp.vstack([flow, scale[None]]), sp.csc_array((model.n_states, 1))])),
            b=np.append(inflow(model)[others] / flow_size, 1.0),
            G=rows,
            h=program.limits / size,
            upper=np.append(np.where(caps[pairs] < 1, 1.0, np.inf), program.most),
            deadline=program.deadline,
        )
    )
    if solution is None:
        return None
    q, V = np.zeros(len(caps)), np.zeros(model.n_states)  # V matters up to a constant only
    q[pairs] = scale * np.clip(solution.y[:-1], 0, None)  # solvers may violate bounds by their tolerance
    V[others] = -solution.V[:-1] / flow_size
    return Optimum(q, V, np.maximum(solution.w, 0) / size)


# ---- The programs ----


def region(model: Rows, psi: float | None = None, mu: Array | None = None) -> Array:
    """Return the caps of D(psi) around mu: infinite without `mu`, and on its support when psi is infinite.

    The `mu` of a closed model has the states of the problem only.
    """
    if mu is None or psi is None:
        return np.full(len(model.ends), np.inf)
    caps = np.multiply(psi, mu.ravel(), where=mu.ravel() > 0, out=np.zeros(mu.size))
    return np.append(np.where(caps >= SMALLEST_CAP, caps, 0.0), np.full(int(model.has_end), np.inf))


def largest_reward(model: Rows, threshold: float | Array, caps: Array) -> Program:
    """Return the program of the largest reward with utilities of at least `threshold`."""
    limit = -np.clip(threshold, -2, 2)  # utilities are averages in [-1, 1], and HiGHS takes 1e20 for infinity
    rows, limits = _stacked((-model.gains[1:], limit), _share(model, caps))
    return Program(model, caps, model.gains[0], rows, limits, 0.0, np.zeros(len(limits)), 0.0)


def largest_margin(model: Rows, caps: Array) -> Program:
    """Return the program of the largest worst utility; t is that utility plus one."""
    rows, limits = _stacked((-model.gains[1:], 1.0), _share(model, caps))
    n = len(model.gains) - 1
    rows_t = np.repeat([1.0, 0.0], [n, len(limits) - n])
    return Program(model, caps, np.zeros(len(caps)), rows, limits, 1.0, rows_t, 2.0)


def least_deviation(model: Rows, reward: float, caps: Array) -> Program:
    """Return the program of the least t <= 10 such that D(t psi) holds a safe occupancy of that reward."""
    share, limit = _share(model, caps)
    ratios = sp.diags_array(_inverse(caps), format="csr")[np.flatnonzero(caps)]
    rows, limits = _stacked((-model.gains[1:], 0.0), (-model.gains[:1], -reward), (ratios, 0.0), (share, 0.0))
    n = len(model.gains)
    rows_t = np.repeat([0.0, -1.0, -limit], [n, len(limits) - n - 1, 1])
    return Program(model, 10 * caps, np.zeros(len(caps)), rows, limits, -1.0, rows_t, 10.0)


def least_excess(program: Program) -> Program:
    """Return the program of the least increase t of all limits and caps that makes it feasible; always solvable."""
    capped = np.flatnonzero(program.caps < 1)
    ones = sp.eye_array(len(program.caps), format="csr")[capped]
    loosest = program.limits - np.minimum(0.0, program.most * program.rows_t)
    rows, limits = _stacked((program.rows, loosest), (ones, program.caps[capped]))
    most = float(abs(rows).max() + abs(limits).max()) if len(limits) else 0.0
    free, nothing = np.full(len(program.caps), np.inf), np.zeros(len(program.caps))
    return Program(program.model, free, nothing, rows, limits, -1.0, -np.ones(len(limits)), most, program.deadline)


def sparsity(model: Rows) -> int:
    """Return calligraphic N of a model."""
    n_states, n_rows = model.n_states - model.has_end, len(model.ends) - model.has_end
    return min(n_states + len(model.gains) - 1, n_rows)


def flow_matrix(model: Rows) -> sp.csc_array:
    """Return A' as an (S, S A) sparse matrix: outflow less inflow of each state."""
    away, n = model.moves, len(model.ends)
    leaving = model.ends + np.asarray(away.sum(axis=1)).ravel()
    outflow = sp.csc_array((leaving, (model.state, np.arange(n))), shape=(model.n_states, n))
    return sp.csc_array(outflow - away.T)


def value_drop(model: Rows, V: Array) -> Array:
    """Return A V, computed from differences of V."""
    away, own = model.moves, V[model.state]
    change = np.bincount(away.row, weights=away.data * (own[away.row] - V[away.col]), minlength=len(own))
    return model.ends * own + change


def inflow(model: Rows) -> Array:
    """Return (1 - gamma) rho0, the source of each state."""
    return (1 - model.gamma) * model.rho0


def _stacked(*blocks: tuple[Any, Any]) -> tuple[sp.csr_array, Array]:
    matrices = [sp.csr_array(rows) for rows, _ in blocks]
    limits = [np.broadcast_to(limit, rows.shape[:1]) for rows, (_, limit) in zip(matrices, blocks, strict=True)]
    return sp.csr_array(sp.vstack(matrices)), np.concatenate(limits)


def _inverse(caps: Array) -> Array:
    return np.divide(1, caps, where=caps > 0, out=np.zeros(len(caps)))


def _share(model: Rows, caps: Array) -> tuple[Array, float]:
    """Return the row and the limit of sum q/caps <= N, divided so that moving each q by d moves the row by d."""
    inverse = _inverse(caps)
    total = inverse.sum()
    return (inverse[None] / total, sparsity(model) / total) if total > 0 else (np.empty((0, len(caps))), 0.0)


def _equilibrated(rows: Any) -> tuple[sp.csr_array, Array]:
    """Divide each row by its largest absolute entry, and return those; one for a row of zeros."""
    matrix = sp.csr_array(rows)
    size = abs(matrix).max(axis=1).toarray().ravel() if matrix.shape[0] else np.zeros(0)
    size[size == 0] = 1.0
    matrix.data = matrix.data / np.repeat(size, np.diff(matrix.indptr))
    return matrix, size
