"""Questions: limits on totals and averages, scales, subsets of costs, and conversion back to the caller's units."""

import pickle

import numpy as np
import pytest

from dpdl import CMDP, Dataset, exact, learn
from dpdl.question import Question, pose

SIZES = {"n_states": 2, "n_actions": 2}


def log_of(costs=None, r=(3.0, -6.0, 1.0, 0.0), ended=(0, 1, 0, 0), **options):
    costs = {"icu": [1.0, 0.5, 0.0, 2.0], "falls": [0, 1, 0, 0]} if costs is None else costs
    marks = {"terminated": ended, "truncated": [0, 0, 0, 1]}
    return Dataset([0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0], r, costs=costs, **SIZES, **marks, **options)


@pytest.mark.parametrize("limit_on", ["total", "average"])
@pytest.mark.parametrize("limit", [0.0, 0.3, 1.2, -1.0, 1e9])
def test_a_discounted_sum_is_nonnegative_exactly_where_the_limit_is_kept(limit_on, limit):
    """On 300 random episodes that end after one to six steps: sum gamma^t u >= 0 if and only if the cost is within."""
    rng, gamma = np.random.default_rng(0), 0.8
    lengths = rng.integers(1, 7, 300)
    ended = np.zeros(lengths.sum(), dtype=bool)
    ended[np.cumsum(lengths) - 1] = True
    c = rng.exponential(size=len(ended))
    zeros = np.zeros(len(ended), dtype=int)
    marks = {"terminated": ended, "truncated": zeros > 0}
    log = Dataset(zeros, zeros, zeros, c, costs={"c": c}, n_states=1, n_actions=1, **marks)
    posed = pose(log, gamma, {"c": limit}, limit_on)
    assert 1 - 1e-15 <= abs(posed.u).max() <= 1
    for last, length in zip(np.cumsum(lengths), lengths, strict=True):
        weights = gamma ** np.arange(length)
        total, slack = weights @ c[last - length : last], weights @ posed.u[last - length : last, 0]
        figure = total if limit_on == "total" else (1 - gamma) * total
        assert posed.question.costs([slack])[0] == pytest.approx(figure, rel=1e-12, abs=1e-12 * max(1, abs(limit)))
        if abs(figure - limit) > 1e-12 * max(1, abs(limit)):
            assert (slack >= 0) == (figure <= limit)


def test_native_logs_in_the_unit_range_keep_their_bits():
    native = Dataset([0, 1], [0, 1], [1, 0], [0.1, -0.3], [[0.5], [-0.25]], **SIZES)
    posed = pose(native, 0.9)
    assert np.shares_memory(posed.records, native.records)
    assert (posed.question.reward_scale, posed.question.scales) == (1.0, (1.0,))
    assert posed.fingerprint == native.fingerprint
    assert posed.question.names == ("utility 0",)
    large = pose(Dataset([0, 1], [0, 1], [1, 0], [5, -0.3], [[0.5], [-4]], **SIZES), 0.9)
    assert (large.question.reward_scale, large.question.scales) == (5.0, (4.0,))
    assert (large.u[1] * large.question.scales).tolist() == [-4.0]
    assert large.question.reward(large.r[0]) == 5.0


def test_one_log_answers_many_questions():
    log = log_of()
    one = pose(log, 0.9, {"icu": 1.0}, "total")
    two = pose(log, 0.5, {"falls": 0.2, "icu": 3.0}, "average")
    assert (one.n_utilities, two.n_utilities) == (1, 2)
    assert two.question.columns == (1, 0)
    assert pose(log, 0.9).n_utilities == 0
    assert log.records.dtype["u"].shape == (2,)
    assert pose(one, 0.9) is one
    assert pose(one, 0.9, {"icu": 1.0}, "total") is one
    assert pose(log, 0.9, {"icu": 1.0}, "total").question == one.question
    for other in ((0.5,), (0.9, {"icu": 2.0}, "total"), (0.9, {"icu": 1.0}, "average")):
        with pytest.raises(ValueError, match="the log was posed under another question"):
            pose(one, *other)
    assert pickle.loads(pickle.dumps(one)).u.tolist() == one.u.tolist()
    assert one[1:3].raw.costs["icu"].tolist() == [0.5, 0.0]
    assert Question.from_json(two.question.to_json()) == two.question


