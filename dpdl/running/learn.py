"""`learn`: Algorithm 1 (DPDL) on a log."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.lasting import checkpoint, checkpoint_file
from dpdl.lasting.interrupts import Interrupts
from dpdl.learning.layout import Layout
from dpdl.learning.run import Run
from dpdl.result import Result
from dpdl.running.arguments import RunKeywords, accepts, parse
from dpdl.running.driver import drive
from dpdl.running.options import Options
from dpdl.settings import Settings


@accepts(RunKeywords)
def learn(
    dataset: Dataset,
    settings: Settings | None = None,
    *,
    rng: np.random.Generator | int | None = None,
    **keywords: Unpack[RunKeywords],
) -> Result:
    """Learn a policy that earns well and keeps every constraint from a fixed log (DPDL, Algorithm 1).

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
        Use the first so many transitions for mu_hat alone and the rest for the descent, as Theorem 4.1 asks. By default
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
        transitions. It ends with `time_limit`, after 5 seconds at most by default and 10 minutes if it is asked for;
        if it was not done by then, the notes say so. Ctrl-C returns at once.
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
        exception, and where SIGINT has a handler that is not Python's own, that handler decides. A process that was
        started with SIGINT ignored, as the background jobs of a shell script are, goes on ignoring it, and the run
        takes its steps; ``signal.signal(signal.SIGINT, signal.default_int_handler)`` makes such a process listen.

    Examples
    --------
    Two actions in one state: the better paid one is unsafe, so the policy has to mix them half and half.

    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> result = learn(log, gamma=0.5, psi=2, slater=1, T=200_000, rho0=[1.0], rng=0)
    >>> result.success, result.policy.round(1).tolist()
    (True, [[0.5, 0.5]])
    """
    generator = check.generator(rng)
    chosen, inputs, options = parse(dataset, settings, dict(keywords))
    with Interrupts() as interrupts:
        return start(Layout.of(dataset, chosen, inputs), generator, options, interrupts)


def start(layout: Layout, generator: np.random.Generator, options: Options, interrupts: Interrupts) -> Result:
    """Begin a run, and take its steps."""
    run = Run.of(layout, generator)
    if options.checkpoint is not None:
        checkpoint_file.refuse_existing(options.checkpoint)
        checkpoint.check_generator(generator)
    return drive(run, options, interrupts, new=True)
