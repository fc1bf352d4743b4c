"""Counting a log on the engine where it lives: Spark, DuckDB, polars or ibis, by one expression of narwhals.

The frame is counted by state, action, next state and end, and only these cells come back: how many rows each has, and
the mean and standard deviation of reward and costs. Where reward and costs take few values, these are part of the cell,
and the cells say exactly what the rows say. Next states are found by a window over episode and time. narwhals has no
ordered windows for Dask: there the caller counts with a group-by and `Dataset.from_counts` (docs/formats.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl.data.dataset import Dataset
from dpdl.data.labels import Labels, ordered, plain

#: Reward and costs are part of the cells if together they take at most this many distinct values.
FEW_VALUES = 64

_NEXT, _FIRST, _LAST, _END = "dpdl_next", "dpdl_first", "dpdl_last", "dpdl_end"
_COUNT, _MEAN, _STD = "dpdl_count", "dpdl_mean", "dpdl_std"


def is_lazy_frame(source: Any) -> bool:
    """Whether narwhals knows a frame as one that is computed elsewhere or later."""
    name = f"{type(source).__module__}.{type(source).__name__}"
    if not name.startswith(("pyspark", "polars", "duckdb", "_duckdb", "ibis", "sqlframe", "dask")):
        return False
    if name.startswith("dask"):
        raise TypeError(
            "a Dask frame cannot be counted here, because narwhals has no ordered windows for it: count it with a "
            "group-by, see docs/formats.md"
        )
    return name.startswith(("pyspark", "duckdb", "_duckdb", "ibis", "sqlframe")) or type(source).__name__ == "LazyFrame"


def count_frame(
    frame: Any,
    *,
    state: Sequence[str],
    action: Sequence[str],
    reward: str,
    costs: Sequence[str] = (),
    next_state: Sequence[str] | None = None,
    episode: str | None = None,
    time: str | None = None,
    terminated: str | bool | None = None,
    tuples: Sequence[str] = (),
) -> Dataset:
    """Count a lazy frame; the arguments are those of `read_log`, columns as lists.

    Parameters
    ----------
    tuples : sequence of str
        Which of "state" and "action" have tuples as labels.

    Returns
    -------
    Dataset
        A log of counts with labels, and with the counts of first states if there are episodes.
    """
    try:
        import narwhals as nw
    except ImportError:
        raise ImportError("counting on an engine needs narwhals: pip install 'dpdl[table]'") from None
    if next_state is None and (episode is None or time is None or terminated is None):
        raise ValueError(
            "rows of an engine have no order: pass next_state=, or episode=, time= and terminated= (a column, True if "
            "every episode ends with its last row, or False)"
        )
    if terminated is True and (episode is None or time is None):
        raise ValueError("terminated=True is about the last row of every episode, so it needs episode= and time=")
    rows = nw.from_native(frame).lazy()
    names = list(rows.collect_schema().names())
    flag = terminated if isinstance(terminated, str) else None
    wanted = [*state, *action, reward, *costs, *(next_state or ()), *filter(None, (episode, time, flag))]
    absent = [name for name in wanted if name not in names]
    if absent:
        raise ValueError(f"the frame has no column {absent[0]!r}; its columns are {', '.join(map(repr, names))}")
    needed = [*state, *action, reward, *costs, *filter(None, (episode, time, flag))]
    _refuse_missing(nw, rows, dict.fromkeys(needed), reward, costs)

    following = [f"{_NEXT}{k}" for k in range(len(state))]
    groups, order = [] if episode is None else [episode], {"order_by": time}
    ordered_rows, last = episode is not None and time is not None, nw.lit(False)
    if ordered_rows:
        shifts = [nw.col(state[0]).shift(by).over(*groups, **order) for by in (1, -1)]
        rows = rows.with_columns(shifts[0].is_null().alias(_FIRST), shifts[1].is_null().alias(_LAST))
        last = nw.col(_LAST)
    end = last if terminated is True else nw.lit(False) if flag is None else nw.col(flag).cast(nw.Int64) == 1
    after = [nw.col(name) for name in next_state or ()]
    after = after or [nw.col(name).shift(-1).over(*groups, **order) for name in state]
    rows = rows.with_columns(end.alias(_END), *(one.alias(name) for one, name in zip(after, following, strict=True)))
    # Of a row that ends its episode the next state is not used.
    rows = rows.with_columns(*(nw.when(~nw.col(_END)).then(nw.col(name)).alias(name) for name in following))
    known = rows.filter(nw.col(_END) | ~nw.col(following[0]).is_null())

    values = [reward, *costs]
    sizes = _collected(rows.select(nw.len().alias(_COUNT), *(nw.col(name).n_unique().alias(name) for name in values)))
    few = sum(int(sizes[name][0]) for name in values) <= FEW_VALUES
    keys = [*state, *action, *following, _END, *(dict.fromkeys(values) if few else ())]
    sums = [nw.len().alias(_COUNT)]
    if not few:
        sums += [nw.col(name).mean().alias(f"{_MEAN}{k}") for k, name in enumerate(values)]
        sums += [nw.col(name).std(ddof=0).alias(f"{_STD}{k}") for k, name in enumerate(values)]
    cells = _collected(known.group_by(list(dict.fromkeys(keys))).agg(*sums))
    starts = None
    if ordered_rows:
        first = rows.filter(nw.col(_FIRST))
        starts = _collected(first.group_by(list(state)).agg(nw.len().alias(_COUNT)))
    n_left_out = int(sizes[_COUNT][0]) - int(np.sum(cells[_COUNT], dtype=np.int64))
    return _log(cells, starts, state, action, following, values, tuples, few=few, n_left_out=n_left_out)


def _refuse_missing(nw: Any, rows: Any, names: Any, reward: str, costs: Sequence[str]) -> None:
    """Raise one error for missing values, and for rewards and costs that are not finite."""
    counts = [nw.col(name).null_count().alias(name) for name in names]
    infinite = {name: (~nw.col(name).cast(nw.Float64).is_finite()).cast(nw.Int64) for name in (reward, *costs)}
    counts += [one.sum().alias(f"{_MEAN}{name}") for name, one in infinite.items()]
    found = _collected(rows.select(*counts))
    faults = [f"column {name!r}: {int(found[name][0]):,} missing" for name in names if int(found[name][0] or 0)]
    for name in (reward, *costs):
        if int(found[f"{_MEAN}{name}"][0] or 0):
            faults.append(f"column {name!r}: {int(found[f'{_MEAN}{name}'][0]):,} not finite")
    if faults:
        raise ValueError(f"the frame has values that cannot be used; {'; '.join(faults)}")


def _collected(rows: Any) -> dict[str, list[Any]]:
    """The columns of a small lazy frame as lists."""
    frame = rows.collect()
    return {name: frame.get_column(name).to_list() for name in frame.columns}


def _log(
    cells: dict[str, list[Any]],
    starts: dict[str, list[Any]] | None,
    state: Sequence[str],
    action: Sequence[str],
    following: Sequence[str],
    values: Sequence[str],
    tuples: Sequence[str],
    *,
    few: bool,
    n_left_out: int,
) -> Dataset:
    ended = np.array(cells[_END], dtype=bool)
    if len(ended) == 0:
        raise ValueError("no row of the frame can be used")
    now, then = _labels(cells, state, "state" in tuples), _labels(cells, following, "state" in tuples)
    done, begun = _labels(cells, action, "action" in tuples), None
    if starts is not None:
        begun = _labels(starts, state, "state" in tuples)
    seen = {*now, *(one for one, end in zip(then, ended, strict=True) if not end), *(begun or ())}
    labels = Labels(ordered(seen), ordered(set(done)))
    s_next = [0 if end else labels.state(one) for one, end in zip(then, ended, strict=True)]
    columns = {}
    for k, name in enumerate(values):
        mean = cells[name] if few else cells[f"{_MEAN}{k}"]
        std = None if few else cells[f"{_STD}{k}"]
        columns[name] = np.array(mean, dtype=np.float64), None if std is None else np.array(std, dtype=np.float64)
    initial = None
    if starts is not None and begun is not None:
        initial = np.zeros(len(labels.states), dtype=np.int64)
        np.add.at(initial, [labels.state(one) for one in begun], _whole(starts[_COUNT]))
    costs = [*values[1:]]
    log = Dataset.from_counts(
        [labels.state(one) for one in now],
        [labels.action(one) for one in done],
        s_next,
        _whole(cells[_COUNT]),
        columns[values[0]][0],
        costs={name: columns[name][0] for name in costs},
        r_std=columns[values[0]][1],
        cost_stds=None if few else {name: columns[name][1] for name in costs},  # type: ignore[misc]
        terminated=ended if ended.any() else None,
        initial=initial,
        n_states=len(labels.states),
        n_actions=len(labels.actions),
    )
    notes: tuple[str, ...] = ()
    if n_left_out:
        notes = (
            f"{n_left_out:,} rows were left out: the record of an episode stops there, and what follows is not known",
        )
    log.__dict__.update(labels=labels, _notes=notes)
    return log


def _labels(columns: dict[str, list[Any]], names: Sequence[str], as_tuples: bool) -> list[Any]:
    """The labels of cells: values of one column, or tuples of several."""
    if not as_tuples:
        return [plain(value) for value in columns[names[0]]]
    return [tuple(map(plain, row)) for row in zip(*(columns[name] for name in names), strict=True)]


def _whole(values: Sequence[Any]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
