"""`learn`: algorithm 1 (DPDL) on a log, from checked arguments to a `Result`; and `resume`, which goes on with one.

Python owns the callback, the checkpoints and the limits; the compiled core owns the steps. It comes back every 20 ms,
or at once after Ctrl-C; where it does has no influence on the numbers.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _checkpointing as checkpointing
from . import _core
from . import _validation as check
from . import checkpoint as checkpoint_file
from ._progress import Progress
from ._setup import Setup, prepare
from .dataset import Dataset
from .reference import Reference
from .result import Point, Result, Status
from .settings import Settings
from .slater import slater_upper

Callback = Callable[[Result], object]

#: How long the core may run before Python has a look, in seconds.
CHUNK_SECONDS = 0.02
CHECKPOINT_SECONDS = 60.0

log = logging.getLogger("dpdl")


def learn(
    dataset: Dataset,
    settings: Settings | None = None,
    *,
    rho0: ArrayLike | None = None,
    initial_states: ArrayLike | None = None,
    rng: np.random.Generator | int | None = None,
    n_reference: int | None = None,
    reference: Reference | None = None,
    start: Point | None = None,
    known: Collection[str] = (),
    check_slater: bool | None = None,
    callback: Callback | None = None,
    callback_every: int | None = None,
    callback_seconds: float | None = None,
    progress: bool | None = None,
    step_limit: int | None = None,
    time_limit: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: float = CHECKPOINT_SECONDS,
    chunk: int | None = None,
    **keywords: Any,
) -> Result:
    """Learn a policy that earns well and keeps every constraint from a fixed log (DPDL, algorithm 1).

    Parameters
    ----------
    dataset : Dataset
        The log.
    settings : Settings, optional
        Parameters; or give them as keywords (gamma, psi, slater, T or eps, kappa, floor, order, ...), which also
        override those of `settings`.
    rho0 : array_like, shape (S,), optional
        Distribution of the initial state. Either this or `initial_states` is needed.
    initial_states : array_like of int, optional
        Logged initial states; draws are made from them with replacement.
    rng : numpy.random.Generator, int or None
        Source of all randomness. Same seed, same build: same bits.
    n_reference : int, optional
        Use the first so many transitions for mu_hat alone and the rest for the descent, as the theorem asks. By default
        the whole log serves both.
    reference : Reference, optional
        mu_hat from elsewhere (`estimate_reference`), instead of `n_reference`.
    start : Point, optional
        Starting point, for instance the `last` of another result; by default the paper's.
    known : collection of str, optional
        Which of "psi", "slater", "mixing_time" the caller vouches for; the theorem's conclusion depends on them and no
        run can check them.
    check_slater : bool, optional
        After the last step, look whether the data contradicts `slater` (an upper confidence bound, by a linear program)
        and say so in the result's `notes` and premises. Default: if that is quick, for up to 2,000 pairs and 10^6
        transitions.
    callback : callable, optional
        Called as ``callback(intermediate_result)``; raise StopIteration in it to end the run.
    callback_every : int, optional
        Steps between two calls; by default a hundredth of T.
    callback_seconds : float, optional
        Seconds between two calls, instead of `callback_every`.
    progress : bool, optional
        Show a progress bar after two seconds. Default: if standard error is a terminal; if it is not, the logger "dpdl"
        is told every ten seconds.
    step_limit : int, optional
        Stop after so many of the T steps, with a status of its own.
    time_limit : float, optional
        Stop after so many seconds, with a status of its own.
    checkpoint : path, optional
        Keep a checkpoint there, from which `resume` goes on bit for bit: one at once, one every `every` seconds, one at
        the end, however it comes, be it by an error of the callback. There must be none yet. If one cannot be written
        later on, the one before it stays, a RuntimeWarning and the result's notes say so, and the run goes on.
    every : float, optional
        Seconds between two checkpoints.
    chunk : int, optional
        Steps between two looks at the clock; by default what fits into 20 ms. Has no influence on the numbers.

    Returns
    -------
    Result
        Also when interrupted with Ctrl-C, in whichever thread this runs: then for the steps taken. Pressed once more,
        it gives up the checkpoint that is being written, and the notes say so. Before the first step it is an
        exception, and where SIGINT has a handler that is not Python's own, that handler decides.

    Examples
    --------
    Two actions in one state: the better paid one is unsafe, so the policy has to mix them half and half.

    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> result = learn(log, gamma=0.5, psi=2, slater=1, T=200_000, rho0=[1.0], rng=0)
    >>> result.success, result.policy.round(1).tolist()
    (True, [[0.5, 0.5]])
    """
    options = Options.checked(
        callback=callback,
        callback_every=callback_every,
        callback_seconds=callback_seconds,
        progress=progress,
        step_limit=step_limit,
        time_limit=time_limit,
        checkpoint=checkpoint,
        every=every,
        check_slater=check_slater,
        chunk=chunk,
    )
    with _core.Interrupts() as interrupts:
        setup = prepare(dataset, settings, keywords, rho0, initial_states, rng, n_reference, reference, start, known)
        if options.checkpoint is not None:
            checkpoint_file.refuse_existing(options.checkpoint)
            checkpointing.can_be_saved(setup)
        return drive(setup, dataset, options, interrupts, new=True)


def resume(
    path: str | os.PathLike[str],
    dataset: Dataset,
    settings: Settings | None = None,
    *,
    callback: Callback | None = None,
    callback_every: int | None = None,
    callback_seconds: float | None = None,
    progress: bool | None = None,
    step_limit: int | None = None,
    time_limit: float | None = None,
    every: float = CHECKPOINT_SECONDS,
    check_slater: bool | None = None,
    chunk: int | None = None,
) -> Result:
    """Go on with a run from its checkpoint: the result is bit for bit that of a run which was never interrupted.

    Parameters
    ----------
    path : path
        The checkpoint, which is kept up to date as the run goes on.
    dataset : Dataset
        The log of the run; any other is refused.
    settings : Settings, optional
        What the settings are believed to be; if the checkpoint has others, it is refused.
    callback, callback_every, callback_seconds, progress, step_limit, time_limit, every, check_slater, chunk
        As for `learn`. Limits count from the beginning of the run (steps) and from now (time).

    Examples
    --------
    >>> import tempfile
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> options = {"gamma": 0.5, "psi": 2, "slater": 1, "T": 1000, "rho0": [1.0]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "run")
    ...     half = learn(log, **options, rng=0, step_limit=500, checkpoint=path)
    ...     whole = resume(path, log)
    >>> half.status.name, whole.n_steps, bool((whole.x_mean == learn(log, **options, rng=0).x_mean).all())
    ('STEP_LIMIT', 1000, True)
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a path, got {type(path).__name__}")
    options = Options.checked(
        callback=callback,
        callback_every=callback_every,
        callback_seconds=callback_seconds,
        progress=progress,
        step_limit=step_limit,
        time_limit=time_limit,
        checkpoint=path,
        every=every,
        check_slater=check_slater,
        chunk=chunk,
    )
    assert options.checkpoint is not None
    with _core.Interrupts() as interrupts:
        setup = checkpointing.load(options.checkpoint, dataset, settings)
        return drive(setup, dataset, options, interrupts, new=False)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is driven; nothing here changes its numbers."""

    callback: Callback | None
    callback_every: int | None
    callback_seconds: float | None
    progress: bool | None
    step_limit: int | None
    time_limit: float
    checkpoint: Path | None
    every: float
    check_slater: bool | None
    chunk: int | None
    stop: Callable[[], bool] | None = None

    @classmethod
    def checked(cls, **given: Any) -> Options:
        """Options made of a caller's arguments, which are called by the same names."""
        for name in ("progress", "check_slater"):
            if given[name] is not None and not isinstance(given[name], bool):
                raise TypeError(f"{name} must be True, False or None, got {given[name]!r}")
        if given["callback"] is not None and not callable(given["callback"]):
            raise TypeError(f"callback must be callable, got {type(given['callback']).__name__}")
        if given["callback_every"] is not None and given["callback_seconds"] is not None:
            raise TypeError("give either callback_every or callback_seconds")
        for name, at_least in (("callback_every", 1), ("chunk", 1), ("step_limit", 0)):
            if given[name] is not None:
                given[name] = check.whole(name, given[name], at_least=at_least)
        if given["callback_seconds"] is not None:
            given["callback_seconds"] = check.real("callback_seconds", given["callback_seconds"], at_least=0)
        given["every"] = check.real("every", given["every"], at_least=0)
        given["time_limit"] = check.time_limit("time_limit", given["time_limit"])
        if given["checkpoint"] is not None:
            if not isinstance(given["checkpoint"], (str, os.PathLike)):
                raise TypeError(f"checkpoint must be a path, got {type(given['checkpoint']).__name__}")
            given["checkpoint"] = Path(os.path.realpath(given["checkpoint"]))  # a link is followed, not replaced
        return cls(**given)


