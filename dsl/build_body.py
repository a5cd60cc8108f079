"""The body of an operation: the computation of one element from the elements of its operands.

An access that is not an operand is a `tensor.extract` at computed subscripts, with its guards and its run-time check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilec.core import mlir
from tilec.core.dtypes import BOOL, I64
from tilec.core.mlir import arith, cf, ir, linalg, scf, tensor
from tilec.dsl import ast, scalars
from tilec.dsl.build_sizes import SizeValues, Symbols
from tilec.dsl.index_terms import IndexTerms, in_sizes
from tilec.dsl.notation import arithmetic
from tilec.dsl.varying_sizes import Shape
from tilec.index.facts import NONE
from tilec.index.terms import Term, index, term


@dataclass(frozen=True)
class Index:
    """One dimension of an iteration space: the source's index, which runs from `low` (the loop runs from 0)."""

    name: str
    low: Term
    high: Term

    @property
    def extent(self) -> Term:
        return self.high - self.low

    @property
    def term(self) -> Term:
        """The index; one without a value is taken for one of a single value."""
        return index(self.name, self.high if self.low is not self.high else self.low + 1, self.low)


class Known(Protocol):
    """What is known of a program (`build.Builder`): its tensors and their shapes, by name; its sizes, and their values."""

    tensors: dict[str, ir.Value]
    shapes: dict[str, Shape]
    sizes: dict[str, Term]
    values: SizeValues


