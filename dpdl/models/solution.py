"""Values of policies on a known model, and best safe policies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dpdl._validation import Array


@dataclass(frozen=True)
class Evaluation:
    """Reward, utilities and occupancy of a policy.

    Attributes
    ----------
    reward : float
        Expected discounted reward J.
    utilities : ndarray, shape (I,)
        Expected discounted utilities J^u_i; the policy is safe if none is negative.
    occupancy : ndarray, shape (S, A)
        Expected discounted visits, summing to 1/(1-gamma) unless episodes end.
    """

    reward: float
    utilities: Array
    occupancy: Array


@dataclass(frozen=True, eq=False)
class Solution(Evaluation):
    """The best safe policy that was found, with bounds and multipliers.

    Attributes
    ----------
    reward, utilities, occupancy
        The evaluation of `policy`; NaN, as is the policy, if there is none.
    status : {"optimal", "infeasible", "inaccurate", "limit", "interrupted"}
        "optimal": the policy meets every constraint within 1e-9/(1-gamma), in units of its largest value in a step,
        and earns `upper` within the tolerance that was asked for, or within 1e-9/(1-gamma), in units of the largest
        reward of a step, if that is more. "infeasible": no policy meets every constraint, as `lam` proves.
        "inaccurate": neither could be shown, for lack of precision, and the policy may be unsafe or far from the best;
        the bounds hold. This usually happens only with gamma within some 1e-6 of one, or probabilities below 1e-8, and
        a tolerance below 1e-8. "limit" and "interrupted": the search ended early, by a limit of time or columns, or by
        Ctrl-C. The policy is the best so far and the bounds hold.
    policy : ndarray, shape (S, A)
        Action probabilities; any in states that the policy never reaches.
    lower, upper : float
        Bounds of the largest reward of a safe policy. `lower` is what the policy earns, less the error of its
        evaluation; minus infinity if it is not safe. NaN if infeasible.
    lam : ndarray, shape (I,)
        Multipliers of the upper bound. If infeasible: weights of the utilities, for which every policy's
        weighted utility is below kappa; they sum to one unless the caps of psi are part of the proof. NaN if none were
        found.
    V : ndarray, shape (S,)
        Proves the upper bound, and with it infeasibility: V(s) >= r(s, a) + <u(s, a), lam> + gamma sum P V in every
        pair, and upper = <rho0, V> - kappa sum lam, up to rounding; without r if infeasible. Further constraints, such
        as those of D(psi), have multipliers of their own, which take part in the proof and are not kept.
    slater : tuple of float
        Lower and upper bound of the Slater constant, as far as phase one of the planner went; infinite if it was not
        needed.
    n_columns : int
        Policies that the planner found; zero for a linear program.
    """

    status: str
    policy: Array
    lower: float
    upper: float
    lam: Array = field(repr=False)
    V: Array = field(repr=False)
    slater: tuple[float, float] = (-np.inf, np.inf)
    n_columns: int = 0

    @property
    def gap(self) -> float:
        """The gap of the bounds, relative to the larger of them; infinite without a safe policy."""
        if not self.lower > -np.inf:
            return np.inf
        return (self.upper - self.lower) / max(abs(self.lower), abs(self.upper), np.finfo(float).tiny)

    @classmethod
    def empty(cls, status: str, shape: tuple[int, ...], n_states: int, n_utilities: int) -> Solution:
        """Return a solution without policy, bounds and multipliers."""
        table, utilities = np.full(shape, np.nan), np.full(n_utilities, np.nan)
        lower, upper = (np.nan, np.nan) if status == "infeasible" else (-np.inf, np.inf)
        return cls(np.nan, utilities, table, status, table, lower, upper, utilities, np.full(n_states, np.nan))

    def scaled(self, sizes: Array) -> Solution:
        """Return the solution of the model whose reward and utilities are larger by these factors."""
        reward, utilities, (lower, upper) = float(sizes[0]), sizes[1:], self.slater
        lam = self.lam / utilities
        size = reward
        if self.status == "infeasible":  # a proof by the utilities alone, whose weights keep their sum
            size = float(self.lam.sum() / lam.sum()) if lam.any() else 1.0
        least, most = (utilities.min(), utilities.max()) if len(utilities) else (1.0, 1.0)
        return replace(
            self,
            reward=reward * self.reward,
            utilities=utilities * self.utilities,
            lower=reward * self.lower,
            upper=reward * self.upper,
            lam=size * lam,
            V=size * self.V,
            slater=(lower * (least if lower > 0 else most), upper * (most if upper > 0 else least)),
        )
