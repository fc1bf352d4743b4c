"""Does `dpdl.check_model` find logs that no decision process made, and leave the others: ``python bench/fit.py PART``.

Parts (all by default):

    false      logs of decision processes (`fit_worlds.NULL`): the share that is rejected at level 1%, with a 95%
               interval; half with a policy in question that comes from elsewhere, half with one that is best on
               the plug-in model of the same log. The logs of a world are divided among its sizes
    power      logs that lack something (`fit_worlds.FAMILIES`, classic control in bins), by number of episodes: the
               share that is rejected, the median of the largest |z|, and which history has it
    certified  the same families with a limit on the cost: how many logs `dpdl.safe_policy` certifies although the
               simulated cost breaks the limit, with the check and without (accept_misfit=True); seconds of both
    sepsis     ICU-Sepsis (needs icu-sepsis): the log's own mean of 10,000 stays, what the model says, and the truth
    picture    residuals of a log whose days end by the clock, to fit.png
    seconds    10^6 rows, 16,000 pairs, one cost: CPU seconds of the check

Results depend on the arguments and not on --jobs; seconds do. `--quick` is a smaller run of everything.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes below share the cores already

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

import dpdl
import fit_worlds as worlds
from dpdl import Dataset, check_model, exact
from dpdl.question import pose
from safety import interval

LEVEL = 0.01
DELTA = 0.05


def false_alarm(item: tuple[str, float, int]) -> tuple[bool, float, float]:
    """Return whether a log of a decision process is rejected, its rows a pair, and seconds."""
    name, size, number = item
    rng = np.random.default_rng([1, number, round(100 * size), *name.encode()])
    log, gamma, policy = worlds.NULL[name][0](number, size, rng)
    if number % 2:
        start = {} if log.initial_counts is not None else {"rho0": np.full(log.n_states, 1 / log.n_states)}
        model = exact.plug_in(pose(log, gamma), gamma, **start)
        P, V = model.P, np.zeros(log.n_states)
        for _ in range(50):
            Q = model.r + gamma * (P @ V).reshape(model.r.shape)
            V = Q.max(axis=1)
        policy = np.eye(log.n_actions)[Q.argmax(axis=1)]
    began = time.process_time()
    found = check_model(log, gamma=gamma, policy=policy, level=LEVEL)
    return found.rejected, len(log) / len(log.pairs), time.process_time() - began


def false(logs: int, jobs: int, chosen: Iterable[str]) -> None:
    """Print the shares of false alarms."""
    print(f"false alarms at level {LEVEL:.0%}, {logs} logs a world")
    print(f"{'world':<14}{'size':>7}{'rows a pair':>13}{'rejected':>10}{'95% interval':>18}{'seconds':>9}")
    for name in chosen:
        sizes, found = worlds.NULL[name][1], []
        for size in sizes:
            part = list(spread(false_alarm, [(name, size, k) for k in range(-(-logs // len(sizes)))], jobs))
            found += part
            line(name, f"{size:g}", part)
        line(name, "all", found)


def line(name: str, size: str, found: list[tuple[bool, float, float]]) -> None:
    """Print the shares of one world."""
    rejected, per_pair, seconds = (np.array(column) for column in zip(*found, strict=True))
    low, high = interval(int(rejected.sum()), len(found)) or (0, 0)
    bounds = f"[{low:.1%}, {high:.1%}]"
    figures = f"{per_pair.mean():>13.1f}{rejected.mean():>10.1%}{bounds:>18}{seconds.mean():>9.3f}"
    print(f"{name:<14}{size:>7}{figures}", flush=True)


def misfit(item: tuple[str, int, int]) -> tuple[bool, float, str]:
    """Return whether a log that lacks something is rejected, the largest |z| and its history."""
    name, n, number = item
    rng = np.random.default_rng([2, number, n, *name.encode()])
    if name in worlds.CONTROL:
        log, gamma, policy = worlds.CONTROL[name].log(n, rng), worlds.GAMMA, None
    else:
        log, gamma, policy = worlds.World(20, name, rng).drawn(n, rng)
    found = check_model(log, gamma=gamma, policy=policy, level=LEVEL)
    z, history = max(((abs(test.z), test.history) for test in found.tests), default=(0.0, "nothing to test"))
    return found.rejected, z, history


def power(logs: int, jobs: int) -> None:
    """Print the shares of logs that are found out."""
    print(f"logs that lack something, rejected at level {LEVEL:.0%}, {logs} logs a line")
    print(f"{'family':<20}{'episodes':>9}{'rejected':>10}{'median |z|':>12}  most often")
    for name in (*worlds.FAMILIES, *worlds.CONTROL):
        for n in (50, 200, 1000) if name in worlds.CONTROL else (100, 500, 2000):
            if name in worlds.CONTROL and n > worlds.CONTROL[name].pool:
                continue
            found = list(spread(misfit, [(name, n, k) for k in range(logs)], jobs))
            rejected, z, histories = zip(*found, strict=True)
            most = Counter(histories).most_common(1)[0][0]
            print(f"{name:<20}{n:>9}{np.mean(rejected):>10.0%}{np.median(z):>12.1f}  {most}", flush=True)


def certified(item: tuple[str, int, int]) -> dict[str, Any]:
    """Answer a log with the check and without it, and simulate what the policies really cost."""
    name, n, number = item
    rng = np.random.default_rng([3, number, n, *name.encode()])
    world = worlds.World(20, name, rng)
    limit = 0.7 * world.cost(None, rng)[0]
    log, found = world.log(n, rng), {}
    for key, accept in (("checked", False), ("accepted", True)):
        began = time.process_time()
        question = {"gamma": world.gamma, "limits": {"cost 0": limit}, "limit_on": "total", "delta": DELTA}
        answer = dpdl.safe_policy(log, **question, accept_misfit=accept, progress=False)
        found[f"{key} seconds"] = time.process_time() - began
        found[key], found[f"{key} broken"] = answer.status.name, False
        if answer.policy is not None:
            mean, error = world.cost(np.asarray(answer.policy), np.random.default_rng(number))
            found[f"{key} broken"] = mean - 2 * error > limit
            policy = np.asarray(answer.policy)
            began = time.process_time()
            check_model(log, gamma=world.gamma, policy=policy)
            found["check seconds"] = time.process_time() - began
    return found


def broken(logs: int, jobs: int) -> None:
    """Print how often a broken limit is certified."""
    print(f"limit 0.7 times the cost of the log's own policy, delta = {DELTA:.0%}, {logs} logs a line")
    head = f"{'family':<12}{'episodes':>9}{'certified, broken:':>20}{'without the check':>20}{'MISFIT':>8}"
    print(f"{head}{'s answer':>10}{'s check':>9}")
    for name in ("none", *worlds.FAMILIES):
        for n in (200, 1000):
            found = list(spread(certified, [(name, n, k) for k in range(logs)], jobs))
            cells = [
                f"{sum(one[key] == 'CERTIFIED' for one in found)}, {sum(one[f'{key} broken'] for one in found)}"
                for key in ("checked", "accepted")
            ]
            misfits = sum(one["checked"] == "MISFIT" for one in found)
            answer = np.mean([one["checked seconds"] for one in found])
            checks = [one["check seconds"] for one in found if "check seconds" in one]
            seconds = f"{answer:>10.2f}{np.mean(checks) if checks else 0:>9.2f}"
            print(f"{name:<12}{n:>9}{cells[0]:>20}{cells[1]:>20}{misfits:>8}{seconds}", flush=True)


def sepsis(n: int) -> None:
    """Print the figures of the log's own policy on ICU-Sepsis: the log's mean, the model's estimate and the truth."""
    import gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import icu_sepsis  # noqa: F401 registers the environment

        env: Any = gymnasium.make("Sepsis/ICU-Sepsis-v2").unwrapped

    P, r, rho0, policy = (np.asarray(x) for x in (env._tx_mat, env._r_mat, env._d_0, env._expert_policy))
    S, A = policy.shape
    P = P.reshape(S, A, S)
    reward = (r.reshape(S, A, S) * P).sum(axis=2) if r.size == P.size else np.broadcast_to(r.reshape(S, -1), (S, A))
    terminal = np.array([env._is_terminal_state(s) for s in range(S)])
    rng, alive, parts = np.random.default_rng(0), np.arange(n), []
    state = worlds._pick(np.cumsum(rho0)[None], np.zeros(n, int), rng)
    actions, after = np.cumsum(policy, axis=1), np.cumsum(P, axis=2).reshape(-1, S)
    gains = r.reshape(S, A, S) if r.size == P.size else None
    while len(alive):
        s = state[alive]
        a = worlds._pick(actions, s, rng)
        reached = worlds._pick(after, s * A + a, rng)
        gain = reward[s, a] if gains is None else gains[s, a, reached]
        ended = terminal[reached]
        parts.append((alive, s, a, reached, gain, np.zeros((len(s), 0)), ended, np.zeros(len(s), bool)))
        state[alive] = reached
        alive = alive[~ended]
    log = worlds._log(worlds._in_order(parts), S, A)
    for gamma in (0.99, 0.999999):
        goes = P * ~terminal[None, None, :]
        mean = (policy[:, :, None] * goes).sum(axis=1)
        V = np.linalg.solve(np.eye(S) - gamma * mean * ~terminal[:, None], (policy * reward).sum(axis=1) * ~terminal)
        found = check_model(log, gamma=gamma)
        own = found.totals[0]
        print(f"ICU-Sepsis, {n:,} stays, {len(log):,} rows, discount {gamma:g}")
        print(f"  {own}")
        print(f"  by the model {found.model_totals[0]:.4f}; the truth {rho0 @ V:.4f}; {found.status}")


