"""Fields of an ``.npz`` file, without pickle: what `numpy.savez` writes, OmniSafe's logs among them.

A header is compared with the bytes that are there before any memory is allocated, and every member is checked by its
CRC.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: No deflated data is more than this many times as long as what it was compressed to.
DEFLATE = 1032


class Npz:
    """An open ``.npz`` file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/log.npz", obs=[0, 1, 2])
    ...     with Npz(Path(folder) / "log.npz") as file:
    ...         file.names, file.read("obs").tolist()
    (['obs'], [0, 1, 2])
    """

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:
            raise ValueError(f"it is not an .npz file: {error}") from None
        self._members = {info.filename: info for info in self._archive.infolist() if info.filename.endswith(".npy")}
        self.names = [info.filename.removesuffix(".npy") for info in self._members.values()]
        every = [info.filename for info in self._archive.infolist()]
        twice = [name for name in self._members if every.count(name) > 1]
        if twice:
            self._archive.close()
            raise ValueError(f"it has the field {twice[0].removesuffix('.npy')!r} more than once")

    def __enter__(self) -> Npz:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def read(self, name: str) -> NDArray[Any]:
        """Read a field."""
        member = self._members[f"{name}.npy"]
        try:
            with self._archive.open(member) as stream:
                dtype, shape, fortran, n_header = _header(stream)
            if dtype.hasobject:
                raise TypeError("it holds pickled objects, which are not read")
            claimed, stored = n_header + math.prod(shape) * dtype.itemsize, member.file_size
            if claimed != stored or stored > member.compress_size * DEFLATE + 64:
                raise ValueError(f"its header claims shape {shape}, and the bytes stored there are fewer or more")
            raw = self._archive.read(member)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            raise ValueError(f"field {name!r} is damaged or cannot be read: {error}") from None
        except (TypeError, ValueError) as error:
            raise type(error)(f"field {name!r}: {error}") from None
        return np.frombuffer(raw, dtype, offset=n_header).reshape(shape, order="F" if fortran else "C")


def _header(stream: Any) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Type, shape, order and length of the header of an array."""
    start = io.BytesIO(stream.read(1 << 16))  # headers are at most 10,000 characters long
    version = np.lib.format.read_magic(start)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format is not known")
    shape, fortran, dtype = readers[version](start)
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"its header claims shape {shape}")
    return dtype, shape, fortran, start.tell()
