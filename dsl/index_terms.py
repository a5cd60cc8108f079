"""Sizes and index expressions as terms of the algebra of subscripts (`tilec/index`), and terms as sizes and expressions.

Arithmetic that may leave 64 bits wraps around, and is no term: a subscript with it is treated like data, and checked at run time; a
condition with it tells nothing of indices. Sizes without an upper end are taken to be small enough, as numbers will show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from math import inf
from typing import Literal

from tilec.core.diagnostics import Span
from tilec.core.dtypes import I64
from tilec.dsl import ast
from tilec.dsl.notation import arithmetic
from tilec.index.facts import NONE, choose, has_index, maximum, minimum
from tilec.index.terms import (
    Cond,
    Leaf,
    Monomial,
    Term,
    at_least,
    below,
    call,
    equal,
    leaf_of,
    size,
    summands,
    term,
    total,
)  # fmt: skip

_MAX_PARTS = 400  # a subscript with larger products is treated like data
_UNKNOWN = "?"
_COMPARED: dict[str, Callable[[Term, Term], Cond]] = {
    "<": below, "<=": lambda a, b: at_least(b, a), ">": lambda a, b: below(b, a), ">=": at_least, "==": equal,
    "!=": lambda a, b: ~equal(a, b),
}  # fmt: skip


def combined(op: str, a: Term, b: Term) -> Term:
    """`a op b`, of `+`, `-`, `*`, `//` and `%`; by 0 it is 0."""
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b if b is not term(0) else b
        case "%":
            return a % b if b is not term(0) else b
    raise AssertionError(f"`{op}` is no operator of index arithmetic")


@dataclass(eq=False)
class IndexTerms:
    """Reads expressions in which `names` are indices and sizes."""

    names: Mapping[str, Term]
    _unknown: Iterator[int] = field(default_factory=count)

    def within(self, names: Mapping[str, Term]) -> IndexTerms:
        """The same where more names are known, or others."""
        return IndexTerms({**self.names, **names}, self._unknown)

    def of(self, expr: ast.Expr) -> Term | None:
        """The value of an expression; None where it has other parts, or one may leave 64 bits."""
        found: Term | None = None
        match expr:
            case ast.Name(name=name):
                return self.names.get(name)
            case ast.Number(value=int(value)):
                found = term(value)
            case ast.Cast(operand=operand, dtype=dtype) if dtype is I64:
                return self.of(operand)
            case ast.Unary(op="-", operand=operand):
                inner = self.of(operand)
                found = None if inner is None else -inner
            case ast.Binary():
                same = arithmetic(expr) or expr
                a, b = self.of(same.left), self.of(same.right)
                found = None if a is None or b is None else self._binary(same.op, a, b)
            case ast.Call(function="abs" | "min" | "max" | "clamp" as function, arguments=arguments):
                args = [x for x in map(self.of, arguments) if x is not None]
                found = _called(function, args) if len(args) == len(arguments) else None
            case ast.Conditional(condition=condition, then=then, otherwise=otherwise):
                a, b = self.of(then), self.of(otherwise)
                found = None if a is None or b is None else choose(self.condition(condition), a, b)
        return found if found is not None and fits(found) else None

    def affine(self, expr: ast.Expr) -> Term | None:
        """A subscript that is a sum of multiples of indices and of their quotients; None for all else."""
        if isinstance(expr, ast.Name):
            return self.of(expr)
        chosen = any(isinstance(e, (ast.Call, ast.Conditional)) for e in ast.traverse(expr))
        found = None if chosen else self.of(expr)
        return found if found is not None and _is_affine(found) else None

    def _binary(self, op: str, a: Term, b: Term) -> Term | None:
        if op in ("&", "|", "^"):
            (least, x), (low, y) = NONE.bounds(a), NONE.bounds(b)
            if min(least, low) < 0 or max(x, y) == inf:
                return None
            most = min(x, y) if op == "&" else (1 << (int(x) | int(y)).bit_length()) - 1
            return call(op, a, b, low=0, high=int(most))
        if op == "*" and len(a.parts) * len(b.parts) > _MAX_PARTS:
            return None
        return combined(op, a, b) if op in ("+", "-", "*", "//", "%") else None

    # ---- conditions ----

    def condition(self, expr: ast.Expr) -> Cond:
        """Where a condition holds. All that it has beside comparisons of indices and sizes is unknown (`implied`)."""
        match expr:
            case ast.Boolean(value=value):
                return at_least(int(value), 1)
            case ast.Unary(op="not" | "~", operand=operand):
                return ~self.condition(operand)
            case ast.Binary(op="and" | "&", left=left, right=right):
                return self.condition(left) & self.condition(right)
            case ast.Binary(op="or" | "|", left=left, right=right):
                return self.condition(left) | self.condition(right)
            case ast.Binary(op="^", left=left, right=right):
                return ~self._same(left, right)
            case ast.Compare(op="==" | "!=" as op, left=left, right=right) if is_condition(left) and is_condition(right):
                return self._same(left, right) if op == "==" else ~self._same(left, right)
            case ast.Compare(op=op, left=left, right=right):
                a, b = self.of(left), self.of(right)
                if a is not None and b is not None:
                    return _COMPARED[op](a, b)
            case ast.Conditional(condition=inner, then=then, otherwise=otherwise):
                when, yes, no = map(self.condition, (inner, then, otherwise))
                return (when & yes) | (~when & no)
        return equal(call(f"{_UNKNOWN}{next(self._unknown)}", low=0, high=1), 1)

    def _same(self, left: ast.Expr, right: ast.Expr) -> Cond:
        a, b = self.condition(left), self.condition(right)
        return (a & b) | (~a & ~b)


def implied(when: Cond) -> tuple[Cond, ...]:
    """What a condition tells of indices and sizes: conditions that all hold where it does."""
    if when.term is not None:
        return () if any(leaf.op == "call" and leaf.name.startswith(_UNKNOWN) for leaf in when.term.leaves) else (when,)
    each = [implied(part) for part in when.parts]
    if when.op == "and":
        return tuple(c for some in each for c in some)
    return (Cond("or", None, tuple(Cond("and", None, some) for some in each)),) if all(each) else ()


def is_condition(expr: ast.Expr) -> bool:
    """Whether a bool is what it gives, as far as its form tells."""
    match expr:
        case ast.Boolean() | ast.Compare() | ast.Unary(op="not") | ast.Binary(op="and" | "or"):
            return True
        case ast.Binary(op="&" | "|" | "^", left=left, right=right):
            return is_condition(left) and is_condition(right)
        case ast.Unary(op="~", operand=operand):
            return is_condition(operand)
        case ast.Conditional(then=then, otherwise=otherwise):
            return is_condition(then) and is_condition(otherwise)
    return False


def fits(x: Term) -> bool:
    """Whether it is a number of 64 bits, as far as sizes are known."""
    low, high = NONE.bounds(x)
    return (low == -inf or low >= -(1 << 63)) and (high == inf or high < 1 << 63)


def _is_affine(x: Term) -> bool:
    moving = [[leaf for leaf in m if has_index(leaf)] for m in x.parts]
    return all(len(leaves) < 2 and all(leaf.is_symbol or _is_affine_quotient(leaf) for leaf in leaves) for leaves in moving)


def _is_affine_quotient(leaf: Leaf) -> bool:
    """Or a remainder, by a size."""
    divides = leaf.op == "//" or leaf.name in ("//", "%")
    return divides and _is_affine(leaf.args[0]) and not any(map(has_index, leaf.args[1].leaves))


def _called(function: str, args: list[Term]) -> Term:
    match function:
        case "abs":
            return maximum(args[0], -args[0])
        case "min":
            return minimum(*args)
        case "max":
            return maximum(*args)
    return minimum(maximum(args[0], args[1]), args[2])


# ---- sizes -----------------------------------------------------------------------------------------------------------


def size_term(of: ast.Size, sizes: Mapping[str, Term]) -> Term:
    """A size as a term; a name that `sizes` does not bind is a size of at least 1. Raises ZeroDivisionError."""
    match of:
        case ast.SizeNumber(value=value):
            return term(value)
        case ast.SizeName(name=name):
            return sizes[name] if name in sizes else size(name)
        case ast.SizeTerm(term=known):
            return known
        case ast.SizeBinary(op=op, left=left, right=right):
            a, b = size_term(left, sizes), size_term(right, sizes)
            if op == "//" and b is term(0):
                raise ZeroDivisionError
            return combined(op, a, b)


def to_size(x: Term) -> ast.Size:
    """A bound of a completed range: a number where it is one."""
    return ast.SizeTerm(x) if x.constant is None else ast.SizeNumber(x.constant)


def names_in(x: Term) -> set[str]:
    """The names of sizes in a term."""
    return {leaf.name for leaf in x.free}


def varies(*xs: Term) -> bool:
    """Whether terms have a size that has no number."""
    return any(leaf.op == "size" for x in xs for leaf in x.free)


def in_sizes(x: Term) -> Term:
    """A term in the sizes that the program names: one that is a multiple of 8 is 8 times a symbol in proofs.

    8 * M/8 + 1   ->   M + 1
    """
    if all(leaf.is_symbol and "/" not in leaf.name for leaf in x.leaves):
        return x
    return total([_monomial_in_sizes(m, f) for m, f in x.parts.items()])


def _monomial_in_sizes(m: Monomial, f: int) -> Term:
    found = term(1)
    for leaf in m:
        if leaf.is_symbol and "/" in leaf.name:
            name, _, by = leaf.name.rpartition("/")
            low, high = (None if e is None else e * int(by) for e in leaf.ends)
            whole = leaf_of("size", name, (), (low, high))
            found = found * (whole // int(by) if f % int(by) else whole)
            f = f if f % int(by) else f // int(by)
        elif leaf.op in ("//", "min"):
            args = [in_sizes(a) for a in leaf.args]
            found = found * (minimum(*args) if leaf.op == "min" else args[0] // args[1])
        else:
            found = found * term(leaf)
    return found * f


def expression_of(x: Term, span: Span) -> ast.Expr:
    """A term as an expression of the language, its largest parts first."""

    def binary(op: Literal["+", "*", "//", "%"], left: ast.Expr, right: ast.Expr) -> ast.Expr:
        return ast.Binary(op, left, right, I64, span)

    def number(n: int) -> ast.Expr:
        return ast.Number(n, I64, span)

    def factor(leaf: Leaf) -> ast.Expr:
        if leaf.is_symbol:
            return ast.Name(leaf.name, I64, span)
        args = [written(a) for a in leaf.args]
        if leaf.op == "min":
            return ast.Call("min", (), tuple(args), I64, span)
        return binary("%" if leaf.name == "%" else "//", *args)

    def written(x: Term) -> ast.Expr:
        remainders, rest = summands(x)
        parts = [(c, str(z), binary("%", written(z), written(k))) for c, z, k in remainders]
        parts += [
            (term(f), " * ".join(map(str, m)), reduce(lambda a, b: binary("*", a, b), map(factor, m)))
            for m, f in rest.parts.items() if m
        ]  # fmt: skip
        parts.sort(key=lambda part: (-abs(part[0].number), part[1]))
        found = [e if c is term(1) else binary("*", e, written(c)) for c, _, e in parts]
        if rest.number or not found:
            found.append(number(rest.number))
        return reduce(lambda a, b: binary("+", a, b), found)

    return written(in_sizes(x))


def is_open(mark: str, *xs: Term) -> bool:
    """Whether a mark is in the name of a size: "." of one that only a call tells (`x.0`), "?" of one that is yet unknown (`?N`)."""
    return any(mark in name for x in xs for name in names_in(x))


def with_sizes(x: Term, sizes: Mapping[str, Term]) -> Term:
    """A term of sizes, where some of them are others."""
    return NONE.rebuilt(x, {leaf: sizes[leaf.name] for leaf in x.free if leaf.name in sizes})


def range_of(r: ast.Range) -> tuple[Term, Term]:
    """The first number of a completed range, and the one behind its last."""
    low, high = ast.ends_of(r)
    return size_term(low, {}), size_term(high, {})
