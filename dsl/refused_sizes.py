"""Ops that the compiler refuses at all sizes that are tried, though no mistake is found while their sizes are names."""

from __future__ import annotations

from dataclasses import replace

from tilec.core.diagnostics import Diagnostic, TileError
from tilec.dsl import ast
from tilec.dsl.check_sizes import size_names
from tilec.dsl.modules import Loader, load_file
from tilec.dsl.specialise import accepted_sizes, specialise

_SMALL = 400  # statements up to which `check` tries sizes
_TRIED = (dict(zip(range(6), (5, 7, 3, 11, 2, 13))), *(dict.fromkeys(range(6), n) for n in (8, 64, 720)))


def refused_everywhere(program: ast.Program, loader: Loader = load_file) -> list[Diagnostic]:
    """A warning for every op that is refused at all of some sizes: a proof that fails with numbers is none that `check`
    can tell with names, as other sizes may be meant."""
    found: list[Diagnostic] = []
    if sum(len(op.body) for op in program.ops) > _SMALL:
        return found
    for op in program.ops:
        names = list(size_names(op))
        if not names or any(t.shape is None for t in op.inputs):
            continue
        first: Diagnostic | None = None
        for tried in _TRIED:
            sizes = {name: tried[k % len(tried)] for k, name in enumerate(names)}
            try:
                specialise(program, op.name, None, sizes, loader)
                break
            except TileError as error:
                reported = ", ".join(f"{n}={v}" for n, v in sizes.items())
                first = first or replace(error.diagnostics[0], message=f"{error.diagnostics[0].message} (at {reported})")
        else:
            if accepted_sizes(program, op, dict(zip(names, _TRIED[0].values())), {}, loader) is not None:
                continue
            assert first is not None, "sizes were tried"
            message = f"`{op.name}` is refused at all sizes that were tried: {first.message}"
            found.append(replace(first, message=message, severity="warning"))
    return found
