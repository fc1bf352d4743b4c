"""`learn`: what it returns, that chunks, callbacks and interruptions leave no trace in it, and what it refuses."""

import io
import os
import re
import signal
import sys
import threading

import numpy as np
import pytest

import logs
from dpdl import _core, _progress, learn
from dpdl.data.dataset import Dataset
from dpdl.data.reference import estimate_reference
from dpdl.result import Point, Status
from dpdl.settings import Settings
from long_runs import bits
from problems import random_log

LOG = random_log(4, 3, 200, 2, seed=1, used_actions=2, evenness=5.0)
RHO0 = np.array([0.4, 0.3, 0.2, 0.1])
# psi = 1 keeps the bound on sum x/mu_hat tight, so that more than the sampled pair moves.
GOOD = {"gamma": 0.8, "psi": 1.0, "slater": 0.3, "T": 3000, "eta": 0.05, "floor": 1e-3, "rho0": RHO0, "rng": 5}


def paper_start(log, mu_hat, settings):
    """The paper's starting point (x, V, lam), written down once more."""
    S, A, I = log.n_states, log.n_actions, log.n_utilities
    x = min(S + I, S * A) / (S * A) * mu_hat / (1 - settings.gamma)
    return x, np.zeros(S), np.full(I, 1 / (settings.slater * max(I, 1)))


def run(**changes):
    return learn(LOG, **{**GOOD, **changes})


def names_of(premises, holds):
    return {premise.name for premise in premises if premise.holds is holds}


# ---- What a result holds ----


