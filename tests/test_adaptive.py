"""Adaptive-DPDL: level by level what `learn` and `verify` do on the next unread transitions, and the paper's exit."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from dpdl import (
    Dataset,
    Status,
    instances,
    learn,
    learn_adaptive,
    theory,
    verify,
)
from dpdl.learner import adaptive
from dpdl.learner.drive import drive
from dpdl.learner.verify import Verification
from dpdl.premises import Premise
from dpdl.settings import Settings
from long_runs import bits
from problems import random_log

BUDGETS = {"n_reference": 300, "n_descent": 500, "n_verification": 400}


def problem(seed):
    rng = np.random.default_rng(seed)
    cmdp = instances.garnet(4, 3, 1, branching=2, gamma=0.5, slater=0.3, rng=rng)
    return cmdp, rng.dirichlet(np.full(12, 5.0)).reshape(4, 3), rng


CMDP_, MU, _ = problem(0)
LOG = CMDP_.sample(6000, MU, rng=1)
COMMON = {"gamma": 0.5, "slater": 0.3, "eps": 0.2, "rho0": CMDP_.rho0, "eps_divisor": 1}


def same_runs(one, two):
    assert bits(one) == bits(two)
    np.testing.assert_array_equal(one.reference.mu_hat, two.reference.mu_hat)
    assert one.settings == two.settings


# ---- What each level does, and with which transitions ----


def check_history(result, parts, rng, *, psi=1.0, n_reference=None, **given):
    """Every level is what `learn` and `verify` give on its parts of the log, with one generator through all levels."""
    rng = np.random.default_rng(rng)
    first = {name: given.pop(name) for name in ("rho0", "initial_states") if name in given}
    for number, (level, (run, fresh)) in enumerate(zip(result.history, parts, strict=True), 1):
        delta = 0.05 * 6 / (math.pi * number) ** 2
        settings = {"gamma": 0.5, "slater": 0.3, "eps": 0.2, "psi": psi * 2 ** (number - 1), "delta": delta} | given
        alone = learn(run, **settings, **first, n_reference=n_reference, rng=rng)
        same_runs(level.result, alone)
        found = verify(alone, fresh, **first, eps=0.2, delta=delta)
        assert (level.psi, level.verdict, level.reward) == (settings["psi"], found.verdict, found.reward)
        assert (level.verification.flow_margin, level.verification.utility_margin) == (
            found.flow_margin,
            found.utility_margin,
        )
        counts = n_reference or len(run), len(run) - (n_reference or 0), len(fresh)
        assert (level.n_reference, level.n_descent, level.verification.n_samples) == counts
        assert (level.result.n_steps, level.delta, level.verification.enough) == (given["T"], delta, False)


def parts_of(log, n_levels, n_run, n_verification):
    """What each level reads, one after the other."""
    begins = (n_run + n_verification) * np.arange(n_levels)
    return [(log[k : k + n_run], log[k + n_run : k + n_run + n_verification]) for k in begins.tolist()]


@pytest.mark.parametrize(
    ("n_descent", "order", "used"),
    [(500, "replacement", "once"), (700, "shuffle", "once"), (200, "shuffle", "shuffle")],
)
def test_history_is_what_learn_and_verify_give_on_the_next_transitions(n_descent, order, used):
    """Enough transitions for each step to have its own are read in their order."""
    budgets = BUDGETS | {"n_descent": n_descent}
    result = learn_adaptive(LOG, **COMMON, **budgets, T=500, order=order, rng=7, max_levels=3, psi=1.5)
    parts = parts_of(LOG, 3, 300 + n_descent, 400)
    check_history(result, parts, 7, psi=1.5, n_reference=300, rho0=CMDP_.rho0, T=500, order=used)
    assert result.status is Status.OUT_OF_LEVELS
    assert result.message == "3 levels were not enough; see history"


def test_reuse_reads_the_whole_log_in_every_phase():
    result = learn_adaptive(LOG, **COMMON, T=800, order="shuffle", reuse=True, rng=3, max_levels=3)
    check_history(result, [(LOG, LOG)] * 3, 3, rho0=CMDP_.rho0, T=800, order="shuffle")
    assert not next(premise for premise in result.premises if premise.name == "fresh levels").holds


def test_logged_initial_states_and_a_trajectory_with_its_mixing_time():
    walk = CMDP_.rollout(4000, np.full((4, 3), 1 / 3), rng=2)
    given = {"mixing_time": 3.0, "order": "once", "T": 500, "initial_states": [0, 1, 1, 3]}
    options = {"gamma": 0.5, "slater": 0.3, "eps": 0.2, "eps_divisor": 1}
    result = learn_adaptive(walk, **options, **given, **BUDGETS, rng=0, max_levels=2)
    check_history(result, parts_of(walk, 2, 800, 400), 0, n_reference=300, **given)
    assert [level.result.settings.eta for level in result.history] == [1 / math.sqrt(500)] * 2


@pytest.mark.parametrize("n_descent", [100, 250, 400])
def test_no_transition_is_read_twice(monkeypatch, n_descent):
    """Every record carries its number in its reward; whoever reads a part of the log gives away which."""
    n = 6000
    log = Dataset(LOG.s, LOG.a, LOG.s_next, np.arange(n) / n, LOG.u, n_states=4, n_actions=3)
    read = []

    def numbers(part):
        return np.rint(part.r * n).astype(int).tolist()

    def spied_drive(run, options, interrupts, *, new):
        layout = run.layout
        read.extend([numbers(layout.log[: layout.inputs.n_reference]), numbers(layout.descent)])
        assert layout.reference.n_samples == layout.inputs.n_reference
        return drive(run, options, interrupts, new=new)

    def spied_verify(result, part, **options):
        read.append(numbers(part))
        return verify(result, part, **options)

    monkeypatch.setattr(adaptive, "drive", spied_drive)
    monkeypatch.setattr(adaptive, "verify", spied_verify)
    budgets = {"n_reference": lambda p: int(50 * p.psi), "n_descent": n_descent, "n_verification": lambda p: 70}
    result = learn_adaptive(log, **COMMON, **budgets, T=250, rng=0, exit_margin=0)
    assert result.status is Status.OUT_OF_DATA
    assert len(result.history) == 6
    assert len(read) == 3 * len(result.history)
    flat = [number for part in read for number in part]
    assert flat == list(range(len(flat)))
    lengths = [length for level in range(len(result.history)) for length in (50 * 2**level, n_descent, 70)]
    assert [len(part) for part in read] == lengths
    used_once = [p.holds for p in result.history[0].result.premises if p.name == "fresh samples"]
    assert used_once == [n_descent >= 250]


# ---- The paper's constants ----


@pytest.mark.parametrize("mixing_time", [None, 2.0])
def test_budgets_are_the_theorems_at_every_level(mixing_time):
    """An absurd eps makes the theorem's numbers small enough to be spent."""
    eps, delta = 1e5 if mixing_time is None else 1e6, 0.1
    fixed = {"kappa": 0.0, "floor": 0.01, "mixing_time": mixing_time, "order": "once"}
    result = learn_adaptive(LOG, gamma=0.5, slater=0.3, eps=eps, delta=delta, **fixed, rho0=CMDP_.rho0, rng=0)
    assert result.status in (Status.COMPLETED, Status.OUT_OF_DATA)
    assert len(result.history) >= 2
    for number, level in enumerate(result.history, 1):
        at = theory.Problem(4, 3, 1, 0.5, 0.3, 2.0 ** (number - 1))
        inner, delta_k = eps / 15, 6 * delta / (math.pi**2 * number**2)
        assert level.delta == pytest.approx(delta_k, rel=1e-14)
        assert level.result.settings.eps == inner
        n_verification = theory.verification_samples(at, inner, level.delta)
        if mixing_time is None:
            n_reference = theory.reference_samples(at, inner, level.delta)
            n_steps = theory.descent_steps(at, inner, level.delta)
        else:
            n_reference = theory.async_reference_samples(at, inner, level.delta, mixing_time)
            n_steps = theory.async_descent_steps(at, inner, level.delta, mixing_time)
        assert (level.n_reference, level.verification.n_samples) == (n_reference, n_verification)
        assert (level.n_descent, level.result.n_steps) == (n_steps, n_steps)
        assert level.verification.enough
        assert level.result.settings.order == "once"


