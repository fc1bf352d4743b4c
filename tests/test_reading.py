"""What hostile trials of reading found wrong, each mended, and how logs are put together and looked at."""

import subprocess
import sys

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdl import Dataset, read_log

ROLES = {"state": "s", "action": "a", "reward": "r", "costs": ["c"], "episode": "e", "time": "t", "terminated": True}


def csv(path, *rows):
    path.write_text("\n".join(["s,a,r,c,e,t", *rows]) + "\n")
    return path


def test_times_with_zones_are_ordered_by_instant(tmp_path):
    """By the wall clock 09:00 in Berlin comes before 08:30 in London; it is half an hour earlier all the same."""
    rows = ("late,x,1,0,1,2024-01-01T08:30:00+00:00", "early,x,1,0,1,2024-01-01T09:00:00+01:00")
    assert read_log(csv(tmp_path / "log.csv", *rows), **ROLES).s.tolist() == [0, 1]  # early, late
    zones = pd.to_datetime(["2024-01-01T08:30Z", "2024-01-01T08:00Z"]).tz_convert("Asia/Tokyo")
    frame = pd.DataFrame({"s": ["late", "early"], "a": "x", "r": 1.0, "c": 0.0, "e": 1, "t": zones})
    assert read_log(frame, **ROLES).s.tolist() == [0, 1]


def test_part_10_comes_after_part_2_and_episodes_may_span_files(tmp_path):
    for number, rows in ((2, ["a,x,1,0,1,1", "b,x,2,0,2,5"]), (10, ["c,x,3,0,1,2", "d,x,4,0,2,3"])):
        csv(tmp_path / f"part-{number}.csv", *rows)
    roles = {name: value for name, value in ROLES.items() if name not in ("time", "episode", "terminated")}
    plain = read_log(tmp_path, **roles, next_state="e")
    assert plain.r.tolist() == [1, 2, 3, 4]
    for source in (tmp_path, tmp_path / "part-*.csv", [tmp_path / "part-10.csv", tmp_path / "part-2.csv"]):
        log = read_log(source, **ROLES)
        pairs = {
            (log.labels.states[s], "end" if n < 0 else log.labels.states[n])
            for s, n in zip(log.s, log.s_next, strict=True)
        }
        assert pairs == {("a", "c"), ("c", "end"), ("d", "b"), ("b", "end")}


def test_rows_that_are_lost_are_spoken_of(tmp_path):
    path = csv(tmp_path / "log.csv", "a,x,,0,1,1", "b,x,1,0,1,2", "c,x,1,0,2,", "d,x,1,0,2,2", "d,x,1,0,3,1")
    with pytest.raises(
        ValueError, match=r"column 'r' \(reward\): 1 missing, in row 0 .*column 't' \(time\): 1 missing"
    ):
        read_log(path, **ROLES)
    notes = read_log(path, **ROLES, missing="drop").notes
    assert any("the first row of 1 episode was left out" in note for note in notes)
    assert any("1 episode was left out whole, because a time there is missing" in note for note in notes)


def test_measurements_are_not_taken_for_states():
    x = np.random.default_rng(0).random(5000)
    table = {"s": x, "a": [0] * 5000, "r": x, "n": x}
    with pytest.raises(
        ValueError, match=r"column 's' \(state\).*: 5,000 different numbers would be as many states: pass"
    ):
        read_log(table, state="s", action="a", reward="r", next_state="n")
    log = read_log(table, state="s", action="a", reward="r", next_state="n", discretizer={"bins": 4})
    assert log.n_states == 4
    assert "4 states (discretised)" in repr(log)


