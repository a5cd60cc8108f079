"""Weights of a contraction chain in the form that matrix units read, and scores that a mask excludes."""

from __future__ import annotations

from collections.abc import Callable

from tilec.analysis.chain import Chain
from tilec.analysis.chain_masks import Linear
from tilec.analysis.expression import Expr
from tilec.core import mlir
from tilec.core.mlir import arith, ir, math, memref, vector
from tilec.passes.cuda.chain.masks import clamped, number_of
from tilec.passes.cuda.chain.values import At, Values, halves, rows_of, selected
from tilec.passes.cuda.contraction.fragments import round_words
from tilec.passes.cuda.memory_spaces import registers
from tilec.passes.loops import loop, sum_of

UPPER = -65536  # the bits of an f32 that a bf16 has
SMALL = 1 << 30  # beyond the places in a tile


class Packer:
    """Packs the weights in `scores` into `words`, fragments of a left factor: `terms` numbers of their type for each.
    `evens_first`: the other factor has its places of k in this order, and not in that of a thread's columns."""

    def __init__(self, scores: ir.Value, words: ir.Value, terms: int, bounded: bool, evens_first: bool):
        self.s, self.w, self.terms, self.bounded, self.evens_first = scores, words, terms, bounded, evens_first
        self.kind, self.each = ir.MemRefType(words.type).element_type, ir.MemRefType(words.type).shape[1]
        self.columns, self.high = 8 * ir.MemRefType(scores.type).shape[0], rows_of(scores) // 2
        self.pieces = registers([terms, 2], "%parts") if terms > 1 else None

    def pack(self) -> None:
        """Weights as words of the left factor's fragments."""
        if self.each == 1:
            self._round()
            return
        f32, narrow = ir.F32Type.get(), self.kind
        pair, words = ir.VectorType.get([2], f32), ir.VectorType.get([2], narrow)
        with (
            loop(self.columns // 8, name="fragment") as j,
            loop(self.high, unroll=True, name="high") as high,
            loop(2, unroll=True, name="half") as low,
        ):
            half = sum_of([(high, 2), (low, 1)])
            if self.terms > 1:
                self._split(j, half)
            with loop(self.terms, unroll=True, name="part") as term:
                source, at = (self.s, [j, half, mlir.index(0)])
                if self.terms > 1:
                    assert self.pieces is not None
                    source, at = self.pieces, [term, mlir.index(0)]
                rounded = arith.truncf(words, vector.LoadOp(pair, source, at).result)
                word = [(low, 1), (term, self.high * self.columns // 4), (high, self.columns // 4), (j, 2)]
                vector.StoreOp(rounded, self.w, [sum_of(word), mlir.index(0)])

    def _round(self) -> None:
        """Weights as tf32: a word has one. Of 8 places of k a thread has two, four apart. They are its adjacent columns; or those
        of even number in two neighbouring fragments, and of odd number in the second half of k."""
        with loop(self.columns // 8, name="fragment") as j, loop(self.high, unroll=True, name="high") as high:
            first = sum_of([(high, self.columns // 2), (j, 4)])
            with loop(2, unroll=True, name="half") as low, loop(2, unroll=True, name="pair") as lane:
                at = [j, sum_of([(high, 2), (low, 1)]), lane]
                if self.evens_first:
                    two, odd = (operation(j, mlir.index(self.columns // 16)) for operation in (arith.remui, arith.divui))
                    at = [sum_of([(two, 2), (lane, 1)]), at[1], odd]
                value = memref.LoadOp(self.s, at).result
                memref.StoreOp(value, self.w, [sum_of([(first, 1), (lane, 2), (low, 1)]), mlir.index(0)])
            round_words(self.w, first)

    def _split(self, j: ir.Value, half: ir.Value) -> None:
        """A weight as a sum of narrow numbers: its upper bits, those of what is left, and so on; all but the last exact.

        What an infinity leaves is 0, not the NaN that it would be.
        """
        f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
        assert self.pieces is not None
        with loop(2, unroll=True, name="pair") as lane:
            rest = memref.LoadOp(self.s, [j, half, lane]).result
            for term in range(self.terms):
                if term == self.terms - 1:
                    piece = rest
                else:
                    if isinstance(self.kind, ir.BF16Type):
                        bits = arith.andi(arith.bitcast(i32, rest), mlir.constant(UPPER, i32))
                        piece = arith.bitcast(f32, bits)
                    else:
                        piece = arith.extf(f32, arith.truncf(self.kind, rest))
                    left = arith.subf(rest, piece)
                    if term == 0 and not self.bounded:
                        infinite = arith.cmpf(
                            arith.CmpFPredicate.OEQ, math.absf(rest), mlir.constant(float("inf"), f32)
                        )
                        left = arith.select(infinite, mlir.constant(0.0, f32), left)
                    rest = left
                memref.StoreOp(piece, self.pieces, [mlir.index(term), lane])


def exclude(
    chain: Chain, bounds: list[Linear], scores: ir.Value, values: Values, largest: int,
    locate: Callable[[ir.Value, ir.Value, ir.Value], At],
) -> None:  # fmt: skip
    """The score that changes nothing takes the place of those outside of `bounds`; `locate` says where a thread's scores are.

    Conditions are affine: for each row a number of 32 bits, that the place in the tile is compared with. No index is beyond
    `largest`.
    """
    i32 = ir.IntegerType.get_signless(32)
    assert chain.absorbing is not None
    with loop(ir.MemRefType(scores.type).shape[0], name="fragment") as j, halves(rows_of(scores)) as half:
        rows, at = [], locate(j, half, mlir.index(0))
        at.coordinates[chain.between] = at.parts[chain.between][0]
        for leaves, number in bounds:
            factor = sum(f for leaf, f in leaves.items() if leaf.own_dims == (chain.between,) and leaf.op == "index")
            base = sum_of([(number_of(values, leaf, at), f) for leaf, f in leaves.items()], number)
            if not fits(leaves, number, largest):
                base = clamped(base, SMALL)
            rows.append((factor, arith.index_cast(i32, base)))
        with loop(2, unroll=True, name="pair") as lane:
            inside = None
            for factor, base in rows:
                least = arith.index_cast(i32, sum_of([(lane, -factor), (j, -8 * factor)]))
                holds = arith.cmpi(arith.CmpIPredicate.sge, base, least)
                inside = holds if inside is None else arith.andi(inside, holds)
            subscripts = [j, half, lane]
            memref.StoreOp(
                selected(inside, memref.LoadOp(scores, subscripts).result, chain.absorbing), scores, subscripts
            )


def fits(leaves: dict[Expr, int], number: int, largest: int) -> bool:
    """Whether a sum of leaves is of 32 bits, no index being beyond `largest`; what memory holds may be anything."""
    return abs(number) + sum(map(abs, leaves.values())) * largest < SMALL and all(leaf.op != "element" for leaf in leaves)
