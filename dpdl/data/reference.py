"""The distribution of the data: counts, and the floored estimate mu_hat (equation (10))."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.data.packing import sizes
from dpdl.theory import SMALLEST_FLOOR


@dataclass(frozen=True)
class Reference:
    """mu_hat(s,a) = max(N(s,a)/N_e, floor), kept for visited pairs; all others are at the floor.

    Attributes
    ----------
    pairs : int64 array
        Visited pairs as s * n_actions + a, ascending.
    counts : int64 array
        How often each was seen.
    n_samples : int
        N_e, the number of transitions counted.
    floor : float
        The floor (varsigma in the paper).
    n_states, n_actions : int
        Sizes.
    """

    pairs: NDArray[np.int64]
    counts: NDArray[np.int64]
    n_samples: int
    floor: float
    n_states: int
    n_actions: int

    def __post_init__(self) -> None:
        floor = check.real("floor", self.floor, at_least=SMALLEST_FLOOR, at_most=1)
        n_states, n_actions = sizes(self.n_states, self.n_actions)
        n_samples = check.whole("n_samples", self.n_samples, at_least=1)
        pairs = check.indices("pairs", self.pairs, n_states * n_actions, dtype=np.int64)
        counts = check.indices("counts", self.counts, 2**63 - 1, shape=pairs.shape, dtype=np.int64)
        if len(pairs) == 0 or (np.diff(pairs) <= 0).any() or (counts < 1).any() or counts.sum() != n_samples:
            raise ValueError("pairs must ascend, and counts must be positive and add up to n_samples")
        values = (check.frozen(pairs), check.frozen(counts), n_samples, floor, n_states, n_actions)
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and unpickle through the constructor, which checks the fields and makes the arrays read-only."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    def at(self, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Give mu_hat at the given pairs (as s * n_actions + a)."""
        position = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        seen = self.pairs[position] == pairs
        return np.where(seen, np.maximum(self.counts[position] / self.n_samples, self.floor), self.floor)

    @property
    def mu_hat(self) -> NDArray[np.float64]:
        """The whole estimate as an (S, A) array."""
        dense = np.full(self.n_states * self.n_actions, self.floor)
        dense[self.pairs] = np.maximum(self.counts / self.n_samples, self.floor)
        return dense.reshape(self.n_states, self.n_actions)


def estimate_reference(log: Dataset, floor: float) -> Reference:
    """Estimate the distribution of the data.

    Parameters
    ----------
    log : Dataset
        The transitions to count. The theorems require that they are not used again for learning.
    floor : float
        Least value of mu_hat, in (0, 1]; `theory.reference_floor` gives that of Proposition 4.3.

    Returns
    -------
    Reference

    Examples
    --------
    >>> log = Dataset([0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0], [[0], [0], [0]], n_states=2, n_actions=2)
    >>> reference = estimate_reference(log, 0.01)
    >>> reference.mu_hat.round(2).tolist(), reference.pairs.tolist()
    ([[0.67, 0.01], [0.01, 0.33]], [0, 3])
    """
    check.instance("log", log, Dataset)
    floor = check.real("floor", floor, at_least=SMALLEST_FLOOR, at_most=1)
    return Reference(log.pairs, log.pair_counts, len(log), floor, log.n_states, log.n_actions)
