"""Conditions under which elements of a chain count: affine ones (masks), and comparisons of a row's number with a column's."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from math import inf

from tilec.analysis.carried import Online
from tilec.analysis.expression import Expr, constant, parts_of
from tilec.analysis.index_terms import ExprTerms
from tilec.core.mlir import ir
from tilec.index.terms import Cond, Term

Linear = tuple[dict[Expr, int], int]
"""A sum of leaves times numbers, and a number. A leaf is an index, a number from outside of the operations, or an integer in
memory, such as a length."""
INTEGERS = ("i8", "i16", "i32", "i64")
"""Of elements. Unsigned ones have the same names in MLIR, but are compared by other predicates."""
LARGEST = 1 << 31
"""Indices of chains are smaller."""


@dataclass(frozen=True)
class Mask:
    """A condition: elements add nothing but where it holds, or (not `holds`) where it does not. That is where each of `bounds` is
    at least 0."""

    condition: Expr
    holds: bool
    bounds: tuple[Linear, ...]


@dataclass(frozen=True)
class Match:
    """A comparison of integers, one of a row and one of a column: elements for which it fails add nothing. The row's is `equal` to
    the column's, or `at_most` or `at_least` it (and perhaps another)."""

    condition: Expr
    row: Expr
    column: Expr
    equal: bool = False
    at_most: bool = False
    at_least: bool = False


def affine_bounds(condition: Expr, holds: bool = True) -> tuple[Linear, ...] | None:
    """Sums that are all at least 0 just where the condition holds, or where it does not."""
    terms = ExprTerms(largest=LARGEST)
    if (when := terms.condition(condition)) is None:
        return None
    found = [None if t is None else _linear(terms, t) for t in _parts(when if holds else ~when)]
    known = tuple(x for x in found if x is not None)
    return known if len(known) == len(found) else None


def _parts(when: Cond) -> Iterator[Term | None]:
    """Terms that are all at least 0 just where a condition holds; None among them where there are none."""
    if when.op == "and":
        for part in when.parts:
            yield from _parts(part)
    elif when.op != ">=" or when.term is None:
        yield None
    elif least := next((leaf for leaf in when.term.leaves if leaf.op == "min"), None):  # |x| < y: x < y and -x < y
        c, r = when.term.collect(least)
        for a in least.args if (c.constant or 0) > 0 else ():
            yield from _parts(Cond(">=", c * a + r))
        if (c.constant or 0) <= 0:
            yield None
    else:
        yield when.term


def linear(x: Expr) -> Linear | None:
    """An integer expression as a sum of leaves times numbers, if it is one."""
    terms = ExprTerms(largest=LARGEST)
    return _linear(terms, terms.exact(x))


def _linear(terms: ExprTerms, x: Term) -> Linear | None:
    """In the order in which the leaves were read."""
    factors = {leaf: x.parts[leaf,] for leaf in terms.sources if (leaf,) in x.parts}
    affine = len(factors) == len(x.parts) - (() in x.parts)
    return ({terms.sources[leaf]: f for leaf, f in factors.items()}, x.number) if affine else None


def with_single_conditions(x: Expr) -> Expr:
    """Choices by several conditions as choices by one each, the affine ones first: `a if p and q else b` is
    `(a if q else b) if p else b`. An exponential's square, which is its fast form, as an exponential."""
    args = tuple(with_single_conditions(a) for a in x.args)
    if x.op == "arith.mulf" and args[0] == args[1] and args[0].op == "math.exp2":
        (y,) = args[0].args
        return Expr("math.exp2", (Expr("arith.mulf", (y, constant(2.0))),), args[0].key, template=args[0].template)
    if x.op == "arith.select" and args[0].op in ("arith.andi", "arith.ori"):
        holds = args[0].op == "arith.andi"
        affine = lambda c: affine_bounds(c, holds) is not None  # noqa: E731
        found, *choice = args[1 if holds else 2], args[1], args[2]
        for condition in sorted(_conjuncts(args[0], args[0].op), key=affine):
            choice[not holds] = found
            found = Expr(x.op, (condition, *choice), x.key, x.own_dims, x.type, x.template)
        return found
    return Expr(x.op, args, x.key, x.own_dims, x.type, x.template)


def _conjuncts(x: Expr, op: str) -> list[Expr]:
    return [c for a in x.args for c in _conjuncts(a, op)] if x.op == op else [x]


