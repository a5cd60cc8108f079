"""Ranges of a left side's indices from the equations that read the name.

The equation `s[k] = …` does not tell the range of `k` if `k` subscripts nothing in it. `y[k] = s[k]` tells it, if `y` is declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.core.diagnostics import Span
from tilec.dsl import ast
from tilec.dsl.check_scope import TensorInfo
from tilec.dsl.index_terms import names_in, size_term
from tilec.dsl.notation import written_ranges
from tilec.index.terms import Term, term


@dataclass(frozen=True)
class Extent:
    """The size of a dimension, and where it stands."""

    size: Term
    span: Span


class LaterUses:
    """The equations of an op from statement `start` on. `tensors` are those known so far, `results` the declared ones."""

    def __init__(
        self, body: Sequence[ast.Statement], start: int, tensors: Mapping[str, TensorInfo], results: Mapping[str, TensorInfo],
        sizes: Mapping[str, Term],
    ):  # fmt: skip
        self.body, self.start, self.tensors, self.results, self.sizes = body, start, tensors, results, sizes

    def extent(self, name: str, k: int) -> Extent | None:
        """The size of dimension `k` of `name`, which an equation is about to define; None where no later equation tells it."""
        return self._of(name, k, frozenset())

    def _of(self, name: str, k: int, asked: frozenset[tuple[str, int]]) -> Extent | None:
        if (name, k) in asked or len(asked) > 50:
            return None
        for equation in self.body[self.start :]:
            if isinstance(equation, ast.Equation):
                for index in dict.fromkeys(_indices_at(equation.value, name, k)):
                    if (found := self._range(equation, index, asked | {(name, k)})) is not None:
                        return found
        return None

    def _range(self, equation: ast.Equation, index: str, asked: frozenset[tuple[str, int]]) -> Extent | None:
        """The range of an index in another equation: as written, or from the dimensions that it subscripts bare."""
        ranges = (*equation.ranges, *written_ranges(equation.value))
        if written := [self._written(r) for r in ranges if r.index == index and r.high is not None]:
            first, *others = written
            return first if all(w is not None and first is not None and w.size == first.size for w in others) else None
        if index in equation.indices:
            k, declared = equation.indices.index(index), self.results.get(equation.name)
            if declared is not None and declared.shape is not None and k < len(declared.shape):
                return Extent(declared.shape[k], declared.span)
        later = []
        for tensor, k, span in _bare(equation.value, index):
            info = self.tensors.get(tensor)
            if info is not None and info.shape is not None and not info.hoisted and k < len(info.shape):
                return Extent(info.shape[k], span)
            later.append((tensor, k))
        if index in equation.indices:
            later.append((equation.name, equation.indices.index(index)))
        return next((e for tensor, k in later if (e := self._of(tensor, k, asked)) is not None), None)

    def _written(self, range_: ast.Range) -> Extent | None:
        """None for one that does not begin at 0: what it reads may have more elements."""
        if range_.low is None or range_.high is None:
            return None
        try:
            low, high = size_term(range_.low, self.sizes), size_term(range_.high, self.sizes)
        except ZeroDivisionError:
            return None
        known = set().union(*(names_in(size) for size in self.sizes.values()))
        return Extent(high, range_.span) if low is term(0) and names_in(high) <= known else None


def _bare(expr: ast.Expr, index: str) -> Iterator[tuple[str, int, Span]]:
    """The dimensions that an index subscripts bare, but for those in `pad` and under an `if`, which it need not cover."""
    match expr:
        case ast.Pad() | ast.Conditional():
            return
        case ast.Access(tensor=tensor, subscripts=subscripts):
            for k, subscript in enumerate(subscripts):
                if isinstance(subscript, ast.Name) and subscript.name == index:
                    yield tensor, k, subscript.span
    for child in ast.children(expr):
        yield from _bare(child, index)


def _indices_at(expr: ast.Expr, name: str, k: int) -> Iterator[str]:
    """The bare indices that subscript dimension `k` of a tensor."""
    for node in ast.traverse(expr):
        subscripts = node.subscripts[k : k + 1] if isinstance(node, ast.Access) and node.tensor == name else ()
        yield from (s.name for s in subscripts if isinstance(s, ast.Name))
