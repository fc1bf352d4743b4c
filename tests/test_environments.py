"""Gymnasium: models made of tables are the environments, and rollouts have the law of the environments."""

import pickle

import gymnasium
import numpy as np
import pytest

import logs
from dpdl import CMDP, Policy, exact, rollout
from dpdl.data.labels import Labels
from real_logs import GAMMA, LIMITS, behaviour_log, good_actions, world

MAKE = {
    "FrozenLake": {"id": "FrozenLake-v1", "map_name": "8x8"},
    "Taxi": {"id": next(spec for spec in ("Taxi-v4", "Taxi-v3") if spec in gymnasium.registry)},
    "CliffWalking": {"id": "CliffWalking-v1", "is_slippery": True},
}
COSTS = {
    "FrozenLake": lambda s, a, s_next, reward, terminated: terminated and reward == 0,
    "Taxi": lambda s, a, s_next, reward, terminated: reward == -10,
    "CliffWalking": lambda s, a, s_next, reward, terminated: reward == -100,
}

#: Episodes are followed until what is cut off is worth less than 1e-13.
LONG = 3000


def make(name, steps=LONG):
    return gymnasium.make(**MAKE[name], max_episode_steps=steps)


def model(name, **options):
    arguments = {"gamma": GAMMA, "cost": COSTS[name], "limits": LIMITS[name], "limit_on": "total"} | options
    return CMDP.from_gymnasium(make(name), **arguments)


@pytest.fixture(params=MAKE)
def name(request):
    return request.param


def test_the_model_is_the_table(name):
    """Compared with another reading of the same table, entry by entry."""
    found, env = model(name), world(name)
    S, A, K = env.cdf.shape
    p = np.diff(env.cdf, axis=2, prepend=0.0)
    P, ends, reward, cost = np.zeros((S, A, S)), np.zeros((S, A)), np.zeros((S, A)), np.zeros((S, A))
    for s in range(S):
        for a in range(A):
            for k in range(K):
                if env.ends[s, a, k]:
                    ends[s, a] += p[s, a, k]
                else:
                    P[s, a, env.after[s, a, k]] += p[s, a, k]
                reward[s, a] += p[s, a, k] * env.reward[s, a, k]
                cost[s, a] += p[s, a, k] * env.cost[s, a, k]
    assert abs(found.P.toarray().reshape(S, A, S) - P).max() <= 1e-12
    assert found.ends == pytest.approx(ends, abs=1e-12)
    assert found.rho0 == pytest.approx(env.initial, abs=1e-12)
    assert found.question.reward_scale * found.r == pytest.approx(reward, abs=1e-12)
    rate = LIMITS[name] * (1 - GAMMA)
    slack = rate * (1 - ends) + LIMITS[name] * ends - cost  # an episode that ends keeps what is left of its limit
    assert found.question.scales[0] * found.u[0] == pytest.approx(slack, abs=1e-12)
    assert abs(found.r).max() == pytest.approx(1)


def test_values_of_the_model_are_those_of_the_table(name):
    """An oracle that knows nothing of utilities or units: iterate the Bellman equations of reward and of cost."""
    env, found = world(name), model(name)
    S, A, _ = env.cdf.shape
    p = np.diff(env.cdf, axis=2, prepend=0.0)
    pi = 0.9 * np.eye(A)[good_actions(name)] + 0.1 / A
    values = []
    for gain in (env.reward, env.cost):
        V = np.zeros(S)
        for _ in range(4000):
            V = (pi * (p * (gain + GAMMA * np.where(env.ends, 0, V[env.after]))).sum(axis=2)).sum(axis=1)
        values.append(env.initial @ V)
    answer = found.evaluate(pi)
    assert found.question.reward(answer.reward) == pytest.approx(values[0], rel=1e-9)
    assert found.question.costs(answer.utilities).tolist() == pytest.approx([values[1]], rel=1e-7, abs=1e-10)


def test_units_stay_with_the_model_and_its_logs():
    lake = model("FrozenLake")
    again = pickle.loads(pickle.dumps(lake))
    assert again.question == lake.question
    assert lake.unconstrained().question.reward_scale == lake.question.reward_scale
    assert pickle.loads(pickle.dumps(CMDP([[[1.0]]], [[0.0]], [[[0.0]]], 0.5, [1.0]))).question is None
    policy = np.full((64, 4), 0.25)
    log = lake.rollout(100_000, policy, rng=0)
    found, answer = logs.judged(policy, log, gamma=GAMMA), lake.evaluate(policy)
    true = answer.reward, answer.utilities[0]  # a log that is drawn from a model has its scale
    for one, value in zip((found.reward, found.constraints[0]), true, strict=True):
        assert abs(one.value - value) <= 4 * one.error


def test_several_costs_and_normalised_limits():
    lake = CMDP.from_gymnasium(
        make("FrozenLake"), gamma=0.9, limits=[0.5, 0.01], limit_on="average",
        cost=lambda s, a, s_next, reward, terminated: [1.0, float(s_next == 0)],
    )  # fmt: skip
    assert lake.n_utilities == 2
    step = lake.evaluate(np.full((64, 4), 0.25))
    per_step = lake.question.costs(step.utilities)
    assert per_step[0] == pytest.approx(0.1 * step.occupancy.sum(), rel=1e-9)  # a cost of 1 in every step
    assert CMDP.from_gymnasium(make("FrozenLake"), gamma=0.9).n_utilities == 0


