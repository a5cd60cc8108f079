"""stage, for the CPU: a contraction's tile is computed from packed panels, by a kernel that holds its sums in
registers.

    generic [m, n, k] { add; mul }   ->   for k0 in steps of k {
                                            pack the right factor's panels
                                            for each panel of rows {
                                              pack it
                                              for each panel of columns {
                                                c = mr x nr sums
                                                for p { c += left[:, p] * right[p, :] }  // vector.contract
                                                store c, or add it to what the steps before have stored } } }

A panel of rows stays in L1 while the columns' panels, which are in L2, go by: results are then written along rows, which
processors foresee. (Panels of rows that go by a panel of columns took a tenth longer.) Panels that reach beyond the block's
part leave their sums in a buffer, of which the part inside is copied.

Sources: Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (TOMS 2008); Low et al.,
"Analytical modeling is enough for high-performance BLIS" (TOMS 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tilec.core import locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import arith, ir, memref, scf, vector
from tilec.kernels import PanelChain, Panels, RegisterTranspose, planned_kernels
from tilec.passes.cpu import matrix
from tilec.passes.cpu.chain import stage_chain
from tilec.passes.cpu.packing import Block, Packing
from tilec.passes.cpu.panels import (
    Contraction,
    Evaluation,
    Side,
    Size,
    loop,
    loops,
    panel_shape,
    panel_subscripts,
    panels_of,
    rest,
)
from tilec.passes.cpu.transpose import stage_transposes
from tilec.passes.loops import sum_of
from tilec.passes.predicate_loads import guard_loads


def stage_cpu(module: ir.Operation) -> None:
    for function, planned in planned_kernels(module):
        if isinstance(planned.options, Panels):
            (op,) = [o for o in mlir.traverse(function) if mlir.is_generic(o) and "reduction" in mlir.iterators_of(o)]
            contract(op, planned.tiles, planned.options)
        elif isinstance(planned.options, PanelChain):
            stage_chain(function, planned.tiles, planned.options, contract)
        elif isinstance(planned.options, RegisterTranspose):
            for op in [o for o in mlir.traverse(function) if mlir.is_generic(o)]:
                stage_transposes(op, planned.tiles, planned.options)


def contract(op: ir.Operation, tiles: dict[int, int], options: Panels, apart: bool = False) -> None:
    """Replaces a contraction of a block by loops over panels; `tiles` are the block's sizes by kernel dimension."""
    guard_loads(mlir.body_of(op))
    with ir.InsertionPoint(op), op.location:
        _contract(Contraction(op, tiles, options, apart))
    op.erase()


def _contract(c: Contraction) -> None:
    start = _take_fill(c)
    outer, inner = (c.right, c.left) if c.columns_outer else (c.left, c.right)
    counts = {outer: 1, inner: inner.panels}
    left, right = _panels(c, c.left, counts[c.left], "left"), _panels(c, c.right, counts[c.right], "right")
    buffer, at, memory = _Buffer(c), dict[int, ir.Value](), {c.left: left, c.right: right}
    with loops(c.batch, at, c.names), _steps(c) as block:
        packing = {side: Packing(block, side, memory[side]) for side in (c.left, c.right)}
        tiny = _Tiny(c)
        packing[inner].fill_all(at)
        if c.matrix:
            with panels_of(inner, c.names) as (_, _, number):
                tiny.note(_panel(memory[inner], number))
        with panels_of(outer, c.names) as (outside, first_outer, _):
            packing[outer].fill(at | outside, first_outer, mlir.index(0))
            mine = _panel(memory[outer], mlir.index(0))
            tiny.compare(mine)
            with panels_of(inner, c.names) as (other, first_inner, number):
                panels = {outer: mine, inner: _panel(memory[inner], number)}
                sums = _sums(c, start, panels[c.left], panels[c.right], block.count, buffer, tiny)
                coordinates = at | outside | other | {outer.dims[-1]: first_outer, inner.dims[-1]: first_inner}
                _store_sums(c, sums, [coordinates[d] for d in c.operand_dims[-1]], block.first, buffer)
    if c.divisor is not None:
        _divide(c)


def _divide(c: Contraction) -> None:
    """Divides complete sums by the number of their row."""
    at: dict[int, ir.Value] = {}
    with loops(c.batch, at, c.names), loops(dict(zip(c.left.dims, c.left.sizes)), at, c.names):
        divisor = Evaluation(c, c.divisor, at).value
        with loops(dict(zip(c.right.dims, c.right.sizes)), at, c.names):
            subscripts = [at[d] for d in c.operand_dims[-1]]
            quotient = arith.divf(memref.LoadOp(c.operands[-1], subscripts).result, divisor)
            memref.StoreOp(quotient, c.operands[-1], subscripts)


