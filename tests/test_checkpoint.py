"""Checkpoints: a run goes on from one bit for bit, and nothing but a whole one of the same run is taken for one."""

import contextlib
import errno
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dpdl import learn, peek, replicate, resume
from dpdl.data.dataset import Dataset
from dpdl.data.reference import Reference, estimate_reference
from dpdl.files.atomic import FileLock
from dpdl.learner import checkpoint
from dpdl.settings import Settings
from dpdl.stopping import Status
from long_runs import GOOD, LOG, RHO0, ForkServer, T, bits, break_off, greedy_log, run
from problems import ORDERS, random_log, random_walk

#: What is said of a checkpoint that this process or another one uses; Linux knows which.
IN_USE = r"another run \(process \d+\) is using it" if sys.platform == "linux" else "another run is using it"

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


@cache
def whole(order="replacement"):
    return bits(run(order=order))


def strays(path):
    """Files beside a checkpoint."""
    return sorted({file.name for file in path.parent.iterdir()} - {path.name})


def identity(path):
    """Changes whenever another file takes the place of this one."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


# ---- Going on, bit for bit ----


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_goes_on_bit_for_bit_from_wherever_it_was_broken_off(order, path):
    rng = np.random.default_rng(0)
    ahead = 0
    for n_steps in rng.integers(0, T, 10).tolist():
        half = break_off(path, n_steps, order=order)
        assert half.status is Status.INTERRUPTED
        assert n_steps < half.n_steps <= n_steps + 256
        ahead += len(checkpoint.read(path)[1]["records_ahead"]) > 0
        assert bits(half) == bits(run(order=order, step_limit=half.n_steps))
        result = resume(path, LOG)
        assert result.status is Status.COMPLETED
        assert bits(result) == whole(order)
        path.unlink()
    assert ahead > 7
    counts = whole(order)[2]
    assert min(counts[f"case_{k}"] for k in (1, 2, 3, 4)) > 100
    assert min(counts["capped"], counts["rebases"], counts["refreshes"]) > 50


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_where_updates_jump_and_x_falls_below_the_smallest_double(order, path):
    log = greedy_log(seed=2)
    changes = {"eta": 0.3, "alpha_x": 0.05, "floor": 1e-5, "refresh": 13, "T": 3000, "order": order}
    expected = run(log, **changes)
    assert expected.diagnostics["jumps"] > 0
    assert expected.last.x.min() < 1e-300
    for n_steps in np.random.default_rng(1).integers(0, 3000, 10).tolist():
        run(log, **changes, step_limit=n_steps, checkpoint=path)
        assert bits(resume(path, log)) == bits(expected)
        path.unlink()


def test_a_run_in_many_pieces(path):
    result = run(checkpoint=path, step_limit=0)
    assert (result.status, result.n_steps) == (Status.STEP_LIMIT, 0)
    for limit in (1, 2, 96, 97, 98, 1500, 1500, 4096, 5999):
        result = resume(path, LOG, step_limit=limit)
        assert (result.status, result.n_steps) == (Status.STEP_LIMIT, limit)
        assert bits(result) == bits(run(step_limit=limit))
    assert bits(resume(path, LOG)) == whole()


@pytest.mark.parametrize("name", checkpoint.GENERATORS)
@pytest.mark.parametrize("order", ["replacement", "shuffle"])
def test_every_generator_goes_on(name, order, path):
    def generator():
        rng = np.random.Generator(getattr(np.random, name)(3))
        rng.integers(0, 10, dtype=np.uint32)  # half a word is left over, which is part of the state
        return rng

    break_off(path, 700, order=order, rng=generator())
    assert bits(resume(path, LOG)) == bits(run(order=order, rng=generator()))


def with_start():
    return run(rng=1, T=100).last


def numpy_reference():
    sizes = np.array([len(LOG), 12, 4])
    return Reference(LOG.pairs, LOG.pair_counts, sizes[0], np.float64(GOOD["floor"]), sizes[1], sizes[2])


VARIANTS = {
    "no utilities": lambda: (greedy_log(n_utilities=0), {}),
    "many utilities": lambda: (greedy_log(n_utilities=7), {}),
    "every pair seen": lambda: (random_log(4, 2, 400, 1, seed=2), {"rho0": np.full(4, 0.25), "floor": 1e-3}),
    "one initial state": lambda: (LOG, {"rho0": np.eye(12)[3]}),
    "logged initial states": lambda: (LOG, {"rho0": None, "initial_states": [0, 3, 3, 11]}),
    "a split log": lambda: (LOG, {"n_reference": 100}),
    "a split log, in NumPy's numbers": lambda: (LOG, {"n_reference": np.int64(100), "T": np.int32(6000)}),
    "a split log, as a float": lambda: (LOG, {"n_reference": 1e2, "T": 6e3}),
    "a given reference": lambda: (LOG[50:], {"reference": estimate_reference(LOG[:80], GOOD["floor"])}),
    "a reference in NumPy's numbers": lambda: (LOG, {"reference": numpy_reference()}),
    "a given start": lambda: (LOG, {"start": with_start()}),
    "part of a log": lambda: (LOG[7:40], {}),
    "every third record": lambda: (LOG[::3], {"order": "shuffle"}),
    "one record": lambda: (LOG[5:6], {"order": "shuffle"}),
    "theory's settings": lambda: (LOG, {"eta": None, "alpha_x": None, "radius_V": None, "kappa": 0.1, "refresh": None}),
    "an accuracy": lambda: (LOG, {"eps": 0.3, "known": ["psi", "slater"], "mixing_time": 2.5, "order": "trajectory"}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_run_goes_on(variant, path):
    log, changes = VARIANTS[variant]()
    expected = run(log, **changes)
    break_off(path, 1000, log=log, **changes)
    result = resume(path, log)
    assert bits(result) == bits(expected)
    for name in ("status", "message", "settings", "premises", "guarantee", "notes"):
        assert getattr(result, name) == getattr(expected, name), name
    np.testing.assert_array_equal(result.reference.mu_hat, expected.reference.mu_hat)


def test_a_log_may_be_in_memory_before_and_in_a_folder_after_and_the_other_way_round(path, tmp_path):
    LOG.save(tmp_path / "log")
    opened = Dataset.open(tmp_path / "log")
    for before, after in ((LOG, opened), (opened, LOG)):
        break_off(path, 2000, log=before, order="shuffle")
        assert bits(resume(path, after)) == whole("shuffle")
        path.unlink()


def test_a_trajectory_goes_on_with_its_estimated_mixing_time(path):
    log = random_walk(3, 2, 20_000, 0, seed=0)
    settings = Settings(gamma=0.5, psi=2, slater=1, T=2000, order="trajectory", mixing_time="estimate")
    expected = learn(log, settings, rho0=[1, 0, 0], rng=0)
    learn(log, settings, rho0=[1, 0, 0], rng=0, step_limit=700, checkpoint=path)
    result = resume(path, log, settings)
    assert bits(result) == bits(expected)
    assert (result.settings, result.premises) == (expected.settings, expected.premises)
    with pytest.raises(ValueError, match="another run: mixing_time = "):
        resume(path, log, replace(settings, mixing_time=1.5))


def test_a_completed_run_gives_its_result_again_and_writes_nothing(path):
    expected = run(checkpoint=path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    result = resume(path, LOG)
    assert (result.status, result.notes) == (Status.COMPLETED, expected.notes)
    assert bits(result) == bits(expected) == whole()
    limited = resume(path, LOG, step_limit=10)
    assert (limited.status, bits(limited)) == (Status.COMPLETED, whole())
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_limits_count_steps_from_the_beginning_and_time_from_now(path):
    run(checkpoint=path, step_limit=500)
    late = resume(path, LOG, step_limit=100)
    assert (late.status, late.n_steps) == (Status.STEP_LIMIT, 500)
    timely = resume(path, LOG, time_limit=0)
    assert (timely.status, timely.n_steps) == (Status.TIME_LIMIT, 500)
    assert bits(timely) == bits(late) == bits(run(step_limit=500))
    assert bits(resume(path, LOG, time_limit=100)) == whole()


def test_settings_may_be_given_to_make_sure(path):
    settings = Settings(**GOOD)
    learn(LOG, settings, rho0=RHO0, rng=5, step_limit=500, checkpoint=path)
    for same in (settings, settings.resolve(12, 4, 2)):
        assert resume(path, LOG, same, step_limit=500).n_steps == 500
    for name, value, was in (
        ("psi", 5.0, 6.0),
        ("order", "shuffle", "replacement"),
        ("T", 5999, 6000),
        ("refresh", None, 97),
        ("radius_V", None, 0.5),  # None is not "whatever": a run without it would have theory's
    ):
        with pytest.raises(ValueError, match=f"{re.escape(str(path))} .* another run: {name} = {was!r}, not "):
            resume(path, LOG, replace(settings, **{name: value}))


# ---- Killed ----


@posix
@pytest.mark.parametrize("order", ["replacement", "shuffle"])
@pytest.mark.parametrize("n_lives", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_while_it_writes_goes_on_bit_for_bit(order, n_lives, path):
    rng = np.random.default_rng(7)
    run(T=10**12, order=order, step_limit=10, checkpoint=path)
    steps = [10]
    seen = set()
    with ForkServer() as server:
        for k in range(n_lives):
            before, patience = identity(path), time.monotonic() + 30
            child = server.fork("resume_endless", str(path))
            for _ in range(2 if k % 5 else 0):  # four out of five live to write what they began with, and then some
                while identity(path) == before:
                    assert time.monotonic() < patience
                    time.sleep(0.0005)
                before = identity(path)
            time.sleep(rng.uniform(0, 0.015))
            os.kill(child, signal.SIGKILL)
            assert server.wait() == -signal.SIGKILL
            seen.update(strays(path))
            _, arrays = checkpoint.read(path)
            steps.append(int(arrays["counters"][0]))
    assert (np.diff(steps) >= 0).all()
    assert len(set(steps)) > n_lives // 2  # most lives were long enough to get on
    assert seen  # and some ended in the middle of writing,
    limit = steps[-1] + 1000
    assert bits(resume(path, LOG, step_limit=limit)) == bits(run(T=10**12, order=order, step_limit=limit))
    assert strays(path) == []  # of which nothing remains


@posix
def test_a_process_killed_before_its_first_checkpoint_is_complete_leaves_none(path):
    rng = np.random.default_rng(8)
    with ForkServer() as server:
        for _ in range(20):
            child = server.fork("begin_endless", str(path), "replacement")
            time.sleep(rng.uniform(0, 0.01))
            os.kill(child, signal.SIGKILL)
            server.wait()
            if path.exists():
                checkpoint.read(path)
                path.unlink()
    run(checkpoint=path, step_limit=3)
    assert strays(path) == []


# ---- The file ----


@posix
def test_a_link_is_followed(path, tmp_path):
    (tmp_path / "disk").mkdir()
    path.symlink_to(tmp_path / "disk" / "far.ckpt")
    run(checkpoint=path, step_limit=100)
    assert path.is_symlink()
    assert bits(resume(path, LOG)) == whole()
    assert path.is_symlink()
    assert sorted(file.name for file in (tmp_path / "disk").iterdir()) == ["far.ckpt"]


@posix
def test_what_a_killed_process_left_is_written_over_and_what_others_write_is_waited_for(path):
    import fcntl

    temporary = path.with_name(".run.ckpt.tmp")
    temporary.write_bytes(b"half a check" * 10**6)
    run(checkpoint=path, step_limit=10)
    assert strays(path) == []
    temporary.write_bytes(b"")
    with open(temporary, "rb+") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        thread = threading.Thread(target=resume, args=(path, LOG), kwargs={"step_limit": 10})
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert temporary.read_bytes() == b""
    thread.join()
    assert strays(path) == []
    assert bits(resume(path, LOG)) == whole()


def test_whoever_reads_while_another_writes_gets_a_whole_one(path):
    run(T=10**9, checkpoint=path, step_limit=1)
    end = threading.Event()

    def write():
        def until(result):
            if end.is_set():
                raise StopIteration

        resume(path, LOG, every=0, chunk=7, callback=until, callback_seconds=0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        steps = [1]
        while len(set(steps)) < 50:
            steps.append(int(checkpoint.read(path)[1]["counters"][0]))
    finally:
        end.set()
        writer.join()
    assert (np.diff(steps) >= 0).all()


def test_of_two_runs_that_begin_together_one_is_refused(path, monkeypatch):
    together = threading.Barrier(2)
    checked = checkpoint.check_generator

    def wait(generator):  # both have seen by now that there is no checkpoint yet
        together.wait()
        checked(generator)

    monkeypatch.setattr(checkpoint, "check_generator", wait)
    outcomes = {}

    def go(seed):
        try:
            outcomes[seed] = run(rng=seed, checkpoint=path)
        except (FileExistsError, BlockingIOError) as error:
            outcomes[seed] = error

    threads = [threading.Thread(target=go, args=(seed,)) for seed in (5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [seed for seed in (5, 6) if not isinstance(outcomes[seed], OSError)]
    assert re.search("continue it with dpdl.resume|another run .*is using it", str(outcomes[11 - winner]))
    assert bits(resume(path, LOG)) == bits(outcomes[winner]) == bits(run(rng=winner))
    assert strays(path) == []


@posix
@pytest.mark.parametrize("begin", ["learn", "resume"])
def test_a_checkpoint_in_use_is_refused_by_a_second_run(path, begin):
    """While the first run waits in its callback, at every checkpoint that it writes."""
    refused = 0

    def try_as_well(result):
        nonlocal refused
        before = identity(path)
        with pytest.raises(BlockingIOError, match=f"{IN_USE}: {re.escape(repr(str(path)))}$"):
            resume(path, LOG)
        with pytest.raises(BlockingIOError, match=IN_USE):
            run(checkpoint=path)
        assert identity(path) == before
        refused += 1

    options = {"callback": try_as_well, "callback_every": 1000, "every": 0, "chunk": 500}
    if begin == "learn":
        result = run(checkpoint=path, **options)
    else:
        run(checkpoint=path, step_limit=10)
        result = resume(path, LOG, **options)
    assert refused == T // 1000
    assert bits(result) == whole()
    assert strays(path) == []
    assert bits(resume(path, LOG)) == whole()  # no lock is left
    with pytest.raises(FileExistsError, match=r"continue it with dpdl\.resume"):
        run(checkpoint=path)


@posix
def test_of_many_that_resume_together_one_is_served(path):
    run(checkpoint=path, step_limit=10)
    outcomes = []

    def go():
        try:
            outcomes.append(resume(path, LOG, every=0, chunk=100))
        except BlockingIOError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served = [one for one in outcomes if not isinstance(one, BlockingIOError)]
    assert [bits(result) for result in served] == [whole()] * len(served)
    assert served
    assert bits(resume(path, LOG)) == whole()


@posix
def test_the_lock_of_a_killed_process_ends_with_it(path):
    with ForkServer() as server:
        for function in (["begin_endless", str(path), "replacement"], ["resume_endless", str(path)]):
            before = identity(path) if path.exists() else None
            child = server.fork(*function)
            while not path.exists() or identity(path) == before:
                time.sleep(0.005)
            with pytest.raises(BlockingIOError, match=r"another run .*is using it"):
                resume(path, LOG)
            os.kill(child, signal.SIGKILL)
            assert server.wait() == -signal.SIGKILL
    assert resume(path, LOG, step_limit=1).status is Status.STEP_LIMIT
    assert strays(path) == []


@posix
def test_a_forked_child_does_not_hold_the_lock_of_its_parent(path):
    """Otherwise a worker that outlives its killed parent would keep the checkpoint locked."""
    path.touch()
    with FileLock() as first:
        first.take(path)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        try:
            time.sleep(0.1)
            with pytest.raises(BlockingIOError, match=IN_USE), FileLock() as second:
                second.take(path)
            first.file.close()  # as the end of the process would
            with FileLock() as second:
                second.take(path)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


# ---- Damaged files ----


def test_no_bit_can_flip_unnoticed(path):
    """A flip is noticed, or hits bytes of the zip format that carry nothing (a date, for instance)."""
    break_off(path, 2000, order="shuffle")
    content, (header, arrays) = path.read_bytes(), checkpoint.read(path)
    rng = np.random.default_rng(3)
    flips, noticed = rng.choice(8 * len(content), 600, replace=False), 0
    flips[:300] = 8 * len(content) - 1 - np.arange(300)  # the directory of the archive
    for flip in flips.tolist():
        damaged = bytearray(content)
        damaged[flip // 8] ^= 1 << flip % 8
        path.write_bytes(damaged)
        try:
            found, found_arrays = checkpoint.read(path)
        except ValueError as error:
            noticed += str(error).startswith(f"checkpoint {path} cannot be used: ")
        else:
            assert found == header
            assert all(np.array_equal(found_arrays[name], array) for name, array in arrays.items())
    assert noticed > 450


def test_no_end_can_be_missing(path):
    break_off(path, 2000)
    content = path.read_bytes()
    for length in (0, 1, 7, 8, 51, *np.random.default_rng(4).integers(53, len(content), 100).tolist()):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=re.escape(f"checkpoint {path} cannot be used: it is damaged")):
            resume(path, LOG)


def test_a_checkpoint_of_another_version_is_refused(path):
    break_off(path, 2000)
    header, arrays = checkpoint.read(path)
    checkpoint.write(path, header | {"arithmetic": 4}, arrays)
    with pytest.raises(ValueError, match="its arithmetic is version 4, that of this dpdl is 7"):
        resume(path, LOG)


def test_a_peek_shows_a_run_in_progress(path):
    seen = []

    def look(result):
        if result.n_steps == 3000:
            seen.append((peek(path), result))

    run(checkpoint=path, every=0, chunk=1000, callback=look, callback_every=1000)
    ((found, now),) = seen
    assert (found.n_steps, found.T, found.settings) == (2000, T, Settings(**GOOD))
    half = run(step_limit=2000)
    assert bits(found.result(LOG))[1] == T  # the run has gone on meanwhile
    np.testing.assert_allclose(found.lam_mean, half.lam_mean, rtol=1e-12)
    np.testing.assert_array_equal(found.lam, half.last.lam)
    assert now.n_steps == 3000


def test_a_peek_touches_nothing(path):
    break_off(path, 2000)
    stray = path.with_name(f".{path.name}.tmp")  # as a process leaves behind that is killed while it writes
    stray.write_bytes(b"half")
    before, written = {entry: entry.read_bytes() for entry in path.parent.iterdir()}, path.stat().st_mtime_ns
    seen = peek(path)
    assert seen.result(LOG).n_steps == seen.n_steps > 0
    assert {entry: entry.read_bytes() for entry in path.parent.iterdir()} == before
    assert path.stat().st_mtime_ns == written == pytest.approx(seen.written.timestamp() * 1e9, abs=1e4)
    resume(path, LOG)
    assert strays(path) == []


def test_a_peek_at_something_else_says_what_it_is(path):
    with pytest.raises(FileNotFoundError, match=re.escape(f"there is no checkpoint {path}")):
        peek(path)
    path.mkdir()
    with pytest.raises(IsADirectoryError, match=re.escape(f"{path} is a folder: it has no checkpoint")):
        peek(path)
    path.rmdir()
    replicate(LOG, n=2, **GOOD, rho0=RHO0, rng=0, checkpoint=path)
    (path / f".replica-0.{'0' * 16}.tmp").touch()
    example = path / "replica-0"
    with pytest.raises(IsADirectoryError, match=re.escape(f"peek at a checkpoint in it, for instance {example}")):
        peek(path)
    assert peek(example).n_steps == T
    example.write_bytes(b"half")
    with pytest.raises(ValueError, match="it is damaged, or no checkpoint"):
        peek(example)


# ---- What does not belong together ----


def test_another_data_set_is_refused(path):
    run(checkpoint=path, step_limit=500)
    r = LOG.r.copy()
    r[123] = np.nextafter(r[123], 2)
    columns = LOG.s, LOG.a, LOG.s_next
    for other in (
        Dataset(*columns, r, LOG.u, n_states=12, n_actions=4),  # one bit of one number
        Dataset(*columns, LOG.r, LOG.u, n_states=12, n_actions=5),
        LOG[:-1],
        LOG[::-1],
    ):
        with pytest.raises(ValueError, match=f"{re.escape(str(path))} .* belongs to another log"):
            resume(path, other)
    same = Dataset(*columns, LOG.r, LOG.u, n_states=12, n_actions=4)
    assert bits(resume(path, same)) == whole()


def test_part_of_a_log_is_not_the_same_as_a_copy_of_it(path):
    # It has the coordinates of the whole log, in another order than a log of its own would have them.
    part, reference = LOG[30:40], estimate_reference(LOG, GOOD["floor"])
    copy = Dataset(part.s, part.a, part.s_next, part.r, part.u, n_states=12, n_actions=4)
    expected = run(part, reference=reference)
    run(part, reference=reference, checkpoint=path, step_limit=3000)
    with pytest.raises(ValueError, match="it belongs to another log"):
        resume(path, copy)
    part.save(path.with_name("part"))
    assert bits(resume(path, Dataset.open(path.with_name("part")))) == bits(expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, LOG), TypeError, "path must be a path, got NoneType"),
        ((5, LOG), TypeError, "path must be a path, got int"),
        (("nowhere.ckpt", LOG), FileNotFoundError, "nowhere.ckpt"),
        (("nowhere.ckpt", LOG.records), TypeError, "log must be a Dataset, got ndarray"),
        (("nowhere.ckpt", LOG, GOOD), TypeError, "settings must be a Settings, got dict"),
    ],
)
def test_resume_names_a_bad_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        resume(*arguments)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"checkpoint": 5}, TypeError, "checkpoint must be a path, got int"),
        ({"every": None}, TypeError, "every must be a real number, got NoneType"),
        ({"every": -1}, ValueError, "every must be >= 0, got -1.0"),
        ({"time_limit": -1}, ValueError, "time_limit must be >= 0, got -1.0"),
        ({"step_limit": -1}, ValueError, "step_limit must be between 0 and"),
        ({"step_limit": 1.5}, ValueError, "step_limit must be a whole number, got 1.5"),
        ({"callback_seconds": -1}, ValueError, "callback_seconds must be >= 0, got -1.0"),
        ({"callback_seconds": 1, "callback_every": 1}, TypeError, "give either callback_every or callback_seconds"),
        ({"progress": 1}, TypeError, "progress must be True, False or None, got 1"),
    ],
)
def test_learn_names_a_bad_argument(changes, error, message, path):
    with pytest.raises(error, match=re.escape(message)):
        run(**{"checkpoint": path, **changes})
    assert list(path.parent.iterdir()) == []


def test_a_new_run_replaces_nothing(path):
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=r"it exists; continue it with dpdl.resume, or remove it.*run\.ckpt"):
        run(checkpoint=path)
    assert path.read_bytes() == b"precious"
    path.unlink()
    path.mkdir()
    with pytest.raises(FileExistsError, match=r"it is a folder, and a checkpoint is a file.*run\.ckpt"):
        run(checkpoint=path)
    with pytest.raises(IsADirectoryError, match=r"run\.ckpt is a folder: continue it by the call that made it"):
        resume(path, LOG)
    assert strays(path) == []


@posix
def test_a_pipe_is_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"run\.ckpt cannot be used: it is not a regular file"):
        resume(path, LOG)


def test_a_generator_that_could_not_be_put_back_is_refused(path):
    class PCG64(np.random.PCG64):  # by the name of one that can
        pass

    class Mine(np.random.PCG64):
        pass

    for kind in (PCG64, Mine):
        rng = np.random.Generator(kind(0))
        before = rng.bit_generator.state
        with pytest.raises(TypeError, match=f"a checkpoint needs a generator over one of .*, got {kind.__name__}"):
            run(rng=rng, checkpoint=path)
        assert rng.bit_generator.state == before
        assert run(rng=rng).success


# ---- Trouble with the disk ----


@contextlib.contextmanager
def full_disk(n_bytes=2048):
    """No file can be longer than this, from now on."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def must_not_be_called(result):
    raise AssertionError("work was done")


