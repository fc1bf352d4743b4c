"""Does `dpdl.check_model` find logs that no decision process made, and leave the others: ``python bench/fit.py PART``.

Parts (all by default):

    false      logs of decision processes (`fit_worlds.NULL`): the share that is rejected at level 1%, with a 95%
               interval; half with a random policy in question, half with one that is best on the plug-in model of the
               same log. The logs of a world are divided among its sizes
    power      logs that lack something (`fit_worlds.FAMILIES`, classic control in bins), by number of episodes: the
               share that is rejected, the median of the largest |z|, and which history has it most often
    certified  the same families with a limit on the cost: how many logs `dpdl.safe_policy` certifies although the true
               cost (exact, or of played episodes, beyond two standard errors) breaks the limit, with the check and
               without (accept_misfit=True; the answers differ in nothing else); CPU seconds of the answer, and of the
               check in it
    sepsis     ICU-Sepsis (needs icu-sepsis): the log's own mean of 10,000 stays, what the model says, and the truth
    picture    residuals of a log whose days end by the clock, to fit.png
    seconds    10^6 rows, 16,000 pairs, one cost: CPU seconds of the check

`--results FILE` keeps the results, a line of JSON each: what is there is not computed again, so that a run can be
stopped and continued. `--quick` is a smaller run of everything.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dpdl
import fit_worlds as worlds
from dpdl import Dataset, check_model, exact
from dpdl.question import pose
from safety import interval

LEVEL = 0.01
DELTA = 0.05
#: Logs of a world (false) or of a line (the others), and of --quick.
LOGS = {"false": (1000, 20), "power": (100, 10), "certified": (60, 4)}
#: Episodes of the logs of families, by part.
EPISODES = {"power": (100, 500, 2000), "certified": (200, 1000)}
Figures = dict[str, Any]


class Results:
    """Results of lines, in a file if there is one."""

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else Path(path)
        lines = self.path.read_text().splitlines() if self.path is not None and self.path.exists() else []
        self.known = {tuple(key): figures for key, figures in map(json.loads, lines)}

    def get(self, function: Callable[..., list[Any]], part: str, name: str, size: float, logs: int) -> list[Any]:
        """Return function(name, size, number) for each log of a line, from the file if it is there."""
        key = (part, name, size, logs)
        if key not in self.known:
            self.known[key] = [function(name, size, number) for number in range(logs)]
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([key, self.known[key]]) + "\n")
        return list(zip(*self.known[key], strict=True))


def false_alarm(name: str, size: float, number: int) -> list[Any]:
    """Return whether a log of a decision process is rejected, its rows a pair, and seconds."""
    rng = np.random.default_rng([1, number, round(100 * size), *name.encode()])
    log, gamma, policy = worlds.NULL[name][0](number, size, rng)
    if number % 2:
        policy = _best(log, gamma)
    began = time.process_time()
    check = check_model(log, gamma=gamma, policy=policy, level=LEVEL)
    return [check.rejected, len(log) / len(log.pairs), time.process_time() - began]


def _best(log: Dataset, gamma: float) -> Any:
    """Return a policy that is nearly best on the plug-in model of a log, by fifty sweeps."""
    start = {} if log.initial_counts is not None else {"rho0": np.full(log.n_states, 1 / log.n_states)}
    model = exact.plug_in(pose(log, gamma), gamma, **start)
    V = np.zeros(log.n_states)
    for _ in range(50):
        Q = model.r + gamma * (model.P @ V).reshape(model.r.shape)
        V = Q.max(axis=1)
    return np.eye(log.n_actions)[Q.argmax(axis=1)]


def false(results: Results, logs: int, chosen: Any) -> None:
    """Print the shares of false alarms."""
    print(f"false alarms at level {LEVEL:.0%}, {logs} logs a world")
    print(f"{'world':<14}{'size':>7}{'rows a pair':>13}{'logs':>7}{'rejected':>10}{'95% interval':>18}{'seconds':>9}")
    for name in chosen:
        sizes, whole = worlds.NULL[name][1], []
        for size in sizes:
            columns = results.get(false_alarm, "false", name, size, -(-logs // len(sizes)))
            whole.append(columns)
            _line(name, f"{size:g}", columns)
        _line(name, "all", [sum(parts, ()) for parts in zip(*whole, strict=True)])


def _line(name: str, size: str, columns: list[Any]) -> None:
    rejected, per_pair, seconds = map(np.array, columns)
    low, high = interval(int(rejected.sum()), len(rejected)) or (0, 0)
    bounds = f"[{low:.1%}, {high:.1%}]"
    figures = f"{per_pair.mean():>13.1f}{len(rejected):>7}{rejected.mean():>10.1%}{bounds:>18}{seconds.mean():>9.3f}"
    print(f"{name:<14}{size:>7}{figures}", flush=True)


def misfit(name: str, n: int, number: int) -> list[Any]:
    """Return whether a log that lacks something is rejected, the largest |z| and its history."""
    rng = np.random.default_rng([2, number, n, *name.encode()])
    if name in worlds.CONTROL:
        log, gamma, policy = worlds.CONTROL[name].log(n, rng), worlds.GAMMA, None
    else:
        log, gamma, policy = worlds.World(20, name, rng).drawn(n, rng)
    check = check_model(log, gamma=gamma, policy=policy, level=LEVEL)
    z, history = max(((abs(test.z), test.history) for test in check.tests), default=(0.0, "nothing to test"))
    return [check.rejected, z, history]


def power(results: Results, logs: int) -> None:
    """Print the shares of logs that are found out."""
    print(f"logs that lack something, rejected at level {LEVEL:.0%}, {logs} logs a line")
    print(f"{'family':<20}{'episodes':>9}{'rejected':>10}{'median |z|':>12}  most often")
    for name in (*worlds.FAMILIES, *worlds.CONTROL):
        for n in worlds.CONTROL[name].sizes if name in worlds.CONTROL else EPISODES["power"]:
            rejected, z, histories = results.get(misfit, "power", name, n, logs)
            most = Counter(histories).most_common(1)[0][0]
            print(f"{name:<20}{n:>9}{np.mean(rejected):>10.0%}{np.median(z):>12.1f}  {most}", flush=True)


def answered(name: str, n: int, number: int) -> list[Any]:
    """Return the status without the check, whether the limit is broken, whether the log is rejected, and seconds."""
    rng = np.random.default_rng([3, number, n, *name.encode()])
    control = worlds.CONTROL.get(name)
    world: Any = worlds.World(20, name, rng) if control is None else control
    log = world.log(n, rng)
    limit = 0.7 * (world.cost(None) if control is None else control.true_cost(None)[0])
    question = {"gamma": worlds.GAMMA, "limits": {"cost 0": limit}, "limit_on": "total", "delta": DELTA}
    began = time.process_time()
    answer = dpdl.safe_policy(log, **question, accept_misfit=True, progress=False)
    middle, broken = time.process_time(), False
    check_model(log, gamma=worlds.GAMMA, policy=answer.policy)
    seconds = middle - began, time.process_time() - middle
    if answer.policy is not None:
        policy = np.asarray(answer.policy)
        mean, error = (world.cost(policy), 0.0) if control is None else control.true_cost(policy)
        broken = bool(mean - 2 * error > limit * (1 + 1e-9))
    return [answer.status.name, broken, answer.certificate.fit.rejected, *seconds]


def certified(results: Results, logs: int) -> None:
    """Print how often a broken limit is certified."""
    print(f"limit 0.7 times the cost of the log's own policy, delta = {DELTA:.0%}, {logs} logs a line")
    print(f"{'':<29}{'with the check':^20}{'without':^20}")
    print(f"{'family':<20}{'episodes':>9}{2 * 'certified,broken'.rjust(20)}{'MISFIT':>8}{'s answer':>10}{'s check':>9}")
    for name in ("none", *worlds.FAMILIES, "CartPole 6 bins", "MountainCar 6 bins", "Acrobot 3 bins"):
        for n in worlds.CONTROL[name].sizes[1:2] if name in worlds.CONTROL else EPISODES["certified"]:
            columns = results.get(answered, "certified", name, n, logs)
            status, broken, rejected, answer, check = map(np.array, columns)
            all_certified = status == "CERTIFIED"
            cells = [
                f"{(all_certified & among).sum()}, {(broken & among).sum()}" for among in (~rejected, rejected | True)
            ]
            figures = f"{cells[0]:>20}{cells[1]:>20}{rejected.sum():>8}{answer.mean():>10.2f}{check.mean():>9.3f}"
            print(f"{name:<20}{n:>9}{figures}", flush=True)


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
    state = worlds.draws(rho0[None])(np.zeros(n, int), rng)
    actions, after = worlds.draws(policy), worlds.draws(P.reshape(-1, S))
    gains = r.reshape(S, A, S) if r.size == P.size else None
    while len(alive):
        s = state[alive]
        a = actions(s, rng)
        reached = after(s * A + a, rng)
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
        check = check_model(log, gamma=gamma)
        own = check.totals[0]
        print(f"ICU-Sepsis, {n:,} stays, {len(log):,} rows, discount {gamma:g}")
        print(f"  {own}")
        print(f"  by the model {check.model_totals[0]:.4f}; the truth {rho0 @ V:.4f}; {check.status}")


def picture(path: str) -> None:
    """Draw the residuals of a log whose days end by the clock."""
    import matplotlib

    matplotlib.use("Agg")
    rng = np.random.default_rng(0)
    log = worlds.World(20, "clock", rng).log(300, rng)
    check = check_model(log, gamma=worlds.GAMMA)
    print(check)
    check.plot()[0, 0].figure.savefig(path, dpi=80)


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
        check = check_model(log, gamma=0.95, policy=policy)
        print(f"{n:,} rows, {len(log.pairs):,} pairs, {name}: {time.process_time() - began:.1f} s CPU, {check.status}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("false", "power", "certified", "sepsis", "picture", "seconds")
    parser.add_argument("part", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    usual = ", ".join(f"{many:,} of {part}" for part, (many, _) in LOGS.items())
    parser.add_argument("--logs", type=int, help=f"logs of a world or a line ({usual})")
    parser.add_argument("--worlds", nargs="+", choices=list(worlds.NULL), metavar="WORLD", help="of false")
    parser.add_argument("--results", metavar="FILE", help="results that are known, and those of this run")
    parser.add_argument("--quick", action="store_true", help="fewer logs")
    given = parser.parse_args(arguments)
    for part in given.part:
        if part not in parts:
            parser.error(f"PART must be of {', '.join(parts)}, got {part!r}")
    results = Results(given.results)
    for part in given.part or parts:
        logs = given.logs or LOGS.get(part, (0, 0))[given.quick]
        if part == "false":
            false(results, logs, given.worlds or worlds.NULL)
        elif part == "power":
            power(results, logs)
        elif part == "certified":
            certified(results, logs)
        elif part == "sepsis":
            sepsis(10_000)
        elif part == "picture":
            picture("fit.png")
        else:
            seconds()
        print()


if __name__ == "__main__":
    main()
