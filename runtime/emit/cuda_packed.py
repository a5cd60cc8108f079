"""emit, for CUDA: two elements of 16 bits as the 32 bits of a register, where a thread keeps them so (`tilec.halves`).

    vector.extract(vector.bitcast(vector.load two[2 n]))             ->    int32(two[n])
    vector.store(vector.bitcast(vector.broadcast word)), tile[2 n]    ->    tile[n] = uint32(word)

Such vectors are how MLIR says it; nothing is computed by them.
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.runtime.emit.cuda_memory import MemoryPrinter


def word_operation(printer: MemoryPrinter, op: ir.Operation) -> None:
    """Prints the operation that takes a word; the others only name it."""
    source = op.operands[0]
    if op.name == "vector.extract":
        memory, offset = printer.vectors[source]
        printer.bind(
            op.results[0], f"{printer.use('i32')}({memory.base}[{half(offset)}])", printer.names.temporary("word")
        )
    elif source in printer.vectors:
        printer.vectors[op.results[0]] = printer.vectors[source]
    else:
        printer.text[op.results[0]] = printer.expr(source)


def store_word(printer: MemoryPrinter, op: ir.Operation) -> bool:
    """Prints the store of a word; false for other stores."""
    maker = mlir.definition(op.operands[0])
    if maker is None or maker.name != "vector.bitcast" or maker.results[0] in printer.vectors:
        return False
    memory, offset = printer.address(op.operands[1], list(op.operands)[2:])
    printer.line(f"{memory.base}[{half(offset)}] = {printer.use('u32')}({printer.expr(op.operands[0])})")
    return True


def half(offset: str | int) -> str | int:
    return offset // 2 if isinstance(offset, int) else f"({offset}) >> 1"
