"""What every test finds, however the suite was started."""

import os
import signal

import pytest

# Two tests run at a time: threads of BLAS would only wait for one another. It reads this when NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


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
