"""Small rewrites and properties of expressions, for the inliner."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.dsl import ast
from tilec.dsl.ast import replace

CONSTANTS = {"pi": math.pi, "tau": math.tau, "e": math.e}
"""Names that stand for numbers where a program defines nothing of the name. (`inf` and `nan` are words of the language.)"""


def rename(expr: ast.Expr, names: dict[str, str]) -> ast.Expr:
    """The expression with free indices renamed."""
    match expr:
        case ast.Name(name=name):
            return replace(expr, name=names.get(name, name))
        case ast.Reduce(ranges=ranges):
            names = {old: new for old, new in names.items() if all(r.index != old for r in ranges)}
        case ast.Scan(range=range_):
            expr = replace(expr, range=replace(range_, index=names.get(range_.index, range_.index)))
    return ast.with_children(expr, tuple(rename(child, names) for child in ast.children(expr)))


def arithmetic(expr: ast.Binary) -> ast.Binary | None:
    """A shift of an index by a number, or its last bits, as the product, quotient or remainder that it is; else None."""
    right = expr.right
    if not isinstance(right, ast.Number) or not isinstance(value := right.value, int) or value < 0:
        return None
    if expr.op in ("<<", ">>") and value < 62:
        return replace(expr, op="*" if expr.op == "<<" else "//", right=replace(right, value=1 << value))
    if expr.op == "&" and value < 1 << 62 and value & (value + 1) == 0:
        return replace(expr, op="%", right=replace(right, value=value + 1))
    return None


def written_ranges(expr: ast.Expr) -> Iterator[ast.Range]:
    """The text in brackets before a `(`."""
    for node in ast.traverse(expr):
        match node:
            case ast.Reduce(ranges=ranges) | ast.Call(indices=ranges):
                yield from ranges
            case ast.Scan(range=range_):
                yield range_


def bodies(function: ast.Def) -> tuple[ast.Expr, ...]:
    return (*(local.value for local in function.locals), function.result)


def uses(function: ast.Def, parameter: str) -> int:
    return sum(isinstance(n, ast.Name) and n.name == parameter for e in bodies(function) for n in ast.traverse(e))


def matters(function: ast.Def, name: str) -> bool:
    """Whether the result depends on a parameter, or a local, itself or through other locals."""
    wanted = {n.name for n in ast.traverse(function.result) if isinstance(n, ast.Name)}
    for local in reversed(function.locals):
        if local.name in wanted:
            wanted |= {n.name for n in ast.traverse(local.value) if isinstance(n, ast.Name)}
    return name in wanted


def trivial(value: ast.Expr) -> bool:
    """A name, a number, or a load of one element: repeating it computes nothing."""
    match value:
        case ast.Number() | ast.Boolean() | ast.Name():
            return True
        case ast.Access(subscripts=subscripts):
            return all(isinstance(n, ast.Name | ast.Number | ast.Binary) for s in subscripts for n in ast.traverse(s))
        case ast.Cast(operand=operand) | ast.Unary(operand=operand):
            return trivial(operand)
    return False


def logsumexp(expr: ast.Reduce) -> ast.Def:
    """`logsumexp` as a function: `z + log(sum(exp(x - z)))` with z the maximum, or 0 where that is infinite.

    So an empty range and one of all -inf give log(0) = -inf, a +inf gives +inf, and a NaN is the maximum and stays.
    """
    at = expr.span
    indices = tuple(r.index for r in expr.ranges)
    ranges = tuple(ast.Range(i, None, None, at) for i in indices)
    x, m, z = (ast.Name(name, span=at) for name in ("x", "m", "z"))
    zero, infinity = ast.Number(0, span=at), ast.Number(float("inf"), span=at)
    finite = ast.Compare("!=", ast.Call("abs", (), (m,), span=at), infinity, span=at)
    maximum = ast.Reduce("max", ranges, x, expr.accumulator, span=at)
    terms = ast.Call("exp", (), (ast.Binary("-", x, z, span=at),), span=at)
    total = ast.Reduce("sum", ranges, terms, expr.accumulator, span=at)
    locals_ = (
        ast.Local("m", maximum, at),
        ast.Local("z", ast.Conditional(finite, m, zero, span=at), at),
        ast.Local("s", total, at),
    )
    result = ast.Binary("+", z, ast.Call("log", (), (ast.Name("s", span=at),), span=at), span=at)
    return ast.Def("logsumexp", indices, ("x",), locals_, result, at)
