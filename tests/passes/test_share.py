"""Equal operations become one, whatever their names."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_within
from tools.lowering import lowered

from tilec.semantics.interpreter import interpret

PROGRAMS = {  # reductions that are left, of those that are written
    "max": ("y: f32[M, N], z: f32[M]", "y[i, j] = softmax[j](x[i, j])  z[i] = logsumexp[j](x[i, j])", ("max", 1)),
    "a result": ("m: f32[M], y: f32[M, N]", "m[i] = max[j](x[i, j])  y[i, j] = softmax[j](x[i, j])", ("max", 1)),
    "a result, later": ("y: f32[M, N], m: f32[M]", "y[i, j] = softmax[j](x[i, j])  m[i] = max[j](x[i, j])", ("max", 1)),
    "two results": ("a: f32[M], b: f32[M]", "a[i] = max[j](x[i, j])  b[i] = max[j](x[i, j])", ("max", 2)),
    "what reads them": (
        "a: f32[M], b: f32[M]",
        "m[i] = max[j](x[i, j])  n[i] = max[j](x[i, j])  a[i] = sum[j](x[i, j] - m[i])  b[i] = 2 * sum[j](x[i, j] - n[i])",
        ("sum", 1),
    ),
    "other numbers": ("a: f32[M], b: f32[M]", "a[i] = sum[j](2 * x[i, j])  b[i] = 1 + sum[j](3 * x[i, j])", ("sum", 2)),
    "other places": (
        "a: f32[M], b: f32[M]", "a[i] = sum[j](x[i, j])  b[i] = 1 + sum[j](x[i, j] * j)", ("sum", 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_equal_operations_are_one(name, target, rng):
    results, body, (reduction, left) = PROGRAMS[name]
    source = f"op f(x: f32[M, N]) -> ({results}) {{ {body} }}"
    inputs = {"x": rng.normal(0, 1, (3, 16)).astype(np.float32)}
    _, result = lowered(source, None, inputs, target=target, texts=True)
    assert result.texts["simplify"].count(f'tilec.reduce = "{reduction}"') == left
    outs = interpret(result.texts["simplify"], inputs)
    assert_within(source, inputs, list(outs.values()), kind="cuda")
