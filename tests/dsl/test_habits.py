"""What other languages write: each program of `golden/habits.txt` gets messages with place, cause and the text as it is meant.

The lines of a program begin with `| `; its messages stand below. `TILEC_UPDATE_GOLDEN=1 pytest tests/dsl/test_habits.py` writes the
messages anew, to be read in the diff.
"""

import os

import numpy as np
import pytest
from tools import TESTS

import tilec
from tilec.core.diagnostics import CallError, Source, TileError
from tilec.dsl.mistakes import read
from tilec.dsl.parse import parse
from tilec.dsl.short_doubts import doubts

GOLDEN = TESTS / "golden" / "habits.txt"
BLOCKS = GOLDEN.read_text().strip().split("\n\n")


def program(block: str) -> str:
    return "\n".join(line[2:] for line in block.splitlines() if line.startswith("| "))


def reported(text: str) -> str:
    with pytest.raises(TileError) as raised:
        read(Source("<test>", text))
    lines = []
    for d in raised.value.diagnostics:
        at = text[d.span.start : d.span.end].replace("\n", " ")
        lines += [f"{d.span.line}:{d.span.column} «{at}» {d.message}", *([f"    hint: {d.hint}"] if d.hint else [])]
    return "\n".join(lines)


@pytest.mark.parametrize("block", BLOCKS, ids=[program(b).replace("\n", " ")[-60:] for b in BLOCKS])
def test_messages(block):
    if not os.environ.get("TILEC_UPDATE_GOLDEN"):
        assert block == "\n".join([*(f"| {line}" for line in program(block).splitlines()), reported(program(block))])


def test_golden_file():
    if os.environ.get("TILEC_UPDATE_GOLDEN"):
        assert not os.environ.get("CI"), "golden files are not written in CI"
        whole = ("\n".join([*(f"| {line}" for line in program(b).splitlines()), reported(program(b))]) for b in BLOCKS)
        GOLDEN.write_text("\n\n".join(whole) + "\n")


def test_most_mistakes_have_one_message_with_a_hint():
    blocks = [[line for line in b.splitlines() if not line.startswith("| ")] for b in BLOCKS]
    assert sum(len(lines) == 2 and "hint:" in lines[1] for lines in blocks) >= 0.85 * len(blocks)


# ---- what is accepted ------------------------------------------------------------------------------------------------

X = np.arange(1, 5, dtype=np.float32)
ACCEPTED = [
    ("y[i] = pi * x[i]", np.pi * X),
    ("y[i] = e * x[i] - tau", np.e * X - 2 * np.pi),
    ("e = sum[i](x[i])\ny[i] = x[i] / e", X / 10),
    ("op f(x: f32[N]) -> (y: f32[N]) { y[e] = e * x[e] }", np.arange(4) * X),
    ("op f(x: f32[e]) -> (y: f32[e]) { y[i] = e * x[i] }", 4 * X),
    ("def area(r) { return pi * r ** 2 }\ny[i] = area(x[i])", np.pi * X**2),
    ("def twice(pi) { return pi * 2 }\ny[i] = twice(x[i])", 2 * X),
    ("def plus(x) { e = x + 1 return e }\ny[i] = plus(x[i])", X + 1),
    ("y[i] = pow(x[i], 2) + pow(x[i], x[i] / 2)", X**2 + X ** (X / 2)),
    ("def pow(a, b) { return a + b }\ny[i] = pow(x[i], 2)", X + 2),
    ("y[i] = 0x10 * x[i] + 1_000 + 0b11 + 0o17 + 1_0.5_0 + 0xFF_FF", 16 * X + 1000 + 3 + 15 + 10.5 + 0xFFFF),
    ("op f(x: f32[0x4]) -> (y: f32[4]) { y[i] = x[i] where i in 0:0b100 }", X),
    ("y[i] = -inf if x[i] > 2 else 1", np.where(X > 2, -np.inf, 1)),
]


@pytest.mark.parametrize("text, expected", ACCEPTED)
def test_constants_and_numbers(text, expected):
    np.testing.assert_allclose(np.asarray(tilec.reference(text)(X)), expected, rtol=1e-6)


def test_a_constant_keeps_the_digits_of_what_it_meets():
    text = "op f(x: f64[N]) -> (y: f64[N]) { y[i] = pi * x[i] }"
    assert np.array_equal(tilec.reference(text)(X.astype(np.float64)), np.pi * X.astype(np.float64))


