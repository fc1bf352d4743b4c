"""The theorem in one call, and a call with gamma alone: what `strict` asks for, and what is found from the plan."""

import re

import numpy as np
import pytest

from dpdl import Dataset, exact, instances, learn, learn_adaptive, resume, sweep, theory
from dpdl.learner import defaults
from dpdl.learner import run as runs
from dpdl.settings import Settings

#: One state, one action and a large eps: budgets of thousands of rows.
TINY = Dataset([0] * 10, [0] * 10, [0] * 10, [0.5] * 10, [[0.5]] * 10, n_states=1, n_actions=1)
STRICT = {"gamma": 0.1, "psi": 1, "slater": 1, "eps": 0.1, "rho0": [1.0], "rng": 0, "strict": True}


def rows(n, **options):
    return Dataset([0] * n, [0] * n, [0] * n, [0.5] * n, [[0.5]] * n, n_states=1, n_actions=1, **options)


def test_strict_says_how_many_rows_are_missing():
    problem = theory.Problem(1, 1, 1, 0.1, 1, 1)
    n_reference, steps = theory.reference_samples(problem, 0.1, 0.05), theory.condition_steps(problem, 0.1)
    message = f"rows, {n_reference:.4g} for mu_hat and {steps:.4g} for the descent, and the log has 10"
    with pytest.raises(ValueError, match=re.escape(message)):
        learn(TINY, **STRICT)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"eps": None}, TypeError, "strict=True needs eps"),
        ({"psi": None}, TypeError, "strict=True needs psi"),
        ({"eta": 0.1}, TypeError, "eta cannot be given with strict=True"),
        ({"n_reference": 3}, TypeError, "n_reference cannot be given with strict=True"),
        ({"start": "plan"}, TypeError, "start cannot be given with strict=True"),
        ({"order": "shuffle"}, TypeError, "order cannot be 'shuffle' with strict=True"),
        ({"T": 3}, ValueError, r"strict=True needs T >= .*, got 3"),
        ({"eps": 0.2}, ValueError, "strict=True needs eps <= 0.111111, got 0.2"),
        ({"mixing_time": 2, "order": "once"}, ValueError, "strict=True needs a log of kind 'trajectory', this one is"),
    ],
)
def test_strict_leaves_nothing_to_choose(changes, error, message):
    with pytest.raises(error, match=message):
        learn(TINY, **{**STRICT, **changes})


def test_a_strict_run_has_its_guarantee_and_no_other(monkeypatch):
    """Budgets of some 10^10 rows cannot be had, so the constants of the proofs are made smaller for once."""
    monkeypatch.setattr(theory, "REFERENCE_DIVISOR", 0.1)
    log = rows(110_000)
    common = {**STRICT, "known": ["psi", "slater"]}
    result = learn(log, **common)
    n = result.reference.n_samples
    assert result.settings.order == "once"
    assert result.n_steps == result.settings.T <= len(log) - n
    assert all(premise.holds for premise in result.premises)
    assert result.guarantee.startswith("Theorem 4.1 with c_o = 1")
    assert learn(log, **{**common, "known": ["psi"]}).guarantee is None
    plain = {**common, "strict": False, "T": result.settings.T, "order": "once", "n_reference": n}
    again = learn(log, **plain)
    assert all(premise.holds for premise in again.premises)
    assert again.guarantee is None  # strict is the only way
    np.testing.assert_array_equal(again.x_mean, result.x_mean)


def test_once_reads_every_row_once_and_needs_as_many_as_steps():
    log = instances.garnet(4, 2, 1, branching=2, gamma=0.5, slater=0.3, rng=0).sample(
        500, np.full((4, 2), 1 / 8), rng=1
    )
    common = {"gamma": 0.5, "psi": 3, "slater": 0.3, "rho0": [0.25] * 4, "rng": 0}
    one = learn(log, **common, T=500, order="once")
    other = learn(log, **common, T=500, order="trajectory")
    np.testing.assert_array_equal(one.x_mean, other.x_mean)
    assert next(premise for premise in one.premises if premise.name == "fresh samples").holds
    with pytest.raises(ValueError, match="order 'once' reads a row for each step: T = 501, and 500 rows"):
        learn(log, **common, T=501, order="once")
    assert learn(log, gamma=0.5, rho0=[0.25] * 4, rng=0, order="once", n_reference=100).settings.T == 400


