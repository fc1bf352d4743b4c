"""The CMDP itself: construction, validation, sampling, trajectories."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from dpdl import exact
from dpdl.instances import garnet
from dpdl.models.cmdp import CMDP

#: Below this a fixed seed's chi-square test would be suspicious; the seeds here give ordinary values.
LEAST_P_VALUE = 1e-3


def arguments(**changes):
    """Return the arguments of a valid CMDP with two states, two actions and one utility, some of them changed."""
    P = [[[0.5, 0.5], [1.0, 0.0]], [[0.25, 0.75], [0.0, 1.0]]]
    r, u = [[1.0, 0.0], [0.5, -1.0]], [[[0.0, 1.0], [-1.0, 0.5]]]
    return {"P": P, "r": r, "u": u, "gamma": 0.9, "rho0": [0.5, 0.5]} | changes


def changed(name, index, value):
    array = np.array(arguments()[name], dtype=np.float64)
    array[index] = value
    return arguments(**{name: array})


def chi_square(counts, probabilities):
    """Return the p-value of counts, after checking that what has probability zero never happened."""
    counts, probabilities = np.ravel(counts), np.ravel(probabilities)
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    if possible.sum() == 1:
        return 1.0
    expected = probabilities[possible] / probabilities[possible].sum() * counts.sum()
    return stats.chisquare(counts[possible], expected).pvalue


# ---- Construction ----


def test_sizes():
    cmdp = CMDP(**arguments())
    assert (cmdp.n_states, cmdp.n_actions, cmdp.n_utilities) == (2, 2, 1)
    assert repr(cmdp) == "CMDP(n_states=2, n_actions=2, n_utilities=1, gamma=0.9)"


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.coo_array, sp.lil_array, sp.csr_matrix])
def test_sparse_and_dense_transitions_are_the_same(kind):
    dense = CMDP(**arguments())
    sparse = CMDP(**arguments(P=kind(np.reshape(arguments()["P"], (4, 2)))))
    np.testing.assert_array_equal(sparse.P.toarray(), dense.P.toarray())
    policy = [[0.3, 0.7], [0.6, 0.4]]
    np.testing.assert_array_equal(sparse.evaluate(policy).occupancy, dense.evaluate(policy).occupancy)
    assert sparse.solve().reward == dense.solve().reward
    np.testing.assert_array_equal(
        sparse.rollout(50, policy, rng=1).s_next,
        dense.rollout(50, policy, rng=1).s_next,
    )


def test_entries_given_twice_add_up_and_zeros_are_not_kept():
    entries, rows, columns = [0.25, 0.25, 0.5, 1.0, 0.0], [0, 0, 0, 1, 1], [0, 0, 1, 0, 1]
    cmdp = CMDP(sp.coo_array((entries, (rows, columns)), shape=(2, 2)), [[0.0], [0.0]], [[[0.0], [0.0]]], 0.5, [1, 0])
    np.testing.assert_array_equal(cmdp.P.toarray(), [[0.5, 0.5], [1.0, 0.0]])
    assert cmdp.P.nnz == 3


def test_rows_are_scaled_to_sum_to_one():
    nearly = np.array([[[1 / 3 - 1e-10, 2 / 3]], [[0.0, 1.0 + 5e-10]]])
    cmdp = CMDP(nearly, [[0.0], [0.0]], np.zeros((0, 2, 1)), 0.5, [0.5, 0.5 + 1e-10])
    np.testing.assert_allclose(cmdp.P.sum(axis=1), 1, rtol=0, atol=3e-16)
    assert abs(cmdp.rho0.sum() - 1) <= 3e-16


def test_it_is_immutable_and_keeps_no_hold_of_its_arguments():
    given = {name: np.array(value) for name, value in arguments().items() if name != "gamma"}
    cmdp = CMDP(gamma=0.9, **given)
    for array in given.values():
        array[...] = 0
    np.testing.assert_array_equal(cmdp.r, arguments()["r"])
    np.testing.assert_array_equal(cmdp.P.toarray(), np.reshape(arguments()["P"], (4, 2)))
    for array in (cmdp.r, cmdp.u, cmdp.rho0, cmdp.P.data, cmdp.P.indices, cmdp.P.indptr):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        cmdp.gamma = 0.5


def test_unconstrained_drops_the_utilities_only():
    cmdp = CMDP(**arguments())
    free = cmdp.unconstrained()
    assert free.n_utilities == 0
    assert free.gamma == cmdp.gamma
    np.testing.assert_array_equal(free.P.toarray(), cmdp.P.toarray())
    assert free.solve().reward >= cmdp.solve().reward


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (changed("P", (1, 0, 1), 0.5), ValueError, r"P\[1, 0\] must sum to 1, got 0\.75"),
        (changed("P", (1, 1), [1.5, -0.5]), ValueError, r"P\[1, 1, 1\] = -0\.5 must be finite and >= 0"),
        (changed("P", (0, 1, 0), np.nan), ValueError, r"P\[0, 1, 0\] = nan must be finite"),
        (arguments(P=np.zeros((2, 2))), ValueError, r"P must have shape \(any, any, any\), got \(2, 2\)"),
        (arguments(P=np.ones((2, 2, 3)) / 3), ValueError, r"P must have shape \(S, A, S\), got \(2, 2, 3\)"),
        (arguments(P=np.zeros((2, 0, 2))), ValueError, r"P must have shape \(S, A, S\), got \(2, 0, 2\)"),
        (arguments(P=sp.csr_array(np.ones((3, 2)) / 2)), ValueError, r"P must have shape \(S\*A, S\), got \(3, 2\)"),
        (arguments(P=sp.coo_array(np.ones(2))), ValueError, r"P must have shape \(S\*A, S\), got \(2,\)"),
        (arguments(P=sp.csr_array([[0, 1], [1, 0], [2, -1], [1, 0]])), ValueError, r"P\[1, 0, 1\] = -1\.0 must be"),
        (arguments(P=sp.csr_array([[1, 0], [1, 0], [1, 0], [np.nan, 1]])), ValueError, r"P\[1, 1, 0\] = nan must be"),
        (arguments(P=sp.csr_array([[1, 0], [0, 0], [1, 0], [0, 1]])), ValueError, r"P\[0, 1\] must sum to 1, got 0"),
        (arguments(P=sp.csr_array(np.ones((4, 2), dtype=complex))), TypeError, "P must hold real numbers, got dtype"),
        (arguments(P=[[["a"]]]), TypeError, "P must hold real numbers, got dtype"),
        (changed("r", (1, 0), 1.5), ValueError, r"r\[1, 0\] = 1\.5 must be <= 1"),
        (arguments(r=[[0.0, 1.0]]), ValueError, r"r must have shape \(2, 2\), got \(1, 2\)"),
        (changed("u", (0, 0, 1), -2.0), ValueError, r"u\[0, 0, 1\] = -2\.0 must be >= -1"),
        (arguments(u=[[0.0, 1.0], [0.0, 1.0]]), ValueError, r"u must have shape \(any, 2, 2\), got \(2, 2\)"),
        (arguments(gamma=1.0), ValueError, "gamma must be > 0 and < 1, got 1.0"),
        (arguments(gamma="0.9"), TypeError, "gamma must be a real number, got str"),
        (changed("rho0", 1, 0.25), ValueError, "rho0 must sum to 1, got 0.75"),
        (changed("rho0", slice(None), [1.5, -0.5]), ValueError, r"rho0\[1\] = -0\.5 must be >= 0"),
    ],
)
def test_bad_input_is_named(bad, error, message):
    with pytest.raises(error, match=message):
        CMDP(**bad)


# ---- Independent transitions ----


def test_sample_follows_mu_and_the_transition_probabilities():
    cmdp = garnet(6, 3, n_utilities=2, branching=3, rng=0)
    rng = np.random.default_rng(1)
    mu = rng.random((6, 3)) * (rng.random((6, 3)) < 0.7)
    mu /= mu.sum()
    log = cmdp.sample(40_000, mu, rng=2)
    pair = 3 * log.s + log.a
    assert chi_square(np.bincount(pair, minlength=18), mu) > LEAST_P_VALUE
    joint = np.bincount(6 * pair + log.s_next, minlength=108)
    assert chi_square(joint, mu.reshape(-1, 1) * cmdp.P.toarray()) > LEAST_P_VALUE
    np.testing.assert_array_equal(log.r, cmdp.r[log.s, log.a])
    np.testing.assert_array_equal(log.u, cmdp.u[:, log.s, log.a].T)


@pytest.mark.parametrize("pair", range(4))
def test_sample_of_one_pair_is_that_pair(pair):
    mu = np.eye(4)[pair].reshape(2, 2)
    log = CMDP(**arguments()).sample(1000, mu, rng=0)
    assert set(2 * log.s + log.a) == {pair}


def test_rows_of_very_different_length_are_sampled_right():
    """The cumulative sums of all rows are made together; a row must not see its neighbours."""
    rng = np.random.default_rng(0)
    P = np.zeros((40, 1, 40))
    for s in range(40):
        successors = rng.choice(40, size=[1, 40, 2, 17][s % 4], replace=False)
        P[s, 0, successors] = rng.dirichlet(np.ones(successors.size))
    cmdp = CMDP(P, np.zeros((40, 1)), np.zeros((1, 40, 1)), 0.9, np.full(40, 1 / 40))
    log = cmdp.sample(100_000, np.full((40, 1), 1 / 40), rng=0)
    for s in range(4):
        counts = np.bincount(log.s_next[log.s == s], minlength=40)
        assert chi_square(counts, P[s, 0]) > LEAST_P_VALUE


def test_sample_is_reproducible():
    cmdp, mu = CMDP(**arguments()), np.full((2, 2), 0.25)
    np.testing.assert_array_equal(cmdp.sample(100, mu, rng=7).records, cmdp.sample(100, mu, rng=7).records)
    generator = np.random.default_rng(7)
    first, second = cmdp.sample(100, mu, rng=generator), cmdp.sample(100, mu, rng=generator)
    assert not np.array_equal(first.records, second.records)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be between 1 and"),
        ({"n": 2.5}, ValueError, "n must be a whole number, got 2.5"),
        ({"mu": [[0.5, 0.25], [0.0, 0.0]]}, ValueError, "mu must sum to 1, got 0.75"),
        ({"mu": [[1.5, -0.5], [0.0, 0.0]]}, ValueError, r"mu\[0, 1\] = -0\.5 must be >= 0"),
        ({"mu": [0.5, 0.5]}, ValueError, r"mu must have shape \(2, 2\), got \(2,\)"),
        ({"rng": "seed"}, TypeError, "rng must be None, a whole number or a numpy.random.Generator, got str"),
    ],
)
def test_sample_names_bad_input(bad, error, message):
    with pytest.raises(error, match=message):
        CMDP(**arguments()).sample(**{"n": 3, "mu": np.full((2, 2), 0.25)} | bad)


# ---- Trajectories ----


def test_rollout_is_one_trajectory_with_the_right_frequencies():
    cmdp = garnet(5, 3, n_utilities=1, branching=3, rng=0)
    policy = np.random.default_rng(1).dirichlet(np.ones(3), size=5)
    policy[2] = [0.0, 1.0, 0.0]
    log = cmdp.rollout(50_000, policy, rng=2)
    np.testing.assert_array_equal(log.s[1:], log.s_next[:-1])
    np.testing.assert_array_equal(log.r, cmdp.r[log.s, log.a])
    np.testing.assert_array_equal(log.u, cmdp.u[:, log.s, log.a].T)
    # Given the states visited, actions are independent draws; given the pairs, so are the successors.
    for s in range(5):
        assert chi_square(np.bincount(log.a[log.s == s], minlength=3), policy[s]) > LEAST_P_VALUE
        for a in np.flatnonzero(policy[s]):
            successors = log.s_next[(log.s == s) & (log.a == a)]
            row = cmdp.P[[3 * s + a]].toarray()
            assert chi_square(np.bincount(successors, minlength=5), row) > LEAST_P_VALUE


def test_rollout_frequencies_approach_the_stationary_distribution():
    # 0 -> 1 with probability 1/4, 1 -> 0 with probability 1/2: two thirds of the time in state 0.
    chain = CMDP([[[0.75, 0.25]], [[0.5, 0.5]]], [[0.0], [0.0]], [[[0.0], [0.0]]], 0.9, [1.0, 0.0])
    share = np.mean(chain.rollout(200_000, [[1.0], [1.0]], rng=0).s == 0)
    # Autocorrelation 1/4 makes the variance (2/9)(5/3)/n; four standard deviations.
    assert abs(share - 2 / 3) < 4 * np.sqrt(10 / 27 / 200_000)


def test_rollout_starts_where_told_or_as_rho0_says():
    cmdp = CMDP(**arguments(rho0=[0.2, 0.8]))
    policy = np.full((2, 2), 0.5)
    assert cmdp.rollout(1, policy, rng=0, start=1).s.tolist() == [1]
    generator = np.random.default_rng(0)
    starts = [cmdp.rollout(1, policy, rng=generator).s[0] for _ in range(2000)]
    assert chi_square(np.bincount(starts, minlength=2), cmdp.rho0) > LEAST_P_VALUE


def test_rollout_is_reproducible():
    cmdp, policy = CMDP(**arguments()), np.full((2, 2), 0.5)
    np.testing.assert_array_equal(cmdp.rollout(99, policy, rng=3).records, cmdp.rollout(99, policy, rng=3).records)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"n": -1}, ValueError, "n must be between 1 and"),
        ({"policy": [[0.5, 0.5], [0.5, 0.25]]}, ValueError, r"policy\[1\] must sum to 1, got 0\.75"),
        ({"policy": [[0.5, 0.5], [1.5, -0.5]]}, ValueError, r"policy\[1, 1\] = -0\.5 must be >= 0"),
        ({"start": 2}, ValueError, "start must be between 0 and 1, got 2"),
        ({"rng": 0.5}, TypeError, "rng must be None, a whole number or a numpy.random.Generator, got float"),
    ],
)
def test_rollout_names_bad_input(bad, error, message):
    with pytest.raises(error, match=message):
        CMDP(**arguments()).rollout(**{"n": 3, "policy": np.full((2, 2), 0.5)} | bad)


# ---- Exact answers (tested in test_exact.py) ----

ONE_STATE = CMDP([[[1.0], [1.0]]], [[1.0, 0.0]], [[[-1.0, 1.0]]], 0.5, [1.0])
UNSAFE = CMDP([[[1.0], [1.0]]], [[1.0, 0.0]], [[[-1.0, -1.0]]], 0.5, [1.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.evaluate([[0.5, 0.25]]), ValueError, r"policy\[0\] must sum to 1, got 0\.75"),
        (lambda m: m.evaluate([[np.inf, 0.25]]), ValueError, r"policy\[0, 0\] = inf must be finite"),
        (lambda m: m.evaluate([0.5, 0.5]), ValueError, r"policy must have shape \(1, 2\), got \(2,\)"),
        (lambda m: m.solve(kappa=np.nan), ValueError, "kappa must be finite, got nan"),
        (lambda m: m.solve(kappa="1"), TypeError, "kappa must be a real number, got str"),
        (lambda m: m.solve(psi=2.0), ValueError, "psi and mu must be given together, or neither"),
        (lambda m: m.slater(mu=[[0.5, 0.5]]), ValueError, "psi and mu must be given together, or neither"),
        (lambda m: m.solve(psi=0.5, mu=[[0.5, 0.5]]), ValueError, "psi must be >= 1, got 0.5"),
        (lambda m: m.slater(psi=1.0, mu=[[0.5, 0.25]]), ValueError, "mu must sum to 1, got 0.75"),
        (lambda m: m.unconstrained().slater(), ValueError, "cmdp has no utilities"),
        (lambda m: m.concentrability([[1.25, -0.25]]), ValueError, r"mu\[0, 1\] = -0\.25 must be >= 0"),
        (lambda m: UNSAFE.concentrability([[0, 1]]), ValueError, "cmdp has no safe policy"),
        (lambda m: exact.plug_in(m.sample(3, [[0, 1]]), 1.0, [1.0]), ValueError, "gamma must be > 0 and < 1, got 1.0"),
        (lambda m: exact.plug_in(m.sample(3, [[0, 1]]), 0.5, [0.5]), ValueError, "rho0 must sum to 1, got 0.5"),
    ],
)
def test_exact_answers_name_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(ONE_STATE)
