"""The check of an edited kernel: whether its options and its shared memory allow to build it."""

from __future__ import annotations

from tilec.core.target import Target
from tilec.kernels import KernelPlan, Refusal


def refuse(kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
    """The refusal of an edited kernel that was `planned` otherwise: the wrong option (or its `tile`) and the reason. None
    if it can be built."""
    return kernel.family.refuse(kernel, planned, target) or _refuse_memory(kernel, planned, target)


def _refuse_memory(kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
    """The refusal of a kernel whose blocks take more shared memory than the target has: of its tile, or of the first edited
    option."""
    if kernel.sram is None or target.sm is None or (taken := kernel.sram(kernel)) <= target.sm.shared_per_block:
        return None
    room = f"a block would take {taken:,} bytes of shared memory, and {target.name} has {target.sm.shared_per_block:,} for a block"
    own = dict(planned.family.options())
    other = next((key for key, value in kernel.family.options() if own.get(key) != value), None)
    where = "tile" if kernel.tile != planned.tile else other
    assert where is not None, "the plan itself fits"
    return Refusal(where, f"{room}; choose a smaller tile")
