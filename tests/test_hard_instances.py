"""The lower-bound families: every closed form against a linear solve and the LP, and the bounds against the models."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hard_instances
from dpdl import CMDP, theory
from experiments import bounds
from hard_instances import visits

EXACT = {"rtol": 0, "atol": 1e-10}


def draw_policy(rng, shape, spread):
    return rng.dirichlet(np.full(shape[1], spread), size=shape[0])


@st.composite
def block_instances(draw, repaired=None):
    """Any admissible S, A, I, C, gamma, theta, varpi; extreme ones often enough."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    flag = draw(st.booleans()) if repaired is None else repaired
    sizes = [draw(st.integers(4, 11)), draw(st.integers(3, 10)), draw(st.integers(8, 36))]
    C, gamma = draw(st.floats(2, 50)), draw(st.floats(0.5, 0.99))
    k, n_c, n_u = hard_instances.blocks(*sizes)
    most = min(0.5, 0.8 * (1 - gamma) / (gamma * n_c * k)) if flag else 0.5
    likely = draw(st.sampled_from([0.0, 0.5, 1.0]))  # all minus, mixed, all plus
    hard = hard_instances.lower_bound(
        *sizes,
        C,
        gamma,
        theta_c=np.where(rng.random((n_c, k)) < likely, 1, -1),
        theta_u=np.where(rng.random(n_u) < likely, 1, -1),
        varpi_c=most * draw(st.floats(0.05, 1)),
        varpi_u=0.5 * draw(st.floats(0.05, 1)) if n_u else None,
        repaired=flag,
    )
    return hard, rng


