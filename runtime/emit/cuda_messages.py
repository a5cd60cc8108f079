"""emit, for CUDA: messages between blocks: through SRAM in a cluster, through words in memory in a look-back chain.

`memref.dma_start` of a state into the cluster's memory is an asynchronous store into another block's SRAM that counts its
bytes on a tag there, an mbarrier; `memref.dma_wait` waits for a whole round of a tag. Rounds alternate in parity, which a
variable beside each tag keeps, a bit for each of its words.
"""

from __future__ import annotations

from math import prod

from tilec.analysis.traffic import element_bytes
from tilec.core import locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import arith, ir
from tilec.passes.cuda.cluster import CLUSTER
from tilec.runtime.emit.cpu import strides_of
from tilec.runtime.emit.cuda_memory import MemoryPrinter
from tilec.runtime.emit.index import Memory, times

CLUSTER_NUMBERS = {
    "gpu.cluster_id": ("cluster_id", "cluster"),
    "gpu.cluster_block_id": ("cluster_rank", "rank"),
    "gpu.cluster_dim": ("cluster_count", "clusters"),
}


def async_operation(printer: MemoryPrinter, op: ir.Operation) -> bool:
    """Prints one of these operations; false for others."""
    match op.name:
        case "memref.alloc" if _is_mbarrier(op.results[0]):
            _allocate_mbarriers(printer, op)
        case "memref.alloc" if _is_clusters(op.results[0]):
            _allocate_dsmem(printer, op)
        case "memref.dma_start":
            _start(printer, op)
        case "memref.dma_wait":
            _wait(printer, op)
        case "gpu.cluster_id" | "gpu.cluster_block_id" | "gpu.cluster_dim":
            function, name = CLUSTER_NUMBERS[op.name]
            text = f"{printer.use('i64')}({printer.use(function)}())"
            own = printer.variable(op) if locations.variables(op) else printer.names.variable(name)
            printer.bind(op.results[0], text, own)
        case "gpu.grid_dim":
            text = f"{printer.use('i64')}({printer.use('cuda')}.gridDim.x)"
            printer.bind(op.results[0], text, printer.names.variable("blocks"))
        case "memref.atomic_rmw":
            _atomic(printer, op)
        case "nvvm.cluster.arrive":
            printer.line(f"{printer.use('cluster_arrive')}()")
        case "nvvm.cluster.wait":
            printer.line(f"{printer.use('cluster_wait')}()")
        case _:
            return False
    return True


def _atomic(printer: MemoryPrinter, op: ir.Operation) -> None:
    """Words that blocks leave for each other: to assign one, or to read it, which is to or it with 0."""
    kind = ir.IntegerAttr(op.attributes["kind"]).value
    memory, offset = printer.address(op.operands[1], list(op.operands)[2:])
    if kind == arith.AtomicRMWKind.assign and not mlir.uses(op.results[0]):
        printer.line(f"{printer.use('publish_i64')}({printer.bytes(memory, offset)}, {printer.expr(op.operands[0])})")
    elif kind == arith.AtomicRMWKind.ori and mlir.constant_value(op.operands[0]) == 0:
        text = f"{printer.use('observe_i64')}({printer.bytes(memory, offset)})"
        printer.bind(op.results[0], text, printer.names.temporary("word"))
    else:
        raise InternalError("this atomic update is not printed", "emit", str(op))


def _is_mbarrier(value: ir.Value) -> bool:
    return any(u.name == "memref.dma_wait" for u in mlir.uses(value))


def _is_clusters(value: ir.Value) -> bool:
    space = ir.MemRefType(value.type).memory_space
    return isinstance(space, ir.IntegerAttr) and ir.IntegerAttr(space).value == CLUSTER


