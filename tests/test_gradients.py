"""The mean of each stochastic gradient over the whole log is the gradient of the empirical Lagrangian.

Estimators are not written down here. They are recovered from single steps of the compiled core and of the twin: from
the change of V, log lam and log x where no constraint is active, one record and one initial state at a time.
The Lagrangian is

    L(V, lam, x) = <rho0, V> + sum mu/mu_hat x (r - V(s) + gamma P V + <u^kappa, lam>)

with mu, P, r and u the frequencies and means of the log. It is affine in each of its three arguments, so that a
difference over a whole unit is its exact gradient.
"""

import numpy as np
import pytest

from dpdl import exact
from dpdl.data.reference import estimate_reference
from dpdl.learner.learn import learn
from dpdl.result import Point
from dpdl.settings import Settings
from problems import Run, random_log
from twin import Twin

GAMMA, KAPPA, FLOOR = 0.8, 0.3, 0.02
RATE = 2.0**-4  # of V and lam; x takes a smaller one because its gradient carries 1/mu_hat
RATE_X = 2.0**-8
LOG = random_log(4, 3, 60, 2, seed=4, used_actions=2)
# Another part of the data than the log as a whole, so that mu/mu_hat is not one.
REFERENCE = estimate_reference(LOG[:8], FLOOR)
RHO0 = np.array([0.1, 0.2, 0.3, 0.4])
SETTINGS = Settings(
    gamma=GAMMA,
    psi=50,
    slater=0.5,
    T=1,
    kappa=KAPPA,
    floor=FLOOR,
    order="trajectory",
    eta=1.0,
    alpha_V=1 / RATE,
    alpha_lam=1 / RATE,
    alpha_x=1 / RATE_X,
).resolve(4, 3, 2)


def starting_point():
    rng = np.random.default_rng(9)
    x = rng.uniform(0.05, 0.2, (4, 3))
    x.ravel()[np.setdiff1d(np.arange(12), REFERENCE.pairs)] = 0.04  # far inside their cap of 5
    return {"x": x, "V": rng.uniform(-3, 3, 4), "lam": rng.uniform(0.5, 3, 2)}


START = starting_point()
POINT = Point.of(**START)


def step_of_core(record, initial):
    rho0 = np.eye(4)[initial]
    result = learn(LOG[record : record + 1], SETTINGS, rho0=rho0, reference=REFERENCE, start=POINT, rng=0)
    assert result.diagnostics["case_1"] == 1
    assert result.diagnostics["capped"] == 0
    return result.last


def step_of_eager_core(record, initial):
    one = LOG[record : record + 1]
    run = Run("eager", one, SETTINGS, seed=0, start=START.values(), reference=REFERENCE, initial=[initial])
    assert run.core.run(1) == 0
    assert run.core.diagnostics["case_1"] == 1
    return Point.of(*run.point)


def step_of_twin(record, initial):
    twin = Twin(LOG, REFERENCE.mu_hat, SETTINGS, **START)
    twin.step(record, initial)
    assert twin.cases == [1, 0, 0, 0]
    return Point.of(*twin.point)


STEPS = [step_of_core, step_of_eager_core, step_of_twin]


def mean_gradients(step):
    """Averages over the log and rho0 of what a single step reveals."""
    g_V, g_lam, g_x = np.zeros(4), np.zeros(2), np.zeros((4, 3))
    for record in range(len(LOG)):
        for initial in range(4):
            after = step(record, initial)
            share = RHO0[initial] / len(LOG)
            g_V += share * (POINT.V - after.V) / RATE
            g_lam += share * (POINT.log_lam - after.log_lam) / RATE
            g_x += share * (after.log_x - POINT.log_x) / RATE_X
    return g_V, g_lam, g_x


def empirical_model():
    mu, P, r, u = np.zeros((4, 3)), np.zeros((4, 3, 4)), np.zeros((4, 3)), np.zeros((2, 4, 3))
    for k in range(len(LOG)):
        s, a = LOG.s[k], LOG.a[k]
        mu[s, a] += 1
        P[s, a, LOG.s_next[k]] += 1
        r[s, a] += LOG.r[k]
        u[:, s, a] += LOG.u[k]
    counts = np.maximum(mu, 1)
    return mu / len(LOG), P / counts[..., None], r / counts, u / counts


def lagrangian(V, lam, x):
    mu, P, r, u = empirical_model()
    advantage = r - V[:, None] + GAMMA * P @ V + np.tensordot(lam, u - (1 - GAMMA) * KAPPA, axes=1)
    return RHO0 @ V + (mu / REFERENCE.mu_hat * x * advantage).sum()


def exact_gradients():
    """Differences over one unit, exact because L is affine in each argument."""
    found, here = [], lagrangian(**START)
    for name in ("V", "lam", "x"):
        at = START[name]
        gradient = np.zeros(at.size)
        for k in range(at.size):
            moved = at.ravel().copy()
            moved[k] += 1
            gradient[k] = lagrangian(**{**START, name: moved.reshape(at.shape)}) - here
        found.append(gradient.reshape(at.shape))
    return found


@pytest.mark.parametrize("step", STEPS)
def test_stochastic_gradients_average_to_the_exact_ones(step):
    for name, mean, true in zip(("g_V", "g_lam", "g_x"), mean_gradients(step), exact_gradients(), strict=True):
        # Logarithms are read back with some 1e-16 and divided by a rate of 2^-8; gradients are of order one.
        np.testing.assert_allclose(mean, true, rtol=0, atol=1e-12, err_msg=name)
        assert abs(true).max() > 0.1


def test_the_module_of_exact_references_has_the_same_gradients():
    mu = empirical_model()[0]
    model = exact.plug_in(LOG, GAMMA, RHO0)
    found = exact.lagrangian_gradient(model, **START, mu=mu, mu_hat=REFERENCE.mu_hat, kappa=KAPPA)
    for mine, true in zip(found, exact_gradients(), strict=True):
        np.testing.assert_allclose(mine, true, rtol=0, atol=1e-12)


@pytest.mark.parametrize("step", STEPS)
def test_the_printed_sign_of_g_x_is_not_the_gradient(step):
    """Equation (9) prints r + gamma V(s) - V(s'); the estimator must not be that."""
    mu, P, r, u = empirical_model()
    utilities = np.tensordot(START["lam"], u - (1 - GAMMA) * KAPPA, axes=1)
    printed = mu / REFERENCE.mu_hat * (r + GAMMA * START["V"][:, None] - P @ START["V"] + utilities)
    assert abs(mean_gradients(step)[2] - printed).max() > 0.1


def test_the_problem_covers_what_can_go_wrong():
    """Self-loops, initial states that coincide with s or s', records outside the reference, pairs never seen."""
    assert (LOG.s == LOG.s_next).any()
    assert (LOG.s != LOG.s_next).any()
    assert len(np.setdiff1d(LOG.pairs, REFERENCE.pairs)) > 0
    assert len(LOG.pairs) < 12
    mu = empirical_model()[0]
    assert abs(mu / REFERENCE.mu_hat - 1)[mu > 0].max() > 0.1
