"""The log: what it refuses and how it says so, what it keeps, and how costs become utilities."""

import re

import numpy as np
import pytest

from dpdl import _validation as check
from dpdl import exact, learn, verify
from dpdl.data import packing
from dpdl.data.dataset import Dataset
from dpdl.data.packing import record_dtype
from dpdl.data.reference import estimate_reference
from problems import random_log

GOOD = {
    "s": [0, 1, 2],
    "a": [0, 1, 0],
    "s_next": [1, 2, 0],
    "r": [0.5, -1.0, 1.0],
    "u": [[0.1, 1.0], [-1.0, 0.0], [0.0, 0.5]],
    "n_states": 3,
    "n_actions": 2,
}


def test_each_column_is_converted_once(monkeypatch):
    seen, plain = [], check.indices
    monkeypatch.setattr(
        check, "indices", lambda name, *rest, **options: seen.append(name) or plain(name, *rest, **options)
    )
    Dataset(**GOOD)
    assert [seen.count(name) for name in ("s", "a", "s_next")] == [1, 1, 1]


def small_log(n_records=200, n_utilities=1):
    return random_log(4, 3, n_records, n_utilities, seed=1, used_actions=2)


def refuses(make, error, message, **changes):
    with pytest.raises(error, match=re.escape(message)):
        make(**changes)


@pytest.mark.parametrize(
    ("column", "value", "error", "message"),
    [
        ("s", [0, -1, 2], ValueError, "s[1] = -1 must be between 0 and 2"),
        ("s", [0, 1, 3], ValueError, "s[2] = 3 must be between 0 and 2"),
        ("s", [0, 1, 2**40], ValueError, "s[2] = 1099511627776 must be between 0 and 2"),
        ("s", np.array([0, 1, 2**64 - 1], dtype=np.uint64), ValueError, "s[2] = 18446744073709551615 must be"),
        ("s", [0.0, 1.5, 2.0], ValueError, "s[1] = 1.5 must be a whole number"),
        ("s", [True, False, True], TypeError, "s must hold whole numbers, got dtype bool"),
        ("s", ["0", "1", "2"], TypeError, "s must hold whole numbers, got dtype <U1"),
        ("s", [0, None, 2], TypeError, "s must hold whole numbers, got dtype object"),
        ("s", [[0], [1], [2]], ValueError, "s must have shape (any,), got (3, 1)"),
        ("s", [[0], [1, 2], [2]], ValueError, "s is not a regular array"),
        ("s", 0, ValueError, "s must have shape (any,), got ()"),
        ("s", [], ValueError, "the data set is empty: s has length 0"),
        ("a", [0, 2, 0], ValueError, "a[1] = 2 must be between 0 and 1"),
        ("a", [0, 1], ValueError, "a must have shape (3,), got (2,)"),
        ("a", [0, 1, np.inf], ValueError, "a[2] = inf must be between 0 and 1"),
        ("s_next", [1, 2, -3], ValueError, "s_next[2] = -3 must be between 0 and 2"),
        ("s_next", [1, 2, 0, 0], ValueError, "s_next must have shape (3,), got (4,)"),
        ("s_next", [1, 2, np.nan], ValueError, "s_next[2] = nan must be a whole number"),
        ("r", [0.0, np.nan, 0.0], ValueError, "r[1] = nan must be finite"),
        ("r", [0.0, 0.0, -np.inf], ValueError, "r[2] = -inf must be finite"),
        ("r", [0.0, 0.0], ValueError, "r must have shape (3,), got (2,)"),
        ("r", [[0.0], [0.0], [0.0]], ValueError, "r must have shape (3,), got (3, 1)"),
        ("r", ["a", "b", "c"], TypeError, "r must hold real numbers, got dtype <U1"),
        ("r", [True, False, True], TypeError, "r must hold real numbers, got dtype bool"),
        ("r", [None, 0.0, 0.0], TypeError, "r must hold real numbers, got dtype object"),
        ("r", [1j, 0.0, 0.0], TypeError, "r must hold real numbers, got dtype complex128"),
        ("u", [[0.0, 0.0], [0.0, np.nan], [0.0, 0.0]], ValueError, "u[1, 1] = nan must be finite"),
        ("u", [[0.0, 0.0], [0.0, 0.0], [np.inf, 0.0]], ValueError, "u[2, 0] = inf must be finite"),
        ("u", [0.0, 0.0], ValueError, "u must have shape (3, any), got (2, 1)"),
        ("u", [[0.0], [0.0]], ValueError, "u must have shape (3, any), got (2, 1)"),
        ("u", [[0.0], [0.0, 0.0], [0.0]], ValueError, "u is not a regular array"),
        ("u", [["x"], ["y"], ["z"]], TypeError, "u must hold real numbers, got dtype <U1"),
        ("n_states", 0, ValueError, "n_states must be between 1 and 2147483647, got 0"),
        ("n_states", 2**31, ValueError, "n_states must be between 1 and 2147483647, got 2147483648"),
        ("n_states", 2.5, ValueError, "n_states must be a whole number, got 2.5"),
        ("n_states", True, TypeError, "n_states must be a whole number, got bool"),
        ("n_actions", -1, ValueError, "n_actions must be between 1 and 2147483647, got -1"),
        ("n_actions", "2", TypeError, "n_actions must be a whole number, got str"),
    ],
)
def test_bad_columns_are_named(column, value, error, message):
    refuses(Dataset, error, message, **{**GOOD, column: value})


