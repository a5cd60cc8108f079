"""Arrays of other packages: NumPy, PyTorch, CuPy, and all arrays with DLPack or the CUDA array interface.

`view` describes an array's memory without copying it. PyTorch and CuPy are never imported here, only
recognised when the program has imported them. The paths for NumPy and PyTorch are on every call of a compiled
program: they are short.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type"

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict

import numpy as np

from tilec.core.conversions import to_float
from tilec.core.diagnostics import CallError
from tilec.core.dtypes import BOOL, DTYPES, F32, I64, DType, from_numpy
from tilec.runtime import huge_pages

if TYPE_CHECKING:
    import cupy
    import torch

    from tilec.runtime.cuda import dlpack

Device = Literal["cpu"] | int
Array: TypeAlias = "np.ndarray | torch.Tensor | cupy.ndarray"


class _Described(TypedDict):
    """The CUDA array interface, but for what older versions of it lack."""

    shape: tuple[int, ...]
    typestr: str
    data: tuple[int, bool]
    strides: NotRequired[tuple[int, ...] | None]
    stream: NotRequired[int | None]


class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> _Described: ...


class Buffer(NamedTuple):
    """Memory of an array. `strides` count elements; `device` is "cpu" or a CUDA device's number.

    `owner` keeps the memory alive, so keep the buffer for as long as a kernel may run on it.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: Device
    readonly: bool
    owner: Any

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.bytes

    @property
    def contiguous(self) -> bool:
        """Whether elements follow one another in row-major order; strides of dimensions of size 1 do not
        matter, nor do any where there is no element."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != step:
                return 0 in self.shape
            step *= size
        return True

    def extent(self) -> tuple[int, int]:
        """The half-open range of addresses that its elements are in."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        reach = [(n - 1) * s * self.dtype.bytes for n, s in zip(self.shape, self.strides)]
        low = self.pointer + sum(r for r in reach if r < 0)
        return low, self.pointer + sum(r for r in reach if r > 0) + self.dtype.bytes


def view(array: object, stream: int | None = None) -> Buffer:
    """Describes `array`. Python numbers become 0-d f32, i64 or bool. `stream` is where the memory will be
    used.

    Raises `CallError` for arguments that a program cannot take: objects, complex numbers, tensors that record
    gradients, ...
    """
    if isinstance(array, np.ndarray):
        if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
            raise CallError("masked arrays are not supported", hint="pass array.filled(value), or array.data")
        return _view_numpy(array)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _view_torch(array, torch)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return _view_cupy(array)
    if isinstance(array, (bool, int, float, np.generic)):
        return _view_scalar(array)
    if not isinstance(array, type):
        if hasattr(array, "__cuda_array_interface__"):
            return _view_cuda_interface(array)
        if hasattr(array, "__dlpack__"):
            return _view_dlpack(array, stream)
    got = f"the class {array.__name__}" if isinstance(array, type) else _kind(array)
    raise CallError(f"expected an array, got {got}", hint="pass a NumPy, PyTorch or CuPy array, or a number")


def number(value: float, dtype: DType) -> np.ndarray:
    """A Python number as a 0-d array. Raises CallError unless the type has it: integers have whole numbers within their range,
    bool has 0 and 1; floats round, but for finite numbers beyond their largest, and infinities where they have none."""
    try:
        if dtype.is_float:
            array = to_float(np.float64(value), dtype.numpy)
            if math.isinf(float(array)) == math.isinf(value) and math.isnan(float(array)) == math.isnan(value):
                return array
        elif isinstance(value, int) and (dtype.is_integer or value in (0, 1)):
            return np.asarray(value, dtype.numpy)
    except OverflowError:
        pass
    shown = repr(value) if not isinstance(value, int) or value.bit_length() <= 128 else "a larger number"
    raise CallError(f"{shown} is not a value of {dtype}, which holds {_values(dtype)}", hint=_other(value, dtype))


