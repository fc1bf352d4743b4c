"""Benchmarks run in one process, whatever the options of the test suite: pytest-benchmark is off under pytest-xdist."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    config.option.numprocesses, config.option.dist, config.option.tx = 0, "no", []


def pytest_configure(config):
    """Another machine than that of the stored figures is worth a warning, not an error."""
    config.addinivalue_line("filterwarnings", "default::pytest_benchmark.logger.PytestBenchmarkWarning")


def pytest_benchmark_update_machine_info(config, machine_info):
    """Store what the figures depend on, and not the name of the host."""
    kept = {name: machine_info[name] for name in ("machine", "system", "python_version")}
    processor = machine_info.get("cpu", {}).get("brand_raw", "")
    machine_info.clear()
    machine_info.update(kept, cpu={"brand_raw": processor})


def pytest_benchmark_update_commit_info(config, commit_info):
    """The figures belong to the commit that stores them."""
    commit_info.clear()


def pytest_ignore_collect(collection_path):
    """Scripts are not searched for doctests: importing one must not keep the benchmarks from running."""
    return True if collection_path.suffix == ".py" and not collection_path.name.startswith("test_") else None


def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Leave out the time of every round: the comparison reads the statistics."""
    for benchmark in output_json["benchmarks"]:
        benchmark["stats"].pop("data", None)
