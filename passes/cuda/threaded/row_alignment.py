"""Where rows begin within a vector of global memory: the alignment of a kernel's unaligned rows (`unaligned.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import gcd, prod

from tilec.analysis.layout import Layout
from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import arith, ir
from tilec.kernels.attributes import Spread
from tilec.passes.cuda.memory_spaces import is_local, operand_dims, root
from tilec.passes.loops import Threads, sum_of

Terms = list[tuple[ir.Value, int]]


class RowAlignment:
    """How the rows of a kernel are aligned: by how much their begin moves within a vector along each other dimension,
    for most bytes of its operands."""

    def __init__(self, generics: list[ir.Operation], layout: Layout):
        assert layout.lane is not None
        self.layout, self.lane = layout, layout.lane
        self.width = layout.vectors[self.lane]
        found: Counter = Counter()
        for op in generics:
            for value, dims in zip(op.operands, operand_dims(op)):
                if (moves := self._moves(value, dims)) is not None:
                    found[moves] += prod(ir.MemRefType(root(value).type).shape)
                    self.length = ir.MemRefType(root(value).type).shape[-1]
        if not found:
            raise InternalError("rows are unaligned in no tensor", "map")
        self.moves = max(sorted(found), key=lambda m: found[m])

    def _moves(self, value: ir.Value, dims: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
        """By dimension, the shift of a row's begin by a step along it, modulo a vector."""
        if is_local(value) or len(dims) < 2 or dims[-1] != self.lane or self.lane in dims[:-1]:
            return None
        strides, _ = ir.MemRefType(value.type).get_strides_and_offset()
        if strides[-1] != 1 or any(s == ir.ShapedType.get_dynamic_stride_or_offset() for s in strides):
            return None
        return tuple(sorted((d, s % self.width) for d, s in zip(dims[:-1], strides) if s % self.width))

    @property
    def period(self) -> int:
        """After so many rows one begins at the same place in a vector again."""
        return self.width // gcd(self.width, *(move for _, move in self.moves))

    def follows(self, value: ir.Value, dims: Sequence[int]) -> bool:
        """Whether the rows of an operand in global memory begin so."""
        return self._moves(value, dims) == self.moves

    def least(self, spread: Spread | None) -> int:
        """Elements of a row that every block has."""
        return min(spread.part, self.length - spread.part * (spread.blocks - 1)) if spread else self.length

    def of(self, value: ir.Value, dims: Sequence[int], threads: Threads) -> ir.Value:
        """The place in its vector of the first element of this thread's row in an operand, at the insertion point."""
        terms, constant = begin(value)
        strides, _ = ir.MemRefType(value.type).get_strides_and_offset()
        terms = [*terms, *((threads.start[d], s) for d, s in zip(dims[:-1], strides) if d in threads.start)]
        if threads.misalignment is not None:  # of the vector before it, with which the unaligned rows begin
            terms.append((threads.misalignment, -1))
        terms = [(v, factor % self.width) for v, factor in terms if factor % self.width]
        return arith.andi(sum_of(terms, constant % self.width), mlir.index(self.width - 1))

    def found(self, block: ir.Block, before: ir.Operation) -> tuple[ir.Value, list[int]]:
        """An operand of `block` that begins so, whose begin is known before an operation; and its dimensions."""
        operations = [o.operation for o in block.operations]
        known = set(operations[: operations.index(before)])
        for op in [o for o in operations if mlir.is_generic(o)]:
            for value, dims in zip(op.operands, operand_dims(op)):
                if self.follows(value, dims):
                    made = [mlir.definition(v) for v, _ in begin(value)[0]]
                    if all(d is None or d in known or d.block != block for d in made):
                        return value, dims
        raise InternalError("it is not known where a row begins", "map")


def begin(value: ir.Value) -> tuple[Terms, int]:
    """Where a view begins in its memory, in elements: a sum of values with factors, and a constant."""
    terms: Terms = []
    constant = 0
    while not isinstance(value.owner, ir.Block) and value.owner.name in ("memref.subview", "memref.cast"):
        op = value.owner
        if op.name == "memref.subview":
            strides, _ = ir.MemRefType(op.operands[0].type).get_strides_and_offset()
            dynamic = list(op.operands)[1:]
            for offset, stride in zip(ir.DenseI64ArrayAttr(op.attributes["static_offsets"]), strides):
                if offset == mlir.DYNAMIC:
                    terms.append((dynamic.pop(0), stride))
                else:
                    constant += offset * stride
        value = op.operands[0]
    return terms, constant
