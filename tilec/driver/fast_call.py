"""The fast path of repeated calls: arrays like those of an earlier call, for which everything is decided.

Each call checks the properties that can differ: kind, type, shape, device, row-major order, alignment, gradients, and
overlaps of `out=` arrays. Arrays that differ take the general path. Machine code does all of it (`runtime/cpu/call.py`,
`runtime/cuda/call.py`), unless it is switched off (docs/native_calls.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tilec.runtime.native import tables

if TYPE_CHECKING:
    import torch

    from tilec.driver.executable import Executable
    from tilec.runtime.buffers import Buffer
    from tilec.runtime.cpu.call import Array, Runner, Strided
    from tilec.runtime.cpu.launch import CpuProgram
    from tilec.runtime.cuda.program import DeviceProgram

A = TypeVar("A")
T = TypeVar("T")
K = TypeVar("K")
Wrap = Callable[[Any], Any]
Call = Callable[[tuple[object, ...], object, object], Any]  # of the arguments, `out` and the stream; NO if they do not fit
class No(Enum):
    """What a call gives where its arguments do not fit."""

    NO = auto()


NO: Final = No.NO


class Recent(dict[K, T | None]):
    """Values by keys: at least half of the `most` latest ones, and never more than `most`; None for others. There is no lock: of
    two threads that write at a time, one may lose its value, which is made anew then."""

    def __init__(self, most: int):
        super().__init__()
        self._half, self._old = max(1, most // 2), dict[K, T | None]()

    def __missing__(self, key: K) -> T | None:
        if (found := self._old.get(key)) is not None:
            self.put(key, found)
        return found

    def put(self, key: K, value: T) -> None:
        if len(self) >= self._half:
            self._old = dict(self)
            self.clear()
        self[key] = value


CALLS_THRESHOLD = 16  # calls on a GPU: a process that makes no more has no use for LLVM, which takes 50 ms to load


def make(
    executable: Executable, arrays: Sequence[object], views: Sequence[Buffer], results: Sequence[torch.Tensor], wrap: Wrap
) -> Call | None:
    """The fast path for calls with arrays like these, or None. `wrap` makes the return value of a call from new arrays."""
    if not tables.native_calls():
        return None
    kinds, torch = {type(a) for a in (*arrays, *results)}, sys.modules.get("torch")
    if torch is not None and torch.Tensor in kinds:
        kinds.discard(torch.nn.Parameter)
    if not arrays or len(kinds) > 1 or any(v.device != views[0].device for v in views):
        return None
    (kind,), inputs = kinds, [(v.dtype, v.shape) for v in views]
    outputs = [(dtype, shape) for _, dtype, shape in executable.outputs]
    if views[0].device == "cpu":
        return _on_cpu(executable, kind, inputs, outputs, wrap)
    if torch is None or kind is not torch.Tensor or executable.runs < CALLS_THRESHOLD:
        return None
    from tilec.runtime.buffers import new_tensor

    new = [new_tensor(torch.empty((), dtype=r.dtype, device=r.device), r.shape) for r in results]
    return on_gpu(executable.on(views[0].device), kind, inputs, outputs, new, wrap)


def _on_cpu(executable: Executable, kind: type, inputs: Sequence[Array], outputs: Sequence[Array], wrap: Wrap) -> Call | None:
    from tilec.runtime.cpu import call as cpu_call

    if not cpu_call.possible(kind):
        return None
    new = [cpu_call.new_array(kind, dtype)(shape) for dtype, shape in outputs]
    return cpu_call.CallTable(_cpu_runner(executable.program), kind, inputs, outputs, new, wrap, NO).function


def _cpu_runner(program: CpuProgram) -> Runner:
    from tilec.runtime.cpu import call as cpu_call

    return cpu_call.Runner(program, program.table, "tilec_execute", program.words)


def on_gpu(
    program: DeviceProgram, kind: type, inputs: Sequence[Array], outputs: Sequence[Array], new: Sequence[Callable[[], object]],
    wrap: Wrap,
) -> Call | None:
    """The short way for a program on a GPU; inputs and results by types and shapes."""
    from tilec.runtime.cpu.call import CallTable
    from tilec.runtime.cuda import call as cuda_call

    runner = cuda_call.runner(program, kind, len(inputs) + len(outputs))
    return None if runner is None else CallTable(runner, kind, inputs, outputs, new, wrap, NO).function


def prepare(
    executable: Executable, device: str | int, values: int, takes: Sequence[int], inputs: Sequence[Strided],
    outputs: Sequence[Strided], new: Sequence[Callable[[], A] | int], otherwise: Callable[..., T],
) -> Callable[..., A | tuple[A, ...] | T] | None:  # fmt: skip
    """A call by machine code for a compiled graph of PyTorch's: see `runtime/cpu/call.py`. None if there is none for this version
    of PyTorch, or it is switched off."""
    from tilec.runtime.cpu import call as cpu_call

    torch = sys.modules["torch"]
    if not tables.native_calls() or not cpu_call.possible(torch.Tensor):
        return None
    if device == "cpu":
        from tilec.runtime.cpu.threads import settle

        settle()
        runner: Runner | None = _cpu_runner(executable.program)
    else:
        from tilec.runtime.cuda import call as cuda_call

        assert isinstance(device, int)
        runner = cuda_call.runner(executable.on(device), torch.Tensor, len(inputs) + len(outputs))
    return None if runner is None else cpu_call.prepared(runner, values, takes, inputs, outputs, new, otherwise)
