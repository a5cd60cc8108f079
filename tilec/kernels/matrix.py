"""What kernels of contractions have in common: factors, and the pipeline that brings them; and tiles of results that are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilec.analysis import bf16_split
from tilec.core.hardware import LINE, WARPGROUP, WIDE
from tilec.core.quantities import count
from tilec.core.target import Target
from tilec.kernels.base import Family, KernelPlan, Refusal, Sides, listed, option

BYTES = {
    "i8": 1, "u8": 1, "f8e4m3": 1, "f8e5m2": 1, "bf16": 2, "bf16x3": 2, "f16": 2, "i32": 4, "f32": 4, "tf32": 4, "f64": 8
}  # fmt: skip
"""Of the types in which factors are staged."""
ELEMENTS = {"u8": "i8", "bf16x3": "bf16", "f8e4m3": "f8E4M3FN", "f8e5m2": "f8E5M2", "tf32": "f32"}
"""MLIR's names of those that it calls otherwise; of tf32 the type that it is stored in."""
BARRIERS = 256  # bytes
DEEPEST = {"fma": 3, "mma.sync": 6, "wgmma": 8}
"""Stages; more hide no more latency."""
ASYNC = {"async": 16, "async8": 8, "async4": 4}
"""Ways to copy past the registers of threads, by the bytes of a piece (cp.async)."""
BY = {
    "tma": "loaded by TMA", "async": "loaded by cp.async", "async8": "loaded by cp.async in pieces of 8 bytes",
    "async4": "loaded by cp.async in pieces of 4 bytes", "registers": "loaded through registers",
}  # fmt: skip
_SHOWN_AS_ONE = (
    "multiplicand", "rows", "columns", "between", "inner", "left_k_major", "right_k_major", "left_copy", "right_copy"
)  # fmt: skip


