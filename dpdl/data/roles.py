"""Columns of a table by what they are for: the arguments of `read_log` that name columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Kind of a column by the argument that names it, if it is not a label.
KINDS = {"reward": "number", "costs": "number", "time": "time", "terminated": "flag", "truncated": "flag"}


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
    def named(
        cls,
        *,
        state: Any,
        action: Any,
        reward: Any,
        costs: Any = None,
        next_state: Any = None,
        episode: Any = None,
        time: Any = None,
        terminated: Any = None,
        truncated: Any = None,
    ) -> Roles:
        """Check the arguments of `read_log` that name columns."""
        roles = cls(
            state=_names("state", state),
            action=_names("action", action),
            reward=_name("reward", reward),
            costs=[] if costs is None or len(costs) == 0 else _names("costs", costs),
            next_state=None if next_state is None else _names("next_state", next_state),
            episode=None if episode is None else _name("episode", episode),
            time=None if time is None else _name("time", time),
            terminated=_name_or_flag("terminated", terminated),
            truncated=_name_or_flag("truncated", truncated),
            tuples=tuple(name for name, given in (("state", state), ("action", action)) if not isinstance(given, str)),
        )
        roles.check()
        return roles

    @property
    def in_row_order(self) -> bool:
        """Whether episodes follow one another in the rows and the two columns of ends separate them."""
        given = self.terminated is not None and self.truncated is not None
        return self.episode is None and given and (isinstance(self.terminated, str) or isinstance(self.truncated, str))

    def kinds(self, continuous: bool = False) -> dict[str, tuple[str, str]]:
        """For each column the argument that names it, and its kind (`dpdl.data.columns.load`)."""
        kinds = KINDS | dict.fromkeys(("state", "next_state"), "number" if continuous else "label")
        return {name: (role, kinds.get(role, "label")) for name, role in self._by_column().items()}

    def _by_column(self) -> dict[str, str]:
        """For each column the argument that names it."""
        by_column: dict[str, str] = {}
        for role in ("reward", "costs", "state", "action", "next_state", "episode", "time", "terminated", "truncated"):
            given = getattr(self, role)
            names = given if isinstance(given, list) else [given] if isinstance(given, str) else []
            for name in names:
                if by_column.get(name, "reward") not in ("reward", "costs"):
                    raise ValueError(f"{by_column[name]} and {role} both name the column {name!r}")
                by_column[name] = role
        return by_column

    def check(self) -> None:
        """Check that the arguments say where episodes begin, and whether their last rows end them."""
        self._by_column()
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
    if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) for one in names):
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
