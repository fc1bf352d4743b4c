"""Reading a log from a table: every kind of table, episodes, ends, missing and malformed values."""

import datetime
import enum
import itertools
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import logs
from dpdl import read_log
from dpdl.data.labels import Labels

NAN = float("nan")
Color = enum.Enum("Color", "RED BLUE")

#: Two episodes. The first goes b -> a -> b, the second a -> c.
TABLE = {
    "ward": ["b", "a", "b", "a", "c"],
    "then": ["a", "b", "b", "c", "a"],
    "drug": [1, 0, 1, 1, 0],
    "gain": [1.0, 0.5, -2.0, 0.0, 4.0],
    "icu": [0.0, 1.0, 0.0, 0.5, 0.0],
    "falls": [0, 0, 1, 0, 0],
    "patient": ["p2", "p2", "p2", "p1", "p1"],
    "day": [1, 2, 3, 1, 2],
    "died": [False, False, True, False, False],
    "cut": [False, False, False, False, True],
}
NAMES = {"state": "ward", "action": "drug", "reward": "gain"}
EPISODES = {**NAMES, "episode": "patient", "terminated": "died"}
COSTS = ["icu", "falls"]


def read(source, **arguments):
    """The log of a table, with the rows that it is made of."""
    log = read_log(source, **arguments)
    names = ("s", "a", "s_next", "r", "terminated", "starts", "labels")
    return SimpleNamespace(
        **{name: getattr(log, name) for name in names},
        costs=log.records["u"], names=log.cost_names, notes=log._notes, initial=log._initial,
    )  # fmt: skip


def table(**columns):
    return {**TABLE, **columns}


def same(one, other):
    for name in ("s", "a", "s_next", "r", "costs", "terminated", "starts"):
        left, right = getattr(one, name), getattr(other, name)
        if left is None or right is None:
            assert left is right is None
        else:
            assert left.dtype == right.dtype
            assert left.tobytes() == right.tobytes(), name
    assert one.labels.to_json() == other.labels.to_json()
    assert (one.names, one.notes) == (other.names, other.notes)


# Episodes and ends.


def test_the_next_row_of_the_episode_is_the_next_state():
    log = read(TABLE, **EPISODES, costs=COSTS)
    assert log.labels.states == ("a", "b", "c")
    assert log.labels.actions == (0, 1)
    assert log.s.tolist() == [1, 0, 1, 0]
    assert log.s_next.tolist() == [0, 1, -1, 2]
    assert log.a.tolist() == [1, 0, 1, 1]
    assert log.r.tolist() == [1.0, 0.5, -2.0, 0.0]
    assert log.costs.tolist() == [[0, 0], [1, 0], [0, 1], [0.5, 0]]
    assert log.terminated.tolist() == [False, False, True, False]
    assert log.starts.tolist() == [0, 3]
    assert log.names == ("icu", "falls")
    assert [array.dtype for array in (log.s, log.a, log.s_next, log.starts)] == [np.int32] * 3 + [np.int64]
    (note,) = log.notes  # row 4 stops without an end
    assert note.startswith("1 row was left out: the record of an episode stops there")


def test_with_next_states_no_row_is_left_out():
    log = read(TABLE, **EPISODES, next_state="then")
    assert log.s_next.tolist() == [0, 1, -1, 2, 0]
    assert log.starts.tolist() == [0, 3]
    assert log.notes == ()


@pytest.mark.parametrize(
    ("ends", "terminated"),
    [
        ({"terminated": True}, [0, 0, 1, 0, 1]),
        ({"terminated": "died", "truncated": "cut"}, [0, 0, 1, 0]),
        ({"terminated": True, "truncated": "cut"}, [0, 0, 1, 0]),  # those that were not cut ended
        ({"terminated": "died", "truncated": True}, [0, 0, 1, 0]),
        ({"terminated": False}, [0, 0, 0]),
        ({"truncated": True}, [0, 0, 0]),
    ],
)
def test_ways_to_say_how_episodes_end(ends, terminated):
    log = read(TABLE, **{**EPISODES, "terminated": None, **ends})
    assert log.terminated.tolist() == terminated
    assert ((log.s_next < 0) == log.terminated).all()
    n_stopped = 2 - sum(terminated)
    assert len(log.s) == 5 - n_stopped
    assert bool(log.notes) == bool(n_stopped)


