"""``dpdl inspect``: what is in a log, before anything is solved."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdl._text import aligned
from dpdl.commands.logs import opened
from dpdl.commands.output import OK, show
from dpdl.data.columns import Column, column_names, load
from dpdl.data.dataset import Dataset
from dpdl.data.sources import kind_of
from dpdl.safety.coverage import coverage

KINDS = {"b": "true or false", "i": "whole number", "u": "whole number", "f": "number", "M": "date"}


def inspect(options: Any) -> int:
    """Show the columns of a table, or the log that its columns make."""
    if options.state is None and kind_of(options.log) == "table":
        return _inspect_columns(options)
    log = opened(options)
    facts = _facts(log)
    covered = coverage(log)
    lines = [f"{options.log}: {facts['transitions']:,} transitions, {facts['states']:,} states, "]
    lines[0] += f"{facts['actions']:,} actions"
    if facts["episodes"] is not None:
        stop = facts["episodes"] - facts["ended"]
        lines.append(f"{facts['episodes']:,} episodes: {facts['ended']:,} ended, of {stop:,} only the record stops")
    else:
        lines.append(f"independent transitions, {facts['ended']:,} of which end their episode; where episodes begin")
        lines[-1] += " is not known"
    lines.append("")
    per_row = [(name, *(f"{one:.4g}" for one in values)) for name, values in facts["per row"].items()]
    lines += aligned(("per row", "least", "mean", "largest"), per_row)
    lines += ["", repr(covered), *(f"note: {note}" for note in log.notes)]
    show(options, {**facts, "coverage": covered, "notes": log.notes}, "\n".join(lines))
    return OK


def _facts(log: Dataset) -> dict[str, Any]:
    rewards = log.r
    per_row = {"reward": rewards, **_costs(log)}
    weights = log.repeats
    return {
        "transitions": len(log),
        "states": log.n_states,
        "actions": log.n_actions,
        "episodes": None if log.initial_counts is None else int(log.initial_counts.sum()),
        "ended": log.n_ended,
        "per row": {
            name: (float(one.min()), float(np.average(one, weights=weights)), float(one.max()))
            for name, one in per_row.items()
        },
    }


def _costs(log: Dataset) -> dict[str, NDArray[np.float64]]:
    """Costs, or utilities if the log was made from these."""
    return log.costs if log.cost_names is not None else {f"utility {i}": u for i, u in enumerate(log.u.T)}


def _inspect_columns(options: Any) -> int:
    names = [name for name in column_names(options.log) if isinstance(name, str)]
    columns = load(options.log, dict.fromkeys(names, "column"))
    n = len(next(iter(columns.values())).values) if columns else 0
    found = {name: _described(column) for name, column in columns.items()}
    rows = [
        (name, one["kind"], f"{one['distinct']:,}", f"{one['missing']:,}", one["shown"]) for name, one in found.items()
    ]
    hint = (
        "Say which column is what to see the log that they make:\n"
        f"  dpdl inspect {os.fspath(options.log)} --state COLUMN --action COLUMN --reward COLUMN \\\n"
        "      --episode COLUMN --terminated COLUMN    (or --next-state COLUMN)"
    )
    text = "\n".join(
        [
            f"{options.log}: {n:,} rows, {len(names)} columns",
            "",
            *aligned(("column", "kind", "distinct", "missing", "values"), rows),
            "",
            hint,
        ]
    )
    show(options, {"rows": n, "columns": found}, text)
    return OK


def _described(column: Column) -> dict[str, Any]:
    values = column.values[~column.missing]
    text = values.dtype.kind not in KINDS
    distinct = sorted({str(one) for one in values}) if text else np.unique(values).tolist()
    if text or len(distinct) <= 5:
        shown = ", ".join(str(one) for one in distinct[:5]) + (", ..." if len(distinct) > 5 else "")
    else:
        shown = (
            f"{distinct[0]:.6g} to {distinct[-1]:.6g}"
            if values.dtype.kind != "M"
            else f"{values.min()} to {values.max()}"
        )
    return {
        "kind": "text" if text else KINDS[values.dtype.kind],
        "distinct": len(distinct),
        "missing": int(column.missing.sum()),
        "shown": shown[:60],
    }
