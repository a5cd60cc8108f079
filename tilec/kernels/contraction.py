"""CUDA kernels of contractions: one contraction by warps or by warpgroups, or a chain of two contractions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from tilec.analysis import parts
from tilec.core.hardware import LINE, ROWS, WARP, WARPGROUP, WIDE
from tilec.core.quantities import count
from tilec.core.target import Target
from tilec.cost.chain import CHAIN_ROWS, WARP_ROWS, fits_granule
from tilec.cost.contraction import block_shapes
from tilec.kernels.base import Family, KernelPlan, Refusal, listed, option

BYTES = {
    "i8": 1, "u8": 1, "f8e4m3": 1, "f8e5m2": 1, "bf16": 2, "bf16x3": 2, "f16": 2, "i32": 4, "f32": 4, "tf32": 4, "f64": 8
}  # fmt: skip
"""Of the types in which factors are staged."""
ELEMENTS = {"u8": "i8", "bf16x3": "bf16", "f8e4m3": "f8E4M3FN", "f8e5m2": "f8E5M2", "tf32": "f32"}
"""MLIR's names of those that it calls otherwise; of tf32 the type that it is stored in."""
BARRIERS = 256  # bytes
BARRIER = 8  # bytes of one
OTHER = 24  # registers of a thread for addresses and loops, at least
HELD = {"copied": 224, "computed": 176, "gathered": 160}
"""Registers of a thread for data, beside those for addresses; fewer where it computes factors, or finds their elements, since
what is known of a place before the loop over k is kept."""
PARTIAL = {1: 176, 2: 192}
"""By the sets of partial sums: registers
of a thread for sums, and for partial sums that leave the matrix units, beside those for scales and addresses."""
DEEPEST = {"fma": 3, "mma.sync": 6, "wgmma": 8}
"""Stages; more hide no more latency."""
BY = {
    "tma": "loaded by TMA", "async": "loaded by cp.async", "registers": "loaded through registers"
}  # fmt: skip
MOST_PARTS = 256  # that one block combines
_SHOWN_TOGETHER = (
    "multiplicand", "rows", "columns", "inner", "left_k_major", "right_k_major", "left_copy", "right_copy", "unit"
)  # fmt: skip


