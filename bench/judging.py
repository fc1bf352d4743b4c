"""What judging a policy on the plug-in model of its log costs: ``python bench/judging.py [--quick]``.

Random sparse logs (five successors a pair, mixing fast) and rings (local moves, mixing slowly), ten actions, three
constraints, ten records a pair. The judgement includes making the plug-in model; its share of a run of 60 seconds is to
be below 5% at 10^5 pairs, and at 10^6 pairs it is to take seconds.
"""

import argparse
import resource
import time

import numpy as np

from dpdl import Dataset, exact
from dpdl.models.estimate import judge

A, I = 10, 3


def make_log(kind, n_pairs, seed):
    rng, S, n = np.random.default_rng(seed), n_pairs // A, 10 * n_pairs
    s, a, k = (rng.integers(0, bound, n) for bound in (S, A, 5))
    pair = s * A + a
    after = (pair * 2654435761 + k * 320_743_000_7) % S if kind == "fast" else (s + k - 2 + a - 4) % S
    r, u = (pair * 7919 % 1000) / 1000, rng.uniform(-1, 1, (n, I)).astype(np.float64)
    return Dataset(s, a, after, r, u, n_states=S, n_actions=A)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10^5 pairs only")
    sizes = (10**5,) if parser.parse_args().quick else (10**5, 10**6)
    print("kind       pairs   distinct  plug-in, s  judged, s  of 60 s  peak, MiB")
    for n_pairs in sizes:
        for kind in ("fast", "ring"):
            log, gamma = make_log(kind, n_pairs, seed=0), 0.95
            S = log.n_states
            began = time.perf_counter()
            model = exact.plug_in(log, gamma, np.full(S, 1 / S))
            made = time.perf_counter()
            policy = np.random.default_rng(1).dirichlet(np.full(A, 0.3), S)
            judge(policy, log, model)
            ended = time.perf_counter()
            share, peak = (ended - began) / 60, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            cells = f"{model.P.nnz:>10,} {made - began:>11.2f} {ended - made:>10.2f} {share:>8.1%} {peak:>10.0f}"
            print(f"{kind:<6} {n_pairs:>9,} {cells}", flush=True)


if __name__ == "__main__":
    main()
