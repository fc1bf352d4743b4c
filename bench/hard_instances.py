"""The problems of the paper's lower bounds, with their closed forms (appendix F).

`lower_bound` builds the family of Theorem 5.1 (appendix F.1), or its variant with a large Slater
constant (Remark F.4); `no_slater` builds that of Theorem 5.2. Each hides signs theta in transition
probabilities that differ from 1/2 by varpi/2, and a learner that has not found the signs loses. Every block waits in
s_0, decides in s_1 and collects in s_plus or s_minus. With

    v0 = 2/(2+gamma),    v1 = 2 gamma/(4-gamma^2),    v = gamma^2/(4-gamma^2),    v0 + (1-gamma) v1 + v = 1,

and a weight rho on the block, s_0 is visited rho v0/(1-gamma) times, s_1 rho v1 times, and s_plus and s_minus together
rho v/(1-gamma) times, whatever the policy. States without a choice treat all actions alike, and mu is on action 0.

Where the constructions differ from the printed ones, docs/paper-map.md says how. Remark F.4's action e' lifts all
utilities at once for a reward of -1. The optimum stays where it was, for all theta, only if gamma varpi_c S_c K is at
most about 4/3 (1-gamma); Lemma F.1 survives up to 4/5 (1-gamma). With the proof's varpi_c that holds for large N only;
`lower_bound` refuses a larger varpi_c. Remark F.4 gives no mu: here e' gets as much as e, so that Slater's condition
holds within Pi(C) too, with v0 at least. (Without e' it fails there for some theta: the data caps s_minus at what e
leads to, and so pi(b_i) at 0 in a block of minus signs.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.models.cmdp import CMDP

Signs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HardInstance:
    """A CMDP with its data distribution and the answers, by formula: the base of the two families.

    The model's last state is the null state s_{-1}, which only the data visits. C* is exact: every policy visits s_0 as
    often, C mu(s_0) times in the discounted share of time. Without a choice the optimal policy takes action 0.

    Attributes
    ----------
    cmdp : CMDP
        The model.
    mu : ndarray, shape (S, A)
        The data distribution.
    concentrability, slater : float
        C*, the least psi for which some optimal policy lies in Pi(psi), and Slater's constant of all policies.
    optimal_policy : ndarray, shape (S, A)
        The best safe policy.
    optimal_value : float
        Its reward J*.
    visits : ndarray, shape (S,)
        How often a state is visited, whatever the policy; zero for s_plus and s_minus, which depend on it.
    """

    cmdp: CMDP
    mu: Array = field(repr=False)
    concentrability: float
    slater: float
    optimal_policy: Array = field(repr=False)
    optimal_value: float
    visits: Array = field(repr=False)

    def occupancy(self, policy: ArrayLike) -> Array:
        """Return the (S, A) discounted occupancy of a policy, by formula.

        An arrival in s_plus or s_minus, where the chain stays with probability 2 - 1/gamma, is worth
        gamma/(2 (1-gamma)) visits.
        """
        pi = check.policy_array("policy", policy, self.cmdp.n_states, self.cmdp.n_actions)
        arrivals = (self.visits[:, None] * pi).ravel() @ self.cmdp.P
        gamma = self.cmdp.gamma
        return np.where(self.visits > 0, self.visits, gamma / (2 * (1 - gamma)) * arrivals)[:, None] * pi

    def reward(self, policy: ArrayLike) -> float:
        """Return the reward J of a policy."""
        return float((self.occupancy(policy) * self.cmdp.r).sum())

    def utilities(self, policy: ArrayLike) -> Array:
        """Return the utilities J^u_i of a policy."""
        return np.einsum("sa,isa->i", self.occupancy(policy), self.cmdp.u)

    def violation(self, policy: ArrayLike) -> float:
        """Return the sum of the utilities' negative parts."""
        return float(np.maximum(-self.utilities(policy), 0).sum())


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

    Examples
    --------
    >>> hard = lower_bound(4, 3, 8, gamma=0.5, theta_c=[[1], [1], [-1], [-1]], rng=0)
    >>> best, uniform = hard.optimal_policy, np.full(hard.mu.shape, 1 / 3)
    >>> hard.occupancy(best)[:2].round(6).tolist()  # rho v0/(1-gamma) and rho v1 with rho = 1/4
    [[0.4, 0.0, 0.0], [0.016667, 0.016667, 0.033333]]
    >>> hard.utilities(best)[-4:].round(6) + 0.0
    array([0.      , 0.      , 0.016667, 0.016667])
    >>> abs(hard.reward(best) - hard.optimal_value) < 1e-15, hard.violation(best) < 1e-15 < hard.violation(uniform)
    (True, True)
    """

    theta_c: Signs
    theta_u: Signs
    varpi_c: float
    varpi_u: float


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

    Examples
    --------
    >>> hard = no_slater(4, gamma=0.5, theta=[0, 0, 1, 1], varpi=0.5)
    >>> hard.occupancy(hard.optimal_policy)[:3].round(6).tolist()
    [[1.6, 0.0], [0.066667, 0.0], [0.066667, 0.0]]
    >>> hard.utilities(np.full((8, 2), 0.5)).round(6).tolist()
    [-0.033333]
    >>> round(hard.violation(hard.optimal_policy[:, ::-1]), 6)  # wrong everywhere: v varpi/(1-gamma)
    0.066667
    """

    theta: Signs
    varpi: float


