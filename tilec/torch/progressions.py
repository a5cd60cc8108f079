"""Tensors of numbers that grow evenly along each dimension, followed from operation to operation without their elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from tilec.torch import indices as ix
from tilec.torch.aliases import arguments, function, is_pointwise, is_view, schema
from tilec.torch.aten import dtype_of, translate
from tilec.torch.extents import broadcast, extent
from tilec.torch.extents import shape as extents_of
from tilec.torch.indices import Index
from tilec.torch.program import Graph, Tensor, constant, positions
from tilec.torch.types import Number

INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
COPIES = {"clone", "_to_copy", "convert_element_type"}
Ends = tuple[Number, Number]


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
    first: Number
    steps: tuple[int, ...]

    @property
    def ends(self) -> Ends:
        """The smallest and the largest element."""
        reach = [(step, step * (extent - 1)) for step, extent in zip(self.steps, self.shape)]
        return self.first + sum(r for step, r in reach if step < 0), self.first + sum(r for step, r in reach if step > 0)

    @property
    def fits(self) -> bool:
        """Whether its type has all of its elements."""
        if self.dtype not in INTEGERS:
            return not any(self.steps)
        limits = torch.iinfo(self.dtype)
        return limits.min <= self.ends[0] and self.ends[1] <= limits.max

    def tensor(self) -> Tensor:
        """As an expression of indices. Raises Unsupported for a type that programs do not have."""
        dtype = dtype_of(self.dtype)
        if not any(self.steps):
            made = constant(self.shape, dtype, self.first)
            return replace(made, affine=lambda i: ix.number(int(self.first))) if self.dtype in INTEGERS else made
        affine: Callable[[Sequence[Index]], Index] = lambda i: ix.flat(i, self.steps, int(self.first))  # noqa: E731
        text = str if dtype == "i64" else lambda index: f"{dtype}({index.sum_text()})"
        return Tensor("", self.shape, dtype, formula=lambda i: text(affine(i)), affine=affine)


def tensors_read(node: fx.Node) -> list[fx.Node]:
    """The operands that are no numbers."""
    return [n for n in node.all_input_nodes if not isinstance(n.meta.get("val"), torch.SymInt)]


def followed(node: fx.Node, found: Mapping[fx.Node, Pattern]) -> Pattern | None:
    """The pattern of an operation's result by those of what it reads: where all of these are numbers, or where positions are moved,
    joined, added up, looked up, or compared with one answer, such as that none is further back than a window."""
    read, like, name = tensors_read(node), node.meta["val"], schema(node).name.partition("::")[2]
    shape = extents_of(like.shape)
    if not read:
        return _made(node, name, shape)
    if not all(n in found for n in read):
        return None
    if is_view(node) and like.dtype == found[read[0]].dtype:
        return _shown(node, found, shape)
    if name in COPIES and any(found[read[0]].steps):
        made = Pattern(shape, like.dtype, found[read[0]].first, found[read[0]].steps)
        return made if made.fits else None
    if not any(any(found[n].steps) for n in read) and (is_pointwise(node) or name in COPIES) and read == node.all_input_nodes:
        few = {n: torch.full((1,) * len(found[n].shape), found[n].first, dtype=found[n].dtype) for n in read}
        args, kwargs = fx.map_arg((node.args, node.kwargs), few.__getitem__)
        kwargs = kwargs | {"device": torch.device("cpu")} if "device" in kwargs else kwargs
        return Pattern(shape, like.dtype, function(node)(*args, **kwargs).to(like.dtype).item(), (0,) * len(shape))
    if (rule := RULES.get(name)) is not None and (grown := rule(node, found, shape)) is not None and grown.fits:
        return grown
    if name in ANSWERS and all(not found[n].dtype.is_floating_point for n in read) and read == node.all_input_nodes:
        ends = [found[a].ends if isinstance(a, fx.Node) else (a, a) for a in node.args if isinstance(a, fx.Node | int | float)]
        if (answer := ANSWERS[name](*ends)) is not None:
            return Pattern(shape, torch.bool, answer, (0,) * len(shape))
    return None


def _made(node: fx.Node, name: str, shape: tuple[int, ...]) -> Pattern | None:
    """Of what reads no tensor."""
    dtype, given = node.meta["val"].dtype, arguments(node)
    if name == "full" and isinstance(number := given["fill_value"], bool | int | float):
        return Pattern(shape, dtype, torch.tensor(number, dtype=dtype).item(), (0,) * len(shape))
    if name in ("arange", "iota") and dtype in INTEGERS:
        start, step = (given.get("start") or 0), given.get("step", 1)
        if isinstance(start, int) and isinstance(step, int):
            made = Pattern(shape, dtype, start, (step,))
            return made if made.fits else None
    return None


def _shown(node: fx.Node, found: Mapping[fx.Node, Pattern], shape: tuple[int, ...]) -> Pattern | None:
    """Of a view."""
    of = found[tensors_read(node)[0]]
    if not any(of.steps):
        return Pattern(shape, of.dtype, of.first, (0,) * len(shape))
    values = {n: found[n].tensor() if n in found else extent(n.meta["val"]) for n in node.all_input_nodes}
    made, here = translate(Graph(), node, values), positions(shape)
    if not isinstance(made, Tensor) or (index := made.index_at(*here)) is None:
        return None
    rest, steps = index.term, list[int]()
    for i in here:
        factor = None
        if i.constant is None:
            factor, rest = rest.collect(i.term.symbol)
        step = 0 if factor is None else factor.constant
        if step is None:
            return None
        steps.append(step)
    return None if rest.constant is None else Pattern(shape, of.dtype, rest.constant, tuple(steps))


def _sum(node: fx.Node, found: Mapping[fx.Node, Pattern], shape: tuple[int, ...]) -> Pattern | None:
    """Of a sum or a difference of positions."""
    like, alpha = node.meta["val"], node.kwargs.get("alpha", 1)
    if like.dtype not in INTEGERS or not isinstance(alpha, int):
        return None
    first, steps = 0, [0] * len(shape)
    for of, factor in zip(node.args, (1, -alpha if schema(node).name == "aten::sub" else alpha)):
        if isinstance(of, fx.Node) and of in found:
            pattern = found[of]
            first += factor * int(pattern.first)
            for d, (step, n) in enumerate(zip(pattern.steps, pattern.shape), len(shape) - len(pattern.shape)):
                steps[d] += factor * step if n > 1 else 0
        elif isinstance(of, int):
            first += factor * of
        else:
            return None
    return Pattern(shape, like.dtype, first, tuple(steps))


def _joined(node: fx.Node, found: Mapping[fx.Node, Pattern], shape: tuple[int, ...]) -> Pattern | None:
    """Of tensors of which each goes on where the one before ends, or that have one number."""
    given, like = arguments(node), node.meta["val"]
    parts, axis = [found[n] for n in given["tensors"]], given["dim"] % len(shape)
    if any(p.dtype != like.dtype or len(p.shape) != len(shape) for p in parts):
        return None
    if like.dtype not in INTEGERS:
        same = len({repr(p.first) for p in parts}) == 1
        return Pattern(shape, like.dtype, parts[0].first, (0,) * len(shape)) if same else None
    distance = int(parts[1].first) - int(parts[0].first) if len(parts) > 1 else 0
    step, begin = next((p.steps[axis] for p in parts if p.shape[axis] != 1), distance), 0
    steps = (*parts[0].steps[:axis], step, *parts[0].steps[axis + 1 :])
    for p in parts:
        own = (*p.steps[:axis], step if p.shape[axis] == 1 else p.steps[axis], *p.steps[axis + 1 :])
        if own != steps or p.first != parts[0].first + step * begin:
            return None
        begin += p.shape[axis]
    return Pattern(shape, like.dtype, parts[0].first, steps)


def _added_up(node: fx.Node, found: Mapping[fx.Node, Pattern], shape: tuple[int, ...]) -> Pattern | None:
    """Of the sums of one number so far."""
    given, like = arguments(node), node.meta["val"]
    of = found[tensors_read(node)[0]]
    if any(of.steps) or of.dtype.is_floating_point or like.dtype not in INTEGERS or not shape:
        return None
    axis, number = given["dim"] % len(shape), int(of.first)
    return Pattern(shape, like.dtype, number, tuple(number if d == axis else 0 for d in range(len(shape))))


def _looked_up(node: fx.Node, found: Mapping[fx.Node, Pattern], shape: tuple[int, ...]) -> Pattern | None:
    """Of elements at positions in all dimensions."""
    given = arguments(node)
    of, at = found[given["self"]], given["indices"]
    if len(at) != len(of.shape) or any(n is None or found[n].dtype not in INTEGERS for n in at):
        return None
    by = [found[n] for n in at]
    if broadcast(*(p.shape for p in by)) != shape:
        return None
    if any(p.ends[0] < 0 or p.ends[1] >= n for p, n in zip(by, of.shape)):
        return None
    first, steps = of.first, [0] * len(shape)
    for p, own in zip(by, of.steps):
        first = first + own * int(p.first) if own else first
        for d, (step, n) in enumerate(zip(p.steps, p.shape), len(shape) - len(p.shape)):
            steps[d] += own * step if n != 1 else 0
    return Pattern(shape, of.dtype, first, tuple(steps))


RULES = {"add": _sum, "sub": _sum, "cat": _joined, "cumsum": _added_up, "index": _looked_up}
"""By name of an operation, how its result grows."""