def test_episodes_in_row_order_without_a_column_for_them():
    log = read(TABLE, **NAMES, terminated="died", truncated="cut")
    same(log, read(TABLE, **EPISODES, truncated="cut"))
    chained = read(TABLE, **NAMES, terminated="died", truncated="cut", next_state="then")
    assert chained.starts.tolist() == [0, 3]
    assert len(chained.s) == 5
    alone = read(TABLE, **NAMES, terminated="died", truncated=True)  # the table itself stops
    same(alone, log)


def test_independent_transitions():
    log = read(TABLE, **NAMES, next_state="then")
    assert log.starts is None
    assert not log.terminated.any()
    ended = read(TABLE, **NAMES, next_state="then", terminated="died")
    assert ended.starts is None
    assert ended.s_next.tolist() == [0, 1, -1, 2, 0]


def test_time_sorts_the_rows_of_an_episode():
    wanted = read(TABLE, **EPISODES)
    order = [4, 2, 0, 3, 1]
    shuffled = {name: [values[k] for k in order] for name, values in TABLE.items()}
    log = read(shuffled, **EPISODES, time="day")
    # Episodes in the order of their first rows: p1 first.
    assert log.s.tolist() == [0, 1, 0, 1]
    assert log.s_next.tolist() == [2, 0, 1, -1]
    assert log.starts.tolist() == [0, 1]
    assert sorted(log.r.tolist()) == sorted(wanted.r.tolist())
    dates = [datetime.date(2024, 1, day) for day in shuffled["day"]]
    same(log, read({**shuffled, "day": dates}, **EPISODES, time="day"))
    same(log, read({**shuffled, "day": np.array(dates, dtype="M8[ns]")}, **EPISODES, time="day"))
    aware = [datetime.datetime(2024, 1, day, tzinfo=datetime.UTC) for day in shuffled["day"]]
    same(log, read({**shuffled, "day": aware}, **EPISODES, time="day"))
    same(log, read(pl.DataFrame({**shuffled, "day": aware}), **EPISODES, time="day"))


def test_the_next_state_after_an_end_is_not_looked_at():
    then = ["a", "b", None, "c", "a"]
    log = read(table(then=then), **EPISODES, next_state="then")
    same(log, read(table(then=["a", "b", "heaven", "c", "a"]), **EPISODES, next_state="then"))
    assert log.labels.states == ("a", "b", "c")  # an end is no state


# Labels.


def test_several_columns_make_tuples():
    log = read(TABLE, **{**EPISODES, "state": ["ward", "icu"], "action": ["drug"]})
    assert log.labels.states == (("a", 0.5), ("a", 1.0), ("b", 0.0), ("c", 0.0))
    assert log.labels.actions == ((0,), (1,))
    assert log.s.tolist() == [2, 1, 2, 0]
    assert log.s_next.tolist() == [1, 2, -1, 3]


def test_tuples_of_states_and_next_states():
    two = table(x=[1, 1, 2], ward=["a", "b", "a"], y=[1, 2, 1], then=["b", "a", "b"])
    names = {**NAMES, "state": ["ward", "x"], "next_state": ["then", "y"]}
    log = read({name: values[:3] for name, values in two.items()}, **names)
    assert log.labels.states == (("a", 1), ("a", 2), ("b", 1))
    assert log.s.tolist() == [0, 2, 1]
    assert log.s_next.tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("wards", "labels"),
    [
        ([10, 9, 10, 9, 8], (8, 9, 10)),
        (np.array([10, 9, 10, 9, 8], dtype=np.uint8), (8, 9, 10)),
        ([1.5, 0.5, 1.5, 0.5, -1.0], (-1.0, 0.5, 1.5)),
        ([1.0, 0.0, 1.0, 0.0, 2.0], (0, 1, 2)),  # whole numbers as floats, as a missing value makes them
        ([True, False, True, False, False], (False, True)),
        ([(1, "a"), (0, "b"), (1, "a"), (0, "b"), (0, "a")], ((0, "a"), (0, "b"), (1, "a"))),
        (np.array(["b", "a", "b", "a", "c"]), ("a", "b", "c")),
        (np.array(["2024-01-02", "2024-01-01"] * 2 + ["2024-01-03"], dtype="M8[D]"), None),
        (np.array(["2024-01-02", "2024-01-01"] * 2 + ["2024-01-03"], dtype="M8[ns]"), None),
    ],
)
def test_labels_of_any_kind(wards, labels):
    log = read(table(ward=wards), **NAMES, episode="patient", terminated=True)
    assert labels is None or log.labels.states == labels
    assert [log.labels.states[k] for k in log.s] == [wards[k] if labels else wards[k].item() for k in range(5)] or (
        wards.dtype == "M8[ns]"
    )
    assert log.labels.from_json(log.labels.to_json()) == log.labels


