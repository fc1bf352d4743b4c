"""A gridworld: a delivery task with three routes, through fire, mud and clean ground."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.models.cmdp import CMDP

_MAP = (
    "·········",
    "··#####··",
    "·~~~~~~~·",
    "··#####··",
    "S·^^^^^·G",
    "··^^^^^··",
)
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: a turn is one place further


@dataclass(frozen=True)
class GridWorld:
    """A gridworld and what it takes to draw it; see `hazard_gridworld`.

    Attributes
    ----------
    cmdp : CMDP
        One state per cell that is no wall, row by row; utility 0 is the budget of fire, utility 1 that of mud. The
        actions are up, right, down and left.
    kinds : ndarray of str, shape (S,)
        Fire ``^``, mud ``~``, start ``S``, goal ``G``, anything else ``·``.
    cells : ndarray of int, shape (S, 2)
        Row and column of each state.
    """

    cmdp: CMDP
    kinds: NDArray[np.str_]
    cells: NDArray[np.int64]

    def __str__(self) -> str:
        return self._drawn(self.kinds)

    def picture(self, policy: ArrayLike) -> str:
        """Draw the likeliest action of each cell: ``·`` where several are, ``#`` for walls, ``S`` and ``G``.

        Examples
        --------
        >>> grid = hazard_gridworld()
        >>> print(grid.picture(grid.behaviour(hasty=0.0, careful=1.0)))
        →→→→→→→·↓
        ·↑#####→↓
        ↑↑←←→→→·↓
        ↑←#####·↓
        S·←←→→→→G
        ↑·←←→→→·↑
        """
        probabilities = check.policy_array("policy", policy, self.cmdp.n_states, self.cmdp.n_actions)
        likely = probabilities >= probabilities.max(axis=1, keepdims=True) - 1e-9
        arrows = np.where(likely.sum(axis=1) == 1, np.array(list("↑→↓←"))[likely.argmax(axis=1)], "·")
        return self._drawn(np.where(np.isin(self.kinds, ["S", "G"]), self.kinds, arrows))

    def behaviour(self, hasty: float = 0.4, careful: float = 0.4) -> Array:
        """Return the behaviour policy, a mixture of two shortest-path policies and the uniform one.

        With probability `hasty` the action begins a shortest way to the goal, with probability `careful` one that is
        shortest when a cell of fire or mud counts as a hundred, and otherwise it is uniform. By default the policy has
        a third of the reward of the best safe policy and exceeds the budget of fire.

        Examples
        --------
        >>> grid = hazard_gridworld()
        >>> value = grid.cmdp.evaluate(grid.behaviour())
        >>> round(value.reward, 2), value.utilities.round(2)
        (0.33, array([-0.44,  1.54]))
        """
        hasty = check.real("hasty", hasty, at_least=0, at_most=1)
        careful = check.real("careful", careful, at_least=0, at_most=1 - hasty)
        rationed = np.isin(self.kinds, ["^", "~"])
        policy = np.full((self.cmdp.n_states, self.cmdp.n_actions), (1 - hasty - careful) / self.cmdp.n_actions)
        policy += hasty * self._homing(np.ones(self.cmdp.n_states))
        policy += careful * self._homing(np.where(rationed, 100.0, 1.0))
        return policy

    def _homing(self, cost: Array) -> Array:
        """Return the policy that divides itself evenly among the actions that begin a cheapest way to the goal."""
        neighbour = _neighbours(self.cells)
        distance = np.where(self.kinds == "G", 0.0, np.inf)
        for _ in range(len(cost)):
            onward = cost[neighbour] + distance[neighbour]
            distance = np.minimum(distance, onward.min(axis=1))
        best = onward == onward.min(axis=1, keepdims=True)
        return best / best.sum(axis=1, keepdims=True)

    def _drawn(self, characters: NDArray[np.str_]) -> str:
        """Draw a character for each state among the walls."""
        picture = np.full(self.cells.max(axis=0) + 1, "#")
        picture[tuple(self.cells.T)] = characters
        return "\n".join(map("".join, picture))


def hazard_gridworld(
    slip: float = 0.1, gamma: float = 0.95, hazard_budget: float = 0.15, mud_budget: float = 0.15
) -> GridWorld:
    """Build the delivery task: from S to G and over again, past fire (``^``) and mud (``~``).

    Parameters
    ----------
    slip : float
        Probability that a move goes to one of its sides instead, either being as likely. A move against a wall or the
        border stays where it is.
    gamma : float
        Discount.
    hazard_budget, mud_budget : float
        Largest shares of the discounted time to be spent in fire and in mud, in (0, 1).

    Returns
    -------
    GridWorld
        The goal pays reward 1, everything else 0; every action leads from the goal back to the start. The utilities are
        the budgets, less one in the cells that they ration, so that J^u >= 0 says that the budget is kept.

    Examples
    --------
    >>> grid = hazard_gridworld()
    >>> print(grid)
    ·········
    ··#####··
    ·~~~~~~~·
    ··#####··
    S·^^^^^·G
    ··^^^^^··
    >>> careless, safe = grid.cmdp.unconstrained().solve(), grid.cmdp.solve()
    >>> round(careless.reward, 3), round(safe.reward, 3)
    (1.508, 0.987)
    """
    slip = check.real("slip", slip, at_least=0, at_most=1)
    budgets = [
        check.real("hazard_budget", hazard_budget, above=0, below=1),
        check.real("mud_budget", mud_budget, above=0, below=1),
    ]
    characters = np.array([list(row) for row in _MAP])
    cells = np.argwhere(characters != "#")
    kinds = characters[tuple(cells.T)]
    n_states, n_actions = len(cells), len(_MOVES)
    neighbour = _neighbours(cells)
    P = np.zeros((n_states, n_actions, n_states))
    for action in range(n_actions):
        for turn, probability in ((0, 1 - slip), (1, slip / 2), (-1, slip / 2)):
            P[np.arange(n_states), action, neighbour[:, (action + turn) % n_actions]] += probability
    P[kinds == "G"] = rho0 = np.where(kinds == "S", 1.0, 0.0)
    reward = np.where(kinds == "G", 1.0, 0.0)
    u = np.array([budget - (kinds == kind) for budget, kind in zip(budgets, "^~", strict=True)])
    r, u = (np.repeat(values[..., None], n_actions, axis=-1) for values in (reward, u))
    return GridWorld(CMDP(P, r, u, gamma, rho0), check.frozen(kinds), check.frozen(cells))


def _neighbours(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the (S, 4) states to which the moves lead; into a wall or off the map they lead nowhere."""
    state = np.full(cells.max(axis=0) + 3, -1)  # the map with a wall around it
    state[tuple(cells.T + 1)] = np.arange(len(cells))
    beyond = cells[:, None, :] + np.array(_MOVES) + 1
    reached = state[beyond[..., 0], beyond[..., 1]]
    return np.where(reached >= 0, reached, np.arange(len(cells))[:, None])
