"""Logs of every kind for the tests of storage, and what it means that two of them are the same."""

import json
import os
from hashlib import sha256

import numpy as np

from dpdl import Dataset, read_log
from dpdl.models.estimate import judge, plug_in
from dpdl.question import pose

KINDS = ("independent", "trajectory", "trajectories")
GAMMA = 0.9


def columns(kind, n_utilities, n_records=60, seed=0):
    """Columns and starts of a log with four states and three actions, of which one is never taken."""
    rng = np.random.default_rng(seed)
    states = rng.integers(0, 4, n_records + 1)
    s, s_next = states[:-1].copy(), states[1:].copy()
    starts = None if kind == "independent" else [0] if kind == "trajectory" else [0, 1, 17, 40, n_records - 1]
    for k in starts or []:
        s_next[k - 1] = 3 - s[k]  # so that a boundary shows in the data
    if kind == "trajectory":
        s_next[-1] = 0
    r, u = rng.uniform(-1, 1, n_records), rng.uniform(-1, 1, (n_records, n_utilities))
    r[3] = -0.0  # a bit that only a copy of the bits preserves
    return {"s": s, "a": rng.integers(0, 2, n_records), "s_next": s_next, "r": r, "u": u}, starts


def make_log(kind="independent", n_utilities=1, costs=False, **options):
    """A log, with utilities or with costs."""
    data, starts = columns(kind, n_utilities, **options)
    sizes = {"n_states": 4, "n_actions": 3, "starts": starts}
    if not costs:
        return Dataset(**data, **sizes)
    data["costs"] = {f"cost {i}": 7.3 * column for i, column in enumerate(data.pop("u").T)}
    data["r"] *= 3.1
    return Dataset(**data, **sizes)


def from_costs(s, a, s_next, r, costs, limits, *, gamma, normalised, **options):
    """A log of costs "cost 0", "cost 1", ... under limits on their averages (normalised) or totals."""
    columns = np.asarray(costs, dtype=float).reshape(len(s), -1)
    named = {f"cost {i}": column for i, column in enumerate(columns.T)}
    log = Dataset(s, a, s_next, r, costs=named, **options)
    bounds = dict(zip(named, np.atleast_1d(limits).tolist(), strict=True))
    return pose(log, gamma, bounds, "average" if normalised else "total")


def from_table(table, *, costs=None, limits=None, gamma=None, **names):
    """The log of a table, under limits on its costs if there are any."""
    log = read_log(table, costs=list(costs or ()), **names)
    return log if gamma is None else pose(log, gamma, costs, limits)


def from_trajectories(trajectories, terminated=False, **options):
    """A log of trajectories (states, actions, rewards, utilities), each of which has one state more than actions."""
    ended = np.broadcast_to(terminated, len(trajectories))
    columns, starts, marks = [], [0], []
    for (states, actions, rewards, utilities), end in zip(trajectories, ended, strict=True):
        states = np.append(states, 0) if end and len(states) == len(actions) else np.asarray(states)
        columns.append((states[:-1], actions, states[1:], rewards, np.reshape(utilities, (len(actions), -1))))
        starts.append(starts[-1] + len(actions))
        marks += [False] * (len(actions) - 1) + [bool(end)]
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    return Dataset(*joined, starts=starts[:-1], terminated=marks if any(marks) else None, **options)


def assert_same(one, other):
    """Two logs are the same to the last bit, and know it."""
    assert one.records.dtype == other.records.dtype
    assert one.records.tobytes() == other.records.tobytes()
    assert one.pairs.tolist() == other.pairs.tolist()
    assert one.pair_counts.tolist() == other.pair_counts.tolist()
    assert (one.starts is None) == (other.starts is None)
    if one.starts is not None:
        assert one.starts.tolist() == other.starts.tolist()
    for name in ("n_states", "n_actions", "n_utilities", "cost_names", "kind", "fingerprint"):
        assert getattr(one, name) == getattr(other, name)


def contents(folder):
    """Every file of a folder."""
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def reseal(folder, **changes):
    """Make the header agree with the files, and then say other things if asked to, with a checksum that is right."""
    header = json.loads((folder / "header.json").read_bytes())
    for name, entry in header["files"].items():
        raw = (folder / name).read_bytes()
        entry.update(bytes=len(raw), sha256=sha256(raw).hexdigest())
    header |= {**changes, "checksum": "0" * 64}
    raw = (json.dumps(header, indent=1) + "\n").encode()
    (folder / "header.json").write_bytes(raw.replace(b"0" * 64, sha256(raw).hexdigest().encode()))


def rewrite(folder, name, change):
    """Let `change` edit an array of a stored log in place, and make the header agree with it."""
    array = np.load(folder / f"{name}.npy", mmap_mode="r+")
    change(array)
    array.flush()
    reseal(folder)


def nothing_else(folder, *names):
    """Assert that a folder holds these names and no others, hidden ones included."""
    assert sorted(os.listdir(folder)) == sorted(names)


def judged(policy, log, *, gamma, **start):
    """Estimates of a policy from a log on its plug-in model."""
    return judge(np.asarray(policy, dtype=float), log, plug_in(log, gamma, **start), estimated_start=not start)
