"""The Slater constant from data: two bounds that hold as often as they say, and a wrong constant that is told apart."""

import math

import numpy as np
import pytest
from scipy.optimize import linprog

import logs
from dpdl import CMDP, Dataset, Status, exact, instances, learn
from dpdl.learner import slater
from dpdl.learner.slater import estimate_slater
from dpdl.models import linear_programs as programs

GAMMA = 0.6
BANDIT = CMDP([[[1.0], [1.0]]], [[1.0, 0.0]], [[[-1.0, 0.5]]], 0.5, [1.0])


def problem(seed, n_utilities=2):
    rng = np.random.default_rng(seed)
    cmdp = instances.garnet(4, 2, n_utilities, branching=2, gamma=GAMMA, slater=0.3, rng=rng)
    return cmdp, rng.dirichlet(np.full(8, 5.0)).reshape(4, 2), rng


def drawn(kind, cmdp, mu, n, rng):
    return cmdp.sample(n, mu, rng=rng) if kind == "independent" else cmdp.rollout(n, rng.dirichlet([3, 3], 4), rng=rng)


def frequencies(log):
    mu = np.bincount(log.s * log.n_actions + log.a, minlength=log.n_states * log.n_actions) / len(log)
    return mu.reshape(log.n_states, log.n_actions)


def best_under_caps(cmdp, caps):
    """max of the worst utility over normalised occupancies q <= caps, by a program of its own; -inf if there is none.

    Unlike exact.slater it has no bound of the sum of q/mu, so that the class is the one that `upper` speaks of.
    """
    n_pairs, n_utilities = cmdp.r.size, cmdp.n_utilities
    flow = np.repeat(np.eye(cmdp.n_states), cmdp.n_actions, axis=1) - cmdp.gamma * cmdp.P.toarray().T
    found = linprog(
        np.append(np.zeros(n_pairs), -1.0),
        A_eq=np.hstack([flow, np.zeros((cmdp.n_states, 1))]),
        b_eq=(1 - cmdp.gamma) * cmdp.rho0,
        A_ub=np.hstack([-cmdp.u.reshape(n_utilities, -1), np.ones((n_utilities, 1))]),
        b_ub=np.zeros(n_utilities),
        bounds=[*((0, cap) for cap in caps.ravel()), (None, None)],
    )
    return found.x[-1] if found.status == 0 else -math.inf


def worst_utility(cmdp, policy):
    return (1 - cmdp.gamma) * cmdp.evaluate(policy).utilities.min()


# ---- The bounds hold ----


#: How many problems in the default run, and in the slow one.
MANY = pytest.mark.parametrize("n", [20, pytest.param(100, marks=pytest.mark.slow)])


@MANY
@pytest.mark.parametrize("kind", ["independent", "trajectory"])
def test_both_bounds_cover_over_many_problems(kind, n):
    """Small logs bound little and cannot fail; so most are long enough for both bounds to say something."""
    delta, wrong, informative, widths = 0.05, {"lower": 0, "policy": 0, "upper": 0}, 0, []
    for seed in range(n):
        cmdp, mu, rng = problem(seed + 1000 * (kind == "trajectory"), n_utilities=1 + (seed % 4 == 0))
        psi = (None, 2.0, 4.0)[seed % 3]
        log = drawn(kind, cmdp, mu, int(rng.choice([500, 5000, 20_000, 20_000])), rng)
        found = estimate_slater(log, gamma=GAMMA, rho0=cmdp.rho0, psi=psi, delta=delta)
        caps = np.ones(mu.shape) if psi is None else psi * frequencies(log)
        wrong["lower"] += bool(found.lower > best_under_caps(cmdp, np.ones(mu.shape)) + 1e-9)
        wrong["policy"] += bool(found.lower > worst_utility(cmdp, found.policy) + 1e-9)
        wrong["upper"] += bool(found.upper < best_under_caps(cmdp, caps) - 1e-9)
        informative += found.lower > -1 and found.upper < 1
        widths.append(found.upper - found.lower)
    print(f"\n{kind}: failures {wrong} of {n} (delta = {delta}), both bounds informative in {informative}, ", end="")
    print(f"median width {np.median(widths):.3f}")
    assert max(wrong.values()) <= n * delta
    assert informative > n / 2


