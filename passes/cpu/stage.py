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
part leave their sums in a buffer, of which the part inside is copied. A matrix unit needs aligned memory: its sums go through the
buffer, or, of several steps along k, stay in memory of the block until they are complete (`_all_sums`).

Sources: Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (TOMS 2008); Low et al.,
"Analytical modeling is enough for high-performance BLIS" (TOMS 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from math import prod

from tilec.core import locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import arith, ir, memref, scf, vector
from tilec.cost.panels import CACHED_SUMS
from tilec.kernels import PanelChain, Panels, RegisterTranspose, planned_kernels
from tilec.passes.cpu import matrix
from tilec.passes.cpu.chain import stage_chain
from tilec.passes.cpu.memory import Size, allocated
from tilec.passes.cpu.operands import boxes_as_operands
from tilec.passes.cpu.packing import SQUARE, Block, Packing
from tilec.passes.cpu.panels import (
    Contraction,
    Evaluation,
    Side,
    box_of,
    loop,
    loops,
    most,
    panel_element,
    panel_shape,
    panel_subscripts,
    panels_of,
    part_of,
    quotient,
    rest,
)
from tilec.passes.cpu.transpose import stage_transposes, transpose_plane
from tilec.passes.cpu.weights import users
from tilec.passes.loops import sum_of
from tilec.passes.predicate_loads import guard_loads


def stage_cpu(module: ir.Operation) -> None:
    for function, planned in planned_kernels(module):
        if isinstance(planned.options, Panels):
            (op,) = [o for o in mlir.traverse(function) if mlir.is_generic(o) and "reduction" in mlir.iterators_of(o)]
            contract(op, planned.tiles, planned.options)
        elif isinstance(planned.options, PanelChain):
            stage_chain(function, planned.tiles, planned.options, contract_panels)
        elif isinstance(planned.options, RegisterTranspose):
            for op in [o for o in mlir.traverse(function) if mlir.is_generic(o)]:
                stage_transposes(op, planned.tiles, planned.options)


def contract(op: ir.Operation, tiles: dict[int, int], options: Panels) -> None:
    """Replaces a contraction of a block by loops over panels; `tiles` are the block's sizes by kernel dimension."""
    op = boxes_as_operands(op)
    guard_loads(op)
    with ir.InsertionPoint(op), op.location:
        contract_panels(Contraction(op, tiles, options))
    op.erase()


def contract_panels(c: Contraction, weights: ir.Value | None = None) -> None:
    """Loops over panels, at the current place. `weights`: the panels of the left factor, where they are stored already."""
    start = _take_fill(c)
    outer = c.right if c.columns_outer else c.left
    memory: dict[Side, ir.Value] = {}
    for side, name in ((c.left, "left"), (c.right, "right")):
        if side is c.right or weights is None:
            memory[side] = _panels(c, side, 1 if side is outer else side.panels, name)
    buffer, at, sums = _Buffer(c), dict[int, ir.Value](), None
    if c.matrix and c.padded and _is_long(c):
        mlir.fill(start, c.operands[-1])
    with loops(c.batch, at, c.names):
        if c.matrix and not c.padded and _is_long(c):
            sums = _all_sums(c, start)
        _all_steps(c, start, at, memory, weights, buffer, sums)
        if sums is not None:
            _store_all(c, sums, at, buffer)
    if c.divisor is not None:
        _divide(c)


def _all_steps(
    c: Contraction, start: ir.Value, at: dict[int, ir.Value], memory: dict[Side, ir.Value], weights: ir.Value | None,
    buffer: _Buffer, sums: ir.Value | None,
) -> None:  # fmt: skip
    outer, inner = (c.right, c.left) if c.columns_outer else (c.left, c.right)
    with _steps(c) as block:
        packing = {side: Packing(block, side, panels) for side, panels in memory.items()}
        tiny = _Tiny(c)

        def panel(side: Side, first: ir.Value, number: ir.Value) -> ir.Value:
            if side in memory:
                return part_of(memory[side], number)
            (k,) = c.inner
            assert weights is not None, "what is not packed here"
            return box_of(weights, [0, first, quotient(block.start[k], 2), 0], [1, *panel_shape(c, side)], [1, 2, 3])

        if inner in packing:
            packing[inner].fill_all(at)
        if c.matrix:
            with panels_of(inner, c.names) as (_, first_inner, number):
                tiny.note(panel(inner, first_inner, number), block.count, inner is c.left)
        with panels_of(outer, c.names) as (outside, first_outer, outer_number):
            if outer in packing:
                packing[outer].fill(at | outside, first_outer, mlir.index(0))
            mine = panel(outer, first_outer, mlir.index(0))
            tiny.compare(c, mine, block.count)
            with panels_of(inner, c.names) as (other, first_inner, number):
                panels = {outer: mine, inner: panel(inner, first_inner, number)}
                coordinates = at | outside | other | {outer.dims[-1]: first_outer, inner.dims[-1]: first_inner}
                output = _OutputTile(c, [coordinates[d] for d in c.operand_dims[-1]])
                tiny.at = {outer: (at | outside, first_outer), inner: (at | other, first_inner)}
                if sums is not None:
                    numbers = {outer: outer_number, inner: number}
                    own = part_of(part_of(sums, numbers[c.left]), numbers[c.right])
                    _multiply_by_unit(c, None, panels[c.left], panels[c.right], block, own, tiny)
                else:
                    _tile(c, start, panels[c.left], panels[c.right], block, output, buffer, tiny)


def _all_sums(c: Contraction, start: ir.Value) -> ir.Value | None:
    """Memory for all tiles of a block, whose sums several steps add to; None where they are too many for a core's cache."""
    counts = [c.left.panels, c.right.panels]
    if prod(map(most, counts)) * c.left.width * c.right.width > CACHED_SUMS:
        return None
    alloc = allocated([*counts, c.left.width, c.right.width], c.element, "sums")
    mlir.fill(start, alloc.result)
    return alloc.result


def _store_all(c: Contraction, sums: ir.Value, at: dict[int, ir.Value], buffer: _Buffer) -> None:
    """Copies the tiles to the output."""
    with panels_of(c.left, c.names) as (outside, first, row), panels_of(c.right, c.names) as (other, begin, column):
        coordinates = at | outside | other | {c.left.dims[-1]: first, c.right.dims[-1]: begin}
        output = _OutputTile(c, [coordinates[d] for d in c.operand_dims[-1]])
        buffer.memory = part_of(part_of(sums, row), column)
        _store_sums(c, None, output, None, buffer)


def _is_long(c: Contraction) -> bool:
    """Whether there may be several steps along k."""
    return any(not isinstance(n, int) or n > depth for n, depth in zip(c.k, c.depths))


def _tile(
    c: Contraction, start: ir.Value, left: ir.Value, right: ir.Value, block: Block, output: _OutputTile, buffer: _Buffer,
    tiny: _Tiny,
) -> None:  # fmt: skip
    """One tile of sums, and where they go."""
    numbers, sums = (c, start, left, right, block.count), None
    if c.matrix and c.padded:  # which begins with zeros where it is several steps
        begin = start if block.first is None else None
        _multiply_by_unit(c, begin, left, right, block, output.corner, tiny)
        return
    if c.matrix:
        assert buffer.memory is not None
        _multiply_by_unit(c, start, left, right, block, buffer.memory, tiny)
    else:
        sums = _sums(*numbers)
    _store_sums(c, sums, output, block.first, buffer)


def _divide(c: Contraction) -> None:
    """Divides complete sums by the number of their row."""
    assert c.divisor is not None
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
    """Whether factors have numbers that a matrix unit must not multiply (`matrix.code`): of the inner loop's in memory, which its
    panels share."""

    def __init__(self, c: Contraction):
        self.matrix, self.parts = c.matrix, c.in_parts
        if self.matrix:
            word = ir.IntegerType.get_signless(16)
            self.memory = allocated([1], word, "smallest").result
            memref.StoreOp(mlir.constant(0xFFFF, word), self.memory, [mlir.index(0)])
            self.wide = matrix.Widened(c)
            self.at: dict[Side, tuple[dict[int, ir.Value], ir.Value]] = {}

    def widen(self, c: Contraction, block: Block, left: ir.Value, right: ir.Value) -> None:
        """Fills panels of f32 with what two panels have. Parts have not all bits of a tiny number: it is computed again."""
        plain = c.of_vectors()
        repeated = Block(plain, block.start)
        for side, own, panel, wide in (
            (c.left, plain.left, left, self.wide.left), (c.right, plain.right, right, self.wide.right)
        ):  # fmt: skip
            if side.parts > 1:
                Packing(repeated, own, wide).fill(*self.at[side], mlir.index(0))
            else:
                matrix.widen(c, panel, block.count, part_of(wide, 0), side is c.left)

    def note(self, panel: ir.Value, count: Size, is_left: bool) -> None:
        if self.matrix:
            own = matrix.code(panel, self.parts, count, is_left)
            memref.StoreOp(arith.minui(memref.LoadOp(self.memory, [mlir.index(0)]).result, own), self.memory, [mlir.index(0)])

    def compare(self, c: Contraction, panel: ir.Value, count: Size) -> None:
        """With the panel of the outer loop."""
        if self.matrix:
            others = memref.LoadOp(self.memory, [mlir.index(0)]).result
            own = matrix.code(panel, self.parts, count, is_left=not c.columns_outer)
            self.plain = matrix.is_plain(c, *((others, own) if c.columns_outer else (own, others)))


def _panels(c: Contraction, side: Side, count: Size, name: str) -> ir.Value:
    panels = allocated([count, *panel_shape(c, side)], panel_element(c, side), name)
    locations.named(panels, f"{name}_panels")
    return panels.result


# ---- the register kernel -----------------------------------------------------------------------------------


def _sums(c: Contraction, start: ir.Value, left: ir.Value, right: ir.Value, count: Size) -> ir.Value:
    """`start` + left * right over `count` products, a tile of rows and columns: columns of `left` times rows of `right`."""
    tile, column, row = (
        ir.VectorType.get(list(shape), c.element)
        for shape in ((c.left.width, c.right.width), (c.left.width, 1), (1, c.right.width))
    )
    zero = mlir.index(0)
    inner = locations.joined(c.names.get(d, "k") for d in c.inner)
    initial = vector.BroadcastOp(tile, start).result
    bound = mlir.index(count)
    k_loop = scf.ForOp(zero, bound, mlir.index(1), [initial])
    locations.named(k_loop, f"{inner}_inner", "sums")
    with ir.InsertionPoint(k_loop.body):
        p = k_loop.induction_variable
        a = vector.LoadOp(column, left, panel_subscripts(c.left, zero, p)).result
        b = vector.LoadOp(row, right, panel_subscripts(c.right, zero, p)).result
        scf.YieldOp([matrix.product_of_vectors(a, b, k_loop.inner_iter_args[0])])
    return k_loop.results[0]


# ---- where the sums go -------------------------------------------------------------------------------------


class _Buffer:
    """Memory for one tile of sums, made before the loops where a panel may reach beyond the block's part, and for a matrix
    unit, whose sums are in no vectors."""

    def __init__(self, c: Contraction):
        self.across = is_across(c)
        self.sides = [] if c.padded else [s for s in (c.left, c.right) if not _is_whole(s)]
        self.memory: ir.Value | None = None
        if self.sides or c.matrix or self.across:
            self.memory = allocated([c.left.width, c.right.width], c.element, "edge").result
        if self.across:
            self.transposed = allocated([c.right.width, c.left.width], c.element, "transposed").result


def is_across(c: Contraction) -> bool:
    """Whether vectors of sums lie across the result in memory, not along it."""
    strides, _ = ir.MemRefType(c.operands[-1].type).get_strides_and_offset()
    return bool(strides[c.operand_dims[-1].index(c.right.dims[-1])] != 1) and not c.padded


def _is_whole(side: Side) -> bool:
    return isinstance(side.sizes[-1], int) and side.sizes[-1] % side.width == 0


class _OutputTile:
    """The tile of the output at `at`."""

    def __init__(self, c: Contraction, at: list[ir.Value]):
        self.c, self.at, self.out, dims = c, at, c.operands[-1], c.operand_dims[-1]
        self.row, self.column = (dims.index(side.dims[-1]) for side in (c.left, c.right))

    @property
    def corner(self) -> ir.Value:
        """The whole tile in memory."""
        sizes = [1] * len(self.at)
        sizes[self.row], sizes[self.column] = self.c.left.width, self.c.right.width
        return box_of(self.out, list(self.at), sizes, [self.row, self.column])

    @property
    def inside(self) -> list[Size]:
        """The rows and columns of it that the output has."""
        sides = ((self.c.left, self.row), (self.c.right, self.column))
        return [rest(side.sizes[-1], self.at[d], side.width) for side, d in sides]

    def is_full(self, sides: list[Side]) -> ir.Value:
        """Whether the output has all of it. `sides`: those along which it may not, one at least."""

        def own(side: Side, size: Size) -> ir.Value:
            width = mlir.index(side.width)
            return arith.cmpi(arith.CmpIPredicate.eq, mlir.index(size), width)

        return reduce(arith.andi, (own(s, n) for s, n in zip((self.c.left, self.c.right), self.inside) if s in sides))

    def store_part(self, buffer: ir.Value, add: bool) -> None:
        """Stores, or adds, what the output has of the tile in the buffer, which lies as the output does."""
        bounds = [(size, name) for size, name in zip(self.inside, ("row", "column"))]
        across = is_across(self.c)
        (outer, first), (inner, second) = bounds[::-1] if across else bounds
        with loop(0, outer, name=first) as a, loop(0, inner, name=second) as b:
            r, k = (b, a) if across else (a, b)
            position = list(self.at)
            position[self.row] = sum_of([(self.at[self.row], 1), (r, 1)])
            position[self.column] = sum_of([(self.at[self.column], 1), (k, 1)])
            value = memref.LoadOp(buffer, [a, b]).result
            if add:
                value = arith.AddFOp(memref.LoadOp(self.out, position).result, value).result
            memref.StoreOp(value, self.out, position)


def _store_sums(c: Contraction, sums: ir.Value | None, output: _OutputTile, first: ir.Value | None, buffer: _Buffer) -> None:
    """Stores the sums, or adds them to those of earlier steps along k. None: those of a matrix unit are in the buffer."""
    zero, memory = mlir.index(0), buffer.memory

    def whole(add: bool) -> None:
        corner, rows, type_ = output.corner, 1, ir.VectorType.get([c.left.width, c.right.width], c.element)
        if sums is None:  # row by row: all would be too many vectors
            rows, type_ = c.left.width, ir.VectorType.get([1, c.right.width], c.element)
        with loop(0, rows, name="row") as r:
            value = sums
            if value is None:
                assert memory is not None
                value = vector.LoadOp(type_, memory, [r, zero]).result
            if add:
                value = arith.AddFOp(vector.LoadOp(type_, corner, [r, zero]).result, value).result
            vector.StoreOp(value, corner, [r, zero])

    if not buffer.across and not buffer.sides:
        _either(first, whole)
        return
    assert memory is not None
    if buffer.across:
        if sums is not None:
            vector.StoreOp(sums, memory, [zero, zero])
        transpose_plane(memory, buffer.transposed, c.left.width, c.right.width, min(SQUARE, c.lanes))
        _either(first, lambda add: output.store_part(buffer.transposed, add))
        return
    branch = scf.IfOp(output.is_full(buffer.sides), has_else=True)
    with ir.InsertionPoint(branch.then_block):
        _either(first, whole)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        if sums is not None:
            vector.StoreOp(sums, memory, [zero, zero])
        _either(first, lambda add: output.store_part(memory, add))
        scf.YieldOp([])


def _multiply_by_unit(
    c: Contraction, start: ir.Value | None, left: ir.Value, right: ir.Value, block: Block, out: ir.Value, tiny: _Tiny
) -> None:
    """Puts a tile's sums into aligned memory: a matrix unit takes thrice as long for lines that it has to put together."""
    branch = scf.IfOp(tiny.plain, has_else=True)
    with ir.InsertionPoint(branch.then_block):
        matrix.products(c, start, left, right, block.count, out)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        tiny.widen(c, block, left, right)
        matrix.exact_products(c, start, block.count, out, tiny.wide)
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
    fills = [u for u in users(c.operands[-1]) if u.name == "linalg.fill"]
    if len(fills) != 1:
        raise InternalError(f"{mlir.get_string(c.op, 'tilec.name')} adds to sums that it does not start", "stage")
    (fill,) = fills
    value = fill.operands[0]
    fill.erase()
    return value


__all__ = ["stage_cpu"]
