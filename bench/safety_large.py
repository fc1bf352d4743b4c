"""Seconds of an answer for large logs: ``python bench/safety_large.py [PAIRS ...] [--rows-a-pair N]``.

A random model with four actions and five successors a pair, gamma = 0.95; costs are Bernoulli. Rows are independent, by
a policy that prefers one action of each state. The limit is 0.8 times the mean cost of a row.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import dpdl

GAMMA, ACTIONS, SUCCESSORS = 0.95, 4, 5


def draw(n_pairs: int, n_rows: int, rng: np.random.Generator) -> tuple[dpdl.Dataset, float]:
    """A log, and a limit on the average cost: 0.8 times that of its rows."""
    S = n_pairs // ACTIONS
    successors = rng.integers(0, S, (n_pairs, SUCCESSORS))
    weights = rng.dirichlet(np.ones(SUCCESSORS), n_pairs).cumsum(axis=1)
    cost, reward = rng.uniform(0.05, 0.5, n_pairs), rng.random(n_pairs)
    s = rng.integers(0, S, n_rows)
    a = np.where(rng.random(n_rows) < 0.4, s % ACTIONS, rng.integers(0, ACTIONS, n_rows))
    pair = ACTIONS * s + a
    which = (weights[pair] < rng.random((n_rows, 1))).sum(axis=1).clip(max=SUCCESSORS - 1)
    costs = (rng.random(n_rows) < cost[pair]) * 1.0
    log = dpdl.Dataset(
        s, a, successors[pair, which], reward[pair], costs={"cost": costs}, n_states=S, n_actions=ACTIONS
    )
    return log, 0.8 * float(costs.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=int, nargs="*", default=[30_000, 100_000])
    parser.add_argument("--rows-a-pair", type=int, default=100)
    given = parser.parse_args()
    for n in given.pairs:
        log, limit = draw(n, n * given.rows_a_pair, np.random.default_rng(n))
        start = np.full(log.n_states, 1 / log.n_states)
        began = time.perf_counter()
        answer = dpdl.safe_policy(log, gamma=GAMMA, limits={"cost": limit}, limit_on="average", rho0=start)
        seconds, certificate = time.perf_counter() - began, answer.certificate
        figures = f"reward {certificate.reward.estimate:.4g}, the log's own {certificate.behaviour.estimate:.4g}"
        kept = certificate.constraints[0]
        figures += f"; cost over its limit: estimate {kept.estimate / limit:.4f}, bound {kept.bound / limit:.4f}"
        print(f"{n:,} pairs, {len(log):,} rows: {answer.status.name} in {seconds:.1f} s; {figures}", flush=True)


if __name__ == "__main__":
    main()
