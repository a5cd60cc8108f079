"""map, for CUDA: the operations of a block whose layout deals elements out to threads, one after another.

    generic [parallel, reduction] ins(x) outs(s) { add }
    ->
    s1 = 0
    for chunk { for step { x1[step] = load x[...]  (a vector) }
                for step, lane { s1 = s1 + x1[step, lane] } }
    s1 = s1 + shuffle(s1), ...

The layout (`tilec/analysis/layout.py`) says which elements are a thread's. A private tile shrinks to a thread's part of it.
`operation.py` maps one operation.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.layout import transposed
from tilec.core import extents, locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import gpu, ir
from tilec.passes.cuda.cluster import arrive, cluster_rank
from tilec.passes.cuda.contraction.grid import enter, tiles_of
from tilec.passes.cuda.memory_spaces import is_local, root, space_of
from tilec.passes.cuda.threaded import transpose, unaligned
from tilec.passes.cuda.threaded.context import KernelContext
from tilec.passes.cuda.threaded.online import OnlineMapper, joined
from tilec.passes.cuda.threaded.operation import GenericMapper
from tilec.passes.cuda.threaded.persistent_rows import STAGES, Pipeline, copy_rows
from tilec.passes.cuda.threaded.turns import choose_tensors
from tilec.passes.loops import Threads, counts_of, delinearise

MEMORY = "memref.alloc", "memref.subview"


class KernelMapper(KernelContext):
    """Maps a kernel: its loop over blocks, and its operations one after another."""

    def build(self) -> None:
        function, each = self.function, self.spread.blocks if self.spread else 1
        extents.set_blocks(function, extents.times(self._blocks(), each))
        function.attributes["tilec.cluster"] = mlir.integer(1 if self.looks_back else each)
        function.attributes["tilec.threads"] = mlir.integer(self.layout.block)
        block = self.body
        generics = [o.operation for o in block.operations if mlir.is_generic(o.operation)]
        self._name_tiles(generics)
        for op in generics:
            choose_tensors(op)
        online = joined(block) if self.online else []
        for op in [o.operation for o in block.operations]:
            if self.alignment and self.threads.misalignment is None and mlir.is_generic(op):
                with ir.InsertionPoint(op), op.location:
                    self.threads.misalignment = self.alignment.of(*self.alignment.found(block, op), self.threads)
                    self.threads.least = self.alignment.least(self.spread)
            if op in online:
                if op == online[0]:
                    self._define_before(op, online[1:])
                    with ir.InsertionPoint(op), _named(op):
                        OnlineMapper(self, online).build()
            elif op.name == "linalg.generic":
                with ir.InsertionPoint(op), _named(op):
                    self._generic(op)
                op.erase()
            elif op.name == "linalg.fill":
                self.fills[root(op.operands[1])] = op.operands[0]
                op.erase()
            elif op.name in ("memref.copy", "linalg.copy"):
                raise InternalError(f"a block copies memory: {op}", "map")
        for op in online:
            op.erase()
        for op in reversed([o.operation for o in block.operations]):
            if op.name in MEMORY and not any(mlir.uses(op.results[0])):
                op.erase()
            elif transpose.MARK in op.attributes:
                del op.attributes[transpose.MARK]
        if self.spread:
            del function.attributes["tilec.spread"]

    def _define_before(self, first: ir.Operation, others: list[ir.Operation]) -> None:
        """The memory of `others` is there before `first`, with which they become one pass: what they write, and results between,
        of which they tell their sizes by."""
        before = list(self.body.operations)
        at = {o.operation: n for n, o in enumerate(before)}
        for value in (v for op in others for v in op.operands):
            makers, made = [], mlir.definition(value)
            while made is not None and made.name in MEMORY and at.get(made, 0) > at[first]:
                makers.append(made)
                made = mlir.definition(made.operands[0]) if made.name == "memref.subview" else None
            for made in reversed(makers):
                made.move_before(first)

    def _generic(self, op: ir.Operation) -> None:
        """One operation; a copy marked `tilec.transpose` in a layout of its own, for all threads to see."""
        if STAGES in op.attributes:
            return copy_rows(self, op, lambda chunk: GenericMapper(self, op, self.threads).fetched(0, chunk))
        along = mlir.get_integer(op, "tilec.transpose")
        if along is None:
            return GenericMapper(self, op, self._step_by_step(op) or self.threads).build()
        mark = transpose.mark_of(root(op.operands[1]))
        layout = transposed(self.layout, along, dense=mark is not None)
        with ir.InsertionPoint.at_block_begin(mlir.entry(self.function)):
            threads = Threads(layout, names=self.names)
        mapper = GenericMapper(self, op, threads)
        transpose.write(mapper, mark) if mark else mapper.build()
        gpu.BarrierOp()
        return None

    def _step_by_step(self, op: ir.Operation) -> Threads | None:
        """For an operation at the end, on rows that are in registers or in SRAM: to load, compute and store one step after
        another takes fewer registers than all at once."""
        d, dims = self.layout.lane, mlir.get_integers(op, "tilec.dims")
        elementwise = "reduction" not in mlir.iterators_of(op) and "tilec.drain_copy" not in op.attributes
        if not (self.persistent_blocks or self.reduces) or d is None or not elementwise or d not in dims:
            return None
        if not self.persistent_blocks and (d in self.grid or not self.layout.whole(dims)):
            return None
        if any(space_of(value) == "private" for value in mlir.outputs_of(op)):
            return None
        return self._single_steps(d)

    def _single_steps(self, d: int | None) -> Threads:
        """The same threads in a loop over their steps along a dimension."""
        steps = [1 if e == d else s for e, s in enumerate(self.layout.steps)]
        return Threads(
            replace(self.layout, steps=tuple(steps)), self.threads.misalignment, self.threads.least, self.names
        )

    def _realign(self, op: ir.Operation) -> None:
        """A copy of an operand that begins elsewhere in its vectors than the rows do."""
        unaligned.realign(GenericMapper(self, op, self._single_steps(self.layout.lane)))

    def _blocks(self) -> int | str:
        """The loop over blocks becomes this block's number; returns how many there are."""
        with ir.InsertionPoint.at_block_begin(mlir.entry(self.function)), self.function.location:
            self.threads = Threads(self.layout, names=self.names)
            if self.looks_back:
                assert self.spread is not None
                self.row, self.rank = delinearise(gpu.BlockIdOp(gpu.Dimension.x).result, [2, self.spread.blocks])
            elif self.spread:
                self.rank = cluster_rank()
                arrive()
        if not (foralls := tiles_of(self.function)):
            return 1
        forall = foralls[0]
        counts, blocks = counts_of(forall), extents.blocks_of(forall)
        with ir.InsertionPoint(forall), self.function.location:
            if self.persistent_blocks:
                pipeline = Pipeline(self, forall, self.persistent_blocks, self._realign)
                self.body = pipeline.build()
                forall.erase()
                self.function.attributes["tilec.persistent"] = mlir.integer(pipeline.period)
                return pipeline.most
            number = self.row
            if number is None:
                number = (gpu.ClusterIdOp if self.spread else gpu.BlockIdOp)(gpu.Dimension.x).result
            enter(forall, delinearise(number, counts, locations.variables(forall)))
        forall.erase()
        return blocks

    def _name_tiles(self, generics: list[ir.Operation]) -> None:
        for op in generics:
            names = (mlir.get_string(op, "tilec.name") or "").split(",")
            for n, value in enumerate(mlir.outputs_of(op)):
                if names[0] and is_local(value):
                    self.made_as.setdefault(root(value), names[min(n, len(names) - 1)])
                elif is_local(value) and not is_local(op.operands[0]):
                    self.made_as.setdefault(root(value), self.name_of(op.operands[0]))


def _named(op: ir.Operation) -> ir.Location:
    name = mlir.get_string(op, "tilec.name")
    return ir.Location.name(name, op.location) if name else op.location
