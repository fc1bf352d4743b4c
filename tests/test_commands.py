"""The subcommands on logs in files: answers, exit codes, files, errors of one line, Ctrl-C."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dpdl
import logs
from dpdl import cli
from dpdl.acting import Policy
from dpdl.commands.output import plain
from dpdl.commands.solve import aligned
from test_table import clinic, write_csv

COLUMNS = ["--state", "ward", "--action", "drug", "--reward", "gain"]
EPISODES = ["--episode", "patient", "--time", "day", "--terminated", "left", "--missing", "drop"]
COSTS = ["--cost", "icu days=1", "--cost", "side effects=4", "--limits", "total"]
TABLE = [*COLUMNS, *EPISODES, "--gamma", "0.9"]
#: One state, two actions; the better paid one costs 3 and at most 1.5 a step are allowed.
TOY = {"s": [0, 0] * 500, "a": [0, 1] * 500, "next": [0, 0] * 500, "r": [1.0, 0.2] * 500, "c": [3.0, 0.0] * 500}
TOY["c"] = [c + 0.1 * (k % 7 < 3) for k, c in enumerate(TOY["c"])]
TOY_OPTIONS = ["--state", "s", "--action", "a", "--reward", "r", "--next-state", "next", "--gamma", "0.9"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs")
    write_csv(clinic(20_000), path / "clinic.csv")
    write_csv(TOY, path / "toy.csv")
    start = np.zeros(1000, dtype=int)
    start[0] = 1
    write_csv({**TOY, "end": start[::-1].astype(bool), "e": np.zeros(1000, dtype=int)}, path / "episode.csv")
    return path


@pytest.fixture
def run(folder, tmp_path, monkeypatch, capsys):
    """Run a command among copies of the logs; (exit code, standard output, standard error)."""
    for name in folder.iterdir():
        shutil.copy(name, tmp_path)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        try:
            code = cli.main([*map(str, arguments)])
        except SystemExit as stopped:
            code = stopped.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


# Help.


def test_help_comes_at_once():
    """Neither NumPy nor SciPy is loaded. Processor time, because the machine may have other work."""
    script = "import sys; from dpdl import cli\ntry: cli.main(['--help'])\n"
    script += "except SystemExit: print('numpy' in sys.modules, file=sys.stderr)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(cli.__file__).parents[1]
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr.strip() == "False"
    assert after.ru_utime - before.ru_utime < 0.5
    for command in ("demo", "inspect", "solve", "certify", "learn", "resume", "exit codes"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["inspect", "solve", "certify", "learn", "resume"])
def test_each_command_has_help_with_examples(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"dpdl {command} " in out.split("examples:")[1]
    assert max(map(len, out.splitlines())) <= 125


# inspect.


def test_inspect_shows_the_columns_of_a_table(run):
    code, out, _ = run("inspect", "clinic.csv")
    assert code == 0
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    table = clinic(20_000)
    missing = sum(one is None for one in table["ward"])
    assert lines["ward"].split()[:4] == ["ward", "text", "5", str(missing)]
    assert "0 to" in lines["day"]
    assert "--state COLUMN" in out
    code, out, _ = run("inspect", "clinic.csv", "--json")
    found = json.loads(out)
    assert found["rows"] == 20_000
    assert found["columns"]["gain"]["missing"] == int(np.isnan(table["gain"]).sum())
    assert found["columns"]["drug"]["distinct"] == 3


def test_inspect_shows_the_log_that_the_columns_make(run):
    code, out, _ = run("inspect", "clinic.csv", *TABLE, *COSTS, "--json")
    assert code == 0
    found = json.loads(out)
    log = logs.from_table(
        "clinic.csv", state="ward", action="drug", reward="gain", episode="patient", time="day", terminated="left",
        missing="drop",
    )  # fmt: skip
    assert found["transitions"] == len(log)
    assert (found["states"], found["actions"]) == (5, 3)
    assert found["episodes"] == int(log.initial_counts.sum())
    assert found["ended"] == log.n_ended
    assert found["per row"]["icu days"][0] == pytest.approx(0, abs=1e-9)
    assert found["per row"]["icu days"][2] == pytest.approx(1)
    assert found["per row"]["reward"] == pytest.approx([-10, float(np.mean(log.r)) * log.question.reward_scale, 100])
    assert any("left out" in note for note in found["notes"])
    _, out, _ = run("inspect", "clinic.csv", *TABLE, *COSTS)
    assert "side effects" in out
    assert "episodes" in out


def test_inspect_opens_folders(run):
    logs.from_table("toy.csv", state="s", action="a", reward="r", next_state="next").save("log")
    code, out, _ = run("inspect", "log")
    assert code == 0
    assert "1,000 transitions, 1 states, 2 actions" in out


# solve and certify.


def test_solve_writes_a_certified_policy_an_answer_and_a_report(run):
    code, out, err = run("solve", "clinic.csv", *TABLE, *COSTS, "-o", "answer")
    assert (code, err) == (0, "")
    assert "CERTIFIED" in out
    assert sorted(path.name for path in Path("answer").iterdir()) == ["answer.json", "policy.json", "report.html"]
    policy = Policy.load("answer/policy.json")
    assert policy.act("icu", rng=0) in ("none", "low", "high")
    report = Path("answer/report.html").read_text()
    assert report.index("Certified") < report.index("The certificate") < report.index("What the log covers")
    # The same policy is certified on another log of the clinic.
    write_csv(clinic(20_000, seed=1), "fresh.csv")
    code, out, _ = run("certify", "answer/policy.json", "fresh.csv", *TABLE, *COSTS, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["status"] == "CERTIFIED"
    icu, effects = found["certificate"]["constraints"]
    assert icu["name"] == "icu days"
    assert icu["estimate"] < icu["bound"] <= 1
    assert effects["estimate"] < effects["bound"] <= 4
    # Limits that it breaks are not.
    tight = ["--cost", "icu days=0.01", "--cost", "side effects=4", "--limits", "total"]
    code, out, _ = run("certify", "answer/policy.json", "fresh.csv", *TABLE, *tight)
    assert code == 3
    assert "NOT certified" in out


def test_what_cannot_be_kept_is_infeasible_and_takes_the_old_policy_away(run):
    code, _, _ = run("solve", "clinic.csv", *TABLE, *COSTS, "-o", "answer")
    assert code == 0
    assert Path("answer/policy.json").exists()
    code, _, err = run("solve", "clinic.csv", *TABLE, *COSTS, "-o", "answer")
    assert code == 1
    assert "--overwrite" in err
    impossible = ["--cost", "icu days=0.01", "--limits", "total"]
    code, out, _ = run("solve", "clinic.csv", *TABLE, *impossible, "-o", "answer", "--overwrite", "--json")
    found = json.loads(out)
    assert (code, found["status"]) == (2, "INFEASIBLE")
    assert "policy" not in found["files"]
    assert sorted(path.name for path in Path("answer").iterdir()) == ["answer.json", "report.html"]
    assert "Infeasible" in Path("answer/report.html").read_text()


def test_too_little_data_has_its_own_code(run):
    write_csv(clinic(120), "little.csv")
    tight = ["--cost", "icu days=0.75", "--cost", "side effects=3", "--limits", "total"]
    code, out, _ = run("solve", "little.csv", *TABLE, *tight, "--json", "-o", "answer")
    found = json.loads(out)
    assert (code, found["status"]) == (3, "NOT_ENOUGH_DATA")
    assert not Path("answer/policy.json").exists()
    assert found["needed"]["n_transitions"] > 120
    report = Path("answer/report.html").read_text()
    assert "Not enough data" in report
    assert f"About {found['needed']['n_transitions']:,} transitions" in report


def test_a_policy_is_matched_to_a_log_by_labels(run):
    table = {"s": ["x", "y", "x"], "a": ["go", "stay", "stay"], "t": ["y", "x", "x"], "r": [1, 0, 0]}
    log = logs.from_table(table, state="s", action="a", reward="r", next_state="t")
    policy = Policy([[0.0, 0.25, 0.75], [0, 1, 0], [1, 0, 0]], dpdl.Labels(["y", "x", "z"], ["fly", "go", "stay"]))
    assert aligned(policy, log).tolist() == [[1.0, 0.0], [0.25, 0.75]]
    with pytest.raises(ValueError, match="in state 'x' the policy takes 'fly', which the log never shows"):
        aligned(Policy([[0.5, 0.25, 0.25]] * 3, policy.labels), log)
    with pytest.raises(ValueError, match="there is no state 'y'"):
        aligned(Policy([[0, 1.0]], dpdl.Labels(["x"], ["fly", "go"])), log)
    with pytest.raises(ValueError, match="the policy is for 1 states and 2 actions, and the log has 2 and 2"):
        aligned(Policy([[0, 1.0]]), log)


# learn and resume.


def test_learn_writes_policy_result_and_picture(run):
    code, out, err = run("learn", "clinic.csv", *TABLE, *COSTS, "-o", "run", "--seed", "0")
    assert (code, err) == (0, "")
    assert "COMPLETED" in out
    assert sorted(path.name for path in Path("run").iterdir()) == ["convergence.png", "policy.json", "result.json"]
    found = json.loads(Path("run/result.json").read_text())
    assert found["success"] is True
    assert found["evaluation"]["constraints"][0]["name"] == "icu days"
    log = logs.from_table(
        "clinic.csv", state="ward", action="drug", reward="gain", episode="patient", time="day", terminated="left",
        missing="drop", costs={"icu days": 1, "side effects": 4}, limits="total", gamma=0.9,
    )  # fmt: skip
    assert (
        Policy.load("run/policy.json").probabilities == dpdl.learn(log, gamma=0.9, rng=0).policy.probabilities
    ).all()


def test_a_run_stops_goes_on_and_is_the_run_that_never_stopped(run):
    logs.from_table(
        "episode.csv", state="s", action="a", reward="r", next_state="next", terminated="end", episode="e",
        costs={"c": 1.6}, limits="average", gamma=0.9,
    ).save("log")  # fmt: skip
    settings = ["--gamma", "0.9", "--psi", "2", "--slater", "0.1", "--steps", "50000", "--seed", "1"]
    code, out, _ = run("learn", "log", *settings, "--step-limit", "20000", "--checkpoint", "run.ckpt")
    assert code == 3
    assert "dpdl resume run.ckpt log" in out
    code, out, _ = run("resume", "run.ckpt", "log", "-o", "resumed", "--json")
    assert json.loads(out)["n_steps"] == 50_000
    run("learn", "log", *settings, "-o", "whole")
    first, second = (Policy.load(f"{name}/policy.json").probabilities for name in ("resumed", "whole"))
    assert (first == second).all()
    # The same rows as independent transitions do not say where episodes begin.
    options = ["learn", "toy.csv", *TOY_OPTIONS, "--cost", "c=1.6", "--limits", "average"]
    code, _, err = run(*options)
    assert code == 1
    assert "give --start" in err
    assert err.count("\n") == 1
    code, _, err = run(*options, "--start", "7")
    assert (code, "--start 7: the log has no such state" in err) == (1, True)
    assert run(*options, "--start", "0", "--seed", "0")[0] == 0


@pytest.mark.skipif(os.name == "nt", reason="SIGINT")
def test_ctrl_c_writes_what_was_done_and_ends_with_130(run, tmp_path):
    logs.from_table(
        "episode.csv", state="s", action="a", reward="r", next_state="next", terminated="end", episode="e",
        costs={"c": 1.6}, limits="average", gamma=0.9,
    ).save("log")  # fmt: skip
    command = [sys.executable, "-m", "dpdl", "learn", "log", "--gamma", "0.9", "--psi", "2", "--slater", "0.1"]
    command += ["--steps", "1e14", "--checkpoint", "run.ckpt", "-o", "out", "--seed", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    until = time.monotonic() + 60
    while not Path("run.ckpt").exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (130, False)
    assert "INTERRUPTED" in out
    assert "dpdl resume run.ckpt log" in out
    assert Policy.load("out/policy.json").shape == (1, 2)


@pytest.mark.skipif(os.name == "nt", reason="SIGINT")
def test_ctrl_c_while_solving_gives_the_best_answer_so_far(run, monkeypatch):
    """As a user's Ctrl-C in the middle of the search: when the third candidate is tried."""
    from dpdl.safety.proposals import Proposer

    def interrupted(self, run=Proposer.run):
        for k, proposal in enumerate(run(self)):
            if k == 2:
                signal.raise_signal(signal.SIGINT)
            yield proposal

    monkeypatch.setattr(Proposer, "run", interrupted)
    code, out, _ = run("solve", "clinic.csv", *TABLE, *COSTS, "-o", "answer", "--json")
    found = json.loads(out)
    assert code == 130
    assert len(found["candidates"]) == 2
    assert any("interrupted" in note for note in found["notes"])
    assert Path("answer/report.html").exists()
    assert Path("answer/policy.json").exists() == (found["status"] == "CERTIFIED")


