"""Whether what a schedule file makes of a CUDA kernel's plan can be carried out: the planner's own always can."""

from __future__ import annotations

from math import prod

from tilec.passes.layout import OPTIONS, make
from tilec.plan import KernelPlan
from tilec.plan_cuda_rows import refuse_options
from tilec.plan_cuda_scan import refuse_chain_options
from tilec.plan_cuda_sram import too_much
from tilec.plan_cuda_stream import refuse_stream_options
from tilec.plan_cuda_view import HELD
from tilec.target import Target

_LISTS = ("thread_counts", "vectors", "steps")
_MOST_THREADS = 1024
_WIDEST = 8
_UNROLLED = 4 * HELD  # elements that a thread unrolls: more of a sine take the assembler minutes


def refuse(kernel: KernelPlan, planned: KernelPlan, target: Target) -> tuple[tuple[str, ...], str] | None:
    """Which key of the kernel's table is wrong and why, for a kernel that was `planned` otherwise; None where none is."""
    if (problem := _refuse_layout(kernel) or _refuse_unrolling(kernel, planned)) is not None:
        key, why = problem
        return ("tile",) if key == "tile" else ("options", key), why
    why = refuse_options(kernel, target) or refuse_chain_options(kernel) or refuse_stream_options(planned, kernel)
    return (("options",), why) if why else _refuse_memory(kernel, planned, target)


def _refuse_memory(kernel: KernelPlan, planned: KernelPlan, target: Target) -> tuple[tuple[str, ...], str] | None:
    """What is wrong with a kernel whose blocks take more SRAM than there is: its tile, or the first option that is another."""
    if kernel.sram is None or target.sm is None or kernel.sram(kernel) <= target.sm.shared_per_block:
        return None
    why = f"{too_much(kernel, target)}; choose a smaller tile, or fewer `stages`"
    if kernel.tile != planned.tile:
        return ("tile",), why
    return ("options", next(k for k, v in kernel.options.items() if v != planned.options[k])), why


def _refuse_layout(kernel: KernelPlan) -> tuple[str, str] | None:
    """The option that is wrong (or `tile`) and why; None where the layout can be carried out."""
    options = kernel.options
    if any(key not in options for key in _LISTS):
        return _refuse_block(kernel) if "rows" in options else None  # streams have checks of their own
    dims = len(kernel.extents)
    for key in _LISTS:
        if len(options[key]) != dims or any(n < 1 for n in options[key]):
            return key, f"`{key}` must be {dims} numbers of at least 1, one a dimension"
    for key in ("thread_counts", "vectors"):
        if any(n & (n - 1) for n in options[key]):
            return key, f"`{key}` must be powers of two"
    counts, vectors = options["thread_counts"], options["vectors"]
    if prod(counts) > _MOST_THREADS:
        return "thread_counts", f"a block has at most {_MOST_THREADS} threads, not {prod(counts)}"
    if sorted(options["thread_order"]) != [d for d, n in enumerate(counts) if n > 1]:
        return "thread_order", "`thread_order` must list the dimensions that have threads, each once"
    if sum(n > 1 for n in vectors) > 1 or max(vectors, default=1) > _WIDEST:
        return "vectors", f"one dimension may have vectors, of up to {_WIDEST} elements"
    for d, n in enumerate(vectors):
        if kernel.extents[d] % n and not (options.get("shift") and d not in kernel.grid):
            return "vectors", f"vectors of {n} elements do not divide a dimension of {kernel.extents[d]}"
    for d in options.get("turn", ()):
        if kernel.extents[d] % max(vectors):
            return (
                "vectors",
                f"vectors of {max(vectors)} elements do not divide a dimension of {kernel.extents[d]}, which is turned",
            )
    for d, tile in zip(kernel.grid, kernel.tile):
        if tile % vectors[d] and tile < kernel.extents[d]:
            return "tile", f"a tile of {tile} cuts vectors of {vectors[d]} elements (`options.vectors`)"
        if options.get("shift") and tile > counts[d]:  # where a row begins in a vector is found once
            return (
                "tile",
                f"a thread has one row where `shift` is 1: the tile of {tile} is more than {counts[d]} threads",
            )
    return None


def _refuse_block(kernel: KernelPlan) -> tuple[str, str] | None:
    """What is wrong with the tile of a contraction on the matrix units, or by panels."""
    sides = {"rows": kernel.options["rows"], "columns": kernel.options["columns"]}
    for d, tile in zip(kernel.grid, kernel.tile):
        if tile > 1 and not any(d in dims for dims in sides.values()):
            return (
                "tile",
                f"a block has one place along dimension {d}, which is of both factors: the tile is 1 there, not {tile}",
            )
    for (name, dims), most in zip(sides.items(), kernel.options["block"]):
        if (count := prod(t for d, t in zip(kernel.grid, kernel.tile) if d in dims)) > most:
            return "tile", f"a block has {most} {name} (`block`), and the tile {count}"
    return None


def _refuse_unrolling(kernel: KernelPlan, planned: KernelPlan) -> tuple[str, str] | None:
    """`steps` that compilers would take minutes for, where the planner did not choose as many."""
    if any(key not in kernel.options for key in OPTIONS) or (count := _unrolled(kernel)) <= max(
        _UNROLLED, _unrolled(planned)
    ):
        return None
    steps, vector = list(kernel.options["steps"]), max(kernel.options["vectors"], default=1)
    each = f", each of {vector} elements," if vector > 1 else ""
    why = f"`steps` {steps}{each} would have a thread unroll {count} elements, which takes minutes to compile"
    return "steps", f"{why}; the limit is {_UNROLLED}"


def _unrolled(kernel: KernelPlan) -> int:
    """Elements that a thread holds: steps stop where the tile does."""
    tile = dict(zip(kernel.grid, kernel.tile))
    sizes = [tile.get(d, extent) for d, extent in sorted(kernel.extents.items())]
    layout = make(sizes, *(kernel.options[key] for key in OPTIONS), shifted=bool(kernel.options.get("shift")))
    return layout.slots(range(len(sizes)))