def test_what_cannot_be_a_model():
    with pytest.raises(ValueError, match="CartPoleEnv has no transition table P"):
        CMDP.from_gymnasium(gymnasium.make("CartPole-v1"), gamma=0.9)
    with pytest.raises(TypeError, match="cost, limits and limit_on go together"):
        CMDP.from_gymnasium(make("Taxi"), gamma=0.9, cost=COSTS["Taxi"])
    with pytest.raises(ValueError, match=r"limits must have shape \(1,\), got \(2,\)"):
        model("Taxi", limits=[1, 2])
    with pytest.raises(ValueError, match=r"cost\(0, 0, .* = nan must be finite"):
        model("Taxi", cost=lambda *_: np.nan)
    with pytest.raises(ValueError, match=r"cost must have shape"):
        model("Taxi", cost=lambda s, *_: [0.0] * (1 + s % 2))
    if MAKE["Taxi"]["id"] == "Taxi-v4":
        with pytest.raises(ValueError, match="fickle_passenger"):
            CMDP.from_gymnasium(gymnasium.make("Taxi-v4", fickle_passenger=True), gamma=0.9)

    class Odd:
        unwrapped = None
        P = {0: {0: [(0.5, 0, 0.0, False)]}}  # noqa: RUF012

    Odd.unwrapped = Odd
    with pytest.raises(ValueError, match=r"P\[0\]\[0\] must sum to 1, got 0\.5"):
        CMDP.from_gymnasium(Odd, gamma=0.9)
    Odd.P = {0: {0: [(1.0, 0, 0.0, False)]}, 1: {}}
    with pytest.raises(ValueError, match=r"P\[1\] must have 1 actions as P\[0\] has, got 0"):
        CMDP.from_gymnasium(Odd, gamma=0.9)
    Odd.P = {0: {0: [(1.0, 0, 0.0, False)]}}
    with pytest.raises(TypeError, match="pass rho0="):
        CMDP.from_gymnasium(Odd, gamma=0.9)
    assert CMDP.from_gymnasium(Odd, gamma=0.9, rho0=[1.0]).ends is None


@pytest.mark.parametrize("terminated", [True, False])
def test_probabilities_whose_rounded_sum_exceeds_one(terminated):
    class Odd:
        unwrapped = None
        P = {0: {0: [(p, 0, 1.0, terminated) for p in (0.2, 0.4, 0.3, 0.1)]}}  # noqa: RUF012

    Odd.unwrapped = Odd
    assert sum(p for p, *_ in Odd.P[0][0]) > 1
    found = CMDP.from_gymnasium(Odd, gamma=0.5, rho0=[1.0])
    assert found.evaluate([[1.0]]).reward == pytest.approx(1.0 if terminated else 2.0)


def test_rollouts_agree_with_the_exact_model(name):
    """200 episodes: reward and cost within four standard errors of the exact values, discounted and not."""
    n_actions = world(name).cdf.shape[1]
    pi = 0.95 * np.eye(n_actions)[good_actions(name)] + 0.05 / n_actions
    seen = rollout(make(name), pi, 200, gamma=GAMMA, cost=COSTS[name], rng=1)
    assert seen.n_truncated == 0
    found = model(name)
    answer = found.evaluate(pi)
    assert abs(seen.reward.value - found.question.reward(answer.reward)) <= 4 * seen.reward.error
    assert abs(seen.costs[0].value - found.question.costs(answer.utilities)[0]) <= 4 * seen.costs[0].error
    slow = model(name, gamma=1 - 1e-9, limits=1e3)  # discount without effect: sums per episode
    answer = slow.evaluate(pi)
    assert abs(seen.reward.per_episode - slow.question.reward(answer.reward)) <= 4 * seen.reward.per_episode_error
    assert (
        abs(seen.costs[0].per_episode - slow.question.costs(answer.utilities)[0]) <= 4 * seen.costs[0].per_episode_error
    )


def test_a_learned_policy_rolls_out_by_its_labels():
    """Labels in another order than the environment's, and states that the log never saw."""
    env = make("FrozenLake", 100)
    actions = good_actions("FrozenLake")
    order = np.random.default_rng(0).permutation(64)
    policy = Policy(np.eye(4)[3 - actions[order]], Labels(order.tolist(), [3, 2, 1, 0]))
    whole = rollout(env, np.eye(4)[actions], 200, gamma=GAMMA, rng=4)
    assert rollout(env, policy, 200, gamma=GAMMA, rng=5).reward.value == pytest.approx(
        whole.reward.value, abs=6 * whole.reward.error
    )
    part = Policy(np.eye(4)[actions[:3]], Labels([0, 1, 2], [0, 1, 2, 3]))
    with pytest.raises(ValueError, match=r"there is no state \d+.*reached in step \d+\); pass otherwise="):
        rollout(env, part, 5, gamma=GAMMA, rng=4)
    assert rollout(env, part, 5, gamma=GAMMA, rng=4, otherwise=0).n_unknown > 0
    with pytest.raises(ValueError, match="state must be between 0 and 0"):
        rollout(env, [[1.0, 0, 0, 0]], 50, gamma=GAMMA, rng=0)


