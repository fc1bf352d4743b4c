"""Solutions of the programs of `dpdl.models.linear_programs` with certificates that do not depend on HiGHS.

An occupancy from HiGHS satisfies the equations to 1e-10. With gamma close to one, or with small transition
probabilities, the occupancy of the policy that it induces can be very different. So an answer consists of a policy, its
own occupancy (`dpdl.models.occupancy`), the value and the constraint excess of that, and an upper bound of the value of
any occupancy: it is certain if the value is within the tolerance of the bound.

If HiGHS's answer is not certain, it is refined (`dpdl.models.linear_programs.refined`), which leaves nothing that
depends on HiGHS's tolerance or on the processor. What is still not certain is ill-conditioned by itself, and solved
over mixtures of policies by column generation (Dantzig and Wolfe 1960). A small program mixes the occupancies found so
far; its multipliers price the pairs; the policy that is best at these prices is added, and gives a bound. It is found
by policy iteration, for which the advantage of an action in s needs differences V(s') - V(s). Such a difference is the
gain, in excess of the mean gain from s, on the way from s' back to s: a system without s, whose solution is accurate
even where V itself is of order 1/(1-gamma). The systems of all s are solved at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.models import linear_programs as programs
from dpdl.models.highs import linprog
from dpdl.models.linear_programs import TOLERANCE, Program
from dpdl.models.model import Model
from dpdl.models.occupancy import VISITS_ERROR, moves, state_occupancy, visits

#: Largest number of states for which mixtures are tried; the work grows with S^4, to some seconds.
MIXTURE_STATES = 50
_MIXTURE_ROUNDS = 200
_POLICY_ROUNDS = 100


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

    The proof is a negative bound of `dpdl.models.linear_programs.least_excess`.
    """
    for solver in (programs.optimum, programs.refined):
        answer = _by_highs(program, solver)
        if answer.certain:
            return answer
    small = program.cmdp.n_states <= MIXTURE_STATES
    feasibility = programs.least_excess(program)
    nearest = _by_highs(feasibility, programs.refined)
    if small and nearest.bound > max(-TOLERANCE, nearest.value + TOLERANCE / 100):
        nearest = _by_mixtures(feasibility, [nearest])
    if nearest.bound < -TOLERANCE:
        return nearest.proof
    start = [one for one in (answer, judged(program, nearest.policy, answer.proof)) if one.feasible]
    if small and start:
        return _by_mixtures(program, start)
    return start[0] if start else answer


def judged(program: Program, policy: Array, bound: Bound | None = None) -> Answer:
    """Evaluate a policy as a solution of a program whose values have this upper bound."""
    if bound is None:
        bound = Bound(np.inf, np.full(program.cmdp.n_states, np.nan), np.full(len(program.limits), np.nan))
    p, error = state_occupancy(program.cmdp, policy)
    q = (p[:, None] * policy).ravel()
    return Answer(policy, q, program.value(q) - error, program.excess(q) + error, bound)


def bound_of(program: Program, found: programs.Proposal) -> Bound:
    """The upper bound that the multipliers of a proposal give."""
    return Bound(program.bound(found.V, found.w), found.V, found.w)


def multipliers(program: Program, found: Bound, *, infeasible: bool = False) -> tuple[Array, Array]:
    """Return V, without the end of a closed model, and the multipliers of the utilities.

    If infeasible, `found` is the proof of that, and the multipliers of all rows and caps are scaled to sum to one.
    """
    model, V, w = program.cmdp, found.V, found.w
    if infeasible:
        program, V, w = programs.least_excess(program), V / w.sum(), w / w.sum()
    return program.centred(V, w)[: model.n_states - model.has_end], w[: model.n_utilities]


def _by_highs(program: Program, solver: programs.Solver) -> Answer:
    """Judge what HiGHS proposes, given a little room if it finds no optimum without; the uniform policy if neither."""
    shape = program.cmdp.r.shape
    for attempt in (program, program.relaxed(TOLERANCE / 2)):
        found = programs.propose(attempt, solver)
        if found is not None:
            policy = policies.from_occupancy(found.q.reshape(shape))
            return judged(program, policy, bound_of(program, found))
    return judged(program, policies.uniform(*shape))


