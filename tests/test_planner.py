"""The planner against the certified linear program; its bounds and limits."""

import io
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from dpdl.instances import garnet
from dpdl.models import answers, certified, status_line
from dpdl.models import linear_programs as programs
from dpdl.models.cmdp import CMDP
from dpdl.models.planner import plan, slater_bounds
from kinds import lake, ring
from problems import random_problem

TIGHT = 1e-9


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
    outcomes = [check_against_the_linear_program(seed) for seed in range(25 * block, 25 * block + 25)]
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
    assert (one.lower, one.upper, one.n_sweeps) == (other.lower, other.upper, other.n_sweeps)


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


@pytest.mark.parametrize("seed", range(6))
def test_proofs_of_the_linear_program_with_gamma_close_to_one(seed):
    """These answers come from mixtures of policies, since HiGHS' own are not accurate enough."""
    base = random_problem(seed, n_utilities=2, ending=False)
    model = CMDP(base.P, base.r, base.u, 1 - 1e-8, base.rho0)
    slater = model.slater() / (1 - model.gamma)
    for kappa, status in ((slater - 1e6, "optimal"), (slater + 1e6, "infeasible")):
        found = model.solve(kappa, method="lp")
        assert found.status == status
        check_proof(model, found, kappa)


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


def test_allowed_pairs_only():
    model = garnet(20, 4, n_utilities=1, rng=3)
    rng = np.random.default_rng(0)
    allowed = rng.random((20, 4)) < 0.6
    allowed[:, 0] = True
    found = plan(model, kappa=-1.0, tol=TIGHT, allowed=allowed)
    assert found.status == "optimal"
    assert not found.policy[~allowed].any()
    # A pair that is not allowed is one whose cap is zero.
    mu = np.where(allowed, 1 / allowed.sum(), 0.0)
    best = model.solve(kappa=-1.0, psi=1e6, mu=mu)
    assert found.reward == pytest.approx(best.reward, rel=1e-7)


def test_slater_bounds():
    for seed in range(3):
        model = random_problem(seed)
        lower, upper = slater_bounds(model)
        assert lower <= model.slater() + 1e-9
        assert upper >= model.slater() - 1e-9
        assert upper - lower <= 1e-9
    # The linear program shows no constant of this one.
    large = ring(1000, rng=1)
    assert slater_bounds(large, 1e-6)[0] <= large.slater() <= slater_bounds(large, 1e-6)[1]
    with pytest.raises(ValueError, match="has no utilities"):
        slater_bounds(large.unconstrained())


def test_further_rows():
    """Limits on the time spent in some pairs, against the linear program whose caps they are."""
    for seed in range(4):
        model = random_problem(seed, n_utilities=2)
        shape, rng = model.r.shape, np.random.default_rng(seed)
        caps = np.where(rng.random(shape) < 0.3, 0.3, 1.0)
        rows, limits = np.eye(model.r.size)[caps.ravel() < 1], np.full(int((caps < 1).sum()), 0.3)
        kappa, unit = -0.5 / (1 - model.gamma), 1 - model.gamma
        closed = model.closed()
        full = np.append(caps.ravel(), np.full(closed.r.size - model.r.size, np.inf))
        program = programs.largest_reward(closed, unit * kappa, full)
        # The row of sum q/caps is not wanted here.
        program = replace(program, rows=program.rows[:2], limits=program.limits[:2], rows_t=program.rows_t[:2])
        best, found = certified.solve(program), plan(model, kappa, tol=TIGHT, at_most=(rows, limits))
        if isinstance(best, certified.Bound):
            assert found.status == "infeasible"
            continue
        assert found.status == "optimal"
        assert unit * found.reward == pytest.approx(best.value, abs=2e-8)
        assert found.lam.shape == (2,)
        assert (unit * rows @ found.occupancy.ravel() <= limits + 1e-9).all()
        # V, without the part that pays for the limits, proves the bound together with them.
        gain = model.r + np.tensordot(found.lam, model.u, 1) + model.gamma * (model.P @ found.V).reshape(shape)
        paid = np.maximum((gain - found.V[:, None]).ravel()[caps.ravel() < 1], 0.0)
        assert unit * (model.rho0 @ found.V - kappa * found.lam.sum()) + paid @ limits == pytest.approx(
            unit * found.upper, abs=1e-7
        )


