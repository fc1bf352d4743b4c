"""Phases of a run in practice: when they end, what is judged, what comes back, and what a checkpoint of them holds."""

import math

import numpy as np
import pytest

from dpdl import Settings, exact, instances, learn, learn_adaptive, replicate, resume
from dpdl.learner import checkpoint, checkpoint_file, phases, practice
from dpdl.learner.layout import Inputs, Layout
from dpdl.learner.run import NOTHING_BETTER, Run
from dpdl.models import restricted
from dpdl.policy import from_occupancy
from dpdl.result import Point
from test_practice import problem

CMDP, LOG = problem("fast", 90, seed=3)
COMMON = {"gamma": CMDP.gamma, "rho0": CMDP.rho0, "rng": 5, "check_slater": False}
T = 40_000


def layout_of(**given):
    inputs = Inputs.of(LOG, rho0=CMDP.rho0)
    keywords = practice.defaults(LOG, {"gamma": CMDP.gamma, "T": T} | given, inputs.initial)
    return Layout.of(LOG, Settings.of(None, keywords), inputs)


def run_of(**given):
    return Run.of(layout_of(**given), np.random.default_rng(5))


def same(one, other):
    """Whether two results have the same bits."""
    names = ("x_mean", "V_mean", "lam_mean", "V", "log_lam")
    equal = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
    return equal and np.array_equal(one.last.log_x, other.last.log_x) and one.diagnostics == other.diagnostics


@pytest.mark.parametrize(("n_steps", "n_pairs"), [(1, 5), (50, 5), (399, 40), (10_000, 7), (10**9, 10**6), (2**62, 9)])
def test_phases_grow_and_end_with_the_run(n_steps, n_pairs):
    ends = phases.schedule(n_steps, n_pairs, "practice")
    lengths = np.diff([0, *ends])
    assert ends[-1] == n_steps
    assert (lengths > 0).all()
    assert len(ends) == 1 or lengths[0] >= phases.LEAST_VISITS * n_pairs - 1
    assert (np.diff(lengths) >= -1).all()
    assert phases.schedule(n_steps, n_pairs, "theory") == (n_steps,)


def test_the_theory_has_one_phase_and_the_layout_of_the_run():
    settings = Settings(gamma=CMDP.gamma, psi=4, slater=0.1, T=1000)
    run = Run.of(Layout.of(LOG, settings, Inputs.of(LOG, rho0=CMDP.rho0)), np.random.default_rng(0))
    before = run.phase
    run.settle()
    assert run.core.run(1000) == 0
    run.settle()
    assert run.phase is before
    assert run.core.layout is run.layout


def test_merit_and_gap_are_those_of_the_exact_answers():
    """By `CMDP.evaluate`, for x with mass everywhere, and with kappa and psi such that both penalties act."""
    layout = layout_of(psi=5.0, kappa=0.5)
    model, rng = exact.plug_in(LOG, CMDP.gamma, CMDP.rho0), np.random.default_rng(1)
    discount = 1 - CMDP.gamma
    optimum = discount * model.solve(psi=5.0, mu=LOG.frequencies).reward
    acted = np.zeros(2, dtype=bool)
    for k in range(20):
        x = rng.dirichlet(np.full(len(layout.coordinates.c), 0.3))
        V, lam = rng.normal(size=LOG.n_states), rng.random(2)
        found = phases.judge(layout, (x, V, lam), weight=3.0, number=k)
        table = np.where(x < 1e-3 * np.repeat(x.reshape(-1, 5).sum(axis=1), 5), 0, x).reshape(-1, 5)
        true = model.evaluate(from_occupancy(table))
        lacking = max(0.0, discount * (0.5 - true.utilities.min()))
        beyond = np.maximum(discount * true.occupancy - 5.0 * LOG.frequencies, 0).sum()
        acted |= [lacking > 0, beyond > 0]
        assert found.reward == pytest.approx(discount * true.reward, abs=1e-9)
        assert found.merit == pytest.approx(discount * true.reward - 3 * (lacking + beyond), abs=1e-9)
        assert found.bound >= optimum - 1e-9
        assert found.kept == (true.utilities.min() >= -1e-6)
        assert found.beyond == pytest.approx(beyond, abs=1e-9)
        assert found.phase == k
    assert acted.all()


def test_a_merged_point_has_the_better_x_and_the_better_duals():
    one, other = (
        phases.Judged(np.full(2, k), np.full(2, k), np.full(2, k), merit, bound, 0.0, 0.0, kept, k)
        for k, merit, bound, kept in ((0, 0.5, 0.8, True), (1, 0.6, 0.7, True))
    )
    merged = one.merged(other, safe_first=True)
    assert (merged.phase, merged.bound) == (1, 0.7)
    broken = other._replace(kept=False)
    merged = one.merged(broken, safe_first=True)
    assert (merged.phase, merged.bound, merged.V[0]) == (0, 0.7, 1)
    assert broken.merged(one, safe_first=True).phase == 0
    assert one.merged(broken, safe_first=False).phase == broken.merged(one, safe_first=False).phase == 1
    assert phases.relative_gap(broken) == math.inf
    assert phases.relative_gap(one) == math.inf  # it earns nothing
    assert phases.relative_gap(one._replace(reward=0.6)) == pytest.approx(0.5)


