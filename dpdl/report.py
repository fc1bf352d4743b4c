"""One self-contained HTML file about an answer, for the colleague who has to sign off, and for the files.

The first line is the answer. Then come the figures with their limits, what the log shows by itself, whether the model
fits, where data is missing, the policy, the assumptions, and where all of it comes from. Nothing is loaded from
elsewhere: pictures are inside (if matplotlib is installed; without it there are tables only).
"""

from __future__ import annotations

import base64
import io
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from typing import Any

import numpy as np

from dpdl import _text as text
from dpdl import _validation as check
from dpdl.data.dataset import Dataset
from dpdl.files.atomic import replacing_file
from dpdl.safety.answer import Answer, AnswerStatus
from dpdl.safety.certificate import HEADER

#: Rows of the policy's table that are shown; the file has all.
MOST_STATES = 60

VERDICTS = {
    AnswerStatus.CERTIFIED: ("good", "Certified"),
    AnswerStatus.INFEASIBLE: ("bad", "Infeasible"),
    AnswerStatus.NOT_ENOUGH_DATA: ("open", "Not enough data"),
    AnswerStatus.MISFIT: ("bad", "The log does not fit the model"),
    AnswerStatus.STOPPED: ("open", "Stopped before an answer"),
}

STYLE = """
:root { color-scheme: light; --ink: #22223b; --soft: #5c5c6e; --line: #dcdce4; --good: #00664b; --bad: #a33f00; }
body { margin: 0 auto; padding: 1rem; max-width: 56rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; } p { margin: .5rem 0; }
.verdict { border-left: .5rem solid var(--soft); background: #f4f4f8; padding: .7rem 1rem; border-radius: .2rem; }
.verdict.good { border-color: var(--good); background: #e9f6f1; }
.verdict.bad { border-color: var(--bad); background: #fbeee6; }
.verdict.open { border-color: #b07900; background: #fdf5e2; }
.wide { overflow-x: auto; -webkit-overflow-scrolling: touch; } * { box-sizing: border-box; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; font-size: .95rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; border-bottom: 2px solid var(--ink); } .soft { color: var(--soft); font-size: .92rem; }
th:first-child, td:first-child { text-align: left; white-space: normal; }
td.words { white-space: normal; text-align: left; min-width: 12rem; overflow-wrap: anywhere; }
.kept { color: var(--good); font-weight: 600; } .broken { color: var(--bad); font-weight: 700; }
img { max-width: 100%; height: auto; display: block; margin: .6rem 0; } li { margin: .25rem 0; }
@media (max-width: 36rem) { body { padding: .6rem; } table { font-size: .7rem; } th, td { padding: .3rem .1rem; }
  th, td.broken { white-space: normal; } th { font-size: .65rem; hyphens: auto; overflow-wrap: anywhere; } }
@media print { body { max-width: none; } .wide { overflow: visible; } }
"""


