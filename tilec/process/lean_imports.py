"""Imports of heavy modules without the parts that tilec does not use.

`import numba_cuda_mlir._mlir`, the bindings of MLIR, runs the package's `__init__`. That takes 0.4 s for all of its
compiler, to get two names (`import_without`), and 0.1 s for operations that decorators define and nobody uses
(`executing`, `Later`). Other users of these modules see no difference: a part that was left out is imported when it is
first used. `stand_in` is for processes that never use a module.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, has-type, method-assign"

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

from tilec.process.interrupts import uninterrupted


def import_without(name: str, later: str) -> ModuleType:
    """The module `name`, whose body imports names from the package `later` or from inside it only when they are asked for.

    So does any other attribute that it lacks, in case it is there as a consequence of these imports.
    """
    with executing(name, lambda module, execute: _execute(module, execute, later)):
        return importlib.import_module(name)


@contextmanager
def executing(name: str, run: Callable[[ModuleType, Callable[[], None]], None]) -> Iterator[None]:
    """Within, an import of the module `name` calls `run(module, execute)`; `execute()` runs the module's body."""
    stop = watch(name, run)
    try:
        yield
    finally:
        stop()


def watch(name: str, run: Callable[[ModuleType, Callable[[], None]], None]) -> Callable[[], None]:
    """The same until the function that it returns is called, or the process ends: a generator that waits until then would be
    resumed after `sys.meta_path` is gone."""

    def find(fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        if fullname != name:
            return None
        others = (f for f in sys.meta_path if f is not finder)
        spec = next((s for f in others if (s := f.find_spec(fullname, path, target)) is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            loader = spec.loader

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module, lambda: loader.exec_module(module))

            loader.exec_module = exec_module
        return spec

    finder = SimpleNamespace(find_spec=find)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder)


class Later:
    """A placeholder for the result of `make()`, which is called at the first use."""

    def __init__(self, make: Callable[[], Callable[..., object]]):
        self._make = make

    def __getattr__(self, name: str) -> object:
        if name != "_made":
            return getattr(self._made, name)
        with uninterrupted():  # what `make` registers on the way is registered once
            self._made = made = self._make()
        return made

    def __call__(self, *args: object, **named: object) -> object:
        return self._made(*args, **named)


def stand_in(name: str, **attributes: object) -> None:
    """Prevents the import of the module `name` and of all modules inside it: they have the given attributes, and every
    other attribute is an empty class without instances."""

    def find(fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        return ModuleSpec(fullname, loader, is_package=True) if f"{fullname}.".startswith(f"{name}.") else None

    def execute(module: ModuleType) -> None:
        def __getattr__(attribute: str) -> type:
            if attribute.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}")
            vars(module)[attribute] = made = type(attribute, (), {})
            return made

        vars(module).update(attributes, __getattr__=__getattr__)

    loader = SimpleNamespace(create_module=lambda spec: None, exec_module=execute)
    if name not in sys.modules:
        sys.meta_path.insert(0, SimpleNamespace(find_spec=find))


@dataclass(frozen=True)
class _Missing:
    """Stands for a name of a module that is not imported yet."""

    module: str
    name: str


def _execute(module: ModuleType, execute: Callable[[], None], later: str) -> None:
    """Runs a module's body with an `__import__` of its own, which no other module sees."""
    space, running = vars(module), True

    def import_(
        name: str, globals: Mapping[str, object] | None = None, locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (), level: int = 0,
    ) -> ModuleType | SimpleNamespace:  # fmt: skip
        if not running or not fromlist or "*" in fromlist or level or not f"{name}.".startswith(f"{later}."):
            return builtins.__import__(name, globals, locals, fromlist, level)
        return SimpleNamespace(**{each: _Missing(name, each) for each in fromlist})

    space["__builtins__"] = vars(builtins) | {"__import__": import_}
    try:
        execute()
    finally:
        running = False
        space["__builtins__"] = vars(builtins)
    left = {name: value for name, value in space.items() if isinstance(value, _Missing)}
    for name in left:
        del space[name]

    def __getattr__(name: str) -> object:
        if name not in left and (name.startswith("__") or later in sys.modules):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        for each, wanted in left.items():
            space.setdefault(each, getattr(importlib.import_module(wanted.module), wanted.name))
        space.pop("__getattr__", None)
        return getattr(module, name)

    if left:
        space["__getattr__"] = __getattr__
