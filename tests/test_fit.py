"""check_model: the statistic against its definition, false alarms, what is found, and what certificates make of it."""

import json
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

# At the end: bench has a `problems` of its own, which must not hide that of the tests.
sys.path.append(str(Path(__file__).parent.parent / "bench"))

import dpdl
import fit_worlds as worlds
from dpdl import Dataset, check_model
from dpdl.report import report_html
from dpdl.safety.episodes import own_totals, steps
from dpdl.safety.fit import ModelCheck
from dpdl.safety.residuals import both_halves, units

GAMMA = worlds.GAMMA


def drawn(kind, n, seed=0, n_states=20):
    """A log of `n` episodes of a random world, and a policy in question."""
    rng = np.random.default_rng(seed)
    log, _, policy = worlds.World(n_states, kind, rng).drawn(n, rng)
    return log, policy


def again(log, **changes):
    """The log with some of its columns changed."""
    last = np.zeros(len(log), bool)
    last[np.append(log.starts[1:], len(log)) - 1] = True
    columns = {
        "s": log.s,
        "a": log.a,
        "s_next": np.maximum(log.s_next, 0),
        "r": log.r,
        "costs": dict(log.costs),
        "terminated": log.terminated,
        "truncated": last & ~log.terminated,
        "n_states": log.n_states,
        "n_actions": log.n_actions,
    }
    return Dataset(**columns | changes)


def by_name(found, policy="log", step=False):
    return {(test.signal, test.history): test for test in found.tests if (test.policy, test.step) == (policy, step)}


# The statistic.


@pytest.mark.parametrize("weighted", [False, True])
def test_the_statistic_is_the_sum_over_rows_of_different_episodes(weighted):
    log, policy = drawn("none", 12)
    rows = steps(log)
    half = both_halves(rows, units(rows), GAMMA)[1]
    if weighted:
        half = half.with_values(policy.ravel()[rows.pairs], GAMMA)
        assert np.ptp(half.model.weight) > 0.1
    rng = np.random.default_rng(1)
    y, h = rng.normal(size=(2, len(half.mine)))
    T, own, variance = half.statistic(half.centred(y), half.centred(h))
    by_model = 0.0
    expected, by_unit = 0.0, np.zeros(len(own))
    pair, unit = rows.pair[half.mine], units(rows)[half.mine] // 2
    for k in np.unique(pair):
        at = np.flatnonzero(pair == k)
        w = half.model.weight[k] / len(at)
        products = {(i, j): w * (y[i] - y[j]) * (h[i] - h[j]) for i, j in combinations(at, 2) if unit[i] != unit[j]}
        total = sum(products.values())
        expected += total
        if len(np.unique(unit[at])) > 1:
            by_model += half.model.weight[k] ** 2 * np.var(y[at], ddof=1) * np.var(h[at]) * len(at)
        for e in np.unique(unit[at]):
            m = (unit[at] == e).sum()
            if m < len(at):
                mine = sum(value for (i, j), value in products.items() if e in (unit[i], unit[j]))
                by_unit[e] += (mine - total * m / len(at)) * np.sqrt(len(at) / (len(at) - m))
    np.testing.assert_allclose(T, expected, rtol=1e-9)
    np.testing.assert_allclose(variance, by_model, rtol=1e-9)
    np.testing.assert_allclose(own, by_unit, rtol=1e-9, atol=1e-12)


def test_the_next_state_is_tested_as_the_sum_over_its_indicators():
    """For each state, an indicator and what the other half shows of it after the same two pairs are a y and an h."""
    log, policy = drawn("lumped", 12)
    rows = steps(log)
    before = np.append(-1, rows.pair[:-1])
    before[rows.starts] = -1
    for half in both_halves(rows, units(rows), GAMMA):
        half = half.with_values(policy.ravel()[rows.pairs], GAMMA)
        shown = {}
        for i in half.rest:
            shown.setdefault((before[i], rows.pair[i]), []).append(rows.next_state[i])
        T, own, variance = 0.0, 0.0, 0.0
        h_of, pair = [], rows.pair[half.mine]
        for s in range(-1, rows.n_states + 1):
            y = (rows.next_state[half.mine] == s).astype(float)
            seen = (shown.get((before[i], rows.pair[i]), []) for i in half.mine)
            h = np.array([states.count(s) / (len(states) + 5) for states in seen])
            parts = half.statistic(half.centred(y), half.centred(h))
            T, own = T + parts[0], own + parts[1]
            h_of.append(half.centred(h).rest)
        outcome, d = rows.next_state[half.mine], np.array(h_of).T
        for k in np.unique(pair):
            at = np.flatnonzero(pair == k)
            p = np.bincount(outcome[at] + 1, minlength=rows.n_states + 2) / len(at)
            if len(np.unique(units(rows)[half.mine][at])) > 1:
                covariance = np.diag(p) - np.outer(p, p)
                factor = half.model.weight[k] ** 2 * len(at) / (len(at) - 1)
                variance += factor * np.einsum("ni,ij,nj", d[at], covariance, d[at])
        found = half.between_units(*half.next_state, half.next_state_variance)
        np.testing.assert_allclose(found[2], variance, rtol=1e-9)
        assert abs(T) > 0.01
        np.testing.assert_allclose(found[0], T, rtol=1e-9)
        np.testing.assert_allclose(found[1], own, rtol=1e-9, atol=1e-12)


