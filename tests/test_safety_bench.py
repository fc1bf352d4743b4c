"""The problems of bench/safety.py are as it says, COptiDICE is solved, and a run gives the figures that it promises."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpdl import CMDP, exact

# At the end: bench has a `problems` of its own, which must not hide that of the tests.
sys.path.append(str(Path(__file__).parent.parent / "bench"))
import coptidice
import safety
import safety_fresh as fresh
import safety_further as further
import safety_problems as made


@pytest.fixture(scope="module")
def toy():
    return made.toy(np.random.default_rng(0))


def test_toy_problems_are_as_stated(toy):
    assert (toy.P > 0).sum(axis=2).tolist() == [[2] * 5] * 10
    assert np.allclose(toy.P.sum(axis=2), 1)
    assert (toy.c[0] == 0).any(axis=1).all()
    assert (toy.gamma, toy.rho0[0], toy.limits.tolist()) == (0.8, 1.0, [0.1])
    best = toy.cmdp.solve()
    cost = (1 - toy.gamma) * float((toy.c[0] * best.occupancy).sum())
    assert cost == pytest.approx(0.1, abs=1e-4)
    half = 0.5 * best.policy + 0.1
    assert np.allclose(toy.mu, (1 - toy.gamma) * toy.cmdp.evaluate(half).occupancy)
    log = toy.log(200, np.random.default_rng(1))
    assert (len(log), log.kind, log.question.limits, log.initial_counts) == (200, "independent", (0.1,), None)
    assert np.allclose(log.r * log.question.reward_scale, toy.r[log.s, log.a])


def test_infeasible_limits_are_below_what_is_achievable():
    problem = made.toy(np.random.default_rng(1), infeasible=True)
    assert problem.cmdp.solve().status == "infeasible"
    relaxed = replace(problem, limits=problem.limits / 0.8 * (1 + 1e-6))
    assert relaxed.cmdp.solve().status == "optimal"


@pytest.mark.parametrize("rho", [0.1, 0.9])
def test_grid_problems_are_as_stated(rho):
    problem = made.grid(np.random.default_rng(2), rho)
    assert problem.binds()
    assert np.allclose(problem.P.sum(axis=2) + problem.ends, 1)
    # The probability of an end is where a move reaches the last cell, from its two neighbours and nowhere else.
    assert np.flatnonzero(problem.ends.sum(axis=1)).tolist() == [89, 98]
    log = problem.log(30, np.random.default_rng(3))
    lengths = np.diff(np.append(log.starts, len(log)))
    assert len(lengths) == 30
    assert lengths.max() <= 200
    assert log.initial_counts[0] == 30
    last = np.append(log.starts[1:], len(log)) - 1
    assert (log.terminated[last] | (lengths == 200)).all()
    assert np.allclose(log.r * log.question.reward_scale, np.where(log.terminated, 999.0, -1.0))


def test_several_limits_bind():
    problem = made.multi(np.random.default_rng(4))
    assert problem.P.shape == (50, 5, 50)
    reward, ratios = problem.figures(problem.optimal_policy)
    assert np.allclose(ratios, 1, atol=1e-4)
    assert reward == pytest.approx(problem.cmdp.solve().reward * problem.reward_scale)


def estimates_of_the_log_are_those_of_the_model(problem, policy, rel):
    """Hold the plug-in estimates of a policy from a long log against the true reward and costs."""
    log = problem.log(400, np.random.default_rng(7))
    estimate = exact.plug_in(log, problem.gamma, problem.known_start).evaluate(policy)
    reward, ratios = problem.figures(policy)
    assert estimate.reward * log.question.reward_scale == pytest.approx(reward, rel=rel)
    assert log.question.costs(estimate.utilities) / problem.limits == pytest.approx(ratios, rel=rel)


def ratios_agree_with_the_utilities(problem):
    """Hold ratios of costs to limits, from the occupancy, against the utilities of the model that is solved."""
    policy = np.random.default_rng(6).dirichlet(np.ones(problem.r.shape[1]), len(problem.r))
    _, ratios = problem.figures(policy)
    assert ((ratios <= 1) == (problem.cmdp.evaluate(policy).utilities >= 0)).all()


@pytest.mark.parametrize("index", range(len(made.OTHERS)))
def test_other_problems_bind_and_their_logs_are_of_the_true_model(index):
    problem = made.other(np.random.default_rng([5, index]), index)
    assert problem.binds()
    ratios_agree_with_the_utilities(problem)
    uniform = np.full(problem.r.shape, 1 / problem.r.shape[1])
    estimates_of_the_log_are_those_of_the_model(problem, uniform, rel=0.2)


OF_USERS = [
    pytest.param(name, index, id=f"{name}-{kind.__name__.strip('_')}")
    for name, module in (("further", further), ("fresh", fresh))
    for index, kind in enumerate(module.KINDS)
]


@pytest.mark.parametrize(("protocol", "index"), OF_USERS)
def test_problems_of_users_bind_and_their_logs_are_of_the_true_model(protocol, index):
    problem = made.PROTOCOLS[protocol].make(np.random.default_rng([5, index]), index, False)
    ends = 0 if problem.ends is None else problem.ends
    assert np.allclose(problem.P.sum(axis=2) + ends, 1)
    assert problem.P.min() >= 0
    assert problem.rho0.sum() == pytest.approx(1)
    assert problem.c.min() >= 0 or problem.kind == "dense"
    assert problem.limits.min() > 0
    ratios = problem.figures(problem.optimal_policy)[1]
    assert ((ratios > 1 - 1e-4).sum() >= 2) if len(ratios) > 1 else ratios[0] == pytest.approx(1, abs=1e-4)
    assert problem.least < 0.95  # a policy keeps all limits with room
    best = problem.cmdp.unconstrained().solve().policy
    assert problem.figures(best)[1].max() > 1 / 0.9  # which the best policy without limits does not
    ratios_agree_with_the_utilities(problem)
    # Some behaviours hardly take some of the actions: their logs tell what they themselves do.
    logged = problem.mu / problem.mu.sum(axis=1, keepdims=True) if problem.behaviour is None else problem.behaviour
    estimates_of_the_log_are_those_of_the_model(problem, logged, rel=0.1)


def test_limits_of_many_costs_do_not_all_bind():
    index = [kind.__name__ for kind in further.KINDS].index("_many")
    problem = further.draw(np.random.default_rng([5, index]), index)
    ratios = problem.figures(problem.optimal_policy)[1]
    assert len(ratios) >= 6
    assert ratios.min() < 0.95


def fresh_problem(kind):
    index = [one.__name__ for one in fresh.KINDS].index(f"_{kind}")
    return fresh.draw(np.random.default_rng([5, index]), index)


def test_costs_may_be_negative_and_are_logged_as_they_are():
    problem = fresh_problem("dense")
    assert (problem.P > 0).all()
    assert 0.1 < (problem.c < 0).mean() < 0.5
    log = problem.log(3, np.random.default_rng(8))
    u = problem.limits - problem.c[:, log.s, log.a].T
    logged = np.reshape(log.u, u.shape)
    assert np.allclose(logged / abs(logged).max(axis=0), u / abs(u).max(axis=0))


def test_better_paid_action_is_seldom_logged():
    problem = fresh_problem("seldom")
    assert (problem.r[:, 1] >= problem.r[:, 0]).all()
    assert problem.mu[:, 1].sum() == pytest.approx(0.02)


def test_game_ends_at_the_door_with_both_keys_only():
    problem = fresh_problem("keys")
    before = np.flatnonzero(problem.ends.sum(axis=1))
    log = problem.log(3, np.random.default_rng(8))
    assert (before // 20 == 3).all()
    assert log.terminated.any()
    assert np.isin(log.s[log.terminated], before).all()
    assert np.allclose(log.r * log.question.reward_scale, log.terminated)


def test_costs_of_arrival_are_logged_by_the_state_reached():
    index = [kind.__name__ for kind in further.KINDS].index("_stock")
    problem = further.draw(np.random.default_rng([5, index]), index)
    log = problem.log(20, np.random.default_rng(8))
    rate = problem.limits[0]
    u = np.where(log.s_next == 0, rate - 1, rate)
    assert np.allclose(np.ravel(log.u) / abs(log.u).max(), u / abs(u).max())
    assert np.allclose(problem.c[0], problem.P[:, :, 0])


def test_normalised_reward_counts_from_the_worst_policy_if_rewards_are_negative(toy):
    assert toy.reward_range[0] == 0
    shifted = replace(toy, r=toy.r - 2)
    low, high = shifted.reward_range
    assert low == pytest.approx(-CMDP(toy.P, 1 - toy.r / 2, toy.c[:0], 0.8, toy.rho0).solve().reward * 2)
    assert high == pytest.approx(toy.reward_range[1] - 10)


def test_coptidice_without_regularisation_is_the_linear_program(toy):
    log = toy.log(2000, np.random.default_rng(8))
    model, limits = coptidice.Empirical.of(log, toy.gamma, toy.rho0)
    w = coptidice.solve(model, limits, 1e-7)
    q = w * model.d
    assert q.sum() == pytest.approx(1)
    assert model.c[0] @ q == pytest.approx(limits[0])
    best = exact.plug_in(log, toy.gamma, toy.rho0).solve()
    assert model.r @ q == pytest.approx((1 - toy.gamma) * best.reward, abs=1e-5)


@pytest.mark.parametrize("n", [50, 2000])
def test_coptidice_meets_its_optimality_conditions(toy, n):
    log = toy.log(n, np.random.default_rng(9))
    model, limits = coptidice.Empirical.of(log, toy.gamma, toy.rho0)
    alpha, epsilon = 5 / n, 0.5 / n
    w = coptidice.corrections(model, limits, alpha, epsilon)
    assert np.allclose((1 - model.gamma) * model.rho0 + model.flow().T @ (model.d * w), 0, atol=1e-9)
    assert w.min() >= 0
    # There are nu and lam >= 0 with w = max(0, 1 + e / alpha): e is known where w > 0, which determines both.
    used = w > 1e-6
    M = np.hstack([model.flow(), -model.c.T])
    x = np.linalg.lstsq(M[used], (alpha * (w - 1) - model.r)[used], rcond=None)[0]
    assert np.allclose((model.r + M @ x)[used], alpha * (w - 1)[used], atol=1e-5)
    assert x[-1] >= 0
    # The bound is used up, and attained by a distribution of the ball under which w is a correction.
    upper, p = coptidice.upper_bound(model, w, model.c[0], epsilon)
    assert upper == pytest.approx(limits[0], rel=1e-4)
    empirical = model.d[model.source] * model.probability
    assert (p * np.log(p / empirical)).sum() == pytest.approx(epsilon, rel=1e-3)
    assert (p * (w * model.c[0])[model.source]).sum() == pytest.approx(upper, rel=1e-5)
    balance = (1 - model.gamma) * model.rho0
    np.add.at(balance, model.target, model.gamma * p * w[model.source])
    np.add.at(balance, model.source // model.n_actions, -p * w[model.source])
    assert np.allclose(balance, 0, atol=1e-6)


def test_interval_is_that_of_clopper_and_pearson():
    assert safety.interval(0, 10) == pytest.approx([0, 0.3085], abs=1e-4)
    assert safety.interval(3, 10) == pytest.approx([0.0667, 0.6525], abs=1e-4)
    assert safety.interval(10, 10)[1] == 1
    assert safety.interval(0, 0) is None


METHODS = ["lp", "margin", "theory", "coptidice"]


def written(folder, jobs, datasets):
    file = folder / f"{jobs}.json"
    common = ["toy", "--sizes", "200", "--methods", *METHODS, "--json", str(file)]
    safety.main([*common, "--datasets", str(datasets), "--jobs", str(jobs)])
    found = json.loads(file.read_text())
    assert all(one.pop("seconds") > 0 for one in found["200"].values())
    return found


def test_run_writes_the_figures(tmp_path, capsys):
    found = written(tmp_path, jobs=1, datasets=2)
    assert list(found) == ["200"]
    assert list(found["200"]) == METHODS
    assert all({"answered", "reward", "cost", "violation"} <= set(one) for one in found["200"].values())
    lp = found["200"]["lp"]
    assert (lp["answered"], lp["datasets"]) == (1, 2)
    assert 0.5 < lp["reward"] < 1.2
    assert lp["violation"] in (0, 0.5, 1)
    assert "violated" in capsys.readouterr().out


@pytest.mark.slow
def test_figures_do_not_depend_on_the_number_of_processes(tmp_path):
    assert written(tmp_path, jobs=1, datasets=5) == written(tmp_path, jobs=2, datasets=5)
