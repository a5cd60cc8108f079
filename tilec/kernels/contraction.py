"""CUDA kernels that multiply matrices: one contraction by warps or by warpgroups, or a chain of two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING

from tilec.cost_contraction import block_shapes
from tilec.hardware import LINE, ROWS, WARPGROUP, WIDE
from tilec.kernels.base import Family, Refusal, option

if TYPE_CHECKING:
    from tilec.plan_model import KernelPlan
    from tilec.target import Target

BYTES = {"i8": 1, "bf16": 2, "f16": 2, "i32": 4, "f32": 4, "tf32": 4, "f64": 8}
"""Of the types in which factors are staged."""
BARRIERS = 256  # bytes
OTHER = 24  # registers of a thread for addresses and loops, at least
HELD = {"copied": 224, "computed": 176, "gathered": 160}
"""Registers of a thread for data, beside those for addresses; fewer where it computes factors, or finds their elements, since
what is known of a place before the loop over k is kept."""
DEEPEST = {"fma": 3, "mma.sync": 6, "wgmma": 8}
"""Stages; more hide no more latency."""
COPIES = ("tma", "async", "registers")


@dataclass(frozen=True)
class MatrixKernel(Family, backend="cuda"):
    """What contractions by warps and by warpgroups share: C[rows, columns] += left[rows, inner] * right[columns, inner]."""

    multiplicand: str = option("the type in which factors are staged", fixed=True)
    rows: tuple[int, ...] = option("dimensions of C's rows", dims=True, fixed=True)
    columns: tuple[int, ...] = option("dimensions of C's columns, along which it is contiguous", dims=True, fixed=True)
    inner: tuple[int, ...] = option("dimensions that are summed over", dims=True, fixed=True)
    left_k_major: bool = option("the left factor lies with `inner` contiguous, else with rows", fixed=True)
    right_k_major: bool = option("the right factor lies with `inner` contiguous, else with columns", fixed=True)
    block: tuple[int, ...] = option("rows, columns and products of one step of a block")
    stages: int = option("steps whose factors shared memory holds")
    group_rows: int = option("rows of tiles that are walked together, so that neighbouring blocks share L2", default=1)
    overlap_launch: bool | None = option("the kernel starts while the one before it ends", default=None)

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
        *sides, bk = self.block
        pads = [padding(self.instruction, self.element_bytes, major) for major in self.k_major]
        lines = [(n, bk + p) if major else (bk, n + p) for n, p, major in zip(sides, pads, self.k_major)]
        return self.element_bytes * sum(a * b for a, b in lines)

    @property
    def other_bytes(self) -> int:
        """Of shared memory beside the stages: barriers, and an epilogue's buffer that does not lie over them."""
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
        return max(1, (LINE if self.instruction == "wgmma" else WIDE) // self.element_bytes)

    # ---- checks ----------------------------------------------------------------------------------------------------------

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        return self.refuse_shape() or self._refuse_numbers() or self._refuse_tile(kernel)

    def refuse_shape(self) -> Refusal | None:
        """Why the passes have no code for a block of this shape."""
        raise NotImplementedError

    def _refuse_numbers(self) -> Refusal | None:
        if not 2 <= self.stages <= self.deepest:
            return Refusal("stages", f"`stages` is from 2 to {self.deepest} here, not {self.stages}")
        if self.group_rows < 1:
            return Refusal("group_rows", "`group_rows` is at least 1")
        return None

    def _refuse_tile(self, kernel: KernelPlan) -> Refusal | None:
        """A block's tile is a box of C, with no more points than its block has rows and columns."""
        tile = dict(zip(kernel.grid, kernel.tile))
        for d, size in tile.items():
            if size > 1 and d not in (*self.rows, *self.columns):
                why = f"a block has one place along dimension {d}, which is of both factors: the tile is 1 there, not {size}"
                return Refusal("tile", why)
        for side, (name, dims) in enumerate((("rows", self.rows), ("columns", self.columns))):
            box, most = [tile[d] for d in dims], self.block[side]
            if prod(box) > most:
                return Refusal("tile", f"a block has {most} {name} (`block`), and the tile {prod(box)}")
            if not whole_pieces(box, self.piece(side)):
                why = f"{name} of a tile lie in runs of {box[-1]} elements, and copies move {self.piece(side)} at once"
                return Refusal("tile", f"{why}: the last of {box} must be a multiple of that, or the others 1")
        return None


def whole_pieces(box: Sequence[int], piece: int) -> bool:
    """Whether runs along the last dimension of a box consist of whole pieces, or the box is one run."""
    return not box or box[-1] % piece == 0 or prod(box[:-1]) == 1


@dataclass(frozen=True)
class Contraction(MatrixKernel, name="contraction"):
    """A contraction by warps: `mma.sync` on the matrix units, or `fma` in plain arithmetic."""

    unit: str = option("`mma.sync` or `fma`", fixed=True)
    warps: tuple[int, ...] = option("warps over the block's rows, and over its columns")
    left_copy: str = option("how the left factor reaches shared memory: `async`, or through `registers`", fixed=True)
    right_copy: str = option("how the right factor reaches shared memory", fixed=True)
    gathers: bool = option("threads find a factor's elements at computed subscripts", default=False, fixed=True)

    @property
    def instruction(self) -> str:
        return self.unit

    @property
    def copies(self) -> tuple[str, str]:
        return self.left_copy, self.right_copy

    @property
    def block_threads(self) -> int:
        return 32 * prod(self.warps)

    def refuse_shape(self) -> Refusal | None:
        if len(self.block) != 3 or len(self.warps) != 2:
            return Refusal("block", "`block` is rows, columns and products; `warps` those over rows and over columns")
        shapes = _shapes(self.unit, self.element_bytes)
        if (*self.block, *self.warps) not in shapes:
            return _nearest(self, shapes)
        bm, bn, bk = self.block
        if self.unit == "fma" and bk < 16 and (bm, bn) != (32, 32):
            return Refusal("block", f"{bk} products are too few for a block of {bm} x {bn}")
        if self.unit == "mma.sync" and (
            bm // self.warps[0] % 16 or bn // self.warps[1] % 16 or bk * self.element_bytes < 64
        ):
            return Refusal("block", "a warp multiplies 16 rows and 16 columns at a time, and lines of 64 bytes")
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
        """Registers of a thread for sums, for the factors of one step, and for what it fetches ahead."""
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
    """A contraction by `wgmma`: persistent blocks, in which a warpgroup loads by TMA and one or two multiply."""

    persistent_blocks: int = option("most blocks at work, each of which goes on to further tiles")

    @property
    def instruction(self) -> str:
        return "wgmma"

    @property
    def copies(self) -> tuple[str, str]:
        return "tma", "tma"

    @property
    def warps(self) -> tuple[int, int]:
        """That multiply, over rows and columns."""
        return self.block[0] // 16, 1

    @property
    def block_threads(self) -> int:
        return 32 * prod(self.warps) + WARPGROUP

    @property
    def other_bytes(self) -> int:
        bm, bn, _ = self.block
        return BARRIERS + 4 * bm * next((c for c in (64, 32, 16) if bn % c == 0), 64)

    def refuse_shape(self) -> Refusal | None:
        if len(self.block) != 3 or self.persistent_blocks < 1:
            return Refusal("block", "`block` is rows, columns and products, and `persistent_blocks` at least 1")
        shapes = _shapes("wgmma", self.element_bytes)
        if self.block not in shapes:
            return _nearest(self, shapes)
        for side, (name, size) in enumerate(zip(("rows", "columns"), self.block)):
            if not self.k_major[side] and (size % 64 or self.multiplicand == "tf32"):
                why = f"a factor that is contiguous along {name} is multiplied in lines of 64 of them"
                return Refusal("block", f"{why}, not {size} of {self.multiplicand}")
        if (held := self.block[0] * self.block[1] // (32 * prod(self.warps))) > 65536 // self.block_threads - OTHER:
            return Refusal("block", f"a thread would hold {held} sums, more than it has registers for")
        return None


@dataclass(frozen=True)
class ContractionChain(Family, name="contraction_chain", backend="cuda"):
    """Two contractions in one pass over the dimension between them, as in attention: scores stay in registers."""

    multiplicand: str = option("the type in which factors are staged", fixed=True)
    between: int = option("the dimension that is passed over", dims=True, fixed=True)
    weight_terms: int = option("numbers of the staged type that make up one weight", fixed=True)
    block: tuple[int, ...] = option("rows of a block, and elements of one step along `between`")
    stages: int = option("steps of the second factor, and of the third, that shared memory holds")
    ping_pong: bool = option("warpgroups take turns: one's products run under the other's arithmetic", default=False)
    longest_first: bool = option("blocks of the last rows start first, since their passes are longest", default=False)
    overlap_launch: bool | None = option("the kernel starts while the one before it ends", default=None)

    @property
    def warpgroups(self) -> int:
        """That multiply, of 64 rows each."""
        return self.block[0] // ROWS

    @property
    def block_threads(self) -> int:
        return WARPGROUP * (self.warpgroups + 1)

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        if (
            len(self.block) != 2
            or self.block[0] not in (ROWS, 2 * ROWS)
            or not 0 < self.block[1] <= 256
            or self.block[1] % 16
        ):
            why = f"`block` is 64 or 128 rows, and a multiple of 16 up to 256 for a step, not {list(self.block)}"
            return Refusal("block", why)
        if self.stages < 1:
            return Refusal("stages", "`stages` is at least 1")
        if self.ping_pong and self.warpgroups < 2:
            return Refusal(
                "ping_pong", "one warpgroup has none to take turns with: `ping_pong` needs 128 rows in `block`"
            )
        if any(t not in (1, min(self.block[0], kernel.extents[d])) for t, d in zip(kernel.tile, kernel.grid)):
            return Refusal("tile", "`tile` is 1 along all dimensions but the rows, and there what `block` says")
        return None


@cache
def _shapes(instruction: str, size: int) -> frozenset[tuple[int, ...]]:
    """The blocks that the passes have code for, with the warps of each where these are not a consequence: planning asks of
    thousands of kernels."""
    shapes = block_shapes(instruction, size)
    return (
        frozenset(s[:3] for s in shapes if s[0] <= 2 * ROWS)
        if instruction == "wgmma"
        else frozenset(s[:5] for s in shapes)
    )


def _nearest(kernel: Contraction | WarpgroupContraction, shapes: Iterable[tuple[int, ...]]) -> Refusal:
    """There is no code for a block of this shape: says what comes nearest."""
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


def fma_group(high: int, wide: int, bits: int) -> int:
    """Products of one group of a thread that holds `high` x `wide` sums: wide loads where registers allow two groups."""
    return 2 if bits > 32 or high * wide > 32 else 4
