"""Recorded data sets as columns of a table: HDF5 (D4RL, DSRL), ``.npz`` (OmniSafe) and Minari.

HDF5 needs ``pip install 'dpdl[hdf5]'``, Minari ``pip install 'dpdl[minari]'``. By default the arguments of `read_log`
are these fields:

| argument | fields |
|---|---|
| `state` | observations, obs |
| `action` | actions, action |
| `reward` | rewards, reward |
| `next_state` | next_observations, next_obs; may be missing |
| `terminated` | terminals, terminated, terminations |
| `truncated` | timeouts, truncated, truncations; may be missing |

A field ``done`` (OmniSafe's) marks episodes that ended and records that merely stopped alike. These are different
things, so the caller must say which it is here: ``terminated="done"`` or ``truncated="done"``.

A field is an array with one row per transition, shape (n,) or (n, 1), or (n, d) for states and actions, which make d
columns ``observations[0]``, ``observations[1]``, ... States and actions are whole numbers >= 0, unless a discretizer
makes states of them. Sizes are compared with the bytes that are stored before any memory is allocated. Data that a file
keeps elsewhere is not read, nothing is unpickled, and nothing is downloaded.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data.table import refuse_large

Fields = dict[str, NDArray[Any]]
Reader = Callable[[str], NDArray[Any]]

_USUAL = {
    "state": ("observations", "obs"),
    "action": ("actions", "action"),
    "reward": ("rewards", "reward"),
    "next_state": ("next_observations", "next_obs"),
    "terminated": ("terminals", "terminated", "terminations"),
    "truncated": ("timeouts", "truncated", "truncations"),
}
_OPTIONAL, _WIDE, _DONE = ("next_state", "truncated"), ("state", "action", "next_state"), "done"
#: From this many bytes on, arrays must be stored in at least a thousandth of them. Members of an npz file at most.
LARGE, RATIO, MOST_MEMBERS = 1 << 30, 1000, 1000
_DAMAGE = (OSError, RuntimeError, KeyError, MemoryError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def read_recorded(
    source: str, kind: str, given: Mapping[str, Any], costs: Sequence[str], *, continuous: bool
) -> tuple[Fields, dict[str, Any]]:
    """Columns of a data set of kind "hdf5", "npz" or "minari", and the arguments of `read_log` that name them."""
    with {"hdf5": _hdf5, "npz": _npz, "minari": _minari}[kind](source, costs) as (names, read):
        columns: Fields = {}
        given = {role: name for role, name in given.items() if name is not None}
        roles = _roles(names, {"episode": "episode"} | given if kind == "minari" else given)
        for role, name in [*roles.items(), *(("costs", name) for name in costs)]:
            wanted = name if isinstance(name, (list, tuple)) else [name]
            if not all(isinstance(part, str) for part in wanted):  # True or False, or what `Roles` refuses
                continue
            parts: Fields = {}
            for part in wanted:
                if part not in names:
                    raise ValueError(f"it has no field {part!r} ({role}); {_listed(names)}")
                parts |= _spread(part, _field(read, part), role in _WIDE)
            if role in _WIDE and not (continuous and role != "action"):
                for part, column in parts.items():
                    _check_whole(part, column, role)
            columns |= parts
            if role != "costs":
                roles[role] = [*parts] if len(parts) > 1 or not isinstance(name, str) else next(iter(parts))
        return columns, roles


def _roles(names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The field of each role, by default the one that has its usual name."""
    roles = dict(given)
    timeouts = roles.get("truncated") == _DONE
    for role, usual in _USUAL.items():
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


def _listed(names: Sequence[str]) -> str:
    return f"its fields are {', '.join(map(repr, names))}" if names else "it has no fields"


def _field(read: Reader, name: str) -> NDArray[Any]:
    try:
        return read(name)
    except _DAMAGE as error:
        raise ValueError(f"field {name!r} is damaged or cannot be read: {error}") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"field {name!r}: {error}") from None


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

    def add(self, claimed: int, stored: int, what: str) -> None:
        self.claimed, self.stored = self.claimed + claimed, self.stored + stored
        if self.claimed > max(LARGE, RATIO * self.stored):
            raise ValueError(f"its header claims {what}, and only {stored:,} bytes are stored")
        refuse_large(4 * self.claimed, "the fields of the file")


@contextmanager
def _hdf5(path: str, costs: Sequence[str]) -> Iterator[tuple[list[str], Reader]]:
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
            file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise ValueError(f"its list of fields is damaged: {error}") from None
        budget = _Budget()

        def read(name: str) -> NDArray[Any]:
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
            budget.add(size, stored, f"shape {field.shape}")
            return np.asarray(field[()])

        yield names, read


@contextmanager
def _npz(path: str, costs: Sequence[str]) -> Iterator[tuple[list[str], Reader]]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not an .npz file: {error}") from None
    with archive:
        names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
        if len(names) > MOST_MEMBERS:
            raise ValueError(f"it has {len(names):,} members, more than {MOST_MEMBERS:,}")
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"it has the field {twice[0]!r} more than once")
        budget = _Budget()

        def read(name: str) -> NDArray[Any]:
            member = archive.getinfo(f"{name}.npy")
            budget.add(member.file_size, member.compress_size, f"{member.file_size:,} bytes")
            stream = io.BytesIO(archive.read(member))
            array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
            if stream.read(1):
                raise ValueError(f"its header claims shape {array.shape}, and more bytes are stored there")
            return array

        yield names, read


@contextmanager
def _minari(name: str, infos: Sequence[str]) -> Iterator[tuple[list[str], Reader]]:
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
    steps = [_steps(episode, number, infos) for number, episode in enumerate(episodes)]

    def read(field: str) -> NDArray[Any]:
        parts = [step[field] for step in steps]
        if len({part.shape[1:] for part in parts}) > 1:
            raise ValueError("its shape differs between episodes")
        return np.concatenate(parts)

    yield list(steps[0]), read


def _steps(episode: Any, number: int, infos: Sequence[str]) -> Fields:
    """Arrays of one episode with a row for each of its steps."""

    def array(field: str, values: Any, *lengths: int) -> NDArray[Any]:
        if isinstance(values, (dict, tuple)) or np.ndim(values) == 0:
            raise TypeError(f"{field} of episode {number} must be an array, got {type(values).__name__}")
        if lengths and len(values) not in lengths:
            reset = f", or {lengths[1]} with that of the reset" if len(lengths) > 1 else ""
            raise ValueError(f"{field} of episode {number} must have {lengths[0]} values{reset}, got {len(values)}")
        return np.asarray(values)

    n = len(array("rewards", episode.rewards))
    observations = array("observations", episode.observations, n + 1)
    fields = {"observations": observations[:-1], "next_observations": observations[1:]}
    for field in ("actions", "rewards", "terminations", "truncations"):
        fields[field] = array(field, getattr(episode, field), n)
    for name in infos:
        entry: Any = episode.infos
        for part in name.split("/"):
            if not isinstance(entry, dict) or part not in entry:
                listed = ", ".join(map(repr, entry)) if isinstance(entry, dict) and entry else "empty"
                raise ValueError(f"infos of episode {number} have no entry {name!r}; they are {listed}")
            entry = entry[part]
        fields[name] = array(f"infos[{name!r}]", entry, n, n + 1)[-n:] if n else np.empty(0)
    return fields | {"episode": np.full(n, number)}
