"""The constants against values worked by hand, their inverses, and what a run may claim."""

import math
from dataclasses import replace
from functools import partial

import pytest

from dpdl import theory
from dpdl.theory import Problem

#: N = min(3 + 1, 6) = 4, slater^2 (1-gamma)^4 = (1/4)(1/16) = 1/64, so N psi/(slater^2 (1-gamma)^4) = 256.
SMALL = Problem(n_states=3, n_actions=2, n_utilities=1, gamma=0.5, slater=0.5, psi=1)
#: N = min(20 + 8, 60) = 28, slater^2 (1-gamma)^4 = 0.04 * 1e-4 = 4e-6.
LARGE = Problem(n_states=20, n_actions=3, n_utilities=8, gamma=0.9, slater=0.2, psi=4)
NO_UTILITY = Problem(n_states=3, n_actions=2, n_utilities=0, gamma=0.5, slater=0.5, psi=1)
ONE_PAIR = Problem(n_states=1, n_actions=1, n_utilities=1, gamma=0.5, slater=1, psi=1)
PROBLEMS = [SMALL, LARGE, NO_UTILITY, ONE_PAIR]


# ---- Sets and steps ----


def test_sparsity_is_the_lesser_of_two_counts():
    assert theory.sparsity(10, 4, 2) == 12  # 10 + 2 < 40
    assert theory.sparsity(10, 1, 2) == 10  # 10 < 12
    assert theory.sparsity(10, 4, 0) == 10
    assert LARGE.sparsity == 28
    assert LARGE.n_pairs == 60


def test_radii_and_bounds():
    assert theory.radius_V(0.9, 0.2) == pytest.approx(880)  # 80 (1 + 10)
    assert theory.radius_lam(0.2) == pytest.approx(40)
    assert theory.sum_bound(0.9) == pytest.approx(40)
    assert theory.weight_bound(20, 3, 8, 0.9, 4) == pytest.approx(1120)  # 28 * 4/0.1


def test_step_size():
    assert theory.step_size(1) == 1
    assert theory.step_size(10**20) == pytest.approx(1e-10)
    assert theory.step_size(400, mixing_time=25) == pytest.approx(0.01)


def test_scales_on_the_large_problem():
    assert theory.scale_V(LARGE) == pytest.approx(0.2 * math.sqrt(0.2))
    assert theory.scale_lam(LARGE) == pytest.approx(10 * math.sqrt(4 / (3 * math.log(2))))
    assert theory.scale_x(LARGE) == pytest.approx(math.sqrt(28 * 4 / (2 * math.log(2))) / 0.02)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_logarithms_that_vanish_count_as_one(problem):
    if problem.n_utilities <= 1:
        assert theory.scale_lam(problem) == math.sqrt(problem.psi) / (1 - problem.gamma)
    if problem.psi == 1:
        expected = math.sqrt(problem.sparsity) / (problem.slater * (1 - problem.gamma))
        assert theory.scale_x(problem) == pytest.approx(expected)


def test_conservatism_and_range():
    assert theory.conservatism(LARGE, 0.3) == pytest.approx(0.3)  # 5 * 0.2 * 0.3
    assert theory.largest_eps(LARGE) == pytest.approx(1)


def test_floor_and_accuracy():
    assert theory.reference_accuracy(0.3) == pytest.approx(0.003)
    # 0.2 * 0.01 * 0.003/(2 * 28 * 4) = 6e-6/224
    assert theory.reference_floor(LARGE, 0.3) == pytest.approx(6e-6 / 224)


def test_step_condition_takes_the_lesser_half():
    # M_lam = 8/0.1 = 80; M_x = 64/(0.2 * 0.1 * floor) = 3200/floor
    assert theory.gradient_bound_lam(LARGE) == pytest.approx(80)
    assert theory.gradient_bound_x(LARGE, 1e-3) == pytest.approx(3.2e6)
    assert theory.largest_step(LARGE, 1e-3, alpha_lam=8, alpha_x=32) == pytest.approx(5e-6)
    assert theory.largest_step(LARGE, 1e-3, alpha_lam=8e-6, alpha_x=32) == pytest.approx(5e-8)
    own = theory.largest_step(LARGE, 1e-3, theory.scale_lam(LARGE), theory.scale_x(LARGE))
    assert theory.largest_step(LARGE, 1e-3) == own


@pytest.mark.parametrize("problem", PROBLEMS)
def test_condition_steps_is_where_the_condition_begins(problem):
    eps = theory.largest_eps(problem)
    n_steps = theory.condition_steps(problem, eps)
    limit = theory.largest_step(problem, theory.reference_floor(problem, eps))
    assert theory.step_size(n_steps) <= limit * (1 + 1e-12)
    assert theory.step_size(round(n_steps * 0.999)) > limit