def blocks(n_blocks: int, n_actions: int, n_utilities: int) -> tuple[int, int, int]:
    """Return K, S_c and S_u: how `lower_bound` divides S blocks, given A actions and I utilities (appendix F.1).

    There are K = min([I/2], [(A-1)/2]) pairs (a_i, b_i) in each of S_c = min([I/(2K)], S) constrained blocks. The other
    blocks are unconstrained, or left out if they are fewer than four.

    Examples
    --------
    >>> blocks(10, 5, 8)
    (2, 2, 8)
    >>> blocks(5, 5, 8)
    (2, 2, 0)
    """
    n_blocks = check.whole("n_blocks", n_blocks, at_least=4)
    n_actions = check.whole("n_actions", n_actions, at_least=3)
    n_utilities = check.whole("n_utilities", n_utilities, at_least=8)
    pairs = min(n_utilities // 2, (n_actions - 1) // 2)
    constrained = min(n_utilities // (2 * pairs), n_blocks)
    return pairs, constrained, n_blocks - constrained if constrained < n_blocks - 3 else 0


def lower_bound(
    n_blocks: int,
    n_actions: int,
    n_utilities: int,
    concentrability: float = 2.0,
    gamma: float = 0.9,
    *,
    theta_c: ArrayLike | None = None,
    theta_u: ArrayLike | None = None,
    varpi_c: float | None = None,
    varpi_u: float | None = None,
    repaired: bool = False,
    rng: Any = None,
) -> BlockInstance:
    """Build an instance of Theorem 5.1: S blocks, each a bandit whose good arms the data hardly shows.

    Parameters
    ----------
    n_blocks, n_actions, n_utilities : int
        S >= 4, A >= 3, I >= 8. The model has at most 4S + 1 states, A actions and I utilities; `blocks` says how many.
    concentrability : float
        C >= 2.
    gamma : float
        Discount, in [1/2, 1).
    theta_c : array_like of -1 and 1, shape (S_c, K), optional
    theta_u : array_like of -1 and 1, shape (S_u,), optional
        The hidden signs; drawn if not given.
    varpi_c, varpi_u : float, optional
        How much they matter, in (0, 1/2]; drawn uniformly if not given. varpi_u belongs to unconstrained blocks only.
    repaired : bool
        Whether to add Remark F.4's action e' at every s_0: reward -1, all utilities 1. Slater's constant is then above
        2/3. Here varpi_c may not exceed 4/5 (1-gamma)/(gamma S_c K): beyond that Lemma F.1 fails, and soon
        after e' begins to pay.
    rng : None, int or numpy.random.Generator
        Source of randomness for what is not given.

    Returns
    -------
    BlockInstance

    Examples
    --------
    >>> hard = lower_bound(10, 5, 8, rng=0)
    >>> hard.cmdp
    CMDP(n_states=41, n_actions=5, n_utilities=8, gamma=0.9)
    >>> abs(hard.cmdp.solve().reward - hard.optimal_value) < 1e-10
    True
    >>> round(hard.slater, 4), round(lower_bound(10, 5, 8, repaired=True, rng=0).slater, 4)
    (0.0009, 0.6899)
    """
    k, n_c, n_u = blocks(n_blocks, n_actions, n_utilities)
    C, gamma = _checked_constants(concentrability, gamma)
    repaired = check.flag("repaired", repaired)
    most = min(0.5, 0.8 * (1 - gamma) / (gamma * n_c * k)) if repaired else 0.5
    if varpi_u is not None and n_u == 0:
        raise ValueError(f"varpi_u = {varpi_u!r} has no meaning: n_blocks = {n_blocks} leaves no unconstrained block")
    rng = check.generator(rng)
    theta_c = _signs("theta_c", theta_c, (n_c, k), -1, rng)
    theta_u = _signs("theta_u", theta_u, (n_u,), -1, rng)
    varpi_c = _varpi("varpi_c", varpi_c, most, rng)
    varpi_u = _varpi("varpi_u", varpi_u, 0.5, rng) if n_u else 0.0

    v0, v1, v = visits(gamma)
    n, n_actions = n_c + n_u, 2 * k + 1
    share = 0.5 if n_u else 1.0  # of the first states, in constrained blocks
    rho = np.repeat([share / n_c, (1 - share) / max(n_u, 1)], [n_c, n_u])
    good = np.full((n, n_actions), 0.5)  # P(s_plus | s_1, action)
    good[:n_c, :k] = (1 + varpi_c * theta_c) / 2
    good[:n_c, k : 2 * k] = (1 - varpi_c / 2) / 2
    good[n_c:, 0] = (1 + varpi_u * theta_u) / 2
    start, p, q = 4 * np.arange(n)[:, None], 1 / (2 - gamma), 2 - 1 / gamma
    ends = np.concatenate([start + 2, start + 3])
    P = _transitions(
        4 * n + 1,
        n_actions,
        (start, start, p),
        (start, start + 1, 1 - p),
        (start + 1, start + 2, good),
        (start + 1, start + 3, 1 - good),
        (ends, ends, q),
        (ends, np.tile(start, (2, 1)), 1 - q),
        (4 * n, 4 * n, 1.0),
    )
    r, mu, best = (np.zeros((4 * n + 1, n_actions)) for _ in range(3))
    r[2:-1:4], r[3:-1:4] = 1, -1
    each = np.arange(n_c * k)
    j, i = np.divmod(each, k)
    u = np.zeros((2, n_c * k, 4 * n + 1, n_actions))
    u[0, each, 4 * j + 1, i] = -1
    u[0, each, 4 * j + 1, k + i] = 1
    u[1] = (1 - gamma) * rho[0] * v1 / (4 * k)  # turns <nu, u> >= -rho_c v1/(4K) into >= 0
    u[1, each, 4 * j + 1, k + i] -= 1

    mu_block = mu[:-1].reshape(n, 4, n_actions)  # a view: block, place in the block, action
    mu_block[:, [0, 2, 3], 0] = rho[:, None] * [v0, 0.75 * v, 0.5 * v] / C
    mu_block[:, 1, -1] = (1 - gamma) * v1 * rho / C
    mu_block[n_c:, 1, 0] = (1 - gamma) * v1 * rho[n_c:] / C
    mu_block[:n_c, 1, : 2 * k] = (1 - gamma) * v1 * rho[0] / (4 * k * C)
    if repaired:
        r[:-1:4, 1], u[:, :, :-1:4, 1] = -1, 1
        mu_block[:, 0, 1] = mu_block[:, 0, 0]
    mu[-1, 0] = 1 - mu.sum()

    best[:, 0] = 1
    deciding = best[1:-1:4]
    deciding[:n_c, : 2 * k] = np.hstack([theta_c + 1, theta_c + 1]) / (8 * k)
    deciding[n_c:, 0] = (theta_u + 1) / 2
    deciding[:, -1] = 1 - deciding[:, :-1].sum(axis=1)
    value = rho[0] * varpi_c * (theta_c == 1).sum() / (8 * k) + rho[-1] * varpi_u * (theta_u == 1).sum()
    slater = (1 - gamma) * rho[0] * v1 / (8 * k)  # pi(a_i) = 0 and pi(b_i) = 1/(8K); with e' throughout, (1-v0)/(8K)
    return BlockInstance(
        cmdp=CMDP(P, r, u.reshape(-1, *r.shape), gamma, np.append(np.outer(rho, [1, 0, 0, 0]), 0.0)),
        mu=check.frozen(mu),
        concentrability=C,
        slater=float(v0 + (1 - v0) * slater if repaired else slater),
        optimal_policy=check.frozen(best),
        optimal_value=float(v / (1 - gamma) * value),
        theta_c=theta_c,
        theta_u=theta_u,
        varpi_c=varpi_c,
        varpi_u=varpi_u,
        visits=check.frozen(np.append(np.outer(rho, [v0 / (1 - gamma), v1, 0, 0]), 0.0)),
    )


def no_slater(
    n_blocks: int,
    concentrability: float = 2.0,
    gamma: float = 0.9,
    *,
    theta: ArrayLike | None = None,
    varpi: float | None = None,
    rng: Any = None,
) -> NoSlaterInstance:
    """Build an instance of Theorem 5.2: one constraint, no reward, and a single policy that is safe.

    Parameters
    ----------
    n_blocks : int
        S >= 4: how many states have a choice; the model has S + 4 states and two actions.
    concentrability, gamma, rng
        As for `lower_bound`.
    theta : array_like of 0 and 1, shape (S,), optional
        The hidden signs; drawn if not given.
    varpi : float, optional
        How much they matter, in (0, 1/2]; drawn uniformly if not given.

    Returns
    -------
    NoSlaterInstance

    Examples
    --------
    >>> hard = no_slater(6, theta=[0, 1, 1, 0, 1, 0], rng=0)
    >>> hard.cmdp
    CMDP(n_states=10, n_actions=2, n_utilities=1, gamma=0.9)
    >>> hard.optimal_policy[3:9, 1].tolist(), hard.slater, abs(hard.cmdp.slater()) < 1e-9
    ([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], 0.0, True)
    """
    n = check.whole("n_blocks", n_blocks, at_least=4)
    C, gamma = _checked_constants(concentrability, gamma)
    rng = check.generator(rng)
    theta = _signs("theta", theta, (n,), 0, rng)
    varpi = _varpi("varpi", varpi, 0.5, rng)

    v0, v1, v = visits(gamma)
    p, q, arms = 1 / (2 - gamma), 2 - 1 / gamma, np.arange(3, n + 3)
    good = (1 - varpi * np.column_stack([theta, 1 - theta])) / 2  # P(s_plus | s^j, action)
    P = _transitions(
        n + 4,
        2,
        (0, 0, p),
        (np.zeros((n, 1), dtype=int), arms[:, None], (1 - p) / n),
        (np.array([[1], [2]]), np.array([[1], [2]]), q),
        (np.array([[1], [2]]), 0, 1 - q),
        (arms[:, None], 1, good),
        (arms[:, None], 2, 1 - good),
        (n + 3, n + 3, 1.0),
    )
    u, mu, best = (np.zeros((n + 4, 2)) for _ in range(3))
    u[1], u[2] = 1, -1
    mu[:3, 0] = np.array([v0, v, v]) / C
    mu[arms] = (1 - gamma) * v1 / (n * C)
    mu[-1, 0] = 1 - mu.sum()
    best[:, 0] = 1
    best[arms] = np.column_stack([1 - theta, theta])
    return NoSlaterInstance(
        cmdp=CMDP(P, np.zeros_like(u), u[None], gamma, np.eye(n + 4)[0]),
        mu=check.frozen(mu),
        concentrability=C,
        slater=0.0,
        optimal_policy=check.frozen(best),
        optimal_value=0.0,
        theta=theta,
        varpi=varpi,
        visits=check.frozen(np.concatenate([[v0 / (1 - gamma), 0, 0], np.full(n, v1 / n), [0]])),
    )


def visits(gamma: float) -> tuple[float, float, float]:
    """Return v0, v1 and v (equation (38))."""
    return 2 / (2 + gamma), 2 * gamma / (4 - gamma**2), gamma**2 / (4 - gamma**2)


def _checked_constants(concentrability: float, gamma: float) -> tuple[float, float]:
    """Check the ranges of C and gamma that both theorems assume."""
    C = check.real("concentrability", concentrability, at_least=2)
    return C, check.real("gamma", gamma, at_least=0.5, below=1)


def _signs(
    name: str, values: ArrayLike | None, shape: tuple[int, ...], low: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Check hidden signs, `low` or 1, or draw them."""
    if values is None:
        return check.frozen(np.where(rng.random(shape) < 0.5, low, 1))
    array = check.numbers_array(name, values, shape=shape)
    wrong = np.argwhere((array != low) & (array != 1))
    if len(wrong):
        where = tuple(wrong[0].tolist())
        raise ValueError(f"{name}[{', '.join(map(str, where))}] = {array[where].item()!r} must be {low} or 1")
    return check.frozen(array.astype(np.int64))


def _varpi(name: str, value: float | None, most: float, rng: np.random.Generator) -> float:
    """Check a varpi, or draw it uniformly from (0, most]."""
    return most * (1 - rng.random()) if value is None else check.real(name, value, above=0, at_most=most)


def _transitions(n_states: int, n_actions: int, *entries: tuple[Any, Any, Any]) -> sp.coo_array:
    """Return the (S*A, S) matrix of the given (state, next state, probability), each broadcast against the actions."""
    parts = [np.broadcast_arrays(s, np.arange(n_actions), s_next, value) for s, s_next, value in entries]
    s, a, s_next, value = (np.concatenate([part[k].ravel() for part in parts]) for k in range(4))
    return sp.coo_array((value, (s * n_actions + a, s_next)), shape=(n_states * n_actions, n_states))
