"""The method converges as Theorem 4.4 says: Gap(x_mean), computed exactly, falls like T^(-1/2)."""

import numpy as np

from dpdl import exact, instances, learn


def test_gap_falls_like_the_root_of_the_number_of_steps():
    cmdp = instances.garnet(4, 2, 1, branching=2, gamma=0.5, slater=0.3, rng=1)
    log = cmdp.sample(4000, np.full((4, 2), 1 / 8), rng=1)
    # Draws with replacement come from the empirical model, so that is the one in which the gap vanishes.
    model = exact.plug_in(log, cmdp.gamma, cmdp.rho0)
    mu = np.zeros(8)
    mu[log.pairs] = log.pair_counts / len(log)
    mu = mu.reshape(4, 2)
    slater = model.slater()
    psi = 1.2 * model.concentrability(mu)
    steps = [10_000, 31_623, 100_000, 316_228, 1_000_000]
    gaps = []
    for n_steps in steps:
        runs = [learn(log, gamma=0.5, psi=psi, slater=slater, T=n_steps, rho0=cmdp.rho0, rng=k) for k in range(8)]
        gaps.append(np.mean([exact.gap(model, run.x_mean, mu, run.reference.mu_hat, psi, 0.0, slater) for run in runs]))
    slope = np.polyfit(np.log(steps), np.log(gaps), 1)[0]
    print(f"\ngap {dict(zip(steps, np.round(gaps, 3), strict=True))}, slope {slope:.3f}")
    assert -0.65 < slope < -0.35
