"""Arithmetic of indices that leaves 64 bits: it is data, checked where it is used, and says nothing about indices."""

import numpy as np
import pytest
from conftest import as_list

import tilec
from tilec.core.diagnostics import CallError, TileError
from tilec.core.source import read_source
from tilec.dsl.index_terms import IndexTerms
from tilec.dsl.parse import parse
from tilec.index.facts import NONE
from tilec.index.terms import Term, index, size

WIDE = 2**62
RIGHT = {
    "a hash of an index": "y[i] = t[i * 6364136223846793005 % 7] where i in 0:500",
    "a product that wraps to 0": f"y[i] = t[i * 4 * {WIDE}] where i in 0:40",
    "a guard that holds after wrapping": f"y[i] = t[i % 10] if i * {WIDE} < 10 else -1 where i in 0:40",
    "padded": f"y[i] = pad(t[i * {WIDE}], -1) where i in 0:10",
    "summed": f"y[i] = sum[k in 0:9](t[(i + k) * {WIDE} * 4 + k]) where i in 0:10",
}
OUTSIDE = {
    "guarded by what wraps": f"y[i] = t[i * {WIDE}] if i * {WIDE} < 10 else 0 where i in 0:40",
    "a quotient of what wraps": f"y[i] = t[i * {WIDE} // {WIDE}] where i in 0:4",
    "narrowed": "y[i] = t[i8(i * 100)] where i in 0:3",
    "narrow and too large": "y[i] = t[i32(i) + 5] where i in 0:10",
    "a remainder by what wraps": f"y[i] = t[i % (i * {WIDE} + 7)] where i in 0:20",
}


WAYS = {
    "compiled": lambda text, t: tilec.compile(text)(t),
    "interpreted": lambda text, t: tilec.interpret(text, "build", t),
    "mapped": lambda text, t: tilec.interpret(text, "map", t, target="sm_90a"),
    "reference": lambda text, t: tilec.reference(text)(t),
}


def source(body: str) -> str:
    return f"op f(t: f32[10]) -> (y: f32[{body.split(':')[-1]}]) {{ {body} }}"


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_what_wraps_is_computed_as_it_wraps(body):
    t = np.arange(10, dtype=np.float32)
    expected, *found = (np.asarray(as_list(run(source(body), t))[0]) for run in reversed(WAYS.values()))
    assert all(np.array_equal(expected, f) for f in found)


@pytest.mark.parametrize("body", OUTSIDE.values(), ids=OUTSIDE)
def test_what_wraps_is_checked_where_it_is_used(body):
    for run in WAYS.values():
        with pytest.raises(Exception, match="outside"):
            run(source(body), np.arange(10, dtype=np.float32))


INSIDE = {
    "repeated edges": "y[i] = t[clamp(i - 3, 0, 9)] where i in 0:16",
    "mirrored edges": "y[i] = t[reflect(i - 3, 10)] where i in 0:16",
    "the end": "y[i] = t[min(i * 2 + 1, 9)] where i in 0:10",
    "both": "y[i] = t[max(min(i - 2, 9), abs(i - 5) // 3)] where i in 0:12",
}


@pytest.mark.parametrize("body", INSIDE.values(), ids=INSIDE)
def test_extremes_and_sizes_of_indices_are_proved(body):
    t = np.arange(10, dtype=np.float32)
    expected, *found = (np.asarray(as_list(run(source(body), t))[0]) for run in reversed(WAYS.values()))
    assert all(np.array_equal(expected, f) for f in found)
    assert "cf.assert" not in tilec.compile(source(body), target="cpu").build().stages["build"]


def test_extremes_that_leave_the_tensor_are_checked():
    bodies = ("t[abs(i - 3)] where i in 0:16", "t[max(i, 3)] where i in 0:12", "t[min(i, 20) - 1] where i in 0:5")
    for body in (f"y[i] = {b}" for b in bodies):
        with pytest.raises(CallError, match="outside"):
            tilec.compile(source(body), target="cpu")(np.zeros(10, np.float32))


def test_an_index_that_is_cast_to_its_own_type_is_proved():
    with pytest.raises(TileError, match=r"takes the values 5 to 14"):
        tilec.compile(source("y[i] = t[i64(i) + 5] where i in 0:10"))(np.zeros(10, np.float32))


def read(text: str, **names: Term) -> Term | None:
    (equation,) = parse(read_source(f"op f(x: f32[4]) -> (y: i64[4]) {{ y[j] = {text} }}")).ops[0].body
    return IndexTerms(names).of(equation.value)


@pytest.mark.parametrize("text", [
    "i + 3", "-i", "i - n", "i * n", "i // 3", "-i // n", "i % 7", "i % -7", "i // (n - 12)", "i % (n - 12)", "i64(i)",
    "(i + 5) & n", "(i + 5) ^ n", "(i + 5) | 3", "abs(i)", "min(i, n, 3)", "i // 3 if i > 2 else n", "(i << 2) >> 3",
])  # fmt: skip
def test_the_ranges_of_terms_hold_what_is_computed(text):
    low, high = NONE.bounds(read(text, i=index("i", 10, -5), n=index("n", 14, 11)))
    for i in range(-5, 10):
        for n in (11, 12, 13):
            try:
                assert low <= eval(text, {"i": i, "n": n, "i64": int}) <= high
            except ZeroDivisionError:
                assert low <= 0 <= high


def test_terms_end_where_they_leave_64_bits():
    text = "(j * 4611686018427387904 + 3) // 9"
    assert read(text, j=index("j", 2)) is not None
    assert read(text, j=index("j", 3)) is None
    assert read(text, j=index("j", size("N"))) is not None, "sizes will tell"
    assert read("z", j=index("j", 3)) is None
    assert read("j // 4 * 4611686018427387904 * 2 - j // 4 * 4611686018427387904 * 2", j=index("j", 9)) is None, "a part does"


def test_a_range_beyond_64_bits_is_refused():
    text = "op f(x: f32[N]) -> (y: i64) { y = sum[k in 0:N * N * N](k) }"
    with pytest.raises(CallError, match="runs from 0 to 64000000000000000000, beyond integers of 64 bits"):
        tilec.compile(text)(np.zeros(4_000_000, np.float32))
