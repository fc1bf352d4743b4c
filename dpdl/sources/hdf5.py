"""Fields of an HDF5 file as D4RL and DSRL write them: one array per field. Needs h5py (``pip install 'dpdl[hdf5]'``).

Sizes are compared with the bytes that are stored before any memory is allocated. Data that a file keeps elsewhere, in
other files, is not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: From this many bytes on an array must be stored in at least a thousandth of them.
LARGE, RATIO = 1 << 30, 1000


class Hdf5:
    """An open HDF5 file.

    Examples
    --------
    >>> import tempfile, h5py
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with h5py.File(f"{folder}/log.hdf5", "w") as file:
    ...         file["infos/cost"] = [0.0, 1.0]
    ...     with Hdf5(Path(folder) / "log.hdf5") as file:
    ...         file.names, file.read("infos/cost").tolist()
    (['infos/cost'], [0.0, 1.0])
    """

    def __init__(self, path: Path) -> None:
        try:
            import h5py
        except ImportError:
            raise ImportError("HDF5 files need h5py: pip install 'dpdl[hdf5]'") from None
        self.names: list[str] = []
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"it is not an HDF5 file, or a damaged one: {error}") from None
        try:  # links to other files and soft links are not visited
            self._file.visititems(lambda name, one: self.names.append(name) if isinstance(one, h5py.Dataset) else None)
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            self._file.close()
            raise ValueError(f"its list of fields is damaged: {error}") from None

    def __enter__(self) -> Hdf5:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, name: str) -> NDArray[Any]:
        """Read a field."""
        try:
            field = self._file[name]
            if field.external is not None or field.is_virtual:
                raise ValueError("its data is in other files, which are not read")
            if field.dtype.kind not in "biuf":
                raise TypeError(f"it must hold numbers, got dtype {field.dtype}")
            if field.shape is None:
                raise ValueError("it has no data")
            size, stored = field.size * field.dtype.itemsize, field.id.get_storage_size()
            if size and not stored:
                raise ValueError(f"its header claims shape {field.shape}, and no data was written")
            if size > max(LARGE, RATIO * stored):
                raise ValueError(f"its header claims shape {field.shape}, and only {stored:,} bytes are stored")
            return np.asarray(field[()])
        except (OSError, RuntimeError, KeyError, MemoryError) as error:
            raise ValueError(f"field {name!r} is damaged or cannot be read: {error}") from None
        except (TypeError, ValueError) as error:
            raise type(error)(f"field {name!r}: {error}") from None
