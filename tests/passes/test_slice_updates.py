"""Results that lie in the memory of inputs: a slab at a position that data tell is all that is stored."""

from __future__ import annotations

import numpy as np
import pytest
from tools import cuda_emulator
from tools.lowering import specialised

import tilec
from tilec.core import mlir
from tilec.core.diagnostics import CallError, CheckError
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.semantics.interpreter import interpret

CACHE = """op f(c: f32[2, 3, 40, 8], v: f32[2, 3, 1, 8], p: i64, q: f32[2, 3, 8]) -> (n: f32[2, 3, 40, 8], s: f32[2, 3, 40]) {
  n[b, h, t, d] = 2 * v[b, h, 0, d] if t == p else c[b, h, t, d]
  s[b, h, t] = sum[d](n[b, h, t, d] * q[b, h, d])
}"""
FORMS = {
    "a number": CACHE,
    "a number of a list": CACHE.replace("p: i64", "p: i32[2]").replace("== p", "== p[1]"),
    "from the end": CACHE.replace("== p", "== (p + 40 if p < 0 else p)"),
    "beside another number": CACHE.replace("== p", "== p + 0"),
    "by another statement": CACHE.replace("{", "{\n  z = 2 * p - 1\n", 1).replace("== p", "== (z + 1 + p) // 3"),
    "the first dimension": """op f(c: f32[40, 7], v: f32[7], p: i64, q: f32[7]) -> (n: f32[40, 7], s: f32[40]) {
        n[t, d] = v[d] if t == p else c[t, d]
        s[t] = sum[d](n[t, d] * q[d]) }""",
    "the last dimension": """op f(c: f32[5, 40], v: f32[5], p: i64, q: f32[40]) -> (n: f32[5, 40], s: f32[5]) {
        n[r, t] = v[r] if p == t else c[r, t]
        s[r] = sum[t](n[r, t] * q[t]) }""",
    "of 16 bits": CACHE.replace("c: f32", "c: f16").replace("n: f32", "n: f16"),
    "of bits": CACHE.replace("f32", "i32"),
}  # fmt: skip
WHOLE = {
    "read elsewhere": CACHE.replace("n[b, h, t, d] * q", "c[b, h, t, d] * n[b, h, t, d] * q"),
    "a part": CACHE.replace("t == p", "t >= p"),
    "made of what was there": CACHE.replace("2 * v[b, h, 0, d]", "v[b, h, 0, d] + c[b, h, t, d]"),
    "another value at each position": CACHE.replace("2 * v", "t * v"),
    "another position in each row": CACHE.replace("p: i64", "p: i64[2]").replace("== p", "== p[b]"),
    "elsewhere in what was there": CACHE.replace("else c[b, h, t, d]", "else c[1 - b, h, t, d]"),
    "a computed position": CACHE.replace("{", "{\n  z = sum[d](i64(q[0, 0, d]))", 1).replace("== p", "== p + z"),
}


def lowered(text: str, target: str, donated=((0, 0),)):
    special = specialised(text)
    with mlir.context(), ir.Location.unknown():
        return special, lower(build(special, donated), load(target), locations=False)


def given(special, position: int, rng) -> dict[str, np.ndarray]:
    def of(t):
        shape = [s.value for s in t.shape]
        if t.name == "p":
            return np.full(shape, position, t.dtype.numpy)
        return (rng.standard_normal(shape) * 8).astype(t.dtype.numpy)

    return {t.name: of(t) for t in special.inputs}


