"""The source lines of decisions, and the names of indices in place of dimensions' numbers, for messages and reports."""

from __future__ import annotations

from pathlib import Path

from tilec.core.diagnostics import Source, Span
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.kernels import KernelPlan
from tilec.plan.model import Plan
from tilec.plan.steps import Pack, Split


class Provenance:
    """The texts that a specialised op came from, and the names of its indices."""

    def __init__(self, specialised: Specialised, plan: Plan | None = None):
        """`plan` tells the operations that its rewrites make: parts of split reductions, packed factors."""
        splits: tuple[Split, ...] = plan.steps("split") if plan else ()
        self.splits = {name: s.operation for s in splits for name in (s.operation, s.partial)}
        self.packs: dict[str, Pack] = {p.stored: p for p in plan.steps("pack")} if plan else {}
        self.equations = {e.name: e for e in specialised.equations}
        spans = [t.span for t in (*specialised.inputs, *specialised.outputs)]
        spans += [n.span for e in specialised.equations for n in (e, *ast.traverse(e.value))]
        self.sources: dict[str, Source] = {s.source.shown: s.source for s in spans if s is not Span.none()}

    def line(self, location: tuple[str, int] | None) -> str:
        """The text of a source line, without the space around it."""
        source = self.sources.get(location[0]) if location else None
        return source.line(location[1]).strip() if location and source else ""

    def span(self, location: tuple[str, int] | None) -> Span:
        """The statement on a line, for a message."""
        source = self.sources.get(location[0]) if location else None
        if location is None or source is None:
            return Span.none()
        text = source.line(location[1])
        start = sum(len(line) + 1 for line in source.text.split("\n")[: location[1] - 1])
        return Span(source, start + len(text) - len(text.lstrip()), start + len(text.rstrip()))

    def indices(self, operation: str, extents: list[int]) -> tuple[str, ...]:
        """The names of an operation's dimensions in the source; `d0`, ... where the source has none."""
        if operation in self.splits:
            return ("part", *self._own(self.splits[operation], len(extents) - 1))
        if operation in self.packs:
            pack = self.packs[operation]
            if not pack.dims:
                return tuple(f"d{k}" for k in range(len(extents)))
            own = self._own(pack.operation, 1 + max(pack.dims))
            return tuple(own[d] for d in pack.dims)
        return self._own(operation, len(extents))

    def index(self, operation: str, dim: int) -> str:
        """The name of a dimension of an operation of the program itself."""
        return self._own(operation, dim + 1)[dim]

    def _own(self, operation: str, count: int) -> tuple[str, ...]:
        """The first `count` names of an operation of the program itself."""
        equation = self.equations.get(operation) or self.equations.get(operation.rpartition(".")[0])
        names = _index_names(equation) if equation else ()
        return names[:count] if len(names) >= count else tuple(f"d{k}" for k in range(count))

    def dimensions(self, kernel: KernelPlan) -> dict[int, str]:
        """A name for every dimension of a kernel: its name in the first operation that has it. A name that another dimension
        has already is followed by the operation: `d of o.sum`."""
        names: dict[int, str] = {}
        for operation in kernel.nodes:
            dims = kernel.dims[operation]
            own = self.indices(operation, [kernel.extents[d] for d in dims])
            for d, name in zip(dims, own):
                if d not in names:
                    names[d] = name if name not in names.values() else f"{name} of {operation}"
        return names


def _index_names(equation: ast.Equation) -> tuple[str, ...]:
    """The left side's indices, then those of reductions: `build` makes dimensions in this order."""
    inner = [r.index for n in ast.traverse(equation.value) if isinstance(n, ast.Reduce) for r in n.ranges]
    return tuple(dict.fromkeys((*equation.indices, *inner)))


def short_location(location: tuple[str, int]) -> str:
    """`softmax.tile:4`."""
    return f"{Path(location[0]).name}:{location[1]}"