def _values(dtype: DType) -> str:
    if dtype.kind == "bool":
        return "True and False"
    if dtype.is_integer:
        return f"whole numbers from {np.iinfo(dtype.numpy).min} to {np.iinfo(dtype.numpy).max}"
    import ml_dtypes

    largest = float(ml_dtypes.finfo(dtype.numpy).max)
    return f"numbers from {-largest:.7g} to {largest:.7g}"


def _other(value: float, dtype: DType) -> str | None:
    whole = isinstance(value, float) and math.isfinite(value) and not dtype.is_float
    return "round the argument, or declare the parameter as f32" if whole else None


# One kind of array each


def _view_numpy(array: np.ndarray) -> Buffer:
    dtype = from_numpy(array.dtype) or _refuse_dtype(array.dtype)
    size, flags = dtype.bytes, array.flags
    if not flags.aligned:
        raise CallError("the array is not aligned to its elements", hint="pass array.copy()")
    if flags.c_contiguous:
        strides = row_major(array.shape)
    else:
        strides = _elements(array.strides, size)
    return Buffer(array.__array_interface__["data"][0], array.shape, strides, dtype, "cpu", not flags.writeable, array)


def _view_torch(tensor: torch.Tensor, torch: ModuleType) -> Buffer:
    dtype = torch_dtypes().get(tensor.dtype)
    if dtype is None:
        _refuse_dtype(tensor.dtype)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise CallError(
            "the tensor requires gradients, which compiled programs do not compute",
            hint="pass tensor.detach(), or call inside torch.no_grad()",
        )
    if tensor.is_cuda:
        device: Device = tensor.get_device()
    elif tensor.is_cpu:
        device = "cpu"
    else:
        raise CallError(f"the tensor is on {tensor.device}", hint="move it with tensor.cpu() or tensor.cuda()")
    if tensor.layout is not torch.strided or tensor.is_neg():
        raise CallError("the tensor is not plain strided memory", hint="pass tensor.to_dense() or tensor.resolve_neg()")
    return Buffer(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), dtype, device, False, tensor)


def _view_cupy(array: cupy.ndarray) -> Buffer:
    dtype = from_numpy(array.dtype) or _refuse_dtype(array.dtype)
    strides = _elements(array.strides, dtype.bytes)
    return Buffer(array.data.ptr, array.shape, strides, dtype, array.device.id, False, array)


def _view_scalar(value: float | np.generic) -> Buffer:
    if isinstance(value, np.generic):
        return _view_numpy(np.asarray(value))
    return _view_numpy(number(value, BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F32))


def _view_cuda_interface(array: _CudaArray) -> Buffer:
    from tilec.runtime.cuda.driver import CudaError, device_of, synchronize_stream

    try:
        described = array.__cuda_array_interface__
        dtype = from_numpy(np.dtype(described["typestr"])) or _refuse_dtype(described["typestr"])
        pointer, readonly = described["data"]
        shape, strides = tuple(described["shape"]), described.get("strides")
        strides = row_major(shape) if strides is None else _elements(strides, dtype.bytes)
        if described.get("stream"):  # its owner has work under way there (version 3 of the interface)
            synchronize_stream(described["stream"])
        return Buffer(pointer, shape, strides, dtype, device_of(pointer), readonly, array)
    except CudaError as error:
        raise CallError(f"{_kind(array)} is on a GPU that cannot be used: {error}") from None
    except (AttributeError, KeyError, TypeError) as error:
        raise CallError(f"{_kind(array)} describes its memory in a way that cannot be read: {error!r}") from None


def _view_dlpack(array: dlpack.Exporter, stream: int | None) -> Buffer:
    from tilec.runtime.cuda import dlpack

    try:
        kind, device = array.__dlpack_device__()
    except (AttributeError, TypeError, ValueError) as error:
        traced = is_jax(array) and "Tracer" in type(array).__name__
        hint = "JAX traces here: `tilec.jax.op` makes an op that JAX can trace" if traced else None
        raise CallError(f"{_kind(array)} cannot be exported by DLPack: {error}", hint=hint) from error
    on_gpu = kind in (dlpack.CUDA, dlpack.CUDA_MANAGED)
    if not on_gpu and kind not in (dlpack.CPU, dlpack.CUDA_HOST):
        raise CallError(f"{_kind(array)} is on a device of DLPack type {kind}, neither CPU nor CUDA")
    try:
        # DLPack's number for the legacy default stream is 1: 0 is ambiguous.
        found = dlpack.read(array, (stream or 1) if on_gpu else None)
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        raise CallError(f"{_kind(array)} cannot be exported by DLPack: {error}") from error
    if found.dtype is None:
        _refuse_dtype(found.type_name)
    strides = row_major(found.shape) if found.strides is None else found.strides
    location: Device = int(device) if on_gpu else "cpu"
    return Buffer(found.pointer, found.shape, strides, found.dtype, location, found.readonly, (array, found.capsule))


