"""A contraction kernel for its passes: the plan's options, the operation, and the dimensions of each of its values.

A block computes C[r, c] += left[r, k] * right[c, k]. Rows r, columns c and the reduced k are numbers that run
over boxes of the program's dimensions, outermost first: in a convolution a row is a point (n, h, w), and k a
point (c, r, s) of the window. A factor is a value of the operation's body. It can be computed wherever its
dimensions are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilec.analysis.access import Access, access_of
from tilec.analysis.bf16_split import parted
from tilec.analysis.products import Scaled, arguments_of, factors_of, narrow, scaled, stored
from tilec.core import locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.extents import Extent, divides, known_loops, value_at
from tilec.core.hardware import WARP
from tilec.core.mlir import arith, gpu, ir, memref
from tilec.core.varying import Varies
from tilec.index.facts import NONE
from tilec.index.terms import term
from tilec.kernels import StoredContraction, WarpgroupContraction
from tilec.kernels.matrix import ELEMENTS
from tilec.passes.cuda.memory_spaces import root, sizes_of
from tilec.passes.emit import Body
from tilec.passes.loops import Count, below, delinearise, plus, product, quotient_up, sum_of
from tilec.passes.predicate_loads import guard_loads

FLAT = -1  # a kernel dimension: all reduced ones as one


def element_of(multiplicand: str) -> mlir.Element:
    """The type in which factors of this type are in memory."""
    return mlir.type_of(ELEMENTS.get(multiplicand, multiplicand))


@dataclass(frozen=True)
class Side:
    """One factor: its rows (or columns), how many a block has, and how it reaches shared memory."""

    name: str
    dims: tuple[int, ...]  # kernel dimensions
    box: tuple[int, ...]
    size: int
    copy: str
    major: bool
    element: mlir.Element
    narrow: bool = False  # converted on the way from shared memory

    @property
    def full(self) -> bool:
        """Whether all of the block's rows are in the box."""
        return prod(self.box) == self.size


class Block:
    """The operations of one block: the contraction, what follows it, and where its sums start from."""

    def __init__(self, operations: list[ir.Operation]):
        self.operations = operations
        generics = [o for o in operations if mlir.is_generic(o)]
        contractions = [o for o in generics if "tilec.reduce" in o.attributes]
        if not contractions or generics[0] != contractions[0]:
            raise InternalError("a contraction kernel has a contraction, which comes first", "map")
        self.contractions, self.contraction = contractions, contractions[0]
        self.after = [o for o in generics if o not in contractions]
        result = root(list(self.contraction.operands)[-1])
        self.initial = next(
            o.operands[0] for o in operations if o.name == "linalg.fill" and root(o.operands[1]) == result
        )


