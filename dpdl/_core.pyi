"""Types of the compiled core (src_cython/_core.pyx)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdl.learner.bins import Bins
from dpdl.learner.layout import Layout

Array = NDArray[np.float64]

CODES: dict[int, str]
COUNTERS: tuple[str, ...]
BLOCK_SIZE: int
N_MOMENTS: int
N_TERMS: int
MAX_ITERATIONS: int
THRESHOLD: float
HEAD_DTYPE: np.dtype[np.void]

class XUpdate(NamedTuple):
    log_x: Array
    alpha: float
    beta: float
    case: int
    capped: bool
    iterations: int
    code: int

class Root(NamedTuple):
    alpha: float
    beta: float
    iterations: int
    code: int

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

class Core:
    layout: Layout
    sampler: Sampler
    V_rows: NDArray[Any]
    counts: NDArray[np.int64]
    def run(self, n: int, seconds: float = ...) -> int: ...
    def state(self) -> dict[str, NDArray[Any]]: ...
    def restore(self, state: dict[str, NDArray[Any]]) -> None: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def diagnostics(self) -> dict[str, int]: ...
    @property
    def x(self) -> Array: ...
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

class EagerCore(Core):
    log_x: Array
    def __init__(
        self,
        layout: Layout,
        sampler: Sampler,
        log_x: Array,
        V: Array,
        log_lam: Array,
        refresh: int = ...,
        printed_sign: bool = ...,
    ) -> None: ...

class LazyCore(Core):
    bins: Bins
    members: NDArray[Any]
    settled: Array
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
    def summary(self, divisor: float = ...) -> tuple[Array, Array]: ...
    def bare_loop(self, n: int) -> float: ...
    @property
    def log_x(self) -> Array: ...

def alias_table(probabilities: Array) -> tuple[Array, NDArray[np.int32]]: ...
def bounded_integers(bit_generator: np.random.BitGenerator, bound: int, n: int) -> NDArray[np.uint64]: ...
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
def x_update(log_x: Array, c: Array, log_cap: float, j: int, step: float, B1: float, B2: float) -> XUpdate: ...
def find_root(log_x: Array, c: Array, log_cap: float, j: int, step: float, B1: float, B2: float) -> Root: ...
def lam_update(log_lam: Array, u: Array, weight: float, rate: float, radius: float) -> tuple[Array, Array]: ...
def V_update(
    V: Array, initial: int, s: int, s_next: int, weight: float, gamma: float, rate: float, radius: float
) -> Array: ...
