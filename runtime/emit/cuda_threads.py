"""emit, for CUDA: thread and block numbers, barriers, shuffles."""

from __future__ import annotations

from tilec.core import locations, mlir
from tilec.core.mlir import ir
from tilec.runtime.emit.cuda_memory import MemoryPrinter


def thread_operation(printer: MemoryPrinter, op: ir.Operation) -> bool:
    """Prints one of these operations; false for others."""
    match op.name:
        case "gpu.thread_id" | "gpu.block_id":
            _number(printer, op)
        case "gpu.barrier":
            printer.line(f"{printer.use('cuda')}.syncthreads()")
        case "gpu.shuffle":
            _shuffle(printer, op)
        case _:
            return False
    return True


def _number(printer: MemoryPrinter, op: ir.Operation) -> None:
    """A thread's number in the bits that it has: LLVM then knows which guards always hold."""
    what = "thread" if op.name == "gpu.thread_id" else "block"
    text = f"{printer.use('u32')}({printer.use('cuda')}.{what}Idx.x)"
    if what == "thread":
        bits = (printer.grid[op.name] - 1).bit_length()
        text += f" & {printer.use('u32')}({(1 << bits) - 1})"
    name = printer.variable(op) if locations.variables(op) else printer.names.variable(what)
    printer.thread_numbers.add(name)
    printer.bind(op.results[0], f"{printer.use('i64')}({text})", name)


def _shuffle(printer: MemoryPrinter, op: ir.Operation) -> None:
    value, lane = op.operands[0], op.operands[1]
    mode = str(op.attributes["mode"]).split()[-1].strip(">").replace("idx", "index")
    known = mlir.constant_value(lane)
    distance = printer.expr(lane) if known is None else str(known)
    text = f"{printer.use(f'shuffle_{mode}_{value.type}')}({printer.expr(value)}, {distance})"
    printer.bind(
        op.results[0], text, printer.names.temporary("other")
    )  # never inside another expression: all lanes must get here
