"""``dpdl demo``: shows on a gridworld, from a log alone, what the library is for."""

from __future__ import annotations

import sys
from typing import Any

from dpdl.commands.output import OK
from dpdl.demo import Demo, run_demo, table
from dpdl.instances import hazard_gridworld


def demo(options: Any) -> int:
    """Learn to cross a burning field, print the comparison, draw the picture."""
    grid = hazard_gridworld()
    print("A robot crosses a field from S to G, over and over. ^ is fire, ~ is mud, # is wall; it slips now and then.")
    print(f"It may touch each only so often.\n\n{grid}\n")
    print(
        f"The log: {options.transitions:,} steps of a mediocre driver. Learning from it in {options.steps:,} steps ..."
    )
    sys.stdout.flush()
    found = run_demo(options.transitions, options.steps, options.seed)
    result = found.result
    rate = result.n_steps / found.seconds
    print(f"{result.n_steps:,} steps in {found.seconds:.1f} s ({rate:.3g} a second): {result.message}\n")
    print(f"What the log says about the learned policy, estimated and not certified:\n{result.evaluation}\n")
    print(f"What is true, on the model that made the log:\n{table(found)}")
    best, got = found.rows["constrained optimum"].reward, found.rows["learned from the log"].reward
    print(f"\nLearned reward: {100 * got / best:.1f}% of the best that any safe policy earns.")
    failed = [premise.name for premise in result.premises if not premise.holds]
    print(f"Guarantee: {result.guarantee or 'none; premises of the theorem that did not hold: ' + ', '.join(failed)}.")
    print(f"\n{grid.picture(result.policy)}\n")
    if options.picture:
        _draw(found, options.picture)
    return OK


def _draw(found: Demo, path: str) -> None:
    try:
        from dpdl.plots import draw_demo
    except ImportError:
        print("No picture: matplotlib is not installed; pip install 'dpdl[plot]'", file=sys.stderr)
        return
    draw_demo(found, path)
    print(f"Picture: {path}")