# Kinds of tables.


def every_kind(columns, folder):
    """The same table in all ways."""
    frame = pd.DataFrame(columns)
    arrow = pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})
    pa.csv.write_csv(arrow, folder / "log.csv")
    pa.parquet.write_table(arrow, folder / "log.parquet")
    (folder / "parts").mkdir()
    pa.parquet.write_table(arrow, folder / "parts" / "one.parquet")
    categories = {name: "category" for name in ("ward", "then", "patient")}
    found = {
        "dict of lists": columns,
        "dict of arrays": {name: np.asarray(values) for name, values in columns.items()},
        "dict of series": dict(frame),
        "pandas": frame,
        "pandas nullable": frame.convert_dtypes(),
        "pandas arrow": frame.convert_dtypes(dtype_backend="pyarrow"),
        "pandas objects": frame.astype(object),
        "pandas categories": frame.astype(categories),
        "polars": pl.DataFrame(columns),
        "polars categories": pl.DataFrame(columns).cast({name: pl.Categorical for name in categories}),
        "pyarrow": arrow,
        "pyarrow dictionaries": pa.table(
            {name: arrow[name].dictionary_encode() if name in categories else arrow[name] for name in columns}
        ),
        "pyarrow batches": pa.RecordBatchReader.from_batches(arrow.schema, arrow.to_batches(max_chunksize=2)),
        "pyarrow batch": arrow.to_batches()[0],
        "csv": folder / "log.csv",
        "parquet": str(folder / "log.parquet"),
        "folder": folder / "parts",
    }
    if not any(value is None for values in columns.values() for value in values):
        found["structured"] = frame.astype({name: "U9" for name in categories}).to_records(index=False)
    return found


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_every_kind_of_table_gives_the_same_bits(tmp_path, missing):
    columns = TABLE if missing == "error" else table(gain=[1.0, None, -2.0, 0.0, 4.0], ward=["b", "a", "b", None, "c"])
    wanted = read(columns, **EPISODES, costs=COSTS, missing=missing)
    as_text = read({**columns, "drug": [str(one) for one in columns["drug"]]}, **EPISODES, costs=COSTS, missing=missing)
    for name, one in every_kind(columns, tmp_path).items():
        try:
            same(read(one, **EPISODES, costs=COSTS, missing=missing), as_text if name == "csv" else wanted)
        except Exception as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize(
    "wards",
    [
        [datetime.date(2024, 1, 1), 0, 0, 0, 0],
        [True, 1.5, 0, 0, 0],
        [datetime.datetime(2024, 1, 1), float("inf"), 0, 0, 0],
        [True, 1, 0, 0, 0],
        ["a", 1, "b", "b", "b"],
    ],
)
def test_objects_of_pandas_are_not_converted_to_one_kind(wards):
    """Arrow would make numbers of dates and of True, or fail in its own words."""
    for one in (table(ward=wards), pd.DataFrame(table(ward=pd.Series(wards, dtype=object)))):
        with pytest.raises(ValueError, match=r"column 'ward' \(state\): labels of one column must be of one kind, got"):
            read(one, **EPISODES)


def test_times_of_pandas_become_those_of_python():
    stamps = list(pd.to_datetime(["2024-01-02", "2024-01-01"] * 2 + ["2024-01-03"]))
    for one in (stamps, pd.Series(stamps, dtype=object)):
        labels = read(table(ward=one), **EPISODES).labels.states
        assert labels == tuple(datetime.datetime(2024, 1, k) for k in (1, 2, 3))
        assert {type(label) for label in labels} == {datetime.datetime}
    with pytest.raises(ValueError, match="not whole microseconds"):
        read(table(ward=[pd.Timestamp(1), *stamps[1:]]), **EPISODES)


@pytest.mark.parametrize("module", ["duckdb", "narwhals"])
def test_every_table_needs_the_extra(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "log.csv").write_text("ward,drug\n")
    for source in (tmp_path / "log.csv", pd.DataFrame(TABLE), TABLE):
        with pytest.raises(ImportError, match=rf"^tables need {module}: pip install 'dpdl\[table\]'$"):
            read(source, **EPISODES)


def test_importing_dpdl_imports_no_table_library():
    code = "import sys, dpdl; print([one for one in ('pyarrow', 'pandas', 'polars') if one in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_columns_that_are_not_named_are_not_looked_at():
    extra = pd.DataFrame(table(comment=[1, "x", None, (1, 2), {"a"}]))
    same(read(extra, **EPISODES), read(TABLE, **EPISODES))


