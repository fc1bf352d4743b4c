"""The demo: a clinic's log, the policy that it certifies, and the truth, because here the model is known.

States are wards and drugs are actions; a row is a day of a patient. The log is written as CSV, tested, solved and
reported on like anybody's log. The same is repeated on further logs of the same clinic, which shows how often the
plug-in optimum and certified policies break a limit.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdl import _text as text
from dpdl._progress import StatusLine
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.data.sources import read_log
from dpdl.models.cmdp import CMDP
from dpdl.models.estimate import Plan, plan
from dpdl.report import write_report
from dpdl.safety.answer import Answer
from dpdl.safety.fit import check_model
from dpdl.safety.safe import safe_policy

CSV, REPORT, PICTURE = "clinic.csv", "dpdl-demo.html", "dpdl-demo.png"
OPTIMUM, CERTIFIED = "plug-in optimum", "certified policy"
WARDS = ("admission", "ward", "high care", "intensive care", "rehabilitation")
DRUGS = ("none", "low", "medium", "high")
#: The question: discount, and upper limits on discounted totals per patient.
QUESTION: dict[str, Any] = {"gamma": 0.95, "limits": {"side effects": 1.5, "icu days": 0.8}, "limit_on": "total"}
#: Roles of the columns of the CSV.
COLUMNS: dict[str, Any] = {
    "state": "ward",
    "action": "drug",
    "reward": "gain",
    "costs": ["side effects", "icu days"],
    "episode": "patient",
    "time": "day",
    "terminated": "left",
}

#: Where patients are next, for the drug that suits the ward and for none: wards in order, then leaving.
_BEST = np.array(
    [
        [0.00, 0.60, 0.05, 0.00, 0.25, 0.10],
        [0.00, 0.45, 0.05, 0.00, 0.35, 0.15],
        [0.00, 0.40, 0.45, 0.05, 0.10, 0.00],
        [0.00, 0.05, 0.50, 0.40, 0.00, 0.05],
        [0.00, 0.05, 0.00, 0.00, 0.55, 0.40],
    ]
)
_WORST = np.array(
    [
        [0.00, 0.40, 0.40, 0.20, 0.00, 0.00],
        [0.00, 0.45, 0.35, 0.10, 0.05, 0.05],
        [0.00, 0.05, 0.50, 0.40, 0.00, 0.05],
        [0.00, 0.00, 0.10, 0.75, 0.00, 0.15],
        [0.00, 0.20, 0.10, 0.00, 0.50, 0.20],
    ]
)
#: How well each drug suits each ward; side effects of a day under each drug; what the clinic gives now.
_SUITS = np.array(
    [[0.0, 0.5, 0.8, 1.0], [0.1, 0.6, 0.9, 1.0], [0.0, 0.3, 0.7, 1.0], [0.0, 0.2, 0.6, 1.0], [0.6, 0.9, 1.0, 0.9]]
)
_EFFECTS = np.array([0.0, 0.1, 0.3, 0.6])
_NOW = np.array(
    [[0.3, 0.4, 0.2, 0.1], [0.3, 0.4, 0.2, 0.1], [0.2, 0.3, 0.3, 0.2], [0.1, 0.3, 0.3, 0.3], [0.4, 0.3, 0.2, 0.1]]
)
#: What a day is worth: well-being by ward, and a discharge.
_WELL, _DISCHARGE = np.array([0.0, 1.0, 0.0, -1.0, 2.0]), 10.0


@dataclass(frozen=True)
class Truth:
    """Discounted totals of a policy in the true model, in the units of the log."""

    reward: float
    costs: tuple[float, ...]

    @property
    def over(self) -> float:
        """By how much a limit is exceeded at worst, relative to it."""
        return max(cost / limit - 1 for cost, limit in zip(self.costs, QUESTION["limits"].values(), strict=True))

    @property
    def is_safe(self) -> bool:
        """Whether every limit is kept, up to the accuracy of the solver."""
        return self.over <= 1e-7


def moves() -> Array:
    """Probabilities of the next ward, and last of leaving, by ward and drug."""
    suits = _SUITS[:, :, None]
    return suits * _BEST[:, None] + (1 - suits) * _WORST[:, None]


def true_means() -> Array:
    """Expected gain, side effects and days in intensive care of a day, by ward and drug."""
    leave = moves()[:, :, -1]
    gain = _WELL[:, None] + _DISCHARGE * leave
    return np.stack([gain, _EFFECTS + 0 * gain, (np.array(WARDS) == "intensive care")[:, None] + 0 * gain])


def evaluate(policy: ArrayLike) -> Truth:
    """Evaluate a policy, wards and drugs in the order of `WARDS` and `DRUGS`, in the true model."""
    table = np.asarray(policy)
    P = (table[:, :, None] * moves()[:, :, :-1]).sum(axis=1)
    visits = np.linalg.solve(np.eye(len(WARDS)) - QUESTION["gamma"] * P.T, np.eye(len(WARDS))[0])
    reward, *costs = np.einsum("s,sa,isa->i", visits, table, true_means())
    return Truth(float(reward), tuple(map(float, costs)))


def best_policy() -> Array:
    """The best policy that keeps the limits, for who knows the model."""
    means, leave, gamma = true_means(), moves()[:, :, -1], QUESTION["gamma"]
    limits = np.array([*QUESTION["limits"].values()])[:, None, None]
    slack = limits * (leave + (1 - gamma) * (1 - leave)) - means[1:]  # what would follow an end is free
    first, scale = np.eye(len(WARDS))[0], abs(means[0]).max()
    model = CMDP(moves()[:, :, :-1], means[0] / scale, slack / abs(slack).max(), gamma, first, leave)
    return model.solve().policy


def record(n_patients: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """The log of the clinic: columns of a table, one row a day and patient."""
    after, given = moves().cumsum(axis=2), _NOW.cumsum(axis=1)
    patient, ward, day = np.arange(n_patients), np.zeros(n_patients, dtype=int), 0
    parts = []
    while len(patient):
        drug = (given[ward] < rng.random((len(patient), 1))).sum(axis=1)
        next_ward = (after[ward, drug] < rng.random((len(patient), 1))).sum(axis=1)
        left = next_ward == len(WARDS)
        gain = (_WELL[ward] + _DISCHARGE * left + rng.normal(size=len(patient))).round(1)
        parts.append([patient, np.full(len(patient), day), ward, drug, gain, rng.poisson(_EFFECTS[drug]), left])
        patient, ward, day = patient[~left], next_ward[~left], day + 1
    patient, days, wards, drug, gain, effects, left = (np.concatenate(column) for column in zip(*parts, strict=True))
    columns = {
        "patient": patient,
        "day": days,
        "ward": np.array(WARDS)[wards],
        "drug": np.array(DRUGS)[drug],
        "gain": gain,
        "side effects": effects,
        "icu days": (wards == WARDS.index("intensive care")).astype(int),
        "left": left,
    }
    order = np.lexsort((days, patient))
    return {name: column[order] for name, column in columns.items()}


def write_csv(table: dict[str, NDArray[Any]], path: str) -> None:
    """Write columns as CSV."""
    Path(path).write_bytes(_csv(table))


def _csv(table: dict[str, NDArray[Any]]) -> bytes:
    """The content of a CSV file."""
    written = io.StringIO(newline="")
    writer = csv.writer(written)
    writer.writerow(table)
    writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
    return written.getvalue().encode()


def in_order(policy: ArrayLike, log: Dataset) -> Array:
    """A policy on the labels of a log as a table in the order of `WARDS` and `DRUGS`."""
    assert log.labels is not None
    rows = [log.labels.states.index(ward) for ward in WARDS]
    return np.asarray(policy)[np.ix_(rows, [log.labels.actions.index(drug) for drug in DRUGS])]


@dataclass(frozen=True)
class Demo:
    """A log, its answer, the truth about each policy of the table, and about those of all logs by their kind."""

    log: Dataset
    answer: Answer
    truths: dict[str, Truth]
    kinds: dict[str, list[Truth]]


def run_demo(n_patients: int = 1000, n_logs: int = 12, seed: int = 0, say: Callable[[str], None] = print) -> Demo:
    """Write clinic.csv, test and solve it, report on it, and compare with the truth, also on further logs."""
    streams = np.random.default_rng(seed).spawn(1 + n_logs)
    table = record(n_patients, streams[0])
    if Path(CSV).exists() and Path(CSV).read_bytes() != _csv(table):
        raise FileExistsError(f"{CSV} exists and is not the demo's: run the demo in another folder")
    write_csv(table, CSV)
    limits = ", ".join(f"{name} at most {limit:g}" for name, limit in QUESTION["limits"].items())
    say(f"A clinic treats patients in five wards with four doses of a drug. {CSV} is its log:")
    say(f"{n_patients:,} patients, {len(table['day']):,} days. Wanted: the treatment with the highest gain, with")
    say(f"{limits} per patient (discounted by {QUESTION['gamma']} a day).\n")
    log = read_log(table, **COLUMNS)
    say("Does the log come from one decision process with these wards as states?")
    say(f"  {check_model(log, gamma=QUESTION['gamma']).message}\n")
    say("Which policy may be deployed?")
    answer = safe_policy(log, **QUESTION)
    write_report(answer, REPORT, log=log, source=CSV, command="dpdl demo", columns=COLUMNS, overwrite=True)
    say(f"  {answer.status.value.upper()}: {answer.message}\n")
    kinds = {OPTIMUM: truth_about(plan(log, **QUESTION), log), CERTIFIED: truth_about(answer, log)}
    truths = {"what the clinic does now": evaluate(_NOW)}
    truths |= {kind: policies[0] for kind, policies in kinds.items() if policies}
    truths["best, if the model were known"] = evaluate(best_policy())
    say(f"Was that right? Here the true clinic is known:\n\n{_table(truths)}\n")
    with StatusLine() as line:
        for k, stream in enumerate(streams[1:]):
            if line.is_due():
                line.draw(f"the same on {n_logs} further logs: {k} done")
            other = read_log(record(n_patients, stream), **COLUMNS)
            kinds[OPTIMUM] += truth_about(plan(other, **QUESTION), other)
            kinds[CERTIFIED] += truth_about(safe_policy(other, **QUESTION, progress=False), other)
    if n_logs:
        say(f"The same on {n_logs} further logs of the clinic. Of all {1 + n_logs}:")
        for kind, policies in kinds.items():
            broken, without = sum(not truth.is_safe for truth in policies), 1 + n_logs - len(policies)
            rest = f", {without} {'log certifies' if without == 1 else 'logs certify'} none" if without else ""
            say(f"  {kind + ':':<18} {broken} of {len(policies)} break a limit{rest}")
    say(f"\nlog:         {CSV}\nreport:      {REPORT}")
    return Demo(log, answer, truths, kinds)


def truth_about(answer: Answer | Plan, log: Dataset) -> list[Truth]:
    """The truth about the policy of an answer or a plan; nothing if it has none."""
    return [] if answer.policy is None else [evaluate(in_order(answer.policy, log))]


def draw_demo(demo: Demo, path: str) -> None:
    """Draw the truth about policies of many logs, and the doses of the certified policy (extra ``plot``)."""
    from matplotlib.figure import Figure

    from dpdl.plots import BLUE, FORBIDDEN, INK, RED, save, tidy

    figure = Figure(figsize=(12, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    for (kind, truths), marker, colour in zip(demo.kinds.items(), "xo", (RED, BLUE), strict=True):
        x, y = [100 * truth.over for truth in truths], [truth.reward for truth in truths]
        left.plot(x, y, marker, color=colour, ms=7, mew=2, label=f"{kind} of {len(truths)} logs", alpha=0.85)
    for name, marker in zip([name for name in demo.truths if name not in demo.kinds], "s*", strict=True):
        truth = demo.truths[name]
        left.plot(100 * truth.over, truth.reward, marker, color=INK, ms=7 + 3 * (marker == "*"), label=name)
    left.axvline(0, color=INK, ls="--", lw=1)
    low, high = left.get_xlim()
    left.set_xlim(low, max(high, 5))
    left.axvspan(0, left.get_xlim()[1], **FORBIDDEN)
    left.set(xlabel="the worst cost against its limit, in the true clinic (%)", ylabel="gain, in the true clinic")
    left.set_title("What policies chosen on a log are worth in truth; right of the line a limit is broken", fontsize=10)
    left.legend(fontsize=8, frameon=False, loc="lower left")
    tidy(left)
    if demo.answer.policy is None:
        right.set_visible(False)
    else:
        table = in_order(demo.answer.policy, demo.log)
        right.imshow(table, cmap="Blues", vmin=0, vmax=1.8, aspect="auto")
        for (row, column), share in np.ndenumerate(table):
            if share >= 0.005:
                right.text(column, row, f"{share:.0%}", ha="center", va="center", fontsize=9, color=INK)
        right.set_xticks(range(len(DRUGS)), DRUGS)
        right.set_yticks(range(len(WARDS)), WARDS)
        limits = ", ".join(f"{name} ≤ {limit:g}" for name, limit in QUESTION["limits"].items())
        right.set_title(f"The certified policy: doses by ward\n({limits}, 95% confidence)", fontsize=10)
    save(figure, path)


def _table(truths: dict[str, Truth]) -> str:
    header = ("policy", "gain", *(f"{name} (<= {limit:g})" for name, limit in QUESTION["limits"].items()), "limits")
    rows = [
        (name, f"{t.reward:.2f}", *(f"{cost:.3f}" for cost in t.costs), "kept" if t.is_safe else "BROKEN")
        for name, t in truths.items()
    ]
    return "\n".join(text.aligned(header, rows))
