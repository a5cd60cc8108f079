"""Help for compiling generated Python: a kernel's text by itself, a digest of its bytecode, and no garbage collection meanwhile."""

from __future__ import annotations

import gc
import re
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


def alone(module: str, name: str) -> str:
    """The text of a printed module with one of its functions, and with those of its one-line definitions that this one needs."""
    head, *texts = re.split(r"^(?=def )", module, flags=re.MULTILINE)
    (text,) = (t for t in texts if t.startswith(f"def {name}("))
    kept, used = [text], set(re.findall(r"\w+", text))
    for line in reversed(head.splitlines(keepends=True)):
        defined = re.match(r"(\w+) = ", line)
        if defined is None or defined[1] in used:
            kept.append(line)
            used.update(re.findall(r"\w+", line) if defined else ())
    return "".join(reversed(kept))


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
