"""Pictures (extra ``plot``): certificates, frontiers, coverage and runs.

`plot_certificate`, `plot_frontier` and `plot_coverage` draw into axes and return them. `draw_convergence` draws several
panels to a file (.png, .svg or .pdf). Colours are those of Okabe and Ito, which people with any kind of colour vision
can tell apart; what matters is also shown by form. Nothing else of the package is imported here.
"""

from __future__ import annotations

import os
from typing import IO, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

BLUE, RED, INK, GREY = "#0072b2", "#d55e00", "#22223b", "#767676"
#: How the part of a picture looks that is beyond a limit.
FORBIDDEN = {"facecolor": RED, "alpha": 0.12, "hatch": "//", "edgecolor": RED, "lw": 0}

Target = str | os.PathLike[str] | IO[bytes]


def plot_certificate(certificate: Any, ax: Any = None) -> Any:
    """Draw each constraint in a row: estimate and bound relative to the limit; beyond it is hatched."""
    rows = certificate.constraints
    if not rows:
        raise ValueError("a certificate without constraints cannot be drawn")
    ax = _axes(ax, 6.4, 1.3 + 0.5 * len(rows))
    for k, bound in enumerate(rows):
        limit = bound.limit or 0.0
        unit = abs(limit) or max(abs(bound.estimate), abs(bound.bound)) or 1.0
        sign = 1 if bound.is_cost else -1
        left, right = (sign * (value - limit) / unit for value in (bound.estimate, bound.bound))
        ax.plot([left, right], [k, k], color=BLUE if bound.kept else RED, lw=3, solid_capstyle="butt", zorder=2)
        ax.plot(left, k, "o", color=INK, markersize=7, zorder=3, label="estimate" if k == 0 else None)
        ax.plot(right, k, "|", color=INK, markersize=16, mew=2, zorder=3, label="bound" if k == 0 else None)
    ax.axvline(0, color=INK, ls="--", lw=1)
    low, high = ax.get_xlim()
    ax.set_xlim(low - 0.05 * (high - low), max(high, 0.02) + 0.08 * (high - low))
    ax.axvspan(0, ax.get_xlim()[1], **FORBIDDEN)
    ax.set_yticks(range(len(rows)), [bound.name for bound in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "limit" if abs(x) < 1e-12 else f"{100 * x:+.3g}%"))
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel("distance to the limit, relative to it")
    ax.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return tidy(ax)


def plot_frontier(frontier: Any, ax: Any = None) -> Any:
    """Draw the reward of the best policy against the limit of a constraint; certified points are filled."""
    ax = _axes(ax, 6.4, 3.6)
    limits, rewards, certified = (  # None, which is not known, becomes NaN, which is not drawn
        np.array([getattr(point, name) for point in frontier.points], dtype=float)
        for name in ("limit", "reward", "certified")
    )
    ax.plot(limits, rewards, color=GREY, marker="o", markerfacecolor="white", label="estimated optimum")
    ax.plot(limits, certified, color=BLUE, marker="o", label="certified policy")
    ax.set(xlabel=f"limit of {frontier.name}", ylabel="reward, discounted")
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    return tidy(ax)


def plot_coverage(log: Any, ax: Any = None) -> Any:
    """Draw how many pairs of state and action the log shows how often."""
    ax = _axes(ax, 6.4, 2.6)
    counts, n_pairs = log.pair_counts, log.n_states * log.n_actions
    low, high = max(int(counts.min()), 1), int(counts.max()) + 1
    spread = high > 20 * low
    edges = np.geomspace(low, high, 13) if spread else np.linspace(low, high, 13)
    ax.hist(counts, edges, color=BLUE, edgecolor="white", lw=0.5)
    if spread:
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(FuncFormatter(_short))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_title(f"{n_pairs - len(counts):,} of {n_pairs:,} pairs were never logged", fontsize=9)
    ax.set(xlabel="times logged", ylabel="pairs of state and action")
    return tidy(ax)


def draw_convergence(recorder: Any, path: Target) -> None:
    """Draw a run: reward, the Gap on logarithmic axes if known, and each constraint with its limit and multiplier."""
    if len(recorder.rows) < 2:
        raise ValueError(f"a run of fewer than two recorded points cannot be drawn, got {len(recorder.rows)}")
    table = recorder.to_table()
    steps, limits = table.pop("steps"), {figure.name: figure for figure in recorder.constraints}
    drawn = [name for name, values in table.items() if name != "seconds" and not np.isnan(values).all()]
    rows = -(-len(drawn) // 2)
    figure = Figure(figsize=(9.2, 2.5 * rows + 0.4), layout="constrained")
    axes = list(np.ravel(figure.subplots(rows, 2)))
    for name, ax in zip(drawn, axes, strict=False):
        ax.plot(steps, table[name], color=BLUE)
        ax.set(xlabel="steps", ylabel=name)
        ax.xaxis.set_major_formatter(FuncFormatter(_short))
        if name in limits:
            ax.set_ylabel(f"{name},\ndiscounted {'average per step' if limits[name].is_average else 'total'}")
            _limit(ax, limits[name].limit, limits[name].is_cost)
        if name == "gap":
            ax.set(xscale="log", yscale="log", ylabel="Gap of the average")
        tidy(ax)
    for ax in axes[len(drawn) :]:
        ax.set_visible(False)
    figure.suptitle("Estimates on the log while the run was under way", fontsize=11)
    save(figure, path)


def _axes(ax: Any, width: float, height: float) -> Any:
    """Axes to draw into: the caller's, or new ones."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def save(figure: Figure, path: Target) -> None:
    """Write a figure to a file; to an open file as SVG, the same figure with the same bytes."""
    if isinstance(path, (str, os.PathLike)):
        figure.savefig(path, dpi=110)
    else:  # without a date and with fixed names inside
        with rc_context({"svg.hashsalt": "dpdl"}):
            figure.savefig(path, format="svg", metadata={"Date": None})


def tidy(ax: Any) -> Any:
    """Remove the box around axes, and draw a light grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, color="#e5e5e5", lw=0.6)
    ax.set_axisbelow(True)
    return ax


def _limit(ax: Any, limit: float, is_cost: bool) -> None:
    ax.axhline(limit, color=RED, ls="--", lw=1.2)
    low, high = ax.get_ylim()
    room = 0.18 * (max(high, limit) - min(low, limit) or 1.0)
    ax.set_ylim(min(low, limit - room), max(high, limit + room))
    low, high = ax.get_ylim()
    ax.axhspan(*((limit, high) if is_cost else (low, limit)), **FORBIDDEN)
    style = {"fontsize": 8, "ha": "right", "va": "bottom" if is_cost else "top", "color": INK}
    ax.text(0.98, limit, f"limit {limit:.4g}", transform=ax.get_yaxis_transform(), **style)


def _short(value: float, _: Any = None) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.3g}"
