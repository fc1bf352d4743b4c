"""Logs of counts stand for the logs that were counted."""

import re
import warnings

import numpy as np
import pytest

import logs
from dpdl import Dataset, estimate_slater, exact, from_parquet, learn, replicate, resume, verify
from logs import assert_same
from test_ends import GAMMA, ending_model

SIZES = {"n_states": 6, "n_actions": 3}


@pytest.fixture(scope="module")
def log():
    return ending_model().rollout(5000, np.full((6, 3), 1 / 3), rng=1)


@pytest.fixture(scope="module")
def counted(log):
    return Dataset.from_counts(**log.counts(), initial=log.initial_counts, **SIZES)


def noisy(log):
    """The same log with rewards and utilities that vary within a transition, as costs."""
    rng = np.random.default_rng(0)
    r, costs = rng.uniform(0, 30, len(log)), rng.uniform(0, 4, (len(log), 2))
    marks = {"terminated": log.terminated, "starts": log.starts}
    rule = {"limits": [15.0, 18.0], "gamma": GAMMA, "normalised": False}
    return logs.from_costs(log.s, log.a, log.s_next, r, costs, **rule, **SIZES, **marks, reward_scale=30.0), rule


def same_model(one, other, rtol=1e-12):
    np.testing.assert_allclose(one.P.toarray(), other.P.toarray(), rtol=rtol)
    for name in ("r", "u", "ends", "rho0"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, atol=1e-15)


def test_counts_give_the_same_model_and_the_same_log_statistics(log, counted):
    assert len(counted) == len(log)
    assert len(counted.records) < 200
    assert counted.n_ended == log.n_ended
    np.testing.assert_array_equal(counted.pair_counts, log.pair_counts)
    np.testing.assert_array_equal(counted.frequencies, log.frequencies)
    np.testing.assert_array_equal(counted.initial(), log.initial())
    same_model(exact.plug_in(counted, GAMMA), exact.plug_in(log, GAMMA))


def test_counts_of_costs_are_sums_of_costs(log):
    priced, rule = noisy(log)
    columns = priced.counts()
    costs = np.array([2.0, 3.0]) @ columns["costs"].T
    raw = priced.question.cost_limits()
    slack = np.where(priced.terminated[:, None], raw.total, raw.rate) - priced.u * priced.question.scales
    assert costs.sum() == pytest.approx((slack @ [2.0, 3.0]).sum(), rel=1e-12)
    assert columns["cost_squares"].sum() == pytest.approx((slack**2).sum(), rel=1e-12)
    again = Dataset.from_counts(**columns, **rule, initial=priced.initial_counts, reward_scale=30.0, **SIZES)
    one, other = exact.plug_in(again, GAMMA), exact.plug_in(priced, GAMMA)
    np.testing.assert_allclose(one.r, other.r, rtol=1e-12)
    scales = [np.array(each.question.scales)[:, None, None] for each in (again, priced)]
    np.testing.assert_allclose(one.u * scales[0], other.u * scales[1], rtol=1e-11)
    assert again.question.costs([0.0, 0.0]).tolist() == [15.0, 18.0]


@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_counts_of_costs_far_below_their_limits_are_taken_back(limit):
    """Sums of squares are those of the costs: the limit, spread over the rows, must not drown them in rounding."""
    costs = np.array([0.0, 0.0, 1e-6, 1e-6, 2e-6, 0.3])
    columns = [0, 0, 0, 1, 1, 1], [0] * 6, [1, 1, 1, 0, 0, 0], [1.0] * 6, costs, limit
    rule = {"gamma": 0.99, "normalised": False, "n_states": 2, "n_actions": 1}
    log = logs.from_costs(*columns, **rule, terminated=[1, 1, 0, 1, 1, 0])
    counts = log.counts()
    again = Dataset.from_counts(**counts, limits=limit, **rule)
    np.testing.assert_allclose(again.counts()["costs"], counts["costs"], rtol=1e-12, atol=1e-15 * limit)
    assert counts["terminated"].tolist() == [False, True, False, True]
    np.testing.assert_allclose(counts["costs"].ravel(), [1e-6, 0, 0.3, 3e-6], rtol=1e-12, atol=1e-15 * limit)
    one, other = (exact.plug_in(each, 0.99, [1, 0]).evaluate([[1.0], [1.0]]).utilities for each in (log, again))
    np.testing.assert_allclose(log.question.utilities(one), again.question.utilities(other), rtol=1e-12)


