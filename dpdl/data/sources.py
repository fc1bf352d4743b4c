"""`read_log`: a log from a table, a file, a folder, a recorded data set, or a frame on an engine.

HDF5 files (D4RL, DSRL; ``pip install 'dpdl[hdf5]'``), ``.npz`` files (OmniSafe) and Minari data sets on this machine
(``pip install 'dpdl[minari]'``) hold arrays, which become columns of a table. By default the arguments are these
fields, the first of them that there is:

| argument | fields |
|---|---|
| `state` | observations, obs |
| `action` | actions, action |
| `reward` | rewards, reward |
| `next_state` | next_observations, next_obs; may be missing |
| `terminated` | terminals, terminated |
| `truncated` | timeouts, truncated; may be missing |

A field ``done`` (OmniSafe's) marks episodes that ended and records that merely stopped alike. These are different
things, so the caller must say which it is here: ``terminated="done"`` or ``truncated="done"``.

A field is an array with one row per transition, shape (n,) or (n, 1), or (n, d) for states and actions, which make d
columns ``observations[0]``, ``observations[1]``, ... States and actions are whole numbers >= 0, unless a discretizer
makes states of them. Sizes are compared with the bytes that are stored before any memory is allocated. Data that a file
keeps elsewhere is not read, nothing is unpickled, and nothing is downloaded.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data import engine
from dpdl.data.columns import CSV, PARQUET, connect, create_source, files_of, one_line, refuse_large, typed_view
from dpdl.data.dataset import Dataset
from dpdl.data.discretizer import Discretizer
from dpdl.data.roles import Roles
from dpdl.data.table import read_rows

Fields = dict[str, NDArray[Any]]

_DEFAULTS = {
    "state": ("observations", "obs"),
    "action": ("actions", "action"),
    "reward": ("rewards", "reward"),
    "next_state": ("next_observations", "next_obs"),
    "terminated": ("terminals", "terminated"),
    "truncated": ("timeouts", "truncated"),
}
_MINARI = {
    "state": "observations",
    "action": "actions",
    "reward": "rewards",
    "next_state": "next_observations",
    "episode": "episode",
    "terminated": "terminations",
    "truncated": "truncations",
}
_OPTIONAL, _DONE = ("next_state", "truncated"), "done"
_HDF5, _NPZ, _PREFIX = (".hdf5", ".h5", ".hdf"), (".npz",), "minari:"
#: From this many bytes on, arrays must be stored in at least a thousandth of them. Members of an npz file at most.
LARGE, RATIO, MOST_MEMBERS = 1 << 30, 1000, 1000


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
        Count the rows of files or of a frame with DuckDB instead of keeping them: a log of any length in bounded memory
        (`Dataset.from_counts`). `next_state`, or `episode`, `time` and `terminated` are needed.

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
    lazy, kind = engine.is_lazy_frame(source), kind_of(source)
    drop = check.choice("missing", missing, ("error", "drop")) == "drop"
    with _naming(source):
        if kind == "dpdl":
            others = {"costs": costs, "discretizer": discretizer}
            given = [name for name, value in (names | others).items() if value is not None]
            if given:
                raise ValueError(f"a folder of dpdl has its columns, so that {given[0]}= cannot be given")
            return Dataset.open(source)
        if kind in ("hdf5", "npz", "minari"):
            source, names = _recorded(source, kind, names, tuple(costs or ()), continuous=discretizer is not None)
        absent = [f"{name}=" for name in ("state", "action", "reward") if names[name] is None]
        if absent:
            raise TypeError(f"it is a table, whose columns must be named: pass {', '.join(absent)}")
        roles = Roles.named(**names, costs=costs)
        if not lazy and not check.flag("counts", counts):
            return read_rows(source, roles, discretizer, drop=drop)
        if discretizer is not None:
            raise ValueError("a log that is counted cannot be discretised: add a column of the discretizer's states")
        return engine.count_frame(source, roles, drop=drop) if lazy else _counted(source, roles, drop=drop)


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
    if not path.endswith(CSV + PARQUET):
        files_of(path)  # raises if there is no such file
        known = ", ".join((*CSV, *PARQUET, *_HDF5, *_NPZ))
        if not any(mark in path for mark in "*?["):
            raise ValueError(f"{path}: a log is a file that ends in {known}, a folder, or minari:NAME")
    return "table"


def _counted(source: Any, roles: Roles, *, drop: bool) -> Dataset:
    """Count the rows of files or of a frame by DuckDB."""
    with one_line():
        con = connect()
        con.execute("SET preserve_insertion_order = false")
        kinds = roles.kinds()
        create_source(con, source, kinds)
        typed = typed_view(con, {name: kind for name, (_, kind) in kinds.items()}, drop)
        return engine.count_frame(con.table(typed), roles, drop=drop)


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


# ---- Recorded data sets ----


def _recorded(
    source: Any, kind: str, given: Mapping[str, Any], costs: tuple[str, ...], *, continuous: bool
) -> tuple[Fields, dict[str, Any]]:
    """Columns of a recorded data set, and the arguments that name them."""
    if kind == "minari":
        fields = _minari(str(source).removeprefix(_PREFIX), costs)
        given = _MINARI | {name: value for name, value in given.items() if value is not None}
        return _columns(list(fields), fields.__getitem__, given, costs, continuous)
    with (_hdf5 if kind == "hdf5" else _npz)(os.fspath(source)) as (names, read):
        return _columns(names, read, given, costs, continuous)


def _columns(
    names: Sequence[str],
    read: Callable[[str], NDArray[Any]],
    given: Mapping[str, Any],
    costs: Iterable[str],
    continuous: bool,
) -> tuple[Fields, dict[str, Any]]:
    columns: Fields = {}
    roles: dict[str, Any] = {}
    for role, given_name in _roles(names, given).items():
        wanted = given_name if isinstance(given_name, (list, tuple)) else [given_name]
        if not all(isinstance(name, str) for name in wanted):  # True or False, or what read refuses
            roles[role] = given_name
            continue
        found: list[str] = []
        for name in wanted:
            wide = role in ("state", "action", "next_state")
            parts = _spread(name, read(_present(name, role, names)), wide)
            if wide and not (continuous and role != "action"):
                for part, column in parts.items():
                    _check_whole(part, column, role)
            columns |= parts
            found += parts
        roles[role] = found if len(found) > 1 or not isinstance(given_name, str) else found[0]
    for name in costs:
        columns |= _spread(name, read(_present(name, "costs", names)), False)
    return columns, roles


def _roles(names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The field of each role, by default the one that has its usual name."""
    roles = {role: name for role, name in given.items() if name is not None}
    timeouts = roles.get("truncated") == _DONE
    for role, usual in _DEFAULTS.items():
        if role in roles:
            continue
        there = [name for name in usual if name in names]
        if role == "terminated" and _DONE in names and not timeouts:
            if not there:
                raise ValueError(
                    f"its field {_DONE!r} marks ended episodes and time-outs alike: pass terminated={_DONE!r} if "
                    f"episodes end there, or truncated={_DONE!r} if only their records stop"
                )
            there.append(_DONE)
        if len(there) > 1:
            raise ValueError(f"it has the fields {' and '.join(map(repr, there))}: pass {role}= to choose one")
        if there:
            roles[role] = there[0]
        elif role == "terminated" and timeouts:
            roles[role] = False  # the caller says that all marks there are mean time-outs
        elif role not in _OPTIONAL:
            hint = " (False if no episode ends)" if role == "terminated" else ""
            usually = " or ".join(map(repr, usual))
            raise ValueError(f"it has no field {usually} ({role}): pass {role}={hint}; {_listed(names)}")
    return roles


