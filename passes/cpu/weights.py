"""stage, for the CPU: results of a chain of contractions, in memory as the next contraction takes them.

A factor that only one contraction reads, element by element, is computed while its panels are filled (`inline_factors`). Weights
that a reduction needs, too, are stored as a matrix unit takes them (`stored_left`), and never packed:

    e, l = generic(s) { exp; add }             ->   w, l = generic(s) { exp; bf16 of exp; add }
    o = contraction(e / l, v)                       o = contraction(panels: w, v) / l

Sums go to memory that has room for whole tiles (`pad_output`).
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.extents import highest, shape_of
from tilec.core.mlir import arith, ir, memref
from tilec.passes.cpu.memory import Size, allocated
from tilec.passes.cpu.panels import STEP, Contraction, loop, round_up
from tilec.passes.cuda.memory_spaces import size_of
from tilec.passes.emit import Body
from tilec.passes.rebuild import Anew, Operand, operands_in, operands_out, rebuild

ROW_PADDING = 16  # f32 between rows of sums, so that rows whose length is a power of two do not share lines of L1
PAIR_ROW_PADDING = 32  # bf16, likewise


def allocation(value: ir.Value) -> ir.Value | None:
    """The block's memory that a value shows; None of other memory."""
    made = mlir.definition(value)
    if made is not None and made.name == "memref.subview":
        return allocation(made.operands[0])
    return value if made is not None and made.name == "memref.alloc" else None


def users(memory: ir.Value) -> list[ir.Operation]:
    """The operations on memory and on views of it."""
    found = mlir.uses(memory)
    return [*found, *(u for view in found if view.name == "memref.subview" for u in users(view.results[0]))]


def inline_factors(ops: list[ir.Operation], contractions: list[ir.Operation]) -> None:
    """Contractions compute what only they read. `ops` and `contractions` have the new operations."""
    for n, op in enumerate(contractions):
        for position, value in enumerate(mlir.inputs_of(op)):
            maker = _maker(value, ops)
            if maker is None or _readers(value, ops) != [op] or not _is_elementwise(maker):
                continue
            made = _merged(maker, op, position)
            ops[ops.index(op)] = contractions[n] = made
            ops.remove(maker)
            maker.erase()
            op.erase()
            inline_factors(ops, contractions)
            return


def _maker(value: ir.Value, ops: list[ir.Operation]) -> ir.Operation | None:
    """The operation that writes the block's memory that is read."""
    own = allocation(value)
    makers = [o for o in ops if own is not None and any(_is_in(v, own) for v in mlir.outputs_of(o))]
    return makers[0] if len(makers) == 1 else None


def _readers(value: ir.Value, ops: list[ir.Operation]) -> list[ir.Operation]:
    own = allocation(value)
    return [o for o in ops if own is not None and any(_is_in(v, own) for v in mlir.inputs_of(o))]


def _is_in(value: ir.Value, memory: ir.Value) -> bool:
    own = allocation(value)
    return own is not None and own == memory


def _is_elementwise(op: ir.Operation) -> bool:
    maps = mlir.maps_of(op)
    whole = len(mlir.outputs_of(op)) == 1 and sorted(mlir.map_dims(maps[-1])) == list(range(maps[-1].n_dims))
    body = mlir.body_of(op)
    reads_output = any(list(body.arguments)[-1] in mlir.operands_of(o.operation) for o in body.operations)
    return whole and not reads_output and "reduction" not in mlir.iterators_of(op)


def _merged(maker: ir.Operation, op: ir.Operation, position: int) -> ir.Operation:
    """`op` anew, with the expression of its input in the input's place."""
    read = operands_in(op)
    element = read.pop(position)
    own = dict(zip(operands_out(maker)[-1].dims, element.dims))
    makers = [Operand(o.value, [own[d] for d in o.dims], o.instead) for o in operands_in(maker)]

    def body(here: Anew) -> list[ir.Value]:
        made = Body(mlir.body_of(maker), index=lambda d: here.own(own[d]), known=here.known)
        (here.known[element.instead],) = made.values()
        return here.values()

    with ir.InsertionPoint(op), mlir.fused_location([maker, op]):
        return rebuild(op, operands=[*makers, *read], body=body)


# ---- weights -----------------------------------------------------------------------------------------------


