"""`learn` on a map that a person can look at: deliveries past fire and mud, learned from a log.

    python examples/gridworld.py [STEPS]

Three routes lead from S to G: the short one crosses fire (^), the middle one mud (~), the long one is clean. Fire and
mud may each take 15% of the discounted time, so that the best policy divides its trips among the routes. The run starts
at the plan of the log's model, and the better of plan and average is returned: from the paper's start, 10^7 steps earn
0.4 on this map.
"""

import sys

import numpy as np

import dpdl

MAP = (
    "·········",
    "··#####··",
    "·~~~~~~~·",
    "··#####··",
    "S·^^^^^·G",
    "··^^^^^··",
)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
BUDGET, SLIP, GAMMA = 0.15, 0.1, 0.95
CHARACTERS = np.array([list(row) for row in MAP])
CELLS = np.argwhere(CHARACTERS != "#")
KINDS = CHARACTERS[tuple(CELLS.T)]


def neighbours():
    """States to which the four moves lead; a move into a wall or off the map stays where it is."""
    state = np.full(np.add(CHARACTERS.shape, 2), -1)  # the map with a wall around it
    state[tuple(CELLS.T + 1)] = np.arange(len(CELLS))
    row, column = np.moveaxis(CELLS[:, None] + np.array(MOVES) + 1, 2, 0)
    return np.where(state[row, column] >= 0, state[row, column], np.arange(len(CELLS))[:, None])


def model():
    """The goal pays 1 and leads back to the start; a move slips to either side; utilities are budgets less use."""
    n, there = len(CELLS), neighbours()
    P = np.zeros((n, 4, n))
    for action in range(4):
        for turn, probability in ((0, 1 - SLIP), (1, SLIP / 2), (-1, SLIP / 2)):
            P[np.arange(n), action, there[:, (action + turn) % 4]] += probability
    P[KINDS == "G"] = rho0 = np.where(KINDS == "S", 1.0, 0.0)
    values = np.array([KINDS == "G", BUDGET - (KINDS == "^"), BUDGET - (KINDS == "~")], dtype=float)
    r, *u = np.repeat(values[..., None], 4, axis=2)
    return dpdl.CMDP(P, r, u, GAMMA, rho0)


def homing(cost):
    """The policy of cheapest ways to the goal; ties are divided evenly."""
    there, distance = neighbours(), np.where(KINDS == "G", 0.0, np.inf)
    for _ in CELLS:
        onward = cost[there] + distance[there]
        distance = np.minimum(distance, onward.min(axis=1))
    best = onward == onward.min(axis=1, keepdims=True)
    return best / best.sum(axis=1, keepdims=True)


def picture(policy):
    """The likeliest action of every cell."""
    drawn = CHARACTERS.copy()
    drawn[tuple(CELLS.T)] = np.where(np.isin(KINDS, ["S", "G"]), KINDS, np.array(list("↑→↓←"))[policy.argmax(axis=1)])
    return "\n".join(map("".join, drawn))


def main(n_steps=1_000_000):
    grid = model()
    hasty, careful = homing(np.ones(len(CELLS))), homing(np.where(np.isin(KINDS, ["^", "~"]), 100.0, 1.0))
    log = grid.rollout(50_000, 0.4 * hasty + 0.4 * careful + 0.2 / 4, rng=0)
    result = dpdl.learn(log, gamma=GAMMA, T=n_steps, rho0=grid.rho0, rng=0)
    print(picture(result.policy.probabilities), *result.notes, sep="\n")
    for name, policy in (("learned", result.policy), ("best safe", grid.solve().policy)):
        value = grid.evaluate(policy)
        used = BUDGET - (1 - GAMMA) * value.utilities
        print(f"{name:>10}: reward {value.reward:.3f}, fire {used[0]:.3f} and mud {used[1]:.3f} of {BUDGET} each")
    return result


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
