"""The types of a plan: its kernels, their families, and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tilec.analysis.copied_results import Copy
from tilec.core.mlir import ir
from tilec.core.quantities import count
from tilec.core.target import Target
from tilec.cost.launches import together
from tilec.cost.model import Prediction
from tilec.kernels import KernelPlan
from tilec.passes.tensor.pack import SIDES
from tilec.plan.cuda.launches import Order, refuse_launches
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
    for one of several readers. `diagonals`: tensors of which one element is stored for each diagonal. `pieces`: tensors that
    join others, which are computed piece by piece. `launches`: the kernels of each launch that several share, by its name; `order`
    tells which can. `regroup` plans again with given kernels. `candidates` lists the alternatives of each kernel. Both read the IR
    that the plan was made from, so that they work only while the IR is unchanged: the driver applies a schedule before any later
    pass runs.
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
    pieces: tuple[str, ...] = ()
    launches: dict[str, tuple[str, ...]] = field(default_factory=dict)
    order: Order = field(default_factory=Order, compare=False, repr=False)

    def with_kernels(self, kernels: Sequence[KernelPlan]) -> Plan:
        """The plan with other options of its kernels, whose launches are their own where these options rule out a shared one."""
        launches = dict(self.launches)
        while (refused := refuse_launches(kernels, launches, self.order, self.target)) is not None:
            del launches[refused[0]]
        return replace(self, kernels=tuple(kernels), launches=launches)

    @property
    def registers(self) -> dict[str, int]:
        """The register limit of a thread, for kernels and launches that have one (CUDA)."""
        found = {k.name: getattr(k.options, "registers", None) for k in self.kernels}
        for name, kernels in self.launches.items():
            limits = [found[k] for k in kernels]
            found[name] = None if None in limits else max(n for n in limits if n is not None)
        return {name: n for name, n in found.items() if n is not None}

    @property
    def predictions(self) -> dict[str, Prediction]:
        """Of every launch, by the name of its kernel or, where several share it, by its own."""
        shared = {k: name for name, kernels in self.launches.items() for k in kernels}
        work = {k.name: k.work for k in self.kernels}
        found = {}
        for kernel in self.kernels:
            if (name := shared.get(kernel.name)) is None:
                found[kernel.name] = kernel.prediction
            elif name not in found:
                found[name] = together([work[k] for k in self.launches[name]], self.target)
        return found

    @property
    def time_us(self) -> float:
        return sum(p.time_us for p in (*self.predictions.values(), *(c.prediction for c in self.copies)))

    @property
    def counted(self) -> str:
        """`2 kernels`, `1 copy`, `1 kernel and 1 copy`."""
        copies = count(len(self.copies), "copy", "copies")
        if not self.kernels and self.copies:
            return copies
        launched = f" in {count(len(self.predictions), 'launch', 'launches')}" if self.launches else ""
        return count(len(self.kernels), "kernel") + launched + (f" and {copies}" if self.copies else "")
