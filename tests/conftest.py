"""What every test finds, however the suite was started."""

import os
import signal
import sys
from pathlib import Path

import pytest

# Problems and experiments that benchmarks and tests share.
sys.path.append(str(Path(__file__).parent.parent / "bench"))

# Two tests run at a time: threads of BLAS would only wait for one another. It reads this when NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


#: Files whose results could depend on which instructions a processor has; .ci/run repeats them under every kernel.
NUMERICAL = {
    *("test_certified", "test_cmdp", "test_exact", "test_hostile_plans", "test_kernels", "test_lazy", "test_learn"),
    *("test_mixing", "test_paper", "test_patient_plans", "test_planner", "test_pricing", "test_restricted"),
    *("test_saddle", "test_twin", "test_verification", "test_certificate", "test_safe_policy"),
    *("test_safety", "test_fit", "test_judgement", "test_adaptive", "test_ties"),
}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem in NUMERICAL:
            item.add_marker("numerical")


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """Python's own handler of SIGINT, here and in the processes that tests start.

    A shell script starts its background jobs with SIGINT ignored, which Python and all its children would leave so.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def no_fsync(monkeypatch):
    """Do not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
