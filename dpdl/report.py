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
from collections.abc import Mapping
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
from dpdl.safety.certificate import HEADER, Certificate

#: Rows of the policy's table that are shown; the file has all.
MOST_STATES = 60
#: Answers in red.
BAD = (AnswerStatus.INFEASIBLE, AnswerStatus.MISFIT)

#: Settings by what they mean.
WORDS = {
    "n_min": "rows that an action needs in a state to be planned with by itself (n_min)",
    "pessimism": "standard errors that planning adds to costs (pessimism)",
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
* { box-sizing: border-box; } table { display: block; overflow-x: auto; max-width: 100%; margin: .6rem 0;
  border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; border-bottom: 2px solid var(--ink); } .soft { color: var(--soft); font-size: .92rem; }
th:first-child, td:first-child { text-align: left; white-space: normal; padding-left: 0; }
td.words { white-space: normal; text-align: left; min-width: 12rem; overflow-wrap: anywhere; }
.kept { color: var(--good); font-weight: 600; } .broken { color: var(--bad); font-weight: 700; }
img { max-width: 100%; height: auto; display: block; margin: .6rem 0; } li { margin: .25rem 0; }
@media (max-width: 36rem) {
  body { padding: .6rem; } th, td { padding: .3rem .4rem; } td.words { min-width: 0; } ul { padding-left: 1.2rem; }
  table:has(th:nth-child(4)) { /* each row is a card: its cells are lines, which name their columns */
    & tbody, & tr { display: block; } & thead, & td:empty { display: none; }
    & tr { padding: .4rem 0; border-bottom: 1px solid var(--line); }
    & td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0; }
    & td:first-child { display: block; font-weight: 600; }
    & td[data-head]::before { content: attr(data-head); color: var(--soft); font-weight: 400; } } }
@media print { body { max-width: none; } table { display: table; } }
"""


def write_report(
    answer: Answer,
    path: str | os.PathLike[str],
    *,
    log: Dataset | None = None,
    source: str | None = None,
    command: str | None = None,
    columns: Mapping[str, Any] | None = None,
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
    columns : mapping, optional
        The columns of the log by their roles, as they were given to `read_log`.
    overwrite : bool, optional
        Replace a file that is there.
    """
    check.instance("answer", answer, Answer)
    with replacing_file(check.path("path", path), check.flag("overwrite", overwrite)) as file:
        file.write(report_html(answer, log, source, command, columns).encode())


def report_html(answer: Answer, log: Any = None, source: Any = None, command: Any = None, columns: Any = None) -> str:
    """Return the report as the text of a page; the arguments are those of `write_report`."""
    kind = "good" if answer.success else "bad" if answer.status in BAD else "open"
    verdict, certificate, columns = _capital(answer.status.value), answer.certificate, columns or {}
    if answer.success and certificate is not None and certificate.fit.rejected:
        kind, verdict = "open", "Certified under the model, which the log contradicts"
    message = _capital(answer.message).rstrip(".")
    sections = [f'<div class="verdict {kind}"><h1>{verdict}</h1>{escape(message)}.</div>']
    if certificate is not None:
        sections += [_asked(certificate, columns), _certificate(answer, certificate)]
        sections += [_own(certificate), _fit(certificate)]
    sections += [_coverage(answer, log), _policy(answer)]
    sections += [] if certificate is None else [_caveats(answer, certificate)]
    sections.append(_provenance(answer, log, source, command, columns))
    body = "\n".join(section for section in sections if section)
    body = body.replace("&lt;= ", "≤&nbsp;").replace("&gt;= ", "≥&nbsp;")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>dpdl: {escape(verdict.lower())}</title><style>{STYLE}</style></head>\n<body>\n"
        f"{body}\n</body></html>\n"
    )


# Sections.


def _asked(certificate: Certificate, columns: Mapping[str, Any]) -> str:
    limits = [f"{bound.name} {bound.row[4]}" for bound in certificate.constraints]
    averages = any(bound.is_average for bound in certificate.constraints)
    kind = f" ({'averages per step' if averages else 'totals of an episode'})" if limits else ""
    reward = f"reward (column {columns['reward']})" if "reward" in columns else "reward"
    tested = "Proposals were chosen on one half of the log and tested on the other, both ways. "
    words = (
        f"Asked: a policy with a high {reward} and {' and '.join(limits) if limits else 'no limit'}{kind}. What "
        f"happens a step later counts {certificate.gamma:g} times as much (discount gamma); figures are averages over "
        f"episodes. The log has {certificate.n_transitions:,} rows. {tested if certificate.chosen_here else ''}"
        f"{certificate.confidence} means: of logs like this one, at most about {certificate.delta:.3g} (delta) may "
        "lead to a certificate although a limit is broken."
    )
    return f"<p>{escape(words)}</p>"


