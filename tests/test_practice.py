"""`learn` with its defaults: what it earns on three kinds of problem, without and with psi binding, and its bound.

The default run looks at one seed of each; ``-m slow`` at ten seeds, a hundred bounds and larger models.
"""

import statistics

import numpy as np
import pytest

from dpdl import exact, instances, learn

KINDS = ("fast", "ring", "lake")
#: Share of the optimum of its class that a run must earn, with room for the margin kappa.
LEAST = {"fast": 0.99, "ring": 0.98, "lake": 0.98}
RECORDS_PER_PAIR = 50


def problem(kind, n_pairs, seed):
    """A CMDP of about n_pairs pairs, and a log in which every pair occurs about fifty times."""
    if kind == "fast":
        cmdp = instances.garnet(n_pairs // 5, 5, n_utilities=2, gamma=0.95, slater=0.1, rng=seed)
    elif kind == "ring":
        cmdp = instances.ring(n_pairs // 3, rng=seed)
    else:
        cmdp = instances.lake(round((n_pairs / 4) ** 0.5), rng=seed)
    n = cmdp.n_states * cmdp.n_actions
    return cmdp, cmdp.sample(RECORDS_PER_PAIR * n, np.full(cmdp.r.shape, 1 / n), rng=seed + 1)


def figures(kind, n_pairs, seed, binding=False):
    """The result of `learn`, the optimum of its class, and what its policy earns and leaves, on the plug-in model."""
    cmdp, log = problem(kind, n_pairs, seed)
    model = exact.plug_in(log, cmdp.gamma, cmdp.rho0)
    given = {}
    if binding:
        best, mu = model.solve().occupancy, log.frequencies
        given = {"psi": float((1 - cmdp.gamma) * np.divide(best, mu, where=mu > 0, out=np.zeros_like(mu)).max() / 2)}
    result = learn(log, gamma=cmdp.gamma, rho0=cmdp.rho0, rng=seed, **given)
    in_class = model.solve(psi=result.settings.psi, mu=log.frequencies)
    assert in_class.status == "optimal"
    return result, in_class.reward, model.evaluate(result.policy.probabilities), log


def check_defaults(kind, n_pairs, seed):
    result, optimum, found, log = figures(kind, n_pairs, seed)
    assert result.success
    assert result.n_steps <= 2000 * len(log.pairs)
    assert found.reward >= LEAST[kind] * optimum
    assert (1 - result.settings.gamma) * found.utilities.min() >= -0.002
    # The bound is no smaller than the optimum of the class, to the accuracy of the linear program.
    assert result.evaluation.bound >= optimum - 1e-7 * abs(optimum)
    return result.evaluation.gap / optimum


def check_binding(kind, n_pairs, seed):
    result, optimum, found, log = figures(kind, n_pairs, seed, binding=True)
    assert result.success
    assert abs(found.reward - optimum) <= 0.01 * optimum
    caps = result.settings.psi * log.frequencies
    assert ((1 - result.settings.gamma) * found.occupancy <= 1.05 * caps + 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_earn_nearly_the_optimum_of_their_class(kind):
    assert check_defaults(kind, 300, seed=1) < 0.03


@pytest.mark.parametrize("kind", KINDS)
def test_where_psi_binds_the_policy_stays_within_the_caps(kind):
    check_binding(kind, 300, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_defaults_over_many_seeds(kind):
    gaps = [check_defaults(kind, 300, seed) for seed in range(500, 534)] + [check_defaults(kind, 3000, seed=500)]
    assert statistics.median(gaps) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_pairs", "n_seeds"), [(300, 10), (3000, 3)])
def test_binding_psi_over_many_seeds(kind, n_pairs, n_seeds):
    for seed in range(500, 500 + n_seeds):
        check_binding(kind, n_pairs, seed)