def test_a_log_of_ordinary_size_is_told_what_the_theorem_asks_for():
    result = learn_adaptive(LOG, gamma=0.5, slater=0.3, eps=0.2, rho0=CMDP_.rho0, rng=0)
    at, eps, delta = theory.Problem(4, 3, 1, 0.5, 0.3, 1), 0.2 / 15, theory.adaptive_delta(0.05, 1)
    needs = (
        theory.reference_samples(at, eps, delta),
        theory.descent_steps(at, eps, delta),
        theory.verification_samples(at, eps, delta),
    )
    assert (result.status, result.success, result.history, result.n_steps) == (Status.OUT_OF_DATA, False, (), 0)
    assert result.message == (
        f"level 1 (psi = 1) asks for {sum(needs):.2g} fresh transitions, {needs[0]:.2g} for mu_hat, {needs[1]:.2g} for "
        f"the descent and {needs[2]:.2g} for VERIFY, and 6,000 are left; with reuse=True every phase reads the "
        "whole log; nothing was learned"
    )
    assert (result.premises, result.guarantee) == ((), None)
    # What is left without a step is the policy of the data.
    counts = np.bincount(LOG.s * 3 + LOG.a, minlength=12).reshape(4, 3)
    np.testing.assert_allclose(result.policy, counts / counts.sum(axis=1, keepdims=True), rtol=1e-12)


