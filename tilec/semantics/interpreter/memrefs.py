"""`memref` and the loads and stores of `vector`."""

from __future__ import annotations

from math import prod

import numpy as np

from tilec.core import mlir
from tilec.core.mlir import arith, ir
from tilec.semantics.interpreter.clusters import cluster_memory, is_clusters, is_mbarrier, mbarriers
from tilec.semantics.interpreter.code import Code, Index, Mask, Step, Values, dtype_of, operation, shape_of
from tilec.semantics.interpreter.faults import Fault, Unsupported
from tilec.semantics.interpreter.flight import Threads, is_mapped
from tilec.semantics.interpreter.memory import Buffer, View, filled, read, write
from tilec.semantics.interpreter.threads import workgroup_memory


@operation("memref.alloc", "memref.alloca")
def _allocate(code: Code, op: ir.Operation) -> Step:
    (r,) = code.results(op)
    type_ = ir.MemRefType(op.results[0].type)
    shape, dtype, name = shape_of(type_), dtype_of(type_), mlir.get_string(op, "tilec.name") or _name(op)
    sizes = code.operands(op)
    if is_mapped(code.function):
        if "workgroup" in str(type_.memory_space or "") and sizes:
            return workgroup_memory(code, op, dtype, name, sizes)
        if sizes:
            raise Unsupported(op, "a size that is not static")
        if is_clusters(type_):
            return cluster_memory(code, op, name)
        if is_mbarrier(op.results[0]):
            return mbarriers(code, op)
        if "workgroup" in str(type_.memory_space or ""):
            return workgroup_memory(code, op, dtype, name, sizes)

    def step(values: Values, mask: Mask) -> None:
        context = values[0]
        if context.lanes is None:
            whole = filled(shape, [values[s] for s in sizes])
            values[r] = View.whole(Buffer.empty(prod(whole), dtype, name), whole)
            return
        buffer = Buffer(
            np.zeros((context.lanes, prod(shape)), dtype), np.zeros((context.lanes, prod(shape)), np.bool_), name
        )
        buffer.row_of, buffer.private = np.arange(context.lanes), True
        values[r] = View.whole(buffer, shape)

    return step


def _name(op: ir.Operation) -> str:
    named = op.location
    return named.name_str if isinstance(named, ir.NameLoc) else op.results[0].get_name()


@operation("memref.dealloc", "memref.assume_alignment", "memref.cast", "tensor.cast")
def _same(code: Code, op: ir.Operation) -> Step | None:
    if not len(op.results):
        return None
    (source,), (r,) = code.operands(op), code.results(op)

    def step(values: Values, mask: Mask) -> None:
        values[r] = values[source]

    return step


@operation("memref.load", "tensor.extract")
def _load(code: Code, op: ir.Operation) -> Step:
    (source, *subscripts), (r,) = code.operands(op), code.results(op)

    def step(values: Values, mask: Mask) -> None:
        view: View = values[source]
        offset = view.offset_of([values[s] for s in subscripts], op, values[0], mask)
        values[r] = read(view, offset, op, values[0], mask)

    return step


@operation("memref.store")
def _store(code: Code, op: ir.Operation) -> Step:
    value, target, *subscripts = code.operands(op)

    def step(values: Values, mask: Mask) -> None:
        view: View = values[target]
        offset = view.offset_of([values[s] for s in subscripts], op, values[0], mask)
        write(view, offset, values[value], op, values[0], mask)

    return step


@operation("memref.atomic_rmw")
def _atomic(code: Code, op: ir.Operation) -> Step:
    """To assign a word, or to read it (to or it with 0). Atomic accesses race with nothing; with fences they order others."""
    value, target, *subscripts = code.operands(op)
    (r,), kind = code.results(op), ir.IntegerAttr(op.attributes["kind"]).value
    if kind not in (arith.AtomicRMWKind.assign, arith.AtomicRMWKind.ori):
        raise Unsupported(op, "this update")

    def step(values: Values, mask: Mask) -> None:
        view: View = values[target]
        offset = view.offset_of([values[s] for s in subscripts], op, values[0], mask)
        buffer = view.buffer
        guard, buffer.guard = buffer.guard, None
        try:
            old = values[r] = read(view, offset, op, values[0], mask)
            new = old | values[value] if kind == arith.AtomicRMWKind.ori else values[value]
            if kind == arith.AtomicRMWKind.assign or np.any(values[value]):
                write(view, offset, new, op, values[0], mask)
        finally:
            buffer.guard = guard
        if values[0].lanes is not None:
            _publish(buffer, offset, values[0], mask, kind == arith.AtomicRMWKind.assign)

    return step


def _publish(buffer: Buffer, offset: Index, context: Threads, mask: Mask, assigned: bool) -> None:
    """What words bring from a block that assigns them to one that reads them."""
    lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
    offsets = np.broadcast_to(np.asarray(offset), context.lanes)[lanes]
    rows, threads, clocks = context.row_of[lanes], context.thread_of[lanes], context.clocks
    for n, at in zip(*np.unique(offsets, return_index=True)):
        if assigned:
            cluster = int(context.block_of[lanes[at]]) // context.kernel.cluster
            buffer.published[int(n)] = clocks.publish(rows[at], threads[at], cluster)
        elif (published := buffer.published.get(int(n))) is not None:
            clocks.seen.append((rows[offsets == n], threads[offsets == n], published))


