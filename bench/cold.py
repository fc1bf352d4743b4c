"""What helps a start from nothing, and what helps little: ``python bench/practice.py --explore``, two minutes.

*Cold starts.* No plan and no linear program over the model: x is mu_hat/(1-gamma), V is zero. A run of VISITS visits
has PHASES phases; each starts at the averages of the one before. One recipe a row; rows with a plus add to "weights".
The plug-in model is used for figures, to mix the policies of the phases and by "critic".

    works    seeds with at least 95% of the optimum of D(psi) and no normalised utility below -0.005
    mixture  reward of the best safe mixture of the policies of all phases: median and least of the seeds, relative to
             the optimum of D(psi), and the median relative to the optimum of all safe policies
    utility  least normalised utility, over constraints and seeds
    beyond   share of the time that the mixture spends beyond the caps of psi, which the policy of an x may exceed
    last     the policy of the last phase alone
    flow     1-norm of the flow equation for the averages of the last phase, normalised
    mass     (1-gamma) sum x of these averages; then their sum of lam

*Averages and reading.* One phase of 1,000 visits from the plan, with an eighth of the first steps of a run in practice,
on even and on skewed logs: averages of all its steps or of the second half, rows as they are or rare pairs read more
often. Medians, and the least utility.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize

from dpdl import CMDP, Dataset, _core, exact
from dpdl import policy as policies
from dpdl._validation import Array
from dpdl.learner import practice
from dpdl.learner.layout import Constants, Inputs, Layout
from dpdl.models.judgement import Judge, Standing
from dpdl.result import without_noise
from dpdl.settings import Settings

VISITS, PHASES, PSI = 10_000, 40, 20.0
#: Step of log lam for a normalised utility, once a phase.
CRITIC_STEP = 100.0
#: x, V and lam.
Point = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Recipe:
    """One way to start from nothing; steps are in the units of `dpdl.learner.practice`."""

    step_x: float = 0.3
    step_V: float = 0.1
    lam: float | None = None  # sum of the first multipliers; None: the paper's, 1/slater
    most_lam: float | None = None  # bound of that sum; None: the paper's, 8/slater
    mass: float = 4.0  # bound of (1-gamma) sum x; the paper's is 4
    weighed: bool = False  # whether the ratio of the two steps follows the distances that x and V have moved
    gamma: float | None = None  # discount of the first phase; it grows to that of the problem in half of the phases
    psi: float | None = None  # the same for psi
    critic: bool = False  # whether a phase starts at occupancy, value function and multipliers of the policy before
    suffix: bool = False  # whether averages are of the second half of a phase


_WEIGHED = Recipe(step_x=0.63, step_V=0.032, lam=0.1, most_lam=20.0, mass=1.0, weighed=True)
_CRITIC = replace(_WEIGHED, critic=True)
#: Recipes and the phases that each gets, one run after the other, each from nothing.
RECIPES: dict[str, tuple[tuple[Recipe, int], ...]] = {
    "paper's bounds": ((Recipe(), PHASES),),
    "mass": ((Recipe(mass=1.0), PHASES),),
    "weights": ((_WEIGHED, PHASES),),
    "+ gamma": ((replace(_WEIGHED, gamma=0.9), PHASES),),
    "+ psi": ((replace(_WEIGHED, psi=5.0), PHASES),),
    "+ suffix": ((replace(_WEIGHED, suffix=True), PHASES),),
    "critic": ((_CRITIC, PHASES),),
    "critic, weights": ((_CRITIC, 16), (_WEIGHED, PHASES - 16)),
}


class Mixture(NamedTuple):
    """Occupancy and (reward, utilities), normalised."""

    occupancy: Array
    figures: Array


class Trial:
    """A log, its plug-in model, and runs on it."""

    def __init__(self, cmdp: CMDP, log: Dataset, psi: float | None = PSI) -> None:
        self.log, self.gamma, inputs = log, cmdp.gamma, Inputs.of(log, rho0=cmdp.rho0)
        self.model = exact.plug_in(log, cmdp.gamma, cmdp.rho0)
        given: dict[str, Any] = {"gamma": cmdp.gamma} | ({} if psi is None else {"psi": psi})
        # Of what these defaults find, cold starts use slater alone: it bounds V and, as in the paper, lam.
        self.layout = Layout.of(log, Settings.of(None, practice.defaults(log, given, inputs.initial)), inputs)
        normaliser, psi = 1 - self.gamma, self.layout.settings.psi
        self.best = normaliser * self.model.solve(psi=psi, mu=log.frequencies).reward  # in D(psi)
        self.best_of_all = normaliser * self.model.solve().reward
        self.judge = Judge(log, self.model, False)

    def layout_of(self, steps: tuple[float, float], recipe: Recipe, gamma: float, psi: float) -> Layout:
        """The layout of a phase with steps of x and of V, a discount and a psi."""
        log, n = self.log, len(self.log.pairs)
        settings = replace(self.layout.settings, gamma=gamma, psi=psi, kappa=0.0)
        constants = replace(
            Constants.of(settings, log.n_states, log.n_actions, log.n_utilities),
            rate_x=steps[0] / n,
            rate_V=steps[1] * (1 - gamma) / log.n_actions,
            rate_lam=(1 - gamma) / n,
            radius_lam=recipe.most_lam or settings.radius_lam,
            B1=recipe.mass / (1 - gamma),
        )
        return replace(self.layout, settings=settings, constants=constants)

    def standing(self, x: Array) -> Standing:
        """The policy of x on the plug-in model."""
        table = self.layout.coordinates.table(x).dense(self.log.n_states, self.log.n_actions)
        return self.judge.standing(policies.from_occupancy(without_noise(table, self.log)))

    def coordinates(self, occupancy: Array) -> Array:
        """An occupancy of all pairs as x; no policy here visits a pair that the log does not show."""
        x = np.zeros(len(self.layout.coordinates.c))
        x[: len(self.layout.coordinates.pairs)] = occupancy[self.layout.coordinates.pairs]
        return x

    def flow_residual(self, x: Array) -> float:
        """The 1-norm of the flow equation, times 1 - gamma."""
        model = self.model
        table = self.layout.coordinates.table(x).dense(*model.r.shape)
        inflow = model.rho0 + model.gamma * (model.P.T @ table.ravel())
        return float((1 - model.gamma) * abs(table.sum(axis=1) - inflow).sum())


def means(layout: Layout, sampler: _core.Sampler, point: Point, visits: float, *, suffix: bool = False) -> Point:
    """Averages of a phase that starts at a point, or of its second half."""
    n = int(visits * len(layout.descent.pairs))
    core = _core.LazyCore(layout, sampler, *layout.moved_inside(*point))
    if suffix:
        assert core.run(n // 2) == 0
        core = _core.LazyCore(layout, sampler, *layout.moved_inside(*core.point))
        n -= n // 2
    assert core.run(n) == 0
    return core.means


def mixed(found: list[Mixture]) -> Mixture:
    """The best mixture of policies that is safe, or else nearest to it; a program with one variable a policy."""
    figures = np.array([one.figures for one in found])
    n, n_utilities = len(found), figures.shape[1] - 1
    answer = scipy.optimize.linprog(
        np.append(-figures[:, 0], 100.0),  # the last variable is what the utilities lack
        A_ub=np.column_stack([-figures[:, 1:].T, -np.ones(n_utilities)]),
        b_ub=np.zeros(n_utilities),
        A_eq=[[1.0] * n + [0.0]],
        b_eq=[1.0],
    )
    weights = answer.x[:n]
    return Mixture(sum(w * one.occupancy for w, one in zip(weights, found, strict=True)), weights @ figures)


def cold(trial: Trial, recipe: Recipe, rng: np.random.Generator, n_phases: int) -> tuple[list[Mixture], Point]:
    """The policies of the phases, and the averages of the last one."""
    log, each, settings = trial.log, trial.layout.coordinates, trial.layout.settings
    sampler, found = trial.layout.sampler(rng), list[Mixture]()
    mu = each.mu_hat * each.multiplicity()
    ratio, product, shrunk, gamma, moved = recipe.step_V / recipe.step_x, recipe.step_V * recipe.step_x, 1.0, 0.0, None
    lam = np.full(log.n_utilities, (recipe.lam or 1 / settings.slater) / log.n_utilities)
    point = (mu, np.zeros(log.n_states), lam)
    for k in range(n_phases):
        share, before = min(1.0, 2 * k / n_phases), gamma
        gamma = 1 - _between(1 - (recipe.gamma or trial.gamma), 1 - trial.gamma, share)
        psi = _between(recipe.psi or settings.psi, settings.psi, share)
        steps = (shrunk * math.sqrt(product / ratio), shrunk * math.sqrt(product * ratio))
        layout = trial.layout_of(steps, recipe, gamma, psi)
        start = (point[0] * (1 - before) / (1 - gamma), *point[1:])
        point = means(layout, sampler, start, VISITS / PHASES, suffix=recipe.suffix)
        # V's constant is of no account where the mass of x is fixed.
        previous, moved = moved, (point[1] - start[1]) - (point[1] - start[1]).mean()
        if recipe.weighed:
            q, q0 = point[0] / point[0].sum(), start[0] / start[0].sum()
            divergence = float(q @ np.log(np.maximum(q, 1e-300) / np.maximum(q0, 1e-300)))
            aim = float(moved @ moved) / len(moved) / (2 * max(divergence, 1e-9))
            ratio = float(np.clip(math.sqrt(ratio * aim), 1e-3, 100.0))
        if previous is not None and moved @ previous < 0:  # V turns back: noise, or a step too far
            shrunk = max(0.2, 0.7 * shrunk)
        one = trial.standing(point[0])
        found.append(Mixture(one.occupancy, (1 - trial.gamma) * one.totals))
        if recipe.critic:
            # lam moves by the utilities of the policy: those of x are kept at zero by its lack of flow.
            lam = np.clip(start[2] * np.exp(-CRITIC_STEP * found[-1].figures[1:]), 1e-3, recipe.most_lam)
            V = one.values[0] + lam @ one.values[1:]
            point = (trial.coordinates(one.occupancy) + 1e-3 * mu / (1 - gamma), V, lam)
    return found, point


def _between(first: float, last: float, share: float) -> float:
    return first * (last / first) ** share


def cold_figures(trials: list[Trial], name: str, seed: int) -> tuple[int, Array]:
    """On how many problems a recipe works, and the figures of each, one a row."""
    cells, works = [], 0
    for k, trial in enumerate(trials):
        rng, found = np.random.default_rng(seed + k), list[Mixture]()
        for recipe, n_phases in RECIPES[name]:
            more, (x, _, lam) = cold(trial, recipe, rng, n_phases)
            found += more
        best, last, caps = mixed(found), found[-1], PSI * trial.judge.counts / len(trial.log)
        works += bool(best.figures[0] >= 0.95 * trial.best and best.figures[1:].min() >= -0.005)
        beyond = np.maximum((1 - trial.gamma) * best.occupancy - caps, 0.0).sum()
        rewards = (best.figures[0] / trial.best, best.figures[0] / trial.best_of_all, last.figures[0] / trial.best)
        utilities = (best.figures[1:].min(), last.figures[1:].min())
        cells.append((*rewards, *utilities, beyond, trial.flow_residual(x), (1 - trial.gamma) * x.sum(), lam.sum()))
    return works, np.array(cells)


def cold_row(trials: list[Trial], name: str, kind: str, seed: int) -> str:
    """One line for a recipe and a kind of problem."""
    works, cells = cold_figures(trials, name, seed)
    middle, least = np.median(cells, axis=0), np.min(cells, axis=0)
    of_mixture = f"{middle[0]:>7.3f} {least[0]:>6.3f} {least[3]:>8.4f} {middle[1]:>6.3f} {middle[5]:>6.2f}"
    of_last = f"{middle[2]:>6.3f} {least[2]:>6.3f} {least[4]:>8.4f}"
    of_averages = f"{middle[6]:>6.3f} {middle[7]:>5.2f} {middle[8]:>6.2f}"
    return f"{kind:>5} {name:<15} {works:>2}/{len(trials)} {of_mixture} |{of_last} |{of_averages}"


def balanced(trial: Trial, constants: Constants) -> Layout:
    """A layout that reads rare pairs up to 20 times as often, so that all come about equally often; the caps stay."""
    log, layout = trial.log, trial.layout
    counts = np.zeros(trial.model.r.size)
    counts[log.pairs] = log.pair_counts
    rows = log.s.astype(np.int64) * log.n_actions + log.a
    again = np.clip(counts.max() / counts[rows], 1, 20).round().astype(np.int64)
    columns = (np.repeat(column, again, axis=0) for column in (log.s, log.a, log.s_next, log.r, log.u))
    copy = Dataset(*columns, n_states=log.n_states, n_actions=log.n_actions)
    given = {name: getattr(layout.settings, name) for name in ("gamma", "psi", "slater", "kappa", "T", "floor")}
    found = Layout.of(copy, Settings.of(None, given | {"order": "shuffle"}), Inputs.of(copy, rho0=trial.model.rho0))
    assert np.array_equal(found.coordinates.pairs, layout.coordinates.pairs)
    found = replace(found, constants=constants)
    vars(found)["log_cap"] = layout.log_cap  # in place of those of the copy
    return found


def warm_row(trials: list[Trial], name: str, seed: int) -> str:
    """One line for a kind of problem and of log: averages of one phase from the plan, in four ways."""
    cells = []
    for way in range(4):
        figures = []
        for i, trial in enumerate(trials):
            k = trial.layout.constants
            k = replace(k, rate_x=k.rate_x / 8, rate_V=k.rate_V / 8, rate_lam=k.rate_lam / 8)
            layout = replace(trial.layout, constants=k) if way < 2 else balanced(trial, k)
            log_x, V, log_lam = trial.layout.start()
            sampler = layout.sampler(np.random.default_rng(seed + i))
            point = means(layout, sampler, (np.exp(log_x), V, np.exp(log_lam)), 1000, suffix=way % 2 == 1)
            totals = (1 - trial.gamma) * trial.standing(point[0]).totals
            figures.append((totals[0] / trial.best, totals[1:].min(), -trial.flow_residual(point[0])))
        reward, _, flow = np.median(figures, axis=0)
        cells.append(f"{reward:>7.3f} {np.min(figures, axis=0)[1]:>8.4f} {-flow:>6.3f}")
    return f"{name:<12} " + " |".join(cells)


def explore(problem: Callable[..., tuple[CMDP, Dataset]], n_pairs: int, seeds: range) -> None:
    """Print both tables; `problem(kind, n_pairs, seed, skewed)` makes a model and a log."""
    kinds = ("fast", "ring", "lake")
    print(f"cold starts: {n_pairs} pairs, psi = {PSI:g}, {VISITS:,} visits, seeds {seeds.start} to {seeds.stop - 1}")
    figures = f"{'least':>6} {'utility':>8}"
    print(
        f"{'':>5} {'':<14} {'works':>{4 + len(str(len(seeds)))}} {'mixture':>7} {figures} {'of all':>6} {'beyond':>6} |"
        f"{'last':>6} {figures} |{'flow':>6} {'mass':>5} {'lam':>6}"
    )
    for kind in kinds:
        trials = [Trial(*problem(kind, n_pairs, seed)) for seed in seeds]
        for name in RECIPES:
            print(cold_row(trials, name, kind, seeds.start), flush=True)
    print("one phase of 1,000 visits from the plan")
    ways = ("all steps", "second half", "balanced", "both")
    print(f"{'':<12} " + " |".join(f"{way:>23}" for way in ways))
    print(f"{'':<12} " + " |".join(f"{'reward':>7} {'utility':>8} {'flow':>6}" for _ in ways))
    for skewed in (False, True):
        for kind in kinds:
            trials = [Trial(*problem(kind, n_pairs, seed, skewed), psi=None) for seed in seeds]
            print(warm_row(trials, f"{kind} {'skewed' if skewed else 'even'}", seeds.start), flush=True)
