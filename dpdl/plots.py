"""Pictures (extra ``plot``): hazards, occupancy and policy of a gridworld."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dpdl._validation import Array
from dpdl.demo import Demo
from dpdl.instances import GridWorld

FIRE, MUD, WALL, INK = "#d1495b", "#a68a64", "#3d405b", "#22223b"
BLUES = LinearSegmentedColormap.from_list("visits", ["#f7fbff", "#9ecae1", "#2171b5"])


def draw_demo(demo: Demo, path: str) -> None:
    """Draw where each policy goes and what it does there, one panel a policy."""
    figure = Figure(figsize=(13, 8.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2).ravel()
    for ax, (name, row) in zip(axes, demo.rows.items(), strict=True):
        draw_occupancy(ax, demo.grid, row.occupancy)
        verdict = "safe" if (row.utilities >= -1e-7).all() else "breaks a constraint"
        slack = ", ".join(f"{u + 0.0:.2f}" for u in np.round(row.utilities, 2))
        ax.set_title(f"{name}\nreward {row.reward:.3f}, slack of fire and mud {slack}: {verdict}", fontsize=11)
    figure.suptitle(
        "Red: fire, brown: mud, dark: wall. Blue: how often a cell is visited. Arrows: what the policy does there.",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)


def draw_occupancy(ax: Any, grid: GridWorld, occupancy: Array) -> None:
    """Draw one gridworld: cells by visits, arrows as long as the action is likely."""
    visits = np.full((grid.n_rows, grid.n_columns), np.nan)
    mass = occupancy.sum(axis=1)
    visits[tuple(grid.cells.T)] = np.sqrt(mass / mass.max())  # the root shows rare cells too
    ax.imshow(visits, cmap=BLUES, vmin=0, vmax=1)
    for cells, colour in ((grid.hazards, FIRE), (grid.mud, MUD)):
        for row, column in np.argwhere(cells):
            ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, alpha=0.38, edgecolor=colour))
    for row, column in np.argwhere(grid.walls):
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=WALL))
    _draw_policy(ax, grid, occupancy)
    for state, letter in ((grid.start, "S"), (grid.goal, "G")):
        row, column = grid.cells[state]
        ax.text(column - 0.42, row - 0.28, letter, fontsize=13, fontweight="bold", color=INK)
    ax.set_xticks([])
    ax.set_yticks([])


def _draw_policy(ax: Any, grid: GridWorld, occupancy: Array) -> None:
    mass = occupancy.sum(axis=1)
    shown = mass > 1e-4 * mass.sum()
    likely = np.divide(occupancy, mass[:, None], where=shown[:, None], out=np.zeros_like(occupancy))
    rows, columns = grid.cells.T
    for action, (dx, dy) in enumerate(((0, -1), (1, 0), (0, 1), (-1, 0))):
        length = 0.44 * likely[:, action]
        keep = shown & (length > 0.03) & (np.arange(len(mass)) != grid.goal)
        ax.quiver(
            columns[keep], rows[keep], dx * length[keep], dy * length[keep],
            angles="xy", scale_units="xy", scale=1, width=0.005, headwidth=4, headlength=4, color=INK,
        )  # fmt: skip