def picture(path: str) -> None:
    """Draw the residuals of a log whose days end by the clock."""
    import matplotlib

    matplotlib.use("Agg")
    rng = np.random.default_rng(0)
    log = worlds.World(20, "clock", rng).log(300, rng)
    found = check_model(log, gamma=worlds.GAMMA)
    print(found)
    found.plot()[0, 0].figure.savefig(path, dpi=80)


def seconds() -> None:
    """Print the CPU seconds of the check of a large log."""
    rng = np.random.default_rng(0)
    n_states, n_actions, n = 2000, 8, 10**6
    s_next, ended = rng.integers(0, n_states, n), rng.random(n) < 0.05
    first = np.concatenate([[True], ended[:-1]])
    s = np.where(first, rng.integers(0, n_states, n), np.roll(s_next, 1))
    a, c = rng.integers(0, n_actions, n), (rng.random(n) < 0.2).astype(float)
    sizes = {"n_states": n_states, "n_actions": n_actions}
    log = Dataset(
        s, a, s_next, rng.random(n), costs={"cost": c}, terminated=ended, truncated=np.zeros(n, bool), **sizes
    )
    for name, policy in (("the log's policy", None), ("and one in question", np.full((n_states, n_actions), 0.125))):
        began = time.process_time()
        found = check_model(log, gamma=0.95, policy=policy)
        print(f"{n:,} rows, {len(log.pairs):,} pairs, {name}: {time.process_time() - began:.1f} s CPU, {found.status}")


