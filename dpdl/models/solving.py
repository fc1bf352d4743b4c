"""Linear systems of Markov chains: values and visits of a policy, for few states and many."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

from dpdl._validation import Array

#: Up to this many states systems are solved by sparse factors at once; beyond, by BiCGSTAB first.
DIRECT_STATES = 2000
#: Sweeps of a fixed point iteration before sparse factors are made.
FIXED_POINT_SWEEPS = 5000
#: Relative residual to which systems are solved.
RESIDUAL = 1e-10


class Kernel:
    """Systems with the matrix I - gamma K, for a kernel K whose rows sum to at most one.

    Examples
    --------
    >>> Kernel(sp.csr_array([[0.0, 1.0], [0.5, 0.0]]), 0.5).solve(np.array([1.0, 0.0])).round(6).tolist()
    [1.142857, 0.285714]
    """

    def __init__(self, kernel: sp.csr_array, gamma: float) -> None:
        self.kernel, self.gamma = kernel, gamma

    @cached_property
    def _factors(self) -> Any:
        matrix = sp.csc_array(sp.eye_array(self.kernel.shape[0]) - self.gamma * self.kernel)
        return scipy.sparse.linalg.splu(matrix)

    @cached_property
    def _transposed(self) -> sp.csr_array:
        return sp.csr_array(self.kernel.T)

    def solve(self, right: Array, *, transposed: bool = False) -> Array:
        """Solve (I - gamma K) x = right, or the transposed system.

        Sparse factors of random graphs fill in, so iterations come first for many states: BiCGSTAB, which may break
        down, then the fixed point of x = right + gamma K x, unless gamma is so close to one that it takes too long.
        """
        if len(right) > DIRECT_STATES:
            kernel = self._transposed if transposed else self.kernel
            matrix = scipy.sparse.linalg.LinearOperator(
                kernel.shape, matvec=lambda x: x - self.gamma * (kernel @ x), dtype=np.float64
            )
            x, failed = scipy.sparse.linalg.bicgstab(matrix, right, rtol=RESIDUAL, maxiter=200)
            if not failed:
                return x
            size = RESIDUAL * float(abs(right).max())
            for _ in range(FIXED_POINT_SWEEPS):
                previous, x = x, right + self.gamma * (kernel @ x)
                if not abs(x - previous).max() > size:
                    return x
        return self._factors.solve(right, trans="T" if transposed else "N")
