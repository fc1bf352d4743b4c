"""bench/cold.py: mixtures are optimal, balanced reading changes what it says and no more, and its last recipe works."""

import sys
from pathlib import Path

import numpy as np
import pytest

from dpdl import exact

# At the end: bench has a `problems` of its own, which must not hide that of the tests.
sys.path.append(str(Path(__file__).parent.parent / "bench"))
import cold
import practice


def policy_with(*figures):
    return cold.Mixture(np.array([1.0]), np.array(figures))


def test_a_mixture_is_the_best_safe_one_or_the_nearest_to_it():
    found = [policy_with(1.0, -0.3), policy_with(0.5, 0.1), policy_with(0.4, 0.2)]
    assert np.allclose(cold.mixed(found).figures, [0.64, 0.0])  # 0.4 of the first, 0.6 of the last
    assert np.allclose(cold.mixed(found[:1]).figures, [1.0, -0.3])
    assert np.allclose(cold.mixed([policy_with(1.0, -0.3), policy_with(0.9, -0.1)]).figures, [0.9, -0.1])


def test_balanced_reading_keeps_the_model_and_the_caps():
    cmdp, log = practice.problem("ring", 60, 0, skewed=True)
    trial = cold.Trial(cmdp, log)
    layout = cold.balanced(trial, trial.layout.constants)
    model = exact.plug_in(layout.dataset, cmdp.gamma, cmdp.rho0)
    assert abs(model.P - trial.model.P).max() < 1e-12
    assert np.allclose(model.r, trial.model.r)
    assert np.array_equal(layout.log_cap, trial.layout.log_cap)
    even, skewed = (np.ptp(np.log(one.dataset.pair_counts)) for one in (layout, trial.layout))
    # Rows come up to 20 times; a rounded number of times is between 0.8 and 1.34 of what it should be.
    assert skewed > 3
    assert even <= max(0.0, skewed - np.log(20)) + np.log(1.34 / 0.8)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "as_in_the_paper"), [("fast", 5), ("ring", 0), ("lake", 0)])
def test_a_start_from_nothing_works_on_most_problems(kind, as_in_the_paper):
    trials = [cold.Trial(*practice.problem(kind, 300, seed)) for seed in range(900, 905)]
    assert cold.cold_figures(trials, "critic, weights", 900)[0] >= 4
    assert cold.cold_figures(trials, "paper's bounds", 900)[0] == as_in_the_paper
