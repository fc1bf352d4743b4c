"""How a run is driven: callback, progress, limits, checkpoints. None of it affects the numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from dpdl import _validation as check
from dpdl.result import Result

Callback = Callable[[Result], object]


class OptionKeywords(TypedDict, total=False):
    """Keywords of `Options`, for every function that drives a run."""

    callback: Callback | None
    callback_every: int | None
    callback_seconds: float | None
    progress: bool | None
    step_limit: int | None
    time_limit: float | None
    checkpoint: str | os.PathLike[str] | None
    every: float
    check_slater: bool | None
    even_if_infeasible: bool
    chunk: int | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run, checked; `learn` documents them.

    `stop` is called between chunks, with the number of steps taken; the run ends if it returns True. Runs on an
    executor report their progress and are stopped this way.
    """

    callback: Callback | None = None
    callback_every: int | None = None
    callback_seconds: float | None = None
    progress: bool | None = None
    step_limit: int | None = None
    time_limit: float = math.inf
    checkpoint: Path | None = None
    every: float = 60.0
    check_slater: bool | None = None
    even_if_infeasible: bool = False
    chunk: int | None = None
    stop: Callable[[int], bool] | None = None

    def __post_init__(self) -> None:
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback must be callable, got {type(self.callback).__name__}")
        if self.callback_every is not None and self.callback_seconds is not None:
            raise TypeError("give either callback_every or callback_seconds")
        check.convert_field(self, "callback_every", check.whole, at_least=1)
        check.convert_field(self, "callback_seconds", check.real, at_least=0)
        check.convert_field(self, "progress", check.optional_flag)
        check.convert_field(self, "step_limit", check.whole)
        check.convert_field(self, "time_limit", check.seconds, required=True)
        check.convert_field(self, "checkpoint", _resolved)
        check.convert_field(self, "every", check.real, required=True, at_least=0)
        check.convert_field(self, "check_slater", check.optional_flag)
        check.convert_field(self, "even_if_infeasible", check.flag, required=True)
        check.convert_field(self, "chunk", check.whole, at_least=1)


def _resolved(name: str, value: Any) -> Path:
    """A path without links, so that the target of a link is replaced and not the link."""
    return Path(os.path.realpath(check.path(name, value)))
