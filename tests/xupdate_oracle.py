"""High-precision oracle of the x-update (appendix A.3 of the paper) and a generator of adversarial problems.

The problem, with y = exp(log_x), KL(x || y) = sum x log(x/y) - x + y and a gradient at coordinate j only:

    minimise  -step x_j + KL(x || y)   subject to   x >= 0,  x_j <= cap,  sum x <= B1,  sum c x <= B2.

It is strictly convex with linear constraints, so a point that meets the KKT conditions *is* the minimiser.
That is what makes the oracle independent of the kernel: however the point was found, `certify` evaluates
every KKT residual from the definition, at 60 digits, and `solve` refuses to return one above 1e-40.

The search is the partially maximised dual rather than the paper's four cases. For a given beta the best alpha
is in closed form (zero, or the number that makes sum x = B1, with the cap inside a min). What remains,
beta -> sum c x - B2, is the derivative of a concave function and hence nonincreasing. Its root lies in
[0, the beta at which every c_i x_i is below B2/n] and is found by Newton under that bracket: first in float64
logarithms for a guess, then in multiple precision from the whole bracket anew. Which "case" it was is read
off the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np

DIGITS = 60
CERTIFIED = 1e-40
_MAX_STEP = 1e6

_GUARDED = DIGITS + 15  # guard digits: c beta reaches 1e6 and more, and clustered c lose as much again

Number = Any  # an mpfr or mpf, or a float where that is exact


def unbounded() -> Any:
    """mpmath, whose exponents have no limit: MPFR's exp of 1e12 is infinite."""
    mp = mpmath.MPContext()
    mp.dps = _GUARDED
    return mp


def _arithmetic() -> Any:
    """gmpy2, which does all of it in C, if it is installed, else mpmath; the same digits either way."""
    try:
        import gmpy2
    except ImportError:
        return unbounded()
    # Python's own numbers in a gmpy2 expression are exact; only results are rounded, to the context's precision.
    gmpy2.set_context(gmpy2.context(precision=math.ceil(_GUARDED * math.log2(10))))
    return SimpleNamespace(
        mpf=gmpy2.mpfr,
        exp=gmpy2.exp,
        log=gmpy2.log,
        fsum=lambda terms: gmpy2.fsum(list(terms)),
        zero=gmpy2.mpfr(0),
        one=gmpy2.mpfr(1),
    )


mp = _arithmetic()


@dataclass(frozen=True)
class Problem:
    """One subproblem, in the argument order of the kernel, and the recipe that made it.

    Its numbers are doubles, or mpf in arrays of objects.
    """

    log_x: np.ndarray
    c: np.ndarray
    log_cap: float
    j: int
    step: float
    B1: float
    B2: float
    kind: str = ""

    @property
    def arguments(self) -> tuple[np.ndarray, np.ndarray, float, int, float, float, float]:
        return self.log_x, self.c, self.log_cap, self.j, self.step, self.B1, self.B2

    def __repr__(self) -> str:
        """Python source that rebuilds the problem bit for bit."""
        log_x, c = self.log_x.tolist(), self.c.tolist()
        scalars = f"{self.log_cap!r}, {self.j}, {self.step!r}, {self.B1!r}, {self.B2!r}, {self.kind!r}"
        return f"Problem(np.array({log_x!r}), np.array({c!r}), {scalars})"


@dataclass(frozen=True)
class Solution:
    """Minimiser, multipliers and minimum, as mpf."""

    log_x: list[Number]
    x: list[Number]
    alpha: Number
    beta: Number
    capped: bool
    objective: Number

    @property
    def case(self) -> int:
        return 1 + (self.alpha > 0) + 2 * (self.beta > 0)


@dataclass(frozen=True)
class Residuals:
    """Distance of a point from the KKT conditions; every field is dimensionless and zero at the solution."""

    infeasibility: float  # relative excess of sum x over B1, of sum c x over B2, of x_j over its cap
    stationarity: float  # in logarithms, relative to the largest number that enters the coordinate's equation
    slackness: float  # relative slack of a constraint weighted by min(1, multiplier): alpha, or max(c) beta
    negativity: float  # of the multipliers: alpha and max(c) beta

    @property
    def kkt(self) -> float:
        return max(self.stationarity, self.slackness, self.negativity)


