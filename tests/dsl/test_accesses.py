"""Which accesses are inside: conditions, quotients and remainders of indices and sizes, against all values of the indices."""

import operator
import random
from itertools import product

import numpy as np
import pytest
from conftest import as_list

import tilec
from tilec.core.diagnostics import Source, TileError
from tilec.dsl import ast
from tilec.dsl.check import Elaborator, check
from tilec.dsl.check_scope import Report, TensorInfo
from tilec.dsl.index_terms import IndexTerms, implied
from tilec.dsl.mistakes import read
from tilec.dsl.modules import load
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.index.exact import Domain
from tilec.index.facts import NONE
from tilec.index.integer_systems import TooMuch, has_solution
from tilec.index.terms import Term, index, term
from tilec.index.terms import size as symbol

# ---- systems of inequalities -----------------------------------------------------------------------------------------


def test_systems_have_the_solutions_that_trying_finds():
    rng, found = random.Random(1), set()
    for _ in range(600):
        names = "abcd"[: rng.randint(1, 4)]
        box = {v: (low := rng.randint(-6, 4), low + rng.randint(-1, 5)) for v in names}
        within = [row for v, (low, high) in box.items() for row in (({v: 1}, -low), ({v: -1}, high))]
        more, equal = (
            [({v: rng.randint(-7, 7) for v in names}, rng.randint(-15, 15)) for _ in range(rng.randint(0, most))]
            for most in (4, 2)
        )

        def value(row, point, names=names):
            return sum(row[0][v] * x for v, x in zip(names, point)) + row[1]

        points = product(*(range(low, high + 1) for low, high in box.values()))
        expected = any(all(value(r, p) >= 0 for r in more) and all(value(r, p) == 0 for r in equal) for p in points)
        assert has_solution([*within, *more], equal) is expected
        found.add(expected)
    assert found == {True, False}


def test_real_solutions_are_not_enough():
    assert not has_solution(
        [({"x": 27, "y": 26}, -12 * 4 + 1), ({"x": -27, "y": -26}, 12 * 4 - 1)], [({"x": 2, "y": -4}, 1)]
    )
    box = [({v: s}, 1000) for v in "xy" for s in (1, -1)]
    assert has_solution([*box, ({"x": 7, "y": -9}, 6), ({"x": -7, "y": 9}, 3)])  # 11 <= 3 x + 2 y <= 13 is Pugh's own
    assert not has_solution([*box, ({"x": 6, "y": -9}, -1), ({"x": -6, "y": 9}, 2)])


def test_what_takes_too_long_is_reported():
    rng = random.Random(2)
    names = [f"v{n}" for n in range(14)]
    rows = [({v: rng.randint(-9, 9) for v in names}, 40) for _ in range(60)]
    with pytest.raises(TooMuch):
        has_solution(rows)


# ---- expressions and conditions --------------------------------------------------------------------------------------


def expression(rng: random.Random, depth: int) -> str:
    kind, a = rng.random(), "" if depth == 0 else expression(rng, depth - 1)
    if depth == 0 or kind < 0.2:
        return rng.choice(["i", "j", "N", str(rng.randint(-3, 9))])
    if kind < 0.5:
        return f"({a} {rng.choice('+-')} {expression(rng, depth - 1)})"
    if kind < 0.6:
        return f"{a} * {rng.randint(-3, 4)}"
    if kind < 0.8:
        return f"({a}) {rng.choice(['//', '%'])} {rng.choice(['2', '3', '4', '5', '-2', 'N', '(N - 3)'])}"
    if kind < 0.87:
        return f"{rng.choice(['min', 'max'])}({a}, {expression(rng, depth - 1)})"
    if kind < 0.94:
        return rng.choice([f"abs({a})", f"clamp({a}, {expression(rng, 0)}, {expression(rng, 0)})"])
    return f"({a} if {condition(rng, 1)} else {expression(rng, depth - 1)})"