# Errors.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "nowhere.csv", "--gamma", "0.9"], "there is no file nowhere.csv"),
        (["solve", "clinic.csv", "--gamma", "0.9"], "pass --state, --action, --reward"),
        (["solve", "clinic.csv", *TABLE, "--cost", "icu days=1"], "--cost needs --gamma and --limits"),
        (["solve", "clinic.csv", *TABLE, *COSTS, "--cost", "icu days=2"], "--cost names a column twice"),
        (["solve", "clinic.csv", *TABLE, *COSTS, "--delta", "2"], "delta"),
        (["solve", "clinic.csv", *COLUMNS, "--gamma", "0.9", "--episode", "patient"], "pass --terminated (a column"),
        (["solve", "clinic.csv", *COLUMNS, *EPISODES[:-2], "--gamma", "0.9"], '--missing "drop" leaves out'),
        (["solve", "clinic.csv", *TABLE, "--cost", "icu dys=1", "--limits", "total"], "did you mean 'icu days'?"),
        (["solve", "clinic.csv", *TABLE, *COSTS, "-o", "toy.csv"], "is a file, and --out must be a folder"),
        (["solve", "clinic.csv", *TABLE, *COSTS, "--discretize", "kmeans"], "--discretize needs --bins"),
        (["learn", "clinic.csv", *TABLE, *COSTS, "--psi", "0.5"], "psi"),
        (["learn", "toy.csv", *TOY_OPTIONS, "--checkpoint", "toy.csv"], ""),
        (["resume", "toy.csv", "toy.csv", *TOY_OPTIONS], "toy.csv"),
        (["certify", "toy.csv", "toy.csv", *TOY_OPTIONS], "toy.csv"),
        (["certify", "nowhere.json", "toy.csv", *TOY_OPTIONS], "nowhere.json"),
        (["inspect", "policy.txt"], "policy.txt"),
    ],
)
def test_errors_are_one_line(run, arguments, message):
    Path("policy.txt").write_text("x")
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("dpdl: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


DAMAGE = {
    "empty.csv": b"",
    "head.csv": b"s,a,r,next\n",
    "short.csv": b"s,a,r,next\n0,1\n",
    "text.csv": b"s,a,r,next\n0,1,much,0\n",
    "nan.csv": b"s,a,r,next\n0,1,nan,0\n",
    "binary.csv": bytes(range(256)) * 20,
    "empty.npz": b"",
    "noise.npz": b"PK\x03\x04" + bytes(500),
    "empty.hdf5": b"",
    "noise.h5": b"\x89HDF\r\n\x1a\n" + bytes(500),
    "noise.parquet": b"PAR1" + bytes(200),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("command", ["inspect", "solve", "learn"])
def test_damaged_logs_are_errors_of_one_line(run, name, command):
    Path(name).write_bytes(DAMAGE[name])
    code, out, err = run(
        command, name, "--state", "s", "--action", "a", "--reward", "r", "--next-state", "next", "--gamma", "0.9"
    )
    assert (code, out) == (1, "")
    assert err.startswith("dpdl: error: ")
    assert name in err
    assert err.count("\n") == 1


def test_what_nobody_foresaw_is_one_line_too(run, monkeypatch):
    def fail(options):
        raise KeyError("what")

    monkeypatch.setattr("dpdl.commands.inspect.inspect", fail)
    assert run("inspect", "toy.csv") == (1, "", "dpdl: error: KeyError: 'what'\n")


def test_ctrl_c_before_anything_was_done(run, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpdl.commands.inspect.inspect", interrupt)
    code, out, err = run("inspect", "toy.csv")
    assert (code, out) == (130, "")
    assert err.count("\n") == 1


def test_json_is_valid_whatever_the_numbers():
    found = plain({"a": float("nan"), "b": [np.float64(1.5), np.array([1, 2])], "c": {1: dpdl.Status.COMPLETED}})
    assert json.loads(json.dumps(found, allow_nan=False)) == {"a": None, "b": [1.5, [1, 2]], "c": {"1": "COMPLETED"}}