def test_a_completed_run():
    result = run()
    assert (result.status, result.success, result.n_steps) == (Status.COMPLETED, True, 3000)
    assert result.message == "all steps were taken"
    assert (result.x_mean.shape, result.V_mean.shape, result.lam_mean.shape) == ((4, 3), (4,), (2,))
    assert (result.last.x.shape, result.last.V.shape, result.last.lam.shape) == ((4, 3), (4,), (2,))
    np.testing.assert_allclose(result.policy.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(result.policy, result.x_mean / result.x_mean.sum(axis=1, keepdims=True), rtol=1e-15)
    counts = result.diagnostics
    assert counts["steps"] == 3000 == sum(counts[f"case_{k}"] for k in (1, 2, 3, 4))
    assert min(counts["case_1"], counts["case_3"], counts["capped"], 10 * counts["rebases"]) > 100
    assert result.settings == Settings(gamma=0.8, psi=1, slater=0.3, T=3000, eta=0.05, floor=1e-3).resolve(4, 3, 2)
    np.testing.assert_array_equal(result.reference.mu_hat, estimate_reference(LOG, 1e-3).mu_hat)


def test_an_ordinary_run_lists_its_premises_and_claims_nothing():
    result = run()
    assert result.guarantee is None
    assert {"fresh samples", "psi >= C*", "slater valid"} <= names_of(result.premises, holds=False)
    vouched = run(known=["psi", "slater"])
    assert {"psi >= C*", "slater valid"} <= names_of(vouched.premises, holds=True)
    assert vouched.guarantee is None


def test_fresh_samples_are_recognised():
    assert "fresh samples" in names_of(run(order="shuffle", T=200).premises, holds=True)
    assert "fresh samples" in names_of(run(order="shuffle", T=201).premises, holds=False)
    assert "fresh samples" in names_of(run(order="trajectory", T=200).premises, holds=True)
    assert "fresh samples" in names_of(run(order="replacement", T=2).premises, holds=False)


@pytest.mark.parametrize("n_utilities", [0, 2])
def test_one_step_averages_to_the_starting_point(n_utilities):
    log = random_log(4, 3, 200, n_utilities, seed=1, used_actions=2)
    result = learn(log, **{**GOOD, "T": 1})
    x, V, lam = paper_start(log, result.reference.mu_hat, result.settings)
    # x goes through its logarithm and back, which costs |log x| roundings.
    np.testing.assert_allclose(result.x_mean, x, rtol=1e-14)
    np.testing.assert_array_equal(result.V_mean, V)
    np.testing.assert_allclose(result.lam_mean, lam, rtol=1e-15)
    # The point after the step is another one, and does not count.
    assert abs(result.last.x / x - 1).max() > 1e-3
    assert abs(result.last.V - V).max() > 1e-3


@pytest.mark.parametrize("order", ["replacement", "shuffle", "trajectory"])
def test_same_seed_same_bits_and_another_seed_others(order):
    assert bits(run(order=order)) == bits(run(order=order))
    assert bits(run(order=order)) != bits(run(order=order, rng=6))


def test_a_seed_and_a_generator_are_the_same_and_the_generator_advances():
    rng = np.random.default_rng(5)
    assert bits(run(rng=rng)) == bits(run(rng=5))
    assert bits(run(rng=rng)) != bits(run(rng=5))


def test_settings_as_an_object_as_keywords_or_both():
    others = {"rho0": RHO0, "rng": 5}
    keywords = {name: value for name, value in GOOD.items() if name not in others}
    settings = Settings(**keywords)
    assert bits(learn(LOG, settings, **others)) == bits(run())
    changed = learn(LOG, settings, T=50, **others)
    assert changed.settings.T == 50
    assert bits(changed) == bits(run(T=50))


def test_logged_initial_states_are_a_distribution():
    logged = [3, 0, 0, 1, 2, 0, 0, 1, 1, 2]
    assert bits(run(rho0=None, initial_states=logged)) == bits(run())
    assert bits(run(rho0=None, initial_states=[2] * 7)) == bits(run(rho0=[0, 0, 1, 0]))


def test_the_log_can_be_split_for_the_reference():
    result = run(n_reference=50)
    assert bits(result) == bits(learn(LOG[50:], **GOOD, reference=estimate_reference(LOG[:50], 1e-3)))
    assert result.reference.n_samples == 50
    np.testing.assert_array_equal(result.reference.mu_hat, estimate_reference(LOG[:50], 1e-3).mu_hat)
    assert bits(result) != bits(run())
    assert bits(run(reference=estimate_reference(LOG, 1e-3))) == bits(run())


def test_a_reference_may_know_pairs_that_the_log_does_not_and_the_other_way_round():
    log, reference = LOG[:6], estimate_reference(LOG[6:15], 1e-3)
    assert len(np.setdiff1d(log.pairs, reference.pairs)) > 0
    assert len(np.setdiff1d(reference.pairs, log.pairs)) > 0
    result = learn(log, **GOOD, reference=reference)
    assert result.status is Status.COMPLETED
    assert (result.x_mean <= reference.mu_hat / 0.2 * (1 + 1e-9)).all()


def test_a_warm_start_goes_on_where_the_run_ended():
    # In the log's own order, 1,000 steps are five rounds of it, so the second run reads what the first would have.
    whole = run(order="trajectory", T=2000, rho0=[1, 0, 0, 0])
    first = run(order="trajectory", T=1000, rho0=[1, 0, 0, 0])
    second = run(order="trajectory", T=1000, rho0=[1, 0, 0, 0], start=first.last)
    # Equal up to the roundings of x -> log x -> x, which the steps do not amplify much.
    for expected, found in zip(whole.last, second.last, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose((first.x_mean + second.x_mean) / 2, whole.x_mean, rtol=1e-9)
    np.testing.assert_allclose((first.V_mean + second.V_mean) / 2, whole.V_mean, rtol=1e-9)
    np.testing.assert_allclose((first.lam_mean + second.lam_mean) / 2, whole.lam_mean, rtol=1e-9)


def test_the_last_point_is_a_start_even_where_x_is_below_the_smallest_double():
    first = run()
    assert first.last.x.min() < 1e-300
    second = run(start=first.last)
    assert second.success
    assert "algorithm as stated" in names_of(second.premises, holds=False)


# ---- Chunks, callbacks, interruptions ----


@pytest.mark.parametrize("order", ["replacement", "shuffle", "trajectory"])
def test_the_size_of_chunks_leaves_no_trace(order):
    expected = bits(run(order=order))
    for chunk in (1, 7, 1000, 10**6):
        assert bits(run(order=order, chunk=chunk)) == expected


@pytest.mark.parametrize("refresh", [1, 13])
def test_chunks_leave_no_trace_in_refreshes_either(refresh):
    expected = run(refresh=refresh)
    assert expected.diagnostics["refreshes"] > 3000 // refresh - 1
    assert bits(run(refresh=refresh, chunk=7)) == bits(expected)


@pytest.mark.parametrize("psi", [1.0, 50.0])
def test_refreshes_change_nothing_but_roundings(psi):
    n_steps = 200_000  # three refreshes at the default
    settings = {"psi": psi, "T": n_steps, "eta": 1e-3}
    often, default, never = (run(**settings, refresh=refresh) for refresh in (1000, None, 10**9))
    assert [result.diagnostics["refreshes"] for result in (often, default, never)] == [200, 3, 0]
    for result in (often, default):
        # Averages of 200,000 numbers, and steps that are taken from slightly different roundings.
        np.testing.assert_allclose(result.x_mean, never.x_mean, rtol=1e-9)
        np.testing.assert_allclose(result.V_mean, never.V_mean, rtol=1e-9)
        np.testing.assert_allclose(result.lam_mean, never.lam_mean, rtol=1e-9)


def test_the_callback_sees_results_on_the_way():
    seen = []
    result = run(callback=seen.append, callback_every=700, chunk=111)
    assert [one.n_steps for one in seen] == [700, 1400, 2100, 2800]
    assert all(one.status is Status.RUNNING and not one.success and one.guarantee is None for one in seen)
    assert seen[0].message == "still running"
    assert bits(result) == bits(run())
    for one in seen:
        short = run(T=one.n_steps)
        assert bits(one) == bits(short)
        np.testing.assert_array_equal(one.policy, short.policy)


def test_the_callback_is_called_a_hundred_times_unless_told_otherwise():
    seen = []
    run(callback=lambda result: seen.append(result.n_steps))
    assert seen == list(range(30, 3001, 30))
    seen.clear()
    run(callback=lambda result: seen.append(result.n_steps), T=7)
    assert seen == list(range(1, 8))


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [(StopIteration, Status.STOPPED, "stopped"), (KeyboardInterrupt, Status.INTERRUPTED, "interrupted")],
)
def test_a_callback_can_end_the_run(error, status, word):
    def stop(result):
        if result.n_steps >= 1200:
            raise error

    result = run(callback=stop, callback_every=400)
    assert (result.status, result.success, result.n_steps) == (status, False, 1200)
    assert word in result.message
    assert "steps taken" in result.message
    assert bits(result) == bits(run(T=1200))
    assert result.guarantee is None
    np.testing.assert_allclose(result.policy.sum(axis=1), 1, rtol=1e-15)


def test_any_other_error_of_the_callback_is_the_caller_s():
    def fail(result):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(callback=fail)


def test_a_real_interrupt_gives_the_steps_taken():
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    armed = []

    def arm(result):
        if not armed:
            armed.append(True)
            timer.start()

    try:
        result = run(T=10**12, callback=arm, callback_every=1000)
    finally:
        timer.cancel()
    assert result.status is Status.INTERRUPTED
    assert 1000 <= result.n_steps < 10**12
    assert bits(result) == bits(run(T=result.n_steps))


def test_an_interrupt_comes_through_without_a_callback():
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        result = run(T=10**12)
    finally:
        timer.cancel()
    assert result.status is Status.INTERRUPTED
    assert result.n_steps > 0
    assert np.isfinite(result.policy).all()


def test_a_numerical_failure_is_reported_with_the_steps_taken(monkeypatch):
    core = _core.LazyCore

    class Failing(core):
        def run(self, n, seconds):
            super().run(min(n, 500 - self.n_steps), seconds)
            return 1 if self.n_steps == 500 else 0

    monkeypatch.setattr(_core, "LazyCore", Failing)
    called = []
    result = run(chunk=200, callback=lambda result: called.append(result.n_steps), callback_every=100)
    assert (result.status, result.success, result.n_steps) == (Status.NUMERICAL_ERROR, False, 500)
    assert result.message == f"{_core.CODES[1]}; the result covers the steps taken"
    assert called == [100, 200, 300, 400]
    assert result.guarantee is None
    monkeypatch.undo()
    assert bits(result) == bits(run(T=500))


# ---- Progress ----


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(_progress, "DELAY", 0.0)
    monkeypatch.setattr(_progress, "INTERVAL", 0.0)


@pytest.mark.usefixtures("impatient")
def test_nothing_is_written_where_nobody_looks(capfd):
    run(chunk=500)
    run(chunk=500, progress=False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_a_line_says_how_far_the_run_is_and_goes(capsys):
    run(chunk=1000, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    drawn = [line for line in err.split("\r") if line.strip()]
    assert [line.split("%")[0] for line in drawn] == ["learning:  33.3", "learning:  66.7", "learning: 100.0"]
    assert all("steps/s" in line and line.rstrip().endswith("s left") for line in drawn)
    assert err.endswith("\r")  # over a line of blanks


def test_a_short_run_shows_nothing_even_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    run(chunk=100)
    assert sys.stderr.getvalue() == ""


# ---- What is refused, before any work ----


def refused(error, message, dataset=LOG, **changes):
    """The call must fail with this message, and leave the generator alone."""
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    with pytest.raises(error, match=re.escape(message)):
        learn(dataset, **{**GOOD, "rng": rng, **changes})
    assert rng.bit_generator.state == before


REFERENCE = estimate_reference(LOG, 1e-3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"gamma": 1.0}, ValueError, "gamma must be > 0 and < 1, got 1.0"),
        ({"steps": 5}, TypeError, "unexpected keyword argument 'steps'; did you mean T?"),
        ({"settings": {"T": 5}}, TypeError, "settings must be a Settings, got dict"),
        ({"rho0": None}, TypeError, "give either rho0 or initial_states"),
        ({"initial_states": [0]}, TypeError, "give either rho0 or initial_states"),
        ({"rho0": [0.4, 0.3, 0.2]}, ValueError, "rho0 must have shape (4,), got (3,)"),
        ({"rho0": [[0.4, 0.3, 0.2, 0.1]]}, ValueError, "rho0 must have shape (4,), got (1, 4)"),
        ({"rho0": [0.4, 0.3, 0.2, 0.0]}, ValueError, "rho0 must sum to 1, got 0.9"),
        ({"rho0": [1e308] * 4}, ValueError, "rho0 must sum to 1, got inf"),
        ({"rho0": [0.4, -0.3, 0.8, 0.1]}, ValueError, "rho0[1] = -0.3 must be >= 0"),
        ({"rho0": [0.4, 0.3, np.nan, 0.1]}, ValueError, "rho0[2] = nan must be finite"),
        ({"rho0": [0.4, 0.3, np.inf, 0.1]}, ValueError, "rho0[2] = inf must be finite"),
        ({"rho0": [True, False, False, False]}, TypeError, "rho0 must hold real numbers, got dtype bool"),
        ({"rho0": "even"}, TypeError, "rho0 must hold real numbers, got dtype <U4"),
        ({"rho0": [[0.4], [0.3, 0.3]]}, ValueError, "rho0 is not a regular array"),
        ({"rho0": None, "initial_states": []}, ValueError, "initial_states is empty"),
        ({"rho0": None, "initial_states": [0, 4]}, ValueError, "initial_states[1] = 4 must be between 0 and 3"),
        ({"rho0": None, "initial_states": [0, -1]}, ValueError, "initial_states[1] = -1 must be between 0 and 3"),
        ({"rho0": None, "initial_states": [0.5]}, ValueError, "initial_states[0] = 0.5 must be a whole number"),
        ({"rho0": None, "initial_states": 2}, ValueError, "initial_states must have shape (any,), got ()"),
        ({"n_reference": 0}, ValueError, "n_reference must be between 1 and 199, got 0"),
        ({"n_reference": 200}, ValueError, "n_reference must be between 1 and 199, got 200"),
        ({"n_reference": 2.5}, ValueError, "n_reference must be a whole number, got 2.5"),
        ({"n_reference": 5, "reference": REFERENCE}, TypeError, "give either n_reference or reference"),
        ({"reference": REFERENCE.mu_hat}, TypeError, "reference must be a Reference, got ndarray"),
        (
            {"reference": estimate_reference(random_log(5, 3, 20, 2, seed=0), 1e-3)},
            ValueError,
            "reference has 5 states and 3 actions, the log 4 and 3",
        ),
        (
            {"reference": estimate_reference(LOG, 2e-3)},
            ValueError,
            "reference was made with floor 0.002, settings have 0.001",
        ),
        ({"callback": 5}, TypeError, "callback must be callable, got int"),
        ({"callback_every": 0}, ValueError, "callback_every must be between 1 and"),
        ({"callback_every": 2.5}, ValueError, "callback_every must be a whole number, got 2.5"),
        ({"chunk": 0}, ValueError, "chunk must be between 1 and 9223372036854775807, got 0"),
        ({"chunk": "big"}, TypeError, "chunk must be a whole number, got str"),
        ({"known": ["gamma"]}, ValueError, "known must be one of 'psi', 'slater', 'mixing_time', got 'gamma'"),
        ({"known": "psi"}, TypeError, "known must be a collection of names, got 'psi'"),
        ({"known": 5}, TypeError, "known must be a collection of names, got 5"),
        ({"rng": -1}, ValueError, "rng must be a seed >= 0, got -1"),
        ({"eta": 1e308}, ValueError, "is so large that a number could overflow in 3000 steps"),
        (
            {"eta": 1e300, "alpha_V": 1e-300, "alpha_x": 1e300, "alpha_lam": 1e300},
            ValueError,
            "eta/alpha_V = inf with",
        ),
        ({"eta": 1e300, "alpha_lam": 1e-5, "alpha_x": 1e300}, ValueError, "eta/alpha_lam = 1e+305 with"),
    ],
)
def test_bad_arguments_are_named(changes, error, message):
    refused(error, message, **changes)


