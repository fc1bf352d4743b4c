"""Logs in folders: what is written is read to the last bit, damage is found, replacement is atomic."""

import errno
import itertools
import json
import os
import pickle
import threading

import numpy as np
import pytest

from dpdl import Dataset, read_log
from dpdl.data import storage
from dpdl.question import pose
from logs import KINDS, assert_same, make_log

TABLE = {"s": ["a", "b", "0" * 64, "a"], "a": ["x", "y", "x", "x"], "r": [1, 2, 3, 4], "c": [0, 1, 0, 2]}
TABLE["e"] = [1, 1, 2, 2]
ROLES = {"state": "s", "action": "a", "reward": "r", "costs": ["c"], "episode": "e", "terminated": True}


def file_of(folder, name):
    (file,) = folder.glob(f"{name}-*")
    return file


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_utilities", [0, 1, 3])
@pytest.mark.parametrize("costs", [False, True])
def test_what_is_saved_is_opened_to_the_last_bit(tmp_path, kind, n_utilities, costs):
    log = make_log(kind, n_utilities, costs)
    log.save(tmp_path / "log")
    again = Dataset.open(tmp_path / "log")
    assert_same(again, log)
    assert again.path == tmp_path / "log"
    assert not again.records.flags.writeable


def test_parts_and_posed_logs_are_saved_as_logs_of_their_own(tmp_path):
    log = make_log("trajectories", 2, costs=True)
    log[7:50].save(tmp_path / "part")
    assert_same(Dataset.open(tmp_path / "part"), log[7:50])
    make_log()[::3].save(tmp_path / "third")
    assert_same(Dataset.open(tmp_path / "third"), make_log()[::3])
    pose(log, 0.9, {"cost 0": 1.0}, "total").save(tmp_path / "posed")
    assert_same(Dataset.open(tmp_path / "posed"), log)


def test_labels_costs_and_notes_stay_with_the_log(tmp_path):
    log = read_log({**TABLE, "r": [1, None, 3, 4]}, **ROLES, missing="drop")
    log.save(tmp_path / "log")
    again = Dataset.open(tmp_path / "log")
    assert again.labels == log.labels == pickle.loads(pickle.dumps(log)).labels
    assert "0" * 64 in again.labels.states
    assert (again.cost_names, again.notes) == (("c",), log.notes)
    assert again.initial_counts.tolist() == log.initial_counts.tolist()


def test_replacement(tmp_path):
    first, second = make_log(), make_log("trajectories", 2)
    first.save(tmp_path / "log")
    with pytest.raises(FileExistsError, match="it exists already"):
        second.save(tmp_path / "log")
    opened = Dataset.open(tmp_path / "log")
    second.save(tmp_path / "log", overwrite=True)
    assert_same(opened, first)  # it is mapped, and does not change
    assert_same(Dataset.open(tmp_path / "log"), second)
    assert len(list((tmp_path / "log").iterdir())) == 4
    again = Dataset.open(tmp_path / "log")
    again.save(tmp_path / "log", overwrite=True)  # onto itself
    assert_same(Dataset.open(tmp_path / "log"), second)


def test_nothing_else_is_replaced(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "header.json").write_text("{}")
    for name in ("file", "folder", "json"):
        with pytest.raises(FileExistsError, match="it is not replaced, because it is not a data set"):
            make_log().save(tmp_path / name, overwrite=True)
    (tmp_path / "empty").mkdir()
    make_log().save(tmp_path / "empty")


