"""Parquet in and out: nothing is lost on the way, and what cannot be read is named."""

import json
import re
import sys
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from dpdl import Dataset, DatasetBuilder, from_parquet
from dpdl.data import packing
from logs import GAMMA, KINDS, assert_same, columns, contents, make_log, nothing_else

SIZES = {"n_states": 4, "n_actions": 3}

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture(params=[7, packing.CHUNK], ids=["chunks", "whole"])
def _chunk(request, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", request.param)


def table(kind="independent", n_utilities=1, **changes):
    """A log as another program would have written it, and the starts that belong to it."""
    data, starts = columns(kind, n_utilities)
    u = data.pop("u")
    if not changes.keys() & {"u", "fire"}:
        data |= {f"u_{i}": u[:, i] for i in range(n_utilities)}
    if starts is not None:
        data["episode"] = np.searchsorted(starts, np.arange(60), side="right") * 11
    return pa.table(data | changes)


def write(folder, contents, name="log.parquet", **options):
    pq.write_table(contents, folder / name, **options)
    return folder / name


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_utilities", "costs"), [(0, False), (1, False), (3, False), (3, True)])
def test_out_and_back_is_the_same_log(tmp_path, kind, n_utilities, costs):
    log = make_log(kind, n_utilities, costs)
    log.to_parquet(tmp_path / "log.parquet")
    again = from_parquet(tmp_path / "log.parquet", tmp_path / "log")
    assert_same(again, log)
    assert again.path == tmp_path / "log"
    log.save(tmp_path / "saved")
    assert contents(tmp_path / "log") == contents(tmp_path / "saved")
    nothing_else(tmp_path, "log.parquet", "log", "saved")


def test_a_part_goes_out_and_back_as_a_log_of_its_own(tmp_path):
    part = make_log("trajectories", 2)[10:45]
    part.to_parquet(tmp_path / "log.parquet")
    again = from_parquet(tmp_path / "log.parquet", tmp_path / "log")
    assert again.fingerprint == part.fingerprint
    assert again.starts.tolist() == part.starts.tolist()


def test_the_columns_are_what_a_reader_expects(tmp_path):
    log = make_log("trajectories", 2)
    log.to_parquet(tmp_path / "log.parquet")
    found = pq.read_table(tmp_path / "log.parquet")
    assert found.column_names == ["s", "a", "s_next", "episode", "r", "u_0", "u_1"]
    for name in ("s", "a", "s_next", "r"):
        np.testing.assert_array_equal(found[name].to_numpy(), getattr(log, name))
    assert np.flatnonzero(np.diff(found["episode"].to_numpy(), prepend=-1)).tolist() == log.starts.tolist()


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_another_program_make_the_log_of_their_columns(tmp_path, kind):
    data, starts = columns(kind, 2)
    expected = Dataset(**data, **SIZES, starts=starts)
    episode = None if starts is None else "episode"
    source = table(kind, 2)
    for name, written in {
        "plain": source,
        "small": source.set_column(0, "s", source["s"].cast(pa.uint8())),
        "coded": source.set_column(1, "a", source["a"].dictionary_encode()),
    }.items():
        file = write(tmp_path, written, f"{name}.parquet", row_group_size=13)
        assert_same(from_parquet(file, tmp_path / name, **SIZES, episode=episode), expected)


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 2)])
def test_utilities_may_be_a_column_of_lists(tmp_path, kind):
    data, _ = columns("independent", 2)
    lists = pa.array(data["u"].tolist(), kind)
    file = write(tmp_path, table(n_utilities=2, u=lists, elsewhere=lists))
    expected = Dataset(**data, **SIZES)
    for name, u in (("default", None), ("named", "u"), ("other", "elsewhere")):
        assert_same(from_parquet(file, tmp_path / name, **SIZES, u=u), expected)
    assert from_parquet(file, tmp_path / "none", **SIZES, u=[]).n_utilities == 0