def test_the_first_argument_is_a_data_set():
    refused(TypeError, "log must be a Dataset, got ndarray", dataset=np.zeros((3, 5)))


@pytest.mark.parametrize("rng", [0.5, "seed", [1, 2], True, np.random.RandomState(0), np.random.PCG64(0)])
def test_a_generator_of_a_wrong_type_is_refused(rng):
    with pytest.raises(TypeError, match=f"rng must be .* got {type(rng).__name__}"):
        run(rng=rng)


def test_gamma_must_be_the_one_that_costs_were_converted_with():
    costs = logs.from_costs(
        [0, 0], [0, 1], [0, 0], [1, 0], [[1.0], [0.0]], [0.5], gamma=0.9, normalised=True, n_states=1, n_actions=2
    )
    refused(ValueError, "the log was posed under another question, gamma = 0.9: pass the log itself", costs, rho0=[1.0])
    assert learn(costs, **{**GOOD, "gamma": 0.9, "rho0": [1.0]}).success


# At psi = 2 the paper's start is well inside: B1 = 20, B2 = 6 * 2/0.2 = 60, caps are 10 mu_hat.
ROOMY = {"psi": 2.0, "T": 100}
SIZES = {"gamma": 0.8, "slater": 0.3, "T": 100}


def start(**changes):
    """The paper's start with some entries replaced, as {"x": {(s, a): value}}, or whole parts."""
    parts = dict(zip(("x", "V", "lam"), paper_start(LOG, REFERENCE.mu_hat, Settings(**SIZES, psi=2)), strict=True))
    for name, values in changes.items():
        if isinstance(values, dict):
            for index, value in values.items():
                parts[name][index] = value
        else:
            parts[name] = values
    return Point.of(**parts)


