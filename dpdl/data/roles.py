"""Columns of a table by what they are for: the arguments of `read_log` that name columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

#: Kind of a column by the argument that names it, if it is not a label.
KINDS = {"reward": "number", "costs": "number", "time": "time", "terminated": "flag", "truncated": "flag"}


class Column(NamedTuple):
    """A column of a table in one of its roles."""

    alias: str  # its name among the columns that have a role: value0, value1, ..., state0, ..., episode, ...
    role: str  # the argument that names it
    name: str
    kind: str  # number, flag, time or label

    def __str__(self) -> str:
        return f"column {self.name!r} ({self.role})"


@dataclass(frozen=True)
class Roles:
    """The columns by what they are for."""

    state: list[str]
    action: list[str]
    reward: str
    costs: list[str]
    next_state: list[str] | None
    episode: str | None
    time: str | None
    terminated: str | bool | None
    truncated: str | bool | None
    tuples: tuple[str, ...]  # arguments given as lists, whose labels are tuples

    @classmethod
    def named(cls, *, state: Any, action: Any, reward: Any, costs: Any = None, **others: Any) -> Roles:
        """Check the arguments of `read_log` that name columns."""
        next_state = others.get("next_state")
        roles = cls(
            state=_names("state", state),
            action=_names("action", action),
            reward=_name("reward", reward),
            costs=[] if costs is None or len(costs) == 0 else _names("costs", costs),
            next_state=None if next_state is None else _names("next_state", next_state),
            tuples=tuple(name for name, given in (("state", state), ("action", action)) if not isinstance(given, str)),
            **{name: None if others.get(name) is None else _name(name, others[name]) for name in ("episode", "time")},
            terminated=_name_or_flag("terminated", others.get("terminated")),
            truncated=_name_or_flag("truncated", others.get("truncated")),
        )
        roles._check()
        return roles

    @property
    def in_row_order(self) -> bool:
        """Whether episodes follow one another in the rows and the two columns of ends separate them."""
        given = self.terminated is not None and self.truncated is not None
        return self.episode is None and given and (isinstance(self.terminated, str) or isinstance(self.truncated, str))

    def columns(self, continuous: bool = False) -> list[Column]:
        """The columns with their roles, in the order in which messages list them."""
        kinds = KINDS | dict.fromkeys(("state", "next_state"), "number" if continuous else "label")
        columns = []
        for role, prefix in (
            ("terminated", "terminated"),
            ("truncated", "truncated"),
            ("reward", "value"),
            ("costs", "value"),
            ("action", "action"),
            ("episode", "episode"),
            ("time", "time"),
            ("state", "state"),
            ("next_state", "next"),
        ):
            given = getattr(self, role)
            names = given if isinstance(given, list) else [given] if isinstance(given, str) else []
            for k, name in enumerate(names, start=role == "costs"):
                alias = f"{prefix}{k}" if prefix in ("value", "action", "state", "next") else prefix
                columns.append(Column(alias, role, name, kinds.get(role, "label")))
        return columns

    def _check(self) -> None:
        """Check that the arguments say where episodes begin, and whether their last rows end them."""
        first: dict[str, str] = {}
        for column in self.columns():
            if column.role not in ("reward", "costs"):
                if column.name in first:
                    raise ValueError(f"{first[column.name]} and {column.role} both name the column {column.name!r}")
                first[column.name] = column.role
        if self.next_state is not None and len(self.next_state) != len(self.state):
            raise ValueError(f"next_state must name as many columns as state, got {self.next_state} and {self.state}")
        if self.terminated is True and self.truncated is True:
            raise ValueError("terminated=True and truncated=True contradict each other: an episode ends or it does not")
        if self.episode is not None:
            if self.next_state is None and self.terminated is None and self.truncated in (None, False):
                raise ValueError(
                    "without next_state it must be said whether the last row of an episode ends it: pass terminated= "
                    "(a column, True if every episode ends, or False if the record only stops)"
                )
            return
        if self.time is not None:
            raise ValueError("time sorts the rows of an episode, so it needs episode=, the column of the episodes")
        if self.in_row_order:
            if self.terminated is True:
                raise ValueError("terminated=True is about the last row of every episode, so it needs episode=")
        elif self.next_state is None:
            raise ValueError(
                "without next_state the next row of the episode is the next state: pass episode=, or both terminated= "
                "and truncated= if the rows are in order"
            )
        elif self.terminated is True or self.truncated not in (None, False):
            raise ValueError("without episode=, terminated= must be a column or False if truncated= is given as well")


def _names(name: str, given: Any) -> list[str]:
    """A column name, or a list of names, as a list."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(each, str) for each in names):
        raise TypeError(f"{name} must be the name of a column or a list of names, got {given!r:.200}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{name} must name distinct columns, at least one, got {list(names)}")
    return list(names)


def _name(name: str, given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{name} must be the name of a column, got {given!r:.200}")
    return given


def _name_or_flag(name: str, given: Any) -> str | bool | None:
    if given is not None and not isinstance(given, (str, bool)):
        raise TypeError(f"{name} must be the name of a column, True, False or None, got {given!r:.200}")
    return given
