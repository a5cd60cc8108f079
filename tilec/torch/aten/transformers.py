"""PyTorch's fast paths of transformers in inference, as the operations that they stand for.

A mask of floats is one of 0 and -inf, as `nn.TransformerEncoderLayer` gives it. PyTorch's kernels do not agree about other numbers.
Those for the CPU mask each position whose number is not 0. On a GPU, fused attention adds the numbers. So it is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch._ops import OpOverload


def decompositions() -> dict[OpOverload, Callable[..., Tensor | tuple[Tensor, Tensor]]]:
    import torch
    from torch.nn import functional as F

    def visible(mask: Tensor, scores: Tensor, kind: int | None) -> Tensor:
        """A mask of positions (kind 0), of the keys of each sequence (1) or of all (2) as one of the scores."""
        if kind == 0:
            return mask.view(1, 1, *mask.shape).expand(scores.shape)
        if kind == 1:
            return mask.view(mask.shape[0], *(1,) * (scores.dim() - 2), mask.shape[1]).expand(scores.shape)
        return mask

    def masked_softmax(x: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Tensor:
        if x.is_nested or mask.dtype != torch.bool:
            return NotImplemented
        hidden = visible(mask, x, mask_type) if mask_type in (0, 1) else mask
        return x.masked_fill(hidden, -math.inf).softmax(x.dim() - 1 if dim is None else dim)

    def multi_head_attention(
        query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
        proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
        average_attn_weights: bool = True, mask_type: int | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if query.is_nested or key.is_nested or value.is_nested or (mask is not None and mask_type not in (0, 1, 2)):
            return NotImplemented
        width = embed_dim // num_head
        if query is key and key is value:
            parts = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
        else:
            given = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
            parts = tuple(F.linear(x, w, b) for x, w, b in given)
        q, k, v = (x.unflatten(-1, (num_head, width)).transpose(1, 2) for x in parts)
        scores = (q * (1 / math.sqrt(width))) @ k.transpose(-2, -1)
        if mask is not None:
            hidden = visible(mask, scores, mask_type)
            adds = mask.is_floating_point() and mask.device.type == "cuda" and width % 8 == 0 and not need_weights
            scores = scores + hidden if adds else scores.masked_fill(hidden.bool(), -math.inf)
        weights = scores.softmax(-1)
        result = F.linear((weights @ v).transpose(1, 2).flatten(-2), proj_weight, proj_bias)
        if not need_weights:
            return result, result.new_empty(0)
        return result, weights.sum(1) / num_head if average_attn_weights else weights

    def encoder_layer(
        src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor,
        use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor,
        norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
        mask: Tensor | None = None, mask_type: int | None = None,
    ) -> Tensor:  # fmt: skip
        if src.is_nested or (mask is not None and mask_type not in (0, 1, 2)):
            return NotImplemented

        def first(x: Tensor) -> Tensor:
            return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

        def second(x: Tensor) -> Tensor:
            return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

        x = first(src) if norm_first else src
        x, _ = multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )
        x = x + src if norm_first else first(x + src)
        inner = F.linear(second(x) if norm_first else x, ffn_weight_1, ffn_bias_1)
        x = x + F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)
        return x if norm_first else second(x)

    aten = torch.ops.aten
    return {
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
        aten._native_multi_head_attention.default: multi_head_attention,
        aten._masked_softmax.default: masked_softmax,
    }
