"""Fields of a recorded data set: which array is the state, the action, ..., and arrays as columns of a table.

| argument | fields it is by default, the first of them that there is |
|---|---|
| `state` | observations, obs |
| `action` | actions, action |
| `reward` | rewards, reward |
| `next_state` | next_observations, next_obs; may be missing |
| `terminated` | terminals, terminated |
| `truncated` | timeouts, truncated; may be missing |

A field ``done`` (OmniSafe's) marks episodes that ended and records that merely stopped alike. These are different
things, so the caller must say which it is here: ``terminated="done"`` or ``truncated="done"``.

A field is an array with one row per transition, shape (n,) or (n, 1), or (n, d) for states and actions, which make d
columns ``observations[0]``, ``observations[1]``, ... States and actions are whole numbers >= 0, unless a discretizer
makes states of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check

DEFAULTS = {
    "state": ("observations", "obs"),
    "action": ("actions", "action"),
    "reward": ("rewards", "reward"),
    "next_state": ("next_observations", "next_obs"),
    "terminated": ("terminals", "terminated"),
    "truncated": ("timeouts", "truncated"),
}

#: What can be left out; `read_log` says what is then known.
OPTIONAL = ("next_state", "truncated")

DONE = "done"


@dataclass(frozen=True)
class Recorded:
    """A recorded data set as columns, and what they are for.

    Attributes
    ----------
    columns : dict of str to array
        One-dimensional arrays of one length.
    roles : dict
        Arguments of `read_log`: ``read_log(found.columns, **found.roles, ...)``.
    """

    columns: dict[str, NDArray[Any]]
    roles: dict[str, Any]


def recorded(
    names: Sequence[str],
    read: Callable[[str], NDArray[Any]],
    given: Mapping[str, Any],
    costs: Iterable[str] = (),
    *,
    continuous: bool = False,
) -> Recorded:
    """Make columns of the fields of a data set.

    Parameters
    ----------
    names : sequence of str
        All fields that there are.
    read : callable
        Reads one.
    given : mapping
        Arguments of `read_log` that name fields; None is the default.
    costs : iterable of str
        Fields that are costs.
    continuous : bool
        Whether states are arbitrary numbers, of which a discretizer makes states.

    Examples
    --------
    >>> fields = {"obs": np.array([[0, 1], [2, 0]]), "action": np.array([[1.0], [0.0]]), "reward": np.zeros(2),
    ...           "next_obs": np.array([[2, 0], [0, 0]]), "done": np.array([0, 1])}
    >>> found = recorded(list(fields), fields.__getitem__, {"terminated": "done"})
    >>> found.roles["state"], found.columns["obs[0]"].tolist(), found.columns["action"].tolist()
    (['obs[0]', 'obs[1]'], [0, 2], [1.0, 0.0])
    """
    columns: dict[str, NDArray[Any]] = {}
    roles: dict[str, Any] = {}
    for role, given_name in _roles(names, given).items():
        wanted = given_name if isinstance(given_name, (list, tuple)) else [given_name]
        if not all(isinstance(name, str) for name in wanted):  # True or False, or what read_log refuses
            roles[role] = given_name
            continue
        found: list[str] = []
        for name in wanted:
            array = _numbers(name, read(_present(name, role, names)))
            wide = role in ("state", "action", "next_state")
            parts = _spread(name, array, wide)
            if wide and not (continuous and role != "action"):
                for part, column in parts.items():
                    _check_whole(part, column, role)
            columns |= parts
            found += parts
        roles[role] = found if len(found) > 1 or not isinstance(given_name, str) else found[0]
    for name in costs:
        columns |= _spread(name, _numbers(name, read(_present(name, "costs", names))), False)
    return Recorded(columns, roles)


def _roles(names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The field of each role, by default the one that has its usual name."""
    unknown = given.keys() - {*DEFAULTS, "episode", "time"}
    if unknown:
        raise TypeError(f"unknown argument {sorted(unknown)[0]}")
    roles = {role: name for role, name in given.items() if name is not None}
    timeouts = roles.get("truncated") == DONE
    for role, usual in DEFAULTS.items():
        if role in roles:
            continue
        there = [name for name in usual if name in names]
        if role == "terminated" and DONE in names and not timeouts:
            if not there:
                raise ValueError(
                    f"its field {DONE!r} marks ended episodes and time-outs alike: pass terminated={DONE!r} if "
                    f"episodes end there, or truncated={DONE!r} if only their records stop"
                )
            there.append(DONE)
        if len(there) > 1:
            raise ValueError(f"it has the fields {' and '.join(map(repr, there))}: pass {role}= to choose one")
        if there:
            roles[role] = there[0]
        elif role == "terminated" and timeouts:
            roles[role] = False  # the caller says that all marks there are mean time-outs
        elif role not in OPTIONAL:
            hint = " (False if no episode ends)" if role == "terminated" else ""
            usually = " or ".join(map(repr, usual))
            raise ValueError(f"it has no field {usually} ({role}): pass {role}={hint}; {_listed(names)}")
    return roles


def _present(name: str, role: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ValueError(f"it has no field {name!r} ({role}); {_listed(names)}")
    return name


def _listed(names: Sequence[str]) -> str:
    return f"its fields are {', '.join(map(repr, names))}" if names else "it has no fields"


def _numbers(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biuf":
        raise TypeError(f"field {name!r} must hold numbers, got dtype {array.dtype}")
    return array


def _spread(name: str, array: NDArray[Any], wide: bool) -> dict[str, NDArray[Any]]:
    """The columns of a field."""
    if array.ndim == 1:
        return {name: array}
    if array.ndim != 2 or array.shape[1] == 0 or (array.shape[1] > 1 and not wide):
        allowed = "(n,) or (n, d)" if wide else "(n,) or (n, 1)"
        raise ValueError(f"field {name!r} must have shape {allowed}, got {array.shape}")
    if array.shape[1] == 1:
        return {name: array[:, 0]}
    return {f"{name}[{k}]": column for k, column in enumerate(array.T)}


def _check_whole(name: str, column: NDArray[Any], role: str) -> None:
    """Check whole numbers >= 0; missing values are left to `read_log`."""
    if column.dtype.kind == "b":
        return
    try:
        check.indices(name, column, 2**53, dtype=np.int64, copy=False, unread=column != column)
    except ValueError as error:
        hint = "make discrete actions of continuous ones first"
        hint = hint if role == "action" else "discretizer= makes states of continuous observations"
        raise ValueError(f"{error}; {hint}") from None
