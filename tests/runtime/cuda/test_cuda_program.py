"""A program's kernels on a device, with a driver that only records: order, memory, streams, graphs."""

from operator import itemgetter
from threading import Thread

import pytest

pytest.importorskip("numba_cuda_mlir")

from tools.cuda_driver_fake import stand_in

from tilec.core.diagnostics import CallError, CheckError
from tilec.runtime.cuda import driver as cuda_driver
from tilec.runtime.cuda.program import DeviceProgram, Graph, raise_failed
from tilec.runtime.program import Cubin, Emitted, KernelSource, Step, Temporary


@pytest.fixture
def driver(monkeypatch):
    return stand_in(monkeypatch)


def program(temporaries=(), sites=(), deferred_checks=False) -> DeviceProgram:
    """`first` reads the input and writes a temporary, or the output where there is none; `second` goes on from there."""
    middle = 2 if temporaries else 1
    kernels = tuple(KernelSource(n, "", 3, 2, threads=64, sites=sites) for n in ("first", "second"))
    emitted = Emitted("p", "", kernels, (), tuple(temporaries))
    cubins = {k.name: Cubin(b"image", "", k.name, "sm_90a", 32, 0, 0, 0) for k in kernels}
    steps = [(Step("first", ()), itemgetter(0, middle)), (Step("second", ()), itemgetter(middle, 1))]
    return DeviceProgram(emitted, cubins, steps, 0, deferred_checks)


def launched(driver) -> list[tuple]:
    return [(launch.stream, launch.words[:2]) for launch in driver.launches]


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


@pytest.mark.parametrize("captures", [(0, 0), (1, 1), (1, 2)])
def test_what_kernels_leave_clear_is_cleared_once(driver, captures):
    """On a stream of its own: the caller's may be captured."""
    made = program([Temporary(100, 0), Temporary(64, 256, stays_clear=True)])
    for driver.capturing in captures:
        made.launch([16], [32], 7)
    cleared = [q for q in driver.queued if q not in driver.launches and q[0] != "wait"]
    first, second = (("clear", 63, memory, 0, 256) for memory in (0x2000_0000, 0x4000_0000))
    assert cleared == ([first, second] if captures == (1, 2) else [first])
    assert driver.names().count("cuStreamDestroy") == len(cleared)


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
    assert driver.names().count("cuThreadExchangeStreamCaptureMode") == 2


def test_a_thread_may_have_no_context_yet(driver):
    made, result = program([Temporary(100, 0)], ("index out of range",)), object()
    graph = Graph(program(), [16], [32], None, result, lambda: 11)
    for use in (lambda: made.launch([16], [32], 0), made.check, graph.replay):
        driver.device = None
        use()
        assert driver.device == 0


def test_run_time_checks_cannot_be_captured(driver):
    made = program(sites=("index out of range",))
    driver.capturing = 1
    with pytest.raises(CallError, match="cannot be captured"):
        made.launch([16], [32], 7)


def test_deferred_checks_of_captured_launches_are_raised_after_replays(driver):
    """A capture has words of its own, which each of its replays writes; no launch and no capture waits."""
    made = program(sites=("too low", "too high"), deferred_checks=True)
    for driver.capturing in (1, 2):
        made.launch([16], [32], 7)
    driver.capturing = 0
    words = [launch.words[2] for launch in driver.launches]
    assert len(set(words)) == 4 and not waits(driver)
    raise_failed()
    for word in words:
        for look in (raise_failed, made.check):
            driver._found.append((word, 2))  # a replay
            driver.finish()
            with pytest.raises(CheckError, match="too high") as raised:
                look()
            assert raised.value.deferred
            look()
    driver.failing[len(driver.launches)] = 1
    made.launch([16], [32], 7)
    driver.finish()
    with pytest.raises(CheckError, match="too low"):
        raise_failed()
    del made
    raise_failed()


def waits(driver) -> int:
    return len(driver.queued) - len(driver.launches)


def test_a_failed_check_is_raised_by_the_call(driver):
    made = program(sites=("too low", "too high"))
    driver.failing[0] = 2
    with pytest.raises(CheckError, match=r"too high$") as raised:
        made.launch([16], [32], 7)
    assert not raised.value.deferred
    assert len(driver.launches) == 1  # what comes after it was not started
    made.launch([16], [32], 7)
    assert waits(driver) == 3


@pytest.mark.parametrize("step", [0, 1])
def test_a_deferred_check_is_raised_once_by_what_comes_next(driver, step):
    made = program(sites=("too low", "too high"), deferred_checks=True)
    driver.failing = {step: 1, 2 + step: 2}
    made.launch([16], [32], 7)
    assert waits(driver) == 0 and len(driver.launches) == 2
    with pytest.raises(CheckError, match="too low\nhint: an op compiled without `deferred_checks` tells which index") as raised:
        made.check()
    assert raised.value.deferred
    made.check()
    made.launch([16], [32], 7)
    driver.finish()
    with pytest.raises(CallError, match="too high"):
        made.launch([16], [32], 7)
    assert len(driver.launches) == 4
    made.launch([16], [32], 7)
    assert len(driver.launches) == 6


def test_what_a_call_waits_for_is_its_own_to_raise(driver, monkeypatch):
    """Another thread asks for failed checks after the kernel left one, and before the call has looked."""
    made, wait, found, asking = program(sites=("too low", "too high")), cuda_driver.synchronize_stream, [], []

    def ask():
        try:
            made.check()
        except CallError as error:
            found.append(error)

    def wait_and_ask(stream):
        wait(stream)
        if not asking:
            asking.append(Thread(target=ask))
            asking[0].start()
            asking[0].join(0.2)

    monkeypatch.setattr(cuda_driver, "synchronize_stream", wait_and_ask)
    driver.failing[0] = 2
    with pytest.raises(CallError, match="too high"):
        made.launch([16], [32], 7)
    asking[0].join()
    assert not found


def test_a_graph_replays_on_the_current_stream(driver):
    result = object()
    graph = Graph(program(), [16], [32], None, result, lambda: 11)
    names = driver.names()
    assert names.index("cuStreamBeginCapture") < names.index("cuStreamEndCapture")
    assert names.index("cuStreamEndCapture") < names.index("cuGraphInstantiate")
    assert graph.replay() is result and graph.replay(stream=12) is result
    assert [a[1] for name, a in driver.calls if name == "cuGraphLaunch"] == [11, 12]


def test_a_capture_ends_when_a_launch_fails(driver):
    made = program()
    driver.codes["cuLaunchKernelEx"] = [1]
    with pytest.raises(cuda_driver.CudaError):
        Graph(made, [16], [32], None, None, lambda: 0)
    assert "cuStreamEndCapture" in driver.names()
    assert "cuStreamDestroy" in driver.names()
