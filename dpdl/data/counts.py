"""Logs of counts: how often each transition occurred, and means and standard deviations of its reward and costs.

That is all that anything but the order of the rows depends on, and what a cluster can reduce a log of any length to by
one group-by. A record then stands for many transitions and holds their means. Standard errors also depend on how much
rewards and costs vary among them, so standard deviations can be given as well: a variance would overflow at 1e155.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Counts are weights in double precision, so their sum must be exact there.
MOST_TRANSITIONS = 2**53


def tabulate(log: Any) -> dict[str, Any]:
    """Count the transitions of a log by pair, next state and end; the columns are those of `Dataset.from_counts`.

    Cells are merged chunk by chunk by their counts, means and deviations from the means, which loses no digits however
    far the values are from zero.
    """
    ends, I = log.n_states, log.n_utilities
    keys = np.empty(0, dtype=np.int64)
    totals, means, spreads, first = np.empty(0, dtype=np.int64), np.empty((0, 1 + I)), np.empty((0, 1 + I)), 0
    for part, repeats in log.parts():
        after = np.where(part["s_next"] < 0, ends, part["s_next"]).astype(np.int64)
        values = np.column_stack([part["r"], part["u"]])
        weight = np.broadcast_to(np.int64(1) * repeats, len(part))
        own = np.zeros_like(values)
        if log.spreads is not None:
            spread = log.spreads[first : first + len(part)]
            own = np.column_stack([spread["r"], spread["u"]])
        here = np.concatenate([keys, part["pair"].astype(np.int64) * (ends + 1) + after])
        keys, place = np.unique(here, return_inverse=True)
        weights, centres = np.concatenate([totals, weight]), np.concatenate([means, values])
        inner = np.concatenate([spreads, own])
        totals = np.zeros(len(keys), dtype=np.int64)
        np.add.at(totals, place, weights)
        means, spreads = np.empty((2, len(keys), 1 + I))
        pivot = np.empty(len(keys), dtype=np.intp)
        pivot[place] = np.arange(len(place))  # any member of the cell: sums are taken around its value
        for k in range(1 + I):
            with np.errstate(over="ignore"):
                apart = centres[:, k] - centres[pivot, k][place]
            size = max(float(abs(apart).max(initial=0.0)), float(inner[:, k].max(initial=0.0))) or 1.0
            if not np.isfinite(size * float(totals.max())):
                raise ValueError(f"column {k} of reward and costs has numbers whose sums overflow")
            apart = apart / size  # so that squares neither overflow nor vanish
            shift = np.bincount(place, weights=apart * weights, minlength=len(keys)) / totals
            means[:, k] = centres[pivot, k] + size * shift
            apart -= shift[place]
            squares = np.bincount(place, weights=(apart**2 + (inner[:, k] / size) ** 2) * weights, minlength=len(keys))
            spreads[:, k] = size * np.sqrt(squares / totals)
        first += len(part)
    pair, after = np.divmod(keys, ends + 1)
    flat, ended = log.table[pair], after == ends
    columns = {
        "s": flat // log.n_actions,
        "a": flat % log.n_actions,
        "s_next": np.where(ended, -1, after),
        "terminated": ended,
        "count": totals,
        "r": means[:, 0],
        "r_std": spreads[:, 0],
    }
    if log.cost_names is None:
        return columns | {"u": means[:, 1:], "u_std": spreads[:, 1:]}
    named = list(enumerate(log.cost_names, start=1))
    return columns | {
        "costs": {name: means[:, k] for k, name in named},
        "cost_stds": {name: spreads[:, k] for k, name in named},
    }
