"""VERIFY (Algorithm 3): from fresh transitions, is W x_mean nearly an occupancy, and nearly safe?

With w(s,a) = x_mean(s,a)/mu_hat(s,a) and n transitions that neither mu_hat nor the descent has seen,

    J-hat             = mean of r w                      estimates  r'W x
    J-hat^{u kappa}_i = mean of (u_i - (1-gamma) kappa) w        U_kappa W x
    Delta-hat(s')     = mean of w (1[s = s'] - gamma 1[s_next = s']) - rho0(s')    A'W x - rho0

and the verdict is true iff ||Delta-hat||_1 <= 1.5 slater (1-gamma) eps and ||[J-hat^{u kappa}]_-||_inf <= 3 slater eps.
Algorithm 3 prints the second norm without the negative part, which its proof (appendix G.3) needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dpdl import _validation as check
from dpdl import theory
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.question import Question
from dpdl.result import Result


@dataclass(frozen=True)
class Verification:
    """Verdict and estimates of VERIFY.

    Attributes
    ----------
    verdict : bool
        Whether both margins are nonnegative.
    reward : float
        J-hat, the estimated reward.
    utilities : array, shape (I,)
        J-hat^{u kappa}, the estimated utilities less kappa.
    flow_residual : array, shape (S,)
        Delta-hat: by how much x_mean misses the flow equation in each state.
    flow_norm : float
        Its 1-norm.
    flow_margin, utility_margin : float
        Thresholds less what was found: how far inside (or, negative, outside) the estimates lie.
    n_samples : int
        Transitions used.
    enough : bool
        Whether that is the number that Proposition G.1 asks for; without it the verdict is only an indication.
    """

    verdict: bool
    reward: float
    utilities: Array
    flow_residual: Array = field(repr=False)
    flow_norm: float
    flow_margin: float
    utility_margin: float
    n_samples: int
    enough: bool


def verify(
    result: Result,
    log: Dataset,
    *,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
    eps: float | None = None,
    delta: float | None = None,
) -> Verification:
    """Check a learned solution on fresh transitions (Algorithm 3).

    Parameters
    ----------
    result : Result
        What `learn` returned; its x_mean, mu_hat, gamma, kappa and slater are used.
    log : Dataset
        Transitions that the run has not seen, neither for mu_hat nor for its steps. One pass, memory bounded.
    rho0, initial_states : optional
        Distribution of the initial state, or a log of initial states; one of the two, as for `learn`.
    eps, delta : float, optional
        Accuracy and failure probability; by default those of the run's settings.

    Returns
    -------
    Verification

    Examples
    --------
    >>> from dpdl import learn
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> result = learn(log, gamma=0.5, psi=2, slater=1, T=200_000, rho0=[1.0], rng=0)
    >>> verification = verify(result, log, rho0=[1.0], eps=0.2)
    >>> verification.verdict, verification.enough, round(verification.reward, 1)
    (True, False, 1.0)
    """
    check.instance("result", result, Result)
    check.instance("log", log, Dataset)
    if result.question is not None and log.question is None:
        _check_columns(result.question, log)
        log = log.posed(result.question)
    settings, reference = result.settings, result.reference
    sizes = (log.n_states, log.n_actions, log.n_utilities)
    if sizes != (reference.n_states, reference.n_actions, len(result.lam_mean)):
        raise ValueError(
            f"log has {sizes[0]} states, {sizes[1]} actions and {sizes[2]} utilities, the result "
            f"{reference.n_states}, {reference.n_actions} and {len(result.lam_mean)}"
        )
    chosen = settings.eps if eps is None else eps
    if chosen is None:
        raise TypeError("give eps: the run had none")
    eps = check.real("eps", chosen, above=0)
    delta = check.real("delta", settings.delta if delta is None else delta, above=0, below=1)
    problem = settings.problem(*sizes)
    rho0 = log.initial(rho0, initial_states)

    weight = result.x_table.at(log.table) / reference.at(log.table)
    reward, utilities, flow, ended = _means(log, weight, settings.gamma)
    mass = (1 - settings.gamma) * (log.table_counts @ weight / len(log)) + settings.gamma * ended
    utilities = utilities - settings.kappa * mass
    residual = flow - rho0
    norm = float(abs(residual).sum())
    flow_margin = theory.flow_threshold(problem, eps) - norm
    utility_margin = theory.utility_threshold(problem, eps) - float(np.maximum(-utilities, 0).max(initial=0.0))
    return Verification(
        verdict=flow_margin >= 0 and utility_margin >= 0,
        reward=reward,
        utilities=utilities,
        flow_residual=residual,
        flow_norm=norm,
        flow_margin=flow_margin,
        utility_margin=utility_margin,
        n_samples=len(log),
        enough=len(log) >= theory.verification_samples(problem, eps, delta),
    )


def _check_columns(question: Question, log: Dataset) -> None:
    """Raise a ValueError if a log has other utilities, or its costs in other columns, than the log of a question."""
    if question.limits is None:
        if log.cost_names is not None or log.n_utilities != len(question.names):
            raise ValueError(
                f"log has {log.n_utilities} utilities or costs, the result {len(question.names)} utilities"
            )
        return
    names = log.cost_names or ()
    for name, column in zip(question.names, question.columns, strict=True):
        if names[column : column + 1] != (name,):
            raise ValueError(f"log must have the cost {name!r} in column {column}, as the log of the run; got {names}")


def _means(log: Dataset, weight: Array, gamma: float) -> tuple[float, Array, Array, float]:
    """Means of r w, u w, w (1[s] - gamma 1[s_next]) and w 1[episode ended] over the log, chunk by chunk."""
    n, S, question = len(log), log.n_states, log.question
    reward, utilities, inflow = 0.0, np.zeros(log.n_utilities), np.zeros(S + 1)
    for part, repeats in log.raw.parts():
        w = weight[part["pair"]] * repeats
        reward += float(part["r"] @ w) * question.reward_slope
        utilities += w @ question.utilities_of(part["u"], part["s_next"] < 0)
        np.add.at(inflow, part["s_next"], w)  # -1, the last entry, is the end
    outflow = np.bincount(log.table // log.n_actions, weights=log.table_counts * weight, minlength=S)
    return reward / n, utilities / n, (outflow - gamma * inflow[:S]) / n, float(inflow[S]) / n