# ---- The exit rule ----


def algorithm_2(verdicts, rewards, eps, margin):
    """Algorithm 2 as printed: J^K = -inf unless VERIFY holds, stop if -inf < J^K <= J^{K-1} + margin eps."""
    before = -math.inf
    for K, (verdict, reward) in enumerate(zip(verdicts, rewards, strict=True), 1):
        now = reward if verdict else -math.inf
        if -math.inf < now <= before + margin * eps:
            return K
        before = now
    return None


@pytest.fixture
def faked(monkeypatch):
    """Replaces the steps and verify; VERIFY's verdicts and rewards are read off `faked.levels`, one after the other."""
    template = learn(LOG, gamma=0.5, slater=0.3, psi=1, eps=0.2, T=10, rho0=CMDP_.rho0, rng=0)

    class Fake:
        levels = iter(())
        premises = template.premises
        status = Status.COMPLETED

    def fake_drive(run, *_, **__):
        return replace(template, settings=run.layout.settings, premises=Fake.premises, status=Fake.status)

    def fake_verify(_, log, **__):
        verdict, reward = next(Fake.levels)
        return Verification(verdict, reward, np.zeros(1), np.zeros(4), 0.0, 0.1, 0.2, len(log), True)

    monkeypatch.setattr(adaptive, "drive", fake_drive)
    monkeypatch.setattr(adaptive, "verify", fake_verify)
    return Fake


def test_the_exit_rule_is_that_of_algorithm_2(faked):
    rng = np.random.default_rng(0)
    outcomes = {"stopped": 0, "ran out": 0}
    for _ in range(400):
        n = int(rng.integers(1, 9))
        verdicts = (rng.random(n) < 0.6).tolist()
        rewards = np.cumsum(rng.choice([-0.3, 0.0, 0.2, 0.2000001, 0.7], n)).tolist()
        margin, divisor = float(rng.choice([0.0, 1.0, 15.0])), float(rng.choice([1.0, 15.0]))
        faked.levels = iter(zip(verdicts, rewards, strict=True))
        options = COMMON | {"exit_margin": margin, "eps_divisor": divisor}
        result = learn_adaptive(LOG, **options, T=10, reuse=True, max_levels=n, rng=0)
        last = algorithm_2(verdicts, rewards, 0.2 / divisor, margin)
        seen = [(level.verdict, level.reward) for level in result.history]
        assert seen == list(zip(verdicts, rewards, strict=True))[:last]
        if last is None:
            outcomes["ran out"] += 1
            assert result.status is Status.OUT_OF_LEVELS
            held = [2.0**k for k, verdict in enumerate(verdicts) if verdict]
            assert result.settings.psi == (held[-1] if held else 2.0 ** (n - 1))
        else:
            outcomes["stopped"] += 1
            assert (result.status, result.success) == (Status.COMPLETED, True)
            assert result.settings.psi == 2.0 ** (last - 1)
            assert result.message.startswith(f"stopped at level {last}, psi = {2 ** (last - 1)}: VERIFY passed twice")
    assert min(outcomes.values()) > 50


