"""Which premises of the paper's theorems a run satisfied, and the guarantee that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from dpdl import theory
from dpdl.settings import IN_ORDER, Resolved
from dpdl.theory import Problem

#: J(pi*) - J(policy) <= O(eps) is, in its proof, Gap + 2 kappa/slater + 45 eps_e = (0.5 + 10 + 0.45) eps
#: (equation (35)).
REWARD_GAP = 10.95

_MATCH = 1e-9


@dataclass(frozen=True)
class Premise:
    """One premise of a theorem: its name, whether it held, and the numbers behind the verdict."""

    name: str
    holds: bool
    detail: str


def combined(premises_of_runs: Iterable[Iterable[Premise]]) -> dict[str, Premise]:
    """The premises of several runs by name: one that fails in any of them fails."""
    by_name: dict[str, Premise] = {}
    for premise in chain.from_iterable(premises_of_runs):
        if premise.name not in by_name or (by_name[premise.name].holds and not premise.holds):
            by_name[premise.name] = premise
    return by_name


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the premises depend on, other than the settings and the number of steps.

    `known` is what the caller vouches for, since a run cannot check it: "psi", that psi >= C*; "slater", that slater is
    valid on Pi(psi); "mixing_time", that the chain mixes within `mixing_time`.
    """

    n_states: int
    n_actions: int
    n_utilities: int
    n_reference: int  # transitions that mu_hat was computed from
    n_descent: int  # transitions that the steps read from
    kind: str = "independent"  # `Dataset.kind` of the log
    reference: str = "shared"  # where mu_hat is from: "own" rows of the log, the "shared" ones, or "given"
    as_stated: bool = False  # feasible sets, start and averaging are those of Algorithm 1
    strict: bool = False  # the run was asked for as the theorem has it
    known: tuple[str, ...] = ()
    mixing_time_estimated: bool = False  # that of the settings is an upper confidence bound from the same data


def premises(settings: Resolved, facts: Facts, n_steps: int) -> tuple[Premise, ...]:
    """Evaluate the premises of Theorem 4.1, or of Theorem 4.6 if a mixing time is given, after so many steps.

    Examples
    --------
    >>> from dpdl.settings import Settings
    >>> settings = Settings(gamma=0.5, slater=0.5, psi=1, T=100, order="once").resolve(3, 2, 1)
    >>> facts = Facts(n_states=3, n_actions=2, n_utilities=1, n_reference=50, n_descent=100)
    >>> [premise.name for premise in premises(settings, facts, n_steps=100) if premise.holds]
    ['independent transitions', 'fresh samples', 'eta', 'alpha_V', 'alpha_lam', 'alpha_x']
    """
    problem = settings.problem(facts.n_states, facts.n_actions, facts.n_utilities)
    return (
        *_premises_of_eps(problem, settings, facts, n_steps),
        *_premises_of_data(settings, facts, n_steps),
        *_premises_of_steps(problem, settings, facts, n_steps),
        *_premises_of_model(settings, facts),
    )


def guarantee(settings: Resolved, facts: Facts, n_steps: int) -> str | None:
    """State the theorem's conclusion if the run was strict and every one of `premises` held; None otherwise.

    The O(eps) is written out as in the proof (`REWARD_GAP`), in Theorem 4.6 as well, whose proof
    is the same from the duality gap on.

    Examples
    --------
    >>> from dpdl.settings import Settings
    >>> sizes, eps, delta = (3, 2, 1), 0.1, 0.1
    >>> problem = theory.Problem(*sizes, gamma=0.5, slater=0.5, psi=1)
    >>> T = theory.condition_steps(problem, eps)
    >>> settings = Settings(gamma=0.5, slater=0.5, psi=1, eps=eps, delta=delta, T=T, order="once").resolve(*sizes)
    >>> facts = Facts(n_states=3, n_actions=2, n_utilities=1, reference="own", as_stated=True, strict=True,
    ...               n_reference=theory.reference_samples(problem, eps, delta), n_descent=T, known=("psi", "slater"))
    >>> condition, conclusion = guarantee(settings, facts, T).split(", then with ")
    >>> condition
    'Theorem 4.1 with c_o = 1: if the transitions are independent draws from one distribution'
    >>> conclusion
    'probability at least 0.9, J(pi*) - J(policy) <= 1.095 (10.95 eps) and every J^u_i(policy) >= 0.'
    """
    eps = settings.eps
    if eps is None or not facts.strict or not all(each.holds for each in premises(settings, facts, n_steps)):
        return None
    if settings.mixing_time is None:
        theorem = f"Theorem 4.1 with c_o = {settings.c_o:g}"
        data = "the transitions are independent draws from one distribution"
    else:
        problem = settings.problem(facts.n_states, facts.n_actions, facts.n_utilities)
        c_e = theory.async_reference_constant(problem, settings.delta) if settings.c_e is None else settings.c_e
        theorem = f"Theorem 4.6 with c'_o = {settings.c_o:g}, c'_e = {c_e:.4g}"
        data = "the data is one trajectory of an ergodic chain"
    return (
        f"{theorem}: if {data}, then with probability at least {1 - settings.delta:g}, "
        f"J(pi*) - J(policy) <= {REWARD_GAP * eps:.6g} ({REWARD_GAP} eps) and every J^u_i(policy) >= 0."
    )


