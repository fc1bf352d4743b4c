"""Logs in formats of others: what is written is what is read, whatever the format."""

import sys

import gymnasium
import h5py
import numpy as np
import pandas
import pytest

import logs
from dpdl import Dataset, Discretizer, Policy, learn, read_log
from dpdl.data.sources import kind_of
from logs import assert_same
from recordings import GAMMA, OMNISAFE, episodes, fields, write_hdf5, write_minari, write_npz

COLUMNS = ("s", "a", "r", "c", "s_next", "end", "stop")
LIMITED = {"limits": "average", "gamma": GAMMA}


def expected(cost="costs", **changes):
    """The log of the record, made of the columns themselves."""
    table = dict(zip(COLUMNS, episodes(), strict=True)) | changes
    table[cost] = table.pop("c")
    return logs.from_table(
        table, state="s", action="a", reward="r", costs={cost: 0.7}, next_state="s_next", terminated="end",
        truncated="stop", **LIMITED,
    )  # fmt: skip


@pytest.fixture
def minari_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.mark.parametrize("write", [write_hdf5, write_npz])
def test_d4rl_fields_round_trip(tmp_path, write):
    path = write(tmp_path / ("log.hdf5" if write is write_hdf5 else "log.npz"), fields())
    log = logs.from_table(path, costs={"costs": 0.7}, **LIMITED)
    assert_same(log, expected())
    assert log.labels == expected().labels
    assert log.kind == "trajectories"
    assert log.n_ended == episodes()[5].sum() > 0


@pytest.mark.parametrize("write", [write_hdf5, write_npz])
def test_without_next_states_the_next_row_is_taken(tmp_path, write):
    arrays = fields()
    del arrays["next_observations"]
    log = logs.from_table(write(tmp_path / ("x.h5" if write is write_hdf5 else "x.npz"), arrays))
    stopped = episodes()[6]
    assert len(log) == len(stopped) - stopped.sum()
    assert f"{stopped.sum()} rows were left out" in log.notes[0]


def test_compression_storage_order_and_integer_types_do_not_matter(tmp_path):
    arrays = fields()
    arrays["terminals"] = arrays["terminals"].astype(np.uint8)
    arrays["observations"] = arrays["observations"].astype(np.int16)[:, None]
    arrays["actions"] = arrays["actions"].astype(np.float32)
    arrays["rewards"] = np.asfortranarray(arrays["rewards"][:, None])
    paths = [
        write_npz(tmp_path / "x.npz", arrays, compressed=True),
        write_hdf5(tmp_path / "x.h5", arrays, compression="gzip", chunks=True),
    ]
    for path in paths:
        assert_same(logs.from_table(path, costs={"costs": 0.7}, **LIMITED), expected())


def test_omnisafe_fields_round_trip_once_it_is_said_what_done_means(tmp_path):
    path = write_npz(tmp_path / "log.npz", fields(OMNISAFE))
    with pytest.raises(ValueError, match=r"log\.npz: its field 'done' marks ended episodes and time-outs alike"):
        logs.from_table(path)
    _, _, r, _, _, end, stop = episodes()
    r, none = r.astype(np.float32), np.zeros(len(end), dtype=bool)
    stopped = logs.from_table(path, truncated="done", costs={"cost": 0.7}, **LIMITED)
    assert_same(stopped, expected("cost", r=r, end=none, stop=end | stop))
    assert stopped.n_ended == 0
    ended = logs.from_table(path, terminated="done", truncated=True, costs={"cost": 0.7}, **LIMITED)
    assert_same(ended, expected("cost", r=r, end=end | stop, stop=none))
    independent = logs.from_table(path, terminated="done")
    assert independent.kind == "independent"


