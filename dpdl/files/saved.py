"""Objects that are saved in one JSON file each, with format, version and checksum (`dpdl.files.headers.seal`).

The content is that of the fields, by their types: dataclasses and named tuples are objects, tuples are lists, members
of enumerations are their names, infinities are text. What has `to_json` and `from_json` of its own uses these.
"""

from __future__ import annotations

import enum
import os
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

import numpy as np

from dpdl import _validation as check
from dpdl.files.atomic import replacing_file
from dpdl.files.headers import expect_names, seal, unseal


class Saved:
    """Base of what is saved by `to_json` and loaded by `from_json`; those here are for dataclasses.

    Attributes
    ----------
    FORMAT, VERSION : str, int
        Name and version of the format; files of other versions are refused.
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def to_json(self) -> dict[str, Any]:
        """Return the content as JSON can hold it, for `from_json`."""
        return {name: _written(getattr(self, name)) for name in _names(type(self))}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Make the object of what `to_json` returned."""
        expect_names(cls.FORMAT.removeprefix("dpdl "), content, set(_names(cls)))
        hints = get_type_hints(cls)
        return cls(**{name: _read(hints[name], value) for name, value in content.items()})

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one file, for `load`, atomically."""
        with replacing_file(check.path("path", path), check.flag("overwrite", overwrite)) as file:
            file.write(seal(self.FORMAT, self.VERSION, self.to_json()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; a ValueError says what is wrong with the file."""
        where = check.path("path", path)
        raw = where.read_bytes()
        try:
            return cls.from_json(unseal(raw, cls.FORMAT, cls.VERSION))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None


def _names(kind: Any) -> list[str]:
    """Names of the fields of a dataclass or a named tuple; none for other types."""
    return [field.name for field in fields(kind)] if is_dataclass(kind) else list(getattr(kind, "_fields", ()))


def _written(value: Any) -> Any:
    """A value of a field as JSON can hold it."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if names := _names(type(value)):
        return {name: _written(getattr(value, name)) for name in names}
    if isinstance(value, (list, tuple)):
        return [_written(part) for part in value]
    if isinstance(value, enum.Enum):
        return value.name
    return str(value) if isinstance(value, float) and np.isinf(value) else value


def _read(kind: Any, content: Any) -> Any:
    """The value of this type that `_written` wrote."""
    kinds = get_args(kind)
    if isinstance(kind, UnionType):  # of a type and None
        return None if content is None else _read(kinds[0], content)
    if get_origin(kind) is tuple:
        each = kinds[:1] * len(content) if kinds[1:] == (...,) else kinds
        return tuple(_read(part, value) for part, value in zip(each, content, strict=True))
    if hasattr(kind, "from_json"):
        return kind.from_json(content)
    if names := _names(kind):
        expect_names(kind.__name__, content, set(names))
        hints = get_type_hints(kind)
        return kind(**{name: _read(hints[name], value) for name, value in content.items()})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind[check.choice("status", content, tuple(kind.__members__))]
    return float(content) if kind is float else content
