"""Coercion and checks of everything a caller passes, in one place.

Every function takes the argument's name first and returns a clean value, or raises a ``TypeError`` (wrong kind) or a
``ValueError`` (wrong value) that names the argument, the first offending index and the value found there. Nothing is
clipped, wrapped or guessed. An array is copied before it is checked, so that the caller cannot change it afterwards;
``copy=False`` is for functions that copy it later.
"""

from __future__ import annotations

import difflib
import numbers
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, DTypeLike, NDArray

#: Arrays of doubles, in every signature.
Array = NDArray[np.float64]

#: By argument, the names that other libraries use for it.
_SYNONYMS = {
    "rng": ("seed", "random_state"),
    "gamma": ("discount",),
    "T": ("steps", "n_steps", "iterations", "max_iter"),
    "tol": ("tolerance",),
    "eps": ("accuracy",),
    "eta": ("step_size", "learning_rate"),
    "time_limit": ("timeout",),
    "step_limit": ("max_steps",),
    "callback_every": ("callback_freq",),
    "rho0": ("initial_distribution",),
    "n": ("n_replicas",),
    "executor": ("n_jobs", "workers"),
    "progress": ("verbose",),
}

#: How far a distribution's sum may be from one: a thousand roundings of a sum of ones.
SUM_TOLERANCE = 1e-9


def real(
    name: str,
    value: Any,
    *,
    above: float = -np.inf,
    below: float = np.inf,
    at_least: float = -np.inf,
    at_most: float = np.inf,
) -> float:
    """Check a finite real number inside the given open (above, below) and closed (at_least, at_most) bounds."""
    value = _number(name, value, "real")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is beyond the range of a double") from None
    if not np.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    if not (above < number < below and at_least <= number <= at_most):
        bounds = ((">", above), (">=", at_least), ("<", below), ("<=", at_most))
        wanted = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if np.isfinite(bound))
        raise ValueError(f"{name} must be {wanted}, got {number!r}")
    return number


def suggestion(name: str, accepted: Iterable[str], what: str) -> str:
    """Say which of the accepted names an unknown one may stand for; if there is no such name, list them all."""
    by_case, lower = {known.casefold(): known for known in accepted}, name.casefold()
    meant = [known for known in by_case if lower in _SYNONYMS.get(by_case[known], ())]
    close = meant or difflib.get_close_matches(lower, by_case, 1)
    return f"did you mean {by_case[close[0]]}?" if close else f"{what} are {', '.join(sorted(by_case.values()))}"


def convert_field(owner: Any, name: str, convert: Callable[..., Any], *, required: bool = False, **bounds: Any) -> None:
    """Replace a field of a frozen dataclass by what `convert` makes of it; None stays None, unless it is required."""
    value = getattr(owner, name)
    if value is not None or required:
        object.__setattr__(owner, name, convert(name, value, **bounds))


def seconds(name: str, value: Any) -> float:
    """Check a number of seconds; None and infinity are no limit."""
    if value is None or (isinstance(value, numbers.Real) and value == np.inf):
        return np.inf
    return real(name, value, at_least=0)


def whole(name: str, value: Any, *, at_least: int = 0, at_most: int = 2**63 - 1) -> int:
    """Check a whole number inside closed bounds; a float passes only if it is one (1e6 does, 1.5 does not)."""
    value = _number(name, value, "whole")
    if not isinstance(value, numbers.Integral) and not float(value).is_integer():
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    number = int(value) if isinstance(value, numbers.Integral) else int(float(value))
    if not at_least <= number <= at_most:
        raise ValueError(f"{name} must be between {at_least} and {at_most}, got {number}")
    return number


def text(name: str, value: Any) -> str:
    """Check a string."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    return value


def path(name: str, value: Any) -> Path:
    """Check a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path, got {type(value).__name__}")
    return Path(value)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Check that a value is one of the allowed strings."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def choices(name: str, values: Any, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Check a collection of strings, all of them allowed; returned in order, without repetitions."""
    if not isinstance(values, (tuple, list, set, frozenset)):
        raise TypeError(f"{name} must be a collection of names, got {values!r}")
    return tuple(sorted({choice(name, value, allowed) for value in values}))


def instance(name: str, value: Any, kind: type) -> None:
    """Check that a value is of a class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")


def flag(name: str, value: Any) -> bool:
    """Check True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def flags(name: str, values: ArrayLike, shape: tuple[int | None, ...] = (None,)) -> NDArray[np.bool_]:
    """Check an array of True and False, or of 1 and 0.

    Examples
    --------
    >>> flags("terminated", [0, 1]).tolist()
    [False, True]
    >>> flags("terminated", [0, 2])
    Traceback (most recent call last):
        ...
    ValueError: terminated[1] = 2 must be True or False
    """
    array = _as_array(name, values, copy=False)
    if array.dtype.kind not in "biu" and array.size:
        raise TypeError(f"{name} must hold True and False, got dtype {array.dtype}")
    check_shape(name, array, shape)
    _first_offence(name, array, (array != 0) & (array != 1), "must be True or False")
    return array.astype(bool)


def optional_flag(name: str, value: Any) -> bool | None:
    """Check True, False or None."""
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True, False or None, got {value!r}")
    return None if value is None else bool(value)


