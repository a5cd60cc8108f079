"""Rows whose length varies in multiples: wide accesses of threads, and products that read their factors as they are."""

import pytest
from tools.contractions import LINEAR
from tools.varying_kernels import lowered_for, wrong_kernels

from tilec.core.varying import Varies

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


@pytest.mark.parametrize("span", [(2, 16), (17, 128), (129, 256)])
def test_rows_that_may_be_longer_than_a_round_of_threads_are_kept_in_shared_memory(span):
    """One more than the class's numbers: what threads keep of a row has as much memory as the longest takes."""
    text = """op f(x: f32[8, N + 1], m: i64) -> (y: bf16[8, N + 1]) {
        t[i, j]: f32 = x[i, j] * 0.125 + (0.0 if j <= m else -inf)
        y[i, j] = safe_softmax[j](t[i, j])
    }"""
    made = lowered_for(text, {"N": span})
    assert [k.shared for k in made.emitted.kernels] >= [4 * (span[1] + 1)]
    assert not wrong_kernels(text, made, [{"N": n} for n in (span[0], span[0] + 5, span[1] - 1, span[1])])


def test_what_no_block_has_room_for_does_not_vary():
    text = """op f(x: f64[8, N + 1], z: f64[8, N + 1]) -> (y: f64[8, N + 1]) {
        t[i, j] = exp(x[i, j])
        u[i, j] = exp(z[i, j])
        s[i]    = sum[j](t[i, j] * u[i, j])
        v[i, j] = sin(t[i, j] / s[i])
        w[i, j] = cos(u[i, j] / s[i])
        y[i, j] = v[i, j] * w[i, j] / sum[k](v[i, k] * w[i, k])
    }"""
    with pytest.raises(Varies, match="bytes of shared memory"):
        lowered_for(text, {"N": (1025, 16384)})