def test_fields_can_be_named_and_may_lie_in_groups(tmp_path):
    arrays = fields()
    arrays["infos/danger"] = arrays.pop("costs")
    arrays["extra/where"] = np.stack([arrays["observations"], arrays["observations"] % 2], axis=1)
    arrays["extra/next"] = np.stack([arrays["next_observations"], arrays["next_observations"] % 2], axis=1)
    path = write_hdf5(tmp_path / "log.hdf5", arrays)
    log = logs.from_table(path, state="extra/where", next_state="extra/next", costs={"infos/danger": 0.7}, **LIMITED)
    assert log.question.names == ("infos/danger",)
    assert log.labels.states[:2] == ((0, 0), (1, 1))
    assert log.s.tolist() == expected().s.tolist()


@pytest.mark.parametrize("reset", [True, False])
def test_minari_round_trips_with_or_without_the_cost_of_the_reset(minari_folder, reset):
    write_minari("toy/log-v0", np.asarray, episodes(), reset)
    log = logs.from_table("minari:toy/log-v0", costs={"cost": 0.7}, **LIMITED)
    assert_same(log, expected("cost"))


def test_minari_with_continuous_observations(minari_folder):
    def observed(states):
        return np.stack([states, -2.5 * states], axis=1).astype(np.float32)

    space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    write_minari("toy/log-v0", observed, episodes(), spaces=space)
    log = logs.from_table(
        "minari:toy/log-v0", costs={"cost": 0.7}, discretizer={"method": "uniform", "bins": 8}, **LIMITED
    )
    assert_same(log, expected("cost"))  # five states are five cells
    assert log.labels.discretizer.states(observed(np.arange(5))).tolist() == [0, 1, 2, 3, 4]


def test_a_record_that_stops_without_a_mark_does_not_run_into_the_next_episode(minari_folder, tmp_path):
    *_, s_next, end, stop = episodes()
    write_minari("toy/log-v0", np.asarray, episodes())
    with h5py.File(tmp_path / "minari/toy/log-v0/data/main_data.hdf5", "r+") as file:
        for episode in file.values():
            episode["truncations"][...] = False
    log = logs.from_table("minari:toy/log-v0")
    assert log.starts.tolist() == np.append(0, np.flatnonzero(end | stop)[:-1] + 1).tolist()
    assert log.s_next.tolist() == np.where(end, -1, s_next).tolist()


def test_tables_and_folders_open_by_the_same_function(tmp_path):
    table = pandas.DataFrame(dict(zip(COLUMNS, episodes(), strict=True)))
    table.to_csv(tmp_path / "log.csv", index=False)
    table.to_parquet(tmp_path / "log.parquet")
    roles = {"state": "s", "action": "a", "reward": "r", "next_state": "s_next", "terminated": "end"}
    for name in ("log.csv", "log.parquet"):
        log = logs.from_table(tmp_path / name, **roles, truncated="stop", costs={"c": 0.7}, **LIMITED)
        assert_same(log, expected("c"))
        assert log.labels.states[0] == ("0" if name == "log.csv" else 0)
        with pytest.raises(TypeError, match=rf"{name}: it is a table, whose columns must be named: pass action="):
            logs.from_table(tmp_path / name, state="s", reward="r")
    log.save(tmp_path / "folder")
    assert_same(read_log(str(tmp_path / "folder")), log.raw)
    with pytest.raises(ValueError, match=r"folder: a folder of dpdl .* costs= cannot be given"):
        logs.from_table(tmp_path / "folder", costs={"c": 1})


def test_missing_values_are_those_of_a_table(tmp_path):
    arrays = fields()
    arrays["rewards"][3] = np.nan
    arrays["observations"] = arrays["observations"].astype(float)
    arrays["observations"][7] = np.nan
    path = write_npz(tmp_path / "log.npz", arrays)
    with pytest.raises(ValueError, match=r"^\S*log\.npz: the table has missing or malformed values.*row 3.*row 7$"):
        logs.from_table(path)
    assert "2 rows were left out" in logs.from_table(path, missing="drop").notes[0]


