"""A CUDA driver that runs nothing and notes everything, for callers of `cuda.bindings` and for machine code."""

import ctypes
import inspect
from collections import Counter
from functools import cache
from hashlib import sha256
from typing import NamedTuple

from cuda.bindings import driver as bindings

from tilec.runtime.cuda import arena
from tilec.runtime.cuda import driver as cuda_driver
from tilec.runtime.cuda.launch import _KINDS

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


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", UINT * 3), ("block", UINT * 3), ("shared", UINT), ("stream", WORD), ("attributes", WORD), ("count", UINT),
    )  # fmt: skip


_RESULTS = {
    "cuDriverGetVersion": 13020, "cuDevicePrimaryCtxRetain": 61, "cuLibraryLoadData": 62, "cuStreamCreate": 63,
    "cuStreamEndCapture": 64, "cuGraphInstantiate": 65, "cuEventCreate": 66, "cuKernelGetFunction": 67,
    "cuOccupancyMaxActiveClusters": 1, "cuOccupancyMaxActiveBlocksPerMultiprocessor": 1,
    "cuThreadExchangeStreamCaptureMode": bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
}  # fmt: skip
"""Of functions that return one thing, and are only noted."""


@cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(getattr(bindings, name))


class Bindings:
    """A fake driver as `cuda.bindings.driver` has it: its types, and functions with as many arguments as there, which return a
    result code and what else there is."""

    def __init__(self, fake):
        self._fake = fake

    def __getattr__(self, name):
        if not name.startswith("cu"):
            return getattr(bindings, name)
        function, signature = getattr(self._fake, name), _signature(name)

        def called(*arguments):
            signature.bind(*arguments)
            code, *results = found if isinstance(found := function(*arguments), tuple) else (found,)
            return bindings.CUresult(code), *results

        return called


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
            "cuLaunchKernelEx": (WORD, WORD, WORD, WORD), "cuMemcpyDtoDAsync": (ADDRESS, ADDRESS, SIZE, WORD),
            "cuMemsetD8Async": (ADDRESS, ctypes.c_ubyte, SIZE, WORD),
            "cuTensorMapEncodeTiled": (WORD, INT, UINT, *[WORD] * 5, *[INT] * 4),
        }  # fmt: skip
        self._native = {
            name: ctypes.CFUNCTYPE(INT, *kinds)(lambda *given, name=name: getattr(self, f"_{name}")(*given))
            for name, kinds in signatures.items()
        }
        self._stream = ctypes.CFUNCTYPE(INT, INT, INT, WORD)(self._current_stream)
        self.current_stream = ctypes.cast(self._stream, WORD).value

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def function(*arguments):
            self.calls.append((name, arguments))
            return (self._code(name), _RESULTS[name]) if name in _RESULTS else self._code(name)

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

    def cuGetProcAddress(self, name, version, flags):
        assert (version, flags) == (12000, bindings.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM)
        found = self._native[name.decode()]
        return 0, ctypes.cast(found, WORD).value, bindings.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SUCCESS

    # ---- what machine code calls, too --------------------------------------------------------------------------------

    def _cuCtxGetDevice(self, device):
        code, found = self.cuCtxGetDevice()
        if not code:
            INT.from_address(device).value = found
        return code

    def cuCtxGetDevice(self):
        return (201, None) if self.device is None else (0, self.device)

    def _cuStreamIsCapturing(self, stream, status):
        code, INT.from_address(status).value = self.cuStreamIsCapturing(stream)
        return code

    def cuStreamIsCapturing(self, stream):
        return 201 if self.device is None else self._code("cuStreamIsCapturing"), self.capturing != 0

    def _cuLaunchKernelEx(self, config, kernel, parameters, extra):
        given, (begin, buffer, size, count, end) = _Config.from_address(config), (WORD * 5).from_address(extra)
        if (begin, size, end, parameters) != (1, 2, None, None):
            return 1
        places = range(given.attributes or 0, (given.attributes or 0) + 72 * given.count, 72)
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

    def cuLaunchKernelEx(self, config, kernel, parameters, extra):
        """Values and their types become the bytes that machine code gives."""
        assert isinstance(config, bindings.CUlaunchConfig) and not extra
        held = [bytes(v if kind is None else kind(v)) for v, kind in zip(*parameters, strict=True)]
        places, data = self._places(kernel) or [(8 * n, 8) for n in range(len(held))], bytearray()
        for (offset, size), value in zip(places, held, strict=True):
            assert len(value) == size
            data += bytes(offset - len(data)) + value
        buffer, size = ctypes.create_string_buffer(bytes(data), len(data)), SIZE(len(data))
        pointers = (WORD * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        return self._cuLaunchKernelEx(config.getPtr(), kernel, None, ctypes.addressof(pointers))

    def _cuMemcpyDtoDAsync(self, target, source, count, stream):
        self.queued.append(("copy", stream or 0, target, source, count))
        return self._code("cuMemcpyDtoDAsync")

    def _cuMemsetD8Async(self, target, value, count, stream):
        self.queued.append(("clear", stream or 0, target, value, count))
        return self._code("cuMemsetD8Async")

    def _cuStreamSynchronize(self, stream):
        self.queued.append(("wait", stream or 0))
        self.finish()
        return self._code("cuStreamSynchronize")

    def cuMemcpyDtoDAsync(self, *given):
        return self._cuMemcpyDtoDAsync(*given)

    def cuMemsetD8Async(self, *given):
        return self._cuMemsetD8Async(*given)

    def cuStreamSynchronize(self, *given):
        return self._cuStreamSynchronize(*given)

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

    def cuLibraryGetKernel(self, library, name):
        assert library == _RESULTS["cuLibraryLoadData"] and isinstance(name, bytes)
        self.kernels += 1
        return 0, 1000 + self.kernels

    def cuKernelGetParamInfo(self, kernel, index):
        return 0, *self._places(kernel)[index]

    def _places(self, kernel: int) -> list[tuple[int, int]]:
        """A tensor map lies at a multiple of 64 of the chip's parameter space, which begins at 528 on sm_90."""
        places, end = [], 0
        for kind in self.kinds[kernel - 1001] if kernel - 1001 < len(self.kinds) else ():
            size = _KINDS[kind][1]
            places.append((end + -(end + 528) % min(size, 64), size))
            end = sum(places[-1])
        return places

    def cuMemAlloc(self, size):
        if code := self._code("cuMemAlloc"):
            return code, None
        self.allocated += 1
        return 0, 0x1000_0000 * self.allocated

    def cuDeviceGetAttribute(self, which, device):
        reserves = bindings.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        return 0, int(self.reserves) if which == reserves else 1

    def cuDeviceGetName(self, length, device):
        """What lies behind a name's end may be anything, as in the package's buffer."""
        return 0, b"NVIDIA GPU\0".ljust(length)

    def cuDeviceTotalMem(self, device):
        return 0, self.memory

    def cuStreamGetCaptureInfo(self, stream):
        return 0, self.capturing != 0, self.capturing, None, [], [], 0

    # addresses with memory behind them; what is wrong raises

    def cuMemGetAllocationGranularity(self, properties, kind):
        assert kind == bindings.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        return 0, self.granule if self._is_of_a_device(properties) else 0

    def _is_of_a_device(self, properties) -> bool:
        pinned, device = properties.type, properties.location
        assert pinned == bindings.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        return device.type == bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE and device.id == 0

    def cuMemAddressReserve(self, size, *rest):
        if code := self._code("cuMemAddressReserve"):
            return code, None
        address = 0x100_0000_0000 * (1 + len(self._reserved))
        self._reserved.append((address, size))
        return 0, address

    def cuMemCreate(self, size, properties, flags):
        assert self._is_of_a_device(properties)
        taken = sum((*self.mapped.values(), *self._created.values(), size))
        if (code := self._code("cuMemCreate")) or taken > self.memory:
            return code or 2, None
        self._handles += 1
        self._created[self._handles] = size
        return 0, self._handles

    def cuMemMap(self, begin, size, offset, handle, flags):
        end = begin + size
        assert any(first <= begin and end <= first + most for first, most in self._reserved)
        assert all(end <= other or other + most <= begin for other, most in self.mapped.items())
        assert self._created[handle] == size and not size % self.granule
        if code := self._code("cuMemMap"):
            return code
        self.mapped[begin] = size
        return 0

    def cuMemSetAccess(self, begin, size, access, count):
        (only,) = access
        assert (count, self.mapped[begin], self._is_readable(only)) == (1, size, True)
        return self._code("cuMemSetAccess")

    def _is_readable(self, access) -> bool:
        writes = bindings.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        kind = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        return (access.location.type, access.location.id, access.flags) == (kind, 0, writes)

    def cuMemRelease(self, handle):
        del self._created[handle]
        return 0

    def cuMemUnmap(self, address, size):
        assert self.mapped.pop(address) == size
        return 0

    def cuMemAllocHost(self, size):
        self._host.append(ctypes.create_string_buffer(size))
        return 0, ctypes.addressof(self._host[-1])


def stands_for_the_driver(fake: FakeDriver, monkeypatch) -> None:
    monkeypatch.setattr(cuda_driver, "library", cache(lambda: Bindings(fake)))
    monkeypatch.setattr(cuda_driver, "address", cache(cuda_driver.address.__wrapped__))
    monkeypatch.setattr(cuda_driver, "_contexts", {})


def stand_in(monkeypatch) -> FakeDriver:
    """For the driver of a machine with one GPU, as long as the test takes."""
    fake = FakeDriver()
    stands_for_the_driver(fake, monkeypatch)
    monkeypatch.setattr(cuda_driver, "device_count", lambda: 1)
    monkeypatch.setattr(arena, "_arenas", {})
    monkeypatch.setattr(arena, "workspaces", Counter())
    for known in (cuda_driver.attribute, arena._granule):
        known.cache_clear()
    return fake
