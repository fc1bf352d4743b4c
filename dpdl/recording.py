"""A callback that keeps the estimates of a run while it is under way, for tables and pictures."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpdl.models.cmdp import CMDP
from dpdl.models.judgement import Figure
from dpdl.result import Result


@dataclass
class Recorder:
    """A callback for `learn`, `resume` and `learn_adaptive` that keeps what the log says about each policy on the way.

    Parameters
    ----------
    cmdp, mu : optional
        The true model, or a plug-in model, and the data distribution, of which the Gap is computed at every call.

    Attributes
    ----------
    steps : list of int
        Steps taken when the callback was called. The levels of `learn_adaptive` follow one another.
    seconds : list of float
        Time since the recorder was made.
    rewards : list of float
        Estimated rewards, in the user's units.
    constraints : list of tuple of Figure
        Estimates of the constraints, with their limits.
    gaps : list of float
        The paper's Gap of the average so far, on the model `cmdp` and the data distribution `mu`; NaN without them.
    multipliers : list of array
        Averages of lam.

    Examples
    --------
    >>> from dpdl import Dataset, learn
    >>> log = Dataset([0, 0], [0, 1], [0, 0], [1.0, 0.0], [[-1.0], [1.0]], n_states=1, n_actions=2)
    >>> recorder = Recorder()
    >>> result = learn(log, gamma=0.5, rho0=[1.0], rng=0, callback=recorder, callback_every=50_000)
    >>> recorder.steps
    [50000, 100000]
    >>> [name for name in recorder.to_table()]
    ['steps', 'seconds', 'reward', 'gap', 'utility 0', 'multiplier of utility 0']
    """

    cmdp: CMDP | None = field(default=None, repr=False)
    mu: ArrayLike | None = field(default=None, repr=False)
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    constraints: list[tuple[Figure, ...]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    multipliers: list[Any] = field(default_factory=list)
    _began: float = field(default_factory=time.perf_counter, repr=False)
    _before: int = field(default=0, repr=False)

    def __call__(self, intermediate_result: Result) -> None:
        """Keep the estimates of an intermediate result; those of a policy that could not be judged are left out."""
        evaluation = intermediate_result.evaluation
        if evaluation is None:
            return
        if self.steps and intermediate_result.n_steps + self._before < self.steps[-1]:  # the next level has begun
            self._before = self.steps[-1]
        self.steps.append(self._before + intermediate_result.n_steps)
        self.seconds.append(time.perf_counter() - self._began)
        self.rewards.append(evaluation.reward.value)
        self.constraints.append(evaluation.constraints)
        known = self.cmdp is not None and self.mu is not None
        self.gaps.append(intermediate_result.gap(self.cmdp, self.mu) if known else math.nan)  # type: ignore[arg-type]
        self.multipliers.append(np.array(intermediate_result.lam_mean))

    def to_table(self) -> dict[str, Any]:
        """Return the columns of a table, one row a call."""
        table: dict[str, Any] = {
            "steps": np.array(self.steps, dtype=np.int64),
            "seconds": np.array(self.seconds),
            "reward": np.array(self.rewards),
            "gap": np.array(self.gaps),
        }
        names = [one.name for one in self.constraints[0]] if self.constraints else []
        for i, name in enumerate(names):
            table[name] = np.array([one[i].value for one in self.constraints])
        for i, name in enumerate(names):
            table[f"multiplier of {name}"] = np.array([one[i] for one in self.multipliers])
        return table