class Problem:
    """The contraction of one block, after its grid coordinates are known."""

    def __init__(self, options: StoredContraction, tiles: dict[int, int], op: ir.Operation):
        self.options, self.op = options, op
        self.body = mlir.body_of(op)
        self.dims = mlir.get_integers(op, "tilec.dims")
        self.operands = list(op.operands)
        self.operand_dims = [mlir.map_dims(m) for m in mlir.maps_of(op)]
        loops = dict(zip(self.dims, known_loops(op)))
        self.inner_extents = [loops[d] for d in options.inner]
        self.inner = [self._count(n) for n in self.inner_extents]
        staged = (self._scaled(f).core if self.is_two_level else f for f in factors_of(op) or ())
        copied = ((found.parts if self.parts > 1 and (found := parted(f)) else (f,)) for f in staged)
        self._accesses = [[access_of(op, f) for f in several] for several in copied][:: self._order]  # before loads are guarded
        guard_loads(op)
        points, self.depth = (options.block[0], options.own_columns), options.block[2]
        own = (options.rows, options.columns)
        self.left, self.right = (
            Side(name, dims, tuple(tiles[d] for d in dims), size, copy, k_major, element_of(kind), kind != options.multiplicand)
            for name, dims, size, copy, k_major, kind in zip(
                ("left", "right"), own, points, options.copies, options.k_major, options.stored
            )
        )
        names = locations.index_names(op)
        self.inner_name = locations.joined(names.get(d, "k") for d in options.inner)
        if not self.is_boxed:  # a box is of the tensor as it is
            for n in range(len(mlir.inputs_of(op))):
                self._flatten(n)
        self.length = product(self.inner)
        self.batch = [d for d in self.dims if d not in (FLAT, *options.rows, *options.columns, *options.inner)]

    def _count(self, extent: Extent | None) -> Count:
        """An extent along k as a number, or as a value of the kernel's sizes; there is an element at least."""
        if isinstance(extent, int):
            return extent
        if extent is None or not NONE.proves(extent - 1):
            raise Varies("whether a product has an element to add")
        with ir.InsertionPoint(self.op):
            return value_at(extent)

    def tensor(self, side: Side) -> str:
        """What the source calls a factor, if it is a tensor."""
        access = self._access(side)
        return (locations.argument(root(access.tensor)) if access is not None else None) or side.name

    def _flatten(self, n: int) -> None:
        """An operand that has all reduced dimensions side by side, in order, is subscripted by k itself."""
        count, dims = len(self.options.inner), [self.dims[d] for d in self.operand_dims[n]]
        if count < 2 or self.options.inner[0] not in dims:
            return
        first = dims.index(self.options.inner[0])
        if tuple(dims[first : first + count]) != self.options.inner:
            return
        groups = (
            [[p] for p in range(first)]
            + [[*range(first, first + count)]]
            + [[p] for p in range(first + count, len(dims))]
        )
        old = ir.MemRefType(self.operands[n].type)
        shape, (strides, offset) = list(old.shape), old.get_strides_and_offset()
        group = shape[first : first + count]
        new = [*shape[:first], mlir.DYNAMIC if mlir.DYNAMIC in group else prod(group), *shape[first + count :]]
        steps = [strides[g[-1]] for g in groups]
        layout = None if is_identity(old) else ir.StridedLayoutAttr.get(offset, steps)
        type_ = ir.MemRefType.get(new, old.element_type, layout, old.memory_space)
        with ir.InsertionPoint(self.op):
            self.operands[n] = memref.CollapseShapeOp(type_, self.operands[n], groups).result
        self.dims = [*self.dims, FLAT] if FLAT not in self.dims else self.dims
        self.operand_dims[n] = [
            *self.operand_dims[n][:first],
            self.dims.index(FLAT),
            *self.operand_dims[n][first + count :],
        ]

    @property
    def steps(self) -> Count:
        """Tiles of k."""
        return product(self._inner_boxes) if self.is_boxed else quotient_up(self.length, self.depth)

    @property
    def is_boxed(self) -> bool:
        """Whether a step along k is a box of its dimensions, as TMA copies one factor at least; else places of k in a row."""
        return "tma" in self.options.copies

    @property
    def inner_box(self) -> tuple[int, ...]:
        """The box of k that TMA copies in one step."""
        box = self.options.inner_box if isinstance(self.options, WarpgroupContraction) else ()
        return box or (*(1 for _ in self.inner[1:]), self.depth)

    @property
    def kept_steps(self) -> int:
        """Steps of the right factor that stay in shared memory."""
        return self.options.kept_steps if isinstance(self.options, WarpgroupContraction) else 0

    @property
    def _inner_boxes(self) -> list[Count]:
        """Of TMA along each dimension of k: boxes do not go on from one line to the next."""
        return [quotient_up(extent, size) for extent, size in zip(self.inner, self.inner_box)]

    def inner_start(self, step: ir.Value) -> dict[int, ir.Value]:
        """Where the boxes of a step begin in k."""
        digits = delinearise(step, self._inner_boxes)
        return {d: sum_of([(n, size)]) for d, n, size in zip(self.options.inner, digits, self.inner_box)}

    def position_in_k(self, step: ir.Value, number: ir.Value) -> tuple[dict[int, ir.Value], ir.Value]:
        """The coordinates of a place of a step along k, and its number among all where steps are in a row."""
        if not self.is_boxed:
            number = sum_of([(step, self.depth), (number, 1)])
            return self.coordinates((None, number)), number
        at = self.inner_start(step)
        digits = delinearise(number, list(self.inner_box))
        return {d: sum_of([(at[d], 1), (n, 1)]) for d, n in zip(at, digits)}, number

    def inside_k(self, at: dict[int, ir.Value], number: ir.Value) -> list[ir.Value]:
        """Conditions under which such a place exists."""
        if not self.is_boxed:
            return [] if divides(self.depth, prod(map(term, self.inner_extents), start=term(1))) else [below(number, self.length)]
        ends = zip(self.options.inner, self.inner, self.inner_extents, self.inner_box)
        return [below(at[d], end) for d, end, extent, size in ends if not divides(size, extent)]

    @cached_property
    def element(self) -> mlir.Element:
        """The type of staged factors; tf32 is an f32 that copies or threads round."""
        return element_of(self.options.multiplicand)

    @cached_property
    def accumulator(self) -> ir.Type:
        return ir.MemRefType(self.operands[-1].type).element_type

    @cached_property
    def sizes(self) -> dict[int, int | ir.Value]:
        """How much of a block's box there is along each kernel dimension; less than the box at the edge of
        the grid.
        """
        with ir.InsertionPoint(self.op):
            return sizes_of(self.operands, [[self.dims[d] for d in dims] for dims in self.operand_dims])

    # ---- coordinates ---------------------------------------------------------------------------------------

    def coordinates(self, *parts: tuple[Side | None, ir.Value]) -> dict[int, ir.Value]:
        """Kernel dimensions from row and column numbers; of a k number where the side is None."""
        found = {d: mlir.index(0) for d in self.batch}
        for side, number in parts:
            if side is None:
                found |= zip(self.options.inner, delinearise(number, self.inner))
                found[FLAT] = number
            else:
                found |= zip(side.dims, delinearise(number, list(side.box)))
        return found

    def inside(self, side: Side, at: dict[int, ir.Value]) -> list[ir.Value]:
        """Conditions under which a row or column exists."""
        return [below(at[d], size) for d, size in self.limits(side)]

    def limits(self, side: Side) -> list[tuple[int, ir.Value | int]]:
        """Kernel dimensions along which a block's rows or columns may not exist, and how many do."""
        outermost = next((n for n, extent in enumerate(side.box) if extent > 1), 0)  # its digit goes on beyond the box
        sizes = [(n, d, self.sizes[d]) for n, d in enumerate(side.dims)]
        return [(d, size) for n, d, size in sizes if isinstance(size, ir.Value) or (n == outermost and not side.full)]

    def existing(self, side: Side, at: dict[int, ir.Value]) -> dict[int, ir.Value]:
        """Coordinates of a row or column that exists: of one that does not, those of the last."""
        found = dict(at)
        for d, size in self.limits(side):
            last = arith.subi(size, mlir.index(1)) if isinstance(size, ir.Value) else mlir.index(size - 1)
            found[d] = arith.minsi(at[d], last)
        return found

    # ---- factors -------------------------------------------------------------------------------------------

    def factor(self, side: Side) -> ir.Value:
        """The factor of a side, in the type in which it is staged where it has that already."""
        value = self.scaled[side.name].core if self.is_two_level else self._factors[side.name]
        plain = narrow(value) if side.narrow else stored(value)
        return plain if plain.type == side.element else value

    def whole(self, side: Side) -> ir.Value:
        """The number itself of a factor, also of one that is read in parts."""
        factor = self._factors[side.name]
        return found.whole if (found := parted(factor)) else factor

    def is_unsigned(self, side: Side) -> bool:
        """Whether a factor that is converted on the way from shared memory is an integer without sign."""
        owner = mlir.definition(self._factors[side.name])
        return owner is not None and owner.name == "arith.uitofp"

    @cached_property
    def scaled(self) -> dict[str, Scaled]:
        """Both factors, with what may be applied to sums."""
        return {name: self._scaled(value) for name, value in self._factors.items()}

    def _scaled(self, factor: ir.Value) -> Scaled:
        inner = [(self.dims.index(d), extent) for d, extent in zip(self.options.inner, self.inner_extents)]
        return scaled(self.op, factor, inner)

    @property
    def is_two_level(self) -> bool:
        """Whether partial sums leave the matrix units, and may be scaled then."""
        return isinstance(self.options, WarpgroupContraction) and self.options.two_level > 0

    @cached_property
    def _factors(self) -> dict[str, ir.Value]:
        if (factors := factors_of(self.op)) is None:
            raise InternalError(f"{mlir.get_string(self.op, 'tilec.name')} is no sum of products", "map")
        return dict(zip(("left", "right"), factors[:: self._order]))

    @property
    def _order(self) -> int:
        """-1 where the second factor is the left one, which has the rows."""
        return -1 if mlir.get_integer(self.op, "tilec.left") else 1

    @property
    def parts(self) -> int:
        """Numbers in shared memory for each number of a factor."""
        return self.options.parts

    def _access(self, side: Side, part: int = 0) -> Access | None:
        number = list(self._factors).index(side.name)
        return self._accesses[number][part]

    def is_loaded(self, side: Side) -> bool:
        """Whether a factor is an element of a tensor in the staged type, under bounds of its own."""
        found = self._access(side)
        return found is not None and found.operand is None and found.element == self.element

    def access(self, side: Side, part: int = 0) -> Access:
        """Where a factor, or a part of it, lies that is copied as it is."""
        if (found := self._access(side, part)) is None:
            raise InternalError(f"the {side.name} factor is computed: it is no element of a tensor", "map")
        return found

    def source(self, side: Side, at: dict[int, ir.Value], part: int = 0) -> tuple[ir.Value, list[ir.Value]]:
        """The memory that a factor is copied from, and its subscripts there."""
        access = self.access(side, part)
        if access.operand is not None:
            return self.operands[access.operand], self.subscripts(access.operand, at)
        inside = at
        if not access.is_affine:  # memory is read for subscripts, also for those of rows that do not exist
            inside = self.existing(side, at)
            ends = dict(zip(self.options.inner, self.inner)) | {FLAT: self.length}
            inside |= {d: arith.minsi(at[d], mlir.index(plus(end, -1))) for d, end in ends.items() if d in at}
        found: list[ir.Value] = []  # others stay as they are: hardware knows where a box begins, and what is outside
        for s in access.subscripts:
            found += self.copied([s.value], at if s.is_affine else inside) if s.value is not None else []
        return access.tensor, found

    def bounds(self, side: Side, at: dict[int, ir.Value]) -> list[ir.Value]:
        """Conditions under which a factor that is copied is not 0."""
        return self.copied(self.access(side).bounds, at)

    def copied(
        self, values: Sequence[ir.Value], at: dict[int, ir.Value], elements: Mapping[int, ir.Value] | None = None
    ) -> list[ir.Value]:  # fmt: skip
        """Values that the body computes of its indices, and of what its operands have, at coordinates; `elements` are those that
        were loaded already."""

        def element(n: int) -> ir.Value:
            known = (elements or {}).get(n)
            return memref.LoadOp(self.operands[n], self.subscripts(n, at)).result if known is None else known

        here = Body(self.body, element, lambda d: at[self.dims[d]])
        return [here.value(v) for v in values]

    def arguments(self, value: ir.Value) -> list[int]:
        return arguments_of(self.body, value)

    def subscripts(self, n: int, at: dict[int, ir.Value]) -> list[ir.Value]:
        return [at[self.dims[d]] for d in self.operand_dims[n]]

    def evaluate(
        self, value: ir.Value, at: dict[int, ir.Value], elements: Mapping[int, ir.Value] | None = None,
        element: mlir.Element | None = None,
    ) -> ir.Value:  # fmt: skip
        """A value of the body at coordinates, in the staged type or that of `element`."""
        (result,), element = self.copied([value], at, elements), element or self.element
        return result if result.type == element else arith.truncf(element, result)


