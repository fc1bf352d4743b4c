"""Answers on hostile models, against rational arithmetic: what is called optimal is, and so is what is infeasible.

Where multipliers are so large that double precision cannot show the optimum, the status must be "inaccurate".
"""

from collections import Counter

import numpy as np
import pytest
from scipy.optimize import linprog

from dpdl.models import programs
from dpdl.models.cmdp import CMDP
from exact_oracle import deterministic, hostile, occupancy, optimum, worth

#: What `Solution` promises on the normalised scale, and the roundings of its own arithmetic.
TOLERANCE = programs.TOLERANCE * (1 + 1e-3)
SLOW = pytest.mark.slow


def slipping(p, gamma):
    """Action 0 slips into an unsafe absorbing state with probability p; action 1 never does, and pays half."""
    P = [[[1 - p, p], [1, 0]], [[0, 1], [0, 1]]]
    return CMDP(P, [[1, 0.5], [1, 1]], [[[0, 0], [-1, -1]]], gamma, [1, 0])


def is_ill_conditioned(cmdp):
    """Whether multipliers can be so large that their roundings, or what HiGHS leaves, exceed the tolerance.

    Of the 6,000 hostile models below 696 are inaccurate; all of them have a discount of at least 1 - 1e-5, or a
    transition probability of at most 1.4e-8.
    """
    positive = cmdp.P.data[cmdp.P.data > 0]
    return cmdp.gamma > 1 - 2e-5 or positive.min(initial=1.0) < 2e-8


def check_solution(cmdp, best, margin):
    """Compare `solve` with the truth; return its status, which is "inaccurate" for ill-conditioned models alone."""
    found = cmdp.solve()
    assert found.status != "inaccurate" or is_ill_conditioned(cmdp)
    if found.status == "infeasible":
        assert margin < -programs.TOLERANCE * (1 - 1e-3)
        return found.status
    reward, *utilities = map(float, worth(cmdp, found.policy))
    assert (1 - cmdp.gamma) * found.reward == pytest.approx(reward, abs=1e-14)
    assert (1 - cmdp.gamma) * found.utilities == pytest.approx(utilities, abs=1e-14)
    if found.status == "optimal":
        assert min(utilities) >= -TOLERANCE
        assert margin >= -TOLERANCE
        assert best is None or reward >= float(best) - TOLERANCE
    return found.status


# ---- The best safe policy ----


@pytest.mark.parametrize("p", [1e-3, 1e-5, 9e-10, 1e-12, 1e-15])
@pytest.mark.parametrize("gamma", [0.99, 0.99999, 1 - 1e-8, 1 - 1e-12])
def test_a_risk_is_not_too_small_to_be_seen(p, gamma):
    """The multiplier is (1 - gamma)/p/2 and V is as large, so that 16 roundings of them must be below the tolerance."""
    cmdp = slipping(p, gamma)
    best, margin = optimum(cmdp)
    assert (best, margin) == (0.5, 0)
    assert check_solution(cmdp, best, margin) in ("optimal", "inaccurate")


@pytest.mark.parametrize(("seeds", "most"), [(range(120), 12), pytest.param(range(120, 6000), 684, marks=SLOW)])
def test_no_policy_is_called_optimal_that_is_not(seeds, most):
    models = (hostile(np.random.default_rng([0, seed])) for seed in seeds)
    counts = Counter(check_solution(cmdp, *optimum(cmdp)) for cmdp in models)
    print(dict(counts))
    assert counts["inaccurate"] <= most
    assert min(counts["optimal"], counts["infeasible"]) > 5


@pytest.mark.parametrize("works", [True, False])
def test_an_answer_that_is_not_certain_says_so(works, monkeypatch):
    if not works:
        monkeypatch.setattr(programs, "propose", lambda program, solver: None)
    counts = Counter()
    for seed in range(20):
        cmdp = hostile(np.random.default_rng([2, seed]), kind="rare", gamma=1 - 1e-8)
        counts[check_solution(cmdp, *optimum(cmdp))] += 1
    print(dict(counts))
    assert counts["inaccurate"] > 3
    assert (counts["optimal"] > 3) is works


def test_functions_without_a_status_raise_instead(monkeypatch):
    cmdp, even = slipping(1e-9, 0.99999), [[0.25, 0.25], [0.25, 0.25]]
    monkeypatch.setattr(programs, "propose", lambda program, solver: None)
    for function, what in ((cmdp.slater, "the Slater constant"), (lambda: cmdp.concentrability(even), "the largest")):
        with pytest.raises(RuntimeError, match=f"^{what}.* could not be shown to 1e-06, for lack of precision$"):
            function()


