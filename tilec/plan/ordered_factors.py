"""Ordered factors: which factors of sums of products a kernel stores first, with the dimension last along which neighbouring
threads lie.

The weights of a depthwise convolution are such factors. Threads that read apart touch many lines of memory; how a kernel is
laid out depends on where its factors lie, so that both plans are made and compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

from tilec.analysis.directions import has_windows
from tilec.analysis.graph import Graph, Node, dims_of
from tilec.analysis.products import factors_of, stored
from tilec.analysis.traffic import bytes_of
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.cost.model import TooLarge, Work, predict
from tilec.passes.tensor.pack import SIDES, factor
from tilec.plan.groups import Group
from tilec.plan.steps import Applied, Pack
from tilec.plan.unchosen import unchosen

GAIN = 1.05  # what storing must promise
READS_THRESHOLD = 16  # reads of each element, at least, of a factor that is stored in another order


@dataclass(frozen=True)
class Ordered:
    """The factors of a kernel that can be stored in order, and the times of the kernel as it is and with them, their storing
    included."""

    packs: tuple[Pack, ...]
    uncoalesced_us: float
    stored_us: float

    @property
    def pays(self) -> bool:
        """Whether storing them makes the kernel faster by more than it takes."""
        return bool(self.packs) and self.uncoalesced_us >= GAIN * self.stored_us

    @property
    def after_us(self) -> float:
        """Of the kernel in the faster way."""
        return self.stored_us if self.pays else self.uncoalesced_us


def offered(g: Group, graph: Graph, target: Target) -> tuple[Applied, ...]:
    """The factors of a kernel of windows that can be stored in order, whether that pays or not."""
    found, node = ordered(g, graph, target), _summing(g)
    if node is None:
        return ()
    packs = [replace(p, operation=node.name) for p in found.packs]
    stored, before, after = " and ".join(p.stored for p in packs), duration(found.uncoalesced_us), duration(found.stored_us)
    reason = f"{before} where threads read apart, {after} with {stored} stored in their order first"
    return tuple(Applied("pack", p, reason, node.line) for p in packs)


def ordered(g: Group, graph: Graph, target: Target) -> Ordered:
    """What is known of a kernel without matrix units."""
    return graph.memoise("ordered", g.nodes, partial(_ordered, g, graph, target)).result


def _summing(g: Group) -> Node | None:
    """The sum of products whose factors may be stored."""
    return next((n for n in g.nodes if n.vector_product is not None and not n.part and has_windows(n)), None)


def _ordered(g: Group, graph: Graph, target: Target) -> Ordered:
    from tilec.plan.cuda.choose import choose, choose_with
    from tilec.plan.cuda.lines import UNCOALESCED, line_bytes
    from tilec.plan.cuda.shared_memory import layout_of
    from tilec.plan.cuda.view import View, accesses

    start, node = unchosen(g, graph, g.nodes[0].name, target), _summing(g)
    try:
        before = predict(choose(start, g, graph, target)[0].work, target).time_us
    except TooLarge:
        before = predict(start.work, target).time_us
    if node is None or node.contraction is not None:
        return Ordered((), before, before)
    small = {}  # sides whose factors are small, with the tensors that these are made of
    for side, value in enumerate(factors_of(node.op) or ()):
        if prod(node.extents[d] for d in dims_of(value, node)) * READS_THRESHOLD < node.iterations:
            small[side] = value, str(stored(value).type)
    sources = {side: read_by(node, side, kind) for side, (_, kind) in small.items()}
    view = View(start, g, graph, target, accesses(start, g, graph), ordered=frozenset(v for s in sources.values() for v in s))
    try:
        kernel, _ = choose_with(start, g, graph, target, 0, view.ordered)
    except TooLarge:
        return Ordered((), before, before)
    layout = layout_of(kernel)
    own: dict[int | None, int] = {kernel_dim: d for d, kernel_dim in enumerate(g.space.dims[node])}
    touched, lane = line_bytes(replace(view, kernel=kernel, ordered=frozenset()), layout, UNCOALESCED), own.get(layout.lane)
    packs, after = [], predict(kernel.work, target).time_us
    for side, (value, kind) in small.items():
        dims = dims_of(value, node)
        if lane is not None and lane in dims and not touched.keys().isdisjoint(sources[side]):
            packs.append(Pack(node.name, SIDES[side], (*sorted(dims - {lane}), lane), kind))
            width = ir.ShapedType(sources[side][0].type).element_type.width // 8
            after += time_to_store(node, packs[-1], width, target, overlaps=True)
    return Ordered(tuple(packs), before, after if packs else before)


def time_to_store(node: Node, p: Pack, size: int, target: Target, overlaps: bool = False) -> float:
    """Everything read once, and the copy written; `overlaps`: as the kernels around it."""
    values = read_by(node, p.number, p.kind)
    points = stored_elements(node, p) or sum(map(elements, values))
    work = Work(
        dram_read=sum(map(bytes_of, values)), dram_write=points * size, flops={}, threads=128,
        blocks=max(1, points * size // (16 * 128)), overlaps=overlaps,
    )  # fmt: skip
    return predict(work, target).time_us


def stored_elements(node: Node, p: Pack) -> int:
    """How many elements are stored, the zeros behind lines included; 0 of a tensor that is stored as it is, or in an order."""
    return prod(p.extents or (node.extents[d] for d in p.dims)) if p.dims else 0


def elements(value: ir.Value) -> int:
    return prod(ir.ShapedType(value.type).shape)


def read_by(node: Node, side: int, kind: str) -> list[ir.Value]:
    """The tensors that a factor is computed from."""
    inside = mlir.slice_of(mlir.body_of(node.op), factor(node.op, side, kind))
    arguments = list(mlir.body_of(node.op).arguments)
    values = [factor(node.op, side, kind), *(v for o in inside for v in mlir.operands_of(o))]
    inputs = mlir.inputs_of(node.op)
    found = [inputs[arguments.index(v)] for v in values if v in arguments and arguments.index(v) < len(inputs)]
    return list(dict.fromkeys([*found, *(o.operands[0] for o in inside if o.name == "tensor.extract")]))
