"""Results of runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.acting import Evidence, Policy, evidence
from dpdl.data.dataset import Dataset
from dpdl.data.labels import Labels
from dpdl.data.reference import Reference
from dpdl.models import saddle
from dpdl.models.cmdp import CMDP
from dpdl.models.estimate import MOST_PAIRS, Judgement, judge, plug_in
from dpdl.premises import Premise
from dpdl.question import Question
from dpdl.settings import Resolved
from dpdl.stopping import Status


class Point(NamedTuple):
    """A point of the saddle problem: log x (S, A), V (S,), log lam (I,).

    In logarithms, because x and lam must stay positive and may be as small as e^-5000.
    """

    log_x: Array
    V: Array
    log_lam: Array

    @classmethod
    def of(cls, x: ArrayLike, V: ArrayLike, lam: ArrayLike) -> Point:
        """Make a point from x, V and lam.

        Examples
        --------
        >>> Point.of([[1.0]], [0.0], [2.0]).x
        array([[1.]])
        """
        with np.errstate(divide="ignore", invalid="ignore"):  # a start that is not positive raises later, by name
            return cls(np.log(x), np.array(V), np.log(lam))

    @property
    def x(self) -> Array:
        """x itself; may underflow to zero where log_x does not."""
        return np.exp(self.log_x)

    @property
    def lam(self) -> Array:
        """lam itself; may underflow to zero where log_lam does not."""
        return np.exp(self.log_lam)


@dataclass(frozen=True)
class SparseTable:
    """A table over all S x A pairs, stored for the pairs that were seen; all others have one common value."""

    pairs: NDArray[np.int64]
    values: Array
    elsewhere: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", check.frozen(self.values))

    def at(self, pairs: NDArray[np.int64]) -> Array:
        """Values at the given pairs (as s * n_actions + a)."""
        order = np.argsort(self.pairs, kind="stable")
        place = order[np.minimum(np.searchsorted(self.pairs, pairs, sorter=order), len(order) - 1)]
        return np.where(self.pairs[place] == pairs, self.values[place], self.elsewhere)

    def dense(self, n_states: int, n_actions: int) -> Array:
        """The table over all pairs as an array."""
        flat = np.full(n_states * n_actions, self.elsewhere)
        flat[self.pairs] = self.values
        return flat.reshape(n_states, n_actions)


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """Outcome of `learn` and of `learn_adaptive`; printed, it is a table of what the log says about the policy.

    Attributes
    ----------
    status : Status
        How the run ended.
    success : bool
        Whether all steps were taken and no constraint is estimated to be broken.
    message : str
        How the run ended, and which constraints are estimated to be broken, in words.
    evaluation : Judgement
        Reward, constraints and their standard errors, estimated on the plug-in model of the log, in the user's units.
        Computed when first used.
    n_steps : int
        Steps taken; averages are over the iterates before each of them.
    x_mean : array, shape (S, A)
        Average of x: the approximate (reweighted) occupancy. Computed when first used. After a start from the plan, x
        of the plan if that was judged to be better; the notes say so.
    V_mean, lam_mean : arrays, shapes (S,), (I,)
        Averages of the duals.
    policy : Policy, shape (S, A)
        pi(a|s) proportional to x_mean(s, a); an array that can also act, explain itself and be saved.
    last : Point
        The iterate after the last step; a `start` for another run.
    settings : Resolved
        The resolved settings of the run.
    reference : Reference
        The mu_hat that was used.
    premises : tuple of Premise
        Which premises of Theorem 4.1 held in this run, or of Theorem 4.6 for a trajectory.
    guarantee : str or None
        The theorem's conclusion if all of them did, else None.
    diagnostics : dict
        Counts of the core: steps in each case of the x-update, steps that capped the sampled pair, root-finder
        evaluations, refreshes of the running sums.
    notes : tuple of str
        Further messages, for instance that the data contradicts `slater`.
    history : tuple of Level
        The levels of `learn_adaptive` (`dpdl.learner.adaptive.Level`); empty after `learn`.
    initial : array, shape (S,)
        The initial distribution.
    initial_estimated : bool
        Whether that is the distribution of the first states of the log's episodes.
    question : Question or None
        What was asked; converts rewards and utilities to the caller's units.
    labels : Labels or None
        What states and actions are called.
    log : Dataset or None
        The log itself, not a copy, for `Policy.explain`. It is not pickled.
    """

    status: Status
    ending: str
    n_steps: int
    settings: Resolved
    reference: Reference
    x_table: SparseTable = field(repr=False)
    last_log_x_table: SparseTable = field(repr=False)
    V_mean: Array = field(repr=False)
    lam_mean: Array = field(repr=False)
    V: Array = field(repr=False)
    log_lam: Array = field(repr=False)
    premises: tuple[Premise, ...] = field(repr=False)
    guarantee: str | None
    diagnostics: dict[str, int]
    initial: Array = field(repr=False)
    initial_estimated: bool = False
    notes: tuple[str, ...] = ()
    history: tuple[Any, ...] = field(default=(), repr=False)
    question: Question | None = field(default=None, repr=False)
    labels: Labels | None = field(default=None, repr=False)
    log: Dataset | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        if self.log is None:
            return self.__dict__
        _ = self.evaluation  # needs the log, which is not pickled
        policy = Policy(self.policy.probabilities, self.labels, self.question)  # without the log that explains it
        return self.__dict__ | {"log": None, "policy": policy}

    def __post_init__(self) -> None:
        for name in ("V_mean", "lam_mean", "V", "log_lam", "initial"):
            object.__setattr__(self, name, check.frozen(getattr(self, name)))

    @cached_property
    def evaluation(self) -> Judgement | None:
        """What the log says about the policy; None if the result was made without a log, or has too many pairs."""
        if self.log is None or self.reference.n_states * self.reference.n_actions > MOST_PAIRS:
            return None
        model = plug_in(self.log, self.settings.gamma, self.initial)
        return judge(self.policy.probabilities, self.log, model, estimated_start=self.initial_estimated)

    @property
    def success(self) -> bool:
        """Whether all steps were taken and no constraint is estimated to be broken."""
        return self.status is Status.COMPLETED and self.evaluation is not None and self.evaluation.kept

    @property
    def message(self) -> str:
        """How the run ended, and which constraints are estimated to be broken."""
        if self.evaluation is None:
            return f"{self.ending}; the policy was not judged"
        return "; ".join([self.ending, *(estimate.shortfall() for estimate in self.evaluation.broken)])

    def __repr__(self) -> str:
        lines = [f"{self.status.name}{'' if self.success else ' (no success)'}: {self.message}"]
        if self.evaluation is not None:
            lines += ["", *self.evaluation.lines()]
        lines += ["", f"{self.n_steps:,} steps, psi = {self.settings.psi:g}, slater = {self.settings.slater:g}"]
        held = sum(premise.holds for premise in self.premises)
        premises = f": {held} of the theorem's {len(self.premises)} premises hold" if self.premises else ""
        lines.append(
            f"guaranteed by the theorem: {self.guarantee}"
            if self.guarantee
            else f"estimated on the data, not guaranteed{premises}"
        )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        first, *rest = self.__repr__().split("\n\n")
        table = "" if self.evaluation is None else self.evaluation._repr_html_()
        last = "".join(f"<p>{escape(line)}</p>" for line in rest[-1].split("\n"))
        return f"<p><b>{escape(first)}</b></p>{table}{last}"

    @cached_property
    def x_mean(self) -> Array:
        """The average of x over all pairs."""
        return check.frozen(self.x_table.dense(self.reference.n_states, self.reference.n_actions))

    @cached_property
    def policy(self) -> Policy:
        """The learned policy; a state whose every pair has mass zero gets the uniform one."""
        table = policies.from_occupancy(self.x_mean)
        return Policy(table, self.labels, self.question, None if self.log is None else self._evidence)

    def _evidence(self) -> Evidence:
        """What the log says about each pair, at the averages of the duals."""
        assert self.log is not None
        scale = 1.0 if self.log.question is None else self.log.question.reward_scale

        def gains(rows: NDArray[np.void]) -> Array:
            return scale * (rows["r"] + rows["u"] @ self.lam_mean)

        return evidence(self.log, self.settings.gamma, {"advantage": (gains, scale * self.V_mean)})

    def gap(self, cmdp: CMDP, mu: ArrayLike) -> float:
        """Return the paper's Gap(x_mean) = j(psi) - J_kappa(x_mean) on the true model and data distribution.

        Examples
        --------
        >>> from dpdl import CMDP, learn
        >>> model = CMDP(P=[[[1.0], [1.0]]], r=[[1.0, 0.0]], u=[[[-1.0, 1.0]]], gamma=0.5, rho0=[1.0])
        >>> mu = [[0.5, 0.5]]
        >>> log = model.sample(100_000, mu, rng=0)
        >>> result = learn(log, gamma=0.5, psi=2, slater=0.5, T=100_000, order="once", rho0=[1.0], rng=0)
        >>> 0 <= result.gap(model, mu) < 1, round(result.saddle_value(model, mu), 6)
        (True, 1.0)
        >>> round(abs(result.approximation_error(model, mu)), 9)
        0.0
        """
        k = self._of(cmdp)
        return saddle.gap(cmdp, self.x_mean, mu, self.reference.mu_hat, k.psi, k.kappa, k.slater)

    def _of(self, cmdp: CMDP) -> Any:
        """The settings of the run, for a model with its discount."""
        if cmdp.gamma != self.settings.gamma:
            raise ValueError(f"cmdp has gamma {cmdp.gamma:g}, and the run had {self.settings.gamma:g}")
        return self.settings

    def saddle_value(self, cmdp: CMDP, mu: ArrayLike) -> float:
        """Return j(psi) of equation (31): the value of the game that the run played, on the true model."""
        k = self._of(cmdp)
        return saddle.saddle_value(cmdp, mu, self.reference.mu_hat, k.psi, k.kappa, k.slater)

    def approximation_error(self, cmdp: CMDP, mu: ArrayLike) -> float:
        """Return eps_approx(psi) of Remark 4.2: what the best safe policy earns more than the best one in Pi(psi).

        Infinite if Pi(psi) has no safe policy.
        """
        inside = cmdp.solve(psi=self._of(cmdp).psi, mu=mu)
        return math.inf if inside.status == "infeasible" else cmdp.solve().reward - inside.reward

    @property
    def last(self) -> Point:
        """The iterate after the last step."""
        log_x = self.last_log_x_table.dense(self.reference.n_states, self.reference.n_actions)
        return Point(log_x, self.V.copy(), self.log_lam.copy())
