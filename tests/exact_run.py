"""Algorithm 1 at 60 digits, for runs of some hundred steps on problems of a few pairs.

Every constant is worked out anew from the settings' doubles, with the formulas of the paper, and every x-update is the
certified one of `xupdate_oracle`. What differs from a run of the compiled cores is rounding alone.
"""

import numpy as np

import xupdate_oracle as oracle
from dpdl import theory
from xupdate_oracle import mp


class ExactRun:
    """Iterates and averages; `x`, `V` and `lam` are the starting point, written out over all pairs."""

    def __init__(self, log, mu_hat, settings, x, V, lam, log_cap=None):
        self.log, self.settings = log, settings
        S, A, I = log.n_states, log.n_actions, log.n_utilities
        self.n_actions = A
        gamma, psi = mp.mpf(settings.gamma), mp.mpf(settings.psi)
        mu_hat = [mp.mpf(value) for value in mu_hat.ravel().tolist()]
        self.c = np.array([1 / value for value in mu_hat], dtype=object)
        self.B1, self.B2 = 4 / (1 - gamma), theory.sparsity(S, A, I) * psi / (1 - gamma)
        self.log_cap = [mp.log(psi * value / (1 - gamma)) for value in mu_hat]
        if log_cap is not None:  # as doubles have it
            self.log_cap = [mp.mpf(value) for value in log_cap]
        if theory.sparsity(S, A, I) == 1:  # sum c x <= B2 says it, and no number of digits could tell the two apart
            self.log_cap = [mp.log(2 * self.B1)] * len(mu_hat)
        self.log_x = [mp.log(mp.mpf(value)) for value in x.ravel().tolist()]
        self.V = [mp.mpf(value) for value in V.tolist()]
        self.lam = [mp.mpf(value) for value in lam.tolist()]
        self.x_sum = [mp.zero] * len(mu_hat)
        self.n_steps = 0

    def step(self, record, initial):
        k, gamma = self.settings, mp.mpf(self.settings.gamma)
        s, a, s_next = int(self.log.s[record]), int(self.log.a[record]), int(self.log.s_next[record])
        j = s * self.n_actions + a
        u = [mp.mpf(value) - (1 - gamma) * mp.mpf(k.kappa) for value in self.log.u[record].tolist()]
        x = [mp.exp(value) for value in self.log_x]
        self.x_sum = [total + value for total, value in zip(self.x_sum, x, strict=True)]
        self.n_steps += 1
        w = x[j] * self.c[j]
        gain = mp.mpf(self.log.r[record].item()) - self.V[s] + gamma * self.V[s_next]
        g_x = (gain + mp.fsum(one * lam for one, lam in zip(u, self.lam, strict=True))) * self.c[j]
        g_V = [mp.zero] * len(self.V)
        g_V[initial] += 1
        g_V[s_next] += w * gamma
        g_V[s] -= w
        eta, radius = mp.mpf(k.eta), mp.mpf(k.radius_V)
        V = [value - eta / mp.mpf(k.alpha_V) * g for value, g in zip(self.V, g_V, strict=True)]
        self.V = [max(-radius, min(radius, value)) for value in V]
        lam = [value * mp.exp(-eta / mp.mpf(k.alpha_lam) * w * one) for value, one in zip(self.lam, u, strict=True)]
        scale = min(mp.one, mp.mpf(k.radius_lam) / mp.fsum(lam)) if lam else mp.one
        self.lam = [value * scale for value in lam]
        step = eta / mp.mpf(k.alpha_x) * g_x
        log_y = np.array(self.log_x, dtype=object)
        problem = oracle.Problem(log_y, self.c, self.log_cap[j], j, step, self.B1, self.B2)
        self.log_x = oracle.solve(problem).log_x

    @property
    def log_x_mean(self):
        """Logarithms of the averages of x, as doubles: relative errors show however small the average."""
        return np.array([float(mp.log(total / self.n_steps)) for total in self.x_sum])
