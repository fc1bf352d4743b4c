"""Ctrl-C and other ends of a run: whenever and wherever they come, the work so far is returned and kept."""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dpdl import _core, peek, resume
from dpdl.learner import checkpoint, progress
from dpdl.learner import drive as driver
from dpdl.learner import layout as layouts
from dpdl.stopping import Status
from long_runs import LOG, T, bits, run

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

#: Much longer than it should take, for machines that have other things to do.
GENEROUS = 1.0


@pytest.fixture(autouse=True)
def default_handler():
    """Python's own handler of SIGINT before and after, down to the address that the kernel knows."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    address = handler_address()
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert handler_address() == address


def handler_address():
    """Where SIGINT goes, as the kernel has it: the first word of a struct sigaction."""
    if sys.platform == "win32":
        return None
    action = (ctypes.c_void_p * 64)()
    assert ctypes.CDLL(None).sigaction(int(signal.SIGINT), None, action) == 0
    return action[0]


def press():
    os.kill(os.getpid(), signal.SIGINT)


class Finger:
    """Ctrl-C from elsewhere, a while after `ready` was called for the first time, as the callback of a run."""

    def __init__(self, seconds=0.05, times=1, pause=0.0):
        self.seconds, self.times, self.pause = seconds, times, pause
        self.moments, self.sign = [], threading.Event()
        self.options = {"callback": self.ready, "callback_seconds": 0}

    def ready(self, result):
        self.sign.set()

    def __enter__(self):
        self.thread = threading.Thread(target=self.press)
        self.thread.start()
        return self

    def press(self):
        self.sign.wait()
        time.sleep(self.seconds)
        for _ in range(self.times):
            self.moments.append(time.perf_counter())
            press()
            time.sleep(self.pause)

    def __exit__(self, *exception):
        self.sign.set()
        while self.thread.is_alive():  # join does not survive a KeyboardInterrupt in all versions of Python
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(0.001)


class Worker:
    """A run in another thread, and when it ended."""

    def __init__(self, **changes):
        self.going, self.ended = threading.Event(), threading.Event()
        self.result = self.error = self.moment = None
        changes.setdefault("callback_seconds", 0)
        self.thread = threading.Thread(target=self.work, args=(changes,), daemon=True)
        self.thread.start()
        assert self.going.wait(30)

    def work(self, changes):
        inner = changes.pop("callback", None)

        def callback(result):
            self.going.set()
            if inner is not None:
                inner(result)

        try:
            self.result = run(**{"T": 10**12, "callback": callback, **changes})
        except BaseException as error:
            self.error = error
        self.moment = time.perf_counter()
        self.going.set()
        self.ended.set()

    def wait(self, seconds=30):
        assert self.ended.wait(seconds)
        return self.result


def main_is_told(action=press):
    """Whether Ctrl-C raises KeyboardInterrupt in this thread."""
    try:
        action()
        time.sleep(0.05)
    except KeyboardInterrupt:
        return True
    return False


def assert_right(result, status=Status.INTERRUPTED, **changes):
    """It ended so, with the very numbers of a run that was planned to end there."""
    assert result.status is status
    assert 0 < result.n_steps < 10**12
    assert bits(result) == bits(run(**{"T": 10**12, "step_limit": result.n_steps, **changes}))


# ---- In the main thread ----


@posix
@pytest.mark.parametrize("order", ["replacement", "shuffle", "trajectory"])
def test_ctrl_c_returns_the_steps_taken_at_once(order):
    with Finger() as finger:
        result = run(T=10**12, order=order, **finger.options)
        latency = time.perf_counter() - finger.moments[0]
    print(f"{1000 * latency:.1f} ms")
    assert latency < GENEROUS
    assert "interrupted" in result.message
    assert_right(result, order=order)


@posix
def test_ctrl_c_keeps_a_checkpoint_of_the_steps_taken(tmp_path):
    with Finger() as finger:
        result = run(T=10**9, checkpoint=tmp_path / "run", **finger.options)
    assert checkpoint.read(tmp_path / "run")[1]["counters"][0] == result.n_steps
    limit = result.n_steps + 5000
    assert bits(resume(tmp_path / "run", LOG, step_limit=limit)) == bits(run(T=10**9, step_limit=limit))


@posix
def test_a_large_chunk_does_not_keep_ctrl_c_waiting():
    with Finger(seconds=0.3) as finger:
        finger.ready(None)  # there is no callback before the end of the chunk
        result = run(T=10**12, chunk=10**12)
        assert time.perf_counter() - finger.moments[0] < GENEROUS
    assert_right(result)


def interrupted_in(monkeypatch, module, name, when):
    """KeyboardInterrupt out of a function, at those of its calls."""
    real, calls = getattr(module, name), []

    def function(*arguments, **others):
        calls.append(None)
        if len(calls) in when:
            raise KeyboardInterrupt
        return real(*arguments, **others)

    monkeypatch.setattr(module, name, function)
    return calls


def test_ctrl_c_before_the_first_step_is_the_callers(tmp_path, monkeypatch):
    interrupted_in(monkeypatch, os, "fsync", {1})
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_a_checkpoint_is_written_on_the_way(tmp_path, monkeypatch):
    interrupted_in(monkeypatch, driver.checkpoint, "save", {4})
    result = run(checkpoint=tmp_path / "run", every=0, chunk=500)
    assert (result.status, result.n_steps, result.notes) == (Status.INTERRUPTED, 1500, ())
    assert checkpoint.read(tmp_path / "run")[1]["counters"][0] == 1500
    monkeypatch.undo()
    assert bits(resume(tmp_path / "run", LOG)) == bits(run())


@pytest.mark.parametrize("step_limit", [T, 2000])
def test_ctrl_c_a_little_late_still_gets_its_checkpoint(step_limit, tmp_path, monkeypatch):
    interrupted_in(monkeypatch, driver.checkpoint, "save", {2})
    result = run(checkpoint=tmp_path / "run", step_limit=step_limit)
    assert (result.status, result.n_steps, result.notes) == (Status.INTERRUPTED, step_limit, ())
    assert checkpoint.read(tmp_path / "run")[1]["counters"][0] == step_limit
    assert bits(result) == bits(run(step_limit=step_limit))


@pytest.mark.parametrize("n_times", [2, 3, 7])
def test_whoever_insists_is_not_kept_waiting_by_the_disk(n_times, tmp_path, monkeypatch):
    def stop(result):
        raise KeyboardInterrupt

    calls = interrupted_in(monkeypatch, driver.checkpoint, "save", set(range(2, 50)))
    interrupted_in(monkeypatch, layouts.Coordinates, "table", set(range(2, n_times)))
    result = run(checkpoint=tmp_path / "run", callback=stop, callback_every=1000)
    assert len(calls) == 2
    assert (result.status, result.n_steps) == (Status.INTERRUPTED, 1000)
    assert result.notes == (
        f"the checkpoint {tmp_path / 'run'} could not be written after 1000 steps (it was interrupted); "
        "the previous one, of 0 steps, is kept",
    )
    monkeypatch.undo()
    assert bits(result) == bits(run(step_limit=1000))
    assert bits(resume(tmp_path / "run", LOG)) == bits(run())


# ---- In other threads ----


@posix
def test_ctrl_c_ends_a_run_in_another_thread():
    worker = Worker()
    moment = time.perf_counter()
    assert main_is_told()
    result = worker.wait()
    print(f"{1000 * (worker.moment - moment):.1f} ms")
    assert worker.moment - moment < GENEROUS
    assert_right(result)


@posix
def test_ctrl_c_ends_all_of_them(tmp_path):
    workers = [Worker(rng=seed, checkpoint=tmp_path / str(seed)) for seed in range(4)]
    with Finger() as finger:
        result = run(T=10**12, rng=9, **finger.options)
    assert_right(result, rng=9)
    for seed, worker in enumerate(workers):
        assert_right(worker.wait(), rng=seed)
        assert checkpoint.read(tmp_path / str(seed))[1]["counters"][0] == worker.result.n_steps


@posix
def test_ctrl_c_while_another_thread_is_still_getting_ready(monkeypatch):
    ready, go_on = threading.Event(), threading.Event()
    real = layouts.Layout.of

    def lay_out(*arguments, **options):
        ready.set()
        go_on.wait()
        return real(*arguments, **options)

    monkeypatch.setattr(layouts.Layout, "of", lay_out)
    worker = Worker.__new__(Worker)
    worker.going, worker.ended = threading.Event(), threading.Event()
    threading.Thread(target=worker.work, args=({},), daemon=True).start()
    assert ready.wait(30)
    assert main_is_told()
    go_on.set()
    result = worker.wait()
    monkeypatch.undo()
    assert_right(result)


@posix
def test_a_handler_of_the_user_s_own_decides_what_ctrl_c_means():
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        worker = Worker(time_limit=0.5)
        with Finger() as finger:
            result = run(T=10**12, time_limit=0.3, **finger.options)
        assert heard == [signal.SIGINT]
        assert_right(result, Status.TIME_LIMIT)
        # That one was not meant for the run, even if the next one is.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert_right(worker.wait(), Status.TIME_LIMIT)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@posix
def test_an_error_out_of_the_user_s_own_handler_is_the_user_s_and_the_work_is_kept(tmp_path):
    class Mine(Exception):
        pass

    def handle(number, frame):
        raise Mine

    signal.signal(signal.SIGINT, handle)
    try:
        with Finger() as finger, pytest.raises(Mine):
            run(T=10**12, checkpoint=tmp_path / "run", every=1000, **finger.options)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert checkpoint.read(tmp_path / "run")[1]["counters"][0] > 0


@posix
@pytest.mark.parametrize("in_thread", [False, True])
def test_an_ignored_signal_stays_ignored(in_thread):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if in_thread:
            worker = Worker(time_limit=0.2)
            press()
            result = worker.wait()
        else:
            with Finger() as finger:
                result = run(T=10**12, time_limit=0.2, **finger.options)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert_right(result, Status.TIME_LIMIT)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@posix
def test_a_handler_that_was_exchanged_for_a_while_does_not_make_a_run_deaf():
    async def nothing():
        await asyncio.sleep(0)

    worker = Worker()
    asyncio.run(nothing())  # sets a handler of its own, then the default one again
    time.sleep(0.2)
    assert main_is_told()
    assert_right(worker.wait())


@posix
def test_a_run_that_begins_deaf_hears_once_there_is_a_handler():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        first = Worker()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    second = Worker()
    assert main_is_told()
    assert_right(first.wait())
    assert_right(second.wait())


def test_a_run_in_the_callback_of_another_leaves_no_trace_in_it():
    inner = []
    result = run(callback=lambda result: inner.append(run(rng=7, T=500)), callback_every=2000)
    assert bits(result) == bits(run())
    assert [bits(one) for one in inner] == [bits(run(rng=7, T=500))] * 3


# ---- The handler ----


@posix
@pytest.mark.parametrize("ends", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_handler_is_put_back_after_the_last_run_whichever_that_is(ends):
    before = handler_address()
    runs = [_core.Interrupts() for _ in range(3)]
    for one in runs:
        one.__enter__()
        assert handler_address() != before
    for k, end in enumerate(ends):
        runs[end].__exit__(None, None, None)
        assert (handler_address() == before) == (k == 2)


@posix
def test_a_handler_that_the_user_sets_in_the_middle_of_a_run_stays():
    heard = []

    def handle(number, frame):
        heard.append(number)

    def exchange(result):
        signal.signal(signal.SIGINT, handle)

    try:
        run(callback=exchange, callback_every=3000)
        assert signal.getsignal(signal.SIGINT) is handle
        press()
        time.sleep(0.01)
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@posix
def test_what_was_counted_is_told_once():
    with _core.Interrupts() as first, _core.Interrupts() as second:
        assert not first.came()
        assert main_is_told()
        assert first.came()
        assert not first.came()
        assert second.came()
        assert not second.came()


#: Before a command: begin as the background jobs of a shell script do.
DEAF = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")


def script(text, *, before=()):
    """Run a program in a process of its own, and give back what it says."""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [*before, sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})\n" + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@posix
def test_in_a_process_that_was_started_with_sigint_ignored_it_stays_ignored_until_there_is_a_handler():
    assert script(
        """
        import os, signal, threading
        from long_runs import run
        def learned():
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            result = run(T=10**12, time_limit=0.4)
            timer.join()
            return result.status.name
        print(learned())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(learned())
        """,
        before=DEAF,
    ) == ["TIME_LIMIT", "INTERRUPTED"]


@posix
@pytest.mark.slow
def test_these_tests_do_not_depend_on_how_they_were_started():
    root, test = Path(__file__).parents[1], "tests/test_learn.py::test_an_interrupt_comes_through_without_a_callback"
    command = [*DEAF, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", test]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert "1 passed" in done.stdout, done.stdout


@posix
def test_a_handler_on_top_of_ours_that_hands_on_to_it_does_not_go_round_in_circles():
    # faulthandler sets its handler without asking Python, and hands on to the one that it found.
    assert (
        script("""
        import faulthandler, os, signal, time
        from dpdl import _core
        null = open(os.devnull, "w")
        def told():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
            except KeyboardInterrupt:
                return True
            return False
        with _core.Interrupts() as interrupts:
            faulthandler.register(signal.SIGINT, file=null, chain=True)
            print(told(), interrupts.came())
        print(told())
        with _core.Interrupts() as interrupts:
            print(told(), interrupts.came())
        faulthandler.unregister(signal.SIGINT)
        with _core.Interrupts() as interrupts:
            print(told(), interrupts.came())
        print(told())
    """)
        == ["True"] * 8
    )


@posix
@pytest.mark.parametrize("guarded", [False, True])
def test_a_child_that_is_forked_in_the_middle_of_a_run_has_its_own_ctrl_c(guarded):
    assert script(f"""
        import os, signal, threading, time
        from dpdl import _core
        from long_runs import run
        going = threading.Event()
        worker = threading.Thread(
            target=lambda: run(T=10**12, time_limit=20, callback=lambda result: going.set(), callback_seconds=0),
            daemon=True,
        )
        worker.start()
        going.wait()
        with _core.Interrupts(guarded={guarded}):
            child = os.fork()
            if child == 0:
                timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                result = run(T=10**12, time_limit=20)
                timer.join()
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(1)
                    told = False
                except KeyboardInterrupt:
                    told = True
                print(result.status.name, told, flush=True)
                os._exit(0)
        os.waitpid(child, 0)
        print(worker.is_alive(), flush=True)
        os._exit(0)
    """) == ["INTERRUPTED", "True", "True"]


@posix
def test_however_often_it_is_pressed_the_result_is_not_lost(tmp_path):
    # In a process of its own: when a key is pressed thousands of times a second, it also hits the test runner.
    lost = script(f"""
        import contextlib
        from pathlib import Path
        from dpdl.learner import checkpoint
        from test_interruption import Finger, assert_right, run
        for k in range(12):
            path, result = Path({str(tmp_path)!r}, str(k)), None
            with contextlib.suppress(KeyboardInterrupt), Finger(times=1 + k, pause=0.0003) as finger:
                result = run(T=10**12, checkpoint=path, every=1000, **finger.options)
            if result is None:
                print("lost")
                continue
            assert_right(result)
            saved = checkpoint.read(path)[1]["counters"][0]
            assert saved == result.n_steps or f"of {{saved}} steps, is kept" in result.notes[0]
    """)
    # One that falls into the microsecond of returning is the caller's, as any later one is.
    assert len(lost) <= 2


# ---- Other ends ----


@pytest.mark.parametrize("error", [RuntimeError("mine"), StopIteration, KeyboardInterrupt])
def test_whatever_the_callback_raises_a_checkpoint_of_the_work_is_left(error, tmp_path):
    def end(result):
        if result.n_steps == 3000:
            raise error

    expected = (
        pytest.raises(RuntimeError, match="mine") if isinstance(error, RuntimeError) else contextlib.nullcontext()
    )
    with expected:
        assert run(checkpoint=tmp_path / "run", callback=end, callback_every=1000).n_steps == 3000
    assert checkpoint.read(tmp_path / "run")[1]["counters"][0] == 3000
    assert bits(resume(tmp_path / "run", LOG)) == bits(run())


@posix
def test_sigterm_ends_a_run_like_ctrl_c(tmp_path):
    """Eight seconds of work were lost when only the checkpoint of the last ten minutes was left."""
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    begin = lambda result: timer.start() if result.n_steps == 5000 else None  # noqa: E731
    result = run(T=10**9, checkpoint=tmp_path / "run", every=600, callback=begin, callback_every=5000)
    timer.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert result.status is Status.INTERRUPTED
    assert result.n_steps == peek(tmp_path / "run").n_steps > 5000
    assert_right(result, T=10**9)


@posix
def test_a_polite_request_to_end_leaves_a_checkpoint_of_the_work(tmp_path):
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))

    def ask(result):
        if not timer.is_alive():
            timer.start()

    try:
        with pytest.raises(SystemExit):
            run(T=10**9, checkpoint=tmp_path / "run", every=1000, callback=ask, callback_every=5000)
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)
    steps = int(checkpoint.read(tmp_path / "run")[1]["counters"][0])
    assert steps > 0
    assert bits(resume(tmp_path / "run", LOG, step_limit=steps)) == bits(run(T=10**9, step_limit=steps))


def test_an_arithmetic_failure_leaves_the_last_checkpoint_before_it(tmp_path, monkeypatch):
    class Failing(_core.LazyCore):
        def run(self, n, seconds):
            super().run(min(n, 2500 - self.n_steps), seconds)
            return 1 if self.n_steps == 2500 else 0

    monkeypatch.setattr(_core, "LazyCore", Failing)
    result = run(checkpoint=tmp_path / "run", every=0, chunk=1000)
    assert (result.status, result.n_steps) == (Status.NUMERICAL_ERROR, 2500)
    assert checkpoint.read(tmp_path / "run")[1]["counters"][0] == 2000


def test_no_time_and_no_steps():
    for changes, status in (
        ({"time_limit": 0}, Status.TIME_LIMIT),
        ({"step_limit": 0}, Status.STEP_LIMIT),
        ({"time_limit": 0, "step_limit": 0}, Status.STEP_LIMIT),
    ):
        result = run(**changes)
        assert (result.status, result.n_steps, result.success) == (status, 0, False)
        assert "limit was reached" in result.message
        assert result.premises == ()
        np.testing.assert_allclose(result.policy.sum(axis=1), 1)


def test_a_step_limit_is_exact_and_at_or_beyond_T_it_is_none():
    for limit in (1, 255, 4096, 4097, T - 1):
        result = run(step_limit=limit)
        assert (result.status, result.n_steps, result.guarantee) == (Status.STEP_LIMIT, limit, None)
    for limit in (T, T + 1, 10**15):
        result = run(step_limit=limit)
        assert (result.status, result.n_steps) == (Status.COMPLETED, T)


@pytest.mark.parametrize("changes", [{}, {"chunk": 10**12}, {"callback": print, "callback_every": 10**9}])
def test_a_time_limit_is_kept(changes):
    began = time.perf_counter()
    result = run(T=10**12, time_limit=0.2, **changes)
    seconds = time.perf_counter() - began
    assert 0.2 <= seconds < 0.2 + GENEROUS
    assert_right(result, Status.TIME_LIMIT)


def test_a_callback_by_the_clock():
    seen = []
    result = run(T=10**12, time_limit=0.5, callback=lambda result: seen.append(result.n_steps), callback_seconds=0.1)
    assert 1 <= len(seen) <= 5
    assert_right(result, Status.TIME_LIMIT)
    seen.clear()
    run(callback=lambda result: seen.append(result.n_steps), callback_seconds=0, chunk=1000)
    assert seen == [1000, 2000, 3000, 4000, 5000, 6000]
    seen.clear()
    run(callback=lambda result: seen.append(result.n_steps), callback_seconds=1000, chunk=1000)
    assert seen == []


def test_the_callback_sees_the_running_averages_after_resuming_too(tmp_path):
    seen = []
    run(checkpoint=tmp_path / "run", step_limit=1700)
    resume(tmp_path / "run", LOG, callback=seen.append, callback_every=1000)
    assert [result.n_steps for result in seen] == [2000, 3000, 4000, 5000, 6000]
    for result in seen:
        assert bits(result) == bits(run(step_limit=result.n_steps))


# ---- Progress ----


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)


@pytest.mark.usefixtures("impatient")
def test_without_a_terminal_the_logger_is_told(caplog, tmp_path):
    caplog.set_level(logging.INFO, logger="dpdl")
    run(chunk=1500, step_limit=3000, checkpoint=tmp_path / "run")
    resume(tmp_path / "run", LOG, chunk=1500)
    lines = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert [line.split("%")[0] for line in lines] == [
        "learning:  50.0",
        "learning: 100.0",
        "learning:  75.0",
        "learning: 100.0",
    ]
    assert all("steps/s" in line and line.endswith("s left") for line in lines)


def test_the_logger_is_not_told_often(caplog):
    caplog.set_level(logging.INFO, logger="dpdl")
    run(T=10**12, time_limit=0.3)
    assert caplog.records == []


def test_a_closed_standard_error_is_no_terminal(monkeypatch, tmp_path):
    with open(tmp_path / "closed", "w") as file:
        pass
    monkeypatch.setattr(sys, "stderr", file)
    assert not progress.Progress(10, None).show
    monkeypatch.setattr(sys, "stderr", None)
    assert not progress.Progress(10, True).show
