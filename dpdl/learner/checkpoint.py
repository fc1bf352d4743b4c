"""Checkpoints: one file with everything that is needed to continue a run bit for bit.

The file is an uncompressed NumPy archive (.npz, a zip file whose checksums are verified when it is read; nothing in it
is pickled): the arrays of the core (`LazyCore.state`), those of mu_hat and the initial distribution, and a header in
JSON with what the run follows from:

    arithmetic      version of the arithmetic of a run; it must be that of this dpdl
    fingerprint     of the log
    settings        as the caller stated them
    completed       psi, slater, T, the mixing time and the order, stated or completed from the log
    inputs, reference_given, start      the other arguments
    digest          SHA-256 of the initial distribution, the counts of mu_hat and the coordinates
    n_samples       of mu_hat
    generator       state of the bit generator, as NumPy gives it

A checkpoint is written to a temporary file in the same folder, flushed to the disk and renamed: at every moment the
path holds a complete checkpoint, the old or the new one. A process that is killed leaves its temporary file behind,
which the next one writes over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _core
from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.data.reference import Reference
from dpdl.files.atomic import FileLock, refuse, replacing_file
from dpdl.learner.defaults import plan
from dpdl.learner.layout import PLAN, Inputs, Layout
from dpdl.learner.run import Run
from dpdl.question import pose
from dpdl.result import Result
from dpdl.settings import Resolved, Settings
from dpdl.stopping import Status

#: Increases whenever the same seed would give other bits, or the state has other contents.
ARITHMETIC = 7
#: Bit generators that a checkpoint can hold.
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
#: The file in a folder of checkpoints that is locked while runs use it.
LOCK = "lock"
_HEADER = "header"
_COMPLETED = ("psi", "slater", "T", "mixing_time", "order")
_INPUTS = ("n_reference", "strict", "initial_estimated")

Arrays = dict[str, NDArray[Any]]


def save(path: Path, run: Run, held: FileLock, *, new: bool = False) -> None:
    """Write a checkpoint of a run, to which the lock `held` is moved; with `new`, the path must not exist."""
    layout = run.layout
    header = _origin(layout) | {"generator": run.core.sampler.bit_generator.state}
    arrays = run.core.state() | {
        "initial": layout.inputs.initial,
        "reference_pairs": layout.reference.pairs,
        "reference_counts": layout.reference.counts,
    }
    write(path, header, arrays, new=new, held=held)


def load(path: Path, log: Dataset, settings: Settings | None = None, like: Layout | None = None) -> Run:
    """Restore a run, and change no file; a ValueError says why if checkpoint, log and what is asked for disagree."""
    check.instance("log", log, Dataset)
    if settings is not None:
        check.instance("settings", settings, Settings)
    header, arrays = read(path)
    if header["fingerprint"] != log.fingerprint:
        raise _unusable(path, "it belongs to another log: the fingerprints differ")
    if settings is not None:
        _compare(path, header["settings"], json.loads(settings.to_json()))
    layout = like or _layout(header, arrays, log)
    _compare(path, header, _origin(layout))
    sampler, log = layout.sampler(_generator(header["generator"])), layout.log
    blank = np.zeros(len(layout.coordinates.c)), np.zeros(log.n_states), np.zeros(log.n_utilities)
    run = Run(layout, _core.LazyCore(layout, sampler, *blank))
    run.core.restore({name: arrays[name] for name in run.core.state()})
    return run


@dataclass(frozen=True)
class Peek:
    """The state of a run according to its checkpoint.

    Attributes
    ----------
    n_steps, T : int
        Steps taken when it was written, and steps planned.
    written : datetime
        When it was written.
    settings : Settings
        As the caller stated them.
    lam, lam_mean : arrays, shape (I,)
        Multipliers, and their average.
    """

    path: Path
    n_steps: int
    T: int
    written: datetime
    settings: Settings = field(repr=False)
    lam: Array
    lam_mean: Array

    def result(self, log: Dataset) -> Result:
        """The result of the steps in the checkpoint, with status RUNNING; the run may go on meanwhile."""
        return load(self.path, log).result(Status.RUNNING)


def peek(path: str | os.PathLike[str]) -> Peek:
    """Look at the checkpoint of a run, which may be in progress; nothing is locked or changed.

    Examples
    --------
    >>> import tempfile
    >>> from dpdl import Dataset, learn
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = {"T": 1000, "step_limit": 300, "checkpoint": Path(folder, "run")}
    ...     _ = learn(log, gamma=0.5, psi=2, slater=1, rho0=[1.0], rng=0, **options)
    ...     seen = peek(Path(folder, "run"))
    ...     result = seen.result(log)
    >>> seen.n_steps, seen.T, result.status.name
    (300, 1000, 'RUNNING')
    """
    where = Path(check.path("path", path))
    if where.is_dir():
        runs = sorted(where.glob("[!.]*-*"))
        hint = f"peek at a checkpoint in it, for instance {runs[0]}" if runs else "it has no checkpoint"
        raise IsADirectoryError(f"{where} is a folder: {hint}")
    header, arrays = read(where)
    n_steps, (log_lam, _, total, low) = int(arrays["counters"][0]), arrays["lam"]
    return Peek(
        path=where,
        n_steps=n_steps,
        T=header["completed"]["T"],
        written=datetime.fromtimestamp(where.stat().st_mtime).astimezone(),
        settings=Settings(**header["settings"]),
        lam=np.exp(log_lam),
        lam_mean=(total + low) / n_steps if n_steps else np.exp(log_lam),
    )


def _origin(layout: Layout) -> dict[str, Any]:
    """What the bits of a run follow from, except its seed; two runs with the same origin are the same run."""
    settings, inputs, reference = layout.settings, layout.inputs, layout.reference
    parts = (inputs.initial, reference.pairs, reference.counts, layout.coordinates.pairs)
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))
    return {
        "arithmetic": ARITHMETIC,
        "fingerprint": layout.log.fingerprint,
        "settings": json.loads(settings.to_json()),
        "completed": {name: getattr(settings, name) for name in _COMPLETED},
        "inputs": {name: getattr(inputs, name) for name in _INPUTS} | {"known": list(inputs.known)},
        "reference_given": inputs.reference is not None,
        "start": layout.start_name,
        "n_samples": int(reference.n_samples),
        "digest": digest.hexdigest(),
    }


def _layout(header: dict[str, Any], arrays: Arrays, log: Dataset) -> Layout:
    """The layout of a stored run; the plan is made again, it is as good as it was."""
    stated = Settings(**header["settings"])
    log = pose(log, *stated.asked)
    settings: Resolved = replace(stated, **header["completed"]).resolve(
        log.n_states, log.n_actions, log.n_utilities, stated
    )
    counts = arrays["reference_pairs"], arrays["reference_counts"], header["n_samples"]
    reference = Reference(*counts, settings.floor, log.n_states, log.n_actions)
    known = tuple(header["inputs"]["known"])
    inputs = Inputs(
        **(header["inputs"] | {"known": known}),
        initial=arrays["initial"],
        reference=reference if header["reference_given"] else None,
    )
    start = header["start"]
    aim = plan(log, stated, inputs.initial) if start == PLAN else None
    return Layout.assemble(log, settings, inputs, reference, start, plan=aim)


def _compare(path: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise a ValueError that names the first difference."""
    for name, value in wanted.items():
        if isinstance(value, dict):
            _compare(path, stored[name], value)
        elif stored[name] != value and name == "digest":
            raise _unusable(path, "rho0, reference or the part of the log differ")
        elif stored[name] != value:
            raise _unusable(path, f"it belongs to another run: {name} = {stored[name]!r}, not {value!r}")


