"""Data sets on disk: a folder of ``.npy`` files in the layout that the core reads, mapped into memory.

Version 3 of the format is a folder with these files:

``header.json``
    One JSON object (ASCII): ``format`` ("dpdl dataset"), ``version`` (3), the fields of `Sizes`, ``costs`` (the names
    of the costs; null if the columns are utilities), ``files`` (for each other file its length in ``bytes`` and its
    ``sha256``) and ``checksum``: the SHA-256 of ``header.json`` itself with these 64 digits replaced by zeros.
``records.npy``
    The packed transitions, a structured array of `record_dtype`; ``s_next`` is -1 where an episode ended. A log of N
    transitions with I utilities takes N (16 + 8 I) bytes, and a sampled transition is contiguous in memory.
``pairs.npy``
    int64: the visited pairs as s * n_actions + a, ascending; ``pair`` of a record is a position in this array.
``starts.npy``
    int64: positions at which trajectories begin, ascending from 0. Absent if the transitions are independent.
``repeats.npy``, ``spreads.npy``, ``initial.npy``
    Only for a log of counts: how many transitions each record stands for (int64); the standard deviations of reward and
    utilities among them (1 + I doubles a record); how often an episode began in each state (int64). Each may be absent.

``labels.json``
    Only if states and actions have labels: one JSON object (ASCII) as `Labels.to_json` makes it. The header then has
    its length and SHA-256 under ``labels``. Labels do not enter the fingerprint.

Each ``.npy`` file begins with the header that ``numpy.save`` of NumPy 2 writes for a one-dimensional array (version 1.0
of that format). Reading compares it with the expected header, so it is not parsed, and nothing is unpickled. Sizes in
``header.json`` are compared with each other and with the files before anything is allocated. Contents are then read
once, in chunks, to check their SHA-256 and that every index and number is in range.

`Dataset.save` and `Dataset.open` use these functions, which do not depend on `Dataset`.
"""

from __future__ import annotations

import hashlib
import json
import mmap as memory
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import partial
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data.labels import Labels
from dpdl.data.packing import ENDED, INT32_MAX, begins, chunks, record_dtype, spread_dtype
from dpdl.files.atomic import Folder, naming_the_target, read_folder, replacing, sync
from dpdl.files.headers import expect_names, is_sha256, npy_header, parse_json, seal, unseal

FORMAT, VERSION = "dpdl dataset", 3
HEADER, RECORDS, PAIRS, STARTS = "header.json", "records.npy", "pairs.npy", "starts.npy"
REPEATS, SPREADS, INITIAL = "repeats.npy", "spreads.npy", "initial.npy"
LABELS = "labels.json"

#: A header is read into memory, so its length is bounded, and so is the number of utilities, whose scales it lists.
LARGEST_HEADER = 1 << 24
MOST_UTILITIES = 1 << 16
LARGEST = float(np.finfo(np.float64).max)
#: File offsets are 64-bit numbers with a sign.
LARGEST_FILE = 2**63 - 1