def test_the_paper_s_start_may_be_spelled_out():
    spelled, default = run(**ROOMY, start=start()), run(**ROOMY)
    # A rounding of x at the start, a hundred steps on.
    np.testing.assert_allclose(spelled.x_mean, default.x_mean, rtol=1e-12)
    np.testing.assert_allclose(spelled.last.V, default.last.V, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # V within 8/(1-gamma) (1 + 2/slater) = 306.667, sum lam within 8/slater = 26.6667
        ({"V": {2: 307.0}}, "infeasible start: max |V| = 307 exceeds its bound 306.667"),
        ({"V": {2: -307.0}}, "infeasible start: max |V| = 307 exceeds its bound 306.667"),
        ({"lam": {0: 26.0}}, "infeasible start: sum lam = 27.6667 exceeds its bound 26.6667"),
        # A KL step never leaves zero, so logarithms have to be finite.
        ({"lam": {1: 0.0}}, "start.log_lam[1] = -inf must be finite"),
        ({"lam": {1: -1.0}}, "start.log_lam[1] = nan must be finite"),
        ({"lam": {1: np.inf}}, "start.log_lam[1] = inf must be finite"),
        ({"x": {(1, 0): 0.0}}, "start.log_x[1, 0] = -inf must be finite"),
        ({"x": {(1, 2): 0.0}}, "start.log_x[1, 2] = -inf must be finite"),
        ({"x": {(0, 1): -2.0}}, "start.log_x[0, 1] = nan must be finite"),
        ({"x": {(0, 1): np.nan}}, "start.log_x[0, 1] = nan must be finite"),
        ({"x": {(3, 1): np.inf}}, "start.log_x[3, 1] = inf must be finite"),
        ({"V": {1: np.nan}}, "start.V[1] = nan must be finite"),
        ({"x": {(1, 2): 0.004}}, f"start.log_x[1, 2] = {np.log(0.004)!s} differs from"),
    ],
)
def test_an_infeasible_start_is_named(changes, message):
    refused(ValueError, message, **ROOMY, start=start(**changes))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.full((4, 3), 2.0), "infeasible start: sum x = 24 exceeds its bound 20"),
        (6 * REFERENCE.mu_hat, "infeasible start: sum x/mu_hat = 72 exceeds its bound 60"),
    ],
)
def test_a_start_with_an_infeasible_sum_is_named(x, message):
    refused(ValueError, message, **ROOMY, start=start(x=x))


