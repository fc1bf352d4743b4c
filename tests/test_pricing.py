"""Best policies for given prices: the compiled passes against plain NumPy, bounds of values, occupancies."""

import numpy as np
import pytest
import scipy.sparse as sp

from dpdl import _planning
from dpdl.instances import garnet
from dpdl.models.evaluation import Evaluator
from kinds import ring
from problems import random_problem


@pytest.fixture
def rows():
    return random_problem(3, n_utilities=2, ending=True).rows


def kernels(rows):
    P = sp.csr_array((rows.data, rows.indices, rows.indptr), shape=(len(rows.ends), rows.n_states)).toarray()
    return P, np.repeat(np.arange(rows.n_states), np.diff(rows.first))


def test_improve_is_greedy(rows):
    rng = np.random.default_rng(0)
    P, states = kernels(rows)
    V, reward = rng.normal(size=rows.n_states), rng.normal(size=len(rows.ends))
    best, policy = np.empty(rows.n_states), rows.first[:-1].copy()
    passed = (rows.indptr, rows.indices, rows.data, rows.first, reward)
    changed, low, high = _planning.improve(*passed, rows.ends, rows.gamma, V, best, policy)
    q = reward + rows.gamma * P @ V
    table = q.reshape(rows.n_states, -1)
    np.testing.assert_allclose(best, table.max(axis=1), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(policy, rows.first[:-1] + table.argmax(axis=1))
    assert changed == (table.argmax(axis=1) > 0).sum()
    ratio = (q - V[states]) / rows.ends
    assert high == pytest.approx(ratio.max(), abs=1e-12)
    assert low == pytest.approx(ratio[policy].min(), abs=1e-12)
    for backward in (False, True):
        mine, theirs, chosen = V.copy(), V.copy(), policy.copy()
        _planning.improve_in_place(*passed, rows.gamma, mine, chosen, backward)
        for s in range(rows.n_states)[:: -1 if backward else 1]:
            own = slice(rows.first[s], rows.first[s + 1])
            theirs[s] = (reward[own] + rows.gamma * P[own] @ theirs).max()
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)


def test_sweeps_and_residuals(rows):
    rng = np.random.default_rng(1)
    P, _ = kernels(rows)
    for n_sides in (1, 2, 3, 4, 7):
        evaluator = Evaluator(rows)
        evaluator.policy = (rows.first[:-1] + rng.integers(np.diff(rows.first))).astype(np.int32)
        system = evaluator._system()
        M = rows.gamma * P[evaluator.policy]
        own = np.diag(M).copy()
        np.fill_diagonal(M, 0.0)
        M /= (1 - own)[:, None]
        np.testing.assert_allclose(system.matrix().toarray(), M, rtol=0, atol=1e-12)
        np.testing.assert_allclose(system.scale, 1 / (1 - own), rtol=1e-12)
        b, X = rng.normal(size=(rows.n_states, n_sides)), rng.normal(size=(rows.n_states, n_sides))
        expected = X.copy()
        for order in (range(rows.n_states), range(rows.n_states)[::-1]):
            for s in order:
                expected[s] = b[s] + M[s] @ expected
        system.sweep(b, X, 2)
        np.testing.assert_allclose(X, expected, rtol=0, atol=1e-12)
        weight, mass = rng.random(rows.n_states), rng.random(rows.n_states)
        value = (b + M @ X - X) * weight[:, None]
        found = system.residuals(b, X, weight, mass)
        np.testing.assert_allclose(
            found, [value.min(axis=0), value.max(axis=0), mass @ value, abs(value).sum(axis=0)], rtol=0, atol=1e-12
        )


def test_bounds_of_a_policy_that_ends_some_episodes(rows):
    """However far V is, the policy's value lies between the bounds."""
    P, _ = kernels(rows)
    evaluator = Evaluator(rows)
    exact = np.linalg.solve(np.eye(rows.n_states) - rows.gamma * P[evaluator.policy], rows.gains[:, evaluator.policy].T)
    for accuracy in (1e3, 1.0, 1e-3, 1e-9):
        values, error = Evaluator(rows).evaluate(evaluator.policy, np.full(len(rows.gains), accuracy))
        assert (abs(values - rows.rho0 @ exact) <= error).all()
        assert (error <= accuracy).all()
    visits, error = evaluator.occupancy(evaluator.policy, 1e-10)
    expected = np.linalg.solve(np.eye(rows.n_states) - rows.gamma * P[evaluator.policy].T, rows.rho0)
    assert abs(visits - expected).sum() <= error + 1e-12


def test_occupancies_of_many_states():
    """Beyond the sizes at which states are eliminated, and where sweeps converge slowly."""
    for model in (garnet(400, 3, rng=0), ring(500, gamma=0.9999, rng=0)):
        rows = model.rows
        evaluator = Evaluator(rows)
        visits, error = evaluator.occupancy(evaluator.policy, 1e-9 / (1 - model.gamma))
        policy = np.zeros(model.r.shape)
        policy[:, 0] = 1.0
        expected = model.evaluate(policy).occupancy.sum(axis=1)
        assert error <= 2e-9 / (1 - model.gamma)
        assert abs(visits - expected).sum() <= error + 1e-9
