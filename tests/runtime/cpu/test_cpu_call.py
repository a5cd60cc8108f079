"""Calls by machine code: what they hold and give back, memory for calls at once, threads, and processes that lack something."""

import gc
import pickle
import re
import sys
import threading
import weakref

import numpy as np
import pytest

import tilec
from tilec.core.dtypes import DTYPES
from tilec.driver import fast_call
from tilec.runtime.buffers import to_torch
from tilec.runtime.cpu import call as cpu_call
from tilec.runtime.cpu.load import MissingSymbol, load
from tilec.runtime.native import copy
from tilec.runtime.native import cpu as cpu_native
from tilec.runtime.native.workspaces import Workspaces

TWICE = "op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2.0 }"
TWO = "op two(x: f32[N]) -> (y: f32[N], z: f32[N]) { y[i] = x[i] * 2.0\n z[i] = x[i] + 1.0 }"
PICK = "op pick(x: f32[N], at: i32[M]) -> (y: f32[M]) { y[i] = x[at[i]] }"
SEVERAL_STEPS = (
    "op steps(x: f32[N, N]) -> (y: f32[N, N]) {\n"
    "p[i, j] = sum[k](x[i, k] * x[k, j])\n y[i, j] = sum[k](p[i, k] * p[k, j]) }"
)


def short(op) -> fast_call.Call:
    (entry,) = op._fast
    return entry[0]


def prepared(program, *arrays):
    op = tilec.compile(program, target="cpu")
    op(*arrays)
    return op, short(op)


def counts(*objects):
    return [sys.getrefcount(o) for o in objects]


def test_no_address_of_a_process_is_in_the_machine_code():
    """It goes into the disk cache. Every constant is an offset, a mask or a count."""
    text = str(cpu_native.module())
    assert max(int(n) for n in re.findall(r"-?\d+", text)) < 1 << 16


def test_references_are_given_back():
    x, at = np.arange(6, dtype=np.float32), np.array([5, 0, 3], np.int32)
    bad = np.array([0, 9, 0], np.int32)
    _, call = prepared(PICK, x, at)
    y, wrong, several = np.empty(3, np.float32), np.empty(4, np.float32), (np.empty(3, np.float32),)
    held = (x, at, bad, y, wrong, several, several[0], None, False, fast_call.NO, np.ndarray, call, np.float32)

    def calls():
        for _ in range(100):
            call((x, at), None, None)
            call((x, at), y, None)
            call((x, at), several, None)
            call((x, at), [y], None)
            assert call((x, at), wrong, None) is fast_call.NO
            assert call((x, at), (wrong,), None) is fast_call.NO
            assert call((x, at), (y, y), None) is fast_call.NO
            assert call((x, at), 5, None) is fast_call.NO
            assert call((x,), None, None) is fast_call.NO
            assert call((x, x), None, None) is fast_call.NO
            assert call((x, at), None, 7) is fast_call.NO
            with pytest.raises(tilec.CallError, match="6"):
                call((x, bad), None, None)

    def settled():
        """Once nothing is left to collect of what other tests made: a finalizer may leave more behind."""
        while gc.collect():
            pass
        return counts(*held)

    calls()
    before = settled()
    calls()
    changed = {repr(o)[:40]: b - a for o, a, b in zip(held, before, settled()) if abs(b - a) >= 20}
    assert changed == {}


def test_results_are_freed_with_their_last_reference():
    x = np.arange(6, dtype=np.float32)
    for program in (TWICE, TWO):
        _, call = prepared(program, x)
        results = call((x,), None, None)
        array = results if isinstance(results, np.ndarray) else results.y
        np.testing.assert_array_equal(array, x * 2)
        watched = weakref.ref(array)
        del results, array
        assert watched() is None


def test_what_a_call_is_made_of_lives_as_long_as_the_call_can_come():
    x = np.arange(6, dtype=np.float32)
    op, call = prepared(TWICE, x)
    program = weakref.ref(op._latest.program)
    del op
    gc.collect()
    np.testing.assert_array_equal(call((x,), None, None), x * 2)
    del call
    gc.collect()
    assert program() is None


def test_an_error_in_allocating_comes_out(monkeypatch):
    def fail(*_):
        raise MemoryError("no room")

    x = np.arange(6, dtype=np.float32)
    op = tilec.compile(TWO, target="cpu")
    monkeypatch.setattr(cpu_call, "new_array", lambda *_: lambda shape: fail)
    op(x)
    with pytest.raises(MemoryError, match="no room"):
        op(x)
    y, z = np.empty_like(x), np.empty_like(x)
    np.testing.assert_array_equal(op(x, out=(y, z)).z, x + 1)


def test_arrays_from_a_pickle_are_taken():
    """Their dtype is equal to NumPy's own, but another object."""
    x = np.arange(6, dtype=np.float32)
    _, call = prepared(TWICE, x)
    other = pickle.loads(pickle.dumps(x))
    np.testing.assert_array_equal(call((other,), None, None), x * 2)


def test_calls_of_other_kinds_follow_one_another():
    torch = pytest.importorskip("torch")
    x = np.arange(6, dtype=np.float32)
    op = tilec.compile(TWICE, target="cpu")
    for _ in range(3):
        assert type(op(x)) is np.ndarray and type(op(torch.from_numpy(x))) is torch.Tensor
    assert len(op._fast) == 2


@pytest.mark.parametrize("dtype", ["bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32",
                                   "f64", "f8e4m3", "f8e5m2"])  # fmt: skip
