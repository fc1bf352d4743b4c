"""The planner on problems chosen to be difficult for it; the linear program is the oracle where it answers."""

import numpy as np
import pytest

from dpdl.models.cmdp import CMDP
from test_planner import plan, slater_bounds

GAMMAS = (0.9, 0.999, 1 - 1e-6)


def cycle(n_states, n_actions, gamma, *, stay=0.0, n_utilities=2, ends=None, seed=0):
    """Action a moves a + 1 places along a cycle, or stays with probability `stay`; the first state is state 0."""
    rng = np.random.default_rng(seed)
    moves = [(1 - stay) * np.roll(np.eye(n_states), a + 1, axis=1) + stay * np.eye(n_states) for a in range(n_actions)]
    P, shape = np.stack(moves, axis=1), (n_states, n_actions)
    r, u = rng.uniform(0, 1, shape), rng.uniform(-1, 1, (n_utilities, *shape))
    if ends is not None:
        ends = np.full(shape, ends)
        P = P * (1 - ends[:, :, None])
    return CMDP(P, r, u, gamma, np.eye(n_states)[0], ends)


def identical(gamma):
    model = cycle(40, 3, gamma)
    same = [np.repeat(values[..., :1], 3, axis=-1) for values in (model.r, model.u)]
    return CMDP(np.repeat(model.P.toarray().reshape(40, 3, 40)[:, :1], 3, axis=1), *same, gamma, model.rho0)


def no_reward(gamma):
    model = cycle(40, 3, gamma)
    return CMDP(model.P, 0 * model.r, model.u, gamma, model.rho0)


def unreached(gamma):
    """Two states that are reached, and 58 that never leave themselves."""
    rng = np.random.default_rng(1)
    P = np.repeat(np.eye(60)[:, None], 2, axis=1)
    P[0, 1] = np.eye(60)[1]
    return CMDP(P, rng.uniform(-1, 1, (60, 2)), rng.uniform(-0.5, 1, (1, 60, 2)), gamma, np.eye(60)[0])


def hard_to_leave(gamma):
    return cycle(40, 2, gamma, stay=1 - 1e-8, n_utilities=1)


KINDS = {
    "nearly periodic": lambda gamma: cycle(40, 3, gamma, stay=1e-6),
    "periodic": lambda gamma: cycle(40, 3, gamma),
    "identical actions": identical,
    "no reward": no_reward,
    "twenty constraints": lambda gamma: cycle(20, 4, gamma, n_utilities=20),
    "rare ends": lambda gamma: cycle(40, 3, gamma, stay=0.05, ends=1e-9),
    "immediate ends": lambda gamma: cycle(40, 3, gamma, ends=1.0),
    "unreached states": unreached,
    "hard to leave": hard_to_leave,
}


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("kind", KINDS)
def test_binding_constraints(kind, gamma):
    """kappa is half-way from the utility of the best policy to the most that a policy can have, where they differ."""
    model = KINDS[kind](gamma)
    unit, free = 1 - gamma, plan(model.unconstrained(), tol=1e-9)
    least, most = unit * model.evaluate(free.policy).utilities.min(), slater_bounds(model)[0]
    kappa = ((least + most) / 2 - 1e-6) / unit
    found, best = plan(model, kappa, time_limit=60), model.solve(kappa, method="lp")
    assert found.status == "optimal"
    assert unit * (found.utilities.min() - kappa) >= -1e-9
    assert found.gap <= 1e-3 or unit * (found.upper - found.lower) <= 1.1e-9
    value = model.evaluate(found.policy)
    assert unit * abs(value.reward - found.reward) <= 1e-8
    assert unit * abs(value.utilities - found.utilities).max() <= 1e-8
    if best.status == "optimal":
        assert unit * found.lower <= unit * best.reward + 2e-9
        assert unit * found.upper >= unit * best.reward - 2e-9


@pytest.mark.parametrize("gamma", GAMMAS)
def test_kappa_at_the_slater_constant(gamma):
    """The multipliers need not be bounded there: the answer is a safe policy and bounds that hold, and no proof."""
    model = cycle(40, 4, gamma, stay=0.1, n_utilities=3)
    unit, (lower, upper) = 1 - gamma, slater_bounds(model)
    assert upper - lower <= 1e-8
    for margin in (-1e-10, 0.0):
        kappa = (lower + margin) / unit
        found, best = plan(model, kappa), model.solve(kappa, method="lp")
        assert found.status in ("optimal", "inaccurate")
        assert unit * (found.utilities.min() - kappa) >= -1e-9
        if best.status == "optimal":
            # A limit that is kept to 1e-9 only leaves 1e-9 times the multipliers of reward open.
            assert unit * found.lower <= unit * best.reward + 1e-6
            assert unit * found.upper >= unit * best.reward - 1e-9
    assert plan(model, (upper + 1e-7) / unit).status == "infeasible"


@pytest.mark.slow
@pytest.mark.parametrize("gamma", GAMMAS)
def test_long_cycles(gamma):
    for stay in (0.0, 1e-6, 0.5):
        model = cycle(3000, 3, gamma, stay=stay)
        unit, found = 1 - gamma, plan(model, time_limit=60)
        assert found.status == "optimal"
        value = model.evaluate(found.policy)
        assert unit * abs(value.reward - found.reward) <= 1e-7
        assert unit * value.utilities.min() >= -1e-7
