"""Linear systems of Markov chains: values and visits of a policy, for few states and many."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.csgraph
import scipy.sparse.linalg

from dpdl._validation import Array

#: Up to this many states systems are solved by sparse factors at once; beyond, by BiCGSTAB first unless a narrow band
#: says that the factors stay sparse.
DIRECT_STATES = 2000
#: Largest number of entries that the factors may be expected to have, by the bandwidth.
MOST_FACTORS = 5e6
#: Sweeps of a fixed point iteration before sparse factors are made.
FIXED_POINT_SWEEPS = 5000
#: Relative residual to which systems are solved.
RESIDUAL = 1e-10


def bandwidth(matrix: sp.csr_array) -> int:
    """The largest distance of an entry from the diagonal, with rows and columns in the order of Cuthill and McKee.

    Examples
    --------
    >>> bandwidth(sp.csr_array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    1
    """
    symmetric = sp.csr_array(matrix + matrix.T)
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(symmetric, symmetric_mode=True)
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    entries = sp.coo_array(matrix)
    return int(abs(place[entries.row] - place[entries.col]).max(initial=0))


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
    def _stays_sparse(self) -> bool:
        n = self.kernel.shape[0]
        return n <= DIRECT_STATES or bandwidth(self.kernel) * n <= MOST_FACTORS

    @cached_property
    def _transposed(self) -> sp.csr_array:
        return sp.csr_array(self.kernel.T)

    def solve(self, right: Array, *, transposed: bool = False) -> Array:
        """Solve (I - gamma K) x = right, or the transposed system.

        Sparse factors of random graphs fill in, so iterations come first for many states that form no narrow band:
        BiCGSTAB, which may break down, then the fixed point of x = right + gamma K x, unless gamma is so close to one
        that it takes too long.
        """
        if not self._stays_sparse:
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
