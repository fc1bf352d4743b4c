"""Logs on disk: a folder of ``.npy`` files in the layout that the core reads, mapped into memory.

``header.json`` is one JSON object (ASCII): ``format`` ("dpdl dataset"), ``version`` (4), ``n_states``, ``n_actions``,
``costs`` (the names of the costs; null if the columns are utilities), ``notes``, ``labels`` (null, or as
`Labels.to_json` makes them), ``arrays`` (for each array its ``file``, its number of elements ``n`` and the ``sha256``
of its elements) and ``checksum`` (`dpdl.files.headers.seal`). The arrays, each in an ``.npy`` file of its own, are

``records``
    The packed transitions, of `record_dtype`; ``s_next`` is -1 where an episode ended.
``pairs``
    int64: the visited pairs as s * n_actions + a, ascending; ``pair`` of a record is a position in this array.
``starts``
    int64: positions at which trajectories begin, ascending from 0. Absent if the transitions are independent.
``repeats``, ``spreads``, ``initial``
    Of a log of counts: how many transitions each record stands for (int64), the standard deviations of reward and
    columns among them, and how often an episode began in each state (int64). Each may be absent.

Files are written under new names, and then one rename of ``header.json`` replaces the old log by the new one: a log
that is opened meanwhile is the one or the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data.labels import Labels
from dpdl.data.packing import ENDED, begins, chunks, record_dtype, spread_dtype
from dpdl.files.atomic import naming_the_target, refuse, sync
from dpdl.files.headers import expect_names, seal, unseal

FORMAT, VERSION, HEADER = "dpdl dataset", 4, "header.json"
RECORDS, PAIRS, STARTS, REPEATS, SPREADS, INITIAL = "records", "pairs", "starts", "repeats", "spreads", "initial"
ARRAYS = (RECORDS, PAIRS, STARTS, REPEATS, SPREADS, INITIAL)
LARGEST, LARGEST_COUNT = float(np.finfo(np.float64).max), 2**63 - 1

Arrays = Mapping[str, NDArray[Any]]
#: Arrays in parts, with the number of elements of each.
Parts = Mapping[str, tuple[int, Iterable[NDArray[Any]]]]


class Facts(NamedTuple):
    """What a log is besides its arrays."""

    n_states: int
    n_actions: int
    names: tuple[str, ...] | None  # of the costs; None if the columns are utilities
    n_columns: int
    notes: tuple[str, ...] = ()
    labels: Labels | None = None


def array_type(name: str, n_columns: int) -> np.dtype[Any]:
    """Type of the elements of an array."""
    special = {RECORDS: record_dtype(n_columns), SPREADS: spread_dtype(n_columns)}
    return special.get(name, np.dtype("<i8"))


def fingerprint(facts: Facts, parts: Parts) -> str:
    """SHA-256 of the sizes, the names of the costs and the arrays."""
    return _fingerprint(facts, {name: (n, _digest(array)) for name, (n, array) in parts.items()})


def _fingerprint(facts: Facts, sums: Mapping[str, tuple[int, str]]) -> str:
    content = [facts.n_states, facts.n_actions, facts.n_columns, facts.names, sorted(sums.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _digest(parts: Iterable[NDArray[Any]], sink: Any = None) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = np.ascontiguousarray(part).view(np.uint8).data
        digest.update(raw)
        if sink is not None:
            sink.write(raw)
    return digest.hexdigest()


def save(path: Path, facts: Facts, parts: Parts, *, overwrite: bool) -> None:
    """Write a log, its arrays given in parts, to a folder; it replaces the log there at once when it is complete."""
    labels = None if facts.labels is None else facts.labels.to_json()  # raises before anything is written
    is_new = not path.exists()
    if not is_new:
        _refuse_existing(path, overwrite)
    token, written = secrets.token_hex(8), []
    with naming_the_target(path):
        path.mkdir(exist_ok=True)
        try:
            described = {}
            for name, (n, array) in parts.items():
                file = path / f"{name}-{token}.npy"
                written.append(file)
                dtype = array_type(name, facts.n_columns)
                with open(file, "xb") as stream:
                    shape = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n,)}
                    np.lib.format.write_array_header_1_0(stream, shape)
                    described[name] = {"file": file.name, "n": n, "sha256": _digest(array, stream)}
                sync(file)
            content = {
                "n_states": facts.n_states,
                "n_actions": facts.n_actions,
                "n_columns": facts.n_columns,
                "costs": facts.names,
                "notes": list(facts.notes),
                "labels": labels,
                "arrays": described,
            }
            new = path / f"{HEADER}-{token}"
            written.append(new)
            new.write_bytes(seal(FORMAT, VERSION, content))
            sync(new)
            os.replace(new, path / HEADER)
            sync(path)
        except BaseException:
            for file in written:
                file.unlink(missing_ok=True)
            if is_new:
                with suppress(OSError):
                    path.rmdir()
            raise
        for file in path.glob("*-*"):
            if file not in written and file.name.startswith((*ARRAYS, HEADER)):
                file.unlink(missing_ok=True)


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if not path.is_dir() or (any(path.iterdir()) and not (path / HEADER).exists()):
        refuse(path, "it is not replaced, because it is not a data set")
    if (path / HEADER).exists():
        if not overwrite:
            refuse(path, "it exists already; pass overwrite=True to replace it")
        try:
            _header(path)
        except ValueError as error:
            if "it is not a dpdl" in str(error) or "JSON" in str(error):
                refuse(path, "it is not replaced, because it is not a data set")


def read(path: Path, *, mmap: bool = True, verify: bool = True) -> tuple[Facts, dict[str, NDArray[Any]], NDArray, str]:
    """Open a folder and check its contents; return what it holds, how often each pair occurs, and the fingerprint."""
    for _ in range(5):  # a header that is replaced after it was read names files that are gone
        facts, described = _header(path)
        try:
            arrays = {name: _array(path, name, one, facts.n_columns, mmap) for name, one in described.items()}
            break
        except FileNotFoundError as error:
            missing = ValueError(f"{error.filename}: it is missing")
    else:
        raise missing
    counts = inspect(arrays, facts.n_states, facts.n_actions, path, described if verify else {})
    if not counts.all():
        raise ValueError(f"{path}: pairs[{np.argmin(counts)}] occurs in no record")
    sums = {name: (one["n"], one["sha256"]) for name, one in described.items()}
    return facts, arrays, counts, _fingerprint(facts, sums)


def _header(path: Path) -> tuple[Facts, dict[str, Any]]:
    try:
        raw = (path / HEADER).read_bytes()
    except FileNotFoundError:
        if not path.exists():
            raise
        raise ValueError(f"{path} is not a dpdl data set: it has no {HEADER}") from None
    try:
        version, content = unseal(raw, FORMAT, VERSION)
        if version != VERSION:
            raise ValueError(f"it has version {version} of the format, and this dpdl reads version {VERSION}")
        expect_names(
            "the header", content, {"n_states", "n_actions", "n_columns", "costs", "notes", "labels", "arrays"}
        )
        names = None if content["costs"] is None else tuple(content["costs"])
        labels = None if content["labels"] is None else Labels.from_json(content["labels"])
        sizes = (content["n_states"], content["n_actions"])
        return Facts(*sizes, names, content["n_columns"], tuple(content["notes"]), labels), content["arrays"]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path / HEADER}: {error}") from None


def _array(path: Path, name: str, described: Mapping[str, Any], n_columns: int, mmap: bool) -> NDArray[Any]:
    file = path / Path(described["file"]).name
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r" if mmap else None, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged header of an array can raise anything
        raise ValueError(f"{file}: it is damaged: {' '.join(str(error).split()):.200}") from None
    if array.dtype != array_type(name, n_columns) or array.shape != (described["n"],):
        raise ValueError(f"{file}: it has type {array.dtype} and shape {array.shape}, which {HEADER} does not say")
    return array


def inspect(
    arrays: Arrays,
    n_states: int,
    n_actions: int,
    path: Path | None = None,
    described: Mapping[str, Any] | None = None,
) -> NDArray[np.int64]:
    """Check the arrays of a log, in chunks, and return how often each pair occurs.

    The core checks nothing, so every log is checked here, after it was copied or mapped read-only: indices in range,
    numbers finite, trajectories unbroken. The SHA-256 of each array in `described` is compared first, because damage
    explains an invalid value.
    """
    for name, one in (described or {}).items():
        if path is not None and _digest(chunks(arrays[name])) != one["sha256"]:
            raise ValueError(f"{path / one['file']}: its SHA-256 is not the one in {HEADER}: the file is damaged")
    try:
        for name, bound in ((PAIRS, n_states * n_actions), (STARTS, len(arrays[RECORDS]))):
            _check_ascending(name, arrays.get(name, np.empty(0, dtype=np.int64)), bound)
        for name, least in ((REPEATS, 1), (INITIAL, 0)):
            _check_numbers(name, least, LARGEST_COUNT, arrays.get(name, np.empty(0)), 0)
        for name in ("r", "u") if SPREADS in arrays else ():
            _check_numbers(f"standard deviation of {name}", 0, LARGEST, arrays[SPREADS][name], 0)
        return _check_records(n_states, n_actions, arrays)
    except ValueError as error:
        raise error if path is None else ValueError(f"{path}: {error}") from None


def _check_ascending(name: str, array: NDArray[np.int64], bound: int) -> None:
    """Check that whole numbers ascend strictly from at least 0 to below a bound."""
    previous, first = -1, 0
    for part in chunks(array):
        check.indices(name, part, bound, dtype=np.int64, first=first, copy=False)
        wrong = np.flatnonzero(np.diff(part, prepend=previous) <= 0)
        if wrong.size:
            raise ValueError(f"{name}[{first + wrong[0]}] = {part[wrong[0]]} does not ascend")
        previous, first = int(part[-1]), first + len(part)


def _check_numbers(name: str, least: float, most: float, part: NDArray[Any], first: int) -> None:
    """Check that numbers lie in a closed interval; the negation makes a NaN fail as well."""
    if part.size and not (part.min() >= least and part.max() <= most):
        check.numbers_array(name, part, at_least=least, at_most=most, first=first)


def _check_records(n_states: int, n_actions: int, arrays: Arrays) -> NDArray[np.int64]:
    """Check records, and count their pairs."""
    pairs, starts, repeats = arrays[PAIRS], arrays.get(STARTS), arrays.get(REPEATS)
    counts, previous, first = np.zeros(len(pairs), dtype=np.int64), None, 0
    for part in chunks(arrays[RECORDS], len(pairs)):
        for name, bound in (("pair", len(pairs)), ("s_next", n_states)):
            least = ENDED if name == "s_next" else 0
            if part[name].min() < least or part[name].max() >= bound:
                check.indices(name, part[name], bound, first=first, unread=part[name] == ENDED if least else None)
        for name in ("r", "u"):
            _check_numbers(name, -LARGEST, LARGEST, part[name], first)
        if repeats is None:
            counts += np.bincount(part["pair"], minlength=len(counts))
        else:
            np.add.at(counts, part["pair"], repeats[first : first + len(part)])
        if starts is not None:
            inside = slice(*np.searchsorted(starts, [first, first + len(part)]))
            s = (pairs[part["pair"]] // n_actions).astype(np.int32)
            begins(starts[inside] - first, s, part["s_next"], first, previous)
            previous = int(part["s_next"][-1])
        first += len(part)
    return counts
