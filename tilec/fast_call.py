"""A repeated call by the shortest way: the arrays are like an earlier call's, so everything about them is decided.

What can differ from call to call is looked at every time: kind, type, shape, device, row-major order, alignment, gradients,
and for results that are given, whether they lie apart from all else. Whatever does not fit goes the general way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilec.runtime.buffers import Buffer

Call = Callable[[tuple[Any, ...], Any, Any], Any]  # of the arguments, `out` and the stream; NO if they do not fit
NO = object()


def make(
    executable: Any, arrays: Sequence[Any], views: Sequence[Buffer], results: Sequence[Any], wrap: Callable
) -> Call | None:
    """The short way for calls with arrays like these, if there is one. `wrap` makes of new arrays what a call returns."""
    if arrays and all(type(a) is np.ndarray for a in (*arrays, *results)):
        return _numpy(executable, views, results, wrap)
    torch = sys.modules.get("torch")
    if torch is None or not arrays or any(type(a) is not torch.Tensor for a in (*arrays, *results)):
        return None
    if any(v.device != views[0].device for v in views):
        return None
    return _torch(executable, torch, arrays, views, results, wrap)


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


def _numpy(executable: Any, views: Sequence[Buffer], results: Sequence[np.ndarray], wrap: Callable) -> Call:
    expected = [(v.dtype.numpy, v.shape, v.dtype.bytes) for v in views]
    made = [(r.dtype, r.shape, r.dtype.itemsize) for r in results]
    sizes = [v.nbytes for v in views] + [r.nbytes for r in results]
    count, launch, ndarray, empty = len(expected), executable.launch, np.ndarray, np.empty

    def addresses(arrays: Sequence[Any], like: Sequence[tuple[Any, Any, int]], written: bool) -> list[int] | None:
        pointers = []
        for a, (dtype, shape, size) in zip(arrays, like):
            if type(a) is not ndarray or a.shape != shape or a.dtype != dtype:
                return None
            flags, pointer = a.flags, a.__array_interface__["data"][0]
            if not flags.c_contiguous or pointer % size or (written and not flags.writeable):
                return None
            pointers.append(pointer)
        return pointers

    def call(arrays: tuple[Any, ...], out: Any, stream: Any) -> Any:
        if len(arrays) != count or stream is not None or (pointers := addresses(arrays, expected, False)) is None:
            return NO
        if out is None:
            outs: Any = [empty(shape, dtype) for dtype, shape, _ in made]
            targets = [o.__array_interface__["data"][0] for o in outs]
        else:
            outs = _given(out, len(made), ndarray)
            if outs is None or (targets := addresses(outs, made, True)) is None or not _apart(pointers, targets, sizes):
                return NO
        launch(pointers, targets)
        return wrap(outs)

    return call


def _torch(
    executable: Any, torch: Any, arrays: Sequence[Any], views: Sequence[Buffer], results: Sequence[Any], wrap: Callable
) -> Call:
    expected = [(a.dtype, a.shape) for a in arrays]
    made = [(r.dtype, r.shape) for r in results]
    sizes = [v.nbytes for v in views] + [r.numel() * r.element_size() for r in results]
    device = views[0].device
    number = -1 if device == "cpu" else device  # what get_device() says
    new = [_new(torch, r, expected) for r in results]
    count, mask, current = len(expected), 0, None
    if device == "cpu":
        launch = executable.launch
    else:
        from tilec.runtime.cuda_launch import stream_handle

        launch, mask, current = executable.on(device).launch, 15, torch._C._cuda_getCurrentRawStream
    tensor, strided, records = torch.Tensor, torch.strided, torch.is_grad_enabled

    def addresses(arrays: Sequence[Any], like: Sequence[tuple[Any, Any]]) -> list[int] | None:
        pointers, bits = [], 0
        for a, (dtype, shape) in zip(arrays, like):
            if (
                type(a) is not tensor or a.dtype is not dtype or a.shape != shape or a.get_device() != number
                or a.layout is not strided or not a.is_contiguous() or a.is_neg() or (a.requires_grad and records())
            ):  # fmt: skip
                return None
            pointer = a.data_ptr()
            bits |= pointer
            pointers.append(pointer)
        return None if bits & mask else pointers

    def call(arrays: tuple[Any, ...], out: Any, stream: Any) -> Any:
        if len(arrays) != count or (pointers := addresses(arrays, expected)) is None:
            return NO
        if current is None and stream is not None:
            return NO
        if out is None:
            outs: Any = [make(arrays) for make in new]
            targets = [o.data_ptr() for o in outs]
        else:
            outs = _given(out, len(made), tensor)
            if outs is None or (targets := addresses(outs, made)) is None or not _apart(pointers, targets, sizes):
                return NO
        if current is None:
            launch(pointers, targets)
        else:
            launch(pointers, targets, current(number) if stream is None else stream_handle(stream))
        return wrap(outs)

    return call


def _new(torch: Any, result: Any, expected: Sequence[tuple[Any, Any]]) -> Callable[[tuple[Any, ...]], Any]:
    """What allocates a result; like an argument if it can be, which takes half the time."""
    if (result.dtype, result.shape) in expected:
        position, like = expected.index((result.dtype, result.shape)), torch.empty_like
        return lambda arrays: like(arrays[position])
    empty, shape, dtype, device = torch.empty, tuple(result.shape), result.dtype, result.device
    return lambda arrays: empty(shape, dtype=dtype, device=device)