def _certificate(answer: Answer, certificate: Certificate) -> str:
    picture = ""
    if certificate.constraints:
        what = "estimates and bounds of the costs relative to their limits"
        picture = _picture("plot_certificate", what, (6.4, 1.4 + 0.5 * len(certificate.constraints)), certificate)
    table = text.html_table(HEADER, certificate.rows)
    for verdict, style in (("kept", "kept"), ("BROKEN", "broken"), ("NOT SHOWN", "broken")):
        table = table.replace(f">{verdict}</td>", f' class="{style}">{verdict}</td>')
    words = (
        "The estimate is the best guess. The bound is how far on the bad side of it the truth may lie; a limit counts "
        "as kept only if the bound keeps it."
    )
    return f'<h2>{escape(answer.evidence)}</h2>{picture}{table}<p class="soft">{words}</p>'


def _own(certificate: Certificate) -> str:
    """The totals of the log's own episodes, from the rows, without any model."""
    totals = certificate.fit.totals
    if not totals:
        return ""
    limits = {bound.name: bound.row[4] for bound in certificate.constraints if not bound.is_average}
    rows = []
    for own in totals:
        discounted = text.tidy(own.discounted), text.tidy(own.discounted_error, 2), limits.get(own.name, "")
        rows.append((own.name, *discounted, text.tidy(own.total), text.tidy(own.total_error, 2)))
    head = ["an episode of the log", "discounted", "std. error", "limit", "undiscounted", "std. error"]
    what = f"The means of the {totals[0].episodes:,} episodes as they were logged: no model, and not this policy."
    return f"<h2>The log by itself</h2><p>{what}</p>{text.html_table(head, rows)}"


def _fit(certificate: Certificate) -> str:
    fit = certificate.fit
    advice = "".join(f"<p>{escape(line)}</p>" for line in fit.advice)
    details = f"<details><summary>All tests</summary>{fit._repr_html_()}</details>" if fit.tests else ""
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
        words += f"<p>Rows that would help most:</p>{text.html_table(head, rows)}" if rows else ""
    if log is not None:
        words += _picture("plot_coverage", "how often pairs of state and action were logged", (6.4, 2.6), log)
    return f"<h2>What the log covers, and where data is missing</h2>{words}{answer.coverage._repr_html_()}"


def _policy(answer: Answer) -> str:
    policy = answer.policy
    if policy is None:
        return ""
    states, actions = policy._names()
    order = list(range(len(policy)))
    if policy.visits is not None and len(policy) > MOST_STATES:
        order = np.argsort(-policy.visits, kind="stable")[:MOST_STATES].tolist()
    rows = [(str(states[k]), *(f"{p:.3g}" if p else "" for p in policy[k])) for k in order]
    more, rest = len(states) - len(order), ""
    if more:
        rest = f"<p>The {len(order)} states that were logged most; {more:,} more are in the policy file.</p>"
    words = (
        "Probability of each action; none where the field is empty. Draw the action afresh each time: always taking "
        "the likeliest is another policy."
    )
    return f"<h2>The policy</h2><p>{words}</p>{text.html_table(('state', *map(str, actions)), rows)}{rest}"


def _caveats(answer: Answer, certificate: Certificate) -> str:
    lines = [
        *(line.removeprefix("assumed: ") for line in certificate.assumes),
        "The log shows the system as it will be, and state and action alone decide what happens next.",
        "Rows were recorded truthfully, and none were left out because of how they went.",
        "Limits hold on the discounted average over episodes, not in every single one.",
        *(f"note: {note}" for note in answer.notes),
    ]
    items = "".join(f"<li>{escape(_capital(line))}</li>" for line in lines)
    return f"<h2>Under which assumptions</h2><ul>{items}</ul>"


def _provenance(
    answer: Answer, log: Dataset | None, source: str | None, command: str | None, columns: Mapping[str, Any]
) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("dpdl", "numpy", "scipy"))
    of_rows = "SHA-256 of the rows as they were read, the same for every kind of file; not that of the file"
    facts = {
        "log": source,
        "columns": "; ".join(f"{role}: {_listed(names)}" for role, names in columns.items()),
        "rows": f"{answer.coverage.n_transitions:,}",
        "fingerprint of the rows": None if log is None else f"{log.raw.fingerprint} ({of_rows})",
        "settings": ", ".join(f"{WORDS.get(name, name)} = {value}" for name, value in answer.settings.items()),
        "proposals tested": str(answer.n_tested),
        "versions": f"{packages}, Python {platform.python_version()}, {platform.platform()}",
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    rows = "".join(
        f'<tr><td>{name}</td><td class="words">{escape(value)}</td></tr>' for name, value in facts.items() if value
    )
    return f"<h2>Where this comes from</h2><table>{rows}</table>"


# Parts of sections.


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, (list, tuple)) else str(names)


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