def _elements(strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    if any(s % size for s in strides):
        raise CallError("the array's strides are not multiples of its element size", hint="pass array.copy()")
    return tuple(s // size for s in strides)


@cache
def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a new array, in elements: a size of 0 counts as 1."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _kind(array: object) -> str:
    if array is None:
        return "None"
    kind = f"{type(array).__module__}.{type(array).__name__}".removeprefix("builtins.")
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _refuse_dtype(dtype: object) -> DType:
    name, hint = str(dtype), "the element types are " + ", ".join(DTYPES)
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        hint = "it is byte-swapped: pass array.astype(array.dtype.newbyteorder('='))"
    elif "complex" in name:
        hint = "pass array.real and array.imag"
    raise CallError(f"arrays of {name} are not supported", hint=hint)


@cache
def torch_dtypes() -> dict[torch.dtype, DType]:
    torch = sys.modules["torch"]
    names = {
        **{f"i{b}": f"int{b}" for b in (8, 16, 32, 64)},
        **{f"u{b}": f"uint{b}" for b in (8, 16, 32, 64)},
        **{f"f{b}": f"float{b}" for b in (16, 32, 64)},
        **{"bool": "bool", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"},
    }
    return {getattr(torch, there): DTYPES[here] for here, there in names.items() if hasattr(torch, there)}


def captures() -> bool:
    """Whether PyTorch's current stream is captured into a CUDA graph, which copies nothing from the host."""
    return sys.modules["torch"].cuda.is_current_stream_capturing()


@cache
def to_torch(name: str) -> torch.dtype:
    return next(there for there, here in torch_dtypes().items() if here.name == name)


def parameter() -> type[torch.nn.Parameter]:
    """The type of PyTorch's parameters, which are tensors like others where no gradients are recorded."""
    return sys.modules["torch"].nn.Parameter


@cache
def _torch_device(device: Device) -> torch.device:
    return sys.modules["torch"].device("cpu" if device == "cpu" else f"cuda:{device}")


# Results


def empty_like_kind(example: object, shape: tuple[int, ...], dtype: DType, device: Device) -> Array:
    """A new, unset array of the kind of `example` (NumPy, PyTorch, CuPy) on `device`. JAX's arrays do not change: a call writes
    into another array, which `to_jax` makes one of JAX's.

    Numbers and CPU arrays of other kinds give NumPy arrays; GPU arrays of other kinds give what the program
    has imported.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(example, torch.Tensor):
        return huge_pages.advised(torch.empty(shape, dtype=to_torch(dtype.name), device=_torch_device(device)))
    if device == "cpu":
        return np.empty(shape, dtype.numpy)
    if cupy is not None and (torch is None or isinstance(example, cupy.ndarray)):
        with cupy.cuda.Device(device):
            return cupy.empty(shape, dtype.numpy)
    if torch is not None:
        return torch.empty(shape, dtype=to_torch(dtype.name), device=_torch_device(device))
    raise CallError(
        f"a result of the kind of {_kind(example)} cannot be allocated",
        hint="pass out=, or import torch or cupy, which can allocate on the GPU",
    )


def is_jax(array: object) -> bool:
    """Whether it is one of JAX's arrays, which never change."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, getattr(jax, "Array", ()))


def to_jax(array: Array, example: Any, name: str) -> Any:
    """A result as an array of JAX on the device of `example`; where it can be, without a copy. JAX has 32-bit types for 64-bit ones
    unless `jax_enable_x64` is set. Raises CallError for an integer that these lack."""
    jax = sys.modules["jax"]
    if not isinstance(array, np.ndarray):  # on a GPU: one of CuPy's or PyTorch's
        return jax.dlpack.from_dlpack(array)
    made = jax.device_put(array, next(iter(example.devices())), may_alias=True)
    if made.dtype != array.dtype and array.dtype.kind in "iu" and array.size:
        held = np.iinfo(made.dtype)
        if array.min() < held.min or array.max() > held.max:
            hint = 'jax.config.update("jax_enable_x64", True)'
            raise CallError(f"`{name}` has values that JAX's {made.dtype} does not hold", hint=hint)
    return made


def new_tensor(element: torch.Tensor, shape: tuple[int, ...]) -> Callable[[], torch.Tensor]:
    """A function that allocates a row-major tensor of a single `element`'s dtype, on its device. PyTorch does it like another
    tensor in half the time that it takes to read a shape, a dtype and a device. `element` loses its memory: it may be of a pool
    whose owner counts what lives there, as PyTorch does when it records a CUDA graph."""
    like = element.expand(shape) if math.prod(shape) > 1 else element.new_empty(shape)  # of few elements, with their strides
    for kept in (element, like):
        kept.untyped_storage().resize_(0)
    new = partial(sys.modules["torch"].empty_like, like)
    return huge_pages.allocator(new, math.prod(shape) * like.element_size()) if like.is_cpu else new


class _Memory:
    """An address range in the form that NumPy reads."""

    def __init__(self, buffer: Buffer, typestr: str):
        size = buffer.dtype.bytes
        self.owner = buffer.owner
        self.__array_interface__ = {
            "version": 3,
            "data": (buffer.pointer, buffer.readonly),
            "shape": buffer.shape,
            "strides": tuple(s * size for s in buffer.strides),
            "typestr": typestr,
        }


def wrap(buffer: Buffer) -> np.ndarray:
    """CPU memory of any kind as a NumPy array, not copied, as a CPU kernel takes it. It keeps the owner
    alive."""
    if buffer.device != "cpu":
        raise ValueError(f"the memory is on CUDA device {buffer.device}")
    if isinstance(buffer.owner, np.ndarray) and buffer.owner.dtype == buffer.dtype.numpy:
        return buffer.owner
    if 0 in buffer.shape:
        return np.empty(buffer.shape, buffer.dtype.numpy)
    return np.asarray(_Memory(buffer, f"|V{buffer.dtype.bytes}")).view(buffer.dtype.numpy)


def overlaps_itself(buffer: Buffer) -> bool:
    """Whether two of its elements share memory. In doubt, yes.

    Two elements that do differ first in some dimension: one of them is then, up to a shift, at that dimension's start, and
    the other one behind it.
    """
    if buffer.contiguous or 0 in buffer.shape:
        return False
    for k, (size, stride) in enumerate(zip(buffer.shape, buffer.strides)):
        inner, strides = buffer.shape[k + 1 :], buffer.strides[k:]
        first = buffer._replace(shape=(1, *inner), strides=strides)
        behind = buffer._replace(
            pointer=buffer.pointer + stride * buffer.dtype.bytes, shape=(size - 1, *inner), strides=strides
        )
        if overlaps(first, behind):
            return True
    return False


def overlaps(a: Buffer, b: Buffer) -> bool:
    """Whether an element of `a` shares memory with one of `b`. In doubt (a hard Diophantine problem), yes.

    Exact for slices and transposes of one array: `x[::2]` and `x[1::2]` do not overlap, nor do halves of
    columns.
    """
    if a.device != b.device:
        return False
    (low_a, high_a), (low_b, high_b) = a.extent(), b.extent()
    if high_a <= low_b or high_b <= low_a:
        return False
    # NumPy's solver compares addresses and never touches the memory, so it serves for device memory, too.
    one, other = (np.asarray(_Memory(x, f"|V{x.dtype.bytes}")) for x in (a, b))
    try:
        return np.shares_memory(one, other, max_work=100_000)
    except np.exceptions.TooHardError:
        return True
