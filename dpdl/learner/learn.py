"""`learn`: Algorithm 1 (DPDL) on a log; and `resume`, which continues it from its checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.learner import checkpoint
from dpdl.learner.arguments import accepts, parse, refuse_unknown
from dpdl.learner.drive import Options, drive
from dpdl.learner.interrupts import Interrupts
from dpdl.learner.layout import Inputs, Layout
from dpdl.learner.run import Run
from dpdl.result import Result
from dpdl.settings import Settings


@accepts(Settings, Inputs.of, Options)
def learn(
    log: Dataset,
    settings: Settings | None = None,
    *,
    rng: np.random.Generator | int | None = None,
    **keywords: Any,
) -> Result:
    """Learn a policy with high reward that satisfies every constraint, from a fixed log (DPDL, Algorithm 1).

    With `psi`, `slater` and `T` or `eps` this is the paper's algorithm. What is missing is found from the plan of the
    plug-in model, and the run then starts there: `dpdl.learner.defaults` says how. With `strict` it is the theorem: own
    rows for mu_hat, every row read once, the theorem's steps, or an error that says what is missing.
    In any case the policy is judged on the plug-in model of the log, and the result says what was estimated.

    Parameters
    ----------
    log : Dataset
        The log.
    settings : Settings, optional
        Parameters; or give them as keywords (gamma, psi, slater, T or eps, kappa, floor, order, ...), which also
        override those of `settings`. Only gamma is needed.
    rho0 : array_like, shape (S,), optional
        Distribution of the initial state. This or `initial_states` is needed unless the log has episodes, whose first
        states are the default.
    initial_states : array_like of int, optional
        Logged initial states; draws are made from them with replacement.
    rng : numpy.random.Generator, int or None
        Source of all randomness. Same seed, same build: same bits.
    n_reference : int, optional
        Use this many transitions, the first of the log, for mu_hat only and the rest for the descent, as Theorem 4.1
        requires. By default the whole log is used for both.
    reference : Reference, optional
        mu_hat from other data (`dpdl.data.reference.estimate_reference`), instead of `n_reference`.
    start : Point or {"paper", "plan"}, optional
        Starting point, for instance the `last` of another result. Default: the paper's if psi, slater and T or eps are
        given, otherwise the plan; a run from the plan returns the better of plan and average, as judged. Where the
        plug-in model has no plan, the start is the paper's, and the notes say so.
    known : collection of str, optional
        Which of "psi", "slater", "mixing_time" the caller vouches for; the theorem's conclusion depends on them and no
        run can check them.
    strict : bool, optional
        Run as Theorem 4.1 has it (4.6 with `mixing_time`): eps, psi and slater must be given, mu_hat has the first N_e
        rows for itself, and every step reads another of the rows after them: `order` is "once" and need not be given.
        A ValueError says how many rows are missing. Only such a result can have a guarantee.
    callback : callable, optional
        Called as ``callback(intermediate_result)``; raise StopIteration in it to end the run.
    callback_every : int, optional
        Steps between two calls; by default a hundredth of T.
    callback_seconds : float, optional
        Seconds between two calls, instead of `callback_every`.
    progress : bool, optional
        Show progress in a line after two seconds. Default: if standard error is a terminal. Without one, progress goes
        to the logger "dpdl" every ten seconds.
    step_limit : int, optional
        Stop after this many of the T steps, with status STEP_LIMIT.
    time_limit : float, optional
        Stop after this many seconds, with status TIME_LIMIT.
    checkpoint : path, optional
        File for checkpoints, from which `resume` continues bit for bit; `peek` shows it. It must not exist yet. It is
        written at once, every `every` seconds, and at the end, also if the callback raises an exception. If a later
        write fails, the previous checkpoint is kept, a RuntimeWarning and the result's notes say so, and the run
        continues. Until the run ends, a second one on the same file raises BlockingIOError, in any process; not on
        Windows.
    every : float, optional
        Seconds between two checkpoints.
    chunk : int, optional
        Steps between two looks at the clock; by default what fits into 20 ms. Does not affect the numbers.

    Returns
    -------
    Result
        Also after Ctrl-C, in any thread, and after SIGTERM, in the main thread: then for the steps taken. A second
        Ctrl-C abandons the checkpoint that is being written, and the notes say so. Ctrl-C before the first step raises
        KeyboardInterrupt. If SIGINT or SIGTERM has a handler of the caller's, that handler decides. A process that was
        started with SIGINT ignored, such as a background job of a shell script, keeps ignoring it;
        ``signal.signal(signal.SIGINT, signal.default_int_handler)`` changes that.

    Examples
    --------
    Two actions in one state: the one with reward 1 is unsafe, so the policy must mix them half and half.

    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> result = learn(log, gamma=0.5, rho0=[1.0], rng=0)
    >>> result.success, result.policy.round(1).tolist()
    (True, [[0.5, 0.5]])
    """
    refuse_unknown(learn, keywords)
    generator = check.generator(rng)
    chosen, inputs, options = parse(log, settings, keywords)
    with Interrupts() as interrupts:
        run = Run.new(Layout.of(log, chosen, inputs), generator)
        if options.checkpoint is not None:
            checkpoint.refuse_existing(options.checkpoint)
            checkpoint.check_generator(generator)
        return drive(run, options, interrupts, new=True)


@accepts(Options, but=("checkpoint",))
def resume(
    path: str | os.PathLike[str],
    log: Dataset,
    settings: Settings | None = None,
    **keywords: Any,
) -> Result:
    """Continue a run from its checkpoint: the result is bit for bit that of a run which was never interrupted.

    Parameters
    ----------
    path : path
        The checkpoint of `learn`; the run keeps writing it.
    log : Dataset
        The log of the run; any other raises ValueError.
    settings : Settings, optional
        The settings that the checkpoint must have; any other raise ValueError.
    **keywords
        callback, callback_every, callback_seconds, progress, step_limit, time_limit, every, chunk: as for `learn`.
        `step_limit` counts from the beginning of the run, `time_limit` from this call.

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
    if "checkpoint" in keywords:
        raise TypeError("resume writes to the checkpoint that it resumes from; checkpoint cannot be given")
    refuse_unknown(resume, keywords)
    where = Path(os.path.realpath(check.path("path", path)))
    options = Options(**keywords, checkpoint=where)
    if where.is_dir():
        raise IsADirectoryError(f"{where} is a folder: continue it by the call that made it, with resume=True")
    with Interrupts() as interrupts:
        return drive(checkpoint.load(where, log, settings), options, interrupts, new=False)