def condition(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.5:
        return f"({expression(rng, 1)} {rng.choice(['<', '<=', '>', '>=', '==', '!='])} {expression(rng, 1)})"
    if kind < 0.85:
        return f"({condition(rng, depth - 1)} {rng.choice(['and', 'or', '==', '&', '|', '^'])} {condition(rng, depth - 1)})"
    return f"(not {condition(rng, depth - 1)})"


def parsed(text: str) -> ast.Expr:
    (equation,) = parse(Source("<test>", f"op f(x: f32[N]) -> (y: i64[N]) {{ y[i] = {text} }}")).ops[0].body
    return equation.value


OPERATIONS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "and": operator.and_, "or": operator.or_, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    ">>": operator.rshift,
}  # fmt: skip


def value(e: ast.Expr, names: dict[str, int]):
    """An expression at a point, by the rules of Python, but for divisors of 0."""
    called = {"min": min, "max": max, "abs": abs, "clamp": lambda x, low, high: min(max(x, low), high)}
    match e:
        case ast.Number(value=v):
            return v
        case ast.Name(name=name):
            return names[name]
        case ast.Unary(op=op, operand=operand):
            return -value(operand, names) if op == "-" else not value(operand, names)
        case ast.Conditional(condition=c, then=then, otherwise=otherwise):
            return value(then if value(c, names) else otherwise, names)
        case ast.Call(function=function, arguments=arguments):
            return called[function](*(value(a, names) for a in arguments))
    a, b = value(e.left, names), value(e.right, names)
    return 0 if e.op in ("//", "%") and b == 0 else OPERATIONS[e.op](a, b)


def of_quotients(rng: random.Random) -> str:
    """A quotient or a remainder of the quotients and remainders by the same number."""
    a, n, m = expression(rng, 1), rng.choice([2, 3, 4, -2, -3]), rng.choice([-2, -1, 1, 2, 3])
    return rng.choice([
        f"(({a}) // {n} + {n * m} * (({a}) // {n})) // {n}", f"(i + {n * m} * (i // {n})) // {n}", f"(i % {n}) // {n}",
        f"(({a}) % {n}) {rng.choice(['//', '%'])} {n}", f"(({a}) {rng.choice(['//', '%'])} {m} + {n} * (i // {n})) % {n}",
    ])  # fmt: skip


def test_a_proof_holds_for_all_values_and_is_found():
    """Conditions of every kind around a subscript of every kind. Nothing false is proved, and almost all that is true."""
    rng, true, proved, of_all = random.Random(3), 0, 0, 0
    for n in range(250):
        subscript = parsed(of_quotients(rng) if n % 5 == 0 else expression(rng, rng.randint(1, 3)))
        conditions = [(parsed(condition(rng, rng.randint(0, 2))), rng.random() < 0.6) for _ in range(rng.randint(0, 2))]
        size, low = rng.randint(0, 9), rng.randint(0, 2)
        ranges = {"i": (0, size - 1), "j": (low, low + rng.randint(-1, 5))}
        points = [{"i": i, "j": j, "N": size} for i, j in product(*(range(a, b + 1) for a, b in ranges.values()))]
        values = [value(subscript, p) for p in points if all(bool(value(c, p)) is h for c, h in conditions)]
        terms = IndexTerms({"i": index("i", size), "j": index("j", ranges["j"][1] + 1, low), "N": term(size)})
        x, known, facts = terms.of(subscript), [], NONE
        for c, holds in conditions:
            known += implied(terms.condition(c) if holds else ~terms.condition(c))
        for c in known:
            facts = facts.assume(c)
        domain = Domain(known)
        least, most = min(values, default=0), max(values, default=0)
        if values:
            assert not domain.is_at_least(x, least + 1) and not domain.is_below(x, most)
            assert not facts.proves(x - least - 1) and not facts.proves(most - 1 - x)
            ends = domain.ends(x)
            assert ends[0] <= least and most <= ends[1]
        true += 2
        proved += domain.is_at_least(x, least) + domain.is_below(x, most + 1)
        of_all += facts.proves(x - least) + facts.proves(most - x)
    assert proved >= 0.98 * true and of_all >= 0.85 * true, (proved, of_all, true)


