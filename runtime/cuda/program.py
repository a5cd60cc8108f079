"""The kernels of a program on one GPU: launched in order on the caller's stream, or captured as a graph."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tilec.core.diagnostics import CallError, CheckError
from tilec.runtime.cuda import arena, driver
from tilec.runtime.cuda.arena import Arena
from tilec.runtime.cuda.cubins import parameters
from tilec.runtime.cuda.launch import Kernel, Launcher, TiledMap
from tilec.runtime.native.tables import DeviceSpace, KeepAlive
from tilec.runtime.program import Cubin, Emitted, KernelSource, Step, TensorMap

if TYPE_CHECKING:
    from cuda.bindings import driver as bindings

Pick = Callable[[Sequence[int]], Sequence[int]]
_ALIGNMENT = 256  # of temporaries, as cuMemAlloc's


@dataclass
class _Space:
    """The data that calls on one stream share, since the stream runs them one after another: the addresses of temporaries, or their
    offsets in arrays, and words of host memory for failed checks. `lock` is the arena's, in which temporaries lie; `table` is for
    machine code."""

    stream: int
    captured: bool
    temporaries: list[int]
    errors: Any
    lock: threading.Lock
    table: int = 0


@dataclass
class Run:
    """One step. `pick` selects its addresses from those of inputs, outputs and temporaries."""

    pick: Pick
    launcher: Launcher | None  # None copies, or clears
    maps: tuple[TiledMap, ...]
    sites: tuple[str, ...]
    bytes: int
    sizes: tuple[int, ...] = ()
    word: int = 0  # of the space's errors, that its failed checks are left in


@dataclass
class Loaded:
    """What programs with the same kernels have in common, such as what one compiled program is at several sizes: `kernels` that the
    driver has, by name, and memory that they find `clear`, with its bytes: each program of a stream leaves it so."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    clear: dict[Arena, tuple[int, int]] = field(default_factory=dict)

    def kernel(self, source: KernelSource, cubin: Cubin) -> Kernel:
        """Is never unloaded, and therefore not to be loaded for each size."""
        if (found := self.kernels.get(source.name)) is None:
            found = self.kernels.setdefault(source.name, Kernel(cubin.image, cubin.entry, parameters(source)))
        return found


_watched: list[tuple[weakref.ref[DeviceProgram], _Space]] = []  # all spaces of programs whose checks are deferred


def raise_failed() -> None:
    """Raises CheckError for a run-time check that failed in an earlier launch, or in a replay of a captured one, of any program
    whose checks are deferred. Waits for nothing."""
    for program, space in _watched:
        if any(space.errors) and (found := program()) is not None:
            found._report(space)


