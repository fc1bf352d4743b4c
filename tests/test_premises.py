"""What a run may claim: the guarantee appears if every premise holds and disappears with any one of them."""

import math
from dataclasses import replace

import pytest

from dpdl import theory
from dpdl.premises import Run, guarantee, premises
from dpdl.theory import Problem

SMALL = Problem(n_states=3, n_actions=2, n_utilities=1, gamma=0.5, slater=0.5, psi=1)
#: N = min(20 + 8, 60) = 28, slater^2 (1-gamma)^4 = 0.04 * 1e-4 = 4e-6.
LARGE = Problem(n_states=20, n_actions=3, n_utilities=8, gamma=0.9, slater=0.2, psi=4)
NO_UTILITY = Problem(n_states=3, n_actions=2, n_utilities=0, gamma=0.5, slater=0.5, psi=1)
ONE_PAIR = Problem(n_states=1, n_actions=1, n_utilities=1, gamma=0.5, slater=1, psi=1)
PROBLEMS = [SMALL, LARGE, NO_UTILITY, ONE_PAIR]


def _run(problem=LARGE, eps=0.5, delta=0.05, mixing_time=None, **changes):
    """A run that does everything as the theorem says."""
    steps, reference = theory.condition_steps(problem, eps), theory.reference_samples(problem, eps, delta)
    if mixing_time is not None:
        steps = max(steps, theory.async_descent_steps(problem, eps, delta, mixing_time))
        reference = theory.async_reference_samples(problem, eps, delta, mixing_time)
    steps = max(steps, theory.descent_steps(problem, eps, delta))
    exemplary = {
        "problem": problem,
        "eps": eps,
        "delta": delta,
        "n_steps": steps,
        "eta": theory.step_size(steps, mixing_time),
        "alpha_V": theory.scale_V(problem),
        "alpha_lam": theory.scale_lam(problem),
        "alpha_x": theory.scale_x(problem),
        "kappa": theory.conservatism(problem, eps),
        "floor": theory.reference_floor(problem, eps),
        "n_reference": reference,
        "fresh": True,
        "disjoint": True,
        "as_stated": True,
        "psi_known": True,
        "slater_known": True,
        "mixing_time_known": True,
        "mixing_time": mixing_time,
        "kind": "independent" if mixing_time is None else "trajectory",
    }
    return Run(**(exemplary | changes))


def _broken(run):
    return {premise.name for premise in premises(run) if not premise.holds}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_exemplary_run_has_its_guarantee(problem):
    eps = theory.largest_eps(problem)
    claim = guarantee(_run(problem, eps))
    assert claim is not None
    assert "algB-thm-demo with c_o = 1:" in claim
    assert "probability at least 0.95" in claim
    assert f"{10.95 * eps:.6g}" in claim


@pytest.mark.parametrize("mixing_time", [1, 12.5])
def test_an_exemplary_trajectory_has_its_guarantee(mixing_time):
    claim = guarantee(_run(mixing_time=mixing_time))
    assert claim is not None
    assert "algB-thm-markov-demo with c'_o = 1, c'_e = 1:" in claim


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"kind": "trajectories"}, {"one trajectory"}),
        ({"kind": "independent"}, {"one trajectory"}),
        ({"mixing_time_known": False}, {"mixing time"}),
        ({"mixing_time_estimated": True}, {"mixing time"}),
    ],
)
def test_the_asynchronous_theorem_wants_one_trajectory_that_is_known_to_mix(changes, broken):
    run = _run(mixing_time=4, **changes)
    assert _broken(run) == broken
    assert guarantee(run) is None


def test_a_trajectory_may_take_either_step_size():
    run = _run(mixing_time=9)
    assert guarantee(replace(run, eta=theory.step_size(run.n_steps))) is not None
    assert _broken(replace(run, eta=run.eta / 2)) == {"eta"}


