"""CUDA kernels of one contraction: by warps or by warpgroups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from math import prod

from tilec.core.hardware import BOX, LINE, ROWS, WARP, WARPGROUP
from tilec.cost.contraction import block_shapes
from tilec.kernels.base import KernelPlan, Refusal, option
from tilec.kernels.matrix import BARRIERS, StoredContraction

BARRIER = 8  # bytes of one
OTHER = 24  # registers of a thread for addresses and loops, at least
HELD = {"copied": 224, "computed": 176, "gathered": 160}
"""Registers of a thread for data, beside those for addresses; fewer where it computes factors, or finds their elements, since
what is known of a place before the loop over k is kept."""
PARTIAL = 176
"""Registers of a thread for sums, and for partial sums that leave the matrix units, beside those for scales and addresses, of up to
two warpgroups; of three, whose threads have fewer, no more than of sums alone."""
SHARED = 40  # registers of these for steps that blocks share, and what others have
SPAN = 8  # partial sums whose scales warps keep in shared memory: 32 bytes that are adjacent along k
EACH = WARP // SPAN  # lines of scales that a warp fetches at a time
SCALES = 8  # registers of a thread for scales that have room beside most partial sums
CONVERTED = 64  # elements of k that a warp converts at once
MOST_WARPS = 16  # that multiply


@dataclass(frozen=True)
class Contraction(StoredContraction, name="contraction"):
    """A contraction by warps: `mma.sync` on matrix units (tensor cores), or `fma` without them."""

    unit: str = option("`mma.sync` or `fma`", fixed=True)
    warps: tuple[int, ...] = option(
        "warps along the block's rows, and along its columns", shown="{} (along rows x columns)", orders=False
    )
    inner_warps: int = option(
        "as many warps for the same rows and columns: each multiplies its part of every step, and their sums are added at the end",
        default=1, shown="{} warps share a step along inner",
    )  # fmt: skip
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
    def first_ordered(self) -> int:
        return 2 if self.unit == "mma.sync" else 0  # threads without matrix units add up what their tile has

    @property
    def instruction(self) -> str:
        return self.unit

    @property
    def not_shown(self) -> tuple[str, ...]:
        return ("unit",)

    @property
    def stored(self) -> tuple[str, str]:
        return self.left_stored or self.multiplicand, self.right_stored or self.multiplicand

    @property
    def block_threads(self) -> int:
        return 32 * prod(self.warps) * self.inner_warps

    def refuse_shape(self) -> Refusal | None:
        if len(self.block) != 3 or len(self.warps) != 2:
            return Refusal("block", "`block` must be rows, columns and inner elements; `warps` must be two numbers")
        shapes, (bm, bn, bk) = _shapes(self.unit, self.element_bytes), self.block
        if not 1 <= self.inner_warps <= MOST_WARPS // max(1, prod(self.warps)) or (self.unit == "fma" and self.inner_warps > 1):
            why = f"`inner_warps` must be from 1 to {MOST_WARPS} warps in all, and 1 without matrix units"
            return Refusal("inner_warps", f"{why}, not {self.inner_warps}")
        if bk % self.inner_warps or (bm, bn, bk // self.inner_warps, *self.warps) not in shapes:
            return _nearest(self, shapes)
        if self.stored != (self.multiplicand, self.multiplicand) and bk // self.inner_warps % CONVERTED:
            why = f"a factor that is converted on the way takes multiples of {CONVERTED} along `inner` for a warp"
            return Refusal("block", f"{why}, not {bk // self.inner_warps}")
        if self.unit == "fma" and bk < 16 and (bm, bn) != (32, 32):
            return Refusal("block", f"{bk} inner elements a step are too few for a block of {bm} x {bn}")
        if self.unit == "mma.sync" and (
            bm // self.warps[0] % 16 or bn // self.warps[1] % 16 or bk * self.element_bytes < 64
        ):
            return Refusal("block", "a warp needs multiples of 16 rows and columns, and a step 64 bytes along `inner`")
        if self.products > 1 and (self.unit != "mma.sync" or bn % (16 * self.warps[1] * self.products) or self.element_bytes != 2):
            why = f"a warp needs multiples of 16 columns of each of {self.products} products, by mma.sync of 16-bit elements"
            return Refusal("block", why)
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
            words = 2  # of what is multiplied, and of what is loaded meanwhile
            if self.stored != (self.multiplicand, self.multiplicand):
                words = min(2, bk // self.inner_warps // CONVERTED) * CONVERTED // 16
            return sums * self.inner_warps + fetched + words * (bm // self.warps[0] // 4 + bn // self.warps[1] // 4)
        high, wide = bm // (4 * self.warps[0]), bn // (8 * self.warps[1])
        products = 32 if self.multiplicand == "i32" else 0  # before they are added
        return products + words * (sums + fetched + 2 * fma_group(high, wide, 32 * words) * (high + wide))


@dataclass(frozen=True)
class WarpgroupContraction(StoredContraction, name="warpgroup_contraction"):
    """A contraction by `wgmma` (Hopper): persistent blocks, in which one warpgroup loads and up to three multiply."""

    persistent_blocks: int = option("blocks that are launched, each of which computes tile after tile", orders=False)
    inner_box: tuple[int, ...] = option(
        "elements of a step along each of `inner`, of which TMA copies a box; else a step is along the last one", default=(),
        fixed=True, off=(), shown="{} of inner in a step",
    )  # fmt: skip
    siblings: tuple[int, ...] = option(
        "for each of several results of one left factor, whose tiles follow one another, how many of `columns` are its own",
        default=(), fixed=True, off=(), shown="{} of columns: tiles of several results follow one another",
    )  # fmt: skip
    longest_box: tuple[int, ...] = option(
        "rows and columns of a tile along one dimension, at most, of which TMA copies a box: boxes that skip elements are shorter",
        default=(BOX, BOX), fixed=True, shown="at most {} along one dimension", orders=False,
    )  # fmt: skip
    two_level: int = option(
        "elements along `inner` whose sums the matrix units keep: after so many, they are added in registers, as the units have "
        "fewer bits, or the sum is scaled", default=0, fixed=True, shown="sums of {} elements are added in registers",
    )  # fmt: skip
    scale_rows: int = option(
        "whether rows have scales of such a sum: 1, or 0", default=0, fixed=True, shown="{}: each row has a scale",
    )  # fmt: skip
    scale_columns: int = option(
        "adjacent columns of a tile that share the scales of such a sum", default=0, fixed=True,
        shown="{} adjacent columns share a scale",
    )  # fmt: skip
    alternate_tiles: bool = option(
        "two warpgroups multiply, each a tile of its own: the epilogue of one is under the products of the other (ping-pong)",
        default=False, shown="{}: each warpgroup multiplies a tile of its own", orders=False,
    )  # fmt: skip
    cluster: tuple[int, ...] = option(
        "blocks of a cluster along rows and columns of tiles: those along columns share a tile of the left factor, those along "
        "rows one of the right factor, of which each copies a part to all of them (multicast)",
        default=(1, 1), shown="{} (along rows x columns)", orders=False,
    )  # fmt: skip
    kept_steps: int = option(
        "steps of the right factor, all of them, that stay in shared memory: each block copies them once; 0: they come with those "
        "of the left factor", default=0, shown="{} steps of the right factor stay in shared memory", orders=False,
    )  # fmt: skip
    stream_k: int = option(
        "tiles, the first ones, whose steps along `inner` all blocks share equally (stream-k): one with a tile's first step adds "
        "the sums of those that have the others; 0: every tile is one block's. docs/performance.md says why plans do without",
        default=0,
        shown="{} tiles, whose steps all blocks share",
    )  # fmt: skip
    result_boxes: int = option(
        "boxes of the result that a warp has room for in shared memory, of 16 rows of 128 bytes: TMA copies one while the warp "
        "fills the next",
        default=2, shown="{} a warp in shared memory", modelled=False, orders=False,
    )  # fmt: skip

    @property
    def instruction(self) -> str:
        return "wgmma"

    @property
    def filled(self) -> bool:
        """Whether threads bring a factor to shared memory."""
        return self.copies != ("tma", "tma")

    @property
    def warps(self) -> tuple[int, int]:
        """That multiply, over rows and columns, or over two tiles."""
        return 8 if self.alternate_tiles else self.block[0] // 16, 1

    @property
    def _scales(self) -> int:
        """Registers of a thread for scales of partial sums: of two rows, and of columns."""
        if self.scale_columns == 1:
            return 2 * self.scale_rows + self.block[1] // 4
        return 2 * self.scale_groups if self.joined_scales else 2 * self.scale_rows + self.scale_groups

    @property
    def scale_groups(self) -> int:
        """Groups of columns that share a scale."""
        return self.block[1] // self.scale_columns if self.scale_columns > 1 else 0

    @property
    def joined_scales(self) -> bool:
        """Whether warps keep products of the scales of a row and a group of columns, of which there are few."""
        return bool(self.scale_rows) and 1 <= self.scale_groups <= 2

    @property
    def scale_lines(self) -> int:
        """Of `SPAN` scales each, which a warp keeps in shared memory: its rows', and those that several columns share."""
        rows = ROWS // 4 * self.scale_rows
        return rows * self.scale_groups if self.joined_scales else -(-(rows + self.scale_groups) // EACH) * EACH

    @property
    def column_sets(self) -> tuple[tuple[int, ...], ...]:
        ends = [*accumulate(self.siblings, initial=0)]
        return tuple(self.columns[a:b] for a, b in pairwise(ends)) or (self.columns,)

    def tiles(self, counts: Mapping[int, int]) -> int:
        own = {d for dims in self.column_sets for d in dims}
        others = prod(n for d, n in counts.items() if d not in own)
        return others * sum(prod(counts[d] for d in dims) for dims in self.column_sets)

    def at_any_size(self, varying: Collection[int]) -> WarpgroupContraction:
        rows, columns, inner = (
            not {*varying}.isdisjoint(dims) for dims in (self.rows, (d for dims in self.column_sets for d in dims), self.inner)
        )
        high, wide = self.cluster
        kept = 0 if columns or inner else self.kept_steps
        cluster = 1 if rows else high, 1 if columns else wide
        return replace(self, stream_k=0, kept_steps=kept, cluster=cluster) if varying else self

    def of_sibling(self, number: int) -> WarpgroupContraction:
        return replace(self, columns=self.column_sets[number], siblings=()) if self.siblings else self

    @property
    def block_threads(self) -> int:
        return 32 * prod(self.warps) + WARPGROUP

    @property
    def other_bytes(self) -> int:
        """Of the epilogue: sums of 64 columns that threads exchange, or boxes of the result that TMA copies."""
        kept = self.kept_steps * (self.step_bytes[1] + 2 * BARRIER)
        exchanged = 4 * self.products * widest(self.own_columns, 64 // self.products)
        scales = 4 * SPAN * self.scale_lines * self.warps[0]
        return BARRIERS + 16 * self.warps[0] * max(exchanged, LINE * self.result_boxes) + kept + scales

    @property
    def stage_bytes(self) -> int:
        return self.step_bytes[0] if self.kept_steps else sum(self.step_bytes)

    def refuse_shape(self) -> Refusal | None:
        if len(self.block) != 3 or self.persistent_blocks < 1:
            return Refusal("block", "`block` must be rows, columns and inner elements; `persistent_blocks` at least 1")
        if not self.rows or not all(self.column_sets):
            return Refusal("block", "warpgroups multiply no single row or column")
        shapes = _shapes("wgmma", self.element_bytes)
        if self.block not in shapes:
            return _nearest(self, shapes)
        for side, (name, size) in enumerate(zip(("rows", "columns"), self.block)):
            if side:
                size = self.own_columns
            multiple = (ROWS, 32 if self.products == 1 else ROWS)[side]  # the last half of a line may be another tile's
            if not self.k_major[side] and (size < ROWS or size % multiple or self.element_bytes != 2):
                why = f"a factor that is contiguous along {name} takes a multiple of {multiple} {name} from 64 on"
                why += " of 16-bit elements"
                return Refusal("block", f"{why}, not {size} of {self.multiplicand}")
        if self.block[1] % (16 * self.products):
            return Refusal("block", f"{self.block[1]} columns are no {self.products} multiples of 16, of one product each")
        whole = {"cluster": (1, 1), "alternate_tiles": False, "kept_steps": 0}
        if self.has_several_products and (name := next((n for n, value in whole.items() if getattr(self, n) != value), "")):
            return Refusal(name, f"`{name}` must be {whole[name]} where a kernel has several products of one left factor")
        if self.two_level % self.block[2]:
            return Refusal("block", f"{self.block[2]} elements a step do not divide the {self.two_level} that are summed at a time")
        if len(self.cluster) != 2 or min(self.cluster) < 1 or prod(self.cluster) > min(8, self.persistent_blocks):
            return Refusal("cluster", "`cluster` must be two numbers, of at most 8 blocks, and no more than `persistent_blocks`")
        if not 1 <= self.result_boxes <= 8:
            return Refusal("result_boxes", f"`result_boxes` must be from 1 to 8, not {self.result_boxes}")
        if self.filled and (prod(self.cluster) > 1 or self.kept_steps or self.parts > 1 or self.has_several_products):
            why = "blocks share factors, and keep them, only where TMA copies both"
            return Refusal("cluster" if prod(self.cluster) > 1 else "kept_steps" if self.kept_steps else "left_copy", why)
        if self.alternate_tiles and self.two_level:
            return Refusal("alternate_tiles", "warpgroups have tiles of their own only where sums stay in the matrix units")
        multiply = WARPGROUP if self.alternate_tiles else 32 * prod(self.warps)
        held = self.block[0] * self.block[1] // multiply * (2 if self.two_level else 1)
        most = PARTIAL if self.two_level and self.warps[0] <= 8 else 65536 // self.block_threads - OTHER
        most -= SHARED if self.stream_k and self.two_level else 0
        if held > most or held + self._scales > most + SCALES:
            return Refusal("block", f"a thread would hold {held + self._scales} sums and scales, which is more than its registers")
        return None

    def _refuse_tile(self, kernel: KernelPlan) -> Refusal | None:
        extents, tile = kernel.extents, dict(zip(kernel.grid, kernel.tile))
        return super()._refuse_tile(kernel) or self.refuse_sizes(extents, tile) or self._refuse_stream_k(extents, tile)

    def refuse_sizes(self, extents: Mapping[int, int], tile: Mapping[int, int]) -> Refusal | None:
        """Why tiles of this size, of dimensions of these extents, cannot be copied."""
        for name, dims, most in zip(("rows", "columns"), (self.rows, self.columns), self.longest_box):
            if any(tile[d] > most for d in dims):
                return Refusal("tile", f"TMA copies at most {most} {name} along one dimension here")
        return self._refuse_unequal(tile) or self.refuse_cluster(extents, tile) or self.refuse_kept(extents, tile)

    def _refuse_unequal(self, tile: Mapping[int, int]) -> Refusal | None:
        """Why the right factors of several results, whose boxes fill the same stages, cannot have boxes of one size. One with fewer
        columns has more of its outermost dimension, beyond its tensor."""
        boxes = [[tile[d] for d in dims] for dims in self.column_sets]
        most = max(map(prod, boxes))
        for box in boxes if self.k_major[1] else []:
            inner = prod(box) // next((size for size in box if size > 1), 1)
            if most % inner or most // inner > self.longest_box[1] or (self.products > 1 and prod(box) < most):
                columns = " and ".join(str(prod(b)) for b in boxes)
                return Refusal("tile", f"the results' tiles have {columns} columns, for which there are no boxes of one size")
        return None

    def _refuse_stream_k(self, extents: Mapping[int, int], tile: Mapping[int, int]) -> Refusal | None:
        """Why blocks cannot share the steps of so many tiles."""
        if not self.stream_k:
            return None
        tiles, size = self.tiles({d: -(-extents[d] // tile[d]) for d in tile}), prod(self.cluster)
        if not 0 < self.stream_k <= tiles or self.stream_k % size:
            whole = f", in multiples of a cluster's {size}" if size > 1 else ""
            return Refusal("stream_k", f"`stream_k` must be from 0 to all {tiles} tiles{whole}, not {self.stream_k}")
        if self.two_level not in (0, self.block[2]) or self.parts > 1 or self.kept_steps or self.alternate_tiles:
            return Refusal("stream_k", "each step of shared tiles is added as it is, and brings both factors, one tile at a time")
        return None

    @property
    def has_several_products(self) -> bool:
        """Whether the kernel has several products of one left factor."""
        return self.products > 1 or len(self.siblings) > 1

    def refuse_kept(self, extents: Mapping[int, int], tile: Mapping[int, int]) -> Refusal | None:
        """Why the right factor cannot stay in shared memory."""
        if not self.kept_steps:
            return None
        steps = self.steps(extents)
        if self.kept_steps != steps:
            return Refusal("kept_steps", f"`kept_steps` must be 0, or all {steps} steps along `inner`, not {self.kept_steps}")
        if prod(self.cluster) > 1 or self.two_level or self.alternate_tiles:
            why = "the right factor stays in shared memory of single blocks, whose warpgroups share tiles and add up all of k"
            return Refusal("kept_steps", why)
        if any(tile[d] < extents[d] for d in tile if d not in self.rows):
            return Refusal("kept_steps", "a block's tile must have all columns, if the right factor stays in shared memory")
        return None

    def steps(self, extents: Mapping[int, int]) -> int:
        """Steps along k: boxes of `inner_box`."""
        if "tma" not in self.copies:
            return -(-prod(extents[d] for d in self.inner) // self.block[2])
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


@cache
def _shapes(instruction: str, size: int) -> frozenset[tuple[int, ...]]:
    """The blocks that the passes have code for, with the warps of each where these do not follow from the block. Cached, since
    planning asks for thousands of kernels."""
    shapes = block_shapes(instruction, size)
    return frozenset(s[: 3 if instruction == "wgmma" else 5] for s in shapes)


def _nearest(kernel: Contraction | WarpgroupContraction, shapes: Iterable[tuple[int, ...]]) -> Refusal:
    """The refusal of a block without code for its shape, with the nearest shape."""
    own = (*kernel.block, *kernel.warps) if isinstance(kernel, Contraction) else kernel.block
    best = min(shapes, key=lambda s: sum((abs(a - b) / max(a, b, 1)) for a, b in zip(s, own)), default=None)
    near = f"; the nearest is `block = {list(best[:3])}`" if best else ""
    near += f" with `warps = {list(best[3:])}`" if best and len(best) > 3 else ""
    asked = f"`block = {list(kernel.block)}`"
    asked += f" with `warps = {list(kernel.warps)}`" if isinstance(kernel, Contraction) else ""
    return Refusal("block", f"{kernel.instruction} has no kernel for {asked}{near}")


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
