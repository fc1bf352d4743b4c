"""Problems with known answers: random sparse CMDPs, a grid, and the hard instances of the paper.

`garnet` draws a CMDP with few successors per pair whose utilities conflict with its reward, shifted so that a known
policy meets Slater's condition. `hazard_gridworld` is a delivery task with three routes from start to goal: the short
one crosses fire, the middle one mud, the long one is clean. Fire and mud each have a budget, so that the best policy
divides its trips among the routes. `lower_bound` and `no_slater` build the families behind the paper's lower bounds,
with their data distributions and closed forms.
"""

from dpdl.instances.garnet import garnet
from dpdl.instances.gridworld import GridWorld, hazard_gridworld
from dpdl.instances.hard import BlockInstance, HardInstance, NoSlaterInstance, lower_bound, no_slater
from dpdl.instances.hard_bounds import blocks, hardest_varpi, suboptimality_bound, violation_bound

__all__ = [
    "BlockInstance",
    "GridWorld",
    "HardInstance",
    "NoSlaterInstance",
    "blocks",
    "garnet",
    "hardest_varpi",
    "hazard_gridworld",
    "lower_bound",
    "no_slater",
    "suboptimality_bound",
    "violation_bound",
]
