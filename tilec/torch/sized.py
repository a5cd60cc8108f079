"""Calls of an operator's program on tensors: one for each set of types, sizes and devices, by machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from tilec.api import Op
from tilec.core.diagnostics import CheckError
from tilec.driver import fast_call
from tilec.driver.executable import Executable
from tilec.process.forking import compiling
from tilec.runtime import buffers
from tilec.torch.bound import new_strided
from tilec.torch.call import MOST_SIZES, Key
from tilec.torch.types import Results

MOST_RECENT = 8  # calls that are tried one after the other, each of which compares types and sizes
_HERE = "cpu", "cuda"
Call: TypeAlias = Callable[..., Results | fast_call.No]


class SizedCalls:
    """`run(*tensors)` runs the op, and compiles it first for sizes that it has not met; `recent` are its latest calls, which give
    `fast_call.NO` for other tensors. To be called where no gradients are recorded."""

    def __init__(self, op: Op):
        self.op, self.recent = op, tuple[Call, ...]()
        self._made: dict[Key, Call | None] = {}

    def run(self, *tensors: torch.Tensor) -> Results:
        for call in self.recent:
            if (made := call(*tensors)) is not fast_call.NO:
                return made
        return self._other(tensors)

    def _other(self, tensors: Sequence[torch.Tensor]) -> Results:
        """Sizes that are not recent, or tensors that are not row-major."""
        plain = [(t.resolve_neg() if t.is_neg() else t).contiguous() for t in tensors]
        key = tuple((t.shape, t.dtype, t.device) for t in plain)
        if key not in self._made:
            self._make(key, plain)
        if (call := self._made.get(key)) is not None:
            if call not in self.recent:
                self.recent = (call, *self.recent[: MOST_RECENT - 1])
            if (made := call(*plain)) is not fast_call.NO:
                return made
        with torch.no_grad():
            return self.op(*plain)

    def _make(self, key: Key, tensors: Sequence[torch.Tensor]) -> None:
        """Keeps the call for tensors like these, or None where Python makes it: it copies them, or raises its mistakes."""
        known, call, devices = buffers.torch_dtypes(), None, {t.device for t in tensors}
        if all(t.dtype in known for t in tensors) and len(devices) == 1 and (device := devices.pop()).type in _HERE:
            where = "cpu" if device.type == "cpu" else device.index
            executable = self.op.build_for(tuple((known[t.dtype], tuple(t.shape)) for t in tensors), where)
            with compiling():
                call = self._prepared(executable, where, len(tensors))
        while len(self._made) >= MOST_SIZES:
            self._made.pop(next(iter(self._made)), None)
        self._made[key] = call

    def _prepared(self, executable: Executable, device: str | int, count: int) -> Call | None:
        inputs = [(dtype, shape, buffers.row_major(shape)) for _, dtype, shape in executable.compiled.inputs]
        outputs = [(dtype, shape, buffers.row_major(shape)) for _, dtype, shape in executable.outputs]
        new = [new_strided(s, steps, buffers.to_torch(d.name), device) for d, s, steps in outputs]
        call = fast_call.prepare(executable, device, count, range(count), inputs, outputs, new, _no)
        if call is None or not any(kernel.sites for kernel in executable.emitted.kernels):
            return call

        def checked(*tensors: torch.Tensor) -> Results | fast_call.No:
            try:
                return call(*tensors)
            except CheckError as error:
                raise self.op.reported(error, tensors) from None

        return checked


def _no(*tensors: torch.Tensor) -> fast_call.No:
    return fast_call.NO
