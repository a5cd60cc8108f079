"""Results of a contraction chain: complete rows, computed from the states and the sums of the product, and stored."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any

from tilec.analysis.expression import Expr, parts_of
from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir, memref, vector
from tilec.passes.cuda.chain.block import ChainBlock, Output
from tilec.passes.cuda.chain.values import At, Values, hoisted
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.memory_spaces import registers, root
from tilec.passes.loops import below, loop, sum_of, when


class Results:
    """Stores a block's outputs; `sums` are those of products, by number. A thread's first element is at `row`, `column`, and it has
    `count` rows."""

    def __init__(
        self, block: ChainBlock, values: Values, sums: dict[int, ir.Value], thread: Thread, row: ir.Value, column: ir.Value,
        count: int,
    ):  # fmt: skip
        self.block, self.chain, self.values, self.outputs = block, block.chain, values, block.outputs
        self.sums, self.thread, self.row, self.column, self.count = sums, thread, row, column, count

    def store(self) -> None:
        with self.block.existing_rows(self.row, self.count, self.values) as (half, rows):
            self._store_row(rows, half)

    def _store_row(self, rows: dict[int, ir.Value], half: ir.Value) -> None:
        known: dict[Any, Any] = {}
        at = At(rows, half, known=known)
        for output in self.outputs:
            final = self.chain.online.final(output.value)
            for part in hoisted(final, self._varies):
                self.values.build(part, at)
            if column := next((d for d in self.chain.columns.values() if d in output.dims), None):
                self._store_columns(output, column, final, rows, half, known)
                continue
            member = self.thread.member
            value = self.values.build(final, at)
            with when(arith.cmpi(arith.CmpIPredicate.eq, member, mlir.index(0))):
                memref.StoreOp(value, output.view, [at.coordinates.get(d, mlir.index(0)) for d in output.dims])

    def _varies(self, x: Expr) -> bool:
        """Whether a part of a result differs between the columns of a row."""
        columns = self.chain.columns
        own = x.op == "state" and x.key in columns
        return own or not x.dims.isdisjoint(columns.values()) or any(self._varies(a) for a in x.args)

    def _store_columns(
        self, output: Output, dim: int, final: Expr, rows: dict[int, ir.Value], half: ir.Value, known: dict
    ) -> None:
        """Two adjacent columns at a time, as one access where they are neighbours in memory."""
        columns, element = self.block.sizes[dim], ir.MemRefType(output.view.type).element_type
        strides, _ = ir.MemRefType(root(output.view).type).get_strides_and_offset()
        even = all(s % 2 == 0 for s in (columns, *strides[:-1]))
        read = {p.key for p in parts_of(final) if p.op == "state"}
        sums = {n: tile for n, tile in self.sums.items() if n in read}
        adjacent = output.dims[-1] == dim and even
        tile = registers([2], locations.argument(root(output.view)) or "%pair", element)
        with ExitStack() as stack:
            j = stack.enter_context(loop(-(-columns // 8), name="fragment"))
            first = sum_of([(j, 8), (self.column, 1)])
            if columns % 8 and even:
                stack.enter_context(when(below(first, columns)))
            with loop(2, unroll=True, name="pair") as lane:
                column = sum_of([(lane, 1), (j, 8), (self.column, 1)])
                with nullcontext() if even else when(below(column, columns)):
                    products = {n: memref.LoadOp(tile, [j, half, lane]).result for n, tile in sums.items()}
                    coordinates = {**rows, dim: column}
                    value = self.values.build(final, At(coordinates, half, products=products, known=dict(known)))
                    if adjacent:
                        memref.StoreOp(value, tile, [lane])
                    else:
                        memref.StoreOp(value, output.view, [coordinates.get(d, mlir.index(0)) for d in output.dims])
            if adjacent:
                pair = vector.LoadOp(ir.VectorType.get([2], element), tile, [mlir.index(0)]).result
                coordinates = {**rows, dim: first}
                vector.StoreOp(pair, output.view, [coordinates.get(d, mlir.index(0)) for d in output.dims])
