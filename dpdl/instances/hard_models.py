"""Closed forms of the hard instances of `dpdl.instances.hard`.

Every formula is that of appendix F, with the slips corrected that `dpdl.instances.hard` lists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.instances.hard_bounds import visits
from dpdl.instances.instance import Instance

Signs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HardInstance(Instance, ABC):
    """Base of the two families: an `Instance` whose answers are formulas.

    The model's last state is the null state s_{-1}, which only the data visits. C* is exact: every policy visits s_0 as
    often, C mu(s_0) times in the discounted share of time. Without a choice the optimal policy takes action 0.
    """

    @abstractmethod
    def occupancy(self, policy: ArrayLike) -> Array:
        """Return the (S, A) discounted occupancy of a policy, by formula."""

    @abstractmethod
    def utilities(self, policy: ArrayLike) -> Array:
        """Return the utilities J^u_i of a policy, by formula."""

    def is_safe(self, policy: ArrayLike) -> bool:
        """Return whether no utility is negative: pi(a_i) <= pi(b_i) <= 1/(4K), or pi(b | s^j) = theta_j throughout.

        The policy's numbers are compared as they are, without a tolerance. With Remark F.4's e' (`repaired`) more
        policies are safe, and the sums that are compared carry roundings.

        Examples
        --------
        >>> from dpdl.instances import lower_bound
        >>> hard = lower_bound(4, 3, 8, rng=0)
        >>> policy = hard.optimal_policy.copy()
        >>> hard.is_safe(policy)
        True
        >>> policy[1] = [0.25, 0.25 - 1e-16, 0.5]  # pi(a) > pi(b) by a hair
        >>> hard.is_safe(policy)
        False
        """
        return bool(self.utilities(policy).min() >= 0)

    def violation(self, policy: ArrayLike) -> float:
        """Return the sum of the utilities' negative parts.

        Examples
        --------
        >>> from dpdl.instances import no_slater
        >>> hard = no_slater(4, gamma=0.5, theta=[0, 0, 1, 1], varpi=0.5)
        >>> round(hard.violation(hard.optimal_policy[:, ::-1]), 9)  # wrong everywhere: v varpi/(1-gamma)
        0.066666667
        """
        return float(np.maximum(-self.utilities(policy), 0).sum())

    def _checked(self, policy: ArrayLike) -> Array:
        return check.policy_array("policy", policy, self.cmdp.n_states, self.cmdp.n_actions)


@dataclass(frozen=True, eq=False)
class BlockInstance(HardInstance):
    """A CMDP of Theorem 5.1; see `lower_bound`.

    Block j has the states 4j .. 4j+3: s_0, s_1, s_plus, s_minus. In a constrained block the actions at s_1 are a_i = i,
    b_i = K + i and e = 2K, the last; in an unconstrained block they are a = 0 and e, which is all the rest, with mu on
    the last. The first S_c K utilities are rho_c v1 (pi(b_i) - pi(a_i)), block by block; the others are
    rho_c v1 (1/(4K) - pi(b_i)). If `repaired`, action 1 at s_0 is e', and all the other ones are e.

    Attributes
    ----------
    theta_c : ndarray of int, shape (S_c, K)
    theta_u : ndarray of int, shape (S_u,)
        The hidden signs, each -1 or 1.
    varpi_c, varpi_u : float
        How much they matter, in (0, 1/2]; varpi_u is 0 if there are no unconstrained blocks.
    repaired : bool
        Whether it is the variant of Remark F.4.
    """

    theta_c: Signs
    theta_u: Signs
    varpi_c: float
    varpi_u: float
    repaired: bool

    def occupancy(self, policy: ArrayLike) -> Array:
        """Return the (S, A) discounted occupancy of a policy, by formula.

        Examples
        --------
        >>> from dpdl.instances import lower_bound
        >>> hard = lower_bound(4, 3, 8, gamma=0.5, rng=0)
        >>> hard.occupancy(hard.optimal_policy)[:2].round(6)  # rho v0/(1-gamma) and rho v1 with rho = 1/4
        array([[0.4     , 0.      , 0.      ],
               [0.016667, 0.016667, 0.033333]])
        """
        pi = self._checked(policy)
        v0, v1, v = visits(self.cmdp.gamma)
        rho, gain, scale = self._rho, self._gain(pi), 1 - self.cmdp.gamma
        ends = rho * v / scale * (1 + gain) / 2, rho * v / scale * (1 - gain) / 2
        states = np.column_stack([rho * v0 / scale, rho * v1, *ends])
        return np.append(states, 0.0)[:, None] * pi

    def reward(self, policy: ArrayLike) -> float:
        """Return the reward J of a policy, by formula (equation (39)).

        Examples
        --------
        >>> from dpdl.instances import lower_bound
        >>> hard = lower_bound(4, 3, 8, rng=0)
        >>> abs(hard.reward(hard.optimal_policy) - hard.optimal_value) < 1e-15
        True
        """
        pi = self._checked(policy)
        v = visits(self.cmdp.gamma)[2]
        return float(v / (1 - self.cmdp.gamma) * (self._rho @ self._gain(pi)) - self._lift(pi))

    def utilities(self, policy: ArrayLike) -> Array:
        """Return the utilities of a policy, by formula: all >= 0 iff pi(a_i) <= pi(b_i) <= 1/(4K), unless repaired.

        Examples
        --------
        >>> from dpdl.instances import lower_bound
        >>> hard = lower_bound(4, 3, 8, gamma=0.5, theta_c=[[1], [1], [-1], [-1]], rng=0)
        >>> hard.utilities(hard.optimal_policy).round(6)
        array([0.      , 0.      , 0.      , 0.      , 0.      , 0.      ,
               0.016667, 0.016667])
        """
        pi = self._checked(policy)
        a, b, _ = self._arms(pi)
        often, most, lift = self._rho[0] * visits(self.cmdp.gamma)[1], 1 / (4 * a.shape[1]), self._lift(pi)
        kept = 1 - (1 - self.cmdp.gamma) * often * most  # at e' the shifted utility is 1, not 1 + the shift
        return np.concatenate([(often * (b - a) + lift).ravel(), (often * (most - b) + kept * lift).ravel()])

    def loss(self, policy: ArrayLike) -> float:
        """Return L(pi; theta) = [J* - J(pi)]_+ + gamma varpi_c/(1-gamma) violation(pi) (Lemma F.1).

        Examples
        --------
        >>> from dpdl.instances import lower_bound
        >>> hard = lower_bound(4, 3, 8, rng=0)
        >>> round(hard.loss(hard.optimal_policy), 12)
        0.0
        """
        price = self.cmdp.gamma * self.varpi_c / (1 - self.cmdp.gamma)
        return max(self.optimal_value - self.reward(policy), 0.0) + price * self.violation(policy)

    def loss_floor(self, policy: ArrayLike) -> float:
        """Return what L(pi; theta) is at least, in terms of the errors in theta (Lemma F.1).

        Examples
        --------
        >>> from dpdl.instances import lower_bound
        >>> hard = lower_bound(4, 3, 8, rng=0)
        >>> uniform = np.full(hard.mu.shape, 1 / 3)
        >>> hard.loss(uniform) > hard.loss_floor(uniform) > 0
        True
        """
        a, _, a_u = self._arms(self._checked(policy))
        wrong_c = abs(4 * a.shape[1] * a - (self.theta_c + 1) / 2).mean() / 8 * self.varpi_c
        wrong_u = abs(a_u - (self.theta_u + 1) / 2).mean() * self.varpi_u if a_u.size else 0.0
        share = 0.5 if a_u.size else 1.0
        return float(share * visits(self.cmdp.gamma)[2] / (1 - self.cmdp.gamma) * (wrong_c + wrong_u))

    @property
    def _rho(self) -> Array:
        return weights(len(self.theta_c), len(self.theta_u))

    def _arms(self, pi: Array) -> tuple[Array, Array, Array]:
        """Return pi(a_i | s_1) and pi(b_i | s_1) of the constrained blocks, and pi(a | s_1) of the others."""
        (n, k), deciding = self.theta_c.shape, pi[1:-1:4]
        return deciding[:n, :k], deciding[:n, k : 2 * k], deciding[n:, 0]

    def _gain(self, pi: Array) -> Array:
        """Return varpi r_j: how much likelier s_plus is than s_minus, in each block."""
        a, b, a_u = self._arms(pi)
        return np.append(self.varpi_c * (self.theta_c * a - b / 2).sum(axis=1), self.varpi_u * self.theta_u * a_u)

    def _lift(self, pi: Array) -> float:
        """Return how often e' is taken: what it costs, and what it adds to every utility before the shift."""
        often = self._rho * visits(self.cmdp.gamma)[0] / (1 - self.cmdp.gamma)
        return float(often @ pi[:-1:4, 1]) if self.repaired else 0.0


