"""The facts that a CUDA layout is chosen from: a kernel's tensors in global memory, and their contiguous dimension."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from tilec.analysis.directions import extract_directions, mean_steps_of_extracts, scattered_extracts
from tilec.analysis.graph import Graph, Node
from tilec.analysis.layout import Layout, make
from tilec.analysis.loop_groups import GroupedOp, loop_nests
from tilec.analysis.traffic import element_bytes, inputs_of, outputs_of, strides
from tilec.core.hardware import SECTOR, WIDE
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.kernels import KernelPlan
from tilec.plan.groups import Group

UNROLLED = 8  # a dimension that a thread loops over alone is unrolled as a whole up to this
Numbers = dict[int, int]  # by kernel dimension
THREADS = 256  # a block's, where nothing asks for another number: eight warps hide latency and leave registers
NEAR = 768  # instructions in the nearest cache of a scheduler: 12 KiB, by Jia et al., "Dissecting the NVIDIA Volta GPU", 2018
HELD = 64  # elements of several dimensions together that a thread may hold: 40 to 110 registers


@dataclass(frozen=True)
class Access:
    """A tensor that the kernel reads or writes in global memory, subscripted by kernel dimensions."""

    dims: tuple[int, ...]
    bytes: int
    element: int
    written: bool
    readers: tuple[str, ...] = ()  # operations
    value: ir.Value | None = None


@dataclass(frozen=True)
class View:
    """The facts that a CUDA layout is chosen from. `ordered`: tensors that are planned for as if neighbouring threads read
    neighbouring elements of them."""

    kernel: KernelPlan
    group: Group
    graph: Graph
    target: Target
    accesses: tuple[Access, ...]
    pick: int = 0
    ordered: frozenset[ir.Value] = frozenset()

    @cached_property
    def extents(self) -> tuple[int, ...]:
        return tuple([self.kernel.extents[d] for d in range(len(self.kernel.extents))])

    @cached_property
    def reduced(self) -> tuple[int, ...]:
        return tuple([d for d in range(len(self.extents)) if d not in self.kernel.grid])

    @cached_property
    def scanned(self) -> frozenset[int]:
        return frozenset(self.group.space.dims[n][n.scan] for n in self.group.nodes if n.scan is not None)

    @cached_property
    def nests(self) -> dict[str, int]:
        """The loop nest of each operation, by number."""
        nodes, dims = self.group.nodes, self.group.space.dims
        ops = [
            GroupedOp(
                self.kernel.loop_groups[n.name], dims[n], frozenset(dims[n][d] for d in n.reduced), n.scan is not None
            )
            for n in nodes
        ]
        return {n.name: number for n, number in zip(nodes, loop_nests(ops, "cuda"))}

    @cached_property
    def reads(self) -> list[tuple[Node, ir.Value, Numbers]]:
        """What operations read of global memory, and the bytes between neighbours along the dimensions where it is not the same."""
        return list(_reads(self.group))


def accesses(kernel: KernelPlan, g: Group, graph: Graph) -> tuple[Access, ...]:
    """The kernel's accesses of global memory."""
    return tuple(_accesses(kernel, g, graph))


def _accesses(kernel: KernelPlan, g: Group, graph: Graph) -> Iterator[Access]:
    written = outputs_of(g.nodes, graph)
    for node in g.nodes:
        for result in node.results:
            if result.value in written:
                yield _access(g, node, result.value, result.dims, True, ())
    for value in inputs_of(g.nodes):
        readers = [(n, r) for n in g.nodes for r in n.reads if r.value == value]
        seen: dict[tuple[int, ...], list[str]] = {}
        for node, read in readers:
            dims = tuple(g.space.dims[node][d] for d in read.dims)
            seen.setdefault(dims, []).append(node.name)
        for node, read in readers:
            dims = tuple(g.space.dims[node][d] for d in read.dims)
            if names := seen.pop(dims, []):
                yield _access(g, node, value, read.dims, False, tuple(names))


def _reads(g: Group) -> Iterator[tuple[Node, ir.Value, Numbers]]:
    outside = set(inputs_of(g.nodes))
    for node in g.nodes:
        dims = g.space.dims[node]
        for read in node.reads:
            if read.value in outside:
                yield node, read.value, strides(read.value, [{dims[d]: 1} for d in read.dims])
        for number, subscripts in mean_steps_of_extracts(node):
            value = node.outside[number]
            yield node, value, strides(value, [dict(zip(dims, steps)) for steps in subscripts])


def strides_of(value: ir.Value, dims: Sequence[int]) -> Numbers:
    """Bytes between neighbours along each of the kernel dimensions that are a tensor's subscripts."""
    return strides(value, [{d: 1} for d in dims])


def _access(
    g: Group, node: Node, value: ir.Value, dims: tuple[int, ...], written: bool, readers: tuple[str, ...]
) -> Access:
    shaped = ir.ShapedType(value.type)
    size = element_bytes(shaped.element_type)
    return Access(tuple(g.space.dims[node][d] for d in dims), prod(shaped.shape) * size, size, written, readers, value)