def stored_left(c: Contraction, ops: list[ir.Operation]) -> ir.Value | None:
    """Memory with all panels of a left factor, [1, rows, pairs of k, 2], which the operation that computes the factor writes
    from now on. None where it does not compute it element by element, or others read it, too; or where it takes several numbers,
    which have more bytes than the factor: those are packed a few at a time, in L1."""
    body, factor = c.body, c.left.factor
    made = mlir.definition(factor)
    if made is not None and made.name == "arith.truncf":
        factor = made.operands[0]
    if not c.matrix or c.left.parts > 1 or factor not in list(body.arguments) or str(factor.type) != "f32":
        return None
    number = list(body.arguments).index(factor)
    value, dims = c.operands[number], c.operand_dims[number]
    maker, shape = _maker(value, ops), ir.MemRefType(value.type).shape
    own = allocation(value)
    if own is None or maker is None or _readers(value, ops) != [c.op] or len(c.inner) > 1 or len(c.left.dims) > 1:
        return None
    row, inner = (dims.index(d) for d in (c.left.dims[0], c.inner[0]))
    first = len(mlir.inputs_of(maker))
    out = next(n for n, v in enumerate(maker.operands) if n >= first and _is_in(v, own))
    its = mlir.map_dims(mlir.maps_of(maker)[out])
    if any(n != 1 for d, n in enumerate(shape) if d not in (row, inner)) or len(its) != mlir.maps_of(maker)[out].n_dims:
        return None
    room = [highest(n) for n in shape_of(own)]
    steps = -(-room[inner] // c.depths[0])
    rows, columns = round_up(room[row], c.left.width), (steps - 1) * c.depths[0] + c.depth
    with ir.InsertionPoint(maker), maker.location:
        panels = allocated([1, rows, (columns + PAIR_ROW_PADDING) // 2, 2], c.multiplicand, "weights")
        lines = ir.MemRefType.get([1, rows, columns + PAIR_ROW_PADDING], c.multiplicand)
        flat = memref.CollapseShapeOp(lines, panels.result, [[0], [1], [2, 3]]).result
        sizes = [size_of(maker.operands[out], d) for d in (row, inner)]
        new = _written(maker, out, _rows(flat, sizes), [its[row], its[inner]])
    ops[ops.index(maker)] = new
    maker.erase()
    with ir.InsertionPoint.after(new), new.location:
        _fill_edges(flat, sizes, rows)
    return panels.result


def _rows(flat: ir.Value, sizes: list[Size]) -> ir.Value:
    """The elements that are computed."""
    strides, _ = ir.MemRefType(flat.type).get_strides_and_offset()
    static = [n if isinstance(n, int) else mlir.DYNAMIC for n in sizes]
    type_ = ir.MemRefType.get(static, ir.MemRefType(flat.type).element_type, ir.StridedLayoutAttr.get(0, strides[1:]))
    dynamic = [n for n in sizes if isinstance(n, ir.Value)]
    return memref.SubViewOp(type_, flat, [], dynamic, [], [0, 0, 0], [1, *static], [1, 1, 1]).result


def _written(op: ir.Operation, out: int, view: ir.Value, dims: list[int]) -> ir.Operation:
    """`op` anew, with a result rounded to the view's type, and stored there."""
    outputs, number = operands_out(op), out - len(mlir.inputs_of(op))
    outputs[number] = Operand(view, dims, outputs[number].instead)

    def body(here: Anew) -> list[ir.Value]:
        results = here.values()
        results[number] = arith.truncf(ir.MemRefType(view.type).element_type, results[number])
        return results

    return rebuild(op, outputs=outputs, body=body)


def _fill_edges(flat: ir.Value, sizes: list[Size], rows: int) -> None:
    """Zeros behind the elements, up to a whole step of the matrix unit, and in the rows behind them."""
    used, columns = sizes
    end, zero = round_up(columns, STEP), mlir.constant(0, ir.MemRefType(flat.type).element_type)
    for low, high, first, last in ((0, used, columns, end), (used, rows, 0, end)):
        if any(isinstance(a, int) and isinstance(b, int) and a >= b for a, b in ((low, high), (first, last))):
            continue
        with loop(low, high, name="row") as r, loop(first, last, name="k_inner") as k:
            memref.StoreOp(zero, flat, [mlir.index(0), r, k])


# ---- sums --------------------------------------------------------------------------------------------------


def pad_output(c: Contraction) -> None:
    """Gives sums that stay in the block's memory room for whole tiles."""
    old, dims = allocation(c.operands[-1]), c.operand_dims[-1]
    if old is None or any(len(side.dims) > 1 for side in (c.left, c.right)):
        return
    row, column = (dims.index(side.dims[-1]) for side in (c.left, c.right))
    shape = list(ir.MemRefType(old.type).shape)
    if column != len(shape) - 1 or any(n != 1 for d, n in enumerate(shape) if d not in (row, column)):
        return
    whole = [highest(n) for n in shape_of(old)]
    whole[row] = round_up(whole[row], c.left.width)
    whole[column] = round_up(whole[column], c.right.width) + ROW_PADDING
    made = mlir.definition(old)
    with ir.InsertionPoint(made), made.location:
        new = memref.AllocOp(ir.MemRefType.get(whole, c.element), [], [], alignment=64)
        for name in set(made.attributes) - {"operandSegmentSizes"}:
            new.attributes[name] = made.attributes[name]
        strides, _ = ir.MemRefType(new.result.type).get_strides_and_offset()
        type_ = ir.MemRefType.get(shape, c.element, ir.StridedLayoutAttr.get(0, strides))
        view = memref.SubViewOp(type_, new.result, [], list(made.operands), [], [0] * len(shape), shape, [1] * len(shape)).result
    _replace(old, view, strides)
    made.erase()
    c.operands[-1], c.padded = new.result, True


def _replace(old: ir.Value, new: ir.Value, strides: list[int]) -> None:
    """Views of `old` become views of `new`, whose elements are `strides` apart; they begin where it begins."""
    for user in list(mlir.uses(old)):
        if user.name != "memref.subview":
            for n, value in enumerate(user.operands):
                if value == old:
                    user.operands[n] = new
            continue
        result = ir.MemRefType(user.results[0].type)
        offset = result.get_strides_and_offset()[1]
        type_ = ir.MemRefType.get(result.shape, result.element_type, ir.StridedLayoutAttr.get(offset, strides))
        with ir.InsertionPoint(user), user.location:
            parts = [list(ir.DenseI64ArrayAttr(user.attributes[f"static_{n}"])) for n in ("offsets", "sizes", "strides")]
            dynamic = list(user.operands)[1:]
            count = sum(n == mlir.DYNAMIC for n in parts[0])
            made = memref.SubViewOp(type_, new, dynamic[:count], dynamic[count:], [], *parts).result
        _replace(user.results[0], made, strides)
        user.erase()


__all__ = ["allocation", "inline_factors", "pad_output", "stored_left", "users"]
