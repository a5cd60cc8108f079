"""What `import tilec` offers is seen by `dir`, completion and type checkers, and costs next to nothing before it is used."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from tools import ROOT

import tilec
import tilec.torch

SCRIPT = '''
from pathlib import Path

import tilec
from tilec import Kernel, Op, Plan
from tilec.torch import report

op = tilec.compile("y[i] = x[i]", op=None, sizes={"N": 3}, target="cpu", path=Path("."))
reveal_type(op)
reveal_type(tilec.compile)
reveal_type(op.plan)
reveal_type(op.kernels)
reveal_type(op.stages)
reveal_type(op.explain())
reveal_type(op.build(N=3))
reveal_type(tilec.reference("y[i] = x[i]"))
reveal_type(tilec.__version__)
reveal_type(report())
reveal_type(op.classes())
reveal_type(op.what_if("bandwidth*2"))
reveal_type(op.report())
reveal_type(op.warm(N=[1, 2]))
reveal_type(tilec.compile("ij,jk->ik"))
reveal_type(tilec.from_torch(abs, 1.0))


@tilec.op
def plain(x: "f32[N]") -> "y: f32[N]":  # type: ignore # pyright: ignore
    "y[i] = x[i]"


@tilec.op(target="cpu", varies=["N"])
def optioned(x: "f32[N]") -> "y: f32[N]":  # type: ignore # pyright: ignore
    "y[i] = x[i]"


reveal_type(plain)
reveal_type(optioned)
product = tilec.einsum("ij,jk->ik", 1, 2, target="cpu")
both = tilec.einsum(1, [0], 2, [0], [])


def use(op: Op, kernel: Kernel, plan: Plan) -> str:
    return kernel.source + str(plan.time_us) + op.name


try:
    op(1)
except tilec.TileError as error:
    reveal_type(error.diagnostics)
tilec.compile("y[i] = x[i]", tagret="cpu")  # WRONG
tilec.compile(3)  # WRONG
tilec.compiel("y[i] = x[i]")  # WRONG
op.kernel  # WRONG
tilec.einsum("i->", 1, tagret="cpu")  # WRONG
tilec.op(tagret="cpu")  # WRONG
op.build(N="3")  # WRONG
op.classes(1)  # WRONG
tilec.from_torch()  # WRONG
'''
KNOWN = ["Op", "Kernel", "Plan", "str", "Report", "Diagnostic"]
WRONG = [n for n, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# WRONG")]


def test_all_that_is_public_is_listed():
    for module in (tilec, tilec.torch):
        assert set(module.__all__) <= set(dir(module))
        if module is tilec or importlib.util.find_spec("torch") is not None:
            assert all(getattr(module, name) is not None for name in module.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'compiel'"):
            _ = module.compiel
    assert tilec.compile.__module__ == "tilec.api" and tilec.Plan is type(tilec.compile("y = 1", target="cpu").plan)


def reported(text: str, error: str) -> tuple[list[str], list[int]]:
    """What a checker reveals, and the lines that it calls wrong."""
    lines = [line for line in text.splitlines() if "script.py:" in line]
    wrong = {int(x.split("script.py:")[1].split(":")[0]) for x in lines if error in x}
    return [x for x in lines if "eveal" in x or "Type of" in x], sorted(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("checker, error", [("mypy", " error: "), ("pyright", " error: ")])
def test_type_checkers_see_it(tmp_path, checker, error):
    pytest.importorskip(checker)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", checker, "script.py"]
    if checker == "mypy":
        command += ["--strict"]
        command += ["--cache-dir", str(ROOT / ".mypy_cache"), "--python-executable", sys.executable, "--config-file", os.devnull]
    else:
        command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    revealed, wrong = reported(done.stdout + done.stderr, error)
    assert wrong == WRONG, done.stdout + done.stderr
    assert len(revealed) == SCRIPT.count("reveal_type")
    assert not any("object" in line or "Unknown" in line for line in revealed), revealed
    assert not [line for line in revealed if line.endswith(('"Any"', 'is "builtins.object"'))]
    assert all(any(name in line for line in revealed) for name in KNOWN)


def test_completion_sees_it():
    jedi = pytest.importorskip("jedi")
    names = {c.name for c in jedi.Script("import tilec\ntilec.").complete(2, 6)}
    assert set(tilec.__all__) - {"__version__"} <= names
    inside = {c.name for c in jedi.Script('import tilec\nop = tilec.compile("y[i] = x[i]")\nop.').complete(3, 3)}
    assert {"explain", "what_if", "kernels", "stages", "plan", "build", "graph", "check"} <= inside


def test_the_marker_of_types_is_installed():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["package-data"]["tilec"] == ["py.typed"] and (ROOT / "tilec" / "py.typed").is_file()
