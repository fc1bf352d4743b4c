"""Driving a run: chunks of steps, and between them the callback, the checkpoints, the limits and Ctrl-C.

Python owns all of these; the compiled core owns the steps. It comes back every 20 ms, or at once after Ctrl-C; where it
does has no influence on the numbers.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import warnings
from pathlib import Path

from dpdl import _core
from dpdl.checking.slater import can_be_checked, contradiction, quick_to_check
from dpdl.lasting import checkpoint
from dpdl.lasting.interrupts import Interrupts, was_interrupted
from dpdl.lasting.progress import Progress
from dpdl.learning.run import Run
from dpdl.models.highs import time_limit
from dpdl.result import Result, Status
from dpdl.running.options import Options

#: How long the core may run before Python has a look, in seconds.
CHUNK_SECONDS = 0.02
#: How long the data may be compared with slater after the last step, by default and where that is asked for.
SLATER_SECONDS, ASKED_SLATER_SECONDS = 5.0, 600.0

logger = logging.getLogger("dpdl")


def drive(run: Run, options: Options, interrupts: Interrupts, *, new: bool) -> Result:
    """Take the steps that are left, and make a result of them."""
    core, planned = run.core, run.layout.settings.T
    total = planned if options.step_limit is None else min(planned, options.step_limit)
    status, code = Status.COMPLETED if max(total, core.n_steps) == planned else Status.STEP_LIMIT, 0
    deadline = time.monotonic() + options.time_limit
    keeper = _Keeper(run, options.checkpoint, new)
    try:
        with Progress(total, options.progress, core.n_steps) as bar:
            timer = _Timer(run, keeper, options, deadline)
            while core.n_steps < total and code == 0:
                if time.monotonic() >= deadline:
                    status = Status.TIME_LIMIT
                    break
                size, seconds = timer.next_chunk(total - core.n_steps)
                code = core.run(size, seconds)
                if code == 0:
                    timer.attend()
                bar.update(core.n_steps)
                if was_interrupted(interrupts) or (options.stop is not None and options.stop()):
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except StopIteration:
        status = Status.STOPPED
    except BaseException:  # an error of the callback, a SystemExit at SIGTERM: the caller's, but no work is lost to it
        if code == 0:
            keeper.keep()
        raise
    while True:
        try:
            return _finish(run, options, keeper, status, code, interrupts, deadline)
        except KeyboardInterrupt:
            # A little late, or once more: the result is not lost. Whoever insists does not have to wait for the disk.
            keeper.hurried = status is Status.INTERRUPTED
            status = Status.INTERRUPTED


def _finish(
    run: Run, options: Options, keeper: _Keeper, status: Status, code: int, interrupts: Interrupts, deadline: float
) -> Result:
    if code:
        return run.result(Status.NUMERICAL_ERROR, f"{_core.CODES[code]}; the result covers the steps taken")
    keeper.keep()
    if status is Status.COMPLETED and not run.slater_checked:
        run.slater_checked = True  # also if it is interrupted: the result must not wait for it again
        _check_slater(run, options, interrupts, deadline)
    return run.result(status)


def _check_slater(run: Run, options: Options, interrupts: Interrupts, deadline: float) -> None:
    """Look whether the data contradicts slater, if that is asked for or quick; say in the run's notes what came of it.

    The work is done in a thread, because Python does not hear Ctrl-C while HiGHS is working. One that is abandoned ends
    by itself with the time limit of its linear programs.
    """
    dataset, settings, wanted = run.layout.dataset, run.layout.settings, options.check_slater
    if wanted is False or (wanted is None and not quick_to_check(dataset)) or not can_be_checked(dataset):
        return
    seconds = min(SLATER_SECONDS if wanted is None else ASKED_SLATER_SECONDS, max(0.0, deadline - time.monotonic()))
    found: list[str | Exception | None] = []

    def work() -> None:
        try:
            with time_limit(seconds):
                found.append(contradiction(dataset, settings, run.layout.reference, run.layout.inputs.initial))
        except TimeoutError:
            pass
        except Exception as error:
            found.append(error)

    worker = threading.Thread(target=work, name="dpdl-slater", daemon=True)
    ends = time.monotonic() + seconds
    worker.start()
    while worker.is_alive() and time.monotonic() < ends:
        worker.join(CHUNK_SECONDS)
        if was_interrupted(interrupts) or (options.stop is not None and options.stop()):
            raise KeyboardInterrupt
    if not found:
        note = f"slater = {settings.slater:g} was not compared with the data: that was not done after {seconds:.3g} s"
        run.notes = (*run.notes, note)
    elif isinstance(found[0], Exception):
        raise found[0]
    elif found[0]:
        run.notes, run.slater_refuted = (*run.notes, found[0]), True


class _Keeper:
    """The checkpoint of a run, if it keeps one; writes it at once, so that a bad path costs no work."""

    def __init__(self, run: Run, path: Path | None, new: bool) -> None:
        self.run, self.path = run, path
        self.hurried = False
        self.trouble = ""
        self.steps = run.core.n_steps  # of the checkpoint that is there
        if path is not None and (new or self.steps < run.layout.settings.T):
            checkpoint.save(path, run, new=new)

    def keep(self) -> None:
        """Bring it up to date; a full disk must not cost a run of days, but must not go unnoticed either."""
        n_steps = self.run.core.n_steps
        if self.path is None or n_steps == self.steps:
            return
        if self.hurried:
            self._note("it was interrupted")
            return
        try:
            checkpoint.save(self.path, self.run)
        except (OSError, MemoryError) as error:
            self._note(str(error) or type(error).__name__)
            logger.error(self.trouble)
            warnings.warn(self.trouble, RuntimeWarning, stacklevel=2)
        else:
            self.steps = n_steps
            self._note("")

    def _note(self, reason: str) -> None:
        """Say in the results from now on why the checkpoint is behind, or no longer that it is."""
        notes = tuple(note for note in self.run.notes if note != self.trouble)
        self.trouble = reason and (
            f"the checkpoint {self.path} could not be written after {self.run.core.n_steps} steps ({reason}); "
            f"the one before it, of {self.steps} steps, is still there"
        )
        self.run.notes = (*notes, self.trouble) if reason else notes


class _Timer:
    """What is due when: the callback, the next checkpoint, the end of the time."""

    def __init__(self, run: Run, keeper: _Keeper, options: Options, deadline: float) -> None:
        self.run, self.keeper, self.options, self.deadline = run, keeper, options, deadline
        self.saved = self.called = time.monotonic()
        self.by_steps = options.callback is not None and options.callback_seconds is None
        self.every = options.callback_every or -(-run.layout.settings.T // 100)

    def next_chunk(self, left: int) -> tuple[int, float]:
        """Steps to take before the next look, and the time they may take."""
        size = left if self.options.chunk is None else min(left, self.options.chunk)
        if self.by_steps:
            size = min(size, self.every - self.run.core.n_steps % self.every)
        wait = math.inf if self.options.chunk is not None else CHUNK_SECONDS
        return size, min(wait, max(0.0, self.deadline - time.monotonic()))

    def attend(self) -> None:
        """Do what is due."""
        now, options, n_steps = time.monotonic(), self.options, self.run.core.n_steps
        if options.callback is not None:
            due = n_steps % self.every == 0 if self.by_steps else now - self.called >= (options.callback_seconds or 0)
            if due:
                self.called = now
                options.callback(self.run.result(Status.RUNNING))
        if options.checkpoint is not None and now - self.saved >= options.every:
            self.keeper.keep()
            self.saved = time.monotonic()
