"""Sizes from shapes: solves for the names of sizes in an op's signature, from the shapes of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilec.core.diagnostics import Note, Span
from tilec.dsl import ast
from tilec.dsl.ranges import Poly, size_poly


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
    extent: Poly
    label: str
    span: Span


class Binding:
    """Solves for one op's sizes. Its own names are unknowns `?M` until solved, apart from the caller's names."""

    def __init__(self, op: ast.Op, given: Mapping[str, int] | None = None):
        self.sizes: dict[str, Poly] = {}
        self.origins: dict[str, tuple[str, Span]] = {}
        self.conflicts: list[Conflict] = []
        self._names = _names(op)
        self._open: list[_Dimension] = []
        self.sizes = {name: Poly.of(f"?{name}") for name in self._names}
        for name, value in (given or {}).items():
            self.sizes[name] = Poly.of(value)
            self.origins[name] = ("the sizes given", op.span)

    @property
    def missing(self) -> list[str]:
        """The sizes that nothing has bound."""
        return [name for name in self._names if self.sizes[name] == Poly.of(f"?{name}")]

    def give(self, parameter: ast.Tensor, shape: tuple[Poly, ...], called: str) -> None:
        """An argument's shape, for a parameter of the same rank."""
        for k, (size, extent) in enumerate(zip(parameter.shape or (), shape)):
            self._open.append(_Dimension(size, extent, f"dimension {k} of {called}", size.span))

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
            p = size_poly(d.size, self.sizes)
        except ZeroDivisionError:
            self.conflicts.append(Conflict(f"{d.label}: division by zero", d.span, (), False))
            return
        unknown = [v for v in p.variables if isinstance(v, str) and v.startswith("?")]
        if not p.variables or (not unknown and all(isinstance(v, str) for v in p.variables)):
            if p != d.extent:
                self._conflict(d, p)
            return
        parts = p.split(unknown[0]) if len(unknown) == 1 else None
        value = None if parts is None else _quotient(d.extent - parts[1], parts[0])
        if parts is None or any("?" in str(v) for v in parts[1].variables | parts[0].variables):
            self._open.append(d)
        elif value is None or (value.constant is not None and value.constant < 0):
            message = f"{d.label} is {d.extent}, which cannot be `{_text(d.size)}`"
            self.conflicts.append(Conflict(message, d.span, (), d.extent.constant is None))
        else:
            name = unknown[0][1:]
            self.sizes[name] = value
            self.origins[name] = (d.label, d.span)

    def _conflict(self, d: _Dimension, p: Poly) -> None:
        names = [name for name in _size_names(d.size) if name in self.origins]
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


def _quotient(p: Poly, factor: Poly) -> Poly | None:
    """p / factor, where that is exact."""
    if factor.constant == 1:
        return p
    a, b = p.constant, factor.constant
    if b == 0:
        return None
    if a is not None and b is not None:
        return Poly.of(a // b) if a % b == 0 else None
    if b is not None and all(c % b == 0 for _, c in p.terms):
        return Poly(tuple((m, c // b) for m, c in p.terms))
    return None


def _text(size: ast.Size) -> str:
    return size.span.source.text[size.span.start : size.span.end]


def _size_names(size: ast.Size) -> list[str]:
    match size:
        case ast.SizeNumber():
            return []
        case ast.SizeName(name=name):
            return [name]
        case ast.SizeBinary(left=left, right=right):
            return _size_names(left) + _size_names(right)


def _names(op: ast.Op) -> list[str]:
    """The sizes of the signature."""
    found = [n for t in (*op.inputs, *op.outputs) for size in t.shape or () for n in _size_names(size)]
    return list(dict.fromkeys(found))
