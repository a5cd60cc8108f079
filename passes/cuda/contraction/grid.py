"""The grid of a contraction: which tile of the result a block's number means, and the order of tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir, scf
from tilec.core.varying import Varies
from tilec.kernels import StoredContraction
from tilec.passes.cuda.contraction.clusters import Cluster
from tilec.passes.loops import Count, counts_of, delinearise, plus, product, quotient_up, sum_of, times


class Blocks:
    """The grid of a result, along the kernel dimensions `grid`: which tile of C a number means, and the operations of that tile."""

    def __init__(self, forall: ir.Operation, options: StoredContraction, grid: list[int]):
        self.forall, self.options, self.grid = forall, options, grid
        self.counts = dict(zip(grid, counts_of(self.forall)))

    def count(self, high: int = 1, wide: int = 1) -> Count:
        """How many tiles there are, or clusters of so many."""
        return product(self._along(high, wide))

    def _along(self, high: int, wide: int) -> tuple[Count, Count, Count]:
        """How many batches, and rows and columns of tiles, or of clusters of them."""
        own = self.options.rows, self.options.columns
        rows, columns = (product(self.counts[d] for d in self.grid if d in dims) for dims in own)
        batches = product(self.counts[d] for d in self.grid if d not in (*own[0], *own[1]))
        return batches, _quotient(rows, high), _quotient(columns, wide)

    def enter(self, number: ir.Value, cluster: Cluster | None = None, named: bool = True) -> list[ir.Operation]:
        """Copies what a block computes to the insertion point, at the tile of this number; with a cluster, at its tile among those
        of this number."""
        coordinates = self._grouped_order(number, cluster)
        for value, name in zip(coordinates, locations.variables(self.forall) if named else ()):
            locations.named(value, name)
        return enter(self.forall, coordinates)

    def _grouped_order(self, number: ir.Value, cluster: Cluster | None) -> list[ir.Value]:
        """Batches one after another; in each, `group_rows` rows of tiles go column by column. With `across_batches`, rows of the
        next batches are among these.

        Blocks that run at one time then cover about a square of C, and share its rows' and columns' factors
        in L2.
        """
        grid, count = self.grid, self.counts
        rows, columns = ([d for d in grid if d in dims] for dims in (self.options.rows, self.options.columns))
        batch = [d for d in grid if d not in (*rows, *columns)]
        each = (cluster.high, cluster.wide) if cluster else (1, 1)
        batches, high, wide = self._along(*each)
        group = max(1, self.options.group_rows // each[0])
        if self.options.across_batches:
            line, column = in_groups(number, times(batches, high), wide, group)
            which, row = _divide(line, high, batches)
        else:
            which, rest = _divide(number, times(high, wide), batches)
            row, column = in_groups(rest, high, wide, group)
        if cluster:
            row, column = sum_of([(row, each[0]), (cluster.row, 1)]), sum_of([(column, each[1]), (cluster.column, 1)])
        found = dict(zip(batch, delinearise(which, [count[d] for d in batch])))
        found |= zip(rows, delinearise(row, [count[d] for d in rows]))
        found |= zip(columns, delinearise(column, [count[d] for d in columns]))
        return [found[d] for d in grid]


def tiles_of(function: ir.Operation) -> list[ir.Operation]:
    """A kernel's loops over the tiles of its results."""
    return [o.operation for o in mlir.entry(function).operations if o.operation.name == "scf.forall"]


def enter(forall: ir.Operation, coordinates: Sequence[ir.Value]) -> list[ir.Operation]:
    """Copies what is done with one tile to the insertion point."""
    block = forall.regions[0].blocks[0]
    mapping = dict(zip(block.arguments, coordinates))
    operations = [o.operation for o in block.operations if o.operation.name != "scf.forall.in_parallel"]
    return [mlir.clone_op(op, mapping) for op in operations]


def erase(operations: list[ir.Operation]) -> None:
    """Removes operations on a tile that have been carried out, and memory that nothing uses any more."""
    for op in reversed(operations):
        memory = op.name in ("memref.alloc", "memref.subview")
        if op.name.startswith("linalg.") or (memory and not any(mlir.uses(op.results[0]))):
            op.erase()


def in_groups(number: ir.Value, high: Count, wide: Count, group: int) -> tuple[ir.Value, ir.Value]:
    """Row and column of a place in a grid of `high` rows and `wide` columns: `group` rows together, column by column."""
    group = min(group, high) if isinstance(high, int) else group
    band, within = _divide(number, times(group, wide), quotient_up(high, group))
    first, tall = arith.muli(band, mlir.index(group)), mlir.index(group)
    if not isinstance(high, int) or high % group:
        tall = arith.minsi(arith.subi(mlir.index(high), first), tall)
    return arith.addi(first, arith.remui(within, tall)), arith.divui(within, tall)


def grids_of(function: ir.Operation, options: StoredContraction, grid: list[int]) -> list[Blocks]:
    """That of each result, where tiles of several follow one another: in the order of the kernel's loops, which may be another
    than that of the options."""
    made = []
    for forall in tiles_of(function):
        dims = {d for op in mlir.traverse(forall) if "tilec.dims" in op.attributes for d in mlir.get_integers(op, "tilec.dims")}
        (number,) = (n for n, own in enumerate(options.column_sets) if dims.issuperset(own))
        others = {*options.columns} - {*options.column_sets[number]}
        made.append(Blocks(forall, options.of_sibling(number), [d for d in grid if d not in others]))
    return made


def of_its_grid(number: ir.Value, grids: list[Blocks], build: Callable[[int, ir.Value], None], first: int = 0) -> None:
    """Builds what is done with a tile of each grid, from its number there; of these, the one whose tile has this number is done."""
    if first == len(grids) - 1:
        build(first, number)
        return
    count = grids[first].count()
    # numbers of the branch that is taken are not changed; their ranges, which do not know the condition, are
    own = arith.minsi(number, mlir.index(plus(count, -1)))
    rest = arith.maxsi(arith.subi(number, mlir.index(count)), mlir.index(0))
    choice = scf.IfOp(arith.cmpi(arith.CmpIPredicate.slt, number, mlir.index(count)), has_else=True)
    choice.operation.attributes["tilec.mergeable"] = ir.UnitAttr.get()
    with ir.InsertionPoint(choice.then_block):
        build(first, own)
        scf.YieldOp([])
    with ir.InsertionPoint(choice.else_block):
        of_its_grid(rest, grids, build, first + 1)
        scf.YieldOp([])


def _quotient(count: Count, size: int) -> Count:
    """Clusters of so many blocks, which divide tiles."""
    if isinstance(count, int) or size == 1:
        return count // size if isinstance(count, int) else count
    raise Varies("whether tiles can be divided into clusters")


def _divide(number: ir.Value, by: Count, quotients: Count) -> tuple[ir.Value, ir.Value]:
    """Quotient and remainder; 0 and the number itself where there is one quotient only."""
    if isinstance(quotients, int) and quotients == 1:
        return mlir.index(0), number
    return arith.divui(number, mlir.index(by)), arith.remui(number, mlir.index(by))
