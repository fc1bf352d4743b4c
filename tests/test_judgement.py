"""Estimates of policies from a log: their values, their standard errors, and how they are shown."""

import numpy as np
import pytest

import logs
from dpdl import CMDP, Dataset, exact
from test_ends import GAMMA, ending_model

UNIFORM = np.full((6, 3), 1 / 3)


def fast_model(seed=0, S=6, A=3, I=2, gamma=GAMMA):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(S, 0.5), (S, A))
    return CMDP(P, rng.uniform(-1, 1, (S, A)), rng.uniform(-1, 1, (I, S, A)), gamma, rng.dirichlet(np.ones(S)))


def estimates(found):
    return np.array([(one.value, one.error) for one in (found.reward, *found.constraints)]).T


def test_estimates_are_the_values_on_the_plug_in_model():
    log = ending_model().rollout(3000, UNIFORM, rng=0)
    policy = np.random.default_rng(1).dirichlet(np.ones(3), 6)
    exactly = exact.plug_in(log, GAMMA).evaluate(policy)
    found = logs.judged(policy, log, gamma=GAMMA)
    np.testing.assert_allclose(estimates(found)[0], [exactly.reward, *exactly.utilities], rtol=1e-10)
    assert found.unseen == 0


def test_the_standard_error_of_a_bandit_is_the_textbook_one():
    rng = np.random.default_rng(0)
    c = rng.exponential(size=500)
    zeros = np.zeros(500, dtype=int)
    log = logs.from_costs(zeros, zeros, zeros, c, c, 2.0, gamma=0.5, normalised=True, n_states=1, n_actions=1,
                             )  # fmt: skip
    found = logs.judged([[1.0]], log, gamma=0.5, rho0=[1.0])
    cost = found.constraints[0]
    assert cost.value == pytest.approx(c.mean(), rel=1e-12)
    assert cost.error == pytest.approx(c.std(ddof=1) / np.sqrt(500), rel=1e-9)
    assert found.reward.value == pytest.approx(2 * c.mean(), rel=1e-12)
    assert cost.limit == 2.0
    assert cost.kept
    assert cost.is_cost


def test_counts_give_the_same_judgement():
    log = ending_model().rollout(3000, UNIFORM, rng=0)
    counted = Dataset.from_counts(**log.counts(), initial=log.initial_counts, n_states=6, n_actions=3)
    one, other = (logs.judged(UNIFORM, each, gamma=GAMMA) for each in (log, counted))
    np.testing.assert_allclose(estimates(one), estimates(other), rtol=1e-9)


def test_figures_of_the_behaviour_are_those_of_the_episodes():
    """The behaviour policy itself: its figures are close to the means over the logged episodes."""
    model = ending_model(2, share=0.8)
    log = model.rollout(60_000, UNIFORM, rng=0)
    costs = np.random.default_rng(1).uniform(0, 3, (len(log), 1))
    columns = (log.s, log.a, log.s_next, 7 * log.r, costs)
    marks = {"terminated": log.terminated, "starts": log.starts, "n_states": 6, "n_actions": 3}
    priced = logs.from_costs(*columns, 40.0, gamma=GAMMA, normalised=False, **marks)
    found = logs.judged(UNIFORM, priced, gamma=GAMMA)
    episode = np.repeat(np.arange(len(log.starts)), np.diff(np.append(log.starts, len(log))))
    step = np.arange(len(log)) - log.starts[episode]
    for figure, column in ((found.reward, 7 * log.r), (found.constraints[0], costs[:, 0])):
        discounted = np.bincount(episode, weights=GAMMA**step * column)
        assert figure.value == pytest.approx(discounted.mean(), abs=4 * discounted.std() / np.sqrt(len(log.starts)))
        assert figure.error <= 1.2 * discounted.std() / np.sqrt(len(log.starts))


