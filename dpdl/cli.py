"""The ``dpdl`` command: ``dpdl demo`` shows on a gridworld, from a log alone, what the library is for."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpdl import __version__
from dpdl.data.dataset import Dataset
from dpdl.instances import GridWorld, hazard_gridworld
from dpdl.models.cmdp import Evaluation
from dpdl.result import Result
from dpdl.running.learn import learn
from dpdl.settings import Settings

#: The demo's choice: psi a little above C*, some conservatism.
PSI, KAPPA, SLATER = 8.0, 0.1, 0.15


@dataclass(frozen=True)
class Demo:
    """Everything the demo shows: the grid, the log, the run and the policies compared."""

    grid: GridWorld
    log: Dataset
    result: Result
    rows: dict[str, Evaluation]
    seconds: float


def run_demo(n_transitions: int = 200_000, n_steps: int = 40_000_000, seed: int = 0) -> Demo:
    """Make a log with a mediocre policy, learn from it, and compare on the model that the learner never saw.

    Examples
    --------
    >>> demo = run_demo(n_transitions=2_000, n_steps=10_000)
    >>> list(demo.rows)
    ['behaviour (made the log)', 'unconstrained optimum', 'constrained optimum', 'learned from the log']
    """
    grid = hazard_gridworld()
    cmdp = grid.cmdp
    rng = np.random.default_rng(seed)
    behaviour = grid.behaviour()
    log = cmdp.rollout(n_transitions, behaviour, rng=rng)
    sizes = cmdp.n_states, cmdp.n_actions, cmdp.n_utilities
    settings = Settings.practical(*sizes, gamma=cmdp.gamma, slater=SLATER, psi=PSI, T=n_steps, kappa=KAPPA, floor=1e-5)
    began = time.perf_counter()
    result = learn(log, settings, rho0=cmdp.rho0, rng=rng)
    seconds = time.perf_counter() - began
    policies = {
        "behaviour (made the log)": behaviour,
        "unconstrained optimum": cmdp.unconstrained().solve().policy,
        "constrained optimum": cmdp.solve().policy,
        "learned from the log": result.policy,
    }
    return Demo(grid, log, result, {name: cmdp.evaluate(p) for name, p in policies.items()}, seconds)


def table(demo: Demo) -> str:
    """Lay out the comparison: reward and each utility, which must not be negative."""
    names = ("fire", "mud")
    head = f"{'policy':<26} {'reward':>8}" + "".join(f" {name + ' slack':>11}" for name in names) + "   safe?"
    lines = [head, "-" * len(head)]
    for name, row in demo.rows.items():
        # The LP leaves an active constraint at zero within its own accuracy.
        safe = bool((row.utilities >= -1e-7).all())
        slack = "".join(f" {value + 0.0:>11.3f}" for value in np.round(row.utilities, 3))
        lines.append(f"{name:<26} {row.reward:>8.3f}{slack}   {'yes' if safe else 'NO'}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Examples
    --------
    >>> main(["demo", "--transitions", "2000", "--steps", "10000", "--no-picture"])  # doctest: +ELLIPSIS
    A robot crosses a field...
    0
    """
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # arrows on a terminal that has none
    try:
        options.run(options)
    except BrokenPipeError:  # the reader has gone, as with `dpdl demo | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dpdl", description="Learn a safe policy from logged data.")
    parser.add_argument("--version", action="version", version=f"dpdl {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="learn to cross a burning field from a log of mediocre crossings")
    demo.add_argument("--transitions", type=_count, default=200_000, help="length of the log (default %(default)s)")
    demo.add_argument("--steps", type=_count, default=40_000_000, help="steps of the learner (default %(default)s)")
    demo.add_argument("--seed", type=_seed, default=0, help="seed of the log and of the learner (default %(default)s)")
    demo.add_argument("--picture", type=_picture, default="dpdl-demo.png", help="file to draw to (default %(default)s)")
    demo.add_argument("--no-picture", dest="picture", action="store_const", const=None, help="draw nothing")
    demo.set_defaults(run=_demo)
    return parser


def _count(text: str) -> int:
    value = float(text)
    if not 1 <= value <= 1e15 or value != int(value):
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text}")
    return int(value)


def _picture(text: str) -> str:
    path = Path(text)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"must end in .png, .pdf or .svg, got {text}")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.absolute().parent}")
    return text


def _seed(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return number


def _demo(options: Any) -> None:
    grid = hazard_gridworld()
    print("A robot crosses a field from S to G, over and over. ^ is fire, ~ is mud, # is wall; it slips now and then.")
    print(f"It may touch each only so often.\n\n{grid}\n")
    print(
        f"The log: {options.transitions:,} steps of a mediocre driver. Learning from it in {options.steps:,} steps ..."
    )
    sys.stdout.flush()
    demo = run_demo(options.transitions, options.steps, options.seed)
    result = demo.result
    rate = result.n_steps / demo.seconds
    print(f"{result.n_steps:,} steps in {demo.seconds:.1f} s ({rate:.3g} a second): {result.message}\n")
    print(table(demo))
    best, got = demo.rows["constrained optimum"].reward, demo.rows["learned from the log"].reward
    print(f"\nLearned reward: {100 * got / best:.1f}% of the best that any safe policy earns.")
    failed = [premise.name for premise in result.premises if not premise.holds]
    print(f"Guarantee: {result.guarantee or 'none; premises of the theorem that did not hold: ' + ', '.join(failed)}.")
    print(f"\n{grid.picture(result.policy)}\n")
    if options.picture:
        _draw(demo, options.picture)


def _draw(demo: Demo, path: str) -> None:
    try:
        from dpdl.plots import draw_demo
    except ImportError:
        print("No picture: matplotlib is not installed; pip install 'dpdl[plot]'", file=sys.stderr)
        return
    draw_demo(demo, path)
    print(f"Picture: {path}")