def test_a_failed_write_leaves_the_old_log(tmp_path, monkeypatch):
    make_log().save(tmp_path / "log")
    before = sorted(os.listdir(tmp_path / "log"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for target in ("dpdl.data.storage.seal", "dpdl.data.storage.sync"):
        with monkeypatch.context() as patch:
            patch.setattr(target, full)
            with pytest.raises(OSError, match="No space left on device: it could not be written, and what"):
                make_log(n_utilities=2).save(tmp_path / "log", overwrite=True)
            with pytest.raises(OSError, match="No space left"):
                make_log().save(tmp_path / "other")
        assert sorted(os.listdir(tmp_path / "log")) == before
        assert not (tmp_path / "other").exists()
    assert_same(Dataset.open(tmp_path / "log"), make_log())


def test_a_log_that_is_replaced_while_it_is_opened_is_the_one_or_the_other(tmp_path):
    logs, stop = [make_log(seed=k) for k in range(2)], threading.Event()
    logs[0].save(tmp_path / "log")

    def replace():
        while not stop.is_set():
            for log in logs:
                log.save(tmp_path / "log", overwrite=True)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        seen = {Dataset.open(tmp_path / "log").fingerprint for _ in range(60)}
    finally:
        stop.set()
        thread.join()
    assert seen <= {log.fingerprint for log in logs}


@pytest.mark.parametrize("name", ["records", "table", "starts"])
@pytest.mark.parametrize("where", [0.0, 0.3, 0.7, 1.0])
def test_every_flipped_bit_and_every_missing_end_is_found(tmp_path, name, where):
    make_log("trajectories").save(tmp_path / "log")
    file = file_of(tmp_path / "log", name)
    raw = file.read_bytes()
    flipped = bytearray(raw)
    flipped[int(where * (len(raw) - 1))] ^= 4
    for damaged in (flipped, raw[: int(where * (len(raw) - 1))], raw + b"0"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged") as caught:
            Dataset.open(tmp_path / "log")
        assert str(caught.value).startswith(str(file))


def test_damaged_headers_and_missing_files(tmp_path):
    make_log("trajectories").save(tmp_path / "log")
    header = tmp_path / "log" / "header.json"
    raw = header.read_bytes()
    for broken, message in (
        (raw[:-20], "it is not valid JSON"),
        (raw.replace(b'"n_states": 4', b'"n_states": 5'), "its checksum is wrong: the file is damaged"),
        (b"{}", "it is not a dpdl dataset"),
        (raw.replace(b'"version": 5', b'"version": 9'), "its version is 9"),
    ):
        header.write_bytes(broken)
        with pytest.raises(ValueError, match=f"header.json: {message}"):
            Dataset.open(tmp_path / "log")
    header.write_bytes(raw)
    file_of(tmp_path / "log", "starts").unlink()
    with pytest.raises(ValueError, match=r"starts-[0-9a-f]+: it is missing"):
        Dataset.open(tmp_path / "log")
    header.unlink()
    with pytest.raises(ValueError, match=r"is not a dpdl data set: it has no header\.json"):
        Dataset.open(tmp_path / "log")
    with pytest.raises(FileNotFoundError):
        Dataset.open(tmp_path / "none")


def test_a_log_is_written_in_pieces(tmp_path):
    """Pieces of any length, none of which is kept, make the log that is written as a whole."""
    log = make_log("trajectories", 2, costs=True)
    cuts = [0, 1, 1, 20, 59, 60]
    arrays = {name: [array] for name, array in log._arrays().items()}
    arrays["records"] = (log.records[first:last] for first, last in itertools.pairwise(cuts))
    storage.save(tmp_path / "log", log._content(), arrays, overwrite=False)
    assert_same(Dataset.open(tmp_path / "log"), log)


def test_a_pass_over_a_large_log_takes_little_memory(tmp_path):
    import tracemalloc

    n = 2_000_000
    s = np.arange(n) % 50
    Dataset(s, s % 2, (s + 1) % 50, s / 50, n_states=50, n_actions=2).save(tmp_path / "log")
    tracemalloc.start()
    log = Dataset.open(tmp_path / "log")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(log) == n
    assert peak < 20e6 < log.records.nbytes


def test_the_header_is_plain_json(tmp_path):
    make_log(costs=True).save(tmp_path / "log")
    content = json.loads((tmp_path / "log" / "header.json").read_text())
    assert content["costs"] == ["cost 0"]
    assert content["arrays"]["records"]["n"] == 60
    assert content["format"] == storage.FORMAT
