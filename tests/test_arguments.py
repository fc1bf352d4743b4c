"""Arrays where a number, a word or a path is meant, and misspelt keywords: each is refused by its name."""

import inspect
import re
from contextlib import suppress

import numpy as np
import pytest
import scipy.sparse as sp

from dpdl import Dataset, Settings, instances, learn, learn_adaptive, mixing, replicate, resume, sweep, verify
from dpdl import _validation as check
from dpdl.data.reference import Reference
from dpdl.learner.arguments import parameters
from dpdl.learner.drive import Options
from logs import make_log

LOG = make_log("trajectory", 1)
MODEL = instances.garnet(4, 3, 1, branching=2, gamma=0.5, slater=0.1, rng=3)
SIZES = {"n_states": 4, "n_actions": 3}
NUMBERS = {"gamma": 0.5, "psi": 2.0, "slater": 0.5, "T": 20}
SETTINGS = NUMBERS | {
    "eps": 0.1,
    "delta": 0.05,
    "kappa": 0.0,
    "floor": 0.1,
    "order": "trajectory",
    "short_steps": False,
    "eta": 0.1,
    "alpha_V": 1.0,
    "alpha_lam": 1.0,
    "alpha_x": 1.0,
    "radius_V": 1.0,
    "radius_lam": 3.0,
    "mixing_time": 2.0,
    "c_o": 1.0,
    "c_e": 1.0,
    "refresh": 10,
}
DRIVEN_BY = {"callback_every": 5, "progress": False, "step_limit": 5, "time_limit": 1.0, "every": 60.0, "chunk": 3}
KERNEL = [[0.5, 0.5], [0.25, 0.75]]
RHO0 = [0.25] * 4
STARTERS = [learn, learn_adaptive, replicate, sweep]


def made(**given):
    return Dataset([0, 1], [0, 1], [1, 0], [0, 1], [[0], [1]], **given)


#: Functions, and their arguments that are no arrays. A path that nobody reads is missing.
CALLS = {
    "Dataset": (made, SIZES),
    "Dataset.open": (Dataset.open, {"path": "missing"}),
    "Dataset.save": (LOG.save, {"path": "missing/log", "overwrite": False}),
    "CMDP.solve": (MODEL.solve, {"kappa": 0.0}),
    "CMDP.sample": (lambda **given: MODEL.sample(mu=np.full((4, 3), 1 / 12), **given), {"n": 3, "rng": 0}),
    "CMDP.rollout": (
        lambda **given: MODEL.rollout(policy=np.full((4, 3), 1 / 3), **given),
        {"n": 3, "rng": 0, "start": 0},
    ),
    "Reference": (lambda **given: Reference([0], [2], **given), SIZES | {"n_samples": 2, "floor": 0.1}),
    "Settings": (Settings, SETTINGS),
    "learn": (lambda **given: learn(LOG, rho0=RHO0, **given), SETTINGS | DRIVEN_BY | {"rng": 0, "n_reference": 5}),
    "learn_adaptive": (
        lambda **given: learn_adaptive(LOG, rho0=RHO0, eps=0.1, reuse=True, **given),
        {
            "gamma": 0.5,
            "slater": 0.5,
            "T": 20,
            "order": "once",
            "mixing_time": 2.0,
            "time_limit": 1.0,
            "max_levels": 1,
        },
    ),
    "replicate": (lambda **given: replicate(LOG, rho0=RHO0, **given), NUMBERS | DRIVEN_BY | {"n": 1, "resume": False}),
    "sweep": (
        lambda **given: sweep(LOG, over={"kappa": [0.0]}, rho0=RHO0, **given),
        NUMBERS | DRIVEN_BY | {"mixing_time": 2.0, "order": "trajectory"},
    ),
    "resume": (lambda **given: resume("missing", LOG, **given), DRIVEN_BY),
    "verify": (
        lambda **given: verify(learn(LOG, **NUMBERS, rho0=RHO0), LOG, rho0=RHO0, **given),
        {"eps": 0.1, "delta": 0.1},
    ),
    "estimate_mixing_time": (lambda **given: mixing.estimate_mixing_time(LOG, **given), {"delta": 0.05}),
}

ARRAYS = [np.array([0.9, 0.9]), np.array([1, 2]), np.array([]), np.array([[2.0]]), np.array([None, None]), [0.9], {}]


