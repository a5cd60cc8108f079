"""CUDA kernels of a contraction whose result stays on chip: it is reduced along its columns, or weights a second contraction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilec.core.hardware import LINE, ROWS, WARP, WARPGROUP
from tilec.core.target import Target
from tilec.cost.block_tile import unit_type
from tilec.cost.chain import CHAIN_ROWS, MOST_PARTS, WARP_ROWS, fits_head_group, fits_pages
from tilec.kernels.base import KernelPlan, Refusal, option
from tilec.kernels.matrix import BYTES, MatrixKernel


@dataclass(frozen=True)
class ContractionChain(MatrixKernel, name="contraction_chain", backend="cuda"):
    """A contraction whose result (the scores) stays in registers: it is reduced along its columns, or weights a second contraction,
    as in attention."""

    result: ClassVar[str] = "scores"

    unit: str = option(
        "`wgmma` (warpgroups multiply tiles that TMA loads) or `mma.sync` (warps multiply tiles that they copy by cp.async)"
    )
    between: int = option(
        "the dimension that the first contraction makes and that all reductions sum over: the kernel loops over it", dims=True,
        fixed=True, shown="{}: the kernel loops over it",
    )  # fmt: skip
    head_groups: tuple[int, ...] = option(
        "for each dimension of rows, how many of its elements share what the other factors have (grouped heads); 0: all",
        default=(0,), fixed=True, shown="{} rows of each dimension share the other factors (0: all)",
    )  # fmt: skip
    pages: tuple[int, ...] = option(
        "elements along `between` that lie side by side, by factor, where memory tells the place of each page", default=(),
        fixed=True, shown="{} elements side by side, at places that memory tells",
    )  # fmt: skip
    of_values: str | None = option(
        "the type in which weights are multiplied with values, where that is another than the scores' factors have", default=None,
        fixed=True,
    )  # fmt: skip
    weight_terms: int = option(
        "numbers of the values' type whose sum is one f32 weight of the second contraction; 0 without one", fixed=True,
        default=1, shown="{}: an f32 weight is a sum of so many numbers",
    )  # fmt: skip
    block: tuple[int, ...] = option(
        "rows of a block, and elements along `between` of one step", shown="{} (rows x elements of a step)"
    )
    warps: int = option(
        "warps that multiply: each has 16 rows of a block, or by `mma.sync` also 32", shown="{} multiply", orders=False
    )
    kept_left: bool | None = option(
        "a block's rows of the left factor stay in shared memory, so that only the right one comes in steps", default=None,
        off=False, shown="{}: a block's rows of the left factor stay in shared memory", orders=False,
    )  # fmt: skip
    blocks_per_row: int | None = option(
        "blocks that share their rows: each takes a part of the elements along `between`, and another kernel combines their states",
        default=None, off=1,
    )  # fmt: skip
    overlap_combination: bool | None = option(
        "the kernel that combines the parts of rows is launched while the parts are computed (programmatic dependent launch)",
        default=None, off=True, modelled=False, orders=False,
    )  # fmt: skip
    ping_pong: bool = option(
        "two warpgroups alternate: the matrix products of one run during the exponentials of the other", default=False,
        shown="{}: two warpgroups alternate",
    )  # fmt: skip
    at_once: bool | None = option(
        "by `wgmma`, weights are multiplied before the next step's scores are, which takes fewer registers; else the products of a "
        "step's weights run while the next step's are computed", default=None, off=False, modelled=False,
        shown="{}: weights are multiplied before the next step's scores are",
    )  # fmt: skip
    longest_first: bool = option(
        "blocks of the rows to which a mask leaves the most steps start first: with a causal mask the last ones", default=False,
        shown="{}: blocks of the rows with the most steps start first", modelled=False, orders=False,
    )  # fmt: skip
    growing: tuple[int, ...] = option(
        "the dimensions of rows along which a mask leaves later rows more elements", default=(), dims=True, fixed=True,
        shown="along {} a mask leaves later rows more elements", orders=False,
    )  # fmt: skip
    shrinking: tuple[int, ...] = option(
        "the dimensions of rows along which a mask leaves later rows fewer elements", default=(), dims=True, fixed=True,
        shown="along {} a mask leaves later rows fewer elements", orders=False,
    )  # fmt: skip
    group_batch: int = option(
        "problems of the batch (heads) whose blocks take turns where the longest rows start first, so that their factors share L2 "
        "and the shortest rows of all come last", default=1, shown="{} problems of the batch take turns", modelled=False,
        orders=False,
    )  # fmt: skip
    persistent_blocks: int | None = option(
        "blocks that are launched, each of which computes tile after tile: the loads of one are under the end of the one before; "
        "0: a block for each tile", default=None, off=0, shown="{}, each of which computes tile after tile", orders=False,
    )  # fmt: skip
    row_stages: int | None = option(
        "tiles of a persistent block whose rows of the left factor are in shared memory at a time", default=None, off=1,
        shown="{} tiles' rows in shared memory", modelled=False, orders=False,
    )  # fmt: skip

    @property
    def first_ordered(self) -> int:
        return 1

    @property
    def steps_last(self) -> bool:
        return self.unit == "wgmma"  # a warp's chain has no registers to spare for a further address

    @property
    def sides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.rows, (self.between,)

    @property
    def instruction(self) -> str:
        return self.unit

    @property
    def copies(self) -> tuple[str, str]:
        return ("tma", "tma") if self.unit == "wgmma" else ("async", "async")

    @property
    def has_product(self) -> bool:
        """Whether a second contraction follows."""
        return self.weight_terms > 0

    @property
    def not_shown(self) -> tuple[str, ...]:
        return () if self.has_product else ("weight_terms",)

    @property
    def warpgroups(self) -> int:
        """That multiply by `wgmma`, of 64 rows each."""
        return self.block[0] // ROWS

    @property
    def block_threads(self) -> int:
        return WARPGROUP * (self.warpgroups + 1) if self.unit == "wgmma" else WARP * self.warps

    @property
    def weighted(self) -> str:
        """The type in which weights are multiplied with values."""
        return self.of_values or self.multiplicand

    @property
    def blocks_per_tile(self) -> int:
        return 1 if self.blocks_per_row is None else self.blocks_per_row

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        if self.unit not in CHAIN_ROWS:
            return Refusal("unit", f"`unit` must be one of {', '.join(CHAIN_ROWS)}, not {self.unit}")
        able = all(self.unit in target.instructions(unit_type(kind)) for kind in (self.multiplicand, self.weighted))
        if not able or (self.unit == "wgmma" and not target.has("tma")):
            return Refusal("unit", f"{target.name} has no {self.unit}")
        if (why := kernel.ruled_out.get(self.unit)) is not None:
            return Refusal("unit", f"`unit` cannot be {self.unit}: {why}")
        rows = CHAIN_ROWS[self.unit]
        if len(self.block) != 2 or self.block[0] not in rows or not 0 < self.block[1] <= 256 or self.block[1] % 16:
            of = ", ".join(map(str, rows[:-1])) + f" or {rows[-1]}"
            why = f"`block` must be {of} rows and a step of a multiple of 16 up to 256, not {list(self.block)}"
            return Refusal("block", why)
        if self.unit == "wgmma" and not fits_pages(self.block[1], self.pages):
            why = f"a step of {self.block[1]} elements has no whole pages of {max(self.pages)}, and is no part of one"
            return Refusal("block", why)
        words = self.unit == "wgmma" and self.has_product and BYTES[self.weighted] == 4
        if words and self.block[1] % (2 * LINE // 4):  # lines of even, and of odd numbers
            return Refusal("block", f"wgmma takes steps of a multiple of {2 * LINE // 4} weights of 32 bits, not {self.block[1]}")
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
        if self.at_once and self.unit != "wgmma":
            return Refusal("at_once", "`at_once` needs `unit` = wgmma")
        if self.persistent_blocks and (self.persistent_blocks < 0 or self.unit != "wgmma" or self.blocks_per_tile > 1):
            why = "`persistent_blocks` must be at least 0, and needs `unit` = wgmma and `blocks_per_row` = 1"
            return Refusal("persistent_blocks", why)
        if self.row_stages is not None and (self.row_stages < 1 or (self.row_stages > 1 and not self.persistent_blocks)):
            return Refusal("row_stages", "`row_stages` must be at least 1, and 1 without `persistent_blocks`")
        if self.persistent_blocks and (why := kernel.ruled_out.get("persistent_blocks")) is not None:
            return Refusal("persistent_blocks", f"blocks cannot be persistent: {why}")
        return self._refuse_grid(kernel) if self.has_product else self._refuse_reduced(kernel)

    def _refuse_reduced(self, kernel: KernelPlan) -> Refusal | None:
        """What a kernel without a second contraction refuses further."""
        if self.unit == "mma.sync" and self.stages < 2:
            return Refusal("stages", "`stages` must be at least 2 by mma.sync where no second contraction follows")
        if self.unit == "wgmma" and self.warpgroups > 2:
            why = f"`block` must be 64 or 128 rows where no second contraction follows, not {self.block[0]}"
            return Refusal("block", why)
        if self.unit == "wgmma" and self.kept_left and not self.left_k_major:
            return Refusal("kept_left", "only a left factor that is contiguous along `inner` stays in shared memory")
        if self.unit == "wgmma" and not self.right_k_major and self.block[1] % (LINE // BYTES[self.multiplicand]):
            why = f"a factor that is contiguous along columns takes steps of a multiple of 64, not {self.block[1]}"
            return Refusal("block", why)
        steps = -(-prod(kernel.extents[d] for d in self.inner) * BYTES[self.multiplicand] // LINE)
        if self.ping_pong:
            if not self.kept_left:
                return Refusal("ping_pong", "`ping_pong` needs the left factor in shared memory: `kept_left`")
            if self.stages <= steps:  # one warpgroup's steps, while the other has not read them
                return Refusal("ping_pong", f"`ping_pong` needs more `stages` than the {steps} steps of a tile")
        return self._refuse_grid(kernel)

    def _refuse_grid(self, kernel: KernelPlan) -> Refusal | None:
        tile = dict(zip(kernel.grid, kernel.tile))
        box = self.box(tile)
        fits = prod(box) == self.block[0]
        for d, t, g in zip(self.rows, box, (*self.head_groups, *(0 for _ in box))):
            fits = fits and tile[d] == min(t, g or t, kernel.extents[d])
        if not fits or any(t > 1 for d, t in tile.items() if d not in self.rows):
            return Refusal("tile", "`tile` must have the rows of `block` along the dimensions of rows, and 1 along all others")
        if not all(map(fits_head_group, box, self.head_groups)):
            return Refusal("tile", f"`tile` must divide {max(self.head_groups)}, the rows that share the other factors")
        return None

    def room(self, kernel: KernelPlan, d: int) -> int:
        if d not in self.rows:
            return 1
        box = dict(zip(self.rows, self.box(dict(zip(kernel.grid, kernel.tile)))))
        group = dict(zip(self.rows, self.head_groups)).get(d, 0)
        return min(box[d], group or box[d])

    def box(self, tile: Mapping[int, int]) -> tuple[int, ...]:
        """The part of each dimension of rows that a block copies and multiplies, of which `tile` is inside the tensor: powers of
        two, and along the last dimension the rows that are left by the others."""
        outer = [1 << (tile[d] - 1).bit_length() for d in self.rows[:-1]]
        return (*outer, max(1, self.block[0] // prod(outer)))
