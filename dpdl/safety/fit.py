"""Does a log fit the model that certificates rest on: one Markov decision process with the states that were named?

`dpdl.safety.residuals` computes the tests: whether the reward and each cost of a step, their totals from there on (for
the policy that made the log and the one in question) and the next state depend on what happened before, on any of
`HISTORIES`. The largest of all is compared with the normal quantile at `level`, by Bonferroni. How large a misfit is
stands beside each rejection: it informs, and excuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from dpdl import _text as text
from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.files.saved import Saved
from dpdl.safety.episodes import OwnTotal, own_totals, steps, why_no_episodes
from dpdl.safety.residuals import (
    FEW,
    NEXT_STATE,
    Half,
    Model,
    Statistic,
    both_halves,
    knowing,
    next_state,
    statistics,
    units,
)

#: What happened before a row, and what a person can do where it matters.
HISTORIES = {
    "previous residual": "what happened in the step before still matters: the states are too coarse (more bins), or "
    "lack a column that carries over from step to step",
    "previous pair": "where the episode came from matters: the states are too coarse (more bins), or lack a column "
    "that carries over from step to step",
    "episode so far": "something lasting about an episode is not in the state: add the column that tells such episodes "
    "apart (the type of patient, the machine, the day of the week)",
    "actions so far": "episodes that take an action more often differ from the others: whoever chose the actions saw "
    "something that is not in the state; add that column",
    "time": "what follows depends on the time in the episode: if episodes end by the clock, put the time into the "
    'state (state=["ward", "day"]) or, if things go on after them, mark their last rows truncated, not terminated',
    "discount": "the log's own discounted totals are not what the model says of the policy that made the log: put the "
    'time into the state (state=["ward", "day"]), or mark rows truncated at which only the record stops',
}
LEVEL = 0.01
FITS, REJECTED, UNTESTED = "fits", "rejected", "not tested"


@dataclass(frozen=True)
class ModelTest:
    """One test: whether what a state and action lead to depends on something that happened before.

    Attributes
    ----------
    signal : str
        "reward", the name of a cost, or "next state".
    step : bool
        Whether the step alone is tested; otherwise the step and the values of the states that follow.
    policy : {"log", "in question"}
        Whose values, and where it goes: the policy that made the log, or the one in question.
    history : str
        What happened before; a key of `HISTORIES`.
    z : float
        Standard normal under the model.
    episodes : float
        Effective number of episodes: (sum of squares)^2 / (sum of fourth powers) of their contributions.
    rejected : bool
    model, knowing : float or None
        Discounted total of that policy by the model, and if the state also knew the history in four bins; None unless
        a test of this history is rejected.
    """

    signal: str
    step: bool
    policy: str
    history: str
    z: float
    episodes: float
    rejected: bool = False
    model: float | None = None
    knowing: float | None = None

    def __str__(self) -> str:
        return (
            self.signal if self.signal == NEXT_STATE else f"{self.signal} {'of the step' if self.step else 'to come'}"
        )

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of a table."""
        verdict = "REJECTED" if self.rejected else ""
        figures = (f"{self.z:+.1f}", f"{self.episodes:,.0f}", verdict, text.tidy(self.model), text.tidy(self.knowing))
        return (str(self), self.history, f"of the {self.policy}" if self.policy == "log" else self.policy, *figures)