def test_costs_are_named_columns():
    given = {name: value for name, value in GOOD.items() if name != "u"}
    log = Dataset(**given, costs={"icu": [1, 2, 3], "falls": [0.5, 0, 0]})
    assert log.cost_names == ("icu", "falls")
    assert {name: column.tolist() for name, column in log.costs.items()} == {"icu": [1, 2, 3], "falls": [0.5, 0, 0]}
    assert log.ranges[0].tolist() == [[-1, 1, 0], [1, 3, 0.5]]
    with pytest.raises(AttributeError, match="the log has costs instead of utilities"):
        log.u  # noqa: B018
    for costs, error, message in (
        ({"icu": [1, 2]}, ValueError, "costs['icu'] must have shape (3,)"),
        ({"icu": [1, np.nan, 2]}, ValueError, "costs['icu'][1] = nan"),
        ([[1], [2], [3]], TypeError, "costs must be a mapping of names to columns, got list"),
        ({3: [1, 2, 3]}, TypeError, "costs must be"),
    ):
        refuses(Dataset, error, message, **given, costs=costs)
    refuses(Dataset, TypeError, "give either utilities u or costs", **GOOD, costs={"icu": [1, 2, 3]})
    assert Dataset(**given).n_utilities == 0


def test_columns_come_back_as_given_and_compact():
    log = Dataset(**GOOD)
    for name in ("s", "a", "s_next"):
        assert getattr(log, name).dtype == np.int32
        assert getattr(log, name).tolist() == GOOD[name]
    assert log.r.tolist() == GOOD["r"]
    assert log.u.tolist() == GOOD["u"]
    assert log.pairs.tolist() == [0, 3, 4]
    assert log.pairs[log.pair].tolist() == [0, 3, 4]
    assert len(log) == 3
    assert log.n_utilities == 2
    assert repr(log).startswith("Dataset(3 transitions, 3 states, 2 actions, 3 pairs; reward -1 to 1, u0 -1 to 0.1")


@pytest.mark.parametrize("n_utilities", [0, 1, 3, 20])
def test_a_record_has_16_bytes_and_8_a_utility(n_utilities):
    log = small_log(n_utilities=n_utilities)
    assert record_dtype(n_utilities).itemsize == log.records.itemsize == 16 + 8 * n_utilities
    assert log.records.nbytes == len(log) * (16 + 8 * n_utilities)
    assert log.u.shape == (len(log), n_utilities)


@pytest.mark.parametrize("column", ["s", "a", "s_next", "r", "u", "pair", "pairs", "pair_counts", "records"])
@pytest.mark.parametrize("cut", [False, True])
def test_columns_are_read_only(column, cut):
    log = small_log()[10:] if cut else small_log()
    with pytest.raises(ValueError, match="read-only"):
        getattr(log, column)[0] = 0


def test_the_log_does_not_share_memory_with_its_inputs():
    r = np.array(GOOD["r"])
    log = Dataset(**{**GOOD, "r": r})
    r[:] = 0
    assert log.r.tolist() == GOOD["r"]


@pytest.mark.parametrize(
    "part", [slice(0, 1), slice(3, 9), slice(None, None, 3), slice(-5, None), slice(None, None, -1)]
)
def test_a_slice_is_the_log_of_those_rows(part):
    log = small_log(50)
    cut = log[part]
    for name in ("s", "a", "s_next", "r", "u"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(log, name)[part])
    flat = log.s[part].astype(int) * log.n_actions + log.a[part]
    values, counts = np.unique(flat, return_counts=True)
    np.testing.assert_array_equal(cut.pairs, values)
    np.testing.assert_array_equal(cut.pair_counts, counts)
    assert (cut.n_states, cut.n_actions, cut.cost_names) == (log.n_states, log.n_actions, log.cost_names)


