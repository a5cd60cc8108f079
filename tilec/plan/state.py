"""A program in the course of the search for a plan: the steps that were applied so far, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from tilec.analysis.graph import Graph, build_graph
from tilec.analysis.isomorphic import StructuralCache
from tilec.analysis.multiplicands import converts
from tilec.analysis.precision import approximate_operations
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.passes.tensor.inline import inline_all
from tilec.plan.fusion import group
from tilec.plan.given_groups import Fixed, refuse_inlined
from tilec.plan.groups import Group, Remark
from tilec.plan.steps import Applied, Step

Apply = Callable[[ir.Operation, Sequence[Step]], None]
"""Carries steps out in a function."""
APPROXIMATE = "tilec.approximate"


@dataclass(eq=False)
class State:
    """`make` makes the IR, once it is asked for. `applied` are the steps so far, and `fixed` the kernels that a schedule names;
    `may_pack` unless it forbids to store factors first. After steps of kernels, `base` is the program in whose kernels they were
    found, and `within` has these steps."""

    make: Callable[[], ir.Operation]
    target: Target
    cache: StructuralCache
    fixed: Fixed | None = None
    may_pack: bool = True
    applied: tuple[Applied, ...] = ()
    base: State | None = None
    within: tuple[tuple[Apply, tuple[Applied, ...]], ...] = ()

    def after(self, apply: Apply, steps: tuple[Applied, ...], of_kernels: bool) -> State:
        """The program once these steps are applied, too; `of_kernels`: if they were found in its kernels."""
        if not steps:
            return self
        applied = (*self.applied, *steps)
        if not of_kernels:
            make = partial(_applied, lambda: self.function.clone(), ((apply, steps),))
            return State(make, self.target, self.cache, self.fixed, self.may_pack, applied)
        base, within = self.base or self, (*self.within, (apply, steps))
        make = partial(_applied, base.inlined, within)
        return State(make, self.target, self.cache, self.fixed, self.may_pack, applied, base, within)

    @cached_property
    def function(self) -> ir.Operation:
        """The IR. It is the plan's own if this program is chosen, so that each step is applied once."""
        return self.make()

    @cached_property
    def approximations(self) -> dict[ir.Operation, str]:
        """The operations that have approximate forms, and which. They are decided before operations are computed inside others."""
        known = {op: form for op in mlir.traverse(self.function) if (form := mlir.get_string(op, APPROXIMATE)) is not None}
        return known or approximate_operations(self.function, self.target.kind)

    def graph(self) -> Graph:
        """Made anew each time: grouping changes it."""
        graph = build_graph(self.function, self.approximations, self.cache)
        graph.may_pack = self.may_pack
        return _for_target(graph, self.target)

    @cached_property
    def grouped(self) -> tuple[Graph, list[Group], list[Remark]]:
        """The kernels that are the fastest, before their tiles are known."""
        graph = self.graph()
        return graph, *group(graph, self.target)

    @cached_property
    def names_inlined(self) -> tuple[str, ...]:
        """The operations that each of their readers computes."""
        if self.fixed is not None:
            return refuse_inlined(self.graph(), self.fixed)
        return tuple(n.name for n in self.grouped[0].nodes if n.inlined)

    def inlined(self) -> ir.Operation:
        """A copy of the IR in which these are computed inside their readers."""
        return self._inlined.clone()

    @cached_property
    def _inlined(self) -> ir.Operation:
        copy = self.function.clone()
        for op, own in zip(mlir.traverse(self.function), mlir.traverse(copy)):
            if (form := self.approximations.get(op)) is not None:
                own.attributes[APPROXIMATE] = mlir.string(form)
            if mlir.get_string(own, "tilec.name") in self.names_inlined:
                own.attributes["tilec.inline"] = ir.UnitAttr.get()
        inline_all(copy)
        return copy


def _applied(
    make: Callable[[], ir.Operation], rewrites: tuple[tuple[Apply, tuple[Applied, ...]], ...]
) -> ir.Operation:  # fmt: skip
    function = make()
    for apply, steps in rewrites:
        apply(function, [a.step for a in steps])
    return function


def _for_target(graph: Graph, target: Target) -> Graph:
    """The CPU's register kernels multiply floats, and several rows: sums of integer products are reductions there. On a GPU a
    product with a vector is a contraction, too, where an 8-bit float has to be converted; one of two vectors has no rows. Nor is a
    product one that nobody reads, of which checks are left: its kernel has nothing to store."""
    for node in graph.nodes:
        if not any(mlir.uses(r.value) for r in node.results):
            node.contraction = node.vector_product = None
        if target.kind == "cpu":
            node.vector_product = None
            if node.contraction is not None and node.contraction.integer:
                node.contraction = None
        elif (product := node.vector_product) is not None and product.m + product.n and node.contraction is None:
            node.contraction = product
            if not converts(node, target):
                node.contraction = None
    return graph
