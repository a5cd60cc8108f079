"""Gathers whose last subscript moves with the lanes are wide accesses; others stay what they are."""

import re

import numpy as np
import pytest
from conftest import assert_within
from tools import cuda_emulator
from tools.emulation import run_printed
from tools.lowering import lowered

from tilec.semantics.interpreted import interpret_stage

GATHERS = {  # program, the same in NumPy, whether the loads are wide at D = 24
    "rows": ("y[b, d] = t[i[b], d]", lambda i, t: t[i], True),
    "scaled rows": ("y[b, d] = t[i[b], d] * 2 + t[0, d]", lambda i, t: t[i] * 2 + t[0], True),
    "rows of rows": ("y[b, d] = t[i[i[b]], d]", lambda i, t: t[i[i]], True),
    "shifted": ("y[b, d] = pad(t[i[b], d - 1], 0)", lambda i, t: np.pad(t[i], ((0, 0), (1, 0)))[:, :-1], False),
    "places in a row": ("y[b, d] = t[b, i[d % B] % D]", lambda i, t: t[:, i[np.arange(t.shape[1]) % len(i)] % t.shape[1]], False),
    "upside down": ("y[b, d] = t[B - 1 - b, d]", lambda i, t: t[::-1], True),
}  # fmt: skip


@pytest.mark.parametrize("name", GATHERS)
@pytest.mark.parametrize("width", [24, 13, 1])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_gathers(name, width, kind, rng):
    body, expected, wide = GATHERS[name]
    rows = 6
    text = f"op g(i: i32[B], t: {kind}[B, D]) -> (y: {kind}[B, D]) {{ {body} }}"
    from tilec.core.dtypes import DTYPES

    inputs = {
        "i": rng.integers(0, rows, rows).astype(np.int32),
        "t": rng.standard_normal((rows, width)).astype(DTYPES[kind].numpy),
    }
    special, result = lowered(text, None, inputs)
    (out,), failed = run_printed(special, result, inputs)
    assert not any(failed)
    assert_within(text, inputs, out, kind="cuda", expected=expected(inputs["i"], inputs["t"].astype(np.float64)))
    moved = rf"load_{kind}x{16 // DTYPES[kind].bytes}_nc(_where)?\(t"
    assert bool(re.search(moved, result.emitted.module)) == (wide and width == 24)


LATE = {  # what a row's value is beside gathers, the same in NumPy, how many loads come before the reduction
    "one": ("s[b] - t[b, i[b]]", lambda s, i, t: s - t[np.arange(len(i)), i], 1),
    "two": ("s[b] - t[i[b], 0] * t[b, i[b]]", lambda s, i, t: s - t[i, 0] * t[np.arange(len(i)), i], 2),
    "of the sum": ("s[b] + t[b, i32(s[b] * 0) + i[b]]", lambda s, i, t: s + t[np.arange(len(i)), i], 0),
    "of a row": ("s[b] + sum[d](t[i[b], d])", lambda s, i, t: s + t[i].sum(1), 0),
}


LONG = [  # the emulator's 1024 threads walk all of the row
    pytest.param(name, 1100, marks=pytest.mark.slow) if name == "of a row" else (name, 5000) for name in LATE
]


@pytest.mark.parametrize("name, width", [*((name, 24) for name in LATE), *LONG])
def test_what_follows_a_reduction_is_loaded_before_it(name, width, rng):
    """So that nothing waits for it at the end: not what depends on the reduction."""
    body, expected, early = LATE[name]
    text = f"op g(i: i32[B], t: f32[B, D]) -> (y: f32[B]) {{ s[b] = max[d](t[b, d])  y[b] = {body} }}"
    inputs = {"i": rng.integers(0, 3, 3).astype(np.int32), "t": rng.standard_normal((3, width)).astype(np.float32)}
    _, result = lowered(text, None, inputs)
    out = np.zeros(3, np.float32)
    assert not any(cuda_emulator.run(result.emitted, list(inputs.values()), [out]))
    wide = inputs["t"].astype(np.float64)
    assert_within(text, inputs, out, kind="cuda", expected=expected(wide.max(1), inputs["i"], wide))
    before = result.emitted.module.partition("= float32(-inf)")[0]
    assert len(re.findall(r"= load_f32\(", before)) == early


def test_a_gather_outside_is_an_error_wherever_it_is_loaded(rng):
    text = "op g(i: i32[B], t: f32[B, D]) -> (y: f32[B]) { y[b] = max[d](t[b, d]) - t[b, i[b]] }"
    inputs = {"i": np.array([0, 24, 1], np.int32), "t": rng.standard_normal((3, 24)).astype(np.float32)}
    _, result = lowered(text, None, inputs)
    assert any(cuda_emulator.run(result.emitted, list(inputs.values()), [np.zeros(3, np.float32)]))


TURNS = """op f(a: f32[M, N, K], b: f32[M, N, K], c: f32[M, N, K], d: f32[M, N, K]) -> (y: f32[2 * M - 1, 2 * N - 1, K]) {
    y[i, j, k] = 2 * (d[i // 2, j // 2, k] if i % 2 == 1 and j % 2 == 1 else c[i // 2, j // 2, k] if i % 2 == 1 and j % 2 == 0 else
                      b[i // 2, j // 2, k] if i % 2 == 0 and j % 2 == 1 else a[i // 2, j // 2, k])
        where i in 0:2 * M - 1, j in 0:2 * N - 1
}"""


@pytest.mark.parametrize("channels", [1, 3, 8])
def test_of_tensors_that_take_turns_one_is_loaded(channels, rng):
    inputs = [rng.standard_normal((4, 7, channels)).astype(np.float32) for _ in range(4)]
    specialised, result = lowered(TURNS, None, {"M": 4, "N": 7, "K": channels})
    expected = np.empty((7, 13, channels))
    for n, each in enumerate(inputs):
        expected[n // 2 :: 2, n % 2 :: 2] = 2 * each[: 4 - n // 2, : 7 - n % 2]
    np.testing.assert_array_equal(run_printed(specialised, result, inputs)[0][0], expected)
    np.testing.assert_array_equal(interpret_stage(specialised, result.texts, "map", dict(zip("abcd", inputs)))["y"], expected)
    assert len(re.findall(r"\bload_f32\w*\(", result.emitted.module.split("def f")[-1])) == 1
