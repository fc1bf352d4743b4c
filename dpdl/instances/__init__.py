"""Problems with known answers: random sparse CMDPs, and the hard instances of the paper.

`garnet` draws a CMDP with few successors per pair whose utilities conflict with its reward, shifted so that a known
policy meets Slater's condition. `lower_bound` and `no_slater` build the families behind the paper's lower bounds, with
their data distributions and closed forms.
"""

from dpdl.instances.garnet import garnet
from dpdl.instances.hard import BlockInstance, HardInstance, NoSlaterInstance, blocks, lower_bound, no_slater, visits

__all__ = [
    "BlockInstance",
    "HardInstance",
    "NoSlaterInstance",
    "blocks",
    "garnet",
    "lower_bound",
    "no_slater",
    "visits",
]
