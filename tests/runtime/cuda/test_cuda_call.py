"""Calls of GPU programs by the short way, in Python and by machine code: both look at the same and queue the same."""

import sys
import time
from itertools import count
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda_mlir")
pytest.importorskip("torch")

import torch
from tools.cuda_driver_fake import FakeDriver, stand_in

import tilec
from tilec.core.dtypes import DTYPES
from tilec.driver import fast_call
from tilec.runtime import buffers
from tilec.runtime.cpu import call as cpu_call
from tilec.runtime.cuda import call as cuda_call
from tilec.runtime.cuda import dlpack
from tilec.runtime.cuda import driver as cuda_driver
from tilec.runtime.cuda.cubins import parameters
from tilec.runtime.cuda.program import DeviceProgram
from tilec.runtime.program import Cubin, Emitted, KernelSource, Slot, Step, Temporary, TensorMap

F32 = DTYPES["f32"]


@pytest.fixture
def driver(monkeypatch):
    """With tensors on the CPU, which are taken for ones on a GPU, whose current stream is 69."""
    fake = stand_in(monkeypatch)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 69, raising=False)
    monkeypatch.setattr(cuda_call, "CUDA", dlpack.CPU)
    found, stream = cpu_call.exchange, fake.current_stream
    monkeypatch.setattr(cpu_call, "exchange", lambda f: stream if f == cpu_call.CURRENT_STREAM else found(f))
    return fake


def kernel(name: str, pointers: int, maps=(), sites=(), grid: int = 3) -> KernelSource:
    return KernelSource(name, "", grid, pointers, threads=64, maps=tuple(maps), sites=tuple(sites))


def loaded(driver: FakeDriver, kernels, steps, temporaries=(), deferred=False, arrays=(1, 1)) -> DeviceProgram:
    """`steps` are names of kernels, None for a copy or a clearing, the numbers of their tensors, and bytes. `arrays`: how many
    are inputs, and outputs."""
    driver.kinds += [parameters(k) for k in kernels]
    emitted = Emitted("p", "", tuple(kernels), (), tuple(temporaries))
    cubins = {k.name: Cubin(b"image", "", k.name, "sm_90a", 32, 0, 0, 0) for k in kernels}
    picks = [(Step(n, (), size), lambda row, numbers=numbers: [row[n] for n in numbers]) for n, numbers, size in steps]
    return DeviceProgram(emitted, cubins, picks, 0, deferred, emitted.begins(*arrays))


def short_way(program, inputs, outputs) -> fast_call.Call:
    """By machine code, for tensors like these."""
    arrays, results = ([(F32, tuple(t.shape)) for t in tensors] for tensors in (inputs, outputs))
    new = [buffers.new_tensor(torch.empty(()), tuple(t.shape)) for t in outputs]
    call = fast_call.on_gpu(program, torch.Tensor, arrays, results, new, tuple)
    assert call is not None
    return call


def both_ways(program, inputs, outputs) -> dict:
    """Functions of inputs, results and a stream."""

    def python(given, out, stream):
        program.launch(pointers(*given), pointers(*([out] if isinstance(out, torch.Tensor) else out)), stream)
        return out

    return {"machine code": short_way(program, inputs, outputs), "Python": python}


@pytest.fixture
def short(driver):
    """Of x: f32[64, 96], w: f32[96] it makes y like x and s: f32[64], by two kernels."""
    x, w, y, s = torch.empty(64, 96), torch.empty(96), torch.empty(64, 96), torch.empty(64)
    program = loaded(driver, [kernel("one", 4), kernel("other", 2)], [("one", range(4), 0), ("other", [2, 1], 0)])
    return SimpleNamespace(call=short_way(program, [x, w], [y, s]), arrays=(x, w, y, s), driver=driver)


def queued(driver: FakeDriver) -> list[tuple]:
    found = [(q.stream, list(q.words)) for q in driver.launches]
    driver.queued.clear()
    return found


def pointers(*tensors) -> list[int]:
    return [t.data_ptr() for t in tensors]


