"""Logs that are trajectories: what they refuse, how they are cut, and what a run makes of them."""

import re

import numpy as np
import pytest

import logs
from dpdl import Dataset, instances, learn, mixing, theory

WALK = {"a": [0, 0, 0, 0], "r": [0.0] * 4, "u": [[1.0]] * 4, "n_states": 3, "n_actions": 1}
UNIFORM = np.full((4, 2), 0.5)


def walk(s, s_next, starts):
    return Dataset(s=s, s_next=s_next, starts=starts, **WALK)


def held(result):
    return {premise.name: premise.holds for premise in result.premises}


@pytest.mark.parametrize(
    ("starts", "kind"),
    [(None, "independent"), ([0], "trajectory"), ([0, 2], "trajectories"), ([0, 1, 3], "trajectories")],
)
def test_a_log_knows_what_it_is(starts, kind):
    log = walk([0, 1, 2, 0], [1, 2, 0, 1], starts)
    assert log.kind == kind
    assert log.starts is None if starts is None else log.starts.tolist() == starts


@pytest.mark.parametrize(
    ("starts", "error", "message"),
    [
        ([0], ValueError, "s_next[1] = 2 but s[2] = 0: a trajectory ends there, so starts must list 2"),
        ([0, 1], ValueError, "s_next[1] = 2 but s[2] = 0"),
        ([], ValueError, "starts must begin with 0, got []"),
        ([2], ValueError, "starts must begin with 0, got [2]"),
        ([0, 3, 2], ValueError, "starts must ascend, but starts[2] = 2 follows 3"),
        ([0, 2, 2], ValueError, "starts must ascend, but starts[2] = 2 follows 2"),
        ([0, 4], ValueError, "starts[1] = 4 must be between 0 and 3"),
        ([0.5], ValueError, "starts[0] = 0.5 must be a whole number"),
        (0, ValueError, "starts must have shape (any,), got ()"),
    ],
)
def test_starts_that_do_not_fit_are_refused(starts, error, message):
    with pytest.raises(error, match=re.escape(message)):
        walk([0, 1, 0, 1], [1, 2, 1, 2], starts)


def test_a_boundary_may_fall_where_states_happen_to_match():
    assert walk([0, 1, 2, 0], [1, 2, 0, 1], [0, 3]).starts.tolist() == [0, 3]


@pytest.mark.parametrize(("part", "starts"), [(slice(1, None), [0, 1]), (slice(2, 4), [0]), (slice(0, 3), [0, 2])])
def test_trajectories_are_cut_with_the_log(part, starts):
    assert walk([0, 1, 0, 1], [1, 2, 1, 2], [0, 2])[part].starts.tolist() == starts


def test_a_cut_is_a_valid_log_of_its_own():
    rng = np.random.default_rng(0)
    cmdp = instances.garnet(4, 2, 1, branching=2, rng=0)
    walks = [cmdp.rollout(int(n), UNIFORM, rng=rng) for n in rng.integers(1, 9, 20)]
    log = logs.from_trajectories(
        [(np.append(w.s, w.s_next[-1]), w.a, w.r, w.u) for w in walks], n_states=4, n_actions=2
    )
    assert log.starts.tolist() == np.cumsum([0, *map(len, walks)])[:-1].tolist()
    for first, last in rng.integers(0, len(log), (50, 2)):
        if first < last:
            cut = log[first:last]
            # The constructor checks every boundary.
            again = Dataset(cut.s, cut.a, cut.s_next, cut.r, cut.u, n_states=4, n_actions=2, starts=cut.starts)
            assert set(first + again.starts[1:]) == {k for k in log.starts if first < k < last}
            middle = (last - first) // 2  # a part of a part
            assert cut[middle:].starts.tolist() == log[first + middle : last].starts.tolist()
            assert cut[middle:].kind == log[first + middle : last].kind


def test_a_trajectory_is_not_cut_with_gaps():
    with pytest.raises(ValueError, match=r"^a log of trajectories is sliced with step 1, got slice\(None, None, 2\)$"):
        walk([0, 1, 0, 1], [1, 2, 1, 2], [0, 2])[::2]
    assert len(walk([0, 1, 0, 1], [1, 2, 1, 2], None)[::2]) == 2


def test_a_rollout_is_one_trajectory_and_a_sample_is_none():
    cmdp = instances.garnet(4, 2, 1, branching=2, rng=0)
    assert cmdp.rollout(9, UNIFORM, rng=0).kind == "trajectory"
    assert cmdp.sample(9, UNIFORM / 4, rng=0).kind == "independent"


