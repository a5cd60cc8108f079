"""The types of a plan: its kernels, their families, and the reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilec.analysis.copied_results import Copy
from tilec.core.mlir import ir
from tilec.core.quantities import count
from tilec.core.target import Target
from tilec.kernels import KernelPlan
from tilec.passes.tensor.pack import SIDES
from tilec.plan.given_groups import Fixed
from tilec.plan.groups import Remark


@dataclass(frozen=True)
class Split:
    """Dimension `dim` of operation `name` becomes `parts` parts."""

    name: str
    dim: int
    parts: int


@dataclass(frozen=True)
class Pack:
    """Factor `side` of operation `name` is stored over its dimensions `dims`, as `kind`. `extents`: along them, with the zeros that
    follow; empty where none do. Without `dims`, the tensor that it is an element of is stored, in aligned rows."""

    name: str
    side: int
    dims: tuple[int, ...]
    kind: str
    extents: tuple[int, ...] = ()

    @property
    def stored(self) -> str:
        return f"{self.name}.{SIDES[self.side]}"


@dataclass(frozen=True)
class Plan:
    """All kernels of a program. `signature` is the program's name with the types and shapes of its inputs.

    `recomputed`: operations that compute a read of a contraction's result anew, with their readers. `copied`: operations that exist
    for one of several readers. `diagonals`: tensors of which one element is stored for each diagonal. `regroup` plans again with
    given kernels. `candidates` lists the alternatives of each kernel. Both read the IR that the plan was made from, so that they
    work only while the IR is unchanged: the driver applies a schedule before any later pass runs.
    """

    target: Target
    kernels: tuple[KernelPlan, ...]
    inlined: tuple[str, ...]
    remarks: tuple[Remark, ...] = field(default=())
    signature: str = ""
    splits: tuple[Split, ...] = ()
    approximations: dict[ir.Operation, str] = field(default_factory=dict, compare=False, repr=False)
    regroup: Callable[[Fixed], Plan] | None = field(default=None, compare=False, repr=False)
    packs: tuple[Pack, ...] = ()
    copies: tuple[Copy, ...] = ()
    candidates: Callable[[], dict[str, list[KernelPlan]]] | None = field(default=None, compare=False, repr=False)
    recomputed: dict[str, str] = field(default_factory=dict)
    copied: tuple[str, ...] = ()
    diagonals: tuple[str, ...] = ()

    @property
    def registers(self) -> dict[str, int]:
        """The register limit of a thread, for kernels that have one (CUDA)."""
        return {k.name: n for k in self.kernels if (n := getattr(k.options, "registers", None)) is not None}

    @property
    def time_us(self) -> float:
        parts: tuple[KernelPlan | Copy, ...] = (*self.kernels, *self.copies)
        return sum(part.prediction.time_us for part in parts)

    @property
    def counted(self) -> str:
        """`2 kernels`, `1 copy`, `1 kernel and 1 copy`."""
        copies = count(len(self.copies), "copy", "copies")
        if not self.kernels and self.copies:
            return copies
        return count(len(self.kernels), "kernel") + (f" and {copies}" if self.copies else "")
