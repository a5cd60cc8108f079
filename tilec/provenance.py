"""Where decisions come from: the source lines and the index names behind operations, for people to read."""

# mypy: no-strict-optional

from __future__ import annotations

from pathlib import Path

from tilec.diagnostics import Source, Span
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.plan_model import KernelPlan


class Provenance:
    """The texts that a specialised op came from, and the names of its indices."""

    def __init__(self, specialised: Specialised):
        self.equations = {e.name: e for e in specialised.equations}
        spans = [t.span for t in (*specialised.inputs, *specialised.outputs)]
        spans += [n.span for e in specialised.equations for n in (e, *ast.walk(e.value))]
        self.sources: dict[str, Source] = {s.source.shown: s.source for s in spans if s is not Span.none()}

    def line(self, place: tuple[str, int] | None) -> str:
        """The text of a source line, without the space around it."""
        source = self.sources.get(place[0]) if place else None
        return source.line(place[1]).strip() if source else ""

    def span(self, place: tuple[str, int] | None) -> Span:
        """The statement on a line, for a message."""
        source = self.sources.get(place[0]) if place else None
        if source is None:
            return Span.none()
        text = source.line(place[1])
        start = sum(len(line) + 1 for line in source.text.split("\n")[: place[1] - 1])
        return Span(source, start + len(text) - len(text.lstrip()), start + len(text.rstrip()))

    def indices(self, operation: str, extents: list[int]) -> tuple[str, ...]:
        """What the source calls an operation's dimensions; `d0`, ... where it has no names of its own."""
        equation = self.equations.get(operation) or self.equations.get(operation.rpartition(".")[0])
        names = _index_names(equation) if equation else ()
        return names[: len(extents)] if len(names) >= len(extents) else tuple(f"d{k}" for k in range(len(extents)))

    def dimensions(self, kernel: KernelPlan) -> dict[int, str]:
        """A name for every dimension of a kernel: what the first operation that has it calls it."""
        names: dict[int, str] = {}
        for operation in kernel.nodes:
            dims = kernel.dims[operation]
            own = self.indices(operation, [kernel.extents[d] for d in dims])
            for d, name in zip(dims, own):
                if d not in names:
                    names[d] = name if name not in names.values() else f"{name}{d}"
        return names


def _index_names(equation: ast.Equation) -> tuple[str, ...]:
    """The left side's indices, then those of reductions: the order in which `build` makes dimensions."""
    inner = [r.index for n in ast.walk(equation.value) if isinstance(n, ast.Reduce) for r in n.ranges]
    return tuple(dict.fromkeys((*equation.indices, *inner)))


def short_place(place: tuple[str, int]) -> str:
    """`softmax.tile:4`."""
    return f"{Path(place[0]).name}:{place[1]}"
