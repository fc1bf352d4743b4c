"""Policies as (S, A) arrays, one distribution over actions per state; `dpdl.Policy` acts with them.

The learner returns x-bar, a table over state-action pairs. `from_occupancy` turns it into the policy pi-bar
of Algorithm 1, `weighted` into the ideal pi-bar_w, which needs the data's true distribution mu.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check


def from_occupancy(x: ArrayLike, unreached: str | ArrayLike = "uniform") -> NDArray[np.float64]:
    """Policy that a table induces, pi(a|s) = x(s,a)/sum_a' x(s,a') (last line of Algorithm 1).

    Parameters
    ----------
    x : array_like, shape (S, A)
        Nonnegative numbers. Each row is scaled by its largest entry first, so tiny rows lose no precision.
    unreached : "uniform" or array_like, shape (S, A), optional
        The policy in states whose row is exactly zero: uniform, or that of this array.

    Examples
    --------
    >>> from_occupancy([[3.0, 1.0], [0.0, 0.0]])
    array([[0.75, 0.25],
           [0.5 , 0.5 ]])
    """
    table = _table("x", x)
    default = _default(unreached, table.shape)
    top = table.max(axis=1, keepdims=True)
    reached = top > 0
    scaled = np.divide(table, top, out=default, where=reached)
    return np.divide(scaled, scaled.sum(axis=1, keepdims=True), out=scaled, where=reached)


def weighted(
    x: ArrayLike, mu: ArrayLike, mu_hat: ArrayLike, unreached: str | ArrayLike = "uniform"
) -> NDArray[np.float64]:
    """Policy pi-bar_w that W x induces, W = diag(mu/mu_hat) (end of section 3).

    The paper's ideal output; it needs mu, so it is for comparison where mu is known.

    Parameters
    ----------
    x : array_like, shape (S, A)
        Nonnegative numbers.
    mu : array_like, shape (S, A)
        The distribution that the data comes from.
    mu_hat : array_like, shape (S, A)
        Its positive estimate; floored, so it need not sum to one.
    unreached : "uniform" or array_like, shape (S, A), optional
        As in `from_occupancy`.

    Examples
    --------
    >>> weighted([[1.0, 1.0]], mu=[[0.6, 0.4]], mu_hat=[[0.3, 0.6]])
    array([[0.75, 0.25]])
    """
    table = _table("x", x)
    distribution = check.distribution("mu", mu, table.shape)
    estimate = check.numbers_array("mu_hat", mu_hat, shape=table.shape, above=0)
    reached = (table > 0) & (distribution > 0)
    # In logarithms, since x mu may underflow and mu/mu_hat may overflow where the policy is well defined.
    logs = np.full(table.shape, -np.inf)
    logs[reached] = np.log(table[reached]) + np.log(distribution[reached]) - np.log(estimate[reached])
    top = logs.max(axis=1, keepdims=True)
    return from_occupancy(np.exp(logs - np.where(np.isfinite(top), top, 0)), unreached)


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


def uniform(n_states: int, n_actions: int) -> NDArray[np.float64]:
    """Policy that takes every action with the same probability.

    Examples
    --------
    >>> uniform(1, 4)
    array([[0.25, 0.25, 0.25, 0.25]])
    """
    n_actions = check.whole("n_actions", n_actions, at_least=1)
    return np.full((check.whole("n_states", n_states, at_least=1), n_actions), 1 / n_actions)


def choice_matrix(policy: NDArray[np.float64]) -> sp.csr_array:
    """The (S, S A) matrix that takes a distribution over states to that over pairs: Pi[s, (s, a)] = policy[s, a].

    Examples
    --------
    >>> choice_matrix(np.array([[0.25, 0.75]])).toarray()
    array([[0.25, 0.75]])
    """
    n_states, n_actions = policy.shape
    pairs = np.arange(n_states * n_actions + 1)
    return sp.csr_array((policy.ravel(), pairs[:-1], pairs[::n_actions]), shape=(n_states, n_states * n_actions))


def _table(name: str, values: ArrayLike) -> NDArray[np.float64]:
    table = check.numbers_array(name, values, shape=(None, None), at_least=0)
    if table.size == 0:
        raise ValueError(f"{name} must have at least one state and one action, got shape {table.shape}")
    return table


def _default(unreached: str | ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return a new array with the policy for states that the table does not reach."""
    n_states, n_actions = shape
    if isinstance(unreached, str):
        check.choice("unreached", unreached, ("uniform",))
        return uniform(n_states, n_actions)
    return check.policy_array("unreached", unreached, n_states, n_actions)
