"""Labels of states and actions: what the user calls them, beside the indices that the library computes with."""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl import _validation as check
from dpdl.data.discretizer import Discretizer
from dpdl.files.headers import expect_names


@dataclass(frozen=True)
class Labels:
    """The distinct labels of states and of actions, in the order of their indices.

    A label is any hashable value: text, a number, True or False, a date, or a tuple of such. All labels of the states
    are of one kind, and so are those of the actions: 1 and "1" do not go together. Labels that compare equal, such as 1
    and 1.0, are one label.

    Parameters
    ----------
    states, actions : iterable of hashable
        The labels.
    discretizer : Discretizer, optional
        Which state an observation is, if states were made of continuous observations. The labels of the states are then
        those of its states that occur.

    Examples
    --------
    >>> labels = Labels(["home", "ward"], ["rest", "drug"])
    >>> labels.state("ward"), labels.actions[0]
    (1, 'rest')
    >>> labels.state("wart")
    Traceback (most recent call last):
        ...
    ValueError: there is no state 'wart'; the closest is 'ward'
    """

    states: tuple[Hashable, ...]
    actions: tuple[Hashable, ...]
    discretizer: Discretizer | None = None

    def __init__(
        self, states: Iterable[Hashable], actions: Iterable[Hashable], discretizer: Discretizer | None = None
    ) -> None:
        object.__setattr__(self, "states", _checked("states", states))
        object.__setattr__(self, "actions", _checked("actions", actions))
        if discretizer is not None:
            check.instance("discretizer", discretizer, Discretizer)
            for label in self.states:
                if type(label) is not int or not 0 <= label < discretizer.n_states:
                    raise ValueError(f"states: {label!r:.200} is not a state of the discretizer")
            object.__setattr__(self, "discretizer", discretizer)

    def state(self, label: Hashable) -> int:
        """Index of a state; a ValueError names the closest labels if there is none."""
        return _find("state", label, self.states, self._states)

    def action(self, label: Hashable) -> int:
        """Index of an action; a ValueError names the closest labels if there is none."""
        return _find("action", label, self.actions, self._actions)

    def observed(self, observations: Any) -> tuple[NDArray[np.int64], bool]:
        """Indices of the states of observations, (n, d) or one (d,), and whether there are several."""
        assert self.discretizer is not None
        found = self.discretizer.states(observations)
        states = found.reshape(-1)
        rows = self._rows_of_cells[states]
        if (rows < 0).any():
            self.state(int(states[np.argmax(rows < 0)]))  # raises: the log has no such state
        return rows, found.ndim > 0

    def to_json(self) -> dict[str, Any]:
        """Return the labels as lists that JSON can hold; a label of a kind that it cannot raises ValueError.

        Text, numbers, True and False are stored as they are, a tuple as a list, a date as ``{"date": "2024-03-01"}``.
        ``discretizer`` is there only if there is one.

        Examples
        --------
        >>> Labels([("ward", 1), ("ward", 2)], [True, False]).to_json()
        {'states': [['ward', 1], ['ward', 2]], 'actions': [True, False]}
        """
        content: dict[str, Any] = {
            name: [_to_json(name, label) for label in values]
            for name, values in (("states", self.states), ("actions", self.actions))
        }
        return content if self.discretizer is None else content | {"discretizer": self.discretizer.to_json()}

    @classmethod
    def from_json(cls, content: Any) -> Labels:
        """Make the labels that `to_json` stored."""
        cells = content.get("discretizer") if isinstance(content, dict) else None
        expect_names("labels", content, {"states", "actions"} | ({"discretizer"} if cells is not None else set()))
        for name in ("states", "actions"):
            if not isinstance(content[name], list):
                raise ValueError(f"labels: {name} must be a list, got {content[name]!r:.200}")
        discretizer = None if cells is None else Discretizer.from_json(cells)
        return cls(map(_from_json, content["states"]), map(_from_json, content["actions"]), discretizer)

    @cached_property
    def _states(self) -> dict[Hashable, int]:
        return {label: k for k, label in enumerate(self.states)}

    @cached_property
    def _rows_of_cells(self) -> NDArray[np.int64]:
        """Index of each state of the discretizer; -1 for one that does not occur."""
        assert self.discretizer is not None
        rows = np.full(self.discretizer.n_states, -1, dtype=np.int64)
        rows[np.array(self.states)] = np.arange(len(self.states))
        return rows

    @cached_property
    def _actions(self) -> dict[Hashable, int]:
        return {label: k for k, label in enumerate(self.actions)}


