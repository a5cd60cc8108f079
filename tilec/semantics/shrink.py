"""Reduction of a failing program: smaller sizes first, then fewer outputs, then fewer statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilec.core.diagnostics import TileError
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.semantics.verify import Failure, Verifier
from tilec.semantics.verify_inputs import inputs_of

Make = Callable[[dict[str, int]], Specialised]


class Shrinker:
    """`kind` and `seed` determine the inputs of each attempt."""

    def __init__(self, verifier: Verifier, kind: str, seed: int):
        self.verifier, self.kind, self.seed = verifier, kind, seed

    def _fails(self, specialised: Specialised, stage: str) -> Failure | None:
        try:
            found = self.verifier.check(specialised, {self.kind: inputs_of(specialised, self.kind, self.seed)})
        except TileError:  # a program that is none
            return None
        return found[1] if found is not None and found[1].stage == stage else None

    def sizes(self, make: Make, failure: Failure, fixed: dict[str, int]) -> Failure:
        """As small as they go, one after another. `make` specialises the program for given sizes."""
        sizes, smaller = dict(failure.specialised.sizes), True
        while smaller:
            smaller = False
            for name, size in sizes.items():
                for less in (
                    () if name in fixed else sorted({n for n in (0, 1, 2, size // 2, size - 1) if 0 <= n < size})
                ):
                    try:
                        found = self._fails(make({**sizes, name: less}), failure.stage)
                    except TileError:
                        continue
                    if found is not None:
                        sizes[name], failure, smaller = less, found, True
                        break
        return failure

    def program(self, failure: Failure) -> Failure:
        """Removes statements that the failure does not need."""
        smaller = True
        while smaller:
            smaller = False
            for part in parts(failure.specialised):
                found = self._fails(part, failure.stage)
                if found is not None:
                    failure, smaller = found, True
                    break
        return failure


def parts(specialised: Specialised) -> Iterator[Specialised]:
    """Smaller programs: one output only; only the statements that an intermediate needs; an intermediate as an input."""
    if len(specialised.outputs) > 1:
        for output in specialised.outputs:
            yield _needed(replace(specialised, outputs=(output,)))
    results = {t.name for t in specialised.outputs}
    inner = [e for e in specialised.equations if e.name not in results]
    for equation in inner:
        yield _needed(replace(specialised, outputs=(_tensor(equation),)))
    for equation in inner:
        rest = tuple(e for e in specialised.equations if e is not equation)
        yield _needed(replace(specialised, inputs=(*specialised.inputs, _tensor(equation)), equations=rest))


def _tensor(equation: ast.Equation) -> ast.Tensor:
    shape = tuple(map(ast.SizeNumber, ast.extents_of(equation)))
    return ast.Tensor(equation.name, equation.dtype, shape, equation.span)


def _needed(specialised: Specialised) -> Specialised:
    """Without the equations and inputs that no output reads."""
    wanted, kept = {t.name for t in specialised.outputs}, []
    for equation in reversed(specialised.equations):
        if equation.name in wanted:
            kept.append(equation)
            wanted |= {n.tensor for n in ast.traverse(equation.value) if isinstance(n, ast.Access)}
    inputs = tuple(t for t in specialised.inputs if t.name in wanted)
    return replace(specialised, inputs=inputs, equations=tuple(reversed(kept)), expects=())
