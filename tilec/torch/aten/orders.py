"""In which order of memory programs store what they make."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from tilec.torch import indices as ix
from tilec.torch.aliases import schema_of, tensors
from tilec.torch.aten.table import Value, op_name
from tilec.torch.layout import layout
from tilec.torch.program import Tensor, positions


def reorders(device: torch.device) -> bool:
    """Whether programs for a device of PyTorch's store values in orders of their own: on GPUs, matrix units load neighbouring
    channels at once."""
    return device.type == "cuda"


def memory_orders(node: Node, values: Mapping[Node, Value]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The orders in which the dimensions of the node's results are stored, by shape, where they are not row-major. What follows
    reads them so, and results need no transpose. They are PyTorch's (channels last, heads behind places), but where the device
    `reorders`, the result of a convolution that `sums_channels` has its channels last where `by_channels` reads it, and only there;
    so have the values that are made of it. Where PyTorch's result lies as an operand does, that of other operations does, too."""
    value = node.meta.get("val")
    orders, product = {}, sums_channels(node)
    for v in value if isinstance(value, tuple | list) else [value]:
        if not isinstance(v, torch.Tensor) or not all(isinstance(n, int) for n in (*v.shape, *v.stride())):
            continue
        shape, last = tuple(v.shape), (0, *range(2, v.dim()), 1)
        found = layout(shape, v.stride())
        moved = _moved(v, node, values) if reorders(v.device) and found is not None and not product else None
        if moved is not None:
            orders[shape] = moved
        elif found is not None and not found.plain and len(found.order) == len(shape):
            orders[shape] = found.order
        elif v.dim() > 2 and reorders(v.device) and found is not None:
            # a product's factor of three dimensions is often a transpose
            made = (_stored_as(n, values) for n in node.all_input_nodes if v.dim() > 3)
            if by_channels(node, values) if product else last in made:
                orders[shape] = last
    return orders


def sums_channels(node: Node) -> bool:
    """Whether the node is a convolution that is a product of matrices. One of each channel alone has the order of what it reads."""
    if op_name(node) != "convolution":
        return False
    weight, transposed, groups = (node.args[n] for n in (1, 6, 8))
    assert isinstance(weight, Node) and isinstance(groups, int)
    shape = weight.meta["val"].shape
    return (shape[0] // groups if transposed else shape[1]) > 1


def by_channels(node: Node, values: Mapping[Node, Value]) -> bool:
    """Whether something that is made of images goes along their channels: a product, a reduction or a scan; or is to lie so.
    Where nothing does, PyTorch's order is as fast, and results have it. What joins them with others lies as these do."""
    pending, seen = [node], {node}
    while pending:
        read = pending.pop()
        (image, *_) = tensors(read)
        for user in read.users:
            made = next(iter(tensors(user)), None)
            if made is None or user in seen:
                continue
            if (sums_channels(user) and user.args[0] is read) or _goes_along_channels(user, image, made):
                return True
            if op_name(user) == "cat" and any(n in values and not _lies_last(n, values) for n in user.all_input_nodes):
                continue
            same = made.dim() > 2 and (made.shape[1] == image.shape[1] or op_name(user) == "cat")
            if same and any(n != 1 for n in made.shape[2:]):
                seen.add(user)
                pending.append(user)
    return False


def _goes_along_channels(user: Node, image: torch.Tensor, made: torch.Tensor) -> bool:
    before, channels, *extents = image.shape
    if channels > 1 and tuple(made.shape) in ((before, *extents), (before, 1, *extents)):
        return True
    if made.dim() != image.dim() or made.numel() != image.numel() or channels == 1:
        return False
    if made.shape != image.shape:  # a view with another order of dimensions
        return made.shape[-1] == channels and made.stride(-1) == image.stride(1)
    return _along(user) in (1, 1 - image.dim()) or made.stride(1) == 1 != image.stride(1)


def _along(node: Node) -> object:
    """The dimension whose elements an operation puts together, which ATen's schemas call `dim`: of a softmax, a scan, a sort."""
    schema = schema_of(node)
    names = [a.name for a in schema.arguments] if schema is not None else []
    return (dict(zip(names, node.args)) | node.kwargs).get("dim")


def _moved(v: torch.Tensor, node: Node, values: Mapping[Node, Value]) -> tuple[int, ...] | None:
    """The order in which the first operand is stored that has the shape and the strides of the result `v`, but lies otherwise."""
    found = layout(v.shape, v.stride())
    for n in node.all_input_nodes:
        if _same_layout(n.meta.get("val"), v):
            order = _stored_as(n, values)
            if order is not None and found is not None and order != found.order:
                return order
    return None


def _same_layout(one: object, other: object) -> bool:
    """Whether two tensors of PyTorch's have the same shape and strides."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return (one.shape, one.stride()) == (other.shape, other.stride())


def _lies_last(node: Node, values: Mapping[Node, Value]) -> bool:
    """Whether a value is stored with its channels last."""
    (image, *_) = tensors(node)
    return _stored_as(node, values) == (0, *range(2, image.dim()), 1)


def _stored_as(node: Node, values: Mapping[Node, Value]) -> tuple[int, ...] | None:
    """The order of memory of a value's dimensions, where it has all elements of what is stored, in another order. A dimension may
    be stored in parts that follow each other. What nothing stores lies as what it is computed of, unless PyTorch moves it."""
    x = values.get(node)
    if isinstance(x, Tensor) and x.formula is not None:
        same = (n for n in node.all_input_nodes if _same_layout(n.meta.get("val"), node.meta.get("val")))
        return next((known for n in same if (known := _stored_as(n, values)) is not None), None)
    if not isinstance(x, Tensor) or x.positions is None:
        return None
    names, order, parts = positions(x.shape, "d"), list[int](), list[ix.Index]()
    for position in x.positions(names):
        parts.append(position)
        whole = ix.flat(parts, ix.row_major([int(p.range[1]) + 1 for p in parts]))
        if whole in names:
            order.append(names.index(whole))
            parts = []
    return tuple(order) if not parts and sorted(order) == list(range(len(names))) else None
