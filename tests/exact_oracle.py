"""CMDPs of a few states solved in rational arithmetic, without any of the library's mathematics.

The probability of staying in a state is what the others leave to one, as in `dpdl.CMDP.evaluate`; the model's numbers
are taken for what they are, and everything from there on is exact.
"""

import itertools
from fractions import Fraction

import numpy as np

from dpdl.models.cmdp import CMDP


def occupancy(cmdp, policy):
    """Return the normalised occupancy of a policy, as rows of fractions."""
    S, A = cmdp.r.shape
    rows = [[Fraction(float(p)) for p in row] for row in policy]
    rows = [[p / sum(row) for p in row] for row in rows]
    P, gamma = cmdp.P.toarray().reshape(S, A, S).tolist(), Fraction(cmdp.gamma)
    # p = (1-gamma) rho0 + gamma P_pi' p, as an augmented matrix.
    start = [Fraction(x) for x in cmdp.rho0.tolist()]
    system = [[Fraction(0)] * S + [(1 - gamma) * x / sum(start)] for x in start]
    for s in range(S):
        system[s][s] += 1 - gamma
        for a, t in itertools.product(range(A), range(S)):
            if t != s and rows[s][a]:
                flow = gamma * rows[s][a] * Fraction(P[s][a][t])
                system[s][s] += flow
                system[t][s] -= flow
    p = _solved(system)
    return [[p[s] * x for x in rows[s]] for s in range(S)]


def worth(cmdp, policy):
    """Return the normalised reward and utilities of a policy, exactly."""
    q = [x for row in occupancy(cmdp, policy) for x in row]
    return [sum(x * Fraction(y) for x, y in zip(q, table.ravel().tolist(), strict=True)) for table in (cmdp.r, *cmdp.u)]


def deterministic(cmdp):
    """Return the normalised occupancies of all deterministic policies, of which all others are mixtures."""
    S, A = cmdp.r.shape
    choices = itertools.product(range(A), repeat=S)
    return [occupancy(cmdp, np.eye(A)[list(actions)]) for actions in choices]


def optimum(cmdp, threshold=0):
    """Return the largest normalised reward and the largest margin for one utility; the first is None if unsafe."""
    r, u = cmdp.r.ravel().tolist(), cmdp.u.ravel().tolist()
    points = []
    for table in deterministic(cmdp):
        q = [x for row in table for x in row]
        points.append([sum(x * Fraction(y) for x, y in zip(q, gain, strict=True)) for gain in (r, u)])
    points = [(reward, utility - threshold) for reward, utility in points]
    safe, rest = ([point for point in points if (point[1] >= 0) is side] for side in (True, False))
    margin = max(utility for _, utility in points)
    if not safe:
        return None, margin
    best = max(reward for reward, _ in safe)
    for (r1, u1), (r2, u2) in itertools.product(safe, rest):  # on each segment the best point has a closed form
        best = max(best, (r1 * -u2 + r2 * u1) / (u1 - u2))
    return best, margin


GAMMAS = (0.5, 0.9, 0.99, 0.999, 1 - 1e-5, 1 - 1e-8, 1 - 1e-10, 1 - 1e-12)
KINDS = ("dense", "deterministic", "sticky", "rare")


def hostile(rng, n_utilities=1, kind=None, gamma=None):
    """Return a random model of two or three states, of a kind and with a discount that are hard on solvers.

    "sticky" states are left, and "rare" successors reached, with probabilities between 1e-6 and 1e-12.
    """
    S, A = rng.integers(2, 4, size=2)
    kind, gamma = kind or rng.choice(KINDS), gamma or float(rng.choice(GAMMAS))
    P = rng.dirichlet(np.ones(S), size=(S, A))
    if kind != "dense":
        P = np.eye(S)[np.arange(S)[:, None] if kind == "sticky" else rng.integers(S, size=(S, A))]
        P = np.broadcast_to(P, (S, A, S)).copy()
    if kind in ("sticky", "rare"):
        rest = 10.0 ** -rng.uniform(6, 12, P.shape) * (rng.random(P.shape) < 0.5) * (P == 0)
        P += rest - P * rest.sum(axis=2, keepdims=True)
    u = np.clip(rng.uniform(-1, 1, (n_utilities, S, A)) + rng.choice([-0.2, 0, 0.3]), -1, 1)
    rho0 = rng.dirichlet(np.ones(S)) if rng.random() < 0.5 else np.eye(S)[rng.integers(S)]
    return CMDP(P, rng.uniform(-1, 1, (S, A)), u, gamma, rho0)


def _solved(system):
    """Solve a square system, given as an augmented matrix of fractions, by elimination."""
    n = len(system)
    for k in range(n):
        pivot = next(i for i in range(k, n) if system[i][k])
        system[k], system[pivot] = system[pivot], system[k]
        for i in range(n):
            if i != k and system[i][k]:
                factor = system[i][k] / system[k][k]
                system[i] = [x - factor * y for x, y in zip(system[i], system[k], strict=True)]
    return [system[k][n] / system[k][k] for k in range(n)]
