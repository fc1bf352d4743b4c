"""The experiments on mu_hat, on the gradients and on the lower bounds: they hold, and fail when something is broken."""

import dataclasses
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpdl import theory
from dpdl.data.reference import Reference
from dpdl.learning.layout import Constants

# Behind the tests' own folder: both have a module `problems`, which no experiment imports.
sys.path.append(str(Path(__file__).parents[1] / "bench"))

hard = importlib.import_module("experiments.hard")


def run(name):
    return importlib.import_module(f"experiments.{name}").run(quick=True)


def sabotage(monkeypatch, change):
    """Change what the compiled core reads."""
    healthy = Constants.of
    monkeypatch.setattr(Constants, "of", lambda *arguments: change(healthy(*arguments)))


@pytest.mark.parametrize("name", ["reference", "variance", "lower", "slater"])
def test_holds(name):
    outcome = run(name)
    assert outcome.holds, outcome.verdict
    assert outcome.verdict.startswith(f"{name}: holds (")
    figure = Figure()
    outcome.draw(figure.subplots())
    figure.draw_without_rendering()


@pytest.mark.parametrize("name", ["variance", "lower", "slater"])
def test_the_printed_sign_of_g_x_fails(name, monkeypatch):
    """Equation (9) prints r + gamma V(s) - V(s')."""
    sabotage(monkeypatch, lambda constants: dataclasses.replace(constants, V_here=constants.gamma, V_next=-1.0))
    outcome = run(name)
    assert outcome.holds is False, outcome.verdict


def test_gradients_without_the_second_constraint_fail(monkeypatch):
    """With psi below C* the iterates then leave X, of which alone Proposition C.1 speaks."""
    sabotage(monkeypatch, lambda constants: dataclasses.replace(constants, B2=1e300))
    outcome = run("variance")
    assert outcome.holds is False
    assert "not all feasible" in outcome.figure


def test_mu_hat_of_too_few_samples_fails(monkeypatch):
    needed = theory.reference_samples
    monkeypatch.setattr(theory, "reference_samples", lambda *args: needed(*args) // 10**4)
    assert run("reference").holds is False


def test_mu_hat_without_floor_fails(monkeypatch):
    def plain(self):
        dense = np.zeros(self.n_states * self.n_actions)
        dense[self.pairs] = self.counts / self.n_samples
        return dense.reshape(self.n_states, self.n_actions)

    monkeypatch.setattr(Reference, "mu_hat", property(plain))
    assert run("reference").holds is False


def between(hidden, learned):
    """An outcome at N = 1, 4, 16 with the lower bound 1, 1/2, 1/4."""
    sizes, lower = [1, 4, 16], np.array([1, 0.5, 0.25])
    hidden, learned = (np.array(values, dtype=float)[:, None] for values in (hidden, learned))
    return hard.Bounded(sizes, lower, 8 * lower, (hidden, hidden), learned, {}).outcome("", "", "")


@pytest.mark.parametrize(
    ("hidden", "learned", "holds"),
    [
        ([1, 0.5, 0.25], [4, 2, 1], True),
        ([1, 0.5, 0.24], [4, 2, 1], False),  # a learner below the lower bound
        ([1, 0.5, 0.25], [4, 3.5, 3], False),  # DPDL does not learn
        ([1, 0.5, 0.25], [4, 2.1, 1.4], False),  # it does, at N^-0.38
    ],
)
def test_both_sides_of_a_bound_count(hidden, learned, holds):
    assert between(hidden, learned).holds is holds
