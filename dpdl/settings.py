"""All parameters of a run, in one frozen object.

None stands for what is derived: psi, slater and T from the plan of the plug-in model (`dpdl.learner.defaults`), all
other constants from the theory (`Settings.resolve`). A `Resolved` object remembers what it was derived from, so that a
change of one parameter derives the others again and keeps what the caller has set.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dpdl import _validation as check
from dpdl import theory
from dpdl.files.headers import json_object
from dpdl.question import check_limits

ORDERS = ("replacement", "shuffle", "trajectory", "once")
#: Orders in which one trajectory is read as it happened.
IN_ORDER = ("trajectory", "once")
#: Value of `mixing_time` that requests an estimate.
ESTIMATE = "estimate"

_REQUIRED = ("gamma", "delta", "c_o")
_BOUNDS: dict[str, dict[str, float]] = {
    "gamma": {"above": 0, "below": 1},
    "psi": {"at_least": 1, "at_most": 1e30},
    "slater": {"at_least": 1e-30, "at_most": 1},
    "delta": {"at_least": 1e-100, "below": 1},
    "eps": {"at_least": 1e-30},
    "kappa": {"at_least": 0},
    "floor": {"at_least": theory.SMALLEST_FLOOR, "at_most": 1},
    "radius_V": {"above": 0, "at_most": 1e100},
    "radius_lam": {"above": 0, "at_most": 1e100},
    "mixing_time": {"at_least": 1},
    **{name: {"above": 0} for name in ("c_o", "c_e", "eta", "alpha_V", "alpha_lam", "alpha_x")},
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of a run.

    Parameters
    ----------
    gamma : float
        Discount, in (0, 1).
    psi : float, optional
        Deviation control, >= 1: learned occupancies stay within psi times the data distribution. Should be at least
        the concentrability C* of the problem, which is unknown; a larger psi needs more data. None: from the plan.
    slater : float, optional
        varphi in (0, 1]: some policy has every J^u_i >= slater/(1-gamma). None: from the plug-in model.
    T : int, optional
        Number of steps. None: that of Theorem 4.1 or 4.6 at `eps`; without eps, a thousand for each visited pair.
    eps : float, optional
        Target accuracy. Determines T, kappa and floor where those are None.
    delta : float
        Failure probability.
    kappa : float, optional
        Conservatism: learn with J^u_i >= kappa. None: 5 slater eps, or 0 if there is no eps.
    floor : float, optional
        Least value of mu_hat. None: that of Proposition 4.3, at eps or, without one, at the largest eps of Theorem 4.1.
    order : {"replacement", "shuffle", "trajectory", "once"}
        How the log is read: independent draws, epochs without replacement, repeatedly in its own order, or once in its
        own order. "once" needs as many rows as steps.
    eta, alpha_V, alpha_lam, alpha_x : float, optional
        Step size and the scales that divide it. None: those of Theorem 4.1.
    radius_V, radius_lam : float, optional
        Bounds of \\|V(s)\\| and of sum lam. None: those of equation (8).
    mixing_time : float or "estimate", optional
        Bound of the mixing time of a log that is one trajectory, read in its own order: the budgets are then those of
        Theorem 4.6. With "estimate", `learn` uses the upper confidence bound of `dpdl.mixing.estimate_mixing_time` at
        delta, and raises ValueError if the log is too short for one.
    short_steps : bool
        With a mixing time: eta = 1/sqrt(mixing_time T) instead of 1/sqrt(T), the remark that ends appendix H.2, with
        its smaller budget.
    c_o, c_e : float
        Constants c_o (c'_o) of Theorem 4.1 (4.6), which the paper does not give, and c'_e of Proposition H.4; None: the
        one that its proof uses.
    refresh : int, optional
        Steps between full recomputations of the running sums. None: the larger of 2^16 and four times the visited
        pairs, which costs little and bounds their relative drift by that number times 2^-53.
    limits : mapping of str to float, optional
        Upper limits of the log's costs, by name; stored as a tuple of pairs.
    limit_on : {"total", "average"}
        Needed with limits: whether they bound discounted totals, or discounted averages a step.

    Examples
    --------
    >>> settings = Settings(gamma=0.9, psi=2, slater=0.3, T=1000)
    >>> settings == Settings.from_json(settings.to_json())
    True
    >>> resolved = settings.resolve(10, 4, 1)
    >>> round(resolved.eta, 4), round(resolved.changed(T=100).resolve(10, 4, 1).eta, 4)
    (0.0316, 0.1)
    """

    gamma: float
    psi: float | None = None
    slater: float | None = None
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
    short_steps: bool = False
    c_o: float = 1.0
    c_e: float | None = None
    refresh: int | None = None
    limits: Any = None
    limit_on: str | None = None

    def __post_init__(self) -> None:
        for name, bounds in _BOUNDS.items():
            if name != "mixing_time" or not isinstance(self.mixing_time, str) or self.mixing_time != ESTIMATE:
                check.convert_field(self, name, check.real, required=name in _REQUIRED, **bounds)
        given = self.limits if self.limits is None or isinstance(self.limits, Mapping) else dict(self.limits)
        chosen, _ = check_limits(given, self.limit_on)
        object.__setattr__(self, "limits", tuple(chosen.items()) or None)
        check.convert_field(self, "T", check.whole, at_least=1)
        check.convert_field(self, "refresh", check.whole, at_least=1)
        check.convert_field(self, "short_steps", check.flag, required=True)
        check.choice("order", self.order, ORDERS)
        if self.mixing_time is not None and self.order not in IN_ORDER:
            raise ValueError(
                f"mixing_time is about a trajectory read in its own order: use order='trajectory' or 'once', "
                f"not {self.order!r}"
            )
        if self.short_steps and self.mixing_time is None:
            raise ValueError("short_steps needs mixing_time: eta = 1/sqrt(mixing_time T)")
        # No utility exceeds 1/(1-gamma) in discounted sum.
        if self.kappa is not None:
            check.real("kappa", self.kappa, at_most=1 / (1 - self.gamma))
        elif self.eps is not None and self.slater is not None and 5 * self.slater * self.eps > 1 / (1 - self.gamma):
            raise ValueError(
                f"eps = {self.eps:g} makes kappa = 5 slater eps exceed 1/(1-gamma); give kappa or a smaller eps"
            )

    @property
    def stated(self) -> Settings:
        """These settings as the caller gave them, None where a value was derived."""
        return self

    @property
    def asked(self) -> tuple[float, dict[str, float] | None, str | None]:
        """The arguments gamma, limits and limit_on of `dpdl.question.pose`."""
        return self.gamma, None if self.limits is None else dict(self.limits), self.limit_on

    @property
    def is_complete(self) -> bool:
        """Whether psi, slater and T or eps are given, so that no plan is needed to find them."""
        steps_known = self.T is not None or self.eps is not None
        return self.psi is not None and self.slater is not None and steps_known

    def changed(self, **changes: Any) -> Settings:
        """Return the stated settings with some changed; unknown names raise."""
        return Settings.of(self, dict(changes))

    def problem(self, n_states: int, n_actions: int, n_utilities: int) -> theory.Problem:
        """Return the `theory.Problem` of these settings."""
        if self.psi is None or self.slater is None:
            raise TypeError(f"missing setting {'psi' if self.psi is None else 'slater'!r}")
        return theory.Problem(n_states, n_actions, n_utilities, self.gamma, self.slater, self.psi)

    def required_steps(self, problem: theory.Problem) -> int:
        """Steps that Theorem 4.1 asks for at eps, or Theorem 4.6 if a mixing time is given."""
        assert self.eps is not None
        if self.mixing_time is None:
            return theory.descent_steps(problem, self.eps, self.delta, self.c_o)
        bound = float(self.mixing_time)
        return theory.async_descent_steps(problem, self.eps, self.delta, bound, self.c_o, short_steps=self.short_steps)

    def required_reference(self, problem: theory.Problem) -> int:
        """Transitions for mu_hat that Proposition 4.3 asks for at eps, or H.4 if a mixing time is given."""
        assert self.eps is not None
        if self.mixing_time is None:
            return theory.reference_samples(problem, self.eps, self.delta)
        return theory.async_reference_samples(problem, self.eps, self.delta, float(self.mixing_time), self.c_e)

    def resolve(self, n_states: int, n_actions: int, n_utilities: int, stated: Settings | None = None) -> Resolved:
        """Replace None by the values of the theory, except in eps and mixing_time, where None means unknown.

        `stated` is what these settings were completed from, if values were found from a log.
        """
        problem = self.problem(n_states, n_actions, n_utilities)
        eps, n_steps, mixing_time = self.eps, self.T, self.mixing_time
        if isinstance(mixing_time, str):
            raise ValueError("mixing_time = 'estimate' needs a log: see dpdl.mixing.estimate_mixing_time")
        if n_steps is None and eps is None:
            raise ValueError("give T (a number of steps) or eps (an accuracy, which implies T)")
        if n_steps is None:
            n_steps = self.required_steps(problem)
        if n_steps >= 2**63:
            raise ValueError(f"eps = {eps:g} requires {n_steps:.3g} steps, too many for 64 bits; give T")
        values: dict[str, Any] = {
            "T": n_steps,
            "kappa": 0.0 if eps is None else theory.conservatism(problem, eps),
            "floor": theory.reference_floor(problem, theory.largest_eps(problem) if eps is None else eps),
            "eta": theory.step_size(n_steps, mixing_time if self.short_steps else None),
            "alpha_V": theory.scale_V(problem),
            "alpha_lam": theory.scale_lam(problem),
            "alpha_x": theory.scale_x(problem),
            "radius_V": theory.radius_V(problem.gamma, problem.slater),
            "radius_lam": theory.radius_lam(problem.slater),
        }
        given = {name: value for name, value in self.to_dict().items() if value is not None}
        resolved = Resolved(**(values | given))
        object.__setattr__(resolved, "_stated", stated or self.stated)
        return resolved

    @classmethod
    def from_theory(cls, n_states: int, n_actions: int, n_utilities: int, **keywords: Any) -> Resolved:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Settings)}

    def to_json(self) -> str:
        """Convert the stated settings to JSON; `from_json` returns an equal object, bit for bit."""
        return json.dumps(self.stated.to_dict(), indent=1)

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
        names = {field.name for field in dataclasses.fields(Settings)}
        for name in keywords:
            if name not in names:
                raise TypeError(f"unknown setting {name!r}; {check.suggestion(name, names, 'settings')}")
        if settings is not None:
            if not isinstance(settings, Settings):
                raise TypeError(f"settings must be a Settings, got {type(settings).__name__}")
            return replace(settings.stated, **keywords)
        if "gamma" not in keywords:
            raise TypeError("missing setting 'gamma'")
        return Settings(**keywords)


@dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Settings in which everything that a run needs has a value; made by `Settings.resolve`.

    `changed` derives again what depends on the change; `dataclasses.replace` takes every value as stated.
    """

    psi: float
    slater: float
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
    _stated: Settings | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def stated(self) -> Settings:
        """The settings that these were derived from."""
        return Settings(**self.to_dict()) if self._stated is None else self._stated
