"""What a graph computes from numbers alone, such as positions and masks: evaluated before it is written.

A tensor of one number, and one of integers that grow evenly along each dimension, is then no tensor of the program: an access
to it is a number, or a sum of indices. So `le(arange, arange)` is a condition on indices, which planners know as a causal mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from tilec.torch import indices as ix
from tilec.torch.aten import dtype_of
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, constant

MOST = 1 << 20  # elements of what is evaluated
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
CONSTANTS = {
    *(
        f"aten::{n}"
        for n in ("full", "zeros", "ones", "arange", "scalar_tensor", "new_full", "new_zeros", "new_ones", "eye")
    ),
    "prims::iota",
}
"""What is computed from numbers alone."""


@dataclass(frozen=True)
class Pattern:
    """A tensor whose elements are `first`, and further by `steps` along each dimension. With all steps 0 it may have any type."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    first: Any
    steps: tuple[int, ...]

    def tensor(self) -> Tensor:
        """As an expression of indices. Raises Inexpressible for a type that programs do not have."""
        dtype = dtype_of(self.dtype)
        if not any(self.steps):
            return constant(self.shape, dtype, self.first)
        affine: Callable[[Sequence[Index]], Index] = lambda i: ix.flat(i, self.steps, self.first)  # noqa: E731
        text = str if dtype == "i64" else lambda index: f"{dtype}({index.sum_text()})"
        return Tensor("", self.shape, dtype, formula=lambda i: text(affine(i)), affine=affine)


def patterns(nodes: Iterable[fx.Node]) -> dict[fx.Node, Pattern]:
    """The patterns of what operations give that read nothing but each other's results, where these are not large."""
    values, found = dict[fx.Node, torch.Tensor](), dict[fx.Node, Pattern]()
    with _disable_current_modes(), torch.no_grad():
        for node in nodes:
            if not _is_constant(node, values) or (value := _evaluated(node, values)) is None:
                continue
            values[node] = value
            if (pattern := _pattern(value)) is not None:
                found[node] = pattern
    return found


def _is_constant(node: fx.Node, found: Mapping[fx.Node, Any]) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    read = node.all_input_nodes
    if not all(n in found for n in read) or not (read or schema.name in CONSTANTS):
        return False
    made = node.meta.get("val")
    if not isinstance(made, torch.Tensor) or not all(isinstance(n, int) for n in made.shape):
        return False
    return 0 < made.numel() <= MOST and not made.is_complex()


def _evaluated(node: fx.Node, found: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    args, kwargs = fx.map_arg((node.args, node.kwargs), found.__getitem__)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    try:
        value = node.target(*args, **kwargs)
    except Exception:  # it is computed where the graph is run, and fails there
        return None
    like = node.meta["val"]
    return value if value.shape == like.shape and value.dtype == like.dtype else None


def _pattern(value: torch.Tensor) -> Pattern | None:
    """The pattern of these values, if they have one."""
    shape, corner = tuple(value.shape), value[(0,) * value.dim()]
    made = lambda steps: Pattern(shape, value.dtype, corner.item(), tuple(steps))  # noqa: E731
    bits = value.contiguous().view(BITS[value.itemsize])  # zeros have signs, and a NaN is not itself
    if bool((bits == bits[(0,) * value.dim()]).all()):
        return made([0] * value.dim())
    if value.is_floating_point() or value.dtype == torch.bool:
        return None
    steps, grown = [], torch.full_like(value, corner.item())
    for d, extent in enumerate(shape):
        steps.append(int(value.select(d, min(1, extent - 1))[(0,) * (value.dim() - 1)]) - int(corner))
        along = torch.arange(extent, dtype=value.dtype) * steps[-1]
        grown = grown + along.view([extent if e == d else 1 for e in range(value.dim())])
    return made(steps) if bool((grown == value).all()) else None
