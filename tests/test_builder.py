"""Logs that arrive in pieces: the same bytes as in one piece, and messages that count from the beginning of the log."""

import re
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dpdl import Dataset, DatasetBuilder
from dpdl.data import packing
from dpdl.data.units import Units
from logs import GAMMA, KINDS, assert_same, columns, contents, make_log, nothing_else

SIZES = {"n_states": 4, "n_actions": 3}

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture(params=[1, 7, packing.CHUNK])
def _chunk(request, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", request.param)


def pieces(data, starts, cuts):
    """Cut columns, and starts with them, at the given positions."""
    n = len(data["s"])
    for first, last in zip([0, *cuts], [*cuts, n], strict=True):
        chunk = {name: column[first:last] for name, column in data.items()}
        if starts is not None:
            chunk["starts"] = [k - first for k in starts if first <= k < last]
        yield chunk


CUTS = ([], [30], [1, 2, 17, 17, 39, 59], list(range(1, 60)))


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_utilities", [0, 1, 3])
@pytest.mark.parametrize("cuts", CUTS)
def test_pieces_make_the_same_files_as_the_whole(tmp_path, kind, n_utilities, cuts):
    data, starts = columns(kind, n_utilities)
    scales = {"reward_scale": 1.7, "utility_scale": [1.1, 1.2, 1.3][:n_utilities]}
    Dataset(**data, **SIZES, **scales, starts=starts).save(tmp_path / "whole")
    with DatasetBuilder(tmp_path / "built", **SIZES, **scales, n_utilities=n_utilities) as builder:
        for chunk in pieces(data, starts, cuts):
            builder.append(**chunk)
        assert len(builder) == 60
        assert not (tmp_path / "built").exists()
    assert contents(tmp_path / "built") == contents(tmp_path / "whole")
    nothing_else(tmp_path, "whole", "built")


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_utilities", [0, 3])
@pytest.mark.parametrize("normalised", [True, False])
def test_costs_in_pieces_get_the_units_of_the_whole(tmp_path, kind, n_utilities, normalised):
    data, starts = columns(kind, n_utilities)
    costs = 7.3 * data["u"]
    costs[:, :1] = 0.5 if normalised else 0.5 * (1 - GAMMA)  # a utility that is zero throughout
    rule = {"limits": np.linspace(0.5, 1.5, n_utilities), "gamma": GAMMA, "normalised": normalised, "reward_scale": 2}
    rest = {name: data[name] for name in ("s", "a", "s_next", "r")}
    Dataset.from_costs(**rest, costs=costs, **rule, **SIZES, starts=starts).save(tmp_path / "whole")
    with DatasetBuilder.from_costs(tmp_path / "built", **rule, **SIZES) as builder:
        for chunk in pieces({**rest, "u": costs}, starts, [5, 30]):
            builder.append(**chunk)
    assert contents(tmp_path / "built") == contents(tmp_path / "whole")


def test_pieces_that_are_a_saved_log_are_that_log(tmp_path):
    log = make_log("trajectories", 2)
    with DatasetBuilder(tmp_path / "log", **SIZES, n_utilities=2) as builder:
        for first in range(0, 60, 7):
            part = log[first : first + 7]
            begins = [k - first for k in log.starts if first <= k < first + 7]
            builder.append(part.s, part.a, part.s_next, part.r, part.u, begins)
    assert_same(Dataset.open(tmp_path / "log"), log)


def test_a_huge_state_space_costs_what_the_log_does(tmp_path):
    top = 2**31 - 1
    with DatasetBuilder(tmp_path / "log", n_states=top, n_actions=top, n_utilities=0) as builder:
        builder.append([top - 1, 0], [top - 1, 0], [0, 0], [0, 0], np.empty((2, 0)))
        builder.append([top - 1, 0], [0, top - 1], [0, 0], [0, 0], np.empty((2, 0)))
    assert Dataset.open(tmp_path / "log").pairs.tolist() == [0, top - 1, (top - 1) * top, top * top - 1]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"s": [0, 4]}, ValueError, "s[61] = 4 must be between 0 and 3"),
        ({"a": [3, 0]}, ValueError, "a[60] = 3 must be between 0 and 2"),
        ({"s_next": [0, -1]}, ValueError, "s_next[61] = -1 must be between 0 and 3"),
        ({"r": [0.0, np.nan]}, ValueError, "r[61] = nan must be finite"),
        ({"r": [0.0, 1.5]}, ValueError, "r[61] = 1.5 must be <= 1 after division by reward_scale"),
        ({"u": [[0.0], [-2.0]]}, ValueError, "u[61, 0] = -2.0 must be >= -1 after division by utility_scale"),
        ({"u": [[0.0, 0.0]] * 2}, ValueError, "u must have shape (2, 1), got (2, 2)"),
        ({"a": [0]}, ValueError, "a must have shape (2,), got (1,)"),
        ({"s": [0.5, 1.0]}, ValueError, "s[60] = 0.5 must be a whole number"),
        ({"starts": None}, TypeError, "give starts with every chunk"),
        ({"starts": [2]}, ValueError, "starts[0] = 2 must be between 0 and 1"),
        ({"starts": [1, 0]}, ValueError, "starts must ascend, but starts[1] = 0 follows 1"),
        ({"s": [3, 1], "starts": [1]}, ValueError, "s_next[59] = 0 but s[60] = 3: a trajectory ends there, so starts"),
        ({"s": [0, 2], "starts": []}, ValueError, "s_next[60] = 1 but s[61] = 2: a trajectory ends there, so starts"),
    ],
)
def test_a_refused_chunk_is_named_and_leaves_the_log_as_it_was(tmp_path, change, error, message):
    data, starts = columns("trajectory", 1)
    good = {"s": [0, 1], "a": [0, 0], "s_next": [1, 2], "r": [0.5, 0.5], "u": [[0.5], [0.5]], "starts": []}
    with DatasetBuilder(tmp_path / "log", **SIZES, n_utilities=1) as builder:
        builder.append(**data, starts=starts)
        with pytest.raises(error, match=f"^{re.escape(message)}"):
            builder.append(**{**good, **change})
        builder.append(**good)
    whole = {name: np.concatenate([data[name], good[name]]) for name in data}
    assert_same(Dataset.open(tmp_path / "log"), Dataset(**whole, **SIZES, starts=starts))


