"""Counting a log on the engine where it lives: Spark, DuckDB, polars or ibis, by one expression of narwhals.

The frame is counted by state, action, next state and end, and only these cells come back, as columns of Arrow: how many
rows each has, how many of them were first in their episode, and the mean and standard deviation of reward and costs.
Where reward and costs take few values and that makes at most `MOST_CELLS` cells, the values are part of the cell, and
the cells say exactly what the rows say. Next states are found by a window over episode and time. narwhals has no
ordered windows for Dask: there the caller counts with a group-by and `Dataset.from_counts` (docs/formats.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl.data.dataset import Dataset
from dpdl.data.labels import Coded, Labels, merged, paired
from dpdl.data.roles import Roles

#: Reward and costs can be part of the cells if they take at most this many combinations of values,
FEW_VALUES = 64
#: and if that makes at most this many cells.
MOST_CELLS = 1 << 20
#: Rows in which distinct values are counted first; if there are few, in all rows.
SAMPLE = 10_000

_NEXT, _FIRST, _LAST, _END, _TWICE = "dpdl_next", "dpdl_first", "dpdl_last", "dpdl_end", "dpdl_twice"
_EARLY, _BROKEN = "dpdl_early", "dpdl_broken"
_COUNT, _MEAN, _STD, _MOST, _BAD = "dpdl_count", "dpdl_mean", "dpdl_std", "dpdl_most", "dpdl_bad"


#: What must not be in any row.
WRONG = {
    _TWICE: "a time must not occur twice in an episode",
    _EARLY: "only the last row of an episode can be terminated",
    _BROKEN: "episodes do not chain: a next state is not the state of the row that follows in the episode",
}


def is_lazy_frame(source: Any) -> bool:
    """Whether narwhals knows a frame as one that is computed elsewhere or later."""
    package, name = type(source).__module__.split(".")[0], type(source).__name__
    if package.startswith("dask"):
        raise TypeError(
            "a Dask frame cannot be counted here, because narwhals has no ordered windows for it: count it with a "
            "group-by, see docs/formats.md"
        )
    return package in ("pyspark", "duckdb", "_duckdb", "ibis", "sqlframe") or (package, name) == ("polars", "LazyFrame")


def count_frame(frame: Any, roles: Roles, *, drop: bool = False) -> Dataset:
    """Count a lazy frame; with `drop`, rows with missing or malformed values are left out.

    Returns
    -------
    Dataset
        A log of counts with labels, and with the counts of first states if there are episodes.
    """
    try:
        import narwhals as nw
    except ImportError:
        raise ImportError("counting on an engine needs narwhals: pip install 'dpdl[table]'") from None
    state, action, reward, costs = roles.state, roles.action, roles.reward, roles.costs
    next_state, episode, time, terminated = roles.next_state, roles.episode, roles.time, roles.terminated
    if roles.truncated not in (None, True):
        raise ValueError("a log that is counted takes no truncated=: a record stops where its episode does not end")
    in_order = episode is not None and time is not None
    if next_state is None and (not in_order or terminated is None):
        raise ValueError(
            "rows of an engine have no order: pass next_state=, or episode=, time= and terminated= (a column, True if "
            "every episode ends with its last row, or False)"
        )
    if terminated is True and not in_order:
        raise ValueError("terminated=True is about the last row of every episode, so it needs episode= and time=")
    rows = nw.from_native(frame).lazy()
    names = list(rows.collect_schema().names())
    flag = terminated if isinstance(terminated, str) else None
    values = list(dict.fromkeys([reward, *costs]))
    wanted = [*state, *action, *values, *(next_state or ()), *filter(None, (episode, time, flag))]
    absent = [name for name in wanted if name not in names]
    if absent:
        raise ValueError(f"the frame has no column {absent[0]!r}; its columns are {', '.join(map(repr, names))}")
    rows = rows.select(*dict.fromkeys(wanted))

    number = {name: nw.col(name).cast(nw.Float64) for name in values}
    faults = {(name, "missing"): nw.col(name).is_null() for name in wanted if name not in (next_state or ())}
    faults |= {(name, "not finite"): ~column.is_finite() for name, column in number.items()}
    if flag is not None:
        faults[flag, "not true or false"] = ~nw.col(flag).cast(nw.Float64).is_in([0.0, 1.0])
    largest = {name: nw.when(column.is_finite()).then(column.abs()).max() for name, column in number.items()}
    facts = _row(
        rows.select(
            nw.len().alias(_COUNT),
            *(wrong.cast(nw.Int64).sum().alias(f"{_BAD}{k}") for k, wrong in enumerate(faults.values())),
            *(column.alias(f"{_MOST}{k}") for k, column in enumerate(largest.values())),
        )
    )
    bad = {fault: int(facts[f"{_BAD}{k}"] or 0) for k, fault in enumerate(faults)}
    notes = _notes({fault: n for fault, n in bad.items() if n}, drop, (episode, time))
    n_values = _distinct(nw, rows, values)
    # Values are divided by a power of two, so that no square overflows or vanishes.
    scales = [math.ldexp(0.5, math.frexp(facts[f"{_MOST}{k}"] or 1.0)[1]) for k in range(len(values))]
    rows = rows.with_columns(*((number[name] / scale).alias(name) for name, scale in zip(values, scales, strict=True)))

    following = [f"{_NEXT}{k}" for k in range(len(state))]
    after = [nw.col(name) for name in next_state or ()]
    end: Any = nw.lit(False) if flag is None else nw.col(flag).cast(nw.Float64) == 1
    marks = [nw.lit(False)] * 4
    if episode is not None and time is not None:

        def beside(name: str, by: int) -> Any:
            return nw.col(name).shift(by).over(episode, order_by=time)

        marks = [beside(time, 1).is_null(), beside(time, -1).is_null(), beside(time, 1) == nw.col(time), nw.lit(False)]
        for column, name in zip(after, state, strict=False):
            marks[3] = marks[3] | (column != beside(name, -1))
        after = after or [beside(name, -1) for name in state]
    rows = rows.with_columns(
        *(mark.alias(name) for mark, name in zip(marks, (_FIRST, _LAST, _TWICE, _BROKEN), strict=True)),
        *(column.alias(name) for column, name in zip(after, following, strict=True)),
    )
    rows = rows.with_columns((nw.col(_LAST) if terminated is True else end).alias(_END))
    # Of a row that ends its episode the next state is not used.
    rows = rows.with_columns(*(nw.when(~nw.col(_END)).then(nw.col(name)).alias(name) for name in following))
    wrong_rows = [_TWICE] if in_order else []
    if in_order and flag is not None:
        rows = rows.with_columns((nw.col(_END) & ~nw.col(_LAST)).alias(_EARLY))
        wrong_rows.append(_EARLY)
    if in_order and next_state is not None:
        rows = rows.with_columns((nw.col(_BROKEN) & ~nw.col(_END)).alias(_BROKEN))
        wrong_rows.append(_BROKEN)
    unusable = nw.lit(False)
    for fault, wrong in faults.items():
        if bad[fault]:
            unusable = unusable | nw.coalesce(wrong, nw.lit(False))
    rows = rows.with_columns(unusable.alias(_BAD))
    keys = list(dict.fromkeys([*state, *action, *following, _END, _BAD]))
    sums = [nw.len().alias(_COUNT)]
    sums += [nw.col(name).cast(nw.Int64).sum().alias(name) for name in (_FIRST, *wrong_rows)]
    moments = [nw.col(name).mean().alias(f"{_MEAN}{k}") for k, name in enumerate(values)]
    moments += [nw.col(name).std(ddof=0).alias(f"{_STD}{k}") for k, name in enumerate(values)]

    few, cells = n_values <= FEW_VALUES and int(facts[_COUNT]) <= MOST_CELLS, None
    if not few:
        cells = _collected(rows.group_by(keys).agg(*sums, *moments))
        few = n_values * cells.num_rows <= MOST_CELLS
    if few:
        cells = _collected(rows.group_by([*keys, *values]).agg(*sums))
    for name in wrong_rows:
        n = int(np.nansum(_numbers(cells, name)))
        if n:
            raise ValueError(f"{WRONG[name]} (such rows in the frame: {n:,})")
    means = [_numbers(cells, name if few else f"{_MEAN}{k}") * scales[k] for k, name in enumerate(values)]
    stds = [None if few else _numbers(cells, f"{_STD}{k}") * scale for k, scale in enumerate(scales)]
    columns = dict(zip(values, zip(means, stds, strict=True), strict=True))
    return _log(cells, roles, following, columns, notes, drop=drop)


def _row(rows: Any) -> dict[str, Any]:
    """The only row of a lazy frame."""
    return _collected(rows).to_pylist()[0]


def _collected(rows: Any) -> Any:
    """The rows of a lazy frame as a table of Arrow."""
    return rows.collect(backend="pyarrow").to_native()


def _whole(cells: Any, name: str) -> NDArray[np.int64]:
    return cells[name].to_numpy().astype(np.int64)


def _numbers(cells: Any, name: str) -> NDArray[np.float64]:
    return cells[name].to_numpy().astype(np.float64)


def _distinct(nw: Any, rows: Any, values: Sequence[str]) -> float:
    """The number of combinations of values; infinite if a sample shows too many."""
    for some in (rows.head(SAMPLE), rows):
        n = math.prod(_row(some.select(*(nw.col(name).n_unique() for name in values))).values())
        if n > FEW_VALUES:
            return math.inf
    return n


def _notes(bad: dict[tuple[str, str], int], drop: bool, placing: tuple[str | None, ...]) -> list[str]:
    """Raise one error for values that cannot be used, or say which rows are left out."""
    listed = "; ".join(f"column {name!r}: {n:,} {fault}" for (name, fault), n in bad.items())
    if bad and not drop:
        raise ValueError(f'the frame has values that cannot be used; missing="drop" leaves out their rows; {listed}')
    if any(name in placing for name, _ in bad):
        raise ValueError(f"rows whose place in an episode is not known cannot be dropped; {listed}")
    return [f"rows were left out because of missing or malformed values; {listed}"] if bad else []


def _log(
    cells: Any,
    roles: Roles,
    following: Sequence[str],
    columns: dict[str, tuple[NDArray[np.float64], NDArray[np.float64] | None]],
    notes: list[str],
    *,
    drop: bool,
) -> Dataset:
    """Make a log of the cells; those that cannot be used, or whose next state is not known, show first states alone."""
    ended, bad, first, count = (_whole(cells, name) for name in (_END, _BAD, _FIRST, _COUNT))
    now, after = (_coded(cells, names, "state" in roles.tuples) for names in (roles.state, following))
    done, reward = _coded(cells, roles.action, "action" in roles.tuples), roles.reward
    known, usable = (ended > 0) | (after.codes >= 0), bad == 0
    kept = known & usable
    if not kept.any():
        raise ValueError("no row of the frame can be used")
    n = int(count[usable & ~known].sum())
    if n and roles.next_state is not None and not drop:
        raise ValueError(
            f"column {roles.next_state[0]!r} (next_state): {n:,} missing in rows that do not end an episode"
        )
    if n:
        notes.append(f"{n:,} rows were left out: the record of an episode stops there, and what follows is not known")
    labels, (s, s_next) = merged([now, after])
    used = np.unique(np.concatenate([s[kept], s_next[kept & (ended == 0)]]))
    used_actions, a = np.unique(done.codes[kept], return_inverse=True)
    initial = None
    if roles.time is not None:
        shown = np.isin(s, used)
        initial = np.bincount(np.searchsorted(used, s[shown]), first[shown], len(used)).astype(np.int64)
    with_stds = columns[reward][1] is not None
    log = Dataset.from_counts(
        np.searchsorted(used, s[kept]),
        a,
        np.searchsorted(used, np.where(ended, used[0], s_next)[kept]),
        count[kept],
        columns[reward][0][kept],
        costs={name: columns[name][0][kept] for name in roles.costs},
        r_std=columns[reward][1][kept] if with_stds else None,  # type: ignore[index]
        cost_stds={name: columns[name][1][kept] for name in roles.costs} if with_stds else None,  # type: ignore[index]
        terminated=ended[kept] > 0 if ended.any() else None,
        initial=initial if initial is not None and initial.any() else None,
        n_states=len(used),
        n_actions=len(used_actions),
    )
    named = Labels((labels[k] for k in used), (done.labels[k] for k in used_actions))
    log.__dict__.update(labels=named, _notes=tuple(notes))
    return log


def _coded(cells: Any, names: Sequence[str], as_tuples: bool) -> Coded:
    """The labels of cells: values of one column, or tuples of several; -1 where they are missing."""
    coded = []
    for name in names:
        column = cells[name].combine_chunks().dictionary_encode()
        codes = column.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
        labels, (codes,) = merged([Coded(codes, column.dictionary.to_pylist())])
        coded.append(Coded(codes, labels))
    return paired(coded) if as_tuples else coded[0]
