"""What a graph computes from numbers alone, such as positions and masks: evaluated before it is written.

A tensor of one number, and one of integers that grow evenly along each dimension, is then no tensor of the program: an access
to it is a number, or a sum of indices. So `le(arange, arange)` is a condition on indices, which planners know as a causal mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from tilec.torch.aliases import behind_inputs, draws, function, is_pointwise, schema, schema_of, writes
from tilec.torch.aten.table import FINDING
from tilec.torch.extents import current, proving
from tilec.torch.progressions import INTEGERS, Pattern, followed, tensors_read
from tilec.torch.types import Value
from tilec.torch.unsupported import Unsupported

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
SCALAR = "tilec_scalar"
"""In the `meta` of what makes a tensor of a number that a call gives: PyTorch makes it, whatever reads it."""
NUMBER = "aten::_to_copy"
"""What makes a tensor of a number, as `vmap` does of those in a formula."""
FILLED = {"aten::full_like", "aten::zeros_like", "aten::ones_like"}
ELEMENTWISE = {"aten::_to_copy", "aten::clone", *FILLED}
"""Elementwise operations that PyTorch does not mark as such. The filled ones read nothing of their argument's elements."""


@dataclass(frozen=True)
class _Finding:
    """What was found about a node: the fake tensor that it had then, whether its elements are known, and their pattern."""

    like: torch.Tensor
    known: bool
    pattern: Pattern | None


def patterns(nodes: Iterable[fx.Node]) -> dict[fx.Node, Pattern]:
    """The patterns of what operations give that read nothing but each other's results, where these are not large. Each is looked
    for once: elements are as many as a model's positions squared."""
    asked = [n for n in nodes if _is_known(n)]
    if not all(isinstance(f := n.meta.get(FINDING), _Finding) and f.like is n.meta["val"] for n in asked):
        _find(asked)
    found, known = dict[fx.Node, Pattern](), set[fx.Node]()
    for node in asked:
        finding = node.meta[FINDING]
        if all(n in known or n in found for n in tensors_read(node)):  # no input of a partition
            if finding.known:
                known.add(node)
            if finding.pattern is not None:
                found[node] = finding.pattern
    return found


def _find(nodes: Iterable[fx.Node]) -> None:
    elements, found = _Elements(), dict[fx.Node, Pattern]()
    with _disable_current_modes(), torch.no_grad():
        for node in nodes:
            known, pattern = False, None
            if not _has_numbers(node) or node.meta["val"].numel() > MOST:
                with suppress(Unsupported), proving():
                    pattern = followed(node, found)
            elif elements.know(node):
                known, pattern = True, _pattern(elements, node)
            if pattern is not None:
                found[node] = pattern
            node.meta[FINDING] = _Finding(node.meta["val"], known, pattern)


class _Elements:
    """Elements of what is computed from numbers alone. A few of each are computed at once, and all where these leave a question, or
    where another operation than an elementwise one reads them: all of a model's positions squared take PyTorch's threads."""

    def __init__(self) -> None:
        self.few, self.all = dict[fx.Node, torch.Tensor](), dict[fx.Node, torch.Tensor]()

    def know(self, node: fx.Node) -> bool:
        """Whether it reads nothing but what is known, and can be computed now."""
        read = node.all_input_nodes
        if not all(n in self.few for n in read) or not (read or is_constant(node)):
            return False
        if _is_elementwise(node):
            shape = tuple(len(some(n)) for n in node.meta["val"].shape)
            value = _evaluated(node, self.few.__getitem__, shape)
        elif (value := self.whole(node)) is not None:
            for d, n in enumerate(value.shape):
                value = value.index_select(d, torch.tensor(some(n)))
        if value is not None:
            self.few[node] = value
        return value is not None

    def whole(self, node: fx.Node) -> torch.Tensor | None:
        """All elements of what is known, unless they cannot be computed."""
        is_filled = lambda n: n.target._schema.name in FILLED  # noqa: E731
        for n in behind_inputs(node, self.all, lambda n: () if is_filled(n) else n.all_input_nodes):
            shape = tuple(n.meta["val"].shape)
            value = self.few[n].flatten()[0].expand(shape) if is_filled(n) else _evaluated(n, self.all.__getitem__, shape)
            if value is None:
                return None
            self.all[n] = value
        return self.all[node]


