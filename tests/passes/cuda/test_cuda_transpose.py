"""Transposes of narrow elements go through workgroup memory by vectors, also of tiles that are cut."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_within
from tools.emulation import run_printed
from tools.lowering import lowered

from tilec.semantics.interpreter import interpret

CASES = {
    "whole tiles": ("op f(x: {t}[M, N]) -> (y: {t}[N, M]) {{ y[j, i] = x[i, j] }}", (128, 256)),
    "cut tiles": ("op f(x: {t}[M, N]) -> (y: {t}[N, M]) {{ y[j, i] = x[i, j] }}", (200, 136)),
    "small tiles": ("op f(x: {t}[M, N]) -> (y: {t}[N, M]) {{ y[j, i] = x[i, j] * 2 }}", (72, 64)),
    "a dimension beside": ("op f(x: {t}[B, M, N]) -> (y: {t}[N, B, M]) {{ y[j, b, i] = x[b, i, j] }}", (2, 64, 136)),
    "outermost first": ("op f(x: {t}[B, M, N]) -> (y: {t}[N, M, B]) {{ y[j, i, b] = x[b, i, j] }}", (72, 3, 128)),
}


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("name", CASES)
def test_transposed_by_vectors(name, kind, rng):
    text, shape = CASES[name]
    source = text.format(t=kind)
    x = rng.normal(0, 1, shape).astype(ml_dtypes.bfloat16 if kind == "bf16" else np.float16)
    special, result = lowered(source, None, {"x": x})
    assert f"shared_load_{kind}x8" in result.emitted.module and f" store_{kind}x8(" in result.emitted.module
    outs, failed = run_printed(special, result, [x])
    assert not any(failed)
    assert_within(source, {"x": x}, outs, kind="cuda")
    assert_within(source, {"x": x}, list(interpret(result.texts["map"], {"x": x}).values()), kind="cuda")


def test_one_transposed_and_one_not(rng):
    """A sum with a tensor that lies as the result does; dimensions that vectors do not divide move by words, or elements."""
    source = "op f(x: bf16[M, N], z: bf16[N, M]) -> (y: bf16[M, N]) { y[i, j] = x[i, j] + z[j, i] }"
    for m, n in ((136, 72), (70, 66), (67, 65)):
        inputs = {
            "x": rng.normal(0, 1, (m, n)).astype(ml_dtypes.bfloat16),
            "z": rng.normal(0, 1, (n, m)).astype(ml_dtypes.bfloat16),
        }
        special, result = lowered(source, None, inputs)
        outs, failed = run_printed(special, result, inputs)
        assert not any(failed)
        assert_within(source, inputs, outs, kind="cuda")
        assert ("shared_load_bf16x8" in result.emitted.module) == (m % 8 == n % 8 == 0)
