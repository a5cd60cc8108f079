"""Loops of printed kernels that are written out before they are compiled.

    for half in unrolled(2):                      total += s[0 * 4]
        total += s[half * 4]             ->       total += s[1 * 4]

A register has no address: an array becomes registers only if its subscripts are numbers. LLVM unrolls short loops itself,
but neither long ones nor all that have branches inside. Numbers are folded here, in the order in which they stand.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Iterator
from functools import cache, reduce
from typing import Any

unrolled = range
"""The same function for kernels that run as Python."""


def unroll(source: str) -> ast.Module:
    """The module of a text, without loops over `unrolled`."""
    tree = ast.parse(source)
    if "unrolled(" in source:
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            function.body = _Unroll(function).block(function.body)
            _locate(function, function)
    return tree


class _Unroll:
    """Writes out the loops of one function."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.uses = _uses(function)
        self.made: set[str] = set()  # names of variables of one copy of a body

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [found for statement in body for found in self._statement(statement)]

    def _statement(self, node: Any) -> list[ast.stmt]:
        own = None
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="unrolled"), args=arguments)):
                inside = _uses(node)
                own = {n for n in _first_set(node.body) if self.uses[n] == inside[n]}
        for field in ("body", "orelse"):
            if field in vars(node):
                setattr(node, field, self.block(getattr(node, field)))
        if own is None:
            return [node]
        own |= self.made & _uses(node).keys()
        numbers = range(*(ast.literal_eval(a) for a in arguments))
        return [s for n in numbers for s in self._copy(node.body, name, n, own)] or [ast.Pass()]

    def _copy(self, body: list[ast.stmt], name: str, number: int, own: set[str]) -> Iterator[ast.stmt]:
        """A body for one number, with variables of its own: one that all copies set would be a loop's that goes around them,
        and Numba gives those an address, with all that they are computed from."""
        names = {}
        for variable in sorted(own):
            names[variable] = f"{variable}_{number}"
            while names[variable] in self.uses:
                names[variable] += "_"
            self.uses[names[variable]] = 1
            self.made.add(names[variable])
        rewritten = _Copy(name, number, names).of
        yield from map(rewritten, body)


@cache
def _inside(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of node that may hold nodes that have something inside or a place in the text. Copies of a tree share
    the others, operators and the like."""
    return () if kind is ast.Constant else tuple(f for f in kind._fields if f not in ("ctx", "op", "ops", "id", "attr", "name"))


def _parts(node: ast.AST) -> list[ast.AST]:
    """What `ast.iter_child_nodes` finds in `_inside`, in a third of the time."""
    kind: Any = type(node)
    found: list[ast.AST] = []
    for field in _inside(kind):
        value = getattr(node, field, None)
        if isinstance(value, list):
            found += [v for v in value if isinstance(v, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def _uses(node: ast.AST) -> Counter[str]:
    found, pending = Counter[str](), [node]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name):
            found[node.id] += 1
        else:
            pending += _parts(node)
    return found


def _locate(node: ast.AST, around: ast.AST) -> None:
    """Gives nodes that have no place in the text that of the node around them, as `ast.fix_missing_locations` does."""
    if "lineno" in node._attributes:
        if "lineno" not in vars(node):
            ast.copy_location(node, around)
        around = node
    for part in _parts(node):
        _locate(part, around)


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


class _Copy:
    """A copy of a tree with a number in the place of a variable, and other names in the place of some."""

    def __init__(self, name: str, number: int, names: dict[str, str]):
        self.name, self.number, self.names = name, number, names

    def of(self, node: Any) -> Any:
        if not isinstance(node, ast.AST):
            return node
        if isinstance(node, ast.Name) and node.id == self.name:
            return ast.copy_location(ast.Constant(self.number), node)
        kind: Any = type(node)
        copy = kind()
        own = vars(copy)
        own.update(vars(node))
        for field in _inside(kind):
            value = own.get(field)
            own[field] = list(map(self.of, value)) if isinstance(value, list) else self.of(value)
        if isinstance(copy, ast.Name):
            copy.id = self.names.get(copy.id, copy.id)
        return ast.copy_location(_folded(copy), node) if isinstance(copy, ast.BinOp) else copy


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