def is_identity(type_: ir.MemRefType) -> bool:
    return not isinstance(type_.layout, ir.StridedLayoutAttr)


class Thread:
    """This thread's number, its warp and lane; and the kernel's block of operations, where registers are
    declared.
    """

    def __init__(self) -> None:
        self.block = ir.InsertionPoint.current.block
        self.number = gpu.ThreadIdOp(gpu.Dimension.x).result
        self.warp = arith.shrui(self.number, mlir.index(5))
        self.lane = arith.andi(self.number, mlir.index(31))

    @property
    def group(self) -> ir.Value:
        """Of four lanes, which have a row of 8 in a matrix instruction's fragment."""
        return arith.shrui(self.lane, mlir.index(2))

    @property
    def member(self) -> ir.Value:
        """Of such a group: each has two adjacent elements of the row."""
        return arith.andi(self.lane, mlir.index(3))

    def reread_lane(self) -> Thread:
        """The same thread, whose lane a shuffle tells: what follows from it is computed here, and not before a loop around, which
        would take registers."""
        found, i32 = copy(self), ir.IntegerType.get_signless(32)
        lane = arith.index_cast(i32, self.lane)
        own = gpu.ShuffleOp(lane, lane, mlir.constant(WARP, i32), gpu.ShuffleMode.IDX).results[0]
        found.lane = locations.named(arith.index_cast(ir.IndexType.get(), own), "same_lane")
        return found
