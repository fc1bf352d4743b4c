"""The contents of a checkpoint, and how a run is restored from it.

The header has these names:

    arithmetic      version of the arithmetic of a run; it must be that of this dpdl
    fingerprint     of the data set
    settings        in full: the fields of `Resolved`
    inputs          the other arguments: n_reference, known, whether the start is the default one, and whether the
                    mixing time was estimated
    reference       sizes, floor and number of samples of mu_hat
    generator       state of the bit generator, as NumPy gives it; an array in it as {"dtype": ..., "values": [...]}
    phase           in practice only: number of the phase, how often steps were halved, whether the last phase is over
                    and, once the start was judged, of the points to return and to start at: where its x comes from
                    and whether that keeps the constraints

The arrays, for a run over n coordinates in b bins, S states, I utilities and N records:

    pairs (n or n - 1), reference_pairs, reference_counts       the coordinates, and the counts of mu_hat
    initial (S)                                                 distribution of the initial state
    x (6, n)                                                    log z, z, acc, mark, and the settled sum (two doubles)
    frame (3, b), moments (2, b, 16)                            of the bins: shift, tau and factor; m and q
    window (9), powers (8)                                      what all pairs have in common since the last fold; power
                                                                sums, their ceiling, and whether they are valid
    sums (4), steps (2)                                         running sums; steps of the last move and next refresh
    V (3, S), V_since (S), lam (4, I)                           the duals and their sums
    counters (10)                                               the diagnostics
    records_ahead, initial_ahead (up to 4,096)                  draws that were made and not used yet
    position (1), permutation (N or 0)                          place in the log, and the order of the epoch
    phase_past (10), phase_weight (1)                           in practice only: counters of earlier phases; weight of
                                                                the penalties
    best_x (n), best_V (S), best_lam (I), best_figures (4)      the point to return, once the start was judged; its
                                                                merit, bound, reward, and time beyond the caps
    base_x (n), base_V (S), base_lam (I), base_figures (4)      the same of the point that the phase started at

Everything else follows from the data set. The core checks nothing, so `dpdl.learner.state` checks the arrays before
the core gets them: a correct checksum does not say who wrote the file.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _core
from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.data.reference import Reference, estimate_reference
from dpdl.files.atomic import FileLock, remove_leftovers
from dpdl.learner import checkpoint_file, phases, state
from dpdl.learner.layout import KNOWABLE, Inputs, Layout
from dpdl.learner.phases import Judged, Phase, Start
from dpdl.learner.run import Run
from dpdl.question import pose
from dpdl.settings import ESTIMATE, Resolved, Settings

#: Increases whenever the same seed would give other bits, or the state has other contents.
ARITHMETIC = 4
#: Bit generators that a checkpoint can hold.
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_PRACTICE = "phase"
_POINTS, _FIGURES = ("best", "base"), ("merit", "bound", "reward", "beyond")
_NAMES = {"arithmetic", "fingerprint", "settings", "inputs", "reference", "generator"}
_INPUTS = {"n_reference", "known", "default_start", "mixing_time_estimated", "initial_estimated"}
_SIZES = ("n_samples", "n_states", "n_actions")


def check_generator(generator: np.random.Generator) -> None:
    """Raise a TypeError if the state of a generator cannot be stored."""
    kind = type(generator.bit_generator)
    if kind.__name__ not in GENERATORS or kind is not getattr(np.random, kind.__name__):
        raise TypeError(f"a checkpoint needs a generator over one of {', '.join(GENERATORS)}, got {kind.__name__}")


def save(path: Path, run: Run, held: FileLock, *, new: bool = False) -> None:
    """Write a checkpoint of a run, to which the lock `held` is moved; with `new`, the path must not exist."""
    if new:
        remove_leftovers(path)
    layout, reference, inputs = run.layout, run.layout.reference, run.layout.inputs
    header = {
        "arithmetic": ARITHMETIC,
        "fingerprint": layout.dataset.fingerprint,
        "settings": dataclasses.asdict(layout.settings),
        "inputs": {
            "n_reference": inputs.n_reference,
            "known": list(inputs.known),
            "default_start": layout.default_start,
            "mixing_time_estimated": layout.mixing_time_estimated,
            "initial_estimated": inputs.initial_estimated,
        },
        "reference": {"floor": float(reference.floor)} | {name: int(getattr(reference, name)) for name in _SIZES},
        "generator": generator_to_json(run.core.sampler.bit_generator),
    }
    arrays = run.core.state() | {
        "initial": inputs.initial,
        "pairs": layout.coordinates.pairs,
        "reference_pairs": reference.pairs,
        "reference_counts": reference.counts,
    }
    if layout.settings.profile == "practice":
        header[_PRACTICE], of_phase = _phase_contents(run.phase)
        arrays |= of_phase
    checkpoint_file.write(path, header, arrays, new=new, held=held)


def load(path: Path, dataset: Dataset, settings: Settings | None = None) -> Run:
    """Restore a run; a ValueError says why if the checkpoint, the data or the settings do not fit together."""
    check.instance("dataset", dataset, Dataset)
    if settings is not None:
        check.instance("settings", settings, Settings)
    remove_leftovers(path)
    header, arrays = checkpoint_file.read(path)
    try:
        _check_header(header, dataset)
        run = _restored(header, arrays, dataset)
        if settings is not None:
            _compare(settings, run.layout)
        return run
    # Invalid contents may fail in any of these ways; the message names the file.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"checkpoint {path} cannot be used: {what}") from error


def refuse_other_run(path: Path, stored: Layout, wanted: Layout) -> None:
    """Raise a ValueError if a checkpoint was made with other inputs; `load` compares the settings."""
    one, other = stored.reference, wanted.reference
    pairs = [
        ("n_reference", stored.inputs.n_reference, wanted.inputs.n_reference),
        ("known", stored.inputs.known, wanted.inputs.known),
        ("default_start", stored.default_start, wanted.default_start),
    ]
    differences = [f"{name} = {before!r}, not {now!r}" for name, before, now in pairs if before != now]
    if not np.array_equal(stored.inputs.initial, wanted.inputs.initial):
        differences.append("rho0 or initial_states")
    if one.n_samples != other.n_samples or not _same_counts(one, other):
        differences.append("reference")
    if differences:
        raise ValueError(f"checkpoint {path} belongs to another run, which differs in {'; '.join(differences)}")


def _same_counts(one: Reference, other: Reference) -> bool:
    return np.array_equal(one.pairs, other.pairs) and np.array_equal(one.counts, other.counts)


def _check_header(header: dict[str, Any], dataset: Dataset) -> None:
    if header.get("arithmetic") != ARITHMETIC:
        found = header.get("arithmetic")
        raise ValueError(f"its arithmetic is version {found!r}, that of this dpdl is {ARITHMETIC}")
    if header.get("fingerprint") != dataset.fingerprint:
        raise ValueError("it belongs to another data set: the fingerprints differ")
    if header.keys() - {_PRACTICE} != _NAMES:
        raise ValueError(f"its header has {sorted(header)}, not {sorted(_NAMES)}")


def _compare(settings: Settings, layout: Layout) -> None:
    """Raise a ValueError unless the settings resolve to those of the layout."""
    stored, data = layout.settings, layout.dataset
    if settings.mixing_time == ESTIMATE and layout.mixing_time_estimated:
        settings = dataclasses.replace(settings, mixing_time=stored.mixing_time)
    if settings.mixing_time != stored.mixing_time:
        raise ValueError(f"it has other settings: mixing_time = {stored.mixing_time}, not {settings.mixing_time}")
    wanted = settings.resolve(data.n_states, data.n_actions, data.n_utilities)
    for name, value in dataclasses.asdict(wanted).items():
        if value != getattr(stored, name):
            raise ValueError(f"it has other settings: {name} = {getattr(stored, name)!r}, not {value!r}")


def _restored(header: dict[str, Any], arrays: dict[str, NDArray[Any]], dataset: Dataset) -> Run:
    settings = Resolved(**header["settings"])
    dataset = pose(dataset, *settings.asked)
    if settings != settings.resolve(dataset.n_states, dataset.n_actions, dataset.n_utilities):
        raise ValueError("its settings are not complete")
    given = header["inputs"]
    if given.keys() != _INPUTS:
        raise ValueError(f"its inputs have {sorted(given)}, not {sorted(_INPUTS)}")
    n_reference = given["n_reference"]
    if n_reference is not None:
        check.whole("n_reference", n_reference, at_least=1, at_most=len(dataset) - 1)
    inputs = Inputs(
        initial=check.distribution("initial", arrays.pop("initial"), (dataset.n_states,)),
        n_reference=n_reference,
        known=check.choices("known", given["known"], KNOWABLE),
        initial_estimated=check.flag("initial_estimated", given["initial_estimated"]),
    )
    layout = Layout.assemble(
        dataset,
        settings,
        inputs,
        check.flag("mixing_time_estimated", given["mixing_time_estimated"]),
        _reference(header["reference"], arrays, settings, dataset, n_reference),
        None,
        check.flag("default_start", given["default_start"]),
    )
    # A part of a log has the table of the whole log, hence other coordinates than a separate log of the same records.
    if not np.array_equal(arrays.pop("pairs"), layout.coordinates.pairs):
        raise ValueError("its pairs are not those of this log; if it was made from part of a log, pass the same part")
    run = Run(layout, _phase(header, arrays, layout))
    state.restore(run, arrays)
    return run


def _phase_contents(phase: Phase) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What of a phase, other than its core, goes into the header and into the arrays."""
    content: dict[str, Any] = {name: getattr(phase, name) for name in ("number", "halvings", "is_over", "start")}
    past = np.zeros(len(_core.COUNTERS), dtype=np.int64) if phase.past is None else phase.past
    arrays: dict[str, NDArray[Any]] = {"phase_past": past, "phase_weight": np.array([phase.weight])}
    for name in _POINTS:
        point = getattr(phase, name)
        if point is not None:
            content[name] = {"phase": point.phase, "kept": point.kept}
            arrays |= {f"{name}_{part}": getattr(point, part) for part in ("x", "V", "lam")}
            arrays[f"{name}_figures"] = np.array([getattr(point, figure) for figure in _FIGURES])
    return content, arrays


