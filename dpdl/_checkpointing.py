"""What a checkpoint says about a run, and how a run is put together again from it.

The header has these names:

    dpdl            version of dpdl that wrote it; no other goes on with it
    fingerprint     of the data set
    settings        in full: the fields of `Resolved`
    facts           what the premises ask about: the fields of `Facts`
    reference       sizes, floor and number of samples of mu_hat
    generator       state of the bit generator, as NumPy has it; an array in it as {"dtype": ..., "values": [...]}

The arrays, for a run over n coordinates in b bins, S states, I utilities and N records:

    pairs (n or n - 1), reference_pairs, reference_counts       the coordinates, and the counts of mu_hat
    initial (S)                                                 distribution of the initial state
    x (4, n)                                                    log z, z, and the sum of x that is settled (two doubles)
    frame (3, b), moments (2, b, 16)                            of the bins: shift, tau and factor; m and q
    sums (4), steps (2)                                         kept sums; steps of the last shift and the next refresh
    V (3, S), V_since (S), lam (4, I)                           the duals and their sums
    counters (10)                                               the diagnostics
    records_ahead, initial_ahead (up to 4,096)                  draws that were made and not used yet
    position (1), permutation (N or 0)                          place in the log, and the order of the epoch

Everything else follows from the data set. What is read is checked before the core, which checks nothing, goes on with
it (`_state`): a file whose checksum is right may still have been made by anybody.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _packed, _state, checkpoint
from . import _validation as check
from ._setup import Facts, Setup, assemble
from ._spare import sweep
from .dataset import Dataset
from .reference import Reference
from .settings import ESTIMATE, Resolved, Settings

#: Bit generators that a checkpoint can hold.
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_NAMES = {"dpdl", "fingerprint", "settings", "facts", "reference", "generator"}
_SIZES = ("n_samples", "n_states", "n_actions")


def can_be_saved(setup: Setup) -> None:
    """Refuse a generator whose state could not be put back."""
    kind = type(setup.core.sampler.bit_generator)
    if kind.__name__ not in GENERATORS or kind is not getattr(np.random, kind.__name__):
        raise TypeError(f"a checkpoint needs a generator over one of {', '.join(GENERATORS)}, got {kind.__name__}")


def save(path: Path, setup: Setup, dataset: Dataset, *, new: bool = False) -> None:
    """Write a checkpoint of a run as it stands; with `new`, where there is none yet."""
    from . import __version__

    if new:
        sweep(path)
    reference, generator = setup.reference, setup.core.sampler.bit_generator
    header = {
        "dpdl": __version__,
        "fingerprint": dataset.fingerprint,
        "settings": dataclasses.asdict(setup.settings),
        "facts": dataclasses.asdict(setup.facts),
        "reference": {"floor": float(reference.floor)} | {name: int(getattr(reference, name)) for name in _SIZES},
        "generator": _listed(generator.state),
    }
    arrays = setup.core.state() | {
        "initial": setup.initial,
        "pairs": setup.packed.pairs,
        "reference_pairs": reference.pairs,
        "reference_counts": reference.counts,
    }
    checkpoint.write(path, header, arrays, new=new)


def load(path: Path, dataset: Dataset, settings: Settings | None) -> Setup:
    """Put a run together again; a ValueError says why if the checkpoint, the data or the settings do not fit."""
    if not isinstance(dataset, Dataset):
        raise TypeError(f"dataset must be a Dataset, got {type(dataset).__name__}")
    if settings is not None and not isinstance(settings, Settings):
        raise TypeError(f"settings must be a Settings, got {type(settings).__name__}")
    sweep(path)
    header, arrays = checkpoint.read(path)
    try:
        _check_header(header, dataset)
        resolved = _settings(header["settings"], dataset)
        facts = _facts(header["facts"], dataset)
        if settings is not None:
            _compare(settings, resolved, facts, dataset)
        return _put_together(header, arrays, dataset, resolved, facts)
    # Contents of a wrong kind may fail in any of these ways; whatever it was, the file is to blame, and named.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"checkpoint {path} cannot be used: {what}") from error


def refuse_other_run(path: Path, stored: Setup, wanted: Setup) -> None:
    """Raise a ValueError if a checkpoint was made of other arguments; settings are compared when it is loaded."""
    one, other = stored.reference, wanted.reference
    differences = [
        f"{field.name} = {before!r}, not {now!r}"
        for field in dataclasses.fields(Facts)
        if (before := getattr(stored.facts, field.name)) != (now := getattr(wanted.facts, field.name))
    ]
    if not np.array_equal(stored.initial, wanted.initial):
        differences.append("rho0 or initial_states")
    if one.n_samples != other.n_samples or not _same_counts(one, other):
        differences.append("reference")
    if differences:
        raise ValueError(f"checkpoint {path} is of another run, which differs in {'; '.join(differences)}")


def _same_counts(one: Reference, other: Reference) -> bool:
    return np.array_equal(one.pairs, other.pairs) and np.array_equal(one.counts, other.counts)


def _check_header(header: dict[str, Any], dataset: Dataset) -> None:
    from . import __version__

    if header.get("dpdl") != __version__:
        raise ValueError(f"it was written by dpdl {header.get('dpdl')}, and this is {__version__}")
    if header.get("fingerprint") != dataset.fingerprint:
        raise ValueError("it belongs to another data set: the fingerprints differ")
    if header.keys() != _NAMES:
        raise ValueError(f"its header has {sorted(header)}, not {sorted(_NAMES)}")


def _settings(content: Any, dataset: Dataset) -> Resolved:
    resolved = Resolved(**content)
    if resolved != resolved.resolve(dataset.n_states, dataset.n_actions, dataset.n_utilities):
        raise ValueError("its settings are not complete")
    return resolved


def _facts(content: Any, dataset: Dataset) -> Facts:
    facts = Facts(**(content | {"known": tuple(content["known"])}))
    for name in ("fresh", "disjoint", "as_stated", "mixing_time_estimated"):
        check.flag(name, getattr(facts, name))
    for name in facts.known:
        check.choice("known", name, ("psi", "slater", "mixing_time"))
    if (facts.n_utilities, facts.kind) != (dataset.n_utilities, dataset.kind):
        raise ValueError(f"it has {facts.n_utilities} utilities and kind {facts.kind!r}, unlike the data set")
    if facts.n_reference is not None:
        check.whole("n_reference", facts.n_reference, at_least=1, at_most=len(dataset) - 1)
    return facts


def _compare(settings: Settings, resolved: Resolved, facts: Facts, dataset: Dataset) -> None:
    """Refuse settings that a new run would resolve to others than these."""
    if settings.mixing_time == ESTIMATE and facts.mixing_time_estimated:
        settings = dataclasses.replace(settings, mixing_time=resolved.mixing_time)
    if settings.mixing_time != resolved.mixing_time:
        raise ValueError(f"it has other settings: mixing_time = {resolved.mixing_time}, not {settings.mixing_time}")
    wanted = settings.resolve(dataset.n_states, dataset.n_actions, dataset.n_utilities)
    for name, value in dataclasses.asdict(wanted).items():
        if value != getattr(resolved, name):
            raise ValueError(f"it has other settings: {name} = {getattr(resolved, name)!r}, not {value!r}")


def _put_together(
    header: dict[str, Any], arrays: dict[str, NDArray[Any]], dataset: Dataset, resolved: Resolved, facts: Facts
) -> Setup:
    sizes = {name: check.whole(name, header["reference"][name]) for name in _SIZES}
    if (sizes["n_states"], sizes["n_actions"]) != (dataset.n_states, dataset.n_actions):
        raise ValueError("its mu_hat has other sizes than the data set")
    floor = check.real("floor", header["reference"]["floor"])
    if not math.isclose(floor, resolved.floor, rel_tol=1e-12):
        raise ValueError(f"its mu_hat has floor {floor!r}, its settings {resolved.floor!r}")
    reference = Reference(arrays.pop("reference_pairs"), arrays.pop("reference_counts"), floor=floor, **sizes)
    descent = dataset if facts.n_reference is None else dataset[facts.n_reference :]
    packed = _packed.Packed.build(descent, reference, resolved)
    # A part of a log has the table of the whole, hence other coordinates than a log of its own with the same records.
    if not np.array_equal(arrays.pop("pairs"), packed.pairs):
        raise ValueError("it was made from part of a larger log, or of another one; give the same part of the same log")
    initial = check.distribution("initial", arrays.pop("initial"), (dataset.n_states,))
    blank = np.zeros(len(packed.c)), np.zeros(dataset.n_states), np.zeros(dataset.n_utilities)
    generator = _generator(header["generator"])
    setup = assemble(packed, resolved, reference, initial, facts, len(descent), generator, blank)
    _state.restore(setup, arrays, len(descent))
    return setup


def _listed(state: Any) -> Any:
    """The state of a bit generator as JSON has it."""
    if isinstance(state, dict):
        return {name: _listed(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"dtype": state.dtype.str, "values": state.tolist()}
    return state.item() if isinstance(state, np.generic) else state


def _unlisted(content: Any) -> Any:
    if isinstance(content, dict) and content.keys() == {"dtype", "values"}:
        return np.array(content["values"], dtype=check.choice("dtype", content["dtype"], ("<u4", "<u8")))
    if isinstance(content, dict):
        return {name: _unlisted(value) for name, value in content.items()}
    return content


def _generator(content: Any) -> np.random.Generator:
    name = check.choice("bit_generator", content["bit_generator"], GENERATORS)
    bits = getattr(np.random, name)()
    bits.state = _unlisted(content)
    outer, inner = bits.state, bits.state["state"]
    # NumPy takes places outside its buffers, and states that it never leaves, without a question.
    if name == "MT19937":
        sound = 0 <= inner["pos"] <= len(inner["key"]) and inner["key"][1:].any()
    elif name == "Philox":
        sound = 0 <= outer["buffer_pos"] <= len(outer["buffer"])
    else:
        sound = name == "SFC64" or inner["inc"] % 2 == 1
    if not sound or _listed(outer) != content:
        raise ValueError(f"its generator is in a state that no {name} has")
    return np.random.Generator(bits)