# ---- Limits ----


def test_a_long_plan_shows_its_bounds_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(status_line, "DELAY", 0.0)
    monkeypatch.setattr(status_line, "INTERVAL", 0.0)
    plan(garnet(50, 5, n_utilities=3, rng=0))
    shown = terminal.getvalue()
    assert "policies, Slater constant between" in shown
    assert "policies, reward between" in shown
    assert shown.split("\r")[-2].isspace()  # it is removed
    garnet(50, 5, n_utilities=3, rng=0).solve(method="planner", progress=False)
    assert terminal.getvalue() == shown
    monkeypatch.setattr("sys.stderr", None)
    assert plan(garnet(5, 2, rng=0)).status == "optimal"
    monkeypatch.setattr("sys.stderr", pipe := io.StringIO())
    model = garnet(50, 5, n_utilities=3, rng=0)
    model.solve(method="planner")
    assert pipe.getvalue() == ""
    model.solve(method="planner", progress=True)
    assert "policies, reward between" in pipe.getvalue()


def test_a_callback_sees_the_bounds_and_may_stop():
    model, seen = garnet(50, 5, n_utilities=3, rng=0), []
    full = plan(model, tol=TIGHT, callback=seen.append)
    assert {one.phase for one in seen} == {1, 2}
    assert all(one.lower <= full.upper and one.upper >= full.lower for one in seen if one.phase == 2)

    def stop(progress):
        if progress.phase == 2:
            raise StopIteration

    found = plan(model, tol=TIGHT, callback=stop)
    assert found.status == "limit"
    assert found.lower <= full.upper
    assert found.upper >= full.lower
    assert found.utilities.min() >= -1e-9


def test_limits_of_time_and_columns():
    model = garnet(50, 5, n_utilities=3, rng=0)
    assert plan(model, max_columns=1).status == "limit"
    some = plan(model, tol=TIGHT, max_columns=8)
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
    model = make()
    sent = press_ctrl_c(0.2)
    with pytest.raises(KeyboardInterrupt):
        plan(model, tol=1e-12)
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


def test_solve_returns_the_best_so_far_after_ctrl_c():
    """Whenever it comes: bounds hold, V proves the upper one, and the policy is safe."""
    model = garnet(60, 5, n_utilities=5, rng=0)
    best, seen = plan(model, tol=1e-12), []
    plan(model, tol=1e-12, callback=seen.append)
    first = next(k for k, one in enumerate(seen) if one.phase == 2)
    for stop in range(first, len(seen) - 3, 5):
        calls = []

        def interrupt(progress, stop=stop, calls=calls):
            calls.append(progress)
            if len(calls) == stop + 1:
                press_ctrl_c()

        check_unfinished(model, plan(model, tol=1e-12, callback=interrupt, interruptible=True), "interrupted", best)
    with pytest.raises(KeyboardInterrupt):  # by default
        plan(model, callback=lambda progress: press_ctrl_c())
    with pytest.raises(KeyboardInterrupt):  # before there is a safe policy
        plan(model, kappa=model.slater() * 20, callback=lambda progress: press_ctrl_c(), interruptible=True)


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
    monkeypatch.setattr(answers, "PLANNER_PAIRS", 0)
    monkeypatch.setattr(answers, "plan", lambda *a, **k: replace(plan(model), status="inaccurate"))
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
        ({"interruptible": None}, TypeError, "interruptible must be True or False"),
        ({"time_limit": -1.0}, ValueError, "time_limit must be"),
        ({"max_columns": 0}, ValueError, "max_columns must be between 1 and .*, got 0"),
        ({"allowed": [[1, 1]]}, TypeError, "allowed must hold booleans, got dtype int64"),
        ({"allowed": [[True]]}, ValueError, r"allowed must have shape \(1, 2\), got \(1, 1\)"),
        ({"allowed": [[False, False]]}, ValueError, r"allowed\[0\] must allow an action, got none"),
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
