"""PyTorch's tracer Dynamo leaves tilec's own code alone, and the compilers that it calls, as it does NumPy's.

A compiled function that PyTorch cannot trace whole runs as Python between its graphs, and Dynamo looks at every function that is
called there: a callback, an operator's gradient, a call of `tilec.compile`'s ops. Such code is tilec's host code: tracing it takes
seconds, guards on what changes, and may be asked for under a lock that the tracer wants itself.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType

RULES = "torch._dynamo.trace_rules"
TRACED = ("tilec.torch.kernels", "tilec.torch.operators")
"""Calls of operators, and of their gradients, become nodes of the graph that is traced."""
CALLED = ("lark", "llvmlite", "numba", "numba_cuda_mlir")
"""Packages that compile for tilec. What Dynamo sees of them is what an op calls."""
_watching = False


def leave_out() -> None:
    """Adds tilec's files, and those of CALLED that are installed, to those that Dynamo leaves out: now, or when Dynamo is
    imported. Does not import it."""
    global _watching
    if _watching:
        return
    _watching = True
    if (rules := sys.modules.get(RULES)) is not None:
        _add(rules)
        return
    from tilec.process.lean_imports import watch

    def run(module: ModuleType, execute: Callable[[], None]) -> None:
        stop()
        execute()
        _add(module)

    stop = watch(RULES, run)


def _add(rules: ModuleType) -> None:
    from importlib.util import find_spec

    names = [*_names(), *(name for name in CALLED if find_spec(name) is not None)]
    compiled = getattr(rules, "_recompile_re", None)
    if compiled is None:
        for name in names:
            rules.add(name)
        return
    rules._recompile_re = lambda: None  # type: ignore[attr-defined]  # one expression of all folders, compiled once for all names
    try:
        for name in names:
            rules.add(name)
    finally:
        rules._recompile_re = compiled  # type: ignore[attr-defined]
    compiled()


def _names() -> list[str]:
    """The packages and modules of tilec, but for TRACED and the packages that have these."""
    found = set[str]()
    for package in ("tilec", *{name.rpartition(".")[0] for name in TRACED}):
        for part in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            if not any(f"{name}.".startswith(f"{part.name}.") for name in TRACED):
                found.add(part.name)
    return sorted(found)