def test_pairs_that_the_log_does_not_show_are_worst_case_and_told():
    log = Dataset([0, 0], [0, 0], [0, 0], [1, 1], [[1], [1]], n_states=1, n_actions=2)
    found = logs.judged([[0.5, 0.5]], log, gamma=0.5, rho0=[1.0])
    assert found.unseen == pytest.approx(0.5)
    assert found.reward.value == pytest.approx(0.0)
    assert "50.00% of the time is spent at pairs that the log does not show" in repr(found)


def test_a_pair_that_was_seen_once_counts_with_the_largest_variance():
    log = Dataset([0, 0, 0], [0, 0, 1], [0] * 3, [1.0, -1.0, 0.0], [[0]] * 3, n_states=1, n_actions=2)
    found = logs.judged([[0.0, 1.0]], log, gamma=0.5, rho0=[1.0])
    assert found.reward.error == pytest.approx(2.0)  # occupancy 2, rewards in [-1, 1]


def test_one_episode_does_not_say_where_others_begin():
    """Both states are seen twice with equal rewards, so that all doubt is about the first state."""
    log = Dataset([0, 0, 1, 1], [0] * 4, [0, 1, 1, 0], [0.0, 0.0, 1.0, 1.0], [[0]] * 4, n_states=2, n_actions=1,
                  terminated=[0, 0, 0, 1], truncated=[0] * 4)  # fmt: skip
    found, given = logs.judged([[1.0], [1.0]], log, gamma=0.9), logs.judged([[1.0], [1.0]], log, gamma=0.9, rho0=[1, 0])
    V = np.linalg.solve(np.eye(2) - 0.9 * np.array([[0.5, 0.5], [0, 0.5]]), [0, 1])
    assert found.reward.value == pytest.approx(V[0])
    assert found.reward.error**2 - given.reward.error**2 == pytest.approx((V[1] - V[0]) ** 2 / 4)


def test_broken_limits_are_told():
    log = logs.from_costs([0] * 4, [0] * 4, [0] * 4, [0] * 4, [3.0, 1, 3, 1], 1.5, gamma=0.5, normalised=True,
                             n_states=1, n_actions=1)  # fmt: skip
    found = logs.judged([[1.0]], log, gamma=0.5, rho0=[1.0])
    assert not found.kept
    assert [one.name for one in found.broken] == ["cost 0"]
    assert found.broken[0].shortfall() == ("cost 0 is estimated at 2, 0.5 above its limit of 1.5 (0.9 standard errors)")
    assert "BROKEN" in repr(found)
    assert ">BROKEN</td>" in found._repr_html_()


def coverage(model, behaviour, n_policies, n_logs, per_state, seed):
    """How often the 95% interval of each figure of each policy holds the true one."""
    rng, S, A = np.random.default_rng(seed), *model.r.shape
    policies = rng.dirichlet(np.ones(A), (n_policies, S))
    true = [model.evaluate(policy) for policy in policies]
    held = np.zeros((n_policies, 1 + model.n_utilities))
    for k in range(n_logs):
        draws = np.random.default_rng([seed, k])
        if model.ends is None:
            log = model.sample(per_state * S, np.full((S, A), 1 / (S * A)), rng=draws)
            start = {"rho0": model.rho0}
        else:
            log = model.rollout(per_state * S, behaviour, rng=draws)
            start = {}
        for row, policy, value in zip(held, policies, true, strict=True):
            estimate, error = estimates(logs.judged(policy, log, gamma=model.gamma, **start))
            row += abs(estimate - [value.reward, *value.utilities]) <= 1.959964 * error
    return held / n_logs


def test_intervals_hold_the_truth():
    """40 logs x 5 policies x 3 figures: the share is within four standard errors of 95%."""
    for model in (fast_model(1), ending_model(3, share=0.8)):
        share = coverage(model, UNIFORM, 5, 40, 200, seed=0).mean()
        assert 0.88 < share <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("per_state", [200, 1000])
