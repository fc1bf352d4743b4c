"""Bounds of policies that were not chosen on the log: ``python bench/safety_certify.py [ROWS ...] [--logs L]``.

Ten states, four actions, each decision ends; costs are Bernoulli(p) with p uniform in [0.05, 0.5] or, as a second row,
0.02 everywhere with cost_max = 1 declared. Each log has so many rows of every pair and is asked about 20 policies.
Printed: the share of bounds at level 0.05 that lie below the truth, with the 95% interval if every log counted once,
and the median ratio of bound and truth.
"""

from __future__ import annotations

import argparse

import numpy as np

import dpdl
from dpdl.question import pose
from safety import interval

POLICIES, S, A = 20, 10, 4


def ratios(rows: int, number: int, seed: int, rare: bool) -> list[float]:
    """Bounds over the truth for the policies of one log."""
    rng = np.random.default_rng([seed, number, rows])
    p = np.full((S, A), 0.02) if rare else rng.uniform(0.05, 0.5, (S, A))
    s, a = np.divmod(np.repeat(np.arange(S * A), rows), A)
    c = (rng.random(len(s)) < p[s, a]) * 1.0
    ends = np.ones(len(s), dtype=bool)
    log = dpdl.Dataset(s, a, 0 * s, 0.0 * s, costs={"c": c}, terminated=ends, n_states=S, n_actions=A)
    log = pose(log, 0.9, {"c": 1.0}, "total")
    found, most = [], {"c": 1.0} if rare else None
    for _ in range(POLICIES):
        policy = rng.dirichlet(np.ones(A), S)
        certificate = dpdl.certify(policy, log, gamma=0.9, rho0=np.full(S, 1 / S), cost_max=most)
        found.append(certificate.constraints[0].bound / ((policy * p).sum() / S))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="*", default=[1, 2, 3, 10])
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for rare in (False, True):
        for rows in given.rows:
            bounds = np.array([ratios(rows, k, given.seed, rare) for k in range(given.logs)])
            below = (bounds < 1).mean()
            low, high = interval(round(below * given.logs), given.logs)
            name = "p = 0.02" if rare else "p in [0.05, 0.5]"
            line = f"{name}, {rows} rows a pair: {below:.1%} below the truth [{low:.1%}, {high:.1%}]"
            print(f"{line}, median {np.median(bounds):.2f} times the truth", flush=True)


if __name__ == "__main__":
    main()
