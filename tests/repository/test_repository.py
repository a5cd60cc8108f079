"""What holds for the repository as a whole: types, dependencies, and which modules tests import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from tools import ROOT, TESTS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = [p for folder in ("tilec", "dsl", "passes", "runtime") for p in (ROOT / folder).rglob("*.py") if p.is_file()]

# ---- types -----------------------------------------------------------------------------------------------------------

HELD_BACK = {"no-strict-optional": 15, "allow-untyped-defs": 7, "disable-error-code": 18}
"""Files with a line `# mypy: ...`, by what it holds back. Each number only goes down: CONTRIBUTING.md, "Types"."""


@pytest.mark.slow
def test_types():
    """As `make lint` checks them."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "-p", "tilec"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_fewer_files_hold_back_a_check():
    found = Counter()
    for path in SOURCES:
        lines = re.findall(r"^# mypy: ([\w-]+)(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert {kind for kind, _ in lines} <= set(HELD_BACK), f"{path}: no other check is held back"
        found.update(kind for kind, _ in lines)
    more = {kind: count for kind, count in found.items() if count > HELD_BACK[kind]}
    assert not more, f"mend the types of the new files instead: {more} where there were {HELD_BACK}"
    assert dict(found) == HELD_BACK, "lower HELD_BACK to what is left"


ANY = 336
"""How often product code says `Any`. The number only goes down."""


def test_less_is_any():
    found = sum(len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8"))) for path in SOURCES)
    assert found <= ANY, f"give the new names a type: `Any` stands {found} times, where it stood {ANY} times"
    assert found == ANY, f"lower ANY to {found}"


# ---- dependencies ----------------------------------------------------------------------------------------------------

DISTRIBUTIONS = {
    "cuda.bindings": "cuda-bindings", "cuda.core": "cuda-core", "cuda.pathfinder": "cuda-core",
    "numba_cuda_mlir": "numba-cuda-mlir", "IPython": "ipython", "lsprotocol": "pygls",
}  # fmt: skip
"""Of modules that are called otherwise. `cuda.core` brings `cuda.pathfinder`, and pygls brings lsprotocol."""
CALLERS = {"torch", "cupy", "jax"}
"""Are never demanded: where a caller passes their arrays, they are there."""


def _named(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[; ]", r, maxsplit=1)[0] for r in requirements} - {"tilec"}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (_named_as(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (_named_as(f"{node.module}.{alias.name}") for alias in node.names)


def _named_as(module: str) -> str:
    """The module of `DISTRIBUTIONS` that it is in, or the package."""
    return next((known for known in DISTRIBUTIONS if f"{module}.".startswith(f"{known}.")), module.partition(".")[0])


def test_dependencies_are_those_that_are_imported():
    ours = {"tilec", "__future__", *sys.stdlib_module_names}
    imported = {DISTRIBUTIONS.get(name, name) for path in SOURCES for name in _imported(path) if name not in ours}
    always, extras = PROJECT["project"]["dependencies"], PROJECT["project"]["optional-dependencies"]
    assert _named(always) <= imported, "a dependency that nothing imports"
    assert _named(extras["cuda"]) <= imported
    used = ("cuda", "report", "notebook", "completion", "lsp", "outside")
    brought = _named([*always, *(r for name in used for r in extras[name])])
    assert imported - CALLERS <= brought, "an import that nothing brings"


def test_doctor_knows_the_dependencies(monkeypatch):
    """Also where tilec runs from its sources, with no metadata."""
    from importlib.metadata import PackageNotFoundError

    from tilec.cli import doctor

    def not_there(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", not_there)
    assert set(doctor._required()) == _named(PROJECT["project"]["dependencies"])


# ---- tests -----------------------------------------------------------------------------------------------------------


def test_no_test_module_is_imported():
    """What several of them use is in `tests/tools`."""
    for path in TESTS.rglob("*.py"):
        names = {n for n in _imported(path) if n.startswith("test_")}
        assert not names, f"{path.relative_to(TESTS)} imports {names}"


# ---- the changelog ---------------------------------------------------------------------------------------------------


def test_the_changelog_has_its_form():
    """That of Keep a Changelog, and the version that the package has."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased" and PROJECT["project"]["version"] in versions
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds


def test_options_of_the_changelog_exist():
    from tilec.kernels import FAMILIES
    from tilec.plan.schedule.edit import RENAMED

    (table,) = re.findall(r"\| version 1 \| version 2 \|\n.*?\n((?: +\|.*\n)+)", (ROOT / "CHANGELOG.md").read_text())
    new = {re.search(r"`(\w+)", line.split("|")[2])[1] for line in table.splitlines()}
    assert len(new) > 10 and {RENAMED.get(n, n) for n in new} <= {f.name for family in FAMILIES.values() for f in fields(family)}
