"""Rooms of the package: imports go down, and in no circle; every folder is a package that is installed and says its purpose. Names
of test modules."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.files import ROOMS, ROOT, modules

MODULES = modules()
ORDER = list(ROOMS)
ROOF = {"tilec", "tilec.__main__"}  # what `import tilec` and `python -m tilec` begin with
GROUND = {"tilec.version", "tilec.targets"}


def level(module: str) -> int:
    if module in ROOF:
        return len(ORDER)
    return -1 if module in GROUND else ORDER.index(module.split(".")[1])


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports anywhere: inside functions and under `if TYPE_CHECKING`, too."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tilec":
            assert node.level == 0, path
            for a in node.names:
                whole = f"{node.module}.{a.name}"
                yield whole if whole in MODULES else node.module


@pytest.mark.parametrize("room", [*ORDER, "tilec"])
def test_imports_go_down(room):
    mine = [m for m in MODULES if (m in ROOF if room == "tilec" else m not in ROOF | GROUND and m.split(".")[1] == room)]
    assert mine
    up = [(m, n) for m in mine for n in imported(MODULES[m]) if level(n) > level(m)]
    assert up == [], "these import from a room above: move what they need down (benchmarks/files.py lists the rooms)"


def test_no_imports_in_a_circle():
    needs = {m: set(imported(path)) - {m} for m, path in MODULES.items()}
    while free := [m for m, others in needs.items() if not others & needs.keys()]:
        for m in free:
            del needs[m]
    while ends := [m for m in needs if not any(m in others for others in needs.values())]:
        for m in ends:
            del needs[m]
    assert sorted(needs) == []


def test_every_folder_is_an_installed_package_that_says_its_purpose():
    folders = {m for m, path in MODULES.items() if path.stem == "__init__"}
    assert len({p.parent for p in MODULES.values()}) == len(folders), "a folder of modules has an __init__.py"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["setuptools"]["packages"]) == folders
    silent = [m for m, path in MODULES.items() if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert silent == []


def test_no_two_test_modules_have_one_name():
    """Rooms of tests are no packages: pytest imports the first of a name, and leaves the second out."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}
