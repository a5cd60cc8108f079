"""XLA's typed foreign function interface, as far as a handler in Python needs it: what a call is given, and errors.

The structures are those of `xla/ffi/api/c_api.h`, version 0.1 and later ones, which only add fields behind these.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p, pointer

from tilec.core.dtypes import DTYPES, DType

METADATA = 1  # the extension of a call that only asks for the version
INTERNAL = 13  # the code of an error
TYPES = {
    1: "bool", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32", 12: "f64",
    16: "bf16", 19: "f8e5m2", 20: "f8e4m3",
}  # fmt: skip

Memory = tuple[int, tuple[int, ...], DType]
"""A buffer's address, shape and type. It is row-major."""


class _Extension(Structure):
    pass


_Extension._fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", POINTER(_Extension))]


class _Version(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _ErrorArguments(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int)]


class _StreamArguments(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("stream", c_void_p)]


_Function = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class _Api(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension", c_void_p), ("version", _Version), ("internal", c_void_p),
        ("error_create", _Function), ("error_message", c_void_p), ("error_destroy", c_void_p), ("register", c_void_p),
        ("stream_get", _Function),
    ]  # fmt: skip


class _Buffer(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension", c_void_p), ("type", c_int), ("data", c_void_p), ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]  # fmt: skip


class _Buffers(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension", c_void_p), ("size", c_int64), ("types", c_void_p),
        ("values", POINTER(POINTER(_Buffer))),
    ]  # fmt: skip


class _Frame(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension", POINTER(_Extension)), ("api", POINTER(_Api)), ("context", c_void_p),
        ("stage", c_int), ("arguments", _Buffers), ("results", _Buffers),
    ]  # fmt: skip


Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
Run = Callable[[Sequence[Memory], Sequence[Memory], Callable[[], int]], None]
"""What a call does with its arguments and results, and with what gives its stream, on a GPU."""


def handler(run: Run) -> object:
    """A C function that XLA calls. What `run` raises becomes an error of XLA's. It must live as long as XLA may call it."""

    def called(frame: ctypes._Pointer[_Frame]) -> int | None:
        given = frame.contents
        if given.extension and given.extension.contents.type == METADATA:
            metadata = ctypes.cast(given.extension, POINTER(_MetadataExtension)).contents.metadata.contents
            metadata.version.major, metadata.version.minor = 0, 1
            metadata.traits = 0
            return None
        try:
            run(_memory(given.arguments), _memory(given.results), lambda: _stream(given))
        except Exception as error:
            message = f"{type(error).__name__}: {error}".encode()
            arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, INTERNAL)
            return given.api.contents.error_create(ctypes.addressof(arguments))
        return None

    return Handler(called)


def _memory(buffers: _Buffers) -> list[Memory]:
    found = []
    for n in range(buffers.size):
        each = buffers.values[n].contents
        found.append((each.data or 0, tuple(each.dims[d] for d in range(each.rank)), DTYPES[TYPES[each.type]]))
    return found


def _stream(frame: _Frame) -> int:
    arguments = _StreamArguments(ctypes.sizeof(_StreamArguments), None, frame.context, None)
    if frame.api.contents.stream_get(ctypes.addressof(pointer(arguments).contents)):
        raise RuntimeError("XLA gives no stream")
    return arguments.stream or 0
