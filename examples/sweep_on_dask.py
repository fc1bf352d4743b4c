"""A sweep over psi on a Dask cluster: the paper's method, one run a point, each on a worker.

    python examples/sweep_on_dask.py [STEPS]

starts two workers on this machine. With the address of a scheduler, ``Client("tcp://...")``, they may be anywhere that
sees the folder of the log.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from dask.distributed import Client, LocalCluster

import dpdl
from dpdl.instances import garnet


def main(n_steps=200_000):
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder, "log"), n_steps)


def run(path, n_steps):
    model = garnet(50, 4, gamma=0.9, slater=0.15, rng=0)
    model.rollout(50_000, np.full((50, 4), 0.25), rng=0).save(path)
    log = dpdl.Dataset.open(path)
    settings = dpdl.Settings(gamma=model.gamma, slater=0.15, T=n_steps, kappa=0.1)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        table = dpdl.sweep(
            log, settings, over={"psi": [2, 4, 8, 16]}, rho0=model.rho0, rng=0, executor=client.get_executor()
        )
    print(table)
    return table


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
