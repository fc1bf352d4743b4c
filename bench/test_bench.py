"""Microbenchmarks of every kernel and of the whole step: ``python -m pytest bench``.

One group of the table is one kernel, with its opponents: the plain NumPy of the twin and, for the step, the eager core.
A round is one call of a compiled loop; the table shows the time of one kernel in it, and `ns` in extra_info the same in
nanoseconds by the best round. docs/performance.md has the command that compares with the stored baseline.

T sets the step sizes; a run is never that long here.
"""

from dataclasses import replace
from functools import lru_cache, partial
from time import perf_counter

import numpy as np
import pytest

import twin
from dpdl import _core, _kernels
from problems import LOOSE, TIGHT, Bench

SIZES = (10**3, 10**4, 10**5, 10**6)
HORIZONS = (10**5, 10**6, 10**7, 10**8)
STEPS = 20_000
PSI = {"slack": LOOSE, "tight": TIGHT}


@pytest.fixture
def timed(benchmark, request):
    """Time calls of a function, each of which repeats a kernel n times; all figures are for one of the n."""

    def run(kernel, function, n, rounds=10):
        benchmark.group = kernel
        benchmark._timer = lambda: perf_counter() / n
        result = benchmark.pedantic(function, rounds=rounds, warmup_rounds=1)
        if benchmark.stats is not None:  # not with --benchmark-disable
            benchmark.extra_info["ns"] = round(1e9 * benchmark.stats.stats.min, 2)
        return result

    return run


@lru_cache(maxsize=3)
def problem(size, psi, T=10**8):
    return Bench(size, psi, T=T)


def settled(size, psi, T=10**8, steps=100_000):
    core = problem(size, psi, T).lazy()
    assert core.run(steps) == 0
    return core


def records(core, n=STEPS):
    return core.sampler.draw(n)[0]