# ---- Budgets and their inverses ----


def test_budgets_on_the_small_problem():
    # eps = 1/8: N_e = 512 * 256 * 100^2 * 64 log(6 * 6/0.1),  T = 256 * 64 log(6/0.1)
    assert theory.reference_samples(SMALL, 1 / 8, 0.1) == math.ceil(83_886_080_000 * math.log(360))
    assert theory.descent_steps(SMALL, 1 / 8, 0.1) == math.ceil(16_384 * math.log(60)) == 67_082
    # N_v = 64 * 3 * 64 * 10^2 * 64 * 4 log(40 * 3/0.1), 25600^2 * 256 * 64
    assert theory.verification_samples(SMALL, 1 / 8, 0.1) == math.ceil(314_572_800 * math.log(1200))
    assert theory.condition_steps(SMALL, 1 / 8) == 25600**2 * 16_384


def test_budgets_on_the_large_problem():
    rate = 28 * 4 / 4e-6  # 2.8e7
    assert theory.descent_steps(LARGE, 0.5, 0.05) == pytest.approx(rate * math.log(4 * 480 / 0.05) * 4, rel=1e-8)
    assert theory.descent_steps(LARGE, 0.5, 0.05, c_o=3) == pytest.approx(
        3 * theory.descent_steps(LARGE, 0.5, 0.05), rel=1e-8
    )
    expected = 512 * rate * math.log(360 / 0.05) / 0.005**2
    assert theory.reference_samples(LARGE, 0.5, 0.05) == pytest.approx(expected)
    expected = 64 * 20 * 4 * 4 * math.log(40 * 160 / 0.05) / (4e-6 * 0.05**2)
    assert theory.verification_samples(LARGE, 0.5, 0.05) == pytest.approx(expected)


def test_no_utilities_count_as_one_inside_logarithms():
    one = replace(NO_UTILITY, n_states=3, n_utilities=1)
    ratio = NO_UTILITY.sparsity / one.sparsity
    assert theory.descent_steps(NO_UTILITY, 1e-3, 0.1) == pytest.approx(ratio * theory.descent_steps(one, 1e-3, 0.1))
    assert theory.verification_samples(NO_UTILITY, 0.1, 0.1) == theory.verification_samples(one, 0.1, 0.1)


def test_budgets_are_exact_integers_however_large():
    budget = theory.reference_samples(replace(LARGE, gamma=0.999, psi=1e6), 1e-3, 1e-6)
    assert isinstance(budget, int)
    assert 1e30 < budget < 1e40


@pytest.mark.parametrize("budget", [theory.descent_steps, theory.reference_samples, theory.verification_samples])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_budgets_grow_with_accuracy_confidence_and_psi(budget, problem):
    base = budget(problem, 0.1, 0.1)
    assert budget(problem, 0.05, 0.1) == pytest.approx(4 * base, rel=2 / base)
    assert budget(problem, 0.1, 0.05) > base
    assert budget(replace(problem, psi=2 * problem.psi), 0.1, 0.1) > base
    assert budget(replace(problem, slater=problem.slater / 2), 0.1, 0.1) > base


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("eps", [3e-7, 0.0123, 0.1])
def test_eps_to_budget_and_back(problem, eps):
    count = theory.descent_steps(problem, eps, 0.1)
    back = theory.eps_from_steps(problem, count, 0.1)
    # The budget was rounded up by less than one sample: eps comes back lower by at most 1/count of itself.
    assert eps * (1 - 1 / count) * (1 - 1e-12) <= back <= eps * (1 + 1e-12)
    assert theory.descent_steps(problem, back, 0.1) <= count


@pytest.mark.parametrize("count", [1, 2, 7, 1000, 123_457, 10**12 + 1, 10**20 + 1, 10**40])
def test_what_a_budget_buys_it_pays_for(count):
    eps = theory.eps_from_steps(LARGE, count, 0.1)
    assert theory.descent_steps(LARGE, eps, 0.1) <= count
    assert theory.descent_steps(LARGE, eps * (1 - 1e-6), 0.1) >= count


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("n", [2, 3, 10, 1000, 10**9 + 7, 10**20])
@pytest.mark.parametrize("c_o", [1.0, 1e12])
def test_data_pays_for_reference_and_steps(problem, n, c_o):
    eps = theory.eps_from_data(problem, n, 0.1, c_o)

    def total(eps):
        steps = max(theory.descent_steps(problem, eps, 0.1, c_o), theory.condition_steps(problem, eps))
        return theory.reference_samples(problem, eps, 0.1) + steps

    assert total(eps) <= n
    if n >= 1000:
        assert total(eps * (1 - 2 / n - 1e-12)) >= n - 2


