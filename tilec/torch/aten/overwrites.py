"""Elements that are written over others in places that a mask, strides, or positions in the whole tensor give."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tilec.torch import indices as ix
from tilec.torch.aliases import node_at
from tilec.torch.aten.scatters import affordable, along, positions_of
from tilec.torch.aten.table import ONE, Call, expresses, operand
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported, constant

if TYPE_CHECKING:
    import torch


@expresses("put")
def put(call: Call) -> Tensor:
    """Writes to positions in row-major order."""
    x, index, source = call["self"], call["index"], call["source"]
    extent, writes = prod(x.shape), prod(index.shape)
    affordable(call, extent * writes, writes)
    flat, index, source = (t.reshaped((n,)) for t, n in ((x, extent), (index, writes), (source, writes)))
    position = positions_of(call, index, None, extent, True)
    kind = "sum" if call["accumulate"] else None
    if kind and call.dtype == "bool":
        raise Unsupported("put: sums of bools")
    return along(call, flat, 0, (writes,), position, source, kind, True, True).reshaped(call.shape)


def _is_channels_last(value: torch.Tensor) -> bool:
    """Whether PyTorch takes it for an image with channels last."""
    import torch

    return value.dim() == 4 and torch._prims_common.suggest_memory_format(value) == torch.channels_last


@expresses("max_unpool2d max_unpool3d", whole=ONE)
def max_unpool(call: Call) -> Tensor:
    """Zeros, but for elements that are written to positions of their planes."""
    x, index, size = call["self"], call["indices"], call["output_size"]
    if call.device.type == "cpu" and _is_channels_last(node_at(call.node).meta["val"]):
        raise Unsupported(f"{call.name}: channels come last in the kernel's result, and not in the trace")
    planes = prod(x.shape[: len(x.shape) - len(size)])
    writes, extent = prod(x.shape) // planes, prod(size)
    affordable(call, planes * writes * extent, prod(x.shape))
    index, source = (t.reshaped((planes, writes)) for t in (index, x))
    position = positions_of(call, index, None, extent, False)
    zeros = constant((planes, extent), call.dtype, 0)
    return along(call, zeros, 1, (planes, writes), position, source, None, True, True).reshaped(call.shape)


@expresses("masked_scatter")
def masked_scatter(call: Call) -> Tensor:
    """Elements of the source in their order: where the mask holds, the one whose number is how often it held before."""
    x, mask, source, shape = call["self"], call["mask"], call["source"], call.shape
    total, count = prod(shape), prod(source.shape)
    flat = mask.expanded(shape).reshaped((total,))
    if total == 1:
        number = call.graph.emit((1,), "i64", "0")
    else:
        held = call.graph.emit((total,), "i64", lambda i: f"cumsum[{i[0]}](i64({flat.at(*i)}))", whole=[0])
        number = call.graph.emit((total,), "i64", lambda i: f"{held.at(*i)} - 1")
    number, given = number.reshaped(shape), source.reshaped((count,))
    x = x.expanded(shape)

    def expression(i: list[Index]) -> str:
        taken = operand(given, call.dtype, lambda t: t.at(ix.opaque(number.at(*i))))
        return f"{taken} if {mask.expanded(shape).at(*i)} else {x.at(*i)}"

    return call.emit(shape, call.dtype, expression)


@expresses("as_strided_scatter")
def as_strided_scatter(call: Call) -> Tensor:
    """Where strides reach an element once, each digit of its position in memory is a quotient by a stride."""
    x, source, node = call["self"], call["src"], node_at(call.node)
    size, strides = list(call["size"]), list(call["stride"])
    given = node.meta["val"]
    if tuple(given.stride()) != tuple(ix.row_major(x.shape)):
        raise Unsupported("as_strided_scatter of a tensor in another order of memory")
    begin = call["storage_offset"] - given.storage_offset() if call["storage_offset"] is not None else 0
    order = sorted((d for d, n in enumerate(size) if n > 1), key=lambda d: -strides[d])
    reach = 0
    for d in reversed(order):
        if strides[d] <= reach:
            raise Unsupported("as_strided_scatter to places that overlap")
        reach += strides[d] * (size[d] - 1)
    if begin < 0 or begin + reach >= prod(x.shape):
        raise Unsupported("as_strided_scatter beyond its tensor")

    def expression(i: list[Index]) -> str:
        rest = ix.flat(i, ix.row_major(x.shape)) - begin
        tests = [f"{rest.sum_text()} >= 0"] if not rest.at_least(0) else []
        digits: dict[int, Index] = {}
        for d in order:
            digits[d], rest = rest // strides[d], rest % strides[d]
            tests.append(f"{digits[d].sum_text()} < {size[d]}")
        tests.append(f"{rest.sum_text()} == 0")
        at = [ix.within(digits[d], n) if d in digits else ix.number(0) for d, n in enumerate(size)]
        tests = [t for t in tests if t != "0 == 0"]
        taken = f"pad({source.at(*at)}, 0)" if at else source.at()
        return f"{taken} if {' and '.join(tests)} else {x.at(*i)}" if tests else taken

    return call.emit(call.shape, call.dtype, expression)