def test_the_default_margin_is_500_times_a_fifteenth_of_eps(faked):
    options = COMMON | {"eps_divisor": theory.ADAPTIVE_EPS_DIVISOR}
    most = 500 * (0.2 / 15)
    for gain, status in ((most, Status.COMPLETED), (math.nextafter(most, 9), Status.OUT_OF_LEVELS)):
        faked.levels = iter([(True, 0.0), (True, gain)])
        assert learn_adaptive(LOG, **options, T=10, reuse=True, max_levels=2, rng=0).status is status


# ---- What ends it otherwise, with everything learned so far ----


def test_the_data_runs_out_at_a_later_level_to_the_record():
    """Two levels take 2 x 1200 transitions: 2400 are enough, 2399 are not."""
    for n, levels, left in ((2400, 2, 0), (2399, 1, 1199)):
        result = learn_adaptive(LOG[:n], **COMMON, **BUDGETS, T=500, rng=0, max_levels=9, exit_margin=0)
        assert (result.status, len(result.history)) == (Status.OUT_OF_DATA, levels)
        assert f"level {levels + 1} (psi = {2**levels}) asks for 1.2e+03 fresh transitions" in result.message
        assert f"and {left:,} are left" in result.message
        same_runs(result, result.history[-1].result)


def test_the_last_level_that_verify_held_for_is_returned(faked):
    faked.levels = iter([(True, 0.5), (False, 9.0), (True, 0.1), (False, 9.0)])
    result = learn_adaptive(LOG, **COMMON, T=10, reuse=True, max_levels=4, rng=0)
    assert (result.status, result.settings.psi) == (Status.OUT_OF_LEVELS, 4.0)


def stop_at(level, exception):
    def callback(result):
        if len(result.history) == level - 1:
            raise exception

    return callback


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize(
    ("exception", "status"), [(KeyboardInterrupt, Status.INTERRUPTED), (StopIteration, Status.STOPPED)]
)
def test_a_callback_may_end_it(level, exception, status):
    options = {"T": 500, "rng": 0, "exit_margin": 0, "callback_every": 125}
    whole = learn_adaptive(LOG, **COMMON, **BUDGETS, **options, max_levels=level)
    result = learn_adaptive(LOG, **COMMON, **BUDGETS, **options, callback=stop_at(level, exception))
    assert (result.status, result.guarantee, len(result.history)) == (status, None, level)
    broken = result.history[-1]
    assert (broken.verdict, broken.result.n_steps, broken.verification) == (None, 125, None)
    assert math.isnan(broken.reward)
    for one, two in zip(result.history[:-1], whole.history, strict=False):
        same_runs(one.result, two.result)
        assert (one.verdict, one.reward) == (two.verdict, two.reward)


@pytest.mark.parametrize("where", ["verify", "phases", "prepare"])
def test_no_level_is_lost_to_an_interruption_between_the_steps(monkeypatch, where):
    calls = []

    def third_time(original):
        def wrapper(*arguments, **options):
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return original(*arguments, **options)

        return wrapper

    owner, name = {
        "verify": (adaptive, "verify"),
        "phases": (adaptive._Schedule, "phases"),
        "prepare": (adaptive.Layout, "of"),
    }[where]
    monkeypatch.setattr(owner, name, third_time(getattr(owner, name)))
    options = {"T": 500, "rng": 0, "exit_margin": 0}
    result = learn_adaptive(LOG, **COMMON, **BUDGETS, **options)
    monkeypatch.undo()
    whole = learn_adaptive(LOG, **COMMON, **BUDGETS, **options, max_levels=3)
    assert result.status is Status.INTERRUPTED
    # An interrupted VERIFY leaves the descent of its level, which was complete.
    assert [level.verdict is None for level in result.history] == [False, False, True][: 2 + (where == "verify")]
    for one, two in zip(result.history, whole.history, strict=False):
        same_runs(one.result, two.result)


