"""Reads a DLPack capsule without copying: pointer, shape, strides, type, device (dlpack.h, versions 0.8 and
1.x).

Used for arrays that are neither NumPy's, PyTorch's nor CuPy's. NumPy's own reader knows no bfloat16, no
float8, no device.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import NamedTuple, Protocol

from tilec.core.dtypes import DTYPES, DType

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1

# (type code, bits) of DLDataType
_TYPES = {(6, 8): "bool", (4, 16): "bf16", (10, 8): "f8e4m3", (12, 8): "f8e5m2"}
_TYPES |= {(0, b): f"i{b}" for b in (8, 16, 32, 64)} | {(1, b): f"u{b}" for b in (8, 16, 32, 64)}
_TYPES |= {(2, b): f"f{b}" for b in (16, 32, 64)}
TYPES = {name: pair for pair, name in _TYPES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Exporter(Protocol):
    """An array that DLPack exports."""

    def __dlpack__(self, *, stream: int | None = ..., max_version: tuple[int, int] = ...) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class Described(NamedTuple):
    """`strides` in elements; `dtype` None where the language has none, `type_name` to say which that is.

    `capsule` keeps the memory alive.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: DType | None
    type_name: str
    device_type: int
    device_id: int
    readonly: bool
    capsule: object


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def read(array: Exporter, stream: int | None) -> Described:
    """What `array.__dlpack__()` says. The capsule is not consumed: its own destructor frees the tensor with
    it.

    `stream` is the stream that will use the memory; the array's owner makes it wait for work under way.
    """
    capsule = _export(array, stream)
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        tensor, readonly = managed.tensor, bool(managed.flags & _READ_ONLY)
    else:  # DLManagedTensor begins with the tensor
        tensor, readonly = _Tensor.from_address(_pointer(capsule, b"dltensor")), False
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.ndim and tensor.strides else None
    name = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    return Described(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        DTYPES[name] if name else None,
        f"complex{tensor.bits}" if tensor.code == 5 else f"DLPack type {tensor.code} of {tensor.bits} bits",
        tensor.device_type,
        tensor.device_id,
        readonly,
        capsule,
    )


def _export(array: Exporter, stream: int | None) -> object:
    export = array.__dlpack__ if stream is None else partial(array.__dlpack__, stream=stream)
    try:
        return export(max_version=(1, 0))
    except TypeError:  # older than DLPack 1.0
        return export()
