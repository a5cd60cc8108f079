"""Blocks that share their rows: each takes a part of the elements, and the last one combines the states of all.

    part < last: states of the part -> words in global memory (`passes/cuda/messages.py`)
    last part:   for each other part, in order { wait for its words; combine }; results

Blocks start in the order of their numbers, so that those which the last one waits for are running or finished. The order of
combination never varies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref, scf
from tilec.passes.cuda.chain.fragments import Fragments
from tilec.passes.cuda.chain.values import halves, registers
from tilec.passes.cuda.contraction.problem import below
from tilec.passes.cuda.messages import add_words, observe, publish, received, wait
from tilec.passes.loops import loop, sum_of, when

TOGETHER = 4  # parts whose words are under way at a time


class SharedRows:
    """The rows of a block, `own`, of which it has the states of one of several parts."""

    def __init__(self, own: Fragments):
        self.own, self.block, parts = own, own.block, own.block.parts
        states = own.states
        self.numbers = [c.total.number for c in (*states.rows, *states.positions.carried)]
        own.tiles.share(own.block.part, parts)
        if parts > 1:
            function = own.block.function
            shape = [own.block.count, parts - 1, len(self.numbers), own.block.bm]
            add_words(function.parent, function, shape, "states")
            self.words = mlir.entry(function).arguments[-1]
            kinds = {n: ir.MemRefType(states.values.states[n].type).element_type for n in self.numbers}
            self.others = {n: registers([own.rows], "%received", str(kinds[n])) for n in self.numbers}
            self.references = {s.number: registers([own.rows], "%received_reference") for s in states.online.rescales}

    def complete(self, store: Callable[[], None]) -> None:
        """Completes the states; `store` is built for the block that has those of all parts."""
        states = self.own.states
        if self.block.parts == 1:
            states.complete()
            store()
            return
        choice = scf.IfOp(below(self.block.part, self.block.parts - 1), has_else=True)
        before = dict(states.values.states)
        with ir.InsertionPoint(choice.then_block):
            states.complete()
            self._publish()
            scf.YieldOp([])
        states.values.states = before
        with ir.InsertionPoint(choice.else_block):
            whole, rest = divmod(self.block.parts - 1, TOGETHER)
            if whole:
                with loop(whole, always=True, name="parts") as number:
                    self._merge(arith.muli(number, mlir.index(TOGETHER)), TOGETHER)
            self._merge(mlir.index(whole * TOGETHER), rest)
            states.complete()
            store()
            scf.YieldOp([])

    def _is_first(self) -> ir.Value:
        """Whether this is the first of the threads that share rows."""
        quad = arith.andi(self.own.thread.lane, mlir.index(3))
        return arith.cmpi(arith.CmpIPredicate.eq, quad, mlir.index(0))

    def _position(self, part: ir.Value, n: int, half: ir.Value) -> list[ir.Value]:
        return [self.block.number, part, mlir.index(n), sum_of([(half, 8), (self.own.row, 1)])]

    def _publish(self) -> None:
        with when(self._is_first()):
            for n, number in enumerate(self.numbers):
                with halves(self.own.rows) as half:
                    value = memref.LoadOp(self.own.states.values.states[number], [half]).result
                    bits = value if isinstance(value.type, ir.IntegerType) else arith.bitcast(_i32(), value)
                    publish(bits, self.words, self._position(self.block.part, n, half))

    def _merge(self, first: ir.Value, count: int) -> None:
        """The states of so many parts, once they are there. All words are read before the first wait."""
        slots = [(n, number, mlir.index(half)) for n, number in enumerate(self.numbers) for half in range(self.own.rows)]
        parts = [sum_of([(first, 1)], p) for p in range(count)]
        read = [[partial(observe, self.words, self._position(p, n, half)) for n, _, half in slots] for p in parts]
        words = [[one() for one in of_part] for of_part in read]
        for of_part, found in zip(read, words):
            for (_, number, half), one, word in zip(slots, of_part, found):
                bits, type_ = received(wait(word, one)), ir.MemRefType(self.others[number].type).element_type
                value = bits if bits.type == type_ else arith.bitcast(type_, bits)
                memref.StoreOp(value, self.others[number], [half])
            self.own.states.merge(self.others, self.references, self._is_first())


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)

