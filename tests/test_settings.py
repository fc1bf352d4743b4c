"""Settings: what they refuse, what the theory fills in, and their JSON."""

import dataclasses
import json
import math
import re
import struct

import numpy as np
import pytest

from dpdl import theory
from dpdl.settings import Settings

GOOD = {"gamma": 0.9, "psi": 2.0, "slater": 0.3, "T": 1000}
POSITIVE = ["eps", "eta", "alpha_V", "alpha_lam", "alpha_x", "radius_V", "radius_lam", "c_o"]


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        *[("gamma", g, ValueError, f"gamma must be > 0 and < 1, got {float(g)!r}") for g in (0, 1, -0.5, 1.5)],
        ("gamma", math.nan, ValueError, "gamma must be finite, got nan"),
        ("gamma", "0.9", TypeError, "gamma must be a real number, got str"),
        ("gamma", None, TypeError, "gamma must be a real number, got NoneType"),
        ("gamma", True, TypeError, "gamma must be a real number, got bool"),
        ("psi", 0.999, ValueError, "psi must be >= 1 and <= 1e+30, got 0.999"),
        ("gamma", 10**400, ValueError, "gamma is beyond the range of a double"),
        ("psi", math.inf, ValueError, "psi must be finite, got inf"),
        ("psi", 1e308, ValueError, "psi must be >= 1 and <= 1e+30, got 1e+308"),
        ("slater", 0, ValueError, "slater must be >= 1e-30 and <= 1, got 0.0"),
        ("slater", 1.01, ValueError, "slater must be >= 1e-30 and <= 1, got 1.01"),
        ("floor", 0, ValueError, "floor must be >= 1e-200 and <= 1, got 0.0"),
        ("floor", 1.1, ValueError, "floor must be >= 1e-200 and <= 1, got 1.1"),
        ("delta", 0, ValueError, "delta must be >= 1e-100 and < 1, got 0.0"),
        ("delta", 1, ValueError, "delta must be >= 1e-100 and < 1, got 1.0"),
        ("kappa", -0.1, ValueError, "kappa must be >= 0, got -0.1"),
        ("kappa", 1e308, ValueError, "kappa must be <= 10, got 1e+308"),
        ("mixing_time", 0.5, ValueError, "mixing_time must be >= 1, got 0.5"),
        ("T", 0, ValueError, "T must be between 1 and 9223372036854775807, got 0"),
        ("T", 2**63, ValueError, "T must be between 1 and 9223372036854775807, got 9223372036854775808"),
        ("T", 1.5, ValueError, "T must be a whole number, got 1.5"),
        ("T", math.inf, ValueError, "T must be a whole number, got inf"),
        ("T", "10", TypeError, "T must be a whole number, got str"),
        ("T", True, TypeError, "T must be a whole number, got bool"),
        ("refresh", 0, ValueError, "refresh must be between 1 and"),
        ("order", "random", ValueError, "order must be one of 'replacement', 'shuffle', 'trajectory', 'once'"),
        ("order", None, ValueError, "order must be one of 'replacement', 'shuffle', 'trajectory', 'once'"),
        *[(name, 0, ValueError, f"{name} must be >") for name in POSITIVE],
        *[(name, -1, ValueError, "got -1.0") for name in POSITIVE],
        *[(name, math.nan, ValueError, f"{name} must be finite, got nan") for name in POSITIVE],
    ],
)
def test_bad_values_are_named(name, value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Settings(**{**GOOD, name: value})


def test_unknown_and_missing_names_raise():
    with pytest.raises(TypeError, match=r"^unknown setting 'gama'; did you mean gamma\?$"):
        Settings.of(None, {**GOOD, "gama": 0.9})
    with pytest.raises(TypeError, match="gama"):
        Settings(**GOOD, gama=0.9)
    with pytest.raises(TypeError, match="unknown setting 'steps'"):
        Settings.from_json(json.dumps({**GOOD, "steps": 5}))
    with pytest.raises(TypeError, match="missing setting 'gamma'"):
        Settings.of(None, {"psi": 2})
    with pytest.raises(TypeError, match="missing setting 'psi'"):
        Settings(gamma=0.9, slater=0.1, T=5).resolve(1, 1, 1)
    with pytest.raises(ValueError, match="give T"):
        Settings(gamma=0.9, slater=0.1, psi=5).resolve(1, 1, 1)
    with pytest.raises(TypeError, match="settings must be a Settings, got dict"):
        Settings.of(GOOD, {})
    with pytest.raises(TypeError, match="settings must be a JSON object, got list"):
        Settings.from_json("[1]")
    with pytest.raises(ValueError, match="'psi' is given twice"):
        Settings.from_json('{"gamma": 0.9, "psi": 2, "slater": 0.3, "T": 5, "psi": 3}')
    with pytest.raises(TypeError, match=r"^text must be a string, got dict$"):
        Settings.from_json(GOOD)
    with pytest.raises(ValueError, match=r"psi must be >= 1 and <= 1e\+30, got 0\.5"):
        Settings.from_json(json.dumps({**GOOD, "psi": 0.5}))
    with pytest.raises(ValueError, match="eta must be finite, got nan"):
        Settings.from_json('{"gamma": 0.9, "psi": 2, "slater": 0.3, "T": 5, "eta": NaN}')


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings(**GOOD).psi = 3.0


def test_whole_floats_and_numpy_numbers_become_plain_ones():
    settings = Settings(gamma=np.float64(0.9), psi=2, slater=np.array(0.3), T=1e6, refresh=np.int32(5))
    assert (type(settings.psi), type(settings.T), type(settings.refresh)) == (float, int, int)
    assert settings.T == 10**6


def bits(settings):
    return {
        name: struct.pack("<d", value) if isinstance(value, float) else value
        for name, value in settings.to_dict().items()
    }


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"eps": 0.1 + 0.2, "kappa": 5e-324, "floor": 1e-200, "eta": np.nextafter(0.1, 1), "T": 2**63 - 1},
        {"gamma": np.nextafter(1, 0), "psi": 1 + 2**-52, "slater": 2**-99, "alpha_x": 1.7976931348623157e308},
        {"kappa": -0.0, "alpha_V": 1 / 3, "alpha_lam": math.pi, "radius_V": 1e22, "radius_lam": 1e23},
        {"order": "trajectory", "mixing_time": 1e16 + 2, "T": None, "eps": 1e-3, "c_o": 2 / 3, "refresh": 1},
    ],
)
def test_json_gives_back_the_same_bits(values):
    settings = Settings(**{**GOOD, **values})
    again = Settings.from_json(settings.to_json())
    assert bits(again) == bits(settings)
    assert again == settings
    assert isinstance(json.loads(settings.to_json()), dict)


