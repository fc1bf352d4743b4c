"""The command line and the README: what they promise runs."""

import contextlib
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from dpdl import cli
from dpdl.demo import run_demo
from test_table import clinic, write_csv

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["demo", "--transitions", "3000", "--steps", "20000"]


def test_demo_prints_a_table_and_draws_a_picture(tmp_path, capsys):
    picture = tmp_path / "demo.png"
    assert cli.main([*SMALL, "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    for row in ("behaviour (made the log)", "unconstrained optimum", "constrained optimum", "learned from the log"):
        assert row in out
    assert "20,000 steps" in out
    assert "Guarantee: none" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_demo_learns_a_safe_policy_that_earns_well():
    demo = run_demo(n_steps=5_000_000)
    learned, best = demo.rows["learned from the log"], demo.rows["constrained optimum"]
    assert (learned.utilities > 0).all()
    assert learned.reward > 0.85 * best.reward
    unsafe = demo.rows["unconstrained optimum"]
    assert unsafe.utilities.min() < -1


def test_same_seed_same_demo():
    first, again, other = (run_demo(2000, 5000, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.result.x_mean, again.result.x_mean)
    assert not np.array_equal(first.result.x_mean, other.result.x_mean)


def test_without_matplotlib_the_demo_says_how_to_get_a_picture(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "dpdl.plots", None)
    assert cli.main([*SMALL, "--picture", str(tmp_path / "demo.png")]) == 0
    assert "pip install 'dpdl[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "demo.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["solve", "log"], "required: --gamma"),
        (["solve", "log", "--gamma", "0.9", "--cost", "icu"], "must be COLUMN=LIMIT with a number for LIMIT"),
        (["solve", "log", "--gamma", "0.9", "--cost", "icu=much"], "must be COLUMN=LIMIT with a number for LIMIT"),
        (["solve", "log", "--gamma", "0.9", "--cost", "=1"], "must be COLUMN=LIMIT with a number for LIMIT"),
        (["solve", "log", "--gamma", "0.9", "--time-limit", "0"], "positive number of seconds"),
        (["solve", "log", "--gamma", "0.9", "--cost-max", "much"], "must be COLUMN=LIMIT with a number for LIMIT"),
        (["learn", "log", "--gamma", "0.9", "--order", "odd"], "invalid choice"),
        (["fly"], "invalid choice"),
        (["demo", "--steps", "0"], "positive whole number, got 0"),
        (["demo", "--steps", "many"], "invalid"),
        (["demo", "--transitions", "1.5"], "positive whole number, got 1.5"),
        (["demo", "--steps", "inf"], "positive whole number, got inf"),
        (["demo", "--steps", "1e30"], "positive whole number, got 1e30"),
        (["demo", "--seed", "-1"], "at least 0"),
        (["demo", "--picture", "x.xyz"], "must end in .png, .pdf or .svg"),
        (["demo", "--picture", "nowhere/at/all/x.png"], "there is no folder"),
    ],
)
def test_bad_arguments_are_usage_errors(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 1  # 2 means infeasible
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert re.fullmatch(r"dpdl \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_the_code_in_the_readme_runs_as_printed_and_prints_what_it_says(tmp_path, monkeypatch):
    """All blocks, one after the other, as a reader would type them into one session."""
    monkeypatch.chdir(tmp_path)
    write_csv(clinic(200_000), tmp_path / "clinic.csv")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) >= 3
    assert len(blocks[0].strip().splitlines()) <= 25
    session, printed = {}, []
    for block in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, "README.md", "exec"), session)
        printed.append(out.getvalue().splitlines())
    shown = re.search(r"```text\n(CERTIFIED.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL).group(1)
    for line in shown.splitlines():
        assert any(found.startswith(line.removesuffix("...")) for found in printed[0]), line
    lines = [line for line in blocks[0].splitlines() if line and not line.startswith(("import", " ", ")"))]
    assert len(lines) <= 6
    assert printed[1] == ["True all steps were taken"]
    first, second, third = printed[2]
    assert first == "COMPLETED [[0.5, 0.5]]"
    assert second == "None"
    assert "psi >= C*" in third
    assert printed[3][-1].split()[1] == "True"  # the last level passed
    assert [line.split()[0] for line in printed[4]] == ["psi", "2", "4", "8"]