@pytest.mark.parametrize(
    ("starts", "order", "fresh"),
    [
        (None, "replacement", False),
        (None, "shuffle", True),
        (None, "trajectory", True),
        ([0], "shuffle", False),
        ([0], "trajectory", True),
        ([0, 5], "shuffle", False),
        ([0, 5], "trajectory", True),
    ],
)
def test_a_trajectory_is_fresh_only_in_its_own_order(starts, order, fresh):
    log = Dataset([0] * 9, [0] * 9, [0] * 9, [0.0] * 9, [[0.5]] * 9, n_states=1, n_actions=1, starts=starts)
    result = learn(log, gamma=0.5, psi=2, slater=0.5, T=9, rho0=[1.0], rng=0, order=order)
    assert held(result)["fresh samples"] is fresh


def test_only_one_trajectory_serves_the_asynchronous_theorem_and_none_the_other():
    for starts, mixing_time, name, holds in (
        (None, None, "independent transitions", True),
        ([0], None, "independent transitions", False),
        ([0], 2.0, "one trajectory", True),
        ([0, 2], 2.0, "one trajectory", False),
        (None, 2.0, "one trajectory", False),
    ):
        log = walk([0, 1, 2, 0], [1, 2, 0, 1], starts)
        result = learn(
            log, gamma=0.5, psi=3, slater=0.5, T=4, order="once", rho0=[1.0, 0, 0], rng=0, mixing_time=mixing_time
        )
        assert held(result)[name] is holds


def test_consecutive_records_are_used_in_order():
    """Steps over a trajectory in its own order equal steps over its halves, one run continuing the other."""
    cmdp = instances.garnet(4, 2, 1, branching=2, gamma=0.5, slater=0.3, rng=0)
    log = cmdp.rollout(600, UNIFORM, rng=0)
    common = {"gamma": 0.5, "psi": 3, "slater": 0.3, "order": "trajectory", "eta": 0.05, "floor": 1e-3}
    first_state = {"rho0": [1.0, 0, 0, 0]}
    whole = learn(log, T=600, **common, **first_state, rng=0)
    generator = np.random.default_rng(0)
    half = learn(log[:300], T=300, reference=whole.reference, **common, **first_state, rng=generator)
    rest = learn(log[300:], T=300, reference=whole.reference, **common, **first_state, rng=generator, start=half.last)
    np.testing.assert_allclose(rest.last.log_x, whole.last.log_x, rtol=0, atol=1e-9)
    np.testing.assert_allclose((half.x_mean + rest.x_mean) / 2, whole.x_mean, rtol=1e-9)


def test_the_step_size_is_the_theorems_unless_short_steps_are_asked_for():
    cmdp = instances.garnet(4, 2, 1, branching=4, gamma=0.5, slater=0.3, rng=0)
    log = cmdp.rollout(50_000, UNIFORM, rng=0)
    common = {"gamma": 0.5, "psi": 3, "slater": 0.3, "T": 1000, "order": "trajectory", "rho0": cmdp.rho0, "rng": 0}
    assert learn(log, **common, mixing_time=9).settings.eta == theory.step_size(1000)
    assert learn(log, **common, mixing_time=9, short_steps=True).settings.eta == theory.step_size(1000, 9)
    bound = mixing.estimate_mixing_time(log, delta=0.01).upper
    estimated = learn(log, **common, mixing_time="estimate", delta=0.01)
    assert estimated.settings.mixing_time == bound > 1
    assert estimated.settings.eta == theory.step_size(1000)
    premise = {premise.name: premise for premise in estimated.premises}["mixing time"]
    assert not premise.holds
    assert premise.detail == f"t_mix <= {bound:.6g}, estimated from the same data with confidence 0.99"


def test_a_mixing_time_that_cannot_be_estimated_is_refused():
    cmdp = instances.garnet(4, 2, 1, branching=4, gamma=0.5, slater=0.3, rng=0)
    common = {"gamma": 0.5, "psi": 3, "slater": 0.3, "T": 100, "rho0": cmdp.rho0, "mixing_time": "estimate",
              "order": "trajectory"}  # fmt: skip
    with pytest.raises(ValueError, match=r"^mixing_time cannot be estimated: too short to tell: the \d+ visits"):
        learn(cmdp.rollout(100, UNIFORM, rng=0), **common)
    with pytest.raises(ValueError, match=r"^mixing_time cannot be estimated: the log holds independent"):
        learn(cmdp.sample(100, UNIFORM / 4, rng=0), **common)
    with pytest.raises(TypeError, match=r"^mixing_time must be a real number, got str$"):
        learn(cmdp.rollout(100, UNIFORM, rng=0), **(common | {"mixing_time": "guess"}))
