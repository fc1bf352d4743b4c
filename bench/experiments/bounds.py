"""Lower bounds as functions of the number of samples, and the loss that they are about (appendix F).

The problems themselves are in `hard_instances`. The theorems give rates up to a universal constant; their proofs
have constants, which the functions below use by default. The proofs have gaps, listed in docs/paper-map.md, which do
not affect these constants. Those of the argument by Fano's inequality close with Assouad's lemma, over the whole cube
of signs instead of a packing: at the proof's varpi any two neighbouring theta are so alike after N samples that the
average error per sign is at least 0.39, where 1/24 is claimed, and averages do add up. A test computes this from the
models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hard_instances import BlockInstance, blocks, visits

Array = NDArray[np.float64]


def hardest_varpi(
    n_samples: ArrayLike, n_signs: int, concentrability: float, gamma: float, family: str = "lower_bound"
) -> Array:
    """Return the varpi at which N samples do not show n signs yet: min(sqrt((n-3) C/(8 (1-gamma) N)), 1/2).

    The proof of Theorem 5.1 takes it with n = S_c K for varpi_c and n = S_u for varpi_u; that of
    Theorem 5.2, ``family="no_slater"``, takes n = S and 16 in place of 8.

    Examples
    --------
    >>> hardest_varpi([1, 2000, 8000], 35, concentrability=5, gamma=0.9).round(4)
    array([0.5   , 0.3162, 0.1581])
    """
    factor = {"lower_bound": 8, "no_slater": 16}[family]
    most = np.asarray((n_signs - 3) * concentrability / (factor * (1 - gamma)))
    return np.minimum(np.sqrt(most / np.asarray(n_samples)), 0.5)


def suboptimality_bound(
    n_samples: ArrayLike, n_blocks: int, n_actions: int, n_utilities: int, concentrability: float, gamma: float
) -> Array:
    """Return what a learner that is always safe loses at least, on average, for some theta (Theorem 5.1).

    The arguments are N, one or many, and those of `lower_bound`. The result is the bound in the proof,
    v/(2(1-gamma)) (varpi_c/192 + varpi_u/24) with varpi from `hardest_varpi`, and v varpi_c/(192 (1-gamma)) without
    unconstrained blocks. It bounds the mean of the loss L = [J* - J]_+ + gamma varpi_c/(1-gamma) violation, with or
    without the brackets. So a learner that may be unsafe has a mean suboptimality of at least half of it, or a mean
    violation of at least v/(768 gamma).

    Examples
    --------
    >>> float(suboptimality_bound(1e6, 20, 5, 16, concentrability=5, gamma=0.9).round(6))
    0.000514
    """
    k, n_c, n_u = blocks(n_blocks, n_actions, n_utilities)
    bound = hardest_varpi(n_samples, n_c * k, concentrability, gamma) / 192
    if n_u:
        bound = (bound + hardest_varpi(n_samples, n_u, concentrability, gamma) / 24) / 2
    return visits(gamma)[2] / (1 - gamma) * bound


def violation_bound(n_samples: ArrayLike, n_blocks: int, concentrability: float, gamma: float) -> Array:
    """Return what any learner violates at least, on average, for some theta of `no_slater` (Theorem 5.2).

    The arguments are like those of `suboptimality_bound`; the bound in the proof is v varpi/(24 (1-gamma)).

    Examples
    --------
    >>> violation_bound([1, 10**6], 20, concentrability=5, gamma=0.9).round(6)
    array([0.052..., 0.000...])
    """
    varpi = hardest_varpi(n_samples, n_blocks, concentrability, gamma, "no_slater")
    return visits(gamma)[2] / (24 * (1 - gamma)) * varpi


def loss(hard: BlockInstance, policy: ArrayLike) -> float:
    """Return L(pi; theta) = [J* - J(pi)]_+ + gamma varpi_c/(1-gamma) violation(pi) (Lemma F.1)."""
    price = hard.cmdp.gamma * hard.varpi_c / (1 - hard.cmdp.gamma)
    return max(hard.optimal_value - hard.reward(policy), 0.0) + price * hard.violation(policy)


def loss_floor(hard: BlockInstance, policy: ArrayLike) -> float:
    """Return what L(pi; theta) is at least, in terms of the errors in theta (Lemma F.1)."""
    (n, k), deciding = hard.theta_c.shape, np.asarray(policy)[1:-1:4]
    a, a_u = deciding[:n, :k], deciding[n:, 0]
    wrong_c = abs(4 * k * a - (hard.theta_c + 1) / 2).mean() / 8 * hard.varpi_c
    wrong_u = abs(a_u - (hard.theta_u + 1) / 2).mean() * hard.varpi_u if a_u.size else 0.0
    share = 0.5 if a_u.size else 1.0
    return float(share * visits(hard.cmdp.gamma)[2] / (1 - hard.cmdp.gamma) * (wrong_c + wrong_u))
