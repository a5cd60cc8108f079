"""stage, for the CPU: contractions and reductions of the same rows, whose intermediates stay in a core's cache.

A block has some rows. It computes each operation for all of them before the next one: scores, their reductions, weights,
and the product of the weights. Scores that a mask excludes from all of a block's rows are not computed:

    hi = min(N, last row + 1)                        // of j <= i
    generic [i, j < hi, d] { scores }; generic [i, j < hi] { max }; ...
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.analysis.products import factors_of
from tilec.core import locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.extents import Extent, emitted, known_loops, shape_of
from tilec.core.mlir import affine, arith, ir, memref
from tilec.kernels import PanelChain
from tilec.passes.cpu.operands import boxes_as_operands
from tilec.passes.cpu.panels import Contraction
from tilec.passes.cpu.weights import allocation, inline_factors, pad_output, stored_left, users
from tilec.passes.loops import sum_of
from tilec.passes.predicate_loads import guard_loads

Contract = Callable[[Contraction, ir.Value | None], None]


def stage_chain(function: ir.Operation, tiles: dict[int, int], options: PanelChain, contract: Contract) -> None:
    ops = [o for o in mlir.traverse(function) if mlir.is_generic(o)]
    extents = {d: n for o in ops for d, n in _extents(o).items()}
    given = list(mlir.entry(function).arguments)
    contractions = [_contraction(ops, options, n) for n in range(len(options.rows))]
    inline_factors(ops, contractions)
    _share_memory(ops, [c for n, c in enumerate(contractions) if options.matrix[n] and options.parts[2 * n] == 1])
    ends: dict[int, ir.Value] = {}
    for between, row, *factors in options.masks():
        (loop,) = [o for o in mlir.traverse(function) if o.name == "scf.forall"]
        block = loop.regions[0].blocks[0]
        position = sorted(tiles).index(row)
        with ir.InsertionPoint.at_block_begin(block), function.location:
            end = _end(block.arguments[position], tiles[row], emitted(extents[between], given), *factors)
            ends[between] = end if between not in ends else arith.minsi(ends[between], end)
    for between, end in ends.items():
        _cut(ops, between, locations.named(end, "end"))
    made = []
    for n, before in enumerate(contractions):
        op = boxes_as_operands(before)
        ops = [op if o is before else o for o in ops]
        guard_loads(op)
        with ir.InsertionPoint(op), op.location:
            sizes = {d: n if isinstance(n, int) else emitted(n, given) for d, n in extents.items()}
            c = Contraction(op, sizes | tiles, options.contraction(n), True)
        pad_output(c)
        made.append((c, stored_left(c, ops)))
    for c, weights in made:
        with ir.InsertionPoint(c.op), c.op.location:
            contract(c, weights)
        c.op.erase()


def _extents(op: ir.Operation) -> dict[int, Extent]:
    """Sizes of a block's operation that are the same in all blocks, by kernel dimension."""
    return {d: n for d, n in zip(mlir.get_integers(op, "tilec.dims"), known_loops(op)) if n is not None}


def _share_memory(ops: list[ir.Operation], by_unit: list[ir.Operation]) -> None:
    """Results take the place of what is read for the last time, element by element; but for factors of a matrix unit's products."""
    factors = {own for op in by_unit for v in mlir.inputs_of(op) if (own := allocation(v)) is not None}
    for n, op in enumerate(ops):
        maps, count = mlir.maps_of(op), len(mlir.inputs_of(op))
        operands = [allocation(v) for v in op.operands]
        before, later = ({allocation(v) for o in part for v in o.operands} for part in (ops[:n], ops[n + 1 :]))
        free = {k: v for k, v in enumerate(operands[:count]) if v is not None and v not in later}
        for k in range(count, len(operands)):
            out = operands[k]
            if out is None or out in before or out in factors or any(u.name == "linalg.fill" for u in users(out)):
                continue
            shape = shape_of(out)
            same_map = [f for f, v in free.items() if v.type == out.type and shape_of(v) == shape and maps[f] == maps[k]]
            if same_map and sum(v is not None and v == free[same_map[0]] for v in operands) == 1:
                made = mlir.definition(out)
                out.replace_all_uses_with(free.pop(same_map[0]))
                made.erase()


def _contraction(ops: list[ir.Operation], options: PanelChain, n: int) -> ir.Operation:
    for op in ops:
        dims = mlir.get_integers(op, "tilec.dims")
        reduced = {d for d, kind in zip(dims, mlir.iterators_of(op)) if kind == "reduction"}
        if options.number_of(dims, reduced) == n and factors_of(op) is not None:
            return op
    raise InternalError(f"the kernel has no contraction over dimension {options.inner[n]}", "stage")


def _end(block: ir.Value, tile: int, length: ir.Value, a: int, b: int, number: int) -> ir.Value:
    """Where elements j of all the block's rows i end that have a * i + b * j + number >= 0. At least one is left: a row of
    none has the result of the steps."""
    d0 = ir.AffineDimExpr.get(0)
    i = sum_of([(block, tile)], tile - 1 if a > 0 else 0)
    given = [i] if mlir.constant_value(length) is not None else [i, length]
    up = ir.AffineExpr.get_floor_div(d0 * a + number, -b) + 1
    known = mlir.constant_value(length)
    end = [up, ir.AffineDimExpr.get(1) if known is None else ir.AffineConstantExpr.get(int(known))]
    found = affine.AffineMinOp(ir.AffineMap.get(len(given), 0, end), given).result
    return affine.AffineMaxOp(ir.AffineMap.get(1, 0, [d0, ir.AffineConstantExpr.get(1)]), [found]).result


def _cut(ops: list[ir.Operation], between: int, end: ir.Value) -> None:
    """Operations see the elements before `end` only."""
    views: dict[tuple[ir.Value, int], ir.Value] = {}
    for op in ops:
        dims = mlir.get_integers(op, "tilec.dims")
        for n, (value, map_) in enumerate(zip(list(op.operands), mlir.maps_of(op))):
            found = [dims[d] for d in mlir.map_dims(map_)]
            if between in found:
                key = value, found.index(between)
                if key not in views:
                    views[key] = _view(*key, end)
                op.operands[n] = views[key]


def _view(value: ir.Value, d: int, end: ir.Value) -> ir.Value:
    type_ = ir.MemRefType(value.type)
    shape = list(type_.shape)
    strides, offset = type_.get_strides_and_offset()
    shape[d] = mlir.DYNAMIC
    made = mlir.definition(value)
    before = mlir.definition(end)
    anchor = before if made is None or made.block != before.block or made.is_before_in_block(before) else made
    with ir.InsertionPoint.after(anchor), anchor.location:
        sizes = [
            end if k == d else memref.DimOp(value, mlir.index(k)).result
            for k, n in enumerate(shape)
            if n == mlir.DYNAMIC
        ]
        part = ir.MemRefType.get(shape, type_.element_type, ir.StridedLayoutAttr.get(offset, list(strides)))
        view = memref.SubViewOp(part, value, [], sizes, [], [0] * len(shape), shape, [1] * len(shape))
    for user in [u for u in mlir.uses(value) if u.name == "linalg.fill"]:
        user.operands[1] = view.result
    return view.result


__all__ = ["stage_chain"]
