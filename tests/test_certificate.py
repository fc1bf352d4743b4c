"""Certificates: bounds hold as often as they say, verdicts follow from them, hand-worked models come out right."""

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

# At the end: bench has a `problems` of its own, which must not hide that of the tests.
sys.path.append(str(Path(__file__).parent.parent / "bench"))
import logs
import safety_problems as problems
from dpdl import Certificate, Dataset, certify, coverage, frontier
from dpdl.deploying.certificate import Certifier
from dpdl.deploying.posterior import Posterior

DELTAS = (0.2, 0.05, 0.01)


def one_state(n=1000, seed=0, limit=0.5, **options):
    """One state; action 1 earns 1 and costs 2 times a uniform number, action 0 neither."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 2, n)
    return logs.from_costs(
        0 * a, a, 0 * a, 1.0 * a, 2.0 * a * rng.random(n), limit,
        gamma=0.5, normalised=True, n_states=1, n_actions=2, **options,
    )  # fmt: skip


# ---- Coverage of the bounds ----


def fixed_policies(problem, rng):
    """Twenty policies that were chosen without looking at a log."""
    S, A = problem.r.shape
    logged = problem.mu / problem.mu.sum(axis=1, keepdims=True)
    best, costly, free = problem.optimal_policy, np.eye(A)[problem.c[0].argmax(1)], np.eye(A)[problem.c[0].argmin(1)]
    found = [best, np.full((S, A), 1 / A), logged, costly, np.eye(A)[problem.r.argmax(1)], free]
    found += [0.5 * logged + 0.5 * costly, 0.5 * logged + 0.5 * free, problems.mixed(best, 0.9)]
    found += [rng.dirichlet(np.ones(A), S) for _ in range(4)]
    found += [np.eye(A)[rng.integers(0, A, S)] for _ in range(4)]
    return [*found, *(0.5 * best + 0.5 * rng.dirichlet(np.ones(A), S) for _ in range(3))]


def failures(n, n_logs, n_problems, method):
    """How often each bound fails: arrays (deltas, policies, 2), of the reward and of the cost; the number of logs."""
    count = np.zeros((len(DELTAS), 20, 2))
    for k in range(n_problems):
        problem = problems.toy(np.random.default_rng([0, k]))
        policies = fixed_policies(problem, np.random.default_rng([1, k]))
        occupancies = [problem.cmdp.evaluate(policy).occupancy for policy in policies]
        truth = np.array([[(problem.mean_r * q).sum(), -(problem.c[0] * q).sum()] for q in occupancies])
        for number in range(n_logs // n_problems):
            log = problem.log(n, np.random.default_rng([2, k, number, n]))
            certifiers = [
                Certifier.of(log, problem.gamma, delta, method, problem.rho0, None, [1.0]) for delta in DELTAS
            ]
            for j, policy in enumerate(policies):
                value = certifiers[0].posterior.value(policy)
                for i, one in enumerate(certifiers):
                    # A cost that is zero in every row has no error; its value is rounding.
                    count[i, j] += one.bounds(policy, value).lower > truth[j] + 1e-9
    return count


def at_most(share, n):
    """The most failures of n that are not evidence (0.1%) of a larger share."""
    return scipy.stats.binom.ppf(0.999, n, share)


@pytest.mark.parametrize("n", [200, 1000])
def test_normal_bounds_fail_as_often_as_they_say(n):
    count = failures(n, 20, 5, "normal")
    # All twenty policies of a log fail together at worst, so that one log is one trial.
    for share, of_delta in zip(DELTAS, count.mean(axis=1), strict=True):
        assert (of_delta <= at_most(share, 20)).all()


@pytest.mark.parametrize("n", [20, 200])
def test_finite_bounds_hardly_ever_fail(n):
    count = failures(n, 6, 3, "finite")
    assert count.sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize("n", [200, 1000])
def test_coverage_of_normal_bounds(n, capsys):
    """Twenty fixed policies, 500 logs: of reward and cost at most a share delta fails, within the binomial error."""
    n_logs = 500
    count = failures(n, n_logs, 25, "normal")
    with capsys.disabled():
        for share, of_delta in zip(DELTAS, count, strict=True):
            rates, worst = of_delta.mean(axis=0) / n_logs, of_delta.max(axis=0) / n_logs
            print(f"\nN={n} delta={share}: reward {rates[0]:.4f} (worst policy {worst[0]:.3f}), "
                  f"cost {rates[1]:.4f} (worst policy {worst[1]:.3f})", end="")  # fmt: skip
    for share, of_delta in zip(DELTAS, count.mean(axis=1), strict=True):
        assert (of_delta <= at_most(share, n_logs)).all()


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 50, 200])
def test_coverage_of_finite_bounds(n, capsys):
    """At every size, and for every policy."""
    n_logs = 500
    count = failures(n, n_logs, 25, "finite")
    with capsys.disabled():
        print(f"\nN={n}: finite bounds that failed, of 500 logs and 20 policies: {count.sum(axis=(1, 2)).tolist()}")
    for share, of_delta in zip(DELTAS, count, strict=True):
        assert (of_delta <= at_most(share, n_logs)).all()


def test_finite_bounds_get_as_close_as_normal_ones_with_enough_data():
    """They close in on the truth like 1/n at first, then like 1/sqrt(n)."""
    wide = []
    for n in (10_000, 1_000_000):
        certifier = Certifier.of(one_state(n), 0.5, 0.05, "finite", [1.0], None)
        policy = np.array([[0.5, 0.5]])
        estimate, lower, upper = certifier.bounds(policy, certifier.posterior.value(policy))
        assert lower[0] <= 1.0 <= upper[0]
        assert lower[1] <= -1.0 <= upper[1]
        wide.append(estimate - lower)
    assert 9 < wide[0][1] / wide[1][1] < 100


# ---- What a certificate says ----


def test_a_model_worked_by_hand():
    """One state, gamma = 1/2, pi = (1/2, 1/2): J = 1, cost 1 on average a step times 1/2."""
    log = one_state()
    found = certify([[0.5, 0.5]], log, gamma=0.5, rho0=[1.0], delta=0.1)
    cost = log.counts()
    paid = cost["costs"][cost["a"] == 1][0, 0] / cost["count"][cost["a"] == 1][0]
    (one,) = found.constraints
    assert found.reward.estimate == pytest.approx(1.0)
    # The cost of action 1 is worse than the mean of both, so it stays as it is; that of action 0 is about 0.
    assert one.estimate == pytest.approx(0.5 * paid, rel=1e-4)
    # The error is that of action 1, estimated from its rows.
    assert one.bound == pytest.approx(one.estimate + scipy.stats.t.ppf(0.9, (log.a == 1).sum()) * one.error, rel=1e-5)
    # (1-gamma) nu(1) sd/sqrt(n): the variance of 2 U is 1/3, nu(1) = 1.
    assert one.error == pytest.approx(0.5 * np.sqrt(1 / 3 / (log.a == 1).sum()), rel=0.05)
    assert (one.name, one.limit, one.is_cost, one.is_average) == ("cost 0", 0.5, True, True)
    assert found.holds == one.kept == (one.bound <= 0.5)
    broken = certify([[0.4, 0.6]], log, gamma=0.5, rho0=[1.0])
    assert not broken.holds
    assert broken.failed == broken.constraints
    assert certify([[0.7, 0.3]], log, gamma=0.5, rho0=[1.0]).holds


@pytest.mark.parametrize("method", ["normal", "finite"])
def test_bounds_of_all_constraints_share_delta(method):
    rng = np.random.default_rng(0)
    u = rng.uniform(-1, 1, (4000, 3))
    zero = np.zeros(4000, dtype=int)
    log = Dataset(zero, zero, zero, u[:, 0], u, n_states=1, n_actions=1)
    alone = Dataset(zero, zero, zero, u[:, 0], u[:, :1], n_states=1, n_actions=1)
    together = certify([[1.0]], log, gamma=0.5, rho0=[1.0], delta=0.06, method=method)
    single = certify([[1.0]], alone, gamma=0.5, rho0=[1.0], delta=0.02, method=method)
    assert together.constraints[0].estimate == pytest.approx(single.constraints[0].estimate)
    if method == "normal":
        assert together.constraints[0].bound == pytest.approx(single.constraints[0].bound)
    else:  # there the reward takes part as well
        assert together.constraints[0].bound <= together.constraints[0].estimate - together.constraints[0].error


@pytest.mark.parametrize("method", ["normal", "finite"])
@pytest.mark.parametrize("delta", [5e-324, 1e-300, 1e-17, 0.5, 1 - 1e-12])
def test_any_delta_gives_finite_bounds_that_never_flatter(method, delta):
    found = certify([[0.5, 0.5]], one_state(), gamma=0.5, rho0=[1.0], delta=delta, method=method)
    for one in (found.reward, *found.constraints):
        assert np.isfinite([one.estimate, one.error, one.bound]).all()
    assert found.reward.bound <= found.reward.estimate
    assert found.constraints[0].bound >= found.constraints[0].estimate


def test_worst_costs_are_checked_and_used():
    log = one_state()
    known = {"gamma": 0.5, "rho0": [1.0]}
    for wrong in ([1.0], [5.0, 5.0], [np.nan], [np.inf]):
        with pytest.raises(ValueError, match="worst_costs"):
            certify([[0.5, 0.5]], log, worst_costs=wrong, **known)
    utilities = Dataset([0], [0], [0], [0.0], [[0.5]], n_states=1, n_actions=1)
    with pytest.raises(TypeError, match="worst_costs"):
        certify([[1.0]], utilities, worst_costs=[1.0], **known)
    narrow, wide = (
        certify([[0.5, 0.5]], log, method="finite", worst_costs=[worst], **known).constraints[0] for worst in (2, 4)
    )
    assert narrow.worst == 2
    assert narrow.estimate == wide.estimate
    assert narrow.bound < wide.bound
    assert "cost 0 of a step at most 2" in repr(certify([[0.5, 0.5]], log, method="finite", worst_costs=2.0, **known))


def test_smaller_delta_wider_bound():
    bounds = [
        certify([[0.5, 0.5]], one_state(), gamma=0.5, rho0=[1.0], delta=delta).constraints[0].bound
        for delta in (0.5, 0.2, 0.05, 1e-3, 1e-9)
    ]
    assert bounds == sorted(bounds)


def test_pairs_not_in_the_log_are_worst_case():
    log = logs.from_costs([0, 0], [0, 0], [0, 0], [1.0, 1.0], [0.1, 0.2], 0.5, gamma=0.5, normalised=True,
                             n_states=1, n_actions=2)  # fmt: skip
    seen, unseen = (certify([row], log, gamma=0.5, rho0=[1.0]) for row in ([1.0, 0.0], [0.0, 1.0]))
    assert seen.unseen == 0
    assert unseen.unseen == pytest.approx(0.5)  # the first visit; nothing is known of what follows
    assert unseen.constraints[0].estimate == pytest.approx(0.5 + 0.4)  # the limit, and the largest distance from it
    assert not unseen.constraints[0].kept
    assert "worst case" in repr(unseen)


def test_arguments_are_checked():
    log = one_state(50)
    good = {"gamma": 0.5, "rho0": [1.0]}
    for change, word in (
        ({"gamma": 1.0}, "gamma"), ({"gamma": 0.9}, "gamma"), ({"delta": 0}, "delta"), ({"delta": 1}, "delta"),
        ({"method": "bayes"}, "method"), ({"rho0": [0.5]}, "rho0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=word):
            certify([[0.5, 0.5]], log, **{**good, **change})
    with pytest.raises(ValueError, match=r"policy\[0\]"):
        certify([[0.5, 0.6]], log, **good)
    with pytest.raises(TypeError, match="log"):
        certify([[0.5, 0.5]], [1, 2], **good)
    with pytest.raises(TypeError, match="rho0"):
        certify([[0.5, 0.5]], log, gamma=0.5)
    mixed = Dataset.from_counts([0], [0], [0], [2], [1.0], [[1.0]], n_states=1, n_actions=1, reward_squares=[1.0],
                                utility_squares=[[0.6]])  # fmt: skip
    with pytest.raises(ValueError, match="finite"):
        certify([[1.0]], mixed, gamma=0.5, rho0=[1.0], method="finite")


@pytest.mark.parametrize("method", ["normal", "finite"])
def test_text_says_what_the_bounds_rest_on(method):
    found = certify([[0.7, 0.3]], one_state(), gamma=0.5, rho0=[1.0], method=method)
    for shown in (repr(found), found._repr_html_()):
        assert ("asymptotic" in shown) == (method == "normal")
        assert "95% confidence" in shown
        assert ("every limit is shown to be kept" in shown) == found.holds or "NOT every" in shown
    assert ("NOT" in repr(found)) != found.holds


def test_names_are_escaped_in_html():
    log = logs.from_table(
        {"s": ["<b>", "<b>"], "a": ["&", "&"], "r": [1.0, 0.0], "<script>": [0.0, 0.1], "next": ["<b>", "<b>"]},
        state="s", action="a", reward="r", costs={"<script>": 0.5}, limits="average", gamma=0.5, next_state="next",
    )  # fmt: skip
    found = certify([[1.0]], log, gamma=0.5, rho0=[1.0])
    assert "<script>" not in found._repr_html_()
    assert "&lt;script&gt;" in found._repr_html_()
    assert isinstance(found, Certificate)


def test_figures_per_episode():
    """An episode ends with probability 1/2 after each step: two steps on average, each costing 1."""
    rng = np.random.default_rng(0)
    n = 20_000
    ended = rng.random(n) < 0.5
    zero = np.zeros(n, dtype=int)
    log = logs.from_costs(zero, zero, zero, np.full(n, 3.0), np.ones(n), 5.0, gamma=0.5, normalised=False,
                             n_states=1, n_actions=1, terminated=ended, reward_scale=3.0)  # fmt: skip
    found = certify([[1.0]], log, gamma=0.5, rho0=[1.0])
    steps = n / ended.sum()
    assert found.constraints[0].per_episode == pytest.approx(steps)
    assert found.reward.per_episode == pytest.approx(3 * steps)
    discounted = 1 / (1 - 0.5 * (1 - 1 / steps))
    assert found.constraints[0].estimate == pytest.approx(discounted, rel=1e-3)
    # sd of the mean of 1 + 1/2 V(s'), times the visits.
    assert found.constraints[0].error == pytest.approx(discounted * 0.5 * discounted * 0.5 / np.sqrt(n), rel=0.02)
    assert "per episode" in repr(found)


# ---- What a log covers ----


def test_coverage_counted_by_hand():
    log = Dataset([0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 2, 0], [0.0] * 4, [[0.0]] * 4, n_states=3, n_actions=2)
    found = coverage(log)
    assert (found.n_transitions, found.n_states_seen, found.n_pairs, found.counts) == (4, 2, 3, (1, 1, 2))
    assert (found.psi, found.effective, found.unseen, found.n_episodes) == (None, None, None, 0)
    policy = [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]
    there = coverage(log, policy, gamma=0.5, rho0=[1, 0, 0])
    assert there.psi == np.inf  # state 2 is reached and never left
    # state 2 is reached after one step by the observed row, or from anywhere: both with zero visits of it
    assert {state: count for state, _, count in there.thin}["2"] == 0
    assert "2" in repr(there)
    assert "inf" in repr(there)
    with pytest.raises(TypeError, match="gamma"):
        coverage(log, policy)


def test_psi_and_effective_transitions_by_hand():
    """One state, 900 and 100 visits: the policy that takes the second action alone needs psi = 10."""
    a = np.repeat([0, 1], [900, 100])
    log = Dataset(0 * a, a, 0 * a, 0.0 * a, 0.0 * a[:, None], n_states=1, n_actions=2)
    for p, psi, effective in ((1.0, 10.0, 100.0), (0.1, 1.0, 1000.0), (0.5, 5.0, 1 / (0.25 / 900 + 0.25 / 100))):
        found = coverage(log, [[1 - p, p]], gamma=0.9, rho0=[1.0])
        assert found.psi == pytest.approx(psi)
        assert found.effective == pytest.approx(effective)
        assert found.unseen == 0


# ---- The price of safety ----


def test_a_frontier_worked_by_hand():
    """Action 1 earns 1 and costs 2, for certain: at the limit l (average) the best policy takes it with l/2.

    J = p/(1-gamma) = l in units of gamma = 1/2; the price is 1, and 0 from l = 2 on.
    """
    a = np.repeat([0, 1], 5000)
    log = logs.from_costs(0 * a, a, 0 * a, 1.0 * a, 2.0 * a, 0.5, gamma=0.5, normalised=True, n_states=1,
                             n_actions=2)  # fmt: skip
    found = frontier(log, gamma=0.5, rho0=[1.0], limits=[3.0, 0.5, 0.0, 1.5, -0.5])
    assert [one.limit for one in found.points] == [-0.5, 0.0, 0.5, 1.5, 3.0]
    assert found.points[0][1:] == (None, None, None)
    for one in found.points[1:]:
        assert one.reward == pytest.approx(min(one.limit, 2.0), abs=2e-3)
        assert one.certified == pytest.approx(min(one.limit, 2.0), abs=0.02)
        if one.limit > 0:
            assert one.price == pytest.approx(1.0 if one.limit < 2 else 0.0, abs=1e-6)
    assert "none" in repr(found)


def test_frontiers_are_monotone_and_prices_are_slopes():
    problem = problems.toy(np.random.default_rng(3))
    rng = np.random.default_rng(0)
    drawn = problem.cmdp.sample(3000, problem.mu, rng)
    cost = problem.c[0, drawn.s, drawn.a]
    log = logs.from_table(
        {"s": drawn.s, "a": drawn.a, "next": drawn.s_next, "r": problem.r[drawn.s, drawn.a], "harm": cost},
        state="s", action="a", reward="r", costs={"harm": 0.1}, next_state="next",
        limits="average", gamma=0.8,
    )  # fmt: skip
    rho0 = np.eye(10)[list(log.labels.states).index(0)]
    found = frontier(log, gamma=0.8, constraint="harm", rho0=rho0)
    assert found.name == "harm"
    assert len(found.points) == 8
    limits, rewards = (
        [one.limit for one in found.points],
        [one.reward for one in found.points if one.reward is not None],
    )
    assert limits == sorted(limits)
    assert rewards == sorted(rewards)
    safe = [one.certified for one in found.points if one.certified is not None]
    assert safe == sorted(safe)
    assert all(one.certified is None or one.certified <= one.reward * 1.002 for one in found.points)
    # At a limit inside a piece of the concave curve its slope is the price.
    middle, step = limits[3], 0.02 * (limits[4] - limits[3])
    near = frontier(log, gamma=0.8, constraint="harm", rho0=rho0, limits=[middle - step, middle, middle + step])
    low, at, high = near.points
    slope = (high.reward - low.reward) / (2 * step)
    assert slope == pytest.approx(at.price, rel=0.1)
    assert low.price * 1.02 >= at.price >= high.price / 1.02


def test_prices_of_totals_are_per_unit_of_the_total():
    """As worked by hand above, with limits on the total: J = l/2 for gamma = 1/2, so that the price is 1/2."""
    a = np.repeat([0, 1], 5000)
    log = logs.from_costs(0 * a, a, 0 * a, 1.0 * a, 2.0 * a, 1.0, gamma=0.5, normalised=False, n_states=1,
                             n_actions=2)  # fmt: skip
    (found,) = frontier(log, gamma=0.5, rho0=[1.0], limits=2.0).points
    assert (found.limit, found.reward) == (2.0, pytest.approx(1.0, abs=2e-3))
    assert found.price == pytest.approx(0.5, abs=1e-6)


def test_a_frontier_of_utilities():
    """Action 1 earns 1 and has utility -1, action 0 utility 1: J^u >= l leaves p = 1/2 - l/4 for gamma = 1/2."""
    a = np.repeat([0, 1], 5000)
    log = Dataset(0 * a, a, 0 * a, 1.0 * a, (1.0 - 2 * a)[:, None], n_states=1, n_actions=2)
    found = frontier(log, gamma=0.5, rho0=[1.0], limits=[-1.0, 0.0, 1.0], constraint=0)
    assert [one.limit for one in found.points] == [1.0, 0.0, -1.0]
    for one in found.points:
        assert one.reward == pytest.approx(2 * (0.5 - one.limit / 4), abs=2e-3)
        assert one.price == pytest.approx(0.5, abs=1e-6)


def test_frontiers_check_their_arguments():
    log = one_state(50)
    for constraint in ("nothing", 1, -1):
        with pytest.raises(ValueError, match="constraint"):
            frontier(log, gamma=0.5, rho0=[1.0], constraint=constraint)
    with pytest.raises(ValueError, match="limits"):
        frontier(log, gamma=0.5, rho0=[1.0], limits=[np.nan])
    free = Dataset([0], [0], [0], [0.0], np.zeros((1, 0)), n_states=1, n_actions=1)
    with pytest.raises(ValueError, match="constraints"):
        frontier(free, gamma=0.5, rho0=[1.0])


def test_a_posterior_is_shared_by_all_certificates_of_a_log():
    log = one_state(50)
    certifier = Certifier.of(log, 0.5, 0.05, "normal", [1.0], None)
    assert isinstance(certifier.posterior, Posterior)
    assert certifier.certificate([[0.5, 0.5]]).behaviour is certifier.certificate([[0.7, 0.3]]).behaviour
