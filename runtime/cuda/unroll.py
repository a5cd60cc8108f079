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
from collections import Counter
from collections.abc import Iterator
from functools import reduce

unrolled = range
"""The same function for kernels that run as Python."""


def unroll(source: str) -> ast.Module:
    """The module of a text, without loops over `unrolled`."""
    tree = ast.parse(source)
    return ast.fix_missing_locations(_Unroll().visit(tree)) if "unrolled(" in source else tree


class _Unroll(ast.NodeTransformer):
    def __init__(self) -> None:
        self.uses: Counter[str] = Counter()  # of each name in the function
        self.made: set[str] = set()  # names of variables of one copy of a body

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.uses = _uses(node)
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.AST]:
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="unrolled"), args=arguments)):
                own = {n for n in _first_set(node.body) if self.uses[n] == _uses(node)[n]}
                self.generic_visit(node)
                own |= self.made & _uses(node).keys()
                numbers = range(*(ast.literal_eval(a) for a in arguments))
                bodies = [s for n in numbers for s in self._copy(node.body, name, n, own)]
                return bodies or ast.Pass()
        return self.generic_visit(node)

    def _copy(self, body: list[ast.stmt], name: str, number: int, own: set[str]) -> Iterator[ast.AST]:
        """A body for one number, with variables of its own: one that all copies set would be a loop's that goes around them,
        and Numba gives those an address, with all that they are computed from."""
        names = {}
        for variable in sorted(own):
            names[variable] = f"{variable}_{number}"
            while names[variable] in self.uses:
                names[variable] += "_"
            self.uses[names[variable]] = 1
            self.made.add(names[variable])
        for statement in body:
            yield _Set(name, number, names).visit(copy.deepcopy(statement))


def _uses(node: ast.AST) -> Counter[str]:
    return Counter(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _first_set(body: list[ast.stmt]) -> set[str]:
    """The variables that a body sets, whatever happens in it, before it reads them."""
    found: set[str] = set()
    read: set[str] = set()
    for statement in body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = [e for t in statement.targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
        names = {t.id for t in targets if isinstance(t, ast.Name)}
        kept = statement.value if isinstance(statement, ast.Assign) else statement
        read |= _uses(kept).keys() | {n for t in targets if not isinstance(t, ast.Name) for n in _uses(t)}
        found |= names - read
        read |= names
    return found


class _Set(ast.NodeTransformer):
    """Puts a number in the place of a variable, and other names in the place of some."""

    def __init__(self, name: str, number: int, names: dict[str, str]):
        self.name, self.number, self.names = name, number, names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == self.name:
            return ast.copy_location(ast.Constant(self.number), node)
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)

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