def test_numbered_utilities_go_by_number_whatever_is_between_them(tmp_path):
    data, _ = columns("independent", 1)
    names = ["u_10", "u_7", "u_2"]
    file = write(tmp_path, table(fire=np.zeros(60)).append_column("u_10", pa.array(data["u"][:, 0])))
    assert from_parquet(file, tmp_path / "one", **SIZES).n_utilities == 1
    source = table(fire=np.zeros(60))
    for k, name in enumerate(names):
        source = source.append_column(name, pa.array(np.full(60, k / 4)))
    log = from_parquet(write(tmp_path, source, "three.parquet"), tmp_path / "three", **SIZES)
    assert log.u[0].tolist() == [0.5, 0.25, 0.0]


def test_a_plain_column_u_is_the_utility_and_none_at_all_must_be_said(tmp_path):
    data, _ = columns("independent", 1)
    file = write(tmp_path, table(u=data["u"][:, 0]))
    assert_same(from_parquet(file, tmp_path / "log", **SIZES), Dataset(**data, **SIZES))
    file = write(tmp_path, table(fire=data["u"][:, 0]), "other.parquet")
    with pytest.raises(ValueError, match=r"there is no column 'u' or 'u_0' among .*: name the utilities' columns by u"):
        from_parquet(file, tmp_path / "none", **SIZES)
    assert from_parquet(file, tmp_path / "none", **SIZES, u=[]).n_utilities == 0
    file = write(tmp_path, table().append_column("u", pa.array(data["u"][:, 0])), "both.parquet")
    with pytest.raises(ValueError, match=r"there are columns 'u' and \['u_0'\] among"):
        from_parquet(file, tmp_path / "both", **SIZES)


def test_part_of_a_source_is_refused(tmp_path):
    file = write(tmp_path, table(), row_group_size=10)
    whole = pyarrow.dataset.dataset(file)
    with pytest.raises(ValueError, match=r"^source has a filter, or only some row groups of its files"):
        from_parquet(whole.filter(pyarrow.dataset.field("s") == 0), tmp_path / "log", **SIZES)
    fragment = next(iter(whole.get_fragments())).subset(row_group_ids=[1, 2])
    part = pyarrow.dataset.FileSystemDataset([fragment], whole.schema, whole.format, whole.filesystem)
    with pytest.raises(ValueError, match=r"^source has a filter, or only some row groups of its files"):
        from_parquet(part, tmp_path / "log", **SIZES)
    assert len(from_parquet(whole, tmp_path / "log", **SIZES)) == 60


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_episodes_may_be_strings_of_any_kind(tmp_path, kind):
    source = table("trajectories")
    names = source["episode"].cast(pa.string()).cast(getattr(pa, kind)())
    source = source.set_column(source.column_names.index("episode"), "episode", names)
    expected = columns("trajectories", 1)[1]
    log = from_parquet(write(tmp_path, source), tmp_path / "log", **SIZES, episode="episode")
    assert log.starts.tolist() == list(expected)


def test_a_file_that_a_killed_process_left_is_swept(tmp_path):
    (tmp_path / ".log.parquet.0123456789abcdef.tmp").touch()
    make_log().to_parquet(tmp_path / "log.parquet")
    nothing_else(tmp_path, "log.parquet")


def test_columns_may_have_other_names(tmp_path):
    data, starts = columns("trajectories", 2)
    names = {"s": "state", "a": "action", "s_next": "next", "r": "reward", "u_0": "fire", "u_1": "mud"}
    source = table("trajectories", 2)
    source = source.rename_columns([names.get(name, name) for name in source.column_names])
    episodes = pa.array([f"run {k}" for k in source["episode"].to_pylist()])
    file = write(tmp_path, source.append_column("run", episodes))
    chosen = {"s": "state", "a": "action", "s_next": "next", "r": "reward", "u": ["fire", "mud"], "episode": "run"}
    assert_same(from_parquet(file, tmp_path / "log", **SIZES, **chosen), Dataset(**data, **SIZES, starts=starts))
    only_mud = from_parquet(file, tmp_path / "mud", **SIZES, **(chosen | {"u": "mud"}))
    np.testing.assert_array_equal(only_mud.u[:, 0], data["u"][:, 1])


