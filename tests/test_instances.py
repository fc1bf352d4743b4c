"""The instances are what their docstrings promise."""

import numpy as np
import pytest
from scipy import stats

from dpdl import instances
from kinds import lake, ring


@pytest.fixture(scope="module")
def grid():
    return instances.hazard_gridworld()


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


def test_gridworld_moves_and_slips(grid):
    P = grid.cmdp.P.toarray().reshape(grid.cmdp.n_states, 4, -1)
    state = {tuple(cell): s for s, cell in enumerate(grid.cells.tolist())}
    right = P[state[5, 1], 1]
    assert right[state[5, 2]] == pytest.approx(0.9)  # ahead
    assert right[state[4, 1]] == pytest.approx(0.05)  # to the side
    assert right[state[5, 1]] == pytest.approx(0.05)  # off the map
    into_wall = P[state[3, 1], 1]
    assert into_wall[state[3, 1]] == pytest.approx(0.9)
    np.testing.assert_array_equal(P[grid.kinds == "G"], np.broadcast_to(grid.cmdp.rho0, (1, 4, len(P))))
    assert grid.cmdp.rho0[state[4, 0]] == 1


def test_gridworld_pays_at_the_goal_and_charges_fire_and_mud(grid):
    np.testing.assert_array_equal(grid.cmdp.r[:, 0], grid.kinds == "G")
    np.testing.assert_allclose(grid.cmdp.u[0, :, 2], 0.15 - (grid.kinds == "^"))
    np.testing.assert_allclose(grid.cmdp.u[1, :, 2], 0.15 - (grid.kinds == "~"))
    assert grid.cmdp.n_states == 6 * 9 - str(grid).count("#")


def test_gridworld_shows_a_conflict_that_a_mixture_settles(grid):
    free, safe = grid.cmdp.unconstrained().solve(), grid.cmdp.solve()
    assert 0.05 * grid.cmdp.evaluate(free.policy).utilities[0] < -0.3
    np.testing.assert_allclose(safe.utilities, 0, atol=1e-7)
    assert 0.6 < safe.reward / free.reward < 0.7
    assert grid.cmdp.slater() > 0.1
    at_start = np.sort(safe.policy[grid.kinds == "S"][0])
    assert at_start[-2] > 0.2  # two routes in earnest


def test_gridworld_behaviour_is_mediocre_and_covers_everything(grid):
    policy = grid.behaviour()
    assert policy.min() >= 0.05 - 1e-12
    np.testing.assert_allclose(policy.sum(axis=1), 1)
    value = grid.cmdp.evaluate(policy)
    assert value.reward < 0.5 * grid.cmdp.solve().reward
    assert grid.cmdp.concentrability(value.occupancy * 0.05) < 15


def test_hasty_and_careful_drivers_take_the_routes_they_should(grid):
    hasty = grid.cmdp.evaluate(grid.behaviour(hasty=1.0, careful=0.0))
    careful = grid.cmdp.evaluate(grid.behaviour(hasty=0.0, careful=1.0))
    assert hasty.utilities[0] < 0 < careful.utilities.min()
    assert hasty.reward > careful.reward


def test_picture_shows_the_route(grid):
    policy = grid.cmdp.unconstrained().solve().policy
    assert grid.picture(policy).splitlines()[4] == "S→→→→→→→G"
    assert [len(line) for line in str(grid).splitlines()] == [9] * 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slip": 1.5}, "slip must be >= 0 and <= 1, got 1.5"),
        ({"gamma": 0.0}, "gamma must be > 0 and < 1, got 0.0"),
        ({"hazard_budget": 0.0}, "hazard_budget must be > 0 and < 1, got 0.0"),
        ({"mud_budget": 1.0}, "mud_budget must be > 0 and < 1, got 1.0"),
    ],
)
def test_gridworld_refuses_bad_numbers_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        instances.hazard_gridworld(**changes)


def test_behaviour_refuses_shares_above_one(grid):
    with pytest.raises(ValueError, match=r"careful must be >= 0 and <= 0\.5, got 0\.6"):
        grid.behaviour(hasty=0.5, careful=0.6)


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
