"""Bounds of a policy's values that hold for any number of transitions.

For a fixed policy with true values V, y = r + gamma V(s') has the mean V(s,a) at each pair, and the plug-in values
V-hat differ from V by at most e with

    e <= (I - gamma P-hat)^-1 beta,   beta(s,a) >= |mean of y over the n rows of the pair - its expectation|

pair by pair. The empirical Bernstein bound (Maurer and Pontil 2009) gives, with probability 1 - delta for all pairs,

    beta = sd sqrt(2 L/n) + 7 R L/(3(n-1)),   L = log(4 K (1 + I)/delta),

for numbers in a range of R; the sample's sd of y is at most that of r + gamma V-hat(s') plus gamma times the root mean
square of e. Starting from e = R, each round makes e smaller, and every e on the way is a valid bound. With n = 1, beta
is R. On trajectories the number of visits is random, and 2 n^2 inside the logarithm makes the bound hold for every n at
once.

Rows of a pair must be independent given the pair, and rewards and costs must lie in the range that the log shows. Where
the policy uses pairs that the log does not show, these are worst-case, and the upper bounds speak of that model.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from dpdl._validation import Array
from dpdl.deploying.posterior import Posterior
from dpdl.models.solving import Kernel

_ROUNDS = 50


def bounds(posterior: Posterior, policy: Array, delta: float) -> tuple[Array, Array, Array]:
    """Return plug-in values of reward and gains, and bounds from both sides, all right with probability 1 - delta."""
    log, gamma, n = posterior.log, posterior.gamma, posterior.visits_of
    chosen = policy.ravel()[log.pairs]
    choose = sp.csr_array((chosen, (posterior.state, np.arange(len(chosen)))), shape=(log.n_states, len(chosen)))
    kernel = Kernel(sp.csr_array(choose @ posterior.moves), gamma)
    unknown = np.maximum(1 - choose.sum(axis=1), 0.0)
    unknown[unknown <= 1e-9] = 0.0
    right = (choose @ posterior.gains.T + np.outer(unknown, posterior.worst / (1 - gamma))).T
    V = np.array([kernel.solve(one) for one in right])
    events = np.log(4.0 * (len(n) + 1) * len(V)) - np.log(delta)
    # Counts do not tell whether the rows were independent.
    L = events + (0.0 if log.kind == "independent" and log.repeats is None else np.log(2 * n**2))
    lower, upper = np.empty(len(V)), np.empty(len(V))
    for k, values in enumerate(V):
        R = (max(float(posterior.best[k]), 0.0) - min(float(posterior.worst[k]), 0.0)) / (1 - gamma)
        y = posterior.mean[k] + gamma * np.append(values, 0.0)[posterior.after]
        mean = np.bincount(posterior.pair, posterior.count * y) / n
        square = np.bincount(posterior.pair, posterior.count * (y - mean[posterior.pair]) ** 2 + posterior.within[k])
        sd = np.sqrt(square / np.maximum(n - 1, 1))
        e = np.full(log.n_states, R)
        for _ in range(_ROUNDS):
            spread = sd + gamma * np.sqrt(posterior.moves @ e**2 * n / np.maximum(n - 1, 1))
            beta = np.minimum(spread * np.sqrt(2 * L / n) + 7 * R * L / (3 * np.maximum(n - 1, 1)), R)
            beta[n < 2] = R
            previous, e = e, np.minimum(e, kernel.solve(choose @ beta))
            if float((previous - e).max()) <= 1e-6 * R:
                break
        start = _start(posterior, values, e, R, float(events))
        lower[k], upper[k] = posterior.rho0 @ (values - e) - start, posterior.rho0 @ (values + e) + start
    return V @ posterior.rho0, np.maximum(lower, posterior.worst / (1 - gamma)), upper


def _start(posterior: Posterior, values: Array, e: Array, R: float, L: float) -> float:
    """What the estimate of the initial distribution may add to the value, if it is one."""
    n, rho0 = posterior.n_starts, posterior.rho0
    if n is None:
        return 0.0
    if n < 2:
        return R
    spread = np.sqrt(rho0 @ (values - rho0 @ values) ** 2) + np.sqrt(rho0 @ e**2)
    return min(R, float(spread) * np.sqrt(n / (n - 1) * 2 * L / n) + 7 * R * L / (3 * (n - 1)))
