"""What follows a contraction in its kernel, computed on the elements of C that a thread holds, and stored.

    for row, column { if inside { for lane { y1[lane] = gelu(c[row, column + lane] + b1[lane]) }   y[...] = y1 } }

The operations behind the contraction walk the same elements, so each is computed where its operands are: nothing between
the contraction and the kernel's results is ever in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec import mlir
from tilec.mlir import ir, memref, vector
from tilec.passes.contract_problem import PRIVATE, Problem, all_of, local
from tilec.passes.contract_tile import Slot
from tilec.passes.loops import loop, sum_of, when
from tilec.passes.stage_cuda import is_local, root

WIDE = 128  # bits of the widest access


@dataclass(frozen=True)
class Use:
    """An operand of an operation, by kernel dimensions."""

    value: ir.Value
    dims: tuple[int, ...]


class Epilogue:
    """`store(slot)` finishes `width` adjacent elements of C: those of one slot of the tile."""

    def __init__(self, problem: Problem, after: list[ir.Operation], sums: ir.Value, width: int, where: ir.Block):
        self.problem, self.after, self.sums, self.where = problem, after, sums, where
        self.lane_dim = problem.right.dims[-1]
        self.width = width
        self.adjacent = self._adjacent()
        self.result = problem.operands[-1]
        self.tiles: dict[Use, ir.Value] = {}

    def _adjacent(self) -> bool:
        """Whether a slot's elements are neighbours along one dimension, all inside or all outside."""
        side, width = self.problem.right, self.width
        extent = self._extent()
        return width > 1 and side.box[-1] % width == 0 and extent % width == 0 and (len(side.dims) == 1 or side.size % side.box[-1] == 0)

    def _extent(self) -> int:
        """The whole extent of the innermost column dimension; 1 where it is not known."""
        for op in (self.problem.op, *self.after):
            for use in uses_of(op):
                for d, size in zip(use.dims, ir.MemRefType(root(use.value).type).shape):
                    if d == self.lane_dim and not is_local(use.value):
                        return size
        return 1

    def store(self, slot: Slot) -> None:
        row, column, place = slot
        if self.adjacent:
            self._elements(row, column, place, self.width)
            return
        with loop(self.width) as lane:
            at = [*place[:-1], sum_of([(place[-1], 1), (lane, 1)])]
            self._elements(row, sum_of([(column, 1), (lane, 1)]), at, 1)

    def _elements(self, row: ir.Value, column: ir.Value, place: list[ir.Value], width: int) -> None:
        problem = self.problem
        at = problem.coordinates((problem.left, row), (problem.right, column))
        condition = all_of(problem.inside(problem.left, at) + problem.inside(problem.right, at))
        if condition is None:
            self._finish(at, place, width)
            return
        with when(condition):
            self._finish(at, place, width)

    # ---- elements that exist -----------------------------------------------------------------------------------------

    def _finish(self, at: dict[int, ir.Value], place: list[ir.Value], width: int) -> None:
        loaded = self._load(at, width)
        stored: dict[Use, ir.Value] = {}
        with loop(width) as lane:
            along = {**at, self.lane_dim: sum_of([(at[self.lane_dim], 1), (lane, 1)])}
            value = memref.LoadOp(self.sums, [*place[:-1], sum_of([(place[-1], 1), (lane, 1)])]).result
            known = {root(self.result): value}
            (use,) = [u for u in uses_of(self.problem.op) if u.value == self.result]
            self._keep(use, value, along, lane, width, stored)
            for op in self.after:
                self._operation(op, known, loaded, along, lane, width, stored)
        for use, tile in stored.items():
            type_ = ir.VectorType.get([width], ir.MemRefType(use.value.type).element_type)
            vector.StoreOp(vector.LoadOp(type_, tile, [mlir.index(0)]).result, use.value, [at[d] for d in use.dims])

    def _operation(self, op, known, loaded, at, lane, width, stored) -> None:
        body, count = mlir.body_of(op), len(mlir.inputs_of(op))
        uses = uses_of(op)
        live = {v for inner in mlir.walk(op) for v in inner.operands}
        mapping: dict[ir.Value, ir.Value] = {}
        for use, argument in zip(uses[:count], body.arguments):
            if argument in live:
                mapping[argument] = self._element(use, known, loaded, at, lane)
        dims = mlir.get_integers(op, "tilec.dims")
        for inner in body.operations:
            if inner.operation.name == "linalg.index":
                mapping[inner.results[0]] = at[dims[ir.IntegerAttr(inner.attributes["dim"]).value]]
        for use, value in zip(uses[count:], mlir.clone_body(body, mapping)):
            known[root(use.value)] = value
            self._keep(use, value, at, lane, width, stored)

    def _element(self, use: Use, known, loaded, at, lane) -> ir.Value:
        if root(use.value) in known:
            return known[root(use.value)]
        if use in loaded:
            return memref.LoadOp(loaded[use], [lane]).result
        return memref.LoadOp(use.value, [at[d] for d in use.dims]).result

    def _keep(self, use: Use, value: ir.Value, at, lane, width: int, stored) -> None:
        """A result that leaves the kernel goes to memory, several elements at a time where they are neighbours."""
        if is_local(use.value):
            return
        if width > 1 and self._wide(use, width):
            stored[use] = self._tile(use, width)
            memref.StoreOp(value, stored[use], [lane])
        else:
            memref.StoreOp(value, use.value, [at[d] for d in use.dims])

    def _load(self, at: dict[int, ir.Value], width: int) -> dict[Use, ir.Value]:
        """What the epilogue reads of global memory, as vectors where elements are neighbours."""
        found: dict[Use, ir.Value] = {}
        if width == 1:
            return found
        for op in self.after:
            live = {v for inner in mlir.walk(op) for v in inner.operands}
            for use, argument in zip(uses_of(op)[: len(mlir.inputs_of(op))], mlir.body_of(op).arguments):
                if use in found or argument not in live or is_local(use.value) or use.value == self.result or not self._wide(use, width):
                    continue
                type_ = ir.VectorType.get([width], ir.MemRefType(use.value.type).element_type)
                found[use] = self._tile(use, width)
                loaded = vector.LoadOp(type_, use.value, [at[d] for d in use.dims]).result
                vector.StoreOp(loaded, found[use], [mlir.index(0)])
        return found

    def _wide(self, use: Use, width: int) -> bool:
        """Whether one access moves a slot's elements: neighbours in memory, aligned, not too many bits."""
        if not use.dims or use.dims[-1] != self.lane_dim or self.lane_dim in use.dims[:-1]:
            return False
        type_ = ir.MemRefType(root(use.value).type)
        return type_.shape[-1] % width == 0 and 16 <= width * max(8, type_.element_type.width) <= WIDE

    def _tile(self, use: Use, width: int) -> ir.Value:
        if use not in self.tiles:
            with ir.InsertionPoint.at_block_begin(self.where):
                type_ = local([width], ir.MemRefType(use.value.type).element_type, PRIVATE)
                self.tiles[use] = memref.AllocaOp(type_, [], []).result
        return self.tiles[use]


def uses_of(op: ir.Operation) -> list[Use]:
    dims = mlir.get_integers(op, "tilec.dims")
    return [Use(v, tuple(dims[d] for d in mlir.map_dims(m))) for v, m in zip(op.operands, mlir.maps_of(op))]
