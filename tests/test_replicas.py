"""Many runs at once: the same bits on every executor, averages that are averages, and nothing lost to Ctrl-C."""

import concurrent.futures as cf
import os
import re
import signal
import threading
import time
import warnings

import numpy as np
import pytest

from dpdl import Dataset, Settings, Status, instances, learn, replicate, sweep
from dpdl._many import PLAN
from dpdl.result import Result

SETTINGS = Settings(gamma=0.5, psi=3, slater=0.3, T=4000)
RHO0 = np.full(4, 1 / 4)


@pytest.fixture(scope="module")
def log():
    return instances.garnet(4, 2, 1, branching=2, gamma=0.5, slater=0.3, rng=0).sample(
        500, np.full((4, 2), 1 / 8), rng=0
    )


@pytest.fixture(scope="module")
def stored(log, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "log"
    log.save(path)
    return Dataset.open(path)


def bits(result: Result) -> tuple:
    last = result.last
    arrays = (result.x_mean, result.V_mean, result.lam_mean, last.log_x, last.V, last.log_lam)
    return *(array.tobytes() for array in arrays), result.n_steps, tuple(result.diagnostics.items())


def one_by_one(log, n, **options):
    seeds = np.random.SeedSequence(7).spawn(n)
    return [learn(log, SETTINGS, rho0=RHO0, rng=np.random.default_rng(seed), **options) for seed in seeds]


def same(replicas, results):
    return [bits(one) for one in replicas.results] == [bits(one) for one in results]


@pytest.mark.parametrize("order", ["replacement", "shuffle", "trajectory"])
def test_replicas_are_the_runs_of_spawned_seeds(log, order):
    found = replicate(log, SETTINGS, n=3, rho0=RHO0, rng=7, order=order)
    assert same(found, one_by_one(log, 3, order=order))
    assert found.result.status is Status.COMPLETED
    assert found.numbers == (0, 1, 2)


def test_a_replica_is_the_same_whatever_their_number_and_the_workers(log):
    few = replicate(log, SETTINGS, n=2, rho0=RHO0, rng=7)
    with cf.ThreadPoolExecutor(1) as pool:
        many = replicate(log, SETTINGS, n=5, rho0=RHO0, rng=7, executor=pool)
        assert pool.submit(int, 3).result() == 3  # it is left open
    assert [bits(one) for one in many.results[:2]] == [bits(one) for one in few.results]


def test_processes_give_the_same_bits(stored):
    with cf.ProcessPoolExecutor(2) as pool:
        found = replicate(stored, SETTINGS, n=3, rho0=RHO0, rng=7, executor=pool)
    assert same(found, one_by_one(stored, 3))


def test_dask_gives_the_same_bits(stored, tmp_path):
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Dask's own making
        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
        with (
            distributed.LocalCluster(**options, local_directory=str(tmp_path)) as cluster,
            cluster.get_client() as client,
        ):
            found = replicate(stored, SETTINGS, n=3, rho0=RHO0, rng=7, executor=client.get_executor())
            points = sweep(stored, SETTINGS, over={"psi": [2, 3]}, rho0=RHO0, rng=7, executor=client.get_executor())
            timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            partly = replicate(stored, SETTINGS, n=4, T=10**11, rho0=RHO0, rng=7, executor=client.get_executor())
            timer.join()
    assert same(found, one_by_one(stored, 3))
    assert [one.status for one in partly.results] == [Status.INTERRUPTED] * 2
    assert [bits(result) for _, result in points] == [
        bits(learn(stored, SETTINGS, psi=psi, rho0=RHO0, rng=7)) for psi in (2, 3)
    ]


def test_the_average_and_the_spread_are_those_of_the_replicas(log):
    found = replicate(log, SETTINGS, n=4, rho0=RHO0, rng=7)
    x = np.array([one.x_mean for one in found.results])
    np.testing.assert_allclose(found.result.x_mean, x.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.result.V_mean, np.mean([one.V_mean for one in found.results], axis=0), atol=1e-13)
    np.testing.assert_allclose(found.result.lam_mean, np.mean([one.lam_mean for one in found.results], axis=0))
    np.testing.assert_allclose(found.spread.x, x.std(axis=0, ddof=1), rtol=1e-9)
    share = found.result.x_mean / found.result.x_mean.sum()
    occupancy = [0.5 * abs(one / one.sum() - share).sum() for one in x]
    assert found.spread.occupancy_distance == pytest.approx(np.mean(occupancy))
    apart = [0.5 * abs(one.policy - found.result.policy).sum(axis=1) @ share.sum(axis=1) for one in found.results]
    assert found.spread.policy_distance == pytest.approx(np.mean(apart))
    assert found.result.n_steps == 4 * 4000
    assert found.result.guarantee is None
    assert found.result.diagnostics["steps"] == 16000


def test_replicas_that_took_more_steps_weigh_more(log):
    def callback(result):
        if result.n_steps >= limits[threading.get_ident() % 2]:
            raise StopIteration

    limits = (1000, 3000)
    with cf.ThreadPoolExecutor(1) as pool:
        found = replicate(log, SETTINGS, n=2, rho0=RHO0, rng=7, executor=pool, callback=callback, callback_every=1000)
    steps = np.array([one.n_steps for one in found.results])
    x = np.array([one.x_mean for one in found.results])
    np.testing.assert_allclose(found.result.x_mean, np.tensordot(steps / steps.sum(), x, 1), rtol=1e-13)
    assert found.result.status is Status.STOPPED


def test_one_replica_has_no_spread(log):
    found = replicate(log, SETTINGS, n=1, rho0=RHO0, rng=7)
    np.testing.assert_allclose(found.result.x_mean, found.results[0].x_mean, rtol=1e-13)
    assert np.isnan(found.spread.policy_distance)


@pytest.mark.parametrize("order", ["replacement", "shuffle", "trajectory"])
def test_replicas_that_were_stopped_anywhere_go_on_bit_for_bit(stored, order, tmp_path):
    whole = replicate(stored, SETTINGS, n=3, rho0=RHO0, rng=7, order=order)
    rng = np.random.default_rng(0)
    common = {"rho0": RHO0, "order": order, "checkpoint": tmp_path / "runs", "check_slater": False}
    replicate(stored, SETTINGS, n=2, rng=7, step_limit=int(rng.integers(1, 4000)), resume=True, **common)  # none yet
    for limit in np.sort(rng.integers(1, 4000, 3)):
        replicate(stored, SETTINGS, n=3, rng=7, step_limit=int(limit), resume=True, **common)
    with cf.ProcessPoolExecutor(2) as pool:
        again = replicate(stored, SETTINGS, n=3, resume=True, executor=pool, **common)
    assert [bits(one) for one in again.results] == [bits(one) for one in whole.results]


def test_a_folder_of_other_runs_is_refused(stored, tmp_path):
    common = {"n": 2, "rho0": RHO0, "checkpoint": tmp_path / "runs"}
    replicate(stored, SETTINGS, rng=7, **common)
    with pytest.raises(FileExistsError, match="is not empty; resume=True goes on"):
        replicate(stored, SETTINGS, rng=7, **common)
    with pytest.raises(ValueError, match="is of other runs: entropy = 7, not 8"):
        replicate(stored, SETTINGS, rng=8, resume=True, **common)
    with pytest.raises(ValueError, match=re.escape("has other settings: psi = 3.0, not 4.0")):
        replicate(stored, SETTINGS, rng=7, psi=4, resume=True, **common)
    with pytest.raises(ValueError, match="has other initial states"):
        replicate(stored, SETTINGS, rng=7, resume=True, **(common | {"rho0": [1.0, 0, 0, 0]}))
    with pytest.raises(TypeError, match=r"^resume needs checkpoint"):
        replicate(stored, SETTINGS, n=2, rho0=RHO0, resume=True)
    assert (tmp_path / "runs" / PLAN).exists()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_ctrl_c_returns_what_was_done(stored, kind):
    """Four runs on two workers: those that have begun come back, whole or in part, the others do not begin."""
    pool = cf.ThreadPoolExecutor(2) if kind == "threads" else cf.ProcessPoolExecutor(2)
    began = time.monotonic()
    with pool:
        pool.submit(int).result()
        timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        found = replicate(stored, SETTINGS, n=4, T=10**11, rho0=RHO0, rng=7, executor=pool, progress=False)
        timer.join()
    assert time.monotonic() - began < 30
    assert found.result.status is Status.INTERRUPTED
    assert len(found.results) == 2
    for k, one in zip(found.numbers, found.results, strict=True):
        assert one.status is Status.INTERRUPTED
        seed = np.random.SeedSequence(7).spawn(4)[k]
        again = learn(stored, SETTINGS, T=10**11, rho0=RHO0, rng=np.random.default_rng(seed), step_limit=one.n_steps)
        assert bits(again) == bits(one)


def test_an_error_in_one_run_stops_the_others(log):
    def callback(result):
        raise RuntimeError("no")

    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^no$"):
        replicate(log, SETTINGS, n=4, T=10**11, rho0=RHO0, rng=7, callback=callback, callback_seconds=0.1)
    assert time.monotonic() - began < 20


def test_a_sweep_runs_every_combination_with_the_same_draws(log):
    found = sweep(log, SETTINGS, over={"psi": [2, 3], "kappa": [0.0, 0.1]}, rho0=RHO0, rng=7)
    assert [point for point, _ in found] == [{"psi": psi, "kappa": kappa} for psi in (2, 3) for kappa in (0.0, 0.1)]
    for point, result in found:
        assert bits(result) == bits(learn(log, SETTINGS, **point, rho0=RHO0, rng=7))
    assert found.success
    assert len(str(found).splitlines()) == 5
    seeds = sweep(log, SETTINGS, over={"rng": [1, 2]}, rho0=RHO0)
    assert [bits(result) for _, result in seeds] == [bits(learn(log, SETTINGS, rho0=RHO0, rng=k)) for k in (1, 2)]


def test_a_sweep_goes_on_from_its_checkpoints(log, tmp_path):
    common = {"over": {"psi": [2, 3]}, "rho0": RHO0, "rng": 7, "checkpoint": tmp_path / "sweep"}
    sweep(log, SETTINGS, step_limit=1234, **common)
    again = sweep(log, SETTINGS, resume=True, **common)
    assert [bits(result) for _, result in again] == [
        bits(learn(log, SETTINGS, psi=psi, rho0=RHO0, rng=7)) for psi in (2, 3)
    ]
    for changed in ({"psi": [2, 4]}, {"psi": [2, 3, 4]}):
        with pytest.raises(ValueError, match=r"checkpoint.* (has other settings: psi|is of other runs: points) = "):
            sweep(log, SETTINGS, resume=True, **(common | {"over": changed}))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be"),
        ({"executor": 3}, TypeError, "executor must be a concurrent.futures.Executor, got int"),
        ({"psi": 0.5}, ValueError, "psi must be >= 1"),
        ({"unheard": 1}, TypeError, "unknown setting 'unheard'"),
        ({"rho0": None}, TypeError, "give either rho0 or initial_states"),
        ({"rng": "a"}, TypeError, "rng must be None"),
        ({"resume": 1}, TypeError, "resume must be True or False, got 1"),
        ({"callback": 3}, TypeError, "callback must be callable"),
        ({"progress": 1}, TypeError, "progress must be True, False or None, got 1"),
    ],
)
def test_bad_arguments_are_named(log, changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        replicate(log, SETTINGS, **({"n": 2, "rho0": RHO0, "rng": 7} | changes))


def test_what_cannot_travel_is_refused(log, stored):
    with cf.ProcessPoolExecutor(1) as pool:
        with pytest.raises(ValueError, match=r"^dataset has no path.*ProcessPoolExecutor.*Dataset.save"):
            replicate(log, SETTINGS, n=2, rho0=RHO0, executor=pool)
        with pytest.raises(ValueError, match=r"^callback cannot be called from the workers of a ProcessPoolExecutor"):
            replicate(stored, SETTINGS, n=2, rho0=RHO0, executor=pool, callback=print)


@pytest.mark.parametrize(
    ("over", "error", "message"),
    [
        ({}, ValueError, "over is empty"),
        ({"psi": []}, ValueError, "over['psi'] is empty"),
        ({"phi": [1]}, ValueError, "over['phi'] is no setting"),
        ({"psi": 3}, TypeError, "over['psi'] must be a sequence of values, got int"),
        ({"rng": [1]}, TypeError, "rng is given and swept over as well"),
        ([("psi", [1])], TypeError, "over must be a mapping"),
        ({"psi": [2, 0.5]}, ValueError, "psi must be >= 1"),
    ],
)
def test_grids_that_make_no_sense_are_refused(log, over, error, message):
    with pytest.raises(error, match=re.escape(message)):
        sweep(log, SETTINGS, over=over, rho0=RHO0, rng=7)
