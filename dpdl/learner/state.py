"""What the state of a run must satisfy, checked before a run is resumed from a state that was read from a file.

`restore` puts the arrays of a checkpoint into a core; `dpdl.learner.checkpoint` and src_cython/_lazy.pxd define them.
The core trusts its inputs, so everything that follows from the algorithm is checked here: indices and counts in their
ranges; V, lam and x in their sets; derived arrays (z, lam, factor, moments, running sums, power sums) equal to what
they are derived from; averages inside the sets that they are averages over. A state that passes need not be the one
that the run had, but a run can continue from it.

The checks allow for rounding and nothing else, by two relative bounds:

    slack   what is updated every step accumulates some dozens of roundings (2^-53) a step until the next refresh, and
            one for every pair when it is recomputed; the starting point may leave its sets by FEASIBLE
    drift   what is never recomputed accumulates such roundings over all steps of the run
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _core
from dpdl._validation import Array
from dpdl.learner.layout import FEASIBLE, Layout
from dpdl.learner.run import Run

Arrays = dict[str, NDArray[Any]]

EPS = float(np.finfo(float).eps)
LARGEST = float(np.finfo(float).max)
#: Tolerance for values that may be subnormal and so have fewer digits.
TINY = 1e-300
#: Two implementations of exp differ by at most this many units in the last place.
EXP_ULPS = 4
_AHEAD = ("records_ahead", "initial_ahead")


def restore(run: Run, arrays: Arrays) -> None:
    """Put a state into the core of a run; a ValueError names the first value that no run can have."""
    blank, layout = run.core.state(), run.core.layout
    refresh = layout.refresh
    _check_layout(arrays, blank)
    with np.errstate(all="ignore"):  # overflows and NaNs fail one of the checks
        _check_counters(arrays, layout.settings.T, refresh)
        _check_draws(arrays, layout, run.n_steps)
        steps = int(arrays["counters"][0])
        slack = FEASIBLE + 64 * EPS * (64 + len(layout.coordinates.c) + min(steps, refresh))
        drift = slack + 64 * EPS * steps
        _check_duals(arrays, layout, drift)
        n_past = int(arrays["steps"][0]) - steps // refresh * refresh  # steps from the last refresh to the last move
        _check_window(arrays, n_past, slack)
        _check_x(arrays, layout, n_past, slack, drift)
        run.core.restore(arrays)
        _check_x_sums(arrays, run, n_past, slack, drift)


def check_past(past: NDArray[np.int64], steps: int) -> None:
    """The counters of earlier phases, which took this many steps."""
    if past.shape != (len(_core.COUNTERS),) or past.dtype != np.int64:
        raise ValueError(f"phase_past is {past.dtype}{past.shape}, not int64({len(_core.COUNTERS)},)")
    _within("phase_past", past, 0, 2**62)
    _within("steps of earlier phases", past[0], steps, steps)


def check_point(layout: Layout, name: str, x: Array, V: Array, lam: Array) -> None:
    """A point of earlier phases, which is a start or an average, lies in the sets of the run."""
    sizes = (len(layout.coordinates.c), layout.dataset.n_states, layout.dataset.n_utilities)
    for part, array, size in zip(("x", "V", "lam"), (x, V, lam), sizes, strict=True):
        if array.shape != (size,) or array.dtype != np.float64:
            raise ValueError(f"{name}_{part} is {array.dtype}{array.shape}, not float64({size},)")
    room = 1 + FEASIBLE + 64 * EPS * (64 + len(x) + layout.settings.T)
    constants = layout.constants
    _within(f"{name}_x", x, 0, room * _largest_x(layout))
    _within(f"sum of {name}_x", x.sum(), 0, room * constants.B1)
    _within(f"sum of {name}_x/mu_hat", layout.coordinates.c @ x, 0, room * constants.B2)
    _within(f"{name}_V", V, -room * constants.radius_V, room * constants.radius_V)
    _within(f"{name}_lam", lam, 0, room * constants.radius_lam)
    _within(f"sum of {name}_lam", lam.sum(), 0, room * constants.radius_lam)


def _check_layout(arrays: Arrays, blank: Arrays) -> None:
    """Every array has the dtype and the shape that the core expects."""
    if arrays.keys() != blank.keys():
        raise ValueError(f"it holds the arrays {sorted(arrays)}, not {sorted(blank)}")
    n_ahead = arrays[_AHEAD[0]].size
    for name, array in arrays.items():
        shape = (n_ahead,) if name in _AHEAD else blank[name].shape
        if array.shape != shape or array.dtype != blank[name].dtype:
            raise ValueError(f"{name} is {array.dtype}{array.shape}, not {blank[name].dtype}{shape}")


def _check_counters(arrays: Arrays, T: int, refresh: int) -> None:
    """The diagnostics, the steps of the last move and of the next refresh, and of the last change of each V."""
    _within("counters", arrays["counters"], 0, 2**63 - 1)
    count = dict(zip(_core.COUNTERS, arrays["counters"].tolist(), strict=True))
    n_bins, steps, jumps = arrays["frame"].shape[1], count["steps"], count["jumps"]
    refreshes = steps // refresh
    _within("number of steps in the four cases", sum(count[f"case_{k}"] for k in (1, 2, 3, 4)), steps, steps)
    for name, low, high in (
        ("steps", 0, T),
        ("capped", 0, steps),
        ("iterations", 0, _core.MAX_ITERATIONS * steps),
        ("refreshes", refreshes, refreshes),
        ("jumps", 0, steps),
        # A refresh rebases every bin, a jump does so once or twice, and any other move may.
        ("rebases", n_bins * (refreshes + jumps), n_bins * (refreshes + 2 * jumps + steps - count["case_1"])),
    ):
        _within(f"counter {name}", count[name], low, high)
    last = refreshes * refresh
    _within("steps", arrays["steps"], [last, last + refresh], [steps, last + refresh])
    _within("V_since", arrays["V_since"], 0, steps)


def _check_draws(arrays: Arrays, layout: Layout, before: int) -> None:
    """Draws made ahead: in range and, where the order of the log determines them, the right ones.

    `before` steps were taken in earlier phases, whose epoch goes on.
    """
    records, states, permutation = arrays["records_ahead"], arrays["initial_ahead"], arrays["permutation"]
    n_ahead, steps, order = len(records), int(arrays["counters"][0]), layout.settings.order
    n_records, initial = len(layout.descent), layout.inputs.initial
    repeats = layout.descent.repeats
    n_rows = n_records if repeats is None else len(repeats)
    _within("number of draws made ahead", n_ahead, 0, min(_core.BLOCK_SIZE, layout.settings.T - steps))
    _within("records_ahead", records, 0, n_rows - 1)
    _within("initial_ahead", states, 0, len(initial) - 1)
    absent = np.flatnonzero(initial[states] == 0)
    if absent.size:
        raise ValueError(f"initial_ahead[{absent[0]}] = {states[absent[0]]}, which has probability zero")
    _within("permutation", permutation, 0, n_rows - 1)
    if len(permutation) and (np.bincount(permutation, minlength=n_rows) != (1 if repeats is None else repeats)).any():
        raise ValueError("permutation does not hold every record as often as the log")
    position = 0 if order == "replacement" else (before + steps + n_ahead) % n_records
    _within("position", arrays["position"], position, position)
    expected = records.copy()
    if order == "trajectory":
        expected[:] = (before + steps + np.arange(n_ahead)) % n_records
    elif order == "shuffle":  # the permutation lists the present epoch up to the position, or all of the last one
        end = position or n_records
        n_known = min(n_ahead, end)
        expected[n_ahead - n_known :] = permutation[end - n_known : end]
    _within("records_ahead", records, expected, expected)


def _check_duals(arrays: Arrays, layout: Layout, drift: float) -> None:
    """V in its box, lam in its simplex, and their averages likewise."""
    (v, V_sum, V_low), since, (log_lam, lam, lam_sum, lam_low) = arrays["V"], arrays["V_since"], arrays["lam"]
    radius_V, radius_lam = (1 + drift) * layout.settings.radius_V, (1 + drift) * layout.settings.radius_lam
    steps = float(arrays["counters"][0])
    _within("V[0]", v, -radius_V, radius_V)
    _within("V[1]", V_sum, -radius_V * since, radius_V * since)
    _within("V[2]", V_low, -drift * radius_V * since, drift * radius_V * since)
    _within("lam[0]", log_lam, -LARGEST, math.log(radius_lam))
    _within("lam[1]", lam, *_exp(log_lam))
    _within("sum of lam[1]", lam.sum(), 0, radius_lam)
    _within("lam[2]", lam_sum, 0, radius_lam * steps)
    _within("sum of lam[2]", lam_sum.sum(), 0, radius_lam * steps)
    _within("lam[3]", lam_low, -drift * radius_lam * steps, drift * radius_lam * steps)


def _check_window(arrays: Arrays, n_past: int, slack: float) -> None:
    """What all pairs have in common since the last fold; at most these n_past steps are before the last move."""
    (common, scale, drop, *elapsed), valid = arrays["window"], arrays["powers"][-1]
    _within("powers[7]", valid, float(valid != 0), float(valid != 0))
    _within("window[0]", common, 0, _core.THRESHOLD / 4 if n_past else 0.0)
    _within("window[1]", scale, *_exp(-common))
    _within("window[2]", drop, 0, _core.THRESHOLD / 64 if n_past and valid else 0.0)
    _within("window[3]", elapsed[0], 0, (1 + slack) * n_past)
    # elapsed_k sums exp(-common) (-drop)^k / k! over steps in which drop only grew.
    series = (1 + slack) * elapsed[0] * _terms(-drop, _core.N_TERMS)
    _within("window[3:]", elapsed, np.minimum(series, 0) - TINY, np.maximum(series, 0) + TINY)


def _check_x(arrays: Arrays, layout: Layout, n_past: int, slack: float, drift: float) -> None:
    """x in X; the frame, the moments and the running sums agree with its coordinates."""
    c, bins, constants = layout.coordinates.c, layout.coordinates.bins, layout.constants
    (shift, tau, factor), (log_z, z, *_) = arrays["frame"], arrays["x"]
    _within("frame[0]", shift, 0, 4 * _core.THRESHOLD if n_past else 0.0)
    _within("frame[1]", tau, 0, np.minimum(_core.THRESHOLD, (shift + slack) * bins.half / bins.centre))
    _within("frame[2]", factor, *_exp(-shift))

    common, scale, drop, *_ = arrays["window"]
    seen = slice(len(layout.coordinates.pairs))
    u = np.zeros(len(c))  # of the unseen pairs
    u[seen] = c[seen] / c[seen].max()
    lift = shift[bins.bin] + bins.d * tau[bins.bin] + common + u * drop
    _within("x[0]", log_z, -LARGEST, np.log(_largest_x(layout)) + lift + drift)
    _within("x[1]", z, *_exp(log_z))
    x = z * factor[bins.bin] * scale * np.exp(-bins.d * tau[bins.bin] - u * drop)
    for k, (name, weights, bound) in enumerate((("x", 1.0, constants.B1), ("x/mu_hat", c, constants.B2))):
        total = float((weights * x).sum())
        _within(f"sum of {name}", total, 0, (1 + slack) * bound)
        _within(f"sums[{2 * k}]", arrays["sums"][2 * k], total - slack * bound, total + slack * bound)
        _within(f"sums[{2 * k + 1}]", arrays["sums"][2 * k + 1], -slack * bound, slack * bound)

    *powers, ceiling, valid = arrays["powers"]
    if valid:
        since_refresh = int(arrays["counters"][0]) % layout.refresh
        true = [float((u[seen] ** p * x[seen]).sum()) for p in range(_core.N_TERMS + 1)]
        _within("powers[6]", ceiling, (1 - slack) * true.pop(), (1 + slack) * (1 + since_refresh) * constants.B1)
        # They are kept by series in drop, to within a remainder that the ceiling bounds.
        off = slack * constants.B1 + ceiling * _terms(drop, _core.N_TERMS + 1)[:0:-1]
        _within("powers[2:6]", powers[2:], (true - off)[2:], (true + off)[2:])

    # z / x is at most exp(1.35), so the z of a bin sum to at most four times the bound on the sum of its x.
    room = 4 * np.minimum(constants.B1, constants.B2 / (bins.centre - bins.half))[:, None]
    moments = np.zeros_like(arrays["moments"][0])
    for k in range(_core.N_MOMENTS):
        moments[:, k] = np.bincount(bins.bin, z * bins.d**k, len(shift))
    _within("moments[0]", arrays["moments"][0], moments - slack * room, moments + slack * room)


def _check_x_sums(arrays: Arrays, run: Run, n_past: int, slack: float, drift: float) -> None:
    """Averages of x in X, and bounds on what they are computed from: q of the bins; acc, mark and settled of pairs."""
    layout, steps = run.core.layout, float(arrays["counters"][0])
    (_, tau, _), past, (*_, acc, mark, high, low) = arrays["frame"], arrays["moments"][1], arrays["x"]
    bins, constants, since_refresh = layout.coordinates.bins, layout.constants, steps % layout.refresh
    # q_k sums exp(-shift) (-tau)^k / k! over these n_past steps, in which tau only grew. A fold truncates series.
    series = (1 + slack) * past[:, :1] * _terms(-tau[:, None], _core.N_MOMENTS)
    series = np.pad(series, ((0, 0), (0, past.shape[1] - _core.N_MOMENTS)))
    _within("moments[1][:, 0]", past[:, 0], 0, (1 + slack) * n_past)
    room = TINY + EPS * past[:, :1]
    _within("moments[1]", past, np.minimum(series, 0) - room, np.maximum(series, 0) + room)
    largest = _largest_x(layout)
    room = (1 + drift) * steps * largest
    # P is at most the number of steps since the last refresh, times what exp(-d tau) adds.
    _within("x[2]", acc, 0, (1 + drift) * since_refresh * largest)
    _within("x[3]", mark, 0, (1 + slack) * since_refresh * np.exp(tau[bins.bin]))
    _within("x[4]", high, 0, room)
    _within("x[5]", low, -drift * room, drift * room)
    x_sum = run.core.x_sum
    _within("sum over the steps of x", x_sum, 0, room)
    _within("sum over the steps and pairs of x", x_sum.sum(), 0, (1 + drift) * steps * constants.B1)
    weighted = layout.coordinates.c @ x_sum
    _within("sum over the steps and pairs of x/mu_hat", weighted, 0, (1 + drift) * steps * constants.B2)


def _largest_x(layout: Layout) -> Array:
    """Upper bound of each coordinate from the cap and the two sum bounds."""
    constants, log_cap = layout.constants, np.minimum(layout.log_cap, math.log(layout.constants.B1))
    return np.minimum(np.exp(log_cap), constants.B2 / layout.coordinates.c)


def _terms(value: ArrayLike, n: int) -> Array:
    """value^k / k! for k < n, along the last axis."""
    k = np.arange(n)
    return np.asarray(value) ** k / [float(math.factorial(m)) for m in k]


def _exp(exponent: Array) -> tuple[Array, Array]:
    """Bounds of exp(exponent) for any implementation of exp."""
    value = np.exp(exponent)
    return np.maximum(value - EXP_ULPS * np.spacing(value), 0), value + EXP_ULPS * np.spacing(value)


def _within(name: str, values: ArrayLike, low: ArrayLike, high: ArrayLike) -> None:
    """Raise a ValueError that names the first value outside of [low, high]; NaN is always outside."""
    found, least, most = np.broadcast_arrays(values, low, high)
    wrong = ~((least <= found) & (found <= most))
    if wrong.any():
        first = int(np.argmax(wrong))
        where = [int(k) for k in np.unravel_index(first, wrong.shape)] or ""
        value, a, b = (array.item(first) for array in (found, least, most))
        rule = f"be {a!r}" if a == b else f"lie between {a!r} and {b!r}"
        raise ValueError(f"{name}{where} = {value!r}, which must {rule}")
