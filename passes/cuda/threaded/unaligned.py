"""Unaligned rows, for CUDA: rows that begin in the middle of a vector are read by whole aligned vectors.

    for chunk, step, lane { x1 = load x[row, chunk + step + lane] }      // single elements: rows of odd length
    ->
    misalignment = row * N mod 8
    for chunk, step { x1 = vector.load flat[row * N + chunk + step - misalignment] }
    for chunk, step, lane { where 0 <= chunk + step + lane - misalignment < N }

A thread's coordinates are those of vectors in memory. The index of an element is its coordinate minus the row's shift (0
to 7 elements). The first and the last vector of a row also hold elements of neighbouring rows. These elements are read
and not used; stores into such a vector are stores of single elements. A tensor begins at a vector. If it ends inside a
vector, only its own elements are read.

Operands whose rows begin at other places, such as a gain by column, are put together from two vectors; by persistent blocks once
for many rows, in shared memory (`persistent_rows.py`).
"""

# mypy: no-strict-optional
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from functools import partial
from itertools import pairwise, product
from math import prod

from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref, vector
from tilec.passes.cuda.memory_spaces import is_half, is_local, root
from tilec.passes.cuda.threaded.context import OperationContext
from tilec.passes.cuda.threaded.row_alignment import begin
from tilec.passes.loops import EDGE, INNER, TOUCHED, WHOLE, Position, loop, sum_of, when


def flat(value: ir.Value) -> ir.Value:
    """The memory of a view under one subscript."""
    memory = root(value)
    rank = ir.MemRefType(memory.type).rank
    if rank == 1:
        return memory
    type_ = ir.MemRefType(memory.type)
    groups = ir.ArrayAttr.get(
        [ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IntegerType.get_signless(64), d) for d in range(rank)])]
    )
    made = ir.MemRefType.get([prod(type_.shape)], type_.element_type, None, type_.memory_space)
    return memref.CollapseShapeOp(made, memory, groups).result


def uncut(value: ir.Value) -> ir.Value:
    """A tile of the block's with all its places, of which `value` may be the part that a row has elements for."""
    owner = mlir.definition(value)
    if (
        owner is not None
        and owner.name == "memref.subview"
        and not any(ir.DenseI64ArrayAttr(owner.attributes["static_offsets"]))
    ):
        return owner.operands[0]
    return value


def flat_index(value: ir.Value, dims: tuple[int, ...], position: Position, lane: int = 0) -> ir.Value:
    """The subscript of an element in `flat`."""
    terms, constant = begin(value)
    strides, _ = ir.MemRefType(value.type).get_strides_and_offset()
    terms = [*terms, *((position.coordinate(d), s) for d, s in zip(dims[:-1], strides))]
    return sum_of([*terms, (position.coordinate(dims[-1], lane), 1)], constant)


