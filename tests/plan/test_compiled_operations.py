"""Operations of compiled kernels, beside those that the cost model counts."""

import pytest
from tools.cuda_kernels import compiled
from tools.lowering import lowered, planned

from tilec.plan.report.compiled import arithmetic, counts

PTX = """
    wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, p, 1, 1, 0, 1;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1}, {%r2}, {%r3}, {%r1};
    @%p3 ex2.approx.ftz.f32 %f1, %f2;
    fma.rn.f32 %f1, %f2, %f3, %f4;
    max.f32 %f1, %f2, %f3;
    add.s64 %rd1, %rd2, 64;
    $L__BB0_1:
"""


def test_instructions_are_counted_by_unit():
    assert counts(PTX) == {"tensor": 2 * 64 * 128 * 16 / 128 + 2 * 16 * 8 * 16 / 32, "special": 1, "fma": 4}


CAPPED = """op f(q: bf16[H, S, D], k: bf16[H, S, D], v: bf16[H, S, D]) -> (o: bf16[H, S, D]) {
    t[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 8
    p[h, i, j] = softmax[j](20 * tanh(t[h, i, j] / 20) if j <= i else -inf)
    o[h, i, d] = sum[j](p[h, i, j] * v[h, j, d]) using bf16
}"""
GELU = """op f(a: bf16[M, K], b: bf16[K, N]) -> (y: bf16[M, N]) {
    h[m, n] = sum[k](a[m, k] * b[k, n])
    y[m, n] = exp(h[m, n])
}"""


@pytest.mark.parametrize("text, sizes, operations", [
    (CAPPED.replace(" if j <= i else -inf", ""), {"H": 8, "S": 1024, "D": 64}, 4 * 8 * 1024**2 * 64),
    (GELU, {"M": 1024, "N": 1024, "K": 1024}, 2 * 1024**3),
])  # fmt: skip
def test_all_products_are_counted_however_fast_they_are(text, sizes, operations):
    (kernel,) = planned(text, None, sizes).kernels
    assert sum(n for unit, n in kernel.work.flops.items() if unit.startswith("tensor")) == operations
    assert kernel.work.pace


@pytest.mark.slow
@pytest.mark.parametrize("text, sizes, least, most", [
    (CAPPED, {"H": 8, "S": 1024, "D": 64}, 0.8, 1.25),
    (GELU, {"M": 1024, "N": 1024, "K": 1024}, 0.99, 1.01),
])  # fmt: skip
def test_the_model_counts_the_special_functions_of_compiled_kernels(text, sizes, least, most):
    _, result = lowered(text, None, sizes, target="h200")
    (kernel,), ((_, cubin),) = result.plan.kernels, compiled(result.emitted, "sm_90a")
    found = arithmetic(kernel, cubin.ptx)
    assert found is not None and least <= found["special"] / kernel.work.flops["special"] <= most
