"""Gradients of embeddings, as graphs are traced with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The gradient of an embedding stays one operation where PyTorch's kernel adds up in f32, and stores no tensor of f32 as large
    as the table. Its kernel for CPUs adds up in the table's type."""
    import torch
    from torch._decomp import get_decompositions

    op = torch.ops.aten.embedding_dense_backward.default
    in_parts = get_decompositions([op])[op]

    def decomposed(gradient: Any, *args: Any, **options: Any) -> Any:
        whole = gradient.device.type == "cuda" or gradient.dtype not in (torch.bfloat16, torch.float16)
        return NotImplemented if whole else in_parts(gradient, *args, **options)

    return {op: decomposed}
