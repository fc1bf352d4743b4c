"""Algorithms 1 to 3 and the exact references, written from the paper's text alone.

A second implementation to test the library against. It shares nothing with it: dense NumPy, one step after
another, and the x-update as a convex program in its two multipliers instead of the four cases of appendix A.
The paper's slips that it corrects: the sign of the temporal difference in g_x, the negative part in VERIFY, and
log I, log psi read as max(1, log .) in alpha_lam and alpha_x. Where episodes end, V(s') = 0 and the kernel is
sub-stochastic; kappa must still be what is taken from J^u as a whole, so the row that ends an episode carries what the
steps after it would have carried: (1 - gamma)(1 + gamma + gamma^2 + ...) kappa = kappa.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import brentq, linprog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# ------------------------------------------------------------------ problem, rows, constants (sections 2 to 4)
class Model(NamedTuple):
    """A known CMDP with the distribution of its data. Rows of P that sum to less than 1 end the episode."""

    P: np.ndarray  # (S, A, S)
    r: np.ndarray  # (S, A)
    u: np.ndarray  # (I, S, A)
    gamma: float
    rho0: np.ndarray  # (S,)
    mu: np.ndarray  # (S, A)

    def sizes(self) -> tuple[int, int, int]:
        return (*self.r.shape, len(self.u))


class Rows(NamedTuple):
    """Samples (s_0, s, a, s', r, u) of rho_0 x D, one per entry; s' is meaningless where the episode ended."""

    s0: np.ndarray
    s: np.ndarray
    a: np.ndarray
    s_next: np.ndarray
    ended: np.ndarray
    r: np.ndarray
    u: np.ndarray  # (n, I)

    def each(self) -> Iterator[tuple]:
        return zip(*self, strict=True)


class Setup(NamedTuple):
    """What the theorems are stated in: sizes, gamma, psi, the Slater constant (varphi), epsilon and delta."""

    S: int
    A: int
    I: int
    gamma: float
    psi: float
    slater: float
    eps: float
    delta: float

    @property
    def sparsity(self) -> int:
        """Calligraphic N of Proposition 2.1."""
        return min(self.S + self.I, self.S * self.A)

    @property
    def unit(self) -> float:
        """N psi / (varphi^2 (1 - gamma)^4): every budget is this over an accuracy squared, times a logarithm."""
        return self.sparsity * self.psi / (self.slater**2 * (1 - self.gamma) ** 4)


class Constants(NamedTuple):
    """The inputs of Algorithm 1 and the radii of equation (8)."""

    eta: float
    alpha_V: float
    alpha_lam: float
    alpha_x: float
    kappa: float
    radius_V: float
    radius_lam: float


def constants(p: Setup, T: int) -> Constants:
    """Theorem 4.1."""
    return Constants(
        eta=1 / np.sqrt(T),
        alpha_V=p.slater * np.sqrt(p.psi / p.S),
        alpha_lam=np.sqrt(p.psi / max(1.0, np.log(p.I))) / (1 - p.gamma),
        alpha_x=np.sqrt(p.sparsity * p.psi / max(1.0, np.log(p.psi))) / (p.slater * (1 - p.gamma)),
        kappa=5 * p.slater * p.eps,
        radius_V=8 / (1 - p.gamma) * (1 + 2 / p.slater),
        radius_lam=8 / p.slater,
    )


def floor(p: Setup) -> float:
    """Proposition 4.3: the floor (varsigma) of mu_hat."""
    return p.slater * (1 - p.gamma) ** 2 * (p.eps / 100) / (2 * p.sparsity * p.psi)


def reference_samples(p: Setup, t_mix: float | None = None) -> float:
    """N_e of Proposition 4.3; on a trajectory, of the proof in appendix H.6 (ell = 100 t_mix log(12 S A/delta))."""
    pairs = p.S * p.A
    ell = 4 * np.log(6 * pairs / p.delta) if t_mix is None else 100 * t_mix * np.log(12 * pairs / p.delta)
    return 128 * p.unit * ell / (p.eps / 100) ** 2


def steps(p: Setup, t_mix: float | None = None, c: float = 1.0) -> float:
    """T of Theorem 4.1; on a trajectory of Theorem 4.6, whose iota contains T."""
    if t_mix is None:
        return c * p.unit * np.log(p.psi * p.S * p.A * p.I / p.delta) / p.eps**2
    T = 1e300  # iota grows slowly: from above, the right-hand side falls to the least T from which on it is met
    for _ in range(100):
        iota = np.log(T * p.S * p.A * p.I / p.delta)
        T = max(1.0, c * t_mix**2 * p.unit * iota**3 / p.eps**2)
    return T


def verification_samples(p: Setup) -> float:
    """N_v of Proposition G.1."""
    ell = 4 * np.log(40 * p.S * p.I / p.delta)
    return 64 * p.S * p.psi * ell / (p.slater**2 * (1 - p.gamma) ** 4 * (p.eps / 10) ** 2)


def step_size_bound(p: Setup) -> float:
    """Right-hand side of the condition on eta in appendix D, with the constants of appendix C."""
    c = constants(p, 1)
    largest_g_lam = 2 * p.psi / (1 - p.gamma)
    largest_g_x = 64 / (p.slater * (1 - p.gamma) * floor(p))
    return 0.5 * min(c.alpha_lam / largest_g_lam, c.alpha_x / largest_g_x)


# ----------------------------------------------------------------------------------------- Algorithm 1
class Averages(NamedTuple):
    """Output of Algorithm 1: averages over Z^1 .. Z^T, and the last point Z^T."""

    x: np.ndarray  # (S, A)
    V: np.ndarray
    lam: np.ndarray
    policy: np.ndarray  # (S, A)
    last: tuple[np.ndarray, np.ndarray, np.ndarray]


def estimate_mu(rows: Rows, S: int, A: int, floor: float) -> np.ndarray:
    """Equation (10): frequencies of the pairs, with a floor."""
    counts = np.zeros((S, A))
    np.add.at(counts, (rows.s, rows.a), 1)
    return np.maximum(counts / len(rows.s), floor)


def gradients(
    V: np.ndarray, lam: np.ndarray, x_sa: float, mu_sa: float, gamma: float, kappa: float, sample: tuple
) -> tuple[np.ndarray, np.ndarray, float]:
    """Equation (9), with the sign of the Lagrangian in g_x; g_x is returned as its one entry, at (s, a)."""
    s0, s, _, s_next, ended, r, u = sample
    u_kappa = u - (kappa if ended else (1 - gamma) * kappa)
    w = x_sa / mu_sa
    g_V = np.zeros_like(V)
    g_V[s0] += 1
    g_V[s] -= w
    if not ended:
        g_V[s_next] += gamma * w
    value_next = 0.0 if ended else V[s_next]
    g_x = (r - V[s] + gamma * value_next + u_kappa @ lam) / mu_sa
    return g_V, w * u_kappa, g_x


def least_root(f: Callable[[float], float], upper: float) -> float:
    """Least t >= 0 with f(t) <= 0, for a decreasing f with f(upper) <= 0 up to rounding."""
    if f(0.0) <= 0:
        return 0.0
    if f(upper) >= 0:
        return upper
    return brentq(f, 0.0, upper, xtol=1e-300, rtol=4 * np.finfo(float).eps, maxiter=500)


def project(
    log_y: np.ndarray, caps: np.ndarray, c: np.ndarray, B1: float, B2: float
) -> tuple[np.ndarray, float, float]:
    """KL projection of y > 0 on {0 <= x <= caps, sum x <= B1, sum c x <= B2}: log x and the two multipliers.

    Minimising the Lagrangian coordinate by coordinate gives x = min(caps, y exp(-alpha - c beta)), whichever
    coordinates are capped. The dual is concave; its gradient is (sum x - B1, sum c x - B2). For each beta the best
    alpha is a root in one variable, and at that alpha the second component decreases in beta.
    """
    log_caps, log_c = np.log(caps), np.log(c)

    def log_x(alpha: float, beta: float) -> np.ndarray:
        return np.minimum(log_caps, log_y - alpha - c * beta)

    def best_alpha(beta: float) -> float:
        upper = max(0.0, np.logaddexp.reduce(log_y - c * beta) - np.log(B1))
        return least_root(lambda alpha: np.exp(log_x(alpha, beta)).sum() - B1, upper)

    def excess(beta: float) -> float:
        return (c * np.exp(log_x(best_alpha(beta), beta))).sum() - B2

    upper = max(0.0, (np.logaddexp.reduce(log_c + log_y) - np.log(B2)) / c.min())
    beta = least_root(excess, upper)
    alpha = best_alpha(beta)
    return log_x(alpha, beta), alpha, beta


def learn(p: Setup, k: Constants, rows: Rows, mu_hat: np.ndarray) -> Averages:
    """Algorithm 1 with T = len(rows) + 1: one update a row, and the mean over all T points.

    x is kept as its logarithm, because plain doubles would lose pairs that decay below 1e-308.
    """
    mass = 1 / (1 - p.gamma)
    c = 1 / mu_hat.ravel()
    caps = p.psi * mass * mu_hat.ravel()
    B1, B2 = 4 * mass, p.sparsity * p.psi * mass

    V = np.zeros(p.S)
    lam = np.full(p.I, 1 / (p.slater * p.I))
    log_x = np.log(p.sparsity / (p.S * p.A) * mu_hat.ravel() * mass)

    sums = [np.exp(log_x), V.copy(), lam.copy()]
    for sample in rows.each():
        pair = sample[1] * p.A + sample[2]
        g_V, g_lam, g_x = gradients(V, lam, np.exp(log_x[pair]), mu_hat.flat[pair], p.gamma, k.kappa, sample)

        V = np.clip(V - k.eta / k.alpha_V * g_V, -k.radius_V, k.radius_V)
        half = lam * np.exp(-k.eta / k.alpha_lam * g_lam)
        lam = half * min(1.0, k.radius_lam / half.sum())
        log_y = log_x.copy()
        log_y[pair] += k.eta / k.alpha_x * g_x
        log_x, _, _ = project(log_y, caps, c, B1, B2)

        for total, term in zip(sums, (np.exp(log_x), V, lam), strict=True):
            total += term

    T = len(rows.s) + 1
    x_mean = (sums[0] / T).reshape(p.S, p.A)
    last = (np.exp(log_x).reshape(p.S, p.A), V, lam)
    return Averages(x_mean, sums[1] / T, sums[2] / T, induced_policy(x_mean), last)


def induced_policy(x: np.ndarray) -> np.ndarray:
    """Last line of Algorithm 1."""
    return x / x.sum(axis=1, keepdims=True)


# ------------------------------------------------------------------------------ Algorithms 3 and 2 (appendix G)
class Verdict(NamedTuple):
    """What Algorithm 3 computes: the answer, J-hat, J-hat^{u kappa} and the flow residual."""

    passed: bool
    reward: float
    utilities: np.ndarray
    residual: np.ndarray


def verify(x: np.ndarray, mu_hat: np.ndarray, rows: Rows, rho0: np.ndarray, p: Setup, kappa: float) -> Verdict:
    """Algorithm 3, with the negative part of J-hat^{u kappa} that its proof needs."""
    n = len(rows.s)
    w = x[rows.s, rows.a] / mu_hat[rows.s, rows.a]
    J = (rows.r * w).sum() / n
    margin = np.where(rows.ended, kappa, (1 - p.gamma) * kappa)
    J_u = ((rows.u - margin[:, None]) * w[:, None]).sum(axis=0) / n
    residual = -rho0.astype(float)
    np.add.at(residual, rows.s, w / n)
    goes_on = ~rows.ended.astype(bool)
    np.add.at(residual, rows.s_next[goes_on], -p.gamma * w[goes_on] / n)
    flows = np.abs(residual).sum() <= 1.5 * p.slater * (1 - p.gamma) * p.eps
    safe = max(0.0, -J_u.min()) <= 3 * p.slater * p.eps
    return Verdict(bool(flows and safe), float(J), J_u, residual)


class Level(NamedTuple):
    """One K of Algorithm 2."""

    psi: float
    averages: Averages
    verdict: Verdict


def adaptive(
    p: Setup,
    draw: Callable[[int, int], Rows],
    rho0: np.ndarray,
    budget: Callable[[Setup], tuple[int, int, int]],
    *,
    most: int = 20,
    divisor: float = 15.0,
    margin: float = 500.0,
    kappa: float | None = None,
) -> list[Level]:
    """Algorithm 2 from psi_1 = p.psi, p.eps being its epsilon': all levels, the last of which is the output.

    ``draw(K, n)`` gives n fresh rows for level K (three calls a level: mu_hat, the descent, VERIFY), and
    ``budget`` the triple (N_e, T, N_v) of a level. A given kappa replaces 5 slater eps.
    """
    levels: list[Level] = []
    psi = p.psi
    for K in range(1, most + 1):
        q = p._replace(psi=psi, eps=p.eps / divisor, delta=6 * p.delta / (np.pi**2 * K**2))
        N_e, T, N_v = budget(q)
        k = constants(q, T) if kappa is None else constants(q, T)._replace(kappa=kappa)
        mu_hat = estimate_mu(draw(K, N_e), q.S, q.A, floor(q))
        averages = learn(q, k, draw(K, T - 1), mu_hat)
        verdict = verify(averages.x, mu_hat, draw(K, N_v), rho0, q, k.kappa)
        levels.append(Level(psi, averages, verdict))
        before = levels[-2].verdict if K > 1 else None
        if before and before.passed and verdict.passed and verdict.reward <= before.reward + margin * q.eps:
            break
        psi *= 2
    return levels


# ---------------------------------------------------------------------------------- exact references (sections 2, E)
def flow_matrix(m: Model) -> np.ndarray:
    """Transpose of the matrix A of appendix E: row s' is 1{s' = s} - gamma P(s'|s, a)."""
    S, A, _ = m.sizes()
    same = np.repeat(np.eye(S), A, axis=1)
    return same - m.gamma * m.P.reshape(S * A, S).T


def occupancy(m: Model, policy: np.ndarray) -> np.ndarray:
    """Equation (2): the discounted visits nu^pi (S, A)."""
    P_pi = np.einsum("sa,sat->st", policy, m.P)
    visits = np.linalg.solve(np.eye(len(m.rho0)) - m.gamma * P_pi.T, m.rho0)
    return policy * visits[:, None]


def shifted_utilities(m: Model, kappa: float) -> np.ndarray:
    """U_kappa (I, S A): the expected u^kappa of every pair, so that U_kappa nu = J^u - kappa."""
    margin = kappa * (1 - m.gamma * m.P.sum(axis=2))
    return (m.u - margin).reshape(len(m.u), -1)


def values(m: Model, nu: np.ndarray) -> tuple[float, np.ndarray]:
    """J and J^u of an occupancy."""
    return float((m.r * nu).sum()), (m.u * nu).sum(axis=(1, 2))


def _deviation(m: Model, sparsity: int, psi: float | None) -> tuple[np.ndarray | None, np.ndarray, float]:
    """Bounds of D(psi), equation (5): upper bounds on nu, and the row and right-hand side of the sum."""
    mu = m.mu.ravel()
    if psi is None:
        return None, np.zeros(mu.size), 0.0
    inverse = np.divide(1.0, mu, out=np.zeros_like(mu), where=mu > 0)
    return psi * mu / (1 - m.gamma), (1 - m.gamma) * inverse, sparsity * psi


def _solve(cost: np.ndarray, **rows: object) -> tuple[float, np.ndarray] | None:
    """Minimum and minimiser of a linear program; None where it is infeasible."""
    answer = linprog(cost, method="highs", **rows)
    if answer.status != 0:
        return None
    return float(answer.fun), answer.x


def sparsity(m: Model) -> int:
    S, A, n_constraints = m.sizes()
    return min(S + n_constraints, S * A)


def optimum(m: Model, *, kappa: float = 0.0, psi: float | None = None) -> tuple[float, np.ndarray] | None:
    """LP (4) with J^u >= kappa, over all occupancies or those in D(psi): its value and an optimal nu."""
    S, A, n_constraints = m.sizes()
    caps, row, most = _deviation(m, sparsity(m), psi)
    answer = _solve(
        -m.r.ravel(),
        A_ub=np.vstack([-m.u.reshape(n_constraints, S * A), row]),
        b_ub=np.append(np.full(n_constraints, -kappa), most),
        A_eq=flow_matrix(m),
        b_eq=m.rho0,
        bounds=[(0, None)] * (S * A) if caps is None else [(0, cap) for cap in caps],
    )
    return None if answer is None else (-answer[0], answer[1].reshape(S, A))


def approximation_error(m: Model, psi: float) -> float:
    """eps_approx(psi) of Remark 4.2."""
    best, inside = optimum(m), optimum(m, psi=psi)
    assert best is not None
    return np.inf if inside is None else best[0] - inside[0]


def slater_constant(m: Model, psi: float | None = None) -> float:
    """Largest varphi of Assumption 2.4, over all policies or those in Pi(psi): max over nu of the least J^u_i."""
    S, A, n_constraints = m.sizes()
    caps, row, most = _deviation(m, sparsity(m), psi)
    answer = _solve(
        np.append(np.zeros(S * A), -1.0),
        A_ub=np.vstack(
            [np.column_stack([-m.u.reshape(n_constraints, S * A), np.ones(n_constraints)]), np.append(row, 0.0)]
        ),
        b_ub=np.append(np.zeros(n_constraints), most),
        A_eq=np.column_stack([flow_matrix(m), np.zeros(S)]),
        b_eq=m.rho0,
        bounds=[(0, None if caps is None else caps[k]) for k in range(S * A)] + [(None, None)],
    )
    return -np.inf if answer is None else -answer[0] * (1 - m.gamma)


def concentrability(m: Model) -> float:
    """C* of Assumption 2.3: the least psi >= 1 for which an optimal nu lies in D(psi)."""
    S, A, n_constraints = m.sizes()
    best = optimum(m)
    assert best is not None
    mu = m.mu.ravel()
    seen = mu > 0
    inverse = np.divide(1.0, mu, out=np.zeros_like(mu), where=seen)
    each = np.column_stack([np.diag((1 - m.gamma) * inverse), -np.ones(S * A)])[seen]
    together = np.append((1 - m.gamma) * inverse, -sparsity(m))
    utilities = np.column_stack([-m.u.reshape(n_constraints, S * A), np.zeros(n_constraints)])
    reward = np.append(-m.r.ravel(), 0.0)
    answer = _solve(
        np.append(np.zeros(S * A), 1.0),
        A_ub=np.vstack([each, together, utilities, reward]),
        b_ub=np.concatenate([np.zeros(seen.sum() + 1 + n_constraints), [-best[0] + 1e-10 * max(1.0, abs(best[0]))]]),
        A_eq=np.column_stack([flow_matrix(m), np.zeros(S)]),
        b_eq=m.rho0,
        bounds=[(0, None if there else 0) for there in seen] + [(1, None)],
    )
    return np.inf if answer is None else answer[0]


def penalised(m: Model, x: np.ndarray, mu_hat: np.ndarray, k: Constants) -> float:
    """J_kappa(x) of appendix E: the Lagrangian L_w minimised over V and lambda."""
    nu = (m.mu / mu_hat * x).ravel()
    u_kappa = shifted_utilities(m, k.kappa)
    residual = flow_matrix(m) @ nu - m.rho0
    shortfall = max(0.0, -(u_kappa @ nu).min())
    return float(m.r.ravel() @ nu - k.radius_V * np.abs(residual).sum() - k.radius_lam * shortfall)


def saddle_value(m: Model, mu_hat: np.ndarray, p: Setup, k: Constants) -> float:
    """j(psi) of appendix E, max over X of J_kappa, as a linear program in (x, |residual|, shortfall)."""
    S, A, n_constraints = m.sizes()
    n = S * A
    w = (m.mu / mu_hat).ravel()
    flow = flow_matrix(m) * w
    u_kappa = shifted_utilities(m, k.kappa) * w
    mass = 1 / (1 - m.gamma)
    none = np.zeros((S, 1))
    answer = _solve(
        np.concatenate([-m.r.ravel() * w, np.full(S, k.radius_V), [k.radius_lam]]),
        A_ub=np.vstack(
            [
                np.column_stack([flow, -np.eye(S), none]),
                np.column_stack([-flow, -np.eye(S), none]),
                np.column_stack([-u_kappa, np.zeros((n_constraints, S)), -np.ones(n_constraints)]),
                np.concatenate([np.ones(n), np.zeros(S + 1)]),
                np.concatenate([1 / mu_hat.ravel(), np.zeros(S + 1)]),
            ]
        ),
        b_ub=np.concatenate([m.rho0, -m.rho0, np.zeros(n_constraints), [4 * mass, p.sparsity * p.psi * mass]]),
        bounds=[(0, p.psi * mass * each) for each in mu_hat.ravel()] + [(0, None)] * (S + 1),
    )
    assert answer is not None  # x = 0 is feasible
    return -answer[0]


def gap(m: Model, x: np.ndarray, mu_hat: np.ndarray, p: Setup, k: Constants) -> float:
    """Gap(x) of section 4.2."""
    return saddle_value(m, mu_hat, p, k) - penalised(m, x, mu_hat, k)


# ----------------------------------------------------------------------------------------- mixing (appendix H.1)
def total_variation(kernel: np.ndarray, t: int) -> float:
    """E(t) of equation (48): the largest distance from the stationary distribution after t steps."""
    n = len(kernel)
    stationary = np.linalg.lstsq(np.vstack([kernel.T - np.eye(n), np.ones(n)]), np.append(np.zeros(n), 1.0))[0]
    return 0.5 * np.abs(np.linalg.matrix_power(kernel, t) - stationary).sum(axis=1).max()


def mixing_time(kernel: np.ndarray) -> int:
    """t_mix of equation (48)."""
    t = 0
    while total_variation(kernel, t) > 0.25:
        t += 1
    return t
