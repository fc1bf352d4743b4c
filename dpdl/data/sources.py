"""`read_log`: a log from a table, a file, a folder, a recorded data set, or a frame on an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.data.discretizer import Discretizer
from dpdl.data.engine import engine_table, is_lazy_frame, read_table
from dpdl.data.recorded import read_recorded
from dpdl.data.roles import Roles
from dpdl.data.table import CSV, PARQUET, files_of, one_line, open_table

_HDF5, _NPZ, _PREFIX = (".hdf5", ".h5", ".hdf"), (".npz",), "minari:"


def read_log(
    source: Any,
    *,
    state: str | Sequence[str] | None = None,
    action: str | Sequence[str] | None = None,
    reward: str | None = None,
    costs: Sequence[str] | None = None,
    next_state: str | Sequence[str] | None = None,
    episode: str | None = None,
    time: str | None = None,
    terminated: str | bool | None = None,
    truncated: str | bool | None = None,
    missing: str = "error",
    discretizer: Discretizer | Mapping[str, Any] | None = None,
    counts: bool = False,
) -> Dataset:
    """Read a log from a table or a file, one row per transition, in the caller's units.

    Parameters
    ----------
    source : data frame, Arrow table, mapping, structured array, path or list of paths
        Anything with named columns: of pandas, polars or pyarrow, a dictionary of arrays or lists, a structured array.
        Or files: CSV (``.csv``, ``.csv.gz``) or Parquet (``.parquet``, ``.pq``), a folder, a pattern or a list of them;
        HDF5 (``.hdf5``, ``.h5``, ``.hdf``), ``.npz``, a folder that `Dataset.save` wrote, or ``minari:NAME``. Or a lazy
        frame of Spark, DuckDB, polars or ibis, which is counted where it lives (`dpdl.data.engine`). An error about a
        file is one line that begins with its name.
    state, action : str or list of str
        Column of labels: text, numbers, dates or anything hashable, of one kind. Several columns make a tuple.
    reward : str
        Column of rewards.
    costs : list of str, optional
        Columns of costs, which keep their names; of Minari, entries of the infos.
    next_state : str or list of str, optional
        Column of next states, as for `state`; its value in a row that ends its episode is not used. By default the
        next row of the episode is the next state.
    episode : str, optional
        Column that is the same for all rows of an episode. Without it the rows are episodes in order if both
        `terminated` and `truncated` are given, and independent transitions otherwise.
    time : str, optional
        Column of numbers or dates that sorts the rows of an episode; times with zones are compared as instants. By
        default the rows are together and in order.
    terminated : str or bool, optional
        Column that says which rows ended their episode: nothing follows. True or False: the last row of every
        episode did (unless `truncated` says otherwise), or none.
    truncated : str or bool, optional
        Column that says at which rows the record of an episode stops although the episode goes on. True: at the
        last row of every episode that is not terminated. False: at none. Without `next_state`, the state after such
        a row is not known; the row is left out, and `notes` says how many were.
    missing : {"error", "drop"}, optional
        Raise a ValueError that lists missing and malformed values by column and row, or leave out their rows;
        `notes` then says how many. No transition skips a row that was left out: the episode is split there.
    discretizer : Discretizer or mapping, optional
        Makes states of the columns `state`, which hold numbers; or arguments of `Discretizer.fit` other than the
        observations, ``{"bins": 8}``, to fit one to the states and next states of this table. The labels keep it.
    counts : bool, optional
        Count the rows with DuckDB instead of keeping them: a log of any length in bounded memory
        (`Dataset.from_counts`).

    Returns
    -------
    Dataset
        With `labels`. A folder of dpdl has its columns, so that no other argument can be given for it.

    Examples
    --------
    >>> table = {"ward": ["a", "b", "a"], "drug": ["no", "yes", "no"], "gain": [1, 4, 2], "patient": [1, 1, 2]}
    >>> log = read_log(table, state="ward", action="drug", reward="gain", episode="patient", terminated=True)
    >>> log.labels.states, log.s_next.tolist(), log.r.tolist()
    (('a', 'b'), [1, -1, -1], [1.0, 4.0, 2.0])
    """
    names: dict[str, Any] = {
        "state": state,
        "action": action,
        "reward": reward,
        "next_state": next_state,
        "episode": episode,
        "time": time,
        "terminated": terminated,
        "truncated": truncated,
    }
    lazy, kind = is_lazy_frame(source), kind_of(source)
    drop = check.choice("missing", missing, ("error", "drop")) == "drop"
    with _naming(source):
        if kind == "dpdl":
            others = {"costs": costs, "discretizer": discretizer}
            given = [name for name, value in (names | others).items() if value is not None]
            if given:
                raise ValueError(f"a folder of dpdl has its columns, so that {given[0]}= cannot be given")
            return Dataset.open(source)
        if kind in ("hdf5", "npz", "minari"):
            name = os.fspath(source).removeprefix(_PREFIX)
            source, names = read_recorded(name, kind, names, costs or (), continuous=discretizer is not None)
        absent = [f"{name}=" for name in ("state", "action", "reward") if names[name] is None]
        if absent:
            raise TypeError(f"it is a table, whose columns must be named: pass {', '.join(absent)}")
        roles = Roles.named(**names, costs=costs)
        counts = check.flag("counts", counts) or lazy
        if discretizer is not None and not isinstance(discretizer, (Discretizer, Mapping)):
            raise TypeError(f"discretizer must be a Discretizer or arguments of its fit, got {discretizer!r:.200}")
        columns = roles.columns(discretizer is not None)
        if lazy:
            if discretizer is not None:
                raise ValueError("a lazy frame cannot be discretised: add a column of the discretizer's states")
            return read_table(engine_table(source, columns), roles, counts=True, drop=drop)
        with one_line():
            in_order = roles.time is None and (roles.episode is not None or roles.in_row_order)
            numbered = not counts or discretizer is not None or in_order
            table = open_table(source, columns, counts=counts, numbered=numbered)
            return read_table(table, roles, counts=counts, drop=drop, discretizer=discretizer)


def kind_of(source: Any) -> str:
    """What a source is: "dpdl", "hdf5", "npz", "minari", or "table" for everything else.

    Examples
    --------
    >>> kind_of("minari:D4RL/door/human-v2")
    'minari'
    """
    if not isinstance(source, (str, os.PathLike)):
        return "table"
    name, path = str(source), os.fspath(check.path("source", source))
    if name.startswith(_PREFIX):
        return "minari"
    if os.path.isdir(path):
        return "dpdl" if os.path.exists(os.path.join(path, "header.json")) else "table"
    for kind, endings in {"hdf5": _HDF5, "npz": _NPZ}.items():
        if path.endswith(endings):
            if not os.path.exists(path):
                raise FileNotFoundError(f"there is no file {path}")
            return kind
    files_of(path)  # raises if there is no such file
    if not path.endswith(CSV + PARQUET):
        known = ", ".join((*CSV, *PARQUET, *_HDF5, *_NPZ))
        if not any(mark in path for mark in "*?["):
            raise ValueError(f"{path}: a log is a file that ends in {known}, a folder, or minari:NAME")
    return "table"


@contextmanager
def _naming(source: Any) -> Iterator[None]:
    """Let errors about a file be one line that begins with its name."""
    if not isinstance(source, (str, os.PathLike)):
        yield
        return
    name = os.fspath(source)
    try:
        yield
    except (TypeError, ValueError) as error:
        text = " ".join(line.strip() for line in str(error).splitlines())
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(text if text.startswith(f"{name}: ") else f"{name}: {text}") from None
