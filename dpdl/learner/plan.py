"""Folders of checkpoints: one file for each run, and a plan, in the same format, of what the runs follow from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl.data.dataset import Dataset
from dpdl.files.atomic import remove_leftovers
from dpdl.learner import checkpoint_file
from dpdl.learner.checkpoint import ARITHMETIC

#: Name of the file.
PLAN = "plan"

Arrays = dict[str, NDArray[Any]]


def store(
    folder: Path, runs: str, dataset: Dataset, plan: dict[str, Any], arrays: Arrays, *, resume: bool, ignore: set[str]
) -> dict[str, Any] | None:
    """Store a plan in a new folder and return None; or, with `resume`, compare it with the stored one and return that.

    `plan` and `arrays` are what the runs follow from, as JSON has it and as arrays; names of the plan in `ignore` may
    differ from the stored ones. `runs` is what a run is called.
    """
    remove_leftovers(folder / PLAN)
    if check_folder(folder, resume=resume):
        folder.mkdir(exist_ok=True)
        header = {"runs": runs, "arithmetic": ARITHMETIC, "fingerprint": dataset.fingerprint, "plan": plan}
        checkpoint_file.write(folder / PLAN, header, arrays, new=True)
        return None
    stored, stored_arrays = read(folder, runs, dataset)
    for name in plan.keys() | stored.keys():
        before, now = stored.get(name), plan.get(name)
        if before != now and name not in ignore:
            raise ValueError(f"checkpoint: {folder} belongs to another call: {name} = {before!r}, not {now!r}")
    for name, array in arrays.items():
        if name not in stored_arrays or not np.array_equal(stored_arrays[name], array):
            raise ValueError(f"checkpoint: {folder} belongs to another call: {name} differs")
    return stored


def check_folder(folder: Path, *, resume: bool) -> bool:
    """Whether a folder is empty or absent; raises if checkpoints cannot be put there."""
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"checkpoint: there is no folder {folder.parent} to put {folder.name} into")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"checkpoint: {folder} is not a folder, which several checkpoints need")
    is_new = not folder.exists() or not any(folder.iterdir())
    if not is_new and not resume:
        raise FileExistsError(f"checkpoint: {folder} is not empty; resume=True resumes what is there")
    return is_new


def read(folder: Path, runs: str, dataset: Dataset) -> tuple[dict[str, Any], Arrays]:
    """Return the plan and the arrays of a folder; a ValueError says why they cannot be used."""
    if not (folder / PLAN).exists():
        raise FileNotFoundError(f"checkpoint: {folder} has no file {PLAN!r}: nothing to resume")
    header, arrays = checkpoint_file.read(folder / PLAN)
    if header.keys() != {"runs", "arithmetic", "fingerprint", "plan"} or not isinstance(header["plan"], dict):
        raise ValueError(f"checkpoint {folder / PLAN} cannot be used: it is not a plan")
    if header["runs"] != runs:
        raise ValueError(f"checkpoint {folder} holds {header['runs']!r} checkpoints, not {runs!r} checkpoints")
    if header["arithmetic"] != ARITHMETIC:
        found = header["arithmetic"]
        raise ValueError(f"checkpoint {folder} has arithmetic version {found!r}, that of this dpdl is {ARITHMETIC}")
    if header["fingerprint"] != dataset.fingerprint:
        raise ValueError(f"checkpoint {folder} belongs to another data set: the fingerprints differ")
    return header["plan"], arrays
