"""How runs end: every stopping rule, its option, its status and its message.

A new rule is a field of `Limits`, a `Status` and a line of `Limits.reached`; everything else reads them from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from dpdl import _validation as check


class Status(Enum):
    """How a run ended; the value says it in words. Of several runs, the last in this order counts."""

    COMPLETED = "all steps were taken"
    RUNNING = "still running"
    STEP_LIMIT = "the step limit was reached; the result covers the steps taken"
    TIME_LIMIT = "the time limit was reached; the result covers the steps taken"
    OUT_OF_LEVELS = "the levels were not enough"
    OUT_OF_DATA = "the log is too short"
    STOPPED = "stopped by the callback; the result covers the steps taken"
    INTERRUPTED = "interrupted by a signal; the result covers the steps taken"
    NUMERICAL_ERROR = "a number left its range; the result covers the steps taken"

    @classmethod
    def worst(cls, statuses: list[Status]) -> Status:
        """The status of several runs together."""
        return [status for status in cls if status in statuses][-1]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a run, checked; `learn` documents them."""

    step_limit: int | None = None
    time_limit: float = math.inf

    def __post_init__(self) -> None:
        check.convert_field(self, "step_limit", check.whole)
        check.convert_field(self, "time_limit", check.seconds, required=True)

    def steps(self, planned: int) -> int:
        """Largest number of steps of a run that plans so many."""
        return planned if self.step_limit is None else min(planned, self.step_limit)

    def reached(self, n_steps: int, planned: int, seconds: float) -> Status | None:
        """The status of a run that must end after so many steps and seconds; None if it goes on."""
        if n_steps >= planned:
            return Status.COMPLETED
        if self.step_limit is not None and n_steps >= self.step_limit:
            return Status.STEP_LIMIT
        if seconds >= self.time_limit:
            return Status.TIME_LIMIT
        return None