def test_histories_know_nothing_of_the_row_itself_or_of_later_ones():
    log, _ = drawn("none", 12)
    changed = int(np.flatnonzero(steps(log).time >= 3)[20])
    rows = [steps(each) for each in (log, again(log, r=np.append(log.r[:changed], log.r[changed:][::-1])))]
    which = int(rows[0].episode[changed]) % 2
    halves = [both_halves(each, units(each), GAMMA)[which] for each in rows]
    before = (halves[0].mine <= changed) & (rows[0].episode[halves[0].mine] == rows[0].episode[changed])
    assert before.sum() > 1
    for half in halves:  # values come from the other half, in which rows changed as well
        half.model = halves[0].model
    first, second = ({name: h.values for name, h in half.histories(half.residuals(0))} for half in halves)
    for name in ("previous residual", "episode so far"):
        np.testing.assert_allclose(first[name][before], second[name][before], atol=1e-12)
    for name in ("time", "discount", "actions so far"):
        np.testing.assert_array_equal(first[name][before], second[name][before])


@pytest.mark.parametrize("n_states", [3, 10])
def test_rare_events_are_no_misfit(n_states):
    """Where costs and slips are rare and hardly ever coincide, squares by episode are far below the variance."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        log, gamma, policy = worlds.World(n_states, "none", rng, slips=0.005).drawn(1000, rng)
        result = check_model(log, gamma=gamma, policy=policy)
        assert result.tests
        assert not result.rejected, result


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e160, 1e300])
def test_no_unit_is_too_large_or_too_small(unit):
    log, _ = drawn("type", 100)
    result, scaled = (check_model(each, gamma=GAMMA) for each in (log, again(log, r=unit * log.r)))
    assert result.rejected
    np.testing.assert_allclose([test.z for test in scaled.tests], [test.z for test in result.tests], atol=1e-6)
    json.dumps(scaled.to_json(), allow_nan=False)


def test_what_cannot_be_compared_is_not_tested():
    n = 300
    alone = Dataset(np.zeros(n), np.arange(n) % 2, np.zeros(n), np.random.default_rng(0).random(n), n_states=1,
                    n_actions=2, terminated=np.ones(n, bool), truncated=np.zeros(n, bool))  # fmt: skip
    assert check_model(alone, gamma=GAMMA).status == "not tested"
    short, _ = drawn("type", 8)
    assert len(short) < 200
    assert check_model(short, gamma=GAMMA).status == "not tested"


def test_units_of_reward_and_cost_do_not_matter():
    log, policy = drawn("type", 100)
    found = check_model(log, gamma=GAMMA, policy=policy)
    scaled = again(log, r=1000 * log.r, costs={name: 1e-3 * column for name, column in log.costs.items()})
    other = check_model(scaled, gamma=GAMMA, policy=policy)
    np.testing.assert_allclose([test.z for test in found.tests], [test.z for test in other.tests], rtol=1e-6, atol=1e-9)


def test_names_of_states_do_not_matter():
    log, policy = drawn("lumped", 100)
    new = np.random.default_rng(0).permutation(log.n_states)
    other = again(log, s=new[log.s], s_next=new[np.maximum(log.s_next, 0)])
    z, again_z = (
        [test.z for test in check_model(each, gamma=GAMMA, policy=table).tests]
        for each, table in ((log, policy), (other, policy[np.argsort(new)]))
    )
    np.testing.assert_allclose(z, again_z, rtol=1e-6, atol=1e-8)


def test_what_the_pair_decides_is_not_tested():
    n = 400
    s, last = np.arange(n) % 4, np.arange(n) % 4 == 3
    log = Dataset(s, 0 * s, (s + 1) % 4, s, n_states=4, n_actions=1, terminated=last, truncated=0 * last.astype(bool))
    found = check_model(log, gamma=0.9)
    assert (found.status, found.tests) == ("not tested", ())


# False alarms and power; bench/fit.py counts them on many more logs.


@pytest.mark.parametrize(
    ("n_states", "episodes", "logs"),
    [(20, 50, 20), (300, 50, 20), pytest.param(1000, 200, 100, marks=pytest.mark.slow)],
)
def test_logs_of_decision_processes_pass(n_states, episodes, logs):
    """At level 1%, more than 1 of 20 logs or 4 of 100 are rejected with probability 2% or less."""
    cases = (drawn("none", episodes, seed, n_states) for seed in range(logs))
    found = [check_model(log, gamma=GAMMA, policy=policy) for log, policy in cases]
    assert sum(each.rejected for each in found) <= max(1, logs // 25)
    z = np.array([[test.z for test in each.tests] for each in found])
    assert z.shape == (logs, 12 + 1 + 12 + 1 + 12 - 6)  # the reward of a step is that of its pair
    assert 0.7 < z.std() < 1.15
    assert abs(z.mean(axis=0)).max() < 4 / np.sqrt(logs)


@pytest.mark.parametrize(("kind", "n", "history"), [
    ("clock", 100, "time"), ("type", 300, "episode so far"), ("confounder", 300, "episode so far"),
    ("lumped", 200, "previous pair")])  # fmt: skip
def test_what_a_log_lacks_is_found_and_named(kind, n, history):
    """Every log is rejected and its history among the advice; it comes first in most."""
    first = 0
    for seed in range(5):
        log, policy = drawn(kind, n, seed)
        found = check_model(log, gamma=GAMMA, policy=policy)
        worst = max(found.tests, key=lambda test: abs(test.z))
        assert found.rejected
        assert abs(worst.z) > found.threshold
        assert any(line.startswith(f"{history}: ") for line in found.advice)
        assert found.advice[0].startswith(f"{worst.history}: ")
        assert worst.history in found.message
        first += worst.history == history
    assert first >= 3


def test_the_advice_helps():
    """Days that end by the clock fit with the day in the state, and if their last rows are marked truncated.

    Two of five such logs are rejected with a probability of 0.1%.
    """
    rejected = np.zeros(3, int)
    sizes = {"n_states": 20, "n_actions": 3}
    for seed in range(5):
        rng = np.random.default_rng(seed)
        s, a, s_next, r, costs, ended, cut = worlds.World(20, "clock", rng).follow(200, rng)
        more = {"costs": {"cost": costs[0]}, "terminated": ended, "truncated": cut}
        log, stops = (Dataset(s, a, s_next, r, **sizes, **more | flags)
                      for flags in ({}, {"terminated": cut, "truncated": ended}))  # fmt: skip
        time = steps(log).time
        with_time = again(log, s=20 * s + time, s_next=20 * s_next + (time + 1) % 20, n_states=400)
        rejected += [check_model(each, gamma=GAMMA).rejected for each in (log, with_time, stops)]
    assert rejected[0] == 5
    assert max(rejected[1:]) <= 1


def test_a_policy_is_tested_where_it_goes():
    """Action 1 of the first state leads to a wheel with a hidden speed, action 0 to a coin."""
    rng, parts = np.random.default_rng(0), []
    for _ in range(400):
        a, speed = int(rng.integers(2)), rng.random() < 0.5
        r = rng.random(8) + (2.0 * speed if a else 0)
        parts.append((np.r_[0, np.full(7, 1 + a)], np.r_[a, np.zeros(7, int)], np.full(8, 1 + a), np.r_[0, r[1:]]))
    s, a, s_next, r = (np.concatenate(column) for column in zip(*parts, strict=True))
    last = np.tile(np.arange(8) == 7, 400)
    log = Dataset(s, a, s_next, r, n_states=3, n_actions=2, terminated=0 * last.astype(bool), truncated=last)
    found = check_model(log, gamma=0.9, policy=[[1, 0], [1, 0], [1, 0]])
    assert by_name(found)["reward", "episode so far"].rejected
    assert not any(test.rejected for test in by_name(found, "in question").values())
    assert any(test.rejected for test in check_model(log, gamma=0.9, policy=[[0, 1], [1, 0], [1, 0]]).tests
               if test.policy == "in question")  # fmt: skip


def test_one_long_trajectory_is_tested_in_pieces():
    cmdp = dpdl.instances.garnet(20, 3, 1, rng=0)
    log = cmdp.rollout(4000, np.full((20, 3), 1 / 3), rng=1)
    assert log.kind == "trajectory"
    found = check_model(log, gamma=0.9)
    assert found.status == "fits"
    assert len(found.tests) >= 6
    slow = np.sin(np.arange(4000) / 300)  # something that lasts and is in no state
    drifting = Dataset(log.s, log.a, log.s_next, log.r + slow, n_states=20, n_actions=3, starts=[0])
    assert check_model(drifting, gamma=0.9).rejected


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n", "least"), [("clock", 100, 20), ("type", 100, 20), ("confounder", 200, 20),
                                                  ("lumped", 100, 18), ("none", 500, 0)])  # fmt: skip
def test_power_by_family(kind, n, least):
    found = sum(check_model(log, gamma=GAMMA, policy=policy).rejected
                for log, policy in (drawn(kind, n, seed) for seed in range(20)))  # fmt: skip
    assert found >= least
    assert kind != "none" or found <= 2


# What stands beside the tests.


def test_own_totals_come_from_the_rows():
    log, _ = drawn("none", 30)
    rows = steps(log)
    for own, name in zip(own_totals(rows, 0.9), ("reward", "cost 0"), strict=True):
        column = log.r if name == "reward" else log.costs["cost 0"]
        parts = np.split(column, log.starts[1:])
        discounted = [(part * 0.9 ** np.arange(len(part))).sum() for part in parts]
        assert own.name == name
        assert own.discounted == pytest.approx(np.mean(discounted))
        assert own.discounted_error == pytest.approx(np.std(discounted, ddof=1) / np.sqrt(30))
        assert own.total == pytest.approx(np.mean([part.sum() for part in parts]))
        assert own.discounted <= own.total
        assert (own.episodes, own.truncated) == (30, 30 - int(log.terminated.sum()))
    ends = np.append(log.starts[1:], len(log)) - 1
    weights = [0.0 if log.terminated[k] else 0.9 ** (rows.time[k] + 1) for k in ends]
    assert own.missing == pytest.approx(np.mean(weights))


def test_knowing_the_time_moves_the_estimate_towards_the_log_and_knowing_nothing_does_not():
    log, _ = drawn("clock", 500)
    found = check_model(log, gamma=GAMMA)
    test, own, model = by_name(found)["reward", "time"], found.totals[0], found.model_totals[0]
    assert test.model == pytest.approx(model)
    assert model < test.knowing < own.discounted
    assert own.discounted / model > 1.1
    log, _ = drawn("type", 500)
    test = by_name(check_model(log, gamma=GAMMA))["cost 0", "episode so far"]
    assert test.knowing == pytest.approx(test.model, rel=0.05)


def test_the_table_the_page_and_the_picture():
    pytest.importorskip("matplotlib").use("Agg")
    log, policy = drawn("clock", 100)
    found = check_model(log, gamma=GAMMA, policy=policy)
    text, html = repr(found), found._repr_html_()
    assert text.startswith("REJECTED: ")
    for part in ("REJECTED", "if the state knew", "log / model", "advice: time"):
        assert part in text
        assert part in html
    axes = found.plot()
    assert axes.shape == (2, 2)
    x, mean, error = found.profiles["reward"]["time"]
    assert x[-1] == 19
    assert mean[-1] < -4 * error[-1]  # nothing follows the last slot, and the model does not know


def test_json_there_and_back():
    log, policy = drawn("clock", 50)
    untested = Dataset([0], [0], [0], [0], n_states=1, n_actions=1)
    for found in (check_model(log, gamma=GAMMA, policy=policy), check_model(untested, gamma=0.5)):
        content = json.loads(json.dumps(found.to_json()))
        assert ModelCheck.from_json(content) == found
        with pytest.raises(ValueError, match="must have the names"):
            ModelCheck.from_json({**content, "more": 1})


def test_logs_without_episodes_say_so():
    s = np.zeros(100, int)
    rows = Dataset(s, s, s, s, n_states=1, n_actions=1)
    counts = Dataset.from_counts([0], [0], [0], [100], [0.0], n_states=1, n_actions=1)
    few = Dataset(s, s, s, s, n_states=1, n_actions=1, starts=np.arange(0, 100, 50))[:12]
    for log, reason in ((rows, "independent transitions"), (counts, "counts"), (few, "too few")):
        found = check_model(log, gamma=0.9)
        assert (found.status, found.rejected) == ("not tested", False)
        assert reason in found.message


# Certificates.

QUESTION = {"gamma": GAMMA, "limits": {"cost 0": 6.0}, "limit_on": "total"}


@pytest.fixture(scope="module")
def misfit():
    """A log whose days end by the clock, with a limit that the model says can be kept."""
    return drawn("clock", 300)[0]


def test_a_log_that_does_not_fit_is_not_certified(misfit, tmp_path):
    answer = dpdl.safe_policy(misfit, **QUESTION)
    assert answer.status.name == "MISFIT"
    assert answer.policy is None
    assert not answer.success
    assert not answer.certificate.holds
    assert answer.certificate.kept
    assert "does not come from one decision process" in answer.message
    assert "if it did" in repr(answer)
    answer.save(tmp_path / "answer.json")
    assert dpdl.Answer.load(tmp_path / "answer.json").certificate == answer.certificate
    assert "The log does not fit the model" in report_html(answer)


def test_a_misfit_is_accepted_by_name_only(misfit, tmp_path):
    answer = dpdl.safe_policy(misfit, **QUESTION, accept_misfit=True)
    assert answer.status.name == "CERTIFIED"
    assert answer.message.startswith("certified under the model, which the log contradicts (accept_misfit=True)")
    assert "UNDER THE MODEL" in repr(answer.certificate).splitlines()[0]
    assert "Certified under the model, which the log contradicts" in report_html(answer)
    answer.save(tmp_path / "answer.json")
    assert json.loads((tmp_path / "answer.json").read_text())["settings"]["accept_misfit"] is True
    held = dpdl.certify(answer.policy, misfit, **QUESTION)
    assert held.kept
    assert held.misfit
    assert not held.holds
    assert dpdl.certify(answer.policy, misfit, **QUESTION, accept_misfit=True).holds


def test_a_frontier_certifies_nothing_of_a_log_that_does_not_fit(misfit):
    rejected = dpdl.frontier(misfit, **QUESTION, values=[4.0, 6.0])
    assert "does not come from one decision process" in repr(rejected)
    assert {point.certified for point in rejected.points} == {None}
    assert rejected.points[-1].reward is not None
    accepted = dpdl.frontier(misfit, **QUESTION, values=[6.0], accept_misfit=True)
    assert accepted.misfit == rejected.misfit
    assert accepted.points[0].certified is not None


def test_a_certificate_shows_what_the_log_itself_earned():
    """Of whole episodes it is their mean; where episodes are cut off, or not known, it is called the model's."""
    rng = np.random.default_rng(0)
    n = 2000
    ended = rng.random(n) < 0.3
    one = np.zeros(n, int)
    log = Dataset(one, one, one, rng.random(n), costs={"cost": rng.random(n)}, n_states=1, n_actions=1,
                  terminated=ended, truncated=0 * ended.astype(bool))  # fmt: skip
    question = {"gamma": 0.9, "limits": {"cost": 10.0}, "limit_on": "total"}
    found = dpdl.certify([[1.0]], log, **question)
    own = own_totals(steps(log), 0.9)[0]
    assert found.behaviour.name == "reward of the log's own episodes"
    assert (found.behaviour.estimate, found.behaviour.error) == (own.discounted, own.discounted_error)
    assert found.behaviour.per_episode == own.total
    assert "does not contradict" in repr(found)
    rows = Dataset(one, one, one, rng.random(n), costs={"cost": rng.random(n)}, n_states=1, n_actions=1)
    found = dpdl.certify([[1.0]], rows, **question | {"rho0": [1.0], "limits": {"cost": 20.0}})
    assert found.behaviour.name == "reward of the log, by the model"
    assert "The log cannot be tested: the rows of the log are independent transitions" in repr(found)
    assert found.holds


def test_a_total_that_lacks_unknown_states_is_not_shown_below_the_discounted_one():
    """Action 1 leads to a state without rows, whose cost the estimate counts and the sum of an episode cannot."""
    a = np.arange(400) % 2
    log = Dataset(0 * a, a, a, np.ones(400), costs={"cost": np.where(a, 0.1, 1.0)}, n_states=2, n_actions=2,
                  terminated=a == 0, truncated=a == 1)  # fmt: skip
    question = {"gamma": 0.9, "limits": {"cost": 10.0}, "limit_on": "total"}
    ends, leaves = (dpdl.certify([policy, [1, 0]], log, **question).constraints[0] for policy in ([1, 0], [0, 1]))
    assert ends.per_episode == pytest.approx(1.0)
    assert leaves.estimate > 0.1 + 1e-6
    assert leaves.per_episode is None
