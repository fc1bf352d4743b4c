"""States made of continuous observations: bins in each dimension, or k-means, fitted on data.

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

METHODS, UNSEEN = ("quantile", "uniform", "kmeans"), ("error", "nearest")

#: Largest coordinate of k-means: squares of differences stay finite.
FAR = 1e150

#: Most rounds of k-means.
ROUNDS = 100


@dataclass(frozen=True, eq=False, repr=False)
class Discretizer:
    """A map from observations to states 0 .. n_states - 1; `fit` makes one.

    Attributes
    ----------
    method : {"quantile", "uniform", "kmeans"}
        How it was fitted.
    edges : tuple of arrays
        Of bins: for each dimension the values, ascending, at which its second, third, ... bin begins. The first and the
        last bin are unbounded.
    scales : array, shape (d,)
        Of k-means: observations are divided by these, the standard deviations of the data (1 where that is 0).
    points : array, shape (n_states, d)
        Of bins: the numbers of the bins of each cell that the data occupied, which is a state. Of k-means: the scaled
        centres.
    unseen : {"error", "nearest"}
        Of bins: what is done with an observation in a cell that the data did not occupy.

    Examples
    --------
    >>> data = np.array([[0.0, 5.0], [0.1, 6.0], [1.0, 5.5], [1.2, 9.0]])
    >>> cells = Discretizer.fit(data, bins=2)
    >>> cells.states(data).tolist(), cells.states([0.2, 8.0]).item()
    ([0, 1, 2, 3], 1)
    """

    method: str
    edges: tuple[Array, ...]
    scales: Array
    points: Array
    unseen: str = "error"

    @classmethod
    def fit(
        cls,
        observations: ArrayLike,
        method: str = "quantile",
        bins: int | Sequence[int] | None = None,
        *,
        clusters: int | None = None,
        unseen: str = "error",
        rng: Any = 0,
    ) -> Discretizer:
        """Fit to observations; the states are the cells, or the clusters, in which some of them lie.

        Parameters
        ----------
        observations : array_like, shape (n, d) or (n,)
            Finite numbers.
        method : {"quantile", "uniform", "kmeans"}, optional
            Bins that hold equally many observations, as nearly as equal values allow, or that are equally wide; or
            k-means (Lloyd's method from k-means++) on observations divided by their standard deviations.
        bins : int or sequence of int
            Needed for bins: how many, in each dimension.
        clusters : int
            Needed for k-means: how many states at most.
        unseen : {"error", "nearest"}, optional
            Whether an observation in a cell without data raises ValueError or counts as of the nearest cell, with
            distances in numbers of bins.
        rng : None, int or numpy.random.Generator, optional
            Randomness of k-means; by default the same in every call.

        Examples
        --------
        >>> Discretizer.fit([[0.0], [0.1], [5.0], [5.2]], "kmeans", clusters=2)
        Discretizer(kmeans, 1 dimension, 2 states)
        """
        data = check.numbers_array("observations", observations)
        data = data[:, None] if data.ndim == 1 else data
        check.check_shape("observations", data, (None, None))
        if data.size == 0:
            raise ValueError(f"observations must not be empty, got shape {data.shape}")
        check.choice("method", method, METHODS)
        check.choice("unseen", unseen, UNSEEN)
        needed, other = ("clusters", "bins") if method == "kmeans" else ("bins", "clusters")
        given = {"bins": bins, "clusters": clusters}
        if given[needed] is None or given[other] is not None:
            raise TypeError(f"method {method!r} needs {needed}=, and not {other}=")
        if method == "kmeans":
            n_clusters = check.whole("clusters", clusters, at_least=1)
            scales = _deviations(data)
            centres = _k_means(_scaled(data, scales), n_clusters, check.generator(rng))
            return cls(method, (), check.frozen(scales), check.frozen(centres), unseen)
        many = [bins] * data.shape[1] if np.ndim(bins) == 0 else list(bins)  # type: ignore[arg-type]
        if len(many) != data.shape[1]:
            raise ValueError(f"bins must be a number or {data.shape[1]} numbers, got {len(many)}")
        cut = _quantiles if method == "quantile" else _uniform
        numbers = [check.whole(f"bins[{k}]", one, at_least=1, at_most=1 << 20) for k, one in enumerate(many)]
        edges = tuple(check.frozen(cut(column, n)) for column, n in zip(data.T, numbers, strict=True))
        cells = np.unique(_numbered(data, edges), axis=0)
        return cls(method, edges, check.frozen(np.empty(0)), check.frozen(cells), unseen)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.points)

    @property
    def n_dimensions(self) -> int:
        """Length of an observation."""
        return self.points.shape[1]

    def __repr__(self) -> str:
        several = "" if self.n_dimensions == 1 else "s"
        return f"Discretizer({self.method}, {self.n_dimensions} dimension{several}, {self.n_states:,} states)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Discretizer) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.method, self.points.shape, self.points.tobytes()))

    def states(self, observations: ArrayLike) -> NDArray[np.int64]:
        """States of observations (n, d), as an array (n,), or of one observation (d,), as an array without dimensions.

        Examples
        --------
        >>> Discretizer.fit([0.0, 1.0, 2.0, 3.0], "uniform", bins=3).states([[-7.0], [1.5]])
        array([0, 1])
        """
        data = check.numbers_array("observation", observations)
        d = self.n_dimensions
        if data.shape[-1:] != (d,) or data.ndim > 2:
            raise ValueError(f"an observation must have shape ({d},), or several (n, {d}), got {data.shape}")
        rows = data.reshape(-1, d)
        if self.method == "kmeans":
            states = self._nearest(_scaled(rows, self.scales))
        else:
            cells = _numbered(rows, self.edges)
            states = self._nearest(cells, within=0.5)  # cells are whole numbers, so this is the cell itself
            unknown = states < 0
            if unknown.any() and self.unseen == "error":
                k = int(np.argmax(unknown))
                raise ValueError(
                    f"observation {'' if data.ndim == 1 else f'{k} '}{rows[k].tolist()} lies in a cell without data; "
                    "a discretizer fitted with unseen='nearest' takes the nearest cell"
                )
            states[unknown] = self._nearest(cells[unknown])
        return states.reshape(data.shape[:-1])

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them, for `from_json`."""
        return {
            "method": self.method,
            "edges": [one.tolist() for one in self.edges],
            "scales": self.scales.tolist(),
            "points": self.points.tolist(),
            "unseen": self.unseen,
        }

    @classmethod
    def from_json(cls, content: Any) -> Discretizer:
        """Make the discretizer that `to_json` stored."""
        expect_names("discretizer", content, {"method", "edges", "scales", "points", "unseen"})
        method, unseen = (check.text(name, content[name]) for name in ("method", "unseen"))
        edges, scales, points = (
            [check.frozen(np.array(one, dtype=np.float64)) for one in given]
            for given in (content["edges"], [content["scales"]], [content["points"]])
        )
        return cls(method, tuple(edges), scales[0], points[0], unseen)

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import KDTree  # slow to import, and seldom needed

        return KDTree(self.points)

    def _nearest(self, coordinates: Array, within: float = np.inf) -> NDArray[np.int64]:
        """State of the nearest of `points`; -1 if none is that near."""
        if len(coordinates) == 0:
            return np.empty(0, dtype=np.int64)
        nearest = self._tree.query(coordinates, distance_upper_bound=within)[1]
        return np.where(nearest < self.n_states, nearest, -1).astype(np.int64)


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


def _deviations(data: Array) -> Array:
    """Standard deviations of the columns, 1 where they are 0; nothing overflows or underflows on the way."""
    largest = abs(data).max(axis=0)
    largest[largest == 0] = 1.0
    with np.errstate(under="ignore"):
        deviations = (data / largest).std(axis=0) * largest
    return np.where(deviations > 0, deviations, 1.0)


def _scaled(data: Array, scales: Array) -> Array:
    with np.errstate(over="ignore"):
        scaled = data / scales
    far = abs(scaled) > FAR
    if far.any():
        row, column = np.argwhere(far)[0]
        raise ValueError(f"observation {row}, value {data[row, column]} is too far from zero for its scale")
    return scaled


def _k_means(data: Array, n_clusters: int, rng: np.random.Generator) -> Array:
    """Centres by Lloyd's method from a k-means++ start; clusters that lose all their points are left out."""
    from scipy.spatial import KDTree

    centres = [data[rng.integers(len(data))]]
    distances = np.full(len(data), np.inf)
    while len(centres) < n_clusters:
        distances = np.minimum(distances, ((data - centres[-1]) ** 2).sum(axis=1))
        largest = distances.max()
        if largest == 0:  # every point is a centre
            break
        weights = np.cumsum(distances / largest)
        centres.append(data[np.searchsorted(weights, rng.random() * weights[-1], side="right").clip(max=len(data) - 1)])
    means, owner = np.array(centres), np.full(len(data), -1)
    for _ in range(ROUNDS):
        before, owner = owner, KDTree(means).query(data)[1]
        if (before == owner).all():
            break
        used, owner, counts = np.unique(owner, return_inverse=True, return_counts=True)
        sums = [np.bincount(owner, weights=column, minlength=len(used)) for column in data.T]
        means = np.stack(sums, axis=1) / counts[:, None]
    return means[np.lexsort(means.T[::-1])]
