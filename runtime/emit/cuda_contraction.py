"""emit, for CUDA contractions: asynchronous copies and the operations of the matrix units.

Vectors are never variables. The operation that makes a vector is printed where the vector is stored, over the private arrays
that its operands were loaded from: `mma_bf16(sums, 4 * i, left, 4 * i, right, 2 * j)`. Fragments of 16-bit
elements are arrays of 32-bit words with two elements each (`tilec.words`).
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir
from tilec.runtime.emit.cuda_hopper import HOPPER
from tilec.runtime.emit.cuda_memory import MemoryPrinter
from tilec.runtime.emit.index import Memory, plus, times

MAKERS = (
    "nvgpu.ldmatrix", "nvgpu.mma.sync", "vector.contract", "arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp",
    "vector.shape_cast",
)  # fmt: skip


def packed(printer: MemoryPrinter, alloca: ir.Operation, base: str) -> Memory:
    """Registers of a fragment, by words."""
    type_ = ir.MemRefType(alloca.results[0].type)
    words = type_.shape[0]
    printer.line(f"{base} = {printer.use('cuda')}.local.array({words}, {printer.use('i32')})")
    return Memory(base, 0, (1, 0), str(type_.element_type), tuple(type_.shape), "array")


def contract_operation(printer: MemoryPrinter, op: ir.Operation) -> bool:
    """Prints one of these operations; false for others."""
    match op.name:
        case name if name in MAKERS:
            pass  # printed by the store of its result
        case "nvgpu.device_async_copy":
            _copy(printer, op)
        case "nvvm.cp.async.commit.group":
            printer.line(f"{printer.use('cp_async_commit')}()")
        case "nvvm.cp.async.wait.group":
            count = ir.IntegerAttr(op.attributes["n"]).value
            name = printer.define(f"cp_async_wait_{count}", "cp_async_wait", f"({count})")
            printer.line(f"{name}()")
        case "nvvm.bar.warp.sync":
            printer.line(f"{printer.use('warp_barrier')}()")
        case name if name in HOPPER:
            HOPPER[name](printer, op)
        case _:
            return False
    return True


def store_made(printer: MemoryPrinter, op: ir.Operation) -> bool:
    """Prints the store of a vector that one of `MAKERS` makes; false for others."""
    maker = mlir.definition(op.operands[0])
    if maker is None or maker.name not in MAKERS:
        return False
    target, at = printer.address(op.operands[1], list(op.operands)[2:])
    match maker.name:
        case "nvgpu.ldmatrix":
            suffix = "_trans" if ir.BoolAttr(maker.attributes["transpose"]).value else ""
            suffix += "_f32" if target.element == "f32" else ""
            name = printer.use(f"ldmatrix_x{ir.IntegerAttr(maker.attributes['numTiles']).value}{suffix}")
            source, offset = printer.address(maker.operands[0], list(maker.operands)[1:])
            printer.line(f"{name}({target.base}, {at}, {printer.bytes(source, offset)})")
        case "nvgpu.mma.sync":
            a, b, c = (printer.vectors[v] for v in maker.operands)
            _same(c, (target, at), op)
            kind = ir.VectorType(maker.operands[0].type).element_type
            name = printer.use(f"mma_{'tf32' if 'tf32Enabled' in maker.attributes else kind}")
            parts = ", ".join(f"{memory.base}, {offset}" for memory, offset in (c, a, b))
            printer.line(f"{name}({parts})")
        case "arith.extf":  # of a value that was cut to tf32
            uncut = mlir.definition(maker.operands[0]).operands[0]
            _same(printer.vectors[uncut], (target, at), op)
            printer.line(f"{printer.use('round_tf32_x4')}({target.base}, {at})")
        case "arith.truncf":  # two numbers in one word of a fragment
            source, offset = printer.vectors[maker.operands[0]]
            name = printer.use(f"pack_{ir.VectorType(maker.results[0].type).element_type}")
            second = printer.load(source, plus(offset, 1))
            printer.line(f"{target.base}[{at}] = {name}({printer.load(source, offset)}, {second})")
        case "vector.shape_cast":
            _store_line(printer, maker, target, at)
        case "vector.contract":
            a, b, c = (printer.vectors[v] for v in maker.operands)
            _same(c, (target, at), op)
            printer.line(f"{_contract(printer, maker)}({c[0].base}, {a[0].base}, {b[0].base})")
    return True


def _store_line(printer: MemoryPrinter, op: ir.Operation, target: Memory, at: str | int) -> None:
    """16 bytes of shared memory in words of a fragment: as they are, or numbers of 8 bits converted."""
    made = mlir.definition(op.operands[0])
    kind = {"arith.sitofp": "i8", "arith.uitofp": "u8", "vector.load": None}.get(made.name, "")
    source, offset = printer.vectors[made.results[0] if kind is None else made.operands[0]]
    step, address = target.strides[0], printer.bytes(source, offset)
    if kind is None:
        name = printer.define(f"shared_words_{step}", "shared_words", f"({step})")
    else:
        kind, element = kind or printer.dtype(source.element), ir.VectorType(made.results[0].type).element_type
        name = printer.define(f"widen_{kind}_{element}_{step}", "widen", f'("{kind}", "{element}", {step})')
    printer.line(f"{name}({target.base}, {at}, {address})")


def _same(c: tuple[Memory, str | int], target: tuple[Memory, str | int], op: ir.Operation) -> None:
    if c != target:
        raise InternalError("a product is stored elsewhere than the sums that it adds to", "emit", str(op))


def _contract(printer: MemoryPrinter, op: ir.Operation) -> str:
    """The device function for the shapes of a `vector.contract`: sums[i, j] += left[i, k] * right[j, k]."""
    maps = [mlir.map_dims(ir.AffineMapAttr(a).value) for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    shapes = [ir.VectorType(v.type).shape for v in op.operands]
    size = {d: e for dims, shape in zip(maps, shapes) for d, e in zip(dims, shape)}
    m, n, k = (size[d] for d in range(3))
    majors = [int(dims[-1] == 2) for dims in maps[:2]]
    element = str(ir.VectorType(op.operands[2].type).element_type)
    order = f"{'mk' if majors[0] else 'km'}_{'nk' if majors[1] else 'kn'}"
    return printer.define(
        f"multiply_{element}_{m}x{n}x{k}_{order}", "contract", f'("{element}", {m}, {n}, {k}, {majors[0]}, {majors[1]})'
    )


def _copy(printer: MemoryPrinter, op: ir.Operation) -> None:
    """`cp_async_16(shared address, address, bytes)`; fewer bytes than 16 leave zeros behind them."""
    _, rank, _, indices, elements = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    operands = list(op.operands)
    target, at = printer.address(operands[0], operands[1 : 1 + rank])
    source, offset = printer.address(operands[1 + rank], operands[2 + rank : 2 + rank + indices])
    size = ir.MemRefType(operands[0].type).element_type.width // 8
    count = ir.IntegerAttr(op.attributes["dstElements"]).value
    amount = times(printer.index(operands[-1]), size) if elements else count * size
    name = printer.use(f"cp_async_{count * size}")
    printer.line(f"{name}({printer.bytes(target, at)}, {printer.bytes(source, offset)}, {amount})")
