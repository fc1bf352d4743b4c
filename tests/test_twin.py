"""The compiled cores against the plain NumPy twin, fed the same draws."""

import functools

import numpy as np
import pytest

from dpdl import learn, resume, sweep, verify
from dpdl.data.dataset import Dataset
from dpdl.question import pose
from problems import CORES, ORDERS, Run, random_log, resolved
from twin import Twin

N_STEPS = 10_000


def assert_close(actual, expected, relative):
    """Agreement of (x, V, lam) entry by entry, relative to the entry or to a share of the largest one.

    An entry of x that decayed has the relative error of the absolute one of log x, which is a sum of thousands of steps
    each with its rounding; a thousandth of the largest entry is far below anything that a policy depends on. V walks
    through zero, with the rounding of the size it had on the way: a tenth of the largest entry.
    """
    for name, mine, theirs, share in zip(("x", "V", "lam"), actual, expected, (1e-3, 0.1, 1e-3), strict=True):
        scale = np.maximum(abs(theirs), share * abs(theirs).max(initial=0.0))
        np.testing.assert_array_less(abs(mine - theirs), relative * scale + 1e-300, err_msg=name)


def side_by_side(log, settings, seed, n_steps, bounds=None):
    """Run the twin once and both cores on the same draws; `bounds` replaces those of sum x and sum x/mu_hat."""
    runs = {kind: Run(kind, log, settings, seed=seed, bounds=bounds) for kind in CORES}
    records, initial = Run("eager", log, settings, seed=seed).sampler.draw(n_steps)
    any_run = runs["eager"]
    twin = Twin(log, any_run.reference.mu_hat, settings, *any_run.start)
    twin.B1, twin.B2 = bounds or (twin.B1, twin.B2)
    for record, state in zip(records.tolist(), initial.tolist(), strict=True):
        twin.step(record, state)
    for run in runs.values():
        assert run.core.run(n_steps) == 0
    return twin, runs


@functools.cache
def run_of(order, n_utilities, psi):
    # The last action is never taken, so a third of the pairs are behind one lumped coordinate.
    log = random_log(6, 3, 400, n_utilities, seed=100 * n_utilities + int(10 * psi), used_actions=2, evenness=0.5)
    settings = resolved(log, gamma=0.8, psi=psi, slater=0.2, T=N_STEPS, order=order, floor=1e-4, kappa=0.1)
    return side_by_side(log, settings, seed=7, n_steps=N_STEPS)


@pytest.mark.parametrize(
    ("order", "n_utilities", "psi"),
    [
        # Every two of them together; all three in the slow tests.
        pytest.param(order, n_utilities, psi, marks=() if (i + j + k) % 6 == 0 else pytest.mark.slow)
        for i, order in enumerate(ORDERS)
        for j, n_utilities in enumerate((1, 3, 20))
        for k, psi in enumerate((1, 1.5, 4, 50))
    ],
)
def test_both_cores_make_the_iterates_of_the_twin(order, n_utilities, psi):
    twin, runs = run_of(order, n_utilities, psi)
    for run in runs.values():
        assert run.layout.coordinates.n_unseen >= 6
        assert_close(run.point, twin.point, 1e-12)
        assert_close(run.means, twin.means, 1e-12)
        assert [run.core.diagnostics[f"case_{k}"] for k in (1, 2, 3, 4)] == twin.cases


@pytest.mark.parametrize("kind", CORES)
def test_unseen_pairs_share_their_coordinate_equally(kind):
    twin, runs = run_of("replacement", 1, 1)
    run = runs[kind]
    unseen = np.ones(run.shape, dtype=bool)
    unseen.ravel()[run.layout.coordinates.pairs] = False
    for mine, theirs, total in (
        (run.point[0], twin.point[0], run.core.point[0][-1]),
        (run.means[0], twin.means[0], run.core.means[0][-1]),
    ):
        assert np.ptp(mine[unseen]) == 0
        # The twin moves each of them by itself, with the same arithmetic.
        assert np.ptp(theirs[unseen]) <= 1e-15 * theirs[unseen].max()
        np.testing.assert_allclose(theirs[unseen].sum(), total, rtol=1e-12)
    # They did move, by the steps at which the bound on sum x/mu_hat was tight.
    assert twin.cases[2] > 100
    assert np.all(run.point[0][unseen] < 0.9 * run.start[0][unseen])


@functools.cache
def tight_run(case):
    log = random_log(5, 3, 300, 1, seed=6, used_actions=2)
    settings = resolved(log, gamma=0.5, psi=8, slater=0.5, T=N_STEPS, floor=1e-3, alpha_x=4.0, alpha_V=2.0)
    any_run = Run("eager", log, settings, seed=0)
    x = np.exp(any_run.layout.coordinates.gather_logs(np.log(any_run.start[0])))
    # Bounds that the start meets with equality: the first step up meets one (case 2) or both of them (case 4).
    bounds = (x.sum(), any_run.layout.coordinates.c @ x * (100 if case == 2 else 1))
    return side_by_side(log, settings, seed=11, n_steps=2000, bounds=bounds)


@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("case", [2, 4])
def test_core_makes_the_iterates_of_the_twin_when_the_sum_of_x_is_tight(kind, case):
    twin, runs = tight_run(case)
    run = runs[kind]
    assert twin.cases[case - 1] > 10
    assert [run.core.diagnostics[f"case_{k}"] for k in (1, 2, 3, 4)] == twin.cases
    assert_close(run.point, twin.point, 1e-12)
    assert_close(run.means, twin.means, 1e-12)