@pytest.mark.parametrize("subscript", [
    "(i + 3 * (i // 3)) // 3", "(i - 3 * (i // 3)) // 3", "(i + 6 * (i // 3) + 4) // 3", "(i + 3 * (i // 3) + j) // 3",
    "(j % 3) // 3", "(j % 2) % 2", "((i // -2) % 3) // 3", "2 - (i % -3) % -3", "(i % -3) // -3", "((i % 4) % 2) // 2",
    "(i // 2 + 4 * (i // 4)) // 2", "(i + 2 * (i // 2)) % 2", "((i + j) % 3 + 3 * ((i + j) // 3)) // 3",
    "(i + 3 * ((i + 3 * (i // 3)) // 3)) // 3", "i // 3 + (i % 3) // 3 - i // 3",
])  # fmt: skip
def test_the_ends_of_quotients_of_quotients_are_exact(subscript):
    e = parsed(subscript)
    for size in range(1, 13):
        x = IndexTerms({"i": index("i", size), "j": index("j", 6, 1)}).of(e)
        values = [value(e, {"i": i, "j": j}) for i in range(size) for j in range(1, 6)]
        least, most, domain = min(values), max(values), Domain()
        assert domain.is_at_least(x, least) and not domain.is_at_least(x, least + 1)
        assert domain.is_below(x, most + 1) and not domain.is_below(x, most)


# ---- programs --------------------------------------------------------------------------------------------------------

GUARDED = [  # right sides of y[d], where d is below D
    "x[d - 1] if d % 2 == 1 else x[d + 1]",
    "x[d - 1] if d % 2 == 1 else x[d]",
    "x[d - 1] if d % 2 != 0 else 0",
    "x[d - 1] if 1 == d % 2 else 0",
    "0 if d % 2 == 0 else x[d - 1]",
    "x[d - 1] if not (d % 2 == 0) else 0",
    "x[d - 1] if d % 2 > 0 else 0",
    "x[d - 1] if (d & 1) == 1 else 0",
    "x[d - 3] if d % 4 == 3 else 0",
    "x[d - 1] if d % 4 != 0 else 0",
    "x[d - 2] if d % 4 >= 2 else 0",
    "x[d + 2] if d % 4 < 2 else x[d - 2]",
    "x[d - 2] if d // 2 >= 1 else 0",
    "x[d - 3] if d // 2 >= 1 else 0",
    "x[d - 2] if d // 2 > 0 else 0",
    "x[d - 4] if d >> 2 != 0 else 0",
    "x[d + 2] if d // 2 < D // 2 - 1 else 0",
    "x[d - 1] if d % 2 == 1 and d > 2 else 0",
    "x[d - 3] if d % 2 == 1 and d > 2 else 0",
    "x[d - 1] if d % 3 == 1 or d % 3 == 2 else 0",
    "x[d - 1] if d % 3 == 1 or d > 4 else 0",
    "x[d - 1] if d == 0 or d == 2 else 0",
    "(x[d - 3] if d % 2 == 1 else 0) if d >= 2 else 0",
    "x[d - 1] if d % 2 == 1 else (x[d - 2] if d > 0 else x[d])",
    "x[2 * d + 1] if 2 * d + 1 < D else x[d // 2]",
    "x[2 * d] if d < D - d else 0",
    "x[D - 1 - 2 * d] if 2 * d <= D - 1 else 0",
    "x[d - 2] if min(d, 3) >= 2 else 0",
    "x[d + 2] if max(d, 1) < D - 2 else 0",
    "x[d - 2] if abs(d - 3) <= 1 else 0",
    "x[clamp(d, 1, 3) - 1] if D > 2 else 0",
    "x[d + 1 - 2 * (d % 2)]",
    "x[d // 2 * 2]",
    "x[d // 2 * 2 + 1]",
    "x[d - d % 4]",
    "x[d - d % 4 + (d + 1) % 4]",
    "x[(d + D // 2) % D]",
    "x[d // (D // 2) * (D // 2)]",
    "x[d + 1] if (d % 2 == 0) == (d % 4 < 2) and d % 2 == 0 and d < D - 1 else 0",
    "x[d - 1] if (d > 0) & (d % 2 == 1) else 0",
    "x[d * d] if d < 2 and D > 1 else 0",
    "x[d + 1] if d + 1 < D and d % 2 == 0 or d + 3 < D else 0",
    "pad(x[d - 1], 0) + (x[d - 1] if d % 2 == 1 else 0)",
    "x[d - 5] if d % 2 == 1 and d % 3 == 2 else 0",
    "x[d - 1] if 3 * d % 2 == 1 else 0",
    "x[d - 1] if d % 2 == D % 2 and D % 2 == 1 else 0",
    "x[d - 1] if d % (D // 2) != 0 else 0",
    "x[d - 1] if min(d % 3, 1) == 1 else 0",
    "x[d - (1 if d % 2 == 1 else 0)]",
    "x[d // 2 + D // 2] if D % 2 == 0 else 0",
    "x[d % 3 * (D // 3) + d // 3] if D % 3 == 0 else 0",
    "x[(D * d + D - 1) // D]",
]