def test_resolved_settings_survive_json_too():
    settings = Settings(**GOOD, eps=0.07).resolve(7, 3, 2)
    assert bits(Settings.from_json(settings.to_json()).resolve(7, 3, 2)) == bits(settings)


@pytest.mark.parametrize("n_utilities", [0, 1, 5])
@pytest.mark.parametrize("mixing_time", [None, 3.0])
def test_what_is_left_open_is_the_theory_s(n_utilities, mixing_time):
    sizes = (7, 3, n_utilities)
    problem = theory.Problem(*sizes, 0.9, 0.3, 2.0)
    order = "replacement" if mixing_time is None else "once"
    by_eps = Settings(gamma=0.9, psi=2.0, slater=0.3, eps=0.5, delta=0.2, mixing_time=mixing_time, c_o=1.5, order=order)
    found = by_eps.resolve(*sizes)
    if mixing_time is None:
        assert theory.descent_steps(problem, 0.5, 0.2, 1.5) == found.T
    else:
        assert theory.async_descent_steps(problem, 0.5, 0.2, 3.0, 1.5) == found.T
        short = by_eps.changed(short_steps=True).resolve(*sizes)
        assert theory.async_descent_steps(problem, 0.5, 0.2, 3.0, 1.5, short_steps=True) == short.T < found.T
        assert short.eta == theory.step_size(short.T, 3.0)
    assert found.kappa == theory.conservatism(problem, 0.5)
    assert found.floor == theory.reference_floor(problem, 0.5)
    assert found.eta == theory.step_size(found.T)
    assert (found.alpha_V, found.alpha_lam, found.alpha_x) == (
        theory.scale_V(problem),
        theory.scale_lam(problem),
        theory.scale_x(problem),
    )
    assert (found.radius_V, found.radius_lam) == (theory.radius_V(0.9, 0.3), theory.radius_lam(0.3))
    assert found.resolve(*sizes) == found


