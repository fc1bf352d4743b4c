"""Mixing: closed forms, brute force, intervals, and estimates that must cover the truth."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

import logs
import markov
from dpdl import mixing
from dpdl.data.dataset import Dataset
from dpdl.instances import garnet
from dpdl.models.cmdp import CMDP

TWO_STATES = [(0.3, 0.1), (0.9, 0.8), (0.01, 0.002), (0.5, 0.5)]


def two_states(p, q):
    return np.array([[1 - p, p], [q, 1 - q]])


def cycle(n, right=0.25, left=0.25):
    i = np.arange(n)
    entries = np.repeat([1 - right - left, right, left], n)
    return sp.csr_array((entries, (np.tile(i, 3), np.concatenate([i, (i + 1) % n, (i - 1) % n]))), shape=(n, n))


def complete(n, hold):
    return hold * np.eye(n) + (1 - hold) / n


def random_dense(n, seed, evenness=0.3):
    return np.random.default_rng(seed).dirichlet(np.full(n, evenness), n)


def random_sparse(n, branching, seed, hold=0.0):
    """A chain on a random graph that contains a cycle through all states; with `hold` it stays put that often."""
    rng = np.random.default_rng(seed)
    successors = rng.integers(0, n, (n, branching))
    successors[:, 0] = (np.arange(n) + 1) % n
    entries = rng.dirichlet(np.ones(branching), n)
    matrix = sp.csr_array((entries.ravel(), successors.ravel(), np.arange(0, n * branching + 1, branching)), (n, n))
    return sp.csr_array((1 - hold) * matrix + hold * sp.eye_array(n))


def distances(P, times):
    return [mixing.tv_distance(P, int(t)) for t in times]


def brute_force(P):
    """E(0), E(1), ... up to the first at most 1/4, from powers one by one and an eigenvector."""
    values, vectors = np.linalg.eig(P.T)
    mu = np.real(vectors[:, np.argmin(abs(values - 1))])
    mu /= mu.sum()
    power, found = np.eye(len(P)), []
    while not found or found[-1] > 0.25:
        found.append(0.5 * abs(power - mu).sum(axis=1).max())
        power = power @ P
    return np.array(found)


def one_utility_cmdp(P):
    n = len(P)
    return CMDP(P[:, None, :], np.zeros((n, 1)), np.zeros((1, n, 1)), 0.5, np.eye(n)[0])


def trajectory(cmdp, n, seed):
    return cmdp.rollout(n, np.ones((cmdp.n_states, 1)), rng=seed, start=0)


def walk(states, n_states):
    """The log of one trajectory through these states."""
    zeros = np.zeros(len(states) - 1)
    return Dataset(states[:-1], zeros, states[1:], zeros, n_states=n_states, n_actions=1, starts=[0])


# ---- Closed forms ----


@pytest.mark.parametrize(("p", "q"), TWO_STATES)
def test_two_states(p, q):
    P = two_states(p, q)
    mu = np.array([q, p]) / (p + q)
    times = np.array([0, 1, 2, 3, 7, 20, 100])
    expected = mu.max() * abs(1 - p - q) ** times
    np.testing.assert_allclose(mixing.stationary(P), mu, rtol=1e-14)
    np.testing.assert_allclose(distances(P, times), expected, rtol=1e-12, atol=1e-14)  # mu is rounded
    rate = max(abs(1 - p - q), 1e-300)
    exact = max(1, math.ceil(math.log(0.25 / mu.max()) / math.log(rate)))
    assert mixing.mixing_time(P) == exact
    assert markov.pseudo_spectral_gap(P) == pytest.approx(1 - (1 - p - q) ** 2, rel=1e-9)


@pytest.mark.parametrize("n", [3, 8, 51])
def test_lazy_cycle_by_fourier(n):
    times = np.array([0, 1, 5, 60, 400])
    angles = 2 * np.pi * np.arange(n) / n
    powers = (0.5 + 0.5 * np.cos(angles)) ** times[:, None]
    rows = (powers[:, :, None] * np.cos(np.outer(angles, np.arange(n)))).sum(axis=1) / n
    expected = 0.5 * abs(rows - 1 / n).sum(axis=1)
    np.testing.assert_allclose(distances(cycle(n), times), expected, atol=1e-13)
    found = mixing.mixing_time(cycle(n))
    assert mixing.tv_distance(cycle(n), found) <= 0.25 < mixing.tv_distance(cycle(n), found - 1)


@pytest.mark.parametrize(("n", "hold"), [(4, 0.5), (30, 0.95), (700, 0.7)])
def test_complete_graph(n, hold):
    times = np.array([0, 3, 12, 39])
    np.testing.assert_allclose(distances(complete(n, hold), times), (1 - 1 / n) * hold**times, atol=1e-12)
    assert mixing.mixing_time(complete(n, hold)) == math.ceil(math.log(0.25 / (1 - 1 / n)) / math.log(hold))


def test_slow_chain_of_two_states_needs_no_million_products():
    p = 1e-9
    assert mixing.mixing_time(two_states(p, p)) == pytest.approx(math.log(2) / (2 * p), rel=1e-6)


def test_one_state_is_mixed_at_once():
    assert mixing.mixing_time([[1.0]]) == 0
    assert mixing.tv_distance([[1.0]], 3) == 0.0
    assert mixing.estimate_mixing_time(walk([0, 0, 0], 1)).upper == 0


# ---- Brute force ----


@pytest.mark.parametrize("seed", range(6))
def test_random_chains_against_powers(seed):
    P = random_dense(5 + 4 * seed, seed)
    expected = brute_force(P)
    np.testing.assert_allclose(distances(P, range(len(expected))), expected, atol=1e-12)
    np.testing.assert_allclose(distances(sp.coo_array(P), range(len(expected))), expected, atol=1e-12)
    assert mixing.mixing_time(P) == len(expected) - 1


@pytest.mark.parametrize("seed", range(4))
def test_following_each_state_gives_the_same_as_powers(seed, monkeypatch):
    P = random_sparse(300, 3, seed)
    dense, exact = distances(P, [0, 1, 4, 9]), mixing.mixing_time(P)
    monkeypatch.setattr(mixing, "EXACT_STATES", 10)
    np.testing.assert_allclose(distances(P, [0, 1, 4, 9]), dense, atol=1e-12)
    assert mixing.mixing_time(P) == exact


@pytest.mark.parametrize("n", [600, 3000])
@pytest.mark.parametrize("kernel", [cycle, lambda n: random_sparse(n, 4, 1), lambda n: cycle(n, 0.4, 0.1)])
def test_stationary_of_larger_chains(kernel, n):
    P = kernel(n)
    mu = mixing.stationary(P)
    assert mu.min() > 0
    assert mu.sum() == pytest.approx(1, abs=1e-13)
    assert abs(mu @ P - mu).sum() < 1e-13


def test_a_large_slow_chain_is_refused_instead_of_filling_the_memory():
    """Power iteration stalls, and no ordering of a random graph has a narrow band."""
    with pytest.raises(ValueError, match=r"mixes too slowly for its 10,000 states, which are too many to factorise"):
        mixing.stationary(random_sparse(10_000, 4, 0, hold=0.999))


def test_stationary_is_accurate_in_every_entry():
    n, up, down = 60, 0.1, 0.6
    P = sp.diags_array([np.full(n - 1, down), np.full(n - 1, up)], offsets=[-1, 1]).toarray()
    P += np.diag(1 - P.sum(axis=1))
    expected = (up / down) ** np.arange(n)  # down to 1e-46
    np.testing.assert_allclose(mixing.stationary(P), expected / expected.sum(), rtol=1e-12)


# ---- Facts that hold for every chain ----


@pytest.mark.parametrize("seed", range(8))
def test_submultiplicative_decay_and_pseudo_spectral_gap(seed):
    P = random_dense(12, 100 + seed, evenness=0.08) * 0.8 + 0.2 * np.roll(np.eye(12), 1, axis=1)
    t_mix = mixing.mixing_time(P)
    times = np.arange(6 * t_mix + 2)
    assert np.all(distances(P, times) <= 0.5 ** (times // t_mix) + 1e-12)
    assert markov.pseudo_spectral_gap(P) >= 1 / (2 * t_mix)


def test_pseudo_spectral_gap_is_the_maximum_over_powers():
    """Chains that are far from reversible, against every k up to 200; for those that nearly rotate, k = 1 is bad."""
    rng = np.random.default_rng(0)
    kernels = [rng.dirichlet(np.full(n, 0.2), n) + 1e-3 for n in (2, 3, 5, 8) for _ in range(5)]
    kernels += [0.97 * np.roll(np.eye(n), 1, axis=1) + 0.03 * random_dense(n, n) for n in (7, 8, 9)]
    for P in kernels:
        P = P / P.sum(axis=1, keepdims=True)
        mu = mixing.stationary(P)
        backward = P.T * mu / mu[:, None]
        each = []
        for k in range(1, 201):
            product = np.linalg.matrix_power(backward, k) @ np.linalg.matrix_power(P, k)
            each.append((1 - np.sort(np.linalg.eigvals(product).real)[-2]) / k)
        assert markov.pseudo_spectral_gap(P) == pytest.approx(max(each), rel=2e-9)


def test_pseudo_spectral_gap_of_a_large_chain(monkeypatch):
    P = random_sparse(400, 4, 3)
    dense = markov.pseudo_spectral_gap(P)
    monkeypatch.setattr(mixing, "EXACT_STATES", 10)
    assert markov.pseudo_spectral_gap(P) == pytest.approx(dense, rel=1e-6)


# ---- Intervals ----


@pytest.mark.parametrize(
    "kernel",
    [
        random_sparse(500, 3, 0),
        random_sparse(800, 2, 1, hold=0.5),
        random_sparse(900, 2, 2),
        random_sparse(900, 10, 3),
        cycle(101),
        cycle(201, 0.5, 0.1),
        sp.csr_array(0.98 * cycle(400, 0.9, 0.1).toarray() + 0.02 / 400),
    ],
    ids=["branching-3", "lazy", "branching-2", "branching-10", "cycle", "drift", "restart"],
)
def test_interval_contains_the_mixing_time(kernel, monkeypatch):
    exact = mixing.mixing_time(kernel)
    assert markov.mixing_time_bounds(kernel) == (exact, exact)
    monkeypatch.setattr(mixing, "EXACT_STATES", 10)
    lower, upper = markov.mixing_time_bounds(kernel)
    print(lower, exact, upper)
    assert min(0.5 * exact, 2000) <= lower <= exact <= upper <= 4 * exact


@pytest.mark.parametrize("n", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_up_to_a_hundred_thousand_states(n):
    P = random_sparse(n, 5, 0)
    lower, upper = markov.mixing_time_bounds(P)
    # log(n)/entropy of a step is about 11 steps: fewer cannot spread the mass.
    assert 8 <= lower <= upper <= 25
    rows = np.eye(16, n)
    for _ in range(int(upper)):
        rows = rows @ P
    assert 0.5 * abs(rows - mixing.stationary(P)).sum(axis=1).max() <= 0.25


def test_a_large_chain_that_mixes_too_slowly_has_no_upper_end():
    n = 5000
    lower, upper = markov.mixing_time_bounds(cycle(n))
    relaxation = 1 / (0.5 - 0.5 * math.cos(2 * math.pi / n))
    assert 100 <= lower <= relaxation * math.log(2)
    assert upper == math.inf


# ---- Chains that have no mixing time ----


def test_reducible_chains_are_named():
    with pytest.raises(ValueError, match="reducible: 2 closed classes, and no path leads from state 0 to 2"):
        mixing.stationary([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    with pytest.raises(ValueError, match=r"reducible: state 1 is transient, one of 2"):
        mixing.mixing_time([[1, 0, 0], [0.5, 0.25, 0.25], [0, 0.5, 0.5]])


@pytest.mark.parametrize("period", [2, 3, 7])
def test_periodic_chains_are_named(period):
    rotation = np.roll(np.eye(2 * period), 1, axis=1)
    jump = np.roll(np.eye(2 * period), 1 + period, axis=1)
    with pytest.raises(ValueError, match=f"periodic: every return to a state takes a multiple of {period} steps"):
        mixing.tv_distance(0.5 * rotation + 0.5 * jump, 1)


def test_coprime_cycles_are_aperiodic():
    P = np.roll(np.eye(5), 1, axis=1)
    P[3] = [0.5, 0, 0, 0, 0.5]  # cycles of length 4 and 5
    assert mixing.mixing_time(P) > 5


# ---- Kernels of a policy ----


def test_kernels_of_a_policy():
    cmdp = garnet(20, 3, 1, branching=4, rng=0)
    policy = np.random.default_rng(1).dirichlet(np.ones(3), 20)
    dense = cmdp.P.toarray().reshape(20, 3, 20)
    states, pairs = mixing.behaviour_kernel(cmdp, policy), markov.pair_kernel(cmdp, policy)
    np.testing.assert_allclose(states.toarray(), np.einsum("sa,sat->st", policy, dense), atol=1e-15)
    expected = np.einsum("sat,tb->satb", dense, policy).reshape(60, 60)
    np.testing.assert_allclose(pairs.toarray(), expected, atol=1e-15)
    mu = mixing.stationary(states)
    np.testing.assert_allclose(mixing.stationary(pairs), (mu[:, None] * policy).ravel(), atol=1e-12)
    assert mixing.mixing_time(states) <= mixing.mixing_time(pairs) <= mixing.mixing_time(states) + 1


def test_actions_never_taken_make_pairs_transient():
    cmdp = garnet(5, 2, 1, branching=5, rng=0)
    with pytest.raises(ValueError, match="state 1 is transient"):
        mixing.stationary(markov.pair_kernel(cmdp, np.tile([1.0, 0.0], (5, 1))))


# ---- Bernstein ----


def test_bernstein_by_hand():
    # log(4/delta) = 2: sqrt(32 * 3 * 100 * 0.5 * 2) + 82 * 3 * 2 * 2
    delta = 4 * math.exp(-2)
    found = markov.bernstein_half_width(100, 0.5, 2.0, 3, delta)
    assert found == pytest.approx(math.sqrt(9600) + 984, rel=1e-12)


def test_bernstein_covers_sums_along_a_chain():
    P = two_states(0.05, 0.1)
    mu, t_mix = mixing.stationary(P), mixing.mixing_time(P)
    f = np.array([1.0, 0.0]) - mu[0]
    n = 100_000
    width = markov.bernstein_half_width(n, float(mu @ f**2), float(abs(f).max()), t_mix, 0.1)
    cmdp = one_utility_cmdp(P)
    sums = np.array([f[trajectory(cmdp, n, seed).s_next].sum() for seed in range(100)])
    assert np.mean(abs(sums) > width) <= 0.1
    assert width < n * abs(f).max()  # the bound says something


# ---- Estimation ----

ESTIMATED = {
    "two-states": (two_states(0.2, 0.3), 60_000),
    "slow": (two_states(0.06, 0.06), 300_000),
    "three-states": (0.5 * np.eye(3) + 0.5 * random_dense(3, 8, evenness=2.0), 100_000),
    "five-states": (0.3 * np.eye(5) + 0.7 * random_dense(5, 9, evenness=2.0), 200_000),
}


@pytest.mark.parametrize("n_logs", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ESTIMATED)
def test_upper_bound_covers_the_mixing_time(name, n_logs):
    P, n = ESTIMATED[name]
    exact, cmdp = mixing.mixing_time(P), one_utility_cmdp(P)
    found = [mixing.estimate_mixing_time(trajectory(cmdp, n, seed)) for seed in range(n_logs)]
    answered = [estimate.upper for estimate in found if math.isfinite(estimate.upper)]
    covered = sum(upper >= exact for upper in answered)
    print(f"{name}: exact {exact}, answered {len(answered)}/{n_logs}, covered {covered}, uppers {found[0].upper}")
    assert len(answered) >= 0.95 * n_logs  # long enough for an answer
    assert covered >= 0.95 * len(answered)
    assert np.median(answered) <= 4 * exact
    assert abs(np.median([estimate.estimate for estimate in found]) - exact) <= 1


@pytest.mark.parametrize("name", ESTIMATED)
def test_short_trajectories_are_too_short(name):
    P, _ = ESTIMATED[name]
    cmdp = one_utility_cmdp(P)
    for seed in range(20):
        for n in (2, 10, 200):
            found = mixing.estimate_mixing_time(trajectory(cmdp, n, seed))
            assert found.upper == math.inf
            assert found.message.startswith("too short to tell")


def test_slow_chain_asks_for_more_than_a_fast_one():
    fast, slow = two_states(0.4, 0.4), two_states(0.004, 0.004)
    assert math.isfinite(mixing.estimate_mixing_time(trajectory(one_utility_cmdp(fast), 20_000, 0)).upper)
    assert mixing.estimate_mixing_time(trajectory(one_utility_cmdp(slow), 20_000, 0)).upper == math.inf


def test_upper_bound_holds_for_every_kernel_within_the_radii():
    """The deterministic half of the proof: perturb the rows as far as the radius allows, and look."""
    rng = np.random.default_rng(5)
    for seed in range(20):
        Q = 0.4 * np.eye(4) + 0.6 * random_dense(4, seed, evenness=1.0)
        for radius in (0.005, 0.02, 0.05):
            upper = mixing._upper(Q, radius)
            for _ in range(10):
                other = random_dense(4, int(rng.integers(2**30)), evenness=0.2)
                step = radius / abs(other - Q).sum(axis=1, keepdims=True)
                P = Q + np.minimum(step, 1) * (other - Q)
                assert mixing.mixing_time(P) <= upper


def test_row_radii_cover_rows_of_a_multinomial():
    rng = np.random.default_rng(0)
    p = np.array([0.5, 0.3, 0.15, 0.05])
    drawn = rng.multinomial(400, p, size=4000) / 400
    radius = mixing._row_radii(np.full(4, 400.0), 0.05)[0]
    assert np.mean(abs(drawn - p).sum(axis=1) > radius) <= 0.05
    assert mixing._row_radii(np.array([0.0, 1.0, 1e4]), 0.05).round(4).tolist() == [2.0, 2.0, 0.0701]


def test_state_never_left_is_named():
    found = mixing.estimate_mixing_time(walk(np.tile([0, 1], 5000), 3))
    assert found.message == "too short to tell: no transition from state 2 was seen"


def test_periodic_data_gives_no_bound():
    assert mixing.estimate_mixing_time(walk(np.tile([0, 1], 100_000), 2)).upper == math.inf


def test_independent_transitions_are_no_trajectory():
    shuffled = Dataset([0, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0], np.zeros((3, 0)), n_states=2, n_actions=1)
    with pytest.raises(ValueError, match="log holds independent transitions, not trajectories"):
        mixing.estimate_mixing_time(shuffled)


def test_the_end_of_one_trajectory_and_the_beginning_of_the_next_are_no_transition():
    """Two trajectories, one in states 0 and 1, the other in 2 and 3: joined, there would be a way from 1 to 2."""
    walks = [([a, b, a, b], [0] * 3, [0.0] * 3, np.zeros((3, 0))) for a, b in ((0, 1), (2, 3))]
    log = logs.from_trajectories(walks, n_states=4, n_actions=1)
    joined = mixing.estimate_mixing_time(walk([0, 1, 0, 1, 2, 3, 2, 3], 4))
    assert mixing.estimate_mixing_time(log).estimate != joined.estimate


def test_too_many_states_to_estimate():
    found = mixing.estimate_mixing_time(walk([0, 1, 2], 10**6))
    assert (found.estimate, found.upper) == (None, math.inf)
    assert "too many states: 1000000" in found.message


# ---- Bad input ----

GOOD = [[0.5, 0.5], [0.25, 0.75]]


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_bad_kernels(make):
    with pytest.raises(ValueError, match=r"kernel\[1\] must sum to 1, got 0.9"):
        mixing.stationary(make([[0.5, 0.5], [0.5, 0.4]]))
    with pytest.raises(ValueError, match=r"kernel\[0, 1\] = -0.5 must be finite and >= 0"):
        mixing.stationary(make([[1.5, -0.5], [0.5, 0.5]]))
    with pytest.raises(ValueError, match=r"kernel\[1, 0\] = nan must be finite"):
        mixing.stationary(make([[0.5, 0.5], [np.nan, 0.5]]))
    with pytest.raises(ValueError, match=r"kernel must have shape \(n, n\), got \(1, 2\)"):
        mixing.stationary(make([[0.5, 0.5]]))
    with pytest.raises(TypeError, match="kernel must hold real numbers"):
        mixing.stationary(make([[1j, 0], [0, 1]]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mixing.tv_distance(GOOD, -1), ValueError, "t must be between 0"),
        (lambda: mixing.tv_distance(GOOD, 1.5), ValueError, "t must be a whole number"),
        (lambda: mixing.behaviour_kernel(GOOD, [[1.0]]), TypeError, "cmdp must be a CMDP, got list"),
        (
            lambda: mixing.behaviour_kernel(one_utility_cmdp(np.eye(2)), [[1], [0.5]]),
            ValueError,
            r"policy\[1\] must sum",
        ),
        (lambda: markov.bernstein_half_width(0, 1, 1, 1, 0.1), ValueError, "n must be between 1"),
        (
            lambda: markov.bernstein_half_width(1, 2, 1, 1, 0.1),
            ValueError,
            r"variance must be <= bound\^2 = 1.0, got 2",
        ),
        (lambda: markov.bernstein_half_width(1, -1, 1, 1, 0.1), ValueError, "variance must be >= 0, got -1.0"),
        (lambda: markov.bernstein_half_width(1, 0, -1, 1, 0.1), ValueError, "bound must be >= 0, got -1.0"),
        (lambda: markov.bernstein_half_width(1, 1, 1, 0.5, 0.1), ValueError, "mixing_time must be >= 1, got 0.5"),
        (lambda: markov.bernstein_half_width(1, 1, 1, 1, 1), ValueError, "delta must be > 0 and < 1, got 1.0"),
        (lambda: mixing.estimate_mixing_time([0, 1]), TypeError, "log must be a Dataset, got list"),
        (lambda: mixing.estimate_mixing_time(walk([0, 1], 2), 0), ValueError, "delta must be > 0 and < 1, got 0.0"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_mixing_time_that_rounding_hides_is_an_error_and_not_an_endless_search():
    """Two halves that meet once in 10^17 steps, each of which mixes fast."""
    p = 1e-17
    half = np.array([[0.3, 0.7], [0.6, 0.4]])
    P = np.block([[half, np.full((2, 2), 0.0)], [np.full((2, 2), 0.0), half]])
    P[0, 2], P[2, 0] = p, 3 * p
    try:
        found = mixing.mixing_time(P)
    except ValueError as error:
        assert "rounding hides when it mixes" in str(error)  # noqa: PT017
    else:  # E(t) is about (1 - p/...)^t/2, so that it takes some 10^17 steps
        assert 1e16 < found < 1e20


@pytest.mark.parametrize("p", [1e-3, 1e-6, 1e-9, 1e-12])
def test_the_pseudo_spectral_gap_of_two_nearly_reducible_states(p):
    """Reversible, so that the largest of gap(k)/k is that of k = 1: 1 - lambda^2 with lambda = 1 - 3p."""
    found = markov.pseudo_spectral_gap([[1 - p, p], [2 * p, 1 - 2 * p]])
    assert abs(found - 3 * p * (2 - 3 * p)) <= 1e-9 * found + 1e-12
