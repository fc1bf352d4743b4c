"""Bounds that coincide: bandits, where one pair may hold all that a sum allows, and caps that (nearly) equal a bound.

The logarithms of all pairs are compared, not x alone: a pair that should have shrunk to e^-300 and did not is invisible
in x, until its gradient turns.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpdl import Dataset, Settings, _kernels, learn
from dpdl.result import Point
from exact_run import ExactRun
from problems import CORES, Run
from test_xupdate import Survey, examine
from twin import Twin
from xupdate_oracle import Problem, unbounded


def bandit(seed, n_actions=3, n_records=30):
    """One state, no utility: N = 1, so that c_j cap_j = B2 for every pair."""
    rng = np.random.default_rng(seed)
    a = np.append(np.arange(n_actions), rng.integers(0, n_actions, n_records - n_actions))
    zeros = np.zeros(n_records, dtype=int)
    return Dataset(
        zeros, a, zeros, rng.uniform(-1, 1, n_records), np.zeros((n_records, 0)), n_states=1, n_actions=n_actions
    )


def settings_of(log, psi, seed, n_steps):
    sizes = log.n_states, log.n_actions, log.n_utilities
    gamma = float(np.random.default_rng(seed + 1000).choice([0.5, 0.9, 0.99]))
    stated = Settings(gamma=gamma, slater=0.5, psi=psi, T=n_steps, kappa=0.0, floor=1e-3)
    theory = stated.resolve(*sizes)
    # Steps far larger than the theorem's, so that the bounds are met within some hundred of them.
    scales = {"alpha_V": 50 * theory.alpha_V, "alpha_lam": 0.3 * theory.alpha_lam, "alpha_x": 5e-4 * theory.alpha_x}
    return stated.changed(**scales, radius_V=1.5 / (1 - gamma)).resolve(*sizes)


def everyone(log, settings, seed, n_steps, log_cap_as_doubles=False):
    """Log x of the last iterate and of the averages, from the exact run, the twin and both cores on the same draws."""
    runs = {kind: Run(kind, log, settings, seed=seed) for kind in CORES}
    records, initial = Run("eager", log, settings, seed=seed).sampler.draw(n_steps)
    first = runs["eager"]
    twin = Twin(log, first.reference.mu_hat, settings, *first.start)
    log_cap = twin.log_cap if log_cap_as_doubles else None
    exact = ExactRun(log, first.reference.mu_hat, settings, *first.start, log_cap=log_cap)
    for record, state in zip(records.tolist(), initial.tolist(), strict=True):
        exact.step(record, state)
        twin.step(record, state)
    with np.errstate(divide="ignore"):
        found = {"twin": (twin.log_x, np.log(twin.means[0]).ravel())}
        for kind, run in runs.items():
            assert run.core.run(n_steps) == 0
            found[kind] = (run.core.log_x, np.log(run.means[0]).ravel())
    return (np.array([float(value) for value in exact.log_x]), exact.log_x_mean), found


def assert_agree(exact, found, tolerance):
    """Relative agreement of x and of its averages, entry by entry, however small."""
    for name, (last, mean) in found.items():
        scale = np.maximum(1.0, abs(exact[0]))  # log x is a sum of steps, each rounded
        np.testing.assert_array_less(abs(last - exact[0]), tolerance * scale, err_msg=f"{name}, last")
        # Averages below the smallest double are zero.
        visible = exact[1] > math.log(np.finfo(float).tiny)
        np.testing.assert_array_less(
            abs(mean - exact[1])[visible], tolerance * scale[visible], err_msg=f"{name}, averages"
        )


#: n_actions, n_records, psi and seed; more of them in the slow run.
BANDITS = [(3, 30, psi, seed) for psi in (1.0, 1.3) for seed in range(4)]
MANY_BANDITS = [(1 + seed % 5, 30 + seed, [1.0, 1.3, 2.0, 7.5][seed % 4], seed) for seed in range(60)]


@pytest.mark.parametrize(
    ("n_actions", "n_records", "psi", "seed"),
    [*BANDITS, *(pytest.param(*bandit, marks=pytest.mark.slow) for bandit in MANY_BANDITS)],
)
def test_a_bandit_is_learned_by_the_exact_algorithm(n_actions, n_records, psi, seed):
    log = bandit(seed, n_actions, n_records)
    assert_agree(*everyone(log, settings_of(log, psi, seed, 400), seed, 400), 1e-9)


def nearly_tied(distance, seed):
    """A log and settings with psi mu_hat_0 = 4 (1 - distance): the cap of pair 0 all but equals the bound of sum x."""
    rng = np.random.default_rng(seed)
    a = np.array([0] * 20 + [1, 2, 3] * 4 + [0, 1, 2, 3])
    n = len(a)
    s, s_next = np.zeros(n, dtype=int), rng.integers(0, 2, n)
    s[-4:] = 1
    r = rng.uniform(-0.2, 0.6, n)
    r[:20] += 0.4
    log = Dataset(s, a, s_next, r, rng.uniform(-1, 1, (n, 1)), n_states=2, n_actions=4)
    psi = 4 * (1 - distance) / (20 / n)
    settings = settings_of(log, psi, seed, 400)
    return log, replace(settings, alpha_x=settings.alpha_x / 30)


# The cap is a double: 2^-53 of it, relative to what it leaves of the bound, is as well as the others can be known.
TIES = [0.0, 3e-15, -3e-15, 1e-13, -1e-13, 1e-12, -1e-12, 1e-10, -1e-10, 1e-9, -1e-9, 1e-6, -1e-6, 1e-4, 1e-3]


@pytest.mark.parametrize(
    "distance", [pytest.param(one, marks=() if k % 2 == 0 else pytest.mark.slow) for k, one in enumerate(TIES)]
)
def test_a_cap_that_all_but_equals_the_bound_of_the_sum(distance):
    log, settings = nearly_tied(distance, seed=1)
    exact, found = everyone(log, settings, 1, 200, log_cap_as_doubles=True)
    last, _ = exact
    rounding = 1e-15 / abs(distance) if abs(distance) > 1e-13 else 0.0
    if rounding:
        assert_agree(exact, found, 1e-9 + rounding)
        return
    # Whether the cap binds is decided by rounding, so only the mass is determined: the others have none to speak of.
    for name, (log_x, _) in found.items():
        np.testing.assert_allclose(np.exp(log_x), np.exp(last), rtol=0, atol=1e-12 * np.exp(last).max(), err_msg=name)
    for kind in CORES:
        assert_agree(found["twin"], {kind: found[kind]}, 1e-9)


def test_the_ties_are_met():
    """In the runs above pair 0 does get to its cap, and the others are nearly all gone."""
    log, settings = nearly_tied(1e-9, seed=1)
    run = Run("lazy", log, settings, seed=1)
    run.core.run(200)
    assert run.core.diagnostics["capped"] > 5
    held, *others = run.core.x[:4]
    assert sum(others) < 1e-8 * held


@pytest.mark.parametrize("step", [0.5, 40.0, 1e3, 1e6, 1e12, 1e18])
@pytest.mark.parametrize("beyond", [1 - 1e-9, 1 - 1e-12, 1 - 1e-14, 1.0, 1 + 1e-14, 1 + 1e-9, 1.5, 30.0, 1e6])
def test_a_cap_at_or_beyond_what_the_second_sum_leaves(beyond, step, monkeypatch):
    """c_j cap = beyond B2: no feasible x_j is at its cap once that is one or more."""
    if step > 1e8:
        arithmetic = unbounded()
        for module in ("xupdate_oracle", "test_xupdate"):
            monkeypatch.setattr(f"{module}.mp", arithmetic)
    survey = Survey(0)
    for others in ([0.3, 0.2], [1e-12, 1e-30], []):
        c = np.array([2.0, 3.0, 50.0])[: 1 + len(others)]
        B1, B2 = 10.0, 8.0
        log_x = np.log(np.array([3.9 - sum(others), *others]))
        examine(Problem(log_x, c, math.log(beyond * B2 / c[0]), 0, step, B1, B2), survey)
    survey.failures.pop("flags", None)  # whether a cap binds that leaves nothing is a matter of words
    assert not survey.failures


def rarely_large():
    """A log in whose order a pair is tiny for all but the last of the steps, settings and a starting point."""
    a = [0, 1] + [0] * 4 + [2] * 9
    r = [2e-4, -1] + [0] * 4 + [1] + [0] * 8
    zeros = [0] * 15
    log = Dataset(zeros, a, zeros, r, np.zeros((15, 0)), n_states=1, n_actions=3)
    mu = np.bincount(a) / 15
    settings = {"gamma": 0.5, "psi": 1, "slater": 1, "T": 10**6, "eta": 1, "floor": 1e-3, "order": "trajectory"}
    settings |= {"alpha_x": 1 / (68 * mu[2]), "alpha_V": 1e9}
    return log, Settings(**settings), ([[1, 1, 1e-30] * mu], [0.0], [])


def test_averages_are_never_negative():
    """A pair that is tiny for all but the last of the steps: what its sum is made of must not cancel."""
    log, settings, start = rarely_large()
    run = Run("lazy", log, settings.resolve(1, 3, 0), seed=0, start=start, initial=[0])
    for n in range(1, 200):
        assert run.core.run(1) == 0
        means = run.core.means[0]
        assert (means > 0).all(), (n, means)


@pytest.mark.parametrize("refresh", [None, 64])
@pytest.mark.parametrize("psi", [1.2, 3.0, 50.0])
def test_averages_are_accurate_relative_to_themselves(psi, refresh):
    """Pairs whose x spans hundreds of orders of magnitude within a run, against sums of the iterates."""
    rng = np.random.default_rng(3)
    n, n_steps = 60, 1500
    s, a = rng.integers(0, 2, n), rng.integers(0, 3, n)
    r = np.sign(rng.uniform(-1, 1, n))
    log = Dataset(s, a, rng.integers(0, 2, n), r, np.zeros((n, 0)), n_states=2, n_actions=3)
    settings = Settings(
        gamma=0.5, psi=psi, slater=1, T=n_steps, eta=1.0, alpha_x=0.5, alpha_V=1e3, floor=1e-2, refresh=refresh
    ).resolve(2, 3, 0)
    run = Run("lazy", log, settings, seed=0)
    total = np.full(len(run.core.x), -np.inf)
    span = np.zeros(len(total))
    for _ in range(n_steps):
        log_x = run.core.log_x
        span = np.minimum(span, log_x)
        total = np.logaddexp(total, log_x)
        assert run.core.run(1) == 0
    assert span.min() < -50
    with np.errstate(divide="ignore"):
        found = np.log(run.core.means[0]) + math.log(n_steps)
    visible = total > math.log(np.finfo(float).tiny)
    # The bound of _lazy.pxd: 4 refresh 2^-53; logaddexp itself rounds 1500 times.
    np.testing.assert_allclose(found[visible], total[visible], rtol=0, atol=4 * 2**16 * 2**-53 + 1e-12)


def test_the_policy_of_a_callback_has_no_negative_average():
    """The same through `learn`, which would refuse to make a policy of it."""
    log, settings, start = rarely_large()
    seen = []
    options = {"callback": lambda intermediate: seen.append(intermediate.policy), "callback_every": 1, "step_limit": 7}
    result = learn(log, settings, rho0=[1.0], start=Point.of(*start), **options)
    assert len(seen) >= 6
    assert all((policy >= 0).all() for policy in [*seen, result.policy])


def test_the_kernel_drops_a_cap_that_cannot_bind():
    """A huge step with c_j cap > B2: x_j takes what the sum leaves, not its cap."""
    found = _kernels.x_update(np.log([1.0, 1.0]), np.array([1.0, 2.0]), math.log(100.0), 0, 1e9, 1000.0, 5.0)
    assert found.code == 0
    assert not found.capped
    assert math.isclose(math.exp(found.log_x[0]), 5.0, rel_tol=1e-12)
