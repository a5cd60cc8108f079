"""Scans on CUDA: the threads, warps and blocks that share a row.

A warp for each row needs no barrier, and many rows keep the GPU busy. Few long rows are shared by several blocks. Each of
them keeps its part in registers until it knows the totals of the blocks before it (decoupled look-back,
`passes/cuda/threaded/look_back.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import TYPE_CHECKING

from tilec.analysis.traffic import allows_look_back, element_bytes, intermediate_bytes
from tilec.core.fitted import Barriers
from tilec.core.hardware import WARP
from tilec.core.mlir import ir
from tilec.core.quantities import count
from tilec.cost.model import Work
from tilec.kernels.rows import part_of
from tilec.passes.cuda.threaded.scan_epilogue import is_scan_epilogue
from tilec.plan.cuda.view import power

if TYPE_CHECKING:
    from tilec.core.target import Target
    from tilec.plan.cuda.view import View

_STEPS = 4  # loads of a thread in flight
_HELD = 8  # of a block that keeps its part: it waits for others, and more memory should be on its way meanwhile
_MOST_WARPS = 16


@dataclass(frozen=True)
class ScanTile:
    """`threads` of a block lie along a row, a block has `rows_per_block` rows, and `blocks_per_row` blocks share a row."""

    threads: int
    rows_per_block: int
    steps: int
    blocks_per_row: int = 1

    def work(self, work: Work, kernel_blocks: int, row_bytes: int, vector: int, target: Target) -> Work:
        """The work of a kernel with this tile that keeps `row_bytes` bytes of each of its rows in shared memory. Threads with
        `vector` neighbouring words conflict in banks with as many others, in writes and in reads."""
        moved = 2 * row_bytes * self.rows_per_block * kernel_blocks * vector
        work = replace(work, shared_per_block=row_bytes * self.rows_per_block, shared_bytes=work.shared_bytes + moved)
        fit = target.fit(Barriers)
        if self.blocks_per_row == 1:
            return replace(work, stall_ns=fit.block_ns * (self.threads > WARP))
        return replace(
            work, blocks=kernel_blocks * self.blocks_per_row, stall_ns=2 * (fit.hop_ns + fit.block_ns), launches=2
        )

    def __str__(self) -> str:
        if self.blocks_per_row > 1:
            return f"{self.blocks_per_row} blocks of {self.threads} threads share a row"
        return f"{count(self.threads, 'thread')} a row, {count(self.rows_per_block, 'row')} a block"


@dataclass(frozen=True)
class ScanPlan:
    """The choice for one kernel: blocks that share a row (None if they cannot), its work, and the times of all
    alternatives, the best first."""

    blocks_per_row: int | None
    work: Work
    alternatives: tuple[tuple[str, float], ...]


def scan_tiles(view: View, lane: int, vector: int, most: int, row_bytes: int) -> Iterator[ScanTile]:
    """The ways to share rows, the simplest first. A block has up to `most` threads; a row's intermediates take `row_bytes`
    bytes."""
    extent, rows = view.extents[lane], view.extents[view.kernel.grid[-1]] if view.kernel.grid else 1
    room = view.target.sm.shared_per_block if view.target.sm else row_bytes
    lanes = min(WARP, power(extent / vector))
    rows_per_block = min(most // lanes, power(rows / 2))
    while rows_per_block > 1 and rows_per_block * row_bytes > room:
        rows_per_block //= 2
    refused = lanes < WARP or refuse_look_back(view, lane)
    # Rows of several chunks of the largest block: 0.98 of copy with it, 0.92 to 0.97 with smaller ones (measured, H200).
    long = not refused and row_bytes <= room and extent >= 2 * _part(_MOST_WARPS, vector)
    if (refused or rows_per_block * row_bytes <= room) and not long:
        yield ScanTile(lanes, rows_per_block, _STEPS)
    for warps in () if refused else (4, 8, _MOST_WARPS):
        part, steps = _part(warps, vector), _steps(warps)
        if part // 2 < extent and (row_bytes <= room or part >= extent) and (not long or warps == _MOST_WARPS):
            yield ScanTile(warps * WARP, 1, steps)
        blocks_per_row = ceil(extent / part)
        if blocks_per_row > 1 and part_of(extent, blocks_per_row, vector) * (blocks_per_row - 1) < extent:
            yield ScanTile(warps * WARP, 1, steps, blocks_per_row)


def _steps(warps: int) -> int:
    return min(_HELD, WARP // warps)


def _part(warps: int, vector: int) -> int:
    """Elements of a row that a block of as many warps holds."""
    return warps * WARP * vector * _steps(warps)


def scan_intermediate_bytes(view: View) -> int:
    """Bytes of a row's intermediates; none of the scan's where all that is made of its elements is part of the scan."""
    held = intermediate_bytes(view.group.nodes, view.graph, view.group.space)
    for value in fused_scan_results(view):
        scan = view.graph.producer[value]
        inner = prod(e for d, e in zip(view.group.space.dims[scan], scan.extents) if d not in view.kernel.grid)
        held -= inner * element_bytes(value.type)
    return max(0, held)


def fused_scan_results(view: View) -> list[ir.Value]:
    """The result of a kernel's scan, if it is stored nowhere since the operations on its elements become part of the scan."""
    scan = next((n for n in view.group.nodes if n.scan is not None), None)
    if scan is None:
        return []
    dims, made = view.group.space.dims, {r.value for r in scan.results}
    users = [n for n in view.group.nodes if any(r.value in made for r in n.reads)]
    if len(users) != 1 or not is_scan_epilogue(users[0].op) or dims[users[0]] != dims[scan]:
        return []
    value = users[0].op.operands[0]
    # else it reads them by operations that are computed again in it
    return [value] if value in made and len(users[0].reads) == 1 else []


def refuse_look_back(view: View, lane: int) -> str | None:
    """Why warps and blocks cannot share the rows of this kernel; None if they can."""
    if not allows_look_back(view.group.nodes, view.group.space) or view.reduced != (lane,):
        return "the rows have more operations than one scan and elementwise ones"
    (scan,) = [n for n in view.group.nodes if n.scan is not None]
    state = ir.ShapedType(list(scan.op.results)[-1].type).element_type
    if str(state) not in ("f32", "f64", "i32", "i64"):
        return f"blocks exchange values of 32 and 64 bits, and the scan has a state of {state}"
    return None


def ruled_out_scan(view: View, lane: int) -> dict[str, str]:
    """The option that a scan's surroundings rule out, with the reason."""
    why = refuse_look_back(view, lane) if lane in view.scanned else None
    return {"blocks_per_row": why} if why else {}
