"""emit, for CUDA: branches that do the same with other memory are printed once, after the memory is chosen (`tilec.mergeable`).

    if tile < 88:                             own = tile < 88
        t = tile // 4                         bias_1 = bias if own else other
        x = load_f32(bias + 4 * t)      ->    t = tile // 4
    else:                                     x = load_f32(bias_1 + 4 * t)
        u = tile // 4
        y = load_f32(other + 4 * u)

The results of sibling contractions have an epilogue each. Unrolled over a tile they are thousands of instructions, which the
assembler would schedule once for each result, and which would keep one another's addresses in registers.

Texts are compared, so that what is printed once is what would be printed twice: two names that the branches only read become one
that is chosen, two that they set become one, and so do two arrays of registers that only they use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from itertools import groupby

_ARRAY = re.compile(r"^\s*(\w+) = (cuda\.local\.array\(.*\))$")
_RANGES = frozenset({"within_i32", "within_u31"})
_PURE = _RANGES | {"int64", "int32", "uint32", "min", "max"}


class _Differs(Exception):
    """The branches do not do the same."""


def merged(lines: Sequence[str], before: Sequence[str], name: Callable[[str], str]) -> list[str] | None:
    """The lines of `if ...: ... else: ...` in other words: what both branches do, once. None where they differ in more than names.
    `before`: the kernel's lines before them; `name`: a new name like another one."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    (tree,) = ast.parse("\n".join(line[indent:] for line in lines)).body
    if not isinstance(tree, ast.If):
        return None
    extra = len(tree.orelse) - len(tree.body)
    first, then, otherwise = tree.orelse[: max(extra, 0)], tree.body, tree.orelse[max(extra, 0) :]
    if len(then) != len(otherwise) or not all(map(_is_arithmetic, first)):
        return None
    arrays = {found[1]: found[2] for line in before if (found := _ARRAY.match(line))}
    outside = {word for line in before if not _ARRAY.match(line) for word in re.findall(r"\w+", line.partition("#")[0])}
    moved = {n for s in first for n in _names(s, ast.Store)}
    if moved & outside:
        return None
    match = _Match((then, otherwise), arrays, outside | moved)
    try:
        match.value(then, otherwise)
    except _Differs:
        return None
    start = otherwise[0].lineno - 1  # the comments before it are the others'
    while _is_comment(lines[start - 1]):
        start -= 1
    (end,) = [n for n, line in enumerate(lines) if line[indent:] == "else:"]
    condition = f"({ast.unparse(tree.test)})" if not isinstance(tree.test, ast.Name) else tree.test.id
    made = [line[4:] for line in lines[end + 1 : start]]
    if match.chosen and not isinstance(tree.test, ast.Name):
        own = name("is_own")
        made.append(f"{' ' * indent}{own} = {ast.unparse(tree.test)}")
        condition = own
    chosen = {pair: name(pair[0]) for pair in match.chosen}
    made += [f"{' ' * indent}{new} = {a} if {condition} else {b}" for (a, b), new in chosen.items()]
    changes = [(node, chosen[pair]) for node, pair in match.positions] + [(node, "within_i32") for node in match.wider]
    body = list(lines)
    for node, text in sorted(changes, key=lambda c: (c[0].lineno, c[0].col_offset), reverse=True):
        line, at = body[node.lineno - 1], node.col_offset + indent
        body[node.lineno - 1] = line[:at] + text + line[at + len(node.id) :]
    return made + _commented(body[1:end], lines[start:])


