"""Benchmarks run in one process, whatever the options of the test suite: pytest-benchmark is off under pytest-xdist."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    config.option.numprocesses, config.option.dist, config.option.tx = 0, "no", []


def pytest_benchmark_update_machine_info(config, machine_info):
    """Name the processor and not the host in stored figures."""
    machine_info.pop("node", None)


def pytest_benchmark_update_commit_info(config, commit_info):
    for name in ("author_time", "branch", "project"):
        commit_info.pop(name, None)
