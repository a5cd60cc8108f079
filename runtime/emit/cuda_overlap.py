"""emit, for CUDA: kernels whose blocks are placed while the kernel before them ends.

A device starts a kernel some microseconds after the last block of the kernel before it has ended. With programmatic dependent
launch (sm_90) its blocks are placed as soon as all blocks of the one before have begun, and wait there: `grid_wait`
returns when that kernel is complete and its stores are visible. A kernel waits before it allows the next one to start, so that
at most two kernels run at a time, and a kernel waits for every kernel before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.runtime.program import Slot, Step


@dataclass(frozen=True)
class Overlap:
    """A kernel and its neighbours: whether it waits for the one before, and lets the next one come. `made`: which of its
    parameters others write while its blocks wait."""

    waits: bool = False
    releases: bool = False
    made: tuple[int, ...] = ()

    def calls(self) -> list[str]:
        """The first statements of the kernel."""
        return ["grid_wait"] * self.waits + ["grid_release"] * self.releases


def overlaps(module: ir.Module, steps: Sequence[Step]) -> dict[str, Overlap]:
    """The overlap of every kernel, by name. Kernels after a copy or a fill are launched normally: only kernels let others start.
    A kernel with several launches waits where it does in all of them, and has a neighbour that it has in any."""
    asked = {mlir.get_string(f, "sym_name") for f in mlir.functions(module) if "tilec.overlap" in f.attributes}
    kernels = [None, *(s.kernel for s in steps), None]
    plain = {after for before, after in pairwise(kernels) if before is None}
    found: dict[str, Overlap] = {}
    written: set[Slot] = set()
    for step, after in zip(steps, kernels[2:]):
        if step.kernel is not None:
            waits, known = step.kernel in asked - plain, found.get(step.kernel, Overlap())
            made = {i for i, slot in enumerate(step.slots) if waits and slot in written}
            found[step.kernel] = Overlap(waits, known.releases or after in asked, tuple(sorted(made.union(known.made))))
        written |= {s for s in step.slots if s.kind != "input"}
    return found
