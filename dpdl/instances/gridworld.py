"""A gridworld: a delivery task with three routes, through fire, mud and clean ground."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.instances.instance import Instance
from dpdl.models.cmdp import CMDP

_MAP = (
    ".........",
    "..#####..",
    ".~~~~~~~.",
    "..#####..",
    "S.^^^^^.G",
    "..^^^^^..",
)
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: a turn is one place further


@dataclass(frozen=True)
class GridWorld:
    """A gridworld and what it takes to draw it; see `hazard_gridworld`.

    Attributes
    ----------
    cmdp : CMDP
        One state per cell that is no wall, row by row; utility 0 is the budget of fire, utility 1 that of mud.
    n_rows, n_columns : int
        Size of the map.
    walls, hazards, mud : ndarray of bool, shape (n_rows, n_columns)
        The map.
    cells : ndarray of int, shape (S, 2)
        Row and column of each state.
    start, goal : int
        States.
    action_names : tuple of str
        Names of the actions.
    arrows : tuple of str
        One character for each action.
    """

    cmdp: CMDP
    n_rows: int
    n_columns: int
    walls: NDArray[np.bool_]
    hazards: NDArray[np.bool_]
    mud: NDArray[np.bool_]
    cells: NDArray[np.int64]
    start: int
    goal: int
    action_names: tuple[str, ...] = ("up", "right", "down", "left")
    arrows: tuple[str, ...] = ("↑", "→", "↓", "←")

    def __str__(self) -> str:
        return "\n".join("".join(row) for row in self._characters())

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
        characters = self._characters()
        for state, (row, column) in enumerate(self.cells):
            likeliest = np.flatnonzero(probabilities[state] >= probabilities[state].max() - 1e-9)
            if state not in (self.start, self.goal):
                characters[row][column] = self.arrows[likeliest[0]] if len(likeliest) == 1 else "·"
        return "\n".join("".join(row) for row in characters)

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
        rationed = (self.hazards | self.mud)[tuple(self.cells.T)]
        policy = np.full((self.cmdp.n_states, self.cmdp.n_actions), (1 - hasty - careful) / self.cmdp.n_actions)
        policy += hasty * self._homing(np.ones(self.cmdp.n_states))
        policy += careful * self._homing(np.where(rationed, 100.0, 1.0))
        return policy

    def instance(self, hasty: float = 0.4, careful: float = 0.4) -> Instance:
        """Return the problem with the long-run distribution of the log that `behaviour` makes, and its answers.

        Examples
        --------
        >>> found = hazard_gridworld().instance()
        >>> round(found.optimal_value, 3), round(found.concentrability, 1), round(found.slater, 2)
        (0.987, 5.8, 0.15)
        """
        from dpdl import mixing

        kernel = mixing.pair_kernel(self.cmdp, self.behaviour(hasty, careful))
        return Instance.of(self.cmdp, mixing.stationary(kernel).reshape(self.cmdp.r.shape))

    def _homing(self, cost: Array) -> Array:
        """Return the policy that divides itself evenly among the actions that begin a cheapest way to the goal."""
        neighbour = _neighbours(self.walls, self.cells)
        distance = np.where(np.arange(len(cost)) == self.goal, 0.0, np.inf)
        for _ in range(len(cost)):
            onward = cost[neighbour] + distance[neighbour]
            distance = np.minimum(distance, onward.min(axis=1))
        best = onward == onward.min(axis=1, keepdims=True)
        return best / best.sum(axis=1, keepdims=True)

    def _characters(self) -> list[list[str]]:
        characters = np.full((self.n_rows, self.n_columns), "·")
        for mask, character in ((self.walls, "#"), (self.hazards, "^"), (self.mud, "~")):
            characters[mask] = character
        for state, character in ((self.start, "S"), (self.goal, "G")):
            characters[tuple(self.cells[state])] = character
        return [list(map(str, row)) for row in characters]


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
    start, goal = (int(np.flatnonzero(kinds == mark)[0]) for mark in "SG")
    n_states, n_actions = len(cells), len(_MOVES)
    neighbour = _neighbours(characters == "#", cells)
    P = np.zeros((n_states, n_actions, n_states))
    for action in range(n_actions):
        for turn, probability in ((0, 1 - slip), (1, slip / 2), (-1, slip / 2)):
            P[np.arange(n_states), action, neighbour[:, (action + turn) % n_actions]] += probability
    P[goal] = np.arange(n_states) == start
    reward = np.where(kinds == "G", 1.0, 0.0)
    u = np.array([budget - (kinds == kind) for budget, kind in zip(budgets, "^~", strict=True)])
    return GridWorld(
        cmdp=CMDP(
            P,
            np.repeat(reward[:, None], n_actions, axis=1),
            np.repeat(u[:, :, None], n_actions, axis=2),
            gamma,
            rho0=np.eye(n_states)[start],
        ),
        n_rows=len(_MAP),
        n_columns=len(_MAP[0]),
        walls=check.frozen(characters == "#"),
        hazards=check.frozen(characters == "^"),
        mud=check.frozen(characters == "~"),
        cells=check.frozen(cells),
        start=start,
        goal=goal,
    )


def _neighbours(walls: NDArray[np.bool_], cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the (S, 4) states to which the moves lead; into a wall or off the map they lead nowhere."""
    state = np.full((walls.shape[0] + 2, walls.shape[1] + 2), -1)  # the map with a wall around it
    state[1:-1, 1:-1][tuple(cells.T)] = np.arange(len(cells))
    beyond = cells[:, None, :] + np.array(_MOVES) + 1
    reached = state[beyond[..., 0], beyond[..., 1]]
    return np.where(reached >= 0, reached, np.arange(len(cells))[:, None])
