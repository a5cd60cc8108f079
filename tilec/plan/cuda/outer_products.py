"""Products without matrix units: what threads issue, load and wait for, that have outer products in registers.

A thread loads a few rows and columns of the factors, for a step or several along the sum, and then multiplies them. Nothing is
loaded meanwhile: each round waits for the L2 cache, and the other blocks of the multiprocessor hide a part of that. The L1 cache
serves one line a clock (`lines.py`), which bounds most such products.

Sources: Volkov, "Better performance at lower occupancy" (GTC 2010): outer products in registers; NVIDIA, "Kernel profiling guide"
(Nsight Compute): L1 wavefronts.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2, prod

from tilec.analysis.layout import Layout
from tilec.core.fitted import RowTimes
from tilec.core.hardware import WARP
from tilec.core.registers import compiled
from tilec.cost.model import Work, occupancy
from tilec.plan.cuda.lines import access_width, requests
from tilec.plan.cuda.view import View

BODY = 75  # instructions of a loop that compilers unroll in part (`PartialThreshold` of LLVM's NVPTX target: a quarter of 300)
UNROLLED = 200  # instructions that the loop then has at most, of 8 rounds at most: cubins of ptxas 13
BASE = 16  # registers of a thread besides factors and sums


def work_of_products(work: Work, view: View, layout: Layout) -> Work:
    """With the instructions, the registers and the waits of the kernel's threads."""
    node = next(n for n in view.group.nodes if n.contraction is not None)
    dims, target = view.group.space.dims[node], view.target
    summed = [dims[d] for d in node.reduced]
    results, steps = layout.slots(d for d in dims if d not in summed), layout.slots(summed)
    reads = [(strides, access_width(layout, strides, value)) for n, value, strides in view.reads if n == node]
    factors = sum(layout.slots(d for d in strides if d not in summed) for strides, _ in reads)  # for a step
    loads = sum(WARP * requests(view, layout, node, strides) / (max(1, node.iterations) * width) for strides, width in reads)
    body = steps * results * (1 + loads)
    rounds = 1 << max(0, min(3, int(log2(UNROLLED / body)))) if body <= BODY else 1
    registers = compiled(None, work.threads, BASE, ceil(BASE + results + rounds * steps * factors))
    work = replace(work, pace={unit: 1 + loads for unit in work.flops}, registers=registers)
    held = occupancy(target, work.threads, registers, work.shared_per_block).blocks
    blocks_at_once = max(1, min(held, ceil(work.blocks / target.units)))
    fit, issued = target.fit(RowTimes), target.multiprocessor.issued * target.clock_ghz
    arithmetic_ns = rounds * body * blocks_at_once * work.threads / issued
    exposed = fit.exposed_alone if blocks_at_once == 1 else fit.exposed_shared
    wait_ns = target.l2.latency_ns / blocks_at_once + exposed * arithmetic_ns
    rounds_each = prod(layout.chunks(d) for d in range(len(layout.extents))) / rounds
    waves = ceil(work.blocks / (target.units * max(1, held)))
    return replace(work, serial_us=work.serial_us + 1e-3 * wait_ns * rounds_each * waves)

