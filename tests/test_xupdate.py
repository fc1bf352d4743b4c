"""The compiled x-update against the 60-digit oracle, and against what any minimiser must satisfy.

The survey draws 10^4 adversarial problems, in parts; a failure names what broke and prints the problems to rebuild. Run
with `-n 0 -s` for the worst figures.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dpdl import _kernels
from xupdate_oracle import CERTIFIED, Problem, Solution, certify, generate, mp, objective, perturbed, solve

FEASIBLE = 1e-12
KKT = 1e-10
OBJECTIVE = 1e-10
DISTANCE = 1e-9
ROUNDING = 1e-12  # relative size of the changes to B1, B2, cap and step that rounding may amount to
PER_COMBINATION = 0.005  # share of the problems, at least

COMBINATIONS = list(itertools.product((1, 2, 3, 4), (False, True)))

reproducible = settings(
    deadline=None,
    derandomize=True,
    max_examples=200,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def update(problem: Problem) -> Any:
    return _kernels.x_update(*problem.arguments)


# The survey -------------------------------------------------------------------------------------------------


@dataclass
class Survey:
    """Worst figures and failures over many problems."""

    count: int
    seen: Counter[tuple[int, bool]] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    tied: int = 0  # flags differ from the oracle's, but rounding of the data decides them
    ill_conditioned: int = 0  # the oracle's own x moves by more than DISTANCE under such rounding

    def record(self, name: str, figure: float, limit: float, problem: Problem) -> None:
        """Keep the largest figure; NaN is a failure."""
        if not figure <= self.worst.get(name, -math.inf):
            self.worst[name] = figure
        if not figure <= limit:
            self.failures.setdefault(name, []).append(f"{figure:.3g}  {problem!r}")

    def report(self) -> str:
        """What failed, with the first problems to rebuild."""
        return "\n".join(
            line
            for name, failures in self.failures.items()
            for line in (f"{len(failures)} of {self.count} problems fail '{name}':", *failures[:5])
        )

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {figure:.2g}" for name, figure in self.worst.items())
        failed = {name: len(failures) for name, failures in self.failures.items()}
        seen = ", ".join(f"{case}{'c' if capped else 'f'} {self.seen[case, capped]}" for case, capped in COMBINATIONS)
        return (
            f"\nx-update, {self.count} problems. Worst: {figures}."
            f"\n  case, capped or free: {seen}; ties {self.tied}, ill-conditioned {self.ill_conditioned}"
            f"\n  failures: {failed or 'none'}"
        )


def examine(problem: Problem, survey: Survey) -> None:
    """Compare one result of the kernel with the oracle."""
    exact = solve(problem)
    survey.seen[exact.case, exact.capped] += 1
    result = update(problem)
    survey.record("code", abs(result.code), 0, problem)
    survey.record("iterations", result.iterations, math.inf, problem)
    if not (np.isfinite(result.log_x).all() and math.isfinite(result.alpha) and math.isfinite(result.beta)):
        survey.record("finite", math.nan, 0, problem)
        return
    log_x = [mp.mpf(value) for value in result.log_x.tolist()]
    x = [mp.exp(value) for value in log_x]
    residuals = certify(problem, log_x, x, result.alpha, result.beta, result.capped)
    survey.record("infeasibility", residuals.infeasibility, FEASIBLE, problem)
    survey.record("stationarity", residuals.stationarity, KKT, problem)
    survey.record("slackness", residuals.slackness, KKT, problem)
    survey.record("negativity", residuals.negativity, 0, problem)

    value, scale = objective(problem, log_x, x)
    survey.record("objective", float(abs(value - exact.objective)) / max(1.0, scale), OBJECTIVE, problem)
    survey.record("distance", _distance_beyond_rounding(problem, exact, x, survey), DISTANCE, problem)

    consistent = result.case == 1 + (result.alpha > 0) + 2 * (result.beta > 0)
    survey.record("case of its own multipliers", float(not consistent), 0, problem)
    survey.record("flags", float(not _flags_agree(problem, exact, result, survey)), 0, problem)


def _distance_beyond_rounding(problem: Problem, exact: Solution, x: list[Any], survey: Survey) -> float:
    """|x - x*|_1 / B1, less what the oracle's own solution moves by when the data move by rounding.

    With n = 2 and both sums tight x solves a 2 x 2 linear system whose condition is c over the spread of c:
    nearly equal c leave x undetermined by data in double precision although its objective is not.
    """
    distance = _distance(x, exact.x, problem.B1)
    survey.record("distance, ill-conditioned included", distance, math.inf, problem)
    if distance <= DISTANCE:
        return distance
    survey.ill_conditioned += 1
    excess = distance
    for other in _neighbours(problem):
        excess = min(excess, max(0.0, distance - _distance(other.x, exact.x, problem.B1)))
        if excess <= DISTANCE:
            break
    return excess


def _flags_agree(problem: Problem, exact: Solution, result: Any, survey: Survey) -> bool:
    """Case and cap are the oracle's, or each of the three labels is that of some problem within rounding.

    Each on its own, because a combination can hold on a sliver that no grid of neighbours hits: with c equal to
    1e-6 the case turns from 2 to 3 while B2 changes by 1e-13, and in between it is 4. That the labels fit
    together is certified by the KKT residuals of the kernel's own multipliers.
    """
    claimed = (result.alpha > 0, result.beta > 0, bool(result.capped))
    differing = [k for k, label in enumerate(_labels(exact)) if label != claimed[k]]
    if not differing:
        return True
    survey.tied += 1
    # Relax a bound that the kernel says does not bind, tighten one that it says does.
    signs = [int(was) - int(now) for was, now in zip(_labels(exact), claimed, strict=True)]
    for other in _neighbours(problem, (signs[0], signs[1], signs[2], 0)):
        differing = [k for k in differing if _labels(other)[k] != claimed[k]]
        if not differing:
            return True
    return False


def _labels(solution: Solution) -> tuple[bool, bool, bool]:
    return bool(solution.alpha > 0), bool(solution.beta > 0), solution.capped


def _neighbours(problem: Problem, first: tuple[int, int, int, int] = (1, 1, 0, 0)) -> Iterator[Solution]:
    """Exact solutions of all problems within rounding, beginning with the one whose signs are given."""
    signs = itertools.product((1, 0, -1), repeat=4)
    nearest = sorted(signs, key=lambda sign: sum(abs(a - b) for a, b in zip(sign, first, strict=True)))
    return (solve(perturbed(problem, ROUNDING, sign)) for sign in nearest)


def _distance(x: list[Any], other: list[Any], bound: float) -> float:
    return float(mp.fsum(abs(a - b) for a, b in zip(x, other, strict=True))) / bound


@pytest.mark.parametrize(
    ("n", "part"),
    [
        pytest.param(n, part, marks=marks)
        for n, parts, marks in ((1_000, 6, ()), (10_000, 10, pytest.mark.slow))
        for part in range(parts)
    ],
)
def test_survey(n: int, part: int) -> None:
    """Well formed, feasible, KKT, objective, distance, case and cap; over problems of every case, capped and not."""
    survey, rng = Survey(n), np.random.default_rng([n, part])
    for _ in range(n):
        examine(generate(rng), survey)
    print(survey)
    assert not survey.failures, survey.report()
    assert sum(survey.seen.values()) == n
    assert all(survey.seen[combination] >= PER_COMBINATION * n for combination in COMBINATIONS), survey.seen
    # The excuses of rounding must stay exceptions; a fifth of the problems start on a bound and hardly leave it.
    assert survey.tied < 0.25 * n
    assert survey.ill_conditioned < 0.01 * n


# log x, c, log cap, j, step, B1 and B2 of problems on which a plausible kernel went wrong.
HARD = {
    "cap beyond the range of doubles": ([-3.0], [247.0], 800.0, 0, 803.0, 27.0, 13.0),
    "capped at a great distance": (
        [-2.1767187029518107, -2.2978736676590072], [1.0, 1.0],
        -1.5433153101470989, 0, 27892.39730019383, 0.2468986832783104, 0.21388531685649895,
    ),
    "capped at a great distance, clustered c": (
        [-4.50211054995099, -4.533434152458022, -4.5506933880288285],
        [14.848710319377872, 14.848710319378222, 14.848710319378595],
        -3.5632027466169527, 1, 21919.588718909523, 0.03239767099267732, 0.4809374326155336,
    ),
    "c beta of 8e5 cancels the step": (
        [-40.44808428647959, -2.2543634467398075], [237.337749729121, 304.80115400855124],
        1.2858530379106625, 1, 791973.0779846252, 0.6450732843122858, 31.98593142574012,
    ),
    "c beta of 2e5 cancels the step from the deep": (
        [-24298.822404913637, -1182.8024171126422], [444903.24766555184, 444903.24766555184],
        13.686325403505126, 0, 257646.69441952097, 878811.2346620264, 0.0030593247939501586,
    ),
    "c beta of 6e5 leaves sum c x short of B2": (
        [-4.919748757641493, -4.693508755404023, 3.565748662930683, -10.786385221599021, -10.061678978668283],
        [1126835.8681365713, 1126565.252934126, 1126565.252934126, 23774753.43352179, 1126565.252934126],
        3.826978391853136, 0, 594532.0138714064, 35.382439486509085, 39861097.21029258,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HARD)
def test_hard_problem(name: str) -> None:
    survey, (log_x, c, *rest) = Survey(1), HARD[name]
    examine(Problem(np.array(log_x), np.array(c), *rest), survey)
    assert not survey.failures


# The oracle itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("beta", [0.0, 0.25])
def test_solution_chosen_beforehand(alpha: float, beta: float, capped: bool) -> None:
    """Pick x, alpha and beta, then build the problem that they solve: y_i = x_i exp(alpha + c_i beta)."""
    x, c, j = np.array([1.0, 0.5, 8.0]), np.array([1.0, 4.0, 2.0]), 2
    exponent = alpha + c * beta
    log_x = np.log(x) + exponent
    log_x[j] = -3.0
    step = math.log(x[j]) + 3.0 + exponent[j] + (2.0 if capped else 0.0)
    log_cap = math.log(x[j]) if capped else 4.0
    B1, B2 = x.sum() if alpha else 50.0, c @ x if beta else 100.0
    problem = Problem(log_x, c, log_cap, j, step, float(B1), float(B2))
    exact, result = solve(problem), update(problem)
    for log_found in ([float(value) for value in exact.log_x], result.log_x):
        np.testing.assert_allclose(np.exp(log_found), x, rtol=1e-13)
    for found in (exact, result):
        assert (found.case, found.capped) == (1 + (alpha > 0) + 2 * (beta > 0), capped)
        assert float(found.alpha) == pytest.approx(alpha, abs=1e-13)
        assert float(found.beta) == pytest.approx(beta, abs=1e-13)


above = st.floats(0, 20)


@given(st.floats(-5000, 3), st.floats(0, 10), st.floats(-1e6, 1e6), above, above, above)
@reproducible
def test_one_coordinate(
    log_y: float, exponent: float, step: float, cap_above: float, slack1: float, slack2: float
) -> None:
    """With n = 1 the answer is min(cap, B1, B2/c, y exp(step))."""
    c = 10.0**exponent
    log_cap, B1, B2 = (
        log_y + cap_above,
        math.exp(max(log_y + slack1, -7.0)),
        c * math.exp(max(log_y + slack2, -7.0)),
    )
    problem = Problem(np.array([log_y]), np.array([c]), log_cap, 0, step, B1, B2)
    expected = min(log_cap, math.log(B1), math.log(B2) - math.log(c), log_y + step)
    tolerance = 1e-14 * max(1.0, abs(expected), abs(log_y), abs(math.log(B2)))
    assert float(solve(problem).log_x[0]) == pytest.approx(expected, abs=tolerance)
    assert update(problem).log_x[0] == pytest.approx(expected, abs=10 * tolerance)


def test_certificate_rejects_wrong_points() -> None:
    """Each condition has to be able to fail, or the certificate would certify nothing."""
    problem = Problem(np.log([1.0, 0.5, 0.1]), np.array([1.0, 4.0, 2.0]), 4.0, 2, 3.0, 2.0, 4.0)
    exact = solve(problem)
    assert exact.case == 4

    def residuals(shift: float, alpha: float, beta: float, capped: bool = False) -> Any:
        log_x = [value + shift for value in exact.log_x]
        x = [mp.exp(value) for value in log_x]
        return certify(problem, log_x, x, exact.alpha + alpha, exact.beta + beta, capped)

    good = residuals(0, 0, 0)
    assert max(good.infeasibility, good.kkt) < CERTIFIED
    assert residuals(1e-9, 0, 0).infeasibility > 0.9e-9
    assert residuals(-1e-9, 0, 0).slackness > 1e-10
    assert residuals(0, 1e-9, 0).stationarity > 1e-10
    assert residuals(0, 0, 1e-9).stationarity > 1e-10
    assert residuals(0, -1, 0).negativity > 0.1
    assert residuals(0, 0, 0, capped=True).stationarity > 0.1


# Invariants -------------------------------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn, min_size: int = 1, min_slack: float = 0.0) -> Problem:
    """Moderate problems with c that are equal or apart, so that x is well determined by the data."""
    n = draw(st.integers(min_size, 6))
    log_x = np.array(draw(st.lists(st.floats(-30, 3), min_size=n, max_size=n))) + 0.0  # no -0.0
    c = 10.0 ** (np.array(draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))) / 4)
    j = draw(st.integers(0, n - 1))
    B1 = math.fsum(np.exp(log_x)) * (1 + draw(st.floats(min_slack, 3)))
    B2 = math.fsum(c * np.exp(log_x)) * (1 + draw(st.floats(min_slack, 3)))
    log_cap = float(log_x[j]) + draw(st.floats(0, 20))
    return Problem(log_x, c, log_cap, j, draw(st.floats(-100, 100)), B1, B2)


adversarial = st.integers(0, 2**32 - 1).map(lambda seed: generate(np.random.default_rng(seed)))


@given(st.one_of(problems(), adversarial))
@reproducible
def test_feasible_and_only_the_sampled_coordinate_grows(problem: Problem) -> None:
    result = update(problem)
    x = np.exp(result.log_x)
    assert result.code == 0
    assert np.isfinite(result.log_x).all()
    assert math.fsum(x) <= problem.B1 * (1 + FEASIBLE)
    assert math.fsum(problem.c * x) <= problem.B2 * (1 + FEASIBLE)
    assert result.log_x[problem.j] <= problem.log_cap + FEASIBLE
    others = np.arange(x.size) != problem.j
    assert (result.log_x[others] <= problem.log_x[others]).all()


@given(st.one_of(problems(), adversarial))
@reproducible
def test_inputs_are_left_alone_and_the_answer_is_repeatable(problem: Problem) -> None:
    log_x, c = problem.log_x.copy(), problem.c.copy()
    problem.log_x.flags.writeable = problem.c.flags.writeable = False
    first, second = update(problem), update(problem)
    assert first.log_x is not problem.log_x
    assert problem.log_x.tobytes() == log_x.tobytes()
    assert problem.c.tobytes() == c.tobytes()
    assert first.log_x.tobytes() == second.log_x.tobytes()
    assert (first.alpha, first.beta) == (second.alpha, second.beta)
    assert (first.case, first.capped) == (second.case, second.capped)


@given(problems(min_slack=1e-6))
@reproducible
def test_zero_step_inside_returns_the_same_bits(problem: Problem) -> None:
    result = update(replace(problem, step=0.0))
    assert result.log_x.tobytes() == problem.log_x.tobytes()
    assert (result.case, result.alpha, result.beta) == (1, 0.0, 0.0)


@given(problems(), st.lists(st.floats(-100, 100), min_size=2, max_size=6))
@reproducible
def test_sampled_coordinate_is_monotone_in_the_step(problem: Problem, steps: list[float]) -> None:
    x_j = [math.exp(update(replace(problem, step=step)).log_x[problem.j]) for step in sorted(steps)]
    assert (np.diff(x_j) >= -1e-13 * problem.B1).all()


@given(problems(min_size=2), st.randoms(use_true_random=False))
@reproducible
def test_order_of_coordinates_does_not_matter(problem: Problem, random: Any) -> None:
    order = np.array(random.sample(range(problem.c.size), problem.c.size))
    shuffled = replace(
        problem, log_x=problem.log_x[order], c=problem.c[order], j=int(np.flatnonzero(order == problem.j)[0])
    )
    result, other = update(problem), update(shuffled)
    expected = np.exp(result.log_x)[order]
    np.testing.assert_allclose(np.exp(other.log_x), expected, rtol=0, atol=1e-12 * problem.B1)


@given(problems(min_size=2, min_slack=1e-3), st.floats(-20, 20))
@reproducible
def test_common_factor_scales_x_and_keeps_the_multipliers(problem: Problem, log_factor: float) -> None:
    factor = math.exp(log_factor)
    scaled = replace(
        problem,
        log_x=problem.log_x + log_factor,
        log_cap=problem.log_cap + log_factor,
        B1=problem.B1 * factor,
        B2=problem.B2 * factor,
    )
    result, other = update(problem), update(scaled)
    x = np.exp(result.log_x)
    np.testing.assert_allclose(np.exp(other.log_x - log_factor), x, rtol=0, atol=1e-12 * problem.B1)
    assume(_multipliers_are_determined(problem))
    assert other.case == result.case
    assert other.alpha == pytest.approx(result.alpha, rel=1e-9, abs=1e-9)
    assert other.beta == pytest.approx(result.beta, rel=1e-9, abs=1e-9 / problem.c.max())


def _multipliers_are_determined(problem: Problem) -> bool:
    """The c differ, and j at its cap leaves room for the others or none at all in either sum."""
    cap, c_j = math.exp(problem.log_cap), float(problem.c[problem.j])
    clear = abs(cap / problem.B1 - 1) > 1e-3 and abs(c_j * cap / problem.B2 - 1) > 1e-3
    return clear and bool(np.ptp(problem.c) > 0)


@given(problems(min_size=2), st.floats(0.01, 0.99))
@reproducible
def test_coordinates_with_equal_c_lump(problem: Problem, share: float) -> None:
    """Splitting a coordinate other than j splits its mass: why all unseen pairs can be one coordinate."""
    i = (problem.j + 1) % problem.c.size
    parts = problem.log_x[i] + np.log([share, 1 - share])
    split = replace(
        problem,
        log_x=np.append(np.delete(problem.log_x, i), parts),
        c=np.append(np.delete(problem.c, i), problem.c[[i, i]]),
        j=problem.j - (problem.j > i),
    )
    whole, halves = np.exp(update(problem).log_x), np.exp(update(split).log_x)
    lumped = np.insert(halves[:-2], i, halves[-2:].sum())
    np.testing.assert_allclose(lumped, whole, rtol=0, atol=1e-12 * problem.B1)
    np.testing.assert_allclose(halves[-2] * (1 - share), halves[-1] * share, rtol=1e-12)


@given(problems(), st.integers(0, 2**32 - 1))
@reproducible
def test_no_feasible_point_nearby_is_better(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    result = update(problem)
    minimum, scale = _float_objective(problem, result.log_x)
    for size in 10.0 ** np.arange(-6, 2):
        log_x = result.log_x + size * rng.normal(size=problem.c.size)
        log_x[problem.j] = min(log_x[problem.j], problem.log_cap)
        x = np.exp(log_x)
        log_x -= math.log(max(1.0, math.fsum(x) / problem.B1, math.fsum(problem.c * x) / problem.B2))
        assert _float_objective(problem, log_x)[0] >= minimum - 1e-11 * scale


def _float_objective(problem: Problem, log_x: np.ndarray) -> tuple[float, float]:
    x = np.exp(log_x)
    gain = problem.step * x[problem.j]
    terms = np.concatenate([x * (log_x - problem.log_x), -x, np.exp(problem.log_x), [-gain]])
    return math.fsum(terms), max(1.0, math.fsum(np.abs(terms)))