def _present(name: str, role: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ValueError(f"it has no field {name!r} ({role}); {_listed(names)}")
    return name


def _listed(names: Sequence[str]) -> str:
    return f"its fields are {', '.join(map(repr, names))}" if names else "it has no fields"


def _spread(name: str, array: NDArray[Any], wide: bool) -> Fields:
    """The columns of a field."""
    if array.dtype.kind not in "biuf":
        raise TypeError(f"field {name!r} must hold numbers, got dtype {array.dtype}")
    if array.ndim == 1:
        return {name: array}
    if array.ndim != 2 or array.shape[1] == 0 or (array.shape[1] > 1 and not wide):
        allowed = "(n,) or (n, d)" if wide else "(n,) or (n, 1)"
        raise ValueError(f"field {name!r} must have shape {allowed}, got {array.shape}")
    if array.shape[1] == 1:
        return {name: array[:, 0]}
    return {f"{name}[{k}]": column for k, column in enumerate(array.T)}


def _check_whole(name: str, column: NDArray[Any], role: str) -> None:
    """Check whole numbers >= 0; missing values are reported with those of the other columns."""
    if column.dtype.kind == "b":
        return
    try:
        check.indices(name, column, 2**53, dtype=np.int64, copy=False, unread=column != column)
    except ValueError as error:
        hint = "make discrete actions of continuous ones first"
        hint = hint if role == "action" else "discretizer= makes states of continuous observations"
        raise ValueError(f"{error}; {hint}") from None


class _Budget:
    """Bytes that the fields of a file may take together: at most a thousand times what is stored, or a gigabyte."""

    def __init__(self) -> None:
        self.claimed = self.stored = 0

    def add(self, claimed: int, stored: int, shape: tuple[int, ...]) -> None:
        self.claimed, self.stored = self.claimed + claimed, self.stored + stored
        if self.claimed > max(LARGE, RATIO * self.stored):
            raise ValueError(f"its header claims shape {shape}, and only {stored:,} bytes are stored")
        refuse_large(4 * self.claimed, "the fields of the file")


@contextmanager
def _hdf5(path: str) -> Iterator[tuple[list[str], Callable[[str], NDArray[Any]]]]:
    try:
        import h5py
    except ImportError:
        raise ImportError("HDF5 files need h5py: pip install 'dpdl[hdf5]'") from None
    names: list[str] = []
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"it is not an HDF5 file, or a damaged one: {error}") from None
    with file:
        try:  # links to other files and soft links are not visited
            file.visititems(lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None)
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise ValueError(f"its list of fields is damaged: {error}") from None
        budget = _Budget()

        def read(name: str) -> NDArray[Any]:
            try:
                field = file[name]
                if field.external is not None or field.is_virtual:
                    raise ValueError("its data is in other files, which are not read")
                if field.dtype.kind not in "biuf":
                    raise TypeError(f"it must hold numbers, got dtype {field.dtype}")
                if field.shape is None:
                    raise ValueError("it has no data")
                size, stored = field.size * field.dtype.itemsize, field.id.get_storage_size()
                if size and not stored:
                    raise ValueError(f"its header claims shape {field.shape}, and no data was written")
                budget.add(size, stored, field.shape)
                return np.asarray(field[()])
            except (OSError, RuntimeError, KeyError, MemoryError) as error:
                raise ValueError(f"field {name!r} is damaged or cannot be read: {error}") from None
            except (TypeError, ValueError) as error:
                raise type(error)(f"field {name!r}: {error}") from None

        yield names, read