def branches(text: str) -> list[tuple[str, list[tuple[str, bool]]]]:
    """The subscripts that are not padded, with the conditions around them."""
    found = []

    def visit(e: ast.Expr, around: list) -> None:
        match e:
            case ast.Access(subscripts=(subscript,)):
                found.append((subscript, around))
            case ast.Pad(value=value):
                visit(value, around)
            case ast.Conditional(condition=c, then=then, otherwise=otherwise):
                visit(then, [*around, (c, True)])
                visit(otherwise, [*around, (c, False)])
            case _:
                for child in ast.children(e):
                    visit(child, around)

    visit(parsed(text), [])
    return found


def accepted(text: str, **sizes: int) -> bool:
    program = parse(Source("<test>", text))
    assert check(program) == [], "nothing is refused before the sizes are known"
    try:
        specialise(program, None, None, sizes)
        return True
    except TileError as error:
        assert "reaches outside" in str(error) and "?" not in error.diagnostics[0].message
        return False


@pytest.mark.parametrize("body", GUARDED)
def test_a_guarded_access_is_accepted_just_where_it_is_inside(body):
    """For every size up to 9: accepted if each access is inside for all values of the index that its conditions leave."""
    text = f"op f(x: f32[D]) -> (y: f32[D]) {{ y[d] = {body} }}"
    seen = set()
    for size in range(10):
        inside = all(
            0 <= value(subscript, {"d": d, "D": size}) < size
            for subscript, around in branches(body) for d in range(size)
            if all(bool(value(c, {"d": d, "D": size})) is holds for c, holds in around)
        )  # fmt: skip
        checked = "clamp" in body or "d * d" in body or "(1 if" in body  # by each call, where it is not proved
        assert accepted(text, D=size) is (inside or checked)
        seen.add(inside)
    assert True in seen


def test_drawn_accesses_are_accepted_where_they_are_inside():
    """Drawn subscripts under drawn conditions, of a tensor that ends behind the greatest value, and of one that ends at it."""
    rng, found = random.Random(7), set()
    for n in range(24):
        subscript = of_quotients(rng) if n % 5 == 0 else expression(rng, rng.randint(1, 3))
        around = [(condition(rng, rng.randint(0, 1)), rng.random() < 0.6) for _ in range(rng.randint(0, 2))]
        size, body = rng.randint(1, 8), f"x[{subscript}]"
        for c, holds in around:
            body = f"({body} if {c} else 0)" if holds else f"(0 if {c} else {body})"
        points = [{"i": i, "j": j, "N": size} for i, j in product(range(size), range(3))]
        values = [
            value(parsed(subscript), p) for p in points if all(bool(value(parsed(c), p)) is holds for c, holds in around)
        ]
        chosen = any(word in subscript for word in ("min", "max", "abs", "clamp", "if"))  # then it is checked by each call
        for extent in (max(0, *values, 0) + 1, max(0, *values, 0)):
            inside = all(0 <= v < extent for v in values)
            text = f"op f(x: f32[X]) -> (y: f32[N, 3]) {{ y[i, j] = {body} where i in 0:N, j in 0:3 }}"
            assert accepted(text, N=size, X=extent) is (inside or chosen), (text, size, extent)
            found.add((inside, chosen))
    assert len(found) == 4