@operation("memref.copy")
def _copy(code: Code, op: ir.Operation) -> Step:
    """All elements, and which of them have been written."""
    source, target = code.operands(op)

    def step(values: Values, mask: Mask) -> None:
        if values[0].lanes is not None:
            raise Unsupported(op, "by threads")
        one, other = values[source], values[target]
        if one.static_shape() != other.static_shape():
            raise Fault("outside", op, f"shape {one.static_shape()} is copied to {other.static_shape()}")
        offsets, written = other.offsets(), one.written().reshape(-1)
        write(other, offsets, one.array().reshape(-1), op, values[0], None)
        if other.buffer.written is not None:
            other.buffer.written[offsets] = written

    return step


# ---- vectors ---------------------------------------------------------------------------------------------------------


class _Vector:
    """Where the elements of a vector lie: it runs along the last dimensions of a view."""

    def __init__(self, op: ir.Operation, type_: ir.Type):
        self.op, self.shape = op, tuple(ir.VectorType(type_).shape)
        self.bytes = prod(self.shape) * dtype_of(type_).itemsize
        self.count = prod(self.shape)

    def offsets(self, view: View, subscripts: list, values: Values, mask: Mask) -> np.ndarray:
        context = values[0]
        start = view.offset_of(subscripts, self.op, context, mask, self.shape)
        if context.lanes is not None and not view.buffer.private:
            self._aligned(view, np.asarray(start), context, mask)
        offsets = np.zeros(1, np.int64)
        for extent, stride in zip(self.shape, view.strides[-len(self.shape) :]):
            offsets = (offsets[:, None] + stride * np.arange(extent)).reshape(-1)
        return (start + offsets) if context.lanes is None else np.reshape(start, (-1, 1)) + offsets

    def _aligned(self, view: View, start: np.ndarray, context: Threads, mask: Mask) -> None:
        """A GPU moves up to 16 bytes at once, from a multiple of as many."""
        at = start * view.buffer.data.dtype.itemsize + view.buffer.start
        wrong = np.broadcast_to(at % min(self.bytes, 16) != 0, context.lanes)
        wrong = wrong if mask is None else wrong & mask
        if wrong.any():
            what = f"a vector of {self.bytes} bytes at byte {int(np.broadcast_to(at, context.lanes)[wrong][0])}"
            raise Fault("misaligned", self.op, what, context.names(np.flatnonzero(wrong)))


@operation("vector.load")
def _load_vector(code: Code, op: ir.Operation) -> Step:
    (source, *subscripts), (r,) = code.operands(op), code.results(op)
    vector = _Vector(op, op.results[0].type)

    def step(values: Values, mask: Mask) -> None:
        view: View = values[source]
        offsets = vector.offsets(view, [values[s] for s in subscripts], values, mask)
        found = read(view, offsets, op, values[0], mask)
        values[r] = found.reshape(found.shape[:-1] + vector.shape)

    return step


@operation("vector.store")
def _store_vector(code: Code, op: ir.Operation) -> Step:
    value, target, *subscripts = code.operands(op)
    vector = _Vector(op, op.operands[0].type)

    def step(values: Values, mask: Mask) -> None:
        view: View = values[target]
        offsets = vector.offsets(view, [values[s] for s in subscripts], values, mask)
        given = values[value]
        flat = given.reshape(*given.shape[: given.ndim - len(vector.shape)], vector.count)
        write(view, offsets, flat, op, values[0], mask)

    return step


@operation("vector.broadcast", "vector.splat")
def _broadcast(code: Code, op: ir.Operation) -> Step:
    (source,), (r,) = code.operands(op), code.results(op)
    shape = tuple(ir.VectorType(op.results[0].type).shape)
    if isinstance(op.operands[0].type, ir.VectorType):
        raise Unsupported(op, "of a vector")

    def step(values: Values, mask: Mask) -> None:
        value = np.asarray(values[source])
        if values[0].lanes is not None:
            value = value.reshape(-1)
        values[r] = np.broadcast_to(value.reshape(value.shape + (1,) * len(shape)), value.shape + shape)

    return step


@operation("vector.shape_cast")
def _reshape(code: Code, op: ir.Operation) -> Step:
    (source,), (r,) = code.operands(op), code.results(op)
    old, new = (tuple(ir.VectorType(v.type).shape) for v in (op.operands[0], op.results[0]))

    def step(values: Values, mask: Mask) -> None:
        value = values[source]
        values[r] = value.reshape(*value.shape[: value.ndim - len(old)], *new)

    return step


@operation("vector.transpose")
def _transpose(code: Code, op: ir.Operation) -> Step:
    (source,), (r,) = code.operands(op), code.results(op)
    order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))

    def step(values: Values, mask: Mask) -> None:
        value = values[source]
        lead = value.ndim - len(order)
        values[r] = value.transpose(*range(lead), *(lead + d for d in order))

    return step


@operation("vector.interleave")
def _interleave(code: Code, op: ir.Operation) -> Step:
    (a, b), (r,) = code.operands(op), code.results(op)

    def step(values: Values, mask: Mask) -> None:
        pairs = np.stack([values[a], values[b]], -1)
        values[r] = pairs.reshape(*pairs.shape[:-2], -1)

    return step


@operation("vector.bitcast")
def _bitcast(code: Code, op: ir.Operation) -> Step:
    (source,), (r,) = code.operands(op), code.results(op)
    *_, shape = ir.VectorType(op.results[0].type).shape
    dtype = dtype_of(op.results[0].type)

    def step(values: Values, mask: Mask) -> None:
        value = np.ascontiguousarray(values[source]).view(dtype)
        values[r] = value.reshape(*value.shape[:-1], shape)

    return step


@operation("vector.extract")
def _extract(code: Code, op: ir.Operation) -> Step:
    (source,), (r,) = code.operands(op), code.results(op)
    (position,) = ir.DenseI64ArrayAttr(op.attributes["static_position"])

    def step(values: Values, mask: Mask) -> None:
        values[r] = values[source][..., position]

    return step
