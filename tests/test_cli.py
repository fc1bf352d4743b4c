"""The command line: answers, exit codes, files that appear at once, errors of one line, Ctrl-C, hostile input."""

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import dpdl
from dpdl import cli
from dpdl.acting import Policy
from dpdl.demo import COLUMNS, QUESTION, record, write_csv
from dpdl.files import atomic

ROOT = Path(__file__).resolve().parent.parent
ROLES = ["--state", "ward", "--action", "drug", "--reward", "gain"]
EPISODES = ["--episode", "patient", "--time", "day", "--terminated", "left"]
TABLE = [*ROLES, *EPISODES, "--gamma", "0.95"]
LIMITS = ["--limits", "side effects=1.5", "icu days=0.8", "--limit-on", "total"]
#: One state, two actions; the better paid one costs 3.
TOY = {"s": [0, 0] * 500, "a": [0, 1] * 500, "next": [0, 0] * 500, "r": [1.0, 0.2] * 500, "c": [3.0, 0.0] * 500}
TOY["c"] = [c + 0.1 * (k % 7 < 3) for k, c in enumerate(TOY["c"])]
TOY_ROLES = ["--state", "s", "--action", "a", "--reward", "r", "--next-state", "next", "--gamma", "0.9"]
TOY_LIMITS = ["--start", "0", "--limit-on", "average", "--limits"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs")
    write_csv(record(600, np.random.default_rng(0)), path / "clinic.csv")
    write_csv({name: np.array(column) for name, column in TOY.items()}, path / "toy.csv")
    ends = {"end": np.arange(1000) == 999, "e": np.zeros(1000, dtype=int)}
    write_csv({name: np.array(column) for name, column in (TOY | ends).items()}, path / "episode.csv")
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


def start(*arguments, **options):
    """Start the command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dpdl", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, **options)


def names(path):
    return sorted(entry.name for entry in Path(path).iterdir())


# Help and usage.


def test_help_comes_at_once():
    """Neither NumPy nor SciPy is loaded. Processor time, because the machine may have other work."""
    script = "import sys; from dpdl import cli\ntry: cli.main(['--help'])\n"
    script += "except SystemExit: print('numpy' in sys.modules, file=sys.stderr)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr.strip() == "False"
    assert after.ru_utime - before.ru_utime < 0.5
    for command in ("demo", "check", "inspect", "solve", "certify", "frontier", "learn", "resume", "exit codes"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["inspect", "check", "solve", "certify", "frontier", "learn", "resume"])
def test_each_command_has_help_with_examples(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"dpdl {command} " in out.split("examples:")[1]
    assert max(map(len, out.splitlines())) <= 125


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "log"], "required: --gamma"),
        (["solve", "log", "--gamma", "0.9", "--limits", "icu"], "must be NAME=NUMBER, got 'icu'"),
        (["solve", "log", "--gamma", "0.9", "--limits", "icu=much"], "must be NAME=NUMBER"),
        (["solve", "log", "--gamma", "0.9", "--limits", "=1"], "must be NAME=NUMBER"),
        (["solve", "log", "--gamma", "0.9", "--limits", "gain>=log"], "only lower limit is reward>=log"),
        (["solve", "log", "--gamma", "0.9", "--limits", "reward>=9"], "only lower limit is reward>=log"),
        (["solve", "log", "--gamma", "0.9", "--time-limit", "0"], "positive number of seconds"),
        (["solve", "log", "--gamma", "0.9", "--limit-on", "both"], "invalid choice"),
        (["learn", "log", "--gamma", "0.9", "--order", "odd"], "invalid choice"),
        (["learn", "log", "--gamma", "0.9", "--adaptive", "--strict"], "--strict is about Algorithm 1; --adaptive"),
        (["demo", "--patients", "0"], "positive whole number, got 0"),
        (["demo", "--patients", "1.5"], "positive whole number, got 1.5"),
        (["demo", "--seed", "-1"], "at least 0"),
    ],
)
def test_wrong_options_are_one_line_and_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_version(run):
    code, out, _ = run("--version")
    assert code == 0
    assert re.fullmatch(r"dpdl \d+\.\d+\.\d+\n", out)


# demo.


def test_the_demo_certifies_reports_compares_and_draws(run):
    code, _, err = run("demo", "--patients", "1000", "--logs", "1")
    assert (code, err.count("\n")) == (1, 1)
    assert "clinic.csv exists and is not the demo's" in err
    Path("clinic.csv").unlink()
    code, out, err = run("demo", "--patients", "1000", "--logs", "1")
    assert (code, err) == (0, "")
    assert "does not contradict the model" in out
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert rows["what the clinic does now"].endswith("BROKEN")
    assert rows["certified policy"].endswith("kept")
    assert Path("dpdl-demo.png").read_bytes().startswith(b"\x89PNG")
    assert "Certified" in Path("dpdl-demo.html").read_text()
    log = dpdl.read_log(record(1000, np.random.default_rng(0).spawn(2)[0]), **COLUMNS)
    assert len(Path("clinic.csv").read_text().splitlines()) == 1 + len(log)


def test_without_matplotlib_the_demo_says_how_to_get_a_picture(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "dpdl.plots", None)
    Path("clinic.csv").unlink()
    code, _, err = run("demo", "--patients", "50", "--logs", "0")
    assert (code, err.count("\n")) == (0, 1)
    assert "pip install 'dpdl[plot]'" in err
    assert not Path("dpdl-demo.png").exists()


# inspect and check.


def test_inspect_shows_the_columns_of_a_table(run):
    code, out, _ = run("inspect", "clinic.csv")
    lines = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert code == 0
    assert lines["ward"][:4] == ["ward", "text", "5", "0"]
    assert lines["day"][1] == "number"
    assert lines["day"][4:6] == ["0", "to"]
    assert "--state COLUMN" in out
    content = json.loads(run("inspect", "clinic.csv", "--json")[1])
    assert content["columns"]["drug"]["distinct"] == 4
    assert content["rows"] == len(Path("clinic.csv").read_text().splitlines()) - 1


def test_inspect_shows_the_log_that_the_columns_make(run):
    code, out, _ = run("inspect", "clinic.csv", *ROLES, *EPISODES, "--costs", "side effects", "--json")
    facts = json.loads(out)
    sizes = [facts["coverage"][name] for name in ("n_states", "n_actions", "n_episodes")]
    assert (code, sizes, facts["ended"]) == (0, [5, 4, 600], 600)
    low, mean, high = facts["per row"]["side effects"]
    assert low == 0 < mean < high
    shown = run("inspect", "clinic.csv", *ROLES, *EPISODES, "--costs", "side effects")[1].splitlines()
    assert shown[1:4] == ["600 of 600 episodes ended", "", "Reward and costs"]
    assert any(line.startswith("Coverage: ") for line in shown)
    assert any(line.startswith("side effects ") for line in shown)
    dpdl.read_log("clinic.csv", **COLUMNS).save("log")
    assert "5 states, 4 actions" in run("inspect", "log")[1]


def test_check_tells_logs_that_fit_from_logs_that_do_not(run):
    code, out, _ = run("check", "clinic.csv", *TABLE)
    assert (code, out.split(":")[0]) == (0, "FITS")
    assert run("check", "toy.csv", *TOY_ROLES)[0] == 0  # independent rows cannot be tested
    rng = np.random.default_rng(0)
    day = np.tile(np.arange(10), 100)
    clock = {"e": np.repeat(np.arange(100), 10), "t": day, "s": 0 * day, "a": rng.integers(0, 2, 1000)}
    write_csv(clock | {"r": 0 * day + 1.0, "end": day == 9}, "clock.csv")
    roles = ["--state", "s", "--action", "a", "--reward", "r", "--episode", "e", "--time", "t", "--terminated", "end"]
    code, out, _ = run("check", "clock.csv", *roles, "--gamma", "0.9", "--json")
    assert (code, json.loads(out)["status"]) == (5, "rejected")
    code, out, _ = run("solve", "clock.csv", *roles, "--gamma", "0.9", "--json")
    assert (code, json.loads(out)["status"]) == (5, "MISFIT")
    assert run("solve", "clock.csv", *roles, "--gamma", "0.9", "--accept-misfit")[0] == 0


# solve, certify and frontier.


def test_solve_writes_a_certified_policy_an_answer_and_a_report(run):
    code, out, err = run("solve", "clinic.csv", *TABLE, *LIMITS, "-o", "answer")
    assert (code, err) == (0, "")
    assert out.startswith("CERTIFIED")
    assert names("answer") == ["answer.json", "policy.json", "report.html"]
    assert Policy.load("answer/policy.json").act("intensive care", rng=0) in ("none", "low", "medium", "high")
    report = Path("answer/report.html").read_text()
    assert "dpdl solve clinic.csv" in report
    assert "a high reward (column gain)" in report
    assert "costs: side effects, icu days" in report
    # The same policy is certified on another log of the clinic, and not under limits that it breaks.
    write_csv(record(2000, np.random.default_rng(1)), "fresh.csv")
    loose = ["--limits", "side effects=2", "icu days=1", "--limit-on", "total"]
    code, out, _ = run("certify", "answer/policy.json", "fresh.csv", *TABLE, *loose, "--json")
    content = json.loads(out)
    assert (code, content["status"]) == (0, "CERTIFIED")
    effects = content["certificate"]["constraints"][0]
    assert effects["name"] == "side effects"
    assert effects["estimate"] < effects["bound"] <= 2
    tight = ["--limits", "side effects=0.1", "--limit-on", "total"]
    code, out, _ = run("certify", "answer/policy.json", "fresh.csv", *TABLE, *tight)
    assert code == 4
    assert "NOT certified" in out


def test_the_old_answer_stays_until_the_new_one_is_complete(run, monkeypatch):
    solve = ["solve", "toy.csv", *TOY_ROLES, "-o", "answer", *TOY_LIMITS]
    assert run(*solve, "c=1.7")[0] == 0
    before = {name: Path("answer", name).read_bytes() for name in names("answer")}
    code, _, err = run(*solve, "c=1.7")
    assert (code, err.endswith("answer: it exists already; pass --overwrite to replace it\n")) == (1, True)

    def fails(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dpdl.report.write_report", fails)
        code, _, err = run(*solve, "c=1.7", "--overwrite")
    assert (code, err.count("\n")) == (1, 1)
    assert {name: Path("answer", name).read_bytes() for name in names("answer")} == before
    # What is infeasible takes the old policy away, with the new answer in its place.
    code, out, _ = run(*solve, "c=0.001", "--overwrite", "--json")
    content = json.loads(out)
    assert (code, content["status"]) == (3, "INFEASIBLE")
    assert "policy" not in content["files"]
    assert names("answer") == ["answer.json", "report.html"]
    assert [entry.name for entry in Path().iterdir() if entry.name.startswith(".")] == []


def test_two_runs_on_one_folder_do_not_mix(run):
    with atomic.replacing("answer", False, lambda path: False) as folder:
        (folder / "x").write_text("x")
    assert names("answer") == ["x"]
    code, _, _ = run("solve", "toy.csv", *TOY_ROLES, "-o", "answer", *TOY_LIMITS, "c=1.7", "--overwrite")
    assert (code, names("answer")) == (1, ["x"])  # somebody else's files are not replaced
    with pytest.raises(FileExistsError), atomic.replacing("new", False, lambda path: False):
        Path("new").mkdir()  # by another run, meanwhile
    assert names("new") == []


def test_too_little_data_and_too_little_time_have_their_own_codes(run):
    write_csv(record(15, np.random.default_rng(0)), "little.csv")
    code, out, _ = run("solve", "little.csv", *TABLE, *LIMITS, "--json", "-o", "answer")
    assert (code, json.loads(out)["status"]) == (4, "NOT_ENOUGH_DATA")
    assert names("answer") == ["answer.json", "report.html"]
    code, out, _ = run("solve", "clinic.csv", *TABLE, *LIMITS, "--json", "--time-limit", "1e-9")
    assert (code, json.loads(out)["status"]) == (6, "STOPPED")


def test_limits_on_averages_and_starts_without_episodes(run):
    options = ["toy.csv", *TOY_ROLES, "--limits", "c=1.7", "--limit-on", "average"]
    code, _, err = run("solve", *options)
    assert (code, err.count("\n"), "give --start" in err) == (1, 1, True)
    code, _, err = run("solve", *options, "--start", "7")
    assert (code, "--start 7: the log has no such state" in err) == (1, True)
    code, out, _ = run("solve", *options, "--start", "0", "--json")
    assert (code, json.loads(out)["status"]) == (0, "CERTIFIED")
    assert run("solve", *options, "--start", "0", "--cost-max", "c=3.1")[0] == 0


def test_no_worse_than_the_log_is_a_limit(run):
    """With --limits as with limits= of Python, beside limits that are numbers."""
    limits = ["--limits", "reward>=log", "icu days <= log", "side effects=1.5", "--limit-on", "total"]
    code, out, err = run("solve", "clinic.csv", *TABLE, *limits, "--json")
    assert (code, err) == (0, "")
    bounds = {bound["name"]: bound for bound in json.loads(out)["certificate"]["constraints"]}
    assert bounds["side effects"]["limit"] == 1.5
    (reward,) = (bound for name, bound in bounds.items() if name.startswith("reward"))
    assert reward["kept"]
    assert (reward["limit"], reward["is_cost"]) == (0, False)  # on the difference from the log's own policy
    assert reward["bound"] >= 0
    code, _, err = run("solve", "clinic.csv", *TABLE, "--limits", "reward<=log", "--limit-on", "total")
    assert (code, err.count("\n"), ">= log" in err) == (1, 1, True)


def test_frontier(run):
    options = ["--start", "0", "--limits", "c=1.7", "--limit-on", "average", "--values", "1", "2"]
    code, out, _ = run("frontier", "toy.csv", *TOY_ROLES, *options, "--json")
    points = json.loads(out)["points"]
    assert (code, [point["limit"] for point in points]) == (0, [1.0, 2.0])
    assert points[0]["certified"] < points[1]["certified"]
    assert "limit of c" in run("frontier", "toy.csv", *TOY_ROLES, *options)[1]


# learn and resume.

RUN = ["--psi", "2", "--slater", "0.1", "--T", "50000", "--seed", "1", "--gamma", "0.9"]
RUN += ["--limits", "c=1.6", "--limit-on", "average"]


def save_episode():
    roles = {"state": "s", "action": "a", "reward": "r", "next_state": "next", "terminated": "end", "episode": "e"}
    dpdl.read_log("episode.csv", **roles, costs=["c"]).save("log")


def test_learn_writes_policy_result_and_picture(run):
    save_episode()
    code, _, err = run("learn", "log", *RUN, "-o", "run")
    assert (code in (0, 4), err) == (True, "")
    assert names("run") == ["convergence.png", "policy.json", "result.json"]
    content = json.loads(Path("run/result.json").read_text())
    assert content["status"] == "COMPLETED"
    assert (code == 0) is content["success"]
    assert content["evaluation"]["constraints"][0]["name"] == "c"


def test_a_run_stops_goes_on_and_is_the_run_that_never_stopped(run):
    save_episode()
    code, out, _ = run("learn", "log", *RUN, "--step-limit", "20000", "--checkpoint", "run.ckpt")
    assert code == 6
    assert "dpdl resume run.ckpt log" in out
    assert json.loads(run("resume", "run.ckpt", "log", "-o", "resumed", "--json")[1])["n_steps"] == 50_000
    run("learn", "log", *RUN, "-o", "whole")
    first, second = (Policy.load(f"{name}/policy.json").probabilities for name in ("resumed", "whole"))
    assert (first == second).all()


def test_the_command_that_goes_on_names_the_columns_again(run):
    """A CSV does not know its columns, and costs were named by --limits, which resume does not have."""
    options = ["--start", "0", "--step-limit", "100", "--checkpoint", "run.ckpt"]
    code, out, _ = run("learn", "toy.csv", *TOY_ROLES[:-2], *RUN, *options)
    assert code == 6
    hint = out[out.index("dpdl resume") :]
    _, *arguments = shlex.split(hint)
    assert arguments[:3] == ["resume", "run.ckpt", "toy.csv"]
    assert arguments[-2:] == ["--costs", "c"]
    code, out, _ = run(*arguments, "--json")
    assert (code in (0, 4), json.loads(out)["n_steps"]) == (True, 50_000)


# Ctrl-C, closed pipes, full disks, hostile labels.

POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX")


@POSIX
def test_ctrl_c_writes_what_was_done_and_ends_with_130(run):
    save_episode()

    def press():
        until = time.monotonic() + 60
        while not Path("run.ckpt").exists() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)  # until the run goes on after its checkpoint
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    endless = [*RUN[:4], "--T", "1e14", *RUN[6:], "--every", "0.1"]
    code, out, err = run("learn", "log", *endless, "--checkpoint", "run.ckpt", "-o", "out")
    assert (code, err) == (130, "")
    assert "dpdl resume run.ckpt log" in out
    assert Policy.load("out/policy.json").shape == (1, 2)


@POSIX
def test_ctrl_c_while_solving_gives_the_best_answer_so_far(run, monkeypatch):
    from dpdl.safety.proposals import Proposer

    def interrupted(self, run=Proposer.run):
        for k, proposal in enumerate(run(self)):
            if k == 2:
                signal.raise_signal(signal.SIGINT)
            yield proposal

    monkeypatch.setattr(Proposer, "run", interrupted)
    code, out, _ = run("solve", "toy.csv", *TOY_ROLES, *TOY_LIMITS, "c=1.7", "-o", "answer", "--json")
    content = json.loads(out)
    assert code == 130
    assert content["n_tested"] == 2
    assert "interrupted" in content["message"]
    assert Path("answer/policy.json").exists() == (content["status"] == "CERTIFIED")


@POSIX
def test_a_closed_pipe_is_an_error_of_one_line(run):
    reader, writer = os.pipe()
    os.close(reader)
    process = start("inspect", "clinic.csv", stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "dpdl: error: standard output was closed before everything was printed\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error_of_one_line(run, monkeypatch):
    full = open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    code, _, err = run("inspect", "clinic.csv")
    assert (code, err.count("\n"), "No space left" in err) == (1, 1, True)
    assert sys.stdout is not full  # or the interpreter would complain once more at its end
    sys.stdout.close()
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_full_disk_is_known_before_the_work(run, monkeypatch):
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(cli.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    monkeypatch.setattr("dpdl.safety.safe.safe_policy", lambda *a, **k: pytest.fail("worked for nothing"))
    code, _, err = run("solve", "clinic.csv", *TABLE, *LIMITS, "-o", "answer")
    assert (code, err.count("\n"), "1,000 bytes are free" in err) == (1, 1, True)
    assert not Path("answer").exists()


def test_a_label_that_cannot_be_stored_is_known_before_the_work(run, monkeypatch):
    from dpdl.data.labels import Labels

    def fails(self):
        raise ValueError("state 3 cannot be stored")

    monkeypatch.setattr(Labels, "to_json", fails)
    monkeypatch.setattr("dpdl.safety.safe.safe_policy", lambda *a, **k: pytest.fail("worked for nothing"))
    code, _, err = run("solve", "clinic.csv", *TABLE, *LIMITS, "-o", "answer")
    assert (code, err) == (1, "dpdl: error: state 3 cannot be stored\n")


def test_labels_send_no_escapes_to_the_terminal(run):
    escape = "\x1b]0;owned\x07\u202e\x9b31m"
    rows = {name: np.array(column) for name, column in TOY.items()}
    write_csv(rows | {"s": np.array([escape] * 1000), "next": np.array([escape] * 1000)}, "hostile.csv")
    options = ["hostile.csv", *TOY_ROLES, "--limits", "c=0.0001", "--limit-on", "average"]
    seen = ""
    for more in (
        ["inspect", "hostile.csv"],
        ["solve", *options, "--start", escape],
        ["solve", *options, "--start", "y"],
    ):
        _, out, err = run(*more)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out + err), more
        seen += out + err
    assert r"\x1b]0;owned\x07\u202e\x9b31m" in seen


# Errors.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "nowhere.csv", "--gamma", "0.9"], "there is no file nowhere.csv"),
        (["inspect", "nowhere.csv", "--state", "s"], "there is no file nowhere.csv"),
        (["inspect", "nowhere"], "there is no file nowhere"),
        (["inspect", "empty"], "empty: the folder has no CSV or Parquet files"),
        (["check", "empty", *TABLE], "empty: the folder has no CSV or Parquet files"),
        (["resume", "nowhere.ckpt", "toy.csv", *TOY_ROLES[:-2]], "nowhere.ckpt"),
        (["solve", "clinic.csv", "--gamma", "0.9"], "--state"),
        (["solve", "clinic.csv", *TABLE, *LIMITS[:3]], "limits need --limit-on"),
        (["solve", "clinic.csv", *TABLE, *LIMITS, "--limits", "icu days=2"], "--limits names a cost twice"),
        (["solve", "clinic.csv", *TABLE, *LIMITS, "--delta", "2"], "delta"),
        (["solve", "clinic.csv", *ROLES, "--gamma", "0.9", "--episode", "patient"], "--terminated"),
        (["solve", "clinic.csv", *TABLE, "--limits", "icu dys=1", "--limit-on", "total"], "icu days"),
        (["solve", "clinic.csv", *TABLE, *LIMITS, "-o", "toy.csv"], "is a file, and --out must be a folder"),
        (["solve", "clinic.csv", *TABLE, *LIMITS, "--discretize", "uniform"], "--discretize needs --bins"),
        (["learn", "clinic.csv", *TABLE, *LIMITS, "--psi", "0.5"], "psi"),
        (["learn", "clinic.csv", *TABLE, *LIMITS, "--mixing-time", "3"], "use --order 'trajectory' or 'once'"),
        (["learn", "clinic.csv", *TABLE, *LIMITS, "--strict", "--psi", "2"], "error: --strict needs slater"),
        (["resume", "toy.csv", "toy.csv", *TOY_ROLES[:-2]], "toy.csv"),
        (["certify", "toy.csv", "toy.csv", *TOY_ROLES], "toy.csv"),
        (["certify", "nowhere.json", "toy.csv", *TOY_ROLES], "nowhere.json"),
        (["inspect", "policy.txt"], "policy.txt"),
    ],
)
def test_errors_are_one_line(run, arguments, message):
    Path("policy.txt").write_text("x")
    Path("empty").mkdir()
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("dpdl: error: ")
    assert message in err
    assert err.count("\n") == 1


DAMAGE = {
    "empty.csv": b"",
    "short.csv": b"s,a,r,next\n0,1\n",
    "text.csv": b"s,a,r,next\n0,1,much,0\n",
    "binary.csv": bytes(range(256)) * 20,
    "noise.npz": b"PK\x03\x04" + bytes(500),
    "noise.h5": b"\x89HDF\r\n\x1a\n" + bytes(500),
    "noise.parquet": b"PAR1" + bytes(200),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_logs_are_errors_of_one_line(run, name):
    Path(name).write_bytes(DAMAGE[name])
    code, out, err = run("solve", name, *TOY_ROLES)
    assert (code, out) == (1, "")
    assert err.startswith("dpdl: error: ")
    assert name in err
    assert err.count("\n") == 1


def test_what_nobody_foresaw_is_one_line_too(run, monkeypatch):
    def fail(options):
        raise error

    monkeypatch.setattr(cli, "_read", fail)
    error = KeyError("what")
    assert run("inspect", "toy.csv", *TOY_ROLES[:-2]) == (1, "", "dpdl: error: KeyError: 'what'\n")
    error = KeyboardInterrupt()
    code, out, err = run("inspect", "toy.csv", *TOY_ROLES[:-2])
    assert (code, out, err.count("\n")) == (130, "", 1)


def test_json_is_valid_whatever_the_numbers():
    content = cli.plain({"a": float("nan"), "b": [np.float64(1.5), np.array([1, 2])], "c": {1: dpdl.Status.COMPLETED}})
    assert json.loads(json.dumps(content, allow_nan=False)) == {"a": None, "b": [1.5, [1, 2]], "c": {"1": "COMPLETED"}}


def test_the_question_of_the_examples_is_that_of_the_demo():
    assert cli.QUESTION.startswith(f"--gamma {QUESTION['gamma']:g} ")
    for name, limit in QUESTION["limits"].items():
        assert f'"{name}={limit:g}"' in cli.QUESTION