def numbers_array(
    name: str,
    values: ArrayLike,
    *,
    shape: tuple[int | None, ...] | None = None,
    above: float = -np.inf,
    at_least: float = -np.inf,
    at_most: float = np.inf,
    copy: bool = True,
) -> Array:
    """Check a C-contiguous array of finite doubles; ``None`` in `shape` leaves that length free."""
    array = _as_array(name, values, copy)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    array = np.ascontiguousarray(array, dtype=np.float64) if array.ndim else array.astype(np.float64)
    check_shape(name, array, shape)
    _first_offence(name, array, ~np.isfinite(array), "must be finite")
    _first_offence(name, array, array <= above, f"must be > {above:g}")
    _first_offence(name, array, array < at_least, f"must be >= {at_least:g}")
    _first_offence(name, array, array > at_most, f"must be <= {at_most:g}")
    return array


def indices(
    name: str,
    values: ArrayLike,
    bound: int,
    *,
    shape: tuple[int | None, ...] = (None,),
    dtype: DTypeLike = np.int32,
    copy: bool = True,
    unread: NDArray[np.bool_] | None = None,
) -> NDArray[Any]:
    """Check an array of whole numbers in ``0 .. bound - 1``; floats pass if they are whole, booleans do not.

    Entries marked by `unread` are not checked, and become 0.
    """
    array = _as_array(name, values, copy)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must hold whole numbers, got dtype {array.dtype}")
    check_shape(name, array, shape)
    if unread is not None:
        array = np.where(unread, 0, array)
    if array.dtype.kind == "f":
        _first_offence(name, array, ~(array == np.rint(array)), "must be a whole number")  # NaN is none
    _first_offence(name, array, (array < 0) | (array >= bound), f"must be between 0 and {bound - 1}")
    return np.ascontiguousarray(array, dtype=dtype)


def sparse_array(name: str, values: Any) -> sp.csr_array:
    """Copy a sparse array, as a CSR array of doubles whose indices are in range, and entries given twice added up."""
    if values.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, got dtype {values.dtype}")
    try:
        copied = values.copy()
        if hasattr(copied, "check_format"):  # of the kinds whose constructors leave it out
            copied.check_format(full_check=True)
    except ValueError as error:
        raise ValueError(f"{name} is not a valid sparse array: {error}") from None
    matrix = sp.csr_array(copied, dtype=np.float64)
    matrix.sum_duplicates()
    return matrix


def distribution(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Check nonnegative numbers that sum to one."""
    array = numbers_array(name, values, shape=shape, at_least=0)
    with np.errstate(over="ignore"):  # infinity is not 1 either
        total = float(array.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise ValueError(f"{name} must sum to 1, got {total:.12g}")
    return array


def initial_distribution(rho0: Any, initial_states: Any, n_states: int) -> Array:
    """Distribution of the first state, given as such or as a log of first states, but not both."""
    if (rho0 is None) == (initial_states is None):
        known = "" if rho0 is not None else ": the log has no episodes whose first states could be taken"
        raise TypeError(f"give either rho0 or initial_states{known}")
    if rho0 is not None:
        return distribution("rho0", rho0, (n_states,))
    logged = indices("initial_states", initial_states, n_states)
    if len(logged) == 0:
        raise ValueError("initial_states is empty")
    return np.bincount(logged, minlength=n_states) / len(logged)


def policy_array(name: str, values: ArrayLike, n_states: int, n_actions: int) -> Array:
    """Check a policy: one distribution over actions per state, as an (S, A) array."""
    array = numbers_array(name, values, shape=(n_states, n_actions), at_least=0)
    with np.errstate(over="ignore"):
        totals = array.sum(axis=1)
    wrong = np.flatnonzero(abs(totals - 1) > SUM_TOLERANCE)
    if wrong.size:
        raise ValueError(f"{name}[{wrong[0]}] must sum to 1, got {totals[wrong[0]]:.12g}")
    return array


def generator(rng: Any) -> np.random.Generator:
    """Make a ``numpy.random.Generator`` of `rng`: None, a seed, or a Generator, which is used as it is."""
    if rng is None or (isinstance(rng, (int, np.integer, np.random.SeedSequence)) and not isinstance(rng, bool)):
        if isinstance(rng, (int, np.integer)) and rng < 0:
            raise ValueError(f"rng must be a seed >= 0, got {rng}")
        return np.random.default_rng(rng)
    if isinstance(rng, np.random.Generator):
        return rng
    raise TypeError(f"rng must be None, a whole number or a numpy.random.Generator, got {type(rng).__name__}")


def check_shape(name: str, array: NDArray[Any], shape: tuple[int | None, ...] | None) -> None:
    """Raise unless the array has the given shape; ``None`` leaves a length free."""
    if shape is None:
        return
    if array.ndim != len(shape) or any(n is not None and n != m for n, m in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must have shape ({wanted}{',' if len(shape) == 1 else ''}), got {array.shape}")


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written to, nor be made writeable, and leave the array itself as it is."""
    return np.asarray(array.data.toreadonly())  # NumPy asks a buffer, unlike an array, whether it is writeable


def _number(name: str, value: Any, kind: str) -> Any:
    """Check a real number, which may be an array without dimensions."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a {kind} number, got {type(value).__name__}")
    return value


def _as_array(name: str, values: ArrayLike, copy: bool) -> NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; fill or drop the masked values first")
    try:
        array = np.asarray(values)
    except ValueError as error:  # ragged nested lists
        raise ValueError(f"{name} is not a regular array: {error}") from None
    return array.copy() if copy else array


def _first_offence(name: str, array: NDArray[Any], offends: NDArray[np.bool_], rule: str) -> None:
    if offends.any():
        index = tuple(int(k) for k in np.unravel_index(int(np.argmax(offends)), array.shape))
        where = f"[{', '.join(map(str, index))}]" if index else ""
        raise ValueError(f"{name}{where} = {array[index].item()!r} {rule}")