def some(extent: int) -> list[int]:
    """A few positions of a dimension, the first two and the last among them."""
    return sorted({0, min(1, extent - 1), extent // 3, extent * 2 // 3, extent - 1})


def _is_elementwise(node: fx.Node) -> bool:
    """Whether an element of the result is computed from those at its position."""
    return is_pointwise(node) or schema(node).name in ELEMENTWISE


def is_constant(node: fx.Node) -> bool:
    """Whether an operation makes a tensor of numbers alone."""
    name = schema(node).name
    if SCALAR in node.meta:  # another number in each call
        return False
    return name in CONSTANTS or (name == NUMBER and not node.all_input_nodes)


def _is_known(node: fx.Node) -> bool:
    """Whether an operation's result follows from what it reads, and has a known size, or one of the program that is written."""
    made = node.meta.get("val")
    if schema_of(node) is None or writes(node) or draws(node) or not isinstance(made, torch.Tensor):
        return False
    if not _has_numbers(node):
        return current() is not None and not made.is_complex()
    return made.numel() > 0 and not made.is_complex()


def _has_numbers(node: fx.Node) -> bool:
    """Whether all extents of its result are numbers."""
    return all(isinstance(n, int) for n in node.meta["val"].shape)


def _evaluated(node: fx.Node, value_of: Callable[[fx.Node], torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor | None:
    try:
        value = on_cpu(node, value_of)
    except Exception:  # it is computed where the graph is run, and fails there
        return None
    return value if value.shape == shape and value.dtype == node.meta["val"].dtype else None


def on_cpu(node: fx.Node, value_of: Callable[[fx.Node], Value]) -> torch.Tensor:
    """What the operation makes of values on the CPU, there."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    return function(node)(*args, **(kwargs | {"device": torch.device("cpu")} if "device" in kwargs else kwargs))


def _pattern(elements: _Elements, node: fx.Node) -> Pattern | None:
    """The pattern of a node's elements, if they have one. Most have none, as a few of them show."""
    few, shape, dtype = elements.few[node], tuple(node.meta["val"].shape), node.meta["val"].dtype
    corner, numbers = (0,) * len(shape), _numbers(few).long()
    first = int(numbers[corner])
    steps = [int(numbers[(*corner[:d], min(1, n - 1), *corner[d + 1 :])]) - first for d, n in enumerate(shape)]
    if any(steps) and dtype not in INTEGERS:
        return None
    if not bool((_grown(first, steps, [torch.tensor(some(n)) for n in shape]) == numbers).all()):
        return None
    if schema(node).name not in FILLED:
        grown, value = _grown(first, steps, list(map(torch.arange, shape))), elements.whole(node)
        if value is None or not bool((grown == _numbers(value)).all()):
            return None
    return Pattern(shape, dtype, few[corner].item(), tuple(steps))


def _numbers(value: torch.Tensor) -> torch.Tensor:
    """The elements, or their bits: zeros have signs, and a NaN is not itself."""
    return value if value.dtype in INTEGERS else value.contiguous().view(BITS[value.itemsize])


def _grown(first: int, steps: Sequence[int], positions: Sequence[torch.Tensor]) -> torch.Tensor:
    """What grows evenly from `first`, at these positions of each dimension."""
    made = torch.full((1,) * len(steps), first)
    for d, (step, along) in enumerate(zip(steps, positions)):
        if step:
            made = made + (along * step).view([-1 if e == d else 1 for e in range(len(steps))])
    return made
