"""Calls with JAX's arrays: results are JAX's, and no array of JAX changes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
from tilec.core.diagnostics import CallError

jax = pytest.importorskip("jax")

NARROW = {
    "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "bool": np.bool_,
}  # fmt: skip


@pytest.mark.parametrize("dtype", NARROW)
def test_results_are_of_jax(dtype):
    for shape in ((3, 5), (0, 4), (), (64, 64)):
        x = np.arange(int(np.prod(shape))).reshape(shape).astype(NARROW[dtype])
        sizes, indices = (f"[{', '.join(names[: len(shape)])}]" if shape else "" for names in ("MN", "ij"))
        op = tilec.compile(f"op f(x: {dtype}{sizes}) -> (y: {dtype}{sizes}) {{ y{indices} = x{indices} }}", target="cpu")
        given = jax.numpy.asarray(x)
        for _ in range(3):
            found = op(given)
            assert isinstance(found, jax.Array) and found.dtype == given.dtype and found.shape == shape
            assert found.devices() == given.devices() and np.asarray(found).tobytes() == x.tobytes()


def test_several_results_and_numbers():
    op = tilec.compile("y[i] = x[i] + s\nz = sum[i](x[i])", target="cpu")
    x = jax.numpy.arange(4, dtype=np.float32)
    found = op(x, 2.0)
    assert found._fields == ("y", "z") and all(isinstance(f, jax.Array) for f in found)
    assert found.y.tolist() == [2, 3, 4, 5] and float(found.z) == 6
    scaled = tilec.compile("op f(s: f32, x: f32[N]) -> (y: f32[N]) { y[i] = s * x[i] }", target="cpu")
    assert isinstance(scaled(2.0, x), jax.Array) and scaled(2.0, x).tolist() == [0, 2, 4, 6]


def test_the_first_array_says_the_kind():
    op = tilec.compile("y[i] = a[i] + b[i]", target="cpu")
    x, y = np.ones(3, np.float32), jax.numpy.ones(3)
    assert type(op(x, y)) is np.ndarray and isinstance(op(y, x), jax.Array) and type(op(x, x)) is np.ndarray


def test_a_result_is_ready_for_further_work():
    op = tilec.compile("y[i] = 2 * x[i]", target="cpu")
    x = jax.numpy.arange(1000.0)
    for _ in range(20):
        x = op(jax.jit(lambda v: v / 2 + 1)(x))
    kept = [op(x) for _ in range(50)]  # no result is in another one's memory
    assert all((k == 2 * x).all() for k in kept)


def test_arrays_of_jax_do_not_change():
    op = tilec.compile("y[i] = 2 * x[i]", target="cpu")
    x, out = jax.numpy.ones(3), jax.numpy.zeros(3)
    with pytest.raises(CallError, match="JAX's arrays do not change"):
        op(x, out=out)
    assert out.tolist() == [0, 0, 0]
    host = np.zeros(3, np.float32)
    assert op(x, out=host) is host and host.tolist() == [2, 2, 2]


def test_wide_types_are_those_that_jax_has():
    index = tilec.compile("op f(x: f32[N]) -> (y: i64[N]) { y[i] = i }", target="cpu")
    whole = tilec.compile("op f(x: f32[N]) -> (y: f64[N]) { y[i] = x[i] }", target="cpu")
    x = jax.numpy.ones(3)
    assert index(x).dtype == np.int32 and index(x).tolist() == [0, 1, 2] and whole(x).dtype == np.float32
    large = tilec.compile("op f(x: f32[N]) -> (y: i64[N]) { y[i] = i + (1 << 31) }", target="cpu")
    with pytest.raises(CallError, match="`y` has values that JAX's int32 does not hold"):
        large(x)
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        assert large(x).tolist() == [2**31, 2**31 + 1, 2**31 + 2] and whole(x).dtype == np.float64


def test_a_traced_call_says_what_to_do():
    op = tilec.compile("y[i] = 2 * x[i]", target="cpu")
    x = jax.numpy.ones(3)
    for traced in (jax.jit(op), jax.grad(lambda v: op(v).sum())):
        with pytest.raises(CallError, match=r"tilec\.jax\.op"):
            traced(x)
    called = jax.jit(lambda v: jax.pure_callback(lambda a: op(np.asarray(a)), jax.ShapeDtypeStruct((3,), np.float32), v))
    assert called(x).tolist() == [2, 2, 2]
