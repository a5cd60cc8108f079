"""Index arithmetic against brute force: the front end's polynomials and proofs, and what the compiler makes of subscripts."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import strategies as st

from fuzz.programs import Case
from tilec.dsl.ranges import Atom, Facts, Poly, divide, interval, nonnegative

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


def poly(tree: Tree) -> Poly:
    if not isinstance(tree, tuple):
        return Poly.of(tree)
    op, left, right = tree
    a, b = poly(left), poly(right)
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b}.get(op, lambda: divide(op, a, b))()


def text(tree: Tree) -> str:
    return f"({text(tree[1])} {tree[0]} {text(tree[2])})" if isinstance(tree, tuple) else f"({tree})"


def value(p: Poly, point: dict[str, int]) -> int:
    """A polynomial at a point, by its definition alone."""
    total = 0
    for monomial, factor in p.terms:
        for v in monomial:
            factor *= _atom(v, point) if isinstance(v, Atom) else point[v]
        total += factor
    return total


def _atom(atom: Atom, point: dict[str, int]) -> int:
    left, right = value(atom.left, point), value(atom.right, point)
    return left // right if atom.op == "//" else left % right


def points():
    """Every size with every index below it: i in 0:M, j in 0:N."""
    for m, n in product(*SIZES.values()):
        for i, j in product(range(m), range(n)):
            yield {"M": m, "N": n, "i": i, "j": j}


BOUNDS = {"i": (Poly(), Poly.of("M") - 1), "j": (Poly(), Poly.of("N") - 1)}


def check_polynomial(tree: Tree) -> None:
    """Its value, its ends over the ranges, and its sign are what enumeration finds."""
    p = poly(tree)
    low, high = interval(p, BOUNDS)
    never_negative = not any(n in text(tree) for n in "ij") and nonnegative(p)
    for point in points():
        found = eval(text(tree), dict(point))
        assert value(p, point) == found, f"{p} at {point}"
        assert low is None or value(low, point) <= found, f"{p} is {found} at {point}, below {low}"
        assert high is None or value(high, point) >= found, f"{p} is {found} at {point}, above {high}"
        assert not never_negative or found >= 0, f"{p} is {found} at {point}"


def check_proof(claim: Tree, facts: list[Tree]) -> bool:
    """What is proved of a place where the facts hold (>= 0) holds there; returns whether it was proved."""
    known = Facts(BOUNDS).assume([poly(f) for f in facts])
    proved = known.proves(poly(claim))
    for point in points():
        if all(eval(text(f), dict(point)) >= 0 for f in facts):
            assert not known.impossible, f"{facts} hold at {point}"
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
