"""Which premises of the paper's theorems an actual run met, and what it may therefore claim."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dpdl import theory
from dpdl.theory import Problem

#: J(pi*) - J(policy) <= O(eps) is, in its proof, Gap + 2 kappa/slater + 45 eps_e = (0.5 + 10 + 0.45) eps
#: (end of appendix duality-to-regret).
REWARD_GAP = 10.95

_MATCH = 1e-9


@dataclass(frozen=True)
class Premise:
    """One premise of a theorem: its name, whether it held, and the numbers behind the verdict.

    Examples
    --------
    >>> Premise("fresh samples", holds=False, detail="transitions were used more than once").holds
    False
    """

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """What happened in a run, as far as the theorems ask.

    Parameters
    ----------
    problem : Problem
        Sizes and the gamma, slater and psi that the run used.
    eps : float or None
        The accuracy aimed at; None if only a number of steps was given, and then no theorem applies.
    delta : float
        Failure probability.
    n_steps : int
        T.
    eta, alpha_V, alpha_lam, alpha_x, kappa, floor : float
        The step size, its scales, the conservatism and the floor of mu_hat, as they were used.
    n_reference : int
        Transitions that mu_hat was made of.
    kind : str
        What the log says of itself: "independent" transitions, one "trajectory" or several "trajectories".
    fresh : bool
        Each step took a transition that no step took before: in the log's own order for one trajectory.
    disjoint : bool
        mu_hat and the descent share no transition.
    as_stated : bool, optional
        Feasible sets, start and averaging are those of algorithm 1: no other radii, weights, warm starts.
    psi_known, slater_known, mixing_time_known : bool, optional
        The caller vouches that psi >= C*, that slater is valid on Pi(psi), that the chain mixes within
        `mixing_time`. A run cannot see any of these.
    slater_refuted : bool, optional
        The data contradicts slater, whoever vouches for it.
    mixing_time_estimated : bool, optional
        `mixing_time` is an upper confidence bound from the same data.
    mixing_time : float or None, optional
        A bound of t_mix if the data is one trajectory: the asynchronous theorem is then the one that matters.
    c_o, c_e : float, optional
        The universal constants c_o (c'_o) and c'_e.

    Examples
    --------
    See `guarantee`.
    """

    problem: Problem
    eps: float | None
    delta: float
    n_steps: int
    eta: float
    alpha_V: float
    alpha_lam: float
    alpha_x: float
    kappa: float
    floor: float
    n_reference: int
    fresh: bool
    disjoint: bool
    kind: str = "independent"
    as_stated: bool = False
    psi_known: bool = False
    slater_known: bool = False
    mixing_time_known: bool = False
    slater_refuted: bool = False
    mixing_time_estimated: bool = False
    mixing_time: float | None = None
    c_o: float = 1.0
    c_e: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.problem, Problem):
            raise TypeError(f"problem must be a Problem, got {type(self.problem).__name__}")
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type == "bool" and not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {value!r}")
            if field.type == "int":
                object.__setattr__(self, name, theory.count(name, value, at_least=0 if name == "n_reference" else 1))
            if field.type == "float" or (field.type == "float | None" and value is not None):
                object.__setattr__(self, name, theory.real(name, value))


def premises(run: Run) -> tuple[Premise, ...]:
    """Say which premises of theorem algB-thm-demo held, or of algB-thm-markov-demo if a mixing time is given.

    Examples
    --------
    >>> problem = Problem(3, 2, 1, gamma=0.5, slater=0.5, psi=1)
    >>> run = Run(problem=problem, eps=None, delta=0.1, n_steps=100, eta=0.1, alpha_V=1, alpha_lam=2,
    ...           alpha_x=8, kappa=0, floor=0.01, n_reference=50, fresh=True, disjoint=False)
    >>> [premise.name for premise in premises(run) if premise.holds]
    ['independent transitions', 'fresh samples', 'eta', 'alpha_lam', 'alpha_x']
    """
    return (
        *_premises_of_eps(run),
        *_premises_of_data(run),
        *_premises_of_steps(run),
        *_premises_of_model(run),
    )


def guarantee(run: Run) -> str | None:
    """State the theorem's conclusion if every one of `premises` held; None otherwise.

    The O(eps) is written out as in the proof (`REWARD_GAP`), in the asynchronous theorem as well, whose proof
    is the same from the duality gap on.

    Examples
    --------
    >>> problem, eps, delta = Problem(3, 2, 1, gamma=0.5, slater=0.5, psi=1), 0.1, 0.1
    >>> T = theory.condition_steps(problem, eps)
    >>> run = Run(problem=problem, eps=eps, delta=delta, n_steps=T, eta=theory.step_size(T),
    ...           alpha_V=theory.scale_V(problem), alpha_lam=theory.scale_lam(problem), alpha_x=theory.scale_x(problem),
    ...           kappa=theory.conservatism(problem, eps), floor=theory.reference_floor(problem, eps),
    ...           n_reference=theory.reference_samples(problem, eps, delta), fresh=True, disjoint=True,
    ...           as_stated=True, psi_known=True, slater_known=True)
    >>> condition, conclusion = guarantee(run).split(", then with ")
    >>> condition
    'Theorem algB-thm-demo with c_o = 1: if the transitions are independent draws from one distribution'
    >>> conclusion
    'probability at least 0.9, J(pi*) - J(policy) <= 1.095 (10.95 eps) and every J^u_i(policy) >= 0.'
    """
    if run.eps is None or not all(premise.holds for premise in premises(run)):
        return None
    if run.mixing_time is None:
        theorem = f"algB-thm-demo with c_o = {run.c_o:g}"
        data = "the transitions are independent draws from one distribution"
    else:
        theorem = f"algB-thm-markov-demo with c'_o = {run.c_o:g}, c'_e = {run.c_e:g}"
        data = "the data is one trajectory of an ergodic chain"
    return (
        f"Theorem {theorem}: if {data}, then with probability at least {1 - run.delta:g}, "
        f"J(pi*) - J(policy) <= {REWARD_GAP * run.eps:.6g} ({REWARD_GAP} eps) and every J^u_i(policy) >= 0."
    )


def _premises_of_eps(run: Run) -> list[Premise]:
    """Premises that compare the run with what its eps asks for; without an eps none of them holds."""
    problem, eps = run.problem, run.eps
    if eps is None:
        names = ("eps in range", "samples for mu_hat", "steps", "kappa", "floor")
        return [Premise(name, False, "no eps was given") for name in names]
    if run.mixing_time is None:
        reference = theory.reference_samples(problem, eps, run.delta)
        steps = theory.descent_steps(problem, eps, run.delta, run.c_o)
    else:
        reference = theory.async_reference_samples(problem, eps, run.delta, run.mixing_time, run.c_e)
        steps = theory.async_descent_steps(problem, eps, run.delta, run.mixing_time, run.c_o)
    limit = theory.largest_eps(problem)
    return [
        Premise("eps in range", eps <= limit * (1 + _MATCH), f"eps = {eps:.6g}, at most {limit:.6g}"),
        _enough("samples for mu_hat", run.n_reference, reference),
        _enough("steps", run.n_steps, steps),
        _equals("kappa", run.kappa, theory.conservatism(problem, eps)),
        _equals("floor", run.floor, theory.reference_floor(problem, eps)),
    ]


def _premises_of_data(run: Run) -> list[Premise]:
    repeats = "each step used a transition of its own" if run.fresh else "steps used a transition more than once"
    shares = "share no transition" if run.disjoint else "share transitions"
    wanted = "independent" if run.mixing_time is None else "trajectory"
    kinds = {"independent": "independent transitions", "trajectory": "one trajectory"}
    return [
        Premise(
            kinds[wanted], run.kind == wanted, f"the log is said to be {kinds.get(run.kind, 'several ' + run.kind)}"
        ),
        Premise("fresh samples", run.fresh, repeats),
        Premise("independent mu_hat", run.disjoint, f"mu_hat and the descent {shares}"),
    ]


def _premises_of_steps(run: Run) -> list[Premise]:
    problem = run.problem
    limit = theory.largest_step(problem, run.floor, run.alpha_lam, run.alpha_x)
    eta = _equals("eta", run.eta, theory.step_size(run.n_steps))
    if run.mixing_time is not None and not eta.holds:
        eta = _equals("eta", run.eta, theory.step_size(run.n_steps, run.mixing_time))
    in_condition = run.eta <= limit * (1 + _MATCH)
    as_stated = "same" if run.as_stated else "not said to be the same"
    return [
        eta,
        _equals("alpha_V", run.alpha_V, theory.scale_V(problem)),
        _equals("alpha_lam", run.alpha_lam, theory.scale_lam(problem)),
        _equals("alpha_x", run.alpha_x, theory.scale_x(problem)),
        Premise("step-size condition", in_condition, f"eta = {run.eta:.6g}, at most {limit:.6g}"),
        Premise("algorithm as stated", run.as_stated, f"sets, start and averaging: {as_stated}"),
    ]


def _premises_of_model(run: Run) -> list[Premise]:
    """Premises that no run can check: the caller vouches for them or they do not hold."""
    problem = run.problem
    found = [
        _vouched("psi >= C*", run.psi_known, f"psi = {problem.psi:.6g}"),
        Premise("slater valid", False, f"slater = {problem.slater:.6g}, contradicted by the data")
        if run.slater_refuted
        else _vouched("slater valid", run.slater_known, f"slater = {problem.slater:.6g}"),
    ]
    if run.mixing_time is not None:
        bound = f"t_mix <= {run.mixing_time:.6g}"
        found.append(
            Premise("mixing time", False, f"{bound}, estimated from the same data with confidence {1 - run.delta:g}")
            if run.mixing_time_estimated
            else _vouched("mixing time", run.mixing_time_known, bound)
        )
        found.append(Premise("delta below 1/2", run.delta < 0.5, f"delta = {run.delta:.6g}"))
    return found


def _enough(name: str, have: int, need: int) -> Premise:
    return Premise(name, have >= need, f"{have:.6g} of {need:.6g} needed")


def _equals(name: str, used: float, chosen: float) -> Premise:
    return Premise(name, math.isclose(used, chosen, rel_tol=_MATCH), f"used {used:.6g}, the theorem has {chosen:.6g}")


def _vouched(name: str, known: bool, value: str) -> Premise:
    return Premise(name, known, f"{value}, {'known to hold' if known else 'supplied, not verified'}")
