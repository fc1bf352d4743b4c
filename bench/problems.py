"""Logs of any number of visited pairs, and the cores that run on them, for the benchmarks.

States have ten actions and every action five successors. The number of records is ten a pair, spread unevenly (gamma
distributed rates), so that counts reach from one to some dozens and mu_hat has the many repeated values of real logs.
"""

from __future__ import annotations

import functools

import numpy as np

from dpdl import _core, _kernels, exact
from dpdl.data.dataset import Dataset
from dpdl.learner.layout import Inputs, Layout
from dpdl.result import Point
from dpdl.settings import Settings
from twin import Twin

ACTIONS, BRANCHING, RECORDS_PER_PAIR = 10, 5, 10

#: psi >= C* (41 at 80 pairs, 268 at 1,000, as the report prints; C* does not grow with the number of states,
#: to which both the occupancy and mu are in inverse proportion), and psi < C*, as tight as it gets.
LOOSE, TIGHT = 1000.0, 1.0


class Bench:
    """A synthetic problem of about `n_pairs` visited pairs.

    With `full`, x starts with sum x at its bound, V stays near 0 and the utilities are 0, so that every step would
    increase x and is in case 2 of the x-update, unless it takes the sampled pair to its cap.
    """

    def __init__(
        self, n_pairs: int, psi: float, n_utilities: int = 1, seed: int = 0, *, full: bool = False, T: int = 10**8
    ) -> None:
        n_states = max(2, n_pairs // ACTIONS)
        self.dataset = make_log(n_states, n_utilities, seed, utility=0.0 if full else 1.0)
        alpha_V = 1e9 if full else None
        self.settings = Settings(gamma=0.9, psi=psi, slater=0.2, T=T, floor=1e-8, alpha_V=alpha_V).resolve(
            n_states, ACTIONS, n_utilities
        )
        rho0 = np.full(n_states, 1 / n_states)
        self.layout = Layout.of(self.dataset, self.settings, Inputs.of(self.dataset, rho0=rho0))
        if full:
            log_x, V, log_lam = self.layout.start()
            x = self.layout.coordinates.table(np.exp(log_x)).dense(n_states, ACTIONS)
            start = Point.of(x * (self.layout.constants.B1 / x.sum()), V, np.exp(log_lam))
            self.layout = Layout.of(self.dataset, self.settings, Inputs.of(self.dataset, rho0=rho0, start=start))
        self.n_coordinates = len(self.layout.coordinates.c)

    def sampler(self, seed: int) -> _core.Sampler:
        return self.layout.sampler(np.random.Generator(np.random.PCG64(seed)))

    def lazy(self, seed: int = 1) -> _core.LazyCore:
        return _core.LazyCore(self.layout, self.sampler(seed), *self.layout.start())

    def eager(self, after: _core.LazyCore | None = None) -> _kernels.EagerCore:
        """The eager core, from the start or from where a lazy one has got to."""
        start = self.layout.start() if after is None else (after.log_x, after.point[1], after.log_lam)
        return _kernels.EagerCore(self.layout, self.sampler(2), *start)

    def concentrability(self) -> float:
        """C* of the empirical model, for small problems."""
        d = self.dataset
        model = exact.plug_in(d, self.settings.gamma, np.full(d.n_states, 1 / d.n_states))
        return model.concentrability(d.frequencies)

    def twin(self, after: _core.LazyCore) -> Twin:
        """The plain-NumPy step, from where a lazy core has got to."""
        mu_hat = self.layout.reference.mu_hat
        twin = Twin(self.dataset, mu_hat, self.settings, mu_hat, *after.point[1:])
        table = self.layout.coordinates.log_table(after.log_x)  # x itself may underflow
        twin.log_x = table.dense(self.dataset.n_states, self.dataset.n_actions).ravel()
        return twin


@functools.lru_cache(maxsize=2)
def make_log(n_states: int, n_utilities: int, seed: int, *, utility: float = 1.0) -> Dataset:
    """A log of an uneven behaviour on a random sparse model; rewards and utilities are functions of the pair.

    `utility` is the largest absolute value of the utilities.
    """
    rng = np.random.default_rng(seed)
    n_pairs = n_states * ACTIONS
    counts = rng.poisson(RECORDS_PER_PAIR * rng.gamma(2.0, 0.5, n_pairs))
    pair = rng.permutation(np.repeat(np.arange(n_pairs), counts))
    successors = rng.integers(0, n_states, (n_pairs, BRANCHING), dtype=np.int32)
    s_next = successors[pair, rng.integers(0, BRANCHING, len(pair))]
    reward, utilities = rng.random(n_pairs), utility * rng.uniform(-1, 1, (n_pairs, n_utilities))
    return Dataset(
        pair // ACTIONS, pair % ACTIONS, s_next, reward[pair], utilities[pair], n_states=n_states, n_actions=ACTIONS
    )
