"""Driving a run: chunks of steps, and between them the callback, the checkpoints, the limits and Ctrl-C.

Python owns all of these; the compiled core owns the steps. It comes back every 20 ms, or at once after Ctrl-C; where it
does has no influence on the numbers.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from pathlib import Path

import numpy as np

from dpdl import _core
from dpdl.checking.slater import slater_upper
from dpdl.data.dataset import Dataset
from dpdl.lasting import checkpoint
from dpdl.lasting.interrupts import Interrupts, was_interrupted
from dpdl.lasting.progress import Progress
from dpdl.learning.layout import Layout
from dpdl.learning.run import Run
from dpdl.result import Result, Status
from dpdl.running.options import Options

#: How long the core may run before Python has a look, in seconds.
CHUNK_SECONDS = 0.02

logger = logging.getLogger("dpdl")


def drive(run: Run, options: Options, interrupts: Interrupts, *, new: bool) -> Result:
    """Take the steps that are left, and make a result of them."""
    core, planned = run.core, run.layout.settings.T
    total = planned if options.step_limit is None else min(planned, options.step_limit)
    status, code = Status.COMPLETED if max(total, core.n_steps) == planned else Status.STEP_LIMIT, 0
    keeper = _Keeper(run, options.checkpoint, new)
    try:
        with Progress(total, options.progress, core.n_steps) as bar:
            timer = _Timer(run, keeper, options)
            while core.n_steps < total and code == 0:
                if time.monotonic() >= timer.deadline:
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
            return _finish(run, options, keeper, status, code)
        except KeyboardInterrupt:
            # A little late, or once more: the result is not lost. Whoever insists does not have to wait for the disk.
            keeper.hurried = status is Status.INTERRUPTED
            status = Status.INTERRUPTED


def _finish(run: Run, options: Options, keeper: _Keeper, status: Status, code: int) -> Result:
    if code:
        return run.result(Status.NUMERICAL_ERROR, f"{_core.CODES[code]}; the result covers the steps taken")
    keeper.keep()
    dataset, wanted = run.layout.dataset, options.check_slater
    if status is Status.COMPLETED and (wanted or (wanted is None and _quick_to_check(dataset))):
        contradiction = _contradiction(run.layout)
        if contradiction:
            run.notes, run.slater_refuted = (*run.notes, contradiction), True
    return run.result(status)


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

    def __init__(self, run: Run, keeper: _Keeper, options: Options) -> None:
        self.run, self.keeper, self.options = run, keeper, options
        now = time.monotonic()
        self.deadline = now + options.time_limit
        self.saved = self.called = now
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


def _quick_to_check(dataset: Dataset) -> bool:
    return dataset.n_states * dataset.n_actions <= 2000 and len(dataset) <= 10**6


def _contradiction(layout: Layout) -> str | None:
    """Say it if, with confidence 1 - delta, no policy within psi of the data's distribution has the slater supplied.

    That distribution is not mu_hat but what mu_hat estimates, so half of delta goes into upper bounds of it: the
    frequency p of a pair falls below mu - sqrt(2 mu l/n) with probability e^-l at most (Chernoff). A trajectory gives
    no such bound without its mixing time, and then only the best of all policies can contradict.
    """
    s, reference, dataset = layout.settings, layout.reference, layout.dataset
    if len(dataset) < 2 or dataset.n_utilities == 0:
        return None
    n_pairs, psi = reference.n_states * reference.n_actions, s.psi
    caps, where = np.ones(n_pairs), ""
    if dataset.kind == "independent":
        half = math.log(2 * n_pairs / s.delta) / (2 * reference.n_samples)
        seen = np.zeros(n_pairs)
        seen[reference.pairs] = reference.counts / reference.n_samples
        caps, where = psi * (np.sqrt(seen + half) + math.sqrt(half)) ** 2, f" whose occupancy is within psi = {psi:g}"
        where += " of where the data lies"
    upper = slater_upper(dataset, gamma=s.gamma, rho0=layout.inputs.initial, psi=psi, caps=caps, delta=s.delta / 2)
    if upper >= s.slater:
        return None
    found = f"has more than {upper:.3g}" if upper >= 0 else "keeps every constraint"
    return (
        f"slater = {s.slater:g} is contradicted by the data: with confidence {1 - s.delta:g}, no policy{where} {found}"
    )