@dataclass(frozen=True)
class Coded:
    """Labels in their order, and for every row the position of its label; -1 where it is missing."""

    codes: NDArray[np.int64]
    labels: list[Any]
    discretizer: Discretizer | None = None


def merged(columns: Sequence[Coded]) -> tuple[list[Any], list[NDArray[np.int64]]]:
    """The labels of several columns in their order, and the positions of each column's labels among them.

    Examples
    --------
    >>> merged([Coded(np.array([0, -1]), ["b"]), Coded(np.array([0]), ["a"])])
    (['a', 'b'], [array([ 1, -1]), array([0])])
    """
    own = [_numbered([plain(label) for label in column.labels]) for column in columns]
    labels = ordered(dict.fromkeys(label for part in own for label in part))
    place = {label: k for k, label in enumerate(labels)}
    positions = [np.array([*(place[label] for label in part), -1]) for part in own]
    return labels, [position[column.codes] for position, column in zip(positions, columns, strict=True)]


def _numbered(labels: list[Any]) -> list[Any]:
    """Labels with whole numbers instead of floats if all are whole: a missing value makes floats of whole numbers."""
    if not labels or not all(isinstance(label, float) for label in labels):
        return labels
    if any(abs(label) > 2**53 for label in labels):
        raise ValueError("numbers beyond 2^53 are not exact as floats: give labels as whole numbers or as text")
    whole = all(label.is_integer() for label in labels)
    return [int(label) if whole else label + 0.0 for label in labels]


def distinct_labels(values: NDArray[Any]) -> Coded:
    """The distinct values of an array of objects in their order, and the position of each value among them."""
    examples: dict[type, Any] = {}
    for value in values:
        examples.setdefault(type(value), value)
    one_kind([plain(value) for value in examples.values()])  # True and 1 would be one label
    seen: dict[Hashable, int] = {}
    firsts = np.array([seen.setdefault(plain(value), len(seen)) for value in values], dtype=np.int64)
    labels = ordered(seen)
    rank = np.argsort([seen[label] for label in labels])
    return Coded(rank[firsts] if len(firsts) else firsts, labels)


def paired(columns: Sequence[Coded]) -> Coded:
    """Labels of several columns as tuples, in lexicographic order."""
    flat = np.zeros(len(columns[0].codes), dtype=np.int64)
    valid = np.all([column.codes >= 0 for column in columns], axis=0)
    for column in columns:
        _, flat[valid] = np.unique(flat[valid] * len(column.labels) + column.codes[valid], return_inverse=True)
    rows = np.flatnonzero(valid)[np.unique(flat[valid], return_index=True)[1]]
    labels = list(zip(*([column.labels[k] for k in column.codes[rows]] for column in columns), strict=True))
    return Coded(np.where(valid, flat, -1), labels)


def kind_of(label: Any) -> str:
    """Name of the kind of a label; only labels of the same kind may stand in one column.

    Examples
    --------
    >>> kind_of(1), kind_of(True), kind_of(("ward", 1.5))
    ('number', 'bool', '(text, number)')
    """
    if isinstance(label, tuple):
        return f"({', '.join(map(kind_of, label))})"
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "bool"),
        ((int, float), "number"),
        (str, "text"),
        (datetime, "datetime"),
        (date, "date"),
    )
    return next((kind for types, kind in kinds if isinstance(label, types)), type(label).__name__)


