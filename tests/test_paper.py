"""The library against a second implementation of the paper (`paper.py`), written from its text alone.

Algorithm 1 there solves the x-update as a convex program in two multipliers, without the cases of appendix A; the
exact references there are dense linear programs. Fed the same draws, both must agree to rounding: averages of some
hundred steps differ by a few 1e-15 relative to their largest entry. Long runs with large steps amplify rounding errors,
in both implementations alike; the runs of the slow tests are short enough to stay below 1e-12 as well.
"""

import functools

import numpy as np
import pytest

import paper
from dpdl import CMDP, Settings, exact, learn, learn_adaptive, mixing, theory, verify
from problems import Run, resolved
from twin import Twin

ROUNDING = 1e-12


def assert_close(actual, expected, relative=ROUNDING):
    """Agreement relative to the largest entry, which is what a policy and a value depend on."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=relative * abs(expected).max(initial=1e-300))


@functools.cache
def model(seed=0, *, S=5, A=3, I=2, gamma=0.8, ends=0.0):
    """A random CMDP; episodes end with probability `ends` at every pair. A pair that no optimum needs has no data."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(S, 0.5), (S, A)) * (1 - ends)
    mu = rng.dirichlet(np.ones(S * A)).reshape(S, A)
    u = rng.uniform(-0.6, 1, (I, S, A))
    m = paper.Model(P, rng.uniform(-1, 1, (S, A)), u, gamma, rng.dirichlet(np.ones(S)), mu)
    mu.flat[np.argmin(paper.optimum(m)[1])] = 0
    return m._replace(mu=mu / mu.sum())


def as_cmdp(m):
    ends = 1 - m.P.sum(axis=2)
    return CMDP(m.P, m.r, m.u, m.gamma, m.rho0, ends if ends.max() > 1e-9 else None)


def rows_of(log, initial):
    """The log as samples of the paper, with the given initial states."""
    return paper.Rows(initial, log.s, log.a, log.s_next, log.s_next < 0, log.r, log.u)


def some(rows, part):
    return paper.Rows(*(column[part] for column in rows))


def problem_of(p):
    return theory.Problem(p.S, p.A, p.I, p.gamma, p.slater, p.psi)


# ---- The second implementation itself ----


