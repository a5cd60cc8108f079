"""Decompositions of gradients of losses, where PyTorch's own lose digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def decompositions() -> dict[Any, Callable[..., Any]]:
    import torch

    def soft_margin_loss_backward(grad: Any, x: Any, target: Any, reduction: int) -> Any:
        """Of log(1 + exp(-target x)). PyTorch takes 1 from sigmoid(target x), of which nothing is left where it is near 1."""
        made = -target * torch.sigmoid(-target * x) * grad
        return made / x.numel() if reduction == MEAN else made

    return {torch.ops.aten.soft_margin_loss_backward.default: soft_margin_loss_backward}


MEAN = 1  # of PyTorch's numbers for reductions