def test_an_interruption_before_anything_is_learned_is_passed_on(monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(adaptive.Layout, "of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learn_adaptive(LOG, **COMMON, **BUDGETS, T=500, rng=0)


def test_a_numerical_error_ends_it(faked):
    faked.status = Status.NUMERICAL_ERROR
    result = learn_adaptive(LOG, **COMMON, T=10, reuse=True, rng=0)
    assert (result.status, len(result.history)) == (Status.NUMERICAL_ERROR, 1)


def test_callbacks_see_the_levels_that_are_complete():
    seen = []
    options = {"T": 400, "rng": 0, "max_levels": 3, "exit_margin": 0}

    def callback(result):
        seen.append((len(result.history), result.n_steps, result.status, [level.verdict for level in result.history]))

    result = learn_adaptive(LOG, **COMMON, **BUDGETS, **options, callback=callback, callback_every=200)
    verdicts = [level.verdict for level in result.history]
    assert seen == [(k, n, Status.RUNNING, verdicts[:k]) for k in range(3) for n in (200, 400)]
    same_runs(result, learn_adaptive(LOG, **COMMON, **BUDGETS, **options))


def test_the_same_seed_gives_the_same_bits_whatever_the_chunk():
    options = {"T": 1500, "max_levels": 3, "order": "shuffle"}
    one, two = (learn_adaptive(LOG, **COMMON, **BUDGETS, **options, rng=5, chunk=chunk) for chunk in (None, 64))
    assert [(level.reward, level.verification.flow_margin) for level in one.history] == [
        (level.reward, level.verification.flow_margin) for level in two.history
    ]
    same_runs(one, two)
    other = learn_adaptive(LOG, **COMMON, **BUDGETS, **options, rng=6)
    assert (other.x_mean != one.x_mean).any()


# ---- What may be claimed ----


def holding(result):
    return {premise.name: premise.holds for premise in result.premises}


def test_practical_runs_claim_nothing_and_say_why():
    result = learn_adaptive(LOG, **COMMON, **BUDGETS, T=500, rng=0, max_levels=3, exit_margin=100, known=["slater"])
    held = holding(result)
    assert result.guarantee is None
    assert "psi >= C*" not in held
    failed = {name for name, holds in held.items() if not holds}
    short = {"samples for mu_hat", "steps", "step-size condition", "samples for VERIFY", "adaptive constants"}
    assert failed == short
    assert held["slater valid"]
    assert held["independent transitions"]
    assert held["fresh levels"]
    assert held["independent levels"]


def adaptive_claim(faked, log=LOG, **changes):
    """The result of two faked levels that VERIFY passed for, whose own premises all held."""
    faked.premises = (Premise("psi >= C*", False, ""), Premise("steps", True, ""), Premise("slater valid", True, ""))
    faked.levels = iter([(True, 0.0), (True, 0.0)])
    options = {"gamma": 0.5, "slater": 0.3, "eps": 0.2, "rho0": CMDP_.rho0, "T": 10, "rng": 0} | BUDGETS | changes
    return learn_adaptive(log, **options)


def test_the_proposition_is_claimed_when_every_premise_holds(faked):
    result = adaptive_claim(faked)
    assert result.status is Status.COMPLETED
    assert all(premise.holds for premise in result.premises)
    assert result.guarantee == (
        "Proposition G.2 with c_o = 1: if the transitions are as the premises say, then with probability at least "
        "0.95, psi = 2 <= 4 C*, every J^u_i(policy) >= 0 and J(pi*) - J(policy) is O(C*/psi) eps, with a constant that "
        "the paper does not give."
    )
    assert adaptive_claim(faked, psi=2).guarantee is not None


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"exit_margin": 400}, "adaptive constants"),
        ({"eps_divisor": 10}, "adaptive constants"),
        ({"psi": 2.5}, "adaptive constants"),
        ({"eps": 0.201}, "eps in range"),
        ({"reuse": True, **dict.fromkeys(BUDGETS)}, "fresh levels"),
    ],
)
def test_one_premise_that_fails_is_enough_to_claim_nothing(faked, changes, failed):
    result = adaptive_claim(faked, **changes)
    assert result.status is Status.COMPLETED
    assert [name for name, holds in holding(result).items() if not holds] == [failed]
    assert result.guarantee is None


