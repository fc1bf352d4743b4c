"""Every constant of the paper, one function each.

The order is that of the proofs: the sets that the iterates live in, the steps, the estimate of the data's
distribution, the budgets and their inverses, verification and the adaptive method, Markovian data.
Most functions take a `Problem` first: sizes S, A, I, discount gamma, slater (varphi in the paper) and psi.
In docstrings N = min(S + I, S A).

Three conventions. Theorem 4.1 divides by log I and log psi, which vanish at I = 1 and psi = 1: here they are
max(1, log .). A problem without utilities (I = 0) counts as I = 1 inside logarithms. The universal constants
c_o and c'_o, which the paper never gives, are parameters: a budget holds "with c_o = ..." and no more. c'_e, which it
does not give either, follows from its proof, and that value is the default.

Budgets are whole numbers, and astronomically large because the theorems ask for that much.
Source: Chen, Zhang, Wen, "A Near-Optimal Primal-Dual Method for Off-Policy Learning in CMDP" (2022).

Examples
--------
>>> problem = Problem(n_states=3, n_actions=2, n_utilities=1, gamma=0.5, slater=0.5, psi=1)
>>> problem.sparsity, radius_V(0.5, 0.5), radius_lam(0.5), sum_bound(0.5), weight_bound(3, 2, 1, 0.5, 1)
(4, 80.0, 16.0, 8.0, 8.0)
>>> step_size(10_000), step_size(10_000, mixing_time=4), largest_eps(problem)
(0.01, 0.005, 0.2)
>>> round(scale_V(problem), 6), scale_lam(problem), scale_x(problem)
(0.288675, 2.0, 8.0)
>>> gradient_bound_lam(problem), gradient_bound_x(problem, floor=0.25), largest_step(problem, floor=0.25)
(4.0, 1024.0, 0.00390625)
>>> eps, delta = 0.125, 0.1
>>> conservatism(problem, eps), reference_accuracy(eps), reference_floor(problem, eps)
(0.3125, 0.00125, 1.953125e-05)
>>> flow_threshold(problem, eps), utility_threshold(problem, eps), round(adaptive_delta(delta, level=1), 6)
(0.046875, 0.1875, 0.060793)
>>> reference_samples(problem, eps, delta), descent_steps(problem, eps, delta), condition_steps(problem, eps)
(493762193671, 67082, 10737418240000)
>>> verification_samples(problem, eps, delta), async_descent_steps(problem, eps, delta, mixing_time=1)
(2230345323, 205528816)
>>> async_reference_samples(problem, eps, delta, mixing_time=2), round(async_reference_constant(problem, delta), 2)
(27595379675539, 27.94)

What a budget buys:

>>> round(eps_from_steps(problem, 67082, delta), 6), round(eps_from_data(problem, 10**13, delta), 4)
(0.125, 0.1325)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpdl import _validation as check

#: Smallest floor of mu_hat: 1/floor and its products with every bound of the step stay far inside double range.
SMALLEST_FLOOR = 1e-200
#: eps_e = eps / 100 is the accuracy of mu_hat (Proposition 4.3).
REFERENCE_DIVISOR = 100
#: eps_ver = eps / 10 is the accuracy of VERIFY's estimates (Proposition G.1).
VERIFICATION_DIVISOR = 10
#: The adaptive method hands eps' / 15 to its inner runs (appendix G.2, "Setting of sub-routine").
ADAPTIVE_EPS_DIVISOR = 15
#: The adaptive method stops when psi doubled and J-hat grew by at most 500 eps (equation (46)).
EXIT_MARGIN = 500

_LARGEST_COUNT = 10**300
_RANGES: dict[str, dict[str, float]] = {
    "gamma": {"above": 0, "below": 1},
    "slater": {"above": 0, "at_most": 1},
    "psi": {"at_least": 1},
    "delta": {"above": 0, "below": 1},
    "mixing_time": {"at_least": 1},
    "kappa": {"at_least": 0},
}


def real(name: str, value: Any) -> float:
    """Check a parameter of the theory by its name."""
    return check.real(name, value, **_RANGES.get(name, {"above": 0}))


def count(name: str, value: Any, at_least: int = 1) -> int:
    """Check a count, which may be astronomical."""
    return check.whole(name, value, at_least=at_least, at_most=_LARGEST_COUNT)


@dataclass(frozen=True)
class Problem:
    """What every constant depends on.

    Parameters
    ----------
    n_states, n_actions, n_utilities : int
        S >= 1, A >= 1 and I >= 0.
    gamma : float
        Discount, in (0, 1).
    slater : float
        varphi in (0, 1]: some policy has J^u_i >= slater/(1-gamma) for every i.
    psi : float
        Deviation control, at least 1.
    """

    n_states: int
    n_actions: int
    n_utilities: int
    gamma: float
    slater: float
    psi: float

    def __post_init__(self) -> None:
        for name, at_least in (("n_states", 1), ("n_actions", 1), ("n_utilities", 0)):
            check.convert_field(self, name, check.whole, required=True, at_least=at_least)
        for name in ("gamma", "slater", "psi"):
            check.convert_field(self, name, real, required=True)

    @property
    def n_pairs(self) -> int:
        """S A."""
        return self.n_states * self.n_actions

    @property
    def sparsity(self) -> int:
        """Calligraphic N = min(S + I, S A)."""
        return sparsity(self.n_states, self.n_actions, self.n_utilities)


# ---- The sets X, V and Lambda (equation (8)) ----


def sparsity(n_states: int, n_actions: int, n_utilities: int) -> int:
    """Calligraphic N = min(S + I, S A): pairs that some optimal policy needs at most (Proposition 2.1)."""
    n_states = check.whole("n_states", n_states, at_least=1)
    n_actions = check.whole("n_actions", n_actions, at_least=1)
    return min(n_states + check.whole("n_utilities", n_utilities), n_states * n_actions)


def radius_V(gamma: float, slater: float) -> float:
    """R_V = 8/(1-gamma) (1 + 2/slater): ``|V(s)|`` never exceeds it."""
    return 8 / (1 - real("gamma", gamma)) * (1 + 2 / real("slater", slater))


def radius_lam(slater: float) -> float:
    """R_L = 8/slater: the multipliers of the utilities never sum to more."""
    return 8 / real("slater", slater)


def sum_bound(gamma: float) -> float:
    """B1 = 4/(1-gamma): bound of sum x."""
    return 4 / (1 - real("gamma", gamma))


def weight_bound(n_states: int, n_actions: int, n_utilities: int, gamma: float, psi: float) -> float:
    """B2 = N psi/(1-gamma): bound of sum x/mu_hat."""
    return sparsity(n_states, n_actions, n_utilities) * real("psi", psi) / (1 - real("gamma", gamma))


# ---- The steps (Theorem 4.1) ----


def step_size(n_steps: int, mixing_time: float | None = None) -> float:
    """eta = 1/sqrt(T) of Theorems 4.1 and 4.6; given a bound t of the mixing time, eta = 1/sqrt(t T).

    The second is the remark that ends appendix H.2, whose budget is `async_descent_steps` with `short_steps`.
    """
    bound = 1.0 if mixing_time is None else real("mixing_time", mixing_time)
    return 1 / (math.sqrt(count("n_steps", n_steps)) * math.sqrt(bound))


def scale_V(problem: Problem) -> float:
    """alpha_V = slater sqrt(psi/S)."""
    return problem.slater * math.sqrt(problem.psi / problem.n_states)


def scale_lam(problem: Problem) -> float:
    """alpha_lam = sqrt(psi/max(1, log I))/(1-gamma); Theorem 4.1 prints log I, zero at I = 1."""
    return math.sqrt(problem.psi / _log_floored(problem.n_utilities)) / (1 - problem.gamma)


def scale_x(problem: Problem) -> float:
    """alpha_x = sqrt(N psi/max(1, log psi))/(slater (1-gamma)); Theorem 4.1 prints log psi, zero at psi = 1."""
    root = math.sqrt(problem.sparsity * problem.psi / _log_floored(problem.psi))
    return root / (problem.slater * (1 - problem.gamma))


def conservatism(problem: Problem, eps: float) -> float:
    """kappa = 5 slater eps: the descent sees the utilities u - (1-gamma) kappa."""
    return 5 * problem.slater * real("eps", eps)


def largest_eps(problem: Problem) -> float:
    """1/(10 (1-gamma)): Theorems 4.1, 4.6 and 6.2 speak of eps up to this value."""
    return 1 / (10 * (1 - problem.gamma))


# ---- The condition on the step size (equation (27)) ----


def gradient_bound_lam(problem: Problem) -> float:
    """M_lam = 2 psi/(1-gamma) bounds every entry of g_lam (appendix C)."""
    return 2 * problem.psi / (1 - problem.gamma)


def gradient_bound_x(problem: Problem, floor: float) -> float:
    """M_x,inf = 64/(slater (1-gamma) floor) bounds every entry of g_x (appendix C, Remark C.3)."""
    return 64 / (problem.slater * (1 - problem.gamma)) / real("floor", floor)


def largest_step(problem: Problem, floor: float, alpha_lam: float | None = None, alpha_x: float | None = None) -> float:
    """Largest eta that the analysis allows, 1/2 min(alpha_lam/M_lam, alpha_x/M_x,inf).

    The scales are those of Theorem 4.1 unless given.
    """
    alpha_lam = scale_lam(problem) if alpha_lam is None else real("alpha_lam", alpha_lam)
    alpha_x = scale_x(problem) if alpha_x is None else real("alpha_x", alpha_x)
    return 0.5 * min(alpha_lam / gradient_bound_lam(problem), alpha_x / gradient_bound_x(problem, floor))


def condition_steps(problem: Problem, eps: float) -> int:
    """Least T whose eta = 1/sqrt(T) meets the condition at the scales of Theorem 4.1 and the floor of Proposition 4.3.

    T >= 25600^2 N psi max(1, log psi)/(slater^2 (1-gamma)^4 eps^2). That is the half with M_x,inf; the half
    with M_lam asks for T >= 16 psi max(1, log I) and never binds while eps is in range. The paper absorbs the
    condition into c_o; `descent_steps` with c_o = 1 does not imply it.
    """
    return _samples(_condition_cost(problem), real("eps", eps))


# ---- The estimate of the data's distribution (Proposition 4.3) ----


def reference_accuracy(eps: float) -> float:
    """eps_e = eps/100: mu_hat is good enough when ||W x - x||_1 <= slater (1-gamma) eps_e for every x in X."""
    return real("eps", eps) / REFERENCE_DIVISOR


def reference_floor(problem: Problem, eps: float) -> float:
    """Floor of mu_hat (varsigma): slater (1-gamma)^2 eps_e/(2 N psi)."""
    accuracy = reference_accuracy(eps)
    return problem.slater * (1 - problem.gamma) ** 2 * accuracy / (2 * problem.sparsity * problem.psi)


def reference_samples(problem: Problem, eps: float, delta: float) -> int:
    """Transitions that mu_hat needs: N_e >= 512 N psi log(6 S A/delta)/(slater^2 (1-gamma)^4 eps_e^2)."""
    return _samples(_reference_cost(problem, real("delta", delta)), real("eps", eps))


# ---- The length of the descent, and what a budget buys ----


def descent_steps(problem: Problem, eps: float, delta: float, c_o: float = 1.0) -> int:
    """Steps of Theorem 4.1: T >= c_o N psi log(psi S A I/delta)/(slater^2 (1-gamma)^4 eps^2)."""
    return _samples(_descent_cost(problem, real("delta", delta), real("c_o", c_o)), real("eps", eps))


def eps_from_steps(problem: Problem, n_steps: int, delta: float, c_o: float = 1.0) -> float:
    """Least eps with ``descent_steps(problem, eps, delta, c_o) <= n_steps``.

    Like all inverses here it may exceed `largest_eps`: then so few samples buy no theorem.
    """
    cost = _descent_cost(problem, real("delta", delta), real("c_o", c_o))
    return _bought(cost, count("n_steps", n_steps), lambda eps: _samples(cost, eps))


def eps_from_data(problem: Problem, n_samples: int, delta: float, c_o: float = 1.0) -> float:
    """The eps that n fresh transitions buy in total, each used once: N_e + T <= n.

    T is the larger of `descent_steps` and `condition_steps`, so that a run with these numbers can meet every
    premise. Least such eps up to one sample, hence n >= 2; see `eps_from_steps` about eps out of range.
    """
    delta, c_o = real("delta", delta), real("c_o", c_o)
    n_samples = count("n_samples", n_samples, at_least=2)
    reference = _reference_cost(problem, delta)
    steps = max(_descent_cost(problem, delta, c_o), _condition_cost(problem))
    # The sample kept back pays for rounding up twice.
    return _bought(reference + steps, n_samples - 1, lambda eps: _samples(reference, eps) + _samples(steps, eps) - 1)


# ---- Verification and the adaptive method (Propositions G.1 and G.2) ----


def verification_samples(problem: Problem, eps: float, delta: float) -> int:
    """Transitions that VERIFY needs: N_v >= 64 S psi l/(slater^2 (1-gamma)^4 eps_ver^2).

    Here eps_ver = eps/10 and l = 4 log(40 S I/delta).
    """
    return _samples(_verification_cost(problem, real("delta", delta)), real("eps", eps))


def flow_threshold(problem: Problem, eps: float) -> float:
    """VERIFY holds only if ||Delta-hat||_1 <= 3/2 slater (1-gamma) eps."""
    return 1.5 * problem.slater * (1 - problem.gamma) * real("eps", eps)


def utility_threshold(problem: Problem, eps: float) -> float:
    """VERIFY holds only if ||[J-hat^{u kappa}]_-||_inf <= 3 slater eps.

    Algorithm 3 prints the norm of J-hat^{u kappa} itself; its proof needs the negative part.
    """
    return 3 * problem.slater * real("eps", eps)


def adaptive_delta(delta: float, level: int) -> float:
    """delta_K = 6 delta/(pi^2 K^2) for level K = 1, 2, ...: they sum to delta."""
    return 6 * real("delta", delta) / (math.pi * check.whole("level", level, at_least=1)) ** 2


# ---- Markovian data (Theorem 4.6) ----


def async_reference_constant(problem: Problem, delta: float) -> float:
    """c'_e of the proof of Proposition H.4, 25 log(12 S A/delta)/log(6 S A/delta) < 35.

    It has l = 100 t_mix log(12 S A/delta) where `reference_samples` has 4 log(6 S A/delta).
    """
    inside = 6 * problem.n_pairs / real("delta", delta)
    return 25 * math.log(2 * inside) / math.log(inside)


def async_reference_samples(
    problem: Problem, eps: float, delta: float, mixing_time: float, c_e: float | None = None
) -> int:
    """N_e on one trajectory: c'_e t_mix times that of `reference_samples`, with the c'_e of the proof unless given.

    Proposition H.4 prints the logarithm iota; in its proof, as here, T is not involved.
    """
    constant = async_reference_constant(problem, delta) if c_e is None else real("c_e", c_e)
    factor = constant * real("mixing_time", mixing_time)
    return _samples(factor * _reference_cost(problem, real("delta", delta)), real("eps", eps))


def async_descent_steps(
    problem: Problem, eps: float, delta: float, mixing_time: float, c_o: float = 1.0, *, short_steps: bool = False
) -> int:
    """Least T from which on T >= c'_o t_mix^2 N psi iota^3/(slater^2 (1-gamma)^4 eps^2) holds.

    Here iota = log(T S A I/delta), so that T is on both sides. With `short_steps`, eta = 1/sqrt(t T) for a bound t of
    t_mix, the remark that ends appendix H.2 asks for t_mix^2/t instead of t_mix^2; t_mix is taken to be the bound.
    """
    log_inside = math.log(_triples(problem) / real("delta", delta))
    mixing_time, eps = real("mixing_time", mixing_time), real("eps", eps)
    power = mixing_time if short_steps else mixing_time * mixing_time
    factor = real("c_o", c_o) * power * _rate(problem, problem.sparsity) / eps / eps
    _in_range(factor, eps)

    def needed(n_steps: int) -> int:
        return max(1, math.ceil(factor * (log_inside + math.log(n_steps)) ** 3))

    # With y = iota the condition reads y >= offset + 3 log y. From the right, the fixed-point iteration falls
    # to the largest root; if it falls to y = 3, where y - 3 log y is least, the condition always holds.
    offset = log_inside + math.log(factor)
    y = 10 + 2 * max(offset, 0)
    for _ in range(100):
        y = max(3.0, offset + 3 * math.log(y))
    log_steps = y - log_inside + 1e-9
    n_steps = math.ceil(_in_range(math.exp(log_steps) if log_steps < 700 else math.inf, eps))
    # Invariant: the condition holds at n_steps and beyond. A step down keeps it, since needed() increases:
    # needed(T) <= T' <= T gives needed(T') <= needed(T) <= T'.
    while n_steps > 1 and (fewer := min(needed(n_steps), max(n_steps - 1, needed(n_steps - 1)))) < n_steps:
        n_steps = fewer
    return n_steps


# ---- Costs: budget times eps^2, in one place for budgets and their inverses ----


def _log_floored(value: float) -> float:
    return max(1.0, math.log(max(value, 1)))


def _triples(problem: Problem) -> int:
    return problem.n_pairs * max(problem.n_utilities, 1)


def _rate(problem: Problem, width: int) -> float:
    unit = problem.slater * (1 - problem.gamma) ** 2
    return width * problem.psi / unit / unit if unit > 0 else math.inf


def _reference_cost(problem: Problem, delta: float) -> float:
    return 512 * REFERENCE_DIVISOR**2 * math.log(6 * problem.n_pairs / delta) * _rate(problem, problem.sparsity)


def _descent_cost(problem: Problem, delta: float, c_o: float) -> float:
    return c_o * math.log(problem.psi * _triples(problem) / delta) * _rate(problem, problem.sparsity)


def _condition_cost(problem: Problem) -> float:
    # 1/largest_step = 2 M_x,inf/alpha_x = 2 * 64 * 2 * 100 sqrt(N psi log psi)/(slater (1-gamma)^2 eps)
    return (256 * REFERENCE_DIVISOR) ** 2 * _log_floored(problem.psi) * _rate(problem, problem.sparsity)


def _verification_cost(problem: Problem, delta: float) -> float:
    length = 4 * math.log(40 * problem.n_states * max(problem.n_utilities, 1) / delta)
    return 64 * VERIFICATION_DIVISOR**2 * length * _rate(problem, problem.n_states)


def _samples(cost: float, eps: float) -> int:
    return max(1, math.ceil(_in_range(cost / eps / eps, eps)))


def _bought(cost: float, count: int, budget: Callable[[float], int]) -> float:
    """Least eps whose budget fits the count; the loop undoes the rounding of the root."""
    eps = math.sqrt(_in_range(cost, 1.0)) / math.sqrt(count)
    while budget(eps) > count:
        eps = math.nextafter(eps, math.inf)
    return eps


def _in_range(value: float, eps: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"the budget at eps = {eps!r} is beyond the range of a double")
    return value
