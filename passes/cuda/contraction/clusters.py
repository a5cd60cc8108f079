"""Clusters of blocks whose tiles of C share factors: each block copies a part of a tile to all that need it (multicast).

    cluster of 2 x 2 tiles of C:    blocks (0, 0) and (0, 1) share rows of the left factor, (0, 0) and (1, 0) columns of the right

Blocks of one row of the cluster take a tile of the left factor in equal parts: each copies its part to all of them. So do blocks of
one column with the right factor. A stage is full in a block when all parts have arrived there. A block may copy into a stage only
when it is empty in all blocks that it copies to, so that consumers tell all blocks of their row and column.
"""

from __future__ import annotations

from tilec.core import mlir, opcodes
from tilec.core.mlir import arith, ir, nvvm
from tilec.core.opcodes import RemoteArrive
from tilec.passes.cuda.cluster import cluster_rank
from tilec.passes.loops import delinearise, sum_of


class Cluster:
    """A block's place among `high` x `wide` blocks."""

    def __init__(self, function: ir.Operation, high: int, wide: int):
        self.function, self.high, self.wide = function, high, wide
        self.row, self.column = delinearise(cluster_rank(), [high, wide], ["cluster_row", "cluster_column"])

    @property
    def size(self) -> int:
        return self.high * self.wide

    @property
    def peers(self) -> int:
        """The blocks of a block's row and column, itself included."""
        return self.high + self.wide - 1

    def parts(self, left: bool) -> int:
        """In how many a factor's tile is copied."""
        return self.wide if left else self.high

    def part(self, left: bool) -> ir.Value:
        """That of this block."""
        return self.column if left else self.row

    def mask(self, left: bool) -> ir.Value:
        """The blocks, a bit for each, that a factor's tile goes to."""
        bits = (1 << self.wide) - 1 if left else sum(1 << self.wide * row for row in range(self.high))
        by = arith.muli(self.row, mlir.index(self.wide)) if left else self.column
        kind = ir.IntegerType.get_signless(16)
        return arith.index_cast(kind, arith.shli(mlir.index(bits), by))

    def release(self, empty: ir.Value, stage: ir.Value, number: ir.Value) -> None:
        """Tells block `number` of the row and column that a stage is free."""
        block = number
        if self.high > 1 and self.wide > 1:
            row = sum_of([(number, 1)], -self.wide)
            after = arith.cmpi(arith.CmpIPredicate.sge, row, self.row)
            row = arith.select(after, sum_of([(row, 1)], 1), row)
            in_row = arith.cmpi(arith.CmpIPredicate.slt, number, mlir.index(self.wide))
            same_row = sum_of([(self.row, self.wide), (number, 1)])
            block = arith.select(in_row, same_row, sum_of([(row, self.wide), (self.column, 1)]))
        opcodes.call(self.function, RemoteArrive(), [empty, stage, block])

    @staticmethod
    def meet() -> None:
        """All threads of all blocks: before one uses what another has made, and before one ends whose memory others use."""
        nvvm.ClusterArriveOp()
        nvvm.ClusterWaitOp()