@pytest.mark.usefixtures("_chunk")
def test_several_files_are_one_log_and_a_trajectory_may_go_on_in_the_next(tmp_path):
    data, starts = columns("trajectories", 1)
    source = table("trajectories", 1)
    (tmp_path / "parts").mkdir()
    files = [
        write(tmp_path / "parts", source.slice(first, last - first), f"{k}.parquet")
        for k, (first, last) in enumerate([(0, 25), (25, 25), (25, 40), (40, 60)])
    ]
    expected = Dataset(**data, **SIZES, starts=starts)
    for name, several in {
        "list": files,
        "folder": tmp_path / "parts",
        "text": str(tmp_path / "parts"),
        "dataset": pyarrow.dataset.dataset(tmp_path / "parts", format="parquet"),
    }.items():
        assert_same(from_parquet(several, tmp_path / name, **SIZES, episode="episode"), expected)


def test_files_of_ours_are_whole_trajectories_one_after_another(tmp_path):
    log = make_log("trajectory", 1)
    for name in ("0.parquet", "1.parquet"):
        log.to_parquet(tmp_path / name)
    twice = from_parquet(tmp_path, tmp_path / "log")
    assert twice.starts.tolist() == [0, 60]
    np.testing.assert_array_equal(twice[60:].s, log.s)


def test_costs_become_utilities(tmp_path):
    data, starts = columns("trajectory", 2)
    rule = {"limits": [0.5, 1.5], "gamma": GAMMA, "normalised": True}
    costs = 5 * data.pop("u")
    source = table("trajectory", 2, fire=costs[:, 0], mud=costs[:, 1])
    options = {"u": ["fire", "mud"], "episode": "episode", **rule, **SIZES}
    log = from_parquet(write(tmp_path, source), tmp_path / "log", **options)
    assert_same(log, Dataset.from_costs(**data, costs=costs, **rule, **SIZES, starts=starts))
    log.to_parquet(tmp_path / "again.parquet")
    assert_same(from_parquet(tmp_path / "again.parquet", tmp_path / "again"), log)


def with_null(values, row):
    return pa.array([None if k == row else value for k, value in enumerate(values)])


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"s": with_null([0] * 60, 41)}, ValueError, "column 's' is null in row 41 of the log"),
        ({"r": with_null([0.0] * 60, 0)}, ValueError, "column 'r' is null in row 0 of the log"),
        ({"u_0": with_null([0.0] * 60, 59)}, ValueError, "column 'u_0' is null in row 59 of the log"),
        ({"episode": with_null([1] * 60, 20)}, ValueError, "column 'episode' is null in row 20 of the log"),
        ({"u": with_null([[0.0, 1.0]] * 60, 33)}, ValueError, "column 'u' is null in row 33 of the log"),
        ({"u": pa.array([[0.0, 1.0]] * 59 + [[0.0, None]])}, ValueError, "column 'u' is null in row 59 of the log"),
        ({"u": pa.array([[0.0, 1.0]] * 50 + [[0.0]] * 10)}, ValueError, "column 'u' has 1 numbers in row 50 of the"),
        ({"u": pa.array([["a"]] * 60)}, TypeError, "column 'u' must hold lists of real numbers, got string"),
        ({"s": pa.array([0.0] * 60)}, TypeError, "column 's' must hold whole numbers, got double"),
        ({"a": pa.array([True] * 60)}, TypeError, "column 'a' must hold whole numbers, got bool"),
        ({"r": pa.array(["1"] * 60)}, TypeError, "column 'r' must hold real numbers, got string"),
        ({"u_0": pa.array([[1.0]] * 60)}, TypeError, "column 'u_0' must hold real numbers, got list"),
        (
            {"episode": pa.array([1.0] * 60)},
            TypeError,
            "column 'episode' must hold whole numbers or strings, got double",
        ),
    ],
)
def test_columns_that_cannot_be_read_are_named(tmp_path, changes, error, message):
    file = write(tmp_path, table(**changes))
    episode = "episode" if "episode" in changes else None
    with pytest.raises(error, match=f"^{re.escape(f'{file}: {message}')}"):
        from_parquet(file, tmp_path / "log", **SIZES, episode=episode)
    nothing_else(tmp_path, "log.parquet")


