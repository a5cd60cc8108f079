"""Help for compiling generated Python: a kernel's text by itself, and a digest of its bytecode."""

from __future__ import annotations

import re
from types import CodeType


def identity(code: CodeType) -> tuple:
    """The meaning of a function without its name and the names of its variables. Constants by their text, since 0.0 is
    equal to -0.0."""
    return code.co_code, repr(code.co_consts), code.co_names, code.co_nlocals, code.co_argcount


def functions(module: str) -> dict[str, CodeType]:
    """The code of a module's functions, which is not run."""
    code = compile(module, "<generated>", "exec")
    return {c.co_name: c for c in code.co_consts if isinstance(c, CodeType)}


def alone(module: str) -> dict[str, str]:
    """By function of a printed module, the text of the module with this one, and with those of its one-line definitions that it
    needs."""
    head, *texts = re.split(r"^(?=def )", module, flags=re.MULTILINE)
    lines = [(re.match(r"(\w+) = ", line), line) for line in head.splitlines(keepends=True)]
    found = {}
    for text in texts:
        kept, used = [text], set(re.findall(r"\w+", text))
        for defined, line in reversed(lines):
            if defined is None or defined[1] in used:
                kept.append(line)
                used.update(re.findall(r"\w+", line) if defined else ())
        found[text[4 : text.index("(")]] = "".join(reversed(kept))
    return found


def definitions(module: str) -> frozenset[str]:
    """The one-line definitions of a printed module, whose order means nothing: it depends on which kernel needs one first."""
    return frozenset(re.findall(r"^\w+ = .*$", module.partition("\ndef ")[0], flags=re.MULTILINE))
