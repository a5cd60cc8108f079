"""Help for compiling generated Python: a digest of a kernel's bytecode, and no garbage collection while it compiles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType


def identity(code: CodeType) -> tuple:
    """The meaning of a function without its name and the names of its variables. Constants by their text, since 0.0 is
    equal to -0.0."""
    return code.co_code, repr(code.co_consts), code.co_names, code.co_nlocals, code.co_argcount


def functions(module: str) -> dict[str, CodeType]:
    """The code of a module's functions, which is not run."""
    code = compile(module, "<generated>", "exec")
    return {c.co_name: c for c in code.co_consts if isinstance(c, CodeType)}


@contextmanager
def uncollected() -> Iterator[None]:
    """Disables the garbage collector: compilers make a great many objects, and nearly all are in use."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