@pytest.mark.parametrize("seed", range(40))
def test_the_projection_is_optimal_by_weak_duality(seed):
    """Primal feasible, and its objective is the dual's: so no other point of X is better."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 12)
    c = 10.0 ** rng.uniform(0, rng.choice([0, 1, 6]), n)
    y0 = rng.dirichlet(np.ones(n))
    caps = np.maximum(y0, rng.uniform(0, 2, n))
    B1, B2 = rng.uniform(1, 1.5), (c @ y0) * rng.uniform(1, 1.5)
    log_y = np.log(y0)
    log_y[rng.integers(n)] += rng.choice([-3, 0.1, 2, 20])
    log_x, alpha, beta = paper.project(log_y, caps, c, B1, B2)
    x, y = np.exp(log_x), np.exp(log_y)
    assert alpha >= 0
    assert beta >= 0
    assert np.all(x <= caps * (1 + 1e-15))
    assert x.sum() <= B1 * (1 + 1e-13)
    assert c @ x <= B2 * (1 + 1e-13)

    def divergence(z):
        return (z * (np.log(z) - log_y) - z + y).sum()

    dual = divergence(x) + alpha * (x.sum() - B1) + beta * (c @ x - B2)
    assert divergence(x) - dual <= 1e-12 * max(1.0, y.sum())


# ---- Constants ----


@pytest.mark.parametrize("n_utilities", [1, 3])
@pytest.mark.parametrize("psi", [1.0, 2.5, 40.0])
def test_constants(psi, n_utilities):
    p = paper.Setup(7, 3, n_utilities, 0.9, psi, 0.3, 0.2, 0.05)
    problem, T = problem_of(p), 12_345
    k = paper.constants(p, T)
    mine = Settings(gamma=p.gamma, psi=psi, slater=p.slater, T=T, eps=p.eps, delta=p.delta).resolve(p.S, p.A, p.I)
    for name, value in k._asdict().items():
        assert getattr(mine, name) == pytest.approx(value, rel=1e-14), name
    assert mine.floor == pytest.approx(paper.floor(p), rel=1e-14)
    assert problem.sparsity == p.sparsity
    assert theory.largest_step(problem, mine.floor) == pytest.approx(paper.step_size_bound(p), rel=1e-14)
    budgets = [
        (theory.reference_samples(problem, p.eps, p.delta), paper.reference_samples(p)),
        (theory.descent_steps(problem, p.eps, p.delta), paper.steps(p)),
        (theory.descent_steps(problem, p.eps, p.delta, c_o=3), paper.steps(p, c=3)),
        (theory.verification_samples(problem, p.eps, p.delta), paper.verification_samples(p)),
        (theory.async_descent_steps(problem, p.eps, p.delta, 6), paper.steps(p, t_mix=6)),
    ]
    for found, needed in budgets:
        assert found == pytest.approx(needed, rel=1e-12, abs=1)  # whole numbers


def test_budget_of_mu_hat_on_a_trajectory():
    p = paper.Setup(6, 2, 1, 0.8, 2.0, 0.5, 0.1, 0.05)
    found = theory.async_reference_samples(problem_of(p), p.eps, p.delta, 10)
    assert found == pytest.approx(paper.reference_samples(p, t_mix=10), rel=1e-12, abs=1)


# ---- Algorithm 1 ----

#: psi, kappa, floor, ends, I, scales instead of the theorem's: small alpha_x, large steps; large alpha_V, much mass.
RUNS = {
    "slack": (30.0, 0.0, 1e-3, 0.0, 1, {}),
    "slack, ends": (40.0, 0.2, 1e-6, 0.15, 3, {}),
    "psi = 1": (1.0, 0.1, 1e-4, 0.0, 1, {}),
    "sum x/mu_hat": (2.0, 0.1, 1e-4, 0.0, 3, {"alpha_x": 0.5, "alpha_V": 10.0}),
    "sum x/mu_hat, ends": (3.0, 0.2, 1e-8, 0.15, 1, {"alpha_x": 0.05, "alpha_V": 10.0}),
    "sum x": (30.0, 0.0, 1e-3, 0.0, 2, {"alpha_x": 1.0, "alpha_V": 10.0}),
    "both sums": (13.0, 0.0, 1e-2, 0.0, 2, {"alpha_x": 0.2, "alpha_V": 200.0}),
}


@functools.cache
def run(name, seed, n_steps):
    psi, kappa, floor, ends, n_utilities, scales = RUNS[name]
    m = model(seed, A=6, I=n_utilities, ends=ends)
    log = as_cmdp(m).sample(200, m.mu, rng=seed)
    settings = resolved(log, gamma=m.gamma, psi=psi, slater=0.3, T=n_steps, floor=floor, kappa=kappa, **scales)
    p = paper.Setup(log.n_states, log.n_actions, n_utilities, m.gamma, psi, 0.3, 0.0, 0.1)
    k = paper.constants(p, n_steps)._replace(kappa=kappa, **scales)
    records, initial = Run("lazy", log, settings, seed=seed).sampler.draw(n_steps)
    mu_hat = paper.estimate_mu(rows_of(log, np.zeros(len(log), int)), p.S, p.A, floor)
    samples = rows_of(log, np.zeros(len(log), int))
    samples = some(samples, records)._replace(s0=initial)
    return log, settings, records, initial, p, k, mu_hat, samples


def compare(name, seed, n_steps):
    log, settings, records, initial, p, k, mu_hat, samples = run(name, seed, n_steps)
    theirs = paper.learn(p, k, some(samples, slice(0, n_steps - 1)), mu_hat)
    compiled = Run("lazy", log, settings, seed=seed)
    twin = Twin(log, compiled.reference.mu_hat, settings, *compiled.start)
    assert_close(compiled.reference.mu_hat, mu_hat)
    for record, state in zip(records.tolist(), initial.tolist(), strict=True):
        twin.step(record, state)
    assert compiled.core.run(n_steps) == 0
    for means in (compiled.means, twin.means):
        for mine, other in zip(means, (theirs.x, theirs.V, theirs.lam), strict=True):
            assert_close(mine, other)
    return twin


@pytest.mark.parametrize("name", RUNS)
def test_core_and_twin_make_the_averages_of_algorithm_1(name):
    cases = compare(name, seed=1, n_steps=300).cases
    if "slack" in name:
        assert cases == [300, 0, 0, 0]
    elif name == "both sums":
        assert min(cases) > 3
    else:
        assert cases[1 if name == "sum x" else 2] > 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("name", RUNS)
def test_core_and_twin_make_the_averages_of_algorithm_1_on_many_problems(name, seed):
    compare(name, seed, n_steps=1500)


@pytest.mark.parametrize("ends", [0.0, 0.2])
def test_learn_is_algorithm_1(ends):
    """Through the public call: rows read in their order, all episodes beginning in state 0, derived constants."""
    m = model(7, ends=ends)._replace(rho0=np.eye(5)[0])
    log = as_cmdp(m).sample(500, m.mu, rng=0)
    result = learn(
        log,
        gamma=m.gamma,
        psi=2,
        slater=0.3,
        eps=0.4,
        T=500,
        rho0=m.rho0,
        rng=0,
        order="once",
    )
    p = paper.Setup(5, 3, 2, m.gamma, 2.0, 0.3, 0.4, 0.05)
    k = paper.constants(p, 500)
    rows = rows_of(log, np.zeros(500, int))
    mu_hat = paper.estimate_mu(rows, p.S, p.A, paper.floor(p))
    theirs = paper.learn(p, k, some(rows, slice(0, 499)), mu_hat)
    assert_close(result.reference.mu_hat, mu_hat)
    assert_close(result.x_mean, theirs.x)
    assert_close(result.V_mean, theirs.V)
    assert_close(result.lam_mean, theirs.lam)
    assert_close(result.policy, theirs.policy)

    fresh = as_cmdp(m).sample(300, m.mu, rng=1)
    found = verify(result, fresh, rho0=m.rho0)
    expected = paper.verify(theirs.x, mu_hat, rows_of(fresh, None), m.rho0, p, k.kappa)
    assert found.reward == pytest.approx(expected.reward, rel=ROUNDING)
    assert_close(found.utilities, expected.utilities)
    assert_close(found.flow_residual, expected.residual)
    assert found.verdict == expected.passed

    assert result.gap(as_cmdp(m), m.mu) == pytest.approx(paper.gap(m, theirs.x, mu_hat, p, k), rel=1e-6)
    assert result.saddle_value(as_cmdp(m), m.mu) == pytest.approx(paper.saddle_value(m, mu_hat, p, k), rel=1e-6)
    lost = result.approximation_error(as_cmdp(m), m.mu)
    assert lost == pytest.approx(paper.approximation_error(m, 2.0), rel=1e-6)


# ---- Algorithms 3 and 2 ----


def test_verify_passes_and_fails_where_algorithm_3_does():
    """VERIFY passes on an exact occupancy; doubled, it breaks the flow, and with a larger kappa the utilities."""
    m = model(3)
    safe = paper.optimum(m, kappa=0.2)[1] + 1e-9
    log = as_cmdp(m).sample(4000, m.mu, rng=0)
    rows = rows_of(log, None)
    mu_hat = paper.estimate_mu(rows, 5, 3, 1e-6)
    p = paper.Setup(5, 3, 2, m.gamma, 2.0, 0.3, 3.0, 0.1)
    verdicts = [
        paper.verify(x, mu_hat, rows, m.rho0, p, kappa).passed
        for x, kappa in ((safe, 0.2), (2 * safe, 0.2), (safe, 3 + paper.values(m, safe)[1].min()))
    ]
    assert verdicts == [True, False, False]


@pytest.mark.parametrize(
    ("eps", "divisor", "margin", "kappa", "verdicts"),
    [
        (12.0, 1.0, 0.01, 0.1, [True, True, True]),  # the second level earns more than the margin
        (180.0, 15.0, 500.0, 0.1, [True, True]),
        (8.0, 1.0, 0.01, 0.1, [False, True, False, False, True]),
        (0.5, 15.0, 500.0, None, [False] * 5),
    ],
)
def test_learn_adaptive_is_algorithm_2(eps, divisor, margin, kappa, verdicts):
    m = model(3)._replace(rho0=np.eye(5)[0])
    log = as_cmdp(m).sample(6000, m.mu, rng=0)
    p = paper.Setup(5, 3, 2, m.gamma, 1.0, 0.3, eps, 0.1)
    n_reference, n_steps, n_verification, most = 300, 400, 300, 5
    result = learn_adaptive(
        log,
        gamma=m.gamma,
        slater=p.slater,
        eps=p.eps,
        delta=p.delta,
        kappa=kappa,
        T=n_steps,
        rho0=m.rho0,
        rng=0,
        n_reference=n_reference,
        n_verification=n_verification,
        eps_divisor=divisor,
        exit_margin=margin,
        max_levels=most,
    )
    rows, position = rows_of(log, np.zeros(len(log), int)), 0

    def draw(level, n):
        """Next n rows; of the T rows of a descent, Algorithm 1 has no use for the last."""
        nonlocal position
        part = some(rows, slice(position, position + n))
        position += n + (n == n_steps - 1)
        return part

    levels = paper.adaptive(
        p,
        draw,
        m.rho0,
        lambda q: (n_reference, n_steps, n_verification),
        most=most,
        divisor=divisor,
        margin=margin,
        kappa=kappa,
    )
    assert [level.verdict.passed for level in levels] == verdicts
    assert [level.psi for level in result.history] == [level.psi for level in levels]
    assert [level.verdict for level in result.history] == [level.verdict.passed for level in levels]
    for mine, theirs in zip(result.history, levels, strict=True):
        assert mine.reward == pytest.approx(theirs.verdict.reward, rel=ROUNDING)
    # Algorithm 2 outputs the level at which it stops. Without one, the library returns the last that passed.
    stopped = result.status.name == "COMPLETED"
    passed = [level for level in levels if level.verdict.passed]
    output = levels[-1] if stopped or not passed else passed[-1]
    assert_close(result.x_mean, output.averages.x)
    assert_close(result.policy, output.averages.policy)


# ---- Exact references ----


@pytest.mark.parametrize("ends", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(3))
def test_exact_references(seed, ends):
    m = model(seed, ends=ends)
    cmdp = as_cmdp(m)
    policy = np.random.default_rng(seed).dirichlet(np.ones(3), 5)
    nu = paper.occupancy(m, policy)
    judged = cmdp.evaluate(policy)
    assert_close(judged.occupancy, nu, 1e-12)
    assert judged.reward == pytest.approx(paper.values(m, nu)[0], rel=1e-12)
    assert_close(judged.utilities, paper.values(m, nu)[1], 1e-12)

    # Linear programs: HiGHS allows residuals of 1e-7.
    C = paper.concentrability(m)
    assert cmdp.concentrability(m.mu) == pytest.approx(C, rel=1e-6)
    assert cmdp.slater() == pytest.approx(paper.slater_constant(m), rel=1e-6)
    margin = 0.5 * paper.slater_constant(m) / (1 - m.gamma)
    for psi in (None, 0.9 * C, 1.1 * C):
        inside = {} if psi is None else {"psi": psi, "mu": m.mu}
        assert cmdp.slater(**inside) == pytest.approx(paper.slater_constant(m, psi), rel=1e-6)
        for kappa in (0.0, margin):
            theirs = paper.optimum(m, kappa=kappa, psi=psi)
            mine = cmdp.solve(kappa=kappa, **inside)
            assert (mine.status == "optimal") == (theirs is not None)
            if theirs is not None:
                assert mine.reward == pytest.approx(theirs[0], rel=1e-6)
    assert paper.approximation_error(m, 1.01 * C) == pytest.approx(0, abs=1e-6)
    assert paper.approximation_error(m, 0.9 * C) > 1e-4


@pytest.mark.parametrize("psi", [1.0, 3.0, 50.0])
def test_saddle_value_and_gap(psi):
    m = model(2, ends=0.1)
    cmdp = as_cmdp(m)
    mu_hat = np.maximum(m.mu * np.random.default_rng(0).uniform(0.8, 1.2, m.mu.shape), 1e-3)
    p = paper.Setup(5, 3, 2, m.gamma, psi, 0.3, 0.1, 0.1)
    k = paper.constants(p, 100)
    x = 0.3 * mu_hat / (1 - m.gamma)
    assert exact.penalised_objective(cmdp, x, m.mu, mu_hat, k.kappa, 0.3) == pytest.approx(
        paper.penalised(m, x, mu_hat, k), rel=1e-12
    )
    value = exact.saddle_value(cmdp, m.mu, mu_hat, psi, k.kappa, 0.3)
    assert value == pytest.approx(paper.saddle_value(m, mu_hat, p, k), rel=1e-6)
    assert exact.gap(cmdp, x, m.mu, mu_hat, psi, k.kappa, 0.3) == pytest.approx(paper.gap(m, x, mu_hat, p, k), rel=1e-6)


def test_mixing():
    rng = np.random.default_rng(0)
    kernel = 0.8 * np.eye(6) + 0.2 * rng.dirichlet(np.ones(6), 6)
    assert mixing.mixing_time(kernel) == paper.mixing_time(kernel)
    for t in (0, 1, 5, 20):
        assert mixing.tv_distance(kernel, t) == pytest.approx(paper.total_variation(kernel, t), abs=1e-13)
