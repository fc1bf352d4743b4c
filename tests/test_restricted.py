"""The best safe policy inside D(psi): bounds, multipliers, and the same answers in other units."""

import numpy as np
import pytest

from dpdl import CMDP
from dpdl.instances import garnet
from dpdl.models import highs, programs
from kinds import lake, ring
from problems import random_problem


def data(model, seed):
    return np.random.default_rng(seed).dirichlet(np.ones(model.r.size)).reshape(model.r.shape)


def check_solution(model, psi, mu, kappa=0.0):
    """The policy is safe, inside D(psi), and best by the multipliers that are returned with it."""
    unit = 1 - model.gamma
    best = model.solve(kappa, psi, mu)
    assert best.status in ("optimal", "infeasible")
    assert best.lam.min(initial=0.0) >= 0
    if best.status == "infeasible":
        assert model.slater(psi, mu) < unit * kappa
        return best.status
    q = unit * best.occupancy
    assert (q - psi * mu).max() <= 1e-9
    assert unit * (best.utilities.min(initial=np.inf) - kappa) >= -1e-9
    assert best.lower <= best.reward + 1e-12 <= best.upper + 2e-12
    left = model.r + np.tensordot(best.lam, model.u, 1) - best.V[:, None]
    left += model.gamma * (model.P @ best.V).reshape(left.shape)
    proved = model.rho0 @ best.V + (np.maximum(left, 0) * psi * mu).sum() / unit - kappa * best.lam.sum()
    assert best.lower - 1e-9 / unit <= proved
    return best.status


def test_small_problems():
    outcomes = []
    for seed in range(8):
        model = random_problem(seed)
        outcomes += [check_solution(model, psi, data(model, seed), -0.1) for psi in (1.2, 30.0)]
    assert {"optimal", "infeasible"} <= set(outcomes)


@pytest.mark.parametrize("make", [lambda: garnet(40, 5, 2, rng=0), lambda: ring(60, rng=0), lambda: lake(6, rng=0)])
def test_psi_binds(make):
    model = make()
    mu = np.full(model.r.shape, 1 / model.r.size)
    half = max(1.0, model.concentrability(mu) / 2)
    assert check_solution(model, half, mu) == "optimal"
    assert model.solve(psi=half, mu=mu).reward < model.solve().reward


def test_refinement_leaves_rounding_only():
    """On the ring HiGHS alone leaves a gap of 1e-10 to 1e-9, depending on the processor."""
    model = ring(60, rng=0)
    mu = np.full(model.r.shape, 1 / model.r.size)
    program = programs.largest_reward(model.rows, 0.0, programs.region(model.rows, model.concentrability(mu) / 2, mu))
    answer = program._by_highs(highs.refined)
    assert answer.excess <= 1e-14
    assert abs(answer.bound - answer.value) <= 1e-12


@pytest.mark.parametrize(("reward", "utility"), [(2.0**-30, 1.0), (1e-12, 1e-9)])
def test_answers_are_the_same_in_other_units(reward, utility):
    models = [garnet(12, 3, 2, gamma=0.9, rng=seed) for seed in range(2)]
    models += [random_problem(seed) for seed in range(6)]
    for model in models:
        other = CMDP(model.P, reward * model.r, utility * model.u, model.gamma, model.rho0, model.ends)
        for method in ("lp", "planner"):
            best, same = model.solve(method=method), other.solve(method=method)
            assert same.status == best.status
            if best.status == "optimal":
                size, unit = abs(model.r).max(), 1 - model.gamma
                assert same.reward / reward == pytest.approx(best.reward, rel=0, abs=4e-9 * size / unit)
                assert same.upper / reward == pytest.approx(best.upper, rel=0, abs=4e-9 * size / unit)
        if model.n_utilities:
            assert other.slater() / utility == pytest.approx(model.slater(), rel=0, abs=4e-9)
