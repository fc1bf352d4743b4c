"""The best safe policy inside D(psi), by every way that there is, against the certified linear program."""

import signal
import threading
import time

import numpy as np
import pytest

from dpdl.instances import garnet, lake, ring
from dpdl.models import linear_programs as programs
from dpdl.models import restricted
from problems import random_problem

WAYS = ("lp", "planner", "pdlp")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Solve all problems in one of the ways; the planner leaves those to PDLP in which many caps bind."""
    if request.param != "lp":
        pytest.importorskip("highspy")
        monkeypatch.setattr(restricted, "LP_PAIRS", 0)
    if request.param == "pdlp":
        monkeypatch.setattr(restricted, "_MOST_CAPS", 0)
    return request.param


def check_against_the_linear_program(model, psi, mu, kappa, way):
    unit = 1 - model.gamma
    best, found = model.solve(kappa, psi, mu, method="lp"), restricted.plan(model, psi, mu, kappa, time_limit=20)
    assert best.status in ("optimal", "infeasible")
    assert (found.status == "infeasible") <= (best.status == "infeasible")
    if best.status == "infeasible":
        assert found.status in ("infeasible", "inaccurate")
        return found.status
    lower, upper = found.bounds
    assert unit * lower <= unit * best.reward + 2e-9
    assert unit * upper >= unit * best.reward - 2e-9
    assert unit * upper <= unit * best.reward + 2e-3
    assert found.lam.min(initial=0.0) >= 0
    # q is the occupancy of a policy of the model, and leaves D(psi) by no more than it says.
    q = found.q.reshape(model.r.shape)
    caps = programs.region(model.closed(), psi, mu)[: q.size].reshape(q.shape)
    flow = np.bincount(np.repeat(np.arange(model.n_states), model.n_actions), found.q) - model.gamma * (
        model.P.T @ found.q
    )
    np.testing.assert_allclose(flow, unit * model.rho0, rtol=0, atol=1e-9)
    assert (q - caps).max() <= found.excess + 1e-12
    assert kappa * unit - np.einsum("isa,sa->i", model.u, q).min() <= found.excess + 1e-12
    assert found.excess <= 1e-3
    if found.status == "optimal":
        assert found.excess <= 1e-9
    return found.status


def data(model, seed):
    return np.random.default_rng(seed).dirichlet(np.ones(model.r.size)).reshape(model.r.shape)


def test_small_problems(way):
    outcomes = []
    for seed in range(12 if way == "lp" else 4):
        model = random_problem(seed)
        mu = data(model, seed)
        outcomes += [check_against_the_linear_program(model, psi, mu, -0.1, way) for psi in (1.2, 30.0)]
    assert {"optimal", "infeasible"} <= set(outcomes)


@pytest.mark.parametrize("make", [lambda: garnet(40, 5, 2, rng=0), lambda: ring(60, rng=0), lambda: lake(6, rng=0)])
def test_psi_binds(make, way):
    model = make()
    mu = np.full(model.r.shape, 1 / model.r.size)
    half = max(1.0, model.concentrability(mu) / 2)
    assert check_against_the_linear_program(model, half, mu, 0.0, way) in ("optimal", "inaccurate")
    assert model.solve(psi=half, mu=mu, method="lp").reward < model.solve(method="lp").reward


def test_multipliers_are_those_of_the_linear_program():
    """V and lam close the gap of the Lagrangian, with the constant of V: caps are paid for by positive residuals."""
    model = garnet(40, 5, 2, rng=3)
    mu = np.full(model.r.shape, 1 / model.r.size)
    found = restricted.plan(model, 5.0, mu)
    residual = model.r + np.tensordot(found.lam, model.u, 1) + model.gamma * (model.P @ found.V).reshape(model.r.shape)
    paid = np.maximum(residual - found.V[:, None], 0.0).sum() * 5.0 / model.r.size
    unit = 1 - model.gamma
    assert unit * (model.rho0 @ found.V) + paid == pytest.approx(unit * found.bounds[1], abs=1e-7)


def test_without_psi_only_the_support_matters(way):
    model = garnet(30, 4, 1, rng=1)
    mu = data(model, 0)
    mu[:, 1] = 0.0
    mu /= mu.sum()
    assert model.solve(psi=1e9, mu=mu).status == "optimal"
    found, best = restricted.plan(model, None, mu), model.solve(psi=1e9, mu=mu, method="lp")
    assert not found.q.reshape(30, 4)[:, 1].any()
    assert found.bounds[0] <= best.reward + 1e-8
    assert found.bounds[1] >= best.reward - 1e-8


def test_without_highspy_a_large_problem_says_what_to_install(monkeypatch):
    monkeypatch.setattr(restricted, "LP_PAIRS", 0)
    monkeypatch.setattr(restricted, "_MOST_CAPS", 0)
    monkeypatch.setattr("dpdl.models.pdlp.find_spec", lambda name: None)
    model = garnet(40, 5, 2, rng=0)
    mu = np.full(model.r.shape, 1 / model.r.size)
    assert restricted.plan(model, 1000.0, mu).status == "optimal"
    with pytest.raises(ImportError, match=r"need highspy: pip install 'dpdl\[lp\]'"):
        restricted.plan(model, 5.0, mu)


def test_ctrl_c_ends_pdlp(monkeypatch):
    pytest.importorskip("highspy")
    monkeypatch.setattr(restricted, "_MOST_CAPS", 0)
    model = ring(3000, rng=0)
    mu = np.full(model.r.shape, 1 / model.r.size)
    threading.Timer(0.5, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        restricted.plan(model, 20.0, mu, time_limit=5)
    assert time.perf_counter() - began < 4


@pytest.mark.parametrize(
    ("psi", "mu", "message"),
    [(0.5, [[0.5, 0.5]], "psi must be >= 1"), (2.0, [[0.5, 0.6]], "mu must sum to 1"), (2.0, [[1.0]], "mu must have")],
)
def test_bad_input_is_named(psi, mu, message):
    model = garnet(1, 2, rng=0)
    with pytest.raises(ValueError, match=message):
        restricted.plan(model, psi, mu)


def test_solve_goes_there_with_many_pairs(monkeypatch):
    model = garnet(40, 5, 2, rng=0)
    mu = np.full(model.r.shape, 1 / model.r.size)
    monkeypatch.setattr(restricted, "LP_PAIRS", 100)
    for psi in (5.0, 1.0):
        best, found = model.solve(psi=psi, mu=mu, method="lp"), model.solve(psi=psi, mu=mu)
        assert found.status == best.status
        if best.status == "optimal":
            assert best.reward * 0.999 <= found.reward <= best.reward + 1e-8
            assert found.utilities.min() >= -1e-8
            assert (1 - model.gamma) * found.occupancy.max() <= psi / 200 + 1e-8
            for one in (best, found):
                assert one.lower <= one.reward <= one.upper
                assert one.gap <= 1e-3
                # The caps' multipliers are the gains that are left at them.
                left = model.r + np.tensordot(one.lam, model.u, 1) - one.V[:, None]
                left += model.gamma * (model.P @ one.V).reshape(left.shape)
                proved = model.rho0 @ one.V + np.maximum(left, 0).sum() * psi / 200 / (1 - model.gamma)
                assert best.lower <= proved <= one.upper * (1 + 1e-9)
    assert best.status == "infeasible"
    for one in (best, found):
        assert np.isnan((one.reward, one.lower, one.upper)).all()
        assert one.lam.min() >= 0
        assert np.isfinite(one.V).all()