def test_a_start_above_a_cap_is_named():
    cap = 10 * REFERENCE.mu_hat[1, 0]
    message = f"infeasible start: x[1, 0] = {1.1 * cap:.6g} exceeds its bound {cap:.6g}"
    refused(ValueError, message, **ROOMY, start=start(x={(1, 0): 1.1 * cap}))
    # A hair above it is rounding.
    assert run(**ROOMY, start=start(x={(1, 0): cap * (1 + 1e-12)})).status is Status.COMPLETED


def test_a_start_above_the_cap_of_the_unseen_pairs_is_named():
    unseen = np.setdiff1d(np.arange(12), LOG.pairs)
    x = paper_start(LOG, REFERENCE.mu_hat, Settings(**SIZES, psi=2))[0] / 2
    x.ravel()[unseen] = 0.011
    bound = f"{0.01 * len(unseen):.6g}"
    message = f"infeasible start: x of the unseen pairs = {0.011 * len(unseen):.6g} exceeds its bound {bound}"
    # Half of the paper's x elsewhere, or sum x/mu_hat would be the first to break.
    refused(ValueError, message, **ROOMY, start=start(x=x))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": np.ones((3, 4))}, ValueError, "start.log_x must have shape (4, 3), got (3, 4)"),
        ({"V": np.zeros(5)}, ValueError, "start.V must have shape (4,), got (5,)"),
        ({"lam": np.ones(1)}, ValueError, "start.log_lam must have shape (2,), got (1,)"),
    ],
)
def test_a_start_of_a_wrong_shape_is_named(changes, error, message):
    refused(error, message, **ROOMY, start=start(**changes))


