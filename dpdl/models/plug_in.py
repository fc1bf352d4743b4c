"""The plug-in model of a log: observed frequencies and means in place of the true ones."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpdl.data.dataset import Dataset
from dpdl.models.cmdp import CMDP
from dpdl.question import pose


def plug_in(
    log: Dataset,
    gamma: float,
    rho0: ArrayLike | None = None,
    *,
    limits: Mapping[str, float] | None = None,
    limit_on: str | None = None,
    initial_states: ArrayLike | None = None,
) -> CMDP:
    """Return the model whose probabilities and rewards are the observed frequencies and means.

    Pairs that the data does not show are worst-case: they pay reward and utilities -1 and never leave their
    state.

    Parameters
    ----------
    log : Dataset
    gamma : float
        Discount.
    limits, limit_on
        Upper limits of costs by name, and whether they are on the "total" or the "average" (`dpdl.question`).
    rho0, initial_states : array_like, optional
        Distribution of the initial state, or a log of initial states; by default those of the log's episodes.

    Examples
    --------
    >>> from dpdl import Dataset
    >>> data = Dataset([0, 0], [0, 0], [0, 1], [1.0, 0.0], [[1.0], [1.0]], n_states=2, n_actions=1)
    >>> model = plug_in(data, gamma=0.5, rho0=[1.0, 0.0])
    >>> model.P.toarray().tolist(), model.r.tolist()
    ([[0.5, 0.5], [0.0, 1.0]], [[0.5], [-1.0]])
    """
    dataset = pose(log, gamma, limits, limit_on)
    initial = dataset.initial(rho0, initial_states)
    key = (gamma, initial.tobytes())
    known = _LAST.get(dataset)  # read once: another thread may replace it
    if known is None or known[0] != key:
        known = _LAST[dataset] = (key, _plug_in(dataset, float(gamma), initial))
    return known[1]


#: The last model of each log, for as long as the log lives: a result, its checks and its start all need the same one.
_LAST: WeakKeyDictionary[Dataset, tuple[tuple[float, bytes], CMDP]] = WeakKeyDictionary()


def _plug_in(dataset: Dataset, gamma: float, initial: NDArray[np.float64]) -> CMDP:
    n_states, n_pairs = dataset.n_states, dataset.n_states * dataset.n_actions
    # In chunks: memory is proportional to the pairs and the distinct transitions, not to the length of the log.
    moves, totals = sp.csr_array((n_pairs, n_states + 1)), np.zeros((1 + dataset.n_utilities, n_pairs))
    for part, repeats in dataset.parts(at_least=n_pairs):
        flat = dataset.table[part["pair"]]
        after = np.where(part["s_next"] < 0, n_states, part["s_next"])  # the last column is the end
        weight = np.broadcast_to(np.float64(1) * repeats, flat.shape)
        moves += sp.coo_array((weight, (flat, after)), shape=moves.shape).tocsr()
        for total, values in zip(totals, (part["r"], *part["u"].T), strict=True):
            total += np.bincount(flat, weights=values * repeats, minlength=n_pairs)
    counts = np.zeros(n_pairs)
    counts[dataset.pairs] = dataset.pair_counts
    unseen = np.flatnonzero(counts == 0)
    moves += sp.coo_array((np.ones(len(unseen)), (unseen, unseen // dataset.n_actions)), shape=moves.shape).tocsr()
    counts[unseen], totals[:, unseen] = 1, -1
    moves.data /= np.repeat(counts, np.diff(moves.indptr))
    means = np.clip(totals / counts, -1, 1)  # a mean of ones may round above one
    r, *u = means.reshape(-1, n_states, dataset.n_actions)
    ends = moves[:, [n_states]].toarray().reshape(r.shape) if dataset.n_ended else None
    return CMDP(P=moves[:, :n_states], r=r, u=np.reshape(u, (-1, *r.shape)), gamma=gamma, rho0=initial, ends=ends)
