"""Many runs at once: the same bits on every executor, averages that are averages, and nothing lost to Ctrl-C."""

import concurrent.futures as cf
import hashlib
import os
import re
import signal
import sys
import threading
import time
from fractions import Fraction

import numpy as np
import pytest

from dpdl import Dataset, Settings, Status, instances, learn, replicate, sweep
from dpdl.data.reference import estimate_reference
from dpdl.learner import defaults
from dpdl.learner.layout import Coordinates
from long_runs import bits
from problems import random_log

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


def press_once(begun, kill=os.kill):
    """Ctrl-C as soon as that is true, and a run that has just begun has taken a step."""

    def press():
        while not begun():
            time.sleep(0.01)
        time.sleep(0.2)
        kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    return thread


def digests(results):
    return [hashlib.sha256(repr(bits(result)).encode()).hexdigest() for result in results]


def test_the_average_and_the_distance_are_those_of_the_replicas(log):
    found = replicate(log, SETTINGS, n=4, rho0=RHO0, rng=7)
    x = np.array([one.x_mean for one in found.results])
    np.testing.assert_allclose(found.result.x_mean, x.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.result.V_mean, np.mean([one.V_mean for one in found.results], axis=0), atol=1e-13)
    np.testing.assert_allclose(found.result.lam_mean, np.mean([one.lam_mean for one in found.results], axis=0))
    share = found.result.x_mean / found.result.x_mean.sum()
    apart = [0.5 * abs(one.policy - found.result.policy).sum(axis=1) @ share.sum(axis=1) for one in found.results]
    assert found.distance == pytest.approx(np.mean(apart))
    assert found.result.n_steps == 4 * 4000
    assert found.result.guarantee is None
    assert found.result.diagnostics["steps"] == 16000


def test_replicas_that_took_more_steps_weigh_more(log):
    limits = [1000, 3000, 2000]

    def callback(result):
        if result.n_steps == limits[0]:
            limits.pop(0)
            raise StopIteration

    with cf.ThreadPoolExecutor(1) as pool:  # one after the other
        found = replicate(log, SETTINGS, n=3, rho0=RHO0, rng=7, executor=pool, callback=callback, callback_every=1000)
    assert [one.n_steps for one in found.results] == [1000, 3000, 2000]
    assert found.result.n_steps == 6000
    assert found.result.status is Status.STOPPED
    shares = np.array([1, 3, 2]) / 6

    def mean(of):
        return np.tensordot(shares, [of(one) for one in found.results], 1)

    for of in (
        lambda one: one.x_mean,
        lambda one: one.V_mean,
        lambda one: one.lam_mean,
        lambda one: one.last.x,
        lambda one: one.last.V,
        lambda one: np.exp(one.last.log_lam),
    ):
        np.testing.assert_allclose(of(found.result), mean(of), rtol=1e-12)
    visits = found.result.x_mean.sum(axis=1) / found.result.x_mean.sum()
    apart = mean(lambda one: abs(one.policy - found.result.policy).sum(axis=1) @ visits / 2)
    assert found.distance == pytest.approx(apart)


def test_one_replica_has_no_distance(log):
    found = replicate(log, SETTINGS, n=1, rho0=RHO0, rng=7)
    np.testing.assert_allclose(found.result.x_mean, found.results[0].x_mean, rtol=1e-13)
    assert np.isnan(found.distance)


@pytest.mark.parametrize("order", ["replacement", "shuffle", "trajectory"])
def test_replicas_that_were_stopped_at_20_places_go_on_bit_for_bit(stored, order, tmp_path):
    whole = replicate(stored, SETTINGS, n=3, rho0=RHO0, rng=7, order=order)
    common = {"rho0": RHO0, "order": order, "checkpoint": tmp_path / "runs", "resume": True}
    limits = np.sort(np.random.default_rng(0).integers(1, 4000, 20))
    for k, limit in enumerate(limits.tolist()):
        # None is there at first; the third one joins late. The seed is asked for once, and is kept after that.
        replicate(stored, SETTINGS, n=2 if k < 7 else 3, rng=7 if k == 0 else None, step_limit=limit, **common)
    with cf.ProcessPoolExecutor(2) as pool:
        again = replicate(stored, SETTINGS, n=3, executor=pool, **common)
    assert [bits(one) for one in again.results] == [bits(one) for one in whole.results]


