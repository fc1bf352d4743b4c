"""Linear programs solved by scipy's HiGHS, to its tolerance or to rounding, until a deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from dpdl._validation import Array

_TOLERANCES = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
#: With more equations than this the interior-point method (with crossover) is quicker than the simplex method.
_SIMPLEX_ROWS = 500
#: How often a solution is refined, and by how much residuals are magnified for that.
_REFINEMENTS, _MAGNIFICATION = 2, 2.0**24
#: The status of scipy's linprog if time runs out.
_OUT_OF_TIME = 1


class Standard(NamedTuple):
    """Minimise cost.y over 0 <= y <= upper with E y = b and G y <= h."""

    cost: Array
    E: sp.csr_array
    b: Array
    G: sp.csr_array
    h: Array
    upper: Array
    deadline: float = math.inf

    def linprog(self, *arguments: Any, **keywords: Any) -> Any:
        """Solve a program of about this size before this deadline."""
        method = "highs-ds" if len(self.b) <= _SIMPLEX_ROWS else "highs-ipm"
        return linprog(*arguments, method=method, deadline=self.deadline, **keywords)


class Optimum(NamedTuple):
    """A solution of a linear program: its unknowns, and the multipliers of its equations and of its inequalities."""

    y: Array
    V: Array
    w: Array


#: A function with the argument and the result of `optimum`.
Solver = Callable[[Standard], Optimum | None]


def optimum(program: Standard) -> Optimum | None:
    """Solve a program to HiGHS's tolerance; None unless HiGHS reports an optimum.

    The dual program comes first,

        maximise b.V - h.w - upper.z   subject to   E'V - G'w - z <= cost,   w, z >= 0,

    and its multipliers are y: the simplex method then walks from value function to value function, as policy
    iteration does, and needs a fraction of the time. The primal program is there for when that fails.
    """
    cost, E, b, G, h, upper, _ = program
    capped = np.flatnonzero(np.isfinite(upper))
    caps = sp.eye_array(len(cost), format="csc")[:, capped]
    signs = np.repeat([-np.inf, 0.0], [len(b), len(h) + len(capped)])
    dual = program.linprog(
        np.concatenate([-b, h, upper[capped]]),
        A_ub=sp.csc_array(sp.hstack([E.T, -G.T, -caps])),
        b_ub=cost,
        bounds=np.column_stack([signs, np.full(len(signs), np.inf)]),
    )
    if dual.status == 0:
        return Optimum(np.maximum(-dual.ineqlin.marginals, 0), dual.x[: len(b)], dual.x[len(b) : len(b) + len(h)])
    bounds = np.column_stack([np.zeros(len(cost)), upper])
    primal = program.linprog(cost, A_ub=G, b_ub=h, A_eq=E, b_eq=b, bounds=bounds)
    if primal.status != 0:
        return None
    return Optimum(np.asarray(primal.x), primal.eqlin.marginals, -primal.ineqlin.marginals)


def refined(program: Standard) -> Optimum | None:
    """Solve a program to rounding, by iterative refinement of `optimum`; None unless HiGHS reports an optimum.

    With slacks for the inequalities the program is: minimise cost.y over A y = b, 0 <= y <= upper. A correction dy of y
    and dp of its multipliers p solves a program of the same form,

        minimise (cost - A'p).dy   over   A dy = b - A y,   -y <= dy <= upper - y.

    HiGHS solves it in units of 1/`_MAGNIFICATION`, so that its tolerance is as much smaller in those of the program
    (Gleixner, Steffy and Wolter 2016). What is left depends on neither HiGHS nor the processor.
    """
    solution = optimum(program)
    if solution is None:
        return None
    n, slacks = len(program.cost), len(program.h)
    A = sp.csr_array(sp.block_array([[program.E, None], [program.G, sp.eye_array(slacks)]])) if slacks else program.E
    b = np.append(program.b, program.h)
    cost, upper = np.append(program.cost, np.zeros(slacks)), np.append(program.upper, np.full(slacks, np.inf))
    y = np.clip(solution.y, 0, program.upper)
    y, p = np.append(y, np.maximum(program.h - program.G @ y, 0)), np.append(solution.V, -np.maximum(solution.w, 0))
    for _ in range(_REFINEMENTS):
        correction = program.linprog(
            _MAGNIFICATION * (cost - A.T @ p),
            A_eq=A,
            b_eq=_MAGNIFICATION * (b - A @ y),
            bounds=np.column_stack([-_MAGNIFICATION * y, _MAGNIFICATION * (upper - y)]),
        )
        if correction.status != 0:
            break
        y = np.clip(y + correction.x / _MAGNIFICATION, 0, upper)
        p = p + correction.eqlin.marginals / _MAGNIFICATION
    return Optimum(y[:n], p[: len(program.b)], -p[len(program.b) :])


def linprog(*arguments: Any, deadline: float = math.inf, **keywords: Any) -> Any:
    """Solve a linear program with `scipy.optimize.linprog`; TimeoutError at the deadline, by `time.monotonic`."""
    import scipy.optimize  # here, because it makes `import dpdl` slow

    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("there was no time left for a linear program")
    limit = {} if math.isinf(left) else {"time_limit": left}
    solution = scipy.optimize.linprog(*arguments, options=_TOLERANCES | limit, **keywords)
    if limit and solution.status == _OUT_OF_TIME:
        raise TimeoutError("a linear program ran out of time")
    return solution
