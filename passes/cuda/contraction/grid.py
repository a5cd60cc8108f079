"""The grid of a contraction: which tile of the result a block's number means, and the order of tiles."""

from __future__ import annotations

from math import prod

from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir
from tilec.kernels import StoredContraction
from tilec.passes.cuda.contraction.clusters import Cluster
from tilec.passes.loops import delinearise, sum_of


class Blocks:
    """The grid of a kernel: which tile of C a number means, and the operations of that tile."""

    def __init__(self, function: ir.Operation, options: StoredContraction):
        self.function, self.options = function, options
        view = next(o for o in mlir.entry(function).operations if o.operation.name == "scf.forall")
        self.forall = view.operation
        self.counts = list(ir.DenseI64ArrayAttr(self.forall.attributes["staticUpperBound"]))

    @property
    def count(self) -> int:
        return prod(self.counts)

    def enter(self, number: ir.Value, grid: list[int], cluster: Cluster | None = None) -> list[ir.Operation]:
        """Copies what a block computes to the insertion point, at the tile of this number; with a cluster, at its tile among those
        of this number."""
        block = self.forall.regions[0].blocks[0]
        mapping = dict(zip(block.arguments, self._grouped_order(number, grid, cluster)))
        for value, name in zip(mapping.values(), locations.variables(self.forall)):
            locations.named(value, name)
        operations = [o.operation for o in block.operations if o.operation.name != "scf.forall.in_parallel"]
        return [mlir.clone_op(op, mapping) for op in operations]

    def _grouped_order(self, number: ir.Value, grid: list[int], cluster: Cluster | None) -> list[ir.Value]:
        """Batches one after another; in each, `group_rows` rows of tiles go column by column.

        Blocks that run at one time then cover about a square of C, and share its rows' and columns' factors
        in L2.
        """
        count = dict(zip(grid, self.counts))
        rows, columns = ([d for d in grid if d in dims] for dims in (self.options.rows, self.options.columns))
        batch = [d for d in grid if d not in (*rows, *columns)]
        each = (cluster.high, cluster.wide) if cluster else (1, 1)
        high, wide = (prod(count[d] for d in dims) // size for dims, size in zip((rows, columns), each))
        which, rest = _divide(number, high * wide, prod(count[d] for d in batch))
        row, column = in_groups(rest, high, wide, min(max(1, self.options.group_rows // each[0]), high))
        if cluster:
            row, column = sum_of([(row, each[0]), (cluster.row, 1)]), sum_of([(column, each[1]), (cluster.column, 1)])
        found = dict(zip(batch, delinearise(which, [count[d] for d in batch])))
        found |= zip(rows, delinearise(row, [count[d] for d in rows]))
        found |= zip(columns, delinearise(column, [count[d] for d in columns]))
        return [found[d] for d in grid]


def in_groups(number: ir.Value, high: int, wide: int, group: int) -> tuple[ir.Value, ir.Value]:
    """Row and column of a place in a grid of `high` rows and `wide` columns: `group` rows together, column by column."""
    band, within = _divide(number, group * wide, -(-high // group))
    first, tall = arith.muli(band, mlir.index(group)), mlir.index(group)
    if high % group:
        tall = arith.minsi(arith.subi(mlir.index(high), first), tall)
    return arith.addi(first, arith.remui(within, tall)), arith.divui(within, tall)


def _divide(number: ir.Value, by: int, quotients: int) -> tuple[ir.Value, ir.Value]:
    """Quotient and remainder; 0 and the number itself where there is one quotient only."""
    if quotients == 1:
        return mlir.index(0), number
    return arith.divui(number, mlir.index(by)), arith.remui(number, mlir.index(by))
