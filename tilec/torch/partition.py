"""Which operations of a graph tilec takes, and in which partitions: by numbering levels.

Odd levels hold operations that PyTorch runs, even levels those that tilec runs: each even level of a device is one partition. An
operation's level is the lowest of its kind that is not below those of its arguments, so no partition waits for itself.
Views, constants and arithmetic on sizes have no level of their own: each partition that reads them has its own copy, and
PyTorch runs them, as views, where something else reads them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tilec.torch.aliases import draws, is_opaque, is_pointwise, is_view, schema_of, tensors, writes
from tilec.torch.concrete import NUMBERS, Known
from tilec.torch.constants import SCALAR, is_constant, patterns

Refusal = Callable[[fx.Node], str | None]


@dataclass(eq=False)
class Part:
    """A partition: operations that one program computes, in the graph's order, on one device."""

    level: int
    device: torch.device
    nodes: list[fx.Node] = field(default_factory=list)


@dataclass
class Decision:
    """The graph's operations by who computes them: `owner` has those of partitions. Those in `light` have no owner: they move no
    data. `reasons` says why PyTorch runs an operation. `order` puts a level's operations behind those of lower levels."""

    parts: list[Part] = field(default_factory=list)
    owner: dict[fx.Node, Part] = field(default_factory=dict)
    light: set[fx.Node] = field(default_factory=set)
    reasons: dict[fx.Node, str] = field(default_factory=dict)
    level: dict[fx.Node, int] = field(default_factory=dict)

    @property
    def order(self) -> list[fx.Node | Part]:
        """Partitions, and operations that PyTorch runs, in an order that they can run in."""
        units: list[tuple[int, fx.Node | Part]] = [(part.level, part) for part in self.parts]
        units += [(self.level[n], n) for n in self.reasons]
        return [unit for _, unit in sorted(units, key=lambda u: u[0])]


def decide(
    graph: fx.Graph, known: Mapping[fx.Node, Known], refusal: Refusal, refused: Mapping[fx.Node, str] | None = None
) -> Decision:
    """`known` gives for each node the node with known sizes that stands for it, a number, or UNDECIDED; `refusal` says why such a
    node cannot be in a partition, or None; `refused` has nodes that are in none for another reason."""
    refused = refused or {}
    made = Decision()
    free = _free([n for n in known.values() if isinstance(n, fx.Node)])
    level, parts = made.level, dict[tuple[int, torch.device], Part]()
    drawn = floor = highest = 0
    base: dict[fx.Node, fx.Node] = {}  # of a view, the tensor whose memory it shows
    read: dict[fx.Node, int] = {}  # the highest level that reads that memory
    changed: dict[fx.Node, int] = {}  # the level of the latest write to it
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            level[node] = 0
            continue
        bases = [base.get(n, n) for n in node.all_input_nodes]
        least = max((floor, *(level[n] for n in node.all_input_nodes), *(changed.get(b, 0) for b in bases)))
        if bases and (is_view(node) or writes(node)):
            base[node] = bases[0]
        of = known[node]
        if isinstance(of, NUMBERS):
            made.light.add(node)
            reads = [level[n] for n in node.all_input_nodes if not isinstance(known[n], NUMBERS)]
            level[node] = max((least, *(n + 1 for n in reads if n and n % 2 == 0)))  # behind the partition whose result it reads
            continue
        if (
            node.target is operator.getitem and node.args[0] not in made.light
        ):  # one of several results: with the operation
            level[node] = level[node.args[0]]
            base[node] = bases[0]
            if (part := made.owner.get(node.args[0])) is not None:
                part.nodes.append(node)
                made.owner[node] = part
            continue
        reason = refused.get(node) or _outside(node, of) or (refusal(of) if isinstance(of, fx.Node) else None)
        if reason is None and (is_light(node) or of in free):
            made.light.add(node)
            level[node] = least
            continue
        if reason is None:
            here, device = max(least + least % 2, 2), tensors(of if isinstance(of, fx.Node) else node)[0].device
            part = parts.setdefault((here, device), Part(here, device))
            part.nodes.append(node)
            made.owner[node] = part
        else:
            if draws(node):
                least = max(least, drawn)
            if writes(node):
                least = max(least, *(read.get(b, 0) for b in bases), highest if is_opaque(node) else 0)
            here = least + 1 - least % 2
            made.reasons[node] = reason
            if draws(node):
                drawn = here
            if is_opaque(node):
                floor = here
            elif writes(node):
                changed[base[node]] = here
        level[node] = here
        highest = max(highest, here)
        for b in bases:
            read[b] = max(read.get(b, 0), here)
    made.parts = sorted(parts.values(), key=lambda p: (p.level, p.device.type != "cpu"))  # GPUs read scalars of the CPU
    return made


def _free(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The operations from numbers alone that each reader may compute for itself, since that takes less than to read them: what
    one expression of indices says, and what is computed from that element by element."""
    made, found = set[fx.Node](), patterns(nodes)
    for node in nodes:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        simple = is_view(node) or is_pointwise(node)
        if node in found or (simple and node.all_input_nodes and all(n in made for n in node.all_input_nodes)):
            made.add(node)
    return made


def is_light(node: fx.Node) -> bool:
    """Whether the operation moves no data: a view, a constant, or one of several views."""
    return is_view(node) or (schema_of(node) is not None and is_constant(node))


def _outside(node: fx.Node, known: Known) -> str | None:
    """Why the operation is no matter of programs at all: where its tensors are, or of what kind."""
    if not isinstance(known, fx.Node):
        return "its size depends on data"
    if node.op != "call_function":
        return f"a node of kind {node.op}"
    if schema_of(node) is None and node.target is not operator.getitem:
        return "a function that is no operator"
    if SCALAR in node.meta:
        return "a number that the call gives"
    if writes(node):
        return "it changes a tensor in place"
    if draws(node):
        return "random numbers of PyTorch's generator"
    made = [v for v in pytree.tree_leaves(known.meta.get("val")) if v is not None]
    if not made or not all(isinstance(v, torch.Tensor) for v in made):
        return "its result is no tensor"
    read = [v for n in known.all_input_nodes for v in tensors(n)]
    for value in (*made, *read):
        if type(value).__name__ != "FakeTensor" or value.layout is not torch.strided:
            return f"a tensor of the kind {_kind(value)}"
        if value.is_conj() or value.is_neg() or value.is_quantized:
            return "a tensor that stands for another one's conjugate or negative"
    device = made[0].device
    if device.type not in ("cpu", "cuda"):
        return f"the device {device}"
    if any(v.device != device for v in made) or any(
        v.device != device and not (v.dim() == 0 and v.device.type == "cpu") for v in read
    ):
        return "tensors of several devices"
    return None


def _kind(value: torch.Tensor) -> str:
    return str(value.layout).removeprefix("torch.") if value.layout is not torch.strided else type(value).__name__
