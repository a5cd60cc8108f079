"""All kernels of a module, by a backend's printer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tilec.core import locations, mlir
from tilec.core.mlir import ir
from tilec.runtime.emit.comments import Comments
from tilec.runtime.emit.names import Names, program_names
from tilec.runtime.emit.printer import Printer
from tilec.runtime.program import KernelSource

P = TypeVar("P", bound=Printer)


def print_kernels(
    module: ir.Module, printer: Callable[[Names, Comments], P], kernel: Callable[[P, ir.Operation], KernelSource]
) -> list[tuple[P, KernelSource]]:
    """Every kernel and its printer. A kernel is printed again if a variable has the name of an import."""
    program, statements = frozenset(program_names(module.operation)), locations.statements(module.operation)
    kernels = [f for f in mlir.functions(module) if "tilec.kernel" in f.attributes]
    called = {ir.StringAttr(f.attributes["sym_name"]).value for f in kernels}
    imported: set[str] = set()
    while True:
        made = []
        for function in kernels:
            names = Names(program, locations.indices(function), imported, called)
            own = printer(names, Comments(statements, function.location))
            made.append((own, kernel(own, function)))
        new = {name for own, _ in made for name in own.imports()} - imported
        if not any(new & (own.names.given | own.names.loops) for own, _ in made):
            return made
        imported |= new
