"""The CUDA driver by ctypes: the functions of launches, and errors with advice.

ctypes, because a launch through prepared C structures takes a fraction of a binding's 4 us, and because a machine with
nothing but a driver can then run cached kernels.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

# CUdevice_attribute
_MULTIPROCESSORS, _MAJOR, _MINOR, _L2_BYTES, _SHARED_OPTIN = 16, 75, 76, 38, 97


class CudaError(RuntimeError):
    """The driver refused. `code` is its CUresult."""

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


class NoDriver(CudaError):
    """There is no GPU to use, and why."""


class OutOfMemory(CudaError):
    """The GPU's memory is full."""


class WrongDevice(CudaError):
    """The kernel was compiled for another GPU than it is launched on."""


class KernelFault(CudaError):
    """A kernel failed by an illegal operation. The process cannot use CUDA any more."""


_KNOWN: dict[int, tuple[type[CudaError], str]] = {
    1: (CudaError, "the grid, block, cluster or shared memory is larger than this GPU allows"),
    2: (OutOfMemory, "free tensors, or torch.cuda.empty_cache()"),
    100: (NoDriver, "no GPU is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES"),
    101: (CudaError, "no GPU has that number"),
    200: (CudaError, "the kernel image is damaged; `tilec cache clear` removes it"),
    209: (WrongDevice, "the kernel was compiled for another GPU"),
    222: (CudaError, "the driver is older than the toolkit: update it, or install an older tilec[cuda]"),
    400: (CudaError, "the stream or the kernel belongs to another device or is destroyed"),
    700: (KernelFault, "a kernel accessed an illegal address; run under compute-sanitizer"),
    701: (CudaError, "a block needs more registers or shared memory than the GPU has"),
    715: (KernelFault, "a kernel executed an illegal instruction"),
    716: (KernelFault, "a kernel accessed a misaligned address; run under compute-sanitizer"),
    719: (KernelFault, "a kernel failed; run under compute-sanitizer"),
    912: (CudaError, "the cluster is larger than this GPU takes"),
}


@cache
def library() -> ctypes.CDLL:
    """The driver, initialised. Raises `NoDriver`."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        found = ctypes.CDLL(name)
    except OSError:
        raise NoDriver(f"there is no CUDA driver ({name}); install NVIDIA's, or use the CPU target") from None
    if code := found.cuInit(0):
        raise _error(found, "cuInit", code)
    return found


def call(name: str, *arguments: Any) -> None:
    """Calls a driver function. Integers that are not C ints must come as ctypes values."""
    driver = library()
    if code := getattr(driver, name)(*arguments):
        raise _error(driver, name, code)


def _error(driver: ctypes.CDLL, name: str, code: int) -> CudaError:
    text = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(text))
    kind, hint = _KNOWN.get(code, (CudaError, ""))
    text_of_error = text.value.decode() if text.value else "unknown error"
    return kind(f"{name}: {text_of_error} ({code})" + (f"; {hint}" if hint else ""), code)


def failure(name: str, code: int) -> CudaError:
    """The exception for a result that was not 0."""
    return _error(library(), name, code)


# Devices and contexts


@cache
def device_count() -> int:
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


@cache
def attribute(which: int, device: int = 0) -> int:
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), which, device)
    return value.value


def compute_capability(device: int = 0) -> tuple[int, int]:
    return attribute(_MAJOR, device), attribute(_MINOR, device)


def chip_of(device: int = 0) -> str:
    """The chip to compile for: with "a" where there are instructions of this one chip only (wgmma,
    tcgen05)."""
    major, minor = compute_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def shared_limit(device: int = 0) -> int:
    """Bytes of shared memory that one block may have."""
    return attribute(_SHARED_OPTIN, device)


def l2_bytes(device: int = 0) -> int:
    return attribute(_L2_BYTES, device)


def multiprocessors(device: int = 0) -> int:
    return attribute(_MULTIPROCESSORS, device)


_contexts: dict[int, ctypes.c_void_p] = {}
_lock = threading.Lock()


def use_device(device: int) -> None:
    """Makes the primary context of `device`, the one PyTorch and CuPy use, current in this thread."""
    with _lock:
        if device not in _contexts:
            context = ctypes.c_void_p()
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            _contexts[device] = context
    call("cuCtxSetCurrent", _contexts[device])


def current_device() -> int | None:
    """The device of this thread's current context, if it has one."""
    device = ctypes.c_int()
    return None if library().cuCtxGetDevice(ctypes.byref(device)) else device.value


def enter_device(device: int) -> None:
    """Makes a context of `device` current in this thread, unless one is: threads begin without any."""
    if current_device() != device:
        use_device(device)


def device_of(pointer: int) -> int:
    """The number of the device whose memory `pointer` is in."""
    ordinal = ctypes.c_int()
    call("cuPointerGetAttribute", ctypes.byref(ordinal), 9, ctypes.c_uint64(pointer))  # DEVICE_ORDINAL
    return ordinal.value


def synchronize_stream(stream: int) -> None:
    call("cuStreamSynchronize", ctypes.c_void_p(stream))


# What `tilec doctor` says


@dataclass(frozen=True)
class DeviceInfo:
    index: int
    name: str
    chip: str
    multiprocessors: int
    memory: int
    shared_per_block: int


@dataclass(frozen=True)
class SystemInfo:
    """The GPUs of this machine. `problem` says why there are none, and gives advice. `runtime/cuda/toolkit.py` is about
    compiling."""

    devices: tuple[DeviceInfo, ...] = ()
    driver: str = ""
    toolkit: tuple[str, ...] = ()
    assembler: str = ""
    problem: str = ""


def device_info() -> SystemInfo:
    """Never raises: whatever is missing is in `problem`."""
    from tilec.runtime.cuda.cubins import versions
    from tilec.runtime.cuda.toolkit import ptxas_path

    toolkit, assembler = versions(), ptxas_path() or "nvJitLink (setmaxnreg is ignored)"
    try:
        devices = tuple(_describe(i) for i in range(device_count()))
        version = ctypes.c_int()
        call("cuDriverGetVersion", ctypes.byref(version))
    except CudaError as error:
        return SystemInfo(toolkit=toolkit, assembler=assembler, problem=str(error))
    driver = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    old = [d.name for d in devices if int(d.chip[3:].rstrip("a")) < 80]
    problem = f"{', '.join(old)}: older than Ampere (sm_80), use the CPU target" if old else ""
    return SystemInfo(devices, driver, toolkit, assembler, problem)


def _describe(device: int) -> DeviceInfo:
    name, memory = ctypes.create_string_buffer(128), ctypes.c_size_t()
    call("cuDeviceGetName", name, 128, device)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    sms, shared = attribute(_MULTIPROCESSORS, device), shared_limit(device)
    return DeviceInfo(device, name.value.decode(), chip_of(device), sms, memory.value, shared)