def test_an_input_that_is_a_constant_now():
    with pytest.raises(CallError, match=r"`e` is the number 2\.7183, as nothing defines it"):
        tilec.compile("y[i] = e * x[i]")(X, X)
    with pytest.raises(TileError, match=r"`sum\[e\]\(…\)` makes it an index"):
        tilec.compile("y[i] = x[i, e]")(X.reshape(2, 2))


DOUBTS = [
    ("y[i, j] = a[i, k] * b[k, j]", "to sum over it: `y[i, j] = sum[k](a[i, k] * b[k, j])`"),
    ("y = x[i, j]", "to sum over them: `y = sum[i, j](x[i, j])`"),
    ("y[i] = x[i] // comment", "a comment begins with `#`: `# comment`"),
    ("y[i] = x[i] // n", None),
    ("y[i] = x[i] // count\nz[i] = x[i] * count", None),
    ("y[i, j] = sum[k](a[i, k] * b[k, j])", None),
]


@pytest.mark.parametrize("text, hint", DOUBTS)
def test_inputs_that_were_hardly_meant(text, hint):
    found = doubts(parse(Source("<test>", text)).ops[0])
    assert [(d.hint, d.severity) for d in found] == ([] if hint is None else [(hint, "warning")])
    if found:
        with pytest.raises(CallError) as raised:
            tilec.compile(text)(X)
        assert hint in str(raised.value)


def test_paths_without_their_ending(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.tile").write_text("y[i] = 2 * x[i]")
    for path in ("twice", "./twice", str(tmp_path / "twice")):
        with pytest.raises(TileError, match=r"hint: write '.*twice.tile'"):
            tilec.compile(path)
    with pytest.raises(TileError, match=r"'thrice' is neither a program nor the path of a `\.tile` file"):
        tilec.compile("thrice")


# ---- ranges from later equations -------------------------------------------------------------------------------------

LATER = [
    (
        "op f(x: f32[N], w: f32[M]) -> (y: f32[M]) { t[a] = a * 2.0  u[b] = t[b] + 1  y[c] = u[c] * w[c] }",
        lambda x, w: (np.arange(3) * 2 + 1) * w,
    ),
    ("op f(x: f32[N], w: f32[M]) -> (y: f32) { t[a] = a + 1.0  y = sum[b](t[b] * w[b]) }", lambda x, w: np.dot([1, 2, 3], w)),
    ("op f(x: f32[N], w: f32[M]) -> (y: f32) { t[a] = a + 1.0  y = sum[b in 0:2](t[b]) }", lambda x, w: 3),
    (
        "op f(x: f32[N], w: f32[M]) -> (y: f32[M]) { c[k] = sum[i](i32(x[i] == w[k] and k >= 0))  y[k] = cumsum[k](c[k]) }",
        lambda x, w: np.array([1, 2, 3]),
    ),
    ("op f(x: f32[N], w: f32[M]) -> (y: f32[N]) { t[a] = a + 1.0  y[n] = softmax[n](t[n] * 0) }", lambda x, w: np.full(4, 0.25)),
    ("t[a] = a + 1.0\ny[n] = t[n] * x[n]\nz[m] = w[m]", lambda x, w: (np.arange(4) + 1) * x),
]


@pytest.mark.parametrize("text, expected", LATER)
def test_a_range_comes_from_the_equations_that_read_the_name(text, expected):
    w = X[:3]
    found = tilec.reference(text)(X, w)
    np.testing.assert_allclose(found[0] if isinstance(found, tuple | list) else found, expected(X, w), rtol=1e-6)


@pytest.mark.parametrize(
    "body, message",
    [
        ("t[a] = a * 2.0  y[i] = t[i + 1] * x[i]", "the range of `a` is unknown"),
        ("t[a] = a * 2.0  y[i] = x[i] * sum[b in 1:3](t[b])", "the range of `a` is unknown"),
        ("t[a] = a * 2.0  y[i] = x[i] * t[i] + sum[b](t[b] * w[b])", "index `b` runs over sizes that differ: N and M"),
        ("y[i] = x[i] * sum[k](k)", r"write `\[k in 0:…\]` in the reduction"),
    ],
)
def test_a_range_that_nothing_fixes_is_asked_for(body, message):
    with pytest.raises(TileError, match=message):
        read(Source("<test>", f"op f(x: f32[N], w: f32[M]) -> (y: f32[N]) {{ {body} }}"))