def masks_of(online: Online) -> Iterator[Mask]:
    """Affine conditions without which no state changes."""
    for condition in dict.fromkeys(c for carried in online.carried for c in _conditions(carried.term)):
        for holds in (True, False):
            bounds = affine_bounds(condition, holds) or ()
            read = [leaf for leaves, _ in bounds for leaf in leaves if online.dim in leaf.dims]
            if not read or any(leaf.op == "element" for leaf in read):
                continue
            if all(folded(where(c.term, condition, not holds)).number == c.identity for c in online.carried):
                yield Mask(condition, holds, bounds)


def _reads_at(x: Expr, dims: Set[int]) -> bool:
    """Whether memory is read at one of these dimensions."""
    return (x.op == "element" and bool(x.dims & dims)) or any(_reads_at(a, dims) for a in x.args)


_COMPARED = {0: "equal", 2: "at_most", 3: "at_most", 4: "at_least", 5: "at_least"}  # by predicates of cmpi


def matches_of(online: Online, rows: Set[int]) -> Iterator[Match]:
    """Comparisons of a row's number with a column's, without which no state changes."""
    for condition in dict.fromkeys(c for carried in online.carried for c in _conditions(carried.term)):
        if condition.op != "arith.cmpi" or condition.args[0].type not in INTEGERS or not _reads_at(condition, {online.dim, *rows}):
            continue
        assert condition.template is not None
        predicate = ir.IntegerAttr(condition.template.attributes["predicate"]).value
        by_column = [online.dim in a.dims for a in condition.args]
        if predicate not in _COMPARED or sum(by_column) != 1:
            continue
        row, column = condition.args if by_column[1] else condition.args[::-1]
        how = _COMPARED[predicate]
        if by_column[0] and how != "equal":
            how = "at_least" if how == "at_most" else "at_most"
        plain = not (row.totals | column.totals or column.dims & rows)
        if plain and all(folded(where(c.term, condition, False)).number == c.identity for c in online.carried):
            yield Match(condition, row, column, **{how: True})


def _conditions(x: Expr) -> Iterator[Expr]:
    return (part.args[0] for part in parts_of(x) if part.op == "arith.select")


def where(x: Expr, condition: Expr, holds: bool) -> Expr:
    """`x` where a condition holds, or does not."""

    def taken(p: Expr) -> Expr | None:
        same = p.op == "arith.select" and p.args[0] == condition
        return where(p.args[1 if holds else 2], condition, holds) if same else None

    return x.replace(taken)


def folded(x: Expr) -> Expr:
    """`x` with its constants folded. An infinity absorbs what is added to it, and a weight of 0 makes a product 0."""
    args = tuple(folded(a) for a in x.args)
    numbers = [a.number for a in args]
    known = [n for n in numbers if n is not None]
    infinite = next((n for n in numbers if n in (inf, -inf)), None)
    match x.op:
        case "math.fma" if numbers[0] in (inf, -inf) and numbers[1]:
            return Expr("constant", key=numbers[0] * numbers[1])
        case "math.exp2" | "math.exp" if numbers[0] == -inf:
            return Expr("constant", key=0.0)
        case "arith.extf" | "arith.truncf" if numbers[0] in (inf, -inf, 0.0):
            return Expr("constant", key=numbers[0])
        case "arith.mulf" if 0 in numbers and infinite is None:
            return Expr("constant", key=0.0)
        case "arith.mulf" if len(known) == 2:
            return Expr("constant", key=known[0] * known[1])
        case "arith.divf" if len(known) == 2 and known[1]:
            return Expr("constant", key=known[0] / known[1])
        case "arith.addf" | "arith.subf" if len(known) == 2 and infinite is None:
            return Expr("constant", key=known[0] + known[1] if x.op == "arith.addf" else known[0] - known[1])
        case "arith.addf" if infinite is not None:
            return Expr("constant", key=infinite)
        case "arith.subf" if infinite is not None and numbers[0] == infinite:
            return Expr("constant", key=infinite)
        case "arith.select" if numbers[1] is not None and numbers[1] == numbers[2]:
            return Expr("constant", key=numbers[1])
        case "arith.maximumf" if len(known) == 2:
            return Expr("constant", key=max(known))
    return Expr(x.op, args, x.key, x.own_dims, x.type, x.template)
