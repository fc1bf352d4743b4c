"""Certificates and answers: the bound against closed forms and simulation, terms by hand, what may not matter."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import dpdl
from dpdl.question import pose
from dpdl.safety import safe
from dpdl.safety.composites import Cells, Options
from dpdl.safety.gaffke import collect, exceeds, upper_bound
from dpdl.safety.proposals import Proposer
from dpdl.safety.safe import Search
from dpdl.safety.sample import Sample
from dpdl.safety.task import make_task
from dpdl.safety.trial import Trial

# Gaffke's bound.


@pytest.mark.parametrize("n", [1, 3, 50, 10**6])
@pytest.mark.parametrize("delta", [0.4, 0.05, 1e-4])
def test_zeros_and_a_one_have_a_beta_quantile(n, delta):
    """The weight of one term of n + 1 is Beta(1, n): P(D > t) = (1 - t)^n."""
    found = upper_bound(np.array([0.0, 1.0]), np.array([n, 1.0]), delta)
    assert found == pytest.approx(-np.expm1(np.log(delta) / n), rel=1e-7)


@pytest.mark.parametrize("counts", [(2.0, 3.0), (7.0, 1.0), (40.0, 60.0)])
def test_two_values_are_a_beta_distribution(counts):
    from scipy.special import betainc

    for t in (0.1, 0.3, 0.6, 0.9):
        expected = 1 - betainc(counts[1], counts[0], t)
        assert exceeds(np.array([0.0, 1.0]), np.array(counts), t) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("n", [2, 10, 100])
@pytest.mark.parametrize("delta", [0.2, 0.05])
def test_the_bound_is_the_quantile_of_simulated_weights(n, delta):
    rng = np.random.default_rng(n)
    values = np.append(rng.exponential(size=n) - 1, 5.0)
    bound = upper_bound(values, np.ones(n + 1), delta)
    weights = rng.exponential(size=(40_000, n + 1))
    share = ((weights @ values) / weights.sum(axis=1) > bound).mean()
    assert abs(share - delta) < 5 * np.sqrt(delta / 40_000)


def test_the_bound_has_units_and_falls_with_delta():
    values, counts = np.random.default_rng(0).normal(size=300), np.ones(300)
    bounds = [upper_bound(values, counts, delta) for delta in (1e-3, 0.01, 0.05, 0.2)]
    assert bounds == sorted(bounds, reverse=True)
    assert upper_bound(1e6 * values, counts, 0.05) == pytest.approx(1e6 * bounds[2], rel=1e-7)
    assert upper_bound(values + 3, counts, 0.05) == pytest.approx(bounds[2] + 3, rel=1e-5)
    assert upper_bound(np.zeros(3), np.ones(3), 0.05) == 0


def test_collecting_keeps_the_mean_and_never_lowers_the_bound():
    values = np.random.default_rng(1).standard_t(3, size=20_000)
    nodes, shared = collect(values, np.ones(len(values)))
    assert len(nodes) <= 240
    assert shared @ nodes == pytest.approx(values.sum(), abs=1e-6)
    assert shared.sum() == pytest.approx(len(values))
    fewer, more = (upper_bound(*collect(values, np.ones(len(values)), n), 0.05) for n in (60, 240))
    assert fewer >= more > values.mean()


# Cells, halves and options.


def a_log(n=600, seed=0, *, states=4, actions=3, scale=1.0, limit=0.35, ends=False, episodes=False):
    """A random log with Bernoulli costs, posed with a limit on the average cost."""
    rng = np.random.default_rng(seed)
    model = np.random.default_rng(100)
    P = model.dirichlet(np.ones(states), (states, actions))
    p = model.uniform(0.05, 0.6, (states, actions))
    s, a = rng.integers(0, states, n), rng.integers(0, actions, n)
    if episodes:
        s[0] = 0
    following = (P[s, a].cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    ended = rng.random(n) < 0.2 if ends else None
    r, c = (0.3 * model.random((states, actions)) + p)[s, a], scale * (rng.random(n) < p[s, a])
    return s, a, following, r, c, ended, limit * scale


def posed(columns, gamma=0.9, order=None, relabel=None, counts=False):
    s, a, after, r, c, ended, limit = columns
    if order is not None:
        s, a, after, r, c = (column[order] for column in (s, a, after, r, c))
        ended = None if ended is None else ended[order]
    if relabel is not None:
        s, after = relabel[s], relabel[after]
    sizes = {"n_states": 4, "n_actions": 3}
    if counts:
        rows = np.column_stack([s, a, after, r, c] + ([] if ended is None else [ended]))
        unique, count = np.unique(rows, axis=0, return_counts=True)
        s, a, after = unique[:, :3].astype(int).T
        ends = None if ended is None else unique[:, 5].astype(bool)
        log = dpdl.Dataset.from_counts(
            s, a, after, count, unique[:, 3], costs={"cost": unique[:, 4]}, terminated=ends, **sizes
        )
    else:
        log = dpdl.Dataset(s, a, after, r, costs={"cost": c}, terminated=ended, **sizes)
    return pose(log, gamma, {"cost": limit}, "average")


START = {"rho0": [0.25] * 4}


def answer(log, **more):
    return dpdl.safe_policy(log, gamma=0.9, **START, **more)


def test_halves_share_the_rows_of_every_pair_and_of_every_state():
    cells = make_task(posed(a_log(501)), 0.9, 0.05, **START).cells
    first, second = cells.halves()
    assert (first.count + second.count == cells.count).all()
    assert (first.count >= 0).all()
    by_pair = [np.bincount(cells.place, half.count) for half in (first, second)]
    assert abs(by_pair[0] - by_pair[1]).max() <= 1
    by_state = [np.bincount(cells.pair // 3, half.count) for half in (first, second)]
    assert abs(by_state[0] - by_state[1]).max() <= 1


def test_dealing_is_hypergeometric():
    """Two cells of one pair, 6 and 4 rows, five of which are dealt: the mean is 3, the variance 6*4*5*5/(100*9)."""
    found = []
    for k in range(3000):
        # A second pair with k rows makes another log, and another seed.
        values = np.array([[0.0], [1.0], [0.0]])
        cells = Cells(np.array([0, 0, 1]), np.zeros(3, int), values, np.array([6, 4, 2 * k + 2]), None, np.ones(1), 2)
        found.append(cells.halves()[0].count[0])
    assert np.mean(found) == pytest.approx(3, abs=0.08)
    assert np.var(found) == pytest.approx(6 * 4 * 5 * 5 / (100 * 9), rel=0.1)


def test_options_are_actions_composites_and_as_logged():
    """State 0: 12, 3 and 2 rows; state 1: 12 rows of one action; state 2: 3 rows; n_min = 5."""
    pair = np.repeat([0, 1, 2, 3, 6], [12, 3, 2, 12, 3])
    n = len(pair)
    cells = Cells.collect(pair, np.full(n, -1), np.zeros((n, 2)), np.ones(n, int), None, np.full(3, 1 / 3), 3)
    options = Options.build(cells, 5)
    assert options.known.tolist() == [0, 1]
    assert options.state.tolist() == [0, 0, 0, 1]
    assert options.own.tolist() == [0, 1, 1, 3, -1]
    assert options.logged.tolist() == [2, 2, 2, -1, -1]
    assert options.as_logged.tolist() == [0, 0, 1, 1]
    assert options.share.toarray()[1].tolist() == [0, 0.6, 0.4, 0, 0]


# Values and terms, by a second computation row by row.


@pytest.mark.parametrize("by_planner", [False, True])
def test_proposals_do_not_depend_on_the_rows_that_test_them(by_planner, monkeypatch):
    if by_planner:
        monkeypatch.setattr("dpdl.safety.proposals.PROGRAM_OPTIONS", 0)
    task = make_task(posed(a_log()), 0.9, 0.05, [0.25] * 4)
    first, second, whole = Search(task).samples
    rng = np.random.default_rng(0)
    policies = []
    for shift in (0.0, 0.3):  # outcomes of the second half and of the whole log change, counts do not
        values = second.cells.values + shift * rng.random(second.cells.values.shape)
        others = (Sample(replace(part.cells, values=values), part.options, 0.9) for part in (second, whole))
        search = Search(task)
        search.__dict__["samples"] = (first, *others)
        own, other = (list(proposer.run()) for proposer in search.proposers)
        policies.append((own, other))
    (own, other), (own_again, other_again) = policies
    assert [proposal.part for proposal in own] == [proposal.part for proposal in own_again]
    for proposal, again in zip(own, own_again, strict=True):
        assert_array_equal(proposal.policy, again.policy)
    assert any((a.policy != b.policy).any() for a, b in zip(other, other_again, strict=False))


def test_large_plans_do_as_the_log_did_where_rows_are_few():
    search = Search(make_task(posed(a_log()), 0.9, 0.05, [0.25] * 4))
    options, proposer = search.samples[2].options, search.proposers[0]
    policy = np.random.default_rng(1).dirichlet(np.ones(len(options.state)))
    policy /= np.bincount(options.state, policy)[options.state]
    mixed, logged = proposer._mixed(policy, 3.0), options.as_logged > 0
    assert np.bincount(options.state, mixed) == pytest.approx(1)
    n = proposer.sample.n
    assert mixed[~logged] == pytest.approx((policy * n / (n + 3))[~logged])
    assert_array_equal(proposer._mixed(policy, 0.0), policy)


def test_values_and_terms_agree_with_sums_over_rows():
    columns = a_log(400, 3, ends=True)
    task = make_task(posed(columns), 0.9, 0.05, **START)
    s, a, after, r, c, ended, _ = columns
    sample = Sample(task.cells, Options.build(task.cells, 1, composites=False), 0.9)
    policy = np.random.default_rng(5).dirichlet(np.ones(3), 4)
    value = sample.evaluate(policy.ravel())
    pair, P, mean, n = s * 3 + a, np.zeros((12, 4)), np.zeros((12, 2)), np.bincount(s * 3 + a, minlength=12)
    np.add.at(P, (pair[~ended], after[~ended]), 1 / n[pair[~ended]])
    np.add.at(mean, pair, np.column_stack([-r, c]) / n[pair, None])
    kernel, step = (
        np.einsum("sa,sat->st", policy, P.reshape(4, 3, 4)),
        np.einsum("sa,sai->si", policy, mean.reshape(4, 3, 2)),
    )
    V = np.linalg.solve(np.eye(4) - 0.9 * kernel, step)
    visits = np.linalg.solve(np.eye(4) - 0.9 * kernel.T, np.full(4, 0.25))[:, None] * policy
    np.testing.assert_allclose(value.V, V, rtol=1e-9)
    np.testing.assert_allclose(value.J, V.mean(axis=0), rtol=1e-9)
    y = np.column_stack([-r, c]) + 0.9 * np.where(ended[:, None], 0, V[after])
    weight = visits.ravel()[pair] / (n[pair] - 1)
    x = weight[:, None] * (y - (mean + 0.9 * P @ V)[pair])
    trial = Trial(task, (sample,), (policy.ravel(),))
    assert trial.error == pytest.approx(np.sqrt((x**2).sum(axis=0)), rel=1e-9)
    Q, largest = (mean + 0.9 * P @ V)[:, 1], (y - (mean + 0.9 * P @ V)[pair])[:, 1].max()
    worst = len(s) * (weight * np.minimum(largest, y[:, 1].max() - Q[pair])).max()
    bound = upper_bound(np.append(len(s) * x[:, 1], worst), np.ones(len(s) + 1), 0.05)
    assert trial.width(1, 0.05) == pytest.approx(bound, rel=1e-6)


# What may not matter, and what must.


@pytest.mark.parametrize("seed", range(2))
def test_units_order_and_counts_do_not_matter(seed):
    columns = a_log(700, seed, ends=seed % 2 == 1)
    first = answer(posed(columns))
    shuffled = answer(posed(columns, order=np.random.default_rng(1).permutation(700)))
    counted = answer(posed(columns, counts=True))
    for other in (shuffled, counted):
        assert other.status is first.status
        assert other.certificate.constraints == first.certificate.constraints
        assert other.certificate.reward == first.certificate.reward
        assert (other.policy is None) == (first.policy is None)
    scaled = answer(posed((*columns[:4], 1000 * columns[4], columns[5], 1000 * columns[6])))
    assert scaled.status is first.status
    assert scaled.certificate.constraints[0].bound == pytest.approx(1000 * first.certificate.constraints[0].bound)


@pytest.mark.parametrize("n_logs", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_renamed_labels_do_not_matter(n_logs):
    """The hash that seeds the halves knows a state by its rows: thin and rich logs, of which some are refused."""
    statuses = []
    for seed in range(n_logs):
        columns = a_log(60 + 160 * (seed % 6), seed)
        first = answer(posed(columns))
        renamed = np.random.default_rng(seed).permutation(4)
        other = answer(posed(columns, relabel=renamed))
        assert other.status is first.status
        bounds = [certified.certificate.constraints[0].bound for certified in (first, other)]
        assert bounds[1] == pytest.approx(bounds[0], rel=1e-6)
        statuses.append(first.status.name)
    assert len(set(statuses)) > 1


def test_limits_by_the_log():
    """A log is no worse than itself; what is certified to be no worse is, and limits of both kinds hold together."""
    s, a, after, r, c, _, limit = a_log(1500, 4)
    log = dpdl.Dataset(s, a, after, r, costs={"cost": c}, n_states=4, n_actions=3)
    logged = np.zeros((4, 3))
    np.add.at(logged, (s, a), 1)
    logged /= logged.sum(axis=1, keepdims=True)
    limits = {"reward": ">= log", "cost": "<= log"}
    same = dpdl.certify(logged, log, gamma=0.9, limits=limits, **START)
    assert same.holds
    assert [bound.bound for bound in same.constraints] == pytest.approx([0, 0], abs=1e-9)
    assert not dpdl.certify(np.eye(3)[[0, 0, 0, 0]], log, gamma=0.9, limits=limits, **START).holds
    found = dpdl.safe_policy(log, gamma=0.9, limits=limits, **START)
    assert found.success
    assert found.certificate.reward.estimate >= found.certificate.behaviour.estimate * (1 - 1e-9)
    more = dpdl.safe_policy(log, gamma=0.9, limits={"reward": ">= log"}, limit_on="total", **START)
    assert more.certificate.constraints[0].bound > 0
    average = dpdl.safe_policy(log, gamma=0.9, limits={"reward": ">= log"}, limit_on="average", **START)
    figures = [found.certificate.constraints[0] for found in (more, average)]
    assert [bound.is_average for bound in figures] == [False, True]
    assert figures[1].bound == pytest.approx(0.1 * figures[0].bound)
    with pytest.raises(ValueError, match="limit_on must be one of 'total', 'average', got 'mean'"):
        dpdl.safe_policy(log, gamma=0.9, limits={"reward": ">= log"}, limit_on="mean", **START)
    both = dpdl.safe_policy(log, gamma=0.9, limits={"cost": limit, "reward": ">= log"}, limit_on="average", **START)
    assert [bound.name for bound in both.certificate.constraints] == ["cost", "reward beyond the log's"]
    with pytest.raises(ValueError, match="limits\\['cost'\\] must be a number or '<= log', got '>= log'"):
        dpdl.safe_policy(log, gamma=0.9, limits={"cost": ">= log"}, **START)
    with pytest.raises(ValueError, match="no cost 'price'"):
        dpdl.safe_policy(log, gamma=0.9, limits={"price": "<= log"}, **START)
    with pytest.raises(ValueError, match="varies a limit that is a number"):
        dpdl.frontier(log, gamma=0.9, limits={"reward": ">= log"}, **START)


def test_bounds_by_the_log_hold():
    """Of 300 logs of ten pairs alike, at most 5% show that a policy is better than the log, within sampling error."""
    failed = 0
    for k in range(300):
        rng = np.random.default_rng(k)
        s, a = np.divmod(np.repeat(np.arange(10), rng.integers(3, 30, 10)), 2)
        c = (rng.random(len(s)) < 0.2) * 1.0
        ends = np.ones(len(s), bool)
        log = dpdl.Dataset(s, a, 0 * s, 0.0 * s, costs={"c": c}, terminated=ends, n_states=5, n_actions=2)
        policy = rng.dirichlet(np.ones(2), 5)
        question = {"gamma": 0.9, "limits": {"c": "<= log"}, "rho0": np.full(5, 0.2)}
        failed += dpdl.certify(policy, log, **question).constraints[0].bound < 0
    assert failed <= 0.05 * 300 + 2 * np.sqrt(0.05 * 300)


def test_a_smaller_delta_has_a_larger_bound():
    task = make_task(posed(a_log(600)), 0.9, 0.05, **START)
    policy = np.full((4, 3), 1 / 3)
    bounds = [
        dpdl.certify(policy, posed(a_log(600)), gamma=0.9, delta=d, **START).constraints[0].bound
        for d in (0.01, 0.05, 0.2)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert task.cells.n_rows == 600


def test_quiet_rows_elsewhere_give_no_confidence():
    """Eight treatments with five rows each, and 50 or 5,000 rows of a state that no policy enters."""

    def bound(quiet):
        rng = np.random.default_rng(7)
        s = np.repeat([0, 1], [40, quiet])
        a = np.append(np.tile(np.arange(8), 5), np.zeros(quiet, int))
        c = np.append(rng.random(40) < 0.15, np.zeros(quiet)).astype(float)
        log = dpdl.Dataset(
            s, a, 0 * s, 0.0 * s, costs={"c": c}, terminated=np.ones(len(s), bool), n_states=2, n_actions=8
        )
        policy = np.full((2, 8), 1 / 8)
        found = dpdl.certify(policy, pose(log, 0.9, {"c": 0.08}, "total"), gamma=0.9, rho0=[1, 0])
        return found.constraints[0].bound

    assert bound(5000) == pytest.approx(bound(50), rel=0.03)


def test_a_log_without_costs_is_refused_unless_the_cost_is_declared():
    s, a, after, r, c, ended, _ = a_log(2000)
    log = posed((s, a, after, r, 0 * c, ended, 0.35))
    refused = answer(log)
    assert (refused.status.name, refused.needed.binds) == ("NOT_ENOUGH_DATA", "nothing seen")
    assert not dpdl.certify(np.full((4, 3), 1 / 3), log, gamma=0.9, **START).holds
    assert answer(log, cost_max={"cost": 1.0}).status.name == "CERTIFIED"


def test_a_declared_cost_is_at_least_as_careful_as_what_was_seen():
    policy, log = np.full((4, 3), 1 / 3), posed(a_log(300))
    plain, more = (
        dpdl.certify(policy, log, gamma=0.9, cost_max=most, **START).constraints[0].bound
        for most in (None, {"cost": 5.0})
    )
    assert more > plain
    with pytest.raises(ValueError, match="cost_max names 'price'"):
        dpdl.certify(policy, log, gamma=0.9, cost_max={"price": 1.0}, **START)


def test_the_three_answers():
    columns = a_log(2000)
    certified = answer(posed(columns))
    assert certified.success
    assert certified.certificate.holds
    assert certified.certificate.remarks[0].startswith("assumed: the rows come from one decision process")
    assert np.asarray(certified.policy).sum(axis=1) == pytest.approx(np.ones(4))
    infeasible = answer(posed((*columns[:6], 0.02)))
    assert infeasible.status.name == "INFEASIBLE"
    assert infeasible.policy is None
    little = answer(posed((*a_log(150)[:6], 0.19)))
    assert little.status.name == "NOT_ENOUGH_DATA"
    assert little.needed.binds in ("noise", "worst row")
    assert little.needed.n_transitions is None or little.needed.n_transitions >= 150
    assert repr(little).startswith("NOT ENOUGH DATA: the log does not show that any policy keeps cost within its limit")
    state, action, count, _ = little.needed.where[0]
    assert f"at {state}, {action}, which was seen {count} times" in little.message


def one_decision(rare, n, cost_max=None):
    """A state with an action that is seen `n` times and costs 1 with probability .6, and one seen `rare` times, .1."""
    a, rng = np.repeat([0, 1], [n, rare]), np.random.default_rng(1)
    c = np.where(a == 1, np.arange(n + rare) % 10 == 0, rng.random(n + rare) < 0.6).astype(float)
    log = dpdl.Dataset(0 * a, a, 0 * a, 1.0 - a, costs={"c": c}, terminated=a >= 0, n_states=1, n_actions=2)
    question = {"gamma": 0.9, "limits": {"c": 0.25}, "limit_on": "total", "rho0": [1.0]}
    return dpdl.safe_policy(log, **question, cost_max=cost_max)


def test_the_worst_row_is_that_of_the_pair_that_was_hardly_seen():
    found = one_decision(10, 300)
    assert (found.status.name, found.needed.binds) == ("NOT_ENOUGH_DATA", "worst row")
    assert found.needed.where[0][:3] == ("0", "1", 10)
    assert "what binds is the worst row that was not seen" in found.message
    assert one_decision(200, 300).success
    declared = one_decision(200, 300, {"c": 50.0})
    assert declared.needed.binds == "worst row"
    assert "the declared cost_max of 50 decides that: 1, the largest in the log, would do" in declared.message


def test_first_states_bind_where_few_episodes_show_them():
    """Two kinds of episodes that each cost the same at every step: nothing but where they begin is uncertain."""
    s = np.repeat([0, 0, 0, 0, 1] * 3, 10)
    ends = np.tile(np.arange(10) == 9, 15)
    log = dpdl.Dataset(
        s, 0 * s, s, 0.0 * s, costs={"c": 1.0 * s}, terminated=ends, truncated=0 * s > 0, n_states=2, n_actions=1
    )
    found = dpdl.safe_policy(log, gamma=0.9, limits={"c": 2.5}, limit_on="total", accept_misfit=True)
    assert (found.status.name, found.needed.binds) == ("NOT_ENOUGH_DATA", "first states")
    assert found.needed.n_episodes > 15
    assert f"about {found.needed.n_episodes:,} episodes would do" in found.message


def test_an_answer_survives_its_file(tmp_path):
    for columns in (a_log(2000), (*a_log(150)[:6], 0.19)):
        found = answer(posed(columns))
        found.save(tmp_path / "answer.json", overwrite=True)
        again = dpdl.Answer.load(tmp_path / "answer.json")
        assert repr(again) == repr(found)
        assert again.certificate == found.certificate
    (tmp_path / "answer.json").write_text((tmp_path / "answer.json").read_text().replace("needed", "wanted"))
    with pytest.raises(ValueError, match="checksum"):
        dpdl.Answer.load(tmp_path / "answer.json")


def test_a_log_that_keeps_its_limits_gets_an_answer_at_least_as_good():
    found = answer(posed((*a_log(3000, 2)[:6], 0.6)))
    assert found.success
    assert found.certificate.reward.estimate >= found.certificate.behaviour.estimate * (1 - 1e-9)


def test_no_time_is_said_as_that():
    found = answer(posed(a_log(400)), time_limit=1e-9)
    assert found.status.name == "STOPPED"
    assert found.message.startswith("time ran out")
    assert found.certificate is None
    assert repr(found).startswith("STOPPED BEFORE AN ANSWER: time ran out")
    assert dpdl.Answer.from_json(found.to_json()) == found


@pytest.mark.parametrize("late", [1, 2, 4])
def test_what_passed_before_time_ran_out_is_the_answer(late, monkeypatch):
    """Time runs out in the evaluation of a later proposal: those before it count, and the message says so."""
    log, evaluate, calls = posed(a_log(2000)), Sample.evaluate, []
    complete = answer(log)
    tested = []

    def counted(self, policy):
        calls.append(policy)
        if len(tested) >= late:
            raise TimeoutError
        return evaluate(self, policy)

    def keeps(trial, i, keeps=safe.keeps):
        tested.append(keeps(trial, i))
        return tested[-1]

    def answered(self, answered=safe.Search.answer):
        monkeypatch.undo()
        return answered(self)

    monkeypatch.setattr(Sample, "evaluate", counted)
    monkeypatch.setattr(safe, "keeps", keeps)
    monkeypatch.setattr(safe.Search, "answer", answered)
    found = answer(log)
    assert found.success
    assert found.n_tested == late < complete.n_tested
    assert "time ran out before bolder policies were tested" in found.message
    assert found.certificate.reward.estimate <= complete.certificate.reward.estimate


def test_a_time_limit_holds_on_a_large_log():
    """3 x 10^4 pairs; a second for what is not interrupted, and as much again for a busy machine."""
    rng, S, A, n = np.random.default_rng(0), 10_000, 3, 200_000
    s, a, after = rng.integers(0, S, n), rng.integers(0, A, n), rng.integers(0, S, n)
    costs = {"cost": (rng.random(n) < 0.2) * 1.0}
    log = dpdl.Dataset(s, a, after, rng.random(n), costs=costs, n_states=S, n_actions=A)
    question = {"gamma": 0.99, "limits": {"cost": 0.25}, "limit_on": "average", "rho0": np.full(S, 1 / S)}
    began = time.monotonic()
    found = dpdl.safe_policy(log, **question, time_limit=0.5, progress=False)
    assert time.monotonic() - began < 0.5 + 2
    assert "time ran out" in found.message
    assert found.status.name in ("STOPPED", "CERTIFIED")


@pytest.mark.parametrize("seed", range(2))
def test_a_frontier_never_falls_has_no_holes_and_is_never_below_a_certified_point(seed):
    found = dpdl.frontier(posed(a_log(2000, seed)), gamma=0.9, **START)
    rewards = [point.reward for point in found.points]
    certified = [point.certified for point in found.points if point.certified is not None]
    assert None not in rewards
    assert rewards == sorted(rewards)
    assert certified == sorted(certified)
    assert len(certified) >= 4
    assert [point.certified for point in found.points[-len(certified) :]] == certified
    assert all(point.certified is None or point.reward >= point.certified for point in found.points)
    prices = [point.price for point in found.points]  # the plug-in optimum is concave in the limit
    assert all(later <= price * (1 + 0.01) + 0.01 for price, later in pairwise(prices))


def test_ctrl_c_ends_a_frontier(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Proposer, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dpdl.frontier(posed(a_log(300)), gamma=0.9, **START)


def test_first_states_of_few_episodes_widen_the_bound():
    """The same rows, with the first states given, and as those of three episodes."""
    rng, n = np.random.default_rng(0), 300
    s = rng.integers(0, 2, n)
    c = (s == 1) * 1.0
    log = dpdl.Dataset(s, 0 * s, 0 * s, 0.0 * s, costs={"c": c}, terminated=np.ones(n, bool), n_states=2, n_actions=1)
    log = pose(log, 0.9, {"c": 0.8}, "total")
    given = dpdl.certify([[1.0], [1.0]], log, gamma=0.9, rho0=[0.5, 0.5]).constraints[0]
    few = dpdl.certify([[1.0], [1.0]], log, gamma=0.9, initial_states=[0, 1, 0, 1]).constraints[0]
    assert given.bound == pytest.approx(0.5)
    assert few.bound > 0.75


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 10])
def test_bounds_of_given_policies_hold(rows):
    """Of 400 logs and 5 policies each, at most 5% of the bounds lie below the truth, within sampling error."""
    failed = total = 0
    for k in range(400):
        rng = np.random.default_rng([k, rows])
        p = rng.uniform(0.05, 0.5, (10, 4))
        s, a = np.divmod(np.repeat(np.arange(40), rows), 4)
        c = (rng.random(len(s)) < p[s, a]) * 1.0
        log = dpdl.Dataset(
            s, a, 0 * s, 0.0 * s, costs={"c": c}, terminated=np.ones(len(s), bool), n_states=10, n_actions=4
        )
        log = pose(log, 0.9, {"c": 1.0}, "total")
        for _ in range(5):
            policy = rng.dirichlet(np.ones(4), 10)
            bound = dpdl.certify(policy, log, gamma=0.9, rho0=np.full(10, 0.1)).constraints[0].bound
            failed, total = failed + (bound < 0.1 * (policy * p).sum()), total + 1
    assert failed <= 0.05 * total + 2 * np.sqrt(0.05 * total)
