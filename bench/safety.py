"""Which methods keep a limit that they see through a log only: ``python bench/safety.py PROTOCOL [--datasets D]``.

Protocols (`bench/safety_problems.py` makes the problems, `bench/safety_model.py` their logs):

    toy     10 states, one limit; N independent transitions
    grid    10 x 10 cells with pits, episodes that end at the goal; N episodes
    multi   50 states, five limits that bind; N independent transitions
    others  50 further problems of other kinds; N records for each pair of the model, about
    further  50 problems as users have them (`bench/safety_further.py`): queue, stock, machine, rooms, clinic, jumps,
            battery, ward, hazards, many; N records for each pair of the model, about
    fresh   50 more (`bench/safety_fresh.py`), written without regard to any method: thermostat, taxi, retry, dose,
            field, credit, patrol, keys, dense, seldom; N records for each pair of the model, about

    worlds  small worlds in which a careless certificate is wrong (`bench/safety_worlds.py`); N is not used

Methods:

    lp         the plug-in linear program: the best policy of the observed frequencies and means
    margin     the same with J^u_i >= kappa: the least kappa at which the normal upper bounds of the costs (by
               `judge`, level delta over all constraints) keep the limits on the same log; unanswered without one
    theory     DPDL as the theorem states it, told what no user knows: psi = C* and Slater's constant of the true model;
               10^6 steps, no margin
    coptidice  COptiDICE with its conservative cost bound (`bench/coptidice.py`), alpha = 1/n and epsilon = 0.1/n, where
               n counts trajectories: the episodes of the log or, of independent transitions, one for each 1/(1-gamma)
    coptidice50  the same where fifty transitions count as a trajectory, the longest in its authors' tabular experiment:
               more careful than coptidice on independent transitions, and less where episodes are longer. How careful
               the method is depends on this reading of n, so both stand in the table
    ours       `dpdl.safe_policy`; with --levels also at other values of delta, as "ours 0.2" and so on: how careful a
               method is can be chosen, and two methods compare by what they earn at the same share of broken limits

For each N and method: the share of data sets that got an answer; of the answers the mean reward over the optimum and
the mean of the largest ratio of a cost to its limit, both exact on the true model; how many broke a limit, of the
answered and of all data sets, with 95% Clopper-Pearson intervals; and seconds a data set. Where rewards may be
negative, "over the optimum" counts from the worst policy of all: (J - J_worst)/(J* - J_worst). `--json` writes

    {N: {method: {answered, reward, cost, violation, seconds, ...}}}

where `violation` is of the answered, `violation_of_all` of all data sets, and None stands for no answers. Data sets are
spread evenly over the problems. Results depend on --seed and not on --jobs; seconds do. `--figure` draws reward against
the share of broken limits.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes below share the cores already

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy.special import betaincinv, ndtri

import coptidice
import dpdl
import safety_problems as problems
from dpdl import Dataset, exact
from dpdl.models.estimate import judge
from safety_model import BROKEN, Problem

#: Margins that are tried first, and how precisely the least is found then, as shares of the largest one.
SHARES = (0.0, *np.arange(1, 10) / 10, 0.95, 0.98, 0.99, 0.999, 1 - 1e-9)
PRECISION = 0.002
#: Steps of DPDL with the theorem's scales.
STEPS = 10**6
#: In place of C* where it is larger, or infinite because the logging policy never takes an action.
LARGEST_PSI = 1e4


@dataclass(frozen=True)
class Case:
    """What a method is given: a log, and the problem, of which it may look at gamma and the start only."""

    log: Dataset
    problem: Problem
    delta: float
    rng: np.random.Generator

    @property
    def known(self) -> dict[str, Any]:
        """The discount, and the start if the log does not tell."""
        return {"gamma": self.problem.gamma, "rho0": self.problem.known_start}


Answer = tuple[str, Any]  # status, policy or None
NONE = "NO_ANSWER"


def lp(case: Case) -> Answer:
    found = exact.plug_in(case.log, **case.known).solve()
    return ("ANSWERED", found.policy) if found.status != "infeasible" else ("INFEASIBLE", None)


def margin(case: Case) -> Answer:
    """Scan for a margin whose policy passes, then bisect between it and the one before, which does not.

    The largest margin need not pass: the most careful policy may visit pairs that were hardly seen.
    """
    model = exact.plug_in(case.log, **case.known)
    z = ndtri(1 - case.delta / model.n_utilities)
    largest, low, best = model.slater() / (1 - model.gamma), 0.0, None
    if largest < 0:
        return "INFEASIBLE", None
    for share in SHARES:
        best = _passes(case, model, share * largest, z)
        if best is not None:
            high = share
            break
        low = share
    if best is None:
        return NONE, None
    while high - low > PRECISION:
        middle = (low + high) / 2
        policy = _passes(case, model, middle * largest, z)
        if policy is None:
            low = middle
        else:
            high, best = middle, policy
    return "ANSWERED", best


def _passes(case: Case, model: dpdl.CMDP, kappa: float, z: float) -> Any:
    """Return the best policy with this margin if its normal bounds keep the limits, else None."""
    found = model.solve(kappa)
    if found.status == "infeasible":
        return None
    judged = judge(found.policy, case.log, model, estimated_start=case.problem.known_start is None)
    kept = all(one.value + z * one.error <= one.limit for one in judged.constraints)
    return found.policy if kept else None


def theory(case: Case) -> Answer:
    """Run DPDL with the scales of Theorem 4.1, psi = C* and the Slater constant of the true model, and no margin."""
    problem = case.problem
    if problem.slater <= 0:
        return NONE, None
    told = {"psi": min(problem.concentrability, LARGEST_PSI), "slater": problem.slater, "T": STEPS}
    result = dpdl.learn(case.log, rng=case.rng, progress=False, **told, **case.known)
    return "ANSWERED", result.policy


def copti(case: Case) -> Answer:
    starts, horizon = case.log.initial_counts, 1 / (1 - case.problem.gamma)
    return _copti(case, len(case.log) / horizon if starts is None else float(starts.sum()))


def copti50(case: Case) -> Answer:
    return _copti(case, len(case.log) / 50)


def _copti(case: Case, n: float) -> Answer:
    try:
        return "ANSWERED", coptidice.learn(case.log, case.problem.gamma, case.problem.known_start, n)
    except RuntimeError:  # its program could not be solved to the last digits
        return NONE, None


def ours(case: Case) -> Answer:
    cost_max = getattr(case.problem, "cost_max", None)
    answer = dpdl.safe_policy(case.log, delta=case.delta, cost_max=cost_max, **case.known)
    name = answer.status.name
    return name, answer.policy if name == "CERTIFIED" else None


METHODS: dict[str, Callable[[Case], Answer]] = {
    "lp": lp,
    "margin": margin,
    "theory": theory,
    "coptidice": copti,
    "coptidice50": copti50,
    "ours": ours,
}


@dataclass(frozen=True)
class Plan:
    """Everything that the results depend on."""

    protocol: str
    methods: tuple[str, ...]
    delta: float
    seed: int
    infeasible: bool
    n_problems: int

    def run(self, item: tuple[int, int]) -> tuple[int, dict[str, dict[str, Any]]]:
        """Draw data set `number` at size `n` and let every method answer."""
        n, number = item
        index = number % self.n_problems
        problem = _problem(self.protocol, self.seed, index, self.infeasible)
        log = problem.log(n, np.random.default_rng([self.seed, index, number, n]))
        found = {}
        for k, name in enumerate(self.methods):
            method, _, level = name.partition(" ")
            delta = float(level) if level else self.delta
            case = Case(log, problem, delta, np.random.default_rng([self.seed, index, number, n, k]))
            began = time.perf_counter()
            status, policy = METHODS[method](case)
            found[name] = {
                "kind": problem.kind,
                "status": status,
                "seconds": time.perf_counter() - began,
            } | _judged(problem, policy)
        return n, found


@cache
def _problem(protocol: str, seed: int, index: int, infeasible: bool) -> Problem:
    return problems.PROTOCOLS[protocol].make(np.random.default_rng([seed, index]), index, infeasible)


def _judged(problem: Problem, policy: Any) -> dict[str, Any]:
    """What the policy does on the true model."""
    if policy is None:
        return {"answered": False}
    reward, ratios = problem.figures(np.asarray(policy, dtype=float))
    found = {"answered": True, "cost": float(ratios.max()), "violated": bool((ratios > 1 + BROKEN).any())}
    if problem.least <= 1:
        low, high = problem.reward_range
        found["reward"] = (reward - low) / (high - low)
    return found


def interval(k: int, n: int, level: float = 0.95) -> list[float] | None:
    """Return the Clopper-Pearson interval of a probability of which k of n were seen; None if n = 0."""
    if n == 0:
        return None
    tail = (1 - level) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return [low, high]


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one method over data sets."""
    answers = [one for one in records if one["answered"]]
    broken = sum(one["violated"] for one in answers)

    def mean(name: str, of: list[dict[str, Any]]) -> float | None:
        values = [one[name] for one in of if name in one]
        return float(np.mean(values)) if values else None

    return {
        "datasets": len(records),
        "answered": len(answers) / len(records),
        "reward": mean("reward", answers),
        "cost": mean("cost", answers),
        "violation": broken / len(answers) if answers else None,
        "violation_interval": interval(broken, len(answers)),
        "violation_of_all": broken / len(records),
        "violation_of_all_interval": interval(broken, len(records)),
        "seconds": mean("seconds", records),
        "statuses": {name: sum(one["status"] == name for one in records) for name in sorted(_statuses(records))},
    }


