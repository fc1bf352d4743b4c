"""Ten kinds of problem unlike those of `safety_further`: taxis, doses, loans; protocol `fresh` of `bench/safety.py`.

Each function draws a model with its limits and the way it is logged. Problems are kept by the same rule as those of
`safety_further`: see `safety_model.draw_binding`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import numpy as np

from safety_model import (
    Array,
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


def _split_ends(P: Array) -> tuple[Array, Array]:
    """Return the transitions among all states but the last, and the probabilities to reach the last: the end."""
    return P[:-1, :, :-1], P[:-1, :, -1]


def _thermostat(rng: np.random.Generator) -> Problem:
    """Cool or heat a house as the weather changes; limit on discomfort.

    36 states: twelve temperatures and three kinds of weather; four actions, gamma = 0.95. The cost is that of the
    temperature reached, the reward is minus the price of energy. Episodes of 72 steps by a rule with set points, which
    takes 98% of the actions.
    """
    level, weather = np.divmod(np.arange(36), 3)
    effect, pull = np.array([-2, 0, 1, 3]), np.array([-1.5, -0.5, 1.5]) * rng.uniform(0.7, 1.3)
    persists = rng.uniform(0.7, 0.95)
    changes = persists * np.eye(3) + (1 - persists) * rng.dirichlet(np.ones(3), 3)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        target = level[s] + effect[a] + pull[weather[s]]
        for reached, following in product(range(12), range(3)):
            yield np.exp(-((reached - target) ** 2)) * changes[weather[s], following], 3 * reached + following

    energy = np.array([rng.uniform(0.5, 1.0), 0.0, 0.4, 1.0])
    r = -energy * rng.uniform(0.6, 1.0, 3)[weather][:, None]
    felt = (np.clip(abs(level - rng.uniform(4.5, 6.5)) - 1, 0, None) / 4)[None] ** 2
    P, rho0 = transitions(36, 4, outcomes), np.full(36, 1 / 36)
    low, high = rng.integers(3, 5), rng.integers(7, 10)
    rule = np.where(level < low - 1, 3, np.where(level < low, 2, np.where(level > high, 0, 1)))
    how = {"behaviour": mixed(always(rule, 4), 0.975), "length": 72, "arrival": felt}
    return with_one_limit(Problem("", P, r, (P @ felt[0])[None], 0.95, rho0, np.ones(1), **how), rng)


def _taxi(rng: np.random.Generator) -> Problem:
    """Drive a taxi on a graph of roads; limit on the time lost in congestion.

    25 to 40 crossings with three roads each, which always lead where they lead, or wait; gamma = 0.9. Delays are
    exponential and fares scatter. Independent transitions of a driver with habits: some roads are hardly ever taken.
    """
    n_states = int(rng.integers(25, 41))
    place = np.arange(n_states)
    leads = np.stack([(place + 1) % n_states, *rng.integers(0, n_states, (2, n_states)), place], axis=1)
    fares = rng.gamma(0.5, 1.0, n_states)
    r = fares[leads] - rng.uniform(0.05, 0.3, (n_states, 4))
    r[:, 3] = 0.3 * fares
    popular = fares / fares.max()
    c = (rng.gamma(1.0, 0.3, (n_states, 4)) + 0.5 * popular[leads])[None]
    c[0, :, 3] = 0.02
    P, rho0 = np.eye(n_states)[leads], np.full(n_states, 1 / n_states)
    problem = Problem("", P, r, c, 0.9, rho0, np.ones(1), noise="exponential")
    habits = mixed(rng.dirichlet(np.full(4, 0.4), n_states), 0.9)
    return with_one_limit(replace(problem, mu=occupancy(problem, habits)), rng)


def _retry(rng: np.random.Generator) -> Problem:
    """Serve a web request by up to five tries, or from a stale cache; limits on its latency and on server time.

    20 states: the number of tries and the load; five actions: send now, after a short or a long pause, to two servers
    at once, or answer from the cache. Episodes end with an answer or after the fifth try; gamma = 0.99 and costs are
    exponential. The behaviour has a favourite for each number of tries, which takes 60% of the actions.
    """
    tries, load = np.divmod(np.arange(20), 4)
    fails = np.linspace(rng.uniform(0.2, 0.4), rng.uniform(0.8, 0.95), 4)
    eases = np.array([0.1, 0.3, 0.7, 0.05, 0.0])  # probability that the load falls by one meanwhile
    hit = np.stack([1 - fails, 1 - 0.9 * fails, 1 - 0.8 * fails, 1 - fails**2, np.ones(4)], axis=1)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        if s == 20 or tries[s] == 4:
            return ((1.0, 20),)
        p, following = hit[load[s], a], s + 4
        lower = following - int(load[s] > 0)
        higher = following + int(load[s] < 3)
        fallen, risen = eases[a], 0.3 * (1 - eases[a])
        return (
            (p, 20),
            ((1 - p) * fallen, lower),
            ((1 - p) * risen, higher),
            ((1 - p) * (1 - fallen - risen), following),
        )

    P, ends = _split_ends(transitions(21, 5, outcomes))
    r = hit[load] * np.array([1.0, 1.0, 1.0, 1.0, rng.uniform(0.2, 0.5)])
    answer = 0.2 + 0.3 * load[:, None] * np.array([1.0, 0.9, 0.7, 0.7, 0.0])
    latency = answer + np.array([0.0, 0.3, rng.uniform(0.8, 1.5), 0.0, -0.15])
    work = (1 + load[:, None]) * np.array([1.0, 1.0, 1.0, 2.0, 0.05]) / 4
    rho0 = np.concatenate([rng.dirichlet(np.full(4, 3.0)), np.zeros(16)])
    behaviour = mixed(always(rng.integers(0, 4, 5)[tries], 5), 0.5)
    how = {"normalised": False, "behaviour": behaviour, "length": 5, "ends": ends, "noise": "exponential"}
    problem = Problem("", P, r, np.stack([latency, work]), 0.99, rho0, np.ones(2), **how)
    return with_limits(problem, rng, strength=0.4)


def _dose(rng: np.random.Generator) -> Problem:
    """Choose doses of a drug that builds up; limit on toxic reactions, which depend on what has built up only.

    30 states: five grades of illness and six levels of the drug; four doses, gamma = 0.97. Reactions are Bernoulli.
    Episodes of 24 steps that start without the drug, by a rule that doses by illness and 20% of uniform actions.
    """
    ill, built = np.divmod(np.arange(30), 6)
    helps, clears = np.sort(rng.uniform(0.05, 0.5, 4)), rng.uniform(0.3, 0.6)
    worsens = rng.uniform(0.15, 0.3)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        better, worse = max(ill[s] - 1, 0), min(ill[s] + 1, 4)
        down = worsens * (1 - helps[a])
        for grade, p in ((better, helps[a]), (worse, down), (ill[s], 1 - helps[a] - down)):
            for taken, q in ((a, 0.5), (a // 2, 0.5)):
                for left, w in ((max(built[s] - 2, 0), clears), (built[s], 1 - clears)):
                    yield p * q * w, 6 * grade + min(left + taken, 5)

    r = np.tile((1 - ill / 4)[:, None], (1, 4)) - 0.03 * np.arange(4)
    toxic = 0.005 + rng.uniform(0.2, 0.5) * (built / 5) ** rng.uniform(1.5, 3.0)
    rho0 = np.where((built == 0) & (ill > 1), 1 / 3, 0.0)
    behaviour = mixed(always(np.minimum(ill, 3), 4), 0.8)
    how = {"behaviour": behaviour, "length": 24, "noise": "bernoulli"}
    P, c = transitions(30, 4, outcomes), np.tile(toxic[None, :, None], (1, 1, 4))
    return with_one_limit(Problem("", P, r, c, 0.97, rho0, np.ones(1), **how), rng)


def _field(rng: np.random.Generator) -> Problem:
    """Irrigate a crop until the harvest; limits on the water used and on the nutrients washed out by rain.

    120 states: eight levels of moisture, five stages of growth, three kinds of weather; three amounts of water,
    gamma = 0.99. The episode ends with the last stage. Costs are deterministic, budgets a season. The farmer waters
    below a threshold in 70% of the steps and otherwise as it comes.
    """
    stage, moisture, weather = np.unravel_index(np.arange(120), (5, 8, 3))
    rain = rng.uniform([0.0, 0.2, 0.6], [0.1, 0.4, 0.9])
    changes = 0.6 * np.eye(3) + 0.4 * rng.dirichlet(np.ones(3), 3)
    grows = rng.uniform(0.2, 0.4)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        if s == 120:
            yield 1.0, 120
            return
        yield grows * (stage[s] == 4), 120
        falls = rain[weather[s]]
        for (wet, p), (dries, q), following in product(((2, falls), (0, 1 - falls)), ((1, 0.6), (2, 0.4)), range(3)):
            level = int(np.clip(moisture[s] + 2 * a + wet - dries, 0, 7))
            weight, here = p * q * changes[weather[s], following], 3 * level + following
            yield weight * (1 - grows), 24 * int(stage[s]) + here
            yield weight * grows * (stage[s] < 4), 24 * min(int(stage[s]) + 1, 4) + here

    P, ends = _split_ends(transitions(121, 3, outcomes))
    likes = rng.uniform(3.5, 5.5, 5)[stage]
    growth = np.exp(-(((moisture - likes) / 2) ** 2)) * rng.uniform(0.5, 1.0, 5)[stage]
    r = growth[:, None] - rng.uniform(0.02, 0.08) * np.arange(3)
    water = np.tile(np.arange(3) / 2, (120, 1))
    over = np.clip(moisture[:, None] + 2 * np.arange(3) - 4, 0, None)
    washed = over * (0.05 + rain[weather])[:, None] / 7
    rho0 = np.where((stage == 0) & (moisture == 3), 1 / 3, 0.0)
    behaviour = mixed(always(np.where(moisture < rng.integers(3, 6), rng.integers(1, 3), 0), 3), 0.7)
    how = {"normalised": False, "behaviour": behaviour, "length": 60, "ends": ends}
    problem = Problem("", P, r, np.stack([water, washed]), 0.99, rho0, np.ones(2), **how)
    return with_limits(problem, rng, strength=1.0)


def _credit(rng: np.random.Generator) -> Problem:
    """Choose one of ten credit limits for a customer; limit on defaults, which are Bernoulli and rise with the credit.

    19 states: six ratings by three degrees of use, and a customer in default, who is replaced in time; gamma = 0.9.
    Independent transitions of a rule by rating, which takes 90% of the actions.
    """
    rating, use = np.divmod(np.arange(18), 3)
    credit = np.arange(1, 11) / 10
    risk = (0.002 + 0.15 * np.exp(-rating * rng.uniform(0.3, 0.7)))[:, None] * (0.5 + 0.5 * use[:, None])
    risk = np.clip(risk * (0.2 + credit ** rng.uniform(1.0, 2.0)), 0, 0.5)
    enters = rng.dirichlet(np.ones(18))
    uses = 0.3 + np.exp(-abs(np.arange(3) - 2.5 * (1 - credit[:, None])))  # the less credit, the more of it is used
    uses /= uses.sum(axis=1, keepdims=True)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        if s == 18:
            yield 0.7, 18
            yield from ((0.3 * p, k) for k, p in enumerate(enters))
            return
        yield risk[s, a], 18
        for change, p in ((-1, 0.1 + 0.05 * use[s]), (1, 0.15), (0, 0.75 - 0.05 * use[s])):
            graded = 3 * int(np.clip(rating[s] + change, 0, 5))
            for used in range(3):
                yield (1 - risk[s, a]) * p * uses[a, used], graded + used

    r, c = np.zeros((19, 10)), np.zeros((1, 19, 10))
    r[:-1] = credit * (0.3 + 0.35 * use)[:, None] * rng.uniform(0.8, 1.2, (18, 1))
    c[0, :-1] = risk
    rho0 = np.append(enters, 0.0)
    problem = Problem("", transitions(19, 10, outcomes), r, c, 0.9, rho0, np.ones(1), noise="bernoulli")
    rule = np.append(np.clip(rating + rng.integers(0, 5), 0, 9), 0)
    return with_one_limit(replace(problem, mu=occupancy(problem, mixed(always(rule, 10), 0.89))), rng)


def _patrol(rng: np.random.Generator) -> Problem:
    """Patrol one of four areas of a reserve, or guide visitors; a limit on poaching in each area.

    64 states: which areas poachers are in, and where the rangers are; five actions, gamma = 0.85. Losses are
    Bernoulli. Independent transitions of rangers who go round, 60%, or do anything.
    """
    present, base = np.divmod(np.arange(64), 4)
    poached = (present[:, None] >> np.arange(4)) & 1
    come, leave, stopped = rng.uniform(0.1, 0.4, 4), rng.uniform(0.05, 0.2, 4), rng.uniform(0.6, 0.9)

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        there = np.where(poached[s] == 1, 1 - leave, come)
        if a < 4:
            there[a] *= 1 - stopped
        for following in range(16):
            bits = (following >> np.arange(4)) & 1
            yield np.where(bits == 1, there, 1 - there).prod(), 4 * following + (a if a < 4 else int(base[s]))

    far = rng.uniform(0.1, 0.4, (4, 4)) * (1 - np.eye(4))
    guided = rng.uniform(0.6, 1.0, 4)
    r = np.concatenate([0.4 - far[base], guided[base][:, None]], axis=1)
    guarded = np.concatenate([np.eye(4), np.zeros((4, 1))], axis=1)
    loses = rng.uniform(0.2, 0.6, 4)[:, None, None] * poached.T[:, :, None]
    c = loses * (1 - 0.8 * guarded)[:, None, :]
    problem = Problem("", transitions(64, 5, outcomes), r, c, 0.85, np.full(64, 1 / 64), np.ones(4), noise="bernoulli")
    problem = with_limits(problem, rng, strength=2.0)
    return replace(problem, mu=occupancy(problem, mixed(always((base + 1) % 4, 5), 0.6)))


def _keys(rng: np.random.Generator) -> Problem:
    """Fetch two keys on a board with traps and leave by the door, which ends the game and is all that pays.

    80 states: 4 x 5 cells and the keys held; four moves, of which a tenth slips; gamma = 0.97. Limit on the steps that
    are made from traps. Games of at most 150 steps, by half the policy that is best without limits, half uniform moves.
    """
    moves = ((-1, 0), (0, 1), (1, 0), (0, -1))
    first, second, door, *traps = 1 + rng.permutation(19)[: 3 + int(rng.integers(5, 9))]

    def outcomes(s: int, a: int) -> Iterable[tuple[float, int]]:
        if s == 80:
            yield 1.0, 80
            return
        held, cell = divmod(s, 20)
        row, column = divmod(cell, 5)
        for b, (down, right) in enumerate(moves):
            reached = int(np.clip(row + down, 0, 3) * 5 + np.clip(column + right, 0, 4))
            keys = held | (reached == first) | 2 * (reached == second)
            yield 0.9 * (a == b) + 0.025, 80 if reached == door and keys == 3 else 20 * keys + reached

    P, ends = _split_ends(transitions(81, 4, outcomes))
    trapped = np.isin(np.arange(80) % 20, traps).astype(float)
    c = np.tile(trapped[None, :, None], (1, 1, 4))
    how = {"normalised": False, "length": 150, "ends": ends, "prize": 1.0}
    problem = Problem("", P, np.zeros((80, 4)), c, 0.97, np.eye(1, 80)[0], np.ones(1), **how)
    problem = with_one_limit(problem, rng)
    return replace(problem, behaviour=mixed(without_limits(problem)[0], 0.5))


def _dense(rng: np.random.Generator) -> Problem:
    """Every state may follow every pair; three budgets to which some pairs pay back.

    12 to 20 states, six actions, gamma = 0.6. A quarter of the costs are negative; all are deterministic.
    Independent transitions, uniform over the pairs.
    """
    n_states = int(rng.integers(12, 21))
    shape = (n_states, 6)
    P, r = random_transitions(*shape, n_states, rng), rng.random(shape)
    c = r + rng.uniform(-0.9, 0.6, (3, *shape))
    rho0, mu = rng.dirichlet(np.ones(n_states)), np.full(shape, 1 / r.size)
    return with_limits(Problem("", P, r, c, 0.6, rho0, np.ones(3), mu=mu), rng, strength=0.6)


def _seldom(rng: np.random.Generator) -> Problem:
    """A usual and a better paid, riskier way to do each job; the latter is 2% of the log. Limit on failures.

    8 to 12 states, two actions, gamma = 0.75. Failures are Bernoulli. Independent transitions.
    """
    n_states = int(rng.integers(8, 13))
    P, rho0 = random_transitions(n_states, 2, 4, rng), rng.dirichlet(np.ones(n_states))
    r = np.stack([rng.uniform(0.2, 0.5, n_states), rng.uniform(0.5, 1.0, n_states)], axis=1)
    c = np.stack([rng.uniform(0.01, 0.05, n_states), rng.uniform(0.02, 0.5, n_states)], axis=1)[None]
    problem = Problem("", P, r, c, 0.75, rho0, np.ones(1), noise="bernoulli")
    usual = mixed(always(np.zeros(n_states), 2), 0.96)
    return with_one_limit(replace(problem, mu=occupancy(problem, usual)), rng)


KINDS = (_thermostat, _taxi, _retry, _dose, _field, _credit, _patrol, _keys, _dense, _seldom)
