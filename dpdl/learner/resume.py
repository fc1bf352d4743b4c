"""`resume`: continue a run, or Algorithm 2, from its checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Unpack

from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.learner import adaptive, checkpoint
from dpdl.learner.arguments import accepts, refuse_unknown
from dpdl.learner.drive import drive
from dpdl.learner.interrupts import Interrupts
from dpdl.learner.options import OptionKeywords, Options
from dpdl.result import Result
from dpdl.settings import Settings


@accepts(OptionKeywords, but=("checkpoint",))
def resume(
    path: str | os.PathLike[str],
    dataset: Dataset,
    settings: Settings | None = None,
    **keywords: Unpack[OptionKeywords],
) -> Result:
    """Continue a run from its checkpoint: the result is bit for bit that of a run which was never interrupted.

    Parameters
    ----------
    path : path
        The checkpoint of `learn` or `learn_adaptive`; the run keeps writing it.
    dataset : Dataset
        The log of the run; any other raises ValueError.
    settings : Settings, optional
        The settings that the checkpoint must have; any other raise ValueError.
    **keywords
        callback, callback_every, callback_seconds, progress, step_limit, time_limit, every, check_slater, chunk: as for
        `learn`. `step_limit` counts from the beginning of the run, `time_limit` from this call.

    Examples
    --------
    >>> import tempfile
    >>> from dpdl import learn
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
    where, given = Path(os.path.realpath(check.path("path", path))), dict[str, Any](keywords)
    options = Options(**given, checkpoint=where)
    with Interrupts() as interrupts:
        if where.is_dir():
            return adaptive.resume_levels(where, dataset, settings, options, interrupts)
        return drive(checkpoint.load(where, dataset, settings), options, interrupts, new=False)