def test_a_threshold_out_of_range_is_no_trouble():
    cmdp = slipping(1e-3, 0.5)
    for kappa in (2.1, 1e6, 1e300):
        assert cmdp.solve(kappa=kappa).status == "infeasible"
        assert cmdp.solve(kappa=-kappa).reward == pytest.approx(2, rel=1e-9)


def test_the_bound_holds_for_any_multipliers():
    for seed in range(25):
        rng = np.random.default_rng([3, seed])
        cmdp = hostile(rng)
        best, margin = optimum(cmdp)
        for program, value in (
            (programs.largest_reward(cmdp.rows, 0.0, programs.region(cmdp.rows)), best),
            (programs.largest_margin(cmdp.rows, programs.region(cmdp.rows)), margin + 1),
        ):
            V = 10.0 ** rng.uniform(-3, 12) * rng.standard_normal(cmdp.n_states)
            w = 10.0 ** rng.uniform(-3, 6) * rng.random(1)
            assert value is None or program.bound(V, w) >= float(value)


# ---- Inside a deviation region, and the other programs ----


def rows_of(cmdp, caps):
    """Occupancies of all deterministic policies, and what a mixture of them keeps: rows <= limits."""
    q = np.array([[float(x) for row in table for x in row] for table in deterministic(cmdp)])
    share = 1 / caps / (1 / caps).sum()
    rows = np.vstack([-cmdp.u.reshape(cmdp.n_utilities, cmdp.r.size) @ q.T, q.T, share @ q.T])
    limits = np.concatenate([np.zeros(cmdp.n_utilities), caps, [programs.sparsity(cmdp.rows) / (1 / caps).sum()]])
    return q, rows, limits


