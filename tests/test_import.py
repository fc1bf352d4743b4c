"""What `import dpdl` loads, and what it says where the compiled core is missing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dpdl

HEAVY = [
    *(f"scipy.{name}" for name in ("stats", "optimize", "spatial", "special")),
    *(
        "matplotlib",
        "pyarrow",
        "pandas",
        "polars",
        "dask",
        "distributed",
        "h5py",
        "minari",
        "gymnasium",
        "sklearn",
    ),
]


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


def test_importing_dpdl_loads_nothing_heavy():
    found = python(
        f"import sys, dpdl; print([name for name in {HEAVY} if name in sys.modules])",
        cwd=Path(dpdl.__file__).parents[1],
    )
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


def test_a_source_folder_without_the_compiled_core_says_so(tmp_path):
    for source in Path(dpdl.__file__).parent.rglob("*.py"):
        copy = tmp_path / "dpdl" / source.relative_to(Path(dpdl.__file__).parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    # An editable install has a finder of its own, which would find its core for these sources as well.
    plain = "import sys; from importlib import machinery as m; "
    plain += "sys.meta_path = [m.BuiltinImporter, m.FrozenImporter, m.PathFinder]; "
    found = python(plain + "import dpdl", cwd=tmp_path)
    assert found.stderr.splitlines()[-1] == (
        f"ImportError: {tmp_path / 'dpdl'} holds the sources of dpdl without its compiled core; "
        "run `pip install -e .` in the folder above it, or start Python in another folder"
    )
    assert "During handling" not in found.stderr


def test_the_three_lists_of_public_names_agree():
    """For type checkers, for `from dpdl import *`, and for names that are imported when they are first used."""
    tree = ast.parse(Path(dpdl.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = {
        (node.module.partition(".")[2], alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imports == {(home, name) for home, names in dpdl._HOMES.items() for name in names.split()}
    assert dpdl.__all__ == sorted(dpdl.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert {*dpdl.__all__} == {name for _, name in imports}
    assert all(getattr(dpdl, name) is not None for name in dpdl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dpdl.nothing  # noqa: B018


def test_importing_dpdl_loads_no_optional_package():
    optional = ["matplotlib", "pyarrow", "h5py", "minari", "dask", "gymnasium", "pandas"]
    script = "import sys, dpdl; [getattr(dpdl, name) for name in dpdl.__all__]; "
    script += f"print(*[name for name in {optional} if name in sys.modules])"
    assert python(script, cwd=Path(dpdl.__file__).parents[1]).stdout.split() == []
