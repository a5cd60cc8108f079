"""emit, for CUDA contractions on Hopper: TMA copies, barriers that count them, and products of warpgroups."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

from tilec.analysis.traffic import element_bytes
from tilec.core import extents, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.hardware import WIDE
from tilec.core.mlir import ir
from tilec.core.opcodes import CopyArrive, NamedBarrier, RemoteArrive, WarpgroupProduct, WarpgroupWait, opcode_of
from tilec.runtime.emit.cuda_memory import MemoryPrinter
from tilec.runtime.emit.index import Memory, divided, plus, times
from tilec.runtime.program import TensorMap

LINE = 128  # bytes of a swizzled line


def _descriptor_map(printer: MemoryPrinter, op: ir.Operation) -> None:
    """A tensor map is made by the host, of extents that may be texts over sizes, and comes as a parameter."""
    found = re.search(r"swizzle = swizzle_(\d+)b", str(op.results[0].type))
    if found is None:
        raise InternalError("a box is copied without a swizzle", "emit", str(op))
    memory = printer.memory[op.operands[0]]
    box = tuple(int(mlir.constant_value(v)) for v in list(op.operands)[1:])
    number = next(n for n, m in enumerate(printer.parameters) if m == memory.base)
    size = ir.UnrankedMemRefType(op.operands[0].type).element_type.width // 8
    name = printer.names.variable(f"{memory.base}_map")
    steps = tuple(mlir.get_integers(op, "tilec.element_steps") or ())
    sizes = extents.sizes_of(op)
    (tensor,) = mlir.definition(op.operands[0]).operands
    shape = tuple(extents.amount(n, sizes) for n in extents.shape_of(tensor))
    part = mlir.definition(tensor) is not None and mlir.definition(tensor).name == "memref.subview"
    strides = tuple(map(int, memory.strides)) if part else ()
    dtype = mlir.get_string(op, "tilec.rounded") or printer.dtype(memory.element)
    printer.maps[name] = TensorMap(number, dtype, size, shape, box, steps, int(found[1]), strides)
    printer.text[op.results[0]] = name


def _create(printer: MemoryPrinter, op: ir.Operation) -> None:
    """Barriers are 64-bit words in shared memory."""
    found = re.search(r"num_barriers = (\d+)", str(op.results[0].type))
    count = int(found[1]) if found else 1
    base = printer.reserve(op, 8 * count, f"{count} barrier{'s' * (count > 1)}")
    printer.memory[op.results[0]] = Memory(base, 0, (1,), "i64", (count,), "shared")


def _barrier(printer: MemoryPrinter, barriers: ir.Value, number: ir.Value) -> str:
    memory, offset = printer.address(barriers, [number])
    return printer.bytes(memory, offset)


def _init(printer: MemoryPrinter, op: ir.Operation) -> None:
    barriers, count, number = op.operands
    printer.line(f"{printer.use('mbarrier_init')}({_barrier(printer, barriers, number)}, {printer.expr(count)})")


def _expect(printer: MemoryPrinter, op: ir.Operation) -> None:
    barriers, count, number = op.operands
    printer.line(f"{printer.use('mbarrier_expect')}({_barrier(printer, barriers, number)}, {printer.expr(count)})")


def _arrive(printer: MemoryPrinter, op: ir.Operation) -> None:
    printer.line(f"{printer.use('mbarrier_arrive')}({_barrier(printer, *op.operands)})")


def _wait(printer: MemoryPrinter, op: ir.Operation) -> None:
    barriers, phase, _, number = op.operands
    barrier = _barrier(printer, barriers, number)
    printer.line(f"{printer.use('mbarrier_wait')}({barrier}, {printer.use('i32')}({printer.expr(phase)}))")


def _load(printer: MemoryPrinter, op: ir.Operation) -> None:
    """`tma_load_2d(shared address, map, barrier, innermost coordinate, ...)`."""
    target, barriers, map_, *rest = op.operands
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    coordinates, number, blocks = rest[: segments[3]], rest[segments[3]], rest[segments[3] + 1 :]
    many = (", multicast=True", "_multicast") if blocks else ("", "")
    name = printer.define(f"tma_load_{len(coordinates)}d{many[1]}", "tma_load", f"({len(coordinates)}{many[0]})")
    memory = printer.memory[target]
    arguments = [
        printer.bytes(memory, memory.offset),
        printer.expr(map_),
        _barrier(printer, barriers, number),
    ]
    numbers = [*(str(printer.index(c)) for c in coordinates), *(printer.expr(mask) for mask in blocks)]
    printer.line(f"{name}({', '.join([*arguments, *numbers])})")


def _store(printer: MemoryPrinter, op: ir.Operation) -> None:
    """`tma_store_2d(map, shared address, innermost coordinate, ...)`."""
    source, map_, *coordinates = op.operands
    name = printer.define(f"tma_store_{len(coordinates)}d", "tma_store", f"({len(coordinates)})")
    memory = printer.memory[source]
    arguments = [printer.expr(map_), printer.bytes(memory, memory.offset), *(str(printer.index(c)) for c in coordinates)]
    printer.line(f"{name}({', '.join(arguments)})")


def _wait_for_stores(printer: MemoryPrinter, op: ir.Operation) -> None:
    groups, read = ir.IntegerAttr(op.attributes["group"]).value, "read" in op.attributes
    name = printer.define(f"bulk_wait{'_read' if read else ''}_{groups}", "bulk_wait", f"({groups}, read={read})")
    printer.line(f"{name}()")


def _expand(printer: MemoryPrinter, op: ir.Operation) -> None:
    source, type_ = printer.memory[op.operands[0]], ir.MemRefType(op.results[0].type)
    strides = tuple(prod(type_.shape[n + 1 :]) for n in range(len(type_.shape)))
    printer.memory[op.results[0]] = Memory(
        source.base, source.offset, strides, source.element, tuple(type_.shape), source.space
    )


def _registers(printer: MemoryPrinter, op: ir.Operation) -> None:
    count = ir.IntegerAttr(op.attributes["regCount"]).value
    more = "increase" in str(op.attributes["action"])
    name = printer.define(f"{'more' if more else 'fewer'}_registers_{count}", "set_registers", f"({count}, more={more})")
    printer.line(f"{name}()")


def _call(printer: MemoryPrinter, op: ir.Operation) -> None:
    match opcode_of(op):
        case NamedBarrier(waits):
            name = "named_barrier" if waits else "named_barrier_arrive"
            printer.line(f"{printer.use(name)}({', '.join(printer.expr(v) for v in op.operands)})")
        case WarpgroupWait(running):
            memory = [printer.memory[v] for v in op.operands]
            sums, factors = ([m for m in memory if (len(m.shape) == len(memory[0].shape)) == own] for own in (True, False))
            count, *more = (prod(m.shape) for m in sums)  # of the results of other products
            words = [m.shape[0] for m in factors]  # factors in registers: not to be changed before
            word = [m.element for m in factors if m.element == "f32"][:1]  # else packed
            ending = [] if sums[0].element == "f32" else [sums[0].element]
            arguments = [str(running), str(count), f'"{sums[0].element}"', *map(str, words[:1])]
            for key, counts in (("more", more), ("more_words", words[1:])):
                ending += ["and", *map(str, counts)] if counts else []
                arguments += [f"{key}={tuple(counts)}"] if counts else []
            name = "_".join(map(str, ("wgmma_wait", running, count, *words[:1], *ending, *word)))
            arguments += [f'word="{kind}"' for kind in word]
            name = printer.define(name, "wgmma_wait", f"({', '.join(arguments)})")
            printer.line(f"{name}({', '.join(f'{m.base}, 0' for m in (*sums, *factors))})")
        case RemoteArrive():
            barriers, number, block = op.operands
            own, block_number = _barrier(printer, barriers, number), f"{printer.use('i32')}({printer.expr(block)})"
            remote = f"{printer.use('map_shared')}({own}, {block_number})"
            printer.line(f"{printer.use('mbarrier_arrive_remote')}({remote})")
        case CopyArrive():
            printer.line(f"{printer.use('cp_async_arrive')}({_barrier(printer, *op.operands)})")
        case WarpgroupProduct() as product:
            _product(printer, op, product)
        case None:
            raise InternalError(f"a call of no device function: {op}", "emit", str(op))


def _product(printer: MemoryPrinter, op: ir.Operation, product: WarpgroupProduct) -> None:
    sums, left, right = (printer.memory[v] for v in list(op.operands)[:3])
    transposed = [not major for major in product.k_major]
    steps = [depth_step(t) for t in transposed]
    size = element_bytes(mlir.type_of(left.element))
    instructions = product.k * size // 32
    arguments = f'"{product.multiplicand}", {product.n}, steps={instructions}, step_a={steps[0]}, step_b={steps[1]}'
    arguments += f", transpose_a={transposed[0]}, transpose_b={transposed[1]}"
    order = "rk" if product.left_in_registers else "mk" if product.left_k_major else "km"
    name = f"wgmma_{product.multiplicand}_{product.n}_{order}_{'nk' if product.right_k_major else 'kn'}"
    if instructions != LINE // 32 or product.slabs != (None, None):
        name += f"_{product.k}"
    if product.slabs != (None, None):
        jumps = [0 if t or lines is None else lines * LINE // 16 for t, lines in zip(transposed, product.slabs)]
        arguments += f", slab_a={jumps[0]}, slab_b={jumps[1]}, registers={product.left_in_registers}"
        name += "".join(f"_{jump}" for jump in jumps)
    name = printer.define(name, "wgmma", f"({arguments})")
    texts = [
        _descriptor(printer, _layout(printer, t, product.k if lines is None else lines), m)
        for t, lines, m in zip(transposed, product.slabs, (left, right))
    ]
    if product.left_in_registers:
        texts[0] = f"{left.base}, {printer.expr(op.operands[3])}"
    printer.line(f"{name}({sums.base}, {sums.offset}, {', '.join(texts)}, {printer.expr(list(op.operands)[-1])})")


def _descriptor(printer: MemoryPrinter, layout: str, memory: Memory) -> str:
    """Of a tile: what is the same for all stages, and how far this one's tile is behind the first."""
    start = printer.bytes(memory, 0)
    behind = divided(times(memory.offset, element_bytes(mlir.type_of(memory.element))), WIDE)
    if behind is None or printer.grid["gpu.cluster_block_id"] > 1:
        return f"{layout} | ({_in_block(printer, memory)} >> 4)"
    return str(plus(f"({layout} | ({start} >> 4))", behind))


