"""map, for the CPU: positions of a reduction that are chosen by comparisons are 32 bits wide while it runs, if its indices fit.

    position: i64 = for j iter(best, position) { take = x[j] > best | ...; select(take, j, position) }
      ->   short: i32 = for j iter(best, short) { take = ...; select(take, i32(j), short) };   position = i64(short)

A vector then has as many positions as numbers of f32, and is stored once for each of them. The largest i32 stands for the largest
i64, which is the position of no element.
"""

from __future__ import annotations

from tilec.core import locations, mlir
from tilec.core.extents import at_most, known_loops
from tilec.core.mlir import arith, ir, linalg, memref
from tilec.passes.cpu.lanes import Lanes
from tilec.passes.rebuild import Anew, Operand, operands_out, rebuild

MOST = {32: 2**31 - 1, 64: 2**63 - 1}
TAKEN = {"arith.select", "arith.cmpi"}


def narrow_positions(op: ir.Operation) -> None:
    """Replaces the reduction, where it has such positions."""
    block, outs = mlir.body_of(op), operands_out(op)
    if "reduction" not in mlir.iterators_of(op) or not (wide := _wide(op, block)) or Lanes.of(op) is None:
        return
    results = mlir.operands_of(list(block.operations)[-1].operation)[-len(outs) :]
    positions = {n: out for n, out in enumerate(outs) if out.instead in wide and results[n] in wide}
    room = {n: [_room(op, d) for d in out.dims] for n, out in positions.items()}
    whole = all(None not in sizes for sizes in room.values()) and all(_is_filled(out.value) for out in positions.values())
    if not positions or not whole or {v for v in wide if v in block.arguments} != {out.instead for out in positions.values()}:
        return
    word = ir.IntegerType.get_signless(32)
    with ir.InsertionPoint(op), op.location:
        for n, out in positions.items():
            memory = _like(out.value, [size or 0 for size in room[n]], word)
            linalg.fill(mlir.constant(MOST[32], word), outs=[memory])
            outs[n] = out.of(memory)
        rebuild(op, outputs=outs, body=lambda here: _narrowed(here, block, wide))
        for n, out in positions.items():
            _store(op, outs[n], out)
    op.erase()


def _wide(op: ir.Operation, block: ir.Block) -> set[ir.Value]:
    """Indices as i64, states that hold such, and what is chosen of them; none if anything else is computed of what is no index."""
    extents, found = known_loops(op), set[ir.Value]()
    states = list(block.arguments)[len(mlir.inputs_of(op)) :]
    found |= {v for v in states if str(v.type) == "i64"}
    for view in block.operations:
        made = view.operation
        if made.name == "arith.index_cast" and str(made.results[0].type) == "i64":
            index = mlir.definition(made.operands[0])
            if index is not None and index.name == "linalg.index":
                extent = extents[mlir.index_dim(index)]
                found |= {made.results[0]} if extent is not None and at_most(extent, MOST[32] - 1) else set()
        elif made.name == "arith.select" and {*list(made.operands)[1:]} <= found:
            found.add(made.results[0])
    for value in (v for v in found if not _is_index(v)):
        for user in mlir.uses(value):
            others = [v for v in user.operands if v.type == value.type]
            if user.name != "linalg.yield" and not (user.name in TAKEN and {*others} <= found):
                return set()
    return found


def _is_index(value: ir.Value) -> bool:
    made = mlir.definition(value)
    return made is not None and made.name == "arith.index_cast"


def _room(op: ir.Operation, d: int) -> int | None:
    """The most indices of a dimension that a block has."""
    found = None
    for value, map_ in zip(op.operands, mlir.maps_of(op)):
        dims = mlir.map_dims(map_)
        if d not in dims:
            continue
        size, made = ir.MemRefType(value.type).shape[dims.index(d)], mlir.definition(value)
        if size != mlir.DYNAMIC:
            return int(size)
        if made is not None and made.name == "memref.subview":  # the used part of a tile at the edge of the grid
            before = mlir.definition(made.operands[0])
            shape = ir.MemRefType(made.operands[0].type).shape
            if before is not None and before.name == "memref.alloc" and len(shape) == len(dims):
                found = int(shape[dims.index(d)])
    return found


def _is_filled(value: ir.Value) -> bool:
    """Whether it begins with the position of no element."""
    fills = [u for u in mlir.uses(value) if u.name == "linalg.fill"]
    return len(fills) == 1 and mlir.constant_value(fills[0].operands[0]) == MOST[64]


def _like(value: ir.Value, room: list[int], element: ir.Type) -> ir.Value:
    """Memory of the block for as many elements as another has."""
    made = memref.AllocOp(ir.MemRefType.get(room, element), [], [], alignment=64)
    locations.named(made, "position")
    shape = ir.MemRefType(value.type).shape
    if list(shape) == room:
        return made.result
    sizes = [memref.DimOp(value, mlir.index(d)).result for d, n in enumerate(shape) if n == mlir.DYNAMIC]
    strides, _ = ir.MemRefType(made.result.type).get_strides_and_offset()
    type_ = ir.MemRefType.get(list(shape), element, ir.StridedLayoutAttr.get(0, strides))
    return memref.SubViewOp(type_, made.result, [], sizes, [], [0] * len(room), list(shape), [1] * len(room)).result


def _narrowed(here: Anew, block: ir.Block, wide: set[ir.Value]) -> list[ir.Value]:
    indices = dict[ir.Value, ir.Value]()

    def short(value: ir.Value) -> ir.Value:
        if value not in wide or not _is_index(value):
            return here.value(value)
        if value not in indices:
            (index,) = mlir.definition(value).operands
            indices[value] = arith.index_cast(ir.IntegerType.get_signless(32), here.value(index))
        return indices[value]

    for view in block.operations:
        op = view.operation
        own = [v for v in op.operands if v in wide and not _is_index(v)]
        if op.name == "arith.select" and op.results[0] in wide:
            here.known[op.results[0]] = arith.select(*map(short, op.operands))
        elif op.name == "arith.cmpi" and own:
            here.known[op.results[0]] = arith.cmpi(op.attributes["predicate"], *map(short, op.operands))
    return here.values()


def _store(op: ir.Operation, short: Operand, position: Operand) -> None:
    """The positions as they are declared."""
    rank, dims = len(position.dims), mlir.get_integers(op, "tilec.dims")
    maps = [mlir.projection(rank, list(range(rank)))] * 2
    made, block = mlir.generic([], [short.value], [position.value], maps, ["parallel"] * rank)
    made.operation.attributes["tilec.dims"] = mlir.integers(dims[d] for d in position.dims)
    with ir.InsertionPoint(block):
        own, before = block.arguments
        none = arith.cmpi(arith.CmpIPredicate.eq, own, mlir.constant(MOST[32], own.type))
        linalg.YieldOp([arith.select(none, before, arith.extsi(before.type, own))])


__all__ = ["narrow_positions"]
