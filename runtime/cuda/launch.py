"""Loads cubins and launches them by `cuLaunchKernelEx`: the first calls of an op, and calls outside the fast path."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilec.core.diagnostics import CallError
from tilec.runtime.cuda import driver

# Parameter kinds: struct format, size. A tensor map is 128 bytes on a multiple of 64.
_KINDS = {
    "i64": ("q", 8),
    "u64": ("Q", 8),
    "f64": ("d", 8),
    "i32": ("i", 4),
    "u32": ("I", 4),
    "f32": ("f", 4),
}
_KINDS |= {"tensor_map": ("128s", 128)}
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14  # CUfunction_attribute
_LARGEST_PORTABLE_CLUSTER = 8


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a kind, and a value of 64 bytes."""

    _fields_ = (("kind", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint * 16))


_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6


class Kernel:
    """A loaded cubin's entry. It belongs to no context: the driver loads it into each device that it is
    launched on.

    It is never unloaded: a launch may still run when the last reference goes, and cubins are small.
    """

    def __init__(self, image: bytes, entry: str, parameters: Sequence[str]):
        self.image, self.entry, self.parameters = image, entry, tuple(parameters)
        self._library, self.handle = ctypes.c_void_p(), ctypes.c_void_p()
        none, no_options = None, ctypes.c_uint(0)
        driver.call(
            "cuLibraryLoadData",
            ctypes.byref(self._library),
            image,
            none,
            none,
            no_options,
            none,
            none,
            no_options,
        )
        driver.call("cuLibraryGetKernel", ctypes.byref(self.handle), self._library, entry.encode())

    def offsets(self) -> list[int]:
        """Where the driver has each parameter, and where the last ends: a tensor map's place depends on where the chip's
        parameter space begins, which is at no multiple of 64."""
        if "tensor_map" not in self.parameters:
            return parameter_offsets(self.parameters)
        found, end = [], 0
        for index in range(len(self.parameters)):
            offset, size = ctypes.c_size_t(), ctypes.c_size_t()
            driver.call(
                "cuKernelGetParamInfo", self.handle, ctypes.c_size_t(index), ctypes.byref(offset), ctypes.byref(size)
            )
            found.append(offset.value)
            end = offset.value + size.value
        return [*found, end]

    def configure(self, shared: int, cluster: int, device: int) -> None:
        """Lets the kernel have more than 48 KiB of dynamic shared memory, and clusters of more than 8
        blocks."""
        if shared:
            self._set(_MAX_DYNAMIC_SHARED, shared, device)
        if cluster > _LARGEST_PORTABLE_CLUSTER:
            self._set(_NON_PORTABLE_CLUSTER, 1, device)

    def _set(self, attribute: int, value: int, device: int) -> None:
        driver.call("cuKernelSetAttribute", attribute, value, self.handle, device)