class Body:
    """Lowers a scalar expression inside the body of one operation over `dims`. `elements` are the values of operands at a point."""

    def __init__(self, program: Known, dims: list[Index], elements: dict[tuple[str, tuple[int, ...]], ir.Value]):
        self.tensors, self.shapes, self.values = program.tensors, program.shapes, program.values
        self.sizes, self.dims, self.elements = program.sizes, dims, elements
        self.position = {index.name: d for d, index in enumerate(dims)}
        self.terms = IndexTerms({**program.sizes, **{i.name: i.term for i in dims}})
        self.taken: list[ir.Value] = []  # the conditions under which the current branch is taken

    def value(self, expr: ast.Expr) -> ir.Value:
        match expr:
            case ast.Number() | ast.Boolean():
                return scalars.number(expr.value, expr.dtype)
            case ast.Name():
                return self.name(expr)
            case ast.Access():
                return self.access(expr)
            case ast.Pad():
                return self.pad(expr)
            case ast.Unary("-"):
                return scalars.negate(self.value(expr.operand), expr.dtype)
            case ast.Unary("~"):
                return scalars.invert(self.value(expr.operand), expr.dtype)
            case ast.Unary("not"):
                return scalars.logical_not(self.value(expr.operand))
            case ast.Binary():
                return scalars.binary(expr.op, self.value(expr.left), self.value(expr.right), expr.dtype)
            case ast.Compare():
                return scalars.compare(expr.op, self.value(expr.left), self.value(expr.right), expr.left.dtype)
            case ast.Conditional():
                return self.conditional(expr)
            case ast.Cast():
                return scalars.cast(self.value(expr.operand), expr.operand.dtype, expr.dtype)
            case ast.Call():
                return scalars.function(expr.function, [self.value(a) for a in expr.arguments], expr.dtype)
        raise AssertionError(f"{type(expr).__name__} survived hoisting")

    def name(self, expr: ast.Name) -> ir.Value:
        if expr.name in self.position:
            return index_value(self.dims, self.position[expr.name], self.values)
        if (number := self.sizes[expr.name].constant) is not None:
            return scalars.number(number, I64)
        return arith.index_cast(scalars.mlir_type(I64), self.values.sizes[expr.name])

    def conditional(self, expr: ast.Conditional) -> ir.Value:
        """Both branches are computed and one is chosen: every access below is made safe for the branch not taken."""
        condition = self.value(expr.condition)
        self.taken.append(condition)
        then = self.value(expr.then)
        self.taken[-1] = scalars.logical_not(condition)
        otherwise = self.value(expr.otherwise)
        self.taken.pop()
        return arith.select(condition, then, otherwise)

    def access(self, expr: ast.Access) -> ir.Value:
        picked = projected(expr, self.dims, self.shapes)
        if picked is not None:
            return self.elements[expr.tensor, picked]
        subscripts = [self.subscript(s) for s in expr.subscripts]
        if not expr.guarded:
            return tensor.extract(self.tensors[expr.tensor], subscripts)
        if any(self.affine(s) is None for s in expr.subscripts):
            self.check(expr, subscripts, self.shapes[expr.tensor])
        return self.clamped(expr, subscripts)

    def clamped(self, expr: ast.Access, subscripts: list[ir.Value]) -> ir.Value:
        """The element at subscripts that may be outside: there, another one; 0 where there is none."""
        source, shape = self.tensors[expr.tensor], self.shapes[expr.tensor]
        if term(0) in shape:
            return scalars.number(0, expr.dtype)

        def element() -> ir.Value:
            return tensor.extract(source, [self.clamp(s, n) for s, n in zip(subscripts, shape)])

        empty = [n for n in shape if not NONE.proves(n - 1)]
        if not empty:
            return element()
        made = scf.IfOp(self.inside([mlir.index(0)] * len(empty), empty), [source.type.element_type], has_else=True)
        for block, value in ((made.then_block, element), (made.else_block, lambda: scalars.number(0, expr.dtype))):
            with ir.InsertionPoint(block):
                scf.YieldOp([value()])
        return made.results[0]

    def clamp(self, subscript: ir.Value, extent: Term) -> ir.Value:
        return arith.maxsi(arith.minsi(subscript, self.values.value(extent - 1)), mlir.index(0))

    def inside(self, subscripts: Sequence[ir.Value], extents: Sequence[Term]) -> ir.Value:
        result = scalars.number(True, BOOL)
        for subscript, extent in zip(subscripts, extents):
            for predicate, bound in ((arith.CmpIPredicate.sge, 0), (arith.CmpIPredicate.slt, extent)):
                result = arith.andi(result, arith.cmpi(predicate, subscript, self.values.value(bound)))
        return result

    def check(self, expr: ast.Access, subscripts: list[ir.Value], extents: Shape) -> None:
        """A gather outside its table is the user's mistake, unless its branch is not taken."""
        from_data = [n for n, s in enumerate(expr.subscripts) if self.affine(s) is None]
        inside = self.inside([subscripts[n] for n in from_data], [extents[n] for n in from_data])
        for condition in self.taken:
            inside = arith.ori(inside, scalars.logical_not(condition))
        source = expr.span.source.text[expr.span.start : expr.span.end]
        cf.assert_(inside, f"{expr.span}: `{source}` reads outside `{expr.tensor}`, whose shape is {list(map(in_sizes, extents))}")

    def pad(self, expr: ast.Pad) -> ir.Value:
        access, value = expr.access, self.value(expr.value)
        picked = projected(access, self.dims, self.shapes)
        if picked is not None:
            return self.elements[access.tensor, picked]
        shape = self.shapes[access.tensor]
        if term(0) in shape:
            return value
        subscripts = [self.subscript(s) for s in access.subscripts]
        element = self.clamped(access, subscripts)
        return arith.select(self.inside(subscripts, shape), self.cast_pad(element, expr), value)

    def cast_pad(self, element: ir.Value, expr: ast.Pad) -> ir.Value:
        return scalars.cast(element, expr.access.dtype, expr.dtype)

    # ---- subscripts --------------------------------------------------------------------------------------------------

    def subscript(self, expr: ast.Expr) -> ir.Value:
        """A subscript of type index: an affine.apply where it is affine, so that the passes can read it."""
        symbols = Symbols()
        expression = self.affine(expr, symbols)
        if expression is None:
            return arith.index_cast(mlir.index_type(), self.value(expr))
        used = sorted(
            {self.position[e.name] for e in ast.traverse(expr) if isinstance(e, ast.Name) and e.name in self.position}
        )
        if not used and not symbols:
            return mlir.index(ir.AffineConstantExpr(expression).value)
        renamed = {d: ir.AffineDimExpr.get(n) for n, d in enumerate(used)}
        operands = [linalg.IndexOp(d).result for d in used]
        compact = expression.compose(
            ir.AffineMap.get(
                len(used), 0, [renamed.get(d, ir.AffineConstantExpr.get(0)) for d in range(len(self.dims))]
            )
        )
        return self.values.applied(compact, operands, symbols)

    def affine(self, expr: ast.Expr, symbols: Symbols | None = None) -> ir.AffineExpr | None:
        """The subscript over the loops' dimensions, or None where it depends on data, or may wrap around."""
        return None if self.terms.affine(expr) is None else self._affine(expr, Symbols() if symbols is None else symbols)

    def _affine(self, expr: ast.Expr, symbols: Symbols) -> ir.AffineExpr | None:
        match expr:
            case ast.Number(value=int() as value):
                return ir.AffineConstantExpr.get(value)
            case ast.Name(name=name) if name in self.position:
                d = self.position[name]
                return ir.AffineDimExpr.get(d) + self.values.affine(self.dims[d].low, symbols)
            case ast.Name(name=name):
                return self.values.affine(self.sizes[name], symbols)
            case ast.Unary("-", operand=operand):
                inner = self._affine(operand, symbols)
                return None if inner is None else inner * -1
            case ast.Binary() if (same := arithmetic(expr)) is not None:
                return self._affine(same, symbols)
            case ast.Binary(op, left, right) if op in ("+", "-", "*", "//", "%"):
                a, b = self._affine(left, symbols), self._affine(right, symbols)
                return None if a is None or b is None else self._affine_binary(expr, a, b)
        return None

    def _affine_binary(self, expr: ast.Binary, a: ir.AffineExpr, b: ir.AffineExpr) -> ir.AffineExpr | None:
        """Products with sums of sizes, and quotients by such that are at least 1."""
        by = self.terms.of(expr.right)
        match expr.op:
            case "+":
                return a + b
            case "-":
                return a + b * -1
            case "*" if any(self._is_fixed(x) for x in (expr.left, expr.right)):
                return a * b
            case "//" if by is not None and self._is_fixed(expr.right) and NONE.proves(by - 1):
                return ir.AffineExpr.get_floor_div(a, b)
            case "%" if by is not None and self._is_fixed(expr.right) and NONE.proves(by - 1):
                return ir.AffineExpr.get_mod(a, b)
        return None

    def _is_fixed(self, expr: ast.Expr) -> bool:
        """Whether it is made of sizes and numbers alone."""
        return not any(isinstance(e, ast.Name) and e.name in self.position for e in ast.traverse(expr))


