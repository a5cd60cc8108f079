"""Gradients of dropouts and of slopes that are drawn, as graphs are traced with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def decompositions() -> dict[Any, Callable[..., Any]]:
    import torch

    def native_dropout_backward(gradient: Any, mask: Any, scale: float) -> Any:
        """In which the scale is not rounded to 16 bits, as it is in PyTorch's decomposition."""
        return gradient * mask * scale

    def rrelu_with_noise_backward(
        gradient: Any, x: Any, noise: Any, lower: float, upper: float, training: bool, of_result: bool
    ) -> Any:
        """Slopes that do not differ were not drawn."""
        if training and upper - lower > 1e-6:
            return gradient * noise
        return torch.where(x > 0, gradient, gradient * ((lower + upper) / 2))

    aten = torch.ops.aten
    return {
        aten.native_dropout_backward.default: native_dropout_backward,
        aten.rrelu_with_noise_backward.default: rrelu_with_noise_backward,
    }