def fetch(generic: OperationContext, value: ir.Value, dims: tuple[int, ...], tile: ir.Value) -> None:
    """This thread's part of an operand along unaligned rows, into registers."""
    threads, width = generic.threads, generic.access(value)
    pieces = range(0, generic.layout.vectors[dims[-1]], width)
    type_ = ir.VectorType.get([width], ir.MemRefType(value.type).element_type)
    if root(value) in generic.kernel.vector_buffers:  # in whole vectors already
        whole = uncut(value)
        for part in threads.parts(dims, TOUCHED):
            with threads.slots(dims, generic.chunk, generic.sizes, lanes=False, part=part) as position:
                for lane in pieces:
                    at = [*position.coordinates(dims[:-1]), sum_of([(position.bases[dims[-1]], 1)], lane)]
                    vector.StoreOp(vector.LoadOp(type_, whole, at).result, tile, position.slot(dims, lane))
        return
    if not generic.kernel.alignment.follows(value, dims):
        scattered = dims[-1] != generic.layout.lane_dim or _is_scattered(value, dims)
        return (_fetch_elements if scattered else _fetch_anywhere)(generic, value, dims, tile)
    memory = flat(value)
    if root(value) in generic.kernel.written:
        return _fetch_own(generic, value, dims, tile, memory, type_)
    total = ir.MemRefType(memory.type).shape[0]
    cut = total % generic.layout.vectors[dims[-1]] > 0  # the last vector is not all there
    parts = threads.parts(dims, TOUCHED)
    for part, lane in product(parts, pieces):
        here = partial(ends_before, value, dims, lane, total - width, True) if cut and part.kind != INNER else None
        with threads.slots(dims, generic.chunk, generic.sizes, lanes=False, part=part, where=here) as position:
            first = flat_index(value, dims, position, lane)
            vector.StoreOp(vector.LoadOp(type_, memory, [first]).result, tile, position.slot(dims, lane))
    for part, lane in product([p for p in parts if cut and p.kind != INNER], pieces):
        here = partial(ends_before, value, dims, lane, total - width, False)
        with threads.slots(dims, generic.chunk, generic.sizes, lanes=False, part=part, where=here) as position:
            first, slot = flat_index(value, dims, position, lane), partial(position.slot, dims)
            load_rest(memory, first, width, tile, lambda n, lane=lane, slot=slot: slot(lane + n))


def _fetch_own(
    generic: OperationContext, value: ir.Value, dims: tuple[int, ...], tile: ir.Value, memory, type_
) -> None:
    """Memory that the kernel has written: other blocks may be writing the elements beside the row."""
    width = generic.access(value)
    for part in generic.threads.parts(dims, WHOLE, EDGE):
        edge = part.kind == EDGE
        with generic.threads.slots(dims, generic.chunk, generic.sizes, lanes=edge, part=part) as position:
            for lane in () if edge else range(0, generic.layout.vectors[dims[-1]], width):
                at = flat_index(value, dims, position, lane)
                vector.StoreOp(vector.LoadOp(type_, memory, [at]).result, tile, position.slot(dims, lane))
            if edge:
                memref.StoreOp(memref.LoadOp(value, position.coordinates(dims)).result, tile, position.slot(dims))


def _is_scattered(value: ir.Value, dims: tuple[int, ...]) -> bool:
    """Whether neighbours along the rows do not lie side by side in global memory."""
    strides, _ = ir.MemRefType(value.type).get_strides_and_offset()
    return is_local(value) or len(set(dims)) < len(dims) or strides[-1] != 1


def _fetch_anywhere(generic: OperationContext, value: ir.Value, dims: tuple[int, ...], tile: ir.Value) -> None:
    """Neighbours that begin within a vector: of two vectors, the elements from the place on at which the first wanted
    one is; halved by every bit of that place. Floats of 16 bits move in words of two, the last bit shifts those."""
    kernel, threads, width = generic.kernel, generic.threads, generic.access(value)
    vectors, element = generic.layout.vectors[dims[-1]], ir.MemRefType(value.type).element_type
    memory, first = flat(value), kernel.alignment.of(value, dims, threads)
    type_ = ir.VectorType.get([width], element)
    two = kernel.registers(2 * vectors, element, kernel.name_of(value) or "%two")
    each = 2 if is_half(value) and min(width, vectors) > 1 else 1  # elements of a move
    if each > 1:
        two.owner.attributes["tilec.halves"] = tile.owner.attributes["tilec.halves"] = ir.UnitAttr.get()
    odd = []  # whether the place has a bit, the highest first
    for bit in (1 << n for n in reversed(range(each.bit_length() - 1, vectors.bit_length() - 1))):
        odd.append((bit, arith.cmpi(arith.CmpIPredicate.ne, arith.andi(first, mlir.index(bit)), mlir.index(0))))
    for part in threads.parts(dims, TOUCHED):
        with threads.slots(dims, generic.chunk, generic.sizes, lanes=False, part=part) as position:
            begins = arith.subi(flat_index(value, dims, position), first)
            for lane in range(0, 2 * vectors, width):
                at, slot = sum_of([(begins, 1)], lane), partial(_slot, lane)
                # where the first element is within the row, the next vector may not be
                if part.kind == INNER and lane < vectors:
                    vector.StoreOp(vector.LoadOp(type_, memory, [at]).result, two, slot(0))
                else:
                    _load_within(memory, at, width, two, slot)
            read = _word if each > 1 else lambda memory, n: memref.LoadOp(memory, [mlir.index(n)]).result
            found = [read(two, n) for n in range(0, 2 * vectors, each)]
            for bit, has in odd:
                step = bit // each
                found = [arith.select(has, found[n + step], found[n]) for n in range(len(found) - step)]
            if each > 1:
                found = _funnel_shift(found, first)
            for n, moved in zip(range(0, vectors, each), found):
                if each > 1:
                    wide = vector.BroadcastOp(ir.VectorType.get([1], moved.type), moved).result
                    wide = vector.BitCastOp(ir.VectorType.get([each], element), wide).result
                    vector.StoreOp(wide, tile, position.slot(dims, n))
                else:
                    memref.StoreOp(moved, tile, position.slot(dims, n))