def test_a_log_teaches_a_policy_that_does_in_the_environment_what_the_log_says(name):
    """From the table of a log to 200 episodes: within three joint standard errors of the estimates."""
    log = logs.from_table(
        behaviour_log(name), state="s", action="a", reward="r", costs={"c": LIMITS[name]}, limits="total",
        gamma=GAMMA, next_state="next", episode="episode", time="t", terminated="end", truncated="cut",
    )  # fmt: skip
    policy = Policy(exact.plug_in(log, GAMMA).solve().policy, log.labels)
    seen = rollout(make(name), policy, 200, gamma=GAMMA, cost=COSTS[name], rng=1, otherwise=0)
    found = logs.judged(policy, log, gamma=GAMMA)
    assert found.kept
    for one, other in zip((found.reward, *found.constraints), (seen.reward, *seen.costs), strict=True):
        assert abs(one.value - other.value) <= 3 * np.hypot(one.error, other.error) + 1e-9


def test_rollouts_repeat_with_the_seed(name):
    n_states, n_actions = world(name).cdf.shape[:2]
    pi = np.full((n_states, n_actions), 1 / n_actions)
    options = {"gamma": 0.9, "cost": COSTS[name], "rng": 5}
    assert rollout(make(name, 20), pi, 50, **options) == rollout(make(name, 20), pi, 50, **options)


def test_time_limits_of_the_environment_and_of_the_call():
    env = make("FrozenLake", 50)
    assert rollout(gymnasium.wrappers.TimeLimit(env, 5), np.full((64, 4), 0.25), 100, gamma=0.9, rng=0).n_steps <= 500
    single = rollout(env, np.full((64, 4), 0.25), 1, gamma=0.9, rng=0, max_steps=3)
    assert (single.n_steps, single.n_truncated) == (3, 1)
    assert np.isnan(single.reward.error)


class Slope(gymnasium.Env):
    """A position in [0, 1]; action 1 adds 0.3, and the episode ends beyond 1. The infos have a cost."""

    observation_space = gymnasium.spaces.Box(-1.0, 2.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 0.05
        return self._seen(), {}

    def _seen(self):
        return np.array([self.x, 1 - self.x], dtype=np.float32)

    def step(self, action):
        self.x += 0.3 * action
        return self._seen(), -1.0, self.x > 1, False, {"cost": 2.0 * action}


def test_a_discretised_policy_acts_on_raw_observations():
    """A log of a continuous environment, as a table; the policy that it teaches acts in the environment."""
    rng, env = np.random.default_rng(0), Slope()
    rows = {name: [] for name in ("x", "y", "a", "r", "x2", "y2", "end", "stop")}
    for _ in range(60):
        seen, _ = env.reset()
        for t in range(20):
            action = int(rng.integers(2))
            after, reward, end, _, _ = env.step(action)
            row = (*seen, action, reward, *after, end, t == 19 and not end)
            for name, value in zip(rows, row, strict=True):
                rows[name].append(value)
            seen = after
            if end:
                break
    log = logs.from_table(
        {name: np.array(column) for name, column in rows.items()}, state=["x", "y"], next_state=["x2", "y2"],
        action="a", reward="r", terminated="end", truncated="stop", discretizer={"method": "uniform", "bins": [4, 1]},
    )  # fmt: skip
    assert log.labels.discretizer.n_states == 4
    go = Policy(np.tile([0.0, 1.0], (4, 1)), log.labels)
    found = rollout(env, go, 3, gamma=0.5, cost="cost", rng=0)
    assert (found.reward.per_episode, found.costs[0].per_episode, found.n_steps) == (-4.0, 8.0, 12)
    assert found.reward.value == -(1 + 0.5 + 0.25 + 0.125)
    assert "cost 0: 3.75 +- 0 discounted, 8 +- 0 per episode" in str(found)
    with pytest.raises(ValueError, match="the infos of the environment have no 'price'"):
        rollout(env, go, 3, gamma=0.5, cost="price")


@pytest.mark.parametrize(
    ("options", "match"),
    [({"episodes": 0}, "episodes must be"), ({"gamma": 1.5}, "gamma must be"), ({"max_steps": 0}, "max_steps must be")],
)
def test_bad_arguments(options, match):
    with pytest.raises(ValueError, match=match):
        rollout(make("FrozenLake"), np.full((64, 4), 0.25), **{"episodes": 2, "gamma": 0.9} | options)
    with pytest.raises(TypeError, match="env must be a Gymnasium environment, got str"):
        rollout("FrozenLake-v1", np.full((64, 4), 0.25), 2, gamma=0.9)
    with pytest.raises(TypeError, match="cost must be a function, a name in the infos or None"):
        rollout(make("FrozenLake"), np.full((64, 4), 0.25), 2, gamma=0.9, cost=3)