@posix
def test_a_disk_that_is_full_from_the_beginning_is_an_error_before_any_work(path):
    with full_disk(), pytest.raises(OSError, match=r"it could not be written, .*: '.*run\.ckpt'"):
        run(checkpoint=path, callback=must_not_be_called, callback_every=1)
    assert list(path.parent.iterdir()) == []
    run(checkpoint=path, step_limit=700)
    before = path.read_bytes()
    with full_disk(), pytest.raises(OSError, match=r"it could not be written, .*: '.*run\.ckpt'"):
        resume(path, LOG, callback=must_not_be_called, callback_every=1)
    assert path.read_bytes() == before
    assert strays(path) == []
    assert bits(resume(path, LOG)) == whole()


@posix
def test_a_disk_that_fills_up_costs_checkpoints_and_not_the_run(path, caplog):
    with contextlib.ExitStack() as stack, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def fill(result):
            if result.n_steps == 3000:
                stack.enter_context(full_disk())
            if result.n_steps > 3000:
                assert result.notes[0].startswith(f"the checkpoint {path} could not be written after ")

        result = run(checkpoint=path, every=0, callback=fill, callback_every=100)
    assert bits(result) == whole()
    assert result.status is Status.COMPLETED
    (note,) = result.notes
    assert note.startswith(f"the checkpoint {path} could not be written after 6000 steps (")
    assert note.endswith("; the previous one, of 2900 steps, is kept")
    assert all(warning.category is RuntimeWarning for warning in caught)
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == [str(warning.message) for warning in caught]
    assert [int(re.search(r"after (\d+) steps", error)[1]) for error in errors] == [*range(3000, 6001, 100), 6000]
    assert note == errors[-1]
    assert checkpoint.read(path)[1]["counters"][0] == 2900
    assert strays(path) == []
    assert bits(resume(path, LOG)) == whole()