def wanted(text: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(tilec.reference(text, rounded=True)(*arrays.values()))


def on_the_cpu(text: str, arrays: dict[str, np.ndarray], donated=((0, 0),)) -> list[np.ndarray]:
    """Results by machine code. What the call is given in place of the input is garbage: it must not be read."""
    found = tilec.compile(text, target="cpu").donated(donated).build()._last
    results = [np.empty(shape, dtype.numpy) for _, dtype, shape in found.outputs]
    own, kept = list(arrays.values()), {}
    for k, n in donated:
        results[k][...], kept[n] = own[n], np.full_like(own[n], 77)
    addresses = [kept.get(n, a).ctypes.data for n, a in enumerate(own)] + [r.ctypes.data for r in results]
    found.program.launch(addresses)
    return results


def emulated(text: str, arrays: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    special, result = lowered(text, "h200")
    outputs = [np.empty([s.value for s in t.shape], t.dtype.numpy) for t in special.outputs]
    outputs[0][...] = arrays["c"]
    failed = cuda_emulator.run(result.emitted, list(arrays.values()), outputs, shared={0: 0})
    return outputs, failed


def assert_equal(found: list[np.ndarray], want: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(found[0], want[0])
    np.testing.assert_allclose(found[1], want[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("position", [0, 17, 39])
@pytest.mark.parametrize("name", FORMS)
def test_one_position_is_stored(name, position, rng):
    arrays = given(specialised(FORMS[name]), position, rng)
    want = wanted(FORMS[name], arrays)
    assert_equal(on_the_cpu(FORMS[name], arrays), want)


@pytest.mark.parametrize("name", FORMS)
def test_one_position_is_stored_on_a_gpu(name, rng):
    """By the emulator."""
    arrays = given(specialised(FORMS[name]), 11, rng)
    found, failed = emulated(FORMS[name], arrays)
    assert not any(failed)
    assert_equal(found, wanted(FORMS[name], arrays))


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("name", FORMS)
def test_nothing_else_moves(name, target):
    """The kernel that stores reads and writes a slab; the input is given to no kernel, and may be the result's memory."""
    special, result = lowered(FORMS[name], target)
    whole = np.prod([s.value for s in special.outputs[0].shape]) * special.outputs[0].dtype.bytes
    (kernel,) = [k for k in result.plan.kernels if k.name == "f_n"]
    assert kernel.work.dram_write * 40 == whole
    assert not result.emitted.reads(0) and result.emitted.may_share(0, 0)


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("name", WHOLE)
def test_other_forms_are_computed_whole(name, target):
    _, result = lowered(WHOLE[name], target)
    assert result.emitted.reads(0)


@pytest.mark.parametrize("name", WHOLE)
def test_other_forms_are_right(name, rng):
    arrays = given(specialised(WHOLE[name]), 5, rng)
    found = tilec.compile(WHOLE[name], target="cpu").donated([(0, 0)]).build()._last
    results = [np.empty(shape, dtype.numpy) for _, dtype, shape in found.outputs]
    found.program.launch([a.ctypes.data for a in (*arrays.values(), *results)])
    assert_equal(results, wanted(WHOLE[name], arrays))


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("stage", ["simplify", "plan", "fuse"])
def test_tensors_are_whole_until_they_are_memory(stage, target, rng):
    special, result = lowered(FORMS["from the end"], target)
    arrays = given(special, -3, rng)
    found = list(interpret(result.texts[stage], arrays).values())
    assert_equal(found, wanted(FORMS["from the end"], arrays))


@pytest.mark.parametrize("position", [-41, 40, 1 << 40])
def test_a_position_outside_fails_a_check(position, rng):
    text = FORMS["from the end"]
    arrays = given(specialised(text), position, rng)
    with pytest.raises(CheckError, match="`n` is written outside"):
        on_the_cpu(text, arrays)
    assert any(emulated(text, arrays)[1])


def test_layers_share_a_kernel(rng):
    text = """op f(c: f32[40, 8], d: f32[40, 8], v: f32[8], w: f32[8], p: i64) -> (n: f32[40, 8], s: f32[40], m: f32[40, 8]) {
        n[t, i] = v[i] if t == p else c[t, i]
        s[t] = sum[i](n[t, i])
        m[t, i] = w[i] if t == p else d[t, i] }"""
    arrays = given(specialised(text), 9, rng)
    found = on_the_cpu(text, arrays, ((0, 0), (2, 1)))
    for one, other in zip(found, wanted(text, arrays)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)
    emitted = lowered(text, "cpu", ((0, 0), (2, 1)))[1].emitted
    assert {"f_n", "f_m"} <= set(emitted.launched) and "f_m" not in {k.name for k in emitted.kernels}


def test_ops_over_inputs_take_no_arrays():
    with pytest.raises(CallError, match="memory of its inputs"):
        tilec.compile(CACHE).donated([(0, 0)])(*[np.zeros(())] * 4)
