"""Discretizers: what bins are, on any finite numbers, and that files give back the same states."""

import copy
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdl import Discretizer, Policy
from dpdl.data.labels import Labels

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 2))
def test_bins_of_any_numbers(rows, bins, which):
    """Every state is a box: two observations share a state if and only if they share the bin in both dimensions."""
    data = np.array(rows)
    method = ("quantile", "uniform", "quantile")[which]
    cells = Discretizer.fit(data, method, bins)
    states = cells.states(data)
    assert sorted(set(states.tolist())) == list(range(cells.n_states))  # none is empty
    boxes = [tuple(sum(edge <= x for edge in cut) for x, cut in zip(row, cells.edges, strict=True)) for row in data]
    assert all(len(cut) < bins for cut in cells.edges)
    assert len(set(zip(boxes, states.tolist(), strict=True))) == len(set(boxes)) == cells.n_states
    again = Discretizer.from_json(json.loads(json.dumps(cells.to_json())))
    assert again == cells
    assert hash(again) == hash(cells)
    assert again.states(data).tolist() == states.tolist()
    assert [again.states(row).item() for row in data] == states.tolist()


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.integers(1, 6))
def test_quantile_bins_are_as_even_as_ties_allow(values, bins):
    """Oracle: each edge is a cut between different values that is nearest to its share of the data."""
    data = np.sort(np.array(values, dtype=float))
    (cut,) = Discretizer.fit(data, bins=bins).edges
    possible = [k for k in range(1, len(data)) if data[k] > data[k - 1]]
    chosen = {int(np.searchsorted(data, edge)) for edge in cut}
    assert chosen <= set(possible)
    for q in range(1, bins):
        target = q * len(data) / bins
        if possible:
            best = min(abs(k - target) for k in possible)
            assert min(abs(k - target) for k in chosen) == pytest.approx(best)


def test_few_distinct_values_get_a_bin_each():
    data = np.array([0, 0, 0, 0, 0, 0, 1, 7])
    assert Discretizer.fit(data, bins=8).states(data[:, None]).tolist() == [0] * 6 + [1, 2]
    assert Discretizer.fit(np.full(5, 3.0), bins=4).n_states == 1
    assert Discretizer.fit(np.full(5, 3.0), "uniform", bins=4).n_states == 1


def test_uniform_bins_are_equally_wide_and_unbounded_outside():
    cells = Discretizer.fit([0.0, 10.0, 2.6, 5.1, 7.6], "uniform", bins=4)
    assert cells.edges[0].tolist() == [2.5, 5.0, 7.5]
    assert cells.states([[-1e300], [2.5], [1e300]]).tolist() == [0, 1, 3]


def test_cells_without_data():
    data = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    strict, lenient = (Discretizer.fit(data, "uniform", 4, unseen=how) for how in ("error", "nearest"))
    assert strict.n_states == 4  # of 16 cells
    with pytest.raises(ValueError, match=r"observation 1 \[0\.0, 3\.0\] lies in a cell without data"):
        strict.states([[0, 0], [0, 3.0]])
    assert lenient.states([[0.0, 2.0], [3.0, 1.0], [9.0, 9.0]]).tolist() == [1, 2, 3]


def test_many_dimensions_do_not_overflow():
    """10^60 cells, of which 200 are occupied."""
    data = np.random.default_rng(0).normal(size=(200, 60))
    cells = Discretizer.fit(data, bins=10)
    assert cells.n_states == 200
    assert len(set(cells.states(data).tolist())) == 200


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([[np.nan]], "quantile", 2), ValueError, r"observations\[0, 0\] = nan must be finite"),
        (([], "quantile", 2), ValueError, "observations must not be empty"),
        ((np.zeros((2, 2, 2)), "quantile", 2), ValueError, r"observations must have shape \(any, any\)"),
        (([1.0], "median", 2), ValueError, "method must be one of"),
        (([1.0], "quantile", None), TypeError, "needs bins="),
        (([1.0], "kmeans", 2), ValueError, "method must be one of 'quantile', 'uniform'"),
        (([1.0], "quantile", 0), ValueError, r"bins\[0\] must be between 1 and"),
        (([1.0], "quantile", [2, 2]), ValueError, "bins must be a number or 1 numbers, got 2"),
        (([1.0], "uniform", 2.5), ValueError, r"bins\[0\] must be a whole number"),
        ((["a"], "uniform", 2), TypeError, "observations must hold real numbers"),
    ],
)
def test_bad_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        Discretizer.fit(*arguments)


@pytest.mark.parametrize("content", [3, {"method": "quantile"}])
def test_what_is_not_a_discretizer_is_named(content):
    with pytest.raises(ValueError, match="discretizer must have the names"):
        Discretizer.from_json(content)


def test_labels_and_policies_keep_it(tmp_path):
    cells = Discretizer.fit([[0.0, 0.0], [1.0, 3.0], [2.0, 1.0]], "uniform", 3)
    labels = Labels([0, 2], ["stay", "go"], cells)
    policy = Policy([[1.0, 0.0], [0.0, 1.0]], labels)
    for other in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert other.labels == labels
    policy.save(tmp_path / "policy.json")
    again = Policy.load(tmp_path / "policy.json")
    assert json.loads((tmp_path / "policy.json").read_text())["version"] == 4
    assert again.act(np.array([2.1, 1.0])) == "go"
    assert again.act([[0.0, 0.0], [2.0, 1.0]]).tolist() == ["stay", "go"]
    assert again.act(2) == "go"  # the label
    with pytest.raises(ValueError, match="there is no state 1; the closest are"):
        again.act([1.0, 3.0])  # a cell of the discretizer that the log does not have
    with pytest.raises(ValueError, match="state must be a single state"):
        again.index([[0.0, 0.0]])
    with pytest.raises(ValueError, match="states: 3 is not a state of the discretizer"):
        Labels([0, 3], [0], cells)