@dataclass(frozen=True)
class MatrixKernel(Family, backend="cuda"):
    """A contraction in tiles: a block multiplies rows of the left factor by columns of the right one, in steps along what is summed
    over, and the factors of several steps are on their way to shared memory. The sums are in registers. They are stored
    (`StoredContraction`), or reduced, or weights of another contraction (`ContractionChain`).

    C[rows; columns] += left[rows; inner] * right[inner; columns]
    """

    result: ClassVar[str] = "C"
    orders_by_loops = False

    multiplicand: str = option("the type of both factors in shared memory", fixed=True)
    rows: tuple[int, ...] = option("the dimensions of the result's rows", dims=True, fixed=True)
    inner: tuple[int, ...] = option("the dimensions that are summed over (k)", dims=True, fixed=True)
    left_k_major: bool = option("the left factor is contiguous along `inner` (k-major), else along its rows", fixed=True)
    right_k_major: bool = option(
        "the right factor is contiguous along `inner` (k-major), else along its columns", fixed=True
    )
    block: tuple[int, ...] = option("rows and columns that a block multiplies at a time, and how much of `inner` a stage has")
    stages: int = option(
        "pipeline stages: steps whose factors, but for one that stays there, are in shared memory at a time",
        shown="{} in shared memory", orders=False,
    )  # fmt: skip
    overlap_launch: bool | None = option(
        "the kernel is launched while the kernel before it ends (programmatic dependent launch)", default=None, off=False,
        orders=False,
    )

    def described(self, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
        sides = list(zip(("left", "right"), ((self.rows,), self.column_sets), self.k_major, self.copies))
        rows, inner = (listed(dims, names) for dims in (self.rows, self.inner))
        columns = " | ".join(listed(dims, names) for dims in self.column_sets)
        product = f"{self.result}[{rows}; {columns}] += left[{rows}; {inner}] * right[{inner}; {columns}]"
        yield "product", f"{product}, by {self.instruction}"
        yield "threads", self._threads
        for side, own, k_major, copy in sides:
            along = " | ".join(listed(dims[-1:], names) for dims in own)
            contiguous = "k-major" if k_major else f"contiguous along {along}"
            yield f"{side} factor", f"{self.multiplicand}, {contiguous}, {BY[copy]}"
        yield from self.options_in_use(names, without=(*_SHOWN_AS_ONE, *self.not_shown))

    def order(self) -> tuple[object, ...]:
        """An element has one sum, whatever rows and columns its block has beside it. A step along what is summed over counts."""
        return tuple(("block", self.block[self.first_ordered :]) if o == ("block", self.block) else o for o in super().order())

    def ordered_as(self, other: Family) -> Family:
        found = super().ordered_as(other)
        assert isinstance(found, MatrixKernel) and isinstance(other, MatrixKernel)
        return replace(found, block=(*self.block[: self.first_ordered], *other.block[self.first_ordered :]))

    @property
    def first_ordered(self) -> int:
        """The first number of `block` that the order of sums depends on."""
        return 2

    @property
    def sides(self) -> Sides:
        """The dimensions of rows, and of columns."""
        raise NotImplementedError

    @property
    def column_sets(self) -> tuple[tuple[int, ...], ...]:
        """The columns of each result, where tiles of several follow one another."""
        return (self.sides[1],)

    @property
    def not_shown(self) -> tuple[str, ...]:
        """Further options that `explain` leaves out."""
        return ()

    @property
    def _threads(self) -> str:
        multiply, whole = self.block_threads // WARPGROUP - 1, f"{self.block_threads} a block"
        if self.instruction != "wgmma":
            return whole
        return f"{whole}: {count(multiply, 'warpgroup')} {'multiply' if multiply > 1 else 'multiplies'}, 1 loads"

    @property
    def block_threads(self) -> int:
        raise NotImplementedError

    @property
    def instruction(self) -> str:
        raise NotImplementedError

    @property
    def k_major(self) -> tuple[bool, bool]:
        return self.left_k_major, self.right_k_major

    @property
    def copies(self) -> tuple[str, str]:
        """How each factor reaches shared memory: "tma" (a box at a time, by the hardware), a key of `ASYNC` (a piece a thread, past
        the registers), "registers" (computed by threads)."""
        raise NotImplementedError


@dataclass(frozen=True)
class StoredContraction(MatrixKernel, backend="cuda"):
    """A contraction whose result is stored, after what the program computes from each element."""

    columns: tuple[int, ...] = option(
        "the dimensions of the result's columns; the result is contiguous along the last", dims=True, fixed=True
    )
    left_copy: str = option(
        "how the left factor reaches shared memory: `tma` (boxes), by threads that start copies (`async`, `async8`, `async4`: "
        "cp.async of 16, 8, 4 bytes), or through their `registers`", fixed=True, orders=False,
    )  # fmt: skip
    right_copy: str = option("how the right factor reaches shared memory", fixed=True, orders=False)
    block: tuple[int, ...] = option(
        "rows and columns of a block's tile of the result, and elements along `inner` of one pipeline stage",
        shown="{} (rows x columns x inner)",
    )
    group_rows: int = option(
        "rows of tiles that blocks compute together, so that blocks of the same time share factors in L2 (grouped, or "
        "swizzled, tile order)",
        default=1, shown="{} rows of tiles at a time, for L2", orders=False,
    )  # fmt: skip
    across_batches: bool = option(
        "these rows go on from one batch to the next, whose right factor may be the same", default=False,
        shown="rows of several batches", modelled=False, orders=False,
    )  # fmt: skip

    products: int = option(
        "products of the left factor with further right factors whose sums a block has side by side: each has its share of the "
        "columns of `block`", default=1, fixed=True, shown="{} of one left factor, side by side in a tile",
    )  # fmt: skip

    def sides_of(self, dims: Collection[int], inner: Collection[int]) -> Sides:
        return self.sides

    @property
    def sides(self) -> Sides:
        return self.rows, self.columns

    @property
    def copies(self) -> tuple[str, str]:
        return self.left_copy, self.right_copy

    def of_sibling(self, number: int) -> StoredContraction:
        """The options of the tiles of one result."""
        return self

    @property
    def own_columns(self) -> int:
        """Of a block's columns, those of one product."""
        return self.block[1] // self.products

    @property
    def element_bytes(self) -> int:
        return BYTES[self.multiplicand]

    @property
    def stage_bytes(self) -> int:
        """Of shared memory that one step of both factors takes."""
        return sum(self.step_bytes)

    @property
    def step_bytes(self) -> tuple[int, int]:
        """Of shared memory that one step of each factor takes."""
        *sides, bk = self.block
        pads = [padding(self.instruction, size, major) for size, major in zip(self.side_bytes, self.k_major)]
        sizes = (-(-n // self.slab(side)) * self.slab(side) for side, n in enumerate(sides))
        lines = [(n, bk + p) if major else (bk, n + p) for n, p, major in zip(sizes, pads, self.k_major)]
        left, right = (self.parts * size * a * b for size, (a, b) in zip(self.side_bytes, lines))
        return left, right

    @property
    def parts(self) -> int:
        """Numbers in shared memory for each number of a factor."""
        return bf16_split.COUNT if self.multiplicand == bf16_split.KIND else 1

    @property
    def stored(self) -> tuple[str, str]:
        """The types of both factors in shared memory."""
        return self.multiplicand, self.multiplicand

    @property
    def side_bytes(self) -> tuple[int, int]:
        """Of an element of each factor in shared memory."""
        left, right = (BYTES[kind] for kind in self.stored)
        return left, right

    @property
    def other_bytes(self) -> int:
        """Bytes of shared memory beside the stages: barriers, and the epilogue's buffer if it does not share memory with
        the stages."""
        return BARRIERS

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage_bytes + self.other_bytes

    @property
    def deepest(self) -> int:
        """Stages that have a use. Two where nothing arrives on its own: threads then fetch the next step while they compute."""
        alone = all(copy == "registers" for copy in self.copies) and self.instruction != "wgmma"
        return 2 if alone else DEEPEST[self.instruction]

    def piece(self, side: int) -> int:
        """Elements of a factor that are copied at once, which must lie inside one run of a block's box."""
        if self.k_major[side] or self.copies[side] == "registers":
            return 1
        return max(1, ASYNC.get(self.copies[side], LINE) // self.side_bytes[side])

    def slab(self, side: int) -> int:
        """Rows or columns whose lines are as long as those of one: `wgmma` reads lines of 128 bytes."""
        by_lines = self.instruction == "wgmma" and not self.k_major[side]
        return LINE // self.side_bytes[side] if by_lines else self.piece(side)

    # ---- checks ----------------------------------------------------------------------------------------------------------

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        return self.refuse_shape() or self._refuse_numbers() or self._refuse_tile(kernel)

    def refuse_shape(self) -> Refusal | None:
        """Why the passes have no code for a block of this shape."""
        raise NotImplementedError

    def _refuse_numbers(self) -> Refusal | None:
        if not 2 <= self.stages <= self.deepest:
            return Refusal("stages", f"`stages` must be from 2 to {self.deepest} here, not {self.stages}")
        if self.group_rows < 1:
            return Refusal("group_rows", "`group_rows` must be at least 1")
        return None

    def _refuse_tile(self, kernel: KernelPlan) -> Refusal | None:
        """A block's tile is a box of C, with no more points than its block has rows and columns."""
        tile = dict(zip(kernel.grid, kernel.tile))
        for d, size in tile.items():
            if size > 1 and d not in (*self.rows, *self.columns):
                why = f"dimension {d} is a batch dimension (both factors have it), so the tile must be 1 there, not {size}"
                return Refusal("tile", why)
        sides = (("rows", self.rows, 0), *(("columns", dims, 1) for dims in self.column_sets))
        for name, dims, side in sides:
            box, most = [tile[d] for d in dims], (self.block[0], self.own_columns)[side]
            if not box:  # a single row or column
                continue
            if prod(box) > most:
                return Refusal("tile", f"`block` has {most} {name}, and the tile has {prod(box)}")
            if not whole_pieces(box, self.piece(side)):
                why = f"copies move {self.piece(side)} elements at once, and the {name} of the tile {box} are runs of {box[-1]}"
                return Refusal("tile", f"{why}: the last size must be a multiple of {self.piece(side)}, or all others 1")
            if box[-1] % self.piece(side) and box[-1] < kernel.extents[dims[-1]] and self.copies[side] != "tma":
                why = f"copies move {self.piece(side)} {name} at once, and tiles of {box[-1]} begin within them"
                return Refusal("tile", why)
            if prod(box) == 1 and self.copies[side] == "tma":
                return Refusal("tile", f"a tile must have at least 2 {name} where TMA copies boxes")
            unit = WIDE // self.side_bytes[side]  # hardware copies no other boxes
            in_lines = self.copies[side] == "tma" and not self.k_major[side]
            if in_lines and box[-1] % unit and box[-1] < kernel.extents[dims[-1]]:
                why = f"TMA copies boxes that begin at multiples of {unit} {name}, and tiles of {box[-1]} begin between them"
                return Refusal("tile", why)
        return None


def whole_pieces(box: Sequence[int], piece: int) -> bool:
    """Whether runs along the last dimension of a box consist of whole pieces, or the box is one run."""
    return not box or box[-1] % piece == 0 or prod(box[:-1]) == 1


def padding(instruction: str, size: int, k_major: bool) -> int:
    """Elements of `size` bytes that follow a line so that the accesses of a warp lie in different banks."""
    if instruction == "fma":
        return WIDE // size if k_major else 0
    return 8 if size == 4 and not k_major else 0