@dataclass(frozen=True)
class MatrixKernel(Family, backend="cuda"):
    """The options that contractions by warps and by warpgroups share.

    C[rows; columns] += left[rows; inner] * right[inner; columns]
    """

    multiplicand: str = option("the type of both factors in shared memory", fixed=True)
    rows: tuple[int, ...] = option("the dimensions of the result's rows", dims=True, fixed=True)
    columns: tuple[int, ...] = option(
        "the dimensions of the result's columns; the result is contiguous along the last", dims=True, fixed=True
    )
    inner: tuple[int, ...] = option("the dimensions that are summed over (k)", dims=True, fixed=True)
    left_k_major: bool = option("the left factor is contiguous along `inner` (k-major), else along its rows", fixed=True)
    right_k_major: bool = option(
        "the right factor is contiguous along `inner` (k-major), else along its columns", fixed=True
    )
    block: tuple[int, ...] = option(
        "rows and columns of a block's tile of the result, and elements along `inner` of one pipeline stage",
        shown="{} (rows x columns x inner)",
    )
    stages: int = option(
        "pipeline stages: steps along `inner` whose factors are in shared memory at a time", shown="{} in shared memory"
    )
    group_rows: int = option(
        "rows of tiles that blocks compute together, so that blocks of the same time share factors in L2 (grouped, or "
        "swizzled, tile order)",
        default=1, shown="{} rows of tiles at a time, for L2",
    )  # fmt: skip
    overlap_launch: bool | None = option(
        "the kernel is launched while the kernel before it ends (programmatic dependent launch)", default=None, off=False
    )

    def described(self, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
        rows, columns, inner = (listed(dims, names) for dims in (self.rows, self.columns, self.inner))
        yield "product", f"C[{rows}; {columns}] += left[{rows}; {inner}] * right[{inner}; {columns}], by {self.instruction}"
        yield "threads", self._threads
        sides = (("left", self.rows, self.left_k_major), ("right", self.columns, self.right_k_major))
        for (side, own, k_major), copy in zip(sides, self.copies):
            contiguous = listed(self.inner[-1:] if k_major else own[-1:], names)
            yield f"{side} factor", f"{self.multiplicand}, {'k-major' if k_major else 'contiguous along ' + contiguous}, {BY[copy]}"
        yield from self.options_in_use(names, without=_SHOWN_TOGETHER)

    @property
    def _threads(self) -> str:
        return f"{self.block_threads} a block"

    @property
    def instruction(self) -> str:
        raise NotImplementedError

    @property
    def k_major(self) -> tuple[bool, bool]:
        return self.left_k_major, self.right_k_major

    @property
    def copies(self) -> tuple[str, str]:
        """How each factor reaches shared memory: "tma" (a box at a time, by the hardware), "async" (16 bytes a thread, past the
        registers), "registers" (computed by threads)."""
        raise NotImplementedError

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
        sizes = (-(-n // self.piece(side)) * self.piece(side) for side, n in enumerate(sides))
        lines = [(n, bk + p) if major else (bk, n + p) for n, p, major in zip(sizes, pads, self.k_major)]
        left, right = (self.parts * size * a * b for size, (a, b) in zip(self.side_bytes, lines))
        return left, right

    @property
    def parts(self) -> int:
        """Numbers in shared memory for each number of a factor."""
        return parts.COUNT if self.multiplicand == parts.KIND else 1

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
        return 2 if all(copy == "registers" for copy in self.copies) else DEEPEST[self.instruction]

    def piece(self, side: int) -> int:
        """Elements of a factor that are copied at once, which must lie inside one run of a block's box."""
        if self.k_major[side] or self.copies[side] == "registers":
            return 1
        return max(1, (LINE if self.instruction == "wgmma" else WIDE) // self.side_bytes[side])

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
        for side, (name, dims) in enumerate((("rows", self.rows), ("columns", self.columns))):
            box, most = [tile[d] for d in dims], self.block[side]
            if prod(box) > most:
                return Refusal("tile", f"`block` has {most} {name}, and the tile has {prod(box)}")
            if not whole_pieces(box, self.piece(side)):
                why = f"copies move {self.piece(side)} elements at once, and the {name} of the tile {box} are runs of {box[-1]}"
                return Refusal("tile", f"{why}: the last size must be a multiple of {self.piece(side)}, or all others 1")
            if box[-1] % self.piece(side) and box[-1] < kernel.extents[dims[-1]] and self.copies[side] != "tma":
                why = f"copies move {self.piece(side)} {name} at once, and tiles of {box[-1]} begin within them"
                return Refusal("tile", why)
            if prod(box) == 1 and self.instruction == "wgmma":
                return Refusal("tile", f"a tile must have at least 2 {name} where TMA copies boxes")
        return None


def whole_pieces(box: Sequence[int], piece: int) -> bool:
    """Whether runs along the last dimension of a box consist of whole pieces, or the box is one run."""
    return not box or box[-1] % piece == 0 or prod(box[:-1]) == 1


@dataclass(frozen=True)
class Contraction(MatrixKernel, name="contraction"):
    """A contraction by warps: `mma.sync` on matrix units (tensor cores), or `fma` without them."""

    unit: str = option("`mma.sync` or `fma`", fixed=True)
    warps: tuple[int, ...] = option(
        "warps along the block's rows, and along its columns", shown="{} (along rows x columns)"
    )
    left_copy: str = option(
        "how the left factor reaches shared memory: `async` (cp.async), or through `registers`", fixed=True
    )
    right_copy: str = option("how the right factor reaches shared memory", fixed=True)
    left_stored: str = option(
        "the type of the left factor in shared memory, if threads convert it to the multiplicand where they load it from there",
        default="", fixed=True, shown="{}, converted on the way from there",
    )  # fmt: skip
    right_stored: str = option(
        "the same of the right factor", default="", fixed=True, shown="{}, converted on the way from there"
    )
    gathers: bool = option(
        "threads compute the subscripts of a factor's elements", default=False, fixed=True,
        shown="{}: threads compute the subscripts of a factor's elements",
    )  # fmt: skip

    @property
    def instruction(self) -> str:
        return self.unit

    @property
    def copies(self) -> tuple[str, str]:
        return self.left_copy, self.right_copy

    @property
    def stored(self) -> tuple[str, str]:
        return self.left_stored or self.multiplicand, self.right_stored or self.multiplicand

    @property
    def block_threads(self) -> int:
        return 32 * prod(self.warps)

    def refuse_shape(self) -> Refusal | None:
        if len(self.block) != 3 or len(self.warps) != 2:
            return Refusal("block", "`block` must be rows, columns and inner elements; `warps` must be two numbers")
        shapes = _shapes(self.unit, self.element_bytes)
        if (*self.block, *self.warps) not in shapes:
            return _nearest(self, shapes)
        bm, bn, bk = self.block
        if self.unit == "fma" and bk < 16 and (bm, bn) != (32, 32):
            return Refusal("block", f"{bk} inner elements a step are too few for a block of {bm} x {bn}")
        if self.unit == "mma.sync" and (
            bm // self.warps[0] % 16 or bn // self.warps[1] % 16 or bk * self.element_bytes < 64
        ):
            return Refusal("block", "a warp needs multiples of 16 rows and columns, and a step 64 bytes along `inner`")
        most = min(HELD[self._hardest], 65536 // self.block_threads - OTHER)
        if (held := self._held) > most:
            return Refusal(
                "block", f"a thread would hold {held} words of sums and factors, and has {most} registers for them"
            )
        return None

    @property
    def _hardest(self) -> str:
        return "gathered" if self.gathers else "computed" if "registers" in self.copies else "copied"

    @property
    def _held(self) -> int:
        """Registers of a thread for sums, for the factors of one step, and for prefetched elements."""
        bm, bn, bk = self.block
        words, threads = max(1, self.element_bytes // 4), self.block_threads
        sums = bm * bn // threads
        fetched = sum(size * bk // threads for copy, size in zip(self.copies, (bm, bn)) if copy == "registers")
        if self.unit == "mma.sync":
            return sums + fetched + 2 * (bm // self.warps[0] // 4 + bn // self.warps[1] // 4)
        high, wide = bm // (4 * self.warps[0]), bn // (8 * self.warps[1])
        products = 32 if self.multiplicand == "i32" else 0  # before they are added
        return products + words * (sums + fetched + 2 * fma_group(high, wide, 32 * words) * (high + wide))


@dataclass(frozen=True)
class WarpgroupContraction(MatrixKernel, name="warpgroup_contraction"):
    """A contraction by `wgmma` (Hopper): persistent blocks, in which one warpgroup loads by TMA and one or two multiply."""

    persistent_blocks: int = option("blocks that are launched, each of which computes tile after tile")
    inner_box: tuple[int, ...] = option(
        "elements of a step along each of `inner`, of which TMA copies a box; else a step is along the last one", default=(),
        fixed=True, off=(), shown="{} of inner in a step",
    )  # fmt: skip
    promoted: int = option(
        "elements along `inner` whose sums the matrix units keep: after so many, they are added in registers, as the units have "
        "fewer bits, or the sum is scaled", default=0, fixed=True, shown="sums of {} elements are added in registers",
    )  # fmt: skip
    scale_columns: int = option(
        "adjacent columns of a tile that share the scales of such a sum", default=0, fixed=True,
        shown="{} adjacent columns share a scale",
    )  # fmt: skip
    partials: int = option(
        "sets of registers for such sums: with two, a thread adds one under the products of the other", default=1,
        shown="{}: sums are added under the products of the next",
    )  # fmt: skip
    alternate_tiles: bool = option(
        "two warpgroups multiply, each a tile of its own: the epilogue of one is under the products of the other (ping-pong)",
        default=False, shown="{}: each warpgroup multiplies a tile of its own",
    )  # fmt: skip
    cluster: tuple[int, ...] = option(
        "blocks of a cluster along rows and columns of tiles: those along columns share a tile of the left factor, those along "
        "rows one of the right factor, of which each copies a part to all of them (multicast)",
        default=(1, 1), shown="{} (along rows x columns)",
    )  # fmt: skip
    kept_steps: int = option(
        "steps of the right factor, all of them, that stay in shared memory: each block copies them once; 0: they come with those "
        "of the left factor", default=0, shown="{} steps of the right factor stay in shared memory",
    )  # fmt: skip
    result_boxes: int = option(
        "boxes of the result that a warp has room for in shared memory, of 16 rows of 128 bytes: TMA copies one while the warp "
        "fills the next",
        default=2, shown="{} a warp in shared memory",
    )  # fmt: skip

    @property
    def _threads(self) -> str:
        return _warpgroups(self.block_threads, self.warps[0] // 4)

    @property
    def instruction(self) -> str:
        return "wgmma"

    @property
    def copies(self) -> tuple[str, str]:
        return "tma", "tma"

    @property
    def warps(self) -> tuple[int, int]:
        """That multiply, over rows and columns, or over two tiles."""
        return 8 if self.alternate_tiles else self.block[0] // 16, 1

    @property
    def block_threads(self) -> int:
        return 32 * prod(self.warps) + WARPGROUP

    @property
    def other_bytes(self) -> int:
        """Of the epilogue: sums of 64 columns that threads exchange, or boxes of the result that TMA copies."""
        kept = self.kept_steps * (self.step_bytes[1] + 2 * BARRIER)
        return BARRIERS + 16 * self.warps[0] * max(4 * widest(self.block[1], 64), LINE * self.result_boxes) + kept

    @property
    def stage_bytes(self) -> int:
        return self.step_bytes[0] if self.kept_steps else sum(self.step_bytes)

    def refuse_shape(self) -> Refusal | None:
        if len(self.block) != 3 or self.persistent_blocks < 1:
            return Refusal("block", "`block` must be rows, columns and inner elements; `persistent_blocks` at least 1")
        shapes = _shapes("wgmma", self.element_bytes)
        if self.block not in shapes:
            return _nearest(self, shapes)
        for side, (name, size) in enumerate(zip(("rows", "columns"), self.block)):
            multiple = (ROWS, 32)[side]  # of columns, the last half of a line may be another tile's
            if not self.k_major[side] and (size < ROWS or size % multiple or self.element_bytes != 2):
                why = f"a factor that is contiguous along {name} takes a multiple of {multiple} {name} from 64 on"
                why += " of 16-bit elements"
                return Refusal("block", f"{why}, not {size} of {self.multiplicand}")
        if self.promoted % self.block[2]:
            return Refusal("block", f"{self.block[2]} elements a step do not divide the {self.promoted} that are summed at a time")
        if len(self.cluster) != 2 or min(self.cluster) < 1 or prod(self.cluster) > min(8, self.persistent_blocks):
            return Refusal("cluster", "`cluster` must be two numbers, of at most 8 blocks, and no more than `persistent_blocks`")
        if not 1 <= self.result_boxes <= 8:
            return Refusal("result_boxes", f"`result_boxes` must be from 1 to 8, not {self.result_boxes}")
        if self.partials not in ((1, 2) if self.promoted == self.block[2] else (1,)):
            return Refusal("partials", "`partials` must be 1, or 2 where the sums of one step leave the matrix units")
        if self.alternate_tiles and self.promoted:
            return Refusal("alternate_tiles", "warpgroups have tiles of their own only where sums stay in the matrix units")
        multiply = WARPGROUP if self.alternate_tiles else 32 * prod(self.warps)
        held = self.block[0] * self.block[1] // multiply * (1 + self.partials if self.promoted else 1)
        if held > (PARTIAL[self.partials] if self.promoted else 65536 // self.block_threads - OTHER):
            return Refusal("block", f"a thread would hold {held} sums, which is more than its registers")
        return None

    def _refuse_tile(self, kernel: KernelPlan) -> Refusal | None:
        extents, tile = kernel.extents, dict(zip(kernel.grid, kernel.tile))
        return super()._refuse_tile(kernel) or self.refuse_cluster(extents, tile) or self.refuse_kept(extents, tile)

    def refuse_kept(self, extents: Mapping[int, int], tile: Mapping[int, int]) -> Refusal | None:
        """Why the right factor cannot stay in shared memory."""
        if not self.kept_steps:
            return None
        steps = self.steps(extents)
        if self.kept_steps != steps:
            return Refusal("kept_steps", f"`kept_steps` must be 0, or all {steps} steps along `inner`, not {self.kept_steps}")
        if prod(self.cluster) > 1 or self.promoted or self.alternate_tiles:
            why = "the right factor stays in shared memory of single blocks, whose warpgroups share tiles and add up all of k"
            return Refusal("kept_steps", why)
        if any(tile[d] < extents[d] for d in tile if d not in self.rows):
            return Refusal("kept_steps", "a block's tile must have all columns, if the right factor stays in shared memory")
        return None

    def steps(self, extents: Mapping[int, int]) -> int:
        """Steps along k: boxes of `inner_box`."""
        box = self.inner_box or (*(1 for _ in self.inner[1:]), self.block[2])
        return prod(-(-extents[d] // size) for d, size in zip(self.inner, box))

    def refuse_cluster(self, extents: Mapping[int, int], tile: Mapping[int, int]) -> Refusal | None:
        """Why blocks with this tile cannot share factors."""
        sides = zip(("rows", "columns"), (self.rows, self.columns), self.cluster, self.cluster[::-1])
        for side, (name, dims, blocks, shares) in enumerate(sides):
            count = prod(-(-extents[d] // tile[d]) for d in dims)
            if count % blocks:
                return Refusal("cluster", f"{count} tiles along {name} cannot be divided into clusters of {blocks}")
            if not self._shares(side, [tile[d] for d in dims], shares):
                return Refusal("cluster", f"the {name} of a tile cannot be copied in {shares} parts of multiples of 8 lines")
        return None

    def _shares(self, side: int, box: list[int], parts: int) -> bool:
        """Whether blocks can copy a factor's tile in so many parts, of whole groups of 8 lines, by which lines are swizzled."""
        if not self.k_major[side]:
            slabs, depth = -(-self.block[side] // self.piece(side)), self.block[2]
            outermost = next((size for size in self.inner_box if size > 1), depth)
            return slabs % parts == 0 or (outermost % parts == 0 and depth % (8 * parts) == 0)
        outermost = next((size for size in box if size > 1), 1)
        return parts == 1 or (outermost % parts == 0 and prod(box) % (8 * parts) == 0)


@dataclass(frozen=True)
class ContractionChain(Family, name="contraction_chain", backend="cuda"):
    """A contraction whose result (the scores) stays in registers: it is reduced along its columns, or weights a second contraction,
    as in attention."""

    unit: str = option(
        "`wgmma` (warpgroups multiply tiles that TMA loads) or `mma.sync` (warps multiply tiles that they copy by cp.async)"
    )
    multiplicand: str = option("the type of the factors in shared memory", fixed=True)
    between: int = option(
        "the dimension that the first contraction makes and that all reductions sum over: the kernel loops over it", dims=True,
        fixed=True, shown="{}: the kernel loops over it",
    )  # fmt: skip
    rows: tuple[int, ...] = option("the dimensions of the scores' rows, in the order of the first factor", dims=True, fixed=True)
    granules: tuple[int, ...] = option(
        "for each dimension of rows, how many of its elements share what the other factors have (grouped heads); 0: all",
        default=(0,), fixed=True, shown="{} rows of each dimension share the other factors (0: all)",
    )  # fmt: skip
    inner: tuple[int, ...] | None = option(
        "the dimensions that the contraction sums over, in steps of 128 bytes; none where a second contraction follows: its "
        "step is all of them", default=None, dims=True, fixed=True, shown="{}, in steps of 128 bytes",
    )  # fmt: skip
    left_k_major: bool | None = option(
        "the left factor is contiguous along `inner`, else along its rows", default=None, fixed=True, off=True
    )
    right_k_major: bool | None = option(
        "the right factor is contiguous along `inner`, else along `between`", default=None, fixed=True, off=True
    )
    weight_terms: int = option(
        "numbers of the factors' type whose sum is one f32 weight of the second contraction; 0 without one", fixed=True,
        default=1, shown="{}: an f32 weight is a sum of so many numbers",
    )  # fmt: skip
    block: tuple[int, ...] = option(
        "rows of a block, and elements along `between` of one step", shown="{} (rows x elements of a step)"
    )
    warps: int = option("warps that multiply: each has 16 rows of a block, or by `mma.sync` also 32", shown="{} multiply")
    stages: int = option(
        "pipeline stages: steps whose factors, but for a kept one, are in shared memory at a time",
        shown="{} in shared memory",
    )  # fmt: skip
    kept_left: bool | None = option(
        "a block's rows of the left factor stay in shared memory, so that only the right one comes in steps", default=None,
        off=False, shown="{}: a block's rows of the left factor stay in shared memory",
    )  # fmt: skip
    blocks_per_row: int | None = option(
        "blocks that share their rows: each takes a part of the elements along `between`; the last one combines their states, or "
        "where a second contraction follows another kernel does", default=None, off=1,
    )  # fmt: skip
    overlap_combination: bool | None = option(
        "the kernel that combines the parts of rows is launched while the parts are computed (programmatic dependent launch)",
        default=None, off=True,
    )  # fmt: skip
    ping_pong: bool = option(
        "two warpgroups alternate: the matrix products of one run during the exponentials of the other", default=False,
        shown="{}: two warpgroups alternate",
    )  # fmt: skip
    longest_first: bool = option(
        "blocks of the last rows start first, since a causal mask leaves them the most steps", default=False,
        shown="{}: blocks of the last rows start first",
    )  # fmt: skip
    growing: tuple[int, ...] = option(
        "the dimensions of rows along which a mask leaves later rows more elements", default=(), dims=True, fixed=True,
        shown="along {} a mask leaves later rows more elements",
    )  # fmt: skip
    group_batch: int = option(
        "problems of the batch (heads) whose blocks take turns where the longest rows start first, so that their factors share L2 "
        "and the shortest rows of all come last", default=1, shown="{} problems of the batch take turns",
    )  # fmt: skip
    overlap_launch: bool | None = option(
        "the kernel is launched while the kernel before it ends (programmatic dependent launch)", default=None, off=False
    )

    def described(self, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
        threads = f"{self.block_threads} a block"
        yield "threads", _warpgroups(self.block_threads, self.warpgroups) if self.unit == "wgmma" else threads
        by = "TMA" if self.unit == "wgmma" else "cp.async"
        yield "factors", f"{self.multiplicand}, loaded by {by}; products by {self.unit}"
        yield from self.options_in_use(names, without=("multiplicand", *(["weight_terms"] if self.inner else [])))

    @property
    def warpgroups(self) -> int:
        """That multiply by `wgmma`, of 64 rows each."""
        return self.block[0] // ROWS

    @property
    def block_threads(self) -> int:
        return WARPGROUP * (self.warpgroups + 1) if self.unit == "wgmma" else WARP * self.warps

    @property
    def blocks_per_tile(self) -> int:
        return 1 if self.blocks_per_row is None else self.blocks_per_row

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        if self.unit not in CHAIN_ROWS:
            return Refusal("unit", f"`unit` must be one of {', '.join(CHAIN_ROWS)}, not {self.unit}")
        if self.unit not in target.instructions(self.multiplicand) or (self.unit == "wgmma" and not target.has("tma")):
            return Refusal("unit", f"{target.name} has no {self.unit}")
        if (why := kernel.ruled_out.get(self.unit)) is not None:
            return Refusal("unit", f"`unit` cannot be {self.unit}: {why}")
        rows = CHAIN_ROWS[self.unit]
        if len(self.block) != 2 or self.block[0] not in rows or not 0 < self.block[1] <= 256 or self.block[1] % 16:
            of = ", ".join(map(str, rows[:-1])) + f" or {rows[-1]}"
            why = f"`block` must be {of} rows and a step of a multiple of 16 up to 256, not {list(self.block)}"
            return Refusal("block", why)
        heights = (16,) if self.unit == "wgmma" else WARP_ROWS
        if self.warps < 1 or self.block[0] % self.warps or self.block[0] // self.warps not in heights:
            of = " or ".join(str(self.block[0] // n) for n in heights if self.block[0] >= n)
            return Refusal("warps", f"`warps` must be {of} for {self.block[0]} rows by {self.unit}, not {self.warps}")
        if self.stages < 1:
            return Refusal("stages", "`stages` must be at least 1")
        if self.group_batch < 1:
            return Refusal("group_batch", "`group_batch` must be at least 1")
        if not 1 <= self.blocks_per_tile <= MOST_PARTS:
            return Refusal("blocks_per_row", f"`blocks_per_row` must be from 1 to {MOST_PARTS}")
        if self.ping_pong and (self.unit != "wgmma" or self.warpgroups < 2):
            return Refusal("ping_pong", "`ping_pong` needs two warpgroups, so `wgmma` and 128 rows in `block`")
        return self._refuse_reduced(kernel) if self.inner is not None else self._refuse_grid(kernel)

    def _refuse_reduced(self, kernel: KernelPlan) -> Refusal | None:
        """What a kernel without a second contraction refuses further."""
        assert self.inner is not None
        if self.unit != "wgmma":
            return Refusal("unit", "`unit` must be wgmma where no second contraction follows")
        if self.warpgroups > 2:
            why = f"`block` must be 64 or 128 rows where no second contraction follows, not {self.block[0]}"
            return Refusal("block", why)
        if self.kept_left and not self.left_k_major:
            return Refusal("kept_left", "only a left factor that is contiguous along `inner` stays in shared memory")
        if not self.right_k_major and self.block[1] % (LINE // BYTES[self.multiplicand]):
            why = f"a factor that is contiguous along columns takes steps of a multiple of 64, not {self.block[1]}"
            return Refusal("block", why)
        if self.ping_pong:
            steps = -(-prod(kernel.extents[d] for d in self.inner) * BYTES[self.multiplicand] // LINE)
            if not self.kept_left:
                return Refusal("ping_pong", "`ping_pong` needs the left factor in shared memory: `kept_left`")
            if self.stages <= steps:  # one warpgroup's steps, while the other has not read them
                return Refusal("ping_pong", f"`ping_pong` needs more `stages` than the {steps} steps of a tile")
        return self._refuse_grid(kernel)

    def _refuse_grid(self, kernel: KernelPlan) -> Refusal | None:
        tile = dict(zip(kernel.grid, kernel.tile))
        box = self.box(tile)
        fits = prod(box) == self.block[0]
        for d, t, g in zip(self.rows, box, (*self.granules, *(0 for _ in box))):
            fits = fits and tile[d] == min(t, g or t, kernel.extents[d])
        if not fits or any(t > 1 for d, t in tile.items() if d not in self.rows):
            return Refusal("tile", "`tile` must have the rows of `block` along the dimensions of rows, and 1 along all others")
        if not all(map(fits_granule, box, self.granules)):
            return Refusal("tile", f"`tile` must divide {max(self.granules)}, the rows that share the other factors")
        return None

    def box(self, tile: Mapping[int, int]) -> tuple[int, ...]:
        """The part of each dimension of rows that a block copies and multiplies, of which `tile` is inside the tensor: powers of
        two, and along the last dimension the rows that are left by the others."""
        outer = [1 << (tile[d] - 1).bit_length() for d in self.rows[:-1]]
        return (*outer, max(1, self.block[0] // prod(outer)))


@cache
def _shapes(instruction: str, size: int) -> frozenset[tuple[int, ...]]:
    """The blocks that the passes have code for, with the warps of each where these do not follow from the block. Cached, since
    planning asks for thousands of kernels."""
    shapes = block_shapes(instruction, size)
    return (
        frozenset(s[:3] for s in shapes if s[0] <= 2 * ROWS)
        if instruction == "wgmma"
        else frozenset(s[:5] for s in shapes)
    )


def _warpgroups(threads: int, multiply: int) -> str:
    """The threads of a block with one warpgroup that loads."""
    return f"{threads} a block: {count(multiply, 'warpgroup')} multiply, 1 loads" if multiply > 1 else (
        f"{threads} a block: 1 warpgroup multiplies, 1 loads"
    )  # fmt: skip


def _nearest(kernel: Contraction | WarpgroupContraction, shapes: Iterable[tuple[int, ...]]) -> Refusal:
    """The refusal of a block without code for its shape, with the nearest shape."""
    own = (*kernel.block, *kernel.warps) if isinstance(kernel, Contraction) else kernel.block
    best = min(shapes, key=lambda s: sum((abs(a - b) / max(a, b, 1)) for a, b in zip(s, own)), default=None)
    near = f"; the nearest is `block = {list(best[:3])}`" if best else ""
    near += f" with `warps = {list(best[3:])}`" if best and len(best) > 3 else ""
    asked = f"`block = {list(kernel.block)}`"
    asked += f" with `warps = {list(kernel.warps)}`" if isinstance(kernel, Contraction) else ""
    return Refusal("block", f"{kernel.instruction} has no kernel for {asked}{near}")


def padding(instruction: str, size: int, k_major: bool) -> int:
    """Elements of `size` bytes that follow a line so that the accesses of a warp lie in different banks."""
    if instruction == "fma":
        return WIDE // size if k_major else 0
    return 8 if size == 4 and not k_major else 0


def widest(columns: int, most: int) -> int:
    """The widest part of a warp's columns, up to `most`, that divides them."""
    return next((c for c in (64, 32, 16) if c <= most and columns % c == 0), 16)


def boxes_of(columns: int, size: int, most: int) -> tuple[int, int]:
    """Of a result with elements of `size` bytes that warps copy from shared memory: the columns of a box, and the boxes, at most
    `most`, that a warp uses. Each tile begins with the same one, so that their number divides the boxes of a tile."""
    box = widest(columns, LINE // size)
    return box, next(boxes for boxes in range(most, 0, -1) if columns // box % boxes == 0)


def fma_group(high: int, wide: int, bits: int) -> int:
    """Products of one group of a thread that holds `high` x `wide` sums: wide loads where registers allow two groups."""
    return 2 if bits > 32 or high * wide > 32 else 4
