"""Certificates: confidence bounds of a policy's reward and costs, in the caller's units.

For J_i, the discounted total of constraint i, a lower confidence bound at level delta/I for each of the I constraints,
so that all of them hold together with probability 1 - delta. Two methods:

normal   estimate and standard error of the posterior (`dpdl.deploying.posterior`), with Student's quantiles, which
         are the normal ones for large logs: asymptotic
finite   empirical Bernstein bounds (`dpdl.deploying.finite`): for any number of transitions, and much wider

Either speaks of a policy that was not chosen by its values on this log. `safe_policy` says what it does about that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from dpdl import _text as text
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.deploying import finite
from dpdl.deploying.posterior import Posterior, Value
from dpdl.files.headers import expect_names
from dpdl.models.judgement import Judge
from dpdl.models.plug_in import plug_in
from dpdl.question import pose

METHODS = ("normal", "finite")
#: A bound keeps its limit if it is less than this part of the mean gain of a step, over 1-gamma, on the wrong side.
TOLERANCE = 1e-7
#: Student's distribution is the normal one from here on; quantiles of smaller levels are not computed.
MOST_FREEDOM, LEAST_LEVEL = 1e6, 1e-300


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A figure with its confidence bound, in the caller's units.

    Attributes
    ----------
    name : str
        "reward", or the name of the constraint.
    estimate, error : float
        Estimate and standard error of the discounted total (of the discounted average per step if the limit is one).
    bound : float
        Confidence bound: upper for a cost, lower for a utility or the reward.
    limit : float or None
        Upper limit of a cost, lower limit 0 of a utility; None for the reward.
    is_cost, is_average : bool
        Whether the limit is an upper one; whether figures are averages per step instead of totals.
    kept : bool or None
        Whether the bound keeps the limit; None for the reward.
    effective : float
        How many transitions of the log count for the policy, see `Posterior.effective`.
    optimism : float
        What the bound allows for because the policy was chosen on the same log.
    worst : float or None
        The worst that a step is assumed to bring: the largest cost, the least utility or reward.
    fixed : bool
        Whether it never varied among rows with the same state and action, and is taken to be fixed by them.
    per_episode, per_episode_error : float or None
        Estimate without discounting, for a whole episode; None unless every episode ends.
    """

    name: str
    estimate: float
    error: float
    bound: float
    limit: float | None = None
    is_cost: bool = False
    is_average: bool = False
    kept: bool | None = None
    effective: float = 0.0
    optimism: float = 0.0
    worst: float | None = None
    fixed: bool = False
    per_episode: float | None = None
    per_episode_error: float | None = None

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of a table: name, estimate, error, bound, limit, verdict, per episode."""
        limit = "" if self.limit is None else f"{'<=' if self.is_cost else '>='} {self.limit:.4g}"
        limit += " a step" if self.is_average else ""
        bound = f"{'<=' if self.is_cost else '>='} {self.bound:.4g}"
        verdict = "" if self.kept is None else "kept" if self.kept else "NOT SHOWN"
        episode = " +- ".join(filter(None, (text.tidy(self.per_episode), text.tidy(self.per_episode_error, 2))))
        return (self.name, text.tidy(self.estimate), text.tidy(self.error, 2), bound, limit, verdict, episode)


HEADER = ("discounted", "estimate", "std. error", "bound", "limit", "", "per episode")


@dataclass(frozen=True, kw_only=True, repr=False)
class Certificate:
    """What a log shows about a policy, at a confidence level; `certify` makes one.

    Attributes
    ----------
    reward : Bound
    constraints : tuple of Bound
        All bounds of constraints hold together with probability 1 - delta; that of the reward by itself.
    behaviour : Bound or None
        The reward of the policy that made the log.
    delta : float
        Failure probability.
    method : {"normal", "finite"}
    gamma : float
    n_transitions : int
        Length of the log that the bounds are from.
    unseen : float
        Share of the discounted time that the policy spends at pairs which the log does not show (worst case).
    chosen_here : bool
        Whether the policy was chosen on the same log, see `safe_policy`.
    """

    reward: Bound
    constraints: tuple[Bound, ...]
    behaviour: Bound | None
    delta: float
    method: str
    gamma: float
    n_transitions: int
    unseen: float
    chosen_here: bool = False

    @property
    def holds(self) -> bool:
        """Whether every constraint is shown to be kept."""
        return all(one.kept for one in self.constraints)

    @property
    def failed(self) -> tuple[Bound, ...]:
        """The constraints that are not shown to be kept."""
        return tuple(one for one in self.constraints if not one.kept)

    @property
    def confidence(self) -> str:
        """The level in words, and whether it is asymptotic."""
        kind = "asymptotic" if self.method == "normal" else "for any number of transitions"
        return f"{100 * (1 - self.delta):.4g}% confidence, {kind}"

    def words(self, one: Bound) -> str:
        """What the bound of a constraint says."""
        return f"may be as {'high' if one.is_cost else 'low'} as {one.bound:.4g}"

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table, under `HEADER`."""
        rows = [self.reward.row, *(one.row for one in self.constraints)]
        if self.behaviour is not None:
            rows.insert(1, self.behaviour.row)
        return rows

    @property
    def remarks(self) -> list[str]:
        """What the table rests on, in sentences."""
        kind = {"normal": "Student's bounds, right for large logs", "finite": "empirical Bernstein bounds"}[self.method]
        found = [
            f"{self.confidence}: the bounds of all limits hold together, that of the reward by itself; {kind}",
            f"discount {self.gamma:g}; {self.n_transitions:,} transitions, about as informative as "
            f"{self.reward.effective:,.0f} of this policy itself",
        ]
        if self.chosen_here:
            flattery = ", ".join(f"{one.name} {one.optimism:.2g}" for one in (self.reward, *self.constraints))
            found.append(
                "the policy was chosen on the same log: what looks good by chance is drawn back, bounds allow for what "
                f"choosing still flatters the estimates by, found by resampling ({flattery})"
            )
        fixed = ", ".join(one.name for one in self.constraints if one.fixed)
        if fixed:
            found.append(f"taken to be fixed by state and action, because the log never shows otherwise: {fixed}")
        if self.unseen > 1e-9:
            found.append(f"{self.unseen:.2%} of the time is spent at pairs that the log does not show (worst case)")
        if self.method == "finite" or self.unseen > 1e-9:
            worst = [
                f"{one.name} of a step at {'most' if one.is_cost else 'least'} {one.worst:.4g}"
                for one in (self.reward, *self.constraints)
                if one.worst is not None
            ]
            found.append(f"assumed: {', '.join(worst)}")
        return found

    def __repr__(self) -> str:
        head = "every limit is shown to be kept" if self.holds else "NOT every limit is shown to be kept"
        return "\n".join([head, "", *text.aligned(HEADER, self.rows), "", *self.remarks])

    def _repr_html_(self) -> str:
        head = "every limit is shown to be kept" if self.holds else "NOT every limit is shown to be kept"
        return f"<p><b>{head}</b></p>{text.html_table(HEADER, self.rows)}" + "".join(
            f"<p>{escape(line)}</p>" for line in self.remarks
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Certificate:
        """Check what `to_json` returned, and make the certificate of it."""
        expect_names("certificate", content, set(cls.__dataclass_fields__))
        bounds = {"reward": _bound("reward", content["reward"])}
        if content["behaviour"] is not None:
            bounds["behaviour"] = _bound("behaviour", content["behaviour"])
        if not isinstance(content["constraints"], list):
            raise ValueError(f"constraints must be a list, got {content['constraints']!r:.200}")
        return cls(
            **{
                **content,
                **bounds,
                "constraints": tuple(_bound(f"constraints[{i}]", one) for i, one in enumerate(content["constraints"])),
                "delta": check.real("delta", content["delta"], above=0, below=1),
                "method": check.choice("method", content["method"], METHODS),
                "gamma": check.real("gamma", content["gamma"], above=0, below=1),
                "n_transitions": check.whole("n_transitions", content["n_transitions"], at_least=1),
                "unseen": check.real("unseen", content["unseen"], at_least=0),
                "chosen_here": check.flag("chosen_here", content["chosen_here"]),
            }
        )


def _bound(name: str, content: Any) -> Bound:
    expect_names(name, content, set(Bound.__dataclass_fields__))
    optional = ("limit", "worst", "per_episode", "per_episode_error")
    numbers = {
        key: check.real(f"{name}.{key}", content[key])
        for key in ("estimate", "error", "bound", "effective", "optimism", *optional)
        if not (key in optional and content[key] is None)
    }
    flags = {key: check.flag(f"{name}.{key}", content[key]) for key in ("is_cost", "is_average", "fixed")}
    kept = None if content["kept"] is None else check.flag(f"{name}.kept", content["kept"])
    if name.startswith("constraints") != (kept is not None) or (kept is None) != (content["limit"] is None):
        raise ValueError(f"{name} must have a limit and a verdict if it is a constraint, and neither otherwise")
    return Bound(**{**content, **numbers, **flags, "kept": kept, "name": check.text(f"{name}.name", content["name"])})


def certify(
    policy: ArrayLike,
    log: Dataset,
    *,
    gamma: float,
    limits: Mapping[str, float] | None = None,
    limit_on: str | None = None,
    delta: float = 0.05,
    method: str = "normal",
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
    worst_costs: ArrayLike | None = None,
) -> Certificate:
    """Bound reward and constraints of a policy from anywhere by what a log shows.

    Parameters
    ----------
    policy : array_like, shape (S, A)
        Action probabilities in each state, chosen without looking at this log.
    log : Dataset
    gamma : float
        Discount.
    limits, limit_on
        Upper limits of costs by name, and whether they are on the "total" or the "average" (`dpdl.question`).
    delta : float, optional
        Probability that a bound of some constraint fails.
    method : {"normal", "finite"}, optional
        Bounds by the normal approximation, with Student's quantiles, which are asymptotic; or empirical Bernstein
        bounds, which hold for any length of the log.
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.
    worst_costs : array_like, shape (I,), optional
        What a step costs at most; by default about the largest cost of the log, which a short log may not show yet.

    Returns
    -------
    Certificate
        It is assumed that the log's transitions come from one Markov decision process, and that rewards and costs lie
        in the range that `worst_costs`, or the log, and the scale of rewards give.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.integers(0, 2, 1000)
    >>> log = Dataset(0 * a, a, 0 * a, a, costs={"wear": a + rng.random(1000)}, n_states=1, n_actions=2)
    >>> question = {"gamma": 0.5, "limits": {"wear": 1.2}, "limit_on": "average"}
    >>> certify([[0.5, 0.5]], log, **question, rho0=[1.0]).constraints[0].row
    ('wear', '0.9987', '0.0092', '<= 1.014', '<= 1.2 a step', 'kept', '')
    """
    log = pose(log, gamma, limits, limit_on)
    return Certifier.of(log, gamma, delta, method, rho0, initial_states, worst_costs).certificate(policy)


class Range(NamedTuple):
    """Estimates of the totals of reward and gains, and bounds from both sides, each (1 + I,)."""

    estimate: Array
    lower: Array
    upper: Array


@dataclass(frozen=True, eq=False)
class Certifier:
    """Bounds for many policies from one log.

    Attributes
    ----------
    posterior : Posterior
    delta : float
    method : str
    chosen_here : bool
        Whether policies are chosen on the same log.
    thresholds : array, shape (I,)
        What the totals of the constraints must reach.
    optimism : array, shape (1 + I,), or None
        What bounds take off the estimates of reward and gains because the policy was chosen on the same log, in
        standard errors.
    """

    posterior: Posterior
    delta: float
    method: str
    chosen_here: bool
    thresholds: Array = field(repr=False)
    optimism: Array | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        log: Dataset,
        gamma: float,
        delta: float,
        method: str,
        rho0: ArrayLike | None,
        initial_states: ArrayLike | None,
        worst_costs: ArrayLike | None = None,
        chosen_here: bool = False,
    ) -> Certifier:
        """Check a caller's arguments."""
        check.instance("log", log, Dataset)
        gamma = check.real("gamma", gamma, above=0, below=1)
        delta = check.real("delta", delta, above=0, below=1)
        method = check.choice("method", method, METHODS)
        if method == "finite" and log.spreads is not None and any(log.spreads[name].any() for name in ("r", "u")):
            raise ValueError('method="finite" needs every reward and cost; a row of counts may hold a mean of many')
        posterior = Posterior.of(log, gamma, rho0, initial_states, worst_costs, drawn=chosen_here)
        return cls(posterior, delta, method, chosen_here, posterior.thresholds)

    def wide(self, value: Value) -> Array:
        """Return the distances between estimates and their bounds, for reward and constraints, (1 + I,)."""
        levels = np.full(len(value.J), self.delta / max(1, len(value.J) - 1))
        levels[0] = self.delta
        return _quantiles(levels, value.freedom) * value.error

    @cached_property
    def tolerance(self) -> Array:
        """How far a bound may be on the wrong side of its threshold: rounding of sums and of plans."""
        posterior = self.posterior
        size = abs(posterior.gains[1:]) @ posterior.visits_of / posterior.visits_of.sum()
        return TOLERANCE * size / (1 - posterior.gamma)

    def passes(self, policy: Array, value: Value) -> bool:
        """Whether the bounds of all constraints keep their limits."""
        return bool((self.lower(policy, value) >= self.thresholds - self.tolerance).all())

    def lower(self, policy: Array, value: Value) -> Array:
        """Return lower bounds of the totals of the constraints, (I,)."""
        return self.bounds(policy, value).lower[1:]

    def bounds(self, policy: Array, value: Value) -> Range:
        """Return estimates and bounds of a policy with these values."""
        if self.method == "finite":
            return Range(*finite.bounds(self.posterior, policy, self.delta))
        wide, flattery = self.wide(value), 0.0 if self.optimism is None else self.optimism * value.error
        return Range(value.J, value.J - wide - flattery, value.J + wide)

    def certificate(self, policy: ArrayLike) -> Certificate:
        """Return the certificate of a policy."""
        posterior = self.posterior
        log, question, gamma = posterior.log, posterior.log.question, posterior.gamma
        table = check.policy_array("policy", policy, log.n_states, log.n_actions)
        value = posterior.value(table)
        found, effective, episodes = self.bounds(table, value), posterior.effective(value, table), self._episodes(table)
        share = (1 - gamma) if question.limit_on == "average" else 1.0
        sign, kept = -1 if question.limits is not None else 1, found.lower[1:] >= self.thresholds - self.tolerance
        constraints = tuple(
            Bound(
                name=name,
                estimate=float(sign * share * found.estimate[1 + i]) + 0.0,
                error=float(share * value.error[1 + i]),
                bound=float(sign * share * found.lower[1 + i]) + 0.0,
                limit=0.0 if question.limits is None else question.limits[i],
                is_cost=question.limits is not None,
                is_average=question.limit_on == "average",
                kept=bool(kept[i]),
                effective=effective,
                optimism=0.0 if self.optimism is None else float(share * self.optimism[1 + i] * value.error[1 + i]),
                worst=float(sign * posterior.worst[1 + i]),
                fixed=not posterior.varies[1 + i],
                per_episode=None if episodes is None else float(episodes[0][1 + i]),
                per_episode_error=None if episodes is None else float(episodes[1][1 + i]),
            )
            for i, name in enumerate(question.names)
        )
        return Certificate(
            reward=self._reward("reward", found, value, effective, episodes),
            constraints=constraints,
            behaviour=self._logged,
            delta=self.delta,
            method=self.method,
            gamma=gamma,
            n_transitions=len(log),
            unseen=value.unseen,
            chosen_here=self.chosen_here,
        )

    @cached_property
    def _logged(self) -> Bound:
        policy, posterior = self.posterior.behaviour(), self.posterior
        value, plain = posterior.value(policy), replace(self, optimism=None)
        effective = posterior.effective(value, policy)
        return plain._reward("reward of the log", plain.bounds(policy, value), value, effective, self._episodes(policy))

    def _reward(
        self, name: str, found: Range, value: Value, effective: float, episodes: tuple[Array, Array] | None
    ) -> Bound:
        return Bound(
            name=name,
            estimate=float(found.estimate[0]),
            error=float(value.error[0]),
            bound=float(found.lower[0]),
            effective=effective,
            optimism=0.0 if self.optimism is None else float(self.optimism[0] * value.error[0]),
            worst=float(self.posterior.worst[0]),
            fixed=not self.posterior.varies[0],
            per_episode=None if episodes is None else float(episodes[0][0]),
            per_episode_error=None if episodes is None else float(episodes[1][0]),
        )

    def _episodes(self, policy: Array) -> tuple[Array, Array] | None:
        """Totals of an episode and their standard errors; None unless every episode ends."""
        posterior, log = self.posterior, self.posterior.log
        if not log.n_ended:
            return None
        counts = log.initial_counts
        estimated = counts is not None and posterior.n_starts == int(counts.sum())
        return Judge(log, plug_in(log, posterior.gamma, posterior.rho0), estimated).per_episode(policy)


def _quantiles(levels: Array, freedom: Array) -> Array:
    """Standard errors that are exceeded with probabilities `levels`, at least none: an estimate is never improved."""
    found = -stdtrit(np.clip(freedom, 1.0, MOST_FREEDOM), np.maximum(levels, LEAST_LEVEL))
    return np.maximum(found, 0.0)