@contextmanager
def _npz(path: str) -> Iterator[tuple[list[str], Callable[[str], NDArray[Any]]]]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not an .npz file: {error}") from None
    with archive:
        every = [info.filename for info in archive.infolist()]
        if len(every) > MOST_MEMBERS:
            raise ValueError(f"it has {len(every):,} members, more than {MOST_MEMBERS:,}")
        members = {info.filename: info for info in archive.infolist() if info.filename.endswith(".npy")}
        twice = [name for name in members if every.count(name) > 1]
        if twice:
            raise ValueError(f"it has the field {twice[0].removesuffix('.npy')!r} more than once")
        budget = _Budget()

        def read(name: str) -> NDArray[Any]:
            member = members[f"{name}.npy"]
            try:
                with archive.open(member) as stream:
                    dtype, shape, fortran, n_header = _npy_header(stream)
                if dtype.hasobject:
                    raise TypeError("it holds pickled objects, which are not read")
                claimed = n_header + math.prod(shape) * dtype.itemsize
                if claimed != member.file_size:
                    raise ValueError(f"its header claims shape {shape}, and the bytes stored there are fewer or more")
                budget.add(claimed, member.compress_size, shape)
                raw = archive.read(member)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
                raise ValueError(f"field {name!r} is damaged or cannot be read: {error}") from None
            except (TypeError, ValueError) as error:
                raise type(error)(f"field {name!r}: {error}") from None
            return np.frombuffer(raw, dtype, offset=n_header).reshape(shape, order="F" if fortran else "C")

        yield [name.removesuffix(".npy") for name in members], read


