"""The interpreter has a meaning for all that the compiler makes: found in the sources, so that nothing new is forgotten."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

import tilec
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.opcodes import OPCODES
from tilec.runtime.cuda.device import matrix
from tilec.semantics.interpreter.code import ENDS, OPERATIONS
from tilec.semantics.interpreter.wgmma import SIZES

ROOT = Path(tilec.__file__).parent.parent
MAKERS = [
    *(path for folder in ("passes", "dsl") for path in sorted((ROOT / folder).rglob("*.py"))),
    *(path for path in sorted((ROOT / "runtime").rglob("*.py")) if "emit" in str(path.relative_to(ROOT))),
    *(found for n in ("functions", "reductions", "mlir") for found in (ROOT / "tilec").rglob(f"{n}.py")),
]
HOLDERS = {"builtin.module", "func.func"}  # what operations lie in; the rest is a step, or ends a block


@pytest.fixture(scope="module")
def context():
    with mlir.context() as made:
        yield made


def operations_of(path: Path, context: ir.Context) -> set[str]:
    """The operations that a file builds by their classes, by functions of a dialect, or by name."""
    tree, found = ast.parse(path.read_text()), set()
    dialects = {"mlir"} | {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "tilec.core.mlir"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"[a-z]\w*(\.\w+)+", node.value) and context.is_registered_operation(node.value):
                found.add(node.value)
        elif isinstance(node, ast.Attribute) and (dialect := _dialect(node.value, dialects)) is not None:
            made = getattr(dialect, node.attr, None)
            name = getattr(made, "OPERATION_NAME", None) or f"{dialect.__name__.split('.')[-1]}.{node.attr.rstrip('_')}"
            if made is not None and context.is_registered_operation(name):
                found.add(name)
    return found


def _dialect(node: ast.expr, imported: set[str]) -> ModuleType | None:
    """The dialect's module that `arith` or `mlir.arith` names."""
    inner = node.value if isinstance(node, ast.Attribute) else node
    if not isinstance(inner, ast.Name) or inner.id not in imported:
        return None
    module = getattr(mlir, node.attr if isinstance(node, ast.Attribute) else inner.id, None)
    return module if ".dialects." in getattr(module, "__name__", "") else None


def test_operations(context):
    """Of every file that makes IR or prints it; what a printer knows, upstream's passes may make, too."""
    found = {path.relative_to(ROOT).as_posix(): operations_of(path, context) for path in MAKERS}
    assert found["passes/cuda/cluster.py"] >= {"memref.dma_start", "nvvm.cluster.arrive"} and len(found) > 50
    unknown = {name: made - {*OPERATIONS, *ENDS, *HOLDERS} for name, made in found.items()}
    assert not {name: made for name, made in unknown.items() if made}


def test_functions_that_are_only_declared():
    """Every opcode has a meaning, and is printed."""
    of_files = {
        name: {n.cls.id for n in ast.walk(tree) if isinstance(n, ast.MatchClass) and isinstance(n.cls, ast.Name)}
        for name in ("interpreter/wgmma.py", "emit/cuda_hopper.py")
        for path in ROOT.rglob(name)
        for tree in [ast.parse(path.read_text())]
    }
    assert len(of_files) == 2
    for known in of_files.values():
        assert known >= {record.__name__ for record in OPCODES.values()}


def test_products():
    """Every kind of product that a printed kernel can have."""
    assert set(SIZES) == set(matrix._WGMMA)
