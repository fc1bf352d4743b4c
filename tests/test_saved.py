"""Answers, certificates, frontiers and policies: each is one file, and what is loaded is what was saved."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

import dpdl
from dpdl.demo import COLUMNS, QUESTION, record
from dpdl.files.headers import seal


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One of each kind, with what was loaded from its file."""
    log = dpdl.read_log(record(400, np.random.default_rng(0)), **COLUMNS)
    answer = dpdl.safe_policy(log, **QUESTION)
    certificate = dpdl.certify(np.full((5, 4), 1 / 4), log, **QUESTION)
    frontier = dpdl.frontier(log, **QUESTION, constraint="side effects", values=[0.01, 1.5])
    folder, kinds = tmp_path_factory.mktemp("files"), {}
    for thing in (answer, certificate, frontier, answer.policy):
        path = folder / f"{type(thing).__name__}.json"
        thing.save(path)
        kinds[type(thing).__name__] = thing, type(thing).load(path), path
    return kinds


@pytest.mark.parametrize("kind", ["Answer", "Certificate", "Frontier"])
def test_what_is_loaded_prints_and_draws_as_what_was_saved(saved, kind):
    before, after, _ = saved[kind]
    assert repr(after) == repr(before)
    assert after.to_json() == before.to_json()
    first, second = (thing.plot(Figure().subplots()) for thing in (before, after))
    for one, other in zip(first.lines, second.lines, strict=True):
        np.testing.assert_array_equal(one.get_xydata(), other.get_xydata())


def test_equal_certificates_and_frontiers(saved):
    for kind in ("Certificate", "Frontier"):
        before, after, _ = saved[kind]
        assert after == before
    assert saved["Frontier"][1].points[0].certified is None  # a limit that nobody keeps


def test_a_loaded_policy_explains_costs_and_compares(saved):
    answer = saved["Answer"][1]
    policy = saved["Policy"][1]
    shown = repr(policy.explain("intensive care"))
    assert shown == repr(answer.policy.explain("intensive care"))
    assert re.split(r"\s{2,}", shown.splitlines()[1].strip())[-3:] == ["reward", "side effects", "icu days"]
    assert answer.compare(policy).rows == []
    assert len(answer.compare(np.full((5, 4), 1 / 4)).rows) == 5


@pytest.mark.parametrize("kind", ["Answer", "Certificate", "Frontier", "Policy"])
def test_files_of_another_kind_or_version_or_with_damage_are_refused(saved, kind, tmp_path):
    thing, _, path = saved[kind]
    load, other = type(thing).load, saved["Frontier" if kind != "Frontier" else "Policy"][2]
    with pytest.raises(ValueError, match=f"it is not a {thing.FORMAT}"):
        load(other)
    raw = path.read_bytes()
    (tmp_path / "damaged.json").write_bytes(raw.replace(b"0.", b"1.", 1))
    with pytest.raises(ValueError, match=r"damaged\.json: its checksum is wrong"):
        load(tmp_path / "damaged.json")
    (tmp_path / "newer.json").write_bytes(seal(thing.FORMAT, thing.VERSION + 1, thing.to_json()))
    with pytest.raises(ValueError, match=f"its version is {thing.VERSION + 1}, and this dpdl reads"):
        load(tmp_path / "newer.json")
    (tmp_path / "other.json").write_bytes(seal(thing.FORMAT, thing.VERSION, {"name": 1}))
    with pytest.raises(ValueError, match="must have the names"):
        load(tmp_path / "other.json")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        thing.save(path)
