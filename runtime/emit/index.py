"""Arithmetic on indices as text (numbers fold, zeros and ones vanish, brackets stand where needed), and where memory lies."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tilec.core import mlir
from tilec.core.mlir import ir

Text = str | int
Divided = Callable[[ir.AffineExpr, Text, Text], str]


def affine_text(expr: ir.AffineExpr, operands: list[str | int], dims: int, divided: Divided) -> str | int:
    match expr:
        case ir.AffineConstantExpr():
            return expr.value
        case ir.AffineDimExpr():
            return operands[expr.position]
        case ir.AffineSymbolExpr():
            return operands[dims + expr.position]
    left, right = (affine_text(e, operands, dims, divided) for e in mlir.sides(expr))
    match expr:
        case ir.AffineAddExpr():
            return plus(left, right)
        case ir.AffineMulExpr():
            return times(left, right)
    return divided(expr, left, right)


def quotient(expr: ir.AffineExpr, left: Text, right: Text) -> str:
    """A division of an affine map."""
    match expr:
        case ir.AffineModExpr():
            return f"({group(left)} % {group(right)})"
        case ir.AffineFloorDivExpr():
            return f"({group(left)} // {group(right)})"
        case ir.AffineCeilDivExpr():
            return f"-(-{group(left)} // {group(right)})"
    raise AssertionError(expr)


def plus(a: str | int, b: str | int) -> str | int:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0 or b == 0:
        return b if a == 0 else a
    if isinstance(b, int) and b < 0:
        return f"{a} - {-b}"
    if isinstance(b, int) and (end := re.search(r" \+ (\d+)$", str(a))):
        return f"{str(a)[: end.start()]} + {int(end[1]) + b}"
    return f"{a} + {b}"


def times(a: str | int, b: str | int) -> str | int:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 0 or b == 0:
        return 0
    if a == 1 or b == 1:
        return b if a == 1 else a
    return f"{group(a)} * {group(b)}"


def group(text: str | int) -> str:
    return str(text) if isinstance(text, int) or re.fullmatch(r"\w+|\([^()]*\)", text) else f"({text})"


def divided(text: Text, by: int) -> Text | None:
    """A sum of products over a number that divides all of its terms; None where it may not."""
    if isinstance(text, int):
        return None if text % by else text // by

    def over(node: ast.expr) -> ast.expr | None:
        match node:
            case ast.Constant(value=int(value)):
                return None if value % by else ast.Constant(value // by)
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                left, right = over(node.left), over(node.right)
                return ast.BinOp(left, node.op, right) if left and right else None
            case ast.BinOp(op=ast.Mult()):
                if found := over(node.right):
                    return ast.BinOp(node.left, node.op, found)
                return ast.BinOp(found, node.op, node.right) if (found := over(node.left)) else None
        return None

    found = over(ast.parse(text, mode="eval").body)
    return None if found is None else ast.unparse(found)


def is_unit(text: str) -> bool:
    """Whether the first bracket closes at the end: `(a) + (b)` is no unit."""
    start = text.find("(")
    depth = 0
    for position, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and position >= start >= 0 and position < len(text) - 1:
            return False
    return True


_WORD = re.compile(rf"\b(?:\d[\d.]*e[-+]\d+|(?!(?:{'|'.join(keyword.kwlist)})\b)[\w.]+)")
"""A name or a number: what does not matter to brackets."""


def tidy(text: str) -> str:
    """A line without brackets that make no difference, but for those around a shift beside other operators on bits."""
    if (
        not any(mark in text for mark in ("((", "= (", ", (", "[(", "if (", "+ ("))
        or "#" in text
        or re.search(r"[|^&] \(.* >> ", text)
    ):
        return text
    words = iter(_WORD.findall(text))
    return _WORD.sub(lambda _: next(words), _tidy(_WORD.sub("x", text)))


@lru_cache(maxsize=4096)
def _tidy(text: str) -> str:
    """Lines of one form, which are many, are parsed once."""
    if text.endswith(":"):
        return ast.unparse(ast.parse(text + " pass")).partition(":\n")[0] + ":"
    return ast.unparse(ast.parse(text))


@dataclass(frozen=True)
class Memory:
    """Where a memref lies: elements of a named base. Strides and offset are texts or numbers, in elements."""

    base: str
    offset: str | int
    strides: tuple[str | int, ...]
    element: str
    shape: tuple[str | int, ...] = ()
    space: str = "global"


def row_major(shape: Sequence[Text]) -> tuple[Text, ...]:
    """Strides in elements."""
    return tuple(product(shape[d + 1 :]) for d in range(len(shape)))


def product(factors: Sequence[Text]) -> Text:
    found: Text = 1
    for factor in factors:
        found = times(found, factor)
    return found


def collapsed(memory: Memory, op: ir.Operation) -> Memory:
    """The same memory under fewer subscripts."""
    groups = [[ir.IntegerAttr(i).value for i in ir.ArrayAttr(g)] for g in ir.ArrayAttr(op.attributes["reassociation"])]
    shape = tuple(product([memory.shape[d] for d in g]) for g in groups)
    return replace(memory, strides=tuple(memory.strides[g[-1]] for g in groups), shape=shape)
