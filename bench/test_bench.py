"""Microbenchmarks of each kernel and of the step: ``python -m pytest bench -n 0``.

The steps are timed inside the compiled loop: one round is one call that takes STEPS steps.
"""

import numpy as np
import pytest

from dpdl import _core
from problems import LOOSE, TIGHT, Bench

STEPS = 20_000
SIZES = (80, 1000, 10_000)


@pytest.fixture(scope="module")
def subproblem():
    """An x-update of a thousand pairs whose weighted sum is tight."""
    rng = np.random.default_rng(0)
    c = 10.0 ** rng.uniform(1, 5, 1000)
    x = 1 / c
    return {"log_x": np.log(x), "c": c, "log_cap": np.log(2 * x[3]), "j": 3, "step": 0.1, "B1": 10.0, "B2": 1000.0}


@pytest.mark.parametrize("psi", [LOOSE, TIGHT], ids=["slack", "tight"])
@pytest.mark.parametrize("size", SIZES)
def test_step(benchmark, size, psi):
    core = Bench(size, psi).lazy()
    core.run(STEPS)
    assert benchmark(core.run, STEPS) == 0


@pytest.mark.parametrize("size", SIZES[:2])
def test_eager_step(benchmark, size):
    core = Bench(size, TIGHT).eager()
    assert benchmark.pedantic(core.run, (1000,), rounds=5, warmup_rounds=1) == 0


def test_floor(benchmark):
    core = Bench(1000, LOOSE).lazy()
    assert np.isfinite(benchmark(core.bare_loop, STEPS))


def test_x_update(benchmark, subproblem):
    result = benchmark(_core.x_update, *subproblem.values())
    assert (result.case, result.code) == (3, 0)


def test_root_finder(benchmark, subproblem):
    root = benchmark(_core.find_root, *subproblem.values())
    assert root.beta > 0


def test_lam_update(benchmark):
    u = np.random.default_rng(0).uniform(-1, 1, 20)
    log_lam, lam = benchmark(_core.lam_update, np.zeros(20), u, 1.0, 0.01, 40.0)
    assert np.allclose(lam, np.exp(log_lam))


def test_V_update(benchmark):
    V = benchmark(_core.V_update, np.zeros(1000), 0, 1, 2, 1.0, 0.9, 0.1, 10.0)
    assert V[0] == -0.1


def test_bounded_integers(benchmark):
    draws = benchmark(_core.bounded_integers, np.random.PCG64(0), 1000, STEPS)
    assert draws.max() == 999
