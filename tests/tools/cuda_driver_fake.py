"""A CUDA driver that runs nothing and notes everything, with functions that machine code can call, too."""

import ctypes
from collections import Counter
from hashlib import sha256
from typing import NamedTuple

from tilec.runtime.cuda import arena
from tilec.runtime.cuda import driver as cuda_driver
from tilec.runtime.cuda.launch import _KINDS, _Config

WORD, ADDRESS, SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
INT, UINT = ctypes.c_int, ctypes.c_uint32


class Launch(NamedTuple):
    """`attributes` are the first words of each, its kind before all, `data` the kernel's parameters."""

    kernel: int
    stream: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    attributes: tuple[tuple[int, ...], ...]
    data: bytes

    @property
    def words(self) -> tuple[int, ...]:
        return tuple(int.from_bytes(self.data[n : n + 8], "little") for n in range(0, len(self.data), 8))


class FakeDriver:
    """Says yes to everything. `queued` is what it was to queue or to wait for, in order; `calls` are all else, by name.

    `device` is the thread's current one, None for none; `capturing` the number of the capture that streams take part in, 0 for
    none; `memory` what the device has, `mapped` the memory behind reserved addresses, if it `reserves` any; `codes` by name what
    the next calls of a function return; `failing` by number of the launch what its kernel's check leaves when the stream is waited
    for.
    `kinds` are those of kernels' parameters, in the order of loading; the first kernel's handle is 1001.
    """

    def __init__(self):
        self.queued, self.calls, self.codes, self.failing, self.kinds = [], [], {}, {}, []
        self.device, self.capturing, self.kernels, self.allocated = 0, 0, 0, 0
        self.reserves, self.memory, self.granule = False, 1 << 27, 1 << 16
        self.mapped, self._created, self._reserved = dict[int, int](), dict[int, int](), list[tuple[int, int]]()
        self._handles = 0
        self._host, self._found = [], []
        signatures = {
            "cuCtxGetDevice": (WORD,), "cuStreamIsCapturing": (WORD, WORD), "cuStreamSynchronize": (WORD,),
            "cuLaunchKernelEx": (WORD, WORD, WORD, WORD), "cuMemcpyDtoDAsync_v2": (ADDRESS, ADDRESS, SIZE, WORD),
            "cuMemsetD8Async": (ADDRESS, ctypes.c_ubyte, SIZE, WORD),
            "cuTensorMapEncodeTiled": (WORD, INT, UINT, *[WORD] * 5, *[INT] * 4),
        }  # fmt: skip
        for name, kinds in signatures.items():
            setattr(self, name, ctypes.CFUNCTYPE(INT, *kinds)(getattr(self, f"_{name}")))
        self._stream = ctypes.CFUNCTYPE(INT, INT, INT, WORD)(self._current_stream)
        self.current_stream = ctypes.cast(self._stream, WORD).value

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def function(*arguments):
            self.calls.append((name, arguments))
            return self._code(name)

        return function

    @property
    def launches(self) -> list[Launch]:
        return [q for q in self.queued if isinstance(q, Launch)]

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def _code(self, name: str) -> int:
        return left.pop(0) if (left := self.codes.get(name)) else 0

    def _current_stream(self, kind, number, stream):
        """As DLPack's exchange API tells it."""
        WORD.from_address(stream).value = 69
        return 0

    # ---- what machine code calls, too --------------------------------------------------------------------------------

    def _cuCtxGetDevice(self, device):
        if self.device is None:
            return 201
        INT.from_address(device).value = self.device
        return 0

    def _cuStreamIsCapturing(self, stream, status):
        if self.device is None:
            return 201
        INT.from_address(status).value = self.capturing != 0
        return self._code("cuStreamIsCapturing")

    def _cuLaunchKernelEx(self, config, kernel, parameters, extra):
        given, (begin, buffer, size, count, end) = _Config.from_address(config), (WORD * 5).from_address(extra)
        if (begin, size, end, parameters) != (1, 2, None, None):
            return 1
        places = range(given.attributes or 0, (given.attributes or 0) + 72 * given.attribute_count, 72)
        attributes = tuple(tuple((UINT * 5).from_address(place)) for place in places)
        data = bytearray(ctypes.string_at(buffer, SIZE.from_address(count).value))
        end = 0
        for offset, size in self._places(kernel):
            data[end:offset] = bytes(offset - end)  # may be anything
            end = offset + size
        shape = tuple(given.grid), tuple(given.block), given.shared, attributes
        self.queued.append(Launch(kernel, given.stream or 0, *shape, bytes(data)))
        code = self._code("cuLaunchKernelEx")
        if not code and (site := self.failing.pop(len(self.launches) - 1, 0)):
            self._found.append((self.queued[-1].words[-1], site))
        return code

    def _cuMemcpyDtoDAsync_v2(self, target, source, count, stream):
        self.queued.append(("copy", stream or 0, target, source, count))
        return self._code("cuMemcpyDtoDAsync_v2")

    def _cuMemsetD8Async(self, target, value, count, stream):
        self.queued.append(("clear", stream or 0, target, value, count))
        return self._code("cuMemsetD8Async")

    def _cuStreamSynchronize(self, stream):
        self.queued.append(("wait", stream or 0))
        self.finish()
        return self._code("cuStreamSynchronize")

    def finish(self) -> None:
        """As if all kernels had run."""
        for address, site in self._found:
            ctypes.c_int32.from_address(address).value = site
        self._found.clear()

    def _cuTensorMapEncodeTiled(self, where, dtype, rank, pointer, sizes, pitches, boxes, steps, *rest):
        """128 bytes that differ with whatever is given."""
        rows = [tuple((ctypes.c_uint64 * n).from_address(row)) for row, n in ((sizes, rank), (pitches, rank - 1))]
        rows += [tuple((UINT * rank).from_address(row)) for row in (boxes, steps)]
        facts = repr((where % 64, dtype, rank, pointer, rows, rest))
        ctypes.memmove(where, 4 * sha256(facts.encode()).digest(), 128)
        return self._code("cuTensorMapEncodeTiled")

    # ---- what Python alone calls -------------------------------------------------------------------------------------

    def cuCtxSetCurrent(self, context):
        self.calls.append(("cuCtxSetCurrent", (context,)))
        self.device = 0
        return 0

    def cuLibraryGetKernel(self, kernel, library, name):
        self.kernels += 1
        kernel._obj.value = 1000 + self.kernels
        return 0

    def cuKernelGetParamInfo(self, kernel, index, offset, size):
        offset._obj.value, size._obj.value = self._places(kernel.value)[index.value]
        return 0

    def _places(self, kernel: int) -> list[tuple[int, int]]:
        """A tensor map lies at a multiple of 64 of the chip's parameter space, which begins at 528 on sm_90."""
        places, end = [], 0
        for kind in self.kinds[kernel - 1001] if kernel - 1001 < len(self.kinds) else ():
            size = _KINDS[kind][1]
            places.append((end + -(end + 528) % min(size, 64), size))
            end = sum(places[-1])
        return places

    def cuMemAlloc_v2(self, pointer, size):
        if code := self._code("cuMemAlloc_v2"):
            return code
        self.allocated += 1
        pointer._obj.value = 0x1000_0000 * self.allocated
        return 0

    def cuDeviceGetAttribute(self, value, which, device):
        value._obj.value = {102: self.reserves}.get(which, 1)
        return 0

    def cuDeviceTotalMem_v2(self, size, device):
        size._obj.value = self.memory
        return 0

    def cuStreamGetCaptureInfo_v2(self, stream, status, number, *rest):
        status._obj.value, number._obj.value = self.capturing != 0, self.capturing
        return 0

    # addresses with memory behind them; what is wrong raises

    def cuMemGetAllocationGranularity(self, size, properties, kind):
        size._obj.value = self.granule
        return 0

    def cuMemAddressReserve(self, address, size, *rest):
        if code := self._code("cuMemAddressReserve"):
            return code
        address._obj.value = 0x100_0000_0000 * (1 + len(self._reserved))
        self._reserved.append((address._obj.value, size.value))
        return 0

    def cuMemCreate(self, handle, size, *rest):
        taken = sum((*self.mapped.values(), *self._created.values(), size.value))
        if (code := self._code("cuMemCreate")) or taken > self.memory:
            return code or 2
        handle._obj.value = self._handles = self._handles + 1
        self._created[self._handles] = size.value
        return 0

    def cuMemMap(self, address, size, offset, handle, flags):
        begin, end = address.value, address.value + size.value
        assert any(first <= begin and end <= first + most for first, most in self._reserved)
        assert all(end <= other or other + most <= begin for other, most in self.mapped.items())
        assert self._created[handle.value] == size.value and not size.value % self.granule
        if code := self._code("cuMemMap"):
            return code
        self.mapped[begin] = size.value
        return 0

    def cuMemRelease(self, handle):
        del self._created[handle.value]
        return 0

    def cuMemUnmap(self, address, size):
        assert self.mapped.pop(address.value) == size.value
        return 0

    def cuMemAllocHost_v2(self, pointer, size):
        self._host.append(ctypes.create_string_buffer(size.value))
        pointer._obj.value = ctypes.addressof(self._host[-1])
        return 0

    def cuGetErrorName(self, code, text):
        text._obj.value = b"CUDA_ERROR"
        return 0


def stand_in(monkeypatch) -> FakeDriver:
    """For the driver of a machine with one GPU, as long as the test takes."""
    fake = FakeDriver()
    monkeypatch.setattr(cuda_driver, "library", lambda: fake)
    monkeypatch.setattr(cuda_driver, "device_count", lambda: 1)
    monkeypatch.setattr(cuda_driver, "_contexts", {})
    monkeypatch.setattr(arena, "_arenas", {})
    monkeypatch.setattr(arena, "workspaces", Counter())
    for known in (cuda_driver.attribute, arena._granule):
        known.cache_clear()
    return fake
