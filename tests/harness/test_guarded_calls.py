"""Calls in tests see what is written beside results, temporaries, scratch memory and arguments: kernels for longer rows stand
for wrong ones."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pytest
from fuzz.guards import Overrun
from fuzz.guards_cuda import GuardedGpu, run_guarded
from tools import cuda_emulator, guarded_calls
from tools.cuda_driver_fake import FakeDriver, stands_for_the_driver
from tools.lowering import lowered

import tilec
from tilec.core.dtypes import DTYPES
from tilec.runtime.buffers import view
from tilec.runtime.program import Cubin, Emitted, KernelSource, Step, Temporary

DOUBLE = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2 }"
BACKWARDS = "op f(x: f32[N]) -> (y: f32) { c[i] = cumsum[i](x[i])  y = sum[i](c[N - 1 - i] * x[i]) }"
COLUMNS = "op f(x: f32[M, N]) -> (y: f32) { s[j] = sum[i](x[i, j])  y = sum[j](exp(s[j])) }"
WHERE = pytest.mark.parametrize("target", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def wrong(text: str, target: str, n: int = 40, **sizes: int) -> tilec.Op:
    """An op whose kernels for N = 33 are those for another N."""
    op = tilec.compile(text, target=target)
    longer, built = op.build(N=n, **sizes)._last, op.build(N=33, **sizes)._last
    kernels = zip(longer.emitted.kernels, built.emitted.kernels, strict=True)
    emitted = replace(longer.emitted, temporaries=built.emitted.temporaries)
    change(built, replace(emitted, kernels=tuple(replace(k, scratch=right.scratch) for k, right in kernels)))
    built.__dict__.update({"loops": longer.loops} if target == "cpu" else {"_cubins": longer.cubins})
    return op


def change(built, emitted: Emitted) -> None:
    built.compiled = replace(built.compiled, emitted=emitted)
    built.emitted = built.compiled.emitted


def ones(target: str, *shape: int):
    if target == "cpu":
        return np.ones(shape, np.float32)
    return pytest.importorskip("torch").ones(shape, device="cuda")


@WHERE
def test_a_result(target):
    with pytest.raises(Overrun, match=r"2[0-9] bytes were written behind result y, 0 bytes on"):
        wrong(DOUBLE, target)(ones(target, 33))


@WHERE
def test_a_result_that_gets_what_lies_behind_the_argument(target):
    with pytest.raises(Overrun, match="28 bytes were written behind result y, 0 bytes on"):
        wrong(DOUBLE.replace(" * 2", ""), target)(ones(target, 33))


@WHERE
def test_a_temporary(target):
    with pytest.raises(Overrun, match=r"2[0-9] bytes were written behind temporary 0, 0 bytes on"):
        wrong(BACKWARDS, target)(ones(target, 33))


def test_scratch_memory():
    with pytest.raises(Overrun, match="behind scratch memory"):
        wrong(COLUMNS, "cpu", n=60, M=3)(ones("cpu", 3, 33))


@WHERE
def test_an_argument(target):
    op = tilec.compile(DOUBLE, target=target)
    built = op.build(N=33)._last
    (step,) = built.emitted.steps
    change(built, replace(built.emitted, steps=(replace(step, slots=step.slots[::-1]),)))
    with pytest.raises(Overrun, match="argument x was written"):
        op(ones(target, 33))


@WHERE
def test_a_result_that_is_not_whole(target):
    y = ones(target, 33)
    with pytest.raises(AssertionError, match="y is another one among canaries"):
        wrong(DOUBLE, target, n=20)(ones(target, 33), out=y)


def test_the_call_itself_is_not_made():
    """What goes wrong goes wrong in memory of its own, so that the tests after it can go on."""
    y = np.ones(80, np.float32)
    with pytest.raises(Overrun):
        wrong(DOUBLE, "cpu")(np.ones(33, np.float32), out=y[:33])
    assert (y == 1).all()


def test_the_first_run_is_guarded(monkeypatch):
    op, runs, x = tilec.compile(DOUBLE), [], np.ones((3, 33), np.float32)
    monkeypatch.setattr(guarded_calls, "run_guarded", lambda *given: runs.append(given) or {"y": x[0] * 2})
    for _ in range(3):
        op(x[0])
        op(np.ones((33, 3), np.float32)[:, 0])  # the general way
    assert len(runs) == 1


@pytest.mark.unguarded
def test_unguarded_tests_are_left_alone(monkeypatch):
    monkeypatch.setattr(guarded_calls, "run_guarded", None)
    assert tilec.compile(DOUBLE)(np.ones(33, np.float32))[0] == 2


# ---- without a GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [DOUBLE, BACKWARDS], ids=["result", "temporary"])
def test_the_emulator_sees_it(text):
    x, n = np.ones(40, np.float32), 33
    special, result = lowered(text, "f", {"x": x})
    emitted = replace(result.emitted, temporaries=tuple(replace(t, bytes=4 * n) for t in result.emitted.temporaries))
    y = np.zeros([min(s.value, n) for s in special.outputs[0].shape], np.float32)
    with pytest.raises(AssertionError, match=r"bytes at 1[0-9]+ of 132"):
        cuda_emulator.run(emitted, [x], [y])


def test_the_emulator_refuses_stores_into_arguments():
    x, y = np.ones(33, np.float32), np.zeros(33, np.float32)
    emitted = lowered(DOUBLE, "f", {"x": x})[1].emitted
    (step,) = emitted.steps
    with pytest.raises(ValueError, match="read-only"):
        cuda_emulator.run(replace(emitted, steps=(replace(step, slots=step.slots[::-1]),)), [x], [y])


class DriverWithMemory(FakeDriver):
    """Memory of the host stands for the device's, a function for each kernel, by the order of loading."""

    def __init__(self, *kernels):
        super().__init__()
        self.does, self.held, self.freed = kernels, [], []

    def cuMemAlloc(self, size):
        self.held.append(np.zeros(size + 256, np.uint8))
        return 0, self.held[-1].ctypes.data + -self.held[-1].ctypes.data % 256

    def cuMemFree(self, pointer):
        self.freed.append(pointer)
        return 0

    def cuMemcpyDtoH(self, host, pointer, size):
        ctypes.memmove(host, pointer, size)
        return 0

    def cuMemcpyHtoD(self, pointer, host, size):
        ctypes.memmove(pointer, host, size)
        return 0

    def _cuMemcpyDtoDAsync(self, target, source, count, stream):
        ctypes.memmove(target, source, count)
        return super()._cuMemcpyDtoDAsync(target, source, count, stream)

    def _cuMemsetD8Async(self, target, value, count, stream):
        ctypes.memset(target, value, count)
        return super()._cuMemsetD8Async(target, value, count, stream)

    def _cuLaunchKernelEx(self, config, kernel, parameters, extra):
        code = super()._cuLaunchKernelEx(config, kernel, parameters, extra)
        words = [(ctypes.c_float * 8).from_address(word) for word in self.launches[-1].words[:2]]
        self.does[kernel - 1001](*words)
        return code


