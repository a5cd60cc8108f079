"""The body of an operation: the computation of one element from the elements of its operands.

An access that is not an operand is a `tensor.extract` at computed subscripts, with its guards and its run-time check.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.core import mlir
from tilec.core.dtypes import BOOL, I64
from tilec.core.mlir import affine, arith, cf, ir, linalg, tensor
from tilec.dsl import ast, scalars
from tilec.dsl.index_terms import IndexTerms
from tilec.dsl.notation import arithmetic
from tilec.index.terms import Term, index, term


@dataclass(frozen=True)
class Index:
    """One dimension of an iteration space: the source's index, which runs from `low` (the loop runs from 0)."""

    name: str
    low: int
    high: int

    @property
    def extent(self) -> int:
        return max(0, self.high - self.low)

    @property
    def term(self) -> Term:
        """The index; one without a value is taken for one of a single value."""
        return index(self.name, max(self.low + 1, self.high), self.low)


class Body:
    """Lowers a scalar expression inside the body of one operation over `dims`. `tensors` and `sizes` are the program's, by name;
    `elements` the values of operands at a point."""

    def __init__(
        self, tensors: dict[str, ir.Value], sizes: dict[str, int], dims: list[Index],
        elements: dict[tuple[str, tuple[int, ...]], ir.Value],
    ):  # fmt: skip
        self.tensors, self.sizes, self.dims, self.elements = tensors, sizes, dims, elements
        self.position = {index.name: d for d, index in enumerate(dims)}
        self.terms = IndexTerms({name: term(size) for name, size in sizes.items()} | {i.name: i.term for i in dims})
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
            return index_value(self.dims, self.position[expr.name])
        return scalars.number(self.sizes[expr.name], I64)

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
        picked = projected(expr, self.dims, self.tensors)
        if picked is not None:
            return self.elements[expr.tensor, picked]
        source = self.tensors[expr.tensor]
        subscripts = [self.subscript(s) for s in expr.subscripts]
        if not expr.guarded:
            return tensor.extract(source, subscripts)
        extents = list(source.type.shape)
        if any(self.affine(s) is None for s in expr.subscripts):
            self.check(expr, subscripts, extents)
        if 0 in extents:
            return scalars.number(0, expr.dtype)
        return tensor.extract(source, [_clamp(s, n) for s, n in zip(subscripts, extents)])

    def check(self, expr: ast.Access, subscripts: list[ir.Value], extents: list[int]) -> None:
        """A gather outside its table is the user's mistake, unless its branch is not taken."""
        from_data = [n for n, s in enumerate(expr.subscripts) if self.affine(s) is None]
        inside = _inside([subscripts[n] for n in from_data], [extents[n] for n in from_data])
        for condition in self.taken:
            inside = arith.ori(inside, scalars.logical_not(condition))
        source = expr.span.source.text[expr.span.start : expr.span.end]
        cf.assert_(inside, f"{expr.span}: `{source}` reads outside `{expr.tensor}`, whose shape is {list(extents)}")

    def pad(self, expr: ast.Pad) -> ir.Value:
        access, value = expr.access, self.value(expr.value)
        picked = projected(access, self.dims, self.tensors)
        if picked is not None:
            return self.elements[access.tensor, picked]
        source = self.tensors[access.tensor]
        extents = list(source.type.shape)
        if 0 in extents:
            return value
        subscripts = [self.subscript(s) for s in access.subscripts]
        element = tensor.extract(source, [_clamp(s, n) for s, n in zip(subscripts, extents)])
        return arith.select(_inside(subscripts, extents), self.cast_pad(element, expr), value)

    def cast_pad(self, element: ir.Value, expr: ast.Pad) -> ir.Value:
        return scalars.cast(element, expr.access.dtype, expr.dtype)

    # ---- subscripts --------------------------------------------------------------------------------------------------

    def subscript(self, expr: ast.Expr) -> ir.Value:
        """A subscript of type index: an affine.apply where it is affine, so that the passes can read it."""
        expression = self.affine(expr)
        if expression is None:
            return arith.index_cast(mlir.index_type(), self.value(expr))
        used = sorted(
            {self.position[e.name] for e in ast.traverse(expr) if isinstance(e, ast.Name) and e.name in self.position}
        )
        if not used:
            return mlir.index(ir.AffineConstantExpr(expression).value)
        renamed = {d: ir.AffineDimExpr.get(n) for n, d in enumerate(used)}
        operands = [linalg.IndexOp(d).result for d in used]
        compact = expression.compose(
            ir.AffineMap.get(
                len(used), 0, [renamed.get(d, ir.AffineConstantExpr.get(0)) for d in range(len(self.dims))]
            )
        )
        return affine.AffineApplyOp(ir.AffineMap.get(len(used), 0, [compact]), operands).result

    def affine(self, expr: ast.Expr) -> ir.AffineExpr | None:
        """The subscript over the loops' dimensions, or None where it depends on data, or may wrap around."""
        return None if self.terms.affine(expr) is None else self._affine(expr)

    def _affine(self, expr: ast.Expr) -> ir.AffineExpr | None:
        match expr:
            case ast.Number(value=int() as value):
                return ir.AffineConstantExpr.get(value)
            case ast.Name(name=name) if name in self.position:
                d = self.position[name]
                return ir.AffineDimExpr.get(d) + self.dims[d].low
            case ast.Name(name=name):
                return ir.AffineConstantExpr.get(self.sizes[name])
            case ast.Unary("-", operand=operand):
                inner = self._affine(operand)
                return None if inner is None else inner * -1
            case ast.Binary() if (same := arithmetic(expr)) is not None:
                return self._affine(same)
            case ast.Binary(op, left, right) if op in ("+", "-", "*", "//", "%"):
                a, b = self._affine(left), self._affine(right)
                return None if a is None or b is None else _affine_binary(op, a, b)
        return None


