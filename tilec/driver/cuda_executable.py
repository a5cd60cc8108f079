"""A specialised op on a GPU: cubins for the target's chip, loaded at the first run, launched on the caller's stream."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from tilec.core.diagnostics import CallError
from tilec.core.target import Target
from tilec.driver.executable import Executable
from tilec.driver.recipe import Compiled, Recipe
from tilec.runtime.buffers import Buffer
from tilec.runtime.cuda.launch import current_stream, stream_handle
from tilec.runtime.cuda.program import DeviceProgram, Graph, Loaded
from tilec.runtime.program import Cubin, Emitted


def on_the_cpu(target: Target) -> CallError:
    """The error of arguments that are all on the CPU."""
    hint = target.note or "move them to the GPU, or compile with target='cpu'"
    return CallError(f"kernels for {target.chip} run on a GPU, the arguments are on the CPU", hint=hint)


class CudaExecutable(Executable):
    """Compiles on any machine; running needs a driver and arrays on a GPU."""

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        assert self.target.sm is not None
        for kernel in self.emitted.kernels:
            if kernel.shared > (most := self.target.sm.shared_per_block):
                taken = f"kernel {kernel.name} takes {kernel.shared:,} bytes of shared memory"
                raise CallError(
                    f"{taken}, and {self.target.name} has {most:,} for a block",
                    hint="give the kernel a smaller tile, or fewer stages, in the schedule file",
                )
        self._devices: dict[int, DeviceProgram] = {}
        self._cubins: dict[str, Cubin] | None = None
        self._loaded = Loaded()
        self._lock, self._compiling, self._runs = threading.Lock(), threading.Lock(), [0]

    def _part(self, emitted: Emitted, compiled: Compiled | None = None) -> Executable:
        _ = self.cubins
        part = super()._part(emitted, compiled)
        assert isinstance(part, CudaExecutable)
        part._devices, part._loaded = {}, Loaded(self._loaded.kernels)
        return part

    def at(self, sizes: Mapping[str, int]) -> Executable:
        part = super().at(sizes)
        assert isinstance(part, CudaExecutable)
        part._loaded = self._loaded
        return part

    @property
    def cubins(self) -> dict[str, Cubin]:
        """Every kernel's cubin by kernel name; compiled by the first thread that asks."""
        from tilec.runtime.cuda.cubins import program_cubins

        with self._compiling:
            if self._cubins is None:
                compiled = self.compiled
                self._cubins = program_cubins(self.emitted, self.target.chip, compiled.registers, compiled.in_flight)
            return self._cubins

    @property
    def runs(self) -> int:
        return self._runs[0]

    def complete(self) -> None:
        _ = self.cubins

    @property
    def registers(self) -> dict[str, int]:
        cubins = self._cubins or {}
        return {name: cubins[k.name].registers for name, k in self.emitted.launched.items() if k.name in cubins}

    def run(self, inputs: list[Buffer], outputs: list[Buffer], stream: object) -> None:
        self._runs[0] += 1
        program, inputs, targets = self._ready(inputs, outputs)
        handle = self._stream(program.device, inputs) if stream is None else stream_handle(stream)
        program.launch([b.pointer for b in inputs], [b.pointer for b in targets], handle)
        for buffer, target in zip(outputs, targets):
            if buffer is not target:
                buffer.owner[...] = target.owner

    def _ready(
        self, inputs: list[Buffer], outputs: list[Buffer]
    ) -> tuple[DeviceProgram, list[Buffer], list[Buffer]]:
        """The program on the arrays' device, and arrays that its kernels can work on."""
        device = next((b.device for b in (*inputs, *outputs) if b.device != "cpu"), None)
        if device is None:
            raise on_the_cpu(self.target)
        inputs = [b if b.device == device and _direct(b) else _on_device(b, inputs, device) for b in inputs]
        return self.on(device), inputs, [b if _direct(b) else _copy(b) for b in outputs]

    def _stream(self, device: int, inputs: list[Buffer]) -> int:
        return current_stream(device, inputs[0].owner if inputs else None)

    def graph(self, inputs: list[Buffer], outputs: list[Buffer], result: object) -> Graph:
        """The call as a CUDA graph, after it ran once."""
        program, ready, targets = self._ready(inputs, outputs)
        if any(b is not t for b, t in zip((*inputs, *outputs), (*ready, *targets))):
            raise CallError("a graph takes arrays on the GPU, row-major and 16-byte aligned: it works on their memory")
        if program.checks:
            raise CallError("the program has run-time checks, which the host must see: it cannot be captured")
        self.run(inputs, outputs, None)
        pointers = [b.pointer for b in inputs], [b.pointer for b in outputs]
        return Graph(program, *pointers, (inputs, outputs), result, lambda: self._stream(program.device, inputs))

    def check(self) -> None:
        """Waits for calls that were made, and raises CallError for a run-time check that failed."""
        for program in list(self._devices.values()):
            program.check()

    def on(self, device: int) -> DeviceProgram:
        """The program, loaded into a device."""
        found = self._devices.get(device)
        if found is None:
            with self._lock:
                found = self._devices.get(device)
                if found is None:
                    begins = self.emitted.begins(len(self.compiled.inputs), len(self.outputs))
                    found = DeviceProgram(self.emitted, self.cubins, self.steps, device, self.deferred_checks, begins, self._loaded)
                    self._devices[device] = found
        return found


def _direct(buffer: Buffer) -> bool:
    """Whether kernels can work on the memory as it is: row-major, and in vectors of 16 bytes."""
    return buffer.contiguous and buffer.pointer % 16 == 0


def _on_device(buffer: Buffer, others: list[Buffer], device: int) -> Buffer:
    """A form of an input that kernels can read: a row-major copy, or a number brought to the device."""
    if buffer.device == device:
        return _copy(buffer)
    from tilec.runtime import buffers

    example = next(b.owner for b in others if b.device == device)
    made = buffers.empty_like_kind(example, (), buffer.dtype, device)
    made[...] = buffers.wrap(buffer).item()
    return buffers.view(made)


def _copy(buffer: Buffer) -> Buffer:
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
