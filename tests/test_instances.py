"""The instances are what their docstrings promise."""

import numpy as np
import pytest
from scipy import stats

from dpdl import instances
from kinds import lake, ring


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n_utilities", "slater"), [(1, 0.1), (3, 0.05), (2, 0.4)])
def test_garnet_meets_the_requested_slater_constant(seed, n_utilities, slater):
    cmdp = instances.garnet(30, 4, n_utilities, slater=slater, rng=seed)
    assert cmdp.slater() >= slater
    np.testing.assert_array_equal(np.diff(cmdp.P.indptr), 5)


@pytest.mark.parametrize("seed", range(4))
def test_garnet_constraints_bind(seed):
    cmdp = instances.garnet(30, 4, 2, rng=seed)
    free = cmdp.unconstrained().solve()
    assert cmdp.evaluate(free.policy).utilities.min() < 0
    safe = cmdp.solve()
    assert safe.utilities.min() == pytest.approx(0, abs=1e-7)
    assert safe.reward < free.reward


@pytest.mark.parametrize(("n_states", "branching"), [(1, 1), (5, 5), (6, 2), (40, 3), (300, 280)])
def test_garnet_successors_are_distinct(n_states, branching):
    cmdp = instances.garnet(n_states, 2, 0, branching=branching, rng=0)
    np.testing.assert_array_equal(np.diff(cmdp.P.indptr), branching)
    assert cmdp.n_utilities == 0


def test_garnet_chooses_every_set_of_successors_alike():
    cmdp = instances.garnet(5, 4000, 0, branching=2, rng=0)
    sets, counts = np.unique(cmdp.P.indices.reshape(-1, 2), axis=0, return_counts=True)
    assert len(sets) == 10
    assert stats.chisquare(counts).pvalue > 1e-3
    # Probabilities uniform on the simplex: with two successors each of them is uniform on [0, 1].
    assert stats.kstest(cmdp.P.data[::2], "uniform").pvalue > 1e-3


def test_garnet_is_reproducible():
    first, second = (instances.garnet(10, 3, rng=3) for _ in range(2))
    np.testing.assert_array_equal(first.P.toarray(), second.P.toarray())
    np.testing.assert_array_equal(first.u, second.u)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_states": 0}, "n_states must be between 1"),
        ({"n_actions": 0}, "n_actions must be between 1"),
        ({"n_utilities": -1}, "n_utilities must be between 0"),
        ({"branching": 11}, "branching must be between 1 and 10, got 11"),
        ({"gamma": 1.0}, "gamma must be > 0 and < 1, got 1.0"),
        ({"slater": 1.0}, "slater must be > 0 and < 1, got 1.0"),
    ],
)
def test_garnet_refuses_bad_sizes_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        instances.garnet(**({"n_states": 10, "n_actions": 2} | changes))


# ---- Rings and lakes ----


@pytest.mark.parametrize("make", [ring, lake])
def test_rings_and_lakes_can_be_solved_and_their_constraints_bind(make):
    for seed in range(3):
        cmdp = make(n_utilities=1, rng=seed)
        best = cmdp.solve()
        assert best.status == "optimal"
        assert best.reward > 0.5
        assert best.reward < cmdp.unconstrained().solve().reward
        assert best.utilities.max() <= 1e-6
        np.testing.assert_array_equal(make(n_utilities=1, rng=seed).u, cmdp.u)


def test_rings_and_lakes_have_the_sizes_asked_for():
    cmdp = ring(901, n_utilities=2, rng=0)
    assert (cmdp.n_states, cmdp.n_actions, cmdp.n_utilities) == (901, 3, 2)
    assert cmdp.P.nnz <= 9 * 901
    assert (cmdp.u.min(axis=(1, 2)) < 0).all()  # three hills, hazards of two kinds
    np.testing.assert_allclose(cmdp.u.max(axis=(1, 2)), 0.01)
    grid = lake(30, n_utilities=3, rng=0)
    assert (grid.n_states, grid.n_actions, grid.n_utilities) == (900, 4, 3)
    assert grid.r.sum() == 4
    assert grid.rho0[0] == 1
    np.testing.assert_array_equal(grid.P.toarray()[-4:, 0], 1)  # from the last corner back to the first
    assert ring(3, n_utilities=0).n_utilities == lake(2, n_utilities=0).n_utilities == 0


@pytest.mark.parametrize(
    ("make", "keywords", "message"),
    [
        (ring, {"n_states": 2}, "n_states must be between 3 and"),
        (ring, {"budget": 0.0}, "budget must be > 0 and < 1, got 0.0"),
        (lake, {"n_rows": 1}, "n_rows must be between 2 and"),
        (lake, {"slip": 1.5}, r"slip must be >= 0 and <= 1, got 1\.5"),
        (lake, {"holes": -0.1}, r"holes must be >= 0 and <= 1, got -0\.1"),
    ],
)
def test_bad_sizes_of_rings_and_lakes_are_named(make, keywords, message):
    with pytest.raises(ValueError, match=message):
        make(**keywords)
