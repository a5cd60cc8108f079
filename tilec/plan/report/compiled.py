"""Operations that a compiled kernel has, from its PTX: evidence beside what the cost model counted before a compiler saw them."""

from __future__ import annotations

import re
from math import prod

from tilec.cost.chain import LINE
from tilec.kernels import ContractionChain, KernelPlan, WarpgroupContraction

OPCODE = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z]\w*)((?:\.\w+)*)", re.MULTILINE)
SHAPE = re.compile(r"(wgmma\.mma_async|mma)\.sync\.aligned\.m(\d+)n(\d+)k(\d+)")
SPECIAL = {"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"}
FLOAT = {"add", "sub", "mul", "fma", "max", "min", "abs", "neg", "setp", "selp"}


def counts(ptx: str) -> dict[str, float]:
    """By unit, operations of a thread that stand in the text, each once, however often it is run. A multiply-add, and every other
    instruction of the vector units, is two operations; those of a matrix product are divided among its threads."""
    found = dict.fromkeys(("special", "fma", "tensor"), 0.0)
    for name, rest in OPCODE.findall(ptx):
        if name in SPECIAL:
            found["special"] += 1
        elif name in FLOAT and rest.endswith(".f32"):
            found["fma"] += 2
    for instruction, *shape in SHAPE.findall(ptx):
        found["tensor"] += 2 * prod(map(int, shape)) / (32 if instruction == "mma" else 128)
    return {unit: n for unit, n in found.items() if n}


def arithmetic(kernel: KernelPlan, ptx: str) -> dict[str, float] | None:
    """By unit, the operations of a kernel as it was compiled; None where the text does not tell how often they are run.

    The loop of a contraction chain has products and arithmetic; a chain may have copies of the loop, with masks and without, and
    each has both. Long inner dimensions have a loop of their own, without arithmetic. The arithmetic of a contraction by warpgroups
    is done once for each sum that a thread holds.
    """
    found, work, options = counts(ptx), kernel.work, kernel.options
    if isinstance(options, ContractionChain) and found.get("tensor"):
        if not options.has_product and kernel.extents[options.inner[0]] > LINE:
            return None
        products = sum(n for unit, n in work.flops.items() if unit.startswith("tensor"))
        each = products / found["tensor"]
    elif isinstance(options, WarpgroupContraction) and not options.two_level:
        each = work.blocks * 32 * prod(options.warps)
    else:
        return None
    return {unit: each * found.get(unit, 0.0) for unit in ("fma", "special")}
