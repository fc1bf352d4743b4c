"""The posterior of a log: values against dense algebra written down again, standard errors against posterior draws."""

import numpy as np
import pytest
import scipy.stats

import logs
from dpdl import Dataset
from dpdl.deploying.posterior import LEAST_ALPHA, MOST_ALPHA, PLAUSIBLE, Posterior

S, A, GAMMA = 5, 3, 0.9
LIMITS = {"total": [3.0, 4.0], "average": [0.3, 0.4]}


def columns(n, seed=0, ends=False, noise=True, n_costs=2):
    """Rows of a random model in which one state is never left and some pairs are never taken."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(S, 0.5), (S, A))
    s, a = rng.integers(0, S - 1, n), rng.integers(0, A, n)
    a[s == 1] = np.minimum(a[s == 1], 1)
    s_next = np.array([rng.choice(S, p=P[x, y]) for x, y in zip(s, a, strict=True)])
    terminated = (rng.random(n) < 0.1) if ends else np.zeros(n, dtype=bool)
    r = rng.uniform(-1, 1, (S, A))[s, a] + 0.3 * s_next * noise
    c = rng.random((S, A, n_costs))[s, a] * (1 + noise * rng.random((n, n_costs)))
    return {"s": s, "a": a, "s_next": s_next, "r": r, "costs": c, "terminated": terminated}


def make(kind, data):
    """A log of utilities, or of costs with limits on totals or averages."""
    sizes = {"n_states": S, "n_actions": A, "reward_scale": 3.0}
    rows = dict(data, terminated=data["terminated"] if data["terminated"].any() else None)
    if kind == "utilities":
        rows["u"] = 0.5 - rows.pop("costs")
        return Dataset(**rows, utility_scale=2.0, **sizes)
    return logs.from_costs(**rows, limits=LIMITS[kind], gamma=GAMMA, normalised=kind == "average", **sizes)


def as_counts(log):
    """The same log through its table of counts."""
    table = log.counts()
    units = log.question
    known = {"n_states": S, "n_actions": A, "reward_scale": units.reward_scale, **table}
    if units.limits is None:
        return Dataset.from_counts(**known, utility_scale=units.utility_scale)
    return Dataset.from_counts(**known, limits=units.limits, gamma=units.gamma, normalised=units.normalised)


def random_policy(seed=1):
    return np.random.default_rng(seed).dirichlet(np.ones(A), S)


def dense(kind, data, log, weights, unknown, policy, rho0):
    """Values of a policy on the posterior mean model, row by row of the log and with full matrices.

    Reward and gains (costs with a minus) of the mean model, discounted totals; a pair that the log does not show has
    the worst reward and gain that the scales allow, for ever. An outcome from anywhere has the gain of its pair and
    what arriving there adds to the gains of others. State S stands for those that the log does not show: the worst for
    a step, and then anywhere; S + 1 is the end. The totals are the lesser of these and those of the plug-in model.
    """
    s, a, ended = data["s"], data["a"], data["terminated"]
    s_next = np.where(ended, S + 1, data["s_next"])
    gain = np.column_stack([data["r"], 0.5 - data["costs"] if kind == "utilities" else -data["costs"]])
    worst = np.array([-log.question.reward_scale, *(-np.array(log.question.scales))])
    if kind != "utilities":
        worst[1:] -= np.array(LIMITS[kind]) * (1 if kind == "average" else 1 - GAMMA)
    n, counted = np.zeros((S, A)), np.zeros((S, A, S + 2))
    np.add.at(n, (s, a), 1)
    np.add.at(counted, (s, a, s_next), 1)
    means = np.array([[[gain[(s == x) & (a == y), k].mean() if n[x, y] else 0.0 for y in range(A)] for x in range(S)]
                      for k in range(3)])  # fmt: skip
    adds = np.array([[(gain[s_next == t, k] - means[k, s[s_next == t], a[s_next == t]]).mean()
                      if (s_next == t).any() else 0.0 for t in range(S + 2)] for k in range(3)])  # fmt: skip
    visited = n.sum(axis=1) > 0
    base = np.append((1 - unknown) * np.append(visited, [0, ended.any()]) / (visited.sum() + ended.any()), [])
    base[S] = unknown
    found = []
    for smooth in (True, False):
        P, gains = np.zeros((S, A, S + 2)), means.copy()
        for x in range(S):
            for y in range(A):
                if not n[x, y]:
                    gains[:, x, y] = worst / (1 - GAMMA)
                    continue
                alpha = weights[int((counted[x, y] > 0).sum() > 1)] if smooth else 0.0
                P[x, y] = (counted[x, y] + alpha * base) / (n[x, y] + alpha)
                gains[:, x, y] += alpha / (n[x, y] + alpha) * (adds @ base)
        K = np.vstack([np.einsum("sa,sat->st", policy, P), base, np.zeros(S + 2)])
        right = np.vstack([np.einsum("sa,ksa->sk", policy, gains), worst, np.zeros(3)])
        V = np.linalg.solve(np.eye(S + 2) - GAMMA * K, right).T[:, :S]
        visits = np.linalg.solve((np.eye(S + 2) - GAMMA * K).T, np.append(rho0, [0, 0]))[:S]
        found.append((V @ rho0, V, visits))
    (J, V, visits), (plain, _, _) = found
    unseen = (1 - GAMMA) * (visits @ (policy * (n == 0)).sum(axis=1))
    return np.minimum(J, plain), V, visits, unseen


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("kind", ["utilities", "total", "average"])
def test_values_are_those_of_the_dense_mean_model(kind, ends):
    rho0 = np.array([0.5, 0.0, 0.25, 0.25, 0.0])
    # A row of counts holds the mean cost of its transitions: where costs vary, their largest is not known from it.
    for noise in (True, False):
        data = columns(60, ends=ends, noise=noise)
        log = make(kind, data)
        posterior = Posterior(log if noise else as_counts(log), GAMMA, rho0, None)
        for policy in (random_policy(), posterior.behaviour(), np.eye(A)[[0, 1, 2, 0, 0]]):
            found = posterior.value(policy)
            J, V, visits, unseen = dense(kind, data, log, posterior.weights, posterior.unknown, policy, rho0)
            assert np.allclose(found.J, J, rtol=1e-9, atol=1e-9)
            assert np.allclose(found.V, V, rtol=1e-9, atol=1e-9)
            assert np.allclose(found.visits, visits, rtol=1e-9)
            assert found.unseen == pytest.approx(unseen, rel=1e-9, abs=1e-12)
    assert posterior.thresholds == pytest.approx({"utilities": [0, 0], "total": [-3, -4], "average": [-3, -4]}[kind])


@pytest.mark.parametrize("kind", ["utilities", "total"])
def test_counts_say_what_rows_say(kind):
    log, rho0 = make(kind, columns(300, ends=True, noise=kind == "utilities")), np.full(S, 1 / S)
    one, other = (Posterior(each, GAMMA, rho0, None) for each in (log, as_counts(log)))
    assert one.alpha == pytest.approx(other.alpha, rel=1e-12)
    a, b = one.value(random_policy()), other.value(random_policy())
    for mine, theirs in zip(a, b, strict=True):
        assert np.allclose(mine, theirs, rtol=1e-8, atol=1e-12)


def test_behaviour_and_allowed_pairs():
    log = make("total", columns(200))
    posterior = Posterior(log, GAMMA, np.eye(S)[0], None)
    seen = np.zeros((S, A), dtype=bool)
    seen.ravel()[log.pairs] = True
    assert np.array_equal(posterior.allowed()[:-1], seen[:-1])
    assert posterior.allowed()[-1].all()  # never left: any action there is worst-case
    table = np.zeros((S, A))
    np.add.at(table, (log.s, log.a), 1)
    assert np.allclose(posterior.behaviour()[:-1], table[:-1] / table[:-1].sum(axis=1, keepdims=True))


@pytest.mark.parametrize("ends", [False, True])
def test_standard_errors_are_those_of_posterior_draws(ends):
    """With many visits of each pair: draws of Dirichlet distributions over the outcomes that the log shows."""
    data = columns(4000, seed=3, ends=ends, noise=False)
    data["r"] = data["r"] + 0.3 * data["s_next"]
    log, rho0 = make("total", data), np.array([0.6, 0.4, 0.0, 0.0, 0.0])
    keep = np.where(np.isin(np.arange(S * A), log.pairs), 1.0, 0.0).reshape(S, A)
    keep[-1, 0] = 1.0
    policy = random_policy() * keep
    policy /= policy.sum(axis=1, keepdims=True)
    # The last state is never left; here it ends the episode, and so does it for the oracle.
    last = data["s_next"] == S - 1
    data = dict(data, terminated=data["terminated"] | last)
    log = make("total", data)
    found = Posterior(log, GAMMA, rho0, None).value(policy)
    table, rng, draws = log.counts(), np.random.default_rng(0), []
    pair, after = table["s"] * A + table["a"], np.where(table["terminated"], S, table["s_next"])
    mean = np.column_stack([table["reward"], -table["costs"]]) / table["count"][:, None]
    for _ in range(4000):
        weight = rng.gamma(table["count"].astype(float))
        weight /= np.bincount(pair, weight, S * A)[pair]
        share = weight * policy.ravel()[pair]
        K = np.zeros((S, S + 1))
        np.add.at(K, (table["s"], after), share)
        gains = np.array([np.bincount(table["s"], share * one, S) for one in mean.T])
        draws.append(np.linalg.solve(np.eye(S) - GAMMA * K[:, :S], gains.T).T @ rho0)
    draws = np.array(draws)
    # 4,000 draws tell a standard deviation to 1.1%; first order, and alpha, are off by a few percent.
    assert found.error == pytest.approx(draws.std(axis=0), rel=0.06)
    assert pytest.approx(draws.mean(axis=0), abs=0.25 * draws.std(axis=0).min()) == found.J


def test_logged_first_states_add_their_error():
    log = make("average", columns(500))
    states = [0] * 30 + [1] * 10
    rho0 = np.bincount(states, minlength=S) / 40
    known, logged, given = (
        Posterior.of(log, GAMMA, rho0, None),
        Posterior.of(log, GAMMA, None, states),
        Posterior.of(log, GAMMA, np.eye(S)[0], None),
    )
    assert (known.n_starts, logged.n_starts, given.n_starts) == (None, 40, None)
    policy = known.behaviour()
    a, b = known.value(policy), logged.value(policy)
    spread = ((a.V - (a.V @ rho0)[:, None]) ** 2 @ rho0) / 39
    assert b.error**2 == pytest.approx(a.error**2 + spread, rel=1e-9)
    single = Posterior.of(log, GAMMA, None, [0]).value(policy)
    assert (single.error > given.value(policy).error).all()


def test_parts_of_the_error_sum_to_its_square():
    posterior = Posterior(make("total", columns(300, ends=True)), GAMMA, np.full(S, 1 / S), None)
    value = posterior.value(random_policy())
    assert value.parts.sum(axis=1) == pytest.approx(value.error**2)
    assert (value.parts >= 0).all()
    q = (value.visits[:, None] * random_policy()).ravel()[posterior.log.pairs]
    assert posterior.effective(value, random_policy()) == pytest.approx(
        q.sum() ** 2 / (q**2 / posterior.log.pair_counts).sum()
    )


# ---- alpha ----


def chain_log(n_pairs, visits, new_share, seed=0):
    """Each pair is visited `visits` times; a share of the rows leads to a state of its own, the others to state 0."""
    rng = np.random.default_rng(seed)
    s = np.repeat(np.arange(n_pairs), visits)
    new = rng.random(len(s)) < new_share
    n_states = n_pairs + len(s)
    s_next = np.where(new, n_pairs + np.arange(len(s)), 0)
    zero = np.zeros(len(s))
    return Dataset(s, 0 * s, s_next, zero, zero[:, None], n_states=n_states, n_actions=1)


def weights(log):
    """alpha of pairs with one next state, and with several."""
    return Posterior(log, GAMMA, np.eye(1, log.n_states)[0], None).weights


def test_alpha_tells_known_next_states_from_ever_new_ones():
    assert weights(chain_log(3000, 20, 0.0))[0] < 2 * LEAST_ALPHA
    assert weights(chain_log(8000, 20, 0.0)) == (LEAST_ALPHA, pytest.approx(1.0))
    assert weights(chain_log(10, 2, 0.0))[0] < 0.5
    assert weights(chain_log(200, 10, 1.0))[1] == MOST_ALPHA
    found = np.array([weights(chain_log(300, 10, share)) for share in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)])
    assert (np.diff(found[:, 1]) > 0).all()
    assert (np.diff(found[:4, 0]) > 0).all()  # beyond, hardly any pair leads to one state
    assert found[0].max() < 0.5
    assert found[-1, 1] > 5


def test_alpha_solves_its_equation_and_needs_few_rows():
    """One row of each pair says nothing about alpha: it is one then."""
    assert weights(chain_log(50, 1, 0.5)) == pytest.approx((1.0, 1.0))
    log = chain_log(40, 5, 0.15)
    for several, found in enumerate(weights(log)):
        rows = alone = 0
        for k in range(len(log)):  # leave row k out
            others = log.s_next[(log.s == log.s[k]) & (np.arange(len(log)) != k)]
            if (np.ptp(others) > 0) == several:
                rows, alone = rows + 1, alone + (log.s_next[k] not in others)
        # Each has four others; and 5 pairs that were seen twice and led to two states once each in two.
        assert rows * found / (4 + found) + 5 * 2 * found / (1 + found) == pytest.approx(alone + 5)


def test_pairs_that_led_to_one_state_have_an_alpha_of_their_own():
    """Every pair has two next states that are equally likely: with both seen there is no third."""
    rng = np.random.default_rng(0)
    s = np.repeat(np.arange(400), 3)
    log = Dataset(s, 0 * s, rng.integers(0, 2, len(s)), 0.0 * s, 0.0 * s[:, None], n_states=400, n_actions=1)
    posterior = Posterior(log, GAMMA, np.eye(1, 400)[0], None)
    one, several = posterior.weights
    assert one > 1
    assert several < 0.05
    assert np.array_equal(posterior.alpha, np.where(posterior.distinct == 1, one, several))


@pytest.mark.parametrize("gamma", [0.01, 0.5, 0.999, 1 - 1e-6])
def test_figures_are_finite_for_every_discount_and_scale(gamma):
    data = columns(80, ends=True)
    for factor in (1e-12, 1.0, 1e12):
        log = logs.from_costs(
            data["s"], data["a"], data["s_next"], factor * data["r"], factor * data["costs"], [factor, 0.0],
            gamma=gamma, normalised=True, n_states=S, n_actions=A, terminated=data["terminated"],
            reward_scale=3 * factor,
        )  # fmt: skip
        posterior = Posterior(log, gamma, np.full(S, 1 / S), None)
        value = posterior.value(random_policy())
        for one in (value.J, value.error, value.V, value.visits, value.parts):
            assert np.isfinite(one).all()
        assert value.visits.sum() <= 1 / (1 - gamma) * (1 + 1e-6)
        assert (abs(value.J) <= abs(posterior.worst) / (1 - gamma) * (1 + 1e-9)).all()


def test_unknown_states_are_reckoned_with_as_often_as_rows_lead_to_new_ones():
    """Of the rows that lead where no other row of their pair does, those whose next state nobody else entered."""
    s, a, after = [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], [1, 1, 2, 0, 0, 1]
    more = {"n_states": 4, "n_actions": 1, "gamma": 0.5}
    zero = np.zeros(6)

    def posterior(s, a, after, **options):
        costs = {"limits": 1.0, "normalised": True, **more}
        return Posterior.of(logs.from_costs(s, a, after, zero, zero, **costs, **options), 0.5, [1, 0, 0, 0], None)

    assert posterior(s, a, after).unknown == pytest.approx(1 / 2)  # one such row, to 2, which no row leaves
    assert posterior(s, a, [1, 1, 1, 0, 0, 1]).unknown == 0
    # As episodes: 2 is left, but only because it was entered once.
    episodes = posterior([0, 2, 0, 1, 0, 1], a, [2, 0, 1, 0, 1, 0], truncated=[False] * 6)
    assert episodes.unknown == pytest.approx(1 / 2)


# ---- What is uncertain about a pair ----


def spread_by_rows(data, gain, V, drawn):
    """The variance that the rows of each pair do not show, and what is drawn back, row by row of the log."""
    after = np.where(data["terminated"], 0.0, V[data["s_next"]])
    y, pairs = gain + GAMMA * after, sorted(set(zip(data["s"], data["a"], strict=True)))
    rows = [y[(data["s"] == s) & (data["a"] == a)] for s, a in pairs]
    n, mean, own = (np.array([f(one) for one in rows]) for f in (len, np.mean, np.var))
    spare = (n - 1).sum()
    typical = (n * own).sum() / spare
    # How far may all pairs have one variance? By the scatter of single squares.
    squares = [(one - one.mean()) ** 2 for one in rows]
    single = sum(((one - one.mean()) ** 2).sum() for one in squares) / spare
    differ = ((own - own.mean()) ** 2).sum() / scipy.stats.chi2.ppf(PLAUSIBLE, len(n) - 1) - single * (1 / n).mean()
    alike = single / (single + (n - 1) * max(differ, 0.0))
    hidden = np.maximum((1 - alike) * own + alike * typical - own, 0.0)
    # How far may the actions of a state be the same?
    state, back = np.array([s for s, _ in pairs]), np.zeros(len(n))
    groups = [state == s for s in set(state)]
    away = sum(((mean[one] - mean[one].mean()) ** 2).sum() for one in groups)
    freedom = sum(one.sum() - 1 for one in groups)
    compared = np.array([(state == s).sum() > 1 for s in state])
    tau = max(0.0, away / scipy.stats.chi2.ppf(PLAUSIBLE, freedom) - typical * (1 / n[compared]).mean())
    for one in groups:
        weight = 1 / (tau + typical / n[one])
        centre = (weight * mean[one]).sum() / weight.sum()
        back[one] = typical / (typical + n[one] * tau) * np.maximum(mean[one] - centre, 0.0)
    return hidden, back if drawn else 0 * back


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_noise_and_what_is_drawn_back_are_those_of_the_rows(ends, drawn):
    data = columns(80, ends=ends, noise=False)  # what varies in a pair varies with the next state alone
    data["r"] = data["r"] + 0.3 * data["s_next"] * ~data["terminated"]
    posterior = Posterior(make("total", data), GAMMA, np.eye(S)[0], None, drawn=drawn)
    V = np.random.default_rng(2).normal(size=(3, S))
    found = posterior.spread(V)
    for k, gain in enumerate(np.column_stack([data["r"], -data["costs"]]).T):
        hidden, back = spread_by_rows(data, gain, V[k], drawn)
        assert np.allclose(found.hidden[k], hidden, rtol=1e-9, atol=1e-12)
        assert np.allclose(found.flattery[k], back, rtol=1e-9, atol=1e-12)
    assert found.hidden.max() > 0
    assert (found.flattery.max() > 0) == drawn


def test_an_accident_that_a_pair_has_not_shown_is_not_forgotten():
    """Twenty actions with the same rare cost: those without one are as uncertain as the others."""
    rng = np.random.default_rng(0)
    a = np.tile(np.arange(20), 50)
    cost = (rng.random(len(a)) < 0.05).astype(float)
    log = logs.from_costs(0 * a, a, 0 * a, 0.0 * a, cost, 0.1, gamma=0.5, normalised=True, n_states=1, n_actions=20)
    spared = np.flatnonzero(np.bincount(a, cost) == 0)
    assert len(spared)
    for drawn in (False, True):
        value = Posterior(log, 0.5, np.ones(1), None, drawn=drawn).value(np.eye(20)[spared[:1]])
        assert value.error[1] == pytest.approx(2 * np.sqrt(0.05 * 0.95 / 50), rel=0.2)
        assert -value.J[1] == pytest.approx(2 * cost.mean() if drawn else 0.0, rel=0.01, abs=1e-12)


# ---- Other logs ----


def choices(n_actions, visits, spread, seed=0):
    """One state with many actions that lead to one of two states: with equal probabilities, or ones of their own."""
    rng = np.random.default_rng(seed)
    a = np.tile(np.arange(n_actions), visits)
    p = rng.uniform(0.5 - spread, 0.5 + spread, n_actions)
    s_next = (rng.random(len(a)) < p[a]).astype(int)
    return Dataset(0 * a, a, s_next, 0.0 * a, 1.0 * a[:, None] / n_actions, n_states=2, n_actions=n_actions)


def test_other_logs_are_drawn_from_actions_that_differ_no_more_than_the_log_shows():
    same, different = (Posterior(choices(50, 30, spread), GAMMA, np.eye(2)[0], None) for spread in (0.0, 0.5))
    assert same.common > 100 > 3 > different.common
    for posterior, spread in ((same, (0.0, 0.02)), (different, (0.25, 0.35))):
        source = posterior.source
        assert np.allclose(np.bincount(source.pair, source.count), posterior.visits_of)
        share = np.bincount(source.pair, source.count * source.after) / posterior.visits_of
        assert spread[0] <= share.std() <= spread[1]
        # Rows of all actions together are as often as in the log.
        assert share.mean() == pytest.approx(posterior.log.s_next.mean(), abs=1e-12)
        n = np.array([source.resampled(np.random.default_rng(k), np.zeros((2, 50))).count for k in range(400)])
        assert all((np.bincount(source.pair, one) == posterior.visits_of).all() for one in n[:5])
        assert np.allclose(n.mean(axis=0), source.count, atol=5 * np.sqrt(30 / 4 / 400))


def test_logs_of_actions_that_lead_elsewhere_are_drawn_as_they_are():
    pair = np.repeat(np.arange(40), 20)  # 20 states, two actions, a next state for each pair
    zero = np.zeros(len(pair))
    log = Dataset(pair // 2, pair % 2, pair, zero, zero[:, None], n_states=40, n_actions=2)
    posterior = Posterior(log, GAMMA, np.eye(40)[0], None)
    assert posterior.common == 0
    assert np.array_equal(posterior.source.count, posterior.count)