def test_steps_shrink_unless_a_phase_reduces_the_gap_by_a_fifth(monkeypatch):
    """What the judgement says decides how large the steps of the next phase are, and where it starts."""
    merits = iter([0.0, 0.2, 0.6, 0.7, 0.7, 0.85, 0.85, 0.86, 0.85])
    real = phases.judge
    monkeypatch.setattr(phases, "judge", lambda *given: real(*given)._replace(merit=next(merits), bound=1.0, kept=True))
    run, seen = run_of(), []
    while not run.phase.is_over:
        run.settle()
        seen.append((run.phase.number, run.phase.halvings))
        assert run.core.layout.settings.eta == run.layout.settings.eta * 0.5**run.phase.halvings
        assert run.core.run(run.left) == 0
    assert seen[:8] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 2), (5, 2), (6, 4), (7, 5)]
    assert run.phase.best.phase == 7
    assert run.n_steps == T


def test_the_result_is_never_worse_than_its_start():
    """Whatever the start: the plan, the paper's, or one at random."""
    layout, rng = layout_of(), np.random.default_rng(2)
    plain = np.exp(layout.start()[0]).reshape(CMDP.r.shape)
    starts = [None] + [
        Point.of(plain * rng.uniform(0.1, 1, plain.shape), np.zeros(LOG.n_states), [1.0, 0.5]) for _ in range(3)
    ]
    for start in starts:
        begun, done = (learn(LOG, **COMMON, T=T, start=start, step_limit=k) for k in (0, T))
        weight = 1 + 2 * float(np.exp(layout.start()[2] if start is None else start.log_lam).sum())
        before, after = (
            phases.judge(layout, (one.x_table.values, one.V_mean, one.lam_mean), weight, 0) for one in (begun, done)
        )
        assert (after.kept, after.merit) >= (before.kept, before.merit)
        assert after.bound <= before.bound + 1e-12  # the values of another policy round differently
        assert (NOTHING_BETTER in done.notes) == np.array_equal(begun.x_mean, done.x_mean)
        assert NOTHING_BETTER not in begun.notes


@pytest.mark.parametrize("kind", ["fast", "ring", "lake"])
def test_no_result_earns_less_than_its_start_without_a_note(kind):
    """On the plug-in model, by `CMDP.evaluate`, with psi binding and not."""
    for seed in range(5):
        cmdp, log = problem(kind, 120, seed)
        model = exact.plug_in(log, cmdp.gamma, cmdp.rho0)
        for given in ({}, {"psi": 4.0}, {"kappa": 0.0}):
            given |= {"gamma": cmdp.gamma, "rho0": cmdp.rho0, "rng": seed, "check_slater": False, "T": T}
            begun, done = (learn(log, **given, step_limit=k) for k in (0, T))
            start, found = (model.evaluate(one.policy.probabilities) for one in (begun, done))
            noted = any(note.startswith("on the plug-in model the start earns") for note in done.notes)
            less = begun.success and found.reward < start.reward - 1e-9  # the two evaluations round differently
            assert noted == less
            assert not less or given.get("psi") == 4.0  # where the start may lie beyond the caps


def test_a_note_says_why_a_start_that_earns_more_was_not_returned(tmp_path):
    """The start is the best plan without a margin, and a large margin is asked for."""
    model = exact.plug_in(LOG, CMDP.gamma, CMDP.rho0)
    best, unit = model.solve(), 1 - CMDP.gamma
    start = Point.of(best.occupancy + 1e-9, best.V, best.lam + 1e-3)
    given = COMMON | {"T": T, "start": start, "kappa": 0.5 * model.slater() / unit}
    begun, done = learn(LOG, **given, step_limit=0), learn(LOG, **given, checkpoint=tmp_path / "run")
    before, after = (model.evaluate(one.policy.probabilities) for one in (begun, done))
    assert before.utilities.min() == pytest.approx(0, abs=1e-4)
    assert after.utilities.min() > before.utilities.min()
    (note,) = (note for note in done.notes if note.startswith("on the plug-in model the start earns"))
    lost = before.reward - after.reward
    assert f"the start earns {lost:.2g} more than the policy's {after.reward:.6g}, but it lacks " in note
    assert note.endswith(f"of the margin kappa = {done.settings.kappa:.4g}")
    assert not begun.notes
    assert note in resume(tmp_path / "run", LOG).notes


