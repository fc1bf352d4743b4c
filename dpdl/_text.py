"""Tables and numbers for people, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right; columns without entries are left out.

    Examples
    --------
    >>> print("\\n".join(aligned(("name", "value", "limit"), [("reward", "1.5", ""), ("cost", "12", "")])))
    name    value
    reward    1.5
    cost       12
    """
    table = [header, *rows]
    shown = [k for k in range(len(header)) if any(row[k] for row in rows)]
    widths = {k: max(len(row[k]) for row in table) for k in shown}
    return [
        "  ".join(row[k].ljust(widths[k]) if k == 0 else row[k].rjust(widths[k]) for k in shown).rstrip()
        for row in table
    ]


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in HTML; columns without entries are left out.

    Examples
    --------
    >>> html_table(("name", ""), [("a<b", "")])
    '<table><thead><tr><th>name</th></tr></thead><tbody><tr><td>a&lt;b</td></tr></tbody></table>'
    """
    shown = [k for k in range(len(header)) if any(row[k] for row in rows)]
    head = "".join(f"<th>{escape(header[k])}</th>" for k in shown)
    body = "".join("<tr>" + "".join(f"<td>{escape(row[k])}</td>" for k in shown) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def tidy(value: float | None, digits: int = 4) -> str:
    """A number with so many digits; nothing for None."""
    return "" if value is None else f"{value:.{digits}g}"
