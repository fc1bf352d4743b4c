"""What the compiled core reads: coordinates, bounds and rates, laid out once before the first step.

A coordinate is a pair that the log or the reference has seen. All other pairs share mu_hat = floor, are never sampled
and move by one common factor for ever, so together they are one more coordinate, the last, that holds their total mass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import theory
from .dataset import Dataset
from .reference import Reference
from .settings import Settings


@dataclass(frozen=True)
class Packed:
    """Inputs of a core; attribute names are those of src_cython/_model.pxd."""

    records: NDArray[np.uint8]
    pairs: NDArray[np.int64]
    n_pairs: int
    state: NDArray[np.int32]
    c: NDArray[np.float64]
    log_cap: NDArray[np.float64]
    gamma: float
    shift: float
    rate_V: float
    rate_lam: float
    rate_x: float
    radius_V: float
    radius_lam: float
    B1: float
    B2: float

    @classmethod
    def build(cls, dataset: Dataset, reference: Reference, settings: Settings) -> Packed:
        """Lay out a run with resolved settings."""
        S, A, I = dataset.n_states, dataset.n_actions, dataset.n_utilities
        # The log's own pairs come first, in its order, so that records need no translation.
        pairs = np.concatenate([dataset.pairs, np.setdiff1d(reference.pairs, dataset.pairs, assume_unique=True)])
        mu_hat = reference.at(pairs)
        state = (pairs // A).astype(np.int32)
        if len(pairs) < S * A:
            mu_hat = np.append(mu_hat, reference.floor)
            state = np.append(state, np.int32(0))
        eta = settings.eta
        assert eta and settings.alpha_V and settings.alpha_lam and settings.alpha_x  # resolved
        assert settings.kappa is not None and settings.radius_V and settings.radius_lam
        return cls(
            records=dataset.records.view(np.uint8).reshape(len(dataset), -1),
            pairs=pairs,
            n_pairs=S * A,
            state=state,
            c=1 / mu_hat,
            log_cap=np.log(settings.psi / (1 - settings.gamma)) + np.log(mu_hat),
            gamma=settings.gamma,
            shift=(1 - settings.gamma) * settings.kappa,
            rate_V=eta / settings.alpha_V,
            rate_lam=eta / settings.alpha_lam,
            rate_x=eta / settings.alpha_x,
            radius_V=settings.radius_V,
            radius_lam=settings.radius_lam,
            B1=theory.sum_bound(settings.gamma),
            B2=theory.weight_bound(S, A, I, settings.gamma, settings.psi),
        )

    @property
    def n_unseen(self) -> int:
        """Pairs behind the last coordinate; 0 if every pair was seen."""
        return self.n_pairs - len(self.pairs)

    def gather(self, dense: NDArray[np.float64]) -> NDArray[np.float64]:
        """Coordinates of a vector over all pairs."""
        flat = dense.ravel()
        if self.n_unseen == 0:
            return flat[self.pairs]
        seen = flat[self.pairs]
        unseen = np.ones(len(flat), dtype=bool)
        unseen[self.pairs] = False
        return np.append(seen, flat[unseen].sum())
