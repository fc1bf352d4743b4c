"""`learn`: Algorithm 1 (DPDL) on a log."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.learner import checkpoint, checkpoint_file
from dpdl.learner.arguments import RunKeywords, accepts, parse, refuse_unknown
from dpdl.learner.drive import drive
from dpdl.learner.interrupts import Interrupts
from dpdl.learner.layout import Layout
from dpdl.learner.run import Run
from dpdl.result import Result
from dpdl.settings import Settings


@accepts(RunKeywords)
def learn(
    dataset: Dataset,
    settings: Settings | None = None,
    *,
    rng: np.random.Generator | int | None = None,
    **keywords: Unpack[RunKeywords],
) -> Result:
    """Learn a policy with high reward that satisfies every constraint, from a fixed log (DPDL, Algorithm 1).

    With `psi`, `slater` and `T` or `eps` this is the paper's algorithm. If any of them is missing, or `tol` is given,
    what is missing is found from the data, and so are a starting point, step sizes and a margin; steps are taken in
    phases, and the best point that was judged is returned: `dpdl.learner.practice` says how, and what each way is good
    for.
    Either way the policy is judged on the plug-in model of the log, and the result says what was estimated.

    Parameters
    ----------
    dataset : Dataset
        The log.
    settings : Settings, optional
        Parameters; or give them as keywords (gamma, psi, slater, T or eps, kappa, floor, order, ...), which also
        override those of `settings`. As keywords, only gamma is needed. ``profile="theory"`` or ``"practice"`` says
        which of the two ways is meant. In practice `tol` ends the run, with status CONVERGED, when the gap on the
        plug-in model, relative to the reward, is at most that: before the first step, or after a phase.
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
        mu_hat from other data (`estimate_reference`), instead of `n_reference`.
    start : Point, optional
        Starting point, for instance the `last` of another result; by default the paper's, or in practice a plan.
    known : collection of str, optional
        Which of "psi", "slater", "mixing_time" the caller vouches for; the theorem's conclusion depends on them and no
        run can check them.
    check_slater : bool, optional
        After the last step, check whether the data contradicts `slater` (an upper confidence bound, by a linear
        program) and report that in the result's `notes` and premises. Default: if that is quick, for up to 2,000 pairs
        and 10^6 transitions. The check ends with `time_limit`, and after 5 seconds by default or a minute if True; if
        it did not finish, the notes say so. Ctrl-C returns at once.
    even_if_infeasible : bool, optional
        Run although no policy keeps every constraint on the plug-in model. By default such a problem ends before the
        first step, with status INFEASIBLE and, unless the model is large, with the most careful policy.
    callback : callable, optional
        Called as ``callback(intermediate_result)``; raise StopIteration in it to end the run. In practice an
        intermediate result is that of the best phase so far, or the start.
    callback_every : int, optional
        Steps between two calls; by default a hundredth of T.
    callback_seconds : float, optional
        Seconds between two calls, instead of `callback_every`.
    progress : bool, optional
        Show a progress bar after two seconds. Default: if standard error is a terminal; if it is not, progress goes to
        the logger "dpdl" every ten seconds.
    step_limit : int, optional
        Stop after this many of the T steps, with status STEP_LIMIT.
    time_limit : float, optional
        Stop after this many seconds, with status TIME_LIMIT.
    checkpoint : path, optional
        File for checkpoints, from which `resume` continues bit for bit. It must not exist yet. It is written at once,
        every `every` seconds, and at the end, also if the callback raises an exception. If a later write fails, the
        previous checkpoint is kept, a RuntimeWarning and the result's notes say so, and the run continues. Until the
        run ends, a second one on the same file raises BlockingIOError, in any process; not on Windows.
    every : float, optional
        Seconds between two checkpoints.
    chunk : int, optional
        Steps between two looks at the clock; by default what fits into 20 ms. Does not affect the numbers.

    Returns
    -------
    Result
        Also after Ctrl-C, in any thread: then for the steps taken. A second Ctrl-C abandons the checkpoint that is
        being written, and the notes say so. Ctrl-C before the first step raises KeyboardInterrupt. If SIGINT has a
        handler other than Python's own, that handler decides. A process that was started with SIGINT ignored, such as
        a background job of a shell script, keeps ignoring it;
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
    chosen, inputs, options = parse(dataset, settings, dict(keywords))
    with Interrupts() as interrupts:
        run = Run.of(Layout.of(dataset, chosen, inputs), generator)
        if options.checkpoint is not None:
            checkpoint_file.refuse_existing(options.checkpoint)
            checkpoint.check_generator(generator)
        return drive(run, options, interrupts, new=True)