@st.composite
def no_slater_instances(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, C, gamma = draw(st.integers(4, 30)), draw(st.floats(2, 50)), draw(st.floats(0.5, 0.99))
    return hard_instances.no_slater(n, C, gamma, varpi=draw(st.floats(0.02, 0.5)), rng=rng), rng


FEW = settings(max_examples=30, deadline=None, derandomize=True)
MORE = settings(max_examples=60, deadline=None, derandomize=True)


@MORE
@given(block_instances() | no_slater_instances(), st.sampled_from([0.2, 1.0, 5.0]))
def test_closed_forms_equal_a_linear_solve(instance, spread):
    hard, rng = instance
    policy = draw_policy(rng, hard.mu.shape, spread)
    value = hard.cmdp.evaluate(policy)
    np.testing.assert_allclose(hard.occupancy(policy), value.occupancy, **EXACT)
    np.testing.assert_allclose(hard.utilities(policy), value.utilities, **EXACT)
    assert hard.violation(policy) == pytest.approx(np.maximum(-value.utilities, 0).sum(), rel=0, abs=1e-10)
    if isinstance(hard, hard_instances.BlockInstance):
        assert hard.reward(policy) == pytest.approx(value.reward, rel=0, abs=1e-10)


@FEW
@given(block_instances())
def test_optimum_equals_the_linear_program(instance):
    hard, _ = instance
    best = hard.cmdp.solve()
    assert best.status == "optimal"
    assert best.reward == pytest.approx(hard.optimal_value, rel=0, abs=1e-10)
    value = hard.cmdp.evaluate(hard.optimal_policy)
    assert value.reward == pytest.approx(hard.optimal_value, rel=0, abs=1e-10)
    assert hard.violation(hard.optimal_policy) <= 1e-15
    # The optimum is unique where there is a choice: a_i and b_i, and a in the unconstrained blocks.
    n, k = hard.theta_c.shape
    found, claimed = best.policy[1:-1:4], hard.optimal_policy[1:-1:4]
    np.testing.assert_allclose(found[:n, : 2 * k], claimed[:n, : 2 * k], atol=1e-7)
    np.testing.assert_allclose(found[n:, 0], claimed[n:, 0], atol=1e-7)


@FEW
@given(block_instances() | no_slater_instances())
def test_concentrability_is_as_claimed(instance):
    hard, _ = instance
    C = hard.concentrability
    assert hard.mu.sum() == pytest.approx(1, rel=0, abs=1e-15)
    assert hard.mu[-1, 0] > 0
    assert hard.cmdp.concentrability(hard.mu) <= C * (1 + 1e-7)
    assert hard.cmdp.concentrability(hard.mu) >= C * (1 - 1e-7)  # s_0 alone makes it C
    q = (1 - hard.cmdp.gamma) * hard.occupancy(hard.optimal_policy)
    ratio = q[hard.mu > 0] / hard.mu[hard.mu > 0]
    assert not q[hard.mu == 0].any()
    assert ratio.max() <= C * (1 + 1e-12)
    assert ratio.sum() <= theory.sparsity(*hard.mu.shape, hard.cmdp.n_utilities) * C * (1 + 1e-12)


@FEW
@given(block_instances() | no_slater_instances())
def test_slater_constant_is_as_claimed(instance):
    hard, _ = instance
    assert hard.cmdp.slater() == pytest.approx(hard.slater, rel=0, abs=1e-10)


@FEW
@given(block_instances(repaired=True))
def test_repaired_instances_have_a_slater_policy_that_the_data_covers(instance):
    """Section 2.3 assumes Slater's condition within Pi(C*): e' at every s_0 and e at every s_1 has v0."""
    hard, _ = instance
    v0, C = visits(hard.cmdp.gamma)[0], hard.concentrability
    assert hard.slater > v0 > 2 / 3
    careful = np.zeros(hard.mu.shape)
    careful[:, 0] = 1
    careful[:-1:4, :2] = 0, 1
    careful[1:-1:4] = np.eye(hard.mu.shape[1])[-1]
    value = hard.cmdp.evaluate(careful)
    q = (1 - hard.cmdp.gamma) * value.occupancy
    assert (1 - hard.cmdp.gamma) * value.utilities.min() >= v0 - 1e-12
    assert np.all(q <= C * hard.mu * (1 + 1e-12))
    assert (q > 0).sum() <= theory.sparsity(*hard.mu.shape, hard.cmdp.n_utilities)


def test_without_repair_the_data_may_cover_no_slater_policy():
    hard = hard_instances.lower_bound(4, 3, 8, theta_c=-np.ones((4, 1)), varpi_c=0.5)
    assert hard.slater > 0.001
    assert abs(hard.cmdp.slater(hard.concentrability * (1 + 1e-7), hard.mu)) < 1e-7  # room for the LP's tolerance


@FEW
@given(block_instances(repaired=False), st.sampled_from([1e-6, -1e-6, 0.3, -0.3]), st.booleans())
def test_safe_iff_a_below_b_below_its_cap(instance, margin, at_cap):
    """Near either boundary, on both sides of it."""
    hard, rng = instance
    n, k = hard.theta_c.shape
    cap = 1 / (4 * k)
    policy = draw_policy(rng, hard.mu.shape, 1.0)
    deciding = policy[1:-1:4]
    b = cap * rng.uniform(0.2, 0.6, (n, k))
    a = b * rng.random((n, k))
    block, pair = rng.integers(n), rng.integers(k)
    if at_cap:
        b[block, pair] = cap * (1 - margin)
    else:
        a[block, pair] = b[block, pair] * (1 - margin)
    deciding[:n, :k], deciding[:n, k : 2 * k] = a, b
    deciding[:n, -1] = 1 - deciding[:n, :-1].sum(axis=1)
    assert (hard.violation(policy) == 0) == (margin > 0)


@MORE
@given(block_instances(), st.sampled_from([0.1, 1.0]), st.floats(0, 1))
def test_loss_is_at_least_what_the_errors_in_theta_cost(instance, spread, share):
    hard, rng = instance
    policy = share * draw_policy(rng, hard.mu.shape, spread) + (1 - share) * hard.optimal_policy
    value, gamma = hard.cmdp.evaluate(policy), hard.cmdp.gamma
    violation = np.maximum(-value.utilities, 0).sum()
    loss = max(hard.optimal_value - value.reward, 0) + gamma * hard.varpi_c / (1 - gamma) * violation
    assert bounds.loss(hard, policy) == pytest.approx(loss, rel=0, abs=1e-10)
    assert bounds.loss(hard, policy) >= bounds.loss_floor(hard, policy) - 1e-14
    if share > 0.01:
        assert bounds.loss_floor(hard, policy) > 0


def test_loss_floor_is_the_lemma_for_a_policy_worked_by_hand():
    hard = hard_instances.lower_bound(
        9, 3, 8, gamma=0.5, theta_c=np.ones((4, 1)), theta_u=-np.ones(5), varpi_c=0.4, varpi_u=0.2
    )
    policy = hard.optimal_policy.copy()
    policy[1] = [0.125, 0.25, 0.625]  # 4K pi_c is off by 1/2 in one of four places
    policy[17] = [0.3, 0.0, 0.7]  # pi_u by 0.3 in one of five
    v = 0.25 / 3.75
    assert bounds.loss_floor(hard, policy) == pytest.approx(v * (0.4 / 8 * 0.5 / 4 + 0.2 * 0.3 / 5))
    assert bounds.loss(hard, policy) == pytest.approx(v * (0.4 * 0.125 / 4 + 0.2 * 0.3 / 5))  # safe: suboptimality only


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_the_remark_keeps_the_lemma_up_to_the_limit_on_varpi(factor):
    """The policy that gains most by e' has x = y + m, y = 1/(4K) + m; at the limit its loss is the floor."""
    gamma, n = 0.9, 4
    limit = 0.8 * (1 - gamma) / (gamma * n)
    hard = hard_instances.lower_bound(n, 3, 8, gamma=gamma, theta_c=np.ones((n, 1)), varpi_c=limit, repaired=True)
    plain = hard_instances.lower_bound(n, 3, 8, gamma=gamma, theta_c=np.ones((n, 1)), varpi_c=factor * limit)
    model = CMDP(plain.cmdp.P, hard.cmdp.r, hard.cmdp.u, gamma, hard.cmdp.rho0)
    hard = dataclasses.replace(hard, cmdp=model, varpi_c=factor * limit, optimal_value=plain.optimal_value)
    v0, v1, _ = visits(gamma)
    policy, taken = hard.optimal_policy.copy(), 1e-3
    policy[:-1:4, :2] = 1 - taken, taken
    lift = v0 / (1 - gamma) * taken / (v1 / n)
    b = 0.25 + lift * (1 - (1 - gamma) * v1 / (4 * n))
    policy[1:-1:4] = b + lift, b, 1 - 2 * b - lift
    gap = (bounds.loss(hard, policy) - bounds.loss_floor(hard, policy)) / bounds.loss_floor(hard, policy)
    assert gap == pytest.approx(0, abs=0.02) if factor == 1 else gap < -0.1


def test_beyond_the_limit_the_action_of_the_remark_pays():
    """Remark F.4 calls it a small modification; at varpi_c = 1/2 it moves the optimum to where the data is not."""
    signs = {"theta_c": np.ones((4, 1)), "gamma": 0.9}
    plain = hard_instances.lower_bound(4, 3, 8, varpi_c=0.5, **signs)
    repaired = hard_instances.lower_bound(4, 3, 8, varpi_c=0.01, repaired=True, **signs)
    printed = CMDP(plain.cmdp.P, repaired.cmdp.r, repaired.cmdp.u, 0.9, plain.cmdp.rho0)
    best = printed.solve()
    assert best.reward > 1.5 * plain.optimal_value
    assert best.policy[:-1:4, 1].max() > 0.01  # in one of the blocks; all are alike
    assert printed.concentrability(repaired.mu) > 1.5 * repaired.concentrability
    with pytest.raises(ValueError, match=r"varpi_c must be > 0 and <= 0\.0222222, got 0\.5"):
        hard_instances.lower_bound(4, 3, 8, varpi_c=0.5, repaired=True, **signs)


def test_model_is_the_one_in_the_paper():
    theta_c = np.array([[1, -1], [-1, -1]])
    theta_u = np.array([1, -1, -1, 1, 1, -1])
    hard = hard_instances.lower_bound(
        8, 6, 8, 3.0, 0.8, theta_c=theta_c, theta_u=theta_u, varpi_c=0.4, varpi_u=0.3, repaired=False
    )
    assert hard_instances.blocks(8, 6, 8) == (2, 2, 6)
    assert hard.mu.shape == (33, 5)
    P = hard.cmdp.P.toarray().reshape(33, 5, 33)
    for block in range(8):
        s0, s1, plus, minus = range(4 * block, 4 * block + 4)
        np.testing.assert_allclose(P[s0][:, [s0, s1]], [[1 / 1.2, 0.2 / 1.2]] * 5)
        np.testing.assert_allclose(P[[plus, minus], :, [plus, minus]], 0.75)
        np.testing.assert_allclose(P[[plus, minus], :, s0], 0.25)
        good = [0.5 + 0.2 * theta_c[block, 0], 0.5 + 0.2 * theta_c[block, 1], 0.4, 0.4, 0.5] if block < 2 else None
        good = [0.5 + 0.15 * theta_u[block - 2], 0.5, 0.5, 0.5, 0.5] if good is None else good
        np.testing.assert_allclose(P[s1][:, plus], good)
        np.testing.assert_allclose(P[s1][:, minus], 1 - np.array(good))
        np.testing.assert_array_equal(hard.cmdp.r[[s0, s1, plus, minus]], np.repeat([[0], [0], [1], [-1]], 5, axis=1))
        assert hard.cmdp.rho0[s0] == pytest.approx(1 / 4 if block < 2 else 1 / 12)
        assert not hard.mu[[s0, plus, minus], 1:].any()
    np.testing.assert_array_equal(P[32, :, 32], 1)
    assert hard.cmdp.n_utilities == 8
    assert not hard.mu[9::4, 1:-1][:6].any()  # an unconstrained block has data on a and e alone
    v0, decide, v = 2 / 2.8, 0.2 * 1.6 / 3.36, 0.64 / 3.36
    np.testing.assert_allclose(12 * hard.mu[:4, 0], [v0, decide / 8, 0.75 * v, 0.5 * v])  # C/rho = 12
    np.testing.assert_allclose(12 * hard.mu[1], np.array([1, 1, 1, 1, 8]) * decide / 8)
    np.testing.assert_allclose(36 * hard.mu[-5:-1, 0], [v0, decide, 0.75 * v, 0.5 * v])
    np.testing.assert_allclose(36 * hard.mu[-4], [decide, 0, 0, 0, decide])
    shift = 0.2 * 0.25 * (1.6 / 3.36) / 8
    u = hard.cmdp.u.reshape(2, 2, 2, 33, 5)
    np.testing.assert_array_equal(u[0, 1, 0, 5], [-1, 0, 1, 0, 0])
    np.testing.assert_allclose(u[1, 1, 0, 5], [shift, shift, shift - 1, shift, shift])
    assert np.count_nonzero(u[0]) == 8
    np.testing.assert_allclose(np.unique(u[1]), [shift - 1, shift])


def test_repair_adds_one_action_that_lifts_every_utility():
    options = {"gamma": 0.8, "theta_c": np.ones((4, 1)), "varpi_c": 0.01}
    plain, repaired = (hard_instances.lower_bound(4, 3, 8, **options, repaired=flag) for flag in (False, True))
    np.testing.assert_array_equal(plain.cmdp.P.toarray(), repaired.cmdp.P.toarray())
    changed = np.argwhere((plain.cmdp.u != repaired.cmdp.u).any(axis=0)).tolist()
    assert changed == [[0, 1], [4, 1], [8, 1], [12, 1]]
    np.testing.assert_array_equal(repaired.cmdp.u[:, :-1:4, 1], 1)
    np.testing.assert_array_equal(np.argwhere(plain.cmdp.r != repaired.cmdp.r), changed)
    np.testing.assert_array_equal(repaired.cmdp.r[:-1:4, 1], -1)
    always = repaired.optimal_policy.copy()
    always[:-1:4] = [0, 1, 0]
    assert repaired.violation(always) == 0
    assert repaired.reward(always) < -1


@MORE
@given(no_slater_instances())
def test_no_slater_has_one_safe_policy(instance):
    hard, rng = instance
    n, gamma = len(hard.theta), hard.cmdp.gamma
    np.testing.assert_array_equal(hard.optimal_policy[3:-1, 1], hard.theta)
    assert hard.violation(hard.optimal_policy) <= 1e-12
    assert hard.cmdp.evaluate(hard.optimal_policy).utilities[0] == pytest.approx(0, abs=1e-12)
    best = hard.cmdp.solve()
    assert (best.status, best.reward, hard.optimal_value) == ("optimal", 0, 0)
    np.testing.assert_allclose(best.policy[3:-1], hard.optimal_policy[3:-1], atol=1e-5)
    wrong = hard.optimal_policy.copy()
    state, slip = 3 + rng.integers(n), 10.0 ** rng.uniform(-5, 0)
    wrong[state] = (1 - slip) * wrong[state] + slip * wrong[state, ::-1]
    v = gamma**2 / (4 - gamma**2)
    assert hard.violation(wrong) == pytest.approx(v * hard.varpi * slip / (n * (1 - gamma)), rel=1e-7)


def test_no_slater_model_is_the_one_in_the_paper():
    hard = hard_instances.no_slater(4, 4.0, 0.8, theta=[0, 1, 1, 0], varpi=0.4)
    P = hard.cmdp.P.toarray().reshape(8, 2, 8)
    np.testing.assert_allclose(P[0], [[1 / 1.2, 0, 0, *[0.05 / 1.2] * 4, 0]] * 2)
    np.testing.assert_allclose(P[[1, 2], :, [1, 2]], 0.75)
    np.testing.assert_allclose(P[[1, 2], :, 0], 0.25)
    np.testing.assert_allclose(P[3:7, :, 1], [[0.5, 0.3], [0.3, 0.5], [0.3, 0.5], [0.5, 0.3]])
    np.testing.assert_allclose(P[3:7, :, 2], 1 - P[3:7, :, 1])
    np.testing.assert_array_equal(P[7, :, 7], 1)
    np.testing.assert_array_equal(hard.cmdp.u[0], [[0, 0], [1, 1], [-1, -1], *[[0, 0]] * 5])
    assert not hard.cmdp.r.any()
    assert not hard.mu[[0, 1, 2, 7], 1].any()
    np.testing.assert_allclose(4 * hard.mu[:3, 0], [2 / 2.8, 0.64 / 3.36, 0.64 / 3.36])
    np.testing.assert_allclose(4 * hard.mu[3:7], 0.2 * 1.6 / 3.36 / 4)


def divergence(first, second):
    """KL of one transition from mu under the first model against the second."""
    P, Q = first.cmdp.P.toarray(), second.cmdp.P.toarray()
    terms = np.where(P > 0, P * np.log(np.where(P > 0, P, 1) / np.where(P > 0, Q, 1)), 0)
    return float(first.mu.ravel() @ terms.sum(axis=1))


@pytest.mark.parametrize("sizes", [(4, 3, 8), (4, 9, 8), (12, 3, 8), (9, 7, 20), (30, 5, 12)])
@pytest.mark.parametrize("n_samples", [1, 300, 10**6])
@pytest.mark.parametrize(("C", "gamma"), [(2, 0.5), (10, 0.97)])
def test_bounds_follow_from_how_alike_neighbouring_models_are(sizes, n_samples, C, gamma):
    """Assouad's lemma: each sign is wrong by (1 - TV)/2 on average, TV being that of N samples with it flipped."""

    def mean_error(build, theta):
        flipped = theta.copy().ravel()
        flipped[0] = 1 - flipped[0] if theta.min() == 0 else -flipped[0]
        distance = np.sqrt(n_samples * divergence(build(theta), build(flipped.reshape(theta.shape))) / 2)  # Pinsker
        return (1 - distance) / 2

    k, n_c, n_u = hard_instances.blocks(*sizes)
    varpi = {"varpi_c": float(bounds.hardest_varpi(n_samples, n_c * k, C, gamma))}
    if n_u:
        varpi["varpi_u"] = float(bounds.hardest_varpi(n_samples, n_u, C, gamma))
    signs = {"theta_c": np.ones((n_c, k)), "theta_u": np.ones(n_u)}
    errors = {
        name: mean_error(
            lambda theta, name=name: hard_instances.lower_bound(*sizes, C, gamma, **varpi, **(signs | {name: theta})),
            value,
        )
        for name, value in signs.items()
        if value.size
    }
    assert min(errors.values()) > 0.39
    v = gamma**2 / (4 - gamma**2)
    proved = varpi["varpi_c"] / 8 * errors["theta_c"]
    if n_u:
        proved = (proved + varpi["varpi_u"] * errors["theta_u"]) / 2
    bound = bounds.suboptimality_bound(n_samples, *sizes, C, gamma)
    assert 0 < bound <= v / (1 - gamma) * proved

    n = sizes[0]
    small = float(bounds.hardest_varpi(n_samples, n, C, gamma, "no_slater"))
    error = mean_error(lambda theta: hard_instances.no_slater(n, C, gamma, theta=theta, varpi=small), np.arange(n) % 2)
    assert error > 0.39
    assert 0 < bounds.violation_bound(n_samples, n, C, gamma) <= v * small / (1 - gamma) * error


def test_bounds_worked_by_hand():
    v = 0.81 / 3.19
    # K = 2, S_c = 4, S_u = 16; varpi_c = sqrt(5*5/(0.8e6)) and varpi_u = sqrt(13*5/(0.8e6))
    expected = v / 0.2 * (np.sqrt(25 / 8e5) / 192 + np.sqrt(65 / 8e5) / 24)
    assert bounds.suboptimality_bound(10**6, 20, 5, 16, 5, 0.9) == pytest.approx(expected)
    assert bounds.suboptimality_bound(1, 20, 5, 16, 5, 0.9) == pytest.approx(v / 0.2 * (0.5 / 192 + 0.5 / 24))
    assert bounds.suboptimality_bound(1, 5, 5, 16, 5, 0.9) == pytest.approx(v / 0.1 * 0.5 / 192)
    assert bounds.violation_bound(10**6, 20, 5, 0.9) == pytest.approx(v / 2.4 * np.sqrt(17 * 5 / 1.6e6))


def test_the_recipe_leaves_a_gap_at_three_pairs():
    empty = {
        (S, A, I)
        for S in range(4, 9)
        for A in range(3, 16)
        for I in range(8, 40)
        if bounds.suboptimality_bound(1000, S, A, I, 2, 0.9) == 0
    }
    assert empty == {(4, A, I) for A in (7, 8) for I in range(8, 12)}
    assert hard_instances.blocks(5, 7, 8) == (3, 1, 4)  # from S = 5 on the unconstrained blocks carry the bound


def test_same_seed_same_instance():
    first, second, other = (hard_instances.lower_bound(9, 5, 12, rng=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.theta_c, second.theta_c)
    np.testing.assert_array_equal(first.theta_u, second.theta_u)
    assert (first.varpi_c, first.varpi_u) == (second.varpi_c, second.varpi_u)
    np.testing.assert_array_equal(first.cmdp.P.toarray(), second.cmdp.P.toarray())
    assert first.varpi_c != other.varpi_c
    one, two = (hard_instances.no_slater(9, rng=np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(one.cmdp.P.toarray(), two.cmdp.P.toarray())
    with pytest.raises(ValueError, match="read-only"):
        first.mu[0, 0] = 1


def test_null_state_keeps_mass_at_the_least_concentrability():
    for gamma in np.append(np.linspace(0.5, 0.99, 8), 0.9999):
        for sizes in [(4, 3, 8), (20, 3, 8)]:
            varpi = 0.4 * (1 - gamma) / 4
            hard = hard_instances.lower_bound(*sizes, 2.0, gamma, varpi_c=varpi, repaired=True, rng=0)
            assert hard.mu[-1, 0] > 0
        assert hard_instances.no_slater(4, 2.0, gamma, rng=0).mu[-1, 0] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_blocks": 3}, "n_blocks must be between 4 and .*, got 3"),
        ({"n_actions": 2}, "n_actions must be between 3 and .*, got 2"),
        ({"n_utilities": 7}, "n_utilities must be between 8 and .*, got 7"),
        ({"concentrability": 1.9}, r"concentrability must be >= 2, got 1\.9"),
        ({"gamma": 0.4}, r"gamma must be >= 0\.5 and < 1, got 0\.4"),
        ({"gamma": 1.0}, r"gamma must be .*, got 1\.0"),
        ({"varpi_c": 0.0}, r"varpi_c must be > 0 and <= 0\.5, got 0\.0"),
        ({"varpi_u": 0.6}, r"varpi_u must be > 0 and <= 0\.5, got 0\.6"),
        ({"n_blocks": 4, "varpi_u": 0.3}, r"varpi_u = 0\.3 has no meaning: n_blocks = 4 leaves no unconstrained block"),
        ({"theta_c": np.ones((2, 4))}, r"theta_c must have shape \(4, 1\), got \(2, 4\)"),
        ({"theta_c": [[1], [1], [0], [1]]}, r"theta_c\[2, 0\] = 0\.0 must be -1 or 1"),
        ({"theta_u": [1, 1, 1, 1, 2]}, r"theta_u\[4\] = 2\.0 must be -1 or 1"),
    ],
)
def test_lower_bound_refuses_by_name(changes, message):
    arguments = {"n_blocks": 9, "n_actions": 3, "n_utilities": 8, "rng": 0} | changes
    with pytest.raises(ValueError, match=message):
        hard_instances.lower_bound(**arguments)


HARD = hard_instances.lower_bound(4, 3, 8, rng=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hard_instances.no_slater(3), "n_blocks must be between 4"),
        (lambda: hard_instances.no_slater(4, 1.0), r"concentrability must be >= 2, got 1\.0"),
        (lambda: hard_instances.no_slater(4, varpi=0.51), r"varpi must be > 0 and <= 0\.5, got 0\.51"),
        (lambda: hard_instances.no_slater(4, theta=[0, 1, -1, 0]), r"theta\[2\] = -1\.0 must be 0 or 1"),
        (lambda: HARD.occupancy(np.full(HARD.mu.shape, 0.5)), r"policy\[0\] must sum to 1"),
    ],
)
def test_the_others_refuse_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_flag_is_true_or_false():
    with pytest.raises(TypeError, match="repaired must be True or False, got 1"):
        hard_instances.lower_bound(4, 3, 8, repaired=1)
