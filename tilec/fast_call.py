"""A repeated call by the shortest way: the arrays are like an earlier call's, so everything about them is decided.

What can differ from call to call is looked at every time: kind, type, shape, device, row-major order, alignment, gradients,
and for results that are given, whether they lie apart from all else. Whatever does not fit goes the general way. Machine code
does that (`runtime/cpu_call.py`, `runtime/cuda_call.py`); for programs on a GPU that do more than launch kernels, Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilec.runtime.buffers import Buffer

Call = Callable[[tuple[Any, ...], Any, Any], Any]  # of the arguments, `out` and the stream; NO if they do not fit
NO = object()


def make(
    executable: Any, arrays: Sequence[Any], views: Sequence[Buffer], results: Sequence[Any], wrap: Callable
) -> Call | None:
    """The short way for calls with arrays like these, if there is one. `wrap` makes of new arrays what a call returns."""
    kinds = {type(a) for a in (*arrays, *results)}
    if not arrays or len(kinds) > 1 or any(v.device != views[0].device for v in views):
        return None
    if views[0].device == "cpu":
        return _on_cpu(executable, *kinds, views, wrap)
    torch = sys.modules.get("torch")
    return (
        None if torch is None or kinds != {torch.Tensor} else _on_gpu(executable, torch, arrays, views, results, wrap)
    )


def _on_cpu(executable: Any, kind: type, views: Sequence[Buffer], wrap: Callable) -> Call | None:
    from tilec.runtime import cpu_call

    if not cpu_call.possible(kind):
        return None
    program = executable.program
    runner = cpu_call.Runner(program, program.table, "tilec_execute", program.words)
    inputs, outputs = _described(executable, views)
    new = [cpu_call.new_array(kind, *array) for array in outputs]
    return cpu_call.CallTable(runner, kind, inputs, outputs, new, wrap, NO).function


def _described(executable: Any, views: Sequence[Buffer]) -> tuple[list[Any], list[Any]]:
    """Types and shapes of inputs and of results."""
    return [(v.dtype, v.shape) for v in views], [(dtype, shape) for _, dtype, shape in executable.outputs]


def _given(out: Any, count: int, kind: type) -> Sequence[Any] | None:
    """`out=` as a sequence, where it is one of `count` arrays."""
    outs = (out,) if type(out) is kind else out
    return outs if type(outs) in (tuple, list) and len(outs) == count else None


def _apart(inputs: Sequence[int], outs: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether no result shares an address with another result or an input; `sizes` are bytes, of inputs, then results."""
    for k, out in enumerate(outs):
        end = out + sizes[len(inputs) + k]
        for other, size in zip((*inputs, *outs[:k]), sizes):
            if out < other + size and other < end:
                return False
    return True


def _on_gpu(
    executable: Any, torch: Any, arrays: Sequence[Any], views: Sequence[Buffer], results: Sequence[Any], wrap: Callable
) -> Call:
    from tilec.runtime import cuda_call
    from tilec.runtime.buffers import new_tensor
    from tilec.runtime.cpu_call import CallTable
    from tilec.runtime.cuda_launch import stream_handle

    program, device = executable.on(views[0].device), views[0].device
    new = [new_tensor(torch.empty((), dtype=r.dtype, device=r.device), r.shape) for r in results]
    if (runner := cuda_call.runner(program, torch.Tensor, len(arrays) + len(results))) is not None:
        return CallTable(runner, torch.Tensor, *_described(executable, views), new, wrap, NO).function
    expected = [(a.dtype, a.shape) for a in arrays]
    made = [(r.dtype, r.shape) for r in results]
    sizes = [v.nbytes for v in views] + [r.numel() * r.element_size() for r in results]
    count, launch, current = len(expected), program.launch, torch._C._cuda_getCurrentRawStream
    tensor, strided, records = torch.Tensor, torch.strided, torch.is_grad_enabled

    def addresses(arrays: Sequence[Any], like: Sequence[tuple[Any, Any]]) -> list[int] | None:
        pointers, bits = [], 0
        for a, (dtype, shape) in zip(arrays, like):
            if (
                type(a) is not tensor or a.dtype is not dtype or a.shape != shape or a.get_device() != device
                or a.layout is not strided or not a.is_contiguous() or a.is_neg() or (a.requires_grad and records())
            ):  # fmt: skip
                return None
            pointer = a.data_ptr()
            bits |= pointer
            pointers.append(pointer)
        return None if bits & 15 else pointers

    def call(arrays: tuple[Any, ...], out: Any, stream: Any) -> Any:
        if len(arrays) != count or (pointers := addresses(arrays, expected)) is None:
            return NO
        if out is None:
            outs: Any = [make() for make in new]
            targets = [o.data_ptr() for o in outs]
        else:
            outs = _given(out, len(made), tensor)
            if outs is None or (targets := addresses(outs, made)) is None or not _apart(pointers, targets, sizes):
                return NO
        launch(pointers, targets, current(device) if stream is None else stream_handle(stream))
        return wrap(outs)

    return call
