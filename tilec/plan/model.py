"""The types of a plan: its kernels, their families, and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilec.analysis.copied_results import Copy
from tilec.core.diagnostics import Span
from tilec.core.mlir import ir
from tilec.core.quantities import count
from tilec.core.target import Target
from tilec.core.varying import Varying, ranges_text
from tilec.cost.launches import launch_time
from tilec.cost.model import Prediction
from tilec.kernels import KernelPlan
from tilec.plan.cuda.launches import Order, refuse_launches
from tilec.plan.groups import Remark
from tilec.plan.steps import Applied


@dataclass(frozen=True)
class Plan:
    """All kernels of a program. `signature` is the program's name with the types and shapes of its inputs.

    `rewrites`: the steps that were applied to the program; `function` is the IR after them. `unscheduled`: where a schedule decided
    them, those that the compiler would take. `inlined_before`: the operations of `inlined` that readers compute before steps of
    kernels are applied. `launches`: the kernels of each launch that several share, by its name; `order` tells which can. `replan`
    plans again with given kernels and rewrites. `candidates` lists the alternatives of each kernel, or of those of given names.
    Both read the IR that the plan was made from, so that they work only while the IR is unchanged: the driver applies a schedule
    before any later pass runs.
    `varies`: the sizes that vary, `sizes`: the numbers that the plan is made at (`tilec/plan/varying.py`). `instance` keeps the
    program at these, and `general` makes of its kernels those for all sizes. `obeys`: where a schedule file has the plan.
    """

    target: Target
    kernels: tuple[KernelPlan, ...]
    inlined: tuple[str, ...]
    remarks: tuple[Remark, ...] = field(default=())
    signature: str = ""
    rewrites: tuple[Applied, ...] = ()
    approximations: dict[ir.Operation, str] = field(default_factory=dict, compare=False, repr=False)
    function: ir.Operation | None = field(default=None, compare=False, repr=False)
    replan: Callable[..., Plan] | None = field(default=None, compare=False, repr=False)
    copies: tuple[Copy, ...] = ()
    candidates: Callable[..., dict[str, list[KernelPlan]]] | None = field(default=None, compare=False, repr=False)
    launches: dict[str, tuple[str, ...]] = field(default_factory=dict)
    order: Order = field(default_factory=Order, compare=False, repr=False)
    unscheduled: tuple[Applied, ...] = field(default=(), compare=False, repr=False)
    inlined_before: tuple[str, ...] = field(default=(), compare=False, repr=False)
    varies: dict[str, Varying] = field(default_factory=dict)
    instance: ir.Module | None = field(default=None, compare=False, repr=False)
    sizes: Mapping[str, int] = field(default_factory=dict)
    general: Callable[[KernelPlan], KernelPlan] | None = field(default=None, compare=False, repr=False)
    obeys: Span | None = field(default=None, compare=False, repr=False)

    @property
    def named(self) -> str:
        """The program with its shapes, and with the sizes that vary."""
        return f"{self.signature} with {ranges_text(self.varies)}" if self.varies else self.signature

    def steps(self, rewrite: str) -> tuple[Any, ...]:
        """The steps of a rewrite that were applied."""
        return tuple(a.step for a in self.rewrites if a.rewrite == rewrite)

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
                found[name] = launch_time([work[k] for k in self.launches[name]], self.target)
        return found

    @property
    def time_us(self) -> float:
        return sum(p.time_us for p in (*self.predictions.values(), *(c.prediction for c in self.copies)))

    @property
    def cost_of_invariance(self) -> str:
        """In words, what it takes that elements keep their bits at all numbers of some sizes; empty where none is invariant."""
        return next((r.reason for r in self.remarks if r.verb == "invariant"), "")

    @property
    def counted(self) -> str:
        """`2 kernels`, `1 copy`, `1 kernel and 1 copy`."""
        copies = count(len(self.copies), "copy", "copies")
        if not self.kernels and self.copies:
            return copies
        launched = f" in {count(len(self.predictions), 'launch', 'launches')}" if self.launches else ""
        return count(len(self.kernels), "kernel") + launched + (f" and {copies}" if self.copies else "")
