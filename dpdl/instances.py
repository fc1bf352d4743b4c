"""Problems to try things on: random sparse CMDPs, and a gridworld that a person can look at.

`garnet` draws a CMDP with few successors per pair whose utilities pull against its reward, shifted so that a known
policy meets Slater's condition. `hazard_gridworld` is a delivery task with three routes from start to goal: the short
one crosses fire, the middle one mud, the long one is clean. Fire and mud each have a budget, so that the best policy
divides its trips among the routes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl.cmdp import CMDP

Array = NDArray[np.float64]

_MAP = (
    ".........",
    ".#######.",
    "..~~~~~..",
    ".#.###.#.",
    "S.^^^^^.G",
    "..^^^^^..",
)
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))


def garnet(
    n_states: int,
    n_actions: int,
    n_utilities: int = 1,
    branching: int = 5,
    gamma: float = 0.9,
    slater: float = 0.1,
    rng: Any = None,
) -> CMDP:
    """Draw a random sparse CMDP whose Slater constant is at least `slater`.

    Parameters
    ----------
    n_states, n_actions, n_utilities : int
        Sizes S, A, I; I may be zero.
    branching : int
        Successors of each pair, drawn without replacement, with probabilities uniform on the simplex; at most S.
    gamma : float
        Discount.
    slater : float
        In (0, 1).
    rng : None, int or numpy.random.Generator
        Source of randomness.

    Returns
    -------
    CMDP
        Rewards are uniform on [0, 1]; the first state is uniform.

    Notes
    -----
    A raw utility is noise less half the reward. A reference policy, half of the time the action of largest mean raw
    utility and half of the time any action, is evaluated exactly; then each utility is shifted and scaled into [-1, 1] so
    that the reference earns just `slater`. What earns reward costs utility, so the unconstrained optimum as a rule breaks
    the constraints unless `slater` is large.

    Examples
    --------
    >>> cmdp = garnet(20, 4, n_utilities=2, rng=0)
    >>> cmdp.slater() >= 0.1, cmdp.solve().reward < cmdp.unconstrained().solve().reward
    (True, True)
    """
    n_states = check.whole("n_states", n_states, at_least=1)
    n_actions = check.whole("n_actions", n_actions, at_least=1)
    n_utilities = check.whole("n_utilities", n_utilities)
    branching = check.whole("branching", branching, at_least=1, at_most=n_states)
    slater = check.real("slater", slater, above=0, below=1)
    rng = check.generator(rng)
    P = _random_transitions(n_states, n_actions, branching, rng)
    reward = rng.random((n_states, n_actions))
    raw = rng.random((n_utilities, n_states, n_actions)) - 0.5 * reward
    rho0 = np.full(n_states, 1 / n_states)
    reference = np.full(reward.shape, 0.5 / n_actions)
    reference[np.arange(n_states), raw.sum(axis=0).argmax(axis=1)] += 0.5
    occupancy = CMDP(P, reward, raw[:0], gamma, rho0).evaluate(reference).occupancy
    centred = raw - (1 - gamma) * np.einsum("isa,sa->i", raw, occupancy)[:, None, None]
    largest = abs(centred).max(axis=(1, 2), keepdims=True)
    u = slater + centred * ((1 - slater) / np.where(largest > 0, largest, 1))
    return CMDP(P, reward, np.clip(u, -1, 1), gamma, rho0)  # clips roundings only


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
        """Draw the likeliest action of each cell, walls as ``#``, start and goal as ``S`` and ``G``.

        Examples
        --------
        >>> grid = hazard_gridworld()
        >>> print(grid.picture(grid.cmdp.unconstrained().solve().policy).splitlines()[4])
        S→→→→→→→G
        """
        probabilities = check.policy_array("policy", policy, self.cmdp.n_states, self.cmdp.n_actions)
        characters = self._characters()
        for state, (row, column) in enumerate(self.cells):
            if state not in (self.start, self.goal):
                characters[row][column] = self.arrows[int(probabilities[state].argmax())]
        return "\n".join("".join(row) for row in characters)

    def behaviour(self, hasty: float = 0.3, careful: float = 0.4) -> Array:
        """Return the policy behind the log: three drivers who take turns at every step.

        With probability `hasty` the action starts a shortest way to the goal, with probability `careful` a shortest way
        around fire and mud, and otherwise it is any action.

        Examples
        --------
        >>> grid = hazard_gridworld()
        >>> policy = grid.behaviour()
        >>> policy.min() > 0, policy.sum(axis=1).round(9).min()
        (np.True_, np.float64(1.0))
        """
        hasty = check.real("hasty", hasty, at_least=0, at_most=1)
        careful = check.real("careful", careful, at_least=0, at_most=1 - hasty)
        any_action = np.full((self.cmdp.n_states, self.cmdp.n_actions), 1 / self.cmdp.n_actions)
        trouble = (self.hazards | self.mud)[tuple(self.cells.T)]
        return (
            hasty * self._homing(np.ones(self.cmdp.n_states))
            + careful * self._homing(np.where(trouble, 100.0, 1.0))
            + (1 - hasty - careful) * any_action
        )
