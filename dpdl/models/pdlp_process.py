"""The process in which `dpdl.models.pdlp` runs highspy: a linear program comes in, its solution goes out.

HiGHS' PDLP cannot be interrupted, and a process can be ended at any time. This file is run by its path, so it imports
nothing of the package.
"""

import io
import json
import sys
from typing import Any

import numpy as np


def main() -> None:
    """Solve the program that comes in."""
    import highspy

    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as given:
        arrays = dict(given)
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = len(arrays["row_lower"]), len(arrays["cost"])
    program.col_cost_, program.col_lower_, program.col_upper_ = arrays["cost"], 0 * arrays["cost"], arrays["upper"]
    program.row_lower_, program.row_upper_ = arrays["row_lower"], arrays["row_upper"]
    matrix = program.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kColwise
    matrix.start_, matrix.index_, matrix.value_ = arrays["indptr"], arrays["indices"], arrays["data"]
    solver = highspy.Highs()
    solver.silent()
    options: dict[str, Any] = json.loads(str(arrays["options"]))
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(program)
    solver.run()
    solution = solver.getSolution()
    valid = solution.value_valid and solution.dual_valid
    y, duals = (np.array(values if valid else [], np.float64) for values in (solution.col_value, solution.row_dual))
    np.savez(sys.stdout.buffer, y=y, duals=duals)


if __name__ == "__main__":
    main()
