"""What a checkpoint says about a run, and how a run is put together again from it.

The header holds the version of dpdl, the fingerprint of the data set, the settings in full, the facts that the premises
ask about, sizes and floor of mu_hat, and the state of the bit generator. The arrays are the core's own state, the
initial distribution, and the pairs and counts of mu_hat. Everything else follows from the data set.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core, _packed, checkpoint
from ._setup import Facts, Setup, assemble
from .dataset import Dataset
from .reference import Reference
from .settings import ESTIMATE, Resolved, Settings

#: Bit generators that a checkpoint can hold.
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_AHEAD = ("records_ahead", "initial_ahead")


def can_be_saved(setup: Setup) -> None:
    """Refuse a generator whose state could not be put back."""
    name = type(setup.core.sampler.bit_generator).__name__
    if name not in GENERATORS:
        raise TypeError(f"a checkpoint needs a generator over one of {', '.join(GENERATORS)}, got {name}")


def save(path: Path, setup: Setup, dataset: Dataset) -> None:
    """Write a checkpoint of a run as it stands."""
    from . import __version__

    reference, generator = setup.reference, setup.core.sampler.bit_generator
    header = {
        "dpdl": __version__,
        "fingerprint": dataset.fingerprint,
        "settings": dataclasses.asdict(setup.settings),
        "facts": dataclasses.asdict(setup.facts),
        "reference": {name: getattr(reference, name) for name in ("n_samples", "floor", "n_states", "n_actions")},
        "generator": _listed(generator.state),
        "notes": setup.notes,
    }
    arrays = setup.core.state() | {
        "initial": setup.initial,
        "reference_pairs": reference.pairs,
        "reference_counts": reference.counts,
    }
    checkpoint.write(path, header, arrays)


def load(path: Path, dataset: Dataset, settings: Settings | None) -> Setup:
    """Put a run together again; a ValueError says why if the checkpoint, the data or the settings do not fit."""
    from . import __version__

    if not isinstance(dataset, Dataset):
        raise TypeError(f"dataset must be a Dataset, got {type(dataset).__name__}")
    checkpoint.sweep(path)
    header, arrays = checkpoint.read(path)
    if header["dpdl"] != __version__:
        raise ValueError(f"checkpoint {path} was written by dpdl {header['dpdl']}, this is {__version__}")
    if header["fingerprint"] != dataset.fingerprint:
        raise ValueError(f"checkpoint {path} belongs to another data set: the fingerprints differ")
    resolved = Resolved(**header["settings"])
    facts = Facts(**(header["facts"] | {"known": tuple(header["facts"]["known"])}))
    if settings is not None:
        _compare(path, settings, resolved, facts)
    reference = Reference(arrays.pop("reference_pairs"), arrays.pop("reference_counts"), **header["reference"])
    descent = dataset if facts.n_reference is None else dataset[facts.n_reference :]
    packed = _packed.Packed.build(descent, reference, resolved)
    blank = np.zeros(len(packed.c)), np.zeros(dataset.n_states), np.zeros(dataset.n_utilities)
    initial, generator = arrays.pop("initial"), _generator(header["generator"])
    setup = assemble(packed, resolved, reference, initial, facts, len(descent), generator, blank)
    _check_state(path, arrays, setup, len(descent))
    setup.core.restore(arrays)
    setup.notes = tuple(header["notes"])
    return setup


def _compare(path: Path, settings: Settings, resolved: Resolved, facts: Facts) -> None:
    if not isinstance(settings, Settings):
        raise TypeError(f"settings must be a Settings, got {type(settings).__name__}")
    for name, value in dataclasses.asdict(settings).items():
        stored = getattr(resolved, name)
        if value == ESTIMATE and facts.mixing_time_estimated:
            continue
        if value is not None and value != stored:
            raise ValueError(f"checkpoint {path} has other settings: {name} = {stored!r}, not {value!r}")


def _check_state(path: Path, arrays: dict[str, NDArray[Any]], setup: Setup, n_records: int) -> None:
    """Every array as the core has it, and no index that the core would trust out of range."""
    expected = setup.core.state()
    if arrays.keys() != expected.keys():
        raise ValueError(f"checkpoint {path} holds {sorted(arrays)}, not {sorted(expected)}")
    for name, array in arrays.items():
        wanted = expected[name]
        fits = array.shape == wanted.shape or (name in _AHEAD and array.shape == arrays[_AHEAD[0]].shape)
        if not fits or array.dtype != wanted.dtype:
            raise ValueError(
                f"checkpoint {path}: {name} is {array.dtype}{array.shape}, not {wanted.dtype}{wanted.shape}"
            )
    steps = int(arrays["counters"][0])
    for name, bound in (
        ("records_ahead", n_records),
        ("initial_ahead", len(setup.initial)),
        ("position", n_records),
        ("permutation", n_records),
        ("V_since", steps + 1),
    ):
        array = arrays[name]
        if array.size and not 0 <= array.min() <= array.max() < bound:
            raise ValueError(f"checkpoint {path}: {name} holds numbers that are out of range")
    if arrays["records_ahead"].ndim != 1 or len(arrays["records_ahead"]) > _core.BLOCK_SIZE:
        raise ValueError(f"checkpoint {path}: records_ahead is too long")


def _listed(state: Any) -> Any:
    """The state of a bit generator as JSON has it."""
    if isinstance(state, dict):
        return {name: _listed(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"dtype": state.dtype.str, "values": state.tolist()}
    return state.item() if isinstance(state, np.generic) else state


def _unlisted(state: Any) -> Any:
    if isinstance(state, dict) and state.keys() == {"dtype", "values"}:
        return np.array(state["values"], dtype=np.dtype(state["dtype"]))
    if isinstance(state, dict):
        return {name: _unlisted(value) for name, value in state.items()}
    return state


def _generator(state: dict[str, Any]) -> np.random.Generator:
    name = state["bit_generator"]
    if name not in GENERATORS:
        raise ValueError(f"the checkpoint's generator {name!r} is none of {', '.join(GENERATORS)}")
    bits = getattr(np.random, name)()
    bits.state = _unlisted(state)
    return np.random.Generator(bits)
