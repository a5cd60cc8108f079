"""tile: cuts each kernel's grid into tiles, one for each block, as planned.

    m = generic max(x : MxN)                    forall (b) in (M / T) shared_outs(y) {
    y = generic exp(x - m)                ->      m_t = generic max(x[b*T : b*T+T, :])
                                                  y_t = generic exp(x[...] - m_t)
                                                  in_parallel { insert y_t into y[b*T : b*T+T, :] } }

Upstream's `tile_using_forall` with `fuse_into_containing_op` does this for chains of single results. For producers with
several results or several readers it clones the producer per use and leaves one clone without its initial value (seen in
the bundled build), so the loop is built here, once for the whole kernel, in the form upstream gives it. Intermediates get
tensors of their tile's full size; at the edge of the grid a slice of them is used.

Operations that share no grid dimension but some of their own, such as several products of one factor, get a loop for each result,
one after another: which blocks compute which is for `map` to say.
"""

from __future__ import annotations

from tilec.core import locations, mlir
from tilec.core.extents import Extent, emitted, loops_of
from tilec.core.mlir import affine, ir, scf, tensor
from tilec.kernels import planned_kernels
from tilec.passes.rebuild import Anew, operands_in, operands_out, rebuild

Size = ir.Value | int
LAST_NAMED = 9  # MLIR has names for ten dimensions of blocks; no pass asks for them


def tile(module: ir.Operation) -> None:
    for function, planned in planned_kernels(module):
        _tile_kernel(function, list(planned.grid), list(planned.tile))


def _tile_kernel(function: ir.Operation, grid: list[int], sizes: list[int]) -> None:
    block = mlir.entry(function)
    ops = [op.operation for op in block.operations]
    results = list(ops[-1].operands)
    outs = dict(zip(results, list(block.arguments)[len(block.arguments) - len(results) :]))
    extents = _grid_extents(ops, grid)
    steps = {d: _step(e, t) for (d, e), t in zip(extents.items(), sizes)}
    tiled: dict[ir.Value, ir.Value] = {}
    with ir.InsertionPoint(ops[-1]), function.location:
        for part in _parts([op for op in ops if mlir.is_generic(op)], grid):
            own = [d for d in grid if d in mlir.get_integers(part[0], "tilec.dims")]
            made = [v for v in results if mlir.definition(v) in part]
            loop = _tile_part(function, part, own, extents, steps, {v: outs[v] for v in made})
            tiled |= zip(made, loop.results)
    function.attributes[locations.CUT] = mlir.integers(d for d, e in extents.items() if steps[d] not in (1, e))
    ops[-1].erase()
    with ir.InsertionPoint(block):
        mlir.func.ReturnOp([tiled[v] for v in results])
    for op in reversed(ops[:-1]):
        if not any(True for r in op.results for _ in r.uses):
            op.erase()


def _parts(ops: list[ir.Operation], grid: list[int]) -> list[list[ir.Operation]]:
    """The operations of each loop over blocks: all, where each has the whole grid, or else those that intermediates connect."""
    if all(set(grid) <= {*mlir.get_integers(op, "tilec.dims")} for op in ops):
        return [ops]
    parts: list[list[ir.Operation]] = []
    for op in ops:
        made = {mlir.definition(v) for v in (*op.operands, *mlir.captured(op))}
        near = [part for part in parts if not made.isdisjoint(part)]
        parts = [part for part in parts if part not in near] + [[*(o for part in near for o in part), op]]
    return parts


def _step(extent: Extent, tile: int) -> int:
    """How many values of a dimension a block has."""
    return max(1, min(tile, extent)) if isinstance(extent, int) else tile


