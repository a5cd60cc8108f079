"""Fast calls of a CPU program, on arrays like those of an earlier call: built-in functions for Python (`runtime/native/cpu.py`)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from tilec.core.amounts import largest, times
from tilec.core.dtypes import DType
from tilec.runtime import buffers
from tilec.runtime.cpu.launch import builtin, native
from tilec.runtime.cuda.dlpack import CPU, TYPES
from tilec.runtime.native import cpu as cpu_native
from tilec.runtime.native.tables import Call, KeepAlive, Prepared, Spec
from tilec.runtime.program import Amount

if TYPE_CHECKING:
    import torch

ALIGNED_ROWS, WRITEABLE = 0x101, 0x400  # NumPy's flags C_CONTIGUOUS and ALIGNED; WRITEABLE
A = TypeVar("A")
T = TypeVar("T")
Array = tuple[DType, tuple[Amount, ...]]
Strided = tuple[DType, tuple[int, ...], tuple[int, ...]]


class Runner(NamedTuple):
    """A program, ready to run: its `table`, for the function `execute`, which takes `words` words of memory. `owner` keeps it.

    Arrays begin at multiples of `aligned` bytes, or else of their elements. `device` is DLPack's type and number, `current`
    the address of what tells the stream there, 0 where there are none.
    """

    owner: object
    table: int
    execute: str
    words: int
    aligned: int = 1
    device: tuple[int, int] = (CPU, 0)
    current: int = 0
    handle: Callable[[Any], int] = int


class CallTable:
    """`function(arrays, out, stream)` gives what a call returns: the results, or what `wrap` makes of a tuple of several. Or
    `no`, where arguments are not NumPy arrays or PyTorch tensors (by `kind`) of these types and shapes, row-major and
    aligned, results apart from all others; and while gradients of one are recorded. `new` allocate the results."""

    def __init__(
        self, runner: Runner, kind: type, inputs: Sequence[Array], outputs: Sequence[Array],
        new: Sequence[Callable[[], object]], wrap: Callable[[Any], Any], no: object,
    ):  # fmt: skip
        self._alive = alive = KeepAlive()
        makes = alive.words([alive.object(each) for each in new])
        table = call_table(alive, runner, kind, inputs, outputs, makes, wrap, no)
        self.function = builtin("tilec_call", table, (alive, runner.owner))


def call_table(
    alive: KeepAlive, runner: Runner, kind: type, inputs: Sequence[Array], outputs: Sequence[Array], new: int,
    wrap: object, no: object,
) -> int:  # fmt: skip
    """The table of `tilec_call`, for a `CallTable`. `new`: the address of a row of what allocates the results."""
    describe = 0 if kind is np.ndarray else exchange(_DESCRIBE)
    flags = [ALIGNED_ROWS] * len(inputs) + [ALIGNED_ROWS | WRITEABLE] * len(outputs)
    specs = [_spec(alive, *array, f, describe, runner.aligned) for array, f in zip((*inputs, *outputs), flags)]
    attributes = {n: alive.object(sys.intern(n)) for n in ("is_neg", "requires_grad")}
    records = alive.object(sys.modules["torch"].is_grad_enabled) if describe else 0
    return alive.table(
        Call, execute=native()[runner.execute], program=runner.table, words=runner.words,
        device=runner.device[0] | runner.device[1] << 32, current=runner.current, handle=alive.object(runner.handle),
        kind=alive.object(kind), like=alive.object(buffers.parameter()) if describe else 0, describe=describe,
        inputs=len(inputs), specs=alive.words(specs), outputs=len(outputs),
        new=new, wrap=alive.object(wrap) if len(outputs) > 1 else 0,
        no=alive.object(no), none=id(None), false=id(False), tuple=id(tuple), list=id(list), records=records, **attributes,
    )  # fmt: skip


def _spec(
    alive: KeepAlive, dtype: DType, shape: Sequence[Amount], flags: int, describe: int, aligned: int,
    strides: Sequence[Amount] | None = None,
) -> int:  # fmt: skip
    """The table of an array that fits: row-major, or of these strides."""
    if strides is None:
        strides = [times(*(largest(n, 1) for n in shape[d + 1 :])) for d in range(len(shape))]
    if describe:
        code, bits = TYPES[dtype.name]
        written = {"dtype": code | bits << 8 | 1 << 16}
    else:
        written = {"dtype": dtype.numpy.num, "order": ord(dtype.numpy.byteorder)}
    return alive.table(
        Spec, mask=max(dtype.bytes, aligned) - 1, bytes=times(*shape, dtype.bytes), flags=flags, rank=len(shape),
        shape=alive.words(shape), strides=alive.words(strides), **written,
    )  # fmt: skip


def prepared(
    runner: Runner, values: int, takes: Sequence[int], inputs: Sequence[Strided], outputs: Sequence[Strided],
    new: Sequence[Callable[[], A] | int], otherwise: Callable[..., T],
) -> Callable[..., A | tuple[A, ...] | T]:  # fmt: skip
    """`function(*values)` runs the program on PyTorch's tensors: its inputs are the values whose numbers `takes` has, its results
    what the functions of `new` allocate, or the values of the numbers there, which are written. It returns a tensor, or a tuple of
    several. Calls `otherwise` for values that are no tensors of these types, shapes and strides. To be called where no gradients
    are recorded."""
    alive, describe = KeepAlive(), exchange(_DESCRIBE)
    specs = [
        _spec(alive, dtype, shape, 0, describe, runner.aligned, strides)
        for dtype, shape, strides in (*inputs, *outputs)
    ]
    table = alive.table(
        Prepared, execute=native()[runner.execute], program=runner.table, words=runner.words,
        device=runner.device[0] | runner.device[1] << 32, current=runner.current,
        kind=alive.object(sys.modules["torch"].Tensor), like=alive.object(buffers.parameter()), describe=describe, values=values,
        inputs=len(inputs), outputs=len(outputs), takes=alive.words(takes),
        into=alive.words([each if isinstance(each, int) else -1 for each in new]), specs=alive.words(specs),
        new=alive.words([0 if isinstance(each, int) else alive.object(each) for each in new]),
        otherwise=alive.object(otherwise),
    )  # fmt: skip
    return builtin("tilec_prepared", table, (alive, runner.owner))


def possible(kind: type) -> bool:
    """Whether machine code can read arrays of this kind in this process."""
    if kind is np.ndarray:
        return _numpy_is_known()
    torch = sys.modules.get("torch")
    return torch is not None and kind is torch.Tensor and exchange(_DESCRIBE) != 0


def new_array(kind: type, dtype: DType) -> Callable[[tuple[int, ...]], Callable[[], np.ndarray | torch.Tensor]]:
    """A function from a shape to one that allocates such an array."""
    if kind is np.ndarray:
        return lambda shape: partial(np.empty, shape, dtype.numpy)
    element = partial(sys.modules["torch"].empty, (), dtype=buffers.to_torch(dtype.name), device="cpu")
    return lambda shape: buffers.new_tensor(element(), shape)


@cache
def _numpy_is_known() -> bool:
    """Whether NumPy lays its arrays down as its ABI says: there are interpreters that only look like Python."""
    array = np.zeros((3, 5), np.float32)
    if hasattr(sys, "pypy_version_info"):
        return False
    at = partial(_read, id(array))
    descr = at(cpu_native.DESCR, ctypes.c_int64)
    return (
        at(cpu_native.HEAD - 8, ctypes.c_int64) == id(np.ndarray)
        and at(cpu_native.DATA, ctypes.c_int64) == array.ctypes.data
        and at(cpu_native.RANK, ctypes.c_int32) == 2
        and at(cpu_native.FLAGS, ctypes.c_int32) == array.flags.num
        and descr == id(array.dtype)
        and _read(descr, cpu_native.TYPE, ctypes.c_int32) == array.dtype.num
        and _read(descr, cpu_native.ORDER, ctypes.c_int8) == ord(array.dtype.byteorder)
        and [_read(at(cpu_native.SHAPE, ctypes.c_int64), 8 * n, ctypes.c_int64) for n in range(2)] == [3, 5]
    )


def _read(address: int, offset: int, kind: type[ctypes.c_int8 | ctypes.c_int32 | ctypes.c_uint32 | ctypes.c_int64]) -> int:
    return kind.from_address(address + offset).value


_DESCRIBE, CURRENT_STREAM = 40, 48  # dltensor_from_py_object_no_sync and current_work_stream of DLPackExchangeAPI


@cache
def exchange(field: int) -> int:
    """A function by which PyTorch tells machine code of its tensors or streams; 0 where it has none (before 2.10)."""
    capsule = getattr(sys.modules["torch"].Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = pointer(capsule, b"dlpack_exchange_api")
    if _read(table, 0, ctypes.c_uint32) != 1:  # DLPack's major version
        return 0
    return _read(table, field, ctypes.c_int64)
