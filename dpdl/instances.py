"""Random sparse CMDPs with few successors per pair, whose utilities conflict with the reward."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from dpdl import _validation as check
from dpdl.models.cmdp import CMDP


def garnet(
    n_states: int,
    n_actions: int,
    n_utilities: int = 1,
    branching: int | None = None,
    gamma: float = 0.9,
    slater: float = 0.1,
    rng: Any = None,
) -> CMDP:
    """Draw a random sparse CMDP whose Slater constant is at least `slater`.

    Parameters
    ----------
    n_states, n_actions, n_utilities : int
        Sizes S, A, I; I may be zero.
    branching : int, optional
        Successors of each pair, drawn without replacement, with probabilities uniform on the simplex; at most S, and
        by default 5 or, if that is less, S.
    gamma : float
        Discount.
    slater : float
        In (0, 1).
    rng : None, int or numpy.random.Generator
        Source of randomness.

    Returns
    -------
    CMDP
        Rewards are uniform on [0, 1]; the first state is uniform.

    Notes
    -----
    A raw utility is noise less half the reward. A reference policy, which takes the action of largest mean raw utility
    with probability 0.8 and any action otherwise, is evaluated exactly; then each utility is shifted and scaled into
    [-1, 1] so that the reference earns just `slater`. What earns reward costs utility, so the unconstrained optimum
    breaks the constraints as a rule, unless `slater` is large.

    Examples
    --------
    >>> cmdp = garnet(20, 4, n_utilities=2, rng=0)
    >>> cmdp.slater() >= 0.1, cmdp.solve().reward < cmdp.unconstrained().solve().reward
    (True, True)
    """
    n_states = check.whole("n_states", n_states, at_least=1)
    n_actions = check.whole("n_actions", n_actions, at_least=1)
    n_utilities = check.whole("n_utilities", n_utilities)
    branching = min(5, n_states) if branching is None else branching
    branching = check.whole("branching", branching, at_least=1, at_most=n_states)
    slater = check.real("slater", slater, above=0, below=1)
    rng = check.generator(rng)
    P = _random_transitions(n_states, n_actions, branching, rng)
    reward = rng.random((n_states, n_actions))
    raw = rng.random((n_utilities, n_states, n_actions)) - 0.5 * reward
    rho0 = np.full(n_states, 1 / n_states)
    reference = np.full(reward.shape, 0.2 / n_actions)
    reference[np.arange(n_states), raw.sum(axis=0).argmax(axis=1)] += 0.8
    occupancy = CMDP(P, reward, raw[:0], gamma, rho0).evaluate(reference).occupancy
    centred = raw - (1 - gamma) * np.einsum("isa,sa->i", raw, occupancy)[:, None, None]
    largest = abs(centred).max(axis=(1, 2), keepdims=True)
    u = slater + centred * ((1 - slater) / np.where(largest > 0, largest, 1))
    return CMDP(P, reward, np.clip(u, -1, 1), gamma, rho0)  # clips roundings only


def _random_transitions(n_states: int, n_actions: int, branching: int, rng: np.random.Generator) -> sp.csr_array:
    """Return rows with `branching` distinct successors each and probabilities uniform on the simplex."""
    n_pairs = n_states * n_actions
    successors = np.empty((n_pairs, branching), dtype=np.int64)
    # Floyd's subset sampling, all rows at once: no rejections, and no table of pairs by states.
    for k, newest in enumerate(range(n_states - branching, n_states)):
        drawn = rng.integers(newest + 1, size=n_pairs)
        taken = (successors[:, :k] == drawn[:, None]).any(axis=1)
        successors[:, k] = np.where(taken, newest, drawn)
    probabilities = rng.dirichlet(np.ones(branching), size=n_pairs)
    starts = np.arange(0, n_pairs * branching + 1, branching)
    return sp.csr_array((probabilities.ravel(), successors.ravel(), starts), shape=(n_pairs, n_states))
