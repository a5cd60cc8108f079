"""The amounts that predict a kernel's time: bytes read and written, bytes kept on chip, operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, prod

from tilec.analysis import bf16_split
from tilec.analysis.graph import Graph, Node, element_bytes
from tilec.analysis.loop_bodies import loop_order, nest_time_us
from tilec.analysis.multiplicands import multiplicand_of
from tilec.analysis.space import Space
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.block_tile import unit_type
from tilec.cost.model import Work


def bytes_of(value: ir.Value) -> int:
    shaped = ir.ShapedType(value.type)
    return prod(shaped.shape) * element_bytes(shaped.element_type)


def outputs_of(nodes: list[Node], graph: Graph) -> list[ir.Value]:
    """Results that leave the kernel: returned, or read by another."""
    inside = set(nodes)
    return [r.value for n in nodes for r in n.results if graph.leaves(r.value, inside)]


def inputs_of(nodes: list[Node]) -> list[ir.Value]:
    made = {r.value for n in nodes for r in n.results}
    values = [v for n in nodes for v in (*(r.value for r in n.reads), *n.gathered)]
    return [v for v in dict.fromkeys(values) if v not in made]


def intermediates(nodes: list[Node], graph: Graph) -> list[tuple[Node, ir.Value]]:
    """Intermediates that stay in the kernel: made and read in it, and not written out."""
    out = set(outputs_of(nodes, graph))
    read = {r.value for n in nodes for r in n.reads}
    return [(n, r.value) for n in nodes for r in n.results if r.value in read and r.value not in out]


def intermediate_bytes(nodes: list[Node], graph: Graph, space: Space) -> int:
    """Bytes of the kernel's intermediates for one point of the grid."""
    total = 0
    for node, value in intermediates(nodes, graph):
        result = next(r for r in node.results if r.value == value)
        inner = prod(node.extents[d] for d in result.dims if space.dims[node][d] not in space.grid)
        total += inner * element_bytes(value.type)
    return total


CLUSTER = 16  # blocks at most
SHARED = 32  # elements a thread, from which blocks share a row where there are few


def onchip_bytes(target: Target, nodes: list[Node], space: Space) -> int:
    """The bytes that blocks which work together may keep: most of an SM's shared memory, or half of its registers if a
    cluster of SMs shares a row; half of a core's L2 cache."""
    if target.kind != "cuda":
        return target.l2.bytes // 2
    clusters = CLUSTER * 2 * target.multiprocessor.registers if target.has("clusters") and _rows(nodes, space) else 0
    return max(target.multiprocessor.shared_per_block, clusters)


def allows_look_back(nodes: list[Node], space: Space) -> bool:
    """Whether blocks can share the rows one after another: a scan goes along them, and all else is elementwise."""
    inner = [d for d, e in space.extents.items() if d not in space.grid and e > 1]
    scans = [n for n in nodes if n.scan is not None]
    if [space.dims[n][n.scan] for n in scans if n.scan is not None] != inner or len(scans) != 1:
        return False
    return all(
        inner[0] in space.dims[n] and (n is scans[0] or space.dims[n].index(inner[0]) not in n.reduced) for n in nodes
    )


def _rows(nodes: list[Node], space: Space) -> bool:
    """Whether a block has one dimension whole, and memory is contiguous along it."""
    inner = {d for d, e in space.extents.items() if d not in space.grid and e > 1}
    accesses = [[space.dims[n][d] for d in r.dims] for n in nodes for r in (*n.reads, *n.results)]
    ends = {dims[-1] for dims in accesses if inner & set(dims)}
    return len(inner) == 1 and ends == inner and not any(n.scan is not None for n in nodes)