def _phase(header: dict[str, Any], arrays: dict[str, NDArray[Any]], layout: Layout) -> Phase:
    """The phase of a checkpoint with a blank core; what belongs to the phase is taken out of the arrays."""
    sampler = layout.sampler(generator_from_json(header["generator"]))
    data = layout.dataset
    blank = np.zeros(len(layout.coordinates.c)), np.zeros(data.n_states), np.zeros(data.n_utilities)
    if (layout.settings.profile == "practice") != (_PRACTICE in header):
        raise ValueError("a phase belongs to a run in practice, and to no other")
    if _PRACTICE not in header:
        return Phase(_core.LazyCore(layout, sampler, *blank))
    content, last = dict(header[_PRACTICE]), (0, *phases.ends(layout))
    number = check.whole("phase number", content.pop("number"), at_most=len(last) - 2)
    halvings = check.whole("halvings", content.pop("halvings"), at_most=2 * number)
    is_over, start = check.flag("is_over", content.pop("is_over")), content.pop("start")
    start = None if start is None else Start(*check.numbers_array("start", start, shape=(3,)).tolist())
    past, weight = arrays.pop("phase_past"), arrays.pop("phase_weight")
    state.check_past(past, last[number])
    weight = check.numbers_array("phase_weight", weight, shape=(1,), at_least=0)
    points: dict[str, Judged] = {}
    for name in _POINTS if content else ():
        parts = arrays.pop(f"{name}_x"), arrays.pop(f"{name}_V"), arrays.pop(f"{name}_lam")
        state.check_point(layout, name, *parts)
        figures = check.numbers_array(f"{name}_figures", arrays.pop(f"{name}_figures"), shape=(len(_FIGURES),))
        found = content.pop(name)
        found_in = check.whole(f"phase of {name}", found.pop("phase"), at_most=number + is_over)
        kept = check.flag("kept", found.pop("kept"))
        merit, bound, reward, beyond = figures.tolist()
        points[name] = Judged(*parts, merit, bound, reward, beyond, kept, found_in)
    if content:
        raise ValueError(f"its phase has {sorted(content)} as well")
    core = _core.LazyCore(phases.layout_of(layout, number, halvings), sampler, *blank)
    return Phase(core, number, halvings, is_over, float(weight[0]), past, **points, start=start)


