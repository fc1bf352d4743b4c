"""Answers of `CMDP.solve` for gamma up to 1 - 1e-6, against evaluations with more digits."""

import numpy as np
import pytest

from dpdl.instances import garnet
from dpdl.models.cmdp import CMDP
from kinds import lake, ring
from test_planner import dual_excess, largest

KINDS = {
    "ring": lambda n: ring(n // 3, n_utilities=2, rng=4),
    "lake": lambda n: lake(round((n / 4) ** 0.5), rng=4),
    "fast": lambda n: garnet(n // 10, 10, n_utilities=3, rng=4),
}


def problem(kind, n_pairs, gamma):
    base = KINDS[kind](n_pairs)
    return CMDP(base.P, base.r, base.u, gamma, base.rho0)


def evaluated(model, policy):
    """Normalised reward and utilities, by a dense system whose residuals have the digits of long doubles.

    Its diagonal is made of the probabilities of leaving a state, as 1 - gamma P(s | s) would lose digits.
    """
    n, unit = model.n_states, np.longdouble(1 - model.gamma)
    policy = policy.astype(np.longdouble) / policy.sum(axis=1, dtype=np.longdouble, keepdims=True)
    away = (1 - unit) * np.einsum("sa,sat->st", policy, model.P.toarray().reshape(n, -1, n).astype(np.longdouble))
    np.fill_diagonal(away, 0)
    system = np.diag(unit + away.sum(axis=1)) - away
    inverse = np.linalg.inv(system.astype(float))
    p, rho0 = np.zeros(n, np.longdouble), unit * model.rho0.astype(np.longdouble)
    for _ in range(5):  # each leaves a hundredth of the error or less
        left = rho0 - p @ system
        p += left.astype(float) @ inverse
    assert abs(rho0 - p @ system).sum() / unit < 1e-12
    return np.einsum("s,sa,ksa->k", p, policy, np.concatenate([model.r[None], model.u])).astype(float)


def check(model, found, kappa=0.0, tol=1e-9):
    """Status, figures and bounds are right; returns the bounds."""
    unit = 1 - model.gamma
    lower, upper = unit * found.lower, unit * found.upper
    reward, *utilities = evaluated(model, found.policy)
    assert unit * found.reward == pytest.approx(reward, abs=1e-11)
    np.testing.assert_allclose(unit * found.utilities, utilities, rtol=0, atol=1e-11)
    assert min(utilities) >= unit * kappa - 1e-9
    assert lower <= reward + 1e-12
    assert dual_excess(model, found) <= 1e-12
    assert unit * (model.rho0 @ found.V - kappa * found.lam.sum()) <= upper + 1e-12
    assert found.status in ("optimal", "inaccurate")
    assert (found.status == "optimal") == (upper - lower <= max(1e-9, tol * abs(upper)))
    return lower, upper


@pytest.mark.parametrize(
    ("n_pairs", "gamma"),
    [
        (100, 1 - 1e-4),
        (100, 1 - 1e-5),
        (100, 1 - 1e-6),
        (3000, 1 - 1e-6),
        pytest.param(3000, 1 - 1e-4, marks=pytest.mark.slow),
        pytest.param(3000, 1 - 1e-5, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_correct_or_said_to_be_inaccurate(kind, n_pairs, gamma):
    model = problem(kind, n_pairs, gamma)
    answers = [model.solve(method=method) for method in ("lp", "planner", "auto")]
    bounds = [check(model, found) for found in answers]
    rough = model.solve(method="planner", tol=1e-3)
    assert rough.status == "optimal"
    bounds.append(check(model, rough, tol=1e-3))
    assert max(bounds)[0] <= min(upper for _, upper in bounds)  # all of the same optimum
    assert answers[0].status == answers[2].status == "optimal"
    assert bounds[1][1] - bounds[1][0] <= 1e-8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_pairs", "methods"), [(100, ("lp", "planner")), (3000, ("planner",))])
def test_infeasible_problems_come_with_a_proof(kind, n_pairs, methods):
    model = problem(kind, n_pairs, 1 - 1e-6)
    unit, slater = 1 - model.gamma, model.slater()
    for method in methods:
        assert model.solve((slater - 1e-5) / unit, method=method, tol=1e-3).status == "optimal"
        found = model.solve(kappa := (slater + 1e-5) / unit, method=method)
        assert found.status == "infeasible"
        assert found.lam.min() >= 0
        assert found.lam.sum() == pytest.approx(1)
        assert dual_excess(model, found, reward=0.0) <= 1e-12
        assert unit * (model.rho0 @ found.V) < unit * kappa - 1e-6
        # No policy has so large a weighted utility; the dense systems lose eight digits.
        assert unit * largest(model, np.tensordot(found.lam, model.u, 1)) < unit * kappa - 1e-6


def test_large_models_are_not_left_to_a_slow_linear_program():
    model = problem("fast", 12_000, 1 - 1e-6)
    found = model.solve()
    assert found.n_columns > 0
    assert (1 - model.gamma) * (found.upper - found.lower) <= 1e-8
