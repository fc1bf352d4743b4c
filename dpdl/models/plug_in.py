"""The plug-in model of a log: observed frequencies and means in place of the true ones."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from dpdl.data.dataset import Dataset
from dpdl.data.packing import chunks
from dpdl.models.cmdp import CMDP


def plug_in(dataset: Dataset, gamma: float, rho0: ArrayLike) -> CMDP:
    """Return the model whose probabilities and rewards are the observed frequencies and means.

    Pairs that the data does not show are worst-case: they pay reward and utilities -1 and never leave their
    state.

    Examples
    --------
    >>> from dpdl import Dataset
    >>> data = Dataset([0, 0], [0, 0], [0, 1], [1.0, 0.0], [[1.0], [1.0]], n_states=2, n_actions=1)
    >>> model = plug_in(data, gamma=0.5, rho0=[1.0, 0.0])
    >>> model.P.toarray().tolist(), model.r.tolist()
    ([[0.5, 0.5], [0.0, 1.0]], [[0.5], [-1.0]])
    """
    n_states, n_pairs = dataset.n_states, dataset.n_states * dataset.n_actions
    # In chunks: memory is proportional to the pairs and the distinct transitions, not to the length of the log.
    moves, totals = sp.csr_array((n_pairs, n_states)), np.zeros((1 + dataset.n_utilities, n_pairs))
    for part in chunks(dataset.records, at_least=n_pairs):
        flat = dataset.table[part["pair"]]
        moves += sp.coo_array((np.ones(len(flat)), (flat, part["s_next"])), shape=moves.shape).tocsr()
        for total, values in zip(totals, (part["r"], *part["u"].T), strict=True):
            total += np.bincount(flat, weights=values, minlength=n_pairs)
    counts = np.zeros(n_pairs)
    counts[dataset.pairs] = dataset.pair_counts
    unseen = np.flatnonzero(counts == 0)
    moves += sp.coo_array((np.ones(len(unseen)), (unseen, unseen // dataset.n_actions)), shape=moves.shape).tocsr()
    counts[unseen], totals[:, unseen] = 1, -1
    moves.data /= np.repeat(counts, np.diff(moves.indptr))
    means = np.clip(totals / counts, -1, 1)  # a mean of ones may round above one
    r, *u = means.reshape(-1, n_states, dataset.n_actions)
    return CMDP(P=moves, r=r, u=np.reshape(u, (-1, *r.shape)), gamma=gamma, rho0=rho0)
