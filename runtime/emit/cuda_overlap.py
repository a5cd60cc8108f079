"""emit, for CUDA: kernels whose blocks take their places while the kernel before them ends.

A device starts a kernel some microseconds after the last block of the one before has ended. With programmatic dependent
launch (sm_90) its blocks are placed as soon as all blocks of the one before have begun, and wait there: `grid_wait`
returns when that kernel is complete and what it wrote can be seen. A kernel waits before it lets the next one come, so that
no more than two are at work, and none runs ahead of one that it does not wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.runtime.program import Step


@dataclass(frozen=True)
class Overlap:
    """A kernel and its neighbours: whether it waits for the one before, and lets the next one come. `made`: which of its
    parameters others write while its blocks wait."""

    waits: bool = False
    releases: bool = False
    made: tuple[int, ...] = ()

    def calls(self) -> list[str]:
        """What the kernel begins with."""
        return ["grid_wait"] * self.waits + ["grid_release"] * self.releases


def overlaps(module: ir.Module, steps: Sequence[Step]) -> dict[str, Overlap]:
    """Every kernel's, by name. What comes after a copy or a fill is launched as ever: only kernels let others come."""
    asked = {mlir.get_string(f, "sym_name") for f in mlir.functions(module) if "tilec.overlap" in f.attributes}
    kernels = [None, *(s.kernel for s in steps), None]
    found, written = {}, set()
    for step, before, after in zip(steps, kernels, kernels[2:]):
        if step.kernel is not None:
            waits = before is not None and step.kernel in asked
            made = tuple(i for i, slot in enumerate(step.slots) if waits and slot in written)
            found[step.kernel] = Overlap(waits, after in asked, made)
        written |= {s for s in step.slots if s.kind != "input"}
    return found