def test_the_bounds_close_in_on_the_truth():
    """Thirty pairs: at 10^6 records both bounds are within 0.05."""
    rng = np.random.default_rng(0)
    cmdp = instances.garnet(10, 3, 2, branching=3, gamma=0.9, slater=0.3, rng=rng)
    log = cmdp.sample(10**6, rng.dirichlet(np.full(30, 20.0)).reshape(10, 3), rng=rng)
    truth, width = cmdp.slater(), math.inf
    for n in (10**4, 10**5, 10**6):
        found = estimate_slater(log[:n], gamma=0.9, rho0=cmdp.rho0)
        assert found.lower <= truth <= found.upper
        assert found.upper - found.lower < 0.6 * width
        width = found.upper - found.lower
    print(f"\nat 10^6 records: {found.lower:.4f} <= {truth:.4f} <= {found.upper:.4f}, plug-in {found.estimate:.4f}")
    assert truth - 0.05 <= found.lower
    assert found.upper <= truth + 0.05
    assert found.estimate == pytest.approx(truth, abs=0.01)


def plain_half_widths(values, pairs, n_pairs, width, delta, kind):
    """Maurer and Pontil's theorem 4, pair by pair, from the values themselves."""
    found, visited = np.full(n_pairs, np.inf), len(set(pairs))
    for pair in range(n_pairs):
        mine = values[pairs == pair]
        n = len(mine)
        if n >= 2:
            share = delta / visited if kind == "independent" else delta / (n_pairs * n * (n + 1))
            length = math.log(2 / share)
            found[pair] = math.sqrt(2 * np.var(mine, ddof=1) * length / n) + 7 * width * length / (3 * (n - 1))
    return found


@pytest.mark.parametrize("kind", ["independent", "trajectory"])
def test_half_widths_are_those_of_the_empirical_bernstein_inequality(kind, monkeypatch):
    monkeypatch.setattr("dpdl.data.packing.CHUNK", 1)  # so that several chunks are put together
    cmdp, mu, rng = problem(1)
    log = drawn(kind, cmdp, mu, 9, rng)
    W, weights = rng.normal(size=4), np.array([0.25, 0.75])
    pairs = log.s * log.n_actions + log.a
    for choice, u in (({"utility": 1}, log.u[:, 1]), ({"weights": weights}, log.u @ weights)):
        bounds = slater._Bounds.of(log, W, GAMMA, **choice)
        values = u + GAMMA * W[log.s_next]
        low, high = -1 + GAMMA * W.min(), 1 + GAMMA * W.max()
        expected = plain_half_widths(values, pairs, 8, high - low, 0.1, kind)
        assert len(set(pairs)) < 8  # what is shared by all pairs differs from what is shared by the visited ones
        np.testing.assert_allclose(bounds.half_width(0.1), expected, rtol=1e-9)
        means = np.array([values[pairs == p].mean() if (pairs == p).any() else 0.0 for p in range(8)])
        # A pair without two records has no bound but the interval itself.
        np.testing.assert_allclose(bounds.lower(0.1), np.maximum(low, means - expected), rtol=0, atol=1e-12)
        np.testing.assert_allclose(bounds.upper(0.1), np.minimum(high, means + expected), rtol=0, atol=1e-12)


