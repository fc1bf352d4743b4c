"""Policies as (S, A) arrays, one distribution over actions per state; `dpdl.Policy` acts with them.

The learner returns x-bar, a table over state-action pairs; `from_occupancy` turns it into the policy pi-bar of
Algorithm 1.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check


def from_occupancy(x: ArrayLike) -> NDArray[np.float64]:
    """Policy that a table induces, pi(a|s) = x(s,a)/sum_a' x(s,a') (last line of Algorithm 1); uniform in zero rows.

    Each row is scaled by its largest entry first, so that tiny rows lose no precision. Of W x with W = diag(mu/mu_hat)
    it is the paper's ideal policy pi-bar_w (end of section 3).

    Examples
    --------
    >>> from_occupancy([[3.0, 1.0], [0.0, 0.0]])
    array([[0.75, 0.25],
           [0.5 , 0.5 ]])
    """
    table = check.numbers_array("x", x, shape=(None, None), at_least=0)
    if table.size == 0:
        raise ValueError(f"x must have at least one state and one action, got shape {table.shape}")
    top = table.max(axis=1, keepdims=True)
    scaled = np.divide(table, top, out=np.ones_like(table), where=top > 0)
    return scaled / scaled.sum(axis=1, keepdims=True)


def draw(cumulative: NDArray[np.float64], rows: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw an action for each row, given the cumulative probabilities; nothing is checked.

    Examples
    --------
    >>> draw(np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([0, 1]), np.random.default_rng(0))
    array([0, 1])
    """
    total = cumulative[rows, -1]
    # Below the total even after rounding, so that some entry always exceeds the target.
    target = np.minimum(generator.random(rows.size) * total, np.nextafter(total, 0))
    # Bisection for the first entry above the target, all states at once. Invariant: it lies in low..high.
    low = np.zeros(rows.size, dtype=np.int64)
    high = np.full(rows.size, cumulative.shape[1] - 1, dtype=np.int64)
    for _ in range((cumulative.shape[1] - 1).bit_length()):
        middle = (low + high) // 2
        above = cumulative[rows, middle] > target
        high = np.where(above, middle, high)
        low = np.where(above, low, np.minimum(middle + 1, high))
    return low


def choice_matrix(policy: NDArray[np.float64]) -> sp.csr_array:
    """The (S, S A) matrix that takes a distribution over states to that over pairs: Pi[s, (s, a)] = policy[s, a].

    Examples
    --------
    >>> choice_matrix(np.array([[0.25, 0.75]])).toarray()
    array([[0.25, 0.75]])
    """
    n_states, n_actions = policy.shape
    n_pairs = n_states * n_actions
    # Arrays of its own: scipy changes those of a matrix in place, eliminate_zeros for instance.
    own = policy.flatten(), np.arange(n_pairs), np.arange(0, n_pairs + 1, n_actions)
    return sp.csr_array(own, shape=(n_states, n_pairs))