def _reference(
    content: Any, arrays: dict[str, NDArray[Any]], settings: Resolved, dataset: Dataset, n_reference: int | None
) -> Reference:
    sizes = {name: check.whole(name, content[name]) for name in _SIZES}
    if (sizes["n_states"], sizes["n_actions"]) != (dataset.n_states, dataset.n_actions):
        raise ValueError("its mu_hat has other sizes than the data set")
    floor = check.real("floor", content["floor"])
    if not math.isclose(floor, settings.floor, rel_tol=1e-12):
        raise ValueError(f"its mu_hat has floor {floor!r}, its settings {settings.floor!r}")
    reference = Reference(arrays.pop("reference_pairs"), arrays.pop("reference_counts"), floor=floor, **sizes)
    if n_reference is not None and not _same_counts(reference, estimate_reference(dataset[:n_reference], floor)):
        raise ValueError(f"its mu_hat does not count the first {n_reference} transitions, as it says")
    return reference


def generator_to_json(bit_generator: np.random.BitGenerator) -> Any:
    """Return the state of a bit generator as JSON values."""
    return _listed(bit_generator.state)


def _listed(state: Any) -> Any:
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


def generator_from_json(content: Any) -> np.random.Generator:
    """Make a generator in the state that `generator_to_json` wrote."""
    name = check.choice("bit_generator", content["bit_generator"], GENERATORS)
    bits = getattr(np.random, name)()
    bits.state = _unlisted(content)
    outer, inner = bits.state, bits.state["state"]
    # NumPy accepts positions outside its buffers and degenerate states without an error.
    if name == "MT19937":
        sound = 0 <= inner["pos"] <= len(inner["key"]) and inner["key"][1:].any()
    elif name == "Philox":
        sound = 0 <= outer["buffer_pos"] <= len(outer["buffer"])
    else:
        sound = name == "SFC64" or inner["inc"] % 2 == 1
    if not sound or _listed(outer) != content:
        raise ValueError(f"its generator has a state that is not valid for {name}")
    return np.random.Generator(bits)