def test_every_type_has_a_short_way(dtype):
    torch = pytest.importorskip("torch")
    op = tilec.compile(f"op same(x: {dtype}[N]) -> (y: {dtype}[N]) {{ y[i] = x[i] }}", target="cpu")
    raw = np.array([0, 1, 1, 0, 1], np.uint8).astype(DTYPES[dtype].numpy)
    tensor = torch.tensor([0, 1, 1, 0, 1]).to(to_torch(dtype))
    for x in (raw, tensor):
        op(x)
        result = op._fast[0][0]((x,), None, None)
        assert result is not fast_call.NO and result.dtype == x.dtype
        assert np.array_equal(np.asarray(result.tolist()), np.asarray(x.tolist()))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1, 1, 5), (2, 1, 3)])
def test_any_shape_has_a_short_way(shape):
    torch = pytest.importorskip("torch")
    sizes, index = (f"[{', '.join(n)}]" if shape else "" for n in (map(str, shape), "ijk"[: len(shape)]))
    program = f"op plus(x: f32{sizes}) -> (y: f32{sizes}) {{ y{index} = x{index} + 1.0 }}"
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    _, call = prepared(program, x)
    np.testing.assert_array_equal(call((x,), None, None), x + 1)
    _, call = prepared(program, torch.from_numpy(x))
    if x.size:
        np.testing.assert_array_equal(call((torch.from_numpy(x),), None, None), x + 1)


def test_a_negated_tensor_of_one_element_is_not_taken():
    """It is contiguous, and means what stands in memory with the other sign."""
    torch = pytest.importorskip("torch")
    _, call = prepared("op same(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", torch.ones(1))
    x = torch.complex(torch.ones(1), torch.ones(1)).conj().imag
    assert x.is_neg() and x.is_contiguous() and call((x,), None, None) is fast_call.NO


def test_gradients_that_are_not_recorded_do_not_matter():
    torch = pytest.importorskip("torch")
    _, call = prepared(TWICE, torch.ones(6))
    x = torch.ones(6, requires_grad=True)
    assert call((x,), None, None) is fast_call.NO
    with torch.no_grad():
        assert torch.equal(call((x,), None, None), torch.full((6,), 2.0))


def test_tensors_without_memory_are_not_taken():
    torch = pytest.importorskip("torch")
    op, call = prepared(TWICE, torch.ones(6))
    for x in (torch.ones(6, device="meta"), torch.ones(6).to_sparse()):
        assert call((x,), None, None) is fast_call.NO
        with pytest.raises(tilec.CallError):
            op(x)
    inside = []
    torch.func.vmap(lambda row: inside.append(call((row,), None, None)) or row)(torch.ones(2, 6))
    assert inside == [fast_call.NO]


def test_other_layouts_in_memory_go_the_general_way(monkeypatch):
    """As if NumPy's arrays were laid out differently, and PyTorch had no functions for machine code."""
    torch = pytest.importorskip("torch")
    x = np.arange(6, dtype=np.float32)
    monkeypatch.setattr(cpu_native, "DATA", cpu_native.DATA + 8)
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", None, raising=False)
    cpu_call._numpy_is_known.cache_clear()
    cpu_call.exchange.cache_clear()
    try:
        op = tilec.compile(TWICE, target="cpu")
        for _ in range(3):
            np.testing.assert_array_equal(op(x), x * 2)
            assert torch.equal(op(torch.from_numpy(x)), torch.from_numpy(x * 2))
        assert op._fast == ()
    finally:
        monkeypatch.undo()
        cpu_call._numpy_is_known.cache_clear()
        cpu_call.exchange.cache_clear()
    assert cpu_call.possible(np.ndarray)


def test_machine_code_of_another_process_is_not_loaded():
    with pytest.raises(MissingSymbol, match="no_such_function"):
        load(b"", ("tilec_test",), ("memmove", "no_such_function"))


def test_every_call_at_a_time_has_its_own_workspace(monkeypatch):
    made = []
    allocate = Workspaces.allocate
    monkeypatch.setattr(Workspaces, "allocate", lambda *given: made.append(given) or allocate(*given))
    rng = np.random.default_rng(0)
    op = tilec.compile(SEVERAL_STEPS, target="cpu")
    x = rng.standard_normal((96, 96)).astype(np.float32)
    expected = op(x)
    assert len(op.kernels) > 1
    for _ in range(20):
        np.testing.assert_array_equal(op(x), expected)
    assert len(made) == 1
    wrong, start = [], threading.Barrier(4)

    def work(scale):
        own = x * scale
        start.wait()
        for _ in range(100):
            if not np.array_equal(op(own), expected * scale**4):
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=(2.0**n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(made) <= 4


@pytest.mark.parametrize("bytes_", [copy.PARALLEL - 1, copy.PARALLEL + 13, copy.STREAMED + 100_003])
@pytest.mark.parametrize("offset", [0, 1, 63])
def test_large_copies_are_shared_among_threads(bytes_, offset):
    """Whole, and nothing beside: wherever memory begins and ends in a cache line."""
    x = np.random.default_rng(0).integers(-128, 128, bytes_ + 100, np.int8)
    memory = np.full(bytes_ + 300, 77, np.int8)
    start = -memory.ctypes.data % 64 + 64 + offset
    out = memory[start : start + bytes_]
    tilec.compile("op f(x: i8[N]) -> (y: i8[N]) { y[i] = x[i] }", target="cpu")(x[7 : 7 + bytes_], out=out)
    np.testing.assert_array_equal(out, x[7 : 7 + bytes_])
    assert (memory[:start] == 77).all() and (memory[start + bytes_ :] == 77).all()