_HEADER = ("does this", "depend on this", "policy", "z", "episodes", "", "total by the model", "if the state knew")
_TOTALS = ("log's own episodes", "discounted", "std. error", "model", "log / model", "undiscounted", "std. error")


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelCheck(text.Shown, Saved):
    """Whether a log fits the model that certificates rest on; `check_model` makes one.

    Attributes
    ----------
    status : {"fits", "rejected", "not tested"}
        "fits" means that no test found a misfit, which a short log cannot.
    reason : str or None
        Why the log was not tested.
    tests : tuple of ModelTest
    totals : tuple of OwnTotal
        What the log's own episodes came to, from the rows.
    model_totals : tuple of float
        Discounted totals of the policy that made the log, by the model.
    level : float
        Probability that a log of the model is rejected, by all tests together.
    gamma : float
    profiles : dict
        For each signal and for "time" and "episode so far": places, mean residuals, and their standard errors.
    """

    FORMAT: ClassVar[str] = "dpdl model check"

    status: str
    reason: str | None = None
    tests: tuple[ModelTest, ...] = ()
    totals: tuple[OwnTotal, ...] = ()
    model_totals: tuple[float, ...] = ()
    level: float = LEVEL
    gamma: float
    profiles: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)

    @property
    def rejected(self) -> bool:
        """Whether the log contradicts the model."""
        return self.status == REJECTED

    @property
    def threshold(self) -> float:
        """Size of z beyond which a test rejects: all together reject a log that fits with a probability of `level`."""
        return float(-ndtri(self.level / 2 / max(1, len(self.tests))))

    @property
    def advice(self) -> tuple[str, ...]:
        """What a person can do about each kind of rejection, the clearest first."""
        worst = sorted((test for test in self.tests if test.rejected), key=lambda test: -abs(test.z))
        names = dict.fromkeys(test.history for test in worst)
        return tuple(f"{name}: {HISTORIES[name]}" for name in names)

    @property
    def message(self) -> str:
        """The result in a sentence."""
        if self.status == UNTESTED:
            return f"The log cannot be tested: {self.reason}."
        tests = f"in one of {len(self.tests)} tests"
        rule = f"of logs that fit, {100 * self.level:g}% have a |z| beyond {self.threshold:.1f} {tests}"
        if not self.rejected:
            return f"The log does not contradict the model ({rule})."
        worst = max(self.tests, key=lambda test: abs(test.z))
        return (
            "The log does not come from one decision process with these states: "
            f"{worst} depends on {worst.history} (z = {worst.z:+.1f}; {rule})."
        )

    def parts(self) -> Iterator[str | text.Table]:
        """The result, the tests and the totals, and advice."""
        yield f"{self.status.upper()}: {self.message}"
        if self.tests:
            yield _HEADER, [test.row for test in sorted(self.tests, key=lambda test: -abs(test.z))]
        rows = []
        for own, model in zip(self.totals, self.model_totals, strict=True):
            ratio = "" if model == 0 else f"{own.discounted / model:.3g}"
            cells = (own.discounted, own.discounted_error, model), (own.total, own.total_error)
            first, second = ([text.tidy(x) for x in part] for part in cells)
            rows.append((own.name, *first, ratio, *second))
        if rows:
            yield _TOTALS, rows
        yield from (f"advice: {line}" for line in self.advice)

    def plot(self, axes: Any = None) -> Any:
        """Draw mean residuals against time in the episode and against the episode so far; return the axes, (1 + I, 2).

        Under the model the points scatter around zero, within two standard errors in nineteen of twenty.
        """
        if axes is None:
            try:
                import matplotlib.pyplot as plt
            except ImportError:
                raise ImportError("pictures need Matplotlib: pip install 'dpdl[plot]'") from None
            shape = (max(1, len(self.profiles)), 2)
            axes = plt.subplots(*shape, figsize=(9, 2.6 * shape[0]), squeeze=False, layout="constrained")[1]
        for line, (signal, profile) in zip(axes, self.profiles.items(), strict=False):
            units = {"time": "time in the episode", "episode so far": "mean residual of the episode so far"}
            for ax, (history, unit) in zip(line, units.items(), strict=True):
                x, mean, error = profile[history]
                ax.axhline(0, color="0.6", lw=0.8)
                ax.errorbar(x, mean, yerr=2 * np.asarray(error), fmt="o", ms=3, lw=1)
                ax.set(xlabel=unit, ylabel=f"residual of {signal}")
        return axes