def drive(setup: Setup, dataset: Dataset, options: Options, interrupts: _core.Interrupts, *, new: bool) -> Result:
    """Take the steps that are left, and make a result of them."""
    core, planned = setup.core, setup.settings.T
    total = planned if options.step_limit is None else min(planned, options.step_limit)
    status, code = Status.COMPLETED if max(total, core.n_steps) == planned else Status.STEP_LIMIT, 0
    keeper = _Keeper(setup, dataset, options.checkpoint, new)
    try:
        with Progress(total, options.progress, core.n_steps) as bar:
            timer = _Timer(setup, keeper, options)
            while core.n_steps < total and code == 0:
                if time.monotonic() >= timer.deadline:
                    status = Status.TIME_LIMIT
                    break
                size, seconds = timer.next_chunk(total - core.n_steps)
                code = core.run(size, seconds)
                if code == 0:
                    timer.attend()
                bar.update(core.n_steps)
                pressed = interrupts.came() and (interrupts.guarded or nobody_else_minds())
                if pressed or (options.stop is not None and options.stop()):
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
            return _finish(setup, dataset, options, keeper, status, code)
        except KeyboardInterrupt:
            # A little late, or once more: the result is not lost. Whoever insists does not have to wait for the disk.
            keeper.hurried = status is Status.INTERRUPTED
            status = Status.INTERRUPTED


