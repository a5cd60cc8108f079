"""Index arithmetic of CUDA kernels: 64 bits, or 32 where the value is known to fit and 64 would cost more.

Sums and products stay in 64 bits: an address is their sum with a 64-bit base, one instruction either way, and constants of
unrolled steps end in the access itself. A 64-bit division by a constant is some thirty instructions, though, a 32-bit one
five, and shifts, comparisons and extrema are two against one. Marks on their operands tell their ranges:

    v_3 // 7    ->    within_u31(v_3) // 7
    v_3 // 4    ->    within_i32(v_3) >> 2

Shifts get signed 32-bit operands, which are never negative, since `runtime/cuda/shifts.py` need not guard shifts of indices
without a mask.

A product of two unsigned 32-bit numbers in 64 bits is one instruction. LLVM does not see it where a constant takes all 32
bits, and adds the product of an upper half that is zero:

    int64(uint32(v_4)) * 3528531795    ->    multiply_wide_u32(v_4, int32(-766435501))

The lower word is taken as a word, too: LLVM would shift it as a part of the 64 bits. Narrower parts are cut from it as usual.
"""

from __future__ import annotations

from tilec.analysis.index_terms import ValueTerms, affine_term
from tilec.core import locations, mlir
from tilec.core.mlir import ir
from tilec.index.facts import NONE
from tilec.index.terms import Term, index
from tilec.runtime.emit.comments import Comments
from tilec.runtime.emit.index import group, quotient
from tilec.runtime.emit.names import Names
from tilec.runtime.emit.printer import Printer

_COSTLY = (
    "arith.divui", "arith.remui", "arith.floordivsi", "arith.shrui", "arith.minsi", "arith.maxsi", "arith.cmpi",
)  # fmt: skip


_DIVISIONS = ("arith.floordivsi", "arith.divui", "arith.remui")


_QUOTIENTS = ("arith.divui", "arith.floordivsi")


_WARP, _WARPGROUP = 5, 7  # bits of a thread's number within them


def _thread_or_block(op: ir.Operation) -> str | None:
    """The range of a part of a thread's number."""
    made = mlir.definition(op.operands[0]) if op.name in ("arith.shrui", "arith.andi") else None
    if made is None or made.name != "gpu.thread_id":
        return None
    known = mlir.constant_value(op.operands[1])
    if op.name == "arith.shrui":
        return {_WARP: "warp", _WARPGROUP: "warpgroup"}.get(known)
    return "lane" if known is not None and known < 1 << _WARP else None


def _exponent(divisor: object) -> int | None:
    """Of a divisor that is a power of two."""
    if isinstance(divisor, int) and divisor > 0 and divisor & (divisor - 1) == 0:
        return divisor.bit_length() - 1
    return None


class _Ranges(ValueTerms):
    """Terms whose ranges alone are asked for."""

    def _arguments(self, op: ir.Operation) -> list[Term]:
        """None: they say nothing of a range, and are most of a kernel."""
        return []


class IndexPrinter(Printer):
    def __init__(self, names: Names, comments: Comments) -> None:
        super().__init__(names, comments)
        self.thread_numbers: set[str] = set()  # variables that are a thread's or a block's number
        self.grid: dict[str, int] = {}  # how many values `gpu.thread_id`, `gpu.block_id` and their like have
        self.terms = _Ranges(self._launched)

    def numbers(self, threads: int, blocks: int, cluster: int) -> None:
        """Of a launch of at most so many blocks."""
        self.grid = {"gpu.thread_id": threads, "gpu.block_id": blocks, "gpu.grid_dim": blocks + 1}
        self.grid |= {"gpu.cluster_block_id": cluster, "gpu.cluster_id": blocks, "gpu.cluster_dim": blocks + 1}

    def _launched(self, value: ir.Value) -> Term | None:
        """The number of a thread or a block, or of how many there are."""
        op = mlir.definition(value)
        if op is None or op.name not in self.grid:
            return None
        return index(f"{op.name} {op.attributes['dimension']}", self.grid[op.name])

    def variable(self, op: ir.Operation, number: int = 0, letters: str = "tmp") -> str:
        """Parts of a thread's number are called by the field's names."""
        if letters == "tmp" and not locations.variables(op) and (known := _thread_or_block(op)):
            return self.names.variable(known)
        return super().variable(op, number, letters)

    def operand(self, op: ir.Operation, value: ir.Value) -> str:
        if op.name not in _COSTLY or mlir.constant_value(value) is not None or str(value.type) not in ("index", "i64"):
            return self.expr(value)
        if _is_wide(mlir.definition(value)):  # it takes all 64 bits: proofs about random numbers are long, and find none
            return self.expr(value)
        by_shift = op.name == "arith.shrui" or (
            op.name in _QUOTIENTS and _exponent(mlir.constant_value(op.operands[1]))
        )
        return self._small(self.terms.exact(value), self.expr(value), bool(by_shift))

    def divided(self, op: ir.Operation, dims: int, expr: ir.AffineExpr, left: str | int, right: str | int) -> str:
        exponent = _exponent(right) if isinstance(expr, ir.AffineFloorDivExpr) else None
        if not isinstance(left, int):
            x = affine_term(mlir.sides(expr)[0], list(map(self.terms.exact, op.operands)), dims)
            left = self._small(x, left, bool(exponent))
        return f"({group(left)} >> {exponent})" if exponent else quotient(expr, left, right)

    def _small(self, x: Term, text: str, by_shift: bool = False) -> str:
        """The same number, marked with its range."""
        if not NONE.fits(x, 32) or text in self.thread_numbers:
            return text
        return f"{self.use('within_u31' if NONE.proves(x) and not by_shift else 'within_i32')}({text})"

    def binary(self, op: ir.Operation, name: str, texts: list[str], type_: str) -> str:
        exponent = _exponent(mlir.constant_value(op.operands[1])) if name in _DIVISIONS else None
        if name == "arith.floordivsi" and type_ in ("index", "i64") and exponent:
            return f"{texts[0]} >> {exponent}"
        if type_ == "index" and name in ("arith.divui", "arith.remui"):
            if exponent is not None:  # of numbers that are not negative
                return f"{texts[0]} >> {exponent}" if name == "arith.divui" else f"{texts[0]} & {(1 << exponent) - 1}"
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

    def _is_index(self, op: ir.Operation) -> bool:
        """Whether the shifted value is never negative, so that no sign has to be shifted in."""
        if isinstance(op.results[0].type, ir.IndexType):
            return True
        if str(op.results[0].type) != "i64" or _is_wide(mlir.definition(op.operands[0])):
            return False
        x = self.terms.exact(op.operands[0])
        return NONE.fits(x, 32) and NONE.proves(x)

    def expression(self, op: ir.Operation) -> str:
        if op.name == "arith.shrui" and self._is_index(op):
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
