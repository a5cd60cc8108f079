"""Numbers that a call gives, and that a graph only computes with, as tensors of one element.

    x / (step + 1)   ->   div(x, scalar_tensor(step + 1))

PyTorch traces a Python number that changes from call to call as a symbol: a step counter, an offset, a factor, or the size of a
tensor that something is divided by. As a value that a kernel reads it is a tensor, which each call writes into memory, and nothing
is compiled for one of its values. Numbers that sizes and the positions of slices are made of stay symbols.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from typing import TypeGuard

import torch
from torch import fx
from torch._ops import OpOverload

from tilec.torch.aliases import arguments
from tilec.torch.builder import Builder
from tilec.torch.constants import INTEGERS, SCALAR

aten = torch.ops.aten
KINDS = {torch.SymInt: torch.int64, torch.SymFloat: torch.float64}
FILLED = ("aten::full", "aten::full_like", "aten::new_full")
CPU = torch.device("cpu")


def as_tensors(graph: fx.Graph) -> None:
    """Has operations read such numbers as tensors, where their results are the same."""
    scalars = _Scalars()
    for node in list(graph.nodes):
        target = node.target
        if not isinstance(target, OpOverload) or not any(map(_is_number, node.all_input_nodes)):
            continue
        if target is aten.scalar_tensor.default:
            if node.meta["val"].device == CPU:
                node.meta[SCALAR] = True
        elif isinstance(node.meta.get("val"), torch.Tensor):
            scalars.replace(node, target)


def _is_number(value: object) -> TypeGuard[fx.Node]:
    return isinstance(value, fx.Node) and type(value.meta.get("val")) in KINDS


class _Scalars:
    """Each is where the tensors are that it is computed with: a kernel on a GPU would wait for one of the CPU's."""

    def __init__(self) -> None:
        self.made: dict[tuple[fx.Node, torch.device], fx.Node] = {}

    def replace(self, node: fx.Node, target: OpOverload) -> None:
        """Has an operation read numbers as tensors; it stays where it would then have another type, or cannot be done."""
        build, like = Builder(node.graph, node), node.meta["val"]
        try:
            new = self._read(build, node, target)
        except (RuntimeError, TypeError):
            new = None
        if new is not None and new.meta["val"].dtype == like.dtype:
            new.meta["val"] = like
            node.replace_all_uses_with(new)
            node.graph.erase_node(node)
            return
        for n in reversed(build.made):
            if not n.users and n not in self.made.values():
                node.graph.erase_node(n)

    def _read(self, build: Builder, node: fx.Node, target: OpOverload) -> fx.Node | None:
        given, name, like = arguments(node), target._schema.name, node.meta["val"]
        tensor = partial(self._tensor, build, device=like.device)
        if name in FILLED and _is_number(filled := given["fill_value"]):
            zeros = build(target, *(0 if a is filled else a for a in node.args), **node.kwargs)
            return build(aten.fill.Tensor, zeros, tensor(filled))
        if name == "aten::arange" and _is_number(start := given.get("start")) and given.get("step") in (None, 1):
            if like.dtype not in INTEGERS:
                return None
            count = like.shape[0] if isinstance(like.shape[0], int) else build(operator.sub, given["end"], start)
            return build(aten.add.Tensor, build(aten.arange.start_step, 0, count, **node.kwargs), tensor(start))
        if (overload := _of_tensors(target, given)) is None:
            return None
        wanted = overload._schema.arguments
        args = {
            a.name: tensor(given[a.name]) if _takes_tensor(a) and _is_scalar(given[a.name]) else given[a.name]
            for a in wanted
        }
        named = {a.name: args.pop(a.name) for a in wanted if a.kwarg_only}
        return build(overload, *args.values(), **named)

    def _tensor(self, build: Builder, number: fx.Node | float, device: torch.device) -> fx.Node:
        """A tensor of a number: of one that a call gives, the same for all that reads it on a device."""
        if not isinstance(number, fx.Node):
            return build(aten.scalar_tensor.default, number, dtype=torch.tensor(number).dtype, device=CPU)
        if (number, device) not in self.made:
            made = build(aten.scalar_tensor.default, number, dtype=KINDS[type(number.meta["val"])], device=device)
            made.meta[SCALAR] = True
            self.made[number, device] = made
        return self.made[number, device]


def _of_tensors(target: OpOverload, given: Mapping[str, object]) -> OpOverload | None:
    """The overload of an operator that takes tensors for all numbers that a call gives: `lt.Tensor` for `lt.Scalar`."""
    packet, own = target.overloadpacket, target._schema.arguments
    for overload in (target, *(getattr(packet, name) for name in packet.overloads())):
        arguments = overload._schema.arguments
        if overload._schema.is_mutable or [a.name for a in arguments] != [a.name for a in own]:
            continue
        same = all(str(a.type) == str(b.type) or (_takes_tensor(a) and "number" in str(b.type)) for a, b in zip(arguments, own))
        if same and all(_takes_tensor(a) for a in arguments if _is_number(given[a.name])):
            return overload
    return None


def _takes_tensor(argument: torch.Argument) -> bool:
    return str(argument.type) in ("Tensor", "Optional[Tensor]")


def _is_scalar(value: object) -> bool:
    return _is_number(value) or (isinstance(value, int | float) and not isinstance(value, bool))
