"""Driving a run: chunks of steps, and between them the callback, the checkpoints, the limits and Ctrl-C.

Python handles these; the compiled core takes the steps. It returns every 20 ms, or at once after Ctrl-C. Where it
returns does not affect the numbers.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dpdl import _core
from dpdl.files.atomic import FileLock
from dpdl.learner import checkpoint, practice
from dpdl.learner.interrupts import Interrupts, was_interrupted
from dpdl.learner.options import Options
from dpdl.learner.progress import Progress
from dpdl.learner.run import Run
from dpdl.learner.slater import can_be_checked, contradiction, quick_to_check
from dpdl.models import highs
from dpdl.result import FINISHED, Result, SparseTable, Status

#: Longest time that the core runs before it returns to Python, in seconds.
CHUNK_SECONDS = 0.02
#: Time limit for finding out before the first step whether the constraints can be kept.
FEASIBILITY_SECONDS = 30.0
#: Time limits for comparing slater with the data after the last step: by default, and with check_slater=True.
SLATER_SECONDS, ASKED_SLATER_SECONDS = 5.0, 60.0

logger = logging.getLogger("dpdl")


def drive(run: Run, options: Options, interrupts: Interrupts, *, new: bool) -> Result:
    """Take the remaining steps and return the result; no step if the plug-in model cannot keep the constraints.

    No other run can use the checkpoint meanwhile.
    """
    deadline = time.monotonic() + options.time_limit
    refused = refuse_infeasible(run, options, interrupts) if new and not options.even_if_infeasible else None
    if refused is not None:
        return refused
    lock = FileLock()
    try:
        return _drive(run, options, interrupts, _CheckpointWriter(run, options.checkpoint, lock, new=new), deadline)
    except BaseException:
        lock.release()
        raise


def _drive(run: Run, options: Options, interrupts: Interrupts, writer: _CheckpointWriter, deadline: float) -> Result:
    """Release the writer's lock before the result is returned: Ctrl-C after the return would lose the result."""
    planned = run.layout.settings.T
    total = planned if options.step_limit is None else min(planned, options.step_limit)
    status, code = Status.COMPLETED if max(total, run.n_steps) == planned else Status.STEP_LIMIT, 0
    try:
        with Progress(total, options.progress, run.n_steps) as bar:
            timer = _Timer(run, writer, options, deadline)
            run.settle()
            while run.n_steps < total and code == 0 and not run.has_converged:
                if time.monotonic() >= deadline:
                    status = Status.TIME_LIMIT
                    break
                size, seconds = timer.next_chunk(min(total - run.n_steps, run.left))
                code = run.core.run(size, seconds)
                if code == 0:
                    run.settle()
                    timer.run_due_actions()
                bar.update(run.n_steps)
                if was_interrupted(interrupts) or (options.stop is not None and options.stop(run.n_steps)):
                    raise KeyboardInterrupt
        if run.has_converged:
            status = Status.CONVERGED
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
            if status in FINISHED and not run.slater_checked:
                run.slater_checked = True  # set before the check, so that an interrupted check is not repeated
                _check_slater(run, options, interrupts, deadline)
            result = run.result(status)
            writer.lock.release()
            return result
        except KeyboardInterrupt:
            # The result is still returned. A second Ctrl-C skips the checkpoint.
            writer.skip = status is Status.INTERRUPTED
            status = Status.INTERRUPTED


def refuse_infeasible(run: Run, options: Options, interrupts: Interrupts) -> Result | None:
    """The result, without any step, of a problem whose constraints no policy keeps on the plug-in model, else None.

    It has the most careful policy, if the model is not too large. If the check takes too long, the run's notes say that
    it was not made.
    """
    layout, gamma = run.layout, run.layout.settings.gamma
    seconds = min(FEASIBILITY_SECONDS, options.time_limit)
    work = partial(practice.infeasible, layout.dataset, gamma, layout.inputs.initial)
    found = _in_background(work, seconds, run, options, interrupts)
    if not found:
        note = f"it was not checked within {seconds:.3g} s whether the plug-in model can keep the constraints"
        run.notes = (*run.notes, note)
        return None
    careful, pairs = found[0], layout.dataset.pairs
    if careful is None:
        return None
    weight = layout.reference.at(pairs) * len(layout.dataset) / layout.dataset.pair_counts
    result = run.result(
        Status.INFEASIBLE,
        "no step was taken: on the plug-in model of the log no policy keeps every constraint; the worst normalised "
        f"utility of the most careful one is {careful.margin:.3g} (even_if_infeasible=True runs all the same)",
    )
    if careful.occupancy is None:
        return result
    return replace(result, x_table=SparseTable(pairs, weight * careful.occupancy.ravel()[pairs], 0.0))


def _check_slater(run: Run, options: Options, interrupts: Interrupts, deadline: float) -> None:
    """Check whether the data contradicts slater, if that is requested or quick; the run's notes get the outcome."""
    dataset, settings, wanted = run.layout.dataset, run.layout.settings, options.check_slater
    if wanted is False or (wanted is None and not quick_to_check(dataset)) or not can_be_checked(dataset):
        return
    seconds = min(SLATER_SECONDS if wanted is None else ASKED_SLATER_SECONDS, max(0.0, deadline - time.monotonic()))
    work = partial(contradiction, dataset, settings, run.layout.reference, run.layout.inputs.initial)
    unfinished = f"slater = {settings.slater:g} was not compared with the data: the check"
    try:
        found = _in_background(work, seconds, run, options, interrupts)
    except KeyboardInterrupt:
        run.notes = (*run.notes, f"{unfinished} was interrupted")
        raise
    if not found:
        run.notes = (*run.notes, f"{unfinished} did not finish within {seconds:.3g} s")
    elif found[0]:
        run.notes, run.slater_refuted = (*run.notes, found[0]), True


def _in_background(
    work: Callable[[], Any], seconds: float, run: Run, options: Options, interrupts: Interrupts
) -> tuple[()] | tuple[Any]:
    """Return what a function that solves linear programs returns, or nothing if that takes longer.

    It runs in a thread, because Python does not handle Ctrl-C while HiGHS is running. An abandoned thread ends when the
    time limit of its linear programs expires.
    """
    found: list[Any] = []
    failed: list[Exception] = []
    finished = threading.Event()  # an interrupted Thread.join may take a running thread for a finished one

    def target() -> None:
        try:
            with highs.time_limit(seconds):
                found.append(work())
        except TimeoutError:
            pass
        except Exception as error:
            failed.append(error)
        finally:
            finished.set()

    # Not a daemon: the interpreter aborts if it is finalised while such a thread is inside HiGHS.
    worker = threading.Thread(target=target, name="dpdl-linear-program")
    ends = time.monotonic() + seconds
    worker.start()
    while not finished.wait(CHUNK_SECONDS) and time.monotonic() < ends:
        if was_interrupted(interrupts) or (options.stop is not None and options.stop(run.n_steps)):
            raise KeyboardInterrupt
    if failed:
        raise failed[0]
    return (found[0],) if found else ()


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

    def __init__(self, run: Run, writer: _CheckpointWriter, options: Options, deadline: float) -> None:
        self.run, self.writer, self.options, self.deadline = run, writer, options, deadline
        self.saved = self.called = time.monotonic()
        self.by_steps = options.callback is not None and options.callback_seconds is None
        self.every = options.callback_every or -(-run.layout.settings.T // 100)

    def next_chunk(self, left: int) -> tuple[int, float]:
        """Largest number of steps of the next chunk, and its time limit."""
        size = left if self.options.chunk is None else min(left, self.options.chunk)
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
