"""The syntax tree of a `.tile` program: frozen dataclasses with source spans.

`parse` makes it, `check` gives every expression its `dtype` and removes mere notation (calls of ops and
functions, `mean`, implicit casts), and `build` turns the rest into MLIR. Spans never take part in equality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any, Literal, TypeVar

from tilec.core.diagnostics import Span
from tilec.core.dtypes import DType
from tilec.core.varying import Varying
from tilec.index.terms import Term

# No storage type of the language, only a `using`: f32 of which the multiplier reads 11 bits of the mantissa.
TF32 = DType("tf32", "float", 32, "tf32", 11)
UNTYPED = DType("untyped", "float", 0, "")
"""Of expressions, until `check` gives them a type."""
# Sums of which the adder of a matrix unit keeps 13 bits of the fraction.
F22 = DType("f22", "float", 32, "f22", 13)


def _span() -> Span:
    return field(compare=False, repr=False, default=Span.none())


# ---- sizes: expressions in `f32[M, 2 * K + 1]` and in the bounds of ranges -------------------------------------------


@dataclass(frozen=True)
class SizeNumber:
    value: int
    span: Span = _span()


@dataclass(frozen=True)
class SizeRange:
    """`1..8192` or `8..8192 by 8`, behind the name of a size in a type: the numbers that it may have."""

    numbers: Varying
    span: Span = _span()


@dataclass(frozen=True)
class SizeName:
    name: str
    span: Span = _span()
    range: SizeRange | None = None


@dataclass(frozen=True)
class SizeBinary:
    op: Literal["+", "-", "*", "//"]
    left: Size
    right: Size
    span: Span = _span()


@dataclass(frozen=True)
class SizeTerm:
    """A bound of a range that is completed while sizes are open."""

    term: Term
    span: Span = _span()


Size = SizeNumber | SizeName | SizeBinary | SizeTerm


def parts_of(size: Size) -> Iterator[Size]:
    """A size, and the sizes that it is computed from."""
    yield size
    if isinstance(size, SizeBinary):
        yield from parts_of(size.left)
        yield from parts_of(size.right)


def names_of(size: Size) -> Iterator[SizeName]:
    """Where the text of a size has names."""
    return (part for part in parts_of(size) if isinstance(part, SizeName))


def ends_of(range_: Range) -> tuple[Size, Size]:
    """Both bounds of a range, once `check` has completed it."""
    assert range_.low is not None and range_.high is not None
    return range_.low, range_.high


def number_of(size: Size | None) -> int:
    """The number that `specialise` has put in a size's place."""
    assert isinstance(size, SizeNumber)
    return size.value


def extents_of(of: Tensor | Equation) -> tuple[int, ...]:
    """The shape of a tensor, or of what an equation defines, after `specialise`."""
    if isinstance(of, Equation):
        return tuple(number_of(r.high) for r in of.ranges)
    assert of.shape is not None
    return tuple(map(number_of, of.shape))


def dtype_of(declared: Tensor | Equation) -> DType:
    """The type of a tensor or of an equation, which a call or `check` has completed."""
    assert declared.dtype is not None
    return declared.dtype


@dataclass(frozen=True)
class Range:
    """`index in low:high`, half-open; `low` and `high` are None where the source leaves the range to inference."""

    index: str
    low: Size | None
    high: Size | None
    span: Span = _span()


# ---- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A literal. Before `check` its dtype is `UNTYPED`: it takes the type of the other operand."""

    value: int | float
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Boolean:
    value: bool
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Name:
    """A bare name: an index, a size, a scalar tensor or, inside a `def`, a parameter or local.

    After `check` only indices and sizes (both i64) are left as `Name`; a scalar tensor is an `Access` without subscripts.
    """

    name: str
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Access:
    """`tensor[subscripts]`. Subscripts are expressions of integer type: affine in indices and sizes, or gathers.

    `guarded` is set by `check`: True where the subscripts are not provably inside, so that the access stands under an `if`
    (or gathers): it must be evaluated with care. False means provably inside over the whole iteration space.
    """

    tensor: str
    subscripts: tuple[Expr, ...]
    dtype: DType = UNTYPED
    guarded: bool = False
    span: Span = _span()


