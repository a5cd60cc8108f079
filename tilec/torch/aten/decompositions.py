"""The decompositions that graphs are traced with: core ATen's, and those of our own, each with the reason.

Operations that stay whole where core ATen takes PyTorch's decomposition say why in their rows (`Row.whole` in table.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase
from typing import TypeVar

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._ops import OperatorBase, OpOverload, OpOverloadPacket

from tilec.torch.aten import foreach, transformers
from tilec.torch.aten.table import TABLE
from tilec.torch.types import Decomposition

D = TypeVar("D", bound=Decomposition)
COMPOSITE, BACKENDS = "CompositeImplicitAutograd", ("CPU", "CUDA")
NONE = "PyTorch has none"
MEAN = 1  # of PyTorch's numbers for reductions
WITH_PRODUCT, WITHOUT_PRODUCT = 1, 2  # and for ways to compute distances
MOST_POINTS = 25
"""Beyond so many points PyTorch computes Euclidean distances from a product of matrices, which takes less time."""
aten = torch.ops.aten
PYTORCHS: list[OperatorBase | OpOverloadPacket] = [
    aten._batch_norm_with_update_functional, aten._batch_norm_with_update, aten._batch_norm_no_update, aten.ldexp.Tensor,
    aten.dist.default, aten.rrelu_with_noise_backward.default,
]  # fmt: skip
"""Operations that PyTorch decomposes, and core ATen keeps."""


@dataclass(frozen=True)
class Own:
    """A decomposition that is not PyTorch's, and why."""

    decompose: Decomposition
    reason: str


OWN: dict[OpOverload, Own] = {op: Own(f, NONE) for m in (foreach, transformers) for op, f in m.decompositions().items()}


def _own(reason: str, *ops: OpOverload) -> Callable[[D], D]:
    def add(function: D) -> D:
        OWN.update(dict.fromkeys(ops, Own(function, reason)))
        return function

    return add


def decompositions() -> dict[OpOverload, Decomposition]:
    """The decompositions that graphs are traced with, by operator. One may return NotImplemented: the operation then stays."""
    own: dict[OperatorBase, Decomposition] = {op: row.decompose for op, row in OWN.items()}
    table: dict[OperatorBase, Decomposition] = {**_core(), **get_decompositions(PYTORCHS), **own}
    return {op: f for op, f in table.items() if isinstance(op, OpOverload) and not is_whole(op)}


def is_whole(op: OperatorBase) -> bool:
    """Whether graphs have an operation that core ATen decomposes."""
    name = op._schema.name.removeprefix("aten::") if isinstance(op, OpOverload) else ""
    return name in TABLE and bool(TABLE[name].whole)


def _core() -> dict[OperatorBase, Decomposition]:
    """What `core_aten_decompositions()` says of operations that reach a graph. It lists all composite operations, too, for 0.2 s;
    tracing decomposes these anyway, but for the few that also have a kernel of their own."""
    from torch._decomp import _core_aten_decompositions_post_autograd
    from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS

    names = {key: set(torch._C._dispatch_get_registrations_for_dispatch_key(key)) for key in (*BACKENDS, COMPOSITE)}
    found = dict(_core_aten_decompositions_post_autograd())
    for name in names[COMPOSITE].intersection(set().union(*(names[key] for key in BACKENDS))):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::"):
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if op not in PRESERVED_ATEN_CIA_OPS:
                found.setdefault(op, op.decompose)
    return found


# ---- our own -----------------------------------------------------------------------------------------------------------


@_own("PyTorch's takes 1 from sigmoid(target x), which leaves no digit where it is near 1", aten.soft_margin_loss_backward.default)
def _soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Of log(1 + exp(-target x))."""
    made = -target * torch.sigmoid(-target * x) * grad
    return made / x.numel() if reduction == MEAN else made


@_own("PyTorch's rounds the scale to 16 bits", aten.native_dropout_backward.default)
def _native_dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    return gradient * mask * scale


@cache
def _of_embeddings() -> Callable[..., Tensor]:
    op = aten.embedding_dense_backward.default
    return get_decompositions([op])[op]


@_own("PyTorch's stores the table's gradient in f32, where its kernel adds up in f32", aten.embedding_dense_backward.default)
def _embedding_dense_backward(gradient: Tensor, *args: Tensor | int | bool, **options: Tensor | int | bool) -> Tensor:
    """It stays one operation there. The kernel for CPUs adds up in the table's type."""
    whole = gradient.device.type == "cuda" or gradient.dtype not in (torch.bfloat16, torch.float16)
    return NotImplemented if whole else _of_embeddings()(gradient, *args, **options)


@_own("PyTorch's is an `index_copy`, which takes no negative positions", aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def _index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    if not x.dim():
        return _index_fill(x.unsqueeze(0), 0, index, value).squeeze(0)
    value = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
    return aten.index_put(x, [None] * (dim % x.dim()) + [index], value)


@_own(NONE, aten._cdist_forward.default)
def _cdist(x: Tensor, y: Tensor, p: float, mode: int | None) -> Tensor:
    product = p == 2 and mode != WITHOUT_PRODUCT and (mode == WITH_PRODUCT or max(x.shape[-2], y.shape[-2]) > MOST_POINTS)
    if product or 0 in (*x.shape, *y.shape):
        return NotImplemented
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


@_own(NONE, aten._trilinear.default)
def _trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand_a: list[int], expand_b: list[int], expand_c: list[int], summed: list[int],
    unroll: int = 1,
) -> Tensor:  # fmt: skip
    """Products of three tensors that have dimensions of one element in these places, summed over others."""
    letters = ascii_lowercase[: a.dim() + len(expand_a)]
    of = lambda left_out: "".join(letters[d] for d in range(len(letters)) if d not in left_out)  # noqa: E731
    return torch.einsum(f"{of(expand_a)},{of(expand_b)},{of(expand_c)}->{of(summed)}", a, b, c)