@pytest.mark.usefixtures("_chunk")
def test_values_that_are_refused_are_named_by_their_place_in_the_log(tmp_path):
    r = np.zeros(60)
    r[44] = 3.0
    files = [write(tmp_path, table(), "0.parquet"), write(tmp_path, table(r=r), "1.parquet")]
    with pytest.raises(ValueError, match=rf"^{re.escape(str(files[1]))}: r\[104\] = 3.0 must be <= 1.*'r': 'r'"):
        from_parquet(files, tmp_path / "log", **SIZES)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(files[0]))}: s_next\[2\] = 2 but s\[3\] = 1"):
        from_parquet(files, tmp_path / "log", **SIZES, episode="a", s_next="s")
    nothing_else(tmp_path, "0.parquet", "1.parquet")


def test_what_is_missing_or_too_much_is_named(tmp_path):
    file = write(tmp_path, table())
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: there is no column 'state' among "):
        from_parquet(file, tmp_path / "log", **SIZES, s="state")
    with pytest.raises(TypeError, match=r"^missing n_actions: the source does not have it$"):
        from_parquet(file, tmp_path / "log", n_states=4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'scale'"):
        from_parquet(file, tmp_path / "log", **SIZES, scale=2)
    with pytest.raises(TypeError, match=r"^n_utilities must be left out"):
        from_parquet(file, tmp_path / "log", **SIZES, n_utilities=1)
    twice = pa.Table.from_arrays([*table().columns, table()["s"]], [*table().column_names, "s"])
    with pytest.raises(ValueError, match="there is more than one column 's' among"):
        from_parquet(write(tmp_path, twice, "twice.parquet"), tmp_path / "log", **SIZES)
    (tmp_path / "twice.parquet").unlink()
    with pytest.raises(ValueError, match=r"^source has no Parquet files$"):
        from_parquet([], tmp_path / "log", **SIZES)
    for name, value in (("s", 3), ("a", np.array(["a", "b"])), ("episode", ["e"]), ("u[1]", ["u_0", np.zeros(2)])):
        with pytest.raises(
            TypeError, match=f"^{re.escape(name)} must be a string, got {type(value).__name__}|ndarray$"
        ):
            from_parquet(file, tmp_path / "log", **SIZES, **{name.split("[")[0]: value})
    with pytest.raises(TypeError, match=r"^u must be a string or a sequence of strings, got set$"):
        from_parquet(file, tmp_path / "log", **SIZES, u={"u_0"})
    with pytest.raises(TypeError, match=r"^source must be a path, paths or a pyarrow Dataset, got int$"):
        from_parquet(3, tmp_path / "log", **SIZES)
    with pytest.raises(FileNotFoundError):
        from_parquet(tmp_path / "nowhere.parquet", tmp_path / "log", **SIZES)
    empty = write(tmp_path, table().slice(0, 0), "empty.parquet")
    with pytest.raises(ValueError, match=r"^source has no rows$"):
        from_parquet(empty, tmp_path / "log", **SIZES)
    nothing_else(tmp_path, "log.parquet", "empty.parquet")


def test_a_file_that_says_what_it_is_must_not_be_contradicted(tmp_path):
    log = make_log("trajectory", 1, costs=True)
    log.to_parquet(tmp_path / "one.parquet")
    assert_same(from_parquet(tmp_path / "one.parquet", tmp_path / "log", **SIZES), log)
    with pytest.raises(ValueError, match=r"^n_states = 5 differs from 4 in the source$"):
        from_parquet(tmp_path / "one.parquet", tmp_path / "other", n_states=5)
    with pytest.raises(TypeError, match=r"^reward_scale must be left out: the source was written by dpdl"):
        from_parquet(tmp_path / "one.parquet", tmp_path / "other", reward_scale=2.0)
    make_log("trajectory", 1).to_parquet(tmp_path / "two.parquet")
    with pytest.raises(ValueError, match=r"two.parquet: its metadata 'dpdl' differs from that of .*one.parquet$"):
        from_parquet([tmp_path / "one.parquet", tmp_path / "two.parquet"], tmp_path / "other")
    nothing_else(tmp_path, "one.parquet", "two.parquet", "log")


def sealed(text):
    """Metadata of ours that says something else, with a checksum that is right."""
    return {"dpdl": text, "dpdl.sha256": sha256(text.encode()).hexdigest()}


@pytest.mark.parametrize("options", [{}, {"verify": False}, SIZES], ids=["plain", "unverified", "sizes"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("{", "it is not valid JSON"),
        ("[]", ""),
        ('{"n_states": 4, "n_states": 4}', "it is not valid JSON: 'n_states' is given twice"),
        ({"n_states": 0}, "n_states must be between 1 and 2147483647, got 0"),
        ({"n_states": [4]}, "n_states must be a whole number, got list"),
        ({"trajectories": "yes"}, "trajectories must be True or False, got 'yes'"),
        ({"more": 1}, "'more'"),
        ({"units": None}, "units must have the names"),
        ({"units": []}, "units must have the names"),
        ({"units": "utility_scale"}, "units must have the names"),
        ({"units": {}}, "units must have the names"),
        ({"units": {"gamma": 2}}, "units: gamma must be > 0 and < 1"),
        ({"units": {"utility_scale": 1.0}}, "units: utility_scale must be a list"),
        ({"units": {"utility_scale": None}}, "units: utility_scale must be a list"),
        ({"units": {"utility_scale": [0.0]}}, "units: utility_scale[0] must be > 0"),
    ],
)
def test_metadata_that_makes_no_sense_is_named(tmp_path, changes, message, options):
    make_log("trajectory", 1, costs=True).to_parquet(tmp_path / "log.parquet")
    good = json.loads(pq.read_schema(tmp_path / "log.parquet").metadata[b"dpdl"])
    if isinstance(changes, dict):
        if isinstance(changes.get("units"), dict) and changes["units"]:
            changes = {"units": good["units"] | changes["units"]}
        changes = json.dumps(good | changes)
    damaged = pq.read_table(tmp_path / "log.parquet").replace_schema_metadata(sealed(changes))
    file = write(tmp_path, damaged, "damaged.parquet")
    expected = f"{file}: its metadata 'dpdl' is not what dpdl writes: "
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}.*{re.escape(message)}"):
        from_parquet(file, tmp_path / "log", **options)
    nothing_else(tmp_path, "log.parquet", "damaged.parquet")