EXEMPLARY = _run()


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"n_reference": EXEMPLARY.n_reference - 1}, {"samples for mu_hat"}),
        ({"fresh": False}, {"fresh samples"}),
        ({"disjoint": False}, {"independent mu_hat"}),
        ({"as_stated": False}, {"algorithm as stated"}),
        ({"psi_known": False}, {"psi >= C*"}),
        ({"slater_known": False}, {"slater valid"}),
        ({"slater_refuted": True}, {"slater valid"}),
        ({"kind": "trajectory"}, {"independent transitions"}),
        ({"kind": "trajectories"}, {"independent transitions"}),
        ({"eta": EXEMPLARY.eta * 0.99}, {"eta"}),
        ({"alpha_V": EXEMPLARY.alpha_V * 1.01}, {"alpha_V"}),
        ({"alpha_lam": EXEMPLARY.alpha_lam * 1.01}, {"alpha_lam"}),
        ({"alpha_x": EXEMPLARY.alpha_x * 1.01}, {"alpha_x"}),
        ({"kappa": 0.0}, {"kappa"}),
        ({"floor": EXEMPLARY.floor * 1.01}, {"floor"}),
        ({"c_o": 1e12}, {"steps"}),
        ({"eta": EXEMPLARY.eta * 1.01}, {"eta", "step-size condition"}),
        (
            {"n_steps": EXEMPLARY.n_steps // 2, "eta": theory.step_size(EXEMPLARY.n_steps // 2)},
            {"step-size condition"},
        ),
    ],
)
def test_one_broken_premise_removes_the_guarantee(changes, broken):
    run = replace(EXEMPLARY, **changes)
    assert _broken(run) == broken
    assert guarantee(run) is None


def test_an_eps_out_of_range_removes_the_guarantee():
    run = _run(eps=1.01 * theory.largest_eps(LARGE))
    assert _broken(run) == {"eps in range"}
    assert guarantee(run) is None


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"mixing_time_known": False}, {"mixing time"}),
        ({"c_e": 1.01}, {"samples for mu_hat"}),
        ({"c_o": 1e12}, {"steps"}),
    ],
)
def test_one_broken_premise_on_a_trajectory(changes, broken):
    run = replace(_run(mixing_time=3), **changes)
    assert _broken(run) == broken
    assert guarantee(run) is None


def test_the_asynchronous_theorem_needs_delta_below_a_half():
    assert _broken(_run(mixing_time=3, delta=0.6)) == {"delta below 1/2"}
    assert _broken(_run(delta=0.6)) == set()


def test_without_eps_there_is_no_guarantee():
    run = replace(EXEMPLARY, eps=None)
    assert _broken(run) == {"eps in range", "samples for mu_hat", "steps", "kappa", "floor"}
    assert {premise.detail for premise in premises(run) if not premise.holds} == {"no eps was given"}
    assert guarantee(run) is None


def test_unverified_premises_say_so():
    run = replace(EXEMPLARY, psi_known=False)
    (detail,) = [premise.detail for premise in premises(run) if premise.name == "psi >= C*"]
    assert detail == "psi = 4, supplied, not verified"


def test_equality_with_the_theorem_allows_for_rounding():
    assert _broken(replace(EXEMPLARY, alpha_x=EXEMPLARY.alpha_x * (1 + 1e-12))) == set()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"problem": None}, TypeError, "problem must be a Problem"),
        ({"eps": 0.0}, ValueError, "eps must be > 0"),
        ({"delta": None}, TypeError, "delta must be a real number"),
        ({"delta": 1.0}, ValueError, "delta must be"),
        ({"n_steps": 0}, ValueError, "n_steps must be between 1"),
        ({"n_reference": -1}, ValueError, "n_reference must be between 0"),
        ({"eta": 0.0}, ValueError, "eta must be > 0"),
        ({"alpha_V": -1.0}, ValueError, "alpha_V must be > 0"),
        ({"alpha_lam": 0.0}, ValueError, "alpha_lam must be > 0"),
        ({"alpha_x": math.nan}, ValueError, "alpha_x must be finite"),
        ({"kappa": -0.1}, ValueError, "kappa must be >= 0"),
        ({"floor": 0.0}, ValueError, "floor must be > 0"),
        ({"fresh": 1}, TypeError, "fresh must be True or False, got 1"),
        ({"psi_known": None}, TypeError, "psi_known must be True or False"),
        ({"mixing_time": 0}, ValueError, "mixing_time must be >= 1"),
        ({"c_o": 0}, ValueError, "c_o must be > 0"),
        ({"c_e": 0}, ValueError, "c_e must be > 0"),
    ],
)
def test_bad_runs(changes, error, message):
    with pytest.raises(error, match=message):
        replace(EXEMPLARY, **changes)