BLOCKS = {  # programs with sizes at which they are inside, and at which not
    "a group of channels": (
        "op f(x: f32[N, C], m: f32[N, 4]) -> (y: f32[N, C]) { y[n, c] = x[n, c] - m[n, c // (C // 4)] }",
        [dict(N=2, C=c) for c in (4, 8, 64)], [dict(N=2, C=c) for c in (5, 6, 9)],
    ),
    "the quotient is a product": (
        "op f(s: f32[4], b: f32[C]) -> (y: f32[C]) { y[c] = b[c] * s[c // ((C + 3) // 4)] }",
        [dict(C=c) for c in (1, 4, 5, 6, 8, 64)], [],
    ),
    "a remainder by a quotient": (
        "op f(s: f32[4], b: f32[C]) -> (y: f32[C]) { y[c] = b[c] * s[c % (C // 2)] }",
        [dict(C=c) for c in (1, 2, 7, 8, 9)], [dict(C=10)],
    ),
    "a remainder by a difference": (
        "op f(s: f32[4], b: f32[C]) -> (y: f32[C]) { y[c] = b[c] * s[c % (C - 4)] }",
        [dict(C=c) for c in (4, 5, 8)], [dict(C=9)],
    ),
    "a quotient of a quotient": (
        "op f(s: f32[2], b: f32[C]) -> (y: f32[C]) { y[c] = b[c] * s[c // (C // 4) // 2] }",
        [dict(C=c) for c in (4, 8, 12)], [dict(C=7)],
    ),
    "two quotients": (
        "op f(m: f32[4, 2], b: f32[C, D]) -> (y: f32[C, D]) { y[c, d] = b[c, d] * m[c // (C // 4), d // (D // 2)] }",
        [dict(C=8, D=2), dict(C=4, D=6)], [dict(C=8, D=3), dict(C=5, D=2)],
    ),
    "of a size that another tensor has": (
        "op f(s: f32[4], b: f32[C], d: f32[K]) -> (y: f32[C]) { y[c] = b[c] * s[c // K] + d[0] }",
        [dict(C=8, K=2), dict(C=7, K=2)], [dict(C=9, K=2)],
    ),
    "a remainder by a remainder": (
        "op f(s: f32[4], b: f32[C]) -> (y: f32[C]) { y[c] = b[c] * s[c % (C % 5)] }",
        [dict(C=c) for c in (1, 4, 5, 8)], [],
    ),
    "eighths": (
        "op f(s: f32[8], b: f32[C]) -> (y: f32[C]) { y[c] = b[c] * s[c * 8 // C] }", [dict(C=c) for c in (0, 1, 3, 8, 13)], [],
    ),
    "halves, in two": (
        "op f(s: f32[4], b: f32[C]) -> (y: f32[C]) { y[c] = b[c] * s[c // (C // 2) * 2 + c % 2] }",
        [dict(C=c) for c in (0, 1, 2, 4, 6)], [dict(C=c) for c in (3, 5)],
    ),
    "the next of a group": (
        "op f(x: f32[C], g: f32[G]) -> (y: f32[C]) { y[c] = x[c // G * G + (c % G + 1) % G] * g[0] }",
        [dict(C=8, G=4), dict(C=9, G=3)], [dict(C=9, G=4), dict(C=7, G=3)],
    ),
    "of blocks": (
        "op f(x: f32[M, K]) -> (s: f32[M, K // 16]) { s[m, g] = max[j in 0:16](abs(x[m, g * 16 + j])) }",
        [dict(M=2, K=k) for k in (0, 15, 16, 33)], [],
    ),
    "of blocks, read back": (
        "op f(x: f32[M, K], s: f32[M, K // 16]) -> (y: f32[M, K]) { y[m, k] = x[m, k] / s[m, k // 16] }",
        [dict(M=2, K=k) for k in (16, 32)], [dict(M=2, K=17)],
    ),
    "a quotient of a sum with its own quotient": (
        "op f(x: f32[K], b: f32[C]) -> (y: f32[C]) { y[c] = b[c] * x[(c + 3 * (c // 3)) // 3] }",
        [dict(K=5, C=9), dict(K=1, C=3), dict(K=3, C=6)], [dict(K=3, C=9), dict(K=4, C=9), dict(K=2, C=6)],
    ),
    "a range of a quotient": (
        "op f(x: f32[C]) -> (y: f32[1]) { y[i] = sum[c in 0:C // 2](x[2 * c + 1]) }",
        [dict(C=c) for c in (0, 1, 2, 7)], [],
    ),
    "a range from a size": (
        "op f(x: f32[C]) -> (y: f32) { y = sum[c in 2:C](x[c - 2] if c % 2 == 0 else x[c - 3]) }",
        [dict(C=c) for c in (2, 3, 8)], [],
    ),
    "a condition around a sum": (
        "op f(x: f32[C]) -> (y: f32[C]) { y[c] = sum[k in 0:2](x[c - k]) if c % 2 == 1 else 0 }",
        [dict(C=c) for c in (1, 2, 7)], [],
    ),
    "a condition on another index of the name": (
        "op f(x: f32[C]) -> (y: f32[C]) { y[c] = sum[c in 0:C](x[c - 1]) if c % 2 == 1 else 0 }",
        [dict(C=0)], [dict(C=c) for c in (2, 3)],
    ),
    "a condition by a function": (
        "def odd(n) { return n % 2 == 1 }\n"
        "op f(x: f32[C]) -> (y: f32[C]) { y[c] = x[c - 1] if odd(c) else x[c] }",
        [dict(C=c) for c in (1, 2, 7)], [],
    ),
    "two indices": (
        "op f(x: f32[A], y: f32[B]) -> (z: f32[A, B]) { z[a, b] = x[a - b] + y[b] if a >= b else 0 }",
        [dict(A=3, B=5), dict(A=5, B=3)], [],
    ),
    "halves of a head": (
        "op f(x: f32[D]) -> (y: f32[D]) { y[d] = -x[d + D // 2] if d < D // 2 else x[d - D // 2] }",
        [dict(D=d) for d in (1, 2, 7, 8)], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_quotients_by_sizes_are_decided_when_the_sizes_are_known(name):
    text, right, wrong = BLOCKS[name]
    assert all(accepted(text, **sizes) for sizes in right)
    assert not any(accepted(text, **sizes) for sizes in wrong)


def guards(body: str, **sizes: Term) -> list[bool]:
    """Whether accesses of y[n] = ... need care, where sizes are terms."""
    program, report = parse(Source("<test>", f"op f(x: f32[N], s: f32[G]) -> (y: f32[N]) {{ y[n] = {body} }}")), Report()
    (op,), shapes = program.ops, {"x": sizes["N"], "s": sizes["G"]}
    inputs = {t.name: TensorInfo(t.name, t.dtype, (shapes[t.name],), t.span) for t in op.inputs}
    equations = Elaborator(op, load(program, report), inputs, sizes, report, decided=False).run()
    assert not report.diagnostics
    return [e.guarded for e in ast.traverse(equations[-1].value) if isinstance(e, ast.Access)]


def test_proofs_hold_for_all_sizes_of_a_range():
    """For each size of 8, 16, ... 8192, say, and for no more sizes than it is true of."""
    bodies = {
        "x[n // 8 * 8 + 7]": (8, 1), "x[n // 8 * 8 + n % 8 // 2]": (1, 1), "x[n] * s[n // (N // 4)]": (4, 4),
        "s[n * 8 // N]": (1, 8), "x[n - n % 16 + 15]": (16, 1), "s[n // 2048]": (1, 4), "sum[k in 0:N // 8](x[8 * k + 7])": (1, 1),
    }  # fmt: skip
    for body, (multiple, groups) in bodies.items():
        assert not any(guards(body, N=symbol("N", multiple, 8192, multiple=multiple), G=term(groups))), body
        if multiple > 1:
            assert any(guards(body, N=symbol("N", 1, 8192), G=term(groups))), body
    assert any(guards("s[n // 2048]", N=symbol("N", 1, 8193), G=term(4)))


VALUES = [
    "op g(x: f32[N, D]) -> (y: f32[N, D]) { y[n, d] = x[n, d - 1] if d % 2 == 1 else -x[n, d + 1] }",
    "op g(x: f32[N, D]) -> (y: f32[N, D]) { y[n, d] = x[n, d + 1 - 2 * (d % 2)] where d in 0:D }",
    "op g(x: f32[N, D]) -> (y: f32[N, D]) { y[n, d] = x[n, d // (D // 4)] * 2 }",
    "op g(x: f32[N, D]) -> (y: f32[N, D]) { y[n, d] = sum[k in 0:3](x[n, d - k] if d % 4 >= 2 else 1) }",
]


@pytest.mark.parametrize("text", VALUES)
def test_accepted_programs_are_right(text):
    x = np.arange(24, dtype=np.float32).reshape(3, 8) + 1
    n, d = np.indices(x.shape)
    expected = [
        np.where(d % 2 == 1, x[n, np.maximum(d - 1, 0)], -x[n, np.minimum(d + 1, 7)]),
        x[n, d ^ 1],
        2 * x[n, d // 2],
        np.where(d % 4 >= 2, x[n, d] + x[n, d - 1] + x[n, d - 2], 3),
    ][VALUES.index(text)]
    for found in (tilec.compile(text)(x), tilec.reference(text)(x), tilec.interpret(text, "map", x, target="sm_90a")):
        assert np.array_equal(as_list(found)[0], expected)


def test_a_message_has_the_values_that_the_conditions_leave():
    with pytest.raises(TileError) as raised:
        text = "op f(x: f32[D]) -> (y: f32[D]) { y[d] = x[d - 1] if d % 2 == 1 else x[d + 1] }"
        specialise(read(Source("<test>", text)), None, None, {"D": 7})
    (d,) = raised.value.diagnostics
    assert d.message == "`x[d + 1]` reaches outside: `d + 1` takes the values 1 to 7, and dimension 0 of `x` has size 7"


@pytest.mark.parametrize("body", ["x[i - 1] if b[i] else 0", "x[i - 1] if min(b[i] + 1.0, 2.0) > 1 else 0"])
def test_a_condition_on_data_guards_nothing(body):
    text = f"op f(x: f32[N], b: {'bool' if 'min' not in body else 'f32'}[N]) -> (y: f32[N]) {{ y[i] = {body} }}"
    with pytest.raises(TileError, match="takes the values -1 to N - 2"):
        read(Source("<test>", text))


UNEQUAL = " and ".join(f"i != {n}" for n in range(3, 15, 2))
MANY = [  # conditions of many alternatives, around x[i + 1] with 16 elements
    f"{UNEQUAL} and i % 16 != 15",
    f"i % 16 != 15 and {UNEQUAL}",
    f"not ({UNEQUAL.replace('!=', '==').replace('and', 'or')} or i % 16 == 15)",
    "(i != 3) & (i != 5) & (i != 7) & (i != 9) & (i != 11) & (i != 13) & (i % 16 != 15)",
    "~((i == 3) | (i == 5) | (i == 7) | (i == 9) | (i == 11) | (i == 13) | (i % 16 == 15))",
    f"({UNEQUAL} and i % 16 != 15) or i == 4",
    f"({UNEQUAL} and i % 16 != 15) == (i < 20)",
    " and ".join(f"(i + {n}) % 3 != i % {n}" for n in range(4, 8)) + " and i < 15",
    " and ".join(f"(i < {n} or i > {n})" for n in range(14)) + " and i <= 14",
    "(" + " or ".join(f"i == {n}" for n in range(80)) + ") and i < 15",
    "min(i, 1 + j, 2 + j, 3 + j, 4 + j) != 7 and abs(i - j) != 3 and abs(i - 8) + abs(i - 7) + abs(i - 3) != 4 and i < 15",
]


@pytest.mark.parametrize("around", MANY)
def test_many_conditions_do_not_hide_the_one_that_decides(around):
    text = f"op f(x: f32[D]) -> (y: f32[16, 2]) {{ y[i, j] = x[i + 1] if {around} else 0 }}"
    condition = parsed(around)
    most = max(i for i, j in product(range(16), range(2)) if value(condition, {"i": i, "j": j}))
    assert accepted(text, D=most + 2) and not accepted(text, D=most + 1)


def test_conditions_beyond_the_limit_are_reported_as_too_many():
    indices, sizes = "abcdefgh", ", ".join(["9"] * 8)
    unequal = " and ".join(f"{i} != 4" for i in indices)
    head = f"op f(z: f32[D]) -> (y: f32[{sizes}]) {{ y[{', '.join(indices)}]"
    with pytest.raises(TileError, match=r"may reach outside: the conditions are too many to be weighed\. .* has size 8"):
        text = f"{head} = z[h] if {unequal} and (h < 8 and a < 5 or h < 7) else 0 }}"
        specialise(read(Source("<test>", text)), None, None, {"D": 8})
    assert accepted(f"{head} = z[h] if {unequal} and h % 9 != 8 else 0 }}", D=8)
    assert accepted(f"{head} = (z[h] if h < 8 else 0) if {unequal} else 0 }}", D=8)