def nobody_else_minds() -> bool:
    """Whether an interruption is this thread's business: Python tells the main thread itself."""
    main = threading.current_thread() is threading.main_thread()
    return not main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _finish(setup: Setup, dataset: Dataset, options: Options, keeper: _Keeper, status: Status, code: int) -> Result:
    if code:
        return setup.result(Status.NUMERICAL_ERROR, f"{_core.CODES[code]}; the result covers the steps taken")
    keeper.keep()
    wanted = options.check_slater
    if status is Status.COMPLETED and (wanted or (wanted is None and _quick_to_check(dataset))):
        contradiction = _contradiction(dataset, setup)
        if contradiction:
            setup.notes, setup.slater_refuted = (*setup.notes, contradiction), True
    return setup.result(status)


class _Keeper:
    """The checkpoint of a run, if it keeps one; writes it at once, so that a bad path costs no work."""

    def __init__(self, setup: Setup, dataset: Dataset, path: Path | None, new: bool) -> None:
        self.setup, self.dataset, self.path = setup, dataset, path
        self.hurried = False
        self.trouble = ""
        self.steps = setup.core.n_steps  # of the checkpoint that is there
        if path is not None and (new or self.steps < setup.settings.T):
            checkpointing.save(path, setup, dataset, new=new)

    def keep(self) -> None:
        """Bring it up to date; a full disk must not cost a run of days, but must not go unnoticed either."""
        n_steps = self.setup.core.n_steps
        if self.path is None or n_steps == self.steps:
            return
        if self.hurried:
            self._note("it was interrupted")
            return
        try:
            checkpointing.save(self.path, self.setup, self.dataset)
        except (OSError, MemoryError) as error:
            self._note(str(error) or type(error).__name__)
            log.error(self.trouble)
            warnings.warn(self.trouble, RuntimeWarning, stacklevel=2)
        else:
            self.steps = n_steps
            self._note("")

    def _note(self, reason: str) -> None:
        """Say in the results from now on why the checkpoint is behind, or no longer that it is."""
        notes = tuple(note for note in self.setup.notes if note != self.trouble)
        self.trouble = reason and (
            f"the checkpoint {self.path} could not be written after {self.setup.core.n_steps} steps ({reason}); "
            f"the one before it, of {self.steps} steps, is still there"
        )
        self.setup.notes = (*notes, self.trouble) if reason else notes


class _Timer:
    """What is due when: the callback, the next checkpoint, the end of the time."""

    def __init__(self, setup: Setup, keeper: _Keeper, options: Options) -> None:
        self.setup, self.keeper, self.options = setup, keeper, options
        now = time.monotonic()
        self.deadline = now + options.time_limit
        self.saved = self.called = now
        self.by_steps = options.callback is not None and options.callback_seconds is None
        self.every = options.callback_every or -(-setup.settings.T // 100)

    def next_chunk(self, left: int) -> tuple[int, float]:
        """Steps to take before the next look, and the time they may take."""
        size = left if self.options.chunk is None else min(left, self.options.chunk)
        if self.by_steps:
            size = min(size, self.every - self.setup.core.n_steps % self.every)
        wait = math.inf if self.options.chunk is not None else CHUNK_SECONDS
        return size, min(wait, max(0.0, self.deadline - time.monotonic()))

    def attend(self) -> None:
        """Do what is due."""
        now, options, n_steps = time.monotonic(), self.options, self.setup.core.n_steps
        if options.callback is not None:
            due = n_steps % self.every == 0 if self.by_steps else now - self.called >= (options.callback_seconds or 0)
            if due:
                self.called = now
                options.callback(self.setup.result(Status.RUNNING))
        if options.checkpoint is not None and now - self.saved >= options.every:
            self.keeper.keep()
            self.saved = time.monotonic()


def _quick_to_check(dataset: Dataset) -> bool:
    return dataset.n_states * dataset.n_actions <= 2000 and len(dataset) <= 10**6


def _contradiction(dataset: Dataset, setup: Setup) -> str | None:
    """Say it if, with confidence 1 - delta, no policy within psi of the data's distribution has the slater supplied.

    That distribution is not mu_hat but what mu_hat estimates, so half of delta goes into upper bounds of it: the
    frequency p of a pair falls below mu - sqrt(2 mu l/n) with probability e^-l at most (Chernoff). A trajectory gives
    no such bound without its mixing time, and then only the best of all policies can contradict.
    """
    s, reference = setup.settings, setup.reference
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
    upper = slater_upper(dataset, gamma=s.gamma, rho0=setup.initial, psi=psi, caps=caps, delta=s.delta / 2)
    if upper >= s.slater:
        return None
    found = f"has more than {upper:.3g}" if upper >= 0 else "keeps every constraint"
    return (
        f"slater = {s.slater:g} is contradicted by the data: with confidence {1 - s.delta:g}, no policy{where} {found}"
    )
