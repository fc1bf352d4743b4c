"""What was made of a caller's arrays is the library's own: nobody can change it, before, during or after a run."""

import copy
import dataclasses
import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp

from dpdl import CMDP, Dataset, instances, learn, learn_adaptive, replicate, resume, sweep
from dpdl.data.reference import Reference, estimate_reference
from dpdl.result import Point
from logs import KINDS, assert_same, columns, make_log

RUN = {"gamma": 0.5, "psi": 3, "slater": 0.3, "T": 600, "rng": 0, "floor": 0.01}
SIZES = {"n_states": 4, "n_actions": 3}

WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "slice": lambda log: log[:],
    **{
        f"pickle {protocol}": lambda log, protocol=protocol: pickle.loads(pickle.dumps(log, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "deepcopy of a part": lambda log: copy.deepcopy(log[1:]),
    "pickle of a part": lambda log: pickle.loads(pickle.dumps(log[1:])),
}


def refuses_to_change(array):
    """Assert that an array cannot be written to, and not be made to be."""
    with pytest.raises(ValueError, match="read-only"):
        array[...] = array.copy()
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array.setflags(write=True)
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array[...].setflags(write=True)


# ---- Data sets ----


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_array_of_a_log_can_be_changed_however_it_was_made(way, kind):
    log = WAYS[way](make_log(kind, 2))
    names = ("records", "table", "table_counts", "pairs", "pair_counts", "pair", "s", "a", "s_next", "r", "u", "starts")
    for name in names:
        if getattr(log, name) is not None:
            refuses_to_change(getattr(log, name))


def test_no_array_of_a_log_that_was_opened_can_be_changed(tmp_path):
    make_log().save(tmp_path / "log")
    log = Dataset.open(tmp_path / "log")
    for part in (log, log[3:], pickle.loads(pickle.dumps(log))):
        for name in ("records", "table", "pairs", "pair_counts", "s_next"):
            refuses_to_change(getattr(part, name))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [slice(None), slice(7, 50), slice(None, 5)])
def test_a_pickle_is_the_same_log_to_the_last_bit(kind, part):
    log = make_log(kind, 2, costs=True)[part]
    again = pickle.loads(pickle.dumps(log))
    assert_same(again, log)
    assert again.table.tolist() == log.table.tolist()  # so that a run has the same coordinates
    results = [learn(each, **(RUN | {"gamma": 0.9}), rho0=[0.25] * 4) for each in (log, again)]
    assert results[0].x_mean.tobytes() == results[1].x_mean.tobytes()
    assert_same(again[2:5], log[2:5])


def test_a_pickle_knows_where_the_log_was_opened(tmp_path):
    make_log().save(tmp_path / "log")
    assert pickle.loads(pickle.dumps(Dataset.open(tmp_path / "log"))).path == tmp_path / "log"


def test_what_was_pickled_with_a_log_shares_nothing_with_it():
    log, records, column = pickle.loads(pickle.dumps((made := make_log(), made.records, made.s_next)))
    for array in (records["s_next"], column):
        if array.flags.writeable:
            array[:] = 2_000_000_000
    assert_same(log, make_log())


# ---- References and models ----


def reference_of(log=None):
    return estimate_reference(make_log() if log is None else log, 0.01)


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle 2", "pickle 5"])
def test_no_array_of_a_reference_can_be_changed_however_it_was_made(way):
    reference = WAYS[way](reference_of())
    assert dataclasses.asdict(reference).keys() == dataclasses.asdict(reference_of()).keys()
    np.testing.assert_array_equal(reference.mu_hat, reference_of().mu_hat)
    for array in (reference.pairs, reference.counts):
        refuses_to_change(array)


def test_what_comes_out_of_the_pickle_of_a_reference_is_checked():
    reference = reference_of()
    function, (pairs, *others) = reference.__reduce__()
    with pytest.raises(ValueError, match=re.escape("pairs[0] = 1000000000000 must be between 0 and 11")):
        function(np.append(10**12, pairs[1:]), *others)


def test_the_numbers_of_a_reference_are_checked():
    good = {"pairs": [0, 3], "counts": [1, 2], "n_samples": 3, "floor": 0.1, "n_states": 2, "n_actions": 2}
    assert Reference(**good).mu_hat.sum() == pytest.approx(1.2)
    for name in ("n_samples", "n_states", "n_actions"):
        for value in ("3", 0, 1.5, np.array([2, 2])):
            with pytest.raises((TypeError, ValueError), match=f"^{name} must be"):
                Reference(**(good | {name: value}))


def model(**options):
    return instances.garnet(4, 3, 1, branching=2, gamma=0.5, slater=0.1, rng=3, **options)


def parts(cmdp):
    return cmdp.r, cmdp.u, cmdp.rho0, cmdp.P.data, cmdp.P.indices, cmdp.P.indptr


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle 2", "pickle 5"])
def test_no_array_of_a_model_can_be_changed_however_it_was_made(way):
    cmdp = WAYS[way](model())
    for array, same in zip(parts(cmdp), parts(model()), strict=True):
        assert array.tobytes() == same.tobytes()
        refuses_to_change(array)
    assert_same(cmdp.rollout(200, np.full((4, 3), 1 / 3), rng=0), model().rollout(200, np.full((4, 3), 1 / 3), rng=0))


def test_what_is_done_to_the_transitions_that_a_model_gives_out_has_no_effect_on_it():
    cmdp = model()
    P = cmdp.P
    P.indices = P.indices + 10**6
    P.data = -P.data
    with pytest.raises(ValueError, match="read-only"):
        cmdp.P *= 2
    assert cmdp.P.data.tobytes() == model().P.data.tobytes()
    assert cmdp.P.indices.tobytes() == model().P.indices.tobytes()
    with pytest.raises(AttributeError):
        cmdp.P = P


def test_what_comes_out_of_the_pickle_of_a_model_is_checked():
    function, arguments = model().__reduce__()
    for place, value, message in (
        (0, 2 * model().P, "P[0, 0] must sum to 1, got 2"),
        (1, np.full((4, 3), 2.0), "r[0, 0] = 2.0 must be <= 1"),
        (3, 1.5, "gamma must be > 0 and < 1"),
        (4, np.full(4, 0.5), "rho0 must sum to 1, got 2"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            function(*arguments[:place], value, *arguments[place + 1 :])


@pytest.mark.parametrize("n_states", [2, 30, 1000])
def test_what_was_scaled_once_is_not_scaled_again(n_states):
    """Rows of any length that sum to one up to rounding, with and without ends, stay the same to the last bit."""
    rng = np.random.default_rng(n_states)
    for share in (0.0, 0.3):
        P, ends = rng.dirichlet(np.ones(n_states), size=(n_states, 2)), share * rng.random((n_states, 2))
        P *= (1 - ends)[:, :, None] * (1 + 1e-10 * rng.random((n_states, 2, 1)))
        zeros = np.zeros((n_states, 2))
        cmdp = CMDP(P, zeros, zeros[None], 0.9, rng.dirichlet(np.ones(n_states)) * (1 + 1e-10), ends)
        again = pickle.loads(pickle.dumps(cmdp))
        for array, same in zip(parts(again), parts(cmdp), strict=True):
            assert array.tobytes() == same.tobytes()
        assert (again.ends is None) == (share == 0)
        assert share == 0 or again.ends.tobytes() == cmdp.ends.tobytes()
        left = 0.0 if cmdp.ends is None else cmdp.ends.ravel()
        np.testing.assert_allclose(cmdp.P.sum(axis=1) + left, 1, rtol=0, atol=3e-16 * n_states)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.bsr_array])
@pytest.mark.parametrize(("part", "value"), [("indices", 10**6), ("indices", -1), ("indptr", 10**6)])
def test_a_sparse_array_that_points_outside_itself_is_refused(kind, part, value):
    cmdp = model()
    P = kind(cmdp.P).copy()
    getattr(P, part)[-1] = value
    before = getattr(P, part).copy()
    with pytest.raises(ValueError, match=r"^P is not a valid sparse array: "):
        CMDP(P, cmdp.r, cmdp.u, cmdp.gamma, cmdp.rho0)
    np.testing.assert_array_equal(getattr(P, part), before)


# ---- Arguments ----


def garbage(array):
    """Write something else into an array."""
    if array.dtype.kind == "f":
        array[...] = 0.125
    else:
        array[...] = 0


def outcome(made):
    """Everything that an object says, as bytes."""
    if isinstance(made, Dataset):
        return made.fingerprint, made.records.tobytes(), made.table.tobytes()
    if isinstance(made, CMDP):
        return [array.tobytes() for array in parts(made)]
    if isinstance(made, Reference):
        return made.mu_hat.tobytes(), made.n_samples
    return [np.asarray(part).tobytes() for part in made]


def packed_columns():
    """Columns in the very types of the records, which no conversion copies."""
    data = columns("trajectories", 2)[0]
    return data | {name: data[name].astype(np.int32) for name in ("s", "a", "s_next")}


MADE = {
    "Dataset": lambda **given: Dataset(**given, **SIZES),
    "Dataset, costs": lambda c, **given: Dataset(costs={"c": c}, **given, **SIZES),
    "CMDP": lambda **given: CMDP(**given, gamma=0.5),
    "CMDP, sparse": lambda data, indices, indptr, **given: CMDP(
        sp.csr_array((data, indices, indptr), shape=(12, 4), copy=False), **given, gamma=0.5
    ),
    "Reference": lambda **given: Reference(**given, n_samples=9, floor=0.1, **SIZES),
    "Point.of": lambda **given: Point.of(**given),
}


def arguments_of(name):
    if name == "Dataset":
        return packed_columns() | {"starts": np.array([0, 1, 17, 40, 59])}
    if name == "Dataset, costs":
        data = packed_columns()
        return data | {"c": data.pop("u")[:, 0].copy()}
    if name == "CMDP":
        cmdp = model()
        dense = cmdp.P.toarray().reshape(4, 3, 4)
        return {"P": dense, "r": cmdp.r.copy(), "u": cmdp.u.copy(), "rho0": cmdp.rho0.copy()}
    if name == "CMDP, sparse":
        return dict(zip(("r", "u", "rho0", "data", "indices", "indptr"), map(np.copy, parts(model())), strict=True))
    if name == "Reference":
        return {"pairs": np.array([0, 3, 7]), "counts": np.array([2, 3, 4])}
    if name == "Point.of":
        return {"x": np.array([[1.0, 2.0]]), "V": np.array([3.0]), "lam": np.array([4.0])}
    return {"mu": np.full((4, 3), 1 / 12)}


def test_the_table_of_arguments_is_that_of_what_is_made():
    assert all(arguments_of(name) for name in MADE)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("view", [False, True], ids=["own", "view"])
def test_what_was_made_does_not_follow_its_arguments(name, view):
    """Given as arrays, and as views that are read-only while what they show is not."""
    expected = outcome(MADE[name](**arguments_of(name)))
    for changed in arguments_of(name):
        originals = arguments_of(name)
        given = {key: array[...] if view else array for key, array in originals.items()}
        for array in given.values():
            array.setflags(write=not view)
        made = MADE[name](**given)
        garbage(originals[changed])  # it is still the caller's, and can still be written to
        assert outcome(made) == expected
        assert all(array.flags.writeable for array in originals.values())
        for key, array in arguments_of(name).items():
            if key != changed:
                np.testing.assert_array_equal(originals[key], array)  # and nobody else writes to it


# ---- Runs ----


def bits(result):
    last = result.last
    arrays = (
        result.x_mean,
        result.policy.probabilities,
        result.V_mean,
        result.lam_mean,
        last.log_x,
        last.V,
        last.log_lam,
    )
    return *(array.tobytes() for array in arrays), result.n_steps, result.premises


def arrays_in(thing):
    """Every array that an object leads to."""
    if isinstance(thing, np.ndarray):
        yield thing
    elif isinstance(thing, (tuple, list)):
        for part in thing:
            yield from arrays_in(part)
    elif dataclasses.is_dataclass(thing):
        for name in [*(field.name for field in dataclasses.fields(thing)), "x_mean", "policy", "last"]:
            yield from arrays_in(getattr(thing, name, None))


def meddling(given):
    """A callback that writes into every array that was given to the run, and into all that it is shown itself."""

    def callback(result):
        for array in arrays_in(tuple(given.values())):
            garbage(array)
        given["known"].clear()
        for array in arrays_in(result):
            if array.flags.writeable:
                garbage(array)

    return callback


def inputs(log, first="rho0"):
    """Arrays for a run, each in the type that the core reads."""
    start = learn(log, **(RUN | {"T": 50}), rho0=[0.25] * 4).last
    initial = np.array([0.7, 0.1, 0.1, 0.1]) if first == "rho0" else np.array([0, 0, 1, 2, 3], dtype=np.int32)
    return {first: initial, "start": Point(*map(np.array, start)), "known": ["psi", "slater"]}


def adaptive(log, start, **given):
    options = {"gamma": 0.5, "slater": 0.3, "eps": 0.1, "T": 300, "rng": 0, "floor": 0.01}
    given["known"].remove("psi")
    return learn_adaptive(log, **options, **given, reuse=True, max_levels=3, eps_divisor=1)


RUNS = {
    "learn": lambda log, **given: [learn(log, **RUN, **given)],
    "replicate": lambda log, **given: replicate(log, n=5, **RUN, **given).results,
    "sweep": lambda log, **given: sweep(log, over={"kappa": [0.0, 0.1, 0.2, 0.3, 0.4]}, **RUN, **given).results,
    "learn_adaptive": lambda log, **given: [level.result for level in adaptive(log, **given).history],
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("first", ["rho0", "initial_states"])
def test_a_run_does_not_follow_its_arguments(name, first):
    log = make_log("independent", 1, n_records=300)
    expected = [bits(result) for result in RUNS[name](log, **inputs(log, first))]
    given = inputs(log, first)
    found = RUNS[name](log, **given, callback=meddling(given), callback_every=100)
    assert given["known"] == []  # the callback was called
    assert [bits(result) for result in found] == expected


def test_a_run_that_goes_on_is_the_run_that_was_begun(tmp_path):
    """What a checkpoint stores is what the sampler draws from, whatever became of the caller's rho0."""
    log = make_log("independent", 1, n_records=300)
    whole = learn(log, **RUN, **inputs(log))
    given = inputs(log)
    options = {"callback": meddling(given), "callback_every": 100, "step_limit": 300, "every": 0}
    half = learn(log, **RUN, **given, **options, checkpoint=tmp_path / "run")
    again = resume(tmp_path / "run", log)
    assert (half.n_steps, again.n_steps) == (300, 600)
    assert bits(again) == bits(whole)


def test_a_reference_from_elsewhere_stays_as_it_was_given():
    log = make_log("independent", 1, n_records=300)
    pairs, counts = log.pairs.copy(), log.pair_counts.copy()
    reference = Reference(pairs, counts, len(log), 0.01, **SIZES)
    expected = learn(log, **RUN, rho0=[0.25] * 4, reference=estimate_reference(log, 0.01))

    def callback(result):
        garbage(pairs)
        garbage(counts)

    found = learn(log, **RUN, rho0=[0.25] * 4, reference=reference, callback=callback)
    assert pairs.flags.writeable
    assert bits(found) == bits(expected)


def test_no_array_of_a_result_can_be_changed():
    result = learn(make_log(), **RUN, rho0=[0.25] * 4)
    for array in (result.x_mean, result.policy.probabilities, result.V_mean, result.lam_mean, result.V, result.log_lam):
        refuses_to_change(array)
    for name in ("x_table", "last_log_x_table"):
        refuses_to_change(getattr(result, name).pairs)
        refuses_to_change(getattr(result, name).values)
    result.last.V[:] = 7  # a point is the caller's
    assert (result.V != 7).all()
