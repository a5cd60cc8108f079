"""An op that can run: compiled to machine code, and bound to the way its backend launches."""

from __future__ import annotations

import copy
import ctypes
import threading
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
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
        """Works on any buffers: copies what kernels cannot read or write as it lies."""
        raise NotImplementedError

    def graph(self, inputs: list[Any], outputs: list[Any], result: Any) -> Any:
        raise CallError("graphs are for arrays on the GPU")

    def first(self, count: int) -> Executable:
        """The same with its first `count` steps only: what measuring one kernel after another takes."""
        part = copy.copy(self)
        part.__dict__.pop("steps", None)
        part.emitted = replace(self.emitted, steps=self.emitted.steps[:count])
        return part

    @cached_property
    def steps(self) -> tuple[tuple[str | None, Any, int], ...]:
        """Every step's kernel, what picks its addresses from those of inputs, outputs and temporaries in a row, and the
        bytes to copy."""
        begin = {"input": 0, "output": len(self.compiled.inputs)}
        begin["temporary"] = begin["output"] + len(self.outputs)
        picks = ([begin[s.kind] + s.number for s in step.slots] for step in self.emitted.steps)
        return tuple((step.kernel, _picker(numbers), step.bytes) for step, numbers in zip(self.emitted.steps, picks))


def _picker(numbers: list[int]):
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda memory: [memory[n] for n in numbers]


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
        self.launch([b.pointer for b in inputs], [b.pointer for b in targets])
        for buffer, target in zip(outputs, targets):
            if buffer is not target:
                host_memory.assign(buffer, target)

    def launch(self, inputs: list[int], outputs: list[int]) -> None:
        """Runs the kernels on row-major arrays at these addresses."""
        memory = [*inputs, *outputs, *self._temporaries()] if self.emitted.temporaries else [*inputs, *outputs]
        for kernel, addresses, count in self.steps:
            if kernel is None:
                source, target = addresses(memory)
                ctypes.memmove(target, source, count)
            elif failed := self.functions[kernel].launch(addresses(memory)):
                raise CallError(self.functions[kernel].source.sites[failed - 1])

    def _temporaries(self) -> list[int]:
        """Addresses of the intermediate tensors that go from kernel to kernel."""
        if not hasattr(self._local, "temporaries"):
            from tilec.runtime import host_memory

            self._local.memory, start = host_memory.allocate(self.emitted.workspace)
            self._local.temporaries = [start + t.offset for t in self.emitted.temporaries]
        return self._local.temporaries