def driver_with(monkeypatch, *kernels) -> DriverWithMemory:
    driver = DriverWithMemory(*kernels)
    stands_for_the_driver(driver, monkeypatch)
    return driver


def double(x, y) -> None:
    for n in range(5):
        y[n] = 2 * x[n]


def one_too_many(x, y) -> None:
    double(x, y)
    ctypes.c_uint8.from_address(ctypes.addressof(y) + 20).value = 1


def one_too_early(x, y) -> None:
    double(x, y)
    ctypes.c_uint8.from_address(ctypes.addressof(y) - 1).value = 1


def into_its_argument(x, y) -> None:
    double(x, y)
    x[4] = 7


@pytest.mark.parametrize("first, second, message", [
    (double, double, None),
    (one_too_many, double, "1 bytes were written behind temporary 0, 0 bytes on"),
    (one_too_early, double, "1 bytes were written before the temporaries"),
    (double, one_too_many, "1 bytes were written behind result y, 0 bytes on"),
    (double, one_too_early, "1 bytes were written before result y, 1 bytes before"),
    (into_its_argument, double, "argument x was written"),
])  # fmt: skip
def test_a_driver_that_runs_python(monkeypatch, first, second, message):
    """Kernels that write a temporary, and a result from it, on a stream of the caller's."""
    driver = driver_with(monkeypatch, first, second)
    kernels = tuple(KernelSource(name, "", 1, 2, threads=32) for name in ("first", "second"))
    executable = SimpleNamespace(
        emitted=Emitted("p", "", kernels, (), (Temporary(20, 0),)),
        cubins={k.name: Cubin(b"image", "", k.name, "sm_90a", 32, 0, 0, 0) for k in kernels},
        steps=[(Step("first", ()), itemgetter(0, 2)), (Step("second", ()), itemgetter(2, 1))],
        compiled=SimpleNamespace(inputs=[("x", DTYPES["f32"], (5,))]), outputs=[("y", DTYPES["f32"], (5,))],
    )  # fmt: skip
    x = np.arange(5, dtype=np.float32)
    given = [SimpleNamespace(pointer=x.ctypes.data, nbytes=20)]
    if message is None:
        assert np.array_equal(run_guarded(executable, given, 0, 7)["y"].view(np.float32), 4 * x)
    else:
        with pytest.raises(Overrun, match=message):
            run_guarded(executable, given, 0, 7)
    assert len(driver.freed) == len(driver.held) == 3
    assert {q.stream if hasattr(q, "stream") else q[1] for q in driver.queued} == {7}


@pytest.mark.parametrize("guard, kernel, message", [
    (double, double, None),
    (one_too_many, double, "1 bytes were written behind result y"),
    (into_its_argument, double, "argument x was written"),
    (double, lambda x, y: None, "y is another one among canaries"),
])  # fmt: skip
def test_runs_on_a_gpu_are_guarded(monkeypatch, guard, kernel, message):
    """The program is loaded before its guarded form, and launched after it. In a hunt there is that form alone."""
    built = tilec.compile(DOUBLE, target="h200").build(N=5)._last
    built._cubins = {k.name: Cubin(b"image", "", k.name, "sm_90a", 32, 0, 0, 0) for k in built.emitted.kernels}
    driver = driver_with(monkeypatch, kernel, guard)
    x, y = (np.arange(n, n + 5, dtype=np.float32) for n in (0, 8))
    given, made = ([view(a)._replace(device=0)] for a in (x, y))
    if message is None:
        built.run(given, made, 7)
        assert np.array_equal(y, 2 * x) and len(driver.launches) == 2
        built.run(given, made, 7)
        assert len(driver.launches) == 3, "the first run is guarded"
    else:
        with pytest.raises(AssertionError, match=message):
            built.run(given, made, 7)
    assert len(driver.freed) == len(driver.held) > 0
    driver = driver_with(monkeypatch, guard)
    device = GuardedGpu({"x": x}, built.outputs)
    if guard is double:
        device.run(built)
        assert np.array_equal(device.results()["y"], 2 * x)
    else:
        with pytest.raises(Overrun, match=message.replace("argument x", "argument 0").replace("result y", "array 1")):
            device.run(built)
    device.close()
    assert len(driver.freed) == len(driver.held) == 2
