"""Opening the LOG of a command line."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np

from dpdl.data.dataset import Dataset
from dpdl.data.discretizer import Discretizer
from dpdl.data.sources import kind_of, read_log

NAMES = ("state", "action", "reward", "next_state", "episode", "time", "terminated", "truncated")


def opened(options: Any, discretizer: Discretizer | None = None) -> Dataset:
    """The log that the options describe; a policy that is to be compared with it brings its discretizer along."""
    costs = dict(options.costs or ())
    if len(costs) < len(options.costs or ()):
        raise ValueError("--cost names a column twice")
    given = {name: _one(getattr(options, name)) for name in NAMES if getattr(options, name) is not None}
    return read_log(
        options.log,
        **given,
        costs=None if kind_of(options.log) == "dpdl" else list(costs) or None,
        missing=options.missing,
        discretizer=discretizer or _discretizer(options),
    )


def question(options: Any) -> dict[str, Any]:
    """Arguments ``limits`` and ``limit_on`` for the limits of the options."""
    limits = {name: limit for name, limit in options.costs or () if limit is not None}
    if limits and options.limit_on is None:
        raise ValueError(
            "limits need --limit-on: total if they bound discounted totals, or average if they bound discounted "
            "averages per step"
        )
    return {"limits": limits, "limit_on": options.limit_on} if limits else {}


def initial(options: Any, log: Dataset) -> dict[str, Any]:
    """Argument ``rho0`` for the states of ``--start``, found by what their labels look like; nothing without any."""
    if options.start is None:
        return {}
    labels = range(log.n_states) if log.labels is None else log.labels.states
    places = {str(label): k for k, label in enumerate(labels)}
    rho0 = np.zeros(log.n_states)
    for name in options.start:
        if name not in places:
            close = ", ".join(get_close_matches(name, places)) or ", ".join([*places][:3])
            raise ValueError(f"--start {name}: the log has no such state; some that it has: {close}")
        rho0[places[name]] += 1 / len(options.start)
    return {"rho0": rho0}


def _one(value: Any) -> Any:
    """A single column by its name, several as a list: their labels are tuples."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _discretizer(options: Any) -> dict[str, Any] | None:
    if options.bins is None:
        if options.discretize is not None:
            raise ValueError("--discretize needs --bins")
        return None
    method = options.discretize or "quantile"
    return {"method": method, "clusters" if method == "kmeans" else "bins": options.bins}