def test_a_folder_of_other_runs_is_refused(stored, tmp_path):
    common = {"n": 2, "rho0": RHO0, "checkpoint": tmp_path / "runs"}
    replicate(stored, SETTINGS, rng=7, **common)
    with pytest.raises(FileExistsError, match="must be an empty folder, or absent; resume=True resumes"):
        replicate(stored, SETTINGS, rng=7, **common)
    with pytest.raises(ValueError, match="belongs to another call: it has another seed than rng = 8"):
        replicate(stored, SETTINGS, rng=8, resume=True, **common)
    with pytest.raises(ValueError, match=re.escape("another run: psi = 3.0, not 4.0")):
        replicate(stored, SETTINGS, rng=7, psi=4, resume=True, **common)
    with pytest.raises(ValueError, match="rho0, reference or the part of the log differ"):
        replicate(stored, SETTINGS, rng=7, resume=True, **(common | {"rho0": [1.0, 0, 0, 0]}))
    for changes, message in (
        ({"n_reference": 100}, "another run: n_reference = None, not 100"),
        ({"known": ["psi"]}, re.escape("another run: known = [], not ['psi']")),
        (
            {"reference": estimate_reference(stored[:100], SETTINGS.resolve(4, 2, 1).floor)},
            "another run: reference_given = False, not True",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            replicate(stored, SETTINGS, rng=7, resume=True, **common, **changes)
    with pytest.raises(TypeError, match=r"^resume needs checkpoint"):
        replicate(stored, SETTINGS, n=2, rho0=RHO0, resume=True)
    started = common | {"checkpoint": tmp_path / "started"}
    one, other = (learn(stored, SETTINGS, rho0=RHO0, rng=seed).last for seed in (7, 8))
    replicate(stored, SETTINGS, rng=7, start=one, **started)
    with pytest.raises(ValueError, match="another run: start = 'given"):
        replicate(stored, SETTINGS, resume=True, start=other, **started)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "something").touch()
    with pytest.raises(FileNotFoundError, match=r"has no file 'runs\.json'"):
        replicate(stored, SETTINGS, n=2, rho0=RHO0, checkpoint=tmp_path / "other", resume=True)
    with pytest.raises(FileNotFoundError, match=r"checkpoint: there is no folder .*absent to put runs into"):
        replicate(stored, SETTINGS, n=2, rho0=RHO0, checkpoint=tmp_path / "absent" / "runs")


def test_a_refused_folder_leaves_the_generator_alone(stored, tmp_path):
    (tmp_path / "something").touch()
    rng = np.random.default_rng(7)
    with pytest.raises(FileExistsError, match="must be an empty folder"):
        replicate(stored, SETTINGS, n=2, rho0=RHO0, rng=rng, checkpoint=tmp_path)
    assert rng.bit_generator.seed_seq.n_children_spawned == 0


def test_an_error_says_how_to_go_on(stored, tmp_path):
    common = {"n": 2, "rho0": RHO0, "checkpoint": tmp_path / "runs"}

    def callback(result):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match=r"^no\n") as raised:
        replicate(stored, SETTINGS, rng=7, callback=callback, **common)
    assert raised.value.__notes__ == [f"The runs can be resumed from {tmp_path / 'runs'} with resume=True."]
    assert same(replicate(stored, SETTINGS, resume=True, **common), one_by_one(stored, 2))


@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_ctrl_c_returns_what_was_done(stored, kind, tmp_path):
    """Eight runs on two workers: those that have begun come back, whole or in part, the others do not begin."""
    ignore = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    pool, options = cf.ProcessPoolExecutor(2, **ignore), {"checkpoint": tmp_path / "runs", "time_limit": 3}
    begun = lambda: len(list(tmp_path.glob("runs/replica-[0-9]"))) == 2  # noqa: E731
    if kind == "threads":
        threads = set()
        pool, begun = cf.ThreadPoolExecutor(2), lambda: len(threads) == 2
        options = {"callback": lambda result: threads.add(threading.get_ident()), "callback_seconds": 0}
    with pool:
        finger = press_once(begun)
        found = replicate(stored, SETTINGS, n=8, T=10**11, rho0=RHO0, rng=7, executor=pool, progress=False, **options)
        finger.join()
    assert found.result.status is Status.INTERRUPTED
    fetched = 3 if kind == "processes" else 0  # a process pool fetches as many tasks as it has workers, and one more
    assert 2 <= len(found.results) <= 2 + fetched
    for k, one in zip(found.numbers, found.results, strict=True):
        assert one.status is (Status.INTERRUPTED if kind == "threads" else Status.TIME_LIMIT)
        seed = np.random.SeedSequence(7).spawn(8)[k]
        again = learn(stored, SETTINGS, T=10**11, rho0=RHO0, rng=np.random.default_rng(seed), step_limit=one.n_steps)
        assert bits(again) == bits(one)


