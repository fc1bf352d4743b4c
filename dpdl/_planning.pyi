"""Types of the passes of the planner (src_cython/_planning.pyx)."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int32]
Pointer = NDArray[np.int64]

def improve(
    indptr: Pointer,
    indices: Index,
    data: Array,
    first: Index,
    reward: Array,
    ends: Array,
    gamma: float,
    V: Array,
    best: Array,
    policy: Index,
) -> tuple[int, float, float]: ...
def improve_in_place(
    indptr: Pointer,
    indices: Index,
    data: Array,
    first: Index,
    reward: Array,
    gamma: float,
    V: Array,
    policy: Index,
    backward: bool,
) -> None: ...
def policy_rows(
    indptr: Pointer,
    indices: Index,
    data: Array,
    policy: Index,
    gamma: float,
    out_indptr: Pointer,
    out_indices: Index,
    out_data: Array,
    scale: Array,
) -> None: ...
def sweep(indptr: Pointer, indices: Index, data: Array, b: Array, X: Array, n_sweeps: int) -> None: ...
def residuals(
    indptr: Pointer, indices: Index, data: Array, b: Array, X: Array, weight: Array, mass: Array, bounds: Array
) -> None: ...
