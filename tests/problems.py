"""Small problems and runs that several test files share."""

from dataclasses import replace

import numpy as np

from dpdl import _core, theory
from dpdl.data.dataset import Dataset
from dpdl.data.reference import estimate_reference
from dpdl.learning.bins import Bins
from dpdl.learning.layout import Packed
from dpdl.result import Coordinates
from dpdl.settings import Settings

CORES = ("eager", "lazy")
ORDERS = ("replacement", "shuffle", "trajectory")


def random_log(n_states, n_actions, n_records, n_utilities, *, seed, used_actions=None, evenness=1.0):
    """A log of independent transitions; actions from `used_actions` on never occur, small `evenness` skews it."""
    rng = np.random.default_rng(seed)
    used = n_actions if used_actions is None else used_actions
    share = rng.gamma(evenness, size=n_states * used) + 1e-12
    flat = rng.choice(n_states * used, size=n_records, p=share / share.sum())
    return Dataset(
        flat // used,
        flat % used,
        rng.integers(0, n_states, n_records),
        rng.uniform(-1, 1, n_records),
        rng.uniform(-1, 1, (n_records, n_utilities)),
        n_states=n_states,
        n_actions=n_actions,
    )


def resolved(log, **keywords):
    """Settings for a log with everything filled in."""
    return Settings(**keywords).resolve(log.n_states, log.n_actions, log.n_utilities)


def paper_start(log, mu_hat, settings):
    """The paper's starting point (x, V, lam), dense."""
    n_utilities = log.n_utilities
    share = theory.sparsity(log.n_states, log.n_actions, n_utilities) / (log.n_states * log.n_actions)
    x = share * mu_hat / (1 - settings.gamma)
    lam = np.full(n_utilities, 1 / (settings.slater * max(n_utilities, 1)))
    return x, np.zeros(log.n_states), lam


class Run:
    """A compiled core on a log, built without `learn`, that speaks of all S x A pairs."""

    def __init__(self, kind, log, settings, *, seed, start=None, reference=None, initial=None, bounds=None, **options):
        self.reference = estimate_reference(log, settings.floor) if reference is None else reference
        self.packed = Packed.build(log, self.reference, settings)
        if bounds is not None:
            self.packed = replace(self.packed, B1=bounds[0], B2=bounds[1])
        self.shape = (log.n_states, log.n_actions)
        self.settings = settings
        self.start = paper_start(log, self.reference.mu_hat, settings) if start is None else start
        states = np.arange(log.n_states) if initial is None else np.asarray(initial)
        even = np.full(len(states), 1 / len(states))
        self.sampler = _core.Sampler(np.random.PCG64(seed), len(log), settings.order, states, even)
        x, V, lam = self.start
        log_x = self.packed.gather_logs(np.log(x))
        refresh = settings.refresh or max(2**16, 4 * len(log_x))
        if kind == "eager":
            self.core = _core.EagerCore(self.packed, self.sampler, log_x, V, np.log(lam), refresh)
        else:
            bins = Bins.of(self.packed.c)
            self.core = _core.LazyCore(self.packed, bins, self.sampler, log_x, V, np.log(lam), refresh, **options)

    def dense(self, x):
        """Coordinates written out; unseen pairs share theirs equally."""
        n, n_unseen = len(self.packed.pairs), self.packed.n_unseen
        return Coordinates(self.packed.pairs, x[:n], x[n] / n_unseen if n_unseen else 0.0).dense(*self.shape)

    @property
    def point(self):
        x, V, lam = self.core.point
        return self.dense(x), V, lam

    @property
    def means(self):
        x, V, lam = self.core.means
        return self.dense(x), V, lam


def excess(packed, settings, log_x, V, lam):
    """By how much a point, given by coordinates, leaves X, the box of V and the simplex of lam; relative."""
    x = np.exp(log_x)
    return {
        "sum x": x.sum() / packed.B1 - 1,
        "sum x/mu_hat": packed.c @ x / packed.B2 - 1,
        "caps": np.expm1((log_x - packed.log_cap).max()),
        "V": abs(V).max() / settings.radius_V - 1,
        "sum lam": lam.sum() / settings.radius_lam - 1,
    }
