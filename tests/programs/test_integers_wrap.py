"""Integers wrap around, in all that compiles them: expressions that overflow on purpose, beside Python's integers."""

import operator
import random
from dataclasses import dataclass

import numpy as np
import pytest
from conftest import as_list

import tilec

BITS = {f"{kind}{bits}": bits for bits in (8, 16, 32, 64) for kind in "iu"}
COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


def ends(dtype: str) -> tuple[int, int]:
    bits = BITS[dtype]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype[0] == "i" else (0, (1 << bits) - 1)


def wrapped(dtype: str, value: int) -> int:
    low, _ = ends(dtype)
    return (value - low & (1 << BITS[dtype]) - 1) + low


def power(base: int, exponent: int) -> int:
    """Rounded towards zero where the exponent is negative."""
    if exponent < 0:
        return base**-exponent if base in (1, -1) else 0
    return pow(base, exponent, 1 << 64)


ARITHMETIC = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "**": power, "min": min, "max": max,
    "//": lambda a, b: a // b if b else 0, "%": lambda a, b: a % b if b else 0,
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """An expression: its text, its type, and its value by the values of variables."""

    text: str
    dtype: str
    value: object


def draw(rng: random.Random, depth: int, variables: dict[str, str]) -> Drawn:
    if depth == 0 or rng.random() < 0.15:
        name = rng.choice(list(variables))
        dtype = variables[name]
        if rng.random() < 0.75:
            return Drawn(f"{name}[i]", dtype, operator.itemgetter(name))
        number = rng.choice([0, 1, 3, *ends(dtype), rng.randint(*ends(dtype))])
        return Drawn(f"{dtype}({number})", dtype, lambda _: number)
    kind = rng.choice(["+", "-", "*", "*", "//", "%", "**", "min", "max", "-x", "abs", "if", "cast"])
    a = draw(rng, depth - 1, variables)
    if kind in ("-x", "abs", "cast"):
        dtype = rng.choice(list(BITS)) if kind == "cast" else a.dtype
        text = {"-x": f"(-{a.text})", "abs": f"abs({a.text})", "cast": f"{dtype}({a.text})"}[kind]
        change = {"-x": operator.neg, "abs": abs, "cast": int}[kind]
        return Drawn(text, dtype, lambda e: wrapped(dtype, change(a.value(e))))
    b = draw(rng, depth - 1, variables)
    if kind == "**" and "[i]" not in b.text:  # a negative constant would make it an f32
        b = Drawn(f"{(name := rng.choice(list(variables)))}[i]", variables[name], operator.itemgetter(name))
    dtype = met(a, b)
    if kind == "if":
        c, d = draw(rng, depth - 1, variables), draw(rng, depth - 1, variables)
        test, both = rng.choice(list(COMPARE)), met(c, d)
        holds = lambda e: COMPARE[test](wrapped(both, c.value(e)), wrapped(both, d.value(e)))  # noqa: E731
        text = f"({a.text} if {c.text} {test} {d.text} else {b.text})"
        return Drawn(text, dtype, lambda e: wrapped(dtype, (a if holds(e) else b).value(e)))
    text = f"{kind}({a.text}, {b.text})" if kind in ("min", "max") else f"({a.text} {kind} {b.text})"
    apply = ARITHMETIC[kind]
    return Drawn(text, dtype, lambda e: wrapped(dtype, apply(*(wrapped(dtype, x.value(e)) for x in (a, b)))))


def met(a: Drawn, b: Drawn) -> str:
    """The wider type; the unsigned one of two of a width."""
    return max((a.dtype, b.dtype), key=lambda t: (BITS[t], t[0] == "u"))


def values(rng: random.Random, dtype: str, count: int) -> list[int]:
    low, high = ends(dtype)
    known = [low, low + 1, high, high - 1, 0, 1, max(low, -1)]
    return [rng.choice([*known, rng.randint(low, high), rng.randint(max(low, -20), 20)]) for _ in range(count)]


def array(dtype: str, numbers: list[int]) -> np.ndarray:
    return np.array(numbers, dtype=object).astype(("u" if dtype[0] == "u" else "") + f"int{BITS[dtype]}")


def check(results: list[Drawn], types: dict[str, str], data: dict[str, list[int]]) -> None:
    """One program of all results, beside their values."""
    count = len(next(iter(data.values())))
    inputs = ", ".join(f"{name}: {dtype}[N]" for name, dtype in types.items())
    outputs = ", ".join(f"r{n}: {r.dtype}[N]" for n, r in enumerate(results))
    body = "\n".join(f"r{n}[i] = {r.text}" for n, r in enumerate(results))
    op = tilec.compile(f"op f({inputs}) -> ({outputs}) {{\n{body}\n}}")
    found = op(*(array(types[n], data[n]) for n in types))
    for result, got in zip(results, found if len(results) > 1 else [found]):
        for n in range(count):
            at = {name: numbers[n] for name, numbers in data.items()}
            assert int(got[n]) == result.value(at), (result.text, at)


