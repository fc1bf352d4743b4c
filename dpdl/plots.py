"""Pictures (extra ``plot``): runs, coverage, certificates, frontiers, and policies on grids.

Every function draws to a file (.png, .svg or .pdf) or to an open binary file, in which case the picture is an SVG.
Colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart; what matters is also
shown by form.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from dpdl import _validation as check
from dpdl._validation import Array
from dpdl.data.dataset import Dataset
from dpdl.demo import Demo
from dpdl.models.judgement import judge
from dpdl.recording import Recorder
from dpdl.safety.answer import Answer
from dpdl.safety.certificate import Certificate
from dpdl.safety.frontier import Frontier

BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"
INK, GREY, WALL = "#22223b", "#767676", "#3d405b"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
MARKERS = "osD^vP"
BLUES = LinearSegmentedColormap.from_list("visits", ["#f7fbff", "#9ecae1", "#2171b5"])
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))

Target = str | os.PathLike[str] | IO[bytes]


# Runs.


def draw_convergence(recorder: Recorder, path: Target) -> None:
    """Draw a run: reward, each constraint with its limit, multipliers and, if known, the Gap on logarithmic axes."""
    if len(recorder.steps) < 2:
        raise ValueError(f"a run of fewer than two recorded points cannot be drawn, got {len(recorder.steps)}")
    table, constraints = recorder.to_table(), recorder.constraints[0]
    steps = table["steps"]
    positive = table["gap"] > 0
    panels = 1 + len(constraints) + bool(constraints) + bool(positive.any())
    figure, axes = _panels(panels, per_row=2)
    _line(axes[0], steps, table["reward"], "reward, discounted")
    for ax, one in zip(axes[1:], constraints, strict=False):
        assert one.limit is not None
        _line(ax, steps, table[one.name], _unit(one.name, one.is_average))
        _limit(ax, one.limit, one.is_cost)
    if constraints:
        ax = axes[1 + len(constraints)]
        for i, one in enumerate(constraints):
            style = {"color": SERIES[i % 6], "marker": MARKERS[i % 6], "markevery": max(1, len(steps) // 8)}
            ax.plot(steps, table[f"multiplier of {one.name}"], label=one.name, markersize=4, **style)
        ax.set_ylabel("multiplier (scaled units)")
        ax.set_ylim(bottom=0)
        ax.legend(fontsize=8, frameon=False)
    for ax in axes[:panels]:
        ax.set_xlabel("steps")
        ax.xaxis.set_major_formatter(FuncFormatter(_short))
    if positive.any():
        ax = axes[panels - 1]
        _line(ax, steps[positive], table["gap"][positive], "Gap of the average")
        ax.set(xscale="log", yscale="log")
    figure.suptitle("Estimates on the log while the run was under way", fontsize=11)
    _save(figure, path)


# Answers.


def draw_certificate(certificate: Certificate, path: Target) -> None:
    """Draw each constraint: estimate and bound relative to the limit, one row a constraint."""
    rows = [one for one in certificate.constraints if one.limit is not None]
    if not rows:
        raise ValueError("a certificate without constraints cannot be drawn")
    figure = _figure(5.6, 1.2 + 0.5 * len(rows))
    ax = figure.subplots()
    for k, one in enumerate(rows):
        assert one.limit is not None
        unit = abs(one.limit) or max(abs(one.estimate), abs(one.bound)) or 1.0
        estimate, bound = (one.estimate - one.limit) / unit, (one.bound - one.limit) / unit
        if not one.is_cost:
            estimate, bound = -estimate, -bound
        ax.plot([estimate, bound], [k, k], color=BLUE if one.kept else RED, lw=3, solid_capstyle="butt", zorder=2)
        ax.plot(estimate, k, "o", color=INK, markersize=7, zorder=3, label="estimate" if k == 0 else None)
        ax.plot(bound, k, "|", color=INK, markersize=16, mew=2, zorder=3, label="bound" if k == 0 else None)
    ax.axvline(0, color=INK, ls="--", lw=1)
    low, high = ax.get_xlim()
    ax.set_xlim(low - 0.05 * (high - low), max(high, 0.02) + 0.08 * (high - low))
    ax.axvspan(0, ax.get_xlim()[1], facecolor=RED, alpha=0.12, hatch="//", edgecolor=RED, lw=0)
    ax.set_yticks(range(len(rows)), [one.name for one in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    relative = all(one.limit for one in rows)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "limit" if abs(x) < 1e-12 else _percent(x)))
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel("distance to the limit, relative to it" if relative else "distance to the limit, relative")
    ax.legend(
        fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.28 if len(rows) < 3 else 1.15), ncols=2
    )
    _save(figure, path)


def draw_candidates(answer: Answer, path: Target) -> None:
    """Draw what was tried: the estimated reward of each candidate, in order, and which could be certified."""
    if not answer.candidates:
        raise ValueError("an answer without candidates cannot be drawn")
    figure = _figure(5.6, 2.8)
    ax = figure.subplots()
    order = np.arange(1, len(answer.candidates) + 1)
    rewards = np.array([one.reward for one in answer.candidates], dtype=float)
    passed = np.array([one.certified for one in answer.candidates])
    for which, form, colour, label in ((passed, "o", BLUE, "certified"), (~passed, "x", RED, "not certified")):
        if which.any():
            ax.plot(order[which], rewards[which], form, color=colour, markersize=7, mew=2, label=label)
    certificate = answer.certificate
    if certificate is not None and certificate.behaviour is not None:
        ax.axhline(certificate.behaviour.estimate, color=GREY, ls=":", lw=1.5, label="behaviour policy")
    ax.set_xlabel("candidate, in the order tried")
    ax.set_ylabel("estimated reward")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(0.08, 0.15)
    ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=3)
    _save(figure, path)


def draw_coverage(log: Dataset, path: Target, policy: ArrayLike | None = None, *, gamma: float | None = None) -> None:
    """Draw how often pairs were logged; with a policy and gamma also how much of its time it spends at each."""
    counts, n_pairs = log.pair_counts, log.n_states * log.n_actions
    panels = 1 if policy is None else 2
    figure = _figure(3.6 * panels + (1.2 if panels == 1 else 0.6), 3.2)
    axes = np.atleast_1d(figure.subplots(1, panels))
    ax = axes[0]
    low, high = int(counts.min()), int(counts.max())
    spread = high > 20 * low
    ends = (max(low, 1), high + 1)
    edges = np.geomspace(*ends, 13) if spread else np.linspace(*ends, 13)
    ax.hist(counts, edges, color=BLUE, edgecolor="white", lw=0.5)
    ax.set_title(f"{n_pairs - len(counts):,} of {n_pairs:,} pairs were never logged", fontsize=9)
    ax.set_xlabel("times logged")
    ax.set_ylabel("pairs of state and action")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    _count_axis(ax, spread)
    if policy is not None:
        if gamma is None:
            raise TypeError("a policy needs gamma")
        _draw_use(axes[1], log, policy, gamma)
    _save(figure, path)


def _draw_use(ax: Any, log: Dataset, policy: ArrayLike, gamma: float) -> None:
    occupancy = judge(policy, log, gamma=gamma).occupancy
    assert occupancy is not None
    counts = np.zeros(log.n_states * log.n_actions)
    counts[log.pairs] = log.pair_counts
    share = occupancy.ravel() / occupancy.sum()
    used = share > 1e-6
    ax.scatter(
        np.maximum(counts[used], 0.5), share[used], s=14, color=BLUE, alpha=0.6, lw=0, rasterized=used.sum() > 2000
    )
    never = used & (counts == 0)
    if never.any():
        ax.scatter(np.full(never.sum(), 0.5), share[never], s=24, marker="x", color=RED, label="never logged")
        ax.legend(fontsize=8, frameon=False)
    _count_axis(ax, counts[used].max() > 20 * max(counts[used].min(), 0.5))
    if share[used].max() > 20 * share[used].min():
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(bottom=0)
    ax.set_title("where the policy acts", fontsize=9)
    ax.set_xlabel("times logged")
    ax.set_ylabel("share of the policy's time")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.3g}%"))


def _count_axis(ax: Any, spread: bool) -> None:
    """Counts along x: in decades if they are spread widely."""
    if spread:
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(_short))


def draw_frontier(frontier: Frontier, path: Target) -> None:
    """Draw reward and price of a constraint against its limit; certified points are filled."""
    limits = np.array([one.limit for one in frontier.points], dtype=float)
    rewards, certified, prices = (  # None, which is not known, becomes NaN, which is not drawn
        np.array([getattr(one, name) for one in frontier.points], dtype=float)
        for name in ("reward", "certified", "price")
    )
    figure = _figure(7.2, 4.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
    top.plot(limits, rewards, color=GREY, marker="o", markerfacecolor="white", label="estimated optimum")
    top.plot(limits, certified, color=BLUE, marker="o", label="certified policy")
    top.set_ylabel("reward, discounted")
    top.legend(fontsize=8, frameon=False, loc="lower right")
    bottom.plot(limits, prices, color=ORANGE, marker="s", markersize=4)
    bottom.set_ylim(bottom=0)
    bottom.set_ylabel("price: reward\nper unit of limit")
    bottom.set_xlabel(f"limit of {frontier.name}")
    _save(figure, path)


# Grids.


def draw_grid(
    path: Target,
    policy: ArrayLike,
    shape: tuple[int, int],
    *,
    occupancy: ArrayLike | None = None,
    moves: Sequence[tuple[int, int]] = MOVES,
    marks: Mapping[int, str] | None = None,
    shaded: Mapping[str, Sequence[int]] | None = None,
    title: str | None = None,
) -> None:
    """Draw a policy whose states are the cells of a grid, row by row: arrows as long as the action is likely.

    Parameters
    ----------
    path : path or open binary file
        Where to draw.
    policy : array_like, shape (rows * columns, A)
        Probabilities of the actions in each cell.
    shape : (int, int)
        Rows and columns.
    occupancy : array_like, shape (rows * columns,) or (rows * columns, A), optional
        How often cells are visited; shown in blue.
    moves : sequence of (dx, dy), optional
        Where each action goes: dx to the right, dy downwards. By default up, right, down, left.
    marks : mapping of int to str, optional
        Letters for cells: the start, the goal.
    shaded : mapping of str to sequence of int, optional
        Cells of a kind, with the name for the legend: holes, cliffs.
    title : str, optional
        What stands above the grid.
    """
    rows, columns = shape
    table = check.policy_array("policy", check.numbers_array("policy", policy), rows * columns, len(moves))
    figure = _figure(max(3.4, 0.62 * columns + 1.2), max(2.2, 0.62 * rows + (1.2 if title or shaded else 0.6)))
    ax = figure.subplots()
    cells = np.stack(np.divmod(np.arange(rows * columns), columns), axis=1)
    mass = None if occupancy is None else np.asarray(occupancy, dtype=float).reshape(rows * columns, -1).sum(axis=1)
    _cells(ax, shape, cells, mass)
    for (name, where), colour, hatch in zip(
        (shaded or {}).items(), (RED, PURPLE, WALL), ("xx", "..", "//"), strict=False
    ):
        for k, cell in enumerate(where):
            _shade(ax, cells[cell], colour, hatch, label=name if k == 0 else None)
    hidden = {cell for where in (shaded or {}).values() for cell in where} | set(marks or ())
    shown = np.array([k not in hidden or k in (marks or {}) for k in range(len(cells))])
    if mass is not None:
        shown &= mass > 1e-6 * mass.sum()
    _arrows(ax, cells, table, shown, moves)
    for cell, letter in (marks or {}).items():
        _letter(ax, cells[cell], letter)
    if shaded:
        ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=len(shaded))
    if title:
        ax.set_title(title, fontsize=10)
    _save(figure, path)


def draw_demo(demo: Demo, path: Target) -> None:
    """Draw where each policy goes and what it does there, one panel a policy."""
    figure = Figure(figsize=(13, 8.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = demo.grid
    for ax, (name, row) in zip(figure.subplots(2, 2).ravel(), demo.rows.items(), strict=True):
        mass = row.occupancy.sum(axis=1)
        _cells(ax, (grid.n_rows, grid.n_columns), grid.cells, mass)
        for cells, colour, hatch in ((grid.hazards, RED, "xx"), (grid.mud, PURPLE, ".."), (grid.walls, WALL, "")):
            for where in np.argwhere(cells):
                _shade(ax, where, colour, hatch, solid=colour == WALL)
        shown = (mass > 1e-4 * mass.sum()) & (np.arange(len(mass)) != grid.goal)
        likely = np.divide(row.occupancy, mass[:, None], where=shown[:, None], out=np.zeros_like(row.occupancy))
        _arrows(ax, grid.cells, likely, shown, MOVES)
        for state, letter in ((grid.start, "S"), (grid.goal, "G")):
            _letter(ax, grid.cells[state], letter)
        verdict = "safe" if (row.utilities >= -1e-7).all() else "breaks a constraint"
        slack = ", ".join(f"{u + 0.0:.2f}" for u in np.round(row.utilities, 2))
        ax.set_title(f"{name}\nreward {row.reward:.3f}, slack of fire and mud {slack}: {verdict}", fontsize=11)
    figure.suptitle(
        "Crossed: fire, dotted: mud, dark: wall. Blue: how often a cell is visited. Arrows: what the policy does.",
        fontsize=11,
    )
    _save(figure, path)


def _cells(ax: Any, shape: tuple[int, int], cells: NDArray[np.int64], mass: Array | None) -> None:
    visits = np.full(shape, np.nan)
    if mass is not None:
        visits[tuple(cells.T)] = np.sqrt(mass / mass.max())  # the root shows rare cells too
    ax.imshow(np.ma.masked_invalid(visits), cmap=BLUES, vmin=0, vmax=1)
    ax.set_xlim(-0.5, shape[1] - 0.5)
    ax.set_ylim(shape[0] - 0.5, -0.5)
    ax.set_xticks([])
    ax.set_yticks([])
    for k in range(1, shape[1]):
        ax.axvline(k - 0.5, color="#d9d9d9", lw=0.6, zorder=0.9)
    for k in range(1, shape[0]):
        ax.axhline(k - 0.5, color="#d9d9d9", lw=0.6, zorder=0.9)


def _shade(
    ax: Any, cell: NDArray[np.int64], colour: str, hatch: str, *, solid: bool = False, label: str | None = None
) -> None:
    row, column = cell
    face = to_rgba(colour, 1.0 if solid else 0.25)
    corner = (column - 0.5, row - 0.5)
    ax.add_patch(Rectangle(corner, 1, 1, facecolor=face, edgecolor=colour, hatch=hatch, lw=0.8, label=label))


def _letter(ax: Any, cell: NDArray[np.int64], letter: str) -> None:
    row, column = cell
    ax.text(column - 0.42, row - 0.26, letter, fontsize=11, fontweight="bold", color=INK, va="center", zorder=5)


def _arrows(
    ax: Any, cells: NDArray[np.int64], likely: Array, shown: NDArray[np.bool_], moves: Sequence[tuple[int, int]]
) -> None:
    rows, columns = cells.T
    for action, (dx, dy) in enumerate(moves):
        length = 0.44 * likely[:, action]
        keep = shown & (length > 0.03)
        ax.quiver(
            columns[keep], rows[keep], dx * length[keep], dy * length[keep],
            angles="xy", scale_units="xy", scale=1, units="xy", width=0.03, headwidth=4, headlength=4, color=INK,
            zorder=4,
        )  # fmt: skip


# Figures.


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _panels(n: int, per_row: int) -> tuple[Figure, list[Any]]:
    rows = -(-n // per_row)
    figure = _figure(4.6 * per_row, 2.5 * rows + 0.4)
    axes = list(np.ravel(figure.subplots(rows, per_row)))
    for ax in axes[n:]:
        ax.set_visible(False)
    return figure, axes


def _save(figure: Figure, path: Target) -> None:
    for ax in figure.axes:
        if ax.images:
            continue
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        ax.grid(visible=True, color="#e5e5e5", lw=0.6)
        ax.set_axisbelow(True)
    if isinstance(path, (str, os.PathLike)):
        figure.savefig(path, dpi=110)
    else:  # without a date and with fixed names inside, so that the same figure gives the same bytes
        with rc_context({"svg.hashsalt": "dpdl"}):
            figure.savefig(path, format="svg", metadata={"Date": None})


def _line(ax: Any, x: Array, y: Array, label: str) -> None:
    ax.plot(x, y, color=BLUE, lw=1.6)
    ax.set_ylabel(label)


def _limit(ax: Any, limit: float, is_cost: bool) -> None:
    ax.axhline(limit, color=RED, ls="--", lw=1.2)
    low, high = ax.get_ylim()
    room = 0.18 * (max(high, limit) - min(low, limit) or 1.0)
    ax.set_ylim(min(low, limit - room), max(high, limit + room))
    low, high = ax.get_ylim()
    forbidden = (limit, high) if is_cost else (low, limit)
    ax.axhspan(*forbidden, facecolor=RED, alpha=0.12, hatch="//", edgecolor=RED, lw=0)
    ax.text(
        0.98, limit, f"limit {limit:.4g}", color=INK, fontsize=8, ha="right", va="bottom" if is_cost else "top",
        transform=ax.get_yaxis_transform(), bbox={"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 1},
    )  # fmt: skip


def _unit(name: str, is_average: bool) -> str:
    return f"{name},\ndiscounted {'average per step' if is_average else 'total'}"


def _percent(x: float) -> str:
    return f"{100 * x:+,.0f}%" if abs(x) >= 1 else f"{100 * x:+.3g}%"


def _short(value: float, _: Any = None) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.3g}"