def certify(
    problem: Problem, log_x: Sequence[Number], x: Sequence[Number], alpha: Number, beta: Number, capped: bool
) -> Residuals:
    """Evaluate the KKT conditions of a claimed solution, x = exp(log_x), from their definition."""
    alpha, beta = mp.mpf(alpha), mp.mpf(beta)
    c = [mp.mpf(value) for value in problem.c.tolist()]
    sum_excess = mp.fsum(x) / mp.mpf(problem.B1) - 1
    weighted_excess = mp.fsum(c_i * x_i for c_i, x_i in zip(c, x, strict=True)) / mp.mpf(problem.B2) - 1
    log_cap_excess = mp.mpf(log_x[problem.j]) - mp.mpf(problem.log_cap)
    stationarity = mp.zero
    for i, log_y in enumerate(problem.log_x.tolist()):
        gradient = mp.mpf(log_x[i]) - mp.mpf(log_y) + alpha + c[i] * beta
        scale = max(1, abs(log_y), alpha, c[i] * beta)
        if i == problem.j:
            gradient -= mp.mpf(problem.step)
            scale = max(scale, abs(problem.step))
            gradient = max(gradient, abs(log_cap_excess)) if capped else gradient
        stationarity = max(stationarity, abs(gradient) / scale)
    scaled_beta = max(c) * beta
    return Residuals(
        infeasibility=float(max(sum_excess, weighted_excess, log_cap_excess, 0)),
        stationarity=float(stationarity),
        slackness=float(max(abs(sum_excess) * min(1, alpha), abs(weighted_excess) * min(1, scaled_beta))),
        negativity=float(max(-alpha, -scaled_beta, 0)),
    )


def objective(problem: Problem, log_x: Sequence[Number], x: Sequence[Number]) -> tuple[Number, float]:
    """-step x_j + KL(x || y), and the sum of the absolute values of its terms (the scale of its rounding)."""
    value = -mp.mpf(problem.step) * x[problem.j]
    scale = abs(value)
    for log_x_i, x_i, log_y_i in zip(log_x, x, problem.log_x.tolist(), strict=True):
        y_i = mp.exp(log_y_i)
        divergence = x_i * (log_x_i - mp.mpf(log_y_i))
        value += divergence - x_i + y_i
        scale += abs(divergence) + x_i + y_i
    return value, float(scale)


def solve(problem: Problem) -> Solution:
    """Minimise at 60 digits; raises ArithmeticError when the KKT conditions do not hold to 1e-40."""
    dual = _Dual(problem)
    point = dual(mp.zero)
    beta = mp.zero
    if point.ratio > 1:
        upper = max(
            (log_y + mp.log(len(dual.c) * c) - mp.log(dual.B2)) / c for log_y, c in zip(dual.log_y, dual.c, strict=True)
        )
        beta, point = _root(dual, upper, mp.mpf(10) ** -(DIGITS - 10))
    alpha = mp.log(point.shrink) if point.shrink > 1 else mp.zero
    log_x = [log_y - alpha - c * beta for log_y, c in zip(dual.log_y, dual.c, strict=True)]
    if point.capped:
        log_x[problem.j] = mp.mpf(problem.log_cap)
    worst = certify(problem, log_x, point.x, alpha, beta, point.capped)
    if not max(worst.infeasibility, worst.kkt) < CERTIFIED:
        raise ArithmeticError(f"the oracle is not certified: {worst} for {problem!r}")
    return Solution(log_x, point.x, alpha, beta, point.capped, objective(problem, log_x, point.x)[0])


def perturbed(problem: Problem, size: float, signs: Sequence[int]) -> Problem:
    """Move B1, B2, cap and step by `size`, each relative to itself (logarithms: to max(1, |.|))."""
    sum_sign, weighted_sign, cap_sign, step_sign = (size * sign for sign in signs)
    log_scale = max(1.0, abs(problem.log_cap), abs(float(problem.log_x[problem.j])), abs(problem.step))
    return replace(
        problem,
        B1=problem.B1 * (1 + sum_sign),
        B2=problem.B2 * (1 + weighted_sign),
        log_cap=problem.log_cap + cap_sign * max(1.0, abs(problem.log_cap)),
        step=problem.step + step_sign * log_scale,
    )


