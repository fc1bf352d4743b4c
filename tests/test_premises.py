"""What a run may claim: the guarantee appears if every premise holds and disappears with any one of them."""

from dataclasses import replace

import pytest

from dpdl import theory
from dpdl.premises import Facts, guarantee, premises
from dpdl.settings import Settings
from test_theory import LARGE, PROBLEMS


def _run(problem=LARGE, eps=0.5, delta=0.05, mixing_time=None, **changes):
    """Settings, facts and steps of a run that does everything as the theorem says, but for the changes."""
    steps, reference = theory.condition_steps(problem, eps), theory.reference_samples(problem, eps, delta)
    if mixing_time is not None:
        steps = max(steps, theory.async_descent_steps(problem, eps, delta, mixing_time))
        reference = theory.async_reference_samples(problem, eps, delta, mixing_time)
    steps = max(steps, theory.descent_steps(problem, eps, delta))
    sizes = {"n_states": problem.n_states, "n_actions": problem.n_actions, "n_utilities": problem.n_utilities}
    model = {"gamma": problem.gamma, "slater": problem.slater, "psi": problem.psi}
    settings = Settings(**model, T=steps, eps=eps, delta=delta, mixing_time=mixing_time, order="once")
    settings = settings.resolve(*sizes.values())
    facts = Facts(
        **sizes,
        n_reference=reference,
        n_descent=steps,
        reference="own",
        as_stated=True,
        strict=True,
        known=("psi", "slater", "mixing_time"),
        kind="independent" if mixing_time is None else "trajectory",
    )
    return _changed((settings, facts, steps), **changes)


def _changed(run, **changes):
    settings, facts, n_steps = run
    of_facts = {name: changes.pop(name) for name in list(changes) if hasattr(facts, name)}
    n_steps = changes.pop("n_steps", n_steps)
    return replace(settings, **changes), replace(facts, **of_facts), n_steps


def _broken(run):
    return {premise.name for premise in premises(*run) if not premise.holds}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_exemplary_run_has_its_guarantee(problem):
    eps = theory.largest_eps(problem)
    claim = guarantee(*_run(problem, eps))
    assert claim is not None
    assert "Theorem 4.1 with c_o = 1:" in claim
    assert "probability at least 0.95" in claim
    assert f"{10.95 * eps:.6g}" in claim


@pytest.mark.parametrize("mixing_time", [1, 12.5])
def test_an_exemplary_trajectory_has_its_guarantee(mixing_time):
    claim = guarantee(*_run(mixing_time=mixing_time))
    assert claim is not None
    assert "Theorem 4.6 with c'_o = 1, c'_e = 26" in claim
    assert "(10.95 eps)" in claim


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"kind": "trajectories"}, {"one trajectory"}),
        ({"kind": "independent"}, {"one trajectory"}),
        ({"known": ("psi", "slater")}, {"mixing time"}),
        ({"mixing_time_estimated": True}, {"mixing time"}),
        ({"c_e": 35.0}, {"samples for mu_hat"}),
        ({"c_o": 1e12}, {"steps"}),
    ],
)
def test_one_broken_premise_on_a_trajectory(changes, broken):
    run = _changed(_run(mixing_time=4), **changes)
    assert _broken(run) == broken
    assert guarantee(*run) is None


def test_a_trajectory_takes_the_step_of_the_theorem_or_declares_the_short_one():
    run = _run(mixing_time=9)
    settings, _, n_steps = run
    short = theory.step_size(n_steps, 9)
    assert _broken(_changed(run, eta=short)) == {"eta"}
    assert guarantee(*_changed(run, eta=short, short_steps=True)) is not None
    assert _broken(_changed(run, eta=settings.eta / 2)) == {"eta"}


def test_only_a_strict_run_has_a_guarantee():
    assert guarantee(*EXEMPLARY) is not None
    run = _changed(EXEMPLARY, strict=False)
    assert not _broken(run)
    assert guarantee(*run) is None


EXEMPLARY = _run()
SETTINGS, FACTS, STEPS = EXEMPLARY


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"n_reference": FACTS.n_reference - 1}, {"samples for mu_hat"}),
        ({"n_descent": STEPS - 1}, {"fresh samples"}),
        ({"order": "replacement"}, {"fresh samples"}),
        ({"reference": "shared"}, {"independent mu_hat"}),
        ({"reference": "given"}, {"independent mu_hat"}),
        ({"as_stated": False}, {"algorithm as stated"}),
        ({"known": ("slater",)}, {"psi >= C*"}),
        ({"known": ("psi",)}, {"slater valid"}),
        ({"kind": "trajectory"}, {"independent transitions"}),
        ({"kind": "trajectories"}, {"independent transitions"}),
        ({"eta": SETTINGS.eta * 0.99}, {"eta"}),
        ({"alpha_V": SETTINGS.alpha_V * 1.01}, {"alpha_V"}),
        ({"alpha_lam": SETTINGS.alpha_lam * 1.01}, {"alpha_lam"}),
        ({"alpha_x": SETTINGS.alpha_x * 1.01}, {"alpha_x"}),
        ({"kappa": 0.0}, {"kappa"}),
        ({"floor": SETTINGS.floor * 1.01}, {"floor"}),
        ({"c_o": 1e12}, {"steps"}),
        ({"eta": SETTINGS.eta * 1.01}, {"eta", "step-size condition"}),
        (
            {"n_steps": STEPS // 2, "eta": theory.step_size(STEPS // 2)},
            {"step-size condition"},
        ),
    ],
)
def test_one_broken_premise_removes_the_guarantee(changes, broken):
    run = _changed(EXEMPLARY, **changes)
    assert _broken(run) == broken
    assert guarantee(*run) is None


def test_an_eps_out_of_range_removes_the_guarantee():
    run = _run(eps=1.01 * theory.largest_eps(LARGE))
    assert _broken(run) == {"eps in range"}
    assert guarantee(*run) is None


def test_the_asynchronous_theorem_needs_delta_below_a_half():
    assert _broken(_run(mixing_time=3, delta=0.6)) == {"delta below 1/2"}
    assert _broken(_run(delta=0.6)) == set()


def test_without_eps_there_is_no_guarantee():
    run = _changed(EXEMPLARY, eps=None)
    assert _broken(run) == {"eps in range", "samples for mu_hat", "steps", "kappa", "floor"}
    assert {premise.detail for premise in premises(*run) if not premise.holds} == {"no eps was given"}
    assert guarantee(*run) is None


def test_unverified_premises_say_so():
    run = _changed(EXEMPLARY, known=("slater",))
    (detail,) = [premise.detail for premise in premises(*run) if premise.name == "psi >= C*"]
    assert detail == "psi = 4, supplied, not verified"


def test_equality_with_the_theorem_allows_for_rounding():
    assert _broken(_changed(EXEMPLARY, alpha_x=SETTINGS.alpha_x * (1 + 1e-12))) == set()
