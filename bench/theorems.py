"""The paper's statements as experiments: ``python bench/theorems.py NAME|all [--quick] [--figures DIR]``.

Each experiment prints a table, writes a figure and ends in a line ``NAME: holds|fails (figure)``; where a statement
cannot be seen at budgets that a machine can reach, the line says ``not seen`` and the numbers why. The exit status is
the number of experiments that fail.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from experiments.common import Outcome

#: In the order of the paper; each is a module of `experiments` with a function ``run(quick) -> Outcome``.
NAMES = (
    "rate",
    "dependence",
    "sparsity",
    "deviation",
    "control",
    "safety",
    "reference",
    "variance",
    "monotone",
    "adaptive",
    "mixing",
    "lower",
    "slater",
)


def draw(outcome: Outcome, folder: Path) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("No figure: matplotlib is not installed; pip install 'dpdl[plot]'", file=sys.stderr)
        return
    folder.mkdir(parents=True, exist_ok=True)
    rows, columns = outcome.shape
    size = (6.4, 4.2) if rows * columns == 1 else (3.6 * columns, 3 * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained")
    outcome.draw(axes)
    figure.suptitle(outcome.title, fontsize=10)
    for place in figure.axes:
        place.spines[["top", "right"]].set_visible(False)
    path = folder / f"{outcome.name}.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"figure: {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the paper's statements as experiments.")
    parser.add_argument("name", choices=(*NAMES, "all"))
    parser.add_argument(
        "--quick", action="store_true", help="fewer seeds and steps: all of them in under three minutes"
    )
    parser.add_argument(
        "--figures", type=Path, default=Path("theorems"), help="folder of figures (default %(default)s)"
    )
    options = parser.parse_args()
    lines, failures = [], 0
    for name in NAMES if options.name == "all" else (options.name,):
        began = time.perf_counter()
        outcome = importlib.import_module(f"experiments.{name}").run(options.quick)
        print(f"== {name}: {outcome.title}\n{outcome.table}")
        draw(outcome, options.figures)
        failures += outcome.holds is False
        lines.append(outcome.verdict)
        print(f"{outcome.verdict}   [{time.perf_counter() - began:.0f} s]\n", flush=True)
    if options.name == "all":
        print("\n".join(lines))
    return failures


if __name__ == "__main__":
    sys.exit(main())
