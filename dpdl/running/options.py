"""How a run is driven: callback, progress, limits, checkpoints. None of it affects the numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from dpdl import _validation as check
from dpdl.result import Result

Callback = Callable[[Result], object]

CHECKPOINT_SECONDS = 60.0


class OptionKeywords(TypedDict, total=False):
    """Keywords of `Options.of`, for every function that drives a run."""

    callback: Callback | None
    callback_every: int | None
    callback_seconds: float | None
    progress: bool | None
    step_limit: int | None
    time_limit: float | None
    checkpoint: str | os.PathLike[str] | None
    every: float
    check_slater: bool | None
    chunk: int | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run, checked; `learn` documents them.

    `stop` is called between chunks; the run ends if it returns True. Runs on an executor are stopped this way.
    """

    callback: Callback | None = None
    callback_every: int | None = None
    callback_seconds: float | None = None
    progress: bool | None = None
    step_limit: int | None = None
    time_limit: float = math.inf
    checkpoint: Path | None = None
    every: float = CHECKPOINT_SECONDS
    check_slater: bool | None = None
    chunk: int | None = None
    stop: Callable[[], bool] | None = None

    @classmethod
    def of(
        cls,
        *,
        callback: Callback | None = None,
        callback_every: int | None = None,
        callback_seconds: float | None = None,
        progress: bool | None = None,
        step_limit: int | None = None,
        time_limit: float | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = CHECKPOINT_SECONDS,
        check_slater: bool | None = None,
        chunk: int | None = None,
    ) -> Options:
        """Check a caller's arguments."""
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable, got {type(callback).__name__}")
        if callback_every is not None and callback_seconds is not None:
            raise TypeError("give either callback_every or callback_seconds")
        return cls(
            callback=callback,
            callback_every=None
            if callback_every is None
            else check.whole("callback_every", callback_every, at_least=1),
            callback_seconds=None
            if callback_seconds is None
            else check.real("callback_seconds", callback_seconds, at_least=0),
            progress=check.optional_flag("progress", progress),
            step_limit=None if step_limit is None else check.whole("step_limit", step_limit),
            time_limit=check.time_limit("time_limit", time_limit),
            # Resolve links, so that the target of a link is replaced and not the link.
            checkpoint=None if checkpoint is None else Path(os.path.realpath(check.path("checkpoint", checkpoint))),
            every=check.real("every", every, at_least=0),
            check_slater=check.optional_flag("check_slater", check_slater),
            chunk=None if chunk is None else check.whole("chunk", chunk, at_least=1),
        )