def test_an_error_in_one_run_stops_the_others(log):
    """Four runs of years on two threads: the error of the first to speak comes at once, and no thread goes on."""
    first, n_steps = threading.Event(), []

    def callback(result):
        n_steps.append(result.n_steps)
        if not first.is_set():
            first.set()
            raise RuntimeError("no")

    options = {"T": 10**15, "callback": callback, "callback_seconds": 0.05}
    with cf.ThreadPoolExecutor(2) as pool, pytest.raises(RuntimeError, match=r"^no$"):
        replicate(log, SETTINGS, n=4, rho0=RHO0, rng=7, executor=pool, **options)
    assert max(n_steps) < 10**12  # leaving the pool waits for its threads


def test_a_sweep_runs_every_combination_with_the_same_draws(log):
    found = sweep(log, SETTINGS, over={"psi": [2, 3], "kappa": [0.0, 0.1]}, rho0=RHO0, rng=7)
    assert [point for point, _ in found] == [{"psi": psi, "kappa": kappa} for psi in (2, 3) for kappa in (0.0, 0.1)]
    for point, result in found:
        assert bits(result) == bits(learn(log, SETTINGS, **point, rho0=RHO0, rng=7))
    assert found.success
    assert len(str(found).splitlines()) == 5
    seeds = sweep(log, SETTINGS, over={"rng": [1, 2]}, rho0=RHO0)
    assert [bits(result) for _, result in seeds] == [bits(learn(log, SETTINGS, rho0=RHO0, rng=k)) for k in (1, 2)]


def test_values_of_any_kind_can_be_swept_over(log, tmp_path):
    over = {"psi": [Fraction(5, 2), np.float64(3)], "floor": [None, 1e-3]}
    found = sweep(log, SETTINGS, over=over, rho0=RHO0, rng=np.uint8(7), checkpoint=tmp_path / "runs")
    assert "None" in str(found)
    assert bits(found[0][1]) == bits(learn(log, SETTINGS, psi=2.5, rho0=RHO0, rng=7))
    with pytest.raises(TypeError, match=r"over\['psi'\] must be a sequence of values"):
        sweep(log, SETTINGS, over={"psi": np.array(2.0)}, rho0=RHO0, rng=7)


def test_a_generator_without_a_seed_sequence_will_do(log):
    rng = np.random.Generator(np.random.RandomState(7)._bit_generator)
    first, second = (replicate(log, SETTINGS, n=2, rho0=RHO0, rng=rng) for _ in range(2))
    assert not same(first, second.results)