def test_costs_of_every_size():
    """Near 2e6 nothing is lost, and at a limit that is the product of a rounded factor nothing is broken."""
    log = log_of({"c": [2e6 + 1, 2e6 - 1, 2e6, 2e6]}, ended=[0] * 4)
    assert pose(log, 0.9, {"c": 2e6}, "average").u.ravel().tolist() == [-1, 1, 0, 0]
    at_limit = pose(log_of({"c": [1.0] * 4}, ended=[0] * 4), 0.9, {"c": 10.0}, "total")
    assert abs(at_limit.u).max() < 1e-15
    assert at_limit.notes == ()
    for size in (1e-162, 1e155):
        posed = pose(log_of({"c": [size, 0, 0, 2 * size]}, ended=[0] * 4), 0.9, {"c": size}, "average")
        assert posed.u.ravel().tolist() == [0, 1, 1, -1]
    with pytest.raises(ValueError, match=r"limits\['c'\] = -1.7e\+308 less the costs of the log overflows"):
        pose(log_of({"c": [1.7e308, 0, 0, 0]}), 0.9, {"c": -1.7e308}, "average")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0.9, {"icu": 1}), TypeError, "limits need limit_on="),
        ((0.9, {"icu": 1}, "sum"), ValueError, "limit_on"),
        ((0.9, None, "total"), TypeError, "limit_on = 'total' says what limits are on, and there are none"),
        ((0.9, {"ICU": 1}, "total"), ValueError, "the log has no cost 'ICU'"),
        ((0.9, {"icu": np.nan}, "total"), ValueError, r"limits\['icu'\] must be finite"),
        ((0.9, [1.0], "total"), TypeError, "limits must be a mapping of costs to their limits"),
        ((1.0,), ValueError, "gamma must be > 0 and < 1"),
    ],
)
def test_questions_that_cannot_be_asked(arguments, error, message):
    with pytest.raises(error, match=message):
        pose(log_of(), *arguments)
    native = Dataset([0], [0], [0], [0], [[1.0]], n_states=1, n_actions=1)
    with pytest.raises(ValueError, match="limits are upper limits of costs, and the log has utilities"):
        pose(native, 0.9, {"u": 1.0}, "total")


def test_constraints_that_cannot_be_broken_or_kept_are_named():
    never, always = pose(log_of(), 0.9, {"icu": 30.0, "falls": -1.0}, "average").notes
    assert never == "cost 'icu' is never above its limit, so no policy can break its constraint"
    assert always == "cost 'falls' is always above its limit, so no policy can keep its constraint"
    native = Dataset([0, 0], [0, 0], [0, 0], [0, 0], [[1.0], [0.5]], n_states=1, n_actions=1)
    (note,) = pose(native, 0.9).notes
    assert note.endswith("is never negative, so no policy can break its constraint; costs are given as costs=")


def test_the_unit_of_a_cost_changes_no_policy():
    """Learned and planned policies are the same to the bit if a cost and its limit are told in another unit of 2^k."""
    rng = np.random.default_rng(0)
    s, a, after = rng.integers(0, 3, 600), rng.integers(0, 2, 600), rng.integers(0, 3, 600)
    c = a * rng.random(600)
    found = []
    for unit in (1.0, 1024.0):
        log = Dataset(s, a, after, unit * a, costs={"c": unit * c}, n_states=3, n_actions=2)
        question = {"limits": {"c": 0.2 * unit}, "limit_on": "average"}
        result = learn(log, gamma=0.8, **question, psi=3, slater=0.3, T=5000, rho0=[1, 0, 0], rng=0)
        model = exact.plug_in(log, 0.8, [1, 0, 0], **question)
        found.append((result.policy.probabilities, result.question.costs(model.solve().utilities) / unit))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-12)
    assert found[0][1][0] <= 0.2 + 1e-9


def test_the_plug_in_model_of_costs_is_that_of_their_utilities():
    log = log_of()
    model = exact.plug_in(log, 0.9, limits={"icu": 1.0}, limit_on="total")
    assert isinstance(model, CMDP)
    posed = pose(log, 0.9, {"icu": 1.0}, "total")
    same = Dataset(posed.s, posed.a, np.maximum(posed.s_next, 0), posed.r, posed.u, **SIZES,
                   terminated=posed.terminated, truncated=[0, 0, 0, 1])  # fmt: skip
    np.testing.assert_array_equal(model.u, exact.plug_in(same, 0.9).u)
