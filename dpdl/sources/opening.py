"""Reading a log of any kind."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpdl import _validation as check
from dpdl.data import table as tables
from dpdl.data.columns import CSV, PARQUET
from dpdl.data.dataset import Dataset
from dpdl.data.discretizer import Discretizer
from dpdl.sources import minari
from dpdl.sources.fields import Recorded, recorded
from dpdl.sources.hdf5 import Hdf5
from dpdl.sources.npz import Npz

KINDS = ("csv", "parquet", "dpdl", "hdf5", "npz", "minari")

_ENDINGS = {"csv": CSV, "parquet": PARQUET, "hdf5": (".hdf5", ".h5", ".hdf"), "npz": (".npz",)}

_MINARI = "minari:"


def kind_of(source: str | os.PathLike[str]) -> str:
    """Which of `KINDS` a log is: by the ending of its name, or ``minari:NAME``; a folder is dpdl's if it has a header.

    Examples
    --------
    >>> kind_of("minari:D4RL/door/human-v2")
    'minari'
    """
    path = os.fspath(check.path("source", source))
    name = str(source)
    if name.startswith(_MINARI):
        return "minari"
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}")
    if os.path.isdir(path):
        return "dpdl" if os.path.exists(os.path.join(path, "header.json")) else "parquet"
    for kind, endings in _ENDINGS.items():
        if path.endswith(endings):
            return kind
    known = ", ".join(ending for endings in _ENDINGS.values() for ending in endings)
    raise ValueError(f"{path}: a log is a file that ends in {known}, a folder, or minari:NAME")


def columns(
    source: str | os.PathLike[str], *, costs: Iterable[str] = (), continuous: bool = False, **names: Any
) -> Recorded:
    """Read an HDF5 or npz file or a Minari data set as columns, for `read_log`.

    Parameters
    ----------
    source : path-like
        A file, or ``minari:NAME``.
    costs : iterable of str, optional
        Fields that are costs; of Minari the names of entries of the infos.
    continuous : bool, optional
        Whether states may be arbitrary numbers, for a discretizer, instead of whole numbers >= 0.
    **names
        Fields by the arguments of `read_log` that name them, where they are not the usual ones
        (`dpdl.sources.fields`).

    Returns
    -------
    Recorded

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/log.npz", obs=[0, 1], action=[1, 0], reward=[0.5, 1], next_obs=[1, 0], done=[0, 1])
    ...     found = columns(f"{folder}/log.npz", terminated="done", truncated=True)
    >>> read_log(found.columns, **found.roles).s_next.tolist()
    [1, -1]
    """
    with _naming(source):
        return _columns(source, kind_of(source), names, costs, continuous)


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
) -> Dataset:
    """Read a log from a table or a file, one row per transition, in the caller's units.

    Parameters
    ----------
    source : data frame, Arrow table, mapping, structured array or path
        Anything with named columns: of pandas, polars or pyarrow, a dictionary of arrays or lists, a structured array.
        Or a file: CSV (``.csv``, ``.csv.gz``), Parquet (``.parquet``, ``.pq``), HDF5 (``.hdf5``, ``.h5``, ``.hdf``) or
        ``.npz``; a folder that `Dataset.save` wrote, or one of Parquet files; or ``minari:NAME``, a Minari data set on
        this machine. An error about a file is one line that begins with its name.
    state, action : str or list of str
        Column of labels: text, numbers, dates or anything hashable, of one kind. Several columns make a tuple. HDF5,
        npz and Minari have usual names by default (`dpdl.sources.fields`), here and below.
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
        Column of numbers or dates that sorts the rows of an episode. By default they are together and in order.
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
    others: dict[str, Any] = {"costs": costs, "discretizer": discretizer}
    if not isinstance(source, (str, os.PathLike)):
        _need_names(names)
        return _log(tables.read(source, **names, **others, missing=missing))
    kind = kind_of(source)
    with _naming(source):
        if kind == "dpdl":
            given = [name for name, value in (names | others).items() if value is not None]
            if given:
                raise ValueError(f"a folder of dpdl has its columns, so that {given[0]}= cannot be given")
            return Dataset.open(source)
        if kind in ("csv", "parquet"):
            _need_names(names)
            return _log(tables.read(source, **names, **others, missing=missing))
        found = _columns(source, kind, names, costs or (), discretizer is not None)
        return _log(tables.read(found.columns, **found.roles, **others, missing=missing))


def _need_names(names: dict[str, Any]) -> None:
    absent = [f"{name}=" for name in ("state", "action", "reward") if names[name] is None]
    if absent:
        raise TypeError(f"it is a table, whose columns must be named: pass {', '.join(absent)}")


def _log(found: tables.Columns) -> Dataset:
    log = Dataset(
        found.s,
        found.a,
        found.s_next,
        found.r,
        costs={name: found.costs[:, k] for k, name in enumerate(found.names)},
        n_states=len(found.labels.states),
        n_actions=len(found.labels.actions),
        terminated=found.terminated if found.terminated.any() else None,
        starts=found.starts,
    )
    initial = None if found.initial is None else check.frozen(found.initial)
    log.__dict__.update(labels=found.labels, _notes=found.notes, _initial=initial)
    return log


def _columns(
    source: str | os.PathLike[str], kind: str, names: dict[str, Any], costs: Iterable[str], continuous: bool
) -> Recorded:
    costs = list(costs)
    if kind == "minari":
        fields = minari.load(str(source).removeprefix(_MINARI), costs)
        given = minari.ROLES | {name: value for name, value in names.items() if value is not None}
        return recorded(list(fields), fields.__getitem__, given, costs, continuous=continuous)
    if kind not in ("hdf5", "npz"):
        raise ValueError("it is not an HDF5 or npz file or a Minari data set")
    with (Hdf5 if kind == "hdf5" else Npz)(Path(source)) as file:
        return recorded(file.names, file.read, names, costs, continuous=continuous)


@contextmanager
def _naming(source: str | os.PathLike[str]) -> Iterator[None]:
    """Let errors be one line that begins with the name of the log."""
    name = os.fspath(source)
    try:
        yield
    except (TypeError, ValueError) as error:
        text = " ".join(line.strip() for line in str(error).splitlines())
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(text if text.startswith(f"{name}: ") else f"{name}: {text}") from None
    except OSError as error:
        if error.errno is None and not isinstance(error, FileNotFoundError):  # pyarrow, of a file that is damaged
            raise ValueError(f"{name}: {' '.join(str(error).split())}") from None
        raise
