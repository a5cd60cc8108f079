"""A program's kernels on a device, with a driver that only records: order, memory, streams, graphs."""

import ctypes
import struct
from operator import itemgetter

import pytest

pytest.importorskip("numba_cuda_mlir")

from test_cuda_launch import FakeDriver

from tilec.diagnostics import CallError
from tilec.runtime import cuda_driver
from tilec.runtime.cuda_assemble import Cubin
from tilec.runtime.cuda_program import DeviceProgram, Graph
from tilec.runtime.program import Emitted, KernelSource, Temporary


class Driver(FakeDriver):
    capturing, allocated = 0, 0

    def cuStreamIsCapturing(self, stream, status):
        status._obj.value = self.capturing
        return 0

    def cuMemAlloc_v2(self, pointer, size):
        self.allocated += 1
        pointer._obj.value = 0x1000_0000 * self.allocated
        return 0


@pytest.fixture
def driver(monkeypatch):
    fake = Driver()
    monkeypatch.setattr(cuda_driver, "library", lambda: fake)
    monkeypatch.setattr(cuda_driver, "device_count", lambda: 1)
    monkeypatch.setattr(cuda_driver, "_contexts", {})
    return fake


def program(temporaries=(), sites=(), late=False) -> DeviceProgram:
    """`first` reads the input and writes a temporary, or the output where there is none; `second` goes on from there."""
    middle = 2 if temporaries else 1
    kernels = tuple(KernelSource(n, "", 3, 2, threads=64, sites=sites) for n in ("first", "second"))
    emitted = Emitted("p", "", kernels, (), tuple(temporaries))
    cubins = {k.name: Cubin(b"image", "", k.name, "sm_90a", 32, 0, 0, 0) for k in kernels}
    steps = [("first", itemgetter(0, middle), 0), ("second", itemgetter(middle, 1), 0)]
    return DeviceProgram(emitted, cubins, steps, 0, late)


def launched(driver) -> list[tuple]:
    return [(stream, struct.unpack("<2q", data[:16])) for _, _, _, stream, _, data in driver.launches]


def test_steps_follow_each_other_on_the_stream(driver):
    program().launch([16], [32], 7)
    assert launched(driver) == [(7, (16, 32)), (7, (32, 32))]


def test_a_stream_has_one_workspace(driver):
    made = program([Temporary(100, 256)])
    for stream in (7, 7, 8):
        made.launch([16], [32], stream)
    first, second = 0x1000_0000 + 256, 0x2000_0000 + 256
    assert launched(driver)[:4] == [(7, (16, first)), (7, (first, 32))] * 2
    assert launched(driver)[4:] == [(8, (16, second)), (8, (second, 32))]


def test_what_is_captured_has_a_workspace_of_its_own(driver):
    made = program([Temporary(100, 0)])
    made.launch([16], [32], 7)
    driver.capturing = 1
    made.launch([16], [32], 7)
    driver.capturing = 0
    made.launch([16], [32], 7)
    assert [pointers[1] for _, pointers in launched(driver)[::2]] == [0x1000_0000, 0x2000_0000, 0x1000_0000]


def test_allocating_is_allowed_while_a_stream_is_captured(driver):
    made = program([Temporary(100, 0)])
    driver.calls.clear()
    driver.capturing = 1
    made.launch([16], [32], 7)
    assert [name for name, _ in driver.calls].count("cuThreadExchangeStreamCaptureMode") == 2


def test_run_time_checks_cannot_be_captured(driver, monkeypatch):
    made = program(sites=("index out of range",))
    driver.capturing = 1
    with pytest.raises(CallError, match="cannot be captured"):
        made.launch([16], [32], 7)


class Checking(Driver):
    """Fails the checks that `failing` names, by number of the launch, when the stream is waited for."""

    def __init__(self):
        super().__init__()
        self.failing: dict[int, int] = {}
        self.memory = ctypes.create_string_buffer(64)
        self.waits = 0

    def cuMemAllocHost_v2(self, pointer, size):
        pointer._obj.value = ctypes.addressof(self.memory)
        return 0

    def cuStreamSynchronize(self, stream):
        self.waits += 1
        for number, (_, _, _, _, _, data) in enumerate(self.launches):
            if site := self.failing.pop(number, 0):
                ctypes.c_int32.from_address(struct.unpack("<3q", data[:24])[2]).value = site
        return 0


@pytest.fixture
def checking(monkeypatch, driver):
    fake = Checking()
    monkeypatch.setattr(cuda_driver, "library", lambda: fake)
    return fake


def test_a_failed_check_is_raised_by_the_call(checking):
    made = program(sites=("too low", "too high"))
    checking.failing[0] = 2
    with pytest.raises(CallError, match="too high"):
        made.launch([16], [32], 7)
    assert len(checking.launches) == 1  # what comes after it was not started
    made.launch([16], [32], 7)
    assert checking.waits == 3


@pytest.mark.parametrize("step", [0, 1])
def test_a_late_check_is_raised_once_by_what_comes_next(checking, step):
    made = program(sites=("too low", "too high"), late=True)
    made.launch([16], [32], 7)
    assert checking.waits == 0 and len(checking.launches) == 2
    checking.failing[step] = 1
    with pytest.raises(CallError, match="too low"):
        made.check()
    made.check()
    checking.failing[step] = 2
    checking.cuStreamSynchronize(None)  # as if the kernels ran meanwhile
    with pytest.raises(CallError, match="too high"):
        made.launch([16], [32], 7)
    assert len(checking.launches) == 2
    made.launch([16], [32], 7)
    assert len(checking.launches) == 4


def test_a_graph_replays_on_the_current_stream(driver):
    result = object()
    graph = Graph(program(), [16], [32], None, result, lambda: 11)
    names = [name for name, _ in driver.calls]
    assert names.index("cuStreamBeginCapture_v2") < names.index("cuStreamEndCapture")
    assert names.index("cuStreamEndCapture") < names.index("cuGraphInstantiateWithFlags")
    assert graph.replay() is result and graph.replay(stream=12) is result
    assert [a[1].value for name, a in driver.calls if name == "cuGraphLaunch"] == [11, 12]


def test_a_capture_ends_when_a_launch_fails(driver):
    made = program()
    driver.result = 1
    with pytest.raises(cuda_driver.CudaError):
        Graph(made, [16], [32], None, None, lambda: 0)
    assert "cuStreamEndCapture" in [name for name, _ in driver.calls]
    assert "cuStreamDestroy_v2" in [name for name, _ in driver.calls]
