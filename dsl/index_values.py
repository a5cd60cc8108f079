"""The values of index arithmetic, as long as no part of it leaves 64 bits.

Arithmetic that leaves 64 bits wraps around, and differs from its polynomial. A subscript with such arithmetic is treated like
data, and checked at run time. A condition with such arithmetic proves nothing about indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilec.core.dtypes import I64
from tilec.dsl import ast
from tilec.dsl.notation import arithmetic

Values = tuple[int, int]
"""The least and the greatest."""
_LEAST, _GREATEST = -(2**63), 2**63 - 1


def index_values(expr: ast.Expr, names: Mapping[str, Values]) -> Values | None:
    """Of an expression of indices and sizes with these values; None where it has other parts, or one may leave 64 bits."""
    found: tuple[int, int] | None
    match expr:
        case ast.Number(value=int(value)):
            found = value, value
        case ast.Name(name=name) if name in names:
            found = names[name]
        case ast.Cast(operand=operand, dtype=dtype) if dtype is I64:
            return index_values(operand, names)
        case ast.Unary(op="-", operand=operand):
            a = index_values(operand, names)
            found = None if a is None else (-a[1], -a[0])
        case ast.Binary() if (same := arithmetic(expr)) is not None:
            return index_values(same, names)
        case ast.Binary(op=op, left=left, right=right):
            a, b = index_values(left, names), index_values(right, names)
            found = None if a is None or b is None else _binary(op, a, b)
        case ast.Call(function="abs" | "min" | "max" | "clamp" as function, arguments=arguments):
            inner = [index_values(a, names) for a in arguments]
            found = None if None in inner else _called(function, inner)  # type: ignore[arg-type]
        case ast.Conditional(then=then, otherwise=otherwise):
            a, b = index_values(then, names), index_values(otherwise, names)
            found = None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
        case _:
            return None
    return found if found is not None and found[0] >= _LEAST and found[1] <= _GREATEST else None


def _binary(op: str, a: Values, b: Values) -> Values | None:
    match op:
        case "+":
            return a[0] + b[0], a[1] + b[1]
        case "-":
            return a[0] - b[1], a[1] - b[0]
        case "*":
            return _ends(x * y for x in a for y in b)
        case "//" if b[0] <= 0 <= b[1]:  # by 0 it is 0, by a number next to it the largest
            most = max(map(abs, a))
            return -most, most
        case "//":
            return _ends(x // y for x in a for y in b)
        case "%":
            return min(0, b[0] + 1), max(0, b[1] - 1)
        case "&" | "|" | "^" if a[0] >= 0 and b[0] >= 0:
            return 0, min(a[1], b[1]) if op == "&" else (1 << (a[1] | b[1]).bit_length()) - 1
    return None


def _called(function: str, inner: list[Values]) -> Values:
    match function:
        case "abs":
            ((low, high),) = inner
            return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
        case "min":
            return min(low for low, _ in inner), min(high for _, high in inner)
        case "max":
            return max(low for low, _ in inner), max(high for _, high in inner)
    value, least, most = inner
    return _called("min", [_called("max", [value, least]), most])


def _ends(values: Iterable[int]) -> Values:
    first, *_, last = sorted(values)
    return first, last
