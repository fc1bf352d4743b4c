"""Headers of files: JSON with checksums.

A sealed object has ``format``, ``version`` and ``checksum``: the SHA-256 of its text with these 64 digits replaced by
zeros.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


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


def unseal(raw: bytes, kind: str, version: int) -> dict[str, Any]:
    """Return the content of what `seal` wrote; a ValueError says what is wrong."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != kind:
        raise ValueError(f"it is not a {kind}")
    if content.get("version") != version:
        raise ValueError(f"its version is {content.get('version')!r:.200}, and this dpdl reads version {version}")
    checksum = str(content.get("checksum") or None)
    head, _, tail = raw.rpartition(checksum.encode())
    if hashlib.sha256(head + b"0" * 64 + tail).hexdigest() != checksum:
        raise ValueError("its checksum is wrong: the file is damaged")
    return {name: content[name] for name in content if name not in ("format", "version", "checksum")}


def expect_names(name: str, content: Any, names: set[str]) -> None:
    """Check that a JSON object has exactly these names."""
    if not isinstance(content, dict) or content.keys() != names:
        given = sorted(content) if isinstance(content, dict) else content
        raise ValueError(f"{name} must have the names {sorted(names)}, got {given}")