@dataclass(frozen=True)
class _Point:
    """The minimiser of the Lagrangian over x for one beta, alpha already maximised out."""

    x: list[Number]
    shrink: Number  # exp(alpha)
    capped: bool
    ratio: Number  # sum c x / B2
    slope: Number  # d ratio / d beta, from the side of the current pieces


class _Dual:
    """beta -> sum c x / B2 in multiple precision."""

    def __init__(self, problem: Problem) -> None:
        self.j = problem.j
        self.c = [mp.mpf(value) for value in problem.c.tolist()]
        self.log_y = [mp.mpf(value) for value in problem.log_x.tolist()]
        self.log_y[self.j] += mp.mpf(problem.step)
        self.log_cap = mp.mpf(problem.log_cap)
        self.cap = mp.exp(self.log_cap)
        self.B1, self.B2 = mp.mpf(problem.B1), mp.mpf(problem.B2)

    def __call__(self, beta: Number) -> _Point:
        weights = [mp.exp(log_y - c * beta) for log_y, c in zip(self.log_y, self.c, strict=True)]
        own = weights[self.j]
        total = mp.fsum(weights)
        others = mp.fsum(weight for i, weight in enumerate(weights) if i != self.j)
        shrink = mp.one
        capped = self.log_y[self.j] - self.c[self.j] * beta >= self.log_cap
        if others + min(own, self.cap) > self.B1:
            shrink = total / self.B1
            capped = own >= self.cap * shrink
            if capped:
                shrink = others / (self.B1 - self.cap)
        x = [weight / shrink for weight in weights]
        if capped:
            x[self.j] = self.cap
        moments = [mp.zero] * 3
        for i, (c, x_i) in enumerate(zip(self.c, x, strict=True)):
            if not (capped and i == self.j):
                moments[0] += x_i
                moments[1] += c * x_i
                moments[2] += c * c * x_i
        ratio = (moments[1] + self.c[self.j] * self.cap if capped else moments[1]) / self.B2
        slope = -moments[2]
        if shrink > 1 and moments[0] > 0:
            slope += moments[1] ** 2 / moments[0]
        return _Point(x, shrink, capped, ratio, slope / self.B2)


def _root(function: Callable[[Number], _Point], high: Number, tolerance: Number) -> tuple[Number, _Point]:
    """Where the ratio is 1. Invariant: ratio(low) > 1 >= ratio(high), and it does not increase in between."""
    beta = low = mp.zero
    last = math.inf
    for _ in range(2000):
        point = function(beta)
        excess = point.ratio - 1
        low, high = (beta, high) if excess > 0 else (low, beta)
        if abs(excess) <= tolerance or high - low <= tolerance * tolerance * high:
            break
        if abs(excess) > 0.1 and point.ratio > 0:  # far away Newton on the logarithm gains more
            excess = point.ratio * mp.log(point.ratio)
        newton = beta - excess / point.slope if point.slope < 0 else low
        if low < newton < high and 2 * abs(excess) <= last:
            following = newton
        elif low == 0:
            following = high / 1024
        else:
            following = (high * low) ** 0.5 if high > 4 * low else (high + low) / 2
        if not low < following < high:
            break
        beta, last = following, abs(excess)
    return beta, point


def generate(rng: np.random.Generator) -> Problem:
    """Draw one adversarial problem; y is feasible up to the rounding of its sums."""
    recipes = [_composed, _composed, _composed, _both_tight, _both_tight, _realistic, _realistic]
    recipe = _crowd if rng.random() < 0.01 else recipes[rng.integers(len(recipes))]
    return recipe(rng)


def _composed(rng: np.random.Generator) -> Problem:
    """Every ingredient drawn on its own: sizes, c, mass, tightness of the constraints, cap and step."""
    n = 30 if rng.random() < 0.02 else int(rng.choice([1, 2, 3, 5, 8]))
    c, c_kind = _draw_c(rng, n)
    log_x, mass_kind = _draw_mass(rng, n)
    return _finish(rng, log_x, c, int(rng.integers(n)), f"composed {c_kind} {mass_kind}")


