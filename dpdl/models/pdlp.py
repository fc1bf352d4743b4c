"""Large linear programs by the first-order method PDLP of HiGHS; needs highspy (``pip install 'dpdl[lp]'``).

Its answers are approximate, and its own word about their accuracy is not used: `dpdl.models.restricted` evaluates the
policy that they give, and bounds the optimum by weak duality.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpdl._validation import Array
from dpdl.models.linear_programs import Optimum

_TOLERANCE = 1e-5
#: Seconds between two looks for Ctrl-C while the solver runs.
_WAIT = 0.05


def optimum(
    cost: Array,
    *,
    equal: tuple[Any, Array],
    at_most: tuple[Sequence[Any], Sequence[Any]],
    upper: Array,
    time_limit: float = np.inf,
) -> Optimum | None:
    """Minimise cost.y over 0 <= y <= upper, E y = b, G y <= h, approximately; None if the solver returns no point.

    The arguments are those of `dpdl.models.linear_programs.optimum`. The solver cannot be stopped from outside: it runs
    in a thread, which Ctrl-C leaves behind until its time limit ends it.

    Examples
    --------
    >>> nothing = np.empty((0, 2)), np.empty(0)
    >>> found = optimum(np.array([1.0, 2.0]), equal=(np.ones((1, 2)), np.ones(1)), at_most=([nothing[0]], [nothing[1]]),
    ...     upper=np.array([0.25, 1.0]))
    >>> found.y.round(3), found.V.round(3)
    (array([0.25, 0.75]), array([2.]))
    """
    E, b = equal
    G, h = sp.vstack([sp.csr_array(block) for block in at_most[0]]), np.concatenate(at_most[1])
    rows, n_equations = sp.csc_array(sp.vstack([sp.csr_array(E), G])), len(b)
    program = _highspy().HighsLp()
    program.num_row_, program.num_col_ = rows.shape
    program.col_cost_, program.col_lower_, program.col_upper_ = cost, np.zeros(len(cost)), upper
    program.row_lower_ = np.append(b, np.full(len(h), -np.inf))
    program.row_upper_ = np.append(b, h)
    program.a_matrix_.format_ = _highspy().MatrixFormat.kColwise
    program.a_matrix_.start_, program.a_matrix_.index_, program.a_matrix_.value_ = rows.indptr, rows.indices, rows.data
    solution = _solved(program, time_limit)
    y, duals = np.array(solution.col_value), np.array(solution.row_dual)
    if not (solution.value_valid and solution.dual_valid and np.isfinite(y).all() and np.isfinite(duals).all()):
        return None
    return Optimum(np.clip(y, 0, upper), duals[:n_equations], -duals[n_equations:])


def _solved(program: Any, time_limit: float) -> Any:
    solver = _highspy().Highs()
    solver.silent()
    options = {
        "solver": "pdlp",
        "pdlp_optimality_tolerance": _TOLERANCE,
        "threads": 1,
        "time_limit": min(time_limit, 1e9),
    }
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(program)
    thread = threading.Thread(target=solver.run, name="dpdl-pdlp", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_WAIT)
    return solver.getSolution()


def _highspy() -> Any:
    try:
        import highspy
    except ImportError:
        raise ImportError("linear programs of this size need highspy: pip install 'dpdl[lp]'") from None
    return highspy
