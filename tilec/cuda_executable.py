"""A specialised op on a GPU: cubins compiled for the target's chip, loaded when first run, launched on the caller's stream."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilec.diagnostics import CallError
from tilec.executable import Executable
from tilec.recipe import Recipe
from tilec.runtime.program import TensorMap


class CudaExecutable(Executable):
    """Compiles on any machine; running needs a driver and arrays on a GPU."""

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self._devices: dict[int, _OnDevice] = {}
        self._lock = threading.Lock()

    @cached_property
    def cubins(self) -> dict[str, Any]:
        """Every kernel's cubin by kernel name."""
        from tilec.runtime.cuda_cubins import program_cubins

        return program_cubins(self.emitted, self.target.chip, self.compiled.registers)

    def run(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        device = next((b.device for b in (*inputs, *outputs) if b.device != "cpu"), None)
        if device is None:
            raise CallError(f"target '{self.target.name}' runs on a GPU, the arguments are on the CPU")
        inputs = [b if b.device == device and _direct(b) else _on_device(b, inputs, device) for b in inputs]
        targets = [b if _direct(b) else _copy(b) for b in outputs]
        self._on(device).run(inputs, targets, stream)
        for buffer, target in zip(outputs, targets):
            if buffer is not target:
                buffer.owner[...] = target.owner

    def _on(self, device: int) -> _OnDevice:
        found = self._devices.get(device)
        if found is None:
            with self._lock:
                found = self._devices.setdefault(device, _OnDevice(self, device))
        return found


def _direct(buffer: Any) -> bool:
    """Whether kernels can work on the memory as it is: row-major, and in vectors of 16 bytes."""
    return buffer.contiguous and buffer.pointer % 16 == 0


def _on_device(buffer: Any, others: list[Any], device: int) -> Any:
    """A form of an input that kernels can read: a row-major copy, or a number brought to the device."""
    if buffer.device == device:
        return _copy(buffer)
    from tilec.runtime import buffers

    example = next(b.owner for b in others if b.device == device)
    made = buffers.empty_like_kind(example, (), buffer.dtype, device)
    made[...] = buffers.wrap(buffer).item()
    return buffers.view(made)


def _copy(buffer: Any) -> Any:
    """A row-major copy by the library that the array comes from."""
    from tilec.runtime import buffers

    copy = getattr(buffer.owner, "clone", None) or getattr(buffer.owner, "copy", None)
    if copy is None or not hasattr(buffer.owner, "__setitem__"):
        raise CallError("an array of this kind on the GPU must be row-major and 16-byte aligned")
    torch_tensor = hasattr(buffer.owner, "clone")
    made = copy(memory_format=_row_major()) if torch_tensor else copy(order="C")
    return buffers.view(made)


def _row_major() -> Any:
    import torch

    return torch.contiguous_format


def _tensor_map(kernel_map: TensorMap, pointer: int) -> bytes:
    """What describes a tensor at this address to the hardware."""
    from tilec.runtime.cuda_launch import tensor_map

    strides = [1]
    for extent in reversed(kernel_map.shape[1:]):
        strides.insert(0, strides[0] * extent)
    m = kernel_map
    return tensor_map(pointer, m.dtype, m.shape, strides, m.box, swizzle=128, item_bytes=m.item_bytes)


@dataclass
class _Workspace:
    """Temporaries of one stream, which runs calls one after another, so that they can share them."""

    memory: int
    errors: Any


class _OnDevice:
    """The kernels on one device."""

    def __init__(self, executable: CudaExecutable, device: int):
        from tilec.runtime import cuda_driver
        from tilec.runtime.cuda_cubins import parameters
        from tilec.runtime.cuda_launch import Kernel, Launcher

        self.device, self.emitted, self.driver = device, executable.emitted, cuda_driver
        cuda_driver.use_device(device)
        self.launchers = {}
        self.sites: dict[str, tuple[str, ...]] = {}
        self.maps: dict[str, tuple[TensorMap, ...]] = {}
        self.encoded: dict[tuple[TensorMap, int], bytes] = {}  # by address: the same tensors come again and again
        for k in executable.emitted.kernels:
            cubin = executable.cubins[k.name]
            kernel = Kernel(cubin.image, cubin.entry, parameters(k))
            self.launchers[k.name] = Launcher(kernel, (k.grid, 1, 1), (k.threads, 1, 1), k.shared, device=device)
            self.sites[k.name] = k.sites
            self.maps[k.name] = k.maps
        self.offsets = [t.offset for t in executable.emitted.temporaries]
        self.bytes = executable.emitted.workspace
        self.workspaces: dict[int, _Workspace] = {}
        self.lock = threading.Lock()

    def run(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        from tilec.runtime.cuda_launch import current_stream, stream_handle

        handle = (
            current_stream(self.device, inputs[0].owner if inputs else None)
            if stream is None
            else stream_handle(stream)
        )
        space = self._workspace(handle)
        memory = {
            "input": [b.pointer for b in inputs],
            "output": [b.pointer for b in outputs],
            "temporary": [space.memory + offset for offset in self.offsets],
        }
        for step in self.emitted.steps:
            addresses = [memory[slot.kind][slot.number] for slot in step.slots]
            if maps := self.maps.get(step.kernel):
                addresses += [self._map(m, addresses[m.parameter]) for m in maps]
            if step.kernel is None:
                self._copy(addresses[1], addresses[0], step.bytes, handle)
            elif self.sites[step.kernel]:
                self._checked(step.kernel, addresses, space, handle)
            else:
                self.launchers[step.kernel].launch(handle, *addresses)

    def _map(self, kernel_map: TensorMap, pointer: int) -> bytes:
        found = self.encoded.get((kernel_map, pointer))
        if found is None:
            if len(self.encoded) > 4096:
                self.encoded.clear()
            found = self.encoded[kernel_map, pointer] = _tensor_map(kernel_map, pointer)
        return found

    def _checked(self, name: str, addresses: list[int], space: _Workspace, handle: int) -> None:
        """A kernel with run-time checks: the host waits for it, to raise what it found."""
        space.errors[0] = 0
        self.launchers[name].launch(handle, *addresses, ctypes.addressof(space.errors))
        self.driver.synchronize_stream(handle)
        if failed := space.errors[0]:
            raise CallError(self.sites[name][failed - 1])

    def _copy(self, target: int, source: int, count: int, handle: int) -> None:
        self.driver.call(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(count),
            ctypes.c_void_p(handle),
        )

    def _workspace(self, handle: int) -> _Workspace:
        found = self.workspaces.get(handle)
        if found is None:
            with self.lock:
                found = self.workspaces.setdefault(handle, self._allocate())
        return found

    def _allocate(self) -> _Workspace:
        self.driver.use_device(self.device)
        memory = ctypes.c_uint64(0)
        if self.bytes:
            self.driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(self.bytes))
        errors = None
        if any(self.sites.values()):  # host memory that kernels write, so that reading it needs no copy
            pointer = ctypes.c_void_p()
            self.driver.call("cuMemAllocHost_v2", ctypes.byref(pointer), ctypes.c_size_t(64))
            errors = (ctypes.c_int32 * 16).from_address(pointer.value)
        return _Workspace(memory.value, errors)