def test_few_samples_buy_an_eps_out_of_range():
    assert theory.eps_from_data(LARGE, 1000, 0.1) > theory.largest_eps(LARGE)


def test_a_budget_beyond_a_double_is_an_error():
    with pytest.raises(ValueError, match=r"budget at eps = 1e-200 is beyond the range"):
        theory.descent_steps(SMALL, 1e-200, 0.1)
    with pytest.raises(ValueError, match=r"beyond the range"):
        theory.reference_samples(replace(SMALL, slater=1e-320), 0.1, 0.1)
    with pytest.raises(ValueError, match=r"beyond the range"):
        theory.async_descent_steps(SMALL, 1e-152, 0.1, mixing_time=1)


# ---- Verification and the adaptive method ----


def test_thresholds_of_verify():
    assert theory.flow_threshold(LARGE, 0.5) == pytest.approx(0.015)  # 1.5 * 0.2 * 0.1 * 0.5
    assert theory.utility_threshold(LARGE, 0.5) == pytest.approx(0.3)


def test_levels_of_the_adaptive_method_share_delta():
    assert theory.adaptive_delta(0.1, 2) == pytest.approx(0.15 / math.pi**2)
    # The tail of sum 1/K^2 after n terms is between 1/(n+1) and 1/n.
    total = sum(theory.adaptive_delta(0.1, level) for level in range(1, 2001))
    assert 0.1 * (1 - 6 / (math.pi**2 * 2000)) <= total < 0.1
    assert (theory.ADAPTIVE_EPS_DIVISOR, theory.EXIT_MARGIN) == (15, 500)


# ---- Markovian data ----


def test_async_reference_has_the_constant_of_its_proof():
    """l = 100 t_mix log(12 S A/delta) in place of 4 log(6 S A/delta): Problem(6, 2, 1, .8, .5, 2) asks for 3.57e16."""
    problem = theory.Problem(6, 2, 1, 0.8, 0.5, 2)
    needed = 128 * 7 * 2 * 100 * 10 * math.log(12 * 12 / 0.05) / (0.5**2 * 0.2**4 * (0.1 / 100) ** 2)
    assert theory.async_reference_samples(problem, 0.1, 0.05, 10) == pytest.approx(needed)
    assert needed == pytest.approx(3.57e16, rel=1e-3)


def test_short_steps_have_a_budget_of_their_own():
    """The remark that ends appendix H.2: t_mix^2/t instead of t_mix^2, which is t for the bound t itself."""
    usual = theory.async_descent_steps(SMALL, 0.1, 0.1, 100)
    short = theory.async_descent_steps(SMALL, 0.1, 0.1, 100, short_steps=True)
    assert short == theory.async_descent_steps(SMALL, 0.1, 0.1, 10)
    assert short < usual


def test_async_reference_is_the_synchronous_one_times_mixing_time():
    expected = 3 * 7 * 83_886_080_000 * math.log(360)
    assert theory.async_reference_samples(SMALL, 1 / 8, 0.1, mixing_time=7, c_e=3) == pytest.approx(expected)


def _enough_steps(problem, n_steps, eps, delta, mixing_time, c_o):
    unit = problem.slater * (1 - problem.gamma) ** 2 * eps
    iota = math.log(n_steps * problem.n_pairs * max(problem.n_utilities, 1) / delta)
    return n_steps >= c_o * mixing_time**2 * problem.sparsity * problem.psi * iota**3 / unit**2


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("eps", [0.01, 0.1, 30.0])
@pytest.mark.parametrize("mixing_time", [1, 1.5, 40])
@pytest.mark.parametrize("c_o", [1.0, 1e-3])
def test_async_steps_are_the_least_that_suffice(problem, eps, mixing_time, c_o):
    delta = 0.3
    n_steps = theory.async_descent_steps(problem, eps, delta, mixing_time, c_o)
    assert isinstance(n_steps, int)
    # Rounding in iota^3/unit^2 may move the boundary by a few parts in 1e16.
    slack = max(0, round(n_steps * 1e-14))
    for more in (n_steps + slack, n_steps + slack + 1, 2 * n_steps + slack, 1000 * n_steps):
        assert _enough_steps(problem, more, eps, delta, mixing_time, c_o)
    if n_steps > 1 + slack:
        assert not _enough_steps(problem, n_steps - 1 - slack, eps, delta, mixing_time, c_o)


