"""Logs of counts: how often each transition (s, a, s') occurred, and the sums of its rewards and utilities.

That is all that anything but the order of the rows depends on, and what a cluster can reduce a log of any length to by
one group-by. A record then stands for many transitions and holds their means. Standard errors also depend on how much
rewards and utilities vary among them, so sums of squares can be given as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data import packing
from dpdl.data.storage import INITIAL, PAIRS, RECORDS, REPEATS, SPREADS
from dpdl.data.units import CostLimits, Units, scales


def pack(
    s: ArrayLike,
    a: ArrayLike,
    s_next: ArrayLike,
    count: ArrayLike,
    reward: ArrayLike,
    sums: ArrayLike,
    *,
    costs: CostLimits | None,
    terminated: ArrayLike | None,
    reward_squares: ArrayLike | None,
    squares: ArrayLike | None,
    initial: ArrayLike | None,
    n_states: int,
    n_actions: int,
    reward_scale: Any,
    utility_scale: Any,
) -> tuple[dict[str, NDArray[Any]], Units]:
    """Check the columns of a table of counts, and pack them; `sums` are of utilities, or of costs."""
    n_states, n_actions = packing.sizes(n_states, n_actions)
    s, a, s_next = packing.moves(s, a, s_next, terminated, n_states, n_actions)
    n, one, name = len(s), *(("utility", "utilities") if costs is None else ("cost", "costs"))
    repeats = check.indices("count", count, 2**63 - 1, shape=(n,), dtype=np.int64)
    if not repeats.all():
        raise ValueError(f"count[{np.argmin(repeats)}] = 0 must be at least 1")
    if float(repeats.sum(dtype=np.float64)) > 2**62:
        raise ValueError(f"count sums to {repeats.sum(dtype=np.float64):g}, more than 2^62")
    r = check.numbers_array("reward", reward, shape=(n,)) / repeats
    u = packing.columns(name, sums, n) / repeats[:, None]
    if (reward_squares is None) != (squares is None):
        raise TypeError(f"give both reward_squares and {one}_squares, or neither")
    variances: tuple[Array, Array] | None = None
    if reward_squares is not None and squares is not None:
        r2 = check.numbers_array("reward_squares", reward_squares, shape=(n,), at_least=0) / repeats
        u2 = packing.columns(f"{one}_squares", squares, n, u.shape[1]) / repeats[:, None]
        variances = (_variance("reward_squares", r2, r), _variance(f"{one}_squares", u2, u))
    if costs is not None:
        check.check_shape("limits", costs.limits, u.shape[1:])
        u = costs.slack(u, s_next == packing.ENDED)
        size = np.sqrt(u**2 + variances[1]) if variances else abs(u)
        units = costs.units(check.real("reward_scale", reward_scale, above=0), size.max(axis=0, initial=0.0))
    else:
        units = Units(
            check.real("reward_scale", reward_scale, above=0), scales("utility_scale", utility_scale, u.shape[1])
        )
    records = packing.pack(s_next, r, u, units)
    pairs, records["pair"] = packing.rank(s.astype(np.int64) * n_actions + a, n_states * n_actions)
    arrays = {RECORDS: records, PAIRS: pairs, REPEATS: repeats}
    if variances is not None:
        arrays[SPREADS] = np.empty(n, dtype=packing.spread_dtype(u.shape[1]))
        arrays[SPREADS]["r"] = variances[0] / units.reward_scale**2
        arrays[SPREADS]["u"] = variances[1] / np.array(units.utility_scale) ** 2
    if initial is not None:
        arrays[INITIAL] = check.indices("initial", initial, 2**63 - 1, shape=(n_states,), dtype=np.int64)
        if not arrays[INITIAL].any():
            raise ValueError("initial must count at least one episode, got zeros")
    return arrays, units


def _variance(name: str, squares: Array, means: Array) -> Array:
    """Mean square less square of the mean; it may be negative by rounding, relative to the mean square, and no more."""
    found = squares - means**2
    wrong = np.argwhere(found < -1e-9 * np.maximum(squares, means**2))
    if len(wrong):
        index = tuple(wrong[0])
        where = ", ".join(map(str, index))
        raise ValueError(f"{name}[{where}] is less than the square of the sum, divided by count: no such numbers exist")
    return np.maximum(found, 0.0)


def tabulate(
    parts: Iterable[tuple[NDArray[Any], NDArray[np.int64] | int]],
    table: NDArray[np.int64],
    n_states: int,
    n_actions: int,
    units: Units,
    spreads: NDArray[Any] | None,
) -> dict[str, NDArray[Any]]:
    """Count the transitions of a log, given in `parts`; the columns are those of `pack`, in the caller's units."""
    I, ends, first = len(units.utility_scale), n_states, 0
    keys, sums = np.empty(0, dtype=np.int64), np.empty((0, 2 + 2 * I))
    totals = np.empty(0, dtype=np.int64)
    scale, rule = np.append(units.reward_scale, units.utility_scale), units.cost_limits()
    for part, repeats in parts:
        after = np.where(part["s_next"] < 0, ends, part["s_next"]).astype(np.int64)
        values = np.column_stack([part["r"], part["u"]]) * scale
        if rule is not None:  # row by row: a limit may be far larger than the costs, and its squares larger still
            values[:, 1:] = rule.costs(values[:, 1:], part["s_next"] < 0)
        squares = values**2
        if spreads is not None:
            spread = spreads[first : first + len(part)]
            squares += np.column_stack([spread["r"], spread["u"]]) * scale**2
        weight = np.broadcast_to(repeats, len(part))
        here = np.concatenate([keys, part["pair"].astype(np.int64) * (ends + 1) + after])
        stacked = np.concatenate([sums, np.column_stack([values, squares]) * weight[:, None]])
        counted = np.concatenate([totals, weight])
        keys, place = np.unique(here, return_inverse=True)
        sums = np.column_stack([np.bincount(place, weights=column, minlength=len(keys)) for column in stacked.T])
        totals = np.zeros(len(keys), dtype=np.int64)
        np.add.at(totals, place, counted)
        first += len(part)
    pair, after = np.divmod(keys, ends + 1)
    s, a = np.divmod(table[pair], n_actions)
    ended = after == ends
    values, squares, name = sums[:, : 1 + I], sums[:, 1 + I :], "utility" if rule is None else "cost"
    return {
        "s": s,
        "a": a,
        "s_next": np.where(ended, packing.ENDED, after),
        "terminated": ended,
        "count": totals,
        "reward": values[:, 0],
        "reward_squares": squares[:, 0],
        {"utility": "utilities", "cost": "costs"}[name]: values[:, 1:],
        f"{name}_squares": squares[:, 1:],
    }