def realign(generic: OperationContext) -> None:
    """A copy of an operand to shared memory, where this thread's vectors have the elements beside those of the row's vectors."""
    (value, target), dims, threads = generic.operands, generic.operand_dims[0], generic.threads
    width, target, d = generic.access(value), uncut(target), dims[-1]
    type_ = ir.VectorType.get([width], ir.MemRefType(value.type).element_type)
    for low, high, inner in threads.ranges(d):
        threads.inner = inner
        with loop(high - low, rolled=inner, start=low, name=threads.name(d, "chunk")) as generic.chunk[d]:
            tile = generic.fetch(value, dims)
            for part in threads.parts(dims, TOUCHED):
                with threads.slots(dims, generic.chunk, generic.sizes, lanes=False, part=part) as position:
                    for lane in range(0, generic.layout.vectors[d], width):
                        at = [*position.coordinates(dims[:-1]), sum_of([(position.bases[d], 1)], lane)]
                        vector.StoreOp(vector.LoadOp(type_, tile, position.slot(dims, lane)).result, target, at)
        del generic.chunk[d]
    threads.inner = False


def _word(two: ir.Value, n: int) -> ir.Value:
    """Two elements of 16 bits, the first in the lower half."""
    pair = vector.LoadOp(ir.VectorType.get([2], ir.MemRefType(two.type).element_type), two, [mlir.index(n)]).result
    word = ir.IntegerType.get_signless(32)
    return vector.ExtractOp(vector.BitCastOp(ir.VectorType.get([1], word), pair).result, [], [0]).result


def _funnel_shift(words: list[ir.Value], first: ir.Value) -> list[ir.Value]:
    """Words from the first element on where that is odd: the upper half of each and the lower half of the next."""
    word, wide = words[0].type, ir.IntegerType.get_signless(64)
    bits = arith.shli(arith.andi(first, mlir.index(1)), mlir.index(4))
    bits = arith.index_cast(wide, bits)
    made = []
    for low, high in pairwise(words):
        both = arith.ori(arith.extui(wide, low), arith.shli(arith.extui(wide, high), mlir.constant(32, wide)))
        made.append(arith.trunci(word, arith.shrui(both, bits)))
    return made


def _slot(lane: int, n: int) -> list[ir.Value]:
    return [mlir.index(lane + n)]


def _load_within(memory: ir.Value, at: ir.Value, width: int, tile: ir.Value, slot) -> None:
    """A vector, or its part inside the memory, and zeros."""
    type_ = ir.MemRefType(memory.type)
    (total,), element = type_.shape, type_.element_type
    for n in range(width):
        memref.StoreOp(mlir.constant(0, element), tile, slot(n))
    begins = arith.cmpi(arith.CmpIPredicate.sge, at, mlir.index(0))
    with when(arith.andi(begins, arith.cmpi(arith.CmpIPredicate.sle, at, mlir.index(total - width)))):
        vector.StoreOp(vector.LoadOp(ir.VectorType.get([width], element), memory, [at]).result, tile, slot(0))
    if total % width:
        with when(arith.cmpi(arith.CmpIPredicate.sgt, at, mlir.index(total - width))):
            load_rest(memory, at, width, tile, slot)


