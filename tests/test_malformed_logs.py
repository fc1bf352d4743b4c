"""Files that are not what they should be: one line that names the file and the field, and nothing else.

Every case is a function that writes a file and returns what its message must contain.
"""

import contextlib
import io
import os
import subprocess
import sys
import warnings
import zipfile

import h5py
import numpy as np
import pytest

from dpdl import cli, read_log
from recordings import OMNISAFE, episodes, fields, write_hdf5, write_minari, write_npz

TABLE = {"state": "s", "action": "a", "reward": "r", "next_state": "n", "terminated": "end", "truncated": "stop"}


def changed(**changes):
    """Fields with some of them replaced, or left out if None."""
    return {name: array for name, array in (fields() | changes).items() if array is not None}


def at(name, index, value, dtype=float):
    """Fields of which one value is changed."""
    array = fields()[name].astype(dtype)
    array[index] = value
    return changed(**{name: array})


def member(path, name, raw, **options):
    """An npz file in which the bytes of one field are these."""
    with zipfile.ZipFile(path, "w") as archive:
        for field, array in fields().items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(f"{field}.npy", raw if field == name else buffer.getvalue(), **options)


def npy(shape, descr="<f8", data=b"", version=b"\x01\x00"):
    """An npy file with this header."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(header).to_bytes(2 if version[0] == 1 else 4, "little") + header + data


# What is wrong in the same way in both formats: fields, arguments, and what the message must contain.
WRONG = {
    "no state": (changed(observations=None), {}, "no field 'observations' or 'obs' (state)"),
    "no action": (changed(actions=None), {}, "no field 'actions' or 'action' (action)"),
    "no reward": (changed(rewards=None), {}, "no field 'rewards' or 'reward' (reward)"),
    "no marks": (changed(terminals=None, timeouts=None), {}, "no field 'terminals' or 'terminated' or "),
    "no cost": (fields(), {"costs": ["cost"]}, "no field 'cost' (costs)"),
    "no such field": (fields(), {"state": "position"}, "no field 'position' (state)"),
    "only one kind of mark": (
        changed(next_observations=None, timeouts=None), {}, "without next_state the next row of the episode"),
    "short reward": (changed(rewards=np.zeros(39)), {}, "39 in column 'rewards' (reward)"),
    "long action": (changed(actions=np.zeros(41, dtype=int)), {}, "41 in column 'actions' (action)"),
    "short marks": (changed(timeouts=np.zeros(4, dtype=bool)), {}, "4 in column 'timeouts' (truncated)"),
    "empty": ({name: array[:0] for name, array in fields().items()}, {}, "the table has no rows"),
    "scalar": (changed(rewards=np.float64(1)), {}, "field 'rewards' must have shape (n,) or (n, 1), got ()"),
    "images": (changed(observations=np.zeros((40, 2, 2))), {}, "field 'observations' must have shape (n,) or (n, d)"),
    "two rewards": (changed(rewards=np.zeros((40, 2))), {}, "field 'rewards' must have shape (n,) or (n, 1)"),
    "no dimensions": (changed(observations=np.zeros((40, 0))), {}, "field 'observations' must have shape"),
    "other dimensions": (
        changed(next_observations=np.zeros((40, 2))), {}, "next_state must name as many columns as state"),
    "text": (changed(actions=np.array([b"left"] * 40)), {}, "'actions'"),
    "complex": (changed(rewards=np.zeros(40, dtype=complex)), {}, "'rewards'"),
    "NaN reward": (at("rewards", 3, np.nan), {}, "column 'rewards' (reward): 1 missing, in row 3"),
    "infinite reward": (at("rewards", 3, np.inf), {}, "column 'rewards' (reward): 1 infinite, in row 3 (inf)"),
    "NaN state": (at("observations", 5, np.nan), {}, "column 'observations' (state): 1 missing, in row 5"),
    "infinite state": (at("observations", 5, np.inf), {}, "observations[5] = inf must be"),
    "negative state": (at("observations", 2, -1, int), {}, "observations[2] = -1 must be between 0 and"),
    "negative action": (at("actions", 2, -3, int), {}, "actions[2] = -3 must be between 0 and"),
    "float state": (at("observations", 2, 0.5), {}, "observations[2] = 0.5 must be a whole number"),
    "float action": (at("actions", 2, 0.25), {}, "actions[2] = 0.25 must be a whole number"),
    "continuous actions": (changed(actions=np.full((40, 2), 0.1)), {}, "actions[0][0] = 0.1 must be a whole number"),
    "NaN cost": (
        at("costs", 0, np.nan), {"costs": ["costs"]},
        "column 'costs' (costs): 1 missing, in row 0"),
    "mark 2": (at("terminals", 2, 2, int), {}, "column 'terminals' (terminated): 1 not true or false, in row 2 (2)"),
    "mark 0.5": (at("timeouts", 2, 0.5), {}, "column 'timeouts' (truncated): 1 not true or false, in row 2"),
    "NaN mark": (at("timeouts", 2, np.nan), {}, "column 'timeouts' (truncated): 1 missing, in row 2"),
    "marks of both kinds": (changed(done=fields()["terminals"]), {}, "fields 'terminals' and 'done': pass terminated="),
    "two states": (changed(obs=fields()["observations"]), {}, "fields 'observations' and 'obs': pass state="),
    "marks lost": (changed(timeouts=np.zeros(40, dtype=bool)), {}, "episodes do not chain: a next state is not"),
    "done": (fields(OMNISAFE), {}, "its field 'done' marks ended episodes and time-outs alike"),
    "infinite observation": (at("observations", 5, -np.inf), {"discretizer": {"bins": 3}},
                             "column 'observations' (state): 1 infinite, in row 5"),
    "no bins": (fields(), {"discretizer": {"method": "uniform"}}, "method 'uniform' needs bins="),
}  # fmt: skip


def truncated_npz(path):
    write_npz(path, fields())
    path.write_bytes(path.read_bytes()[:-30])
    return "it is not an .npz file"


def empty_npz(path):
    path.touch()
    return "it is not an .npz file"


def npz_without_fields(path):
    np.savez(path)
    return "it has no fields"


def npz_that_is_npy(path):
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    return "it is not an .npz file"


def pickled(path):
    np.savez(path, **changed(actions=np.array([{"left": 1}] * 40, dtype=object)))
    return "field 'actions': Object arrays cannot be loaded"


def pickled_structure(path):
    member(path, "rewards", npy((40,), [("x", "|O")], bytes(320)))
    return "field 'rewards': Object arrays cannot be loaded"


def absurd_npy(path):
    member(path, "rewards", npy((10**15,), data=bytes(320)))
    return "field 'rewards' is damaged or cannot be read: Unable to allocate"


def overflowing_npy(path):
    member(path, "rewards", npy((2**62, 2**62), data=bytes(320)))
    return "field 'rewards'"


def negative_npy(path):
    member(path, "rewards", npy((-40,), data=bytes(320)))
    return "field 'rewards'"


def short_npy(path):
    member(path, "rewards", npy((40,), data=bytes(312)))
    return "field 'rewards'"


def long_npy(path):
    member(path, "rewards", npy((40,), data=bytes(400)))
    return "field 'rewards': its header claims shape (40,), and more bytes are stored there"


def headless_npy(path):
    member(path, "rewards", b"")
    return "field 'rewards'"


def garbage_npy(path):
    member(path, "rewards", b"garbage" * 50)
    return "field 'rewards'"


def code_in_npy(path):
    member(path, "rewards", npy("__import__('os').getpid()"))
    return "field 'rewards'"


def long_header_npy(path):
    member(path, "rewards", npy((40,), data=bytes(320)).replace(b"}", b"}" + b" " * 60000))
    return "field 'rewards'"


def future_npy(path):
    member(path, "rewards", npy((40,), data=bytes(320), version=b"\x07\x00"))
    return "field 'rewards'"


def flipped_npz(path):
    """One bit of the data of a field, which only its CRC shows."""
    write_npz(path, changed(rewards=np.full(40, 0.123456789)))
    raw = bytearray(path.read_bytes())
    raw[raw.index(np.float64(0.123456789).tobytes()) + 3] ^= 1
    path.write_bytes(raw)
    return "field 'rewards' is damaged or cannot be read: Bad CRC-32"


def flipped_deflate(path):
    write_npz(path, fields(), compressed=True)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("rewards.npy")
    raw = bytearray(path.read_bytes())
    start = info.header_offset + 30 + len("rewards.npy") + 20
    raw[start + 40 : start + 80] = bytes(40)
    path.write_bytes(raw)
    return "field 'rewards' is damaged or cannot be read"


def encrypted_npz(path):
    write_npz(path, fields())
    raw = path.read_bytes()
    at = raw.rindex(b"PK\x01\x02")  # flags of the last entry of the directory
    path.write_bytes(raw[: at + 8] + b"\x01\x00" + raw[at + 10 :])
    return "field 'timeouts' is damaged or cannot be read"


def doubled_npz(path):
    member(path, "", b"")
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("rewards.npy", npy((40,), data=bytes(320)))
    return "it has the field 'rewards' more than once"


def truncated_hdf5(path):
    write_hdf5(path, fields())
    path.write_bytes(path.read_bytes()[:2000])
    return "it is not an HDF5 file, or a damaged one"


def empty_hdf5(path):
    path.touch()
    return "it is not an HDF5 file, or a damaged one"


def hdf5_that_is_text(path):
    path.write_text("s,a,r\n0,1,2\n" * 100)
    return "it is not an HDF5 file, or a damaged one"


def hdf5_without_fields(path):
    write_hdf5(path, {})
    return "it has no fields"


def absurd_hdf5(path):
    """Claims 8 petabytes; nothing is stored."""
    write_hdf5(path, changed(rewards=None))
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", shape=(10**15,), chunks=(1000,), dtype="f8")
    return "field 'rewards': its header claims shape (1000000000000000,), and no data was written"


def almost_empty_hdf5(path):
    write_hdf5(path, changed(rewards=None))
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", shape=(10**15,), chunks=(1000,), dtype="f8")[:40] = 1.0
    return "field 'rewards': its header claims shape (1000000000000000,), and only 8,000 bytes are stored"


def unwritten_hdf5(path):
    write_hdf5(path, changed(timeouts=None))
    with h5py.File(path, "a") as file:
        file.create_dataset("timeouts", shape=(40,), dtype=bool)
    return "field 'timeouts': its header claims shape (40,), and no data was written"


def text_hdf5(path):
    write_hdf5(path, changed(actions=["left"] * 40))
    return "field 'actions': it must hold numbers"


def null_hdf5(path):
    write_hdf5(path, changed(rewards=h5py.Empty("f8")))
    return "field 'rewards': it has no data"


def group_for_field(path):
    write_hdf5(path, {f"log/{name}": array for name, array in fields().items()})
    return "no field 'observations' or 'obs' (state)"


def external_hdf5(path):
    """The raw data of a field is another file of the machine."""
    other = path.with_name("secret")
    other.write_bytes(bytes(320))
    write_hdf5(path, changed(rewards=None))
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", shape=(40,), dtype="f8", external=[(str(other), 0, 320)])
    return "field 'rewards': its data is in other files, which are not read"


def linked_hdf5(path):
    other = write_hdf5(path.with_name("other.h5"), fields())
    write_hdf5(path, changed(rewards=None))
    with h5py.File(path, "a") as file:
        file["rewards"] = h5py.ExternalLink(other, "rewards")
    return "no field 'rewards' or 'reward' (reward)"


def flipped_hdf5(path):
    """A damaged chunk, which its checksum shows."""
    write_hdf5(path, changed(rewards=np.full(40, 0.123456789)), chunks=(40,), fletcher32=True)
    raw = bytearray(path.read_bytes())
    raw[raw.index(np.float64(0.123456789).tobytes()) + 3] ^= 1
    path.write_bytes(raw)
    return "field 'rewards' is damaged or cannot be read"


def csv(text):
    def write(path):
        path.write_text("s,a,r,n,end,stop\n" + text)

    return write


GOOD_ROW = "0,1,0.5,1,0,1\n"

TABLES = {
    "empty.csv": (lambda path: path.touch(), ""),
    "header.csv": (csv(""), "no rows"),
    "ragged.csv": (csv(GOOD_ROW + "0,1\n"), ""),
    "reward.csv": (csv(GOOD_ROW + "0,1,high,1,0,1\n"), "column 'r' (reward): 1 not a number, in row 1 ('high')"),
    "blank.csv": (csv(GOOD_ROW + ",1,0.5,1,0,1\n"), "column 's' (state): 1 missing, in row 1"),
    "column.csv": (
        lambda path: path.write_text("s,a\n0,1\n"),
        "'r' (reward), 'n' (next_state); its columns are 's', 'a'",
    ),
    "bytes.csv": (lambda path: path.write_bytes(b"s,a,r,n,end,stop\n\xff\xfe\x00,1,2,3,0,1\n"), ""),
    "text.parquet": (lambda path: path.write_text("s,a,r\n"), ""),
    "empty.parquet": (lambda path: path.touch(), ""),
    "bad.csv.gz": (lambda path: path.write_bytes(b"\x1f\x8bgarbage"), ""),
}


def assert_refused(source, named, contained, **options):
    with pytest.raises((ValueError, TypeError)) as caught:
        read_log(source, **options)
    message = str(caught.value)
    assert message.startswith(f"{named}: ")
    assert contained in message
    assert "\n" not in message
    assert len(message) < 1000
    assert_refused_by_the_command(source, options)


def assert_refused_by_the_command(source, options):
    """Exit code 1 and one line for `dpdl inspect` with the same options."""
    arguments = ["inspect", str(source)]
    for name, value in options.items():
        if name == "costs":
            arguments += [word for cost in value for word in ("--cost", cost)]
        elif isinstance(value, (str, bool, float)):
            arguments += [f"--{name.replace('_', '-')}", str(value).lower() if isinstance(value, bool) else str(value)]
        else:
            return  # nothing that can be said on the command line
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    assert (code, out.getvalue()) == (1, "")
    assert err.getvalue().startswith("dpdl: error: ")
    assert err.getvalue().count("\n") == 1


@pytest.mark.parametrize("ending", ["npz", "h5"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_fields(tmp_path, name, ending):
    arrays, options, contained = WRONG[name]
    path = tmp_path / f"log.{ending}"
    (write_npz if ending == "npz" else write_hdf5)(path, arrays)
    assert_refused(path, path, contained, **options)


CASES = {
    ".npz": (
        truncated_npz, empty_npz, npz_without_fields, npz_that_is_npy, pickled, pickled_structure, absurd_npy,
        overflowing_npy, negative_npy, short_npy, long_npy, headless_npy, garbage_npy, code_in_npy, long_header_npy,
        future_npy, flipped_npz, flipped_deflate, encrypted_npz, doubled_npz,
    ),
    ".hdf5": (
        truncated_hdf5, empty_hdf5, hdf5_that_is_text, hdf5_without_fields, absurd_hdf5, almost_empty_hdf5,
        unwritten_hdf5, text_hdf5, null_hdf5, group_for_field, external_hdf5, linked_hdf5, flipped_hdf5,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "write"), [pytest.param(k, one, id=one.__name__) for k, cases in CASES.items() for one in cases]
)
def test_damaged_files(tmp_path, ending, write):
    path = tmp_path / f"log{ending}"
    assert_refused(path, path, write(path))


@pytest.mark.parametrize("name", TABLES)
def test_malformed_tables(tmp_path, name):
    write, contained = TABLES[name]
    write(tmp_path / name)
    assert_refused(tmp_path / name, tmp_path / name, contained, **TABLE)


def test_damaged_folders(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "header.json").write_text("{}")
    assert_refused(tmp_path / "log", tmp_path / "log", "")


def test_no_bytes_of_a_file_give_anything_but_one_line(tmp_path):
    """Files cut anywhere, or with random bytes changed: a log, or one line."""
    rng = np.random.default_rng(0)
    refused = []
    for write, ending in ((write_npz, "npz"), (write_hdf5, "h5")):
        path = tmp_path / f"log.{ending}"
        write(path, fields(n=12))
        raw = path.read_bytes()
        for k in range(75):
            damaged = bytearray(raw[: rng.integers(len(raw))] if k % 3 == 0 else raw)
            for at in rng.integers(0, len(damaged), rng.integers(1, 8)) if damaged else []:
                damaged[at] = rng.integers(256)
            path.write_bytes(damaged)
            try:
                read_log(path)
            except (ValueError, TypeError) as error:
                refused.append(str(error).removeprefix(f"{path}: "))
    assert len(refused) >= 50
    assert not [message for message in refused if "\n" in message or message.startswith("/")]


class TestMinari:
    """Data sets that minari wrote and something else changed."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        write_minari("toy/log-v0", np.asarray, episodes())
        self.data = tmp_path / "toy" / "log-v0" / "data"

    def refused(self, contained, **options):
        assert_refused("minari:toy/log-v0", "minari:toy/log-v0", contained, **options)

    def replace(self, field, change, episode=2):
        with h5py.File(self.data / "main_data.hdf5", "r+") as file:
            group = file[f"episode_{episode}"]
            array = change(group[field][()])
            del group[field]
            group[field] = array

    COST = {"costs": ["cost"]}  # noqa: RUF012

    @pytest.mark.parametrize("extra", [-2, 1])
    def test_costs_of_another_length(self, extra):
        n = np.diff(np.append(-1, np.flatnonzero(episodes()[5] | episodes()[6])))[2]
        self.replace("infos/cost", lambda one: np.zeros(len(one) + extra))
        self.refused(f"infos['cost'] of episode 2 must have {n} values, or {n + 1} with that of the reset", **self.COST)

    def test_no_such_cost(self):
        self.refused("infos of episode 0 have no entry 'danger'; they are 'cost'", costs=["danger"])

    @pytest.mark.parametrize("field", ["observations", "actions", "terminations", "truncations"])
    def test_arrays_of_another_length(self, field):
        self.replace(field, lambda one: one[:-1])
        self.refused(f"{field} of episode 2 must have")

    def test_an_end_in_the_middle_of_an_episode(self):
        self.replace("terminations", lambda one: np.ones(len(one), dtype=bool))
        self.refused("column 'terminations' (terminated): only the last row of an episode can be terminated")

    def test_missing_array(self):
        with h5py.File(self.data / "main_data.hdf5", "r+") as file:
            del file["episode_2/rewards"]
        self.refused("it cannot be read")

    def test_nan_reward_and_negative_state(self):
        self.replace("rewards", lambda one: one * np.nan)
        self.refused("column 'rewards' (reward)")
        self.replace("rewards", np.nan_to_num)
        self.replace("observations", lambda one: -1 - one)
        self.refused("must be between 0 and")

    def test_truncated_file(self):
        raw = (self.data / "main_data.hdf5").read_bytes()
        (self.data / "main_data.hdf5").write_bytes(raw[:3000])
        self.refused("it cannot be read")

    def test_no_metadata(self):
        (self.data / "metadata.json").write_text("{")
        self.refused("it cannot be read")

    def test_a_data_set_that_is_not_there_is_not_downloaded(self):
        with pytest.raises(FileNotFoundError, match=r"^minari:toy/other-v0: there is no such data set"):
            read_log("minari:toy/other-v0")

    @pytest.mark.parametrize("name", ["", "no version", "../../etc-v0"])
    def test_impossible_names(self, name):
        with pytest.raises((ValueError, FileNotFoundError), match="minari:"):
            read_log(f"minari:{name}")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc to know the memory of a process")
def test_absurd_sizes_allocate_nothing(tmp_path):
    """In a process that may not allocate a gigabyte beyond what it has after the imports."""
    writers = (absurd_npy, overflowing_npy), (absurd_hdf5, almost_empty_hdf5)
    for ending, cases in zip((".npz", ".h5"), writers, strict=True):
        for write in cases:
            write(tmp_path / f"{write.__name__}{ending}")
    code = (
        "import resource, sys, h5py, dpdl; dpdl.read_log\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)\n"
        "for path in sys.argv[1:]:\n"
        "    try: dpdl.read_log(path)\n"
        "    except ValueError as error: assert \"field 'rewards'\" in str(error), error\n"
        "    else: raise SystemExit('accepted')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *map(str, tmp_path.iterdir())], capture_output=True, text=True, cwd=os.getcwd()
    )
    assert (found.returncode, found.stderr) == (0, "")