def _tile_part(
    function: ir.Operation, ops: list[ir.Operation], grid: list[int], extents: dict[int, Extent], steps: dict[int, int],
    outs: dict[ir.Value, ir.Value],
) -> scf.ForallOp:  # fmt: skip
    """A loop over the blocks of some operations; `outs`: their results, and where these go."""
    given = list(mlir.entry(function).arguments)
    whole = [e if isinstance(e := extents[d], int) else emitted(e, given) for d in grid]
    tile = [steps[d] for d in grid]
    counts = [_blocks(e, t) for e, t in zip(whole, tile)] or [1]  # a kernel of a single point is a block of its own
    # Dimensions of one block stay, as they are mapped to something: later stages know them by their place.
    mapping = [ir.Attribute.parse(f"#gpu.block<linear_dim_{min(n, LAST_NAMED)}>") for n in range(len(counts))]
    loop = scf.ForallOp([0] * len(counts), counts, [1] * len(counts), [*outs.values()], mapping=ir.ArrayAttr.get(mapping))
    names = locations.index_names(function)  # a block's number along a dimension is the index where a block has one value of it
    locations.named(loop, *(names.get(d) and names[d] + "_block" * (s != 1) for d, s in zip(grid, tile)))
    shared = list(loop.regions[0].blocks[0].arguments)[len(counts) :]
    tiler = _Tiler(loop.operation, grid, whole, tile, dict(zip(outs, shared)))
    with ir.InsertionPoint(loop.regions[0].blocks[0]):
        for op in ops:
            tiler.generic(op)
        terminator = scf.InParallelOp()
        for value in outs:
            tiler.insert(value, terminator)
    return loop


