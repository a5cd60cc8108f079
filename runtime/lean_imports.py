"""Imports a package without what its `__init__` imports for its users only.

`import numba_cuda_mlir._mlir`, the bindings of MLIR, runs the package's `__init__`, which takes 0.4 s to import all of its
compiler for two names. Nobody else sees a difference: what was left out comes when it is first asked for.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any


def import_without(name: str, later: str) -> ModuleType:
    """The module `name`, whose body imports names from the package `later` or from inside it only when they are asked for.

    So does any other attribute that it lacks, in case it is there as a consequence of these imports.
    """
    if name in sys.modules:
        return importlib.import_module(name)

    def find(fullname: str, path: Any, target: Any) -> ModuleSpec | None:
        if fullname != name:
            return None
        others = (f for f in sys.meta_path if f is not finder)
        spec = next((s for f in others if (s := f.find_spec(fullname, path, target)) is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader.exec_module = lambda module: _execute(module, later)
        return spec

    finder = SimpleNamespace(find_spec=find)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)


@dataclass(frozen=True)
class _Later:
    """Stands for a name of a module that is not imported yet."""

    module: str
    name: str


def _execute(module: ModuleType, later: str) -> None:
    """Runs a module's body with an `__import__` of its own, which no other module sees."""
    space, loader = vars(module), module.__spec__.loader
    del loader.exec_module
    running = True

    def import_(name: str, globals=None, locals=None, fromlist=(), level=0):
        if not running or not fromlist or "*" in fromlist or level or not f"{name}.".startswith(f"{later}."):
            return builtins.__import__(name, globals, locals, fromlist, level)
        return SimpleNamespace(**{each: _Later(name, each) for each in fromlist})

    space["__builtins__"] = vars(builtins) | {"__import__": import_}
    try:
        loader.exec_module(module)
    finally:
        running = False
        space["__builtins__"] = vars(builtins)
    left = {name: value for name, value in space.items() if isinstance(value, _Later)}
    for name in left:
        del space[name]

    def __getattr__(name: str) -> Any:
        if name not in left and (name.startswith("__") or later in sys.modules):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        for each, wanted in left.items():
            space.setdefault(each, getattr(importlib.import_module(wanted.module), wanted.name))
        space.pop("__getattr__", None)
        return getattr(module, name)

    if left:
        space["__getattr__"] = __getattr__
