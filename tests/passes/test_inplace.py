"""Which results may lie in the memory of an input, and that programs are right when they do."""

import numpy as np
import pytest
from tools import cuda_emulator
from tools.lowering import lowered

import tilec

STEP = """op step(p: f32[M, N], g: f32[M, N], m: f32[M, N], s: f32) -> (q: f32[M, N], n: f32[M, N]) {
  n[i, j] = m[i, j] * 0.9 + g[i, j] * 0.1
  d[i, j] = sqrt(abs(n[i, j])) + s
  q[i, j] = p[i, j] - 0.01 * n[i, j] / d[i, j]
}"""
PROGRAMS = {
    "an optimizer's step": (STEP, {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)}),
    "beside a number that each block computes": (
        "op f(x: f32[M, N], k: f32) -> (y: f32[M, N], n: f32) { n = k + 1  y[i, j] = x[i, j] * n }", {(0, 0)}),
    "of one dimension's results": ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = exp(x[i, j]) }", {(0, 0)}),
    "of kernels that share a launch": (
        "op f(x: f32[M], u: f32[N]) -> (y: f32[M], v: f32[N]) { y[i] = exp(x[i])  v[k] = u[k] * 2 }", {(0, 0), (1, 1)}),
    "at other places": ("op f(x: f32[N, N]) -> (y: f32[N, N]) { y[i, j] = x[i, j] + x[j, i] }", set()),
    "of neighbours": ("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + x[max(i - 1, 0)] }", set()),
    "of rows": ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] / sum[k](x[i, k]) }", set()),
    "not of the input": (
        "op f(x: f32[N], w: f32[N]) -> (y: f32[N], z: f32[N]) { y[i] = w[i] * 2  z[i] = x[i] + w[i] }", {(0, 1), (1, 0), (1, 1)}),
    "read again by a later kernel": (
        "op f(x: f32[M, N]) -> (y: f32[M, N], s: f32[N]) { y[i, j] = exp(x[i, j])  s[j] = sum[i](x[i, j] * x[i, j]) }", None),
    "of another type": ("op f(x: i32[N]) -> (y: f32[N]) { y[i] = f32(x[i]) }", set()),
    "scanned": ("op f(x: f32[N]) -> (y: f32[N]) { y[i] = cumsum[i](x[i]) }", set()),
}  # fmt: skip


def built(text: str, sizes, target: str):
    return tilec.compile(text, target=target, sizes=sizes).build()._last


def allowed(emitted, inputs: int, outputs: int) -> set:
    """Pairs of an output and an input."""
    return {(k, n) for k in range(outputs) for n in range(inputs) if emitted.may_share(n, k)}


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_may_share_memory(name, target):
    text, wanted = PROGRAMS[name]
    found = built(text, {s: n for s, n in (("M", 24), ("N", 40)) if s in text}, target)
    pairs = allowed(found.emitted, len(found.compiled.inputs), len(found.outputs))
    if wanted is not None:
        assert {(k, n) for k, n in pairs if found.outputs[k][2] == found.compiled.inputs[n][2]} == wanted
    else:  # another kernel reads the input, before or after
        assert (1, 0) not in pairs


@pytest.mark.crossed
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (16, 33), (5, 1030), (64, 64)])
@pytest.mark.parametrize("over", [(0, 2), (1, 2), (2, 1), (0, 1)])
def test_steps_in_place_on_the_cpu(shape, over, rng):
    """`over`: the inputs that the results are written over."""
    found = built(STEP, dict(zip("MN", shape)), "cpu")
    p, g, m = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    s, results = np.array(0.5, np.float32), [np.empty(shape, np.float32) for _ in range(2)]
    found.program.launch([a.ctypes.data for a in (p, g, m, s, *results)])
    assert set(enumerate(over)) <= allowed(found.emitted, 4, 2)
    given = [p, g, m, s]
    found.program.launch([a.ctypes.data for a in given] + [given[n].ctypes.data for n in over])
    for n, result in zip(over, results):
        np.testing.assert_array_equal(given[n], result)


@pytest.mark.parametrize("shape", [(3, 7), (2, 66), (9, 32)])
def test_steps_in_place_on_a_gpu(shape, rng):
    """By the emulator."""
    p, g, m = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    s = np.array(0.5, np.float32)
    given = {"p": p, "g": g, "m": m, "s": s}
    _, result = lowered(STEP, None, given, None, "h200")
    apart = [np.empty(shape, np.float32) for _ in range(2)]
    cuda_emulator.run(result.emitted, list(given.values()), apart)
    together = [p.copy(), m.copy()]
    cuda_emulator.run(result.emitted, list(given.values()), together, shared={0: 0, 1: 2})
    for one, other in zip(apart, together):
        np.testing.assert_array_equal(one, other)


def test_the_cache_keeps_what_may_share_memory():
    from tilec.runtime.program import Emitted

    emitted = built(STEP, {"M": 3, "N": 5}, "cpu").emitted
    assert Emitted.from_json(emitted.to_json()) == emitted and emitted.kernels[0].inplace
