"""`tilec.jax.op`: programs as operations of JAX, by themselves, under `jit` and under `vmap`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tilec.core.diagnostics import CallError, TileError

jax = pytest.importorskip("jax")
jnp = jax.numpy

import tilec.jax  # noqa: E402

SOFTMAX = """
op softmax(x: f32[M, N]) -> (y: f32[M, N], s: f32[M]) {
    e[i, j] = exp(x[i, j] - max[k](x[i, k]))
    s[i]    = sum[j](e[i, j])
    y[i, j] = e[i, j] / s[i]
}
"""
X = jnp.arange(12, dtype=jnp.float32).reshape(3, 4) / 7


def test_alone_and_under_jit():
    softmax = tilec.jax.op(SOFTMAX)
    for found in (softmax(X), softmax(x=X), jax.jit(lambda x: softmax(x * 1))(X)):
        assert found._fields == ("y", "s") and all(isinstance(f, jax.Array) for f in found)
        np.testing.assert_allclose(found.y, jax.nn.softmax(X), rtol=1e-6)
    jitted = jax.jit(lambda x: softmax(softmax(x).y + x).s)
    for rows in (1, 3, 2, 3):
        np.testing.assert_allclose(jitted(X[:rows]), softmax(softmax(X[:rows]).y + X[:rows]).s, rtol=1e-6)
    assert softmax(X[:0]).y.shape == (0, 4)


def test_numbers_and_types():
    scale = tilec.jax.op("op scale(a: f32, x: bf16[N], m: bool) -> (y: bf16[N]) { y[i] = a * x[i] if m else x[i] }")
    x = jnp.arange(5, dtype=jnp.bfloat16)
    assert scale(2, x, True).tolist() == [0, 2, 4, 6, 8] and scale(2, x, True).dtype == jnp.bfloat16
    assert jax.jit(lambda a, m: scale(a, x, m))(jnp.float32(3), jnp.bool_(False)).tolist() == x.tolist()
    with pytest.raises(CallError, match="`x` is float32, and its parameter bf16"):
        scale(2, x.astype(jnp.float32), True)
    with pytest.raises(CallError, match="takes 3 arguments"):
        scale(2, x)


def test_vmap_computes_all_at_once():
    product = tilec.jax.op(
        "op mul(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N]) { y[m, n] = sum[k](x[m, k] * w[k, n]) }"
    )
    a, b = (jnp.asarray(np.random.default_rng(0).standard_normal(s), jnp.float32) for s in ((5, 3, 4), (5, 4, 2)))
    for axes, x, w in (
        ((0, 0), a, b),
        ((0, None), a, b[0]),
        ((None, 0), a[0], b),
        ((2, 1), a.transpose(1, 2, 0), b.transpose(1, 0, 2)),
    ):
        found = jax.jit(jax.vmap(product, axes))(x, w)
        np.testing.assert_allclose(found, jax.vmap(jnp.matmul, axes)(x, w), rtol=1e-5, atol=1e-6)
    assert len(product._batched) == 3  # an operator for each choice of inputs
    twice = jax.vmap(jax.vmap(product, (0, None)), (None, 0))(a, b)
    np.testing.assert_allclose(twice, jnp.einsum("bmk,ckn->cbmn", a, b), rtol=1e-5, atol=1e-6)


def test_vmap_without_such_a_program(tmp_path):
    (tmp_path / "lib.tile").write_text("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }")
    (tmp_path / "main.tile").write_text(
        'import "lib.tile"\nop f(x: f32[N], a: f32[N]) -> (y: f32[N]) { t = twice(x)\n y[i] = t[i] + a[i] }'
    )
    op = tilec.jax.op(tmp_path / "main.tile")
    found = jax.vmap(op, (0, None))(X, X[0])
    np.testing.assert_allclose(found, 2 * X + X[0], rtol=1e-6)


def test_errors_reach_the_caller():
    gather = tilec.jax.op("op g(t: f32[N], i: i32[M]) -> (y: f32[M]) { y[m] = t[i[m]] }")
    index = jnp.array([0, 9], jnp.int32)
    with pytest.raises(Exception, match=r"outside"):
        jax.block_until_ready(jax.jit(gather)(X[0], index))
    with pytest.raises(TileError):
        tilec.jax.op("op f(x: f32[N]) -> (y: f32[N]) { y[i] = z[i] }")
    with pytest.raises(CallError, match="a program, not a spelling"):
        tilec.jax.op("ij->ji")
    wide = tilec.jax.op("op w(x: f32[N]) -> (y: f64[N]) { y[i] = x[i] }")
    with pytest.raises(CallError, match="`y` is f64, which JAX has only with 64-bit types"):
        wide(X[0])


def test_from_several_threads():
    softmax = tilec.jax.op(SOFTMAX)
    jitted = jax.jit(lambda x: softmax(x).y)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda n: jitted(X[: 1 + n % 3]), range(40)):
            np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
