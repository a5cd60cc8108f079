"""Index arithmetic against brute force: what the front end reads and proves, and what the compiler makes of subscripts."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
from hypothesis import strategies as st

from fuzz.programs import Case
from tilec.core.diagnostics import Source
from tilec.dsl.index_terms import IndexTerms
from tilec.dsl.parse import parse
from tilec.index.facts import NONE
from tilec.index.terms import Leaf, Term, at_least, index, size

SIZES = {"M": (1, 2, 3, 5), "N": (1, 2, 4)}
Tree = int | str | tuple


def trees(names: list[str], depth: int = 3):
    """Expressions of names and numbers; divisors are sizes or numbers of at least 1."""
    leaves = st.sampled_from(names) | st.integers(-3, 4)
    divisors = st.sampled_from(["M", "N"]) | st.integers(1, 4)

    def larger(smaller):
        return st.tuples(st.sampled_from(["+", "-", "*"]), smaller, smaller) | st.tuples(
            st.sampled_from(["//", "%"]), smaller, divisors
        )

    return st.recursive(leaves, larger, max_leaves=2 * depth)


def text(tree: Tree) -> str:
    return f"({text(tree[1])} {tree[0]} {text(tree[2])})" if isinstance(tree, tuple) else f"({tree})"


def value(x: Term, point: dict[str, int]) -> int:
    """A term at a point, by its definition alone."""
    return sum(f * prod(_leaf(leaf, point) for leaf in m) for m, f in x.parts.items())


def _leaf(leaf: Leaf, point: dict[str, int]) -> int:
    if leaf.is_symbol:
        return point[leaf.name]
    left, right = (value(a, point) for a in leaf.args)
    return left // right


def points():
    """Every size with every index below it: i in 0:M, j in 0:N."""
    for m, n in product(*SIZES.values()):
        for i, j in product(range(m), range(n)):
            yield {"M": m, "N": n, "i": i, "j": j}


M, N = size("M"), size("N")
TERMS = IndexTerms({"M": M, "N": N, "i": index("i", M), "j": index("j", N)})


def term(tree: Tree) -> Term:
    """What the front end reads of the text."""
    (equation,) = parse(Source("<test>", f"op f(x: f32[M]) -> (y: i64[M]) {{ y[i] = {text(tree)} }}")).ops[0].body
    found = TERMS.of(equation.value)
    assert found is not None
    return found


def check_term(tree: Tree) -> None:
    """Its value, its ends over the ranges, and its sign are what enumeration finds."""
    x = term(tree)
    low, high = NONE.ends(x)
    never_negative = NONE.proves(x)
    for point in points():
        found = eval(text(tree), dict(point))
        assert value(x, point) == found, f"{x} at {point}"
        assert low is None or value(low, point) <= found, f"{x} is {found} at {point}, below {low}"
        assert high is None or value(high, point) >= found, f"{x} is {found} at {point}, above {high}"
        assert not never_negative or found >= 0, f"{x} is {found} at {point}"


def check_proof(claim: Tree, facts: list[Tree]) -> bool:
    """What is proved of a place where the facts hold (>= 0) holds there; returns whether it was proved."""
    known = NONE
    for f in facts:
        known = known.assume(at_least(term(f), 0))
    proved = known.proves(term(claim))
    for point in points():
        if all(eval(text(f), dict(point)) >= 0 for f in facts):
            assert not known.never, f"{facts} hold at {point}"
            assert not proved or eval(text(claim), dict(point)) >= 0, f"{text(claim)} at {point}, given {facts}"
    return proved


def subscript_case(tree: Tree, m: int, n: int) -> tuple[Case, np.ndarray]:
    """A program that stores an index expression and reads at it, and what enumeration says that it stores and reads."""
    program = f"op f(x: i32[M, N]) -> (y: i64[M, N], z: i32[M, N]) {{\n    y[i, j] = {text(tree)}\n"
    program += (
        f"    z[i, j] = pad(x[{text(tree)}, j], -1) + (x[i, {text(tree)} % N] if {text(tree)} >= 0 else -2)\n}}\n"
    )
    x = np.arange(m * n, dtype=np.int32).reshape(m, n)
    case = Case(program, {"M": m, "N": n}, {"x": x}, frozenset("yz"))
    places = [[eval(text(tree), {"M": m, "N": n, "i": i, "j": j}) for j in range(n)] for i in range(m)]
    return case, np.array(places, np.int64).reshape(m, n)