@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, (_, given) in CALLS.items() for argument in given]
)
def test_an_array_is_refused_by_the_name_of_its_argument(name, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, given = CALLS[name]
    for array in ARRAYS:
        with pytest.raises((TypeError, ValueError), match=rf"\b{re.escape(argument)} must be") as caught:
            call(**(given | {argument: array}))
        assert "truth value" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CALLS)
def test_without_an_array_nothing_is_refused(name, tmp_path, monkeypatch):
    """So that what is refused above is refused for the array."""
    monkeypatch.chdir(tmp_path)
    call, given = CALLS[name]
    with suppress(FileNotFoundError):  # of what is called missing
        call(**given)


def test_a_time_limit_may_be_infinite_or_none():
    for limit in (None, np.inf, float("inf"), 5, np.float64(5), np.array(5.0)):
        assert learn(LOG, **NUMBERS, rho0=RHO0, time_limit=limit).success
    for limit in (np.nan, -1, -np.inf):
        with pytest.raises(ValueError, match=r"^time_limit must be"):
            learn(LOG, **NUMBERS, rho0=RHO0, time_limit=limit)


def test_a_sparse_array_that_names_columns_beyond_its_end_is_refused():
    broken = sp.csr_array(KERNEL)
    broken.indices[0] = 7
    with pytest.raises(ValueError, match=r"^kernel is not a valid sparse array: "):
        mixing.stationary(broken)


def test_names_are_kept_once_and_in_order():
    assert check.choices("known", ["slater", "psi", "psi"], ("psi", "slater")) == ("psi", "slater")


@pytest.mark.parametrize(
    ("wrong", "right", "functions"),
    [
        ("seed", "rng", STARTERS),
        ("random_state", "rng", STARTERS),
        ("rgn", "rng", STARTERS),
        ("discount", "gamma", STARTERS),
        ("Gamma", "gamma", STARTERS),
        ("n_steps", "T", STARTERS),
        ("t", "T", STARTERS),
        ("rho_0", "rho0", STARTERS),
        ("time_limt", "time_limit", [*STARTERS, resume]),
        ("callback_freq", "callback_every", [*STARTERS, resume]),
        ("chekpoint", "checkpoint", STARTERS),
        ("n_jobs", "executor", [replicate, sweep]),
    ],
)
def test_a_misspelt_keyword_gets_the_right_one(wrong, right, functions):
    more = {replicate: {"n": 2}, sweep: {"over": {"kappa": [0.0]}}, resume: {"path": "missing"}}
    for function in functions:
        message = f"{function.__name__}() got an unexpected keyword argument '{wrong}'; did you mean {right}?"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            function(log=LOG, **more.get(function, {}), **{wrong: 1})


def test_a_misspelt_setting_gets_the_right_one():
    with pytest.raises(TypeError, match=r"^unknown setting 'order_'; did you mean order\?$"):
        Settings.of(None, NUMBERS | {"order_": "shuffle"})
    with pytest.raises(ValueError, match=r"^over\['slatr'\] is no setting; did you mean slater\?$"):
        sweep(LOG, over={"slatr": [0.1]}, **NUMBERS, rho0=RHO0)


def test_a_keyword_that_is_like_no_other_gets_the_list():
    for function in STARTERS[:2]:
        with pytest.raises(TypeError, match=r"'xyzzy'; its arguments are T, alpha_V, .*, time_limit"):
            function(LOG, xyzzy=1)


def test_signatures_show_all_keywords():
    """Interactive completion reads them there."""
    common = {*parameters(Settings), *parameters(Options), "rho0", "initial_states", "rng"}
    for function in STARTERS:
        shown = inspect.signature(function).parameters
        assert common <= shown.keys()
        assert {one.kind for one in shown.values()} == {
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        }
        defaults = {name: one.default for name, one in shown.items()}
        assert (defaults["delta"], defaults["every"]) == (0.05, 60.0)
        assert {defaults[name] for name in ("psi", "slater", "T")} == {None}  # found from the data
        assert (defaults["T"], defaults["rng"], defaults["callback"]) == (None, None, None)
        assert defaults["gamma"] is inspect.Parameter.empty
    shown = inspect.signature(resume).parameters
    assert shown.keys() == {"path", "log", "settings", *parameters(Options)} - {"checkpoint"}


def test_none_is_what_is_found_from_the_data():
    log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    common = {"gamma": 0.5, "rho0": [1.0], "T": 1000, "rng": 0}
    one, other = learn(log, **common), learn(log, **common, psi=None, slater=None)
    assert one.settings == other.settings
    np.testing.assert_array_equal(one.x_mean, other.x_mean)