def test_a_trajectory_claims_nothing_and_an_estimated_mixing_time_is_not_vouched_for(faked, monkeypatch):
    walk = CMDP_.rollout(6000, np.full((4, 3), 1 / 3), rng=2)
    result = adaptive_claim(faked, log=walk, mixing_time=3.0, order="once", known=["slater", "mixing_time"])
    assert [name for name, holds in holding(result).items() if not holds] == ["independent levels"]
    assert result.guarantee is None
    asked = []
    monkeypatch.setattr(adaptive, "mixing_time_bound", lambda *given: asked.append(given) or 7.0)
    result = adaptive_claim(faked, log=walk, mixing_time="estimate", order="once", known=["slater", "mixing_time"])
    assert [delta for _, delta in asked] == [0.05]
    assert [level.result.settings.mixing_time for level in result.history] == [7.0, 7.0]
    assert not holding(result)["mixing time"]
    detail = next(premise.detail for premise in result.premises if premise.name == "mixing time")
    assert detail == "t_mix <= 7, estimated from the same data"


def test_a_premise_that_failed_at_any_level_has_failed(faked, monkeypatch):
    """But for slater, which is looked for within psi of the data: the level that is returned decides."""
    plain, outcomes = adaptive.drive, iter([False, True])

    def fails_at_first(*arguments, **options):
        holds = next(outcomes)
        faked.premises = (Premise("steps", holds, ""), Premise("slater valid", holds, ""))
        return plain(*arguments, **options)

    monkeypatch.setattr(adaptive, "drive", fails_at_first)
    faked.levels = iter([(True, 0.0), (True, 0.0)])
    result = learn_adaptive(LOG, **COMMON, **BUDGETS, T=10, rng=0)
    held = holding(result)
    assert (held["steps"], held["slater valid"]) == (False, True)


# ---- Odd problems ----


def test_no_utilities_and_a_single_state():
    for u in (np.zeros((2, 0)), np.array([[0.5], [0.5]])):
        log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], u, n_states=1, n_actions=2)
        options = {"gamma": 0.5, "slater": 0.5, "eps": 0.2, "rho0": [1.0], "rng": 0}
        result = learn_adaptive(log, **options, T=50_000, reuse=True, eps_divisor=1, exit_margin=1)
        assert result.status is Status.COMPLETED
        assert result.policy[0, 0] > 0.9
        # The better action is half of the log, so psi = 2 is all that it takes, and psi = 4 what shows it.
        assert [(level.psi, level.verdict) for level in result.history][-2:] == [(2.0, True), (4.0, True)]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 3))])
def test_it_stops_in_time_with_a_safe_policy(seed):
    """Fresh data for mu_hat, descent and VERIFY at every level; exact C*, rewards and utilities to compare with."""
    cmdp, mu, rng = problem(seed)
    log, budgets = cmdp.sample(720_000, mu, rng=rng), dict.fromkeys(BUDGETS, 60_000)
    options = COMMON | budgets | {"rho0": cmdp.rho0, "T": 600_000, "exit_margin": 0.75, "rng": seed}
    result = learn_adaptive(log, **options)
    limit = 4 * cmdp.concentrability(mu)
    value, best = cmdp.evaluate(result.policy), cmdp.solve()
    print(f"\npsi = {result.settings.psi:g} <= 4 C* = {limit:.1f}, level by level ", end="")
    print([level.verdict for level in result.history], end=", ")
    print(f"utility {value.utilities[0]:.2f}, reward {value.reward:.3f} of {best.reward:.3f}")
    assert result.status is Status.COMPLETED
    assert result.settings.psi <= limit
    assert (value.utilities >= 0).all()
    assert value.reward >= 0.85 * best.reward
    # VERIFY passed, so J-hat is what the policy earns but for the flow that it lets pass.
    assert result.history[-1].reward == pytest.approx(value.reward, abs=0.1)


