"""Operations that PyTorch keeps whole, and that are a few of those that the table has."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase
from typing import Any

MOST_POINTS = 25
"""Beyond so many points PyTorch computes Euclidean distances from a product of matrices, which takes less time."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    import torch
    from torch._decomp import get_decompositions

    aten = torch.ops.aten

    def ldexp(x: Any, exponent: Any) -> Any:
        return x * torch.pow(2.0, exponent)

    def dist(x: Any, y: Any, p: float = 2) -> Any:
        return torch.linalg.vector_norm(x - y, p)

    def cdist(x: Any, y: Any, p: float, mode: int | None) -> Any:
        product = p == 2 and mode != WITHOUT_PRODUCT and (mode == WITH_PRODUCT or max(x.shape[-2], y.shape[-2]) > MOST_POINTS)
        if product or 0 in (*x.shape, *y.shape):
            return NotImplemented
        return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)

    def trilinear(
        a: Any, b: Any, c: Any, expand_a: list[int], expand_b: list[int], expand_c: list[int], summed: list[int], unroll: int = 1
    ) -> Any:
        """Products of three tensors that have dimensions of one element in these places, summed over others."""
        letters = ascii_lowercase[: a.dim() + len(expand_a)]
        of = lambda left_out: "".join(letters[d] for d in range(len(letters)) if d not in left_out)  # noqa: E731
        return torch.einsum(f"{of(expand_a)},{of(expand_b)},{of(expand_c)}->{of(summed)}", a, b, c)

    def index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
        """PyTorch's own is an `index_copy`, which takes no negative positions."""
        if not x.dim():
            return index_fill(x.unsqueeze(0), 0, index, value).squeeze(0)
        value = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
        return aten.index_put(x, [None] * (dim % x.dim()) + [index], value)

    norms = [aten._batch_norm_with_update_functional, aten._batch_norm_with_update, aten._batch_norm_no_update]
    return {
        aten.ldexp.Tensor: ldexp,
        aten.dist.default: dist,
        aten._cdist_forward.default: cdist,
        aten._trilinear.default: trilinear,
        aten.index_fill.int_Scalar: index_fill,
        aten.index_fill.int_Tensor: index_fill,
        **get_decompositions(norms),
    }


WITH_PRODUCT, WITHOUT_PRODUCT = 1, 2  # of PyTorch's numbers for ways to compute distances