def _both_tight(rng: np.random.Generator) -> Problem:
    """Start where both sums are tight, or nearly, with a c_j for which raising x_j violates both: case 4.

    A common factor on the others makes room in sum c x as long as c_j is below the mean of c under x, and
    factors exp(-c beta) make room in sum x as long as c_j is above the mean of c under c x. In between
    neither suffices.
    """
    n = int(rng.choice([3, 5, 8]))
    c, c_kind = _draw_c(rng, n, str(rng.choice(["spread", "clustered", "two values"])))
    log_x, _ = _draw_mass(rng, n, "even")
    j = int(rng.integers(n))
    log_x[j] -= rng.choice([0.0, 5.0, 50.0, 1000.0])
    mass = np.exp(log_x)
    mass[j] = 0.0
    low, high = mass @ c / mass.sum(), mass @ c**2 / (mass @ c)
    c[j] = float(low) * float(high / low) ** rng.uniform(0, 1)
    tightness = str(rng.choice(["exact", "ulp", "hair"]))
    problem = _finish(rng, log_x, c, j, f"both tight {c_kind}", tightness)
    return replace(problem, step=abs(problem.step)) if rng.random() < 0.9 else problem


def _realistic(rng: np.random.Generator) -> Problem:
    """The learner's: c = 1/mu_hat, cap = psi mu_hat/(1-gamma), B1 = 4/(1-gamma), B2 = N psi/(1-gamma)."""
    n = 30 if rng.random() < 0.02 else int(rng.choice([2, 3, 5, 8]))
    horizon = 1 / (1 - float(rng.choice([0.5, 0.9, 0.99, 0.999])))
    psi = float(rng.choice([1.0, 2.0, 50.0, rng.uniform(1, 50)]))
    floor = 10.0 ** rng.uniform(-9, -3)
    mu_hat = np.maximum(rng.dirichlet(np.full(n, rng.choice([0.1, 1.0, 10.0]))), floor)
    c = 1 / mu_hat
    log_caps = np.log(psi * horizon * mu_hat)
    B1, B2 = 4 * horizon, float(rng.integers(1, n + 1)) * psi * horizon
    log_x = log_caps - rng.choice([0.0, 0.1, 5.0, 800.0], n) * rng.random(n)
    j = int(rng.integers(n))
    excess = max(_sum(log_x) / B1, _sum(log_x, c) / B2)
    if excess > 1 or (excess > 0 and rng.random() < 0.5):
        log_x = np.minimum(log_x - max(math.log(excess), float(np.max(log_x - log_caps))), log_caps)
    if rng.random() < 0.5:
        log_x -= rng.exponential(0.1)
    while _sum(log_x) > B1 or _sum(log_x, c) > B2:  # the rounding of log_x may leave it a few units outside
        log_x = np.nextafter(log_x, -np.inf)
    gradient = rng.normal() * float(rng.choice([1.0, horizon, 10 * horizon])) * c[j]
    step = float(np.clip(gradient * 10.0 ** rng.uniform(-6, 0), -_MAX_STEP, _MAX_STEP))
    return Problem(log_x, c, float(log_caps[j]), j, step, B1, B2, "realistic")


def _crowd(rng: np.random.Generator) -> Problem:
    """One large coordinate among many tiny ones."""
    n = int(rng.integers(50, 150))
    c, c_kind = _draw_c(rng, n)
    log_x = rng.uniform(-45, -25, n)
    log_x[0] = 0.0
    return _finish(rng, log_x, c, int(rng.choice([0, 1])), f"crowd {c_kind}")


def _draw_c(rng: np.random.Generator, n: int, kind: str = "") -> tuple[np.ndarray, str]:
    kind = kind or str(rng.choice(["spread", "spread", "clustered", "equal", "two values", "ones"]))
    center = 10.0 ** rng.uniform(0, 10)
    if kind == "spread":
        return 10.0 ** rng.uniform(0, rng.choice([1, 3, 10]), n), kind
    if kind == "clustered":
        return center * (1 + 10.0 ** rng.uniform(-15, -1) * rng.random(n)), kind
    if kind == "two values":
        return np.where(rng.random(n) < 0.5, center, 10.0 ** rng.uniform(0, 10)), kind
    return np.full(n, center if kind == "equal" else 1.0), kind


