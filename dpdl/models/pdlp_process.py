"""The process in which `dpdl.models.pdlp` runs highspy: a linear program comes in, its solution goes out.

HiGHS' PDLP cannot be interrupted, and a process can be ended at any time. This file is run by its path, so it imports
nothing of the package.
"""

import io
import json
import sys
from typing import Any

import numpy as np


def solved(given: dict[str, Any]) -> tuple[Any, Any]:
    """Return the unknowns and the multipliers of the rows; empty if there are none."""
    import highspy

    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = len(given["row_lower"]), len(given["cost"])
    program.col_cost_, program.col_lower_, program.col_upper_ = given["cost"], 0 * given["cost"], given["upper"]
    program.row_lower_, program.row_upper_ = given["row_lower"], given["row_upper"]
    matrix = program.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kColwise
    matrix.start_, matrix.index_, matrix.value_ = given["indptr"], given["indices"], given["data"]
    solver = highspy.Highs()
    solver.silent()
    for name, value in json.loads(str(given["options"])).items():
        solver.setOptionValue(name, value)
    solver.passModel(program)
    solver.run()
    found = solver.getSolution()
    valid = found.value_valid and found.dual_valid
    y, duals = (np.array(values if valid else [], np.float64) for values in (found.col_value, found.row_dual))
    return y, duals


if __name__ == "__main__":
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as arrays:
        answer = solved(dict(arrays))
    np.savez(sys.stdout.buffer, y=answer[0], duals=answer[1])
