"""Data sets on disk: what goes in comes out, damage is refused, and a failed write leaves no trace."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import contextmanager, suppress
from hashlib import sha256

import numpy as np
import pyarrow.parquet  # noqa: F401, before memory is watched
import pytest

from dpdl import Dataset, DatasetBuilder, exact, from_parquet, learn, verify
from dpdl.data import packing, storage
from dpdl.data.storage import Header
from dpdl.files import atomic
from dpdl.files.headers import npy_header
from logs import KINDS, assert_same, contents, make_log, nothing_else, reseal, rewrite

RUN = {"gamma": 0.9, "psi": 3, "slater": 0.3, "T": 3000, "rho0": [0.25] * 4, "rng": 0}

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture(params=[7, packing.CHUNK], ids=["chunks", "whole"])
def chunk(request, monkeypatch):
    """Everything once in chunks of a few records, and once in one piece."""
    monkeypatch.setattr(packing, "CHUNK", request.param)


def saved(folder, log=None):
    (make_log("trajectories", 1) if log is None else log).save(folder)
    return folder


def refuses(folder, message, **options):
    with pytest.raises(ValueError, match=f"^{re.escape(str(folder))}.*{re.escape(message)}"):
        Dataset.open(folder, **options)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_utilities", "costs"), [(0, False), (1, False), (3, False), (0, True), (3, True)])
@pytest.mark.parametrize("mmap", [True, False])
def test_what_is_saved_is_what_is_opened(tmp_path, kind, n_utilities, costs, mmap):
    log = make_log(kind, n_utilities, costs)
    log.save(tmp_path / "log")
    for sums in (True, False):
        again = Dataset.open(tmp_path / "log", mmap=mmap, verify=sums)
        assert_same(again, log)
    again.save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "log")
    nothing_else(tmp_path, "log", "again")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["replacement", "shuffle", "trajectory"])
def test_learning_from_a_map_gives_the_same_bits(tmp_path, kind, order):
    log = make_log(kind, 2, n_records=400)
    mapped = Dataset.open(saved(tmp_path / "log", log))
    for options in ({}, {"n_reference": 150}):
        one, other = (learn(each, **RUN, order=order, **options) for each in (log, mapped))
        assert one.x_mean.tobytes() == other.x_mean.tobytes()
        assert one.last.log_x.tobytes() == other.last.log_x.tobytes()
        assert one.V_mean.tobytes() == other.V_mean.tobytes()
        assert one.reference.mu_hat.tobytes() == other.reference.mu_hat.tobytes()


def test_no_memory_grows_with_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 1 << 12)
    n, pieces = 1 << 12, 50
    one = make_log("trajectory", 1, n_records=n)
    one.to_parquet(tmp_path / "first.parquet")  # what pyarrow imports on the way is not counted
    peaks = []
    tracemalloc.start()
    try:
        with DatasetBuilder(tmp_path / "log", n_states=4, n_actions=3, n_utilities=1) as builder:
            for _ in range(pieces):
                builder.append(one.s, one.a, one.s_next, one.r, one.u, starts=[0])
        peaks.append(tracemalloc.get_traced_memory()[1])
        for use in (
            lambda: Dataset.open(tmp_path / "log"),
            lambda: Dataset.open(tmp_path / "log")[1:-1].save(tmp_path / "part"),
            lambda: Dataset.open(tmp_path / "log")[5:].fingerprint,
            lambda: learn(Dataset.open(tmp_path / "log"), **RUN, n_reference=n * pieces // 2),
            lambda: exact.plug_in(Dataset.open(tmp_path / "log"), 0.9, RUN["rho0"]),
            lambda: verify(learn(one, **RUN), Dataset.open(tmp_path / "log"), rho0=RUN["rho0"], eps=0.1),
            lambda: Dataset.open(tmp_path / "log").to_parquet(tmp_path / "log.parquet"),
            lambda: from_parquet(tmp_path / "log.parquet", tmp_path / "again"),
        ):
            tracemalloc.reset_peak()
            use()
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert one.records.itemsize * n * pieces > 4.9e6
    assert max(peaks) < 1e6


def test_a_map_is_a_read_only_view_of_the_file(tmp_path):
    log = Dataset.open(saved(tmp_path / "log"))
    base = log.records
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, memoryview) or type(base).__name__ == "mmap"
    for array in (log.records, log.pairs, log.starts):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
    with pytest.raises(ValueError, match="read-only"):
        Dataset.open(tmp_path / "log", mmap=False).records["r"][0] = 0


def test_a_log_knows_where_it_was_opened(tmp_path, monkeypatch):
    log = make_log()
    assert log.path is None
    log.save(tmp_path / "log")
    assert log.path is None
    monkeypatch.chdir(tmp_path)
    opened = Dataset.open("log")
    assert opened.path == tmp_path / "log"
    assert opened.path.is_absolute()
    assert opened[1:].path is None


def test_the_fingerprint_tells_logs_apart(tmp_path):
    log = make_log("trajectories", 1)
    data = {name: getattr(log, name) for name in ("s", "a", "s_next", "r", "u")}
    same = {**data, "n_states": 4, "n_actions": 3, "starts": log.starts}
    fingerprints = {log.fingerprint, Dataset(**same).fingerprint, Dataset.open(saved(tmp_path / "log")).fingerprint}
    assert fingerprints == {log.fingerprint}
    changed_r = data["r"].copy()
    changed_r[5] = np.nextafter(changed_r[5], 0)
    for change in (
        {"r": changed_r},
        {"n_states": 5},
        {"n_actions": 4},
        {"starts": [0, 1, 17, 30, 40, 59]},
        {"starts": None},
        {"reward_scale": 2.0, "r": 2 * data["r"]},
        {"utility_scale": 2.0, "u": 2 * data["u"]},
        {"u": -data["u"]},
    ):
        fingerprints.add(Dataset(**{**same, **change}).fingerprint)
    assert len(fingerprints) == 9
    assert re.fullmatch("[0-9a-f]{64}", log.fingerprint)


def test_the_files_are_what_the_format_says(tmp_path):
    log = make_log("trajectories", 3, costs=True)
    folder = saved(tmp_path / "log", log)
    nothing_else(folder, "header.json", "records.npy", "pairs.npy", "starts.npy")
    header = json.loads((folder / "header.json").read_bytes())
    assert header["format"] == "dpdl dataset"
    assert header["version"] == 2
    assert header["units"]["limits"] == list(log.question.limits)
    for name, entry in header["files"].items():
        raw = (folder / name).read_bytes()
        assert entry == {"bytes": len(raw), "sha256": sha256(raw).hexdigest()}
    raw = (folder / "header.json").read_bytes()
    assert sha256(raw.replace(header["checksum"].encode(), b"0" * 64)).hexdigest() == header["checksum"]
    for name in ("records", "pairs", "starts"):
        array = getattr(log, name)
        np.save(tmp_path / "numpy.npy", array)
        assert (tmp_path / "numpy.npy").read_bytes() == (folder / f"{name}.npy").read_bytes()
    assert len({len(npy_header(log.records.dtype, n)) for n in (1, 10**9, 2**63 - 1)}) == 1


def flip(raw, bit):
    damaged = bytearray(raw)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def flips_that_load(folder, bits):
    """Of single-bit flips, given as positions in all files laid end to end, those that are not refused."""
    files, loaded = contents(folder), []
    places = [(name, byte) for name, raw in files.items() for byte in range(len(raw))]
    for bit in bits:
        name, byte = places[bit // 8]
        with open(folder / name, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), bytes([files[name][byte] ^ 1 << bit % 8]), byte)
            with suppress(ValueError):
                loaded.append((name, byte, Dataset.open(folder)))
            os.pwrite(file.fileno(), files[name][byte : byte + 1], byte)
    assert contents(folder) == files
    return loaded


def test_no_flipped_bit_loads_silently(tmp_path):
    folder = saved(tmp_path / "log", make_log("trajectories", 1, costs=True))
    n_bits = 8 * sum(map(len, contents(folder).values()))
    assert flips_that_load(folder, np.random.default_rng(0).choice(n_bits, 1000, replace=False)) == []


@pytest.mark.slow
def test_no_bit_at_all_can_be_flipped(tmp_path):
    folder = saved(tmp_path / "log", make_log("trajectories", 1, costs=True))
    assert flips_that_load(folder, range(8 * sum(map(len, contents(folder).values())))) == []


def test_without_verification_a_flip_may_pass_but_nothing_out_of_range(tmp_path):
    folder = saved(tmp_path / "log")
    raw = (folder / "records.npy").read_bytes()
    offset = len(raw) - 60 * 24
    (folder / "records.npy").write_bytes(flip(raw, 8 * (offset + 8)))  # the last bit of a reward
    refuses(folder, "records.npy: its SHA-256 is not the one in header.json: the file is damaged")
    assert Dataset.open(folder, verify=False).r[0] != make_log("trajectories", 1).r[0]
    (folder / "records.npy").write_bytes(flip(raw, 8 * (offset + 15) + 6))  # its exponent
    refuses(folder, "records.npy: its SHA-256 is not")
    refuses(folder, "records.npy: r[0] = ", verify=False)
    (folder / "records.npy").write_bytes(flip(raw, 8 * 20))
    refuses(folder, "records.npy: its .npy header is not that of a vector of 60 elements", verify=False)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    ("name", "field", "index", "value", "message"),
    [
        ("records", "pair", 33, 8, "records.npy: pair[33] = 8 must be between 0 and 7"),
        ("records", "pair", 33, -1, "records.npy: pair[33] = -1 must be between 0 and 7"),
        ("records", "pair", 59, 2**31 - 1, "records.npy: pair[59] = 2147483647 must be between 0 and 7"),
        ("records", "s_next", 0, 4, "records.npy: s_next[0] = 4 must be between 0 and 3"),
        ("records", "s_next", 59, -5, "records.npy: s_next[59] = -5 must be between 0 and 3"),
        ("records", "r", 21, np.nan, "records.npy: r[21] = nan must be finite"),
        ("records", "r", 21, -1.5, "records.npy: r[21] = -1.5 must be >= -1"),
        ("records", "r", 21, np.nextafter(1, 2), "records.npy: r[21] = 1.0000000000000002 must be <= 1"),
        ("records", "u", 40, np.inf, "records.npy: u[40, 0] = inf must be finite"),
        ("records", "u", 40, 7.0, "records.npy: u[40, 0] = 7.0 must be <= 1"),
        ("pairs", None, 0, -1, "pairs.npy: pairs[0] = -1 must be between 0 and 11"),
        ("pairs", None, 7, 12, "pairs.npy: pairs[7] = 12 must be between 0 and 11"),
        ("pairs", None, 3, 3, "pairs.npy: pairs[3] = 3 does not ascend"),
        ("starts", None, 0, 1, "starts.npy: starts[1] = 1 does not ascend"),
        ("starts", None, 4, 60, "starts.npy: starts[4] = 60 must be between 0 and 59"),
        ("starts", None, 2, 18, "records.npy: s_next[16] = "),
    ],
)
def test_contents_out_of_range_are_refused_even_if_every_sum_is_right(tmp_path, name, field, index, value, message):
    folder = saved(tmp_path / "log")

    def change(array):
        (array if field is None else array[field])[index] = value

    rewrite(folder, name, change)
    for options in ({}, {"verify": False}, {"mmap": False}):
        refuses(folder, message, **options)


def test_a_pair_that_no_record_has_is_refused(tmp_path):
    folder = saved(tmp_path / "log", make_log())

    def change(records):
        records["pair"][records["pair"] == 2] = 1

    rewrite(folder, "records", change)
    refuses(folder, "pairs.npy: pairs[2] = 3 occurs in no record")


def test_trajectories_that_begin_late_are_refused(tmp_path):
    folder = saved(tmp_path / "log", make_log("trajectory"))
    rewrite(folder, "starts", lambda starts: starts.__setitem__(0, 1))
    refuses(folder, "records.npy: starts must begin with 0")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_records": 10**18}, "n_records = 1000000000000000000 is too large for a file"),
        ({"n_records": 10**17}, "files['records.npy'] must have 2400000000000000192 bytes and a SHA-256, got"),
        ({"n_records": 61}, "files['records.npy'] must have"),
        ({"n_records": 2**63}, "n_records must be a whole number between 1 and"),
        ({"n_records": 2**62}, "n_records = 4611686018427387904 is too large for a file"),
        ({"n_records": -1}, "n_records must be a whole number between 1 and"),
        ({"n_records": 0}, "n_records must be a whole number between 1 and"),
        ({"n_records": 60.0}, "n_records must be a whole number"),
        ({"n_records": "60"}, "n_records must be a whole number"),
        ({"n_records": None}, "n_records must be a whole number"),
        ({"n_records": True}, "n_records must be a whole number"),
        ({"n_states": 2**31}, "n_states must be a whole number between 1 and 2147483647"),
        ({"n_states": 1}, "n_pairs = 8 exceeds n_records or n_states * n_actions"),
        ({"n_states": 3}, "must be between 0 and 8"),
        ({"n_actions": 0}, "n_actions must be a whole number between 1"),
        ({"n_utilities": 10**9}, "n_utilities must be a whole number between 0 and 65536"),
        ({"n_utilities": 2}, "files['records.npy'] must have"),
        ({"n_utilities": -1}, "n_utilities must be a whole number between 0"),
        ({"n_pairs": 61}, "n_pairs = 61 exceeds n_records"),
        ({"n_pairs": 0}, "n_pairs must be a whole number between 1"),
        ({"n_trajectories": 61}, "n_trajectories = 61 exceeds n_records"),
        ({"n_trajectories": None}, "files must have the names ['pairs.npy', 'records.npy'], got"),
        ({"version": 3}, "its version is 3, and this dpdl reads versions 1 to 2"),
        ({"format": "dpdl result"}, "it is not a dpdl dataset"),
        ({"files": {}}, "files must have the names"),
        ({"files": 3}, "files must have the names"),
        ({"more": 1}, "the header must have the names"),
        ({"units": None}, "units must have the names"),
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(tmp_path, changes, message):
    folder = saved(tmp_path / "log")
    reseal(folder, **changes)
    tracemalloc.start()
    refuses(folder, message, mmap=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward_scale": 0}, "units: reward_scale must be > 0"),
        ({"reward_scale": None}, "units: reward_scale must be a real number"),
        ({"reward_scale": 10**400}, "header.json: "),
        ({"utility_scale": []}, "units: utility_scale must have shape (1,)"),
        ({"utility_scale": 1.0}, "units: utility_scale must be a list"),
        ({"utility_scale": [[1.0]]}, "units: utility_scale must have shape (1,)"),
        ({"utility_scale": ["1"]}, "units: utility_scale must hold real numbers"),
        ({"limits": [1.0]}, "units: limits and gamma must be given together"),
        ({"limits": [1.0, 2.0], "gamma": 0.9}, "units: limits must have shape (1,)"),
        ({"limits": [1.0], "gamma": 1.0}, "units: gamma must be > 0 and < 1"),
        ({"normalised": 1}, "units: normalised must be True or False"),
    ],
)
def test_units_that_make_no_sense_are_refused(tmp_path, changes, message):
    folder = saved(tmp_path / "log")
    units = json.loads((folder / "header.json").read_bytes())["units"]
    reseal(folder, units=units | changes)
    refuses(folder, message)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "header.json: it is not valid JSON"),
        (b"[" * 10**5, "header.json: it is not valid JSON"),
        (b"\xff\xfe", "header.json: it is not valid JSON"),
        (b'{"n_records": NaN}', "header.json: it is not valid JSON: NaN is not a number"),
        (b"9" * 10**4, "header.json: it is not valid JSON"),
        (b"[1]", "header.json: it is not a dpdl dataset"),
        (b'{"format": "dpdl dataset", "version": 1}', "header.json: it has no checksum"),
        (b'{"format": "dpdl dataset", "version": 1, "checksum": "00"}', "header.json: it has no checksum"),
        (b" " * (storage.LARGEST_HEADER + 1), "header.json: 16777217 bytes are too many for a header"),
    ],
)
def test_something_else_than_a_header_is_refused(tmp_path, raw, message):
    folder = saved(tmp_path / "log")
    (folder / "header.json").write_bytes(raw)
    refuses(folder, message)


def test_files_of_another_length_or_none_at_all_are_refused(tmp_path):
    folder = saved(tmp_path / "log")
    raw = (folder / "records.npy").read_bytes()
    for changed in (raw[:-1], raw + b"\0", b""):
        (folder / "records.npy").write_bytes(changed)
        for mmap in (True, False):
            refuses(folder, f"records.npy: it has {len(changed)} bytes, and header.json says {len(raw)}", mmap=mmap)
    os.unlink(folder / "records.npy")
    refuses(folder, "records.npy: it is missing")
    os.mkfifo(folder / "records.npy")
    refuses(folder, "records.npy: it is not a regular file")
    os.unlink(folder / "header.json")
    refuses(folder, "is not a dpdl data set: it has no header.json")
    with pytest.raises(FileNotFoundError):
        Dataset.open(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError):
        Dataset.open(__file__)
    for name in ("mmap", "verify"):
        with pytest.raises(TypeError, match=f"^{name} must be True or False, got 1$"):
            Dataset.open(folder, **{name: 1})


def test_a_name_that_the_header_gives_twice_is_refused(tmp_path):
    """Which of the two counts would be for each reader to say."""
    folder = saved(tmp_path / "log")
    raw = (folder / "header.json").read_bytes()
    checksum = json.loads(raw)["checksum"].encode()
    raw = raw.replace(b'"n_states": 4,', b'"n_states": 5, "n_states": 4,').replace(checksum, b"0" * 64)
    (folder / "header.json").write_bytes(raw.replace(b"0" * 64, sha256(raw).hexdigest().encode()))
    refuses(folder, "header.json: it is not valid JSON: 'n_states' is given twice")


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_nothing_is_ever_unpickled(tmp_path):
    folder = saved(tmp_path / "log")
    length = (folder / "records.npy").stat().st_size
    np.save(folder / "records.npy", np.array([Bomb(tmp_path / "gone off")], dtype=object), allow_pickle=True)
    reseal(folder)
    refuses(folder, "header.json: files['records.npy'] must have")
    raw = (folder / "records.npy").read_bytes()
    (folder / "records.npy").write_bytes(raw + bytes(length - len(raw)))
    reseal(folder)
    for options in ({}, {"mmap": False}, {"verify": False}):
        refuses(folder, "records.npy: its .npy header is not that of a vector of 60 elements", **options)
    assert not (tmp_path / "gone off").exists()
    np.load(folder / "records.npy", allow_pickle=True)  # what reading it would have done
    assert (tmp_path / "gone off").exists()


def test_a_path_that_exists_is_replaced_only_on_request_and_only_if_it_is_a_data_set(tmp_path):
    old, new = make_log(seed=1), make_log(seed=2)
    folder = saved(tmp_path / "log", old)
    with pytest.raises(FileExistsError, match="pass overwrite=True to replace it"):
        new.save(folder)
    mapped = Dataset.open(folder)
    new.save(folder, overwrite=True)
    assert_same(Dataset.open(folder), new)
    assert_same(mapped, old)  # whoever has the old one open keeps it
    mapped[10:20].save(folder, overwrite=True)
    assert len(Dataset.open(folder)) == 10
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "photo").write_text("precious")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "header.json").write_text('{"mine": 1}')
    kept = saved(tmp_path / "kept", old)
    (kept / "run.ckpt").write_text("precious")
    for name in ("file", "folder", "project", "kept"):
        with pytest.raises(FileExistsError, match="is not replaced, because it is not a data set or holds other files"):
            new.save(tmp_path / name, overwrite=True)
    assert (kept / "run.ckpt").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    new.save(tmp_path / "empty", overwrite=True)
    (tmp_path / "link").symlink_to(folder)
    new.save(tmp_path / "link", overwrite=True)
    assert_same(Dataset.open(folder), new)
    with pytest.raises(TypeError, match="overwrite must be True or False"):
        new.save(folder, overwrite="no")
    nothing_else(tmp_path, "log", "file", "folder", "project", "kept", "empty", "link")


@pytest.mark.parametrize("name", ["header.json", "records.npy", "pairs.npy", "starts.npy"])
def test_what_has_the_name_of_a_file_of_ours_and_is_none_is_never_replaced(tmp_path, name):
    folder = saved(tmp_path / "log")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "photo").write_text("precious")
    for put in (lambda target: os.rename(tmp_path / "precious", target), lambda target: target.symlink_to(__file__)):
        (folder / name).unlink()
        put(folder / name)
        with pytest.raises(FileExistsError, match="is not replaced, because it is not a data set or holds other files"):
            make_log(seed=2).save(folder, overwrite=True)
        if (folder / name).is_dir():
            os.rename(folder / name, tmp_path / "precious")
            (folder / name).touch()
    assert (tmp_path / "precious" / "photo").read_text() == "precious"
    nothing_else(tmp_path, "log", "precious")


def test_a_folder_that_comes_into_the_old_data_set_at_the_last_moment_is_not_removed(tmp_path, monkeypatch):
    folder, rename = saved(tmp_path / "log", make_log(seed=1)), os.rename

    def rename_and_add(source, target):
        rename(source, target)
        if str(target).endswith(".old"):
            os.mkdir(os.path.join(target, "photos"))

    monkeypatch.setattr(os, "rename", rename_and_add)
    make_log(seed=2).save(folder, overwrite=True)
    monkeypatch.undo()
    assert_same(Dataset.open(folder), make_log(seed=2))
    (aside,) = (name for name in os.listdir(tmp_path) if name != "log")
    make_log(seed=3).save(folder, overwrite=True)
    nothing_else(tmp_path / aside, "photos")


def test_what_killed_processes_left_is_swept_and_nothing_else(tmp_path):
    folder = saved(tmp_path / "log", make_log())
    for name in (".log.0123456789abcdef.tmp", ".log.0123456789abcdef.old", ".log.my-precious-data.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "something").touch()
    make_log().save(folder, overwrite=True)
    nothing_else(tmp_path, "log", ".log.my-precious-data.tmp")


def test_an_old_folder_that_may_be_the_only_one_stays(tmp_path):
    (tmp_path / ".log.0123456789abcdef.old").mkdir()
    make_log().save(tmp_path / "log")
    nothing_else(tmp_path, "log", ".log.0123456789abcdef.old")


@pytest.mark.parametrize("fails_at", [1, 2])
def test_an_interruption_between_the_renames_puts_the_old_folder_back(tmp_path, monkeypatch, fails_at):
    folder, calls, rename = saved(tmp_path / "log", make_log(seed=1)), [], os.rename

    def interrupted(*names):
        calls.append(names)
        rename(*names)
        if len(calls) == fails_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_log(seed=2).save(folder, overwrite=True)
    monkeypatch.undo()
    assert_same(Dataset.open(folder), make_log(seed=fails_at))
    nothing_else(tmp_path, "log")


def test_names_of_any_alphabet_and_length_will_do(tmp_path):
    folder = saved(tmp_path / ("\u6570" * 80), make_log())
    assert_same(Dataset.open(folder), make_log())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path, error in (
        (tmp_path / "file" / "log", NotADirectoryError),
        (tmp_path / "no" / "log", FileNotFoundError),
        ("/proc/log", OSError),
    ):
        with pytest.raises(error, match="it could not be written, and nothing was left behind") as caught:
            make_log().save(path)
        assert caught.value.filename == str(path)
        with pytest.raises(error), DatasetBuilder(path, n_states=1, n_actions=1, n_utilities=0):
            pass
    nothing_else(tmp_path, "file")


FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from dpdl import Dataset, DatasetBuilder

def big(n):
    return [np.zeros(n, int)] * 3 + [np.zeros(n), np.zeros((n, 1))]

sizes = {"n_states": 1, "n_actions": 1}
folder = Path(sys.argv[1])
Dataset(*big(10), **sizes).save(folder / "log")
Dataset(*big(10), **sizes).to_parquet(folder / "log.parquet")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

def build():
    with DatasetBuilder(folder / "log", **sizes, n_utilities=1, overwrite=True) as builder:
        for _ in range(400):
            builder.append(*big(1000))

def swallow():
    with DatasetBuilder(folder / "log", **sizes, n_utilities=1, overwrite=True) as builder:
        try:
            builder.append(*big(400_000))
        except OSError:
            pass
        try:
            builder.append(*big(1))
        except RuntimeError as error:
            print(error)

random = np.random.default_rng(0).random(400_000)
log = Dataset(*big(400_000)[:3], random, random[:, None], **sizes)
for attempt in (
    lambda: log.save(folder / "log", overwrite=True),
    lambda: log.save(folder / "other"),
    lambda: log.to_parquet(folder / "log.parquet", overwrite=True),
    build,
    swallow,
):
    try:
        attempt()
    except (OSError, RuntimeError) as error:
        print(type(error).__name__, error)
    else:
        print("no error")
"""