@pytest.mark.parametrize("make", [lambda: fast_model(1), lambda: ending_model(3, share=0.8)], ids=["fast", "ends"])
def test_intervals_hold_the_truth_in_95_of_100_logs(make, per_state):
    """20 policies x 500 logs; the figures of one log are dependent, so that the mean over policies is judged."""
    share = coverage(make(), UNIFORM, 20, 500, per_state, seed=0)
    print(f"coverage {share.mean(axis=0).round(4).tolist()}, of single policies {share.min():.3f} to {share.max():.3f}")
    assert ((share.mean(axis=0) >= 0.93) & (share.mean(axis=0) <= 0.97)).all()


@pytest.mark.parametrize("limit", [1e-3, 0.0])
def test_one_huge_cost_does_not_make_a_broken_limit_look_kept(limit):
    # Utilities are divided by the largest cost: relative to that, 0.5 is nothing.
    a = np.arange(300) % 3
    costs = np.array([0.0, 1.0, 0.0])[a]
    costs[2] = 1e7
    log = logs.from_costs(0 * a, a, 0 * a, a, costs, limit, gamma=0.9, normalised=True, n_states=1, n_actions=3,
                             )  # fmt: skip
    cost = logs.judged([[0.5, 0.5, 0.0]], log, gamma=0.9, rho0=[1.0]).constraints[0]
    assert cost.value == pytest.approx(0.5, rel=1e-6)
    assert not cost.kept
    assert logs.judged([[1.0, 0.0, 0.0]], log, gamma=0.9, rho0=[1.0]).kept


def test_the_standard_error_of_a_cost_does_not_depend_on_its_limit():
    rng = np.random.default_rng(0)
    s, a, s_next, c = rng.integers(0, 3, 400), rng.integers(0, 2, 400), rng.integers(0, 3, 400), rng.random(400)

    def error(limit):
        log = logs.from_costs(s, a, s_next, c, c, limit, gamma=0.9, normalised=False, n_states=3, n_actions=2)
        return logs.judged(UNIFORM[:3, :2] * 1.5, log, gamma=0.9, rho0=[1 / 3] * 3).constraints[0].error

    assert error(1e9) == pytest.approx(error(1.0), rel=1e-3)


def test_names_of_costs_are_text_in_html():
    table = {"s": [0, 0], "a": [0, 1], "r": [1, 0], "<b>": [1, 0], "n": [0, 0]}
    log = logs.from_table(table, state="s", action="a", reward="r", next_state="n", costs={"<b>": 0.5},
                             limits="average", gamma=0.5)  # fmt: skip
    found = logs.judged([[0.5, 0.5]], log, gamma=0.5, rho0=[1.0])
    assert "<td>&lt;b&gt;</td>" in found._repr_html_()


def test_rounding_is_not_shown_and_small_units_are():
    """What is left of equal numbers is zero; costs of 1e-12 are costs."""
    a = np.arange(400) % 2
    rng = np.random.default_rng(0)
    for unit in (1e-12, 1.0, 1e12):
        cost = unit * a * (1 + 0.1 * rng.random(400))
        columns, ended = (0 * a, a, 0 * a, 0.1 + 0 * a, cost, 3 * unit), np.arange(400) % 5 == 0
        rule = {"gamma": 0.9, "normalised": False, "n_states": 1, "n_actions": 2}
        log = logs.from_costs(*columns, **rule, terminated=ended, truncated=[0] * 399 + [1])
        safe, other = (logs.judged([[1 - p, p]], log, gamma=0.9) for p in (0.0, 0.5))
        one = safe.constraints[0]
        assert (one.value, one.error) == (0, 0)
        one = other.constraints[0]
        assert 1 < one.value / unit < 3
        assert 0.01 < one.error / unit < 1
        assert f"{one.value:.4g}" in repr(other)


def test_figures_are_plain_numbers():
    found = logs.judged(UNIFORM, ending_model().rollout(500, UNIFORM, rng=0), gamma=GAMMA)
    for one in (found.reward, *found.constraints):
        assert {type(one.value), type(one.error)} == {float}
