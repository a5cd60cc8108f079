"""Rows whose length varies in multiples: wide accesses of threads, and products that read their factors as they are."""

import pytest
from tools.contractions import LINEAR
from tools.varying_kernels import lowered_for, wrong_kernels

ROWS = [
    ("op f(x: bf16[M, N], b: bf16[N]) -> (y: bf16[M, N]) { y[i, j] = x[i, j] + b[j] }", {"M": 9}, 8),
    ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }", {"M": 5}, 4),
    ("op f(x: f32[M, N]) -> (y: f32[N]) { y[i] = sum[k](x[k, i]) }", {"M": 37}, 4),
    ("op f(x: bf16[N, M]) -> (y: bf16[M, N]) { y[i, j] = x[j, i] }", {"M": 40}, 2),
    ("op f(t: bf16[V, N], i: i32[M]) -> (y: bf16[M, N]) { y[m, j] = t[clamp(i[m], 0, V - 1), j] }", {"M": 7, "V": 9}, 8),
]


@pytest.mark.parametrize(("text", "sizes", "lanes"), ROWS)
def test_threads_move_vectors(text, sizes, lanes):
    made = lowered_for(text, {"N": (24, 128, 8)}, **sizes)
    assert f"x{lanes}" in made.emitted.module
    assert not wrong_kernels(text, made, [{"N": n} for n in (24, 104, 128)], **sizes)


@pytest.mark.parametrize(("name", "fixed"), [("N", {"K": 4096}), ("K", {"N": 4096})])
def test_factors_are_not_copied(name, fixed):
    text, sizes = LINEAR.format(t="bf16", o="bf16"), {"M": 64, **fixed}
    copied, read = (len(lowered_for(text, {name: (2056, 16384, by)}, **sizes).plan.kernels) for by in (1, 8))
    assert read == 1 < copied
