"""Large linear programs by the first-order method PDLP of HiGHS; needs highspy (``pip install 'dpdl[lp]'``).

Its answers are approximate, and its own word about their accuracy is not used: `dpdl.models.restricted` evaluates the
policy that they give, and bounds the optimum by weak duality.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpdl._validation import Array
from dpdl.models import pdlp_process
from dpdl.models.linear_programs import Optimum

_OPTIONS = {"solver": "pdlp", "pdlp_optimality_tolerance": 1e-5, "threads": 1}


def optimum(
    cost: Array,
    *,
    equal: tuple[Any, Array],
    at_most: tuple[Sequence[Any], Sequence[Any]],
    upper: Array,
    time_limit: float = np.inf,
    apart: bool = True,
    **options: Any,
) -> Optimum | None:
    """Minimise cost.y over 0 <= y <= upper, E y = b, G y <= h, approximately; None if the solver returns no point.

    The arguments are those of `dpdl.models.linear_programs.optimum`, and options of HiGHS. The solver runs in a process
    of its own, which Ctrl-C ends; or, if not `apart`, in this one, where nothing ends it.

    Examples
    --------
    >>> none = np.empty((0, 2)), np.empty(0)
    >>> cost, equal = np.array([1.0, 2.0]), (np.ones((1, 2)), np.ones(1))
    >>> found = optimum(cost, equal=equal, at_most=([none[0]], [none[1]]), upper=np.array([0.25, 1.0]))
    >>> found.y.round(3), found.V.round(3)
    (array([0.25, 0.75]), array([2.]))
    """
    if find_spec("highspy") is None:
        raise ImportError("linear programs of this size need highspy: pip install 'dpdl[lp]'")
    (E, b), h = equal, np.concatenate(at_most[1])
    rows = sp.csc_array(sp.vstack([sp.csr_array(E), *map(sp.csr_array, at_most[0])]))
    program = {
        "cost": cost,
        "upper": upper,
        "row_lower": np.append(b, np.full(len(h), -np.inf)),
        "row_upper": np.append(b, h),
        "indptr": rows.indptr,
        "indices": rows.indices,
        "data": rows.data,
        "options": json.dumps(_OPTIONS | {"time_limit": min(time_limit, 1e9)} | options),
    }
    y, duals = _solved_apart(program) if apart else pdlp_process.solved(program)
    if len(y) != len(cost) or not (np.isfinite(y).all() and np.isfinite(duals).all()):
        return None
    return Optimum(np.clip(y, 0, upper), duals[: len(b)], -duals[len(b) :])


def _solved_apart(program: dict[str, Any]) -> tuple[Array, Array]:
    command, pipe, sent = [sys.executable, pdlp_process.__file__], subprocess.PIPE, io.BytesIO()
    np.savez(sent, **program)
    # In a session of its own it does not get the terminal's Ctrl-C as well.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            output, errors = process.communicate(sent.getvalue())
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"the process of highspy ended with code {process.returncode}: {reason}")
    with np.load(io.BytesIO(output), allow_pickle=False) as found:
        return found["y"], found["duals"]
