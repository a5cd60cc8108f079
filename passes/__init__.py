"""The stages between `build` and `emit` in order, with the steps of each: passes of tilec or of upstream MLIR.

A step is the text of an upstream pass, or a function of the module's operation. The tuple `STAGES` is the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.passes.map import map_kernels, share_launches
from tilec.passes.stage import stage
from tilec.passes.tensor.approximate import approximate
from tilec.passes.tensor.bounds import fold_bounds
from tilec.passes.tensor.bufferize import bufferize, drop_copies
from tilec.passes.tensor.collapsed import read_collapsed, read_expanded
from tilec.passes.tensor.corrected import correct_squares
from tilec.passes.tensor.elements import compute_where_read, forward_elements, read_through_copies
from tilec.passes.tensor.exclusive_scans import store_exclusive
from tilec.passes.tensor.forward import forward
from tilec.passes.tensor.fuse import fuse
from tilec.passes.tensor.inplace import note_inplace
from tilec.passes.tensor.integer_compare import compare_whole
from tilec.passes.tensor.merged import merge_reduced
from tilec.passes.tensor.narrow import narrow, narrow_for
from tilec.passes.tensor.regroup import regroup
from tilec.passes.tensor.share import share_equal
from tilec.passes.tensor.simplify import settle, simplify
from tilec.passes.tensor.slice_updates import store_slice_updates
from tilec.passes.tensor.split_concatenation import reduce_in_pieces
from tilec.passes.tensor.tile import tile

Step = str | Callable[[ir.Operation], object]


@dataclass(frozen=True)
class Stage:
    name: str
    summary: str
    steps: tuple[Step, ...]


STAGES: tuple[Stage, ...] = (
    Stage(
        "simplify", "canonical forms, common subexpressions, algebra",
        ("canonicalize", "cse", simplify, forward_elements, "canonicalize", "cse", fold_bounds, "canonicalize",
         read_through_copies, compute_where_read, store_exclusive, read_expanded, narrow,
         reduce_in_pieces, "canonicalize", regroup, read_collapsed, correct_squares, merge_reduced, settle, "cse",
         share_equal, store_slice_updates),
    ),
    Stage("plan", "decides kernels, tiles, memory, and changes of the program as a whole", ()),
    Stage(
        "fuse", "fast approximations; one function per kernel",
        (approximate, fuse, compare_whole, "canonicalize", "cse", forward, "canonicalize", note_inplace),
    ),
    # no cse: it would give two tiles of one size the same memory
    Stage("tile", "cuts each kernel's grid into tiles, one for each block", (tile, "canonicalize")),
    Stage(
        "bufferize", "tensors become memory",
        (bufferize, "one-shot-bufferize{allow-unknown-ops=1}", drop_copies, "canonicalize", "cse", "canonicalize"),
    ),
    Stage("stage", "data in shared memory and registers; panels", (stage, "canonicalize", "cse")),
    Stage(
        "map", "operations become loops, threads and vectors",
        (map_kernels, share_launches, "canonicalize", "cse", "canonicalize"),
    ),
)  # fmt: skip
"""The driver makes the step of `plan`, which needs a target and perhaps a schedule."""


def stages(plan: Callable[[ir.Operation], None], target: Target | None = None) -> tuple[Stage, ...]:
    """`STAGES` with the driver's `plan`, for a target."""
    given: dict[Step, Step] = {narrow: narrow_for(target)}
    steps = {"plan": (plan,)}
    return tuple(replace(s, steps=steps.get(s.name, tuple(given.get(step, step) for step in s.steps))) for s in STAGES)


NAMES = ("build", *(s.name for s in STAGES))
