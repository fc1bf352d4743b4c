"""Small problems and runs that several test files share."""

from dataclasses import replace

import numpy as np

from dpdl import _core, _kernels
from dpdl.data.dataset import Dataset
from dpdl.learner.layout import Inputs, Layout
from dpdl.models.cmdp import CMDP
from dpdl.result import Point
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


def random_walk(n_states, n_actions, n_records, n_utilities, *, seed):
    """A log that is one trajectory, each of whose states is drawn anew; the rewards and utilities are nonnegative."""
    rng = np.random.default_rng(seed)
    s, a = rng.integers(0, n_states, n_records + 1), rng.integers(0, n_actions, n_records)
    r, u = rng.uniform(0, 1, n_records), rng.uniform(0, 1, (n_records, n_utilities))
    return Dataset(s[:-1], a, s[1:], r, u, n_states=n_states, n_actions=n_actions, starts=[0])


def resolved(log, **keywords):
    """Settings for a log with everything filled in."""
    return Settings(**keywords).resolve(log.n_states, log.n_actions, log.n_utilities)


class Run:
    """A compiled core on a log, built without `learn`, that speaks of all S x A pairs."""

    def __init__(self, kind, log, settings, *, seed, start=None, reference=None, initial=None, bounds=None, **options):
        states = np.arange(log.n_states) if initial is None else np.asarray(initial)
        rho0 = np.bincount(states, minlength=log.n_states) / len(states)
        point = None if start is None else Point.of(*start)
        inputs = Inputs.of(log, rho0=rho0, reference=reference, start=point)
        self.layout = Layout.of(log, settings, inputs)
        if bounds is not None:
            self.layout = replace(self.layout, constants=replace(self.layout.constants, B1=bounds[0], B2=bounds[1]))
        self.reference = self.layout.reference
        self.shape = (log.n_states, log.n_actions)
        self.settings = settings
        self.sampler = self.layout.sampler(np.random.Generator(np.random.PCG64(seed)))
        log_x, V, log_lam = self.layout.start()
        self.start = (self.dense(np.exp(log_x)), V, np.exp(log_lam))
        core = {"eager": _kernels.EagerCore, "lazy": _core.LazyCore}[kind]
        self.core = core(self.layout, self.sampler, log_x, V, log_lam, self.layout.refresh, **options)

    def dense(self, x):
        """Coordinates written out; unseen pairs share theirs equally."""
        return self.layout.coordinates.table(x).dense(*self.shape)

    @property
    def point(self):
        x, V, lam = self.core.point
        return self.dense(x), V, lam

    @property
    def means(self):
        x, V, lam = self.core.means
        return self.dense(x), V, lam


def excess(layout, settings, log_x, V, lam):
    """By how much a point, given by coordinates, leaves X, the box of V and the simplex of lam; relative."""
    x, constants = np.exp(log_x), layout.constants
    return {
        "sum x": x.sum() / constants.B1 - 1,
        "sum x/mu_hat": layout.coordinates.c @ x / constants.B2 - 1,
        "caps": np.expm1((log_x - layout.log_cap).max()),
        "V": abs(V).max() / settings.radius_V - 1,
        "sum lam": lam.sum() / settings.radius_lam - 1,
    }


def random_problem(seed, n_utilities=None, ending=None):
    """A small problem, often without a safe policy."""
    rng = np.random.default_rng(seed)
    n_states, n_actions = int(rng.integers(1, 13)), int(rng.integers(1, 5))
    n_utilities = int(rng.integers(1, 6)) if n_utilities is None else n_utilities
    P = rng.dirichlet(np.full(n_states, rng.choice([0.1, 1.0])), size=(n_states, n_actions))
    P[P < 1e-6] = 0.0
    P /= P.sum(axis=2, keepdims=True)
    ends = None
    if rng.random() < 0.3 if ending is None else ending:
        ends = rng.choice([0.0, 0.02, 0.3, 1.0], size=(n_states, n_actions), p=[0.4, 0.3, 0.2, 0.1])
        P *= 1 - ends[:, :, None]
    gamma = float(rng.choice([0.5, 0.9, 0.99, 0.999]))
    r = rng.uniform(-1, 1, (n_states, n_actions))
    u = rng.uniform(-1, 1, (n_utilities, n_states, n_actions)) * 0.5 + rng.uniform(-0.2, 0.4)
    return CMDP(P, r, u, gamma, rng.dirichlet(np.ones(n_states)), ends)


def one_state(r, *u, gamma=0.5):
    """A CMDP with one state, so that a policy is its own normalised occupancy."""
    n = len(r)
    return CMDP(np.ones((1, n, 1)), [r], np.reshape(u, (-1, 1, n)), gamma, [1.0])


def random_policy(cmdp, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(cmdp.n_actions), size=cmdp.n_states)
