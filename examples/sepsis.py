"""Sepsis in intensive care: is half of the vasopressors enough?

    python examples/sepsis.py [STAYS] [SHARE]

ICU-Sepsis (``pip install icu-sepsis``) is a model of 716 states of patients and 25 treatments (five levels of fluids
times five of vasopressors), made from the records of MIMIC-III, with the policy of the clinicians. STAYS are logged
under that policy. Wanted: the policy with the highest survival that gives at most a SHARE of the clinicians'
vasopressors. Because the model is known, the answer can be compared with the truth.
"""

import sys
import time
from importlib.metadata import distribution

import numpy as np

import dpdl

GAMMA = 0.99
DRUGS = ("vasopressors", "fluids")
DEATH, SURVIVAL = 713, 714


def load():
    """The true model, with the drugs as utilities, and the policy of the clinicians."""
    file = distribution("icu-sepsis").locate_file("icu_sepsis/envs/assets/dynamics.npz")
    with np.load(str(file)) as data:
        P, first, clinicians = data["tx_mat"][:DEATH], data["d_0"][:DEATH], data["expert_policy"][:DEATH]
    survival, P, n = P[:, :, SURVIVAL], P[:, :, :DEATH], DEATH
    levels = np.stack(np.divmod(np.arange(25), 5))[::-1] / 4  # an action is 5 * level of fluids + level of vasopressors
    model = dpdl.CMDP(
        P=P,
        r=survival,
        u=np.broadcast_to(levels[:, None, :], (2, n, 25)),
        gamma=GAMMA,
        rho0=first / first.sum(),
        ends=np.clip(1 - P.sum(axis=2), 0, 1),
    )
    return model, clinicians, survival


def record(model, policy, survival, n_stays, seed=0):
    """Log stays under a policy: columns of a table, one row for four hours of a stay."""
    rng = np.random.default_rng(seed)
    steps = np.append(model.P.toarray(), model.ends.reshape(-1, 1), axis=1).cumsum(axis=1)
    actions = policy.cumsum(axis=1)
    stay, state = np.arange(n_stays), rng.choice(len(policy), n_stays, p=model.rho0)
    rows, day = [], 0
    while len(stay):
        action = (actions[state] < rng.random((len(stay), 1))).sum(axis=1).clip(max=24)
        pair = 25 * state + action
        after = (steps[pair] < rng.random((len(stay), 1)) * steps[pair, -1:]).sum(axis=1)
        left = after == len(policy)
        chance = survival.ravel()[pair] / np.maximum(model.ends.ravel()[pair], 1e-300)
        alive = left & (rng.random(len(stay)) < chance)
        rows.append(np.stack([stay, np.full(len(stay), day), state, action, alive, left]))
        stay, state, day = stay[~left], after[~left], day + 1
    table = dict(zip(("stay", "time", "state", "action", "alive", "left"), np.concatenate(rows, axis=1), strict=True))
    fluids, vasopressors = np.divmod(table["action"], 5)
    return table | {"left": table["left"] == 1, "vasopressors": vasopressors / 4, "fluids": fluids / 4}


def main(n_stays=25_000, share=0.5):
    try:
        model, clinicians, survival = load()
    except ImportError:
        print("this example needs the package icu-sepsis: pip install icu-sepsis")
        return None
    own = model.evaluate(clinicians)
    log = dpdl.read_log(
        record(model, clinicians, survival, n_stays),
        state="state", action="action", reward="alive", costs=DRUGS,
        episode="stay", time="time", terminated="left",
    )  # fmt: skip
    limits = {"vasopressors": share * own.utilities[0]}
    began = time.perf_counter()
    answer = dpdl.safe_policy(log, gamma=GAMMA, limits=limits, limit_on="total", time_limit=60)
    print(f"{n_stays:,} stays, {len(log):,} rows, {time.perf_counter() - began:.1f} s\n\n{answer}\n")
    if answer.policy is None:
        return answer
    table = clinicians.copy()  # states that the log does not show: as the clinicians
    for k, state in enumerate(log.labels.states):
        table[state] = 0
        table[state, list(log.labels.actions)] = answer.policy[k]
    truth = model.evaluate(table)
    print(f"{'in the true model':<20} {'survival':>9}" + "".join(f" {drug:>13}" for drug in DRUGS))
    for name, row in (("clinicians", own), ("certified policy", truth)):
        shares = "".join(
            f" {u:>7.3f} {v:>4.0%}" for u, v in zip(row.utilities, row.utilities / own.utilities, strict=True)
        )
        print(f"{name:<20} {row.reward:>9.4f}{shares}")
    return answer


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *map(float, sys.argv[2:]))
