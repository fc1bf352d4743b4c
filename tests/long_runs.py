"""A run that uses everything that a checkpoint stores, and processes to be killed."""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

from dpdl import learn, resume
from dpdl.data.dataset import Dataset
from dpdl.learner import drive as driver


def greedy_log(n_states=12, n_actions=4, n_records=300, *, seed=1, n_utilities=2):
    """Rewards are positive, so x grows until both of its sums are at their bounds; the last action never occurs."""
    rng = np.random.default_rng(seed)
    used = n_actions - 1
    share = rng.gamma(1.0, size=n_states * used) + 1e-3
    flat = rng.choice(n_states * used, size=n_records, p=share / share.sum())
    return Dataset(
        flat // used,
        flat % used,
        rng.integers(0, n_states, n_records),
        rng.uniform(0.2, 1, n_records),
        rng.uniform(-0.5, 1, (n_records, n_utilities)),
        n_states=n_states,
        n_actions=n_actions,
    )


LOG = greedy_log()
RHO0 = np.arange(1, 13) / 78
T = 6000
# All four cases of the x-update, rebases, and a refresh every 97 steps, which divides no other number here.
GOOD = {
    "gamma": 0.8,
    "psi": 6.0,
    "slater": 0.3,
    "T": T,
    "eta": 0.01,
    "alpha_x": 0.3,
    "floor": 1e-4,
    "radius_V": 0.5,
    "refresh": 97,
}


def run(log=LOG, **changes):
    return learn(log, **{**GOOD, "rho0": RHO0, "rng": 5, **changes})


def break_off(path, n_steps, *, log=LOG, **changes):
    """A run that is interrupted a step or a few after that one, in the middle of a block of draws."""
    run(log, checkpoint=path, step_limit=n_steps, **changes)
    return nudge(path, log)


def nudge(path, log):
    """Resume a run for a step or a few, which leaves thousands of draws that were made ahead."""

    def press(result):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "CHUNK_SECONDS", 0.0)
        return resume(path, log, callback=press, callback_seconds=0)


def bits(result):
    """Everything numerical in a result."""
    arrays = (result.x_mean, result.V_mean, result.lam_mean, *result.last)
    return [array.tobytes() for array in arrays], result.n_steps, result.diagnostics


class ForkServer:
    """A process that has everything loaded and forks a child for every call, so that starting one is cheap.

    `fork` names a function of this module and its arguments, and returns the child's process number; `wait` waits for
    the child and returns its exit code, negative if a signal ended it.
    """

    def __enter__(self):
        here = Path(__file__).parent
        program = f"import sys; sys.path.insert(0, {str(here)!r}); import long_runs; long_runs.serve()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def fork(self, name, *arguments):
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self):
        return int(self.process.stdout.readline())

    def __exit__(self, *exception):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def serve():
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                globals()[name](*arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def begin_endless(path, order):
    """Write checkpoints of a new run as fast as the disk takes them, until killed."""
    run(T=10**12, order=order, checkpoint=path, every=0, chunk=40, progress=False)


def resume_endless(path):
    """Resume a run in the same way."""
    resume(path, LOG, every=0, chunk=40, progress=False)
