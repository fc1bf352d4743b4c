"""Problems with known answers: random sparse CMDPs, a grid, and the hard instances of the paper.

`garnet` draws a CMDP with few successors per pair whose utilities conflict with its reward, shifted so that a known
policy meets Slater's condition. `hazard_gridworld` is a delivery task with three routes from start to goal: the short
one crosses fire, the middle one mud, the long one is clean. Fire and mud each have a budget, so that the best policy
divides its trips among the routes.

The families behind the paper's lower bounds are here too: see `dpdl.instances.hard`. Each problem comes as an
`Instance`, the CMDP with its data distribution and the known answers: `garnet_instance`, `GridWorld.instance`,
`lower_bound`, `no_slater`.
"""

from dpdl.instances.garnet import garnet, garnet_instance
from dpdl.instances.gridworld import GridWorld, hazard_gridworld
from dpdl.instances.hard import BlockInstance, HardInstance, NoSlaterInstance, lower_bound, no_slater
from dpdl.instances.hard_bounds import Blocks, blocks, hardest_varpi, suboptimality_bound, violation_bound
from dpdl.instances.instance import Instance

__all__ = [
    "BlockInstance",
    "Blocks",
    "GridWorld",
    "HardInstance",
    "Instance",
    "NoSlaterInstance",
    "blocks",
    "garnet",
    "garnet_instance",
    "hardest_varpi",
    "hazard_gridworld",
    "lower_bound",
    "no_slater",
    "suboptimality_bound",
    "violation_bound",
]