def test_a_discretizer_goes_from_a_file_to_the_acting_policy(tmp_path):
    """Observations are 0.4 s + noise: states are found again, and the policy acts on raw observations after a file."""
    s, _, _, _, s_next, *_ = episodes(400)
    rng = np.random.default_rng(1)
    noise = rng.uniform(-0.1, 0.1, (401, 2))
    arrays = fields(n=400)
    arrays["observations"] = np.stack([0.4 * s, -s], axis=1) + noise[:-1]
    following = np.append(noise[1:400], noise[400:], axis=0)
    arrays["next_observations"] = np.stack([0.4 * s_next, -s_next], axis=1) + following
    path = write_hdf5(tmp_path / "log.h5", arrays)
    with pytest.raises(ValueError, match=r"log\.h5: observations\[0\]\[0\] = .* must be a whole number; discretizer="):
        logs.from_table(path)
    log = logs.from_table(path, discretizer={"method": "uniform", "bins": [5, 1]})
    assert log.labels.states == (0, 1, 2, 3, 4)
    assert log.s.tolist() == s.tolist()
    assert log.labels.discretizer.unseen == "error"
    log.save(tmp_path / "folder")
    assert Dataset.open(tmp_path / "folder").labels == log.labels
    learn(log, gamma=0.9, rng=0, T=1000).policy.save(tmp_path / "policy.json")
    policy = Policy.load(tmp_path / "policy.json")
    assert policy.labels == log.labels
    batch = policy.act(arrays["observations"], rng=0)
    plain = Policy(policy.probabilities)
    assert batch.tolist() == plain.act(s, rng=0).tolist()
    one = arrays["observations"][0].astype(np.float32)
    assert policy.act(one, rng=3) == plain.act(int(s[0]), rng=3)
    assert policy.index(one) == policy.index(int(s[0])) == s[0]
    assert policy.explain(one).state == s[0]
    with pytest.raises(ValueError, match=r"an observation must have shape \(2,\), or several \(n, 2\), got \(3,\)"):
        policy.act([1.0, 2.0, 3.0])


def test_the_next_observation_of_an_ended_episode_is_not_looked_at(tmp_path):
    arrays = fields()
    end = arrays["terminals"]
    arrays["next_observations"] = np.where(end, np.nan, arrays["next_observations"] + 0.5)
    arrays["observations"] = arrays["observations"] + 0.5
    log = logs.from_table(
        write_npz(tmp_path / "x.npz", arrays), costs={"costs": 0.7}, discretizer={"bins": 9}, **LIMITED
    )
    assert_same(log, expected())


def test_a_given_discretizer_is_used_as_it_is(tmp_path):
    path = write_npz(tmp_path / "log.npz", fields())
    two = Discretizer.fit([0.0, 4.0], "uniform", bins=2)
    assert logs.from_table(path, discretizer=two).s.tolist() == (episodes()[0] >= 2).astype(int).tolist()
    assert logs.from_table(path, discretizer=two).labels.discretizer is two
    with pytest.raises(TypeError, match=r"log\.npz: discretizer must be a Discretizer or arguments of its fit"):
        logs.from_table(path, discretizer="quantile")


@pytest.mark.parametrize(
    ("module", "name", "extra"), [("h5py", "log.h5", "hdf5"), ("minari", "minari:toy/x-v0", "minari")]
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, module, name, extra):
    (tmp_path / "log.h5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'dpdl\[{extra}\]'"):
        logs.from_table(name if ":" in name else tmp_path / name)


def test_kinds(tmp_path):
    for name, kind in {"a.csv": "table", "a.pq": "table", "a.hdf5": "hdf5", "a.npz": "npz"}.items():
        (tmp_path / name).touch()
        assert kind_of(tmp_path / name) == kind
    assert kind_of("minari:x-v0") == "minari"
    assert kind_of(tmp_path) == "table"
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match=r"a\.txt: a log is a file that ends in \.csv"):
        kind_of(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        logs.from_table(tmp_path / "b.npz")
    with pytest.raises(TypeError, match="columns must be named"):
        logs.from_table(3)
