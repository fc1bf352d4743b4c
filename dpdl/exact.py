"""Exact answers for models that are known: the references against which learning is judged.

With occupancy nu (discounted, summing to 1/(1-gamma)) and utilities u_i this module computes

* the occupancy, reward <nu, r> and utilities <nu, u_i> of a policy (`dpdl.models.evaluation` says how);
* the best safe policy (the LP of equation (4)), for J^u_i >= kappa and inside D(psi) if asked: (1-gamma) nu <= psi mu
  and sum (1-gamma) nu/mu <= N psi, with N the sparsity min(S + I, S A);
* the same without D(psi) for large models, by column generation (`dpdl.models.planner`);
* the Slater constant, (1-gamma) max_nu min_i <nu, u_i>, and the concentrability C*, the least psi for which D(psi)
  holds an optimal occupancy (Assumptions 2.3 and 2.4);
* the Lagrangian game's gradients, penalised objective, value and gap (`dpdl.models.saddle` states them);
* the plug-in model of a data set, the baseline that needs no theory.
"""

from dpdl.models.answers import concentrability, evaluate, slater, solve
from dpdl.models.plug_in import plug_in
from dpdl.models.saddle import gap, lagrangian_gradient, penalised_objective, saddle_value
from dpdl.models.solution import Evaluation, Solution

__all__ = [
    "Evaluation",
    "Solution",
    "concentrability",
    "evaluate",
    "gap",
    "lagrangian_gradient",
    "penalised_objective",
    "plug_in",
    "saddle_value",
    "slater",
    "solve",
]
