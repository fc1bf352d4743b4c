"""The problems of the safety benchmark, by protocol; `bench/safety.py` runs the methods on their logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import safety_fresh as fresh
import safety_further as further
import safety_worlds as worlds
from dpdl import CMDP
from kinds import lake, ring
from safety_model import Problem, mixed, occupancy, random_transitions, with_limits


def toy(rng: np.random.Generator, *, infeasible: bool = False) -> Problem:
    """Draw a toy problem: S = 10, A = 5, gamma = 0.8, start in state 0, limit 0.1 on the normalised cost.

    Each pair has 2 successors with Dirichlet(1, 1) weights; rewards are uniform on [0, 1], costs Beta(0.2, 0.2), with
    one free action a state. Problems are kept where the limit binds at the optimum. Data: draws from the occupancy of
    half the optimal policy, half the uniform one. With `infeasible` no action is free, since the least achievable cost
    would be zero otherwise; the limit is then 0.8 times the least, and the data is that of the problem before. Problems
    are kept where that least cost is at least 0.01, not so small that no log tells it from zero.
    """
    n_states, n_actions = 10, 5
    while True:
        P = random_transitions(n_states, n_actions, 2, rng)
        c = rng.beta(0.2, 0.2, (1, n_states, n_actions))
        if not infeasible:
            c[0, np.arange(n_states), rng.integers(0, n_actions, n_states)] = 0.0
        rho0, limits = np.eye(1, n_states)[0], np.array([0.1])
        problem = Problem("toy", P, rng.random((n_states, n_actions)), c, 0.8, rho0, limits)
        if problem.binds() and (problem.least >= 0.1 or not infeasible):
            problem = replace(problem, mu=occupancy(problem, mixed(problem.optimal_policy, 0.5)))
            return problem.infeasible() if infeasible else problem


def grid(rng: np.random.Generator, rho: float) -> Problem:
    """Draw a grid of 10 x 10 cells from one corner to the opposite one, where the episode ends; limit 2 on the cost.

    Every cell slips with its own probability, uniform on [0, 0.2]: the move goes in a random direction. A move off the
    border stays. A step costs 1 in a pit, of which 30% of the cells are; reward -1 a step and 1000 at the goal. gamma =
    0.99. Problems are kept where the limit binds at the optimum. Episodes of at most 200 steps, by `rho` times the
    optimal policy plus the rest times the uniform one.
    """
    n_rows, n_states = 10, 100
    row, column = np.divmod(np.arange(n_states), n_rows)
    reached = [
        np.clip(row + down, 0, n_rows - 1) * n_rows + np.clip(column + right, 0, n_rows - 1)
        for down, right in ((-1, 0), (0, 1), (1, 0), (0, -1))
    ]
    while True:
        slip = rng.uniform(0, 0.2, n_states)
        pits = rng.random(n_states) < 0.3
        pits[[0, -1]] = False
        P = np.zeros((n_states, 4, n_states))
        for action, moved in enumerate(reached):
            P[np.arange(n_states), action, moved] += 1 - slip
            for other in range(4):
                P[np.arange(n_states), other, moved] += slip / 4
        ends = P[:, :, -1].copy()
        P[:, :, -1] = 0.0
        ends[-1], P[-1] = 0.0, np.eye(1, n_states, n_states - 1)[0]  # no one is ever in the goal
        problem = Problem(
            kind=f"rho={rho:g}",
            P=P,
            r=np.full((n_states, 4), -1.0),
            c=np.tile(pits[None, :, None].astype(float), (1, 1, 4)),
            gamma=0.99,
            rho0=np.eye(1, n_states)[0],
            limits=np.array([2.0]),
            normalised=False,
            ends=ends,
            prize=1000.0,
        )
        if problem.binds():
            return replace(problem, behaviour=mixed(problem.optimal_policy, rho))


def multi(rng: np.random.Generator, *, infeasible: bool = False) -> Problem:
    """Draw a random sparse problem with S = 50, A = 5, gamma = 0.9, start in state 0 and five limits that bind.

    Each pair has 3 successors; rewards are uniform on [0, 1], costs Beta(0.2, 0.2), with an action a state that is free
    of all costs. Data and `infeasible`: as of `toy`.
    """
    while True:
        c = rng.beta(0.2, 0.2, (5, 50, 5))
        if not infeasible:
            c[:, np.arange(50), rng.integers(0, 5, 50)] = 0.0
        P, r, rho0 = random_transitions(50, 5, 3, rng), rng.random((50, 5)), np.eye(1, 50)[0]
        problem = with_limits(Problem("multi", P, r, c, 0.9, rho0, np.ones(5)), rng)
        if problem.binds():
            problem = replace(problem, mu=occupancy(problem, mixed(problem.optimal_policy, 0.5)))
            return problem.infeasible() if infeasible else problem


def other(rng: np.random.Generator, index: int) -> Problem:
    """Draw one of ten further kinds of problem, none of which any method was tuned on."""
    make = OTHERS[index % len(OTHERS)]
    while True:
        problem = make(rng)
        if problem.binds():
            problem = replace(problem, kind=make.__name__.strip("_"), per_pair=True)
            if problem.mu is None and problem.behaviour is None:
                problem = replace(problem, mu=occupancy(problem, mixed(problem.optimal_policy, 0.5)))
            return problem


def _random(rng: np.random.Generator, S: int, A: int, I: int, branching: int, gamma: float, **options: Any) -> Problem:
    """A random sparse problem with uniform rewards and costs, and limits that bind."""
    P, rho0 = random_transitions(S, A, branching, rng), rng.dirichlet(np.ones(S))
    problem = Problem("", P, rng.random((S, A)), rng.random((I, S, A)), gamma, rho0, np.ones(I))
    return with_limits(replace(problem, **options), rng)


def _tiny(rng: np.random.Generator) -> Problem:
    """Four states, two actions, every state follows every other, gamma = 0.5."""
    return _random(rng, 4, 2, 1, 4, 0.5)


def _wide(rng: np.random.Generator) -> Problem:
    """Thirty states, eight actions, two constraints."""
    return _random(rng, 30, 8, 2, 4, 0.9)


def _of_instance(cmdp: CMDP, **options: Any) -> Problem:
    """A problem of `dpdl.instances` whose hazards cost one; the limit is halfway from the least to the greedy cost."""
    P = cmdp.P.toarray().reshape(*cmdp.r.shape, -1)
    hazard = np.where(cmdp.u < 0, 1.0, 0.0)
    problem = Problem("", P, cmdp.r, hazard, cmdp.gamma, cmdp.rho0, np.ones(1), **options)
    greedy = problem.figures(cmdp.unconstrained().solve().policy)[1]
    return replace(problem, limits=np.maximum((problem.least + greedy) / 2, 1e-6))


def _ring(rng: np.random.Generator) -> Problem:
    """A ring of 40 states that mixes slowly, gamma = 0.95; starts anywhere."""
    return _of_instance(ring(40, gamma=0.95, rng=rng))


def _lake(rng: np.random.Generator) -> Problem:
    """A slippery lake of 5 x 5 cells, gamma = 0.97, one start, in episodes of 100 steps that do not end."""
    return _of_instance(lake(5, gamma=0.97, rng=rng), length=100, behaviour=np.full((25, 4), 0.25))


def _ending(rng: np.random.Generator) -> Problem:
    """Twenty states, episodes that end with a prize, a limit on the total cost, gamma = 0.95; random behaviour."""
    ends = rng.uniform(0, 0.2, (20, 3))
    problem = _random(rng, 20, 3, 1, 3, 0.95, normalised=False)
    problem = replace(problem, P=problem.P * (1 - ends)[:, :, None], ends=ends, prize=5.0)
    return with_limits(replace(problem, behaviour=rng.dirichlet(np.ones(3), 20), length=100), rng)


def _careless(rng: np.random.Generator) -> Problem:
    """Fifteen states, short episodes logged by 80% of the policy that is best without limits."""
    problem = _random(rng, 15, 4, 1, 3, 0.9, length=30)
    best = problem.cmdp.unconstrained().solve().policy
    return replace(problem, behaviour=mixed(best, 0.8))


def _skewed(rng: np.random.Generator) -> Problem:
    """Ten states; some pairs are logged a hundred times as often as others."""
    shares = rng.gamma(0.3, size=(10, 4)) + 0.01
    return _random(rng, 10, 4, 1, 3, 0.8, mu=shares / shares.sum())


def _sizes(rng: np.random.Generator) -> Problem:
    """Twelve states, three costs of sizes 1, 100 and 0.01, rewards of size 50."""
    problem = _random(rng, 12, 4, 3, 3, 0.85)
    scale = np.array([1.0, 100.0, 0.01])
    return replace(problem, r=50 * problem.r, c=problem.c * scale[:, None, None], limits=problem.limits * scale)


def _noisy(rng: np.random.Generator) -> Problem:
    """Ten states; costs are exponential with the stated means, rewards scatter by half their size."""
    return _random(rng, 10, 4, 1, 3, 0.85, noise="exponential")


def _rare(rng: np.random.Generator) -> Problem:
    """Fifteen states, gamma = 0.97, negative rewards, costs that are rarely incurred and then large."""
    problem = _random(rng, 15, 3, 1, 3, 0.97, noise="bernoulli")
    c = 0.1 * problem.c**2
    c[0, np.argmax(c[0]) // 3, np.argmax(c[0]) % 3] = 0.3
    return with_limits(replace(problem, r=problem.r - 1, c=c), rng)


OTHERS = (_tiny, _wide, _ring, _lake, _ending, _careless, _skewed, _sizes, _noisy, _rare)


@dataclass(frozen=True)
class Protocol:
    """How problems of a protocol are drawn, and how much data there is."""

    make: Callable[[np.random.Generator, int, bool], Problem]  # random numbers, index, whether infeasible
    sizes: tuple[int, ...]
    problems: int = 20
    repeats: int = 20


#: Shares of the optimal policy in the behaviour of `grid`, which take turns.
RHOS = (0.1, 0.4, 0.7, 0.9)


def _grid(rng: np.random.Generator, index: int, infeasible: bool) -> Problem:
    problem = grid(rng, RHOS[index % len(RHOS)])
    return problem.infeasible() if infeasible else problem


PROTOCOLS = {
    "toy": Protocol(lambda rng, k, infeasible: toy(rng, infeasible=infeasible), sizes=(50, 200, 1000, 5000)),
    "grid": Protocol(_grid, sizes=(10, 50, 200, 1000, 2000)),
    "multi": Protocol(lambda rng, k, infeasible: multi(rng, infeasible=infeasible), sizes=(500, 2000, 10_000, 50_000)),
    "others": Protocol(lambda rng, k, infeasible: other(rng, k), sizes=(3, 15, 75), problems=50, repeats=8),
    "further": Protocol(lambda rng, k, infeasible: further.draw(rng, k), sizes=(3, 15, 75), problems=50, repeats=8),
    "worlds": Protocol(lambda rng, k, infeasible: worlds.draw(rng, k), (0,), len(worlds.WORLDS), repeats=200),
    "fresh": Protocol(lambda rng, k, infeasible: fresh.draw(rng, k), sizes=(3, 15, 75), problems=50, repeats=8),
}
