"""Results of a contraction chain: complete rows, computed from the states and the sums of the product, and stored."""

# mypy: no-strict-optional

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from tilec.analysis.chain import Chain
from tilec.analysis.expression import Expr
from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir, memref, vector
from tilec.passes.cuda.chain.values import At, Values, halves, hoisted
from tilec.passes.cuda.contraction.problem import PRIVATE, Thread, below, local
from tilec.passes.cuda.memory_spaces import root
from tilec.passes.loops import loop, sum_of, when


@dataclass(frozen=True)
class Output:
    """A result that leaves the kernel, and where."""

    value: Expr
    view: ir.Value
    dims: tuple[int, ...]


class Results:
    """Stores `outputs`; `sums` are the product's, of `columns`, if there is one. A thread's first element is at `row`, `column`.

    A block has `height` rows, of which there are `size`.
    """

    def __init__(
        self, chain: Chain, values: Values, outputs: list[Output], sums: ir.Value | None, thread: Thread,
        row: ir.Value, column: ir.Value, count: int, columns: int, height: int, size: int | ir.Value,
    ):  # fmt: skip
        self.chain, self.values, self.outputs, self.o, self.thread = chain, values, outputs, sums, thread
        self.row, self.column, self.count, self.columns, self.height, self.size = row, column, count, columns, height, size

    def store(self) -> None:
        size = self.size
        with halves(self.count) as half:
            row = locations.named(sum_of([(half, 8), (self.row, 1)]), "row")
            if isinstance(size, ir.Value) or size % self.height:
                end = size if isinstance(size, ir.Value) else mlir.index(size)
                with when(arith.cmpi(arith.CmpIPredicate.slt, row, end)):
                    self._store_row(row, half)
            else:
                self._store_row(row, half)

    def _store_row(self, row: ir.Value, half: ir.Value) -> None:
        chain = self.chain
        known: dict[Any, Any] = {}
        at = At({chain.rows: row}, half, known=known)
        for output in self.outputs:
            final = chain.online.final(output.value)
            for part in hoisted(final, self._varies):
                self.values.build(part, at)
            if chain.columns in output.dims:
                self._store_columns(output, final, row, half, known)
                continue
            quad = arith.andi(self.thread.lane, mlir.index(3))
            value = self.values.build(final, at)
            with when(arith.cmpi(arith.CmpIPredicate.eq, quad, mlir.index(0))):
                memref.StoreOp(value, output.view, [at.coordinates.get(d, mlir.index(0)) for d in output.dims])

    def _varies(self, x: Expr) -> bool:
        """Whether a part of a result differs between the columns of a row."""
        own = self.chain.product is not None and x.op == "state" and x.key == self.chain.product.total.number
        return own or self.chain.columns in x.dims or any(self._varies(a) for a in x.args)

    def _store_columns(self, output: Output, final: Expr, row: ir.Value, half: ir.Value, known: dict) -> None:
        """Two adjacent columns at a time, as one access where they are neighbours in memory."""
        chain, element = self.chain, ir.MemRefType(output.view.type).element_type
        strides, _ = ir.MemRefType(root(output.view).type).get_strides_and_offset()
        even = all(s % 2 == 0 for s in (self.columns, *strides[:-1]))
        adjacent = output.dims[-1] == chain.columns and even
        name = ir.Location.name(locations.argument(root(output.view)) or "%pair")
        with ir.InsertionPoint.at_block_begin(self.thread.block), name:
            tile = memref.AllocaOp(local([2], element, PRIVATE), [], []).result
        with ExitStack() as stack:
            j = stack.enter_context(loop(-(-self.columns // 8), name="fragment"))
            first = sum_of([(j, 8), (self.column, 1)])
            if self.columns % 8 and even:
                stack.enter_context(when(below(first, self.columns)))
            with loop(2, unroll=True, name="pair") as lane:
                column = sum_of([(lane, 1), (j, 8), (self.column, 1)])
                with nullcontext() if even else when(below(column, self.columns)):
                    product = memref.LoadOp(self.o, [j, half, lane]).result
                    coordinates = {chain.rows: row, chain.columns: column}
                    value = self.values.build(final, At(coordinates, half, product=product, known=dict(known)))
                    if adjacent:
                        memref.StoreOp(value, tile, [lane])
                    else:
                        memref.StoreOp(value, output.view, [coordinates.get(d, mlir.index(0)) for d in output.dims])
            if adjacent:
                pair = vector.LoadOp(ir.VectorType.get([2], element), tile, [mlir.index(0)]).result
                coordinates = {chain.rows: row, chain.columns: first}
                vector.StoreOp(pair, output.view, [coordinates.get(d, mlir.index(0)) for d in output.dims])