def test_without_eps_there_is_no_conservatism_and_the_floor_of_the_largest_eps():
    found = Settings(**GOOD).resolve(7, 3, 1)
    problem = theory.Problem(7, 3, 1, 0.9, 0.3, 2.0)
    assert (found.T, found.kappa, found.eps) == (1000, 0.0, None)
    assert found.floor == theory.reference_floor(problem, theory.largest_eps(problem))


def test_what_is_given_is_kept():
    given = {
        "kappa": 0.25,
        "floor": 0.125,
        "eta": 0.5,
        "alpha_V": 2.0,
        "alpha_lam": 3.0,
        "alpha_x": 4.0,
        "radius_V": 5.0,
        "radius_lam": 6.0,
    }
    found = Settings(**GOOD, **given).resolve(7, 3, 1)
    assert {name: getattr(found, name) for name in given} == given


def test_from_theory_is_resolve():
    found = Settings.from_theory(7, 3, 2, gamma=0.9, slater=0.3, psi=2, eps=0.5, delta=0.1, order="shuffle")
    assert found == Settings(gamma=0.9, slater=0.3, psi=2, eps=0.5, delta=0.1, order="shuffle").resolve(7, 3, 2)
    assert None not in (found.T, found.kappa, found.floor, found.eta)
    with pytest.raises(TypeError, match="steps"):
        Settings.from_theory(7, 3, 2, gamma=0.9, slater=0.3, psi=2, eps=0.5, steps=5)
    with pytest.raises(ValueError, match="n_states must be between 1"):
        Settings.from_theory(0, 3, 2, gamma=0.9, slater=0.3, psi=2, eps=0.5)


def test_a_budget_beyond_64_bits_is_blamed_on_eps():
    with pytest.raises(ValueError, match=r"^eps = 0.01 requires 2.14e\+23 steps, too many for 64 bits; give T$"):
        Settings.from_theory(100, 10, 1, gamma=0.999, slater=0.01, psi=2, eps=0.01)


def test_an_eps_that_no_conservatism_can_follow_is_blamed():
    with pytest.raises(ValueError, match=r"^eps = 100 makes kappa = 5 slater eps exceed 1/\(1-gamma\)"):
        Settings(gamma=0.9, psi=2, slater=0.3, T=10, eps=100.0)
    assert Settings(gamma=0.9, psi=2, slater=0.3, T=10, eps=100.0, kappa=0.0).kappa == 0


#: Every parameter, with a value that is not its default.
OTHER = {
    "gamma": 0.8, "psi": 5.0, "slater": 0.1, "T": 77, "eps": 0.03, "delta": 0.2, "kappa": 0.4, "floor": 1e-3,
    "order": "trajectory", "eta": 0.3, "alpha_V": 1.5, "alpha_lam": 2.5, "alpha_x": 3.5, "radius_V": 9.0,
    "radius_lam": 8.0, "limits": (("falls", 0.5),), "limit_on": "average",
    "mixing_time": 6.0, "short_steps": True, "c_o": 2.0, "c_e": 3.0, "refresh": 99,
}  # fmt: skip


@pytest.mark.parametrize("changed", OTHER)
def test_what_is_derived_is_derived_again_and_what_is_set_stays(changed):
    """Every pair of parameters: one is set, the settings are resolved, another is changed."""
    base = {"gamma": 0.9, "psi": 2.0, "slater": 0.4, "eps": 0.05, "order": "once", "mixing_time": 2.0,
            "limits": {"falls": 1.0}, "limit_on": "total"}  # fmt: skip
    assert OTHER.keys() == {one.name for one in dataclasses.fields(Settings)}
    for name, value in OTHER.items():
        first = base | {name: value}
        before = Settings(**first).resolve(3, 2, 1)
        after = Settings.of(before, {changed: OTHER[changed]}).resolve(3, 2, 1)
        assert after == Settings(**(first | {changed: OTHER[changed]})).resolve(3, 2, 1), name
        assert getattr(after, changed) == OTHER[changed]
        assert getattr(after, name) == value


def test_a_mixing_time_needs_a_trajectory_in_its_order():
    with pytest.raises(ValueError, match=r"^mixing_time is about a trajectory read in its own order"):
        Settings(**GOOD, mixing_time=4)
    with pytest.raises(ValueError, match=r"^short_steps needs mixing_time"):
        Settings(**GOOD, short_steps=True)
