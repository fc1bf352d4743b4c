"""The experiments of bench/theorems.py hold, and fail when the method or something else that they need is broken.

Two sabotages of the core's inputs, each a plausible error:

* "slip": the wrong sign of gamma, so that g_x has r - V(s) - gamma V(s'). No statement survives it.
* "unbounded": the projection onto X forgets its second constraint, sum x/mu_hat <= N psi/(1-gamma). What it bounds, the
  effective pairs of `sparsity` and the value of the game below C* in `deviation` and `monotone`, then breaks loose.
  `safety` cannot notice: it runs at psi >= C* with no more pairs than N + 1, where the constraint is slack; and at
  psi >= C* it is slack in `rate` and `mixing` as well.
"""

import dataclasses
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpdl import theory
from dpdl.data.reference import Reference
from dpdl.learner import adaptive
from dpdl.learner.layout import Constants

# At the end: bench has a `problems` of its own, which must not hide that of the tests.
sys.path.append(str(Path(__file__).parent.parent / "bench"))

from experiments import hard
from experiments.common import Known
from experiments.machine import exact_log, machine

#: These take longer. .ci/run has all experiments hold, and runs the slow tests as far as twenty minutes go.
SLOW = {
    "holds": (
        "rate",
        "dependence",
        "control",
        "sparsity",
        "deviation",
        "safety",
        "monotone",
        "adaptive",
        "lower",
        "slater",
    ),
    "slip": ("dependence", "control", "sparsity", "deviation", "safety", "monotone", "adaptive", "mixing", "lower"),
    "unbounded": ("monotone", "deviation"),
}
HOLDS = (
    "rate",
    "dependence",
    "sparsity",
    "deviation",
    "control",
    "safety",
    "monotone",
    "adaptive",
    "reference",
    "variance",
    "lower",
    "slater",
)


def slowly(kind, name):
    return pytest.mark.slow if name in SLOW[kind] else ()


FAILS = {
    "slip": (
        "rate",
        "dependence",
        "sparsity",
        "deviation",
        "control",
        "safety",
        "monotone",
        "adaptive",
        "mixing",
        "variance",
        "lower",
        "slater",
    ),
    "unbounded": ("sparsity", "deviation", "monotone", "variance"),
}


@pytest.fixture
def sabotage(monkeypatch):
    """A function that breaks every run from here on, in one of the two ways."""
    healthy = Constants.of

    def break_it(kind):
        def broken(settings, *sizes):
            changes = {"slip": {"gamma": -settings.gamma}, "unbounded": {"B2": 1e300}}
            return dataclasses.replace(healthy(settings, *sizes), **changes[kind])

        monkeypatch.setattr(Constants, "of", staticmethod(broken))

    return break_it


def outcome(name):
    found = importlib.import_module(f"experiments.{name}").run(True)
    print(f"\n{found.table}\n{found.verdict}")
    return found


@pytest.mark.parametrize("name", [pytest.param(name, marks=slowly("holds", name)) for name in HOLDS])
def test_holds(name):
    found = outcome(name)
    assert found.holds is True
    assert found.verdict.startswith(f"{name}: holds (")
    figure = Figure()
    found.draw(figure.subplots(*found.shape))
    figure.draw_without_rendering()


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(kind, name, marks=slowly(kind, name)) for kind, names in FAILS.items() for name in names],
)
def test_fails_when_broken(kind, name, sabotage):
    sabotage(kind)
    found = outcome(name)
    # With the slip no policy is unsafe, with kappa or without, so that safety is not seen.
    assert found.holds is (None if (kind, name) == ("slip", "safety") else False)
    # With psi below C* the iterates then leave X, of which alone Proposition C.1 speaks.
    assert (kind, name) != ("unbounded", "variance") or "not all feasible" in found.figure


@pytest.mark.slow
def test_adaptive_fails_when_verify_is_always_content(monkeypatch):
    verify = adaptive.verify
    monkeypatch.setattr(adaptive, "verify", lambda *a, **k: dataclasses.replace(verify(*a, **k), verdict=True))
    assert outcome("adaptive").holds is False


@pytest.mark.slow
def test_adaptive_fails_without_conservatism(monkeypatch):
    healthy = Constants.of
    monkeypatch.setattr(Constants, "of", lambda *arguments: dataclasses.replace(healthy(*arguments), margin=0.0))
    assert outcome("adaptive").holds is False


def test_machine_has_the_constants_that_it_claims():
    known = Known.of(*machine(np.array([[9, 3], [1, 3]]) / 16, fast=[1.0]))
    best = known.cmdp.solve()
    np.testing.assert_allclose(0.5 * best.occupancy, np.array([[4, 3], [0, 4]]) / 11, atol=1e-9)
    assert known.best == pytest.approx(14 / 11)
    assert known.concentrability == pytest.approx(64 / 33)


@pytest.mark.parametrize("n_copies", [1, 2, 8])
def test_copies_of_the_machine_are_as_good_and_as_hard(n_copies):
    data = np.array([[6, 2, 1], [1, 5, 1]]) / 16
    one, many = (Known.of(*machine(data, [1.0, 0.5], n_copies=n)) for n in (1, n_copies))
    assert many.best == pytest.approx(one.best)
    assert many.concentrability == pytest.approx(one.concentrability, rel=1e-6)
    assert many.cmdp.slater() == pytest.approx(one.cmdp.slater())


def test_exact_log_shows_the_model_as_it_is():
    cmdp, mu = machine(np.array([[9, 3], [1, 3]]) / 16, fast=[1.0])
    log = exact_log(cmdp, mu, 128)
    joint = np.zeros((2, 2, 2))
    np.add.at(joint, (log.s, log.a, log.s_next), 1 / len(log))
    np.testing.assert_allclose(joint, mu[:, :, None] * cmdp.P.toarray().reshape(2, 2, 2), atol=1e-15)
    with pytest.raises(ValueError, match="64 transitions"):
        exact_log(cmdp, mu, 64)


def test_mu_hat_of_too_few_samples_fails(monkeypatch):
    needed = theory.reference_samples
    monkeypatch.setattr(theory, "reference_samples", lambda *args: needed(*args) // 10**4)
    assert outcome("reference").holds is False


def test_mu_hat_without_floor_fails(monkeypatch):
    def plain(self):
        dense = np.zeros(self.n_states * self.n_actions)
        dense[self.pairs] = self.counts / self.n_samples
        return dense.reshape(self.n_states, self.n_actions)

    monkeypatch.setattr(Reference, "mu_hat", property(plain))
    assert outcome("reference").holds is False


def between(hidden, learned):
    """An outcome at N = 1, 4, 16 with the lower bound 1, 1/2, 1/4."""
    sizes, lower = [1, 4, 16], np.array([1, 0.5, 0.25])
    hidden, learned = (np.array(values, dtype=float)[:, None] for values in (hidden, learned))
    return hard.Bounded(sizes, lower, 8 * lower, (hidden, hidden), learned, "varpi", {}).outcome("", "", "")


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
