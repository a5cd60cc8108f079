"""Operators on bits: precedence, types, and subscripts made of them."""

import numpy as np
import pytest

import tilec
from tilec.core.diagnostics import TileError
from tilec.dsl.format import format_source


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("x[i] & 1 == 0", "(x[i] & 1) == 0"),
        ("x[i] | 6 ^ 3 & 5 << 1 + 1", "x[i] | (6 ^ (3 & (5 << (1 + 1))))"),
        ("~(x[i]) ** 2", "~(x[i] ** 2)"),
        ("-~(x[i]) >> 2 << 1", "((-(~x[i])) >> 2) << 1"),
        ("x[i] << 2 > 5 and x[i] ^ 1 < 9", "((x[i] << 2) > 5) and ((x[i] ^ 1) < 9)"),
    ],
)
def test_precedence_is_pythons(text, grouped):
    x = np.arange(-20, 20)
    one, other = (tilec.reference(f"y[i] = {t}")(x) for t in (text, grouped))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, [eval(text.replace("x[i]", str(v)).replace("~-", "~ -")) for v in x])


def test_types_follow_the_wider_operand():
    x, z = np.array([3, 200], np.uint8), np.array([-1, 5], np.int16)
    program = "a[i] = x[i] & z[i]; b[i] = x[i] ^ true; c[i] = ~x[i]; d[i] = x[i] << 1; e[i] = (x[i] > 5) ^ true"
    y = tilec.compile(program, target="cpu")(x, z)
    assert [v.dtype for v in y] == [np.int16, np.uint8, np.uint8, np.uint8, bool]
    np.testing.assert_array_equal(y.d, [6, 144])
    np.testing.assert_array_equal(y.c, [252, 55])


@pytest.mark.parametrize("text", ["x[i] & 1", "~x[i]", "1 << x[i]", "x[i] ^ 2", "1.5 | 2"])
def test_floats_have_no_bits(text):
    with pytest.raises(TileError, match="takes whole numbers or bools"):
        tilec.compile(f"op f(x: f32[N]) -> (y: i64[N]) {{ y[i] = {text} }}")


def test_a_power_is_written_otherwise():
    with pytest.raises(TileError, match=r"a power is written `\*\*`"):
        tilec.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] ^ 2 }")


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = x[i >> 1]", "y[i] = x[i & 3]", "y[i] = x[(i & 1) << 2 | i & 1]", "y[i] = x[i + 1 >> 2]",
        "y[i] = x[i << 1] if i << 1 < 8 else 0",
    ],
)
def test_subscripts(body):
    """Those that are quotients, remainders and products are proved inside, others are checked."""
    program = f"op f(x: f32[8]) -> (y: f32[8]) {{ {body} }}"
    x = np.arange(8, dtype=np.float32)
    want = tilec.reference(program)(x)
    for got in (tilec.compile(program, target="cpu")(x), tilec.interpret(program, "map", x, target="sm_90a")):
        np.testing.assert_array_equal(np.asarray(got).reshape(-1), want)
    with pytest.raises(TileError, match="takes the values"):
        tilec.compile("op f(x: f32[8]) -> (y: f32[20]) { y[i] = x[i >> 1] }")


def test_expectations_have_none():
    with pytest.raises(TileError, match="has no operator `&`"):
        tilec.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i]; expect (kernels & 1) == 1 }")


def test_format():
    text = "y[i]=x[i]<<2|~x[ i ]&-1^ ~ 3>>1\n"
    assert format_source(text) == "y[i] = x[i] << 2 | ~x[i] & -1 ^ ~3 >> 1\n"