class DeviceProgram:
    """Loads a program's cubins into a device. `launch` is safe in many threads at once."""

    def __init__(
        self, emitted: Emitted, cubins: Mapping[str, Cubin], steps: Sequence[tuple[Step, Pick]], device: int,
        deferred_checks: bool = False, begins: Sequence[int] = (), loaded: Loaded | None = None,
    ):  # fmt: skip
        """`deferred_checks`: the host does not wait for run-time checks. The next launch on the stream, `check` or `raise_failed`
        raises the error of a check that failed; a launch may be captured, and `check` waits for the replays. `begins`: see
        `Emitted.begins`; none where all temporaries lie in the workspace. `loaded`: what programs loaded before."""
        self._loaded = Loaded() if loaded is None else loaded
        self.device, self.deferred_checks, self.begins, self._text = device, deferred_checks, begins, emitted.module
        with _relaxed(device):
            launchers = {k.name: self._launcher(k, cubins[k.name]) for k in emitted.kernels}
        sources = {k.name: k for k in emitted.kernels}
        maps = {k.name: tuple(map(_tiled, k.maps)) for k in emitted.kernels}
        self.steps = [
            Run(pick, None, (), (), step.bytes)
            if step.kernel is None
            else Run(pick, launchers[step.kernel], maps[step.kernel], step.sites(sources[step.kernel]), 0, step.sizes)
            for step, pick in steps
            if step.kernel is None or not launchers[step.kernel].empty
        ]
        checked = [s for s in self.steps if s.sites]
        for word, step in enumerate(checked):
            step.word = word
        self._temporaries, self.temporaries = emitted.temporaries, len(emitted.temporaries)
        self.checks = len(checked)
        self.plain = not self.temporaries and not self.checks
        self._spaces: dict[Arena, _Space] = {}
        self._lock, self._alive = threading.Lock(), KeepAlive()
        self.spaces = self._alive.words([0])  # the address of the first one's table

    def _launcher(self, source: KernelSource, cubin: Cubin) -> Launcher:
        kernel = self._loaded.kernel(source, cubin)
        grid, block, cluster = ((n, 1, 1) for n in (source.grid, source.threads, source.cluster))
        return Launcher(kernel, grid, block, source.shared, cluster, self.device, source.persistent, source.overlap)

    def launch(self, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """Queues the program on row-major arrays at these addresses, which are multiples of 16. Waits for run-time checks,
        and raises CallError for a failed one, unless `deferred_checks` is set."""
        driver.enter_device(self.device)
        if self.plain:
            self._run([*inputs, *outputs], stream, None)
            return
        space = self._space(stream)
        with space.lock:  # another thread's kernels on this stream must not come in between
            if self.deferred_checks:
                self._report(space)
            self._run(self._memory_of([*inputs, *outputs], space), stream, space)

    def _memory_of(self, arrays: list[int], space: _Space) -> list[int]:
        """The addresses of arrays and temporaries."""
        if not self.begins:
            return [*arrays, *space.temporaries]
        memory = [*arrays, *[0] * self.temporaries]
        return [*arrays, *(memory[k] + n for k, n in zip(self.begins, space.temporaries))]

    def _run(self, memory: list[int], stream: int, space: _Space | None) -> None:
        for step in self.steps:
            addresses = step.pick(memory)
            if step.launcher is None:
                _move(addresses, step.bytes, stream)
                continue
            maps = [m.encode(addresses[m.parameter]) for m in step.maps]
            if not step.sites:
                step.launcher.launch(stream, *addresses, *maps, *step.sizes)
                continue
            assert space is not None
            step.launcher.launch(stream, *addresses, *maps, *step.sizes, ctypes.addressof(space.errors) + 4 * step.word)
            if not self.deferred_checks:
                driver.synchronize_stream(stream)
                self._report(space)

    def _report(self, space: _Space) -> None:
        """Raises CheckError for the first check that failed, and clears all failures."""
        for step in self.steps:
            if step.sites and (failed := space.errors[step.word]):
                ctypes.memset(space.errors, 0, ctypes.sizeof(space.errors))
                hint = "an op compiled without `deferred_checks` tells which index was outside"
                raise CheckError(
                    step.sites[failed - 1], self.deferred_checks, hint if self.deferred_checks else None, self._text
                )

    def check(self) -> None:
        """Waits for all launches, and raises CallError for a check that failed in them."""
        driver.enter_device(self.device)
        if not self.checks:
            return
        spaces = list(self._spaces.values())
        for space in spaces:
            if not space.captured:
                driver.synchronize_stream(space.stream)
                with space.lock:  # a call that waits for its own checks raises what they found
                    self._report(space)
        if captured := [space for space in spaces if space.captured]:
            driver.call("cuCtxSynchronize")
            for space in captured:
                self._report(space)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def space(self, stream: int) -> int:
        """The address of the table that calls on a stream share, for machine code."""
        return self._space(stream).table

    def _space(self, stream: int) -> _Space:
        """The space of the stream, or of what is captured on it: that may run beside later work of the stream."""
        capture = _capture(stream)
        if capture and self.checks and not self.deferred_checks:
            raise CallError("the program has run-time checks, which the host must see: it cannot be captured")
        memory = self._arena(stream, capture)
        if (found := self._spaces.get(memory)) is None:
            with self._lock:
                if (found := self._spaces.get(memory)) is None:
                    found = self._spaces[memory] = self._allocate(memory, stream, capture != 0)
        return found

    def _arena(self, stream: int, capture: int) -> Arena:
        return arena.arena_of(self.device, stream, capture)

    def _memory(self, size: int) -> int:
        """The address of memory for this program and one arena alone."""
        return arena.allocate(self.device, size)

    def _allocate(self, memory: Arena, stream: int, captured: bool) -> _Space:
        """Never freed: a graph that reads it may live for as long as the process."""
        with _relaxed(self.device):
            temporaries = self._addresses(memory)
            errors = _host_words(self.checks) if self.checks else None
        space, alive = _Space(stream, captured, temporaries, errors, memory.lock), self._alive
        first = ctypes.c_int64.from_address(self.spaces)
        space.table = alive.table(
            DeviceSpace, next=first.value, stream=stream, temporaries=alive.words(temporaries),
            errors=ctypes.addressof(errors) if errors else 0, acquire=alive.object(space.lock.acquire),
            release=alive.object(space.lock.release), report=alive.object(partial(self._report, space)),
        )  # fmt: skip
        if not captured and arena.lasting(stream):
            first.value = space.table
        if errors is not None and self.deferred_checks:
            _watched.append((weakref.ref(self), space))
        return space

    def _addresses(self, memory: Arena) -> list[int]:
        """The addresses of temporaries, or their offsets in arrays. What kernels find clear lies apart from the arena, where other
        programs' data are."""
        kept, size = dict[int, int](), 0
        for number, t in enumerate(self._temporaries):
            if t.stays_clear:
                kept[number], size = size, size + -(-t.bytes // _ALIGNMENT) * _ALIGNMENT
        most = max((t.end for n, t in enumerate(self._temporaries) if n not in kept and t.within is None), default=0)
        shared, own = memory.take(most) if most else 0, self._cleared(memory, size) if size else 0
        begins = (0 if t.within is not None else shared for t in self._temporaries)
        return [own + kept[n] if n in kept else begin + t.offset for n, (t, begin) in enumerate(zip(self._temporaries, begins))]

    def _cleared(self, memory: Arena, size: int) -> int:
        """The address of memory that is clear between programs of one arena. What takes more than those before has twice as much as
        they had, since theirs is not freed."""
        address, had = self._loaded.clear.get(memory, (0, 0))
        if had < size:
            size = max(size, 2 * had)
            address = self._memory(size)
            _clear(address, size)
            self._loaded.clear[memory] = address, size
        return address


def _tiled(m: TensorMap) -> TiledMap:
    return TiledMap(m.parameter, m.dtype, m.shape, m.box, m.swizzle, m.item_bytes, m.steps, m.strides)


def _move(addresses: Sequence[int], count: int, stream: int) -> None:
    """From the first address to the second, or zeros to the only one."""
    if len(addresses) == 1:
        driver.call("cuMemsetD8Async", addresses[0], 0, count, stream)
    else:
        driver.call("cuMemcpyDtoDAsync", *reversed(addresses), count, stream)


def _clear(address: int, count: int) -> None:
    """Memory is zero on return: by a stream of its own, as the caller's may be captured."""
    stream = _new_stream()
    _move([address], count, stream)
    driver.synchronize_stream(stream)
    driver.call("cuStreamDestroy", stream)


def _new_stream() -> int:
    """A stream that runs beside the default one."""
    return int(driver.call("cuStreamCreate", driver.library().CUstream_flags.CU_STREAM_NON_BLOCKING))


def _host_words(count: int) -> Any:
    """Zeros in host memory that kernels write, so that reading it needs no copy."""
    words = (ctypes.c_int32 * count).from_address(driver.call("cuMemAllocHost", 4 * count))
    ctypes.memset(words, 0, 4 * count)
    return words


def _capture(stream: int) -> int:
    """The number of the capture that a stream takes part in, which no other has; 0 for none."""
    if not driver.call("cuStreamIsCapturing", stream):
        return 0
    _, number, *_ = driver.call("cuStreamGetCaptureInfo", stream)
    return int(number) + 1


def _capture_mode(name: str) -> bindings.CUstreamCaptureMode:
    return getattr(driver.library().CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{name}")


class _relaxed:
    """Allows this thread to allocate and load while a stream is captured: neither becomes part of the graph."""

    def __init__(self, device: int):
        driver.use_device(device)

    def __enter__(self) -> None:
        self.mode = driver.call("cuThreadExchangeStreamCaptureMode", _capture_mode("RELAXED"))

    def __exit__(self, *_: object) -> None:
        driver.call("cuThreadExchangeStreamCaptureMode", self.mode)


class Graph:
    """A call of an op as a CUDA graph: `replay` runs it again on the same arrays, in one launch, however many kernels.

    Write new inputs into the arrays of the call, and find the results in `result`. Not to be replayed on two streams at
    once: the replays share intermediate memory.
    """

    def __init__(
        self, program: DeviceProgram, inputs: Sequence[int], outputs: Sequence[int], arrays: Any, result: Any,
        current_stream: Callable[[], int],
    ):  # fmt: skip
        self.result, self._arrays, self._current, self._device = result, arrays, current_stream, program.device
        self._graph = graph = None
        driver.use_device(program.device)
        stream = _new_stream()
        try:
            driver.call("cuStreamBeginCapture", stream, _capture_mode("THREAD_LOCAL"))
            try:
                program.launch(inputs, outputs, stream)
            finally:
                graph = driver.call("cuStreamEndCapture", stream)
            self._graph = driver.call("cuGraphInstantiate", graph, 0)
        finally:
            if graph is not None:
                driver.call("cuGraphDestroy", graph)
            driver.call("cuStreamDestroy", stream)

    def replay(self, stream: Any = None) -> Any:
        """Queues the call on a stream, by default the current one; returns `result`."""
        from tilec.runtime.cuda.launch import stream_handle

        handle = self._current() if stream is None else stream_handle(stream)
        driver.enter_device(self._device)
        driver.call("cuGraphLaunch", self._graph, handle)
        return self.result

    def __del__(self) -> None:
        if self._graph is not None:
            driver.library().cuGraphExecDestroy(self._graph)