def _is_arithmetic(statement: ast.stmt) -> bool:
    """Whether a statement sets a variable to what may as well be computed where nobody needs it."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    calls = [n for n in ast.walk(statement.value) if isinstance(n, ast.Call)]
    return all(isinstance(c.func, ast.Name) and c.func.id in _PURE for c in calls) and not any(
        isinstance(n, ast.Subscript) for n in ast.walk(statement.value)
    )


def _names(tree: ast.AST, context: type = ast.expr_context) -> list[str]:
    return [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, context)]


def _commented(lines: Sequence[str], others: Sequence[str]) -> list[str]:
    """Lines of a branch, one level further out, with the comments of another one that does the same."""
    theirs = iter(_comments(others))
    made: list[str] = []
    for is_comment, run in groupby(lines, _is_comment):
        own = [line[4:] for line in run]
        if is_comment:
            indent = own[0][: len(own[0]) - len(own[0].lstrip())]
            own += [indent + text for text in next(theirs, ()) if indent + text not in own]
        made += own
    return made


def _comments(lines: Sequence[str]) -> list[list[str]]:
    """Each run of comments."""
    return [[line.strip() for line in run] for is_comment, run in groupby(lines, _is_comment) if is_comment]


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


class _Match:
    """Two branches, statement by statement. `chosen`: pairs of names that they read, with their `positions` in the first one."""

    def __init__(self, branches: Sequence[list[ast.stmt]], arrays: dict[str, str], outside: set[str]):
        self.set = [{n for s in b for n in _names(s, ast.Store)} for b in branches]
        self.arrays, self.outside = arrays, outside
        self.pairs: tuple[dict[str, str], dict[str, str]] = {}, {}  # of variables and arrays that they set, both ways
        self.chosen: dict[tuple[str, str], None] = {}
        self.positions: list[tuple[ast.Name, tuple[str, str]]] = []
        self.wider: list[ast.Name] = []  # marks that are to say what either branch's mark says
        self.filled: set[str] = set()  # arrays of which an element is set, before others are read

    def node(self, a: ast.AST, b: ast.AST) -> None:
        match a, b:
            case ast.Name(), ast.Name():
                self.name(a, b)
            case ast.Call(), ast.Call():
                self.call(a, b)
            case ast.Assign(), ast.Assign():  # in the order of evaluation
                self.node(a.value, b.value)
                self.value(a.targets, b.targets)
            case ast.Subscript(value=ast.Name() as x, ctx=ast.Store()), ast.Subscript(value=ast.Name()):
                self.node(a.slice, b.slice)
                self.filled.add(x.id)
                self.node(a.value, b.value)
            case _ if type(a) is not type(b):
                raise _Differs
            case _:
                for (_, one), (_, other) in zip(ast.iter_fields(a), ast.iter_fields(b)):
                    self.value(one, other)

    def value(self, a: object, b: object) -> None:
        """Of a field: a node, several, or what must be equal."""
        match a, b:
            case ast.AST(), ast.AST():
                self.node(a, b)
            case list(), list():
                if len(a) != len(b):
                    raise _Differs
                for one, other in zip(a, b):
                    self.value(one, other)
            case _:
                if type(a) is not type(b) or a != b:
                    raise _Differs

    def call(self, a: ast.Call, b: ast.Call) -> None:
        function, other = (c.func.id if isinstance(c.func, ast.Name) else ast.unparse(c.func) for c in (a, b))
        if function != other:
            if {function, other} != _RANGES or not isinstance(a.func, ast.Name):
                raise _Differs
            self.wider.append(a.func)
        if function.startswith("load_") and a.args and isinstance(a.args[0], ast.Name):
            self.filled.add(a.args[0].id)
        self.value(a.args, b.args)
        self.value(a.keywords, b.keywords)

    def name(self, a: ast.Name, b: ast.Name) -> None:
        one, other = a.id, b.id
        if one in self.arrays and other in self.arrays and one != other:
            fresh = one in self.filled and not {one, other} & self.outside
            if not fresh or self.arrays[one] != self.arrays[other]:
                raise _Differs
            self._same(one, other)
        elif one in self.set[0] or other in self.set[1]:
            if one != other and {one, other} & self.outside:
                raise _Differs
            self._same(one, other)
        elif one != other:
            self.chosen[one, other] = None
            self.positions.append((a, (one, other)))

    def _same(self, one: str, other: str) -> None:
        if self.pairs[0].setdefault(one, other) != other or self.pairs[1].setdefault(other, one) != one:
            raise _Differs


def without_unused_arrays(lines: Sequence[str]) -> list[str]:
    """Lines of a kernel without declarations of register arrays that nothing else names."""
    counts: dict[str, int] = {}
    for line in lines:
        for word in set(re.findall(r"\w+", line)):
            counts[word] = counts.get(word, 0) + 1
    return [line for line in lines if not (found := _ARRAY.match(line)) or counts[found[1]] > 1]
