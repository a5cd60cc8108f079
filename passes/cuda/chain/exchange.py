"""What four adjacent columns share, computed by one thread for all four: two threads compute every other four, and exchange halves.

    of 16 columns, as threads hold them     0 0 1 1 2 2 3 3  0 0 1 1 2 2 3 3
    as they compute them                    0 0 0 0 2 2 2 2  1 1 1 1 3 3 3 3
"""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.expression import Expr
from tilec.analysis.neighbours import SIZE, Neighbours
from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref
from tilec.passes.cuda.chain.values import At, Values, shuffle
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.memory_spaces import registers
from tilec.passes.loops import sum_of


class Exchange:
    """Of the 16 columns from `first` on, in one row."""

    def __init__(self, neighbours: Neighbours, values: Values, thread: Thread, first: ir.Value, row: At):
        self.neighbours, self.values = neighbours, values
        odd, upper = arith.andi(thread.lane, mlir.index(1)), arith.andi(arith.shrui(thread.lane, mlir.index(1)), mlir.index(1))
        self.odd = arith.cmpi(arith.CmpIPredicate.ne, odd, mlir.index(0))
        columns = [sum_of([(first, 1), (odd, 8), (upper, SIZE)], n) for n in range(SIZE)]
        self.positions = [replace(row, coordinates={**row.coordinates, neighbours.dim: c}, known={}) for c in columns]

    def compute(self, x: Expr) -> ir.Value:
        """An expression at a thread's own positions: in two fragments, for two adjacent columns of each."""
        each = [self._build(x, n) for n in range(SIZE)]
        lower, higher = each[: SIZE // 2], each[SIZE // 2 :]
        kept = [arith.select(self.odd, b, a) for a, b in zip(lower, higher)]
        received = self._swapped([arith.select(self.odd, a, b) for a, b in zip(lower, higher)])
        tile = registers([2, 2], "%shared", str(kept[0].type))
        for lane, (mine, other) in enumerate(zip(kept, received)):
            for n, (even, odd) in enumerate(((mine, other), (other, mine))):
                memref.StoreOp(arith.select(self.odd, odd, even), tile, [mlir.index(n), mlir.index(lane)])
        return tile

    def _build(self, x: Expr, n: int) -> ir.Value:
        at = self.positions[n]
        for part, numbers in self._numbers(x).items():
            at.known[part] = mlir.constant(numbers[n], mlir.type_of(part.type))
        if n:
            at.known |= {p: v for p, v in self.positions[0].known.items() if self.neighbours.shares(p)}
        return self.values.build(x, at)

    def _numbers(self, x: Expr) -> dict[Expr, tuple[int, ...]]:
        if (numbers := self.neighbours.numbers(x)) is not None:
            return {x: numbers}
        return {} if self.neighbours.shares(x) else {p: n for a in x.args for p, n in self._numbers(a).items()}

    def _swapped(self, values: list[ir.Value]) -> list[ir.Value]:
        """Those of the thread that computes the other four columns. Bits go together."""
        if not isinstance(values[0].type, ir.IntegerType) or values[0].type.width != 1:
            return [shuffle(v, 1) for v in values]
        i32 = ir.IntegerType.get_signless(32)
        low, high = (arith.extui(i32, v) for v in values)
        word = shuffle(arith.ori(low, arith.shli(high, mlir.constant(1, i32))), 1)
        bits = (arith.andi(word, mlir.constant(1 << n, i32)) for n in range(2))
        return [arith.cmpi(arith.CmpIPredicate.ne, b, mlir.constant(0, i32)) for b in bits]
