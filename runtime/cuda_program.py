"""The kernels of a program on one GPU: launched in their order on the caller's stream, and captured as a graph."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilec.diagnostics import CallError
from tilec.runtime import cuda_driver as driver
from tilec.runtime.cuda_assemble import Cubin
from tilec.runtime.cuda_cubins import parameters
from tilec.runtime.cuda_launch import Kernel, Launcher, tensor_map
from tilec.runtime.program import Emitted, KernelSource, TensorMap

_THREAD_LOCAL, _RELAXED = 1, 2  # CUstreamCaptureMode
Pick = Callable[[Sequence[int]], Sequence[int]]


@dataclass
class _Workspace:
    """Temporaries of one stream, which runs calls one after another, so that they can share them."""

    memory: int
    errors: Any
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Maps:
    """A kernel's tensor maps, encoded once for every address: the same tensors come again and again."""

    MOST = 1024

    def __init__(self, maps: Sequence[TensorMap]):
        self.maps = [(m, {}) for m in maps]

    def __call__(self, addresses: Sequence[int]) -> list[bytes]:
        return [self._encoded(m, known, addresses[m.parameter]) for m, known in self.maps]

    def _encoded(self, m: TensorMap, known: dict[int, bytes], pointer: int) -> bytes:
        found = known.get(pointer)
        if found is None:
            if len(known) >= self.MOST:
                known.clear()
            strides = [1]
            for extent in reversed(m.shape[1:]):
                strides.insert(0, strides[0] * extent)
            found = known[pointer] = tensor_map(
                pointer, m.dtype, m.shape, strides, m.box, swizzle=128, item_bytes=m.item_bytes
            )
        return found


@dataclass
class _Launch:
    """One step: `pick` takes its addresses from those of inputs, outputs and temporaries in a row."""

    pick: Pick
    launcher: Launcher | None  # None copies, or clears
    maps: _Maps | None
    sites: tuple[str, ...]
    bytes: int
    word: int = 0  # of the workspace's errors, that its failed checks are left in


class DeviceProgram:
    """Loads a program's cubins into a device. `launch` is safe in many threads at once."""

    def __init__(
        self, emitted: Emitted, cubins: Mapping[str, Cubin], steps: Sequence[tuple[str | None, Pick, int]], device: int,
        late: bool = False,
    ):  # fmt: skip
        """`late`: the host does not wait for run-time checks; the next launch on the stream, or `check`, raises what failed."""
        self.device, self.late = device, late
        with _relaxed(device):
            launchers = {k.name: self._launcher(k, cubins[k.name]) for k in emitted.kernels}
        sources = {k.name: k for k in emitted.kernels}
        self._steps = [
            _Launch(pick, None, None, (), count)
            if name is None
            else _Launch(pick, launchers[name], _maps(sources[name]), sources[name].sites, 0)
            for name, pick, count in steps
        ]
        for word, step in enumerate([s for s in self._steps if s.sites]):
            step.word = word
        self._offsets = [t.offset for t in emitted.temporaries]
        self._bytes = emitted.workspace
        self.checks = any(s.sites for s in self._steps)
        self._plain = not self._offsets and not self.checks
        self._workspaces: dict[int, _Workspace] = {}
        self._lock = threading.Lock()
        if self._plain and len(self._steps) == 1 and self._steps[0].launcher and not self._steps[0].maps:
            self.launch = _alone(self._steps[0].launcher, self._steps[0].pick)  # type: ignore[method-assign]

    def launches(self, arrays: int) -> list[tuple[Launcher, Sequence[int]]] | None:
        """Kernels in their order, each with the numbers of its addresses among those of `arrays` inputs and outputs; None
        where there is more to do than to launch them on these."""
        if not self._plain or any(s.launcher is None or s.maps for s in self._steps):
            return None
        numbers = range(arrays)
        return [(s.launcher, s.pick(numbers)) for s in self._steps if s.launcher and not s.launcher.empty]

    def _launcher(self, source: KernelSource, cubin: Cubin) -> Launcher:
        kernel = Kernel(cubin.image, cubin.entry, parameters(source))
        grid, block, cluster = ((n, 1, 1) for n in (source.grid, source.threads, source.cluster))
        return Launcher(kernel, grid, block, source.shared, cluster, self.device, source.resident)

    def launch(self, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """Queues the program on row-major arrays at these addresses, on multiples of 16. Raises CallError for what a
        run-time check found, for which the host waits."""
        if self._plain:
            self._run([*inputs, *outputs], stream, None)
            return
        space = self._workspace(stream)
        with space.lock:  # another thread's kernels on this stream must not come in between
            if self.late and self.checks:
                self._raise(space)
            self._run([*inputs, *outputs, *[space.memory + o for o in self._offsets]], stream, space)

    def _run(self, memory: list[int], stream: int, space: _Workspace | None) -> None:
        for step in self._steps:
            addresses = step.pick(memory)
            if step.launcher is None:
                _move(addresses, step.bytes, stream)
            elif step.sites:
                self._checked(step, addresses, space, stream)
            elif step.maps is None:
                step.launcher.launch(stream, *addresses)
            else:
                step.launcher.launch(stream, *addresses, *step.maps(addresses))

    def _checked(self, step: _Launch, addresses: Sequence[int], space: _Workspace | None, stream: int) -> None:
        assert step.launcher is not None and space is not None
        maps = step.maps(addresses) if step.maps else ()
        step.launcher.launch(stream, *addresses, *maps, ctypes.addressof(space.errors) + 4 * step.word)
        if not self.late:
            driver.synchronize_stream(stream)
            self._raise(space)

    def _raise(self, space: _Workspace) -> None:
        """Raises CallError for the first check that failed, and forgets it and those after."""
        for step in self._steps:
            if step.sites and (failed := space.errors[step.word]):
                ctypes.memset(space.errors, 0, ctypes.sizeof(space.errors))
                raise CallError(step.sites[failed - 1])

    def check(self) -> None:
        """Waits for what was launched, and raises CallError for a check that failed in it."""
        for stream, space in list(self._workspaces.items()):
            if self.checks:
                driver.synchronize_stream(stream)
                self._raise(space)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _workspace(self, stream: int) -> _Workspace:
        """The stream's. A graph that is being captured gets its own: it may run beside what the stream does later."""
        if _capturing(stream):
            if self.checks:
                raise CallError("the program has run-time checks, which the host must see: it cannot be captured")
            return self._allocate()
        found = self._workspaces.get(stream)
        if found is None:
            with self._lock:
                found = self._workspaces.get(stream)
                if found is None:
                    found = self._workspaces[stream] = self._allocate()
        return found

    def _allocate(self) -> _Workspace:
        """Never freed: a graph that reads it may live for as long as the process."""
        memory, errors = ctypes.c_uint64(0), None
        with _relaxed(self.device):
            if self._bytes:
                driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(self._bytes))
            if self.checks:  # host memory that kernels write, so that reading it needs no copy
                pointer = ctypes.c_void_p()
                count = sum(bool(s.sites) for s in self._steps)
                driver.call("cuMemAllocHost_v2", ctypes.byref(pointer), ctypes.c_size_t(4 * count))
                errors = (ctypes.c_int32 * count).from_address(pointer.value or 0)
                ctypes.memset(errors, 0, 4 * count)
        return _Workspace(memory.value, errors)


