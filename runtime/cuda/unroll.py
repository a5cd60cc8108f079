"""Loops of printed kernels that are written out before they are compiled.

    for half in unrolled(2):                      total += s[0 * 4]
        total += s[half * 4]             ->       total += s[1 * 4]

A register has no address: an array becomes registers only if its subscripts are numbers. LLVM unrolls short loops itself,
but neither long ones nor all that have branches inside. Numbers are folded here, in the order in which they stand.
"""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Iterator
from functools import reduce

unrolled = range
"""What a kernel calls, where it is run as Python."""


def unroll(source: str) -> ast.Module:
    """The module of a text, without loops over `unrolled`."""
    tree = ast.parse(source)
    return ast.fix_missing_locations(_Unroll().visit(tree)) if "unrolled(" in source else tree


class _Unroll(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.AST | list[ast.AST]:
        self.generic_visit(node)
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="unrolled"), args=arguments)):
                numbers = range(*(ast.literal_eval(a) for a in arguments))
                bodies = [_Set(name, n).visit(copy.deepcopy(s)) for n in numbers for s in node.body]
                return bodies or ast.Pass()
        return node


class _Set(ast.NodeTransformer):
    """Puts a number in the place of a variable."""

    def __init__(self, name: str, number: int):
        self.name, self.number = name, number

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(self.number), node) if node.id == self.name else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return ast.copy_location(_folded(self.generic_visit(node)), node)


def _folded(node: ast.AST) -> ast.AST:
    match node:
        case ast.BinOp(left=ast.Constant(int(a)), right=ast.Constant(int(b)), op=op) if type(op) in _FOLDED:
            return ast.Constant(_FOLDED[type(op)](a, b))
        case (
            ast.BinOp(op=ast.Add(), left=ast.Constant(0), right=term)
            | ast.BinOp(op=ast.Add(), left=term, right=ast.Constant(0))
        ):
            return term
        case ast.BinOp(
            op=ast.Add(),
            left=ast.BinOp(op=ast.Add(), left=first, right=ast.Constant(int(a))),
            right=ast.Constant(int(b)),
        ):
            return ast.BinOp(first, ast.Add(), ast.Constant(a + b))
        case ast.BinOp(op=ast.Mult(), left=ast.Constant(0)) | ast.BinOp(op=ast.Mult(), right=ast.Constant(0)):
            return ast.Constant(0)
        case ast.BinOp(op=ast.Mult(), left=ast.BinOp(op=ast.Add()) as terms, right=ast.Constant()):
            return ast.BinOp(_numbers_last(terms), ast.Mult(), node.right)
    return node


_FOLDED = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.RShift: operator.rshift,
}  # fmt: skip


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


def _numbers_last(node: ast.BinOp) -> ast.expr:
    """A sum with its numbers as one at the end: LLVM then adds their product where the address is used."""
    terms = list(_terms(node))
    numbers = [t.value for t in terms if isinstance(t, ast.Constant) and type(t.value) is int]
    others = [t for t in terms if not (isinstance(t, ast.Constant) and type(t.value) is int)]
    if not numbers or not others:
        return node
    return reduce(lambda a, b: ast.BinOp(a, ast.Add(), b), [*others, ast.Constant(sum(numbers))])