@posix
@pytest.mark.filterwarnings("ignore:the checkpoint .* could not be written:RuntimeWarning")
def test_when_there_is_room_again_the_note_goes(path):
    with contextlib.ExitStack() as stack:

        def fill(result):
            if result.n_steps == 3000:
                stack.enter_context(full_disk())
            if result.n_steps == 3500:
                assert len(result.notes) == 1
                stack.close()

        result = run(checkpoint=path, every=0, callback=fill, callback_every=100)
    assert (bits(result), result.notes) == (whole(), ())
    again = resume(path, LOG)
    assert (bits(again), again.notes) == (whole(), ())


@pytest.mark.parametrize("stage", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_whatever_fails_the_one_before_is_still_there(stage, error, path, monkeypatch):
    run(checkpoint=path, step_limit=500)
    before = path.read_bytes()
    real, failing = getattr(os, stage), []

    def fail(*arguments, **others):
        if failing:
            raise error
        return real(*arguments, **others)

    def begin(result):
        failing.append(True)

    monkeypatch.setattr(os, stage, fail)
    with pytest.warns(RuntimeWarning, match=f"after 6000 steps .*{'No space' if error.args else 'MemoryError'}"):
        result = resume(path, LOG, callback=begin, callback_every=3000)
    monkeypatch.undo()
    assert bits(result) == whole()
    assert path.read_bytes() == before
    assert strays(path) == []
    assert bits(resume(path, LOG)) == whole()


def test_a_folder_that_cannot_be_written_to_is_an_error_before_any_work(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place, error in (
        (tmp_path / "file" / "run.ckpt", NotADirectoryError),
        (tmp_path / "missing" / "run.ckpt", FileNotFoundError),
    ):
        with pytest.raises(error, match=f"it could not be written.*{re.escape(str(place))}"):
            run(checkpoint=place, callback=must_not_be_called, callback_every=1)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def folder_of_no_root():
    """A folder that can be made read-only. Root writes to any, so that another user takes its place for a while."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:  # not tmp_path, which lies in a folder of the user's own
        if user == 0:
            os.chown(name, 65534, -1)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)


@posix
def test_a_read_only_folder_is_an_error_before_any_work_and_leaves_what_is_there(folder_of_no_root):
    path = folder_of_no_root / "run"
    run(checkpoint=path, step_limit=500)
    path.parent.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match="it could not be written"):
            run(checkpoint=path.with_name("other"), callback=must_not_be_called, callback_every=1)
        with pytest.raises(PermissionError, match="it could not be written"):
            resume(path, LOG, callback=must_not_be_called, callback_every=1)
    finally:
        path.parent.chmod(0o700)
    assert bits(resume(path, LOG)) == whole()


@pytest.mark.filterwarnings("ignore:the checkpoint .* could not be written:RuntimeWarning")
def test_a_checkpoint_may_be_taken_away_or_replaced_in_the_middle_of_a_run(path):
    def remove(result):
        if result.n_steps == 1000:
            path.unlink()
        if result.n_steps == 4000:
            path.unlink()
            path.mkdir()

    result = run(checkpoint=path, every=0, callback=remove, callback_every=500)
    assert bits(result) == whole()
    assert "it is a folder" in result.notes[0]
    assert path.is_dir()  # it is not ours