def check_model(log: Dataset, *, gamma: float, policy: ArrayLike | None = None, level: float = LEVEL) -> ModelCheck:
    """Test whether a log comes from one Markov decision process with the states that were named.

    Certificates rest on that. Episodes that end by the clock, something lasting about an episode that no column shows,
    or cells that are too coarse contradict it, and the log itself shows it.

    Parameters
    ----------
    log : Dataset
        Of episodes in order. Independent rows and counts cannot be tested, and the result says so.
    gamma : float
        Discount in (0, 1).
    policy : array_like, shape (S, A), optional
        The policy in question, tested where it goes; that of the log is always tested.
    level : float, optional
        Probability that a log of the model is rejected.

    Returns
    -------
    ModelCheck

    Examples
    --------
    A machine that breaks down after ten steps, in a log whose states do not show its age:

    >>> rng = np.random.default_rng(0)
    >>> last = np.tile(np.arange(10) == 9, 100)
    >>> log = Dataset(np.zeros(1000, int), rng.integers(0, 2, 1000), np.zeros(1000, int), np.ones(1000),
    ...               n_states=1, n_actions=2, terminated=last, truncated=np.zeros(1000, bool))
    >>> fit = check_model(log, gamma=0.9)
    >>> fit.status, fit.advice[0][:46]
    ('rejected', 'time: what follows depends on the time in the ')
    """
    return ModelTests(log, gamma=gamma, level=level).check(policy)


class ModelTests:
    """The tests of a log for the policy that made it, made once; `check` adds those of a policy in question."""

    def __init__(self, log: Dataset, *, gamma: float, level: float = LEVEL) -> None:
        check.instance("log", log, Dataset)
        self._shape = log.n_states, log.n_actions
        self._gamma = check.real("gamma", gamma, above=0, below=1)
        self._figures: dict[str, Any] = {"gamma": self._gamma, "level": check.real("level", level, above=0, below=1)}
        self._reason = why_no_episodes(log)
        if self._reason is not None:
            return
        rows = self._rows = steps(log)
        model = Model(rows, slice(None), gamma, None)
        self._figures |= {
            "totals": own_totals(rows, gamma),
            "model_totals": tuple((rows.scale * model.totals).tolist()),
        }
        unit = units(rows)
        if unit[-1] + 1 < FEW:
            self._reason = f"it has {len(rows.starts)} episodes of {len(rows.pair)} rows in all, too few to compare"
            return
        self._profiles: dict[str, Any] = {}
        self._halves = both_halves(rows, unit, gamma)
        step = [half.with_values(None, 0.0) for half in self._halves]
        self._tests = [
            *_tests(True, "log", model, step, [*statistics(step), *next_state(step)]),
            *_tests(False, "log", model, self._halves, statistics(self._halves, self._profiles)),
        ]

    def check(self, policy: ArrayLike | None = None) -> ModelCheck:
        """Return the check of the log, as `check_model` does."""
        table = None if policy is None else check.policy_array("policy", policy, *self._shape)
        if self._reason is not None:
            return ModelCheck(status=UNTESTED, reason=self._reason, **self._figures)
        tests = list(self._tests)
        if table is not None:
            chosen = table.ravel()[self._rows.pairs]
            model = Model(self._rows, slice(None), self._gamma, chosen)
            halves = [half.with_values(chosen, self._gamma) for half in self._halves]
            tests += _tests(True, "in question", model, halves, next_state(halves))
            tests += _tests(False, "in question", model, halves, statistics(halves))
        every = ModelCheck(
            status=FITS, tests=tuple(test for test, *_ in tests), profiles=self._profiles, **self._figures
        )
        if not tests:
            reason = "nothing of what follows its states and actions varies with anything that happened before"
            return replace(every, status=UNTESTED, reason=reason)
        misfits = {(test.policy, test.history) for test in every.tests if not abs(test.z) <= every.threshold}
        results = []
        for test, model, halves in tests:
            test = replace(test, rejected=not abs(test.z) <= every.threshold)
            in_values = not test.step and (test.policy, test.history) in misfits
            if test.signal != NEXT_STATE and (test.rejected or in_values):
                total, knows = knowing(model, halves, test.signal, test.history)
                test = replace(test, model=total, knowing=knows)
            results.append(test)
        return replace(every, status=REJECTED if misfits else FITS, tests=tuple(results))


def _tests(
    step: bool, policy: str, model: Model, halves: list[Half], found: Iterable[Statistic]
) -> list[tuple[ModelTest, Model, list[Half]]]:
    """Return the tests, with what `knowing` needs of each."""
    return [
        (ModelTest(signal, step, policy, history, z, episodes), model, halves) for signal, history, z, episodes in found
    ]
