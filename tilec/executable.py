"""An op that can run: compiled to machine code, and bound to the way its backend launches."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any

from tilec.diagnostics import CallError
from tilec.kernel import Kernel
from tilec.recipe import Recipe


def build_executable(recipe: Recipe) -> Executable:
    """Compiles an op, or finds it compiled. Raises TileError for what the program or target cannot do."""
    if recipe.target.kind == "cpu":
        return CpuExecutable(recipe)
    from tilec.cuda_executable import CudaExecutable

    return CudaExecutable(recipe)


class Executable:
    """What both backends share: names and shapes of the results, the kernels for people to look at."""

    def __init__(self, recipe: Recipe):
        self.recipe, self.target = recipe, recipe.target
        self.compiled = recipe.compiled()
        self.emitted, self.outputs = self.compiled.emitted, self.compiled.outputs

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        predicted = self.compiled.predicted_us
        return tuple(
            Kernel(k.name, k.text, k.grid, k.threads, k.shared, predicted.get(k.name, 0.0))
            for k in self.emitted.kernels
        )

    def run(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        raise NotImplementedError


class CpuExecutable(Executable):
    """Kernels compiled by Numba; temporaries are kept from call to call, a set for every thread that calls."""

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        from tilec.runtime.cpu_objects import load_program

        self.functions = load_program(self.emitted)
        self._local = threading.local()

    def run(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        if stream is not None:
            raise CallError("stream= is for GPU arrays; the CPU runs a call before it returns")
        from tilec.runtime import host_memory

        inputs = [host_memory.contiguous(b) for b in inputs]
        targets = [b if b.contiguous else host_memory.scratch_like(b) for b in outputs]
        memory = {
            "input": [b.pointer for b in inputs],
            "output": [b.pointer for b in targets],
            "temporary": self._temporaries(),
        }
        for step in self.emitted.steps:
            addresses = [memory[slot.kind][slot.number] for slot in step.slots]
            if step.kernel is None:
                host_memory.copy_bytes(addresses[1], addresses[0], step.bytes)
            elif failed := self.functions[step.kernel].launch(addresses):
                raise CallError(self.functions[step.kernel].source.sites[failed - 1])
        for buffer, target in zip(outputs, targets):
            if buffer is not target:
                host_memory.assign(buffer, target)

    def _temporaries(self) -> list[int]:
        """Addresses of the intermediate tensors that go from kernel to kernel."""
        if not hasattr(self._local, "temporaries"):
            from tilec.runtime import host_memory

            self._local.memory, start = host_memory.allocate(self.emitted.workspace)
            self._local.temporaries = [start + t.offset for t in self.emitted.temporaries]
        return self._local.temporaries