def test_phases_pay_where_the_start_is_not_the_answer(monkeypatch):
    """Without the package for large restricted problems the plan ignores psi: a run finds its way into the caps."""
    cmdp, log = problem("ring", 300, seed=1)
    model = exact.plug_in(log, cmdp.gamma, cmdp.rho0)
    psi = float(((1 - cmdp.gamma) * model.solve().occupancy / log.frequencies).max() / 2)
    optimum = model.solve(psi=psi, mu=log.frequencies).reward
    plan = restricted.plan

    def without_package(model, psi, *given, **options):
        if psi is not None:
            raise ImportError
        return plan(model, psi, *given, **options)

    monkeypatch.setattr(restricted, "plan", without_package)
    begun, done = (learn(log, gamma=cmdp.gamma, rho0=cmdp.rho0, psi=psi, rng=0, step_limit=k) for k in (0, 10**9))
    over = [((1 - cmdp.gamma) * one.evaluation.occupancy / (psi * log.frequencies)).max() for one in (begun, done)]
    assert over[0] > 1.9
    assert any("of its time is more than psi" in note for note in begun.notes)
    assert not any("more than psi" in note for note in done.notes)
    assert any("of its time beyond what psi = " in note for note in done.notes)  # the start earned more
    assert over[1] <= 1.05
    assert done.success
    assert 0.9 * optimum <= done.evaluation.reward.value <= 1.01 * optimum


# ---- The tolerance ----


def test_a_run_stops_at_its_tolerance():
    result = learn(LOG, **COMMON, tol=0.05)
    assert (result.status.name, result.n_steps, result.success) == ("CONVERGED", 0, True)
    assert "tol = 0.05" in result.message
    assert 0 <= result.evaluation.gap <= 0.05 * result.evaluation.reward.value
    assert result.guarantee is None
    exact_one = learn(LOG, **COMMON, T=T, tol=1e-9)
    assert (exact_one.status.name, exact_one.n_steps) == ("COMPLETED", T)
    assert "the relative gap on the plug-in model is 0.0" in exact_one.message
    plain = learn(LOG, **COMMON, T=T)
    assert same(plain, exact_one)
    assert "gap" not in plain.message


def test_a_tolerance_is_reached_in_the_middle_of_a_run():
    """From a start that is not good enough, at the end of a phase; there is no constraint to break."""
    cmdp = instances.garnet(18, 5, n_utilities=0, gamma=0.9, rng=1)
    log = cmdp.sample(5000, np.full((18, 5), 1 / 90), rng=2)
    given = {"gamma": 0.9, "rho0": cmdp.rho0, "rng": 0, "T": 100_000}
    start = Point.of(log.frequencies / 0.1, np.zeros(18), [])
    begun = learn(log, **given, start=start, step_limit=0)
    tol = 0.5 * begun.evaluation.gap / begun.evaluation.reward.value
    assert tol > 0.05
    result = learn(log, **given, start=start, tol=tol)
    assert result.status.name == "CONVERGED"
    assert result.n_steps in phases.schedule(100_000, len(log.pairs), "practice")[:-1]
    assert result.evaluation.gap <= tol * result.evaluation.reward.value
    assert "phase" not in "".join(result.notes)


@pytest.mark.parametrize("tol", [0, -0.1, math.nan, math.inf, "0.1"])
def test_a_tolerance_is_checked(tol):
    with pytest.raises((ValueError, TypeError), match="tol must be"):
        learn(LOG, **COMMON, tol=tol)


def test_the_theory_has_no_tolerance():
    with pytest.raises(ValueError, match=r"tol = 0\.1 needs profile 'practice'"):
        Settings(gamma=0.9, psi=2, slater=0.3, T=10, tol=0.1)
    settings = Settings(gamma=0.9, psi=2, slater=0.3, T=10, profile="practice", tol=0.1)
    assert Settings.from_json(settings.to_json()) == settings
    given = {"psi": 20.0, "slater": 0.1, "T": T}
    assert learn(LOG, **COMMON, **given, tol=0.05).settings.profile == "practice"
    assert learn(LOG, **COMMON, **given).settings.profile == "theory"


def test_replicas_and_levels_know_the_tolerance():
    replicas = replicate(LOG, n=3, **COMMON, tol=0.05)
    assert replicas.result.status.name == "CONVERGED"
    assert replicas.result.success
    assert "3 replicas are within the tolerance" in replicas.result.message
    adaptive = learn_adaptive(LOG, **COMMON, tol=0.05)
    assert adaptive.success
    assert len(adaptive.history) >= 2


# ---- Checkpoints ----


