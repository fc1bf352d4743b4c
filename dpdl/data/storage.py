"""Data sets on disk: a folder of plain ``.npy`` files, mapped into memory and laid out as the core reads them.

Version 1 of the format is a folder with these files:

``header.json``
    One JSON object (ASCII): ``format`` ("dpdl dataset"), ``version`` (1), ``n_records``, ``n_states``, ``n_actions``,
    ``n_utilities``, ``n_pairs``, ``n_trajectories`` (null if the transitions are independent), ``units`` (the fields
    of `Units`), ``files`` (for each other file its length in ``bytes`` and its ``sha256``) and ``checksum``: the
    SHA-256 of ``header.json`` itself with these 64 digits replaced by zeros.
``records.npy``
    The packed transitions, a structured array of `record_dtype`. A log of N transitions with I utilities takes
    N (16 + 8 I) bytes, and one sampled transition is one place in memory, not one per column.
``pairs.npy``
    int64: the visited pairs as s * n_actions + a, ascending; ``pair`` of a record is a position in this array.
``starts.npy``
    int64: positions at which trajectories begin, ascending from 0. Absent if the transitions are independent.

Each ``.npy`` file begins with the header that ``numpy.save`` of NumPy 2 writes for a one-dimensional array (version 1.0
of that format). Reading compares it with the one header that fits, so nothing in it is ever interpreted, and nothing is
ever unpickled. Sizes are checked, the header's against each other and against the files', before anything is allocated.
Contents are then read once, in chunks: their SHA-256, and that no index or number is out of range.

The functions here know nothing of `Dataset`, which has `Dataset.save` and `Dataset.open`.
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
from dpdl.data.records import INT32_MAX, begins, chunks, record_dtype
from dpdl.data.units import Units, parse_units
from dpdl.files.atomic import Folder, explained, read_folder, replacing, sync
from dpdl.files.headers import expect_names, is_sha256, npy_header, parse_json

FORMAT, VERSION = "dpdl dataset", 1
HEADER, RECORDS, PAIRS, STARTS = "header.json", "records.npy", "pairs.npy", "starts.npy"

#: A header is read whole, so its length is bounded; and with it the number of utilities, each of which has a scale.
LARGEST_HEADER = 1 << 24
MOST_UTILITIES = 1 << 16
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
    n_trajectories: int | None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("n_states", 1, INT32_MAX),
            ("n_actions", 1, INT32_MAX),
            ("n_utilities", 0, MOST_UTILITIES),
            ("n_records", 1, LARGEST_FILE),
            ("n_pairs", 1, INT32_MAX),
            ("n_trajectories", 1, LARGEST_FILE),
        ):
            value = getattr(self, name)
            if value is None and name == "n_trajectories":
                continue
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number between {least} and {most}, got {value!r}")
        if self.n_pairs > min(self.n_records, self.n_states * self.n_actions):
            raise ValueError(f"n_pairs = {self.n_pairs} is more than there are records, or pairs at all")
        if (self.n_trajectories or 1) > self.n_records:
            raise ValueError(f"n_trajectories = {self.n_trajectories} is more than there are records")
        if self.length(RECORDS) > LARGEST_FILE:
            raise ValueError(f"n_records = {self.n_records} is too large for a file")

    @property
    def arrays(self) -> dict[str, tuple[np.dtype[Any], int]]:
        """Type and number of elements of each array, by file name."""
        found = {RECORDS: (record_dtype(self.n_utilities), self.n_records), PAIRS: (np.dtype("<i8"), self.n_pairs)}
        if self.n_trajectories is not None:
            found[STARTS] = (np.dtype("<i8"), self.n_trajectories)
        return found

    def length(self, name: str) -> int:
        """Bytes of a file."""
        dtype, n = self.arrays[name]
        return len(npy_header(dtype, n)) + n * dtype.itemsize


@dataclass(frozen=True)
class Header:
    """What ``header.json`` says."""

    sizes: Sizes
    units: Units
    sums: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what the data set is: sizes, units and the sums of its arrays, whatever the format's version."""
        content = [asdict(self.sizes), asdict(self.units), dict(self.sums)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def text(self) -> bytes:
        """Render ``header.json``."""
        blank = "0" * 64
        content = {
            "format": FORMAT,
            "version": VERSION,
            **asdict(self.sizes),
            "units": asdict(self.units),
            "files": {name: {"bytes": self.sizes.length(name), "sha256": self.sums[name]} for name in self.sums},
            "checksum": blank,
        }
        raw = (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
        return raw.replace(blank.encode(), hashlib.sha256(raw).hexdigest().encode())

    @classmethod
    def parse(cls, raw: bytes) -> Header:
        """Read ``header.json``; everything in it is checked, its own checksum first."""
        content = parse_json(raw)
        if not is_header(content):
            raise ValueError("it is not the header of a dpdl data set")
        if content.get("version") != VERSION or type(content["version"]) is not int:
            raise ValueError(f"its version is {content.get('version')!r}, and this dpdl reads version {VERSION}")
        checksum = content.get("checksum")
        if not isinstance(checksum, str) or not is_sha256(checksum):
            raise ValueError("it has no checksum")
        if hashlib.sha256(raw.replace(checksum.encode(), b"0" * 64)).hexdigest() != checksum:
            raise ValueError("its checksum is wrong: the file is damaged")
        names = [field.name for field in fields(Sizes)]
        expect_names("the header", content, {"format", "version", "checksum", "units", "files", *names})
        sizes, files = Sizes(**{name: content[name] for name in names}), content["files"]
        expect_names("files", files, set(sizes.arrays))
        for name in sizes.arrays:
            expect_names(f"files[{name!r}]", files[name], {"bytes", "sha256"})
            if files[name]["bytes"] != sizes.length(name) or not is_sha256(files[name]["sha256"]):
                raise ValueError(
                    f"files[{name!r}] must have {sizes.length(name)} bytes and a SHA-256, got {files[name]}"
                )
        units = parse_units(content["units"], sizes.n_utilities)
        return cls(sizes, units, {name: files[name]["sha256"] for name in sizes.arrays})


def is_header(content: Any) -> bool:
    """Whether JSON says of itself that it is the header of a data set."""
    return isinstance(content, dict) and content.get("format") == FORMAT


Arrays = Mapping[str, Iterable[NDArray[Any]]]


class Stored(NamedTuple):
    """A data set as read from a folder; `counts` is a by-product of checking it."""

    header: Header
    arrays: Mapping[str, NDArray[Any]]
    counts: NDArray[np.int64]


def is_replaceable(path: Path) -> bool:
    """Whether a path is an empty folder, or holds a data set and nothing else; only these are ever overwritten."""
    if not path.is_dir():
        return False
    with os.scandir(path) as entries:
        files = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    if not files:
        return True
    if HEADER not in files or not files.keys() <= {HEADER, RECORDS, PAIRS, STARTS} or not all(files.values()):
        return False
    try:  # of any version, and perhaps damaged
        with Folder(path) as folder:
            return is_header(parse_json(_header_bytes(folder)))
    except ValueError:
        return False


def save(path: Path, sizes: Sizes, units: Units, arrays: Arrays, *, overwrite: bool) -> None:
    """Write a data set, its arrays given in chunks, as a folder that appears whole or not at all."""
    with replacing(path, overwrite, is_replaceable) as folder, explained(path):
        write(folder, sizes, units, arrays)


def write(folder: Path, sizes: Sizes, units: Units, arrays: Arrays) -> None:
    """Write the files of a data set; a chunk may be read from the very place that it is going to be written to."""
    sums = {}
    for name, (dtype, n) in sizes.arrays.items():
        with open(folder / name, "r+b" if (folder / name).exists() else "xb") as file:
            sums[name] = _pour(dtype, n, arrays[name], file.write)
        sync(folder / name)
    (folder / HEADER).write_bytes(Header(sizes, units, sums).text())
    sync(folder / HEADER)


def describe(sizes: Sizes, units: Units, arrays: Arrays) -> Header:
    """Return the header that `save` would write."""
    return Header(sizes, units, {name: _pour(*sizes.arrays[name], arrays[name]) for name in sizes.arrays})


def read(path: Path, *, mmap: bool = True, verify: bool = True) -> Stored:
    """Open a folder and check everything in it; `verify=False` leaves out the SHA-256 of the arrays."""
    header, arrays = read_folder(path, partial(_read_files, mmap=mmap))
    sizes = header.sizes
    counts = inspect(arrays, sizes.n_states, sizes.n_actions, path.joinpath, header.sums if verify else {})
    if not counts.all():
        unvisited = int(np.argmin(counts))
        raise ValueError(f"{path / PAIRS}: pairs[{unvisited}] = {arrays[PAIRS][unvisited]} is the pair of no record")
    return Stored(header, arrays, counts)


def inspect(
    arrays: Mapping[str, NDArray[Any]],
    n_states: int,
    n_actions: int,
    label: Callable[[str], object] = lambda name: name.removesuffix(".npy"),
    sums: Mapping[str, str] = MappingProxyType({}),
) -> NDArray[np.int64]:
    """Check that the core may read the arrays of a log, by file name, and return how often each pair occurs.

    Every log passes here, however it was made, after it was put where nobody can change it: the core checks nothing.
    The SHA-256 of each array in `sums` is compared as well. Messages begin with what `label` makes of a name.
    """
    records = _Records(n_states, n_actions, arrays[PAIRS], arrays.get(STARTS))
    looks = {
        PAIRS: _Ascending("pairs", n_states * n_actions).look,
        STARTS: _Ascending("starts", len(arrays[RECORDS])).look,
        RECORDS: records.look,
    }
    for name in (name for name in looks if name in arrays):
        array = arrays[name]
        digest = hashlib.sha256(npy_header(array.dtype, len(array))) if name in sums else None
        problem = _look_through(array, looks[name], digest, len(arrays[PAIRS]))
        # That a file is damaged is more to the point than what the damage did to its contents.
        if digest is not None and digest.hexdigest() != sums[name]:
            raise ValueError(f"{label(name)}: its SHA-256 is not the one in {HEADER}: the file is damaged")
        if problem is not None:
            raise ValueError(f"{label(name)}: {problem}")
    return records.counts


def _pour(
    dtype: np.dtype[Any],
    n: int,
    parts: Iterable[NDArray[Any]],
    sink: Callable[[Any], object] = lambda raw: None,
) -> str:
    """Pour a ``.npy`` file of `n` elements into `sink` and return its SHA-256."""
    digest, poured = hashlib.sha256(npy_header(dtype, n)), 0
    sink(npy_header(dtype, n))
    for part in parts:
        raw = _raw(np.ascontiguousarray(part, dtype=dtype))
        digest.update(raw)
        sink(raw)
        poured += len(part)
    if poured != n:
        raise ValueError(f"{n} elements were announced, {poured} came")
    return digest.hexdigest()


def _raw(array: NDArray[Any]) -> memoryview:
    return array.view(np.uint8).data


def _read_files(folder: Folder, mmap: bool) -> tuple[Header, dict[str, NDArray[Any]]]:
    """Read the header and the arrays, after all of them were opened: what is open does not vanish."""
    raw = _header_bytes(folder)
    try:
        header = Header.parse(raw)
    except ValueError as error:
        raise ValueError(f"{folder.path / HEADER}: {error}") from None
    with ExitStack() as stack:
        streams = {name: stack.enter_context(_opened(folder, name)) for name in header.sizes.arrays}
        return header, {
            name: _read_array(folder.path / name, streams[name], *described, mmap)
            for name, described in header.sizes.arrays.items()
        }


def _header_bytes(folder: Folder) -> bytes:
    with _opened(folder, HEADER) as stream:
        length = os.fstat(stream.fileno()).st_size
        if length > LARGEST_HEADER:
            raise ValueError(f"{folder.path / HEADER}: {length} bytes are too many for a header")
        return stream.read()


def _read_array(file: Path, stream: BufferedReader, dtype: np.dtype[Any], n: int, mmap: bool) -> NDArray[Any]:
    """Map an array, read-only, or read it into memory; nothing is allocated unless the file has the right length."""
    head = npy_header(dtype, n)
    expected, length = len(head) + n * dtype.itemsize, os.fstat(stream.fileno()).st_size
    if length != expected:
        raise ValueError(f"{file}: it has {length} bytes, and {HEADER} says {expected}")
    if mmap:
        whole = np.frombuffer(memory.mmap(stream.fileno(), expected, access=memory.ACCESS_READ), dtype=np.uint8)
    else:
        whole = np.empty(expected, dtype=np.uint8)
        if stream.readinto(whole.data) != expected:
            raise ValueError(f"{file}: it became shorter while it was read")
    if whole[: len(head)].tobytes() != head:
        raise ValueError(f"{file}: its .npy header is not that of a vector of {n} elements of type {dtype.descr}")
    return whole[len(head) :].view(dtype)


def _opened(folder: Folder, name: str) -> BufferedReader:
    """Open a regular file; anything else (a pipe would wait for ever) is refused before it is opened."""
    try:
        if not stat.S_ISREG(folder.stat(name).st_mode):
            raise ValueError(f"{folder.path / name}: it is not a regular file")
        return folder.open(name)
    except FileNotFoundError:
        if name == HEADER:
            raise ValueError(f"{folder.path} is not a dpdl data set: it has no {HEADER}") from None
        raise ValueError(f"{folder.path / name}: it is missing") from None


def _look_through(
    array: NDArray[Any], look: Callable[[NDArray[Any], int], None], digest: Any, at_least: int
) -> ValueError | None:
    """Read an array once, in chunks: sum up all of it, and return the first problem that `look` sees."""
    problem, first = None, 0
    for part in chunks(array, at_least):
        if digest is not None:
            digest.update(_raw(part))
        try:
            if problem is None:
                look(part, first)
        except ValueError as error:
            problem = error
        first += len(part)
    return problem


class _Ascending:
    """Whole numbers that ascend from at least 0 to below a bound."""

    def __init__(self, name: str, bound: int) -> None:
        self.name, self.bound, self.previous = name, bound, -1

    def look(self, part: NDArray[np.int64], first: int) -> None:
        check.indices(self.name, part, self.bound, dtype=np.int64, first=first, copy=False)
        wrong = np.flatnonzero(np.diff(part, prepend=self.previous) <= 0)
        if wrong.size:
            raise ValueError(f"{self.name}[{first + wrong[0]}] = {part[wrong[0]]} does not ascend")
        self.previous = int(part[-1])


class _Records:
    """Records that the core may read: every index in range, every number in [-1, 1], trajectories unbroken."""

    def __init__(
        self, n_states: int, n_actions: int, pairs: NDArray[np.int64], starts: NDArray[np.int64] | None
    ) -> None:
        self.n_states, self.n_actions, self.pairs, self.starts = n_states, n_actions, pairs, starts
        self.counts = np.zeros(len(pairs), dtype=np.int64)
        self.previous: int | None = None

    def look(self, part: NDArray[Any], first: int) -> None:
        for name, bound in (("pair", len(self.pairs)), ("s_next", self.n_states)):
            if part[name].min() < 0 or part[name].max() >= bound:
                check.indices(name, part[name], bound, first=first)
        for name in ("r", "u"):
            # Written so that a NaN is out of range too. The check itself is slower and only needed for its message.
            if part[name].size and not (part[name].min() >= -1 and part[name].max() <= 1):
                check.numbers_array(name, part[name], at_least=-1, at_most=1, first=first)
        self.counts += np.bincount(part["pair"], minlength=len(self.counts))
        if self.starts is not None:
            inside = slice(*np.searchsorted(self.starts, [first, first + len(part)]))
            s = (self.pairs[part["pair"]] // self.n_actions).astype(np.int32)
            begins(self.starts[inside] - first, s, part["s_next"], first, self.previous)
            self.previous = int(part["s_next"][-1])
