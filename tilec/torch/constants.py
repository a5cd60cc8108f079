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


Ends = tuple[Any, Any]


def _before(a: Ends, b: Ends) -> bool | None:
    """Whether every element of one is less than every element of another; None where some are, and some are not."""
    return True if a[1] < b[0] else False if a[0] >= b[1] else None


ANSWERS: dict[str, Callable[[Ends, Ends], bool | None]] = {
    "lt": _before,
    "gt": lambda a, b: _before(b, a),
    "ge": lambda a, b: None if (less := _before(a, b)) is None else not less,
    "le": lambda a, b: None if (less := _before(b, a)) is None else not less,
}


@dataclass(frozen=True)
class Pattern:
    """A tensor whose elements are `first`, and further by `steps` along each dimension. With all steps 0 it may have any type."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    first: Any
    steps: tuple[int, ...]

    @property
    def ends(self) -> tuple[Any, Any]:
        """The smallest and the largest element."""
        reach = [step * (extent - 1) for step, extent in zip(self.steps, self.shape)]
        return self.first + sum(r for r in reach if r < 0), self.first + sum(r for r in reach if r > 0)

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
            if not _is_known(node):
                continue
            pattern = None
            if node.meta["val"].numel() > MOST:
                pattern = _followed(node, found)
            elif _reads_known(node, values) and (value := _evaluated(node, values)) is not None:
                values[node] = value
                pattern = _pattern(value)
            if pattern is not None:
                found[node] = pattern
    return found


def _is_known(node: fx.Node) -> bool:
    """Whether an operation's result follows from what it reads, and has a known size."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or schema.is_mutable:
        return False
    made = node.meta.get("val")
    if torch.Tag.nondeterministic_seeded in node.target.tags or not isinstance(made, torch.Tensor):
        return False
    return all(isinstance(n, int) for n in made.shape) and made.numel() > 0 and not made.is_complex()


def _reads_known(node: fx.Node, found: Mapping[fx.Node, Any]) -> bool:
    read = node.all_input_nodes
    return all(n in found for n in read) and (bool(read) or node.target._schema.name in CONSTANTS)


def _followed(node: fx.Node, found: Mapping[fx.Node, Pattern]) -> Pattern | None:
    """The pattern of a large result, without its elements: where all that it is computed from are numbers, or where a comparison
    of positions has one answer, such as that none is further back than a window."""
    read, like, schema = node.all_input_nodes, node.meta["val"], node.target._schema
    shape = tuple(like.shape)
    if not read:
        number = node.args[1] if schema.name == "aten::full" else None
        known = isinstance(number, bool | int | float)
        return Pattern(shape, like.dtype, torch.tensor(number, dtype=like.dtype).item(), (0,) * len(shape)) if known else None
    if not all(n in found for n in read):
        return None
    if not any(any(found[n].steps) for n in read) and (torch.Tag.pointwise in node.target.tags or _shows(schema)):
        if _shows(schema):
            return Pattern(shape, like.dtype, found[read[0]].first, (0,) * len(shape))
        few = {n: torch.full((1,) * len(found[n].shape), found[n].first, dtype=found[n].dtype) for n in read}
        args, kwargs = fx.map_arg((node.args, node.kwargs), few.__getitem__)
        return Pattern(shape, like.dtype, node.target(*args, **kwargs).to(like.dtype).item(), (0,) * len(shape))
    name = schema.name.removeprefix("aten::")
    if name in ANSWERS and all(not found[n].dtype.is_floating_point for n in read):
        ends = [found[a].ends if isinstance(a, fx.Node) else (a, a) for a in node.args]
        if (answer := ANSWERS[name](*ends)) is not None:
            return Pattern(shape, torch.bool, answer, (0,) * len(shape))
    return None


def _shows(schema: Any) -> bool:
    """Whether the result has the elements of the argument: a view, or a copy."""
    return schema.name == "aten::clone" or any(r.alias_info is not None for r in schema.returns)


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