def premise(result, name):
    return next(one.detail for one in result.premises if one.name == name)


def test_premises_say_nothing_false():
    log = rows(5000)
    common = {"gamma": 0.5, "psi": 2, "slater": 0.5, "T": 10_000, "rho0": [1.0], "rng": 0}
    reference = learn(rows(70), **common).reference
    assert "whether it shares transitions with the descent is not known" in premise(
        learn(log, **common, reference=reference), "independent mu_hat"
    )
    early = learn(log, **common, order="trajectory", step_limit=100)
    assert premise(early, "fresh samples") == "each step used another transition"
    late = learn(log, **common, order="trajectory")
    assert premise(late, "fresh samples") == "10,000 steps used 5,000 transitions, some of them more than once"


def test_a_run_takes_its_steps_where_the_plug_in_model_looks_infeasible():
    """The logs of Theorem 5.2 are feasible by a hair, and look infeasible as often as not."""
    log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [-0.01]], n_states=1, n_actions=2)
    result = learn(log, gamma=0.5, psi=2, slater=0.5, T=1000, rho0=[1.0], rng=0)
    assert (result.status.name, result.n_steps) == ("COMPLETED", 1000)
    assert not result.success
    assert "utility 0 is estimated at" in result.message
    found = learn(log, gamma=0.5, rho0=[1.0], rng=0)  # psi, slater and T have to come from somewhere
    assert found.n_steps == found.settings.T == 100_000


MODEL = instances.garnet(6, 3, 2, branching=3, gamma=0.8, slater=0.2, rng=2)
LOG = MODEL.sample(3000, np.full((6, 3), 1 / 18), rng=0)


def test_gamma_alone_returns_the_better_of_plan_and_average():
    result = learn(LOG, gamma=0.8, rho0=MODEL.rho0, rng=0)
    assert result.success
    best = exact.plug_in(LOG, 0.8, MODEL.rho0).solve()
    assert result.evaluation.reward.value >= 0.998 * best.reward
    assert (runs.PLAN_IS_BETTER in result.notes) != (runs.AVERAGE_IS_BETTER in result.notes)
    settings = result.settings
    assert settings.stated == Settings(gamma=0.8)
    assert 4 <= settings.psi <= 300
    assert settings.T == 100_000
    given = learn(LOG, gamma=0.8, psi=settings.psi, slater=settings.slater, T=settings.T, rho0=MODEL.rho0, rng=0)
    assert not given.notes  # the paper's start and the paper's average
    planned = learn(LOG, settings.changed(psi=settings.psi), rho0=MODEL.rho0, rng=0, start="plan")
    np.testing.assert_array_equal(planned.x_mean, result.x_mean)


def test_a_plan_stays_within_the_psi_that_is_given():
    free = exact.plug_in(LOG, 0.8, MODEL.rho0).solve()
    needed = defaults.deviation(LOG, 0.8, free)
    psi = (1 + needed) / 2
    result = learn(LOG, gamma=0.8, psi=psi, rho0=MODEL.rho0, rng=0)
    best = exact.plug_in(LOG, 0.8, MODEL.rho0).solve(psi=psi, mu=LOG.frequencies)
    assert best.reward < free.reward - 1e-6
    assert result.evaluation.reward.value <= best.reward + 1e-6 or runs.AVERAGE_IS_BETTER in result.notes
    assert defaults.deviation(LOG, 0.8, best) <= psi * (1 + 1e-6)


def test_settings_of_a_result_are_derived_again():
    first = learn(LOG, gamma=0.8, psi=4, slater=0.2, T=500, rho0=MODEL.rho0, rng=0)
    for changes in ({"psi": 50}, {"slater": 0.1}, {"T": 2000}):
        again = learn(LOG, first.settings, **changes, rho0=MODEL.rho0, rng=0).settings
        assert again == Settings(**({"gamma": 0.8, "psi": 4, "slater": 0.2, "T": 500} | changes)).resolve(6, 3, 2)
    theirs = Settings.from_theory(6, 3, 2, gamma=0.8, slater=0.4, psi=2, eps=0.1)
    found = learn(LOG, theirs, slater=0.1, T=10, rho0=MODEL.rho0, rng=0).settings
    assert (found.radius_lam, found.kappa) == (80, 5 * 0.1 * 0.1)


