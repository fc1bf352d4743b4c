"""The lazy core makes the iterates of the eager one, whatever the bins go through."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpdl import _kernels, exact, instances
from dpdl.data.dataset import Dataset
from dpdl.learner.bins import OWN_BINS, Bins
from long_runs import greedy_log
from problems import Run, random_log, resolved

STEPS = 10**5


def relative(found, expected):
    """Largest elementwise relative difference; what has underflowed must have underflowed on both sides."""
    return max(
        float((abs(a - b) / np.maximum(abs(b), 1e-300)).max(initial=0.0)) for a, b in zip(found, expected, strict=True)
    )


def garnet_log(n_utilities, n_records, seed):
    """A log on a random model, and the concentrability of where it lies."""
    cmdp = instances.garnet(12, 4, n_utilities, rng=seed)
    uneven = np.random.default_rng(seed).gamma(1.0, size=(12, 4)) + 0.02
    log = cmdp.sample(n_records, uneven / uneven.sum(), rng=seed)
    mu = np.zeros(48)
    mu[log.pairs] = log.pair_counts / len(log)
    model = exact.plug_in(log, cmdp.gamma, cmdp.rho0)
    return log, model.concentrability(mu.reshape(12, 4))


def regimes():
    """Settings in which each part of the lazy frame has to work; name -> (log, settings, options of the core)."""
    one, C_one = garnet_log(1, 2000, 3)
    many, C_many = garnet_log(20, 2000, 4)
    assert C_one > 1.5
    assert C_many > 1.5
    common = {"gamma": 0.9, "slater": 0.1, "T": 10**6, "floor": 1e-4}
    thin = random_log(100, 10, 1000, 1, seed=5, evenness=0.3)
    assert (thin.pair_counts == 1).sum() > 100
    quick = {"alpha_x": 1.0, "alpha_V": 0.3}
    greedy = greedy_log(12, 4, 2000, seed=1)  # sum x is at its bound from some thousand steps on
    return {
        "mass bound": (greedy, resolved(greedy, psi=100, **common, alpha_x=10.0, alpha_V=1e3), {}),
        "mass bound, folded at every step": (
            greedy,
            resolved(greedy, psi=100, **common, alpha_x=10.0, alpha_V=1e3),
            {"threshold": 0.0},
        ),
        "both bounds": (greedy, resolved(greedy, psi=8, **common, alpha_x=10.0, alpha_V=1e3), {}),
        "psi above C*": (one, resolved(one, psi=2 * C_one, **common), {}),
        "psi below C*": (one, resolved(one, psi=1.1, **common, **quick), {}),
        "psi above C*, twenty utilities": (many, resolved(many, psi=2 * C_many, **common), {}),
        "psi below C*, twenty utilities": (many, resolved(many, psi=1, **common, **quick), {}),
        "heavy floor": (one, resolved(one, psi=1.2, **(common | {"floor": 0.02}), **quick), {}),
        "light floor": (thin, resolved(thin, psi=1.1, **(common | {"floor": 1e-8}), alpha_x=30.0), {}),
        "counts of one": (thin, resolved(thin, psi=1, **common, alpha_x=10.0), {}),
        "every bin rebased at every shift": (one, resolved(one, psi=1, **common, **quick), {"threshold": 0.0}),
        "refreshed all the time": (one, resolved(one, psi=1, refresh=100, **common, **quick), {}),
    }


REGIMES = regimes()


@pytest.mark.parametrize("name", REGIMES)
def test_a_hundred_thousand_steps_agree(name):
    log, settings, options = REGIMES[name]
    lazy, eager = (
        Run("lazy", log, settings, seed=9, **options),
        Run("eager", log, settings, seed=9),
    )
    assert lazy.core.run(STEPS) == eager.core.run(STEPS) == 0
    counts = lazy.core.diagnostics
    # A step within rounding of a bound may be called case 1 by one core and case 3, with beta = 1e-17, by the other.
    assert abs(counts["case_3"] - eager.core.diagnostics["case_3"]) <= 20
    if "bound" in name:
        assert counts["case_2"] > 5000
        assert (name == "both bounds") == (min(counts["case_3"], counts["case_4"]) > 1000)
    elif "above" not in name:
        assert counts["case_3"] + counts["capped"] > 1000  # deviation control binds, by its sum or by its caps
    if options:
        moves = STEPS - counts["case_1"]
        assert counts["rebases"] > 2 * moves > 1000
    assert relative(lazy.means, eager.means) < 1e-9
    assert relative(lazy.point, eager.point) < 1e-9


@pytest.mark.parametrize(
    ("psi", "gamma", "alpha_x"),
    [
        pytest.param(50, 0.5, 0.1, marks=pytest.mark.slow),
        pytest.param(3, 0.5, 0.05, marks=pytest.mark.slow),
        (1, 0.9, 0.1),
    ],
)
def test_each_step_agrees_where_trajectories_separate(psi, gamma, alpha_x):
    """With steps this large two runs part by chaos (a rounding grows tenfold within some steps), so each step of the
    lazy core is compared with one eager step from the lazy core's own state."""
    log = random_log(5, 3, 3000, 1, seed=6, evenness=0.5)
    settings = resolved(log, gamma=gamma, psi=psi, slater=0.2, T=10**6, floor=1e-3, alpha_x=alpha_x, alpha_V=0.05)
    lazy, draws = Run("lazy", log, settings, seed=1), Run("eager", log, settings, seed=1).sampler
    for _ in range(5000):
        V = lazy.core.point[1]
        eager = _kernels.EagerCore(lazy.layout, draws, lazy.core.log_x, V, lazy.core.log_lam)
        assert lazy.core.run(1) == eager.run(1) == 0
        np.testing.assert_allclose(lazy.core.log_x, eager.log_x, rtol=1e-13, atol=1e-12)
        for found, expected in zip(lazy.core.point[1:], eager.point[1:], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)
    others = sum(lazy.core.diagnostics[f"case_{k}"] for k in (2, 3, 4))
    assert others > 50


