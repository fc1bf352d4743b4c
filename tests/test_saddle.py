"""The Lagrangian game on a known model: gradients, penalised objective, saddle value and gap."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

from dpdl import exact, theory
from dpdl.instances import garnet
from exact_oracle import hostile, optimum
from problems import one_state, random_policy


@pytest.fixture(scope="module")
def game():
    rng = np.random.default_rng(0)
    cmdp = garnet(8, 3, 2, branching=3, rng=1)
    mu = rng.dirichlet(np.ones(24)).reshape(8, 3)
    mu[2, 1] = 0
    mu /= mu.sum()
    mu_hat = np.maximum(mu * rng.uniform(0.7, 1.4, mu.shape), 1e-4)
    return cmdp, mu, mu_hat


def lagrangian(game, V, lam, x, kappa):
    cmdp, mu, mu_hat = game
    nu = mu / mu_hat * x
    P = cmdp.P.toarray().reshape(8, 3, 8)
    total = cmdp.rho0 @ V
    for s, a in np.ndindex(8, 3):
        surplus = cmdp.r[s, a] - V[s] + cmdp.gamma * P[s, a] @ V
        surplus += sum(lam[i] * (cmdp.u[i, s, a] - (1 - cmdp.gamma) * kappa) for i in range(2))
        total += nu[s, a] * surplus
    return total


def feasible_points(game, psi, count, seed=0):
    """Draw points of X, some of them on its boundary."""
    cmdp, _, mu_hat = game
    rng = np.random.default_rng(seed)
    bound = theory.sum_bound(cmdp.gamma)
    weight = theory.weight_bound(8, 3, 2, cmdp.gamma, psi)
    for _ in range(count):
        x = rng.uniform(0, 1, mu_hat.shape) ** rng.uniform(0, 5) * psi * mu_hat / (1 - cmdp.gamma)
        yield x / max(1, x.sum() / bound, (x / mu_hat).sum() / weight)


def test_gradients_agree_with_finite_differences(game):
    rng = np.random.default_rng(3)
    V, lam, x = rng.normal(size=8), rng.random(2), rng.random((8, 3))
    g_V, g_lam, g_x = exact.lagrangian_gradient(game[0], V, lam, x, *game[1:], kappa=0.7)
    # The Lagrangian is linear in each block, so central differences are exact up to rounding.
    for block, gradient in ((V, g_V), (lam, g_lam), (x, g_x)):
        assert gradient.shape == block.shape
        for index in np.ndindex(block.shape):
            step = np.zeros(block.shape)
            step[index] = 0.5
            ahead, behind = (
                lagrangian(game, *((b + sign * step) if b is block else b for b in (V, lam, x)), kappa=0.7)
                for sign in (1, -1)
            )
            assert gradient[index] == pytest.approx(ahead - behind, abs=1e-11)


@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_penalised_objective_is_the_least_lagrangian_over_the_boxes(game, kappa):
    cmdp, mu, mu_hat = game
    radius_V, radius_lam = theory.radius_V(cmdp.gamma, 0.2), theory.radius_lam(0.2)
    rng = np.random.default_rng(5)
    for x in feasible_points(game, 4.0, 10):
        value = exact.penalised_objective(cmdp, x, mu, mu_hat, kappa, 0.2)
        # A linear function is least at a corner: V at +-R_V by coordinate, lam at zero or one corner of its simplex.
        corners = [np.zeros(2), *(radius_lam * np.eye(2))]
        slopes = [
            lagrangian(game, e, corners[0], x, kappa) - lagrangian(game, 0 * e, corners[0], x, kappa) for e in np.eye(8)
        ]
        V = -radius_V * np.sign(slopes)
        assert value == pytest.approx(min(lagrangian(game, V, lam, x, kappa) for lam in corners), rel=1e-10)
        # And no interior point is lower.
        lam = radius_lam * rng.dirichlet(np.ones(3))[:2]
        assert value <= lagrangian(game, rng.uniform(-radius_V, radius_V, 8), lam, x, kappa) + 1e-9


@pytest.mark.parametrize("psi", [1.0, 4.0, 100.0])
@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_gap_is_nonnegative_on_X(game, psi, kappa):
    cmdp, mu, mu_hat = game
    for x in feasible_points(game, psi, 20, seed=7):
        assert exact.gap(cmdp, x, mu, mu_hat, psi, kappa, 0.2) >= -1e-8


def test_gap_of_the_optimal_occupancy_is_zero_when_psi_covers_it():
    # With mu_hat = mu the saddle value is the CMDP's own optimum once psi >= C* (strong duality, radii large enough).
    cmdp = garnet(8, 3, 2, branching=3, rng=1)
    mu = cmdp.evaluate(random_policy(cmdp, 2)).occupancy * (1 - cmdp.gamma)
    psi = cmdp.concentrability(mu) * (1 + 1e-6)
    best, slater = cmdp.solve(), cmdp.slater()
    assert exact.saddle_value(cmdp, mu, mu, psi, 0.0, slater) == pytest.approx(best.reward, abs=1e-6)
    # The policy's figures carry the LP's tolerance, which the radii multiply.
    within = best.occupancy * (1 - 1e-6)
    assert exact.gap(cmdp, best.occupancy, mu, mu, psi, 0.0, slater) == pytest.approx(0, abs=1e-5)
    assert exact.gap(cmdp, within, mu, mu, psi, 0.0, slater) >= -1e-8


def test_saddle_value_grows_with_psi_and_shrinks_with_kappa(game):
    values = [exact.saddle_value(*game, psi, 0.0, 0.2) for psi in (1.0, 2.0, 8.0, 64.0)]
    assert all(a <= b + 1e-8 for a, b in itertools.pairwise(values))
    values = [exact.saddle_value(*game, 8.0, kappa, 0.2) for kappa in (0.0, 0.5, 2.0)]
    assert all(a >= b - 1e-8 for a, b in itertools.pairwise(values))


@pytest.mark.slow
def test_saddle_value_agrees_with_direct_maximisation():
    # One state, so x has two coordinates and J_kappa can be searched directly.
    cmdp = one_state([1.0, 0.2], [-0.5, 0.6], gamma=0.8)
    mu, mu_hat = np.array([[0.3, 0.7]]), np.array([[0.35, 0.6]])
    psi, kappa, slater = 1.5, 0.3, 0.4
    caps = psi * mu_hat / 0.2

    def loss(share):
        x = np.clip(share, 0, 1) * caps[0]
        x = x / max(1, x.sum() / 20, (x / mu_hat[0]).sum() / (2 * psi / 0.2))
        return -exact.penalised_objective(cmdp, [x], mu, mu_hat, kappa, slater)

    found = min(
        minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-12, "fatol": 1e-12, "maxiter": 5000}).fun
        for start in itertools.product((0.2, 0.5, 0.8), repeat=2)
    )
    assert exact.saddle_value(cmdp, mu, mu_hat, psi, kappa, slater) == pytest.approx(-found, abs=1e-6)


def test_game_without_utilities():
    cmdp = one_state([1.0, 0.0])
    mu = [[0.5, 0.5]]
    assert exact.saddle_value(cmdp, mu, mu, 2.0, 0.0, 0.5) == pytest.approx(2, abs=1e-8)
    assert exact.penalised_objective(cmdp, [[2.0, 0.0]], mu, mu, 0.0, 0.5) == pytest.approx(2)


MU = [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda m: exact.penalised_objective(m, [[-1, 0]], MU, MU, 0, 0.5),
            ValueError,
            r"x\[0, 0\] = -1.0 must be >= 0",
        ),
        (
            lambda m: exact.penalised_objective(m, MU, MU, [[0.5, 0]], 0, 0.5),
            ValueError,
            r"mu_hat\[0, 1\] = 0.0 must be > 0",
        ),
        (lambda m: exact.saddle_value(m, MU, MU, 2, 0, 0), ValueError, "slater must be > 0 and <= 1, got 0.0"),
        (lambda m: exact.saddle_value(m, MU, MU, 0, 0, 0.5), ValueError, "psi must be >= 1, got 0.0"),
        (lambda m: exact.gap(m, MU, MU, MU, 2, "0", 0.5), TypeError, "kappa must be a real number, got str"),
        (
            lambda m: exact.lagrangian_gradient(m, [0, 0], [0], MU, MU, MU, 0),
            ValueError,
            r"V must have shape \(1,\), got \(2,\)",
        ),
        (
            lambda m: exact.lagrangian_gradient(m, [0], [-1], MU, MU, MU, 0),
            ValueError,
            r"lam\[0\] = -1.0 must be >= 0",
        ),
    ],
)
def test_bad_arguments_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call(one_state([1.0, 0.0], [-1.0, 1.0]))


def test_the_saddle_value_of_a_hostile_model_is_right_or_refused():
    """With even data and psi = S A every policy is in the class, so that j(psi) is the optimum."""
    refused, n = [], 0
    for seed in range(60):
        cmdp = hostile(np.random.default_rng([8, seed]))
        best, margin = optimum(cmdp)
        if margin < 0.01:
            continue
        even, n = np.full(cmdp.r.shape, 1 / cmdp.r.size), n + 1
        try:
            value = exact.saddle_value(cmdp, even, even, float(cmdp.r.size), 0.0, float(margin))
        except RuntimeError:
            refused.append(1 - cmdp.gamma)
        else:
            assert (1 - cmdp.gamma) * value == pytest.approx(float(best), abs=2e-6)
    print(f"{len(refused)} of {n} refused")
    assert max(refused) < 1.1e-8
    assert n - len(refused) > 20