# ---- the contiguous dimension ----------------------------------------------------------------------------------------


def lane_dim(view: View) -> int | None:
    """The dimension along which most bytes are contiguous: neighbouring threads take neighbouring elements of it."""
    score: dict[int, float] = {}
    for access in view.accesses:
        if (d := contiguous(access, view)) is not None:
            score[d] = score.get(d, 0) + access.bytes * (1.25 if access.written else 1)
    for node in view.group.nodes:
        for d, weight in extract_directions(node).items():
            k = view.group.space.dims[node][d]
            score[k] = score.get(k, 0) + weight * node.iterations
    if not score:
        wide = [d for d, e in enumerate(view.extents) if e > 1]
        return wide[-1] if wide else None
    return max(score, key=lambda d: (score[d], d))


def lanes_of_windows(view: View, lane: int | None) -> list[int]:
    """Reduced dimensions along which elements at computed subscripts are contiguous, where they lie apart along the lane's: windows
    beside each other of a sector of memory or more, whose elements threads may take as those of short rows."""
    if lane is None or view.scanned:
        return []
    steps = [(strides, element_bytes(v.type)) for n, v, strides in view.reads if v in n.extracts]
    found = {(d, size) for strides, size in steps if strides.get(lane, 0) > size for d in view.reduced if strides.get(d) == size}
    return sorted({d for d, size in found if view.extents[d] * size >= SECTOR})


def contiguous(access: Access, view: View) -> int | None:
    """The last dimension, where it is longer than one element."""
    if not access.dims or view.extents[access.dims[-1]] <= 1:
        return None
    return access.dims[-1]


def vector_of(view: View, lane: int) -> int:
    """Neighbouring elements of one thread: 16 bytes of the narrowest operand that matters. 1 if the length of rows is no
    multiple of that, so that vectors would be cut or unaligned; and 1 if most elements are read at computed subscripts,
    since neighbouring threads should then take single elements."""
    along = [a for a in view.accesses if contiguous(a, view) == lane]
    extracted = sum(n.iterations * scattered(n, view, lane) for n in view.group.nodes if n.extracts)
    plain = sum(a.bytes // a.element for a in along if not a.written)
    if not along or extracted > plain:
        return 1
    vector = widest(along)
    while vector > 1 and view.extents[lane] % vector:
        vector //= 2
    return vector


def widest(along: list[Access]) -> int:
    """Elements of 16 bytes of the narrowest operand that matters."""
    most = max(a.bytes for a in along)
    return min(8, WIDE // min(a.element for a in along if 4 * a.bytes >= most))


def scattered(node: Node, view: View, lane: int) -> int:
    """Computed accesses that neighbours along `lane` cannot make as one."""
    dims = view.group.space.dims[node]
    return scattered_extracts(node, dims.index(lane), WIDE // 2) if lane in dims else 0


def power(value: float) -> int:
    """The least power of two that is not below `value`."""
    return 1 << max(0, ceil(value) - 1).bit_length()


def unrolled(view: View, dims: Collection[int], elements: int = 1) -> dict[int, int]:
    """Unrolled steps along dimensions that a thread has alone: short dimensions whole, the last first, as long as a thread
    can hold their elements together. Other dimensions go step by step: sixteen dimensions of 2 would be tens of
    thousands of elements. `elements` is the number of elements along the lane's dimension at each step; several dimensions
    leave room for them, and a loop's instructions stay in the nearest cache. Steps that do not divide a dimension have guards,
    and all loads come before the first use: as many as a thread can hold."""
    steps, room = {}, min(HELD, max(UNROLLED, HELD // elements))
    busiest = max((n.instructions for n in view.group.nodes if {*view.group.space.dims[n]} & {*dims}), default=0)
    room = max(1, min(room, int(NEAR / max(1.0, busiest * elements))))
    for d in sorted(dims, reverse=True):
        most = max(1, min(view.extents[d], UNROLLED, room))
        even = max(n for n in range(1, most + 1) if view.extents[d] % n == 0) if view.extents[d] else most
        if view.extents[d] <= UNROLLED or 2 * even > most:
            steps[d] = even
        else:
            loaded = elements * sum(1 for a in view.accesses if d in a.dims and not a.written)
            steps[d] = max(even, min(most, HELD // max(1, loaded)))
        room //= steps[d]
    return steps


def lay_out(
    view: View, counts: Numbers, vectors: Numbers, steps: Numbers, tile: Numbers, unaligned: bool = False
) -> Layout:
    """The layout of a block. `counts` lists dimensions in the order of threads, the fastest first."""
    extents = [min(tile.get(d, 1), e) if d in view.kernel.grid else e for d, e in enumerate(view.extents)]
    dims = range(len(extents))
    return make(
        extents, [d for d, c in counts.items() if c > 1], [counts.get(d, 1) for d in dims],
        [vectors.get(d, 1) for d in dims], [steps.get(d, 1) for d in dims], unaligned,
    )  # fmt: skip
