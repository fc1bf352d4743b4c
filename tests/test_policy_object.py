"""The policy object: an array that acts, explains itself and is saved."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

from dpdl import Dataset, Policy, learn, read_log, replicate, resume
from dpdl.acting import Evidence, evidence
from dpdl.data.labels import Labels
from dpdl.policy import from_occupancy
from dpdl.question import Question, pose

TABLE = np.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.0, 0.1, 0.9]])
LABELS = Labels(["home", "ward", "icu", "exit"], ["rest", "drug", "move"])
ADVANTAGES = {"advantage": np.array([-0.5, 0.25, 0.0, 1e-3, -12.5])}
SEEN = Evidence(np.array([0, 1, 3, 9, 10]), np.array([5, 7, 1000, 1, 2]), ADVANTAGES)
COSTLY = SEEN._replace(changes={"reward": ADVANTAGES["advantage"], "falls": np.array([0.5, -1.0, 0.0, 0.0, 2.0])})
QUESTION = Question(0.9, ("icu", "falls"), (0.1, 0.2), "average", (0, 1), 4.0, (1.0, 2.0))
RUN = {"gamma": 0.9, "psi": 4, "slater": 0.5, "T": 2000, "rho0": [0.25] * 4}


def a_log(n=400, seed=0, scale=1.0, **options):
    rng = np.random.default_rng(seed)
    s, a, s_next = rng.integers(4, size=n), rng.integers(2, size=n), rng.integers(4, size=n)
    s[:2], a[:2] = [3, 3], [0, 0]
    s, a = np.where(a == 1, s % 3, s), a  # pair (3, 1) is not seen
    r, u = rng.uniform(-1, 1, size=n), rng.uniform(-1, 1, size=(n, 2))
    return Dataset(s, a, s_next, scale * r, u, n_states=4, n_actions=2, **options)


# As an array.


def test_it_is_the_array_of_its_probabilities():
    policy = Policy(TABLE, LABELS)
    assert policy.shape == (4, 3)
    assert policy[0, 1] == 0.75
    assert policy[1].tolist() == [1.0, 0.0, 0.0]
    assert policy[:, 0].tolist() == TABLE[:, 0].tolist()
    assert len(policy) == 4
    assert policy.ndim == 2
    np.testing.assert_array_equal(policy, TABLE)
    np.testing.assert_array_equal(policy.probabilities, TABLE)
    np.testing.assert_array_equal([row.tolist() for row in policy], TABLE)
    assert policy.round(1).tolist() == TABLE.round(1).tolist()
    np.testing.assert_array_equal(policy.sum(axis=1), TABLE.sum(axis=1))
    np.testing.assert_array_equal(np.exp(policy), np.exp(TABLE))
    np.testing.assert_array_equal(abs(1 - policy / 2 + policy * TABLE), abs(1 - TABLE / 2 + TABLE * TABLE))
    assert (policy == TABLE).all()
    assert not (policy < 0).any()
    assert np.sum(policy) == TABLE.sum()
    assert np.asarray(policy, dtype=np.float32).dtype == np.float32
    assert repr(policy) == "Policy(4 states, 3 actions, with labels)"


def test_it_cannot_be_changed():
    given = TABLE.copy()
    policy = Policy(given)
    given[0] = [1, 0, 0]
    assert policy[0, 0] == 0.25
    with pytest.raises(TypeError, match="item assignment"):
        policy[0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        policy *= 2
    with pytest.raises(ValueError, match="read-only"):
        np.multiply(TABLE, 2, out=policy)
    with pytest.raises(AttributeError, match=r"^a Policy is read-only, labels cannot be set$"):
        policy.labels = LABELS
    with pytest.raises(AttributeError):
        policy.nothing_like_this  # noqa: B018
    writeable = np.array(policy)
    writeable[0, 0] = 7
    assert policy[0, 0] == 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.5, 0.4]],), r"^probabilities\[0\] must sum to 1, got 0\.9$"),
        (([[0.5, -0.5, 1.0]],), r"^probabilities\[0, 1\] = -0\.5 must be >= 0$"),
        (([0.5, 0.5],), r"^probabilities must have shape \(any, any\), got \(2,\)$"),
        ((np.empty((0, 2)),), r"^probabilities must have at least one state and one action, got shape \(0, 2\)$"),
        (([[1.0]], LABELS), r"^labels are for 4 states and 3 actions, got shape \(1, 1\)$"),
    ],
)
def test_invalid_policies(arguments, message):
    with pytest.raises(ValueError, match=message):
        Policy(*arguments)


# Acting.


def test_acting_by_label_and_by_index():
    policy = Policy(TABLE, LABELS)
    assert policy.act("ward") == "rest"
    assert policy.act(1) == "rest"  # no label is a number, so this is an index
    assert policy.act(np.int64(1)) == "rest"
    assert type(policy.act("ward")) is str
    assert type(Policy(TABLE).act(1)) is int
    assert Policy(TABLE).act(1) == 0
    assert policy.act(["ward", "ward", 1]).tolist() == ["rest"] * 3
    assert policy.act(np.array(["ward", "ward"])).tolist() == ["rest"] * 2
    assert policy.act(pd.Series(["ward", "ward"])).tolist() == ["rest"] * 2
    assert policy.act([]).tolist() == []


def test_labels_come_before_indices():
    policy = Policy([[1.0, 0.0], [0.0, 1.0]], Labels([1, 0], [7, 5]))
    assert policy.act(0) == 5
    assert policy.act([1, 0]).tolist() == [7, 5]
    with pytest.raises(ValueError, match=r"^there is no state 2; the closest are 1, 0$"):
        policy.act(2)
    pairs = Policy([[1.0, 0.0], [0.0, 1.0]], Labels([("a", 1), ("a", 2)], [(0, "x"), (1, "y")]))
    assert pairs.act(("a", 2)) == (1, "y")
    assert pairs.act([("a", 2), ("a", 1)]).tolist() == [(1, "y"), (0, "x")]
    assert pairs.act(1) == (1, "y")


def test_acting_by_label_draws_as_by_index():
    states = np.random.default_rng(3).integers(4, size=5000)
    wanted = Policy(TABLE).act(states, rng=1)
    names = [LABELS.states[k] for k in states]
    assert Policy(TABLE, LABELS).act(names, rng=1).tolist() == [LABELS.actions[k] for k in wanted]
    rng = np.random.default_rng(1)
    assert [Policy(TABLE).act(int(k), rng) for k in states[:50]] == wanted[:50].tolist()
    share = np.bincount(wanted[states == 0], minlength=3) / (states == 0).sum()
    np.testing.assert_allclose(share, TABLE[0], atol=4 * 0.5 / np.sqrt((states == 0).sum()))


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        ("word", ValueError, r"^there is no state 'word'; the closest is 'ward'$"),
        (4, ValueError, r"^state must be between 0 and 3, got 4$"),
        (["ward", "word"], ValueError, r"^there is no state 'word'"),
        (None, ValueError, r"^there is no state None"),
        ({"ward"}, ValueError, r"cannot be a state: it is not hashable$"),
    ],
)
def test_unknown_states(state, kind, message):
    with pytest.raises(kind, match=message):
        Policy(TABLE, LABELS).act(state)


def test_an_unknown_index():
    with pytest.raises(TypeError, match=r"^state must be a whole number, got str$"):
        Policy(TABLE).act("ward")


# Explanations.


def test_explanations():
    policy = Policy(TABLE, LABELS, evidence=lambda: SEEN)
    found = policy.explain("home")
    assert (found.state, found.actions) == ("home", LABELS.actions)
    assert found.probabilities.tolist() == [0.25, 0.75, 0.0]
    assert found.counts.tolist() == [5, 7, 0]
    np.testing.assert_array_equal(found.changes["advantage"], [-0.5, 0.25, np.nan])
    assert repr(found).splitlines() == [
        "state 'home'; signed: what taking it once changes in the discounted totals of the policy",
        "  action  probability  seen  advantage",
        "  'drug'         0.75     7      +0.25",
        "  'rest'         0.25     5       -0.5",
        "  'move'            0     0  not known",
    ]
    costly = Policy(TABLE, LABELS, evidence=COSTLY).explain("home")
    assert repr(costly).splitlines()[1:3] == [
        "  action  probability  seen     reward      falls",
        "  'drug'         0.75     7      +0.25         -1",
    ]
    last = policy.explain("exit")
    assert last.counts.tolist() == [1, 2, 0]
    assert repr(policy.explain("ward")).splitlines()[2] == "  'rest'            1  1,000         +0"
    assert Policy(TABLE, LABELS).explain("home").counts is None


def test_the_evidence_is_computed_once_and_late():
    calls = []
    policy = Policy(TABLE, evidence=lambda: calls.append(1) or SEEN)
    assert calls == []
    policy.explain(0), policy.explain(1), policy.visits
    assert calls == [1]


def lagrangian(V, lam):
    return {"advantage": (lambda rows: rows["r"] + rows["u"] @ lam, V)}


def test_advantages_are_those_of_the_plug_in_model():
    """Against a plain loop over the transitions."""
    log = pose(a_log(scale=4.0), 0.9)
    V, lam, gamma = np.array([1.0, -2.0, 0.5, 3.0]), np.array([0.3, 2.0]), 0.9
    seen = evidence(log, gamma, lagrangian(V, lam))
    assert seen.pairs.tolist() == log.pairs.tolist()
    assert seen.counts.tolist() == log.pair_counts.tolist()
    for pair, advantage in zip(seen.pairs, seen.changes["advantage"], strict=True):
        rows = log.s * 2 + log.a == pair
        gains = log.r[rows] + log.u[rows] @ lam + gamma * V[log.s_next[rows]] - V[pair // 2]
        np.testing.assert_allclose(advantage, gains.mean(), rtol=1e-12)
    ended = np.arange(400) % 7 == 0
    log = a_log(terminated=ended)
    falls = evidence(log, gamma, {"falls": (lambda rows: rows["u"][:, 1], V)}).changes["falls"]
    changes = log.u[:, 1] + gamma * np.where(ended, 0, V[log.s_next]) - V[log.s]
    np.testing.assert_allclose(falls, np.bincount(log.pair, weights=changes) / log.pair_counts, rtol=1e-11)
    gains = log.r + log.u @ lam + gamma * np.where(ended, 0, V[log.s_next]) - V[log.s]
    means = np.bincount(log.pair, weights=gains) / log.pair_counts
    np.testing.assert_allclose(evidence(log, gamma, lagrangian(V, lam)).changes["advantage"], means, rtol=1e-11)
    counted = Dataset.from_counts(**log.counts(), n_states=4, n_actions=2)
    seen = evidence(counted, gamma, lagrangian(V, lam))
    np.testing.assert_allclose(seen.changes["advantage"], means, rtol=1e-11)
    assert seen.counts.tolist() == log.pair_counts.tolist()
    part = log[100:150]  # shares the table of the whole log
    assert evidence(part, gamma, lagrangian(V, lam)).counts.sum() == 50


def test_policies_are_compared_state_by_state():
    other = TABLE.copy()
    other[0], other[2] = [1.0, 0, 0], [0, 0.5, 0.5]
    found = Policy(TABLE, LABELS, evidence=SEEN).compare(other)
    np.testing.assert_allclose(found.difference, [0.75, 0, 1 / 3, 0])
    assert [row[:3] for row in found.rows] == [("home", "12", "75%"), ("icu", "0", "33%")]
    assert found.rows[0][3:] == ("drug 75%, rest 25%", "rest 100%")
    assert repr(found).startswith("2 of 4 states differ\n")
    assert repr(Policy(TABLE).compare(TABLE)) == "0 of 4 states differ"
    with pytest.raises(ValueError, match="other"):
        Policy(TABLE).compare([[1.0]])


def test_a_policy_is_matched_to_a_log_by_labels():
    table = {"s": ["x", "y", "x"], "a": ["go", "stay", "stay"], "t": ["y", "x", "x"], "r": [1, 0, 0]}
    log = read_log(table, state="s", action="a", reward="r", next_state="t")
    policy = Policy([[0.0, 0.25, 0.75], [0, 1, 0], [1, 0, 0]], Labels(["y", "x", "z"], ["fly", "go", "stay"]))
    assert policy.aligned_with(log).tolist() == [[1.0, 0.0], [0.25, 0.75]]
    with pytest.raises(ValueError, match="in state 'x' the policy takes 'fly', which the log never shows"):
        Policy([[0.5, 0.25, 0.25]] * 3, policy.labels).aligned_with(log)
    with pytest.raises(ValueError, match="there is no state 'y'"):
        Policy([[0, 1.0]], Labels(["x"], ["fly", "go"])).aligned_with(log)
    with pytest.raises(ValueError, match="the policy is for 1 states and 2 actions, and the log has 2 and 2"):
        Policy([[0, 1.0]]).aligned_with(log)


# Files.


@pytest.mark.parametrize("whole", [True, False])
def test_saved_and_loaded(tmp_path, whole):
    policy = Policy(TABLE, LABELS, QUESTION, lambda: COSTLY) if whole else Policy(TABLE)
    policy.save(tmp_path / "policy.json")
    again = Policy.load(tmp_path / "policy.json")
    assert again.probabilities.tobytes() == policy.probabilities.tobytes()
    assert (again.labels, again.question) == (policy.labels, policy.question)
    if whole:
        assert all((x == y).all() for x, y in zip(again.evidence[:2], COSTLY[:2], strict=True))
        assert {name: x.tolist() for name, x in again.evidence.changes.items()} == {
            name: x.tolist() for name, x in COSTLY.changes.items()
        }
        assert again.act("ward") == "rest"
        assert repr(again.explain("home")) == repr(policy.explain("home"))
    else:
        assert again.evidence is None
    with pytest.raises(FileExistsError, match="pass overwrite=True to replace it"):
        policy.save(tmp_path / "policy.json")
    policy.save(tmp_path / "policy.json", overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["policy.json"]
    with pytest.raises(FileExistsError, match="it is a folder"):
        policy.save(tmp_path, overwrite=True)


def test_a_damaged_file_is_refused(tmp_path):
    """Any changed byte: the checksum, or the format before it."""
    path = tmp_path / "policy.json"
    Policy(TABLE, LABELS, QUESTION, SEEN).save(path)
    raw = path.read_bytes()
    for k in np.random.default_rng(0).choice(len(raw) - 1, size=200, replace=False):
        path.write_bytes(raw[:k] + bytes([raw[k] ^ 1]) + raw[k + 1 :])
        with pytest.raises(ValueError, match=r"policy\.json: "):
            Policy.load(path)
    for cut in (0, 10, len(raw) // 2):
        path.write_bytes(raw[:cut])
        with pytest.raises(ValueError, match=r"policy\.json: it is not valid JSON"):
            Policy.load(path)
    path.write_bytes(b'{"format": "dpdl policy", "version": 5}')
    with pytest.raises(ValueError, match="its version is 5, and this dpdl reads version 4"):
        Policy.load(path)
    path.write_bytes(b"[1]")
    with pytest.raises(ValueError, match="it is not a dpdl policy"):
        Policy.load(path)


def test_pickled_without_the_log():
    policy = Policy(TABLE, LABELS, QUESTION, lambda: SEEN)
    again = pickle.loads(pickle.dumps(policy))
    assert again.probabilities.tobytes() == policy.probabilities.tobytes()
    assert again.evidence is None  # what computes it holds the log
    policy.explain("home")
    assert pickle.loads(pickle.dumps(policy)).evidence.counts.tolist() == SEEN.counts.tolist()
    assert copy.deepcopy(policy).labels == LABELS


# From runs.


def test_the_policy_of_a_run(tmp_path):
    log = a_log()
    result = learn(log, **RUN, rng=0)
    assert isinstance(result.policy, Policy)
    np.testing.assert_array_equal(result.policy, from_occupancy(result.x_mean))
    wanted = evidence(log, 0.9, lagrangian(result.V_mean, result.lam_mean)).changes["advantage"]
    np.testing.assert_allclose(result.policy.evidence.changes["advantage"], wanted, rtol=1e-12)
    found = result.policy.explain(3)
    assert found.counts[1] == 0
    assert np.isnan(found.changes["advantage"][1])
    assert result.question == pose(log, result.settings.gamma).question
    path = tmp_path / "run"
    learn(log, **RUN, rng=0, step_limit=1000, checkpoint=path)
    again = resume(path, log)
    assert repr(again.policy.explain(0)) == repr(result.policy.explain(0))


def test_a_pickled_result_has_no_log():
    log = a_log(20_000)
    result = learn(log, **RUN, rng=0)
    size = len(pickle.dumps(result))
    assert size < log.records.nbytes / 10
    again = pickle.loads(pickle.dumps(result))
    assert again.log is None
    np.testing.assert_array_equal(again.policy, result.policy)


def test_replicas_and_levels_have_their_log(tmp_path):
    log = a_log()
    found = replicate(log, n=2, **RUN, rng=0)
    assert found.result.policy.explain(0).counts.sum() == (log.s == 0).sum()
    assert found.results[1].log.fingerprint == log.fingerprint


def test_actions_that_the_policy_prefers_have_the_larger_advantage():
    """One state, two safe actions: the better one is taken, and the explanation says why."""
    log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[0.5], [0.5]], n_states=1, n_actions=2)
    result = learn(log, gamma=0.5, psi=2, slater=0.5, T=50_000, rho0=[1.0], rng=0)
    found = result.policy.explain(0)
    assert found.probabilities[0] > 0.9
    np.testing.assert_allclose(found.changes["advantage"][0] - found.changes["advantage"][1], 1.0, rtol=1e-12)
