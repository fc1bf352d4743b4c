"""Pairs sorted by c = 1/mu_hat into bins, for the lazy core (src_cython/_lazy.pxd).

A value of c that many pairs share (small counts, and the floor) has a bin of width zero; the rest go into geometric
bins whose largest c is at most twice the smallest, so that tau = half * beta is small compared with c * beta.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Largest number of values of c with a bin of width zero, and smallest number of pairs that must share such a value.
OWN_BINS = 4
SHARED_BY = 8


@dataclass(frozen=True)
class Bins:
    """Bins of pairs; those of positive width come first."""

    bin: NDArray[np.int32]  # of each pair
    d: NDArray[np.float64]  # its position there: c = centre + half * d, d in [-1, 1]
    centre: NDArray[np.float64]  # middle of the values of c in each bin
    half: NDArray[np.float64]  # half their width
    order: NDArray[np.int32]  # pairs by bin: bin b holds order[first[b]:first[b + 1]]
    first: NDArray[np.int64]
    n_wide: int  # bins before this one have positive width

    @classmethod
    def of(cls, c: NDArray[np.float64], *, last_apart: bool = False) -> Bins:
        """Sort pairs by c; with `last_apart`, the last pair has the last bin for itself.

        Examples
        --------
        >>> bins = Bins.of(np.array([1.0, 1.5, 1.9, 100.0]))
        >>> bins.bin.tolist(), bins.n_wide, bins.centre.round(2).tolist()
        ([0, 0, 0, 1], 1, [1.45, 100.0])
        """
        if last_apart:
            return cls.of(c[:-1])._with(float(c[-1]))
        values, value_of, shared = np.unique(c, return_inverse=True, return_counts=True)
        popular = np.argsort(-shared, kind="stable")[:OWN_BINS]
        own = np.zeros(len(values), dtype=bool)
        own[popular[shared[popular] >= SHARED_BY]] = True
        # Powers of two relative to the smallest c; values with a bin of width zero get larger labels.
        label = np.floor(np.log2(values / values[0])).astype(np.int64)
        label[own] = label[-1] + 1 + np.arange(own.sum())
        _, group = np.unique(label, return_inverse=True)
        low, high = np.full(group.max() + 1, np.inf), np.zeros(group.max() + 1)
        np.minimum.at(low, group, values)
        np.maximum.at(high, group, values)
        rank = np.argsort(high == low, kind="stable")  # wide bins first
        place = np.empty_like(rank)
        place[rank] = np.arange(len(rank))
        low, high = low[rank], high[rank]
        centre, half = (low + high) / 2, (high - low) / 2
        centre[low == high] = low[low == high]
        bins = place[group][value_of].astype(np.int32)
        width = np.where(half > 0, half, 1.0)
        d = np.clip((c - centre[bins]) / width[bins], -1.0, 1.0)
        order = np.argsort(bins, kind="stable").astype(np.int32)
        first = np.concatenate([[0], np.cumsum(np.bincount(bins, minlength=len(rank)))]).astype(np.int64)
        return cls(bins, d, centre, half, order, first, int((half > 0).sum()))

    def _with(self, c: float) -> Bins:
        """These bins, and one of width zero that holds one more pair."""
        n, b = len(self.bin), len(self.centre)
        return Bins(
            bin=np.append(self.bin, np.int32(b)),
            d=np.append(self.d, 0.0),
            centre=np.append(self.centre, c),
            half=np.append(self.half, 0.0),
            order=np.append(self.order, np.int32(n)),
            first=np.append(self.first, n + 1),
            n_wide=self.n_wide,
        )
