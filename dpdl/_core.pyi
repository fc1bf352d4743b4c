"""Types of the compiled core (src_cython/_core.pyx)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl.learner.bins import Bins
from dpdl.learner.layout import Layout
from dpdl.question import Question

Array = NDArray[np.float64]

CODES: dict[int, str]
COUNTERS: tuple[str, ...]
HEAD_DTYPE: np.dtype[np.void]
VALUE_DTYPE: np.dtype[np.void]
MULTIPLIER_DTYPE: np.dtype[np.void]

class Sampler:
    order: str
    bit_generator: np.random.BitGenerator
    def __init__(
        self,
        bit_generator: np.random.BitGenerator,
        n_records: int,
        order: str,
        initial: NDArray[np.int32],
        probabilities: Array,
        repeats: NDArray[np.int64] | None = ...,
    ) -> None: ...
    def draw(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...

class Interrupts:
    guarded: bool
    def __init__(self, guarded: bool = ...) -> None: ...
    def __enter__(self) -> Interrupts: ...
    def __exit__(self, *exception: object) -> None: ...
    def came(self) -> bool: ...

class LazyCore:
    layout: Layout
    bins: Bins
    sampler: Sampler
    V_rows: NDArray[Any]
    lam_rows: NDArray[Any]
    counts: NDArray[np.int64]
    members: NDArray[Any]
    settled: Array
    far: bool
    def __init__(
        self,
        layout: Layout,
        sampler: Sampler,
        log_x: Array,
        V: Array,
        log_lam: Array,
        refresh: int | None = ...,
        threshold: float = ...,
        reach: float = ...,
    ) -> None: ...
    def run(self, n: int, seconds: float = ...) -> int: ...
    def state(self) -> dict[str, NDArray[Any]]: ...
    def restore(self, state: dict[str, NDArray[Any]]) -> None: ...
    def summary(self, divisor: float = ...) -> tuple[Array, Array]: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def diagnostics(self) -> dict[str, int]: ...
    @property
    def x(self) -> Array: ...
    @property
    def log_x(self) -> Array: ...
    @property
    def x_sum(self) -> Array: ...
    @property
    def running_sums(self) -> tuple[float, float]: ...
    @property
    def point(self) -> tuple[Array, Array, Array]: ...
    @property
    def log_lam(self) -> Array: ...
    @property
    def means(self) -> tuple[Array, Array, Array]: ...
    @property
    def dual_means(self) -> tuple[Array, Array]: ...
    @property
    def capsule(self) -> object: ...

def alias_table(probabilities: Array) -> tuple[Array, NDArray[np.int32]]: ...
def effective_log_caps(layout: Layout) -> Array: ...
def value_rows(V: Array) -> NDArray[Any]: ...
def multiplier_rows(log_lam: Array) -> NDArray[Any]: ...
def dual_means(V: NDArray[Any], lam: NDArray[Any], now: int) -> tuple[Array, Array]: ...
def utility_rows(affine: Question) -> NDArray[Any]: ...
def rollout(
    n: int,
    s0: int,
    policy_cdf: Array,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    row_cdf: Array,
    going_on: Array,
    initial_cdf: Array,
    bit_generator: np.random.BitGenerator,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]: ...
