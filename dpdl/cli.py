"""The ``dpdl`` command: ``dpdl demo`` shows on a gridworld, from a log alone, what the library is for."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpdl.demo import Demo, run_demo, table
from dpdl.instances import hazard_gridworld


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
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
    parser.add_argument("--version", action="version", version=f"dpdl {version('dpdl')}")
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
    print(f"What the log says about the learned policy, estimated and not certified:\n{result.evaluation}\n")
    print(f"What is true, on the model that made the log:\n{table(demo)}")
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
