"""docs/paper-map.md leads somewhere: every place that it names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "docs" / "paper-map.md").read_text()
PLACES = sorted(set(re.findall(r"`([\w./]+\.(?:py|pxd|pxi|pyx)): ([\w.]+)`", MAP)))
EXPERIMENTS = sorted(set(re.findall(r"\| `(\w+)` \|$", MAP, flags=re.MULTILINE)))


def test_it_names_many_places():
    assert len(PLACES) > 150
    assert len(EXPERIMENTS) > 5


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_the_place_exists(path, name):
    text = (ROOT / path).read_text()
    for part in name.split("."):
        defined = rf"^\s*(?:def|class)\s+{part}\b|^\s*cdef inline [\w *]*\b{part}\(|^{part} = "
        assert re.search(defined, text, flags=re.MULTILINE), f"{path} has no {part}"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiment_exists(name):
    assert (ROOT / "bench" / "experiments" / f"{name}.py").exists()


def test_no_source_cites_the_paper_by_label():
    """A reader of the paper sees numbers; labels are in the map alone."""
    labels = {label.split(":")[1] for label in re.findall(r"`((?:thm|lem|lemma|prop|eqn|eq|alg)\w*:[\w-]+)`", MAP)}
    assert len(labels) > 20
    hyphenated = sorted(label for label in labels if "-" in label)
    for folder in ("dpdl", "src_cython", "bench"):
        for file in sorted((ROOT / folder).rglob("*.p[yx]*")):
            if file.suffix in (".py", ".pyx", ".pxd", ".pxi", ".pyi"):
                text = file.read_text()
                found = [label for label in hyphenated if re.search(rf"(?<![\w-]){label}(?![\w-])", text)]
                assert not found, f"{file.relative_to(ROOT)} cites {found}"
