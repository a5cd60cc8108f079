"""Printed kernels as tests look at them."""

from __future__ import annotations

import re


def code(text: str) -> str:
    """A kernel without its comments, which have the source's own words."""
    return re.sub(r" *#.*", "", text)


def assembly(op, number: int = 0) -> str:
    """What LLVM makes of a CPU kernel of an op that was called, for this processor."""
    from tilec.runtime.cpu import compile as cpu

    emitted = op._last.emitted
    name = emitted.kernels[number].name
    library = cpu._read(cpu._execute(emitted.module)[name], f"assembly_{name}")
    library.link()
    library._optimize_final_module()
    return str(library.codegen._tm.emit_assembly(library._final_module))
