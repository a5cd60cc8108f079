"""stage, for the CPU: a contraction's tile is computed from packed panels, by a kernel that holds its sums in
registers.

    generic [m, n, k] { add; mul }   ->   for k0 in steps of k {
                                            pack the right factor's panels, then the left one's
                                            for each panel of columns, for each panel of rows {
                                              c = mr x nr sums, loaded from the tile
                                              for p { b = load right[p]; c += left[p, i] * b }  // vector.fma
                                              store c } }

A panel of columns stays in L1 while the rows' panels, which are in L2, go by. The tile of sums is the output
itself, or scratch: where the tile may be no whole number of panels, with room up to the next whole one.

Sources: Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (TOMS 2008); Low et al.,
"Analytical modeling is enough for high-performance BLIS" (TOMS 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tilec.core import locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir, linalg, memref, scf, vector
from tilec.kernels import Panels, RegisterTranspose, planned_kernels
from tilec.passes.cpu.panels import Block, Contraction, Packing, Side, loop, loops, panels_of
from tilec.passes.cpu.transpose import stage_transposes
from tilec.passes.predicate_loads import guard_loads


def stage_cpu(module: ir.Operation) -> None:
    for function, planned in planned_kernels(module):
        if isinstance(planned.options, Panels):
            (op,) = [o for o in mlir.traverse(function) if mlir.is_generic(o) and "reduction" in mlir.iterators_of(o)]
            guard_loads(mlir.body_of(op))
            with ir.InsertionPoint(op), op.location:
                _contract(Contraction(op, planned.tiles, planned.options))
            op.erase()
        elif isinstance(planned.options, RegisterTranspose):
            for op in [o for o in mlir.traverse(function) if mlir.is_generic(o)]:
                stage_transposes(op, planned.tiles, planned.options)


def _contract(c: Contraction) -> None:
    tile, store_sums = _tile_of_sums(c)
    locations.named(tile, "sums")
    left, right = (_panels(c, side, name) for side, name in ((c.left, "left"), (c.right, "right")))
    at: dict[int, ir.Value] = {}
    with loops(c.batch, at, c.names), _steps(c) as block:
        Packing(block, c.right, right).fill(at)
        Packing(block, c.left, left).fill(at)
        with (
            panels_of(c.right, c.names) as (columns, first_column, j),
            panels_of(c.left, c.names) as (rows, first_row, i),
        ):
            coordinates = at | rows | columns | {c.left.dims[-1]: first_row, c.right.dims[-1]: first_column}
            _registers(c, _corner(c, tile, coordinates), _panel(left, i), _panel(right, j), block.count)
    store_sums()


@contextmanager
def _steps(c: Contraction) -> Iterator[Block]:
    """The loops over parts of k."""
    start: dict[int, ir.Value] = {}
    with ExitStack() as stack:
        for d, extent, step in zip(c.inner, c.k, c.depths):
            start[d] = stack.enter_context(loop(0, extent, step, c.names.get(d)))
        yield Block(c, start)


def _panels(c: Contraction, side: Side, name: str) -> ir.Value:
    type_ = ir.MemRefType.get([side.panels, c.depth, side.width], c.element)
    panels = memref.AllocOp(type_, [], [], alignment=64)
    panels.attributes["tilec.name"] = mlir.string(name)
    locations.named(panels, f"{name}_panels")
    return panels.result


def _panel(panels: ir.Value, number: ir.Value) -> ir.Value:
    _, depth, width = ir.MemRefType(panels.type).shape
    return _view(panels, [number, 0, 0], [1, depth, width])


def _corner(c: Contraction, tile: ir.Value, coordinates: dict[int, ir.Value]) -> ir.Value:
    """The part of the tile that one pass of the register kernel computes."""
    width = {c.left.dims[-1]: c.left.width, c.right.dims[-1]: c.right.width}
    return _view(tile, [coordinates[d] for d in c.operand_dims[-1]], [width.get(d, 1) for d in c.operand_dims[-1]])


def _view(source: ir.Value, offsets: list[ir.Value | int], sizes: list[int]) -> ir.Value:
    """A memref.subview of static sizes, all of stride 1."""
    strides, start = ir.MemRefType(source.type).get_strides_and_offset()
    layout = ir.StridedLayoutAttr.get(mlir.DYNAMIC if any(o != 0 for o in offsets) else start, list(strides))
    type_ = ir.MemRefType.get(sizes, ir.MemRefType(source.type).element_type, layout)
    known = [o if isinstance(o, int) else mlir.DYNAMIC for o in offsets]
    dynamic = [o for o in offsets if not isinstance(o, int)]
    return memref.SubViewOp(type_, source, dynamic, [], [], known, sizes, [1] * len(sizes)).result


# ---- the register kernel -----------------------------------------------------------------------------------


def _registers(c: Contraction, tile: ir.Value, left: ir.Value, right: ir.Value, count: ir.Value) -> None:
    """tile += left * right over `count` products. The sums are loop variables, vectors along columns."""
    mr, vectors = c.left.width, c.right.width // c.lanes
    type_ = ir.VectorType.get([c.lanes], c.element)
    at = [(i, j) for i in range(mr) for j in range(vectors)]
    steps = [{c.left.dims[-1]: i, c.right.dims[-1]: j * c.lanes} for i, j in at]
    corners = [[mlir.index(step.get(d, 0)) for d in c.operand_dims[-1]] for step in steps]
    sums = [vector.LoadOp(type_, tile, corner).result for corner in corners]
    bound = mlir.index(count) if isinstance(count, int) else count
    zero = mlir.index(0)
    inner = locations.joined(c.names.get(d, "k") for d in c.inner)
    k_loop = scf.ForOp(zero, bound, mlir.index(1), sums)
    locations.named(k_loop, f"{inner}_inner")
    with ir.InsertionPoint(k_loop.body):
        p = k_loop.induction_variable
        b = [vector.LoadOp(type_, right, [zero, p, mlir.index(j * c.lanes)]).result for j in range(vectors)]
        new, column = [], _view(left, [0, p, 0], [1, 1, mr])
        for i in range(mr):
            x = vector.BroadcastOp(type_, memref.LoadOp(column, [zero, zero, mlir.index(i)]).result).result
            new += [vector.FMAOp(x, b[j], k_loop.inner_iter_args[i * vectors + j]).result for j in range(vectors)]
        scf.YieldOp(new)
    for value, corner in zip(k_loop.results, corners):
        vector.StoreOp(value, tile, corner)


# ---- where the sums are ------------------------------------------------------------------------------------


def _tile_of_sums(c: Contraction) -> tuple[ir.Value, Callable[[], None]]:
    """Initialised memory for whole panels of sums, and the operations that follow when they are complete."""
    out = c.operands[-1]
    shape = [_whole(c, d, n) for d, n in zip(c.operand_dims[-1], _shape(c, out))]
    owner = mlir.definition(out)
    if owner is not None and owner.name == "memref.subview" and _is_alloc(owner.operands[0]):
        out = owner.operands[0]
    if _fits(c, out, shape):
        if out != c.operands[-1]:
            _take_fill(c, out)
        return out, lambda: None
    tile = _named_alloc(shape, c)
    if _is_alloc(out):
        _take_fill(c, tile)
        _move(out, tile)
        return tile, lambda: None
    _take_fill(c, tile)
    return tile, lambda: _copy_out(c, tile)


def _shape(c: Contraction, out: ir.Value) -> list[int]:
    """The output's part of a whole block."""
    box = dict(zip((*c.left.dims, *c.right.dims), (*c.left.box, *c.right.box)))
    return [box.get(d, n) for d, n in zip(c.operand_dims[-1], ir.MemRefType(out.type).shape)]