@contextmanager
def _steps(c: Contraction) -> Iterator[Block]:
    """The loops over parts of k."""
    start: dict[int, ir.Value] = {}
    with ExitStack() as stack:
        for d, extent, step in zip(c.inner, c.k, c.depths):
            start[d] = stack.enter_context(loop(0, extent, step, c.names.get(d)))
        yield Block(c, start)


class _Tiny:
    """Whether factors have numbers that are too small for a matrix unit: of the inner loop's in memory, which its panels share."""

    def __init__(self, c: Contraction):
        self.matrix = c.matrix
        if self.matrix:
            word = ir.IntegerType.get_signless(16)
            self.memory = memref.AllocOp(ir.MemRefType.get([1], word), [], [], alignment=64).result
            mlir.definition(self.memory).attributes["tilec.name"] = mlir.string("smallest")
            memref.StoreOp(mlir.constant(0xFFFF, word), self.memory, [mlir.index(0)])

    def note(self, panel: ir.Value) -> None:
        if self.matrix:
            least = arith.minui(memref.LoadOp(self.memory, [mlir.index(0)]).result, matrix.smallest(panel))
            memref.StoreOp(least, self.memory, [mlir.index(0)])

    def compare(self, panel: ir.Value) -> None:
        if self.matrix:
            others = memref.LoadOp(self.memory, [mlir.index(0)]).result
            self.plain = matrix.is_plain(matrix.smallest(panel), others)


def _panels(c: Contraction, side: Side, count: int, name: str) -> ir.Value:
    type_ = ir.MemRefType.get([count, *panel_shape(c, side)], c.multiplicand)
    panels = memref.AllocOp(type_, [], [], alignment=64)
    panels.attributes["tilec.name"] = mlir.string(name)
    locations.named(panels, f"{name}_panels")
    return panels.result


def _panel(panels: ir.Value, number: ir.Value) -> ir.Value:
    _, *shape = ir.MemRefType(panels.type).shape
    return _part(panels, [number, *[0] * len(shape)], [1, *shape], list(range(1, 1 + len(shape))))


def _part(source: ir.Value, offsets: list[ir.Value | int], sizes: list[int], kept: list[int]) -> ir.Value:
    """A memref.subview of static sizes, all of stride 1, with the dimensions `kept`; the others have size 1."""
    type_ = ir.MemRefType(source.type)
    strides, start = type_.get_strides_and_offset()
    layout = ir.StridedLayoutAttr.get(
        mlir.DYNAMIC if any(o != 0 for o in offsets) else start, [strides[d] for d in kept]
    )
    part = ir.MemRefType.get([sizes[d] for d in kept], type_.element_type, layout)
    known = [o if isinstance(o, int) else mlir.DYNAMIC for o in offsets]
    dynamic = [o for o in offsets if not isinstance(o, int)]
    return memref.SubViewOp(part, source, dynamic, [], [], known, sizes, [1] * len(sizes)).result


# ---- the register kernel -----------------------------------------------------------------------------------


def _sums(
    c: Contraction, start: ir.Value, left: ir.Value, right: ir.Value, count: Size, buffer: _Buffer, tiny: _Tiny
) -> ir.Value | None:
    """`start` + left * right over `count` products, a tile of rows and columns: columns of `left` times rows of `right`. None:
    those of a matrix unit are in the buffer."""
    if c.matrix:
        branch = scf.IfOp(tiny.plain, has_else=True)
        for block, compute in ((branch.then_block, matrix.products), (branch.else_block, matrix.exact_products)):
            with ir.InsertionPoint(block):
                compute(c, start, left, right, count, buffer.memory)
                scf.YieldOp([])
        return None
    tile, column, row = (
        ir.VectorType.get(list(shape), c.element)
        for shape in ((c.left.width, c.right.width), (c.left.width, 1), (1, c.right.width))
    )
    zero = mlir.index(0)
    inner = locations.joined(c.names.get(d, "k") for d in c.inner)
    initial = vector.BroadcastOp(tile, start).result
    bound = mlir.index(count) if isinstance(count, int) else count
    k_loop = scf.ForOp(zero, bound, mlir.index(1), [initial])
    locations.named(k_loop, f"{inner}_inner", "sums")
    with ir.InsertionPoint(k_loop.body):
        p = k_loop.induction_variable
        a = vector.LoadOp(column, left, panel_subscripts(c.left, zero, p)).result
        b = vector.LoadOp(row, right, panel_subscripts(c.right, zero, p)).result
        scf.YieldOp([_product(a, b, k_loop.inner_iter_args[0])])
    return k_loop.results[0]