def _blocks(extent: Size, step: int) -> Size:
    """How many blocks there are along a dimension."""
    if isinstance(extent, int):
        return -(-extent // step)
    blocks = ir.AffineExpr.get_ceil_div(ir.AffineSymbolExpr.get(0), step)
    return affine.AffineApplyOp(ir.AffineMap.get(0, 1, [blocks]), [extent]).result


def _grid_extents(ops: list[ir.Operation], grid: list[int]) -> dict[int, Extent]:
    found: dict[int, Extent] = {}
    for op in ops:
        if mlir.is_generic(op):
            found.update(zip(mlir.get_integers(op, "tilec.dims"), loops_of(op)))
    return {d: found[d] for d in grid}


class _Tiler:
    """Builds a block's operations; `tiles` takes a tensor of the kernel to its part in this block."""

    def __init__(
        self,
        loop: ir.Operation,
        grid: list[int],
        extents: list[Size],
        steps: list[int],
        shared: dict[ir.Value, ir.Value],
    ) -> None:
        self.grid, self.extents, self.steps, self.shared = grid, extents, steps, shared
        self.tiles: dict[ir.Value, ir.Value] = {}
        self.dims: dict[ir.Value, list[int]] = {}
        block, names = loop.regions[0].blocks[0], locations.index_names(loop.operation)
        self.offsets: dict[int, ir.Value] = {}
        self.sizes: dict[int, Size] = {}
        with ir.InsertionPoint(block):
            for d, extent, step, variable in zip(grid, extents, steps, block.arguments):
                self._locate(d, extent, step, variable, names.get(d))

    def _locate(self, d: int, extent: Size, step: int, variable: ir.Value, name: str | None) -> None:
        """Where the block starts along a grid dimension, and how much of its tile lies inside."""
        i = ir.AffineDimExpr.get(0)
        self.offsets[d] = variable
        if step > 1:
            start = affine.AffineApplyOp(ir.AffineMap.get(1, 0, [i * step]), [variable]).result
            self.offsets[d] = locations.named(start, name and f"{name}_start")
        if step == 1 or (isinstance(extent, int) and extent % step == 0):
            self.sizes[d] = step
            return
        end = extent if isinstance(extent, int) else ir.AffineSymbolExpr.get(0)
        varying = [] if isinstance(extent, int) else [extent]
        left = ir.AffineMap.get(1, len(varying), [i * -step + end, ir.AffineConstantExpr.get(step)])
        self.sizes[d] = locations.named(affine.AffineMinOp(left, [variable, *varying]).result, name and f"{name}_size")

    def slice(self, value: ir.Value, dims: list[int], local: bool = False) -> ir.Value:
        """The block's part of a tensor subscripted by kernel dimensions; a local tensor holds just this block's tile."""
        shape = ir.ShapedType(value.type).shape
        offsets = [0 if local else self.offsets.get(d, 0) for d in dims]
        if all(o == 0 and self.sizes.get(d, e) == e for o, d, e in zip(offsets, dims, shape)):
            return value
        sizes = [self.sizes[d] if d in self.sizes else self.whole(value, k) for k, d in enumerate(dims)]
        if 0 in shape:  # nothing to take a slice of
            return tensor.empty(sizes, ir.ShapedType(value.type).element_type)
        static = [s if isinstance(s, int) else mlir.DYNAMIC for s in sizes]
        type_ = ir.RankedTensorType.get(static, ir.ShapedType(value.type).element_type)
        dynamic = mlir.DYNAMIC
        return tensor.ExtractSliceOp(
            type_,
            value,
            [o for o in offsets if not isinstance(o, int)],
            [s for s in sizes if not isinstance(s, int)],
            [],
            [o if isinstance(o, int) else dynamic for o in offsets],
            static,
            [1] * len(dims),
        ).result

    def whole(self, value: ir.Value, d: int) -> Size:
        """The extent of a dimension of a tensor."""
        known = ir.ShapedType(value.type).shape[d]
        return tensor.dim(value, mlir.index(d)) if known == mlir.DYNAMIC else int(known)

    def generic(self, op: ir.Operation) -> None:
        dims = mlir.get_integers(op, "tilec.dims")
        maps = mlir.maps_of(op)
        operand_dims = [[dims[d] for d in mlir.map_dims(m)] for m in maps]
        inputs = mlir.inputs_of(op)
        count = len(inputs)
        with op.location:
            operands = [self.input(v, p) for v, p in zip(inputs, operand_dims)]
            outputs = [
                self.output(result, out, p)
                for result, out, p in zip(op.results, mlir.outputs_of(op), operand_dims[count:])
            ]
            copy = rebuild(
                op, operands=[o.of(v) for o, v in zip(operands_in(op), operands)], body=lambda here: self.body(here, dims),
                outputs=[o.of(v) for o, v in zip(operands_out(op), outputs)],
            )  # fmt: skip
        for result, new, own_dims in zip(op.results, copy.results, operand_dims[count:]):
            self.tiles[result], self.dims[result] = new, own_dims

    def body(self, here: Anew, dims: list[int]) -> list[ir.Value]:
        """`linalg.index` counts inside the tile; the program's index starts where the block does."""

        def index(d: int) -> ir.Value:
            if dims[d] not in self.offsets:
                return here.own(d)
            total = ir.AffineMap.get(2, 0, [ir.AffineDimExpr.get(0) + ir.AffineDimExpr.get(1)])
            return affine.AffineApplyOp(total, [self.offsets[dims[d]], here.own(d)]).result

        here.index = index
        return here.values()

    def input(self, value: ir.Value, dims: list[int]) -> ir.Value:
        if value in self.tiles:
            return self.tiles[value]
        if mlir.is_empty(value):
            return self.fresh(value, dims)
        return self.slice(value, dims)

    def output(self, result: ir.Value, out: ir.Value, dims: list[int]) -> ir.Value:
        """Where a result goes: its part of the kernel's output, or a tile of its own; filled as the original was."""
        target = self.slice(self.shared[result], dims) if result in self.shared else self.fresh(out, dims)
        owner = out.owner
        if not isinstance(owner, ir.Block) and owner.name == "linalg.fill":
            return mlir.fill(owner.operands[0], target)
        return target

    def fresh(self, value: ir.Value, dims: list[int]) -> ir.Value:
        shaped = ir.ShapedType(value.type)
        step = dict(zip(self.grid, self.steps))
        full = [step[d] if d in step else self.whole(value, k) for k, d in enumerate(dims)]
        return self.slice(tensor.empty(full, shaped.element_type), dims, local=True)

    def insert(self, value: ir.Value, terminator: ir.OpView) -> None:
        dims, target = self.dims[value], self.shared[value]
        if 0 in ir.ShapedType(target.type).shape:
            return
        offsets = [self.offsets.get(d, 0) for d in dims]
        with ir.InsertionPoint(terminator):
            sizes = [self.sizes[d] if d in self.sizes else self.whole(target, k) for k, d in enumerate(dims)]
        with ir.InsertionPoint(terminator.regions[0].blocks[0]):
            tensor.ParallelInsertSliceOp(
                self.tiles[value],
                target,
                [o for o in offsets if not isinstance(o, int)],
                [s for s in sizes if not isinstance(s, int)],
                [],
                [o if isinstance(o, int) else mlir.DYNAMIC for o in offsets],
                [s if isinstance(s, int) else mlir.DYNAMIC for s in sizes],
                [1] * len(dims),
            )
