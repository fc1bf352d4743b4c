"""The documentation: every code block runs, and the examples do what they say."""

import contextlib
import io
import re
import runpy
import shlex
from pathlib import Path

import pytest

from dpdl import cli

ROOT = Path(__file__).resolve().parent.parent
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
BLOCK = re.compile(r"^```(\S+)(?: +(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)

#: What a page says about its commands: those that do not end with code 0. The first half of a run has steps left.
CODES = {"command-line.md": [3, 0]}
#: First words of the lines that a page prints last.
PRINTED = {"performance.md": ["psi", "2", "4", "8", "16"], "choosing.md": ["reward", "utility", "utility"]}
#: Commands that are for a reader's own machine.
NOT_HERE = ("python3 -m venv",)


def blocks(page):
    """(language, text) of every block of code, files that are included read."""
    for language, argument, text in BLOCK.findall((DOCS / page).read_text()):
        if language == "{literalinclude}":
            yield "python", (DOCS / argument).read_text()
        elif language in ("python", "sh"):
            yield language, text
        else:
            assert language in ("text", "{toctree}", "{eval-rst}"), f"{page}: what is {language}?"


PAGES = sorted(path.name for path in DOCS.glob("*.md"))
WITH_CODE = [page for page in PAGES if any(True for _ in blocks(page))]


def test_the_pages_have_code():
    assert len(WITH_CODE) >= 10


def write_what_pages_assume(page):
    """Files that another page made, or the reader has."""
    names = runpy.run_path(str(EXAMPLES / "clinic.py"))
    if page in ("tutorial.md", "index.md"):
        names["write_log"]("clinic.csv", 20_000)
    if page == "command-line.md":
        import numpy as np

        lake = runpy.run_path(str(EXAMPLES / "gymnasium_log.py"))
        env, cost, _ = lake["make"]("FrozenLake")
        np.savez("FrozenLake.npz", **lake["record"](env, cost, 20_000))


#: Pages that take more than a few seconds: starting a Dask cluster, recording three environments.
SLOW = {"performance.md", "gymnasium.md"}


@pytest.mark.parametrize("page", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in WITH_CODE])
def test_every_block_of_code_runs(page, tmp_path, monkeypatch, capsys):
    """Blocks of a page, one after the other, in one session and one folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["page"])
    write_what_pages_assume(page)
    session, codes, out = {"__name__": "__main__"}, [], io.StringIO()
    for language, text in blocks(page):
        if language == "python":
            with contextlib.redirect_stdout(out):
                exec(compile(text, page, "exec"), session)
            continue
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith(NOT_HERE):
                continue
            program, *arguments = shlex.split(line)
            assert program == "dpdl", line
            codes.append(cli.main(arguments))
    words = [line.split()[0] for line in out.getvalue().splitlines() if line.strip()]
    assert words[-len(PRINTED.get(page, ())) :] == PRINTED.get(page, words)
    assert codes == CODES.get(page, [0] * len(codes)), capsys.readouterr().err


def test_each_example_is_shown_in_the_documentation():
    shown = {
        Path(argument).name for page in PAGES for _, argument, _ in BLOCK.findall((DOCS / page).read_text()) if argument
    }
    assert shown == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_and_to_pictures_are_not_broken(page):
    text = BLOCK.sub("", (DOCS / page).read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert not target.startswith(("http:", "https:")), f"{page}: {target} is elsewhere"
        path, _, anchor = target.partition("#")
        file = DOCS / path if path else DOCS / page
        assert file.is_file(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}, (
                f"{page}: {target}"
            )
