"""A callback that keeps the estimates of a run while it is under way, for tables and pictures."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpdl.models.cmdp import CMDP
from dpdl.models.estimate import Figure
from dpdl.result import Result


class Recorder:
    """A callback for `learn`, `resume` and `learn_adaptive` that keeps what the log says about each policy on the way.

    Parameters
    ----------
    cmdp, mu : optional
        A model and a data distribution, for the paper's Gap of the average so far; without them the Gap is NaN.

    Attributes
    ----------
    rows : list of dict
        A row a call: steps (the levels of `learn_adaptive` follow one another), seconds, reward, gap, and each
        constraint with its multiplier, in the user's units.
    constraints : tuple of Figure
        The constraints at the last call, with their limits.

    Examples
    --------
    >>> from dpdl import Dataset, learn
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> recorder = Recorder()
    >>> result = learn(log, gamma=0.5, rho0=[1.0], rng=0, callback=recorder, callback_every=50_000)
    >>> recorder.to_table()["steps"].tolist(), list(recorder.rows[0])[2:]
    ([50000, 100000], ['reward', 'gap', 'utility 0', 'multiplier of utility 0'])
    """

    def __init__(self, cmdp: CMDP | None = None, mu: ArrayLike | None = None) -> None:
        self.cmdp, self.mu = cmdp, mu
        self.rows: list[dict[str, float]] = []
        self.constraints: tuple[Figure, ...] = ()
        self._began, self._before = time.perf_counter(), 0

    def __call__(self, intermediate_result: Result) -> None:
        """Keep the estimates of an intermediate result; those of a policy that could not be judged are left out."""
        evaluation = intermediate_result.evaluation
        if evaluation is None:
            return
        last, n_steps = self.rows[-1]["steps"] if self.rows else 0, intermediate_result.n_steps
        if self._before + n_steps < last:  # the next level has begun
            self._before = int(last)
        gap = math.nan
        if self.cmdp is not None and self.mu is not None:
            gap = intermediate_result.gap(self.cmdp, self.mu)
        seconds = time.perf_counter() - self._began
        row = {"steps": self._before + n_steps, "seconds": seconds, "reward": evaluation.reward.value, "gap": gap}
        self.constraints = evaluation.constraints
        for figure, multiplier in zip(self.constraints, intermediate_result.lam_mean, strict=True):
            row |= {figure.name: figure.value, f"multiplier of {figure.name}": float(multiplier)}
        self.rows.append(row)

    def to_table(self) -> dict[str, Any]:
        """Return the columns of a table, one row a call."""
        return {name: np.array([row[name] for row in self.rows]) for name in (self.rows[0] if self.rows else ())}
