"""What the compiled core reads: coordinates, bounds and rates, laid out once before the first step.

A coordinate is a pair in the table of the log or seen by the reference. All other pairs share mu_hat = floor, are never
sampled and move by one common factor for ever, so together they are one more coordinate, the last, that holds their
total mass. A part of a log has the table of the whole: pairs in it that the part never visits are coordinates like any
other, which are never sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import _validation as check
from . import theory
from .dataset import Dataset
from .reference import Reference
from .settings import Resolved

#: No quantity of a run may come near the range of a double.
LARGEST = 1e300


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
    V_here: float
    V_next: float
    shift: float
    rate_V: float
    rate_lam: float
    rate_x: float
    radius_V: float
    radius_lam: float
    B1: float
    B2: float

    @classmethod
    def build(cls, dataset: Dataset, reference: Reference, settings: Resolved) -> Packed:
        """Lay out a run."""
        S, A, I = dataset.n_states, dataset.n_actions, dataset.n_utilities
        # The log's table comes first, in its order, so that records need no translation.
        pairs = np.concatenate([dataset.table, np.setdiff1d(reference.pairs, dataset.table, assume_unique=True)])
        check.indices("pairs", pairs, S * A, dtype=np.int64, copy=False)
        mu_hat = reference.at(pairs)
        state = (pairs // A).astype(np.int32)
        if len(pairs) < S * A:
            mu_hat = np.append(mu_hat, reference.floor)
            state = np.append(state, np.int32(0))
        log_cap = np.log(settings.psi / (1 - settings.gamma)) + np.log(mu_hat)
        if len(pairs) < S * A:
            log_cap[-1] += np.log(S * A - len(pairs))
        packed = cls(
            records=dataset.records[:, None].view(np.uint8),  # never a copy, even of every third record
            pairs=check.frozen(pairs),  # results share it
            n_pairs=S * A,
            state=state,
            c=1 / mu_hat,
            log_cap=log_cap,
            gamma=settings.gamma,
            # g_x holds r - V(s) + gamma V(s'). The paper prints the two coefficients the other way round; they have
            # names so that the experiments can be run with that slip, and be seen to fail.
            V_here=-1.0,
            V_next=settings.gamma,
            shift=(1 - settings.gamma) * settings.kappa,
            rate_V=settings.eta / settings.alpha_V,
            rate_lam=settings.eta / settings.alpha_lam,
            rate_x=settings.eta / settings.alpha_x,
            radius_V=settings.radius_V,
            radius_lam=settings.radius_lam,
            B1=theory.sum_bound(settings.gamma),
            B2=theory.weight_bound(S, A, I, settings.gamma, settings.psi),
        )
        packed._check_range(settings)
        return packed

    def _check_range(self, settings: Resolved) -> None:
        """Refuse step sizes with which some logarithm could overflow within T steps.

        A step moves log x by at most (rate_x g + 700) c_max, where g bounds c times the advantage, log lam by
        rate_lam w (1 + shift), and V by rate_V (1 + w), with w <= psi/(1-gamma).
        """
        w = settings.psi / (1 - settings.gamma)
        c_max = float(self.c.max())
        advantage = 1 + 2 * self.radius_V + self.radius_lam * (1 + self.shift)
        for name, step, growth in (
            ("alpha_x", self.rate_x, (self.rate_x * c_max * advantage + 700) * c_max * settings.T),
            ("alpha_lam", self.rate_lam, self.rate_lam * w * (1 + self.shift) * settings.T),
            ("alpha_V", self.rate_V, self.rate_V * (1 + w)),
        ):
            if not growth < LARGEST:
                raise ValueError(
                    f"eta/{name} = {step:g} with 1/mu_hat up to {c_max:g} is so large that in {settings.T} steps "
                    "a number could overflow"
                )

    @property
    def n_unseen(self) -> int:
        """Pairs behind the last coordinate; 0 if every pair was seen."""
        return self.n_pairs - len(self.pairs)

    def gather_logs(self, dense: NDArray[np.float64]) -> NDArray[np.float64]:
        """Coordinates of the logarithm of a vector over all pairs; unseen pairs must have one common value."""
        flat = dense.ravel()
        seen = flat[self.pairs]
        if self.n_unseen == 0:
            return seen
        unseen = np.setdiff1d(np.arange(len(flat)), self.pairs, assume_unique=True)
        values = flat[unseen]
        different = np.flatnonzero(abs(values - values[0]) > 1e-9 * max(1.0, abs(values[0])))
        if different.size:
            index = np.unravel_index(unseen[different[0]], dense.shape)
            raise ValueError(
                f"start.log_x{[int(k) for k in index]} = {values[different[0]].item()!r} differs from "
                f"{values[0].item()!r}: pairs that the data never shows must have one common value"
            )
        return np.append(seen, values[0] + np.log(self.n_unseen))