def test_counting_counts_changes_nothing(counted, log):
    for name, column in counted.counts().items():
        np.testing.assert_allclose(column, log.counts()[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_counting_in_chunks(log, chunk, monkeypatch):
    whole = log.counts()
    monkeypatch.setattr("dpdl.data.packing.CHUNK", chunk)
    for name, column in log.counts().items():
        np.testing.assert_allclose(column, whole[name], rtol=1e-12, atol=1e-12)


def test_folders_and_pickles_carry_counts(counted, tmp_path):
    import pickle

    counted.save(tmp_path / "log")
    again = Dataset.open(tmp_path / "log")
    for one in (again, pickle.loads(pickle.dumps(counted))):
        assert one.fingerprint == counted.fingerprint
        assert len(one) == len(counted)
        np.testing.assert_array_equal(one.repeats, counted.repeats)
        np.testing.assert_array_equal(one.spreads, counted.spreads)
        np.testing.assert_array_equal(one.initial_counts, counted.initial_counts)
    with pytest.raises(ValueError, match="a log of counts cannot be written as Parquet"):
        counted.to_parquet(tmp_path / "log.parquet")


@pytest.mark.parametrize("order", ["replacement", "shuffle"])
def test_records_are_drawn_in_proportion_to_their_counts(counted, order):
    from dpdl.learner.layout import Inputs, Layout
    from dpdl.settings import Settings

    settings = Settings(gamma=GAMMA, psi=30, slater=0.2, T=10, order=order)
    layout = Layout.of(counted, settings, Inputs.of(counted))
    n = 40 * len(counted)
    records, _ = layout.sampler(np.random.default_rng(0)).draw(n)
    seen = np.bincount(records, minlength=len(counted.records))
    expected = 40 * counted.repeats
    if order == "shuffle":
        np.testing.assert_array_equal(seen, expected)
        return
    # Chi-squared with len - 1 degrees of freedom, standardised.
    excess = ((seen - expected) ** 2 / expected).sum() - (len(seen) - 1)
    assert abs(excess) < 4 * np.sqrt(2 * len(seen))


def test_learning_from_counts_is_learning_from_the_log(counted, log, tmp_path):
    settings = {"gamma": GAMMA, "psi": 4, "slater": 0.2, "T": 400_000, "kappa": 0.0, "eta": 0.02, "rng": 0}
    one, other = (learn(each, **settings) for each in (counted, log))
    model = exact.plug_in(log, GAMMA)
    values = [model.evaluate(each.policy) for each in (one, other)]
    assert values[0].reward == pytest.approx(values[1].reward, abs=0.05)
    np.testing.assert_allclose(one.reference.mu_hat, other.reference.mu_hat)
    for order in ("replacement", "shuffle"):
        path = tmp_path / order
        run = settings | {"order": order, "T": 20_000}
        learn(counted, **run, step_limit=7001, checkpoint=path)
        np.testing.assert_array_equal(resume(path, counted).x_mean, learn(counted, **run).x_mean)
    replicas = replicate(counted, n=2, **(settings | {"T": 2000}))
    assert len(replicas.results) == 2
    seen, wanted = verify(one, counted, eps=0.5), verify(one, log, eps=0.5)
    assert seen.reward == pytest.approx(wanted.reward, rel=1e-12)
    np.testing.assert_allclose(seen.flow_residual, wanted.flow_residual, atol=1e-12)
    with pytest.raises(ValueError, match="order 'trajectory' needs the rows in order"):
        learn(counted, **(settings | {"order": "trajectory"}))


def test_parts_are_random_samples_without_replacement(counted):
    n = len(counted)
    for cut in (1, 700, n - 1):
        first, rest = counted[:cut], counted[cut:]
        assert (len(first), len(rest)) == (cut, n - cut)
        total = np.zeros(18, dtype=np.int64)
        np.add.at(total, first.pairs, first.pair_counts)
        np.add.at(total, rest.pairs, rest.pair_counts)
        np.testing.assert_array_equal(total[counted.pairs], counted.pair_counts)
    parts = [counted[k : k + 500] for k in range(0, n, 500)]
    share = np.array([np.bincount(part.pairs, part.pair_counts, minlength=18) for part in parts])
    np.testing.assert_array_equal(share.sum(axis=0)[counted.pairs], counted.pair_counts)
    # Each is a sample: variances of the counts are those of the hypergeometric distribution, and not zero.
    p = counted.pair_counts / n
    assert 0.4 < (share.var(axis=0)[counted.pairs] / (500 * p * (1 - p))).mean() < 1.6
    with pytest.raises(ValueError, match="sliced with step 1"):
        counted[::2]
    run = {"gamma": GAMMA, "psi": 4, "slater": 0.2, "T": 2000, "rng": 0}
    assert learn(counted, **run, n_reference=2000).reference.n_samples == 2000


def test_slater_of_noisy_counts_uses_the_squares(log):
    priced, rule = noisy(log)
    columns = priced.counts()
    rest = {**rule, "initial": priced.initial_counts, "reward_scale": 30.0, **SIZES}
    exactly = Dataset.from_counts(**columns, **rest)
    blindly = Dataset.from_counts(
        **{name: column for name, column in columns.items() if not name.endswith("squares")}, **rest
    )
    widths = []
    for each in (exactly, blindly):
        found = estimate_slater(each, gamma=GAMMA)
        scale = min(each.question.scales)
        widths.append(scale * (found.upper - found.lower))
    assert exactly.spreads is not None
    assert blindly.spreads is None
    assert widths[0] > widths[1]


def test_a_group_by_of_dask_over_parquet_is_the_same_log(log, tmp_path):
    """What a cluster does with a log that no machine holds: one group-by, and its few rows are enough."""
    import dask
    import dask.dataframe as dd

    paths = []
    for k in range(3):
        part = log[log.starts[100 * k] : log.starts[100 * (k + 1)]]
        part.to_parquet(tmp_path / f"{k}.parquet")
        paths.append(tmp_path / f"{k}.parquet")
    rows = from_parquet(paths, tmp_path / "log")
    assert_same(rows, log[: len(rows)])
    with dask.config.set(scheduler="synchronous"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Dask calls in pandas may be deprecated there
        table = dd.read_parquet([str(path) for path in paths])
        groups = table.groupby(["s", "a", "s_next", "terminated"])
        sums = groups[["r", "u_0", "u_1"]].sum().compute()
        sums["count"] = groups["r"].count().compute()
    sums = sums.reset_index()
    counts = Dataset.from_counts(
        *(sums[name].to_numpy() for name in ("s", "a", "s_next", "count", "r")),
        sums[["u_0", "u_1"]].to_numpy(),
        terminated=sums["terminated"].to_numpy(),
        initial=rows.initial_counts,
        **SIZES,
    )
    one, other = exact.plug_in(counts, GAMMA), exact.plug_in(rows, GAMMA)
    same_model(one, other)
    mine, theirs = one.solve(), other.solve()
    assert mine.status == theirs.status == "optimal"
    assert mine.reward == pytest.approx(theirs.reward, abs=1e-9)
    np.testing.assert_allclose(mine.utilities, theirs.utilities, atol=1e-9)


GOOD = {"s": [0, 1], "a": [0, 0], "s_next": [1, 0], "count": [3, 2], "reward": [1.0, 1.0], "utilities": [[1.0], [0.0]],
        "n_states": 2, "n_actions": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"count": [3, 0]}, ValueError, "count[1] = 0 must be at least 1"),
        ({"count": [3, -1]}, ValueError, "count[1] = -1 must be between 0"),
        ({"count": [3, 1.5]}, ValueError, "count[1] = 1.5 must be a whole number"),
        ({"count": [2**62, 2**62]}, ValueError, "count sums to"),
        ({"count": [3]}, ValueError, "count must have shape (2,), got (1,)"),
        ({"s": [], "a": [], "s_next": [], "count": []}, ValueError, "the data set is empty"),
        ({"s": [0, 2]}, ValueError, "s[1] = 2 must be between 0 and 1"),
        ({"reward": [4.0, 1.0]}, ValueError, "r[0] = 1.3333333333333333 must be <= 1 after division by reward_scale"),
        ({"utilities": None}, TypeError, "give either utilities or costs"),
        ({"costs": [[1.0], [0.0]]}, TypeError, "give either utilities or costs"),
        ({"utilities": None, "costs": [[1.0], [0.0]]}, TypeError, "costs need limits, gamma and normalised"),
        ({"limits": [1.0]}, TypeError, "limits and cost_squares go with costs"),
        ({"reward_squares": [1.0, 1.0]}, TypeError, "give both reward_squares and utility_squares, or neither"),
        ({"reward_squares": [0.1, 1.0], "utility_squares": [1.0, 0.0]}, ValueError,
         "reward_squares[0] is less than the square of the sum, divided by count"),
        ({"initial": [0, 0]}, ValueError, "initial must count at least one episode"),
        ({"initial": [1]}, ValueError, "initial must have shape (2,), got (1,)"),
    ],
)  # fmt: skip
def test_bad_counts_are_named(change, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        Dataset.from_counts(**(GOOD | change))


def test_counts_of_more_rows_than_can_be_shuffled_are_learned_from_by_default():
    n = 10**10
    log = Dataset.from_counts([0, 0], [0, 1], [0, 0], [n, n], [n, 0], costs=[n, 0], limits=0.5, gamma=0.5,
                              normalised=True, n_states=1, n_actions=2)  # fmt: skip
    result = learn(log, gamma=0.5, rho0=[1.0], T=20_000, rng=0)
    assert result.success
    assert result.settings.order == "replacement"
    assert result.policy[0, 0] == pytest.approx(0.5, abs=0.03)
