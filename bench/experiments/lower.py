"""Theorem 5.1: on the hard family no learner loses less than the bound; and DPDL's loss keeps falling.

The loss is L = [J* - J]_+ + gamma varpi_c/(1-gamma) violation, whose mean over random signs is at least the proof's
bound at the proof's varpi (the module `bounds` here on means and maxima). Two learners must lie above it for all N.
The module `hard` here says why that is only half of a test, and what the other half is: at the largest varpi that the
family admits, varpi_c = 0.2 and varpi_u = 1/2, the loss of DPDL must fall at least like N^(-0.4), where the upper bound
has N^(-1/2).

The family is that of Remark F.4, with Slater's constant above 2/3; without its action it is of the order of
10^-3, and Theorem 4.1's own step sizes stand still. That action is also what DPDL loses most by: it starts with half of
its weight there, at a reward of -1, and the average of its iterates forgets that like N^(-1/2). The table has the loss
through wrong signs next to it, which is smaller and falls later.
"""

from __future__ import annotations

import numpy as np

import hard_instances
from hard_instances import BlockInstance

from .bounds import hardest_varpi, loss, loss_floor, suboptimality_bound
from .common import Outcome, each
from .hard import Bounded, Learners, untaught

TITLE = "on the hard family no learner beats the lower bound, and DPDL's loss falls"
SIZES = (12, 3, 8)  # blocks, actions, utilities: four constrained blocks and eight others
C, GAMMA = 2.0, 0.5


def instance(varpi_c: float, varpi_u: float, seed: int) -> BlockInstance:
    rng = np.random.default_rng([seed, 1])
    return hard_instances.lower_bound(*SIZES, C, GAMMA, varpi_c=varpi_c, varpi_u=varpi_u, repaired=True, rng=rng)


def run(quick: bool) -> Outcome:
    n_pairs, n_constrained, n_unconstrained = hard_instances.blocks(*SIZES)
    n_signs = n_pairs * n_constrained
    plain = (0.8 * (1 - GAMMA) / (GAMMA * n_signs), 0.5)  # the largest varpi_c and varpi_u that the family admits
    example = instance(*plain, seed=0)
    learners = Learners(example.slater)
    sizes = learners.sizes(example, loss(example, untaught(example)), (1, 2, 4) if quick else (1, 2, 4, 8, 16))
    n_seeds = 2 if quick else 10

    def hardest(n: int) -> tuple[float, float]:
        return tuple(float(hardest_varpi(n, k, C, GAMMA)) for k in (n_signs, n_unconstrained))

    def losses(task: tuple[int, int]) -> tuple[float, float, float, float, float]:
        n, seed = task
        here = instance(*hardest(n), seed)
        log = here.cmdp.sample(n, here.mu, rng=np.random.default_rng([seed, n]))
        hidden = loss(here, learners.dpdl(here, log, seed)), loss(here, learners.plug_in(here, log))
        here = instance(*plain, seed)
        log = here.cmdp.sample(n, here.mu, rng=np.random.default_rng([seed, n, 1]))
        policy = learners.dpdl(here, log, seed)
        return *hidden, loss(here, policy), loss_floor(here, policy), here.violation(policy)

    found = np.array([each(losses, [(n, seed) for seed in range(n_seeds)]) for n in sizes])
    dpdl, plug_in, learned, signs, violation = np.moveaxis(found, 2, 0)
    return Bounded(
        sizes,
        suboptimality_bound(np.array(sizes), *SIZES, C, GAMMA),
        learners.upper(example, sizes),
        (dpdl, plug_in),
        learned,
        f"varpi_c = {plain[0]:.1g}, varpi_u = 1/2",
        {"its signs": signs.mean(axis=1), "violation": violation.mean(axis=1)},
    ).outcome("lower", TITLE, "loss")
