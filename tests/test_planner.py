"""The planner against the certified linear program; its bounds and limits."""

import io
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from dpdl import _progress
from dpdl.instances import garnet
from dpdl.models import cmdp, planner
from dpdl.models.cmdp import CMDP
from dpdl.models.planner import Planner
from kinds import lake, ring
from problems import random_problem

TIGHT = 1e-9


def plan(model, kappa=0.0, tol=1e-3, **keywords):
    return model.solve(kappa, method="planner", tol=tol, **keywords)


def slater_bounds(model, accuracy=TIGHT):
    return Planner(model.rows).most_careful(np.zeros(model.n_utilities), accuracy).slater


def dual_excess(model, found, reward=1.0):
    """By how much V breaks V(s) >= r + <u, lam> + gamma P V, times 1 - gamma."""
    gain = reward * model.r + np.tensordot(found.lam, model.u, 1)
    ahead = gain + model.gamma * (model.P @ found.V).reshape(model.r.shape)
    return (1 - model.gamma) * float((ahead - found.V[:, None]).max())


def largest(model, gain):
    """The largest discounted sum of gains that any policy has, by policy iteration with dense matrices."""
    n, states = model.n_states, np.arange(model.n_states)
    P, actions = model.P.toarray().reshape(n, -1, n), np.zeros(n, np.intp)
    for _ in range(100):
        V = np.linalg.solve(np.eye(n) - model.gamma * P[states, actions], gain[states, actions])
        ahead = gain + model.gamma * P @ V
        better = ahead.max(axis=1) > ahead[states, actions] + 1e-12 / (1 - model.gamma)
        if not better.any():
            return float(model.rho0 @ V)
        actions = np.where(better, ahead.argmax(axis=1), actions)
    raise AssertionError("policy iteration does not end")


def check_proof(model, found, kappa):
    """The multipliers of an answer prove its upper bound, or that there is no safe policy."""
    unit, infeasible = 1 - model.gamma, found.status == "infeasible"
    assert found.lam.min(initial=0.0) >= 0
    assert dual_excess(model, found, reward=1.0 - infeasible) <= 1e-13
    most = unit * largest(model, (1 - infeasible) * model.r + np.tensordot(found.lam, model.u, 1))
    proved, error = unit * (model.rho0 @ found.V), 1e-14 / unit  # the condition number of the dense systems is 2/unit
    assert most <= proved + error
    if infeasible:
        assert found.lam.sum() == pytest.approx(1, abs=1e-12)
        assert max(most, proved) < unit * kappa - 1e-9
        figures = (found.reward, found.lower, found.upper, *found.utilities, *found.policy.flat)
        assert np.isnan(figures).all()
        return
    # The linear program's bound allows for its own errors, and V need not.
    assert -1e-12 <= unit * found.upper - (proved - unit * kappa * found.lam.sum()) <= 1e-10
    assert unit * (found.utilities.min(initial=np.inf) - kappa) >= -1e-9
    assert found.lower <= found.reward
    assert unit * (found.reward - found.lower) <= 1e-10
    assert unit * (found.upper - found.lower) <= 1.1e-9 * max(1, unit * abs(found.upper))
    assert found.gap <= (found.upper - found.lower) / abs(found.upper)


def check_against_the_linear_program(seed, kappa=0.0):
    model = random_problem(seed)
    unit = 1 - model.gamma
    expected, found = model.solve(kappa, method="lp"), plan(model, kappa, tol=TIGHT)
    assert found.status == expected.status, seed
    assert expected.status in ("optimal", "infeasible")
    check_proof(model, expected, kappa)
    check_proof(model, found, kappa)
    if found.status == "infeasible":
        return "infeasible"
    assert unit * abs(found.reward - expected.reward) <= 1e-8, seed
    assert unit * found.lower <= unit * expected.reward + 2e-9
    assert unit * found.upper >= unit * expected.reward - 2e-9
    np.testing.assert_allclose(found.policy.sum(axis=1), 1, rtol=0, atol=1e-14)
    # The policy earns what is said.
    value = model.evaluate(found.policy)
    assert unit * abs(value.reward - found.reward) <= 1e-10
    assert unit * abs(value.utilities - found.utilities).max() <= 1e-10
    return "optimal"