@dataclass(frozen=True, eq=False)
class NoSlaterInstance(HardInstance):
    """A CMDP of Theorem 5.2; see `no_slater`.

    The states are s_0, s_plus, s_minus, then s^1 .. s^S with actions a = 0 and b = 1, then the null state.

    Attributes
    ----------
    theta : ndarray of int, shape (S,)
        The hidden signs, each 0 or 1: the only safe policy has pi(b | s^j) = theta_j.
    varpi : float
        How much they matter, in (0, 1/2].
    """

    theta: Signs
    varpi: float

    def occupancy(self, policy: ArrayLike) -> Array:
        """Return the (S + 4, 2) discounted occupancy of a policy, by formula.

        Examples
        --------
        >>> from dpdl.instances import no_slater
        >>> hard = no_slater(4, gamma=0.5, rng=0)
        >>> hard.occupancy(hard.optimal_policy)[:3].round(6).tolist()
        [[1.6, 0.0], [0.066667, 0.0], [0.066667, 0.0]]
        """
        pi = self._checked(policy)
        v0, v1, v = visits(self.cmdp.gamma)
        n, ends, tilt = len(self.theta), v / (1 - self.cmdp.gamma) / 2, self.varpi * self._mistakes(pi)
        middle = [ends * (1 - tilt), ends * (1 + tilt)]
        return np.concatenate([[v0 / (1 - self.cmdp.gamma)], middle, np.full(n, v1 / n), [0.0]])[:, None] * pi

    def utilities(self, policy: ArrayLike) -> Array:
        """Return the one utility of a policy, by formula: -v varpi/(S (1-gamma)) times the 1-norm of pi_b - theta.

        Examples
        --------
        >>> from dpdl.instances import no_slater
        >>> hard = no_slater(4, gamma=0.5, varpi=0.3, rng=0)
        >>> hard.utilities(np.full((8, 2), 0.5)).round(9)
        array([-0.02])
        """
        tilt = self.varpi * self._mistakes(self._checked(policy))
        return np.array([0.0 - visits(self.cmdp.gamma)[2] / (1 - self.cmdp.gamma) * tilt])

    def _mistakes(self, pi: Array) -> float:
        """Return the mean probability of the wrong action (r-bar in the paper)."""
        wrong = pi[np.arange(3, 3 + len(self.theta)), 1 - self.theta]
        return float(wrong.mean())


def weights(n_constrained: int, n_unconstrained: int) -> Array:
    """Return rho_0(s_0^j) of each block: half of the mass on each kind, if there are both."""
    if n_unconstrained == 0:
        return np.full(n_constrained, 1 / n_constrained)
    return np.repeat([0.5 / n_constrained, 0.5 / n_unconstrained], [n_constrained, n_unconstrained])
