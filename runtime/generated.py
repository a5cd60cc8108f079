"""Work with generated Python: what a kernel does, told from its bytecode, and no garbage collection while it compiles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType


def identity(code: CodeType) -> tuple:
    """What a function does, whatever it and its variables are called. Constants by their text: 0.0 is equal to -0.0."""
    return code.co_code, repr(code.co_consts), code.co_names, code.co_nlocals, code.co_argcount


def functions(module: str) -> dict[str, CodeType]:
    """The code of a module's functions, which is not run."""
    code = compile(module, "<generated>", "exec")
    return {c.co_name: c for c in code.co_consts if isinstance(c, CodeType)}


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector: compilers make a great many objects, nearly all of which are in use."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
