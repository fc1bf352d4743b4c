"""Ten kinds of problem that people bring: queues, stocks, machines, patients; protocol `further` of `bench/safety.py`.

Each function draws a model with its limits and the way it is logged. One limit lies between the least achievable cost
and the cost of the best policy without limits; several are set by `safety_model.with_limits`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from scipy.stats import nbinom, poisson

from safety_model import (
    Problem,
    always,
    draw_binding,
    mixed,
    occupancy,
    random_transitions,
    transitions,
    with_limits,
    with_one_limit,
    without_limits,
)


def draw(rng: np.random.Generator, index: int) -> Problem:
    """Draw a problem of the kind `index`."""
    return draw_binding(KINDS, rng, index)


def _queue(rng: np.random.Generator) -> Problem:
    """Admit or refuse customers, serve slowly or fast; calm and busy hours; limit on the mean length of the queue.

    32 to 62 states, gamma = 0.97. Episodes of 100 steps from the empty queue by a threshold rule with 10% of uniform
    actions. Costs are deterministic.
    """
    room = int(rng.integers(15, 31))
    arrives, served, switch = rng.uniform([0.2, 0.5], [0.4, 0.8]), rng.uniform([0.3, 0.7], [0.5, 0.9]), 0.05
    length, hour = np.divmod(np.arange(2 * (room + 1)), 2)
    n_states = len(length)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        admit, fast = a % 2, a // 2
        for come, p in ((1, arrives[hour[s]]), (0, 1 - arrives[hour[s]])):
            for done, q in ((1, served[fast]), (0, 1 - served[fast])):
                left = min(max(length[s] - done, 0) + come * admit, room)
                yield p * q * (1 - switch), 2 * left + hour[s]
                yield p * q * switch, 2 * left + 1 - hour[s]

    admitted = arrives[hour] * (length < room)
    fast = rng.uniform(0.2, 0.4)
    r = np.stack([0 * admitted, admitted, 0 * admitted - fast, admitted - fast], axis=1)
    c = np.tile((length / room)[None, :, None], (1, 1, 4))
    rho0 = np.eye(1, n_states)[0]
    threshold = rng.integers(room // 3, room)
    rule = np.where(length < threshold, np.where(length > threshold // 2, 3, 1), 2)
    behaviour = mixed(always(rule, 4), 0.9)
    P = transitions(n_states, 4, outcomes)
    problem = Problem("", P, r, c, 0.97, rho0, np.ones(1), behaviour=behaviour, length=100)
    return with_one_limit(problem, rng)


def _stock(rng: np.random.Generator) -> Problem:
    """Order goods against random demand with many small and some large days; limit on how often the shelf is empty.

    11 to 20 levels, orders of 0 to 4 units, gamma = 0.9. The cost is that of the level reached. Independent
    transitions of a rule that orders up to a level, with 5% of uniform actions.
    """
    most = int(rng.integers(10, 20))
    demand = nbinom.pmf(np.arange(60), rng.uniform(0.8, 2.0), rng.uniform(0.3, 0.5))
    level = np.arange(most + 1)
    shelf = np.minimum(level[:, None] + np.arange(5), most)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        return ((p, max(int(shelf[s, a]) - d, 0)) for d, p in enumerate(demand))

    sold = (np.minimum(shelf[:, :, None], np.arange(60)) * demand).sum(axis=2)
    spent = rng.uniform(0.3, 0.6) * (shelf - level[:, None]) + rng.uniform(0, 0.5) * (np.arange(5) > 0)
    r = sold - spent - rng.uniform(0.05, 0.15) * shelf
    P, empty = transitions(most + 1, 5, outcomes), (level == 0)[None, :].astype(float)
    rho0 = np.full(most + 1, 1 / (most + 1))
    problem = Problem("", P, r, (P @ empty[0])[None], 0.9, rho0, np.ones(1), arrival=empty)
    rule = np.clip(rng.integers(most // 2, most + 1) - level, 0, 4)
    return with_one_limit(replace(problem, mu=occupancy(problem, mixed(always(rule, 5), 0.95))), rng)


def _machine(rng: np.random.Generator) -> Problem:
    """Run a machine fast or slowly, or service it, as it wears out; limit on accidents.

    8 to 14 states, the last of them broken, gamma = 0.95. Accidents are Bernoulli, more likely with wear and speed.
    Independent transitions of the uniform policy.
    """
    worn = int(rng.integers(6, 13))
    wears = np.array([rng.uniform(0.4, 0.7), rng.uniform(0.1, 0.3), 0.0])
    share = np.linspace(0, 1, worn + 1)
    breaks = np.outer(0.01 + rng.uniform(0.1, 0.3) * share ** rng.uniform(1, 3), [1.0, rng.uniform(0.2, 0.5), 0.02])

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        if s > worn:
            return (0.3, 0), (0.7, s)
        holds = 1 - breaks[s, a]
        p, after = (0.8, 0) if a == 2 else (wears[a], min(s + 1, worn))
        return (breaks[s, a], worn + 1), (holds * p, after), (holds * (1 - p), s)

    n_states = worn + 2
    r = np.tile([1.0, rng.uniform(0.5, 0.8), -0.2], (n_states, 1))
    r[-1] = -0.2
    c = np.zeros((1, n_states, 3))
    c[0, :-1] = rng.uniform(0.3, 0.8) * breaks
    rho0, P = np.eye(1, n_states)[0], transitions(n_states, 3, outcomes)
    problem = Problem("", P, r, c, 0.95, rho0, np.ones(1), noise="bernoulli")
    return with_one_limit(replace(problem, mu=occupancy(problem, np.full(r.shape, 1 / 3))), rng)


def _rooms(rng: np.random.Generator) -> Problem:
    """Two rooms of 5 x 5 cells with one narrow door; the far room pays more and costs more.

    50 states, gamma = 0.98. Moves slip with probability 0.2; the door lets one through in a fifth of the attempts.
    Episodes of 60 steps that start in the first room, by a mixture of two deterministic policies and uniform actions.
    """
    place, moves = np.arange(50), ((-1, 0), (0, 1), (1, 0), (0, -1))
    far, cell = np.divmod(place, 25)
    door = int(rng.integers(5))  # the row in which the last column of the first room meets the first of the other

    def moved(s: int, a: int) -> Iterable[tuple[float, int]]:
        row, column = divmod(int(cell[s]), 5)
        down, right = moves[a]
        through = row == door and ((far[s] == 0 and column + right == 5) or (far[s] == 1 and column + right == -1))
        stay = 25 * int(far[s]) + int(np.clip(row + down, 0, 4) * 5 + np.clip(column + right, 0, 4))
        crossed = 25 * (1 - int(far[s])) + row * 5 + (4 if far[s] else 0)
        return ((0.2, crossed), (0.8, stay)) if through else ((1.0, stay),)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        for b in range(4):
            for p, reached in moved(s, b):
                yield p * (0.8 * (a == b) + 0.05), reached

    pays, costs = rng.random(50) < 0.2, rng.beta(0.5, 1.0, 50)
    r = np.tile((np.where(pays, rng.uniform(0.5, 1.0, 50), 0.05) * (1 + far))[:, None], (1, 4))
    c = np.tile((costs * (0.3 + 0.7 * far))[None, :, None], (1, 1, 4))
    rho0 = np.where(far == 0, 1 / 25, 0.0)
    policies = [always(rng.integers(0, 4, 50), 4), always(np.where(far == 0, 1, 2), 4)]
    behaviour = 0.3 * policies[0] + 0.3 * policies[1] + 0.1
    problem = Problem("", transitions(50, 4, outcomes), r, c, 0.98, rho0, np.ones(1), behaviour=behaviour, length=60)
    return with_one_limit(problem, rng)


def _clinic(rng: np.random.Generator) -> Problem:
    """Treat patients in six rounds by one of four treatments; limits on two kinds of adverse events a patient.

    30 states: the round and how ill the patient is, of five grades. The episode ends after the last round, with a
    reward for health. gamma = 0.99; events are Bernoulli. Doctors give stronger treatments to those who are more ill.
    """
    rounds, grades, n_actions = 6, 5, 4
    helps = np.sort(rng.uniform(0.1, 0.6, n_actions))
    ill = np.tile(np.arange(grades), rounds)
    n_states, last = len(ill), np.repeat(np.arange(rounds), grades) == rounds - 1
    works = np.clip(helps + rng.normal(0, 0.1, (n_states, n_actions)), 0.05, 0.7)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        following = s if last[s] else s + grades
        better, worse = following - int(ill[s] > 0), following + int(ill[s] < grades - 1)
        up, down = works[s, a], 0.6 * (1 - works[s, a]) * 0.5
        return (up, better), (down, worse), (1 - up - down, following)

    P, ends = transitions(n_states, n_actions, outcomes), np.zeros((n_states, n_actions))
    P[last], ends[last] = 0.0, 1.0
    health = 1 - ill / (grades - 1)
    r = np.tile((0.1 * health + last * health)[:, None], (1, n_actions))
    harm = np.stack([helps * rng.uniform(0.2, 1.0, n_actions) for _ in range(2)])
    c = 0.3 * harm[:, None, :] * rng.uniform(0.3, 1.0, (2, n_states, 1)) + 0.005
    rho0 = np.zeros(n_states)
    rho0[1:grades] = 1 / (grades - 1)
    strength = np.exp(-2.0 * abs(np.linspace(0, 1, n_actions) - (ill / (grades - 1))[:, None]))
    behaviour = strength / strength.sum(axis=1, keepdims=True)
    how = {"normalised": False, "behaviour": behaviour, "length": rounds, "ends": ends, "noise": "bernoulli"}
    return with_limits(Problem("", P, r, c, 0.99, rho0, np.ones(2), **how), rng, strength=0.15)


def _jumps(rng: np.random.Generator) -> Problem:
    """A walk on a line with heavy-tailed jumps: every state may follow every pair; limit on the time near an end.

    90 to 150 states, three actions that pull to either side or not, gamma = 0.8. The cost is that of the state reached.
    Independent transitions, uniform over the pairs.
    """
    n_states = int(rng.integers(90, 151))
    place = np.arange(n_states)
    pull = n_states * np.array([-0.1, 0.0, 0.1])
    distance = abs(place - place[:, None, None] - pull[:, None])
    P = (1 + distance) ** -rng.uniform(1.5, 2.5)
    P /= P.sum(axis=2, keepdims=True)
    x = place / (n_states - 1)
    r = x[:, None] ** 2 - 0.1 * (pull != 0) + 0.1 * rng.random((n_states, 3))
    near = (np.clip(x - rng.uniform(0.6, 0.8), 0, None) * rng.uniform(0.5, 1.5, n_states))[None]
    rho0, mu = np.full(n_states, 1 / n_states), np.full((n_states, 3), 1 / (3 * n_states))
    return with_one_limit(Problem("", P, r, (P @ near[0])[None], 0.8, rho0, np.ones(1), mu=mu, arrival=near), rng)


def _battery(rng: np.random.Generator) -> Problem:
    """Buy, store and sell energy as its price changes; limits on the wear of the battery and on emissions.

    40 states: eight levels and five prices; five actions, gamma = 0.97. Costs are deterministic. Episodes of 48 steps
    from a battery that is half full, by 85% of the policy that is best without limits.
    """
    level, price = np.divmod(np.arange(40), 5)
    power = np.arange(-2, 3)  # units that are bought
    changes = 0.6 * np.eye(5) + 0.2 * (np.eye(5, k=1) + np.eye(5, k=-1)) + rng.dirichlet(np.ones(5), 5) * 0.2
    changes /= changes.sum(axis=1, keepdims=True)
    moved = np.clip(level[:, None] + power, 0, 7) - level[:, None]

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        for following, p in enumerate(changes[price[s]]):
            yield 0.95 * p, 5 * (level[s] + moved[s, a]) + following
            yield 0.05 * p, 5 * level[s] + following  # the order was not carried out

    paid = np.sort(rng.lognormal(0, 0.7, 5))
    r = -paid[price][:, None] * np.where(moved > 0, moved / rng.uniform(0.8, 0.95), moved)
    wear = moved**2 / 4 * (1 + rng.uniform(0.5, 1.5) * (abs(level - 3.5) > 2)[:, None])
    emitted = np.clip(moved, 0, None) * rng.uniform(0.1, 1.0, 5)[price][:, None]
    rho0 = np.where(level == 4, 0.2, 0.0)
    P = transitions(40, 5, outcomes)
    problem = Problem("", P, r, np.stack([wear, emitted]), 0.97, rho0, np.ones(2), length=48)
    problem = with_limits(problem, rng, strength=0.1)
    return replace(problem, behaviour=mixed(without_limits(problem)[0], 0.85))


def _ward(rng: np.random.Generator) -> Problem:
    """An epidemic: restrict contacts or not, and hire or dismiss staff; limits on overload and on restrictions.

    48 states: twelve numbers of the infected and four of staff; six actions, gamma = 0.9. Costs are exponential.
    Episodes of 40 steps by a mixture of a lax and a strict policy with 30% of uniform actions.
    """
    infected, staff = np.divmod(np.arange(48), 4)
    strict, hired = np.divmod(np.arange(6), 3)  # hired: 0, 1, 2 for one less, the same, one more
    spread = np.array([rng.uniform(1.2, 1.6), rng.uniform(0.5, 0.8)])
    expected = spread[strict] * (infected * (1 - infected / 20))[:, None] + 0.5
    counts = poisson.pmf(np.arange(12), expected[:, :, None])
    counts[:, :, 11] = poisson.sf(10, expected)  # more are not told apart

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        changed = int(np.clip(staff[s] + hired[a] - 1, 0, 3))
        for count, p in enumerate(counts[s, a]):
            yield 0.7 * p, 4 * count + changed
            yield 0.3 * p, 4 * count + staff[s]

    wages = rng.uniform(0.1, 0.2)
    r = 1 - rng.uniform(0.4, 0.6) * strict - wages * staff[:, None] - 0.02 * infected[:, None] - 0.05 * (hired != 1)
    over = np.clip(infected - 1 - 2 * staff, 0, None) / 10
    c = np.stack([np.tile(over[:, None], (1, 6)), np.tile(0.1 + 0.9 * strict, (48, 1)) * rng.uniform(0.5, 1, (48, 1))])
    rho0 = np.where((infected < 4) & (staff == 1), 0.25, 0.0)
    lax, severe = always(np.ones(48), 6), always(np.where(infected > 2, 5, 1), 6)
    how = {"behaviour": 0.35 * (lax + severe) + 0.05, "length": 40, "noise": "exponential"}
    P = transitions(48, 6, outcomes)
    problem = with_limits(Problem("", P, r, c, 0.9, rho0, np.ones(2), **how), rng, strength=3.0)
    return replace(problem, limits=1.1 * problem.limits)  # what lowers one cost raises the other: leave room


def _hazards(rng: np.random.Generator) -> Problem:
    """A race round a track at one of three speeds; each step may end in a trap for good, with a small probability.

    16 to 31 states, the last of them the trap, gamma = 0.99. The cost is the time in the trap. Episodes of 60 steps
    from the first place by uniform actions.
    """
    places = int(rng.integers(15, 31))
    falls = np.outer(np.clip(rng.lognormal(np.log(0.004), 1.0, places), 0, 0.05), [0.1, 1.0, rng.uniform(1.5, 3.0)])

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        if s == places:
            return ((1.0, s),)
        goes, on = (0.4, 0.8, 0.8)[a], 1 - falls[s, a]
        return (falls[s, a], places), (goes * on, (s + max(a, 1)) % places), ((1 - goes) * on, s)

    n_states = places + 1
    r = np.outer(rng.uniform(0.2, 1.0, n_states), [0.2, 0.5, 1.0])
    r[-1] = 0.0
    c = np.zeros((1, n_states, 3))
    c[0, -1] = 1.0
    rho0, behaviour = np.eye(1, n_states)[0], np.full((n_states, 3), 1 / 3)
    P = transitions(n_states, 3, outcomes)
    return with_one_limit(Problem("", P, r, c, 0.99, rho0, np.ones(1), behaviour=behaviour, length=60), rng)


def _many(rng: np.random.Generator) -> Problem:
    """Assign jobs to machines under six to eight budgets, of which at least two bind and at least one does not.

    24 states, five actions, gamma from 0.5 to 0.7. Each cost arises at a fourth of the pairs. Independent transitions
    of a random policy.
    """
    n_limits, gamma, shape = int(rng.integers(6, 9)), rng.uniform(0.5, 0.7), (24, 5)
    while True:
        c = rng.gamma(2.0, 0.5, (n_limits, *shape)) * (rng.random((n_limits, *shape)) < 0.25)
        P, rho0 = random_transitions(*shape, 5, rng), rng.dirichlet(np.ones(24))
        problem = with_limits(Problem("", P, rng.random(shape), c, gamma, rho0, np.ones(n_limits)), rng)
        loose = rng.permutation(n_limits) < n_limits // 2
        problem = replace(problem, limits=problem.limits * np.where(loose, rng.uniform(1.2, 3.0, n_limits), 1.0))
        if problem.least < 0.99 and problem.figures(problem.optimal_policy)[1].min() < 0.95:
            return replace(problem, mu=occupancy(problem, rng.dirichlet(np.ones(5), 24)))


KINDS = (_queue, _stock, _machine, _rooms, _clinic, _jumps, _battery, _ward, _hazards, _many)
