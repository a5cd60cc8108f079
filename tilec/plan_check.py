"""Whether what a schedule file makes of a kernel can be carried out: the planner's own kernels always can."""

# mypy: no-strict-optional

from __future__ import annotations

from tilec.kernels import Refusal
from tilec.plan_model import KernelPlan
from tilec.target import Target


def refuse(kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
    """Which option of a kernel that was `planned` otherwise is wrong (or its `tile`), and why; None where none is."""
    return kernel.options.refuse(kernel, planned, target) or _refuse_memory(kernel, planned, target)


def _refuse_memory(kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
    """What is wrong with a kernel whose blocks take more SRAM than there is: its tile, or the first option that is another."""
    if kernel.sram is None or target.sm is None or (taken := kernel.sram(kernel)) <= target.sm.shared_per_block:
        return None
    room = f"a block would keep {taken:,} bytes in SRAM, and {target.name} has {target.sm.shared_per_block:,} for one"
    own = dict(planned.options.options())
    other = next((key for key, value in kernel.options.options() if own.get(key) != value), None)
    where = "tile" if kernel.tile != planned.tile else other
    return Refusal(where, f"{room}; choose a smaller tile, or one that keeps less")