def _product(a: ir.Value, b: ir.Value, sums: ir.Value) -> ir.Value:
    """sums[i, j] + the sum over k of a[i, k] * b[k, j]."""
    maps = [mlir.projection(3, dims) for dims in ([0, 2], [2, 1], [0, 1])]
    kinds = [ir.Attribute.parse(f"#vector.iterator_type<{kind}>") for kind in ("parallel", "parallel", "reduction")]
    attributes = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]), ir.ArrayAttr.get(kinds)
    return vector.ContractionOp(sums.type, a, b, sums, *attributes).result


# ---- where the sums go -------------------------------------------------------------------------------------


class _Buffer:
    """Memory for one tile of sums, made before the loops where a panel may reach beyond the block's part, and for a matrix
    unit, whose sums are in no vectors."""

    def __init__(self, c: Contraction):
        self.sides = [s for s in (c.left, c.right) if not _is_whole(s)]
        self.memory: ir.Value | None = None
        if self.sides or c.matrix:
            alloc = memref.AllocOp(ir.MemRefType.get([c.left.width, c.right.width], c.element), [], [], alignment=64)
            alloc.attributes["tilec.name"] = mlir.string("edge")
            self.memory = alloc.result


def _is_whole(side: Side) -> bool:
    return isinstance(side.sizes[-1], int) and side.sizes[-1] % side.width == 0


def _store_sums(
    c: Contraction, sums: ir.Value | None, at: list[ir.Value], first: ir.Value | None, buffer: _Buffer
) -> None:
    """Stores the sums, or adds them to those of earlier steps along k."""
    out, dims = c.operands[-1], c.operand_dims[-1]
    row, column = (dims.index(side.dims[-1]) for side in (c.left, c.right))
    sizes = [1] * len(dims)
    sizes[row], sizes[column] = c.left.width, c.right.width
    zero = mlir.index(0)

    def whole(add: bool) -> None:
        corner = _part(out, list(at), sizes, [row, column])
        rows, type_ = 1, ir.VectorType.get([c.left.width, c.right.width], c.element)
        if sums is None:  # row by row: all would be too many vectors
            rows, type_ = c.left.width, ir.VectorType.get([1, c.right.width], c.element)
        with loop(0, rows, name="row") as r:
            value = vector.LoadOp(type_, buffer.memory, [r, zero]).result if sums is None else sums
            if add:
                value = arith.AddFOp(vector.LoadOp(type_, corner, [r, zero]).result, value).result
            vector.StoreOp(value, corner, [r, zero])

    def part(add: bool) -> None:
        with loop(0, inside[0], name="row") as r, loop(0, inside[1], name="column") as k:
            position = list(at)
            position[row], position[column] = sum_of([(at[row], 1), (r, 1)]), sum_of([(at[column], 1), (k, 1)])
            value = memref.LoadOp(buffer.memory, [r, k]).result
            if add:
                value = arith.AddFOp(memref.LoadOp(out, position).result, value).result
            memref.StoreOp(value, out, position)

    if not buffer.sides:
        _either(first, whole)
        return
    inside = [rest(side.sizes[-1], at[d], side.width) for side, d in ((c.left, row), (c.right, column))]
    full = None
    for side, size in zip((c.left, c.right), inside):
        if side in buffer.sides:
            width = mlir.index(side.width)
            own = arith.cmpi(arith.CmpIPredicate.eq, mlir.index(size) if isinstance(size, int) else size, width)
            full = own if full is None else arith.andi(full, own)
    branch = scf.IfOp(full, has_else=True)
    with ir.InsertionPoint(branch.then_block):
        _either(first, whole)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        if sums is not None:
            vector.StoreOp(sums, buffer.memory, [zero, zero])
        _either(first, part)
        scf.YieldOp([])


def _either(first: ir.Value | None, build: Callable[[bool], None]) -> None:
    """build(False) in the first step, build(True) in later ones."""
    if first is None:
        build(False)
        return
    branch = scf.IfOp(first, has_else=True)
    for block, add in ((branch.then_block, False), (branch.else_block, True)):
        with ir.InsertionPoint(block):
            build(add)
            scf.YieldOp([])


def _take_fill(c: Contraction) -> ir.Value:
    """The value that the output was filled with, from which the sums start instead: 0, so that each step may start from it."""
    fills = [u for u in mlir.uses(c.operands[-1]) if u.name == "linalg.fill"]
    if len(fills) != 1:
        raise InternalError(f"{mlir.get_string(c.op, 'tilec.name')} adds to sums that it does not start", "stage")
    (fill,) = fills
    value = fill.operands[0]
    fill.erase()
    return value


__all__ = ["stage_cpu"]
