"""Programs to start from: one for each function of the standard library, with its text, and one for a spelling of einsum."""

from __future__ import annotations

import re
from difflib import get_close_matches

from tilec.core.diagnostics import CallError
from tilec.core.dtypes import DTYPES
from tilec.dsl import std
from tilec.dsl.einsum import is_spelling, program, spelling


def names() -> list[str]:
    """Functions of the standard library, as they stand there."""
    return re.findall(r"^def (\w+)", std.text(), re.MULTILINE)


def starting(name: str) -> str:
    """The text of a program: the function of the standard library with that name, and an op that applies it; or what a spelling of
    einsum stands for, with sizes that have names. Raises CallError for any other text."""
    if is_spelling(name):
        of = spelling(name)
        shapes = [[2] * len(indices) for indices in of.operands]  # `...` is one dimension; 2 is a size that is not 1
        return program(of, [DTYPES["f32"]] * len(shapes), shapes)
    if name not in names():
        close = get_close_matches(name, names(), 1)
        hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(names())}"
        raise CallError(
            f"there is no program '{name}' to start from", hint=f"{hint}; a spelling such as 'ij,jk->ik' is one, too"
        )
    text = next(
        block for block in std.text().split("\n\n") if re.search(rf"^def {name}\b", block, re.MULTILINE)
    ).strip()
    found = re.search(rf"^def {name}(?:\[(\w+)\])?\(([^)]*)\)", text, re.MULTILINE)
    assert found is not None
    row, parameters = found[1], [p.strip() for p in found[2].split(",")]
    sizes, indices = ("M, N", f"{'i' if row != 'i' else 'k'}, {row}") if row else ("N", "k")
    result = next(n for n in ("y", "z", "out") if n not in parameters)
    inputs = ", ".join(f"{p}: f32[{sizes}]" for p in parameters)
    arguments = ", ".join(f"{p}[{indices}]" for p in parameters)
    own = f"{name}_of"  # an op and a function of one name cannot stand in one file
    text = text.replace(f"def {name}", f"def {own}", 1)
    called = own + (f"[{row}]" if row else "")
    return (
        f"# {name} of the standard library: change it, and compile this file.\n\n{text}\n\n"
        f"op {name}({inputs}) -> ({result}: f32[{sizes}]) {{\n    {result}[{indices}] = {called}({arguments})\n}}\n"
    )
