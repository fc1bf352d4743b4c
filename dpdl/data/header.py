"""What a stored data set says about itself: its ``header.json``, and the headers of its ``.npy`` files.

`dpdl.data.storage` documents the format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from dpdl import _validation as check
from dpdl.data.records import INT32_MAX, Units, record_dtype, scales

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
        if not isinstance(checksum, str) or not _is_sum(checksum):
            raise ValueError("it has no checksum")
        if hashlib.sha256(raw.replace(checksum.encode(), b"0" * 64)).hexdigest() != checksum:
            raise ValueError("its checksum is wrong: the file is damaged")
        names = [field.name for field in fields(Sizes)]
        _expect("the header", content, {"format", "version", "checksum", "units", "files", *names})
        sizes, files = Sizes(**{name: content[name] for name in names}), content["files"]
        _expect("files", files, set(sizes.arrays))
        for name in sizes.arrays:
            _expect(f"files[{name!r}]", files[name], {"bytes", "sha256"})
            if files[name]["bytes"] != sizes.length(name) or not _is_sum(files[name]["sha256"]):
                raise ValueError(
                    f"files[{name!r}] must have {sizes.length(name)} bytes and a SHA-256, got {files[name]}"
                )
        units = parse_units(content["units"], sizes.n_utilities)
        return cls(sizes, units, {name: files[name]["sha256"] for name in sizes.arrays})


def is_header(content: Any) -> bool:
    """Whether JSON says of itself that it is the header of a data set."""
    return isinstance(content, dict) and content.get("format") == FORMAT


def npy_header(dtype: np.dtype[Any], n: int) -> bytes:
    """Header of a ``.npy`` file with `n` elements, as NumPy 2 writes it; its length does not depend on `n`.

    Examples
    --------
    >>> npy_header(np.dtype("<i8"), 3)[10:70]
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }   "
    """
    text = f"{{'descr': {dtype.descr if dtype.names else dtype.str!r}, 'fortran_order': False, 'shape': ({n},), }}"
    text += " " * (21 - len(str(n)))  # room for any n
    text += " " * (64 - (len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")


def parse_json(raw: bytes) -> Any:
    """Parse JSON in ASCII, without the NaN, infinities and names given twice that Python would let through."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not a number")

    try:
        return json.loads(raw.decode("ascii"), parse_constant=refuse, object_pairs_hook=json_object)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it cannot be read as JSON: {error}") from None


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary of the names and values of a JSON object, none of which may be given twice.

    Examples
    --------
    >>> json.loads('{"T": 1, "T": 2}', object_pairs_hook=json_object)
    Traceback (most recent call last):
        ...
    ValueError: 'T' is given twice
    """
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"{name!r:.200} is given twice")
        content[name] = value
    return content


def parse_units(content: Any, n_utilities: int | None = None) -> Units:
    """Check units that came out of a file; without `n_utilities` they say themselves how many those are."""
    _expect("units", content, {field.name for field in fields(Units)})
    limits, gamma, normalised = content["limits"], content["gamma"], content["normalised"]
    try:
        if not isinstance(content["utility_scale"], list):
            raise ValueError(f"utility_scale must be a list, got {content['utility_scale']!r}")
        if n_utilities is None:
            n_utilities = len(content["utility_scale"])
        if (limits is None) != (gamma is None):
            raise ValueError("limits and gamma must be given together, or neither")
        if limits is not None:
            limits = tuple(check.numbers_array("limits", limits, shape=(n_utilities,)).tolist())
            gamma = check.real("gamma", gamma, above=0, below=1)
        reward_scale = check.real("reward_scale", content["reward_scale"], above=0)
        utility_scale = scales("utility_scale", content["utility_scale"], n_utilities)
        return Units(reward_scale, utility_scale, limits, check.flag("normalised", normalised), gamma)
    except (TypeError, ValueError) as error:
        raise ValueError(f"units: {error}") from None


def _expect(name: str, content: Any, names: set[str]) -> None:
    if not isinstance(content, dict) or content.keys() != names:
        found = sorted(content) if isinstance(content, dict) else content
        raise ValueError(f"{name} must have the names {sorted(names)}, got {found}")


def _is_sum(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
