"""A Gymnasium environment: record a log, solve it, and follow the policy in the environment.

    python examples/gymnasium_log.py [FrozenLake | Taxi | CliffWalking] [STEPS]

The log comes from a policy that is good half of the time and random otherwise. What counts as a cost: a fall into a
hole, an illegal pick-up or drop-off, a fall from the cliff.
"""

import sys

import gymnasium
import numpy as np

import dpdl

GAMMA = 0.99
#: Name of the environment, arguments, what costs, and how much of it a policy may cause in discounted total.
WORLDS = {
    "FrozenLake": ("FrozenLake-v1", {"map_name": "4x4"}, lambda s, a, t, r, end: end and r == 0, 0.1),
    "Taxi": ("Taxi", {}, lambda s, a, t, r, end: r == -10, 0.2),
    "CliffWalking": ("CliffWalking-v1", {"is_slippery": True}, lambda s, a, t, r, end: r == -100, 0.05),
}


def make(name):
    """The environment, its cost and its limit; Taxi has different versions in different releases of Gymnasium."""
    spec, arguments, cost, limit = WORLDS[name]
    versions = [spec] if "-" in spec else [key for key in gymnasium.registry if key.startswith(f"{spec}-v")]
    return gymnasium.make(max(versions), max_episode_steps=1000, **arguments), cost, limit


def record(env, cost, n_steps, seed=0):
    """Follow a mixture of the best and a random policy: columns as D4RL and many others name them."""
    best = np.asarray(dpdl.CMDP.from_gymnasium(env, gamma=GAMMA).solve().policy).argmax(axis=1)
    rng, rows = np.random.default_rng(seed), []
    state, _ = env.reset(seed=seed)
    for _ in range(n_steps):
        action = int(best[state] if rng.random() < 0.5 else rng.integers(env.action_space.n))
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append(
            (state, action, reward, cost(state, action, after, reward, terminated), after, terminated, truncated)
        )
        state = env.reset()[0] if terminated or truncated else after
    rows[-1] = (*rows[-1][:-1], not rows[-1][5])  # the record stops here
    names = ("observations", "actions", "rewards", "costs", "next_observations", "terminals", "timeouts")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def main(name="FrozenLake", n_steps=50_000):
    env, cost, limit = make(name)
    np.savez(f"{name}.npz", **record(env, cost, n_steps))
    log = dpdl.read_log(f"{name}.npz", costs=["costs"])
    answer = dpdl.safe_policy(log, gamma=GAMMA, limits={"costs": limit}, limit_on="total")
    print(answer)
    if answer.policy is None:
        return answer, None
    # A state that the log never shows may come up here: take action 0 there, and count how often that was so.
    real = dpdl.rollout(env, answer.policy, 2_000, cost=cost, gamma=GAMMA, rng=0, otherwise=0)
    print(f"\nin the environment itself:\n{real}")
    return answer, real


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