@pytest.mark.parametrize("block", range(2))
def test_small_problems_have_the_answers_of_the_linear_program(block):
    outcomes = [check_against_the_linear_program(seed) for seed in range(15 * block, 15 * block + 15)]
    assert {"optimal", "infeasible"} <= set(outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("kappa", [0.0, 0.3])
@pytest.mark.parametrize("block", range(10))
def test_many_small_problems_have_the_answers_of_the_linear_program(block, kappa):
    for seed in range(100 + 50 * block, 150 + 50 * block):
        check_against_the_linear_program(seed, kappa)


# ---- Bounds ----


@pytest.mark.parametrize("tol", [1e-1, 1e-3])
def test_bounds_hold_at_any_tolerance(tol):
    for seed in range(3):
        model = garnet(20, 4, n_utilities=3, gamma=0.97, rng=seed)
        best, found = model.solve(method="lp"), plan(model, tol=tol)
        assert found.status == "optimal"
        assert found.gap <= tol
        assert found.lower <= best.reward + 1e-9
        assert found.upper >= best.reward - 1e-9
        assert found.lower <= found.reward
        assert found.utilities.min() >= -1e-9
        assert dual_excess(model, found) <= 1e-13
        assert found.slater[0] <= model.slater() + 1e-9
        assert found.slater[1] >= model.slater() - 1e-9


@pytest.mark.parametrize("make", [lambda: ring(300, n_utilities=2, rng=0), lambda: lake(12, n_utilities=2, rng=0)])
def test_problems_that_mix_slowly(make):
    model = make()
    best, found = model.solve(method="lp"), plan(model, tol=TIGHT)
    assert best.status == found.status == "optimal"
    assert found.reward == pytest.approx(best.reward, rel=1e-6)
    assert found.utilities.min() >= -1e-9 / (1 - model.gamma)


def test_the_same_bits_each_time():
    model = garnet(40, 5, n_utilities=3, rng=1)
    one, other = plan(model), plan(model)
    np.testing.assert_array_equal(one.policy, other.policy)
    np.testing.assert_array_equal(one.V, other.V)
    assert (one.lower, one.upper) == (other.lower, other.upper)


# ---- Numbers of constraints, degenerate problems, gamma close to one ----


def test_without_constraints_it_is_policy_iteration():
    model = garnet(50, 4, n_utilities=0, gamma=0.99, rng=0)
    found = plan(model, tol=TIGHT)
    assert found.status == "optimal"
    assert found.reward == pytest.approx(model.solve(method="lp").reward, rel=1e-8)
    assert found.lam.shape == (0,)
    assert found.n_columns <= 3


def test_many_constraints():
    model = garnet(40, 5, n_utilities=20, gamma=0.95, rng=2)
    best, found = model.solve(method="lp"), plan(model)
    assert found.status == "optimal"
    assert found.lower <= best.reward <= found.upper
    assert found.gap <= 1e-3
    assert found.n_columns <= 200


def one_state(r, u, gamma=0.9):
    n_actions = len(r)
    return CMDP(np.ones((1, n_actions, 1)), [r], np.reshape(u, (-1, 1, n_actions)), gamma, [1.0])


@pytest.mark.parametrize(
    ("model", "reward"),
    [
        (one_state([1.0, 0.0], [0.0, 0.0]), 10.0),  # every policy is just safe
        (one_state([1.0, 0.0], [-1.0, 0.0]), 0.0),  # only one policy is, and just so
        (one_state([1.0, 0.0], [[-1.0, 1.0]] * 3), 5.0),  # the same constraint three times
        (one_state([1.0, 0.0], [[-1.0, 1.0], [1.0, -1.0]]), 5.0),  # an equation
        (one_state([0.0, 0.0], [-1.0, 1.0]), 0.0),  # nothing to earn
        (one_state([-1.0, -1.0], [1.0, 1.0]), -10.0),  # only to lose
        (one_state([0.5], [0.1]), 5.0),  # nothing to choose
        (one_state([1.0, 1e-7], [-1e-7, 1e-7]), 5.0000005),  # small numbers
    ],
)
def test_degenerate_problems(model, reward):
    found = plan(model, tol=TIGHT)
    assert found.status == "optimal"
    assert found.reward == pytest.approx(reward, abs=2e-8)
    assert found.utilities.min() >= -1e-8


def test_infeasible_by_little_is_infeasible():
    assert plan(one_state([1.0, 0.0], [-1.0, -1e-7])).status == "infeasible"
    assert plan(one_state([1.0, 0.0], [-1.0, 1e-7])).status == "optimal"
    assert plan(one_state([1.0, 0.0], [[-1.0, 1.0], [1.0, -1.0]]), kappa=1e-6).status == "infeasible"


@pytest.mark.parametrize("seed", range(6))
def test_gamma_close_to_one(seed):
    rng = np.random.default_rng(seed)
    base = [garnet(15, 3, n_utilities=2, rng=rng), ring(30, n_utilities=1, rng=rng), lake(4, rng=rng)][seed % 3]
    model = CMDP(base.P, base.r, base.u, 1 - 1e-6, base.rho0)
    best, found = model.solve(method="lp"), plan(model)
    assert best.status == "optimal"
    assert found.status == "optimal"
    assert found.lower <= best.reward + 1e-3
    assert found.upper >= best.reward - 1e-3
    assert found.gap <= 1e-3
    assert found.utilities.min() >= -1e-3


def test_slater_bounds():
    for seed in range(3):
        model = random_problem(seed)
        lower, upper = slater_bounds(model)
        assert lower <= model.slater() + 1e-9
        assert upper >= model.slater() - 1e-9
        assert upper - lower <= 1e-9
    # The linear program shows no constant of this one. Bounds hold up to rounding, as above.
    large = ring(1000, rng=1)
    lower, upper = slater_bounds(large, 1e-6)
    assert lower - 1e-9 <= large.slater() <= upper + 1e-9


def test_plans_of_one_planner_are_those_of_many():
    """Columns that were found for other margins change the way, and not the answer."""
    model = garnet(30, 4, n_utilities=2, rng=5)
    shared, slater = Planner(model.rows, TIGHT), model.slater() / (1 - model.gamma)
    for kappa in (0.5 * slater, 0.0, 0.9 * slater, slater + 0.1):
        mine, other = shared.plan(np.full(2, kappa)), Planner(model.rows, TIGHT).plan(np.full(2, kappa))
        assert mine.status == other.status == ("optimal" if kappa < slater else "infeasible")
        if mine.status == "optimal":
            assert mine.reward == pytest.approx(other.reward, abs=1e-7)
    careful = shared.most_careful(np.zeros(2))
    assert (1 - model.gamma) * careful.utilities.min() == pytest.approx(model.slater(), abs=2e-6)


# ---- Limits ----


def test_a_long_plan_shows_its_bounds_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(_progress, "DELAY", 0.0)
    monkeypatch.setattr(_progress, "INTERVAL", 0.0)
    plan(garnet(50, 5, n_utilities=3, rng=0))
    shown = terminal.getvalue()
    assert "policies, least margin between" in shown
    assert "policies, reward between" in shown
    assert shown.split("\r")[-2].isspace()  # it is removed
    plan(garnet(50, 5, n_utilities=3, rng=0), progress=False)
    assert terminal.getvalue() == shown
    monkeypatch.setattr("sys.stderr", None)
    assert plan(garnet(5, 2, rng=0)).status == "optimal"
    monkeypatch.setattr("sys.stderr", pipe := io.StringIO())
    model = garnet(50, 5, n_utilities=3, rng=0)
    model.solve(method="planner")
    assert pipe.getvalue() == ""
    model.solve(method="planner", progress=True)
    assert "policies, reward between" in pipe.getvalue()


def test_limits_of_time_and_columns(monkeypatch):
    model = garnet(50, 5, n_utilities=3, rng=0)
    monkeypatch.setattr(planner, "_MOST_COLUMNS", 1)
    assert plan(model).status == "limit"
    monkeypatch.setattr(planner, "_MOST_COLUMNS", 8)
    some = plan(model, tol=TIGHT)
    assert some.status == "limit"
    assert some.n_columns == 8
    assert some.lower <= model.solve(method="lp").reward + 1e-9 <= some.upper + 2e-9
    none = plan(model, time_limit=1e-9)
    assert none.status == "limit"
    assert np.isnan(none.reward)


def press_ctrl_c(after=0.0):
    """Press Ctrl-C after this many seconds; the list says when it was."""
    sent = []

    def press():
        sent.append(time.perf_counter())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Timer(after, press).start() if after else press()
    return sent


@pytest.mark.parametrize(
    "make", [lambda: garnet(3000, 10, n_utilities=10, gamma=0.99, rng=0), lambda: lake(60, gamma=1 - 1e-5, rng=0)]
)
def test_ctrl_c_stops_it(make):
    planner = Planner(make().rows, 1e-12)
    sent = press_ctrl_c(0.2)
    with pytest.raises(KeyboardInterrupt):
        planner.plan(np.zeros(planner.n_utilities))
    assert time.perf_counter() - sent[0] < 1  # some 0.05 s on an idle machine


def check_unfinished(model, found, status, best):
    assert found.status == status
    assert found.lower <= best.upper
    assert found.upper >= best.lower
    assert found.gap > 1e-9  # there was something left to do
    assert found.utilities.min() >= -1e-9 / (1 - model.gamma)
    value = model.evaluate(found.policy)
    assert value.reward == pytest.approx(found.reward, rel=1e-9)
    assert found.lower <= value.reward + 1e-9
    assert dual_excess(model, found) <= 1e-13
    assert model.rho0 @ found.V == pytest.approx(found.upper, rel=1e-12)


def test_solve_returns_the_best_so_far_after_ctrl_c(monkeypatch):
    """Whenever it comes: bounds hold, V proves the upper one, and the policy is safe."""
    model, phases = garnet(60, 5, n_utilities=5, rng=0), []

    def at(stop):
        """Press Ctrl-C at this master program."""
        phases.clear()

        def report(self, phase):
            phases.append(phase is self.reward)
            if len(phases) == stop + 1:
                press_ctrl_c()

        monkeypatch.setattr(Planner, "_report", report)

    at(10**9)
    best = plan(model, tol=1e-12)
    first, last = phases.index(True), len(phases)
    for stop in range(first, last - 3, 5):
        at(stop)
        check_unfinished(model, plan(model, tol=1e-12), "interrupted", best)
    at(first)
    with pytest.raises(KeyboardInterrupt):  # by default
        Planner(model.rows).plan(np.zeros(5))
    at(0)
    with pytest.raises(KeyboardInterrupt):  # before there is a safe policy
        plan(model, kappa=model.slater() * 20)


def test_solve_obeys_its_time_limit():
    model = garnet(3000, 10, n_utilities=10, gamma=0.99, rng=0)
    began = time.perf_counter()
    best = plan(model)
    whole = time.perf_counter() - began
    for method in ("planner", "auto"):
        found = model.solve(method=method, time_limit=whole / 4)
        assert found.status == "limit"
        assert found.lower <= best.upper
        assert found.upper >= best.lower
    nothing = model.solve(method="planner", time_limit=0.0)
    assert (nothing.status, nothing.lower, nothing.gap) == ("limit", -np.inf, np.inf)
    assert np.isnan(nothing.policy).all()


def test_the_time_limit_holds_where_one_policy_takes_longer():
    """Values of the first policy alone take seconds: the chain mixes slowly, and no factors stay sparse."""
    model = lake(150, gamma=1 - 1e-5, rng=0)
    began = time.perf_counter()
    found = model.solve(method="planner", time_limit=0.2)
    assert found.status == "limit"
    assert time.perf_counter() - began < 3  # some 0.8 s on an idle machine
    assert found.lower <= found.upper


@pytest.mark.parametrize("how", [{}, {"psi": 20.0}])
def test_a_linear_program_out_of_time_has_no_answer(how):
    model = garnet(30, 4, n_utilities=2, rng=0)
    how = {"mu": np.full(model.r.shape, 1 / model.r.size), **how} if how else {}
    found = model.solve(method="lp", time_limit=0.0, **how)
    assert found.status == "limit"
    assert np.isnan((found.reward, *found.lam, *found.V, *found.policy.flat)).all()
    assert (found.lower, found.upper, found.gap) == (-np.inf, np.inf, np.inf)
    assert model.solve(time_limit=60, **how).status == "optimal"


def test_an_inaccurate_plan_is_kept_if_there_is_no_time_for_more(monkeypatch):
    model = garnet(30, 4, n_utilities=2, rng=0)
    monkeypatch.setattr(cmdp, "PLANNER_PAIRS", 0)
    planned = replace(plan(model), status="inaccurate")
    monkeypatch.setattr(Planner, "plan", lambda *a, **k: planned)
    assert model.solve().status == "optimal"  # by the linear program
    found = model.solve(time_limit=0.0)
    assert found.status == "inaccurate"
    assert found.lower <= model.solve(method="lp").reward <= found.upper


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"kappa": np.nan}, ValueError, "kappa"),
        ({"tol": -1.0}, ValueError, r"tol must be >= 0, got -1\.0"),
        ({"progress": 1}, TypeError, "progress must be True, False or None, got 1"),
        ({"time_limit": -1.0}, ValueError, "time_limit must be"),
    ],
)
def test_bad_input_is_named(keywords, error, message):
    with pytest.raises(error, match=message):
        plan(one_state([1.0, 0.0], [-1.0, 1.0]), **keywords)


# ---- solve ----


def test_solve_takes_a_method():
    model = garnet(30, 4, n_utilities=2, rng=0)
    best, planned = model.solve(method="lp"), model.solve(method="planner")
    assert (best.n_columns, planned.n_columns > 0) == (0, True)
    assert model.solve().n_columns == 0  # small models are linear programs by default
    assert planned.reward == pytest.approx(best.reward, abs=2e-8)
    large = garnet(500, 4, n_utilities=2, rng=0)
    assert large.solve().n_columns > 0
    assert large.solve().reward == pytest.approx(large.solve(method="lp").reward, abs=2e-8)
    with pytest.raises(ValueError, match="method must be one of"):
        model.solve(method="simplex")
    with pytest.raises(ValueError, match="knows no psi and mu"):
        model.solve(method="planner", psi=2.0, mu=np.full((30, 4), 1 / 120))
