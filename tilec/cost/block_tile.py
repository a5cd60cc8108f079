"""A contraction as the cost model has it: its sizes, and the tile of it that a block computes.

    C[batch, m, n] = A[batch, m, k] B[batch, k, n]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

from tilec.core.dtypes import DTYPES


@dataclass(frozen=True)
class Contraction:
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n], of element type `dtype` ("bf16"), C of type `out`.

    `tf32` allows f32 operands on the matrix units; `two_level`: elements of k whose sums leave the matrix units, to be added in
    registers (0: none before the end); `parts`: numbers of type `dtype` whose sum an element is, of which so many `products`
    are computed; `unaligned`: rows of A and of B begin within lines of L2; `copied`: rows of A and of B of which a copy
    brings all or none; `sectors`: bytes of memory that are read for one of A and of B, whose neighbours lie apart; `widths`:
    bytes of an element of A and of B in shared memory over those of `dtype` (less where threads convert on the way from there);
    `staged`: integer operations for an element of A and of B that threads bring to shared
    memory themselves (0 where the hardware copies), `filled` those for tiles that warpgroups multiply; `alone`: threads load each
    element by itself, and multiply nothing meanwhile; `uncoalesced`: lines of memory that requests touch for an element that they
    load, besides those of one run; `cut`: sectors of which a part is written, for each element of C; `reads` and `epilogue`
    are further bytes and operations per element of C that are fused behind (a bias, an activation). `sources`: bytes of the
    tensors that A and B are read from, 0 where they have no fewer than A and B: windows of a convolution share elements.
    `recurring`: B of neighbouring batches may be the same, at a place that data tell. `stored`: elements that are written for each
    of C, of which several may make one. `neighbours`: operations on
    matrix units of kernels before or after it, which heat the chip, too.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    out: str = ""
    tf32: bool = False
    two_level: int = 0
    parts: int = 1
    products: int = 1
    unaligned: tuple[bool, bool] = (False, False)
    copied: tuple[int, int] = (1, 1)
    sectors: tuple[float, float] = (1, 1)
    widths: tuple[float, float] = (1, 1)
    reads: float = 0
    staged: tuple[float, float] = (0, 0)
    filled: tuple[float, float] = (0, 0)
    alone: tuple[bool, bool] = (False, False)
    uncoalesced: tuple[float, float] = (0, 0)
    cut: float = 0.0
    epilogue: Mapping[str, float] = field(default_factory=dict, hash=False)
    sources: tuple[int, int] = (0, 0)
    overhang: float = 1.0
    recurring: bool = False
    stored: float = 1.0
    neighbours: float = 0.0

    @cached_property
    def shared(self) -> tuple[float, float]:
        """How much of A and of B is in memory: less than 1 where elements are shared."""
        whole = self.batch * self.k * self.m * self.bytes, self.batch * self.k * self.n * self.bytes
        left, right = (min(1.0, s / max(1, w)) if s else 1.0 for s, w in zip(self.sources, whole))
        return left, right

    @cached_property
    def bytes(self) -> int:
        return self.parts * element_bytes(self.dtype)

    @property
    def out_bytes(self) -> int:
        return element_bytes(self.out or self.dtype)

    @property
    def unit_type(self) -> str:
        """The row of the peak tables."""
        return "tf32" if self.dtype == "f32" and self.tf32 else unit_type(self.dtype)

    @property
    def vector_unit(self) -> str:
        return "int" if self.dtype[0] in "iu" else f"fma.{self.dtype}"


def unit_type(dtype: str) -> str:
    """The row of the peak tables for a type: both 8-bit floats are "f8", and integers with and without sign one."""
    return "f8" if dtype.startswith("f8") else {"u8": "i8", "bf16x3": "bf16"}.get(dtype, dtype)


@dataclass(frozen=True)
class BlockTile:
    """A GPU block's tile of C and its computation.

    `warp_m` x `warp_n`: the warps that compute, over the block. `producers`: further warps that only load. `cluster`:
    blocks along m, which share their B tile by multicast, and along n, which share their A tile. `group`: rows of tiles
    that blocks compute together, for L2. `registers`: of a thread, as launched. `inner_warps`: warps that share rows and
    columns, and divide k. `kept`: all of B stays in shared memory, where each of the persistent blocks loads it once.
    `stream_k`: rounds of tiles, the last of which is not full, whose steps along k all blocks share (stream-k). `launched`:
    persistent blocks; 0 where each unit that they reach has one.
    """

    bm: int
    bn: int
    bk: int
    stages: int
    instruction: str
    warp_m: int
    warp_n: int
    producers: int = 0
    cluster: tuple[int, int] = (1, 1)
    group: int = 8
    registers: int = 128
    shared: int = 0
    kept: bool = False
    stream_k: float = 0
    inner_warps: int = 1
    across: bool = False
    launched: int = 0

    @property
    def warps(self) -> int:
        return self.warp_m * self.warp_n * self.inner_warps

    @property
    def threads(self) -> int:
        return 32 * (self.warps + self.producers)


@cache
def element_bytes(dtype: str) -> int:
    """Storage of an element type of the language, or tf32."""
    return DTYPES["f32" if dtype == "tf32" else dtype].bytes