def _by_mixtures(program: Program, start: list[Answer]) -> Answer:
    """Improve feasible answers by mixing their occupancies with those of more policies."""
    shape, capped = program.cmdp.r.shape, np.flatnonzero(program.caps < 1)
    limits = np.append(program.limits, program.caps[capped])
    rows_t = np.append(program.rows_t, np.zeros(len(capped)))
    room = min(one.excess for one in start) + TOLERANCE / 10  # with no room at all HiGHS may find no feasible point
    pricing = _Pricing(program.cmdp, program.caps.reshape(shape) > 0)
    q, least = np.array([one.q for one in start]), min((one.proof for one in start), key=lambda one: one.value)
    mixture = np.eye(len(start))[0]
    for _ in range(_MIXTURE_ROUNDS):
        rows = np.vstack([program.rows @ q.T, q.T[capped]])
        shift = 1 - rows.min(axis=1)  # the weights sum to one, and HiGHS drops coefficients close to zero
        master = linprog(
            -np.append(q @ program.gain, program.gain_t),
            A_ub=np.column_stack([rows + shift[:, None], rows_t]),
            b_ub=limits + shift + room,
            A_eq=np.append(np.ones(len(q)), 0.0)[None],
            b_eq=[1.0],
            bounds=[(0, None)] * len(q) + [(0, program.most)],
            method="highs-ds",
            options=programs.OPTIONS,
        )
        if master.status != 0:
            break
        mixture, w = np.maximum(master.x[:-1], 0), np.maximum(-master.ineqlin.marginals, 0)
        price = program.rows.T @ w[: len(program.limits)]
        price[capped] += w[len(program.limits) :]
        gain = program.gain - price
        found, slack, V = pricing.best(gain.reshape(shape))
        slack += program.most * max(0.0, program.gain_t - float(rows_t @ w))
        slack += VISITS_ERROR * (1 + float(abs(price).max() + abs(limits) @ w))
        bound = Bound(float(gain @ found + limits @ w) + slack, V, w[: len(program.limits)])
        least = min(least, bound, key=lambda one: one.value)
        if least.value <= TOLERANCE / 100 - master.fun or gain @ found <= (q @ gain).max() + VISITS_ERROR:
            break
        q = np.vstack([q, found])
    return judged(program, policies.from_occupancy((mixture @ q[: len(mixture)]).reshape(shape)), least)


class _Pricing:
    """Policies that are best for a gain, a number for each pair, by policy iteration from the previous policy."""

    def __init__(self, cmdp: Model, allowed: NDArray[np.bool_]) -> None:
        self.moves = moves(cmdp).toarray().reshape(*cmdp.r.shape, cmdp.n_states)
        self.cmdp, self.discount = cmdp, 1 - cmdp.gamma
        self.allowed = allowed | ~allowed.any(axis=1, keepdims=True)
        self.actions = self.allowed.argmax(axis=1)

    def best(self, gain: Array) -> tuple[Array, float, Array]:
        """Return the occupancy of a policy, a bound of how much better another can be, and V up to a constant."""
        self.actions, most, V = self._improved(gain, self.actions)
        slack = float(most.max())
        if slack > TOLERANCE / 100:
            # The gain of another policy is larger by at most its mean of the bounds of the advantages. The largest
            # bounds are mostly rounding, at actions that lead far away, which few good policies use often.
            share = np.clip(most / slack, -100.0, 1.0)
            actions, rest, _ = self._improved(share, self.actions)
            slack *= float(share.ravel() @ self._occupancy(actions)) + float(rest.max())
        return self._occupancy(self.actions), slack, V

    def _occupancy(self, actions: NDArray[np.intp]) -> Array:
        policy = np.eye(self.cmdp.n_actions)[actions]
        return (state_occupancy(self.cmdp, policy)[0][:, None] * policy).ravel()

    def _improved(self, gain: Array, actions: NDArray[np.intp]) -> tuple[NDArray[np.intp], Array, Array]:
        """Return actions none of which can be improved, bounds of the advantages of all pairs over them, and V."""
        states = np.arange(len(gain))
        for left in reversed(range(_POLICY_ROUNDS)):
            advantage, error, V = self._advantages(gain, actions)
            best = advantage.argmax(axis=1)
            better = advantage[states, best] > error[states, best]
            if left == 0 or not better.any():
                break
            actions = np.where(better, best, actions)
        return actions, advantage + error, V

    def _advantages(self, gain: Array, actions: NDArray[np.intp]) -> tuple[Array, Array, Array]:
        """Return the advantages over a policy, minus infinity where not allowed, bounds of their errors, and its V.

        V is zero in the first state.
        """
        n, states = len(gain), np.arange(len(gain))
        kernel, own = self.moves[states, actions], gain[states, actions]
        mean = self.discount * (visits(kernel, np.full(n, self.discount), np.eye(n)) @ own)
        # One system for each state s, the first index, in which s is absorbing.
        kernels, ends = np.tile(kernel, (n, 1, 1)), self.discount + kernel.T
        kernels[states, :, states] = kernels[states, states, :] = 0.0
        ways = visits(kernels, ends, np.broadcast_to(np.eye(n), (n, n, n)))
        ways[states, states] = 0.0
        change = np.einsum("sij,sj->si", ways, own - mean[:, None])  # V(i) - V(s)
        size = np.einsum("sij,sj->si", ways, abs(own) + abs(mean)[:, None])
        advantage = gain - mean[:, None] + np.einsum("sai,si->sa", self.moves, change)
        error = VISITS_ERROR * (abs(gain) + abs(mean)[:, None] + np.einsum("sai,si->sa", self.moves, size))
        advantage[states, actions] = error[states, actions] = 0.0
        advantage[~self.allowed] = -np.inf
        return advantage, error, change[0]
