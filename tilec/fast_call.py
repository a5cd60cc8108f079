"""A repeated call by the shortest way: the arrays are like an earlier call's, so everything about them is decided.

What can differ from call to call is looked at every time: kind, type, shape, device, row-major order, alignment, gradients,
and for results that are given, whether they lie apart from all else. Whatever does not fit goes the general way. Machine code
does that (`runtime/cpu_call.py`, `runtime/cuda_call.py`). On a GPU, Python does it for programs that do more than launch kernels,
and in the first calls: a process that makes few has no use for LLVM, which takes 50 ms to load.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilec.runtime.buffers import Buffer

Call = Callable[[tuple[Any, ...], Any, Any], Any]  # of the arguments, `out` and the stream; NO if they do not fit
NO = object()
FEW = 16  # calls


def make(
    executable: Any, arrays: Sequence[Any], views: Sequence[Buffer], results: Sequence[Any], wrap: Callable,
    replace: Callable[[Call, Call], None],
) -> Call | None:  # fmt: skip
    """The short way for calls with arrays like these, if there is one. `wrap` makes of new arrays what a call returns.
    `replace(call, better)` is called when there is a better one."""
    kinds = {type(a) for a in (*arrays, *results)}
    if not arrays or len(kinds) > 1 or any(v.device != views[0].device for v in views):
        return None
    if views[0].device == "cpu":
        return _on_cpu(executable, *kinds, views, wrap)
    from tilec.runtime.buffers import new_tensor

    torch = sys.modules.get("torch")
    if torch is None or kinds != {torch.Tensor}:
        return None
    program, described = executable.on(views[0].device), _described(executable, views)
    new = [new_tensor(torch.empty((), dtype=r.dtype, device=r.device), r.shape) for r in results]
    call = _on_gpu(program, torch, arrays, views, results, new, wrap)
    return _few(call, lambda: native(program, torch.Tensor, *described, new, wrap), replace)


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


def _few(call: Call, better: Callable[[], Call | None], replace: Callable[[Call, Call], None]) -> Call:
    """`call`, which is replaced after a few times, by what `better` gives if that is anything."""
    left = FEW

    def counted(arrays: tuple[Any, ...], out: Any, stream: Any) -> Any:
        nonlocal left
        results = call(arrays, out, stream)
        if results is not NO:
            left -= 1
            if left <= 0:  # and no other thread's call replaced it meanwhile
                replace(counted, better() or call)
        return results

    return counted


def native(
    program: Any, kind: type, inputs: Sequence[Any], outputs: Sequence[Any], new: Sequence[Callable], wrap: Callable
) -> Call | None:
    """Machine code for a program on a GPU, where it can be had; inputs and results by types and shapes."""
    from tilec.runtime import cuda_call
    from tilec.runtime.cpu_call import CallTable

    runner = cuda_call.runner(program, kind, len(inputs) + len(outputs))
    return None if runner is None else CallTable(runner, kind, inputs, outputs, new, wrap, NO).function


def _on_gpu(
    program: Any, torch: Any, arrays: Sequence[Any], views: Sequence[Buffer], results: Sequence[Any],
    new: Sequence[Callable], wrap: Callable,
) -> Call:  # fmt: skip
    from tilec.runtime.cuda_launch import stream_handle

    device = views[0].device
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