def _draw_mass(rng: np.random.Generator, n: int, kind: str = "") -> tuple[np.ndarray, str]:
    kind = kind or str(rng.choice(["even", "even", "wide", "double range", "deep", "all deep"]))
    if kind == "even":
        return rng.normal(0, rng.choice([0.1, 1, 4]), n) + rng.uniform(-7, 7), kind
    depth = {"wide": 40.0, "double range": 745.0, "deep": 5000.0, "all deep": 1e5}[kind]
    log_x = -depth * rng.random(n) ** 2
    return (log_x - 750 if kind == "all deep" else log_x - log_x.max() + rng.uniform(-7, 7)), kind


def _finish(
    rng: np.random.Generator, log_x: np.ndarray, c: np.ndarray, j: int, kind: str, tightness: str = ""
) -> Problem:
    """Draw bounds that y meets, a cap that y_j meets and a step, then assemble."""
    B1 = _draw_bound(rng, _sum(log_x), tightness)
    B2 = _draw_bound(rng, _sum(log_x, c), tightness)
    if rng.random() < 0.05:  # the bounds themselves coincide: all mass on j meets both at once
        B2 = max(B2, B1 * float(c[j]))
    log_cap = _draw_log_cap(rng, float(log_x[j]), math.log(B1), math.log(B2) - math.log(c[j]))
    step = _draw_step(rng, float(log_x[j]), log_cap, B1, B1 - _sum(log_x))
    return Problem(log_x, c, log_cap, j, step, B1, B2, kind)


def _draw_bound(rng: np.random.Generator, total: float, tightness: str) -> float:
    """At least `total`: equal to it, a unit in the last place to either side, a hair above, or well above."""
    if total < 1e-300:
        return float(10.0 ** rng.uniform(-3, 6))
    tightness = tightness or str(rng.choice(["exact", "ulp", "hair", "slack", "slack", "loose"]))
    if tightness == "exact":
        return total
    if tightness == "ulp":
        return float(np.nextafter(total, rng.choice([0.0, np.inf])))
    if tightness == "hair":
        return total * (1 + 10.0 ** rng.uniform(-15, -3))
    return total * (1 + rng.exponential(1.0)) if tightness == "slack" else total * 10.0 ** rng.uniform(0, 8)


def _draw_log_cap(rng: np.random.Generator, own: float, log_B1: float, log_room: float) -> float:
    """Cap of j: at y_j, a hair above, anywhere up to what the sums allow, at a bound, or beyond reach."""
    reach = min(log_B1, log_room)
    hair = float(rng.choice([0.0, 1e-15, -1e-15, 1e-9, -1e-9, 1e-3, -1e-3]))
    draws: list[Callable[[], float]] = [
        lambda: own,
        lambda: float(np.nextafter(own, np.inf)),
        lambda: own + 10.0 ** rng.uniform(-14, 0),
        lambda: own + rng.exponential(3.0),
        lambda: own + rng.random() * max(0.0, reach - own),
        lambda: reach + math.log(rng.random() + 1e-3),
        lambda: reach + math.log(rng.random() + 1e-3),
        lambda: log_B1 + hair,
        lambda: log_room + hair,
        lambda: max(log_B1, log_room) + rng.exponential(3.0),
        lambda: 800.0 + rng.exponential(3.0),
    ]
    return max(own, draws[rng.integers(len(draws))]())


def _draw_step(rng: np.random.Generator, own: float, log_cap: float, B1: float, room: float) -> float:
    """Step: zero, any size and sign, or aimed at the cap, at B1 and at the exact edge of sum x = B1."""
    hair = 1 + float(rng.choice([0.0, 1e-15, -1e-15, 1e-9, -1e-9, 1e-3, -1e-3]))
    size = 10.0 ** rng.uniform(-8, 6)
    edge = math.log1p(max(room, 0.0) * math.exp(min(-own, 600.0))) if own > -600 else math.log(B1) - own
    steps = [
        0.0,
        -size,
        size,
        size,
        10.0 ** rng.uniform(-1, 2),
        hair * (log_cap - own),
        math.log(B1) - own + rng.normal(0, 3),
        hair * edge,
    ]
    return float(np.clip(steps[rng.integers(len(steps))], -_MAX_STEP, _MAX_STEP))


def _sum(log_x: np.ndarray, c: np.ndarray | None = None) -> float:
    """Correctly rounded up to the rounding of exp and of the products."""
    x = np.exp(log_x)
    return math.fsum(x if c is None else c * x)