class Launcher:
    """A kernel with everything fixed but its arguments and the stream.

    `launch(stream, *arguments)` takes integers, floats and tensor maps as the kernel's parameters say. It is
    safe in many threads at once. Of a `persistent` kernel at most as many blocks, or clusters, are launched as run at a time, and a
    multiple of that number if so many do. Blocks of an
    `overlap` kernel may be placed before the kernel ahead of them on the stream has ended.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int = 0,
        cluster: Sequence[int] = (1, 1, 1),
        device: int = 0,
        persistent: int = 0,
        overlap: bool = False,
    ):
        self.kernel, self.device = kernel, device
        self.empty = 0 in grid  # the driver refuses empty grids
        driver.use_device(device)
        blocks = cluster[0] * cluster[1] * cluster[2]
        kernel.configure(shared, blocks, device)
        self._config = _Config(tuple(grid), tuple(block), shared)
        attributes = [_Attribute(_CLUSTER_DIMENSION, 0, tuple(cluster))] if blocks > 1 else []
        attributes += [_Attribute(_PROGRAMMATIC_SERIALIZATION, 0, (1,))] if overlap else []
        if attributes:
            self._attributes = (_Attribute * len(attributes))(*attributes)
            self._config.attributes = ctypes.addressof(self._attributes)
            self._config.attribute_count = len(attributes)
        if persistent:
            most = min(grid[0] // blocks, self._blocks_at_a_time(blocks))
            self._config.grid[0] = blocks * (most // persistent * persistent or most)
        self.offsets = kernel.offsets()
        self._parameters = struct.Struct(parameter_format(kernel.parameters, self.offsets))

    @property
    def config(self) -> int:
        """The address of the configuration, which lacks the stream."""
        return ctypes.addressof(self._config)

    def _blocks_at_a_time(self, cluster: int) -> int:
        """How many blocks, or clusters of them, the device runs at a time. Clusters lie within one group of SMs (GPC),
        and how many SMs the groups of a chip have is known to its driver only."""
        count, function = ctypes.c_int(), ctypes.c_void_p()
        driver.call("cuKernelGetFunction", ctypes.byref(function), self.kernel.handle)
        if cluster > 1:
            driver.call("cuOccupancyMaxActiveClusters", ctypes.byref(count), function, ctypes.byref(self._config))
            return max(1, count.value)
        threads, shared = self._config.block[0], ctypes.c_size_t(self._config.shared)
        driver.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(count), function, threads, shared)
        return max(1, count.value * driver.multiprocessors(self.device))

    def launch(self, stream: int, *arguments: Any) -> None:
        """Queues the kernel. Faults of the kernel itself show at a later call, as `KernelFault`."""
        if self.empty:
            return
        driver.enter_device(self.device)
        config = _Config.from_buffer_copy(self._config)
        config.stream = stream
        data = ctypes.create_string_buffer(self._parameters.pack(*arguments), self._parameters.size)
        size = ctypes.c_size_t(len(data))  # the driver copies the buffer, so its own alignment does not matter
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(data), 2, ctypes.addressof(size), 0)  # CU_LAUNCH_PARAM_...
        code = driver.library().cuLaunchKernelEx(ctypes.byref(config), self.kernel.handle, None, extra)
        if code:
            raise driver.failure(f"launch of {self.kernel.entry}", code)


def parameter_offsets(kinds: Sequence[str]) -> list[int]:
    """Where each parameter begins, at a multiple of its size or of 64, and where the last ends."""
    offsets, end = [], 0
    for kind in kinds:
        size = _KINDS[kind][1]
        offsets.append(end + -end % min(size, 64))
        end = offsets[-1] + size
    return [*offsets, end]


def parameter_format(kinds: Sequence[str], offsets: Sequence[int]) -> str:
    """The `struct` format of parameters at these places."""
    text, end = "<", 0
    for kind, offset in zip(kinds, offsets):
        code, size = _KINDS[kind]
        text += f"{offset - end}x{code}"
        end = offset + size
    return text


# Streams


def stream_handle(stream: Any) -> int:
    """The driver's handle of an int, a PyTorch or CuPy stream, or anything with `__cuda_stream__`."""
    if isinstance(stream, int):
        return stream
    if (protocol := getattr(stream, "__cuda_stream__", None)) is not None:
        version, handle = protocol() if callable(protocol) else protocol
        if version == 0:
            return int(handle)
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, cuda.core
        if (handle := getattr(stream, name, None)) is not None:
            return int(handle)
    what = f"stream= must be a CUDA stream, not a value of the type {type(stream).__name__}"
    raise CallError(what, hint="pass its handle, or an object with __cuda_stream__")


def current_stream(device: int = 0, owner: Any = None) -> int:
    """The stream that `owner`'s library would use now: CuPy's for CuPy arrays, else PyTorch's, else the
    default."""
    if (cupy := sys.modules.get("cupy")) is not None and (
        isinstance(owner, cupy.ndarray) or "torch" not in sys.modules
    ):
        return cupy.cuda.get_current_stream(device).ptr
    if (raw := _torch_stream()) is not None:
        return raw(device)
    return 0