def _alone(launcher: Launcher, pick: Pick) -> Callable[[Sequence[int], Sequence[int], int], None]:
    """`DeviceProgram.launch` for one kernel that needs nothing but the arrays: most calls are of such programs."""
    queue = launcher.launch

    def launch(inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        queue(stream, *pick((*inputs, *outputs)))

    return launch


def _maps(source: KernelSource) -> _Maps | None:
    return _Maps(source.maps) if source.maps else None


def _move(addresses: Sequence[int], count: int, stream: int) -> None:
    """From the first address to the second, or zeros to the only one."""
    size, queue = ctypes.c_size_t(count), ctypes.c_void_p(stream)
    if len(addresses) == 1:
        driver.call("cuMemsetD8Async", ctypes.c_uint64(addresses[0]), ctypes.c_ubyte(0), size, queue)
    else:
        driver.call("cuMemcpyDtoDAsync_v2", *map(ctypes.c_uint64, reversed(addresses)), size, queue)


def _capturing(stream: int) -> bool:
    status = ctypes.c_int()
    driver.call("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
    return status.value != 0


class _relaxed:
    """Allows this thread to allocate and load while a stream is captured: neither becomes part of the graph."""

    def __init__(self, device: int):
        driver.use_device(device)

    def __enter__(self) -> None:
        self.mode = ctypes.c_int(_RELAXED)
        driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(self.mode))

    def __exit__(self, *_: object) -> None:
        driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(self.mode))


class Graph:
    """A call of an op as a CUDA graph: `replay` runs it again on the same arrays, in one launch, however many kernels.

    Write new inputs into the arrays of the call, and find the results in `result`. Not to be replayed on two streams at
    once: the replays share intermediate memory.
    """

    def __init__(
        self, program: DeviceProgram, inputs: Sequence[int], outputs: Sequence[int], arrays: Any, result: Any,
        current_stream: Callable[[], int],
    ):  # fmt: skip
        self.result, self._arrays, self._current = result, arrays, current_stream
        self._graph, graph, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        driver.use_device(program.device)
        driver.call("cuStreamCreate", ctypes.byref(stream), 1)  # CU_STREAM_NON_BLOCKING
        try:
            driver.call("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL)
            try:
                program.launch(inputs, outputs, stream.value or 0)
            finally:
                driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
            driver.call("cuGraphInstantiateWithFlags", ctypes.byref(self._graph), graph, ctypes.c_ulonglong(0))
        finally:
            if graph.value:
                driver.call("cuGraphDestroy", graph)
            driver.call("cuStreamDestroy_v2", stream)

    def replay(self, stream: Any = None) -> Any:
        """Queues the call on a stream, by default the current one; returns `result`."""
        from tilec.runtime.cuda_launch import stream_handle

        handle = self._current() if stream is None else stream_handle(stream)
        driver.call("cuGraphLaunch", self._graph, ctypes.c_void_p(handle))
        return self.result

    def __del__(self) -> None:
        if self._graph.value:
            driver.library().cuGraphExecDestroy(self._graph)