def _premises_of_eps(problem: Problem, settings: Resolved, facts: Facts, n_steps: int) -> list[Premise]:
    """Premises that compare the run with the requirements of its eps; without an eps none of them holds."""
    eps = settings.eps
    if eps is None:
        names = ("eps in range", "samples for mu_hat", "steps", "kappa", "floor")
        return [Premise(name, False, "no eps was given") for name in names]
    limit = theory.largest_eps(problem)
    return [
        Premise("eps in range", eps <= limit * (1 + _MATCH), f"eps = {eps:.6g}, at most {limit:.6g}"),
        _enough("samples for mu_hat", facts.n_reference, settings.required_reference(problem)),
        _enough("steps", n_steps, settings.required_steps(problem)),
        _equals("kappa", settings.kappa, theory.conservatism(problem, eps)),
        _equals("floor", settings.floor, theory.reference_floor(problem, eps)),
    ]


def _premises_of_data(settings: Resolved, facts: Facts, n_steps: int) -> list[Premise]:
    wanted = "independent" if settings.mixing_time is None else "trajectory"
    kinds = {"independent": "independent transitions", "trajectory": "one trajectory"}
    declared = f"the log is declared as {kinds.get(facts.kind, 'several ' + facts.kind)}"
    # One trajectory is fresh only in its own order; independent transitions also without replacement.
    fresh_orders = ("shuffle", *IN_ORDER) if facts.kind == "independent" else IN_ORDER
    fresh = settings.order in fresh_orders and n_steps <= facts.n_descent
    if fresh:
        reading = "each step used another transition"
    elif settings.order in fresh_orders:
        reading = f"{n_steps:,} steps used {facts.n_descent:,} transitions, some of them more than once"
    else:
        reading = f"order {settings.order!r} may use a transition more than once, or out of its order"
    origin = {
        "own": "mu_hat and the descent share no transition",
        "shared": "mu_hat and the descent share transitions",
        "given": "mu_hat was given; whether it shares transitions with the descent is not known",
    }
    return [
        Premise(kinds[wanted], facts.kind == wanted, declared),
        Premise("fresh samples", fresh, reading),
        Premise("independent mu_hat", facts.reference == "own", origin[facts.reference]),
    ]


def _premises_of_steps(problem: Problem, settings: Resolved, facts: Facts, n_steps: int) -> list[Premise]:
    limit = theory.largest_step(problem, settings.floor, settings.alpha_lam, settings.alpha_x)
    eta = theory.step_size(n_steps, settings.mixing_time if settings.short_steps else None)
    in_condition = settings.eta <= limit * (1 + _MATCH)
    as_stated = "those of Algorithm 1" if facts.as_stated else "not known to be those of Algorithm 1"
    return [
        _equals("eta", settings.eta, eta),
        _equals("alpha_V", settings.alpha_V, theory.scale_V(problem)),
        _equals("alpha_lam", settings.alpha_lam, theory.scale_lam(problem)),
        _equals("alpha_x", settings.alpha_x, theory.scale_x(problem)),
        Premise("step-size condition", in_condition, f"eta = {settings.eta:.6g}, at most {limit:.6g}"),
        Premise("algorithm as stated", facts.as_stated, f"sets, start and averaging: {as_stated}"),
    ]


def _premises_of_model(settings: Resolved, facts: Facts) -> list[Premise]:
    """Premises that no run can check: the caller vouches for them or they do not hold."""
    known = facts.known
    vouched = [
        _vouched("psi >= C*", "psi" in known, f"psi = {settings.psi:.6g}"),
        _vouched("slater valid", "slater" in known, f"slater = {settings.slater:.6g}"),
    ]
    if settings.mixing_time is not None:
        bound, doubt = f"t_mix <= {settings.mixing_time:.6g}", "estimated from the same data with confidence "
        doubt = f"{doubt}{1 - settings.delta:g}" if facts.mixing_time_estimated else ""
        vouched.append(_vouched("mixing time", "mixing_time" in known, bound, doubt))
        vouched.append(Premise("delta below 1/2", settings.delta < 0.5, f"delta = {settings.delta:.6g}"))
    return vouched


def _enough(name: str, have: int, need: int) -> Premise:
    return Premise(name, have >= need, f"{have:.6g} of {need:.6g} needed")


def _equals(name: str, used: float, chosen: float) -> Premise:
    return Premise(name, math.isclose(used, chosen, rel_tol=_MATCH), f"used {used:.6g}, the theorem has {chosen:.6g}")


def _vouched(name: str, known: bool, value: str, doubt: str = "") -> Premise:
    """A premise that holds if the caller vouches for it, unless there is a reason to doubt it."""
    verdict = doubt or ("known to hold" if known else "supplied, not verified")
    return Premise(name, known and not doubt, f"{value}, {verdict}")