@pytest.mark.parametrize("part", [slice(3, 9), slice(None, None, 3), slice(None, None, -1), slice(None)])
def test_a_slice_copies_nothing(part):
    log = small_log(50)
    for cut in (log[part], log[5:40][part], log[part][:2]):
        assert np.shares_memory(cut.records, log.records)
        assert np.shares_memory(cut.table, log.table)


def of_its_own(log):
    """The same rows, packed afresh."""
    columns = (getattr(log, name) for name in ("s", "a", "s_next", "r", "u"))
    return Dataset(*columns, n_states=log.n_states, n_actions=log.n_actions, starts=log.starts)


@pytest.mark.parametrize("part", [slice(0, 5), slice(10, 40), slice(None, None, -7), slice(3, None, 2)])
@pytest.mark.parametrize("chunk", [7, packing.CHUNK])
def test_a_slice_is_in_every_use_the_log_of_those_rows(part, chunk, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", chunk)
    cut = small_log(60)[part]
    own = of_its_own(cut)
    assert len(own.pairs) < len(cut.table)
    for name in ("pairs", "pair_counts", "pair"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(own, name))
    assert repr(cut) == repr(own)
    np.testing.assert_array_equal(cut.table[cut.table_counts > 0], cut.pairs)
    references = [estimate_reference(log, 1e-3) for log in (cut, own)]
    np.testing.assert_array_equal(references[0].mu_hat, references[1].mu_hat)
    rho0 = np.full(4, 0.25)
    models = [exact.plug_in(log, 0.9, rho0) for log in (cut, own)]
    np.testing.assert_array_equal(models[0].P.toarray(), models[1].P.toarray())
    # Sums over chunks that begin elsewhere: a few roundings.
    np.testing.assert_allclose(models[0].u, models[1].u, rtol=1e-14)
    # Pairs that only the table knows are coordinates here and lumped together there: the same iterates up to rounding.
    options = {"gamma": 0.9, "psi": 2, "slater": 0.3, "T": 2000, "rho0": rho0, "floor": 1e-3}
    results = [learn(log, **options, rng=0) for log in (cut, own)]
    np.testing.assert_allclose(results[0].x_mean, results[1].x_mean, rtol=1e-9)
    np.testing.assert_allclose(results[0].last.log_x, results[1].last.log_x, rtol=0, atol=1e-8)
    assert models[0].slater() == pytest.approx(models[1].slater(), abs=1e-9)
    found = [verify(results[0], log, rho0=rho0, eps=0.1) for log in (cut, own)]
    assert found[0].reward == pytest.approx(found[1].reward, rel=1e-13)
    np.testing.assert_allclose(found[0].flow_residual, found[1].flow_residual, rtol=0, atol=1e-13)


def test_an_empty_slice_and_a_single_index_are_refused():
    log = small_log(5)
    with pytest.raises(ValueError, match="of a data set of length 5 is empty"):
        log[5:]
    with pytest.raises(TypeError, match="indexed by a slice, got int"):
        log[0]


def test_ranking_by_table_and_by_sorting_agree():
    rng = np.random.default_rng(3)
    flat = rng.integers(0, 2000, 500)
    wide = 8 * len(flat) + 10**6
    table, sort = (
        packing.rank(flat, wide),
        packing.rank(flat, wide + 1),
    )  # the last bound of one, the first of the other
    for one, other in zip(table, sort, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    np.testing.assert_array_equal(table[0][table[1]], flat)


def test_a_huge_state_space_costs_what_the_log_does():
    top = 2**31 - 1
    log = Dataset([0, top - 1], [top - 1, 0], [0, top - 1], [0, 0], [[0], [0]], n_states=top, n_actions=top)
    assert log.s.tolist() == [0, top - 1]
    assert log.a.tolist() == [top - 1, 0]


@pytest.mark.parametrize("name", ["n_states", "records", "cost_names", "anything"])
def test_attributes_cannot_be_set(name):
    log = Dataset([0], [0], [0], [0], [[0]], n_states=1, n_actions=1)
    with pytest.raises(AttributeError, match=f"^a Dataset is read-only, {name} cannot be set$"):
        setattr(log, name, 3)
