"""Small worlds in which a careless certificate is wrong; protocol `worlds` of `bench/safety.py`.

In most of them every policy breaks the limit, by 5 to 10%, so that every answer is wrong. Costs are Bernoulli unless
said. The size of a log is fixed by its world.

    W1  S states, A actions, n rows a pair; each decision ends; all pairs alike
    W2  eight treatments with n records each, accidents .15, one .02 that earns nothing; quiet rows elsewhere
    W3  a chain of six states with six actions, each of which leads into a costly loop with probability .1; episodes
    W4  a quiet loop that enters a state with eight treatments 5% of the time; n records a treatment
    W5  rows drawn at random from a model whose pairs all cost alike
    W6  a cost of 100 once in 150 rows, with and without cost_max
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dpdl import Dataset
from dpdl.question import pose
from safety_model import Array, Problem, random_transitions


@dataclass(frozen=True, eq=False)
class World(Problem):
    """A problem whose logs hold so many rows of each pair; drawn from all pairs if there is a total instead.

    Attributes
    ----------
    rows : array of int, shape (S, A), or None
    total : int
    cost_max : float or None
        What methods are told about the largest cost of a step.
    most : float
        What a step costs when it costs.
    """

    rows: Array | None = None
    total: int = 0
    cost_max: float | None = None
    most: float = 1.0

    @property
    def known_start(self) -> Array | None:
        return None if self.behaviour is not None else self.rho0

    def log(self, n: int, rng: np.random.Generator) -> Dataset:
        """Draw a log; `n` is not used."""
        if self.behaviour is not None:
            s, a, s_next, ended, last = self._episodes(self.total, rng)
        else:
            pairs = np.repeat(np.arange(self.r.size), self.rows.ravel()) if self.rows is not None else None
            pairs = rng.integers(0, self.r.size, self.total) if pairs is None else pairs
            s, a = np.divmod(pairs, self.r.shape[1])
            after = np.concatenate([self.P, self._ends[:, :, None]], axis=2)[s, a].cumsum(axis=1)
            s_next = (after < rng.random((len(s), 1))).sum(axis=1)
            ended, last = s_next >= len(self.P), None
            s_next = np.where(ended, 0, s_next)
        costs = self.most * (rng.random(len(s)) < self.c[0][s, a] / self.most)
        flags = {"terminated": ended if ended.any() else None, "truncated": last}
        sizes = {"n_states": len(self.P), "n_actions": self.r.shape[1]}
        log = Dataset(s, a, s_next, self.r[s, a], costs={"cost 0": costs}, **sizes, **flags)
        return pose(log, self.gamma, {"cost 0": float(self.limits[0])}, "average" if self.normalised else "total")

    @property
    def _ends(self) -> Array:
        return np.zeros(self.r.shape) if self.ends is None else self.ends


def _alike(S: int, A: int, n: int, rng: np.random.Generator) -> World:
    shape, short = (S, A), rng.uniform(0.9, 0.95)
    problem = Problem("", np.zeros((S, A, S)), rng.random(shape), np.full((1, S, A), 0.2), 0.9, np.full(S, 1 / S),
                      np.array([0.2 * short]), normalised=False, ends=np.ones(shape))  # fmt: skip
    return _world(problem, rows=np.full(shape, n))


def _treatments(n: int, quiet: int, rng: np.random.Generator) -> World:
    """State 0 has eight treatments and ends; state 1 is quiet and is never reached."""
    c, r = np.full((1, 2, 8), 0.15), rng.uniform(0.5, 1.0, (2, 8))
    c[0, 0, 7], r[0, 7], c[0, 1] = 0.02, 0.0, 0.0
    P, ends = np.zeros((2, 8, 2)), np.ones((2, 8))
    P[1, :, 1], ends[1] = 0.5, 0.5
    rows = np.array([[n] * 8, [quiet] + [0] * 7])
    first, limits = np.array([1.0, 0.0]), np.array([0.08])
    return _world(Problem("", P, r, c, 0.9, first, limits, normalised=False, ends=ends), rows=rows)


def _chain(episodes: int, rng: np.random.Generator) -> World:
    S, A = 7, 6
    P, ends, c = np.zeros((S, A, S)), np.zeros((S, A)), np.zeros((1, S, A))
    for s in range(6):
        P[s, :, 6] = 0.1
        if s < 5:
            P[s, :, s + 1] = 0.9
        else:
            ends[s] = 0.9
    P[6, :, 6], ends[6], c[0, 6] = 0.8, 0.2, 0.9
    problem = Problem("", P, rng.random((S, A)), c, 0.95, np.eye(1, S)[0], np.ones(1), normalised=False, ends=ends)
    uniform = np.full((S, A), 1 / A)
    limit = 0.95 * problem.figures(uniform)[1]
    return _world(replace(problem, limits=limit, behaviour=uniform, length=200), total=episodes)


def _loop(n: int, rng: np.random.Generator) -> World:
    P, c, r = np.zeros((2, 8, 2)), np.zeros((1, 2, 8)), rng.random((2, 8))
    P[0, :, 0], P[0, :, 1], P[1, :, 0], c[0, 1] = 0.95, 0.05, 1.0, 0.2
    problem = Problem("", P, r, c, 0.95, np.array([1.0, 0.0]), np.ones(1))
    limit = 0.95 * problem.figures(np.full((2, 8), 1 / 8))[1]
    return _world(replace(problem, limits=limit), rows=np.array([[160 * n] + [0] * 7, [n] * 8]))


def _random(n: int, rng: np.random.Generator) -> World:
    S, A = 10, 3
    P, shape = random_transitions(S, A, 3, rng), (S, A)
    problem = Problem("", P, rng.random(shape), np.full((1, S, A), 0.2), 0.9, np.full(S, 1 / S), np.array([0.19]))
    return _world(problem, total=n)


def _accident(declared: bool, rng: np.random.Generator) -> World:
    S, A = 5, 2
    c, first, limits = np.full((1, S, A), 100 / 150), np.full(S, 1 / S), np.array([0.6])
    problem = Problem("", np.zeros((S, A, S)), rng.random((S, A)), c, 0.9, first, limits, normalised=False,
                      ends=np.ones((S, A)))  # fmt: skip
    return _world(problem, rows=np.full((S, A), 15), most=100.0, cost_max=100.0 if declared else None)


def _world(problem: Problem, **more: object) -> World:
    fields = {name: getattr(problem, name) for name in Problem.__dataclass_fields__}
    return World(**fields, **more)


#: States, actions and rows a pair of W1.
SIZES = ((4, 1, 1), (40, 1, 1), (50, 4, 1), (50, 4, 3), (50, 8, 5), (50, 8, 10), (3, 50, 20), (2, 100, 10))
WORLDS: dict[str, Callable[[np.random.Generator], World]] = {
    **{f"W1 {S}x{A} {n}": lambda rng, S=S, A=A, n=n: _alike(S, A, n, rng) for S, A, n in SIZES},
    **{
        f"W2 {n} beside {quiet}": lambda rng, n=n, quiet=quiet: _treatments(n, quiet, rng)
        for n in (5, 15)
        for quiet in (50, 5000)
    },
    **{f"W3 {n} episodes": lambda rng, n=n: _chain(n, rng) for n in (40, 200)},
    **{f"W4 {n} a treatment": lambda rng, n=n: _loop(n, rng) for n in (5, 20, 60)},
    **{f"W5 {n} rows": lambda rng, n=n: _random(n, rng) for n in (4, 300, 2000)},
    "W6": lambda rng: _accident(False, rng),
    "W6 cost_max": lambda rng: _accident(True, rng),
}


def draw(rng: np.random.Generator, index: int) -> World:
    """Draw the world number `index`; they take turns."""
    name = list(WORLDS)[index % len(WORLDS)]
    return replace(WORLDS[name](rng), kind=name)