def _npy_header(stream: Any) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Type, shape, order and length of the header of an array."""
    start = io.BytesIO(stream.read(1 << 16))  # headers are at most 10,000 characters long
    version = np.lib.format.read_magic(start)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format is not known")
    shape, fortran, dtype = readers[version](start)
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"its header claims shape {shape}")
    return dtype, shape, fortran, start.tell()


def _minari(name: str, infos: Iterable[str]) -> Fields:
    """All steps of a data set as arrays, with some entries of the infos; nested ones are named with slashes.

    An episode of n steps has n + 1 observations. An entry of its infos has one value per step, or one more: that of the
    reset, which comes first and belongs to no step.
    """
    try:
        import minari
    except ImportError:
        raise ImportError("Minari data sets need minari: pip install 'dpdl[minari]'") from None
    try:
        episodes = list(minari.load_dataset(name))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"minari:{name}: there is no such data set on this machine; minari can download it"
        ) from None
    except Exception as error:  # minari checks little, so that a damaged file can raise anything
        text = " ".join(str(error).split())
        raise ValueError(f"it cannot be read ({type(error).__name__}): {text:.300}") from None
    if not episodes:
        raise ValueError("it has no episodes")
    fields: dict[str, list[NDArray[Any]]] = {}
    for number, episode in enumerate(episodes):
        for field, array in _steps(episode, number, list(infos)).items():
            fields.setdefault(field, []).append(array)
    found = {}
    for field, parts in fields.items():
        if len({part.shape[1:] for part in parts}) > 1:
            raise ValueError(f"field {field!r} differs in shape between episodes")
        found[field] = np.concatenate(parts)
    return found


def _steps(episode: Any, number: int, infos: list[str]) -> Fields:
    """Arrays of one episode with a row for each of its steps."""
    n = len(_array("rewards", episode.rewards, number))
    observations = _array("observations", episode.observations, number, n + 1)
    found = {"observations": observations[:-1], "next_observations": observations[1:]}
    for field in ("actions", "rewards", "terminations", "truncations"):
        found[field] = _array(field, getattr(episode, field), number, n)
    for name in infos:
        entry: Any = episode.infos
        for part in name.split("/"):
            if not isinstance(entry, dict) or part not in entry:
                listed = ", ".join(map(repr, entry)) if isinstance(entry, dict) and entry else "empty"
                raise ValueError(f"infos of episode {number} have no entry {name!r}; they are {listed}")
            entry = entry[part]
        array = _array(f"infos[{name!r}]", entry, number)
        if len(array) not in (n, n + 1):
            raise ValueError(
                f"infos[{name!r}] of episode {number} must have {n} values, or {n + 1} with that of the reset, "
                f"got {len(array)}"
            )
        found[name] = array[len(array) - n :]
    return found | {"episode": np.full(n, number)}


def _array(field: str, values: Any, number: int, length: int | None = None) -> NDArray[Any]:
    if isinstance(values, (dict, tuple)) or np.asarray(values).ndim == 0:
        raise TypeError(f"{field} of episode {number} must be an array, got {type(values).__name__}")
    array = np.asarray(values)
    if length is not None and len(array) != length:
        raise ValueError(f"{field} of episode {number} must have {length} values, got {len(array)}")
    return array