def spread(function: Callable[[Any], Any], items: Iterable[Any], jobs: int) -> Iterator[Any]:
    """Apply to every item, in processes if there are to be several; results in order."""
    if jobs == 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, items, chunksize=10)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("false", "power", "certified", "sepsis", "picture", "seconds")
    parser.add_argument("part", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument(
        "--logs", type=int, help="logs of a world (1,000 of false) or a line (100 of power, 40 of certified)"
    )
    parser.add_argument("--worlds", nargs="+", choices=list(worlds.NULL), metavar="WORLD", help="of false")
    parser.add_argument("--quick", action="store_true", help="20, 10 and 4 logs instead")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    given = parser.parse_args(arguments)
    for part in given.part:
        if part not in parts:
            parser.error(f"PART must be of {', '.join(parts)}, got {part!r}")
    logs = {"false": 20, "power": 10, "certified": 4} if given.quick else {"false": 1000, "power": 100, "certified": 40}
    for part in given.part or parts:
        n = given.logs or logs.get(part, 0)
        if part == "false":
            false(n, given.jobs, given.worlds or worlds.NULL)
        elif part == "power":
            power(n, given.jobs)
        elif part == "certified":
            broken(n, given.jobs)
        elif part == "sepsis":
            sepsis(10_000)
        elif part == "picture":
            picture("fit.png")
        else:
            seconds()
        print()


if __name__ == "__main__":
    main()
