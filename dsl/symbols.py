"""What each name in a source means: where it is declared, and where else it stands. For editors.

Names are resolved in whatever could be read: a program with mistakes has symbols, too. A name that nothing declares has none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from lark import Token

from tilec.core.diagnostics import Source, Span
from tilec.dsl import ast
from tilec.dsl.check_scope import Module
from tilec.dsl.notation import written_ranges
from tilec.dsl.parse import lex_any

KINDS = ("op", "function", "input", "result", "tensor", "size", "index", "parameter", "local")


@dataclass(eq=False)
class Symbol:
    """A name that a program declares. `span`: the name where it is declared. `spans`: wherever it stands in the source, the
    declaration included, if it is there. `owner`: the op or function that it is of, itself for these. `equation`: of an index, the
    tensor whose equation it is of. `node`: the declaration of an op or a function."""

    kind: str
    name: str
    span: Span
    owner: str
    equation: str = ""
    node: ast.Op | ast.Def | None = None
    spans: list[Span] = field(default_factory=list)


class Symbols:
    """All symbols of a source. `module` has the declarations that it sees; without one, it sees its own."""

    def __init__(self, program: ast.Program, module: Module | None = None):
        self.source = program.span.source
        self.names = _Names(self.source)  # its own: spans are of this source, not of another one with the same text
        self.all: list[Symbol] = []
        self._at: dict[int, Symbol] = {}
        self.declared: dict[str, Symbol] = {}
        nodes: tuple[ast.Def | ast.Op, ...] = (*program.defs, *program.ops)
        for node in nodes:
            kind = "op" if isinstance(node, ast.Op) else "function"
            if node.name not in self.declared and (span := self._named(node)) is not None:
                self.declared[node.name] = self._declare(Symbol(kind, node.name, span, node.name, node=node))
        self._imported: dict[str, Symbol] = {}
        self._module = module
        for function in program.defs:
            _FunctionNames(self, function)
        for op in program.ops:
            _OpNames(self, op)

    def at(self, offset: int) -> tuple[Symbol, Span] | None:
        """The symbol at a place between two characters of the source, and where its name stands there."""
        word = self.names.at(offset)
        symbol = self._at.get(word.start) if word is not None else None
        return (symbol, word) if symbol is not None and word is not None else None

    def seen_from(self, owner: str) -> Iterator[Symbol]:
        """Those of an op or a function, and the declarations that it can call."""
        yield from (s for s in self.all if s.owner == owner and s.node is None)
        yield from self.declared.values()

    def callable(self, name: str) -> Symbol | None:
        """The op or function of that name: of the source itself, imported, or of the standard library."""
        if name in self.declared or name in self._imported or self._module is None:
            return self.declared.get(name) or self._imported.get(name)
        for kind, known in (("op", self._module.ops), ("function", self._module.defs)):
            if name in known:
                node: ast.Op | ast.Def = known[name][0]
                span = _names_of(node.span.source).first(node.span, 1) or node.span
                self._imported[name] = self._declare(Symbol(kind, name, span, name, node=node))
                return self._imported[name]
        return None

    # ---- for those that resolve ----

    def _declare(self, symbol: Symbol) -> Symbol:
        self.all.append(symbol)
        if symbol.span.source is self.source:
            self.use(symbol, symbol.span)
        return symbol

    def add(self, kind: str, name: str, span: Span, owner: str, equation: str = "") -> Symbol:
        return self._declare(Symbol(kind, name, span, owner, equation))

    def use(self, symbol: Symbol | None, span: Span | None) -> None:
        """Notes that a name stands for a symbol, the first time that it is read."""
        if symbol is not None and span is not None and span.start not in self._at:
            self._at[span.start] = symbol
            symbol.spans.append(span)

    def _named(self, node: ast.Op | ast.Def) -> Span | None:
        """The name behind `op` or `def`; None for the op of the short form."""
        return self.names.first(node.span, 1) if self.names.keyword(node.span.start) else None


class _Names:
    """Where names stand in a source, of the text that the parser reads."""

    def __init__(self, source: Source):
        self.source = source
        self.tokens: list[Token] = [t for t in lex_any(source.text) if t.type != "COMMENT" and not t.isspace()]
        self.starts = [t.start_pos or 0 for t in self.tokens]

    def keyword(self, offset: int) -> bool:
        k = bisect_left(self.starts, offset)
        return k < len(self.tokens) and self.tokens[k].type in ("OP", "DEF")

    def at(self, offset: int) -> Span | None:
        """The name that an offset is in, or behind."""
        for k in (bisect_right(self.starts, offset) - 1, bisect_left(self.starts, offset) - 1):
            if k >= 0 and self.tokens[k].type == "NAME" and self.starts[k] <= offset <= (self.tokens[k].end_pos or 0):
                return self._span(k)
        return None

    def within(self, span: Span) -> range:
        """The numbers of the words of a span."""
        return range(bisect_left(self.starts, span.start), bisect_left(self.starts, span.end))

    def first(self, span: Span, skipped: int = 0) -> Span | None:
        """The word of a span behind some others, if it is a name."""
        words = self.within(span)[skipped:]
        return self._span(words[0]) if words and self.tokens[words[0]].type == "NAME" else None

    def listed(self, span: Span, opening: str, skipped: int) -> list[Span]:
        """The names between the bracket that opens behind some words of a span, and the one that closes it."""
        words = self.within(span)[skipped:]
        found: list[Span] = []
        if not words or self.tokens[words[0]] != opening:
            return found
        for k in words[1:]:
            if self.tokens[k].type == "NAME":
                found.append(self._span(k))
            elif self.tokens[k] != ",":
                break
        return found

    def each(self, span: Span) -> list[Span]:
        """All names of a span."""
        return [self._span(k) for k in self.within(span) if self.tokens[k].type == "NAME"]

    def _span(self, k: int) -> Span:
        return Span(self.source, self.starts[k], self.tokens[k].end_pos or 0)


@lru_cache(16)  # for what is imported
def _names_of(source: Source) -> _Names:
    return _Names(source)


Scope = Mapping[str, Symbol]


class _Resolver:
    """Resolves expressions of an op or a function."""

    own_indices: frozenset[str] = frozenset()
    """Indices that reductions do not bind anew."""

    def __init__(self, symbols: Symbols, owner: str):
        self.symbols, self.names, self.owner = symbols, symbols.names, owner
        self.known: dict[str, Symbol] = {}
        self.equation = ""
        self.bound: dict[str, Symbol] = {}  # indices that reductions of the equation bind

    def declare(self, kind: str, span: Span | None, name: str) -> None:
        if span is not None and name not in self.known:
            self.known[name] = self.symbols.add(kind, name, span, self.owner)
        else:
            self.symbols.use(self.known.get(name), span)

    def expression(self, expr: ast.Expr, indices: Scope) -> None:
        """`indices`: those in scope, which come before all other names."""
        pending: list[tuple[ast.Expr, Scope]] = [(expr, indices)]
        while pending:
            node, scope = pending.pop()
            inner = scope
            match node:
                case ast.Name(name=name) | ast.Access(tensor=name):
                    self.symbols.use(scope.get(name) or self.known.get(name), self.names.first(node.span))
                case ast.Call(function=name, indices=ranges):
                    self.symbols.use(self.symbols.callable(name), self.names.first(node.span))
                    inner = self._bind(ranges, scope, anew=False)
                case ast.Reduce(ranges=ranges):
                    inner = self._bind(ranges, scope, anew=True)
                case ast.Scan(range=range_):
                    inner = self._bind((range_,), scope, anew=False)
            pending += [(child, inner) for child in reversed(ast.children(node))]

    def _bind(self, ranges: Iterable[ast.Range], scope: Scope, anew: bool) -> Scope:
        found = dict(scope)
        for range_ in ranges:
            name, span = range_.index, self.names.first(range_.span)
            if span is not None and (name not in scope or (anew and name not in self.own_indices)):
                found[name] = self.symbols.add("index", name, span, self.owner, self.equation)
                self.bound.setdefault(name, found[name])
            else:
                self.symbols.use(scope.get(name), span)
            self.bounds(range_)
        return found

    def bounds(self, range_: ast.Range) -> None:
        for bound in (range_.low, range_.high):
            for size in ast.names_of(bound) if bound is not None else ():
                self.symbols.use(self.known.get(size.name), self.names.first(size.span))


class _FunctionNames(_Resolver):
    def __init__(self, symbols: Symbols, function: ast.Def):
        super().__init__(symbols, function.name)
        indices = self.names.listed(function.span, "[", 2)
        parameters = self.names.listed(function.span, "(", 2 + (2 * len(indices) + 1 if indices else 0))
        for kind, spans in (("index", indices), ("parameter", parameters)):
            for span in spans:
                self.declare(kind, span, span.source.text[span.start : span.end])
        self.own_indices = frozenset(function.indices)
        scope = {name: self.known[name] for name in function.indices if name in self.known}
        for local in function.locals:
            self.declare("local", self.names.first(local.span), local.name)
        for value in (*(local.value for local in function.locals), function.result):
            self.expression(value, scope)


class _OpNames(_Resolver):
    def __init__(self, symbols: Symbols, op: ast.Op):
        super().__init__(symbols, op.name)
        tensors = (*op.inputs, *op.outputs)
        for kind, group in (("input", op.inputs), ("result", op.outputs)):
            for tensor in group:
                self.declare(kind, self.names.first(tensor.span), tensor.name)
        for tensor in tensors:
            for size in (s for extent in tensor.shape or () for s in ast.names_of(extent)):
                self.declare("size", self.names.first(size.span), size.name)
        for statement in op.body:
            match statement:
                case ast.Equation(name=name):
                    self.declare("tensor", self.names.first(statement.span), name)
                case ast.OpCall(names=names):
                    for span, name in zip(self.names.each(statement.span), names):
                        self.declare("tensor", span, name)
                case ast.Expect():
                    pass
        self.sizes_of_bounds(op)
        for statement in op.body:
            match statement:
                case ast.Equation():
                    self.of_equation(statement)
                case ast.OpCall(names=names, op=called):
                    rest = self.names.each(statement.span)[len(names) :]
                    for span in rest[:1]:
                        self.symbols.use(self.symbols.callable(called), span)
                    for span in rest[1:]:
                        self.symbols.use(self.known.get(span.source.text[span.start : span.end]), span)
                case ast.Expect(condition=condition):
                    self.expression(condition, {})

    def sizes_of_bounds(self, op: ast.Op) -> None:
        """Sizes that no type names."""
        for statement in op.body:
            if not isinstance(statement, ast.Equation):
                continue
            for range_ in (*statement.ranges, *written_ranges(statement.value)):
                for bound in (range_.low, range_.high):
                    for size in ast.names_of(bound) if bound is not None else ():
                        self.declare("size", self.names.first(size.span), size.name)

    def of_equation(self, equation: ast.Equation) -> None:
        self.equation, self.bound = equation.name, {}
        scope = {}
        for span in self.names.listed(equation.span, "[", 1):
            name = span.source.text[span.start : span.end]
            if name in equation.indices and name not in scope:
                scope[name] = self.symbols.add("index", name, span, self.owner, equation.name)
        self.expression(equation.value, scope)
        for range_ in equation.ranges:
            self.symbols.use(scope.get(range_.index) or self.bound.get(range_.index), self.names.first(range_.span))
            self.bounds(range_)
        self.equation = ""