def test_each_step_agrees_while_moves_gather_between_two_folds():
    log, settings, _ = REGIMES["both bounds"]
    first = Run("lazy", log, settings, seed=1)
    assert first.core.run(60_000) == 0
    small = replace(settings, alpha_x=10 * settings.alpha_x)
    lazy, draws = (Run(kind, log, small, seed=2, start=first.point) for kind in ("lazy", "eager"))
    draws, drops = draws.sampler, []
    for _ in range(4000):
        eager = _kernels.EagerCore(lazy.layout, draws, lazy.core.log_x, lazy.core.point[1], lazy.core.log_lam)
        assert lazy.core.run(1) == eager.run(1) == 0
        np.testing.assert_allclose(lazy.core.log_x, eager.log_x, rtol=1e-13, atol=1e-12)
        drops.append(lazy.core.state()["window"][2])
    assert min(lazy.core.diagnostics[f"case_{k}"] for k in (2, 3, 4)) > 20
    # A fold returns `drop` to zero.
    n_moves, n_folds = (np.diff(drops) > 0).sum(), (np.diff(drops) < 0).sum()
    assert n_moves > 5 * n_folds > 20


@pytest.mark.parametrize("name", ["mass bound", "both bounds", "psi below C*", "light floor"])
def test_averages_are_sums_of_iterates_whatever_binds(name):
    """Relative to themselves, however small."""
    log, settings, _ = REGIMES[name]
    run = Run("lazy", log, settings, seed=4)
    x_sum = 0.0
    for _ in range(15_000):
        x_sum = x_sum + run.core.x
        assert run.core.run(1) == 0
    assert run.core.diagnostics["case_1"] < 14_000
    np.testing.assert_allclose(run.core.x_sum, x_sum, rtol=1e-11, atol=1e-290)


def test_a_jump_beyond_the_reach_of_the_series_is_solved_by_summation():
    """A beta that carries bins past the series is rare, so their reach is cut short; each step is an eager step."""
    log, settings, _ = REGIMES["psi below C*"]
    lazy, draws = Run("lazy", log, settings, seed=2, reach=1e-3), Run("eager", log, settings, seed=2).sampler
    x_sum, jumps = 0.0, 0
    for _ in range(20_000):
        before = lazy.core.diagnostics["jumps"]
        x_sum = x_sum + lazy.core.x
        eager = _kernels.EagerCore(lazy.layout, draws, lazy.core.log_x, lazy.core.point[1], lazy.core.log_lam)
        assert lazy.core.run(1) == eager.run(1) == 0
        if lazy.core.diagnostics["jumps"] > before:
            jumps += 1
            np.testing.assert_allclose(lazy.core.log_x, eager.log_x, rtol=1e-13, atol=1e-12)
    assert 100 < jumps < lazy.core.diagnostics["case_3"]
    np.testing.assert_allclose(lazy.core.x_sum, x_sum, rtol=1e-11)


def test_many_light_pairs_and_a_few_heavy_ones_survive_their_refreshes():
    """The running sums and the binned ones differ by a rounding here; mixed in one function they would have no root."""
    rng = np.random.default_rng(0)
    n_light, n_heavy, n_records = 10_000, 10, 200_000
    pair = np.concatenate([np.arange(n_light), n_light + rng.integers(0, n_heavy, n_records - n_light)])
    n_states = (n_light + n_heavy) // 10
    rng.shuffle(pair)
    log = Dataset(
        pair // 10, pair % 10, rng.integers(0, n_states, n_records), rng.uniform(-1, 1, n_records),
        rng.uniform(-1, 1, (n_records, 1)), n_states=n_states, n_actions=10,
    )  # fmt: skip
    settings = resolved(log, gamma=0.9, psi=1, slater=0.2, T=10**6, eta=1e-4, floor=1e-8, refresh=1000)
    for seed in range(3):
        run = Run("lazy", log, settings, seed=seed)
        assert run.core.run(500_000) == 0
        assert run.core.diagnostics["refreshes"] == 500