def test_costs_that_are_refused_are_named(tmp_path):
    rule = {"limits": [1e308], "gamma": GAMMA, "normalised": True}
    with DatasetBuilder.from_costs(tmp_path / "log", **rule, **SIZES) as builder:
        builder.append([0], [0], [0], [0.0], [[1.0]])
        for costs, message in (([[np.nan]], "costs[1, 0] = nan"), ([[-1e308]], "limits - costs[1, 0] = inf")):
            with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
                builder.append([0], [0], [0], [0.0], costs)
    assert len(Dataset.open(tmp_path / "log")) == 1


def test_an_exception_inside_leaves_nothing_behind(tmp_path):
    make_log().save(tmp_path / "log")
    before = contents(tmp_path / "log")
    for path in ("log", "other"):
        with (
            pytest.raises(ZeroDivisionError),
            DatasetBuilder(tmp_path / path, **SIZES, n_utilities=0, overwrite=True) as builder,
        ):
            builder.append([0], [0], [0], [1 / len(builder.append([0], [0], [0], [0.0], [[]]) or [])], [[]])
    assert contents(tmp_path / "log") == before
    nothing_else(tmp_path, "log")


def test_an_empty_log_is_refused_and_an_empty_chunk_is_not(tmp_path):
    nothing = ([], [], [], [], np.empty((0, 0)))
    with (
        pytest.raises(ValueError, match=r"^the data set is empty: no transition was appended$"),
        DatasetBuilder(tmp_path / "log", **SIZES, n_utilities=0) as builder,
    ):
        builder.append(*nothing)
    nothing_else(tmp_path)
    with DatasetBuilder(tmp_path / "log", **SIZES, n_utilities=0) as builder:
        builder.append(*nothing)
        builder.append([0], [0], [0], [0.0], [[]], starts=[0])
        builder.append(*nothing, starts=[])
    assert Dataset.open(tmp_path / "log").kind == "trajectory"


