"""`flex_attention` in graphs of Dynamo's: its score function and its mask become operations on all scores, ahead of autograd.

    s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h // groups, j, d]) * scale
    w = softmax[j](score_mod(s, b, h, i, j) if mask_mod(b, h, i, j) else -inf),    o = w @ v

That is what PyTorch's own formula (`torch._higher_order_ops.flex_attention.math_attention`) computes. A block mask says nothing
there that its `mask_mod` does not say: which blocks of scores nothing reads, the planner finds from the conditions. Gradients are
those of the operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tilec.torch.types import Context

BlockMask: TypeAlias = tuple[*tuple[torch.Tensor | int | None, ...], fx.GraphModule]
Attention: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inline(gm: fx.GraphModule) -> None:
    """Has a graph, and those that it calls, compute attention by `attention` in the place of PyTorch's operator."""
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            found = [n for n in module.graph.nodes if n.op == "call_function" and _is_attention(n.target)]
            for node in found:
                node.target = attention
            if found:
                module.recompile()


def _is_attention(target: object) -> bool:
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() == "flex_attention"


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: fx.GraphModule, block_mask: BlockMask,
    scale: float, kernel_options: object, score_mod_other_buffers: Sequence[torch.Tensor] = (),
    mask_mod_other_buffers: Sequence[torch.Tensor] = (),
) -> Attention:  # fmt: skip
    """The operator's results: o; the logarithm to the base 2 of each row's sum of exponentials, -inf where all of a row is masked,
    where o is 0; and the rows' maxima times log2(e)."""
    if torch.is_autocast_enabled(kind := query.device.type):
        narrow = torch.get_autocast_dtype(kind)
        query, key, value = (x.to(narrow) if x.dtype != torch.float64 else x for x in (query, key, value))
    with torch.autocast(kind, enabled=False):
        return _attention(query, key, value, score_mod, block_mask[-1], scale, score_mod_other_buffers, mask_mod_other_buffers)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: fx.GraphModule, mask_mod: fx.GraphModule, scale: float,
    of_scores: Sequence[torch.Tensor], of_mask: Sequence[torch.Tensor],
) -> Attention:  # fmt: skip
    narrow = query.dtype
    wide = torch.float64 if narrow == torch.float64 else torch.float32
    keys, values = (_of_heads(x, query) for x in (key, value))
    scores = query.to(wide) @ keys.to(wide).transpose(-2, -1) * scale
    positions = [torch.arange(n, device=query.device) for n in scores.shape]
    visible = _mapped(mask_mod, (), len(of_mask))(*positions, *of_mask)
    if not _is_first(score_mod):
        scores = _Visible.apply(scores, visible)
        scores = _mapped(score_mod, (0,), len(of_scores))(scores, *positions, *of_scores)
    scores = torch.where(visible, scores, -math.inf)
    with torch.no_grad():
        top = scores.amax(-1, keepdim=True)
    sums = torch.where(top.squeeze(-1) == -math.inf, -math.inf, _LogSumExp.apply(scores, top))
    weights = torch._safe_softmax(scores, -1).to(narrow)
    return _in_layout_of(weights @ values.to(narrow), query), sums / math.log(2), top.squeeze(-1) / math.log(2)


def _of_heads(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values for each batch and head of the query."""
    batches, heads = query.shape[:2]
    if x.shape[0] not in (1, batches) or heads % x.shape[1]:
        raise RuntimeError(f"flex_attention: {tuple(x.shape[:2])} batches and heads of keys, {batches, heads} of queries")
    if heads != x.shape[1]:
        shape = (x.shape[0], x.shape[1], heads // x.shape[1], *x.shape[2:])
        x = x.unsqueeze(2).expand(shape).reshape(x.shape[0], heads, *x.shape[2:])
    return x.expand(batches, *x.shape[1:])


class _LogSumExp(torch.autograd.Function):
    """The logarithm of each row's sum of exponentials, without the last dimension, by the row's maximum; 0 for a row of -inf alone.
    The formulas are those of `recompute.py`, so that backward has one exponential for the sums and the weights."""

    @staticmethod
    def forward(ctx: Context, scores: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        top = torch.where(top.abs() < math.inf, top, 0.0)
        total = torch.exp(scores - top).sum(-1, keepdim=True).clamp(min=1.0)
        sums = (top + torch.log(total)).view(top.shape[:-1])
        ctx.save_for_backward(scores, sums)
        return sums

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        scores, sums = ctx.saved_tensors
        return torch.exp(scores - sums.view((*sums.shape, 1))) * gradients[0].unsqueeze(-1), None


class _Visible(torch.autograd.Function):
    """The scores, whose gradient is 0 where they are masked, whatever the slope of a function of them is there."""

    @staticmethod
    def forward(ctx: Context, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(visible)
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (visible,) = ctx.saved_tensors
        return torch.where(visible, gradients[0], 0.0), None


def _mapped(function: fx.GraphModule, first: tuple[int | None, ...], captured: int) -> Callable[..., torch.Tensor]:
    """The function of one score at one position as one of all scores; what it has captured is the same for all."""

    def one(*given: torch.Tensor) -> torch.Tensor:
        with _Gathered():
            return pytree.tree_leaves(fx.Interpreter(function).run(*given))[0]

    for n in reversed(range(4)):
        along = tuple(0 if k == n else None for k in range(4))
        one = torch.vmap(one, in_dims=(*first, *along, *(None,) * captured))
    return one


def _is_first(function: fx.GraphModule) -> bool:
    """Whether a function gives its first argument back."""
    first, *_ = function.graph.find_nodes(op="placeholder")
    return pytree.tree_leaves(function.graph.output_node().args[0]) == [first]


class _Gathered(TorchFunctionMode):
    """Has `table[i, j]` of positions gather elements. Else PyTorch makes a view at numbers, which it asks the positions for."""

    def __torch_function__(
        self, function: Callable[..., object], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:  # fmt: skip
        if function is torch.Tensor.__getitem__:
            table, at = args[0], args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(i, (int, torch.Tensor)) and not isinstance(i, bool) for i in at):
                indices = [torch.tensor(i, device=table.device) if isinstance(i, int) else i for i in at]
                return torch.ops.aten.index(table, indices)
        return function(*args, **(kwargs or {}))


def _in_layout_of(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The tensor with its dimensions in memory in the query's order, but for the last, which is the last."""
    strides = query.stride()
    order = sorted(range(query.dim() - 1), key=lambda d: strides[d], reverse=True)
    order.append(query.dim() - 1)
    return x.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])
