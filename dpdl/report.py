"""One self-contained HTML file about an answer: for the colleague who has to sign off, and for the files.

Nothing is loaded from elsewhere: pictures are inside (if matplotlib is installed; without it there are tables only).
The certificate comes first, then what it rests on.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dpdl import _validation as check
from dpdl.acting import Policy
from dpdl.data.dataset import Dataset
from dpdl.files.atomic import naming_the_target, refuse, temporary_file
from dpdl.safety.answer import Answer, AnswerStatus

#: Rows of the policy's table, and of other lists, that are shown; the files have all.
MOST_STATES, MOST_ROWS = 60, 15

VERDICTS = {
    AnswerStatus.CERTIFIED: ("good", "Certified"),
    AnswerStatus.INFEASIBLE: ("bad", "Infeasible"),
    AnswerStatus.NOT_ENOUGH_DATA: ("open", "Not enough data"),
    AnswerStatus.MISFIT: ("bad", "The log does not fit the model"),
    AnswerStatus.STOPPED: ("open", "Stopped before an answer"),
}

STYLE = """
:root { color-scheme: light; --ink: #22223b; --soft: #5c5c6e; --line: #dcdce4; --good: #00664b; --bad: #a33f00; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 56rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.5rem; margin: .2rem 0 .6rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
p { margin: .5rem 0; } .soft { color: var(--soft); font-size: .92rem; }
.verdict { border-left: .5rem solid var(--soft); background: #f4f4f8; padding: .7rem 1rem; border-radius: .2rem; }
.verdict b { font-size: 1.25rem; display: block; }
.verdict.good { border-color: var(--good); background: #e9f6f1; }
.verdict.bad { border-color: var(--bad); background: #fbeee6; }
.verdict.open { border-color: #b07900; background: #fdf5e2; }
.wide { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; font-size: .95rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; border-bottom: 2px solid var(--ink); }
th:first-child, td:first-child { text-align: left; }
td.words { white-space: normal; text-align: left; min-width: 12rem; }
.kept { color: var(--good); font-weight: 600; } .broken { color: var(--bad); font-weight: 700; }
img { max-width: 100%; height: auto; display: block; margin: .6rem 0; }
li { margin: .25rem 0; } code { overflow-wrap: anywhere; }
@media (max-width: 36rem) { body { padding: .8rem; } table { font-size: .78rem; } th, td { padding: .3rem .2rem; }
  th, td:first-child, td:last-child { white-space: normal; } }
@media print { body { max-width: none; } .wide { overflow: visible; } }
"""


def write_report(
    answer: Answer, path: str | os.PathLike[str], *, log: Dataset | None = None, overwrite: bool = False
) -> None:
    """Write the report of an answer to one HTML file that needs nothing else.

    Parameters
    ----------
    answer : Answer
        What `safe_policy` returned.
    path : path
        The file, written atomically.
    log : Dataset, optional
        The log of the answer, for the picture of its coverage.
    overwrite : bool, optional
        Replace a file that is there.
    """
    check.instance("answer", answer, Answer)
    target = Path(os.path.realpath(check.path("path", path)))
    if not check.flag("overwrite", overwrite) and os.path.lexists(target):
        refuse(target, "it exists already; pass overwrite=True to replace it")
    with naming_the_target(target), temporary_file(target) as temporary:
        Path(temporary).write_text(report_html(answer, log), encoding="utf-8")
        os.replace(temporary, target)


def report_html(answer: Answer, log: Dataset | None = None) -> str:
    """The report as the text of a page."""
    kind, verdict = VERDICTS[answer.status]
    if answer.success and answer.certificate.fit.rejected:
        kind, verdict = "open", "Certified under the model, which the log contradicts"
    sections = [
        f"<h1>May this policy be deployed?</h1>{_asked(answer)}",
        f'<div class="verdict {kind}"><b>{verdict}</b>{escape(answer.message)}</div>',
        _certificate(answer),
        _needed(answer),
        _fit(answer),
        _coverage(answer, log),
        _policy(answer),
        _making(answer),
        _caveats(answer),
        _notes(answer),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>dpdl: {escape(verdict.lower())}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body></html>\n"
    )


# Sections.


def _asked(answer: Answer) -> str:
    found, settings = answer.certificate, answer.settings
    limits = [f"{escape(one.name)} {_limit(one)}" for one in found.constraints]
    return (
        f"<p>Asked: the highest reward with {' and '.join(limits) if limits else 'no constraint'}, "
        f"discounted by gamma = {settings['gamma']:g}, from a log of {found.n_transitions:,} transitions. "
        f"All limits together may be misjudged with probability {settings['delta']:g}.</p>"
    )


def _certificate(answer: Answer) -> str:
    found = answer.certificate
    certified = answer.status is AnswerStatus.CERTIFIED
    title = "The certificate" if certified else "What the closest policy comes to, which must not be deployed"
    rows = []
    for one in found.constraints:
        assert one.limit is not None
        broken = one.estimate > one.limit if one.is_cost else one.estimate < one.limit
        verdict = "kept" if one.kept else "broken" if broken else "not shown"
        verdict = f'<span class="{"kept" if one.kept else "broken"}">{verdict}</span>'
        rows.append(
            [_name(one), _number(one.estimate), _number(one.error, 2), _number(one.bound), _limit(one), verdict]
        )
    table = (
        _table(["constraint", "estimate", "std. error", "bound", "limit", "verdict"], rows, raw=(5,)) if rows else ""
    )
    picture = (
        _picture("draw_certificate", "estimates and bounds of the constraints relative to their limits", found)
        if rows
        else ""
    )
    reward = [("this policy", found.reward)]
    if found.behaviour is not None:
        reward.append((found.behaviour.name.removeprefix("reward of "), found.behaviour))
    episodes = any(one.per_episode is not None for _, one in reward)
    head = ["reward", "estimate", "std. error", "lower bound", *(["per episode"] if episodes else [])]
    gains = _table(
        head,
        [
            [
                name,
                _number(one.estimate),
                _number(one.error, 2),
                _number(one.bound),
                *([_episode(one)] if episodes else []),
            ]
            for name, one in reward
        ],
    )
    unseen = f"<p>{found.unseen:.2%} of the time is spent where the log shows nothing: the worst case is assumed.</p>"
    unseen = unseen if found.unseen > 1e-9 else ""
    return f"<h2>{title}</h2>{table}{picture}{gains}{unseen}"


def _needed(answer: Answer) -> str:
    if answer.needed is None:
        return ""
    rows = [
        [str(state), str(action), f"{count:,}", f"{share:.1%}"] for state, action, count, share in answer.needed.where
    ]
    much = answer.needed.n_transitions
    text = (
        "How much data would do cannot be told: the estimates themselves do not keep the limits."
        if much is None
        else f"About {much:,} transitions of the same kind would do (an extrapolation, not a promise)."
    )
    table = _table(["state", "action", "times logged", "share of the squared error"], rows, left=(0, 1)) if rows else ""
    return f"<h2>What would help</h2><p>{text}</p>{table and '<p>Rows that would help most:</p>'}{table}"


def _fit(answer: Answer) -> str:
    return f"<h2>Does the log fit the model?</h2>{answer.certificate.fit._repr_html_()}"


def _coverage(answer: Answer, log: Dataset | None) -> str:
    picture = ""
    if log is not None:
        gamma = answer.settings["gamma"]
        picture = _picture(
            "draw_coverage",
            "how often pairs were logged, and where the policy acts",
            log,
            policy=answer.policy,
            gamma=gamma,
        )
    return f'<h2>What the log covers</h2><div class="wide">{answer.coverage._repr_html_()}</div>{picture}'


def _policy(answer: Answer) -> str:
    policy = answer.policy
    if policy is None:
        return ""
    states, actions = _labels(policy)
    order = _by_visits(policy)[:MOST_STATES]
    rows = [[str(states[k]), *(_share(share) for share in policy[k])] for k in order]
    more = len(states) - len(order)
    rest = (
        f'<p class="soft">The {len(order)} states that were logged most; {more:,} more are in the policy file.</p>'
        if more
        else ""
    )
    return f"<h2>The policy</h2><p>Probability of each action.</p>{_table(['state', *map(str, actions)], rows)}{rest}"


def _making(answer: Answer) -> str:
    settings = "".join(
        f"<tr><td>{escape(str(name))}</td><td>{escape(_shown(value))}</td></tr>"
        for name, value in answer.settings.items()
    )
    tried = answer.candidates[:MOST_ROWS]
    rows = [
        [
            str(k + 1),
            "as logged" if one.part is None else _number(one.part, 3),
            _number(one.reward),
            "yes" if one.certified else "no",
        ]
        for k, one in enumerate(tried)
    ]
    table = (
        _table(["candidate", "part of the width kept from the limits", "reward, estimate", "certified"], rows)
        if rows
        else ""
    )
    more = len(answer.candidates) - len(tried)
    picture = (
        _picture("draw_candidates", "estimated reward of the candidates, in the order tried", answer)
        if len(rows) > 1
        else ""
    )
    return (
        f'<h2>How it was made</h2><div class="wide"><table>{settings}</table></div>'
        f"<p>{len(answer.candidates)} candidate policies were tried.</p>{table}"
        f"{f'<p class=soft>and {more:,} more, in the answer file</p>' if more > 0 else ''}{picture}"
    )


def _caveats(answer: Answer) -> str:
    found = answer.certificate
    lines = [
        *map(escape, found.remarks),
        "The log shows the system as it will be: the same transitions, rewards and costs, and nothing hidden that "
        "decides what happens next besides state and action.",
        "The rows of the log were recorded truthfully, and rows that were left out were not left out because of how "
        "they went.",
        "Episodes begin as they do in the log, unless another initial distribution was given.",
        "Constraints hold on (discounted) average, not in every single episode. With probability up to "
        f"{found.delta:g} the certificate is wrong.",
    ]
    return f"<h2>Under which assumptions</h2><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"


def _notes(answer: Answer) -> str:
    if not answer.notes:
        return ""
    return f"<h2>Notes</h2><ul>{''.join(f'<li>{escape(note)}</li>' for note in answer.notes)}</ul>"


# Parts of sections.


def _labels(policy: Policy) -> tuple[Sequence[Any], Sequence[Any]]:
    if policy.labels is None:
        return range(policy.shape[0]), range(policy.shape[1])
    return policy.labels.states, policy.labels.actions


def _by_visits(policy: Policy) -> list[int]:
    """States by how often the log shows them; in their own order if that is not known, or if all can be shown."""
    n_states, n_actions = policy.shape
    if policy.evidence is None or n_states <= MOST_STATES:
        return list(range(n_states))
    visits = np.bincount(policy.evidence.pairs // n_actions, policy.evidence.counts, n_states)
    return np.argsort(-visits, kind="stable").tolist()


def _name(one: Any) -> str:
    return f"{one.name}, {'average per step' if one.is_average else 'discounted total'}"


def _limit(one: Any) -> str:
    return f"{'≤' if one.is_cost else '≥'} {one.limit:.4g}"


def _number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value if abs(value) > 1e-9 else 0.0:,.{digits}g}"


def _episode(one: Any) -> str:
    return "" if one.per_episode is None else _number(one.per_episode)


def _share(share: float) -> str:
    return "–" if share == 0 else "1" if share == 1 else f"{share:.3f}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(
    head: Iterable[str], rows: Iterable[Sequence[str]], raw: tuple[int, ...] = (), left: tuple[int, ...] = ()
) -> str:
    """A table that scrolls on a narrow screen; cells in the columns `raw` are HTML already."""

    def cell(k: int, text: str) -> str:
        style = ' style="text-align:left"' if k in left else ""
        return f"<td{style}>{text if k in raw else escape(text)}</td>"

    top = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(cell(k, text) for k, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _picture(function: str, what: str, *arguments: Any, **keywords: Any) -> str:
    """A picture of `dpdl.plots` inside the page; nothing without matplotlib."""
    try:
        from dpdl import plots
    except ImportError:
        return ""
    draw: Callable[..., None] = getattr(plots, function)
    file = io.BytesIO()
    draw(*arguments, file, **keywords)
    return f'<img alt="{escape(what)}" src="data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}">'