@dataclass(frozen=True)
class Sizes:
    """Numbers that determine the length of every file."""

    n_records: int
    n_states: int
    n_actions: int
    n_utilities: int
    n_pairs: int
    n_trajectories: int | None  # None if the transitions are independent
    n_transitions: int | None = None  # how many the records stand for; None if each is one
    spreads: bool = False  # whether there are variances within records
    initial: bool = False  # whether there are counts of initial states

    def __post_init__(self) -> None:
        for name, least, most in (
            ("n_states", 1, INT32_MAX),
            ("n_actions", 1, INT32_MAX),
            ("n_utilities", 0, MOST_UTILITIES),
            ("n_records", 1, LARGEST_FILE),
            ("n_pairs", 1, INT32_MAX),
            ("n_trajectories", 1, LARGEST_FILE),
            ("n_transitions", self.n_records, LARGEST_FILE),
        ):
            value = getattr(self, name)
            if value is None and name in ("n_trajectories", "n_transitions"):
                continue
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number between {least} and {most}, got {value!r}")
        for name in ("spreads", "initial"):
            check.flag(name, getattr(self, name))
        if self.n_pairs > min(self.n_records, self.n_states * self.n_actions):
            raise ValueError(f"n_pairs = {self.n_pairs} exceeds n_records or n_states * n_actions")
        if (self.n_trajectories or 1) > self.n_records:
            raise ValueError(f"n_trajectories = {self.n_trajectories} exceeds n_records")
        if self.length(RECORDS) > LARGEST_FILE:
            raise ValueError(f"n_records = {self.n_records} is too large for a file")

    @property
    def arrays(self) -> dict[str, tuple[np.dtype[Any], int]]:
        """Type and number of elements of each array, by file name."""
        found = {RECORDS: (record_dtype(self.n_utilities), self.n_records), PAIRS: (np.dtype("<i8"), self.n_pairs)}
        if self.n_trajectories is not None:
            found[STARTS] = (np.dtype("<i8"), self.n_trajectories)
        if self.n_transitions is not None:
            found[REPEATS] = (np.dtype("<i8"), self.n_records)
        if self.spreads:
            found[SPREADS] = (spread_dtype(self.n_utilities), self.n_records)
        if self.initial:
            found[INITIAL] = (np.dtype("<i8"), self.n_states)
        return found

    def described(self) -> dict[str, Any]:
        """The sizes that differ from those of an ordinary log, by name: the same in every version of the format."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    def length(self, name: str) -> int:
        """Bytes of a file."""
        dtype, n = self.arrays[name]
        return len(npy_header(dtype, n)) + n * dtype.itemsize


@dataclass(frozen=True)
class Header:
    """The contents of ``header.json``."""

    sizes: Sizes
    names: tuple[str, ...] | None  # of the costs; None if the columns are utilities
    sums: Mapping[str, str]
    labels: Mapping[str, Any] | None = None  # "bytes" and "sha256" of labels.json

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the sizes, the names of the costs and the sums of the arrays."""
        content = [self.sizes.described(), self.names, dict(self.sums)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def text(self) -> bytes:
        """Render ``header.json``."""
        content = {
            **asdict(self.sizes),
            "costs": self.names,
            "files": {name: {"bytes": self.sizes.length(name), "sha256": self.sums[name]} for name in self.sums},
            **({} if self.labels is None else {"labels": dict(self.labels)}),
        }
        return seal(FORMAT, VERSION, content, indent=1)

    @classmethod
    def parse(cls, raw: bytes) -> Header:
        """Read ``header.json``; everything in it is checked, its own checksum first."""
        version, content = unseal(raw, FORMAT, VERSION)
        if version != VERSION:
            raise ValueError(f"it has version {version} of the format, and this dpdl reads version {VERSION}")
        names = [field.name for field in fields(Sizes)]
        labels = content.pop("labels", None)
        expect_names("the header", content, {"costs", "files", *names})
        if labels is not None:
            expect_names("labels", labels, {"bytes", "sha256"})
            if type(labels["bytes"]) is not int or not is_sha256(labels["sha256"]):
                raise ValueError(f"labels must have a number of bytes and a SHA-256, got {labels}")
        sizes, files = Sizes(**{name: content[name] for name in names}), content["files"]
        expect_names("files", files, set(sizes.arrays))
        for name in sizes.arrays:
            expect_names(f"files[{name!r}]", files[name], {"bytes", "sha256"})
            if files[name]["bytes"] != sizes.length(name) or not is_sha256(files[name]["sha256"]):
                raise ValueError(
                    f"files[{name!r}] must have {sizes.length(name)} bytes and a SHA-256, got {files[name]}"
                )
        costs = content["costs"]
        if costs is not None:
            if not isinstance(costs, list) or len({*map(str, costs)}) != sizes.n_utilities:
                raise ValueError(f"costs must be {sizes.n_utilities} distinct names, got {costs!r:.200}")
            costs = tuple(check.text(f"costs[{k}]", name) for k, name in enumerate(costs))
        return cls(sizes, costs, {name: files[name]["sha256"] for name in sizes.arrays}, labels)


Arrays = Mapping[str, Iterable[NDArray[Any]]]
Names = tuple[str, ...] | None


class Stored(NamedTuple):
    """A data set read from a folder; `counts` says how often each pair occurs."""

    header: Header
    arrays: Mapping[str, NDArray[Any]]
    counts: NDArray[np.int64]
    labels: Labels | None


def is_replaceable(path: Path) -> bool:
    """Whether a path is an empty folder, or holds a data set and nothing else; only these are overwritten."""
    if not path.is_dir():
        return False
    with os.scandir(path) as entries:
        files = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    if not files:
        return True
    known = {HEADER, RECORDS, PAIRS, STARTS, REPEATS, SPREADS, INITIAL, LABELS}
    if HEADER not in files or not files.keys() <= known or not all(files.values()):
        return False
    try:  # a data set of any version, perhaps damaged
        with Folder(path) as folder:
            content = parse_json(_header_bytes(folder))
            return isinstance(content, dict) and content.get("format") == FORMAT
    except ValueError:
        return False


def save(path: Path, sizes: Sizes, names: Names, arrays: Arrays, labels: Labels | None, *, overwrite: bool) -> None:
    """Write a data set, its arrays given in chunks, to a folder atomically."""
    named = None if labels is None else json.dumps(labels.to_json()).encode("ascii")
    with replacing(path, overwrite, is_replaceable) as folder, naming_the_target(path):
        write(folder, sizes, names, arrays, named)


def write(folder: Path, sizes: Sizes, names: Names, arrays: Arrays, labels: bytes | None = None) -> None:
    """Write the files of a data set; chunks may be read from the files that are being overwritten."""
    sums = {}
    for name, (dtype, n) in sizes.arrays.items():
        with open(folder / name, "r+b" if (folder / name).exists() else "xb") as file:
            sums[name] = _write_array(dtype, n, arrays[name], file.write)
        sync(folder / name)
    named = None
    if labels is not None:
        named = {"bytes": len(labels), "sha256": hashlib.sha256(labels).hexdigest()}
        (folder / LABELS).write_bytes(labels)
        sync(folder / LABELS)
    (folder / HEADER).write_bytes(Header(sizes, names, sums, named).text())
    sync(folder / HEADER)


def describe(sizes: Sizes, names: Names, arrays: Arrays) -> Header:
    """Return the header that `save` would write."""
    return Header(sizes, names, {name: _write_array(*sizes.arrays[name], arrays[name]) for name in sizes.arrays})


def read(path: Path, *, mmap: bool = True, verify: bool = True) -> Stored:
    """Open a folder and check its contents; `verify=False` skips the SHA-256 of the arrays."""
    header, arrays, labels = read_folder(path, partial(_read_files, mmap=mmap))
    sizes = header.sizes
    counts = inspect(arrays, sizes.n_states, sizes.n_actions, path.joinpath, header.sums if verify else {})
    if sizes.n_transitions is not None and int(counts.sum()) != sizes.n_transitions:
        raise ValueError(f"{path / REPEATS}: repeats sum to {counts.sum()}, {HEADER} says {sizes.n_transitions}")
    if not counts.all():
        unvisited = int(np.argmin(counts))
        raise ValueError(f"{path / PAIRS}: pairs[{unvisited}] = {arrays[PAIRS][unvisited]} occurs in no record")
    return Stored(header, arrays, counts, labels)


def inspect(
    arrays: Mapping[str, NDArray[Any]],
    n_states: int,
    n_actions: int,
    label: Callable[[str], object] = lambda name: name.removesuffix(".npy"),
    sums: Mapping[str, str] = MappingProxyType({}),
) -> NDArray[np.int64]:
    """Check the arrays of a log, given by file name, and return how often each pair occurs.

    The core checks nothing, so every log is checked here, after it was copied or mapped read-only. The SHA-256 of each
    array in `sums` is compared as well. Messages begin with ``label(name)``.
    """
    records = _Records(n_states, n_actions, arrays)
    checks: dict[str, Callable[[NDArray[Any], int], None]] = {
        PAIRS: _Ascending("pairs", n_states * n_actions).check_part,
        STARTS: _Ascending("starts", len(arrays[RECORDS])).check_part,
        REPEATS: partial(_check_numbers, "repeats", 1, LARGEST_FILE),
        SPREADS: _check_spreads,
        INITIAL: partial(_check_numbers, "initial", 0, LARGEST_FILE),
        RECORDS: records.check_part,
    }
    for name in (name for name in checks if name in arrays):
        array = arrays[name]
        digest = hashlib.sha256(npy_header(array.dtype, len(array))) if name in sums else None
        error = _first_error(array, checks[name], digest, len(arrays[PAIRS]))
        # A wrong checksum explains an invalid value, so it is reported first.
        if digest is not None and digest.hexdigest() != sums[name]:
            raise ValueError(f"{label(name)}: its SHA-256 is not the one in {HEADER}: the file is damaged")
        if error is not None:
            raise ValueError(f"{label(name)}: {error}")
    return records.counts


def _write_array(
    dtype: np.dtype[Any],
    n: int,
    parts: Iterable[NDArray[Any]],
    sink: Callable[[Any], object] = lambda raw: None,
) -> str:
    """Write a ``.npy`` file of `n` elements to `sink` and return its SHA-256."""
    digest, written = hashlib.sha256(npy_header(dtype, n)), 0
    sink(npy_header(dtype, n))
    for part in parts:
        raw = _raw(np.ascontiguousarray(part, dtype=dtype))
        digest.update(raw)
        sink(raw)
        written += len(part)
    if written != n:
        raise ValueError(f"expected {n} elements, got {written}")
    return digest.hexdigest()


def _raw(array: NDArray[Any]) -> memoryview:
    return array.view(np.uint8).data


def _read_files(folder: Folder, mmap: bool) -> tuple[Header, dict[str, NDArray[Any]], Labels | None]:
    """Read the header, the arrays and the labels; all files are opened first, so that none can be removed meanwhile."""
    raw = _header_bytes(folder)
    try:
        header = Header.parse(raw)
    except ValueError as error:
        raise ValueError(f"{folder.path / HEADER}: {error}") from None
    with ExitStack() as stack:
        names = [*header.sizes.arrays, *([] if header.labels is None else [LABELS])]
        streams = {name: stack.enter_context(_opened(folder, name)) for name in names}
        arrays = {
            name: _read_array(folder.path / name, streams[name], *described, mmap)
            for name, described in header.sizes.arrays.items()
        }
        return header, arrays, _read_labels(folder.path / LABELS, streams.get(LABELS), header)


def _read_labels(file: Path, stream: BufferedReader | None, header: Header) -> Labels | None:
    if stream is None or header.labels is None:
        return None
    length, expected = os.fstat(stream.fileno()).st_size, header.labels["bytes"]
    if length != expected:
        raise ValueError(f"{file}: it has {length} bytes, and {HEADER} says {expected}")
    raw = stream.read()
    if hashlib.sha256(raw).hexdigest() != header.labels["sha256"]:
        raise ValueError(f"{file}: its SHA-256 is not the one in {HEADER}: the file is damaged")
    try:
        labels = Labels.from_json(parse_json(raw))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from None
    found, sizes = (len(labels.states), len(labels.actions)), (header.sizes.n_states, header.sizes.n_actions)
    if found != sizes:
        raise ValueError(f"{file}: it names {found[0]} states and {found[1]} actions, {HEADER} says {sizes}")
    return labels


def _header_bytes(folder: Folder) -> bytes:
    with _opened(folder, HEADER) as stream:
        length = os.fstat(stream.fileno()).st_size
        if length > LARGEST_HEADER:
            raise ValueError(f"{folder.path / HEADER}: {length} bytes are too many for a header")
        return stream.read()


def _read_array(file: Path, stream: BufferedReader, dtype: np.dtype[Any], n: int, mmap: bool) -> NDArray[Any]:
    """Map an array read-only, or read it into memory, after checking the length of the file."""
    head = npy_header(dtype, n)
    expected, length = len(head) + n * dtype.itemsize, os.fstat(stream.fileno()).st_size
    if length != expected:
        raise ValueError(f"{file}: it has {length} bytes, and {HEADER} says {expected}")
    if mmap:
        whole = np.frombuffer(memory.mmap(stream.fileno(), expected, access=memory.ACCESS_READ), dtype=np.uint8)
    else:
        whole = np.empty(expected, dtype=np.uint8)
        if stream.readinto(whole.data) != expected:
            raise ValueError(f"{file}: it was truncated while it was read")
    if whole[: len(head)].tobytes() != head:
        raise ValueError(f"{file}: its .npy header is not that of a vector of {n} elements of type {dtype.descr}")
    return whole[len(head) :].view(dtype)


def _opened(folder: Folder, name: str) -> BufferedReader:
    """Open a regular file; raise ValueError for anything else, without opening it: a pipe would block."""
    try:
        if not stat.S_ISREG(folder.stat(name).st_mode):
            raise ValueError(f"{folder.path / name}: it is not a regular file")
        return folder.open(name)
    except FileNotFoundError:
        if name == HEADER:
            raise ValueError(f"{folder.path} is not a dpdl data set: it has no {HEADER}") from None
        raise ValueError(f"{folder.path / name}: it is missing") from None


def _first_error(
    array: NDArray[Any], check_part: Callable[[NDArray[Any], int], None], digest: Any, at_least: int
) -> ValueError | None:
    """Read an array once, in chunks: add all of it to `digest`, and return the first error of `check_part`."""
    found, first = None, 0
    for part in chunks(array, at_least):
        if digest is not None:
            digest.update(_raw(part))
        try:
            if found is None:
                check_part(part, first)
        except ValueError as error:
            found = error
        first += len(part)
    return found


class _Ascending:
    """Checks that whole numbers ascend strictly from at least 0 to below a bound."""

    def __init__(self, name: str, bound: int) -> None:
        self.name, self.bound, self.previous = name, bound, -1

    def check_part(self, part: NDArray[np.int64], first: int) -> None:
        check.indices(self.name, part, self.bound, dtype=np.int64, first=first, copy=False)
        wrong = np.flatnonzero(np.diff(part, prepend=self.previous) <= 0)
        if wrong.size:
            raise ValueError(f"{self.name}[{first + wrong[0]}] = {part[wrong[0]]} does not ascend")
        self.previous = int(part[-1])


def _check_numbers(name: str, least: float, most: float, part: NDArray[Any], first: int) -> None:
    """Check that numbers lie in a closed interval; the negation makes a NaN fail as well."""
    if part.size and not (part.min() >= least and part.max() <= most):
        check.numbers_array(name, part, at_least=least, at_most=most, first=first)


def _check_spreads(part: NDArray[Any], first: int) -> None:
    for name in ("r", "u"):
        _check_numbers(f"standard deviation of {name}", 0, LARGEST, part[name], first)


class _Records:
    """Checks records: every index in range, every number finite, trajectories unbroken."""

    def __init__(self, n_states: int, n_actions: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.n_states, self.n_actions, self.pairs = n_states, n_actions, arrays[PAIRS]
        self.starts, self.repeats = arrays.get(STARTS), arrays.get(REPEATS)
        self.counts = np.zeros(len(self.pairs), dtype=np.int64)
        self.previous: int | None = None

    def check_part(self, part: NDArray[Any], first: int) -> None:
        for name, bound in (("pair", len(self.pairs)), ("s_next", self.n_states)):
            least = ENDED if name == "s_next" else 0
            if part[name].min() < least or part[name].max() >= bound:
                check.indices(name, part[name], bound, first=first, unread=part[name] == ENDED if least else None)
        for name in ("r", "u"):
            _check_numbers(name, -LARGEST, LARGEST, part[name], first)
        if self.repeats is None:
            self.counts += np.bincount(part["pair"], minlength=len(self.counts))
        else:
            np.add.at(self.counts, part["pair"], self.repeats[first : first + len(part)])
        if self.starts is not None:
            inside = slice(*np.searchsorted(self.starts, [first, first + len(part)]))
            s = (self.pairs[part["pair"]] // self.n_actions).astype(np.int32)
            begins(self.starts[inside] - first, s, part["s_next"], first, self.previous)
            self.previous = int(part["s_next"][-1])
