"""Loads cubins and launches them by `cuLaunchKernelEx`: the first calls of an op, and calls outside the fast path."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tilec.core.diagnostics import CallError
from tilec.runtime.cuda import driver

if TYPE_CHECKING:
    from cuda.bindings import driver as bindings


class Described(ctypes.Structure):
    """A CUtensorMap. The driver writes it to a multiple of 64 bytes, where that of `cuda.bindings` does not lie."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)


# Parameter kinds: the type of a value, and bytes. A tensor map begins at a multiple of 64.
_KINDS: dict[str, tuple[type | None, int]] = {
    "i64": (ctypes.c_int64, 8),
    "u64": (ctypes.c_uint64, 8),
    "f64": (ctypes.c_double, 8),
    "i32": (ctypes.c_int32, 4),
    "u32": (ctypes.c_uint32, 4),
    "f32": (ctypes.c_float, 4),
    "tensor_map": (None, 128),
}
_LARGEST_PORTABLE_CLUSTER = 8


class Kernel:
    """A loaded cubin's entry. It belongs to no context: the driver loads it into each device that it is
    launched on.

    It is never unloaded: a launch may still run when the last reference goes, and cubins are small.
    """

    def __init__(self, image: bytes, entry: str, parameters: Sequence[str]):
        self.image, self.entry, self.parameters = image, entry, tuple(parameters)
        self._library = driver.call("cuLibraryLoadData", image, [], [], 0, [], [], 0)
        self.handle = int(driver.call("cuLibraryGetKernel", self._library, entry.encode()))

    def offsets(self) -> list[int]:
        """Where the driver has each parameter, and where the last ends: a tensor map's place depends on where the chip's
        parameter space begins, which is at no multiple of 64."""
        if "tensor_map" not in self.parameters:
            return parameter_offsets(self.parameters)
        found, end = [], 0
        for index in range(len(self.parameters)):
            offset, size = driver.call("cuKernelGetParamInfo", self.handle, index)
            found.append(offset)
            end = offset + size
        return [*found, end]

    def configure(self, shared: int, cluster: int, device: int) -> None:
        """Lets the kernel have more than 48 KiB of dynamic shared memory, and clusters of more than 8
        blocks."""
        if shared:
            self._set("MAX_DYNAMIC_SHARED_SIZE_BYTES", shared, device)
        if cluster > _LARGEST_PORTABLE_CLUSTER:
            self._set("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, device)

    def _set(self, attribute: str, value: int, device: int) -> None:
        which = getattr(driver.library().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{attribute}")
        driver.call("cuKernelSetAttribute", which, value, self.handle, device)


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
        self._grid, self._block, self._shared = tuple(grid), tuple(block), shared
        self._attributes = _attributes(cluster if blocks > 1 else (), overlap)
        if persistent:
            most = min(grid[0] // blocks, self._blocks_at_a_time(blocks))
            self._grid = (blocks * (most // persistent * persistent or most), *self._grid[1:])
        self._config = self._configuration()
        self.offsets = kernel.offsets()
        self._types = tuple(_KINDS[kind][0] for kind in kernel.parameters)

    @property
    def config(self) -> int:
        """The address of the configuration, which lacks the stream."""
        return int(self._config.getPtr())

    def _configuration(self, stream: int = 0) -> bindings.CUlaunchConfig:
        made = driver.library().CUlaunchConfig()
        made.gridDimX, made.gridDimY, made.gridDimZ = self._grid
        made.blockDimX, made.blockDimY, made.blockDimZ = self._block
        made.sharedMemBytes, made.hStream = self._shared, stream
        made.attrs, made.numAttrs = self._attributes, len(self._attributes)
        return made

    def _blocks_at_a_time(self, cluster: int) -> int:
        """How many blocks, or clusters of them, the device runs at a time. Clusters lie within one group of SMs (GPC),
        and how many SMs the groups of a chip have is known to its driver only."""
        function = driver.call("cuKernelGetFunction", self.kernel.handle)
        if cluster > 1:
            return max(1, driver.call("cuOccupancyMaxActiveClusters", function, self._configuration()))
        count = driver.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, self._block[0], self._shared)
        return max(1, count * driver.multiprocessors(self.device))

    def launch(self, stream: int, *arguments: Any) -> None:
        """Queues the kernel. Faults of the kernel itself show at a later call, as `KernelFault`."""
        if self.empty:
            return
        driver.enter_device(self.device)
        config = self._configuration(stream)
        (code,) = driver.library().cuLaunchKernelEx(config, self.kernel.handle, (arguments, self._types), 0)
        if code:
            raise driver.failure(f"launch of {self.kernel.entry}", code)


def _attributes(cluster: Sequence[int], overlap: bool) -> list[bindings.CUlaunchAttribute]:
    cuda, made = driver.library(), []
    if cluster:
        made.append(cuda.CUlaunchAttribute())
        made[-1].id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        shape = made[-1].value.clusterDim
        shape.x, shape.y, shape.z = cluster
    if overlap:
        made.append(cuda.CUlaunchAttribute())
        made[-1].id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        made[-1].value.programmaticStreamSerializationAllowed = 1
    return made


def parameter_offsets(kinds: Sequence[str]) -> list[int]:
    """Where each parameter begins, at a multiple of its size or of 64, and where the last ends."""
    offsets, end = [], 0
    for kind in kinds:
        size = _KINDS[kind][1]
        offsets.append(end + -end % min(size, 64))
        end = offsets[-1] + size
    return [*offsets, end]


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


_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, *[ctypes.c_void_p] * 5, *[ctypes.c_int] * 4
)


class TiledMap:
    """Describes row-major tensors of a type and shape to TMA (`cuTensorMapEncodeTiled`), of which boxes are loaded; what lies
    outside the shape reads as zeros, and is not written. `strides`: elements between neighbours along each dimension, where the
    tensor is a part of a larger one. A box has every `steps[d]`-th element along dimension d, each by default. The tensor is at the
    address that is a kernel's `parameter`; its rows are multiples of 16 bytes."""

    def __init__(
        self, parameter: int, dtype: str, shape: Sequence[int], box: Sequence[int], swizzle: int = 0, item_bytes: int = 2,
        steps: Sequence[int] = (), strides: Sequence[int] = (),
    ):  # fmt: skip
        self.parameter, self.rank = parameter, len(shape)
        self.dtype, self.swizzle = _TENSOR_TYPES[dtype], _SWIZZLES[swizzle]
        spacing = strides or [prod(shape[n + 1 :]) for n in range(self.rank)]
        pitches = [item_bytes * n for n in (*spacing[-2::-1], shape[0] * spacing[0])]  # the last one is not read
        self.sizes, self.pitches = ((ctypes.c_uint64 * self.rank)(*row) for row in (reversed(shape), pitches))
        steps = steps or [1] * self.rank
        covered = [size * step for size, step in zip(box, steps)]  # the driver divides by steps, and rounds up
        self.boxes, self.steps = ((ctypes.c_uint32 * self.rank)(*row[::-1]) for row in (covered, list(steps)))
        self.interleave, self.promotion, self.fill = 0, 2, 0  # 128 bytes come into L2

    def encode(self, pointer: int) -> Described:
        """The tensor map for a tensor."""
        raw = ctypes.create_string_buffer(128 + 64)
        made = Described.from_buffer(raw, -ctypes.addressof(raw) % 64)
        code = _ENCODE(driver.address("cuTensorMapEncodeTiled"))(
            ctypes.addressof(made), self.dtype, self.rank, pointer, self.sizes, self.pitches, self.boxes, self.steps,
            self.interleave, self.swizzle, self.promotion, self.fill,
        )  # fmt: skip
        if code:
            raise driver.failure("cuTensorMapEncodeTiled", code)
        return made


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
    events = [[driver.call("cuEventCreate", 0) for _ in range(2)] for _ in range(repeats)]
    size, scratch = 2 * driver.l2_bytes(device), 0
    try:
        scratch = driver.allocate(size) if flush else 0
        for _ in range(warmup):
            launch(stream)
        for begin, end in events:
            if flush:
                driver.call("cuMemsetD8Async", scratch, 0, size, stream)
            driver.call("cuEventRecord", begin, stream)
            launch(stream)
            driver.call("cuEventRecord", end, stream)
        driver.synchronize_stream(stream)
        return [1e-3 * driver.call("cuEventElapsedTime", begin, end) for begin, end in events]
    finally:
        for event in (e for pair in events for e in pair):
            driver.library().cuEventDestroy(event)
        if scratch:
            driver.release(scratch)