@pytest.mark.parametrize("factor", [1e-6, 0.05, 0.6, 0.669, 0.67, 0.671, 0.7, 0.8, 1, 3, 8])
def test_async_steps_where_the_condition_turns_true_false_true(factor):
    # One pair, slater = 1, gamma = 1/2, eps = 4: T >= factor log(T/delta)^3. With delta = 0.9 the right side
    # starts near zero, so T = 1 satisfies a condition that larger T break once factor > 0.9 e^3/27 = 0.6695.
    delta = 0.9
    n_steps = theory.async_descent_steps(ONE_PAIR, 4.0, delta, 1, c_o=factor)
    holds = [t >= factor * math.log(t / delta) ** 3 for t in range(1, 20_000)]
    failures = [t for t, ok in enumerate(holds, start=1) if not ok]
    assert n_steps == (failures[-1] + 1 if failures else 1)


def test_async_steps_can_be_astronomical():
    n_steps = theory.async_descent_steps(replace(LARGE, gamma=0.999, psi=1e6), 1e-3, 1e-6, mixing_time=1e5)
    assert isinstance(n_steps, int)
    assert 1e35 < n_steps < 1e50


# ---- Errors ----

OF_EPS = (
    theory.conservatism,
    theory.reference_floor,
    theory.condition_steps,
    theory.flow_threshold,
    theory.utility_threshold,
)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("n_states", 0, ValueError, "n_states must be between 1"),
        ("n_states", 2.5, ValueError, "n_states must be a whole number"),
        ("n_actions", 0, ValueError, "n_actions must be between 1"),
        ("n_actions", "2", TypeError, "n_actions must be a whole number"),
        ("n_utilities", -1, ValueError, "n_utilities must be between 0"),
        ("gamma", 0, ValueError, "gamma must be > 0 and < 1"),
        ("gamma", 1, ValueError, "gamma must be > 0 and < 1"),
        ("gamma", math.nan, ValueError, "gamma must be finite"),
        ("slater", 0, ValueError, "slater must be > 0 and <= 1"),
        ("slater", 1.01, ValueError, "slater must be > 0 and <= 1"),
        ("psi", 0.99, ValueError, "psi must be >= 1"),
        ("psi", math.inf, ValueError, "psi must be finite"),
        ("psi", True, TypeError, "psi must be a real number"),
    ],
)
def test_bad_problems(name, value, error, message):
    with pytest.raises(error, match=message):
        replace(SMALL, **{name: value})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.sparsity(0, 1, 1), "n_states"),
        (lambda: theory.sparsity(1, 0, 1), "n_actions"),
        (lambda: theory.sparsity(1, 1, -1), "n_utilities"),
        (lambda: theory.radius_V(1.0, 0.5), "gamma"),
        (lambda: theory.radius_V(0.5, 0.0), "slater"),
        (lambda: theory.radius_lam(2.0), "slater"),
        (lambda: theory.sum_bound(-0.1), "gamma"),
        (lambda: theory.weight_bound(1, 1, 1, 0.5, 0.5), "psi"),
        (lambda: theory.step_size(0), "n_steps"),
        (lambda: theory.step_size(10, mixing_time=0.5), "mixing_time"),
        (lambda: theory.reference_accuracy(-1.0), "eps"),
        *[(partial(function, SMALL, 0.0), "eps") for function in OF_EPS],
        (lambda: theory.eps_from_steps(SMALL, 0, 0.1), "n_steps"),
        (lambda: theory.reference_samples(SMALL, 0.0, 0.1), "eps"),
        (lambda: theory.reference_samples(SMALL, 0.1, 0.0), "delta"),
        (lambda: theory.descent_steps(SMALL, 0.1, 1.0), "delta"),
        (lambda: theory.descent_steps(SMALL, 0.1, 0.1, c_o=0.0), "c_o"),
        (lambda: theory.verification_samples(SMALL, 0.1, 2.0), "delta"),
        (lambda: theory.gradient_bound_x(SMALL, 0.0), "floor"),
        (lambda: theory.largest_step(SMALL, 0.1, alpha_lam=0.0), "alpha_lam"),
        (lambda: theory.largest_step(SMALL, 0.1, alpha_x=-1.0), "alpha_x"),
        (lambda: theory.eps_from_data(SMALL, 1, 0.1), "n_samples"),
        (lambda: theory.adaptive_delta(0.1, 0), "level"),
        (lambda: theory.adaptive_delta(1.0, 1), "delta"),
        (lambda: theory.async_reference_samples(SMALL, 0.1, 0.1, 0.0), "mixing_time"),
        (lambda: theory.async_reference_samples(SMALL, 0.1, 0.1, 1.0, c_e=0.0), "c_e"),
        (lambda: theory.async_descent_steps(SMALL, 0.1, 0.1, 0.9), "mixing_time"),
        (lambda: theory.async_descent_steps(SMALL, 0.1, 0.1, 1.0, c_o=-1.0), "c_o"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{message} must be"):
        call()