def write_report(
    answer: Answer,
    path: str | os.PathLike[str],
    *,
    log: Dataset | None = None,
    source: str | None = None,
    command: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write the report of an answer to one HTML file that needs nothing else.

    Parameters
    ----------
    answer : Answer
        The result of `safe_policy`.
    path : path
        The file, written atomically.
    log : Dataset, optional
        The log of the answer, for the picture of its coverage and for its fingerprint.
    source, command : str, optional
        The file of the log, and the command or script that made the report; both are repeated at its end.
    overwrite : bool, optional
        Replace a file that is there.
    """
    check.instance("answer", answer, Answer)
    with replacing_file(check.path("path", path), check.flag("overwrite", overwrite)) as file:
        file.write(report_html(answer, log, source, command).encode())


def report_html(
    answer: Answer, log: Dataset | None = None, source: str | None = None, command: str | None = None
) -> str:
    """Return the report as the text of a page; the arguments are those of `write_report`."""
    kind, verdict = VERDICTS[answer.status]
    if answer.success and answer.certificate.fit.rejected:
        kind, verdict = "open", "Certified under the model, which the log contradicts"
    message = answer.message[:1].upper() + answer.message[1:].rstrip(".")
    sections = [
        f'<div class="verdict {kind}"><h1>{verdict}</h1>{escape(message)}.</div>{_asked(answer)}',
        _certificate(answer),
        _own(answer),
        _fit(answer),
        _coverage(answer, log),
        _policy(answer),
        _caveats(answer),
        _provenance(answer, log, source, command),
    ]
    body = "\n".join(section for section in sections if section)
    body = body.replace("&lt;= ", "≤&nbsp;").replace("&gt;= ", "≥&nbsp;")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>dpdl: {escape(verdict.lower())}</title><style>{STYLE}</style></head>\n<body>\n"
        f"{body}\n</body></html>\n"
    )


# Sections.


def _asked(answer: Answer) -> str:
    certificate = answer.certificate
    limits = [escape(f"{bound.name} {bound.row[4]}") for bound in certificate.constraints]
    averages = any(bound.is_average for bound in certificate.constraints)
    kind = f" ({'averages per step' if averages else 'totals of an episode'})" if limits else ""
    return (
        f"<p>Asked: a policy with a high reward and {' and '.join(limits) if limits else 'no limit'}{kind}. What "
        f"happens a step later counts {certificate.gamma:g} times as much (discount gamma); figures are averages "
        f"over episodes. The log has {certificate.n_transitions:,} rows. Of logs like it, at most about "
        f"{certificate.delta:.3g} (delta) may lead to a certificate although a limit is broken.</p>"
    )


def _certificate(answer: Answer) -> str:
    certificate, picture = answer.certificate, ""
    if certificate.constraints:
        what = "estimates and bounds of the costs relative to their limits"
        picture = _picture("plot_certificate", what, (6.4, 1.4 + 0.5 * len(certificate.constraints)), certificate)
    table = _table(HEADER, certificate.rows)
    for verdict, style in (("kept", "kept"), ("BROKEN", "broken"), ("NOT SHOWN", "broken")):
        table = table.replace(f"<td>{verdict}</td>", f'<td class="{style}">{verdict}</td>')
    words = (
        "The estimate is the best guess. The bound is how far on the bad side of it the truth may lie; a limit counts "
        "as kept only if the bound keeps it."
    )
    return f'<h2>{escape(answer._evidence())}</h2>{picture}{table}<p class="soft">{words}</p>'


def _own(answer: Answer) -> str:
    """The totals of the log's own episodes, from the rows, without any model."""
    totals = answer.certificate.fit.totals
    if not totals:
        return ""
    limits = {bound.name: bound.row[4] for bound in answer.certificate.constraints if not bound.is_average}
    rows = []
    for own in totals:
        discounted = text.tidy(own.discounted), text.tidy(own.discounted_error, 2), limits.get(own.name, "")
        rows.append((own.name, *discounted, text.tidy(own.total), text.tidy(own.total_error, 2)))
    head = ["an episode of the log", "discounted", "std. error", "limit", "undiscounted", "std. error"]
    what = f"The means of the {totals[0].episodes:,} episodes as they were logged: no model, and not this policy."
    return f"<h2>The log by itself</h2><p>{what}</p>{_table(head, rows)}"


def _fit(answer: Answer) -> str:
    fit = answer.certificate.fit
    advice = "".join(f"<p>{escape(line)}</p>" for line in fit.advice)
    details = f"<details><summary>All tests</summary>{_wide(fit._repr_html_())}</details>" if fit.tests else ""
    return f"<h2>Does the log fit the model?</h2><p>{escape(fit.message)}</p>{advice}{details}"


def _coverage(answer: Answer, log: Dataset | None) -> str:
    words = ""
    if answer.needed is not None:
        words = "<p>How much data would do cannot be told: the estimates themselves do not keep the limits.</p>"
        if answer.needed.n_transitions is not None:
            much = f"{answer.needed.n_transitions:,}"
            words = f"<p>About {much} rows of the same kind would do (an extrapolation, not a promise).</p>"
        rows = [(state, action, f"{count:,}", f"{share:.1%}") for state, action, count, share in answer.needed.where]
        head = ("state", "action", "times logged", "share of the uncertainty")
        words += f"<p>Rows that would help most:</p>{_table(head, rows)}" if rows else ""
    if log is not None:
        words += _picture("plot_coverage", "how often pairs of state and action were logged", (6.4, 2.6), log)
    return f"<h2>What the log covers, and where data is missing</h2>{words}{_wide(answer.coverage._repr_html_())}"


def _policy(answer: Answer) -> str:
    policy = answer.policy
    if policy is None:
        return ""
    states, actions = policy._names()
    order = list(range(len(policy)))
    if policy.visits is not None and len(policy) > MOST_STATES:
        order = np.argsort(-policy.visits, kind="stable")[:MOST_STATES].tolist()
    rows = [(str(states[k]), *("–" if p == 0 else f"{p:.3g}" for p in policy[k])) for k in order]
    more, rest = len(states) - len(order), ""
    if more:
        rest = f"<p>The {len(order)} states that were logged most; {more:,} more are in the policy file.</p>"
    words = "Probability of each action. Draw it afresh each time: always taking the likeliest is another policy."
    return f"<h2>The policy</h2><p>{words}</p>{_table(('state', *map(str, actions)), rows)}{rest}"


def _caveats(answer: Answer) -> str:
    lines = [
        *(line.removeprefix("assumed: ") for line in answer.certificate.assumes),
        "The log shows the system as it will be, and state and action alone decide what happens next.",
        "Rows were recorded truthfully, and none were left out because of how they went.",
        "Limits hold on discounted average over episodes, not in every single one.",
        *(f"note: {note}" for note in answer.notes),
    ]
    return f"<h2>Under which assumptions</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _provenance(answer: Answer, log: Dataset | None, source: str | None, command: str | None) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("dpdl", "numpy", "scipy"))
    facts = {
        "log": source,
        "rows": f"{answer.certificate.n_transitions:,}",
        "fingerprint": None if log is None else log.raw.fingerprint,
        "settings": ", ".join(f"{name} = {value}" for name, value in answer.settings.items()),
        "proposals tested": str(len(answer.candidates)),
        "versions": f"{packages}, Python {platform.python_version()}, {platform.platform()}",
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    rows = "".join(
        f'<tr><td>{name}</td><td class="words">{escape(value)}</td></tr>' for name, value in facts.items() if value
    )
    return f"<h2>Where this comes from</h2>{_wide(f'<table>{rows}</table>')}"


# Parts of sections.


def _wide(html: str) -> str:
    return f'<div class="wide">{html}</div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls on a narrow screen."""
    return _wide(text.html_table(head, rows))


def _picture(function: str, what: str, size: tuple[float, float], *arguments: Any) -> str:
    """A picture of `dpdl.plots` inside the page; nothing without matplotlib."""
    try:
        from matplotlib.figure import Figure

        from dpdl import plots
    except ImportError:
        return ""
    figure = Figure(figsize=size, layout="constrained")
    getattr(plots, function)(*arguments, figure.subplots())
    file = io.BytesIO()
    plots.save(figure, file)
    return f'<img alt="{escape(what)}" src="data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}">'
