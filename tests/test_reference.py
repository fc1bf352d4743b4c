"""mu_hat against its definition, counted by a loop."""

import re

import numpy as np
import pytest

from dpdl.data.reference import estimate_reference
from dpdl.theory import SMALLEST_FLOOR
from problems import random_log


def small_log(n_records=60):
    return random_log(4, 3, n_records, 1, seed=1, used_actions=2)


def by_hand(log, floor):
    mu_hat = np.zeros((log.n_states, log.n_actions))
    for s in range(log.n_states):
        for a in range(log.n_actions):
            seen = sum(1 for k in range(len(log)) if log.s[k] == s and log.a[k] == a)
            mu_hat[s, a] = max(seen / len(log), floor)
    return mu_hat


@pytest.mark.parametrize("floor", [1e-200, 1e-6, 0.02, 0.1, 1.0])
def test_mu_hat_is_its_definition(floor):
    log = small_log()
    reference = estimate_reference(log, floor)
    expected = by_hand(log, floor)
    np.testing.assert_array_equal(reference.mu_hat, expected)
    np.testing.assert_array_equal(reference.at(np.arange(expected.size)), expected.ravel())
    assert reference.n_samples == len(log)


def test_at_answers_for_any_selection_of_pairs():
    log = small_log()
    reference = estimate_reference(log, 0.01)
    flat = reference.mu_hat.ravel()
    for pairs in ([], [len(flat) - 1], [3, 3, 0], list(range(len(flat)))[::-1]):
        np.testing.assert_array_equal(reference.at(np.array(pairs, dtype=np.int64)), flat[pairs])


def test_counts_sum_to_the_log_and_frequencies_to_one():
    log = small_log()
    reference = estimate_reference(log, SMALLEST_FLOOR)
    assert reference.counts.sum() == len(log)
    # Sixty roundings at most.
    assert reference.mu_hat.sum() == pytest.approx(1, abs=60 * 2.3e-16)


@pytest.mark.parametrize(
    ("floor", "error", "message"),
    [
        (0.0, ValueError, "floor must be >= 1e-200 and <= 1, got 0.0"),
        (-0.1, ValueError, "floor must be >= 1e-200 and <= 1, got -0.1"),
        (1.5, ValueError, "floor must be >= 1e-200 and <= 1, got 1.5"),
        (np.nan, ValueError, "floor must be finite, got nan"),
        (np.inf, ValueError, "floor must be finite, got inf"),
        ("small", TypeError, "floor must be a real number, got str"),
        (None, TypeError, "floor must be a real number, got NoneType"),
        (True, TypeError, "floor must be a real number, got bool"),
    ],
)
def test_a_bad_floor_is_named(floor, error, message):
    with pytest.raises(error, match=re.escape(message)):
        estimate_reference(small_log(), floor)


def test_something_else_than_a_data_set_is_refused():
    with pytest.raises(TypeError, match="log must be a Dataset, got list"):
        estimate_reference([1, 2], 0.1)


def test_a_reference_cannot_be_changed():
    reference = estimate_reference(small_log(), 0.1)
    with pytest.raises(AttributeError):
        reference.floor = 0.2
    with pytest.raises(ValueError, match="read-only"):
        reference.counts[0] = 5