@pytest.mark.parametrize("order", ["shuffle", "trajectory", "replacement"])
def test_a_run_resumes_bit_for_bit_in_every_phase(order, tmp_path):
    whole = learn(LOG, **COMMON, T=T, order=order)
    path, ends = tmp_path / "run", phases.ends(layout_of())
    assert len(ends) == phases.PHASES
    stops = sorted({0, 1, *ends, *(end - 1 for end in ends), *(end + 7 for end in ends[:-1])})
    result = learn(LOG, **COMMON, T=T, order=order, step_limit=0, checkpoint=path)
    for stop in stops:
        assert result.n_steps <= stop
        result = resume(path, LOG, step_limit=stop, chunk=1013, check_slater=False)
    assert result.status.name == "COMPLETED"
    assert same(result, whole)
    assert result.notes == whole.notes
    assert same(resume(path, LOG, check_slater=False), whole)  # of a run that is over


def test_ctrl_c_while_a_phase_is_judged_loses_nothing(tmp_path, monkeypatch):
    whole, path = learn(LOG, **COMMON, T=T), tmp_path / "run"
    real, calls = phases.judge, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) in (1, 3, 9):
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(phases, "judge", interrupted)
    result = learn(LOG, **COMMON, T=T, checkpoint=path)
    n_interrupted = 0
    while result.status.name == "INTERRUPTED":
        n_interrupted += 1
        result = resume(path, LOG, check_slater=False)
    assert n_interrupted == 3
    assert same(result, whole)


def test_a_model_that_is_too_large_to_be_judged_goes_on_from_its_averages(tmp_path, monkeypatch):
    monkeypatch.setattr(phases, "MOST_PAIRS", 10)
    path, run, ends = tmp_path / "run", run_of(), phases.ends(layout_of())
    for k in range(len(ends)):
        run.settle()
        assert (run.phase.number, run.phase.halvings, run.phase.best) == (k, k, None)
        assert run.core.run(run.left) == 0
    whole = learn(LOG, **COMMON, T=T)
    assert np.array_equal(whole.x_table.values, run.core.means[0])  # of the last phase
    learn(LOG, **COMMON, T=T, step_limit=ends[2] + 5, checkpoint=path)
    assert same(resume(path, LOG, check_slater=False), whole)


def test_the_callback_sees_all_phases_as_one_run():
    steps = []
    result = learn(LOG, **COMMON, T=T, callback=lambda one: steps.append(one.n_steps), callback_every=5000)
    assert steps == list(range(5000, T + 1, 5000))
    assert same(result, learn(LOG, **COMMON, T=T))


def setting(name, k, value):
    """A change of one number in an array of a checkpoint."""

    def change(header, arrays):
        arrays[name] = arrays[name].copy()
        arrays[name][k] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, arrays: header["phase"].update(number=99), "phase number must be between 0 and 7"),
        (lambda header, arrays: header["phase"].update(halvings=9), "halvings must be between 0 and"),
        (lambda header, arrays: header["phase"].update(is_over=1), "is_over must be True or False"),
        (lambda header, arrays: header["phase"]["best"].update(phase=5), "phase of best must be between"),
        (lambda header, arrays: header["phase"].update(start=[1.0, 0.0]), r"start must have shape \(3,\), got \(2,\)"),
        (lambda header, arrays: header["phase"].update(more=5), "its phase has \\['more'\\] as well"),
        (lambda header, arrays: header["phase"].pop("number"), "'number' is missing"),
        (lambda header, arrays: header.pop("phase"), "a phase belongs to a run in practice"),
        (setting("phase_past", 0, 3), "steps of earlier phases"),
        (setting("phase_past", 3, -1), "phase_past\\[3\\] = -1"),
        (setting("best_figures", 1, np.nan), "best_figures\\[1\\] = nan must be finite"),
        (setting("best_x", 2, -1.0), "best_x\\[2\\] = -1.0"),
        (setting("best_V", 0, np.nan), "best_V\\[0\\] = nan"),
        (setting("best_lam", 0, 1e9), "best_lam\\[0\\] = 1000000000.0"),
        (lambda header, arrays: arrays.update(best_x=arrays["best_x"][1:]), "best_x is float64"),
    ],
)
def test_a_checkpoint_with_an_impossible_phase_is_refused(change, message, tmp_path):
    path = tmp_path / "run"
    learn(LOG, **COMMON, T=T, step_limit=phases.ends(layout_of())[1] + 10, checkpoint=path)
    header, arrays = checkpoint_file.read(path)
    change(header, arrays)
    checkpoint_file.write(path, header, arrays)
    with pytest.raises(ValueError, match=message):
        checkpoint.load(path, LOG)


def test_a_checkpoint_of_the_theory_has_no_phase(tmp_path):
    path = tmp_path / "run"
    learn(LOG, **COMMON, psi=4, slater=0.1, T=1000, step_limit=500, checkpoint=path)
    header, arrays = checkpoint_file.read(path)
    assert "phase" not in header
    assert not any(name.startswith(("phase", "best")) for name in arrays)