@pytest.mark.parametrize("point", [5, (np.zeros((4, 3)), np.zeros(4)), {"x": 1}])
def test_a_start_that_is_no_point_is_named(point):
    refused(TypeError, f"start must be a Point (log_x, V, log_lam), got {type(point).__name__}", start=point)


def test_a_start_that_holds_no_numbers_is_named():
    words = start()._replace(log_lam=["a", "b"])
    refused(TypeError, "start.log_lam must hold real numbers, got dtype <U1", **ROOMY, start=words)


def test_a_floor_that_spoils_the_default_start_is_blamed():
    refused(ValueError, "the default start is infeasible because floor is too large: sum x = 30", floor=1.0)


def test_a_radius_that_spoils_the_default_start_is_blamed():
    refused(ValueError, "the default start is infeasible because radius_lam is too small: sum lam", radius_lam=1e-3)


def test_a_warm_start_keeps_a_multiplier_below_the_smallest_double():
    log = Dataset([0, 0], [0, 1], [0, 0], [0.0, 0.0], [[1.0], [1.0]], n_states=1, n_actions=2)
    common = {"gamma": 0.5, "psi": 2, "slater": 1, "T": 3000, "eta": 1.0, "rho0": [1.0], "rng": 0}
    first = learn(log, **common)
    assert first.last.log_lam[0] < -750
    second = learn(log, **common, start=first.last)
    assert second.last.log_lam[0] < first.last.log_lam[0]
    assert np.isfinite(second.last.log_lam).all()


def test_the_constants_of_the_theorem_count_as_the_algorithm_as_stated():
    log = Dataset([0, 0], [0, 1], [0, 0], [0.0, 0.0], [[1.0], [1.0]], n_states=1, n_actions=2)
    settings = Settings.from_theory(1, 2, 1, gamma=0.5, slater=0.5, psi=2, eps=0.2)

    def held(**changes):
        result = learn(log, settings, T=100, rho0=[1.0], rng=0, **changes)
        return {premise.name: premise.holds for premise in result.premises}

    assert held()["algorithm as stated"]
    assert not held(radius_V=1.0)["algorithm as stated"]
    # Two transitions are not fresh for a hundred steps in any order.
    assert not held(order="trajectory")["fresh samples"]
