"""A hundred million pairs of which the log shows a hundred thousand: state and cost go with what was seen."""

import subprocess
import sys

import pytest

#: Its peak is read from the kernel's account of the program alone: ru_maxrss counts the process that started it too.
PROGRAM = """
import numpy as np
import dpdl

S, A, N = 1_000_000, 100, 300_000
rng = np.random.default_rng(0)
states = rng.integers(0, S, 2000)
log = dpdl.Dataset(
    states[rng.integers(0, 2000, N)], rng.integers(0, 50, N), states[rng.integers(0, 2000, N)],
    rng.uniform(-1, 1, N), rng.uniform(-1, 1, (N, 1)), n_states=S, n_actions=A,
)
result = dpdl.learn(log, gamma=0.9, psi=2, slater=0.2, T=500_000, initial_states=states, rng=0)
assert result.status is dpdl.Status.COMPLETED and not result.success and "not judged" in result.message
pairs = len(result.x_table.pairs)
mass = result.x_table.values.sum() + result.x_table.elsewhere * (S * A - pairs)
assert 0 < mass <= 40 * (1 + 1e-9)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(pairs, 1024 * int(peak.split()[1]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_a_hundred_million_pairs_fit_into_a_gibibyte():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pairs, peak = map(int, done.stdout.split())
    assert 90_000 < pairs <= 100_000
    assert peak < 2**30
    print(f"\n{pairs} visited of 1e8 pairs: peak {peak / 2**20:.0f} MiB")