def test_the_first_chunk_begins_a_trajectory(tmp_path):
    with (
        pytest.raises(ValueError, match=r"^starts must begin with 0, got \[\]$"),
        DatasetBuilder(tmp_path / "log", **SIZES, n_utilities=0) as builder,
    ):
        builder.append([0], [0], [0], [0.0], [[]], starts=[])


def test_a_builder_is_used_once_and_inside_its_block(tmp_path):
    builder = DatasetBuilder(tmp_path / "log", **SIZES, n_utilities=0)
    chunk = ([0], [0], [0], [0.0], [[]])
    with pytest.raises(RuntimeError, match="append can only be called inside"):
        builder.append(*chunk)
    with builder:
        builder.append(*chunk)
    with pytest.raises(RuntimeError, match="append can only be called inside"):
        builder.append(*chunk)
    with pytest.raises(RuntimeError, match="a builder makes one data set"), builder:
        pass
    with (
        pytest.raises(FileExistsError, match="pass overwrite=True"),
        DatasetBuilder(tmp_path / "log", **SIZES, n_utilities=0),
    ):
        pass


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_states": 0}, ValueError, "n_states must be between 1 and"),
        ({"n_utilities": -1}, ValueError, "n_utilities must be between 0 and 65536, got -1"),
        ({"n_utilities": 2, "utility_scale": [1.0]}, ValueError, "utility_scale must have shape (2,), got (1,)"),
        ({"reward_scale": 0}, ValueError, "reward_scale must be > 0, got 0.0"),
        ({"overwrite": 1}, TypeError, "overwrite must be True or False, got 1"),
    ],
)
def test_bad_arguments_are_named(tmp_path, change, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        DatasetBuilder(tmp_path / "log", **{**SIZES, "n_utilities": 0, **change})


def test_chunks_of_several_threads_stay_whole(tmp_path):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with DatasetBuilder(tmp_path / "log", n_states=8, n_actions=1, n_utilities=1) as builder:

            def work(k):
                for _ in range(100):
                    builder.append([k, k], [0, 0], [k, k], [k / 8, k / 8], [[k / 8], [k / 8]])

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(before)
    log = Dataset.open(tmp_path / "log")
    assert np.bincount(log.s).tolist() == [200] * 8
    for column in (log.s_next, 8 * log.r, 8 * log.u[:, 0], np.repeat(log.s[::2], 2)):
        np.testing.assert_array_equal(column, log.s)


def test_units_that_make_no_sense_are_refused_before_any_work(tmp_path):
    for units, message in (
        (Units(-1.0, (1.0,)), r"^units: reward_scale must be > 0, got -1.0"),
        (Units(1.0, (float("nan"),)), r"^units: utility_scale"),
    ):
        with pytest.raises(ValueError, match=message):
            DatasetBuilder.of_packed(tmp_path / "log", n_states=1, n_actions=1, units=units)
    with pytest.raises(TypeError, match="units must be a Units, got float"):
        DatasetBuilder.of_packed(tmp_path / "log", n_states=1, n_actions=1, units=1.0)


def test_memory_does_not_grow_with_the_number_of_utilities(tmp_path):
    tracemalloc.start()
    with DatasetBuilder(tmp_path / "log", n_states=2, n_actions=1, n_utilities=2000) as builder:
        for _ in range(20):
            builder.append(*(np.zeros(50, dtype=int),) * 3, np.zeros(50), np.zeros((50, 2000)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120 * 2**20  # 2^18 records would be 4 GiB
