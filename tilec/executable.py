"""A specialised op that can run: lowered, printed, compiled, and bound to the way its backend launches."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any

from tilec import mlir
from tilec.api import Kernel
from tilec.diagnostics import CallError
from tilec.driver import Lowered, lower
from tilec.dsl.build import build
from tilec.dsl.specialise import Specialised
from tilec.dtypes import DType
from tilec.expectations_check import check_expectations
from tilec.mlir import ir
from tilec.runtime import cache
from tilec.target import Target
from tilec.version import VERSION


def build_executable(specialised: Specialised, target: Target, schedule=None) -> Executable:
    """Compiles one op for one set of sizes and types. Raises TileError for what the program or target cannot do."""
    with mlir.context(), ir.Location.unknown():
        lowered = lower(build(specialised), target, schedule=schedule)
    check_expectations(specialised, lowered.plan)
    kind = CpuExecutable if target.kind == "cpu" else _cuda()
    return kind(specialised, target, lowered)


def _cuda():
    from tilec.cuda_executable import CudaExecutable

    return CudaExecutable


class Executable:
    """What both backends share: names and shapes of the results, the kernels for people to look at."""

    def __init__(self, specialised: Specialised, target: Target, lowered: Lowered):
        self.specialised, self.target, self.lowered = specialised, target, lowered
        self.emitted = lowered.emitted
        self.outputs: list[tuple[str, DType, tuple[int, ...]]] = [
            (t.name, t.dtype, tuple(s.value for s in t.shape)) for t in specialised.outputs
        ]

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        predicted = {k.name: k.prediction.time_us for k in self.lowered.plan.kernels}
        return tuple(
            Kernel(k.name, k.text, k.grid, k.threads, k.shared, predicted.get(k.name, 0.0))
            for k in self.emitted.kernels
        )

    def run(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        raise NotImplementedError


class CpuExecutable(Executable):
    """Kernels compiled by Numba; temporaries are kept from call to call, a set for every thread that calls."""

    def __init__(self, specialised: Specialised, target: Target, lowered: Lowered):
        super().__init__(specialised, target, lowered)
        from tilec.runtime.cpu_launch import load_kernels

        key = cache.make_key("cpu", VERSION, cache.runtime_digest(), self.emitted.module)
        path = cache.module_path(key, self.emitted.module, "kernels")
        self.functions = load_kernels(self.emitted, str(path))
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

            self._local.memory = [host_memory.allocate(n) for n in self.emitted.temporaries]
            self._local.temporaries = [address for _, address in self._local.memory]
        return self._local.temporaries