# Missing and malformed values.

MANY = {
    **TABLE,
    "ward": ["b", None, "b", "a", "c"],
    "gain": [1.0, "much", NAN, float("inf"), 4.0],
    "icu": [0.0, None, None, 0.5, 0.0],
    "died": [False, False, 2, False, False],
}


def test_all_faults_are_reported_at_once():
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read(MANY, **EPISODES, costs=COSTS)
    assert str(error.value).splitlines() == [
        'the table has missing or malformed values; missing="drop" leaves out these rows (rows are counted from 0):',
        "  column 'died' (terminated): 1 not true or false, in row 2 ('2')",
        "  column 'gain' (reward): 1 missing, in row 2",
        "  column 'gain' (reward): 1 not a number, in row 1 ('much')",
        "  column 'gain' (reward): 1 infinite, in row 3 (inf)",
        "  column 'icu' (costs): 2 missing, in rows 1, 2",
        "  column 'ward' (state): 1 missing, in row 1",
    ]


def test_dropping_says_how_many_and_why():
    log = read(MANY, **{**EPISODES, "terminated": True}, costs=COSTS, missing="drop")
    assert log.s.tolist() == [0]
    assert log.s_next.tolist() == [-1]
    assert log.labels.states == ("c",)
    dropped, unknown, split, first = log.notes
    assert dropped.startswith("3 rows were left out because of missing or malformed values; ")
    assert "column 'gain' (reward): 1 not a number; column 'gain' (reward): 1 infinite" in dropped
    assert unknown == "1 row was left out, because the state in the row that follows is missing"
    assert split.startswith("episodes are split where rows were left out (places: 1)")
    assert first.startswith("the first row of 2 episodes was left out; its state, if known, still counts")


def test_a_dropped_row_is_still_the_next_state_of_the_one_before():
    """Only its reward is missing; after it the episode is split, so no transition skips it."""
    log = read(table(gain=[1.0, None, -2.0, 0.0, 4.0]), **EPISODES, missing="drop")
    assert [log.labels.states[k] for k in log.s] == ["b", "b", "a"]
    assert [log.labels.states[k] if k >= 0 else None for k in log.s_next] == ["a", None, "c"]
    assert log.starts.tolist() == [0, 1, 2]
    assert any("episodes are split where rows were left out (places: 1)" in note for note in log.notes)


def test_where_the_state_is_missing_the_row_before_cannot_be_used():
    log = read(table(ward=["b", None, "b", "a", "c"]), **EPISODES, missing="drop")
    assert [log.labels.states[k] for k in log.s] == ["b", "a"]
    assert log.terminated.tolist() == [True, False]
    assert "1 row was left out, because the state in the row that follows is missing" in log.notes


def test_with_next_states_only_the_faulty_rows_are_dropped():
    log = read(table(ward=["b", None, "b", "a", "c"]), **EPISODES, next_state="then", missing="drop")
    assert log.r.tolist() == [1.0, -2.0, 0.0, 4.0]
    assert log.starts.tolist() == [0, 1, 2]


def test_an_episode_without_a_time_is_dropped_whole():
    log = read(table(day=[1, None, 3, 1, 2]), **{**EPISODES, "terminated": True}, time="day", missing="drop")
    assert log.r.tolist() == [0.0, 4.0]
    assert any(
        "1 episode was left out whole, because a time there is missing or malformed" in note for note in log.notes
    )


def test_unknown_ends_in_row_order_conclude_nothing():
    log = read(
        table(died=[False, None, True, False, False]), **NAMES, terminated="died", truncated="cut", missing="drop"
    )
    assert log.r.tolist() == [1.0, -2.0, 0.0]
    assert log.starts.tolist() == [0, 1, 2]


def by_hand(columns, terminated):
    """The transitions by label, trajectory by trajectory, in plain Python; rows with missing values are dropped."""
    episodes = {}
    for k, name in enumerate(columns["patient"]):
        episodes.setdefault(name, []).append({one: values[k] for one, values in columns.items()})
    trajectories = []
    for rows in episodes.values():
        if any(row["day"] is None for row in rows):
            continue
        rows = sorted(rows, key=lambda row: row["day"])
        unbroken = False
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            ends = after is None if terminated is True else row["died"]
            following = None if after is None else after["ward"]
            if None in (row["ward"], row["gain"], ends) or not (ends or following):
                unbroken = False
                continue
            trajectories += [] if unbroken else [[]]
            trajectories[-1].append((row["ward"], row["drug"], row["gain"], None if ends else following))
            unbroken = True
    return trajectories


