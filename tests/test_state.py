"""The state in a checkpoint: any that a run comes to is taken, and none that a run could not go on from."""

import contextlib
import re
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dpdl import learn, resume
from dpdl.learner import checkpoint_file
from dpdl.result import Point, Status
from long_runs import greedy_log, nudge
from problems import ORDERS, random_log
from test_invariants import DEGENERATE, PLAIN

COMMON = {"slater": 0.3, "T": 2000, "floor": 1e-4, "check_slater": False}
#: Near every bound; with steps so large that updates jump; far from all bounds.
REGIMES = {
    "tight": {"gamma": 0.8, "psi": 1.3, "eta": 0.01, "alpha_x": 0.3, "radius_V": 0.5, "refresh": 97},
    "jumping": {"gamma": 0.8, "psi": 6.0, "eta": 0.3, "alpha_x": 0.05, "floor": 1e-5, "radius_V": 0.5, "refresh": 400},
    "slack": {"gamma": 0.5, "psi": 50.0},
}
#: Every two of a regime, an order and a number of utilities together.
KINDS = [(regime, ORDERS[j], (0, 1, 3)[(i + j) % 3]) for i, regime in enumerate(REGIMES) for j in range(3)]

pytestmark = pytest.mark.usefixtures("no_fsync")


def log_of(n_utilities):
    return greedy_log(6, 4, 150, seed=3, n_utilities=n_utilities)


def begin(path, log, **changes):
    """Begin a run, and take no step."""
    rho0 = np.arange(log.n_states) + (log.n_states == 1)  # one state is never drawn, if there are several
    options = {"rho0": rho0 / rho0.sum(), "rng": 5, "step_limit": 0, "checkpoint": path, "even_if_infeasible": True}
    return learn(log, **{**COMMON, **changes, **options})


# ---- Genuine ones ----


def go_on_from_each(path, log, limits):
    """Go on with a run by way of these steps, and twice from each of them, with and without draws made ahead."""
    for limit in limits:
        result = resume(path, log, step_limit=limit, check_slater=False)
        if result.status is Status.STEP_LIMIT:
            nudge(path, log)
    return result


@pytest.mark.parametrize(("regime", "order", "n_utilities"), KINDS)
def test_any_state_that_a_run_comes_to_is_taken(regime, order, n_utilities, tmp_path):
    log, limits = log_of(n_utilities), np.sort(np.random.default_rng(1).integers(0, 1700, 5)).tolist()
    changes = {**REGIMES[regime], "order": order}
    begin(tmp_path / "run", log, **changes)
    result = go_on_from_each(tmp_path / "run", log, [*limits, 2000])
    counts = result.diagnostics
    assert result.status is Status.COMPLETED
    assert regime == "slack" or min(counts["case_1"], counts["steps"] - counts["case_1"]) > 100
    assert (regime == "jumping" and n_utilities < 3) == (counts["jumps"] > 0)


@pytest.mark.parametrize("eta", [None, 100.0])
@pytest.mark.parametrize("name", DEGENERATE)
def test_any_state_of_a_degenerate_problem_is_taken(name, eta, tmp_path):
    log, changes = DEGENERATE[name]
    begin(tmp_path / "run", log, **{**PLAIN, "eta": eta, **changes})
    assert go_on_from_each(tmp_path / "run", log, [0, 700, 2000]).status is Status.COMPLETED


def test_a_start_on_the_edge_of_its_sets_is_taken(tmp_path):
    """As far outside as `learn` lets it be, and where doubles have but a few digits left."""
    log, edge = log_of(3), 1 + 9e-10
    log_x = begin(tmp_path / "plain", log, **REGIMES["tight"]).last.log_x - 740
    start = Point(log_x, np.full(6, 0.5 * edge), np.log([8.0 * edge, 1e-320, 5e-324]))
    begin(tmp_path / "run", log, **REGIMES["tight"], radius_lam=8.0, start=start)
    assert go_on_from_each(tmp_path / "run", log, [0, 1, 2, 50, 2000]).status is Status.COMPLETED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_any_state_of_any_run_is_taken(seed, tmp_path):
    """Settings over many orders of magnitude, millions of steps, and a refresh at every step or never."""
    rng = np.random.default_rng(seed)
    n_states, n_actions, n_utilities = int(rng.integers(1, 12)), int(rng.integers(1, 5)), int(rng.choice([0, 1, 3]))
    sizes = n_states, n_actions, int(rng.integers(1, 400)), n_utilities
    used, evenness = int(rng.integers(1, n_actions + 1)), rng.choice([0.05, 1.0, 10.0])
    log = random_log(*sizes, seed=seed, used_actions=used, evenness=evenness)
    changes = {
        "gamma": rng.choice([0.1, 0.5, 0.9, 0.99, 0.9999]),
        "psi": rng.choice([1, 1.3, 3, 50, 1e4]),
        "slater": rng.choice([1e-3, 0.3, 1]),
        "floor": rng.choice([1e-8, 1e-5, 1e-3, 1e-2]),
        "order": str(rng.choice(ORDERS)),
        "T": 10**7,
        "eta": 10 ** rng.uniform(-4, 1),
        "refresh": int(10 ** rng.uniform(0, 7)),
    }
    for name in ("alpha_x", "alpha_V", "alpha_lam"):
        if rng.random() < 0.5:
            changes[name] = 10 ** rng.uniform(-4, 4)
    begin(tmp_path / "run", log, **changes)
    limits = np.sort(10 ** rng.uniform(0, rng.choice([4, 6, 6.5]), 20)).astype(int).tolist()
    assert go_on_from_each(tmp_path / "run", log, limits).n_steps >= limits[-1]


