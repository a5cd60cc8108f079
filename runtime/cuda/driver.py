"""The CUDA driver, by NVIDIA's `cuda.bindings`: errors with advice, devices and contexts.

`cuda.bindings` is imported, and the driver loaded, when a GPU is first asked for: programs for the CPU never do. Machine code
(`runtime/native/cuda.py`) calls the driver's functions by their addresses.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuda.bindings import driver as bindings

_VERSION = 12000  # of CUDA, of whose functions `address` gives the addresses


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
def library() -> ModuleType:
    """`cuda.bindings.driver`, with the driver initialised. Raises `NoDriver`."""
    from cuda.bindings import driver

    try:
        (code,) = driver.cuInit(0)
    except RuntimeError:  # of all versions of the package, where libcuda is not found
        raise NoDriver("there is no CUDA driver; install NVIDIA's, or use the CPU target") from None
    if code:
        raise _error(driver, "cuInit", code)
    return driver


def call(name: str, *arguments: object) -> Any:
    """Calls a function of `cuda.bindings.driver`. Returns what that returns beside the code: None, one thing, or a tuple."""
    code, *results = getattr(library(), name)(*arguments)
    if code:
        raise failure(name, code)
    return results[0] if len(results) == 1 else tuple(results) or None


@cache
def address(name: str) -> int:
    """The address of a driver function, which is named without a version. Stream 0 is the one that all threads share."""
    legacy = library().CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM
    found, _ = call("cuGetProcAddress", name.encode(), _VERSION, legacy)
    return int(found)


def _error(driver: ModuleType, name: str, code: int) -> CudaError:
    kind, hint = _KNOWN.get(int(code), (CudaError, ""))
    name_of_error = next((r.name for r in driver.CUresult if r == code), "unknown error")
    return kind(f"{name}: {name_of_error} ({int(code)})" + (f"; {hint}" if hint else ""), int(code))


def failure(name: str, code: int) -> CudaError:
    """The exception for a result that was not 0."""
    return _error(library(), name, code)


# Devices and contexts


@cache
def device_count() -> int:
    return int(call("cuDeviceGetCount"))


@cache
def attribute(name: str, device: int = 0) -> int:
    """What `CU_DEVICE_ATTRIBUTE_` and the name stands for."""
    which = getattr(library().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", which, device))


def compute_capability(device: int = 0) -> tuple[int, int]:
    return attribute("COMPUTE_CAPABILITY_MAJOR", device), attribute("COMPUTE_CAPABILITY_MINOR", device)


def chip_of(device: int = 0) -> str:
    """The chip to compile for: with "a" where there are instructions of this one chip only (wgmma,
    tcgen05)."""
    major, minor = compute_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def shared_limit(device: int = 0) -> int:
    """Bytes of shared memory that one block may have."""
    return attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", device)


def l2_bytes(device: int = 0) -> int:
    return attribute("L2_CACHE_SIZE", device)


def multiprocessors(device: int = 0) -> int:
    return attribute("MULTIPROCESSOR_COUNT", device)


_contexts: dict[int, bindings.CUcontext] = {}
_lock = threading.Lock()


def use_device(device: int) -> None:
    """Makes the primary context of `device`, the one PyTorch and CuPy use, current in this thread."""
    with _lock:
        if device not in _contexts:
            _contexts[device] = call("cuDevicePrimaryCtxRetain", device)
    call("cuCtxSetCurrent", _contexts[device])


def current_device() -> int | None:
    """The device of this thread's current context, if it has one."""
    code, device = library().cuCtxGetDevice()
    return None if code else int(device)


def enter_device(device: int) -> None:
    """Makes a context of `device` current in this thread, unless one is: threads begin without any."""
    if current_device() != device:
        use_device(device)


def device_of(pointer: int) -> int:
    """The number of the device whose memory `pointer` is in."""
    ordinal = library().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call("cuPointerGetAttribute", ordinal, pointer))


def synchronize_stream(stream: int) -> None:
    call("cuStreamSynchronize", stream)


def allocate(size: int) -> int:
    """The address of device memory, which `release` frees."""
    return int(call("cuMemAlloc", size))


def release(pointer: int) -> None:
    """Frees memory. Errors of the driver are ignored."""
    library().cuMemFree(pointer)


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
        version = call("cuDriverGetVersion")
    except CudaError as error:
        return SystemInfo(toolkit=toolkit, assembler=assembler, problem=str(error))
    driver = f"CUDA {version // 1000}.{version % 1000 // 10}"
    old = [d.name for d in devices if int(d.chip[3:].rstrip("a")) < 80]
    problem = f"{', '.join(old)}: older than Ampere (sm_80), use the CPU target" if old else ""
    return SystemInfo(devices, driver, toolkit, assembler, problem)


def _describe(device: int) -> DeviceInfo:
    name, memory = call("cuDeviceGetName", 128, device).partition(b"\0")[0].decode(), call("cuDeviceTotalMem", device)
    return DeviceInfo(device, name, chip_of(device), multiprocessors(device), memory, shared_limit(device))
