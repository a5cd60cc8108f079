"""Loops that carry more states than a tuple of Python's has elements before it is made from a list: 31 and more."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_within
from tools import cuda_emulator, lowering

import tilec

FORMS = {
    "sums": (31, "y{t}[i] = sum[k](x[i, k] * w[{t}, k])", "y{t}: f32[M]"),
    "maxima": (31, "y{t}[i] = max[k](x[i, k] * {t})", "y{t}: f32[M]"),
    "places": (16, "y{t}[i] = argmax[k](x[i, k] * {t})", "y{t}: i64[M]"),
    "softmax": (31, "m{t}[i] = max[k](x[i, k] * {t})\ny{t}[i] = sum[k](exp(x[i, k] * {t} - m{t}[i]))", "y{t}: f32[M]"),
}


def program(form: str) -> tuple[str, dict[str, np.ndarray]]:
    count, statement, result = FORMS[form]
    results, statements = ([text.format(t=t) for t in range(count)] for text in (result, statement))
    draw = np.random.default_rng(0)
    inputs = {name: draw.standard_normal(shape, np.float32) for name, shape in (("x", (4, 24)), ("w", (count, 24)))}
    return f"op f(x: f32[M, K], w: f32[T, K]) -> ({', '.join(results)}) {{\n" + "\n".join(statements) + "\n}", inputs


@pytest.mark.parametrize("form", FORMS)
def test_on_the_cpu(form):
    text, inputs = program(form)
    assert_within(text, inputs, tilec.compile(text, target="cpu")(**inputs), kind="cpu")


@pytest.mark.slow
def test_on_a_gpu():
    text, inputs = program("sums")
    special, result = lowering.lowered(text, None, inputs)
    outs = [np.zeros([s.value for s in t.shape], t.dtype.numpy) for t in special.outputs]
    assert not any(cuda_emulator.run(result.emitted, list(inputs.values()), outs))
    assert_within(text, inputs, outs, kind="cuda")