def test_everything_that_can_differ_is_looked_at(short):
    call, (x, w, y, s) = short.call, short.arrays
    made = call((x, w), None, None)
    assert [(r.shape, r.dtype, r.is_contiguous()) for r in made] == [(r.shape, r.dtype, True) for r in (y, s)]
    assert queued(short.driver) == [(69, pointers(x, w, *made)), (69, pointers(made[0], w))]
    assert call((x, w), [y, s], 5) == (y, s)
    assert queued(short.driver) == [(5, pointers(x, w, y, s)), (5, pointers(y, w))]
    refused = [
        (x,), (x, w, w), (x[:32], w), (x.double(), w), (x.t().contiguous().t(), w), (x.numpy(), w),
        (x, torch.empty(97)[1:]), (x, torch.empty(96, requires_grad=True)), (x, torch.nn.Parameter(w)),
        (x, torch.zeros(96, dtype=torch.complex64).conj().imag), (x, w.to("meta")),
    ]  # fmt: skip
    assert all(call(arrays, None, None) is fast_call.NO for arrays in refused)
    for out in (y, (y,), (y, y), (x, s), (y, s[:32]), (y.t(), s), (y, w[:64]), "ys"):
        assert call((x, w), out, None) is fast_call.NO
    assert not short.driver.queued
    with pytest.raises(tilec.CallError, match="must be a CUDA stream"):
        call((x, w), None, "a stream")


def test_another_gpu_is_current_or_none(short):
    x, w, *_ = short.arrays
    for short.driver.device in (1, None):
        assert short.call((x, w), None, None) is fast_call.NO and not short.driver.queued
    short.driver.device = 0
    assert short.call((x, w), None, None) is not fast_call.NO


def test_what_the_driver_refuses_is_raised(short):
    x, w, y, s = short.arrays
    short.driver.codes["cuLaunchKernelEx"] = [700]
    counts = [sys.getrefcount(a) for a in (y, s)]
    with pytest.raises(cuda_driver.KernelFault, match="launch of one") as raised:
        short.call((x, w), (y, s), None)
    del raised
    assert [sys.getrefcount(a) for a in (y, s)] == counts
    assert short.call((x, w), (y, s), None) == (y, s)


def in_threads(work, number: int = 4) -> None:
    threads = [Thread(target=work, args=(n,)) for n in range(number)]
    [t.start() for t in threads]
    [t.join() for t in threads]


def test_threads_launch_what_they_were_given(short):
    """And nothing is kept of what calls are given."""
    x, w, *_ = short.arrays
    own = [(torch.empty(64, 96), torch.empty(64)) for _ in range(4)]
    counts = [sys.getrefcount(a) for a in (x, w, *own)]
    in_threads(lambda k: [short.call((x, w), own[k], 100 + k) for _ in range(100)])
    assert [sys.getrefcount(a) for a in (x, w, *own)] == counts
    wanted = {100 + k: [pointers(x, w, *own[k]), pointers(own[k][0], w)] for k in range(4)}
    launched = queued(short.driver)
    assert len(launched) == 800 and all(given in wanted[stream] for stream, given in launched)


def test_a_partition_of_a_graph_is_launched_on_the_current_stream(driver):
    """Of a misaligned value, and where another GPU is current, Python's way takes care; nothing is launched then, or kept."""
    x, w = torch.empty(64, 96), torch.empty(96)
    program = loaded(driver, [kernel("one", 4)], [("one", range(4), 0)])
    inputs, outputs = [(F32, (96, 64), (1, 96)), (F32, (96,), (1,))], [(F32, (64, 96), (96, 1)), (F32, (64,), (1,))]
    new = [lambda: torch.empty(64, 96), lambda: torch.empty(64)]
    built = SimpleNamespace(on=lambda device: program)
    call = fast_call.prepare(built, 0, 3, [2, 1], inputs, outputs, new, lambda *values: None)
    given = [None, w, x.t()]
    counts = [sys.getrefcount(a) for a in given[1:]]
    made = call(*given)
    assert queued(driver) == [(69, pointers(x, w, *made))]
    assert call(None, torch.empty(97)[1:], x.t()) is None and call(None, w, x) is None
    driver.device = 1
    assert call(*given) is None and not driver.queued
    driver.device, driver.codes["cuLaunchKernelEx"] = 0, [700]
    with pytest.raises(cuda_driver.KernelFault, match="launch of one") as raised:
        call(*given)
    del raised, made
    assert [sys.getrefcount(a) for a in given[1:]] == counts


# ---- programs that do more than launch ----


