"""Headers of files: strict JSON and checksums.

A sealed object has ``format``, ``version`` and ``checksum``: the SHA-256 of its text with these 64 digits replaced by
zeros.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeGuard


def parse_json(raw: bytes) -> Any:
    """Parse JSON in ASCII; NaN, infinities and duplicate names, which Python accepts, are errors."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not a number")

    try:
        return json.loads(raw.decode("ascii"), parse_constant=refuse, object_pairs_hook=json_object)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON: {error}") from None


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary of the names and values of a JSON object; duplicate names are an error.

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


def seal(kind: str, version: int, content: dict[str, Any], indent: int | None = None) -> bytes:
    """Write a JSON object with its format, its version and a checksum of itself."""
    blank = "0" * 64
    whole = {"format": kind, "version": version, **content, "checksum": blank}
    raw = (json.dumps(whole, indent=indent, allow_nan=False) + "\n").encode("ascii")
    head, _, tail = raw.rpartition(blank.encode())  # the last: a label may be 64 zeros
    return head + hashlib.sha256(raw).hexdigest().encode() + tail


def unseal(raw: bytes, kind: str, newest: int) -> tuple[int, dict[str, Any]]:
    """Return version and content of what `seal` wrote, of a version up to `newest`; a ValueError says what is wrong."""
    content = parse_json(raw)
    if not isinstance(content, dict) or content.get("format") != kind:
        raise ValueError(f"it is not a {kind}")
    version, checksum = content.get("version"), content.get("checksum")
    if type(version) is not int or not 1 <= version <= newest:
        raise ValueError(f"its version is {version!r:.200}, and this dpdl reads versions 1 to {newest}")
    if not is_sha256(checksum):
        raise ValueError("it has no checksum")
    head, _, tail = raw.rpartition(checksum.encode())
    if hashlib.sha256(head + b"0" * 64 + tail).hexdigest() != checksum:
        raise ValueError("its checksum is wrong: the file is damaged")
    return version, {name: content[name] for name in content if name not in ("format", "version", "checksum")}


def expect_names(name: str, content: Any, names: set[str]) -> None:
    """Check that a JSON object has exactly these names."""
    if not isinstance(content, dict) or content.keys() != names:
        found = sorted(content) if isinstance(content, dict) else content
        raise ValueError(f"{name} must have the names {sorted(names)}, got {found}")


def is_sha256(value: Any) -> TypeGuard[str]:
    """Whether a value is a SHA-256 in lower-case hexadecimal."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