def check_generator(generator: np.random.Generator) -> None:
    """Raise a TypeError if the state of a generator cannot be stored."""
    kind = type(generator.bit_generator)
    if kind.__name__ not in GENERATORS or kind is not getattr(np.random, kind.__name__):
        raise TypeError(f"a checkpoint needs a generator over one of {', '.join(GENERATORS)}, got {kind.__name__}")


def _generator(state: dict[str, Any]) -> np.random.Generator:
    """A generator in a stored state."""
    bits = getattr(np.random, check.choice("bit_generator", state["bit_generator"], GENERATORS))()
    bits.state = state
    return np.random.Generator(bits)


# ---- The header in JSON; arrays are in the state of some bit generators ----


def _plain(value: Any) -> Any:
    return {"dtype": value.dtype.str, "values": value.tolist()} if isinstance(value, np.ndarray) else value.item()


def _restored(content: dict[str, Any]) -> Any:
    is_array = content.keys() == {"dtype", "values"}
    return np.array(content["values"], dtype=content["dtype"]) if is_array else content


# ---- The file ----


def write(
    path: Path, header: dict[str, Any], arrays: Arrays, *, new: bool = False, held: FileLock | None = None
) -> None:
    """Write a header and arrays to `path` atomically; an OSError leaves an existing file unchanged.

    With `new`, raise FileExistsError if the path exists, even if it was created concurrently. `held` is the lock on the
    existing checkpoint, which is moved to the written one.
    """
    text = np.frombuffer(json.dumps(header, default=_plain).encode(), dtype=np.uint8)
    try:
        with replacing_file(path, not new, held) as file:
            _write_npz(file, {_HEADER: text, **arrays})
    except FileExistsError:
        refuse_existing(path)
        raise


def _write_npz(file: IO[bytes], arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays as `numpy.savez` does, and close the archive also if the disk is full."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Read header and arrays of a checkpoint; a ValueError says what is wrong with the file."""
    if not os.path.lexists(path):
        raise FileNotFoundError(f"there is no checkpoint {path}")
    if not path.is_file():  # opening a pipe would block
        raise _unusable(path, "it is not a regular file")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop(_HEADER).tobytes(), object_hook=_restored)
    except Exception as error:  # zipfile and NumPy raise many kinds when they read a damaged archive
        raise _unusable(path, f"it is damaged, or no checkpoint ({error})") from None
    if header["arithmetic"] != ARITHMETIC:
        version = header["arithmetic"]
        raise _unusable(path, f"its arithmetic is version {version!r}, that of this dpdl is {ARITHMETIC}")
    return header, arrays


def refuse_existing(path: Path) -> None:
    """Raise a FileExistsError if a new run would replace something, a BlockingIOError if another run is using it."""
    if path.is_dir():
        refuse(path, "it is a folder, and a checkpoint is a file")
    if path.is_file():
        with FileLock() as free, contextlib.suppress(PermissionError):
            free.take(path)
    if os.path.lexists(path):
        refuse(path, "it exists; continue it with dpdl.resume, or remove it to start again")


def take_folder(folder: Path, held: FileLock, *, resume: bool) -> None:
    """Make a folder of checkpoints and lock it; raise if it is in use, or not empty while `resume` is not set."""
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"checkpoint: there is no folder {folder.parent} to put {folder.name} into")
    if folder.exists() and (not folder.is_dir() or (not resume and any(folder.iterdir()))):
        raise FileExistsError(f"checkpoint: {folder} must be an empty folder, or absent; resume=True resumes one")
    folder.mkdir(exist_ok=True)
    (folder / LOCK).touch()
    held.take(folder / LOCK)


def _unusable(path: Path, what: str) -> ValueError:
    return ValueError(f"checkpoint {path} cannot be used: {what}")