def test_averages_survive_a_step_that_only_the_solver_calls_case_1():
    """Within an ulp of a bound the quick test can say no where the solver finds that nothing but one pair moves."""
    n_quiet, n_actions = 2000, 10
    actions = np.concatenate([np.zeros(n_quiet, dtype=int), np.arange(1000) % n_actions])
    rewards = np.concatenate([np.zeros(n_quiet), -np.ones(1000)])
    zeros = np.zeros(len(actions), dtype=int)
    log = Dataset(zeros, actions, zeros, rewards, np.zeros((len(actions), 0)), n_states=1, n_actions=n_actions)
    settings = resolved(
        log, gamma=0.6, psi=400, slater=1, T=3000, order="trajectory", alpha_V=1e200, alpha_x=0.05, eta=0.01, floor=1e-3
    )
    rng, tried = np.random.default_rng(0), 0
    limit = 10.0 * (1 + 1e-14)  # B1 = 4/(1-gamma), with the tolerance of the quick test
    while tried < 5:
        x = np.exp(np.log(rng.dirichlet(np.full(n_actions, 50.0)) * limit))
        total = math.fsum(x)
        if not limit < total <= limit * (1 + 1e-15) or (total - x[0]) + x[0] > limit:
            continue
        tried += 1
        start = (x[None], np.zeros(1), np.zeros(0))
        lazy = Run("lazy", log, settings, seed=0, start=start, initial=[0])
        x_sum = 0.0
        for _ in range(3000):
            x_sum = x_sum + lazy.core.x
            assert lazy.core.run(1) == 0
        np.testing.assert_allclose(lazy.core.x_sum, x_sum, rtol=1e-11)


def test_bins_hold_every_pair_once_and_place_it():
    rng = np.random.default_rng(0)
    for c in (
        1 / np.maximum(rng.poisson(3, 5000) / 15000, 1e-8),
        10.0 ** rng.uniform(0, 10, 3000),
        np.array([7.0]),
        np.full(100, 3.0),
        np.repeat([1.0, 2.0, 4.0, 8.0], 50),
    ):
        bins = Bins.of(c)
        assert np.array_equal(np.sort(bins.order), np.arange(len(c)))
        for b in range(len(bins.centre)):
            members = bins.order[bins.first[b] : bins.first[b + 1]]
            assert len(members) > 0
            assert (bins.bin[members] == b).all()
            assert c[members].max() <= 2.0000001 * c[members].min()
            assert (bins.half[b] > 0) == (b < bins.n_wide)
        np.testing.assert_allclose(bins.centre[bins.bin] + bins.half[bins.bin] * bins.d, c, rtol=1e-14)
        assert abs(bins.d).max() <= 1
        assert len(bins.centre) <= OWN_BINS + 1 + np.log2(c.max() / c.min())


@pytest.mark.parametrize("last", [3.0, 1e8])
def test_the_last_pair_may_have_a_bin_for_itself(last):
    c = np.append(np.repeat([1.0, 2.5, 3.0], 20), last)
    plain, bins = Bins.of(c[:-1]), Bins.of(c, last_apart=True)
    assert bins.order[bins.first[-2] : bins.first[-1]].tolist() == [60]
    assert (bins.centre[-1], bins.half[-1], bins.d[-1]) == (last, 0.0, 0.0)
    assert np.array_equal(bins.bin[:-1], plain.bin)
    assert (bins.bin[-1], bins.n_wide) == (len(plain.centre), plain.n_wide)


@pytest.mark.slow
def test_a_billion_steps_keep_their_invariants_and_their_averages():
    cmdp = instances.garnet(20, 4, 1, rng=8)
    uneven = np.random.default_rng(8).gamma(1.0, size=(20, 4)) + 0.02
    log = cmdp.sample(4000, uneven / uneven.sum(), rng=8)
    mu = np.zeros(80)
    mu[log.pairs] = log.pair_counts / len(log)
    assert exact.plug_in(log, cmdp.gamma, cmdp.rho0).concentrability(mu.reshape(20, 4)) > 1.5
    runs = {}
    for refresh in (None, 10**4):
        settings = resolved(log, gamma=0.9, psi=1.5, slater=0.1, T=10**9, floor=1e-4, refresh=refresh)
        runs[refresh] = run = Run("lazy", log, settings, seed=3)
        assert run.core.run(10**9) == 0
        x = run.core.x
        total, weighted = run.core.running_sums
        # The stated bound of drift: refresh * 2^-53.
        bound = (refresh or 2**16) * 2.0**-53
        assert abs(total / x.sum() - 1) < bound
        assert abs(weighted / (run.layout.coordinates.c @ x) - 1) < bound
        assert x.sum() <= run.layout.constants.B1 * (1 + 1e-9)
        assert run.layout.coordinates.c @ x <= run.layout.constants.B2 * (1 + 1e-9)
        assert (run.core.log_x <= run.layout.log_cap + 1e-9).all()
        assert abs(run.core.point[1]).max() <= settings.radius_V
        assert run.core.point[2].sum() <= settings.radius_lam * (1 + 1e-9)
    difference = relative(runs[None].means, runs[10**4].means)
    print(f"\naverages differ by {difference:.1e} after 10^9 steps; {runs[None].core.diagnostics}")
    assert difference < 1e-9
