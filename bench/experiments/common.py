"""What the experiments share: outcomes, parallel runs, slopes, and problems of a given concentrability."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpdl import CMDP, Dataset, Result, instances, theory
from dpdl.data.reference import Reference

Array = NDArray[np.float64]
Item, Value = TypeVar("Item"), TypeVar("Value")


@dataclass(frozen=True)
class Outcome:
    """What an experiment found.

    `holds` is None if the statement cannot be seen at these budgets; `figure` holds the numbers behind the verdict.
    `draw` takes the axes of a figure with `shape` rows and columns of them.
    """

    name: str
    title: str
    table: str
    holds: bool | None
    figure: str
    draw: Callable[[Any], None]
    shape: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if self.holds is not None and not isinstance(self.holds, bool):
            raise TypeError(f"holds must be True, False or None, got {type(self.holds).__name__}")

    @property
    def verdict(self) -> str:
        word = "not seen" if self.holds is None else "holds" if self.holds else "fails"
        return f"{self.name}: {word} ({self.figure})"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned to the right; floats with four digits."""

    def text(value: object) -> str:
        if isinstance(value, (bool, np.bool_)):
            return "yes" if value else "no"
        return f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)

    lines = [list(head), *([text(value) for value in row] for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def each(function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
    """Apply to every item, on all cores: the compiled core holds no lock."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent of a power law through the points."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@dataclass(frozen=True)
class Known:
    """A problem with known constants: the model, the data distribution, C*, slater on Pi(C*) and the optimum."""

    cmdp: CMDP
    mu: Array
    concentrability: float
    slater: float
    best: float

    @classmethod
    def of(cls, cmdp: CMDP, mu: Array) -> Known:
        concentrability = cmdp.concentrability(mu)
        slater = cmdp.slater(psi=concentrability * (1 + 1e-6), mu=mu)
        return cls(cmdp, mu, concentrability, slater, cmdp.solve().reward)

    def problem(self, psi: float) -> theory.Problem:
        return theory.Problem(
            self.cmdp.n_states, self.cmdp.n_actions, self.cmdp.n_utilities, self.cmdp.gamma, self.slater, psi
        )

    def gap(self, result: Result) -> float:
        """The exact Gap(x_mean) of a run."""
        return result.gap(self.cmdp, self.mu)


def exact_reference(log: Dataset, mu: Array, floor: float) -> Reference:
    """mu itself as a reference, to nine digits: what infinitely many samples would give."""
    counts = np.rint(mu.ravel() * 10**9).astype(np.int64)
    pairs = np.flatnonzero(counts)
    return Reference(pairs, counts[pairs], int(counts.sum()), floor, log.n_states, log.n_actions)


def in_feasible_set(result: Result) -> bool:
    """Whether x_mean lies in X, whose constraints are convex."""
    s, x, mu_hat = result.settings, result.x_mean, result.reference.mu_hat
    sizes = (*x.shape, len(result.lam_mean))
    return bool(
        (x <= s.psi / (1 - s.gamma) * mu_hat * (1 + 1e-9)).all()
        and x.sum() <= theory.sum_bound(s.gamma) * (1 + 1e-9)
        and (x / mu_hat).sum() <= theory.weight_bound(*sizes, s.gamma, s.psi) * (1 + 1e-9)
    )


@functools.cache
def with_concentrability(target: float, seed: int, n_states: int = 4, n_actions: int = 3, gamma: float = 0.5) -> Known:
    """A random problem, its constraint active, and a distribution of data with C* = target.

    The distribution lies between one that covers an optimal policy and a safe one well, and one that misses a pair of
    the optimal policy's.
    """
    rng = np.random.default_rng([seed, 1])
    for _ in range(1000):
        cmdp = instances.garnet(n_states, n_actions, 1, branching=2, gamma=gamma, slater=0.3, rng=rng)
        best = cmdp.solve()
        if cmdp.unconstrained().solve().reward < best.reward + 0.01:
            continue
        optimal, even = (1 - gamma) * best.occupancy, np.full(best.occupancy.shape, 1 / best.occupancy.size)
        careful = (1 - gamma) * cmdp.solve(kappa=0.95 * cmdp.slater() / (1 - gamma)).occupancy
        near = 0.66 * optimal + 0.3 * careful + 0.04 * even
        far = rng.dirichlet(np.ones(optimal.size)).reshape(optimal.shape)
        far[np.unravel_index(rng.choice(np.flatnonzero(optimal.ravel() > 0.1)), far.shape)] = 0
        far /= far.sum()
        low, high = 0.0, 1 - 1e-4
        if not cmdp.concentrability(near) < target < cmdp.concentrability((1 - high) * near + high * far):
            continue
        for _ in range(25):
            middle = (low + high) / 2
            if cmdp.concentrability((1 - middle) * near + middle * far) < target:
                low = middle
            else:
                high = middle
        known = Known.of(cmdp, (1 - low) * near + low * far)
        if known.slater > 0.1:
            return known
    raise RuntimeError(f"no problem with C* = {target} was found from seed {seed}")
