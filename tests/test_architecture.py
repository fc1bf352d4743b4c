"""The layers that docs/architecture.md shows: who may import whom, read from the sources."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dpdl"

#: The compiled modules, which have no Python source.
COMPILED = ("_core", "_planning")

#: From the bottom to the top. A room may import from the rooms in lines above its own, and from itself.
LAYERS = [
    ["_core", "_planning", "_validation", "_text", "_progress"],
    ["theory", "policy", "files", "stopping", "plots"],
    ["data"],
    ["question"],
    ["settings"],
    ["premises", "acting"],
    ["gym"],
    ["models"],
    ["result"],
    ["exact"],
    ["mixing"],
    ["instances"],
    ["learner"],
    ["safety"],
    ["recording"],
    ["report"],
    ["demo"],
    ["cli"],
]


def modules():
    """Every module of the package by its dotted name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


SOURCES = dict(modules())


def imports(path):
    """Names of the modules of this package that a file imports, wherever in the file; with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "dpdl")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            if node.module.split(".")[0] != "dpdl":
                continue
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                compiled = full in {f"dpdl.{name}" for name in COMPILED}
                yield (full if full in SOURCES or compiled else node.module), node.lineno


def room(module):
    return module.split(".")[1] if "." in module else ""


def level(module):
    return next(k for k, rooms in enumerate(LAYERS) if room(module) in rooms)


FREE = ("dpdl", "dpdl.__main__")  # the package itself, and `python -m dpdl`


def test_every_room_has_its_layer():
    found = {room(module) for module in SOURCES if module not in FREE} | set(COMPILED)
    assert found == {name for rooms in LAYERS for name in rooms}


def test_imports_go_down():
    for module in SOURCES.keys() - set(FREE):
        for target, line in imports(SOURCES[module]):
            where = f"{SOURCES[module].relative_to(ROOT)}:{line} imports {target}"
            assert target != "dpdl", f"{where}: name the module, not the package"
            assert room(target) == room(module) or level(target) < level(module), f"{where}, which is above it"


def test_no_cycles():
    """Also inside a room, and through imports inside functions."""
    graph = {module: {target for target, _ in imports(path)} for module, path in SOURCES.items()}
    # A package's own file collects its modules, which never import it.
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"imports in a circle: {' -> '.join(error.args[1])}")
    assert set(SOURCES) <= set(order)


def test_private_names_stay_in_their_room():
    """A name with an underscore is private to its module, a module with one to its folder."""
    for module, path in SOURCES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "dpdl":
                for alias in node.names:
                    private = alias.name.startswith("_") and f"{node.module}.{alias.name}" not in SOURCES
                    assert not private or alias.name in COMPILED, f"{module}:{node.lineno} imports {alias.name}"


def test_the_tree_in_the_documentation_is_the_real_one():
    text = (ROOT / "docs" / "architecture.md").read_text()
    tree = re.search(r"```text\ndpdl/\n(.*?)```", text, re.DOTALL).group(1)
    shown = {}
    for line in tree.splitlines():
        match = re.match(r"  (\w*)/? +(.*?)(?:  +.*)?$", line)
        folder, names = match.group(1), match.group(2)
        shown.setdefault(folder, set()).update(names.split())
    real = {}
    for module, path in SOURCES.items():
        if path.name != "__init__.py" or module == "dpdl":
            parts = path.relative_to(PACKAGE).parts
            real.setdefault(parts[0] if len(parts) > 1 else "", set()).add(path.stem)
    assert shown == real


def test_the_layers_in_the_documentation_are_those_held_here():
    text = (ROOT / "docs" / "architecture.md").read_text()
    picture = re.search(r"```text\n(cli .*?)```", text, re.DOTALL).group(1)
    shown = [re.split(r"  +", line)[0].split(" · ") for line in picture.splitlines()]
    assert shown == LAYERS[::-1]
