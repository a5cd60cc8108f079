"""Kernels that a schedule file gives: their operations, checked like the planner's own groups."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from tilec.analysis.graph import Graph, Node
from tilec.analysis.space import space_of
from tilec.core.diagnostics import CallError
from tilec.core.target import Target
from tilec.plan.chain import as_contractions, is_contraction_chain
from tilec.plan.groups import Group, Kernels, Remark, ordered
from tilec.plan.legality import refuse


@dataclass(frozen=True)
class Fixed:
    """Names of the operations of each kernel, and of those that are computed inside their readers."""

    kernels: tuple[tuple[str, ...], ...]
    inlined: tuple[str, ...] = ()

    def same_as(self, other: Fixed) -> bool:
        """Whether both say the same, in whatever order."""
        mine, theirs = (sorted(map(sorted, f.kernels)) for f in (self, other))
        return mine == theirs and sorted(self.inlined) == sorted(other.inlined)


def group_as(graph: Graph, target: Target, fixed: Fixed) -> tuple[list[Group], list[Remark]]:
    """The groups that `fixed` names. Raises CallError, with the reason, where they are not legal."""
    nodes = {n.name: n for n in graph.nodes}
    _complete(nodes, fixed)
    remarks = [_inline(nodes[name], graph) for name in nodes if name in fixed.inlined]
    groups = [_group([n for n in graph.nodes if n.name in names], graph, target) for names in fixed.kernels]
    try:
        return ordered(graph, {n: g for g in groups for n in g.nodes}), remarks
    except ValueError:
        raise CallError("these kernels read from each other: no order of them is possible") from None


def refuse_inlined(graph: Graph, fixed: Fixed) -> tuple[str, ...]:
    """The operations of a graph that `fixed` has computed inside their readers. Raises CallError where one cannot be."""
    nodes = {n.name: n for n in graph.nodes}
    names = tuple(name for name in nodes if name in fixed.inlined)
    for name in names:
        _inline(nodes[name], graph)
    return names


def _complete(nodes: dict[str, Node], fixed: Fixed) -> None:
    """Every operation once."""
    named = [name for kernel in fixed.kernels for name in kernel] + list(fixed.inlined)
    for name in named:
        if name not in nodes:
            close = difflib.get_close_matches(name, nodes, 1)
            hint = f"did you mean `{close[0]}`?" if close else "the program's are " + ", ".join(nodes)
            raise CallError(f"there is no operation `{name}`", hint=hint)
        if named.count(name) > 1:
            raise CallError(f"the operation `{name}` is listed twice")
    if missing := [name for name in nodes if name not in named]:
        hint = "name it under a kernel's `operations`, or in `inline`"
        raise CallError(f"the operation `{missing[0]}` is in no kernel", hint=hint)
    if empty := next((k for k in fixed.kernels if not k), None):
        raise CallError(f"a kernel has no operations: {empty}")


def _inline(node: Node, graph: Graph) -> Remark:
    from tilec.passes.tensor.inline import refuse_inline

    consumers = graph.consumers(node)
    why = refuse_inline(node.op)
    if graph.is_returned(node):
        why = "it is a result"
    if why:
        raise CallError(f"`{node.name}` cannot be computed inside its readers: {why}")
    graph.inline(node, consumers)
    where = ", ".join(c.name for c in consumers)
    return Remark("inlined", f"{node.name} into {where}", "as the schedule says", node.line)


def _group(nodes: list[Node], graph: Graph, target: Target) -> Group:
    with as_contractions(nodes if target.kind == "cuda" else ()) as promoted:
        if is_contraction_chain(nodes) and not isinstance(space := refuse(nodes, graph, Kernels(graph), target), str):
            promoted.clear()
            return Group(nodes, space)
    space = refuse(nodes, graph, Kernels(graph), target) if len(nodes) > 1 else space_of(nodes, graph)
    if isinstance(space, str):
        names = ", ".join(f"`{n.name}`" for n in nodes)
        raise CallError(f"{names} cannot be one kernel: {space}")
    return Group(nodes, space)
