"""stage, for CUDA: hoists gathers. Values that operations after a reduction read at computed subscripts are loaded before it.

    generic max ins(x) outs(m)                      t1 = alloc;  generic copy ins(t) outs(t1)
    generic ins(m, t) outs(y) {                     g = alloc;   generic ins(t1) outs(g) { yield load x[b, t1] }
      yield m - load x[b, t] }               ->     generic max ins(x) outs(m)
                                                    generic ins(m, t1, g) outs(y) { yield m - g }

At the end of a block no other load is in flight, and a load at a loaded subscript waits twice. Beside the loads of a row
the two loads cost nothing. Loads are hoisted where a thread has one element of such an operation, so that few registers
are held during the reduction.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.analysis.layout import Layout
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.passes.cuda.memory_spaces import is_local, operand_dims, root
from tilec.passes.rebuild import Operand, added, operands_in, rebuild

Operations = list[ir.Operation]


def hoist_gathers(
    function: ir.Operation, layout: Layout, front: bool, make_tile: Callable, make_copy: Callable
) -> None:
    """Hoists the loads. `front`: to the beginning of the block, where rows were prefetched long ago. Else right before the
    first reduction, after the loads of the row's resident elements."""
    generics = [op for op in mlir.traverse(function) if mlir.is_generic(op)]
    written = {root(v) for op in generics for v in mlir.outputs_of(op)}
    first = next((op for op in generics if _reduced_dims(op)), None)
    reduced = {d for op in generics for d in _reduced_dims(op)}
    if first is None:
        return
    for op in generics[generics.index(first) + 1 :]:
        dims = mlir.get_integers(op, "tilec.dims")
        if reduced & {*dims} or layout.slots(dims) != 1 or not layout.whole(dims) or op.block != first.block:
            continue
        known = [not is_local(v) and root(v) not in written for v in mlir.inputs_of(op)]
        loads = [o.operation for o in mlir.body_of(op).operations if _is_hoistable(o.operation, op, known, written)]
        whole = _of_all_dims(op)
        if not loads or whole is None:
            continue
        start = next(o.operation for o in first.block.operations if o.operation.name.startswith("linalg."))
        inputs = list(mlir.inputs_of(op))
        for value in (*inputs, whole):
            _move_up(value, start)
        for n, own_dims in enumerate(operand_dims(op)[: len(inputs)]):
            if known[n]:
                with ir.InsertionPoint(start), op.location:
                    tile = make_tile(inputs[n], own_dims, layout)
                    make_copy(inputs[n], tile, own_dims, None)
                inputs[n] = tile
        with ir.InsertionPoint(start if front else first), op.location:
            tiles = [make_tile(whole, dims, layout, element=load.results[0].type) for load in loads]
            for load, tile in zip(loads, tiles):
                _gather(load, op, inputs, known, tile)
        _replace(op, inputs, tiles, loads)


def _reduced_dims(op: ir.Operation) -> set[int]:
    """The dimensions that an operation reduces."""
    kinds = zip(mlir.get_integers(op, "tilec.dims"), mlir.iterators_of(op))
    return {d for d, kind in kinds if kind == "reduction"}


def _is_hoistable(load: ir.Operation, op: ir.Operation, known: list[bool], written: set[ir.Value]) -> bool:
    """Whether a load of the body depends on nothing that this kernel computes."""
    if load.name != "memref.load" or is_local(load.operands[0]) or root(load.operands[0]) in written:
        return False
    arguments = list(mlir.body_of(op).arguments)
    needed = [load, *_subscripts(load)]
    read = {arguments.index(v) for o in needed for v in mlir.operands_of(o) if v in arguments}
    return all(n < len(known) and known[n] for n in read) and not any(len(o.regions) for o in needed)


def _subscripts(load: ir.Operation) -> Operations:
    """The operations that a load's subscripts are made by, in order."""
    needed = {o for index in list(load.operands)[1:] for o in mlir.slice_of(load.block, index)}
    return [o.operation for o in load.block.operations if o.operation in needed]


def _of_all_dims(op: ir.Operation) -> ir.Value | None:
    """A result that has all of the operation's dimensions, in order."""
    rank, maps = len(mlir.iterators_of(op)), mlir.maps_of(op)[len(mlir.inputs_of(op)) :]
    return next((v for v, m in zip(mlir.outputs_of(op), maps) if mlir.map_dims(m) == list(range(rank))), None)


def _move_up(value: ir.Value, start: ir.Operation) -> None:
    """Moves the operations that make a view to before `start`, if they stand behind it."""
    block = start.block
    later = [o.operation for o in block.operations]
    later = later[later.index(start) :]
    for made in mlir.slice_of(block, value) if root(value) != value else ():
        if made in later:
            made.move_before(start)


def _gather(load: ir.Operation, op: ir.Operation, inputs: list[ir.Value], known: list[bool], tile: ir.Value) -> None:
    """An operation that loads into `tile`."""
    rank = len(mlir.iterators_of(op))
    given = [o.of(v) for o, v, k in zip(operands_in(op), inputs, known) if k]
    made = rebuild(
        op, operands=given, outputs=[added(tile, range(rank))], iterators=["parallel"] * rank, name="",
        body=lambda here: [here.value(load.results[0])],
    )  # fmt: skip
    made.attributes["tilec.dims"] = op.attributes["tilec.dims"]


def _replace(op: ir.Operation, inputs: list[ir.Value], tiles: list[ir.Value], loads: Operations) -> None:
    """`op` with `inputs`, and `tiles` as further ones, which stand for the loads."""
    given = [o.of(v) for o, v in zip(operands_in(op), inputs)]
    every = [Operand(tile, range(len(mlir.iterators_of(op))), load.results[0]) for tile, load in zip(tiles, loads)]
    with ir.InsertionPoint(op), op.location:
        rebuild(op, operands=[*given, *every])
    op.erase()
