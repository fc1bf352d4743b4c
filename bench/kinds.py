"""Two kinds of problem of any size that mix slowly: a ring of hills behind hazards, and a slippery lake.

Random sparse models (`dpdl.instances.garnet`) mix in a few steps, which flatters methods that learn slowly. Here
information about a reward must travel through many states, and constraints forbid the shortest way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.models.cmdp import CMDP

_PERIOD = 300  # states of a ring from one hill to the next
_RING_MOVES = (-1, 0, 1)
_LAKE_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: a turn is one place further


def ring(
    n_states: int = 300,
    n_utilities: int = 1,
    gamma: float = 0.98,
    slip: float = 0.2,
    budget: float = 0.02,
    rng: Any = None,
) -> CMDP:
    """Draw a ring with local moves, on which each hill of reward has a hazard on one side.

    Parameters
    ----------
    n_states : int
        Number of states S, at least 3. There is a hill in each 300 states, and at least one.
    n_utilities : int
        Number of utilities I: hazards are of I kinds, in turn along the ring; 0 for no constraints.
    gamma : float
        Discount.
    slip : float
        Probability that a move goes one state to the left or right instead, either being as likely.
    budget : float
        Largest share of the discounted time to be spent in hazards, in (0, 1); each kind gets an equal part of it.
    rng : None, int or numpy.random.Generator
        Source of randomness, for the heights and places of the hills.

    Returns
    -------
    CMDP
        Actions: one state to the left, stay, one state to the right. The first state is uniform. The hazard lies where
        a hill begins, on its right or left, so that the shortest way to the top leads through it from one side.

    Examples
    --------
    >>> cmdp = ring(rng=0)
    >>> cmdp.n_states, cmdp.n_actions, cmdp.slater() > 0
    (300, 3, True)
    >>> cmdp.solve().reward < cmdp.unconstrained().solve().reward
    True
    """
    n_states = check.whole("n_states", n_states, at_least=3)
    n_utilities, slip, budget = _checked(n_utilities, slip, budget)
    rng = check.generator(rng)
    states, n_hills = np.arange(n_states), max(1, n_states // _PERIOD)
    length = n_states / n_hills
    heights, sides = rng.uniform(0.5, 1.0, n_hills), rng.choice([-1, 1], n_hills)
    tops = (np.arange(n_hills) + rng.uniform(0.4, 0.6, n_hills)) * length
    hill = np.minimum((states / length).astype(np.int64), n_hills - 1)
    offset = (states - tops[hill]) / length * sides[hill]  # from the top, in lengths; positive on the hazard's side
    reward = heights[hill] * np.exp(-0.5 * (offset / 0.03) ** 2)
    hazard = (offset > 0.05) & (offset < 0.1)
    u = _budgets(budget, hazard, hill, n_utilities)
    columns = [(states + move + turn) % n_states for move in _RING_MOVES for turn in (0, -1, 1)]
    P = _slippery(np.reshape(columns, (len(_RING_MOVES), 3, n_states)), slip)
    return _same_in_all_actions(P, reward, u, gamma, np.full(n_states, 1 / n_states))


def lake(
    n_rows: int = 8,
    n_utilities: int = 1,
    gamma: float = 0.99,
    slip: float = 0.2,
    holes: float = 0.25,
    budget: float = 0.04,
    rng: Any = None,
) -> CMDP:
    """Draw a square, slippery lake with holes; the only reward is in the last corner.

    Parameters
    ----------
    n_rows : int
        The lake has n_rows x n_rows cells, at least 2 x 2; one state each, row by row.
    n_utilities : int
        Number of utilities I: holes are of I kinds, in turn; 0 for no constraints.
    gamma : float
        Discount.
    slip : float
        Probability that a move goes to one of its sides instead, either being as likely.
    holes : float
        Share of the cells that are holes, in [0, 1].
    budget : float
        Largest share of the discounted time to be spent in holes, in (0, 1); each kind gets an equal part of it.
    rng : None, int or numpy.random.Generator
        Source of randomness, for the places of the holes.

    Returns
    -------
    CMDP
        Actions: up, right, down, left; a move off the border stays where it is. The first state is the first corner;
        the last corner pays 1, and every action leads from there back to the first. A hole costs and does not end the
        episode.

    Examples
    --------
    >>> cmdp = lake(rng=0)
    >>> cmdp.n_states, cmdp.n_actions, cmdp.slater() > 0
    (64, 4, True)
    >>> cmdp.solve().reward < cmdp.unconstrained().solve().reward
    True
    """
    n_rows = check.whole("n_rows", n_rows, at_least=2)
    n_utilities, slip, budget = _checked(n_utilities, slip, budget)
    holes = check.real("holes", holes, at_least=0, at_most=1)
    rng = check.generator(rng)
    n_states = n_rows**2
    row, column = np.divmod(np.arange(n_states), n_rows)
    reached = [
        np.clip(row + down, 0, n_rows - 1) * n_rows + np.clip(column + right, 0, n_rows - 1)
        for down, right in _LAKE_MOVES
    ]
    columns = np.array([[reached[(action + turn) % 4] for turn in (0, -1, 1)] for action in range(4)])
    columns[:, :, -1] = 0
    hole = rng.random(n_states) < holes
    hole[[0, -1]] = False
    u = _budgets(budget, hole, np.cumsum(hole), n_utilities)
    reward = np.where(np.arange(n_states) == n_states - 1, 1.0, 0.0)
    return _same_in_all_actions(_slippery(columns, slip), reward, u, gamma, np.eye(1, n_states)[0])


def _checked(n_utilities: int, slip: float, budget: float) -> tuple[int, float, float]:
    return (
        check.whole("n_utilities", n_utilities),
        check.real("slip", slip, at_least=0, at_most=1),
        check.real("budget", budget, above=0, below=1),
    )


def _budgets(budget: float, costly: NDArray[np.bool_], place: NDArray[np.int64], n_utilities: int) -> Array:
    """Return (I, S) utilities: equal parts of the budget, less one in the costly states, whose kinds take turns."""
    kinds = np.arange(n_utilities)[:, None]
    return budget / max(1, n_utilities) - (costly & (place % max(1, n_utilities) == kinds))


def _slippery(columns: NDArray[np.int64], slip: float) -> sp.csr_array:
    """Return (S*A, S) transitions to columns[a, 0, s], or with probability slip to columns[a, 1, s] or [a, 2, s]."""
    n_actions, _, n_states = columns.shape
    pairs = np.arange(n_states)[None, None] * n_actions + np.arange(n_actions)[:, None, None]
    probabilities = np.array([1 - slip, slip / 2, slip / 2])[None, :, None]
    rows, values = np.broadcast_to(pairs, columns.shape), np.broadcast_to(probabilities, columns.shape)
    shape = (n_states * n_actions, n_states)
    return sp.coo_array((values.ravel(), (rows.ravel(), columns.ravel())), shape=shape).tocsr()


def _same_in_all_actions(P: sp.csr_array, reward: Array, u: Array, gamma: float, rho0: Array) -> CMDP:
    """Return the CMDP whose rewards and utilities depend on the state only."""
    n_actions = P.shape[0] // P.shape[1]
    return CMDP(P, np.tile(reward[:, None], n_actions), np.tile(u[:, :, None], n_actions), gamma, rho0)
