"""Opening a log of any kind by its name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpdl import _validation as check
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
    """Read an HDF5 or npz file or a Minari data set as columns, for `Dataset.from_table`.

    Parameters
    ----------
    source : path-like
        A file, or ``minari:NAME``.
    costs : iterable of str, optional
        Fields that are costs; of Minari the names of entries of the infos.
    continuous : bool, optional
        Whether states may be arbitrary numbers, for a discretizer, instead of whole numbers >= 0.
    **names
        Fields by the arguments of `Dataset.from_table` that name them, where they are not the usual ones
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
    >>> Dataset.from_table(found.columns, **found.roles).s_next.tolist()
    [1, -1]
    """
    with _naming(source):
        return _columns(source, kind_of(source), names, costs, continuous)


def open_log(
    source: str | os.PathLike[str],
    *,
    state: str | Sequence[str] | None = None,
    action: str | Sequence[str] | None = None,
    reward: str | None = None,
    costs: Mapping[str, float] | None = None,
    limits: str | None = None,
    gamma: float | None = None,
    next_state: str | Sequence[str] | None = None,
    episode: str | None = None,
    time: str | None = None,
    terminated: str | bool | None = None,
    truncated: str | bool | None = None,
    missing: str = "error",
    discretizer: Discretizer | Mapping[str, Any] | None = None,
) -> Dataset:
    """Open a log of any kind; an error is one line that begins with its name.

    Parameters
    ----------
    source : path-like
        A file: CSV (``.csv``, ``.csv.gz``), Parquet (``.parquet``, ``.pq``), HDF5 (``.hdf5``, ``.h5``, ``.hdf``) or
        ``.npz``; a folder that `Dataset.save` wrote, or one of Parquet files; or ``minari:NAME``, a Minari data set on
        this machine.
    state, action, reward, next_state, episode, time, terminated, truncated
        As for `Dataset.from_table`: columns of a CSV or Parquet file, for which the first three are needed, or fields
        of the other kinds, which have usual names by default (`dpdl.sources.fields`).
    costs, limits, missing, discretizer
        As for `Dataset.from_table`; of Minari, costs are entries of the infos.
    gamma : float, optional
        As for `Dataset.from_table`; of a folder of dpdl, which has its columns and limits, it is compared with that of
        its costs. No other argument can be given for such a folder.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/log.npz", observations=[0, 1], actions=[1, 0], rewards=[0.5, 1], costs=[0, 1],
    ...              terminals=[0, 1], timeouts=[0, 0])
    ...     log = open_log(f"{folder}/log.npz", costs={"costs": 0.5}, limits="total", gamma=0.9)
    >>> log.s_next.tolist(), log.units.names
    ([1, -1], ('costs',))
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
    others: dict[str, Any] = {"costs": costs, "limits": limits, "gamma": gamma, "discretizer": discretizer}
    kind = kind_of(source)
    with _naming(source):
        if kind == "dpdl":
            given = [name for name, value in (names | others).items() if value is not None and name != "gamma"]
            if given:
                raise ValueError(f"a folder of dpdl has its columns and limits, so that {given[0]}= cannot be given")
            log = Dataset.open(source)
            if gamma is not None:
                check.same_discount(log.units.gamma, check.real("gamma", gamma, above=0, below=1))
            return log
        if kind in ("csv", "parquet"):
            absent = [f"{name}=" for name in ("state", "action", "reward") if names[name] is None]
            if absent:
                hint = "; a Parquet file that dpdl wrote is opened by dpdl.from_parquet" if kind == "parquet" else ""
                raise TypeError(f"it is a table, whose columns must be named: pass {', '.join(absent)}{hint}")
            return Dataset.from_table(source, **names, **others, missing=missing)
        fields = costs if isinstance(costs, Mapping) else ()  # from_table refuses anything else
        found = _columns(source, kind, names, fields, discretizer is not None)
        return Dataset.from_table(found.columns, **found.roles, **others, missing=missing)


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
