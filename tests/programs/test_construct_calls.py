"""Calls of a compiled op: arguments, results, threads, and what is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import assert_close, assert_within, from_torch
from tools.construct_cases import compiled, f32, full, nan, run

from tilec import CallError

NORM = "op norm(x: f32[M, N]) -> (y: f32[M, N], s: f32[M]) { s[i] = sum[j](x[i, j])  y[i, j] = x[i, j] / s[i] }"


def test_several_results_are_a_named_tuple():
    x = np.ones((2, 4), np.float32)
    result = run(NORM, x)
    assert result._fields == ("y", "s") and type(result).__name__ == "norm"
    assert_close(result.s, f32(4, 4))


def test_zero_dimensional_results_and_numbers():
    y = run("op f(a: f32, n: i64) -> (y: f32) { y = a * n }", 2.5, 3)
    assert isinstance(y, np.ndarray) and y.shape == () and y == 7.5
    with pytest.raises(CallError):
        run("op f(a: f32) -> (y: f32) { y = a }", np.zeros(3, np.float32))


def test_out_is_written_whatever_was_in_it(rng):
    x = rng.standard_normal((37, 53)).astype(np.float32)
    out = (np.full_like(x, nan), np.full(37, nan, np.float32))
    result = compiled(NORM)(x, out=out)
    assert result[0] is out[0] and result[1] is out[1]
    assert_within(NORM, [x], out, kind="cpu")


def test_strided_reversed_and_read_only_arrays(rng):
    base = rng.standard_normal((40, 60)).astype(np.float32)
    op = compiled("y[i, j] = x[i, j] * 2")
    for x in (base[::2, ::3], base.T, base[::-1, ::-1], np.broadcast_to(base[:1], (5, 60)), np.asfortranarray(base)):
        x.flags.writeable = False
        assert_close(op(x), 2 * x)
        big = np.full((2 * x.shape[0], 3 * x.shape[1]), nan, np.float32)
        op(x, out=big[1::2, ::3])
        assert_close(big[1::2, ::3], 2 * x)
        assert np.isnan(big[::2]).all() and np.isnan(big[1::2, 1::3]).all()


def test_out_that_does_not_fit_is_refused(rng):
    x = rng.standard_normal((4, 4)).astype(np.float32)
    op = compiled("y[i, j] = x[i, j] * 2")
    frozen = np.zeros_like(x)
    frozen.flags.writeable = False
    for out in (
        np.zeros((4, 5), np.float32),
        np.zeros((4, 4)),
        frozen,
        x,
        x[::-1],
        x.T,
        (x, x),
        np.zeros(16, np.float32),
    ):
        with pytest.raises(CallError):
            op(x, out=out)
    base = np.zeros((4, 8), np.float32)
    base[:, :4] = x
    assert_close(op(base[:, :4], out=base[:, 4:]), 2 * x)  # beside it is not on it
    shared = np.zeros((4, 4), np.float32)
    with pytest.raises(CallError, match="overlap"):
        compiled("y[i, j] = x[i, j] * 2; z[i, j] = x[i, j] * 3")(x, out=(shared, shared))


def test_arguments_that_do_not_fit_are_refused():
    op = compiled(full("y[i, j] = x[i, j]"))
    x = np.zeros((2, 2), np.float32)
    for arguments in ((), (x, x), (x.astype(np.float64),), (x[0],), ("text",), (x.astype(complex),), (None,)):
        with pytest.raises(CallError):
            op(*arguments)
    with pytest.raises(CallError):
        op(x, stream=0)


def test_arguments_by_name():
    op = compiled("op f(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = x[i] - a }")
    x = np.ones(3, np.float32)
    for result in (op(a=0.5, x=x), op(x, a=0.5), op.interpret("map", x, a=0.5), op(x=x, a=0.5, out=np.zeros_like(x))):
        assert_close(result, np.full(3, 0.5))
    for arguments, named, message in (
        ((x,), {"b": 1}, "f has no parameter 'b'"), ((x,), {"x": x}, "given 'x' twice"),
        ((), {"a": 1}, "the argument 'x' of f is missing\nhint: pass x="),
    ):  # fmt: skip
        with pytest.raises(CallError, match=message):
            op(*arguments, **named)


def test_one_specialisation_for_each_shape_and_type():
    op = compiled("y[i] = x[i] + 1")
    for n in (3, 5, 3, 5, 3):
        op(np.zeros(n, np.float32))
    op(np.zeros(3, np.float64))
    assert "compiled for 3 sets of arguments" in repr(op)
    assert "y" in op.kernels[0].source and set(op.stages) >= {"build", "plan", "map"}


def test_sizes_given_to_compile():
    program = "op f(x: f32[N]) -> (y: f32[K]) { y[k] = x[0] * k }"
    assert_close(run(program, f32(2, 9), sizes={"K": 3}), f32(0, 2, 4))
    with pytest.raises(CallError, match="K"):
        run(program, f32(2, 9))


def test_one_op_called_by_many_threads(rng):
    op = compiled(
        "m[i] = max[j](x[i, j])  e[i, j] = exp(x[i, j] - m[i])  t[j] = sum[i](e[i, j])  y[i, j] = e[i, j] / t[j]"
    )
    arrays = [rng.standard_normal((n, 131)).astype(np.float32) for n in (3, 17, 257, 64) * 6]
    alone = [op(a).tobytes() for a in arrays]
    start = threading.Barrier(4)

    def work(k):
        start.wait()
        return [op(a).tobytes() for a in arrays[k:] + arrays[:k]]

    with ThreadPoolExecutor(4) as pool:
        for k, results in enumerate(pool.map(work, range(4))):
            for n, result in enumerate(results):
                assert result == alone[(n + k) % len(alone)]


def test_first_calls_by_many_threads_build_once(rng):
    op = compiled("y[i] = x[i] * 3")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: op(f32(1, 2)), range(8)))
    assert all((r == f32(3, 6)).all() for r in results) and "compiled for 1 set of arguments" in repr(op)


def test_torch_tensors(rng):
    torch = pytest.importorskip("torch")
    program = "op f(x: bf16[M, N]) -> (y: bf16[M, N]) { y[i, j] = softmax[j](x[i, j]) }"
    op = compiled(program)
    x = torch.from_numpy(rng.standard_normal((7, 33)).astype(np.float32)).to(torch.bfloat16)
    y = op(x)
    assert isinstance(y, torch.Tensor) and y.dtype == torch.bfloat16
    for given in (x, x.t()):
        array = from_torch(given)
        assert_within(program, [array], from_torch(op(given)), kind="cpu")
        assert isinstance(op(array), np.ndarray)
