"""All kernels of a module, by a backend's printer; several at a time, where forks may do it (`tilec/process/forks.py`)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from tilec.core import locations, mlir
from tilec.core.mlir import ir
from tilec.process import forks
from tilec.runtime.emit.comments import LONGEST, Comments, plain
from tilec.runtime.emit.names import Names, program_names
from tilec.runtime.emit.printer import Printer
from tilec.runtime.program import KernelSource

P = TypeVar("P", bound=Printer)


@dataclass(frozen=True)
class Printed:
    """A kernel, and what the module needs beside it: names `used` of the backend's functions, and one-line `definitions`. `names`:
    those of its variables."""

    source: KernelSource
    used: set[str]
    definitions: dict[str, str]
    names: set[str]


OPERATIONS_THRESHOLD = 8000  # operations of a module that forks print, which takes a second
OnKernel = Callable[[Printed], None]


def print_kernels(
    module: ir.Module, printer: Callable[[Names, Comments], P], kernel: Callable[[P, ir.Operation], KernelSource],
    on_kernel: OnKernel = lambda printed: None,
) -> list[Printed]:  # fmt: skip
    """Every kernel. `on_kernel` is called with each as soon as it is printed, of the largest first. Kernels are printed again if a
    variable has the name of an import, or if they define different things by one name: then what it was called with serves
    nothing."""
    program, statements = frozenset(program_names(module.operation)), locations.statements(module.operation)
    kernels = [f for f in mlir.functions(module) if "tilec.kernel" in f.attributes]
    others = _further_launches(module)
    called = {mlir.symbol(f) for f in kernels}
    imported: set[str] = set()

    def printed(function: ir.Operation, defined: dict[str, str]) -> Printed:
        names = Names(program, locations.indices(function), imported, called, defined)
        own = printer(names, Comments(statements, function.location))
        source = replace(_with_messages(kernel(own, function), others), inplace=_pairs(function))
        return Printed(source, own.used, own.definitions, names.given | names.loops)

    sizes = [sum(1 for _ in mlir.traverse(function)) for function in kernels]
    order = sorted(range(len(kernels)), key=sizes.__getitem__, reverse=True)
    while True:
        made: dict[int, Printed] = {}
        several = forks.each(lambda k: printed(kernels[order[k]], {}), len(order), sum(sizes) >= OPERATIONS_THRESHOLD)
        for n, found in zip(order, several):
            made[n] = found
            on_kernel(found)
        result = [made[n] for n in range(len(kernels))]
        defined = {definition for p in result for definition in p.definitions.items()}
        if len(defined) > len({name for name, _ in defined}):
            shared: dict[str, str] = {}
            result = [printed(function, shared) for function in kernels]
        new = {name for p in result for name in (*p.used, *p.definitions)} - imported
        if not any(new & p.names for p in result):
            return result
        imported |= new


MOST = 8  # lines of a comment


def _further_launches(module: ir.Module) -> dict[str, list[str]]:
    """By kernel, the launches that the plan calls otherwise, with their lines in the source."""
    found: dict[str, list[str]] = {}
    for op in (op for f in mlir.functions(module) if "tilec.kernel" not in f.attributes for op in mlir.entry(f).operations):
        if op.operation.name == "func.call" and (name := mlir.get_string(op.operation, "tilec.launch")):
            lines: dict[str, set[int]] = {}
            for file, line, _ in locations.positions(op.location):
                lines.setdefault(file.rsplit("/", 1)[-1], set()).add(line)
            where = "; ".join(f"{file}:{', '.join(map(str, sorted(own)))}" for file, own in lines.items())
            callee = mlir.callee(op.operation)
            found.setdefault(callee, []).append(plain(f"{name} ({where})" if where else name))
    return found


def _with_messages(kernel: KernelSource, others: dict[str, list[str]]) -> KernelSource:
    """The kernel, with a comment of its further launches."""
    if kernel.name not in others:
        return kernel
    lines = textwrap.wrap(f"also {', '.join(others[kernel.name])}", LONGEST, break_long_words=False, break_on_hyphens=False)
    if len(lines) > MOST:
        lines = [*lines[: MOST - 1], f"... {len(others[kernel.name])} in all"]
    head, *body = kernel.text.split("\n")
    return replace(kernel, text="\n".join([head, *(f"    # {line}" for line in lines), *body]))


def _pairs(function: ir.Operation) -> tuple[tuple[int, int], ...]:
    numbers = mlir.get_integers(function, "tilec.inplace") or []
    return tuple(zip(numbers[::2], numbers[1::2]))
