"""Iterates never leave their sets, running sums never drift, and degenerate problems are problems like any other."""

import numpy as np
import pytest

from dpdl.data.dataset import Dataset
from dpdl.learner.learn import learn
from dpdl.stopping import Status
from problems import CORES, Run, excess, random_log, resolved


def assert_inside(run, relative):
    _, V, lam = run.core.point
    assert np.isfinite(run.core.log_x).all()
    assert np.isfinite(V).all()
    assert (lam >= 0).all()
    over = excess(run.layout, run.settings, run.core.log_x, V, lam)
    assert max(over.values()) <= relative, over


def assert_sums_kept(run, relative):
    total, weighted = run.core.running_sums
    x = run.core.x
    assert abs(total - x.sum()) <= relative * x.sum()
    assert abs(weighted - run.layout.coordinates.c @ x) <= relative * (run.layout.coordinates.c @ x)


def test_ten_million_steps_stay_inside_and_keep_their_sums():
    log = random_log(6, 3, 300, 1, seed=1, evenness=0.3, used_actions=2)
    settings = resolved(log, gamma=0.5, psi=10, slater=0.5, T=10**7, eta=0.003, floor=1e-3, alpha_x=0.3, alpha_V=0.02)
    run = Run("lazy", log, settings, seed=11)
    for _ in range(10**4):
        assert run.core.run(1000) == 0
        # Constraints hold to 1e-14 after each step that meets them; running sums gather 65,536 roundings at most.
        assert_inside(run, 1e-9)
        assert_sums_kept(run, 1e-10)
    counts = run.core.diagnostics
    assert counts["steps"] == 10**7
    assert min(counts[f"case_{k}"] for k in (1, 2, 3, 4)) > 100
    assert min(counts["capped"], counts["rebases"], counts["refreshes"]) > 100
    x, V, lam = run.core.means
    # The sets are convex, so the averages lie in them as well.
    assert max(excess(run.layout, settings, np.log(x), V, lam).values()) <= 1e-9


@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("psi", [1, 1.3, 6, 50])
def test_every_step_stays_inside(kind, psi):
    log = random_log(5, 4, 300, 3, seed=2, evenness=0.3, used_actions=3)
    settings = resolved(log, gamma=0.6, psi=psi, slater=0.2, T=1000, eta=0.3, floor=1e-5)
    run = Run(kind, log, settings, seed=4)
    for _ in range(1500):
        assert run.core.run(1) == 0
        assert_inside(run, 1e-12)
        assert_sums_kept(run, 1e-12)


@pytest.mark.parametrize("kind", CORES)
def test_sums_are_kept_without_a_refresh(kind):
    """Compensation alone: a million steps, no refresh, cases 1 and 3."""
    log = random_log(6, 3, 300, 1, seed=1, evenness=5.0, used_actions=2)
    settings = resolved(log, gamma=0.8, psi=1, slater=0.3, T=10**6, floor=1e-3, refresh=10**9)
    run = Run(kind, log, settings, seed=1)
    for _ in range(100):
        assert run.core.run(10_000) == 0
        assert_sums_kept(run, 1e-10)
        assert_inside(run, 1e-9)


# ---- Degenerate problems ----


def with_values(n_states, n_actions, n_utilities, *, n_records=300, r=None, u=None, seed=0):
    rng = np.random.default_rng(seed)
    n = n_records
    return Dataset(
        rng.integers(0, n_states, n),
        rng.integers(0, n_actions, n),
        rng.integers(0, n_states, n),
        rng.uniform(-1, 1, n) if r is None else np.full(n, r),
        rng.uniform(-1, 1, (n, n_utilities)) if u is None else np.full((n, n_utilities), u),
        n_states=n_states,
        n_actions=n_actions,
    )


PLAIN = {"gamma": 0.8, "psi": 1.5, "slater": 0.3, "floor": 1e-4}
DEGENERATE = {
    "one pair": (with_values(1, 1, 1), {}),
    "one pair and one record": (with_values(1, 1, 1, n_records=1), {}),
    "one state": (with_values(1, 5, 2), {}),
    "one action": (with_values(6, 1, 2), {}),
    "one utility": (with_values(4, 3, 1), {}),
    "no utility": (with_values(4, 3, 0), {}),
    "no utility and one pair": (with_values(1, 1, 0), {}),
    "many utilities": (with_values(2, 2, 50), {}),
    "psi one": (with_values(4, 3, 2), {"psi": 1}),
    "psi huge": (with_values(4, 3, 2), {"psi": 1e12}),
    "gamma near one": (with_values(4, 3, 2), {"gamma": 0.9999}),
    "gamma nearly one": (with_values(4, 3, 2), {"gamma": 1 - 1e-12}),
    "gamma near zero": (with_values(4, 3, 2), {"gamma": 1e-9}),
    "utilities zero": (with_values(4, 3, 2, u=0.0), {}),
    "utilities never kept": (with_values(4, 3, 2, u=-1.0), {}),
    "utilities always kept": (with_values(4, 3, 2, u=1.0), {}),
    "rewards constant": (with_values(4, 3, 2, r=1.0), {}),
    "nothing to gain": (with_values(4, 3, 2, r=0.0, u=0.0), {}),
    "every pair visited": (with_values(4, 3, 2), {}),
    "one record": (with_values(4, 3, 2, n_records=1), {}),
    "equal counts": (
        Dataset([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0], [[1], [-1], [0], [1]], n_states=2, n_actions=2),
        {},
    ),
    "floor tiny": (random_log(4, 3, 100, 1, seed=0, used_actions=2), {"floor": 1e-100}),
    "floor tiny and psi one": (random_log(4, 3, 100, 1, seed=0, used_actions=2), {"floor": 1e-100, "psi": 1}),
    "floor large": (with_values(4, 3, 2), {"floor": 0.3}),
    "slater tiny": (with_values(4, 3, 2), {"slater": 1e-6}),
    "slater one": (with_values(4, 3, 2), {"slater": 1.0}),
    "kappa large": (with_values(4, 3, 2), {"kappa": 5.0}),
    "radii tiny": (with_values(4, 3, 2), {"radius_V": 1e-9, "radius_lam": 3.4}),
}


@pytest.mark.parametrize("eta", [None, 100.0, 1e-12])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_problems_stay_inside_and_finite(name, eta):
    log, changes = DEGENERATE[name]
    settings = resolved(log, **{**PLAIN, "T": 3000, "eta": eta, **changes})
    for kind in CORES:
        run = Run(kind, log, settings, seed=3)
        for _ in range(30):
            assert run.core.run(100) == 0
            assert_inside(run, 1e-9)
        for part in (*run.point, *run.means):
            assert np.isfinite(part).all()


@pytest.mark.parametrize("eta", [None, 100.0])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_problems_are_learned_like_any_other(name, eta):
    log, changes = DEGENERATE[name]
    even = np.full(log.n_states, 1 / log.n_states)
    result = learn(log, **{**PLAIN, "T": 2000, "eta": eta, **changes}, rho0=even, rng=1)
    assert result.status is Status.COMPLETED
    for part in (result.x_mean, result.V_mean, result.lam_mean, result.policy, *result.last):
        assert np.isfinite(part).all()
    np.testing.assert_allclose(result.policy.sum(axis=1), 1, rtol=1e-14)
    assert (result.lam_mean.shape, result.V_mean.shape) == ((log.n_utilities,), (log.n_states,))