# ---- Impossible ones ----


@cache
def broken_off(regime, order, n_utilities):
    """Header and arrays of a run in the middle of everything."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "run"), log_of(n_utilities)
        begin(path, log, **REGIMES[regime], order=order)
        resume(path, log, step_limit=1500)
        nudge(path, log)
        return checkpoint_file.read(path)


REALS = (1e308, -1e308, 1e30, -1.0, 0.0, 1.0, 5e-324, -5e-324, np.nan, np.inf, -np.inf)
WHOLES = (2**62, -(2**62), 2**31 - 1, -(2**31), -1, 0, 1, 4096)


def forged(arrays, rng):
    """The arrays with one number changed, or as many as half of one array; and what was changed."""
    name = rng.choice([name for name in arrays if arrays[name].size])
    wrong = arrays[name].copy().reshape(-1)
    where = rng.choice(wrong.size, rng.choice([1, 1, 1, 1 + wrong.size // 2]), replace=False)
    for k, genuine in zip(where, wrong[where].tolist(), strict=True):
        if wrong.dtype.kind == "f":
            wrong[k] = rng.choice([*REALS, 2 * genuine, -genuine, np.nextafter(genuine, 0)])
        else:
            info = np.iinfo(wrong.dtype)
            values = (*WHOLES, genuine - 1, genuine + 1)
            wrong[k] = rng.choice([value for value in values if info.min <= value <= info.max])
    what = f"{name}{where[:3]} = {wrong[where[:3]]}, not {arrays[name].reshape(-1)[where[:3]]}"
    return arrays | {name: wrong.reshape(arrays[name].shape)}, what


@pytest.mark.parametrize("n", [25, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("regime", "order", "n_utilities"), KINDS)
def test_numbers_that_were_changed_are_refused_or_do_no_harm(regime, order, n_utilities, n, tmp_path):
    header, arrays = broken_off(regime, order, n_utilities)
    log, path, rng = log_of(n_utilities), tmp_path / "run", np.random.default_rng(n)
    taken = 0
    for _ in range(n):
        wrong, what = forged(arrays, rng)
        checkpoint_file.write(path, header, wrong)
        with contextlib.suppress(RefusedError):
            assert_sound(resumed(path, log), what)
            taken += 1
    assert taken < n / 2


class RefusedError(Exception):
    pass


def resumed(path, log):
    try:
        return resume(path, log, check_slater=False)
    except ValueError as error:
        if re.match(f"checkpoint {re.escape(str(path))} cannot be used: .", str(error)):
            raise RefusedError from error
        raise


def assert_sound(result, what):
    """All steps were taken, everything is finite, averages and last iterate are in their sets."""
    assert result.status is Status.COMPLETED, what
    settings, last, slack = result.settings, result.last, 1 + 1e-6
    mu_hat = result.reference.mu_hat
    for x, V, lam in (
        (result.x_mean, result.V_mean, result.lam_mean),
        (np.exp(last.log_x), last.V, np.exp(last.log_lam)),
    ):
        assert (x >= 0).all(), what
        assert (x <= slack * settings.psi * mu_hat / (1 - settings.gamma)).all(), what
        assert x.sum() <= slack * 4 / (1 - settings.gamma), what
        assert (abs(V) <= slack * settings.radius_V).all(), what
        assert (lam >= 0).all(), what
        assert lam.sum() <= slack * settings.radius_lam, what
    assert np.isfinite(last.log_x).all(), what
    np.testing.assert_allclose(result.policy.sum(axis=1), 1, rtol=1e-12, err_msg=what)
