"""Sizes from shapes: solves for the names of sizes in an op's signature, from the shapes of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilec.core.diagnostics import Note, Span
from tilec.dsl import ast
from tilec.dsl.index_terms import is_open, size_term
from tilec.index.terms import Term, size, split, term


@dataclass(frozen=True)
class Conflict:
    """A dimension that does not fit; `open` where sizes that have no number yet may still turn out to be equal."""

    message: str
    span: Span
    notes: tuple[Note, ...]
    open: bool


@dataclass(frozen=True)
class _Dimension:
    size: ast.Size
    extent: Term
    label: str
    span: Span


class Binding:
    """Solves for one op's sizes. Its own names are unknowns `?M` until solved, apart from the caller's names."""

    def __init__(self, op: ast.Op, given: Mapping[str, int] | None = None):
        self.sizes: dict[str, Term] = {}
        self.origins: dict[str, tuple[str, Span]] = {}
        self.conflicts: list[Conflict] = []
        self._names = _names(op)
        self._open: list[_Dimension] = []
        self.sizes = {name: size(f"?{name}") for name in self._names}
        for name, value in (given or {}).items():
            self.sizes[name] = term(value)
            self.origins[name] = ("the sizes given", op.span)

    @property
    def missing(self) -> list[str]:
        """The sizes that nothing has bound."""
        return [name for name in self._names if self.sizes[name] is size(f"?{name}")]

    def give(self, parameter: ast.Tensor, shape: tuple[Term, ...], called: str) -> None:
        """An argument's shape, for a parameter of the same rank."""
        for k, (declared, extent) in enumerate(zip(parameter.shape or (), shape)):
            self._open.append(_Dimension(declared, extent, f"dimension {k} of {called}", declared.span))

    def solve(self) -> None:
        """Binds one size after another, as long as some dimension has exactly one unknown left."""
        progress = True
        while progress:
            waiting, self._open = self._open, []
            for dimension in waiting:
                self._take(dimension)
            progress = len(self._open) < len(waiting)

    def _take(self, d: _Dimension) -> None:
        try:
            p = size_term(d.size, self.sizes)
        except ZeroDivisionError:
            self.conflicts.append(Conflict(f"{d.label}: division by zero", d.span, (), False))
            return
        unknown = [leaf for leaf in p.leaves if leaf.is_symbol and is_open("?", term(leaf))]
        if all(leaf.is_symbol for leaf in p.leaves) and not unknown:
            if p is not d.extent:
                self._conflict(d, p)
            return
        factor, rest = p.collect(unknown[0]) if len(unknown) == 1 else (p, p)
        if len(unknown) != 1 or is_open("?", factor, rest):
            self._open.append(d)
            return
        value, left = split(d.extent - rest, factor)
        if left is not term(0) or (value.constant or 0) < 0:
            message = f"{d.label} is {d.extent}, which cannot be `{_text(d.size)}`"
            self.conflicts.append(Conflict(message, d.span, (), d.extent.constant is None))
        else:
            name = unknown[0].name[1:]
            self.sizes[name] = value
            self.origins[name] = (d.label, d.span)

    def _conflict(self, d: _Dimension, p: Term) -> None:
        names = [n.name for n in ast.names_of(d.size) if n.name in self.origins]
        notes: list[Note] = []
        first = f"`{_text(d.size)}` is {p}"
        if names:
            origin, span = self.origins[names[0]]
            first += f" by {origin}" if isinstance(d.size, ast.SizeName) else ""
            notes = [Note(f"`{names[0]}` is {self.sizes[names[0]]} by {origin}", span)]
        elif isinstance(d.size, ast.SizeNumber):
            first = f"the size must be {p}"
        notes.append(Note(f"{d.label} is {d.extent}", d.span))
        open_ = d.extent.constant is None or p.constant is None
        self.conflicts.append(Conflict(f"{first}, but {d.label} is {d.extent}", d.span, tuple(notes), open_))


def _text(size: ast.Size) -> str:
    return size.span.source.text[size.span.start : size.span.end]


def _names(op: ast.Op) -> list[str]:
    """The sizes of the signature."""
    found = [n.name for t in (*op.inputs, *op.outputs) for size in t.shape or () for n in ast.names_of(size)]
    return list(dict.fromkeys(found))