@dataclass(frozen=True)
class Pad:
    """`pad(access, value)`: the access, or the value where any subscript falls outside."""

    access: Access
    value: Expr
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Unary:
    op: Literal["-", "~", "not"]
    operand: Expr
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Binary:
    """Arithmetic and logic. After `check` both operands have the node's own dtype (`and`/`or`: bool)."""

    op: Literal["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "and", "or"]
    left: Expr
    right: Expr
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Compare:
    """`left op right`, of type bool; after `check` both operands have one dtype."""

    op: Literal["==", "!=", "<", "<=", ">", ">="]
    left: Expr
    right: Expr
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Conditional:
    """`then if condition else otherwise`; only the branch taken is evaluated."""

    condition: Expr
    then: Expr
    otherwise: Expr
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Cast:
    """`f32(operand)`, written by the user or put in by `check`; `dtype` is the type it converts to."""

    operand: Expr
    dtype: DType
    span: Span = _span()


@dataclass(frozen=True)
class Call:
    """`function[indices](arguments)`. After `check` only the scalar functions of `tilec.core.functions` are left."""

    function: str
    indices: tuple[Range, ...]
    arguments: tuple[Expr, ...]
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Reduce:
    """`kind[ranges](body) in accumulator using multiplicand`.

    After `check`: kind is a row of `tilec.core.reductions` (`mean` has become a `sum` and a division), every range has both its
    bounds, `accumulator` is set and is the type that the body has been cast to (`argmax`/`argmin`: the type compared),
    `dtype` is the type of the result, and the same index name means the same range in the whole equation.
    """

    kind: str
    ranges: tuple[Range, ...]
    body: Expr
    accumulator: DType | None = None
    multiplicand: DType | None = None
    dtype: DType = UNTYPED
    span: Span = _span()


@dataclass(frozen=True)
class Scan:
    """`cumsum[index](body)` and its like: inclusive, keeps the index."""

    kind: Literal["cumsum", "cumprod", "cummax", "cummin"]
    range: Range
    body: Expr
    accumulator: DType | None = None
    dtype: DType = UNTYPED
    span: Span = _span()


Expr = Number | Boolean | Name | Access | Pad | Unary | Binary | Compare | Conditional | Cast | Call | Reduce | Scan


_Node = TypeVar("_Node")


def replace(node: _Node, **changes: object) -> _Node:
    """As that of dataclasses, but several times as fast: for those that run no code of their own when they are made."""
    made = object.__new__(type(node))
    vars(made).update(vars(node), **changes)
    return made


_PARTS: dict[type, tuple[str, ...]] = {
    Number: (), Boolean: (), Name: (), Pad: ("access", "value"), Unary: ("operand",), Cast: ("operand",),
    Binary: ("left", "right"), Compare: ("left", "right"), Conditional: ("then", "condition", "otherwise"),
    Reduce: ("body",), Scan: ("body",),
}  # fmt: skip
"""The fields with the subexpressions of a node, in source order."""
_LISTS = {Access: "subscripts", Call: "arguments"}
"""The field with the subexpressions of a node that has any number of them."""


def _getter(names: tuple[str, ...]) -> Callable[[object], tuple[Expr, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda node: (getattr(node, names[0]),)) if names else (lambda node: ())


_CHILDREN = {kind: _getter(names) for kind, names in _PARTS.items()} | {
    kind: attrgetter(n) for kind, n in _LISTS.items()
}


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, in source order."""
    return _CHILDREN[type(expr)](expr)


def with_children(expr: _Node, new: tuple[Expr, ...]) -> _Node:
    """The expression with other subexpressions, given in the order of `children`."""
    kind = type(expr)
    if all(map(is_, new, _CHILDREN[kind](expr))):
        return expr
    return replace(expr, **({_LISTS[kind]: new} if kind in _LISTS else dict(zip(_PARTS[kind], new))))


def traverse(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, parents first, in source order; iterative, so depth is no matter."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        if inner := _CHILDREN[type(node)](node):
            stack += inner[::-1]


def bound_in(expr: Expr) -> Iterator[Range]:
    """The ranges that the reductions and scans in an expression bind."""
    for node in traverse(expr):
        match node:
            case Reduce():
                yield from node.ranges
            case Scan():
                yield node.range


# ---- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Equation:
    """`name[indices]: dtype = value where ranges`.

    After `check`, `dtype` and `ranges` are complete (one range for each of `indices`, in their order, low 0), and `value`
    has exactly that dtype.
    """

    name: str
    indices: tuple[str, ...]
    value: Expr
    dtype: DType | None = None
    ranges: tuple[Range, ...] = ()
    span: Span = _span()


@dataclass(frozen=True)
class OpCall:
    """`a, b = other_op(arguments)` with whole tensors. Gone after `check`."""

    names: tuple[str, ...]
    op: str
    arguments: tuple[str, ...]
    span: Span = _span()


@dataclass(frozen=True)
class Expect:
    """`expect condition`: kept as an expression whose names `kernels`, `traffic`, `minimal` and call `fused` are the plan's."""

    condition: Expr
    span: Span = _span()


Statement = Equation | OpCall | Expect


# ---- declarations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """A parameter or a result: `x: f32[M, N]`. In the short form `dtype` and `shape` are None until a call binds them."""

    name: str
    dtype: DType | None
    shape: tuple[Size, ...] | None
    span: Span = _span()


@dataclass(frozen=True)
class Op:
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    body: tuple[Statement, ...]
    span: Span = _span()


@dataclass(frozen=True)
class Local:
    """`m = max[j](x)` inside a `def`."""

    name: str
    value: Expr
    span: Span = _span()


@dataclass(frozen=True)
class Def:
    name: str
    indices: tuple[str, ...]
    parameters: tuple[str, ...]
    locals: tuple[Local, ...]
    result: Expr
    span: Span = _span()


@dataclass(frozen=True)
class Import:
    path: str
    span: Span = _span()


@dataclass(frozen=True)
class Program:
    """One source text. A short-form program has one op, named `main` unless another name is given."""

    imports: tuple[Import, ...]
    defs: tuple[Def, ...]
    ops: tuple[Op, ...]
    span: Span = _span()
    elaborated: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The work of `check`, by op, where all sizes are numbers: what it has found is what `specialise` would find again."""
