"""Solutions of the programs of `dpdl.models.linear_programs` with certificates that do not depend on HiGHS.

An occupancy from HiGHS satisfies the equations to 1e-10. With gamma close to one, or with small transition
probabilities, the occupancy of the policy that it induces can be very different. So an answer consists of a policy,
its own occupancy (`dpdl.models.evaluation`), the value and the constraint excess of that, and an upper bound of the
value of any occupancy: it is certain if the value is within the tolerance of the bound.

If HiGHS's answer is not certain, it is refined (`dpdl.models.linear_programs.refined`), which leaves nothing that
depends on HiGHS's tolerance or on the processor. What is still not certain is ill-conditioned by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.models import linear_programs as programs
from dpdl.models.evaluation import state_occupancy
from dpdl.models.linear_programs import TOLERANCE, Program


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
    nearest = _by_highs(programs.least_excess(program), programs.refined)
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
        program, V, w = programs.least_excess(program), V / w.sum(), w / w.sum()
    return program.centred(V, w)[: model.n_states - model.has_end], w[: model.n_utilities]


def _by_highs(program: Program, solver: programs.Solver) -> Answer:
    """Judge what HiGHS proposes, given a little room if it finds no optimum without; the uniform policy if neither."""
    shape = program.cmdp.r.shape
    for attempt in (program, program.relaxed(TOLERANCE / 2)):
        proposal = programs.propose(attempt, solver)
        if proposal is not None:
            q, V, w = proposal
            return judged(program, policies.from_occupancy(q.reshape(shape)), Bound(program.bound(V, w), V, w))
    return judged(program, policies.uniform(*shape))