def _in_block(printer: MemoryPrinter, memory: Memory) -> str:
    """The address of shared memory within the block: in a cluster, its upper bits are the block's number."""
    address = printer.bytes(memory, memory.offset)
    return f"({address} & 0x3FFFF)" if printer.grid["gpu.cluster_block_id"] > 1 else address


def depth_step(transposed: bool) -> int:
    """What 16 of k add to a descriptor, in units of 16 bytes: 32 bytes along a line, or 16 lines."""
    return 16 * LINE // 16 if transposed else 2


def _layout(printer: MemoryPrinter, transposed: bool, depth: int) -> str:
    """The bits of a matrix descriptor that say how a tile lies: in lines of k, or in lines of rows."""
    name = f"MN_MAJOR_{depth}" if transposed else "K_MAJOR"
    return printer.define(name, "matrix_descriptor", f"({f'lines={depth}' if transposed else ''})")


HOPPER: dict[str, Callable[[MemoryPrinter, ir.Operation], None]] = {
    "nvgpu.tma.create.descriptor": _descriptor_map,
    "nvgpu.mbarrier.create": _create,
    "nvgpu.mbarrier.init": _init,
    "nvgpu.mbarrier.arrive.expect_tx": _expect,
    "nvgpu.mbarrier.arrive": _arrive,
    "nvgpu.mbarrier.try_wait.parity": _wait,
    "nvgpu.tma.async.load": _load,
    "nvgpu.tma.async.store": _store,
    "nvvm.cp.async.bulk.commit.group": lambda printer, op: printer.line(f"{printer.use('bulk_commit')}()"),
    "nvvm.cp.async.bulk.wait_group": _wait_for_stores,
    "nvvm.fence.proxy": lambda printer, op: printer.line(f"{printer.use('fence_async_shared')}()"),
    "nvvm.memory.barrier": lambda printer, op: printer.line(f"{printer.use('fence_gpu')}()"),
    "nvvm.fence.mbarrier.init": lambda printer, op: printer.line(f"{printer.use('mbarrier_fence')}()"),
    "nvvm.setmaxregister": _registers,
    "memref.expand_shape": _expand,
    "func.call": _call,
}