def test_strict_takes_step_and_constant_from_the_proof():
    walk = rows(10, starts=[0])
    given = STRICT | {"mixing_time": 2, "order": "trajectory"}
    with pytest.raises(TypeError, match="short_steps cannot be given with strict=True"):
        learn(walk, **given, short_steps=True)
    with pytest.raises(ValueError, match=r"strict=True needs c_e >= .*, that of the proof, got 0.001"):
        learn(walk, **given, c_e=1e-3)


def test_strict_reads_a_trajectory_once_without_being_told(monkeypatch):
    """The constants of the proofs are made smaller, as above."""
    monkeypatch.setattr(theory, "REFERENCE_DIVISOR", 0.1)
    given = STRICT | {"mixing_time": 1, "c_o": 0.01, "known": ["psi", "slater", "mixing_time"]}
    walk = rows(250_000, starts=[0])
    results = [learn(walk, **given), learn(walk, Settings(gamma=0.1), **given)]
    results += [learn(walk, **given, order=order) for order in ("once", "trajectory")]
    assert {result.settings.order for result in results} == {"once"}
    assert len({result.x_mean.tobytes() for result in results}) == 1
    assert all(result.guarantee.startswith("Theorem 4.6 with c'_o = 0.01") for result in results)
    with pytest.raises(ValueError, match="use order='trajectory' or 'once', not 'replacement'"):
        learn(walk, **given, order="replacement")
    with pytest.raises(ValueError, match="use order='trajectory' or 'once', not 'replacement'"):
        learn(walk, **(given | {"strict": False, "T": 10}))
    with pytest.raises(TypeError, match="strict must be True or False"):
        learn(walk, **(given | {"strict": "yes"}))


def test_a_run_without_a_plan_says_that_it_starts_elsewhere(tmp_path):
    """Both actions break the constraint, so the plug-in model has no plan."""
    log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [-0.01]], n_states=1, n_actions=2)
    complete = {"gamma": 0.5, "psi": 2, "slater": 0.5, "T": 1000, "rho0": [1.0], "rng": 0}
    paper = learn(log, **complete)
    asked = learn(log, **complete, start="plan", checkpoint=tmp_path / "run", step_limit=400)
    assert runs.PLAN_IS_MISSING in asked.notes
    asked = resume(tmp_path / "run", log)
    assert asked.notes == (*paper.notes, runs.PLAN_IS_MISSING)
    np.testing.assert_array_equal(asked.x_mean, paper.x_mean)
    assert asked.premises == paper.premises  # it is the start of Algorithm 1
    assert runs.PLAN_IS_MISSING in learn(log, gamma=0.5, T=1000, rho0=[1.0], rng=0).notes
    assert learn(log, gamma=0.5, T=1000, rho0=[1.0], rng=0, start="paper").notes == paper.notes


def test_a_sweep_over_limits_plans_for_each():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2, 4000)
    log = Dataset(0 * a, a, 0 * a, 1.0 * a, costs={"wear": 2.0 * a}, n_states=1, n_actions=2)
    given = {"gamma": 0.8, "limit_on": "average", "rho0": [1.0], "rng": 0, "T": 1000}
    points = sweep(log, **given, over={"limits": [{"wear": 0.5}, {"wear": 1.5}]})
    for limit, (_, result) in zip((0.5, 1.5), points, strict=True):
        alone = learn(log, **given, limits={"wear": limit})
        assert np.array_equal(np.asarray(result.policy), np.asarray(alone.policy))
    assert points.results[1].evaluation.reward.value > 2 * points.results[0].evaluation.reward.value


def test_kappa_is_kept_by_the_plan():
    log = instances.garnet(5, 3, 1, rng=0).sample(20_000, np.full((5, 3), 1 / 15), rng=0)
    aims = [defaults.plan(log, Settings(gamma=0.8, kappa=kappa), np.full(5, 0.2)) for kappa in (0.0, 0.05)]
    assert aims[1].utilities[0] >= aims[0].utilities[0] - 1e-9
    assert aims[1].reward <= aims[0].reward + 1e-9


def test_the_adaptive_learner_begins_at_psi_one_whatever_settings_say():
    result = learn_adaptive(TINY, Settings(gamma=0.1, slater=1.0, eps=0.1), rho0=[1.0], rng=0)
    assert result.message == learn_adaptive(TINY, gamma=0.1, slater=1.0, eps=0.1, rho0=[1.0], rng=0).message
