"""Index arithmetic of CUDA kernels: 64 bits, and 32 where what is computed is known to fit and 64 would cost more.

Sums and products stay in 64 bits: an address is their sum with a 64-bit base, one instruction either way, and constants of
unrolled steps end in the access itself. A 64-bit division by a constant is some thirty instructions, though, a 32-bit one
five, and shifts, comparisons and extrema are two against one. Their operands are marked with what is known of them:

    v_3 // 7    ->    within_u31(v_3) // 7

A product of two unsigned 32-bit numbers in 64 bits is one instruction. LLVM does not see it where a constant takes all 32
bits, and adds the product of an upper half that is zero:

    int64(uint32(v_4)) * 3528531795    ->    multiply_wide_u32(v_4, int32(-766435501))

Its lower word is taken as one, too: LLVM would shift it as part of the 64 bits. What is narrower is cut off it as ever.
"""

from __future__ import annotations

from tilec import mlir
from tilec.index_ranges import I32, Range, Ranges
from tilec.mlir import ir
from tilec.runtime.emit import Printer

_COSTLY = (
    "arith.divui", "arith.remui", "arith.floordivsi", "arith.shrui", "arith.minsi", "arith.maxsi", "arith.cmpi",
)  # fmt: skip


class IndexPrinter(Printer):
    def __init__(self) -> None:
        super().__init__()
        self.grid: dict[str, int] = {}  # how many values `gpu.thread_id`, `gpu.block_id` and their like have
        self.ranges = Ranges(lambda op: (0, self.grid[op.name] - 1) if op.name in self.grid else None)

    def numbers(self, threads: int, blocks: int, cluster: int) -> None:
        """Of a launch of at most so many blocks."""
        self.grid = {"gpu.thread_id": threads, "gpu.block_id": blocks, "gpu.grid_dim": blocks + 1}
        self.grid |= {"gpu.cluster_block_id": cluster, "gpu.cluster_id": blocks, "gpu.cluster_dim": blocks + 1}

    def operand(self, op: ir.Operation, value: ir.Value) -> str:
        whole = isinstance(value.type, ir.IndexType) or str(value.type) == "i64"
        costly = op.name in _COSTLY and whole and mlir.constant_value(value) is None
        return self._small(self.ranges.of(value), self.expr(value)) if costly else self.expr(value)

    def divided(self, op: ir.Operation, dims: int, expr: ir.AffineExpr, text: str | int) -> str | int:
        ranges = [self.ranges.of(v) for v in op.operands]
        return text if isinstance(text, int) else self._small(self.ranges.of_affine(expr, ranges, dims), text)

    def _small(self, range_: Range | None, text: str) -> str:
        """The same number, marked with what is known of it."""
        if range_ is None or range_[0] < I32[0] or range_[1] > I32[1] or text in ("thread", "block"):
            return text
        return f"{self.use('within_u31' if range_[0] >= 0 else 'within_i32')}({text})"

    def binary(self, op: ir.Operation, name: str, texts: list[str], type_: str) -> str:
        if type_ == "index" and name in ("arith.divui", "arith.remui"):
            divisor = mlir.constant_value(op.operands[1])
            if divisor and divisor & (divisor - 1) == 0:  # of numbers that are not negative
                shift = divisor.bit_length() - 1
                return f"{texts[0]} >> {shift}" if name == "arith.divui" else f"{texts[0]} & {divisor - 1}"
            return f"{texts[0]} {'//' if name == 'arith.divui' else '%'} {texts[1]}"
        if _is_wide(op):
            return f"{self.use('multiply_wide_u32')}({', '.join(map(self._word, op.operands))})"
        return super().binary(op, name, texts, type_)

    def _word(self, value: ir.Value) -> str:
        """The 32 bits of which a factor of a wide product is the unsigned value."""
        known = mlir.constant_value(value)
        if known is None:
            return self.expr(mlir.definition(value).operands[0])
        return f"{self.use('i32')}({known - (known >> 31 << 32)})"

    def expression(self, op: ir.Operation) -> str:
        if op.name == "arith.shrui" and isinstance(op.results[0].type, ir.IndexType):
            return f"{self.operand(op, op.operands[0])} >> {self.expr(op.operands[1])}"
        if op.name == "arith.trunci" and str(op.results[0].type) == "i32" and _is_wide(mlir.definition(op.operands[0])):
            return f"{self.use('low_word')}({self.expr(op.operands[0])})"
        return super().expression(op)


def _is_wide(op: ir.Operation | None) -> bool:
    """Whether a 64-bit product is one of unsigned 32-bit numbers."""
    if op is None or op.name != "arith.muli" or str(op.results[0].type) != "i64":
        return False
    return all(_is_word(v) for v in op.operands)


def _is_word(value: ir.Value) -> bool:
    maker, known = mlir.definition(value), mlir.constant_value(value)
    if isinstance(known, int):
        return 0 <= known < 2**32
    return maker is not None and maker.name == "arith.extui" and str(maker.operands[0].type) == "i32"
