"""The compiled dual updates against plain NumPy, at the edges of their sets and of double range."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq

import dpdl
import twin
from dpdl import _kernels
from dpdl.data.dataset import Dataset
from problems import CORES, Run, random_log, resolved
from twin import Twin

EPS = np.finfo(float).eps


def V_update(V, initial, s, s_next, *constants):
    return _kernels.V_update(V, np.array([[initial, s, s_next]], dtype=np.int32), *constants)


def numpy_V(V, initial, s, s_next, weight, gamma, rate, radius):
    g = np.zeros(len(V))
    g[initial] += 1
    g[s_next] += weight * gamma
    g[s] -= weight
    return np.clip(V - rate * g, -radius, radius)


@pytest.mark.parametrize(("initial", "s", "s_next"), list(itertools.product(range(3), repeat=3)))
def test_V_for_states_that_coincide_or_not(initial, s, s_next):
    V = np.array([0.3, -1.7, 0.01, 5.0])
    found = V_update(V, initial, s, s_next, 2.3, 0.9, 0.07, 100.0)
    # Three additions in another order: a few roundings of numbers below 8.
    np.testing.assert_allclose(found, numpy_V(V, initial, s, s_next, 2.3, 0.9, 0.07, 100.0), rtol=0, atol=8 * EPS)
    assert found[3] == 5.0


@pytest.mark.parametrize(("initial", "s", "s_next"), list(itertools.product(range(2), repeat=3)))
@pytest.mark.parametrize("weight", [0.0, 1e-3, 50.0, 1e300])
def test_V_is_clipped_to_its_box_once_the_step_is_complete(initial, s, s_next, weight):
    V = np.array([0.9, -0.9])
    found = V_update(V, initial, s, s_next, weight, 0.99, 1.5, 1.0)
    np.testing.assert_allclose(found, numpy_V(V, initial, s, s_next, weight, 0.99, 1.5, 1.0), rtol=0, atol=64 * EPS)
    assert (abs(found) <= 1.0).all()


def test_a_V_on_its_bound_stays_there_exactly():
    found = V_update(np.array([1.0, -1.0, 0.0]), 1, 0, 2, 3.0, 0.5, 0.1, 1.0)
    assert found[:2].tolist() == [1.0, -1.0]


def numpy_lam(log_lam, u, shift, weight, rate, radius):
    """In longdouble, so that the comparison is with the formula and not with its rounding."""
    log_half = log_lam.astype(np.longdouble) - rate * weight * (u - shift)
    top = log_half.max()
    total = np.exp(log_half - top).sum()
    return np.exp(log_half - np.maximum(0, top + np.log(total) - np.log(np.longdouble(radius))))


@pytest.mark.parametrize("n", [1, 2, 20])
@pytest.mark.parametrize("rate", [1e-3, 0.3, 5.0])
def test_lam_is_numpy_s(n, rate):
    rng = np.random.default_rng(n)
    for _ in range(50):
        log_lam, u = np.log(rng.uniform(1e-6, 10 / n, n)), rng.uniform(-1, 1, n)
        log_new, new = _kernels.lam_update(log_lam, u - 0.05, 2.0, rate, 10.0)
        np.testing.assert_allclose(new, numpy_lam(log_lam, u, 0.05, 2.0, rate, 10.0), rtol=1e-14)
        np.testing.assert_allclose(np.exp(log_new), new, rtol=1e-15)
        log_twin = twin.lam_update(log_lam, rate * 2.0 * (u - 0.05), 10.0)
        np.testing.assert_allclose(log_new, log_twin, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0, 1e6])
def test_lam_survives_exponents_beyond_exp_and_sums_to_its_radius(n, size):
    u = np.linspace(-1, 1, n) if n > 1 else np.array([-1.0])
    log_lam, lam = _kernels.lam_update(np.zeros(n), u, size, 1.0, 0.7)
    assert np.isfinite(log_lam).all()
    assert np.isfinite(lam).all()
    # exp of a logarithm of order one, and a sum of n of them: a few roundings.
    assert abs(lam.sum() / 0.7 - 1) <= 1e-15
    # The master copy keeps what the value cannot: e^-2000 comes back when the gradient turns.
    np.testing.assert_allclose(np.diff(log_lam), -size * np.diff(u), rtol=1e-12)


def test_lam_comes_back_from_beyond_the_smallest_double():
    down, lam = _kernels.lam_update(np.zeros(2), np.array([1.0, 0.0]), 1000.0, 1.0, 5.0)
    assert lam[0] == 0
    back, lam = _kernels.lam_update(down, np.array([-1.0, 0.0]), 1000.0, 1.0, 5.0)
    # Two roundings of numbers of size 1000.
    np.testing.assert_allclose(back, [0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(lam, [1.0, 1.0], rtol=1e-12)


def test_lam_inside_its_radius_is_not_scaled():
    _, lam = _kernels.lam_update(np.log([1.0, 2.0]), np.zeros(2), 1.0, 1.0, 3.0000001)
    np.testing.assert_allclose(lam, [1.0, 2.0], rtol=4 * EPS)


@pytest.mark.parametrize("radius", [0.5, 2.0, 50.0])
def test_lam_is_the_kl_projection(radius):
    """lam = argmin of <step, l> + KL(l || lam_old) over l >= 0, sum l <= radius."""
    rng = np.random.default_rng(8)
    n = 4
    old, step = rng.uniform(0.1, 1, n), rng.uniform(-1, 1, n)
    old *= min(1.0, radius / old.sum())
    _, new = _kernels.lam_update(np.log(old), step, 1.0, 1.0, radius)

    def objective(lam):
        return step @ lam + (lam * np.log(lam / old) - lam + old).sum()

    # KKT: step + log(new/old) = -multiplier, the same for all, >= 0, and zero unless the sum is tight.
    multiplier = -(step + np.log(new / old))
    np.testing.assert_allclose(multiplier, multiplier[0], atol=1e-14)
    assert multiplier[0] >= -1e-14
    assert abs(multiplier[0] * (new.sum() - radius)) <= 1e-13

    # The dual by bisection: sum old exp(-step - m) decreases in m, and m = 0 unless the sum is then above the radius.
    def excess(m):
        return np.log(np.exp(-step - m) @ old) - np.log(radius)

    solved = old * np.exp(-step - (brentq(excess, 0.0, 100.0, xtol=1e-15) if excess(0.0) > 0 else 0.0))
    np.testing.assert_allclose(new, solved, rtol=1e-13)
    # No feasible point nearby is better: the objective is strictly convex, so this holds of its minimiser alone.
    for size in 10.0 ** np.arange(-6, 1):
        for _ in range(20):
            other = new * np.exp(size * rng.normal(size=n))
            other *= min(1.0, radius / other.sum())
            assert objective(other) >= objective(new) - 1e-15


@pytest.mark.parametrize("kind", CORES)
def test_without_utilities_there_is_nothing_to_update(kind):
    log = random_log(4, 3, 100, 0, seed=1)
    run = Run(kind, log, resolved(log, gamma=0.8, psi=2, slater=0.5, T=500), seed=0)
    assert run.core.run(500) == 0
    for x, V, lam in (run.point, run.means):
        assert lam.shape == (0,)
        assert np.isfinite(x).all()
        assert np.isfinite(V).all()


@pytest.mark.parametrize("kind", CORES)
def test_the_logarithm_of_x_is_right_below_the_smallest_double(kind):
    """psi < C* and a small floor drive unseen pairs beyond e^-745; master copies agree with the twin all the same."""
    log = random_log(6, 3, 400, 1, seed=1, used_actions=2)
    settings = resolved(log, gamma=0.8, psi=1, slater=0.2, T=5000, kappa=0.1, floor=2e-5)
    run = Run(kind, log, settings, seed=7)
    records, initial = Run(kind, log, settings, seed=7).sampler.draw(5000)
    follower = Twin(log, run.reference.mu_hat, settings, *run.start)
    for record, state in zip(records, initial, strict=True):
        follower.step(record, state)
    assert run.core.run(5000) == 0
    unseen = np.setdiff1d(np.arange(18), run.layout.coordinates.pairs)
    expected = np.append(follower.log_x[run.layout.coordinates.pairs], follower.log_x[unseen[0]] + np.log(len(unseen)))
    assert expected[-1] < -745
    assert run.core.x[-1] == 0
    # The logarithm is a sum of some thousand shifts, each rounded at the size that it has reached by then.
    np.testing.assert_allclose(run.core.log_x, expected, rtol=1e-11, atol=1e-11)


def test_the_product_does_not_import_what_only_tests_and_benchmarks_need():
    sources = list(Path(dpdl.__file__).parent.rglob("*.py"))
    assert len(sources) > 50
    assert [path.name for path in sources if "_kernels" in path.read_text()] == []


@pytest.mark.parametrize("array", [np.zeros(3, dtype=np.float32), np.zeros(6)[::2]])
def test_arrays_of_another_kind_do_not_reach_the_core(array):
    log = random_log(3, 1, 50, 1, seed=1)
    run = Run("lazy", log, resolved(log, gamma=0.8, psi=2, slater=0.5, T=10), seed=0)
    bins = replace(run.layout.coordinates.bins, centre=array)
    layout = replace(run.layout, coordinates=replace(run.layout.coordinates, bins=bins))
    with pytest.raises(TypeError, match="contiguous elements"):
        type(run.core)(layout, run.sampler, *run.layout.start())


def test_the_printed_sign_of_g_x_loses_what_the_right_one_earns():
    """Equation (9) prints r + gamma V(s) - V(s'). A state whose first action leads to the rewarding one."""
    moves = {"s": [0, 0, 1, 1], "a": [0, 1, 0, 1], "s_next": [1, 0, 1, 0]}
    log = Dataset(**moves, r=[0.0, 0.1, 1.0, 0.0], u=np.ones((4, 1)), n_states=2, n_actions=2)
    run = Run("eager", log, resolved(log, gamma=0.8, psi=4, slater=0.5, T=200_000), seed=0, initial=[0])
    printed = _kernels.EagerCore(run.layout, run.sampler, *run.layout.start(), printed_sign=True)
    assert run.core.run(200_000) == printed.run(200_000) == 0
    stays, leaves = (core.means[0][[1, 0]] / core.means[0][:2].sum() for core in (printed, run.core))
    assert leaves[1] > 0.8
    assert stays[1] < 0.1
