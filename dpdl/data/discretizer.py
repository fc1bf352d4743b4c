"""States made of continuous observations: bins in each dimension, fitted on data.

A discretizer goes with the labels of a log (`Labels.discretizer`), and so with the policies that are learned from it,
which then take raw observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.files.headers import expect_names


@dataclass(frozen=True, eq=False, repr=False)
class Discretizer:
    """A map from observations to states 0 .. n_states - 1; `fit` makes one.

    Attributes
    ----------
    method : {"quantile", "uniform"}
        How it was fitted.
    edges : tuple of arrays
        For each dimension the values, ascending, at which its second, third, ... bin begins. The first and the last bin
        are unbounded.
    cells : array, shape (n_states, d)
        The numbers of the bins of each cell that the data occupied, which is a state.
    unseen : {"error", "nearest"}
        What is done with an observation in a cell that the data did not occupy.

    Examples
    --------
    >>> data = np.array([[0.0, 5.0], [0.1, 6.0], [1.0, 5.5], [1.2, 9.0]])
    >>> cells = Discretizer.fit(data, bins=2)
    >>> cells.states(data).tolist(), cells.states([0.2, 8.0]).item()
    ([0, 1, 2, 3], 1)
    """

    method: str
    edges: tuple[Array, ...]
    cells: Array
    unseen: str = "error"

    @classmethod
    def fit(
        cls, observations: ArrayLike, method: str = "quantile", bins: Any = None, *, unseen: str = "error"
    ) -> Discretizer:
        """Fit to observations; the states are the cells in which some of them lie.

        Parameters
        ----------
        observations : array_like, shape (n, d) or (n,)
            Finite numbers.
        method : {"quantile", "uniform"}, optional
            Bins that hold equally many observations, as nearly as equal values allow, or that are equally wide.
        bins : int or sequence of int
            How many, in each dimension.
        unseen : {"error", "nearest"}, optional
            Whether an observation in a cell without data raises ValueError or counts as of the nearest cell, with
            distances in numbers of bins.

        Examples
        --------
        >>> Discretizer.fit([[0.0], [0.1], [5.0], [5.2]], "uniform", bins=2)
        Discretizer(uniform, 1 dimension, 2 states)
        """
        data = check.numbers_array("observations", observations)
        data = data[:, None] if data.ndim == 1 else data
        check.check_shape("observations", data, (None, None))
        if data.size == 0:
            raise ValueError(f"observations must not be empty, got shape {data.shape}")
        check.choice("method", method, ("quantile", "uniform"))
        check.choice("unseen", unseen, ("error", "nearest"))
        if bins is None:
            raise TypeError(f"method {method!r} needs bins=")
        numbers = [bins] * data.shape[1] if np.ndim(bins) == 0 else list(bins)
        if len(numbers) != data.shape[1]:
            raise ValueError(f"bins must be a number or {data.shape[1]} numbers, got {len(numbers)}")
        cut = _quantiles if method == "quantile" else _uniform
        numbers = [check.whole(f"bins[{k}]", number, at_least=1, at_most=1 << 20) for k, number in enumerate(numbers)]
        edges = tuple(check.frozen(cut(column, n)) for column, n in zip(data.T, numbers, strict=True))
        return cls(method, edges, check.frozen(np.unique(_numbered(data, edges), axis=0)), unseen)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.cells)

    def __repr__(self) -> str:
        d = self.cells.shape[1]
        return f"Discretizer({self.method}, {d} dimension{'' if d == 1 else 's'}, {self.n_states:,} states)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Discretizer) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.method, self.cells.shape, self.cells.tobytes()))

    def states(self, observations: ArrayLike) -> NDArray[np.int64]:
        """States of observations (n, d), as an array (n,), or of one observation (d,), as an array without dimensions.

        Examples
        --------
        >>> Discretizer.fit([0.0, 1.0, 2.0, 3.0], "uniform", bins=3).states([[-7.0], [1.5]])
        array([0, 1])
        """
        data = check.numbers_array("observation", observations)
        d = self.cells.shape[1]
        if data.shape[-1:] != (d,) or data.ndim > 2:
            raise ValueError(f"an observation must have shape ({d},), or several (n, {d}), got {data.shape}")
        rows = data.reshape(-1, d)
        distances, states = self._tree.query(_numbered(rows, self.edges))
        if self.unseen == "error" and (distances > 0).any():
            k = int(np.argmax(distances > 0))
            raise ValueError(
                f"observation {'' if data.ndim == 1 else f'{k} '}{rows[k].tolist()} lies in a cell without data; "
                "a discretizer fitted with unseen='nearest' takes the nearest cell"
            )
        return states.astype(np.int64).reshape(data.shape[:-1])

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them, for `from_json`."""
        edges = [cut.tolist() for cut in self.edges]
        return {"method": self.method, "edges": edges, "cells": self.cells.tolist(), "unseen": self.unseen}

    @classmethod
    def from_json(cls, content: Any) -> Discretizer:
        """Make the discretizer that `to_json` stored."""
        expect_names("discretizer", content, {"method", "edges", "cells", "unseen"})
        *edges, cells = (np.array(part, dtype=np.float64) for part in (*content["edges"], content["cells"]))
        return cls(content["method"], tuple(map(check.frozen, edges)), check.frozen(cells), content["unseen"])

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import KDTree  # slow to import, and seldom needed

        return KDTree(self.cells)


def _numbered(data: Array, edges: Sequence[Array]) -> Array:
    """Numbers of the bins; a value at an edge is in the upper bin."""
    numbers = [np.searchsorted(cut, column, side="right") for cut, column in zip(edges, data.T, strict=True)]
    return np.stack(numbers, axis=1).astype(np.float64)


def _quantiles(column: Array, n: int) -> Array:
    """Edges of bins with equally many values, as nearly as may be: an edge separates two different values."""
    values, counts = np.unique(column, return_counts=True)
    below = np.cumsum(counts)[:-1]  # how many values lie below values[1:]
    if len(below) == 0:
        return np.empty(0)
    targets = np.arange(1, n) * (len(column) / n)
    upper = np.minimum(np.searchsorted(below, targets), len(below) - 1)
    lower = np.maximum(upper - 1, 0)
    nearest = np.where(targets - below[lower] <= below[upper] - targets, lower, upper)
    return values[1:][np.unique(nearest)]


def _uniform(column: Array, n: int) -> Array:
    """Edges of bins of equal width between the least and the largest value."""
    part = np.arange(1, n) / n
    return np.unique((1 - part) * column.min() + part * column.max())  # the difference of the two may overflow