def _fetch_elements(generic: OperationContext, value: ir.Value, dims: tuple[int, ...], tile: ir.Value) -> None:
    """Operands that begin at other places are loaded element by element; lanes beside the row load the nearest element."""
    lane = generic.layout.lane_dim
    size = generic.sizes[lane]
    for part in generic.threads.parts(dims, TOUCHED):
        with generic.threads.slots(dims, generic.chunk, generic.sizes, lanes=True, part=part) as position:
            at = position.coordinates(dims)
            if part.kind != INNER:
                last = sum_of([(size, 1)], -1) if isinstance(size, ir.Value) else mlir.index(size - 1)
                for n, d in enumerate(dims):
                    at[n] = arith.minsi(arith.maxsi(at[n], mlir.index(0)), last) if d == lane else at[n]
            memref.StoreOp(memref.LoadOp(value, at).result, tile, position.slot(dims))


def ends_before(value: ir.Value, dims, lane: int, last: int, inside: bool, position: Position) -> ir.Value:
    """Whether a piece of a vector begins at `last` or before; or the opposite."""
    predicate = arith.CmpIPredicate.sle if inside else arith.CmpIPredicate.sgt
    return arith.cmpi(predicate, flat_index(value, dims, position, lane), mlir.index(last))


def load_rest(memory: ir.Value, at: ir.Value, width: int, tile: ir.Value, slot, narrow: bool = False) -> None:
    """The part inside the memory of a vector that begins at `at`, and zeros; `narrow`: by elements."""
    type_ = ir.MemRefType(memory.type)
    (total,), element = type_.shape, type_.element_type
    for n in range(width):
        memref.StoreOp(mlir.constant(0, element), tile, slot(n))
    if total % width:
        with when(arith.cmpi(arith.CmpIPredicate.slt, at, mlir.index(total))) as branch:
            branch.attributes["tilec.branch"] = ir.UnitAttr.get()  # a predicated load leaves zeros
            done = 0
            while done < total % width:
                size = 1 if narrow else 1 << (total % width - done).bit_length() - 1
                there = sum_of([(at, 1)], done)
                if size > 1:
                    piece = vector.LoadOp(ir.VectorType.get([size], element), memory, [there]).result
                    vector.StoreOp(piece, tile, slot(done))
                else:
                    memref.StoreOp(memref.LoadOp(memory, [there]).result, tile, slot(done))
                done += size


def store(generic: OperationContext, n: int, owner: ir.Value | None) -> None:
    """This thread's part of a result along unaligned rows: vectors within the row, elements at its ends."""
    value, dims, tile, threads = generic.operands[n], generic.operand_dims[n], generic.tiles[n], generic.threads
    width, follows = generic.access(value), generic.kernel.alignment.follows(value, dims)
    type_ = ir.VectorType.get([width], ir.MemRefType(value.type).element_type)
    memory = flat(value) if follows else None
    for part in threads.parts(dims, WHOLE, EDGE):
        wide = follows and part.kind != EDGE
        with threads.slots(dims, generic.chunk, generic.sizes, lanes=not wide, owner=owner, part=part) as position:
            for lane in range(0, generic.layout.vectors[dims[-1]] if wide else 1, width):
                if wide:
                    piece = vector.LoadOp(type_, tile, position.slot(dims, lane)).result
                    vector.StoreOp(piece, memory, [flat_index(value, dims, position, lane)])
                else:
                    memref.StoreOp(memref.LoadOp(tile, position.slot(dims)).result, value, position.coordinates(dims))
