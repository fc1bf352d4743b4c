"""Logs of real environments go in as tables; what comes out agrees with what the environments do."""

import gymnasium
import numpy as np
import pytest

import logs
from dpdl import Policy, exact, learn
from real_logs import GAMMA, LIMITS, behaviour_log, good_actions, returns, rollout, world

#: Where rollouts stop at the latest; what is cut off then is worth less than 1e-13.
LONG = 3000


@pytest.fixture(scope="module", params=LIMITS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def log(name):
    return logs.from_table(
        behaviour_log(name), state="s", action="a", reward="r", costs={"c": LIMITS[name]}, limits="total",
        gamma=GAMMA, next_state="next", episode="episode", time="t", terminated="end", truncated="cut",
    )  # fmt: skip


def in_world(name, log, probabilities):
    """A policy over the log's states as one that acts in the environment; the first action where the log has none."""
    n_states, n_actions = world(name).cdf.shape[:2]
    table = np.tile(np.eye(n_actions)[0], (n_states, 1))
    rows = np.zeros((len(log.labels.states), n_actions))
    rows[:, list(log.labels.actions)] = probabilities
    table[list(log.labels.states)] = rows
    return table


def real(name, table, n=5000, seed=1):
    """Discounted reward and cost, and undiscounted, of n episodes in the environment: means and standard errors."""
    draws = np.random.default_rng(seed)
    rows = rollout(world(name), Policy(table).act, draws, n_episodes=n, time_limit=LONG)
    return [(one.mean(), one.std() / np.sqrt(n)) for one in returns(rows, GAMMA)]


def assert_agree(found, seen):
    """Estimates and real rollouts are within three joint standard errors of each other."""
    figures = [(one.value, one.error) for one in (found.reward, found.constraints[0])]
    for k, ((estimate, error), (mean, spread)) in enumerate(zip(figures, seen, strict=False)):
        # Of an accident that happens once in 10^4 episodes, 5,000 may show none: their spread is that of the estimate.
        spread = max(spread, np.sqrt(abs(estimate) / 5000)) if k % 2 else spread
        assert abs(estimate - mean) <= 3 * np.hypot(error, spread) + 1e-9


def test_the_tables_are_those_of_the_environments():
    made = {
        "FrozenLake": gymnasium.make("FrozenLake-v1", map_name="8x8", is_slippery=True),
        "CliffWalking": gymnasium.make("CliffWalking-v1", is_slippery=True),
    }
    for name, env in made.items():
        table, rng = world(name), np.random.default_rng(0)
        s, _ = env.reset(seed=0)
        for _ in range(2000):
            a = int(rng.integers(env.action_space.n))
            after, r, end, cut, _ = env.step(a)
            p = np.diff(table.cdf[s, a], prepend=0.0)
            same = (table.after[s, a] == after) & (table.reward[s, a] == r) & (table.ends[s, a] == end) & (p > 0)
            assert same.any()
            s = env.reset()[0] if end or cut else after


def test_a_log_goes_in_as_it_is(name, log):
    table = behaviour_log(name)
    assert len(log) == 200_000
    assert log.n_ended == table["end"].sum()
    assert len(log.starts) == len(np.unique(table["episode"]))
    assert np.isin(log.labels.states, np.unique(table["s"])).sum() == len(np.unique(table["s"]))
    assert log.question.names == ("c",)


def test_the_plug_in_optimum_does_in_reality_what_its_model_says(name, log):
    best = exact.plug_in(log, GAMMA).solve()
    assert best.status == "optimal"
    found = logs.judged(best.policy, log, gamma=GAMMA)
    assert found.kept
    assert_agree(found, real(name, in_world(name, log, best.policy)))


def test_estimates_of_any_policy_agree_with_reality(name, log):
    """That of the log, a careful one, and one that breaks the limit."""
    rng = np.random.default_rng(2)
    n_actions = len(log.labels.actions)
    good = np.eye(n_actions)[[log.labels.action(int(good_actions(name)[s])) for s in log.labels.states]]
    behaviour = 0.5 * good + 0.5 / n_actions
    safe = exact.plug_in(log, GAMMA).solve().policy
    reckless = 0.8 * good + 0.2 * rng.dirichlet(np.ones(n_actions), len(good))
    verdicts = []
    for probabilities in (behaviour, safe, reckless):
        found = logs.judged(probabilities, log, gamma=GAMMA)
        # Pairs that the log does not show are worst-case, so that a policy which reaches them has no honest estimate.
        assert found.unseen < 1e-4
        assert_agree(found, real(name, in_world(name, log, probabilities)))
        verdicts.append(found.kept)
    assert verdicts == [False, True, False]


def test_a_log_and_a_discount_are_enough(name, log):
    """At least 99% of what the plug-in optimum earns, constraints kept, and the verdict is true in reality."""
    model = exact.plug_in(log, GAMMA)
    best = log.question.reward(model.solve().reward)
    result = learn(log, gamma=GAMMA, rng=0)
    assert result.success
    reward = result.evaluation.reward.value
    assert reward >= best - 0.01 * abs(best)
    assert_agree(result.evaluation, real(name, in_world(name, log, result.policy.probabilities)))


def test_what_comes_back_acts_in_the_environment(name, log, tmp_path):
    result = learn(log, gamma=GAMMA, rng=0, T=1000)
    result.policy.save(tmp_path / "policy.json")
    policy = Policy.load(tmp_path / "policy.json")
    state = log.labels.states[0]
    assert policy.act(state, rng=0) in log.labels.actions
    assert "probability" in repr(policy.explain(state))


def test_an_unkeepable_limit_is_never_called_kept(name):
    """A limit below what any policy can do on the plug-in model: costs of -1 do not exist."""
    table = behaviour_log(name)
    log = logs.from_table(
        table, state="s", action="a", reward="r", costs={"c": -0.001}, limits="total", gamma=GAMMA,
        next_state="next", episode="episode", time="t", terminated="end", truncated="cut",
    )  # fmt: skip
    result = learn(log, gamma=GAMMA, rng=0, T=1000)
    assert not result.success
    assert "BROKEN" in repr(result)
