"""Exact references for models that are known, beside the answers of `dpdl.CMDP`.

`CMDP` evaluates policies, finds the best safe one (the LP of equation (4)) and has the Slater constant and the
concentrability C*. Here are the value, gap and gradients of the Lagrangian game that DPDL plays
(`dpdl.models.saddle` states them), and the plug-in model of a log, the baseline that needs no theory.
"""

from dpdl.models.estimate import plug_in
from dpdl.models.saddle import gap, lagrangian_gradient, penalised_objective, saddle_value
from dpdl.models.solution import Evaluation, Solution

__all__ = [
    "Evaluation",
    "Solution",
    "gap",
    "lagrangian_gradient",
    "penalised_objective",
    "plug_in",
    "saddle_value",
]
