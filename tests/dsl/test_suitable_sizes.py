"""Sizes that a program's divisors allow: found for `verify`, and named in messages."""

import pytest

from tilec.core.diagnostics import Source, TileError
from tilec.dsl.check_sizes import size_names
from tilec.dsl.mistakes import read
from tilec.dsl.specialise import accepted_sizes, specialise

PRIMES = (5, 7, 3, 11)
PROGRAMS = {  # a program, the sizes found near primes, and those near 1
    "blocks of 16": (
        "(x: f32[M, K]) -> (s: f32[M, K // 16], y: f32[M, K]) {"
        " s[m, g] = max[j in 0:16](abs(x[m, g * 16 + j])) y[m, k] = x[m, k] / s[m, k // 16] }",
        {"M": 5, "K": 16}, {"M": 1, "K": 16},
    ),
    "pairs": (
        "(x: f32[N, D]) -> (y: f32[N, D]) { y[n, d] = x[n, d - 1] if d % 2 == 1 else -x[n, d + 1] }",
        {"N": 5, "D": 8}, {"N": 1, "D": 2},
    ),
    "three for each": (
        "(x: f32[M], w: f32[M // 3], b: f32[N]) -> (y: f32[N]) { y[n] = w[n] + b[n] + x[3 * n + 2] }",
        {"M": 6, "N": 2}, {"M": 1, "N": 0},
    ),
    "at least three for each": (
        "(x: f32[M], b: f32[N]) -> (y: f32[N]) { y[n] = b[n] + x[3 * n + 2] }", {"M": 6, "N": 2}, {"M": 3, "N": 1},
    ),
    "a chain": (
        "(x: f32[M], a: f32[M // 4], b: f32[M // 4 // 4], c: f32[K]) -> (y: f32[M]) {"
        " y[m] = x[m] + a[m // 4] + b[m // 16] + sum[k](c[k] * b[k]) }",
        {"M": 64, "K": 4}, {"M": 16, "K": 1},
    ),
    "two blocks": (
        "(x: f32[A, B], s: f32[A // 8, B // 32]) -> (y: f32[A, B]) { y[a, b] = x[a, b] * s[a // 8, b // 32] }",
        {"A": 32, "B": 32}, {"A": 32, "B": 32},
    ),
    "equal quotients": (
        "(x: f32[M // 4], w: f32[N // 2]) -> (y: f32[M // 4]) { y[m] = x[m] + w[m] }", {"M": 5, "N": 2}, {"M": 1, "N": 1},
    ),
    "a size by another": ("(x: f32[M], w: f32[N // 2]) -> (y: f32[M]) { y[m] = x[m] + w[m] }", {"M": 4, "N": 8}, {"M": 1, "N": 2}),
    "bits": ("(x: f32[M], s: f32[M // 32]) -> (y: f32[M]) { y[m] = x[m] + s[m >> 5] }", {"M": 32}, {"M": 32}),
    "groups of heads": (
        "(q: f32[H, D], k: f32[G, D]) -> (y: f32[H]) { y[h] = sum[d](q[h, d] * k[h // (H // G), d]) }",
        {"H": 5, "D": 7, "G": 5}, {"H": 1, "D": 1, "G": 1},
    ),
    "six and four": (
        "(x: f32[N], w: f32[N // 6], v: f32[M]) -> (z: f32[N]) { z[i] = x[i] * w[i // 6] + v[i // 4] }",
        {"N": 6, "M": 7}, {"N": 6, "M": 6},
    ),
    "a window": (
        "(x: f32[H]) -> (y: f32[H - 4]) { y[h] = sum[r in 0:5](x[h + r]) }", {"H": 5}, {"H": 4},
    ),
    "any": ("(x: f32[M, N]) -> (y: f32[M]) { y[m] = sum[n](x[m, n]) }", {"M": 5, "N": 7}, {"M": 1, "N": 1}),
    "none": ("(x: f32[N]) -> (z: f32[N]) { z[i] = x[i] if i % 2 == 0 else x[i - 2] }", None, {"N": 1}),
    "a part of a call": (
        "(x: f32[M]) -> (y: f32[M]) { y = h(x) } op h(x: f32[16 * K]) -> (y: f32[16 * K]) { y[i] = x[i] }",
        {"M": 16}, {"M": 16},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_nearest_sizes_that_are_accepted(name):
    text, near_primes, near_one = PROGRAMS[name]
    program = read(Source("<test>", f"op f{text}"))
    names = list(size_names(program.ops[0]))
    for wanted, expected in ((dict(zip(names, PRIMES)), near_primes), (dict.fromkeys(names, 1), near_one)):
        found = accepted_sizes(program, program.ops[0], wanted, {})
        assert found == expected
        if found is not None:
            specialise(program, "f", None, found)


def test_given_sizes_stay():
    program = read(Source("<test>", "op f" + PROGRAMS["two blocks"][0]))
    assert accepted_sizes(program, program.ops[0], {"A": 5, "B": 7}, {"A": 8}) == {"A": 8, "B": 32}
    assert accepted_sizes(program, program.ops[0], {"A": 5, "B": 7}, {"A": 9}) is None


@pytest.mark.parametrize(
    "text, sizes, reported",
    [
        (
            "(x: f32[C], m: f32[4]) -> (y: f32[C]) { y[c] = x[c] - m[c // (C // 4)] }",
            {"C": 6}, "`C` is 6 here, and multiples of 4, such as 8",
        ),
        (PROGRAMS["blocks of 16"][0], {"M": 2, "K": 40}, "`K` is 40 here, and multiples of 16, such as 48"),
        (PROGRAMS["pairs"][0], {"N": 2, "D": 7}, "`D` is 7 here, and multiples of 2, such as 8"),
        (PROGRAMS["a size by another"][0], {"M": 5, "N": 9}, None),
        (PROGRAMS["none"][0], {"N": 6}, None),
    ],
)  # fmt: skip
def test_a_message_names_the_size_that_must_be_a_multiple(text, sizes, reported):
    with pytest.raises(TileError) as raised:
        specialise(read(Source("<test>", f"op f{text}")), None, None, sizes)
    hint = raised.value.diagnostics[0].hint
    assert "accepted" not in hint if reported is None else hint.startswith(f"{reported}, are accepted; else ")
