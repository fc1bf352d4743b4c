"""HiGHS by its own Python interface, with the signature of `dpdl.models.highs.optimum`."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from dpdl.models.highs import Optimum, Standard


def _rows(program: Standard) -> tuple[sp.csc_array, np.ndarray, np.ndarray]:
    """The rows of equations and inequalities together, with their lower and upper limits."""
    free = np.full(len(program.h), -np.inf)
    rows = sp.csc_array(sp.vstack([program.E, program.G]))
    return rows, np.append(program.b, free), np.append(program.b, program.h)


def highs(program: Standard, **options: Any) -> Optimum | None:
    """One of the solvers of highspy, by its options; None if it returns no point."""
    import highspy

    matrix, lower, upper = _rows(program)
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = matrix.shape
    model.col_cost_, model.col_lower_, model.col_upper_ = program.cost, 0 * program.cost, program.upper
    model.row_lower_, model.row_upper_ = lower, upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_ = matrix.indptr, matrix.indices
    model.a_matrix_.value_ = matrix.data
    solver = highspy.Highs()
    solver.silent()
    for name, value in {"threads": 1, **options}.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    solver.run()
    solution = solver.getSolution()
    if not (solution.value_valid and solution.dual_valid):
        return None
    return _checked(program, np.array(solution.col_value), np.array(solution.row_dual))


def _checked(program: Standard, y: np.ndarray, duals: np.ndarray) -> Optimum | None:
    if len(y) != len(program.cost) or not (np.isfinite(y).all() and np.isfinite(duals).all()):
        return None
    n = len(program.b)
    return Optimum(np.clip(y, 0, program.upper), duals[:n], -duals[n:])
