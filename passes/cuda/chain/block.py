"""A block of a contraction chain as its passes read it: its operations at its place of the grid, and the chain that they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from tilec.analysis.chain import Chain, read_chain
from tilec.analysis.expression import Expr, Reader, parts_of
from tilec.analysis.subscripts import periods
from tilec.core import extents, locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.extents import Extent
from tilec.core.hardware import WARPGROUP
from tilec.core.mlir import arith, gpu, ir, memref
from tilec.core.varying import Varies
from tilec.index.terms import term
from tilec.kernels import ContractionChain, Planned
from tilec.passes.cuda.chain.values import At, Values, halves
from tilec.passes.cuda.contraction.checks import check_each
from tilec.passes.cuda.contraction.grid import enter, erase, in_groups
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.memory_spaces import is_local, root
from tilec.passes.cuda.ring import carried_loop
from tilec.passes.loops import Count, all_of, counts_of, delinearise, least, plus, product, sum_of, when


@dataclass(frozen=True)
class Output:
    """A result that leaves the kernel, and where."""

    value: Expr
    view: ir.Value
    dims: tuple[int, ...]


class ChainBlock:
    """`chain`, the `outputs` that leave the kernel, the program's run-time `checks`, and `sizes`, how many elements a block has of
    each kernel dimension: fewer rows at the edge of the grid. `box` has the rows that a block multiplies, along each dimension of
    rows. `subscripts` builds subscripts."""

    def __init__(self, function: ir.Operation, planned: Planned, forall: ir.Operation, number: ir.Value | None = None):
        """`number`: that of the tile, where it is not the block's."""
        options = planned.options
        assert isinstance(options, ContractionChain)
        self.function, self.options, self.forall = function, options, forall
        self.planned, self.grid = planned, planned.grid
        self.box = dict(zip(options.rows, options.box(dict(zip(planned.grid, planned.tile)))))
        self.bm, self.bn = options.block
        self.operations = self._enter(number)
        self._read()
        self.subscripts = Values({})

    @contextmanager
    def each(self, state: list[ir.Value]) -> Iterator[tuple[ChainBlock, list[ir.Value]]]:
        """This block alone; or one after another of those whose tiles a persistent block computes, with what it carries."""
        if not self.options.persistent_blocks:
            yield self, state
            return
        step = self.options.persistent_blocks if isinstance(self.count, ir.Value) else self.launched
        with carried_loop(self.number, mlir.index(self.count), state, step, name="rows_tile") as (number, now):
            block = ChainBlock(self.function, self.planned, self.forall, self._position(number))
            yield block, now
            erase(block.operations)

    def _position(self, number: ir.Value) -> ir.Value:
        """The number of a persistent block's tile. Where the longest come first, every other round has blocks in reverse order, so
        that none has the longer one each time."""
        if not self.options.longest_first:
            return number
        each = mlir.index(self.launched)
        first = arith.muli(arith.divui(number, each), each)
        last = sum_of([(first, 1), (arith.minsi(sum_of([(first, -1), (mlir.index(self.count), 1)]), each), 1)], -1)
        odd = arith.remui(arith.divui(number, each), mlir.index(2))
        reversed_number = sum_of([(last, 1), (first, 1), (number, -1)])
        return arith.select(arith.cmpi(arith.CmpIPredicate.ne, odd, mlir.index(0)), reversed_number, number)

    @property
    def launched(self) -> Count:
        """Blocks that compute the tiles."""
        return least(self.options.persistent_blocks, self.count) if self.options.persistent_blocks else self.count

    @property
    def length(self) -> Count:
        """Elements along the dimension between the contractions."""
        return self.sizes[self.chain.between]

    @property
    def extent(self) -> Extent:
        """The same, as a term where it varies."""
        return self.extents[self.chain.between]

    @property
    def even(self) -> bool:
        """Whether all tiles along that dimension are full, whatever sizes are."""
        return (term(self.extent) % self.bn).constant == 0

    @property
    def largest(self) -> int:
        """The longest dimension of what the kernel reads and writes."""
        every = (e for a in mlir.entry(self.function).arguments for e in extents.shape_of(a))
        return max(extents.highest(e) for e in every)

    def check(self, thread: Thread) -> None:
        """The program's run-time checks of a block, by the threads that multiply. Of blocks that would ask the same, such as those
        of all heads, the first one asks."""
        threads, number = self.options.block_threads, thread.number
        if self.options.unit == "wgmma":
            threads, number = threads - WARPGROUP, sum_of([(number, 1)], -WARPGROUP)
        for condition, message in self.checks:

            def holds(at: dict[int, ir.Value], condition: Expr = condition) -> ir.Value:
                return self.subscripts.build(condition, At(at, mlir.index(0)))

            sizes = {d: self.box.get(d, self.sizes[d]) for d in sorted(condition.dims)}
            if any(isinstance(size, ir.Value) for size in sizes.values()):
                raise Varies("the number of places at which a kernel checks subscripts that depend on data")
            steps = {d: max(1, n) for d, n in periods(sizes, [condition]).items()}
            counts = {d: -(-size // steps[d]) for d, size in sizes.items()}
            with nullcontext() if (first := self._is_first(condition)) is None else when(first):
                check_each(counts, self.sizes, number, threads, holds, message, steps)

    def _is_first(self, condition: Expr) -> ir.Value | None:
        """Whether the block is the first one along those dimensions of the grid that a condition does not depend on; None where
        there is one alone."""
        reached, pending = set[ir.Value](), [x.key for x in parts_of(condition) if x.op in ("element", "outer")]
        while pending:
            value = pending.pop()
            if value not in reached:
                reached.add(value)
                made = mlir.definition(value)
                pending += [] if value in self.coordinates or made is None else list(made.operands)
        others = [
            arith.cmpi(arith.CmpIPredicate.eq, value, mlir.index(0))
            for d, value in zip(self.grid, self.coordinates)
            if d not in condition.dims and value not in reached and mlir.constant_value(value) is None
        ]
        return all_of(others)

    def rows_at(self, number: ir.Value) -> dict[int, ir.Value]:
        """The subscripts of a block's row of this number, along the dimensions of rows."""
        names = [None] * len(self.box)
        return dict(zip(self.box, delinearise(number, list(self.box.values()), names)))

    @contextmanager
    def existing_rows(self, first: ir.Value, count: int, values: Values) -> Iterator[tuple[ir.Value, dict[int, ir.Value]]]:
        """Over a thread's rows, 8 apart from the first on, that the tensor has: the number of each, and its subscripts."""
        with halves(count) as half, ExitStack() as inside:
            rows = self.rows_at(locations.named(sum_of([(half, 8), (first, 1)]), "row"))
            for d, last in values.limits.items():
                if d in rows:
                    inside.enter_context(when(arith.cmpi(arith.CmpIPredicate.sle, rows[d], last)))
            yield half, rows

    def limits(self) -> dict[int, ir.Value]:
        """The last subscript along each dimension of rows in which a block may have fewer rows than it multiplies."""
        found = {}
        for d, size in self.box.items():
            own = self.sizes[d]
            if isinstance(own, ir.Value) or own != size:
                found[d] = arith.subi(own if isinstance(own, ir.Value) else mlir.index(own), mlir.index(1))
        return found

    def ends(self) -> dict[int, ir.Value]:
        """The last subscript between the contractions, where a tile may have fewer elements."""
        return {} if self.even else {self.chain.between: sum_of([(mlir.index(self.length), 1)], -1)}

    def _ordered(self, number: ir.Value, counts: list[Count]) -> list[ir.Value]:
        """A block's place of the grid: rows run fastest. Where the longest start first, they take turns with those of several
        problems of the batch."""
        names, total = locations.variables(self.forall), product(counts)
        rows = [n for n, d in enumerate(self.grid) if d in (*self.options.growing, *self.options.shrinking)]
        others = [n for n in range(len(counts)) if n not in rows]
        height, problems = (product(counts[n] for n in own) for own in (rows, others))
        group = min(self.options.group_batch, problems) if isinstance(problems, int) else self.options.group_batch
        if not self.options.longest_first:
            return delinearise(number, counts, names)
        shrinking = bool(self.options.shrinking)
        if group == 1 or height == 1:
            return delinearise(number if shrinking else arith.subi(mlir.index(plus(total, -1)), number), counts, names)
        other, before = in_groups(number, problems, height, group)
        row = before if shrinking else sum_of([(mlir.index(height), 1), (before, -1)], -1)  # the last first
        found: dict[int, ir.Value] = {}
        for number, part in ((row, rows), (other, others)):
            found |= zip(part, delinearise(number, [counts[n] for n in part], [names[n] for n in part] if names else ()))
        return [found[n] for n in range(len(counts))]

    def _enter(self, number: ir.Value | None) -> list[ir.Operation]:
        """The block's operations, at the tile of its number: parts of rows run fastest, then rows, from the last where those are
        longest."""
        counts = counts_of(self.forall)
        self.parts, self.count = self.options.blocks_per_tile, product(counts)
        launched = extents.amount_of(self.launched, self.function)
        extents.set_blocks(self.function, extents.times(launched, self.parts))
        self.function.attributes["tilec.threads"] = mlir.integer(self.options.block_threads)
        self.part, given = mlir.index(0), number is not None
        if number is None:
            number = gpu.BlockIdOp(gpu.Dimension.x).result
        if self.parts > 1 and not given:
            self.part = locations.named(arith.remui(number, mlir.index(self.parts)), "part")
            number = arith.divui(number, mlir.index(self.parts))
        self.number, self.coordinates = number, self._ordered(number, counts)
        return enter(self.forall, self.coordinates)

    def _read(self) -> None:
        generics = [o for o in self.operations if mlir.is_generic(o)]
        dims = {o: tuple(mlir.get_integers(o, "tilec.dims")) for o in generics}
        made = {root(v): (o, n) for o in generics for n, v in enumerate(mlir.outputs_of(o))}
        reader = Reader(dims, lambda value: made.get(root(value)), computed=True)
        self.outputs = []
        for value, (op, n) in made.items():
            if not is_local(value):
                self.outputs.append(Output(reader.result(op, n), mlir.outputs_of(op)[n], reader.result_dims(op, n)))
        self.sizes: dict[int, Any] = {}  # a value where a dimension is not known
        self.extents: dict[int, Extent] = {}
        for op in generics:
            self.sizes |= zip(dims[op], mlir.extents_of(op))
            self.extents |= {d: e for d, e in zip(dims[op], extents.known_loops(op)) if e is not None}
        given = list(mlir.entry(self.function).arguments)
        for d, size in [*self.sizes.items()]:
            if size == mlir.DYNAMIC and d in self.extents:
                self.sizes[d] = extents.emitted(self.extents[d], given)
        single = {d for d, size in self.sizes.items() if isinstance(size, int) and size == 1}
        stored = [[d for d in o.dims if d not in single] for o in self.outputs]
        chain = read_chain(reader, stored, self.options.rows)
        if not isinstance(chain, Chain):
            raise InternalError(f"the kernel is no chain of two contractions: {chain}", "map", str(self.function))
        self.chain = chain
        for d in (*(first.inner for first in chain.firsts), *chain.columns.values()):
            if d not in self.extents or not isinstance(self.extents[d], int):
                raise Varies(f"the number of a head's features, {self.extents.get(d, '')}, which a block has all of on chip")
        self.checks = list(dict.fromkeys(check for op in generics for check in reader.checks(op)))
        for output in self.outputs:  # at the edge of the grid a block has fewer rows
            for n, d in enumerate(output.dims):
                if isinstance(self.sizes[d], int) and self.sizes[d] == mlir.DYNAMIC:
                    self.sizes[d] = memref.DimOp(output.view, mlir.index(n)).result