def projected(access: ast.Access, dims: list[Index], shapes: Mapping[str, Shape]) -> tuple[int, ...] | None:
    """The dimensions that subscript an access to whole tensors by distinct bare indices; None for any other access."""
    if access.guarded or (names := bare(access)) is None or len(set(names)) < len(names):
        return None
    position = {index.name: d for d, index in enumerate(dims)}
    if not all(name in position for name in names):
        return None
    picked = tuple(position[name] for name in names)
    if access.tensor.startswith("%"):  # a hoisted reduction has the extents of its indices, wherever they begin
        return picked
    shape = shapes[access.tensor]
    full = all(dims[d].low is term(0) and dims[d].high is extent for d, extent in zip(picked, shape))
    return picked if full else None


def bare(access: ast.Access) -> tuple[str, ...] | None:
    """The index names of an access whose subscripts are all bare names."""
    names = tuple(s.name for s in access.subscripts if isinstance(s, ast.Name))
    return names if len(names) == len(access.subscripts) else None


def index_value(dims: list[Index], d: int, values: SizeValues) -> ir.Value:
    """The value of dimension `d`'s index, as i64."""
    value = arith.index_cast(scalars.mlir_type(I64), linalg.IndexOp(d).result)
    low = dims[d].low
    if low.constant is not None:
        return value if low is term(0) else arith.addi(value, scalars.number(low.number, I64))
    return arith.addi(value, arith.index_cast(scalars.mlir_type(I64), values.value(low)))
