"""All parameters of a run, in one frozen object.

`resolve` replaces None by the values of the theory (module `theory`), given the sizes of the problem.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from dpdl import _validation as check
from dpdl import theory
from dpdl.files.headers import json_object
from dpdl.question import check_limits

#: Smallest floor accepted: 1/floor and its products with every bound of the step stay far inside double range.
SMALLEST_FLOOR = 1e-200

PROFILES = ("theory", "practice")
ORDERS = ("replacement", "shuffle", "trajectory")
#: Value of `mixing_time` that requests an estimate.
ESTIMATE = "estimate"

_REQUIRED = ("gamma", "psi", "slater", "delta", "c_o", "c_e")
_BOUNDS: dict[str, dict[str, float]] = {
    "gamma": {"above": 0, "below": 1},
    "psi": {"at_least": 1, "at_most": 1e30},
    "slater": {"at_least": 1e-30, "at_most": 1},
    "delta": {"at_least": 1e-100, "below": 1},
    "eps": {"at_least": 1e-30},
    "kappa": {"at_least": 0},
    "floor": {"at_least": SMALLEST_FLOOR, "at_most": 1},
    "radius_V": {"above": 0, "at_most": 1e100},
    "radius_lam": {"above": 0, "at_most": 1e100},
    "mixing_time": {"at_least": 1},
    "tol": {"above": 0},
    **{name: {"above": 0} for name in ("c_o", "c_e", "eta", "alpha_V", "alpha_lam", "alpha_x")},
}


class SettingKeywords(TypedDict, total=False):
    """Keywords of `Settings`, for every function that takes settings."""

    gamma: float
    limits: Any
    limit_on: str | None
    psi: float
    slater: float
    T: int | None
    eps: float | None
    delta: float
    kappa: float | None
    floor: float | None
    order: str
    eta: float | None
    alpha_V: float | None
    alpha_lam: float | None
    alpha_x: float | None
    radius_V: float | None
    radius_lam: float | None
    mixing_time: float | str | None
    c_o: float
    c_e: float
    refresh: int | None
    profile: str
    tol: float | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of a run.

    Parameters
    ----------
    gamma : float
        Discount, in (0, 1).
    limits : mapping of str to float, optional
        Upper limits of the log's costs, by name; stored as a tuple of pairs.
    limit_on : {"total", "average"}
        Needed with limits: whether they bound discounted totals, or discounted averages a step.
    psi : float
        Deviation control, >= 1: learned occupancies stay within psi times the data distribution. Should be at least
        the concentrability C* of the problem, which is unknown; a larger psi needs more data.
    slater : float
        varphi in (0, 1]: some policy has every J^u_i >= slater/(1-gamma).
    T : int, optional
        Number of steps. Needed unless `eps` is given, which then implies that of Theorem 4.1 or 4.6.
    eps : float, optional
        Target accuracy. Determines T, kappa and floor where those are None.
    delta : float
        Failure probability.
    kappa : float, optional
        Conservatism: learn with J^u_i >= kappa. None: 5 slater eps, or 0 if there is no eps.
    floor : float, optional
        Least value of mu_hat. None: that of Proposition 4.3, at eps or, without one, at the largest eps of Theorem 4.1.
    order : {"replacement", "shuffle", "trajectory"}
        How the log is read: independent draws, epochs without replacement, or repeatedly in its own order.
    eta, alpha_V, alpha_lam, alpha_x : float, optional
        Step size and the scales that divide it. None: those of Theorem 4.1.
    radius_V, radius_lam : float, optional
        Bounds of \\|V(s)\\| and of sum lam. None: those of equation (8).
    mixing_time : float or "estimate", optional
        Bound of the mixing time of a log that is one trajectory: eta = 1/sqrt(mixing_time T). With "estimate", `learn`
        uses the upper confidence bound of `dpdl.mixing.estimate_mixing_time` at delta, and raises ValueError if the log
        is too short for one.
    c_o, c_e : float
        Constants c_o (c'_o) of Theorem 4.1 (4.6) and c'_e of Proposition H.4, which the paper does not give.
    profile : {"theory", "practice"}
        "theory" is Algorithm 1 as the paper states it. "practice" starts from the plan of `dpdl.learner.practice`,
        takes its steps in the phases of `dpdl.learner.phases` and returns the best point that was judged; its policy
        takes no action that the log does not show in a state that it shows, or whose probability is below 0.1%.
    tol : float, optional
        In practice: stop at the start or at the end of a phase if the gap on the plug-in model, relative to the reward
        of the policy, is at most this, and no constraint is broken. What the margin kappa costs is part of the gap.
    refresh : int, optional
        Steps between full recomputations of the running sums. None: the larger of 2^16 and four times the visited
        pairs, which costs little and bounds their relative drift by that number times 2^-53.

    Examples
    --------
    >>> settings = Settings(gamma=0.9, psi=2, slater=0.3, T=1000)
    >>> settings == Settings.from_json(settings.to_json())
    True
    >>> round(settings.resolve(10, 4, 1).eta, 4)
    0.0316
    """

    gamma: float
    psi: float
    slater: float
    T: int | None = None
    eps: float | None = None
    delta: float = 0.05
    kappa: float | None = None
    floor: float | None = None
    order: str = "replacement"
    eta: float | None = None
    alpha_V: float | None = None
    alpha_lam: float | None = None
    alpha_x: float | None = None
    radius_V: float | None = None
    radius_lam: float | None = None
    mixing_time: float | str | None = None
    c_o: float = 1.0
    c_e: float = 1.0
    refresh: int | None = None
    profile: str = "theory"
    tol: float | None = None
    limits: Any = None
    limit_on: str | None = None

    def __post_init__(self) -> None:
        for name, bounds in _BOUNDS.items():
            if name != "mixing_time" or not isinstance(self.mixing_time, str) or self.mixing_time != ESTIMATE:
                check.convert_field(self, name, check.real, required=name in _REQUIRED, **bounds)
        check.convert_field(self, "T", check.whole, at_least=1)
        check.convert_field(self, "refresh", check.whole, at_least=1)
        check.choice("order", self.order, ORDERS)
        given = self.limits if self.limits is None or isinstance(self.limits, Mapping) else dict(self.limits)
        chosen, _ = check_limits(given, self.limit_on)
        object.__setattr__(self, "limits", tuple(chosen.items()) or None)
        check.choice("profile", self.profile, PROFILES)
        if self.tol is not None and self.profile != "practice":
            raise ValueError(
                f"tol = {self.tol:g} needs profile 'practice': Algorithm 1 as the paper states it takes T steps"
            )
        # No utility exceeds 1/(1-gamma) in discounted sum.
        if self.kappa is not None:
            check.real("kappa", self.kappa, at_most=1 / (1 - self.gamma))
        elif self.eps is not None and theory.conservatism(self.problem(1, 1, 0), self.eps) > 1 / (1 - self.gamma):
            raise ValueError(
                f"eps = {self.eps:g} makes kappa = 5 slater eps exceed 1/(1-gamma); give kappa or a smaller eps"
            )
        if self.T is None and self.eps is None:
            raise ValueError("give T (a number of steps) or eps (an accuracy, which implies T)")

    @property
    def asked(self) -> tuple[float, dict[str, float] | None, str | None]:
        """The arguments gamma, limits and limit_on of `dpdl.question.pose`."""
        return self.gamma, None if self.limits is None else dict(self.limits), self.limit_on

    def problem(self, n_states: int, n_actions: int, n_utilities: int) -> theory.Problem:
        """Return the `theory.Problem` of these settings."""
        return theory.Problem(n_states, n_actions, n_utilities, self.gamma, self.slater, self.psi)

    def required_steps(self, problem: theory.Problem) -> int:
        """Steps that Theorem 4.1 asks for at eps, or Theorem 4.6 if a mixing time is given."""
        assert self.eps is not None
        if self.mixing_time is None:
            return theory.descent_steps(problem, self.eps, self.delta, self.c_o)
        return theory.async_descent_steps(problem, self.eps, self.delta, float(self.mixing_time), self.c_o)

    def required_reference(self, problem: theory.Problem) -> int:
        """Transitions for mu_hat that Proposition 4.3 asks for at eps, or H.4 if a mixing time is given."""
        assert self.eps is not None
        if self.mixing_time is None:
            return theory.reference_samples(problem, self.eps, self.delta)
        return theory.async_reference_samples(problem, self.eps, self.delta, float(self.mixing_time), self.c_e)

    def resolve(self, n_states: int, n_actions: int, n_utilities: int) -> Resolved:
        """Replace None by the values of the theory, except in eps and mixing_time, where None means unknown."""
        problem = self.problem(n_states, n_actions, n_utilities)
        eps, n_steps, mixing_time = self.eps, self.T, self.mixing_time
        if isinstance(mixing_time, str):
            raise ValueError("mixing_time = 'estimate' needs a log: see dpdl.mixing.estimate_mixing_time")
        if n_steps is None:
            n_steps = self.required_steps(problem)
        if n_steps >= 2**63:
            raise ValueError(f"eps = {eps:g} requires {n_steps:.3g} steps, too many for 64 bits; give T")
        values: dict[str, Any] = {
            "T": n_steps,
            "kappa": 0.0 if eps is None else theory.conservatism(problem, eps),
            "floor": theory.reference_floor(problem, theory.largest_eps(problem) if eps is None else eps),
            "eta": theory.step_size(n_steps, mixing_time),
            "alpha_V": theory.scale_V(problem),
            "alpha_lam": theory.scale_lam(problem),
            "alpha_x": theory.scale_x(problem),
            "radius_V": theory.radius_V(self.gamma, self.slater),
            "radius_lam": theory.radius_lam(self.slater),
        }
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return Resolved(**(values | given))

    @classmethod
    def from_theory(
        cls, n_states: int, n_actions: int, n_utilities: int, **keywords: Unpack[SettingKeywords]
    ) -> Resolved:
        """Return the constants of Theorem 4.1 for gamma, slater, psi and eps, including T.

        Examples
        --------
        >>> Settings.from_theory(3, 2, 1, gamma=0.5, slater=0.5, psi=1, eps=0.2).kappa
        0.5
        """
        settings = cls.of(None, dict(keywords))
        if settings.eps is None:
            raise TypeError("missing setting 'eps'")
        return settings.resolve(n_states, n_actions, n_utilities)

    @classmethod
    def practical(
        cls, n_states: int, n_actions: int, n_utilities: int, **keywords: Unpack[SettingKeywords]
    ) -> Settings:
        """Return settings for budgets of some 10^7 steps, for which the scales of Theorem 4.1 are too slow.

        They were tuned on a gridworld and no theorem covers them: alpha_V, alpha_lam and alpha_x are 50, 0.3 and 5e-4
        times the theorem's, and \\|V(s)\\| is at most 1.5/(1-gamma). Keywords are those of `Settings`, and override
        these.

        Examples
        --------
        >>> Settings.practical(10, 4, 1, gamma=0.5, slater=0.3, psi=2, T=1000).radius_V
        3.0
        """
        settings = cls.of(None, dict(keywords))
        problem = settings.problem(n_states, n_actions, n_utilities)
        scales = {
            "alpha_V": 50 * theory.scale_V(problem),
            "alpha_lam": 0.3 * theory.scale_lam(problem),
            "alpha_x": 5e-4 * theory.scale_x(problem),
            "radius_V": 1.5 / (1 - settings.gamma),
        }
        return cls.of(settings, {name: value for name, value in scales.items() if name not in keywords})

    def to_json(self) -> str:
        """Convert to JSON; `from_json` returns an equal object, bit for bit."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read what `to_json` wrote; an unknown name is a TypeError."""
        try:
            values = json.loads(check.text("text", text), object_pairs_hook=json_object)
        except RecursionError:
            raise ValueError("settings are nested too deeply to be read as JSON") from None
        if not isinstance(values, dict):
            raise TypeError(f"settings must be a JSON object, got {type(values).__name__}")
        return cls.of(None, values)

    @classmethod
    def of(cls, settings: Settings | None, keywords: dict[str, Any]) -> Settings:
        """Make settings from an object, from keywords, or from an object changed by keywords; unknown names raise."""
        names = {field.name for field in dataclasses.fields(cls)}
        for name in keywords:
            if name not in names:
                raise TypeError(f"unknown setting {name!r}; {check.suggestion(name, names, 'settings')}")
        if settings is not None:
            if not isinstance(settings, Settings):
                raise TypeError(f"settings must be a Settings, got {type(settings).__name__}")
            given = dataclasses.asdict(settings)
            if isinstance(settings, Resolved) and settings.eta == theory.step_size(settings.T, settings.mixing_time):
                given["eta"] = None  # it was computed from T, which may change
            return Settings(**(given | keywords))
        missing = [name for name in ("gamma", "psi", "slater") if name not in keywords]
        if missing:
            raise TypeError(f"missing setting {missing[0]!r}")
        return cls(**keywords)


@dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Settings in which everything that a run needs has a value; made by `Settings.resolve`."""

    T: int
    kappa: float
    floor: float
    eta: float
    alpha_V: float
    alpha_lam: float
    alpha_x: float
    radius_V: float
    radius_lam: float
    mixing_time: float | None = None