# ---- Errors ----


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"eps": None, "T": 10}, TypeError, r"missing setting 'eps': the accuracy that VERIFY"),
        ({"psi": 0.5}, ValueError, r"psi must be >= 1 and <= 1e\+30, got 0.5"),
        ({"steps": 10}, TypeError, r"learn_adaptive\(\) got an unexpected keyword argument 'steps'; did you mean T\?"),
        ({"rho0": [1.0]}, ValueError, r"rho0 must have shape \(4,\), got \(1,\)"),
        ({"rng": -1}, ValueError, r"rng must be a seed >= 0, got -1"),
        ({"reuse": 1}, TypeError, r"reuse must be True or False, got 1"),
        ({"n_reference": 0}, ValueError, r"n_reference must be between 1 and \d+, got 0"),
        ({"n_descent": 1.5}, ValueError, r"n_descent must be a whole number, got 1.5"),
        ({"n_verification": True}, TypeError, r"n_verification must be a whole number, got bool"),
        ({"n_verification": lambda _: -3}, ValueError, r"n_verification must be between 1 and \d+, got -3"),
        ({"reuse": True}, TypeError, r"n_reference says how much fresh data to read, which reuse=True does not"),
        (
            {"mixing_time": "estimate", "order": "once"},
            ValueError,
            r"mixing_time cannot be estimated: the log holds independent",
        ),
        ({"max_levels": 0}, ValueError, r"max_levels must be between 1 and 1000, got 0"),
        ({"max_levels": 200}, ValueError, r"level 200: psi must be >= 1 and <= 1e\+30, got 8"),
        ({"eps_divisor": 0}, ValueError, r"eps_divisor must be > 0, got 0.0"),
        ({"exit_margin": -1}, ValueError, r"exit_margin must be >= 0, got -1.0"),
        ({"known": ["psi"]}, ValueError, r"known must be one of 'slater', 'mixing_time', got 'psi'"),
        ({"callback": 3}, TypeError, r"callback must be callable, got int"),
        ({"chunk": 0}, ValueError, r"chunk must be between 1 and \d+, got 0"),
    ],
)
@pytest.mark.parametrize("n", [50, 6000])
def test_bad_input_is_named_before_any_step(changes, error, message, n):
    """With data for several levels and, all the same, with data for none; a step would be reported."""
    options = COMMON | BUDGETS | {"T": 500, "rng": 0, "callback": pytest.fail} | changes
    with pytest.raises(error, match=f"^{message}"):
        learn_adaptive(LOG[:n], **options)


def test_other_things_than_data_sets_and_settings_are_refused():
    with pytest.raises(TypeError, match=r"^log must be a Dataset, got list$"):
        learn_adaptive([], **COMMON)
    with pytest.raises(TypeError, match=r"^settings must be a Settings, got dict$"):
        learn_adaptive(LOG, {"gamma": 0.5}, rho0=CMDP_.rho0)
    with pytest.raises(TypeError, match=r"^missing setting 'gamma'$"):
        learn_adaptive(LOG, rho0=CMDP_.rho0)


def test_settings_may_be_given_as_an_object():
    settings = Settings(gamma=0.5, slater=0.3, psi=2, eps=0.2, T=500)
    options = {"rho0": CMDP_.rho0, "rng": 0, "max_levels": 2, "eps_divisor": 1}
    one = learn_adaptive(LOG, settings, **options, **BUDGETS)
    two = learn_adaptive(LOG, **COMMON | {"rng": 0, "max_levels": 2}, psi=2, T=500, **BUDGETS)
    assert [level.psi for level in one.history] == [2, 4]
    same_runs(one, two)


