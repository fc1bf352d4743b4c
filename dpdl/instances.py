"""Problems to try things on: random sparse CMDPs, a gridworld that a person can look at, and hard instances.

`garnet` draws a CMDP with few successors per pair whose utilities pull against its reward, shifted so that a known
policy meets Slater's condition. `hazard_gridworld` is a delivery task with three routes from start to goal: the short
one crosses fire, the middle one mud, the long one is clean. Fire and mud each have a budget, so that the best policy
divides its trips among the routes.

The families behind the paper's lower bounds are here too: see `dpdl.hard_instances`. Each problem comes as an
`Instance`, the CMDP with where its data lies and the known answers: `garnet_instance`, `GridWorld.instance`,
`lower_bound`, `no_slater`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._instance import Instance
from dpdl.cmdp import CMDP
from dpdl.hard_instances import (
    BlockInstance,
    Blocks,
    HardInstance,
    NoSlaterInstance,
    blocks,
    hardest_varpi,
    lower_bound,
    no_slater,
    packing,
    suboptimality_bound,
    violation_bound,
)

__all__ = [
    "BlockInstance",
    "Blocks",
    "GridWorld",
    "HardInstance",
    "Instance",
    "NoSlaterInstance",
    "blocks",
    "garnet",
    "garnet_instance",
    "hardest_varpi",
    "hazard_gridworld",
    "lower_bound",
    "no_slater",
    "packing",
    "suboptimality_bound",
    "violation_bound",
]

Array = NDArray[np.float64]

_MAP = (
    ".........",
    "..#####..",
    ".~~~~~~~.",
    "..#####..",
    "S.^^^^^.G",
    "..^^^^^..",
)
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: a turn is one place further


def garnet(
    n_states: int,
    n_actions: int,
    n_utilities: int = 1,
    branching: int | None = None,
    gamma: float = 0.9,
    slater: float = 0.1,
    rng: Any = None,
) -> CMDP:
    """Draw a random sparse CMDP whose Slater constant is at least `slater`.

    Parameters
    ----------
    n_states, n_actions, n_utilities : int
        Sizes S, A, I; I may be zero.
    branching : int, optional
        Successors of each pair, drawn without replacement, with probabilities uniform on the simplex; at most S, and
        by default 5 or, if that is less, S.
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
    A raw utility is noise less half the reward. A reference policy, which takes the action of largest mean raw utility
    with probability 0.8 and any action otherwise, is evaluated exactly; then each utility is shifted and scaled into
    [-1, 1] so that the reference earns just `slater`. What earns reward costs utility, so the unconstrained optimum
    breaks the constraints as a rule, unless `slater` is large.

    Examples
    --------
    >>> cmdp = garnet(20, 4, n_utilities=2, rng=0)
    >>> cmdp.slater() >= 0.1, cmdp.solve().reward < cmdp.unconstrained().solve().reward
    (True, True)
    """
    n_states = check.whole("n_states", n_states, at_least=1)
    n_actions = check.whole("n_actions", n_actions, at_least=1)
    n_utilities = check.whole("n_utilities", n_utilities)
    branching = min(5, n_states) if branching is None else branching
    branching = check.whole("branching", branching, at_least=1, at_most=n_states)
    slater = check.real("slater", slater, above=0, below=1)
    rng = check.generator(rng)
    P = _random_transitions(n_states, n_actions, branching, rng)
    reward = rng.random((n_states, n_actions))
    raw = rng.random((n_utilities, n_states, n_actions)) - 0.5 * reward
    rho0 = np.full(n_states, 1 / n_states)
    reference = np.full(reward.shape, 0.2 / n_actions)
    reference[np.arange(n_states), raw.sum(axis=0).argmax(axis=1)] += 0.8
    occupancy = CMDP(P, reward, raw[:0], gamma, rho0).evaluate(reference).occupancy
    centred = raw - (1 - gamma) * np.einsum("isa,sa->i", raw, occupancy)[:, None, None]
    largest = abs(centred).max(axis=(1, 2), keepdims=True)
    u = slater + centred * ((1 - slater) / np.where(largest > 0, largest, 1))
    return CMDP(P, reward, np.clip(u, -1, 1), gamma, rho0)  # clips roundings only


def garnet_instance(n_states: int, n_actions: int, evenness: float = 1.0, rng: Any = None, **options: Any) -> Instance:
    """Draw a `garnet` and where its data lies, with the answers worked out.

    Parameters
    ----------
    n_states, n_actions : int
        Sizes.
    evenness : float
        The distribution of the data is drawn from the symmetric Dirichlet distribution with this parameter: the larger,
        the more even, and the smaller C*.
    rng : None, int or numpy.random.Generator
        Source of randomness.
    **options
        As for `garnet`.

    Examples
    --------
    >>> found = garnet_instance(5, 3, gamma=0.5, rng=0)
    >>> found.concentrability > 1, round(found.cmdp.evaluate(found.optimal_policy).reward - found.optimal_value, 9)
    (True, 0.0)
    """
    evenness = check.real("evenness", evenness, above=0)
    rng = check.generator(rng)
    cmdp = garnet(n_states, n_actions, rng=rng, **options)
    shares = rng.gamma(evenness, size=cmdp.r.shape) + np.finfo(float).tiny
    return Instance.of(cmdp, shares / shares.sum())


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
        """Return the policy behind the log: two drivers and chance, who take turns at every step.

        With probability `hasty` the action begins a shortest way to the goal, with probability `careful` one that is
        shortest when a cell of fire or mud counts for a hundred, and otherwise it is any action. By default that earns
        a third of what the best safe policy earns and overspends the budget of fire.

        Examples
        --------
        >>> grid = hazard_gridworld()
        >>> value = grid.cmdp.evaluate(grid.behaviour())
        >>> round(value.reward, 2), value.utilities.round(2)
        (0.33, array([-0.44,  1.54]))
        """
        hasty = check.real("hasty", hasty, at_least=0, at_most=1)
        careful = check.real("careful", careful, at_least=0, at_most=1 - hasty)
        trouble = (self.hazards | self.mud)[tuple(self.cells.T)]
        policy = np.full((self.cmdp.n_states, self.cmdp.n_actions), (1 - hasty - careful) / self.cmdp.n_actions)
        policy += hasty * self._homing(np.ones(self.cmdp.n_states))
        policy += careful * self._homing(np.where(trouble, 100.0, 1.0))
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


def _random_transitions(n_states: int, n_actions: int, branching: int, rng: np.random.Generator) -> sp.csr_array:
    """Return rows with `branching` distinct successors each and probabilities uniform on the simplex."""
    n_pairs = n_states * n_actions
    successors = np.empty((n_pairs, branching), dtype=np.int64)
    # Floyd's subset sampling, all rows at once: no rejections, and no table of pairs by states.
    for k, newest in enumerate(range(n_states - branching, n_states)):
        drawn = rng.integers(newest + 1, size=n_pairs)
        taken = (successors[:, :k] == drawn[:, None]).any(axis=1)
        successors[:, k] = np.where(taken, newest, drawn)
    probabilities = rng.dirichlet(np.ones(branching), size=n_pairs)
    starts = np.arange(0, n_pairs * branching + 1, branching)
    return sp.csr_array((probabilities.ravel(), successors.ravel(), starts), shape=(n_pairs, n_states))
