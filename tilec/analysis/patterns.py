"""Patterns of expressions, and one matcher of them: for values of an operation's body, and for `Expr`s.

A pattern is an `Expr` whose leaves are variables, numerals and numbers. A variable stands for the same part wherever it is, a
numeral for a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

from tilec.analysis.expression import Expr, attributes_of, constant
from tilec.core import mlir
from tilec.core.mlir import ir

Scalar = ir.Value | Expr
S = TypeVar("S", bound=Scalar)
Found = Mapping[str, Scalar]
"""What the variables of a pattern stand for."""
_COMMUTATIVE = ("arith.addf", "arith.mulf")


def variable(name: str, type_: str = "f32") -> Expr:
    return Expr("variable", key=name, type=type_)


def numeral(name: str) -> Expr:
    return Expr("numeral", key=name)


def choice(condition: Expr, taken: Expr, otherwise: Expr) -> Expr:
    return Expr("arith.select", (condition, taken, otherwise), type=taken.type)


def compared(predicate: int, a: Expr, b: Expr | float) -> Expr:
    """A comparison of floats, by MLIR's number of it."""
    b = b if isinstance(b, Expr) else constant(b, a.type)
    return Expr("arith.cmpf", (a, b), f"predicate={predicate} : i64", type="i1")


Condition = Callable[[Scalar, Found], bool]
"""Of an expression that a pattern fits, and what its variables stand for."""


def match(pattern: Expr, x: S, condition: Condition = lambda _, __: True) -> Mapping[str, S] | None:
    """What the pattern's variables stand for in an expression, such that a condition holds; None where it has another form.
    Operands of sums and products may be in either order."""
    return cast("Mapping[str, S] | None", next((found for found in _matches(pattern, x, {}) if condition(x, found)), None))


def _matches(pattern: Expr, x: Scalar, found: Found) -> Iterator[Found]:
    if pattern.op in ("variable", "numeral"):
        known = found.get(pattern.key, x)
        if known == x and (pattern.op == "variable" or number(x) is not None):
            yield {**found, pattern.key: x}
    elif pattern.op == "constant":
        if number(x) == pattern.key:
            yield found
    elif name_of(x) == pattern.op and (pattern.key is None or pattern.key == _attributes(x)):
        parts = parts_of(x)
        for order in (parts, parts[::-1])[: 2 if pattern.op in _COMMUTATIVE else 1]:
            yield from _all(pattern.args, order, found)


def _all(patterns: Sequence[Expr], parts: Sequence[Scalar], found: Found) -> Iterator[Found]:
    if not patterns:
        yield found
        return
    for now in _matches(patterns[0], parts[0], found):
        yield from _all(patterns[1:], parts[1:], now)


# ---- both kinds of expressions ----------------------------------------------------------------------------------------


def name_of(x: Scalar) -> str:
    """The operation that computes an expression; "" of an argument."""
    if isinstance(x, Expr):
        return x.op
    owner = mlir.definition(x)
    return "" if owner is None else owner.name


def parts_of(x: Scalar) -> Sequence[Scalar]:
    """What it is computed of."""
    if isinstance(x, Expr):
        return x.args
    owner = mlir.definition(x)
    return () if owner is None else list(owner.operands)


def number(x: Scalar) -> float | None:
    """The number that an expression is known to be."""
    return x.number if isinstance(x, Expr) else mlir.constant_value(x)


def type_of(x: Scalar) -> str:
    return x.type if isinstance(x, Expr) else str(x.type)


def _attributes(x: Scalar) -> str | None:
    return x.key if isinstance(x, Expr) else attributes_of(mlir.definition(x))


def read(x: Scalar) -> Expr:
    """An expression as a part of another one."""
    if isinstance(x, Expr):
        return x
    known = mlir.constant_value(x)
    return Expr("outer", key=x, type=str(x.type)) if known is None else constant(known, str(x.type))