@pytest.mark.parametrize("kind", CORES)
def test_every_pair_seen_and_no_utility(kind):
    pairs = np.arange(8)
    rng = np.random.default_rng(0)
    flat = np.concatenate([pairs, rng.integers(0, 8, 92)])
    log = Dataset(
        flat // 2,
        flat % 2,
        rng.integers(0, 4, 100),
        rng.uniform(-1, 1, 100),
        np.zeros((100, 0)),
        n_states=4,
        n_actions=2,
    )
    settings = resolved(log, gamma=0.7, psi=1.2, slater=0.5, T=2000, floor=1e-4)
    twin, runs = side_by_side(log, settings, seed=1, n_steps=2000)
    assert runs[kind].layout.coordinates.n_unseen == 0
    assert_close(runs[kind].point, twin.point, 1e-12)
    assert_close(runs[kind].means, twin.means, 1e-12)


@pytest.mark.parametrize("refresh", [None, 1, 7, 100])
@pytest.mark.parametrize("psi", [1.0, 50.0])
@pytest.mark.parametrize("kind", CORES)
def test_averages_are_over_the_iterates_before_each_step(kind, psi, refresh):
    log = random_log(4, 3, 100, 2, seed=3, used_actions=2)
    settings = resolved(log, gamma=0.8, psi=psi, slater=0.3, T=300, floor=1e-3, refresh=refresh)
    run = Run(kind, log, settings, seed=2)
    points = []
    for _ in range(300):
        points.append(run.point)
        run.core.run(1)
    # psi = 1 moves all pairs at once now and then, psi = 50 never does: only refreshes settle the averages then.
    assert (run.core.diagnostics["case_3"] > 10) == (psi == 1)
    # A mean of 300 numbers gathers some 300 roundings of 1e-16.
    assert_close(run.means, [np.mean(column, axis=0) for column in zip(*points, strict=True)], 1e-13)


@pytest.mark.parametrize("kind", CORES)
def test_a_question_about_stored_columns_has_the_bits_of_a_log_that_holds_its_utilities(kind):
    """Two of three costs, shares that depend on the end of an episode, and scales; the log itself is not copied."""
    rng = np.random.default_rng(3)
    n, ended = 400, rng.random(400) < 0.2
    moves = {"s": rng.integers(0, 5, n), "a": rng.integers(0, 2, n), "s_next": rng.integers(0, 5, n)}
    sizes = {"n_states": 5, "n_actions": 3, "terminated": ended}
    costs = {name: rng.uniform(0, 3, n) for name in ("wear", "noise", "heat")}
    raw = Dataset(**moves, r=rng.uniform(-7, 7, n), costs=costs, **sizes)
    limits = {"heat": 9.0, "wear": 6.5}
    posed = pose(raw, 0.8, limits, "total")
    settings = resolved(posed, gamma=0.8, psi=2, slater=0.5, T=3000, kappa=0.1, floor=1e-3)
    asked = Run(kind, posed, settings, seed=4)
    assert asked.core.run(3000) == 0
    assert np.shares_memory(asked.layout.records, raw.records)
    assert "_records" not in posed.__dict__
    stored = Dataset(**moves, r=posed.r, u=posed.u, **sizes)
    native = Run(kind, stored, settings, seed=4)
    twin = Twin(posed, native.reference.mu_hat, settings, *native.start)
    for record, state in zip(*Run(kind, stored, settings, seed=4).sampler.draw(3000), strict=True):
        twin.step(record, state)
    assert native.core.run(3000) == 0
    for one, other in zip(native.core.means, asked.core.means, strict=True):
        assert one.tobytes() == other.tobytes()
    assert_close(native.means, twin.means, 1e-9)


def test_learning_resuming_and_verifying_read_the_log_itself_whatever_is_asked(tmp_path):
    """The numbers are those on a log that holds the utilities, to rounding, and no scaled copy is made for them."""
    rng, n = np.random.default_rng(5), 600
    moves = {"s": rng.integers(0, 4, n), "a": rng.integers(0, 3, n), "s_next": rng.integers(0, 4, n)}
    sizes = {"n_states": 4, "n_actions": 3, "terminated": rng.random(n) < 0.1}
    raw = Dataset(**moves, r=rng.uniform(-50, 90, n), costs={"wear": rng.uniform(0, 3, n)}, **sizes)
    asked = {"limits": {"wear": 1.4}, "limit_on": "average"}
    options = {"gamma": 0.8, "psi": 3, "slater": 0.2, "T": 4000, "rho0": np.full(4, 0.25), "n_reference": 100}
    learn(raw, **options, **asked, rng=1, step_limit=1000, checkpoint=tmp_path / "run")
    result = resume(tmp_path / "run", raw)
    checked = verify(result, raw, rho0=options["rho0"], eps=0.2)
    posed = pose(raw, 0.8, **asked)
    assert "_records" not in posed.__dict__
    swept = sweep(raw, over={"kappa": [0.0, 0.1]}, **options, **asked, rng=1)  # it judges the policies
    stored = Dataset(**moves, r=posed.r, u=posed.u, **sizes)
    expected = learn(stored, **options, rng=1)
    for found in (result, swept[0][1]):
        for name in ("x_mean", "V_mean", "lam_mean"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12, err_msg=name)
    wanted = verify(expected, stored, rho0=options["rho0"], eps=0.2)
    np.testing.assert_allclose(checked.reward, wanted.reward, rtol=1e-12)
    np.testing.assert_allclose(checked.utilities, wanted.utilities, rtol=1e-11)