def _affine_binary(op: str, a: ir.AffineExpr, b: ir.AffineExpr) -> ir.AffineExpr | None:
    match op:
        case "+":
            return a + b
        case "-":
            return a + b * -1
        case "*" if isinstance(a, ir.AffineConstantExpr) or isinstance(b, ir.AffineConstantExpr):
            return a * b
        case "//" if isinstance(b, ir.AffineConstantExpr) and b.value > 0:
            return ir.AffineExpr.get_floor_div(a, b)
        case "%" if isinstance(b, ir.AffineConstantExpr) and b.value > 0:
            return ir.AffineExpr.get_mod(a, b)
    return None


def _clamp(subscript: ir.Value, extent: int) -> ir.Value:
    return arith.maxsi(arith.minsi(subscript, mlir.index(extent - 1)), mlir.index(0))


def _inside(subscripts: list[ir.Value], extents: list[int]) -> ir.Value:
    result = scalars.number(True, BOOL)
    for subscript, extent in zip(subscripts, extents):
        for predicate, bound in ((arith.CmpIPredicate.sge, 0), (arith.CmpIPredicate.slt, extent)):
            result = arith.andi(result, arith.cmpi(predicate, subscript, mlir.index(bound)))
    return result


def projected(access: ast.Access, dims: list[Index], tensors: dict[str, ir.Value]) -> tuple[int, ...] | None:
    """The dimensions that subscript an access to whole tensors by distinct bare indices; None for any other access."""
    if access.guarded or (names := bare(access)) is None or len(set(names)) < len(names):
        return None
    position = {index.name: d for d, index in enumerate(dims)}
    if not all(name in position for name in names):
        return None
    picked = tuple(position[name] for name in names)
    if access.tensor.startswith("%"):  # a hoisted reduction has the extents of its indices, wherever they begin
        return picked
    shape = tensors[access.tensor].type.shape
    full = all(dims[d].low == 0 and dims[d].high == extent for d, extent in zip(picked, shape))
    return picked if full else None


def bare(access: ast.Access) -> tuple[str, ...] | None:
    """The index names of an access whose subscripts are all bare names."""
    names = tuple(s.name for s in access.subscripts if isinstance(s, ast.Name))
    return names if len(names) == len(access.subscripts) else None


def index_value(dims: list[Index], d: int) -> ir.Value:
    """The value of dimension `d`'s index, as i64."""
    value = arith.index_cast(scalars.mlir_type(I64), linalg.IndexOp(d).result)
    return value if dims[d].low == 0 else arith.addi(value, scalars.number(dims[d].low, I64))
