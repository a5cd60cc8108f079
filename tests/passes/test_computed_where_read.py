"""Elements at computed subscripts that are computed where a reduction reads them, as a pool whose windows lie side by side."""

import numpy as np
import pytest
from conftest import assert_within
from tools.emulation import run_printed
from tools.lowering import lowered

from tilec.semantics.interpreter import interpret

STAGES = ("simplify", "plan", "fuse", "tile", "bufferize", "stage", "map")
HEAD = "op f(x: f32[8, 12], z: f32[8, 12], g: f32[8]) -> "
THERE = {
    "a pool": "(y: f32[8, 6]) { t[n, i] = tanh(x[n, i] * g[n])  y[n, i] = max[r in 0:2](t[n, 2 * i + r]) where i in 0:6 }",
    "of two tensors, by places": """(y: f32[8, 6]) {
        t[n, i] = x[n, i] * i + z[n, i] * n
        y[n, i] = sum[r in 0:2](t[n, 2 * i + r]) where i in 0:6
    }""",
    "of several operations": """(y: f32[8, 4]) {
        t[n, i] = exp(x[n, i])
        u[n, i] = t[n, i] * g[n] + 1
        y[n, i] = max[r in 0:3](u[n, 3 * i + r]) where i in 0:4
    }""",
    "of a norm": """(y: f32[8, 6]) {
        m[n] = mean[i](x[n, i])
        t[n, i] = (x[n, i] - m[n]) * g[n]
        y[n, i] = max[r in 0:2](t[n, 2 * i + r]) where i in 0:6
    }""",
}
STORED = {
    "the other way round": "(y: f32[8, 12]) { t[n, i] = x[n, i] * g[n]  y[n, i] = exp(t[n, 11 - i]) }",
    "transposed, one of two": "(y: f32[6, 8]) { t[i, n] = x[n, i] * g[n]  y[i, n] = -t[2 * i + 1, n] where i in 0:6 }",
    "beside a border": "(y: f32[8, 12]) { t[n, i] = exp(x[n, i])  y[n, i] = 2 * pad(t[n, i - 1], 0) }",
    "windows that overlap": "(y: f32[8, 5]) { t[n, i] = exp(x[n, i])  y[n, i] = max[r in 0:4](t[n, 2 * i + r]) where i in 0:5 }",
    "read by two": """(y: f32[8, 6], u: f32[8, 6]) {
        t[n, i] = exp(x[n, i])
        y[n, i] = t[n, 2 * i] where i in 0:6
        u[n, i] = t[n, 2 * i + 1] where i in 0:6
    }""",
    "returned": "(y: f32[8, 6], t: f32[8, 12]) { t[n, i] = exp(x[n, i])  y[n, i] = t[n, 2 * i] where i in 0:6 }",
    "of a sum's result": """(y: f32[8, 4]) {
        s[n, m] = sum[i](x[n, i] * z[m, i])
        t[n, m] = exp(s[n, m])
        y[n, m] = max[r in 0:2](t[n, 2 * m + r]) where m in 0:4
    }""",
    "a factor": "(y: f32[8, 8]) { t[n, i] = exp(x[n, i])  y[n, m] = sum[i in 0:6](t[n, 2 * i] * z[m, i]) }",
}


@pytest.mark.parametrize("name", [*THERE, *STORED])
@pytest.mark.parametrize("target", ["h200", "cpu"])
def test_values(name, target, rng):
    text, kind = HEAD + (THERE | STORED)[name], "cuda" if target == "h200" else "cpu"
    inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (8, 12)), ("z", (8, 12)), ("g", (8,)))}
    special, result = lowered(text, None, inputs, target=target, texts=True)
    assert ('"t"' in result.texts["simplify"]) == (name in STORED)
    for stage in STAGES:
        assert_within(text, inputs, list(interpret(result.texts[stage], inputs).values()), kind=kind)
    if target == "h200" and name in THERE:
        outputs, failed = run_printed(special, result, inputs)
        assert not any(failed)
        assert_within(text, inputs, outputs, kind=kind)