def _statuses(records: Iterable[dict[str, Any]]) -> set[str]:
    return {one["status"] for one in records}


def summaries(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one method, and by kind of problem if there are several."""
    kinds = sorted({one["kind"] for one in records})
    found = summary(records)
    if len(kinds) > 1:
        found["kinds"] = {kind: summary([one for one in records if one["kind"] == kind]) for kind in kinds}
    return found


def table(results: dict[str, dict[str, Any]], label: str = "N") -> str:
    """Return the figures in lines of text."""
    head = f"{label:>7} {'method':<11} {'answered':>8} {'reward':>7} {'cost':>7}"
    lines = [f"{head} {'violated: of the answered':>26} {'of all':>22} {'seconds':>8}"]
    for n, methods in results.items():
        for name, one in methods.items():
            broken = _rate(one["violation"], one["violation_interval"])
            of_all = _rate(one["violation_of_all"], one["violation_of_all_interval"])
            figures = f"{one['answered']:>8.1%} {_text(one['reward'])} {_text(one['cost'])}"
            cells = f"{figures} {broken:>26} {of_all:>22} {one['seconds']:>8.3f}"
            statuses = ", ".join(f"{count} {status.lower()}" for status, count in one["statuses"].items())
            lines.append(f"{n:>7} {name:<11} {cells}  {statuses if name.startswith('ours') else ''}".rstrip())
    return "\n".join(lines)


def _text(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:>7.4f}"


def _rate(value: float | None, bounds: list[float] | None) -> str:
    return "-" if value is None or bounds is None else f"{value:.1%} [{bounds[0]:.1%}, {bounds[1]:.1%}]"


def run(plan: Plan, sizes: Iterable[int], datasets: int, jobs: int) -> dict[str, dict[str, Any]]:
    """Return {N: {method: figures}}."""
    items = [(n, number) for n in sizes for number in range(datasets)]
    records: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for n, found in _progress(_all(plan.run, items, jobs), len(items)):
        for name, one in found.items():
            records.setdefault(str(n), {}).setdefault(name, []).append(one)
    return {n: {name: summaries(ones) for name, ones in methods.items()} for n, methods in records.items()}


def _all(function: Callable[[Any], Any], items: list[Any], jobs: int) -> Iterator[Any]:
    """Apply to every item, in processes if there are to be several; results in order."""
    if jobs == 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, items)


def _progress(results: Iterator[Any], total: int) -> Iterable[Any]:
    """Show a progress bar, on a terminal and if tqdm is installed."""
    if not sys.stderr.isatty():
        return results
    try:
        from tqdm import tqdm
    except ImportError:
        return results
    return tqdm(results, total=total, unit="data set")


def main(arguments: list[str] | None = None) -> dict[str, dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", choices=list(problems.PROTOCOLS))
    parser.add_argument("--datasets", type=int, help="data sets per N; by default 20 or 8 a problem, see `PROTOCOLS`")
    parser.add_argument("--problems", type=int, help="problems to draw; by default 20, or those of the protocol")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N", help="instead of the protocol's own")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--delta", type=float, default=0.05, help="level of the certificates (0.05)")
    parser.add_argument("--levels", type=float, nargs="+", default=[], metavar="DELTA", help="further ones for ours")
    parser.add_argument("--infeasible", action="store_true", help="limits that are 0.8 times the least achievable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (all cores)")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    parser.add_argument("--figure", metavar="FILE", help="draw reward against the share of broken limits")
    given = parser.parse_args(arguments)
    protocol = problems.PROTOCOLS[given.protocol]
    if given.infeasible and given.protocol in ("others", "further", "fresh", "worlds"):
        parser.error("--infeasible is for toy, grid and multi: some of the other problems have policies without cost")
    methods = (*given.methods, *(f"ours {level:g}" for level in given.levels))
    n_problems = given.problems or protocol.problems
    datasets = given.datasets or protocol.repeats * n_problems
    plan = Plan(given.protocol, methods, given.delta, given.seed, given.infeasible, n_problems)
    results = run(plan, given.sizes or protocol.sizes, datasets, given.jobs)
    of = f"{datasets} data sets per N over {min(datasets, n_problems)} problems"
    print(f"{given.protocol}: {of}, delta = {given.delta:g}")
    print(table(results))
    if given.protocol == "worlds":  # world by world, because no answer is right in most
        for n, methods in results.items():
            kinds = {kind for found in methods.values() for kind in found.get("kinds", {})}
            print(table({k: {name: found["kinds"][k] for name, found in methods.items()} for k in sorted(kinds)}, n))
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    if given.figure:
        draw(results, given.delta, given.figure)
    return results


def draw(results: dict[str, dict[str, Any]], delta: float, path: str) -> None:
    """A panel for each N: the reward of the answered against the share of them that broke a limit."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(3.6 * len(results), 3.6), squeeze=False)
    for axis, (n, methods) in zip(axes[0], results.items(), strict=True):
        answered = {name: one for name, one in methods.items() if one["reward"] is not None}
        levels = {float(name.partition(" ")[2] or delta): one for name, one in answered.items() if name[:4] == "ours"}
        line = [levels[level] for level in sorted(levels)]
        axis.plot([100 * one["violation"] for one in line], [one["reward"] for one in line], "C3-", lw=1)
        for k, (name, one) in enumerate(answered.items()):
            low, high = one["violation_interval"]
            x, colour = 100 * one["violation"], "C3" if name[:4] == "ours" else f"C{k + 4}"
            spread = [[x - 100 * low], [100 * high - x]]
            axis.errorbar(x, one["reward"], xerr=spread, fmt="o", color=colour, elinewidth=0.6, ms=4)
            label = name if one["answered"] == 1 else f"{name} ({one['answered']:.0%} answered)"
            axis.annotate(label, (x, one["reward"]), (4, -9), textcoords="offset points", fontsize=7, color=colour)
        axis.axvline(100 * delta, color="0.6", lw=0.8, ls=":")
        axis.set(title=f"N = {n}", xlabel="limits broken, % of the answered")
        axis.margins(x=0.15, y=0.12)
    axes[0, 0].set_ylabel("reward over the best safe policy's")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