def test_the_time_limit_is_that_of_all_levels_together():
    log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    common = {"gamma": 0.5, "slater": 1, "eps": 0.15, "rho0": [1.0], "rng": 0, "reuse": True, "eps_divisor": 1}
    result = learn_adaptive(log, **common, T=10**12, time_limit=0.2)
    assert (result.status, len(result.history), result.history[0].verdict) == (Status.TIME_LIMIT, 1, None)
    assert 0 < result.n_steps == result.history[0].result.n_steps < 10**12
    with pytest.raises(ValueError, match=r"^time_limit must be >= 0, got -1.0$"):
        learn_adaptive(log, **common, T=10, time_limit=-1)


# ---- Checkpoints ----

LEVELS = {
    "gamma": 0.8,
    "slater": 0.3,
    "eps": 0.6,
    "eps_divisor": 1,
    "T": 3000,
    "max_levels": 3,
    "exit_margin": 0,
    "rho0": np.full(4, 0.25),
}


def levelled(**changes):
    log = random_log(4, 3, 900, 2, seed=1, used_actions=2)
    return log, {**LEVELS, "reuse": True, "rng": 5, **changes}


def all_bits(result):
    """Everything numerical in a result of several levels."""
    levels = [
        (level.psi, level.verdict, level.reward, level.result.n_steps, bits(level.result)) for level in result.history
    ]
    return bits(result), levels, result.status, result.message, result.premises


@pytest.mark.parametrize("stop", [0, 1, 1500, 3000, 4321, 7000, 8999])
@pytest.mark.parametrize("kind", ["reuse", "fresh"])
def test_going_on_from_a_checkpoint_gives_the_same_bits(tmp_path, kind, stop):
    changes = {
        "reuse": {},
        "fresh": {"reuse": False, "n_reference": 100, "n_descent": 100, "n_verification": 100},
    }[kind]
    log, arguments = levelled(**changes)
    whole = learn_adaptive(log, **arguments)
    assert [level.result.n_steps for level in whole.history] == [3000] * 3
    broken_off = learn_adaptive(log, **arguments, checkpoint=tmp_path / "levels", step_limit=stop)
    assert (broken_off.status, sum(level.result.n_steps for level in broken_off.history)) == (Status.STEP_LIMIT, stop)
    assert all_bits(learn_adaptive(log, **arguments, checkpoint=tmp_path / "levels", resume=True)) == all_bits(whole)
    # What is complete is only looked at again.
    assert all_bits(learn_adaptive(log, **arguments, checkpoint=tmp_path / "levels", resume=True)) == all_bits(whole)


def test_a_checkpoint_of_levels_is_not_written_over_and_not_mistaken(tmp_path):
    log, arguments = levelled()
    path = tmp_path / "levels"
    learn_adaptive(log, **arguments, checkpoint=path, step_limit=100)
    with pytest.raises(FileExistsError, match="must be an empty folder, or absent; resume=True resumes one"):
        learn_adaptive(log, **arguments, checkpoint=path)
    for changes, message in (
        ({"psi": 3.0}, "another run: psi = 1.0, not 3.0"),
        ({"rho0": [1, 0, 0, 0]}, "rho0, reference or the part of the log differ"),
    ):
        with pytest.raises(ValueError, match=message):
            learn_adaptive(log, **(arguments | changes), checkpoint=path, resume=True)
    with pytest.raises(ValueError, match="belongs to another log: the fingerprints differ"):
        learn_adaptive(log[:500], **arguments, checkpoint=path, resume=True)
    with pytest.raises(TypeError, match="resume needs checkpoint, the folder to resume from"):
        learn_adaptive(log, **arguments, resume=True)


@pytest.mark.parametrize("name", ["start", "reference", "rngg"])
def test_a_keyword_that_levels_cannot_have_is_refused(name):
    log, arguments = levelled()
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{name}'"):
        learn_adaptive(log, **arguments, **{name: None})


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
def test_a_folder_of_levels_in_use_is_refused(tmp_path):
    log, arguments = levelled(checkpoint=tmp_path / "levels")

    def try_as_well(result):
        with pytest.raises(BlockingIOError, match=r"another run .*is using it"):
            learn_adaptive(log, **arguments, resume=True)

    first = learn_adaptive(log, **arguments, callback=try_as_well, callback_every=1000)
    assert all_bits(learn_adaptive(log, **arguments, resume=True)) == all_bits(first)
