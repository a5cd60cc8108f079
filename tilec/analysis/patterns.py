"""Patterns of expressions, and one matcher of them: for values of an operation's body, and for `Expr`s.

A pattern is an `Expr` whose leaves are variables and numbers. A variable stands for the same part wherever it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilec.analysis.expression import Expr, attributes_of, constant
from tilec.core import mlir
from tilec.core.mlir import ir

Scalar = ir.Value | Expr
Found = Mapping[str, Scalar]
"""What the variables of a pattern stand for."""
_COMMUTATIVE = ("arith.addf", "arith.mulf")


def variable(name: str, type_: str = "f32") -> Expr:
    return Expr("variable", key=name, type=type_)


def match(pattern: Expr, x: Scalar) -> dict[str, Scalar] | None:
    """What the pattern's variables stand for in an expression; None where it has another form. Operands of sums and products may be
    in either order."""
    return _match(pattern, x, {})


def _match(pattern: Expr, x: Scalar, found: dict[str, Scalar]) -> dict[str, Scalar] | None:
    if pattern.op == "variable":
        known = found.get(pattern.key)
        return found | {pattern.key: x} if known is None else found if known == x else None
    if pattern.op == "constant":
        return found if number(x) == pattern.key else None
    if name_of(x) != pattern.op or (pattern.key is not None and pattern.key != _attributes(x)):
        return None
    parts = parts_of(x)
    return _all(pattern, parts, found) or (_all(pattern, parts[::-1], found) if pattern.op in _COMMUTATIVE else None)


def _all(pattern: Expr, parts: Sequence[Scalar], found: dict[str, Scalar]) -> dict[str, Scalar] | None:
    now: dict[str, Scalar] | None = found
    for p, part in zip(pattern.args, parts):
        now = _match(p, part, now) if now is not None else None
    return now


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