def _torch_stream() -> Callable[[int], int] | None:
    """PyTorch's own short way; `torch.cuda.current_stream()` takes several microseconds."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch._C._cuda_getCurrentRawStream


# Tensor maps (TMA)

_TENSOR_TYPES = {
    "u8": 0,
    "u16": 1,
    "u32": 2,
    "i32": 3,
    "u64": 4,
    "i64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
    "bf16": 9,
    "tf32": 11,  # f32 numbers that are rounded on the way
}
_TENSOR_TYPES |= {"i8": 0, "bool": 0, "f8e4m3": 0, "f8e5m2": 0, "i16": 1}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


class TiledMap:
    """Describes row-major tensors of a type and shape to TMA (`cuTensorMapEncodeTiled`), of which boxes are loaded; what lies
    outside the shape reads as zeros. A box has every `steps[d]`-th element along dimension d, each by default. The tensor is at the
    address that is a kernel's `parameter`; its rows are multiples of 16 bytes."""

    def __init__(
        self, parameter: int, dtype: str, shape: Sequence[int], box: Sequence[int], swizzle: int = 0, item_bytes: int = 2,
        steps: Sequence[int] = (),
    ):  # fmt: skip
        self.parameter, self.rank = parameter, len(shape)
        self.dtype, self.swizzle = _TENSOR_TYPES[dtype], _SWIZZLES[swizzle]
        pitches, step = [], item_bytes
        for extent in reversed(shape):
            pitches.append(step := step * extent)
        self.sizes, self.pitches = ((ctypes.c_uint64 * self.rank)(*row) for row in (reversed(shape), pitches))
        steps = steps or [1] * self.rank
        covered = [size * step for size, step in zip(box, steps)]  # the driver divides by steps, and rounds up
        self.boxes, self.steps = ((ctypes.c_uint32 * self.rank)(*row[::-1]) for row in (covered, list(steps)))
        self.interleave, self.promotion, self.fill = 0, 2, 0  # 128 bytes come into L2

    def encode(self, pointer: int) -> bytes:
        """The 128 bytes of the tensor map for a tensor."""
        raw = ctypes.create_string_buffer(128 + 64)
        aligned = ctypes.addressof(raw) + -ctypes.addressof(raw) % 64
        driver.call(
            "cuTensorMapEncodeTiled", ctypes.c_void_p(aligned), self.dtype, ctypes.c_uint32(self.rank),
            ctypes.c_void_p(pointer), self.sizes, self.pitches, self.boxes, self.steps, self.interleave, self.swizzle,
            self.promotion, self.fill,
        )  # fmt: skip
        return ctypes.string_at(aligned, 128)


# Timing


def time_kernel(
    launch: Callable[[int], None],
    stream: int = 0,
    *,
    repeats: int = 30,
    warmup: int = 5,
    flush: bool = True,
    device: int = 0,
) -> list[float]:
    """Seconds of each of `repeats` calls of `launch(stream)`, by events on the GPU. `flush` empties the L2
    between them."""
    driver.use_device(device)
    scratch, size = ctypes.c_uint64(), ctypes.c_size_t(2 * driver.l2_bytes(device) if flush else 0)
    events = [(_event(), _event()) for _ in range(repeats)]
    handle = ctypes.c_void_p(stream)
    try:
        if flush:
            driver.call("cuMemAlloc_v2", ctypes.byref(scratch), size)
        for _ in range(warmup):
            launch(stream)
        for begin, end in events:
            if flush:
                driver.call("cuMemsetD8Async", scratch, ctypes.c_ubyte(0), size, handle)
            driver.call("cuEventRecord", begin, handle)
            launch(stream)
            driver.call("cuEventRecord", end, handle)
        driver.call("cuStreamSynchronize", handle)
        return [_elapsed(begin, end) for begin, end in events]
    finally:
        for event in (e for pair in events for e in pair):
            driver.library().cuEventDestroy_v2(event)
        if scratch.value:
            driver.library().cuMemFree_v2(scratch)


def _event() -> ctypes.c_void_p:
    event = ctypes.c_void_p()
    driver.call("cuEventCreate", ctypes.byref(event), 0)
    return event


def _elapsed(begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
    milliseconds = ctypes.c_float()
    name = "cuEventElapsedTime_v2" if hasattr(driver.library(), "cuEventElapsedTime_v2") else "cuEventElapsedTime"
    driver.call(name, ctypes.byref(milliseconds), begin, end)
    return milliseconds.value / 1e3


def device_info() -> driver.SystemInfo:
    """The GPUs of this machine, or the reason why there are none, for `tilec doctor`."""
    return driver.device_info()
