"""Logs of any number of visited pairs, and the cores that run on them, for the benchmarks.

States have ten actions and every action five successors. The number of records is ten a pair, spread unevenly (gamma
distributed rates), so that counts reach from one to some dozens and mu_hat has the many repeated values of real logs.
"""

from __future__ import annotations

import numpy as np

from dpdl import _core, exact, theory
from dpdl.data.dataset import Dataset
from dpdl.data.reference import estimate_reference
from dpdl.learning.bins import Bins
from dpdl.learning.layout import Packed
from dpdl.learning.twin import Twin
from dpdl.result import Coordinates
from dpdl.settings import Settings

ACTIONS, BRANCHING, RECORDS_PER_PAIR = 10, 5, 10

#: psi >= C* (41 at 80 pairs, 268 at 1,000, as the report prints; C* does not grow with the number of states,
#: to which both the occupancy and mu are in inverse proportion), and psi < C*, as tight as it gets.
LOOSE, TIGHT = 1000.0, 1.0


class Bench:
    """A synthetic problem of about `n_pairs` visited pairs."""

    def __init__(self, n_pairs: int, psi: float, n_utilities: int = 1, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        n_states = max(2, n_pairs // ACTIONS)
        self.dataset = make_log(n_states, n_utilities, rng)
        self.settings = Settings(gamma=0.9, psi=psi, slater=0.2, T=10**8, floor=1e-8).resolve(
            n_states, ACTIONS, n_utilities
        )
        self.reference = estimate_reference(self.dataset, self.settings.floor)
        self.packed = Packed.build(self.dataset, self.reference, self.settings)
        self.n_coordinates = len(self.packed.c)

    def sampler(self, seed: int = 1) -> _core.Sampler:
        n = self.dataset.n_states
        states = np.arange(n, dtype=np.int32)
        return _core.Sampler(np.random.PCG64(seed), len(self.dataset), "replacement", states, np.full(n, 1 / n))

    def start(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The paper's starting point, by coordinates."""
        d, s = self.dataset, self.settings
        share = theory.sparsity(d.n_states, d.n_actions, d.n_utilities) / (d.n_states * d.n_actions) / (1 - s.gamma)
        x = share / self.packed.c
        if self.packed.n_unseen:
            x[-1] *= self.packed.n_unseen
        return x, np.zeros(d.n_states), np.full(d.n_utilities, 1 / (s.slater * d.n_utilities))

    def lazy(self, seed: int = 1) -> _core.LazyCore:
        x, V, lam = self.start()
        refresh = max(2**16, 4 * len(x))
        return _core.LazyCore(
            self.packed, Bins.of(self.packed.c), self.sampler(seed), np.log(x), V, np.log(lam), refresh
        )

    def eager(self, after: _core.LazyCore | None = None) -> _core.EagerCore:
        """The eager core, from the start or from where a lazy one has got to."""
        if after is None:
            x, V, lam = self.start()
            return _core.EagerCore(self.packed, self.sampler(2), np.log(x), V, np.log(lam))
        return _core.EagerCore(self.packed, self.sampler(2), after.log_x, after.point[1], after.log_lam)

    def concentrability(self) -> float:
        """C* of the empirical model, for small problems."""
        d = self.dataset
        mu = np.zeros(d.n_states * d.n_actions)
        mu[d.pairs] = d.counts / len(d)
        model = exact.plug_in(d, self.settings.gamma, np.full(d.n_states, 1 / d.n_states))
        return model.concentrability(mu.reshape(d.n_states, d.n_actions))

    def twin(self, after: _core.LazyCore) -> Twin:
        """The plain-NumPy step, from where a lazy core has got to."""
        n_unseen = self.packed.n_unseen
        elsewhere = after.log_x[-1] - np.log(n_unseen) if n_unseen else 0.0
        values = Coordinates(self.packed.pairs, after.log_x[: len(self.packed.pairs)], elsewhere)
        mu_hat = self.reference.mu_hat
        twin = Twin(self.dataset, mu_hat, self.settings, mu_hat, *after.point[1:])
        twin.log_x = values.dense(self.dataset.n_states, self.dataset.n_actions).ravel()  # x itself may underflow
        return twin


def make_log(n_states: int, n_utilities: int, rng: np.random.Generator) -> Dataset:
    """A log of an uneven behaviour on a random sparse model; rewards and utilities are functions of the pair."""
    n_pairs = n_states * ACTIONS
    counts = rng.poisson(RECORDS_PER_PAIR * rng.gamma(2.0, 0.5, n_pairs))
    pair = rng.permutation(np.repeat(np.arange(n_pairs), counts))
    successors = rng.integers(0, n_states, (n_pairs, BRANCHING), dtype=np.int32)
    s_next = successors[pair, rng.integers(0, BRANCHING, len(pair))]
    reward, utility = rng.random(n_pairs), rng.uniform(-1, 1, (n_pairs, n_utilities))
    return Dataset(
        pair // ACTIONS, pair % ACTIONS, s_next, reward[pair], utility[pair], n_states=n_states, n_actions=ACTIONS
    )