def best_mixture(q, rows, limits, gain, gain_t=0.0, rows_t=0.0):
    """The best value of gain.q + gain_t t over mixtures with rows + rows_t t <= limits; None if there is none."""
    found = linprog(
        -np.append(q @ gain, gain_t),
        A_ub=np.column_stack([rows, np.broadcast_to(rows_t, len(rows))]),
        b_ub=limits,
        A_eq=np.append(np.ones(len(q)), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * len(q) + [(None, None)],
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    return -found.fun if found.status == 0 else None


def check_region(seed):
    rng = np.random.default_rng([4, seed])
    cmdp = hostile(rng, n_utilities=int(rng.integers(0, 3)))
    mu = 10.0 ** -rng.uniform(0, rng.choice([1, 4]), cmdp.r.shape)
    mu, psi = mu / mu.sum(), float(rng.choice([1.5, 3, 10, 100]))
    caps = (psi * mu).ravel()
    q, rows, limits = rows_of(cmdp, caps)
    nothing, found = np.zeros(len(caps)), cmdp.solve(psi=psi, mu=mu)
    assert found.status != "inaccurate" or is_ill_conditioned(cmdp)
    excess = -best_mixture(q, rows, limits, nothing, -1.0, -1.0)
    best = best_mixture(q, rows, limits, cmdp.r.ravel())
    if found.status == "infeasible":
        assert excess > 0.9 * programs.TOLERANCE  # linprog's own tolerance is a tenth
    elif found.status == "optimal":
        own = np.array([[float(x) for x in row] for row in occupancy(cmdp, found.policy)]).ravel()
        share = 1 / caps / (1 / caps).sum()
        kept = np.concatenate([-cmdp.u.reshape(cmdp.n_utilities, cmdp.r.size) @ own, own, [share @ own]])
        assert (kept <= limits + TOLERANCE).all()
        assert best is None or cmdp.r.ravel() @ own >= best - 2 * TOLERANCE
    if cmdp.n_utilities:
        worst = np.repeat([1.0, 0.0], [cmdp.n_utilities, len(limits) - cmdp.n_utilities])
        margin = best_mixture(q, rows, limits, nothing, 1.0, worst)
        try:
            slater = cmdp.slater(psi, mu)
        except RuntimeError:  # not shown, for lack of precision
            assert is_ill_conditioned(cmdp)
            return "inaccurate"
        # The caps may be exceeded by the tolerance, and that may be worth more than it.
        most = best_mixture(q, rows, limits + TOLERANCE * (1 - worst), nothing, 1.0, worst)
        if margin is None:
            assert slater == -np.inf
        else:
            assert margin - 2 * TOLERANCE <= slater <= most + 2 * TOLERANCE
    return found.status


@pytest.mark.parametrize(("seeds", "most"), [(range(15), 1), pytest.param(range(15, 1500), 123, marks=SLOW)])
def test_deviation_regions_of_hostile_models(seeds, most):
    counts = Counter(check_region(seed) for seed in seeds)
    print(dict(counts))
    assert min(counts["optimal"], counts["infeasible"]) > 0
    assert counts["inaccurate"] <= most


def check_concentrability(cmdp, mu):
    """C* by a program over all deterministic policies, in units of the C* that was found."""
    found = cmdp.concentrability(mu)
    caps = found * mu.ravel()
    q, rows, limits = rows_of(cmdp, caps)
    n, no = cmdp.n_utilities, np.zeros(len(limits) - cmdp.n_utilities)
    best = best_mixture(q, rows[:n], limits[:n], cmdp.r.ravel())
    ratios = np.vstack([rows[:n], -q @ cmdp.r.ravel(), q.T / caps[:, None], (q / caps).sum(axis=1)])
    least = best_mixture(
        q,
        ratios,
        np.concatenate([limits[:n], [programs.TOLERANCE - best], no]),
        np.zeros(len(caps)),
        -1.0,
        np.repeat([0.0, -1.0, -programs.sparsity(cmdp.rows)], [n + 1, len(caps), 1]),
    )
    assert max(1.0, -found * least) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("p", [1.0e-9, 1.4e-9, 2e-9])
def test_concentrability_with_a_transition_that_highs_half_sees(p):
    P = [[[1 - p, p], [1, 0]], [[p, 1 - p], [1, 0]]]
    cmdp = CMDP(P, [[1, 0], [-0.5, 0.5]], [[[-0.5, 0.5], [-1, 0.5]]], 0.99, [1, 0])
    check_concentrability(cmdp, np.array([[0.07, 0.12], [0.57, 0.24]]))


def test_concentrability_of_hostile_models():
    n = 0
    for seed in range(10):
        rng = np.random.default_rng([5, seed])
        cmdp = hostile(rng)
        if cmdp.slater() > 1e-3:
            check_concentrability(cmdp, rng.dirichlet(np.ones(cmdp.r.size)).reshape(cmdp.r.shape))
            n += 1
    assert n > 5


def test_slater_of_hostile_models():
    for seed in range(20):
        cmdp = hostile(np.random.default_rng([6, seed]))
        assert cmdp.slater() == pytest.approx(float(optimum(cmdp)[1]), abs=TOLERANCE)


# ---- More states ----


@pytest.mark.parametrize("gamma", [0.999, 1 - 1e-8, 1 - 1e-12])
def test_evaluation_is_accurate_in_every_entry(gamma):
    """A chain of n states whose rates spread over twelve decades, against rational arithmetic."""
    for seed in range(4):
        rng = np.random.default_rng([7, seed])
        n = 8
        P = 10.0 ** -rng.uniform(0, 12, (n, 2, n)) * (rng.random((n, 2, n)) < 0.4)
        P[np.arange(n), :, np.arange(n)] = 0
        P /= np.maximum(1, P.sum(axis=2, keepdims=True))
        P[np.arange(n), :, np.arange(n)] = 1 - P.sum(axis=2)
        cmdp = CMDP(P, np.zeros((n, 2)), np.zeros((0, n, 2)), gamma, rng.dirichlet(np.ones(n)))
        policy = rng.dirichlet([1, 1], size=n)
        exact = np.array([[float(x) for x in row] for row in occupancy(cmdp, policy)])
        np.testing.assert_allclose((1 - gamma) * cmdp.evaluate(policy).occupancy, exact, rtol=1e-14, atol=0)


@pytest.mark.parametrize("gamma", [0.9999, 1 - 1e-8, 1 - 1e-12])
def test_chains_that_mix_are_accurate_whatever_gamma_is(gamma):
    from dpdl.instances import garnet

    cmdp = garnet(60, 3, 2, gamma=gamma, rng=0)
    found = cmdp.solve()
    assert found.status == "optimal"
    assert ((1 - gamma) * found.utilities).min() >= -TOLERANCE
    mu = np.full((60, 3), 1 / 180)
    assert cmdp.solve(psi=20, mu=mu).status == "optimal"
    assert cmdp.solve(psi=1.01, mu=mu).status == "infeasible"