def test_a_damaged_file_is_named(tmp_path):
    file = write(tmp_path, table())
    raw = file.read_bytes()
    for damaged in (raw[:-3], raw[: len(raw) // 2], b"", raw[:4] + bytes(len(raw) - 600) + raw[4 + len(raw) - 600 :]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: "):
            from_parquet(file, tmp_path / "log", **SIZES)
    nothing_else(tmp_path, "log.parquet")


def flips_that_load_as_other_data(folder, log, bits, **options):
    """Of single-bit flips in the file of a log, those that are neither refused nor without effect."""
    log.to_parquet(folder / "log.parquet", overwrite=True)
    raw, others, refused = (folder / "log.parquet").read_bytes(), [], []
    for bit in np.random.default_rng(0).choice(8 * len(raw), bits, replace=False):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        (folder / "log.parquet").write_bytes(damaged)
        try:
            found = from_parquet(folder / "log.parquet", folder / "log", overwrite=True, **options)
        except (ValueError, TypeError) as error:
            refused.append(str(error))
        else:
            if found.fingerprint != log.fingerprint:
                others.append(bit)
    assert all(str(folder / "log.parquet") in text or text == "source has no rows" for text in refused)
    assert refused
    return others


def test_no_flipped_bit_loads_as_other_data(tmp_path):
    assert flips_that_load_as_other_data(tmp_path, make_log("trajectories", 1, costs=True), 400) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["independent", "trajectories"])
@pytest.mark.parametrize("options", [{}, SIZES], ids=["plain", "sizes"])
def test_no_bit_of_many_can_be_flipped(tmp_path, kind, options):
    """With sizes given, a file whose metadata is lost could be read as one of another program."""
    assert flips_that_load_as_other_data(tmp_path, make_log(kind, 1, costs=True), 5000, **options) == []


def flipped_at(file, needle):
    """Flip a bit in the middle of the only place where these bytes are."""
    raw = bytearray(file.read_bytes())
    assert raw.count(needle) == 1
    raw[raw.index(needle) + len(needle) // 2] ^= 1
    file.write_bytes(raw)


def test_the_checksums_of_pages_are_compared_in_files_of_any_program(tmp_path):
    """A page in plain, of which a bit is flipped: it can be read, but is not what was written."""
    data, _ = columns("independent", 1)
    options = {"use_dictionary": False, "compression": "none"}
    with_sums = write(tmp_path, table(), "with.parquet", **options, write_page_checksum=True)
    without = write(tmp_path, table(), "without.parquet", **options)
    for file in (with_sums, without):
        assert_same(from_parquet(file, tmp_path / "log", **SIZES, overwrite=True), Dataset(**data, **SIZES))
        flipped_at(file, data["r"].tobytes())
    with pytest.raises(ValueError, match=f"^{re.escape(str(with_sums))}: .*CRC checksum verification failed"):
        from_parquet(with_sums, tmp_path / "other", **SIZES)
    for file, verify in ((with_sums, False), (without, True)):
        assert_same(
            from_parquet(file, tmp_path / "other", **SIZES, verify=verify, overwrite=True)[:30], make_log()[:30]
        )
    nothing_else(tmp_path, "with.parquet", "without.parquet", "log", "other")


def test_a_file_of_ours_must_hold_what_was_written_to_it(tmp_path):
    log = make_log("trajectories", 1, costs=True)
    log.to_parquet(tmp_path / "log.parquet")
    written = pq.read_table(tmp_path / "log.parquet")
    described = json.loads(written.schema.metadata[b"dpdl"])
    assert described["fingerprint"] == log.fingerprint
    assert written.schema.metadata[b"dpdl.sha256"].decode() == sha256(written.schema.metadata[b"dpdl"]).hexdigest()
    make_log().save(tmp_path / "log")  # is not replaced by what is refused
    r = np.append(written["r"].to_numpy()[:-1], 0.5)
    old = described | {"units": described["units"] | {"reward_scale": 2.0}}
    changed = {
        "row": written.set_column(4, "r", pa.array(r)),
        "rows": written.slice(0, 30),
        "none": written.slice(0, 0),
        "units": written.replace_schema_metadata(sealed(json.dumps(old))),
        "no fingerprint": written.replace_schema_metadata(sealed(json.dumps(described | {"fingerprint": ""}))),
        "no checksum": written.replace_schema_metadata({"dpdl": json.dumps(described)}),
        "another checksum": written.replace_schema_metadata({"dpdl": json.dumps(described), "dpdl.sha256": "0" * 64}),
    }
    for name, rows in changed.items():
        file = write(tmp_path, rows, f"{name}.parquet")
        with pytest.raises(ValueError, match=r"verify=False reads|source has no rows"):
            from_parquet(file, tmp_path / "log", overwrite=True)
        assert_same(Dataset.open(tmp_path / "log"), make_log())
        if rows.num_rows:
            assert len(from_parquet(file, tmp_path / name, verify=False)) == rows.num_rows
        file.unlink()
    with pytest.raises(TypeError, match=r"^verify must be True or False, got 1$"):
        from_parquet(tmp_path / "log.parquet", tmp_path / "log", verify=1)


def test_each_of_several_files_of_ours_must_hold_what_was_written_to_it(tmp_path):
    (tmp_path / "parts").mkdir()
    logs = [make_log("trajectories", 1, seed=seed) for seed in (1, 2, 3)]
    for k, log in enumerate(logs):
        log.to_parquet(tmp_path / "parts" / f"{k}.parquet")
    together = from_parquet(tmp_path / "parts", tmp_path / "log")
    for k, log in enumerate(logs):
        assert together[60 * k : 60 * (k + 1)].fingerprint == log.fingerprint
    middle = pq.read_table(tmp_path / "parts" / "1.parquet")
    for rows in (middle.slice(0, 40), middle.slice(0, 0)):
        file = write(tmp_path / "parts", rows, "1.parquet")
        with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: it is damaged or was changed: its rows do not"):
            from_parquet(tmp_path / "parts", tmp_path / "other")
        found = from_parquet(tmp_path / "parts", tmp_path / "any", verify=False, overwrite=True)
        assert len(found) == 120 + len(rows)
    nothing_else(tmp_path, "parts", "log", "any")


def test_a_file_that_exists_is_replaced_only_on_request(tmp_path):
    log = make_log()
    log.to_parquet(tmp_path / "log.parquet")
    with pytest.raises(FileExistsError, match="pass overwrite=True to replace it"):
        log.to_parquet(tmp_path / "log.parquet")
    log[:5].to_parquet(tmp_path / "log.parquet", overwrite=True)
    log.save(tmp_path / "log")
    with pytest.raises(FileExistsError, match="pass overwrite=True to replace it"):
        from_parquet(tmp_path / "log.parquet", tmp_path / "log")
    assert len(from_parquet(tmp_path / "log.parquet", tmp_path / "log", overwrite=True)) == 5
    with pytest.raises(FileExistsError, match="it is a folder, not a file"):
        log.to_parquet(tmp_path / "log", overwrite=True)
    with pytest.raises(OSError, match="could not be written"):
        log.to_parquet(tmp_path / "log.parquet" / "log")
    nothing_else(tmp_path, "log.parquet", "log")


def test_without_pyarrow_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for attempt in (
        lambda: make_log().to_parquet(tmp_path / "log.parquet"),
        lambda: from_parquet(tmp_path / "log.parquet", tmp_path / "log", **SIZES),
    ):
        with pytest.raises(ImportError, match=r"^Parquet files need pyarrow: pip install 'dpdl\[parquet\]'$"):
            attempt()


def test_a_builder_may_be_fed_by_hand(tmp_path):
    """What `from_parquet` does, for sources that it does not know."""
    data, _ = columns("independent", 1)
    file = pq.ParquetFile(write(tmp_path, table()))
    with DatasetBuilder(tmp_path / "log", **SIZES, n_utilities=1) as builder:
        for batch in file.iter_batches(batch_size=9):
            s, a, s_next, r, u = (column.to_numpy() for column in batch.columns)
            builder.append(s, a, s_next, r, u[:, None])
    assert_same(Dataset.open(tmp_path / "log"), Dataset(**data, **SIZES))