def pieced_together(kind, proposing, judging):
    """A log whose first half, as `estimate_slater` halves it, is of one log and whose second half is of another."""
    n = len(proposing)
    if kind == "independent":
        odd = np.arange(n) % 2 == 1
        columns = [np.where(odd, getattr(judging, c), getattr(proposing, c)) for c in ("s", "a", "s_next", "r")]
        u = np.where(odd[:, None], judging.u, proposing.u)
        return Dataset(*columns, u, n_states=proposing.n_states, n_actions=proposing.n_actions)
    parts = proposing[: n // 2], judging[n // 2 :]
    ends = [(np.append(part.s, part.s_next[-1]), part.a, part.r, part.u) for part in parts]
    return logs.from_trajectories(ends, n_states=proposing.n_states, n_actions=proposing.n_actions)


@pytest.mark.parametrize("kind", ["independent", "trajectory"])
def test_what_proposes_knows_nothing_of_what_judges(kind, monkeypatch):
    """Replace the judging half by another one: policy, value functions and weights stay the same, bit for bit."""
    cmdp, mu, rng = problem(2)
    log, other = drawn(kind, cmdp, mu, 2000, rng), drawn(kind, cmdp, mu[::-1], 2000, rng)
    proposals, original = [], slater._Bounds.of.__func__

    def spy(cls, dataset, W, gamma, *, utility=None, weights=None):
        proposals[-1] += [W.copy(), utility if weights is None else weights.copy()]
        return original(cls, dataset, W, gamma, utility=utility, weights=weights)

    monkeypatch.setattr(slater._Bounds, "of", classmethod(spy))
    policies = []
    for data in (log, pieced_together(kind, log, other)):
        proposals.append([])
        policies.append(estimate_slater(data, gamma=GAMMA, rho0=cmdp.rho0, psi=3).policy)
    assert (policies[0] == policies[1]).all()
    assert len(proposals[0]) == len(proposals[1]) > 0
    for one, two in zip(*proposals, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", ["independent", "trajectory"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5])
def test_the_judging_half_has_the_last_word(kind, seed):
    """Halves of two problems, one kinder than the other: both bounds still hold in the plug-in model of the second.

    The argument behind each bound is then free of chance, because a mean lies within its own confidence interval.
    """
    cmdp, mu, rng = problem(seed)
    stranger, _, _ = problem(seed + 50)
    kinder = rng.uniform(0.1, 0.8, 4) * (1 if seed % 2 else -1)
    u = np.clip(cmdp.u + kinder[:, None], -1, 1)
    other = CMDP(0.8 * cmdp.P + 0.2 * stranger.P, cmdp.r, u, GAMMA, cmdp.rho0)
    log = pieced_together(kind, drawn(kind, cmdp, mu, 20_000, rng), drawn(kind, other, mu, 20_000, rng))
    judging = log[1::2] if kind == "independent" else log[10_000:]
    assert len(judging.pairs) == 8
    model = exact.plug_in(judging, GAMMA, cmdp.rho0)
    for psi in (None, 3.0):
        found = estimate_slater(log, gamma=GAMMA, rho0=cmdp.rho0, psi=psi)
        caps = np.ones(mu.shape) if psi is None else psi * frequencies(log)
        assert -1 < found.lower <= worst_utility(model, found.policy)
        assert best_under_caps(model, caps) <= found.upper


def test_a_trajectory_pays_for_counts_that_depend_on_it():
    cmdp, mu, rng = problem(3)
    walk = drawn("trajectory", cmdp, mu, 20_000, rng)
    pretended = Dataset(walk.s, walk.a, walk.s_next, walk.r, walk.u, n_states=4, n_actions=2)
    W = rng.normal(size=4)
    widths = [slater._Bounds.of(log, W, GAMMA, utility=0).half_width(0.05) for log in (walk, pretended)]
    assert (widths[0] > widths[1]).all()


# ---- Odd logs ----


def test_one_state_has_the_bounds_that_the_counts_give():
    """The second action is the careful one; its u never varies and W is its value, so only the range's term is left."""
    log = BANDIT.sample(40_000, [[0.5, 0.5]], rng=0)
    found = estimate_slater(log, gamma=0.5, rho0=[1.0])
    assert found.estimate == pytest.approx(0.5, abs=1e-9)
    np.testing.assert_allclose(found.policy, [[0.0, 1.0]], atol=1e-12)
    assert found.lower < 0.5 < found.upper
    assert found.upper - found.lower < 0.01
    logged = estimate_slater(log, gamma=0.5, initial_states=[0, 0, 0])
    assert (logged.lower, logged.upper, logged.estimate) == (found.lower, found.upper, found.estimate)


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("gamma", [0.01, 0.9, 0.9999])
def test_constant_utilities_are_bracketed(value, gamma):
    rng = np.random.default_rng(0)
    cmdp = CMDP(rng.dirichlet(np.ones(3), size=(3, 2)), np.zeros((3, 2)), np.full((2, 3, 2), value), gamma, [1, 0, 0])
    log = cmdp.sample(100_000, np.full((3, 2), 1 / 6), rng=rng)
    found = estimate_slater(log, gamma=gamma, rho0=cmdp.rho0)
    rounding = 1e-15 / (1 - gamma)
    assert found.estimate == pytest.approx(value, abs=1e-8)
    assert max(-1.0, value - 0.02) <= found.lower <= value + rounding
    assert value - rounding <= found.upper <= min(1.0, value + 0.02)


def test_a_log_that_shows_next_to_nothing_bounds_nothing():
    for n in (2, 3):
        log = Dataset([0] * n, [1] * n, [2] * n, [0.0] * n, [[1.0]] * n, n_states=3, n_actions=2)
        found = estimate_slater(log, gamma=0.9, rho0=[1.0, 0.0, 0.0])
        assert (found.lower, found.upper) == (-1.0, 1.0)
        assert found.policy.shape == (3, 2)


def test_unseen_pairs_count_against_the_lower_bound_and_for_the_upper_one():
    """Action 1 is never seen: it may be worth 1, so only its cap keeps the upper bound from saying so."""
    log = Dataset([0] * 5000, [0] * 5000, [0] * 5000, [0.0] * 5000, [[0.25]] * 5000, n_states=1, n_actions=2)
    free = estimate_slater(log, gamma=0.5, rho0=[1.0])
    assert free.upper == 1.0
    assert 0.23 < free.lower <= 0.25
    np.testing.assert_allclose(free.policy, [[1.0, 0.0]], atol=1e-12)
    kept = estimate_slater(log, gamma=0.5, rho0=[1.0], psi=1)
    assert 0.25 <= kept.upper < 0.27


def test_the_estimate_is_the_plug_in_models_constant():
    for seed, psi in ((0, None), (1, 2.0), (2, 3.0), (3, 1.0)):
        cmdp, mu, rng = problem(seed)
        log = cmdp.sample(3000, mu, rng=rng)
        model = exact.plug_in(log, GAMMA, cmdp.rho0)
        found = estimate_slater(log, gamma=GAMMA, rho0=cmdp.rho0, psi=psi)
        expected = exact.slater(model) if psi is None else exact.slater(model, psi, frequencies(log))
        assert found.estimate == pytest.approx(expected, abs=1e-9)
    # psi = 1 leaves only the data's own distribution, which is no occupancy of any policy.
    assert found.estimate == -math.inf


def test_failures_of_the_solver_cost_tightness_and_nothing_else(monkeypatch):
    cmdp, mu, rng = problem(4)
    log = cmdp.sample(50_000, mu, rng=rng)
    usual = estimate_slater(log, gamma=GAMMA, rho0=cmdp.rho0, psi=4)

    def gives_up(*_):
        raise RuntimeError("HiGHS could not solve the linear program")

    monkeypatch.setattr(programs, "penalised_margin", gives_up)
    monkeypatch.setattr("dpdl.learner.slater.slater", gives_up)
    found = estimate_slater(log, gamma=GAMMA, rho0=cmdp.rho0, psi=4)
    assert math.isnan(found.estimate)
    assert found.lower <= worst_utility(cmdp, found.policy)
    assert best_under_caps(cmdp, 4 * frequencies(log)) <= found.upper
    assert found.lower <= usual.lower
    assert usual.upper <= found.upper
    # A run is not lost to a check that comes after its last step.
    result = learn(log, gamma=GAMMA, psi=4, slater=0.3, T=100, rho0=cmdp.rho0, rng=0)
    assert (result.status, result.n_steps, result.notes) == (Status.COMPLETED, 100, ())


# ---- What a run says about the slater that it was given ----


def valid(result):
    return next(premise for premise in result.premises if premise.name == "slater valid")


def test_bad_input_is_named():
    log = BANDIT.sample(100, [[0.5, 0.5]], rng=0)
    good = {"gamma": 0.5, "rho0": [1.0]}
    with pytest.raises(TypeError, match=r"^log must be a Dataset, got list$"):
        estimate_slater([], **good)
    with pytest.raises(ValueError, match=r"^the data set has no utilities, so Slater's condition says nothing"):
        estimate_slater(Dataset([0, 0], [0, 0], [0, 0], [0, 0], np.zeros((2, 0)), n_states=1, n_actions=1), **good)
    with pytest.raises(ValueError, match=r"^the data set has one transition; at least two are needed$"):
        estimate_slater(log[:1], **good)
    with pytest.raises(ValueError, match=r"^gamma must be > 0 and < 1, got 1.0$"):
        estimate_slater(log, gamma=1, rho0=[1.0])
    with pytest.raises(TypeError, match=r"^give either rho0 or initial_states: the log has no episodes"):
        estimate_slater(log, gamma=0.5)
    with pytest.raises(ValueError, match=r"^rho0 must sum to 1, got 0.5$"):
        estimate_slater(log, gamma=0.5, rho0=[0.5])
    with pytest.raises(ValueError, match=r"^initial_states\[1\] = 1 must be between 0 and 0$"):
        estimate_slater(log, gamma=0.5, initial_states=[0, 1])
    with pytest.raises(ValueError, match=r"^psi must be >= 1, got 0.5$"):
        estimate_slater(log, **good, psi=0.5)
    with pytest.raises(ValueError, match=r"^delta must be > 0 and < 1, got 0.0$"):
        estimate_slater(log, **good, delta=0)
    costs = logs.from_costs(
        [0, 0], [0, 0], [0, 0], [0, 0], [[1.0], [2.0]], [3.0], gamma=0.9, normalised=True, n_states=1, n_actions=1
    )
    with pytest.raises(ValueError, match=r"^the log was posed under another question, gamma = 0.9"):
        estimate_slater(costs, **good)


def test_a_tiny_delta_is_no_overflow():
    log = BANDIT.sample(10_000, [[0.5, 0.5]], rng=0)
    found = estimate_slater(log, gamma=0.5, rho0=[1.0], delta=1e-308)
    assert -1 <= found.lower < 0.5 < found.upper <= 1


@pytest.mark.parametrize("arrange", ["sorted", "alternating", "shuffled"])
def test_the_order_of_independent_records_does_no_harm(arrange):
    """Action 1 has utility 0.1, action 0 has -0.5: slater is 0.1, and 0.9 is plainly wrong."""
    n = 4000
    actions = {
        "sorted": np.repeat([0, 1], n // 2),
        "alternating": np.tile([0, 1], n // 2),
        "shuffled": np.random.default_rng(0).permutation(np.repeat([0, 1], n // 2)),
    }[arrange]
    u = np.where(actions == 1, 0.1, -0.5)[:, None]
    log = Dataset(0 * actions, actions, 0 * actions, 0.0 * actions, u, n_states=1, n_actions=2)
    found = estimate_slater(log, gamma=0.5, rho0=[1.0])
    assert 0 < found.lower <= 0.1 <= found.upper < 0.2
