"""What subcommands share: exit codes, the folder OUT, and JSON for scripts."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

OK, INFEASIBLE, NOT_ENOUGH_DATA, MISFIT, INTERRUPTED = 0, 2, 3, 5, 130


def plain(value: Any) -> Any:
    """A value as JSON can hold it: enumerations by name, data classes as objects, numbers that are not finite as null.

    Examples
    --------
    >>> plain({"share": np.float64(0.5), "bound": float("inf"), "pairs": (1, np.int64(2))})
    {'share': 0.5, 'bound': None, 'pairs': [1, 2]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [field.name for field in dataclasses.fields(value) if field.repr and not field.name.startswith("_")]
        return {name: plain(getattr(value, name)) for name in shown}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def show(options: Any, content: Mapping[str, Any], text: str, files: Mapping[str, Path] | None = None) -> None:
    """Print the outcome: text and where files are, or with ``--json`` one object."""
    if options.json:
        print(json.dumps(plain({**content, "files": {what: str(path) for what, path in (files or {}).items()}})))
        return
    print(text)
    for what, path in (files or {}).items():
        print(f"{what + ':':<12}{path}" if what != next(iter(files or {})) else f"\n{what + ':':<12}{path}")


class Folder:
    """The folder OUT: refused before any work if it holds something else, files replaced only with ``--overwrite``."""

    def __init__(self, path: Path, names: Sequence[str], *, overwrite: bool) -> None:
        self.path, self.names = path, names
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file, and --out must be a folder")
        there = [name for name in names if (path / name).exists()]
        if there and not overwrite:
            raise ValueError(f"{path} has {', '.join(there)} already; --overwrite replaces them")

    def clear(self) -> None:
        """Make the folder, without what an earlier run has written: a policy that is no longer certified must go."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in self.names:
            (self.path / name).unlink(missing_ok=True)

    def __truediv__(self, name: str) -> Path:
        assert name in self.names, name
        return self.path / name
