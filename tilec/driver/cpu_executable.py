"""A specialised op on the CPU: kernels compiled by Numba, run by `runtime/native/cpu.py`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tilec.core.diagnostics import CallError
from tilec.driver.executable import Executable
from tilec.driver.recipe import Compiled, Recipe
from tilec.runtime.buffers import Buffer
from tilec.runtime.native.workspaces import Workspaces
from tilec.runtime.program import Emitted

if TYPE_CHECKING:
    from tilec.runtime.cpu.launch import CpuProgram


class CpuExecutable(Executable):
    """Kernels compiled by Numba, run by `runtime/native/cpu.py`."""

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        from tilec.runtime.cpu.objects import load_program

        self.loops, self.workspaces = load_program(self.emitted), Workspaces()

    def _part(self, emitted: Emitted, compiled: Compiled | None = None) -> Executable:
        part = super()._part(emitted, compiled)
        part.__dict__.pop("program", None)
        return part

    @cached_property
    def program(self) -> CpuProgram:
        from tilec.runtime.cpu.launch import CpuProgram

        return CpuProgram(self.emitted, self.loops, len(self.compiled.inputs), len(self.outputs), self.workspaces)

    def load(self) -> None:
        _ = self.program

    def run(self, inputs: list[Buffer], outputs: list[Buffer], stream: object) -> None:
        if stream is not None:
            raise CallError("stream= is for GPU arrays; the CPU runs a call before it returns")
        from tilec.runtime import host_memory

        inputs = [host_memory.contiguous(b) for b in inputs]
        targets = [b if b.contiguous else host_memory.scratch_like(b) for b in outputs]
        self.program.launch([b.pointer for b in (*inputs, *targets)])
        for buffer, target in zip(outputs, targets):
            if buffer is not target:
                host_memory.assign(buffer, target)