def several(
    driver: FakeDriver, rng: np.random.Generator, deferred: bool = False
) -> tuple[DeviceProgram, int, int, list[int]]:
    """A program of random steps, on so many inputs and outputs of 64 f32 each; and the sites of its launches' checks."""
    inputs, outputs, between = (int(rng.integers(1, most)) for most in (4, 3, 4))
    within = [None, Slot("input", inputs - 1), Slot("output", 0)]
    temporaries = [Temporary(256, 256 * n, within=within[rng.integers(0, 3)]) for n in range(between - 1)]
    words = inputs + outputs + len(temporaries)
    kernels, steps, sites = [], [], []
    for n in range(int(rng.integers(1, 5))):
        numbers = [int(k) for k in rng.integers(0, words, rng.integers(1, 5))]
        shapes = [(64,), (4, 16), (2, 2, 16)]
        maps = [
            TensorMap(int(rng.integers(0, len(numbers))), "f32", 4, shape, tuple(max(1, e // 2) for e in shape))
            for shape in (shapes[k] for k in rng.integers(0, 3, rng.integers(0, 3)))
        ]
        message = tuple(f"kernel {n} found {k}" for k in range(int(rng.integers(0, 3))))
        kernels.append(kernel(f"k{n}", len(numbers), maps, message, grid=int(rng.integers(0, 4))))
        steps.append((f"k{n}", numbers, 0))
        if kernels[-1].grid:
            sites.append(len(message))
        if rng.integers(0, 2):
            steps.append((None, [int(k) for k in rng.integers(0, words, rng.integers(1, 3))], 64))
    return loaded(driver, kernels, steps, temporaries, deferred, (inputs, outputs)), inputs, outputs, sites


def outcome(call) -> tuple:
    try:
        results = call()
        return "results", results is not None and pointers(*(results if type(results) is tuple else [results]))
    except (tilec.CallError, cuda_driver.CudaError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("seed", range(120))
def test_both_ways_queue_the_same(driver, seed):
    """Kernels with tensor maps and checks, copies and clearings, with memory between them, on several streams; while streams
    are captured, while checks fail, and while the driver refuses."""
    rng = np.random.default_rng(seed)
    program, inputs, outputs, sites = several(driver, rng, deferred=bool(seed % 2))
    given, results = (tuple(torch.empty(64) for _ in range(n)) for n in (inputs, outputs))
    out = results if outputs > 1 else results[0]
    ways = both_ways(program, given, results)
    refusing = ["cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuStreamIsCapturing", "cuStreamSynchronize",
                "cuMemsetD8Async", "cuMemcpyDtoDAsync"]  # fmt: skip
    for _ in range(12):
        stream, state = int(rng.integers(70, 73)), rng.integers(0, 10)
        failing = {
            n: int(rng.integers(1, most + 1)) for n, most in enumerate(sites) if most and rng.integers(0, 4) == 0
        }
        refused = refusing[rng.integers(0, len(refusing))]
        if state == 1 and refused == "cuStreamSynchronize":  # nobody looks for what a check found in a GPU that is lost
            failing = {}
        codes = [0] * int(rng.integers(0, 3) if refused != "cuStreamIsCapturing" else 0) + [700]
        found = []
        for way in rng.permutation(["machine code", "Python"]):
            driver.queued.clear()
            driver.capturing, driver.failing = int(state == 0), dict(failing)
            driver.codes = {refused: list(codes)} if state == 1 else {}
            message = outcome(lambda: ways[way](given, out, stream))  # noqa: B023
            driver.finish()
            driver.codes = {}
            now = list(driver.queued)
            last = outcome(program.check) if program.deferred_checks else None
            found.append((message, now, last))
        assert found[0] == found[1]


@pytest.mark.parametrize("way", ["machine code", "Python"])
def test_memory_belongs_to_the_stream_or_to_the_graph(driver, way):
    steps = [("first", [0, 2], 0), ("second", [2, 1], 0)]
    program = loaded(driver, [kernel("first", 2), kernel("second", 2)], steps, [Temporary(100, 256)])
    x, y = torch.empty(64), torch.empty(64)
    call = both_ways(program, [x], [y])[way]
    between = []
    for stream, driver.capturing in ((7, 0), (8, 0), (7, 0), (7, 1), (8, 0), (7, 2), (7, 0)):
        call((x,), y, stream)
        (_, (_, written)), (_, (read, _)) = queued(driver)
        assert read == written
        between.append((written - 256) // 0x1000_0000)
    assert between == [1, 2, 1, 3, 2, 4, 1]


@pytest.mark.parametrize("way", ["machine code", "Python"])
def test_temporaries_lie_in_arrays(driver, way):
    """Those that stay clear do not, and no memory is taken for the others."""
    steps = [("first", [0, 3, 4], 0), ("second", [4, 3, 2], 0)]
    inside = Slot("output", 1)
    temporaries = [Temporary(100, 512, within=inside), Temporary(64, 1024, stays_clear=True)]
    program = loaded(driver, [kernel("first", 3), kernel("second", 3)], steps, temporaries, arrays=(1, 2))
    x, y, workspace = torch.empty(64), torch.empty(64), torch.empty(1024)
    call = both_ways(program, [x], [y, workspace])[way]
    for _ in range(2):
        call((x,), (y, workspace), 7)
        (_, (read, lent, clear)), (_, other) = queued(driver)
        assert read == x.data_ptr() and lent == workspace.data_ptr() + 512 and other == [clear, lent, workspace.data_ptr()]
        assert clear % 0x1000_0000 == 0 and clear >= 0x1000_0000


@pytest.mark.parametrize("ways", [("machine code",), ("Python",), ("machine code", "Python")], ids="+".join)
def test_calls_on_one_stream_do_not_come_between_each_other(driver, ways, monkeypatch):
    """Their kernels share memory, those of different programs, too. Calls on other streams go on meanwhile."""
    names, turn, launch = ["a", "b", "c"], count(), driver._cuLaunchKernelEx

    def slow(*arguments):
        if next(turn) % 7 == 0:
            time.sleep(0.0005)
        return launch(*arguments)

    monkeypatch.setattr(driver, "_cuLaunchKernelEx", slow)
    steps = [(name, [0, 2, 1], 0) for name in names]
    xs, y = [torch.empty(64) for _ in range(4)], torch.empty(64)
    programs = [loaded(driver, [kernel(name, 3) for name in names], steps, [Temporary(100, 0)]) for _ in range(2)]
    both = [both_ways(program, xs[:1], [y]) for program in programs]

    def work(k):
        for n in range(25):
            both[k % 2][ways[(k + n) % len(ways)]]((xs[k],), y, 7 + k // 3)  # three of four threads on one stream

    in_threads(work)
    for stream in (7, 8):
        inputs = [given[0] for at, given in ((q.stream, q.words) for q in driver.launches) if at == stream]
        assert len(inputs) == 75 * (3 if stream == 7 else 1)
        assert all(inputs[n] == inputs[n + 1] == inputs[n + 2] for n in range(0, len(inputs), 3))


def test_an_error_leaves_the_stream_free(driver):
    program = loaded(driver, [kernel("only", 2, sites=("found",))], [("only", [0, 1], 0)], [Temporary(100, 0)])
    x, y = torch.empty(64), torch.empty(64)
    ways = both_ways(program, [x], [y])
    ways["Python"]((x,), y, 7)
    for name in ways:
        driver.failing = {len(driver.launches): 1}
        with pytest.raises(tilec.CallError, match="found"):
            ways[name]((x,), y, 7)
        driver.codes["cuLaunchKernelEx"] = [700]
        with pytest.raises(cuda_driver.KernelFault):
            ways[name]((x,), y, 7)
        (space,) = program._spaces.values()
        assert space.lock.acquire(blocking=False)
        space.lock.release()
    assert ways["machine code"]((x,), y, 7) is y


def test_it_comes_after_a_few_calls(driver, monkeypatch):
    """As loading LLVM takes longer than these."""
    x, y = torch.empty(64), torch.empty(64)
    program = loaded(driver, [kernel("only", 2)], [("only", [0, 1], 0)])
    executable = SimpleNamespace(on=lambda device: program, outputs=[("y", F32, (64,))], runs=0)
    monkeypatch.setattr(buffers, "new_tensor", lambda *_: lambda: y)
    views = [buffers.view(x)._replace(device=0)]
    made = []
    while not made or made[-1] is None:
        executable.runs += 1
        made.append(fast_call.make(executable, [x], views, [y], tuple))
    assert len(made) == fast_call.CALLS_THRESHOLD and made[-1]((x,), y, 5) is y


def test_pytorch_may_have_no_functions_for_machine_code(driver, monkeypatch):
    program = loaded(driver, [kernel("only", 2)], [("only", [0, 1], 0)])
    monkeypatch.setattr(cpu_call, "exchange", lambda field: 0)
    array = [(F32, (64,))]
    assert fast_call.on_gpu(program, torch.Tensor, array, array, [lambda: None], tuple) is None