def ordered(labels: Iterable[Any]) -> list[Any]:
    """Sort distinct labels of one kind; those that have no order stay as they are.

    Examples
    --------
    >>> ordered(["b", "a"]), ordered([1, "1"])
    Traceback (most recent call last):
        ...
    ValueError: labels of one column must be of one kind, got 1 (number) and '1' (text)
    """
    found = list(labels)
    one_kind(found)
    try:
        return sorted(found)
    except TypeError:
        return found


def one_kind(labels: Sequence[Any]) -> None:
    """Check that labels are of one kind."""
    first = kind_of(labels[0]) if labels else ""
    for label in labels:
        if kind_of(label) != first:
            both = f"{labels[0]!r} ({first}) and {label!r} ({kind_of(label)})"
            raise ValueError(f"labels of one column must be of one kind, got {both}")


def plain(label: Any) -> Any:
    """Return a label as Python's own kind of value: scalars of NumPy and times of pandas are converted.

    Examples
    --------
    >>> plain(np.int64(3)), plain((np.str_("a"), 1))
    (3, ('a', 1))
    """
    if isinstance(label, np.generic):
        return label.item()
    if hasattr(label, "to_pydatetime"):  # of pandas
        if label.nanosecond:
            raise ValueError("times that are not whole microseconds cannot be labels")
        return label.to_pydatetime()
    return tuple(map(plain, label)) if type(label) is tuple else label


def _checked(name: str, values: Iterable[Hashable]) -> tuple[Hashable, ...]:
    labels = tuple(map(plain, values))
    if not labels:
        raise ValueError(f"{name} must have at least one label")
    seen: dict[Hashable, int] = {}
    for k, label in enumerate(labels):
        try:
            first = seen.setdefault(label, k)
        except TypeError:
            raise TypeError(f"{name}[{k}] = {label!r:.200} cannot be a label: it is not hashable") from None
        if first != k:
            raise ValueError(f"{name}[{k}] = {label!r} equals {name}[{first}] = {labels[first]!r}")
        if isinstance(label, float) and not math.isfinite(label):
            raise ValueError(f"{name}[{k}] = {label} cannot be a label: it is not finite")
    try:
        one_kind(labels)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return labels


def _find(what: str, label: Any, labels: Sequence[Any], indices: dict[Hashable, int]) -> int:
    try:
        return indices[label]
    except KeyError:
        pass
    except TypeError:
        raise ValueError(f"{label!r:.200} cannot be a {what}: it is not hashable") from None
    close = [repr(one) for one in _closest(label, labels)]
    found = f"the closest {'is' if len(close) == 1 else 'are'} {', '.join(close)}" if close else "none is close to it"
    raise ValueError(f"there is no {what} {label!r}; {found}")


def _closest(label: Any, labels: Sequence[Any]) -> list[Any]:
    """Up to three labels that resemble one."""
    if kind_of(label) == kind_of(labels[0]) == "number":
        return sorted(labels, key=lambda one: abs(one - label))[:3]
    text = {one if isinstance(one, str) else repr(one): one for one in labels}
    return [text[one] for one in difflib.get_close_matches(label if isinstance(label, str) else repr(label), text)]


def _to_json(name: str, label: Any) -> Any:
    if isinstance(label, tuple):
        return [_to_json(name, part) for part in label]
    if type(label) in (str, int, float, bool):
        return label
    if type(label) in (date, datetime):
        return {type(label).__name__: label.isoformat()}
    raise ValueError(f"{name}: {label!r:.200} cannot be stored: it is a {type(label).__name__}")


def _from_json(content: Any) -> Hashable:
    if isinstance(content, list):
        return tuple(map(_from_json, content))
    if isinstance(content, dict) and len(content) == 1:
        ((name, value),) = content.items()
        if name in ("date", "datetime") and isinstance(value, str):
            return date.fromisoformat(value) if name == "date" else datetime.fromisoformat(value)
    if type(content) in (str, int, float, bool):
        return content
    raise ValueError(f"labels: {content!r:.200} is not a label")
