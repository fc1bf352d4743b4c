"""docs/paper-map.md leads somewhere: every place that it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "docs" / "paper-map.md").read_text()
PLACES = sorted(set(re.findall(r"`([\w./]+\.(?:py|pxd|pxi|pyx)): ([\w.]+)`", MAP)))
EXPERIMENTS = sorted(set(re.findall(r"\| `(\w+)` \|$", MAP, flags=re.MULTILINE)))


def test_it_names_many_places():
    assert len(PLACES) > 150
    assert len(EXPERIMENTS) > 5


def test_every_place_exists():
    missing = []
    for path, name in PLACES:
        text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
        for part in name.split("."):
            defined = rf"^\s*(?:def|class)\s+{part}\b|^\s*cdef inline [\w *]*\b{part}\(|^{part} = "
            if not re.search(defined, text, flags=re.MULTILINE):
                missing.append(f"{path}: {part}")
    assert not missing


def test_every_experiment_exists():
    assert not [name for name in EXPERIMENTS if not (ROOT / "bench" / "experiments" / f"{name}.py").exists()]


def test_no_source_cites_the_paper_by_label():
    """A reader of the paper sees numbers; labels are in the map alone."""
    labels = {label.split(":")[1] for label in re.findall(r"`((?:thm|lem|lemma|prop|eqn|eq|alg)\w*:[\w-]+)`", MAP)}
    assert len(labels) > 20
    hyphenated = "|".join(sorted(label for label in labels if "-" in label))
    cited = re.compile(rf"(?<![\w-])(?:{hyphenated})(?![\w-])")
    for folder in ("dpdl", "src_cython", "bench"):
        for file in sorted((ROOT / folder).rglob("*.p[yx]*")):
            if file.suffix in (".py", ".pyx", ".pxd", ".pxi", ".pyi"):
                assert not cited.findall(file.read_text()), file.relative_to(ROOT)
