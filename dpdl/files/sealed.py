"""One JSON file (ASCII) with a checksum, written atomically: what policies and answers are saved as.

The names ``format`` and ``version`` say what it is, ``checksum`` is the SHA-256 of the file with these 64 digits
replaced by zeros. Python writes a double with as many digits as identify it, so that reading gives back the same bits.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpdl import _validation as check
from dpdl.files.atomic import lock, naming_the_target, refuse, remove_leftovers, sync, temporary_file
from dpdl.files.headers import expect_names, is_sha256, parse_json


def write(path: str | os.PathLike[str], content: Mapping[str, Any], *, overwrite: bool) -> None:
    """Write a JSON object, which has a ``format`` and a ``version``, with its checksum."""
    target = Path(os.path.realpath(check.path("path", path)))
    if target.is_dir():
        refuse(target, f"it is a folder, and a {content['format']} is a file")
    if not check.flag("overwrite", overwrite) and os.path.lexists(target):
        refuse(target, "it exists already; pass overwrite=True to replace it")
    blank = "0" * 64
    raw = (json.dumps({**content, "checksum": blank}, allow_nan=False) + "\n").encode("ascii")
    raw = raw.replace(blank.encode(), hashlib.sha256(raw).hexdigest().encode())
    remove_leftovers(target)
    with naming_the_target(target), temporary_file(target) as temporary:
        with open(temporary, "xb") as file:
            lock(file.fileno())
            file.write(raw)
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)


def parse(raw: bytes, form: str, versions: Sequence[int], names: set[str]) -> dict[str, Any]:
    """Check a file that `write` wrote, of this format and one of these versions; return the named contents."""
    content = parse_json(raw)
    if not isinstance(content, dict) or content.get("format") != form:
        raise ValueError(f"it is not a {form}")
    if content.get("version") not in versions:
        known = f"version {versions[0]}" if len(versions) == 1 else f"versions {versions[0]} to {versions[-1]}"
        raise ValueError(f"its version is {content.get('version')!r:.200}, and this dpdl reads {known}")
    checksum = str(content.get("checksum"))
    blank = raw.replace(checksum.encode(), b"0" * 64)
    if not is_sha256(checksum) or hashlib.sha256(blank).hexdigest() != checksum:
        raise ValueError("its checksum is wrong: the file is damaged")
    expect_names(f"the {form.removeprefix('dpdl ')}", content, names | {"format", "version", "checksum"})
    return {name: content[name] for name in names}