def drawn(seed: int, count: int) -> None:
    rng = random.Random(seed)
    types = {f"x{n}": rng.choice([*BITS, "i64", "i64", "i64"]) for n in range(4)}
    data = {name: values(rng, dtype, rng.choice([9, 33])) for name, dtype in types.items()}
    shortest = min(map(len, data.values()))
    data = {name: numbers[:shortest] for name, numbers in data.items()}
    try:
        check([draw(rng, rng.choice([2, 3]), types) for _ in range(count)], types, data)
    except tilec.TileError as error:
        assert "division by zero" in str(error) or "negative" in str(error), str(error)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_expressions(seed):
    drawn(seed, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(100, 200), *(pytest.param(n, marks=pytest.mark.whole) for n in range(200, 400))])
def test_more_drawn_expressions(seed):
    drawn(seed, 8)


@pytest.mark.parametrize("dtype", ["i8", "i16", "u16", "u8", "i32", "u32", "i64", "u64"])
def test_powers(dtype):
    low, high = ends(dtype)
    numbers = [0, 1, 2, 3, 5, high, high - 1, low, low + 1, high // 2 + 2, *([-1, -2] if low else [])]
    pairs = [(a, b) for a in numbers for b in numbers]
    value = lambda e: wrapped(dtype, power(e["a"], e["b"]))  # noqa: E731
    used = Drawn("i64(a[i] ** b[i])", "i64", lambda e: wrapped("i64", value(e)))
    chosen = Drawn("a[i] ** b[i] if a[i] > 1 else a[i]", dtype, lambda e: value(e) if e["a"] > 1 else e["a"])
    results = [Drawn("a[i] ** b[i]", dtype, value), used, chosen]
    check(results, {"a": dtype, "b": dtype}, dict(zip("ab", map(list, zip(*pairs)))))


FOUND = """op f(a: i64[N], b: i64[N], u: u32[N]) -> (
    q0: bool[N], q1: bool[N], q2: i64[N], q3: i64[N], q4: bool[N], q5: bool[N], q6: bool[N], q7: i64[N], q8: i64[N],
    q9: i64[N], q10: i64[N], q11: i64[N], q12: i64[N], q13: bool[N], q14: f32[N], q15: i64[N], q16: i64
) {
    q0[i] = a[i] + 1 > a[i]
    q1[i] = a[i] * a[i] >= 0
    q2[i] = a[i] * 3 // 3
    q3[i] = a[i] * 3 % 3
    q4[i] = -a[i] > 0
    q5[i] = a[i] - b[i] < 0
    q6[i] = i64(u[i]) * 3449720151 < 0
    q7[i] = i64(u[i]) * 3449720151 // 4294967296
    q8[i] = abs(i64(u[i]) * i64(u[i]))
    q9[i] = max(i64(u[i]) * 3449720151, 0)
    q10[i] = i * 6364136223846793005 % 7
    q11[i] = a[i] + -9223372036854775808
    q12[i] = cumsum[i](a[i]) * cumprod[i](b[i])
    q13[i] = a[i] ** 2 >= 0
    q14[i] = clamp(f32(clamp(a[i] ** 2, -1048576, 1048576)), -1048576, 1048576)
    s = sum[i](a[i] * a[i]) + prod[i](b[i])
    q15[i] = 1 if s < 0 else 0
    q16 = s
}"""


def test_what_was_found():
    rng = random.Random(5)
    a, b, u = (array(t, values(rng, t, 300)) for t in ("i64", "i64", "u32"))
    b |= 1  # so that their product stays odd
    for got, expected in zip(as_list(tilec.compile(FOUND)(a, b, u)), as_list(tilec.reference(FOUND)(a, b, u))):
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("test", ["< 0.5", ">= 0.5", "< 0.25", "> p"])
def test_random_numbers_next_to_a_constant(test):
    source = f"op f(p: f32, seed: i64) -> (y: bool[N]) {{ y[i] = rand(seed, i) {test} }}"
    numbers = tilec.compile("op f(seed: i64) -> (y: f32[N]) { y[i] = rand(seed, i) }", sizes={"N": 999})(7)
    got = tilec.compile(source, sizes={"N": 999})(0.5, 7)
    assert np.array_equal(got, eval(f"numbers {test}", {"numbers": numbers, "p": 0.5}))


def test_integers_wrap_on_a_gpu():
    """By the instructions: sums, differences and products are made, and compared as what they are."""
    pytest.importorskip("numba_cuda_mlir.cuda")
    from tools.lowering import emitted

    from tilec.runtime.cuda.compile import _to_ptx

    source = """op f(a: i64[N]) -> (y: bool[N], z: i64[N], d: bool[N], w: bool[N]) {
        y[i] = a[i] * a[i] >= 0
        z[i] = a[i] * 3 // 3
        d[i] = abs(a[i]) - 1 < a[i]
        w[i] = a[i] + 1 > a[i]
    }"""
    program = emitted(source, None, {"N": 1000})
    (kernel,) = program.kernels
    ptx = _to_ptx(program.module, kernel.name, "sm_90a", kernel.threads, None, 1)
    assert "abs.s64" in ptx and "mul.hi.s64" in ptx and "9223372036854775807" in ptx
    assert ptx.count("mul.lo.s64") >= 2