# The whole step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("T", HORIZONS, ids="T{:.0e}".format)
@pytest.mark.parametrize("regime", PSI)
@pytest.mark.parametrize("size", SIZES, ids="{:.0e}".format)
def test_step(timed, size, regime, T):
    """In the second half of a run of T steps, or in its beginning if that is long."""
    n = min(STEPS, T // 12)
    core = settled(size, PSI[regime], T, steps=min(100_000, T // 2))
    assert timed(f"step, {regime}", partial(core.run, n), n, rounds=5) == 0


@pytest.mark.parametrize("regime", PSI)
@pytest.mark.parametrize("size", SIZES[:2], ids="{:.0e}".format)
def test_eager_step(timed, size, regime):
    core = problem(size, PSI[regime]).eager(after=settled(size, PSI[regime]))
    assert timed(f"step, {regime}", partial(core.run, 500), 500, rounds=3) == 0


@pytest.mark.parametrize("regime", PSI)
def test_numpy_step(timed, regime):
    size = SIZES[0]
    follower = problem(size, PSI[regime]).twin(settled(size, PSI[regime]))
    draws = iter(zip(*(column.tolist() for column in problem(size, PSI[regime]).sampler(2).draw(400)), strict=True))

    def run():
        for _ in range(50):
            follower.step(*next(draws))

    timed(f"step, {regime}", run, 50, rounds=3)
    assert sum(follower.cases) >= 50


@pytest.mark.parametrize("size", SIZES, ids="{:.0e}".format)
def test_floor_of_a_step(timed, size):
    core = settled(size, LOOSE)
    assert np.isfinite(timed("step, slack", partial(_kernels.bare_loop, core, STEPS), STEPS, rounds=5))


# Sampling -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10**4, 10**7], ids="{:.0e}".format)
@pytest.mark.parametrize("order", ["replacement", "shuffle", "trajectory", "alias"])
def test_draws(timed, order, size):
    """A record and an initial state a draw; "alias" draws records of counts by their weights."""
    repeats = np.full(size // 10, 10) if order == "alias" else None
    name = "replacement" if order == "alias" else order
    states = np.arange(100, dtype=np.int32)
    sampler = _core.Sampler(np.random.PCG64(0), size, name, states, np.full(100, 0.01), repeats)
    drawn, _ = timed("sampling", partial(sampler.draw, STEPS), STEPS)
    assert 0 <= drawn.min() <= drawn.max() < size


def test_bounded_integers(timed):
    drawn = timed("sampling", partial(_kernels.bounded_integers, np.random.PCG64(0), 1000, STEPS), STEPS)
    assert drawn.max() == 999


def test_numpy_draws(timed):
    rng = np.random.default_rng(0)
    drawn = timed("sampling", lambda: (rng.integers(0, 10**4, STEPS), rng.choice(100, STEPS)), STEPS)
    assert drawn[0].max() < 10**4


# Gradients and mirror steps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_utilities", [1, 4, 20])
@pytest.mark.parametrize("size", SIZES[:2], ids="{:.0e}".format)
def test_gradients(timed, size, n_utilities):
    core = Bench(size, LOOSE, n_utilities).lazy()
    assert np.isfinite(timed("gradients", partial(_kernels.gradients, core, records(core)), STEPS))


@pytest.mark.parametrize("size", SIZES, ids="{:.0e}".format)
def test_V_update(timed, size):
    V = np.zeros(size // 10)
    states = np.random.default_rng(0).integers(0, len(V), (1000, 3), dtype=np.int32)
    update = partial(_kernels.V_update, V, states, 1.0, 0.9, 1e-3, 10.0, 20)
    assert abs(timed("V update", update, STEPS)).max() <= 10


def test_numpy_V_update(timed):
    V, g = np.zeros(100), np.zeros(100)
    g[:3] = 1.0, -1.0, 0.9
    assert abs(timed("V update", lambda: [np.clip(V - 1e-3 * g, -10, 10) for _ in range(200)], 200)[-1]).max() <= 10


@pytest.mark.parametrize("n_utilities", [1, 4, 20])
@pytest.mark.parametrize("radius", [40.0, 1e-3], ids=["inside", "scaled"])
def test_lam_update(timed, n_utilities, radius):
    log_lam = np.full(n_utilities, -np.log(n_utilities))
    u = np.linspace(-1e-6, 1e-6, n_utilities)
    _, lam = timed("lam update", partial(_kernels.lam_update, log_lam, u, 1.0, 0.01, radius, STEPS), STEPS)
    assert lam.sum() <= radius * (1 + 1e-12)


def test_numpy_lam_update(timed):
    log_lam, u = np.zeros(4) - 2, np.linspace(-1e-6, 1e-6, 4)
    found = timed("lam update", lambda: [twin.lam_update(log_lam, 0.01 * u, 40.0) for _ in range(200)], 200)
    assert np.exp(found[-1]).sum() <= 40


# The x-update ---------------------------------------------------------------------------------------------------------


def bound(core, B1, B2):
    """A core from the same point, whose sums are bounded by these multiples of what they are."""
    layout = core.layout
    total, weighted = core.running_sums
    constants = replace(layout.constants, B1=B1 * total, B2=B2 * weighted)
    start = core.log_x, core.point[1], core.log_lam
    return _core.LazyCore(replace(layout, constants=constants), core.sampler, *start)


def raising(core, case):
    """Records whose pairs violate, when they grow a little, exactly the sums that are tight in this case."""
    drawn = records(core, 10 * STEPS)
    c, x = core.members["c"], core.x
    total, weighted = core.running_sums
    pair = core.layout.descent.records["pair"][drawn]
    if case == 4:  # neither one common factor makes room in sum c x, nor factors exp(-c beta) in sum x
        drawn = drawn[(c[pair] > weighted / total) & (c[pair] < (c**2 * x).sum() / weighted)]
    return np.resize(drawn, STEPS)


@pytest.mark.parametrize("case", [1, 2, 3, 4])
@pytest.mark.parametrize("size", SIZES[:3], ids="{:.0e}".format)
def test_x_update(timed, size, case):
    """All updates but a few are in one case; in case 1 they alternate, in the others x_j grows by 10^-4 of itself.

    Nothing is prefetched here, as it is in a run, so with 10^5 pairs memory takes most of the time.
    """
    multiples = {1: (2.0, 2.0), 2: (1.0, 2.0), 3: (2.0, 1.0), 4: (1.0, 1.0)}[case]
    core = bound(settled(size, LOOSE), *multiples)
    drawn = raising(core, case)
    steps = np.full(STEPS, 1e-4)
    steps[::2] *= -1 if case == 1 else 1
    assert timed(f"x-update, case {case}", partial(_kernels.x_updates, core, drawn, steps), STEPS, rounds=5) == 0
    cases = [core.diagnostics[f"case_{k}"] for k in (1, 2, 3, 4)]
    assert cases[case - 1] > 0.9 * sum(cases)


@pytest.mark.parametrize("case", [1, 2, 3, 4])
def test_numpy_x_update(timed, case):
    multiples = {1: (2.0, 2.0), 2: (1.0, 2.0), 3: (2.0, 1.0), 4: (1.0, 1.0)}[case]
    core = bound(settled(SIZES[0], LOOSE), *multiples)
    j = int(core.layout.descent.records["pair"][raising(core, case)[0]])
    constants, c = core.layout.constants, core.members["c"].copy()
    step = -1e-4 if case == 1 else 1e-4
    arguments = core.log_x, c, core.layout.log_cap[j], j, step, constants.B1, constants.B2
    found = timed(f"x-update, case {case}", lambda: [twin.x_update(*arguments) for _ in range(5)], 5, rounds=3)
    assert found[-1][1] == case


@pytest.mark.parametrize("size", SIZES[:3], ids="{:.0e}".format)
@pytest.mark.parametrize("sums", ["bins", "powers"])
def test_root_finder(timed, size, sums):
    core = bound(settled(size, LOOSE), 2.0, 1.0)
    pair = int(core.layout.descent.records["pair"][records(core, 1)[0]])
    beta = timed("root finder", partial(_kernels.roots, core, pair, 1e-3, 1000, sums == "powers"), 1000)
    assert beta > 0


@pytest.mark.parametrize("size", SIZES[:3], ids="{:.0e}".format)
def test_root_finder_on_a_dense_vector(timed, size):
    core = bound(settled(size, LOOSE), 2.0, 1.0)
    constants, c, n = core.layout.constants, core.members["c"].copy(), max(1, 10**5 // size)
    arguments = core.log_x, c, 700.0, 0, 0.1, constants.B1, constants.B2
    assert timed("root finder", partial(_kernels.find_root, *arguments, n), n) > 0


# What is done now and then --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fold", "rebase", "refresh"])
@pytest.mark.parametrize("size", SIZES[:3], ids="{:.0e}".format)
def test_upkeep(timed, size, name):
    core, n = settled(size, TIGHT), max(1, 10**5 // size)
    assert np.isfinite(timed(name, partial(getattr(_kernels, name), core, n), n))


@pytest.mark.parametrize("name", ["averages", "state", "restore"])
@pytest.mark.parametrize("size", SIZES[:3], ids="{:.0e}".format)
def test_reading(timed, size, name):
    """Averages of all three variables; the state that a checkpoint stores, and its way back."""
    core = settled(size, TIGHT)
    functions = {"averages": lambda: core.means, "state": core.state, "restore": partial(core.restore, core.state())}
    timed({"averages": "averages"}.get(name, "checkpoint"), functions[name], 1)
    assert core.n_steps == 100_000
