"""Theorem 5.2: where no policy is safe with room to spare, every learner violates, DPDL less and less.

At the proof's varpi the mean violation of two learners, over random signs, must lie above the proof's bound at every N.
The module `hard` here says why that is only half of a test. The other half is at varpi = 1/2. There V = 0 and lam = 0
are optimal duals, as there is no reward. So Lemma E.3 holds without Slater's condition, and with
kappa = 0 it says that the violation is at most slater/4 Gap(x_mean), up to the error of mu_hat; Theorem 4.4 bounds
the gap by eps/2. So DPDL's violation must fall at least like N^(-0.4), where the upper bound has N^(-1/2).

DPDL has to be told some slater, though there is none. Without a reward the policy does not depend on it: every scale
and radius is proportional to a power of it, and so are V and lam.
"""

from __future__ import annotations

import numpy as np

import hard_instances
from hard_instances import NoSlaterInstance

from .bounds import hardest_varpi, violation_bound
from .common import Outcome, each
from .hard import Bounded, Learners, untaught

TITLE = "without Slater's condition no learner avoids violations, which still fall"
N_BLOCKS, C, GAMMA = 6, 2.0, 0.5
TOLD = 1.0


def instance(varpi: float, seed: int) -> NoSlaterInstance:
    return hard_instances.no_slater(N_BLOCKS, C, GAMMA, varpi=varpi, rng=np.random.default_rng([seed, 1]))


def run(quick: bool) -> Outcome:
    example, learners = instance(0.5, seed=0), Learners(TOLD)
    coin = example.violation(untaught(example))
    sizes = learners.sizes(example, 8 * coin / TOLD, (1, 3, 9) if quick else (1, 3, 9, 27))
    n_seeds = 3 if quick else 10

    def violations(task: tuple[int, int]) -> tuple[float, float, float]:
        n, seed = task
        here = instance(float(hardest_varpi(n, N_BLOCKS, C, GAMMA, "no_slater")), seed)
        log = here.cmdp.sample(n, here.mu, rng=np.random.default_rng([seed, n]))
        hidden = here.violation(learners.dpdl(here, log, seed)), here.violation(learners.plug_in(here, log))
        here = instance(0.5, seed)
        log = here.cmdp.sample(n, here.mu, rng=np.random.default_rng([seed, n, 1]))
        return *hidden, here.violation(learners.dpdl(here, log, seed))

    found = np.array([each(violations, [(n, seed) for seed in range(n_seeds)]) for n in sizes])
    dpdl, plug_in, learned = np.moveaxis(found, 2, 0)
    return Bounded(
        sizes,
        violation_bound(np.array(sizes), N_BLOCKS, C, GAMMA),
        TOLD / 8 * learners.upper(example, sizes),
        (dpdl, plug_in),
        learned,
        "varpi = 1/2",
        {},
    ).outcome("slater", TITLE, "violation")