@pytest.mark.parametrize("seed", range(40))
def test_against_plain_python(seed):
    rng = np.random.default_rng(seed)
    n, terminated = int(rng.integers(5, 60)), rng.choice(["died", True])
    columns = {
        "patient": rng.integers(6, size=n).tolist(),
        "day": rng.permutation(n).tolist(),
        "ward": rng.choice(["a", "b", "c", "d"], size=n).tolist(),
        "drug": rng.choice(["x", "y"], size=n).tolist(),
        "gain": rng.normal(size=n).tolist(),
        "died": [False] * n,
    }
    for name in set(columns["patient"]):
        last = max((k for k in range(n) if columns["patient"][k] == name), key=lambda k: columns["day"][k])
        columns["died"][last] = bool(rng.integers(2))
    for name, share in (("ward", 0.1), ("gain", 0.1), ("died", 0.05), ("day", 0.01)):
        for k in np.flatnonzero(rng.random(n) < share):
            columns[name][k] = None
    terminated = True if terminated == "True" else "died"
    if terminated is True:
        del columns["died"]
    log = read(columns, **NAMES, episode="patient", time="day", terminated=terminated, missing="drop")
    states, actions = log.labels.states, log.labels.actions
    rows = [
        (states[s], actions[a], r, states[s_next] if s_next >= 0 else None)
        for s, a, r, s_next in zip(log.s, log.a, log.r, log.s_next, strict=True)
    ]
    bounds = [*log.starts, len(rows)]
    found = [rows[first:last] for first, last in itertools.pairwise(bounds)]
    assert found == by_hand(columns, terminated)
    assert (log.terminated == (log.s_next < 0)).all()


