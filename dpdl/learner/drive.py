"""Driving a run: chunks of steps, and between them the callback, the checkpoints, the limits and signals.

Python handles these; the compiled core takes the steps. It returns every 20 ms, or at once after Ctrl-C. Where it
returns does not affect the numbers.
"""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdl import _core
from dpdl import _validation as check
from dpdl.files.atomic import FileLock
from dpdl.learner import checkpoint
from dpdl.learner.interrupts import Interrupts
from dpdl.learner.progress import Progress
from dpdl.learner.run import Run
from dpdl.result import Result
from dpdl.stopping import Limits, Status

#: Longest time that the core runs before it returns to Python, in seconds.
CHUNK_SECONDS = 0.02

Callback = Callable[[Result], object]
logger = logging.getLogger("dpdl")


@dataclass(frozen=True, kw_only=True)
class Options(Limits):
    """How a run is driven; `learn` documents the options. None of them affects the numbers.

    `stop` is called between chunks; the run ends as after Ctrl-C if it returns True.
    """

    callback: Callback | None = None
    callback_every: int | None = None
    callback_seconds: float | None = None
    progress: bool | None = None
    checkpoint: Path | None = None
    every: float = 60.0
    chunk: int | None = None
    stop: Callable[[], bool] = bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback must be callable, got {type(self.callback).__name__}")
        if self.callback_every is not None and self.callback_seconds is not None:
            raise TypeError("give either callback_every or callback_seconds")
        check.convert_field(self, "callback_every", check.whole, at_least=1)
        check.convert_field(self, "callback_seconds", check.real, at_least=0)
        check.convert_field(self, "progress", check.optional_flag)
        check.convert_field(self, "checkpoint", _resolved)
        check.convert_field(self, "every", check.real, required=True, at_least=0)
        check.convert_field(self, "chunk", check.whole, at_least=1)


def _resolved(name: str, value: Any) -> Path:
    """A path without links, so that the target of a link is replaced and not the link."""
    return Path(os.path.realpath(check.path(name, value)))


def drive(run: Run, options: Options, interrupts: Interrupts, *, new: bool) -> Result:
    """Take the remaining steps and return the result. No other run can use the checkpoint meanwhile."""
    began, lock = time.monotonic(), FileLock()
    try:
        return _drive(run, options, interrupts, _CheckpointWriter(run, options.checkpoint, lock, new=new), began)
    except BaseException:
        lock.release()
        raise


def _drive(run: Run, options: Options, interrupts: Interrupts, writer: _CheckpointWriter, began: float) -> Result:
    """Release the writer's lock before the result is returned: Ctrl-C after the return would lose the result."""
    planned, code, status = run.layout.settings.T, 0, None
    try:
        with Progress(options.steps(planned), options.progress, run.n_steps) as bar:
            timer = _Timer(run, writer, options, began)
            while status is None and code == 0:
                status = options.reached(run.n_steps, planned, time.monotonic() - began)
                if status is None:
                    code = run.core.run(*timer.next_chunk())
                    if code == 0:
                        timer.run_due_actions()
                    bar.update(run.n_steps)
                    if interrupts.came() or options.stop():
                        raise KeyboardInterrupt
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except StopIteration:
        status = Status.STOPPED
    except BaseException:  # raised by the callback or by a signal handler: save the steps taken, then pass it on
        if code == 0:
            writer.update()
        raise
    while True:
        try:
            if code:
                writer.lock.release()
                return run.result(Status.NUMERICAL_ERROR, f"{_core.CODES[code]}; the result covers the steps taken")
            writer.update()
            result = run.result(status or Status.INTERRUPTED)
            writer.lock.release()
            return result
        except KeyboardInterrupt:
            # The result is still returned. A second Ctrl-C skips the checkpoint.
            writer.skip = status is Status.INTERRUPTED
            status = Status.INTERRUPTED


class _CheckpointWriter:
    """Writes the checkpoints of a run, if it has any; the first one at once, so that a bad path fails before the run.

    `skip` suppresses further writes, `note` says in the results why the checkpoint is out of date.
    """

    def __init__(self, run: Run, path: Path | None, lock: FileLock, *, new: bool) -> None:
        self.run, self.path, self.lock = run, path, lock
        self.skip = False
        self.note = ""
        self.steps = run.n_steps  # in the checkpoint on disk
        if path is not None and (new or self.steps < run.layout.settings.T):
            if not new:
                lock.take(path)
            checkpoint.save(path, run, lock, new=new)

    def update(self) -> None:
        """Write a checkpoint. If that fails, for instance because the disk is full, warn and let the run continue."""
        n_steps = self.run.n_steps
        if self.path is None or n_steps == self.steps:
            return
        if self.skip:
            self._report("it was interrupted")
            return
        try:
            checkpoint.save(self.path, self.run, self.lock)
        except (OSError, MemoryError) as error:
            self._report(str(error) or type(error).__name__)
            logger.error(self.note)
            warnings.warn(self.note, RuntimeWarning, stacklevel=2)
        else:
            self.steps = n_steps
            self._report("")

    def _report(self, reason: str) -> None:
        """Put the reason why the checkpoint is out of date into the run's notes; an empty reason removes it."""
        notes = tuple(note for note in self.run.notes if note != self.note)
        self.note = reason and (
            f"the checkpoint {self.path} could not be written after {self.run.n_steps} steps ({reason}); "
            f"the previous one, of {self.steps} steps, is kept"
        )
        self.run.notes = (*notes, self.note) if reason else notes


class _Timer:
    """When the callback, the next checkpoint and the end of the run are due."""

    def __init__(self, run: Run, writer: _CheckpointWriter, options: Options, began: float) -> None:
        self.run, self.writer, self.options = run, writer, options
        self.deadline = began + options.time_limit
        self.last = options.steps(run.layout.settings.T)
        self.saved = self.called = time.monotonic()
        self.by_steps = options.callback is not None and options.callback_seconds is None
        self.every = options.callback_every or -(-run.layout.settings.T // 100)

    def next_chunk(self) -> tuple[int, float]:
        """Largest number of steps of the next chunk, and its time limit."""
        size = self.last - self.run.n_steps
        if self.options.chunk is not None:
            size = min(size, self.options.chunk)
        if self.by_steps:
            size = min(size, self.every - self.run.n_steps % self.every)
        wait = math.inf if self.options.chunk is not None else CHUNK_SECONDS
        return size, min(wait, max(0.0, self.deadline - time.monotonic()))

    def run_due_actions(self) -> None:
        """Call the callback and write a checkpoint, if they are due."""
        now, options, n_steps = time.monotonic(), self.options, self.run.n_steps
        if options.callback is not None:
            due = n_steps % self.every == 0 if self.by_steps else now - self.called >= (options.callback_seconds or 0)
            if due:
                self.called = now
                options.callback(self.run.result(Status.RUNNING))
        if options.checkpoint is not None and now - self.saved >= options.every:
            self.writer.update()
            self.saved = time.monotonic()
