"""Exact references: evaluation, linear programs, concentrability, the saddle value, the plug-in model."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import hard_instances
from dpdl import exact
from dpdl.data.dataset import Dataset
from dpdl.instances import garnet
from dpdl.models import evaluation, highs, programs
from dpdl.models.cmdp import CMDP
from problems import one_state, random_policy

#: What the programs promise on the normalised scale, with room for a few roundings.
NORMALISED = 3 * programs.TOLERANCE


def clock(*u, gamma=0.5):
    """Return the chain 0, 1, 0, 1, ...: (1-gamma) (1 + gamma^2 + ...) = 1/(1+gamma) of the time in state 0."""
    return CMDP([[[0.0, 1.0]], [[1.0, 0.0]]], [[1.0], [0.0]], np.reshape(u, (-1, 2, 1)), gamma, [1.0, 0.0])


def random_distribution(shape, decades, seed=0):
    """Return a distribution whose entries spread over so many powers of ten."""
    weights = 10.0 ** (-decades * np.random.default_rng(seed).random(shape))
    return weights / weights.sum()


def dense_occupancy(cmdp, policy):
    P = cmdp.P.toarray().reshape(cmdp.n_states, cmdp.n_actions, cmdp.n_states)
    kernel = np.einsum("sa,sap->sp", policy, P)
    visits = np.linalg.solve(np.eye(cmdp.n_states) - cmdp.gamma * kernel.T, cmdp.rho0)
    return visits[:, None] * policy


def deterministic_values(cmdp):
    """Return reward and utilities of every deterministic policy: the vertices of what policies can reach."""
    identity = np.eye(cmdp.n_actions)
    choices = itertools.product(range(cmdp.n_actions), repeat=cmdp.n_states)
    occupancies = [dense_occupancy(cmdp, identity[list(actions)]) for actions in choices]
    rewards = np.array([np.vdot(cmdp.r, nu) for nu in occupancies])
    utilities = np.array([np.einsum("isa,sa->i", cmdp.u, nu) for nu in occupancies])
    return rewards, utilities


# ---- Evaluation ----


@pytest.mark.parametrize("gamma", [0.1, 0.9, 0.9999])
@pytest.mark.parametrize("start", [0.0, 0.3, 1.0])
def test_two_state_chain(gamma, start):
    # With leaving probabilities p and q the share p_0 solves p_0 = (1-gamma) rho0 + gamma (p_0 (1-p) + (1-p_0) q).
    p, q = 0.2, 0.05
    chain = CMDP([[[1 - p, p]], [[q, 1 - q]]], [[1.0], [-0.5]], [[[0.0], [1.0]]], gamma, [start, 1 - start])
    share = ((1 - gamma) * start + gamma * q) / (1 - gamma * (1 - p - q))
    value = chain.evaluate([[1.0], [1.0]])
    np.testing.assert_allclose(value.occupancy[:, 0] * (1 - gamma), [share, 1 - share], rtol=0, atol=1e-13)
    assert value.reward * (1 - gamma) == pytest.approx(1.5 * share - 0.5, abs=1e-13)
    assert value.utilities[0] * (1 - gamma) == pytest.approx(1 - share, abs=1e-13)


@pytest.mark.parametrize("gamma", [0.5, 0.99, 0.9999])
@pytest.mark.parametrize("n_states", [1, 3, 60])
def test_evaluate_agrees_with_a_dense_solve(gamma, n_states):
    cmdp = garnet(n_states, 3, n_utilities=2, branching=min(n_states, 4), gamma=gamma, rng=n_states)
    policy = random_policy(cmdp)
    value, expected = cmdp.evaluate(policy), dense_occupancy(cmdp, policy)
    # The system's condition is of order 1/(1-gamma); so much rounding is the reference's own.
    np.testing.assert_allclose(value.occupancy, expected, rtol=1e-15 / (1 - gamma) ** 2 + 1e-12)
    assert value.occupancy.sum() * (1 - gamma) == pytest.approx(1, abs=1e-13)
    assert value.reward == pytest.approx(np.vdot(value.occupancy, cmdp.r), rel=1e-14)


@pytest.mark.parametrize("gamma", [0.9, 0.9999])
def test_evaluate_large_sparse_models(gamma):
    cmdp = garnet(3000, 4, gamma=gamma, rng=0)
    policy = random_policy(cmdp)
    q = (1 - gamma) * cmdp.evaluate(policy).occupancy
    np.testing.assert_allclose(q.sum(axis=1)[:, None] * policy, q, rtol=1e-12, atol=1e-18)
    residual = (1 - gamma) * cmdp.rho0 + gamma * (cmdp.P.T @ q.ravel()) - q.sum(axis=1)
    assert abs(residual).sum() <= 1e-13


@pytest.mark.parametrize("gamma", [0.9, 0.999, 0.9999])
def test_evaluate_a_long_corridor(gamma):
    """A chain that never mixes; its occupancy is (1-gamma) gamma^s, and the rest at the end."""
    n = 3000
    onward = sp.csr_array((np.ones(n), (np.arange(n), np.minimum(np.arange(n) + 1, n - 1))), shape=(n, n))
    corridor = CMDP(onward, np.zeros((n, 1)), np.zeros((0, n, 1)), gamma, np.eye(n)[0])
    expected = gamma ** np.arange(n)
    expected[-1] /= 1 - gamma
    np.testing.assert_allclose(corridor.evaluate(np.ones((n, 1))).occupancy[:, 0], expected, rtol=0, atol=1e-9)


def test_an_occupancy_that_cannot_be_verified_is_an_error(monkeypatch):
    monkeypatch.setattr(evaluation, "ELIMINATION_STATES", 1)
    monkeypatch.setattr(evaluation, "_LARGEST_ERROR", -1.0)
    with pytest.raises(RuntimeError, match="occupancy could not be computed"):
        clock(0, 0).evaluate([[1.0], [1.0]])


# ---- The best safe policy ----


@pytest.mark.parametrize("kappa", [-3.0, -2.0, 0.0, 0.7, 2.0])
def test_one_state(kappa):
    # Work p of the time: utility (1 - 2p)/(1-gamma) >= kappa, so p = (1 - kappa/2)/2 at gamma = 1/2, but p <= 1.
    best = one_state([1.0, 0.0], [-1.0, 1.0]).solve(kappa)
    work = min(1.0, (1 - kappa / 2) / 2)
    assert best.status == "optimal"
    np.testing.assert_allclose(best.policy, [[work, 1 - work]], atol=NORMALISED)
    np.testing.assert_allclose(best.occupancy, 2 * best.policy, rtol=1e-13)
    assert best.reward == pytest.approx(2 * work, abs=2 * NORMALISED)
    assert best.utilities[0] >= kappa - 2 * NORMALISED


def test_two_states_where_the_constraint_mixes_actions():
    # Moving (0 -> 1) is paid for by waiting there: with share p_1 of time in state 1, reward p_1 and utility 0.6 - p_1.
    P = [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]]
    cmdp = CMDP(P, [[0.0, 0.0], [1.0, 1.0]], [[[0.6, 0.6], [-0.4, -0.4]]], 0.8, [1.0, 0.0])
    assert cmdp.unconstrained().solve().reward == pytest.approx(0.8 / 0.2, rel=1e-9)  # all but the first step
    best = cmdp.solve()
    assert best.reward == pytest.approx(0.6 / 0.2, rel=1e-8)
    assert best.utilities[0] == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_utilities", [0, 1, 2])
def test_solve_agrees_with_mixtures_of_all_deterministic_policies(seed, n_utilities):
    cmdp = garnet(3, 3, n_utilities, branching=2, gamma=0.9, slater=0.05, rng=seed)
    rewards, utilities = deterministic_values(cmdp)
    kappa = 0.1
    mixture = linprog(
        -rewards,
        A_ub=-utilities.T if n_utilities else None,
        b_ub=np.full(n_utilities, -kappa) if n_utilities else None,
        A_eq=np.ones((1, len(rewards))),
        b_eq=[1.0],
    )
    best = cmdp.solve(kappa)
    assert best.reward == pytest.approx(-mixture.fun, abs=1e-6)  # linprog's own tolerance, at values of order ten
    assert np.all(best.utilities >= kappa - 10 * NORMALISED)
    value = cmdp.evaluate(best.policy)
    np.testing.assert_array_equal(value.occupancy, best.occupancy)


def test_deviation_control_is_a_knapsack_in_one_state():
    # D(2): q <= 2 mu and q_1/0.1 + q_2/0.3 + q_3/0.6 <= N psi = 2. From q_3 = 1 (which costs 5/3), action 2 gains 0.5
    # for 5/3 more and action 1 gains 1 for 25/3 more: the remaining 1/3 buys q_2 = 0.2.
    cmdp = one_state([1.0, 0.5, 0.0])
    best = cmdp.solve(psi=2.0, mu=[[0.1, 0.3, 0.6]])
    np.testing.assert_allclose(best.policy, [[0.0, 0.2, 0.8]], atol=NORMALISED)
    # With two utilities N = 3, and the caps bind instead: q = (0.2, 0.6, 0.2), costing 2 + 2 + 1/3 <= 6.
    best = one_state([1.0, 0.5, 0.0], [1, 1, 1], [1, 1, 1]).solve(psi=2.0, mu=[[0.1, 0.3, 0.6]])
    np.testing.assert_allclose(best.policy, [[0.2, 0.6, 0.2]], atol=NORMALISED)


def test_solutions_lie_in_the_deviation_region():
    cmdp = garnet(15, 4, 2, rng=3)
    mu = random_distribution(cmdp.r.shape, decades=2)
    free = cmdp.solve().reward
    for psi in (8.0, 20.0, 60.0):
        best = cmdp.solve(psi=psi, mu=mu)
        ratios = (1 - cmdp.gamma) * best.occupancy / (psi * mu)
        assert best.status == "optimal"
        assert best.reward <= free + 1e-7
        assert ratios.max() <= 1 + 1e-6
        assert ratios.sum() <= programs.sparsity(cmdp.rows) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("cmdp", "how"),
    [
        (one_state([1.0, 0.0], [-0.1, -0.3]), {}),
        (one_state([1.0, 0.0], [-1.0, 1.0]), {"kappa": 2.0 + 1e-6}),
        (one_state([1.0, 0.0], [-1.0, 1.0], [1.0, -1.0]), {"kappa": 1e-6}),
        (one_state([1.0, 0.0], [-1.0, 1.0]), {"psi": 1.0, "mu": [[0.75, 0.25]]}),
        (one_state([1.0, 0.0], [-1.0, 1.0]), {"psi": 100.0, "mu": [[1.0, 0.0]]}),
        (clock(1, 1), {"psi": 1.3, "mu": [[0.5], [0.5]]}),  # holds no occupancy at all: 2/3 > 1.3/2
        (clock(1, 1), {"psi": 100.0, "mu": [[1.0], [0.0]]}),
        (garnet(40, 3, 2, rng=0), {"kappa": 9.0}),
    ],
)
def test_infeasible_problems_say_so(cmdp, how):
    none = cmdp.solve(**how)
    assert none.status == "infeasible"
    for field in (none.reward, none.utilities, none.occupancy, none.policy):
        assert np.isnan(field).all()
    assert none.policy.shape == none.occupancy.shape == cmdp.r.shape
    assert none.utilities.shape == (cmdp.n_utilities,)


@pytest.mark.parametrize(
    ("cmdp", "how", "reward"),
    [
        (one_state([1.0, 0.0], [-1.0, 1.0]), {"kappa": 2.0}, 0.0),
        (one_state([1.0, 0.0], [-1.0, 1.0], [1.0, -1.0]), {}, 1.0),
        (one_state([1.0, 0.0], [-1.0, 1.0]), {"psi": 1.0, "mu": [[0.5, 0.5]]}, 1.0),
        (clock(1, 1), {"psi": 4 / 3, "mu": [[0.5], [0.5]]}, 4 / 3),
    ],
)
def test_problems_with_a_single_feasible_point_are_solved(cmdp, how, reward):
    best = cmdp.solve(**how)
    assert best.status == "optimal"
    assert best.reward == pytest.approx(reward, abs=1e-7)


def test_many_states_take_the_interior_point_path(monkeypatch):
    cmdp = garnet(60, 3, 2, rng=0)
    by_simplex = cmdp.solve()
    monkeypatch.setattr(highs, "_SIMPLEX_ROWS", 10)
    by_interior_point = cmdp.solve()
    assert by_interior_point.reward == pytest.approx(by_simplex.reward, abs=1e-7)
    assert cmdp.solve(kappa=9.0).status == "infeasible"


# ---- Slater's constant ----


@pytest.mark.parametrize(
    ("utilities", "expected"),
    [
        ([[-1.0, 0.25]], 0.25),
        ([[-0.3, -0.3]], -0.3),
        ([[-1.0, -1.0]], -1.0),
        ([[1.0, 1.0]], 1.0),
        ([[1.0, -1.0], [-1.0, 1.0]], 0.0),
        ([[0.6, -0.2], [-0.2, 0.4]], 1 / 7),  # 0.8 p - 0.2 = 0.4 - 0.6 p at p = 3/7
    ],
)
@pytest.mark.parametrize("gamma", [0.5, 0.999])
def test_slater_in_one_state(utilities, expected, gamma):
    assert one_state([1.0, 0.0], *utilities, gamma=gamma).slater() == pytest.approx(expected, abs=NORMALISED)


def test_slater_in_the_clock_is_its_only_utility():
    assert clock(0.5, -1.0).slater() == pytest.approx(0.5 * 2 / 3 - 1 / 3, abs=NORMALISED)


def test_slater_inside_a_deviation_region():
    cmdp, mu = one_state([1.0, 0.0], [1.0, -1.0]), [[0.2, 0.8]]
    assert cmdp.slater(psi=1.0, mu=mu) == pytest.approx(-0.6, abs=NORMALISED)
    assert cmdp.slater(psi=2.0, mu=mu) == pytest.approx(-0.2, abs=NORMALISED)  # q_1 <= 0.4
    assert cmdp.slater(psi=5.0, mu=mu) == pytest.approx(1.0, abs=NORMALISED)
    assert clock(1, 1).slater(psi=1.3, mu=[[0.5], [0.5]]) == -np.inf
    assert clock(1, 1).slater(psi=1.4, mu=[[0.5], [0.5]]) == pytest.approx(1.0, abs=NORMALISED)


def test_slater_agrees_with_mixtures_of_all_deterministic_policies():
    cmdp = garnet(3, 3, 2, branching=2, rng=5)
    _, utilities = deterministic_values(cmdp)
    n = len(utilities)
    mixture = linprog(
        np.append(np.zeros(n), -1.0),
        A_ub=np.hstack([-utilities.T, np.ones((2, 1))]),
        b_ub=np.zeros(2),
        A_eq=np.append(np.ones(n), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * n + [(None, None)],
    )
    assert cmdp.slater() == pytest.approx(-mixture.fun * (1 - cmdp.gamma), abs=1e-7)


# ---- Concentrability ----


@pytest.mark.parametrize(
    ("cmdp", "mu", "expected"),
    [
        (one_state([1.0, 0.0]), [[0.25, 0.75]], 4.0),
        (one_state([1.0, 0.0]), [[1e-6, 1 - 1e-6]], 1e6),
        (one_state([1.0, 0.0]), [[1e-12, 1 - 1e-12]], 1e12),
        (one_state([1.0, 0.0]), [[0.0, 1.0]], np.inf),
        (one_state([1.0, 0.0], [-1.0, 1.0]), [[0.125, 0.875]], 4.0),  # the optimum is half and half
        (one_state([1.0, 0.0], [-1.0, 1.0]), [[1.0, 0.0]], np.inf),  # covers no safe policy
        (one_state([1.0, 1.0, 0.0]), [[0.0, 0.5, 0.5]], 2.0),  # one of two optimal actions is enough
        (one_state([1.0, 1.0, 1.0]), [[1 / 3, 1 / 3, 1 / 3]], 3.0),  # caps allow psi = 1; sum q/mu = 3 <= N psi = psi
        (one_state([1.0, 1.0], [1.0, 1.0]), [[0.5, 0.5]], 1.0),  # here N = 2
        (clock(1, 1), [[0.5], [0.5]], 4 / 3),
        (clock(1, 1), [[2 / 3], [1 / 3]], 1.0),
    ],
)
def test_concentrability_by_hand(cmdp, mu, expected):
    assert cmdp.concentrability(mu) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gamma", [0.9, 0.999])
def test_data_of_the_only_optimal_policy_has_concentrability_one(seed, gamma):
    cmdp = garnet(15, 3, 2, gamma=gamma, rng=seed)
    q = (1 - gamma) * cmdp.solve().occupancy
    assert cmdp.concentrability(q / q.sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("decades", [1, 6, 12])
def test_concentrability_is_the_largest_ratio_of_a_unique_optimum(seed, decades):
    """A vertex has at most N positive pairs, so the caps bind; data down to 1e-12 must not disturb the program."""
    cmdp = garnet(12, 3, 2, branching=3, rng=seed)
    q = (1 - cmdp.gamma) * cmdp.solve().occupancy
    mu = random_distribution(cmdp.r.shape, decades, seed)
    # Low by up to 1e-9 over the loss of straying: at worst some 1e-4 of C* in these problems.
    assert cmdp.concentrability(mu) == pytest.approx((q / mu).max(), rel=1e-3)


def test_missing_one_pair_of_the_optimum_is_infinite():
    cmdp = garnet(10, 3, 1, rng=1)
    best = cmdp.solve()
    mu = np.full(cmdp.r.shape, 1 / 30)
    mu[np.unravel_index(best.occupancy.argmax(), mu.shape)] = 0
    assert cmdp.concentrability(mu / mu.sum()) == np.inf


def test_concentrability_is_where_deviation_control_stops_costing():
    cmdp = garnet(20, 4, 2, rng=2)
    mu = random_distribution(cmdp.r.shape, decades=2)
    least, best = cmdp.concentrability(mu), cmdp.solve().reward
    assert cmdp.solve(psi=least * 1.0001, mu=mu).reward == pytest.approx(best, abs=1e-7)
    assert cmdp.solve(psi=least * 0.98, mu=mu).reward < best - 1e-5


# ---- The saddle value (more of it in test_saddle.py) ----


@pytest.mark.parametrize("gamma", [0.9, 0.999])
@pytest.mark.parametrize("decades", [1, 6, 12])
def test_saddle_value_is_the_optimum_once_psi_covers_it_however_thin_the_data(gamma, decades):
    cmdp = garnet(12, 3, 2, branching=3, gamma=gamma, rng=4)
    mu = random_distribution(cmdp.r.shape, decades)
    best, least, slater = cmdp.solve().reward, cmdp.concentrability(mu), cmdp.slater()
    values = [exact.saddle_value(cmdp, mu, mu, least * f, 0.0, slater) * (1 - gamma) for f in (0.5, 0.9, 1.01, 3.0)]
    np.testing.assert_allclose(values[2:], best * (1 - gamma), rtol=0, atol=NORMALISED)
    assert values[0] <= values[1] < values[2] - NORMALISED


def test_the_estimate_of_mu_cancels_while_the_sum_of_x_is_slack():
    """x <= psi mu_hat/(1-gamma) says Wx <= psi mu/(1-gamma), and sum x/mu_hat is sum Wx/mu: only sum x is left."""
    cmdp = garnet(12, 3, 2, branching=3, rng=4)
    mu = random_distribution(cmdp.r.shape, decades=2)
    values = [
        exact.saddle_value(cmdp, mu, mu * factor, psi=5.0, kappa=0.1, slater=0.2)
        for factor in (1.0, 1e-6, random_distribution(cmdp.r.shape, decades=6, seed=1))
    ]
    np.testing.assert_allclose(values, values[0], rtol=1e-9)


# ---- The plug-in model ----


def test_plug_in_takes_frequencies_and_means():
    log = Dataset(
        s=[0, 0, 0, 0, 1], a=[1, 1, 1, 1, 0], s_next=[0, 1, 1, 1, 0], r=[1, 1, 0, 0, 0.5],
        u=[[1, -1], [1, -1], [1, 1], [1, 0], [0, 0.25]], n_states=2, n_actions=2,
    )  # fmt: skip
    model = exact.plug_in(log, gamma=0.9, rho0=[0.5, 0.5])
    np.testing.assert_array_equal(model.P.toarray(), [[1, 0], [0.25, 0.75], [1, 0], [0, 1]])
    np.testing.assert_array_equal(model.r, [[-1, 0.5], [0.5, -1]])
    np.testing.assert_array_equal(model.u, [[[-1, 1], [0, -1]], [[-1, -0.25], [0.25, -1]]])
    # An unseen pair is worth the least that anything can be worth: one step in it is a step in it for ever.
    assert model.evaluate([[1, 0], [0, 1]]).reward == pytest.approx(-10, rel=1e-12)


def test_plug_in_means_of_equal_values_stay_in_range():
    log = Dataset([0] * 10, [0] * 10, [0] * 10, [1.0] * 10, [[-1.0]] * 10, n_states=1, n_actions=1)
    model = exact.plug_in(log, 0.5, [1.0])
    assert (model.r.item(), model.u.item(), model.P.toarray().item()) == (1.0, -1.0, 1.0)


def test_plug_in_converges_to_the_model():
    cmdp = garnet(6, 2, 1, branching=3, rng=0)
    mu, best = np.full((6, 2), 1 / 12), cmdp.solve().reward
    errors = []
    for n in (1_000, 100_000):
        model = exact.plug_in(cmdp.sample(n, mu, rng=1), cmdp.gamma, cmdp.rho0)
        np.testing.assert_allclose(model.r, cmdp.r, rtol=1e-12)
        # A frequency of n/12 draws is within five standard deviations of its probability.
        assert abs(model.P - cmdp.P).max() < 5 * np.sqrt(0.25 * 12 / n)
        errors.append(abs(model.solve().reward - best))
    assert errors[1] < 0.02 * best
    assert errors[1] < errors[0]


def test_slater_is_found_where_the_region_leaves_no_room_at_all():
    """At psi = C* exactly the region holds an occupancy only within roundings, and HiGHS finds it infeasible."""
    hard = hard_instances.lower_bound(
        4, 3, 8, 2.0, 0.98828125, theta_c=-np.ones((4, 1)), varpi_c=0.0002964426877470356, repaired=True
    )
    roomy = hard.cmdp.slater(2.0 * (1 + 1e-7), hard.mu)
    assert roomy - 1e-5 < hard.cmdp.slater(2.0, hard.mu) < roomy


def test_concurrent_questions_get_their_own_plug_in_models(monkeypatch):
    """Another thread asks with another discount whenever a model has just been stored."""
    log = garnet(4, 2, 1, rng=0).sample(200, np.full((4, 2), 1 / 8), rng=1)
    other = exact.plug_in(log, 0.9, [0.25] * 4)

    class Shared(dict):
        def __setitem__(self, log, entry):
            super().__setitem__(log, ((0.9, other.rho0.tobytes()), other))

    monkeypatch.setattr("dpdl.models.estimate._LAST", Shared())
    assert [exact.plug_in(log, gamma, [0.25] * 4).gamma for gamma in (0.5, 0.9, 0.6)] == [0.5, 0.9, 0.6]
