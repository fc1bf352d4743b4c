"""Half of the clinicians' vasopressors on the sepsis model: ``python bench/safety_sepsis.py [STAYS ...] [--logs L]``.

The model of the package icu-sepsis (716 states, 25 actions: five levels of fluids times five of vasopressors; reward 1
for survival) is logged by its own policy of clinicians. A step costs the level of vasopressors, 0 to 4. Asked: survival
at half of the clinicians' discounted intensity. Printed for each log: the answer, seconds, and the exact survival and
intensity of the certified policy on the true model over those of the clinicians.
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import icu_sepsis  # noqa: F401  registers the environment
import numpy as np

import dpdl
from dpdl.question import pose

GAMMA = 0.99


def model() -> tuple[np.ndarray, ...]:
    """Transitions (S, A, S), survival (S,), first states, policy of the clinicians; the last three states are ends."""
    env = gymnasium.make("Sepsis/ICU-Sepsis-v2").unwrapped
    P, r = np.asarray(env._tx_mat, dtype=float), np.asarray(env._r_mat, dtype=float)
    return P, r, np.asarray(env._d_0, dtype=float), np.asarray(env.expert_policy, dtype=float)


def values(P: np.ndarray, gain: np.ndarray, policy: np.ndarray, first: np.ndarray, ends: np.ndarray) -> float:
    """Discounted total of gains (S, A) under a policy; nothing follows in end states."""
    kernel = np.einsum("sa,sat->st", policy, P)
    kernel[:, ends] = 0.0
    kernel[ends] = 0.0
    step = (policy * gain).sum(axis=1)
    step[ends] = 0.0
    return float(first @ np.linalg.solve(np.eye(len(P)) - GAMMA * kernel, step))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stays", type=int, nargs="*", default=[10_000])
    parser.add_argument("--logs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    P, r, first, clinicians = model()
    S, A = P.shape[:2]
    ends = np.array([s for s in range(S) if P[s, :, s].min() > 1 - 1e-9])
    cost = np.tile(np.arange(A) % 5, (S, 1)).astype(float)
    reward = np.einsum("sat,t->sa", P, _survival(r, S))
    survival, intensity = (values(P, gain, clinicians, first, ends) for gain in (reward, cost))
    print(f"{S} states, {A} actions; clinicians: survival {survival:.4f}, intensity {intensity:.4f}, gamma {GAMMA}")
    for n in given.stays:
        for k in range(given.logs):
            log = draw(P, r, first, clinicians, ends, cost, n, np.random.default_rng([given.seed, n, k]))
            log = pose(log, GAMMA, {"vasopressors": intensity / 2}, "total")
            began = time.perf_counter()
            answer = dpdl.safe_policy(log, gamma=GAMMA)
            seconds = time.perf_counter() - began
            line = f"{n} stays, {len(log)} rows: {answer.status.name} in {seconds:.1f} s"
            if answer.policy is not None:
                table = np.asarray(answer.policy)
                survived, used = (values(P, gain, table, first, ends) for gain in (reward, cost))
                line += f"; survival {survived / survival:.4f}, intensity {used / intensity:.4f} of the clinicians'"
            print(line, flush=True)


def _survival(r: np.ndarray, S: int) -> np.ndarray:
    """The reward of reaching a state: that of any pair that leads there."""
    return r if r.shape == (S,) else r.reshape(-1, r.shape[-1]).max(axis=0)


def draw(P, r, first, policy, ends, cost, n, rng) -> dpdl.Dataset:
    """Follow the clinicians through `n` stays at once."""
    S, A = policy.shape
    is_end, won = np.isin(np.arange(S), ends), _survival(r, S)
    states = rng.choice(S, size=n, p=first / first.sum())
    stay, columns = np.arange(n), []
    while len(stay):
        s = states[stay]
        a = (policy[s].cumsum(axis=1) < rng.random((len(s), 1)) * policy[s].sum(axis=1, keepdims=True)).sum(axis=1)
        after = P[s, a].cumsum(axis=1)
        t = (after < rng.random((len(s), 1)) * after[:, -1:]).sum(axis=1)
        columns.append((stay, s, a, t, won[t], cost[s, a], is_end[t]))
        states[stay] = t
        stay = stay[~is_end[t]]
    stay, s, a, t, reward, costs, ended = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(stay, kind="stable")
    s, a, t, reward, costs, ended = (column[order] for column in (s, a, t, reward, costs, ended))
    return dpdl.Dataset(
        s, a, t, reward, costs={"vasopressors": costs}, n_states=S, n_actions=A, terminated=ended,
        truncated=np.zeros(len(s), dtype=bool),
    )  # fmt: skip


if __name__ == "__main__":
    main()