def _line(nodes: list[Node], space: Space) -> int:
    """Neighbouring columns that a block takes at least: a cache line of what is read, where memory is contiguous along another
    dimension than those that a block has whole. 1 where it is not."""
    inner = {d for d, e in space.extents.items() if d not in space.grid and e > 1}
    accesses = [(r, [space.dims[n][d] for d in r.dims]) for n in nodes for r in n.reads]
    read = [(r, dims) for r, dims in accesses if inner & set(dims)]
    if not read or any(dims[-1] in inner for _, dims in read):
        return 1
    narrowest = min(ir.ShapedType(r.value.type).element_type.width // 8 for r, _ in read)
    return LINE // max(NARROWEST, narrowest)


LINE = 128  # bytes that memory delivers well
NARROWEST = 2  # bytes of an element: narrower ones are few
OVERHEAD = 3  # instructions an element for addresses, loads and stores of vectors


def _read_bytes(value: ir.Value, nodes: list[Node]) -> int:
    """What the nodes read of an input: of a table that is read at computed subscripts alone, no more elements than they ask for."""
    if any(r.value == value for n in nodes for r in n.reads):
        return bytes_of(value)
    asked = sum(n.extracts.count(value) * n.iterations for n in nodes)
    return min(bytes_of(value), asked * element_bytes(value.type))


def work_of(nodes: list[Node], graph: Graph, space: Space, target: Target) -> Work:
    """The amounts of a kernel, before its tiles are chosen: every input read once, every output written once."""
    reads, writes = sum(_read_bytes(v, nodes) for v in inputs_of(nodes)), sum(map(bytes_of, outputs_of(nodes, graph)))
    flops: dict[str, float] = {}
    issued = target.kind == "cuda" and not any(n.contraction is not None for n in nodes)
    points = all(n.elementwise for n in nodes)
    for node in nodes:
        unit = _unit(node, target)
        if issued and unit == "fma.f32":  # each instruction takes the place of an FMA
            instructions = node.instructions + OVERHEAD / len(nodes)
            flops[unit] = flops.get(unit, 0) + 2 * node.iterations * instructions
            if points:
                continue
        else:
            flops[unit] = flops.get(unit, 0) + node.iterations * node.flops
        flops["special"] = flops.get("special", 0) + node.iterations * node.special
    held = intermediate_bytes(nodes, graph, space)
    cooperate = prod(e for k, e in space.extents.items() if k not in space.grid)
    if target.kind == "cuda":
        threads = max(32, min(256, cooperate))
        blocks = max(1, space.parallelism * min(cooperate, threads) // threads)
        blocks = min(blocks, max(1, space.parallelism // _line(nodes, space)))
        if blocks < target.units and target.has("clusters") and _rows(nodes, space):
            blocks *= max(1, min(CLUSTER, cooperate // (SHARED * threads)))
        return Work(
            dram_read=reads,
            dram_write=writes,
            flops=flops,
            blocks=blocks,
            threads=threads,
            shared_per_block=min(held, target.multiprocessor.shared_per_block),
            tiled=False,
        )
    work = max(1, sum(n.iterations for n in nodes))
    blocks = max(1, min(space.parallelism, work // 16384))
    plain = (n for n in nodes if n.contraction is None or n.contraction.integer)  # others are weighed with their tiles
    loops = sum(nest_time_us(n, loop_order(n), n.extents, target) for n in plain)
    return Work(
        dram_read=reads, dram_write=writes, flops=flops, blocks=blocks, threads=1, working_set=reads + writes, loops_us=loops
    )


def _unit(node: Node, target: Target) -> str:
    element = ir.ShapedType(node.results[0].value.type).element_type
    wide = isinstance(element, ir.F64Type)
    if node.contraction is not None and target.kind == "cuda":
        kind = multiplicand_of(node, target)
        if kind not in ("f64", bf16_split.KIND) and target.instructions(unit_type(kind)):
            return f"tensor.{unit_type(kind)}"
        if node.contraction.integer:
            return "int"
    return "fma.f64" if wide else "fma.f32"


def strides(value: ir.Value, subscripts: Sequence[Mapping[int, float]]) -> dict[int, int]:
    """Bytes by which an access moves along each dimension that its subscripts grow along, on average."""
    shaped, found = ir.ShapedType(value.type), dict[int, float]()
    stride = element_bytes(shaped.element_type)
    for steps, extent in zip(reversed(subscripts), reversed(shaped.shape)):
        for d, step in steps.items():
            found[d] = found.get(d, 0) + step * stride
        stride *= extent
    return {d: ceil(moved) if moved > 0 else floor(moved) for d, moved in found.items() if moved}
