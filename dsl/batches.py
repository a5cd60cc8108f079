"""Inputs of which a program reads rows at b * n + s, as tensors with a dimension more.

    y[b, s, d] = x[b * 197 + s, d] + r[b, s, d]     ->   x is [64, 197, 768] in place of [12608, 768], and is read as x[b, s, d]

Where the rows of one b end, those of the next follow. A box of a tensor with the dimension s ends there, too, and has zeros beyond,
so that a product of 197 rows may be computed in tiles of 64. The last dimension stays whole: there parts of it are adjacent.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import gcd

from tilec.dsl import ast
from tilec.dsl.ast import replace
from tilec.dsl.flat import Program, cost, factors
from tilec.dsl.index_terms import expression_of, size_term, to_size
from tilec.dsl.specialise import Specialised
from tilec.index.terms import Term, split, term


def with_batches(op: Specialised, kept: Set[str] = frozenset()) -> Specialised:
    """The same op with inputs of more dimensions, whose elements lie in the same order; those of names `kept` stay."""
    program = Program(op)
    lengths = {t.name: n for t in op.inputs if t.name not in kept and (n := _length(program, t.name))}
    if not lengths:
        return op

    def value(expr: ast.Expr, equation: str) -> ast.Expr:
        if not isinstance(expr, ast.Access) or expr.tensor not in lengths:
            return ast.with_children(expr, tuple(value(child, equation) for child in ast.children(expr)))
        first, others = program.terms[equation, id(expr)][0], expr.subscripts[1:]
        assert first is not None, "it is arithmetic in all reads of an input that has a length"
        pair = (expression_of(x, expr.span) for x in _pair(first, lengths[expr.tensor]))
        return replace(expr, subscripts=(*pair, *(value(s, equation) for s in others)))

    inputs = tuple(_reshaped(t, lengths) for t in op.inputs)
    equations = tuple(replace(e, value=value(e.value, e.name)) for e in op.equations)
    return replace(op, inputs=inputs, equations=equations)


def _reshaped(t: ast.Tensor, lengths: Mapping[str, int]) -> ast.Tensor:
    if t.name not in lengths:
        return t
    first, *others = t.shape or ()
    n = lengths[t.name]
    return replace(t, shape=(to_size(size_term(first, {}) // n), ast.SizeNumber(n), *others))


def _length(program: Program, name: str) -> int:
    """The number of rows that belong together in all reads of an input; 0 where there is none."""
    shape = program.shapes[name]
    if len(shape) < 2 or name in program.fixed:
        return 0
    readers = dict.fromkeys(e.name for e in program.readers.get(name, ()))
    found = [program.terms[e, id(a)][0] for e in readers for a in program.accesses[e] if a.tensor == name]
    firsts = [x for x in found if x is not None]
    weights = [factor for x in firsts for factor in factors(x) if abs(factor.constant or 2) > 1]
    n = gcd(*(factor.constant or 1 for factor in weights))
    if n <= 1 or split(shape[0], term(n))[1] is not term(0):
        return 0
    changes = [(cost(_pair(x, n)), cost([x])) for x in firsts]
    return n if all(new <= old for new, old in changes) and any(new < old for new, old in changes) else 0


def _pair(x: Term, n: int) -> tuple[Term, Term]:
    """The batch of `n` rows that a row is in, and its number there."""
    return x // n, x % n
