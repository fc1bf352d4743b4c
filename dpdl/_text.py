"""Tables and numbers for people, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


class Shown:
    """Base of results that are printed as text, and as HTML in a notebook: both are made of the same parts."""

    def parts(self) -> Iterable[str | Table]:
        """Lines and tables (header, rows), in order."""
        raise NotImplementedError

    def __repr__(self) -> str:
        lines: list[str] = []
        for part in self.parts():
            lines += [part] if isinstance(part, str) else ["", *aligned(*part), ""]
        return "\n".join(lines).replace("\n\n\n", "\n\n").strip("\n")

    def _repr_html_(self) -> str:
        lines = (f"<p>{escape(part)}</p>" if isinstance(part, str) else html_table(*part) for part in self.parts())
        return "".join(lines).replace("<p></p>", "")


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

    Cells after the first name their column, so that a page can show rows one below the other on a narrow screen.

    Examples
    --------
    >>> html_table(("name", "size", ""), [("a<b", "2", "")]).split("<tbody>")[1]
    '<tr><td>a&lt;b</td><td data-head="size">2</td></tr></tbody></table>'
    """
    shown = [k for k in range(len(header)) if any(row[k] for row in rows)]
    starts = {k: f'<td data-head="{escape(header[k])}">' if k else "<td>" for k in shown}
    head = "".join(f"<th>{escape(header[k])}</th>" for k in shown)
    body = "".join("<tr>" + "".join(f"{starts[k]}{escape(row[k])}</td>" for k in shown) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def tidy(value: float | None, digits: int = 4) -> str:
    """A number with so many digits; nothing for None."""
    return "" if value is None else f"{value:.{digits}g}"
