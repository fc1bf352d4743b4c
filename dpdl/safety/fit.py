"""Does a log fit the model that certificates rest on: one Markov decision process with the states that were named?

`dpdl.safety.residuals` computes the tests: for the reward and each cost, for the policy that made the log and the one
in question, and for each of `HISTORIES`, whether what follows a pair depends on what happened before. The largest of
all is compared with the normal quantile at `level`, by Bonferroni. How large a misfit is stands beside each rejection:
it informs, and excuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from dpdl import _text as text
from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.files.headers import expect_names
from dpdl.safety.episodes import OwnTotal, own_totals, steps, why_no_episodes
from dpdl.safety.residuals import FEWEST, Model, both_halves, knowing, statistics, units

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
    """One test: whether residuals of a signal depend on something that happened before.

    Attributes
    ----------
    signal : str
        "reward", or the name of the cost.
    policy : {"log", "given"}
        Whose values and pairs: of the policy that made the log, or of the one in question.
    history : str
        What happened before; a key of `HISTORIES`.
    z : float
        Standard normal under the model.
    episodes : float
        Effective number of episodes: (sum of squares)^2 / (sum of fourth powers) of their contributions.
    rejected : bool
    model, knowing : float or None
        Discounted total of that policy by the model, and if the state also knew the history in four bins; None unless
        rejected.
    """

    signal: str
    policy: str
    history: str
    z: float
    episodes: float
    rejected: bool = False
    model: float | None = None
    knowing: float | None = None

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of a table."""
        verdict = "REJECTED" if self.rejected else ""
        figures = (f"{self.z:+.1f}", f"{self.episodes:,.0f}", verdict, text.tidy(self.model), text.tidy(self.knowing))
        return (f"{self.signal} given {self.history}", self.policy, *figures)


_HEADER = ("does it depend on what happened before?", "policy", "z", "episodes", "", "model", "if the state knew")
_TOTALS = ("log's own episodes", "discounted", "std. error", "model", "log / model", "undiscounted", "std. error")


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelCheck:
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
        if not self.rejected:
            tests = f"{len(self.tests)} tests by {self.totals[0].episodes:,} episodes"
            return f"The log does not contradict the model ({tests}, level {self.level:g})."
        worst = max((test for test in self.tests if test.rejected), key=lambda test: abs(test.z))
        return (
            "The log does not come from one decision process with these states: "
            f"{worst.signal} depends on {worst.history} (z = {worst.z:+.1f})."
        )

    def _tables(self) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
        """The tables of tests and totals: headers and cells."""
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

    def __repr__(self) -> str:
        lines = [f"{self.status.upper()}: {self.message}"]
        for header, rows in self._tables():
            lines += ["", *text.aligned(header, rows)]
        return "\n".join([*lines, *(f"advice: {line}" for line in self.advice)])

    def _repr_html_(self) -> str:
        tables = "".join(text.html_table(header, rows) for header, rows in self._tables())
        advice = "".join(f"<p>advice: {escape(line)}</p>" for line in self.advice)
        return f"<h3>{escape(self.status.upper())}</h3><p>{escape(self.message)}</p>{tables}{advice}"

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

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> ModelCheck:
        """Return the check that `to_json` wrote."""
        expect_names("model check", content, set(cls.__dataclass_fields__))
        check.choice("status", content["status"], (FITS, REJECTED, UNTESTED))
        parts: dict[str, Any] = {"model_totals": tuple(content["model_totals"])}
        for name, part in (("tests", ModelTest), ("totals", OwnTotal)):
            for fields in content[name]:
                expect_names(name, fields, set(part.__dataclass_fields__))
            parts[name] = tuple(part(**fields) for fields in content[name])
        return cls(**content | parts)


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
    check.instance("log", log, Dataset)
    gamma = check.real("gamma", gamma, above=0, below=1)
    level = check.real("level", level, above=0, below=1)
    table = None if policy is None else check.policy_array("policy", policy, log.n_states, log.n_actions)
    reason = why_no_episodes(log)
    if reason is not None:
        return ModelCheck(status=UNTESTED, reason=reason, level=level, gamma=gamma)
    rows = steps(log)
    models = {"log": Model(rows, slice(None), gamma, None)}
    figures: dict[str, Any] = {
        "totals": own_totals(rows, gamma),
        "model_totals": tuple(models["log"].totals.tolist()),
        "level": level,
        "gamma": gamma,
    }
    unit = units(rows)
    if unit[-1] + 1 < FEWEST:
        reason = f"it has {len(rows.starts)} episodes of {len(rows.pair)} rows in all, too few to compare"
        return ModelCheck(status=UNTESTED, reason=reason, **figures)
    halves = {"log": both_halves(rows, unit, gamma)}
    profiles: dict[str, Any] = {}
    tests = [("log", *test) for test in statistics(halves["log"], profiles)]
    if table is not None:
        chosen = table.ravel()[rows.pairs]
        halves["given"] = [half.of_policy(chosen) for half in halves["log"]]
        models["given"] = Model(rows, slice(None), gamma, chosen)
        tests += [("given", *test) for test in statistics(halves["given"])]
    quantile = -ndtri(level / 2 / max(1, len(tests)))
    results = []
    for name, signal, history, z, episodes in tests:
        rejected = bool(abs(z) > quantile)
        sizes = knowing(halves[name], models[name], signal, history) if rejected else (None, None)
        results.append(ModelTest(signal, name, history, z, episodes, rejected, *sizes))
    status = REJECTED if any(test.rejected for test in results) else FITS
    return ModelCheck(status=status, tests=tuple(results), profiles=profiles, **figures)