def _allocate_mbarriers(printer: MemoryPrinter, op: ir.Operation) -> None:
    """Every mbarrier ends a phase with one arrival, which says how many bytes come, and these bytes."""
    (count,) = ir.MemRefType(op.results[0].type).shape
    base, phases = printer.reserve(op, 8 * count, f"{count} barriers"), printer.names.variable("phases")
    memory = Memory(base, 0, (1,), "i64", (count,), "shared")
    printer.memory[op.results[0]], printer.phases[base] = memory, phases
    printer.line(f"if {printer.use('cuda')}.threadIdx.x == 0:")
    for n in range(count):
        printer.line(f"    {printer.use('mbarrier_init')}({printer.bytes(memory, n)}, 1)")
    printer.line(f"{phases} = {printer.use('i64')}(0)")


def _allocate_dsmem(printer: MemoryPrinter, op: ir.Operation) -> None:
    """The block's own part; its address is the same in every block of the cluster."""
    type_ = ir.MemRefType(op.results[0].type)
    for user in mlir.uses(op.results[0]):
        owner = mlir.definition(user.operands[1]) if user.name == "memref.load" else None
        if user.name != "memref.dma_start" and (owner is None or owner.name != "gpu.cluster_block_id"):
            raise InternalError("a block reads what another block of its cluster has", "emit", str(user))
    element, shape = str(type_.element_type), tuple(type_.shape)
    what = f"{element} {'x'.join(map(str, shape[1:]))}"
    base = printer.reserve(op, prod(shape[1:]) * element_bytes(type_.element_type), what)
    printer.memory[op.results[0]] = Memory(base, 0, (0, *strides_of(type_)[1:]), element, shape, "cluster")


def _start(printer: MemoryPrinter, op: ir.Operation) -> None:
    operands = list(op.operands)
    source, source_at, operands = _subscripted(printer, operands)
    target, target_at, operands = _subscripted(printer, operands)
    _, mbarrier, mbarrier_at = operands
    if target.space != "cluster":
        raise InternalError(f"no copy from {source.space} to {target.space} memory", "emit", str(op))
    block = f"{printer.use('i32')}({printer.expr(_first_subscript(op))})"
    addresses = printer.bytes(target, target_at), printer.bytes(*printer.address(mbarrier, [mbarrier_at]))
    remote = [f"{printer.use('map_shared')}({address}, {block})" for address in addresses]
    store = printer.use(f"remote_store_async_{source.element}")
    printer.line(f"{store}({remote[0]}, {printer.load(source, source_at)}, {remote[1]})")


def _subscripted(printer: MemoryPrinter, operands: list[ir.Value]) -> tuple[Memory, str | int, list[ir.Value]]:
    """The first memory of a list of operands with its subscripts, and the rest."""
    rank = ir.MemRefType(operands[0].type).rank
    memory, offset = printer.address(operands[0], operands[1 : 1 + rank])
    return memory, offset, operands[1 + rank :]


def _first_subscript(op: ir.Operation) -> ir.Value:
    """The block that a state is sent to."""
    return op.operands[2 + ir.MemRefType(op.operands[0].type).rank]


def _wait(printer: MemoryPrinter, op: ir.Operation) -> None:
    mbarrier, mbarrier_at, count = op.operands
    word, offset = printer.address(mbarrier, [mbarrier_at])
    barrier, phases = printer.bytes(word, offset), printer.phases[word.base]
    start = next(u for u in mlir.uses(mbarrier) if u.name == "memref.dma_start")
    size = times(printer.index(count), element_bytes(ir.MemRefType(start.operands[0].type).element_type))
    printer.line(f"if {printer.use('cuda')}.threadIdx.x == 0:")
    printer.line(f"    {printer.use('mbarrier_expect')}({barrier}, {size})")
    bit = f"({phases} >> {offset}) & 1" if offset != 0 else f"{phases} & 1"
    printer.line(f"{printer.use('mbarrier_wait')}({barrier}, {printer.use('i32')}({bit}))")
    printer.line(f"{phases} = {phases} ^ " + (f"({printer.use('i64')}(1) << {offset})" if offset != 0 else "1"))