def test_a_full_disk_leaves_the_old_data_set_and_nothing_else(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reason = "it could not be written, and nothing was left behind"
    first, second, third, fourth, *swallowed = done.stdout.splitlines()
    for line, name in ((first, "log"), (second, "other"), (third, "log.parquet"), (fourth, "log")):
        assert "File too large" in line
        assert f"{reason}: '{tmp_path / name}'" in line
    gave_up = "an earlier chunk could not be written, so the data set is incomplete"
    assert swallowed == [gave_up, f"RuntimeError {gave_up}"]
    nothing_else(tmp_path, "log", "log.parquet")
    assert len(Dataset.open(tmp_path / "log")) == 10


KILLED = """
import os, signal, sys
from dpdl import DatasetBuilder

with DatasetBuilder(sys.argv[1], n_states=1, n_actions=1, n_utilities=0) as builder:
    builder.append([0], [0], [0], [0.0], [[]])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_behind_is_removed_by_the_next_but_no_live_one(tmp_path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "log")], check=False).returncode == -9
    (stray,) = os.listdir(tmp_path)
    with DatasetBuilder(tmp_path / "log", n_states=1, n_actions=1, n_utilities=0, overwrite=True) as builder:
        assert stray not in os.listdir(tmp_path)
        make_log().save(tmp_path / "log")
        assert len(os.listdir(tmp_path)) == 2
        builder.append([0], [0], [0], [0.0], [[]])
    assert len(Dataset.open(tmp_path / "log")) == 1
    nothing_else(tmp_path, "log")


@pytest.mark.parametrize("failing", ["write", "fsync", "rename"])
def test_an_interruption_at_any_point_leaves_the_old_data_set(tmp_path, monkeypatch, failing):
    folder = saved(tmp_path / "log", make_log(seed=1))
    before = contents(folder)

    def interrupt(*_):
        raise KeyboardInterrupt

    if failing == "write":
        monkeypatch.setattr(storage, "_raw", interrupt)
    else:
        monkeypatch.setattr(os, failing, interrupt)
    for path, overwrite in ((folder, True), (tmp_path / "other", False)):
        with pytest.raises(KeyboardInterrupt):
            make_log(seed=2).save(path, overwrite=overwrite)
    monkeypatch.undo()
    assert contents(folder) == before
    nothing_else(tmp_path, "log")


def test_a_failed_second_rename_brings_the_old_data_set_back(tmp_path, monkeypatch):
    folder, rename, calls = saved(tmp_path / "log", make_log(seed=1)), os.rename, []
    before = contents(folder)

    def second_fails(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise PermissionError(1, "Operation not permitted")
        rename(source, target)

    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(PermissionError, match="could not be written"):
        make_log(seed=2).save(folder, overwrite=True)
    monkeypatch.undo()
    assert contents(folder) == before
    nothing_else(tmp_path, "log")


# ---- A folder that is replaced while it is opened ----


def replaced_while_opened(monkeypatch, folder, log, times=1):
    """Let `log` take the place of the folder, once or more, whenever its header has been read and nothing else yet."""
    parse, calls = Header.parse, []

    def parse_later(raw):
        if len(calls) < times:
            calls.append(raw)
            log.save(folder, overwrite=True)
        return parse(raw)

    monkeypatch.setattr(Header, "parse", parse_later)
    return calls


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_a_header_is_never_paired_with_the_records_of_another_log(tmp_path, monkeypatch, sums, mmap, times):
    folder = saved(tmp_path / "log", make_log(seed=1))
    calls = replaced_while_opened(monkeypatch, folder, make_log(seed=2), times)
    opened = Dataset.open(folder, verify=sums, mmap=mmap)
    assert len(calls) == times
    assert_same(opened, make_log(seed=2))
    assert opened.path == folder


@pytest.mark.parametrize("sums", [True, False])
def test_where_folders_cannot_be_opened_a_replacement_is_noticed(tmp_path, monkeypatch, sums):
    """As on Windows, by the status of the folder before and after."""
    folder = saved(tmp_path / "log", make_log(seed=1))
    monkeypatch.setattr(sys, "platform", "win32")
    calls = replaced_while_opened(monkeypatch, folder, make_log(seed=2))
    opened = Dataset.open(folder, verify=sums)
    monkeypatch.undo()
    assert len(calls) == 1
    assert_same(opened, make_log(seed=2))


def test_what_was_opened_first_is_read_as_long_as_it_is_there(tmp_path, monkeypatch):
    folder = saved(tmp_path / "log", make_log(seed=1))
    monkeypatch.setattr(atomic, "_remove", lambda folder: None)
    replaced_while_opened(monkeypatch, folder, make_log(seed=2))
    assert_same(Dataset.open(folder), make_log(seed=1))
    assert_same(Dataset.open(folder), make_log(seed=2))


def test_a_folder_that_is_replaced_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "RETRY_SECONDS", 0.05)
    folder = saved(tmp_path / "log", make_log(seed=1))
    replaced_while_opened(monkeypatch, folder, make_log(seed=2), times=10**9)
    with pytest.raises(OSError, match="it was replaced repeatedly while it was read"):
        Dataset.open(folder)


@pytest.mark.parametrize("linked", [False, True])
def test_between_the_two_renames_whoever_opens_waits(tmp_path, linked):
    folder, aside = saved(tmp_path / "log", make_log()), tmp_path / ".log.0123456789abcdef.old"
    path = tmp_path / "link" if linked else folder
    if linked:
        path.symlink_to(folder)
    os.rename(folder, aside)
    timer = threading.Timer(0.05, os.rename, (aside, folder))
    timer.start()
    try:
        assert_same(Dataset.open(path), make_log())
    finally:
        timer.join()


def test_nobody_waits_for_what_is_not_there_nor_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "RETRY_SECONDS", 0.2)
    (tmp_path / ".other.0123456789abcdef.old").mkdir()
    began = time.monotonic()
    with pytest.raises(FileNotFoundError):
        Dataset.open(tmp_path / "log")
    assert time.monotonic() - began < 0.2
    (tmp_path / ".log.0123456789abcdef.old").mkdir()  # a process was killed there
    with pytest.raises(FileNotFoundError):
        Dataset.open(tmp_path / "log")


def test_damage_is_damage_even_if_the_folder_was_replaced_before(tmp_path):
    folder = saved(tmp_path / "log", make_log(seed=1))
    make_log(seed=2).save(folder, overwrite=True)
    (folder / "pairs.npy").unlink()
    refuses(folder, "pairs.npy: it is missing")


OVERWRITING = """
import os, sys
from logs import make_log

os.fsync = lambda descriptor: None
logs = [make_log(seed=seed) for seed in (1, 2)]
print("ready", flush=True)
while True:
    for log in logs:
        log.save(sys.argv[1], overwrite=True)
"""


@contextmanager
def overwritten_by_a_thread(folder):
    stop = threading.Event()

    def overwrite():
        while not stop.is_set():
            for seed in (1, 2):
                make_log(seed=seed).save(folder, overwrite=True)

    thread = threading.Thread(target=overwrite)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def overwritten_by_a_process(folder):
    command = [sys.executable, "-c", OVERWRITING, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def opened_while_overwritten(folder, overwritten, n, **options):
    """Open a folder that is replaced over and over, and return how often each of the two logs was there."""
    logs = [make_log(seed=seed) for seed in (1, 2)]
    logs[0].save(folder)
    records = {log.fingerprint: log.records.tobytes() for log in logs}
    seen = dict.fromkeys(records, 0)
    with overwritten(folder):
        for _ in range(n):
            log = Dataset.open(folder, **options)
            assert log.records.tobytes() == records[log.fingerprint]
            seen[log.fingerprint] += 1
    return list(seen.values())


@pytest.mark.parametrize("sums", [True, False])
def test_opening_while_a_thread_overwrites_gives_one_log_or_the_other(tmp_path, sums):
    assert min(opened_while_overwritten(tmp_path / "log", overwritten_by_a_thread, 200, verify=sums)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"verify": False}, {"mmap": False}])
def test_opening_while_a_process_overwrites_gives_one_log_or_the_other(tmp_path, options):
    assert min(opened_while_overwritten(tmp_path / "log", overwritten_by_a_process, 4_000, **options)) > 100
