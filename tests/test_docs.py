"""The documentation: every block of code runs, every public name has its entry, and the examples do what they say."""

import contextlib
import io
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import dpdl
from dpdl import cli
from dpdl.demo import run_demo

ROOT = Path(__file__).resolve().parent.parent
DOCS, EXAMPLES, README = ROOT / "docs", ROOT / "examples", ROOT / "README.md"
BLOCK = re.compile(r"^```(\S+)(?: +(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)

#: First words of the lines that a page prints last.
PRINTED = {"performance.md": ["psi", "2", "4", "8", "16"], "paper.md": ["psi", "2", "4", "8"]}
#: Commands that are for a reader's own machine.
NOT_HERE = ("python3 -m venv",)
#: Pages that take more than a few seconds: starting a Dask cluster, recording three environments.
SLOW = {"performance.md", "gymnasium.md", "sepsis.md", "index.md"}
#: Pages for the clinic.csv that `dpdl demo` has written.
WITH_CLINIC = {"README.md", "log.md"}


def blocks(page):
    """(language, text) of every block of code, files that are included read."""
    for language, argument, text in BLOCK.findall(page.read_text()):
        if language == "{literalinclude}":
            yield "python", (DOCS / argument).read_text()
        elif language in ("python", "sh"):
            yield language, text
        else:
            assert language in ("text", "{toctree}", "{eval-rst}"), f"{page}: what is {language}?"


PAGES = sorted(DOCS.glob("*.md"))
WITH_CODE = [page for page in [*PAGES, README] if any(True for _ in blocks(page))]


def test_the_pages_have_code():
    assert {"README.md", "log.md", "paper.md", "index.md"} <= {page.name for page in WITH_CODE}


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page.name in SLOW), id=page.name) for page in WITH_CODE]
)
def test_every_block_of_code_runs(page, tmp_path, monkeypatch, capsys):
    """Blocks of a page, one after the other, in one session and one folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["page"])
    if page.name in WITH_CLINIC:
        run_demo(n_logs=0, say=lambda text: None)
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
            assert program in ("dpdl", ".venv/bin/dpdl"), line
            codes.append(cli.main(arguments))
    words = [line.split()[0] for line in out.getvalue().splitlines() if line.strip()]
    assert words[-len(PRINTED.get(page.name, ())) :] == PRINTED.get(page.name, words)
    assert codes == [0] * len(codes), capsys.readouterr().err


def test_the_readme_is_short_and_shows_what_the_demo_prints(tmp_path, monkeypatch):
    text = README.read_text()
    assert len(text.splitlines()) <= 130
    assert len(re.findall(r"^python3 -m venv .*dpdl demo$", text, re.MULTILINE)) == 1
    assert len(re.findall(r"^python3 -m venv .*python -m pytest$", text, re.MULTILINE)) == 1
    first = next(block for language, block in blocks(README) if language == "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 25
    monkeypatch.chdir(tmp_path)
    said = []
    run_demo(n_logs=0, say=said.append)
    printed = "\n".join(said).splitlines()
    shown = re.search(r"```text\n(policy  .*?)\n\n", text, re.DOTALL).group(1).splitlines()
    assert len(shown) == 5
    for line in shown[:3] + shown[4:]:
        assert line in printed
    # Its figures follow from the rule of safe_policy; its verdict is that of the demo.
    certified = next(line for line in printed if line.startswith("certified policy"))
    assert shown[3].split()[:2] + shown[3].split()[5:] == certified.split()[:2] + certified.split()[5:]


def test_every_public_name_has_its_entry_in_the_reference():
    listed = re.findall(r"^\.\. auto\w+:: dpdl\.([\w.]+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(dpdl.__all__) <= set(listed)
    for name in listed:
        home, _, last = f"dpdl.{name}".rpartition(".")
        assert (ROOT / "dpdl" / f"{name}.py").exists() or hasattr(import_module(home), last), name


def test_each_example_is_shown_in_the_documentation():
    shown = {Path(argument).name for page in PAGES for _, argument, _ in BLOCK.findall(page.read_text()) if argument}
    assert shown == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.name)
def test_links_between_pages_and_to_pictures_are_not_broken(page):
    text = BLOCK.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert not target.startswith(("http:", "https:")), f"{page}: {target} is elsewhere"
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.is_file(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, (
                f"{page}: {target}"
            )
