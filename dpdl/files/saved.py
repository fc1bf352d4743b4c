"""Objects that are saved in one JSON file each, with format, version and checksum (`dpdl.files.headers.seal`)."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

from dpdl import _validation as check
from dpdl.files.atomic import replacing_file
from dpdl.files.headers import seal, unseal


class Saved:
    """Base of what is saved by `to_json` and loaded by `from_json`.

    Attributes
    ----------
    FORMAT, VERSION : str, int
        Name and version of the format; files of other versions are refused.
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def to_json(self) -> dict[str, Any]:
        """Return the content as JSON can hold it, for `from_json`."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Make the object of what `to_json` returned."""
        raise NotImplementedError

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
            version, content = unseal(raw, cls.FORMAT, cls.VERSION)
            if version < cls.VERSION:
                raise ValueError(f"its version is {version}; this dpdl reads version {cls.VERSION}")
            return cls.from_json(content)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
