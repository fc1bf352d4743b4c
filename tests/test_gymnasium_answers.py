"""Three environments from log to deployment: recorded, solved on the command line, the policy followed in them."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

import dpdl
from dpdl import cli

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parent.parent / "examples" / "gymnasium_log.py"))


@pytest.mark.parametrize("name", ["FrozenLake", pytest.param("Taxi", marks=pytest.mark.slow), "CliffWalking"])
def test_return_and_cost_are_inside_the_certificate(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    env, cost, limit = EXAMPLE["make"](name)
    np.savez("log.npz", **EXAMPLE["record"](env, cost, 50_000))
    options = ["--limits", f"costs={limit}", "--limit-on", "total", "--gamma", "0.99"]
    assert cli.main(["solve", "log.npz", *options, "-o", "answer", "--json"]) == 0
    certificate = json.loads(capsys.readouterr().out)["certificate"]
    policy = dpdl.Policy.load("answer/policy.json")
    real = dpdl.rollout(env, policy, 300, cost=cost, gamma=0.99, rng=0, otherwise=0)
    (bound,) = certificate["constraints"]
    # Three standard errors of the 300 episodes, on top of the certificate's own.
    assert real.costs[0].value <= bound["bound"] + 3 * real.costs[0].error
    assert bound["bound"] <= limit
    assert real.reward.value >= certificate["reward"]["bound"] - 3 * real.reward.error
    assert real.n_unknown <= 0.01 * real.n_steps