def test_a_sweep_goes_on_from_its_checkpoints(log, tmp_path):
    common = {"over": {"psi": [2, 3]}, "rho0": RHO0, "rng": 7, "checkpoint": tmp_path / "sweep"}
    sweep(log, SETTINGS, step_limit=1234, **common)
    again = sweep(log, SETTINGS, resume=True, **common)
    assert [bits(result) for _, result in again] == [
        bits(learn(log, SETTINGS, psi=psi, rho0=RHO0, rng=7)) for psi in (2, 3)
    ]
    for changed in ({"psi": [2, 4]}, {"psi": [2, 3, 4]}):
        with pytest.raises(ValueError, match=r"checkpoint.* (another run: psi|belongs to another call: points) = "):
            sweep(log, SETTINGS, resume=True, **(common | {"over": changed}))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be"),
        ({"executor": 3}, TypeError, "executor must be a concurrent.futures.Executor, got int"),
        ({"psi": 0.5}, ValueError, "psi must be >= 1"),
        ({"unheard": 1}, TypeError, "unexpected keyword argument 'unheard'; its arguments are T, "),
        ({"rng": "a"}, TypeError, "rng must be None"),
        ({"resume": 1}, TypeError, "resume must be True or False, got 1"),
        ({"callback": 3}, TypeError, "callback must be callable"),
    ],
)
def test_bad_arguments_are_named(log, changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        replicate(log, SETTINGS, **({"n": 2, "rho0": RHO0, "rng": 7} | changes))


def test_what_cannot_travel_is_refused(log, stored):
    with cf.ProcessPoolExecutor(1) as pool:
        with pytest.raises(ValueError, match=r"^log has no path.*ProcessPoolExecutor.*Dataset.save"):
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
        ({"rng": [1]}, TypeError, "rng is given both as a keyword and in over"),
        ([("psi", [1])], TypeError, "over must be a mapping"),
        ({"psi": [2, 0.5]}, ValueError, "psi must be >= 1"),
    ],
)
def test_grids_that_make_no_sense_are_refused(log, over, error, message):
    with pytest.raises(error, match=re.escape(message)):
        sweep(log, SETTINGS, over=over, rho0=RHO0, rng=7)


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({"kappa": [0.0, 0.1, 0.2, 0.3]}, 1),
        ({"psi": [2, 3], "floor": [1e-4, 1e-3]}, 2),
        ({"floor": [1e-4, 1e-3], "psi": [2, 3]}, 2),
        ({"psi": [2, 2, 2]}, 1),
    ],
)
def test_a_sweep_lays_out_each_mu_hat_once(monkeypatch, over, expected):
    calls = []
    plain = Coordinates.of
    monkeypatch.setattr(Coordinates, "of", lambda *arguments: calls.append(1) or plain(*arguments))
    settings = {"gamma": 0.8, "slater": 0.3, "T": 100, "rho0": [0.25] * 4} | ({} if "psi" in over else {"psi": 2})
    sweep(random_log(4, 3, 200, 1, seed=0), over=over, rng=0, **settings)
    assert len(calls) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
@pytest.mark.parametrize("kind", ["replicas", "points"])
def test_a_folder_of_checkpoints_in_use_is_refused(log, tmp_path, kind):
    function, what = (replicate, {"n": 2}) if kind == "replicas" else (sweep, {"over": {"kappa": [0.0, 0.1]}})
    common = {**what, "rho0": RHO0, "rng": 7, "checkpoint": tmp_path / "runs"}

    def try_as_well(result):
        with pytest.raises(BlockingIOError, match=r"another run .*is using it: '.*lock'$"):
            function(log, SETTINGS, **common, resume=True)

    first = function(log, SETTINGS, **common, callback=try_as_well, callback_every=2000)
    again = function(log, SETTINGS, **common, resume=True)
    assert [bits(one) for one in again.results] == [bits(one) for one in first.results]


# ---- Progress ----


def test_every_point_of_a_sweep_has_the_defaults_that_learn_would_find(log):
    options = {"T": 500, "rho0": [1 / log.n_states] * log.n_states, "rng": 0}
    for point, result in sweep(log, over={"gamma": [0.5, 0.9]}, **options):
        assert result.settings == learn(log, **point, **options).settings


def test_what_is_derived_follows_the_point_of_a_sweep(log):
    """alpha_x, floor and eta of psi = 50 are those of psi = 50, whatever the settings were derived from before."""
    base = Settings.from_theory(log.n_states, log.n_actions, 1, gamma=0.5, slater=0.4, psi=2, eps=0.15)
    for point, result in sweep(log, base, over={"psi": [2, 50]}, T=100, rho0=RHO0, rng=0):
        assert result.settings == Settings(gamma=0.5, slater=0.4, eps=0.15, T=100, **point).resolve(
            log.n_states, log.n_actions, 1
        )


def test_replicas_plan_once(log, monkeypatch):
    calls, plain = [], defaults.plan
    monkeypatch.setattr(defaults, "plan", lambda *arguments: calls.append(1) or plain(*arguments))
    replicate(log, n=3, gamma=0.8, T=100, rho0=RHO0, rng=0)
    assert len(calls) == 1


class Serial(cf.Executor):
    """Any executor will do: this one runs a task when it is submitted."""

    def submit(self, function, /, *arguments):
        future = cf.Future()
        future.set_result(function(*arguments))
        return future


def test_any_executor_gives_the_same_bits(stored):
    assert same(replicate(stored, SETTINGS, n=3, rho0=RHO0, rng=7, executor=Serial()), one_by_one(stored, 3))


@pytest.mark.slow
def test_dask_gives_the_same_bits(stored):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**options) as cluster, cluster.get_client() as client:
        found = replicate(stored, SETTINGS, n=3, rho0=RHO0, rng=7, executor=client.get_executor())
    assert same(found, one_by_one(stored, 3))