def text(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_bad_values_in_a_csv_are_found_by_row(tmp_path):
    """One word makes text of the whole column, but only that word is reported."""
    path = text(tmp_path / "log.csv", "ward,drug,gain,end", "a,1,0.5,false", "b,0,lots,true", ",1,2,maybe", "c,,3,True")
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read(path, state="ward", action="drug", reward="gain", next_state=None, terminated="end", truncated=True)
    assert str(error.value).partition(": column ")[2] == (
        "'end' (terminated): 1 not true or false, in row 2 ('maybe') column 'gain' (reward): 1 not a number, in row 1 "
        "('lots') column 'drug' (action): 1 missing, in row 3 column 'ward' (state): 1 missing, in row 2"
    )


def test_labels_in_a_csv_are_text(tmp_path):
    def labels(*lines):
        path = text(tmp_path / "log.csv", "ward,drug,gain,next", *lines)
        return read(path, state="ward", action="drug", reward="gain", next_state="next").labels

    assert labels("007,1,1.50,7", "7,2,1.5,007") == Labels(["007", "7"], ["1", "2"])
    assert labels("1,0,1,1.0", "1.0,0,1,1") == Labels(["1", "1.0"], ["0"])
    assert labels(f"{'0' * 64},0,1,b", "b,0,1,b").states == ("0" * 64, "b")


# Malformed tables, one clear error each.

FAULTS = "the table has missing or malformed values"


def case(name, message, columns=TABLE, error=ValueError, **changes):
    return pytest.param(columns, EPISODES | changes, error, message, id=name)


def malformed():
    for name, role in [
        ("ward", "state"),
        ("drug", "action"),
        ("gain", "reward"),
        ("icu", "costs"),
        ("falls", "costs"),
        ("patient", "episode"),
        ("day", "time"),
        ("died", "terminated"),
        ("cut", "truncated"),
    ]:
        changes = {"costs": COSTS, "time": "day", "truncated": "cut"}
        for what, nothing in (("None", None), ("NaN", NAN)):
            values = [*TABLE[name][:3], nothing, *TABLE[name][4:]]
            message = rf"{FAULTS}.*\n  column '{name}' \({role}\): 1 missing, in row 3$"
            yield case(f"{what} in {name}", message, table(**{name: values}), **changes)
    yield case(
        "missing next state",
        r"column 'then' \(next_state\): 1 missing, in row 1$",
        table(then=["a", None, "b", "c", "a"]),
        next_state="then",
    )
    yield case("infinite reward", r"1 infinite, in row 4 \(-inf\)", table(gain=[1, 2, 3, 4, -np.inf]))
    yield case(
        "text reward",
        r"column 'gain' \(reward\): 5 not a number, in rows 0, 1, 2, 3, 4 \('a', 'b', 'c', 'd', 'e'\)",
        table(gain=list("abcde")),
    )
    yield case("reward of dates", "5 not a number", table(gain=np.array(["2024-01-01"] * 5, dtype="M8[D]")))
    yield case("complex reward", "5 not a number", table(gain=np.ones(5) * 1j))
    yield case("infinite cost", r"column 'icu' \(costs\): 1 infinite", table(icu=[0, 0, np.inf, 0, 0]), costs=COSTS)
    yield case("infinite label", r"column 'ward' \(state\): 1 infinite", table(ward=[1, 2, np.inf, 2, 1]))
    yield case("end is a number", r"1 not true or false, in row 4 \(2\)", table(died=[0, 0, 1, 0, 2]))
    yield case("end is text", r"5 not true or false", table(died=["no", "no", "yes", "no", "no"]))
    yield case("time is text", "5 not a number or a date", table(day=list("abcab")), time="day")
    yield case("time is infinite", "1 infinite", table(day=[1, 2, np.inf, 1, 2]), time="day")
    yield case(
        "mixed labels",
        r"^column 'ward' \(state\): labels of one column must be of one kind, got 1 \(number\) and '1' \(text\)$",
        table(ward=[1, "1", 1, "1", 2]),
    )
    yield case(
        "mixed with bool",
        r"^column 'drug' \(action\): .* got 1 \(number\) and True \(bool\)$",
        table(drug=[1, True, 0, 1, 0]),
    )
    yield case(
        "state and next state mixed",
        r"^column 'ward' \(state\) and column 'then' \(next_state\): .*got '[ab]' \(text\) and 0 \(number\)$",
        table(then=[0, 1, 0, 1, 0]),
        next_state="then",
    )
    yield case("mixed pandas", "must be of one kind", pd.DataFrame(table(ward=[1, "1", 1, "1", 2])))
    yield case("mixed episodes", r"^column 'patient' \(episode\): .*kind", table(patient=["1", "1", "1", 1, 1]))
    yield case(
        "unhashable labels",
        r"^column 'ward' \(state\): unhashable type: 'dict'$",
        table(ward=[{}, {}, {}, {}, {}]),
        error=TypeError,
    )
    yield case(
        "repeated time",
        r"^column 'day' \(time\): a time must not occur twice in an episode; rows 1 and 2 of episode 'p2' \(",
        table(day=[1, 2, 2, 1, 2]),
        time="day",
    )
    yield case(
        "episodes apart",
        r"^column 'patient' \(episode\): the rows of an episode must be together \(sort the table, or pass "
        r"time=\); rows 0 and 2 of episode 'p2' \(such rows: 2\)$",
        table(patient=["p2", "p1", "p2", "p1", "p1"]),
    )
    yield case(
        "not chained",
        r"^episodes do not chain: a next state is not the state of the row that follows in the episode; row 1 has the "
        r"next state 'c', and row 2, which follows, the state 'b' \(such rows: 1\)$",
        table(then=["a", "c", "b", "c", "a"]),
        next_state="then",
    )
    yield case(
        "unsorted and not chained",
        r"^episodes do not chain: .*; row 0 has the next state 'a', and row 2, which follows, the state 'b'",
        table(day=[1, 3, 2, 1, 2]),
        next_state="then",
        terminated=None,
        time="day",
    )
    yield case(
        "end in the middle",
        r"^column 'died' \(terminated\): only the last row of an episode can be terminated; such rows: 1, "
        r"in row 0$",
        table(died=[True, False, True, False, False]),
    )
    yield case(
        "cut in the middle",
        r"^column 'cut' \(truncated\): only the last row .*; such rows: 2, in rows 1, 3$",
        table(cut=[False, True, False, True, True]),
        truncated="cut",
    )
    yield case(
        "ends not said",
        r"^without next_state it must be said whether the last row of an episode ends it: pass terminated=",
        terminated=None,
    )
    yield case(
        "ends half said",
        r"^column 'cut' \(truncated\): the last row of an episode is not truncated; pass terminated= .*, in row 2$",
        terminated=None,
        truncated="cut",
    )
    yield case(
        "never truncated",
        r"^truncated=False says that every episode ends; pass truncated=True .*; such rows: 1, in row 4$",
        truncated=False,
    )
    yield case("two ends", "contradict each other", terminated=True, truncated=True)
    yield case(
        "no episodes", r"^without next_state the next row of the episode is the next state: pass episode=", episode=None
    )
    yield case(
        "last rows of no episodes",
        r"^without episode=, terminated= must be a column",
        episode=None,
        next_state="then",
        terminated=True,
    )
    yield case("last rows in row order", r"needs episode=$", episode=None, terminated=True, truncated="cut")
    yield case(
        "time without episodes",
        r"^time sorts the rows of an episode, so it needs episode=",
        episode=None,
        next_state="then",
        time="day",
        terminated=None,
    )
    yield case(
        "unknown columns",
        r"^the table has no column 'gian' \(reward\), did you mean 'gain'\?, 'room' \(state\); its columns are 'ward',",
        reward="gian",
        state="room",
    )
    yield case("unknown cost", r"^the table has no column 'burns' \(costs\)", costs=["icu", "burns"])
    yield case("costs with limits", r"^costs must be the name of a column or a list", error=TypeError, costs={"icu": 1})
    yield case("one column twice", r"^state and next_state both name the column 'ward'$", next_state="ward")
    yield case("one state column twice", "must name distinct columns", state=["ward", "ward"])
    yield case(
        "too few next states",
        r"^next_state must name as many columns as state, got \['then'\] and \['ward', 'icu'\]$",
        state=["ward", "icu"],
        next_state=["then"],
    )
    yield case("a number for a name", r"^state must be the name of a column or a list", error=TypeError, state=3)
    yield case("a number for an end", r"^terminated must be the name of a column,", error=TypeError, terminated=1)
    yield case("unknown rule", r"^missing must be one of 'error', 'drop'", missing="skip")
    yield case("no rows", r"^the table has no rows$", {name: [] for name in TABLE})
    yield case("no rows in pandas", r"^the table has no rows$", pd.DataFrame(TABLE)[:0])
    yield case("no columns", r"^the table has no column .*'gain' \(reward\)", {})
    yield case(
        "one row that stops",
        r"^no row of the table can be used; 1 row was left out: the record of an episode stops there",
        {name: values[3:4] for name, values in TABLE.items()},
    )
    yield case(
        "all dropped",
        r"^no row of the table can be used; 5 rows were left out because of missing or malformed values",
        table(gain=[None] * 5),
        missing="drop",
    )
    yield case(
        "dropped episodes",
        r"^rows whose episode is not known cannot be dropped: .*\n  column 'patient' \(episode\): 1 missing, in row 1$",
        table(patient=["p2", None, "p2", "p1", "p1"]),
        missing="drop",
    )
    yield case("lengths", r"^the columns differ in length: .* 2 in column 'gain'", table(gain=[1.0, 2.0]))
    yield case(
        "two dimensions", r"^column 'gain' must have one dimension, got shape \(5, 2\)$", table(gain=np.ones((5, 2)))
    )
    yield case(
        "a number as a column",
        r"^column 'gain' must be an array or a list, got float$",
        table(gain=3.0),
        error=TypeError,
    )
    yield case(
        "text as a column", r"^column 'ward' must be an array or a list, got str$", table(ward="abaca"), error=TypeError
    )
    yield case("rows", r"^source must be a data frame, an Arrow table, .* got list$", [TABLE], error=TypeError)
    yield case(
        "matrix", r"^source must be a data frame, an Arrow table, .* got ndarray$", np.ones((3, 3)), error=TypeError
    )
    twice = pd.DataFrame(TABLE)
    twice.columns = [*twice.columns[:-1], "gain"]
    yield case("a name twice", r"^the table has more than one column 'gain'$", twice)
    ids = np.array([2.0**60, 1, 1, 1, 1])
    yield case("large floats", r"^column 'ward' \(state\): numbers beyond 2\^53", table(ward=ids))
    finer = np.array(["2024-01-01T00:00:00.000000001"] * 5, dtype="M8[ns]")
    yield case("nanoseconds", "not whole microseconds cannot be labels$", table(ward=finer))


MALFORMED = list(malformed())


def test_there_are_at_least_forty():
    assert len({one.id for one in MALFORMED}) == len(MALFORMED) >= 40


@pytest.mark.parametrize(("columns", "arguments", "kind", "message"), MALFORMED)
def test_malformed(columns, arguments, kind, message):
    with pytest.raises(kind, match=f"(?s){message}"):
        read(columns, **arguments)


@pytest.mark.parametrize(
    ("name", "lines", "kind", "message"),
    [
        (
            "log.csv",
            ["ward,drug,gain,next", "a,1,0,b", "b,1"],
            ValueError,
            "it cannot be read: Invalid Input Error: .*log.csv",
        ),
        ("log.csv", ["ward,drug,gain,next"], ValueError, "log.csv: the table has no rows$"),
        ("log.csv", ["ward,drug,gain,gain,next", "a,1,0,0,a"], ValueError, "more than one column 'gain'"),
        (
            "log.csv",
            ["ward;drug;gain;next", "a;1;0;a"],
            ValueError,
            "no column 'gain'.*its columns are 'ward;drug;gain;next'",
        ),
        ("log.txt", ["ward,drug,gain,next", "a,1,0,a"], ValueError, "log.txt: a log is a file that ends in .csv, "),
        ("log.parquet", ["PAR1"], ValueError, "it cannot be read: .*log.parquet"),
    ],
)
def test_malformed_files(tmp_path, name, lines, kind, message):
    path = text(tmp_path / name, *lines)
    with pytest.raises(kind, match=message):
        read(path, state="ward", action="drug", reward="gain", next_state="next")


def test_an_empty_file_and_no_file(tmp_path):
    (tmp_path / "log.csv").write_text("")
    with pytest.raises(ValueError, match=r"log.csv: the file is empty$"):
        read(tmp_path / "log.csv", **EPISODES)
    with pytest.raises(FileNotFoundError, match=r"^there is no file .*none\.csv$"):
        read(tmp_path / "none.csv", **EPISODES)


# Data sets.


def clinic(n, seed=0):
    """A clinic's table: text labels, two costs, episodes of some ten rows, and a few missing values."""
    rng = np.random.default_rng(seed)
    wards = np.array(["ward", "icu", "theatre", "home care", "rehab"])
    ends = rng.random(n) < 0.1
    patient = np.append(0, np.cumsum(ends)[:-1])
    ward, drug = rng.integers(5, size=n), rng.integers(3, size=n)
    cured = rng.random(n) < 0.2 + 0.3 * (drug == 2)
    columns = {
        "patient": [f"p{k}" for k in patient],
        "day": np.arange(n) - np.flatnonzero(np.append(True, ends[:-1]))[patient],
        "ward": wards[ward].astype(object),
        "drug": np.array(["none", "low", "high"], dtype=object)[drug],
        "gain": 100.0 * cured - 5.0 * drug,
        "icu days": (rng.random(n) < 0.1 + 0.1 * (drug == 2)).astype(float),
        "side effects": np.where(drug == 2, rng.exponential(2.0, n), 0.0),
        "left": ends,
    }
    columns["ward"][rng.random(n) < 0.001] = None
    columns["gain"][rng.random(n) < 0.001] = NAN
    return columns


def write_csv(columns, path):
    pa.csv.write_csv(pa.table({name: pa.array(one, from_pandas=True) for name, one in columns.items()}), path)


def test_a_split_episode_does_not_begin_twice():
    """Where a row was left out the rest of the episode is a trajectory of its own, but not an episode."""
    log = logs.from_table(table(gain=[1.0, None, -2.0, 0.0, 4.0]), **EPISODES, missing="drop")
    assert log.starts.tolist() == [0, 1, 2]
    assert log.initial_counts.tolist() == [1, 1, 0]  # b of p2, a of p1
    first = logs.from_table(table(gain=[None, 0.5, -2.0, 0.0, 4.0]), **EPISODES, missing="drop")
    assert first.initial_counts.tolist() == [1, 1, 0]  # p2 began in b although that row was left out
    whole = logs.from_table(TABLE, **EPISODES)
    assert whole.initial_counts.tolist() == [1, 1, 0]
    timed = table(day=[1, None, 3, 1, 2], died=[False, False, True, False, True])
    timed = logs.from_table(timed, **EPISODES, time="day", next_state="then", missing="drop")
    assert timed.labels.states == ("a", "c")
    assert timed.initial().tolist() == [1, 0]


def test_labels_that_cannot_be_stored_are_named_before_anything_is_written(tmp_path):
    colors = [Color.RED, Color.BLUE, Color.RED, Color.BLUE, Color.BLUE]
    log = logs.from_table(table(ward=colors), **EPISODES)
    assert log.labels.states == (Color.RED, Color.BLUE)  # without an order: as they appear
    with pytest.raises(ValueError, match=r"^states: <Color\.RED: 1> cannot be stored: it is a Color$"):
        log.save(tmp_path / "log")
    assert list(tmp_path.iterdir()) == []
