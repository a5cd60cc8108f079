"""Decoupled look-back: scans of rows that several blocks share, in one pass over memory.

    y[j] = y[j - 1] + x[j]      ->      a block scans its part, publishes its total,
                                        waits for the totals of the parts before, adds them to its elements

This is the decoupled look-back of Merrill and Garland ("Single-pass Parallel Prefix Scan with Decoupled Look-back", NVIDIA
NVR-2016-002), with an order of combination that never varies: `GROUP` parts in a row are a group, as many groups are a group
of the next level, and so on; the last block of a group publishes the group's total, too. A block combines, at every level,
the totals of those before it in its own group. It looks at all levels at once, since most totals have arrived already.

A total is published in words (`passes/cuda/messages.py`). Blocks start in the order of their numbers, so that all blocks which a
block waits for are running or finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tilec.core import mlir
from tilec.core.hardware import WARP
from tilec.core.mlir import arith, gpu, ir
from tilec.passes.combiner import Combiner
from tilec.passes.cuda.cluster import spread
from tilec.passes.cuda.messages import add_words, choose, mark, observe, publish, received, wait
from tilec.passes.cuda.threaded.context import KernelContext
from tilec.passes.cuda.threaded.reduce import butterfly
from tilec.passes.loops import sum_of, when

GROUP = WARP  # a lane for each


def split_rows(module: ir.Operation, function: ir.Operation, lane: int, vector: int, parts: int) -> None:
    """Cuts a kernel's rows along `lane`, and gives the kernel memory for its totals, which the program clears."""
    spread(function, lane, parts, vector, rank=lambda: _part(parts))
    (scan,) = [op for op in mlir.traverse(function) if "tilec.scan" in op.attributes]
    add_words(module, function, [rows_of(function), sum(levels(parts)), _words(scan)], "totals")


def rows_of(function: ir.Operation) -> int:
    """The number of tiles in the loop over blocks; each tile is one row."""
    rows = 1
    for op in mlir.entry(function).operations:
        if op.operation.name == "scf.forall":
            for count in ir.DenseI64ArrayAttr(op.attributes["staticUpperBound"]):
                rows *= count
    return rows


def _part(parts: int) -> ir.Value:
    return arith.remui(gpu.BlockIdOp(gpu.Dimension.x).result, mlir.index(parts))


def _words(scan: ir.Operation) -> int:
    """Words that a total takes: 32 bits fit into one."""
    state = ir.MemRefType(scan.operands[len(scan.operands) - 1].type).element_type
    return 2 if state.width == 64 else 1


def levels(parts: int) -> list[int]:
    """How many totals there are at every level: of parts, of groups of parts, of groups of these, up to one group."""
    found = [parts]
    while found[-1] > GROUP:
        found.append(-(-found[-1] // GROUP))
    return found


@dataclass
class _Level:
    """A block's group at one level: the number of the group, the position of the block (or its group) in it, and the
    address of its totals."""

    group: ir.Value
    index: ir.Value
    begin: int
    wanted: ir.Value
    words: list[ir.Value]


class LookBack:
    """The totals of the row that a kernel's blocks share, as lane `lane` of a warp sees them."""

    def __init__(self, kernel: KernelContext, lane: ir.Value) -> None:
        assert kernel.spread is not None and kernel.rank is not None and kernel.row is not None
        self.lane: ir.Value = lane
        self.part: ir.Value = kernel.rank
        self.row: ir.Value = kernel.row
        self.totals = mlir.entry(kernel.function).arguments[-1]
        self.sizes = levels(kernel.spread.blocks)

    def before(self, combiner: Combiner, group: list[int], total: ir.Value, identity: ir.Value) -> ir.Value:
        """Publishes this part's total; returns that of all parts before. A whole warp asks."""
        last = arith.cmpi(arith.CmpIPredicate.eq, self.lane, mlir.index(0))
        with when(last):
            self._publish(self.part, total)
        looks, found = self._look(2 if identity.type.width == 64 else 1), []
        for n, level in enumerate(looks):
            words = [self._wait(level, m, word) for m, word in enumerate(level.words)]
            mine = arith.select(level.wanted, _whole(words, identity.type), identity)
            found += butterfly(combiner, group, [mine], [1 << m for m in range(WARP.bit_length() - 1)])
            (total,) = combiner.combine(group, [found[-1]], [total])
            last = arith.andi(last, arith.cmpi(arith.CmpIPredicate.eq, level.index, mlir.index(GROUP - 1)))
            if n + 1 < len(looks):
                with when(last):
                    self._publish(sum_of([(level.group, 1)], looks[n + 1].begin), total)
        before = found.pop()
        while found:
            (before,) = combiner.combine(group, [before], [found.pop()])
        return before

    def _look(self, words: int) -> list[_Level]:
        """The totals that each lane wants, as far as they are there, at all levels, before any wait."""
        made, number, begin = [], self.part, 0
        for size in self.sizes:
            above = arith.shrui(number, mlir.index(GROUP.bit_length() - 1))
            index = arith.andi(number, mlir.index(GROUP - 1))
            wanted = arith.cmpi(arith.CmpIPredicate.ult, self.lane, index)
            level = _Level(above, index, begin, wanted, [])
            level.words = [choose(wanted, partial(self._word, level, n), mark) for n in range(words)]
            made.append(level)
            number, begin = above, begin + size
        return made

    def _wait(self, level: _Level, n: int, word: ir.Value) -> ir.Value:
        """The word once it is marked."""
        return wait(word, partial(self._word, level, n))

    def _word(self, level: _Level, n: int) -> ir.Value:
        """Reads one: that is to or it with 0."""
        slot = sum_of([(level.group, GROUP), (self.lane, 1)], level.begin)
        return observe(self.totals, [self.row, slot, mlir.index(n)])

    def _publish(self, slot: ir.Value, total: ir.Value) -> None:
        for n, half in enumerate(_halves(total)):
            publish(half, self.totals, [self.row, slot, mlir.index(n)])


def _halves(total: ir.Value) -> list[ir.Value]:
    """Its bits, 32 at a time."""
    width = total.type.width
    bits = total if isinstance(total.type, ir.IntegerType) else arith.bitcast(_integer(width), total)
    if width == 32:
        return [bits]
    return [arith.trunci(_i32(), b) for b in (bits, arith.shrsi(bits, mlir.constant(32, _integer(64))))]


def _whole(words: list[ir.Value], element: mlir.Element) -> ir.Value:
    bits = received(words[0])
    if element.width == 64:
        low, high = (arith.extui(_integer(64), h) for h in (bits, received(words[1])))
        bits = arith.ori(low, arith.shli(high, mlir.constant(32, _integer(64))))
    return bits if isinstance(element, ir.IntegerType) else arith.bitcast(element, bits)


def _integer(width: int) -> ir.Type:
    return ir.IntegerType.get_signless(width)


def _i32() -> ir.Type:
    return _integer(32)