@pytest.mark.parametrize("counts", [False, True])
def test_a_csv_is_discretised_like_the_table_that_it_was_written_from(tmp_path, counts):
    x = np.random.default_rng(0).normal(size=(400, 2))
    table = {
        "x": x[:, 0],
        "y": x[:, 1],
        "a": ["go"] * 400,
        "r": x[:, 0],
        "e": np.arange(400) // 20,
        "t": np.arange(400),
    }
    pd.DataFrame(table).to_csv(tmp_path / "log.csv", index=False)
    roles = {"state": ["x", "y"], "action": "a", "reward": "r", "episode": "e", "time": "t", "terminated": True}
    rows = read_log(table, **roles, discretizer={"bins": 3})
    log = read_log(tmp_path / "log.csv", **roles, discretizer={"bins": 3}, counts=counts)
    assert log.labels == rows.labels
    assert "9 states (discretised)" in repr(log)
    assert ("(means of cells)" in repr(log)) == counts
    for name in ("s", "s_next", "count"):
        np.testing.assert_array_equal(log.counts()[name], rows.counts()[name])
    if not counts:
        assert log.fingerprint == rows.fingerprint


def test_a_file_that_is_not_there_is_named_before_its_columns(tmp_path):
    for name in ("log.csv", "log.parquet", "part-*.csv", "log.npz"):
        with pytest.raises(FileNotFoundError, match="there is no file"):
            read_log(tmp_path / name)


def test_a_quoted_line_break_beyond_a_megabyte(tmp_path):
    long = "x\n" * 700_000
    path = csv(tmp_path / "log.csv", f'"{long}",x,1,0,1,1', "b,x,2,0,1,2")
    assert [len(label) for label in read_log(path, **ROLES).labels.states] == [1, 1_400_000]


def test_bombs_end_in_one_line_within_bounded_memory(tmp_path):
    """HDF5, npz and Parquet files of some kilobytes that would unpack to gigabytes, in a process of bounded memory."""
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
            file.create_dataset(name, (10**9,), "i1", chunks=(10**7,), compression="gzip")[:1] = 0
    np.savez(tmp_path / "many.npz", **{f"x{k}": 0 for k in range(2000)})
    column = pa.chunked_array([pa.DictionaryArray.from_arrays(pa.nulls(1 << 20, pa.int8()), pa.array([0]))] * 32)
    pq.write_table(pa.table({"s": column, "a": column, "r": column, "n": column}), tmp_path / "bomb.parquet")
    code = (
        "import sys, resource, dpdl, duckdb, h5py\n"
        "from dpdl.data import table\n"
        "table.os = type('os', (), {**vars(table.os), 'sysconf': staticmethod(lambda name: 1 << 16)})\n"
        "for path in sys.argv[1:]:\n"
        "    names = dict(state='s', action='a', reward='r', next_state='n') if path.endswith('t') else {}\n"
        "    try: dpdl.read_log(path, **names)\n"
        "    except ValueError as error: assert str(error).startswith(path + ': ') and '\\n' not in str(error), error\n"
        "    else: raise SystemExit('accepted ' + path)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    paths = [str(tmp_path / name) for name in ("bomb.h5", "many.npz", "bomb.parquet")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) * 1024 < 1.5e9


def test_logs_are_put_together_and_looked_at():
    table = {"s": ["a", "b", "a", "b"], "a": ["x"] * 4, "r": [1, 2, 3, 4], "c": [0, 1, 0, 5]}
    table |= {"e": [1, 1, 2, 2], "t": [1, 2, 1, 2]}
    log = read_log(table, **ROLES)
    both = log + log
    assert (len(both), both.starts.tolist()) == (8, [0, 2, 4, 6])
    assert repr(both) == ("Dataset(8 transitions, 4 episodes, 2 states, 1 actions, 2 pairs; reward 1 to 4, c 0 to 5)")
    frame = both.to_frame()
    assert list(frame.columns) == ["state", "action", "next_state", "terminated", "reward", "c", "episode"]
    assert frame["state"].tolist() == ["a", "b"] * 4
    assert frame["next_state"].isna().tolist() == [False, True] * 4
    again = read_log(frame, state="state", action="action", reward="reward", costs=["c"], next_state="next_state",
                     episode="episode", terminated="terminated")  # fmt: skip
    assert again.fingerprint == both.fingerprint
    other = Dataset([0], [0], [0], [0], n_states=1, n_actions=1)
    with pytest.raises(ValueError, match="the logs differ in n_states"):
        log + other
    with pytest.raises(TypeError):
        log + 3
    counted = Dataset.from_counts(**log.counts(), n_states=2, n_actions=1)
    assert counted.to_frame()["count"].sum() == 4