def _whole(c: Contraction, d: int, size: int) -> int:
    width = {c.left.dims[-1]: c.left.width, c.right.dims[-1]: c.right.width}.get(d, 1)
    return -(-size // width) * width


def _fits(c: Contraction, out: ir.Value, shape: list[int]) -> bool:
    """Whether the register kernel may write whole panels into `out`: it has room, columns are contiguous."""
    type_ = ir.MemRefType(out.type)
    strides, _ = type_.get_strides_and_offset()
    return list(type_.shape) == shape and strides[c.operand_dims[-1].index(c.right.dims[-1])] == 1


def _is_alloc(value: ir.Value) -> bool:
    owner = mlir.definition(value)
    return owner is not None and owner.name == "memref.alloc"


def _named_alloc(shape: list[int], c: Contraction) -> ir.Value:
    alloc = memref.AllocOp(ir.MemRefType.get(shape, c.element), [], [], alignment=64)
    alloc.attributes["tilec.name"] = c.op.attributes["tilec.name"]
    return alloc.result


def _move(old: ir.Value, tile: ir.Value) -> None:
    """Uses of a block's intermediate go to one of more room; their views of it keep their size."""
    mlir.definition(tile).move_before(mlir.definition(old))
    with ir.InsertionPoint(mlir.definition(old)):
        shape = ir.MemRefType(old.type).shape
        whole = _view(tile, [0] * len(shape), list(shape))
    for user in mlir.uses(old):
        if user.name == "memref.subview":
            _review(user, tile)
    old.replace_all_uses_with(whole)
    mlir.definition(old).erase()


def _review(view: ir.Operation, source: ir.Value) -> None:
    """The same subview, of another memory."""
    strides, _ = ir.MemRefType(source.type).get_strides_and_offset()
    old = ir.MemRefType(view.results[0].type)
    type_ = ir.MemRefType.get(list(old.shape), old.element_type, ir.StridedLayoutAttr.get(0, list(strides)))
    with ir.InsertionPoint(view), view.location:
        operands = [source, *list(view.operands)[1:]]
        attributes = {key: view.attributes[key] for key in view.attributes}
        new = ir.Operation.create("memref.subview", results=[type_], operands=operands, attributes=attributes)
    view.results[0].replace_all_uses_with(new.results[0])
    view.erase()


def _take_fill(c: Contraction, tile: ir.Value) -> None:
    """The value that the output was filled with goes to the tile instead: to whole panels, since the register kernel adds to the
    lanes beyond the output's end, too."""
    fills = [u for u in mlir.uses(c.operands[-1]) if u.name == "linalg.fill"]
    if len(fills) != 1:
        raise InternalError(f"{mlir.get_string(c.op, 'tilec.name')} adds to sums that it does not start", "stage")
    linalg.fill(fills[0].operands[0], outs=[tile])
    fills[0].erase()


def _copy_out(c: Contraction, tile: ir.Value) -> None:
    out = c.operands[-1]
    sizes = list(ir.MemRefType(out.type).shape)
    strides, _ = ir.MemRefType(tile.type).get_strides_and_offset()
    type_ = ir.MemRefType.get(sizes, c.element, ir.StridedLayoutAttr.get(0, list(strides)))
    dynamic = [memref.DimOp(out, mlir.index(n)).result for n, s in enumerate(sizes) if s == mlir.DYNAMIC]
    part = memref.SubViewOp(type_, tile, [], dynamic, [], [0] * len(sizes), sizes, [1] * len(sizes)).result
    memref.CopyOp(part, out)


__all__ = ["stage_cpu"]
